"""The memory lesson's pictures: every token slot is drawn once, and each says its finding where it is seen, heard or read.

By hand (memory_small.py): 32 slots, three requests of 4 prompt tokens and 6 KV at the end, a step a ms.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from explainers.kit import grammar as g
from explainers.kit.grammar import Pic
from explainers.memory import figures as f
from explainers.memory import scenario as s
from explainers.memory import story
from sim.kv.occupancy import PARTS
from tests.explainers.memory_small import US, by_hand

PRESETS = s.PRESETS
EXTREMES: tuple[dict[str, Any], ...] = (
    {"requests": 1}, {"block": 1}, {"requests": 400, "arrivals": s.POISSON}, {"requests": 400, "mean": "Alpaca", "block": 256},
    {"other": s.POW2, "off": 1.0}, {"memory": 2_048, "preempt": s.SWAP}, {"memory": 125_600, "longest": 8192}, {"fit": s.FITS})
VALUES = [*(p.values for p in PRESETS), *EXTREMES]


def pics(result: s.Result, dark: bool = False) -> dict[str, Pic]:
    values = result.scenario.values
    every = {"stage": f.stage(result, dark=dark, selected=0, cursor_ms=1.0), "table": f.table(result, dark=dark, selected=0),
             "preemption": f.preemption(result, 0, dark=dark), "beams": f.sharing(result, 6, "beams", dark=dark),
             "samples": f.sharing(result, 2, "samples", dark=dark)}
    if values["source"] == s.GENERATED:
        return every | {"sweep": f.sweep(s.sweep(values), dark=dark), "rate": f.sweep(s.sweep(values, over="rate"), dark=dark)}
    return every | {"recorded": f.recorded(result, dark=dark)}


def texts(pic: Pic) -> list[str]:
    return [a["text"] for a in pic.figure["layout"]["annotations"]]


def shape(pic: Pic, name: str) -> list[dict[str, Any]]:
    return [x for x in pic.figure["layout"]["shapes"] if x["name"] == name]


def slots(pic: Pic, axis: str) -> dict[str, float]:
    """Token slots drawn in an address space, by label; only what is there."""
    bars = [t for t in pic.figure["data"] if t["type"] == "bar" and t["yaxis"] == axis and t["name"] != "selected"]
    return {t["name"]: float(sum(t["x"])) for t in bars if sum(t["x"])}


def labelled(parts: dict[str, float]) -> dict[str, float]:
    return {g.ROLES[part].label: x for part, x in parts.items() if x}


# ---- the roles


def test_no_two_parts_of_the_memory_rely_on_hue_alone() -> None:
    marks = [(g.ROLES[part].hatch, g.ROLES[part].solid) for part in PARTS]
    assert len(set(marks)) == len(PARTS)



# ---- every figure


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("values", [PRESETS[0].values, PRESETS[4].values, PRESETS[-1].values, *EXTREMES[:3]], ids=str)
def test_plotly_accepts_every_figure_as_it_stands(values: dict[str, Any], dark: bool) -> None:
    for pic in pics(s.result(values), dark).values():
        go.Figure(pic.figure)  # raises for any key or value that Plotly does not know
        json.dumps(pic.figure, allow_nan=False)
        assert "nan" not in pic.alt
        assert len(pic.table().columns)


def test_heights_do_not_move_with_the_knobs() -> None:
    every = [pics(s.result(v)) for v in ({}, {"requests": 400}, {"requests": 1}, {"memory": 2_048})]
    for name in every[0]:
        assert len({p[name].height for p in every}) == 1
        assert all(p[name].figure["layout"]["height"] == p[name].height for p in every)


def test_the_same_traces_in_the_same_order_at_every_rerun() -> None:
    few, many = pics(s.result({})), pics(s.result({"other": s.POW2, "requests": 400}))
    for name in ("stage", "table", "beams", "samples", "sweep"):
        a, b = ([(t["name"], t.get("yaxis")) for t in p[name].figure["data"]] for p in (few, many))
        assert name == "sweep" or a == b
        assert len(a) == len(b)


def test_axes_cannot_be_dragged() -> None:
    for pic in [*pics(s.result({})).values(), f.recorded(s.result({"source": s.RECORDED}), dark=False)]:
        axes = [v for k, v in pic.figure["layout"].items() if k.startswith(("xaxis", "yaxis"))]
        assert all(axis["fixedrange"] for axis in axes)


# ---- the address spaces


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_the_slots_of_a_memory_are_its_occupancy(values: dict[str, Any]) -> None:
    # At any moment: between the first instant and the last, the space is the playback of block tables, the occupancy a sum.
    result = s.result(values)
    for key, there in result.occupancies.items():
        for t in np.random.default_rng(0).uniform(there.start_us[0], there.end_us[-1], 12).tolist():
            space = f.cells(result, key, t, most=1 << 40)
            assert space.length.sum() == there.pool
            found = np.bincount(space.part, weights=space.length, minlength=len(PARTS)).tolist()
            assert dict(zip(PARTS, found, strict=True)) == pytest.approx(there.at(t)), (key, t)


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_no_piece_is_broken_but_at_the_end_of_a_row(values: dict[str, Any]) -> None:
    result = s.result(values)
    space = f.cells(result, "reserved", f.instant_us(result))
    assert ((space.start // space.row) == ((space.start + space.length - 1) // space.row)).all()
    assert (space.start[1:] == (space.start + space.length)[:-1]).all()
    assert f.ROWS / 2 < space.rows <= f.ROWS


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_a_stage_has_at_most_two_thousand_bars_and_draws_every_slot(values: dict[str, Any]) -> None:
    result = s.result(values)
    pic = f.stage(result, dark=False)
    assert sum(len(t["x"]) for t in pic.figure["data"] if t["type"] == "bar") <= g.MOST_BARS
    for axis, there in zip(("y3", "y4"), result.occupancies.values(), strict=True):
        assert sum(slots(pic, axis).values()) == there.pool
    assert len(json.dumps(pic.figure)) < 350_000


def test_both_memories_by_hand() -> None:
    # First step. Orca: two requests of 4 tokens, 2 to come, 10 never. Paged: three blocks of 4 tokens, 20 slots free.
    pic = f.stage(by_hand(), dark=False, cursor_ms=0.0)
    assert slots(pic, "y3") == labelled({"tokens": 8, "reserved": 4, "internal": 20})
    assert slots(pic, "y4") == labelled({"tokens": 12, "free": 20})
    # Second step: one token more each. Paged: in a second block, with one to come and two slots that stay empty.
    pic = f.stage(by_hand(), dark=False, cursor_ms=1.0)
    assert slots(pic, "y3") == labelled({"tokens": 10, "reserved": 2, "internal": 20})
    assert slots(pic, "y4") == labelled({"tokens": 15, "reserved": 3, "internal": 6, "free": 8})
    # From 3 ms on request 3 is alone under Orca, and nobody waits.
    assert slots(f.stage(by_hand(), dark=False, cursor_ms=3.5), "y3") == labelled(
        {"tokens": 4, "reserved": 2, "internal": 10, "free": 16})


def test_a_click_tells_the_request() -> None:
    pic = f.stage(by_hand(), dark=False, cursor_ms=0.0)
    (tokens,) = (t for t in pic.figure["data"] if t["type"] == "bar" and t["name"] == "tokens" and t["yaxis"] == "y4")
    assert [c[0] for c in tokens["customdata"]] == [0, 1, 2]
    (free,) = (t for t in pic.figure["data"] if t["type"] == "bar" and t["name"] == "free" and t["yaxis"] == "y4")
    assert {c[0] for c in free["customdata"]} == {-1}


def test_a_request_has_one_tone_in_both_memories() -> None:
    data = f.stage(s.result({}), dark=False).figure["data"]
    tones: dict[int, set[str]] = {}
    for t in data:
        if t["type"] == "bar" and t["name"] == "tokens":
            for who, tone in zip(t["customdata"], t["marker"]["color"], strict=True):
                tones.setdefault(who[0], set()).add(tone)
    assert all(len(found) == 1 for found in tones.values())


@pytest.mark.parametrize("preset", ["thrash", "maximum", "recording"])
def test_title_mean_and_words_say_the_same_share_of_tokens(preset: str) -> None:
    # Of 24.47 % tokens, 15.29 and 60.25 % largest remainders would make 25, 15 and 60.
    result = s.result(next(p.values for p in s.PRESETS if p.key == preset))
    for key in result.runs:
        whole = f.shares(result, key)
        assert sum(whole.values()) == 100
        if result.means[key]["free"] < 0.005:
            said = f"{whole['tokens']} %"
            name = f.names(result)[key]
            title, mean = (next(text for text in texts(f.stage(result, dark=False)) if text.startswith(start))
                           for start in (f"<b>{name}</b>", f"{name}, while"))
            assert f"fill {said}" in title and f"</span> {said}" in mean
            assert said in story.headline(result) and f"tokens {said}" in " ".join(story.causes(result))


def test_the_largest_waste_is_framed_with_its_size() -> None:
    pic = f.stage(by_hand(), dark=False, cursor_ms=0.0)
    space = f.cells(by_hand(), "reserved", 0.0)
    assert (space.row, space.rows) == (4, 8)
    # Rows of 4 slots. The first request reserves slots 0 to 15 and ends with 6 tokens: the 10 after them are never filled, two in
    # the second row, then two whole rows.
    *reserved, paged = shape(pic, "largest")
    places = [(frame["x0"], frame["x1"], (frame["y0"] + frame["y1"]) / 2) for frame in reserved]
    assert places == [(2, 4, 1), (0, 4, 2), (0, 4, 3)]
    assert paged["visible"] is False
    assert any(text.startswith("<b>10</b>") for text in texts(pic))


def test_the_selected_request_is_outlined_where_it_lies() -> None:
    data = f.stage(by_hand(), dark=False, cursor_ms=1.0, selected=1).figure["data"]
    reserved, paged = ([*zip(t["y"], t["base"], t["x"], strict=True)] for t in data if t["name"] == "selected")
    # Orca: slots 16 to 31, rows 4 to 7 of four slots. 5 tokens, 1 to come.
    assert reserved == [(4, 0, 4), (5, 0, 1), (5, 1, 1), (5, 2, 2), (6, 0, 4), (7, 0, 4)]
    # Paged: block 1 and, after those of request 1, block 4.
    assert paged == [(1, 0, 4), (4, 0, 1), (4, 1, 1), (4, 2, 2)]


def test_shared_blocks_are_marked_and_counted_once() -> None:
    result = s.result({"prefix": 1024})
    space = f.cells(result, "other", f.instant_us(result))
    shared = space.holders > 1
    assert space.length[shared].sum() == 1024
    assert space.holders[shared].max() > 20
    pic = f.stage(result, dark=False)
    assert any("shared" in text for text in texts(pic))
    assert not any("shared" in text for text in texts(f.stage(s.result({}), dark=False)))


def test_the_instant_shown_first_is_one_at_which_somebody_waits() -> None:
    for p in PRESETS:
        result = s.result(p.values)
        t = f.instant_us(result)
        assert any(t0 <= t < t1 for t0, t1 in result.saturated.values()), p.key
        assert all(t < there.end_us[-1] for there in result.occupancies.values())


# ---- the stacks over time


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_the_stack_adds_up_to_the_whole_memory(values: dict[str, Any]) -> None:
    data = f.stage(s.result(values), dark=False).figure["data"]
    for axis in ("y", "y2"):
        parts = [t["y"] for t in data if t.get("stackgroup") == axis]
        assert len(parts) == len(PARTS)
        assert np.sum(parts, axis=0) == pytest.approx(100, abs=0.06)  # rounded to 0.01 each


@pytest.mark.parametrize("values", [{}, {"requests": 400, "arrivals": s.POISSON}, {"memory": 2_048}], ids=str)
def test_the_mean_of_the_stack_is_the_mean_that_is_written_on_it(values: dict[str, Any]) -> None:
    for there in s.result(values).occupancies.values():
        t0, t1 = float(there.start_us[0]), float(there.end_us[-1])
        found = f.binned(there, np.linspace(t0, t1, 50))
        # Within a row the picture takes the time to run evenly over its steps, which grow by well under a per cent.
        assert {part: float(x.mean()) for part, x in found.items()} == pytest.approx(there.shares(t0, t1), abs=2e-3)


def test_the_stack_by_hand() -> None:
    # 4, 5, 6 tokens of two requests in 32 slots, drawn as a line from step to step; means 2 · 5 / 32 = 31 %.
    pic = f.stage(by_hand(), dark=False)
    means = next(text for text in texts(pic) if text.startswith("Orca (Max), while some wait"))
    assert [n for n in ("31 %", "6 %", "63 %") if n not in means] == []
    (window,) = (x for x in shape(pic, "window") if x["yref"] == "y")
    assert (window["x0"], window["x1"]) == pytest.approx((0, 3))
    assert "mean of the run" in next(text for text in texts(pic) if text.startswith("Paged, block 4,"))


def test_the_cursor_lies_over_the_stacks_on_their_axis() -> None:
    (cursor,) = shape(f.stage(by_hand(), dark=False, cursor_ms=1.5), "cursor")
    assert (cursor["x0"], cursor["x1"], cursor["xref"], cursor["y0"]) == (1.5, 1.5, "x", 0)
    assert cursor["visible"]
    layout = f.stage(by_hand(), dark=False).figure["layout"]
    assert cursor["y1"] >= layout["yaxis"]["domain"][1]
    assert cursor["y1"] < layout["yaxis4"]["domain"][0]  # and not over the address spaces, which have another axis
    assert layout["xaxis"]["range"][1] == pytest.approx(6000 / US)  # Orca: two rounds of three steps


# ---- what it says


def test_before_the_prediction_the_number_that_fits_is_not_given_away() -> None:
    result = s.result({})
    shown, kept = f.stage(result, dark=False), f.stage(result, dark=False, answer=False)
    assert "7 of 40 at once" in " ".join(texts(shown))
    assert "7 requests at once" in shown.alt
    assert " fit" not in " ".join(texts(kept))
    assert "at once" not in kept.alt
    assert "tokens fill 20 %" in " ".join(texts(kept))


def test_before_the_prediction_the_requests_that_fit_cannot_be_counted() -> None:
    # By hand: two pieces of 16 in 32 slots, the first with the more that is never filled: slots 0 to 15.
    kept, shown = (f.stage(by_hand(), dark=False, cursor_ms=0.0, answer=answer) for answer in (False, True))

    def drawn(pic: Pic) -> set[int]:
        bars = (t for t in pic.figure["data"] if t["type"] == "bar" and t["yaxis"] == "y3")
        return {row[0] for bar in bars for row in bar.get("customdata", [])}

    assert (drawn(shown), drawn(kept)) == ({0, 1}, {0})
    assert {band["yref"] for band in shape(kept, "veil")} == {"y3"} and not shape(shown, "veil")
    assert kept.height == shown.height and "Orca (Max)" not in set(kept.table()["allocator"])
    twice = f.stage(s.result({"other": s.MAX}), dark=False, answer=False)  # the second one would tell as well
    assert {band["yref"] for band in shape(twice, "veil")} == {"y3", "y4"} and not len(twice.table())


def test_the_stage_reads_as_a_finding() -> None:
    alt = f.stage(by_hand(), dark=False).alt
    assert "3 requests in a memory of 32 token slots" in alt
    assert "Orca (Max): 2 requests at once, 31 % tokens, 6 % reserved and 62 % never filled" in alt


def test_the_stage_s_table_has_a_row_for_each_who_holds_memory() -> None:
    table = f.stage(by_hand(), dark=False, cursor_ms=1.0).table()
    paged = table[table["allocator"] == "Paged, block 4"].set_index("request")
    assert paged.loc["3"].tolist()[1:] == [5, 1, 2, 0, 0]
    assert paged.loc["nobody"].tolist()[1:] == [0, 0, 0, 0, 8]
    assert (table.set_index("allocator").drop(columns="request").groupby("allocator").sum().sum(axis=1) == 32).all()


def test_what_lies_in_no_piece_of_its_own_is_named_on_the_picture() -> None:
    data = f.stage(s.result({}), dark=False).figure["data"]
    words = [set(t["text"]) for t in data if t["name"] == "labels"]
    assert words == [{"reserved", "never filled", "cannot be given"}, {"free"}]


# ---- a block table


def test_a_block_table_by_hand() -> None:
    rows = f.block_table(by_hand(), "other", 1, 1 * US)
    assert (rows.logical.tolist(), rows.physical.tolist(), rows.length.tolist()) == ([0, 1], [1, 4], [1, 1])
    assert rows.parts.tolist() == [[4, 0, 0, 0], [1, 1, 2, 0]]
    assert rows.holders.tolist() == [1, 1]
    piece = f.block_table(by_hand(), "reserved", 1, 1 * US)
    assert (piece.physical.tolist(), piece.length.tolist(), piece.parts.tolist()) == ([16], [16], [[5, 1, 10, 0]])
    pic = f.table(by_hand(), dark=False, selected=1, cursor_ms=1.0)
    assert "Paged, block 4: request 2: 2 blocks, 2 places, 5 of 8 filled" in pic.alt
    assert pic.table()["physical block"].tolist() == [16, 1, 4]


def test_who_holds_nothing_is_told_when_it_does() -> None:
    pic = f.table(by_hand(), dark=False, selected=2, cursor_ms=1.0)
    assert "Orca (Max): request 3 holds nothing at 1.0 ms, but from 3.0 ms to 6.0 ms" in pic.alt


def test_a_block_table_names_who_shares_its_blocks() -> None:
    result = s.result({"prefix": 1024})
    rows = f.block_table(result, "other", 5, 0.0)
    assert rows.holders[0] == 40
    assert rows.physical[0] == 0
    assert rows.holders[-1] == 1


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_a_block_table_holds_all_tokens_of_its_request(values: dict[str, Any]) -> None:
    result = s.result(values)
    t = f.instant_us(result)
    for key, run in result.runs.items():
        tokens = f.tokens_at(run, t)
        for request in np.flatnonzero(tokens)[:8].tolist():
            rows = f.block_table(result, key, request, t)
            assert rows.parts[:, 0].sum() == tokens[request]
            assert rows.parts.sum() == rows.blocks * rows.size
            assert rows.logical.tolist() == (np.cumsum(rows.length) - rows.length).tolist()  # no gap in the table


# ---- preemption, sharing, sweeps, the recording


def test_a_preemption_shows_the_victim_s_blocks_before_and_after() -> None:
    result = s.result({"memory": 2_048})
    lost = s.preemptions(result)[0]
    pic = f.preemption(result, 0, dark=False)
    before, after = (t for t in pic.figure["data"] if t["name"] == "selected")
    assert sum(before["x"]) == lost.blocks * 16
    assert (before["y"], before["base"], before["x"]) == (after["y"], after["base"], after["x"])
    assert f"request {lost.request + 1} has {lost.blocks} blocks" in pic.alt
    assert len(pic.table()) == len(s.preemptions(result))
    # The request that needed a block has its tokens still; the victim has none.
    assert f.tokens_at(result.runs["other"], lost.at_us)[lost.request] == 0


def test_where_nobody_is_preempted_the_picture_says_so() -> None:
    pic = f.preemption(by_hand(), 0, dark=False)
    assert pic.alt == "Nobody is preempted under Paged, block 4."
    assert len(pic.table()) == 0


def test_sharing_by_hand() -> None:
    # Alpaca's means: 19 prompt and 58 output tokens, 76 KV: 5 blocks of 16. Four samples share the prompt's one full block:
    # 1 + 4·4 = 17 instead of 20.
    pic = f.sharing(s.result({"mean": "Alpaca"}), 4, "samples", dark=False)
    assert "17 blocks instead of 20, 15 % saved" in texts(pic)[0]
    own, shared = pic.figure["data"]
    assert (shared["x"], shared["y"]) == ([0.5], [4])
    assert len(own["x"]) == 16
    assert set(own["y"]) == {1}


@pytest.mark.parametrize("kind", ["samples", "beams"])
@pytest.mark.parametrize("block", [1, 16])
def test_the_bars_of_sharing_cover_every_table(kind: str, block: int) -> None:
    pic = f.sharing(s.result({"block": block}), 6, kind, dark=False)
    area = sum(w * y for t in pic.figure["data"] for w, y in zip(t["width"], t["y"], strict=True))
    assert area == 6 * -(-498 // block)  # 161 + 338 − 1 KV each
    assert sum(len(t["x"]) for t in pic.figure["data"]) <= 600
    assert pic.table()["owners"].sum() == area


def test_the_sweeps_read_as_findings() -> None:
    blocks, rate = (f.sweep(s.sweep({}, over=over), dark=False) for over in ("block", "rate"))
    assert "at 16 taken memory without tokens 80 % under Orca (Max) and 2 % under paged" in blocks.alt
    assert "1 under Orca (Max)" in blocks.alt
    assert "at 2 requests that hold memory" in rate.alt
    assert s.sweep({}, over="rate").note in rate.figure["layout"]["xaxis"]["title"]["text"]
    assert blocks.table()["block size"].tolist() == list(s.BLOCKS)


def test_an_allocator_beside_itself_has_two_curves_and_two_names() -> None:
    pic = f.sweep(s.sweep({"other": s.MAX}, over="rate"), dark=False)
    first, second = (t for t in pic.figure["data"] if t["yaxis"] == "y")
    assert first["y"] == second["y"]
    assert first["name"] != second["name"]
    assert len(set(f.names(s.result({"other": s.MAX})).values())) == 2


def test_a_sweep_says_you_are_here_only_where_you_are() -> None:
    for values, over, here in (({}, "block", True), ({"arrivals": s.POISSON}, "rate", True),
                               ({}, "rate", False), ({"other": s.POW2}, "block", False)):  # all at once; no blocks
        pic = f.sweep(s.sweep(values, over=over), dark=False)
        assert ("you are here" in texts(pic), bool(shape(pic, "here"))) == (here, here)


def test_the_band_states_the_median_beside_the_run() -> None:
    result, band = s.result({}), s.band({})
    pic = f.band(band, result, dark=False)
    go.Figure(pic.figure)
    assert f"median {g.percent(float(np.median(band.tokens['reserved'])))}" in texts(pic)
    assert "7 to 7 requests at once" in pic.alt
    assert pic.table()["seed"].tolist() == list(band.seeds)
    assert pic.height == f.BAND_HEIGHT


def test_the_recording_s_free_blocks_lie_on_ours() -> None:
    result = s.result({"source": s.RECORDED})
    pic = f.recorded(result, dark=False)
    recorded, ours = pic.figure["data"]
    assert recorded["y"] == ours["y"]
    assert "the same in 507 of 507 recorded steps" in pic.alt
    with pytest.raises(ValueError, match="no recording"):
        f.recorded(s.result({}), dark=False)


def test_a_step_that_differs_from_the_recording_is_counted() -> None:
    result = s.result({"source": s.RECORDED})
    assert result.recorded_free is not None
    free = result.recorded_free.copy()
    free[7] += 1
    recorded = result.scenario.recorded
    assert recorded is not None
    changed = s.serve(s._of_recording(s.filled({"source": s.OWN}), type(recorded)(
        recorded.trace, recorded.policy, recorded.clock, free, recorded.t0, "changed")))
    assert "the same in 506 of 507 recorded steps" in f.recorded(changed, dark=False).alt
