"""Bailian: the JSONL of Qwen-Bailian's anonymous traces → Trace with content and sessions.

One request a line: `{"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521, "output_length": 132,
"type": "text", "turn": 2, "hash_ids": [1089, 1090, …]}`. The timestamp is in seconds since the start, a parent of -1 says that
the request is a conversation's first, and each hash id stands for 16 tokens of the prompt, the last one for what is left.
The files are of 28 MB and more, so that only their first lines can be read: `head -c 20M FILE | sed '$d'`.
Source: github.com/alibaba-edu/qwen-bailian-usagetraces-anon, its README, Apache-2.0; Wang et al., "KVCache Cache in the Wild",
USENIX ATC 2025. The files themselves could not be had here: this was written from that description and the first line of
the thinking trace, 502 tokens and 32 ids.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import BinaryIO

from sim.readers import jsonl
from sim.readers.source import load
from sim.trace import Trace

COLUMNS = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids")

BLOCK = 16
"""Tokens of a hash block."""

ROOT = -1
"""The parent of a conversation's first request."""

_MAX_CHAT = 2**53  # sessions are integers that float64 holds exactly


def read(source: bytes | BinaryIO | Path, name: str = "") -> Trace:
    """The trace in Qwen-Bailian's JSONL: its content, an open binary file, or its path (whose name is the trace's, unless given).

    Arrivals are relative to the first row, rounded to whole µs. A request's session is the chat_id of its conversation's first
    request, or of the earliest one that the file names, where it does not hold the first. Replies are tokens that no prompt
    quotes, since the trace does not say which of the later blocks hold them. `type`, `turn` and fields beside them are let
    pass, as are blank lines at the end and a UTF-8 byte-order mark. Raises ReaderError for anything else than such a file,
    with nothing half-loaded; OSError from the disk.
    """
    times, prompt, output, session = array("d"), array("q"), array("q"), array("q")
    blocks, begun = jsonl.Blocks(BLOCK), dict[int, int]()  # chat → its conversation's first
    for line, record in jsonl.records(load(source, COLUMNS[0]), COLUMNS[0], "Qwen-Bailian's trace"):
        chat = jsonl.whole(record, "chat_id", line, 0, _MAX_CHAT)
        parent = jsonl.whole(record, "parent_chat_id", line, ROOT, _MAX_CHAT)
        begun[chat] = chat if parent == ROOT else begun.get(parent, parent)
        session.append(begun[chat])
        time = jsonl.microseconds(record, "timestamp", line, 1_000_000)
        jsonl.check_order(time, times[-1] if times else 0, line, "timestamp")
        times.append(time)
        prompt.append(jsonl.tokens(record, "input_length", line))
        output.append(jsonl.tokens(record, "output_length", line))
        blocks.add(record, prompt[-1], line)
    return Trace(jsonl.since_first(times), jsonl.integers(prompt), jsonl.integers(output), session=jsonl.integers(session),
                 content=blocks.content(), name=name or (source.name if isinstance(source, Path) else ""))
