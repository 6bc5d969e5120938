"""Where the token slots of the KV memory go, step by step: tokens, reserved, wasted inside, wasted outside, free."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sim.kv.reserve import blocks_needed, piece
from sim.kv.stays import Stays, limited, running, spans, stays_of
from sim.run import Floats, Ints, Run
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

    start_us, end_us     of each row, µs; step i takes first_us + i·growth_us
    first, last          part → slots after the decisions of the row's first and last step, float64[rows]. In between, tokens
                         grow equally at each step; where memory is paged the others saw about the straight line, since a
                         request takes whole blocks. `at` and `shares` are exact
    taken, never_filled  of each step, one row after the other: slots that were free when its row began, and slots that have
                         become internal since then, float64[steps]
    holders              requests that hold memory in each row
    waits                whether the head of the queue waits for memory in each row
    """

    pool: int
    start_us: Floats
    end_us: Floats
    count: Ints
    first_us: Floats
    growth_us: Floats
    first: dict[str, Floats]
    last: dict[str, Floats]
    taken: Floats
    never_filled: Floats
    holders: Ints
    waits: NDArray[np.bool_]

    def shares(self, t0_us: float | None = None, t1_us: float | None = None) -> dict[str, float]:
        """Each part's share of the pool, averaged over the time from t0 to t1 (µs; else from the first row to the last)."""
        t0, t1 = self._window(t0_us, t1_us)
        if not t1 > t0:
            return {**dict.fromkeys(PARTS, 0.0), "free": 1.0}
        held = (self._integrals(t1) - self._integrals(t0))[:-2] / (t1 - t0) / self.pool
        share = dict(zip(PARTS, held.tolist(), strict=False))
        return {**share, "free": 1.0 - sum(share.values())}

    def batch(self, t0_us: float | None = None, t1_us: float | None = None) -> float:
        """How many requests hold memory, averaged over the time from t0 to t1 (µs; else from the first row to the last)."""
        t0, t1 = self._window(t0_us, t1_us)
        return float((self._integrals(t1) - self._integrals(t0))[-1]) / (t1 - t0) if t1 > t0 else 0.0

    def at(self, t_us: float) -> dict[str, float]:
        """The slots of each part in the step that runs at t (µs); at the moment between two steps, in the later one."""
        row, step, _ = running(self.start_us, self.count, self.first_us, self.growth_us, t_us)
        if row < 0 or t_us >= self.end_us[row]:
            return {**dict.fromkeys(PARTS, 0.0), "free": float(self.pool)}
        return dict(zip(PARTS, self._steps(row, row + 1)[:, step].tolist(), strict=False))

    def _window(self, t0_us: float | None, t1_us: float | None) -> tuple[float, float]:
        if not len(self.count):
            return 0.0, 0.0
        t0 = float(self.start_us[0]) if t0_us is None else t0_us
        return t0, float(self.end_us[-1]) if t1_us is None else t1_us

    @cached_property
    def _before(self) -> Ints:
        """Steps before each row, and in all."""
        return np.concatenate([[0], np.cumsum(self.count)])

    def _steps(self, row: int, end: int) -> Floats:
        """The parts and the holders in each step of the rows row ≤ … < end; [6, steps]."""
        which, before = np.repeat(np.arange(row, end), self.count[row:end]), self._before
        i = np.arange(before[row], before[end]) - before[which]
        steps = slice(before[row], before[end])
        slope = (self.last["tokens"] - self.first["tokens"]) / np.maximum(self.count - 1, 1)
        grown, taken, lost = i * slope[which], self.taken[steps], self.never_filled[steps]
        values = np.array([self.first[part][which] for part in PARTS] + [self.holders[which].astype(np.float64)])
        waits = self.waits[which]
        values[:5] += grown, taken - grown - lost, lost, np.where(waits, -taken, 0), np.where(waits, 0, -taken)
        return values

    @cached_property
    def _rows(self) -> Floats:
        """Of each part and of the holders, slots × µs up to each row; [6, rows + 1]."""
        i = np.arange(len(self.taken)) - np.repeat(self._before[:-1], self.count)
        took = np.repeat(self.first_us, self.count) + i * np.repeat(self.growth_us, self.count)
        each = np.add.reduceat(self._steps(0, len(self.count)) * took, self._before[:-1], axis=1)
        return np.concatenate([np.zeros((6, 1)), np.cumsum(each, axis=1)], axis=1)

    def _integrals(self, t_us: float) -> Floats:
        """Of each part and of the holders, slots × µs up to t; the free slots only while something runs."""
        row, step, since = running(self.start_us, self.count, self.first_us, self.growth_us, t_us)
        if row < 0:
            return np.zeros(6)
        if t_us >= self.end_us[row]:
            return self._rows[:, row + 1]
        took = float(self.first_us[row]) + np.arange(step + 1) * float(self.growth_us[row])
        took[step] = since
        so_far: Floats = self._rows[:, row] + self._steps(row, row + 1)[:, : step + 1] @ took
        return so_far


