"""Reserved memory: how many blocks a request is given at admission, and from where, as one piece."""

from __future__ import annotations

from bisect import insort

import numpy as np
from numpy.typing import NDArray

from sim.orders import guess, outputs
from sim.policy import Policy
from sim.trace import Trace

Ints = NDArray[np.int64]


def blocks_needed(trace: Trace, policy: Policy, rng: np.random.Generator | None = None) -> Ints:
    """Blocks that each request must get in order to end: what it reserves, or what its tokens fill (the last has no KV).

    A reservation cannot grow, so a noisy guess of the output errs on the long side: the truth times exp(noise·|z|), with z
    standard normal, drawn from `rng`, or for the whole trace from the policy's seed.
    """
    memory, output = policy.memory, outputs(trace, policy)
    if memory is None:
        return np.ones(len(trace), np.int64)
    if memory.reserve == "nothing":
        tokens = trace.prompt + output - 1
    elif memory.reserve == "maximum":
        assert policy.longest is not None  # Policy sees to it
        tokens = np.full(len(trace), policy.longest)
    else:
        if policy.noise:
            output = np.ceil(output * np.exp(np.abs(guess(len(trace), policy, rng)))).astype(np.int64)
        if memory.reserve == "power":
            output = power_of_two(output)
        tokens = trace.prompt + output
        if policy.longest is not None:
            tokens = np.minimum(tokens, policy.longest)
    needed: Ints = -(-tokens // memory.block_size)
    return needed


def power_of_two(tokens: Ints) -> Ints:
    """Each rounded up to a power of two."""
    powers: Ints = 1 << np.ceil(np.log2(tokens)).astype(np.int64)
    return powers


class Buddy:
    """Contiguous pieces of a pool, as a buddy allocator hands them out (Knowlton, CACM 1965).

    A piece has 2^k blocks and starts at a multiple of 2^k: its buddy is the other half of the piece of twice that size.
    The pool need not be a power of two: it starts as one piece for each 1 in its binary form, the largest first. Each lies at
    a multiple of twice its size, so that its would-be buddy lies where only smaller pieces are, and it never merges.
    """

    def __init__(self, blocks: int) -> None:
        self.free = blocks
        self.most = 1 << (blocks.bit_length() - 1)  # blocks in the largest piece it can ever hand out
        self._free: dict[int, list[int]] = {}  # size → first blocks of the free pieces, ascending
        address = 0
        for k in reversed(range(blocks.bit_length())):
            if blocks >> k & 1:
                self._free[1 << k] = [address]
                address += 1 << k

    def take(self, count: int) -> int | None:
        """First block of a piece for `count` blocks: of the smallest that will do the first, halved until it just fits.

        None: no free piece is large enough, however much is free in all.
        """
        size = piece(count)
        enough = [k for k, there in self._free.items() if k >= size and there]
        if not enough:
            return None
        whole = min(enough)
        address = self._free[whole].pop(0)
        while whole > size:
            whole //= 2
            insort(self._free.setdefault(whole, []), address + whole)
        self.free -= size
        return address

    def give(self, address: int, count: int) -> None:
        """Give back the piece for `count` blocks at `address`; it merges with its buddy as often as that is free."""
        size = piece(count)
        self.free += size
        while (buddy := address ^ size) in self._free.get(size, ()):
            self._free[size].remove(buddy)
            address, size = min(address, buddy), 2 * size
        insort(self._free.setdefault(size, []), address)

    @property
    def largest(self) -> int:
        """Blocks in the largest free piece."""
        return max((size for size, there in self._free.items() if there), default=0)


def piece(count: int) -> int:
    """Blocks in the piece that holds `count` of them."""
    return 1 << (count - 1).bit_length()
