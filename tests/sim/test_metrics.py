"""What is counted, and that nothing gets lost: latencies by the field's definitions, the idle ledger, who is where."""

from __future__ import annotations

import math
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import metrics, slots
from sim.engine import Engine, simulate
from sim.metrics import ROLES, ledger
from sim.policy import Memory, Policy, continuous, faster_transformer, orca, static, vllm
from sim.run import Run
from sim.service import Affine
from sim.static import simulate_static
from sim.trace import Trace
from tests.sim import test_memory as tight
from tests.sim.cases import LLAMA, Case, cases, starved
from tests.sim.plain import plain
from tests.sim.plain_paged import serve


def us(run: Run) -> dict[str, float]:
    """The ledger in slot-µs, without what is zero."""
    return {role: round(s * 1e6, 6) for role, s in ledger(run).seconds.items() if s}


# ---- one cause each, worked by hand. A step with T tokens for R requests takes 100 + T + 2·R µs.

PAPER = Affine(100, 1, 2)


def test_who_comes_after_the_batch_has_left_is_late_not_filling() -> None:
    # Timeout 0, two slots. A (prompt 8, output 2) leaves alone: 110 to its first token, 103 more, ends at 213.
    # B (prompt 8, output 1) comes at 50: for 163 µs the second seat is empty though B waits; before, for 50 µs, nobody did.
    # B's batch: 213 to 323; its second seat has nothing to do.
    run = simulate(Trace(np.array([0, 50]) / 1e6, [8, 8], [2, 1]), PAPER, static(2, 0))
    assert us(run) == {"prefill": 220, "decode": 103, "late": 163, "nothing": 50 + 110}


def test_a_free_slot_is_held_back_by_a_spent_budget() -> None:
    # Budget 4, two slots. A's prompt of 6 takes the whole first step, 106 µs, while B waits beside a free slot; then the last
    # 2 tokens of A and both of B, 108 µs.
    run = simulate(Trace([0, 0], [6, 2], [1, 1]), PAPER, continuous(2, budget=4))
    assert us(run) == {"prefill": 106 + 2 * 108, "budget": 106}


def test_an_arrival_is_held_back_by_the_step_that_runs_then_by_the_budget() -> None:
    # Budget 4, three slots. A's prompt of 12 takes three steps of 106 µs. B comes at 150: until 212 it waits for the step's
    # end, until 318 for the budget. The third slot has nothing to do. Then B's prompt of 4: 106.
    run = simulate(Trace(np.array([0, 150]) / 1e6, [12, 4], [1, 1]), PAPER, continuous(3, budget=4))
    assert us(run) == {"prefill": 318 + 106, "boundary": 62, "budget": 106, "nothing": 3 * 424 - 318 - 106 - 62 - 106}


def test_a_whole_prompt_that_does_not_fit_the_rest_of_the_budget_waits_for_it() -> None:
    # Budget 10. A's 8 tokens leave 2: B's 5 do not fit, and C's 1 may not overtake. 110 µs; then A decodes (1) beside B (5)
    # and C (1): 7 tokens for 3 requests, 113 µs.
    run = simulate(Trace([0, 0, 0], [8, 5, 1], [2, 1, 1]), PAPER, continuous(3, budget=10, prompts="whole"))
    assert us(run) == {"prefill": 110 + 2 * 113, "decode": 113, "budget": 2 * 110}


def test_time_before_the_first_arrival_is_nobodys() -> None:
    run = simulate(Trace([5], [8], [1]), PAPER, continuous(2))
    assert us(run) == {"prefill": 110, "nothing": 110}
    assert metrics.makespan(run) == pytest.approx(110e-6)


# ---- nothing is lost


def both(case: Case) -> tuple[Run, Run]:
    """One row per step, and stretches."""
    return plain(*case)[0], simulate(*case)


@settings(max_examples=300)
@given(cases())
def test_the_parts_add_up_to_slots_times_makespan(case: Case) -> None:
    for run in both(case):
        parts = ledger(run).seconds
        assert list(parts) == list(ROLES)
        assert min(parts.values()) >= 0
        assert sum(parts.values()) == pytest.approx(run.policy.slots * metrics.makespan(run), rel=1e-9)


