"""The figure grammar: colours that can be told apart and read, and builders that lose nothing."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from explainers.kit import grammar as g
from sim.metrics import ROLES as SLOT_ROLES

BOTH = pytest.mark.parametrize("dark", [False, True])

# Machado, Oliveira and Fernandes (IEEE TVCG 2009), severity 1.0, on linear RGB.
BLIND = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colour: str) -> np.ndarray:
    c = np.array([int(colour[i:i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB of linear sRGB, D65."""
    m = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]])
    xyz = m @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


# ---- colours


def test_contrast_is_that_of_wcag() -> None:
    assert g.contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert g.contrast("#767676", "#FFFFFF") == pytest.approx(4.54, abs=0.005)  # the lightest grey that passes 4.5 on white
    assert g.contrast("#123456", "#123456") == 1


@BOTH
@pytest.mark.parametrize("role", g.ROLES)
def test_every_role_stands_off_the_background(role: str, dark: bool) -> None:
    shades = range(g.shades(role)) if g.ROLES[role].solid else range(1)
    assert min(g.contrast(g.colour(role, dark, s), g.theme(dark).paper) for s in shades) >= 3


@BOTH
@pytest.mark.parametrize("role", g.ROLES)
def test_text_on_a_bar_can_be_read(role: str, dark: bool) -> None:
    text = g.bar_font(role, dark)["color"]
    grounds = [g.colour(role, dark, s) for s in range(g.shades(role))] if g.ROLES[role].solid else [g.wash(role, dark)]
    assert min(g.contrast(text, ground) for ground in grounds) >= 4.5


@BOTH
def test_words_beside_the_picture_can_be_read(dark: bool) -> None:
    look = g.theme(dark)
    assert min(g.contrast(c, look.paper) for c in (look.ink, look.muted, look.select, look.gain, look.loss)) >= 4.5


def test_no_two_roles_of_a_slot_rely_on_hue_alone() -> None:
    for one, other in itertools.combinations(SLOT_ROLES, 2):
        a, b = g.ROLES[one], g.ROLES[other]
        assert (a.hatch, a.solid) != (b.hatch, b.solid), (one, other)


@BOTH
@pytest.mark.parametrize("blindness", BLIND)
def test_prefill_decode_and_held_stay_apart_for_colour_blind_readers(blindness: str, dark: bool) -> None:
    seen = [lab(np.array(BLIND[blindness]) @ linear(g.colour(role, dark))) for role in ("prefill", "decode", "held")]
    # About 2.3 is just noticeable in CIELAB, ten times as much is plain at a glance. Blue and bluish green come nearer
    # to each other for the one in 10,000 with tritanopia: there prefill's hatch tells.
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > (9 if blindness == "tritanopia" else 23)
    assert len({g.ROLES[role].hatch for role in ("prefill", "decode", "held")}) == 3


@BOTH
def test_a_request_has_another_shade_than_its_neighbours(dark: bool) -> None:
    shades = [g.colour("decode", dark, r) for r in range(4)]
    assert len(set(shades[:3])) == 3
    assert shades[3] == shades[0]


@BOTH
def test_the_tones_of_requests_in_memory_differ_at_a_glance(dark: bool) -> None:
    tones = [lab(linear(g.colour("tokens", dark, r))) for r in range(g.shades("tokens"))]
    assert len(tones) == 6
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(tones, 2)) > 9  # 2.3 is just noticeable


def test_every_role_has_a_label_and_a_phrase() -> None:
    assert all(role.label and role.says for role in g.ROLES.values())
    assert set(SLOT_ROLES) <= set(g.ROLES)


# ---- words for numbers


@pytest.mark.parametrize(("share", "said"), [
    (0, "0 %"), (1e-17, "0 %"), (0.004, "under 1 %"), (0.008, "1 %"), (0.384, "38 %"),
    (0.996, "over 99 %"), (1, "100 %"), (1 - 1e-16, "100 %"),
    (math.nan, "–")])
