"""The routing lesson's pictures: fleets → Plotly figures with alt text and a table. Pure; nothing here knows Streamlit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from explainers.kit import grammar as g
from explainers.kit.grammar import Pic, Row
from explainers.routing.scenario import AIBRIX, DYNAMO, LLM_D, SGLANG, STACK, Band, Lost, Result, Sweep, lost, sessions
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
PRODUCTS = frozenset({SGLANG, DYNAMO, LLM_D, AIBRIX, STACK})
"""Routers with a name of their own, written as it is."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def name(result: Result, key: str) -> str:
    """What a router is called on the screen, as a title."""
    said = result.scenario.policies[key]
    return said if said in PRODUCTS else said[:1].upper() + said[1:]


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
        shapes.append(_joining(result, lanes, dark))
        if shapes[-1]["visible"]:
            notes.append(g.note(f"replica {len(result.scenario.joins)} joins", shapes[-1]["x0"], 0.5, dark, xref="x", yref=lanes,
                                xanchor="right", yanchor="middle", xshift=-3, font={"size": 11, "color": g.theme(dark).ink}))
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
    return max(1.0, float(_arrival_ms(result)[-1])) * 1.03


def conversation(result: Result, selected: int | None = None) -> Ints:
    """The requests of one conversation: that of `selected`; else of what round robin sent past most of its memory."""
    if selected is None:
        worst = lost(result, "round_robin")
        selected = worst.request if worst else 0
    owner = sessions(result.scenario.trace)
    return np.flatnonzero(owner == owner[selected])


def sentence(gone: Lost | None, short: bool = False) -> str:
    """What became of the request that was sent past most of its memory; short: as it fits 375 px."""
    if gone is None:
        return "no request was sent past its memory"
    if short:
        return f"turn {gone.turn} of conversation {gone.session} → replica {gone.went}; {gone.tokens:,} tokens lay on {gone.lay}"
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
    at, lane = _arrival_ms(result), fleet.replica
    found: NDArray[Any] = fleet.hits.astype(np.float64)
    anew: NDArray[Any] = fleet.misses.astype(np.float64)
    who = np.arange(len(trace), dtype=np.int64)
    replicas, turn, owner = len(result.scenario.joins), result.scenario.turn, sessions(trace)
    if len(trace) <= MOST_BARS:
        width, tallest = end * float(np.clip(0.6 * replicas / len(trace), 0.006, 0.016)), float(trace.prompt.max())
        says = [f"<b>request {r + 1}</b>: turn {turn[r]} of conversation {owner[r] + 1}, on replica {lane[r] + 1}<br>"
                f"{int(found[r]):,} of {trace.prompt[r]:,} tokens found" for r in who.tolist()]
    else:
        cell = lane * BINS + np.minimum((at / end * BINS).astype(np.int64), BINS - 1)
        found, anew = np.bincount(cell, found, replicas * BINS), np.bincount(cell, anew, replicas * BINS)
        lane, at = np.repeat(np.arange(replicas), BINS), np.tile((np.arange(BINS) + 0.5) * end / BINS, replicas)
        width, tallest, who = 0.9 * end / BINS, _tallest(result, end), np.full(len(at), -1, np.int64)
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
                "text": [str(n) if len(requests) <= 8 else "" for n in requests], "textposition": "outside",
                "constraintext": "none", "textfont": {"size": 11, "color": look.ink}, "textangle": 0, "cliponaxis": False,
                "customdata": [[-1, i + 1, n] for i, n in enumerate(requests)],
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
            g.note(("▭ " if gone else "") + sentence(gone, short=True), 0, high, dark, yshift=3, xshift=-38,
                   font={"size": 11, "color": look.muted})]


def _joining(result: Result, axis: str, dark: bool) -> dict[str, Any]:
    """A line at the time when the last replica joins; hidden if it was there from the start."""
    at = 1000 * (result.scenario.joins[-1] - float(result.scenario.trace.arrival[0]))
    return {"name": "joins", "type": "line", "xref": "x", "yref": axis + " domain", "x0": at, "x1": at, "y0": 0, "y1": 1,
            "visible": result.scenario.joins[-1] > 0,
            "line": {"color": g.theme(dark).ink, "width": 1.5, "dash": "dash"}}


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
                       "visible": request is not None and few, "line": {"color": colour, "width": width},
                       "x0": at - 0.011 * end, "x1": at + 0.011 * end, "y0": floor + 0.01, "y1": floor + 0.99})
    return frames


