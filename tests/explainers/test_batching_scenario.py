"""The batching lesson's set-up: a knob moves what it says, and the defaults tell the story."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest

from explainers.batching import scenario as s
from explainers.kit import link
from explainers.kit.knobs import defaults
from sim.metrics import HELD, ROLES, queue_wait
from sim.trace import Trace

KEYS = {knob.key: knob for knob in s.KNOBS}
OWN = Trace(np.arange(3000) * 0.25, np.full(3000, 100), np.arange(3000) % 200 + 1)  # 4 requests/s for 750 s


def trace(**values: Any) -> Trace:
    return s.build(values).trace


# ---- one trace, one service


def test_the_default_is_fourteen_requests_four_slots_and_llama_3_8b_on_an_a100() -> None:
    scene = s.build({})
    assert len(scene.trace) == 14
    assert {p.slots for p in scene.policies.values()} == {4}
    assert (scene.service.model.name, scene.service.gpu.name, scene.service.tp) == ("Llama-3-8B", "A100-80G", 1)
    assert [p.batching for p in scene.policies.values()] == ["static", "continuous"]


def test_both_policies_serve_the_same_trace_on_the_same_service() -> None:
    result = s.result({})
    assert all(run.trace is result.scenario.trace and run.service is result.scenario.service for run in result.runs.values())


def test_a_result_is_read_only() -> None:
    run = s.result({}).runs["static"]
    for column in (run.admitted_us, run.released_us, run.steps.start_us, run.trace.output):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1


# ---- a knob moves what it says


@pytest.mark.parametrize("other", [{"slots": 9}, {"timeout": 0}, {"model": "OPT-13B"}, {"gpu": "H100"}])
def test_what_is_no_property_of_the_requests_leaves_the_trace(other: dict[str, Any]) -> None:
    values = {"arrivals": s.POISSON}
    assert trace(**values, **other) == trace(**values)


@pytest.mark.parametrize("other", [{"arrivals": s.POISSON}, {"arrivals": s.BURSTS}, {"arrivals": s.EVEN, "rate": 24.0}])
def test_arrivals_and_rate_leave_the_lengths(other: dict[str, Any]) -> None:
    assert (trace(**other).output == trace().output).all()


@pytest.mark.parametrize("other", [{"spread": 0.0}, {"giant": 20}, {"slots": 1}])
@pytest.mark.parametrize("arrivals", [s.EVEN, s.POISSON, s.BURSTS])
def test_lengths_leave_the_arrivals(arrivals: str, other: dict[str, Any]) -> None:
    assert (trace(arrivals=arrivals, **other).arrival_us == trace(arrivals=arrivals).arrival_us).all()


@pytest.mark.parametrize("arrivals", KEYS["arrivals"].options or ())
def test_more_requests_leave_the_first_ones(arrivals: str) -> None:
    few, many = trace(arrivals=arrivals), trace(arrivals=arrivals, requests=100)
    assert (many.output[:14] == few.output).all()
    assert (many.arrival_us[:14] == few.arrival_us).all()


def test_twice_the_rate_is_half_the_time() -> None:
    slow, fast = (trace(arrivals=s.POISSON, rate=rate).arrival for rate in (3.0, 6.0))
    assert fast == pytest.approx(slow / 2, abs=1e-6)  # rounded to whole µs


def test_the_giant_is_request_2_and_nobody_else() -> None:
    usual, giant = trace().output, trace(giant=8).output
    assert giant[1] == 8 * usual[1]
    assert (np.delete(giant, 1) == np.delete(usual, 1)).all()


def test_a_lone_request_can_be_the_giant() -> None:
    assert trace(requests=1, giant=5).output[0] == 5 * trace(requests=1).output[0]


def test_no_spread_is_all_equal_and_more_spread_is_more_varied() -> None:
    assert set(trace(spread=0.0).output.tolist()) == {s.MEAN_OUTPUT}
    cv = [float(np.std(o) / np.mean(o)) for o in (trace(spread=x, requests=100).output for x in (0.2, 0.8, 1.6))]
    assert cv == sorted(cv)


@pytest.mark.parametrize("arrivals", KEYS["arrivals"].options or ())
def test_the_clock_starts_with_the_first_request(arrivals: str) -> None:
    assert trace(arrivals=arrivals).arrival_us[0] == 0


@pytest.mark.parametrize("end", ["low", "high"])
def test_every_knob_works_at_both_ends_of_its_range(end: str) -> None:
    for knob in s.KNOBS:
        ends = knob.options[0 if end == "low" else -1] if knob.options else getattr(knob, end)
        value, note = knob.fit(ends)
        assert note is None
        if knob.key not in ("source", "start"):
            s.result({"arrivals": s.POISSON, knob.key: value})


# ---- the presets' stories


def test_the_presets_use_values_that_the_knobs_allow() -> None:
    for preset in s.PRESETS:
        for key, value in preset.values.items():
            assert KEYS[key].fit(value) == (value, None), (preset.key, key)
        assert preset.watch


def test_equal_lengths_at_once_end_at_the_same_instant_under_both() -> None:
    # With equal outputs, all there at once, whole prompts and no budget, both policies take the very same steps.
    preset = next(p for p in s.PRESETS if p.key == "equal")
    one, other = s.result(preset.values).runs.values()
    assert other.finished_us == pytest.approx(one.finished_us, abs=1e-3)


def test_trickle_makes_static_wait_to_fill() -> None:
    # Requests at 0, 2, 4, 6 s, four slots: the fourth would fill the batch at 6 s, but the timeout of 5 s is first.
    preset = next(p for p in s.PRESETS if p.key == "trickle")
    waits = {key: queue_wait(run)[:3] for key, run in s.result(preset.values).runs.items()}
    assert waits["static"] == pytest.approx([5, 3, 1])
    assert (waits["continuous"] < 0.012).all()  # at most the step that runs: a decode step takes about 11 ms


def test_at_that_load_the_wait_buys_nothing() -> None:
    # As the preset's line says: without the fill timeout the two become nearly the same.
    preset = next(p for p in s.PRESETS if p.key == "trickle")
    one, other = s.result({**preset.values, "timeout": 0}).summaries.values()
    assert [one[k] for k in ("makespan", "e2e_p50", "e2e_p99")] == pytest.approx(
        [other[k] for k in ("makespan", "e2e_p50", "e2e_p99")], rel=0.02)


def test_a_burst_meets_a_batch_that_has_left() -> None:
    preset = next(p for p in s.PRESETS if p.key == "bursts")
    waits = {key: queue_wait(run) for key, run in s.result(preset.values).runs.items()}
    assert np.median(waits["static"]) > 1 > 0.1 > np.median(waits["continuous"])


def test_one_giant_holds_its_neighbours_slots() -> None:
    preset = next(p for p in s.PRESETS if p.key == "giant")
    result = s.result(preset.values)
    run = result.runs["static"]
    # "About eight times the mean", and half of all slot-time is held for it.
    assert 7.5 < run.trace.output[1] / s.MEAN_OUTPUT < 8.5
    assert result.ledgers["static"].share(ROLES[HELD]) == pytest.approx(0.5, abs=0.05)
    assert run.trace.output[:4].max() == run.trace.output[1]
    assert (run.released_us[:4] == run.finished_us[1]).all()


def test_held_slots_are_what_the_default_is_about() -> None:
    ledger = s.result({}).ledgers["static"]
    assert ledger.share(ROLES[HELD]) > ledger.idle_share / 2


# ---- the band and the sweep


def test_the_default_seed_is_the_most_typical_of_the_band() -> None:
    band = s.band({})
    idle, default = band.idle["static"], KEYS["seed"].default
    assert len(idle) == s.SEEDS
    assert band.seeds[int(np.argmin(np.abs(idle - band.median("static"))))] == default


@pytest.mark.parametrize("values", [{}, {"arrivals": s.BURSTS, "timeout": 250, "slots": 3}])
def test_the_band_is_the_stage_at_each_seed(values: dict[str, Any]) -> None:
    band = s.band(values)
    for i, seed in enumerate(band.seeds[:5]):
        stage = s.result({**values, "seed": seed})
        assert [band.idle[k][i] for k in stage.ledgers] == pytest.approx([b.idle_share for b in stage.ledgers.values()], abs=1e-9)


def test_the_band_does_not_depend_on_the_seed_on_the_screen() -> None:
    assert (s.band({"seed": 3}).idle["static"] == s.band({"seed": 999}).idle["static"]).all()


@pytest.mark.parametrize(("over", "values"), [("slots", {}), ("slots", {"slots": 5}),
                                              ("rate", {"arrivals": s.POISSON, "rate": 6.0})])
def test_you_are_here_in_the_sweep_is_the_stage(over: str, values: dict[str, Any]) -> None:
    sweep, stage = s.sweep(values, over=over), s.result(values)
    at = sweep.x.tolist().index(sweep.x_here)
    for key, summary in stage.summaries.items():
        assert sweep.idle[key][at] == pytest.approx(summary["idle_share"], abs=1e-9)
        assert sweep.e2e_p99[key][at] == pytest.approx(summary["e2e_p99"], abs=1e-9)


def test_with_one_slot_the_policies_are_one() -> None:
    sweep = s.sweep({})
    assert sweep.x[0] == 1
    assert sweep.e2e_p99["static"][0] == pytest.approx(sweep.e2e_p99["continuous"][0], abs=1e-9)


def test_a_sweep_that_must_be_flat_says_why() -> None:
    sweep = s.sweep({}, over="rate")
    assert np.ptp(sweep.idle["static"]) == pytest.approx(0, abs=1e-12)
    assert "the rate plays no part" in sweep.note
    assert s.sweep({"arrivals": s.EVEN}, over="rate").note == ""


def test_a_sweep_over_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="'slots' or 'rate'"):
        s.sweep({}, over="seed")


# ---- an own file


def test_an_own_file_gives_the_window_and_as_many_requests_as_asked() -> None:
    found = s.build({"source": s.OWN, "start": 100, "take": 30}, OWN).trace
    # 4 requests/s: the first at or after 100 s is number 400.
    assert (found.output == OWN.output[400:430]).all()
    assert found.arrival[:2] == pytest.approx([0, 0.25])


def test_an_own_file_is_used_only_when_asked_for() -> None:
    assert s.build({}, OWN).trace == trace()


def test_no_file_yet_is_said_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="drop in a CSV"):
        s.build({"source": s.OWN})


def test_a_window_after_the_last_request_names_the_range() -> None:
    with pytest.raises(ValueError, match="from 0 to 749 s"):
        s.build({"source": s.OWN, "start": 800}, OWN)


def test_the_sweep_of_a_long_file_is_bounded_and_says_so() -> None:
    sweep = s.sweep({"source": s.OWN, "take": 3000}, OWN)
    assert sweep.note == "First 2,000 requests of the window only."
    first = s.result({"source": s.OWN, "take": 2000}, OWN)
    at = sweep.x.tolist().index(sweep.x_here)
    assert sweep.idle["static"][at] == pytest.approx(first.ledgers["static"].idle_share, abs=1e-9)
    assert s.sweep({"source": s.OWN, "take": 100}, OWN).note == ""


# ---- the sample


def test_the_sample_is_azure_s_first_ten_minutes() -> None:
    found = s.sample()
    # The file's first two lines: 374 and 396 prompt tokens, 44 and 109 output tokens, 4.314579 s apart.
    assert found.prompt[:2].tolist() == [374, 396] and found.output[:2].tolist() == [44, 109]
    assert found.arrival[1] == pytest.approx(4.314579)
    assert 590 < found.arrival[-1] < 600
    assert s.sample() is found


def test_the_real_requests_need_no_file_of_one_s_own() -> None:
    preset = next(p for p in s.PRESETS if p.key == "hour")
    scene = s.build(preset.values)
    first = int(np.searchsorted(s.sample().arrival, 60.0))
    assert (scene.trace.output == s.sample().output[first:first + 60]).all()
    assert s.build(preset.values, OWN).trace == scene.trace  # an own file is used only when asked for
    assert s.sweep(preset.values, over="rate").note == "The arrivals are the trace's: the rate plays no part."


def test_a_missing_sample_is_said_to_the_learner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(s, "SAMPLE_FILE", tmp_path / "azure.csv")
    s.sample.cache_clear()
    with pytest.raises(ValueError, match=r"sample assets/azure\.csv is missing"):
        s.build({"source": s.SAMPLE})


def test_links_of_version_1_keep_their_meaning() -> None:
    # Written by version 1 before there was a sample, when the fill timeout's default was 1,000 ms: every value stands in it.
    old = ("v=1&slots=4&spread=0.8&requests=14&giant=1&seed=2&arrivals=all+at+once&rate=3&timeout=1000&model=Llama-3-8B"
           "&gpu=A100-80G&source=own+file&start=12&take=200")
    state = link.decode(dict(parse_qsl(old)), s.KNOBS)
    assert not state.notes
    assert (state.values["source"], state.values["timeout"], state.values["start"]) == (s.OWN, 1000, 12)


# ---- errors


def test_weights_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"Yi-34B.*A100-40G"):
        s.build({"model": "Yi-34B", "gpu": "A100-40G"})


def test_values_left_out_are_the_defaults() -> None:
    assert s.build({}).trace == s.build(defaults(s.KNOBS)).trace
