"""`python -m bench engine` and `python -m bench ui`: how fast, beside what one would write or run instead."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import engine, ui
from bench.report import Row

PARTS: dict[str, Callable[[], tuple[list[Row], bool]]] = {"engine": engine.main, "ui": ui.main}


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and write the rows if asked. 0: measured, or with --strict all goals met; 1: otherwise; 2: usage."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows as a JSON list")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where a goal is missed")
    asked = parser.parse_args(arguments)
    rows, met = PARTS[asked.part]()
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 1 if asked.strict and not met else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
