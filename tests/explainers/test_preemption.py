"""The preemption lesson's set-up, figures and words, held to what can be worked out without them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from explainers.kit.knobs import defaults
from explainers.preemption import figures, scenario, story
from explainers.preemption.scenario import KNOBS, PRESETS
from sim.metrics import queue_wait

VALUES = {preset.key: dict(preset.values) for preset in PRESETS}
SMALL = {"requests": 6, "memory": 1024, "seed": 1}


def test_every_preset_fits_the_knobs_and_serves_every_request() -> None:
    for preset in PRESETS:
        for key, value in preset.values.items():
            assert next(k for k in KNOBS if k.key == key).fit(str(value)) == (value, None), (preset.key, key)
        result = scenario.result(preset.values)
        assert all(not run.stopped and np.isfinite(run.finished_us).all() for run in result.runs.values()), preset.key


def test_only_the_rule_differs_between_the_panels() -> None:
    scene = scenario.build(VALUES["longest"])
    first, other = scene.policies.values()
    assert first.memory == other.memory and first.slots == other.slots and first.budget == other.budget
    assert (first.order, first.victim) == ("fcfs", "last") and (other.order, other.victim) == ("fcfs", "longest")


def test_a_swapped_block_costs_its_bytes_over_the_link() -> None:
    # Llama-3-8B: 32 layers, 8 KV heads of 128, keys and values in two bytes: 131,072 bytes a token; 16 tokens at 25 GB/s.
    memory = scenario.build(VALUES["swap"]).policies["other"].memory
    assert memory is not None and memory.swap_us == pytest.approx(131_072 * 16 / 25_000)


def test_with_memory_for_all_both_rules_do_the_same_and_say_so() -> None:
    result = scenario.result(VALUES["enough"])
    first, other = result.runs.values()
    assert np.array_equal(first.finished_us, other.finished_us) and not first.preemptions.any()
    assert story.headline(result) == "No difference: both rules do the same, because nobody has to give way."
    assert story.gain(result) == 0


def test_a_wait_is_the_first_one_where_nobody_is_preempted_and_more_where_somebody_is() -> None:
    for values in ({"memory": 65_536}, {}):
        result = scenario.result(values)
        for key, run in result.runs.items():
            wait, first = result.outcomes[key].wait, queue_wait(run)
            calm = run.preemptions == 0
            assert np.allclose(wait[calm], first[calm], atol=1e-9, rtol=0)
            assert (wait[~calm] >= first[~calm]).all()


def test_the_pieces_of_a_request_fill_its_time_from_arrival_to_end() -> None:
    result = scenario.result({})
    for key, run in result.runs.items():
        who, start, end, _ = figures.pieces(result, key)
        taken = np.bincount(who, end - start, len(run.trace))
        zero = run.trace.arrival_us[0]
        assert np.allclose(taken, (run.finished_us - run.trace.arrival_us) / 1000, atol=1e-3)
        assert start.min() >= 0 and end.max() == pytest.approx((run.finished_us.max() - zero) / 1000)


def test_shortest_first_makes_the_longer_half_wait_for_the_shorter_one() -> None:
    result = scenario.result({})
    (short_a, long_a), (short_b, long_b) = (figures.halves(result, key) for key in result.runs)
    assert short_b < short_a and long_b > long_a


def test_urgent_requests_wait_less_under_priority_than_the_others() -> None:
    result = scenario.result(VALUES["priority"])
    urgent = result.scenario.trace.priority == 0
    wait = result.outcomes["other"].wait
    assert 0 < urgent.sum() < len(urgent) and wait[urgent].mean() < wait[~urgent].mean()


@pytest.mark.parametrize("preset", PRESETS, ids=lambda p: p.key)
@pytest.mark.parametrize("dark", [False, True])
def test_every_figure_is_plain_json_of_a_fixed_height_with_alt_text_and_table(preset: scenario.Preset, dark: bool) -> None:
    result = scenario.result(preset.values)
    pics = [figures.stage(result, dark=dark, selected=0, cursor_ms=5.0), figures.who_waits(result, dark=dark, selected=0)]
    assert [pic.height for pic in pics] == [figures.STAGE_HEIGHT, figures.WHO_HEIGHT]
    for pic in pics:
        json.dumps(pic.figure, allow_nan=False)
        assert len(pic.table()) == len(result.scenario.trace) and pic.alt.endswith(".")


def test_the_answer_is_neither_in_titles_nor_in_alt_text_nor_in_numbers_before_it_is_asked_for() -> None:
    result = scenario.result({})
    shown = figures.stage(result, dark=False, answer=False)
    texts = " ".join([shown.alt, *(str(note["text"]) for note in shown.figure["layout"]["annotations"])])
    told = story.headline(result, answer=False) + " ".join(map(str, story.numbers(result, answer=False).to_numpy().ravel()))
    assert "a token" not in texts and "latency per token" not in told.lower()
    assert "a token" in figures.stage(result, dark=False).alt


def test_sweep_and_band_hold_the_run_on_the_screen() -> None:
    result = scenario.result(SMALL)
    for over in ("memory", "rate"):
        curve = scenario.sweep({**SMALL, "arrivals": scenario.POISSON}, over)
        here = int(np.flatnonzero(curve.x == curve.x_here)[0])
        there = scenario.result({**SMALL, "arrivals": scenario.POISSON})
        assert curve.mean["other"][here] == there.outcomes["other"].numbers["mean"]
        json.dumps(figures.sweep(curve, dark=False).figure, allow_nan=False)
        assert f"{curve.x[0]:,.0f}" in story.sweep_words(curve)
    spread = scenario.band(SMALL)
    assert spread.longest["first"][0] == result.outcomes["first"].numbers["longest"]  # seed 1
    assert figures.band(spread, result, dark=False).alt.startswith("Longest wait over 20 seeds")
    with pytest.raises(ValueError, match="'memory' or 'rate'"):
        scenario.sweep({}, "slots")


def test_feedback_tells_the_learner_s_own_number() -> None:
    result = scenario.result({})
    truth = story.gain(result)
    assert f"**{truth:.0f} % lower**" in story.feedback(result, None)
    assert "you said 5 %" in story.feedback(result, 5) and story.feedback(result, truth).startswith("Close")


def test_one_right_answer_a_question_and_every_wrong_one_names_what_was_assumed() -> None:
    for preset in PRESETS:
        for asked in story.quiz(scenario.result(preset.values)):
            assert sum(option.correct for option in asked.options) == 1 and len(asked.options) >= 3
            assert all(option.correct or option.why.startswith("You assumed that") for option in asked.options)


def test_a_life_counts_requests_from_one_and_tells_each_preemption() -> None:
    result = scenario.result({})
    run = result.runs["first"]
    who = int(np.argmax(run.preemptions))
    told = story.life(result, "first", who)
    assert f"Request {who + 1} (" in told and "request 0" not in told.lower()
    assert told.count("preempted at") == min(int(run.preemptions[who]), told.count("preempted at")) >= 1


def test_take_away_redoes_the_run_and_opens_elsewhere() -> None:
    scope: dict[str, object] = {}
    exec(story.python_lines(SMALL), scope)  # noqa: S102  # our own lines
    assert scope["result"].outcomes["other"].numbers == scenario.result(SMALL).outcomes["other"].numbers  # type: ignore[attr-defined]
    result = scenario.result(SMALL)
    assert len(json.loads(story.chrome_trace(result))["traceEvents"]) > 12
    assert story.requests_csv(result).count("\n") >= 12


def test_words_are_short_and_the_lead_fits() -> None:
    assert len(story.LEAD) <= 260
    assert all(len(says.split()) < 20 for _, says in story.WORDS)
    assert defaults(KNOBS)["order"] == scenario.SHORTEST and math.isclose(float(defaults(KNOBS)["rate"]), 8.0)
