"""What the benchmarks print: progress to a terminal, and each goal beside what was measured."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
"""One row of the JSON list that --json writes."""


@dataclass(frozen=True)
class Goal:
    """A limit from DESIGN.md ("How fast") and the value measured."""

    what: str
    value: float
    at_most: float | None = None
    at_least: float | None = None

    @property
    def met(self) -> bool:
        """Whether the value keeps the limit, the limit included."""
        return (self.at_most is None or self.value <= self.at_most) and (self.at_least is None or self.value >= self.at_least)

    def __str__(self) -> str:
        limit = f"at most {self.at_most:g}" if self.at_most is not None else f"at least {self.at_least:g}"
        return f"{'PASS' if self.met else 'MISS'}  {self.what}: {self.value:.2f} ({limit})"


def say(what: str) -> None:
    """One line of progress that the next one overwrites; nothing unless a person watches."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)


def hush() -> None:
    """Take the progress line away."""
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
