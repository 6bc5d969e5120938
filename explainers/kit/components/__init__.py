"""What must happen in the browser: keep the address, move the time cursor, copy and save, open a word where it stands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

_FILES = Path(__file__).parents[3] / "assets" / "components"


def _read(file: str) -> str:
    return (_FILES / file).read_text(encoding="utf-8")


_link = st.components.v2.component("stepwise_link", js=_read("link.js"))
_next = st.components.v2.component("stepwise_next", js=_read("next.js"))
_scrubber = st.components.v2.component(
    "stepwise_scrubber", html=_read("scrubber.html"), css=_read("scrubber.css"), js=_read("scrubber.js")
)
_take = st.components.v2.component("stepwise_take", html=_read("take.html"), css=_read("take.css"), js=_read("take.js"))
_prose = st.components.v2.component("stepwise_prose", html=_read("prose.html"), css=_read("prose.css"), js=_read("prose.js"))
_progress = st.components.v2.component("stepwise_progress", js=_read("progress.js"))


def keep_address(query: str, turn: int, to: str, key: str) -> None:
    """Make the address say `query`, without an entry in the history; and where `turn` has grown, bring `to` into view.

    to  "top", or the key of a container
    """
    _link(key=key, data={"query": query, "turn": turn, "to": to if to == "top" else f"st-key-{to}"})


def ask_next(turn: int | None, key: str, rest: Callable[[], None]) -> None:
    """Call `rest` once the browser has drawn what came with this `turn`; None: do not."""
    _next(key=key, data={"turn": turn}, on_rest_change=rest)


def scrubber(policies: Mapping[str, Mapping[str, Any]], t: float | None, key: str, moved: Callable[[], None]) -> None:
    """The time cursor and, under it, where each request is then.

    policies  by name: {"name", "slots", and by request in ms (None: never): "arrival", "admitted", "first", "finished",
              "released"; "slot"}; or, where there are no slots to show, {"name", "end", "spans"}: [state, requests, from,
              until] for each state (scrubber.js)
    t         where the cursor stands, ms; None: not placed yet
    moved     callback; the component's state value `cursor` is then {"t": ms, "drawn": whether the figures moved}
    """
    ends = (at for p in policies.values() for at in ([p["end"]] if "end" in p else p["released"]))
    end = max((at for at in ends if at is not None), default=0.0)
    step = _nice(end / 400)
    last = math.ceil(end / step) * step
    data = {"policies": list(policies.values()), "end": round(last, 6), "step": step, "t": t}
    _scrubber(key=key, data=data, default={"cursor": None}, on_cursor_change=moved)


def prose(runs: Sequence[tuple[str, bool, int | None]], words: Sequence[Mapping[str, str]], key: str) -> None:
    """A paragraph in which words of the field open where they stand.

    runs   (text, whether it is bold, index into `words` or None: plain text), one after the other
    words  {"name", "is", "isnt", "href": where more is said, or empty}
    """
    _prose(key=key, data={"runs": list(runs), "words": list(words)})


def progress(known: Sequence[str], done: Sequence[str], mark: Mapping[str, Any] | None, key: str,
             told: Callable[[], None]) -> None:
    """Which lessons the browser remembers as done; `mark` {"id", "key", "done"}: what to remember from now on, once an id.

    told  callback; the component's state value `done` is then the list of keys
    """
    data = {"known": list(known), "done": list(done), "mark": mark}
    _progress(key=key, data=data, default={"done": list(done)}, on_done_change=told)


def take(query: str, file: str, plot: str, files: Sequence[str], made: Mapping[str, Any] | None, key: str,
         asked: Callable[[], None]) -> None:
    """The link to copy, the PNG of the figure in the container whose key is `plot`, and files that are made when asked for.

    files  labels of their buttons
    made   the one that was asked for: {"turn", "name", "kind", "content"}
    asked  callback; the component's state value `want` is then {"turn", "label"}
    """
    data = {"query": query, "file": file, "plot": f"st-key-{plot}", "files": list(files), "made": made}
    _take(key=key, data=data, default={"want": None}, on_want_change=asked)


def _nice(size: float) -> float:
    """The nearest of 1, 2, 5 times a power of ten that is not below `size`, in ms; at least 0.1."""
    if size <= 0.1:
        return 0.1
    power: float = 10.0 ** math.floor(math.log10(size))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= size * (1 - 1e-9))
