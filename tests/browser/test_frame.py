"""The course as Streamlit serves it with our settings: our colours, our host only, and nothing that a visitor should not see."""

import re
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable
from html import unescape
from importlib import import_module
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from explainers import PATH
from explainers.course.document import PAGES, head, said
from tests.browser.conftest import Seen
from tests.browser.parts import at_rest
from tests.conftest import ROOT

THEME = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())["theme"]


def rgb(colour: str) -> str:
    """#FBFAF7 as the browser writes it: rgb(251, 250, 247)."""
    return "rgb({}, {}, {})".format(*(int(colour[i : i + 2], 16) for i in (1, 3, 5)))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_asks_no_host_but_its_own_and_wears_the_theme_of_the_system(
    scheme: str, server: str, seen: Seen, open_context: Callable[..., BrowserContext]
) -> None:
    page = open_context(color_scheme=scheme).new_page()
    page.goto(server)
    expect(page.get_by_test_id("stPlotlyChart").first).to_be_visible()
    page.wait_for_load_state("networkidle")
    background = page.get_by_test_id("stApp").evaluate("element => getComputedStyle(element).backgroundColor")
    assert background == rgb(THEME[scheme]["backgroundColor"])
    assert seen.hosts == {server.removeprefix("http://")}


# For each piece of text that stands outside pictures: its contrast with what is behind it, by WCAG 2.2's formula
# (https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio), translucent colours and opacity blended. Gives those below 4.5, level AA.
FAINT = """() => {
  const rgba = css => { const n = css.match(/[\\d.]+/g).map(Number); return [n[0], n[1], n[2], n.length > 3 ? n[3] : 1]; };
  const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const linear = v => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = c => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
  const behind = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (!colour.startsWith('rgb')) continue;
      layers.push(rgba(colour));
      if (layers.at(-1)[3] === 1) break;
    }
    return layers.reduceRight((under, top) => over(top, under), [255, 255, 255, 1]);
  };
  const found = [], seen = new Set(), walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
    if (!text || seen.has(element) || !element.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
    if (element.closest('svg, .katex, [disabled], [data-testid^=stSliderT]')) continue;
    seen.add(element);
    let opacity = 1;
    for (let e = element; e; e = e.parentElement) opacity *= Number(getComputedStyle(e).opacity);
    const colour = rgba(getComputedStyle(element).color), under = behind(element);
    colour[3] *= opacity;
    const [dark, light] = [luminance(over(colour, under)), luminance(under)].sort((a, b) => a - b);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < 4.5) found.push(text.slice(0, 40) + ': ' + contrast.toFixed(2));
  }
  return {read: seen.size, found};
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("key", [entry.key for entry in PATH])
def test_text_stands_out_as_wcag_aa_asks(key: str, scheme: str, server: str, open_context: Callable[..., BrowserContext]) -> None:
    page = open_context(color_scheme=scheme).new_page()
    page.goto(f"{server}/{key}")
    expect(page.get_by_test_id("stPlotlyChart").first).to_be_visible()
    expect(page.get_by_test_id("stCode")).to_be_visible()  # a lesson ends in the lines that redo it
    expect(page.get_by_test_id("stStatusWidget")).to_have_count(0)
    faint = page.evaluate(FAINT)
    assert faint["read"] > 30
    assert faint["found"] == []


@pytest.mark.parametrize("key", [entry.key for entry in PATH])
def test_every_lesson_opens_at_its_own_address_and_is_printed_on_one_page(key: str, server: str, page: Page) -> None:
    page.goto(f"{server}/{key}?v=1&guess=skip")
    expect(page.get_by_role("heading", name="Take it away")).to_be_visible()
    expect(page).to_have_title(said(key)[0])
    story = import_module(f"explainers.{key}.story")
    expect(page.locator(".prose")).to_have_text(f"{story.QUESTION} {story.LEAD}", use_inner_text=True)
    at_rest(page)
    expect(page.get_by_test_id("stException")).to_have_count(0)
    # The handout: question, sentence, stage and numbers.
    page.emulate_media(media="print")
    assert len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4"))) == 1
    for what in (".prose", f".st-key-{key}-headline", f".st-key-{key}-stage", f".st-key-{key}-numbers"):
        expect(page.locator(what).first).to_be_visible()
    expect(page.get_by_test_id("stSlider").first).to_be_hidden()


@pytest.mark.parametrize("key", [*PAGES, *(entry.key for entry in PATH)])
def test_the_document_at_each_address_tells_a_preview_what_is_there(key: str, server: str) -> None:
    with urllib.request.urlopen(f"{server}/{key}?v=1", timeout=30) as answer:
        document = answer.read().decode()
    title, description = said(key)
    meta = dict(re.findall(r'<meta (?:property|name)="([^"]+)" content="([^"]*)">', document))
    assert unescape(re.findall(r"<title>(.*)</title>", document)[0]) == unescape(meta["og:title"]) == title
    assert unescape(meta["og:description"]) == unescape(meta["description"]) == description
    assert meta["og:url"] == f"{server}/{key}"
    with urllib.request.urlopen(meta["og:image"], timeout=30) as picture:
        assert picture.read(8) == b"\x89PNG\r\n\x1a\n"
    for code in re.findall(r'<link rel="modulepreload" crossorigin href="(\./static/js/PlotlyChart[^"]+)">', document):
        with urllib.request.urlopen(f"{server}/{code}", timeout=30) as script:
            assert script.status == 200


def test_titles_differ_and_the_tab_wears_its_own(server: str, page: Page) -> None:
    keys = [*PAGES, *(entry.key for entry in PATH)]
    assert len({said(key)[0] for key in keys}) == len({said(key)[1] for key in keys}) == len(keys)
    page.goto(f"{server}/routing")
    expect(page).to_have_title(said("routing")[0])
    page.get_by_role("link", name="Batching", exact=True).click()
    expect(page).to_have_title(said("batching")[0])


def test_a_host_name_is_no_markup() -> None:
    assert '"><script>' not in head("routing", 'http://x/"><script>alert(1)</script>/')


def test_a_visitor_sees_that_something_failed_but_not_what(serve: Callable[[Path], str], tmp_path: Path, page: Page) -> None:
    script = tmp_path / "app.py"
    script.write_text("raise ValueError('/srv/secret/path')\n")
    page.goto(serve(script))
    expect(page.get_by_test_id("stException")).to_be_visible()
    shown = page.content()
    assert "/srv/secret/path" not in shown and "ValueError" not in shown and "Traceback" not in shown


def test_an_upload_without_the_xsrf_token_is_refused(server: str) -> None:
    request = urllib.request.Request(f"{server}/_stcore/upload_file/session/file", data=b"x", method="PUT")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request, timeout=10)


def test_the_server_keeps_its_settings(serve: Callable[[Path], str], tmp_path: Path, page: Page) -> None:
    script = tmp_path / "app.py"
    script.write_text("import streamlit as st\nst.file_uploader('trace')\nst.button('primary')\n")
    page.goto(serve(script))
    expect(page.get_by_text(re.compile("20 ?MB per file"))).to_be_visible()
    expect(page.get_by_test_id("stMainMenu")).to_have_count(0)
    expect(page.get_by_text("Deploy")).to_have_count(0)
