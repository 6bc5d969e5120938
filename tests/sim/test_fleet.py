"""A fleet serves every request once, on the real engines, and its router knows just what it could know at each arrival."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine import Engine, simulate
from sim.fleet import FleetRun, Knowledge, simulate_fleet
from sim.policy import Memory, Policy, vllm
from sim.routers import ROUTERS, Arrival, Router
from sim.service import Affine
from sim.trace import Content, Trace

CLOCK = Affine(1000, 10)  # a step takes 1 ms and 10 µs a token
BLOCK = 4
PLENTY = vllm(8, 64, Memory(1000, BLOCK, prefix_cache=True))
SCARCE = vllm(4, 16, Memory(24, BLOCK, prefix_cache=True))


def requests(*rows: tuple[float, int, int, int]) -> Trace:
    """Requests (arrival s, stream, tokens of that stream, output), each with 3 more tokens that are its own."""
    content = Content.of([[(stream, 0, tokens), (1000 + i, 0, 3)] for i, (_, stream, tokens, _) in enumerate(rows)],
                         [2000 + i for i in range(len(rows))])
    arrival, stream, tokens, output = (np.array(column) for column in zip(*rows, strict=True))
    return Trace(arrival, tokens + 3, output, session=stream, content=content)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Up to 25 requests of a few conversations that quote each other; several at once, some far apart."""
    n = draw(st.integers(1, 25))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0005, 0.004, 0.05, 1.0]), min_size=n, max_size=n))
    rows = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.integers(1, 12)), min_size=n, max_size=n))
    return requests(*[(at, *row) for at, row in zip(np.cumsum(gaps).tolist(), rows, strict=True)])


names = st.sampled_from(sorted(ROUTERS))
policies = st.sampled_from([PLENTY, SCARCE])


@settings(deadline=None, max_examples=60)
@given(traces(), policies, names, st.integers(1, 4), st.sampled_from(["events", "own"]), st.sampled_from([0.0, 0.003, 2.0]))
def test_every_request_is_served_once_and_hits_and_misses_make_its_prompt(
    trace: Trace, policy: Policy, router: str, replicas: int, source: str, late: float,
) -> None:
    knowledge = Knowledge("own" if source == "own" else "events", delay=late, poll=late)
    run = simulate_fleet(trace, CLOCK, policy, router, replicas, knowledge=knowledge, record=True)
    assert np.isfinite(run.column("finished_us").astype(float)).all()
    for i, one in enumerate(run.runs):
        rows = np.flatnonzero(run.replica == i)
        assert (one is None) == (not len(rows))
        if one is not None:
            assert one.trace == trace.take(rows)
            assert run.place[rows].tolist() == list(range(len(rows)))
    computed = sum(int((one.steps.prefill * one.steps.count).sum()) for one in run.runs if one is not None)
    if not run.column("preemptions").any():
        assert computed == run.misses.sum() == run.computed.sum()
    assert computed + run.hits.sum() >= trace.prompt.sum()
    assert (run.hits % BLOCK == 0).all() and (run.hits < trace.prompt).all()
    assert run.requests.sum() == len(trace)


@settings(deadline=None, max_examples=40)
@given(traces(), policies, names)
def test_a_fleet_of_one_is_the_engine(trace: Trace, policy: Policy, router: str) -> None:
    alone = simulate(trace, CLOCK, policy)
    fleet = simulate_fleet(trace, CLOCK, policy, router, 1)
    for column in ("admitted_us", "first_token_us", "finished_us", "cached", "preemptions"):
        np.testing.assert_array_equal(fleet.column(column), getattr(alone, column))


@settings(deadline=None, max_examples=40)
@given(traces(), policies, st.integers(2, 3))
def test_each_replica_does_what_an_engine_does_that_gets_the_same_requests(trace: Trace, policy: Policy, replicas: int) -> None:
    fleet = simulate_fleet(trace, CLOCK, policy, "round_robin", replicas)
    for i in range(min(replicas, len(trace))):
        mine = trace.take(slice(i, None, replicas))
        engine, run = Engine(CLOCK, policy), fleet.runs[i]
        engine.expect(trace)
        engine.submit(mine)
        engine.advance(math.inf)
        alone = engine.run(mine)
        assert run is not None
        np.testing.assert_array_equal(run.finished_us, alone.finished_us)
        np.testing.assert_array_equal(run.cached, alone.cached)


