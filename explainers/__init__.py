"""PATH: the lessons in order. A new lesson is a folder with its four files, and one line here."""

from __future__ import annotations

from typing import NamedTuple

LEVELS = ("No serving experience needed", "What the field takes for granted", "Current work")


class Entry(NamedTuple):
    """A lesson on the path.

    key      its address (/key) and its folder
    title    its name on the path
    menu     its name in the menu, short
    level    the part of the path: a place in LEVELS
    minutes  what a learner who tries things should allow for
    """

    key: str
    title: str
    menu: str
    level: int
    minutes: int


PATH = (
    Entry("lifecycle", "The life of one request", "One request", 0, 10),
    Entry("batching", "Static and continuous batching", "Batching", 0, 15),
    Entry("memory", "Reserve or page the memory", "Memory", 1, 20),
    Entry("preemption", "Preemption and who goes first", "Preemption", 1, 15),
    Entry("chunked_prefill", "Chunked prefill", "Chunked prefill", 1, 15),
    Entry("routing", "Where a request is sent", "Routing", 2, 20),
)
