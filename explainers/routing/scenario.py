"""The routing lesson's set-up: its knobs, its presets, and how they become one trace, one fleet and three routers."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from explainers.kit.knobs import Knob, Preset, Value, defaults
from sim import routers, workloads
from sim.fleet import FleetRun, Knowledge, simulate_fleet
from sim.hardware import GPUS
from sim.kv.distances import curve
from sim.policy import Memory, Policy, vllm
from sim.readers import mooncake
from sim.routers import Router
from sim.run import read_only
from sim.service import Service, service
from sim.trace import Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Values = Mapping[str, Value]

BLOCK = 16
"""Tokens in a block: vLLM's default."""
SLOTS, BUDGET = 256, 8192
"""Requests at once and tokens in a step: vLLM's defaults on a GPU of this size (max_num_seqs, max_num_batched_tokens)."""
QUESTION_CV, ANSWER_CV = 1.0, 0.8
"""Standard deviation over mean of questions and replies: assumed, near ShareGPT's (the memory lesson has its sources)."""
TOKEN_S = 0.015
"""s for a token of a reply, from which the next turn's arrival is reckoned: about a decode step of Llama-3-8B on an A100."""
SEEDS = 10
"""The band runs seeds 1 to SEEDS."""
SWEEP_MOST = 200
"""The sweep takes at most so many requests of a recorded trace; the figure says so."""
SAMPLE_FILE = Path(__file__).resolve().parents[2] / "assets" / "mooncake_conversation_sample.jsonl.gz"
"""The first ten minutes of Mooncake's conversation trace, unchanged (assets/NOTICE)."""

KEYS = ("round_robin", "sticky", "aware")
ROUND_ROBIN = "round robin"
MODULO, RING, BOUNDED = "session: hash mod N", "session: hash ring", "session: bounded ring"
SGLANG, LONGEST, DYNAMO, LLM_D, AIBRIX, STACK = (
    "SGLang cache-aware", "longest match", "Dynamo", "llm-d", "AIBrix", "production-stack prefix-aware",
)
PREFIX, LEAST, TWO, RANDOM = "prefix hash", "least loaded", "power of two choices", "random"
KNOWING = frozenset({LONGEST, DYNAMO, LLM_D, AIBRIX})
"""Those that ask what lies where: the knobs on knowledge are theirs."""
EVENTS, NOTES = "cache events", "its own notes"
GENERATED, SAMPLE, OWN = "generated", "sample", "own file"
OWN_NUMBER, FITS = "own number", "what fits"
CACHES = (4_096, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152, 65_536, 131_072, 262_144, 393_216)
FLEETS = (1, 2, 3, 4, 6, 8, 12, 16)
RATES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0)

