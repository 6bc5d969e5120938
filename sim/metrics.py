"""What a Run means to its users and its owner: latencies, throughput, and where every slot-second went.

All functions derive their answer from the columns of one Run with numpy; nothing is stored per token. Times come out in
seconds unless a name ends in _us or _ms. Where names collide in the field, the docstring says whose definition it is.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sim.run import FINISHED, Floats, Ints, Run

# What a slot can be doing at an instant, in the order of every table and legend.
ROLES = ("prefill", "decode", "stalled", "budget", "held", "filling", "late", "boundary", "nothing")
PREFILL, DECODE, STALLED, BUDGET, HELD, FILLING, LATE, BOUNDARY, NOTHING = range(len(ROLES))

# Clocks with fractions of a µs may name one instant in two ways; what is nearer than 1e-9 s is one instant.
_SAME_US = 1e-3
# Cells (instants × slots) looked at in one go, so that long runs with many slots stay within a few dozen MB.
_CELLS = 1 << 20


# ---- latencies, one value per request


def queue_wait(run: Run) -> Floats:
    """Arrival → start of the first step that works on the request, s. [n]; nan if it never started."""
    return (run.admitted_us - run.trace.arrival_us) / 1e6


def ttft(run: Run) -> Floats:
    """Time to first token: arrival → end of the step that finishes the prompt, s (vLLM bench: sent → first token). [n]"""
    return (run.first_token_us - run.trace.arrival_us) / 1e6


def e2e(run: Run) -> Floats:
    """End-to-end latency: arrival → the request's own last token, s (vLLM bench: E2EL, seen by the client). [n]"""
    return (run.finished_us - run.trace.arrival_us) / 1e6


def tpot(run: Run) -> Floats:
    """Time per output token, a mean per request: (E2E − TTFT) / (output − 1), s (vLLM bench, DistServe, MLPerf). [n]

    nan where the output is one token: it has no gap. Not the ITL: pooled over tokens, long outputs weigh more.
    """
    gaps = run.trace.output - 1
    return np.where(gaps > 0, (run.finished_us - run.first_token_us) / np.maximum(gaps, 1) / 1e6, np.nan)


def normalised_latency(run: Run) -> Floats:
    """E2E latency / output tokens, s per token. [n]; the vLLM paper (SOSP 2023) reports its mean, Orca its median."""
    return e2e(run) / run.trace.output


# ---- tokens


def token_times(run: Run, request: int) -> Floats:
    """When each output token of one request came, s; [output]. ValueError as for itl_quantiles."""
    rows = _decode_rows(run)
    mine = (rows.start >= rows.first_token[request]) & (rows.start < rows.finished[request])
    count = rows.count[mine]
    step = np.arange(1, int(count.sum()) + 1) - np.repeat(np.cumsum(count) - count, count)
    ends = (np.repeat(rows.start[mine], count) + step * np.repeat(rows.first[mine], count)
            + np.repeat(rows.growth[mine], count) * (step * (step - 1) / 2))
    return np.concatenate([rows.first_token[request:request + 1], ends]) / 1e6


def itl_quantiles(run: Run, q: Sequence[float] | Floats) -> Floats:
    """Inter-token latency: quantiles (0 … 1) over every gap between two tokens of a request, pooled over requests, s.

    vLLM bench's ITL, Sarathi-Serve's TBT. Exact: equal to np.quantile (linear) over all Σ(output − 1) gaps, but from one
    value with a weight per step. nan if no request has a second token.
    ValueError if a step left out some of the requests that decode (none of our policies does): whose gap grew is not in the rows.
    """
    gaps, weights = _weighted_gaps(run)
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


@dataclass(frozen=True)
class _DecodeRows:
    """The step rows that yield decode tokens, and the instants of the requests on the same clock readings, µs."""

    start: Floats
    end: Floats
    first: Floats
    growth: Floats
    count: Ints
    decode: Ints
    first_token: Floats
    finished: Floats


def _decode_rows(run: Run) -> _DecodeRows:
    """Rows in which *every* request in its decode phase gets a token; ValueError if there are other ones."""
    clock = _Clock.of(run)
    rows = run.steps.decode > 0
    start, decode = clock.start[rows], run.steps.decode[rows]
    in_phase = (np.searchsorted(np.sort(clock.first_token), start, side="right")
                - np.searchsorted(np.sort(clock.finished), start, side="right"))
    if (in_phase != decode).any():
        raise ValueError(f"policy {run.policy.name!r}: some steps give a token to only some of the requests that decode; "
                         "which ones is not in the rows")
    return _DecodeRows(start, clock.end[rows], run.steps.first_us[rows], run.steps.growth_us[rows],
                       run.steps.count[rows], decode, clock.first_token, clock.finished)