@settings(max_examples=200)
@given(cases())
def test_the_parts_add_up_on_the_calibrated_clock(case: Case) -> None:
    for run in both((case[0], LLAMA, case[2])):
        parts = ledger(run).seconds
        assert min(parts.values()) >= -1e-9 * ledger(run).total
        assert sum(parts.values()) == pytest.approx(ledger(run).total, rel=1e-9)


def test_the_parts_add_up_over_ten_thousand_requests() -> None:
    rng = np.random.default_rng(1)
    trace = Trace(np.cumsum(rng.exponential(1 / 7, 10_000)), rng.integers(1, 1_596, 10_000), rng.integers(1, 370, 10_000))
    for run in (simulate(trace, LLAMA, continuous(64, 512)), simulate_static(trace, LLAMA, static(64, 0.5))):
        assert sum(ledger(run).seconds.values()) == pytest.approx(ledger(run).total, rel=1e-9)


def instant_by_instant(run: Run) -> dict[str, float]:
    """The ledger by its definition: between any two events, ask of every request what it does. Rows hold one step each."""
    arrival, admitted, first = run.trace.arrival_us, run.admitted_us, run.first_token_us
    finished, released, steps = run.finished_us, run.released_us, run.steps
    events = sorted({*arrival, *admitted, *first, *finished, *released, *steps.start_us, *steps.end_us})
    out = dict.fromkeys(ROLES, 0.0)
    for a, b in pairwise(events):
        row = next((i for i in range(len(steps.count)) if steps.start_us[i] <= a < steps.end_us[i]), None)
        roles = []
        for r in range(len(run)):
            if admitted[r] <= a < released[r]:
                if a < first[r]:
                    roles.append("prefill")
                elif a >= finished[r]:
                    roles.append("held")
                else:
                    roles.append("decode" if row is not None and steps.decode[row] else "stalled")
        waiting = [r for r in range(len(run)) if arrival[r] <= a < admitted[r]]
        for r in waiting[:run.policy.slots - len(roles)]:  # as many as there are free slots, first come first served
            if run.policy.batching == "static":
                roles.append("filling" if row is None else "late")
            else:
                assert row is not None  # a continuous server does not sleep while somebody waits
                roles.append("budget" if arrival[r] <= steps.start_us[row] else "boundary")
        for role in roles + ["nothing"] * (run.policy.slots - len(roles)):
            out[role] += (b - a) / 1e6
    return out


@settings(max_examples=300)
@given(cases())
def test_every_role_gets_what_asking_at_every_instant_gives(case: Case) -> None:
    run, stretched = both(case)
    expected = pytest.approx(instant_by_instant(run), abs=1e-12)
    assert ledger(run).seconds == expected
    assert ledger(stretched).seconds == expected


def test_idle_share_is_what_neither_prefills_nor_decodes() -> None:
    run = simulate(Trace(np.array([0, 50]) / 1e6, [8, 8], [2, 1]), PAPER, static(2, 0))
    book = ledger(run)
    assert book.idle_share == pytest.approx(1 - 323 / 646)
    assert book.share("late") == pytest.approx(163 / 646)


# ---- every gap between two tokens


@settings(max_examples=300)
@given(cases())
def test_itl_quantiles_are_those_of_all_gaps_laid_out_one_by_one(case: Case) -> None:
    _, tokens = plain(*case)
    gaps = np.concatenate([np.diff(t) for t in tokens]) / 1e6
    q = np.array([0, 0.01, 0.3, 0.5, 0.9, 0.99, 0.999, 1])
    for run in both(case):
        if len(gaps):
            assert metrics.itl_quantiles(run, q) == pytest.approx(np.quantile(gaps, q), rel=1e-12)
        else:
            assert np.isnan(metrics.itl_quantiles(run, q)).all()