KNOBS: tuple[Knob, ...] = (
    Knob("router", "Third router", SGLANG, options=(SGLANG, LONGEST, DYNAMO, LLM_D, AIBRIX, STACK, PREFIX, RING, BOUNDED, LEAST,
                                                    TWO, RANDOM), main=True,
         help="What stands beside round robin and sticky sessions. SGLang's keeps a tree of the prompts it has sent where; "
              "longest match, Dynamo, llm-d and AIBrix ask what lies where, and differ in what they give for a short queue."),
    Knob("cache", "KV memory per replica", 24_576, options=CACHES, main=True, unit="tokens",
         help="Keys and values of so many tokens fit on each replica: those of the requests that run, and what is left of "
              "earlier ones until the room is needed. Beside Llama-3-8B on an A100-80G it is 467,296."),
    Knob("sticky", "Sticky sessions by", MODULO, options=(MODULO, RING, BOUNDED), group="Routers",
         help="The second router sends a conversation to one replica. Hash mod N; or the first point of a replica on a ring of "
              "hashes; or that, unless the replica has more than 1.25 times the mean load."),
    Knob("threshold", "Match threshold", 0.3, 0.0, 1.0, 0.05, group="Routers",
         help="SGLang cache-aware: the replica of the match is chosen if more than this share of the prompt is known there."),
    Knob("apart", "Imbalance, requests", 64, 0, 256, 1, group="Routers", unit="requests",
         help="SGLang cache-aware: the least loaded replica is chosen if the most loaded has this many requests more, and the "
              "ratio below holds too."),
    Knob("ratio", "Imbalance, ratio", 1.5, 1.0, 4.0, 0.1, group="Routers", unit="×",
         help="SGLang cache-aware: and if the most loaded has more than this many times the requests of the least loaded."),
    Knob("knowledge", "What a router knows", EVENTS, options=(EVENTS, NOTES), group="Routers",
         help="Cache events: the engines tell what they keep and what they drop. Its own notes: the router remembers what it "
              "sent where, and hears of nothing that was dropped. Longest match, Dynamo, llm-d and AIBrix use it."),
    Knob("delay", "It knows it after", 0.0, 0.0, 60.0, 0.5, group="Routers", unit="s",
         help="How old the news from the engines' caches is."),
    Knob("replicas", "Replicas", 4, options=FLEETS, group="Fleet", unit="replicas", help="How many servers, all alike."),
    Knob("join", "The last one joins in mid-run", False, group="Fleet",
         help="The last replica is there only from the middle of the arrivals on: hash mod N moves most conversations then, a "
              "ring about one in N."),
    Knob("fit", "Memory from", OWN_NUMBER, options=(OWN_NUMBER, FITS), group="Fleet",
         help="What fits: 90 % of the GPU's memory less the weights, over the bytes of a token. Own number: the knob KV memory."),
    Knob("model", "Model", "Llama-3-8B", options=("Llama-3-8B", "Llama-2-7B", "Mistral-7B", "OPT-13B"), group="Fleet",
         help="Sets the time of a step, and the bytes of a token's keys and values."),
    Knob("gpu", "GPU", "A100-80G", options=tuple(GPUS), group="Fleet", help="A faster GPU takes less time for a step."),
    Knob("sessions", "Conversations", 24, 1, 120, group="Conversations", unit="conversations", help="How many begin."),
    Knob("turns", "Turns", 4, 1, 12, group="Conversations", unit="turns",
         help="Questions in a conversation. Each prompt quotes all that was said before."),
    Knob("prompts", "System prompts", 12, 1, 64, group="Conversations", unit="prompts",
         help="How many different system prompts the conversations begin with."),
    Knob("skew", "Popularity skew", 0.8, 0.0, 3.0, 0.1, group="Conversations",
         help="How unequal their use is: the one of rank r has a weight of 1/r to this power. 0: all alike."),
    Knob("prefix", "Length of a system prompt", 4_000, options=(100, 300, 500, 1_000, 1_500, 2_000, 3_000, 4_000, 6_000),
         group="Conversations", unit="tokens", help="Tokens that all conversations with this system prompt share."),
    Knob("question", "Mean question", 200, options=(20, 50, 100, 200, 400, 800, 1_000, 2_000), group="Conversations",
         unit="tokens", help="Each turn adds one, and the reply to the one before."),
    Knob("answer", "Mean reply", 100, options=(20, 50, 100, 200, 300, 500, 800), group="Conversations", unit="tokens",
         help="The next turn quotes it."),
    Knob("think", "Mean think time", 5.0, 0.0, 120.0, 1.0, group="Conversations", unit="s",
         help="Between a reply and the next question. Arrivals are fixed beforehand: a reply is reckoned at 15 ms a token."),
    Knob("rate", "Load", 8.0, options=RATES, group="Conversations", unit="conversations/s",
         help="How many conversations begin in a second, on average (Poisson)."),
    Knob("seed", "Seed", 1, 0, 9999, group="Conversations", help="Another number draws other arrivals, lengths and prompts."),
    Knob("source", "Requests from", GENERATED, options=(GENERATED, SAMPLE, OWN), group="Own file",
         help="Sample: the first ten minutes of Mooncake's conversation trace; its requests come in bursts 3 s apart. It does "
              "not say what belongs to one conversation: taken is what shares the first 1,024 tokens."),
    Knob("start", "Window starts at", 0, 0, 604_800, 1, group="Own file", unit="s", help="Seconds into the sample or the file."),
    Knob("take", "Requests from the window", 200, 1, 2000, group="Own file", unit="requests",
         help="How many requests to take from there, at most."),
)

