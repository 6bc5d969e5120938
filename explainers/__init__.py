"""PATH: the lessons in order. A new lesson is a folder with its four files, and one line here."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A lesson on the path: `key` is its address (/key) and its folder, `title` its name in the menu."""

    key: str
    title: str


PATH = (
    Entry("batching", "Static or continuous batching"),
    Entry("memory", "Reserve or page the memory"),
)
