"""The words of the field, each in a plain sentence, from assets/glossary.json; and which of them a text uses."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "assets" / "glossary.json"
State = Mapping[str, str | int | float | bool]


@dataclass(frozen=True)
class Term:
    """A word of the field.

    key      its address (/glossary?term=key)
    short    what it is, one sentence;  not_  what it is not
    lesson   the lesson that shows it, and `state`, the knobs' values with which it does
    aliases  other ways to write it;  see  keys of its neighbours
    """

    key: str
    term: str
    short: str
    not_: str
    lesson: str
    state: State
    aliases: tuple[str, ...]
    see: tuple[str, ...]


@lru_cache(maxsize=1)
def terms() -> tuple[Term, ...]:
    """All of them, by name. ValueError names the entry that is wrong."""
    found = []
    for i, entry in enumerate(json.loads(FILE.read_text(encoding="utf-8"))):
        missing = {"key", "term", "short", "not", "lesson", "state", "aliases", "see"} ^ set(entry)
        if missing:
            raise ValueError(f"glossary.json, entry {i + 1} ({entry.get('key', 'no key')}): {', '.join(sorted(missing))} "
                             f"missing or unknown")
        found.append(Term(entry["key"], entry["term"], entry["short"], entry["not"], entry["lesson"], entry["state"],
                          tuple(entry["aliases"]), tuple(entry["see"])))
    return tuple(sorted(found, key=lambda t: t.term.lower()))


@lru_cache(maxsize=1)
def _pattern() -> tuple[re.Pattern[str], dict[str, Term]]:
    """All spellings, the longest first, and whose they are."""
    spelled = {form.lower(): term for term in terms() for form in (term.term, *term.aliases)}
    words = sorted(spelled, key=len, reverse=True)
    return re.compile(r"(?<![\w-])(" + "|".join(map(re.escape, words)) + r")(?![\w-])", re.IGNORECASE), spelled


def first_uses(texts: Sequence[str]) -> list[Term]:
    """The terms that the texts use, in the order of their first use, each once. Whole words only."""
    pattern, spelled = _pattern()
    found = (spelled[match.group(1).lower()] for text in texts for match in pattern.finditer(text))
    return list({term.key: term for term in found}.values())


def matching(asked: str) -> list[Term]:
    """The terms whose name, spelling or sentence holds what was asked for; all for nothing."""
    wanted = asked.strip().lower()
    return [t for t in terms() if wanted in " ".join((t.term, *t.aliases, t.short, t.not_)).lower()]
