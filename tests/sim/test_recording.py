"""Recordings of vLLM's scheduler: what is read, exactly; what is refused, where and why; and what a hostile file may cost."""

from __future__ import annotations

import copy
import gzip
import io
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine import simulate
from sim.readers import MAX_BYTES, ReaderError
from sim.readers.recording import Recording, read
from sim.service import Affine
from tests.conftest import ROOT

ASSET = ROOT / "assets" / "vllm_kv_scarce.json.gz"
DATA = ROOT / "tests" / "peers" / "data" / "vllm"

SMALL: dict[str, Any] = {  # the form of ../shared/peers/vllm/FORMAT.md
    "name": "by hand",
    "input": {
        "config": {
            "max_num_seqs": 4, "max_num_batched_tokens": 64, "max_num_scheduled_tokens": None, "max_num_active_seqs": None,
            "block_size": 4, "num_gpu_blocks": 11, "max_model_len": 128, "enable_chunked_prefill": True,
            "long_prefill_token_threshold": 0, "long_prefill_token_threshold_adaptive": False, "enable_prefix_caching": False,
            "policy": "fcfs", "scheduler_reserve_full_isl": True, "watermark": 0.0, "prefill_schedule_interval": 1,
            "async_scheduling": False,
        },
        "step_time": {"base_us": 100, "per_token_us": 10, "per_request_us": 1},
        "trace": [
            {"arrival_us": 7, "prompt_len": 5, "output_len": 3},
            {"arrival_us": 0, "prompt_len": 6, "output_len": 2, "priority": 3, "abort_us": 900},
        ],
    },
    "output": {"steps": [{"k": 0, "t0": 0, "free": 8}, {"k": None, "idle": True}, {"k": 1, "t0": 161, "free": 5}]},
}


def packed(recording: object) -> bytes:
    return json.dumps(recording).encode()


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    recording = copy.deepcopy(SMALL)
    change(recording)
    return packed(recording)


def zipped(data: bytes) -> bytes:
    """`data` compressed, without the time of day: what is built when tests are collected must be one in every worker."""
    return gzip.compress(data, mtime=0)


def refused(data: bytes) -> str:
    with pytest.raises(ReaderError) as caught:
        read(data)
    return str(caught.value)


# ---- what is read


def test_a_small_recording_by_hand() -> None:
    recording = read(packed(SMALL), "mine")
    trace, policy, memory = recording.trace, recording.policy, recording.policy.memory
    assert trace.arrival_us.tolist() == [0, 7]  # by arrival, whatever the order in the file
    assert (trace.prompt.tolist(), trace.output.tolist()) == ([6, 5], [2, 3])
    assert trace.priority is not None and trace.priority.tolist() == [3, 0]
    assert trace.cancel_us is not None and trace.cancel_us.tolist() == [900, np.inf]
    assert recording.clock == Affine(100, 10, 1)
    assert memory is not None and (memory.blocks, memory.block_size) == (10, 4)  # vLLM keeps one of its 11 blocks to itself
    assert (policy.slots, policy.budget, policy.longest, policy.prompts) == (4, 64, 128, "chunked")
    assert (recording.free.tolist(), recording.t0.tolist()) == ([8, 5], [0, 161])  # the step without a number is none
    assert (recording.name, trace.name) == ("mine", "mine")


def test_gzip_a_path_an_open_file_and_a_byte_order_mark_give_the_same(tmp_path: Path) -> None:
    path = tmp_path / "one.json.gz"
    path.write_bytes(zipped(packed(SMALL)))
    found = [read(path), read(path.read_bytes()), read(io.BytesIO(packed(SMALL))), read(b"\xef\xbb\xbf" + packed(SMALL))]
    assert len({recording.trace.digest for recording in found}) == 1
    assert found[0].name == "one"


def test_a_reply_that_a_later_prompt_quotes_is_its_stream() -> None:
    # FORMAT.md: token k that request i generates is stream 2,000,000 + i; a prompt without segments stream 1,000,000 + i.
    data = changed(lambda d: d["input"]["trace"][0].update(prompt_segments=[[7, 0, 3], [2_000_001, 0, 2]]))
    content = read(data).trace.content
    assert content is not None
    assert content.reply.tolist() == [2_000_001, 2_000_000]
    assert list(zip(content.stream.tolist(), content.start.tolist(), content.length.tolist(), strict=True)) == [
        (1_000_001, 0, 6), (7, 0, 3), (2_000_001, 0, 2),
    ]


def free_at_row_ends(recording: Recording) -> tuple[list[int], list[int], int]:
    run = simulate(recording.trace, recording.clock, recording.policy)
    last = np.cumsum(run.steps.count) - 1
    return run.steps.free.tolist(), recording.free[last].tolist(), int(last[-1]) + 1