_BUSY: dict[str, Value] = {"cache": 65_536, "prefix": 3_000, "question": 1_000, "sessions": 60, "turns": 2, "rate": 16.0,
                           "think": 2.0, "skew": 2.0}
_CALM: dict[str, Value] = {"turns": 5, "prompts": 16, "skew": 0.5, "prefix": 1_000, "answer": 300, "think": 10.0, "rate": 1.0}

PRESETS: tuple[Preset, ...] = (
    Preset("classic", "The classic", {},
           "Round robin sends each turn of a conversation somewhere else, and what was computed for it lies elsewhere. The other "
           "two send it where it was. In the first seconds all conversations begin, each with a long prompt: see where they wait "
           "if nobody looks who is busy."),
    Preset("calm", "Few at a time", _CALM,
           "One conversation begins in a second, and hardly anybody queues: what finds most of the prompt also answers soonest. "
           "Raise the load and see when that ends."),
    Preset("shared", "One shared system prompt", {**_CALM, "prompts": 1},
           "Every prompt starts alike, so every match is longest on the one replica that had the first: it gets all, and the "
           "rest idle. Set “Imbalance, requests” to 4, or choose Dynamo."),
    Preset("plenty", "So much cache that routing hardly matters",
           {**_CALM, "fit": FITS, "prompts": 4, "prefix": 4_000, "question": 50, "answer": 50, "sessions": 120, "turns": 3,
            "rate": 2.0},
           "Long system prompts, short turns, and memory for all of it on every replica: soon each system prompt is "
           "everywhere. See the sweep over memory for where routing begins to matter."),
    Preset("skewed", "Skewed tenants", {**_BUSY, "router": LONGEST},
           "Most conversations share one tenant's system prompt. Pure affinity sends them all to the replica that has it: most "
           "is found, and a queue forms there while others have little to do."),
    Preset("stale", "Stale knowledge", {**_CALM, "router": LONGEST, "delay": 30.0},
           "The router hears of the caches half a minute late: when the next turn comes, it does not know yet where the last "
           "one went. Set the delay to 0 and compare."),
    Preset("joins", "A replica joins in mid-run",
           {**_CALM, "replicas": 6, "join": True, "router": RING, "sessions": 48, "turns": 6, "think": 20.0},
           "The sixth replica joins half-way. Hash mod N sends most conversations elsewhere from then on, and their memory is "
           "lost; the ring moves about one in six, all of them to the new replica."),
    Preset("latency", "Highest hit rate is not lowest latency", {**_BUSY, "sticky": BOUNDED, "cache": 131_072},
           "The third router finds most, and its slowest first tokens come later than those of a router that gives up some of "
           "the cache for a shorter queue. Compare hit rate with p99 TTFT."),
    Preset("real", "Real requests", {"source": SAMPLE, "replicas": 8, "fit": FITS, "gpu": "H100", "take": 600},
           "Mooncake's conversation trace, its first minutes: long prompts in bursts 3 s apart, few of which quote an earlier "
           "one in so short a window. Round robin finds a third of what there is to find, the other two most of it."),
)


