"""The memory lesson's set-up: its knobs, its presets, and how they become one trace, one service and two memories."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from explainers.kit.knobs import Knob, Preset, Value, defaults
from sim import workloads
from sim.engine import Engine, simulate
from sim.hardware import GPUS
from sim.kv.fifo import is_queue
from sim.kv.holdings import Holdings, holdings
from sim.kv.occupancy import Occupancy, occupancy, saturated
from sim.metrics import e2e, summary
from sim.orders import outputs
from sim.policy import Memory, Policy, Reserve, orca_in_one_piece
from sim.readers import recording
from sim.readers.recording import Recording
from sim.run import Run, closed
from sim.service import Service, StepTime, attention_units, service, step_us
from sim.slots import Instants, instants
from sim.trace import Content, Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Values = Mapping[str, Value]

SLOTS = 4096
"""Most requests at once: more than there ever are, so that memory alone is the limit."""
LENGTHS = {"ShareGPT": (161.31, 337.99), "Alpaca": (19.31, 58.45)}
"""Mean prompt and output tokens (PagedAttention, SOSP 2023, figure 11)."""
CV = (1.2, 0.87)
"""Standard deviation over mean of prompt and output tokens at spread 1: inferred from the paper's figure 2, not stated there
(papers/FACTS.md, 1.4)."""
PCIE = 25e9
"""Bytes per second between GPU and host: PCIe 4.0 x16, 31.5 GB/s each way by its standard, of which 80 % is reached (as
sim.hardware has it for the A40)."""
MOST_ROWS = 60_000
"""Most rows of steps in a run: four hundred requests take some thousands, and memory that thrashes for ever is told so."""
SEEDS, FEW_SEEDS, MANY = 20, 5, 100
"""The band runs seeds 1 to SEEDS; with more than MANY requests 1 to FEW_SEEDS: more requests vary less, and take longer.
The sweeps then run every second block size, and every third rate."""

RECORDING_FILE = Path(__file__).resolve().parents[2] / "assets" / "vllm_kv_scarce.json.gz"
"""What the scheduler of vLLM 0.33.0 decided with 100 blocks for 24 requests."""

MAX, POW2, ORACLE, PAGED = "Orca (Max)", "Orca (Pow2)", "Orca (Oracle)", "paged"
RESERVE: dict[str, Reserve] = {MAX: "maximum", POW2: "power", ORACLE: "output"}
OWN_NUMBER, FITS = "own number", "what fits"
GENERATED, RECORDED, OWN = "generated", "recording", "own file"
AT_ONCE, POISSON = "all at once", "Poisson"
RECOMPUTE, SWAP = "recompute", "swap"
POOLS = (2_048, 3_000, 4_096, 5_500, 7_850, 11_000, 15_700, 22_000, 31_400, 44_000, 62_800, 125_600)
BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RATES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0)

KNOBS: tuple[Knob, ...] = (
    Knob("other", "Second allocator", PAGED, options=(PAGED, MAX, POW2, ORACLE), main=True,
         help="What stands beside Orca (Max), which reserves the maximum length for everyone. Pow2 reserves the output rounded "
              "up to a power of two, Oracle knows it exactly; both take one piece of memory. Paged takes blocks as tokens come."),
    Knob("memory", "KV memory", 15_700, options=POOLS, main=True, unit="tokens",
         help="How many tokens' keys and values the GPU holds. 15,700: what the PagedAttention paper has for OPT-13B on an "
              "A100 with 40 GB."),
    Knob("block", "Block size", 16, options=BLOCKS, group="Memory", unit="tokens",
         help="Tokens in a block of the paged memory. vLLM's default is 16."),
    Knob("longest", "Maximum length", 2048, options=(256, 512, 1024, 2048, 4096, 8192), group="Memory", unit="tokens",
         help="Most tokens of a prompt and its reply. Orca (Max) reserves so many for everyone. vLLM calls it max_model_len."),
    Knob("off", "Guess is off by", 0.0, 0.0, 1.5, 0.1, group="Memory",
         help="How far the guess of the reply's length is off, for Pow2 and Oracle: the standard deviation of its logarithm. "
              "A reservation cannot grow, so a guess too low counts as one as far too high. 0: exact."),
    Knob("preempt", "Preempted requests", RECOMPUTE, options=(RECOMPUTE, SWAP), group="Memory",
         help="When the paged memory runs out, the newest request gives up its blocks. Recompute: it computes them anew. "
              "Swap: they go to the host's memory and come back, at 25 GB/s."),
    Knob("requests", "Requests", 40, 1, 400, group="Requests", unit="requests",
         help="How many requests come. More of them leave the first ones as they are."),
    Knob("mean", "Lengths like", "ShareGPT", options=tuple(LENGTHS), group="Requests",
         help="Mean tokens of prompt and reply. ShareGPT: 161 and 338, conversations. Alpaca: 19 and 58, instructions."),
    Knob("spread", "Length spread", 1.0, 0.0, 2.0, 0.1, group="Requests", unit="×",
         help="How unequal the lengths are: standard deviation over mean. 0: all alike; 1: 0.87 for replies, as the paper's "
              "figure 2 implies, and 1.2 for prompts, assumed."),
    Knob("arrivals", "Arrivals", AT_ONCE, options=(AT_ONCE, POISSON), group="Requests",
         help="When the requests come. Poisson: each on its own, at random."),
    Knob("rate", "Arrival rate", 2.0, options=RATES, group="Requests", unit="requests/s",
         help="How many requests come in a second, on average. It plays no part when all come at once."),
    Knob("seed", "Seed", 1, 0, 9999, group="Requests", help="Another number draws other lengths and other arrivals."),
    Knob("prefix", "Shared system prompt", 0, options=(0, 128, 256, 512, 1024), group="Sharing", unit="tokens",
         help="Tokens that every prompt starts with. Only paged memory can keep them once for all."),
    Knob("samples", "Samples per prompt", 1, 1, 6, group="Sharing", unit="samples",
         help="How many replies to each prompt. Each counts as a request; paged memory shares the full blocks of the prompt."),
    Knob("beams", "Beam width", 4, 1, 6, group="Sharing", unit="beams",
         help="Beams in the figure on sharing. Every step each new beam takes one of the old ones as its parent, at random."),
    Knob("fit", "Memory from", OWN_NUMBER, options=(OWN_NUMBER, FITS), group="Server",
         help="What fits: 90 % of the GPU's memory less the weights, over the bytes of a token. Own number: the knob KV memory."),
    Knob("model", "Model", "OPT-13B", options=("OPT-13B", "Llama-2-7B", "Llama-3-8B", "Mistral-7B", "Yi-34B"), group="Server",
         help="Sets the time of a step, and the bytes of a token's keys and values."),
    Knob("gpu", "GPU", "A100-40G", options=tuple(GPUS), group="Server", help="A faster GPU takes less time for a step."),
    Knob("source", "Requests from", GENERATED, options=(GENERATED, RECORDED, OWN), group="Own file",
         help="Recording: what vLLM's own scheduler decided, with scarce memory. Own file: a recording that you dropped in. With "
              "either, requests, memory and clock come from the file."),
)

PRESETS: tuple[Preset, ...] = (
    Preset("paper", "The paper's set-up", {},
           "Orca (Max) reserves 2,048 tokens for every request, a row each, and most of each row is never filled. Paged memory "
           "takes blocks as tokens come: nearly all that is taken holds tokens."),
    Preset("maximum", "Everyone hits the maximum", {"spread": 0.0, "longest": 256, "memory": 5_500},
           "Every request ends at 256 tokens, so all but the last slot of a reservation is filled in the end. Paged memory lets "
           "in more than can end there: it preempts, computes again, and is done later than Orca (Max)."),
    Preset("short", "Short replies, long maximum", {"mean": "Alpaca", "longest": 4096},
           "Requests of about 80 tokens, each with a reservation of 4,096: nearly all of what they reserve is never filled."),
    Preset("coarse", "Block size 256", {"block": 256},
           "The last block of each request is half empty on average: with blocks of 256 tokens that is as much as many a reply. "
           "Watch the hatched ends of the blocks, and the sweep over block size."),
    Preset("thrash", "Memory runs out", {"memory": 2_048},
           "Paged memory lets many in and runs out as they grow: the newest lose their blocks, again and again. Watch how "
           "often, and what it costs: with replies this short, computing them again is a small part of the time."),
    Preset("prefix", "Shared system prompt", {"prefix": 1024},
           "Every prompt starts with the same 1,024 tokens. Paged memory keeps them once for all; Orca (Max) once for each."),
    Preset("beam", "Beam search", {"beams": 6, "samples": 6, "mean": "Alpaca"},
           "Beams and samples start from one prompt. Watch the figure on sharing: which blocks have several owners, and when "
           "one is copied because its owners write different tokens."),
    Preset("recording", "vLLM's own decisions", {"source": RECORDED},
           "What vLLM's scheduler decided with 100 blocks for 24 requests. Watch the free blocks: the simulation has the same "
           "number in every step."),
)


@dataclass(frozen=True)
class Scenario:
    """One trace and one service, and the two memories to compare, "reserved" and "other".

    recorded  what the requests, the clock and the policy "other" come from, if it is a recording
    note      what was assumed for it, for the screen; empty: nothing
    """

    trace: Trace
    service: StepTime
    policies: dict[str, Policy]
    values: dict[str, Value]
    recorded: Recording | None = None
    note: str = ""


@dataclass(frozen=True)
class Result:
    """The scenario served with each of its memories; all arrays are read-only. Keys "reserved" and "other".

    saturated      (from, to), µs: while requests wait for memory; nan: nobody ever did
    upto_us        until when `early` has who holds which blocks: the instant that is shown first
    recorded_free  blocks free in each step as recorded, int64[steps]; None: nothing is recorded

    What the first picture does not show is computed when it is asked for, and kept.
    """

    scenario: Scenario
    runs: dict[str, Run]
    instants: dict[str, Instants]
    occupancies: dict[str, Occupancy]
    saturated: dict[str, tuple[float, float]]
    upto_us: float
    early: dict[str, Holdings]
    recorded_free: Ints | None = None

    def holdings(self, key: str, until_us: float) -> Holdings:
        """Who holds which blocks, until then at least."""
        return self.early[key] if until_us <= self.upto_us else self._holdings[key]

    @cached_property
    def _holdings(self) -> dict[str, Holdings]:
        scene = self.scenario
        again = {key: _run(scene, run.policy) for key, run in self.runs.items() if not scene.recorded and _played(run.policy)}
        return {key: holdings(again.get(key, run), at=self.instants[key]) for key, run in self.runs.items()}

    @cached_property
    def means(self) -> dict[str, dict[str, float]]:
        """Each part's mean share of the pool over `window`; by policy and part, adding up to 1."""
        return {key: there.shares(*window(self, key)) for key, there in self.occupancies.items()}

    @cached_property
    def summaries(self) -> dict[str, dict[str, float]]:
        """The measures of both runs (sim.metrics.summary)."""
        return {key: summary(run) for key, run in self.runs.items()}


