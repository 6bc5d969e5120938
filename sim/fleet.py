"""What a fleet does: several engines behind a router, which decides at each arrival with what it can know by then.

Every engine is the real one, with its queue, prefix cache and step times. At an arrival all engines have decided what they
could by that time, and the router is asked. Its own counts are never late; what engines tell (cache events, queue length,
memory in use) comes as late as `Knowledge` says.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sim.engine import Engine, Intake
from sim.kv.content import Chains, Spans
from sim.kv.match import Index
from sim.policy import Policy
from sim.routers import MATCHING, ROUTERS, Arrival, Router
from sim.run import Run
from sim.service import StepTime
from sim.trace import Floats, Ints, Trace


@dataclass(frozen=True)
class Knowledge:
    """How a router that asks for matches learns what lies where, and how old the engines' reports are.

    source    "events": engines tell what they publish and evict (llm-d precise, Dynamo); "own": the router notes what it sent,
              and hears of no eviction (llm-d approximate, AIBrix)
    delay     s from a change in an engine's cache to the router's knowing it
    poll      s between two reports of queue length and memory in use; 0: as they are at the arrival
    remember  "own": most blocks noted for a replica (llm-d: 31,250 of 16 tokens); None: no limit
    lasting   "own": s that a note lasts (Dynamo without events: 120; AIBrix: 1,200); None: for ever
    """

    source: Literal["events", "own"] = "events"
    delay: float = 0.0
    poll: float = 0.0
    remember: int | None = None
    lasting: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError that names the field and its range."""
        if self.source not in ("events", "own"):
            raise ValueError(f"knowledge: source must be 'events' or 'own', not {self.source!r}")
        for name in ("delay", "poll"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"knowledge: {name} must be 0 s or more, not {getattr(self, name)}")
        if self.remember is not None and self.remember < 1:
            raise ValueError(f"knowledge: remember must be at least 1 block, not {self.remember}; None means no limit")
        if self.lasting is not None and not self.lasting > 0:
            raise ValueError(f"knowledge: lasting must be more than 0 s, not {self.lasting}; None means for ever")


@dataclass(frozen=True)
class Decisions:
    """What was known and what was true at each arrival; one row a request, one column a replica, before it was sent.

    load       int64    requests in flight by the router's count; −1: the replica had not joined
    waiting    int64    of them, those in the engine's queue, as it is (not as it was last reported)
    matched    int64    tokens of the prompt that the router believed there; −1: it did not ask. SGLang's tree names one owner
    there      int64    tokens of the prompt that could be found there, in whole blocks
    score      float64  what the router compared (Dynamo: cost in blocks, the lowest wins; llm-d: the highest); nan: none
    used       int64    KV blocks held by requests
    remembers  int64    free KV blocks that remember a prefix
    """

    load: Ints
    waiting: Ints
    matched: Ints
    there: Ints
    score: Floats
    used: Ints
    remembers: Ints