@dataclass(frozen=True)
class Scenario:
    """One trace and one fleet, and the routers to compare, in the order of the stage: "round_robin", "sticky" and "aware".

    policies  what each router is called on the screen
    policy    of every replica's engine
    joins     s, when each replica joins
    """

    trace: Trace
    service: Service
    policy: Policy
    policies: dict[str, str]
    knowledge: Knowledge
    joins: tuple[float, ...]
    values: dict[str, Value]
    note: str = ""

    @property
    def turn(self) -> Ints:
        """Which turn of its conversation each request is, from 1 on. [n]"""
        return turns(self.trace)

    def fleet(self, key: str, record: bool = True) -> FleetRun:
        """The trace served by the fleet under one of the routers, which starts fresh."""
        made = simulate_fleet(self.trace, self.service, self.policy, router(self.values, self.policies[key]), len(self.joins),
                              knowledge=self.knowledge, joins=self.joins, record=record)
        return _frozen(made)


@dataclass(frozen=True)
class Lost:
    """A request that was sent past its memory: `lay` had so many `tokens` of its prompt more than the replica it `went` to.

    turn, session and replicas count from 1, as on the screen.
    """

    request: int
    session: int
    turn: int
    went: int
    lay: int
    tokens: int


@dataclass(frozen=True)
class Result:
    """The scenario served under each of its routers; all arrays are read-only.

    numbers  by router: "hit_rate", of all prompt tokens; "computed" and "again", prompt tokens computed, and of them those
             that one infinite cache would have had; "ttft_p50", "ttft_p99", "ttft_mean" and "e2e_p99", s; "imbalance", most over
             mean of the requests; "idle", replicas without a request; "evicted", blocks that lost what they remembered;
             "early", turns that came before the reply before them had ended; "believed", tokens that the router counted on
             where it sent the request, and "gone", those of them that were not there (nan: it counts on nothing);
             "refused", requests too long for the memory
    ceiling  hit rate of one infinite cache that sees every request, one after the other
    """

    scenario: Scenario
    fleets: dict[str, FleetRun]
    numbers: dict[str, dict[str, float]]
    ceiling: float

    @cached_property
    def curves(self) -> dict[str, tuple[Floats, Floats]]:
        """Hit rate at every cache size, tokens a replica, requests going where they went here and coming one by one."""
        return {key: _curve(self.scenario.trace, fleet.replica) for key, fleet in self.fleets.items()}


@dataclass(frozen=True)
class Band:
    """Over the seeds 1 to SEEDS, everything else as on the screen: hit rate, and p99 TTFT, s; by router, float64[SEEDS]."""

    seeds: tuple[int, ...]
    hit_rate: dict[str, Floats]
    ttft_p99: dict[str, Floats]

    def median(self, key: str) -> float:
        """Median hit rate over the seeds."""
        return float(np.median(self.hit_rate[key]))


@dataclass(frozen=True)
class Sweep:
    """Over one knob: hit rate and p99 TTFT (s) by router, simulated, one value for each x.

    over    "cache", "replicas" or "rate";  x_here  the knob's value on the screen
    curves  over "cache": hit rate at every size, tokens, with requests going where they go on the screen; else empty
    ceiling  hit rate of one infinite cache, for each x
    names   what each router is called on the screen;  note  what to know of it, or empty
    """

    over: str
    x: Floats
    x_here: float
    hit_rate: dict[str, Floats]
    ttft_p99: dict[str, Floats]
    curves: dict[str, tuple[Floats, Floats]]
    ceiling: Floats
    names: dict[str, str]
    note: str


def filled(values: Values) -> dict[str, Value]:
    """`values` with the default for every knob that it leaves out."""
    return {**defaults(KNOBS), **values}


# --- one trace, one fleet, three routers ------------------------------------------------------------------------------


