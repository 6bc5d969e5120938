"""Workloads: that each generator follows the law it names, and that one seed's streams do not disturb each other.

Laws are tested by the Kolmogorov-Smirnov distance to the closed-form distribution function: at a fixed seed and 100,000
draws it must stay below 1.95/sqrt(n), which a right generator exceeds with probability 0.001.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sim.workloads import (
    all_at_once,
    equal,
    evenly_spaced,
    from_quantiles,
    gamma_bursts,
    heavy_tailed,
    lognormal,
    poisson,
    shared_prefixes,
    uniform,
    workload,
)

N = 100_000


def distance(draws: NDArray[Any], distribution: Callable[[float], float]) -> float:
    """Kolmogorov-Smirnov: the largest distance between the draws' distribution function and this one."""
    expected = np.array([distribution(x) for x in np.sort(draws)])
    n = len(draws)
    return float(max(np.max(np.arange(1, n + 1) / n - expected), np.max(expected - np.arange(n) / n)))


def follows(draws: NDArray[Any], distribution: Callable[[float], float]) -> bool:
    return distance(draws, distribution) < 1.95 / math.sqrt(len(draws))


# ------------------------------------------------------------------------------------------------------- arrivals

def test_all_at_once_is_at_zero() -> None:
    assert all_at_once(3).tolist() == [0, 0, 0]


def test_evenly_spaced_starts_at_zero() -> None:
    assert evenly_spaced(4, 8).tolist() == [0, 0.125, 0.25, 0.375]


def test_poisson_gaps_are_exponential() -> None:
    assert follows(np.diff(poisson(N, 7, seed=1), prepend=0), lambda x: 1 - math.exp(-7 * x))


@pytest.mark.parametrize(("burstiness", "distribution"), [
    # Gamma(shape, scale 1/(rate·shape)) at rate 7 in closed form, with u = x / scale:
    (0.5, lambda x: math.erf(math.sqrt(3.5 * x))),              # shape ½: erf(sqrt u)
    (1, lambda x: 1 - math.exp(-7 * x)),                        # shape 1: Poisson
    (2, lambda x: 1 - (1 + 14 * x) * math.exp(-14 * x)),        # shape 2: Erlang
])
def test_burstiness_is_the_shape_of_the_gamma_gaps_at_the_same_rate(
        burstiness: float, distribution: Callable[[float], float]) -> None:
    gaps = np.diff(gamma_bursts(N, 7, burstiness, seed=2, exact_span=False), prepend=0)
    assert follows(gaps, distribution)
    # Rescaled to the exact span the gaps keep their shape; the scale moves by about 1/sqrt(n · burstiness).
    assert follows(np.diff(gamma_bursts(N, 7, burstiness, seed=3), prepend=0), distribution)


@pytest.mark.parametrize("burstiness", [0.001, 0.0058, 0.25, 1, 1000])
@pytest.mark.parametrize("n", [1, 2, 14, 1000])
def test_the_exact_span_is_n_over_rate(n: int, burstiness: float) -> None:
    for seed in range(200):  # among them draws of 0 and of less than 1e-308
        arrivals = gamma_bursts(n, 8, burstiness, seed)
        assert arrivals[-1] == pytest.approx(n / 8, rel=1e-15)
        assert arrivals[0] >= 0 and np.all(np.diff(arrivals) >= 0)


def test_exact_span_only_rescales() -> None:
    free, exact = (gamma_bursts(100, 7, 0.5, seed=4, exact_span=exact) for exact in (False, True))
    assert exact == pytest.approx(free * (100 / 7) / free[-1], rel=1e-12)


# -------------------------------------------------------------------------------------------------------- lengths

def test_equal_lengths() -> None:
    assert equal(3, 128).tolist() == [128, 128, 128]
    assert equal(1, 2.6).tolist() == [3]


def test_uniform_holds_both_ends_and_is_even() -> None:
    draws = uniform(128_000, 1, 128, seed=1)
    counts = np.bincount(draws, minlength=129)[1:]
    assert (draws.min(), draws.max(), len(counts)) == (1, 128, 128)
    # 1,000 expected in each cell. Chi-square with 127 degrees of freedom: 181.99 is exceeded with probability 0.001.
    assert np.sum((counts - 1000) ** 2 / 1000) < 181.99
    assert uniform(3, 5, 5, seed=1).tolist() == [5, 5, 5]


def test_lognormal_has_the_mean_and_cv_it_is_given() -> None:
    # Large lengths, so that rounding does not show. s² = ln(1 + 0.8²) = 0.49470; mu = ln 100,000 − s²/2 = 11.26558.
    s = math.sqrt(0.494696)
    draws = lognormal(N, 100_000, 0.8, seed=1)
    assert follows(draws, lambda x: 0.5 * (1 + math.erf((math.log(x) - 11.265577) / (s * math.sqrt(2)))))
    assert draws.mean() == pytest.approx(100_000, abs=5 * 80_000 / math.sqrt(N))  # five standard errors
    assert lognormal(3, 200, 0, seed=1).tolist() == [200, 200, 200]


