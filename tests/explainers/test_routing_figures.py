"""The routing lesson's pictures: what they draw is what the fleets did."""

from __future__ import annotations

import json

import numpy as np
import pytest

from explainers.kit.grammar import Pic
from explainers.routing import figures, scenario
from explainers.routing.scenario import PRESETS, Result

VALUES = {preset.key: dict(preset.values) for preset in PRESETS}


@pytest.fixture(scope="module")
def classic() -> Result:
    return scenario.result({})


@pytest.mark.parametrize("preset", PRESETS, ids=lambda p: p.key)
@pytest.mark.parametrize("dark", [False, True])
def test_every_figure_is_plain_json_of_a_fixed_height_with_alt_text_and_table(preset: scenario.Preset, dark: bool) -> None:
    result = scenario.result(preset.values)
    pics = [figures.stage(result, dark=dark, selected=1, cursor_ms=5.0), figures.ledger(result, dark=dark),
            *(figures.choice(result, key, 1, dark=dark) for key in result.fleets)]
    assert [pic.height for pic in pics] == [figures.STAGE_HEIGHT, figures.LEDGER_HEIGHT, *[figures.CHOICE_HEIGHT] * 3]
    for pic in pics:
        json.dumps(pic.figure, allow_nan=False)
        assert pic.figure["layout"]["height"] == pic.height and pic.alt.endswith(".") and len(pic.table())


def test_the_stage_draws_every_prompt_token_once_in_the_lane_it_went_to(classic: Result) -> None:
    data = figures.stage(classic, dark=False).figure["data"]
    bars = [trace for trace in data if trace["type"] == "bar" and "orientation" not in trace]
    tallest = classic.scenario.trace.prompt.max()
    for k, fleet in enumerate(classic.fleets.values()):
        found, anew = bars[2 * k: 2 * k + 2]
        for trace, tokens in ((found, fleet.hits), (anew, fleet.misses)):
            drawn = np.zeros(len(fleet))
            drawn[[c[0] for c in trace["customdata"]]] = trace["y"]
            assert np.allclose(drawn * tallest / 0.88, tokens)
            lane = 3 - np.floor(np.array(trace["base"])).astype(int)
            assert lane.tolist() == [int(fleet.replica[c[0]]) for c in trace["customdata"]]


def test_many_requests_are_drawn_in_bins_and_no_token_is_lost() -> None:
    result = scenario.result(VALUES["real"])
    bars = [t for t in figures.stage(result, dark=False).figure["data"] if t["type"] == "bar" and "orientation" not in t]
    scale = 0.88 / figures._tallest(result, figures.axis_end_ms(result))
    for k in range(3):
        assert sum(sum(t["y"]) for t in bars[2 * k: 2 * k + 2]) / scale == pytest.approx(result.scenario.trace.prompt.sum())
    assert len(bars[0]["x"]) <= 8 * figures.BINS


def test_the_line_follows_one_conversation_to_where_each_turn_went(classic: Result) -> None:
    paths = [t for t in figures.stage(classic, dark=False).figure["data"] if t["name"] == "one conversation"]
    owner = scenario.sessions(classic.scenario.trace)
    gone = scenario.lost(classic, "round_robin")
    assert gone is not None
    for path, fleet in zip(paths, classic.fleets.values(), strict=True):
        turns = [c[0] for c in path["customdata"]]
        assert turns == np.flatnonzero(owner == gone.session - 1).tolist()
        assert path["y"] == [3.5 - int(fleet.replica[r]) for r in turns]
    assert len(set(paths[0]["y"])) > 1 == len(set(paths[1]["y"])) == len(set(paths[2]["y"]))
    chosen = figures.stage(classic, dark=False, selected=0).figure["data"]
    assert {owner[c[0]] for t in chosen if t["name"] == "one conversation" for c in t["customdata"]} == {owner[0]}