def saturated(run: Run, there: Occupancy | None = None) -> tuple[float, float]:
    """From when the head of the queue first waits for memory to when it last does, µs; (nan, nan): it never does.

    `there`: the occupancy of the run, if it has been computed.
    """
    there = occupancy(run) if there is None else there
    rows = np.flatnonzero(there.waits & (there.end_us > there.start_us))
    return (float(there.start_us[rows[0]]), float(there.end_us[rows[-1]])) if len(rows) else (np.nan, np.nan)


def occupancy(run: Run, at: Instants | None = None) -> Occupancy:
    """Split the memory of a run. Works on visits and steps, not on tokens. ValueError if its memory has no limit.

    Where prompts are capped or held back, several are half done at a time, and where decodes outnumber the budget not all
    get a token; who got what then stands in the grants: ValueError if the run was made without record_grants.
    `at`: the instants of the run, if they have been counted.
    """
    memory, at = limited(run), at or instants(run)
    s, steps, rows = stays_of(run, at), run.steps, len(run.steps.count)
    waits = np.zeros(rows, bool)
    if rows:
        waits = at.slots[np.searchsorted(at.grid, at.clock.start, side="right").clip(1, len(at.grid) - 1) - 1, MEMORY] > 0
    tokens = _tokens(rows, s)
    split = (_paged if memory.reserve == "nothing" else _reserved)(run, s, tokens[0])
    last = np.cumsum(steps.count) - 1  # step of each row
    grown, taken, lost = tokens[1] - tokens[0], split.taken[last], split.never_filled[last]
    external = split.rounded + np.where(waits, split.free, 0)
    first = split.tokens, split.reserved, split.internal, external, np.where(waits, 0, split.free)
    changes = grown, taken - grown - lost, lost, np.where(waits, -taken, 0), np.where(waits, 0, -taken)
    floats = [values.astype(np.float64) for values in first]
    return Occupancy(
        memory.blocks * memory.block_size, at.clock.start, at.clock.end, steps.count, steps.first_us, steps.growth_us,
        dict(zip(PARTS, floats, strict=True)),
        {part: values + change for part, values, change in zip(PARTS, floats, changes, strict=True)},
        split.taken.astype(np.float64), split.never_filled.astype(np.float64), _sum(rows, s.enter, s.leave), waits,
    )


def tokens_at(run: Run, t_us: float, at: Instants | None = None) -> Ints:
    """KV tokens that each request holds at t (µs), those of the running step included; 0: none. [n]

    A prefix that several requests share counts for each of them. ValueError as `occupancy`.
    """
    limited(run)
    at, tokens = at or instants(run), np.zeros(len(run), np.int64)
    stays, clock = stays_of(run, at), at.clock
    steps = run.steps
    row, step, _ = running(clock.start, steps.count, steps.first_us, steps.growth_us, t_us)
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


# ---- the split


@dataclass(frozen=True)
class _Split:
    """In slots: after the first step of each row, [rows], and what each step has taken and lost since, [steps]."""

    tokens: Ints
    reserved: Ints
    internal: Ints
    rounded: Ints
    free: Ints
    taken: Ints
    never_filled: Ints


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