def test_run_again_the_shipped_recording_leaves_as_many_blocks_free_at_every_row() -> None:
    recording = read(ASSET)
    ours, theirs, steps = free_at_row_ends(recording)
    assert ours == theirs
    assert steps == len(recording.free) == len(recording.t0) == 507  # output.num_steps of the file
    assert min(ours) == 0, "the memory does run out"
    assert recording.name == "vllm_kv_scarce"


@pytest.mark.parametrize("path", sorted(DATA.glob("*.json.gz")), ids=lambda path: path.name.removesuffix(".json.gz"))
def test_every_peer_file_reads_and_agrees_or_says_why_not(path: Path) -> None:
    if path.name == "no_reserve_never_fits.json.gz":  # vLLM itself never ends here; its recording was cut after 60 steps
        assert refused(path.read_bytes()).startswith("input.trace[0]: needs 38 blocks of 32;")
        return
    recording = read(path)
    if len(recording.free):
        ours, theirs, steps = free_at_row_ends(recording)
        assert (ours, steps) == (theirs, len(recording.free))
    else:
        assert path.name.startswith("large5000_")


# ---- what is refused, and where


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.pop("input"), "input is missing"),
        (lambda d: d.update(input=[]), "input must be an object {…}, not a list"),
        (lambda d: d.pop("output"), "output is missing"),
        (lambda d: d["input"].update(trace={}), "input.trace must be a list […], not an object"),
        (lambda d: d["input"].update(trace=[]), "input.trace must have 1 to 5,000 elements, not 0"),
        (lambda d: d["input"].update(trace=d["input"]["trace"] * 2501), "input.trace must have 1 to 5,000 elements, not 5,002"),
        (lambda d: d["input"]["trace"].append(3), "input.trace[2] must be an object {…}, not 3"),
        (lambda d: d["input"]["trace"][1].pop("prompt_len"), "input.trace[1].prompt_len is missing"),
        (lambda d: d["input"]["trace"][1].update(prompt_len=0), "input.trace[1].prompt_len must be a whole number from 1 to"),
        (lambda d: d["input"]["trace"][1].update(prompt_len="6"), "input.trace[1].prompt_len must be a whole number from 1 to"),
        (lambda d: d["input"]["trace"][1].update(prompt_len=6.0), "input.trace[1].prompt_len must be a whole number from 1 to"),
        (lambda d: d["input"]["trace"][1].update(prompt_len=True), "input.trace[1].prompt_len must be a whole number from 1 to"),
        (lambda d: d["input"]["trace"][0].update(output_len=10**30), "input.trace[0].output_len must be a whole number from 1"),
        (lambda d: d["input"]["trace"][0].update(arrival_us=-1), "input.trace[0].arrival_us must be a whole number from 0 to"),
        (lambda d: d["input"]["trace"][0].update(abort_us=6), "input.trace[0].abort_us must be a whole number from 7 to"),
        (lambda d: d["input"]["trace"][0].update(priority=None), "input.trace[0].priority must be a whole number from"),
        (lambda d: d["input"]["trace"][0].update(prompt_segments=[[7, 0, 4]]),
         "input.trace[0].prompt_segments have 4 tokens, but prompt_len is 5"),
        (lambda d: d["input"]["trace"][0].update(prompt_segments=[[7, 0, 4], [8, 1]]),
         "input.trace[0].prompt_segments[1] must be [stream, start, length]"),
        (lambda d: d["input"]["trace"][0].update(prompt_segments=[[7, 2**20 - 4, 5]]), "before place 1048576 of its stream"),
        (lambda d: d["input"]["step_time"].update(base_us=1.5), "input.step_time.base_us must be a whole number from 0 to"),
        (lambda d: d["input"]["step_time"].update(base_us=0, per_token_us=0), "a step must take time"),
        (lambda d: d["input"]["config"].update(num_gpu_blocks=2), "input.config.num_gpu_blocks must be a whole number from 3"),
        (lambda d: d["input"]["config"].update(block_size=2**21), "input.config.block_size must be a whole number from 1 to"),
        (lambda d: d["input"]["config"].update(enable_prefix_caching=1), "input.config.enable_prefix_caching must be true or"),
        (lambda d: d["input"]["config"].update(policy=["fcfs"]), 'input.config.policy must be "fcfs" or "priority", not a list'),
        (lambda d: d["input"]["config"].update(watermark="0"), "input.config.watermark must be a share from 0 to 1, not '0'"),
        (lambda d: d["input"]["config"].update(watermark=1.01), "input.config.watermark must be a share from 0 to 1, not 1.01"),
        (lambda d: d["input"]["config"].update(async_scheduling=True), "input.config.async_scheduling is on"),
        (lambda d: d["input"]["config"].pop("max_model_len"), "input.config.max_model_len is missing"),
        (lambda d: d["output"].update(steps={}), "output.steps must be a list"),
        (lambda d: d["output"]["steps"].__setitem__(0, None), "output.steps[0] must be an object {…}, not null"),
        (lambda d: d["output"]["steps"][0].pop("free"), "output.steps[0].free is missing"),
        (lambda d: d["output"]["steps"][2].update(free=11), "output.steps[2].free must be a whole number from 0 to 10, not 11"),
        (lambda d: d["output"]["steps"][2].update(k=2), "output.steps[2].k must be a whole number from 1 to 1, not 2"),
        (lambda d: d["output"]["steps"][0].update(t0=162), "output.steps[2].t0 must be a whole number from 162 to"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(change: Callable[[dict[str, Any]], object], says: str) -> None:
    message = refused(changed(change))
    assert says in message
    assert len(message) < 250


def test_what_never_ends_is_refused() -> None:
    # 38 + 4 − 1 = 41 tokens have KV, 11 blocks of 4, one more than there are; the other needs 2.
    def change(d: dict[str, Any]) -> None:
        d["input"]["config"].update(scheduler_reserve_full_isl=False)
        d["input"]["trace"][0].update(prompt_len=38, output_len=4)

    assert refused(changed(change)).startswith("input.trace[0]: needs 11 blocks of 10; without scheduler_reserve_full_isl")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "the file is empty"),
        (b"   \n", "the file is empty"),
        (b"[1, 2]", "the file must be an object {…}, not a list"),
        (b"PK\x03\x04", "is a zip archive"),
        (b"TIMESTAMP,ContextTokens\n1,2", "line 1, column 1: this is not JSON"),
        (b'{"input": {\n  "config": }}', "line 2, column 13: this is not JSON"),
        (b'{"input": NaN}', "NaN is in the file"),
        (b'{"input": -Infinity}', "-Infinity is in the file"),
        (b'{"input": "\xff"}', "byte 12 is not UTF-8"),
        (b'{"input": ' + b"9" * 5000 + b"}", "a number of 5000 digits"),
        (b"[" * 200_000, "the file nests brackets hundreds deep"),
        (b'{"a":' * 200_000, "the file nests brackets hundreds deep"),
        (b"[" * 400_001, "more than 2,000,000 values or 400,000 brackets"),
        (b"[" + b"1," * 2_000_001, "more than 2,000,000 values or 400,000 brackets"),
        (b" " * (MAX_BYTES + 1), "larger than 20 MiB"),
        (zipped(b" " * (MAX_BYTES + 1)), "unpacks to more than 20 MiB"),
        (b"\x1f\x8b" + b"\x00" * 20, "the file is damaged"),
        (zipped(packed(SMALL))[:-9], "the file is cut off"),
        (zipped(packed(SMALL))[:5], "the file is cut off"),
        (zipped(packed(SMALL)) + zipped(b"{}"), "bytes follow the gzip stream"),
        (zipped(zipped(packed(SMALL))), "is compressed (gzip)"),
        (zipped(b""), "the file is empty"),
    ],
)
def test_files_that_are_no_recording(data: bytes, says: str) -> None:
    assert says in refused(data)