@dataclass(frozen=True)
class Preemption:
    """A request that lost its blocks: when (µs), to whom (−1: unknown), what it had, and what that costs, ms.

    recompute_ms  one step for its tokens alone;  extra_ms  what of it is more than a step of one token: beside others only
                  this counts;  swap_ms  its blocks to the host and back; nan without a model
    """

    at_us: float
    request: int
    by: int
    tokens: int
    blocks: int
    recompute_ms: float
    extra_ms: float
    swap_ms: float


@dataclass(frozen=True)
class Band:
    """Over the seeds, else as on the screen: most requests at once and `filled_share`, by policy."""

    seeds: tuple[int, ...]
    fit: dict[str, Ints]
    tokens: dict[str, Floats]

    def median(self, key: str) -> float:
        """Median filled share over the seeds."""
        return float(np.median(self.tokens[key]))


@dataclass(frozen=True)
class Sweep:
    """What a knob does over its range, a value for each x; by policy, empty where the sweep is over the other knob.

    over    "block" or "rate";  x_here  the knob's value;  here  whether what is on the screen is a point of the range: not where
            all come at once, or the second allocator has no blocks
    waste   over "block": share of the memory that is taken, or cannot be given out, without tokens in it (1 − `filled_share`)
    blocks  over "block": blocks of a request at its end, mean; of a reservation: one piece
    batch   over "rate": requests that hold memory, mean over the run;  e2e_p99  over "rate": s
    note    what limits it; empty if nothing does;  fewer  the same of the values that are run
    names   what each policy is called on the screen
    """

    over: str
    x: Floats
    x_here: float
    waste: dict[str, Floats]
    blocks: dict[str, Floats]
    batch: dict[str, Floats]
    e2e_p99: dict[str, Floats]
    note: str
    names: dict[str, str]
    here: bool = True
    fewer: str = ""


