"""The memory lesson in a real browser: what a visitor sees first, moves, links, drops in, selects and takes along."""

from __future__ import annotations

import gzip
import json
import re
import struct
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from explainers.kit import link
from explainers.kit.grammar import duration
from explainers.kit.knobs import encoded
from explainers.memory import scenario, story
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
    slider,
    tabbed,
    wait_for_shape,
    who_is_where,
    whole,
)

THRASH = {**ANSWERED, "memory": "2048"}
"""A memory so small that requests are preempted."""


def opened(page: Page, server: str, **query: str) -> Page:
    """The lesson at this link, with everything on it drawn."""
    page.goto(f"{server}/memory" + (f"?{urlencode(query)}" if query else ""))
    whole(page, pictures(query))
    return page


def pictures(values: dict[str, Any]) -> int:
    """Stage, block table and sharing; a preemption where there is one; then free blocks, or sweep and band if answered."""
    recorded = values.get("source", scenario.GENERATED) != scenario.GENERATED
    given = {key: value for key, value in values.items() if key not in (*ANSWERED, "request", "t", "guess")}
    lost = recorded or bool(scenario.preemptions(scenario.result(link.decode({"v": "1", **given}, scenario.KNOBS).values)))
    return 3 + lost + (1 if recorded else 2 if "guess" in values else 0)


def holders(page: Page, axis: str) -> set[int]:
    """The requests whose tokens lie in an address space of the stage as it is drawn."""
    (tokens,) = (t for t in picture(page, "stage")["data"] if t["name"] == "tokens" and t["yaxis"] == axis)
    return {row[0] for row in tokens["customdata"] if row[0] >= 0}


def in_memory(key: str, at_ms: float, values: dict[str, Any] | None = None) -> set[int]:
    """The requests that hold memory then; without preemptions."""
    run = scenario.result(values or {}).runs[key]
    return {r for r in range(len(run)) if run.admitted_us[r] <= 1000 * at_ms < run.finished_us[r]}


# --- what is seen first -------------------------------------------------------------------------------------------------


def test_the_first_screen_holds_question_main_knobs_stage_and_the_sentence_of_difference(server: str, page: Page) -> None:
    opened(page, server)
    parts = {"menu": page.get_by_role("link", name="Memory", exact=True), "question": page.locator(".prose"),
             "allocator": box(page, "other"), "memory": box(page, "memory"), "sentence": headline(page),
             "stage": box(page, "stage").locator(".js-plotly-plot")}
    for what, part in parts.items():
        place = part.bounding_box()
        assert place is not None, what
        assert place["y"] >= 0 and place["y"] + place["height"] <= 800, (what, place)
        assert place["x"] >= 0 and place["x"] + place["width"] <= 1280, (what, place)
    expect(headline(page)).to_contain_text("the last reply comes")


def test_the_largest_waste_is_outlined_before_anything_is_touched(server: str, page: Page) -> None:
    opened(page, server)
    figure = picture(page, "stage")
    waste = [(length, base, row) for trace in figure["data"]
             if trace["type"] == "bar" and trace["yaxis"] == "y3" and trace["name"] in ("never filled", "cannot be given")
             for length, base, row in zip(trace["x"], trace["base"], trace["y"], strict=True)]
    length, base, row = max(waste)  # a row of it, whole
    frames = [frame for frame in shapes(page, "stage", "largest") if frame["yref"] == "y3"]
    assert all(frame["visible"] for frame in frames)
    assert any((frame["x0"], frame["x1"]) == (base, base + length) and frame["y0"] < row < frame["y1"] for frame in frames)
    size = sum(frame["x1"] - frame["x0"] for frame in frames)
    expect(box(page, "stage").locator(".annotation", has_text=f"{size:,}").first).to_be_visible()


def test_every_preset_shows_its_picture_and_what_to_watch_for(server: str, page: Page) -> None:
    opened(page, server, **ANSWERED)
    for preset in scenario.PRESETS[1:]:
        page.get_by_role("radio", name=preset.name, exact=True).click()
        expect(box(page, "watch").filter(has_text=preset.watch[:40])).to_be_visible()
        expect(headline(page)).to_contain_text(story.headline(scenario.result(preset.values)))
        whole(page, pictures({**ANSWERED, **preset.values}))
        expect(page.get_by_test_id("stException")).to_have_count(0)


# --- knobs --------------------------------------------------------------------------------------------------------------