def _weighted_gaps(run: Run) -> tuple[Floats, Ints]:
    """Every gap, as (value µs, how often).

    In the first step of a row, a request that decoded before has waited since the previous decode step ended; one that
    joins has waited since its first token (they differ where a prefill-only step came between). In the further steps of
    a row every gap is the step's duration.
    """
    rows = _decode_rows(run)
    joining = rows.first_token[(run.trace.output > 1) & ~np.isnan(rows.first_token)]
    into = np.searchsorted(rows.start, joining)
    joining, into = joining[into < len(rows.start)], into[into < len(rows.start)]
    first_end = rows.start + rows.first
    since = np.concatenate([rows.start[:1], rows.end[:-1]])  # nobody continues into the very first row: weight 0
    staying = rows.decode - np.bincount(into, minlength=len(rows.start))
    more = rows.count - 1
    flat = rows.growth == 0
    times = np.where(flat, 0, more)  # a row of equal steps needs one value only
    step = np.arange(1, int(times.sum()) + 1) - np.repeat(np.cumsum(times) - times, times)
    series = np.repeat(rows.first, times) + step * np.repeat(rows.growth, times)
    gaps = np.concatenate([first_end - since, first_end[into] - joining, rows.first[flat], series])
    weights = np.concatenate([staying, np.ones_like(into), (rows.decode * more)[flat], np.repeat(rows.decode, times)])
    return gaps, weights.astype(np.int64)


# ---- the whole run


def makespan(run: Run) -> float:
    """First arrival → end of the last step, which releases the last slot, s; 0 if nothing ran."""
    return float(run.steps.end_us[-1] - run.trace.arrival_us[0]) / 1e6 if len(run.steps.count) else 0.0


def output_throughput(run: Run) -> float:
    """Output tokens of finished requests per second of makespan."""
    return _per_second(run, float(run.trace.output[run.outcome == FINISHED].sum()))


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


# ---- the idle ledger


@dataclass(frozen=True)
class Ledger:
    """Slots × makespan, split by what each slot did. `seconds`: role → slot-seconds, in the order of ROLES.

    prefill   the slot's request computes its prompt
    decode    its request gets an output token from this step
    stalled   its request is past its first token, but this step holds prompts only
    budget    continuous: free, and a request waits because the step's token budget is spent
    held      its request has finished; the static batch still holds the slot
    filling   static: free, and a request waits for the batch to fill
    late      static: free, and a request waits that came after the batch had left
    boundary  continuous: free, and a request waits that came during the step and joins at its end
    nothing   free, and no request waits for it

    At each instant min(free slots, waiting requests) free slots count under what keeps the waiting out, the rest as nothing.
    """

    seconds: dict[str, float]
    total: float

    def share(self, role: str) -> float:
        """Share of all slot-time, 0 … 1 (0 for an empty run)."""
        return self.seconds[role] / self.total if self.total else 0.0

    @property
    def idle_share(self) -> float:
        """Share of slot-time that is neither prefill nor decode."""
        return 1 - self.share("prefill") - self.share("decode") if self.total else 0.0


def ledger(run: Run) -> Ledger:
    """Where slots × makespan went, from the first arrival to the last release. Works on events, not tokens or steps."""
    at = _instants(run)
    seconds = np.diff(at.grid) @ at.slots / 1e6
    return Ledger(dict(zip(ROLES, seconds.tolist(), strict=True)), run.policy.slots * makespan(run))


@dataclass(frozen=True)
class _Clock:
    """Row and request instants, µs, moved by at most 1e-9 s so that one instant has one value."""

    start: Floats
    end: Floats
    admitted: Floats
    first_token: Floats
    finished: Floats
    released: Floats

    @classmethod
    def of(cls, run: Run) -> _Clock:
        start, end = run.steps.start_us, run.steps.end_us
        if not len(start):
            return cls(start, end, run.admitted_us, run.first_token_us, run.finished_us, run.released_us)
        end[:-1] = np.where(np.abs(end[:-1] - start[1:]) <= _SAME_US, start[1:], end[:-1])
        marks = np.union1d(start, end)

        def snap(times: Floats) -> Floats:
            above = np.clip(np.searchsorted(marks, times), 1, len(marks) - 1)
            near = np.where(times - marks[above - 1] < marks[above] - times, marks[above - 1], marks[above])
            return np.where(np.abs(near - times) <= _SAME_US, near, times)

        return cls(start, end, snap(run.admitted_us), snap(run.first_token_us), snap(run.finished_us), snap(run.released_us))


