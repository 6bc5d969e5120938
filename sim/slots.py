"""What every slot did at every instant: the ledger of slot-time, slots as segments, the state at an instant."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.run import FINISHED, Floats, Ints, Run
from sim.visits import Clock, Visits, heads, last_rows, noticed_us, visits

# What a slot can be doing at an instant, in the order of every table and legend.
ROLES = ("prefill", "decode", "stalled", "budget", "held", "filling", "late", "boundary", "nothing")
PREFILL, DECODE, STALLED, BUDGET, HELD, FILLING, LATE, BOUNDARY, NOTHING = range(len(ROLES))
# One more where memory is limited.
MEMORY = len(ROLES)

# Cells (instants × slots) looked at in one go, so that long runs with many slots stay within a few dozen MB.
_CELLS = 1 << 20


def roles(run: Run) -> tuple[str, ...]:
    """The roles that a slot can have in this run: ROLES, and "memory" where its policy limits memory."""
    return ROLES if run.policy.memory is None else (*ROLES, "memory")


def makespan(run: Run) -> float:
    """First arrival → end of the last step, which releases the last slot, s; 0 if nothing ran."""
    return float(run.steps.end_us[-1] - run.trace.arrival_us[0]) / 1e6 if len(run.steps.count) else 0.0


@dataclass(frozen=True)
class Ledger:
    """Slots × makespan, split by what each slot did. `seconds`: role → slot-seconds, in the order of `roles(run)`.

    prefill   the slot's request computes its prompt, or computes it anew after a preemption
    decode    its request gets an output token from this step
    stalled   its request has nothing but a token to wait for, but this step gives it none: it holds prompts only, or its
              budget went to those who were admitted earlier
    budget    continuous: free, and a request waits because the step's token budget is spent or holds prompts back
    held      its request has finished or given up; the static batch still holds the slot
    filling   static: free, and a request waits for the batch to fill
    late      static: free, and a request waits that came after the batch had left
    boundary  continuous: free, and a request waits that came during the step and joins at its end
    nothing   free, and no request waits for it
    memory    free, and a request waits because blocks are short, or because this step had to preempt

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
    at = instants(run)
    seconds = np.diff(at.grid) @ at.slots / 1e6
    return Ledger(dict(zip(roles(run), seconds.tolist(), strict=True)), run.policy.slots * makespan(run))


# ---- the run cut at every event


@dataclass(frozen=True)
class Instants:
    """The run cut at every event: between grid[i] and grid[i+1] µs, slots[i, role] slots play each role."""

    clock: Clock
    visits: Visits
    noticed: Floats  # of each row of the visits, when the server first saw it in its queue, µs
    grid: Floats  # [k+1]
    slots: Ints  # [k, len(roles)]
    free: Ints  # [k] slots that nobody holds
    kept_out: Ints  # [k] what keeps out a request that the server has seen: BUDGET, MEMORY, FILLING or LATE
    unseen: Ints  # [k] what keeps out all others: BOUNDARY, FILLING or LATE
    preempting: NDArray[np.bool_]  # [k] this step had to preempt


def instants(run: Run) -> Instants:
    """Count, between any two events, the slots in each role."""
    clock, steps = Clock.of(run), run.steps
    v = visits(run, clock)
    noticed, names = noticed_us(run, v, clock), roles(run)
    if not len(steps.count):
        none, start = np.zeros(0, np.int64), run.trace.arrival_us[:1]
        return Instants(clock, v, noticed, start, np.zeros((0, len(names)), np.int64), none, none, none, none > 0)
    ready = np.where(np.isnan(v.ready), v.done, v.ready)  # who is taken away before was in its prompt until then
    events = (v.queued, noticed, v.out, v.entered, ready, v.done, v.left, clock.start, clock.end)
    grid = np.unique(np.concatenate([run.trace.arrival_us[:1], *events]))
    grid = grid[grid <= clock.end[-1]]  # nan, and what had not happened yet, falls out

    def happened(times: Floats) -> Ints:
        return np.cumsum(np.bincount(np.searchsorted(grid, times), minlength=len(grid)))[:len(grid) - 1]

    came, seen, out, entered, first, done, left, started, ended = (happened(x) for x in events)
    row = np.where(started > ended, started - 1, -1)  # −1: no step runs
    free = run.policy.slots - (entered - left)
    preempting = _preempting(run, grid, started)
    if run.policy.batching == "static":
        unseen = kept_out = np.where(entered > left, LATE, FILLING)
        spent = np.zeros_like(free)
        if run.policy.memory is not None:  # who had come when the batch left, and finds free slots, found no memory
            launched = np.maximum.accumulate(np.where(np.diff(entered, prepend=0) > 0, np.arange(len(free)), 0))
            spent = np.where(entered > left, np.minimum(free, np.maximum(came[launched] - out, 0)), 0)
            kept_out = np.full(len(free), MEMORY)
    else:  # the server has seen it and a slot is free: budget or memory keeps it out
        unseen = np.full(len(free), BOUNDARY)
        spent = np.minimum(free, seen - out)
        kept_out = _kept_out(run, v, noticed, grid, row)
        kept_out[preempting] = MEMORY
    other = np.minimum(free, came - out) - spent
    # With a budget below the number of those who decode, the first admitted get their tokens, the others none.
    served = np.minimum(first - done, np.where(row >= 0, steps.decode[row], 0))
    slots = np.zeros((len(free), len(names)), np.int64)
    slots[:, PREFILL], slots[:, HELD] = entered - first, done - left
    slots[:, DECODE], slots[:, STALLED] = served, first - done - served
    each = np.arange(len(free))
    slots[each, kept_out] = spent
    slots[each, unseen] += other
    slots[:, NOTHING] = free - spent - other
    return Instants(clock, v, noticed, grid, slots, free, kept_out, unseen, preempting)