def filled(values: Values) -> dict[str, Value]:
    """`values` with the default for every knob that it leaves out."""
    return {**defaults(KNOBS), **values}


# --- one trace, one service, two memories -----------------------------------------------------------------------------


def build(values: Values, uploaded: Recording | None = None) -> Scenario:
    """The scenario of the knobs, or of a recording: the one that comes along, or `uploaded`.

    Raises ValueError with a message for the learner: no file yet, weights that do not fit, a maximum length for which the
    memory has no piece.
    """
    v = filled(values)
    if v["source"] != GENERATED:
        return _of_recording(v, sample() if v["source"] == RECORDED else uploaded)
    try:
        server = service(str(v["model"]), str(v["gpu"]))
    except ValueError as error:
        what = f"{v['model']} does not fit on one {v['gpu']}"
        raise ValueError(f"{what}. Choose a smaller model or a larger GPU. ({error})") from None
    return Scenario(_trace(v), server, {"reserved": _reserved(v, server, MAX), "other": _other(v, server)}, v)


def pool(v: Values, server: Service) -> int:
    """Token slots of the KV memory."""
    return server.kv_tokens() if v["fit"] == FITS else int(v["memory"])


def shares_prompts(v: Values) -> bool:
    """Whether prompts have something in common that paged memory can keep once."""
    return int(v["samples"]) > 1 or int(v["prefix"]) > 0


