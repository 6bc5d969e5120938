"""A running course, a real Chromium, and a page that remembers what went wrong and which hosts were asked."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.conftest import ROOT
from tools import chromium

START_SECONDS = 60
expect.set_options(timeout=20_000)  # ms; two busy cores are slow, and what a page shows is the fact, not how soon


@dataclass
class Seen:
    """What pages of one test did: their errors (console and uncaught), and the host:port of every request."""

    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    pytest.fail(f"the course did not start within {START_SECONDS} s:\n{log.read_text(errors='replace')}")


@pytest.fixture(scope="session")
def logs() -> dict[str, Path]:
    """What each server that runs has logged, by its address."""
    return {}


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory, logs: dict[str, Path]) -> Iterator[Callable[[Path], str]]:
    """`serve(ROOT / "app.py")` starts a Streamlit script as `make app` does, on a free port of this machine: its address.

    A home of its own keeps the settings of whoever runs the tests out of it. Stopped when the tests end.
    """
    running: list[subprocess.Popen[bytes]] = []

    def start(script: Path) -> str:
        home = tmp_path_factory.mktemp("server")
        port = _free_port()
        command = [sys.executable, "-m", "streamlit", "run", str(script), "--server.address=127.0.0.1", f"--server.port={port}"]
        command += ["--server.headless=true", "--server.fileWatcherType=none"]
        log = home / "log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, "HOME": str(home)}, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        running.append(process)
        url = f"http://127.0.0.1:{port}"
        _wait_until_healthy(url, process, log)
        logs[url] = log
        return url

    yield start
    for process in running:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.fixture(scope="session")
def server(serve: Callable[[Path], str]) -> str:
    """Address of the running course."""
    return serve(ROOT / "app.py")


@pytest.fixture(autouse=True)
def no_traceback(request: pytest.FixtureRequest, logs: dict[str, Path]) -> Iterator[None]:
    """The course raises nothing that it does not catch: visitors see no details, so the server's log is read here."""
    yield
    log = logs.get(request.getfixturevalue("server")) if "server" in request.fixturenames else None
    if log is not None:
        text = log.read_text(errors="replace")
        log.write_text("")  # the server appends: what follows is the next test's
        assert "Traceback" not in text, f"the server logged:\n{text}"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The system's Chromium; Playwright fetches none."""
    path = chromium.find()
    if path is None:
        pytest.fail(chromium.MISSING)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=chromium.flags())
        yield started
        started.close()


@pytest.fixture
def seen() -> Seen:
    """What this test's pages did; `seen.errors.clear()` after an error that the test means to cause."""
    return Seen()


@pytest.fixture
def open_context(browser: Browser, seen: Seen) -> Iterator[Callable[..., BrowserContext]]:
    """`open_context(viewport=…, color_scheme="dark", …)`: a fresh visitor, watched by `seen`.

    At the end of the test: no console error, and no host asked but this machine's own.
    """
    contexts: list[BrowserContext] = []

    def start(**options: Any) -> BrowserContext:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        context.set_default_timeout(20_000)
        context.on("request", lambda request: _note_host(seen, request.url))
        context.on("console", lambda message: _note_error(seen, message))
        context.on("weberror", lambda error: seen.errors.append(str(error.error)))
        context.on("page", lambda page: page.on("websocket", lambda socket: _note_host(seen, socket.url)))
        contexts.append(context)
        return context

    yield start
    for context in contexts:
        context.close()
    assert {host.rpartition(":")[0] for host in seen.hosts} <= {"127.0.0.1"}, f"hosts asked: {sorted(seen.hosts)}"
    assert not seen.errors, "console errors: " + "; ".join(seen.errors)


def _note_error(seen: Seen, message: ConsoleMessage) -> None:
    """On a deep link Streamlit looks for its server below the page's own path first, and Chromium reports that 404."""
    url = message.location.get("url", "")
    looking = urlsplit(url).path.count("/") > 2 and url.endswith(("/_stcore/health", "/_stcore/host-config"))
    if message.type == "error" and not looking:
        seen.errors.append(f"{message.text} ({url})")


def _note_host(seen: Seen, url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("data", "blob", "about"):
        seen.hosts.add(parts.netloc)


@pytest.fixture
def page(open_context: Callable[..., BrowserContext]) -> Page:
    """A page at 1280 × 800, watched by `seen`; go to `server` with it."""
    return open_context().new_page()
