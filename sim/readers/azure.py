"""Azure: the CSV of Azure's LLM inference traces (2023 and 2024) → Trace.

2023 writes `2023-11-16 18:15:46.6805900,374,44`, lines end in CR LF, the last one in nothing; 2024 writes
`2024-05-10 00:00:00.001163+00:00`, and leaves the fraction out where it is zero. Both are UTC.
Source: github.com/Azure/AzurePublicDataset; papers/FACTS.md section 9.

The rows are read in blocks of whole lines with numpy. What is wrong ends the reading at the first bad line of its block,
so that a file of garbage costs one block, whatever its size. Only the order of time is checked at the end.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from sim.readers.source import ReaderError, load, shown
from sim.trace import MAX_TOKENS, MAX_US, Trace

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
HEADER = ",".join(COLUMNS).encode()

_BLOCK = 2**18  # bytes

_LAYOUT = np.frombuffer(b"0000-00-00 00:00:00", np.uint8)
_IS_DIGIT = np.equal(_LAYOUT, ord("0"))
_ZONE = np.frombuffer(b"+00:00", np.uint8)

_ALLOWED = {
    "TIMESTAMP": "allowed: YYYY-MM-DD HH:MM:SS, with a fraction of up to nine digits or none, and +00:00 or nothing after it",
    "ContextTokens": f"allowed: a whole number from 1 to {MAX_TOKENS}, in digits only",
    "GeneratedTokens": f"allowed: a whole number from 1 to {MAX_TOKENS}, in digits only",
}

_LOOKS_LIKE = {  # what the first bytes hold: whose they are
    b"version https://git-lfs": "a Git LFS pointer, not the file itself",
    b"NumImages": "Azure's multimodal trace of 2025, which this reader does not know",
    b"arrived_at": "Vidur's trace format",
    b"num_prefill_tokens": "a table of lengths without arrival times (Sarathi-Serve, Vidur)",
    b"Timestamp,": "BurstGPT",
    b"parent_chat_id": "a Qwen-Bailian trace",
    b"hash_ids": "Mooncake's JSONL",
    b"input_length": "Mooncake's JSONL",
    b"<!DOCTYPE": "a web page, not the file itself",
    b"<html": "a web page, not the file itself",
    b"TIMESTAMP;": "Azure's columns separated by semicolons",
    b"TIMESTAMP\t": "Azure's columns separated by tabs",
    b'"TIMESTAMP"': "Azure's columns in quotes",
}


def read(source: bytes | BinaryIO | Path, name: str = "") -> Trace:
    """The trace in an Azure CSV: its content, an open binary file, or its path (whose name is the trace's, unless given).

    Arrivals are relative to the first row. Each timestamp is rounded to whole µs, halves to even, before the difference.
    Blank lines at the end and a UTF-8 byte-order mark are let pass. Raises ReaderError for anything else than such a
    file, with nothing half-loaded; OSError from the disk.
    """
    data = load(source, COLUMNS[0])
    _check_header(data)
    start, end = len(HEADER), len(data.rstrip(b"\r\n"))
    if end == start:
        raise ReaderError("no row follows the header", 2, COLUMNS[0])
    start = data.index(b"\n") + 1
    line, blocks = 2, []
    while start < end:
        stop = end if end - start <= _BLOCK else data.rfind(b"\n", start, start + _BLOCK)
        if stop < 0:
            raise ReaderError(f"{shown(data[start:start + 200])} begins a line of more than {_BLOCK} bytes", line, COLUMNS[0])
        blocks.append(_rows(data[start:stop], line))
        line += len(blocks[-1])
        start = stop + 1
    time_us, prompt, output = np.concatenate(blocks).T
    _check_order(time_us)
    return Trace((time_us - time_us[0]) / 1e6, prompt, output, name=name or (source.name if isinstance(source, Path) else ""))


def _check_header(data: bytes) -> None:
    head = data[:1000]
    found = head.split(b"\n", 1)[0].removesuffix(b"\r")
    if found == HEADER:
        return
    names = found.split(b",")
    column = next((c for i, c in enumerate(COLUMNS) if i >= len(names) or names[i] != c.encode()), "4")
    message = f"the first line must be {HEADER.decode()}, not {shown(found)}"
    looks_like = next((what for mark, what in _LOOKS_LIKE.items() if mark in head), None)
    if looks_like is None and re.match(rb"\d{4}-\d\d-\d\d \d\d:", found):
        looks_like = "Azure's rows without the header line"
    raise ReaderError(message + (f"; this looks like {looks_like}" if looks_like else ""), 1, column)


def _check_order(time_us: Ints) -> None:
    back = np.flatnonzero(np.diff(time_us) < 0)
    if len(back):
        i = int(back[0]) + 1
        raise ReaderError(f"the row comes {(time_us[i - 1] - time_us[i]) / 1e6} s before the one above it; "
                          "rows must be in order of time", i + 2, COLUMNS[0])
    late = np.flatnonzero(time_us - time_us[0] > MAX_US)
    if len(late):
        raise ReaderError(f"the row comes more than {MAX_US / 1e6:.0f} s after the first one", int(late[0]) + 2, COLUMNS[0])


def _rows(block: bytes, line: int) -> Ints:
    """(rows, 3): µs since 1970, prompt and output tokens. `line` is the number of the block's first line."""
    text = np.frombuffer(block, np.uint8)
    ends = np.append(np.flatnonzero(text == ord("\n")), len(text))
    starts = np.append(0, ends[:-1] + 1)
    ends -= _at(text, ends - 1) == ord("\r")
    commas = np.flatnonzero(text == ord(","))
    found = np.searchsorted(commas, ends) - np.searchsorted(commas, starts)
    whole = int(np.argmax(found != 2)) if np.any(found != 2) else len(found)  # rows before the first of not three fields

    first, second = commas[:2 * whole].reshape(-1, 2).T
    fields = ((starts[:whole], first), (first + 1, second), (second + 1, ends[:whole]))
    parsed = [_timestamps(text, *fields[0]), _counts(text, *fields[1]), _counts(text, *fields[2])]
    bad = ~np.stack([good for _, good in parsed], 1)
    if bad.any():
        row, i = divmod(int(np.argmax(bad)), 3)
        value = block[fields[i][0][row]:fields[i][1][row]]
        raise ReaderError(f"{shown(value)} {_fault(COLUMNS[i], value)}; {_ALLOWED[COLUMNS[i]]}", line + row, COLUMNS[i])
    if whole < len(found):
        content, n = block[starts[whole]:ends[whole]], int(found[whole]) + 1
        what = "the line is blank" if not content else f"{shown(content)} has {n} field{'s' * (n > 1)}"
        raise ReaderError(f"{what}; a row has three: {HEADER.decode()}", line + whole, (*COLUMNS, "4")[min(n, 3)])
    return np.stack([values for values, _ in parsed], 1)


def _at(text: Bytes, index: Ints) -> Bytes:
    """The bytes at these places; places outside the text give some byte, which the caller must not use."""
    if not len(text):
        return np.zeros(index.shape, np.uint8)
    taken: Bytes = text.take(index, mode="clip")
    return taken


def _digits(text: Bytes, start: Ints, end: Ints, most: int) -> tuple[Ints, Bools]:
    """The number that the digits in text[start:end] write, `most` of them at most, and whether they are that."""
    value, good = np.zeros(len(start), np.int64), (end > start) & (end - start <= most)
    for k in range(most):
        digit, within = _at(text, start + k) - np.uint8(ord("0")), start + k < end
        good &= ~within | (digit <= 9)
        value = np.where(within, value * 10 + digit, value)
    return value, good


def _counts(text: Bytes, start: Ints, end: Ints) -> tuple[Ints, Bools]:
    value, good = _digits(text, start, end, len(str(MAX_TOKENS)))
    return value, good & (value >= 1) & (value <= MAX_TOKENS)


def _timestamps(text: Bytes, start: Ints, end: Ints) -> tuple[Ints, Bools]:
    """µs since 1970, fractions rounded half to even, and whether it is a timestamp."""
    zone = np.all(_at(text, end[:, None] + np.arange(-len(_ZONE), 0)) == _ZONE, 1)
    second_end, fraction_end = start + len(_LAYOUT), end - len(_ZONE) * zone
    seconds, good = _seconds(_at(text, start[:, None] + np.arange(len(_LAYOUT))))
    fraction, fraction_good = _digits(text, second_end + 1, fraction_end, 9)
    good &= (fraction_end == second_end) | ((_at(text, second_end) == ord(".")) & fraction_good)

    width = np.clip(fraction_end - second_end - 1, 0, 9)
    micros, rest = np.divmod(np.where(width > 0, fraction, 0) * 10 ** (9 - width), 1000)  # of nanoseconds
    micros += (rest > 500) | ((rest == 500) & (micros % 2 == 1))
    return seconds * 1_000_000 + micros, good


def _seconds(written: Bytes) -> tuple[Ints, Bools]:
    """Seconds since 1970 of dates and times in _LAYOUT, (rows, 19), and whether they exist (there are no leap seconds)."""
    number = (written - np.uint8(ord("0"))).astype(np.int64)  # what lies below "0" wraps around to more than 9
    good = np.all(np.where(_IS_DIGIT, number <= 9, written == _LAYOUT), 1)
    two = number[:, :-1] * 10 + number[:, 1:]
    year, month, day = two[:, 0] * 100 + two[:, 2], two[:, 5], two[:, 8]
    hour, minute, second = two[:, 11], two[:, 14], two[:, 17]
    months = (year - 1970) * 12 + np.clip(month, 1, 12) - 1
    begin, after = (m.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) for m in (months, months + 1))
    good &= (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= after - begin)
    good &= (hour < 24) & (minute < 60) & (second < 60)
    return (((begin + day - 1) * 24 + hour) * 60 + minute) * 60 + second, good


def _fault(column: str, value: bytes) -> str:
    """What is wrong with a value that was refused, in words."""
    if not value.strip():
        return "is missing"
    if b'"' in value or b"'" in value:
        return "is quoted"
    if column == "TIMESTAMP":
        if re.fullmatch(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,9})?(\+00:00)?", value[:100]):
            return "is a date or a time that does not exist"
        if re.search(rb":\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)$", value[:100]):
            return "is not written as UTC"
        return "is not a timestamp"
    if re.match(rb"-\d", value):
        return "is negative"
    if value.isdigit():
        return "is out of range" if value.strip(b"0") else "is zero"
    return "is not a whole number"