def _preempting(run: Run, grid: Floats, started: Ints) -> NDArray[np.bool_]:
    """In which intervals of the grid a step runs that had to preempt."""
    at = [event.at_us for event in run.events if event.kind == "preempted"]
    begins = np.diff(started, prepend=0) > 0
    latest = np.maximum.accumulate(np.where(begins, np.arange(len(started)), 0))
    return np.isin(grid, at)[latest]


def _kept_out(run: Run, v: Visits, noticed: Floats, grid: Floats, row: Ints) -> Ints:
    """Continuous: BUDGET or MEMORY, whichever keeps the first in the queue out of a free slot, in each interval of the grid.

    A waiting request enters if there is a slot, budget, and memory; so where the budget would do, memory is short.
    """
    policy, steps = run.policy, run.steps
    memory, alone = policy.memory, policy.prompts == "alone"
    if memory is None:
        return np.full(len(row), BUDGET)
    used = np.where(row >= 0, steps.prefill[row] + (0 if alone else steps.decode[row]), 0)
    left = np.maximum((1 << 60 if policy.budget is None else policy.budget) - used, 0)
    enough = left > 0
    if policy.budget is not None and policy.prompts != "chunked":  # a prompt goes whole or not at all
        head = heads(v, noticed, grid[:-1])
        enough = left >= np.where(head >= 0, v.known[head] - v.kept[head], 1)
    if policy.prefill_every > 1:  # else it may be held back, unless blocks were seen to be short
        head = heads(v, noticed, grid[:-1])
        enough &= head == blocked(run, v, grid[:-1])[0]
    return np.where(enough, MEMORY, BUDGET)


def blocked(run: Run, v: Visits, times: Floats) -> tuple[Ints, Ints]:
    """The row of the visits that was last seen to lack blocks and still waits, at each of `times` (ascending, µs), and the
    index of the event that says so; both −1 if none does."""
    which = [k for k, event in enumerate(run.events) if event.kind == "blocked"]
    at = np.array([run.events[k].at_us for k in which])
    who = np.array([run.events[k].request for k in which], np.int64)
    latest = np.searchsorted(at, times, side="right") - 1
    if not len(which):
        return np.full(len(times), -1), np.full(len(times), -1)
    # The row that waits at the event: the last one of that request that had queued by then.
    key = np.searchsorted(v.request, who, side="right") - 1
    for _ in range(int(run.preemptions.max(initial=0))):
        early = v.queued[key] > at
        if not early.any():
            break
        key = key - early
    waits = (latest >= 0) & ~(v.out[key[latest]] <= times)
    return np.where(waits, key[latest], -1), np.where(waits, np.array(which)[latest], -1)


# ---- who is where


def lanes(run: Run) -> Ints:
    """The slot of each request: the lowest that is free at its first admission. [n]; −1 if it was never admitted.

    After a preemption it takes the lowest slot that is free then: slot_segments and state_at show it there.
    """
    v = visits(run, Clock.of(run))
    lane, first = np.full(len(run), -1, np.int64), np.unique(v.request, return_index=True)[1]
    lane[v.request[first]] = _lanes(v, run.policy.slots)[first]
    return lane


def _lanes(v: Visits, slots: int) -> Ints:
    """The slot of each row of the visits; −1: it never entered."""
    lane = np.full(len(v.request), -1, np.int64)
    free, busy = list(range(slots)), list[tuple[float, int]]()
    entered, left = v.entered.tolist(), np.where(np.isnan(v.left), np.inf, v.left).tolist()
    for r in np.lexsort((v.rank, v.entered)).tolist():  # nan last
        if entered[r] != entered[r]:
            break
        while busy and busy[0][0] <= entered[r]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane[r] = heapq.heappop(free)
        heapq.heappush(busy, (left[r], int(lane[r])))
    return lane


