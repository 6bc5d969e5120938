"""Source: what every reader starts from: the bytes of a file, bounded and known to be text, and the error with its place."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

MAX_BYTES = 20 * 2**20
"""Largest file that is read, bytes: 20 MiB, the page's upload limit."""

_BINARY = {
    b"\x1f\x8b": "is compressed (gzip); unpack it first",
    b"PK\x03\x04": "is a zip archive or a spreadsheet; unpack it, or export it as CSV",
    b"BZh": "is compressed (bzip2); unpack it first",
    b"\xfd7zXZ": "is compressed (xz); unpack it first",
    b"\x28\xb5\x2f\xfd": "is compressed (zstd); unpack it first",
    b"PAR1": "is a Parquet file; export it as CSV",
    b"\xff\xfe": "is UTF-16 or UTF-32 text; save it as UTF-8",
    b"\xfe\xff": "is UTF-16 text; save it as UTF-8",
    b"\x00\x00\xfe\xff": "is UTF-32 text; save it as UTF-8",
}


class ReaderError(ValueError):
    """A file that cannot be read as a trace.

    line    counted from 1, the header included; None: the file as a whole
    column  the column's name; None: the file as a whole
    """

    def __init__(self, message: str, line: int | None = None, column: str | None = None) -> None:
        super().__init__(message if line is None else f"line {line}, column {column}: {message}")
        self.line = line
        self.column = column


def load(source: bytes | BinaryIO | Path, first_column: str) -> bytes:
    """The bytes of the file, without a UTF-8 byte-order mark. Never reads more than MAX_BYTES and one.

    Raises ReaderError if there are none, too many, or if they are no text in UTF-8 or ASCII; OSError from the disk.
    """
    if isinstance(source, Path):
        with source.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    else:
        data = source if isinstance(source, bytes) else source.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ReaderError(f"the file is larger than {MAX_BYTES // 2**20} MiB; cut it to fewer rows")
    if not data.strip():
        raise ReaderError("the file is empty", 1, first_column)
    for magic, what in _BINARY.items():
        if data.startswith(magic):
            raise ReaderError(f"the file {what}", 1, first_column)
    if b"\x00" in data[:4]:
        raise ReaderError("the file starts with NUL bytes: UTF-16 without a mark, or no text at all; save it as UTF-8",
                          1, first_column)
    return data.removeprefix(b"\xef\xbb\xbf")


def shown(text: bytes) -> str:
    """What a file holds, for a message: quoted, control characters escaped, about 40 characters at most."""
    quoted = repr(text[:160].decode("utf-8", "backslashreplace"))
    return quoted if len(quoted) <= 42 else quoted[:40] + "…" + quoted[0]
