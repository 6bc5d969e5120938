"""Trace: what a column may hold, what a refusal says, and that a trace cannot be changed once it is made."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.trace import MAX_US, Trace, TraceError

INF, NAN = float("inf"), float("nan")


def three(**columns: Any) -> Trace:
    """Three plain requests, with some columns replaced."""
    return Trace(**{"arrival": [0, 0.5, 0.5], "prompt": [10, 20, 30], "output": [1, 2, 3], **columns})


# ------------------------------------------------------------------------------------------------------- columns

def test_columns_are_what_the_contract_says() -> None:
    trace = three(priority=[0, 1, 2], cancel=[INF, 1, 2], session=[7, 7, 8])
    assert len(trace) == 3
    assert {name: values.dtype.str for name, values in trace.columns.items()} == {
        "arrival": "<f8", "prompt": "<i8", "output": "<i8", "priority": "<i8", "cancel": "<f8", "session": "<i8"}
    assert list(three().columns) == ["arrival", "prompt", "output"]


def test_arrivals_and_cancellations_are_whole_microseconds() -> None:
    trace = Trace([0.1234564, 0.1234566], [1, 1], [1, 1], cancel=[0.9999996, INF])
    assert trace.arrival_us.tolist() == [123456, 123457]
    assert trace.arrival.tolist() == [0.123456, 0.123457]
    assert trace.cancel_us is not None and trace.cancel_us.tolist() == [1_000_000, INF]


@given(st.lists(st.integers(0, int(MAX_US)), min_size=1, max_size=20))
def test_seconds_give_back_every_whole_microsecond_up_to_the_limit(micros: list[int]) -> None:
    micros.sort()
    ones = [1] * len(micros)
    trace = Trace([m / 1e6 for m in micros], ones, ones)
    assert trace.arrival_us.tolist() == micros
    assert Trace(trace.arrival, ones, ones).arrival_us.tolist() == micros


@pytest.mark.parametrize("prompt", [
    [10.0, 20.0, 30.0], np.array([10, 20, 30], np.int8), np.array([10, 20, 30], np.uint64), np.array([10, 20, 30], np.float16),
    (10, 20, 30), pd.Series([10, 20, 30]), np.array([10, 20.0, np.int8(30)], object),
])
def test_any_array_like_of_whole_numbers_is_a_column(prompt: Any) -> None:
    assert three(prompt=prompt) == three()


def test_the_limits_are_allowed() -> None:
    three(arrival=[0, 0, MAX_US / 1e6], prompt=[1, 1, 10_000_000], output=[10_000_000, 1, 1])
    three(cancel=[0, 0.5, 0.5], priority=[-2**53, 0, 2**53])


# ------------------------------------------------------------------------------------------------------ refusals

@pytest.mark.parametrize(("column", "values", "row", "value"), [
    ("arrival", [0, NAN, 1], 1, "nan"),
    ("arrival", [0, 1, INF], 2, "inf"),
    ("arrival", [-0.5, 0, 1], 0, "-0.5"),
    ("arrival", [-1e-9, 0, 1], 0, "-1e-09"),
    ("arrival", [0, 1, 1e300], 2, "1e+300"),
    ("arrival", [0, 1, 2**53 / 1e6], 2, "9007199254.740992"),
    ("arrival", [0, 2, 1], 2, "1.0 s"),
    ("arrival", ["0", "1", "2"], 0, "'0'"),
    ("arrival", [0, None, 2], 1, "None"),
    ("arrival", [0, 1j, 2], 0, "0j"),
    ("arrival", pd.to_datetime(["2023-11-16"] * 3), 0, ""),
    ("prompt", [1, 0, 1], 1, "0"),
    ("prompt", [1, 1, -3], 2, "-3"),
    ("prompt", [1, 3.5, 1], 1, "3.5"),
    ("prompt", [1, NAN, 1], 1, "nan"),
    ("prompt", [1, INF, 1], 1, "inf"),
    ("prompt", [1, 10_000_001, 1], 1, "10000001"),
    ("prompt", np.array([1, 2, -1], np.int8), 2, "-1"),
    ("prompt", np.array([1, 2**63, 1], np.uint64), 1, "9223372036854775808"),
    ("prompt", [1, 10**30, 1], 1, "1000000000"),
    ("prompt", [1, 10**5000, 1], 1, "thousands of digits"),
    ("prompt", [True, True, True], 0, "True"),
    ("prompt", [1, "x" * 1000, 1], 0, "'1'"),
    ("prompt", np.array([1, "x" * 1000, 1], object), 1, "xxx…"),
    ("prompt", pd.array([1, None, 1], dtype="Int64"), 1, "nan"),
    ("output", [1, 1, 0], 2, "0"),
    ("priority", [0, 0.5, 0], 1, "0.5"),
    ("session", [0, 2**60, 0], 1, "1152921504606846976"),
    ("cancel", [INF, 0.4, INF], 1, "0.4"),
    ("cancel", [INF, NAN, INF], 1, "nan"),
    ("cancel", [-INF, INF, INF], 0, "-inf"),
])
def test_a_bad_value_is_named_by_row_and_column(column: str, values: Any, row: int, value: str) -> None:
    with pytest.raises(TraceError) as caught:
        three(**{column: values})
    message = str(caught.value)
    assert message.startswith(f"row {row}, column {column}: ") and value in message
    assert "allowed" in message or "arrivals must not decrease" in message or "before its arrival" in message
    assert len(message) < 200


@pytest.mark.parametrize(("columns", "words"), [
    ({"prompt": [1, 2]}, "column prompt has 2 rows, but column arrival has 3"),
    ({"session": []}, "column session has 0 rows"),
    ({"prompt": 7}, "column prompt must have one dimension"),
    ({"prompt": None}, "column prompt must have one dimension"),
    ({"prompt": [[1, 2, 3]]}, "column prompt must have one dimension"),
    ({"prompt": [[1], [2, 3], 4]}, "column prompt must hold one number a row"),
    ({"arrival": [], "prompt": [], "output": []}, "no requests"),
])
def test_columns_that_do_not_fit_are_named(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(TraceError, match=words):
        three(**columns)


def test_a_refusal_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        three(prompt=[0, 1, 1])


# ------------------------------------------------------------------------------------- safe in a cache

def test_nothing_about_a_trace_can_be_changed() -> None:
    given_prompt = np.array([10, 20, 30])
    trace = three(prompt=given_prompt, cancel=[1, 2, 3])
    given_prompt[0] = 99
    assert trace.prompt[0] == 10
    for values in (*trace.columns.values(), trace.arrival_us):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 5
    with pytest.raises(FrozenInstanceError):
        trace.prompt = given_prompt  # type: ignore[misc]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda trace: pickle.loads(pickle.dumps(trace))])  # noqa: S301
def test_a_copy_for_another_process_is_equal_and_as_safe(copied: Any) -> None:
    trace = three(cancel=[1, INF, 2], name="a")
    twin = copied(trace)
    assert twin == trace and twin.digest == trace.digest and twin.name == "a"
    assert not any(values.flags.writeable for values in (*twin.columns.values(), twin.arrival_us))


def test_equality_and_digest_are_of_the_columns() -> None:
    assert three(name="a") == three(name="b") and hash(three(name="a")) == hash(three(name="b"))
    assert len(three().digest) == 64
    others = [three(arrival=[0, 0.5, 0.500001]), three(prompt=[10, 20, 31]), three(output=[10, 20, 30]),
              three(priority=[0, 0, 0]), three(session=[0, 0, 0]), three(cancel=[INF, INF, INF]), three().head(2)]
    assert len({three().digest, *(other.digest for other in others)}) == len(others) + 1
    assert three() != "three"


# ------------------------------------------------------------------------------------------ parts of a trace

def test_a_window_starts_at_its_first_request() -> None:
    trace = Trace([0, 1, 2.5, 4], [1, 2, 3, 4], [1, 1, 1, 1], session=[5, 6, 7, 8], cancel=[9, 9, INF, 9], name="day")
    window = trace.window(0.5, 3)
    assert window.arrival.tolist() == [0, 1.5] and window.prompt.tolist() == [2, 3]
    assert window.session is not None and window.session.tolist() == [6, 7]
    assert window.cancel is not None and window.cancel.tolist() == [8, INF]
    assert window.name == "day"


def test_a_window_holds_its_start_and_not_its_end_in_whole_microseconds() -> None:
    # In floating point 0.1 + 0.2 is more than 0.3, so that a comparison in seconds would let the last request in.
    trace = Trace([0.1, 0.2, 0.3], [1, 2, 3], [1, 1, 1])
    assert trace.window(0.1, 0.2).prompt.tolist() == [1, 2]


def test_a_window_is_limited_in_requests_or_runs_to_the_end() -> None:
    trace = Trace([0, 1, 2, 3], [1, 2, 3, 4], [1, 1, 1, 1])
    assert trace.window(1).prompt.tolist() == [2, 3, 4]
    assert trace.window(1, limit=2).prompt.tolist() == [2, 3]
    assert trace.window(0, INF) == trace.window(0) == trace


@pytest.mark.parametrize(("arguments", "words"), [
    ((3.5,), "no request arrives at 3.5 s or later; .*between 0.0 s and 3.0 s"),
    ((0.25, 0.5), "no request arrives between 0.25 s and 0.75 s.*between 0.0 s and 3.0 s"),
    ((-1,), "start_s must be"), ((NAN,), "start_s must be"), ((INF,), "start_s must be"),
    ((0, 0), "length_s must be"), ((0, NAN), "length_s must be"), ((0, 1, 0), "limit must be"),
])
def test_a_window_without_requests_or_sense_is_refused(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(TraceError, match=words):
        Trace([0, 1, 2, 3], [1, 2, 3, 4], [1, 1, 1, 1]).window(*arguments)


def test_take_and_head_keep_times() -> None:
    trace = three(priority=[3, 2, 1])
    for index in ([1, 2], np.array([False, True, True]), slice(1, 3)):
        taken = trace.take(index)
        assert taken.arrival.tolist() == [0.5, 0.5] and taken.prompt.tolist() == [20, 30]
        assert taken.priority is not None and taken.priority.tolist() == [2, 1]
    assert trace.head(2).prompt.tolist() == [10, 20]
    assert trace.head(99) == trace


def test_take_and_head_refuse_what_is_no_trace() -> None:
    with pytest.raises(TraceError, match="must not decrease"):
        three().take([2, 0])
    with pytest.raises(TraceError, match="no requests"):
        three().take([False, False, False])
    with pytest.raises(TraceError, match="at least 1"):
        three().head(0)
