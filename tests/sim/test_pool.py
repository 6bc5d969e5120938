"""The block pool against one that keeps every block by itself, as SEMANTICS.md, rules 21 to 27, has it."""

from __future__ import annotations

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from sim.kv.content import Chains
from sim.kv.pool import Line, Pool, Tangle
from sim.trace import Content, Trace

SIZE = 2
Tokens = list[tuple[int, int]]


class Block:
    """One block: what it holds from the start of its request to its own end, if it is full, and how many hold it."""

    def __init__(self) -> None:
        self.key: tuple[tuple[int, int], ...] | None = None
        self.holders = 0


class Blocks:
    """A pool of blocks, every one by itself."""

    def __init__(self, blocks: int) -> None:
        self.free = [Block() for _ in range(blocks)]  # taken from the front
        self.published: list[Block] = []  # oldest first
        self.held: dict[int, list[Block]] = {}

    def find(self, tokens: Tokens) -> list[Block]:
        found: list[Block] = []
        for end in range(SIZE, len(tokens), SIZE):
            copies = [block for block in self.published if block.key == tuple(tokens[:end])]
            if not copies:
                break
            found.append(copies[0])
        return found

    def enter(self, request: int, found: list[Block]) -> None:
        for block in found:
            if not block.holders:
                self.free.remove(block)
            block.holders += 1
        self.held[request] = list(found)

    def grow(self, request: int, tokens: Tokens) -> None:
        held = self.held[request]
        while len(held) * SIZE < len(tokens):
            block = self.free.pop(0)
            if block in self.published:
                self.published.remove(block)
            block.key, block.holders = None, 1
            held.append(block)
        for j, block in enumerate(held[: len(tokens) // SIZE]):
            if block.key is None:
                block.key = tuple(tokens[: (j + 1) * SIZE])
                self.published.append(block)

    def release(self, request: int) -> None:
        for block in reversed(self.held.pop(request)):
            block.holders -= 1
            if not block.holders and block.key is None:
                self.free.insert(0, block)
            elif not block.holders:
                self.free.append(block)


@st.composite
def requests(draw: st.DrawFn) -> list[list[tuple[int, int, int]]]:
    """Prompts that start with one of two texts, most with the same, go on with another one, and may end with their own."""
    prompts = []
    for i in range(draw(st.integers(3, 14))):
        runs = [(draw(st.sampled_from([1, 1, 1, 1, 2])), 0, draw(st.sampled_from([2, 6, 8, 9, 12, 12])))]
        if draw(st.integers(0, 3)) == 0:
            runs.append((3, 0, draw(st.integers(1, 6))))
        if draw(st.booleans()):
            runs.append((100 + i, 0, draw(st.integers(1, 6))))
        prompts.append(runs)
    return prompts


@settings(max_examples=300)
@given(requests(), st.integers(8, 20), st.data())
def test_the_pool_decides_as_one_that_keeps_every_block_by_itself(
    prompts: list[list[tuple[int, int, int]]], blocks: int, data: st.DataObject
) -> None:
    n = len(prompts)
    length = [sum(length for _, _, length in runs) for runs in prompts]
    content = Content.of(prompts, [1_000 + i for i in range(n)])
    chains = Chains(SIZE)
    chains.submit(Trace(np.zeros(n), length, np.ones(n), content=content))
    tokens = [[(stream, start + k) for stream, start, length in runs for k in range(length)] for runs in prompts]
    ours, theirs = Pool(blocks, SIZE, chains), Blocks(blocks)
    waiting, running, kinds = list(range(n)), dict[int, int](), set[type]()
    for _ in range(data.draw(st.integers(30, 90))):
        kind = data.draw(st.sampled_from(["enter", "enter", "grow", "grow", "grow", "end", "preempt", "preempt"]))
        if kind == "enter" and waiting:
            i = data.draw(st.sampled_from(waiting))
            found, idle = ours.find(i, (length[i] - 1) // SIZE)
            blocks_found = theirs.find(tokens[i])
            if idle > ours.free:
                continue
            waiting.remove(i)
            ours.hold(i, found, idle)
            theirs.enter(i, blocks_found)
            running[i] = len(blocks_found) * SIZE
        elif kind == "grow" and running:
            i = data.draw(st.sampled_from(sorted(running)))
            to = data.draw(st.sampled_from([length[i], (running[i] + length[i]) // 2, min(running[i] + SIZE, length[i])]))
            needs = -(-to // SIZE) + -running[i] // SIZE
            if needs > ours.free:
                continue
            ours.take(needs)
            ours.publish(i, to)
            theirs.grow(i, tokens[i][:to])
            running[i] = to
        elif kind in ("end", "preempt") and running:
            i = data.draw(st.sampled_from(sorted(running)))
            held = ours.release(i, running.pop(i), again=kind == "preempt")
            assert held == len(theirs.held[i])
            theirs.release(i)
            if kind == "preempt":
                waiting.append(i)
        assert ours.free == len(theirs.free)
        kinds |= {type(line) for line in ours._lines.values()}
        for i in waiting:
            there = theirs.find(tokens[i])
            assert ours.find(i, (length[i] - 1) // SIZE) == (len(there), sum(not block.holders for block in there))
    event(f"a line {Line in kinds}, a tangle {Tangle in kinds}")
