"""The course as Streamlit serves it with our settings: our colours, our host only, and nothing that a visitor should not see."""

import re
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from explainers import PATH
from tests.browser.conftest import Seen
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


@pytest.mark.parametrize("key", [entry.key for entry in PATH])
def test_every_lesson_opens_at_its_own_address_without_an_error(key: str, server: str, page: Page) -> None:
    page.goto(f"{server}/{key}")
    expect(page.get_by_test_id("stPlotlyChart").first).to_be_visible()
    expect(page.get_by_test_id("stException")).to_have_count(0)


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
