"""The block pool: how many KV blocks are free, and which free ones still remember a prefix.

A block that remembers nothing is like any other, so those are only counted. With the prefix cache on, a block that is
full is published under a key that stands for all the tokens from the start of its request to its own end; who quotes them
finds it. Rules: peers/vllm/SEMANTICS.md, 21 to 27.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sim.kv.content import Chains


class Released:
    """Blocks of one line (None: those that nobody will look for) released at once: how many are still free."""

    __slots__ = ("blocks", "copies", "line")
    copies: list[Copy]  # of a tangle: all that were released, from head to tail

    def __init__(self, blocks: int, line: Line | Tangle | None = None) -> None:
        self.blocks, self.line = blocks, line


class Line:
    """Blocks under consecutive keys, one a key, as numbers.

    Who holds a block holds those before it and releases them after it. So the first ones are held, behind them are those
    released last, and blocks are taken from the end.
    """

    __slots__ = ("_ends", "held", "key", "live", "released")

    def __init__(self, key: int) -> None:
        self.key, self.live, self.held = key, 0, 0
        self._ends: dict[int, int] = {}  # how many requests hold just so many blocks
        self.released: list[Released] = []  # oldest first

    def idle(self, blocks: int) -> int:
        """How many of the first `blocks` nobody holds."""
        return blocks - self.held if blocks > self.held else 0

    def hold(self, request: int, blocks: int) -> None:
        """One more request holds the first `blocks`."""
        self._ends[blocks] = self._ends.get(blocks, 0) + 1
        more = blocks - self.held
        if more <= 0:
            return
        self.held = blocks
        while more:
            last = self.released[-1]
            if last.blocks > more:
                last.blocks -= more
                return
            more -= last.blocks
            last.blocks = 0
            self.released.pop()

    def publish(self, request: int, first: int, end: int) -> None:
        """A request that holds all `first` blocks adds those up to `end`."""
        if first:
            self._leave(first)
        self._ends[end] = 1
        self.live = self.held = end

    def release(self, request: int, blocks: int) -> Released | None:
        """The request no longer holds the first `blocks`; those that nobody holds any more."""
        self._leave(blocks)
        left = blocks if blocks in self._ends or blocks < self.held else max(self._ends, default=0)
        if left == blocks:
            return None
        self.held = left
        self.released.append(Released(blocks - left, self))
        return self.released[-1]

    def _leave(self, blocks: int) -> None:
        self._ends[blocks] -= 1
        if not self._ends[blocks]:
            del self._ends[blocks]

    def forget(self, oldest: Released, count: int) -> None:
        """The last `count` blocks are taken."""
        self.live -= count
        oldest.blocks -= count
        if not oldest.blocks:
            del self.released[0]


@dataclass(eq=False, slots=True)
class Copy:
    """A block of a tangle: the place of its key, how many requests hold it, and with whom it was released if none does."""

    place: int
    holders: int = 0
    released: Released | None = None


class Tangle:
    """A line where some key has several blocks, as a request had to compute one that was there: block by block."""

    def __init__(self, line: Line, holding: dict[int, int]) -> None:
        self.key = line.key
        self._copies = [[Copy(place)] for place in range(line.live)]  # of each key, oldest first
        self._holders: dict[int, list[Copy]] = {}  # by request
        for request, blocks in holding.items():
            self.hold(request, blocks)
        place = line.held
        for released in reversed(line.released):
            released.line, released.copies = self, [copies[0] for copies in self._copies[place : place + released.blocks]]
            for copy in released.copies:
                copy.released = released
            place += released.blocks

    @property
    def live(self) -> int:
        """How many keys can be found."""
        return len(self._copies)

    def idle(self, blocks: int) -> int:
        """As `Line`; the oldest of each key are found."""
        return sum([not copies[0].holders for copies in self._copies[:blocks]])

    def hold(self, request: int, blocks: int) -> None:
        """As `Line`."""
        self._holders[request] = [copies[0] for copies in self._copies[:blocks]]
        for copy in self._holders[request]:
            copy.holders += 1
            if copy.released is not None:
                copy.released.blocks -= 1
                copy.released = None

    def publish(self, request: int, first: int, end: int) -> None:
        """As `Line`, whether or not the keys are there."""
        held = self._holders.setdefault(request, [])
        for place in range(first, end):
            held.append(Copy(place, 1))
            if place == len(self._copies):
                self._copies.append([])
            self._copies[place].append(held[-1])

    def release(self, request: int, blocks: int) -> Released | None:
        """As `Line`."""
        released = Released(0, self)
        released.copies = held = self._holders.pop(request)
        for copy in held:
            copy.holders -= 1
            if not copy.holders:
                copy.released = released
                released.blocks += 1
        return released if released.blocks else None

    def forget(self, oldest: Released, count: int) -> None:
        """The last `count` of them that are still free are taken."""
        oldest.blocks -= count
        while count:
            copy = oldest.copies.pop()
            if copy.released is oldest:
                count -= 1
                self._copies[copy.place].remove(copy)
                if not self._copies[copy.place]:
                    self._copies.pop()


class Pool:
    """`blocks` blocks of `block_size` tokens each. With `chains`, blocks are remembered by what they hold.

    Blocks that a request may look for are kept on lines. The others, behind them, will never be found again, so of a
    release only their number is kept.
    """

    def __init__(self, blocks: int, block_size: int, chains: Chains | None = None) -> None:
        self.blocks, self.block_size, self.chains = blocks, block_size, chains
        self.free = blocks
        self._blank = blocks  # free blocks that remember nothing; they are handed out first
        self._queue: deque[Released] = deque()  # those that do, oldest first
        self._lines: dict[int, Line | Tangle] = {}  # by first key
        self._holders: dict[int, int] = {}  # by request: how many blocks on lines, if any
        self._due: dict[int, int] = {}  # of those who can still publish: how many blocks they will have there
        self.evicted = 0  # blocks handed out that remembered something
        # For those who follow the pool: what changes on lines, as (µs, first key, blocks that can be found), if they make it
        # a list; the engine keeps the clock.
        self.told: list[tuple[float, int, int]] | None = None
        self.now_us = 0.0

    @property
    def remembering(self) -> int:
        """Free blocks that still remember what they held."""
        return self.free - self._blank

    def take(self, count: int) -> None:
        """Hand out `count` free blocks: blank ones, then those whose prefix was released longest ago, tail first."""
        self.free -= count
        if self.chains is None:
            return
        self._blank -= count
        while self._blank < 0:
            oldest, count = self._queue[0], -self._blank
            if oldest.blocks <= count:
                count = oldest.blocks
                self._queue.popleft()
            self._blank += count
            self.evicted += count
            line = oldest.line
            if line is None:
                oldest.blocks -= count
            elif count:
                line.forget(oldest, count)
                if self.told is not None and line.key >= 0:
                    self.told.append((self.now_us, line.key, line.live))
                if not line.live:
                    del self._lines[line.key]

    def find(self, request: int, blocks: int) -> tuple[int, int]:
        """How many of its first `blocks` the request finds published, in a row, and how many of these nobody holds."""
        assert self.chains is not None
        found = idle = 0
        for first, key, length in self.chains.spans(request):
            line = self._lines.get(key)
            if line is None or first >= blocks:
                break
            there = min(length, line.live, blocks - first)
            found += there
            idle += line.idle(there)
            if there < length:
                break
        return found, idle

    def hold(self, request: int, blocks: int, idle: int) -> None:
        """Let the request hold the first `blocks`, which it found."""
        assert self.chains is not None
        self.free -= idle
        for first, key, length in self.chains.spans(request):
            if blocks > first:
                self._lines[key].hold(request, min(length, blocks - first))
            if blocks < first + length:
                self._due[request] = first + length
        if blocks:
            self._holders[request] = blocks

    def publish(self, request: int, tokens: int) -> None:
        """Publish those blocks of the request that its first `tokens` tokens fill and that others may quote."""
        due = self._due.get(request)
        if due is None:
            return
        assert self.chains is not None
        held, full = self._holders.get(request, 0), min(tokens // self.block_size, due)
        if full <= held:
            return
        for first, key, length in self.chains.spans(request):
            a, b = max(held - first, 0), min(full - first, length)
            if a < b:
                line = self._lines.get(key)
                if line is None:
                    line = self._lines[key] = Line(key)
                if a < line.live and isinstance(line, Line):
                    line = self._lines[key] = Tangle(line, self._holding(key))
                line.publish(request, a, b)
                if self.told is not None and key >= 0:
                    self.told.append((self.now_us, key, line.live))
        self._holders[request] = full
        if full == due:
            del self._due[request]

    def release(self, request: int, tokens: int, again: bool = False) -> int:
        """Give back all blocks of a request with KV for `tokens` tokens; how many it held. `again`: it will come back."""
        blocks = -(-tokens // self.block_size)
        if self.chains is None:
            self.free += blocks
            return blocks
        if again:
            self._due[request] = self.chains.quote_itself(request)
        self.publish(request, tokens)
        self._due.pop(request, None)
        held = self._holders.pop(request, 0)
        unsought = tokens // self.block_size - held
        if unsought:
            self._queue.append(Released(unsought))
        self._blank += blocks - held - unsought
        self.free += blocks - held
        if held:
            for first, key, length in reversed(self.chains.spans(request)):
                if held > first and (shared := self._lines[key].release(request, min(length, held - first))):
                    self._queue.append(shared)
                    self.free += shared.blocks
        if not again:
            self.chains.drop(request)
        return blocks

    def _holding(self, key: int) -> dict[int, int]:
        """Who holds how many blocks of a line."""
        assert self.chains is not None
        spans = [(i, held - first, length) for i, held in self._holders.items()
                 for first, line, length in self.chains.spans(i) if line == key and first < held]
        return {i: min(length, held) for i, held, length in spans}