@settings(max_examples=100)
@given(cases())
def test_token_times_are_those_of_the_server_stepped_by_hand(case: Case) -> None:
    _, tokens = plain(*case)
    for run in both(case):
        for r, expected in enumerate(tokens):
            assert metrics.token_times(run, r) == pytest.approx(np.array(expected) / 1e6, abs=1e-12)


@settings(max_examples=100)
@given(cases())
def test_token_times_and_gaps_hold_on_the_calibrated_clock(case: Case) -> None:
    case = (case[0], LLAMA, case[2])
    _, tokens = plain(*case)
    gaps = np.concatenate([np.diff(t) for t in tokens]) / 1e6
    for run in both(case):
        for r, expected in enumerate(tokens):
            assert metrics.token_times(run, r) == pytest.approx(np.array(expected) / 1e6, abs=1e-9)
        if len(gaps):
            assert metrics.itl_quantiles(run, [0, 0.5, 1]) == pytest.approx(np.quantile(gaps, [0, 0.5, 1]), abs=1e-9)


def test_with_a_budget_below_the_number_of_decodes_the_first_admitted_get_the_tokens() -> None:
    # Budget 2, three slots, a step of 100 + T + 2·R. Prompts of 1: A and B at 0 → 106, first tokens. Then A and B decode
    # (106 each: 212, 318), C has no budget. A and B have their 3 tokens; C's prompt: 103 → 421, then 103 → 524.
    run = simulate(Trace([0, 0, 0], [1, 1, 1], [3, 3, 2]), PAPER, continuous(3, budget=2))
    assert us(run) == {"prefill": 212 + 103, "decode": 4 * 106 + 103, "budget": 3 * 106, "nothing": 2 * (103 + 103)}


# ---- latencies by name


@pytest.fixture
def two() -> Run:
    """A: prompt 8, output 3, at 0. B: prompt 8, output 1, at 50 µs. One slot: A 0 → 110 → 213 → 316 µs, B 316 → 426."""
    return simulate(Trace(np.array([0, 50]) / 1e6, [8, 8], [3, 1]), PAPER, continuous(1))


def test_latencies_follow_their_definitions(two: Run) -> None:
    assert metrics.queue_wait(two) == pytest.approx([0, 266e-6])
    assert metrics.ttft(two) == pytest.approx([110e-6, 376e-6])
    assert metrics.e2e(two) == pytest.approx([316e-6, 376e-6])
    assert metrics.normalised_latency(two) == pytest.approx([316e-6 / 3, 376e-6])


def test_tpot_is_a_mean_per_request_and_one_token_has_none(two: Run) -> None:
    tpot = metrics.tpot(two)
    assert tpot[0] == pytest.approx(103e-6)
    assert math.isnan(tpot[1])


def test_throughput_is_per_second_of_makespan(two: Run) -> None:
    assert metrics.output_throughput(two) == pytest.approx(4 / 426e-6)
    assert metrics.request_throughput(two) == pytest.approx(2 / 426e-6)


@pytest.mark.parametrize(("ttft_limit", "tpot_limit", "good"), [
    (1.0, 1.0, 2),
    (110e-6, 1.0, 1),  # a limit just met is met; B's first token comes at 376 µs
    (1.0, 1e-6, 1),    # A's 103 µs a token is too slow; B has one token, and counts as TPOT 0
    (1e-6, 1e-6, 0),
])
def test_goodput_counts_requests_that_keep_every_limit(two: Run, ttft_limit: float, tpot_limit: float, good: int) -> None:
    assert metrics.goodput(two, ttft_limit, tpot_limit) == pytest.approx(good / 426e-6)


def test_a_batch_member_is_answered_at_its_own_last_token_but_holds_its_slot_to_the_batchs_end() -> None:
    # Outputs 1 and 3: first tokens at 100 + 16 + 4 = 120; the other one decodes 103 + 103.
    run = simulate(Trace([0, 0], [8, 8], [1, 3]), PAPER, static(2))
    assert metrics.e2e(run) == pytest.approx([120e-6, 326e-6])
    assert us(run) == {"prefill": 240, "decode": 206, "held": 206}
    assert metrics.idle_step_share(run) == pytest.approx(2 / 6)  # 3 steps × 2 slots; slot 0 computes in one of them