def test_small_but_real_shares_are_not_rounded_away(share: float, said: str) -> None:
    assert g.percent(share) == said


@pytest.mark.parametrize(("seconds", "said"), [
    (0, "0 ms"), (0.0004, "0.4 ms"), (0.14, "140 ms"), (0.9994, "999 ms"), (0.9996, "1.00 s"), (5.928, "5.93 s"),
    (17.14, "17.1 s"), (3502, "3,502 s"), (math.nan, "–")])
def test_times_carry_their_unit(seconds: float, said: str) -> None:
    assert g.duration(seconds) == said


@pytest.mark.parametrize(("parts", "whole", "shares"), [
    ([38.6, 5.5], 44, [39, 5]),                  # 38.51 and 5.49: one is left, and .51 has more of it
    ([44.4, 32.4, 3.6, 2.6], 83, [44, 32, 4, 3]),
    ([1, 1, 1], 100, [34, 33, 33]),              # equal remainders: the earlier first
    ([0, 0], 0, [0, 0]), ([0.2, 0.1], 0, [0, 0]), ([0, 5, 0], 7, [0, 7, 0])])
def test_parts_are_rounded_so_that_they_add_up(parts: list[float], whole: int, shares: list[int]) -> None:
    assert g.apportion(parts, whole) == shares


def test_a_part_rounded_away_is_still_said_to_be_there() -> None:
    assert [g.percent_of(x, n) for x, n in ((0.004, 0), (0.0, 0), (0.004, 1), (0.996, 100), (1.0, 100))] == [
        "under 1 %", "0 %", "1 %", "over 99 %", "100 %"]


