"""The chunked-prefill lesson in a real browser: what it has beside what every lesson has (test_lessons.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from explainers.chunked_prefill import scenario, story
from explainers.kit.knobs import defaults
from tests.browser.parts import ANSWERED, at_rest, box, headline, picture, query, shapes, tabbed

CLASSIC = scenario.result({})
FOUND = ".js-plotly-plot .main-svg:first-child"


def opened(page: Page, server: str, **query: str) -> Page:
    """The lesson at this link, with everything on it drawn."""
    asked = "&".join(f"{key}={value}" for key, value in query.items())
    page.goto(f"{server}/chunked_prefill?{asked}")
    expect(page.get_by_role("heading", name="Take it away")).to_be_visible()
    at_rest(page)
    return page


def find(page: Page) -> None:
    page.get_by_role("button", name="Find the capacity").click()


def test_the_longest_gap_is_outlined_from_its_first_to_its_last_moment(server: str, page: Page) -> None:
    opened(page, server, **ANSWERED)
    outlines = [(shape["x0"], shape["x1"]) for shape in shapes(page, "stage", "gap")]
    assert outlines == [pytest.approx((gap.start_ms, gap.end_ms), abs=0.01) for gap in CLASSIC.gaps.values()]


def test_the_roofline_follows_the_budget(server: str, page: Page) -> None:
    opened(page, server, **ANSWERED, budget="1024")
    expect(box(page, "roof-words")).to_have_text(story.roofline_words(scenario.roofline({"budget": 1024})))
    assert any("1,024" in str(note["text"]) for note in picture(page, "roofline")["layout"]["annotations"])


def test_a_search_tells_how_far_it_is_is_given_up_and_begun_again(server: str, page: Page) -> None:
    opened(page, server, **ANSWERED, seed="801")  # nobody else's search
    find(page)
    expect(page.get_by_text("requests simulated a second")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_test_id("stProgress")).to_have_count(0)
    assert box(page, "capacity").count() == 0
    find(page)
    expect(box(page, "capacity").locator(FOUND)).to_be_visible(timeout=60_000)
    values = scenario.filled({**defaults(scenario.KNOBS), "seed": 801})
    load, _ = scenario.load(scenario.bears(values, "chunks"), "chunks", 100)
    expect(box(page, "found")).to_contain_text(f"chunks bear {load.capacity:.2f} requests/s")


def test_while_one_visitor_searches_another_s_slider_goes_on(server: str, open_context: Callable[..., BrowserContext]) -> None:
    one = opened(open_context().new_page(), server, **ANSWERED, seed="802")
    other = opened(open_context().new_page(), server, **ANSWERED, seed="803")
    find(one)
    expect(one.get_by_test_id("stProgress")).to_be_visible()
    box(other, "budget").get_by_role("slider").focus()
    other.keyboard.press("ArrowRight")
    asked = {**defaults(scenario.KNOBS), "budget": 768, "seed": 803}
    expect(headline(other)).to_have_text(story.headline(scenario.result(asked)))
    expect(one.get_by_test_id("stProgress")).to_be_visible()  # and the search goes on meanwhile
    expect(box(one, "capacity").locator(FOUND)).to_be_visible(timeout=60_000)
    assert query(one)["budget"] == "512"


def test_the_search_is_asked_for_by_keyboard(server: str, page: Page) -> None:
    opened(page, server, **ANSWERED)
    tabbed(page, "Find the capacity")
    page.keyboard.press("Enter")
    expect(box(page, "capacity").locator(FOUND)).to_be_visible(timeout=60_000)