def test_a_slider_moves_stage_sentence_sweep_and_band_together(server: str, page: Page) -> None:
    opened(page, server, **ANSWERED, memory="7850")
    before = {what: picture(page, what)["data"] for what in ("stage", "sweep", "band")}
    pressed(page, "memory")
    moved = {"memory": 11_000}
    expect(headline(page)).to_contain_text(story.headline(scenario.result(moved)))
    assert query(page)["memory"] == "11000"
    expect(box(page, "stage").locator(".annotation", has_text="5 of 40 at once")).to_be_visible()  # 11,000 / 2,048 = 5.4
    for what, data in before.items():
        assert picture(page, what)["data"] != data, what
    assert holders(page, "y3") and max(holders(page, "y3")) < 40


def test_another_second_allocator_takes_its_place_on_the_stage(server: str, page: Page) -> None:
    opened(page, server, **ANSWERED)
    box(page, "other").get_by_role("combobox").click()
    page.get_by_role("option", name="Orca (Oracle)").click()
    expect(headline(page)).to_contain_text(story.headline(scenario.result({"other": scenario.ORACLE})))
    expect(box(page, "stage").locator(".annotation", has_text="Orca (Oracle)").first).to_be_visible()
    expect(slider(page, "off")).to_be_enabled()
    expect(slider(page, "block")).to_be_disabled()


def test_a_set_up_that_cannot_be_is_said_and_mended(server: str, page: Page) -> None:
    opened(page, server, **ANSWERED, memory="4096", longest="4096")
    slider(page, "longest").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("alert")).to_contain_text("Maximum length 8,192: a memory of 4,096 tokens has no piece that large")
    at_rest(page)
    slider(page, "longest").focus()
    page.keyboard.press("ArrowLeft")
    whole(page, 6)  # somebody is preempted in so small a memory
    slider(page, "memory").focus()  # and by the knob above the stage
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("alert")).to_contain_text("a memory of 3,000 tokens has no piece that large")
    at_rest(page)
    slider(page, "memory").focus()
    page.keyboard.press("ArrowRight")
    whole(page, 6)


def test_a_committed_prediction_is_answered(server: str, page: Page) -> None:
    opened(page, server)
    expect(box(page, "sweep")).to_have_count(0)
    assert len(holders(page, "y3")) == 1  # the others would tell
    page.get_by_role("spinbutton", name="Predict first").fill("12")
    page.keyboard.press("Enter")
    expect(box(page, "prediction")).to_contain_text("it is 7, you said 12")
    whole(page, 5)
    assert len(holders(page, "y3")) == 7
    assert query(page)["guess"] == "12"


# --- links --------------------------------------------------------------------------------------------------------------


def test_a_link_restores_every_value_the_selected_request_and_the_cursor(server: str, page: Page) -> None:
    values = {
        "other": "Orca (Pow2)", "memory": 11_000, "block": 64, "longest": 1024, "off": 0.4, "preempt": "swap", "requests": 31,
        "mean": "Alpaca", "spread": 0.5, "arrivals": "Poisson", "rate": 4.0, "seed": 9, "prefix": 128, "samples": 3, "beams": 6,
        "fit": "what fits", "model": "Llama-3-8B", "gpu": "H100", "source": "generated",
    }  # fmt: skip
    state = link.State(values, selected=4, cursor=500.0, guess=9.0, view={"over": "rate"})
    opened(page, server, **link.encode(scenario.KNOBS, state))
    assert query(page) == link.encode(scenario.KNOBS, state)
    expect(page.get_by_role("combobox", name="Request", exact=True)).to_have_value("Request 5")
    expect(box(page, "life")).to_contain_text("Request 5")
    assert {(s["x0"], s["visible"]) for s in shapes(page, "stage", "cursor")} == {(500, True)}
    assert holders(page, "y3") == in_memory("reserved", 500, values)
    expect(page.get_by_text("do not fit")).to_have_count(0)


# --- the time cursor ----------------------------------------------------------------------------------------------------


def test_the_time_cursor_moves_without_the_server_and_on_release_both_memories_are_drawn_as_they_were(
    server: str, page: Page
) -> None:
    sent = frames(page)
    opened(page, server, **ANSWERED)
    first = {axis: holders(page, axis) for axis in ("y3", "y4")}
    before = len(sent)
    dragged(page, 0.45)
    wait_for_shape(page, "stage", "cursor", "shape.visible && shape.x0 > 15000")
    at = float(cursor(page).input_value())
    there = in_memory("reserved", at)
    expect(who_is_where(page).get_by_role("row", name="In memory").get_by_role("cell").first).to_have_text(
        f"{len(there)}: {', '.join(str(r + 1) for r in sorted(there))}")
    assert len(sent) == before and holders(page, "y3") == first["y3"]
    page.mouse.up()
    page.wait_for_url(re.compile(r"[?&]t="))
    words = f"at {duration(at / 1000)}"
    page.wait_for_function(
        "words => document.querySelector('.st-key-memory-stage .js-plotly-plot').layout.annotations.some(a => a.text === words)",
        arg=words)
    at_rest(page)
    assert float(query(page)["t"]) == at
    assert holders(page, "y3") == there != first["y3"]
    assert holders(page, "y4") == in_memory("other", at) != first["y4"]
    shown = {shape["x0"] for shape in shapes(page, "stage", "cursor")}
    assert shown == {at}


