"""The routing lesson's pictures: fleets → Plotly figures with alt text and a table. Pure; nothing here knows Streamlit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from explainers.kit import grammar as g
from explainers.kit.grammar import Pic
from explainers.routing.scenario import Lost, Result, lost, sessions
from sim.fleet import Decisions, FleetRun

STAGE_HEIGHT = 620
CHOICE_HEIGHT = 270
LEDGER_HEIGHT = 200
SWEEP_HEIGHT = 430
BAND_HEIGHT = 190
TOP, BOTTOM = 4, 58
"""Pixels above the first panel of the stage, and below the last: the time axis and the key."""
SENTENCE, STRIP = 40, 32
"""Pixels of a panel for its title and sentence, and for the hit rate so far."""
WIDE = 0.85
"""Share of the stage's width for the requests; the rest is the replicas' load and memory."""
MOST_BARS = 400
"""Above so many requests the stage shows the tokens of each replica in BINS bins instead of each request."""
BINS = 60
FOUND, ANEW = "hit", "miss"

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def name(result: Result, key: str) -> str:
    """What a router is called on the screen, as a title."""
    said = result.scenario.policies[key]
    return said[:1].upper() + said[1:] if said.islower() or ":" in said else said


# --- the stage --------------------------------------------------------------------------------------------------------


def stage(result: Result, *, dark: bool, selected: int | None = None, cursor_ms: float | None = None,
          answer: bool = True) -> Pic:
    """A panel a router, a lane a replica: each request where it went, as high as its prompt is long, the found part solid.

    Above the lanes the hit rate so far, beside them each replica's requests and how full its memory is at the end (at the
    cursor, where there is one). A line joins the turns of one conversation; the request that was sent past most of its memory
    is outlined. answer False: no hit rate is drawn or said.
    """
    end = axis_end_ms(result)
    sheet = g.layout(dark, STAGE_HEIGHT, margin={"l": 42, "r": 8, "t": TOP, "b": BOTTOM}, barmode="overlay", bargap=0.0)
    data: list[dict[str, Any]] = []
    notes, shapes = [], [g.cursor_line(cursor_ms, dark)]
    followed = conversation(result, selected)
    owner = sessions(result.scenario.trace)[followed[0]] + 1
    for k, key in enumerate(result.fleets):
        lanes, strip = f"y{2 * k + 1}" if k else "y", f"y{2 * k + 2}"
        high = _place(sheet, result, k, len(result.fleets), lanes, strip)
        data += [*_bars(result, key, end, lanes, dark), _path(result, key, followed, lanes, dark),
                 *_strip(result, key, strip, dark, answer), *_load(result, key, cursor_ms, lanes, dark)]
        notes += _words(result, key, high, dark, answer)
        shapes += [*_frames(result, key, end, selected, lanes, dark), _ceiling(result, strip, dark, answer)]
        if k == 0:
            notes.append(g.note("requests<br>memory", 1, high, dark, xanchor="right", align="right", yshift=-STRIP + 2,
                                yanchor="bottom", font={"size": 10, "color": g.theme(dark).muted}))
    notes.append(g.note("  ".join([*g.key((FOUND, ANEW), dark), f"–•– conversation {owner}", "<b>▭</b> lost most"]), 0, 0, dark,
                        xshift=-38, yshift=-40, yanchor="top", font={"size": 11, "color": g.theme(dark).muted}))
    title = "" if len(result.scenario.trace) <= MOST_BARS else f": {len(result.scenario.trace):,} requests in {BINS} bins"
    below = {"domain": [0, WIDE], "anchor": f"y{2 * len(result.fleets) - 1}", "showgrid": False}
    sheet["xaxis"] = g.time_axis(end, title) | below
    sheet["xaxis2"] = {"domain": [WIDE + 0.015, 1], "range": [0, 1], "visible": False, "fixedrange": True, "anchor": "y"}
    sheet |= {"annotations": notes, "shapes": shapes}
    return Pic({"data": data, "layout": sheet}, alt_stage(result, answer), lambda: table_stage(result), STAGE_HEIGHT)


def axis_end_ms(result: Result) -> float:
    """Right end of the stage's time axis, ms: the last arrival and a little room."""
    return max(1.0, _arrival_ms(result)[-1]) * 1.03