@dataclass(frozen=True)
class _Instants:
    """The run cut at every event: between grid[i] and grid[i+1] µs, slots[i, role] slots play each role."""

    clock: _Clock
    grid: Floats  # [k+1]
    slots: Ints  # [k, len(ROLES)]
    cause: Ints  # [k] what keeps out a request that the budget would let in: FILLING, LATE or BOUNDARY


def _noticed_us(run: Run, clock: _Clock) -> Floats:
    """When the server first sees each request: its arrival, or the end of the step that runs at that moment. [n]"""
    arrival = run.trace.arrival_us
    row = np.searchsorted(clock.start, arrival, side="right") - 1
    inside = (row >= 0) & (arrival < clock.end[row])
    first, growth = run.steps.first_us[row], run.steps.growth_us[row]
    since = np.where(inside, arrival - clock.start[row], 0.0)

    def after(i: Floats) -> Floats:
        return i * first + growth * (i * (i - 1) / 2)

    # Whole steps before the arrival: the root of after(i) = since. At a step's end it is whole, and exact on whole-µs clocks.
    b = first - growth / 2
    i = np.floor(2 * since / np.maximum(b + np.sqrt(np.maximum(b * b + 2 * growth * since, 0)), 1e-300))
    end = clock.start[row] + np.where(after(i) == since, since, after(i + 1))
    # Other clocks round: it is never seen before it comes, nor let in before it is seen.
    return np.fmin(np.where(inside, np.maximum(end, arrival), arrival), clock.admitted)


def _instants(run: Run) -> _Instants:
    """Count, between any two events, the slots in each role."""
    clock, steps = _Clock.of(run), run.steps
    arrival = run.trace.arrival_us
    if not len(steps.count):
        return _Instants(clock, arrival[:1], np.zeros((0, len(ROLES)), np.int64), np.zeros(0, np.int64))
    noticed = _noticed_us(run, clock)
    events = (arrival, noticed, clock.admitted, clock.first_token, clock.finished, clock.released, clock.start, clock.end)
    grid = np.unique(np.concatenate(events))
    grid = grid[grid <= clock.end[-1]]  # nan, and what had not happened yet, falls out

    def happened(times: Floats) -> Ints:
        return np.cumsum(np.bincount(np.searchsorted(grid, times), minlength=len(grid)))[:len(grid) - 1]

    came, seen, entered, first, done, left, started, ended = (happened(x) for x in events)
    decodes = (started > ended) & (steps.decode[started - 1] > 0)
    free = run.policy.slots - (entered - left)
    if run.policy.batching == "static":
        spent = np.zeros_like(free)
        cause = np.where(entered > left, LATE, FILLING)
    else:  # the server has seen it and a slot is free: only the budget keeps it out
        spent = np.minimum(free, seen - entered)
        cause = np.full(len(free), BOUNDARY)
    other = np.minimum(free, came - entered) - spent
    slots = np.zeros((len(free), len(ROLES)), np.int64)
    slots[:, PREFILL], slots[:, HELD] = entered - first, done - left
    slots[:, DECODE] = np.where(decodes, first - done, 0)
    slots[:, STALLED] = np.where(decodes, 0, first - done)
    slots[:, BUDGET] = spent
    slots[np.arange(len(free)), cause] = other
    slots[:, NOTHING] = free - spent - other
    return _Instants(clock, grid, slots, cause)


# ---- who is where


def lanes(run: Run) -> Ints:
    """The slot of each request: the lowest that is free at its admission. [n]; −1 if it was never admitted."""
    clock = _Clock.of(run)
    lane = np.full(len(run), -1, np.int64)
    free, busy = list(range(run.policy.slots)), list[tuple[float, int]]()
    admitted, released = clock.admitted.tolist(), clock.released.tolist()
    for r in np.argsort(clock.admitted, kind="stable").tolist():  # nan last; equal instants in order of arrival
        if admitted[r] != admitted[r]:
            break
        while busy and busy[0][0] <= admitted[r]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane[r] = heapq.heappop(free)
        heapq.heappush(busy, (released[r], int(lane[r])))
    return lane


@dataclass(frozen=True)
class Segments:
    """What each slot did, piece by piece; equal-length columns, sorted by slot and start, without gaps within a slot.

    slot int64; start_us, end_us float64 µs; role int8, an index into ROLES; request int64, −1 where the slot is free.
    """

    slot: Ints
    start_us: Floats
    end_us: Floats
    role: NDArray[np.int8]
    request: Ints

    def __len__(self) -> int:
        return len(self.slot)


