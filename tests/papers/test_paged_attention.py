"""The PagedAttention paper: what comes out within its tolerance, what does not, and the closed forms behind both."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sim import metrics, record, workloads
from sim.engine import simulate
from sim.record import paged_attention as paged
from sim.record.claim import Claim
from sim.service import service

# What is outside, and what its note must say why.
OUTSIDE = {
    "paged-batch-paged": ["Little's law", "45 ms for each token", "kernels alone"],
    "paged-samples-4": ["full blocks of the prompt", "spread of their lengths is not printed"],
    "paged-beams-6": ["drawn by chance alone", "live on side by side"],
}
SHOWN_ONLY = {"paged-step-at-2-per-second"}

# As the issue of the memory lesson and papers/FACTS.md section 1 state them: low, high.
TOLERANCES = {
    "paged-stack-max-tokens": (17.4, 23.4), "paged-stack-max-reserved": (10.3, 16.3),
    "paged-stack-max-internal": (54.3, 60.3), "paged-stack-max-external": (5.9, 11.9),
    "paged-stack-pow2-tokens": (20.8, 32.8), "paged-stack-pow2-reserved": (11.9, 23.9),
    "paged-stack-pow2-internal": (7.6, 19.6), "paged-stack-pow2-external": (35.6, 47.6),
    "paged-stack-oracle-tokens": (35.2, 41.2), "paged-stack-oracle-reserved": (22.2, 28.2),
    "paged-stack-oracle-internal": (0.0, 3.0), "paged-stack-oracle-external": (33.6, 39.6),
    "paged-stack-paged-tokens": (95.0, None),
    "paged-batch-max": (7.0, 7.0), "paged-batch-pow2": (8.829, 10.791), "paged-batch-oracle": (12.258, 14.982),
    "paged-batch-paged": (25.857, 34.983), "paged-littles-law": (97.0, 103.0),
    "paged-rate-over-oracle": (1.5, 2.7), "paged-rate-over-max": (2.7, 5.0), "paged-rate-compute-bound": (None, 1.3),
    "paged-samples-2": (4.5675, 7.6125), "paged-samples-4": (6.3975, 10.6625), "paged-samples-6": (7.3425, 12.2375),
    "paged-beams-2": (35.0, 60.0), "paged-beams-4": (35.0, 60.0), "paged-beams-6": (35.0, 60.0),
}  # fmt: skip


@pytest.fixture(scope="module")
def claims() -> dict[str, Claim]:
    return {claim.name: claim for claim in record.compute(["paged-*"])}


def test_every_claim_is_held_to_the_tolerance_that_was_stated_beforehand(claims: dict[str, Claim]) -> None:
    assert claims.keys() == TOLERANCES.keys() | SHOWN_ONLY
    for name, bounds in TOLERANCES.items():
        for ours, stated in zip((claims[name].low, claims[name].high), bounds, strict=True):
            assert ours == (None if stated is None else pytest.approx(stated, abs=0.005)), name


@pytest.mark.parametrize("name", sorted(TOLERANCES.keys() - OUTSIDE.keys()))
def test_inside(claims: dict[str, Claim], name: str) -> None:
    assert claims[name].inside, claims[name]


@pytest.mark.parametrize("name", sorted(OUTSIDE))
def test_outside_is_reported_as_outside_with_its_reason(claims: dict[str, Claim], name: str) -> None:
    claim = claims[name]
    assert claim.inside is False
    assert all(reason in claim.note for reason in OUTSIDE[name])
    line, note = record.table([claim]).splitlines()[1:]
    assert line.endswith("OUTSIDE")
    assert note.strip() == claim.note


def test_the_step_time_is_shown_beside_what_their_batch_implies(claims: dict[str, Claim]) -> None:
    claim = claims["paged-step-at-2-per-second"]
    assert claim.theirs == 45.0  # 30.42/(2 · 337.99) s
    assert claim.inside is None
    # The batch is as much smaller as the step is faster: both follow from the same law.
    batch = claims["paged-batch-paged"]
    assert batch.theirs is not None
    assert claim.ours / claim.theirs == pytest.approx(batch.ours / batch.theirs, rel=0.03)


def test_what_is_assumed_is_said(claims: dict[str, Claim]) -> None:
    for name, claim in claims.items():
        if "-samples-" in name or "-beams-" in name or name.endswith("compute-bound"):
            assert "means 19.31/58.45" in claim.set_up and "prints no spread" in claim.set_up
        else:
            assert "means 161.31/337.99" in claim.set_up and "CV 1.2/0.87" in claim.set_up
            assert "inferred from figure 2" in claim.set_up and "15,700 token slots" in claim.set_up
        assert "at most 2,048" in claim.set_up
    assert "10,000 requests at once" in claims["paged-stack-max-tokens"].set_up
    assert "drawn uniformly" in claims["paged-beams-2"].set_up
    assert "62,800 token slots" in claims["paged-rate-compute-bound"].set_up
    assert "steps of 2.5 %" in claims["paged-rate-over-max"].set_up and "60 minutes" in claims["paged-rate-over-max"].set_up


# ---- closed forms


def test_seven_pieces_of_2048_fit_and_the_rest_is_too_little_for_an_eighth() -> None:
    share, batch = paged.stack("max")
    assert batch == pytest.approx(15_700 // 2048, rel=1e-9)
    assert share["external"] == pytest.approx((15_700 - 7 * 2048) / 15_700, rel=1e-9)
    assert share["free"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("memory", ["max", "pow2", "oracle", "paged"])
def test_the_parts_add_up_to_the_memory(memory: str) -> None:
    assert sum(paged.stack(memory)[0].values()) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("memory", ["max", "oracle"])
def test_a_request_waits_for_half_of_a_length_biased_output(memory: str) -> None:
    # Seen at a random step, a request has E[O²]/2E[O] − 1/2 of its O − 1 decode tokens to come (renewal theory), here of the
    # requests that were drawn. Steps are not all equally long, and prompts take one too: 4 %.
    share, batch = paged.stack(memory)
    output = paged.SHAREGPT.trace(workloads.all_at_once(10_000)).output.astype(float)
    assert share["reserved"] * 15_700 / batch == pytest.approx((output**2).mean() / (2 * output.mean()) - 0.5, rel=0.04)


def _lognormal_pmf(mean: float, cv: float) -> np.ndarray:
    """P(round(X) = k), k = 0 … 4000, what is below 1 being 1."""
    variance = math.log(1 + cv**2)
    at = [math.erf((math.log(k + 0.5) - math.log(mean) + variance / 2) / math.sqrt(2 * variance)) / 2 + 0.5 for k in range(4001)]
    pmf = np.diff(at, prepend=0.0)
    pmf[1] += pmf[0]
    pmf[0] = 0.0
    return pmf


@pytest.mark.parametrize("n", [2, 4, 6])
def test_savings_of_samples_by_summing_the_distributions(claims: dict[str, Claim], n: int) -> None:
    # (n − 1)/n · E[full prompt blocks]/E[blocks of a sample]; one output token or a cut at 2,048 hardly ever occur.
    prompt, output = _lognormal_pmf(19.31, 1.2), _lognormal_pmf(58.45, 0.87)
    full = prompt @ (np.arange(4001) // 16)
    both = np.convolve(prompt, output)
    blocks = both @ -(-(np.arange(len(both)) - 1) // 16)
    assert claims[f"paged-samples-{n}"].ours == pytest.approx(100 * (n - 1) / n * full / blocks, abs=0.25)


def test_two_wide_beams_save_less_than_half_and_the_wider_the_more() -> None:
    two, four, six = (paged.savings("beams", width)[0] for width in (2, 4, 6))
    assert two < 1 / 2 < four < six < 5 / 6  # at best one of k is left: (k − 1)/k


# ---- the search for the sustained rate


def test_the_sustained_rate_holds_and_the_next_one_does_not() -> None:
    rate = paged.sustained_rate("oracle", paged.SHAREGPT, paged.TOKENS, 200.0)
    means = []
    for nearby in (rate, rate * 1.025):
        trace = paged.SHAREGPT.trace(workloads.poisson(round(nearby * 200), nearby, 0))
        run = simulate(trace, service("OPT-13B", "A100-40G"), paged.policy("oracle"))
        means.append(metrics.normalised_latency(run).mean())
    assert means[0] <= 0.5 < means[1]
    assert math.log(rate / 0.1, 1.025) == pytest.approx(round(math.log(rate / 0.1, 1.025)), abs=1e-6)


def test_a_memory_that_cannot_hold_the_requests_sustains_nothing() -> None:
    with pytest.raises(ValueError, match=r"oracle memory of 64 token slots does not sustain 0\.1 requests/s"):
        paged.sustained_rate("oracle", paged.SHAREGPT, 64, 600.0)
