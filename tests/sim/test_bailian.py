"""Qwen-Bailian's trace files: what is read, exactly; what is refused, where and why (the rest is as in test_mooncake)."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from sim.kv.distances import NEVER, blocks, needed
from sim.readers import MAX_BYTES, READERS, ReaderError, bailian, jsonl, mooncake
from sim.trace import Content, Trace


def row(chat: object = 0, parent: object = -1, time: object = 0.0, prompt: object = 20, output: object = 5,
        ids: object = (0, 1), **more: object) -> bytes:
    fields = {"chat_id": chat, "parent_chat_id": parent, "timestamp": time, "input_length": prompt, "output_length": output,
              "type": "text", "turn": 1, "hash_ids": ids, **more}
    return json.dumps(fields).encode() + b"\n"


def refused(data: bytes) -> ReaderError:
    with pytest.raises(ReaderError) as caught:
        bailian.read(data)
    return caught.value


def test_the_first_line_of_the_thinking_trace() -> None:
    # As its users quote it: 502 tokens, 31 blocks of 16 and one of 6.
    data = row(0, -1, 0.0, 502, 1494, list(range(32)), type="thinking")
    assert bailian.read(data) == Trace([0], [502], [1494], session=[0], content=Content([0, 1], [0], [0], [502], [-1]))


def test_two_conversations_by_hand() -> None:
    data = (row(159, -1, 61.114, 33, 132, [7, 8, 9]) + row(3, -1, 61.1140004, 16, 1, [7])
            + row(160, 159, 62.5, 50, 80, [7, 8, 4, 9]) + row(161, 160, 70, 1, 1, [2]))
    # 61.1140004 s is 61.114 s in whole µs. Blocks lie at 16 times their number: 7 to 9 are one run, 4 and 9 are two.
    trace = bailian.read(data, name="by hand")
    assert trace == Trace([0, 0, 1.386, 8.886], [33, 16, 50, 1], [132, 1, 80, 1], session=[159, 3, 159, 159], content=Content(
        [0, 1, 2, 5, 6], [0] * 6, [112, 112, 112, 64, 144, 32], [33, 16, 32, 16, 2, 1], [-1, -2, -3, -4]))
    assert trace.name == "by hand"


def test_a_conversation_whose_first_request_is_not_in_the_file_is_one_session() -> None:
    trace = bailian.read(row(5, 2) + row(6, 5) + row(7, 2) + row(8, -1))
    assert trace.session is not None and trace.session.tolist() == [2, 2, 2, 8]


def test_a_block_s_number_says_what_it_holds_and_not_what_goes_before_it() -> None:
    # The salted hash is of one block: the same number after other blocks, or twice in a prompt, is no prefix in common.
    trace = bailian.read(row(0, ids=[1, 5, 5], prompt=48) + row(1, ids=[2, 5, 5], prompt=48) + row(2, ids=[1, 5, 5], prompt=48))
    found = blocks(trace, bailian.BLOCK, replies=False, partial=True)
    assert (needed(found) < NEVER).tolist() == [False] * 6 + [True] * 3


def test_bytes_an_open_file_and_a_path_give_the_same(tmp_path: Path) -> None:
    path, read = tmp_path / "mine.jsonl", READERS["bailian"]
    path.write_bytes(b"\xef\xbb\xbf" + row() + row(1, 0, 3).strip() + b"\r\n\n")
    with path.open("rb") as file:
        assert read(path) == read(path.read_bytes()) == read(io.BytesIO(path.read_bytes())) == read(file)
    assert read(path).name == "mine.jsonl"


@pytest.mark.parametrize(("bad", "column", "words"), [
    (row(-1), "chat_id", "'-1' is not allowed; allowed: a whole number from 0"),
    (row("4"), "chat_id", "is not allowed"),
    (row(2**60), "chat_id", "is not allowed"),
    (row(3, -2), "parent_chat_id", "'-2' is not allowed; allowed: a whole number from -1"),
    (row(3, None), "parent_chat_id", "'null' is not allowed"),
    (row(time=-0.5), "timestamp", "'-0.5' is not allowed"),
    (row(time=1.9), "timestamp", "0.1 s before the one above it"),
    (row(time=1e12), "timestamp", "is not allowed"),
    (row(time=2, prompt=0), "input_length", "'0' is not allowed"),
    (row(time=2, output=2.5), "output_length", "'2.5' is not allowed"),
    (row(time=2, ids=[0]), "hash_ids", "1 hash ids for 20 tokens; allowed: one for every 16 tokens"),
    (row(time=2, ids=[0, None]), "hash_ids", "'null' is not allowed"),
    (b'{"timestamp": 2, "input_length": 5, "output_length": 5, "hash_ids": [0]}\n', "chat_id", "the field is missing"),
    (row(time=2)[:-9] + b"\n", "chat_id", "is not a JSON object"),
    (b"\n", "chat_id", "the line is blank"),
])
def test_a_bad_row_is_named_by_line_and_column(bad: bytes, column: str, words: str) -> None:
    error = refused(row(time=2) * 15 + bad + b"{\n")
    assert (error.line, error.column) == (16, column)
    assert str(error).startswith(f"line 16, column {column}: ") and words in str(error)


def test_the_two_formats_are_not_taken_for_each_other() -> None:
    with pytest.raises(ReaderError, match="looks like a Qwen-Bailian trace"):
        mooncake.read(row())
    error = refused(b'{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}\n')
    assert (error.line, error.column) == (1, "chat_id")


@pytest.mark.parametrize("make", [
    lambda: b"x" * MAX_BYTES, lambda: b"[" * MAX_BYTES, lambda: b"{}\n" * (MAX_BYTES // 3), lambda: row() + b"\x00" * 10_000_000,
], ids=["one line", "lists in lists", "no fields", "zeros"])
def test_garbage_costs_one_line_of_work(make: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    data, parsed = make(), []
    record = jsonl._record
    monkeypatch.setattr(jsonl, "_record", lambda text, *rest: (parsed.append(len(text)), record(text, *rest))[1])
    tracemalloc.start()
    refused(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(parsed) <= 2 and sum(parsed) <= jsonl.MAX_LINE and peak < 3 * MAX_BYTES
