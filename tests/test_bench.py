"""The benchmark's own models: they must serve as the engine does, or the comparison of times would mean nothing."""

from __future__ import annotations

import pytest

from bench import engine, plain, simpy_model, tuned
from bench.report import Goal
from sim.service import Affine
from sim.trace import Trace

MODELS = [plain, simpy_model, tuned]


@pytest.mark.parametrize("model", MODELS)
def test_a_chunked_prompt_and_two_decodes_by_hand(model) -> None:
    # 10 µs a step, 1 µs a token; budget 4, 3 slots. Request 1: prompt 6, 2 tokens; request 2: prompt 1, 2 tokens.
    # 0 → 14: 4 tokens of prompt 1.  14 → 27: its other 2 and prompt 2: first tokens of both.  27 → 39: a decode each.
    trace = Trace([0, 0], [6, 1], [2, 2])
    assert model.serve(trace, Affine(10, 1), slots=3, budget=4) == ([0, 14], [27, 27], [39, 39])


@pytest.mark.parametrize("model", MODELS)
def test_who_comes_during_a_step_joins_at_its_end_and_an_idle_server_waits_for_the_next(model) -> None:
    # 10 µs a step. Request 1: 0 → 10 → 20 → 30. Request 2 comes at 15, joins at 20: one token, 30. Request 3 comes at 99.
    trace = Trace([0, 15e-6, 99e-6], [1, 1, 1], [3, 1, 2])
    assert model.serve(trace, Affine(10), slots=2, budget=8) == ([0, 20, 99], [10, 30, 109], [30, 30, 119])


@pytest.mark.parametrize("model", MODELS)
def test_a_full_server_lets_the_next_one_in_when_a_slot_is_free(model) -> None:
    # 10 µs a step, one slot: 0 → 10 → 20, then 20 → 30.
    assert model.serve(Trace([0, 0], [1, 1], [2, 1]), Affine(10), slots=1, budget=8) == ([0, 20], [10, 30], [20, 30])


@pytest.mark.parametrize("model", MODELS)
def test_the_models_find_the_engine_s_times_on_the_benchmark_s_workload(model) -> None:
    trace = engine.requests(300)
    times = model.serve(trace, engine.SERVICE, engine.SLOTS, engine.BUDGET)
    assert engine.worst_difference(trace, engine.ours(trace), times) <= 1e-6


def test_the_workload_has_the_rate_and_the_mean_lengths_that_it_states() -> None:
    # 100,000 draws: the standard error of a mean with coefficient of variation 1 is 0.3 %; 4 of them.
    trace = engine.requests(100_000)
    assert trace.prompt.mean() == pytest.approx(798, rel=0.0127)
    assert trace.output.mean() == pytest.approx(185, rel=0.0127)
    assert trace.arrival[-1] == pytest.approx(100_000 / 7, rel=0.0127)


def test_a_time_that_a_model_lacks_is_no_agreement() -> None:
    trace = engine.requests(3)
    admitted, first, finished = plain.serve(trace, engine.SERVICE, engine.SLOTS, engine.BUDGET)
    assert engine.worst_difference(trace, engine.ours(trace), (admitted, first, [*finished[:2], float("nan")])) == float("inf")


@pytest.mark.parametrize("model", MODELS)
def test_a_budget_without_room_for_all_decodes_is_refused(model) -> None:
    with pytest.raises(ValueError, match="larger than the slots, not 4 for 4"):
        model.serve(Trace([0], [1], [1]), Affine(1), slots=4, budget=4)


def test_a_goal_is_met_at_its_limit_and_missed_beyond() -> None:
    assert Goal("", 5.0, at_most=5).met and not Goal("", 5.01, at_most=5).met
    assert Goal("", 8.0, at_least=8).met and not Goal("", 7.99, at_least=8).met
    assert not Goal("", float("nan"), at_most=5).met


def test_a_row_of_a_case_without_the_slow_models_says_null() -> None:
    row = engine.row(1_000_000, {"ours": 5.0})
    assert row["plain_us"] is row["simpy_us"] is row["times_plain"] is row["times_simpy"] is None
    assert engine.row(10, {"ours": 5.0, "plain": 40.0, "simpy": 50.0})["times_plain"] == 8
