"""Which lessons a visitor has done: kept in the visitor's own browser, read once a session, no account."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import streamlit as st

from explainers.kit import components

_DONE, _MARK, _WIDGET = "stepwise:done", "stepwise:done:mark", "stepwise:progress"


def done() -> frozenset[str]:
    """Keys of the lessons that are done, as far as the browser has told."""
    return frozenset(st.session_state.get(_DONE, ()))


def keep(known: Sequence[str], redraw: Callable[[], None] | None = None) -> None:
    """Read what the browser keeps and write what was marked; draws nothing. `redraw` is called when it told something new.

    known  keys of the lessons there are; what else the browser has kept is not believed
    """

    def told() -> None:
        found = st.session_state[_WIDGET]["done"]
        st.session_state[_DONE] = [key for key in known if isinstance(found, list) and key in found]
        if redraw:
            redraw()

    components.progress(list(known), sorted(done(), key=list(known).index), st.session_state.get(_MARK), _WIDGET, told)


def mark(key: str, is_done: bool) -> None:
    """Callback: this lesson is done, or not; the next `keep` writes it to the browser."""
    st.session_state[_DONE] = sorted((done() - {key}) | ({key} if is_done else set()))
    st.session_state[_MARK] = {"id": secrets.token_hex(8), "key": key, "done": is_done}