def test_the_summary_holds_what_the_functions_say(two: Run) -> None:
    s = metrics.summary(two)
    assert s["makespan"] == metrics.makespan(two)
    assert s["itl_max"] == pytest.approx(103e-6)
    assert s["ttft_p50"] == pytest.approx((110e-6 + 376e-6) / 2)
    assert s["tpot_p99"] == pytest.approx(103e-6)  # over the requests that have one
    assert s["idle_share"] == ledger(two).idle_share


def test_a_summary_without_a_second_token_has_no_itl_but_stands() -> None:
    s = metrics.summary(simulate(Trace([0], [8], [1]), PAPER, continuous(1)))
    assert math.isnan(s["itl_p50"]) and math.isnan(s["tpot_p50"])
    assert s["e2e_p99"] == pytest.approx(110e-6)


def test_the_frame_has_a_row_per_request_in_milliseconds(two: Run) -> None:
    table = metrics.frame(two)
    assert table["first_token_ms"].tolist() == pytest.approx([0.110, 0.426])
    assert table["queue_wait_ms"].tolist() == pytest.approx([0, 0.266])
    assert table["slot"].tolist() == [0, 0]
    assert table["output"].tolist() == [3, 1]


# ---- who is where


@settings(max_examples=300)
@given(cases())
def test_segments_fill_every_slot_and_add_up_to_the_ledger(case: Case) -> None:
    for run in both(case):
        seg = metrics.slot_segments(run)
        spent = np.bincount(seg.role, seg.end_us - seg.start_us, len(ROLES)) / 1e6
        assert dict(zip(ROLES, spent, strict=True)) == pytest.approx(ledger(run).seconds, abs=1e-12)
        for slot in range(run.policy.slots):
            mine = np.flatnonzero(seg.slot == slot)
            assert seg.start_us[mine[0]] == run.trace.arrival_us[0]
            assert seg.end_us[mine[-1]] == run.steps.end_us[-1]
            assert (seg.start_us[mine[1:]] == seg.end_us[mine[:-1]]).all()
            same = (seg.role[mine[1:]] == seg.role[mine[:-1]]) & (seg.request[mine[1:]] == seg.request[mine[:-1]])
            assert not same.any()  # one piece each, not cut where nothing changes
        assert (seg.end_us > seg.start_us).all()


@settings(max_examples=200)
@given(cases())
def test_a_request_stays_in_one_slot_from_admission_to_release(case: Case) -> None:
    for run in both(case):
        seg, lane = metrics.slot_segments(run), metrics.lanes(run)
        for r in range(len(run)):
            mine = seg.request == r
            assert set(seg.slot[mine]) == {lane[r]}
            assert seg.start_us[mine].min() == run.admitted_us[r]
            assert seg.end_us[mine].max() == run.released_us[r]
        assert set(seg.role[seg.request >= 0]) <= {metrics.PREFILL, metrics.DECODE, metrics.STALLED, metrics.HELD}


def test_an_admitted_request_takes_the_lowest_free_slot() -> None:
    # Outputs 5, 1, 1 at once in three slots; 1 and 2 end with the prompt step, so 3 takes slot 1, and 4 slot 2.
    run = simulate(Trace([0, 0, 0, 0, 0], [1] * 5, [5, 1, 1, 3, 3]), PAPER, continuous(3))
    assert metrics.lanes(run).tolist() == [0, 1, 2, 1, 2]


def test_more_slots_than_are_ever_used_have_nothing_to_do() -> None:
    seg = metrics.slot_segments(simulate(Trace([0], [8], [1]), PAPER, continuous(500)))
    assert len(seg) == 500
    assert (seg.role[seg.slot > 0] == metrics.NOTHING).all()


