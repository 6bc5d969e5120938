"""What a fleet does for users who wait: so many conversations at once, whose next turn comes when the reply has ended."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from sim.engine import Engine
from sim.kv.content import Chains
from sim.policy import Policy
from sim.routers import Arrival, Router
from sim.run import Run
from sim.service import StepTime
from sim.trace import Trace


@dataclass(frozen=True)
class Served:
    """What happened until the last conversation began, since as many as asked for are under way only so long.

    runs    one a replica, of the requests that went there, with the arrivals that came of it; the last have no end
    begun   s, when the last conversation began; figures are of the second half of that time, when caches have filled
    """

    runs: tuple[Run, ...]
    begun: float

    @property
    def ttft(self) -> float:
        """Mean time to first token of the requests that came, s."""
        late = [(run.first_token_us / 1e6 - run.trace.arrival)[run.trace.arrival > self.begun / 2] for run in self.runs]
        return float(np.nanmean(np.concatenate(late)))

    @property
    def hit_rate(self) -> float:
        """Prompt tokens found in the prefix caches, of all prompt tokens of the requests that came."""
        late = [run.trace.arrival > self.begun / 2 for run in self.runs]
        found = sum(int(run.cached[rows].sum()) for run, rows in zip(self.runs, late, strict=True))
        return found / sum(int(run.trace.prompt[rows].sum()) for run, rows in zip(self.runs, late, strict=True))

    @property
    def throughput(self) -> float:
        """Prompt and reply tokens per second of the requests that ended."""
        tokens = 0
        for run in self.runs:
            rows = (run.finished_us > 0.5e6 * self.begun) & (run.finished_us <= 1e6 * self.begun)
            tokens += int((run.trace.prompt + run.trace.output)[rows].sum())
        return tokens / (self.begun / 2)


def serve(threads: Trace, at_once: int, service: StepTime, policy: Policy, router: Router, replicas: int,
          tick_s: float = 0.02) -> Served:
    """Serve the conversations of the trace, `at_once` of them at any time, until the last begins; where one ends the next begins.

    threads  turns one after another, conversation by conversation (`session` says whose); arrivals are not used
    router   may go by session and load; it is told of no matches
    tick_s   the clock's step, s: a turn comes up to that much after the reply before it

    Each replica must get a request. ValueError unless there are sessions, more than `at_once`, and a prefix cache.
    """
    if threads.session is None or policy.memory is None or not policy.memory.prefix_cache:
        raise ValueError("conversations need a trace with sessions and a policy with a prefix cache")
    fleet = _Fleet(threads, service, policy, replicas)
    last = np.append(np.diff(threads.session) != 0, True).tolist()
    waiting = deque([0, *(row + 1 for row in range(len(last) - 1) if last[row])])
    if len(waiting) <= at_once:
        raise ValueError(f"there must be more conversations than {at_once}, which are under way at once, not {len(waiting)}")
    ready, now = [waiting.popleft() for _ in range(at_once)], 0.0
    while waiting:
        for row in ready:
            fleet.send(row, now, router)
        now += 1e6 * tick_s
        ready = []
        for row in fleet.ended(now):
            if not last[row]:
                ready.append(row + 1)
            elif waiting:
                ready.append(waiting.popleft())
    return Served(fleet.runs(), now / 1e6)


class _Fleet:
    """The engines, and which row of the trace each of their requests is."""

    def __init__(self, threads: Trace, service: StepTime, policy: Policy, replicas: int) -> None:
        assert policy.memory is not None and threads.session is not None
        self.threads, self.sessions = threads, threads.session.tolist()
        self.engines = [Engine(service, policy) for _ in range(replicas)]
        for engine in self.engines:
            engine.said = []
        self.intake = self.engines[0].prepare(threads)
        self.chains = Chains(policy.memory.block_size)
        self.chains.submit(threads)
        self.rows: list[list[int]] = [[] for _ in self.engines]
        self.load, self.heard = [0] * replicas, [0] * replicas

    def send(self, row: int, now: float, router: Router) -> None:
        """Let the router decide at `now`, µs."""
        self.intake.arrival[row] = now
        spans = self.chains.spans(row)
        self.chains.drop(row)
        i = router(Arrival(now / 1e6, self.sessions[row], self.intake.prompt[row], self.load))
        self.engines[i].receive(self.intake, row, spans, row in self.chains.quoted)
        self.rows[i].append(row)
        self.load[i] += 1

    def ended(self, now: float) -> list[int]:
        """Rows whose last token has come by `now`, µs, since this was last asked."""
        rows = []
        for i, engine in enumerate(self.engines):
            if not self.load[i]:
                continue
            if engine.due_us < now:
                engine.advance(now)
            said = engine.said
            assert said is not None
            while self.heard[i] < len(said):
                request, last = said[self.heard[i]], said[self.heard[i]] >= 0
                if engine.times_of(request if last else ~request)[last] > now:
                    break
                self.heard[i] += 1
                if last:
                    self.load[i] -= 1
                    rows.append(self.rows[i][request])
        return rows

    def runs(self) -> tuple[Run, ...]:
        """What became of the requests so far, replica by replica."""
        arrival = np.array(self.intake.arrival) / 1e6
        return tuple(
            engine.run(Trace(arrival[rows], self.threads.prompt[rows], self.threads.output[rows]))
            for engine, rows in zip(self.engines, self.rows, strict=True)
        )
