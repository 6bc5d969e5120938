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


@dataclass(frozen=True)
class Word:
    """A word as it is told on a page: its name, what it is, what it is not, and its key in the glossary (both may be empty)."""

    name: str
    short: str
    not_: str = ""
    key: str = ""


@lru_cache(maxsize=16)
def spelled(own: tuple[tuple[str, str], ...] = ()) -> Mapping[str, Word]:
    """Every spelling, in small letters, and its word: told as `own` (names, sentence) tells it, if that does."""
    found = {form.lower(): Word(term.term, term.short, term.not_, term.key)
             for term in terms() for form in (term.term, *term.aliases)}
    for names, sentence in own:
        for name in names.lower().split(", "):
            known = found.get(name, Word("", ""))
            word = Word(names, sentence, known.not_, known.key)
            forms = [form for form, other in found.items() if known.key and other.key == known.key]
            found |= dict.fromkeys(forms or [name, f"{name}s"], word)
    return found


@lru_cache(maxsize=16)
def _pattern(own: tuple[tuple[str, str], ...]) -> re.Pattern[str]:
    """All spellings, the longest first; whole words only."""
    words = sorted(spelled(own), key=len, reverse=True)
    return re.compile(r"(?<![\w-])(" + "|".join(map(re.escape, words)) + r")(?![\w-])", re.IGNORECASE)


def pieces(texts: Sequence[str], own: tuple[tuple[str, str], ...] = ()) -> list[list[tuple[str, Word | None]]]:
    """Each text cut up into (piece, the word that it is), in full; a word counts at its first use in all of them."""
    seen: set[str] = set()
    cut: list[list[tuple[str, Word | None]]] = []
    for text in texts:
        at, found = 0, []
        for match in _pattern(own).finditer(text):
            word = spelled(own)[match.group().lower()]
            if word.name not in seen:
                seen.add(word.name)
                found += [(text[at:match.start()], None), (match.group(), word)]
                at = match.end()
        cut.append([(piece, word) for piece, word in (*found, (text[at:], None)) if piece])
    return cut


def first_uses(texts: Sequence[str]) -> list[Word]:
    """The words of the glossary that the texts use, in the order of their first use, each once."""
    return [word for text in pieces(texts) for _, word in text if word]


def matching(asked: str) -> list[Term]:
    """The terms whose name, spelling or sentence holds what was asked for; all for nothing."""
    wanted = asked.strip().lower()
    return [t for t in terms() if wanted in " ".join((t.term, *t.aliases, t.short, t.not_)).lower()]
