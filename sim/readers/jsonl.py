"""JSON lines: what the readers of traces with hash blocks share: records read line by line, and blocks → Content.

A trace of hash blocks writes each prompt as numbers, one for every block of so many tokens, the last block perhaps not full:
equal numbers, equal tokens. They become runs of one stream, number k standing for its tokens from k · block on, so that
blocks with consecutive numbers are one run and two prompts agree exactly as far as their numbers do.

A line is parsed on its own and the first bad one ends the reading, so that a file of garbage costs one line, whatever its
size; no line may be longer than MAX_LINE.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from sim.readers.source import ReaderError, shown
from sim.trace import MAX_TOKENS, MAX_US, Content, Floats, Ints

MAX_LINE = 2**22  # bytes; the longest of Mooncake's conversation trace has 2 kB
MAX_BLOCKS = 3_000_000  # in one file: no file of MAX_BYTES whose ids have six digits holds more, but one of zeros would
MAX_HASH = 2**43  # a block's first token, hash id × tokens a block, must stay a whole number in float64

Record = dict[str, Any]


class Blocks:
    """The hash ids of all prompts, as they are read, and the content that they make.

    size   tokens in a block
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._ids, self._prompt = array("q"), array("q")

    def add(self, record: Record, prompt: int, line: int) -> None:
        """The ids of one more prompt of that many tokens. Raises ReaderError."""
        ids = _value(record, "hash_ids", line)
        if not isinstance(ids, list):
            raise ReaderError(f"{said(ids)} is not a list of whole numbers", line, "hash_ids")
        if len(self._ids) + len(ids) > MAX_BLOCKS:
            raise ReaderError(f"the file has more than {MAX_BLOCKS:,} blocks up to here; cut it to fewer rows", line, "hash_ids")
        needed = -(-prompt // self.size)
        if len(ids) != needed:
            raise ReaderError(f"{len(ids)} hash ids for {prompt} tokens; allowed: one for every {self.size} tokens, the last "
                              f"block perhaps not full: {needed}", line, "hash_ids")
        bad = [i for i in ids if type(i) is not int or not 0 <= i <= MAX_HASH]
        if bad:
            raise ReaderError(f"{said(bad[0])} is not allowed as a hash id; allowed: whole numbers from 0 to {MAX_HASH}",
                              line, "hash_ids")
        self._ids.extend(ids)
        self._prompt.append(prompt)

    def content(self) -> Content:
        """What the prompts hold. Nobody quotes a reply: the trace does not say what a reply's tokens are."""
        ids, prompt = np.frombuffer(self._ids, np.int64), np.frombuffer(self._prompt, np.int64)
        end = np.cumsum(-(-prompt // self.size))  # of each prompt's blocks
        begins = np.empty(len(ids), bool)  # blocks that begin a run: those of a prompt's start, and where the numbers jump
        begins[0] = True
        np.not_equal(ids[1:], ids[:-1] + 1, out=begins[1:])
        begins[end[:-1]] = True
        at = np.flatnonzero(begins)
        last = np.searchsorted(at, end) - 1  # each prompt's last run
        length = np.diff(at, append=len(ids)) * self.size
        length[last] -= -prompt % self.size
        n = len(prompt)
        return Content(np.append(0, last + 1), np.zeros(len(at), np.int64), ids[at] * self.size, length, -1 - np.arange(n))


def records(data: bytes, first_column: str, format_name: str) -> Iterator[tuple[int, Record]]:
    """(line, what it holds), line by line. Blank lines at the end are let pass. Raises ReaderError."""
    end = len(data.rstrip(b"\r\n \t"))
    if not end:
        raise ReaderError(f"the file holds no request; {format_name} has one JSON object a line", 1, first_column)
    start, line = 0, 1
    while start < end:
        stop = data.find(b"\n", start, min(end, start + MAX_LINE))
        if stop < 0:
            if end - start > MAX_LINE:
                what = shown(data[start:start + 200])
                raise ReaderError(f"{what} begins a line of more than {MAX_LINE} bytes", line, first_column)
            stop = end
        yield line, _record(data[start:stop], line, first_column, format_name)
        start, line = stop + 1, line + 1


def _record(text: bytes, line: int, first_column: str, format_name: str) -> Record:
    if not text.strip():
        raise ReaderError("the line is blank", line, first_column)
    try:
        found = _DECODER.decode(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        what = str(error) if isinstance(error, _Twice) else "is not a JSON object"
        raise ReaderError(f"{shown(text)} {what}; {_looks_like(text, format_name)}", line, first_column) from None
    if not isinstance(found, dict):
        raise ReaderError(f"{shown(text)} is not a JSON object; {_looks_like(text, format_name)}", line, first_column)
    return found


class _Twice(ValueError):
    """A JSON object with one name twice."""


def _object(pairs: list[tuple[str, Any]]) -> Record:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Twice("has one name twice")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(text)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_number)

_MARKS = {  # what a first line begins with: whose it is
    b"version https://git-lfs": "a Git LFS pointer, not the file itself",
    b"TIMESTAMP": "Azure's CSV",
    b"<!DOCTYPE": "a web page, not the file itself",
    b"<html": "a web page, not the file itself",
    b"[": "one JSON array, where every request needs a line of its own",
}


def _looks_like(text: bytes, format_name: str) -> str:
    begin = text[:200].lstrip()
    whose = next((f"; this looks like {what}" for mark, what in _MARKS.items() if begin.startswith(mark)), "")
    return f"{format_name} has one object a line{whose}"


def whole(record: Record, column: str, line: int, low: int, high: int) -> int:
    """The whole number in this column. Raises ReaderError."""
    value = _value(record, column, line)
    if type(value) is not int or not low <= value <= high:
        raise ReaderError(f"{said(value)} is not allowed; allowed: a whole number from {low} to {high}", line, column)
    return value


def tokens(record: Record, column: str, line: int) -> int:
    """A number of tokens. Raises ReaderError."""
    return whole(record, column, line, 1, MAX_TOKENS)


def microseconds(record: Record, column: str, line: int, unit_us: int) -> float:
    """The time in this column, a number of `unit_us` µs each, in whole µs. Raises ReaderError."""
    value = _value(record, column, line)
    if type(value) not in (int, float) or not 0 <= value <= MAX_US / unit_us:  # a float that overflowed is inf
        raise ReaderError(f"{said(value)} is not allowed; allowed: a number from 0 to {MAX_US / unit_us:.0f}", line, column)
    return float(np.rint(value * unit_us))


def check_order(time_us: float, before_us: float, line: int, column: str) -> None:
    """Raises ReaderError if a row comes before the one above it."""
    if time_us < before_us:
        raise ReaderError(f"the row comes {(before_us - time_us) / 1e6} s before the one above it; rows must be in order of time",
                          line, column)


def since_first(times_us: array[float]) -> Floats:
    """Seconds since the first row."""
    times = np.frombuffer(times_us, np.float64)
    relative: Floats = (times - times[0]) / 1e6
    return relative


def integers(values: array[int]) -> Ints:
    """The column as numpy has it."""
    return np.frombuffer(values, np.int64)


def said(value: object) -> str:
    """A value of the file for a message, as JSON writes it, about 40 characters at most."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**30:
        return f"a whole number of {int(math.log10(abs(value))) + 1} digits"
    if isinstance(value, list | dict):
        return "an empty list" if value == [] else "a list" if isinstance(value, list) else "an object"
    return shown(json.dumps(value).encode())


def _value(record: Record, column: str, line: int) -> Any:
    if column not in record:
        raise ReaderError("the field is missing", line, column)
    return record[column]
