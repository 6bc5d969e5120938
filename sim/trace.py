"""Trace: the requests a server gets, as columns of equal length, checked once when they are put together."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_TOKENS = 10_000_000
"""Most tokens in one prompt or one output: 80 times the longest prompt in Mooncake's conversation trace (126,195)."""

MAX_US = 2.0**51
"""Latest arrival or cancellation, µs (71 years): up to here seconds in float64 give back their whole µs exactly."""

_MAX_ID = 2**53  # priorities and sessions: integers that float64 holds exactly


class TraceError(ValueError):
    """A trace that cannot be: the message names row (counted from 0) and column, the value, and what is allowed."""


@dataclass(frozen=True, eq=False)
class Content:
    """What the tokens of the prompts are, as runs of token streams, and which stream each reply is.

    Two prompts share a prefix exactly as far as their tokens agree: token k of stream s is another token than any other
    (stream, k). A prompt quotes a reply as a run of that reply's stream.

    first   int64[n+1]  the runs of request i are first[i] ≤ j < first[i+1]; their lengths add up to its prompt
    stream  int64[m]    stream of each run
    start   int64[m]    place of its first token in the stream, ≥ 0
    length  int64[m]    tokens, ≥ 1
    reply   int64[n]    stream of each request's reply
    """

    first: Ints
    stream: Ints
    start: Ints
    length: Ints
    reply: Ints

    def __post_init__(self) -> None:
        for name, low in (("first", 0), ("stream", -_MAX_ID), ("start", 0), ("length", 1), ("reply", -_MAX_ID)):
            values = _integers(f"content.{name}", getattr(self, name), low, _MAX_ID)
            values.setflags(write=False)
            object.__setattr__(self, name, values)
        if not len(self.stream) == len(self.start) == len(self.length) == self.first[-1] or self.first[0] != 0:
            raise TraceError("content: stream, start and length must have one element a run, as many as first[-1] says")
        if len(self.first) != len(self.reply) + 1 or (np.diff(self.first) < 1).any():
            raise TraceError("content: every request needs at least one run, and first one element more than reply")

    @classmethod
    def of(cls, runs: Sequence[Sequence[tuple[int, int, int]]], reply: ArrayLike) -> Content:
        """From a list of (stream, start, length) for each request."""
        flat = np.array([run for request in runs for run in request], np.int64).reshape(-1, 3)
        return cls(np.cumsum([0] + [len(request) for request in runs]), flat[:, 0], flat[:, 1], flat[:, 2], np.asarray(reply))

    def take(self, index: NDArray[np.int64]) -> Content:
        """The content of the requests at these positions."""
        runs = np.diff(self.first)[index]
        pick = np.repeat(self.first[index] - (np.cumsum(runs) - runs), runs) + np.arange(runs.sum())
        return Content(np.concatenate(([0], np.cumsum(runs))), self.stream[pick], self.start[pick], self.length[pick],
                       self.reply[index])


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in order of arrival; one element a request. The columns are copied, checked and made read-only.

    arrival     float64  s, ≥ 0, non-decreasing; rounded to whole microseconds
    prompt      int64    prompt tokens, 1 to MAX_TOKENS
    output      int64    output tokens, the first one included, 1 to MAX_TOKENS
    priority    int64    smaller is more urgent; None: all alike
    cancel      float64  s, when the client gives up, ≥ arrival, rounded like it; inf: never; None: nobody does
    session     int64    requests of one conversation carry one number; None: the workload does not say
    content     what the prompts hold, for prefix caches; None: nothing that another request has too
    name        shown in figures, tables and messages; no part of equality, hash and digest
    arrival_us  float64  µs, whole numbers: the truth that `arrival` is derived from

    Anything array-like is taken for a column, whole floats such as 3.0 too. A trace has at least one request.
    Raises TraceError.
    """

    arrival: Floats
    prompt: Ints
    output: Ints
    priority: Ints | None = None
    cancel: Floats | None = None
    session: Ints | None = None
    name: str = ""
    content: Content | None = None
    arrival_us: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        arrival_us = _microseconds("arrival", self.arrival)
        if not len(arrival_us):
            raise TraceError("the trace has no requests; it needs at least one")
        back = np.flatnonzero(np.diff(arrival_us) < 0)
        if len(back):
            i = int(back[0]) + 1
            raise TraceError(f"row {i}, column arrival: {arrival_us[i] / 1e6} s comes before the {arrival_us[i - 1] / 1e6} s "
                             f"of row {i - 1}; arrivals must not decrease, so sort the requests by arrival")
        self._keep("arrival_us", arrival_us)
        self._keep("arrival", arrival_us / 1e6)
        self._keep("prompt", _integers("prompt", self.prompt, 1, MAX_TOKENS))
        self._keep("output", _integers("output", self.output, 1, MAX_TOKENS))
        if self.priority is not None:
            self._keep("priority", _integers("priority", self.priority, -_MAX_ID, _MAX_ID))
        if self.session is not None:
            self._keep("session", _integers("session", self.session, -_MAX_ID, _MAX_ID))
        if self.cancel is not None:
            cancel_us = _microseconds("cancel", self.cancel, never=True)
            self._keep("cancel", cancel_us / 1e6)
            _refuse("cancel", cancel_us / 1e6, cancel_us < arrival_us, "a request cannot be cancelled before its arrival")

        if self.content is not None:
            runs = self.content
            if len(runs.reply) != len(self):
                raise TraceError(f"content is of {len(runs.reply)} requests, but the trace has {len(self)}")
            tokens = np.add.reduceat(runs.length, runs.first[:-1])
            _refuse("content", tokens, tokens != self.prompt, "allowed: runs whose lengths add up to the prompt")

    def _keep(self, column: str, values: NDArray[Any]) -> None:
        if len(values) != len(self.arrival):
            raise TraceError(f"column {column} has {len(values)} rows, but column arrival has {len(self.arrival)}; "
                             "all columns must be of one length")
        values.setflags(write=False)
        object.__setattr__(self, column, values)

    def __len__(self) -> int:
        return len(self.arrival_us)

    @property
    def cancel_us(self) -> Floats | None:
        """When each client gives up, whole µs, inf: never; None where nobody does."""
        return None if self.cancel is None else np.rint(self.cancel * 1e6)

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns that this trace has, by name, in the order of the constructor: `pandas.DataFrame(trace.columns)`."""
        every = {"arrival": self.arrival, "prompt": self.prompt, "output": self.output,
                 "priority": self.priority, "cancel": self.cancel, "session": self.session}
        return {name: values for name, values in every.items() if values is not None}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the columns, in hex: a key for caches, the same on every machine and in every process."""
        sha = hashlib.sha256()
        for name, values in self.columns.items():
            sha.update(f"{name} {len(values)} ".encode())
            sha.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
        if self.content is not None:
            for part in (self.content.first, self.content.stream, self.content.start, self.content.length, self.content.reply):
                sha.update(f"content {len(part)} ".encode())
                sha.update(part.astype("<i8").tobytes())
        return sha.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[Any, ...]:
        # A plain pickle would come back with writable columns.
        return Trace, (self.arrival, self.prompt, self.output, self.priority, self.cancel, self.session, self.name, self.content)

    def take(self, index: ArrayLike | slice) -> Trace:
        """The requests at `index` (positions, a mask or a slice), times unchanged.

        Raises TraceError if nothing is left or the order of arrival is broken; IndexError beyond the end.
        """
        rows = index if isinstance(index, slice) else np.asarray(index)
        content = self.content and self.content.take(np.arange(len(self))[rows])
        return Trace(**{name: values[rows] for name, values in self.columns.items()}, name=self.name, content=content)

    def head(self, n: int) -> Trace:
        """The first `n` requests, or all if there are fewer. Raises TraceError unless n ≥ 1."""
        if n < 1:
            raise TraceError(f"head: n must be at least 1 request, not {n}")
        return self.take(slice(n))

    def window(self, start_s: float, length_s: float | None = None, limit: int | None = None) -> Trace:
        """The requests with start_s ≤ arrival < start_s + length_s, at most `limit` of them, the first one moved to 0 s.

        length_s None: to the end of the trace. Both are compared in whole microseconds, as arrivals are.
        Raises TraceError for parameters out of range and when no request falls into the window.
        """
        if not 0 <= start_s <= MAX_US / 1e6:
            raise TraceError(f"window: start_s must be 0 s or more, not {start_s}")
        if length_s is not None and not length_s > 0:
            raise TraceError(f"window: length_s must be more than 0 s, not {length_s}; None means to the end of the trace")
        if limit is not None and limit < 1:
            raise TraceError(f"window: limit must be at least 1 request, not {limit}; None means no limit")
        end_s = math.inf if length_s is None else start_s + length_s
        first, end = (int(i) for i in np.searchsorted(self.arrival_us, np.rint([start_s * 1e6, end_s * 1e6])))
        if first == end:
            asked = f"at {start_s} s or later" if length_s is None else f"between {start_s} s and {end_s} s"
            raise TraceError(f"no request arrives {asked}; "
                             f"the arrivals of this trace lie between {self.arrival[0]} s and {self.arrival[-1]} s")
        taken = self.take(slice(first, end if limit is None else min(end, first + limit)))
        columns = taken.columns
        zero_us = self.arrival_us[first]
        for name in columns.keys() & {"arrival", "cancel"}:
            columns[name] = (np.rint(columns[name] * 1e6) - zero_us) / 1e6
        return Trace(**columns, name=self.name, content=taken.content)


def _microseconds(column: str, values: ArrayLike, never: bool = False) -> Floats:
    """Seconds → whole µs; inf passes where it means never."""
    seconds = _numbers(column, values).astype(np.float64)
    allowed = f"allowed: seconds from 0 to {MAX_US / 1e6}" + (", or inf for never" if never else "")
    _refuse(column, seconds, ~((seconds >= 0) & ((seconds <= MAX_US / 1e6) | (never & (seconds == np.inf)))), allowed)
    microseconds: Floats = np.rint(seconds * 1e6) + 0.0  # + 0.0 turns -0.0 into 0.0
    return microseconds


def _integers(column: str, values: ArrayLike, low: int, high: int) -> Ints:
    """A new int64 array of values that are whole and within low..high."""
    numbers = _numbers(column, values)
    whole = (numbers >= low) & (numbers <= high)
    if numbers.dtype.kind == "f":
        whole &= numbers == np.floor(numbers)
    _refuse(column, numbers, ~whole, f"allowed: whole numbers from {low} to {high}")
    return numbers.astype(np.int64)


def _numbers(column: str, values: ArrayLike) -> NDArray[Any]:
    """A one-dimensional array of integers or floats."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise TraceError(f"column {column} must hold one number a row") from None
    if array.ndim != 1:
        raise TraceError(f"column {column} must have one dimension, not the shape {array.shape}")
    if array.dtype.kind == "O":  # mixed Python values, among them integers beyond 64 bits
        _refuse(column, array, ~np.array([_is_number(value) for value in array], bool), "allowed: numbers of 64 bits")
        return array.astype(np.float64)
    if len(array) and array.dtype.kind not in "iuf":
        _refuse(column, array, np.ones(len(array), bool), "allowed: numbers")
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _is_number(value: object) -> bool:
    if isinstance(value, int | np.integer):
        return not isinstance(value, bool) and abs(int(value)) < 2**63
    return isinstance(value, float | np.floating)


def _refuse(column: str, values: NDArray[Any], bad: NDArray[np.bool_], allowed: str) -> None:
    """Raise TraceError for the first bad row, if there is one."""
    rows = np.flatnonzero(bad)
    if len(rows):
        raise TraceError(f"row {rows[0]}, column {column}: {_shown(values[rows[0]])} is not allowed; {allowed}")


def _shown(value: Any) -> str:
    """The value for a message, at most 40 characters."""
    try:
        text = repr(value.item() if isinstance(value, np.generic) else value)
    except ValueError:  # Python refuses to write out integers of more than 4,300 digits
        return "an integer of thousands of digits"
    return text if len(text) <= 40 else text[:39] + "…"
