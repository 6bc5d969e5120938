"""Visits: each time a request queued and then held a slot, as columns, from the columns and events of a Run."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from sim.orders import ORDERS, PER_TOKEN
from sim.run import LEFT, REFUSED, Floats, Ints, Run

# Clocks with fractions of a µs may name one instant in two ways; what is nearer than 1e-9 s is one instant.
_SAME_US = 1e-3


@dataclass(frozen=True)
class Visits:
    """One row for each time a request joins the queue (at its arrival, and at each preemption), sorted by request and time.

    request  int64    who; the refused have no row
    queued   float64  arrival, or when it was preempted, µs
    entered  float64  start of the first step that works on it from then on, µs; nan: it never came to that
    ready    float64  its first token, or the next one after a preemption, µs; nan: taken away, given up or stopped before
    done     float64  its last token, its preemption, or when its client gave up, µs; nan: not yet
    left     float64  when its slot was free again, µs: `done`, but under static batching the end of the batch
    gone     float64  when the client gave up while it waited, µs; else nan
    kept     int64    tokens that it had when it entered: found in the prefix cache, or swapped in
    known    int64    tokens to compute before `ready`: the prompt, and after a preemption the reply so far
    rank     int64    place in the queue order among all rows: of those who wait at one instant the smallest goes first.
                      Among those who run, (entered, rank) is the order in which tokens are granted
    """

    request: Ints
    queued: Floats
    entered: Floats
    ready: Floats
    done: Floats
    left: Floats
    gone: Floats
    kept: Ints
    known: Ints
    rank: Ints

    @property
    def out(self) -> Floats:
        """When each row's wait ended, by entering or by giving up, µs; nan: it has not."""
        return np.fmin(self.entered, self.gone)


@dataclass(frozen=True)
class Clock:
    """Start and end of the step rows, µs, moved by at most 1e-9 s so that one instant has one value."""

    start: Floats
    end: Floats

    @classmethod
    def of(cls, run: Run) -> Clock:
        """The rows of a run."""
        start, end = run.steps.start_us, run.steps.end_us
        if len(start):
            end[:-1] = np.where(np.abs(end[:-1] - start[1:]) <= _SAME_US, start[1:], end[:-1])
        return cls(start, end)

    def snap(self, *columns: Floats) -> list[Floats]:
        """The same times, on the rows' clock readings where they mean these."""
        if not len(self.start):
            return list(columns)
        marks = np.union1d(self.start, self.end)
        marks = np.concatenate([marks, marks[-1:]])

        def snap(times: Floats) -> Floats:
            above = np.clip(np.searchsorted(marks, times), 1, len(marks) - 1)
            near = np.where(times - marks[above - 1] < marks[above] - times, marks[above - 1], marks[above])
            return np.where(np.abs(near - times) <= _SAME_US, near, times)

        return [snap(times) for times in columns]


def visits(run: Run, clock: Clock) -> Visits:
    """Who queued and ran when. Linear in requests and events."""
    lost, back, kept, caught = _from_events(run)
    present = np.flatnonzero(run.outcome != REFUSED)
    who = np.array([e[0] for e in lost], np.int64)
    request = np.concatenate([present, who])
    queued = np.concatenate([run.trace.arrival_us[present], np.array([e[1] for e in lost], np.float64)])
    entered = np.concatenate([run.admitted_us[present], np.array(back, np.float64)])
    kept_in = np.concatenate([run.cached[present], np.array(kept, np.int64)])
    ready = np.concatenate([np.full(len(present), np.nan), np.array(caught, np.float64)])
    known = np.concatenate([run.trace.prompt[present], np.array([e[2] for e in lost], np.int64)])
    rank = np.empty(len(request), np.int64)
    rank[_queue_order(run, request, queued, known, len(present))] = np.arange(len(request))

    order = np.argsort(request, kind="stable")  # the later rows of a request come in order of time
    request, queued, entered, ready = request[order], queued[order], entered[order], ready[order]
    kept_in, known, rank = kept_in[order], known[order], rank[order]
    last = np.append(request[1:] != request[:-1], True)[:len(request)]
    again = np.append(queued[1:], np.nan)[:len(request)]  # of the next row, if it is the same request's
    done = np.where(last, run.finished_us[request], again)
    left = np.where(last, run.released_us[request], again)
    ended = last & ~np.isnan(entered)
    queued, entered, ready, done, left, first = clock.snap(queued, entered, ready, done, left, run.first_token_us[request])
    here = np.isnan(ready) & ((run.preemptions[request] == 0) | ((entered < first) & ~(first > done)))
    ready = np.where(here, first, ready)
    cancelled = np.isin(run.outcome[request], LEFT)
    ready[ended & cancelled & (ready == done)] = np.nan  # the token of the step in which the client gave up is lost
    gone = np.where(last & np.isnan(entered) & cancelled, done, np.nan)
    for column in (ready, done, left):
        column[np.isnan(entered)] = np.nan
    return Visits(request, queued, entered, ready, done, left, gone, kept_in, known, rank)


