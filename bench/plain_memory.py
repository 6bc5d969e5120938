"""bench/plain.py with KV memory as vLLM rules it: paged, with or without a prefix cache; the newest gives way."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterator

import numpy as np

from bench.plain import Times
from sim.policy import Memory
from sim.service import StepTime
from sim.trace import Trace


def serve(trace: Trace, service: StepTime, slots: int, budget: int, memory: Memory) -> Times:
    """When each request was first admitted, got its first token and its last one, µs; nan for one that can never fit.

    First come first served. Who runs takes blocks as its tokens come; where none is free, the newest running request gives
    up all of its own, computes its tokens again later, and waits before those who never ran. A request enters when its
    whole prompt has blocks. slots < budget, so that no decode is ever left out.
    """
    if slots >= budget:
        raise ValueError(f"the budget must be larger than the slots, not {budget} for {slots}")
    if memory.reserve != "nothing" or not memory.full_prompt or memory.watermark or memory.swap_us is not None:
        raise ValueError("memory must be paged, admit whole prompts, recompute, and keep no watermark")
    arrival, prompt, output = trace.arrival_us.tolist(), trace.prompt.tolist(), trace.output.tolist()
    base = service.base_us(np.arange(budget + 1)).tolist()
    context_us, attention_us, request_us = service.context_us, service.attention_us, service.request_us
    pool = Cached(trace, memory) if memory.prefix_cache else Counted(memory)
    size, room = memory.block_size, pool.room
    n = len(arrival)
    admitted, first, finished = [math.nan] * n, [math.nan] * n, [math.nan] * n
    computed, yielded = [0] * n, [0] * n  # tokens with KV, output tokens there
    known = list(prompt)  # tokens to compute before the next one comes
    fits = [-(-(p + o - 1) // size) <= memory.blocks for p, o in zip(prompt, output, strict=True)]
    running: list[int] = []
    preempted: deque[int] = deque()
    head, now = 0, 0.0

    while True:
        while head < n and not fits[head]:
            head += 1
        if not running and not preempted:
            if head == n:
                return admitted, first, finished
            now = max(now, arrival[head])
        left, context, units, short = budget, 0, 0.0, False
        chunks = {}
        place = 0
        while place < len(running):
            r = running[place]
            done = computed[r]
            grant = 1 if done >= known[r] else min(left, known[r] - done)
            while done + grant >= room[r] and not pool.grow(r, done + grant):
                short = True
                victim = running.pop()
                pool.release(victim, computed[victim])
                known[victim], computed[victim] = prompt[victim] + yielded[victim], 0
                preempted.appendleft(victim)
                if victim == r:
                    break
            if place == len(running):
                break
            if done >= known[r]:
                context += done + 1
            else:
                chunks[r] = grant
                units += grant * (done + (grant + 1) / 2)
            left -= grant
            place += 1
        while left and not short and len(running) < slots and (preempted or (head < n and arrival[head] <= now)):
            r = preempted[0] if preempted else head
            done = pool.enter(r, known[r], left)
            if done < 0:
                break
            if preempted:
                preempted.popleft()
            else:
                head += 1
                while head < n and not fits[head]:
                    head += 1
            if math.isnan(admitted[r]):
                admitted[r] = now
            computed[r] = done
            chunks[r] = grant = min(left, known[r] - done)
            units += grant * (done + (grant + 1) / 2)
            left -= grant
            running.append(r)

        if not running:
            continue  # the last one preempted itself, and comes back
        now += base[budget - left] + context_us * context + attention_us * units + request_us * len(running)

        ended = False
        for r in running:
            if r in chunks:
                computed[r] += chunks[r]
                if computed[r] < known[r]:
                    continue
                if not yielded[r]:
                    first[r] = now
            else:
                computed[r] += 1
            yielded[r] += 1
            if yielded[r] == output[r]:
                finished[r] = now
                pool.release(r, computed[r])
                ended = True
        if ended:
            running = [r for r in running if yielded[r] < output[r]]


class Counted:
    """Blocks that are all alike: only their number matters."""

    def __init__(self, memory: Memory) -> None:
        self.size, self.free = memory.block_size, memory.blocks
        self.room: dict[int, int] = {}  # tokens that the blocks of a running request hold

    def grow(self, r: int, tokens: int) -> bool:
        """Blocks for the first `tokens` tokens of r; False: too few are free."""
        blocks = (tokens - self.room[r] + self.size - 1) // self.size
        if blocks > self.free:
            return False
        self.free -= blocks
        self.room[r] += blocks * self.size
        return True

    def enter(self, r: int, known: int, budget: int) -> int:
        """Let r in if all its tokens have blocks, and give it those of its first chunk; tokens it need not compute, or -1."""
        if -(-known // self.size) > self.free:
            return -1
        self.room[r] = 0
        self.grow(r, min(known, budget))
        return 0

    def release(self, r: int, tokens: int) -> None:
        """Free the blocks of r."""
        self.free += self.room.pop(r) // self.size


class Cached:
    """Blocks one by one: a full one stays findable under its key until it is handed out again, the least recently used first."""

    def __init__(self, trace: Trace, memory: Memory) -> None:
        self.trace, self.size = trace, memory.block_size
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(memory.blocks))  # handed out from the front
        self.holders = [0] * memory.blocks
        self.key: list[int | None] = [None] * memory.blocks
        self.published: dict[int, list[int]] = {}  # key → blocks with that content, oldest first
        self.keys: dict[int, list[int]] = {}  # of the full blocks of a request
        self.held: dict[int, list[int]] = {}
        self.full: dict[int, int] = {}  # how many of them are published
        self.room: dict[int, int] = {}

    def grow(self, r: int, tokens: int) -> bool:
        """Blocks for the first `tokens` tokens of r, the full ones published; False: too few are free."""
        held = self.held[r]
        more = -(-tokens // self.size) - len(held)
        if more > len(self.free):
            return False
        for _ in range(more):
            block = self.free.popitem(last=False)[0]
            key = self.key[block]
            if key is not None:
                self.key[block] = None
                self.published[key].remove(block)
                if not self.published[key]:
                    del self.published[key]
            self.holders[block] = 1
            held.append(block)
        self.room[r] = len(held) * self.size
        full, keys = tokens // self.size, self.keys[r]
        for place in range(self.full[r], full):
            self.key[held[place]] = keys[place]
            self.published.setdefault(keys[place], []).append(held[place])
        self.full[r] = max(full, self.full[r])
        return True

    def enter(self, r: int, known: int, budget: int) -> int:
        """Let r in if all its tokens have blocks; tokens found in the cache, the last one never among them, or -1."""
        if r not in self.keys:
            self.keys[r] = list(block_keys(self.trace, r, self.size))
        found, idle = [], 0
        for key in self.keys[r][: (known - 1) // self.size]:
            if key not in self.published:
                break
            block = self.published[key][0]
            found.append(block)
            idle += not self.holders[block]
        if -(-known // self.size) - len(found) + idle > len(self.free):
            return -1
        for block in found:
            if not self.holders[block]:
                del self.free[block]
            self.holders[block] += 1
        done = len(found) * self.size
        self.held[r], self.full[r] = found, len(found)
        self.grow(r, done + min(known - done, budget))
        return done

    def release(self, r: int, tokens: int) -> None:
        """Free the blocks of r, the last one first; one that nobody can find goes to the front."""
        for block in reversed(self.held.pop(r)):
            self.holders[block] -= 1
            if not self.holders[block]:
                self.free[block] = None
                if self.key[block] is None:
                    self.free.move_to_end(block, last=False)
        del self.room[r], self.full[r]
        if tokens == self.trace.prompt[r] + self.trace.output[r] - 1:
            del self.keys[r]


def block_keys(trace: Trace, r: int, size: int) -> Iterator[int]:
    """A key for each full block of prompt and reply: the hash of the block before it and of its own tokens, as runs."""
    content, output = trace.content, int(trace.output[r])
    if content is None:
        runs = [(r, 0, int(trace.prompt[r]) + output)]
    else:
        mine = slice(content.first[r], content.first[r + 1])
        runs = list(zip(content.stream[mine].tolist(), content.start[mine].tolist(), content.length[mine].tolist(), strict=True))
        runs.append((int(content.reply[r]), 0, output))
    parent, pieces, missing = 0, [], size
    for stream, start, length in runs:
        while length:
            part = min(missing, length)
            pieces.append((stream, start, part))
            start, length, missing = start + part, length - part, missing - part
            if not missing:
                parent = hash((parent, *pieces))
                yield parent
                pieces, missing = [], size