# --- why it was sent there --------------------------------------------------------------------------------------------


def choice(result: Result, key: str, request: int, *, dark: bool) -> Pic:
    """What each replica had of one request's prompt, its load and its score when the router decided; the chosen one marked."""
    look, fleet = g.theme(dark), result.fleets[key]
    d = _decisions(fleet)
    there, load, score = d.there[request], d.load[request], d.score[request]
    replicas, took = len(load), int(fleet.replica[request])
    rows = [f"<b>▶ {i + 1}</b>" if i == took else f"{i + 1}" for i in range(replicas)]
    tone, believed = g.swatch(FOUND, dark), d.matched[request]
    columns: list[tuple[str, NDArray[Any], str]] = [("lies there, tokens", there, ",.0f"), ("in flight", load, ",.0f")]
    if np.isfinite(score).any():
        columns.append(("its score", score, ".3g"))
    data, notes = [], []
    sheet = g.layout(dark, CHOICE_HEIGHT, margin={"l": 52, "r": 10, "t": 40, "b": 26}, bargap=0.25)
    for k, (title, values, form) in enumerate(columns):
        low, high = k / len(columns) + (0.03 if k else 0), (k + 1) / len(columns) - 0.03
        axis, top = f"x{k + 1}" if k else "x", max(1e-9, float(np.nanmax(np.where(np.isfinite(values), values, 0))))
        shown = [("not there" if load[i] < 0 else "–" if not np.isfinite(v) else format(float(v), form))
                 for i, v in enumerate(values.tolist())]
        data.append({
            "type": "bar", "orientation": "h", "name": title, "xaxis": axis, "y": rows,
            "x": [max(0.0, float(v)) if np.isfinite(v) else 0.0 for v in values.tolist()],
            "marker": tone if k == 0 else {"color": look.muted}, "text": shown, "textposition": "outside", "textangle": 0,
            "textfont": {"size": 11, "color": look.ink}, "cliponaxis": False, "customdata": [[-1]] * replicas,
            "hovertemplate": f"replica %{{y}}: %{{text}} ({title})<extra></extra>",
        })
        sheet["xaxis" + axis[1:]] = {"domain": [low, high], "range": [0, 1.45 * top], "fixedrange": True, "visible": False}
        notes.append(g.note(title, low, 1, dark, yshift=2, font={"size": 11, "color": look.muted}))
    sheet["yaxis"] = {"autorange": "reversed", "type": "category", "fixedrange": True, "showgrid": False,
                      "tickfont": {"size": 12, "color": look.ink}, "title": {"text": "replica", "standoff": 2}}
    notes.append(g.note(f"<b>{name(result, key)}</b> on request {request + 1}: {_prompt(result, request)}", 0, 1, dark, yshift=18,
                        xshift=-46, font={"size": 12, "color": look.ink}))
    asked = (believed >= 0).any()
    notes.append(g.note("what the router believed lies there: " + ", ".join(f"{max(0, int(b)):,}" for b in believed[load >= 0])
                        if asked and replicas <= 6 else "" if asked else "the router does not ask what lies where", 0, 0, dark,
                        xshift=-46, yshift=-8, yanchor="top", font={"size": 11, "color": look.muted}))
    sheet["annotations"] = notes
    return Pic({"data": data, "layout": sheet}, alt_choice(result, key, request), lambda: table_choice(result, key, request),
               CHOICE_HEIGHT)


def _prompt(result: Result, request: int) -> str:
    return f"turn {result.scenario.turn[request]}, {result.scenario.trace.prompt[request]:,} tokens"


def _decisions(fleet: FleetRun) -> Decisions:
    assert fleet.decisions is not None
    return fleet.decisions


def alt_choice(result: Result, key: str, request: int) -> str:
    """The choice in words."""
    fleet = result.fleets[key]
    there, took = _decisions(fleet).there[request], int(fleet.replica[request])
    best = int(np.argmax(there))
    much = f"{there[took]:,} of its {result.scenario.trace.prompt[request]:,} prompt tokens lay there"
    more = "" if there[best] <= there[took] else f"; {there[best]:,} lay on replica {best + 1}"
    return f"{name(result, key)} sent request {request + 1} to replica {took + 1}: {much}{more}."


