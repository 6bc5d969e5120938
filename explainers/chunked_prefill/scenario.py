"""The chunked-prefill lesson's set-up: streams in mid-reply, the long prompt that lands, and three ways to take it in."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from explainers.kit.knobs import Knob, Preset, Value, defaults
from sim import capacity, workloads
from sim.engine import simulate
from sim.hardware import GPUS, MODELS, TENSOR_PARALLEL
from sim.metrics import ttft
from sim.policy import Memory, Policy, orca, sarathi_serve, vllm_v0
from sim.record import step_times
from sim.run import Run, closed
from sim.service import Service, attention_units, service, step_us
from sim.trace import Content, Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Values = Mapping[str, Value]

OWN = "own file"
"""What the knob `source` of other lessons says for a visitor's file; this one has none."""
SLOTS = 4096
"""Most requests at once: more than there ever are."""
BUDGETS = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
PROMPTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
MOST_STREAMS, MOST_LONG = 48, 4
"""Together less than the smallest budget: else the decodes take all of it and the prompt waits until a stream ends."""
OUTPUT = 1 << 16
"""Tokens of every reply: more than are ever looked at, so that nobody ends in the picture."""
EARLIER_S = 3600.0
"""So long before the streams somebody asked the same: their prompts, and `hit` tokens of the long one, are cached."""
BEFORE_MS, BEFORE_STEPS = 400.0, 12
"""The prompt lands so long after the streams' first token, and at least so many steps."""
AFTER_MS = 400.0
"""What is measured ends so long after the slowest policy's last first token: the same moment for all three."""
SPREAD = 0.5
"""A stream's context lies within this share of the knob's, evenly spread."""
V0_BUDGET = 2048
"""vLLM v0 lets at least so many prompt tokens into a step, and at least one prompt of the maximum length."""
SEEDS = 20
"""The band runs seeds 1 to SEEDS."""
KEYS = ("alone", "whole", "chunks")
BLOCK = 16
_SAME_US = 1e-3  # what is nearer than 1e-9 s is one instant
# Nobody is ever preempted, so nobody comes back too long for a budget.
_ENDLESS = Memory(1 << 40, BLOCK, prefix_cache=True, refuse=False)

KNOBS: tuple[Knob, ...] = (
    Knob("budget", "Token budget", 512, options=BUDGETS, main=True, unit="tokens",
         help="Most tokens in a step with chunks: one for each stream, the rest for the prompt. vLLM calls it "
              "max_num_batched_tokens."),
    Knob("prompt", "Long prompt", 16384, options=PROMPTS, main=True, unit="tokens",
         help="Tokens of the prompt that lands among the streams."),
    Knob("streams", "Streams", 16, 1, MOST_STREAMS, group="Requests", unit="streams",
         help="Replies under way when the prompt lands. Each gets one token a step."),
    Knob("context", "Context of a stream", 1024, options=(128, 256, 512, 1024, 2048, 4096, 8192), group="Requests", unit="tokens",
         help="Tokens that a stream attends to, on average. Drawn for each between half and one and a half times as many."),
    Knob("long", "Long prompts", 1, 1, MOST_LONG, group="Requests", unit="prompts", help="How many long prompts come."),
    Knob("spacing", "Time between them", 250, options=(0, 100, 250, 500, 1000, 2000), group="Requests", unit="ms",
         help="From one long prompt to the next. It plays no part with one prompt."),
    Knob("hit", "Prefix-cache hit", 0, options=(0, 4096, 8192, 12288, 15360, 15872, 16128), group="Requests", unit="tokens",
         help="Tokens of each long prompt whose keys and values are there already. At least its last block is computed."),
    Knob("seed", "Seed", 1, 0, 9999, group="Requests",
         help="Another number draws other contexts, and another moment within a step for the landing."),
    Knob("cap", "Long-prefill cap", 0, options=(0, 64, 128, 256, 512, 1024, 2048, 4096), group="Server", unit="tokens",
         help="Most tokens of one prompt in a step with chunks. 0: no cap. vLLM calls it long_prefill_token_threshold."),
    Knob("model", "Model", "Llama-3-8B", options=tuple(MODELS), group="Server", help="Sets the time of a step."),
    Knob("gpu", "GPU", "A100-80G", options=tuple(GPUS), group="Server",
         help="Measured step times exist for A100-80G and H100; the others are computed from their data sheets."),
    Knob("tp", "Tensor parallel", 1, options=TENSOR_PARALLEL, group="Server", unit="GPUs",
         help="Over how many GPUs each layer is split."),
    Knob("tiles", "Tile rounding", False, group="Server",
         help="Matrix products work in tiles of 128 tokens: one token more can cost a whole tile. Off: the smooth curve through "
              "the middle of the staircase."),
    Knob("overhead", "Engine overhead", 0.0, 0.0, 20.0, 0.5, group="Server", unit="ms",
         help="Time that each step takes beside the GPU's kernels: scheduling, sampling, LM head. A hundred small steps pay it a "
              "hundred times."),
)

