"""Static batching without stepping: what a batch costs in closed form, all batches of many configurations at once.

The twin of the engine's static policy: the same Run, request for request and row for row (tests/sim/test_static.py).

A batch is one step that holds all its prompts, then decode steps until the member with most output ends. Between two
ends the decode steps form an arithmetic series. If batches are never cut short by the timeout, who is in which batch is
known beforehand; otherwise one pass in plain Python finds it, at a cost per request, not per step. When the batches
start then follows from Lindley's recursion, start = max(ready, end of the batch before), as one scan.

Sums run within a batch or along one server only, never over the whole table at once, so that fractions of a µs keep
their digits; whole-µs clocks are exact.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.policy import Policy
from sim.run import FINISHED, Floats, Ints, Run, Steps
from sim.service import StepTime
from sim.trace import Trace

_TABLE = 1 << 17  # base times kept in a list, by tokens; larger prompt steps are computed one by one


def simulate_static(trace: Trace, service: StepTime, policy: Policy) -> Run:
    """The Run of `trace` under a static policy, as sim.engine.simulate gives it. ValueError for any other policy."""
    if policy.batching != "static":
        raise ValueError(f"policy {policy.name!r}: simulate_static serves batching 'static', not {policy.batching!r}")
    _refuse_cancel(trace)
    if policy.memory is not None:
        raise ValueError(f"policy {policy.name!r}: simulate_static has memory without limit; sim.engine.simulate takes any")
    b = _serve([trace], service, [policy.slots], [policy.fill_timeout])
    finished, none = b.start[b.of] + b.finish_after, np.zeros(len(trace), np.int64)
    return Run(trace, service, policy, b.start[b.of], (b.start + b.prompt_us)[b.of], finished,
               (b.start + b.length_us)[b.of], np.full(len(trace), FINISHED, np.int8), _steps(b, service), none, none, none)


@dataclass(frozen=True)
class StaticSweep:
    """One entry per configuration; times in s, slot-time in slot-seconds.

    seconds: role → slot-seconds [configurations], the roles of sim.metrics.Ledger that static batching has; they add up to
    `total` = slots × makespan. idle_share: all but prefill and decode.
    """

    slots: Ints
    fill_timeout: Floats
    makespan: Floats
    total: Floats
    seconds: dict[str, Floats]
    ttft_p50: Floats
    ttft_p99: Floats
    e2e_p50: Floats
    e2e_p99: Floats

    @property
    def idle_share(self) -> Floats:
        """Share of slot-time that is neither prefill nor decode, 0 … 1."""
        return 1 - (self.seconds["prefill"] + self.seconds["decode"]) / self.total


def sweep_static(
    traces: Trace | Sequence[Trace], service: StepTime, slots: ArrayLike, fill_timeout: ArrayLike = np.inf
) -> StaticSweep:
    """Serve many configurations at once: one trace or one each, batch sizes and timeouts (s) broadcast against each other.

    E.g. 20 seeds × 1 batch size, or 1 trace × 32 batch sizes. ValueError for a size below 1 or a negative timeout.
    """
    given = [traces] if isinstance(traces, Trace) else list(traces)
    size, wait = np.asarray(slots, np.int64), np.asarray(fill_timeout, np.float64)
    size, wait, which = np.broadcast_arrays(size, wait, np.arange(len(given)))
    if (size < 1).any() or not (wait >= 0).all():
        raise ValueError("a batch size must be at least 1 and a fill timeout 0 s or more")
    for trace in given:
        _refuse_cancel(trace)
    served = [given[i] for i in which]
    b = _serve(served, service, size.tolist(), wait.tolist())
    return _measure(b, np.array(size), np.array(wait))


# ---- who is in which batch


@dataclass(frozen=True)
class _Batches:
    """All batches of all configurations, one server after the other. [R] requests, [B] batches, times in µs.

    Requests are in trace order; `by_end` [R] lists them batch by batch in the order in which they end, and the stretch
    columns [R] follow that order: decode steps between the end before and this one, `running` members in each.
    """

    arrival: Floats  # [R]
    of: Ints  # [R] its batch
    head: Ints  # [B] its first request
    size: Ints  # [B] members
    seats: Ints  # [B] slots of its server
    server: Ints  # [B]
    prompt_us: Floats  # [B] how long the prompt step takes
    prompt_tokens: Ints  # [B]
    length_us: Floats  # [B] start → end of the batch
    start: Floats  # [B]
    finish_after: Floats  # [R] start of the batch → own last token
    by_end: Ints  # [R]
    stretch_count: Ints  # [R]
    stretch_first: Floats  # [R]
    running: Ints  # [R]
    stretch_after: Floats  # [R] start of the batch → start of the stretch


def _serve(traces: list[Trace], service: StepTime, slots: list[int], timeouts: list[float]) -> _Batches:
    """Form the batches, cost them, and let each server work through its own."""
    lengths = [len(t) for t in traces]
    first = np.cumsum([0, *lengths])
    arrival = np.concatenate([t.arrival_us for t in traces])
    prompt, output = np.concatenate([t.prompt for t in traces]), np.concatenate([t.output for t in traces])
    costs = _Costs(service, max(slots) * int(prompt.max()))
    heads = [_heads(t, s, w, costs) for t, s, w in zip(traces, slots, timeouts, strict=True)]
    server = np.repeat(np.arange(len(traces)), [len(h) for h in heads])
    head = np.concatenate(heads) + first[server]
    size = np.diff(np.append(head, len(arrival)))
    seats = np.array(slots)[server]
    of = np.repeat(np.arange(len(head)), size)
    place = np.arange(len(arrival)) - head[of]

    prompt_tokens = np.add.reduceat(prompt, head)
    attention = np.add.reduceat(prompt * (prompt + 1.0) / 2, head)
    prompt_us = service.base_us(prompt_tokens) + service.attention_us * attention + service.request_us * size

    by_end = np.lexsort((output, of))
    ends, asked = output[by_end], prompt[by_end]
    began = np.where(place == 0, 1, np.roll(ends, 1))  # the number of the stretch's first decode step
    count = ends - began
    running = size[of] - place
    upto = np.cumsum(asked)
    context = (upto[head] - asked[head] + prompt_tokens)[of] - (upto - asked) + began * running
    one = service.base_us(np.arange(1, int(size.max()) + 1))  # by members in a decode step
    stretch_first = one[running - 1] + service.context_us * context + service.request_us * running
    took = count * stretch_first + service.context_us * running * (count * (count - 1) / 2)
    after = prompt_us[of] + _sums(took, place)
    finish_after = np.empty_like(after)
    finish_after[by_end] = after
    length_us = after[head + size - 1]

    filled = arrival[np.minimum(head + seats, first[server + 1]) - 1]  # or the trace ends
    ready = np.minimum(filled, arrival[head] + 1e6 * np.array(timeouts)[server])
    start = _starts(ready, length_us, np.arange(len(head)) - np.searchsorted(server, server))
    before = np.where(place == 0, prompt_us[of], np.roll(after, 1))
    return _Batches(arrival, of, head, size, seats, server, prompt_us, prompt_tokens, length_us, start, finish_after, by_end,
                    count, stretch_first, running, before)


def _heads(trace: Trace, slots: int, timeout: float, costs: _Costs) -> Ints:
    """The first request of every batch of one server. [batches]

    A batch that waits until it is full always has `slots` members, and one of one slot is full at once. Else whom a batch
    finds waiting depends on how long the one before took, so they are taken in turn, in plain Python.
    """
    n = len(trace)
    if slots == 1 or timeout == np.inf:
        return np.arange(0, n, slots)
    arrival, prompt, output = trace.arrival_us.tolist(), trace.prompt.tolist(), trace.output.tolist()
    heads, head, now = [], 0, 0.0
    while head < n:
        heads.append(head)
        most = min(head + slots, n)
        start = max(now, min(arrival[most - 1], arrival[head] + 1e6 * timeout))
        end = bisect_right(arrival, start, head, most)
        now = start + costs.batch_us(prompt[head:end], output[head:end])
        head = end
    return np.array(heads)


class _Costs:
    """What one batch costs, µs, in plain numbers: for batches that are costed one at a time."""

    def __init__(self, service: StepTime, most_tokens: int) -> None:
        self.service, self.most_tokens = service, most_tokens
        self.context_us, self.attention_us, self.request_us = service.context_us, service.attention_us, service.request_us

    @cached_property
    def base(self) -> list[float]:
        """By tokens in the step; made when the first batch asks."""
        return [0.0, *self.service.base_us(np.arange(1, min(self.most_tokens, _TABLE) + 1)).tolist()]

    def base_us(self, tokens: int) -> float:
        return self.base[tokens] if tokens < len(self.base) else float(self.service.base_us(np.array([tokens]))[0])

    def batch_us(self, prompt: list[int], output: list[int]) -> float:
        """The prompt step, then a series of decode steps up to each end."""
        running, context, step = len(prompt), sum(prompt), 1  # `step` counts decode steps from 1
        took = self.base_us(context) + self.request_us * running
        if self.attention_us:
            took += self.attention_us * sum([p * (p + 1) // 2 for p in prompt])
        for o, p in sorted(zip(output, prompt, strict=True)):
            if o > step:
                count = o - step
                first = self.base[running] + self.context_us * (context + step * running) + self.request_us * running
                took += count * first + self.context_us * running * (count * (count - 1) // 2)
                step = o
            context -= p
            running -= 1
        return took


# ---- scans within a batch, and along a server


def _sums(values: Floats, place: Ints) -> Floats:
    """Running sums within groups; place: 0, 1, … within each group. [R] Doubles the reach in every pass."""
    out, reach = values.copy(), 1
    while reach <= place.max():
        out[reach:] += np.where(place[reach:] >= reach, out[:-reach], 0.0)
        reach *= 2
    return out


def _starts(ready: Floats, length: Floats, place: Ints) -> Floats:
    """start = max(ready, end of the batch before) along each server; place: 0, 1, … within each server. [B]

    A batch turns the time F at which the server is free into max(F + length, ready + length). Two such steps in a row
    are one of the same form, so a scan that doubles its reach in every pass does them all (Lindley's recursion).
    """
    total, end, reach = length.copy(), ready + length, 1
    while reach <= place.max():
        joins = place[reach:] >= reach
        end[reach:] = np.maximum(end[reach:], np.where(joins, end[:-reach] + total[reach:], -np.inf))
        total[reach:] += np.where(joins, total[:-reach], 0.0)
        reach *= 2
    return np.where(place == 0, ready, np.maximum(ready, np.roll(end, 1)))


# ---- what comes out


def _steps(b: _Batches, service: StepTime) -> Steps:
    """One row for each prompt step and one for each stretch between two ends, in time order."""
    members, batches = len(b.of), len(b.head)
    stretch, prompts = np.arange(members) + b.of + 1, b.head + np.arange(batches)

    def column(of_prompts: ArrayLike, of_stretches: ArrayLike, kind: type) -> NDArray[Any]:
        out: NDArray[Any] = np.zeros(members + batches, kind)
        out[prompts], out[stretch] = of_prompts, of_stretches
        return out

    count = column(1, b.stretch_count, np.int64)
    growth = np.where(b.stretch_count > 1, service.context_us * b.running, 0.0)
    rows = Steps(column(b.start, b.start[b.of] + b.stretch_after, np.float64), count,
                 column(b.prompt_us, b.stretch_first, np.float64), column(0, growth, np.float64),
                 column(0, b.running, np.int64), column(b.size, 0, np.int64), column(b.prompt_tokens, 0, np.int64),
                 column(0, 0, np.int64))
    real = count > 0  # two members that end together leave an empty stretch
    return Steps(*(getattr(rows, f.name)[real] for f in fields(Steps)))


def _measure(b: _Batches, slots: Ints, timeout: Floats) -> StaticSweep:
    """Ledger, makespan and latencies of every server. At most `slots` requests wait for a free slot: those of the next batch."""
    opens = np.searchsorted(b.server[b.of], np.arange(len(slots)))  # each server's first request
    end = b.start + b.length_us
    arrival, place = b.arrival, np.arange(len(b.of)) - b.head[b.of]
    first = np.append(True, b.server[1:] != b.server[:-1])  # the server's first batch
    free_since = np.where(first, 0.0, np.roll(end, 1))[b.of]
    left_empty = np.where(first, 0, np.roll(b.seats - b.size, 1))[b.of]
    slot_us = {
        "prefill": b.prompt_us[b.of],
        "decode": b.finish_after - b.prompt_us[b.of],
        "held": b.length_us[b.of] - b.finish_after,
        "filling": b.start[b.of] - np.maximum(arrival, free_since),
        "late": np.where(place < left_empty, np.maximum(free_since - arrival, 0.0), 0.0),
    }
    seconds = {role: np.add.reduceat(us, opens) / 1e6 for role, us in slot_us.items()}
    makespan = (end[np.append(first[1:], True)] - arrival[opens]) / 1e6
    total = slots * makespan
    seconds["nothing"] = total - sum(seconds.values())
    ttft = ((b.start + b.prompt_us)[b.of] - arrival) / 1e6
    e2e = (b.start[b.of] + b.finish_after - arrival) / 1e6
    cuts = list(pairwise([*opens.tolist(), len(arrival)]))
    ttft_p50, ttft_p99 = np.array([np.quantile(ttft[i:j], (0.5, 0.99)) for i, j in cuts]).T
    e2e_p50, e2e_p99 = np.array([np.quantile(e2e[i:j], (0.5, 0.99)) for i, j in cuts]).T
    return StaticSweep(slots, timeout, makespan, total, seconds, ttft_p50, ttft_p99, e2e_p50, e2e_p99)


def _refuse_cancel(trace: Trace) -> None:
    if trace.cancel is not None and np.isfinite(trace.cancel).any():
        row = int(np.flatnonzero(np.isfinite(trace.cancel))[0])
        raise ValueError(f"row {row} is cancelled, which static batching does not model: leave out the cancel column")