def test_segments_do_not_depend_on_how_many_cells_are_looked_at_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    trace = Trace(np.cumsum(rng.exponential(0.1, 200)), rng.integers(1, 900, 200), rng.integers(1, 90, 200))
    run = simulate(trace, LLAMA, continuous(8, 256, "chunked"))
    whole = metrics.slot_segments(run)
    monkeypatch.setattr(slots, "_CELLS", 50)
    for name in ("slot", "start_us", "end_us", "role", "request"):
        assert getattr(metrics.slot_segments(run), name).tolist() == getattr(whole, name).tolist()


@settings(max_examples=200)
@given(cases())
def test_the_state_at_an_instant_is_what_the_segments_and_columns_say(case: Case) -> None:
    for run in both(case):
        seg, arrival = metrics.slot_segments(run), run.trace.arrival_us
        for t in np.unique([run.admitted_us, run.finished_us, arrival + 0.5, arrival - 0.5, run.released_us])[:12]:
            state = metrics.state_at(run, t)
            now = (seg.start_us <= t) & (t < seg.end_us)
            expected = np.full(run.policy.slots, -1)
            expected[seg.slot[now]] = seg.request[now]
            assert state.slots.tolist() == expected.tolist()
            assert state.roles[seg.slot[now]].tolist() == seg.role[now].tolist()
            assert state.queued.tolist() == [r for r in range(len(run)) if arrival[r] <= t < run.admitted_us[r]]
            assert state.finished.tolist() == [r for r in range(len(run)) if run.finished_us[r] <= t]


def test_on_paper_who_is_where_at_300_us(two: Run) -> None:
    state = metrics.state_at(two, 300)
    assert (state.slots.tolist(), state.queued.tolist(), state.finished.tolist()) == ([0], [1], [])
    assert [ROLES[i] for i in state.roles] == ["decode"]
    state = metrics.state_at(two, 316)  # at an event: just after it
    assert (state.slots.tolist(), state.queued.tolist(), state.finished.tolist()) == ([1], [], [0])


@pytest.mark.parametrize("policy", [static(2), continuous(2, budget=16)])
def test_a_run_stopped_half_way_is_measured_up_to_its_last_step(policy: Policy) -> None:
    trace = Trace(np.array([0, 0, 10, 20, 400, 410]) / 1e6, [8] * 6, [2, 3, 4, 2, 5, 1])
    engine = Engine(PAPER, policy)
    engine.submit(trace)
    engine.advance(550)
    run = engine.run(trace)
    assert len(run.steps.count) > 0 and np.isnan(run.finished_us).any()
    assert sum(ledger(run).seconds.values()) == pytest.approx(ledger(run).total, rel=1e-9)
    assert ledger(run).total == pytest.approx(2 * run.steps.end_us[-1] / 1e6)


def test_a_run_without_a_step_is_empty_not_wrong() -> None:
    trace = Trace([1], [8], [2])
    engine = Engine(PAPER, continuous(2))
    engine.submit(trace)
    run = engine.run(trace)
    assert ledger(run).total == sum(ledger(run).seconds.values()) == ledger(run).idle_share == 0
    assert math.isnan(metrics.summary(run)["ttft_p50"])
    assert metrics.goodput(run, 1, 1) == 0
    assert metrics.state_at(run, 2e6).queued.tolist() == [0]
    assert metrics.lanes(run).tolist() == [-1]


# ---- with limited memory, preemptions, clients that give up, refusals

def paged() -> st.SearchStrategy[tuple[Trace, Affine, Policy]]:
    return tight.cases() | starved()


def by_the_rules(case: tuple[Trace, Affine, Policy]) -> tuple[Run, list[list[float]]] | None:
    """A run and the token times of the rules taken word by word; None if it goes in circles."""
    engine = Engine(case[1], case[2], most_rows=5_000)
    engine.submit(case[0])
    engine.advance(math.inf)
    run = engine.run(case[0])
    if run.stopped.startswith("stopped"):
        return None
    return run, [r.times for r in serve(*case, most=5_000).requests]