def conversation(result: Result, selected: int | None = None) -> Ints:
    """The requests of one conversation: that of `selected`; else of what round robin sent past most of its memory."""
    if selected is None:
        worst = lost(result, "round_robin")
        selected = worst.request if worst else 0
    owner = sessions(result.scenario.trace)
    return np.flatnonzero(owner == owner[selected])


def sentence(gone: Lost | None) -> str:
    """What became of the request that was sent past most of its memory."""
    if gone is None:
        return "no request was sent past its memory"
    return (f"turn {gone.turn} of conversation {gone.session} went to replica {gone.went}; "
            f"{gone.tokens:,} more of its tokens lay on {gone.lay}")


def alt_stage(result: Result, answer: bool = True) -> str:
    """The stage's finding in words; without hit rates if `answer` is False."""
    said = []
    for key, fleet in result.fleets.items():
        found = f"{g.percent(fleet.hit_rate)} of the prompt tokens found, " if answer else ""
        said.append(f"{name(result, key)}: {found}the busiest replica has {fleet.requests.max():,} of {len(fleet):,} requests, "
                    f"{sentence(lost(result, key))}")
    return f"The same requests under three routers, each where it went. {'. '.join(said)}."


def table_stage(result: Result) -> pd.DataFrame:
    """A row for each request: its conversation and turn, and under each router where it went and what was found there."""
    trace = result.scenario.trace
    columns: dict[str, Any] = {
        "request": np.arange(1, len(trace) + 1), "comes, ms": np.round(_arrival_ms(result), 1),
        "conversation": sessions(trace) + 1, "turn": result.scenario.turn, "prompt": trace.prompt,
    }
    for key, fleet in result.fleets.items():
        label = result.scenario.policies[key]
        columns |= {f"{label}: replica": fleet.replica + 1, f"{label}: found": fleet.hits,
                    f"{label}: TTFT, ms": np.round(1000 * fleet.ttft, 1)}
    return pd.DataFrame(columns)


def _arrival_ms(result: Result) -> Floats:
    trace = result.scenario.trace
    at: Floats = (trace.arrival_us - trace.arrival_us[0]) / 1000.0
    return at