PRESETS: tuple[Preset, ...] = (
    Preset("classic", "The classic", {},
           "Sixteen streams, and a prompt of 16,384 tokens. Follow one row of ticks from left to right under each policy: a hole "
           "is a reader who waits."),
    Preset("tiny", "Tiny chunks", {"budget": 64},
           "A budget of 64 tokens leaves 48 for the prompt in each step. Watch the ripple in the streams, and when the newcomer "
           "has its first token."),
    Preset("three", "Three long prompts", {"long": 3},
           "Three prompts of 16,384 tokens, a quarter of a second apart. Watch whether the holes join, and how long the last "
           "newcomer waits behind the others."),
    Preset("short", "Short prompt", {"prompt": 256},
           "A prompt of 256 tokens fits in one step with the streams. Watch whether there is anything for chunks to mend."),
    Preset("fast", "Faster GPU", {"gpu": "H100"},
           "The same prompt on an H100, which computes about three times as fast. Watch the ridge: is the "
           "same budget as good here?"),
    Preset("hit", "Prefix-cache hit", {"hit": 15872},
           "All but 512 tokens of the long prompt are in the prefix cache. Watch how much of the freeze that leaves."),
)


@dataclass(frozen=True)
class Scenario:
    """The requests, one service, and three policies, "alone", "whole" and "chunks".

    trace    the streams, then the long prompts; their order is that of the lanes
    landing_us  when the first long prompt arrives, on the trace's clock
    primed   the same with the request an hour earlier whose prompt is in the prefix cache: what is simulated
    """

    trace: Trace
    service: Service
    policies: dict[str, Policy]
    values: dict[str, Value]
    landing_us: float
    primed: Trace

    @property
    def streams(self) -> int:
        """Requests 0 to streams − 1 are streams, the rest long prompts."""
        return int(self.values["streams"])


@dataclass(frozen=True)
class Gap:
    """The time between two tokens of one stream, ms after the landing; all streams share it, `stream` is the first."""

    stream: int
    start_ms: float
    end_ms: float

    @property
    def ms(self) -> float:
        """How long it is."""
        return self.end_ms - self.start_ms


@dataclass(frozen=True)
class Lost:
    """What chunking costs by itself: prompt tokens/s without any stream beside, whole and in chunks of what the budget leaves.

    Sarathi-Serve's own definition of chunking overhead (OSDI 2024, figure 14): prefill time only. Prompt tokens computed, a
    hit not counted, over the time of the steps that compute them.
    """

    whole: float
    chunked: float

    @property
    def tokens_per_s(self) -> float:
        """Prompt tokens per second lost."""
        return self.whole - self.chunked

    @property
    def share(self) -> float:
        """The same as a share of what whole prompts reach."""
        return self.tokens_per_s / self.whole


@dataclass(frozen=True)
class Result:
    """The scenario served under each policy; all arrays are read-only. Keys KEYS.

    gaps       the longest gap between two tokens of a stream that ends after the landing, by policy
    summaries  by policy: gap_max_ms, gap_p50_ms, gap_p99_ms over all gaps of the streams from the landing to end_ms;
               ttft_ms, of the long prompt that waits longest; prompt_steps, steps with prompt tokens; stream_tokens,
               which the streams got from the landing to the last first token of the slowest policy (done_ms)
    end_ms     end of what is measured and drawn, ms after the landing: done_ms and AFTER_MS
    """

    scenario: Scenario
    runs: dict[str, Run]
    gaps: dict[str, Gap]
    summaries: dict[str, dict[str, float]]
    lost: Lost
    done_ms: float
    end_ms: float


