"""The same server as a SimPy model: requests arrive in one process; the server is another, and waits out every step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import simpy

from bench.plain import Times
from sim.service import StepTime
from sim.trace import Trace

Events = Generator[simpy.Event, None, None]


@dataclass(slots=True)
class Request:
    """One request and what has become of it; times in µs."""

    arrival: float
    prompt: int
    output: int
    computed: int = 0
    yielded: int = 0
    admitted: float = math.nan
    first: float = math.nan
    finished: float = math.nan


def serve(trace: Trace, service: StepTime, slots: int, budget: int) -> Times:
    """When each request was admitted, got its first token and its last one, µs. Rules and limits as in bench/plain.py.

    A request that arrives at the very instant at which a step ends may miss the next step; with a fitted step time no two
    such instants are equal.
    """
    if slots >= budget:
        raise ValueError(f"the budget must be larger than the slots, not {budget} for {slots}")
    columns = zip(trace.arrival_us.tolist(), trace.prompt.tolist(), trace.output.tolist(), strict=True)
    requests = [Request(*row) for row in columns]
    env = simpy.Environment()
    server = Server(env, service, slots, budget)
    env.process(server.serve())
    env.process(arrivals(env, server, requests))
    env.run()
    return [r.admitted for r in requests], [r.first for r in requests], [r.finished for r in requests]


def arrivals(env: simpy.Environment, server: Server, requests: list[Request]) -> Events:
    """Process: hand every request to the server when it arrives."""
    for request in requests:
        if request.arrival > env.now:
            yield env.timeout(request.arrival - env.now)
        server.submit(request)


class Server:
    """Takes steps while there is work, and sleeps until the next request otherwise."""

    def __init__(self, env: simpy.Environment, service: StepTime, slots: int, budget: int) -> None:
        self.env, self.slots, self.budget = env, slots, budget
        self.base = service.base_us(np.arange(budget + 1)).tolist()
        self.rates = service.context_us, service.attention_us, service.request_us
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.arrived = env.event()

    def submit(self, request: Request) -> None:
        """Queue a request, and wake the server if it sleeps."""
        self.waiting.append(request)
        if not self.arrived.triggered:
            self.arrived.succeed()

    def serve(self) -> Events:
        """Process: one step after another."""
        while True:
            if not self.running and not self.waiting:
                self.arrived = self.env.event()
                yield self.arrived
            grants, took = self._schedule()
            yield self.env.timeout(took)
            self._finish(grants)

    def _schedule(self) -> tuple[list[int], float]:
        """Tokens for each running request, those just admitted included, and how long the step takes, µs."""
        left, context, units, grants = self.budget, 0, 0.0, []
        for r in self.running:
            if r.computed < r.prompt:
                tokens = min(left, r.prompt - r.computed)
                units += tokens * (r.computed + (tokens + 1) / 2)
            else:
                tokens = 1
                context += r.prompt + r.yielded
            grants.append(tokens)
            left -= tokens
        while left and self.waiting and len(self.running) < self.slots:
            r = self.waiting.popleft()
            r.admitted = self.env.now
            tokens = min(left, r.prompt)
            units += tokens * (tokens + 1) / 2
            self.running.append(r)
            grants.append(tokens)
            left -= tokens
        context_us, attention_us, request_us = self.rates
        return grants, self.base[self.budget - left] + context_us * context + attention_us * units + request_us * len(grants)

    def _finish(self, grants: list[int]) -> None:
        """What the step yields, at its end."""
        now = self.env.now
        for r, tokens in zip(self.running, grants, strict=True):
            if r.computed < r.prompt:
                r.computed += tokens
                if r.computed < r.prompt:
                    continue
                r.first = now
            r.yielded += 1
            if r.yielded == r.output:
                r.finished = now
        self.running = [r for r in self.running if r.yielded < r.output]