def last_rows(v: Visits) -> NDArray[np.bool_]:
    """Whether each row is the last one of its request."""
    return np.append(v.request[1:] != v.request[:-1], True)[:len(v.request)]


def _from_events(run: Run) -> tuple[list[tuple[int, float, int]], list[float], list[int], list[float]]:
    """For each preemption: (request, µs, tokens known then), when it was back, what it had kept, when it had caught up."""
    lost, back, kept, caught = list[tuple[int, float, int]](), list[float](), list[int](), list[float]()
    latest, known = dict[int, int](), dict[int, int]()
    if not run.preemptions.any():
        return lost, back, kept, caught
    prompt = run.trace.prompt
    for event in run.events:
        r = event.request
        if event.kind == "preempted":
            # Half-done prompts know as much as before; a decoding request one token more than it had computed.
            known[r] = max(known.get(r, int(prompt[r])), event.tokens + 1 if event.tokens >= prompt[r] else 0)
            latest[r] = len(lost)
            lost.append((r, event.at_us, known[r]))
            back.append(np.nan)
            kept.append(0)
            caught.append(np.nan)
        elif r in latest and event.kind == "admitted":
            back[latest[r]], kept[latest[r]] = event.at_us, event.tokens
        elif r in latest and event.kind == "caught up":
            caught[latest[r]] = event.at_us
    return lost, back, kept, caught


def _queue_order(run: Run, request: Ints, queued: Floats, known: Ints, firsts: int) -> Ints:
    """Rows in the order of the queue; the first `firsts` of them are arrivals, the rest preemptions in order of time."""
    if run.policy.order == "fcfs":  # the preempted go in front, the newest of them foremost
        return np.concatenate([np.arange(firsts, len(request))[::-1], np.arange(firsts)])
    reply = known - run.trace.prompt[request]
    key = ORDERS[run.policy.order](run.trace, run.policy, None)[request] + PER_TOKEN.get(run.policy.order, 0.0) * reply
    return np.lexsort((request, run.trace.arrival_us[request], key))


def noticed_us(run: Run, v: Visits, clock: Clock) -> Floats:
    """When the server first sees each row of the visits in its queue: at once, or at the end of the step that runs then."""
    queued, again = v.queued, np.append(False, v.request[1:] == v.request[:-1])[:len(v.request)]
    if not len(clock.start):
        return queued
    row = np.searchsorted(clock.start, queued, side="right") - 1
    inside = (row >= 0) & (queued < clock.end[row]) & ~again  # preemptions happen between two steps
    first, growth = run.steps.first_us[row], run.steps.growth_us[row]
    since = np.where(inside, queued - clock.start[row], 0.0)

    def after(i: Floats) -> Floats:
        return i * first + growth * (i * (i - 1) / 2)

    # Whole steps before the arrival: the root of after(i) = since. At a step's end it is whole, and exact on whole-µs clocks.
    b = first - growth / 2
    i = np.floor(2 * since / np.maximum(b + np.sqrt(np.maximum(b * b + 2 * growth * since, 0)), 1e-300))
    end = clock.start[row] + np.where(after(i) == since, since, after(i + 1))
    # Other clocks round: it is never seen before it comes, nor let in before it is seen.
    return np.fmin(np.where(inside, np.maximum(end, queued), queued), v.out)


def heads(v: Visits, seen: Floats, times: Floats) -> Ints:
    """The row of the visits that is first in the queue at each of `times` (ascending, µs); −1: nobody waits. O(n log n)."""
    head, waiting, out = np.full(len(times), -1, np.int64), list[tuple[int, int]](), v.out.tolist()
    rank, joins = v.rank.tolist(), np.argsort(seen, kind="stable").tolist()
    at, next_join = seen.tolist(), 0
    for k, t in enumerate(times.tolist()):
        while next_join < len(joins) and at[joins[next_join]] <= t:
            heappush(waiting, (rank[joins[next_join]], joins[next_join]))
            next_join += 1
        while waiting and out[waiting[0][1]] <= t:
            heappop(waiting)
        if waiting:
            head[k] = waiting[0][1]
    return head
