"""The batching lesson in a real browser: what a visitor sees first, moves, links, drops in, selects and takes along."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from explainers.batching import scenario, story
from explainers.kit import link
from explainers.kit.knobs import defaults, encoded
from tests.browser import parts
from tests.browser.parts import (
    ANSWERED,
    at_rest,
    box,
    cursor,
    dragged,
    frames,
    headline,
    picture,
    pressed,
    query,
    saved,
    shapes,
    sideways,
    tabbed,
    wait_for_shape,
    who_is_where,
)  # fmt: skip
from tests.browser.test_frame import THEME, rgb

# --- the page, as its parts are called ----------------------------------------------------------------------------------


def opened(page: Page, server: str, **query: str) -> Page:
    """The lesson at this link, with everything on it drawn."""
    page.goto(f"{server}/batching" + (f"?{urlencode(query)}" if query else ""))
    recorded = query.get("source", scenario.GENERATED) != scenario.GENERATED
    whole(page, 2 if "guess" not in query else 4 if recorded else 5)  # a recorded trace has no seeds to spread over
    return page


def whole(page: Page, pictures: int = 5) -> None:
    """Wait until every part is drawn; the prediction holds back all pictures but two."""
    parts.whole(page, pictures)


# --- what is seen first -------------------------------------------------------------------------------------------------


def test_the_first_screen_holds_question_main_knob_stage_and_the_sentence_of_difference(server: str, page: Page) -> None:
    opened(page, server)
    parts = {"question": page.locator(".prose"), "main knob": box(page, "slots"),
             "sentence": headline(page), "stage": box(page, "stage").locator(".js-plotly-plot")}
    for what, part in parts.items():
        place = part.bounding_box()
        assert place is not None, what
        assert place["y"] >= 0 and place["y"] + place["height"] <= 800, (what, place)
        assert place["x"] >= 0 and place["x"] + place["width"] <= 1280, (what, place)
    expect(headline(page)).to_contain_text("the last reply comes")


def test_the_largest_idle_piece_is_outlined_before_anything_is_touched(server: str, page: Page) -> None:
    opened(page, server)
    figure = picture(page, "stage")
    upper = [trace for trace in figure["data"] if trace["type"] == "bar" and trace["yaxis"] == "y"]
    idle = [(width, base) for trace in upper if trace["name"] not in ("prefill", "decode")
            for width, base in zip(trace["x"], trace["base"], strict=True)]
    longest, start = max(idle)
    frame = shapes(page, "stage", "largest")[0]
    assert (frame["x0"], frame["x1"] - frame["x0"]) == pytest.approx((start, longest))
    # Its share of the slot-time stands on it: of four slots from 0 to the end of the last batch.
    end = max(base + width for trace in upper for width, base in zip(trace["x"], trace["base"], strict=True))
    drawn = box(page, "stage").locator(".annotation", has_text=f"{100 * longest / (4 * end):.0f} %").first
    expect(drawn).to_be_visible()
    place, plot = drawn.bounding_box(), box(page, "stage").locator(".js-plotly-plot").bounding_box()
    assert place is not None and plot is not None
    right = plot["x"] + box(page, "stage").locator(".js-plotly-plot").evaluate(
        "(plot, ms) => plot._fullLayout._size.l + plot._fullLayout.xaxis.d2p(ms)", frame["x1"])
    assert place["x"] + place["width"] == pytest.approx(right, abs=6)


def test_every_preset_shows_its_picture_and_what_to_watch_for(server: str, page: Page) -> None:
    opened(page, server, **ANSWERED)
    for preset in scenario.PRESETS[1:]:
        page.get_by_role("radio", name=preset.name, exact=True).click()
        expect(box(page, "watch").filter(has_text=preset.watch[:40])).to_be_visible()
        expect(headline(page)).to_contain_text(story.headline(scenario.result(preset.values)))
        whole(page, 5 if preset.values.get("source", scenario.GENERATED) == scenario.GENERATED else 4)
        expect(page.get_by_test_id("stException")).to_have_count(0)


def test_the_menu_offers_the_theme(server: str, page: Page) -> None:
    opened(page, server)
    page.get_by_role("button", name="Main menu").click()
    page.get_by_role("menuitemradio", name="Dark").click()
    dark = THEME["dark"]["backgroundColor"]
    expect(page.get_by_test_id("stApp")).to_have_css("background-color", rgb(dark))
    page.keyboard.press("Escape")
    pressed(page, "slots")  # Streamlit tells the server of the choice with the next press: then the figures wear it too
    page.wait_for_function(f"document.querySelector('.js-plotly-plot')._fullLayout.paper_bgcolor === '{dark}'")


# --- knobs --------------------------------------------------------------------------------------------------------------


def idle_share(text: str, policy: str) -> str:
    found = re.search(rf"{policy}\D+?(\d+ %)", text)
    assert found, text
    return found[1]


def test_a_slider_moves_stage_sentence_sweep_and_band_together(server: str, page: Page) -> None:
    opened(page, server, **ANSWERED)
    said = headline(page).inner_text()
    pressed(page, "slots")
    expect(headline(page)).not_to_have_text(said)
    expect(headline(page)).to_contain_text(story.headline(scenario.result({"slots": 5})))
    assert query(page)["slots"] == "5"
    static = f"{100 * scenario.result({'slots': 5}).ledgers['static'].idle_share:.0f} %"
    expect(box(page, "stage").locator(".annotation", has_text=f"{static} idle")).to_be_visible()
    expect(page.get_by_role("figure", name=f"at 5 the idle share is {static} under static")).to_be_visible()
    expect(page.get_by_role("figure", name=re.compile(f"Static: median .* on the screen {static}"))).to_be_visible()
    lanes = picture(page, "stage")["layout"]["yaxis"]["range"]
    assert lanes == [4.5, -0.5]


def test_a_committed_prediction_is_answered(server: str, page: Page) -> None:
    opened(page, server)
    expect(page.locator(".st-key-batching-ledger")).to_have_count(0)
    page.get_by_role("spinbutton", name="Predict first").fill("37")
    page.get_by_role("button", name="Commit").click()
    expect(box(page, "prediction")).to_contain_text("you said 37 %")
    whole(page)
    assert query(page)["guess"] == "37"


# --- links --------------------------------------------------------------------------------------------------------------

VALUES = {
    "slots": 7, "spread": 1.3, "requests": 31, "giant": 3, "seed": 77, "arrivals": "bursts", "rate": 6.0, "timeout": 250,
    "model": "OPT-13B", "gpu": "H100", "source": "generated", "start": 12, "take": 300,
}  # fmt: skip
WINDOW = {"start", "take"}
"""Knobs that are not shown while the requests are generated; the link carries them all the same."""


def shown(page: Page) -> dict[str, str]:
    """The value of every knob on the page as its control shows it."""
    found = {}
    for knob in scenario.KNOBS:
        part = box(page, knob.key)
        if knob.key in WINDOW and not part.count():
            continue
        if part.get_by_role("slider").count():
            found[knob.key] = part.get_by_role("slider").get_attribute("aria-valuetext") or ""
        else:
            found[knob.key] = part.locator("input").input_value()
    return found


def said(values: dict[str, Any]) -> dict[str, str]:
    """The same from the values: a slider's text has thousands marked and, for the spread, two decimals."""
    text = {key: f"{value:,}" if isinstance(value, int) else encoded(value) for key, value in values.items()}
    text |= {"spread": f"{values['spread']:.2f}", "seed": str(values["seed"]), "start": str(values["start"]),
             "take": str(values["take"])}
    return {key: told for key, told in text.items() if values["source"] != scenario.GENERATED or key not in WINDOW}