def test_lists_read_as_english() -> None:
    assert [g.listed(x) for x in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
    assert g.count(1, "request") == "1 request"
    assert g.count(1400, "request") == "1,400 requests"


# ---- timelines


def panel(n: int, lanes: int = 2, each: float = 10.0) -> g.Panel:
    """n pieces of `each` ms in turn on the lanes: prefill, decode, prefill, …"""
    k = np.arange(n)
    start = (k // lanes) * each
    return g.Panel("title", lanes, k % lanes, start, start + each, k % 2, k, [str(i) for i in k])


ROLES = ("prefill", "decode", "held")


def test_one_trace_a_role_and_panel_in_the_same_order_whatever_there_is() -> None:
    few = g.timeline([panel(1), panel(4)], ROLES, dark=False, height=400, end=100)
    names = [(t["name"], t["yaxis"]) for t in few["data"]]
    # Prefill last of the bars: its slivers lie above their neighbours' edges.
    bars = [(g.ROLES[r].label, axis) for axis in ("y", "y2") for r in ("decode", "held", "prefill")]
    assert names == [*bars, ("arrivals", "y"), ("arrivals", "y2")]


def test_bars_cover_their_pieces_and_carry_the_request() -> None:
    figure = g.timeline([panel(4)], ROLES, dark=False, height=300, end=20)
    bars = [(t["name"], y, b, x, c[0]) for t in figure["data"] if t["type"] == "bar" for y, b, x, c in
            zip(t["y"], t["base"], t["x"], t["customdata"], strict=True)]
    assert sorted(bars) == sorted([("prefill", 0, 0.0, 10.0, 0), ("decode", 1, 0.0, 10.0, 1), ("prefill", 0, 10.0, 10.0, 2),
                                   ("decode", 1, 10.0, 10.0, 3)])


def test_the_cursor_is_a_named_shape_over_all_panels() -> None:
    for at in (None, 12.5):
        shapes = g.timeline([panel(4), panel(4)], ROLES, dark=True, height=300, end=20, cursor=at)["layout"]["shapes"]
        (cursor,) = (s for s in shapes if s["name"] == "cursor")
        assert (cursor["visible"], cursor["yref"], cursor["y0"], cursor["y1"]) == (at is not None, "paper", 0, 1)
        assert cursor["x0"] == cursor["x1"] == (at or 0)


def test_the_selected_request_is_framed_in_every_panel() -> None:
    shapes = g.timeline([panel(4), panel(2)], ROLES, dark=False, height=300, end=20, selected=3)["layout"]["shapes"]
    frames = [s for s in shapes if s["name"] == "selected"]
    assert [s["visible"] for s in frames] == [True, False]  # the second panel has no request 3
    assert (frames[0]["x0"], frames[0]["x1"]) == (10, 20)


def test_the_same_shapes_whether_or_not_something_is_selected() -> None:
    def named(**kw: object) -> list[str]:
        return [s["name"] for s in g.timeline([panel(4)], ROLES, dark=False, height=300, end=20, **kw)["layout"]["shapes"]]  # type: ignore[arg-type]

    assert named() == named(selected=1, cursor=3.0)


def test_above_the_limit_a_timeline_shows_shares_and_says_so() -> None:
    few, many = (g.timeline([panel(n)], ROLES, dark=False, height=300, end=n * 5.0) for n in (g.MOST_BARS, g.MOST_BARS + 1))
    assert {t["type"] for t in few["data"] if t["name"] != "arrivals"} == {"bar"}
    assert {t["type"] for t in many["data"]} == {"scatter"}
    assert "2,001 pieces, shown as shares" in many["layout"]["xaxis"]["title"]["text"]
    assert max(len(t["x"]) for t in many["data"]) == g.BINS


def test_the_shares_of_an_aggregated_timeline_add_up() -> None:
    figure = g.timeline([panel(3000)], ROLES, dark=False, height=300, end=15_000.0)
    shares = [t["y"] for t in figure["data"] if t["name"] != "arrivals"]
    assert np.sum(shares, axis=0) == pytest.approx(np.ones(g.BINS), abs=3e-5)  # rounded to 5 places


def test_occupancy_is_exact() -> None:
    # [0, 10] and [5, 8] over the bins 0–5, 5–10, 10–20: 5/5; 5/5 + 3/5; 0.
    found = g.occupancy(np.array([0.0, 5.0]), np.array([10.0, 8.0]), np.array([0.0, 5.0, 10.0, 20.0]))
    assert found == pytest.approx([1.0, 1.6, 0.0])


@pytest.mark.parametrize(("end", "unit"), [(12.0, "ms"), (8500.0, "ms"), (60_000.0, "ms"), (2.3e6, "s")])
def test_time_has_units_and_few_ticks(end: float, unit: str) -> None:
    axis = g.timeline([panel(2)], ROLES, dark=False, height=300, end=end)["layout"]["xaxis"]
    assert axis["title"]["text"] == f"time, {unit}"
    assert 3 <= len(axis["tickvals"]) <= 8
    assert axis["tickvals"][-1] <= end


def test_figures_are_plain_json() -> None:
    json.dumps(g.timeline([panel(4)], ROLES, dark=False, height=300, end=20, selected=1), allow_nan=False)


# ---- sweep strips


def test_a_strip_says_where_you_are_and_names_its_curves() -> None:
    rows = [g.Row("idle", ".0%", {"static": np.array([0.1, 0.5]), "continuous": np.array([0.1, 0.2])}, top=1.0)]
    figure = g.strip(np.array([1.0, 4.0]), rows, 4.0, x_title="slots", dark=False, height=200, log=True)
    (here,) = (s for s in figure["layout"]["shapes"] if s["name"] == "here")
    assert here["x0"] == here["x1"] == 4
    texts = [a["text"] for a in figure["layout"]["annotations"]]
    assert {"you are here", "static", "continuous", "idle"} <= set(texts)


def test_the_names_of_equal_curves_do_not_overlap() -> None:
    same = np.array([3.0, 3.0])
    figure = g.strip(np.array([1.0, 2.0]), [g.Row("t", "g", {"static": same, "continuous": same})], 1.0, x_title="x", dark=False,
                     height=200)
    at = [a["yshift"] for a in figure["layout"]["annotations"] if a["text"] in ("static", "continuous")]
    assert abs(at[0] - at[1]) >= 12