@dataclass(frozen=True)
class FleetRun:
    """One trace served by a fleet. Request columns have the trace's length and order.

    router     its name
    replica    int64[n]  where each request went
    place      int64[n]  its number in that replica's run
    runs       one a replica, of the requests that went there; None: it got none
    joins      float64[replicas]  s, when each replica joined
    evicted    int64[replicas]    KV blocks that remembered a prefix and were handed out for something else
    decisions  what the router saw, if asked for
    """

    trace: Trace
    policy: Policy
    router: str
    replica: Ints
    place: Ints
    runs: tuple[Run | None, ...]
    joins: Floats
    evicted: Ints
    decisions: Decisions | None = None

    def __len__(self) -> int:
        return len(self.trace)

    def column(self, name: str) -> NDArray[np.generic]:
        """A request column of the runs (first_token_us, finished_us, cached, outcome, …), in the trace's order. [n]"""
        parts = [(np.flatnonzero(self.replica == i), getattr(run, name)) for i, run in enumerate(self.runs) if run is not None]
        values = np.empty(len(self), parts[0][1].dtype)
        for rows, part in parts:
            values[rows] = part
        return values

    @cached_property
    def hits(self) -> Ints:
        """Prompt tokens found in the replica's prefix cache at the first admission. [n]"""
        return self.column("cached").astype(np.int64)

    @property
    def misses(self) -> Ints:
        """Prompt tokens that had to be computed. [n]"""
        return self.trace.prompt - self.hits

    @property
    def hit_rate(self) -> float:
        """Found of all prompt tokens."""
        return float(self.hits.sum() / self.trace.prompt.sum())

    @cached_property
    def ttft(self) -> Floats:
        """Arrival → end of the step that yields the first token, s; nan: never. [n]"""
        return (self.column("first_token_us").astype(np.float64) - self.trace.arrival_us) / 1e6

    @cached_property
    def e2e(self) -> Floats:
        """Arrival → last token, s; nan: never. [n]"""
        return (self.column("finished_us").astype(np.float64) - self.trace.arrival_us) / 1e6

    @property
    def requests(self) -> Ints:
        """How many went to each replica. [replicas]"""
        return np.bincount(self.replica, minlength=len(self.runs))

    @property
    def computed(self) -> Ints:
        """Prompt tokens that each replica had to compute. [replicas]"""
        return np.bincount(self.replica, self.misses, len(self.runs)).astype(np.int64)

    @property
    def imbalance(self) -> float:
        """Requests of the replica that got most, over the mean."""
        return float(self.requests.max() / self.requests.mean())


def simulate_fleet(
    trace: Trace, service: StepTime | Sequence[StepTime], policy: Policy, router: str | Router, replicas: int | None = None, *,
    knowledge: Knowledge | None = None, joins: Sequence[float] | None = None, record: bool = False,
) -> FleetRun:
    """Send every request of the trace to one of the replicas and serve it there, to the end.

    service   of all replicas, or one for each
    router    a name of ROUTERS, with its defaults, or a fresh ROUTERS[name](…); a used one goes on from where it was
    joins     s, when each replica joins, non-decreasing, the first 0; None: all at the start. A request that comes at that
              time may go there
    record    keep `decisions`, which costs a look at every replica for every request

    ValueError names what cannot be, as do Engine and the router.
    """
    services = list(service) if isinstance(service, Sequence) else [service] * (1 if replicas is None else replicas)
    if not services or (replicas is not None and len(services) != replicas):
        raise ValueError(f"replicas must be at least 1 and as many as services; {replicas} and {len(services)} are not")
    since = np.zeros(len(services)) if joins is None else np.array(joins, np.float64)
    if since.shape != (len(services),) or since[0] != 0 or not (np.diff(since) >= 0).all() or not np.isfinite(since).all():
        raise ValueError(f"joins must be a time in s for each of {len(services)} replicas, from 0 on, not {joins}")
    name = router if isinstance(router, str) else getattr(router, "__qualname__", "router").split(".")[0]
    if isinstance(router, str):
        if router not in ROUTERS:
            raise ValueError(f"there is no router {router!r}; there are {', '.join(ROUTERS)}")
        asks = router in MATCHING
        router = ROUTERS[router]()
    else:
        asks = name in MATCHING or name not in ROUTERS
    fleet = _Fleet(trace, services, policy, knowledge or Knowledge(), asks, record)
    return fleet.serve(router, name, since)


