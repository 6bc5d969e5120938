"""The preemption lesson's set-up: its knobs, its presets, and how they become one trace, one service and two policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from explainers.kit.knobs import Knob, Preset, Value, defaults
from sim import workloads
from sim.engine import simulate
from sim.hardware import GPUS
from sim.metrics import makespan, normalised_latency, ttft
from sim.policy import Memory, Order, Policy, Victim
from sim.run import FINISHED, Run, closed
from sim.service import Service, service
from sim.trace import Trace
from sim.visits import Clock, Visits, visits

Floats = NDArray[np.float64]
Values = Mapping[str, Value]

BLOCK = 16
"""Tokens in a block: vLLM's default."""
BUDGET = 2048
"""Tokens in a step at most: vLLM's default for serving on an A100."""
PROMPT_SPREAD, LONGEST = 1.2, 2048
"""CV of the prompts (as the memory lesson infers for ShareGPT), and the longest prompt and reply, tokens."""
HOST_GB_S = 25.0
"""PCIe 4.0 x16 as it is reached, GB/s: what swapping a block out or in is charged at."""
SEEDS = 20
"""The band runs seeds 1 to SEEDS."""

FCFS, PRIORITY, SHORTEST, GUESSED, LEAST = (
    "first come, first served", "priority", "shortest first", "shortest first, guessed", "least served",
)
ORDERS: dict[str, Order] = {
    FCFS: "fcfs", PRIORITY: "priority", SHORTEST: "shortest", GUESSED: "shortest_predicted", LEAST: "least_attained",
}
LAST, NEWEST, LEAST_URGENT, LONGEST_HELD, SHORTEST_HELD = "last in that order", "newest", "least urgent", "longest", "shortest"
VICTIMS: dict[str, Victim] = {
    LAST: "last", NEWEST: "newest", LEAST_URGENT: "least_urgent", LONGEST_HELD: "longest", SHORTEST_HELD: "shortest",
}
RECOMPUTE, SWAP = "recompute", "swap"
AT_ONCE, POISSON = "all at once", "Poisson"
MEMORIES = (1_024, 1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 32_768, 65_536)
RATES = (1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 22.0, 24.0, 32.0)

KNOBS: tuple[Knob, ...] = (
    Knob("order", "Who goes first", SHORTEST, options=tuple(ORDERS), main=True,
         help="Who of the waiting is let in first, in the lower panel. Shortest first needs to know how long each reply will be; "
              "guessed: it is off by the noise below. Least served: who has had fewest tokens so far."),
    Knob("victim", "Who gives way", LAST, options=tuple(VICTIMS), main=True,
         help="Whose blocks are taken when the memory is full and somebody needs one. Longest: who holds most, so most is freed. "
              "Shortest: who holds least, so least is computed anew."),
    Knob("memory", "KV memory", 2_048, options=MEMORIES, main=True, unit="tokens",
         help="How many tokens' keys and values fit. Beside Llama-3-8B on an A100-80G it is 467,296; a small memory shows in "
              "twenty requests what a large one shows in thousands."),
    Knob("give", "What giving way costs", RECOMPUTE, options=(RECOMPUTE, SWAP), group="Server",
         help="Recompute: the victim's tokens are thrown away and computed anew when it is back. Swap: they are moved to the "
              "host over PCIe 4.0 at 25 GB/s, and back."),
    Knob("slots", "Slots", 64, options=(1, 2, 4, 8, 16, 32, 64, 128, 256), group="Server", unit="slots",
         help="How many requests the server runs at once at most. vLLM calls it max_num_seqs."),
    Knob("model", "Model", "Llama-3-8B", options=("Llama-3-8B", "Llama-2-7B", "Mistral-7B", "OPT-13B"), group="Server",
         help="A larger model takes longer for a step. All run on one GPU, in bf16."),
    Knob("gpu", "GPU", "A100-80G", options=tuple(GPUS), group="Server", help="A faster GPU takes less time for a step."),
    Knob("requests", "Requests", 20, 1, 400, group="Requests", unit="requests",
         help="How many requests come. Above forty, the figure shows shares instead of a lane for each."),
    Knob("reply", "Mean reply", 338, options=(32, 64, 128, 214, 338, 500, 800), group="Requests", unit="tokens",
         help="ShareGPT's mean is 338 tokens, LMSYS-Chat-1M's 214."),
    Knob("spread", "Length spread", 0.87, 0.0, 2.0, 0.01, group="Requests",
         help="How unequal the replies are: standard deviation over mean of a lognormal. ShareGPT's replies: about 0.87."),
    Knob("urgent", "Urgent requests", 25, 0, 100, 5, group="Requests", unit="%",
         help="Share of requests that are urgent. Only “priority” and “least urgent” look at it."),
    Knob("noise", "Noise of the guess", 0.7, 0.0, 2.0, 0.1, group="Requests",
         help="How far off the guess of a reply's length is: standard deviation of the logarithm of guess over truth. At 0.7 two "
              "thirds of the guesses lie between half and twice the truth."),
    Knob("arrivals", "Arrivals", AT_ONCE, options=(AT_ONCE, POISSON), group="Requests",
         help="When the requests come. Poisson: each on its own, at random."),
    Knob("rate", "Arrival rate", 8.0, options=RATES, group="Requests", unit="requests/s",
         help="How many come in a second, on average. It plays no part when all come at once."),
    Knob("seed", "Seed", 5, 0, 9999, group="Requests", help="Another number draws other lengths, arrivals and guesses."),
)

