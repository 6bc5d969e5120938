"""Recording: what vLLM's scheduler decided on a trace, step by step → Trace, Policy, clock and the free blocks it counted.

JSON, plain or in one gzip stream; the format is ../shared/peers/vllm/FORMAT.md, the rules ../shared/peers/vllm/SEMANTICS.md.
A file is data from strangers: what is in it is bounded before it is taken apart, every value that we use is checked, and
what is wrong is told with its place, as "input.trace[3].prompt_len".
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from sim.policy import MOST_BLOCK, Memory, Policy
from sim.readers.source import MAX_BYTES, ReaderError, load, shown
from sim.service import Affine
from sim.trace import MAX_US, Content, Trace

MOST_REQUESTS = 5_000  # as many as the largest of ../shared/peers/vllm has
MOST_TOKENS = 4_000_000  # prompts and outputs of all requests: twice those of the largest
_MOST_VALUES, _MOST_HOLDERS = 2_000_000, 400_000  # commas, brackets: a value that takes two bytes here takes sixty in memory
_MOST = 1 << 40  # as Policy has it
_POSITIONS = 1 << 20  # the format's token ids leave so many places to a stream
_MOST_BLOCKS = 1 << 24


@dataclass(frozen=True, eq=False)
class Recording:
    """A recorded run, ready to be run again and compared.

    trace, policy, clock  what vLLM was given: the requests by arrival, its configuration as a Policy, its step times
    free    int64[steps]    blocks free after the decisions of each step; empty where the file does not list its steps
    t0      float64[steps]  start of each step, µs
    name    of the file
    """

    trace: Trace
    policy: Policy
    clock: Affine
    free: NDArray[np.int64]
    t0: NDArray[np.float64]
    name: str


def read(source: bytes | BinaryIO | Path, name: str = "") -> Recording:
    """The recording in a file: its content, an open binary file, or its path (whose name is the recording's, unless given).

    Raises ReaderError, a ValueError, for anything else than a recording that can be run again; OSError from the disk.
    """
    if not name and isinstance(source, Path):
        name = source.name.removesuffix(".gz").removesuffix(".json")
    top = _Object(_parse(_unpacked(source)), "")
    given, output = top.inner("input"), top.inner("output")
    config = given.inner("config")
    _check_config(config)
    policy = policy_of(config.values)
    clock = given.inner("step_time")
    times = [clock.whole(key, 0, 10**9) for key in ("base_us", "per_token_us", "per_request_us")]
    if not times[0] + times[1]:
        clock.fail("base_us", "is 0 as per_token_us is; a step must take time")
    requests = given.inners("trace", MOST_REQUESTS)
    for request in requests:
        _check_request(request)
    _check_sizes(requests, policy)
    order = sorted(range(len(requests)), key=lambda i: (requests[i].values["arrival_us"], i))
    trace = trace_of([requests[i].values for i in order], order, name)
    free, t0 = _steps(output, config.values["num_gpu_blocks"] - 1)
    return Recording(trace, policy, Affine(*times), free, t0, name)


def policy_of(config: dict[str, Any]) -> Policy:
    """Our policy for a vLLM configuration, whose values have been checked."""
    batched = config["max_num_batched_tokens"]
    memory = Memory(
        config["num_gpu_blocks"] - 1, config["block_size"], config["enable_prefix_caching"],
        full_prompt=config["scheduler_reserve_full_isl"], watermark=config["watermark"], refuse=False,
    )
    return Policy(
        "vLLM", "continuous", min(config["max_num_seqs"], config["max_num_active_seqs"] or config["max_num_seqs"]),
        min(batched, config["max_num_scheduled_tokens"] or batched), "chunked" if config["enable_chunked_prefill"] else "whole",
        order=config["policy"], memory=memory, longest=config["max_model_len"],
        chunk_cap=config["long_prefill_token_threshold"], fair_cap=config["long_prefill_token_threshold_adaptive"],
        batched=batched, prefill_every=config["prefill_schedule_interval"],
    )


def trace_of(requests: Sequence[dict[str, Any]], numbers: Sequence[int], name: str = "") -> Trace:
    """The recorded requests; `numbers` are their places in the file, from which unnamed content gets its streams."""
    content = None
    if any("prompt_segments" in request for request in requests):
        runs = [
            [tuple(segment) for segment in request.get("prompt_segments") or [(1_000_000 + i, 0, request["prompt_len"])]]
            for i, request in zip(numbers, requests, strict=True)
        ]
        content = Content.of(runs, [2_000_000 + i for i in numbers])
    return Trace(
        np.array([request["arrival_us"] / 1e6 for request in requests]),
        np.array([request["prompt_len"] for request in requests]),
        np.array([request["output_len"] for request in requests]),
        priority=np.array([request.get("priority", 0) for request in requests]),
        cancel=np.array([request.get("abort_us", math.inf) / 1e6 for request in requests]),
        content=content,
        name=name,
    )


# ---- from bytes to values


def _unpacked(source: bytes | BinaryIO | Path) -> bytes:
    """The text of the file, never more than MAX_BYTES of it, packed or not."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    else:
        data = source if isinstance(source, bytes) else source.read(MAX_BYTES + 1)
    if data.startswith(b"\x1f\x8b") and len(data) <= MAX_BYTES:
        stream = zlib.decompressobj(wbits=31)
        try:
            data, end = stream.decompress(data, MAX_BYTES + 1), len(data)
        except zlib.error as error:
            raise ReaderError(f"the file is damaged: gzip says {shown(str(error).encode())}") from None
        if len(data) > MAX_BYTES:
            raise ReaderError(f"the file unpacks to more than {MAX_BYTES // 2**20} MiB")
        if not stream.eof:
            raise ReaderError(f"the file is cut off: its gzip stream goes on after byte {end}")
        if stream.unused_data:
            raise ReaderError(f"{len(stream.unused_data)} bytes follow the gzip stream; pack the file as one stream")
    return load(data, "1")


def _parse(data: bytes) -> Any:
    """The JSON value, with few enough parts to be held in memory."""
    if data.count(b",") > _MOST_VALUES or data.count(b"[") + data.count(b"{") > _MOST_HOLDERS:
        raise ReaderError(f"the file has more than {_MOST_VALUES:,} values or {_MOST_HOLDERS:,} brackets; no recording has")
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_no_number, parse_int=_integer)
    except UnicodeDecodeError as error:
        raise ReaderError(f"byte {error.start + 1} is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ReaderError(f"line {error.lineno}, column {error.colno}: this is not JSON: {error.msg}") from None
    except RecursionError:
        raise ReaderError("the file nests brackets hundreds deep; a recording nests six") from None


def _no_number(word: str) -> NoReturn:
    raise ReaderError(f"{word} is in the file; a recording has finite numbers only")


def _integer(digits: str) -> int:
    if len(digits) > 40:
        raise ReaderError(f"{shown(digits.encode())} is in the file: a number of {len(digits)} digits")
    return int(digits)


@dataclass(frozen=True)
class _Object:
    """A JSON object and where it stands in the file. All its functions raise ReaderError that names the place."""

    values: dict[str, Any]
    place: str

    def __post_init__(self) -> None:
        if not isinstance(self.values, dict):
            raise ReaderError(f"{self.place or 'the file'} must be an object {{…}}, not {_shown(self.values)}")

    def fail(self, key: str, what: str) -> NoReturn:
        raise ReaderError(f"{self._at(key)} {what}")

    def inner(self, key: str) -> _Object:
        return _Object(self._get(key), self._at(key))

    def elements(self, key: str, most: int, least: int = 1) -> list[Any]:
        value = self._get(key)
        if not isinstance(value, list):
            self.fail(key, f"must be a list […], not {_shown(value)}")
        if not least <= len(value) <= most:
            self.fail(key, f"must have {least} to {most:,} elements, not {len(value):,}")
        return value

    def inners(self, key: str, most: int, least: int = 1) -> list[_Object]:
        return [_Object(value, f"{self._at(key)}[{i}]") for i, value in enumerate(self.elements(key, most, least))]

    def whole(self, key: str, low: int, high: int, optional: bool = False) -> int:
        """A whole number; one that is optional may be null or missing, which is `low`."""
        value = self.values.get(key) if optional else self._get(key)
        if optional and value is None:
            return low
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.fail(key, f"must be a whole number from {low} to {high}, not {_shown(value)}")
        return value

    def flag(self, key: str) -> bool:
        value = self._get(key)
        if not isinstance(value, bool):
            self.fail(key, f"must be true or false, not {_shown(value)}")
        return value

    def _get(self, key: str) -> Any:
        if key not in self.values:
            self.fail(key, "is missing")
        return self.values[key]

    def _at(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place else key


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return shown(value.encode("utf-8", "backslashreplace")) if isinstance(value, str) else shown(json.dumps(value).encode())[1:-1]


# ---- what the values must be


def _check_config(config: _Object) -> None:
    for key, low, high in (
        ("max_num_seqs", 1, _MOST), ("max_num_batched_tokens", 1, _MOST), ("block_size", 1, MOST_BLOCK),
        ("num_gpu_blocks", 3, _MOST_BLOCKS), ("max_model_len", 2, _MOST), ("long_prefill_token_threshold", 0, _MOST),
        ("prefill_schedule_interval", 1, _MOST),
    ):
        config.whole(key, low, high)
    for key in ("max_num_scheduled_tokens", "max_num_active_seqs"):
        config.whole(key, 0, _MOST, optional=True)
        config.values.setdefault(key, None)
    for key in ("enable_chunked_prefill", "enable_prefix_caching", "scheduler_reserve_full_isl",
                "long_prefill_token_threshold_adaptive"):
        config.flag(key)
    if config.values.get("async_scheduling"):
        config.fail("async_scheduling", "is on: there vLLM decides a step before it knows the last one's tokens; not modelled")
    if config.values.get("policy") not in ("fcfs", "priority"):
        config.fail("policy", f"must be \"fcfs\" or \"priority\", not {_shown(config.values.get('policy'))}")
    share = config.values.get("watermark")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        config.fail("watermark", f"must be a share from 0 to 1, not {_shown(share)}")


def _check_request(request: _Object) -> None:
    arrival = request.whole("arrival_us", 0, int(MAX_US))
    prompt = request.whole("prompt_len", 1, _POSITIONS)
    request.whole("output_len", 1, _POSITIONS)
    if "priority" in request.values:
        request.whole("priority", -_MOST, _MOST)
    if "abort_us" in request.values:
        request.whole("abort_us", arrival, int(MAX_US))
    if "prompt_segments" not in request.values:
        return
    tokens = 0
    for i, segment in enumerate(request.elements("prompt_segments", prompt)):
        numbers = segment if isinstance(segment, list) else []
        if len(numbers) != 3 or not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= _MOST for n in numbers):
            request.fail(f"prompt_segments[{i}]", "must be [stream, start, length], whole numbers of 0 or more")
        if not 1 <= numbers[2] <= _POSITIONS - numbers[1]:
            request.fail(f"prompt_segments[{i}]", f"must have a token or more and end before place {_POSITIONS} of its stream")
        tokens += numbers[2]
    if tokens != prompt:
        request.fail("prompt_segments", f"have {tokens} tokens, but prompt_len is {prompt}")


def _check_sizes(requests: list[_Object], policy: Policy) -> None:
    """All of it together must be work that ends."""
    total, memory, longest = 0, policy.memory, policy.longest
    assert memory is not None and longest is not None
    for request in requests:
        prompt, output = request.values["prompt_len"], request.values["output_len"]
        total += prompt + output
        if total > MOST_TOKENS:
            raise ReaderError(f"{request.place}: up to here prompts and outputs have more than {MOST_TOKENS:,} tokens")
        needs = -(-(prompt + max(1, min(output, longest - prompt)) - 1) // memory.block_size)
        if needs > memory.blocks and not memory.full_prompt:
            # It is admitted, runs out of blocks, gives way, and is admitted again: golden/no_reserve_never_fits.json.
            raise ReaderError(f"{request.place}: needs {needs} blocks of {memory.blocks}; without scheduler_reserve_full_isl "
                              "vLLM computes it anew for ever")


def _steps(output: _Object, blocks: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Free blocks after the decisions of each step, and when it started; steps without a number decided nothing."""
    free: list[int] = []
    t0: list[int] = []
    steps = output.inners("steps", _MOST_HOLDERS, least=0) if "steps" in output.values else []
    for step in steps:
        if step.values.get("k", 0) is None:
            continue
        step.whole("k", len(free), len(free))
        free.append(step.whole("free", 0, blocks))
        t0.append(step.whole("t0", t0[-1] if t0 else 0, int(MAX_US)))
    return np.array(free, np.int64), np.array(t0, np.float64)
