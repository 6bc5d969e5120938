"""A visitor's own file: read once, kept in the visitor's session only, dropped with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Generic, Protocol, TypeVar

import streamlit as st

from explainers.kit import session
from explainers.kit.knobs import Value
from explainers.kit.text import clip, plain


class Named(Protocol):
    """What a file is read into: it keeps the file's name."""

    @property
    def name(self) -> str:
        """Of the file."""


T = TypeVar("T", bound=Named)


@dataclass(frozen=True)
class Upload(Generic[T]):
    """Where a lesson's own trace comes from: a reader, and the knobs that follow when a file is read or removed.

    kinds  endings of the files
    read   (open binary file, name) → what is in it; raises ValueError with the place that is wrong
    says   what was read, in a few words: "2,867 requests over 600 s"
    after  ends a callback by redrawing what a file changes
    """

    lesson: str
    kinds: Sequence[str]
    read: Callable[[BinaryIO, str], T]
    says: Callable[[T], str]
    when_read: Mapping[str, Value]
    when_gone: Mapping[str, Value]
    after: Callable[[], None]

    def trace(self) -> T | None:
        """What was read last, if any."""
        kept: T | None = st.session_state.get(self._id("trace"))
        return kept

    def file(self) -> str:
        """Its file's name, as the visitor's machine gave it: not escaped."""
        kept = self.trace()
        return kept.name if kept else ""

    def number(self) -> int:
        """Counts the files read in this session: part of the key under which results are cached."""
        return int(st.session_state.get(self._id("uploads"), 0))

    def draw(self, label: str) -> None:
        """The uploader, and under it what was read, or why it was not."""
        # A new key empties the uploader: there is no other way to.
        st.file_uploader(label, list(self.kinds), key=self._widget(), on_change=self._changed)
        error, trace = st.session_state.get(self._id("error")), self.trace()
        if error:
            kept = f" Still in use: {plain(self.file(), 60)}." if trace else ""
            st.error(f"{plain(error, 600)}\n\nNothing of it was loaded.{kept}")
        if trace:
            st.caption(f"{plain(self.file(), 60)}: {self.says(trace)}.")
            st.button("Forget the file", key=self._id("forget"), on_click=self._gone)
        st.caption("The file stays in this session of yours on the server that runs this page, is seen by nobody else, and is "
                   "forgotten when you close the page or tell it to forget.")

    def forget(self) -> None:
        """Drop the trace and empty the uploader. For callbacks."""
        for what in ("trace", "error"):
            st.session_state.pop(self._id(what), None)
        st.session_state[self._id("emptied")] = st.session_state.get(self._id("emptied"), 0) + 1

    def _gone(self) -> None:
        self.forget()
        session.put(self.lesson, self.when_gone)
        self.after()

    def _changed(self) -> None:
        file = st.session_state[self._widget()]
        st.session_state.pop(self._id("error"), None)
        if file is None:  # also for a moment while another file takes its place: the trace stays until it is forgotten
            return
        name = clip(file.name, 100)
        try:
            trace = self.read(file, name)
        except ValueError as error:
            st.session_state[self._id("error")] = f"{name}: {error}"
            return
        st.session_state[self._id("trace")] = trace
        st.session_state[self._id("uploads")] = self.number() + 1
        session.put(self.lesson, self.when_read)
        self.after()

    def _id(self, what: str) -> str:
        return session.own(self.lesson, f"upload_{what}")

    def _widget(self) -> str:
        return self._id(f"widget{st.session_state.get(self._id('emptied'), 0)}")
