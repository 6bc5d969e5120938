"""Static batching in closed form against a server that takes one step after another, and against the engine."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine import simulate
from sim.metrics import e2e, ledger, makespan, slot_segments, ttft
from sim.policy import Policy, continuous, static
from sim.run import Run, Steps
from sim.service import Affine, StepTime
from sim.static import simulate_static, sweep_static
from sim.trace import Trace
from tests.sim.cases import LLAMA, STATIC, WHOLE_US, traces
from tests.sim.plain import plain

COLUMNS = ("admitted_us", "first_token_us", "finished_us", "released_us", "outcome")
ROWS = [f.name for f in fields(Steps)]


def largest_difference(a: Run, b: Run, rows: bool) -> float:
    pairs = [(getattr(a, name), getattr(b, name)) for name in COLUMNS]
    if rows:
        pairs += [(getattr(a.steps, name), getattr(b.steps, name)) for name in ROWS]
    assert all(x.shape == y.shape and x.dtype == y.dtype for x, y in pairs)
    return max(float(np.abs(x - y).max()) for x, y in pairs)


@settings(max_examples=300)
@given(traces(), WHOLE_US, STATIC)
def test_on_whole_microsecond_clocks_the_closed_form_is_exact(trace: Trace, clock: StepTime, policy: Policy) -> None:
    run = simulate_static(trace, clock, policy)
    assert largest_difference(run, plain(trace, clock, policy)[0], rows=False) == 0
    assert largest_difference(run, simulate(trace, clock, policy), rows=True) == 0


@settings(max_examples=200)
@given(traces(), STATIC)
def test_on_the_calibrated_clock_it_is_right_to_a_nanosecond(trace: Trace, policy: Policy) -> None:
    run = simulate_static(trace, LLAMA, policy)
    assert largest_difference(run, plain(trace, LLAMA, policy)[0], rows=False) < 1e-3
    assert largest_difference(run, simulate(trace, LLAMA, policy), rows=True) < 1e-3


def long_trace(n: int, rate: float, seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    return Trace(np.cumsum(rng.exponential(1 / rate, n)), rng.integers(1, 1_596, n), rng.integers(1, 370, n))


@pytest.mark.parametrize(("slots", "fill_timeout"), [(8, math.inf), (8, 0.2), (64, 0.0), (1, 0.0)])
def test_ten_thousand_requests_stay_right_to_a_nanosecond(slots: int, fill_timeout: float) -> None:
    trace, policy = long_trace(10_000, 2.0, 3), static(slots, fill_timeout)
    assert largest_difference(simulate_static(trace, LLAMA, policy), simulate(trace, LLAMA, policy), rows=True) < 1e-3


class Counted:
    """A step time that counts how often it is asked."""

    context_us, attention_us, request_us = 1.0, 0.0, 0.0

    def __init__(self) -> None:
        self.asked = 0

    def base_us(self, tokens: np.ndarray) -> np.ndarray:
        self.asked += 1
        return 100.0 + tokens


@pytest.mark.parametrize("fill_timeout", [math.inf, 0.2])
def test_ten_thousand_requests_ask_for_step_times_as_often_as_ten(fill_timeout: float) -> None:
    few, many = Counted(), Counted()
    simulate_static(long_trace(10, 2.0, 0), few, static(8, fill_timeout))
    simulate_static(long_trace(10_000, 2.0, 0), many, static(8, fill_timeout))
    assert many.asked == few.asked <= 3


def test_a_batch_takes_as_many_rows_as_it_has_different_output_lengths() -> None:
    # Outputs 5, 2, 5, 9: the prompt step (which ends every output of 1), then stretches that end at 2, 5 and 9 tokens.
    run = simulate_static(Trace([0, 0, 0, 0], [3, 3, 3, 3], [5, 2, 5, 9]), Affine(100, 0), static(4))
    assert run.steps.count.tolist() == [1, 1, 3, 4]
    assert run.steps.decode.tolist() == [0, 4, 3, 1]


def test_a_prompt_step_beyond_the_table_of_step_times_decides_who_is_in_the_next_batch() -> None:
    # 200,000 prompt tokens at 1 µs each: the first batch ends at 200.2 ms, so both later requests are there.
    trace, policy = Trace([0, 0, 0.14, 0.19], [100_000, 100_000, 5, 5], [1, 1, 1, 1]), static(2, 0)
    run = simulate_static(trace, Affine(200, 1), policy)
    assert run.admitted_us.tolist() == [0, 0, 200_200, 200_200]
    assert largest_difference(run, simulate(trace, Affine(200, 1), policy), rows=True) == 0


@settings(max_examples=100)
@given(traces(), STATIC)
def test_rounding_leaves_no_slivers_in_what_each_slot_did(trace: Trace, policy: Policy) -> None:
    # The closed form names one instant in two ways that differ in the last digits; a picture must not show them.
    ours, engines = slot_segments(simulate_static(trace, LLAMA, policy)), slot_segments(simulate(trace, LLAMA, policy))
    for name in ("slot", "role", "request"):
        assert getattr(ours, name).tolist() == getattr(engines, name).tolist()
    assert np.abs(ours.start_us - engines.start_us).max() < 1e-3


@settings(max_examples=150)
@given(st.lists(traces(), min_size=1, max_size=4), WHOLE_US, st.data())
def test_a_sweep_gives_what_each_configuration_gives_alone(some: list[Trace], clock: StepTime, data: st.DataObject) -> None:
    each = [data.draw(STATIC) for _ in some]
    sweep = sweep_static(some, clock, [p.slots for p in each], [p.fill_timeout for p in each])
    for i, (trace, policy) in enumerate(zip(some, each, strict=True)):
        run = plain(trace, clock, policy)[0]
        alone = ledger(run)
        assert sweep.makespan[i] == pytest.approx(makespan(run), rel=1e-12)
        assert sweep.total[i] == pytest.approx(alone.total, rel=1e-12)
        assert sweep.idle_share[i] == pytest.approx(alone.idle_share, abs=1e-9)
        for role, seconds in alone.seconds.items():
            ours = sweep.seconds[role][i] if role in sweep.seconds else 0.0
            assert ours == pytest.approx(seconds, abs=1e-9 * alone.total)
        assert [sweep.ttft_p50[i], sweep.ttft_p99[i]] == pytest.approx(np.quantile(ttft(run), (0.5, 0.99)))
        assert [sweep.e2e_p50[i], sweep.e2e_p99[i]] == pytest.approx(np.quantile(e2e(run), (0.5, 0.99)))


def test_one_trace_meets_many_batch_sizes_and_one_timeout() -> None:
    trace = long_trace(50, 20.0, 1)
    sweep = sweep_static(trace, LLAMA, np.arange(1, 9), 0.05)
    assert sweep.slots.tolist() == list(range(1, 9))
    for i in range(8):
        assert sweep.makespan[i] == pytest.approx(makespan(simulate_static(trace, LLAMA, static(i + 1, 0.05))), rel=1e-12)


def test_only_static_policies_are_served() -> None:
    with pytest.raises(ValueError, match="'mine': simulate_static serves batching 'static', not 'continuous'"):
        simulate_static(Trace([0], [1], [1]), LLAMA, continuous(4, name="mine"))


def test_a_sweep_refuses_a_batch_without_seats_and_a_timeout_below_zero() -> None:
    trace = Trace([0], [1], [1])
    for slots, timeout in ((0, 0.0), (4, -1.0), (4, math.nan)):
        with pytest.raises(ValueError, match="at least 1 and a fill timeout 0 s or more"):
            sweep_static(trace, LLAMA, slots, timeout)


def test_a_cancellation_is_refused_by_its_row() -> None:
    with pytest.raises(ValueError, match="row 1 is cancelled"):
        simulate_static(Trace([0, 0], [1, 1], [1, 1], cancel=[math.inf, 3]), LLAMA, static(2))
