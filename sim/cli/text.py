"""Text for terminals: a table of aligned columns, and a number with as many digits as it deserves."""

from __future__ import annotations

import math
from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows of cells, the first one the heading; the first `left` columns flush left, numbers flush right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def number(value: float | None, digits: int = 4) -> str:
    """About `digits` significant digits, thousands apart, never an exponent; – for nan and None: there is no such quantity."""
    if value is None or math.isnan(value):
        return "–"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{min(max(decimals, 0), 6)}f}"


def clean(name: str) -> str:
    """A name that was typed, such as a file's, without what would move the terminal's cursor or cannot be printed."""
    return "".join(c if c.isprintable() else "?" for c in name)