@pytest.mark.parametrize("source", [scenario.GENERATED, scenario.SAMPLE])
def test_a_link_restores_every_value_the_selected_request_and_the_cursor(source: str, server: str, page: Page) -> None:
    values = VALUES | {"source": source}
    state = link.State(values, selected=4, cursor=2000.0, guess=61.0, view={"over": "rate"})
    assert all(values[knob.key] != knob.default for knob in scenario.KNOBS if knob.key != "source")
    opened(page, server, **link.encode(scenario.KNOBS, state))
    assert shown(page) == said(values)
    expect(page.get_by_role("combobox", name="Request", exact=True)).to_have_value("Request 5")
    expect(box(page, "life")).to_contain_text("Request 5")
    expect(box(page, "prediction")).to_contain_text("you said 61 %")
    assert {(s["x0"], s["x1"], s["visible"]) for s in shapes(page, "stage", "cursor")} == {(2000, 2000, True)}
    assert float(cursor(page).input_value()) == 2000
    assert all(shape["visible"] for shape in shapes(page, "stage", "selected"))
    assert query(page) == link.encode(scenario.KNOBS, state)  # the address says the same
    expect(page.get_by_text("do not fit")).to_have_count(0)


def test_what_does_not_fit_in_a_link_is_adjusted_and_said(server: str, page: Page) -> None:
    opened(page, server, v="1", guess="skip", slots="99", gpu="abacus", rate="nan", seed="-3", colour="<b>red</b>")
    note = box(page, "notes")
    for told in ("“99” is above 32", "abacus", "“nan”", "“-3” is below 0", "“colour” is no setting"):
        expect(note).to_contain_text(told)
    fits = said({**defaults(scenario.KNOBS), "slots": 32, "seed": 0})
    assert shown(page) == fits
    assert query(page)["slots"] == "32" and "colour" not in query(page)
    page.get_by_role("button", name="Close this note").click()
    expect(note).to_have_count(0)


