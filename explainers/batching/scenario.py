"""The batching lesson's set-up: its knobs, its presets, and how they become one trace, one service and two policies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from explainers.kit.knobs import Knob, Preset, Value, defaults
from sim import workloads
from sim.engine import simulate
from sim.hardware import GPUS
from sim.metrics import Ledger, e2e, ledger, summary
from sim.policy import Policy, continuous, static
from sim.readers import azure
from sim.run import Run, closed
from sim.service import Service, service
from sim.static import sweep_static
from sim.trace import Trace

Floats = NDArray[np.float64]
Values = Mapping[str, Value]

PROMPT = 256
"""Prompt tokens of every generated request: equal, so that only the output lengths differ."""
MEAN_OUTPUT = 128
"""Mean output tokens of a generated request, chosen. Azure's 2023 conversations: mean 211, median 129 (papers/FACTS.md, 9)."""
LONGEST = 4096
"""Longest generated output, tokens; cuts the lognormal's tail."""
BURSTINESS = 0.15
"""Shape of the gaps in bursts, as vLLM's bench defines it; 1 would be Poisson."""
SEEDS = 20
"""The band runs seeds 1 to SEEDS."""
SWEEP_MOST = 2000
"""The sweep takes at most so many requests of a recorded trace; the figure says so."""

SAMPLE_FILE = Path(__file__).resolve().parents[2] / "assets" / "azure_conv_2023_sample.csv"
"""The first ten minutes of Azure's 2023 conversation trace, 2,867 requests (CC-BY 4.0, Microsoft; AzurePublicDataset)."""

GENERATED, SAMPLE, OWN = "generated", "sample", "own file"
AT_ONCE, EVEN, POISSON, BURSTS = "all at once", "evenly spaced", "Poisson", "bursts"
SLOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
RATES = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0)

KNOBS: tuple[Knob, ...] = (
    Knob("slots", "Slots", 4, 1, 32, main=True, unit="slots",
         help="How many requests the server holds at once: the batch size of static batching. vLLM calls it max_num_seqs."),
    Knob("spread", "Length spread", 0.8, 0.0, 2.0, 0.1, group="Requests",
         help="How unequal the replies are: at 0 all have 128 tokens, at 1 many are short and a few are several times as long. "
              "It is the standard deviation over the mean of a lognormal; Azure's conversations of 2023 have 0.77."),
    Knob("requests", "Requests", 14, 1, 100, group="Requests", unit="requests",
         help="How many requests come. More of them leave the first ones as they are."),
    Knob("giant", "Giant", 1, 1, 20, group="Requests", unit="×",
         help="Makes the reply of request 2 this many times as long; 1: no giant."),
    Knob("seed", "Seed", 2, 0, 9999, group="Requests", help="Another number draws other lengths and other arrivals."),
    Knob("arrivals", "Arrivals", AT_ONCE, options=(AT_ONCE, EVEN, POISSON, BURSTS), group="Arrivals",
         help="When the requests come. Poisson: each on its own, at random. Bursts: in clumps with pauses between them; gamma "
              "gaps of burstiness 0.15, as vLLM's benchmark defines it, where 1 would be Poisson."),
    Knob("rate", "Arrival rate", 3.0, options=RATES, group="Arrivals", unit="requests/s",
         help="How many requests come in a second, on average. It plays no part when all come at once."),
    Knob("timeout", "Batch fill timeout", 0, options=(0, 100, 250, 500, 1000, 2000, 5000, 10000), group="Arrivals", unit="ms",
         help="How long a static batch waits to fill before it leaves as it is; 0: it leaves at once with those who are there. "
              "Triton calls it max_queue_delay_microseconds; its default is 0."),
    Knob("model", "Model", "Llama-3-8B", options=("Llama-3-8B", "Llama-2-7B", "Mistral-7B", "OPT-13B", "Yi-34B"), group="Server",
         help="A larger model takes longer for a step. All run on one GPU, in bf16."),
    Knob("gpu", "GPU", "A100-80G", options=tuple(GPUS), group="Server", help="A faster GPU takes less time for a step."),
    Knob("source", "Requests from", GENERATED, options=(GENERATED, SAMPLE, OWN), group="Own file",
         help="Sample: ten minutes of real conversations, Azure's of 2023. Own file: the trace that you dropped in. With either, "
              "the knobs that generate requests play no part."),
    Knob("start", "Window starts at", 0, 0, 604_800, 1, group="Own file", unit="s",
         help="Seconds after the first request of the sample or file."),
    Knob("take", "Requests from the window", 200, 1, 5000, group="Own file", unit="requests",
         help="How many requests to take from there, at most."),
)

