"""The words of one request's life: true of the learner's numbers and of the runs, in every case."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest

from explainers.lifecycle import figures as f
from explainers.lifecycle import scenario as s
from explainers.lifecycle import story
from sim.metrics import e2e
from sim.record import CLAIMS
from tests.explainers.test_lifecycle_scenario import VALUES

ROOT = Path(__file__).resolve().parents[2]


def ms(words: str) -> float:
    """A time as `grammar.duration` writes it, in ms."""
    number, unit = words.replace(",", "").split(" ")
    return float(number) * (1000 if unit == "s" else 1)


# ---- the worked example


def test_the_sum_is_written_out() -> None:
    assert story.headline(s.result({})) == "30 + 50 + 100 × 5 = 580 ms. Queue wait, prefill, and 100 gaps between 101 tokens."
    assert story.headline(s.result({"tokens": 1})) == \
        "30 + 50 + 0 × 5 = 80 ms. Queue wait and prefill: the first token is the last, so there is no gap."
    assert story.headline(s.result({"arrival": 100})).endswith("It came at 100 ms, so the clock then says 680 ms.")


@pytest.mark.parametrize("values", [
    {}, {"wait": 0}, {"gap": 7, "tokens": 2}, {"prefill": 345}, {"tokens": 300, "gap": 60}], ids=str)
def test_the_sum_that_is_written_is_right(values) -> None:
    left, right = story.the_sum(s.worked(values)).removesuffix(" ms").replace(",", "").split(" = ")
    wait, prefill, gaps = left.split(" + ")
    n, gap = gaps.split(" × ")
    assert float(wait) + float(prefill) + float(n) * float(gap) == float(right)


@pytest.mark.parametrize(("guess", "slip"), [
    (1_080, "You counted 200 gaps; between 200 tokens there are 199."),  # 80 + 200 × 5
    (995, "You counted the gaps only"),  # 199 × 5
    (1_000, "and no TTFT"),  # 200 × 5
    (1_045, "You left out the queue wait"),  # 50 + 199 × 5
])
def test_a_guess_that_is_a_usual_slip_is_told_which(guess, slip) -> None:
    said = story.feedback(s.result({}), guess)
    assert said.startswith(f"It is **1,075 ms**, you said {guess:,} ms: TTFT 80 ms + 199 gaps × 5 ms.") and slip in said


def test_the_right_guess_is_right_and_any_other_is_just_answered() -> None:
    assert story.feedback(s.result({}), 1_075).startswith("Right: it is **1,075 ms**")
    assert story.feedback(s.result({}), 42) == "It is **1,075 ms**, you said 42 ms: TTFT 80 ms + 199 gaps × 5 ms."
    assert story.feedback(s.result({}), None) == "It is **1,075 ms**: TTFT 80 ms + 199 gaps × 5 ms."


def test_a_guess_by_the_clock_is_told_so() -> None:
    assert "the time on the clock" in story.feedback(s.result({"arrival": 300}), 1_375)


def test_the_answer_is_within_what_can_be_typed() -> None:
    most = s.worked({"wait": 600, "prefill": 600, "gap": 60}).e2e_of(story.ASKED)
    assert story.PREDICTION.low <= most <= story.PREDICTION.high


# ---- alone and in company


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_the_parts_that_company_adds_make_up_the_whole(values) -> None:
    result = s.result(values)
    said = story.company_words(result)
    more = float(e2e(result.runs["company"])[result.scenario.me] - e2e(result.runs["alone"])[0])
    if abs(more) < 5e-4:
        assert said.startswith(("Nobody else is there", "Company costs it nothing"))
        return
    total = re.search(r"complete \*\*([\d.,]+ m?s) (later|sooner)\*\*", said)
    assert total and ms(total[1]) == pytest.approx(1000 * abs(more), rel=0.06)
    parts = re.findall(r"(-?[\d.,]+ m?s) in the (?:queue|prefill|gaps)", said)
    assert sum(map(ms, parts)) == pytest.approx(1000 * more, rel=0.02, abs=60)


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_every_request_s_life_is_told_with_waits_that_add_up(values) -> None:
    result = s.result(values)
    for request in (0, result.scenario.me, len(result.scenario.trace) - 1):
        for key in ("alone", "company"):
            said = story.life(result, key, request)
            assert said.startswith(f"**{story.NAMES[key]}.** Request {request + 1}")
            assert ("that we follow" in said) == (request == result.scenario.me)
            assert "does not wait" in said or re.search(r"waits [\d.,]+ m?s: ", said)
            assert not re.search(r"step boundary|slots full|nan", said)


def test_a_long_gap_is_explained_by_the_prompt_in_its_step() -> None:
    assert "a step in it also reads a newcomer's prompt" in story.company_words(s.result({}))


# ---- leaving early


def test_what_it_held_and_when_it_is_free_is_said() -> None:
    result = s.result({})
    said, left = story.leaving_words(result), result.left
    assert f"**1 slot and {left.blocks} blocks** ({left.tokens} tokens of KV)" in said
    assert f"goes on with 7 slots and {left.blocks} blocks fewer, for good" in said
    kept, leaked = result.runs["cancelled"], result.runs["leaked"]
    others = np.arange(len(kept)) != result.scenario.me
    later = (e2e(leaked) - e2e(kept))[others].mean()
    assert later > 0 and ms(re.search(r"take ([\d.,]+ m?s) longer on average", said)[1]) == pytest.approx(1000 * later, abs=1)


def test_the_flag_names_a_difference_that_is_the_loss() -> None:
    result = s.result({})
    requests, free, pool, lost = map(int, re.search(
        r"requests hold (\d+), (\d+) are free, and the pool has (\d+)\. (\d+) blocks", story.flag(result)).groups())
    assert pool - requests - free == lost == result.left.blocks
    assert story.flag(s.result({"moment": 10, "slots": 4})) == ""


def test_with_its_only_slot_lost_nobody_is_served_any_more() -> None:
    result = s.result({"slots": 1, "moment": 99})
    after = int((result.scenario.trace.arrival_us > result.scenario.trace.arrival_us[result.scenario.me]).sum())
    assert f"goes on with 0 slots and {result.left.blocks} blocks fewer, for good: {after} requests are never served" \
        in story.leaving_words(result)


def test_what_travels_is_written_as_a_product() -> None:
    result = s.result({})
    product = re.search(r"(\d+) tokens × (\d+) KiB = \*\*([\d.]+) MB", story.handoff_words(result))
    assert product and int(product[1]) * int(product[2]) * 1024 / 1e6 == pytest.approx(float(product[3]), abs=0.06)
    assert "nothing has been computed yet" in story.handoff_words(s.result({"moment": 5}))


# ---- the short arguments


def test_the_double_count_is_named_with_both_sums() -> None:
    # 580 + 100 × 2.
    assert "would say 780 ms instead of 580 ms, and count that time twice" in story.launch_words(s.result({}))
    assert "the CPU is the slower of the two: a token comes every 9 ms" in story.launch_words(s.result({"launch": 9}))
    assert "no time to enqueue" in story.launch_words(s.result({"launch": 0}))


def test_the_throughput_argument_names_both_sides() -> None:
    said = story.crowd_words(s.result({}))
    assert re.search(r"\*\*\d+ times\*\* as many tokens per second .* takes \*\*1\.\d\d times\*\* as long", said)
    assert "Sharing helps those who would have waited" in said


def test_both_orders_are_done_at_the_same_time() -> None:
    assert story.order_words(s.result({})).count("all are done after") == 1


# ---- check yourself, and the rest


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_the_quiz_has_one_right_answer_and_three_named_misconceptions(values) -> None:
    for question in story.quiz(s.result(values)):
        assert sum(option.correct for option in question.options) == 1 and len(question.options) == 4, question.prompt
        assert all(option.correct or option.why.startswith("You assumed that ") for option in question.options)


def test_the_first_question_is_the_learner_s_own_sum() -> None:
    question = story.quiz(s.result({"wait": 10, "prefill": 20, "gap": 3}))[0]
    assert "Queue wait 10 ms, prefill 20 ms, gaps of 3 ms" in question.prompt
    assert next(o.text for o in question.options if o.correct) == "177 ms"  # 10 + 20 + 49 × 3


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_nothing_is_said_with_nan_or_html(values) -> None:
    result = s.result(values)
    said = [story.headline(result), story.company_words(result), story.leaving_words(result), story.handoff_words(result),
            story.launch_words(result), story.crowd_words(result), story.order_words(result), *story.causes(result),
            story.sweep_words(s.sweep(values)), story.watch(values), *(" ".join(row) for row in story.models(result))]
    assert not any(re.search(r"\bnan\b|<[a-z]|\b1 (gaps|tokens|blocks|requests)\b", text) for text in said), said
    assert "nan" not in story.numbers(result).to_string()


def test_the_page_s_first_words_are_short_and_its_terms_explained() -> None:
    assert len(story.LEAD) <= 260 and story.QUESTION.endswith("?")
    assert all(len(meaning.split()) < 20 and meaning.endswith(".") for _, meaning in story.WORDS)
    assert {"TTFT", "ITL", "E2E", "Slot", "Block", "Hand-off"} <= {term for term, _ in story.WORDS}


def test_the_presets_say_what_to_watch_for() -> None:
    assert all(story.watch(preset.values) == preset.watch for preset in s.PRESETS)
    assert "Nobody else is there" in story.watch({"others": 0, "seed": 9})


def test_the_claims_are_in_the_record() -> None:
    assert set(story.CLAIMS) <= set(CLAIMS)
    assert all(any(fnmatchcase(name, pattern) for name in story.CLAIMS) for pattern in story.FIRST_CLAIMS)


@pytest.mark.parametrize("values", [{}, {"others": 0}, {"slots": 4, "moment": 70, "gpu": "H100", "seed": 7}], ids=str)
def test_the_printed_python_redoes_the_run_and_the_cancellation(values, tmp_path) -> None:
    ends = "import json\nprint('@' + json.dumps([run.finished_us.tolist() for run in (company, cancelled)]))"
    done = subprocess.run([sys.executable, "-c", story.python_lines(values) + ends], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True, timeout=60, check=True)
    runs = s.result(values).runs
    assert json.loads(done.stdout.rpartition("@")[2]) == [runs[key].finished_us.tolist() for key in ("company", "cancelled")]


def test_the_csv_has_a_line_for_each_request_and_run() -> None:
    result = s.result({})
    rows = list(csv.DictReader(io.StringIO(story.requests_csv(result))))
    assert len(rows) == sum(len(run) for run in result.runs.values())
    mine = next(row for row in rows if row["policy"] == "company" and int(row["request"]) == result.scenario.me + 1)
    assert float(mine["e2e_ms"]) == pytest.approx(float(e2e(result.runs["company"])[result.scenario.me]) * 1000)


def test_the_perfetto_trace_holds_our_request_s_states() -> None:
    events = json.loads(story.chrome_trace(s.result({})))["traceEvents"]
    assert [e["name"] for e in events if e["ph"] == "X" and e["tid"] == 2] == ["waiting", "waiting", "prefill", "decode"]


def test_the_cursor_s_time_is_that_of_the_figure() -> None:
    result = s.result({})
    told = story.cursor_data(result)["company"]
    me = result.scenario.me
    assert told["spans"][0][2][me] == 0  # it arrives
    assert told["spans"][2][2][me] == pytest.approx(f.tokens_ms(result, "company")[-1], abs=1e-3)
    assert told["end"] >= max(told["spans"][2][2]) - 1e-3