def test_a_reload_in_the_middle_restores_what_was_there(server: str, page: Page) -> None:
    opened(page, server)
    page.get_by_role("button", name="Skip").click()
    whole(page)
    pressed(page, "slots")
    pressed(page, "requests")
    before, words = picture(page, "stage")["data"], headline(page).inner_text()
    page.reload()
    whole(page)
    expect(headline(page)).to_have_text(words)
    assert picture(page, "stage")["data"] == before
    assert shown(page) == said({**defaults(scenario.KNOBS), "slots": 5, "requests": 15})


def test_the_back_button_leaves_in_one_step_and_forward_finds_the_state_again(server: str, page: Page) -> None:
    page.goto(f"{server}/_stcore/health")
    opened(page, server, **ANSWERED)
    entries = page.evaluate("history.length")
    pressed(page, "slots")
    pressed(page, "slots")
    assert page.evaluate("history.length") == entries
    page.go_back()
    assert page.url.endswith("/_stcore/health")
    page.go_forward()
    whole(page)
    assert shown(page)["slots"] == "6"


def test_two_tabs_do_not_move_each_other(server: str, open_context: Callable[..., BrowserContext]) -> None:
    context = open_context()
    one, other = (opened(context.new_page(), server, **ANSWERED) for _ in range(2))
    pressed(one, "slots")
    pressed(other, "requests")
    assert shown(one) == said({**defaults(scenario.KNOBS), "slots": 5})
    assert shown(other) == said({**defaults(scenario.KNOBS), "requests": 15})


# --- own files ----------------------------------------------------------------------------------------------------------

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
ROW = "2023-11-16 18:15:4{}.6805900,300,20\r\n"
GOOD = HEADER + "".join(f"2023-11-16 18:15:{46 + k}.6805900,{300 + k},{20 + 10 * k}\r\n" for k in range(9))
BAD = {
    "header": ("time,in,out\n1,2,3\n", "line 1, column TIMESTAMP"),
    "word": (HEADER + ROW.format(1) + "2023-11-16 18:15:43.68,12,many\r\n", "line 3, column GeneratedTokens"),
    "negative": (HEADER + "2023-11-16 18:15:46.68,-12,4\r\n", "line 2, column ContextTokens"),
    "order": (HEADER + ROW.format(5) + ROW.format(3), "line 3, column TIMESTAMP"),
    "cut": (HEADER + ROW.format(1) + ROW.format(2) + "2023-11-16 18:15:43.68,12", "line 4, column GeneratedTokens"),
}


