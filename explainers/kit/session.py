"""What a lesson keeps between reruns: from its link when it is opened, from its widgets after that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from explainers.kit import link
from explainers.kit.knobs import Knob, Value

PAGES = "stepwise:pages"
"""Session-state key of the menu's pages, by key of the lesson: app.py puts them there, for links from page to page."""


def name(lesson: str, what: str) -> str:
    """The session-state key of a lesson's knob."""
    return f"{lesson}:{what}"


def own(lesson: str, what: str) -> str:
    """The session-state key of what is no knob; no knob's key starts with `_`."""
    return f"{lesson}:_{what}"


def restore(lesson: str, knobs: Sequence[Knob], views: Sequence[Knob] = ()) -> link.State:
    """The state that this rerun shows. Call once, before any widget.

    The query is read when the lesson is first opened in this session, and when it is opened by a link that says so
    (link.ANEW); it is never written: components/link.js keeps the address in step. Coming back from another lesson finds the
    session's state, not a query.
    """
    kept, renewed = own(lesson, "state"), own(lesson, "renewed")
    anew = link.ANEW in st.query_params  # a link within the course; the address says so until link.js has rewritten it
    if kept not in st.session_state or (anew and not st.session_state.get(renewed)):
        st.session_state[kept] = link.decode(st.query_params.to_dict(), knobs, views)
        asked_now(lesson)
        for knob in (*knobs, *views):
            st.session_state.pop(name(lesson, knob.key), None)
    st.session_state[renewed] = anew
    state: link.State = st.session_state[kept]
    values: dict[str, Value] = {}
    for knob in knobs:
        values[knob.key] = _shown(lesson, knob, state.values[knob.key])
    view = {knob.key: _shown(lesson, knob, state.view.get(knob.key, knob.default)) for knob in views}
    if view != state.view:
        st.session_state[kept] = state = replace(state, view=view)
    if values != state.values:
        if state.guess is not None:  # it was made for another run
            st.session_state[own(lesson, "asked_before")] = True
        state = replace(state, values=values, guess=None if state.guess is None else link.SKIP)
        st.session_state[kept] = state
    return state


def _shown(lesson: str, knob: Knob, value: Value) -> Value:
    """What the knob's widget stands at; `value` where it has not been drawn yet."""
    widget = name(lesson, knob.key)
    if widget not in st.session_state:
        st.session_state[widget] = value
    return knob.fit(st.session_state[widget])[0]


def asked_before(lesson: str) -> bool:
    """Whether the prediction was asked for other values than now."""
    return bool(st.session_state.get(own(lesson, "asked_before"), False))


def asked_now(lesson: str) -> None:
    """The prediction is asked, or answered, for the values as they are now. For callbacks."""
    st.session_state[own(lesson, "asked_before")] = False


def current(lesson: str) -> link.State:
    """The state as it is now; for callbacks and fragments, whose arguments may be older."""
    state: link.State = st.session_state[own(lesson, "state")]
    return state


def change(lesson: str, **fields: Any) -> None:
    """Replace fields of the state (not its values). For callbacks, and before what shows them."""
    st.session_state[own(lesson, "state")] = replace(current(lesson), **fields)


def put(lesson: str, values: Mapping[str, Value]) -> None:
    """Set knobs. For callbacks: a widget's value cannot change once it is drawn."""
    for key, value in values.items():
        st.session_state[name(lesson, key)] = value
