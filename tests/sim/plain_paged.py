"""The rules of peers/vllm/SEMANTICS.md taken word by word: one loop turn a step, one object a block, nothing shared with sim/.

Slow and plain, so that it can be read beside the rules, and the oracle for the engine with memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sim.policy import Policy
from sim.service import Affine
from sim.trace import Trace


@dataclass(eq=False)
class Block:
    key: tuple[object, ...] | None = None
    holders: int = 0


@dataclass(eq=False)
class Request:
    index: int
    arrival: float
    prompt: int
    limit: int  # output tokens after which it ends
    priority: int
    cancel: float
    tokens: list[object]  # what it holds, token by token, prompt and reply
    known: int = 0
    computed: int = 0
    blocks: list[Block] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    admitted: float = math.nan
    finished: float = math.nan
    outcome: str = ""
    preemptions: int = 0
    hits: int | None = None
    chunk: bool = False  # its last grant left prompt tokens to compute

    @property
    def urgency(self) -> tuple[int, float]:
        return (self.priority, self.arrival)


class Server:
    def __init__(self, policy: Policy, requests: list[Request]) -> None:
        self.policy, self.memory = policy, policy.memory
        self.size = self.memory.block_size
        self.free = [Block() for _ in range(self.memory.blocks)]  # taken from the front
        self.published: dict[tuple[object, ...], list[Block]] = {}
        self.requests, self.waiting, self.running = requests, [], []
        self.recomputed, self.executed, self.last_prefill, self.bound = 0, 0, -policy.prefill_every, False
        self.log: list[tuple[float, float, list[tuple[int, int]], int]] = []  # start, end, grants, free blocks

    def need(self, r: Request, tokens: int) -> int:
        return max(0, math.ceil(tokens / self.size) - len(r.blocks))

    def take(self, r: Request, tokens: int) -> None:
        """Blocks for the first `tokens` tokens; full ones are published as soon as they are scheduled (22)."""
        for _ in range(self.need(r, tokens)):
            block = self.free.pop(0)
            if block.key is not None:
                self.published[block.key].remove(block)
                if not self.published[block.key]:
                    del self.published[block.key]
                block.key = None
            block.holders = 1
            r.blocks.append(block)
        if self.memory.prefix_cache:
            for j in range(tokens // self.size):
                if r.blocks[j].key is None:
                    r.blocks[j].key = self.key(r, j)
                    self.published.setdefault(r.blocks[j].key, []).append(r.blocks[j])

    def key(self, r: Request, j: int) -> tuple[object, ...]:
        return tuple(r.tokens[: (j + 1) * self.size])

    def hit(self, r: Request) -> list[Block]:
        found: list[Block] = []
        while self.memory.prefix_cache and (len(found) + 1) * self.size <= r.known - 1:
            copies = self.published.get(self.key(r, len(found)))
            if not copies:
                break
            found.append(copies[0])
        return found

    def release(self, r: Request) -> None:
        for block in reversed(r.blocks):
            block.holders -= 1
            if block.holders == 0:
                if block.key is None:
                    self.free.insert(0, block)
                else:
                    self.free.append(block)
        r.blocks = []

    def preempt(self, r: Request) -> None:
        self.running.remove(r)
        self.release(r)
        self.recomputed += r.computed
        r.computed, r.preemptions = 0, r.preemptions + 1
        self.queue(r, front=True)

    def queue(self, r: Request, front: bool = False) -> None:
        if front and self.policy.order == "fcfs":
            self.waiting.insert(0, r)
        else:
            self.waiting.append(r)
        if self.policy.order == "priority":
            self.waiting.sort(key=lambda r: (r.priority, r.arrival, r.index))

    def victim(self) -> Request:
        """Who gives way; of equals the one who came last."""
        keys = {
            "newest": lambda v: (v.arrival, v.index), "least_urgent": lambda v: v.urgency,
            "longest": lambda v: (v.computed, v.arrival), "shortest": lambda v: (-v.computed, v.arrival),
        }
        if self.policy.victim != "last":
            return max(self.running, key=keys[self.policy.victim])
        return max(self.running, key=lambda v: v.urgency) if self.policy.order == "priority" else self.running[-1]

    def schedule(self, now: float) -> list[tuple[Request, int]]:
        p = self.policy
        budget, grants, preempted = p.budget, {}, False
        count = len(self.running) + len(self.waiting)
        cap = p.chunk_cap if count > 1 else 0
        if cap and p.fair_cap:
            cap = max(cap, p.budget // count)
        decoding = any(not r.chunk for r in self.running)
        hold = (p.prefill_every > 1 and not self.bound and decoding
                and self.executed + 1 - self.last_prefill < p.prefill_every)
        prefilled = False
        index = 0
        while index < len(self.running) and budget > 0:
            r = self.running[index]
            gap = r.known - r.computed
            if hold and r.chunk:
                index += 1
                continue
            grant = min(gap, cap or gap, budget)
            ok = True
            while self.need(r, r.computed + grant) > len(self.free):
                victim = self.victim()
                if self.running.index(victim) < index:
                    index -= 1
                budget += grants.pop(victim, 0)
                self.preempt(victim)
                preempted = True
                if victim is r:
                    ok = False
                    break
            if not ok:
                if p.order == "priority" or p.victim != "last":
                    continue
                break
            self.take(r, r.computed + grant)
            grants[r] = grant
            prefilled |= r.chunk
            budget -= grant
            index += 1
        if not preempted:
            while self.waiting and budget > 0 and len(self.running) < p.slots:
                r = self.waiting[0]
                found = self.hit(r)
                done = len(found) * self.size
                if hold and done < r.known - 1:
                    break
                grant = r.known - done
                grant = min(grant, cap or grant)
                if grant > budget and p.prompts != "chunked":
                    break
                grant = min(grant, budget)
                asked = r.known if self.memory.full_prompt else done + grant
                needs = math.ceil(asked / self.size) - len(found) + sum(b.holders == 0 for b in found)
                if self.running:
                    needs += self.memory.watermark_blocks
                if needs > len(self.free):
                    break
                for block in found:
                    if block.holders == 0:
                        self.free.remove(block)
                    block.holders += 1
                r.blocks = list(found)
                self.take(r, done + grant)
                self.waiting.pop(0)
                self.running.append(r)
                if math.isnan(r.admitted):
                    r.admitted, r.hits = now, done
                r.computed = done
                grants[r] = grant
                budget -= grant
                prefilled |= done < r.known - 1
            if not hold:
                self.bound = bool(self.waiting)
        if grants:
            self.executed += 1
            if prefilled:
                self.last_prefill = self.executed
        return list(grants.items())

    def cancel(self, now: float) -> None:
        for r in sorted(self.waiting + self.running, key=lambda r: (r.cancel, r.index)):
            if r.cancel <= now:
                if r in self.running:
                    self.running.remove(r)
                    self.release(r)
                else:
                    self.waiting.remove(r)
                r.finished, r.outcome = now, "cancelled"

    def run(self, clock: Affine, most: int = 100_000) -> None:
        now, todo = 0.0, list(self.requests)
        for _ in range(most):  # empty steps count: two prompts may take each other's blocks for ever
            while todo and todo[0].arrival <= now:
                self.queue(todo.pop(0))
            self.cancel(now)
            grants = self.schedule(now) if self.waiting or self.running else []
            free = len(self.free)
            for r, grant in grants:
                r.computed += grant
                r.chunk = r.computed < r.known
            tokens = sum(grant for _, grant in grants)
            took = float(clock.base + clock.per_token_us * tokens + clock.per_request_us * len(grants)) if grants else 0.0
            if grants:
                self.log.append((now, now + took, [(r.index, grant) for r, grant in grants], free))
                now += took
                self.cancel(now)
                for r, _ in grants:
                    if r.outcome or r.computed < r.known:
                        continue
                    r.times.append(now)
                    r.known += 1
                    if len(r.times) == r.limit:
                        self.running.remove(r)
                        self.release(r)
                        r.finished, r.outcome = now, "finished"
                continue
            if self.running or (any(r.preemptions for r in self.waiting) and self._can_go()):
                continue  # an empty step: somebody preempted itself, and comes back
            events = [r.arrival for r in todo[:1]] + [r.cancel for r in self.waiting if r.cancel < math.inf]
            if not events:
                return
            now = max(now, min(events))

    def _can_go(self) -> bool:
        r = self.waiting[0]
        first = min(r.known, self.policy.budget) if not self.memory.full_prompt else r.known
        return math.ceil(first / self.size) <= self.memory.blocks


def serve(trace: Trace, clock: Affine, policy: Policy, most: int = 100_000) -> Server:
    requests, content = [], trace.content
    for i in range(len(trace)):
        prompt, output = int(trace.prompt[i]), int(trace.output[i])
        limit = output if policy.longest is None else min(output, policy.longest - prompt)
        runs = [(-1 - i, 0, prompt), (-(10**6) - i, 0, output)]
        if content is not None:
            mine = slice(content.first[i], content.first[i + 1])
            prompts = zip(content.stream[mine], content.start[mine], content.length[mine], strict=True)
            runs = [*prompts, (content.reply[i], 0, output)]
        tokens = [(int(stream), int(start) + k) for stream, start, length in runs for k in range(length)]
        priority = 0 if trace.priority is None else int(trace.priority[i])
        cancel = math.inf if trace.cancel_us is None else float(trace.cancel_us[i])
        requests.append(Request(i, float(trace.arrival_us[i]), prompt, limit, priority, cancel, tokens, known=prompt))
    server = Server(policy, requests)
    server.run(clock, most)
    return server
