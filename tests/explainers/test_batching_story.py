"""The batching lesson's words: true of the run on the screen, in every case, to the cause.

Runs by hand take 1 ms a step, prompts of one token; see tests/explainers/batching_hand.py.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from explainers.batching import scenario as s
from explainers.batching import story
from explainers.kit.grammar import duration, percent
from sim.policy import continuous, static
from sim.record import CLAIMS
from sim.service import Affine, service
from sim.trace import Trace
from tests.explainers.batching_hand import by_hand, swapped

ROOT = Path(__file__).resolve().parents[2]
PRESETS = s.PRESETS
ODD: list[dict[str, Any]] = [
    {"requests": 1}, {"slots": 1}, {"slots": 32}, {"requests": 1, "slots": 1}, {"requests": 2, "slots": 2, "spread": 0.0},
    {"spread": 0.0, "arrivals": s.EVEN, "rate": 0.25, "timeout": 0}, {"requests": 100, "slots": 32, "spread": 2.0},
    {"arrivals": s.POISSON, "rate": 32.0, "timeout": 10000}, {"arrivals": s.BURSTS, "timeout": 0, "slots": 2},
]
EVERY = [*(dict(p.values) for p in PRESETS), *ODD]


def three() -> s.Result:
    """Outputs 3, 1, 2 in two slots. Static: {1, 2} until 3 ms, slot 2 held from 1 ms; then {3} until 5 ms, slot 2 empty.

    Idle: 2 held + 2 empty of 2 × 5 ms = 40 %. Continuous: 3 follows 2 at 1 ms and ends at 3 ms with 1: nothing idle.
    """
    return by_hand([3, 1, 2], 2)


# ---- the sentence of difference


def test_the_headline_states_the_difference_and_its_cause() -> None:
    # Three pairs of outputs 3, 1: static holds slot 2 for 2 of every 3 ms, 33 %. Continuous: slot 1 serves 1, then 4 and 6,
    # slot 2 serves 2, 3, 5 …: 12 slot-ms of work in two slots take 7 ms, 2 of 14 slot-ms idle at the end.
    said = story.headline(by_hand([3, 1, 3, 1, 3, 1], 2))
    assert said.startswith("Static batching leaves 33 % of slot-time idle (all of it in slots held after their own "
                           "request ended, until the longest of the batch, such as request 1, did), continuous 14 %;")
    assert said.endswith("with continuous batching the last reply comes 2.0 ms sooner.")


def test_the_share_of_the_cause_is_told_apart_from_the_whole() -> None:
    assert story.headline(three()) == (
        "Static batching leaves 40 % of slot-time idle (20 % in slots held after their own request ended, until the longest "
        "of the batch, request 1, did), continuous 0 %; with continuous batching the last reply comes 2.0 ms sooner.")


def test_before_the_prediction_the_headline_names_what_each_policy_does() -> None:
    assert story.headline(three(), answer=False) == (
        "Static batching holds slots after their own request has ended, until the longest of the batch, request 1, has; "
        "continuous batching refills a slot at the next step, so the last reply comes 2.0 ms sooner.")
    # Two slots, no timeout: request 2 comes at 1.5 ms, after request 1 has left alone, and waits until 5 ms beside an empty
    # slot. Continuous: it joins at 2 ms, and the last reply is request 1's, at 5 instead of 6 ms.
    assert story.headline(by_hand([5, 1], 2, [0, 1.5], timeout=0), answer=False) == (
        "A static batch that has left takes nobody in, so that requests wait beside empty slots; continuous batching lets them "
        "join at the next step, so the last reply comes 1.0 ms sooner.")
    # As below: request 1 waits 100 ms for the second.
    assert story.headline(by_hand([3, 100], 2, [0, 100]), answer=False) == (
        "Static batching keeps slots open while a batch waits to fill; continuous batching lets a request start at the next "
        "step, so the median E2E latency is 52 ms instead of 102 ms, with the last reply at about the same time.")
    # Static without any idle slot, continuous with 40 %.
    assert story.headline(swapped(three()), answer=False) == (
        "Static batching leaves less slot-time idle; with continuous batching the last reply comes 2.0 ms later.")


def test_a_lost_race_is_called_so() -> None:
    assert "with continuous batching the last reply comes 2.0 ms later" in story.headline(swapped(three()))


def test_the_same_last_reply_but_sooner_ones_before() -> None:
    # Requests at 0 and 100 ms fill a batch of two; outputs 3 and 100. Both policies end at 200 ms, request 1 at 103 or 3 ms.
    said = story.headline(by_hand([3, 100], 2, [0, 100]))
    assert "in slots kept open while a batch waits to fill" in said
    assert said.endswith("with continuous batching the median E2E latency is 52 ms instead of 102 ms, with the last reply at "
                         "about the same time.")


@pytest.mark.parametrize(("values", "why"), [
    ({"spread": 0.0}, "the members of each batch end together"),
    ({"requests": 1}, "there is one request"),
    ({"slots": 1}, "with one slot a batch is one request"),
    ({"slots": 32}, "nobody waits for the slots that a batch holds"),
    ({"slots": 14, "spread": 0.0}, "all requests fit into one batch and end together"),
])
def test_no_difference_is_said_with_its_reason(values: dict[str, Any], why: str) -> None:
    said = story.headline(s.result(values))
    assert said.startswith("No difference: every request ends at the same moment under both policies, because " + why)


def test_nothing_idle_is_said() -> None:
    assert story.headline(by_hand([2, 2], 2)).endswith("No slot is ever idle.")


@pytest.mark.parametrize("values", EVERY, ids=str)
def test_before_the_prediction_the_headline_keeps_the_answer_back(values: dict[str, Any]) -> None:
    result = s.result(values)
    assert "%" not in story.headline(result, answer=False).replace("less than 1 %", "")
    assert story.headline(result, answer=False)


# ---- causes


def test_each_cause_names_its_batch() -> None:
    said = story.causes(three())
    assert said[0].startswith("**Static: ended, held 20 %.**") or said[1].startswith("**Static: ended, held 20 %.**")
    assert any("In the batch of requests 1–2, 1 slot stood idle until request 1 had written its 3 tokens." in c for c in said)
    assert said[-1] == "**Continuous:** no slot is ever idle."


@pytest.mark.parametrize("values", EVERY, ids=str)
def test_the_causes_are_those_of_the_ledger(values: dict[str, Any]) -> None:
    result = s.result(values)
    for key, book in result.ledgers.items():
        named = [c for c in story.causes(result) if c.startswith(f"**{story.NAMES[key]}:")]
        parts = [int(found) for found in re.findall(r" (\d+) %\.\*\*", " ".join(named))]
        assert sum(parts) == round(100 * book.idle_share)  # the parts add up to the whole that the stage and headline state
        assert parts == sorted(parts, reverse=True)
        assert len(named) == max(len(parts), 1)


# ---- batches


def test_batches_are_told_by_why_they_left() -> None:
    # Two slots. 1 and 2 at 0 fill the first; 3 comes at 1 ms while it runs (until 3 ms) and 4 at 10 ms fills the second;
    # 5, at 20 ms, is the last of all and leaves alone at once.
    run = by_hand([3, 1, 1, 1, 1], 2, [0, 0, 1, 10, 20]).runs["static"]
    assert [(b.name(), b.left) for b in story.batches(run)] == [("requests 1–2", "full"), ("requests 3–4", "full"),
                                                               ("request 5", "last")]


def test_a_batch_that_was_ready_before_the_server_is_told_apart() -> None:
    assert [b.left for b in story.batches(by_hand([3, 1, 1, 1], 2).runs["static"])] == ["full", "busy"]


# ---- a request's life


def life(result: s.Result, policy: str, number: int) -> str:
    return story.life(result, policy, number - 1)


def test_static_waits_for_the_longest_of_the_batch_before() -> None:
    said = life(three(), "static", 3)
    assert "waited 3.0 ms: all slots were taken until request 1, the longest of its batch, ended" in said
    assert said.endswith("ended at 5.0 ms: E2E 5.0 ms.")


def test_continuous_waits_for_the_first_slot() -> None:
    assert "waited 1.0 ms: all slots were taken until request 2 ended;" in life(three(), "continuous", 3)


def test_a_held_slot_belongs_to_the_life() -> None:
    assert "its slot was held 2.0 ms longer, until request 1 of its batch ended" in life(three(), "static", 2)
    assert "held" not in life(three(), "continuous", 2)


def test_those_ahead_in_the_queue_are_counted() -> None:
    # One slot, outputs 2, 2, 2: request 3 waits for request 2, which was ahead of it.
    assert "until request 2 ended, with 1 request ahead of it in the queue" in life(by_hand([2, 2, 2], 1), "continuous", 3)


def test_a_batch_that_left_without_it() -> None:
    # Timeout 0: request 1 leaves alone and runs until 5 ms; request 2 comes at 1.5 ms. Continuous: it joins at 2 ms.
    result = by_hand([5, 1], 2, [0, 1.5], timeout=0)
    assert "waited 3.5 ms: the batch of request 1 had left without it and ran until request 1 ended" in life(result, "static", 2)
    assert "waited 0.5 ms: a slot was free, and the running step had to end" in life(result, "continuous", 2)


def test_a_batch_that_waits_to_fill() -> None:
    result = by_hand([5, 1, 1], 2, [0, 4, 50])
    assert "waited 4.0 ms: its batch waited to fill, until request 2 came" in life(result, "static", 1)
    assert "started at once" in life(result, "static", 2)
    assert "started at once" in life(result, "continuous", 1)


def test_the_fill_timeout() -> None:
    result = by_hand([5, 1, 1], 2, [0, 4, 50], timeout=0.003)
    assert "waited 3.0 ms: its batch waited to fill, until it had waited the fill timeout of 3.0 ms" in life(result, "static", 1)


def test_the_last_of_all_ends_the_waiting() -> None:
    result = by_hand([5, 1], 3, [0, 4])
    assert "waited 4.0 ms: its batch waited to fill, until request 2, the last of all, came" in life(result, "static", 1)


def test_two_waits_in_a_row_are_told_apart() -> None:
    # Two slots. {1, 2} run until 5 ms; 3 came at 1 ms, and 4 fills its batch at 9 ms.
    said = life(by_hand([5, 1, 1, 1], 2, [0, 0, 1, 9]), "static", 3)
    assert ("waited 8.0 ms: 4.0 ms while all slots were taken until request 1, the longest of its batch, ended, "
            "then 4.0 ms while its batch waited to fill, until request 4 came") in said


def test_a_batch_that_ends_together_has_no_longest() -> None:
    assert "all slots were taken until requests 1–2 ended" in life(by_hand([2, 2, 1], 2), "static", 3)


def test_a_gap_that_a_newcomer_s_prompt_makes_longer_is_told() -> None:
    # A step takes 1 ms a token. Two slots, prompts of one token, outputs 6, 2, 3.
    # Request 1: step 1 holds both prompts, 2 ms; step 2 two decodes, 2 ms, and request 2 has ended at 4 ms. Step 3: request 1
    # decodes beside request 3's prompt of 5 tokens: 6 ms. Steps 4 and 5 two decodes of 2 ms each; step 6 alone, 1 ms. Its gaps:
    # 2, 6, 2, 2, 1 ms; median 2, and the one of 6 ms is 4 ms more.
    trace = Trace([0.0] * 3, [1, 1, 5], [6, 2, 3])
    policies = {"static": static(2), "continuous": continuous(2, prompts="whole")}
    result = s.serve(s.Scenario(trace, Affine(0, per_token_us=1000), policies, s.filled({})))
    said = life(result, "continuous", 1)
    assert ("one every 2.0 ms as a rule; 1 gap of up to 6.0 ms, in steps that also read newcomers' prompts, added 4.0 ms in all"
            ) in said
    # Static: 2 ms beside request 2, then 1 ms each, alone: gaps 2, 1, 1, 1, 1, and no prompt is read beside.
    assert "one every 1.0 ms as a rule; the longest gap was 2.0 ms;" in life(result, "static", 1)


def test_an_output_of_one_token_has_no_gaps() -> None:
    said = life(three(), "static", 2)
    assert "TTFT 1.0 ms" in said
    assert "more token" not in said


@pytest.mark.parametrize("values", EVERY, ids=str)
def test_every_request_has_a_life_under_every_policy(values: dict[str, Any]) -> None:
    result = s.result(values)
    for key, run in result.runs.items():
        for r in range(len(run)):
            said = story.life(result, key, r)
            waited = run.admitted_us[r] - run.trace.arrival_us[r] > 1e-3
            assert ("waited" in said) == waited
            assert ("started at once" in said) == (not waited)


# ---- prediction, watch-for lines, numbers


def test_the_feedback_gives_the_answer_and_why() -> None:
    said = story.feedback(three(), 70)
    assert said.startswith("Less than you said: it is **40 %**, you said 70 %.")
    assert "20 % was held after its request had ended" in said
    assert "20 % had no request" in said
    assert story.feedback(three(), 20).startswith("More than you said")
    assert story.feedback(three(), 43).startswith("Close: it is **40 %**")
    assert story.feedback(three(), None).startswith("It is **40 %**.")


def test_a_preset_s_line_is_found_by_its_values() -> None:
    for preset in s.PRESETS:
        assert story.watch(preset.values) == preset.watch
    assert story.watch({"slots": 5}) not in [p.watch for p in s.PRESETS]


@pytest.mark.parametrize("values", [{"slots": 32}, {"slots": 14}, {"slots": 1}, {"slots": 5, "spread": 0.0}], ids=str)
def test_what_to_watch_promises_no_gain_where_there_is_none(values: dict[str, Any]) -> None:
    assert story.headline(s.result(values)).startswith("No difference")
    assert "gives back" not in story.watch(values)
    assert "gives back" in story.watch({"slots": 13})


@pytest.mark.parametrize("values", EVERY, ids=str)
def test_the_parts_in_the_feedback_add_up_to_the_answer(values: dict[str, Any]) -> None:
    answer, *parts = (int(x) for x in re.findall(r"(\d+) %", story.feedback(s.result(values), None)))
    assert sum(parts) == answer


def test_the_numbers_side_by_side() -> None:
    table = story.numbers(three()).set_index("")
    assert table.loc["Last reply ends after"].tolist() == ["5.0 ms", "3.0 ms"]
    assert table.loc["Output tokens per second"].tolist() == ["1,200", "2,000"]  # 6 tokens in 5 or 3 ms
    assert table.loc["Idle slot-time"].tolist() == ["40 %", "0 %"]
    assert table.loc["Time to first token (TTFT), p50"].tolist() == ["1.0 ms", "1.0 ms"]  # 1, 1, 4 and 1, 1, 2 ms
    assert "Idle slot-time" not in story.numbers(three(), answer=False)[""].tolist()


def test_p99_of_a_few_requests_is_called_what_it_is() -> None:
    assert "Of 3 requests, p99 lies between the two largest values." in story.numbers_note(three())
    assert "p50 and p99 are the same" in story.numbers_note(by_hand([3], 2))
    # numpy's linear quantile: place 0.99·(n − 1) counted from 0; above n − 2 up to n = 101, where it is n − 2 itself.
    assert math.floor(0.99 * 99) == 98 and "two largest" in story.numbers_note(s.result({"requests": 100}))


def test_the_sweep_says_what_idle_means() -> None:
    said = story.sweep_words(s.sweep({}))
    here = s.result({}).summaries
    assert said.startswith("From 1 to 32 slots, the idle share goes from 0 % to ")
    for key, summary in here.items():
        assert f"{percent(summary['idle_share'])} and {duration(summary['e2e_p99'])} under {key}" in said
    assert "An idle slot is not an idle GPU" in said and "memory" in said
    assert story.sweep_words(s.sweep({}, over="rate")) == "All requests come at once: the rate plays no part."
    assert "From 0.25 to 32 requests/s, under static" in story.sweep_words(s.sweep({"arrivals": s.POISSON}, over="rate"))


def test_the_words_are_short() -> None:
    assert len(story.LEAD) <= 260
    for word in ("request", "slot", "step", "prefill", "decode", "Static", "Continuous"):
        assert word in story.LEAD
    assert all(len(sentence.split()) < 20 for _, sentence in story.WORDS)
    terms = {term for term, _ in story.WORDS}
    assert {"Request", "Token", "Step", "Slot", "Prefill", "Decode", "Static batching", "Continuous batching"} <= terms
    assert {"TTFT", "ITL", "E2E", "p50, p99"} <= terms


# ---- check yourself


@pytest.mark.parametrize("values", EVERY, ids=str)
def test_four_questions_whatever_the_run(values: dict[str, Any]) -> None:
    questions = story.quiz(s.result(values))  # each refuses duplicate options, or none or two right ones
    assert len(questions) == len({q.prompt for q in questions}) == 4
    for question in questions:
        assert 3 <= len(question.options) <= 4
        right = next(o.text for o in question.options if o.correct)
        for wrong in (o for o in question.options if not o.correct):
            assert wrong.why.startswith("You assumed that ")
            assert wrong.why.endswith(f"The right answer: {right[0].lower()}{right[1:]}.")


def test_the_questions_are_the_same_for_the_same_run() -> None:
    assert story.quiz(s.result({})) == story.quiz(s.result({}))


def test_the_right_answer_has_no_fixed_place() -> None:
    places = [[o.correct for o in q.options].index(True) for v in EVERY for q in story.quiz(s.result(v))]
    assert {0, 1, 2, 3} == set(places)


def test_the_answers_by_hand() -> None:
    right = [next(o.text for o in q.options if o.correct) for q in story.quiz(three())]
    assert right[0] == "At 3.0 ms, when request 1 ends"  # request 2's slot
    assert right[1] == "1.2"                             # (1 − 0.4) × 2 slots
    assert right[2] == "Its queue wait is 2.0 ms shorter"  # request 3: 5 → 3 ms, wait 3 → 1 ms
    assert right[3] == "1.67 times"                      # 5 ms / 3 ms


def test_a_wrong_number_is_plainly_wrong() -> None:
    for values in EVERY:
        mean = story.quiz(s.result(values))[1]
        slots = s.result(values).runs["static"].policy.slots
        numbers = {o.correct: float(o.text) for o in mean.options if o.correct}
        wrong = [float(o.text) for o in mean.options if not o.correct and o.text[0].isdigit()]
        assert all(abs(w - numbers[True]) >= 0.05 * slots - 0.1 for w in wrong)  # 0.1: both are rounded to a tenth


# ---- what it models


def test_the_constants_on_the_screen_are_those_of_the_run() -> None:
    rows = {what: value for what, value, _ in story.models(s.result({}))}
    # CALIBRATION.md: tau 0.0505 ms a layer, 32 layers: 1.62 ms.
    assert rows["Fixed part"] == "1.62 ms a step"
    assert rows["Model"].startswith("Llama-3-8B")
    assert "312 TFLOP/s, 2.039 TB/s" in rows["GPU"]
    # KV of a token: 2·32·8·128·2 bytes = 131,072 at 2.039e12 · 0.834 byte/s: 0.077 µs.
    assert rows["Reading a token's KV"].startswith("0.077 µs")
    assert all(source for _, _, source in story.models(s.result({"gpu": "A40"})))


def test_what_was_not_measured_is_said() -> None:
    def row(what: str, **values: Any) -> str:
        return next(" ".join(cells) for cells in story.models(s.result(values)) if cells[0] == what)

    assert "no measured step time" in row("Model", model="OPT-13B") and "no measured" not in row("Model", model="Mistral-7B")
    # The LM head of Llama-3-8B: 2·4,096·128,256 bytes at 2.039e12 · 0.763 byte/s: 0.68 ms.
    assert "0.68 ms a step" in row("LM head")
    assert service("Llama-3-8B", "A100-80G").lm_head_us == pytest.approx(675, abs=2)
    # A lognormal of mean 128 and coefficient of variation c has the median 128/√(1 + c²): 0.8: 99.95; 0: 128.
    assert "mean 128, median 100" in row("Requests") and "mean 128, median 128" in row("Requests", spread=0.0)
    assert "CC-BY 4.0" in row("Requests", source=s.SAMPLE)


def test_what_favours_a_policy_is_among_what_is_left_out() -> None:
    said = " ".join(story.leaves_out())
    for words in ("streams", "like lengths", "2,048 tokens", "0.76 and 0.51", "steady state", "chunked prompts", "ended member"):
        assert words in said


def test_the_claims_are_on_record() -> None:
    for name in story.CLAIMS:
        assert name in CLAIMS or (name.endswith("*") and any(known.startswith(name[:-1]) for known in CLAIMS)), name


# ---- take away


def redone(lines: str, folder: Path) -> dict[str, dict[str, float]]:
    """The summaries that the printed Python yields in a process of its own."""
    code = lines + "import json\nprint('@' + json.dumps({name: summary(run) for name, run in runs.items()}))\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
                          timeout=60, check=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout.rpartition("@")[2])
    return found


@pytest.mark.parametrize("values", [{}, {"arrivals": s.BURSTS, "giant": 3, "gpu": "H100", "seed": 7},
                                    {"arrivals": s.EVEN, "rate": 0.5, "timeout": 250, "slots": 3},
                                    {"arrivals": s.POISSON, "requests": 30, "spread": 0.0}], ids=str)
def test_the_python_lines_redo_the_run(values: dict[str, Any], tmp_path: Path) -> None:
    assert redone(story.python_lines(values), tmp_path) == s.result(values).summaries


def test_the_python_lines_redo_the_run_of_the_sample() -> None:
    values = {"source": s.SAMPLE, "start": 100, "take": 12}
    assert redone(story.python_lines(values), ROOT) == s.result(values).summaries


def test_the_python_lines_redo_the_run_of_an_own_file(tmp_path: Path) -> None:
    from sim.readers import azure

    rows = [f"2023-11-16 18:15:{i:02}.5000000,{100 + i},{5 + 7 * i % 40}" for i in range(50)]
    (tmp_path / "your-trace.csv").write_text("\r\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    values = {"source": s.OWN, "start": 10, "take": 25, "slots": 2}
    trace = azure.read(tmp_path / "your-trace.csv")
    assert redone(story.python_lines(values), tmp_path) == s.result(values, trace).summaries


def test_the_csv_has_a_line_for_each_request_and_policy() -> None:
    rows = list(csv.DictReader(io.StringIO(story.requests_csv(three()))))
    assert [(r["policy"], r["request"]) for r in rows] == [(p, str(n)) for p in ("static", "continuous") for n in (1, 2, 3)]
    assert [float(r["finished_ms"]) for r in rows] == pytest.approx([3, 1, 5, 3, 1, 3])
    assert [r["slot"] for r in rows] == ["1", "2", "1", "1", "2", "2"]


@pytest.mark.parametrize("values", EVERY[:6], ids=str)
def test_the_trace_for_perfetto_is_well_formed(values: dict[str, Any]) -> None:
    result = s.result(values)
    events = json.loads(story.chrome_trace(result))["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X"}
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["Static batching", "Continuous batching"]
    for pid, run in enumerate(result.runs.values(), start=1):
        mine = [e for e in events if e["ph"] == "X" and e["pid"] == pid]
        assert all({"name", "cat", "ts", "dur", "tid"} <= e.keys() and e["dur"] >= 0 for e in mine)
        named = {e["tid"] for e in events if e["name"] == "thread_name" and e["pid"] == pid}
        assert {e["tid"] for e in mine} == named == set(range(1, run.policy.slots + 1))
        for _, lane in itertools.groupby(mine, key=lambda e: e["tid"]):
            pieces = sorted(lane, key=lambda e: e["ts"])
            for a, b in itertools.pairwise(pieces):
                assert b["ts"] == pytest.approx(a["ts"] + a["dur"], abs=0.01)  # µs; both rounded to 0.001


def test_perfetto_s_pieces_add_up_to_the_slot_time() -> None:
    events = [e for e in json.loads(story.chrome_trace(three()))["traceEvents"] if e["ph"] == "X"]
    # Two slots for 5 ms and for 3 ms, in µs; 4 ms of it idle.
    assert sum(e["dur"] for e in events) == pytest.approx(2 * 5000 + 2 * 3000)
    assert sum(e["dur"] for e in events if e["cat"] == "idle") == pytest.approx(4000)


def test_the_scrubber_gets_every_instant_in_ms() -> None:
    told = json.loads(json.dumps(story.cursor_data(three()), allow_nan=False))
    assert told["static"] == {"name": "Static", "slots": 2, "arrival": [0, 0, 0], "admitted": [0, 0, 3], "first": [1, 1, 4],
                              "finished": [3, 1, 5], "released": [3, 3, 5], "slot": [0, 1, 0]}
    assert told["continuous"]["admitted"] == [0, 0, 1]


def test_the_prediction_s_answer_is_the_ledger_s() -> None:
    result = s.result({})
    assert f"**{percent(result.ledgers['static'].idle_share)}**" in story.feedback(result, None)
    assert (story.PREDICTION.low, story.PREDICTION.high, story.PREDICTION.unit) == (0, 100, "%")
