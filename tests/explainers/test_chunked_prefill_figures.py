"""The chunked-prefill lesson's pictures: every token and every step is drawn where it was, and the hole is what is outlined."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from explainers.chunked_prefill import figures as f
from explainers.chunked_prefill import scenario as s
from explainers.kit import grammar as g
from explainers.kit.grammar import Pic

EXTREMES: tuple[dict[str, Any], ...] = (
    {"streams": 1}, {"streams": 48, "long": 4, "budget": 64}, {"prompt": 128, "budget": 16384}, {"long": 4, "spacing": 0},
    {"prompt": 32768, "budget": 64, "cap": 64}, {"overhead": 20.0, "context": 8192},
    {"model": "Llama-2-70B", "tp": 4, "tiles": True}, {"gpu": "A40", "model": "Llama-2-7B"})
VALUES = [*(p.values for p in s.PRESETS), *EXTREMES]


def load(capacity: float, slo: float = 100.0) -> s.Load:
    rate = np.linspace(0.4, 1.4, 6) * (capacity or 1)
    tbt = np.linspace(0.5, 2.0, 6) * slo if capacity else np.full(6, 3 * slo)
    return s.Load(rate, tbt, 0.1 * rate, tbt <= slo, capacity)


LOADS = s.Curve({"alone": load(2.0), "whole": load(2.1), "chunks": load(6.0)}, 100.0, 2.0, "Conversations, one A100.")
NO_LOADS = s.Curve({"alone": load(0.0), "chunks": load(6.0)}, 100.0, 2.0, "")


def pics(result: s.Result, dark: bool = False) -> dict[str, Pic]:
    values = result.scenario.values
    return {"stage": f.stage(result, dark=dark, selected=0, cursor_ms=5.0), "asked": f.stage(result, dark=dark, answer=False),
            "roofline": f.roofline(s.roofline(values), dark=dark), "sweep": f.sweep(s.sweep(values), dark=dark),
            "band": f.band(s.band(values), result, dark=dark), "curve": f.curve(LOADS, dark=dark)}


def traces(pic: Pic, name: str) -> list[dict[str, Any]]:
    return [t for t in pic.figure["data"] if t["name"] == name]


def shapes(pic: Pic, name: str) -> list[dict[str, Any]]:
    return [x for x in pic.figure["layout"]["shapes"] if x["name"] == name]


def texts(pic: Pic) -> list[str]:
    return [a["text"] for a in pic.figure["layout"]["annotations"]]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("values", [VALUES[0], VALUES[1], *EXTREMES], ids=str)
def test_plotly_accepts_every_figure_as_it_stands(values: dict[str, Any], dark: bool) -> None:
    for pic in pics(s.result(values), dark).values():
        go.Figure(pic.figure)  # raises for any key or value that Plotly does not know
        json.dumps(pic.figure, allow_nan=False)
        assert "nan" not in pic.alt
        assert len(pic.table().columns)
        assert pic.figure["layout"]["height"] == pic.height


def test_heights_and_traces_do_not_move_with_the_knobs() -> None:
    every = [pics(s.result(v)) for v in VALUES]
    for name in every[0]:
        assert len({p[name].height for p in every}) == 1
        assert len({tuple(t["name"] for t in p[name].figure["data"]) for p in every}) == 1


# ---- the stage


def test_a_tick_for_every_token_of_the_streams() -> None:
    result = s.result({})
    pic = f.stage(result, dark=False)
    for key, trace in zip(s.KEYS, traces(pic, "token"), strict=True):
        at = s.token_ms(result, key, -f.SHOWN_BEFORE_MS)
        np.testing.assert_allclose(trace["x"][::3], at, atol=0.006)
        assert trace["x"][::3] == trace["x"][1::3]
        assert trace["y"] == [0, 16, None] * len(at)  # through all lanes; paper between them makes ticks of it
    # by hand: from the landing to 400 ms after chunks are done the streams get 35 steps, and then one each 13.3 ms
    chunks = np.array(traces(pic, "token")[2]["x"][::3])
    assert (chunks > 0).sum() == 35 + round(400 / 13.3)


def test_the_hole_is_outlined_with_its_length_on_it() -> None:
    result = s.result({})
    pic = f.stage(result, dark=False)
    for key, shape in zip(s.KEYS, shapes(pic, "gap"), strict=True):
        gap = s.longest_gap(result, key)
        assert (shape["x0"], shape["x1"], shape["y0"], shape["y1"], shape["visible"]) == (gap.start_ms, gap.end_ms, 0, 16, True)
    assert "<b>1.63 s</b> without a token" in texts(pic)
    assert "<b>69 ms</b>" in texts(pic)
    assert "16 streams in mid-reply and 1 prompt of 16,384 tokens" in pic.alt
    assert "Prompt first and alone: the longest gap between two tokens is 1.63 s" in pic.alt
    assert "Chunks, budget 512: the longest gap between two tokens is 69 ms" in pic.alt


def test_before_the_answer_nothing_gives_the_length_away() -> None:
    pic = f.stage(s.result({}), dark=False, answer=False)
    said = json.dumps(pic.figure) + pic.alt + " ".join(pic.table().columns)
    for word in ("1.63", "1.62", "1,63", "hovertemplate", '"500"', "1,500", ", ms"):
        assert word not in said
    assert all(not shape["visible"] for shape in shapes(pic, "gap"))
    assert pic.figure["layout"]["xaxis"]["ticktext"][0] == "landing"


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_the_engine_s_bars_hold_every_prompt_token_and_leave_no_gap(values: dict[str, Any]) -> None:
    result = s.result(values)
    for key in s.KEYS:
        start, end, _, prefill, count = f.steps_ms(result, key, -f.SHOWN_BEFORE_MS)
        v = result.scenario.values
        assert (prefill * count).sum() == int(v["long"]) * s.to_compute(v)
        assert start[0] == -f.SHOWN_BEFORE_MS
        assert end[-1] == result.end_ms
        np.testing.assert_allclose(start[1:], end[:-1], atol=1e-6)


def test_a_bar_s_height_is_the_logarithm_of_its_tokens() -> None:
    pic = f.stage(s.result({}), dark=False)
    decode, prefill = ([t for t in traces(pic, name) if "orientation" not in t][1:] for name in ("decode", "prefill"))
    whole = int(np.argmax(prefill[0]["y"]))  # the panel in the middle: 16 decode tokens, and 16,384 on top of them
    assert prefill[0]["base"][whole] == pytest.approx(np.log2(17), abs=1e-3)
    assert prefill[0]["base"][whole] + prefill[0]["y"][whole] == pytest.approx(np.log2(16401), abs=2e-3)
    assert set(decode[1]["y"]) == {round(float(np.log2(17)), 3), round(float(np.log2(18)), 3)}  # and later the newcomer too


def test_many_steps_are_drawn_as_stretches() -> None:
    result = s.result({"budget": 64})  # 342 steps with prompt tokens
    _, _, _, prefill, count = f.steps_ms(result, "chunks", 0.0)
    assert count[prefill > 0].sum() == 342
    assert len(count) < 10


def test_ticks_closer_than_a_pixel_are_drawn_once_and_no_gap_grows() -> None:
    at = np.sort(np.random.default_rng(1).random(20_000)) * 1000
    at = at[(at < 400) | (at > 700)]
    few = f.thinned(at, 1000.0)
    assert len(few) <= 2 * f.MOST_TICKS
    assert np.isin(few, at).all()
    i = int(np.argmax(np.diff(at)))
    assert {at[i], at[i + 1]} <= set(few.tolist())
    assert np.diff(few).max() == np.diff(at).max()
    assert f.thinned(at[:100], 1000.0) is not at and len(f.thinned(at[:100], 1000.0)) == 100


def test_stream_and_long_prompt_can_be_clicked_by_their_number() -> None:
    pic = f.stage(s.result({"long": 2}), dark=False)
    assert [t["customdata"] for t in traces(pic, "streams")] == [[[k] for k in range(16)]] * 3
    assert [[c[0] for c in t["customdata"]] for t in traces(pic, "first token")] == [[16, 17]] * 3
    assert {c[0] for t in traces(pic, "decode") for c in t["customdata"]} == {-1}


@pytest.mark.parametrize(("selected", "rows"), [(3, (3, 4)), (16, (16, 16 + 16 * f.NEW_PX / f.STREAMS_PX)), (None, None)])
def test_the_selected_request_is_framed_in_every_panel(selected: int | None, rows: tuple[float, float] | None) -> None:
    frames = shapes(f.stage(s.result({}), dark=False, selected=selected), "selected")
    assert len(frames) == 3
    for frame in frames:
        assert frame["visible"] == (rows is not None)
        if rows:
            assert (frame["y0"], frame["y1"]) == rows


def test_the_cursor_is_a_line_over_all_panels_at_its_ms() -> None:
    result = s.result({})
    (cursor,) = shapes(f.stage(result, dark=False, cursor_ms=250.0), "cursor")
    assert (cursor["x0"], cursor["x1"], cursor["visible"]) == (250.0, 250.0, True)
    (cursor,) = shapes(f.stage(result, dark=False), "cursor")
    assert not cursor["visible"]


def test_the_table_has_the_steps_of_every_policy() -> None:
    result = s.result({})
    table = f.stage(result, dark=False).table()
    assert table.groupby("policy")["prompt tokens in each"].max().to_dict() == {
        "Prompt first and alone": 16384, "Whole prompt beside decodes": 16384, "Chunks, budget 512": 496}


def test_what_is_one_colour_in_two_lanes_is_one_role() -> None:
    pic = f.stage(s.result({}), dark=True)
    assert {t["line"]["color"] for t in traces(pic, "token")} == {g.colour("decode", True)}
    assert {t["marker"]["color"] for t in traces(pic, "prefill")} == {g.colour("prefill", True)}


# ---- roofline, sweep, band, curve


def test_the_roofline_marks_ridge_and_budget_and_names_its_source() -> None:
    pic = f.roofline(s.roofline({}), dark=False)
    assert shapes(pic, "ridge")[0]["x0"] == pytest.approx(131.2, abs=0.1)
    assert shapes(pic, "here")[0]["x0"] == 512
    assert "Vidur" in pic.alt and "the corner is round" in pic.alt
    table = pic.table()
    row = table[(table["step of"] == "a prompt") & (table["tokens"] == 512)].iloc[0]
    assert row["measured, ms"] == pytest.approx(35.97, abs=0.01)
    assert row["model, ms"] == pytest.approx(row["measured, ms"], rel=0.15)


def test_a_roofline_without_measured_points_says_so() -> None:
    pic = f.roofline(s.roofline({"gpu": "A40"}), dark=False)
    assert not any(t["x"] for t in pic.figure["data"] if "measured" in t["name"])
    assert "no measured points of Llama-3-8B on 1 × A40" in pic.alt
    assert any("nothing measured" in text for text in texts(pic))


def test_the_sweep_shows_every_budget_computed_with_ridge_and_here() -> None:
    sweep = s.sweep({"budget": 256})
    pic = f.sweep(sweep, dark=False)
    gap, first, lost = traces(pic, "chunks")
    assert gap["x"] == first["x"] == lost["x"] == list(s.BUDGETS)
    assert gap["y"] == sweep.gap_ms["chunks"].tolist()
    assert shapes(pic, "here")[0]["x0"] == 256
    assert shapes(pic, "ridge")[0]["x0"] == pytest.approx(131.2, abs=0.1)
    assert "at 128 (nearest the ridge)" in pic.alt and "at 256 (here)" in pic.alt
    assert len(pic.table()) == len(s.BUDGETS)


def test_the_band_has_a_dot_for_each_seed_and_one_for_the_screen() -> None:
    result = s.result({})
    band = s.band({})
    pic = f.band(band, result, dark=False)
    for key in s.KEYS:
        (dots,) = traces(pic, key)
        assert len(dots["x"]) == s.SEEDS
    assert [t["x"] for t in traces(pic, "on the screen")] == [[result.gaps[key].ms] for key in ("alone", "chunks", "whole")]
    assert len(pic.table()) == s.SEEDS


def test_the_curve_marks_limit_and_capacity() -> None:
    pic = f.curve(LOADS, dark=False)
    assert shapes(pic, "limit")[0]["y0"] == 100.0
    assert [t["x"] for t in pic.figure["data"] if t["name"].startswith("capacity")] == [[2.0], [6.0], [2.1]]
    assert "alone 2.00 requests/s, whole 2.10 requests/s and chunks 6.00 requests/s" in pic.alt
    assert len(pic.table()) == 18


def test_where_the_queue_ends_a_policy_s_capacity_the_curve_says_so() -> None:
    """Its mark lies below the limit for the time between tokens, and nothing else in the picture says why."""
    rate = np.array([1.0, 2.0, 3.0])
    queued = s.Load(rate, np.array([45.0, 50.0, 55.0]), np.array([0.1, 1.0, 9.0]), np.array([True, True, False]), 2.0)
    pic = f.curve(s.Curve({"alone": load(2.0), "chunks": queued}, 100.0, 2.0, ""), dark=False)
    assert [a["x"] for a in pic.figure["layout"]["annotations"] if "delay over 2 s" in a["text"]] == [2.0]
    assert traces(pic, "chunks")[0]["marker"]["opacity"] == [1.0, 1.0, 0.4]
    assert not any("delay over" in text for text in texts(f.curve(LOADS, dark=False)))


def test_the_names_of_two_lines_that_end_together_stand_apart() -> None:
    """By hand: 100 and 102 ms are log10(1.02) = 0.0086 of a decade apart, 2 px of some 250; a line of text is 12 px."""
    one, two = (s.Load(np.array([1.0, 2.0]), np.array([50.0, top]), np.zeros(2), np.array([True, False]), 1.0)
                for top in (100.0, 102.0))
    pic = f.curve(s.Curve({"alone": one, "whole": two, "chunks": load(6.0)}, 80.0, 2.0, ""), dark=False)
    shift = {a["text"]: a["yshift"] for a in pic.figure["layout"]["annotations"] if a["text"] in ("alone", "whole")}
    assert shift["whole"] - shift["alone"] >= 12 - 2


def test_a_policy_that_bears_no_load_says_so() -> None:
    pic = f.curve(NO_LOADS, dark=False)
    assert "alone none at any rate tried" in pic.alt
    assert any("alone none" in text for text in texts(pic))


def test_three_policies_have_three_styles_of_line() -> None:
    for dark in (False, True):
        assert len({json.dumps([g.policy_line(k, dark), g.policy_mark(k, dark, 7)]) for k in range(3)}) == 3
