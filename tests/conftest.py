"""What all tests share: whether there is a browser, where the public traces are, and how Hypothesis runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import settings

from tools import chromium

ROOT = Path(__file__).resolve().parents[1]
CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")

# No deadline: a test counts work, not seconds. In CI the same examples at every run: a red one is then the change's own.
settings.register_profile("stepwise", deadline=None, derandomize=CI)
settings.load_profile("stepwise")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in tests/browser; skip it, with the way out, where no browser is and it is not CI."""
    browser = [item for item in items if item.path.is_relative_to(ROOT / "tests" / "browser")]
    for item in browser:
        item.add_marker(pytest.mark.browser)
    if not browser or CI:
        return
    try:
        found = chromium.find()
    except FileNotFoundError as error:
        raise pytest.UsageError(str(error)) from None
    if found is None:
        for item in browser:
            item.add_marker(pytest.mark.skip(reason=chromium.MISSING))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a browser test that skips itself has failed: nobody would see that the page was not looked at."""
    report = yield
    if CI and report.skipped and item.get_closest_marker("browser") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"a browser test may not be skipped in CI: {reason}"
    return report


@pytest.fixture(scope="session")
def shared() -> Callable[[str], Path]:
    """`shared("traces/….csv")`: the file in ../shared, or a skip that says so where that folder is absent."""

    def path(name: str) -> Path:
        file = ROOT.parent / "shared" / name
        if not file.exists():
            pytest.skip(f"{file} is absent: this test reads it where the project's shared folder stands beside the clone")
        return file

    return path
