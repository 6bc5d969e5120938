"""The pictures of one request's life: bars and brackets are the numbers, and every picture says its finding."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from explainers.kit.grammar import Pic
from explainers.lifecycle import figures as f
from explainers.lifecycle import scenario as s
from sim.metrics import e2e
from tests.explainers.test_lifecycle_scenario import VALUES

NAMES = ("stage", "company", "leaving", "handoff", "launches", "crowd", "order")
TALL: dict[str, int] = {}


def pics(values: dict[str, Any], dark: bool = False) -> dict[str, Pic]:
    result = s.result(values)
    return {name: getattr(f, name)(result, dark=dark) for name in NAMES}


def bars(pic: Pic, name: str) -> list[tuple[float, float]]:
    """(from, to) of the bars of a trace."""
    return [(a, a + b) for trace in pic.figure["data"] if trace["type"] == "bar" and trace["name"] == name
            for a, b in zip(trace["base"], trace["x"], strict=True)]


def texts(pic: Pic) -> list[str]:
    return [note["text"] for note in pic.figure["layout"]["annotations"]]


@pytest.mark.parametrize("values", VALUES, ids=str)
@pytest.mark.parametrize("dark", [False, True])
def test_plotly_takes_every_picture_and_its_height_never_changes(values, dark) -> None:
    for name, pic in pics(values, dark).items():
        go.Figure(json.loads(json.dumps(pic.figure, allow_nan=False)))
        assert pic.figure["layout"]["height"] == pic.height == TALL.setdefault(name, pic.height)
        axes = [axis for key, axis in pic.figure["layout"].items() if key.startswith(("xaxis", "yaxis"))]
        assert axes and all(axis["fixedrange"] for axis in axes)


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_every_picture_says_its_finding_and_has_its_numbers_as_a_table(values) -> None:
    for name, pic in pics(values).items():
        assert len(pic.alt) > 60 and pic.alt.endswith("."), name
        assert "nan" not in pic.alt and len(pic.table()) > 0, name


def test_the_worked_example_is_drawn_to_scale() -> None:
    pic = f.stage(s.result({}), dark=False)
    assert (bars(pic, "waiting"), bars(pic, "prefill"), bars(pic, "decode")) == ([(0, 30)], [(30, 80)], [(80, 580)])
    said = texts(pic)
    for words in ("arrives <b>0</b>", "is admitted <b>30</b>", "first token <b>80</b>", "last token: complete <b>580</b>",
                  "queue wait <b>30 ms</b>", "TTFT <b>80 ms</b>", "100 gaps × 5 = <b>500 ms</b>", "E2E <b>580 ms</b>"):
        assert words in said
    assert pic.table()["ms"].tolist() == [30, 50, 500]


def test_a_bracket_spans_what_it_says() -> None:
    lines = [(x["x0"], x["x1"]) for x in f.stage(s.result({"arrival": 100}), dark=False).figure["layout"]["shapes"]
             if x["xref"] == "x" and x["x0"] != x["x1"]]
    assert lines == [(100, 130), (100, 180), (180, 680), (100, 680)]  # queue wait, TTFT, gaps, E2E


def test_under_the_glass_there_is_one_gap_fewer_than_tokens() -> None:
    said = texts(f.stage(s.result({}), dark=False))
    assert "A closer look: 4 tokens, 3 gaps" in said and said.count("5 ms") == 3
    said = texts(f.stage(s.result({"tokens": 1}), dark=False))
    assert "A closer look: 1 token, no gap" in said and not any("gaps ×" in text for text in said)


def test_where_it_could_leave_early_is_on_the_line_too() -> None:
    pic = f.stage(s.result({"moment": 50}), dark=False)
    (line,) = (x for x in pic.figure["layout"]["shapes"] if x.get("name") == "leaves")
    assert line["x0"] == 290 and {"cancelled ✕", "⇥ or handed off"} <= set(texts(pic))


@pytest.mark.parametrize("values", VALUES, ids=str)
@pytest.mark.parametrize("key", ["alone", "company"])
def test_a_life_is_drawn_without_holes_from_arrival_to_last_token(values, key) -> None:
    result = s.result(values)
    pieces = f.lived(result, key)
    assert pieces[0][1] == 0
    assert all(a[2] == b[1] for a, b in pairwise(pieces))
    run, r = result.runs[key], f.place(result, key)
    assert pieces[-1][2] == pytest.approx(float(e2e(run)[r]) * 1000)


def test_the_longest_gap_is_framed_and_named() -> None:
    result = s.result({})
    found = f.longest_gap(result, "company")
    assert found is not None and found[2]
    gaps = np.diff(f.tokens_ms(result, "company"))
    assert found[1] - found[0] == pytest.approx(gaps.max())
    pic = f.company(result, dark=False)
    (frame,) = (x for x in pic.figure["layout"]["shapes"] if x.get("name") == "longest gap")
    assert (frame["x0"], frame["x1"]) == found[:2]
    assert f.longest_gap(result, "alone") is None


def test_what_is_lost_is_drawn_and_flagged_only_where_something_is() -> None:
    result = s.result({})
    pic = f.leaving(result, dark=False)
    lost = [t for t in pic.figure["data"] if t["name"] == "missing"]
    assert [t["y"][-1] for t in lost] == [0, result.left.blocks]
    assert f"<b>⚑ {result.left.blocks} blocks lost for good</b>" in texts(pic)
    assert "<b>Forgets</b>: its books do not balance" in texts(pic)
    pic = f.leaving(s.result({"moment": 10, "slots": 4}), dark=False)
    assert [t["y"][-1] for t in pic.figure["data"] if t["name"] == "missing"] == [0]
    assert not any("⚑" in text or "Forgets" in text for text in texts(pic))


def test_the_chosen_link_stands_out() -> None:
    pic = f.handoff(s.result({"link": "PCIe 4.0 x16"}), dark=False)
    assert [name for name in pic.figure["data"][0]["y"] if name.startswith("<b>")] == ["<b>PCIe 4.0 x16</b>"]
    assert pic.figure["data"][0]["x"] == sorted(pic.figure["data"][0]["x"])


def test_the_gpu_never_waits_for_a_launch_that_runs_ahead() -> None:
    steps = [(a, b) for a, b in bars(f.launches(s.result({"launch": 2}), dark=False), "the GPU works on a step")]
    assert steps[:5] == [(2 + 5 * k, 7 + 5 * k) for k in range(5)]  # no dependency: one after the other
    assert steps[5:] == [(2 + 7 * k, 7 + 7 * k) for k in range(5)]  # a dependency: 2 ms between them


@pytest.mark.parametrize("launch", [0, 2, 5, 9])
def test_no_step_runs_before_it_is_enqueued_and_no_two_at_once(launch) -> None:
    pic = f.launches(s.result({"launch": launch}), dark=False)
    gpu, cpu = bars(pic, "the GPU works on a step"), bars(pic, "the CPU enqueues a step")
    for lane in (gpu[:5], gpu[5:], cpu[:len(cpu) // 2], cpu[len(cpu) // 2:]):
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(lane))
    assert all(ended <= begins + 1e-9 for (_, ended), (begins, _) in zip(cpu, gpu, strict=False))


def test_five_replies_fill_the_one_slot_in_either_order() -> None:
    pic = f.order(s.result({}), dark=False)
    for axis in ("y", "y2"):
        labels = [(base, text) for t in pic.figure["data"] if t["type"] == "bar" and t["yaxis"] == axis
                  for base, text in zip(t["base"], t["text"], strict=True) if text]
        assert [text for _, text in sorted(labels)] == (list("12345") if axis == "y" else list("42531"))
