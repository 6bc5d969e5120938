"""The chunked-prefill page as a visitor meets it, without a browser: prediction, order, knobs, the search, bad links."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from explainers.chunked_prefill import scenario, story
from explainers.kit import worker
from explainers.kit.grammar import duration
from tests.explainers import pages
from tests.explainers.pages import words

opened = partial(pages.opened, "chunked_prefill")


CLASSIC = scenario.result({})
FREEZE = duration(CLASSIC.summaries["alone"]["gap_max_ms"] / 1000)


def test_the_freeze_is_asked_before_it_is_shown() -> None:
    page = opened()
    assert not page.exception
    assert FREEZE not in words(page) and "The sweep over the whole range" in words(page)
    page.button(key="chunked_prefill:_skip").click().run()
    assert f"It is **{FREEZE}**" in words(page) and "The sweep over the whole range" not in words(page)


def test_the_parts_stand_in_the_order_of_the_argument() -> None:
    page = opened(v="1", guess="skip")
    asked = ["In numbers", "Why: the roofline of a step", "How much load each bears", "Over the whole range", "Check yourself",
             "Against the record", "What this models, and what it leaves out", "Take it away"]
    heads = [part.value for part in page.header]
    assert [head for head in heads if head in asked] == asked
    assert len(page.get("plotly_chart")) == 4  # stage, roofline, sweep, band; the capacity is asked for


def test_what_is_rarely_said_stands_under_the_roofline_of_the_chosen_budget() -> None:
    page = opened(v="1", guess="skip", budget="128")
    assert story.roofline_words(scenario.roofline({"budget": 128})) in words(page)
    assert all(line in words(page) for line in story.RARELY_SAID)


def test_time_between_prompts_cannot_be_moved_while_there_is_one() -> None:
    assert opened().select_slider(key="chunked_prefill:spacing").disabled
    assert not opened(v="1", long="2").select_slider(key="chunked_prefill:spacing").disabled


def test_a_model_too_large_is_said_and_a_knob_mends_it() -> None:
    page = opened(v="1", guess="skip", model="Llama-2-70B")
    assert "does not fit on one" in words(page) and not page.get("plotly_chart")
    page.select_slider(key="chunked_prefill:tp").set_value(4).run()
    page.run()
    assert not page.exception and len(page.get("plotly_chart")) == 4


@pytest.mark.parametrize("preset", scenario.PRESETS, ids=lambda preset: preset.key)
def test_every_preset_is_served(preset: scenario.Preset) -> None:
    page = opened(v="1", guess="skip", **{key: str(value) for key, value in preset.values.items()})
    assert not page.exception
    assert story.headline(scenario.result(preset.values)) in words(page) and preset.watch in words(page)


@pytest.mark.parametrize("query", [
    {"budget": "500", "tp": "<b>x</b>"}, {"streams": "1e999", "prompt": "-4"}, {"long": "77", "hit": "nan"}], ids=str)
def test_a_bad_link_is_adjusted_and_said(query: dict[str, str]) -> None:
    page = opened(v="1", guess="skip", **query)
    assert not page.exception and "adjusted" in words(page)


def test_the_search_is_asked_for_once_per_policy_and_withdrawn_when_the_budget_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[Any, Future[Any]] = {}
    withdrawn: list[Any] = []
    monkeypatch.setattr(worker, "ask", lambda query, *_, reports: asked.setdefault(query, Future()))
    monkeypatch.setattr(worker, "progress", lambda query: (4, 80_000.0) if query[2] == "alone" else None)
    monkeypatch.setattr(worker, "give_up", withdrawn.append)
    page = opened(v="1", guess="skip")
    assert not asked
    page.button(key="chunked_prefill:_find").click().run()
    assert [query[2] for query in asked] == ["alone", "whole", "chunks"] and not withdrawn
    page.select_slider(key="chunked_prefill:budget").set_value(1024).run()
    page.run()
    assert [(query[2], dict(query[1])["budget"]) for query in withdrawn] == [("chunks", 512)]
    assert [query[2] for query in asked] == ["alone", "whole", "chunks", "chunks"]
    page.button(key="chunked_prefill:_cancel").click().run()
    assert sorted(query[2] for query in withdrawn[1:]) == ["alone", "chunks", "whole"]
    assert "chunked_prefill:_cancel" not in [button.key for button in page.button]
