"""The batching lesson's pictures: nothing is lost, and each says its finding where it is seen, heard or read.

By hand, a step taking 1 ms: outputs 3 and 1, two slots. Both prompts run in the first step and give both first tokens, so
request 2 has ended at 1 ms; request 1 decodes until 3 ms. Static: slot 2 is held from 1 to 3 ms, 2 of 6 slot-ms, 33 %.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from explainers.batching import figures as f
from explainers.batching import scenario as s
from explainers.kit import grammar as g
from explainers.kit.grammar import Pic
from sim.trace import Trace
from tests.explainers.batching_hand import by_hand, swapped

PRESETS = s.PRESETS
HELD = g.ROLES["held"].label


def pics(result: s.Result, values: dict[str, Any], dark: bool = False) -> dict[str, Pic]:
    return {"stage": f.stage(result, dark=dark, selected=0, cursor_ms=1.0), "ledger": f.ledger(result, dark=dark),
            "gainers": f.gainers(result, dark=dark, selected=0), "sweep": f.sweep(s.sweep(values), dark=dark),
            "band": f.band(s.band(values), result, dark=dark)}


def texts(pic: Pic) -> list[str]:
    return [a["text"] for a in pic.figure["layout"]["annotations"]]


def shape(pic: Pic, name: str) -> list[dict[str, Any]]:
    return [x for x in pic.figure["layout"]["shapes"] if x["name"] == name]


# ---- every figure


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("preset", PRESETS, ids=lambda p: p.key)
def test_plotly_accepts_every_figure_as_it_stands(preset: Any, dark: bool) -> None:
    for pic in pics(s.result(preset.values), preset.values, dark).values():
        go.Figure(pic.figure)  # raises for any key or value that Plotly does not know
        json.dumps(pic.figure, allow_nan=False)


@pytest.mark.parametrize("values", [{"requests": 1}, {"requests": 1, "slots": 1}, {"slots": 32}, {"requests": 100, "slots": 32}])
def test_degenerate_runs_have_figures_too(values: dict[str, Any]) -> None:
    for pic in pics(s.result(values), values).values():
        go.Figure(pic.figure)
        assert len(pic.table()) >= 1
        assert "nan" not in pic.alt


def test_heights_do_not_move_with_the_knobs() -> None:
    every = [pics(s.result(v), v) for v in ({}, {"requests": 100, "slots": 32}, {"requests": 1})]
    for name in every[0]:
        assert len({p[name].height for p in every}) == 1
        assert all(p[name].figure["layout"]["height"] == p[name].height for p in every)


def test_the_same_traces_in_the_same_order_at_every_rerun() -> None:
    for a, b in zip(*(pics(s.result(v), v).values() for v in ({}, {"arrivals": s.EVEN, "slots": 7})), strict=True):
        assert [t.get("name") for t in a.figure["data"]] == [t.get("name") for t in b.figure["data"]]


def test_axes_cannot_be_dragged() -> None:
    for pic in pics(s.result({}), {}).values():
        axes = [v for k, v in pic.figure["layout"].items() if k.startswith(("xaxis", "yaxis"))]
        assert all(axis["fixedrange"] for axis in axes)


# ---- the stage


@pytest.mark.parametrize("preset", PRESETS, ids=lambda p: p.key)
def test_the_bars_of_the_stage_are_the_ledger(preset: Any) -> None:
    result = s.result(preset.values)
    data = f.stage(result, dark=False).figure["data"]
    for axis, book in zip(("y", "y2"), result.ledgers.values(), strict=True):
        drawn = {t["name"]: sum(t["x"]) / 1000 for t in data if t["yaxis"] == axis and t["type"] == "bar"}
        assert drawn == pytest.approx({g.ROLES[role].label: x for role, x in book.seconds.items()}, abs=1e-9)


def test_every_request_is_numbered_once_under_each_policy() -> None:
    data = f.stage(s.result({}), dark=False).figure["data"]
    for axis in ("y", "y2"):
        (decode,) = (t for t in data if t["yaxis"] == axis and t["name"] == "decode")
        assert sorted(decode["text"], key=int) == [str(n) for n in range(1, 15)]
        assert [str(c[0] + 1) for c in decode["customdata"]] == decode["text"]


def test_a_request_has_one_shade_under_both_policies() -> None:
    data = f.stage(s.result({}), dark=False).figure["data"]
    decodes = [t for t in data if t["name"] == "decode"]
    shades = [dict(zip(t["text"], t["marker"]["color"], strict=True)) for t in decodes]
    assert shades[0] == shades[1]


def test_the_largest_idle_piece_is_framed_with_its_share() -> None:
    pic = f.stage(by_hand([3, 1], 2), dark=False)
    static, continuous = shape(pic, "largest")
    assert (static["x0"], static["x1"]) == pytest.approx((1, 3))
    assert (static["y0"] + static["y1"]) / 2 == pytest.approx(1)  # slot 2
    # Continuous: the same two slots, and no request for slot 2 from 1 to 3 ms.
    assert (continuous["x0"], continuous["x1"]) == pytest.approx((1, 3))
    assert texts(pic).count("<b>33 %</b> of slot-time") == 2


def test_a_piece_that_the_policy_causes_is_framed_before_a_longer_one_without_a_request() -> None:
    # Two slots, requests at 0, 4 and 50 ms. Static: 1 waits for 2 from 0 to 4 ms, then both start, and slot 2 is held from 5
    # to 7 ms; then no request until 50 ms, which is the longest piece. Continuous makes nobody wait.
    static, continuous = shape(f.stage(by_hand([3, 1, 1], 2, [0, 4, 50]), dark=False), "largest")
    assert (static["x0"], static["x1"]) == pytest.approx((0, 4))
    assert continuous["x1"] - continuous["x0"] > 40


def test_a_piece_too_small_to_see_is_not_framed() -> None:
    # Request 2 comes 0.5 ms before a step of request 1 ends: that wait at a step boundary is 0.5 of 2 × 100 slot-ms, 0.25 %.
    _, continuous = shape(f.stage(by_hand([100, 1], 2, [0, 1.5], timeout=0), dark=False), "largest")
    assert continuous["x1"] - continuous["x0"] > 90


def test_an_idle_piece_carries_its_cause() -> None:
    data = f.stage(by_hand([3, 1], 2), dark=False).figure["data"]
    (held,) = (t for t in data if t["name"] == HELD and t["yaxis"] == "y")
    assert (held["base"], held["x"]) == (pytest.approx([1.0]), pytest.approx([2.0]))
    assert held["text"] == [HELD]
    assert held["customdata"][0][0] == 1
    assert "ended, but its batch holds the slot" in held["customdata"][0][1]


def test_nothing_is_framed_where_nothing_is_idle() -> None:
    assert [x["visible"] for x in shape(f.stage(by_hand([2, 2], 2), dark=False), "largest")] == [False, False]


def test_before_the_prediction_the_total_is_not_given_away() -> None:
    result = by_hand([3, 1, 3, 1, 3, 1], 2)  # three batches as above: 33 % in all, 11 % the largest piece
    shown, kept = f.stage(result, dark=False), f.stage(result, dark=False, answer=False)
    assert "33 % idle" in " ".join(texts(shown))
    assert "33 % of slot-time" in shown.alt
    assert "33 %" not in " ".join(texts(kept)) + kept.alt
    assert any(text.startswith("<b>11 %</b>") for text in texts(kept))


def test_the_gap_between_the_last_replies_is_on_the_picture() -> None:
    # Outputs 4, 1, 1, 4 in two slots. Static: 4 + 4 ms. Continuous: slot 2 serves 2, 3 and from 2 ms on 4: 6 ms.
    assert any("2.0 ms" in text and "sooner" in text for text in texts(f.stage(by_hand([4, 1, 1, 4], 2), dark=False)))
    assert not any("sooner" in text for text in texts(f.stage(by_hand([2, 2], 2), dark=False)))


def test_the_stage_reads_as_a_finding() -> None:
    alt = f.stage(by_hand([3, 1], 2), dark=False).alt
    assert "2 requests in 2 slots" in alt
    assert "Static batching: done after 3.0 ms, 33 % of slot-time idle, most of it ended, but its batch holds the slot" in alt


def test_the_stage_s_table_has_a_row_for_each_piece() -> None:
    table = f.stage(by_hand([3, 1], 2), dark=False).table()
    static = table[table["policy"] == "Static"]
    # Slot 1: prefill 0–1, decode 1–3. Slot 2: prefill 0–1, held 1–3.
    assert static["slot"].tolist() == [1, 1, 2, 2]
    assert static["to, ms"].tolist() == pytest.approx([1, 3, 1, 3])
    assert static["request"].tolist() == [1, 1, 2, 2]
    assert table["request"].isna().sum() == 1  # continuous, slot 2 from 1 to 3 ms


def test_a_long_trace_is_drawn_as_shares() -> None:
    n = 3000
    own = Trace(np.arange(n) * 0.1, np.full(n, 50), np.arange(n) % 90 + 1)
    pic = f.stage(s.result({"source": s.OWN, "take": n}, own), dark=False, selected=7)
    assert {t["type"] for t in pic.figure["data"]} == {"scatter"}
    assert "shown as shares of the slots" in pic.figure["layout"]["xaxis"]["title"]["text"]
    assert [x["visible"] for x in shape(pic, "selected")] == [True, True]
    assert len(json.dumps(pic.figure)) < 250_000


def test_every_arrival_has_a_tick_above_the_lanes_unless_all_come_at_once() -> None:
    for pic, at in ((f.stage(by_hand([5, 1, 1], 2, [0, 4, 50]), dark=False), [0, 4, 50]),
                    (f.stage(by_hand([5, 1, 1], 2), dark=False), [])):
        for axis, t in zip(("yaxis", "yaxis2"), pic.figure["data"][-2:], strict=True):
            assert (t["name"], t["x"]) == ("arrivals", pytest.approx(at))
            assert [c[0] for c in t["customdata"]] == list(range(len(at)))  # a click tells the request
            top = pic.figure["layout"][axis]["range"][1]
            assert all(top < y < -0.5 for y in t["y"])  # above the first lane, on the picture
        assert any("arrival" in text for text in texts(pic)) == bool(at)


@pytest.mark.parametrize("values", [*(p.values for p in PRESETS), {"slots": 32}, {"slots": 32, "requests": 100}], ids=str)
def test_what_the_picture_holds_is_named_on_it_or_in_the_key(values: dict[str, Any]) -> None:
    result = s.result(values)
    pic = f.stage(result, dark=False)
    named = " ".join(texts(pic))
    width = f.axis_end_ms(result) / f.NARROW  # ms a pixel on a narrow screen
    tall = f.LANES_PX / result.runs["static"].policy.slots >= f.LABEL_PX
    bars = [t for t in pic.figure["data"] if t["type"] == "bar"]
    for name in {t["name"] for t in bars if max(t["x"], default=0) >= 2 * width}:
        texts_and_ms = [pair for t in bars if t["name"] == name for pair in zip(t["text"], t["x"], strict=True)]
        fits = [text for text, ms in texts_and_ms if text and ms / width >= 6 * len(text) + 8 and tall]
        assert name in named or name in fits, name


def test_the_tag_says_what_its_share_is_of() -> None:
    # Outputs 3, 1 in two slots: the piece is two thirds of the axis, 192 of 295 px, room for all. The default's is 91 px: the
    # cause stands on other pieces, so that "of slot-time" can stand on this one.
    assert any("<b>33 %</b> of slot-time" in text for text in texts(f.stage(by_hand([3, 1], 2), dark=False)))
    assert any("<b>8 %</b> of slot-time" in text for text in texts(f.stage(s.result({}), dark=False)))
    assert any("largest idle, % of slot-time" in text for text in texts(f.stage(by_hand([3, 1], 2), dark=False)))


# ---- the ledger


@pytest.mark.parametrize("preset", PRESETS, ids=lambda p: p.key)
def test_the_parts_as_text_add_up_to_the_whole(preset: Any) -> None:
    for book in s.result(preset.values).ledgers.values():
        parts = f.whole_shares(book)
        assert sum(parts.values()) == 100
        assert sum(parts[role] for role in f.IDLE) == round(100 * book.idle_share)
        assert all(abs(parts[role] - 100 * book.share(role)) < 1 for role in parts)


@pytest.mark.parametrize("preset", PRESETS, ids=lambda p: p.key)
def test_the_ledger_adds_up_to_100_per_cent(preset: Any) -> None:
    pic = f.ledger(s.result(preset.values), dark=False)
    assert np.sum([t["x"] for t in pic.figure["data"]], axis=0) == pytest.approx([100, 100], abs=1e-9)
    table = pic.table()
    for column in table.columns[1:]:
        assert table[column][:-1].sum() == pytest.approx(table[column].iloc[-1], abs=1e-9)


def test_the_ledger_by_hand() -> None:
    # Static, 6 slot-ms: two prefills of 1, decode 2, held 2. Continuous: the same, but nobody for slot 2.
    table = f.ledger(by_hand([3, 1], 2), dark=False).table().set_index("slot-time")
    assert table.loc["prefill"].tolist() == pytest.approx([0.002, 100 / 3, 0.002, 100 / 3])
    assert table.loc[g.ROLES["held"].says].tolist() == pytest.approx([0.002, 100 / 3, 0, 0])
    assert table.loc[g.ROLES["nothing"].says].tolist() == pytest.approx([0, 0, 0.002, 100 / 3])
    assert table.loc["all"].tolist() == pytest.approx([0.006, 100, 0.006, 100])


def test_only_what_is_there_stands_in_the_key() -> None:
    data = f.ledger(by_hand([3, 1], 2), dark=False).figure["data"]
    assert [t["name"] for t in data if t["showlegend"]] == ["prefill", "decode", HELD, g.ROLES["nothing"].label]


# ---- who gains, who loses


def test_those_who_gain_most_stand_on_top() -> None:
    # Outputs 4, 1, 1, 4 in two slots. Static ends: 4, 1, 5, 8. Continuous: 4, 1, 2, 6. Changes: 0, 0, −3, −2 ms.
    pic = f.gainers(by_hand([4, 1, 1, 4], 2), dark=False)
    assert pic.figure["layout"]["yaxis"]["ticktext"] == ["3", "4", "1", "2"]
    assert [t for t in texts(pic) if t[0] in "−+s"] == ["−3.0 ms", "−2.0 ms", "same", "same"]
    assert pic.table()["difference, ms"].tolist() == pytest.approx([0, 0, -3, -2])
    assert "2 requests end sooner under continuous batching, 0 later and 2 at the same time" in pic.alt
    assert "Request 3 gains most: 5.0 ms to 2.0 ms" in pic.alt


def test_losers_are_marked_by_sign_and_dash() -> None:
    pic = f.gainers(swapped(by_hand([4, 1, 1, 4], 2)), dark=False)
    assert {"+3.0 ms", "+2.0 ms"} <= set(texts(pic))
    later = next(t for t in pic.figure["data"] if t["name"] == "later")
    assert later["line"]["dash"] != "solid"
    assert "0 requests end sooner" in pic.alt
    assert "gains most" not in pic.alt


@pytest.mark.parametrize("n", [f.MOST_ROWS, f.MOST_ROWS + 1])
def test_a_click_tells_the_request_in_either_form(n: int) -> None:
    pic = f.gainers(s.result({"requests": n}), dark=False, selected=3)
    marks = [t for t in pic.figure["data"] if t.get("customdata")]
    per_form = 2 if n <= f.MOST_ROWS else 1
    assert sorted(c[0] for t in marks for c in t["customdata"]) == sorted(list(range(n)) * per_form)
    assert len(pic.table()) == n


# ---- the sweep and the band


def test_the_sweep_reads_as_a_finding() -> None:
    curve = s.sweep({})
    alt = f.sweep(curve, dark=False).alt
    at = curve.x.tolist().index(4)
    assert f"at 4 the idle share is {g.percent(curve.idle['static'][at])} under static" in alt
    assert f.sweep(curve, dark=False).table()["slots"].tolist() == curve.x.tolist()


def test_what_limits_the_sweep_stands_under_it() -> None:
    curve = s.sweep({}, over="rate")
    pic = f.sweep(curve, dark=False)
    assert curve.note in pic.figure["layout"]["xaxis"]["title"]["text"]
    assert curve.note in pic.alt


def test_the_band_states_the_median_beside_the_run() -> None:
    result, band = s.result({}), s.band({})
    pic = f.band(band, result, dark=False)
    assert f"median {g.percent(float(np.median(band.idle['static'])))}" in texts(pic)
    assert f"on the screen {g.percent(result.ledgers['static'].idle_share)}" in pic.alt
    assert pic.table()["seed"].tolist() == list(band.seeds)
