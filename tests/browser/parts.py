"""A lesson's page in the browser, as its parts are called; which lesson it is, its address says."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, WebSocket, expect

ANSWERED = {"v": "1", "guess": "skip"}
"""A link on which nothing is held back for the prediction."""


def lesson(page: Page) -> str:
    """The key of the lesson that is open."""
    return urlsplit(page.url).path.strip("/")


def whole(page: Page, pictures: int) -> None:
    """Wait until the last part is there and so many pictures are drawn."""
    expect(page.get_by_role("heading", name="Take it away")).to_be_visible()
    expect(page.locator(".js-plotly-plot .main-svg:first-child")).to_have_count(pictures)
    at_rest(page)


def at_rest(page: Page) -> None:
    """Wait until the server has nothing left to run and no part still waits for its code."""
    page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]:not(:has([data-testid="stSkeleton"]))')


def box(page: Page, what: str) -> Locator:
    """The container of a lesson's part."""
    return page.locator(f".st-key-{lesson(page)}-{what}")


def headline(page: Page) -> Locator:
    """The sentence of difference."""
    return box(page, "headline")


def picture(page: Page, what: str) -> dict[str, Any]:
    """The data and layout of a figure as the browser has them."""
    plot = box(page, what).locator(".js-plotly-plot")
    found: dict[str, Any] = plot.evaluate("plot => ({data: plot.data, layout: plot.layout})")
    return found


def shapes(page: Page, what: str, name: str) -> list[dict[str, Any]]:
    """The layout shapes of that name in a figure."""
    return [shape for shape in picture(page, what)["layout"]["shapes"] if shape.get("name") == name]


def wait_for_shape(page: Page, what: str, name: str, condition: str) -> None:
    """Wait until every shape of that name meets `condition`, JavaScript over `shape`."""
    page.wait_for_function(
        f"""() => document.querySelector('.st-key-{lesson(page)}-{what} .js-plotly-plot')?.layout.shapes
                  .filter(shape => shape.name === '{name}').every(shape => {condition})""")


def slider(page: Page, knob: str) -> Locator:
    """The handle of a knob."""
    return box(page, knob).get_by_role("slider")


def pressed(page: Page, knob: str) -> None:
    """A slider one step to the right by the keyboard; the address says so when the rest of the page has followed."""
    before = page.url
    slider(page, knob).focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_url(lambda url: url != before)
    at_rest(page)


def cursor(page: Page) -> Locator:
    """The time cursor."""
    return page.get_by_role("slider", name="Time cursor")


def who_is_where(page: Page) -> Locator:
    """The table under the time cursor."""
    return page.get_by_role("region", name="State at the time cursor")


def query(page: Page) -> dict[str, str]:
    """What the address says."""
    return {key: values[0] for key, values in parse_qs(urlsplit(page.url).query).items()}


def frames(page: Page) -> list[int]:
    """Sizes of the messages to the server from now on; call before the page is opened."""
    sent: list[int] = []

    def watch(socket: WebSocket) -> None:
        socket.on("framesent", lambda frame: sent.append(len(frame)))

    page.on("websocket", watch)
    return sent


def dragged(page: Page, share: float) -> None:
    """Take hold of the time cursor's handle and move it to a share of its way; the button stays down."""
    cursor(page).scroll_into_view_if_needed()
    place = cursor(page).bounding_box()
    assert place is not None
    middle = place["y"] + place["height"] / 2
    page.mouse.move(place["x"] + 8, middle)
    page.mouse.down()
    for step in (0.3, 0.7, 1.0):
        page.mouse.move(place["x"] + 8 + share * step * (place["width"] - 16), middle)


ACTIVE = """() => { let e = document.activeElement;
  while (e.shadowRoot?.activeElement) e = e.shadowRoot.activeElement;
  return e; }"""


def tabbed(page: Page, name: str) -> None:
    """Tab on until the focus is on what is called `name`; it must show where it is."""
    for _ in range(90):
        page.keyboard.press("Tab")
        here = page.evaluate(
            f"""() => {{ const e = ({ACTIVE})();
                return e.ariaLabel ?? (e.labels?.length ? e.labels[0].textContent : e.textContent); }}""")
        if here.partition(":")[0].strip() == name:
            break
    else:
        pytest.fail(f"no {name!r} within 90 presses of Tab")
    place = page.evaluate(
        f"""() => {{ const r = ({ACTIVE})().getBoundingClientRect();
            return {{x: Math.max(0, r.x - 12), y: Math.max(0, r.y - 12), width: r.width + 24, height: r.height + 24}}; }}""")
    focused = page.screenshot(clip=place, animations="disabled")
    page.evaluate(f"() => {{ window.held = ({ACTIVE})(); window.held.blur(); }}")
    blurred = page.screenshot(clip=place, animations="disabled")
    page.evaluate("window.held.focus()")
    assert focused != blurred, f"nothing shows that {name!r} has the focus"


def saved(page: Page, button: str) -> tuple[str, bytes]:
    """Name and content of the file that a button makes."""
    with page.expect_download() as download:
        page.get_by_role("button", name=button).click()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def sideways(page: Page) -> list[str]:
    """What pushes the page sideways, or stands beyond its edge where nobody can scroll to.

    The input of a slider is invisible and lies over its knob, at most half of it beyond the slider's end.
    """
    wide = page.evaluate("""() => [document.scrollingElement, document.querySelector('[data-testid=stMain]')]
                               .map(e => e.scrollWidth - e.clientWidth)""")
    beyond: list[str] = page.evaluate("""() => [...document.querySelectorAll(
            'h1, h2, h3, p, li, button, input:not([type=range]), .js-plotly-plot')]
        .filter(e => e.checkVisibility() && e.getBoundingClientRect().width > 0)
        .filter(e => !e.closest('[data-testid=stDataFrame], [data-testid=stSidebar]'))
        .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5 || e.getBoundingClientRect().left < -0.5)
        .map(e => e.outerHTML.slice(0, 100))""")
    return beyond if wide == [0, 0] else [f"the page is wider than the window by {wide}", *beyond]
