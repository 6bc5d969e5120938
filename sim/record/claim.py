"""Claim: one published or measured figure beside ours, with the tolerance that we hold ourselves to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """One line of the record.

    name    as typed at the command line
    source  paper or file, and the place in it
    what    the quantity, in one sentence
    theirs  the published or measured value; None: nobody gave one
    ours    computed by our code, from the set-up below
    unit    of theirs, ours and the tolerance
    low     least and
    high    largest value of ours that counts as agreeing; both None: not held to anything, only shown
    set_up  how ours was computed, in one sentence
    note    why ours is outside, or what else to know
    """

    name: str
    source: str
    what: str
    theirs: float | None
    ours: float
    unit: str
    low: float | None
    high: float | None
    set_up: str
    note: str = ""

    @property
    def inside(self) -> bool | None:
        """Whether ours lies within the tolerance, bounds included; None where there is none."""
        if self.low is None and self.high is None:
            return None
        return (self.low is None or self.ours >= self.low) and (self.high is None or self.ours <= self.high)

    @property
    def tolerance(self) -> str:
        """The interval in words: "at most 6 %", "42.6 to 44.6 %"."""
        if self.low is None and self.high is None:
            return "none"
        if self.low is None:
            return f"at most {self.high:g} {self.unit}"
        if self.high is None:
            return f"at least {self.low:g} {self.unit}"
        return f"{self.low:g} to {self.high:g} {self.unit}"
