"""Mooncake's trace files: what is read, exactly; what is refused, where and why; and what a hostile file may cost."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.__main__ import main
from sim.readers import MAX_BYTES, READERS, ReaderError, jsonl, mooncake
from sim.trace import Content, Trace

SAMPLE = Path(__file__).parents[2] / "assets" / "mooncake_conversation_sample.jsonl.gz"
REAL = Path(__file__).parents[3] / "shared" / "traces" / "mooncake_conversation_trace.jsonl"
ROW = b'{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}\n'


def row(time: object = 0, prompt: object = 700, output: object = 5, ids: object = (0, 1), **more: object) -> bytes:
    fields = {"timestamp": time, "input_length": prompt, "output_length": output, "hash_ids": ids, **more}
    return json.dumps(fields).encode() + b"\n"


def refused(data: bytes) -> ReaderError:
    with pytest.raises(ReaderError) as caught:
        mooncake.read(data)
    return caught.value


def blocks_of(content: Content, request: int, block: int) -> list[tuple[int, int, int]]:
    """(stream, start, tokens) of each block of a prompt whose runs begin at blocks: the long way."""
    found = []
    for j in range(content.first[request], content.first[request + 1]):
        for at in range(0, content.length[j], block):
            found.append((int(content.stream[j]), int(content.start[j]) + at, min(block, int(content.length[j]) - at)))
    return found


# --------------------------------------------------------------------------------------------------- what is read

def test_three_requests_by_hand() -> None:
    data = row(1000, 1300, 40, [0, 1, 2]) + row(1000, 1024, 7, [0, 5]) + row(4000.25, 1, 1, [9])
    # 1300 = 512 + 512 + 276: one run, as the numbers follow each other. 0 and 5 do not: two runs. Blocks lie at 512 times
    # their number. Times are relative to the first row, ms → s.
    trace = mooncake.read(data, name="by hand")
    assert trace == Trace([0, 0, 3.00025], [1300, 1024, 1], [40, 7, 1],
                          content=Content([0, 1, 3, 4], [0, 0, 0, 0], [0, 0, 2560, 4608], [1300, 512, 512, 1], [-1, -2, -3]))
    assert trace.name == "by hand"


def test_a_prompt_may_begin_with_the_number_after_the_last_one_of_the_prompt_before() -> None:
    content = mooncake.read(row(0, 512, 1, [0]) + row(0, 1000, 1, [1, 2]) + row(0, 600, 1, [3, 3])).content
    assert content is not None
    assert content.first.tolist() == [0, 1, 2, 4]
    assert (content.start.tolist(), content.length.tolist()) == ([0, 512, 1536, 1536], [512, 1000, 512, 88])


def test_bytes_an_open_file_and_a_path_give_the_same(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(ROW * 3)
    read = READERS["mooncake"]
    with path.open("rb") as file:
        assert read(path) == read(path.read_bytes()) == read(io.BytesIO(path.read_bytes())) == read(file)
    assert read(path).name == "mine.jsonl"


@pytest.mark.parametrize("data", [
    b"\xef\xbb\xbf" + ROW, ROW + b"\r\n\n \n", ROW.replace(b"\n", b"\r\n"), ROW.strip(), b"  " + ROW, row(session="x"),
    b'{"hash_ids":[0,1],"output_length":5,"input_length":700,"timestamp":0}',
], ids=["byte-order mark", "blank lines at the end", "CRLF", "no final newline", "indented", "one field more", "other order"])
def test_what_editors_and_writers_do_to_a_file_is_let_pass(data: bytes) -> None:
    assert mooncake.read(data) == mooncake.read(ROW)


@given(st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=9), min_size=1, max_size=8), st.integers(1, 512))
def test_runs_hold_the_blocks_that_the_file_names(prompts: list[list[int]], last: int) -> None:
    data = b"".join(row(0, 512 * len(ids) - 512 + last, 1, ids) for ids in prompts)
    content = mooncake.read(data).content
    assert content is not None
    for i, ids in enumerate(prompts):
        tokens = [512] * (len(ids) - 1) + [last]
        assert blocks_of(content, i, 512) == [(0, 512 * k, n) for k, n in zip(ids, tokens, strict=True)]
    assert len(set(content.reply.tolist()) - {0}) == len(prompts)  # a reply is no prompt's and no other reply's


@pytest.mark.skipif(not REAL.exists(), reason=f"the real trace is not at {REAL}")
def test_the_real_conversation_trace() -> None:
    trace = mooncake.read(REAL)  # figures: papers/FACTS.md sections 0.m and 9, peers/sglang-router/ROUTING.md section 3
    assert len(trace) == 12_031 and len(np.unique(trace.arrival_us)) == 1_180
    assert (round(trace.prompt.mean()), np.median(trace.prompt), trace.prompt.max()) == (12_035, 6_909, 126_195)
    assert (round(trace.output.mean()), np.median(trace.output), round(trace.arrival[-1])) == (343, 350, 3_537)
    content = trace.content
    assert content is not None
    assert (content.stream == 0).all() and (content.start[content.first[:-1]] == 0).all()  # every prompt begins with block 0
    assert len(np.unique(mooncake.guess_sessions(trace).session)) == 7_373  # second hashes


def test_the_sample_is_the_first_ten_minutes_of_the_real_trace() -> None:
    sample = mooncake.read(gzip.decompress(SAMPLE.read_bytes()))
    assert len(sample) == 1_750 and sample.arrival[-1] < 600 and len(np.unique(sample.arrival)) == 200
    if not REAL.exists():
        pytest.skip(f"the real trace is not at {REAL}")
    assert sample == mooncake.read(REAL).window(0, 600)


def test_the_command_line_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(ROW + row(60_000))
    main(["run", "--trace", str(path), "--format", "mooncake", "--policy", "vllm", "--json"])
    found = json.loads(capsys.readouterr().out)["trace"]
    assert (found["format"], found["requests"], found["span_s"], found["prompt_mean"]) == ("mooncake", 2, 60, 700)


# ------------------------------------------------------------------------------------------------ what is refused

@pytest.mark.parametrize(("bad", "column", "words"), [
    (row(-1), "timestamp", "'-1' is not allowed"),
    (row("0"), "timestamp", "is not allowed"),
    (row(None), "timestamp", "'null' is not allowed"),
    (row(True), "timestamp", "'true' is not allowed"),
    (row(1e300), "timestamp", "'1e+300' is not allowed"),
    (ROW.replace(b": 0,", b": 1e999,"), "timestamp", "is not allowed"),
    (row(29), "timestamp", "0.001 s before the one above it"),
    (row(30, 0), "input_length", "'0' is not allowed; allowed: a whole number from 1 to 10000000"),
    (row(30, 10_000_001), "input_length", "is not allowed"),
    (row(30, 700.0), "input_length", "'700.0' is not allowed"),
    (row(30, 10**4000), "input_length", "a whole number of 4001 digits"),
    (row(30, False), "input_length", "'false' is not allowed"),
    (row(30, 700, -3), "output_length", "'-3' is not allowed"),
    (row(30, 700, [1]), "output_length", "a list is not allowed"),
    (row(30, 700, 0), "output_length", "'0' is not allowed"),
    (row(30, ids=[]), "hash_ids", "0 hash ids for 700 tokens"),
    (row(30, ids=[0]), "hash_ids", "1 hash ids for 700 tokens; allowed: one for every 512 tokens"),
    (row(30, ids=[0, 1, 2]), "hash_ids", "the last block perhaps not full: 2"),
    (row(30, ids=[0, -1]), "hash_ids", "'-1' is not allowed as a hash id"),
    (row(30, ids=[0, 2**63]), "hash_ids", "is not allowed as a hash id"),
    (row(30, ids=[0, True]), "hash_ids", "'true' is not allowed"),
    (row(30, ids=[[0], 1]), "hash_ids", "a list is not allowed"),
    (row(30, ids="01"), "hash_ids", "is not a list"),
    (row(30, ids=[0, None]), "hash_ids", "'null' is not allowed as a hash id"),
    (b'{"timestamp": 30, "input_length": 5, "output_length": 5}\n', "hash_ids", "the field is missing"),
    (row(30, ids=None), "hash_ids", "'null' is not a list"),
    (row(30, chat_id=4, turn=1), "chat_id", "Qwen-Bailian"),
    (b'{"timestamp": 30, "output_length": 5, "hash_ids": [0]}\n', "input_length", "the field is missing"),
    (ROW.replace(b'"time', b'"hash_ids": [], "time'), "timestamp", "one name twice"),
    (b"\n", "timestamp", "the line is blank"),
    (b"[0, 700, 5]\n", "timestamp", "one JSON array"),
    (b"7\n", "timestamp", "'7' is not a JSON object"),
    (b"NaN\n", "timestamp", "'NaN' is not a JSON object"),
    (ROW.replace(b": 0,", b": NaN,"), "timestamp", "is not a JSON object"),
    (ROW.replace(b'"', b"'"), "timestamp", "is not a JSON object"),
    (ROW.strip() + ROW, "timestamp", "is not a JSON object"),
    (ROW[:-10] + b"\n", "timestamp", "is not a JSON object"),
    (b'{"timestamp": "\xff"}\n', "timestamp", "is not a JSON object"),
    (ROW.replace(b"5", b"9" * 5000), "timestamp", "is not a JSON object"),  # Python does not read so many digits
    (b'{"a":' * 50_000 + b"\n", "timestamp", "is not a JSON object"),
])
def test_a_bad_row_is_named_by_line_and_column(bad: bytes, column: str, words: str) -> None:
    error = refused(row(30) * 15 + bad + b"{\n" + row(0))
    assert (error.line, error.column) == (16, column)
    assert str(error).startswith(f"line 16, column {column}: ") and words in str(error)


@pytest.mark.parametrize(("data", "words"), [
    (b"", "the file is empty"),
    (b" \r\n\n", "the file is empty"),
    (b"\xef\xbb\xbf\n", "no request"),
    (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "Azure"),
    (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    (b"<!DOCTYPE html>\n", "web page"),
    (b"[\n" + ROW.strip() + b"]\n", "one JSON array"),
    (b"\x1f\x8b\x08\x00", "gzip"),
    (ROW.decode().encode("utf-16"), "UTF-16"),
])
def test_a_wrong_file_is_recognised(data: bytes, words: str) -> None:
    error = refused(data)
    assert (error.line, error.column) == (1, "timestamp") and words in str(error)


@pytest.mark.parametrize("hostile", [b"<script>alert(1)</script>" * 1000, b"\x1b[31m\x00\xff" * 1000, "\u202e".encode() * 1000,
                                     b"'" * 1000, b"\\" * 1000])
def test_a_hostile_value_is_cut_and_escaped_in_the_message(hostile: bytes) -> None:
    texts = [hostile, ROW + hostile, row(hostile.decode("utf-8", "replace")), row(ids=[hostile.decode("utf-8", "replace"), 1])]
    for data in texts:
        message = str(refused(data))
        assert message.isprintable() and len(message) < 300


# ---------------------------------------------------------------------------------------- what it may cost

SIZE = 20_000_000


@pytest.mark.parametrize(("make", "line"), [
    (lambda: np.random.default_rng(1).bytes(SIZE).replace(b"\x00", b"x"), 1),
    (lambda: ROW + np.random.default_rng(1).bytes(SIZE), 2),
    (lambda: b"x" * SIZE, 1),
    (lambda: b"{" * SIZE, 1),
    (lambda: ROW + b"[" * SIZE, 2),
    (lambda: b"{}\n" * (SIZE // 3), 1),
    (lambda: ROW + b"\n" * SIZE + b"x", 2),
    (lambda: ROW + b"\x00" * SIZE, 2),
    (lambda: b'{"hash_ids": [' + b"0," * (SIZE // 2), 1),
], ids=["noise", "noise after a row", "one line", "objects in objects", "lists in lists", "no fields", "blanks", "zeros",
        "one list"])
def test_twenty_megabytes_of_garbage_cost_one_line_of_work(
        make: Callable[[], bytes], line: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data, parsed = make(), []
    record = jsonl._record
    monkeypatch.setattr(jsonl, "_record", lambda text, *rest: (parsed.append(len(text)), record(text, *rest))[1])
    tracemalloc.start()
    error = refused(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert error.line == line
    assert len(parsed) <= 2 and sum(parsed) <= jsonl.MAX_LINE + len(ROW)
    assert peak < 3 * SIZE


@pytest.mark.parametrize("ids", [list(range(10**6, 10**6 + 2000)), [10**12] * 2000], ids=["one run", "no runs"])
def test_memory_for_a_good_file_is_a_small_multiple_of_its_size(ids: list[int]) -> None:
    data = row(0, 2000 * 512, 1, ids).replace(b" ", b"") * 100
    tracemalloc.start()
    mooncake.read(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 * len(data)


def test_blocks_of_two_characters_are_bounded_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each would become a run of 24 bytes. A file of the largest size whose ids have six digits stays below the bound.
    assert jsonl.MAX_BLOCKS * len("100000,") >= MAX_BYTES
    monkeypatch.setattr(jsonl, "MAX_BLOCKS", 5000)
    error = refused(row(0, 2000 * 512, 1, [0] * 2000) * 10)
    assert (error.line, error.column) == (3, "hash_ids") and "more than 5,000 blocks" in str(error)


def test_no_more_is_read_than_the_limit() -> None:
    asked = []

    class Endless(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            asked.append(size)
            return b"x" * size

    with pytest.raises(ReaderError, match="20 MiB"):
        mooncake.read(Endless())
    assert sum(asked) <= MAX_BYTES + 1


# --------------------------------------------------------------------------------------------- guessed sessions

def test_a_guessed_session_is_the_second_block() -> None:
    trace = mooncake.read(row(0, 1300, 1, [0, 1, 2]) + row(0, 1024, 1, [0, 5]) + row(0, 1024, 1, [4, 5]) + row(0, 9, 1, [9])
                          + row(0, 513, 1, [3, 4]))
    assert mooncake.guess_sessions(trace).session.tolist() == [1, 5, 5, 9, 4]
    with pytest.raises(ValueError, match="without content"):
        mooncake.guess_sessions(Trace([0], [1], [1]))
