"""Routing against the record: SGLang's shared prefixes, llm-d's tenants, KubeAI's bounded loads, Mooncake's schedulers."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from sim import workloads
from sim.fleet import FleetRun, simulate_fleet
from sim.hardware import GPU, GPUS, MIB, MODELS, Fit, Model
from sim.kv import distances
from sim.policy import Memory, Policy, vllm
from sim.readers import mooncake
from sim.record import closed_loop
from sim.record.claim import Claim
from sim.routers import ROUTERS, Arrival, Router
from sim.service import Service, service
from sim.trace import Content, Trace

# --- SGLang's router v0.4 (LMSYS blog, 2024-12-04) ---------------------------------------------------------------------

GROUPS, EACH, PREFIX, QUESTION, REPLY = 64, 16, 2_048, 128, 256
WORKERS, SLOTS, BUDGET, SEEDS = 8, 1_024, 8_192, range(5)
# Threshold, apart and ratio as they were then; the rule itself is that of release 0.3.2.
V04 = (0.5, 32, 1.0001)
_LMSYS = "LMSYS blog, SGLang v0.4 (2024-12-04); "


def shared_prefixes(order: np.ndarray) -> Trace:
    """SGLang's generated-shared-prefix set, all at once: request i of `order` belongs to group i // 16."""
    n = len(order)
    stream = np.stack([order // EACH, GROUPS + order], axis=1).ravel()
    content = Content(2 * np.arange(n + 1), stream, np.zeros(2 * n, np.int64), np.tile([PREFIX, QUESTION], n), GROUPS + n + order)
    return Trace(np.zeros(n), np.full(n, PREFIX + QUESTION), np.full(n, REPLY), name="generated-shared-prefix", content=content)


def shuffled(seed: int) -> Trace:
    """The 1,024 requests in a random order."""
    return shared_prefixes(np.random.default_rng(seed).permutation(GROUPS * EACH))


@lru_cache(maxsize=4)
def sglang(router: str) -> tuple[float, float]:
    """Token hit rate and prompt and reply tokens per second until the last one ends; means over the seeds."""
    server = service("Llama-3-8B", "A100-80G")
    policy = vllm(SLOTS, BUDGET, Memory(server.blocks(), prefix_cache=True))
    results = []
    for seed in SEEDS:
        chosen: str | Router = ROUTERS["cache_aware"](*V04) if router == "cache_aware" else router
        run = simulate_fleet(shuffled(seed), server, policy, chosen, WORKERS)
        tokens = int(run.trace.prompt.sum() + run.trace.output.sum())
        results.append((run.hit_rate, tokens / float(run.e2e.max())))
    hit, rate = np.mean(results, axis=0).tolist()
    return hit, rate


def _sglang_set_up() -> str:
    tokens = service("Llama-3-8B", "A100-80G").kv_tokens()
    return (f"{GROUPS} groups of {EACH}, {PREFIX:,} shared + {QUESTION} own + {REPLY} reply tokens, all at once, shuffled; "
            f"{WORKERS} workers, Llama-3-8B on an A100-80G each, {SLOTS:,} slots (no limit below memory), {tokens:,} KV tokens, "
            f"budget {BUDGET:,}, cache-aware {V04[0]} / {V04[1]} / {V04[2]}; mean of {len(SEEDS)} shuffles")


_EVEN = (
    "a shuffle leaves each group's sixteen on 8·(1 − (7/8)^16) = 7.1 of eight workers, not eight, and nothing is evicted, so "
    "that 53 % of the tokens are found; the blog prints neither its set's sizes nor its KV memory"
)


def _hit(router: str, theirs: float, low: float, high: float) -> Claim:
    name = router.replace("_", "-")
    return Claim(
        f"route-sglang-hit-{name}", _LMSYS + "75 % against 20 %", f"prompt tokens found cached under {router.replace('_', ' ')}",
        theirs, round(100 * sglang(router)[0], 1), "%", low, high, _sglang_set_up(), _EVEN if router == "round_robin" else "",
    )


def _sglang_throughput() -> Claim:
    aware, robin = sglang("cache_aware")[1], sglang("round_robin")[1]
    return Claim(
        "route-sglang-throughput", _LMSYS + "158,596 against 82,665 tokens/s", "throughput of cache-aware over round robin", 1.92,
        round(aware / robin, 2), "times", 1.5, 2.3, _sglang_set_up(),
        f"ours {aware:,.0f} and {robin:,.0f} tokens/s. Round robin finds 53 % here, 20 % there: it has less to lose",
    )


def _sglang_ceiling(which: str) -> Claim:
    trace = shared_prefixes(np.arange(GROUPS * EACH)) if which == "even" else shuffled(0)
    replica = None if which == "one" else np.arange(len(trace)) % WORKERS
    rate = 100 * float(distances.curve(trace, 16, replica)[1][-1])
    share = 100 * PREFIX / (PREFIX + QUESTION)
    what = {"one": "one cache without end", "even": "round robin with endless caches, two of each group on each worker",
            "shuffled": "round robin with endless caches, in a shuffled order"}[which]
    met = WORKERS * (1 - (1 - 1 / WORKERS) ** EACH)  # workers that a group of a random order meets
    theirs = {"one": share * (1 - 1 / EACH), "even": share / 2, "shuffled": share * (1 - met / EACH)}[which]
    apart = 2.0 if which == "shuffled" else 0.1
    return Claim(
        f"route-sglang-ceiling-{which}", "arithmetic on the set's sizes (papers/FACTS.md, section 6.1: 88 % and 44 to 47 %)",
        f"prompt tokens found by {what}", round(theirs, 1), round(rate, 1), "%", round(theirs - apart, 2),
        round(theirs + apart, 2), "a replay without time, one request after another",
    )


# --- llm-d's precise prefix-cache scheduling (blog, 2025-09-24, and its benchmark report) --------------------------------

CUSTOMERS, USERS, CONTEXT, ASKED, ANSWER = 150, 5, 6_000, 1_200, 1_000
PODS, POD_TOKENS, POD_BLOCK = 8, 307_328, 64
# Its ladder, requests/s and s; a stage begins when the one before is served. The first fills the caches.
LADDER = (
    (15, 50), (3, 20), (10, 20), (15, 20), (20, 38), (22, 34), (25, 30), (30, 25), (35, 21), (40, 38), (43, 36), (46, 33),
    (49, 30), (52, 29), (55, 27), (57, 26), (60, 25),
)  # fmt: skip
STEADY = ((15, 50), (10, 300))  # the first of its rates at which random cannot keep up when the rate stays
APART_S = 1_000.0  # between stages: longer than any takes to be served
# Qwen/Qwen3-32B, config.json; the blog calls it Qwen-32B, its report Qwen3-32B.
QWEN = Model("Qwen3-32B", 64, 5120, 64, 8, 25600, True, 151936, False, 0, "Qwen/Qwen3-32B config.json")
_LLMD = "llm-d blog, KV-Cache Wins You Can See (2025-09-24); "
_LLMD_SET_UP = (
    f"{PODS} pods, Qwen3-32B on two H100 each, {POD_TOKENS:,} KV tokens a pod in blocks of {POD_BLOCK}, {CUSTOMERS} customers of "
    f"{CONTEXT:,} tokens, {USERS} users each who repeat {ASKED:,} tokens, {ANSWER:,} reply tokens; Poisson, 1,024 slots, budget "
    f"8,192; precise: exact matches, weights 3 prefix, 2 memory, 2 queue; no engine overhead; "
)


def tenants(stages: tuple[tuple[float, float], ...]) -> tuple[Trace, np.ndarray]:
    """The trace of (requests/s, s) stages, and which stage each request belongs to. All users ask in turn, in a fixed order."""
    arrivals, begin = [], 0.0
    for k, (rate, length) in enumerate(stages):
        arrivals.append(begin + workloads.poisson(round(rate * length), rate, k))
        begin = float(arrivals[-1][-1]) + APART_S
    stage = np.repeat(np.arange(len(stages)), [len(times) for times in arrivals])
    n, people = len(stage), CUSTOMERS * USERS
    user = np.random.default_rng(0).permutation(people)[np.arange(n) % people]
    stream = np.stack([user // USERS, CUSTOMERS + user], axis=1).ravel()
    content = Content(2 * np.arange(n + 1), stream, np.zeros(2 * n, np.int64), np.tile([CONTEXT, ASKED], n),
                      CUSTOMERS + people + np.arange(n))
    return Trace(np.concatenate(arrivals), np.full(n, CONTEXT + ASKED), np.full(n, ANSWER), content=content), stage


@lru_cache(maxsize=8)
def llm_d(router: str, stages: tuple[tuple[float, float], ...] = LADDER) -> FleetRun:
    """The ladder under one router."""
    policy = vllm(1_024, 8_192, Memory(POD_TOKENS // POD_BLOCK, POD_BLOCK, prefix_cache=True))
    return simulate_fleet(tenants(stages)[0], Service(QWEN, GPUS["H100"], 2), policy, router, PODS)


def per_stage(run: FleetRun, stage: np.ndarray) -> tuple[list[float], list[float]]:
    """Reply tokens/s, from the first arrival to the last token, and p90 TTFT, s, of each stage but the first."""
    output, p90 = [], []
    for k in range(1, int(stage[-1]) + 1):
        rows = stage == k
        begin, end = run.trace.arrival[rows].min(), (run.trace.arrival + run.e2e)[rows].max()
        output.append(float(run.trace.output[rows].sum() / (end - begin)))
        p90.append(float(np.quantile(run.ttft[rows], 0.9)))
    return output, p90


def waiting(run: FleetRun, at: float) -> int:
    """Requests that have arrived and are not admitted at `at`, s."""
    return int(((run.trace.arrival <= at) & (run.column("admitted_us").astype(np.float64) > 1e6 * at)).sum())


def _queue(router: str) -> Claim:
    run, (rate, length) = llm_d(router, STEADY), STEADY[1]
    begin, end = float(run.trace.arrival[-1]) - length, float(run.trace.arrival[-1])
    half, full = waiting(run, begin + length / 2), waiting(run, end)
    name = "precise" if router == "llm_d" else router
    return Claim(
        f"route-llmd-queue-{name}", _LLMD + "mean queue 27.3 a pod under random, 0.1 under precise",
        f"requests waiting after {length:g} s at {rate:g}/s, all pods, {name}", None, full, "requests",
        None if router == "llm_d" else 1.8 * half, 10.0 if router == "llm_d" else None,
        _LLMD_SET_UP + f"{rate:g}/s for {length:g} s",
        f"{half} after half of that time. Its own stages last 20 to 38 s, too short to tell a queue that grows from a long one",
    )


def _llmd_output() -> Claim:
    stage = tenants(LADDER)[1]
    precise, random = (float(np.mean(per_stage(llm_d(router), stage)[0])) for router in ("llm_d", "random"))
    return Claim(
        "route-llmd-output", _LLMD + "8,730 against 4,429 reply tokens/s, means over its sixteen stages",
        "reply tokens per second under precise over random", 1.97, round(precise / random, 2), "times", 1.7, 2.2,
        _LLMD_SET_UP + "its ladder of 3 to 60 requests/s", f"ours {precise:,.0f} and {random:,.0f} tokens/s",
    )


def _llmd_level(router: str, theirs: float) -> Claim:
    name = "precise" if router == "llm_d" else router
    ours = float(np.mean(per_stage(llm_d(router), tenants(LADDER)[1])[0]))
    return Claim(
        f"route-llmd-output-{name}", _LLMD + "table", f"reply tokens per second under {name}, mean over the stages", theirs,
        round(ours), "tokens/s", None, None, _LLMD_SET_UP + "its ladder of 3 to 60 requests/s",
        "our replies all have 1,000 tokens, theirs may end early, and an engine costs more than its kernels",
    )


def _llmd_ttft(router: str, theirs: float, low: float | None, high: float | None) -> Claim:
    name = "precise" if router == "llm_d" else router
    ours = float(np.mean(per_stage(llm_d(router), tenants(LADDER)[1])[1]))
    return Claim(
        f"route-llmd-ttft-{name}", _LLMD + "table: TTFT p90, mean over its stages",
        f"p90 of TTFT under {name}, mean over the stages", theirs, round(ours, 2), "s", low, high,
        _LLMD_SET_UP + "its ladder of 3 to 60 requests/s",
        "how long a queue gets depends on how long each stage lasts" if router == "random" else "",
    )


# --- KubeAI's consistent hashing with bounded loads (blog, 2025-02-26, and its notebook) ---------------------------------

# Its notebook (substratusai/kubeai 2fd30221, benchmarks/multi-turn-chat-go/runs/llama-3.1-8x-l4/run.ipynb): 8,000 threads of
# 7.38 messages, replies of at most 40 tokens (38.9 on average), prompts of 386 tokens on average; FP8 weights, 90 % of the
# memory, 16,384 tokens a step, vLLM before its v1 engine.
REPLICAS, MESSAGES, FEWEST, PROMPT, SAID = 8, 7.38, 3, 386, 39
# At once → in all; theirs 8,000. With 8,000 of which 1,200 at once, over the whole run, ours were 112,100 and 59,100 tokens/s,
# 1.90 times, and 0.16 and 0.32 s of TTFT (half a minute a router); the fewer conversations, the fewer turns under load.
THREADS = {300: 600, 1_200: 2_400}
# NVIDIA L4 data sheet: 121 TFLOP/s dense bf16, 300 GB/s, 23,034 MiB. FP8 weights: half the bytes, twice the FLOP/s, said as twice
# the efficiency; efficiencies and layer time are the A100's, so nothing measured holds this card to them.
_A100 = GPUS["A100-80G"].smooth
L4 = GPU("L4", 121e12, 300e9, 23_034 * MIB, Fit(_A100.tau_us, 2 * _A100.compute, 2 * _A100.memory, _A100.kv, _A100.attention),
         _A100, (), "NVIDIA L4 data sheet; efficiencies of the A100, FP8 weights; not measured")
_KUBEAI = "KubeAI blog, LLM Load Balancing at Scale (2025-02-26), and its notebook; "


def threads(n: int, seed: int = 0) -> Trace:
    """n conversations, turn after turn: FEWEST messages or more (geometric, mean MESSAGES), of lognormal length (CV 1.2).

    The lengths are scaled so that prompts have PROMPT tokens on average; the spreads are not printed.
    """
    count = FEWEST - 1 + np.random.default_rng(seed).geometric(1 / (MESSAGES - FEWEST + 1), n)
    turns = int(count.sum())
    first = np.repeat(np.cumsum(count) - count, count)
    length = workloads.lognormal(turns, 100, 1.2, seed, of="prompt").astype(np.float64)
    asked = np.cumsum(length) - (np.cumsum(length) - length)[first]
    length *= (PROMPT - SAID * float((np.arange(turns) - first).mean())) / float(asked.mean())
    trace = workloads.sessions(
        np.zeros(n), count, [1], 0, np.maximum(1, np.rint(length)), np.full(turns, SAID), np.zeros(turns), 0.0, seed,
    )
    assert trace.session is not None
    return trace.take(np.argsort(trace.session, kind="stable"))


def l4_tokens() -> int:
    """KV tokens beside FP8 layers and a bf16 embedding and head, in 90 % of an L4."""
    server = Service(MODELS["Llama-3-8B"], L4)
    return int((0.9 * L4.memory_bytes - server.model.layer_parameters - 2 * server.model.embedding_parameters)
               // server.kv_bytes_per_token)


@lru_cache(maxsize=8)
def chwbl(router: str, at_once: int, memory: int = 1) -> closed_loop.Served:
    """Conversations under one router, with `memory` times the KV memory of an L4."""
    pool = Memory(memory * l4_tokens() // 16, prefix_cache=True, watermark=0.01)
    policy = Policy("vLLM v0", slots=256, budget=16_384, prompts="alone", memory=pool)
    server = Service(MODELS["Llama-3-8B"], L4)
    return closed_loop.serve(threads(THREADS[at_once]), at_once, server, policy, ROUTERS[router](), REPLICAS)


def _chwbl_set_up(at_once: int, memory: int = 1) -> str:
    return (
        f"{at_once:,} of {THREADS[at_once]:,} conversations at once, the next turn when the reply has ended; {MESSAGES} messages "
        f"each, prompts of {PROMPT} and replies of {SAID} tokens on average; {REPLICAS} L4 by their data sheet, Llama-3-8B in "
        f"FP8, {memory * l4_tokens():,} KV tokens each; factor 1.25, 256 points, key: the conversation; second half of the time "
        f"until the last begins"
    )


def _chwbl_throughput(at_once: int, memory: int, theirs: float | None, low: float | None, high: float | None, note: str) -> Claim:
    bounded, random = chwbl("bounded_load", at_once, memory), chwbl("random", at_once, memory)
    name = f"route-chwbl-throughput-{at_once}" + (f"-memory-{memory}" if memory > 1 else "")
    return Claim(
        name, _KUBEAI + ("throughput +127 %" if at_once == 1_200 else "41,521 against 36,395 tokens/s"),
        f"throughput of bounded-load hashing over random, {at_once:,} conversations at once"
        + (f", {memory} times the memory" if memory > 1 else ""), theirs, round(bounded.throughput / random.throughput, 2),
        "times", low, high, _chwbl_set_up(at_once, memory),
        f"ours {bounded.throughput:,.0f} and {random.throughput:,.0f} tokens/s, found {100 * bounded.hit_rate:.0f} and "
        f"{100 * random.hit_rate:.0f} %. {note}",
    )


def _chwbl_ttft(at_once: int, theirs: float, low: float | None, high: float | None, note: str) -> Claim:
    bounded, random = chwbl("bounded_load", at_once).ttft, chwbl("random", at_once).ttft
    return Claim(
        f"route-chwbl-ttft-{at_once}", _KUBEAI + ("TTFT −95 %" if at_once == 1_200 else "128 against 127 ms"),
        f"how much bounded-load hashing lowers the mean TTFT of random, {at_once:,} conversations at once", theirs,
        round(100 * (1 - bounded / random), 1), "%", low, high, _chwbl_set_up(at_once),
        f"ours {1000 * bounded:.0f} and {1000 * random:.0f} ms. {note}",
    )


_NO_QUEUE = (
    "Theirs waited 8.5 s under random. Here no request waits longer than a step or two: 150 conversations of some 400 tokens fit "
    "the memory, and random spreads them evenly enough. A Kubernetes Service draws a pod for each connection, not each request, "
    "and an L4 is slower than its data sheet; neither is modelled"
)
_STILL = (
    "It does not vanish: seven turns over eight replicas find little at random however much is remembered. Fewer conversations "
    "at once (300) shrink it more"
)
_FEW = (
    "Held to theirs within 15 %. Part of it is an engine's overhead, which no cache takes away: with 1.2 ms a step and 0.1 ms a "
    "request (CALIBRATION.md, section 4) ours would be 1.33. The rest is not explained"
)

# --- Mooncake's prefill schedulers (FAST '25, figure 5) ------------------------------------------------------------------

NODES, NODE_BLOCKS = 16, 3_000_000 // mooncake.BLOCK  # figure 10: a cache of 3M tokens on each node
SAMPLE = Path(__file__).resolve().parents[2] / "assets" / "mooncake_conversation_sample.jsonl.gz"
_FAST = "Mooncake (FAST '25), figure 5: mean TTFT 19.65 random, 5.27 load balance, 3.58 local cache, 3.07 s global cache"


def load_balance(arrival: Arrival) -> int:
    """Fewest prompt tokens still to compute."""
    return arrival.prefill.index(min(arrival.prefill))


def local_cache(arrival: Arrival) -> int:
    """Fewest tokens to compute before this prompt's first token: those pending there, and what of it is not cached there."""
    arrival.matched = arrival.match()
    own = [pending + arrival.prompt - arrival.block_size * blocks
           for pending, blocks in zip(arrival.prefill, arrival.matched, strict=True)]
    return own.index(min(own))


_SCHEDULERS: dict[str, Callable[[], Router]] = {
    "random": ROUTERS["random"], "load balance": lambda: load_balance, "local cache": lambda: local_cache,
}


@lru_cache(maxsize=4)
def conversation(scheduler: str, nodes: int = NODES) -> FleetRun:
    """The first ten minutes of the conversation trace, prefill only, under one scheduler."""
    trace = mooncake.read(gzip.decompress(SAMPLE.read_bytes()), "Mooncake, conversation, first ten minutes")
    prefill = Trace(trace.arrival, trace.prompt, np.ones(len(trace), np.int64), content=trace.content, name=trace.name)
    policy = vllm(64, 8_192, Memory(NODE_BLOCKS, mooncake.BLOCK, prefix_cache=True))
    return simulate_fleet(prefill, service("Llama-2-70B", "A100-80G", 8), policy, _SCHEDULERS[scheduler](), nodes)


_MOONCAKE_SET_UP = (
    f"the first ten minutes of the trace (1,750 requests, in bursts of 3 s as they are), {NODES} prefill nodes of eight A100-80G "
    f"with Llama-2-70B, decode elsewhere, a cache of 3M tokens a node whose reading costs nothing"
)


def _mooncake(worse: str, better: str, theirs: float, low: float, high: float | None = None, note: str = "") -> Claim:
    ours = [float(conversation(name).ttft.mean()) for name in (worse, better)]
    return Claim(
        f"route-mooncake-{worse}-over-{better}".replace(" ", "-"), _FAST, f"mean TTFT under {worse} over that under {better}",
        round(theirs, 2), round(ours[0] / ours[1], 2), "times", low, high, _MOONCAKE_SET_UP,
        f"ours {ours[0]:.2f} and {ours[1]:.2f} s. {note}".strip(),
    )


def _mooncake_spread() -> Claim:
    half = [float(conversation(name, NODES // 2).ttft.mean()) for name in ("random", "local cache")]
    return _mooncake(
        "random", "local cache", 19.65 / 3.58, 4.0, 10.0,
        f"The paper does not print how many of its {NODES} nodes prefill, nor the rate: with half of them ours are {half[0]:.2f} "
        f"and {half[1]:.2f} s, {half[0] / half[1]:.1f} times. The band is the one for random over global cache (6.4 times); "
        "fetching a prefix from another node is not modelled, so local cache stands in its place",
    )


CLAIMS: dict[str, Callable[[], Claim]] = {
    "route-sglang-hit-cache-aware": lambda: _hit("cache_aware", 75.0, 60.0, 90.0),
    "route-sglang-hit-round-robin": lambda: _hit("round_robin", 20.0, 10.0, 45.0),
    "route-sglang-throughput": _sglang_throughput,
    **{f"route-sglang-ceiling-{which}": partial(_sglang_ceiling, which) for which in ("one", "even", "shuffled")},
    "route-llmd-queue-random": lambda: _queue("random"),
    "route-llmd-queue-precise": lambda: _queue("llm_d"),
    "route-llmd-output": _llmd_output,
    "route-llmd-output-precise": lambda: _llmd_level("llm_d", 8730),
    "route-llmd-output-random": lambda: _llmd_level("random", 4429),
    "route-llmd-ttft-precise": lambda: _llmd_ttft("llm_d", 0.542, None, 1.0),
    "route-llmd-ttft-random": lambda: _llmd_ttft("random", 92.6, None, None),
    "route-chwbl-throughput-1200": lambda: _chwbl_throughput(1_200, 1, 2.27, 1.6, 2.5, ""),
    "route-chwbl-ttft-1200": lambda: _chwbl_ttft(1_200, 95.4, 80.0, None, _NO_QUEUE),
    "route-chwbl-throughput-300": lambda: _chwbl_throughput(300, 1, 1.14, 0.97, 1.31, _FEW),
    "route-chwbl-ttft-300": lambda: _chwbl_ttft(300, -1.2, None, 20.0, "Neither has a gain to speak of"),
    "route-chwbl-throughput-1200-memory-10": lambda: _chwbl_throughput(1_200, 10, None, 0.9, 1.1, _STILL),
    "route-mooncake-random-over-load-balance": lambda: _mooncake("random", "load balance", 19.65 / 5.27, 1.0),
    "route-mooncake-load-balance-over-local-cache": lambda: _mooncake("load balance", "local cache", 5.27 / 3.58, 1.0),
    "route-mooncake-random-over-local-cache": _mooncake_spread,
}
