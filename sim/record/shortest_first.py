"""What shortest first gains in a burst, and what it costs the longest: Fu et al. (NeurIPS 2024) beside ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from sim import metrics, workloads
from sim.engine import simulate
from sim.policy import Memory, Order, vllm
from sim.record.claim import Claim
from sim.run import Run
from sim.service import service
from sim.trace import Trace

BURST, STREAM, RATE = 2_000, 10_000, 20.0
SLOTS, BUDGET, LONGEST, SEED = 256, 2_048, 2_048, 0
# Means are the papers' (PagedAttention section 6.1; LMSYS-Chat-1M's abstract); LMSYS gives no spread, so both have ShareGPT's.
MEANS = {"ShareGPT": (161.31, 337.99), "LMSYS": (69.5, 214.5)}
CV = (1.2, 0.87)

_PAPER = "Fu et al. (NeurIPS 2024), burst of 2,000, Llama-3-8B"
_SET_UP = (
    f"{BURST:,} requests at once, lognormal lengths with the data set's means and CV {CV[0]} and {CV[1]}, Llama-3-8B on one "
    f"A100-80G, {SLOTS} slots, budget {BUDGET:,}, paged memory, true lengths known, seed {SEED}"
)
_WHY = (
    "theirs ranks by a learnt guess (Kendall's tau 0.54 and 0.62), ours knows the lengths; how far LMSYS's replies spread is not "
    "printed, and a wider spread gains more"
)


def lengths(data: str, arrivals: np.ndarray) -> Trace:
    """Requests of a data set's mean lengths at these arrivals, s."""
    (prompt, output), n = MEANS[data], len(arrivals)
    return workloads.workload(
        arrivals, workloads.lognormal(n, prompt, CV[0], SEED, LONGEST, "prompt"),
        workloads.lognormal(n, output, CV[1], SEED, LONGEST, "output"), data,
    )


@lru_cache(maxsize=8)
def served(data: str, order: Order, stream: bool = False) -> Run:
    """The burst, or a Poisson stream just above what the server can take, in one queue order."""
    gpu = service("Llama-3-8B", "A100-80G")
    policy = replace(vllm(SLOTS, BUDGET, Memory(gpu.blocks())), name=order, order=order)
    arrivals = workloads.poisson(STREAM, RATE, SEED) if stream else workloads.all_at_once(BURST)
    return simulate(lengths(data, arrivals), gpu, policy)


def _latency(data: str, order: Order) -> np.ndarray:
    return metrics.normalised_latency(served(data, order))


def _mean(data: str, theirs: float) -> Claim:
    ours = float(_latency(data, "fcfs").mean() / _latency(data, "shortest").mean())
    return Claim(
        f"shortest-first-mean-{data.lower()}", f"{_PAPER}, {data}",
        "how many times lower the mean latency per output token is than under first come, first served", theirs, round(ours, 2),
        "times", 2.0, 5.0, _SET_UP, _WHY,
    )


def _p90() -> Claim:
    fcfs, shortest = (np.quantile(_latency("LMSYS", order), 0.9) for order in ("fcfs", "shortest"))
    return Claim(
        "shortest-first-p90-lmsys", f"{_PAPER}, LMSYS: 1.47 to 0.52 s a token, over the order of its baseline PO",
        "how many times lower the 90th percentile of latency per output token is", 2.8, round(float(fcfs / shortest), 2), "times",
        2.0, None, _SET_UP, f"theirs is over another predictor, ours over first come, first served; {_WHY}",
    )


def _longest_wait() -> Claim:
    fcfs, shortest = (float(metrics.queue_wait(served("ShareGPT", order, True)).max()) for order in ("fcfs", "shortest"))
    return Claim(
        "shortest-first-longest-wait",
        "Fu et al. (NeurIPS 2024): a guard against starvation cuts the longest wait up to 3.4 times",
        "longest wait without a guard, as a multiple of that under first come, first served", None, round(shortest / fcfs, 1),
        "times", 1.0, None,
        f"{STREAM:,} ShareGPT-like requests, Poisson {RATE:g}/s, just above what the server can take; otherwise as in the burst",
        f"{fcfs:.1f} s and {shortest:.1f} s; held only to being longer, as the paper compares with its guard, which is not built",
    )


CLAIMS: dict[str, Callable[[], Claim]] = {
    "shortest-first-mean-sharegpt": lambda: _mean("ShareGPT", round(1.15 / 0.56, 2)),
    "shortest-first-mean-lmsys": lambda: _mean("LMSYS", round(1.73 / 0.38, 2)),
    "shortest-first-p90-lmsys": _p90,
    "shortest-first-longest-wait": _longest_wait,
}
