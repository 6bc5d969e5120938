"""Figures known without a simulator: sums on paper, and queueing theory."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from sim.engine import simulate
from sim.metrics import e2e, idle_step_share, itl_quantiles, ledger, makespan, queue_wait, token_times, ttft
from sim.policy import Policy, continuous, static
from sim.run import Run
from sim.service import Affine, StepTime, service
from sim.static import simulate_static
from sim.trace import Trace
from tests.sim.plain import plain

LLAMA = service("Llama-3-8B", "A100-80G")
Simulator = Callable[[Trace, StepTime, Policy], Run]

# Four requests on paper. A step with T tokens for R requests takes 100 + T + 2·R µs; two slots.
#              A   B   C    D
# arrival µs   0   0  150  400
# prompt      10  20    6    8
# output       3   1    4    2
FOUR = Trace(np.array([0, 0, 150, 400]) / 1e6, [10, 20, 6, 8], [3, 1, 4, 2])
PAPER = Affine(100, 1, 2)

# Static. Batch A B leaves at 0: prompts 30 tokens, 134 µs: A1 B1 at 134. A alone, 103 a step: A2 237, A3 340.
# C waits for D, so batch C D leaves at 400: prompts 14 tokens, 118: C1 D1 518. Both decode, 106: C2 D2 624.
# C alone: C3 727, C4 830.
STATIC = [[134, 237, 340], [134], [518, 624, 727, 830], [518, 624]]
# Slot-µs, 2 × 830: prefill 2·134 + 2·118; decode A 206, C 312, D 106; held B 206, D 206;
# from 340 to 400 C waits (filling) and the other slot has nothing to do. Batch A B was full, so nobody came late.
STATIC_LEDGER = {"prefill": 504, "decode": 624, "held": 412, "filling": 60, "nothing": 60}

# Continuous, no budget. A B at 0: 134: A1 B1. C is not there yet, A alone, 103: A2 237.
# A decodes beside C's prompt, 7 tokens, 111: A3 C1 348. C alone: C2 451.
# C beside D's prompt, 9 tokens, 113: C3 D1 564. Both decode, 106: C4 D2 670.
CONTINUOUS = [[134, 237, 348], [134], [348, 451, 564, 670], [564, 670]]
# 2 × 670: prefill 2·134 + 111 + 113; decode A 103+111, C 103+113+106, D 106;
# free from 134 to 237, C is there from 150 on; free from 348 to 451, D is there from 400 on.
CONTINUOUS_LEDGER = {"prefill": 492, "decode": 642, "boundary": 87 + 51, "nothing": 16 + 52}

# Prompts alone. A B: 134. A alone: A2 237. C's prompt alone, 6 tokens for 1 request, 108: C1 345. A C: A3 C2 451.
# D's prompt alone, 110: D1 561. C D: C3 D2 667. C alone: C4 770.
ALONE = [[134, 237, 451], [134], [345, 451, 667, 770], [561, 667]]
# 2 × 770: prefill 268 + 108 + 110; decode A 103+106, C 106+106+103, D 106; A stalls for C's prompt and C for D's;
# free from 134 (C there from 150) to 237, and from 667 to 770.
ALONE_LEDGER = {"prefill": 486, "decode": 630, "stalled": 108 + 110, "boundary": 87, "nothing": 16 + 103}

# Chunks, budget 12. A 10 tokens and 2 of B: 116: A1. A and 11 of B, 12 tokens: 116: A2 232.
# A and the last 7 of B, 8 tokens, 112: A3 B1 344. C's prompt, 6 tokens, 108 (came at 150, slots full): C1 452.
# C and D's prompt, 9 tokens, 113: C2 D1 565. Both, 106: C3 D2 671. C alone: C4 774.
CHUNKED = [[116, 232, 344], [344], [452, 565, 671, 774], [565, 671]]
# 2 × 774: prefill A 116, B 344, C 108, D 113; decode A 228, C 113+106+103, D 106;
# free from 344 to 452 (D from 400 on), and from 671 to 774.
CHUNKED_LEDGER = {"prefill": 681, "decode": 656, "boundary": 52, "nothing": 56 + 103}

ON_PAPER = [
    (static(2), STATIC, STATIC_LEDGER),
    (continuous(2), CONTINUOUS, CONTINUOUS_LEDGER),
    (continuous(2, prompts="whole"), CONTINUOUS, CONTINUOUS_LEDGER),
    (continuous(2, prompts="alone"), ALONE, ALONE_LEDGER),
    (continuous(2, budget=12), CHUNKED, CHUNKED_LEDGER),
]


def stepped(trace: Trace, clock: StepTime, policy: Policy) -> Run:
    return plain(trace, clock, policy)[0]


@pytest.mark.parametrize(("by", "policy", "tokens", "slot_us"), [
    (by, *case) for case in ON_PAPER for by in (simulate, stepped, simulate_static)
    if by is not simulate_static or case[0].batching == "static"
])
def test_four_requests_on_paper(by: Simulator, policy: Policy, tokens: list[list[float]], slot_us: dict[str, float]) -> None:
    run = by(FOUR, PAPER, policy)
    assert [token_times(run, r).tolist() for r in range(4)] == [pytest.approx(np.array(t) / 1e6, abs=1e-15) for t in tokens]
    assert {role: round(s * 1e6, 6) for role, s in ledger(run).seconds.items() if s} == slot_us
    gaps = np.concatenate([np.diff(t) for t in tokens]) / 1e6
    q = [0, 0.25, 0.5, 0.9, 1]
    assert itl_quantiles(run, q) == pytest.approx(np.quantile(gaps, q), rel=1e-12)


def test_the_oracle_yields_the_tokens_on_paper() -> None:
    for policy, tokens, _ in ON_PAPER:
        assert plain(FOUR, PAPER, policy)[1] == tokens


@pytest.mark.parametrize("clock", [Affine(900, 3, 5), LLAMA])
@pytest.mark.parametrize("n", [12, 14])
def test_equal_requests_at_once_finish_together_under_both_policies(clock: StepTime, n: int) -> None:
    trace = Trace(np.zeros(n), np.full(n, 300), np.full(n, 40))
    batch, joining = (simulate(trace, clock, p) for p in (static(4), continuous(4, prompts="whole")))
    assert np.abs(batch.finished_us - joining.finished_us).max() <= (0 if isinstance(clock, Affine) else 1e-3)


def test_uniform_outputs_leave_436_per_mille_of_slot_steps_idle_under_static_batching() -> None:
    # Outputs uniform on 1..128, 8 in a batch: mean 64.5, mean of the largest of 8 = Σ 1 − ((k−1)/128)^8 = 114.27 steps,
    # the prompt step (which yields the first token) counted as one. 1 − 64.5/114.27 = 0.4356.
    n = 16_000
    output = np.random.default_rng(7).integers(1, 129, n)
    longest = sum(1 - ((k - 1) / 128) ** 8 for k in range(1, 129))
    assert longest == pytest.approx(114.27, abs=0.01)
    trace = Trace(np.zeros(n), np.full(n, 500), output)
    run = simulate_static(trace, LLAMA, static(8))
    assert idle_step_share(run) == pytest.approx(0.436, abs=0.01)
    # Of slot-*time* less is idle: in the prompt steps, much longer than decode steps, every slot computes.
    assert ledger(run).idle_share < idle_step_share(run) - 0.01
    # The two are one number only where every step takes equally long.
    equal_steps = simulate_static(trace, Affine(1_000, 0), static(8))
    assert ledger(equal_steps).idle_share == pytest.approx(idle_step_share(equal_steps), rel=1e-12)


def poisson(n: int, work: float, load: float, seed: int) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).exponential(work / load, n))


@pytest.mark.parametrize("by", [simulate, simulate_static])
@pytest.mark.parametrize("load", [0.5, 0.95])
def test_with_one_slot_every_queue_wait_is_lindleys(by: Simulator, load: float) -> None:
    # 3 decode steps of 2,001 µs after a prompt step of 2,010 µs: 8,013 µs for every request.
    trace = Trace(poisson(20_000, 8_013e-6, load, 11), np.full(20_000, 10), np.full(20_000, 4))
    run = by(trace, Affine(2_000, 1), static(1, 0) if by is simulate_static else continuous(1))
    wait, expected = 0.0, []
    for gap in np.diff(trace.arrival_us, append=math.inf).tolist():
        expected.append(wait)
        wait = max(0.0, wait + 8_013 - gap)  # Lindley: W' = max(0, W + S − A)
    assert np.abs(queue_wait(run) - np.array(expected) / 1e6).max() < 1e-9


@pytest.mark.parametrize("by", [simulate, simulate_static])
def test_at_half_load_the_mean_wait_of_a_million_is_that_of_m_d_1(by: Simulator) -> None:
    # M/D/1: ρ·D/(2(1−ρ)) with D = 10 ms and ρ = 0.5 is 5 ms.
    n = 1_000_000
    trace = Trace(poisson(n, 0.01, 0.5, 5), np.ones(n), np.ones(n))
    run = by(trace, Affine(10_000, 0), static(1, 0) if by is simulate_static else continuous(1))
    assert queue_wait(run).mean() == pytest.approx(0.005, rel=0.02)


@pytest.mark.parametrize("policy", [static(1), continuous(1)])
def test_admitted_at_30_ms_first_token_at_80_and_100_gaps_of_5_end_at_580(policy: Policy) -> None:
    # Steps of 4 ms + 1 ms per token: the request before has 26 prompt tokens and one output token, 30 ms; then 46 prompt
    # tokens take 50 ms, and each decode step 5 ms.
    run = simulate(Trace([0, 0], [26, 46], [1, 101]), Affine(4_000, 1_000), policy)
    assert (queue_wait(run)[1], ttft(run)[1]) == (0.030, 0.080)
    assert itl_quantiles(run, [0, 1]).tolist() == [0.005, 0.005]
    assert token_times(run, 1)[-1] == e2e(run)[1] == 0.580
    assert makespan(run) == 0.580


@pytest.mark.parametrize("policy", [static(3, 0.1), continuous(3, budget=64), continuous(3, prompts="alone")])
def test_ttft_and_199_gaps_are_the_response_time_of_200_tokens(policy: Policy) -> None:
    trace = Trace([0, 0.05, 0.3, 0.9], [400, 90, 700, 20], [150, 200, 30, 80])
    run = simulate(trace, LLAMA, policy)
    gaps = np.diff(token_times(run, 1))
    assert len(gaps) == 199
    assert ttft(run)[1] + gaps.sum() == pytest.approx(e2e(run)[1], abs=1e-9)
