"""Sharing: how many KV blocks the samples or beams of one prompt hold together, with reference counts and copy on write.

PagedAttention (SOSP 2023, section 4.4). The last output token of a request is never fed back, so it has no KV: a sample of
`output` tokens holds prompt + output − 1.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sim.trace import Ints


@dataclass(frozen=True)
class Shared:
    """What the sequences of one prompt hold when the KV of all their tokens is there.

    blocks   different physical blocks
    without  blocks if every sequence had its own
    tables   of each sequence, its physical blocks in logical order
    refs     physical block → how many tables have it, ≥ 1
    copies   how often a block was copied because its writer shared it
    most     different physical blocks at the moment there were most
    """

    blocks: int
    without: int
    tables: list[list[int]]
    refs: dict[int, int]
    copies: int
    most: int

    @property
    def saving(self) -> float:
        """Blocks saved over blocks without sharing, as the paper's figure 15 has it."""
        return 1 - self.blocks / self.without


class Tables:
    """The block tables of `n` sequences that start from one prompt, which is computed once.

    Physical blocks are numbered from 0; a new one gets the lowest number that is free.
    """

    def __init__(self, prompt: int, n: int, block_size: int) -> None:
        for name, value in (("prompt", prompt), ("n", n), ("block_size", block_size)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.block_size, self.tokens = block_size, prompt
        self.refs: dict[int, int] = {}
        self.copies = self.most = 0
        self._free: list[int] = []
        self.tables = [[self._new() for _ in range(-(-prompt // block_size))]]
        self.fork([0] * n)

    def write(self) -> None:
        """Each sequence stores the KV of one more token: in a new block where its last one is full, else in its last one.

        One that others have too is copied first; the last to write finds itself alone and writes in place.
        """
        full = self.tokens % self.block_size == 0
        for table in self.tables:
            if full:
                table.append(self._new())
            elif self.refs[table[-1]] > 1:
                self._drop(table[-1])
                table[-1] = self._new()
                self.copies += 1
        self.tokens += 1

    def fork(self, parents: Iterable[int]) -> None:
        """The sequences become copies of these ones, by table; a block that no table has any more is free."""
        chosen = list(parents)
        old, self.tables = self.tables, [list(self.tables[parent]) for parent in chosen]
        for i, table in enumerate(old):
            more = chosen.count(i) - 1  # what was one table is so many; the other tables still count theirs
            if more > 0:
                for block in table:
                    self.refs[block] += more
            elif more < 0:
                self._drop_all([table])

    def free(self) -> None:
        """All sequences end."""
        old, self.tables = self.tables, []
        self._drop_all(old)

    def _new(self) -> int:
        block = heapq.heappop(self._free) if self._free else len(self.refs)
        self.refs[block] = 1
        self.most = max(self.most, len(self.refs))
        return block

    def _drop_all(self, tables: list[list[int]]) -> None:
        for table in tables:
            for block in table:
                self._drop(block)

    def _drop(self, block: int) -> None:
        self.refs[block] -= 1
        if not self.refs[block]:
            del self.refs[block]
            heapq.heappush(self._free, block)


def samples(prompt: int, output: int, n: int, block_size: int) -> Shared:
    """Parallel sampling: `n` samples of `output` tokens each. The blocks that the prompt fills are shared for good."""
    tables = Tables(prompt, n, block_size)
    for _ in range(_more(output)):
        tables.write()
    return _shared(tables)


def sample_blocks(prompt: Ints, output: Ints, n: int, block_size: int) -> Ints:
    """`samples(…).blocks` of many prompts at once, in closed form; same shape as prompt and output.

    The full blocks of the prompt are there once. All else each sample has for itself, as soon as it writes into it.
    """
    full, each = prompt // block_size, -(-(prompt + output - 1) // block_size)
    blocks: Ints = np.where(output > 1, full + n * (each - full), each)
    return blocks


def beams(prompt: int, output: int, k: int, block_size: int, rng: np.random.Generator) -> Shared:
    """Beam search of width `k`: the first k tokens go on from the prompt; then, at every step, each of the k new beams goes on
    from a parent drawn uniformly from the k old ones.

    That is all that is assumed of the model: real beams follow the likelihoods, which a length does not tell. Counted after
    the last KV is written, before the beams of the last token are chosen.
    """
    tables = Tables(prompt, k, block_size)
    parents = rng.integers(0, k, (_more(output), k)).tolist()
    for step, chosen in enumerate(parents):
        if step:
            tables.fork(chosen)
        tables.write()
    return _shared(tables)


def _more(output: int) -> int:
    """Output tokens that get KV."""
    if output < 1:
        raise ValueError(f"output must be at least 1 token, not {output}")
    return output - 1


def _shared(tables: Tables) -> Shared:
    without = len(tables.tables) * -(-tables.tokens // tables.block_size)
    return Shared(len(tables.refs), without, tables.tables, dict(tables.refs), tables.copies, tables.most)
