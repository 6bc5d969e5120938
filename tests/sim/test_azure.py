"""Azure's trace files: what is read, exactly; what is refused, where and why; and what a hostile file may cost."""

from __future__ import annotations

import io
import re
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.readers import MAX_BYTES, READERS, ReaderError, azure
from sim.trace import Trace

DATA = Path(__file__).parents[1] / "data"
REAL = Path(__file__).parents[3] / "shared" / "traces" / "AzureLLMInferenceTrace_conv.csv"
HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = b"2023-11-16 18:15:46.6805900,374,44\n"


def refused(data: bytes) -> ReaderError:
    with pytest.raises(ReaderError) as caught:
        azure.read(data)
    return caught.value


# --------------------------------------------------------------------------------------------------- what is read

def test_2023_crlf_seven_digits_no_final_newline() -> None:
    data = (DATA / "azure_2023.csv").read_bytes()
    assert b"\r\n" in data and not data.endswith(b"\n")  # else Git has changed the file
    trace = azure.read(data, name="by hand")
    # By hand, from 23:59:58.5: +0.75 s; 59.9999995 is half a µs from 60 and rounds to the even 60.000000, so +1.5 s;
    # 0.0000014 after midnight rounds to 1 µs; 00:01:00.5 is 62 s later.
    assert trace.arrival_us.tolist() == [0, 750_000, 1_500_000, 1_500_001, 62_000_000]
    assert trace.prompt.tolist() == [374, 396, 879, 91, 14050]
    assert trace.output.tolist() == [44, 109, 55, 16, 1000]
    assert trace.name == "by hand"


def test_2024_two_timestamp_formats_in_one_file_across_a_leap_day() -> None:
    trace = azure.read(DATA / "azure_2024.csv")
    # 59.998837 to midnight: 1,163 µs; 29 February 2024 exists and has 86,400 s; one µs more.
    assert trace.arrival_us.tolist() == [0, 1163, 1163, 86_400_001_164]
    assert trace.prompt.tolist() == [5, 1200, 37, 2048]
    assert trace.output.tolist() == [1, 90, 8, 300]
    assert trace.name == "azure_2024.csv"


def test_bytes_an_open_file_and_a_path_give_the_same() -> None:
    path = DATA / "azure_2023.csv"
    read = READERS["azure"]
    with path.open("rb") as file:
        assert read(path) == read(path.read_bytes()) == read(io.BytesIO(path.read_bytes())) == read(file)


@pytest.mark.parametrize("data", [
    b"\xef\xbb\xbf" + HEADER + ROW,
    HEADER + ROW + b"\r\n\n\n",
    HEADER.replace(b"\n", b"\r\n") + ROW,
    HEADER + ROW.strip(),
    HEADER + ROW.strip() + b"\r\n",
], ids=["byte-order mark", "blank lines at the end", "mixed line ends", "no final newline", "other line ends mixed"])
def test_what_editors_do_to_a_file_is_let_pass(data: bytes) -> None:
    assert azure.read(data) == Trace([0], [374], [44])


@pytest.mark.parametrize(("fraction", "micros"), [
    ("", 0), (".1", 100_000), (".000001", 1), (".0000005", 0), (".0000015", 2), (".0000025", 2), (".0000026", 3),
    (".000000501", 1), (".999999499", 999_999), (".9999995", 1_000_000),
])
def test_fractions_round_half_to_even_microseconds(fraction: str, micros: int) -> None:
    data = HEADER + f"2023-12-31 23:59:59,1,1\n2023-12-31 23:59:59{fraction}+00:00,1,1".encode()
    assert azure.read(data).arrival_us.tolist() == [0, micros]


@pytest.mark.parametrize(("date", "exists"), [
    ("2024-02-29", True), ("2023-02-29", False), ("1900-02-29", False), ("2000-02-29", True), ("2023-02-30", False),
    ("2023-04-31", False), ("2023-12-31", True), ("2023-13-01", False), ("2023-00-01", False), ("2023-01-00", False),
    ("0000-01-01", False),
])
def test_the_calendar_is_kept(date: str, exists: bool) -> None:
    data = HEADER + f"{date} 00:00:00,1,1".encode()
    if exists:
        assert len(azure.read(data)) == 1
    else:
        error = refused(data)
        assert (error.line, error.column) == (2, "TIMESTAMP") and "does not exist" in str(error)


