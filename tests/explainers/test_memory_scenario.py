"""The memory lesson's set-up: a knob moves what it says, both memories serve one trace, and the presets tell their stories."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from explainers.memory import scenario as s
from sim.hardware import GIB
from sim.metrics import e2e
from sim.policy import Memory
from sim.service import Affine
from tests.explainers.memory_small import by_hand

KEYS = {knob.key: knob for knob in s.KNOBS}


def trace(**values: Any) -> Any:
    return s.build(values).trace


def preset(key: str) -> s.Result:
    return s.result(next(p for p in s.PRESETS if p.key == key).values)


def memory(scene: s.Scenario, key: str = "other") -> Memory:
    found = scene.policies[key].memory
    assert found is not None
    return found


# ---- one trace, one service


def test_the_default_is_the_paper_s_memory_and_forty_requests() -> None:
    scene = s.build({})
    assert len(scene.trace) == 40
    assert (scene.service.model.name, scene.service.gpu.name) == ("OPT-13B", "A100-40G")  # type: ignore[attr-defined]
    assert memory(scene, "reserved").blocks == 15_700
    assert (memory(scene).blocks, memory(scene).block_size) == (981, 16)  # 15,700 // 16
    assert scene.policies["reserved"].longest == scene.policies["other"].longest == 2048


def test_both_memories_serve_one_trace_on_one_service() -> None:
    result = s.result({})
    assert all(run.trace is result.scenario.trace and run.service is result.scenario.service for run in result.runs.values())


def test_only_the_memory_differs() -> None:
    one, other = s.build({}).policies.values()
    for field in ("batching", "slots", "budget", "prompts", "order", "longest"):
        assert getattr(one, field) == getattr(other, field)


def test_a_result_is_read_only() -> None:
    run = s.result({}).runs["reserved"]
    for column in (run.admitted_us, run.steps.start_us, run.trace.output):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1


# ---- a knob moves what it says


@pytest.mark.parametrize("other", [{"other": s.MAX}, {"memory": 31_400}, {"block": 256}, {"off": 1.0}, {"preempt": s.SWAP},
                                   {"beams": 6}, {"model": "Llama-2-7B", "gpu": "H100"}, {"fit": s.FITS}], ids=str)
def test_what_is_no_property_of_the_requests_leaves_the_trace(other: dict[str, Any]) -> None:
    assert trace(arrivals=s.POISSON, **other) == trace(arrivals=s.POISSON)


def test_arrivals_leave_the_lengths_and_lengths_the_arrivals() -> None:
    usual = trace()
    for other in ({"arrivals": s.POISSON}, {"arrivals": s.POISSON, "rate": 16.0}):
        assert (trace(**other).output == usual.output).all()
        assert (trace(**other).prompt == usual.prompt).all()
    assert (trace(arrivals=s.POISSON, mean="Alpaca").arrival_us == trace(arrivals=s.POISSON).arrival_us).all()


@pytest.mark.parametrize("more", [{}, {"arrivals": s.POISSON}, {"samples": 3}, {"prefix": 256}], ids=str)
def test_more_requests_leave_the_first_ones(more: dict[str, Any]) -> None:
    few, many = trace(**more), trace(requests=400, **more)
    for column in ("arrival_us", "prompt", "output"):
        assert (getattr(many, column)[:40] == getattr(few, column)).all()


def test_the_lengths_have_the_paper_s_means() -> None:
    # Standard error of the mean of 400: 1.2·161/20 = 9.7 and 0.87·338/20 = 14.7 tokens; three of them.
    many = trace(requests=400, longest=8192)
    assert many.prompt.mean() == pytest.approx(161.31, abs=29)
    assert many.output.mean() == pytest.approx(337.99, abs=44)


def test_without_spread_all_requests_are_alike() -> None:
    requests = trace(spread=0.0)
    assert (set(requests.prompt.tolist()), set(requests.output.tolist())) == ({161}, {338})


@pytest.mark.parametrize("values", [{"longest": 256}, {"longest": 256, "prefix": 1024}, {"longest": 512, "spread": 2.0}], ids=str)
def test_no_request_is_longer_than_the_maximum(values: dict[str, Any]) -> None:
    requests = trace(requests=400, **values)
    assert (requests.prompt + requests.output).max() <= values["longest"]


def test_samples_of_a_prompt_come_together_with_the_same_prompt_and_replies_of_their_own() -> None:
    requests = trace(samples=4, arrivals=s.POISSON)
    for column in (requests.prompt, requests.arrival_us, requests.content.stream):
        assert (column.reshape(10, 4) == column.reshape(10, 4)[:, :1]).all()
    assert len(set(requests.content.reply.tolist())) == 40


def test_every_prompt_starts_with_the_shared_system_prompt() -> None:
    alone, requests = trace(), trace(prefix=512)
    assert (requests.prompt == np.minimum(alone.prompt + 512, 2047)).all()
    content = requests.content
    firsts = content.first[:-1]
    assert set(content.stream[firsts].tolist()) == {0}
    assert set(content.length[firsts].tolist()) == {512}
    assert len(set(content.stream[firsts + 1].tolist())) == 40  # and goes on with its own


def test_only_paged_memory_looks_for_shared_prompts() -> None:
    assert not memory(s.build({})).prefix_cache
    scene = s.build({"prefix": 512})
    assert memory(scene).prefix_cache
    assert not memory(scene, "reserved").prefix_cache
    run = s.result({"samples": 4}).runs["other"]
    # All come at once. The first of four computes the prompt, the others find its full blocks, but compute its last token.
    prompt = run.trace.prompt.reshape(10, 4)[:, 1:]
    assert run.cached.reshape(10, 4)[:, 1:].tolist() == ((prompt - 1) // 16 * 16).tolist()


def test_what_fits_is_what_the_weights_leave() -> None:
    # OPT-13B: 0.9·40 GiB less 25.7 GB of weights, over 2·40·5120·2 = 819,200 bytes a token: 15.8 thousand; the paper has 15.7.
    scene = s.build({"fit": s.FITS})
    weights = scene.service.weight_bytes  # type: ignore[attr-defined]
    assert memory(scene, "reserved").blocks == int((0.9 * 40 * GIB - weights) // 819_200)
    assert memory(scene, "reserved").blocks == pytest.approx(15_700, rel=0.01)


def test_a_block_is_swapped_at_25_gigabytes_a_second() -> None:
    assert memory(s.build({"preempt": s.SWAP})).swap_us == pytest.approx(16 * 819_200 / 25e9 * 1e6)
    assert memory(s.build({"preempt": s.RECOMPUTE})).swap_us is None


def test_the_guess_is_off_for_those_who_guess() -> None:
    for kind, noise in ((s.POW2, 0.5), (s.ORACLE, 0.5), (s.MAX, 0.0)):
        assert s.build({"other": kind, "off": 0.5}).policies["other"].noise == noise


def test_a_maximum_length_without_a_piece_for_it_is_explained() -> None:
    with pytest.raises(ValueError, match=r"Maximum length 4,096.*3,000 tokens.*at most 2,048"):
        s.build({"memory": 3_000, "longest": 4096})


@pytest.mark.parametrize("end", [0, -1])
@pytest.mark.parametrize("knob", [k for k in s.KNOBS if k.key != "source"], ids=lambda k: k.key)
def test_every_knob_works_at_both_ends_of_its_range(knob: Any, end: int) -> None:
    value, note = knob.fit(knob.options[end] if knob.options else (knob.low, knob.high)[end])
    assert note is None
    values = {"arrivals": s.POISSON, knob.key: value} | ({"gpu": "A100-80G"} if knob.key == "model" else {})
    s.result(values)


# ---- what is counted


def test_seven_fit_where_the_maximum_is_reserved() -> None:
    # 15,700 in pieces of 2,048: 7 and a rest of 1,364, whatever the lengths (PagedAttention, figure 13: 7.00).
    for seed in (1, 2, 3):
        assert s.fit_at_once(s.result({"seed": seed}), "reserved") == 15_700 // 2048 == 7


def test_how_many_fit_by_hand() -> None:
    assert (s.fit_at_once(by_hand(), "reserved"), s.fit_at_once(by_hand(), "other")) == (2, 3)


def test_the_means_are_taken_while_somebody_waits_else_over_the_run() -> None:
    result = by_hand()
    assert s.window(result, "reserved") == (0, 3000)  # request 3 enters at 3 ms
    assert s.window(result, "other") == (0, 3000)  # nobody waits; three steps
    # Orca, two pieces: 4, 5, 6 tokens each in 32 slots, of which 6 each will be filled.
    assert s.mean_shares(result, "reserved") == pytest.approx(
        {"tokens": 10 / 32, "reserved": 2 / 32, "internal": 20 / 32, "external": 0, "free": 0})
    # Paged, three requests: 4, 5, 6 tokens; 0, 1, 0 to come; 0, 2, 2 of the second block never.
    assert s.mean_shares(result, "other") == pytest.approx(
        {"tokens": 15 / 32, "reserved": 1 / 32, "internal": 4 / 32, "external": 0, "free": 12 / 32})
    assert s.filled_share(s.mean_shares(result, "other")) == pytest.approx(15 / 20)


def test_a_preemption_costs_one_step_for_its_tokens_or_two_trips_of_its_blocks() -> None:
    result = preset("thrash")
    found = s.preemptions(result)
    assert len(found) == result.runs["other"].preemptions.sum()
    assert sum(p.tokens for p in found) == result.runs["other"].recomputed.sum()
    for p in found[:20]:
        assert p.blocks == -(-p.tokens // 16)  # its tokens fill all but the last of its blocks
        assert p.swap_ms == pytest.approx(2 * p.blocks * 16 * 819_200 / 25e9 * 1e3)
        assert p.recompute_ms > float(result.scenario.service.base_us(np.array([p.tokens]))[0]) / 1000


def test_the_sweep_over_blocks_by_hand() -> None:
    values = {"requests": 1, "spread": 0.0, "arrivals": s.AT_ONCE}
    curve = s.sweep(values, over="block")
    # One request of 161 + 338 − 1 = 498 KV.
    assert curve.blocks["other"].tolist() == [-(-498 // b) for b in s.BLOCKS]
    assert curve.waste["other"][0] == pytest.approx(0)  # a block of one token is filled as it is taken
    assert curve.x_here == 16


def test_a_last_block_is_half_empty_on_average() -> None:
    # So empty slots over tokens grow in proportion to the block size; by how much depends on the requests.
    waste = s.sweep({}, over="block").waste["other"]
    assert (np.diff(waste) > 0).all()
    empty = waste / (1 - waste)
    assert empty[s.BLOCKS.index(256)] / empty[s.BLOCKS.index(16)] == pytest.approx(16, rel=0.25)


def test_the_sweep_over_load_holds_both_memories_to_the_same_arrivals() -> None:
    curve = s.sweep({}, over="rate")
    one, other = curve.e2e_p99["reserved"], curve.e2e_p99["other"]
    assert one[0] == pytest.approx(other[0], rel=0.02)  # with hardly anybody there, memory does not matter
    assert one[-1] > 1.5 * other[-1]
    assert curve.batch["reserved"].max() <= 7
    assert curve.note
    with pytest.raises(ValueError, match="'block' or 'rate'"):
        s.sweep({}, over="slots")


@pytest.mark.parametrize(("over", "values", "every"), [("block", s.BLOCKS, 2), ("rate", s.RATES, 3)])
def test_with_many_requests_a_sweep_has_fewer_points_and_says_so(over: str, values: tuple[float, ...], every: int) -> None:
    few, many = (s.sweep({"requests": n, "mean": "Alpaca", "block": 8, "rate": 1.0}, over=over) for n in (s.MANY, s.MANY + 1))
    assert few.x.tolist() == list(values) and not few.fewer
    assert set(values[::every]) <= set(many.x.tolist()) < set(values)
    assert few.x_here in many.x and "Fewer" in many.fewer


def test_the_band_has_the_run_on_the_screen() -> None:
    band = s.band({"memory": 4096})
    result = s.result({"memory": 4096, "seed": 5})
    for key in result.runs:
        assert band.fit[key][4] == s.fit_at_once(result, key)
        assert band.tokens[key][4] == pytest.approx(s.filled_share(s.mean_shares(result, key)))


# ---- the presets' stories, as their lines tell them


def test_the_presets_use_values_that_the_knobs_allow() -> None:
    for p in s.PRESETS:
        for key, value in p.values.items():
            assert KEYS[key].fit(value) == (value, None), (p.key, key)
        assert p.watch


def test_in_the_paper_s_setup_seven_fit_or_all_forty() -> None:
    result = preset("paper")
    assert [s.fit_at_once(result, key) for key in result.runs] == [7, 40]
    shares = s.mean_shares(result, "reserved")
    assert shares["internal"] > 0.5  # most of each row is never filled
    assert s.filled_share(s.mean_shares(result, "other")) > 0.95


def test_where_everyone_hits_the_maximum_paging_loses() -> None:
    result = preset("maximum")
    reserved, paged = result.runs["reserved"], result.runs["other"]
    assert set((reserved.trace.prompt + reserved.trace.output).tolist()) == {256}
    # 256 slots hold 255 KV: the last token has none.
    assert s.mean_shares(result, "reserved")["internal"] < 0.01
    assert (paged.preemptions.sum() > 0) and (paged.recomputed.sum() > 0)
    assert result.summaries["other"]["makespan"] > result.summaries["reserved"]["makespan"]


def test_short_replies_under_a_long_maximum_leave_most_of_it_unfilled() -> None:
    result = preset("short")
    assert (result.scenario.trace.prompt + result.scenario.trace.output).mean() == pytest.approx(80, abs=20)
    assert s.fit_at_once(result, "reserved") == 15_700 // 4096 == 3
    share = s.mean_shares(result, "reserved")
    assert share["internal"] / (1 - share["external"]) > 0.95


def test_blocks_of_256_are_emptier_than_blocks_of_16() -> None:
    coarse, fine = (s.filled_share(s.mean_shares(r, "other")) for r in (preset("coarse"), preset("paper")))
    assert coarse < 0.85 < 0.95 < fine


def test_with_little_memory_requests_are_preempted_again_and_again() -> None:
    run = preset("thrash").runs["other"]
    assert run.preemptions.max() >= 3
    assert run.preemptions.sum() > len(run)
    # More than a third of what the requests have in all is computed twice.
    assert run.recomputed.sum() > (run.trace.prompt + run.trace.output).sum() / 3
    swapped = s.result({"memory": 2_048, "preempt": s.SWAP})
    assert swapped.runs["other"].recomputed.sum() == 0


def test_the_system_prompt_is_kept_once_for_all() -> None:
    result = preset("prefix")
    assert (result.runs["other"].cached[1:] == 1024).all()  # all but the first find it
    held = result.holdings("other", 0.0).at(0.0)
    prefix = held.request[held.first < 1024 // 16]
    assert len(set(prefix.tolist())) == 40  # and hold the same 64 blocks


def test_the_beam_preset_shares_prompts_too() -> None:
    result = preset("beam")
    assert result.scenario.values["beams"] == 6
    assert result.runs["other"].cached.sum() > 0


def test_the_recording_has_the_same_free_blocks_in_every_step() -> None:
    result = preset("recording")
    assert result.recorded_free is not None
    assert len(result.scenario.trace) == 24
    assert memory(result.scenario).blocks == 100
    assert result.runs["other"].steps.free.tolist() == result.recorded_free.tolist()
    assert isinstance(result.scenario.service, Affine)


# ---- recordings


def test_orca_gets_the_recording_s_memory_and_its_longest_request() -> None:
    scene = s.build({"source": s.RECORDED})
    longest = int((scene.trace.prompt + scene.trace.output).max())
    assert scene.policies["reserved"].longest == longest
    assert memory(scene, "reserved").blocks == 100 * 16
    assert f"{longest:,} tokens" in scene.note


def test_an_own_file_must_be_there() -> None:
    with pytest.raises(ValueError, match="No recording yet"):
        s.build({"source": s.OWN})
    recorded = s.sample()
    assert s.build({"source": s.OWN}, recorded).trace is recorded.trace


def test_everyone_ends_under_either_memory() -> None:
    for p in s.PRESETS:
        assert all(np.isfinite(e2e(run)).all() for run in s.result(p.values).runs.values()), p.key


def test_who_holds_what_is_the_same_whether_the_replay_stops_at_the_first_instant_or_goes_on() -> None:
    result = preset("thrash")
    for key, run in result.runs.items():
        for t in (0.0, result.upto_us / 2, result.upto_us):
            early, late = result.early[key].at(t), result.holdings(key, float(run.steps.end_us[-1])).at(t)
            assert len(early) > 0 or t == 0.0
            for column in ("first", "length", "request", "logical", "start_us"):
                assert np.array_equal(getattr(early, column), getattr(late, column)), (key, t, column)
