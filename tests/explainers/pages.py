"""A lesson's page without a browser, as the tests of all lessons open and read it."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

STEPS = 60  # seconds that a run of the page may take on a loaded machine


def first_screen(lesson: str, **query: str) -> AppTest:
    """The first screen of a lesson at this link. AppTest opens no address but the hub's, so the page is called by itself."""
    page = AppTest.from_string(f"from explainers.{lesson}.page import page\npage()\n", default_timeout=STEPS)
    page.query_params.update(query)
    return page.run()


def opened(lesson: str, **query: str) -> AppTest:
    """The whole page. In a browser the rest is asked for when the first screen is drawn; here a rerun asks for it."""
    return first_screen(lesson, **query).run()


def words(page: AppTest) -> str:
    """All that the page says in sentences."""
    return "\n".join(str(part.value) for part in [*page.markdown, *page.caption, *page.error, *page.warning, *page.info])