PRESETS: tuple[Preset, ...] = (
    Preset("burst", "A burst, shortest first", {},
           "Twenty requests at once, and memory for a handful. Shortest first sends most of them home early. Watch who is still "
           "there at the end, and how much of what was computed had to be computed anew."),
    Preset("starve", "Who starves", {"arrivals": POISSON, "rate": 20.0, "requests": 400, "memory": 16_384},
           "For twenty seconds more work comes than the server can do. Shortest first finds a shorter request than the long ones "
           "again and again: compare the longest wait with the mean."),
    Preset("guess", "A poor guess", {"order": GUESSED, "noise": 1.5},
           "Shortest first by a guess that is often three or four times off. The order degrades, but not to first come, first "
           "served: even a poor guess tells a long reply from a short one more often than not."),
    Preset("longest", "The longest gives way", {"order": FCFS, "victim": LONGEST_HELD, "memory": 3_072},
           "Taking from the one who holds most frees most blocks at once, and throws most work away at once. Compare how often "
           "somebody gives way, and the tokens computed anew, with the upper panel's."),
    Preset("priority", "Urgent ones first", {"order": PRIORITY, "victim": LEAST_URGENT, "arrivals": POISSON, "rate": 24.0},
           "A quarter of the requests are urgent: they enter first, and nobody takes their blocks while somebody else has some. "
           "The others pay. Compare the two waits in the table, and the mean."),
    Preset("swap", "Swap instead", {"order": FCFS, "give": SWAP},
           "Both panels have the same order. Below, who gives way moves to the host and comes back whole. Beside "
           "others, in a step that runs anyway, computing few tokens anew adds little: see whether moving them was worth it."),
    Preset("enough", "Enough memory", {"memory": 65_536, "order": FCFS, "victim": LONGEST_HELD},
           "Nobody waits for memory and nobody has to give way: with memory for all, the two rules do the same, step by step."),
)


@dataclass(frozen=True)
class Scenario:
    """One trace and one service, and the policies to compare, in the order of the stage: "first" and "other"."""

    trace: Trace
    service: Service
    policies: dict[str, Policy]
    values: dict[str, Value]


@dataclass(frozen=True)
class Outcome:
    """What one policy did to the requests; columns by request.

    visits     each time a request queued and then ran (sim/visits.py)
    wait       s in the queue, before the first token and after preemptions, together; float64[n]
    latency    end-to-end latency over output tokens, s per token; float64[n]
    numbers    "mean", "p90" latency per token, "longest", "waits", "urgent" and "others" wait (the longest; means of all, of
               the urgent and of the rest; nan: there are none), s; "ttft_p99", s; "makespan", s;
               "preemptions"; "again": tokens computed and thrown away; "victims": requests that had to give way
    """

    visits: Visits
    wait: Floats
    latency: Floats
    numbers: dict[str, float]

    @property
    def unluckiest(self) -> int:
        """The request that waited longest."""
        return int(np.argmax(self.wait))


@dataclass(frozen=True)
class Result:
    """The scenario served under each of its policies; all arrays are read-only."""

    scenario: Scenario
    runs: dict[str, Run]
    outcomes: dict[str, Outcome]


@dataclass(frozen=True)
class Band:
    """Longest wait by policy over the seeds 1 to SEEDS, everything else as on the screen, s; float64[SEEDS] each."""

    seeds: tuple[int, ...]
    longest: dict[str, Floats]

    def median(self, policy: str) -> float:
        """The median over the seeds."""
        return float(np.median(self.longest[policy]))


@dataclass(frozen=True)
class Sweep:
    """Over one knob: mean latency per token (s), longest wait (s) and preemptions by policy, one value for each x.

    over     "memory" or "rate";  x_here  the knob's value on the screen;  note  what to know of it, or empty
    """

    over: str
    x: Floats
    x_here: float
    mean: dict[str, Floats]
    longest: dict[str, Floats]
    preemptions: dict[str, Floats]
    note: str


def filled(values: Values) -> dict[str, Value]:
    """`values` with the default for every knob that it leaves out."""
    return {**defaults(KNOBS), **values}


