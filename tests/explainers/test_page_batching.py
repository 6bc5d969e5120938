"""The batching page as a visitor meets it, without a browser: links, knobs, prediction, questions, own files, hostile text."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from explainers.batching import scenario, story
from explainers.kit import link
from explainers.kit.knobs import defaults
from sim.readers import azure
from tests.conftest import ROOT
from tests.explainers import pages
from tests.explainers.pages import words

opened = partial(pages.opened, "batching")
first_screen = partial(pages.first_screen, "batching")


def moved(page: AppTest, knob: str, value: object) -> AppTest:
    """The page after a knob has moved: the stage comes alone, the rest when the browser asks; here a rerun asks for it."""
    page.slider(key=f"batching:{knob}").set_value(value).run()
    assert not page.exception
    return page.run()


def headings(page: AppTest) -> list[str]:
    return [part.value for part in [*page.title, *page.header]]


def test_the_first_view_asks_before_it_answers() -> None:
    page = opened()
    assert not page.exception
    assert page.number_input(key="batching:_guess").value is None
    assert "ledger" in "".join(part.value for part in page.info)
    assert "Idle slot-time" not in str([table.value for table in page.table])
    before = words(page)
    page.button(key="batching:_skip").click().run()
    (answer,) = re.findall(r"It is \*\*(\d+ %)\*\*", words(page))
    assert answer not in before and "Idle slot-time" in str([table.value for table in page.table])


def test_what_the_link_set_is_told_again_in_every_run() -> None:
    """A browser may draw the second of two runs only: Streamlit says in the first alone what session state has set."""
    page = opened(v="1", guess="skip", slots="7", spread="1.3", seed="77", rate="8", model="OPT-13B")
    assert page.number_input(key="batching:seed").proto.default == 77
    assert page.slider(key="batching:slots").proto.default == [7]
    assert page.slider(key="batching:spread").proto.default == [1.3]
    model, rate = page.selectbox(key="batching:model"), page.select_slider(key="batching:rate")
    assert model.options[model.proto.default] == "OPT-13B" and rate.options[int(rate.proto.default[0])] == "8"
    assert not page.number_input(key="batching:seed").proto.set_value  # else the fact would not be this test's


def test_the_first_screen_comes_first_and_alone() -> None:
    page = first_screen(v="1", guess="skip")
    assert not page.exception
    assert len(page.get("plotly_chart")) == 1 and page.slider(key="batching:slots") and page.pills(key="batching:_preset")
    assert len(page.run().get("plotly_chart")) == 5


def test_the_terms_are_explained_before_the_figure() -> None:
    page = first_screen()
    for word, meaning in story.WORDS:
        assert f"**{word}**: {meaning}" in words(page)


def test_the_parts_of_a_lesson_stand_in_their_order() -> None:
    found = headings(opened(v="1", guess="skip"))
    assert found[1:] == [
        "One request", "Where the slot-time went", "Set-up", "Who gains, who loses", "Over the whole range", "Check yourself",
        "Against the record", "What this models, and what it leaves out", "Take it away",
    ]  # fmt: skip


def test_a_committed_prediction_is_answered_with_its_own_number() -> None:
    page = opened()
    page.number_input(key="batching:_guess").set_value(37)
    page.button(key="batching:_commit").click().run()
    assert "you said 37 %" in words(page)
    assert not page.info


def test_an_empty_prediction_is_no_prediction() -> None:
    page = opened()
    page.button(key="batching:_commit").click().run()
    assert page.number_input(key="batching:_guess").value is None
    assert page.info
    assert "Type a number from 0 to 100 first, or skip" in words(page)
    page.number_input(key="batching:_guess").set_value(37)
    page.button(key="batching:_commit").click().run()
    assert "Type a number" not in words(page)


def test_a_prediction_is_of_the_run_it_was_made_for() -> None:
    page = opened(v="1", guess="37")
    assert "you said 37 %" in words(page)
    moved(page, "slots", 5)
    assert "you said" not in words(page) and "What would you predict for this one?" in words(page)
    assert not page.info  # nothing is held back meanwhile
    assert page.session_state["batching:_state"].guess == link.SKIP  # a link says no number for a run it was not made for
    page.button(key="batching:_again").click().run()
    page.number_input(key="batching:_guess").set_value(41)
    page.button(key="batching:_commit").click().run()
    assert "you said 41 %" in words(page)


def test_a_preset_asks_anew() -> None:
    page = opened(v="1", guess="37")
    page.pills(key="batching:_preset").set_value("trickle").run()
    assert "you said" not in words(page) and "What would you predict for this one?" in words(page)


def test_a_link_restores_every_value_the_selection_and_the_prediction() -> None:
    values = {
        "slots": 7, "spread": 1.3, "requests": 31, "giant": 3, "seed": 77, "arrivals": "bursts", "rate": 6.0, "timeout": 250,
        "model": "OPT-13B", "gpu": "H100", "source": "generated", "start": 12, "take": 300,
    }  # fmt: skip
    page = opened(**link.encode(scenario.KNOBS, link.State(values, selected=4, guess=61.0)))
    assert not page.warning
    for knob in scenario.KNOBS:
        assert page.session_state[f"batching:{knob.key}"] == values[knob.key], knob.key
    assert page.selectbox(key="batching:_request").value == 4
    assert "Request 5" in words(page) and "you said 61 %" in words(page)


def test_a_value_that_does_not_fit_is_adjusted_and_said() -> None:
    page = opened(v="1", slots="99", gpu="abacus", rate="nan", colour="red")
    said = page.warning[0].value.replace("\\", "")
    assert page.slider(key="batching:slots").value == 32 and "“99” is above 32" in said
    assert page.selectbox(key="batching:gpu").value == "A100-80G" and "abacus" in said
    assert "“nan”" in said and "“colour” is no setting" in said
    page.button(key="batching:_close").click().run()
    assert not page.warning


@pytest.mark.parametrize("hostile", ["<img src=x onerror=alert(1)>", "**bold** [a](http://x.example)", "$x$ :red[y]", "`code`"])
def test_a_hostile_link_is_shown_letter_by_letter(hostile: str) -> None:
    page = opened(v="1", gpu=hostile, **{hostile: "1"})
    shown = page.warning[0].value
    for mark in "<>*[]()$`":
        assert all(shown[i - 1] == "\\" for i, c in enumerate(shown) if c == mark)


def test_a_request_that_does_not_exist_is_not_selected() -> None:
    page = opened(v="1", request="40", requests="14")
    assert not page.exception
    assert page.selectbox(key="batching:_request").value is None


def test_hidden_controls_stay_away_and_keep_their_value() -> None:
    page = opened(v="1", hide="seed,slots,presets,prediction,quiz,upload", slots="6", seed="9")
    keys = {widget.key for kind in (page.slider, page.number_input, page.selectbox) for widget in kind}
    assert not keys & {"batching:seed", "batching:slots"}
    assert page.session_state["batching:slots"] == 6
    assert "Check yourself" not in headings(page)
    assert not page.info  # a page without a prediction has nothing to hold back
    page.slider(key="batching:spread").set_value(0.0).run()
    assert page.session_state["batching:slots"] == 6 and page.session_state["batching:seed"] == 9


def test_a_preset_sets_every_knob_and_says_what_to_watch() -> None:
    page = opened(v="1", seed="5", slots="9")
    for preset in scenario.PRESETS:
        if preset.key == "hour":  # has a test of its own
            continue
        page.pills(key="batching:_preset").set_value(preset.key).run()
        assert not page.exception
        expected = defaults(scenario.KNOBS) | dict(preset.values)
        assert {k.key: page.session_state[f"batching:{k.key}"] for k in scenario.KNOBS} == expected
        assert preset.watch in words(page)


def test_a_knob_moved_off_a_preset_lets_it_go() -> None:
    page = opened()
    assert page.pills(key="batching:_preset").value == "mixed"
    moved(page, "slots", 5)
    assert page.pills(key="batching:_preset").value is None


def test_a_knob_redraws_the_stage_and_the_sweep_and_nothing_else() -> None:
    page = opened(v="1", guess="skip")
    page.slider(key="batching:spread").set_value(1.0).run()
    assert not page.exception
    assert len(page.get("plotly_chart")) == 3 and not page.radio and not page.selectbox
    assert len(page.run().get("plotly_chart")) == 5


def test_equal_lengths_at_once_gain_nothing_and_the_page_says_so() -> None:
    assert "No difference" in words(opened(v="1", spread="0", guess="skip"))


def test_the_seed_is_rolled_to_another() -> None:
    page = opened()
    before = page.number_input(key="batching:seed").value
    page.button(key="batching:_reroll").click().run()
    page.run()
    assert page.number_input(key="batching:seed").value != before


def test_each_question_gives_feedback_and_one_option_is_right() -> None:
    page = opened(v="1", guess="skip")
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
    page = opened(v="1", slots="9", spread="0.2", request="3", t="100", guess="20", hide="gpu")
    page.button(key="batching:_reset").click().run()
    state = page.session_state["batching:_state"]
    assert state == link.State(defaults(scenario.KNOBS), view={"over": "slots"}, hidden=frozenset({"gpu"}))


def test_two_sessions_do_not_share_their_state() -> None:
    one, other = opened(), opened()
    one.slider(key="batching:slots").set_value(9).run()
    assert other.run().slider(key="batching:slots").value == 4


HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
GOOD = (HEADER + "".join(f"2023-11-16 18:15:{46 + k}.6805900,{300 + k},{20 + 10 * k}\r\n" for k in range(9))).encode()
BAD = {
    "a wrong header": (b"time,in,out\n1,2,3\n", "line 1"),
    "a word for a number": ((HEADER + "2023-11-16 18:15:46.68,12,many\r\n").encode(), "line 2, column GeneratedTokens"),
    "a negative count": ((HEADER + "2023-11-16 18:15:46.68,-12,4\r\n").encode(), "line 2, column ContextTokens"),
    "nothing": (b"", ""),
    "no text": (bytes(range(256)) * 40, ""),
}


def uploaded(page: AppTest, content: bytes, name: str = "mine.csv") -> AppTest:
    (uploader,) = page.file_uploader
    return uploader.set_value((name, content, "text/csv")).run()


def test_an_own_file_is_served_at_once_and_stays_in_its_session() -> None:
    page = uploaded(opened(), GOOD, "*mine*.csv")
    assert not page.exception and not page.error
    assert page.session_state["batching:source"] == scenario.OWN
    assert "9 requests" in words(page) and r"\*mine\*\.csv" in words(page)
    assert "stays in this session" in words(page)
    assert "batching:_upload_trace" not in opened().session_state


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_is_refused_with_its_place_and_nothing_is_lost(what: str) -> None:
    content, place = BAD[what]
    page = uploaded(uploaded(opened(), GOOD), content, "bad<b>.csv")
    said = page.error[0].value
    assert place in said.replace("\\", "") and "Nothing of it was loaded" in said and "Still in use" in said
    assert "<b>" not in said.replace("\\<", "")
    assert page.session_state["batching:_upload_trace"].name == "mine.csv"
    assert page.session_state["batching:source"] == scenario.OWN


def test_an_own_file_stays_until_it_is_forgotten() -> None:
    page = uploaded(opened(), GOOD)
    page.file_uploader[0].set_value(None).run()  # as the browser does while one file replaces another
    assert "batching:_upload_trace" in page.session_state
    page.button(key="batching:_upload_forget").click().run()
    assert not page.exception and "batching:_upload_trace" not in page.session_state
    assert page.session_state["batching:source"] == scenario.GENERATED


def test_an_own_file_that_is_not_there_is_asked_for() -> None:
    page = opened(v="1", source=scenario.OWN)
    assert not page.exception
    assert "No trace yet" in page.warning[0].value
    page = uploaded(page, GOOD)
    assert not page.warning and "9 requests" in words(page)
    page.pills(key="batching:_preset").set_value("mixed").run()
    assert page.session_state["batching:source"] == scenario.GENERATED


def test_real_requests_are_served_without_a_file_and_their_source_is_named() -> None:
    page = opened(v="1", guess="skip")
    page.pills(key="batching:_preset").set_value("hour").run()
    assert not page.exception and not page.warning
    assert "Azure" in words(page) and "CC-BY 4.0" in words(page)
    assert len(page.get("plotly_chart")) == 4  # a recorded trace has no seed to spread over


def test_the_sample_is_the_first_ten_minutes_of_azure_s_file(shared) -> None:
    whole, sample = shared("traces/AzureLLMInferenceTrace_conv.csv").read_bytes(), scenario.SAMPLE_FILE.read_bytes()
    assert whole.startswith(sample + b"\r\n") and len(sample) < 200_000
    after = azure.read(HEADER.encode() + sample.split(b"\r\n")[1] + b"\r\n" + whole[len(sample) + 2:].split(b"\r\n")[0])
    assert azure.read(sample).arrival[-1] < 600 <= after.arrival[1]


def test_the_window_is_asked_for_where_there_is_a_recorded_trace() -> None:
    page = opened()
    keys = lambda: {widget.key for widget in page.number_input}  # noqa: E731
    assert not keys() & {"batching:start", "batching:take"}
    page.selectbox(key="batching:source").set_value(scenario.SAMPLE).run()
    page.run()
    assert keys() >= {"batching:start", "batching:take"}
    page.selectbox(key="batching:source").set_value(scenario.GENERATED).run()
    page.run()
    assert not keys() & {"batching:start", "batching:take"}


def test_a_knob_that_plays_no_part_cannot_be_moved_and_says_why() -> None:
    page = opened()
    rate = page.select_slider(key="batching:rate")
    assert rate.disabled and "all requests come at once" in rate.help
    page.selectbox(key="batching:arrivals").set_value(scenario.POISSON).run()
    page.run()
    assert not page.select_slider(key="batching:rate").disabled
    page.selectbox(key="batching:source").set_value(scenario.SAMPLE).run()
    page.run()
    for kind, key in ((page.select_slider, "rate"), (page.slider, "spread"), (page.number_input, "seed")):
        knob = kind(key=f"batching:{key}")
        assert knob.disabled and "recorded trace" in knob.help


def test_a_window_beyond_the_file_is_said() -> None:
    page = uploaded(opened(), GOOD)
    page.number_input(key="batching:start").set_value(5000).run()
    assert not page.exception and "last request of the file comes at 8 s" in page.warning[0].value


def test_the_lessons_on_the_path_have_their_four_files() -> None:
    from explainers import PATH

    for key in (entry.key for entry in PATH):
        folder = Path(ROOT, "explainers", key)
        assert {"scenario.py", "figures.py", "story.py", "page.py"} <= {file.name for file in folder.iterdir()}
