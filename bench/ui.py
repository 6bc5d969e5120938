"""How long a slider press takes until the new picture is there, beside a bare Streamlit page that draws a ready-made one."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import Browser, BrowserContext, Page, TimeoutError, sync_playwright

from bench.report import Goal, Row, hush, say
from explainers.kit.knobs import Knob, Value
from sim.cli.text import number, table
from tools import chromium

ROOT = Path(__file__).resolve().parents[1]
WATCH = Path(__file__).with_name("watch.js")

PRESSES, LOADS = 20, 7
WAIT_MS = 30_000
QUIET_S = 0.4  # nothing more is drawn for so long: the page has come to rest
MOST = {"stage and headline": 1.5, "sweep strip": 3.0, "seed band": 3.0, "first load": 1.3}
"""How many times the bare page's time each may take (DESIGN.md, "How fast")."""


@dataclass(frozen=True)
class Lesson:
    """A lesson to measure. Its figures and words come from its own rooms, explainers/<key>/.

    key    its address and folder
    name   what it is called in the results
    knob   its main knob: a slider
    runs   for each fresh page, its other values and the knob's value to start from
    steps  presses to the right on each; all change the picture and the headline. The first is not counted
    later  what may follow the stage: name in MOST → its container on the page
    opens  values of the first load, where they are not the defaults
    """

    key: str
    name: str
    knob: str
    runs: tuple[tuple[dict[str, Any], int], ...]
    steps: int
    later: dict[str, str]
    opens: dict[str, Any] = field(default_factory=dict)


LESSONS = (
    Lesson("batching", "batching", "slots", tuple(({"seed": seed}, 2) for seed in (11, 12, 13, 14)), 6,
           {"sweep strip": "sweep", "seed band": "band"}),
    *(Lesson("memory", f"memory, {n} requests", "memory", tuple(({"seed": k, "requests": n}, 2_048) for k in (11, 12, 13, 14)), 6,
             {"sweep strip": "sweep", "seed band": "band"}, {"requests": n}) for n in (40, 400)),
    Lesson("lifecycle", "life of one request", "tokens", tuple(({"seed": k}, 101) for k in (11, 12, 13, 14)), 6,
           {"sweep strip": "sweep", "seed band": "band"}),
    Lesson("chunked_prefill", "chunked prefill", "budget", tuple(({"seed": k}, 96) for k in (11, 12, 13, 14)), 6,
           {"sweep strip": "sweep", "seed band": "band"}),
    Lesson("routing", "routing", "cache", tuple(({"seed": k}, 8_192) for k in (18, 19, 21, 30)), 6,
           {"sweep strip": "sweep", "seed band": "band"}),
    Lesson("preemption", "preemption", "memory", tuple(({"seed": k, "requests": 40}, 1_024) for k in (11, 12, 13, 14)), 6,
           {"sweep strip": "sweep", "seed band": "band"}),
)  # fmt: skip


def main() -> tuple[list[Row], bool]:
    """Measure every lesson and print it; the rows, and whether every goal is met."""
    path = chromium.find()
    if path is None:
        raise SystemExit(chromium.MISSING)
    rows: list[Row] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=chromium.flags())
        for lesson in LESSONS:
            rows += measure(lesson, browser)
        browser.close()
    hush()
    print(f"Median of {PRESSES} presses of the main slider and of {LOADS} first loads, lesson and bare page in turn\n")
    cells = [[r["lesson"], r["what"], *(number(r[key], 3) for key in ("median_ms", "bare_ms", "ratio"))] for r in rows]
    print(table([["lesson", "what", "ms", "bare page, ms", "ratio"], *cells], left=2) + "\n")
    goals = [Goal(f"{r['lesson']}: {r['what']}, times the bare page", r["ratio"], at_most=MOST[r["what"]]) for r in rows]
    print("\n".join(map(str, goals)))
    return rows, all(goal.met for goal in goals)


def measure(lesson: Lesson, browser: Browser) -> list[Row]:
    """The rows of one lesson: both servers at once, a press here, a press there."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "figures.json")
        sizes = write_ready_made(lesson, made)
        with served(ROOT / "app.py") as ours, served(Path(__file__).with_name("bare_page.py"), str(made)) as bare:
            pressed = presses(lesson, browser, ours, bare)
            loaded = loads(lesson, browser, ours, bare)
    print(f"{lesson.name}: stage figures of {min(sizes):,} to {max(sizes):,} JSON bytes, the same ones on the bare page")
    bare_ms = statistics.median(pressed["bare"])
    rows = [row(lesson, what, pressed[what], bare_ms) for what in ("stage and headline", *lesson.later)]
    return [*rows, row(lesson, "first load", loaded["ours"], statistics.median(loaded["bare"]))]


def row(lesson: Lesson, what: str, ms: list[float], bare_ms: float) -> Row:
    """The JSON row of one thing measured."""
    median = statistics.median(ms)
    return {"lesson": lesson.name, "what": what, "median_ms": median, "bare_ms": bare_ms, "ratio": median / bare_ms}


def write_ready_made(lesson: Lesson, file: Path) -> list[int]:
    """The stage and the headline of every press, for the bare page in the order of the presses; the figures' JSON bytes."""
    rooms = [import_module(f"explainers.{lesson.key}.{room}") for room in ("scenario", "figures", "story")]
    scenario, figures, story = rooms
    made = []
    for values, start in lesson.runs:
        for step in range(lesson.steps + 1):
            result = scenario.result({**values, lesson.knob: moved(scenario.KNOBS, lesson.knob, start, step)})
            made.append({"figure": figures.stage(result, dark=False).figure, "headline": story.headline(result)})
    file.write_text(json.dumps(made), encoding="utf-8")
    return [len(json.dumps(one["figure"], separators=(",", ":"))) for one in made]


