"""The life of one request: the worked example on paper, and what is given back, or lost, when it leaves.

By hand (`three`): 1 ms a step, 2 slots, 8 blocks of 4 tokens. Three requests at once, 4 prompt and 5 output tokens each; we
follow the first, whose client gives up at 1.5 ms. Step 1 (0 to 1 ms) computes the prompts of 1 and 2, a block each; step 2
(1 to 2 ms) their fifth token, a second block each. At 2 ms the server notices: request 1 had 5 tokens in 2 blocks, and a slot.
"""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest

from explainers.kit.knobs import defaults
from explainers.lifecycle import scenario as s
from sim.engine import Engine
from sim.metrics import e2e, makespan, output_throughput, queue_wait, token_times, ttft
from sim.policy import Memory, vllm
from sim.run import CANCELLED, FINISHED, HANDED_OFF
from sim.service import Affine, attention_units, step_us
from sim.trace import Trace

EXTREMES = ({"tokens": 1}, {"tokens": 300, "prompt": 2048, "slots": 64, "memory": 256, "others": 60, "rate": 40.0, "moment": 90},
            {"slots": 1, "moment": 99}, {"others": 1, "moment": 0}, {"model": "OPT-13B", "gpu": "A40", "moment": 99},
            {"others": 0, "moment": 99, "gpu": "H100"}, {"memory": 256, "slots": 32, "moment": 60})
VALUES = [*(dict(p.values) for p in s.PRESETS), *EXTREMES]


def three() -> s.Scenario:
    policy = vllm(2, 100, Memory(8, 4))
    return s.Scenario(Trace([0, 0, 0], [4, 4, 4], [5, 5, 5]), Affine(1_000.0), policy, 0, s.filled({}))


# ---- the worked example


def test_the_worked_example_takes_580_ms() -> None:
    w = s.worked({})
    assert (w.arrival, w.admitted, w.first, w.gaps, w.last) == (0, 30, 80, 100, 580)
    assert (w.ttft, w.e2e) == (80, 580)


def test_two_hundred_tokens_take_the_ttft_and_199_gaps() -> None:
    assert s.worked({}).e2e_of(200) == 80 + 199 * 5 == 1_075


def test_latencies_count_from_the_arrival_whatever_the_clock_says() -> None:
    w = s.worked({"arrival": 300})
    assert (w.admitted, w.first, w.last) == (330, 380, 880) and (w.ttft, w.e2e) == (80, 580)


def test_one_token_has_no_gap() -> None:
    w = s.worked({"tokens": 1})
    assert w.gaps == 0 and w.e2e == w.ttft == 80


# ---- alone and in company


def test_alone_it_starts_at_once_and_its_first_step_is_its_prompt() -> None:
    result = s.result({})
    run = result.runs["alone"]
    # The formula of sim.service for a step of 512 prompt tokens and nothing else.
    prompt = float(step_us(result.scenario.service, 512, attention=attention_units(512), requests=1))
    assert queue_wait(run)[0] == 0 and ttft(run)[0] == pytest.approx(prompt / 1e6)


def test_it_is_the_same_request_in_either_run() -> None:
    result = s.result({})
    alone, company, me = result.runs["alone"].trace, result.runs["company"].trace, result.scenario.me
    assert (alone.arrival[0], alone.prompt[0], alone.output[0]) == (company.arrival[me], company.prompt[me], company.output[me])
    assert company.output[me] == s.worked({}).tokens


def test_without_others_both_lives_are_one() -> None:
    result = s.result({"others": 0})
    assert e2e(result.runs["alone"])[0] == e2e(result.runs["company"])[0]


def test_company_never_shortens_its_wait_for_the_first_token() -> None:
    for values in VALUES:
        result = s.result(values)
        assert ttft(result.runs["company"])[result.scenario.me] >= ttft(result.runs["alone"])[0] - 1e-9


# ---- leaving early


def test_a_slot_and_two_blocks_come_back_when_the_running_step_ends() -> None:
    run, free = s.leaving(three(), 1_500.0)
    event = s.departure(run, 0)
    assert event is not None and (event.at_us, event.tokens, event.blocks) == (2_000.0, 5, 2)
    # Request 3 takes its slot at 2 ms: first token at 3, its fifth at 7.
    assert run.admitted_us[2] == 2_000.0 and run.finished_us[2] == 7_000.0 and free == 8


def test_a_server_that_forgets_goes_on_with_a_slot_and_two_blocks_fewer() -> None:
    run, free = s.leaving(three(), 1_500.0, s.Left(1_500.0, 2_000.0, 5, 2, True))
    # One slot is left: request 3 waits until request 2 has ended, 5 ms, and ends at 10.
    assert run.admitted_us[2] == 5_000.0 and run.finished_us[2] == 10_000.0 and free == 6
    assert run.policy == three().policy


def test_the_audit_finds_what_is_missing_from_the_moment_it_is_lost() -> None:
    whole, free = s.leaving(three(), 1_500.0)
    assert not s.audit(whole, 0, free).missing.any()
    run, free = s.leaving(three(), 1_500.0, s.Left(1_500.0, 2_000.0, 5, 2, True))
    books = s.audit(run, 0, free)
    assert books.missing[books.start_us < 2_000.0].tolist() == [0] * int((books.start_us < 2_000.0).sum())
    assert set(books.missing[books.start_us >= 2_000.0].tolist()) == {2}
    assert books.ours[0] == 1 and books.others[0] == 1 and books.free[0] == 6  # a block for either prompt


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_books_balance_except_where_the_server_forgets(values) -> None:
    result = s.result(values)
    assert not result.books["cancelled"].missing.any()
    assert ("leaked" in result.books) == (result.left.blocks > 0)
    if result.left.blocks:
        assert result.books["leaked"].missing[-1] == result.left.blocks
        lost = result.books["leaked"]
        assert (lost.missing[lost.start_us < result.left.gone_us] == 0).all()


