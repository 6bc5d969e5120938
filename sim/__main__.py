"""`python -m sim`: the simulator at the command line. Exit code 0: done; 1: the input is bad; 2: usage; 130: interrupted."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. What numpy needs to start up is inside, so that Ctrl-C is quiet from the start."""
    try:
        from sim.cli import commands

        return commands.main(arguments)
    except KeyboardInterrupt:
        return 130


def _mind_the_shell() -> None:
    """`| head` ends us as it ends any other program; a terminal that lacks a character shows a ? in its place."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


if __name__ == "__main__":
    _mind_the_shell()
    sys.exit(main())