PRESETS: tuple[Preset, ...] = (
    Preset("mixed", "Mixed lengths", {},
           "Under static batching each batch lasts as long as its longest request. Watch the hatched pieces: slots whose "
           "request has ended, held until the batch ends."),
    Preset("giant", "One giant", {"giant": 10, "spread": 0.2, "requests": 16},
           "Request 2 writes about eight times the mean. Under static batching its three neighbours' slots are held until it "
           "ends, and everyone behind waits; under continuous batching it keeps one slot and the others flow past."),
    Preset("equal", "Equal lengths at once", {"spread": 0.0},
           "Equal outputs, all at once: the members of a batch end together, so there is nothing to reclaim. "
           "Continuous batching gains nothing."),
    Preset("trickle", "Trickle", {"arrivals": EVEN, "rate": 0.5, "timeout": 5000, "spread": 0.3},
           "One request every two seconds. Static batching lets the first one wait for company: watch its time to first token. "
           "Set the batch fill timeout to 0: the two become nearly the same. At this load the wait bought nothing."),
    Preset("bursts", "Bursts", {"arrivals": BURSTS, "rate": 1.0, "requests": 20},
           "Requests come in clumps: the ticks above the slots. Whoever comes just after a static batch has left waits until "
           "all of it has ended. Continuous batching takes it in at the next step, if a slot is free."),
    Preset("hour", "Real requests", {"source": SAMPLE, "slots": 8, "start": 60, "take": 60},
           "Conversations on Azure, from 2023: lengths and arrivals are real, and prompts are longer than replies. Watch which "
           "causes of idleness remain under continuous batching. Or drop in a trace of your own."),
)


@dataclass(frozen=True)
class Scenario:
    """One trace and one service, and the policies to compare, in the order of the stage."""

    trace: Trace
    service: Service
    policies: dict[str, Policy]
    values: dict[str, Value]


@dataclass(frozen=True)
class Result:
    """The scenario served under each of its policies; all arrays are read-only."""

    scenario: Scenario
    runs: dict[str, Run]
    ledgers: dict[str, Ledger]
    summaries: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Band:
    """Idle share of slot-time by policy over the seeds 1 to SEEDS, everything else as on the screen; float64[SEEDS] each."""

    seeds: tuple[int, ...]
    idle: dict[str, Floats]

    def median(self, policy: str) -> float:
        """The median over the seeds."""
        return float(np.median(self.idle[policy]))


@dataclass(frozen=True)
class Sweep:
    """What the main outcome does over one knob: idle share and p99 of E2E (s) by policy, one value for each x.

    over     "slots" or "rate";  x_here  the knob's value on the screen
    note     what limits it, or why it is flat; empty if nothing does
    """

    over: str
    x: Floats
    x_here: float
    idle: dict[str, Floats]
    e2e_p99: dict[str, Floats]
    note: str


def filled(values: Values) -> dict[str, Value]:
    """`values` with the default for every knob that it leaves out."""
    return {**defaults(KNOBS), **values}


def build(values: Values, uploaded: Trace | None = None) -> Scenario:
    """One trace and one service from the knobs, and both policies.

    The own file is `uploaded`; the sample needs none. Raises ValueError with a message for the learner: no file yet, no
    request in the window, weights that do not fit.
    """
    v = filled(values)
    slots, timeout = int(v["slots"]), float(v["timeout"]) / 1000
    server = service(str(v["model"]), str(v["gpu"]))
    trace = _generated(v) if v["source"] == GENERATED else _window(v, sample() if v["source"] == SAMPLE else uploaded)
    return Scenario(trace, server, {"static": static(slots, timeout), "continuous": continuous(slots, prompts="whole")}, v)


def result(values: Values, uploaded: Trace | None = None) -> Result:
    """Both runs and their numbers. Raises as build does."""
    return serve(build(values, uploaded))


def serve(scene: Scenario) -> Result:
    """The scenario's trace under each of its policies."""
    runs = {key: closed(simulate(scene.trace, scene.service, policy)) for key, policy in scene.policies.items()}
    return Result(scene, runs, {key: ledger(run) for key, run in runs.items()}, {key: summary(run) for key, run in runs.items()})


def band(values: Values) -> Band:
    """The headline number, idle share, over SEEDS seeds. Generated requests only."""
    seeds = tuple(range(1, SEEDS + 1))
    both = _many([build({**values, "source": GENERATED, "seed": seed}) for seed in seeds])
    return Band(seeds, {key: idle for key, (idle, _) in both.items()})


