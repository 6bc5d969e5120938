"""The memory page as a visitor meets it, without a browser: links, knobs, prediction, preemptions, recordings, bad files."""

from __future__ import annotations

import gzip
import json
import re
from functools import partial
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from explainers.kit import link
from explainers.kit.knobs import defaults
from explainers.memory import scenario, story
from tests.conftest import ROOT
from tests.explainers import pages
from tests.explainers.pages import words

opened = partial(pages.opened, "memory")
first_screen = partial(pages.first_screen, "memory")


def headings(page: AppTest) -> list[str]:
    return [part.value for part in [*page.title, *page.header]]


def tables(page: AppTest) -> str:
    return str([table.value for table in page.table])


def test_the_first_view_asks_before_it_answers() -> None:
    page = opened()
    assert not page.exception
    assert page.number_input(key="memory:_guess").value is None
    assert "sweep" in "".join(part.value for part in page.info)
    assert "Requests at once" not in tables(page)
    before = words(page)
    page.button(key="memory:_skip").click().run()
    (answer,) = re.findall(r"It is \*\*(\d+)\*\*: 15,700", words(page))
    assert answer == "7" and "It is **7**" not in before and "holds 7 of 40" not in before
    assert "Requests at once" in tables(page) and "holds 7 of 40" in words(page)


def test_the_first_screen_comes_first_and_alone() -> None:
    page = first_screen(v="1", guess="skip")
    assert not page.exception
    assert len(page.get("plotly_chart")) == 1
    assert page.selectbox(key="memory:other") and page.select_slider(key="memory:memory") and page.pills(key="memory:_preset")
    assert len(page.run().get("plotly_chart")) == 5  # stage, block table, sweep, band, sharing


def test_the_terms_are_explained_before_the_figure() -> None:
    page = first_screen()
    for word, meaning in story.WORDS:
        assert f"**{word}**: {meaning}" in words(page)


def test_the_parts_of_a_lesson_stand_in_their_order() -> None:
    assert headings(opened(v="1", guess="skip", source="recording"))[1:] == [
        "One request", "Its block table at the time cursor", "Where the memory goes", "When the memory runs out", "Set-up",
        "Side by side", "Beside what vLLM decided", "Over the whole range", "What samples and beams share", "Check yourself",
        "Against the record", "What this models, and what it leaves out", "Take it away",
    ]  # fmt: skip


def test_a_committed_prediction_is_answered_with_its_own_number() -> None:
    page = opened()
    page.number_input(key="memory:_guess").set_value(12)
    page.button(key="memory:_commit").click().run()
    assert "Fewer than you said: it is **7**, you said 12" in words(page)
    assert not page.info


def test_a_prediction_is_of_the_run_it_was_made_for() -> None:
    page = opened(v="1", guess="12")
    page.select_slider(key="memory:memory").set_value(31_400).run()
    page.run()
    assert "you said" not in words(page) and "What would you predict for this one?" in words(page)


def test_a_link_restores_every_value_the_selection_and_the_prediction() -> None:
    values = {
        "other": "Orca (Pow2)", "memory": 31_400, "block": 64, "longest": 1024, "off": 0.4, "preempt": "swap", "requests": 77,
        "mean": "Alpaca", "spread": 0.5, "arrivals": "Poisson", "rate": 4.0, "seed": 9, "prefix": 128, "samples": 3, "beams": 6,
        "fit": "what fits", "model": "Llama-3-8B", "gpu": "H100", "source": "generated",
    }  # fmt: skip
    assert values.keys() == {knob.key for knob in scenario.KNOBS}
    page = opened(**link.encode(scenario.KNOBS, link.State(values, selected=4, cursor=500.0, guess=9.0)))
    assert not page.exception and not page.warning
    for knob in scenario.KNOBS:
        assert page.session_state[f"memory:{knob.key}"] == values[knob.key], knob.key
    assert page.selectbox(key="memory:_request").value == 4
    assert "Request 5" in words(page) and "9" in words(page)