def table_choice(result: Result, key: str, request: int) -> pd.DataFrame:
    """A row for each replica: what lay there, what the router believed, its load, what waited, its score; who was chosen."""
    fleet = result.fleets[key]
    d, replicas = _decisions(fleet), len(result.scenario.joins)
    return pd.DataFrame({
        "replica": np.arange(1, replicas + 1), "chosen": np.arange(replicas) == fleet.replica[request],
        "tokens there": d.there[request], "tokens believed": np.where(d.matched[request] < 0, np.nan, d.matched[request]),
        "in flight": np.where(d.load[request] < 0, np.nan, d.load[request]), "waiting": d.waiting[request],
        "score": d.score[request],
    })


# --- where the prompt tokens went -------------------------------------------------------------------------------------


def ledger(result: Result, *, dark: bool) -> Pic:
    """All prompt tokens under each router: found, computed because nobody had them, computed anew."""
    look, total = g.theme(dark), float(result.scenario.trace.prompt.sum())
    parts = _parts(result)
    rows = [name(result, key) for key in result.fleets]
    data: list[dict[str, Any]] = []
    for label, marker, values, font in (
            ("found", g.swatch(FOUND, dark), parts["found"], g.bar_font(FOUND, dark)),
            ("new to all", {"color": look.grid, "line": {"width": 1, "color": look.muted}}, parts["new"],
             {"color": look.ink, "size": 11}),
            ("computed anew", g.swatch(ANEW, dark), parts["again"], g.bar_font(ANEW, dark))):
        data.append({
            "type": "bar", "orientation": "h", "name": label, "y": rows, "x": [v / total for v in values], "marker": marker,
            "text": [f"{label} {g.percent(v / total)}" for v in values], "textposition": "inside", "textangle": 0,
            "insidetextfont": font, "customdata": [[-1, f"{v:,.0f} tokens"] for v in values],
            "hovertemplate": f"{label}: %{{customdata[1]}}, %{{x:.1%}}<extra></extra>",
        })
    notes = [g.note(f"{row}: {g.count(int(result.numbers[key]['evicted']), 'block')} evicted", 0, k, dark,
                    xref="paper", yref="y", yshift=17, yanchor="bottom", font={"size": 11, "color": look.muted})
             for k, (key, row) in enumerate(zip(result.fleets, rows, strict=True))]
    sheet = g.layout(
        dark, LEDGER_HEIGHT, margin={"l": 8, "r": 8, "t": 16, "b": 30}, barmode="stack", bargap=0.45, annotations=notes,
        uniformtext=g.FITTING,
        xaxis={"range": [0, 1], "tickformat": ".0%", "fixedrange": True, "showgrid": False, "title": {"text": ""}},
        yaxis={"autorange": "reversed", "type": "category", "fixedrange": True, "visible": False})
    return Pic({"data": data, "layout": sheet}, alt_ledger(result), lambda: table_ledger(result), LEDGER_HEIGHT)


def _parts(result: Result) -> dict[str, list[float]]:
    """Prompt tokens found, new to every cache, and computed anew, by router; they add up to all prompt tokens."""
    total = float(result.scenario.trace.prompt.sum())
    found = [float(fleet.hits.sum()) for fleet in result.fleets.values()]
    again = [result.numbers[key]["again"] for key in result.fleets]
    return {"found": found, "new": [total - f - a for f, a in zip(found, again, strict=True)], "again": again}


def alt_ledger(result: Result) -> str:
    """The ledger in words."""
    total, parts = float(result.scenario.trace.prompt.sum()), _parts(result)
    said = [f"{name(result, key)}: {g.percent(parts['found'][k] / total)} found, {g.percent(parts['again'][k] / total)} computed "
            f"anew" for k, key in enumerate(result.fleets)]
    return f"Of all prompt tokens: {'; '.join(said)}. One infinite cache would find {g.percent(result.ceiling)}."


def table_ledger(result: Result) -> pd.DataFrame:
    """A row for each router, in tokens, and the blocks of remembered prefix that were given away."""
    parts = _parts(result)
    return pd.DataFrame({
        "router": [name(result, key) for key in result.fleets], "found": parts["found"], "new to all": parts["new"],
        "computed anew": parts["again"], "evicted, blocks": [result.numbers[key]["evicted"] for key in result.fleets],
    })


# --- the sweep and the band -------------------------------------------------------------------------------------------

_OVER = {"cache": "KV memory per replica, tokens", "replicas": "replicas", "rate": "conversations/s"}
_SHORT = {"round_robin": "robin", "sticky": "sticky", "aware": "third"}