@dataclass(frozen=True)
class Band:
    """Over the seeds 1 to SEEDS, else as on the screen, by policy: longest gap and longest TTFT of a long prompt, ms."""

    seeds: tuple[int, ...]
    gap_ms: dict[str, Floats]
    ttft_ms: dict[str, Floats]


@dataclass(frozen=True)
class Sweep:
    """The token budget over BUDGETS, each one computed.

    gap_ms, ttft_ms  longest gap of a stream, longest TTFT of a long prompt; by policy: a value for each budget, the same one
                     again where a policy has no budget
    lost             prompt tokens/s lost to chunking (Lost), for each budget;  whole  of so many
    ridge            tokens in a step at which computing takes as long as reading the weights
    """

    x: Floats
    x_here: float
    gap_ms: dict[str, Floats]
    ttft_ms: dict[str, Floats]
    lost: Floats
    whole: float
    ridge: float
    note: str = ""


@dataclass(frozen=True)
class Roofline:
    """Step time over tokens in the step, ms.

    tokens      1 to 16,384, ascending
    prefill_ms  one prompt of so many tokens from its start, nobody beside it;  decode_ms  so many streams, a token each, with
                `context` tokens of context each, as long as there are at most 256
    floor_ms    what a step takes at least: fixed part and reading the weights;  slope_ms  fixed part and computing the linear
                products of so many tokens, weights for nothing: both without attention
    points      measured, (kind, tokens, ms) with kind "prefill" or "decode": assembled from measured kernels (`source`)
    context     what the decode points were measured with
    ridge, ridge_theory  tokens; of the fitted constants, and of the data sheet
    budget      you are here;  step_ms  a step filled to it, halfway through the prompt, streams included
    overhead_ms  of floor_ms and every step: the engine's own
    """

    tokens: Ints
    prefill_ms: Floats
    decode_ms: Floats
    floor_ms: float
    slope_ms: Floats
    points: tuple[tuple[str, int, float], ...]
    context: int
    ridge: float
    ridge_theory: float
    budget: int
    step_ms: float
    source: str
    overhead_ms: float = 0.0


@dataclass(frozen=True)
class Load:
    """One policy at several request rates, ascending; `capacity` is the largest rate at which both limits hold, 0: none.

    rate requests/s;  tbt_p99_ms P99 time between tokens;  delay_p50_s median scheduling delay;  holds: both limits kept
    """

    rate: Floats
    tbt_p99_ms: Floats
    delay_p50_s: Floats
    holds: NDArray[np.bool_]
    capacity: float


@dataclass(frozen=True)
class Curve:
    """How much load each policy bears, by key; `what` says of which requests, on what."""

    loads: dict[str, Load]
    slo_tbt_ms: float
    slo_delay_s: float
    what: str


def filled(values: Values) -> dict[str, Value]:
    """`values` with the default for every knob that it leaves out."""
    return {**defaults(KNOBS), **values}


# --- the requests, one service, three policies -------------------------------------------------------------------------


def build(values: Values, uploaded: None = None) -> Scenario:
    """The scenario of the knobs. Raises ValueError with a message for the learner where the weights do not fit."""
    v = filled(values)
    server = _service(v)
    n, context = int(v["streams"]), _contexts(v)
    step = float(step_us(server, n, int(context.sum()), requests=n))
    phase = float(np.random.default_rng([int(v["seed"]), n]).random())
    landing = np.rint(max(1000 * BEFORE_MS, BEFORE_STEPS * step) + phase * step)
    primed = _trace(v, context, landing)
    alone = max(V0_BUDGET, int(v["prompt"]), int(context.max()))
    policies = {
        "alone": Policy("Prompt first and alone", "continuous", SLOTS, alone, "alone", memory=_ENDLESS),
        "whole": Policy("Whole prompt beside decodes", "continuous", SLOTS, None, "whole", memory=_ENDLESS),
        "chunks": _chunks(v, int(v["budget"])),
    }
    return Scenario(_shown(primed), server, policies, v, float(landing), primed)