# --- the selected request ---------------------------------------------------------------------------------------------


def test_a_click_on_a_request_selects_it_everywhere_and_shows_its_block_table(server: str, page: Page) -> None:
    opened(page, server, **ANSWERED)
    words = box(page, "stage").locator(".js-plotly-plot .textpoint text", has_text=re.compile("^9$")).first
    words.scroll_into_view_if_needed()
    place = words.bounding_box()
    assert place is not None
    page.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    expect(page.get_by_role("combobox", name="Request", exact=True)).to_have_value("Request 9")
    expect(box(page, "life")).to_contain_text("Request 9 (")
    at_rest(page)
    assert query(page)["request"] == "9"
    chosen = [trace for trace in picture(page, "stage")["data"] if trace["name"] == "selected" and trace["x"]]
    assert {trace["yaxis"] for trace in chosen} == {"y3", "y4"}
    expect(box(page, "table").locator(".annotation", has_text="request 9:")).to_have_count(2)
    # Logical blocks above, physical ones below: as many slots filled in the one as in the other.
    for axis in ("y", "y2"):
        bars = [t for t in picture(page, "table")["data"] if t["type"] == "bar" and t["yaxis"] == axis and t["name"] == "tokens"]
        assert bars and all(len(t["y"]) and t["y"].count(0) == t["y"].count(1) for t in bars)


# --- preemption, step by step -------------------------------------------------------------------------------------------


def test_one_preemption_is_watched_step_by_step(server: str, page: Page) -> None:
    opened(page, server, **THRASH)
    result = scenario.result({"memory": 2048})
    scenes = story.preempted(result, 0)
    for scene in scenes:
        page.get_by_role("radio", name=scene.name, exact=True).click()
        expect(box(page, "scene")).to_contain_text(scene.words)
    page.get_by_role("radio", name="The step", exact=True).click()
    expect(box(page, "scene")).to_contain_text(scenes[1].words)
    at_rest(page)
    page.get_by_role("button", name="Show this moment on the stage").click()
    page.wait_for_url(re.compile(r"[?&]t="))
    assert float(query(page)["t"]) == pytest.approx(scenes[1].at_us / 1000, abs=0.001)
    page.wait_for_function("() => { const r = document.querySelector('.st-key-memory-stage').getBoundingClientRect();"
                           " return r.top >= 0 && r.top < innerHeight; }")
    at_rest(page)
    assert scenario.preemptions(result)[0].request not in holders(page, "y4")
    assert float(cursor(page).get_attribute("aria-valuetext").replace(" ms", "").replace(",", "")) == pytest.approx(
        scenes[1].at_us / 1000, abs=1)


# --- recordings ---------------------------------------------------------------------------------------------------------


def dropped(page: Page, name: str, content: bytes) -> None:
    page.get_by_test_id("stFileUploaderDropzoneInput").set_input_files(
        [{"name": name, "mimeType": "application/json", "buffer": content}])


def test_a_recording_of_vllm_s_scheduler_shows_the_same_free_blocks_and_bad_files_are_refused_with_their_place(
    server: str, page: Page
) -> None:
    opened(page, server, **ANSWERED)
    good = scenario.RECORDING_FILE.read_bytes()
    top = json.loads(gzip.decompress(good))
    free = [step["free"] for step in top["output"]["steps"] if step["k"] is not None]
    top["input"]["trace"][2]["prompt_len"] = "many"
    dropped(page, "bad.json", json.dumps(top).encode())
    expect(page.get_by_role("alert")).to_contain_text("input.trace[2].prompt_len")
    expect(page.get_by_role("alert")).to_contain_text("Nothing of it was loaded")

    dropped(page, "mine.json.gz", good)
    expect(page.get_by_text("mine.json.gz: 24 requests, 100 blocks of 16")).to_be_visible()
    expect(box(page, "given")).to_contain_text("100 blocks of 16")
    expect(box(page, "memory")).to_have_count(0)  # what is not the recording's is not shown
    expect(box(page, "recorded_words")).to_contain_text(f"In all {len(free)} steps")
    whole(page, 5)
    theirs = next(trace for trace in picture(page, "recorded")["data"] if trace["name"] == "recorded")
    ours = next(trace for trace in picture(page, "recorded")["data"] if trace["name"] != "recorded")
    assert theirs["y"] == ours["y"] and len(theirs["y"]) == len(free) == 507 and theirs["y"] == free
    mine = picture(page, "stage")["data"]

    for name, content, place in (("cut.json.gz", good[:-30], "cut off"), ("text.json", b"a,b\n", "line 1")):
        dropped(page, name, content)
        error = page.get_by_role("alert").filter(has_text=place)
        expect(error).to_contain_text("Still in use: mine.json.gz")
        at_rest(page)
        assert picture(page, "stage")["data"] == mine