def _reserved(v: Values, server: Service, kind: str) -> Policy:
    tokens, longest = pool(v, server), int(v["longest"])
    if (largest := 1 << (tokens.bit_length() - 1)) < longest:
        raise ValueError(f"Maximum length {longest:,}: a memory of {tokens:,} tokens has no piece that large, its largest is "
                         f"{largest:,}. Choose a maximum length of at most {largest:,}, or more memory.")
    return orca_in_one_piece(SLOTS, tokens, longest, RESERVE[kind], float(v["off"]) if kind != MAX else 0.0, int(v["seed"]))


def _other(v: Values, server: Service) -> Policy:
    if v["other"] != PAGED:
        return _reserved(v, server, str(v["other"]))
    block, cache = int(v["block"]), shares_prompts(v)
    # Who is preempted finds its blocks in the prefix cache again: there is no swapping beside it (sim.policy.Memory).
    swap_us = swap_us_per_block(server, block) if v["preempt"] == SWAP and not cache else None
    memory = Memory(pool(v, server) // block, block, cache, swap_us=swap_us)
    return Policy(f"Paged, block {block}", "continuous", SLOTS, None, "whole", memory=memory, longest=int(v["longest"]))


def swap_us_per_block(server: Service, block: int) -> float:
    """µs to move a block to the host, or back."""
    return server.kv_bytes_per_token * block / PCIE * 1e6


def lengths(v: Values) -> tuple[Ints, Ints]:
    """Prompt and output tokens of each request, int64[n] both.

    A prompt of one's own is cut at half the maximum length, as the paper's chatbot cuts at 1,024 of 2,048 (section 6.5); the
    shared system prompt comes before it; the output ends at the maximum length. Samples share their prompt.
    """
    n, samples, longest, seed = int(v["requests"]), int(v["samples"]), int(v["longest"]), int(v["seed"])
    (prompt_mean, output_mean), spread = LENGTHS[str(v["mean"])], float(v["spread"])
    own = workloads.lognormal(n, prompt_mean, CV[0] * spread, seed, cap=longest // 2, of="prompt")
    prompt = np.minimum(int(v["prefix"]) + own, longest - 1)[np.arange(n) // samples]
    output = workloads.lognormal(n, output_mean, CV[1] * spread, seed)
    return prompt, np.minimum(output, longest - prompt)


def _trace(v: Values) -> Trace:
    n, samples, seed = int(v["requests"]), int(v["samples"]), int(v["seed"])
    prompt, output = lengths(v)
    times = workloads.all_at_once(n) if v["arrivals"] == AT_ONCE else workloads.poisson(n, float(v["rate"]), seed)
    times = (times - times[0])[np.arange(n) // samples]
    content = _content(prompt, samples, int(v["prefix"])) if shares_prompts(v) else None
    return workloads.workload(times, prompt, output, "generated", content)


def _content(prompt: Ints, samples: int, prefix: int) -> Content:
    """Stream 0 is the system prompt; then one for the rest of each prompt, the same for all its samples, and one a reply."""
    n = len(prompt)
    runs = []
    for i, tokens in enumerate(prompt.tolist()):
        shared = min(prefix, tokens - 1)
        own = (1 + i // samples, 0, tokens - shared)
        runs.append([(0, 0, shared), own] if shared else [own])
    return Content.of(runs, n + 1 + np.arange(n))


# --- recordings -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def sample() -> Recording:
    """The recording that comes along (RECORDING_FILE). Raises ValueError for the learner if the file is missing."""
    try:
        return recording.read(RECORDING_FILE, "vLLM 0.33.0, scarce memory")
    except OSError:
        raise ValueError(f"The recording assets/{RECORDING_FILE.name} is missing from this installation; set “Requests from” "
                         f"to “{GENERATED}”.") from None


def _of_recording(v: dict[str, Value], recorded: Recording | None) -> Scenario:
    """vLLM's policy as recorded, and Orca (Max) with as much memory, reserving for the longest request of the file.

    The file's max_model_len will not do: it is often larger than the whole pool.
    """
    if recorded is None:
        raise ValueError("No recording yet: drop in a JSON file of what vLLM's scheduler decided, or set “Requests from” to "
                         f"“{RECORDED}” or “{GENERATED}”.")
    memory = recorded.policy.memory
    assert memory is not None  # vLLM has no other
    tokens = memory.blocks * memory.block_size
    needed = recorded.trace.prompt + outputs(recorded.trace, recorded.policy)
    longest = max(2, int(needed.max()))
    note = f"Orca (Max) reserves {longest:,} tokens for each request: the longest of the recording."
    if (largest := 1 << (tokens.bit_length() - 1)) < longest:
        longest, note = largest, f"Orca (Max) cuts each request at {largest:,} tokens, the largest piece of this memory."
    reserved = orca_in_one_piece(recorded.policy.slots, tokens, longest, "maximum")
    return Scenario(recorded.trace, recorded.clock, {"reserved": reserved, "other": recorded.policy}, v, recorded, note)


# --- results ----------------------------------------------------------------------------------------------------------


def result(values: Values, uploaded: Recording | None = None) -> Result:
    """Both runs and what they did with the memory. Raises as build does."""
    return serve(build(values, uploaded))


def serve(scene: Scenario) -> Result:
    """The scenario's trace with each of its memories."""
    runs = {key: closed(_run(scene, policy)) for key, policy in scene.policies.items()}
    at = {key: instants(run) for key, run in runs.items()}
    there = {key: occupancy(run, at[key]) for key, run in runs.items()}
    upto = fullest_us(there)
    held = {key: holdings(run, upto, at[key]) for key, run in runs.items()}
    waited = {key: saturated(run, there[key]) for key, run in runs.items()}
    if not scene.recorded:  # who got which tokens follows from the rest, and takes more memory than all of it
        runs = {key: replace(run, grants=None) for key, run in runs.items()}
    return Result(scene, runs, at, there, waited, upto, held, scene.recorded.free if scene.recorded else None)


def fullest_us(occupancies: Mapping[str, Occupancy]) -> float:
    """The instant with most tokens in both memories while somebody waits, µs: what is shown until another is chosen."""
    full = [(there, there.waits & (there.end_us > there.start_us)) for there in occupancies.values()]
    end = min((float(there.end_us[-1]) for there, _ in full if len(there.end_us)), default=0.0)
    at = np.concatenate([np.concatenate([there.start_us, (there.start_us + there.end_us) / 2]) for there, _ in full])
    at = at[at < end]
    if not len(at):
        return end
    waits, filled = np.zeros(len(at), bool), np.zeros(len(at))
    for there, waiting in full:
        row = np.searchsorted(there.start_us, at, side="right") - 1
        waits |= (row >= 0) & waiting[row]
        xs = np.stack([there.start_us, there.end_us], 1).ravel()
        filled += np.interp(at, xs, np.stack([there.first["tokens"], there.last["tokens"]], 1).ravel()) / there.pool
    return float(at[np.argmax(filled + 2.0 * waits)])


def _run(scene: Scenario, policy: Policy) -> Run:
    """One run, with the grants where they say who holds what. Of what is recorded every step is a row, to be compared."""
    engine = Engine(scene.service, policy, record_grants=scene.recorded is not None or _played(policy), most_rows=MOST_ROWS,
                    **({"longest_stretch": 1} if scene.recorded else {}))
    engine.submit(scene.trace)
    engine.advance(math.inf)
    run = engine.run(scene.trace)
    if run.stopped.startswith("stopped after"):
        raise ValueError(f"With {policy.name} this takes more than {MOST_ROWS:,} steps: a memory in which nearly every step "
                         "preempts somebody, or a file too long for a picture. Take more memory, or a shorter file.")
    return run


def _played(policy: Policy) -> bool:
    """Whether who holds what must be played again from the grants."""
    return policy.memory is not None and policy.memory.reserve == "nothing" and not is_queue(policy)


def window(result: Result, key: str) -> tuple[float, float]:
    """The µs over which means are taken: while requests wait for memory, else the whole run."""
    return _window(result.runs[key], result.saturated[key])


def _window(run: Run, full: tuple[float, float]) -> tuple[float, float]:
    if math.isfinite(full[0]) and full[1] > full[0]:
        return full
    steps = run.steps
    return (float(steps.start_us[0]), float(steps.end_us[-1])) if len(steps.count) else (0.0, 0.0)


def mean_shares(result: Result, key: str) -> dict[str, float]:
    """Each part's mean share of the pool over `window`; by part, adding up to 1."""
    return result.means[key]


def filled_share(shares: Mapping[str, float]) -> float:
    """Share of the memory that is taken, or cannot be given out, which holds tokens; 0 where nothing is."""
    taken = 1 - shares["free"]
    return shares["tokens"] / taken if taken > 1e-9 else 0.0


def fit_at_once(result: Result, key: str) -> int:
    """Most requests that hold memory at one moment."""
    return int(result.occupancies[key].holders.max(initial=0))


def preemptions(result: Result, key: str = "other") -> list[Preemption]:
    """Each time a request lost its blocks, in order, with what it costs to bring them back one way or the other."""
    run, server = result.runs[key], result.scenario.service
    memory = run.policy.memory
    size = memory.block_size if memory else 1
    each = 2 * swap_us_per_block(server, size) / 1000 if isinstance(server, Service) else math.nan
    lost = [e for e in run.events if e.kind == "preempted"]
    tokens = np.array([e.tokens for e in lost], np.int64)
    again = step_us(server, np.maximum(tokens, 1), attention=attention_units(tokens), requests=1) / 1000
    any_step = float(step_us(server, 1, requests=1)) / 1000
    return [Preemption(e.at_us, e.request, e.by, e.tokens, e.blocks, ms, ms - any_step, e.blocks * each)
            for e, ms in zip(lost, again.tolist(), strict=True)]


# --- over the range of a knob, over the seeds -------------------------------------------------------------------------


def band(values: Values) -> Band:
    """The headline numbers over SEEDS seeds, or FEW_SEEDS. Generated requests only."""
    seeds = tuple(range(1, 1 + (FEW_SEEDS if int(filled(values)["requests"]) > MANY else SEEDS)))
    fit: dict[str, list[int]] = {"reserved": [], "other": []}
    tokens: dict[str, list[float]] = {"reserved": [], "other": []}
    for seed in seeds:
        scene = build({**values, "source": GENERATED, "seed": seed})
        for key, policy in scene.policies.items():
            run = simulate(scene.trace, scene.service, policy)
            there = occupancy(run)
            fit[key].append(int(there.holders.max(initial=0)))
            tokens[key].append(filled_share(there.shares(*_window(run, saturated(run, there)))))
    return Band(seeds, {k: np.array(x) for k, x in fit.items()}, {k: np.array(x) for k, x in tokens.items()})


def sweep(values: Values, uploaded: Recording | None = None, over: str = "block") -> Sweep:
    """Both memories over the range of one knob: "block" (the second one is paged) or "rate" (Poisson arrivals).

    Of generated requests: a recording has its own blocks and arrivals, and gives the sweep of the other knobs as they stand.
    """
    if over not in ("block", "rate"):
        raise ValueError(f"over must be 'block' or 'rate', not {over!r}")
    v = filled(values) | {"source": GENERATED}
    return _over_blocks(v) if over == "block" else _over_rates(v)


def _range(options: tuple[float, ...], every: int, v: Values, key: str) -> tuple[list[float], str]:
    """The values of a knob that are run, its own among them, and what to say if they are not all."""
    if int(v["requests"]) <= MANY:
        return sorted({*options, float(v[key])}), ""
    return sorted({*options[::every], float(v[key])}), f"Fewer points with more than {MANY} requests."


def _over_blocks(v: dict[str, Value]) -> Sweep:
    scene = build(v)
    prompt, output = lengths(v)
    fixed = _waste(scene, "reserved")
    xs, fewer = _range(BLOCKS, 2, v, "block")
    waste = np.array([_waste(build({**v, "other": PAGED, "block": int(b)}), "other") for b in xs])
    blocks = np.array([np.ceil((prompt + output - 1) / b).mean() for b in xs])
    note = "" if v["other"] == PAGED else f"The second allocator is {v['other']} now; this strip shows paged memory."
    return Sweep("block", np.array(xs, float), float(v["block"]),
                 {"reserved": np.full(len(xs), fixed), "other": waste},
                 {"reserved": np.ones(len(xs)), "other": blocks},
                 {}, {}, note, {"reserved": MAX, "other": PAGED}, v["other"] == PAGED, fewer)


def _waste(scene: Scenario, key: str) -> float:
    run = simulate(scene.trace, scene.service, scene.policies[key])
    there = occupancy(run)
    return 1 - filled_share(there.shares(*_window(run, saturated(run, there))))


def _over_rates(v: dict[str, Value]) -> Sweep:
    xs, fewer = _range(RATES, 3, v, "rate")
    batch: dict[str, list[float]] = {"reserved": [], "other": []}
    p99: dict[str, list[float]] = {"reserved": [], "other": []}
    for rate in xs:
        scene = build({**v, "arrivals": POISSON, "rate": rate})
        for key, policy in scene.policies.items():
            run = simulate(scene.trace, scene.service, policy)
            batch[key].append(occupancy(run).batch())
            p99[key].append(float(np.quantile(e2e(run), 0.99)))
    note = "" if v["arrivals"] == POISSON else "Here they come one by one (Poisson), not all at once."
    return Sweep("rate", np.array(xs), float(v["rate"]), {}, {}, {k: np.array(x) for k, x in batch.items()},
                 {k: np.array(x) for k, x in p99.items()}, note,
                 {"reserved": MAX, "other": f"{MAX}, second" if v["other"] == MAX else str(v["other"])},
                 v["arrivals"] == POISSON, fewer)
