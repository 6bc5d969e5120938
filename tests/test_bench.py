"""The benchmark's own models: they must serve as the engine does, or the comparison of times would mean nothing."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from bench import engine, plain, simpy_model, tuned, ui
from bench.__main__ import main as bench_main
from bench.report import Goal
from explainers import PATH
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


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """The benchmark with quick numbers in place of measuring: `measured(met)` → exit code and the JSON rows."""

    def call(met: bool, *more: str) -> tuple[int, list[dict[str, object]]]:
        rows = [engine.row(10, {"ours": 5.0, "plain": 40.0, "simpy": 50.0})]
        monkeypatch.setattr(engine, "main", lambda: (rows, met))
        code = bench_main(["engine", "--json", str(tmp_path / "rows.json"), *more])
        return code, json.loads((tmp_path / "rows.json").read_text())

    return call


def test_the_json_is_a_list_of_rows_with_the_agreed_keys(measured) -> None:
    code, rows = measured(True)
    assert code == 0
    assert [set(row) for row in rows] == [
        {"case", "requests", "us_per_request", "plain_us", "simpy_us", "times_plain", "times_simpy"}
    ]
    assert set(ui.row(ui.LESSONS[0], "first load", [3.0, 1.0, 2.0], 4.0)) == {"lesson", "what", "median_ms", "bare_ms", "ratio"}


def test_a_missed_goal_is_a_result_unless_strict(measured) -> None:
    assert measured(False)[0] == 0
    assert measured(False, "--strict")[0] == 1
    assert measured(True, "--strict")[0] == 0


def test_a_json_file_in_no_folder_is_refused_before_anything_is_measured(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        bench_main(["engine", "--json", "/nowhere/at/all/rows.json"])
    assert ended.value.code == 2
    assert "no folder /nowhere/at/all" in capsys.readouterr().err


def test_a_page_s_row_is_the_median_and_its_ratio_to_the_bare_page_s() -> None:
    row = ui.row(ui.LESSONS[0], "first load", [300.0, 100.0, 200.0], 160.0)
    assert (row["median_ms"], row["bare_ms"], row["ratio"]) == (200, 160, 1.25)


@pytest.mark.parametrize("lesson", ui.LESSONS, ids=lambda lesson: lesson.key)
def test_every_press_that_is_measured_changes_the_stage_and_the_headline(lesson, tmp_path) -> None:
    # A press that changed nothing could never be seen to have been answered.
    file = tmp_path / "figures.json"
    sizes = ui.write_ready_made(lesson, file)
    made = json.loads(file.read_text())
    assert len(made) == len(sizes) == len(lesson.runs) * (lesson.steps + 1)
    for one, next_one in pairwise(made):
        assert one["figure"]["data"] != next_one["figure"]["data"]
        assert one["headline"] != next_one["headline"]
    assert sum(lesson.steps - 1 for _ in lesson.runs) == ui.PRESSES
    assert lesson.key in {entry.key for entry in PATH}