@settings(deadline=None, max_examples=60)
@given(traces(), policies, st.integers(1, 3))
def test_the_routers_counts_are_those_of_the_requests_under_way(trace: Trace, policy: Policy, replicas: int) -> None:
    seen: list[Arrival] = []
    inner = ROUTERS["power_of_two"](seed=1)

    def watch(arrival: Arrival) -> int:
        seen.append(arrival)
        return inner(arrival)

    run = simulate_fleet(trace, CLOCK, policy, watch, replicas, record=True)
    first, last = (run.column(name).astype(float) for name in ("first_token_us", "finished_us"))
    assert run.decisions is not None
    for row, now in enumerate(trace.arrival_us):
        for i in range(replicas):
            sent = np.flatnonzero(run.replica[:row] == i)
            assert seen[row].load[i] == run.decisions.load[row, i] == (last[sent] > now).sum()
            assert seen[row].prefill[i] == trace.prompt[sent][first[sent] > now].sum()
            assert seen[row].active[i] == (-(-trace.prompt[sent] // BLOCK))[last[sent] > now].sum()
            if not run.column("preemptions").any():
                assert seen[row].waiting[i] == (run.column("admitted_us").astype(float)[sent] >= now).sum()


@settings(deadline=None, max_examples=60)
@given(traces(), policies, st.integers(1, 3), st.sampled_from(["longest_match", "dynamo", "llm_d", "aibrix"]))
def test_exact_knowledge_without_delay_is_the_truth(trace: Trace, policy: Policy, replicas: int, router: str) -> None:
    run = simulate_fleet(trace, CLOCK, policy, router, replicas, record=True)
    assert run.decisions is not None
    np.testing.assert_array_equal(run.decisions.matched, np.minimum(run.decisions.there, trace.prompt[:, None]))


@settings(deadline=None, max_examples=60)
@given(traces(), policies, st.integers(1, 3), names)
def test_what_lies_there_is_what_an_idle_replica_finds(trace: Trace, policy: Policy, replicas: int, router: str) -> None:
    apart = Trace(np.arange(len(trace)) * 10.0, trace.prompt, trace.output, session=trace.session, content=trace.content)
    run = simulate_fleet(apart, CLOCK, policy, router, replicas, record=True)
    assert run.decisions is not None
    there = run.decisions.there[np.arange(len(trace)), run.replica]
    np.testing.assert_array_equal(run.hits, np.minimum(there, (trace.prompt - 1) // BLOCK * BLOCK))
    assert (run.decisions.load == 0).all() and (run.decisions.used == 0).all()


def alternate(match: list[list[int]], order: Sequence[int]) -> Router:
    """Send to the replicas in this order, and keep what was known at each arrival."""
    turn = iter(order)

    def decide(arrival: Arrival) -> int:
        match.append(arrival.match())
        return next(turn)

    return decide


def test_events_come_late_by_the_delay() -> None:
    # Two full blocks of stream 7; the prompt of 11 tokens is scheduled at 0 s, and its blocks are published then.
    trace = requests((0.0, 7, 8, 2), (0.5, 7, 8, 2), (0.99, 7, 8, 2), (1.01, 7, 8, 2))
    known: list[list[int]] = []
    simulate_fleet(trace, CLOCK, PLENTY, alternate(known, [1, 0, 0, 0]), 2, knowledge=Knowledge(delay=1.0))
    assert known == [[0, 0], [0, 0], [0, 0], [0, 2]]
    known.clear()
    simulate_fleet(trace, CLOCK, PLENTY, alternate(known, [1, 0, 0, 0]), 2)
    assert known == [[0, 0], [0, 2], [2, 2], [2, 2]]


def test_events_tell_of_a_prompt_as_its_chunks_are_computed() -> None:
    # 200 tokens in chunks of 64: steps of 1.64 ms at 0, 1.64 and 3.28 ms, the last 8 at 4.92 ms. The first one's 16 blocks are
    # told at once, what a stretch of equal steps adds when its last one starts: 48 at 3.28 ms; the 49th, stream 7's last full
    # one, at 4.92 ms. All of it 10 ms later.
    trace = requests((0.0, 7, 197, 1), (0.0132, 7, 197, 1), (0.0133, 7, 197, 1), (0.0149, 7, 197, 1), (0.015, 7, 197, 1))
    known: list[list[int]] = []
    simulate_fleet(trace, CLOCK, PLENTY, alternate(known, [1, 0, 0, 0, 0]), 2, knowledge=Knowledge(delay=0.01))
    assert [there[1] for there in known] == [0, 16, 48, 48, 49]


def test_a_reply_is_told_when_its_request_ends_and_the_next_turn_finds_it() -> None:
    # A prompt of 8 tokens, one step of 1.08 ms, and 8 decodes of 1.01 ms: the end is at 9.16 ms, with 16 tokens, four blocks.
    # The next turn quotes the prompt, the nine tokens of the reply, and asks with three of its own. Events take 5 ms.
    turns: list[list[tuple[int, int, int]]] = [[(7, 0, 8)], *[[(7, 0, 8), (8, 0, 9), (10 + i, 0, 3)] for i in range(2)]]
    content = Content.of(turns, [8, 20, 21])
    trace = Trace(np.array([0.0, 0.0141, 0.0142]), np.array([8, 20, 20]), np.array([9, 1, 1]), content=content)
    known: list[list[int]] = []
    run = simulate_fleet(trace, CLOCK, PLENTY, alternate(known, [1, 1, 0]), 2, knowledge=Knowledge(delay=0.005), record=True)
    assert [there[1] for there in known] == [0, 2, 4]
    assert run.decisions is not None
    assert run.decisions.there[:, 1].tolist() == [0, 16, 16] and run.hits.tolist() == [0, 16, 0]


def test_own_notes_do_not_hear_of_an_eviction_and_events_do() -> None:
    # Nine blocks: three requests of 12 + 3 tokens and 2 of output need four each. The third takes what it needs from the first:
    # its unsought last block first, as blocks are taken from the end, and then one of its three.
    small = vllm(8, 64, Memory(9, BLOCK, prefix_cache=True))
    trace = requests((0.0, 7, 12, 2), (1.0, 8, 12, 2), (2.0, 9, 12, 2), (3.0, 7, 12, 1), (4.0, 8, 12, 1), (5.0, 9, 12, 1))
    true, noted = ([], []), ([], [])  # type: tuple[list[list[int]], ...], tuple[list[list[int]], ...]
    simulate_fleet(trace, CLOCK, small, alternate(true[0], [0] * 6), 1)
    simulate_fleet(trace, CLOCK, small, alternate(noted[0], [0] * 6), 1, knowledge=Knowledge("own"))
    assert noted[0] == [[0], [0], [0], [3], [3], [3]]
    assert true[0][3][0] < 3


def test_reports_are_as_old_as_the_last_poll() -> None:
    # One slot: of five requests at 0.0 s four wait. The poll of 0 s comes before them, that of 1 s sees an empty queue.
    trace = requests(*[(0.0, i, 8, 50) for i in range(5)], (0.01, 9, 8, 2), (1.5, 9, 8, 2))
    seen: list[list[int]] = []

    def watch(arrival: Arrival) -> int:
        seen.append(arrival.waiting)
        return 0

    one = vllm(1, 64, Memory(1000, BLOCK, prefix_cache=True))
    simulate_fleet(trace, CLOCK, one, watch, 1)
    assert seen == [[0], [1], [2], [3], [4], [4], [0]]
    seen.clear()
    simulate_fleet(trace, CLOCK, one, watch, 1, knowledge=Knowledge(poll=1.0))
    assert seen == [[0]] * 7


def test_a_replica_that_joins_gets_requests_from_then_on() -> None:
    trace = requests(*[(float(i), i % 4, 8, 2) for i in range(12)])
    run = simulate_fleet(trace, CLOCK, PLENTY, "round_robin", 3, joins=[0, 0, 6.0], record=True)
    assert run.replica.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 2, 0, 1, 2]
    assert run.decisions is not None
    assert (run.decisions.load[:6, 2] == -1).all() and (run.decisions.load[6:, 2] == 0).all()


def test_blocks_handed_out_anew_are_counted_as_evicted() -> None:
    # A pool of 4 blocks: each request has 5 + 3 tokens and a reply of one token, so two full blocks that remember them when it
    # ends. The third request finds no blank block and takes two that do.
    four = vllm(8, 64, Memory(4, BLOCK, prefix_cache=True))
    trace = requests(*[(float(i), i, 5, 1) for i in range(3)])
    assert simulate_fleet(trace, CLOCK, four, "round_robin", 1).evicted.tolist() == [2]
    assert simulate_fleet(trace, CLOCK, four, "round_robin", 2).evicted.tolist() == [0, 0]


def test_one_shared_system_prompt_under_longest_match_leaves_the_other_replicas_idle() -> None:
    # ROUTING.md, section 1 (C): all 240 questions behind one system prompt went to one of four workers.
    trace = requests(*[(0.2 * i, 7, 32, 4) for i in range(40)])
    for router in ("longest_match", "cache_aware"):
        run = simulate_fleet(trace, CLOCK, PLENTY, router, 4)
        assert run.requests.tolist() == [40, 0, 0, 0] and run.imbalance == 4
        assert run.hits.sum() == 39 * 32
    assert simulate_fleet(trace, CLOCK, PLENTY, "round_robin", 4).hits.sum() == 36 * 32


@pytest.mark.parametrize(("change", "message"), [
    ({"router": "nearest"}, "no router 'nearest'"), ({"replicas": 0}, "at least 1"), ({"joins": [0, 1]}, "joins"),
    ({"joins": [0, 2, 1]}, "joins"), ({"joins": [1, 2, 3]}, "joins"), ({"router": lambda arrival: 3}, "replica 3")])
def test_what_cannot_be_is_named(change: dict[str, object], message: str) -> None:
    settings = {"router": "round_robin", "replicas": 3} | change
    with pytest.raises(ValueError, match=message):
        simulate_fleet(requests((0.0, 1, 4, 1)), CLOCK, PLENTY, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"source": "guess"}, {"delay": -1.0}, {"poll": math.inf}, {"remember": 0}, {"lasting": 0.0}])
def test_knowledge_names_its_ranges(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        Knowledge(**change)  # type: ignore[arg-type]


def test_without_a_prefix_cache_nothing_is_found() -> None:
    run: FleetRun = simulate_fleet(requests((0.0, 1, 8, 1), (1.0, 1, 8, 1)), CLOCK, vllm(8, 64, Memory(100, BLOCK)), "llm_d", 2)
    assert run.hit_rate == 0 and run.misses.tolist() == [11, 11]
