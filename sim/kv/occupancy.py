"""Where the token slots of the KV memory go, step by step: tokens, reserved, wasted inside, wasted outside, free."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.kv.reserve import blocks_needed, piece
from sim.orders import outputs
from sim.policy import Memory, Policy
from sim.run import LEFT, Floats, Ints, Run
from sim.slots import MEMORY, Instants, instants

# What a token slot can be, in the order of every stack, table and legend; of the first four somebody keeps the rest out.
PARTS = ("tokens", "reserved", "internal", "external", "free")


@dataclass(frozen=True)
class Occupancy:
    """The memory in token slots, one row for each row of Run.steps; the parts add up to `pool` at every moment.

    A step counts from its decision on: its blocks are taken then, and the tokens it computes are in them. Before, between
    and after the rows nothing runs and all is free.

    tokens    KV of tokens computed so far; a block that several requests share counts once
    reserved  held, and a token still to come will fill it: up to the request's final length, prompt + output − 1 (the last
              token has no KV); for who left before, up to the most that it had computed
    internal  held, by reservation or as the rest of a last block, and no token will ever fill it
    external  what the buddy allocator rounds up, and all free slots while the head of the queue waits for memory: too few,
              or not in one piece (the "external fragmentation & others" of PagedAttention's figure 2, SOSP 2023)
    free      free, and nobody waits for memory

    start_us, end_us  of each row, µs; step i takes first_us + i·growth_us, and the slots go from first to last, equally at
                      each step. Exact at both ends, and for tokens at every step; other parts may saw about that line, as
                      requests take whole blocks
    first, last       part → slots after the decisions of the row's first and last step, float64[rows]
    holders           requests that hold memory in each row
    waits             whether the head of the queue waits for memory in each row
    """

    pool: int
    start_us: Floats
    end_us: Floats
    count: Ints
    first_us: Floats
    growth_us: Floats
    first: dict[str, Floats]
    last: dict[str, Floats]
    holders: Ints
    waits: NDArray[np.bool_]

    def shares(self, t0_us: float | None = None, t1_us: float | None = None) -> dict[str, float]:
        """Each part's share of the pool, averaged over the time from t0 to t1 (µs; else from the first row to the last)."""
        t0, t1 = self._window(t0_us, t1_us)
        share = {
            part: _mean(self._integral(t0, self.first[part], self.last[part]),
                        self._integral(t1, self.first[part], self.last[part]), t1 - t0) / self.pool
            for part in PARTS[:-1]
        }
        return {**share, "free": 1.0 - sum(share.values())}

    def batch(self, t0_us: float | None = None, t1_us: float | None = None) -> float:
        """How many requests hold memory, averaged over the time from t0 to t1 (µs; else from the first row to the last)."""
        t0, t1 = self._window(t0_us, t1_us)
        held = self.holders.astype(np.float64)
        return _mean(self._integral(t0, held, held), self._integral(t1, held, held), t1 - t0)

    def at(self, t_us: float) -> dict[str, float]:
        """The slots of each part in the step that runs at t (µs); at the moment between two steps, in the later one."""
        row, step, _ = self._running(t_us)
        if row < 0 or t_us >= self.end_us[row]:
            return {**dict.fromkeys(PARTS, 0.0), "free": float(self.pool)}
        along = step / max(int(self.count[row]) - 1, 1)
        return {part: float(self.first[part][row] + along * (self.last[part][row] - self.first[part][row])) for part in PARTS}

    def _window(self, t0_us: float | None, t1_us: float | None) -> tuple[float, float]:
        if not len(self.count):
            return 0.0, 0.0
        t0 = float(self.start_us[0]) if t0_us is None else t0_us
        return t0, float(self.end_us[-1]) if t1_us is None else t1_us

    def _running(self, t_us: float) -> tuple[int, int, float]:
        return _running(self.start_us, self.count, self.first_us, self.growth_us, t_us)

    def _integral(self, t_us: float, first: Floats, last: Floats) -> float:
        """Slots × µs up to t, of a part that goes from first to last."""
        row, step, since = self._running(t_us)
        if row < 0:
            return 0.0
        slope = (last - first) / np.maximum(self.count - 1, 1)
        whole = _steps(self.count[:row], first[:row], slope[:row], self.first_us[:row], self.growth_us[:row])
        one = slice(row, row + 1)
        if t_us >= self.end_us[row]:
            part = _steps(self.count[one], first[one], slope[one], self.first_us[one], self.growth_us[one])
            return float(whole.sum() + part.sum())
        part = _steps(np.array([step]), first[one], slope[one], self.first_us[one], self.growth_us[one])
        return float(whole.sum() + part.sum() + (first[row] + slope[row] * step) * since)


def _running(start_us: Floats, count: Ints, first_us: Floats, growth_us: Floats, t_us: float) -> tuple[int, int, float]:
    """The row that starts last by t, −1 if none; which of its steps runs then, and for how long (µs)."""
    row = int(np.searchsorted(start_us, t_us, side="right")) - 1
    if row < 0:
        return -1, 0, 0.0
    first, growth, since, last = float(first_us[row]), float(growth_us[row]), t_us - float(start_us[row]), int(count[row]) - 1
    b = first - growth / 2
    step = int(min(2 * since / max(b + max(b * b + 2 * growth * since, 0.0) ** 0.5, 1e-300), last))
    # The root may be off by rounding: one step more or less.
    if step < last and _after(step + 1, first, growth) <= since:
        step += 1
    if step and _after(step, first, growth) > since:
        step -= 1
    return row, step, since - _after(step, first, growth)


def _after(i: int, first: float, growth: float) -> float:
    return i * first + growth * (i * (i - 1) / 2)


def _steps(count: Ints, first: Floats, slope: Floats, first_us: Floats, growth_us: Floats) -> Floats:
    """Σ (first + i·slope)·(first_us + i·growth_us) over the steps 0 ≤ i < count of each row."""
    ones, squares = count * (count - 1) / 2, count * (count - 1) * (2 * count - 1) / 6
    total: Floats = first * (count * first_us + ones * growth_us) + slope * (ones * first_us + squares * growth_us)
    return total


def _mean(before: float, after: float, span: float) -> float:
    return (after - before) / span if span > 0 else 0.0


def saturated(run: Run, there: Occupancy | None = None) -> tuple[float, float]:
    """From when the head of the queue first waits for memory to when it last does, µs; (nan, nan): it never does.

    `there`: the occupancy of the run, if it has been computed.
    """
    there = occupancy(run) if there is None else there
    rows = np.flatnonzero(there.waits & (there.end_us > there.start_us))
    return (float(there.start_us[rows[0]]), float(there.end_us[rows[-1]])) if len(rows) else (np.nan, np.nan)


def occupancy(run: Run) -> Occupancy:
    """Split the memory of a run. Works on visits and steps, not on tokens. ValueError if its memory has no limit.

    Where prompts are capped or held back, several are half done at a time, and where decodes outnumber the budget not all
    get a token; who got what then stands in the grants: ValueError if the run was made without record_grants.
    """
    memory, at = limited(run), instants(run)
    stays = stays_of(run, at)
    rows, steps = len(run.steps.count), run.steps
    pool = memory.blocks * memory.block_size
    holders = _sum(rows, stays.enter, stays.leave)
    waits = np.zeros(rows, bool)
    if rows:
        waits = at.slots[np.searchsorted(at.grid, at.clock.start, side="right").clip(1, len(at.grid) - 1) - 1, MEMORY] > 0
    split = _paged if memory.reserve == "nothing" else _reserved
    both = []
    for tokens, reserved, internal, rounded, free in split(run, stays):
        parts = (tokens, reserved, internal, rounded + np.where(waits, free, 0), np.where(waits, 0, free))
        both.append({part: values.astype(np.float64) for part, values in zip(PARTS, parts, strict=True)})
    return Occupancy(pool, at.clock.start, at.clock.end, steps.count, steps.first_us, steps.growth_us, both[0], both[1],
                     holders, waits)


def tokens_at(run: Run, t_us: float) -> Ints:
    """KV tokens that each request holds at t (µs), those of the running step included; 0: none. [n]

    A prefix that several requests share counts for each of them. ValueError as `occupancy`.
    """
    limited(run)
    at, tokens = instants(run), np.zeros(len(run), np.int64)
    stays, clock = stays_of(run, at), at.clock
    steps = run.steps
    row, step, _ = _running(clock.start, steps.count, steps.first_us, steps.growth_us, t_us)
    if row < 0 or t_us >= clock.end[row]:
        return tokens
    here = (stays.ready <= row) & (row < stays.exit)
    tokens[stays.request[here]] = stays.offset[here] + stays.begun[0][row] + (step if steps.decode[row] else 0)
    here = (stays.exit <= row) & (row < stays.leave)
    tokens[stays.request[here]] = stays.end[here]
    pairs = stays.row == row
    first, last = stays.tokens[0][pairs], stays.tokens[1][pairs]
    tokens[stays.request[stays.stay[pairs]]] = np.where(
        step < steps.count[row] - 1, first + step * ((last - first) // max(int(steps.count[row]) - 1, 1)), last
    )
    return tokens


# ---- how the tokens of each request grow


@dataclass(frozen=True)
class Stays:
    """Each time a request held memory, and how its tokens grow: prompts row by row, decodes by one at each decode step.

    request             who
    enter, leave        it holds memory in the step rows enter ≤ row < leave
    ready, exit         it decodes in the rows ready ≤ row < exit, and has offset + begun[…][row] tokens
    left_us             when it gave up its memory, µs; inf: it has not
    kept                its tokens when it entered: found in the prefix cache, or swapped in
    known, end          its tokens before its first decode step, and from `exit` on
    final               its final length
    stay, row, tokens   of each row before `ready`: whose, which, and the tokens after its first and its last step
    begun               of each step row: decode steps begun by its first and by its last step
    """

    request: Ints
    enter: Ints
    ready: Ints
    exit: Ints
    leave: Ints
    left_us: Floats
    kept: Ints
    known: Ints
    end: Ints
    offset: Ints
    final: Ints
    stay: Ints
    row: Ints
    tokens: tuple[Ints, Ints]
    begun: tuple[Ints, Ints]


def limited(run: Run) -> Memory:
    """The memory of a run; ValueError if it has no limit."""
    if run.policy.memory is None:
        raise ValueError(f"policy {run.policy.name!r} has memory without limit; there is no pool to split")
    return run.policy.memory


def stays_of(run: Run, at: Instants) -> Stays:
    """The stays of a run, in the order of admission. ValueError as `occupancy`."""
    v, clock, steps = at.visits, at.clock, run.steps
    entered = ~np.isnan(v.entered)
    computed, most = _computed(run, v.request)
    final = run.trace.prompt + outputs(run.trace, run.policy) - 1
    final = np.where(np.isin(run.outcome, LEFT), most, final)
    order = np.lexsort((v.rank, v.entered))[: int(entered.sum())]  # in which tokens are granted
    request, kept, known, computed = v.request[order], v.kept[order], v.known[order], computed[order]
    start, rows = clock.start, len(clock.start)
    enter = np.searchsorted(start, v.entered[order], side="right") - 1
    exits = np.searchsorted(start, v.done[order])  # nan: after the last row
    leave = np.searchsorted(start, v.left[order])
    ready = np.minimum(np.where(np.isnan(v.ready[order]), exits, np.searchsorted(start, v.ready[order])), exits)
    decoded = np.concatenate([[0], np.cumsum(steps.count * (steps.decode > 0))])
    begun = (decoded[:-1] + (steps.decode > 0), decoded[1:])
    odd = _odd(run.policy)
    if odd:
        ready = exits
    stay, row = _spans(enter, ready)
    if odd:
        tokens = _from_grants(run, request[stay], stay, row, kept[stay])
    else:
        goal = np.where(np.isnan(v.ready[order]) & (computed >= 0), computed, known)
        tokens = _in_line(steps.prefill, steps.count, goal - kept, kept, stay, row)
    offset = known - decoded[ready.clip(0, rows)]
    end = offset + decoded[exits]
    last = np.append(stay[1:] != stay[:-1], True)[: len(stay)] & (exits == ready)[stay]
    end[stay[last]] = tokens[1][last]
    left_us = np.where(np.isnan(v.left[order]), np.inf, v.left[order])
    return Stays(request, enter, ready, exits, leave, left_us, kept, known, end, offset, final[request], stay, row, tokens, begun)


def _odd(policy: Policy) -> bool:
    """Whether more than one prompt may be half done, or a decoding request may get nothing in a step that has decodes."""
    if policy.batching == "static":
        return False
    few = policy.budget is not None and policy.slots > policy.budget and policy.prompts == "alone"
    return policy.chunk_cap > 0 or policy.prefill_every > 1 or few


def _computed(run: Run, request: Ints) -> tuple[Ints, Ints]:
    """Tokens that each row of the visits had when it was taken away, −1 if it was not; the most that each request lost."""
    computed, most = np.full(len(request), -1, np.int64), np.zeros(len(run), np.int64)
    row = np.searchsorted(request, np.arange(len(run))).tolist()
    for event in run.events:
        if event.kind in ("preempted", "cancelled"):
            computed[row[event.request]] = event.tokens
            row[event.request] += 1
            most[event.request] = max(int(most[event.request]), event.tokens)
    return computed, most


def _spans(first: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Index and number of every whole number in the spans first ≤ number < end."""
    length = np.maximum(end - first, 0)
    which = np.repeat(np.arange(len(first)), length)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(length) - length - first, length)


def _in_line(prefill: Ints, count: Ints, need: Ints, kept: Ints, stay: Ints, row: Ints) -> tuple[Ints, Ints]:
    """Tokens after the first and the last step of a row, of prompts that are computed one after the other."""
    before = np.cumsum(need) - need
    line = np.concatenate([[0], np.cumsum(prefill * count)])
    first = kept[stay] + (line[row] + prefill[row] - before[stay]).clip(0, need[stay])
    return first, kept[stay] + (line[row + 1] - before[stay]).clip(0, need[stay])


def _from_grants(run: Run, request: Ints, stay: Ints, row: Ints, kept: Ints) -> tuple[Ints, Ints]:
    """The same for any prompts and decodes, from who was granted what."""
    if run.grants is None:
        raise ValueError("who got which tokens does not follow from the policy: simulate with record_grants=True")
    flat = [(r, i, tokens) for r, grants in enumerate(run.grants) for i, tokens in grants]
    rows, who, granted = np.array(flat, np.int64).reshape(-1, 3).T
    order = np.argsort(rows * len(run) + who)
    keys = np.append((rows * len(run) + who)[order], -1)
    place = np.searchsorted(keys[:-1], row * len(run) + request)
    grant = np.where(keys[place] == row * len(run) + request, np.append(granted[order], 0)[place], 0)
    total = np.cumsum(grant * run.steps.count[row])
    begin = np.searchsorted(stay, stay)
    last = kept + total - np.concatenate([[0], total])[begin]
    return last - grant * (run.steps.count[row] - 1), last


# ---- the split, after the first and after the last step of each row


Split = tuple[Ints, Ints, Ints, Ints, Ints]  # tokens, reserved, internal, rounded up, free


def _sum(rows: int, first: Ints, end: Ints, values: Ints | int = 1) -> Ints:
    """Of each row, the sum of the values whose span first ≤ row < end it lies in."""
    change = np.zeros(rows + 1, np.int64)
    np.add.at(change, first, values)
    np.add.at(change, np.maximum(first, end), -np.asarray(values))
    return np.cumsum(change)[:rows]


def _tokens(rows: int, s: Stays) -> tuple[Ints, Ints]:
    """Σ tokens over the requests that hold memory."""
    n, base = _sum(rows, s.ready, s.exit), _sum(rows, s.ready, s.exit, s.offset)
    over = _sum(rows, s.exit, s.leave, s.end)
    first, last = (
        base + n * begun + over + np.bincount(s.row, tokens, rows).astype(np.int64)
        for begun, tokens in zip(s.begun, s.tokens, strict=True)
    )
    return first, last


def _reserved(run: Run, s: Stays) -> list[Split]:
    """What is held is known at admission; only the tokens grow."""
    memory, rows = limited(run), len(run.steps.count)
    needs = blocks_needed(run.trace, run.policy)[s.request]
    pieces = np.array([piece(count) for count in needs.tolist()], np.int64) if memory.contiguous else needs
    size = memory.block_size
    held, taken = _sum(rows, s.enter, s.leave, needs * size), _sum(rows, s.enter, s.leave, pieces * size)
    final = _sum(rows, s.enter, s.leave, s.final)
    free = memory.blocks * size - taken
    return [(tokens, final - tokens, held - final, taken - held, free) for tokens in _tokens(rows, s)]


def _paged(run: Run, s: Stays) -> list[Split]:
    """Each request has room in its last block only: that of its own tokens to come, and, in its very last, of nobody's."""
    memory, rows = limited(run), len(run.steps.count)
    size, tokens, blocks = memory.block_size, _tokens(rows, s), _blocks(run, s)
    free = (run.steps.free + blocks[1] - blocks[0]) * size, run.steps.free * size
    from_tokens = (s.final - 1) // size * size + 1  # with so many it has its very last block
    beyond = -s.final % size
    splits = []
    for begun, prompt, total, count, left in zip(s.begun, s.tokens, tokens, blocks, free, strict=True):
        last_block = np.maximum(s.ready, np.searchsorted(begun, from_tokens - s.offset))
        internal = _sum(rows, np.minimum(last_block, rows), np.minimum(s.exit, rows), beyond)
        internal += np.bincount(s.row, np.where(prompt >= from_tokens[s.stay], beyond[s.stay], 0), rows).astype(np.int64)
        room = count * size - total
        splits.append((memory.blocks * size - left - room, room - internal, internal, np.zeros_like(room), left))
    return splits


def _blocks(run: Run, s: Stays) -> tuple[Ints, Ints]:
    """Σ blocks over the requests; one that several share counts for each.

    A decoding request takes a block every `size` decode steps: marks at its first one and after its last one, summed in
    strides of `size`, say how many are taken at each decode step.
    """
    size, rows = limited(run).block_size, len(run.steps.count)
    steps = int(s.begun[1][-1]) if rows else 0
    marks = np.zeros(-(-(steps + 2) // size) * size + size, np.int64)
    prompt, end = -(-s.known // size), -(-s.end // size)
    decodes = s.exit > s.ready
    # With offset + b tokens at decode step b, it takes its block number j (from 0) at b = j·size + 1 − offset.
    np.add.at(marks, (prompt * size + 1 - s.offset)[decodes], 1)
    np.add.at(marks, (end * size + 1 - s.offset)[decodes], -1)
    taken = np.cumsum(np.cumsum(marks.reshape(-1, size), axis=0).ravel())
    base = _sum(rows, s.ready, s.exit, prompt)
    gone = _sum(rows, s.exit[decodes], np.full(int(decodes.sum()), rows), (end - prompt)[decodes])
    first, last = (
        base + taken[begun] - gone + np.bincount(s.row, -(-tokens // size), rows).astype(np.int64)
        for begun, tokens in zip(s.begun, s.tokens, strict=True)
    )
    return first, last