def test_heavy_tailed_is_lomax_from_one_with_the_mean_it_is_given() -> None:
    # alpha 3, mean 100,001: s = 100,000 · 2. Variance of Lomax: s²·alpha/((alpha − 1)²(alpha − 2)) = s²·3/4.
    draws = heavy_tailed(N, 100_001, 3, seed=1)
    assert follows(draws, lambda x: 1 - (1 + (x - 1) / 200_000) ** -3)
    assert draws.mean() == pytest.approx(100_001, abs=5 * 200_000 * math.sqrt(0.75 / N))


def test_from_quantiles_is_linear_between_the_points() -> None:
    p, v = [0, 0.5, 0.9, 0.99, 1], [1, 102_000, 273_400, 414_200, 1_405_000]
    assert follows(from_quantiles(N, p, v, seed=1), lambda x: float(np.interp(x, v, p)))


def test_from_quantiles_gives_back_the_table_of_azures_conversations() -> None:
    # papers/FACTS.md section 9: prompt tokens, median 1020, p90 2734, p99 4142, max 14050; quantiles to about a percent.
    draws = from_quantiles(N, [0, 0.5, 0.9, 0.99, 1], [1, 1020, 2734, 4142, 14050], seed=2, of="prompt")
    assert np.percentile(draws, [50, 90, 99]) == pytest.approx([1020, 2734, 4142], rel=0.02)
    assert draws.min() >= 1 and draws.max() <= 14050


@given(st.integers(0, 2**63 - 1), st.integers(1, 50), st.floats(1, 1e7), st.floats(0, 100), st.floats(1.01, 100),
       st.integers(1, 10**7))
def test_every_length_is_a_whole_token_count_up_to_the_cap(
        seed: int, n: int, mean: float, cv: float, alpha: float, cap: int) -> None:
    for lengths in (lognormal(n, mean, cv, seed, cap), heavy_tailed(n, mean, alpha, seed, cap), uniform(n, 1, cap, seed)):
        assert lengths.dtype == np.int64 and lengths.shape == (n,)
        assert lengths.min() >= 1 and lengths.max() <= cap


# ----------------------------------------------------------------------------------------- seeds and streams

ARRIVALS: list[Callable[[int, int], NDArray[Any]]] = [
    lambda n, seed: poisson(n, 7, seed),
    lambda n, seed: gamma_bursts(n, 7, 0.25, seed, exact_span=False),
]
LENGTHS: list[Callable[..., NDArray[Any]]] = [
    lambda n, seed, **of: uniform(n, 1, 10_000, seed, **of),
    lambda n, seed, **of: lognormal(n, 5000, 1.0, seed, **of),
    lambda n, seed, **of: heavy_tailed(n, 5000, 2.5, seed, **of),
    lambda n, seed, **of: from_quantiles(n, [0, 1], [1, 10_000], seed, **of),
]


@pytest.mark.parametrize("draw", ARRIVALS + LENGTHS)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(draw: Callable[..., NDArray[Any]]) -> None:
    assert draw(100, 1).tobytes() == draw(100, 1).tobytes() != draw(100, 2).tobytes()


@pytest.mark.parametrize("draw", ARRIVALS + LENGTHS)
def test_more_requests_leave_the_first_ones_as_they_were(draw: Callable[..., NDArray[Any]]) -> None:
    assert draw(100, 1)[:14].tolist() == draw(14, 1).tolist()


@pytest.mark.parametrize("draw", LENGTHS)
def test_prompt_and_output_of_one_seed_are_independent(draw: Callable[..., NDArray[Any]]) -> None:
    prompt, output = (np.argsort(np.argsort(draw(10_000, 1, of=of))) for of in ("prompt", "output"))
    assert abs(np.corrcoef(prompt, output)[0, 1]) < 5 / math.sqrt(10_000)  # rank correlation, five standard errors


def test_arrivals_and_lengths_of_one_seed_are_independent() -> None:
    gaps = np.diff(poisson(10_000, 7, seed=1), prepend=0)
    for of in ("prompt", "output"):
        ranks = [np.argsort(np.argsort(x)) for x in (gaps, uniform(10_000, 1, 10**7, seed=1, of=of))]
        assert abs(np.corrcoef(*ranks)[0, 1]) < 5 / math.sqrt(10_000)


def test_a_longer_mean_makes_every_request_longer_and_reorders_none() -> None:
    short, long = (lognormal(1000, mean, 1.0, seed=1) for mean in (5000, 10_000))
    assert long == pytest.approx(short * 2, abs=2)


# ------------------------------------------------------------------------------------------- traces and refusals

def test_a_workload_is_a_trace() -> None:
    trace = workload(evenly_spaced(3, 2), equal(3, 100), uniform(3, 1, 9, seed=1), name="even")
    assert trace.arrival.tolist() == [0, 0.5, 1] and trace.prompt.tolist() == [100] * 3 and trace.name == "even"


# ------------------------------------------------------------------------------------------- what the prompts hold

