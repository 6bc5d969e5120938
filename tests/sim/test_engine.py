"""The engine against a server that takes one plain step after another, against Vidur, and against sums on paper."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine import Engine, simulate
from sim.policy import Policy, continuous, static
from sim.run import Run
from sim.service import Affine, StepTime, service
from sim.trace import Trace
from tests.sim.plain import plain

VIDUR = Path(__file__).parents[3] / "shared" / "peers" / "vidur"
COLUMNS = ("admitted_us", "first_token_us", "finished_us", "released_us")
LLAMA = service("Llama-3-8B", "A100-80G")


@st.composite
def policies(draw: st.DrawFn, longest_prompt: int) -> Policy:
    slots = draw(st.integers(1, 8))
    if draw(st.booleans()):
        return static(slots, draw(st.sampled_from([math.inf, 0.0, 1e-4, 1e-2, 1.0])))
    prompts = draw(st.sampled_from(["chunked", "whole", "alone"]))
    least = 1 if prompts == "chunked" else longest_prompt
    budget = draw(st.none() | st.integers(least, 4 * longest_prompt))
    return continuous(slots, budget, prompts)


@st.composite
def traces(draw: st.DrawFn, span_us: int, longest_prompt: int) -> Trace:
    n = draw(st.integers(1, 20))
    numbers = lambda low, high: draw(st.lists(st.integers(low, high), min_size=n, max_size=n))  # noqa: E731
    return Trace(np.sort(numbers(0, span_us)) / 1e6, numbers(1, longest_prompt), numbers(1, 20))


def differs(a: Run, b: Run) -> float:
    """The largest difference of any time of any request, µs; inf if one has a time that the other lacks."""
    worst = 0.0
    for name in COLUMNS:
        x, y = getattr(a, name), getattr(b, name)
        if not np.array_equal(np.isnan(x), np.isnan(y)):
            return math.inf
        worst = max(worst, float(np.nanmax(np.abs(x - y), initial=0.0)))
    return worst


def one_step_at_a_time(trace: Trace, clock: StepTime, policy: Policy) -> Run:
    engine = Engine(clock, policy, longest_stretch=1)
    engine.submit(trace)
    engine.advance(math.inf)
    return engine.run(trace)


whole_us = st.builds(Affine, st.integers(1, 50), st.integers(0, 5), st.integers(0, 5))


@settings(max_examples=300, deadline=None)
@given(traces(3_000, 40), whole_us, policies(40))
def test_on_whole_microsecond_clocks_stretches_equal_single_steps_exactly(trace: Trace, clock: Affine, policy: Policy) -> None:
    run = simulate(trace, clock, policy)
    assert differs(run, plain(trace, clock, policy)[0]) == 0
    assert differs(run, one_step_at_a_time(trace, clock, policy)) == 0


@settings(max_examples=200, deadline=None)
@given(traces(3_000_000, 1_200), policies(1_200))
def test_on_the_calibrated_clock_stretches_equal_single_steps_to_a_nanosecond(trace: Trace, policy: Policy) -> None:
    run = simulate(trace, LLAMA, policy)
    assert differs(run, plain(trace, LLAMA, policy)[0]) < 1e-3
    assert differs(run, one_step_at_a_time(trace, LLAMA, policy)) < 1e-3


@settings(max_examples=150, deadline=None)
@given(traces(3_000, 40), whole_us, policies(40), st.lists(st.integers(0, 4_000), max_size=6))
def test_advancing_in_pieces_takes_the_same_steps(
    trace: Trace, clock: Affine, policy: Policy, stops: list[int]
) -> None:
    engine = Engine(clock, policy)
    engine.submit(trace)
    engine.close()
    for stop in sorted(stops):
        engine.advance(stop)
    engine.advance(math.inf)
    whole, pieces = simulate(trace, clock, policy), engine.run(trace)
    assert differs(whole, pieces) == 0
    assert one_by_one(whole) == one_by_one(pieces)


def one_by_one(run: Run) -> list[tuple[float, ...]]:
    """Start, duration, decodes, prompts and prompt tokens of every step."""
    s, steps = run.steps, []
    for row in range(len(s.count)):
        t, duration = s.start_us[row], s.first_us[row]
        for _ in range(s.count[row]):
            steps.append((t, duration, s.decode[row], s.prefilling[row], s.prefill[row]))
            t, duration = t + duration, duration + s.growth_us[row]
    return steps


@settings(max_examples=150, deadline=None)
@given(traces(3_000, 40), whole_us, policies(40))
def test_a_request_submitted_at_its_arrival_still_cuts_the_stretch_it_falls_into(
    trace: Trace, clock: Affine, policy: Policy
) -> None:
    engine = Engine(clock, policy)
    for i, arrival in enumerate(trace.arrival_us):
        engine.advance(arrival)
        engine.submit(trace.take([i]))
    engine.advance(math.inf)
    assert differs(engine.run(trace), plain(trace, clock, policy)[0]) == 0


def test_rows_do_not_grow_with_tokens() -> None:
    # Two requests: a prompt step, a stretch for both, a stretch for the longer one. Ten times the tokens: the same rows.
    for scale in (1, 10, 1000):
        run = simulate(Trace([0, 0], [100, 100], [10 * scale, 20 * scale]), LLAMA, continuous(2))
        assert run.steps.count.tolist() == [1, 10 * scale - 1, 10 * scale]


def test_equal_chunks_of_one_long_prompt_are_one_row() -> None:
    # 16,384 tokens under a budget of 512: 31 equal chunks, then the last one, then the second token's decode.
    run = simulate(Trace([0], [16_384], [2]), LLAMA, continuous(1, 512))
    assert run.steps.count.tolist() == [31, 1, 1]


def test_a_row_of_chunks_costs_what_its_chunks_cost_one_by_one() -> None:
    # Attention of chunk i of c tokens after i·c: c·(i·c + (c+1)/2) units; 1 µs a unit, 10 µs a step, c = 4, 12 tokens.
    clock = Affine(10, 0, 0, attention_us=1)
    run = simulate(Trace([0], [12], [1]), clock, continuous(1, 4))
    assert run.first_token_us[0] == (10 + 4 * 2.5) + (10 + 4 * 6.5) + (10 + 4 * 10.5)


def test_a_prompt_that_never_fits_whole_is_refused_by_row_and_way_out() -> None:
    with pytest.raises(ValueError, match=r"row 1: .*900 tokens never fits the budget of 512 whole; raise"):
        simulate(Trace([0, 0], [100, 900], [5, 5]), LLAMA, continuous(4, 512, "whole"))


@pytest.mark.skipif(not VIDUR.is_dir(), reason="../shared/peers/vidur is not here")
def test_vidur_serves_two_thousand_requests_at_the_same_times() -> None:
    # Vidur with our step-time model in it: sarathi, chunk 512, batch cap 128, memory that never binds.
    with (VIDUR / "S1_sarathi512_analytic_requests.csv").open() as file:
        theirs = list(csv.DictReader(file))
    column = lambda name, kind: np.array([kind(row[name]) for row in theirs])  # noqa: E731
    arrived = column("arrived_at", float)
    trace = Trace(arrived, column("num_prefill_tokens", int), column("num_decode_tokens", int))
    run = simulate(trace, LLAMA, continuous(128, 512))
    assert len(run) == 2_000
    assert np.max(np.abs(run.first_token_us / 1e6 - trace.arrival - column("ttft_s", float))) < 1e-6
    assert np.max(np.abs(run.finished_us / 1e6 - trace.arrival - column("e2e_s", float))) < 1e-6
