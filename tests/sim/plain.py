"""A server that takes one step after another: slow, plain, and the oracle for the engine and for static batching.

It follows the rules that sim/policy.py states, word by word: one turn of a Python loop and one row for each step.
Nothing here is shared with sim/engine.py or sim/static.py, so that equal results mean something.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from sim.policy import Policy
from sim.run import FINISHED, Run, Steps
from sim.service import StepTime
from sim.trace import Trace


class _Server:
    """The clock, what each request has got so far, and the steps taken."""

    def __init__(self, trace: Trace, service: StepTime) -> None:
        n = len(trace)
        self.service, self.now = service, 0.0
        self.arrival = [float(x) for x in trace.arrival_us]
        self.prompt = [int(x) for x in trace.prompt]
        self.output = [int(x) for x in trace.output]
        self.computed = [0] * n                          # prompt tokens computed
        self.tokens: list[list[float]] = [[] for _ in range(n)]  # when each output token came, µs
        self.admitted, self.released = [math.nan] * n, [math.nan] * n
        self.rows: list[tuple[float, int, float, float, int, int, int]] = []

    def ended(self, r: int) -> bool:
        return len(self.tokens[r]) == self.output[r]

    def step(self, grants: list[tuple[int, int]]) -> None:
        """Run one step that gives each (request, tokens) of `grants` its tokens, and move the clock to its end."""
        context = attention = 0.0
        decode = prefilling = prefill = 0
        for r, tokens in grants:
            if self.computed[r] == self.prompt[r]:       # its prompt is done: this is its j-th decode step
                decode += 1
                context += self.prompt[r] + len(self.tokens[r])
            else:
                prefilling, prefill = prefilling + 1, prefill + tokens
                attention += tokens * (self.computed[r] + (tokens + 1) / 2)
        base = float(self.service.base_us(np.array([decode + prefill], np.int64))[0])
        took = (base + self.service.context_us * context + self.service.attention_us * attention
                + self.service.request_us * len(grants))
        self.rows.append((self.now, 1, took, 0.0, decode, prefilling, prefill))
        for r, _ in grants:
            if math.isnan(self.admitted[r]):
                self.admitted[r] = self.now
        self.now += took
        for r, tokens in grants:
            if self.computed[r] < self.prompt[r]:
                self.computed[r] += tokens
            if self.computed[r] == self.prompt[r]:
                self.tokens[r].append(self.now)


def _static(s: _Server, policy: Policy) -> None:
    n, head, free = len(s.arrival), 0, 0.0
    while head < n:
        fills = s.arrival[min(head + policy.slots, n) - 1]
        s.now = max(free, min(fills, s.arrival[head] + policy.fill_timeout * 1e6))
        members = [r for r in range(head, min(head + policy.slots, n)) if s.arrival[r] <= s.now]
        s.step([(r, s.prompt[r]) for r in members])
        while going := [r for r in members if not s.ended(r)]:
            s.step([(r, 1) for r in going])
        for r in members:
            s.released[r] = s.now
        head, free = head + len(members), s.now


def _continuous(s: _Server, policy: Policy) -> None:
    waiting, running = deque(range(len(s.arrival))), []
    budget = math.inf if policy.budget is None else policy.budget
    while waiting or running:
        left, grants = budget, []
        may_enter = bool(waiting) and s.arrival[waiting[0]] <= s.now and len(running) < policy.slots
        if policy.prompts == "alone":                    # prompts if any may enter, else decodes, all of them
            grants = [] if may_enter else [(r, 1) for r in running]
        else:                                            # those that run come first, in order of admission
            for r in running:
                tokens = int(min(left, max(s.prompt[r] - s.computed[r], 1)))
                if tokens > 0:
                    grants.append((r, tokens))
                    left -= tokens
        while waiting and s.arrival[waiting[0]] <= s.now and len(running) < policy.slots and left > 0:
            r = waiting[0]                               # then those that wait, first come first served
            tokens = int(min(left, s.prompt[r]))
            if policy.prompts != "chunked" and tokens < s.prompt[r]:
                break
            running.append(waiting.popleft())
            grants.append((r, tokens))
            left -= tokens
        if not grants:
            s.now = s.arrival[waiting[0]]                # nothing to do before the next arrival
            continue
        s.step(grants)
        for r in running:
            if s.ended(r):
                s.released[r] = s.now
        running = [r for r in running if not s.ended(r)]


def plain(trace: Trace, service: StepTime, policy: Policy) -> tuple[Run, list[list[float]]]:
    """Serve `trace` step by step; also returns the times of every request's output tokens, µs."""
    whole = policy.batching == "continuous" and policy.prompts != "chunked"
    if whole and policy.budget is not None and int(trace.prompt.max()) > policy.budget:
        raise ValueError("a prompt larger than the budget can never enter whole")
    s = _Server(trace, service)
    (_static if policy.batching == "static" else _continuous)(s, policy)
    first = [t[0] for t in s.tokens]
    last = [t[-1] for t in s.tokens]
    start, count, took, growth, decode, prefilling, prefill = zip(*s.rows, strict=True) if s.rows else [()] * 7
    steps = Steps(np.array(start, float), np.array(count, np.int64), np.array(took, float), np.array(growth, float),
                  np.array(decode, np.int64), np.array(prefilling, np.int64), np.array(prefill, np.int64),
                  np.zeros(len(count), np.int64))
    none = np.zeros(len(first), np.int64)
    run = Run(trace, service, policy, np.array(s.admitted, float), np.array(first, float), np.array(last, float),
              np.array(s.released, float), np.full(len(first), FINISHED, np.int8), steps, none, none, none)
    return run, s.tokens