def test_a_value_that_does_not_fit_is_adjusted_and_said() -> None:
    page = opened(v="1", requests="9999", gpu="abacus", spread="nan", block="3", colour="red")
    said = page.warning[0].value.replace("\\", "")
    for told in ("“9999” is above 400", "abacus", "“nan”", "“3” is not offered", "“colour” is no setting"):
        assert told in said
    assert page.session_state["memory:block"] in (2, 4)


def test_hidden_controls_stay_away_and_keep_their_value() -> None:
    page = opened(v="1", hide="memory,seed,presets,prediction,quiz,upload", memory="31400", seed="9")
    keys = {widget.key for kind in (page.select_slider, page.number_input, page.selectbox) for widget in kind}
    assert not keys & {"memory:memory", "memory:seed"} and "memory:other" in keys
    assert page.session_state["memory:memory"] == 31_400 and "Check yourself" not in headings(page) and not page.info


def test_a_preset_sets_every_knob_and_says_what_to_watch() -> None:
    page = opened(v="1", seed="5", block="64")
    for preset in scenario.PRESETS:
        page.pills(key="memory:_preset").set_value(preset.key).run()
        assert not page.exception
        expected = defaults(scenario.KNOBS) | dict(preset.values)
        assert {k.key: page.session_state[f"memory:{k.key}"] for k in scenario.KNOBS} == expected
        assert preset.watch in words(page)


def test_a_knob_redraws_the_stage_and_the_sweep_and_nothing_else() -> None:
    page = opened(v="1", guess="skip")
    page.select_slider(key="memory:block").set_value(64).run()
    assert not page.exception
    assert len(page.get("plotly_chart")) == 3 and not page.radio
    assert len(page.run().get("plotly_chart")) == 5


def test_a_knob_that_plays_no_part_cannot_be_moved_or_is_not_there() -> None:
    page = opened()
    rate = page.select_slider(key="memory:rate")
    assert rate.disabled and "all requests come at once" in rate.help
    page.selectbox(key="memory:source").set_value(scenario.RECORDED).run()
    page.run()
    # A recording has its own requests and memory: the knobs that would say otherwise give way to them.
    for kind, key in ((page.select_slider, "memory"), (page.selectbox, "other"), (page.number_input, "seed")):
        with pytest.raises(KeyError):
            kind(key=f"memory:{key}")
    assert "recording" in words(page)
    assert not page.slider(key="memory:beams").disabled


def test_a_maximum_length_for_which_there_is_no_piece_is_said_with_the_way_out() -> None:
    page = opened(v="1", memory="2048", longest="8192")
    assert not page.exception
    assert "has no piece that large" in page.warning[0].value.replace("\\", "")
    page.select_slider(key="memory:memory").set_value(15_700).run()
    assert not page.warning and page.get("plotly_chart")


def test_one_preemption_is_watched_step_by_step() -> None:
    page = opened(v="1", guess="skip", memory="2048")
    first, *_ = found = scenario.preemptions(scenario.result({"memory": 2048}))
    box = page.selectbox(key="memory:_which")
    assert len(box.options) == len(found) and box.options[0].startswith(f"1: request {first.request + 1} at")
    seen = []
    for moment in ("Before", "The step", "After"):
        page.session_state["memory:_moment"] = moment
        page.run()
        (told,) = [part.value for part in page.markdown if part.value.startswith(f"**{moment}.**")]
        assert f"equest {first.request + 1} " in told
        seen.append(told)
    assert len(set(seen)) == 3
    page.session_state["memory:_moment"] = "The step"
    page.run()
    page.button(key="memory:_show").click().run()
    assert page.session_state["memory:_state"].cursor == pytest.approx(first.at_us / 1000)


def test_where_nobody_is_preempted_the_page_says_where_somebody_is() -> None:
    assert "Memory runs out" in words(opened(v="1", guess="skip"))


def test_samples_and_beams_are_shown_in_turn() -> None:
    page = opened(v="1", guess="skip", beams="6")
    assert "at random" in words(page)
    page.session_state["memory:_kind"] = "samples"
    assert not page.run().exception


