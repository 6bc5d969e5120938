"""`python -m tests.peers vllm|router DIR`: replay every recording in DIR and say what agrees; exit 1 unless all of it does."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.peers import router
from tests.peers.vllm import replay

USAGE = "usage: python -m tests.peers vllm|router DIR"


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in ("vllm", "router"):
        print(USAGE, file=sys.stderr)
        return 2
    folder = Path(arguments[1])
    return router.main(folder) if arguments[0] == "router" else _vllm(folder)


def _vllm(folder: Path) -> int:
    files = sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])
    agree = differ = steps = rows = 0
    for path in files:
        try:
            result = replay(path)
        except Exception as error:  # whatever a broken file can raise: it is no recording, and says so
            print(f"{path.name}: not a recording that can be replayed: {error!r}")
            differ += 1
            continue
        steps, rows = steps + result.steps, rows + result.rows
        print(f"{result.name}: {result.steps} steps in {result.rows} rows, {result.difference or 'agrees'}")
        agree += not result.difference
        differ += bool(result.difference)
    if not files:
        print(f"no recording (*.json, *.json.gz) in {folder}", file=sys.stderr)
    taken = rows < steps
    if files and not taken:
        print("nothing was taken in closed form: as many rows as steps")
    print(f"{agree} agree, {differ} differ")
    return 0 if files and not differ and taken else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
