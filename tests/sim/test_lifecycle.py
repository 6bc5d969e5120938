"""What one request went through and why: against sums on paper, and without holes on any run."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings

from sim.engine import Engine, simulate
from sim.lifecycle import Stage, life, refusal
from sim.metrics import ledger, queue_wait
from sim.policy import Memory, Policy, continuous, faster_transformer, static, vllm
from sim.run import CANCELLED, FINISHED, REFUSED, UNFINISHED, Run
from sim.service import Affine, StepTime
from sim.slots import state_at
from sim.trace import Trace
from tests.sim import cases, test_memory

# On paper: blocks of 4 tokens, a step of 1 ms, nothing else costs.
STEP = Affine(1_000, 0, 0)


def waits(run: Run, request: int) -> list[tuple[float, float, str, str]]:
    return [(s.start_us, s.end_us, s.cause, s.until) for s in life(run, request) if s.state == "waiting"]


def test_the_newest_gives_way_waits_and_comes_back() -> None:
    # The sums stand in test_memory.py: preempted at 5 ms for request 0's third block, back at 6, its last token at 7.
    run = simulate(Trace([0, 0], [4, 4], [6, 6]), STEP, vllm(2, 100, Memory(4, 4)))
    assert life(run, 0) == [Stage("running", 0, 6_000, until="its last token"), Stage("finished", 6_000, 6_000)]
    assert life(run, 1) == [
        Stage("running", 0, 5_000, until="preempted"),
        Stage("preempted", 5_000, 5_000, "request 0 needed a block"),
        Stage("waiting", 5_000, 6_000, "a step with a preemption", "the step ended"),
        Stage("running", 6_000, 7_000, until="its last token"),
        Stage("finished", 7_000, 7_000),
    ]


def test_the_head_waits_for_blocks_and_the_next_one_behind_it() -> None:
    # Pool of 11. Request 0's prompt of 40 takes 10; request 1's 9 tokens need 3 and find 1, until request 0 ends at 2 ms.
    # Request 2 (1 block would do) comes in the first step, and then may not overtake.
    trace = Trace([0, 0, 0.0002], [40, 9, 3], [2, 2, 2])
    run = simulate(trace, STEP, vllm(3, 100, Memory(11, 4)))
    assert waits(run, 1) == [(0, 2_000, "not enough blocks: needs 3, 1 free", "request 0 finished")]
    assert waits(run, 2) == [
        (200, 1_000, "step boundary", "the step ended"),
        (1_000, 2_000, "behind request 1, the head of the line", "request 1 entered"),
    ]


def test_a_client_that_gives_up_makes_room_or_leaves_the_queue() -> None:
    trace = Trace([0, 0, 0], [40, 9, 9], [9, 2, 2], cancel=[0.0015, math.inf, 0.0005])
    run = simulate(trace, STEP, vllm(3, 100, Memory(12, 4)))
    assert life(run, 0) == [Stage("running", 0, 2_000, until="its client gave up"), Stage("cancelled", 2_000, 2_000)]
    assert waits(run, 1) == [(0, 2_000, "not enough blocks: needs 3, 2 free", "request 0 gave up")]
    assert life(run, 2)[-1] == Stage("cancelled", 1_000, 1_000)  # noticed at the end of the step
    assert waits(run, 2) == [(0, 1_000, "behind request 1, the head of the line", "its client gave up")]


def test_a_request_that_never_fits_is_told_why() -> None:
    # 20 + 10 − 1 tokens fill 8 blocks of 4.
    run = simulate(Trace([0, 0], [20, 4], [10, 2]), STEP, vllm(4, 100, Memory(5, 4)))
    assert refusal(run, 0) == "needs 8 blocks, the pool has 5"
    assert life(run, 0) == [Stage("refused", 0, 0, "needs 8 blocks, the pool has 5")]
    with pytest.raises(ValueError, match="request 1 was not refused"):
        refusal(run, 1)


def test_a_slot_is_waited_for_until_a_request_ends() -> None:
    run = simulate(Trace([0, 0.0015], [4, 4], [3, 1]), STEP, continuous(1))
    assert waits(run, 1) == [(1_500, 3_000, "slots full", "request 0 finished")] or waits(run, 1) == [
        (1_500, 2_000, "step boundary", "the step ended"), (2_000, 3_000, "slots full", "request 0 finished")]


def test_a_spent_budget_is_waited_for_until_the_prompt_before_is_done() -> None:
    # Budget 4: the prompt of 8 takes two whole steps.
    run = simulate(Trace([0, 0], [8, 2], [1, 1]), STEP, continuous(2, budget=4))
    assert waits(run, 1) == [(0, 2_000, "budget spent", "the prompt of request 0 was done")]


def test_a_static_batch_fills_and_leaves() -> None:
    # Two seats: request 0 waits until request 1 comes at 0.5 ms. Their batch runs 3 ms; request 2 finds both seats taken.
    run = simulate(Trace([0, 0.0005, 0.001], [4, 4, 4], [3, 1, 1]), STEP, static(2))
    assert waits(run, 0) == [(0, 500, "batch filling", "request 1 arrived")]
    assert waits(run, 2) == [(1_000, 3_500, "slots full", "request 0 ended its batch")]
    # Nobody waited for it: it leaves with one seat empty, and request 1 comes too late.
    run = simulate(Trace([0, 0.0005], [4, 4], [3, 1]), STEP, static(2, 0))
    assert waits(run, 1) == [(500, 3_000, "batch left", "request 0 ended its batch")]
    # After 0.2 ms it waits no longer.
    run = simulate(Trace([0, 0.0005], [4, 4], [3, 1]), STEP, static(2, 2e-4))
    assert waits(run, 0) == [(0, 200, "batch filling", "the fill timeout ran out")]


def test_a_static_batch_is_short_of_reserved_memory() -> None:
    # 20 tokens, 5 blocks each, in a pool of 10: two at a time, though there is a third slot.
    run = simulate(Trace([0, 0, 0], [4, 4, 4], [3, 3, 3]), STEP, faster_transformer(3, 10, 20, block_size=4))
    assert waits(run, 2) == [(0, 3_000, "not enough blocks", "request 0 ended its batch")]


def test_a_run_stopped_half_way_is_told_up_to_its_last_step() -> None:
    trace = Trace([0, 0], [4, 4], [9, 9])
    engine = Engine(STEP, continuous(1), longest_stretch=1)
    engine.submit(trace)
    engine.advance(3_000)
    run = engine.run(trace)
    assert life(run, 0) == [Stage("running", 0, 3_000, until="the run stopped"), Stage("unfinished", 3_000, 3_000)]
    assert waits(run, 1) == [(0, 3_000, "slots full", "the run stopped")]


def test_who_is_handed_off_leaves_the_queue() -> None:
    # Request 1's 24 tokens need 6 blocks of 7, and request 0 holds 2; it leaves for another server at the end of 3.5 ms' step.
    trace = Trace([0, 0, 0.02], [8, 24, 4], [12, 4, 2])
    engine = Engine(STEP, vllm(4, 100, Memory(7, 4)))
    engine.submit(trace)
    engine.hand_off(1, 3_500)
    engine.advance(math.inf)
    run = engine.run(trace)
    assert waits(run, 1) == [(0, 4_000, "not enough blocks: needs 6, 5 free", "it was handed off")]
    assert life(run, 1)[-1] == Stage("handed off", 4_000, 4_000)
    assert ledger(run).seconds["memory"] == pytest.approx(0.004)
    assert not len(state_at(run, 8_000).queued)


def test_who_gives_up_on_arrival_has_no_other_stage() -> None:
    run = simulate(Trace([0, 0.01], [4, 4], [2, 2], cancel=[math.inf, 0.01]), STEP, continuous(1))
    assert life(run, 1) == [Stage("cancelled", 10_000, 10_000)]


def test_a_static_batch_that_can_never_have_its_memory_waits() -> None:
    memory = Memory(2, 2, reserve="output", refuse=False)
    run = simulate(Trace([0, 1e-3], [5, 5], [3, 3]), STEP, Policy("p", "static", slots=4, fill_timeout=0, memory=memory))
    assert life(run, 0)[-1].state == "unfinished"


@settings(max_examples=200)
@given(test_memory.cases() | cases.starved() | cases.cases())
def test_every_life_is_a_chain_without_holes_from_arrival_to_end(case: tuple[Trace, StepTime, Policy]) -> None:
    engine = Engine(case[1], case[2], most_rows=500)
    engine.submit(case[0])
    engine.advance(math.inf)
    run = engine.run(case[0])
    names = {FINISHED: "finished", CANCELLED: "cancelled", REFUSED: "refused", UNFINISHED: "unfinished"}
    for r in range(len(run)):
        stages = life(run, r)
        assert stages[0].start_us == run.trace.arrival_us[r]
        assert all(a.end_us == b.start_us and a != b for a, b in pairwise(stages))
        assert all(s.start_us < s.end_us for s in stages if s.state in ("waiting", "running")) or run.stopped
        assert stages[-1].state == names[int(run.outcome[r])]
        if run.outcome[r] in (FINISHED, CANCELLED):
            assert stages[-1].end_us == run.finished_us[r]
        assert sum(s.state == "preempted" for s in stages) == run.preemptions[r]
        assert all(s.cause and s.until for s in stages if s.state == "waiting")
        until_first = [s.end_us - s.start_us for s in stages[:next((i for i, s in enumerate(stages) if s.state == "running"), 0)]]
        if not np.isnan(run.admitted_us[r]):
            assert sum(until_first) / 1e6 == pytest.approx(queue_wait(run)[r], abs=1e-12)
