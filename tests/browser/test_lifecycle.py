"""The life of one request in a real browser: what it does that no other lesson does."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import urlencode

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from explainers.lifecycle import scenario, story
from tests.browser.parts import ANSWERED, at_rest, box, cursor, headline, pressed, shapes, slider, whole

PICTURES = 9


@pytest.fixture
def lifecycle(server: str, page: Page) -> Callable[..., Page]:
    """Opens the lesson at a link, with everything on it drawn."""

    def opened(**query: str) -> Page:
        page.goto(f"{server}/lifecycle?{urlencode(ANSWERED | query)}")
        whole(page, PICTURES)
        return page

    return opened


@pytest.mark.parametrize(("knob", "sum_"), [
    ("wait", "35 + 50 + 100 × 5 = 585 ms"), ("prefill", "30 + 55 + 100 × 5 = 585 ms"), ("tokens", "30 + 50 + 101 × 5 = 585 ms"),
    ("gap", "30 + 50 + 100 × 6 = 680 ms")])
def test_each_number_of_the_sum_is_a_slider_and_the_sum_follows(lifecycle, knob, sum_) -> None:
    page = lifecycle()
    expect(headline(page)).to_contain_text("30 + 50 + 100 × 5 = 580 ms")
    pressed(page, knob)
    expect(headline(page)).to_contain_text(sum_)
    expect(box(page, "stage").locator(".js-plotly-plot")).to_contain_text(sum_.split("= ")[1])


def test_a_slip_in_the_prediction_is_named(server: str, page: Page) -> None:
    page.goto(f"{server}/lifecycle")
    whole(page, PICTURES - 2)  # sweep and band wait
    page.get_by_role("spinbutton").first.fill("1080")
    page.get_by_role("button", name="Commit").click()
    expect(box(page, "prediction")).to_contain_text("You counted 200 gaps; between 200 tokens there are 199.")


def test_it_can_be_cancelled_at_any_moment_and_the_loss_is_flagged(lifecycle) -> None:
    page = lifecycle(moment="50")
    flag = page.get_by_test_id("stAlert").filter(has_text="do not balance")
    expect(flag).to_contain_text(f"{scenario.result({}).left.blocks} blocks belong to nobody")
    before = shapes(page, "leaving", "left")[0]["x0"]
    pressed(page, "moment")
    later = scenario.result({"moment": 51})
    expect(box(page, "leaving-words")).to_contain_text(story.leaving_words(later).split("**")[0])
    at_rest(page)
    assert shapes(page, "leaving", "left")[0]["x0"] > before


def test_who_leaves_while_waiting_leaves_no_flag(lifecycle) -> None:
    page = lifecycle(moment="5")
    expect(box(page, "leaving-words")).to_contain_text("no slot and no block")
    expect(page.get_by_text("belong to nobody")).to_have_count(0)
    expect(box(page, "handoff-words")).to_contain_text("nothing has been computed yet")


def test_another_link_takes_another_time(lifecycle) -> None:
    page = lifecycle(link="Ethernet, 10 Gb/s")
    expect(box(page, "handoff-words")).to_contain_text("Over Ethernet, 10 Gb/s: 71 ms")  # 71.4 MB at 1 GB/s


def test_the_cursor_stands_in_the_simulated_lives_not_in_the_worked_example(lifecycle) -> None:
    page = lifecycle()
    cursor(page).focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.wait_for_url(re.compile(r"[?&]t="))
    at = float(re.search(r"[?&]t=([\d.]+)", page.url)[1])
    for what in ("company", "leaving"):
        (line,) = shapes(page, what, "cursor")
        assert line["visible"] is not False and line["x0"] == pytest.approx(at)
    assert shapes(page, "stage", "cursor") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_every_word_of_the_worked_example_is_inside_its_figure(
    server: str, open_context: Callable[..., BrowserContext], width: int, scheme: str
) -> None:
    page = open_context(viewport={"width": width, "height": 800}, color_scheme=scheme).new_page()
    for query in ({}, {"wait": "600", "tokens": "1"}, {"arrival": "300", "tokens": "2"}, {"tokens": "300", "gap": "60"}):
        page.goto(f"{server}/lifecycle?{urlencode(ANSWERED | query)}")
        whole(page, PICTURES)
        plot = box(page, "stage").locator(".js-plotly-plot")
        outside = plot.evaluate("""plot => { const frame = plot.getBoundingClientRect();
            return [...plot.querySelectorAll('.annotation-text')].filter(text => { const at = text.getBoundingClientRect();
                return at.left < frame.left - 1 || at.right > frame.right + 1 || at.bottom > frame.bottom + 1
                  || at.top < frame.top - 1 }).map(text => text.textContent) }""")
        assert outside == [], query


def test_the_page_is_worked_by_the_keyboard(lifecycle) -> None:
    page = lifecycle()
    slider(page, "moment").focus()
    page.keyboard.press("Home")
    expect(box(page, "leaving-words")).to_contain_text("after 0 ms")
    page.keyboard.press("End")
    expect(box(page, "leaving-words")).to_contain_text("1 slot and 39 blocks")  # 512 + 99 tokens or so, of 16 a block