def _reserved(run: Run, s: Stays, tokens: Ints) -> _Split:
    """What is held is known at admission; only the tokens grow."""
    memory, rows = limited(run), len(run.steps.count)
    needs = blocks_needed(run.trace, run.policy)[s.request]
    pieces = np.array([piece(count) for count in needs.tolist()], np.int64) if memory.contiguous else needs
    size = memory.block_size
    held, taken = _sum(rows, s.enter, s.leave, needs * size), _sum(rows, s.enter, s.leave, pieces * size)
    final, none = _sum(rows, s.enter, s.leave, s.final), np.zeros(int(run.steps.count.sum()), np.int64)
    return _Split(tokens, final - tokens, held - final, taken - held, memory.blocks * size - taken, none, none)


def _paged(run: Run, s: Stays, tokens: Ints) -> _Split:
    """Each request has room in its last block only: that of its own tokens to come, and, in its very last, of nobody's."""
    memory, steps, rows = limited(run), run.steps, len(run.steps.count)
    size = memory.block_size
    last_block, beyond = (s.final - 1) // size * size + 1, -s.final % size
    before, which = np.cumsum(steps.count) - steps.count, np.repeat(np.arange(rows), steps.count)
    begun = s.begun[0][which] + (np.arange(len(which)) - before[which]) * (steps.decode > 0)[which]
    blocks, ends = _by_decode_step(run, s, last_block, beyond)
    taken, lost = (change[begun] - change[s.begun[0]][which] for change in (blocks, ends))

    # Prompts that go on in equal chunks for several steps.
    long = np.flatnonzero(steps.count[s.row] > 1)
    pair, i = spans(np.zeros_like(long), steps.count[s.row[long]])
    stay, row, start = s.stay[long][pair], s.row[long][pair], s.tokens[0][long][pair]
    grown = start + i * ((s.tokens[1][long][pair] - start) // (steps.count[row] - 1))
    np.add.at(taken, before[row] + i, -(-grown // size) + -start // size)
    np.add.at(lost, before[row] + i, ((grown >= last_block[stay]) & (start < last_block[stay])) * beyond[stay])

    # After the first step of each row.
    reached = np.maximum(s.ready, np.searchsorted(s.begun[0], last_block - s.offset))
    internal = _sum(rows, np.minimum(reached, s.exit), s.exit, beyond)
    np.add.at(internal, s.row, (s.tokens[0] >= last_block[s.stay]) * beyond[s.stay])
    prompt, decodes = -(-s.known // size), s.exit > s.ready
    held = _sum(rows, s.ready, s.exit, prompt) + blocks[s.begun[0]]
    held -= _sum(rows, s.exit[decodes], np.full(int(decodes.sum()), rows), (-(-s.end // size) - prompt)[decodes])
    np.add.at(held, s.row, -(-s.tokens[0] // size))
    room = held * size - tokens
    free = (steps.free + taken[before + steps.count - 1]) * size
    return _Split(memory.blocks * size - free - room, room - internal, internal, np.zeros_like(room), free, taken * size, lost)


def _by_decode_step(run: Run, s: Stays, last_block: Ints, beyond: Ints) -> tuple[Ints, Ints]:
    """Up to each decode step: blocks that decoding requests have taken, and slots that are nobody's in their very last ones.

    A decoding request takes a block every `size` decode steps: marks at its first one and after its last one, summed in
    strides of `size`, say how many are taken at each. `last_block`: the tokens with which a request has its very last one.
    """
    size, decodes = limited(run).block_size, s.exit > s.ready
    steps = int(s.begun[1][-1]) if len(s.begun[1]) else 0
    marks, ends = np.zeros(-(-(steps + 2) // size) * size + size, np.int64), np.zeros(steps + 1, np.int64)
    # With offset + b tokens at decode step b, it takes its block number j (from 0) at b = j·size + 1 − offset.
    np.add.at(marks, (-(-s.known // size) * size + 1 - s.offset)[decodes], 1)
    np.add.at(marks, (-(-s.end // size) * size + 1 - s.offset)[decodes], -1)
    comes = decodes & (s.known < last_block) & (last_block <= s.end)
    np.add.at(ends, (last_block - s.offset)[comes], beyond[comes])
    return np.cumsum(np.cumsum(marks.reshape(-1, size), axis=0).ravel()), np.cumsum(ends)
