"""What every lesson laid out by kit/standard.py does in a real browser, lesson by lesson."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from explainers.kit import link
from explainers.kit.glossary import spelled
from tests.browser.parts import (
    ANSWERED,
    at_rest,
    box,
    cursor,
    headline,
    picture,
    pressed,
    query,
    saved,
    shapes,
    sideways,
    tabbed,
    whole,
)


@dataclass(frozen=True)
class Case:
    """A lesson: a slider of its own and the value to start from, and what marks a selected request in the stage."""

    key: str
    pictures: int  # on an answered page
    knob: str
    start: str

    @property
    def scenario(self) -> Any:
        return import_module(f"explainers.{self.key}.scenario")

    @property
    def story(self) -> Any:
        return import_module(f"explainers.{self.key}.story")

    def result(self, query: dict[str, str]) -> Any:
        return self.scenario.result(link.decode(query, self.scenario.KNOBS).values)


CASES = (
    Case("preemption", 4, "memory", "2048"),
    Case("chunked_prefill", 4, "budget", "512"),
    Case("routing", 7, "cache", "16384"),
    Case("lifecycle", 9, "tokens", "101"),
)


@pytest.fixture(params=CASES, ids=lambda case: case.key)
def case(request: pytest.FixtureRequest) -> Case:
    """Each lesson in turn."""
    return request.param  # type: ignore[no-any-return]


def opened(page: Page, server: str, case: Case, **query: str) -> Page:
    """The lesson at this link, with everything on it drawn."""
    page.goto(f"{server}/{case.key}" + (f"?{urlencode(query)}" if query else ""))
    expect(page.get_by_role("heading", name="Take it away")).to_be_visible()
    at_rest(page)
    return page


def test_the_first_screen_holds_question_main_knobs_sentence_and_stage(case: Case, server: str, page: Page) -> None:
    opened(page, server, case)
    parts = [page.locator(".prose"), headline(page), box(page, "stage").locator(".js-plotly-plot"),
             *(box(page, knob.key) for knob in case.scenario.KNOBS if knob.main)]
    for part in parts:
        place = part.bounding_box()
        assert place is not None and place["y"] >= 0 and place["y"] + min(place["height"], 400) <= 800, place
        assert place["x"] >= 0 and place["x"] + place["width"] <= 1280, place
    expect(page.get_by_text("shows when you have committed a prediction").first).to_be_attached()


def test_a_prediction_is_answered_with_the_learner_s_own_number(case: Case, server: str, page: Page) -> None:
    opened(page, server, case)
    choices = case.story.PREDICTION.choices
    for i, (_, options) in enumerate(choices):
        box(page, "prediction").get_by_role("combobox").nth(i).click()
        page.get_by_role("option", name=options[1], exact=True).click()
    if not choices:
        page.get_by_role("spinbutton").first.fill("42")
    page.get_by_role("button", name="Commit").click()
    expect(box(page, "prediction")).to_contain_text(f"you said {choices[0][1][1]}" if choices else "you said 42")
    expect(headline(page)).to_have_text(case.story.headline(case.result({}), True))
    whole(page, case.pictures)


def test_a_slider_moves_stage_sentence_sweep_and_address_together(case: Case, server: str, page: Page) -> None:
    opened(page, server, case, **ANSWERED, **{case.knob: case.start})
    before = {what: picture(page, what)["data"] for what in ("stage", "sweep")}
    here = shapes(page, "sweep", "here")
    pressed(page, case.knob)
    asked = query(page)
    assert asked[case.knob] != case.start
    expect(headline(page)).to_have_text(case.story.headline(case.result(asked), True))
    whole(page, case.pictures)
    assert picture(page, "stage")["data"] != before["stage"]
    assert picture(page, "sweep")["data"] != before["sweep"] or shapes(page, "sweep", "here") != here


def test_every_preset_shows_what_to_watch_for_and_its_own_sentence(case: Case, server: str, page: Page) -> None:
    opened(page, server, case, **ANSWERED)
    for preset in case.scenario.PRESETS[1:]:
        page.get_by_role("radio", name=preset.name, exact=True).click()
        expect(box(page, "watch").filter(has_text=preset.watch[:40])).to_be_visible()
        expect(headline(page)).to_have_text(case.story.headline(case.scenario.result(preset.values), True))
    at_rest(page)
    expect(page.get_by_test_id("stException")).to_have_count(0)


def test_a_request_chosen_by_the_keyboard_is_told_and_kept_in_the_link(case: Case, server: str, page: Page) -> None:
    opened(page, server, case, **ANSWERED)
    page.get_by_role("combobox", name="Request", exact=True).focus()
    page.keyboard.type("Request 2")
    page.keyboard.press("Enter")
    result = case.result({})
    said = case.story.life(result, next(iter(result.scenario.policies)), 1).split("**")[-1].strip()[:40]
    expect(box(page, "life")).to_contain_text(said)
    page.wait_for_url(lambda url: "request=2" in url)
    page.reload()
    expect(box(page, "life")).to_contain_text(said)


def test_a_word_opens_where_it_is_first_used_by_keyboard_too(case: Case, server: str, page: Page) -> None:
    opened(page, server, case)
    word = page.locator(".prose button").first
    card = page.locator(".prose .card").first
    word.focus()
    expect(card).to_be_hidden()
    page.keyboard.press("Enter")
    expect(card).to_be_visible()
    told = spelled(tuple(case.story.WORDS))[word.inner_text().lower()]
    expect(card).to_contain_text(f"{told.name}: {told.short}")
    edges = card.bounding_box()
    assert edges is not None and edges["x"] >= 0 and edges["x"] + edges["width"] <= page.viewport_size["width"]  # type: ignore[index]
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()


def test_the_link_restores_the_whole_state_for_somebody_else(
    case: Case, server: str, open_context: Callable[..., BrowserContext]
) -> None:
    one = opened(open_context().new_page(), server, case, **ANSWERED, **{case.knob: case.start, "seed": "77", "request": "1"})
    told = headline(one).inner_text()
    other = open_context().new_page()
    other.goto(one.url)
    expect(headline(other)).to_have_text(told)
    assert parse_qs(urlsplit(other.url).query) == parse_qs(urlsplit(one.url).query)


@pytest.mark.parametrize("case", [CASES[0], CASES[2]], ids=lambda case: case.key)  # the others have one range only
def test_what_the_sweep_goes_over_is_kept_in_the_link(case: Case, server: str, page: Page) -> None:
    views = import_module(f"explainers.{case.key}.page").LESSON.views
    opened(page, server, case, **ANSWERED)
    first = picture(page, "sweep")["data"]
    page.get_by_role("radiogroup", name="Over", exact=True).get_by_role("radio").last.click()
    page.wait_for_url(lambda url: f"over={views[0].options[-1]}" in url)
    at_rest(page)
    assert (then := picture(page, "sweep")["data"]) != first
    page.reload()
    whole(page, case.pictures)
    at_rest(page)
    assert picture(page, "sweep")["data"] == then


def test_hostile_links_are_read_as_data_and_said(case: Case, server: str, page: Page) -> None:
    hostile = {"v": "1", case.knob: "<img src=x onerror=alert(1)>", "seed": "9" * 400, "request": "-1", "nonsense": "**x**"}
    opened(page, server, case, **hostile)
    expect(box(page, "notes")).to_contain_text("adjusted")
    assert page.locator("img[src=x]").count() == 0
    expect(headline(page)).to_have_text(case.story.headline(case.result({}), False))


def test_the_time_cursor_moves_without_the_server_and_is_kept(case: Case, server: str, page: Page) -> None:
    opened(page, server, case, **ANSWERED)
    cursor(page).focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.wait_for_url(lambda url: "t=" in url)
    assert all(shape["visible"] is not False for shape in shapes(page, "stage", "cursor"))


def test_what_is_taken_away_is_what_is_on_the_screen(case: Case, server: str, page: Page) -> None:
    opened(page, server, case, **ANSWERED)
    name, content = saved(page, "Requests (CSV)")
    assert name == f"stepwise-{case.key}.csv"
    assert content.decode() == case.story.requests_csv(case.result({}))
    _, trace = saved(page, "Trace for Perfetto (JSON)")
    assert json.loads(trace)["traceEvents"]


def test_controls_are_reached_by_the_keyboard_and_show_the_focus(case: Case, server: str, page: Page) -> None:
    opened(page, server, case, **ANSWERED)
    knob = next(knob for knob in case.scenario.KNOBS if knob.key == case.knob)
    for name in ("Predict again", f"{knob.label} ({knob.unit})", "Time cursor", "Copy link", "I have done this lesson"):
        tabbed(page, name)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_wider_than_the_screen(
    case: Case, scheme: str, server: str, open_context: Callable[..., BrowserContext]
) -> None:
    page = open_context(viewport={"width": 375, "height": 800}, color_scheme=scheme).new_page()
    opened(page, server, case, **ANSWERED)
    whole(page, case.pictures)
    assert sideways(page) == []


def test_reset_returns_to_the_default(case: Case, server: str, page: Page) -> None:
    opened(page, server, case, **ANSWERED, **{case.knob: case.start, "seed": "77"})
    page.get_by_role("button", name="Reset the lesson").click()
    expect(headline(page)).to_have_text(case.story.headline(case.result({}), False))
    page.wait_for_url(lambda url: "seed=77" not in url)


def test_a_capacity_is_searched_while_the_sliders_go_on_and_kept_for_the_next_visitor(
    server: str, open_context: Callable[..., BrowserContext]
) -> None:
    chunked = next(c for c in CASES if c.key == "chunked_prefill")
    one = opened(open_context().new_page(), server, chunked, **ANSWERED)
    one.get_by_role("button", name="Find the capacity").click()
    pressed(one, "budget")  # a slider of another value asks anew, and is answered at once
    expect(box(one, "capacity").locator(".js-plotly-plot .main-svg:first-child")).to_be_visible(timeout=60_000)
    expect(box(one, "found")).to_contain_text("requests/s")
    assert "cap" in query(one)