@pytest.mark.skipif(not REAL.exists(), reason=f"the real trace is not at {REAL}")
def test_the_real_conversation_trace_of_2023() -> None:
    trace = azure.read(REAL)  # figures: papers/FACTS.md section 9
    assert len(trace) == 19_366
    assert trace.prompt.mean() == pytest.approx(1154.7, abs=0.05) and trace.output.mean() == pytest.approx(211.1, abs=0.05)
    assert trace.arrival[-1] == pytest.approx(3502, abs=1)
    assert (np.median(trace.prompt), np.percentile(trace.prompt, 99), trace.prompt.max()) == (1020, 4142, 14050)
    assert (np.median(trace.output), np.percentile(trace.output, 99), trace.output.max()) == (129, 601, 1000)
    gaps = np.diff(trace.arrival)
    assert gaps.std() / gaps.mean() == pytest.approx(1.09, abs=0.005)


# ------------------------------------------------------------------------------------------------ what is refused

@pytest.mark.parametrize(("row", "column", "words"), [
    (b"2023-11-16 18:15:46,374,-3", "GeneratedTokens", "'-3' is negative"),
    (b"2023-11-16 18:15:46,0,3", "ContextTokens", "'0' is zero"),
    (b"2023-11-16 18:15:46,10000001,3", "ContextTokens", "'10000001' is out of range"),
    (b"2023-11-16 18:15:46,3,999999999999999999999999", "GeneratedTokens", "is out of range"),
    (b"2023-11-16 18:15:46,3.5,3", "ContextTokens", "'3.5' is not a whole number"),
    (b"2023-11-16 18:15:46,1e3,3", "ContextTokens", "'1e3' is not a whole number"),
    (b"2023-11-16 18:15:46,nan,3", "ContextTokens", "'nan' is not a whole number"),
    (b"2023-11-16 18:15:46, 5,3", "ContextTokens", "' 5' is not a whole number"),
    (b"2023-11-16 18:15:46,+5,3", "ContextTokens", "'+5' is not a whole number"),
    ("2023-11-16 18:15:46,٣,3".encode(), "ContextTokens", "is not a whole number"),
    (b"2023-11-16 18:15:46,,3", "ContextTokens", "'' is missing"),
    (b"2023-11-16 18:15:46,3,", "GeneratedTokens", "'' is missing"),
    (b"2023-11-16 18:15:46,3,\x00", "GeneratedTokens", r"'\x00' is not a whole number"),
    (b'2023-11-16 18:15:46,3,"44"', "GeneratedTokens", "is quoted"),
    (b'"2023-11-16 18:15:46",3,44', "TIMESTAMP", "is quoted"),
    (b",3,44", "TIMESTAMP", "'' is missing"),
    (b"1700158546,3,44", "TIMESTAMP", "'1700158546' is not a timestamp"),
    (b"2023-11-16,3,44", "TIMESTAMP", "'2023-11-16' is not a timestamp"),
    (b"2023-11-16T18:15:46,3,44", "TIMESTAMP", "is not a timestamp"),
    (b"2023-11-16 18:15:46.,3,44", "TIMESTAMP", "is not a timestamp"),
    (b"2023-11-16 18:15:46.1234567890,3,44", "TIMESTAMP", "is not a timestamp"),
    (b"2023-11-16 18:15:46+02:00,3,44", "TIMESTAMP", "is not written as UTC"),
    (b"2023-11-16 18:15:46Z,3,44", "TIMESTAMP", "is not written as UTC"),
    (b"2023-11-16 24:00:00,3,44", "TIMESTAMP", "does not exist"),
    (b"2023-11-16 18:60:00,3,44", "TIMESTAMP", "does not exist"),
    (b"2023-11-16 18:15:60,3,44", "TIMESTAMP", "does not exist"),
    (b"2023-11-16 18:15:45,3,44", "TIMESTAMP", "0.68059 s before the one above it"),
    (b"2095-11-16 18:15:46,3,44", "TIMESTAMP", "after the first one"),
    (b"2023-11-16 18:15:46,3", "GeneratedTokens", "has 2 fields"),
    (b"2023-11-16 18:15:46", "ContextTokens", "has 1 field;"),
    (b"2023-11-16 18:15:46,3,44,", "4", "has 4 fields"),
    (b"," * 1000, "4", "has 1001 fields"),
    (b"", "ContextTokens", "the line is blank"),
    (b"2023-11-16 18:15:46\r2023-11-16 18:15:46,3,44", "TIMESTAMP", "is not a timestamp"),
])
def test_a_bad_row_is_named_by_line_and_column(row: bytes, column: str, words: str) -> None:
    first = b"2023-11-16 18:15:45.680590,374,44\n"
    error = refused(HEADER + first * 15 + row + b"\n2099-11-16 18:15:46,1,1\n")
    assert (error.line, error.column) == (17, column)  # header, 15 rows, then this one
    assert str(error).startswith(f"line 17, column {column}: ") and words in str(error)


