"""Where a request goes: each router's rule as a function from what it can know at an arrival to a replica.

`ROUTERS[name](**parameters)` makes a router with a state of its own; calling it with an `Arrival` decides. Replicas are
numbered from 0 in the order of the router's list. Where a source says nothing of ties, the first in the list wins.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import numpy as np

from sim.kv.tree import Text, Tree

_64 = (1 << 64) - 1


@dataclass(slots=True)
class Arrival:
    """A request that must be sent somewhere, and what a router can know then; lists have one element a replica.

    now       clock, s
    session   number of its conversation, None: the workload has none
    prompt    its tokens
    load      requests sent there whose last token has not come: the router's own count, never late
    prefill   prompt tokens sent there, those that were believed cached left out, whose first token has not come; own count
    active    KV blocks of the prompts sent there whose last token has not come; own count, shared ones counted for each
    waiting   requests in the engine's queue, as it last reported
    usage     share of its KV blocks in use, as it last reported
    block_size  tokens in a block
    match     blocks from the start of the prompt that lie on each replica, as far as the router knows
    content   the prompt's blocks as numbers: equal numbers, equal text from the start to there. The peer's replay gives
              the text itself

    A router may leave behind what it went by: `score` (the best wins, whichever way it counts), `matched`.
    """

    now: float
    session: int | None
    prompt: int
    load: list[int]
    prefill: list[int] = field(default_factory=list)
    active: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    usage: list[float] = field(default_factory=list)
    block_size: int = 1
    match: Callable[[], list[int]] = list
    content: Callable[[], Text] = str
    score: list[float] | None = None
    matched: list[int] | None = None


Router = Callable[[Arrival], int]


def round_robin() -> Router:
    """One after the other (sglang-router 0.3.2, round_robin.rs)."""
    sent = -1

    def decide(arrival: Arrival) -> int:
        nonlocal sent
        sent += 1
        return sent % len(arrival.load)

    return decide


def random(seed: int = 0) -> Router:
    """Any, all alike."""
    draw = Random(seed)
    return lambda arrival: draw.randrange(len(arrival.load))


def least_loaded() -> Router:
    """Fewest requests in flight (KubeAI's default; LeastLoad)."""
    return lambda arrival: _least(arrival.load)


def power_of_two(seed: int = 0) -> Router:
    """Two at random, and of them the one with fewer requests in flight (Mitzenmacher 2001; sglang-router, power_of_two.rs).

    Of equals the first drawn. The real router asks the engines for their load, at intervals; here it counts itself.
    """
    draw = Random(seed)

    def decide(arrival: Arrival) -> int:
        if len(arrival.load) == 1:
            return 0
        one, other = draw.sample(range(len(arrival.load)), 2)
        return other if arrival.load[other] < arrival.load[one] else one

    return decide


def session_hash(hashed: Callable[[int], int] | None = None) -> Router:
    """Hash of the session modulo the number of replicas: a replica more, and nearly every session moves.

    What sglang-router 0.3.2 does under consistent_hashing as soon as workers report a model name (ROUTING.md, section 1).
    """
    key = hashed or mixed
    return lambda arrival: key(_session(arrival)) % len(arrival.load)


def consistent_hash(
    points: int = 150, hashed: Callable[[int], int] | None = None, place: Callable[[int, int], int] | None = None,
) -> Router:
    """The first point of a replica at or after the session's hash on a ring (Karger et al. 1997).

    150 points a replica as in sglang-router 0.3.2. `place(replica, point)` is where a point lies.
    """
    key, ring = hashed or mixed, Ring(points, place)
    return lambda arrival: ring.first(key(_session(arrival)), len(arrival.load))


def bounded_load(factor: float = 1.25, points: int = 256, tokens: int = 0) -> Router:
    """Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2018), as KubeAI has it (balance_chwbl.go).

    From the key's place on, the first replica with at most factor · (requests in flight + 1) / replicas requests; if there is
    none, the first. The key is the session, or with `tokens` that much of the prompt's start, in whole blocks.
    """
    ring = Ring(points)

    def decide(arrival: Arrival) -> int:
        bound = factor * (sum(arrival.load) + 1) / len(arrival.load)
        key, load = mixed(_start(arrival, tokens) if tokens else _session(arrival)), arrival.load
        fits = (replica for replica in ring.walk(key, len(load)) if load[replica] <= bound)
        return next(fits, ring.first(key, len(load)))

    return decide


def prefix_hash(tokens: int = 256, factor: float = 1.25, points: int = 150) -> Router:
    """The start of the prompt on a ring, unless its place is too busy (sglang-router, prefix_hash.rs, smg 3adfd7d7).

    Too busy is more than factor · (requests in flight + 1) / replicas; then the least loaded takes it.
    """
    ring = Ring(points)

    def decide(arrival: Arrival) -> int:
        total = sum(arrival.load)
        home = ring.first(mixed(_start(arrival, tokens)), len(arrival.load))
        if not total or arrival.load[home] <= factor * (total + 1) / len(arrival.load):
            return home
        return _least(arrival.load)

    return decide


def longest_match(least: int = 1) -> Router:
    """Where most blocks of the prompt lie; of equals, and if fewer than `least` blocks lie anywhere, the least loaded."""

    def decide(arrival: Arrival) -> int:
        found = arrival.matched = arrival.match()
        most = max(found)
        if most < least:
            return _least(arrival.load)
        return _least(arrival.load, [i for i, blocks in enumerate(found) if blocks == most])

    return decide


def cache_aware(threshold: float = 0.3, apart: int = 64, ratio: float = 1.5) -> Router:
    """SGLang's router 0.3.2 (smg c7f9bf9f, cache_aware.rs), with the defaults of its command line.

    If the most loaded replica has more than `apart` requests more than the least loaded and more than `ratio` times as many,
    the least loaded. Else, if more than `threshold` of the prompt is in the router's tree, the owner of the node where the
    match ends; else the least loaded. The prompt then enters the tree in every case. Shares are compared in float32, as there.
    Not modelled: the tree's own eviction beyond 2^26 characters a worker. ROUTING.md, sections 1 and 4.
    """
    tree, least, times = Tree(), np.float32(threshold), np.float32(ratio)

    def decide(arrival: Arrival) -> int:
        text, load = arrival.content(), arrival.load
        low, high = min(load), max(load)
        choice, matched, owner = load.index(low), 0, -1
        if not (high - low > apart and np.float32(high) > np.float32(low) * times):
            matched, owner = tree.match(text)
            if matched and np.float32(matched) / np.float32(len(text)) > least:
                choice = owner
        arrival.matched = [matched if i == owner else 0 for i in range(len(load))]
        tree.insert(text, choice)
        return choice

    return decide


def prefix_aware(least: int = 0, seed: int = 0) -> Router:
    """vLLM production-stack's prefixaware (a6c01db0, routing_logic.py, hashtrie.py): who was sent most of this prompt before.

    At random among them, all of them where nothing is known; nothing is ever forgotten, and load does not count. Where fewer
    than `least` elements match, the least loaded (there: the lowest rate of requests). Blocks stand for its 128 characters.
    """
    tree, draw = Tree(), Random(seed)

    def decide(arrival: Arrival) -> int:
        text = arrival.content()
        found = arrival.matched = tree.shares(text, len(arrival.load))
        most = max(found)
        choice = _least(arrival.load) if most < least else draw.choice([i for i, blocks in enumerate(found) if blocks == most])
        tree.insert(text, choice)
        return choice

    return decide


def dynamo(scale: float = 1.0, seed: int = 0) -> Router:
    """Dynamo's KV router (ai-dynamo/dynamo, lib/kv-router/src/scheduling/selector/default.rs): the lowest cost, in blocks.

    cost = scale · max(0, (prompt tokens still to prefill there + this prompt) / block size − matched blocks) + active blocks
    there, this request's among them; at random among equals (temperature 0). `scale` was once overlap_score_weight.
    Shared blocks of active requests are counted for each of them here, once there.
    """
    draw = Random(seed)

    def decide(arrival: Arrival) -> int:
        found = arrival.matched = arrival.match()
        size = arrival.block_size
        own = -(-arrival.prompt // size)
        cost = arrival.score = [
            scale * max(0.0, (pending + arrival.prompt) / size - blocks) + active + own
            for pending, blocks, active in zip(arrival.prefill, found, arrival.active, strict=True)
        ]
        return _any(cost, min(cost), draw)

    return decide


def llm_d(queue: float = 2.0, memory: float = 2.0, prefix: float = 3.0, seed: int = 0) -> Router:
    """llm-d's weighted scores (llm-d-inference-scheduler 520af478, pkg/epp/config/loader/defaults.go): the highest sum.

    Queue: (most − own) / (most − least) waiting, 1 if all alike; memory: 1 − KV usage; prefix: matched share of the prompt's
    blocks. Its precise sample configuration has 1, 1, 2. At random among equals.
    """
    draw = Random(seed)

    def decide(arrival: Arrival) -> int:
        found = arrival.matched = arrival.match()
        blocks = max(1, arrival.prompt // arrival.block_size)
        most, spread = max(arrival.waiting), max(arrival.waiting) - min(arrival.waiting)
        score = arrival.score = [
            queue * ((most - waiting) / spread if spread else 1.0) + memory * (1 - usage) + prefix * (match / blocks)
            for waiting, usage, match in zip(arrival.waiting, arrival.usage, found, strict=True)
        ]
        return _any(score, max(score), draw)

    return decide


def aibrix(apart: int = 8, deviations: float = 1.0) -> Router:
    """AIBrix's prefix-cache rule (e3e10f9e, pkg/plugins/gateway/algorithms/prefix_cache.go).

    If most and least loaded are more than `apart` requests apart, only the least loaded count as matches. Of the matches,
    the longest first and of equals the less loaded, the first one with at most mean + `deviations` standard deviations of
    the requests in flight; else the least loaded. It compares percents of the prompt, rounded down.
    """

    def decide(arrival: Arrival) -> int:
        found, load = arrival.match(), arrival.load
        arrival.matched = found
        blocks = max(1, arrival.prompt // arrival.block_size)
        low, mean = min(load), sum(load) / len(load)
        bound = mean + deviations * math.sqrt(sum((requests - mean) ** 2 for requests in load) / len(load))
        candidates = [i for i, match in enumerate(found) if match and (max(load) - low <= apart or load[i] == low)]
        candidates.sort(key=lambda i: (-(100 * found[i] // blocks), load[i]))
        return next((i for i in candidates if load[i] <= bound), _least(load))

    return decide


ROUTERS: dict[str, Callable[..., Router]] = {
    "round_robin": round_robin,
    "random": random,
    "least_loaded": least_loaded,
    "power_of_two": power_of_two,
    "session_hash": session_hash,
    "consistent_hash": consistent_hash,
    "bounded_load": bounded_load,
    "prefix_hash": prefix_hash,
    "longest_match": longest_match,
    "cache_aware": cache_aware,
    "prefix_aware": prefix_aware,
    "dynamo": dynamo,
    "llm_d": llm_d,
    "aibrix": aibrix,
}

MATCHING = frozenset({"longest_match", "dynamo", "llm_d", "aibrix"})
"""Those that ask what lies where; the others keep a tree of their own, or know nothing of content."""


def mixed(number: int) -> int:
    """64 bits that look random, always the same for a number (SplitMix64; Steele, Lea, Flood 2014)."""
    z = (number + 0x9E3779B97F4A7C15) & _64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _64
    return z ^ (z >> 31)


class Ring:
    """The points of the replicas on a circle of hashes. Those of one replica lie where they do whoever else is there."""

    def __init__(self, points: int, place: Callable[[int, int], int] | None = None) -> None:
        self._points = points
        self._place = place or (lambda replica, point: mixed(mixed(replica + 1) ^ point))
        self._owners: list[int] = []
        self._hashes: list[int] = []
        self._replicas = 0

    def first(self, key: int, replicas: int) -> int:
        """The replica whose point is the first at or after `key`."""
        self._place_all(replicas)
        return self._owners[bisect_left(self._hashes, key) % len(self._owners)]

    def walk(self, key: int, replicas: int) -> Iterator[int]:
        """The replicas in the order in which they are met from `key` on."""
        self._place_all(replicas)
        start, met = bisect_left(self._hashes, key), set()
        for i in range(len(self._owners)):
            owner = self._owners[(start + i) % len(self._owners)]
            if owner not in met:
                met.add(owner)
                yield owner

    def _place_all(self, replicas: int) -> None:
        if replicas != self._replicas:
            ring = sorted((self._place(i, point), i) for i in range(replicas) for point in range(self._points))
            self._hashes, self._owners, self._replicas = [place for place, _ in ring], [i for _, i in ring], replicas


def _least(load: list[int], among: list[int] | None = None) -> int:
    """The least loaded, of equals the first."""
    return load.index(min(load)) if among is None else min(among, key=load.__getitem__)


def _any(values: list[float], best: float, draw: Random) -> int:
    """One of those with the best value."""
    equal = [i for i, value in enumerate(values) if value == best]
    return equal[0] if len(equal) == 1 else draw.choice(equal)


def _session(arrival: Arrival) -> int:
    if arrival.session is None:
        raise ValueError("this router sends by session, and the trace has no sessions")
    return arrival.session


def _start(arrival: Arrival, tokens: int) -> int:
    """A number for the first `tokens` tokens of the prompt, in whole blocks, at least one."""
    content = arrival.content()
    last = content[max(1, min(tokens // arrival.block_size, len(content))) - 1]
    return last if isinstance(last, int) else int.from_bytes(last.encode(), "little")
