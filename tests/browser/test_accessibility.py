"""axe-core on every page: nothing serious that is ours (WCAG 2.2 A and AA as far as its rules go)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext

from explainers import PATH
from tests.browser.parts import at_rest

PAGES = ("", *(entry.key for entry in PATH), "glossary", "readings", "proof")
# Streamlit draws the label of a control that cannot be moved in a pale colour; WCAG 1.4.3 exempts inactive controls.
INACTIVE = "span[aria-hidden=\"true\"] > "


@pytest.mark.parametrize("key", PAGES, ids=lambda key: key or "hub")
def test_axe_finds_nothing_serious(key: str, server: str, open_context: Callable[..., BrowserContext]) -> None:
    scheme = "dark" if PAGES.index(key) % 2 else "light"  # each theme on half of the pages; role colours have their own tests
    page = open_context(color_scheme=scheme).new_page()
    page.goto(f"{server}/{key}" + ("?v=1&guess=skip" if key in {entry.key for entry in PATH} else ""))
    page.get_by_role("heading").first.wait_for()
    at_rest(page)
    found: list[dict[str, Any]] = Axe().run(page).response["violations"]
    ours = [
        (v["id"], node["target"]) for v in found if v["impact"] in ("serious", "critical")
        for node in v["nodes"] if not (v["id"] == "color-contrast" and INACTIVE in str(node["target"]))
    ]
    assert ours == []