def dropped(page: Page, name: str, content: str) -> None:
    page.get_by_test_id("stFileUploaderDropzoneInput").set_input_files(
        [{"name": name, "mimeType": "text/csv", "buffer": content.encode()}])


def test_an_own_file_is_served_and_bad_ones_are_refused_by_line_and_column_without_loss(server: str, page: Page) -> None:
    opened(page, server, **ANSWERED)
    generated = picture(page, "stage")["data"]
    dropped(page, "bad.csv", BAD["header"][0])
    expect(page.get_by_role("alert")).to_contain_text("line 1, column TIMESTAMP")
    expect(page.get_by_role("alert")).to_contain_text("Nothing of it was loaded")
    at_rest(page)
    assert picture(page, "stage")["data"] == generated

    dropped(page, "mine.csv", GOOD)
    expect(page.get_by_text("mine.csv: 9 requests over 8 s")).to_be_visible()
    expect(page.get_by_role("figure", name=re.compile("^Timelines of 9 requests"))).to_be_visible()
    expect(page.get_by_text("stays in this session of yours")).to_be_visible()
    expect(page.get_by_text("The link does not carry your file")).to_be_visible()
    at_rest(page)
    mine = picture(page, "stage")["data"]
    assert mine != generated

    for what, (content, place) in BAD.items():
        dropped(page, f"{what}.csv", content)
        error = page.get_by_role("alert").filter(has_text=f"{what}.csv: {place}")
        expect(error).to_contain_text("Still in use: mine.csv")
        at_rest(page)
        assert picture(page, "stage")["data"] == mine, what


# --- the time cursor and the selected request ---------------------------------------------------------------------------


def test_the_time_cursor_moves_figure_and_table_without_the_server(server: str, page: Page) -> None:
    sent = frames(page)
    opened(page, server, **ANSWERED)
    assert page.evaluate("typeof window.Plotly?.relayout") == "function"  # undocumented: Streamlit sets it
    before = len(sent)
    assert before > 0  # the counter counts
    dragged(page, 0.5)
    wait_for_shape(page, "stage", "cursor", "shape.visible && shape.x0 > 1000")
    at = float(cursor(page).input_value())
    assert {shape["x0"] for shape in shapes(page, "stage", "cursor")} == {at}
    # Who decodes at that instant, from the run itself.
    run = scenario.result({}).runs["continuous"]
    zero = run.trace.arrival_us[0]
    ended = int(((run.finished_us - zero) / 1000 <= at).sum())
    expect(who_is_where(page).get_by_role("row", name="Finished").get_by_role("cell").last).to_contain_text(f"{ended}: ")
    assert len(sent) == before
    page.mouse.up()
    page.wait_for_url(re.compile(r"[?&]t="))  # on release the server hears of it, and the link carries it
    assert float(query(page)["t"]) == at and len(sent) > before


def test_without_plotly_within_reach_the_server_draws_the_cursor(server: str, page: Page) -> None:
    page.add_init_script("Object.defineProperty(window, 'Plotly', {get: () => undefined, set: () => {}});")
    opened(page, server, **ANSWERED)
    assert page.evaluate("window.Plotly === undefined")
    dragged(page, 0.5)
    at = float(cursor(page).input_value())
    assert [shape["visible"] for shape in shapes(page, "stage", "cursor")] == [False]
    page.mouse.up()
    wait_for_shape(page, "stage", "cursor", f"shape.visible && shape.x0 === {at}")
    page.wait_for_url(re.compile(r"[?&]t="))
    assert float(query(page)["t"]) == at


def clicked(page: Page, number: int) -> None:
    """A click on a request's number in the upper timeline."""
    box(page, "stage").locator(".js-plotly-plot").scroll_into_view_if_needed()
    bar = box(page, "stage").locator(".bartext", has_text=re.compile(f"^{number}$")).first.bounding_box()
    assert bar is not None
    page.mouse.click(bar["x"] + bar["width"] / 2, bar["y"] + bar["height"] / 2)