def test_each_question_gives_feedback_and_one_option_is_right() -> None:
    page = opened(v="1", guess="skip", memory="2048")
    assert len(page.radio) == 5  # the last one recalls an earlier lesson
    for question in range(5):
        verdicts = []
        for option in range(len(page.radio[question].options)):
            page.radio[question].set_value(option).run()
            verdicts.append(page.success[-1].value if page.success else page.error[-1].value)
        page.radio[question].set_value(None).run()
        assert sum(verdict.startswith("Right") for verdict in verdicts) == 1
        assert all(verdict.startswith(("Right. ", "No. You assumed that ")) for verdict in verdicts)


def test_reset_returns_to_the_default_and_keeps_what_a_teacher_hid() -> None:
    page = opened(v="1", memory="2048", spread="0.2", request="3", t="100", guess="20", hide="gpu")
    page.button(key="memory:_reset").click().run()
    state = link.State(defaults(scenario.KNOBS), view={"over": "block"}, hidden=frozenset({"gpu"}))
    assert page.session_state["memory:_state"] == state


# --- recordings -------------------------------------------------------------------------------------------------------


def top(**changes: Any) -> bytes:
    found = json.loads(gzip.decompress(scenario.RECORDING_FILE.read_bytes()))
    found.update(changes)
    return json.dumps(found).encode()


def broken(place: str, value: Any) -> bytes:
    """The shipped recording with one value of another kind."""
    found = json.loads(top())
    *way, last = place.split(".")
    at = found
    for key in way:
        at = at[int(key)] if key.isdigit() else at[key]
    at[last] = value
    return json.dumps(found).encode()


BAD = {
    "no JSON": (b"time,in,out\n1,2,3\n", "line 1"),
    "a word for a number": (broken("input.trace.3.prompt_len", "many"), "input.trace[3].prompt_len"),
    "no memory": (broken("input.config.num_gpu_blocks", 0), "input.config.num_gpu_blocks"),
    "cut off": (gzip.compress(top())[:-40], "cut off"),
    "more free than there is": (broken("output.steps.5.free", 10**6), "output.steps[5].free"),
    "nothing": (b"", ""),
}


def uploaded(page: AppTest, content: bytes, name: str = "mine.json") -> AppTest:
    (uploader,) = page.file_uploader
    return uploader.set_value((name, content, "application/json")).run()


def test_a_recording_of_one_s_own_shows_its_free_blocks_beside_ours() -> None:
    page = uploaded(opened(v="1", guess="skip"), top(), "*mine*.json").run()
    assert not page.exception and not page.error
    assert page.session_state["memory:source"] == scenario.OWN
    steps = len(scenario.sample().free)
    assert f"24 requests, 100 blocks of 16, {steps} recorded steps" in words(page) and r"\*mine\*\.json" in words(page)
    assert f"In all {steps} steps of the recording our run has exactly as many free blocks" in words(page)
    assert "The link does not carry your file" in words(page)


@pytest.mark.parametrize("name", ["kv_scarce_recompute", "kv_scarce_prefix_cache", "kv_scarce_no_reserve", "prefix_multi_turn",
                                  "priority_preempt", "abort_preempted", "watermark_idle_exempt", "block_size_32"])
def test_recordings_of_a_peer_are_replayed_block_by_block(name: str) -> None:
    content = (ROOT / f"tests/peers/data/vllm/{name}.json.gz").read_bytes()
    page = uploaded(opened(v="1", guess="skip"), content, f"{name}.json.gz").run()
    assert not page.exception and not page.error
    assert "our run has exactly as many free blocks" in words(page)


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_is_refused_with_its_place_and_nothing_is_lost(what: str) -> None:
    content, place = BAD[what]
    page = uploaded(uploaded(opened(), top()), content, "bad<b>.json")
    said = page.error[0].value
    assert place in said.replace("\\", "") and "Nothing of it was loaded" in said and "Still in use" in said
    assert "<b>" not in said.replace("\\<", "")
    assert page.session_state["memory:_upload_trace"].name == "mine.json"


def test_an_own_file_that_is_not_there_is_asked_for() -> None:
    page = opened(v="1", source=scenario.OWN)
    assert not page.exception
    assert "No recording yet" in page.warning[0].value
    page = uploaded(page, top())
    assert not page.warning and "24 requests" in words(page)
    page.button(key="memory:_upload_forget").click().run()
    assert not page.exception and page.session_state["memory:source"] == scenario.GENERATED
