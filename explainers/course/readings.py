"""What to read, in order, from assets/readings.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

from explainers import LEVELS

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
    """In order. ValueError names the entry, what is wrong with it, and what it must be."""
    return read(json.loads(FILE.read_text(encoding="utf-8")))


def read(entries: Sequence[Mapping[str, object]]) -> tuple[Reading, ...]:
    """The entries of the file as readings, in order. ValueError as above."""
    for i, entry in enumerate(entries, start=1):
        for problem in _problems(entry):
            raise ValueError(f"readings.json, entry {i} ({entry.get('title', 'no title')}): {problem}")
    found = sorted((Reading(**entry) for entry in entries), key=lambda r: r.order)  # type: ignore[arg-type]
    if [r.order for r in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"readings.json: the orders must be 1 to {len(found)}, each once")
    if [r.level for r in found] != sorted(r.level for r in found):
        raise ValueError("readings.json: a reading of a lower level must not come after one of a higher")
    return tuple(found)


def _problems(entry: Mapping[str, object]) -> Iterator[str]:
    """What is wrong with an entry, the first thing first."""
    kinds = {field.name: int if field.type == "int" else str for field in fields(Reading)}
    if wrong := sorted(set(kinds) ^ set(entry)):
        yield f"{', '.join(wrong)} missing or unknown"
        return
    for name, kind in kinds.items():
        if type(entry[name]) is not kind or entry[name] == "":
            yield f"{name} must be {'a whole number' if kind is int else 'text'}, not {entry[name]!r}"
            return
    if entry["level"] not in range(1, len(LEVELS) + 1):
        yield f"level must be from 1 to {len(LEVELS)}, not {entry['level']}"
    if not str(entry["url"]).startswith("https://"):
        yield f"url must begin with https://, not {entry['url']!r}"