def test_a_click_on_a_bar_selects_the_request_everywhere_and_a_second_lets_it_go(server: str, page: Page) -> None:
    opened(page, server, **ANSWERED)
    clicked(page, 6)
    expect(page.get_by_role("combobox", name="Request", exact=True)).to_have_value("Request 6")
    expect(box(page, "life")).to_contain_text("Request 6 (256 prompt")
    wait_for_shape(page, "stage", "selected", "shape.visible")
    wait_for_shape(page, "gainers", "selected", "shape.visible")
    at_rest(page)
    assert len(shapes(page, "stage", "selected")) == 2  # under both policies
    figure, (frame,) = picture(page, "gainers"), shapes(page, "gainers", "selected")
    row = round((frame["y0"] + frame["y1"]) / 2)
    assert figure["layout"]["yaxis"]["ticktext"][row] == "6"
    assert query(page)["request"] == "6"
    clicked(page, 6)
    wait_for_shape(page, "stage", "selected", "!shape.visible")
    expect(page.get_by_role("combobox", name="Request", exact=True)).to_have_value("")


# --- the keyboard -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_that_matters_can_be_done_from_the_keyboard(
    scheme: str, server: str, open_context: Callable[..., BrowserContext]
) -> None:
    page = opened(open_context(color_scheme=scheme).new_page(), server)
    tabbed(page, "Predict first")
    page.keyboard.type("40")
    page.keyboard.press("Enter")
    expect(box(page, "prediction")).to_contain_text("you said 40 %")
    whole(page)
    tabbed(page, "Slots")
    page.keyboard.press("ArrowRight")
    expect(headline(page)).to_contain_text(story.headline(scenario.result({"slots": 5})))
    whole(page)
    tabbed(page, "Request")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(box(page, "life")).to_contain_text(re.compile(r"Request \d+ \(256 prompt"))
    at_rest(page)
    tabbed(page, "Time cursor")
    before, step = float(cursor(page).input_value()), float(cursor(page).get_attribute("step") or 0)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.wait_for_url(lambda url: parse_qs(urlsplit(url).query).get("t") == [encoded(before + 2 * step)])
    at_rest(page)
    tabbed(page, "Mixed lengths")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    expect(box(page, "watch")).to_contain_text(scenario.PRESETS[1].watch[:40])


# --- a phone ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_at_375_pixels_nothing_pushes_the_page_sideways(
    scheme: str, server: str, open_context: Callable[..., BrowserContext]
) -> None:
    page = open_context(viewport={"width": 375, "height": 812}, color_scheme=scheme).new_page()
    opened(page, server, **ANSWERED, request="3", t="2000")
    for twin in page.get_by_text("The same as a table").all():
        twin.click()
    expect(page.get_by_test_id("stDataFrame")).to_have_count(5)
    at_rest(page)
    assert sideways(page) == []


# --- take away ----------------------------------------------------------------------------------------------------------


def test_what_is_taken_away_is_what_is_on_the_screen(server: str, page: Page) -> None:
    opened(page, server, **ANSWERED, slots="5")
    result = scenario.result({"slots": 5})
    name, content = saved(page, "Requests (CSV)")
    assert name == "stepwise-batching.csv" and content.decode() == story.requests_csv(result)
    name, content = saved(page, "Trace for Perfetto (JSON)")
    assert name == "stepwise-batching.json" and json.loads(content) == json.loads(story.chrome_trace(result))
    name, content = saved(page, "PNG of the timelines")
    size = box(page, "stage").locator(".js-plotly-plot").evaluate("plot => [plot.clientWidth, plot.clientHeight]")
    assert name == "stepwise-batching.png" and content.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", content[16:24]) == tuple(2 * side for side in size)  # twice as sharp as the screen
    expect(page.get_by_test_id("stCode")).to_have_text(story.python_lines({"slots": 5}).strip())
    taken = page.get_by_label("Link to this page as it stands").input_value()
    assert taken == page.url
