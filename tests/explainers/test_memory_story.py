"""The memory lesson's words: true of the run on the screen, in every case. Small memories: tests/explainers/memory_hand.py."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from explainers.memory import scenario as s
from explainers.memory import story
from sim.kv.occupancy import PARTS
from sim.readers import recording
from sim.record import CLAIMS
from sim.trace import Trace
from tests.explainers.memory_hand import by_hand, four, short

STALL = Path(__file__).parents[1] / "peers" / "data" / "vllm" / "exact_fit_out2_stall.json.gz"

ROOT = Path(__file__).resolve().parents[2]
ODD: list[dict[str, Any]] = [
    {"other": s.ORACLE}, {"other": s.POW2, "off": 0.5}, {"other": s.MAX}, {"arrivals": s.POISSON, "rate": 8.0},
    {"requests": 1}, {"requests": 3, "memory": 125_600}, {"memory": 2_048, "preempt": s.SWAP}, {"block": 1}, {"spread": 0.0},
    {"samples": 3, "prefix": 512, "memory": 4_096}, {"fit": s.FITS, "gpu": "H100", "model": "Llama-3-8B"},
]  # fmt: skip
EVERY = [*(dict(p.values) for p in s.PRESETS), *ODD]


# ---- the sentence of difference


def test_the_headline_states_the_difference_and_its_cause() -> None:
    assert story.headline(four()) == (
        "Orca (Max) holds 2 of 4 requests at once, as each sets the maximum length of 8 token slots aside, and tokens fill 38 % "
        "of what is taken; paged memory holds all 4 requests and fills 90 %, so the last reply comes 3.0 ms sooner.")


def test_before_the_prediction_the_headline_says_what_each_memory_does() -> None:
    assert story.headline(four(), answer=False) == (
        "Orca (Max) sets the maximum length of 8 token slots aside for each request as it starts; paged memory takes a block of "
        "2 slots when a token needs it, so the last reply comes 3.0 ms sooner.")


def test_no_difference_is_said_with_its_reason() -> None:
    assert story.headline(by_hand([2, 2], [3, 3], 16, 8)).startswith("No difference: every request ends at the same moment")
    assert story.headline(s.result({"other": s.MAX})) == \
        "No difference: both memories are Orca (Max). Choose another second allocator."


def test_where_everyone_reaches_the_maximum_paging_is_said_to_lose() -> None:
    everyone = next(p for p in s.PRESETS if p.key == "maximum")
    assert re.search(r", but the last reply comes [\d.]+ m?s later\.$", story.headline(s.result(everyone.values)))


@pytest.mark.parametrize("values", EVERY, ids=str)
def test_before_the_prediction_nothing_on_the_first_screen_says_how_many_fit(values: dict[str, Any]) -> None:
    result = s.result(values)
    said = story.headline(result, answer=False)
    assert said and "at once, as" not in said and " of 40 " not in said
    rows = story.numbers(result, answer=False)[""].tolist()
    assert not any("at once" in row for row in rows) and "Last reply ends after" in rows


# ---- prediction


def test_the_feedback_gives_the_answer_and_why() -> None:
    assert story.feedback(four(), None) == \
        "It is **2**: 16 token slots hold 2 pieces of 8; none is left over. Paged memory held 4."
    assert story.feedback(four(), 2).startswith("Right: it is **2**. 16 token slots hold 2 pieces of 8")
    assert story.feedback(four(), 4).startswith("Fewer than you said: it is **2**, you said 4.")
    assert story.feedback(four(), 1).startswith("More than you said")
    # 2,048 goes into 15,700 seven times, and 15,700 − 14,336 = 1,364.
    assert "15,700 token slots hold 7 pieces of 2,048; the 1,364 left over are too few for one more" in \
        story.feedback(s.result({}), None)
    assert "and only 2 came" in story.feedback(by_hand([2, 2], [3, 3], 32, 8), None)


def test_the_prediction_asks_for_a_number_that_can_be() -> None:
    asked = story.prediction(s.result({}))
    assert (asked.low, asked.high) == (0, 40) and "40" in asked.question and "Orca (Max)" in asked.question


# ---- where the memory goes


def test_the_parts_are_told_with_an_example() -> None:
    said = "\n".join(story.causes(four()))
    # 37.5, 12.5 and 50 %: whole per cents that add up to 100, the larger remainder up, the earlier of equal ones first.
    assert "**Orca (Max): tokens 38 %.**" in said and "**Orca (Max): reserved 12 %.**" in said
    assert "**Orca (Max): never filled 50 %.** Reserved beyond what the reply turned out to need. Request 1 was given 8 slots " \
           "and ended with 4 tokens." in said
    # Paged, over 3 ms: 36 of 48 slots tokens, 4 (at 1 ms) to come in half-filled blocks, 8 free in the first step.
    assert "**Paged memory: tokens 75 %.**" in said and "**Paged memory: reserved 8 %.**" in said
    assert "**Paged memory: free 17 %.**" in said


@pytest.mark.parametrize("values", EVERY, ids=str)
def test_the_parts_add_up_to_the_memory(values: dict[str, Any]) -> None:
    result = s.result(values)
    parts = [re.match(r"\*\*(.+): .*?(\d+|under 1|over 99) %\.\*\*", line) for line in story.causes(result)]
    assert all(parts)
    if "under 1" not in str(story.causes(result)) and result.runs["reserved"].policy != result.runs["other"].policy:
        for name in {m[1] for m in parts if m}:
            assert sum(int(m[2]) if m[2].isdigit() else 100 for m in parts if m and m[1] == name) == 100


# ---- a request's life


def test_a_life_with_a_reservation() -> None:
    assert story.life(four(), "reserved", 2) == (
        "**Orca (Max).** Request 3 (2 prompt, 3 output tokens) came at 0 ms; waited 3.0 ms first in line, for memory (it needed "
        "8 slots in one piece; 0 were free in all); was given 8 slots in one piece, from 0 on: 4 were filled when it ended and 4 "
        "never; TTFT 4.0 ms; ended at 6.0 ms: E2E 6.0 ms.")
    assert "waited 3.0 ms behind others in the queue;" in story.life(four(), "reserved", 3)


def test_a_life_in_blocks() -> None:
    said = story.life(four(), "other", 2)
    assert "started at once; grew to 2 blocks of 2 for its 4 tokens, all of them full;" in said
    assert "with 1 slot of the last one empty" in story.life(by_hand([2], [2], 16, 8), "other", 0)


def test_a_life_with_a_preemption() -> None:
    said = story.life(short(), "other", 1)
    assert ("preempted at 3.0 ms with 4 tokens in 2 blocks, as request 1 needed a block; back at 5.0 ms, its next token at "
            "6.0 ms") in said
    assert said.endswith("ended at 7.0 ms: E2E 7.0 ms.")


@pytest.mark.parametrize("values", EVERY, ids=str)
def test_every_request_has_a_life_with_every_memory(values: dict[str, Any]) -> None:
    result = s.result(values)
    for key, run in result.runs.items():
        for r in range(len(run)):
            said = story.life(result, key, r)
            waited = run.admitted_us[r] - run.trace.arrival_us[r] > 1e-3
            assert ("waited" in said) == waited and ("started at once" in said) == (not waited)
            assert said.count("preempted at") == min(int(run.preemptions[r]), 2 if run.preemptions[r] == 2 else 1)


# ---- preemptions


def test_a_preemption_is_told_in_three_moments() -> None:
    before, step, after = story.preempted(short(), 0)
    assert before.words == ("In the step that ends at 3.0 ms, 2 requests hold memory, and 0 blocks of 4 are free. Request 2 has "
                            "4 tokens in 2 blocks.")
    assert step.words == ("At 3.0 ms request 1 needs a block for its next token, and none is free. Request 2 is the last in "
                          "line: it gives up 2 blocks with the KV of 4 tokens and goes back to the head of the queue.")
    assert after.words.startswith("Request 2 comes back at 5.0 ms with nothing kept, and writes its next token at 6.0 ms.")
    assert (before.at_us < step.at_us < after.at_us) and step.at_us == 3000


def test_who_is_swapped_out_comes_back_with_what_it_had() -> None:
    # 4 blocks out and in at 100 µs each way; request 2 comes back with its 4 tokens.
    swapped = by_hand([2, 2], [5, 5], 8, 8, swap_us=100.0)
    assert re.match("Request 2 comes back at .* with 4 tokens swapped in", story.preempted(swapped, 0)[2].words)
    assert "the KV of 4 tokens was swapped out" in story.preemptions(swapped)


def test_the_cost_of_preemptions_is_told_or_why_there_are_none() -> None:
    assert story.preemptions(short()).startswith("1 preemption of 1 request; the KV of 4 tokens was thrown away.")
    assert "never runs out" in story.preemptions(four())
    assert "preempts nobody" in story.preemptions(s.result({"other": s.ORACLE}))
    # OPT-13B: 819,200 bytes a token, 25 GB/s, out and in: 65.536 µs a token slot.
    result = s.result({"memory": 2_048})
    ms = sum(event.blocks for event in result.runs["other"].events if event.kind == "preempted") * 16 * 65.536e-3
    assert f"to swap their blocks out and in, {ms:.0f} ms, in" in story.preemptions(result)


@pytest.mark.parametrize("values", [v for v in EVERY if v.get("memory") in (2_048, 4_096) or v.get("source")], ids=str)
def test_every_preemption_has_its_moments(values: dict[str, Any]) -> None:
    result = s.result(values)
    found = s.preemptions(result)
    assert found
    for k in range(len(found)):
        scenes = story.preempted(result, k)
        assert [scene.name for scene in scenes] == ["Before", "The step", "After"]
        assert scenes[0].at_us < scenes[1].at_us <= scenes[2].at_us and scenes[1].at_us == found[k].at_us


# ---- watch-for lines, numbers, sweep


def test_a_preset_s_line_is_found_by_its_values() -> None:
    for preset in s.PRESETS:
        assert story.watch(preset.values) == preset.watch
    assert story.watch({"block": 32}) not in [p.watch for p in s.PRESETS]


def test_what_to_watch_does_not_answer_the_prediction() -> None:
    numbers = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "21")
    for preset in s.PRESETS:
        assert not any(f"{n} fit" in preset.watch for n in numbers), preset.key


def test_the_numbers_side_by_side() -> None:
    table = story.numbers(four()).set_index("")
    assert table.columns.tolist() == ["Orca (Max)", "Paged, block 2"]
    assert table.loc["Last reply ends after"].tolist() == ["6.0 ms", "3.0 ms"]
    assert table.loc["Output tokens per second"].tolist() == ["2,000", "4,000"]  # 12 tokens
    assert table.loc["Requests at once, most"].tolist() == ["2", "4"]
    assert table.loc["Latency per output token, mean"].tolist() == ["1.5 ms", "1.0 ms"]  # (3·2 + 6·2)/4 and 3, over 3 tokens
    lost = story.numbers(short()).set_index("")
    assert lost.loc["Preemptions"].tolist() == ["0", "1"] and lost.loc["Tokens computed twice"].tolist() == ["0", "4"]


def test_the_sweep_over_blocks_says_what_they_cost() -> None:
    said = story.sweep_words(s.sweep({}, over="block"))
    assert said.startswith("From blocks of 1 to blocks of 256 slots") and "bookkeeping" in said and "whatever the block" in said
    assert "requests/s" in story.sweep_words(s.sweep({"arrivals": s.POISSON}, over="rate"))
    assert "where you are" in said
    assert "where you are" not in story.sweep_words(s.sweep({"other": s.POW2}, over="block"))  # it has no blocks


def test_the_words_are_short() -> None:
    assert len(story.LEAD) <= 260
    for word in ("KV", "Orca (Max)", "Paged", "blocks"):
        assert word in story.LEAD
    assert all(len(sentence.split()) < 20 for _, sentence in story.WORDS)
    terms = " ".join(term for term, _ in story.WORDS)
    for word in ("Block table", "Internal fragmentation", "External fragmentation", "Preemption", "Copy on write", "Buddy"):
        assert word in terms


def test_a_knob_that_plays_no_part_says_why() -> None:
    assert set(story.idle({})) == {"rate", "off"}
    assert set(story.idle({"other": s.ORACLE, "arrivals": s.POISSON})) == {"block", "preempt"}
    assert {"memory"} <= set(story.idle({"fit": s.FITS})) and {"preempt"} <= set(story.idle({"samples": 2}))
    assert set(story.idle({"source": s.RECORDED})) == {knob.key for knob in s.KNOBS} - {"source", "beams"}


# ---- check yourself


def test_what_a_recording_gives_stands_in_place_of_its_knobs() -> None:
    assert story.given(s.result({"source": s.RECORDED})).startswith("From the recording: 24 requests, 100 blocks of 16, ")
    assert story.given(s.result({})) == ""


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


def test_the_answers_by_hand() -> None:
    # Prompts 2, 3 and outputs 3, 5: 4 and 7 tokens, 2 and 4 blocks of 2; Orca (Max) 8 slots each.
    result = by_hand([2, 3], [3, 5], 16, 8)
    right = [next(o.text for o in q.options if o.correct) for q in story.quiz(result)]
    assert "request 1 is given 8 slots and ends with 4 tokens. What are the other 4" in story.quiz(result)[0].prompt
    assert right[0] == "Internal fragmentation: held, and never filled"
    assert "Request 2 ends with 7 tokens." in story.quiz(result)[1].prompt and right[1] == "1"
    assert right[2] == "When a running request needs a block and none is free"
    lost = story.quiz(short())
    assert "Request 2 is preempted with 4 tokens in 2 blocks" in lost[2].prompt
    assert next(o.text for o in lost[2].options if o.correct) == "One step that reads 4 tokens"
    # Orca (Max) 10 ms, paged 7 ms; mean requests in memory 1 and (2·3 + 1·2 + 1·2)/7 = 10/7: 1.43, as the times.
    assert next(o.text for o in lost[3].options if o.correct) == "1.43 times"


# ---- what it models


def test_the_constants_on_the_screen_are_those_of_the_run() -> None:
    rows = {what: value for what, value, _ in story.models(s.result({}))}
    assert rows["Model"].startswith("OPT-13B") and rows["GPU"].startswith("A100-40G")
    # 2·40 layers·5,120·2 bytes = 819,200 bytes a token (PagedAttention, section 3); 15,700 of them are 12.86 GB.
    assert rows["KV memory"] == "15,700 token slots, 12.9 GB at 819 kB each"
    assert "means 161.31 and 337.99" in rows["Lengths"]
    assert rows["Their spread"] == "standard deviation over mean 1.2 of prompts and 0.87 of outputs"
    assert rows["Paged memory"] == "981 blocks of 16"  # 15,700 / 16
    assert all(source for _, _, source in story.models(s.result({"source": s.RECORDED})))


def test_what_was_assumed_is_said() -> None:
    sources = " ".join(source for _, _, source in story.models(s.result({})))
    for words in ("Table 1", "inferred", "our assumption", "buddy", "section 4.5", "31.5 GB/s"):
        assert words in sources
    left = " ".join(story.leaves_out()) + story.SHARING
    for words in ("20 to 26 %", "45 ms", "at random", "block tables", "watermark", "each sample is a request"):
        assert words in left


def test_the_claims_are_on_record() -> None:
    for name in (*story.CLAIMS, *story.FIRST_CLAIMS):
        assert any(known.startswith(name.removesuffix("*")) for known in CLAIMS), name


# ---- recordings


def test_the_recording_s_free_blocks_are_compared_step_by_step() -> None:
    top = json.loads(gzip.decompress(s.RECORDING_FILE.read_bytes()))
    steps = [step for step in top["output"]["steps"] if step["k"] is not None]
    result = s.result({"source": s.RECORDED})
    assert [step["free"] for step in steps] == result.runs["other"].steps.free.tolist()
    assert story.recorded(result).startswith(f"In all {len(steps)} steps of the recording our run has exactly as many free")
    assert story.recorded(s.result({})) == ""


def test_a_recording_that_differs_is_said_to() -> None:
    top = json.loads(gzip.decompress(s.RECORDING_FILE.read_bytes()))
    changed = next(step for step in top["output"]["steps"] if step["k"] == 6)
    changed["free"] = 77
    found = recording.read(json.dumps(top).encode(), "changed")
    said = story.recorded(s.result({"source": s.OWN}, found))
    assert "the free blocks differ in 1 of the first" in said and "first in step 7" in said


def test_a_recording_is_told_by_what_is_in_it() -> None:
    assert story.read(s.sample()) == f"24 requests, 100 blocks of 16, {len(s.sample().free)} recorded steps"


# ---- take away


def redone(lines: str, folder: Path) -> list[Any]:
    """Summaries and shares that the printed Python yields in a process of its own."""
    code = lines + ("import json\nprint('@' + json.dumps([[key, summary(run), occupancy(run).shares(*saturated(run))]"
                    " for key, run in runs.items()]))\n")
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
                          timeout=60, check=True)
    found: list[Any] = json.loads(done.stdout.rpartition("@")[2])
    return found


@pytest.mark.parametrize("values", [
    {}, {"memory": 2_048}, {"memory": 2_048, "preempt": s.SWAP, "block": 8}, {"other": s.POW2, "off": 0.7, "seed": 5},
    {"arrivals": s.POISSON, "rate": 6.0, "mean": "Alpaca", "requests": 60}, {"samples": 3, "prefix": 256, "spread": 0.6},
    {"prefix": 1024, "longest": 1024}, {"samples": 4}, {"fit": s.FITS, "gpu": "H100", "model": "Llama-3-8B"},
    {"source": s.RECORDED},
], ids=str)
def test_the_python_lines_redo_both_runs(values: dict[str, Any]) -> None:
    result = s.result(values)
    for key, summary, shares in redone(story.python_lines(values), ROOT):
        assert summary == pytest.approx(result.summaries[key], nan_ok=True)
        there, full = result.occupancies[key], result.saturated[key]
        if full[0] == full[0]:
            assert shares == pytest.approx(there.shares(*full), abs=1e-9)


def test_the_csv_has_a_line_for_each_request_and_memory() -> None:
    rows = list(csv.DictReader(io.StringIO(story.requests_csv(four()))))
    assert [(r["policy"], r["request"]) for r in rows] == [(p, str(n)) for p in ("reserved", "other") for n in (1, 2, 3, 4)]
    assert [float(r["finished_ms"]) for r in rows] == pytest.approx([3, 3, 6, 6, 3, 3, 3, 3])
    assert [r["slots_held"] for r in rows] == ["8"] * 4 + ["4"] * 4 and {r["kv_tokens"] for r in rows} == {"4"}
    assert [r["address"] for r in rows[:4]] == ["0", "8", "0", "8"]


def test_the_trace_for_perfetto_has_lives_and_a_memory_that_adds_up() -> None:
    result = short()
    events = json.loads(story.chrome_trace(result))["traceEvents"]
    mine = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == 2]
    assert mine == [("In memory", 1, 0, 5000), ("In memory", 2, 0, 3000), ("In memory", 2, 5000, 2000),
                    ("Preempted", 2, 3000, 2000)]
    for event in events:
        if event["ph"] == "C":
            assert set(event["args"]) == set(PARTS) and sum(event["args"].values()) == pytest.approx(8)


def test_the_scrubber_gets_every_state_in_ms() -> None:
    told = json.loads(json.dumps(story.cursor_data(short()), allow_nan=False))
    assert told["other"] == {"name": "Paged, block 2", "end": 7, "spans": [
        ["Queued", [0, 1], [0, 0], [0, 0]], ["In memory", [0, 1, 1], [0, 0, 5], [5, 3, 7]], ["Preempted", [1], [3], [5]],
        ["Ended", [0, 1], [5, 7], [None, None]]]}
    assert told["reserved"]["spans"][0] == ["Queued", [0, 1], [0, 0], [0, 5]]


def test_who_is_refused_has_no_place_in_memory() -> None:
    # A prompt of 9 tokens where 8 are the most.
    trace = Trace([0.0, 0.0], [9, 2], [3, 3])
    scene = by_hand([2], [3], 16, 8).scenario
    result = s.serve(s.Scenario(trace, scene.service, scene.policies, scene.values))
    assert "was refused" in story.life(result, "reserved", 0)
    assert [spans[1] for spans in story.cursor_data(result)["reserved"]["spans"]] == [[1], [1], [], [1]]
    assert story.numbers(result).set_index("").loc["Refused: can never fit"].tolist() == ["1", "1"]


# --- found by a breaker -------------------------------------------------------------------------------------------------


def test_two_memories_that_let_in_the_same_ones_still_make_requests_wait() -> None:
    # Blocks of 256 under a maximum of 256: one block is one piece.
    same = s.result({"memory": 5_500, "block": 256, "longest": 256, "spread": 0.0})
    assert "although requests wait for memory" in story.headline(same)
    assert "because nobody waits" in story.headline(s.result({"requests": 3, "other": s.ORACLE}))


def test_a_stall_is_told() -> None:
    # 32 blocks of 16 under a prompt of 512 and two output tokens: the second needs a block more than there are.
    stalls = s.result({"source": s.OWN}, recording.read(STALL, "stall"))
    assert story.headline(stalls).startswith("vLLM comes to a stop: ")


def test_a_model_that_does_not_fit_says_what_to_change() -> None:
    with pytest.raises(ValueError, match=r"^Yi-34B does not fit on one A100-40G\. Choose a smaller model or a larger GPU\."):
        s.build({"model": "Yi-34B"})