def sweep(values: Values, uploaded: Trace | None = None, over: str = "slots") -> Sweep:
    """Both policies at every value of one knob, "slots" or "rate"; a recorded trace gives at most SWEEP_MOST requests."""
    if over not in ("slots", "rate"):
        raise ValueError(f"over must be 'slots' or 'rate', not {over!r}")
    v = filled(values)
    v["take"] = min(int(v["take"]), SWEEP_MOST)
    here = float(v[over])
    xs = sorted({*(SLOTS if over == "slots" else RATES), here})
    scenes = [build({**v, over: int(x) if over == "slots" else x}, uploaded) for x in xs]
    both = _many(scenes)
    return Sweep(over, np.array(xs), here, {key: idle for key, (idle, _) in both.items()},
                 {key: p99 for key, (_, p99) in both.items()}, _limits(filled(values), over, len(scenes[0].trace)))


def _many(scenes: Sequence[Scenario]) -> dict[str, tuple[Floats, Floats]]:
    """Idle share and p99 of E2E (s) of every scene, by policy: static batching all at once, continuous one after the other."""
    policies = [scene.policies["static"] for scene in scenes]
    fixed = sweep_static([scene.trace for scene in scenes], scenes[0].service,
                         np.array([p.slots for p in policies]), np.array([p.fill_timeout for p in policies]))
    runs = [simulate(scene.trace, scene.service, scene.policies["continuous"]) for scene in scenes]
    return {"static": (fixed.idle_share, fixed.e2e_p99),
            "continuous": (np.array([ledger(run).idle_share for run in runs]),
                           np.array([np.quantile(e2e(run), 0.99) for run in runs]))}


def _limits(v: Values, over: str, served: int) -> str:
    """What a reader must know of a sweep before believing it."""
    if v["source"] != GENERATED and over == "rate":
        return "The arrivals are the trace's: the rate plays no part."
    if v["source"] != GENERATED and int(v["take"]) > SWEEP_MOST == served:
        return f"First {SWEEP_MOST:,} requests of the window only."
    return "All requests come at once: the rate plays no part." if over == "rate" and v["arrivals"] == AT_ONCE else ""


def outputs(v: Values) -> NDArray[np.int64]:
    """Output tokens of the generated requests: they follow from requests, spread, giant and seed alone."""
    n = int(v["requests"])
    tokens = workloads.lognormal(n, MEAN_OUTPUT, float(v["spread"]), int(v["seed"]), cap=LONGEST)
    tokens[min(1, n - 1)] *= int(v["giant"])
    return tokens


def arrivals(v: Values) -> Floats:
    """Arrival times in s, the first at 0: they follow from requests, arrivals, rate and seed alone."""
    n, rate, seed = int(v["requests"]), float(v["rate"]), int(v["seed"])
    times = {AT_ONCE: lambda: workloads.all_at_once(n),
             EVEN: lambda: workloads.evenly_spaced(n, rate),
             POISSON: lambda: workloads.poisson(n, rate, seed),
             BURSTS: lambda: workloads.gamma_bursts(n, rate, BURSTINESS, seed, exact_span=False)}[str(v["arrivals"])]()
    first_at_zero: Floats = times - times[0]
    return first_at_zero


def _generated(v: Values) -> Trace:
    n = int(v["requests"])
    return workloads.workload(arrivals(v), workloads.equal(n, PROMPT), outputs(v), name="generated")


@lru_cache(maxsize=1)
def sample() -> Trace:
    """The recorded trace that comes along (SAMPLE_FILE). Raises ValueError for the learner if the file is missing."""
    try:
        return azure.read(SAMPLE_FILE, "Azure 2023, conversation, first ten minutes")
    except OSError:
        raise ValueError(f"The sample assets/{SAMPLE_FILE.name} is missing from this installation; set “Requests from” to "
                         f"“{GENERATED}”.") from None


def _window(v: Values, recorded: Trace | None) -> Trace:
    if recorded is None:
        raise ValueError("No trace yet: drop in a CSV file in Azure's format (TIMESTAMP, ContextTokens, GeneratedTokens), "
                         f"or set “Requests from” to “{SAMPLE}” or “{GENERATED}”.")
    what = "sample" if v["source"] == SAMPLE else "file"
    start, last = float(v["start"]), float(recorded.arrival[-1])
    if start > last:
        raise ValueError(f"Window starts at {start:,.0f} s, but the last request of the {what} comes at {last:,.0f} s; "
                         f"choose a start from 0 to {math.floor(last):,} s.")
    return recorded.window(start, limit=int(v["take"]))