@dataclass(frozen=True)
class Segments:
    """What each slot did, piece by piece; equal-length columns, sorted by slot and start, without gaps within a slot.

    slot int64; start_us, end_us float64 µs; role int8, an index into roles(run); request int64, −1 where the slot is free.
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
    at = instants(run)
    v, lane, count = at.visits, _lanes(at.visits, run.policy.slots), len(roles(run))
    # Slots above every request and every charged free slot have nothing to do all the time: look at one of them only.
    charged = at.free - at.slots[:, NOTHING]
    slots = min(run.policy.slots, int(lane.max(initial=-1)) + int(charged.max(initial=0)) + 2)
    own = np.concatenate([v.entered, v.ready, v.done, v.left])
    change = np.isin(at.grid[:-1], own)  # here the request in a slot, or its phase, may change; elsewhere only the numbers
    change[1:] |= (at.slots[1:] != at.slots[:-1]).any(1)
    change[:1] = True
    ks = np.flatnonzero(change)
    before = np.full(slots, -1, np.int64)
    pieces = []
    for block in np.array_split(ks, max(1, len(ks) * slots // _CELLS)):
        role, request = _cells(at, lane, slots, block)
        code = role + count * (request + 1)
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
    return Segments(slot, start, end, (code % count).astype(np.int8), code // count - 1)


def _cells(at: Instants, lane: Ints, slots: int, ks: Ints) -> tuple[Ints, Ints]:
    """Role and request (−1: none) of every slot in the intervals `ks` (ascending indices into grid); both [len(ks), slots]."""
    if not len(ks):
        return np.zeros((0, slots), np.int64), np.zeros((0, slots), np.int64)
    v, times = at.visits, at.grid[ks]
    mine = np.flatnonzero(lane >= 0)
    # A visit stands in its lane from the first interval that starts at or after its entry to the one in which it has left.
    enters = np.searchsorted(times, v.entered[mine])
    leaves = np.searchsorted(times, v.left[mine])
    there = enters < leaves
    mine, enters, leaves = mine[there], enters[there], leaves[there]
    steps = np.zeros((len(ks) + 1, slots), np.int64)
    np.add.at(steps, (enters, lane[mine]), mine + 1)
    np.add.at(steps, (leaves, lane[mine]), -(mine + 1))
    who = np.cumsum(steps[:-1], axis=0) - 1
    taken = who >= 0
    now = times[:, None]
    over = taken & (now >= v.done[who])
    in_decode = taken & ~over & (now >= v.ready[who])
    phase = np.where(over, HELD, np.where(in_decode, DECODE, PREFILL))
    some = np.flatnonzero(at.slots[ks, STALLED] > 0)
    if len(some):  # the first admitted get the tokens
        turn = np.empty(len(v.request), np.int64)
        turn[np.lexsort((v.rank, v.entered))] = np.arange(len(v.request))
        place = np.where(in_decode[some], turn[who[some]], len(turn)).argsort(1).argsort(1)
        phase[some] = np.where(in_decode[some] & (place >= at.slots[ks[some], DECODE][:, None]), STALLED, phase[some])
    place = np.cumsum(~taken, axis=1) - 1  # of a free slot among the free ones
    cause, other = at.kept_out[ks], at.unseen[ks]
    same = cause == other
    spent = np.where(same, 0, at.slots[ks, cause])[:, None]
    rest = at.slots[ks, other][:, None]
    empty = np.where(place < spent, cause[:, None], np.where(place < spent + rest, other[:, None], NOTHING))
    return np.where(taken, phase, empty), np.where(taken, v.request[who], -1)


@dataclass(frozen=True)
class State:
    """One instant. slots[s]: the request in slot s or −1; roles[s]: index into roles(run); queued, finished: request numbers.

    A finished request that its batch still holds is in `finished` and in `slots`. Who gave up or was refused is in neither.
    """

    slots: Ints
    roles: NDArray[np.int8]
    queued: Ints
    finished: Ints


def state_at(run: Run, t_us: float) -> State:
    """Who is in which slot, queued or finished at t_us (µs); at an event, just after it."""
    at = instants(run)
    v, lane = at.visits, _lanes(at.visits, run.policy.slots)
    k = int(np.searchsorted(at.grid, t_us, side="right")) - 1
    slots, role_of = np.full(run.policy.slots, -1, np.int64), np.full(run.policy.slots, NOTHING, np.int8)
    if 0 <= k < len(at.grid) - 1:
        role, request = _cells(at, lane, run.policy.slots, np.array([k]))
        slots, role_of = request[0], role[0].astype(np.int8)
    queued = np.unique(v.request[(v.queued <= t_us) & ~(v.out <= t_us)])
    finished = np.unique(v.request[(v.done <= t_us) & (run.outcome[v.request] == FINISHED) & last_rows(v)])
    return State(slots, role_of, queued, finished)
