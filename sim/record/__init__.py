"""The record: what was published or measured elsewhere, ours beside it, and whether ours is within the tolerance."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sim.record import orca, paged_attention, routing, sarathi, shortest_first, step_times
from sim.record.claim import Claim

__all__ = ["CLAIMS", "Claim", "compute", "named", "table", "to_json"]

# name -> function that computes the claim; a few may share a simulation, which is kept.
_ROOMS = (step_times, orca, paged_attention, sarathi, shortest_first, routing)
CLAIMS: dict[str, Callable[[], Claim]] = {name: one for room in _ROOMS for name, one in room.CLAIMS.items()}



def compute(names: Iterable[str] | None = None, progress: Callable[[int, int, str], None] | None = None) -> list[Claim]:
    """Compute the claims named, or all, in the order asked for.

    A name that ends in * stands for all that start so. `progress` is called before each claim with how many are done, of how
    many, and the claim's name. ValueError for an unknown name lists the known ones.
    """
    chosen = list(CLAIMS) if names is None else named(names)
    claims = []
    for done, name in enumerate(chosen):
        if progress:
            progress(done, len(chosen), name)
        claims.append(CLAIMS[name]())
    return claims


def named(patterns: Iterable[str]) -> list[str]:
    """The names of the claims that are named, or that start as one that ends in *. ValueError lists the known ones."""
    return [name for pattern in patterns for name in _matching(pattern)]


def to_json(claims: Iterable[Claim]) -> list[dict[str, str | float | bool | None]]:
    """One plain dictionary a claim: name, source, theirs, ours, tolerance, inside, note, and what, unit, set_up."""
    fields = ("name", "source", "theirs", "ours", "tolerance", "inside", "note", "what", "unit", "set_up")
    return [{field: getattr(claim, field) for field in fields} for claim in claims]


def table(claims: Iterable[Claim]) -> str:
    """The claims as text: a line each, and below it the note of those that are outside or not held to anything."""
    rows = [("claim", "theirs", "ours", "", "tolerance", "")]
    below = [""]
    for claim in claims:
        theirs = "–" if claim.theirs is None else f"{claim.theirs:g}"
        word = {True: "inside", False: "OUTSIDE", None: "shown only"}[claim.inside]
        rows.append((claim.name, theirs, f"{claim.ours:g}", claim.unit, claim.tolerance, word))
        below.append("" if claim.inside or not claim.note else f"\n    {claim.note}")
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    lines = []
    for row, note in zip(rows, below, strict=True):
        cells = [
            cell.rjust(width) if i in (1, 2) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip() + note)
    return "\n".join(lines)


def _matching(pattern: str) -> list[str]:
    if pattern in CLAIMS:
        return [pattern]
    found = [name for name in CLAIMS if pattern.endswith("*") and name.startswith(pattern[:-1])]
    if not found:
        raise ValueError(f"unknown claim {pattern!r}; known: {', '.join(CLAIMS)}")
    return found
