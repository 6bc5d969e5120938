"""Mooncake: the JSONL of Mooncake's traces (conversation, tool and agent, synthetic) → Trace with content.

One request a line: `{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2, …]}`. The timestamp is in
ms since the start; each hash id stands for 512 tokens of the prompt and for all that goes before them, the last one for what
is left. Requests do not arrive one by one: the conversation trace has 12,031 requests at 1,180 times about 3 s apart, and
a replay gets them in these bursts. It does not say which requests belong to one conversation.
Source: github.com/kvcache-ai/Mooncake (FAST25-release), Apache-2.0; papers/FACTS.md sections 0.m, 6.2 and 9.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from sim.readers import jsonl
from sim.readers.source import ReaderError, load
from sim.trace import Trace

COLUMNS = ("timestamp", "input_length", "output_length", "hash_ids")

BLOCK = 512
"""Tokens of a hash block."""


def read(source: bytes | BinaryIO | Path, name: str = "") -> Trace:
    """The trace in Mooncake's JSONL: its content, an open binary file, or its path (whose name is the trace's, unless given).

    Arrivals are relative to the first row, rounded to whole µs. Each prompt is a run of blocks; replies are tokens that no
    prompt quotes, since the trace does not say which of the later blocks hold them. Fields beside the four are let pass, as
    are blank lines at the end and a UTF-8 byte-order mark. Raises ReaderError for anything else than such a file, with
    nothing half-loaded; OSError from the disk.
    """
    times, prompt, output, blocks = array("d"), array("q"), array("q"), jsonl.Blocks(BLOCK)
    for line, record in jsonl.records(load(source, COLUMNS[0]), COLUMNS[0], "Mooncake's trace"):
        if "chat_id" in record:
            raise ReaderError("the row has a chat_id; this looks like a Qwen-Bailian trace", line, "chat_id")
        time = jsonl.microseconds(record, "timestamp", line, 1000)
        jsonl.check_order(time, times[-1] if times else 0, line, "timestamp")
        times.append(time)
        prompt.append(jsonl.tokens(record, "input_length", line))
        output.append(jsonl.tokens(record, "output_length", line))
        blocks.add(record, prompt[-1], line)
    return Trace(jsonl.since_first(times), jsonl.integers(prompt), jsonl.integers(output), content=blocks.content(),
                 name=name or (source.name if isinstance(source, Path) else ""))


def guess_sessions(trace: Trace) -> Trace:
    """The trace with a session for each request: its second block, or the first where there is but one.

    A guess: who begins with the same 1,024 tokens is taken for one conversation. The first block alone will not do, as all
    requests of the conversation trace begin with the same one (peers/sglang-router/ROUTING.md section 3, which guesses so
    too). Raises ValueError for a trace that does not say what its prompts hold.
    """
    content = trace.content
    if content is None:
        raise ValueError("a trace without content has nothing to guess sessions from")
    run = content.first[:-1]
    session = content.start[run] // BLOCK
    longer = content.length[run] > BLOCK  # the second block goes on in the first run
    second = (trace.prompt > BLOCK) & ~longer
    session = session + longer
    session[second] = content.start[run[second] + 1] // BLOCK
    return replace(trace, session=session)