def slot_segments(run: Run) -> Segments:
    """Every slot from the first arrival to the last release. By role the pieces add up to the ledger.

    Of the free slots the lowest are charged to what keeps a request out: they would be taken first.
    """
    at, lane = _instants(run), lanes(run)
    clock = at.clock
    # Slots above every request and every charged free slot have nothing to do all the time: look at one of them only.
    charged = at.slots[:, [BUDGET, FILLING, LATE, BOUNDARY]].sum(1)
    slots = min(run.policy.slots, int(lane.max()) + int(charged.max(initial=0)) + 2)
    own = np.concatenate([clock.admitted, clock.first_token, clock.finished, clock.released])
    change = np.isin(at.grid[:-1], own)  # here the request in a slot, or its phase, may change; elsewhere only the numbers
    change[1:] |= (at.slots[1:] != at.slots[:-1]).any(1)
    change[:1] = True
    ks = np.flatnonzero(change)
    before = np.full(slots, -1, np.int64)
    pieces = []
    for block in np.array_split(ks, max(1, len(ks) * slots // _CELLS)):
        role, request = _cells(at, lane, slots, block)
        code = role + len(ROLES) * (request + 1)
        k, s = np.nonzero(code != np.concatenate([before[None], code[:-1]]))
        pieces.append(np.stack([s, block[k], code[k, s]]))
        before = code[-1] if len(code) else before
    idle = np.arange(slots, run.policy.slots if len(ks) else 0)
    pieces.append(np.stack([idle, np.zeros_like(idle), np.full_like(idle, NOTHING)]))
    slot, k, code = np.concatenate(pieces, 1)
    order = np.lexsort((k, slot))
    slot, k, code = slot[order], k[order], code[order]
    last = np.append(slot[1:] != slot[:-1], True)[:len(slot)]
    start = at.grid[k]
    end = np.where(last, at.grid[-1], np.append(start[1:], 0.0)[:len(slot)])
    return Segments(slot, start, end, (code % len(ROLES)).astype(np.int8), code // len(ROLES) - 1)


def _cells(at: _Instants, lane: Ints, slots: int, ks: Ints) -> tuple[Ints, Ints]:
    """Role and request (−1: none) of every slot in the intervals `ks` (ascending indices into grid); both [len(ks), slots]."""
    if not len(ks):
        return np.zeros((0, slots), np.int64), np.zeros((0, slots), np.int64)
    clock, times = at.clock, at.grid[ks]
    mine = np.flatnonzero(lane >= 0)
    # A request stands in its lane from the first interval that starts at or after its admission to the one of its release.
    enters = np.searchsorted(times, clock.admitted[mine])
    leaves = np.searchsorted(times, clock.released[mine])
    there = enters < leaves
    mine, enters, leaves = mine[there], enters[there], leaves[there]
    steps = np.zeros((len(ks) + 1, slots), np.int64)
    np.add.at(steps, (enters, lane[mine]), mine + 1)
    np.add.at(steps, (leaves, lane[mine]), -(mine + 1))
    request = np.cumsum(steps[:-1], axis=0) - 1
    taken = request >= 0
    now = times[:, None]
    in_prompt = taken & (now < clock.first_token[request])
    in_decode = taken & ~in_prompt & (now < clock.finished[request])
    phase = np.where(in_prompt, PREFILL, np.where(in_decode, DECODE, HELD))
    phase[in_decode & (at.slots[ks, STALLED] > 0)[:, None]] = STALLED
    place = np.cumsum(~taken, axis=1) - 1  # of a free slot among the free ones
    spent = at.slots[ks, BUDGET][:, None]
    other = at.slots[ks, at.cause[ks]][:, None]
    empty = np.where(place < spent, BUDGET, np.where(place < spent + other, at.cause[ks][:, None], NOTHING))
    return np.where(taken, phase, empty), request


@dataclass(frozen=True)
class State:
    """One instant. slots[s]: the request in slot s or −1; roles[s]: index into ROLES; queued, finished: request numbers.

    A finished request that its batch still holds is in `finished` and in `slots`.
    """

    slots: Ints
    roles: NDArray[np.int8]
    queued: Ints
    finished: Ints


def state_at(run: Run, t_us: float) -> State:
    """Who is in which slot, queued or finished at t_us (µs); at an event, just after it."""
    at, lane = _instants(run), lanes(run)
    k = int(np.searchsorted(at.grid, t_us, side="right")) - 1
    slots, roles = np.full(run.policy.slots, -1, np.int64), np.full(run.policy.slots, NOTHING, np.int8)
    if 0 <= k < len(at.grid) - 1:
        role, request = _cells(at, lane, run.policy.slots, np.array([k]))
        slots, roles = request[0], role[0].astype(np.int8)
    queued = (run.trace.arrival_us <= t_us) & ~(at.clock.admitted <= t_us)
    return State(slots, roles, np.flatnonzero(queued), np.flatnonzero(at.clock.finished <= t_us))
