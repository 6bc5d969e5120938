"""The default page: the path, and what the visitor's browser remembers of it."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from explainers import LEVELS, PATH
from tests.browser.parts import at_rest


def test_every_lesson_stands_on_the_path_with_its_question_and_picture(page: Page, server: str) -> None:
    page.goto(server)
    expect(page.locator(".js-plotly-plot .main-svg:first-child")).to_have_count(len(PATH))
    for entry in PATH:
        card = page.locator(f".st-key-hub-{entry.key}")
        expect(card.get_by_role("link", name=entry.title)).to_be_visible()
        expect(card).to_contain_text(f"{entry.minutes} min · not done yet")
    levels = {entry.level for entry in PATH}
    for level, name in enumerate(LEVELS):
        expect(page.get_by_role("heading", name=name)).to_have_count(int(level in levels))


def test_a_lesson_done_stays_done_after_a_reload_and_in_another_session_of_the_browser(page: Page, server: str) -> None:
    second = PATH[1].key
    page.goto(f"{server}/{second}?v=1&guess=skip")
    page.get_by_role("button", name="I have done this lesson").click()
    expect(page.get_by_role("button", name="Not done yet after all")).to_be_visible()
    page.goto(server)
    expect(page.locator(f".st-key-hub-{second}")).to_contain_text("✓ done")
    page.reload()
    expect(page.locator(f".st-key-hub-{second}")).to_contain_text("✓ done")
    expect(page.get_by_role("button", name=f"Go on: {PATH[0].title}")).to_be_visible()


def test_what_the_browser_keeps_is_not_believed_if_it_is_no_list_of_lessons(page: Page, server: str) -> None:
    page.goto(server)
    for kept in ('{"x": 1}', "[[]]", "not json", '["nowhere", "' + "x" * 100_000 + '"]'):
        page.evaluate("kept => localStorage.setItem('stepwise.done', kept)", kept)
        page.reload()
        expect(page.locator(f".st-key-hub-{PATH[0].key}")).to_contain_text("not done yet")


def test_start_opens_the_first_lesson_and_a_sandbox_asks_nothing(page: Page, server: str) -> None:
    page.goto(server)
    page.get_by_role("button", name=f"Start here: {PATH[0].title}").click()
    page.wait_for_url(f"**/{PATH[0].key}*")
    page.goto(server)
    page.locator(f".st-key-hub-{PATH[1].key}").get_by_role("link", name="Skip to its sandbox").click()
    page.wait_for_url(f"**/{PATH[1].key}?*hide=*")
    at_rest(page)
    expect(page.get_by_role("button", name="Commit")).to_have_count(0)
    expect(page.get_by_role("heading", name="Check yourself")).to_have_count(0)


def test_a_sandbox_link_means_what_it_says_although_the_lesson_has_been_open(page: Page, server: str) -> None:
    key = PATH[-1].key
    page.goto(f"{server}/{key}")
    expect(page.get_by_role("button", name="Commit")).to_be_visible()
    at_rest(page)
    page.get_by_role("link", name="Play on in the sandbox").click()
    expect(page.get_by_role("button", name="Commit")).to_have_count(0)
    page.wait_for_url("**hide=*")
    at_rest(page)
    assert "new=" not in page.url


def test_an_embedded_lesson_stands_alone(page: Page, server: str) -> None:
    page.goto(f"{server}/{PATH[1].key}?v=1&embed=true&guess=skip")
    expect(page.get_by_role("heading", name="Take it away")).to_be_visible()
    for entry in PATH:
        expect(page.get_by_role("link", name=entry.menu, exact=True)).to_have_count(0)
    expect(page.get_by_role("button", name="I have done this lesson")).to_be_hidden()
