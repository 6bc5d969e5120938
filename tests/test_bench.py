"""The benchmark's own models: they must serve as the engine does, or the comparison of times would mean nothing."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from bench import engine, fleet, plain, plain_memory, simpy_model, tuned, ui
from bench.__main__ import main as bench_main
from bench.report import Goal
from explainers import PATH
from sim.policy import Memory
from sim.run import FINISHED
from sim.service import Affine
from sim.trace import Content, Trace

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


@pytest.mark.parametrize("case", [
    *engine.MEMORY,
    engine.Case("preempts", Memory(600), 0),
    engine.Case("preempts and forgets prefixes", Memory(600, prefix_cache=True), 0, shared=True),
    engine.Case("small blocks", Memory(3000, block_size=3, prefix_cache=True), 0, shared=True),
], ids=lambda case: case.name)
def test_the_plain_loop_with_memory_finds_the_engine_s_times_on_the_benchmark_s_workload(case) -> None:
    trace = case.trace(200)
    run = engine.ours(trace, case.policy)
    assert engine.worst_difference(trace, run, engine.OTHERS["plain"](trace, case)) <= 1e-6
    if "preempts" in case.name:
        assert run.preemptions.sum() > 0
    if case.shared:
        assert run.cached.sum() > 0


def test_a_decode_without_a_block_preempts_the_newest_by_hand() -> None:
    # 10 µs a step, blocks of 2 tokens, 4 of them. Two requests with prompts of 3 and 4 output tokens, 2 blocks each.
    # 0 → 10: both prompts. 10 → 20: the fourth token of each fits. At 20 both want a third block: request 2 gives its own
    # up, and request 1 goes on alone: 30, 40, and ends with its fourth token after 30: tokens at 10, 20, 30, 40.
    # Request 2 has 2 tokens then: 5 known, 3 blocks, free from 40 on: its third token at 50, its fourth at 60.
    trace = Trace([0, 0], [3, 3], [4, 4])
    times = plain_memory.serve(trace, Affine(10), slots=2, budget=8, memory=Memory(4, block_size=2))
    assert times == ([0, 0], [10, 10], [40, 60])


def test_a_cached_prefix_is_not_computed_again_by_hand() -> None:
    # 1 µs a token, blocks of 2. Both prompts are the same 4 tokens, one output token each, the second after the first.
    # 0 → 4. Then the first block is found; the last token must be computed, and with it its block: 10 → 12.
    content = Content.of([[(0, 0, 4)], [(0, 0, 4)]], [1, 2])
    trace = Trace([0, 10e-6], [4, 4], [1, 1], content=content)
    cached, counted = (plain_memory.serve(trace, Affine(0, 1), 2, 8, Memory(8, 2, prefix_cache=on)) for on in (True, False))
    assert cached == ([0, 10], [4, 12], [4, 12])
    assert counted == ([0, 10], [4, 14], [4, 14])


@pytest.mark.parametrize("memory", [Memory(8, watermark=0.5), Memory(8, full_prompt=False), Memory(8, swap_us=1.0)])
def test_memory_rules_that_the_plain_loop_does_not_know_are_refused(memory) -> None:
    with pytest.raises(ValueError, match="memory must be paged"):
        plain_memory.serve(Trace([0], [1], [1]), Affine(1), 2, 4, memory)


def test_the_scarce_pool_preempts_some_hundred_times_and_refuses_nobody() -> None:
    case = engine.MEMORY[1]
    run = engine.ours(case.trace(10_000), case.policy)
    assert 100 < run.preemptions.sum() < 1000
    assert (run.outcome == FINISHED).all()


def test_the_shared_workload_has_the_same_requests_and_quotes_a_good_third_of_their_tokens() -> None:
    # System prompts of 400 tokens on average, prompts of 798 that hold no more of them than their own length.
    plain_trace, shared = engine.requests(10_000), engine.shared_requests(10_000)
    assert (shared.arrival == plain_trace.arrival).all() and (shared.prompt == plain_trace.prompt).all()
    quoted = shared.content.length[shared.content.stream < engine.SYSTEM_PROMPTS].sum() / shared.prompt.sum()
    assert 1 / 3 < quoted < 1 / 2


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
    assert engine.row(10, {"ours": 5.0, "plain": 40.0}, engine.MEMORY[0])["simpy_us"] is None


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


def test_the_fleet_is_measured_on_the_whole_trace_or_said_not_to_be(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(fleet, "TRACE", tmp_path / "none.jsonl")
    rows, goals, said = fleet.measure()
    assert rows == goals == [] and "not measured" in said
    # Two prompts of two blocks, a minute apart, with the first block in common: 512 of 2,000 tokens are found, on one replica.
    fleet.TRACE.write_text("".join(f'{{"timestamp": {at}, "input_length": 1000, "output_length": 3, "hash_ids": [0, {block}]}}\n'
                                   for at, block in ((0, 1), (60_000, 2))))
    rows, goals, said = fleet.measure()
    assert [row["requests"] for row in rows] == [2, 2] and all(goal.at_most == 3.0 for goal in goals)
    assert "25.6 % of the prompt tokens found" in said
