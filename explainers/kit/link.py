"""The versioned link: a lesson's whole state as the query of its address, and back, whatever the query holds."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import urlencode

from explainers.kit.knobs import Knob, Value, defaults, encoded
from explainers.kit.text import clip

VERSION = 1  # raised when an old link would mean something else; then `decode` translates what it can
ANEW: Final = "new"  # in a link from page to page: it means what it says, whatever the lesson was left at
OURS = frozenset({"v", "request", "t", "hide", "guess", ANEW})
STREAMLITS = frozenset({"embed", "embed_options"})  # read by Streamlit itself; the address keeps them (components/link.js)
SKIP: Final = "skip"  # in place of a prediction
HIDEABLE = frozenset({"presets", "prediction", "upload", "quiz"})  # what a link may hide besides knobs
MOST_NOTES = 8  # a hostile link may hold thousands of unknown keys
LATEST_MS = 1e9  # of the cursor: eleven days


@dataclass(frozen=True)
class State:
    """What a link restores.

    values    every knob's key → a value it allows
    selected  index of the clicked request (0-based; the link and the page say it 1-based), None: none
    cursor    the time cursor, ms, None: not placed
    guess     the committed prediction, SKIP: passed over, None: not yet
    view      what is chosen on the page beside the run, such as what a sweep goes over: key → value
    hidden    keys of knobs that a teacher's link hides, and of HIDEABLE parts of the page
    notes     what did not fit and what was used instead; plain text, clipped, not escaped for Markdown
    """

    values: Mapping[str, Value]
    selected: int | None = None
    cursor: float | None = None
    guess: float | Literal["skip"] | None = None
    view: Mapping[str, Value] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def encode(knobs: Sequence[Knob], state: State) -> dict[str, str]:
    """The query that `decode` turns back into `state` (its notes excepted): the version, every value, the view."""
    query = {"v": str(VERSION)}
    query |= {knob.key: encoded(state.values[knob.key]) for knob in knobs}
    query |= {key: encoded(value) for key, value in state.view.items()}
    if state.selected is not None:
        query["request"] = str(state.selected + 1)
    if state.cursor is not None:
        query["t"] = encoded(round(float(state.cursor), 3))
    if state.guess is not None:
        query["guess"] = SKIP if state.guess == SKIP else encoded(float(state.guess))
    if state.hidden:
        query["hide"] = ",".join(sorted(state.hidden))
    return query


def text(knobs: Sequence[Knob], state: State) -> str:
    """`encode` as it stands behind the `?` of an address."""
    return urlencode(encode(knobs, state))


def decode(query: Mapping[str, str], knobs: Sequence[Knob], views: Sequence[Knob] = ()) -> State:
    """The state a query asks for. Never raises: what is missing takes its default, what does not fit is adjusted.

    views  the knobs of `State.view`
    """
    values, notes = defaults((*knobs, *views)), []
    known = {knob.key: knob for knob in (*knobs, *views)}
    if any(key in known or key in OURS for key in query):
        notes += _version_note(query.get("v"))
    for knob in known.values():
        if knob.key in query:
            values[knob.key], note = knob.fit(query[knob.key])
            notes += [note] if note else []
    selected, cursor = _request(query, notes), _number(query, "t", notes)
    guess: float | Literal["skip"] | None = SKIP if query.get("guess") == SKIP else _number(query, "guess", notes)
    hidden, unknown = _hidden(query.get("hide", ""), known)
    notes += [f"hide: “{clip(key, 24)}” is no control of this lesson" for key in unknown]
    notes += [
        f"“{clip(key, 24)}” is no setting of this lesson; it is ignored"
        for key in query
        if key not in known and key not in OURS and key not in STREAMLITS
    ]
    if len(notes) > MOST_NOTES:
        notes[MOST_NOTES - 1 :] = [f"and {len(notes) - MOST_NOTES + 1} more that do not fit"]
    return State(
        values={knob.key: values[knob.key] for knob in knobs},
        view={knob.key: values[knob.key] for knob in views},
        selected=selected,
        cursor=cursor,
        guess=guess,
        hidden=hidden,
        notes=tuple(notes),
    )


def _version_note(version: str | None) -> list[str]:
    if version == str(VERSION):
        return []
    if version is None:
        return [f"the link does not say its version; it is read as version {VERSION}"]
    return [f"the link is of version “{clip(version, 12)}”, this page reads version {VERSION}; what fits is used"]


def _hidden(listed: str, known: Mapping[str, Knob]) -> tuple[frozenset[str], list[str]]:
    """Keys to hide, and those that are not ours (at most MOST_NOTES of them)."""
    keys = [key.strip() for key in listed[:1000].split(",") if key.strip()]
    allowed = set(known) | HIDEABLE
    return frozenset(keys) & allowed, [key for key in dict.fromkeys(keys) if key not in allowed][:MOST_NOTES]


def _number(query: Mapping[str, str], key: str, notes: list[str]) -> float | None:
    """A non-negative number up to LATEST_MS, or None with a note."""
    if key not in query:
        return None
    raw = query[key]
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", raw) and (number := float(raw)) <= LATEST_MS:
        return number
    notes.append(f"{key}: “{clip(raw, 24)}” is not a number from 0 to {LATEST_MS:g}; it is ignored")
    return None


def _request(query: Mapping[str, str], notes: list[str]) -> int | None:
    """The selected request's index, from its number in the link."""
    number = _number(query, "request", notes)
    if number is not None and (number < 1 or math.floor(number) != number):
        notes.append(f"request: “{clip(query['request'], 24)}” is not a request's number; it is ignored")
        return None
    return None if number is None else int(number) - 1