def test_who_leaves_while_waiting_held_nothing() -> None:
    result = s.result({"moment": 10, "slots": 4})
    assert result.left == s.Left(result.left.asked_us, result.left.gone_us, 0, 0, False)
    assert list(result.runs) == ["alone", "company", "cancelled"]


@pytest.mark.parametrize("moment", [30, 50, 70, 99])
def test_it_is_gone_within_the_step_that_runs(moment) -> None:
    result = s.result({"moment": moment})
    run, me, left = result.runs["cancelled"], result.scenario.me, result.left
    assert run.outcome[me] == CANCELLED and left.asked_us <= left.gone_us
    ends = run.steps.end_us
    assert not ((ends > left.asked_us) & (ends < left.gone_us)).any()


@pytest.mark.parametrize("moment", [0, 30, 60])
def test_a_hand_off_carries_what_a_cancellation_releases(moment) -> None:
    scene = s.build({"moment": moment})
    result = s.result({"moment": moment})
    engine = Engine(scene.service, scene.policy)
    engine.submit(scene.trace)
    engine.hand_off(scene.me, result.left.asked_us)
    engine.advance(math.inf)
    run = engine.run(scene.trace)
    assert run.outcome[scene.me] == HANDED_OFF
    event = s.departure(run, scene.me)
    assert (event.tokens if event else 0) == result.left.tokens


def test_what_travels_is_tokens_times_bytes_and_the_text_itself() -> None:
    # Llama-3-8B: keys and values, 32 layers, 8 heads of 128, 2 bytes: 131,072 bytes a token.
    result = s.result({})
    t, left = result.transfer, result.left
    assert t.kv_bytes == 2 * 32 * 8 * 128 * 2 * left.tokens
    assert t.token_bytes == 4 * (512 + len(token_times(result.runs["cancelled"], result.scenario.me)))
    # 400 Gb/s are 50 GB/s; 80 % of that.
    assert t.over_ms["InfiniBand NDR, 400 Gb/s"] == pytest.approx(t.kv_bytes / 40e9 * 1000)


def test_pcie_rates_are_lanes_times_transfers_less_the_encoding() -> None:
    assert s.LINKS["PCIe 4.0 x16"] == pytest.approx(16 * 16e9 / 8 * 128 / 130, rel=2e-3)
    assert s.LINKS["PCIe 5.0 x16"] == pytest.approx(16 * 32e9 / 8 * 128 / 130, rel=2e-3)


# ---- the short arguments


def test_a_launch_beside_the_gpu_adds_nothing_unless_it_is_the_longer() -> None:
    ahead, longer = s.result({"launch": 2}), s.result({"launch": 9})
    assert (s.gap_with_launch(ahead, False), s.gap_with_launch(ahead, True)) == (5, 7)
    assert (s.gap_with_launch(longer, False), s.gap_with_launch(longer, True)) == (9, 14)


def test_one_at_a_time_the_k_th_user_waits_for_k_replies() -> None:
    took = e2e(s.result({}).crowd[1])
    assert took == pytest.approx(took[0] * np.arange(1, 33))


@pytest.mark.parametrize("gpu", s.GPUS)
def test_more_tokens_per_second_is_a_longer_wait_for_the_first_user(gpu) -> None:
    one, many = s.result({"gpu": gpu}).crowd.values()
    assert output_throughput(many) > 5 * output_throughput(one)
    assert e2e(many)[0] > e2e(one)[0]
    assert e2e(many)[-1] < e2e(one)[-1]


def test_a_bound_does_not_say_who_is_next() -> None:
    fcfs, shortest = s.result({}).orders.values()
    assert makespan(fcfs) == pytest.approx(makespan(shortest), abs=1e-9)
    assert np.argsort(fcfs.admitted_us).tolist() == [0, 1, 2, 3, 4]
    assert np.argsort(shortest.admitted_us).tolist() == [3, 1, 4, 2, 0]  # 10, 20, 40, 80, 160 tokens
    assert e2e(shortest).mean() < e2e(fcfs).mean()


# ---- what every lesson's set-up owes


def test_every_preset_sets_knobs_to_values_that_they_allow() -> None:
    known = {knob.key: knob for knob in s.KNOBS}
    for preset in s.PRESETS:
        assert all(known[key].fit(value) == (value, None) for key, value in preset.values.items()), preset.key
    assert len({tuple(sorted(p.values.items())) for p in s.PRESETS}) == len(s.PRESETS)


def test_one_preset_shows_that_company_may_cost_nothing() -> None:
    result = s.result(next(p.values for p in s.PRESETS if p.key == "alone"))
    assert e2e(result.runs["company"])[result.scenario.me] == e2e(result.runs["alone"])[0]


def test_what_is_left_out_takes_its_default() -> None:
    assert s.filled({"gap": 7}) == {**defaults(s.KNOBS), "gap": 7}


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_everyone_is_served_and_the_runs_are_read_only(values) -> None:
    result = s.result(values)
    assert (result.runs["company"].outcome == FINISHED).all()
    for run in [*result.runs.values(), *result.crowd.values(), *result.orders.values()]:
        arrays = [getattr(run, f.name) for f in fields(run)] + [getattr(run.steps, f.name) for f in fields(run.steps)]
        assert not any(x.flags.writeable for x in arrays if isinstance(x, np.ndarray))
