"""Random small servings for property tests: few requests and slots, so that ties, gaps, full and empty slots all occur."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from sim.policy import Memory, Policy, continuous, static
from sim.service import Affine, StepTime, service
from sim.trace import Trace

Case = tuple[Trace, StepTime, Policy]
LLAMA = service("Llama-3-8B", "A100-80G")


@dataclass(frozen=True)
class Growing:
    """Whole microseconds, and steps that grow with the context and with the attention of their prompts."""

    base: float
    per_token_us: float
    request_us: float
    context_us: float
    attention_us: float

    def base_us(self, tokens: np.ndarray) -> np.ndarray:
        return self.base + self.per_token_us * np.asarray(tokens, np.float64)



def whole(low: int, high: int) -> st.SearchStrategy[float]:
    return st.integers(low, high).map(float)


SHAPE = (whole(1, 300), whole(0, 9), whole(0, 9))
WHOLE_US = st.builds(Affine, *SHAPE) | st.builds(Growing, *SHAPE, whole(0, 20), whole(0, 5))
STATIC = st.builds(static, st.integers(1, 7), st.sampled_from([math.inf, 0.0, 2e-4, 5e-3]))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    n = draw(st.integers(1, 15))
    span = draw(st.sampled_from([0, 2_000, 30_000]))  # µs: all at once, busy, with pauses
    arrival = sorted(draw(st.lists(st.integers(0, span), min_size=n, max_size=n)))
    prompt = draw(st.lists(st.integers(1, 30), min_size=n, max_size=n))
    output = draw(st.lists(st.integers(1, 12), min_size=n, max_size=n))
    return Trace(np.array(arrival) / 1e6, prompt, output)


@st.composite
def cases(draw: st.DrawFn, clock: st.SearchStrategy[StepTime] = WHOLE_US) -> Case:
    """A trace, a clock and a policy of either kind."""
    prompts = draw(st.sampled_from(["chunked", "whole", "alone"]))
    least = 1 if prompts == "chunked" else 30
    joining = st.builds(continuous, st.integers(1, 7), st.none() | st.integers(least, 60), st.just(prompts))
    return draw(traces()), draw(clock), draw(STATIC | joining)


@st.composite
def starved(draw: st.DrawFn) -> tuple[Trace, Affine, Policy]:
    """Budgets that do not reach for all who decode: prompts held back meet requests of one token that slipped in."""
    n = draw(st.integers(4, 12))
    numbers = lambda low, high: draw(st.lists(st.integers(low, high), min_size=n, max_size=n))  # noqa: E731
    prompt = [1, draw(st.integers(20, 60)), *draw(st.lists(st.sampled_from([1, 1, 1, 30]), min_size=n - 2, max_size=n - 2))]
    arrival, output = sorted(numbers(0, 9_000)), numbers(8, 30)
    gives_up = draw(st.lists(st.none() | st.integers(0, 20_000), min_size=n, max_size=n))
    cancel = [math.inf if after is None else (at + after) / 1e6 for at, after in zip(arrival, gives_up, strict=True)]
    trace = Trace(np.array(arrival) / 1e6, prompt, output, cancel=cancel if draw(st.booleans()) else None)
    policy = Policy(
        "starved", "continuous", 12, draw(st.integers(2, 5)), memory=Memory(draw(st.sampled_from([24, 40, 500])), 4),
        chunk_cap=draw(st.sampled_from([0, 0, 1, 2])), fair_cap=draw(st.booleans()), prefill_every=draw(st.integers(3, 8)),
    )
    return trace, Affine(1_000, 10, 5), policy
