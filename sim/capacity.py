"""Capacity: the largest rate of requests at which a server keeps its limits, by Sarathi-Serve's rule."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from sim import workloads
from sim.engine import simulate
from sim.metrics import itl_quantiles, queue_wait, ttft
from sim.policy import Policy
from sim.service import StepTime
from sim.trace import Trace

LENGTHS = Path(__file__).resolve().parents[1] / "assets" / "sharegpt4_lengths.csv"
"""Quantiles of the prompt and reply lengths of Sarathi-Serve's chat data set (openchat_sharegpt4)."""
LONGEST = 8192
"""The data set leaves out what is longer, prompt and reply together, tokens."""


@dataclass(frozen=True)
class Rule:
    """The limits of Sarathi-Serve (OSDI 2024, section 5 and its artifact's capacity_search.py), both kept.

    tbt_s    P99 of the time between tokens, all tokens pooled, at most, s
    delay_s  median scheduling delay, from arrival to the first step that works on a request, at most, s
    """

    tbt_s: float
    delay_s: float = 2.0

    def __post_init__(self) -> None:
        """Raise ValueError that names the limit."""
        for name in ("tbt_s", "delay_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be more than 0 s, not {getattr(self, name)}")


@dataclass(frozen=True)
class Point:
    """One rate that was tried: requests/s, what came of it, s, and whether both limits hold."""

    rate: float
    tbt_p99_s: float
    delay_p50_s: float
    ttft_p50_s: float
    holds: bool


@dataclass(frozen=True)
class Capacity:
    """What a search found.

    rate      largest rate tried at which both limits hold, requests/s; 0: none
    points    every rate tried, ascending
    requests  simulated in all;  seconds  that took
    done      False: still under way
    """

    rate: float
    points: tuple[Point, ...]
    requests: int
    seconds: float
    done: bool = True

    @property
    def per_second(self) -> float:
        """Simulated requests per second."""
        return self.requests / self.seconds if self.seconds > 0 else 0.0


def try_rate(trace: Trace, rate: float, service: StepTime, policy: Policy, rule: Rule) -> Point:
    """Serve the trace and hold it to the limits. Requests that are refused or stranded break them."""
    run = simulate(trace, service, policy)
    delay, tbt = queue_wait(run), float(itl_quantiles(run, (0.99,))[0])
    served = not np.isnan(run.finished_us).any()
    median = float(np.median(delay)) if served else float("inf")
    first = float(np.median(ttft(run))) if served else float("inf")
    return Point(rate, tbt, median, first, bool(served and median <= rule.delay_s and not tbt > rule.tbt_s))


def steps(trace_at: Callable[[float], Trace], service: StepTime, policy: Policy, rule: Rule, *, start: float = 1.0,
          granularity: float = 0.025, lowest: float = 1 / 64, highest: float = 1024.0) -> Iterator[Capacity]:
    """Search, one rate after another; what is known is given after each. The last one has `done`.

    Doubling or halving from `start` until the limit lies between two rates, then the middle of them (on a logarithmic
    scale) until they are `granularity` apart. trace_at(rate): the requests at that rate, the same ones each time, closer
    together: then the search sees the policy and not the luck of another draw.
    """
    began, points, requests = time.perf_counter(), list[Point](), 0
    low, high, rate = 0.0, float("inf"), start

    def known(done: bool) -> Capacity:
        return Capacity(low, tuple(sorted(points, key=lambda p: p.rate)), requests, time.perf_counter() - began, done)

    while True:
        trace = trace_at(rate)
        points.append(try_rate(trace, rate, service, policy, rule))
        requests += len(trace)
        if points[-1].holds:
            low = max(low, rate)
        else:
            high = min(high, rate)
        over = low >= highest or high <= lowest or (low > 0 and high / low <= 1 + granularity)
        yield known(over)
        if over:
            return
        rate = low * 2 if high == float("inf") else high / 2 if low == 0 else (low * high) ** 0.5


def search(trace_at: Callable[[float], Trace], service: StepTime, policy: Policy, rule: Rule, *, start: float = 1.0,
           granularity: float = 0.025, report: Callable[[Capacity], None] | None = None) -> Capacity:
    """The same to its end; `report` is called after each rate."""
    for found in steps(trace_at, service, policy, rule, start=start, granularity=granularity):
        if report:
            report(found)
    return found


# --- the requests of the paper -----------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _quantiles() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = np.loadtxt(LENGTHS, delimiter=",", skiprows=4)
    return rows[:, 0], rows[:, 1], rows[:, 2]


@lru_cache(maxsize=8)
def chat(requests: int, seed: int) -> Callable[[float], Trace]:
    """Requests of Sarathi-Serve's chat lengths with Poisson arrivals, as a function of the rate: the same ones, only closer
    together. Prompt and reply are drawn apart: in the data set they are nearly independent (Spearman's rho 0.05).
    """
    p, prompt, output = _quantiles()
    prompts = workloads.from_quantiles(requests, p, prompt, seed, "prompt")
    outputs = workloads.from_quantiles(requests, p, output, seed)
    outputs = np.minimum(outputs, LONGEST - prompts).clip(1)
    unit = workloads.poisson(requests, 1.0, seed)

    def at(rate: float) -> Trace:
        return workloads.workload(unit / rate, prompts, outputs, f"chat, {rate:g}/s")

    return at