def sweep(curve: Sweep, *, dark: bool) -> Pic:
    """Hit rate and p99 TTFT over the whole range of one knob; over the memory, the hit rate of every size as well."""
    rows = [Row("hit rate (dotted: one infinite cache)", ".0%", {_SHORT[k]: y for k, y in curve.hit_rate.items()}, 1.0),
            Row("TTFT p99, s", "~g", {_SHORT[k]: y for k, y in curve.ttft_p99.items()})]
    figure = g.strip(curve.x, rows, curve.x_here, x_title=_OVER[curve.over], dark=dark, height=SWEEP_HEIGHT, log=True,
                     note_below=curve.note)
    look = g.theme(dark)
    figure["data"].append({"type": "scatter", "mode": "lines", "name": "one infinite cache", "x": curve.x.tolist(), "yaxis": "y",
                           "y": curve.ceiling.tolist(), "line": {"color": look.muted, "width": 1, "dash": "dot"},
                           "hovertemplate": "one infinite cache: %{y:.0%}<extra></extra>"})
    for k, (key, (size, rate)) in enumerate(curve.curves.items()):
        line = {"color": g.policy_line(k, dark)["color"], "width": 1, "shape": "hv"}
        inside = size >= curve.x[0]
        figure["data"].append({"type": "scatter", "mode": "lines", "name": f"{_SHORT[key]}, every size", "yaxis": "y",
                               "x": size[inside].tolist(), "y": np.round(rate[inside], 4).tolist(), "line": line,
                               "hoverinfo": "skip"})
    figure["layout"]["xaxis"]["ticktext"] = [_tick(curve, v) for v in curve.x.tolist()]
    return Pic(figure, alt_sweep(curve), lambda: table_sweep(curve), SWEEP_HEIGHT)


def _tick(curve: Sweep, value: float) -> str:
    """What stands at a value on the axis: every other one, so that there is room on a narrow screen."""
    if curve.over == "cache":
        return f"{value / 1024:.0f}K" if value in (8192, 16384, 32768, 65536, 131072, 262144) else ""
    return f"{value:g}" if value in (0.25, 0.5, 1, 2, 4, 8, 16) else ""


def alt_sweep(curve: Sweep) -> str:
    """The sweep's finding in words: at both ends and here."""
    said = []
    for i in dict.fromkeys((0, int(np.flatnonzero(curve.x == curve.x_here)[0]), len(curve.x) - 1)):
        rates = g.listed([f"{g.percent(float(y[i]))} with {curve.names[k]}" for k, y in curve.hit_rate.items()])
        said.append(f"at {curve.x[i]:,g} the hit rate is {rates}")
    return f"Sweep over {_OVER[curve.over]}: {'; '.join(said)}. {curve.note}".rstrip()


def table_sweep(curve: Sweep) -> pd.DataFrame:
    """A row for each value of the knob, as simulated."""
    return pd.DataFrame({
        _OVER[curve.over]: curve.x, **{f"{curve.names[k]}: hit rate": y for k, y in curve.hit_rate.items()},
        **{f"{curve.names[k]}: TTFT p99, s": y for k, y in curve.ttft_p99.items()}, "one infinite cache": curve.ceiling,
    })


def band(spread: Band, result: Result, *, dark: bool) -> Pic:
    """The hit rate over the seeds: a ring for each, the median, and the run on the screen."""
    rows = [g.Seeds(_SHORT[key], rates, result.numbers[key]["hit_rate"], g.percent(spread.median(key)))
            for key, rates in spread.hit_rate.items()]
    title = f"hit rate, {len(spread.seeds)} seeds"
    figure = g.over_seeds(rows, spread.seeds, "%{x:.0%}", dark=dark, height=BAND_HEIGHT, left=52, top=22,
                          xaxis={"range": [0, 1.02], "tickformat": ".0%", "title": {"text": title}})
    return Pic(figure, alt_band(spread, result), lambda: table_band(spread, result), BAND_HEIGHT)


def alt_band(spread: Band, result: Result) -> str:
    """The band's finding in words."""
    said = [f"{name(result, key)}: median {g.percent(spread.median(key))}, from {g.percent(float(y.min()))} to "
            f"{g.percent(float(y.max()))}" for key, y in spread.hit_rate.items()]
    return f"Hit rate over {len(spread.seeds)} seeds. {'; '.join(said)}."


def table_band(spread: Band, result: Result) -> pd.DataFrame:
    """A row for each seed."""
    names = result.scenario.policies
    return pd.DataFrame({"seed": spread.seeds, **{f"{names[k]}: hit rate": y for k, y in spread.hit_rate.items()},
                         **{f"{names[k]}: TTFT p99, s": y for k, y in spread.ttft_p99.items()}})