def _service(v: dict[str, Value]) -> Service:
    model, gpu, tp = str(v["model"]), str(v["gpu"]), int(v["tp"])
    try:
        return service(model, gpu, tp, overhead_us=1000 * float(v["overhead"]), tiles=bool(v["tiles"]))
    except ValueError as error:
        what = f"{model} does not fit on {tp} {gpu}" if tp > 1 else f"{model} does not fit on one {gpu}"
        raise ValueError(f"{what}. Choose a smaller model, a larger GPU or more of them. ({error})") from None


def _chunks(v: dict[str, Value], budget: int) -> Policy:
    return Policy(f"Chunks, budget {int(v['budget']):,}", "continuous", SLOTS, budget, "chunked", chunk_cap=int(v["cap"]),
                  memory=_ENDLESS)


def _contexts(v: dict[str, Value]) -> Ints:
    """Tokens of context of each stream at its start; more streams leave the first ones as they are.

    Whole blocks of the prefix cache and one token: that one is computed, so all streams start in one step.
    """
    low, high = (round(int(v["context"]) * share) // BLOCK for share in (1 - SPREAD, 1 + SPREAD))
    return BLOCK * workloads.uniform(int(v["streams"]), low, high, int(v["seed"]), of="prompt") + 1


def _trace(v: dict[str, Value], context: Ints, landing_us: float, output: int = OUTPUT) -> Trace:
    """One request whose prompt is all that is cached; an hour later the streams, and then the long prompts.

    Stream of tokens 0 is that prompt: each stream's prompt is its first tokens, and so is the hit of a long prompt.
    """
    n, k, prompt = len(context), int(v["long"]), int(v["prompt"])
    hit = prompt - to_compute(v)
    cached = max(int(context.max(initial=1)), hit)
    own = [[(0, 0, hit), (1 + j, 0, prompt - hit)] if hit else [(1 + j, 0, prompt)] for j in range(k)]
    runs = [[(0, 0, cached)], *([(0, 0, c)] for c in context.tolist()), *own]
    content = Content.of(runs, 1 + k + np.arange(1 + n + k))
    lands = EARLIER_S + landing_us / 1e6 + np.arange(k) * int(v["spacing"]) / 1000
    times = np.concatenate(([0.0], np.full(n, EARLIER_S), lands))
    prompts = np.concatenate(([cached], context, np.full(k, prompt)))
    return workloads.workload(times, prompts, np.concatenate(([1], np.full(n + k, output))), "generated", content)


def to_compute(v: Values) -> int:
    """Tokens of each long prompt that the prefix cache does not have: it has whole blocks, and never the last token."""
    prompt = int(v["prompt"])
    return prompt - min(int(v["hit"]), (prompt - 1) // BLOCK * BLOCK)


def _shown(primed: Trace) -> Trace:
    """Without the request that fills the cache, on a clock that starts with the streams."""
    return workloads.workload(primed.arrival[1:] - EARLIER_S, primed.prompt[1:], primed.output[1:], primed.name)


# --- results ----------------------------------------------------------------------------------------------------------


def result(values: Values, uploaded: None = None) -> Result:
    """The three runs and their numbers. Raises as build does."""
    return serve(build(values))


def serve(scene: Scenario) -> Result:
    """The scenario's requests under each of its policies."""
    runs = {key: closed(_run(scene, policy)) for key, policy in scene.policies.items()}
    done = max(_done_us(run, scene) for run in runs.values())
    end = done + 1000 * AFTER_MS
    gaps = {key: _longest(run, scene, end) for key, run in runs.items()}
    summaries = {key: _summary(run, scene, done, end) for key, run in runs.items()}
    lost = _lost(scene, int(scene.values["budget"]))
    return Result(scene, runs, gaps, summaries, lost, (done - scene.landing_us) / 1000, (end - scene.landing_us) / 1000)


def longest_gap(result: Result, key: str) -> Gap:
    """The longest gap between two tokens of a stream under a policy."""
    return result.gaps[key]


def token_ms(result: Result, key: str, start_ms: float = -np.inf, end_ms: float = np.inf) -> Floats:
    """When the streams get their tokens, all of them at the same moments, ms after the landing; of the time asked for."""
    at = _tokens_us(result.runs[key], min(end_ms, result.end_ms) * 1000 + result.scenario.landing_us)
    ms: Floats = (at - result.scenario.landing_us) / 1000
    return ms[ms >= start_ms]


def _run(scene: Scenario, policy: Policy) -> Run:
    """One run, without the request that filled the cache."""
    run = simulate(scene.primed, scene.service, policy)
    earlier = 1e6 * EARLIER_S
    times = {name: getattr(run, name)[1:] - earlier for name in ("admitted_us", "first_token_us", "finished_us", "released_us")}
    counts = {name: getattr(run, name)[1:] for name in ("outcome", "cached", "preemptions", "recomputed")}
    rows = run.steps.start_us >= earlier
    steps = {column.name: getattr(run.steps, column.name)[rows] for column in fields(run.steps)}
    steps["start_us"] = steps["start_us"] - earlier
    return replace(run, trace=scene.trace, **times, **counts, steps=replace(run.steps, **steps), events=())


def _done_us(run: Run, scene: Scenario) -> float:
    """When the last long prompt has its first token."""
    return float(run.first_token_us[scene.streams:].max())


def _tokens_us(run: Run, end_us: float) -> Floats:
    """When each stream gets its tokens up to `end_us`, µs: the ends of all steps with decodes, as every stream is in each."""
    steps = run.steps
    mine = (steps.decode > 0) & (steps.start_us < end_us)
    start, first, growth, count = steps.start_us[mine], steps.first_us[mine], steps.growth_us[mine], steps.count[mine]
    # A row may go on for long after the end: no step is shorter than its row's first.
    count = np.minimum(count, np.maximum(np.ceil((end_us - start) / first), 1)).astype(np.int64)
    step = np.arange(1, int(count.sum()) + 1) - np.repeat(np.cumsum(count) - count, count)
    ends: Floats = np.repeat(start, count) + step * np.repeat(first, count) + np.repeat(growth, count) * (step * (step - 1) / 2)
    return ends[ends <= end_us]


def _gaps(run: Run, scene: Scenario, end_us: float) -> tuple[Floats, Floats]:
    """Start and end of each gap that ends between the landing and `end_us`, µs; the same for every stream."""
    at = np.concatenate((run.first_token_us[:1], _tokens_us(run, end_us)))
    mine = at[1:] > scene.landing_us
    return at[:-1][mine], at[1:][mine]


def _longest(run: Run, scene: Scenario, end_us: float) -> Gap:
    start, end = _gaps(run, scene, end_us)
    i = int(np.argmax(end - start))
    return Gap(0, (float(start[i]) - scene.landing_us) / 1000, (float(end[i]) - scene.landing_us) / 1000)


def _summary(run: Run, scene: Scenario, done_us: float, end_us: float) -> dict[str, float]:
    start, end = _gaps(run, scene, end_us)
    gaps, steps = np.repeat(end - start, scene.streams) / 1000, run.steps
    p50, p99 = np.quantile(gaps, (0.5, 0.99)).tolist()
    return {"gap_max_ms": float(gaps.max()), "gap_p50_ms": p50, "gap_p99_ms": p99,
            "ttft_ms": 1000 * float(ttft(run)[scene.streams:].max()),
            "prompt_steps": float(steps.count[(steps.prefill > 0) & (steps.start_us >= scene.landing_us)].sum()),
            "stream_tokens": float(scene.streams * (end <= done_us + _SAME_US).sum())}


def _lost(scene: Scenario, budget: int) -> Lost:
    """The long prompts alone on the server: whole, and in chunks of what the budget leaves beside the streams."""
    trace = _trace(scene.values, np.empty(0, np.int64), 0.0, output=1)
    computed = int(scene.values["long"]) * to_compute(scene.values)
    policies = (scene.policies["alone"], _chunks(scene.values, budget - scene.streams))
    return Lost(*(1e6 * computed / _busy_us(simulate(trace, scene.service, policy)) for policy in policies))


def _busy_us(run: Run) -> float:
    """How long the steps take that begin after the hour."""
    steps = run.steps
    mine = steps.start_us >= 1e6 * EARLIER_S
    return float((steps.end_us - steps.start_us)[mine].sum())


def model_error(values: Values, kind: str) -> tuple[float, float] | None:
    """How far the model's step times are from the measured ones, median and 95th percentile in %; None: nothing was measured.

    kind  of steps: step_times.KINDS, decodes, prompts alone, or prompt tokens beside decodes; over all measured models
    """
    v = filled(values)
    device = {gpu: name for name, gpu in step_times.DEVICES.items()}.get(str(v["gpu"]))
    if device is None:
        return None
    off = step_times.errors(bool(v["tiles"]))[device, kind]
    median, p95 = np.quantile(off, (0.5, 0.95)).tolist()
    return 100 * median, 100 * p95


# --- over the budget, over the seeds, over the tokens in a step ---------------------------------------------------------


def band(values: Values) -> Band:
    """The headline numbers over SEEDS seeds."""
    seeds = tuple(range(1, SEEDS + 1))
    gap: dict[str, list[float]] = {key: [] for key in KEYS}
    first: dict[str, list[float]] = {key: [] for key in KEYS}
    for seed in seeds:
        scene = build({**values, "seed": seed})
        for key, policy in scene.policies.items():
            found = _headline(scene, policy)
            gap[key].append(found[0])
            first[key].append(found[1])
    return Band(seeds, {k: np.array(x) for k, x in gap.items()}, {k: np.array(x) for k, x in first.items()})


def _headline(scene: Scenario, policy: Policy) -> tuple[float, float]:
    """Longest gap and longest TTFT, ms."""
    run = _run(scene, policy)
    return _longest(run, scene, _done_us(run, scene) + 1000 * AFTER_MS).ms, 1000 * float(ttft(run)[scene.streams:].max())


def sweep(values: Values, uploaded: None = None, over: str = "budget") -> Sweep:
    """All budgets of the knob, each simulated."""
    if over != "budget":
        raise ValueError(f"over must be 'budget', not {over!r}")
    scene = build(values)
    n = len(BUDGETS)
    fixed = {key: _headline(scene, scene.policies[key]) for key in ("alone", "whole")}
    chunks = np.array([_headline(scene, _chunks(scene.values, budget)) for budget in BUDGETS])
    lost = [_lost(scene, budget) for budget in BUDGETS]
    return Sweep(
        np.array(BUDGETS, float), float(scene.values["budget"]),
        {**{key: np.full(n, gap) for key, (gap, _) in fixed.items()}, "chunks": chunks[:, 0]},
        {**{key: np.full(n, first) for key, (_, first) in fixed.items()}, "chunks": chunks[:, 1]},
        np.array([x.tokens_per_s for x in lost]), lost[0].whole, scene.service.ridge_tokens)


def roofline(values: Values) -> Roofline:
    """Step time over tokens in the step, on the model and GPU of the knobs, with the measured points that there are."""
    v = filled(values)
    server = _service(v)
    grid = np.unique(np.concatenate((np.rint(np.geomspace(1, 16384, 220)), 128 * np.arange(1, 17), 128 * np.arange(1, 17) + 1)))
    tokens = grid.astype(np.int64)
    n, budget, left = int(v["streams"]), int(v["budget"]), to_compute(v)
    chunk, cached = budget - n, int(v["prompt"]) - left
    done = cached + max(0, left - chunk) // 2
    half = step_us(server, budget, n * int(v["context"]), attention_units(chunk, done), n + 1)
    points, source = _measured(server)
    few = tokens[tokens <= 256]
    return Roofline(
        tokens, step_us(server, tokens, attention=attention_units(tokens), requests=1) / 1000,
        step_us(server, few, few * _POINTS_CONTEXT, requests=few) / 1000,
        float(server.base_us(0)) / 1000, (server.fixed_us + tokens * _each_us(server)) / 1000, points, _POINTS_CONTEXT,
        server.ridge_tokens, server.ridge_tokens_theory, budget, float(half) / 1000, source,
        float(v["overhead"]))


LIMITS_MS = (50, 100, 200, 500, 1000)
"""P99 TBT limits to choose from; Sarathi-Serve has 100 and 500 ms for Mistral-7B, 200 and 1,000 ms for Yi-34B."""
CHATS, BATCH, ORCA_BATCH = 2048, 128, 16
"""Requests at each rate, and the largest batches: as Sarathi-Serve's artifact has them."""


def bears(values: Values, key: str) -> tuple[tuple[str, Value], ...]:
    """The knobs that a policy's load depends on, as they stand: only chunks have a budget and a cap."""
    of = ("model", "gpu", "tp", "tiles", "overhead", "seed") + (("budget", "cap") if key == "chunks" else ())
    return tuple((name, values[name]) for name in of)


def load(values: Values | tuple[tuple[str, Value], ...], key: str, slo_tbt_ms: float,
         report: Callable[[tuple[int, float]], None] | None = None) -> tuple[Load, float]:
    """How much chat load one policy bears, and how many requests a second that simulated. Runs for a breath or two.

    "alone" is vLLM v0, "whole" Orca with its reservations, "chunks" Sarathi-Serve under the budget. ValueError where
    nothing fits beside the weights. After each rate `report` gets how many were tried, and simulated requests a second.
    """
    v = filled(dict(values))
    server = _service(v)
    blocks = server.blocks(BLOCK)
    policy = {
        "alone": lambda: vllm_v0(BATCH, capacity.LONGEST, blocks, BLOCK),
        "whole": lambda: orca(ORCA_BATCH, blocks, capacity.LONGEST, BLOCK),
        "chunks": lambda: replace(sarathi_serve(BATCH, int(v["budget"]), blocks, BLOCK), chunk_cap=int(v["cap"])),
    }[key]()
    rule, chats = capacity.Rule(slo_tbt_ms / 1000), capacity.chat(CHATS, int(v["seed"]))
    tell = None if report is None else lambda found: report((len(found.points), found.per_second))
    found = capacity.search(chats, server, policy, rule, report=tell)
    points = list(found.points)
    for share in (0.25, 0.5, 0.75, 1.15):  # so that the curve is one
        rate = share * max(found.rate, points[0].rate)
        points.append(capacity.try_rate(chats(rate), rate, server, policy, rule))
    points = sorted((p for p in points if p.rate <= 1.6 * max(found.rate, points[0].rate)), key=lambda p: p.rate)
    names = ("rate", "tbt_p99_s", "delay_p50_s", "holds")
    rates, tbt, delay, holds = (np.array([getattr(p, name) for p in points]) for name in names)
    return Load(rates, 1000 * tbt, delay, holds.astype(bool), found.rate), found.per_second


def curve(values: Values, loads: dict[str, Load], slo_tbt_ms: float) -> Curve:
    """The loads as one picture."""
    v = filled(values)
    gpus = f"{int(v['tp'])} × {v['gpu']}" if int(v["tp"]) > 1 else f"one {v['gpu']}"
    what = (f"{CHATS:,} requests of Sarathi-Serve's chat lengths at each rate, {v['model']} on {gpus}; vLLM v0 (alone) and "
            f"chunks with at most {BATCH} requests at once, Orca (whole) with {ORCA_BATCH}, reserving {capacity.LONGEST:,} "
            "tokens each.")
    return Curve(loads, slo_tbt_ms, 2.0, what)


def _each_us(server: Service) -> float:
    """µs that each further token takes where the weights count for nothing: its linear products and its all-reduces."""
    many = 10_000_000
    return (float(server.base_us(many)) - server.fixed_us) / many


_POINTS_CONTEXT = 1024
_SAME_LAYERS = {"Mistral-7B": "Llama-3-8B"}  # hardware.MODELS: the same shape, another vocabulary


@lru_cache(maxsize=32)
def _measured(server: Service) -> tuple[tuple[tuple[str, int, float], ...], str]:
    """Points of prompts alone from their start, and of decodes with _POINTS_CONTEXT tokens, and whose they are."""
    device = {gpu: name for name, gpu in step_times.DEVICES.items()}.get(server.gpu.name)
    model = _SAME_LAYERS.get(server.model.name, server.model.name)
    found = []
    with step_times.POINTS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            if (row["device"], row["model"], row["tp"]) != (device, model, str(server.tp)):
                continue
            chunk, done, decodes, context = (int(row[name]) for name in ("chunk", "done", "decodes", "context"))
            if chunk and not done and not decodes:
                found.append(("prefill", chunk, float(row["ms"])))
            elif not chunk and context == _POINTS_CONTEXT:
                found.append(("decode", decodes, float(row["ms"])))
    if not found:
        return (), f"no measured points of {server.model.name} on {server.tp} × {server.gpu.name}"
    same = "" if model == server.model.name else f", measured with {model}, which has the same layers"
    return tuple(found), "assembled from kernels that Vidur, NVIDIA AIConfigurator and LLMServingSim measured" + same