def test_the_first_bad_line_is_the_one_named() -> None:
    data = HEADER + ROW + ROW.replace(b"374", b"x") + b"one field\n" + ROW.replace(b"44", b"y")
    assert (refused(data).line, refused(data).column) == (3, "ContextTokens")
    data = HEADER + ROW + b"one field\n" + ROW.replace(b"374", b"x")
    assert (refused(data).line, refused(data).column) == (3, "ContextTokens")


@pytest.mark.parametrize(("head", "column", "words"), [
    (b"", "TIMESTAMP", "the file is empty"),
    (b" \r\n\n", "TIMESTAMP", "the file is empty"),
    (b"\xef\xbb\xbf", "TIMESTAMP", "must be TIMESTAMP,ContextTokens,GeneratedTokens"),
    (b"TIMESTAMP,ContextTokens\n", "GeneratedTokens", "not 'TIMESTAMP,ContextTokens'"),
    (b"TIMESTAMP,contexttokens,GeneratedTokens\n", "ContextTokens", "not 'TIMESTAMP,contexttokens"),
    (b"TIMESTAMP,ContextTokens,GeneratedTokens,Model\n", "4", "must be"),
    (b"TIMESTAMP;ContextTokens;GeneratedTokens\n", "TIMESTAMP", "semicolons"),
    (b"TIMESTAMP\tContextTokens\tGeneratedTokens\n", "TIMESTAMP", "tabs"),
    (b'"TIMESTAMP","ContextTokens","GeneratedTokens"\n', "TIMESTAMP", "quotes"),
    (b"TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n", "ContextTokens", "multimodal"),
    (ROW, "TIMESTAMP", "without the header"),
    (b"\n" + HEADER, "TIMESTAMP", "not ''"),
    (b'{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n', "TIMESTAMP", "Mooncake"),
    (b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,x\n", "TIMESTAMP", "BurstGPT"),
    (b"arrived_at,num_prefill_tokens,num_decode_tokens\n", "TIMESTAMP", "Vidur"),
    (b"num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n", "TIMESTAMP", "without arrival times"),
    (b"version https://git-lfs.github.com/spec/v1\n", "TIMESTAMP", "Git LFS pointer"),
    (b"<!DOCTYPE html>\n", "TIMESTAMP", "web page"),
    ("TIMESTAMP".encode("utf-16"), "TIMESTAMP", "UTF-16"),
    ("TIMESTAMP".encode("utf-16-be"), "TIMESTAMP", "UTF-16"),
    (b"\x1f\x8b\x08\x00", "TIMESTAMP", "gzip"),
    (b"PK\x03\x04\x14", "TIMESTAMP", "zip"),
])
def test_a_wrong_first_line_is_named_and_recognised(head: bytes, column: str, words: str) -> None:
    error = refused(head)
    assert (error.line, error.column) == (1, column) and words in str(error)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n\r\n"])
def test_a_header_without_rows_is_refused(end: bytes) -> None:
    error = refused(HEADER.strip() + end)
    assert (error.line, error.column) == (2, "TIMESTAMP") and "no row follows" in str(error)


@pytest.mark.parametrize("hostile", [b"<script>alert(1)</script>" * 1000, b"\x1b[31m\x00\xff" * 1000, "\u202e".encode() * 1000,
                                     b"'" * 1000, b"\\" * 1000])
def test_a_hostile_value_is_cut_and_escaped_in_the_message(hostile: bytes) -> None:
    message = str(refused(HEADER + b"2023-11-16 18:15:46," + hostile + b",1"))
    assert message.isprintable() and len(message) < 200
    for data in (hostile, HEADER + hostile):
        message = str(refused(data))
        assert message.isprintable() and len(message) < 200


# ---------------------------------------------------------------------------------------- what it may cost

SIZE = 20_000_000


@pytest.mark.parametrize(("make", "line"), [
    (lambda: np.random.default_rng(1).bytes(SIZE).replace(b"\x00", b"x"), 1),
    (lambda: HEADER + np.random.default_rng(1).bytes(SIZE), 2),
    (lambda: HEADER + b"," * SIZE, 2),
    (lambda: HEADER + b"x" * SIZE, 2),
    (lambda: HEADER + b"x\n" * (SIZE // 2), 2),
    (lambda: HEADER + b",,\n" * (SIZE // 3), 2),
    (lambda: HEADER + b"\n" * SIZE + b"x", 2),
    (lambda: HEADER + b"\r\n" * (SIZE // 2) + b"x", 2),
    (lambda: HEADER + ROW + b"\x00" * SIZE, 3),
], ids=["noise", "noise after the header", "commas", "one line", "short lines", "no values", "blanks", "blanks in CRLF", "zeros"])
def test_twenty_megabytes_of_garbage_cost_one_block_of_work(
        make: Callable[[], bytes], line: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make()
    parsed = []
    rows = azure._rows
    monkeypatch.setattr(azure, "_rows", lambda block, line: (parsed.append(len(block)), rows(block, line))[1])
    tracemalloc.start()
    error = refused(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert error.line == line
    assert len(parsed) <= 1 and sum(parsed) <= azure._BLOCK
    assert peak < 6 * SIZE


def test_memory_for_a_good_file_is_a_small_multiple_of_its_size() -> None:
    data = HEADER + ROW * (SIZE // len(ROW))
    tracemalloc.start()
    assert len(azure.read(data)) == SIZE // len(ROW)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * SIZE


def test_no_more_is_read_than_the_limit() -> None:
    class Endless(io.RawIOBase):
        asked = 0

        def read(self, size: int = -1) -> bytes:
            assert size > 0
            self.asked += size
            return b"x" * size

    endless = Endless()
    with pytest.raises(ReaderError, match="20 MiB"):
        azure.read(endless)
    assert endless.asked <= MAX_BYTES + 1


def test_a_huge_file_on_disk_is_refused_for_its_size_without_being_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "huge.csv"
    with path.open("wb") as file:
        file.truncate(2**30)  # a hole: takes no room on the disk
    tracemalloc.start()
    with pytest.raises(ReaderError, match="20 MiB"):
        azure.read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * MAX_BYTES


# --------------------------------------------------------------------------------------------- for any file

def reference(data: bytes) -> list[tuple[int, int, int]] | None:
    """The rows as the standard library reads them line by line: (µs since the first, prompt, output); None: refused."""
    lines = data.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n").split(b"\n")
    if lines.pop(0).removesuffix(b"\r") != HEADER.strip() or not lines:
        return None
    rows = []
    for line in lines:
        match = re.fullmatch(rb"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.(\d{1,9}))?(\+00:00)?,(\d{1,8}),(\d{1,8})\r?", line)
        try:
            when = datetime.strptime(match[1].decode(), "%Y-%m-%d %H:%M:%S") if match else None
        except ValueError:
            return None
        if when is None or when.second == 61 or not all(1 <= int(match[i]) <= 10_000_000 for i in (5, 6)):
            return None
        fraction = Fraction(int(match[3] or 0), 10 ** len(match[3] or b"")) * 10**6
        rows.append(((when - datetime(1970, 1, 1)) // timedelta(microseconds=1) + round(fraction), int(match[5]), int(match[6])))
    times = [row[0] for row in rows]
    if times != sorted(times) or times[-1] - times[0] > 2**51:
        return None
    return [(time - times[0], prompt, output) for time, prompt, output in rows]


def agrees_with_reference(data: bytes) -> None:
    expected = reference(data)
    try:
        trace = azure.read(data)
    except ReaderError as error:
        assert expected is None
        assert error.line is not None and error.column is not None and str(error).isprintable()
    else:
        assert expected == list(zip(trace.arrival_us.tolist(), trace.prompt.tolist(), trace.output.tolist(), strict=True))


@given(st.binary())
def test_any_bytes_are_a_trace_or_a_reader_error(data: bytes) -> None:
    agrees_with_reference(data)
    agrees_with_reference(HEADER + data)


@given(st.text("0123456789-: .+,\r\n\"x", max_size=200))
def test_any_text_of_the_formats_own_characters(text: str) -> None:
    agrees_with_reference(HEADER + text.encode())


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A valid file of a few rows in either year's style."""
    times = sorted(draw(st.lists(st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1)), min_size=1, max_size=6)))
    rows, more = [], draw(st.sampled_from(["", "0", "4", "500", "501"]))
    for time in times:
        fraction = f".{time.microsecond:06d}{more}"
        zone = draw(st.sampled_from(["", "+00:00"]))
        counts = draw(st.tuples(st.integers(1, 10_000_000), st.integers(1, 10_000_000)))
        rows.append(f"{time:%Y-%m-%d %H:%M:%S}{fraction if time.microsecond else ''}{zone},{counts[0]},{counts[1]}".encode())
    newline = draw(st.sampled_from([b"\n", b"\r\n"]))
    return newline.join([HEADER.strip(), *rows, *draw(st.sampled_from([[], [b""]]))])


@given(files(), st.integers(60, 400))
def test_valid_files_are_read_as_the_standard_library_reads_them(data: bytes, block: int) -> None:
    assert reference(data) is not None
    agrees_with_reference(data)
    with pytest.MonkeyPatch.context() as patch:  # the same, wherever the blocks are cut
        patch.setattr(azure, "_BLOCK", block)
        agrees_with_reference(data)


@given(files(), st.integers(0), st.sampled_from(["replace", "insert", "delete"]), st.binary(min_size=1, max_size=2))
def test_one_changed_place_is_read_or_refused_as_by_the_standard_library(data: bytes, at: int, how: str, new: bytes) -> None:
    at %= len(data)
    agrees_with_reference(data[:at] + (b"" if how == "delete" else new) + data[at + (how != "insert"):])


@given(st.integers(0, 199), st.integers(80, 2000))
def test_the_line_is_right_wherever_the_blocks_are_cut(bad: int, block: int) -> None:
    rows = [ROW] * 200
    rows[bad] = ROW.replace(b"374", b"x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(azure, "_BLOCK", block)
        error = refused(HEADER + b"".join(rows))
    assert (error.line, error.column) == (bad + 2, "ContextTokens")


def test_utc_is_what_both_styles_mean() -> None:
    trace = azure.read(HEADER + b"2023-11-16 18:15:46,1,1\n2023-11-16 18:15:47+00:00,1,1")
    gap = datetime(2023, 11, 16, 18, 15, 47, tzinfo=UTC) - datetime(2023, 11, 16, 18, 15, 46, tzinfo=UTC)
    assert trace.arrival.tolist() == [0, gap.total_seconds()]
