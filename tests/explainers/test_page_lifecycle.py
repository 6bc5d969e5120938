"""The page of one request's life as a visitor meets it, without a browser: sum, prediction, cancellation, bad links."""

from __future__ import annotations

import re
from functools import partial

import pytest

from explainers.lifecycle import scenario, story
from tests.explainers import pages
from tests.explainers.pages import words

opened = partial(pages.opened, "lifecycle")


def test_the_first_view_asks_before_it_answers() -> None:
    page = opened()
    assert not page.exception
    assert "1,075 ms" not in words(page) and "The quiz" in words(page)
    page.button(key="lifecycle:_skip").click().run()
    assert "It is **1,075 ms**: TTFT 80 ms + 199 gaps × 5 ms." in words(page)
    assert "The quiz" not in words(page)


def test_the_parts_stand_in_the_order_of_the_argument() -> None:
    page = opened(v="1", guess="skip")
    heads = [part.value for part in page.header]
    asked = ["The same request, alone and in company", "When it leaves early", "Three things that are easily mixed up",
             "Check yourself", "Take it away"]
    assert [head for head in heads if head in asked] == [head for head in asked if head in heads] and set(asked) <= set(heads)
    assert len(page.get("plotly_chart")) == 9


def test_it_is_said_where_the_learner_s_own_numbers_end_and_the_simulation_begins() -> None:
    assert story.WORKED_NOTE in words(opened())


def test_the_flag_stands_where_the_books_are_broken_and_only_there() -> None:
    flags = [part.value for part in opened(v="1", guess="skip").warning]
    assert flags == [story.flag(scenario.result({}))]
    assert [part.value for part in opened(v="1", guess="skip", moment="5").warning] == []


def test_the_moment_is_a_slider_and_what_was_held_follows() -> None:
    page = opened(v="1", guess="skip")
    page.slider(key="lifecycle:moment").set_value(70).run()
    page.run()  # the stage was redrawn alone; in a browser the rest follows when that is drawn
    assert story.leaving_words(scenario.result({"moment": 70})) in words(page)


@pytest.mark.parametrize("preset", scenario.PRESETS, ids=lambda preset: preset.key)
def test_every_preset_is_served(preset) -> None:
    page = opened(v="1", guess="skip", **{key: str(value) for key, value in preset.values.items()})
    assert not page.exception
    assert story.headline(scenario.result(preset.values)) in words(page) and preset.watch in words(page)


@pytest.mark.parametrize("query", [
    {"moment": "-5", "gap": "1e999", "tokens": "<b>x</b>"}, {"slots": "0", "memory": "1", "prompt": "9999999"},
    {"v": "99", "link": "a string", "seed": "-1"}], ids=str)
def test_a_bad_link_is_adjusted_and_said(query) -> None:
    page = opened(**({"v": "1", "guess": "skip"} | query))
    assert not page.exception
    assert re.search("adjusted", words(page))