# --- the keyboard -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_that_matters_can_be_done_from_the_keyboard(
    scheme: str, server: str, open_context: Callable[..., BrowserContext]
) -> None:
    page = opened(open_context(color_scheme=scheme).new_page(), server)
    tabbed(page, "Predict first")
    page.keyboard.type("9")
    page.keyboard.press("Enter")
    expect(box(page, "prediction")).to_contain_text("you said 9")
    whole(page, 5)
    tabbed(page, "KV memory (tokens)")
    page.keyboard.press("ArrowRight")
    expect(headline(page)).to_contain_text(story.headline(scenario.result({"memory": 22_000})))
    whole(page, 5)
    tabbed(page, "Request")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(box(page, "life")).to_contain_text(re.compile(r"Request \d+ \(\d"))
    at_rest(page)
    tabbed(page, "Time cursor")
    before, step = float(cursor(page).input_value()), float(cursor(page).get_attribute("step") or 0)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    at = float(cursor(page).input_value())
    assert step < at - before <= 2 * step  # the instant that is shown first need not lie on the grid
    page.wait_for_url(lambda url: parse_qs(urlsplit(url).query).get("t") == [encoded(at)])
    at_rest(page)
    tabbed(page, scenario.PRESETS[0].name)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    expect(box(page, "watch")).to_contain_text(scenario.PRESETS[1].watch[:40])


# --- a phone ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_at_375_pixels_nothing_pushes_the_page_sideways(
    scheme: str, server: str, open_context: Callable[..., BrowserContext]
) -> None:
    page = open_context(viewport={"width": 375, "height": 812}, color_scheme=scheme).new_page()
    opened(page, server, **THRASH, request="9", t="20000")
    for twin in page.get_by_text("The same as a table").all():
        twin.click()
    expect(page.get_by_test_id("stDataFrame")).to_have_count(6)
    at_rest(page)
    assert sideways(page) == []


# --- take away ----------------------------------------------------------------------------------------------------------


def test_what_is_taken_away_is_what_is_on_the_screen(server: str, page: Page) -> None:
    opened(page, server, **THRASH)
    result = scenario.result({"memory": 2048})
    name, content = saved(page, "Requests (CSV)")
    assert name == "stepwise-memory.csv" and content.decode() == story.requests_csv(result)
    name, content = saved(page, "Trace for Perfetto (JSON)")
    assert name == "stepwise-memory.json" and json.loads(content) == json.loads(story.chrome_trace(result))
    name, content = saved(page, "PNG of the timelines")
    size = box(page, "stage").locator(".js-plotly-plot").evaluate("plot => [plot.clientWidth, plot.clientHeight]")
    assert name == "stepwise-memory.png" and content.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", content[16:24]) == tuple(2 * side for side in size)  # twice as sharp as the screen
    expect(page.get_by_test_id("stCode")).to_have_text(story.python_lines({"memory": 2048}).strip())
    assert page.get_by_label("Link to this page as it stands").input_value() == page.url


# --- found by a breaker -------------------------------------------------------------------------------------------------


def test_another_seed_is_in_the_field_and_in_the_address(server: str, page: Page) -> None:
    opened(page, server, **ANSWERED)
    page.get_by_role("button", name="Re-roll the seed").click()
    page.wait_for_url(lambda url: parse_qs(urlsplit(url).query).get("seed", ["1"]) != ["1"])
    at_rest(page)
    seed = query(page)["seed"]
    expect(page.get_by_label("Seed", exact=True)).to_have_value(seed)
    expect(headline(page)).to_contain_text(story.headline(scenario.result({"seed": int(seed)})))


def test_a_list_of_preemptions_that_shrinks_does_not_lose_the_page(server: str, page: Page) -> None:
    opened(page, server, **ANSWERED, memory="2048")
    box(page, "preemptions")
    page.get_by_label("Preemption", exact=True).click()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    at_rest(page)
    for _ in range(3):
        pressed(page, "spread")
    expect(page.get_by_test_id("stException")).to_have_count(0)
    expect(page.get_by_text("This app has encountered an error")).to_have_count(0)