class _Fleet:
    """The engines, and what the router knows of them."""

    def __init__(
        self, trace: Trace, services: list[StepTime], policy: Policy, knowledge: Knowledge, asks: bool, record: bool,
    ) -> None:
        n = len(services)
        self.trace, self.policy, self.knowledge = trace, policy, knowledge
        self.engines = [Engine(service, policy) for service in services]
        self.intake: Intake = self.engines[0].prepare(trace)
        self.size = policy.memory.block_size if policy.memory else 16
        self.chains = Chains(self.size)
        self.chains.submit(trace)
        self.cached = policy.memory is not None and policy.memory.prefix_cache
        self.rows: list[list[int]] = [[] for _ in services]
        # What the router counts itself, a number a replica.
        self.load, self.prefill, self.active = [0] * n, [0] * n, [0] * n
        self.owed: list[dict[int, int]] = [{} for _ in services]  # prompt tokens to compute, by request without a first token
        self.heard = [0] * n  # how much of what each engine said
        # What the engines report.
        self.waiting, self.usage, self.reported = [0] * n, [0.0] * n, -1.0
        # What lies where: in truth, and as the router knows it.
        self.truth = Index(n) if record and self.cached else None
        own = knowledge.source == "own"
        self.known = Index(n, knowledge.remember, knowledge.lasting) if asks and self.cached else None
        self.own = own and self.known is not None
        self.listeners = [(index, [deque[tuple[float, int, int]]() for _ in services], delay) for index, delay in (
            (self.truth, 0.0), (None if own else self.known, 1e6 * knowledge.delay)) if index is not None]
        self.record = record
        for engine in self.engines:
            engine.said = []
            if self.listeners:
                engine.pool.told = []
        self._private = 0

    def serve(self, router: Router, name: str, joins: Floats) -> FleetRun:
        trace, knowledge = self.trace, self.knowledge
        n, joins_us = 0, np.rint(1e6 * joins).tolist()
        sessions = None if trace.session is None else trace.session.tolist()
        prompts, arrivals, poll_us = self.intake.prompt, self.intake.arrival, 1e6 * knowledge.poll
        chosen, placed, clock = [0] * len(trace), [0] * len(trace), -1.0
        seen = _Seen(len(trace), len(joins)) if self.record else None
        for row, now in enumerate(arrivals):
            if now > clock:
                while n < len(joins_us) and joins_us[n] <= now:
                    n += 1
                if poll_us and (tick := now // poll_us * poll_us) > self.reported:
                    self.advance(tick, n)
                    self.report(n)
                    self.reported = tick
                self.advance(now, n)
                if not poll_us:
                    self.report(n)
                clock = now
                if self.own and self.known is not None:
                    self.known.forget(now / 1e6)
            prompt = prompts[row]
            path: Spans = self.chains.spans(row)
            self.chains.drop(row)
            arrival = Arrival(
                now / 1e6, None if sessions is None else sessions[row], prompt, self.load[:n], self.prefill[:n],
                self.active[:n], self.waiting[:n], self.usage[:n], self.size, lambda: self.match(path, prompt, n),  # noqa: B023
                lambda: self.content(path, prompt),  # noqa: B023
            )
            choice = router(arrival)
            if not 0 <= choice < n:
                raise ValueError(f"the router sent row {row} to replica {choice}, and there are {n}")
            if seen is not None:
                self.see(seen, row, arrival, path, n)
            if self.own and self.known is not None:
                self.known.send(path, prompt // self.size, choice, now / 1e6)
            chosen[row], placed[row] = choice, self.send(choice, row, arrival, path)
        for engine in self.engines:
            engine.advance(math.inf)
        runs = tuple(
            engine.run(trace.take(np.array(rows))) if rows else None for engine, rows in zip(self.engines, self.rows, strict=True)
        )
        evicted = np.array([engine.pool.evicted for engine in self.engines], np.int64)
        return FleetRun(trace, self.policy, name, np.array(chosen), np.array(placed), runs, joins, evicted,
                        None if seen is None else seen.decisions())

    def advance(self, now: float, n: int) -> None:
        """Let the engines decide what they can by `now`, and hear what they said by then."""
        for i in range(n):
            engine = self.engines[i]
            if not self.load[i] and not engine.waiting:
                continue
            if engine.due_us < now:
                engine.advance(now)
            self.hear(i, engine, now)
        for index, queues, delay in self.listeners:
            for i in range(n):
                queue = queues[i]
                while queue and queue[0][0] + delay <= now:
                    _, key, live = queue.popleft()
                    index.tell(key, i, live)

    def hear(self, i: int, engine: Engine, now: float) -> None:
        """Count the first and last tokens that have come by `now`; a step that is under way has not said them yet."""
        said, heard, rows = engine.said, self.heard[i], self.rows[i]
        assert said is not None
        while heard < len(said):
            request, last = said[heard], said[heard] >= 0
            request = request if last else ~request
            if engine.times_of(request)[last] > now:
                break
            heard += 1
            self.prefill[i] -= self.owed[i].pop(request, 0)
            if last:
                self.load[i] -= 1
                self.active[i] -= -(-self.intake.prompt[rows[request]] // self.size)
        self.heard[i] = heard
        told = engine.pool.told
        if told:
            for _, queues, _ in self.listeners:
                queues[i].extend(told)
            told.clear()

    def report(self, n: int) -> None:
        """The engines say how many wait and how much of their memory is in use."""
        for i in range(n):
            engine = self.engines[i]
            self.waiting[i] = engine.waiting
            self.usage[i] = 1 - engine.pool.free / engine.pool.blocks

    def match(self, path: Spans, prompt: int, n: int) -> list[int]:
        """Blocks of the prompt that the router knows on each replica."""
        return [0] * n if self.known is None else self.known.match(path, prompt // self.size, n)

    def content(self, path: Spans, prompt: int) -> tuple[int, ...]:
        """The prompt's blocks as numbers; those that nobody else has, and a last one that is not full, get one of their own."""
        full = prompt // self.size
        blocks: list[int] = []
        for first, key, length in path:
            if first >= full:
                break
            blocks.extend(range(key, key + min(length, full - first)))
        alone = -(-prompt // self.size) - len(blocks)
        self._private += alone
        blocks.extend(range(-self._private, alone - self._private))
        return tuple(blocks)

    def send(self, i: int, row: int, arrival: Arrival, path: Spans) -> int:
        """Hand the request to replica i; its number there."""
        blocks = -(-arrival.prompt // self.size)
        found = 0 if arrival.matched is None else arrival.matched[i]
        engine = self.engines[i]
        request = engine.receive(self.intake, row, path, row in self.chains.quoted)
        self.rows[i].append(row)
        if row in self.intake.refused:
            return request
        self.load[i] += 1
        self.waiting[i] += not self.knowledge.poll  # the engine would say so
        self.active[i] += blocks
        self.owed[i][request] = owed = max(0, arrival.prompt - found * self.size)
        self.prefill[i] += owed
        return request

    def see(self, seen: _Seen, row: int, arrival: Arrival, path: Spans, n: int) -> None:
        """Keep what was known and what was true before the request was sent."""
        seen.load[row, :n] = arrival.load
        seen.waiting[row, :n] = [engine.waiting for engine in self.engines[:n]]
        if arrival.matched is not None:
            seen.matched[row, :n] = np.minimum(np.array(arrival.matched) * self.size, arrival.prompt)
        if self.truth is not None:
            seen.there[row, :n] = np.array(self.truth.match(path, arrival.prompt // self.size, n)) * self.size
        if arrival.score is not None:
            seen.score[row, :n] = arrival.score
        for i, engine in enumerate(self.engines[:n]):
            seen.used[row, i] = engine.pool.blocks - engine.pool.free
            seen.remembers[row, i] = engine.pool.remembering


class _Seen:
    """The columns of `Decisions` while they are filled."""

    def __init__(self, requests: int, replicas: int) -> None:
        shape = (requests, replicas)
        self.load, self.matched = np.full(shape, -1, np.int64), np.full(shape, -1, np.int64)
        self.waiting, self.there, self.used, self.remembers = (np.zeros(shape, np.int64) for _ in range(4))
        self.score = np.full(shape, np.nan)

    def decisions(self) -> Decisions:
        """The finished columns, read-only."""
        columns = {name: getattr(self, name) for name in ("load", "waiting", "matched", "there", "score", "used", "remembers")}
        for column in columns.values():
            column.setflags(write=False)
        return Decisions(**columns)