def moved(knobs: Sequence[Knob], key: str, start: int, step: int) -> Value:
    """The value of a knob after so many presses to the right."""
    options = next(knob.options for knob in knobs if knob.key == key)
    return start + step if options is None else options[options.index(start) + step]


def presses(lesson: Lesson, browser: Browser, ours: str, bare: str) -> dict[str, list[float]]:
    """ms from key to picture, by what; "bare" for the bare page. The first press on each fresh page is not counted."""
    own = {**first(f"{lesson.key}-"), **{what: picture(f"{lesson.key}-{name}") for what, name in lesson.later.items()}}
    plain = first("")
    found: dict[str, list[float]] = {"stage and headline": [], "bare": [], **{what: [] for what in lesson.later}}
    bare_page = opened(browser, bare, plain)
    press(bare_page, ".st-key-value", plain)
    for turn, (values, start) in enumerate(lesson.runs):
        query = urlencode({"v": 1, "guess": "skip", **values, lesson.knob: start})
        page = opened(browser, f"{ours}/{lesson.key}?{query}", own)
        for step in range(lesson.steps):
            say(f"{lesson.name}: press {step + 1} of {lesson.steps} on page {turn + 1} of {len(lesson.runs)}")
            mine = press(page, f".st-key-{lesson.key}-{lesson.knob}", own)
            theirs = press(bare_page, ".st-key-value", plain)
            if step:
                found["stage and headline"].append(max(mine["stage"], mine["headline"]))
                found["bare"].append(max(theirs.values()))
                for what in lesson.later:
                    found[what].append(mine[what])
        page.context.close()
    bare_page.context.close()
    assert all(len(times) == PRESSES for times in found.values()), "runs × (steps − 1) must be PRESSES"
    return found


def loads(lesson: Lesson, browser: Browser, ours: str, bare: str) -> dict[str, list[float]]:
    """ms from navigation to stage and headline, each with an empty browser cache, on servers that have served before."""
    found: dict[str, list[float]] = {"ours": [], "bare": []}
    query = f"?{urlencode({'v': 1, **lesson.opens})}" if lesson.opens else ""
    pages = {"ours": (f"{ours}/{lesson.key}{query}", first(f"{lesson.key}-")), "bare": (bare, first(""))}
    for turn in range(LOADS):
        for name, (address, targets) in pages.items():
            say(f"{lesson.name}: first load {turn + 1} of {LOADS}, {name}")
            page = opened(browser, address, targets)
            found[name].append(max(page.evaluate("benchWatch.times()").values()))
            page.context.close()
    return found


# ---- the browser


def picture(key: str) -> str:
    """Selector of the Plotly picture in the container with this key; explainers/kit puts each figure into one."""
    return f".st-key-{key} .js-plotly-plot"


def first(prefix: str) -> dict[str, str]:
    """What must be there for a press to count as answered."""
    return {"stage": picture(f"{prefix}stage"), "headline": f".st-key-{prefix}headline"}


def opened(browser: Browser, address: str, targets: dict[str, str]) -> Page:
    """A fresh visitor's page, at rest, with `targets` watched since before it was loaded."""
    context: BrowserContext = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(WAIT_MS)
    context.add_init_script(path=WATCH)
    context.add_init_script(f"Object.assign(benchWatch.targets, {json.dumps(targets)})")
    page = context.new_page()
    page.goto(address)
    at_rest(page, targets)
    return page


def press(page: Page, slider: str, targets: dict[str, str]) -> dict[str, float]:
    """ms from the key to the last change of each target. SystemExit if one does not change."""
    page.locator(f"{slider} input[type=range]").focus()
    page.evaluate("targets => benchWatch.start(targets)", targets)
    page.keyboard.press("ArrowRight")
    at_rest(page, targets)
    times: dict[str, float] = page.evaluate("benchWatch.times()")
    return times


def at_rest(page: Page, targets: dict[str, str]) -> None:
    """Wait until every target has changed, the script has run, and nothing has changed for QUIET_S."""
    try:
        page.wait_for_function("n => Object.keys(benchWatch.times()).length === n", arg=len(targets), polling=50)
    except TimeoutError:
        missing = ", ".join(targets.keys() - page.evaluate("benchWatch.times()").keys())
        said = " ".join(page.locator("[data-testid=stAlert], [data-testid=stException]").all_inner_texts())
        raise SystemExit(f"{page.url}: no change of {missing} within {WAIT_MS / 1000:g} s. {said}") from None
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]")
    last: dict[str, float] = {}
    while (now := page.evaluate("benchWatch.times()")) != last:
        last = now
        time.sleep(QUIET_S)


# ---- the servers


@contextmanager
def served(script: Path, *arguments: str) -> Iterator[str]:
    """A Streamlit server for this script on a free port of this machine: its address. Stopped at the end."""
    with tempfile.TemporaryDirectory() as home, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
        probe.close()
        command = [sys.executable, "-m", "streamlit", "run", str(script), f"--server.port={port}", "--server.address=127.0.0.1",
                   "--server.headless=true", "--server.fileWatcherType=none", "--", *arguments]
        environment = {**os.environ, "HOME": home, "PYTHONPATH": str(ROOT)}
        with Path(home, "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_for(f"http://127.0.0.1:{port}", process, Path(home, "log"))
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(10)


def wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until the server answers; SystemExit with its log if it does not within a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/_stcore/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit(f"a server did not start:\n{log.read_text(errors='replace')}")
