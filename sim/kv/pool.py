"""The block pool: how many KV blocks are free, and which free ones still remember a prefix.

A block that remembers nothing is like any other, so those are only counted. With the prefix cache on, a block that is
full is published under a key that stands for all the tokens from the start of its request to its own end; who quotes them
finds it. Rules: peers/vllm/SEMANTICS.md, 21 to 27.
"""

from __future__ import annotations

from collections import deque

from sim.kv.content import Chains

Copies = list[int]


class Pool:
    """`blocks` blocks of `block_size` tokens each. With `chains`, blocks are remembered by what they hold.

    Blocks whose content other requests may quote are kept one by one, as copies. The first live copy of a key has the
    key as its number; a further one, made where a request had to recompute a block that was still there, has a negative
    number. The blocks behind them, which only their own request can come back to, are kept as one run, by their number.
    """

    def __init__(self, blocks: int, block_size: int, chains: Chains | None = None) -> None:
        self.blocks, self.block_size, self.chains = blocks, block_size, chains
        self.free = blocks
        self._blank = blocks  # free blocks that remember nothing; they are handed out first
        # Releases, oldest first: (stamp, copies from head to tail), or the run of a request, [blocks].
        self._queue: deque[tuple[int, Copies] | list[int]] = deque()
        self._stamp = 0
        self._released: dict[int, int] = {}  # copy → 0 while somebody holds it, else the stamp of its release
        self._holders: dict[int, int] = {}  # of copies that two or more requests hold
        self._twins: dict[int, Copies] = {}  # live copies of a key that has further ones, oldest first
        self._key_of: dict[int, int] = {}  # of further copies
        self._further = 0
        self._held: dict[int, Copies] = {}  # copies that a request holds, in order
        self._left: dict[int, list[int]] = {}  # run of a preempted request

    def take(self, count: int) -> None:
        """Hand out `count` free blocks: blank ones, then those whose prefix was released longest ago, tail first."""
        self.free -= count
        if self.chains is not None:
            self._blank -= count
            if self._blank < 0:
                self._forget(-self._blank)
                self._blank = 0

    def find(self, request: int, blocks: int) -> tuple[Copies, int]:
        """The longest run of published blocks that starts the request, at most `blocks`: copies, and blocks of its own run."""
        assert self.chains is not None
        found: Copies = []
        released, twins = self._released, self._twins
        for keys in self.chains.keys(request, 0, blocks):
            for key in keys:
                if key in twins:
                    found.append(twins[key][0])
                elif key in released:
                    found.append(key)
                else:
                    return found, 0
        run = self._left.get(request)
        return found, run[0] if run is not None and len(found) == self.chains.shared(request) else 0

    def idle(self, copies: Copies) -> int:
        """How many of the copies nobody holds: these leave the free ones when they are held."""
        released = self._released
        return sum([1 for copy in copies if released[copy]])

    def hold(self, request: int, copies: Copies, own: int) -> None:
        """Let the request hold what it found."""
        released, holders = self._released, self._holders
        for copy in copies:
            if released[copy]:
                released[copy] = 0
                self.free -= 1
            else:
                holders[copy] = holders.get(copy, 1) + 1
        self._held[request] = copies
        if own:
            self.free -= own
            self._left.pop(request)[0] = 0

    def publish(self, request: int, tokens: int) -> None:
        """Publish those blocks of the request that its first `tokens` tokens fill and that others may quote."""
        assert self.chains is not None
        held = self._held[request]
        full = tokens // self.block_size
        if full <= len(held):
            return
        released, twins = self._released, self._twins
        for keys in self.chains.keys(request, len(held), full):
            if released.keys().isdisjoint(keys) and (not twins or twins.keys().isdisjoint(keys)):
                released.update(dict.fromkeys(keys, 0))
                held.extend(keys)
            else:
                held.extend([self._publish_one(key) for key in keys])

    def release(self, request: int, tokens: int, again: bool = False) -> int:
        """Give back all blocks of a request with KV for `tokens` tokens; how many it held. `again`: it will come back."""
        blocks = -(-tokens // self.block_size)
        if self.chains is None:
            self.free += blocks
            return blocks
        self.publish(request, tokens)
        copies = self._held.pop(request)
        run = tokens // self.block_size - len(copies)
        if run:
            entry = [run]
            self._queue.append(entry)
            if again:
                self._left[request] = entry
        rest = blocks - len(copies)
        self._blank += rest - run
        self.free += rest
        if self._holders:
            copies = [copy for copy in copies if not self._leave(copy)]
        if copies:
            self._stamp += 1
            self._released.update(dict.fromkeys(copies, self._stamp))
            self._queue.append((self._stamp, copies))
            self.free += len(copies)
        return blocks

    def _leave(self, copy: int) -> bool:
        """One holder fewer; whether others are left."""
        count = self._holders.get(copy, 1)
        if count == 2:
            del self._holders[copy]
        elif count > 2:
            self._holders[copy] = count - 1
        return count > 1

    def _publish_one(self, key: int) -> int:
        copy, twins = key, self._twins
        if key in twins or key in self._released:
            self._further -= 1
            copy = self._further
            twins.setdefault(key, [key]).append(copy)
            self._key_of[copy] = key
        self._released[copy] = 0
        return copy

    def _forget(self, count: int) -> None:
        released, queue = self._released, self._queue
        while count:
            entry = queue[0]
            if isinstance(entry, list):
                gone = min(entry[0], count)
                entry[0] -= gone
                count -= gone
                if not entry[0]:
                    queue.popleft()
                continue
            stamp, copies = entry
            while copies and count:
                copy = copies.pop()
                if released.get(copy) == stamp:
                    del released[copy]
                    count -= 1
                    if self._twins:
                        self._forget_twin(copy)
            if not copies:
                queue.popleft()

    def _forget_twin(self, copy: int) -> None:
        key = self._key_of.pop(copy, copy)
        twins = self._twins.get(key)
        if twins is not None:
            twins.remove(copy)
            if not twins:
                del self._twins[key]