def test_a_damaged_byte_in_the_gzip_stream_is_noticed() -> None:
    data = bytearray(ASSET.read_bytes())
    data[-6] ^= 1  # in the checksum
    assert "the file is damaged" in refused(bytes(data))


# ---- what a hostile file may cost


@pytest.mark.parametrize("data", [
    gzip.compress(b"[" * 200_000_000, 9),  # 200 MB in 0.2 MB
    b'{"a":' + b'"bc",' * 1_999_999,
    b"[" + b"[]," * 399_000 + b"1]",
    b"[" + b"999," * 1_999_000 + b"1]",
], ids=["bomb", "strings", "lists", "numbers"])
def test_a_hostile_file_takes_bounded_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        refused(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * MAX_BYTES


def test_as_many_tokens_as_would_run_for_minutes_are_refused() -> None:
    # 5,000 requests of 1,000 + 1,000 tokens are 10 million; the 2,001st is the first beyond 4 million.
    request = {"arrival_us": 0, "prompt_len": 1000, "output_len": 1000}
    message = refused(changed(lambda d: d["input"].update(trace=[request] * 5000)))
    assert message == "input.trace[2000]: up to here prompts and outputs have more than 4,000,000 tokens"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value: object, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way, *(place for key, below in inner for place in places(below, (*way, key)))]


@settings(max_examples=300, deadline=None)
@given(place=st.sampled_from(places(SMALL)[1:]), value=VALUES)
def test_any_value_in_any_place_is_read_or_refused_as_a_reader_error(place: tuple[Any, ...], value: object) -> None:
    def change(recording: dict[str, Any]) -> None:
        holder: Any = recording
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] = value

    try:
        assert isinstance(read(changed(change)), Recording)
    except ReaderError as error:
        assert 0 < len(str(error)) < 300


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, 400), put=st.binary(min_size=1, max_size=3))
def test_any_bytes_overwritten_are_read_or_refused_as_a_reader_error(at: int, put: bytes) -> None:
    for whole in (packed(SMALL), zipped(packed(SMALL))):
        data = whole[:at] + put + whole[at + len(put) :]
        try:
            assert isinstance(read(data), Recording)
        except ReaderError as error:
            assert 0 < len(str(error)) < 300
