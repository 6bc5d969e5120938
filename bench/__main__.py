"""`python -m bench engine` and `python -m bench ui`: how fast, beside what one would write or run instead."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

PARTS = ("engine", "ui")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the rows if asked. 0: measured, or with --strict all goals met; 1: otherwise; 2: usage."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows as a JSON list")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where a goal is missed")
    asked = parser.parse_args(arguments)
    if asked.json and not asked.json.absolute().parent.is_dir():  # better said now than after minutes of measuring
        parser.error(f"--json: there is no folder {asked.json.absolute().parent}")
    rows, met = import_module(f"bench.{asked.part}").main()
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 1 if asked.strict and not met else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
