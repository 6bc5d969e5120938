"""Progress of long work: one line on stderr that replaces itself, where a person watches or asks for it."""

from __future__ import annotations

import sys
import time
from types import TracebackType

_EVERY = 0.1  # seconds


class Progress:
    """Call it with what is going on; it shows at most ten lines a second, and takes the last one away in the end.

    asked  True: show in any case, on lines of their own unless stderr is a terminal; False: only on a terminal.
    """

    def __init__(self, asked: bool) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = asked or self._terminal
        self._last = -_EVERY

    def __call__(self, what: str) -> None:
        """Say what is going on now."""
        if not self._shown or time.monotonic() - self._last < _EVERY:
            return
        self._last = time.monotonic()
        print(f"\r\033[K{what}" if self._terminal else what, end="" if self._terminal else "\n", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._shown and self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