def _place(sheet: dict[str, Any], result: Result, k: int, panels: int, lanes: str, strip: str) -> float:
    """The axes of the k-th panel; the upper end of its strip."""
    plot = STAGE_HEIGHT - TOP - BOTTOM
    low, high = 1 - (k + 1) / panels, 1 - k / panels - SENTENCE / plot
    replicas = len(result.scenario.joins)
    every = -(-replicas // 8)
    shown = list(range(0, replicas, every))
    sheet["yaxis" + lanes[1:]] = {
        "domain": [low, high - (STRIP + 3) / plot], "range": [0, replicas], "fixedrange": True, "zeroline": False,
        "tickvals": [replicas - i - 0.5 for i in shown], "ticktext": [str(i + 1) for i in shown], "showgrid": False,
        "title": {"text": "replica", "standoff": 2},
    }
    sheet["yaxis" + strip[1:]] = {
        "domain": [high - STRIP / plot, high], "range": [0, 1.02], "fixedrange": True, "zeroline": False, "tickvals": [0, 1],
        "ticktext": ["0 %", "100 %"], "tickfont": {"size": 9}, "showgrid": True,
    }
    return high


def _bars(result: Result, key: str, end: float, axis: str, dark: bool) -> list[dict[str, Any]]:
    """What was found and what was computed, a bar each: of each request, or with many of each replica and bin."""
    fleet, trace = result.fleets[key], result.scenario.trace
    at, found, lane = _arrival_ms(result), fleet.hits.astype(np.float64), fleet.replica
    anew, who = fleet.misses.astype(np.float64), np.arange(len(trace))
    replicas, turn, owner = len(result.scenario.joins), result.scenario.turn, sessions(trace)
    if len(trace) <= MOST_BARS:
        width, tallest = end * float(np.clip(0.6 * replicas / len(trace), 0.006, 0.016)), float(trace.prompt.max())
        says = [f"<b>request {r + 1}</b>: turn {turn[r]} of conversation {owner[r] + 1}, on replica {lane[r] + 1}<br>"
                f"{int(found[r]):,} of {trace.prompt[r]:,} tokens found" for r in who.tolist()]
    else:
        cell = lane * BINS + np.minimum((at / end * BINS).astype(np.int64), BINS - 1)
        found, anew = (np.bincount(cell, part, replicas * BINS) for part in (found, anew))
        lane, at = np.repeat(np.arange(replicas), BINS), np.tile((np.arange(BINS) + 0.5) * end / BINS, replicas)
        width, tallest, who = 0.9 * end / BINS, _tallest(result, end), np.full(replicas * BINS, -1)
        says = [f"replica {i + 1}<br>{int(f):,} of {int(f + a):,} tokens found" for i, f, a in
                zip(lane.tolist(), found.tolist(), anew.tolist(), strict=True)]
    floor, scale = replicas - 1 - lane + 0.04, 0.88 / tallest
    traces = []
    for role, base, part in ((FOUND, floor, found), (ANEW, floor + scale * found, anew)):
        some = np.flatnonzero(part > 0)
        traces.append({
            "type": "bar", "name": g.ROLES[role].label, "yaxis": axis, "x": at[some].tolist(), "y": (scale * part[some]).tolist(),
            "base": base[some].tolist(), "width": width, "marker": _marker(role, dark),
            "customdata": [[int(who[i]), says[i]] for i in some.tolist()],
            "hovertemplate": "%{customdata[1]}<br>%{x:,.0f} ms<extra></extra>",
        })
    return traces


def _marker(role: str, dark: bool) -> dict[str, Any]:
    """The role's swatch, its hatch fine enough for a bar of a few pixels and without an edge that would fill it."""
    mark = g.swatch(role, dark)
    pattern = mark["pattern"] | ({"size": 4, "solidity": 0.4} if not g.ROLES[role].solid else {})
    return mark | {"pattern": pattern, "line": mark["line"] | {"width": 0 if g.ROLES[role].solid else 0.6}}


def _tallest(result: Result, end: float) -> float:
    """The most prompt tokens of a replica in one bin, under any router."""
    cell = np.minimum((_arrival_ms(result) / end * BINS).astype(np.int64), BINS - 1)
    return max(float(np.bincount(fleet.replica * BINS + cell, fleet.trace.prompt).max()) for fleet in result.fleets.values())


def _path(result: Result, key: str, followed: Ints, axis: str, dark: bool) -> dict[str, Any]:
    """A line through the lanes to which the turns of one conversation went."""
    look, fleet = g.theme(dark), result.fleets[key]
    height = len(result.scenario.joins) - 0.5 - fleet.replica[followed]
    turn = result.scenario.turn[followed].tolist()
    return {
        "type": "scatter", "mode": "lines+markers", "name": "one conversation", "yaxis": axis, "cliponaxis": False,
        "x": _arrival_ms(result)[followed].tolist(), "y": height.tolist(), "line": {"color": look.ink, "width": 1.5},
        "marker": {"size": 7, "color": look.ink, "line": {"width": 1, "color": look.paper}},
        "customdata": [[r, f"request {r + 1}: turn {t}, to replica {fleet.replica[r] + 1}"]
                       for r, t in zip(followed.tolist(), turn, strict=True)],
        "hovertemplate": "%{customdata[1]}<extra></extra>",
    }


def _strip(result: Result, key: str, axis: str, dark: bool, answer: bool) -> list[dict[str, Any]]:
    """The hit rate so far."""
    fleet = result.fleets[key]
    rate = np.cumsum(fleet.hits) / np.cumsum(fleet.trace.prompt)
    at = _arrival_ms(result).tolist() if answer else []
    line = {"color": g.colour(FOUND, dark), "width": 2, "shape": "hv"}
    return [{"type": "scatter", "mode": "lines", "name": "hit rate so far", "yaxis": axis, "x": at,
             "y": np.round(rate, 4).tolist() if answer else [], "line": line,
             "hovertemplate": "hit rate so far: %{y:.0%}<extra></extra>"}]


def _ceiling(result: Result, axis: str, dark: bool, answer: bool) -> dict[str, Any]:
    """A dotted line at the hit rate of one infinite cache."""
    return {"name": "ceiling", "type": "line", "xref": "paper", "x0": 0, "x1": WIDE, "yref": axis, "y0": result.ceiling,
            "y1": result.ceiling, "visible": answer, "line": {"color": g.theme(dark).muted, "width": 1, "dash": "dot"}}


def full(fleet: FleetRun, decisions: Decisions, cursor_ms: float | None = None) -> Floats:
    """How full each replica's memory is, held or remembered, at the last arrival before the cursor, 0 to 1. [replicas]"""
    at = (fleet.trace.arrival_us - fleet.trace.arrival_us[0]) / 1000
    row = len(fleet) - 1 if cursor_ms is None else max(0, int(np.searchsorted(at, cursor_ms, side="right")) - 1)
    assert fleet.policy.memory is not None
    share: Floats = (decisions.used[row] + decisions.remembers[row]) / fleet.policy.memory.blocks
    return share


def _load(result: Result, key: str, cursor_ms: float | None, axis: str, dark: bool) -> list[dict[str, Any]]:
    """Beside the lanes: how many requests each replica got, and how full its memory is."""
    look, fleet = g.theme(dark), result.fleets[key]
    assert fleet.decisions is not None
    most = max(int(each.requests.max()) for each in result.fleets.values())
    lane = len(result.scenario.joins) - 1 - np.arange(len(result.scenario.joins))
    filled = full(fleet, fleet.decisions, cursor_ms)
    requests = fleet.requests.tolist()
    ink = {"color": look.muted}
    frame = {"color": g.wash("tokens", dark), "line": {"width": 1, "color": g.colour("tokens", dark)}}
    both = {"type": "bar", "orientation": "h", "xaxis": "x2", "yaxis": axis, "width": 0.3}
    return [
        both | {"name": "requests", "y": (lane + 0.69).tolist(), "x": [0.62 * n / most for n in requests], "marker": ink,
                "text": [str(n) for n in requests], "textposition": "outside", "textfont": {"size": 11, "color": look.ink},
                "cliponaxis": False, "customdata": [[-1, i + 1, n] for i, n in enumerate(requests)],
                "hovertemplate": "replica %{customdata[1]}: %{customdata[2]} requests<extra></extra>"},
        both | {"name": "memory", "y": (lane + 0.28).tolist(), "x": filled.tolist(), "marker": frame,
                "customdata": [[-1, i + 1, g.percent(f)] for i, f in enumerate(filled.tolist())],
                "hovertemplate": "replica %{customdata[1]}: memory %{customdata[2]} full<extra></extra>"},
    ]


def _words(result: Result, key: str, high: float, dark: bool, answer: bool) -> list[dict[str, Any]]:
    """A panel's title, and under it what became of the request that was sent past most of its memory."""
    look, n = g.theme(dark), result.numbers[key]
    title = f"<b>{name(result, key)}</b>"
    if answer:
        title += f"  {g.percent(n['hit_rate'])} found, TTFT p99 {g.duration(n['ttft_p99'])}"
    gone = lost(result, key)
    return [g.note(title, 0, high, dark, yshift=18, xshift=-38, font={"size": 13, "color": look.ink}),
            g.note(("▭ " if gone else "") + sentence(gone), 0, high, dark, yshift=3, xshift=-38,
                   font={"size": 11, "color": look.muted})]


def _frames(result: Result, key: str, end: float, selected: int | None, axis: str, dark: bool) -> list[dict[str, Any]]:
    """Frames round the request that lost most, and round the selected one; hidden where there is none, or bins."""
    look, fleet, gone = g.theme(dark), result.fleets[key], lost(result, key)
    few = len(fleet) <= MOST_BARS
    frames = []
    marked = (("lost", gone.request if gone else None, look.ink, 2), ("selected", selected, look.select, 3))
    for label, request, colour, width in marked:
        r = request or 0
        at, floor = float(_arrival_ms(result)[r]), len(result.scenario.joins) - 1 - int(fleet.replica[r])
        frames.append({"name": label, "type": "rect", "xref": "x", "yref": axis, "layer": "above",
                       "visible": request is not None and few, "line": {"color": colour, "width": width}, "x0": at - 0.011 * end, "x1": at + 0.011 * end,
                       "y0": floor + 0.01, "y1": floor + 0.99})
    return frames