@settings(max_examples=300)
@given(paged())
def test_token_times_with_scarce_memory_are_those_of_the_rules_taken_word_by_word(case: tuple[Trace, Affine, Policy]) -> None:
    both = by_the_rules(case)
    if both:
        run, tokens = both
        for r, expected in enumerate(tokens):
            assert metrics.token_times(run, r).tolist() == pytest.approx(np.array(expected) / 1e6, abs=1e-12)


@settings(max_examples=300)
@given(paged())
def test_itl_quantiles_with_scarce_memory_are_those_of_all_gaps(case: tuple[Trace, Affine, Policy]) -> None:
    both = by_the_rules(case)
    if not both:
        return
    run, tokens = both
    gaps = np.concatenate([np.diff(t) for t in tokens]) / 1e6
    q = np.array([0, 0.01, 0.3, 0.5, 0.9, 0.99, 0.999, 1])
    if len(gaps):
        assert metrics.itl_quantiles(run, q) == pytest.approx(np.quantile(gaps, q), rel=1e-12)
    else:
        assert np.isnan(metrics.itl_quantiles(run, q)).all()


@settings(max_examples=300)
@given(paged())
def test_nothing_of_the_slots_time_is_lost_with_scarce_memory(case: tuple[Trace, Affine, Policy]) -> None:
    both = by_the_rules(case)
    if not both or not len(both[0].steps.count):
        return
    run = both[0]
    book, seg, roles = ledger(run), metrics.slot_segments(run), metrics.roles(run)
    assert sum(book.seconds.values()) == pytest.approx(book.total, rel=1e-9)
    assert min(book.seconds.values()) >= 0
    spent = np.bincount(seg.role, seg.end_us - seg.start_us, len(roles)) / 1e6
    assert dict(zip(roles, spent, strict=True)) == pytest.approx(book.seconds, abs=1e-12)
    steps = run.steps  # slot-time of decodes: as many slots as tokens, for as long as their steps take
    assert book.seconds["decode"] == pytest.approx((steps.decode * (steps.end_us - steps.start_us)).sum() / 1e6, rel=1e-9)


# On paper: blocks of 4 tokens, a step of 1 ms, nothing else costs (the cases of test_memory.py, where the sums stand).

STEP = Affine(1_000, 0, 0)


def newest_gives_way(swap_us: float | None = None) -> Run:
    return simulate(Trace([0, 0], [4, 4], [6, 6]), STEP, vllm(2, 100, Memory(4, 4, swap_us=swap_us)))


def test_the_gap_across_a_preemption_is_one_gap() -> None:
    # Request 1 has its 5th token at 5 ms, is preempted then, comes back at 6 and has its 6th at 7: nine gaps of 1 ms, one of 2.
    run = newest_gives_way()
    assert metrics.token_times(run, 0) == pytest.approx([0.001, 0.002, 0.003, 0.004, 0.005, 0.006])
    assert metrics.token_times(run, 1) == pytest.approx([0.001, 0.002, 0.003, 0.004, 0.005, 0.007])
    assert metrics.itl_quantiles(run, [0, 8 / 9, 1]) == pytest.approx([0.001, 0.001, 0.002])
    assert metrics.queue_wait(run).tolist() == [0, 0]


def test_a_slot_left_by_a_preemption_is_free_for_lack_of_memory_and_computes_the_prompt_anew() -> None:
    # Both: 1 ms prompt and 4 ms decodes. 5 to 6 ms: request 0 decodes, request 1 waits for blocks. Then its prompt again, 1 ms.
    run = newest_gives_way()
    assert us(run) == {"prefill": 3_000, "decode": 9_000, "memory": 1_000, "nothing": 1_000}
    assert metrics.state_at(run, 5_500).queued.tolist() == [1]
    assert metrics.state_at(run, 6_500).slots.tolist() == [1, -1]  # back in the lowest free slot
    assert metrics.lanes(run).tolist() == [0, 1]