def test_prompts_start_with_their_system_prompt_and_go_on_with_tokens_of_their_own() -> None:
    # One system prompt of 100 tokens: prompts of 250 and 101 quote all of it; one of 60 holds 59; one of 1 token nothing.
    content = shared_prefixes([250, 60, 1, 101], [100], skew=1, seed=1)
    runs = list(zip(content.stream.tolist(), content.start.tolist(), content.length.tolist(), strict=True))
    by_request = [runs[a:b] for a, b in pairwise(content.first.tolist())]
    shared = [request[0] for request in by_request if request[0][0] == 0]
    assert shared == [(0, 0, 100), (0, 0, 59), (0, 0, 100)]
    assert [request[-1][1:] for request in by_request] == [(0, 150), (0, 1), (0, 1), (0, 1)]
    own = [request[-1][0] for request in by_request] + content.reply.tolist()
    assert len({*own, 0}) == 9  # no two streams alike: the system prompt, four rests, four replies


def test_system_prompts_are_drawn_by_zipf_s_law() -> None:
    # Weights 1, 1/2, 1/3: shares 6/11, 3/11, 2/11; 4 standard errors at 100,000 draws are at most 0.0064.
    content = shared_prefixes(np.full(N, 50), [10, 10, 10], skew=1, seed=1)
    drawn = np.bincount(content.stream[content.first[:-1]]) / N
    assert drawn == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.0064)


def test_without_skew_every_system_prompt_is_as_likely() -> None:
    content = shared_prefixes(np.full(N, 50), [10] * 4, skew=0, seed=1)
    assert np.bincount(content.stream[content.first[:-1]]) / N == pytest.approx([0.25] * 4, abs=0.0055)


def test_more_requests_leave_the_first_ones_prefixes_as_they_were() -> None:
    few, many = (shared_prefixes(np.full(n, 50), [10, 20, 30], skew=1, seed=5) for n in (100, 1000))
    assert few.stream.tolist() == many.stream[:200].tolist()
    assert few.length.tolist() == many.length[:200].tolist()


@pytest.mark.parametrize(("call", "words"), [
    (lambda: shared_prefixes([0], [5], 1, 1), "prompt must be lengths from 1 to 10000000 tokens"),
    (lambda: shared_prefixes([5], [], 1, 1), "prefixes must be lengths from 1.*at least one"),
    (lambda: shared_prefixes([5], [5], -1, 1), "skew must be a number from 0 to 100, not -1"),
    (lambda: shared_prefixes([5], [5], 1, -1), "seed must be a whole number from 0"),
    (lambda: all_at_once(0), "n must be a whole number from 1 to 10000000 requests, not 0"),
    (lambda: all_at_once(2.5), "n must be a whole number.*not 2.5"),
    (lambda: all_at_once(10**12), "n must be a whole number"),
    (lambda: evenly_spaced(1, 0), "rate must be a number from 0.001 to 1000000 requests/s, not 0"),
    (lambda: poisson(1, float("nan"), 1), "rate must be a number"),
    (lambda: poisson(1, float("inf"), 1), "rate must be a number"),
    (lambda: poisson(1, 1, -1), "seed must be a whole number from 0"),
    (lambda: poisson(1, 1, 1.5), "seed must be a whole number from 0"),
    (lambda: gamma_bursts(1, 1, 0, 1), "burstiness must be a number from 0.001 to 1000, not 0"),
    (lambda: equal(1, 0.5), "mean must be a number from 1 to 10000000 tokens, not 0.5"),
    (lambda: uniform(1, 0, 5, 1), "low must be a whole number from 1"),
    (lambda: uniform(1, 5, 4, 1), "high must be a whole number from 5 to 10000000 tokens, not 4"),
    (lambda: uniform(1, 1, 2.5, 1), "high must be a whole number.*not 2.5"),
    (lambda: uniform(1, 1, 2, 1, of="arrivals"), "of must be 'prompt' or 'output', not 'arrivals'"),
    (lambda: lognormal(1, 100, -1, 1), "cv must be a number from 0 to 100, not -1"),
    (lambda: lognormal(1, 100, 1, 1, cap=0), "cap must be a whole number from 1"),
    (lambda: heavy_tailed(1, 100, 1, 1), "alpha must be a number from 1.01 to 100, not 1"),
    (lambda: from_quantiles(1, [0, 0.5], [1, 2], 1), "probabilities must increase from 0 to 1"),
    (lambda: from_quantiles(1, [0, 0.5, 0.5, 1], [1, 2, 3, 4], 1), "probabilities must increase from 0 to 1"),
    (lambda: from_quantiles(1, [0, float("nan"), 1], [1, 2, 3], 1), "probabilities must increase from 0 to 1"),
    (lambda: from_quantiles(1, [0, 1], [2, 1], 1), "values must be one for each probability"),
    (lambda: from_quantiles(1, [0, 1], [0, 1], 1), "values must be one for each probability, from 1"),
    (lambda: from_quantiles(1, [0, 1], [1, 2, 3], 1), "values must be one for each probability"),
])
def test_a_bad_parameter_is_named_with_its_range(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