def build(values: Values, uploaded: Trace | None = None) -> Scenario:
    """The scenario of the knobs; `uploaded` is the own file.

    Raises ValueError with a message for the learner: no file yet, a file that does not say what its prompts hold, an empty
    window.
    """
    v = filled(values)
    server = service(str(v["model"]), str(v["gpu"]))  # each of these models fits on each of these GPUs
    tokens = server.kv_tokens() if v["fit"] == FITS else int(v["cache"])
    trace, note = _trace(v, uploaded)
    policy = vllm(SLOTS, BUDGET, Memory(tokens // BLOCK, BLOCK, prefix_cache=True))
    source: Literal["events", "own"] = "events" if v["knowledge"] == EVENTS else "own"
    replicas = int(v["replicas"])
    joins = [0.0] * replicas
    if v["join"] and replicas > 1:
        joins[-1] = float(trace.arrival[0] + trace.arrival[-1]) / 2
    names = dict(zip(KEYS, (ROUND_ROBIN, str(v["sticky"]), str(v["router"])), strict=True))
    return Scenario(trace, server, policy, names, Knowledge(source, float(v["delay"])), tuple(joins), v, note)


def router(v: Values, name: str) -> Router:
    """A fresh router by its name on the screen, with the knobs that are its own."""
    seed = int(v["seed"])
    made: dict[str, Callable[[], Router]] = {
        ROUND_ROBIN: routers.round_robin, MODULO: routers.session_hash, RING: routers.consistent_hash,
        BOUNDED: routers.bounded_load, LONGEST: routers.longest_match, AIBRIX: routers.aibrix, PREFIX: routers.prefix_hash,
        SGLANG: lambda: routers.cache_aware(float(v["threshold"]), int(v["apart"]), float(v["ratio"])),
        DYNAMO: lambda: routers.dynamo(seed=seed), LLM_D: lambda: routers.llm_d(seed=seed), LEAST: routers.least_loaded,
        STACK: lambda: routers.prefix_aware(seed=seed), TWO: lambda: routers.power_of_two(seed),
        RANDOM: lambda: routers.random(seed),
    }
    return made[name]()


def result(values: Values, uploaded: Trace | None = None) -> Result:
    """The three runs and their numbers. Raises as build does."""
    scene = build(values, uploaded)
    fleets = {key: scene.fleet(key) for key in scene.policies}
    ceiling = float(_curve(scene.trace)[1][-1])
    return Result(scene, fleets, {key: numbers(fleet, ceiling) for key, fleet in fleets.items()}, ceiling)


def numbers(fleet: FleetRun, ceiling: float) -> dict[str, float]:
    """The measures of one run; see Result."""
    trace, ttft = fleet.trace, fleet.ttft
    served = np.isfinite(ttft)
    some = bool(served.any())
    took, ended = ttft[served], fleet.e2e[np.isfinite(fleet.e2e)]
    believed = gone = np.nan
    if fleet.decisions is not None and (fleet.decisions.matched >= 0).any():
        rows = np.arange(len(trace))
        counted = fleet.decisions.matched[rows, fleet.replica]
        believed, gone = float(counted.sum()), float(np.maximum(counted - fleet.decisions.there[rows, fleet.replica], 0).sum())
    prompt = float(trace.prompt.sum())
    return {
        "hit_rate": fleet.hit_rate,
        "computed": float(fleet.misses.sum()),
        "again": max(0.0, ceiling * prompt - float(fleet.hits.sum())),
        "ttft_p50": float(np.median(took)) if some else np.nan,
        "ttft_p99": float(np.quantile(took, 0.99)) if some else np.nan,
        "ttft_mean": float(took.mean()) if some else np.nan,
        "e2e_p99": float(np.quantile(ended, 0.99)) if len(ended) else np.nan,
        "imbalance": fleet.imbalance,
        "idle": float(np.count_nonzero(fleet.requests == 0)),
        "evicted": float(fleet.evicted.sum()),
        "early": float(workloads.before_the_reply(trace, fleet.column("finished_us").astype(np.float64) / 1e6).sum()),
        "believed": believed,
        "gone": gone,
        "refused": float(np.count_nonzero(~served)),
    }


def sessions(trace: Trace) -> Ints:
    """The conversation of each request, from 0 on, (n,)."""
    assert trace.session is not None, "build gives every trace its sessions"
    return trace.session


def turns(trace: Trace) -> Ints:
    """Which turn of its conversation each request is, from 1 on, (n,)."""
    order = np.argsort(sessions(trace), kind="stable")
    ordered = sessions(trace)[order]
    opening = np.maximum.accumulate(np.where(np.append(True, ordered[1:] != ordered[:-1]), np.arange(len(order)), 0))
    turn = np.empty(len(order), np.int64)
    turn[order] = np.arange(len(order)) - opening + 1
    return turn


def lost(result: Result, key: str) -> Lost | None:
    """The request that was sent past most of its memory; None: none was."""
    fleet, decisions = result.fleets[key], result.fleets[key].decisions
    assert decisions is not None
    there = decisions.there
    gap = there.max(axis=1) - there[np.arange(len(fleet)), fleet.replica]
    i = int(np.argmax(gap))
    if gap[i] <= 0:
        return None
    session = int(sessions(fleet.trace)[i])
    return Lost(i, session + 1, int(result.scenario.turn[i]), int(fleet.replica[i]) + 1, int(np.argmax(there[i])) + 1,
                int(gap[i]))


def moved(result: Result, key: str) -> tuple[int, int] | None:
    """Of the conversations that are under way when the last replica joins: how many go on elsewhere, and how many there are.

    Elsewhere: the first turn after it goes to another replica than the last one before. None: nobody joins.
    """
    at, trace = result.scenario.joins[-1], result.scenario.trace
    if at <= 0:
        return None
    went: dict[int, int] = {}
    changed: dict[int, bool] = {}
    for session, arrival, replica in zip(sessions(trace).tolist(), trace.arrival.tolist(),
                                         result.fleets[key].replica.tolist(), strict=True):
        if arrival < at:
            went[session] = replica
        elif session in went and session not in changed:
            changed[session] = went[session] != replica
    return sum(changed.values()), len(changed)


# --- the sweep and the band -------------------------------------------------------------------------------------------


def band(values: Values) -> Band:
    """Hit rate and p99 TTFT over SEEDS seeds."""
    seeds = tuple(range(1, SEEDS + 1))
    runs = [_quick({**filled(values), "seed": seed}) for seed in seeds]
    return Band(seeds, _column(runs, "hit_rate"), _column(runs, "ttft_p99"))


def sweep(values: Values, uploaded: Trace | None = None, over: str = "cache") -> Sweep:
    """All three routers at every value of one knob: "cache", "replicas" or "rate" (that of generated requests alone)."""
    if over not in ("cache", "replicas", "rate"):
        raise ValueError(f"over must be 'cache', 'replicas' or 'rate', not {over!r}")
    v = filled(values)
    notes = []
    if v["source"] != GENERATED:
        if int(v["take"]) > SWEEP_MOST:
            notes.append(f"The first {SWEEP_MOST} requests of the window.")
        v["take"] = min(int(v["take"]), SWEEP_MOST)
        if over == "rate":
            raise ValueError("A recorded trace has its own load: the sweep over load is for generated requests.")
    scene = build(v, uploaded)
    if over == "cache" and v["fit"] == FITS:
        v |= {"fit": OWN_NUMBER, "cache": scene.service.kv_tokens()}
    here = float(cast(float, v[over]))
    options: Sequence[float] = {"cache": CACHES[1:], "replicas": FLEETS, "rate": RATES}[over]
    x = np.array(sorted({*options, here}), np.float64)
    runs = [_quick({**v, over: int(each) if over != "rate" else each}, uploaded) for each in x.tolist()]
    curves = {}
    if over == "cache":
        curves = {key: _curve(scene.trace, scene.fleet(key, record=False).replica) for key in scene.policies}
        notes.append("Thin lines: every size, routed as here, one request at a time.")
    return Sweep(over, x, here, _column(runs, "hit_rate"), _column(runs, "ttft_p99"), curves,
                 np.array([each["round_robin"]["ceiling"] for each in runs]), scene.policies, " ".join(notes))


def _quick(values: Values, uploaded: Trace | None = None) -> dict[str, dict[str, float]]:
    """The numbers of the three runs, and the ceiling with them, without what each decision saw."""
    scene = build(values, uploaded)
    ceiling = float(_curve(scene.trace)[1][-1])
    return {key: {**numbers(scene.fleet(key, record=False), ceiling), "ceiling": ceiling} for key in scene.policies}


def _column(runs: Sequence[dict[str, dict[str, float]]], name: str) -> dict[str, Floats]:
    return {key: np.array([each[key][name] for each in runs]) for key in KEYS}


def _curve(trace: Trace, replica: Ints | None = None) -> tuple[Floats, Floats]:
    """Hit rate over the memory of each replica, tokens: every size at which it changes."""
    sizes, rate = curve(trace, BLOCK, replica)
    return BLOCK * sizes.astype(np.float64), rate


# --- the requests -----------------------------------------------------------------------------------------------------


def _trace(v: Values, uploaded: Trace | None) -> tuple[Trace, str]:
    """The requests and what was assumed of them: generated, from the sample or from the own file."""
    if v["source"] == GENERATED:
        return _generated(v), ""
    recorded, what = (sample(), "sample") if v["source"] == SAMPLE else (uploaded, "file")
    if recorded is None:
        raise ValueError("There is no file yet. Drop one in, or choose “generated” or “sample” under “Requests from”.")
    if recorded.content is None:
        raise ValueError("This file does not say what its prompts hold, so nothing can be found in a cache. Use Mooncake's or "
                         "Qwen-Bailian's format, with hash_ids.")
    start, last = float(v["start"]), float(recorded.arrival[-1])
    if start > last:
        raise ValueError(f"Window starts at {start:,.0f} s, but the last request of the {what} comes at {last:,.0f} s; "
                         f"choose a start from 0 to {math.floor(last):,} s.")
    part, note = recorded.window(start, limit=int(v["take"])), ""
    if part.session is None:
        part, note = mooncake.guess_sessions(part), "Conversations are guessed: what shares the first 1,024 tokens."
    _, numbered = np.unique(sessions(part), return_inverse=True)
    return replace(part, session=numbered.astype(np.int64)), note


def _generated(v: Values) -> Trace:
    """The conversations: they follow from the knobs of their group alone."""
    begun, turn, seed = int(v["sessions"]), int(v["turns"]), int(v["seed"])
    n = begun * turn
    starts = workloads.poisson(begun, float(v["rate"]), seed)
    return workloads.sessions(
        starts - starts[0], turn, [int(v["prefix"])] * int(v["prompts"]), float(v["skew"]),
        workloads.lognormal(n, float(v["question"]), QUESTION_CV, seed, of="prompt"),
        workloads.lognormal(n, float(v["answer"]), ANSWER_CV, seed), workloads.think_times(n, float(v["think"]), seed),
        TOKEN_S, seed, "generated",
    )


@lru_cache(maxsize=1)
def sample() -> Trace:
    """The sample that comes along. ValueError, for the learner, if it is missing."""
    try:
        packed = SAMPLE_FILE.read_bytes()
    except OSError as error:
        raise ValueError(f"The sample is missing: {SAMPLE_FILE.name} should lie in assets/. ({error.strerror})") from None
    return mooncake.read(gzip.decompress(packed), "Mooncake, conversation, first ten minutes")


def _frozen(fleet: FleetRun) -> FleetRun:
    """The fleet with read-only columns: it is cached and shared."""
    read_only(*(part for part in (fleet, fleet.decisions, *fleet.runs) if part is not None))
    return fleet