def test_a_swap_lengthens_the_gaps_of_all() -> None:
    # 200 µs out, in the step at 5 ms; 200 µs back in, in the step at 6.2 ms.
    run = newest_gives_way(swap_us=100)
    assert metrics.token_times(run, 0) == pytest.approx([0.001, 0.002, 0.003, 0.004, 0.005, 0.0062])
    assert metrics.token_times(run, 1) == pytest.approx([0.001, 0.002, 0.003, 0.004, 0.005, 0.0074])


def test_a_client_that_gives_up_keeps_what_it_got_but_has_no_end_to_end_latency() -> None:
    # Request 0 gives up at 2.5 ms: two tokens, the third is lost. Request 1 (4 tokens) is all that is finished, in 4 ms.
    run = simulate(Trace([0, 0], [4, 4], [50, 4], cancel=[0.0025, math.inf]), STEP, vllm(2, 100, Memory(28, 4)))
    assert metrics.token_times(run, 0) == pytest.approx([0.001, 0.002])
    assert metrics.ttft(run) == pytest.approx([0.001, 0.001])
    assert np.isnan([metrics.e2e(run)[0], metrics.tpot(run)[0], metrics.normalised_latency(run)[0]]).all()
    assert metrics.e2e(run)[1] == pytest.approx(0.004)
    assert metrics.request_throughput(run) == pytest.approx(1 / 0.004)
    assert metrics.output_throughput(run) == pytest.approx(4 / 0.004)
    assert metrics.goodput(run, 1, 1) == pytest.approx(1 / 0.004)
    assert metrics.state_at(run, 4_000).finished.tolist() == [1]


def test_a_refused_request_neither_waits_nor_runs() -> None:
    # Request 0 would need 8 of 5 blocks; request 1: 1 ms of prompt, 1 ms of decode; 3 slots had no request all the time.
    run = simulate(Trace([0, 0], [20, 4], [10, 2]), STEP, vllm(4, 100, Memory(5, 4)))
    assert us(run) == {"prefill": 1_000, "decode": 1_000, "nothing": 6_000}
    assert metrics.token_times(run, 0).tolist() == []
    assert math.isnan(metrics.ttft(run)[0])
    assert metrics.state_at(run, 500).queued.tolist() == []


def test_memory_reserved_for_the_longest_keeps_slots_free() -> None:
    # 20 tokens, 5 blocks each; 10 blocks are two requests. Outputs 2: two at a time, 2 ms each; the third slot lacks memory
    # as long as somebody waits, that is for the first 2 ms.
    trace = Trace(np.zeros(4), np.full(4, 4), np.full(4, 2))
    book = {"prefill": 4_000, "decode": 4_000, "memory": 2_000, "nothing": 2_000}
    assert us(simulate(trace, STEP, orca(3, 10, 20, block_size=4))) == book
    assert us(simulate(trace, STEP, faster_transformer(3, 10, 20, block_size=4))) == book


def test_a_run_of_ten_million_tokens_needs_no_value_per_token(monkeypatch: pytest.MonkeyPatch) -> None:
    # The two ways agree on a small run; on a large one the other way would need a gigabyte.
    clock, q = Affine(1_000, 10, 5, context_us=0.5), (0.0, 0.25, 0.5, 0.9, 0.99, 1.0)
    small = simulate(Trace([0, 0.001, 0.004], [50, 10, 400], [300, 40, 900]), clock, continuous(2))
    looked_at = metrics.itl_quantiles(small, q)
    monkeypatch.setattr("sim.metrics._MOST_STEPS", 0)
    assert np.allclose(metrics.itl_quantiles(small, q), looked_at, rtol=1e-12, atol=0)
    monkeypatch.undo()
    tracemalloc.start()
    large = simulate(Trace([0], [10], [10_000_000]), clock, continuous(2))
    # Decode step j takes 1,015 + (10 + j)/2 µs, j = 1 … 9,999,999: the median is that of j = 5,000,000.
    assert metrics.itl_quantiles(large, [0.5])[0] == pytest.approx((1_015 + 5_000_010 / 2) / 1e6, rel=1e-12)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()
