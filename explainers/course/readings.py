"""What to read, in order, from assets/readings.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "assets" / "readings.json"


@dataclass(frozen=True)
class Reading:
    """A paper, a page of documentation or a post: its place on the path, why it earns the time, and the lesson it backs.

    level  1 to 3, as explainers.LEVELS;  order  from 1 on, over all levels
    """

    level: int
    order: int
    title: str
    authors: str
    venue: str
    year: int
    url: str
    why: str
    lesson: str


@lru_cache(maxsize=1)
def readings() -> tuple[Reading, ...]:
    """In order. TypeError names a field that is missing or unknown."""
    return tuple(sorted((Reading(**entry) for entry in json.loads(FILE.read_text(encoding="utf-8"))), key=lambda r: r.order))
