"""Who holds which physical blocks, from when to when: the block tables of a run, played again from its decisions."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.kv import fifo
from sim.kv.content import Chains
from sim.kv.reserve import blocks_needed, piece
from sim.kv.stays import Stays, limited, stays_of
from sim.run import REFUSED, Event, Floats, Ints, Run
from sim.slots import Instants, instants

_NEVER = 1 << 60


@dataclass(frozen=True)
class Holdings:
    """One row for each run of neighbouring blocks that a request got and gave back together; columns of equal length.

    first     int64    first physical block, counted from 0
    length    int64    blocks
    request   int64    who; a block that several requests share is in a row of each
    logical   int64    place of the first one in the request's block table
    start_us  float64  start of the step that was given them, µs
    end_us    float64  when they were given back, µs; inf: not yet
    """

    first: Ints
    length: Ints
    request: Ints
    logical: Ints
    start_us: Floats
    end_us: Floats

    def __len__(self) -> int:
        return len(self.first)

    def at(self, t_us: float) -> Holdings:
        """The rows of those held at t (µs); at the moment between two steps, in the later one."""
        return self._pick((self.start_us <= t_us) & (t_us < self.end_us))

    def of(self, request: int) -> Holdings:
        """The rows of one request."""
        return self._pick(self.request == request)

    def _pick(self, rows: NDArray[np.bool_]) -> Holdings:
        return Holdings(self.first[rows], self.length[rows], self.request[rows], self.logical[rows], self.start_us[rows],
                        self.end_us[rows])


def holdings(run: Run, until_us: float = math.inf, at: Instants | None = None) -> Holdings:
    """Who held which blocks. ValueError if memory has no limit, or the run must be played again (not contiguous, and not
    sim.kv.fifo.is_queue) and was made without record_grants.

    until_us  after the step that runs then nothing is looked at: who holds blocks at that moment has them for ever
    at        the instants of the run, if they have been counted

    Contiguous memory: one piece of the buddy allocator a request, the blocks it rounds up included. Else the free blocks
    form a list, from 0 up at the start (peers/vllm/SEMANTICS.md, rules 21 to 27): blocks are taken from its front, and a
    request gives its own back from the last to the first, to the end of the list; with a prefix cache only those that
    remember a prefix, the others to its front. Without one all free blocks are alike, so no decision depends on the order.
    """
    memory, at = limited(run), at or instants(run)
    queue = fifo.is_queue(run.policy)
    if memory.reserve == "nothing" and not queue and run.grants is None:
        raise ValueError("which blocks a request held follows from who was granted what: simulate with record_grants=True")
    stays = stays_of(run, at)
    if queue:
        return Holdings(*fifo.taken(run, stays, at.clock.start, until_us))
    if run.address is None:
        return _Replay(run, stays, at.clock.start).played(until_us)
    needs = blocks_needed(run.trace, run.policy)[stays.request]
    return Holdings(
        run.address[stays.request], np.array([piece(count) for count in needs.tolist()], np.int64), stays.request,
        np.zeros_like(stays.request), at.clock.start[stays.enter], stays.left_us,
    )


class _Replay:
    """The pool block by block, through the decisions of a run."""

    def __init__(self, run: Run, stays: Stays, start_us: Floats) -> None:
        memory = limited(run)
        self._run, self._stays, self._start, self._size = run, stays, start_us.tolist(), memory.block_size
        self._needs = None if memory.reserve == "nothing" else blocks_needed(run.trace, run.policy).tolist()
        self._chains = Chains(memory.block_size) if memory.prefix_cache else None
        if self._chains is not None:
            self._chains.submit(run.trace)
        gave_up = [event.request for event in run.events if event.kind == "cancelled"]
        self._gave_up = {i: k for k, i in enumerate(gave_up)}
        self._free = OrderedDict[int, None].fromkeys(range(memory.blocks))
        self._holders = [0] * memory.blocks
        self._key: list[int | None] = [None] * memory.blocks  # what the prefix of a full block is known by
        self._published: dict[int, OrderedDict[int, None]] = {}  # the blocks of each key, oldest first
        self._keys: dict[int, list[int]] = {}  # of the blocks of each request
        self._table: dict[int, list[int]] = {}  # of those who hold blocks, in order of admission
        self._full: dict[int, int] = {}  # how many of their blocks have been published
        self._tokens: dict[int, int] = {}  # computed
        self._known: dict[int, int] = {}  # to compute before they decode
        self._budget = _NEVER if run.policy.budget is None else run.policy.budget
        self._open: dict[int, list[int]] = {}  # their rows below
        self._rows: list[float] = []  # the columns of Holdings but the last, row by row
        self._ends: list[float] = []

    def played(self, until_us: float = math.inf) -> Holdings:
        """Go through the step rows that start by then."""
        stays, steps, rows = self._stays, self._run.steps, len(self._start)
        entering, leaving = _by_row(stays.enter, rows), _by_row(stays.leave, rows + 1)
        preempted = _preempted(self._run, self._start)
        request, left = stays.request.tolist(), stays.left_us.tolist()
        kept, known = stays.kept.tolist(), stays.known.tolist()
        count, first_us, growth = steps.count.tolist(), steps.first_us.tolist(), steps.growth_us.tolist()
        for row in range(rows + 1):
            taken_away = {event.request for event in preempted.get(row, ())}
            for stay in self._in_order_of_end(leaving.get(row, []), request, taken_away):
                self._release(request[stay], left[stay])
            if row == rows or self._start[row] > until_us:
                break
            now = self._start[row]
            if self._needs is not None:
                for stay in entering.get(row, ()):
                    self._enter(request[stay], 0, now)
                    self._grow(request[stay], self._needs[request[stay]], now)
                continue
            assert self._run.grants is not None
            granted = dict(self._run.grants[row])
            self._first_step(now, granted, preempted.get(row, []))
            for stay in entering.get(row, ()):
                self._enter(request[stay], kept[stay], now)
                self._known[request[stay]] = known[stay]
                self._compute(request[stay], granted[request[stay]], now)
            if count[row] > 1:
                self._further_steps(now, granted, count[row], first_us[row], growth[row])
        return self._holdings()

    def _holdings(self) -> Holdings:
        """What was noted, without what was given and taken in one instant."""
        first, length, request, logical, start = np.array(self._rows).reshape(-1, 5).T
        end = np.array(self._ends)
        held = start < end
        who, where = request[held].astype(np.int64), logical[held].astype(np.int64)
        return Holdings(first[held].astype(np.int64), length[held].astype(np.int64), who, where, start[held], end[held])

    def _in_order_of_end(self, stays: list[int], request: list[int], taken_away: set[int]) -> list[int]:
        """Those who leave before a row: who gave up, as noticed, then who ended, as admitted; the preempted go later."""
        ended = len(self._gave_up)
        return sorted([s for s in stays if request[s] not in taken_away], key=lambda s: (self._gave_up.get(request[s], ended), s))

    def _first_step(self, now: float, granted: dict[int, int], preempted: list[Event]) -> None:
        """The running requests take their blocks in turn; who finds too few has others give theirs back first."""
        if not preempted:
            table, computed, size, cached = self._table, self._tokens, self._size, self._chains is not None
            for i, tokens in granted.items():
                if i in table:
                    if cached or computed[i] + tokens > len(table[i]) * size:
                        self._compute(i, tokens, now)
                    else:  # its last block has room
                        computed[i] += tokens
            return
        victims, left, cap = {event.request: event.blocks for event in preempted}, self._budget, self._cap(now)
        withdrawn: dict[int, int] = {}
        for i in list(self._table):
            for event in preempted:
                if event.by == i and i in self._table and event.request in self._table:
                    self._release(event.request, now)
                    left += withdrawn.get(event.request, 0)
            if i in self._table and i in granted:
                self._compute(i, granted[i], now)
                left -= granted[i]
            elif i in self._table and i in victims:  # it is granted tokens, and loses them in this very step
                withdrawn[i] = min(max(self._known[i] - self._tokens[i], 1), left, cap)
                if self._tokens[i] + withdrawn[i] <= victims[i] * self._size:  # else its prompt is held back
                    self._compute(i, withdrawn[i], now)
                    left -= withdrawn[i]

    def _cap(self, now: float) -> int:
        """Most prompt tokens of one request in the step that is decided now (rule 6)."""
        run, policy = self._run, self._run.policy
        there = (run.trace.arrival_us <= now) & ~(run.finished_us <= now) & (run.outcome != REFUSED)
        count = int(there.sum())
        if not policy.chunk_cap or count <= 1:
            return _NEVER
        return max(policy.chunk_cap, (policy.batched or self._budget) // count) if policy.fair_cap else policy.chunk_cap

    def _further_steps(self, start: float, granted: dict[int, int], count: int, first_us: float, growth: float) -> None:
        """The other steps of a row: who needs further blocks takes them at the step that fills them, in turn."""
        size, takes, table, computed, more = self._size, [], self._table, self._tokens, count - 1
        for turn, (i, tokens) in enumerate(granted.items()):
            have, done = len(table[i]), computed[i]
            computed[i] = end = done + tokens * more
            while have * size < end:
                step = -(-(have * size + 1 - done) // tokens)  # after so many more steps its tokens pass what it has
                have = -(-(done + step * tokens) // size)
                takes.append((step, turn, i, have))
        for step, _, i, have in sorted(takes):
            if self._chains is not None:
                self._publish(i, len(self._table[i]))
            self._grow(i, have, start + step * first_us + growth * (step * (step - 1) / 2))
        if self._chains is not None:
            for i in granted:
                self._publish(i, self._tokens[i] // size)

    def _enter(self, i: int, kept: int, now: float) -> None:
        """Admit a request; with a prefix cache it holds what it found from now on, of each key the oldest block."""
        self._table[i], self._open[i], self._tokens[i], self._full[i] = [], [], kept, 0
        if self._chains is None:
            return
        found = [next(iter(self._published[key])) for key in self._keys_of(i)[: kept // self._size]]
        for block in found:
            if not self._holders[block]:
                del self._free[block]
            self._holders[block] += 1
        self._note(i, found, now)
        self._full[i] = len(found)

    def _compute(self, i: int, tokens: int, now: float) -> None:
        done = self._tokens[i] = self._tokens[i] + tokens
        if done > len(self._table[i]) * self._size:
            self._grow(i, -(-done // self._size), now)
        if self._chains is not None:
            self._publish(i, done // self._size)

    def _grow(self, i: int, blocks: int, now: float) -> None:
        """Take blocks from the front of the list until the request has so many."""
        taken = []
        for _ in range(blocks - len(self._table[i])):
            block = self._free.popitem(last=False)[0]
            key = self._key[block]
            if key is not None:  # it forgets
                self._key[block] = None
                del self._published[key][block]
                if not self._published[key]:
                    del self._published[key]
            self._holders[block] = 1
            taken.append(block)
        self._note(i, taken, now)

    def _note(self, i: int, blocks: list[int], now: float) -> None:
        """Write blocks into the table of a request, and each run of neighbours into a row."""
        table, first = self._table[i], 0
        for k in range(1, len(blocks) + 1):
            if k == len(blocks) or blocks[k] != blocks[k - 1] + 1:
                self._open[i].append(len(self._ends))
                self._rows += (blocks[first], k - first, i, len(table) + first, now)
                self._ends.append(np.inf)
                first = k
        table += blocks

    def _publish(self, i: int, full: int) -> None:
        """Let the first `full` blocks of a request be found."""
        known = self._full[i]
        if full > known:
            self._full[i] = full
            for block, key in zip(self._table[i][known:full], self._keys_of(i)[known:full], strict=True):
                self._key[block] = key
                self._published.setdefault(key, OrderedDict())[block] = None

    def _release(self, i: int, now: float) -> None:
        """Take the blocks of a request back, the last one first."""
        blank = []
        for block in reversed(self._table.pop(i)):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free[block] = None
                if self._chains is not None and self._key[block] is None:
                    blank.append(block)
        for block in reversed(blank):
            self._free.move_to_end(block, last=False)
        for row in self._open.pop(i):
            self._ends[row] = now

    def _keys_of(self, i: int) -> list[int]:
        """Keys of all blocks that the request can fill; those that nobody else can have are below 0."""
        if i not in self._keys:
            assert self._chains is not None
            keys = [key + k for _, key, blocks in self._chains.spans(i) for k in range(blocks)]
            most = int(self._run.trace.prompt[i] + self._run.trace.output[i]) // self._size
            self._keys[i] = keys + [-1 - (i << 24) - j for j in range(len(keys), most)]
        return self._keys[i]


def _by_row(row: Ints, rows: int) -> dict[int, list[int]]:
    """Which stays enter or leave with each row, in order."""
    which: dict[int, list[int]] = {}
    for stay, r in enumerate(row.tolist()):
        if r < rows:
            which.setdefault(r, []).append(stay)
    return which


def _preempted(run: Run, start: list[float]) -> dict[int, list[Event]]:
    """The preemptions of each row, in order."""
    events = [event for event in run.events if event.kind == "preempted"]
    rows = np.searchsorted(start, [event.at_us for event in events]).tolist()
    which: dict[int, list[Event]] = {}
    for row, event in zip(rows, events, strict=True):
        which.setdefault(row, []).append(event)
    return which