def build(values: Values) -> Scenario:
    """One trace and one service from the knobs, and both policies. ValueError, for the learner, if the weights do not fit."""
    v = filled(values)
    server = service(str(v["model"]), str(v["gpu"]))
    blocks = int(v["memory"]) // BLOCK
    first = Policy("first come, first served", slots=int(v["slots"]), budget=BUDGET, memory=Memory(blocks, BLOCK))
    swap_us = server.kv_bytes_per_token * BLOCK / (HOST_GB_S * 1e3) if v["give"] == SWAP else None
    other = replace(
        first, name=str(v["order"]), order=ORDERS[str(v["order"])], victim=VICTIMS[str(v["victim"])], noise=float(v["noise"]),
        seed=int(v["seed"]), memory=Memory(blocks, BLOCK, swap_us=swap_us),
    )
    return Scenario(_trace(v), server, {"first": first, "other": other}, v)


def result(values: Values) -> Result:
    """Both runs and their numbers. Raises as build does."""
    scene = build(values)
    runs = {key: closed(simulate(scene.trace, scene.service, policy)) for key, policy in scene.policies.items()}
    return Result(scene, runs, {key: outcome(run) for key, run in runs.items()})


def outcome(run: Run) -> Outcome:
    """Who waited how long, and what was computed for nothing."""
    v = visits(run, Clock.of(run))
    over = float(run.steps.end_us[-1]) if len(run.steps.count) else 0.0
    waits = np.fmin(v.out, np.fmax(over, v.queued)) - v.queued
    wait = np.bincount(v.request, waits, len(run.trace)) / 1e6
    latency, done = normalised_latency(run), run.outcome == FINISHED
    assert run.trace.priority is not None  # every request of this lesson has one
    urgent = run.trace.priority == 0
    numbers = {
        "mean": float(latency[done].mean()) if done.any() else np.nan,
        "p90": float(np.quantile(latency[done], 0.9)) if done.any() else np.nan,
        "longest": float(wait.max()),
        "waits": float(wait.mean()),
        "urgent": _mean(wait[urgent]),
        "others": _mean(wait[~urgent]),
        "ttft_p99": float(np.quantile(ttft(run)[done], 0.99)) if done.any() else np.nan,
        "makespan": makespan(run) if done.any() else np.nan,
        "preemptions": float(run.preemptions.sum()),
        "victims": float(np.count_nonzero(run.preemptions)),
        "again": float(run.recomputed.sum()),
    }
    for column in (wait, latency):
        column.setflags(write=False)
    return Outcome(v, wait, latency, numbers)


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else np.nan


def band(values: Values) -> Band:
    """The longest wait over SEEDS seeds."""
    seeds = tuple(range(1, SEEDS + 1))
    runs = [result({**values, "seed": seed}).outcomes for seed in seeds]
    return Band(seeds, {key: np.array([each[key].numbers["longest"] for each in runs]) for key in runs[0]})


def sweep(values: Values, over: str = "memory") -> Sweep:
    """Both policies at every value of one knob, "memory" or "rate"."""
    if over not in ("memory", "rate"):
        raise ValueError(f"over must be 'memory' or 'rate', not {over!r}")
    v = filled(values)
    here = float(cast(float, v[over]))
    xs = sorted({*(MEMORIES if over == "memory" else RATES), here})
    if over == "rate":
        v["arrivals"] = POISSON
    runs = [result({**v, over: int(x) if over == "memory" else x}).outcomes for x in xs]

    def column(name: str) -> dict[str, Floats]:
        return {key: np.array([each[key].numbers[name] for each in runs]) for key in runs[0]}

    note = "Arrivals here are Poisson; on the stage all come at once." \
        if over == "rate" and filled(values)["arrivals"] == AT_ONCE else ""
    return Sweep(over, np.array(xs, np.float64), here, column("mean"), column("longest"), column("preemptions"), note)


def _trace(v: Values) -> Trace:
    """The requests: they follow from the knobs under "Requests" and the seed alone."""
    n, seed = int(v["requests"]), int(v["seed"])
    times = workloads.all_at_once(n) if v["arrivals"] == AT_ONCE else workloads.poisson(n, float(v["rate"]), seed)
    most = min(LONGEST, int(v["memory"])) // 2  # prompt and reply together fit the memory, so that everyone can be served
    prompt = workloads.lognormal(n, 161, PROMPT_SPREAD, seed, most, "prompt")
    output = workloads.lognormal(n, float(v["reply"]), float(v["spread"]), seed, most)
    urgent = np.random.default_rng([seed, 7]).random(n) < float(v["urgent"]) / 100
    return Trace(times - times[0], prompt, output, priority=np.where(urgent, 0, 1), name="generated")
