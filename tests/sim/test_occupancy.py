"""The memory split into parts: four requests on paper, and random servings counted again slot by slot."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine import Engine, simulate
from sim.kv.occupancy import PARTS, Occupancy, occupancy, saturated, tokens_at
from sim.kv.reserve import blocks_needed, piece
from sim.policy import Memory, Policy, continuous, faster_transformer, orca_in_one_piece
from sim.run import CANCELLED, HANDED_OFF, Run
from sim.service import Affine, StepTime, service
from sim.trace import Content, Trace
from tests.sim.cases import starved
from tests.sim.test_memory import cases as vllm_cases

LLAMA = service("Llama-3-8B", "A100-80G")
SECOND = Affine(1_000_000, 0, 0)  # every step takes a second
SAME_US = 1e-3

# ---- four requests on paper: prompts 3, 2, 4, 1 and replies of 3, 2, 3, 5 tokens, all there at 0. The token that ends a
# prompt's step comes from it, and the last token has no KV: final lengths 5, 3, 6, 5. A request decodes one token a second.

FOUR = Trace([0, 0, 0, 0], [3, 2, 4, 1], [3, 2, 3, 5])


def in_one_piece(reserve: str) -> Policy:
    """29 slots = pieces of 16, 8, 4 and 1; nobody may be longer than 8 tokens."""
    return orca_in_one_piece(9, 29, 8, reserve)  # type: ignore[arg-type]


def paged(blocks: int, size: int = 4, **more: object) -> Policy:
    return Policy("paged", "continuous", 9, None, "whole", memory=Memory(blocks, size, **more))  # type: ignore[arg-type]


def by_second(policy: Policy, trace: Trace = FOUR) -> tuple[Occupancy, Run, list[list[float]]]:
    """The parts in the middle of each second."""
    run = simulate(trace, SECOND, policy)
    mine = occupancy(run)
    return mine, run, [list(mine.at(1e6 * (s + 0.5)).values()) for s in range(int(run.steps.end_us[-1] / 1e6))]


def test_on_paper_the_maximum_for_everyone() -> None:
    # Each gets a piece of 8. Three fit (16 = 8 + 8, and 8); 4 and 1 are left and the fourth waits until the second ends.
    mine, run, seconds = by_second(in_one_piece("maximum"))
    assert seconds == [
        # tokens, reserved, internal, external, free
        [9, 5, 10, 5, 0],  # 3 + 2 + 4; to come 14 − 9; never filled (8−5) + (8−3) + (8−6)
        [12, 2, 10, 5, 0],
        [12, 4, 8, 0, 5],  # the second has ended, the fourth has its piece: 5 + 6 + 1 tokens; (8−5) + (8−6) + (8−5)
        [2, 3, 3, 0, 21],  # first and third have ended
        [3, 2, 3, 0, 21],
        [4, 1, 3, 0, 21],
        [5, 0, 3, 0, 21],
    ]
    assert saturated(run) == (0, 2e6)
    assert saturated(run, mine) == (0, 2e6)
    assert mine.holders.tolist() == [3, 3, 3, 1]  # the last four seconds are one row
    assert mine.batch() == pytest.approx((3 + 3 + 3 + 4) / 7)
    assert mine.shares()["tokens"] == pytest.approx((9 + 12 + 12 + 2 + 3 + 4 + 5) / 7 / 29)
    assert mine.shares(0, 2e6) == pytest.approx({"tokens": 10.5 / 29, "reserved": 3.5 / 29, "internal": 10 / 29,
                                                 "external": 5 / 29, "free": 0}, abs=1e-12)
    # From 2.5 s: half a second with 12 tokens, one with 2, half a second with 3.
    assert mine.shares(2.5e6, 4.5e6)["tokens"] == pytest.approx((6 + 2 + 1.5) / 2 / 29)
    assert mine.shares(7e6, 9e6) == {"tokens": 0, "reserved": 0, "internal": 0, "external": 0, "free": 1}


def test_on_paper_replies_rounded_up_to_powers_of_two() -> None:
    # 3 + 4 = 7, 2 + 2 = 4, 4 + 4 = 8 and 1 + 8, cut to 8: pieces of 8, 4, 8 and 8. All fit, one slot is left.
    assert by_second(in_one_piece("power"))[2] == [
        [10, 9, 8, 1, 1],  # never filled (7−5) + (4−3) + (8−6) + (8−5); the buddy rounds 7 up to 8
        [14, 5, 8, 1, 1],
        [14, 2, 7, 1, 5],
        [4, 1, 3, 0, 21],
        [5, 0, 3, 0, 21],
    ]


def test_on_paper_the_true_length() -> None:
    # 6, 4, 7 and 6 slots: one each that the last token would need, in pieces of 8, 4, 8 and 8.
    assert by_second(in_one_piece("output"))[2] == [
        [10, 9, 4, 5, 1],  # the buddy rounds up 2 + 0 + 1 + 2
        [14, 5, 4, 5, 1],
        [14, 2, 3, 5, 5],
        [4, 1, 1, 2, 21],
        [5, 0, 1, 2, 21],
    ]


def test_on_paper_paged() -> None:
    # Seven blocks of 4. What is left of a block is reserved, unless it is the request's very last one.
    mine, run, seconds = by_second(paged(7))
    assert seconds == [
        [10, 5, 1, 0, 12],  # 3, 2, 4 and 1 tokens in a block each; the second will have 3 tokens, so 1 slot stays empty
        [14, 3, 3, 0, 8],  # the third begins its second block, for 2 tokens
        [14, 1, 5, 0, 8],  # so does the first, for 1; the second has ended
        [4, 0, 0, 0, 24],
        [5, 0, 3, 0, 20],
    ]
    assert all(math.isnan(t) for t in saturated(run))
    assert [tokens_at(run, 1e6 * (s + 0.5)).tolist() for s in range(5)] == [
        [3, 2, 4, 1], [4, 3, 5, 2], [5, 0, 6, 3], [0, 0, 0, 4], [0, 0, 0, 5],
    ]
    assert tokens_at(run, 1e6).tolist() == [4, 3, 5, 2]  # at the moment between two steps, the later one
    assert not tokens_at(run, -1.0).any() and not tokens_at(run, 5e6).any()
    assert mine.at(-1.0) == mine.at(5e6) == {"tokens": 0, "reserved": 0, "internal": 0, "external": 0, "free": 28}


def test_on_paper_paged_with_a_preemption() -> None:
    # Four blocks of 4. In the second step the third needs one more, so the fourth, the newest, gives up its own. It computes
    # its prompt and its first token again when first and third have ended.
    _, run, seconds = by_second(paged(4))
    assert seconds == [
        [10, 5, 1, 0, 0],
        [12, 1, 3, 0, 0],  # 4 + 3 + 5 tokens
        [11, 0, 5, 0, 0],  # the second has ended, and the first takes its block: 5 + 6
        [2, 2, 0, 0, 12],
        [3, 1, 0, 0, 12],
        [4, 0, 0, 0, 12],
        [5, 0, 3, 0, 8],
    ]
    assert run.preemptions.tolist() == [0, 0, 0, 1]
    assert saturated(run) == (1e6, 3e6)


def test_on_paper_a_free_block_that_cannot_be_handed_out_is_external() -> None:
    # Three blocks of 4. The first holds two of them for four seconds; the second's prompt needs two.
    _, run, seconds = by_second(paged(3), Trace([0, 0], [5, 8], [4, 1]))
    assert seconds == [[5, 3, 0, 4, 0], [6, 2, 0, 4, 0], [7, 1, 0, 4, 0], [8, 0, 0, 4, 0], [8, 0, 0, 0, 4]]
    assert saturated(run) == (0, 4e6)


def test_on_paper_a_shared_prefix_is_there_once() -> None:
    # Two requests start with the same 8 tokens: two blocks of 4 that the second finds. Final lengths 10 and 11.
    content = Content.of([[(1, 0, 8), (10, 0, 1)], [(1, 0, 8), (11, 0, 2)]], [20, 21])
    trace = Trace([0, 0], [9, 10], [2, 2], content=content)
    _, run, seconds = by_second(paged(9, prefix_cache=True), trace)
    assert seconds == [
        [11, 2, 3, 0, 20],  # 8 shared, 1 and 2 of their own in a block each
        [13, 0, 3, 0, 20],
    ]
    assert tokens_at(run, 5e5).tolist() == [9, 10]


def test_on_paper_a_cancelled_request_had_nothing_to_come() -> None:
    # It gives up after two of its ten steps: what it held beyond its 5 tokens was never filled.
    trace = Trace([0], [4], [10], cancel=[2.0])
    _, run, seconds = by_second(paged(5), trace)
    assert run.outcome.tolist() == [CANCELLED]
    assert seconds == [[4, 0, 0, 0, 16], [5, 0, 3, 0, 12]]


def test_memory_without_limit_has_no_parts() -> None:
    run = simulate(FOUR, SECOND, continuous(4))
    for ask in (occupancy, saturated, lambda run: tokens_at(run, 0.0)):
        with pytest.raises(ValueError, match="memory without limit"):
            ask(run)


def test_where_who_got_what_does_not_follow_the_grants_must_be_there() -> None:
    policy = Policy("capped", slots=4, budget=8, memory=Memory(9, 4), chunk_cap=2)
    with pytest.raises(ValueError, match="record_grants"):
        occupancy(simulate(FOUR, SECOND, policy))
    assert occupancy(simulate(FOUR, SECOND, policy, record_grants=True)).pool == 36


def test_nobody_ever_came_in() -> None:
    run = simulate(Trace([0], [100], [5]), SECOND, paged(2))  # refused: it can never fit
    assert occupancy(run).shares() == {"tokens": 0, "reserved": 0, "internal": 0, "external": 0, "free": 1}
    assert occupancy(run).batch() == 0
    assert not tokens_at(run, 0.0).any()


# ---- counted again: every step, every request, every slot


def recount(run: Run) -> list[list[tuple[dict[int, int], list[int]]]]:
    """For each row and each of its steps: tokens of those who hold memory, and all parts, external and free as one sum.

    From grants and events, slot by slot. With a prefix cache a block is counted for each who holds it.
    """
    memory, tokens, kept = run.policy.memory, dict[int, int](), dict(enumerate(run.cached.tolist()))
    assert memory is not None and run.grants is not None
    size, needs, events, counted = memory.block_size, blocks_needed(run.trace, run.policy), list(run.events), []
    lost = {i: max((e.tokens for e in events if e.request == i and e.kind in ("preempted", "cancelled")), default=0)
            for i in range(len(run))}
    for start, count, grants in zip(run.steps.start_us, run.steps.count, run.grants, strict=True):
        for i in [i for i in tokens if run.released_us[i] <= start + SAME_US]:
            del tokens[i]
        while events and events[0].at_us <= start + SAME_US:
            event = events.pop(0)
            if event.kind == "preempted":
                tokens.pop(event.request, None)
            elif event.kind == "admitted":  # again
                kept[event.request] = event.tokens
        steps = []
        for _ in range(count):
            for i, granted in grants:
                if i not in tokens:
                    tokens[i] = kept.pop(i, 0)
                tokens[i] += granted
            filled = reserved = internal = rounded = 0
            for i, have in tokens.items():
                longest = run.policy.longest or 1 << 40
                final = int(run.trace.prompt[i] + max(1, min(run.trace.output[i], longest - run.trace.prompt[i])) - 1)
                if run.outcome[i] in (CANCELLED, HANDED_OFF):
                    final = lost[i]
                held = math.ceil(have / size) if memory.reserve == "nothing" else int(needs[i])
                for slot in range(held * size):
                    filled, reserved, internal = (
                        filled + (slot < have), reserved + (have <= slot < final), internal + (slot >= max(have, final))
                    )
                rounded += (piece(held) - held) * size if memory.contiguous else 0
            left = memory.blocks * size - filled - reserved - internal - rounded
            steps.append((dict(tokens), [filled, reserved, internal, rounded, left]))
        counted.append(steps)
    return counted


def middles(run: Run, row: int) -> list[float]:
    """The middle of each step of a row, µs."""
    s = run.steps
    i = np.arange(s.count[row] + 1)
    at = s.start_us[row] + i * s.first_us[row] + s.growth_us[row] * (i * (i - 1) / 2)
    return ((at[:-1] + at[1:]) / 2).tolist()


def check(run: Run) -> None:
    """Hold a run to the recount."""
    memory, mine = run.policy.memory, occupancy(run)
    assert memory is not None and mine.pool == memory.blocks * memory.block_size
    assert len(mine.count) == len(run.steps.count)
    area = dict.fromkeys(PARTS, 0.0)
    for row, steps in enumerate(recount(run)):
        for values, (_, parts) in ((mine.first, steps[0]), (mine.last, steps[-1])):
            tokens, reserved, internal, external, free = (float(values[part][row]) for part in PARTS)
            assert tokens + reserved + internal + external + free == mine.pool
            assert min(tokens, reserved, internal, external, free) >= 0
            assert [reserved, internal] == parts[1:3]
            if memory.prefix_cache:
                assert tokens <= parts[0]
            else:
                assert [tokens, external + free] == [parts[0], parts[3] + parts[4]]
            assert (free == 0) if mine.waits[row] else (memory.contiguous or external == 0)
        assert mine.holders[row] == len(steps[0][0])
        if mine.waits[row]:
            assert mine.holders[row] < run.policy.slots
        assert (mine.last["external"][row] + mine.last["free"][row]) >= run.steps.free[row] * memory.block_size
        if mine.end_us[row] <= mine.start_us[row]:
            continue
        for t, (tokens_of, parts) in zip(middles(run, row), steps, strict=True):
            now = mine.at(t)
            assert sum(now.values()) == pytest.approx(mine.pool, abs=1e-6)
            assert min(now.values()) >= -1e-9
            assert [now["reserved"], now["internal"]] == pytest.approx(parts[1:3], abs=1e-6)
            have = tokens_at(run, t)
            assert {i: n for i, n in enumerate(have.tolist()) if n} == {i: n for i, n in tokens_of.items() if n}
            if not memory.prefix_cache:
                assert now["tokens"] == pytest.approx(have.sum(), abs=1e-6) == parts[0]
    # The shares are those of the steps, each as long as it takes.
    whole, begin, end = mine.shares(), 0.0, 0.0
    for row in range(len(mine.count)):
        s, i = run.steps, np.arange(run.steps.count[row])
        for t, took in zip(middles(run, row), s.first_us[row] + i * s.growth_us[row], strict=True):
            if mine.end_us[row] > mine.start_us[row]:
                for part, slots in mine.at(t).items():
                    area[part] += slots * took
    if len(mine.count):
        begin, end = float(mine.start_us[0]), float(mine.end_us[-1])
    if end > begin:
        for part in PARTS[:-1]:
            assert whole[part] == pytest.approx(area[part] / mine.pool / (end - begin), abs=1e-7)
        half = begin + 0.37 * (end - begin)
        for part in PARTS:
            parts = 0.37 * mine.shares(begin, half)[part] + 0.63 * mine.shares(half, end)[part]
            assert whole[part] == pytest.approx(parts, abs=1e-7)


def served(trace: Trace, clock: StepTime, policy: Policy, leaves: dict[int, float] | None = None) -> Run:
    engine = Engine(clock, policy, record_grants=True, most_rows=400)
    engine.submit(trace)
    for request, at_us in (leaves or {}).items():
        engine.hand_off(request, at_us)
    engine.advance(math.inf)
    return engine.run(trace)


@given(vllm_cases() | starved())
def test_parts_equal_the_recount_under_vllms_rules(case: tuple[Trace, Affine, Policy]) -> None:
    # Scarce memory: preemptions, cancellations, prefix cache, priorities, watermarks, capped chunks, prompts held back.
    check(served(*case))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Trace, StepTime, Policy, dict[int, float]]:
    """Every way to batch and to hold memory, on a calibrated clock, with requests that are cancelled or handed off."""
    n = draw(st.integers(1, 10))
    numbers = lambda low, high: draw(st.lists(st.integers(low, high), min_size=n, max_size=n))  # noqa: E731
    arrival, prompt, output = sorted(numbers(0, draw(st.sampled_from([0, 300_000])))), numbers(1, 70), numbers(1, 40)
    cancel = [draw(st.just(math.inf) | st.floats(at / 1e6, 1.0)) for at in arrival] if draw(st.booleans()) else None
    trace = Trace(np.array(arrival) / 1e6, prompt, output, priority=numbers(0, 3), cancel=cancel)
    size, longest = draw(st.sampled_from([1, 4, 16])), draw(st.sampled_from([90, 128]))
    most = -(-longest // size)
    blocks = most + draw(st.integers(0, 2 * most))
    kind = draw(st.sampled_from(["paged", "swap", "maximum", "power", "output", "contiguous", "static"]))
    slots, noise = draw(st.integers(1, 8)), draw(st.sampled_from([0.0, 0.4]))
    leaves = {i: draw(st.floats(0, 1e6)) for i in range(n) if draw(st.integers(0, 4)) == 0} if kind != "static" else {}
    if kind == "static":
        return trace, LLAMA, faster_transformer(slots, blocks, longest, draw(st.sampled_from([0.0, 0.05])), size), {}
    if kind == "contiguous":
        reserve = draw(st.sampled_from(["maximum", "power", "output"]))
        return trace, LLAMA, orca_in_one_piece(slots, blocks * size, longest, reserve, noise, 3), leaves
    memory = Memory(blocks, size, reserve=kind) if kind in ("maximum", "power", "output") else Memory(
        blocks, size, swap_us=120.0 if kind == "swap" else None, watermark=draw(st.sampled_from([0.0, 0.05])))
    prompts = draw(st.sampled_from(["chunked", "whole", "alone"]))
    budget = draw(st.sampled_from([None, 8, 64] if prompts == "chunked" else [None, 128]))
    order = draw(st.sampled_from(["fcfs", "fcfs", "priority", "shortest", "least_attained"]))
    policy = Policy("any", "continuous", slots, budget, prompts, order=order, noise=noise, memory=memory,
                    longest=longest)
    return trace, LLAMA, policy, leaves


@given(worlds())
def test_parts_equal_the_recount_under_every_policy(world: tuple[Trace, StepTime, Policy, dict[int, float]]) -> None:
    check(served(*world))


@given(worlds(), st.floats(-1e5, 2e6))
def test_parts_add_up_at_any_instant(world: tuple[Trace, StepTime, Policy, dict[int, float]], t_us: float) -> None:
    run = served(*world)
    mine = occupancy(run)
    now = mine.at(t_us)
    assert list(now) == list(PARTS)
    assert sum(now.values()) == pytest.approx(mine.pool, abs=1e-6)
    assert min(now.values()) >= -1e-9
    if t_us < run.trace.arrival_us[0] or t_us >= (mine.end_us[-1] if len(mine.end_us) else 0):
        assert now["free"] == mine.pool
