"""What a Run means to its users and its owner: latencies, tokens, throughput; and, from sim/slots.py, where the time went.

All functions derive their answer from the columns and events of one Run with numpy; nothing is stored per token. Times come
out in seconds unless a name ends in _us or _ms. Where names collide in the field, the docstring says whose definition it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sim.run import FINISHED, LEFT, Floats, Ints, Run
from sim.slots import (
    BOUNDARY,
    BUDGET,
    DECODE,
    FILLING,
    HELD,
    LATE,
    MEMORY,
    NOTHING,
    PREFILL,
    ROLES,
    STALLED,
    Ledger,
    Segments,
    State,
    lanes,
    ledger,
    makespan,
    roles,
    slot_segments,
    state_at,
)
from sim.visits import Clock, last_rows, visits

__all__ = [  # the slots' part is read under this name too
    "BOUNDARY", "BUDGET", "DECODE", "FILLING", "HELD", "LATE", "MEMORY", "NOTHING", "PREFILL", "ROLES", "STALLED",
    "Ledger", "Segments", "State", "e2e", "frame", "goodput", "idle_step_share", "itl_quantiles", "lanes", "ledger", "makespan",
    "normalised_latency", "output_throughput", "queue_wait", "request_throughput", "roles", "slot_segments", "state_at",
    "summary", "token_times", "tpot", "ttft",
]


# ---- latencies, one value per request


def queue_wait(run: Run) -> Floats:
    """Arrival → start of the first step that works on the request, s. [n]; nan if it never started.

    Waits after a preemption are not in it: sim.lifecycle has them.
    """
    return (run.admitted_us - run.trace.arrival_us) / 1e6


def ttft(run: Run) -> Floats:
    """Time to first token: arrival → end of the step that finishes the prompt, s (vLLM bench: sent → first token). [n]

    nan if none came; a request whose client gave up later has one.
    """
    return (run.first_token_us - run.trace.arrival_us) / 1e6


def e2e(run: Run) -> Floats:
    """End-to-end latency: arrival → the request's own last token, s (vLLM bench: E2EL, seen by the client). [n]

    nan for a request that did not finish: cancelled, refused, or still running.
    """
    return (_finished_us(run) - run.trace.arrival_us) / 1e6


def tpot(run: Run) -> Floats:
    """Time per output token, a mean per request: (E2E − TTFT) / (output − 1), s (vLLM bench, DistServe, MLPerf). [n]

    nan where the output is one token: it has no gap; and for a request that did not finish. Not the ITL: pooled over
    tokens, long outputs weigh more.
    """
    gaps = _output(run) - 1
    return np.where(gaps > 0, (_finished_us(run) - run.first_token_us) / np.maximum(gaps, 1) / 1e6, np.nan)


def normalised_latency(run: Run) -> Floats:
    """E2E latency / output tokens, s per token. [n]; the vLLM paper (SOSP 2023) reports its mean, Orca its median."""
    return e2e(run) / _output(run)


def _finished_us(run: Run) -> Floats:
    return np.where(run.outcome == FINISHED, run.finished_us, np.nan)


def _output(run: Run) -> Ints:
    """Output tokens that a finished request has had: the trace's, cut at the policy's longest request. [n]"""
    longest = run.policy.longest
    return run.trace.output if longest is None else np.clip(longest - run.trace.prompt, 1, run.trace.output)


# ---- tokens


def token_times(run: Run, request: int) -> Floats:
    """When each output token of one request came, s. [output], or fewer if its client gave up or the run stopped."""
    d = _decodes(run)
    b = _bursts(d, d.request == request) if not _partial(d) else _bursts(d)
    mine = b.request == request
    return _laid_out(b.start[mine], b.count[mine], b.first[mine], b.growth[mine]) / 1e6


_MOST_STEPS = 1 << 21  # up to here every step's gap is looked at


def itl_quantiles(run: Run, q: Sequence[float] | Floats) -> Floats:
    """Inter-token latency: quantiles (0 … 1) over every gap between two tokens of a request, pooled over requests, s.

    vLLM bench's ITL, Sarathi-Serve's TBT. Exact: equal to np.quantile (linear) over all gaps one by one, but from one value
    with a weight per step. From the last token before a preemption to the next one after it is one gap; tokens delivered
    before a client gave up count. nan if no request has a second token.
    """
    d = _decodes(run)
    if not _partial(d) and d.count.sum() > _MOST_STEPS:
        return _itl_of_long_runs(_without_lost(d), np.asarray(q, np.float64))
    gaps, weights = _gaps_of_bursts(_bursts(d)) if _partial(d) else _weighted_gaps(_without_lost(d))
    keep = weights > 0
    gaps, weights = gaps[keep], weights[keep]
    wanted = np.asarray(q, np.float64)
    if not len(gaps):
        return np.full(wanted.shape, np.nan)
    order = np.argsort(gaps)
    gaps, upto = gaps[order], np.cumsum(weights[order])
    place = wanted * (upto[-1] - 1)  # numpy's "linear": between the two neighbours of this place, counted from 0
    below = np.floor(place)
    low = gaps[np.searchsorted(upto, below, side="right")]
    high = gaps[np.searchsorted(upto, np.minimum(below + 1, upto[-1] - 1), side="right")]
    return cast(Floats, (low + (high - low) * (place - below)) / 1e6)


def _itl_of_long_runs(d: _Decodes, q: Floats) -> Floats:
    """The same without a value per step, for runs of very many: ranks found by bisection over the rows' series.

    Equal to the other way up to the rounding of one value; memory and work grow with the rows, not with the steps.
    """
    grows = (d.growth > 0) & (d.count > 1)
    first, growth, more, decode = d.first[grows], d.growth[grows], d.count[grows] - 1, d.decode[grows]
    gaps, weights = _weighted_gaps(replace(d, count=np.where(grows, 1, d.count)))
    order = np.argsort(gaps)
    gaps, upto = gaps[order], np.concatenate([[0], np.cumsum(weights[order])])
    total = int(upto[-1]) + int((decode * more).sum())

    def up_to(value: float) -> int:
        """How many gaps are at most `value`."""
        of_rows = np.clip(np.floor((value - first) / growth), 0, more).astype(np.int64)
        return int(upto[np.searchsorted(gaps, value, side="right")]) + int((decode * of_rows).sum())

    def at(rank: float) -> float:
        low, high = 0.0, max(float(gaps.max(initial=0.0)), float((first + more * growth).max(initial=0.0))) + 1.0
        while (middle := (low + high) / 2) not in (low, high):
            low, high = (low, middle) if up_to(middle) > rank else (middle, high)
        return high

    place = q * (total - 1)
    below = np.floor(place)
    low, high = (np.array([at(rank) for rank in np.minimum(ranks, total - 1)]) for ranks in (below, below + 1))
    return cast(Floats, (low + (high - low) * (place - below)) / 1e6)


@dataclass(frozen=True)
class _Decodes:
    """The step rows that yield decode tokens, and the visits that have tokens to give, by request and time; times µs.

    In each of the `count` steps of a row `decode` requests get a token; the first takes `first`, each further one `growth` more.
    A visit has a token at `ready`, and then one in each step that serves it and starts before `until`.
    """

    start: Floats
    end: Floats
    first: Floats
    growth: Floats
    count: Ints
    decode: Ints
    request: Ints
    ready: Floats
    until: Floats  # inf: still running
    turn: Ints  # place of the visit in order of admission
    gave_up: Floats  # when the client gave up, else nan: the token of the step that ends then is lost


def _decodes(run: Run) -> _Decodes:
    clock, steps = Clock.of(run), run.steps
    v = visits(run, clock)
    rows, speaks = steps.decode > 0, ~np.isnan(v.ready)
    until = np.where(np.isnan(v.done), np.inf, v.done)
    gave_up = np.where(last_rows(v) & np.isin(run.outcome[v.request], LEFT), v.done, np.nan)
    turn = np.empty(len(v.request), np.int64)
    turn[np.lexsort((v.rank, v.entered))] = np.arange(len(turn))
    return _Decodes(clock.start[rows], clock.end[rows], steps.first_us[rows], steps.growth_us[rows], steps.count[rows],
                    steps.decode[rows], v.request[speaks], v.ready[speaks], until[speaks], turn[speaks], gave_up[speaks])


def _partial(d: _Decodes) -> bool:
    """Whether some step gives a token to only some of the requests that decode: its budget does not reach for all."""
    ready, until = np.sort(d.ready), np.sort(d.until)
    inside = np.searchsorted(ready, d.start, side="right") - np.searchsorted(until, d.start, side="right")
    return bool((inside != d.decode).any())


def _laid_out(start: Floats, count: Ints, first: Floats, growth: Floats) -> Floats:
    """The ends of all steps of the given rows, one after another, µs."""
    step = np.arange(1, int(count.sum()) + 1) - np.repeat(np.cumsum(count) - count, count)
    ends: Floats = np.repeat(start, count) + step * np.repeat(first, count) + np.repeat(growth, count) * (step * (step - 1) / 2)
    return ends


@dataclass(frozen=True)
class _Bursts:
    """Tokens of one request from the steps of one row, or the single token of a prompt; by request and time, µs."""

    request: Ints
    start: Floats
    count: Ints
    first: Floats
    growth: Floats


def _bursts(d: _Decodes, these: NDArray[np.bool_] | None = None) -> _Bursts:
    """All tokens, request by request (or those of some visits, where every step serves all): as many bursts as there are
    pairs of a row and a request that decodes in it."""
    chosen = np.arange(len(d.request)) if these is None else np.flatnonzero(these)
    begin, stop = np.searchsorted(d.start, d.ready[chosen]), np.searchsorted(d.start, d.until[chosen])
    many = np.maximum(stop - begin, 0)
    visit = np.repeat(chosen, many)
    row = np.arange(len(visit)) + np.repeat(begin - (np.cumsum(many) - many), many)
    if these is None:  # tokens are granted in order of admission, until the budget is spent
        order = np.lexsort((d.turn[visit], row))
        visit, row = visit[order], row[order]
        served = np.arange(len(row)) - np.searchsorted(row, row) < d.decode[row]
        visit, row = visit[served], row[served]
    count = d.count[row] - (d.end[row] == d.gave_up[visit])
    single = np.zeros(len(chosen))
    request = np.concatenate([d.request[chosen], d.request[visit]])
    start = np.concatenate([d.ready[chosen], d.start[row]])
    order = np.lexsort((start, request))  # stable: a prompt's token comes before the step that starts there
    return _Bursts(request[order], start[order], np.concatenate([np.ones_like(chosen), count])[order],
                   np.concatenate([single, d.first[row]])[order], np.concatenate([single, d.growth[row]])[order])


def _gaps_of_bursts(b: _Bursts) -> tuple[Floats, Ints]:
    """Every gap, as (value µs, how often)."""
    some = b.count > 0
    request, start, count, first, growth = b.request[some], b.start[some], b.count[some], b.first[some], b.growth[some]
    last = start + count * first + growth * (count * (count - 1) / 2)
    same = request[1:] == request[:-1]
    inner, weights = _inner_gaps(first, growth, count, np.ones_like(count))
    between = ((start + first)[1:] - last[:-1])[same]
    return np.concatenate([between, inner]), np.concatenate([np.ones(len(between), np.int64), weights])


def _inner_gaps(first: Floats, growth: Floats, count: Ints, weight: Ints) -> tuple[Floats, Ints]:
    """The gaps between two steps of the same row; of equal ones one value stands for all."""
    more, flat = count - 1, growth == 0
    times = np.where(flat, 0, more)
    step = np.arange(1, int(times.sum()) + 1) - np.repeat(np.cumsum(times) - times, times)
    series = np.repeat(first, times) + step * np.repeat(growth, times)
    return np.concatenate([first[flat], series]), np.concatenate([(weight * more)[flat], np.repeat(weight, times)])


def _without_lost(d: _Decodes) -> _Decodes:
    """The same where the last step of a client that gave up does not serve it: its row is split before that step."""
    quits = np.flatnonzero(d.ready < d.gave_up)
    row = np.minimum(np.searchsorted(d.end, d.gave_up[quits]), max(len(d.end) - 1, 0))
    if not len(d.end) or not len(quits):
        return d
    hit = d.end[row] == d.gave_up[quits]
    quits, row = quits[hit], row[hit]
    lost = np.bincount(row, minlength=len(d.end))
    steps = d.count - 1
    tail = d.start + steps * d.first + d.growth * (steps * (steps - 1) / 2)  # where the last step of each row starts
    until = d.until.copy()
    until[quits] = tail[row]
    part = np.repeat(np.arange(len(lost)), 1 + (lost > 0))
    second = np.append(False, part[1:] == part[:-1])[:len(part)]
    split = lost[part] > 0
    count = np.where(second, 1, np.where(split, steps[part], d.count[part]))
    decode = d.decode[part] - np.where(second, lost[part], 0)
    start = np.where(second, tail[part], d.start[part])
    end = np.where(split & ~second, tail[part], d.end[part])
    first = d.first[part] + np.where(second, steps[part] * d.growth[part], 0)
    keep = (count > 0) & (decode > 0)
    return replace(d, start=start[keep], end=end[keep], first=first[keep], growth=d.growth[part][keep], count=count[keep],
                   decode=decode[keep], until=until)


def _weighted_gaps(d: _Decodes) -> tuple[Floats, Ints]:
    """Every gap, as (value µs, how often), where each step serves all who decode.

    In the first step of a row, a request that decoded before has waited since the previous decode step ended; one that
    joins has waited since its first token (they differ where a prefill-only step came between). In the further steps of
    a row every gap is the step's duration. Across a preemption: from the last token before it to the one when caught up.
    """
    into = np.searchsorted(d.start, d.ready)
    goes_on = into < np.searchsorted(d.start, d.until)
    joining, entry = d.ready[goes_on], into[goes_on]
    first_end = d.start + d.first
    since = np.concatenate([d.start[:1], d.end[:-1]])  # nobody continues into the very first row: weight 0
    staying = d.decode - np.bincount(entry, minlength=len(d.start))
    last = d.ready.copy()
    last[goes_on] = d.end[np.searchsorted(d.start, d.until[goes_on]) - 1]
    same = d.request[1:] == d.request[:-1]
    across = (d.ready[1:] - last[:-1])[same]
    inner, weights = _inner_gaps(d.first, d.growth, d.count, d.decode)
    gaps = np.concatenate([first_end - since, first_end[entry] - joining, across, inner])
    return gaps, np.concatenate([staying, np.ones(len(entry) + len(across), np.int64), weights])


# ---- the whole run


def output_throughput(run: Run) -> float:
    """Output tokens of finished requests per second of makespan."""
    return _per_second(run, float(_output(run)[run.outcome == FINISHED].sum()))


def request_throughput(run: Run) -> float:
    """Finished requests per second of makespan."""
    return _per_second(run, float((run.outcome == FINISHED).sum()))


def goodput(run: Run, ttft_limit: float, tpot_limit: float) -> float:
    """Finished requests per second of makespan that keep both limits (s), as vLLM's bench counts them.

    A request of one output token has no TPOT and keeps that limit. Not DistServe's goodput, which is the highest request
    rate at which, say, 90 % keep them.
    """
    good = (run.outcome == FINISHED) & (ttft(run) <= ttft_limit) & (np.nan_to_num(tpot(run)) <= tpot_limit)
    return _per_second(run, float(good.sum()))


def idle_step_share(run: Run) -> float:
    """Share of slot-*steps* in which a slot computes nothing, each step counted once however long it takes (0 … 1).

    The arithmetic of Orca (OSDI 2022, section 2) and of most drawings of static batching. The ledger's `idle_share` is of
    slot-*time*: prompt steps take longer than decode steps, and time between steps counts.
    """
    steps = run.steps
    total = run.policy.slots * int(steps.count.sum())
    return 1 - int((steps.count * (steps.decode + steps.prefilling)).sum()) / total if total else 0.0


def summary(run: Run) -> dict[str, float]:
    """The figures a comparison shows, s, tokens/s, requests/s; nan where no request has the quantity."""
    out = {"makespan": makespan(run), "tokens_per_s": output_throughput(run), "requests_per_s": request_throughput(run)}
    for name, values in {"queue_wait": queue_wait(run), "ttft": ttft(run)}.items():
        out[f"{name}_p50"], out[f"{name}_p99"] = _quantiles(values, (0.5, 0.99))
    out["itl_p50"], out["itl_p99"], out["itl_max"] = (float(x) for x in itl_quantiles(run, (0.5, 0.99, 1.0)))
    for name, values in {"tpot": tpot(run), "e2e": e2e(run)}.items():
        out[f"{name}_p50"], out[f"{name}_p99"] = _quantiles(values, (0.5, 0.99))
    out["idle_share"] = ledger(run).idle_share
    return out


def frame(run: Run) -> pd.DataFrame:
    """One row per request in trace order, times in ms; ready for a table or a CSV."""
    ms = {"arrival_ms": run.trace.arrival_us, "admitted_ms": run.admitted_us, "first_token_ms": run.first_token_us,
          "finished_ms": run.finished_us, "released_ms": run.released_us}
    seconds = {"queue_wait_ms": queue_wait(run), "ttft_ms": ttft(run), "tpot_ms": tpot(run), "e2e_ms": e2e(run),
               "normalised_latency_ms": normalised_latency(run)}
    return pd.DataFrame({"request": np.arange(len(run)), "prompt": run.trace.prompt, "output": run.trace.output}
                        | {name: us / 1e3 for name, us in ms.items()} | {"slot": lanes(run)}
                        | {name: s * 1e3 for name, s in seconds.items()})


def _per_second(run: Run, amount: float) -> float:
    span = makespan(run)
    return amount / span if span > 0 else 0.0


def _quantiles(values: Floats, q: tuple[float, ...]) -> list[float]:
    values = values[~np.isnan(values)]
    return [float(x) for x in np.quantile(values, q)] if len(values) else [float("nan")] * len(q)