def test_the_request_that_lost_its_cache_is_outlined_and_said(classic: Result) -> None:
    pic = figures.stage(classic, dark=False)
    frames = [s for s in pic.figure["layout"]["shapes"] if s["name"] == "lost"]
    assert [s["visible"] for s in frames] == [True, True, False]
    gone = scenario.lost(classic, "round_robin")
    assert gone is not None
    at = classic.scenario.trace.arrival_us[gone.request] / 1000
    assert frames[0]["x0"] < at < frames[0]["x1"] and int(frames[0]["y0"]) == 4 - gone.went
    assert f"turn {gone.turn} of conversation {gone.session} went to replica {gone.went}" in pic.alt
    assert "no request was sent past its memory" in pic.alt


def test_before_the_prediction_no_hit_rate_is_drawn_or_said(classic: Result) -> None:
    pic = figures.stage(classic, dark=False, answer=False)
    words = " ".join([pic.alt, *(str(n["text"]) for n in pic.figure["layout"]["annotations"])])
    assert "%" not in words and "found" not in words
    assert all(not t["x"] for t in pic.figure["data"] if t["name"] == "hit rate so far")
    assert not any(s["visible"] for s in pic.figure["layout"]["shapes"] if s["name"] == "ceiling")
    told = figures.stage(classic, dark=False)
    last = [t["y"][-1] for t in told.figure["data"] if t["name"] == "hit rate so far"]
    assert last == [round(n["hit_rate"], 4) for n in classic.numbers.values()]


def test_the_same_traces_and_shapes_whatever_is_selected_or_answered(classic: Result) -> None:
    def names(pic: Pic) -> tuple[list[str], list[str]]:
        return [t["name"] for t in pic.figure["data"]], [s["name"] for s in pic.figure["layout"]["shapes"]]

    plain = names(figures.stage(classic, dark=False))
    assert plain == names(figures.stage(classic, dark=True, selected=7, cursor_ms=9.0, answer=False))


def test_memory_beside_the_lanes_is_that_of_the_instant(classic: Result) -> None:
    fleet = classic.fleets["round_robin"]
    assert fleet.decisions is not None
    assert figures.full(fleet, fleet.decisions, 0.0).tolist() == [0, 0, 0, 0]  # nothing was there at the first arrival
    assert (figures.full(fleet, fleet.decisions) > 0.9).all()  # 5,249 blocks were evicted: it is full by the end


def test_the_choice_shows_every_replica_and_marks_the_one_chosen(classic: Result) -> None:
    gone = scenario.lost(classic, "round_robin")
    assert gone is not None
    pic = figures.choice(classic, "round_robin", gone.request, dark=False)
    table = pic.table()
    assert len(table) == 4 and table["chosen"].tolist() == [i == gone.went - 1 for i in range(4)]
    assert table["tokens there"].max() - table["tokens there"][gone.went - 1] == gone.tokens
    assert f"lay on replica {gone.lay}." in pic.alt and table["tokens believed"].isna().all()
    scored = figures.choice(scenario.result({"router": scenario.LLM_D}), "aware", gone.request, dark=False)
    assert len(scored.figure["data"]) == 3 and scored.table()["score"].idxmax() == scored.table()["chosen"].idxmax()


def test_the_ledger_adds_up_to_all_prompt_tokens(classic: Result) -> None:
    table = figures.ledger(classic, dark=False).table()
    assert np.allclose(table["found"] + table["new to all"] + table["computed anew"], classic.scenario.trace.prompt.sum())


def test_sweeps_and_band_say_where_you_are() -> None:
    small = {"sessions": 6, "turns": 3}
    result = scenario.result(small)
    for over in ("cache", "replicas", "rate"):
        curve = scenario.sweep(small, over=over)
        pic = figures.sweep(curve, dark=False)
        json.dumps(pic.figure, allow_nan=False)
        assert pic.height == figures.SWEEP_HEIGHT and len(pic.table()) == len(curve.x)
        assert f"at {curve.x_here:,g} the hit rate is" in pic.alt
        every = [t for t in pic.figure["data"] if t["name"].endswith("every size")]
        assert len(every) == (3 if over == "cache" else 0)
    spread = scenario.band(small)
    pic = figures.band(spread, result, dark=True)
    json.dumps(pic.figure, allow_nan=False)
    assert pic.alt.startswith("Hit rate over 10 seeds.") and len(pic.table()) == 10
