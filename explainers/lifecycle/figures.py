"""The pictures of one request's life: a line of time with brackets, then real runs. Pure; nothing here knows Streamlit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from explainers.kit import grammar as g
from explainers.kit.grammar import Figure, Pic, Row
from explainers.lifecycle.scenario import CROWD, LINKS, Band, Result, Sweep, Worked, gap_with_launch
from sim.lifecycle import life
from sim.metrics import e2e, makespan, output_throughput, queue_wait, slot_segments, token_times, tpot, ttft
from sim.run import Run

STAGE_HEIGHT, COMPANY_HEIGHT, LEAVING_HEIGHT, HANDOFF_HEIGHT = 366, 300, 380, 230
LAUNCH_HEIGHT, CROWD_HEIGHT, ORDER_HEIGHT, SWEEP_HEIGHT, BAND_HEIGHT = 236, 250, 210, 320, 120
NARROW = 330
"""Pixels of a time axis on a screen of 375 px."""
CHAR = 6.4
"""Pixels of a character of 12 px text, about."""
NAMES = {"alone": "Alone", "company": "In company"}
KEPT = {"cancelled": "Takes everything back", "leaked": "Forgets"}
"""What the server does with what the request held."""
ORDER_NAMES = {"fcfs": "First come, first served", "shortest": "Shortest first"}
LAUNCHED = {False: "No dependency: the CPU runs ahead", True: "A dependency: it waits for the token"}
"""By whether the next step can only be enqueued when the token before is there."""
STATES = ("waiting", "prefill", "decode", "again")
LONG = 1.5
"""A gap so many times the median is a long one."""

Axes = tuple[str, str]


# --- drawing on a sheet whose y axis is in pixels ---------------------------------------------------------------------


def _pixels(height: int, low: float = 0.0, high: float = 1.0) -> dict[str, Any]:
    """A hidden axis of so many pixels, 0 on top, in this share of the sheet."""
    return {"range": [height, 0], "domain": [low, high], "visible": False, "fixedrange": True}


def _bars(role: str, dark: bool, pieces: list[tuple[float, float, float, str]], thick: float, axes: Axes = ("x", "y"),
          shade: int = 0) -> dict[str, Any]:
    """One trace of bars in a role: (from, to, y, label)."""
    marker = g.swatch(role, dark)
    if shade:
        marker = marker | {"color": g.colour(role, dark, shade)}
    return {
        "type": "bar", "orientation": "h", "name": g.ROLES[role].label, "xaxis": axes[0], "yaxis": axes[1], "width": thick,
        "base": [a for a, _, _, _ in pieces], "x": [b - a for a, b, _, _ in pieces], "y": [y for _, _, y, _ in pieces],
        "marker": marker, "text": [label for _, _, _, label in pieces], "textposition": "inside", "textangle": 0,
        "insidetextanchor": "middle", "insidetextfont": g.bar_font(role, dark), "constraintext": "none", "cliponaxis": False,
        "customdata": [[-1, f"{a:,.1f} to {b:,.1f} ms"] for a, b, _, _ in pieces],
        "hovertemplate": f"<b>{g.ROLES[role].says}</b><br>%{{customdata[1]}}<extra></extra>",
    }


def _fits(label: str, width: float, span: float) -> str:
    """The label, if it fits on a bar of this width even on a narrow screen."""
    return label if width / span * NARROW > CHAR * len(label) else ""


def _ticks(times: list[float], y: float, thick: float, span: float, dark: bool) -> dict[str, Any]:
    """A thin line for each token across its bar; none where they would stand closer than 2 px on a narrow screen."""
    shown = times if len(times) > 1 and (times[-1] - times[0]) / span * NARROW > 2 * len(times) else []
    half = thick / 2
    return {"type": "scatter", "mode": "lines", "name": "tokens", "hoverinfo": "skip",
            "x": [x for t in shown for x in (t, t, None)], "y": [v for _ in shown for v in (y - half, y + half, None)],
            "line": {"color": g.theme(dark).paper, "width": 1}}


def _bracket(a: float, b: float, y: float, label: str, span: float, dark: bool, axes: Axes = ("x", "y"),
             start: float = 0.0) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Shapes and label of a bracket from a to b at y px; the label below it, or beside it where it is narrower."""
    ink = g.theme(dark).ink
    line = {"type": "line", "xref": axes[0], "yref": axes[1], "line": {"color": ink, "width": 1.5}}
    shapes = [line | {"x0": a, "x1": b, "y0": y, "y1": y}, *(line | {"x0": x, "x1": x, "y0": y - 4, "y1": y + 4} for x in (a, b))]
    plain = label.replace("<b>", "").replace("</b>", "")
    more = {"xref": axes[0], "yref": axes[1]}
    if (b - a) / span * NARROW > CHAR * len(plain) + 24:
        more["bgcolor"] = g.theme(dark).paper
        return shapes, g.note(label, (a + b) / 2, y, dark, xanchor="center", yanchor="middle", **more)
    if (b - start) / span * NARROW + CHAR * len(plain) < NARROW:
        return shapes, g.note(label, b, y, dark, yanchor="middle", xshift=5, **more)
    return shapes, g.note(label, a, y, dark, xanchor="right", yanchor="middle", xshift=-5, **more)


def _tag(label: str, a: float, b: float, y: float, span: float, dark: bool) -> list[dict[str, Any]]:
    """The name of a bar of tokens, set off from the lines between them; none where it does not fit."""
    if not _fits(label + "  ", b - a, span):
        return []
    font = g.bar_font("decode", dark)
    return [g.note(label, (a + b) / 2, y, dark, xref="x", yref="y", xanchor="center", yanchor="middle", font=font,
                   bgcolor=g.colour("decode", dark), borderpad=2)]


def _sheet(data: list[dict[str, Any]], notes: list[dict[str, Any]], shapes: list[dict[str, Any]], height: int, dark: bool,
           **more: Any) -> Figure:
    layout = g.layout(dark, height, barmode="overlay", bargap=0.0, **{"margin": {"l": 12, "r": 12, "t": 4, "b": 36}, **more})
    return {"data": data, "layout": layout | {"annotations": notes, "shapes": shapes}}


# --- the worked example -----------------------------------------------------------------------------------------------


def stage(result: Result, *, dark: bool, selected: int | None = None, cursor_ms: float | None = None,
          answer: bool = True) -> Pic:
    """The worked example as one line of time: states as bars, instants above them, durations as brackets below.

    Nothing in it is selected, it has no time cursor, and it never holds the answer; the arguments are every lesson's.
    """
    w, look = result.worked, g.theme(dark)
    end = w.last * 1.03
    y, thick = 116.0, 34.0
    data = [_bars(role, dark, [(a, b, y, _fits(role, b - a, end) if role != "decode" else "")] if b > a else [], thick)
            for role, a, b in (("waiting", w.arrival, w.admitted), ("prefill", w.admitted, w.first), ("decode", w.first, w.last))]
    tokens = [w.first + k * w.gap for k in range(w.tokens)]
    data.append(_ticks(tokens[1:-1], y, thick, end, dark))
    notes, shapes = _instants(w, int(result.scenario.values["moment"]) / 100, y - thick / 2, thick, end, dark)
    notes += _tag("decode", w.first, w.last, y, end, dark)
    for a, b, row, label in _durations(w):
        drawn, told = _bracket(a, b, y + thick / 2 + 18 + 24 * row, label, end, dark)
        shapes, notes = [*shapes, *drawn], [*notes, told]
    height = STAGE_HEIGHT - 8
    closer, closer_notes, closer_shapes, axis = _closer(w, height - 22.0, dark)
    figure = _sheet([*data, *closer], [*notes, *closer_notes], [*shapes, *closer_shapes], STAGE_HEIGHT, dark,
                    margin={"l": 12, "r": 12, "t": 4, "b": 4}, xaxis=g.time_axis(end, ""), yaxis=_pixels(height), xaxis2=axis,
                    yaxis2=_pixels(height) | {"overlaying": "y"})
    figure["layout"]["xaxis"] |= {"showgrid": False, "position": 1 - 242 / height, "showline": True, "linecolor": look.muted,
                                  "anchor": "free"}
    del figure["layout"]["xaxis"]["title"]
    under = {"xref": "paper", "yref": "y", "yanchor": "middle", "font": {"size": 12, "color": look.muted}}
    figure["layout"]["annotations"] += [
        g.note("  ".join(g.key(("waiting", "prefill", "decode"), dark)), 0, 278, dark, **under),
        g.note("time, ms", 1, 278, dark, xanchor="right", **under)]
    return Pic(figure, alt_stage(result), lambda: table_stage(result), STAGE_HEIGHT)


def _instants(w: Worked, early: float, top: float, thick: float, end: float,
              dark: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What happens when: a line up from the bar to its name, each in a row of its own; and where it could leave, `early`."""
    notes, shapes = [], []
    leaves = w.arrival + early * w.e2e
    told: tuple[tuple[str, float], ...] = (("arrives", w.arrival), ("is admitted", w.admitted), ("first token", w.first),
                                           ("last token: complete", w.last))
    if w.gaps == 0:
        told = (*told[:2], ("first and last token: complete", w.first))
    for row, (name, at) in enumerate(told):
        y, right = 9.0 + 18 * row, at > 0.6 * end
        shapes.append({"type": "line", "xref": "x", "yref": "y", "x0": at, "x1": at, "y0": y - 6, "y1": top,
                       "line": {"color": g.theme(dark).muted, "width": 1}})
        notes.append(g.note(f"{name} <b>{at:,.0f}</b>", at, y, dark, xref="x", yref="y", yanchor="middle",
                            bgcolor=g.theme(dark).paper, xanchor="right" if right else "left", xshift=-3 if right else 3))
    shapes.append({"name": "leaves", "type": "line", "xref": "x", "yref": "y", "x0": leaves, "x1": leaves, "y0": top - 24,
                   "y1": top + thick, "line": {"color": g.theme(dark).ink, "width": 2, "dash": "dot"}})
    muted = {"xref": "x", "yref": "y", "yanchor": "middle", "font": {"color": g.theme(dark).muted, "size": 12}}
    if leaves < 0.35 * end:
        return [*notes, g.note("✕ or ⇥: leaves early", leaves, top - 18, dark, xshift=4, **muted)], shapes
    notes.append(g.note("cancelled ✕", leaves, top - 18, dark, xanchor="right", xshift=-4, **muted))
    if leaves < 0.65 * end:
        notes.append(g.note("⇥ or handed off", leaves, top - 18, dark, xshift=4, **muted))
    else:
        notes[-1]["text"] = "leaves early: ✕ or ⇥"
    return notes, shapes


def _durations(w: Worked) -> list[tuple[float, float, int, str]]:
    """The brackets: from, to, row, label."""
    gaps = f"{w.gaps:,} gap{'' if w.gaps == 1 else 's'} × {w.gap:g} = <b>{w.gaps * w.gap:,.0f} ms</b>"
    return [
        (w.arrival, w.admitted, 0, f"queue wait <b>{w.wait:,.0f} ms</b>"),
        (w.arrival, w.first, 1, f"TTFT <b>{w.ttft:,.0f} ms</b>"),
        *([(w.first, w.last, 2, gaps)] if w.gaps else []), (w.arrival, w.last, 3, f"E2E <b>{w.e2e:,.0f} ms</b>")]


def _closer(w: Worked, y: float,
            dark: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """The first tokens under a glass: one gap fewer than tokens."""
    shown = min(w.tokens, 4)
    look = g.theme(dark)
    gaps = shown - 1
    words = f"A closer look: {g.count(shown, 'token')}, {g.count(gaps, 'gap') if gaps else 'no gap'}"
    notes = [g.note(words, -0.5, y - 27, dark, xref="x2", yref="y2", yanchor="middle", font={"size": 12, "color": look.muted})]
    shapes: list[dict[str, Any]] = []
    for k in range(gaps):
        drawn, told = _bracket(k + 0.17, k + 0.83, y, f"{w.gap:g} ms", 4, dark, ("x2", "y2"))
        shapes, notes = [*shapes, *drawn], [*notes, told]
    data = [{"type": "scatter", "mode": "markers+text", "name": "first tokens", "xaxis": "x2", "yaxis": "y2", "cliponaxis": False,
             "x": list(range(shown)), "y": [y] * shown, "text": [str(k + 1) for k in range(shown)], "hoverinfo": "skip",
             "textfont": {"color": look.on_solid, "size": 12}, "marker": {"size": 26, "color": g.colour("decode", dark)}}]
    return data, notes, shapes, {"range": [-0.5, 3.5], "visible": False, "fixedrange": True, "overlaying": "x", "anchor": "y2"}


def alt_stage(result: Result) -> str:
    """The worked example in words."""
    w = result.worked
    last = f", then {g.count(w.gaps, 'gap')} of {w.gap:g} ms, last token at {w.last:,.0f} ms"
    if not w.gaps:
        last = ", which is also its last"
    return (f"One request on a line of time: it arrives at {w.arrival:,.0f} ms, is admitted at {w.admitted:,.0f} ms, has its "
            f"first token at {w.first:,.0f} ms{last}. Queue wait {w.wait:,.0f} ms, TTFT {w.ttft:,.0f} ms, E2E {w.e2e:,.0f} ms.")


def table_stage(result: Result) -> pd.DataFrame:
    """A row for each state of the worked example."""
    w = result.worked
    rows = [("waiting", w.arrival, w.admitted), ("prefill", w.admitted, w.first), ("decode", w.first, w.last)]
    return pd.DataFrame([(name, a, b, b - a) for name, a, b in rows], columns=["state", "from, ms", "to, ms", "ms"])


# --- alone and in company ---------------------------------------------------------------------------------------------


def place(result: Result, key: str) -> int:
    """Index of our request in a run."""
    return 0 if key == "alone" else result.scenario.me


def lived(result: Result, key: str) -> list[tuple[str, float, float, str]]:
    """Our request's states in a run: role, from and to in ms after its arrival, and why it waits."""
    run, r = result.runs[key], place(result, key)
    zero, first = float(run.trace.arrival_us[r]), float(run.first_token_us[r])
    caught = [event.at_us for event in run.events if event.kind == "caught up" and event.request == r]
    pieces, back = list[tuple[str, float, float, str]](), False
    for stage_ in life(run, r):
        a, b = stage_.start_us, stage_.end_us
        if stage_.state == "waiting":
            pieces.append(("waiting", a, b, stage_.cause))
        elif stage_.state == "running":
            again = min((t for t in caught if a < t <= b), default=b) if back else a
            answered = min(max(first, again), b) if first == first else b
            pieces += [("again", a, again, ""), ("prefill", again, answered, ""), ("decode", answered, b, "")]
        back = back or stage_.state == "preempted"
    return [(role, (a - zero) / 1000, (b - zero) / 1000, why) for role, a, b, why in pieces if b > a]


def _merged(pieces: list[tuple[str, float, float, str]]) -> list[tuple[str, float, float]]:
    """The pieces as drawn: a wait is one bar, whatever its causes."""
    drawn = list[tuple[str, float, float]]()
    for role, a, b, _ in pieces:
        if drawn and drawn[-1][0] == role and drawn[-1][2] == a:
            a = drawn.pop()[1]
        drawn.append((role, a, b))
    return drawn


def tokens_ms(result: Result, key: str) -> g.Floats:
    """When each of its tokens came in a run, ms after its arrival."""
    run, r = result.runs[key], place(result, key)
    return token_times(run, r) * 1000 - float(run.trace.arrival_us[r]) / 1000


def longest_gap(result: Result, key: str) -> tuple[float, float, bool] | None:
    """From, to (ms after its arrival) of its longest gap, and whether a step in it also read a prompt; None: no long gap."""
    times = tokens_ms(result, key)
    gaps = np.diff(times)
    if not len(gaps) or gaps.max() < LONG * np.median(gaps):
        return None
    k, run = int(np.argmax(gaps)), result.runs[key]
    zero = float(run.trace.arrival_us[place(result, key)]) / 1000
    reading = run.steps.prefilling > 0
    start, end = run.steps.start_us[reading] / 1000 - zero, run.steps.end_us[reading] / 1000 - zero
    return float(times[k]), float(times[k + 1]), bool(((start < times[k + 1] - 1e-6) & (end > times[k] + 1e-6)).any())


def company(result: Result, *, dark: bool, cursor_ms: float | None = None) -> Pic:
    """The same request alone and in company on one axis of time: what it waits, when its tokens come, brackets below."""
    end = max(float(tokens_ms(result, key)[-1]) for key in NAMES) * 1.03
    height, thick = COMPANY_HEIGHT - 40, 30.0
    rows = {key: 42.0 + 128 * k for k, key in enumerate(NAMES)}
    pieces: dict[str, list[tuple[float, float, float, str]]] = {role: [] for role in STATES}
    notes, shapes, ticks = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
    for key, y in rows.items():
        for role, a, b in _merged(lived(result, key)):
            pieces[role].append((a, b, y, _fits(g.ROLES[role].label, b - a, end) if role != "decode" else ""))
            notes += _tag("decode", a, b, y, end, dark) if role == "decode" else []
        times = tokens_ms(result, key)
        ticks.append(_ticks(times.tolist(), y, thick, end, dark))
        title = f"<b>{NAMES[key]}</b>{_long_words(result, key)}"
        notes.append(g.note(title, 0, y - 27, dark, xref="x", yref="y", yanchor="middle"))
        for row, (b, label) in enumerate(_measures(result, key)):
            drawn, told = _bracket(0, b, y + 29 + 24 * row, label, end, dark)
            shapes, notes = [*shapes, *drawn], [*notes, told]
        shapes += _gap_frame(result, key, y, thick, dark)
    data = [_bars(role, dark, found, thick) for role, found in pieces.items()] + ticks
    shapes.append(g.cursor_line(cursor_ms, dark))
    figure = _sheet(data, notes, shapes, COMPANY_HEIGHT, dark, yaxis=_pixels(height),
                    xaxis=g.time_axis(end, " after its arrival"))
    return Pic(figure, alt_company(result), lambda: table_company(result), COMPANY_HEIGHT)


def _measures(result: Result, key: str) -> list[tuple[float, str]]:
    run, r = result.runs[key], place(result, key)
    first, last = float(ttft(run)[r]), float(e2e(run)[r])
    return [(first * 1000, f"TTFT <b>{g.duration(first)}</b>"), (last * 1000, f"E2E <b>{g.duration(last)}</b>")]


def _long_words(result: Result, key: str) -> str:
    found = longest_gap(result, key)
    return f": longest gap {g.duration((found[1] - found[0]) / 1000)}" if found else ""


def _gap_frame(result: Result, key: str, y: float, thick: float, dark: bool) -> list[dict[str, Any]]:
    found = longest_gap(result, key)
    if found is None:
        return []
    return [{"name": "longest gap", "type": "rect", "xref": "x", "yref": "y", "x0": found[0], "x1": found[1], "layer": "above",
             "y0": y - thick / 2 - 3, "y1": y + thick / 2 + 3, "line": {"color": g.theme(dark).ink, "width": 2}}]


def alt_company(result: Result) -> str:
    """The two lives in words."""
    said = []
    for key, name in NAMES.items():
        run, r = result.runs[key], place(result, key)
        said.append(f"{name}: queue wait {g.duration(float(queue_wait(run)[r]))}, TTFT {g.duration(float(ttft(run)[r]))}, E2E "
                    f"{g.duration(float(e2e(run)[r]))}{_long_words(result, key).replace(':', ',')}")
    return f"The same request on one axis of time. {'; '.join(said)}."


def table_company(result: Result) -> pd.DataFrame:
    """A row for each state of our request in either run."""
    rows = [(NAMES[key], g.ROLES[role].says, a, b, why) for key in NAMES for role, a, b, why in lived(result, key)]
    return pd.DataFrame(rows, columns=["run", "state", "from, ms", "to, ms", "why it waits"])


# --- leaving early ----------------------------------------------------------------------------------------------------


def leaving(result: Result, *, dark: bool, cursor_ms: float | None = None) -> Pic:
    """Its life until it leaves, and the blocks of the KV memory after its arrival: given back, or lost."""
    shown = [key for key in KEPT if key in result.books]
    zero = float(result.scenario.trace.arrival_us[result.scenario.me])
    end = max(float(result.books[key].end_us[-1]) - zero for key in shown) / 1000 * 1.03 or 1.0
    asked, gone = (result.left.asked_us - zero) / 1000, (result.left.gone_us - zero) / 1000
    top, gap = 0.80, 0.12
    each = (top - gap * len(shown)) / len(shown) if shown else 0.0
    data, notes, axes = _leaving_life(result, asked, gone, end, top, dark)
    shapes: list[dict[str, Any]] = [
        g.cursor_line(cursor_ms, dark),
        {"name": "left", "type": "line", "xref": "x", "yref": "paper", "x0": gone, "x1": gone, "y0": 0, "y1": 0.87,
         "layer": "above", "line": {"color": g.theme(dark).ink, "width": 1.5, "dash": "dot"}}]
    for k, key in enumerate(shown):
        high = top - gap * (k + 1) - each * k
        axis = f"y{k + 2}"
        data += _areas(result, key, axis, zero, end, dark)
        axes[f"yaxis{k + 2}"] = {"domain": [high - each, high], "range": [0, _pool(result)], "fixedrange": True, "nticks": 3,
                                 "showgrid": False, "title": {"text": "blocks", "standoff": 2}}
        notes.append(g.note(_kept_words(result, key), 0, high, dark, yshift=3))
        notes += _lost_tag(result, key, axis, gone, end, dark)
    anchor = f"y{len(shown) + 1}" if shown else "y"
    figure = _sheet(data, notes, shapes, LEAVING_HEIGHT, dark, margin={"l": 44, "r": 12, "t": 4, "b": 52},
                    xaxis=g.time_axis(end, " after its arrival") | {"anchor": anchor}, **axes)
    figure["layout"]["annotations"] += _key(figure, bool(result.left.blocks), dark)
    return Pic(figure, alt_leaving(result), lambda: table_leaving(result), LEAVING_HEIGHT)


def _key(figure: Figure, lost: bool, dark: bool) -> list[dict[str, Any]]:
    """What the areas are, below the axis, whose title gives way to it."""
    areas = [("tokens", "our request", "■"), ("nothing", "other requests", "■")] + ([("preempted", "lost", "▦")] if lost else [])
    entries = [f'<span style="color:{g.colour(role, dark)}">{mark}</span> {name}' for role, name, mark in areas]
    muted = {"size": 11, "color": g.theme(dark).muted}
    title = figure["layout"]["xaxis"].pop("title")["text"]
    return [g.note("  ".join(entries), 0, 0, dark, yshift=-35, yanchor="top", font=muted),
            g.note(title, 1, 0, dark, yshift=-20, xanchor="right", yanchor="top", font=muted)]


def _pool(result: Result) -> int:
    memory = result.scenario.policy.memory
    assert memory is not None
    return memory.blocks


def _leaving_life(result: Result, asked: float, gone: float, end: float, top: float,
                  dark: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """The line of its life with the mark of its end."""
    pieces: dict[str, list[tuple[float, float, float, str]]] = {role: [] for role in STATES}
    for role, a, b in _merged(lived(result, "cancelled")):
        pieces[role].append((a, b, 40.0, _fits(g.ROLES[role].label, b - a, end)))
    data = [_bars(role, dark, found, 22) for role, found in pieces.items()]
    look = g.theme(dark)
    data.append({"type": "scatter", "mode": "markers", "name": "leaves", "x": [gone], "y": [40], "hoverinfo": "skip",
                 "cliponaxis": False, "marker": {"symbol": "x", "size": 11, "color": look.ink}})
    right = gone > 0.5 * end
    words = f"gives up <b>{asked:,.0f}</b>, gone <b>{gone:,.0f} ms</b>"
    note = g.note(words, gone, 16, dark, xref="x", yref="y", yanchor="middle", xanchor="right" if right else "left",
                  xshift=-3 if right else 3)
    return data, [note], {"yaxis": _pixels(58, top, 1.0)}


def _areas(result: Result, key: str, axis: str, zero: float, end: float, dark: bool) -> list[dict[str, Any]]:
    """Blocks over time, stacked: what nobody holds and nobody can give out at the bottom, ours, the others'."""
    b = result.books[key]
    x = np.append(np.maximum((b.start_us - zero) / 1000, 0.0), end)
    since = max(int(np.searchsorted(b.start_us, zero, side="right")) - 1, 0)
    traces = []
    for name, role, values in (("missing", "preempted", b.missing), ("our request", "tokens", b.ours),
                               ("other requests", "nothing", b.others)):
        tone = g.swatch(role, dark)
        y = np.append(values, values[-1])
        traces.append({
            "type": "scatter", "mode": "lines", "name": name, "yaxis": axis, "stackgroup": axis, "x": x[since:].tolist(),
            "y": y[since:].tolist(), "line": {"width": 0.5, "shape": "hv", "color": g.colour(role, dark)},
            "fillcolor": g.wash(role, dark) if role == "nothing" else tone["color"],
            **({"fillpattern": tone["pattern"]} if role == "preempted" else {}),
            "hovertemplate": f"{name}: %{{y:,}} blocks at %{{x:,.0f}} ms<extra></extra>"})
    return traces


def _kept_words(result: Result, key: str) -> str:
    lost = int(result.books[key].missing[-1])
    return f"<b>{KEPT[key]}</b>: its books {'do not balance' if lost else 'balance'}"


def _lost_tag(result: Result, key: str, axis: str, gone: float, end: float, dark: bool) -> list[dict[str, Any]]:
    """The flag on what is lost, and the names of the other areas where there is room."""
    look, book = g.theme(dark), result.books[key]
    lost = int(book.missing[-1])
    if not lost:
        return []
    return [g.note(f"<b>⚑ {g.count(lost, 'block')} lost for good</b>", end, lost, dark, xref="x", yref=axis, xanchor="right",
                   yanchor="bottom", bgcolor=look.ink, borderpad=2, font={"size": 11, "color": look.paper})]


def alt_leaving(result: Result) -> str:
    """What is given back, when, and what is lost where the server forgets."""
    left = result.left
    zero = float(result.scenario.trace.arrival_us[result.scenario.me])
    when = f"Its client gives up {g.duration((left.asked_us - zero) / 1e6)} after its arrival; it is gone at " \
           f"{g.duration((left.gone_us - zero) / 1e6)}"
    if not left.blocks:
        return f"{when}. It held no block, so nothing changes hands."
    return (f"{when}, and its {g.count(left.blocks, 'block')} are free. A server that forgets never gets them back: its books "
            f"are {g.count(left.blocks, 'block')} short from then on.")


def table_leaving(result: Result) -> pd.DataFrame:
    """The books: a row for each stretch of steps."""
    zero = float(result.scenario.trace.arrival_us[result.scenario.me])
    parts = [pd.DataFrame({
        "server": KEPT[key], "from, ms": (b.start_us - zero) / 1000, "our request": b.ours, "other requests": b.others,
        "free": b.free, "missing": b.missing}) for key, b in result.books.items()]
    return pd.concat(parts, ignore_index=True)


def handoff(result: Result, *, dark: bool) -> Pic:
    """How long its KV takes over each link, beside computing it anew; the chosen link in ink."""
    t, chosen = result.transfer, str(result.scenario.values["link"])
    names = [*t.over_ms, "Compute it anew"]
    ms = [*t.over_ms.values(), t.anew_ms]
    order = np.argsort(ms, kind="stable").tolist()
    look = g.theme(dark)
    ends = ["<b>" + names[k] + "</b>" if names[k] == chosen else names[k] for k in order]
    colours = [g.colour("again", dark) if names[k] == "Compute it anew" else look.ink if names[k] == chosen else look.muted
               for k in order]
    data = [{"type": "bar", "orientation": "h", "name": "time", "y": ends, "x": [ms[k] for k in order], "width": 0.6,
             "marker": {"color": colours}, "text": [g.duration(ms[k] / 1000) for k in order], "textposition": "outside",
             "cliponaxis": False, "textfont": {"color": look.ink, "size": 12},
             "customdata": [[-1] for _ in order], "hovertemplate": "%{y}: %{text}<extra></extra>"}]
    most = max(max(ms), 1e-9)
    axis = g.time_axis(most * 1.28, "")
    figure = _sheet(data, [], [], HANDOFF_HEIGHT, dark, margin={"l": 168, "r": 12, "t": 6, "b": 36}, xaxis=axis,
                    yaxis={"autorange": "reversed", "fixedrange": True, "showgrid": False,
                           "tickfont": {"size": 11, "color": look.ink}})
    return Pic(figure, alt_handoff(result), lambda: table_handoff(result), HANDOFF_HEIGHT)


def megabytes(size: float) -> str:
    """ "0 MB", "71.4 MB", "1.2 GB"."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB" if size else "0 MB"


def alt_handoff(result: Result) -> str:
    """What travels and how long."""
    t, chosen = result.transfer, str(result.scenario.values["link"])
    return (f"{megabytes(t.kv_bytes)} of keys and values take {g.duration(t.over_ms[chosen] / 1000)} over {chosen}, and "
            f"{g.duration(t.over_ms['Ethernet, 10 Gb/s'] / 1000)} over Ethernet of 10 Gb/s; to compute them anew takes "
            f"{g.duration(t.anew_ms / 1000)}.")


def table_handoff(result: Result) -> pd.DataFrame:
    """A row for each link."""
    t = result.transfer
    rows: list[tuple[str, float, float]] = [(name, LINKS[name] / 1e9, ms) for name, ms in t.over_ms.items()]
    return pd.DataFrame([*rows, ("compute it anew", np.nan, t.anew_ms)], columns=["link", "GB/s each way", "ms"])


# --- the short arguments ----------------------------------------------------------------------------------------------


def launches(result: Result, *, dark: bool) -> Pic:
    """Four steps on CPU and GPU: enqueued ahead while the GPU works, and enqueued only when the token before is there."""
    gap, launch = result.worked.gap, float(result.scenario.values["launch"])
    end = (launch + gap + 4 * (gap + launch)) * 1.02
    pieces: dict[str, list[tuple[float, float, float, str]]] = {"prefill": [], "decode": []}
    notes, shapes = list[dict[str, Any]](), list[dict[str, Any]]()
    for i, (waits, name) in enumerate(LAUNCHED.items()):
        each, y = gap_with_launch(result, waits), 18.0 + 98 * i
        notes.append(g.note(f"<b>{name}</b>", 0, y - 9, dark, xref="x", yref="y", yanchor="middle"))
        for k in range(5):
            begins = launch + k * each  # of the GPU's step
            pieces["decode"].append((begins, begins + gap, y + 38, _fits(f"step {k + 1}", gap, end)))
            enqueued = begins - launch if waits or k == 0 else launch + (k - 1) * each
            if launch:
                pieces["prefill"].append((enqueued, enqueued + launch, y + 15, ""))
        drawn, told = _bracket(launch + gap, launch + gap + each, y + 62, f"gap <b>{each:g} ms</b>", end, dark)
        shapes, notes = [*shapes, *drawn], [*notes, told]
    lanes = [(33.0, "CPU"), (56.0, "GPU"), (131.0, "CPU"), (154.0, "GPU")]
    data = [_bars("prefill", dark, pieces["prefill"], 15), _bars("decode", dark, pieces["decode"], 22)]
    for trace, what in zip(data, ("the CPU enqueues a step", "the GPU works on a step"), strict=True):
        trace["name"], trace["hovertemplate"] = what, f"<b>{what}</b><br>%{{customdata[1]}}<extra></extra>"
    data[0]["marker"] = {"color": g.theme(dark).muted, "line": {"width": 1, "color": g.theme(dark).paper}}
    axis = _pixels(LAUNCH_HEIGHT - 40) | {"visible": True, "showgrid": False, "tickvals": [y for y, _ in lanes],
                                          "ticktext": [name for _, name in lanes]}
    figure = _sheet(data, notes, shapes, LAUNCH_HEIGHT, dark, margin={"l": 40, "r": 12, "t": 4, "b": 36},
                    xaxis=g.time_axis(end, ""), yaxis=axis)
    return Pic(figure, alt_launches(result), lambda: table_launches(result), LAUNCH_HEIGHT)


def alt_launches(result: Result) -> str:
    """Both gaps in words."""
    gap, launch = result.worked.gap, float(result.scenario.values["launch"])
    return (f"Steps of {gap:g} ms on the GPU, {launch:g} ms to enqueue each. Enqueued ahead, a token comes every "
            f"{gap_with_launch(result, False):g} ms; enqueued only when the token before is there, every "
            f"{gap_with_launch(result, True):g} ms.")


def table_launches(result: Result) -> pd.DataFrame:
    """The gap with and without the dependency."""
    return pd.DataFrame([(name, gap_with_launch(result, waits)) for waits, name in LAUNCHED.items()],
                        columns=["the next step", "gap, ms"])


def crowd_rows(result: Result) -> list[tuple[str, list[float], list[str]]]:
    """What the server and its users have with one request at a time and with many: name, value and text by CROWD."""
    runs = [result.crowd[slots] for slots in CROWD]
    rate = [output_throughput(run) for run in runs]
    gap, first = [float(tpot(run)[0]) for run in runs], [float(e2e(run)[0]) for run in runs]
    last = [float(e2e(run)[-1]) for run in runs]
    return [("Server: tokens per second", rate, [f"{x:,.0f}" for x in rate]),
            ("First user: mean gap", gap, [f"{1000 * x:.1f} ms" for x in gap]),
            ("First user: response time", first, [g.duration(x) for x in first]),
            ("Last user: response time", last, [g.duration(x) for x in last])]


def crowd(result: Result, *, dark: bool) -> Pic:
    """The same requests one at a time and many at once: the server's tokens per second, and what single users see."""
    rows = crowd_rows(result)
    look, height = g.theme(dark), CROWD_HEIGHT - 8
    notes = []
    data: list[dict[str, Any]] = []
    for k, slots in enumerate(CROWD):
        line = g.policy_line(k, dark)
        data.append({
            "type": "bar", "orientation": "h", "name": g.count(slots, "slot"), "width": 15, "cliponaxis": False,
            "y": [26.0 + 60 * i + 16 * k for i in range(len(rows))], "x": [values[k] / max(values) for _, values, _ in rows],
            "marker": {"color": line["color"] if k else look.paper, "line": {"width": 1.5, "color": line["color"]}},
            "text": [f" {texts[k]}, {g.count(slots, 'slot')}" for _, _, texts in rows], "textposition": "outside",
            "textfont": {"size": 12, "color": look.ink}, "customdata": [[-1] for _ in rows],
            "hovertemplate": f"{g.count(slots, 'slot')}: %{{text}}<extra></extra>"})
    for i, (name, _, _) in enumerate(rows):
        notes.append(g.note(f"<b>{name}</b>", 0, 9 + 60 * i, dark, xref="x", yref="y", yanchor="middle"))
    figure = _sheet(data, notes, [], CROWD_HEIGHT, dark, margin={"l": 12, "r": 12, "t": 4, "b": 4}, yaxis=_pixels(height),
                    xaxis={"range": [0, 1.62], "visible": False, "fixedrange": True})
    return Pic(figure, alt_crowd(result), lambda: table_crowd(result), CROWD_HEIGHT)


def alt_crowd(result: Result) -> str:
    """The finding: the server writes more, one user waits longer."""
    told = {name: texts for name, _, texts in crowd_rows(result)}
    one, many = CROWD
    said = "; ".join(f"{name[:1].lower() + name[1:]} {texts[0]} with {g.count(one, 'slot')}, {texts[1]} with {many}"
                     for name, texts in told.items())
    return f"{many} requests at once: {said}."


def table_crowd(result: Result) -> pd.DataFrame:
    """The same numbers."""
    return pd.DataFrame([(name, *texts) for name, _, texts in crowd_rows(result)],
                        columns=["", *(g.count(slots, "slot") for slots in CROWD)])


def order(result: Result, *, dark: bool) -> Pic:
    """Five requests and one slot, in two orders: the same work, done at the same time, and other people wait."""
    panels = []
    end = max(makespan(run) for run in result.orders.values()) * 1000 * 1.02
    for key, run in result.orders.items():
        s = slot_segments(run)
        working = s.request >= 0
        who = s.request[working]
        roles = np.where(s.role[working] == 0, 0, 1)
        panels.append(g.Panel(
            f"<b>{ORDER_NAMES[key]}</b>, mean {g.duration(float(e2e(run).mean()))}", 1, np.zeros(len(who), np.int64),
            s.start_us[working] / 1000, s.end_us[working] / 1000, roles, who,
            [str(r + 1) if k else "" for r, k in zip(who.tolist(), roles.tolist(), strict=True)]))
    figure = g.timeline(panels, ("prefill", "decode"), dark=dark, height=ORDER_HEIGHT, end=end)
    return Pic(figure, alt_order(result), lambda: table_order(result), ORDER_HEIGHT)


def alt_order(result: Result) -> str:
    """Both orders in words."""
    said = [f"{ORDER_NAMES[key]}: all done after {g.duration(makespan(run))}, mean response time "
            f"{g.duration(float(e2e(run).mean()))}, request 1 waits {g.duration(float(queue_wait(run)[0]))}"
            for key, run in result.orders.items()]
    return f"Five requests and one slot. {'; '.join(said)}."


def table_order(result: Result) -> pd.DataFrame:
    """A row for each request and order."""
    def rows(key: str, run: Run) -> pd.DataFrame:
        return pd.DataFrame({"order": ORDER_NAMES[key], "request": np.arange(len(run)) + 1, "output": run.trace.output,
                             "queue wait, ms": queue_wait(run) * 1000, "E2E, ms": e2e(run) * 1000})

    return pd.concat([rows(key, run) for key, run in result.orders.items()], ignore_index=True)


# --- over the whole range ---------------------------------------------------------------------------------------------


def sweep(curve: Sweep, *, dark: bool) -> Pic:
    """Our request's E2E and the server's tokens per second over the number of others, with "you are here"."""
    same = np.ones(len(curve.x))
    rows = [Row("E2E of our request, s", "~g", {"alone": curve.e2e[0] * same, "in company": curve.e2e}),
            Row("server, tokens/s", "~g", {"alone": curve.tokens_per_s[0] * same, "in company": curve.tokens_per_s})]
    figure = g.strip(curve.x, rows, curve.x_here, x_title="other requests", dark=dark, height=SWEEP_HEIGHT)
    return Pic(figure, alt_sweep(curve), lambda: table_sweep(curve), SWEEP_HEIGHT)


def alt_sweep(curve: Sweep) -> str:
    """Both ends, and here."""
    at = int(np.flatnonzero(curve.x == curve.x_here)[0])
    said = [f"with {g.count(int(curve.x[i]), 'other request')} {g.duration(float(curve.e2e[i]))} and "
            f"{curve.tokens_per_s[i]:,.0f} tokens/s" for i in dict.fromkeys((0, at, len(curve.x) - 1))]
    return f"E2E of our request and output of the server over the number of others: {'; '.join(said)}."


def table_sweep(curve: Sweep) -> pd.DataFrame:
    """A row for each number of others."""
    return pd.DataFrame({"other requests": curve.x.astype(int), "E2E, s": curve.e2e, "tokens/s": curve.tokens_per_s})


def band(spread: Band, result: Result, *, dark: bool) -> Pic:
    """Our request's E2E in company over the seeds: a dot for each, the median, and the run on the screen."""
    look, middle = g.theme(dark), float(np.median(spread.e2e))
    here = float(e2e(result.runs["company"])[result.scenario.me])
    data = [
        {"type": "scatter", "mode": "markers", "name": "seeds", "x": spread.e2e.tolist(), "y": [0] * len(spread.e2e),
         "marker": {"symbol": "circle-open", "size": 9, "line": {"width": 2}, "color": look.ink}, "cliponaxis": False,
         "text": [f"seed {seed}" for seed in spread.seeds], "hovertemplate": "%{text}: %{x:.2f} s<extra></extra>"},
        {"type": "scatter", "mode": "markers", "name": "on the screen", "x": [here], "y": [0], "cliponaxis": False,
         "marker": {"symbol": "diamond", "size": 13, "color": look.select},
         "hovertemplate": "on the screen: %{x:.2f} s<extra></extra>"}]
    top = max(float(spread.e2e.max()), here) * 1.06
    right = middle > 0.5 * top
    notes = [g.note("◆ on the screen", 1, 1, dark, xanchor="right", yshift=3, font={"size": 11, "color": look.select}),
             g.note(f"median {g.duration(middle)}", middle, 0, dark, xref="x", yref="y", yshift=8,
                    xanchor="right" if right else "left", font={"size": 11, "color": look.ink})]
    figure = _sheet(data, notes, [], BAND_HEIGHT, dark, margin={"l": 12, "r": 12, "t": 20, "b": 40},
                    yaxis={"range": [-1, 1], "visible": False, "fixedrange": True},
                    xaxis={"range": [0, top], "fixedrange": True, "nticks": 6,
                           "title": {"text": f"E2E of our request in company, s: {len(spread.seeds)} seeds"}})
    return Pic(figure, alt_band(spread, result), lambda: table_band(spread), BAND_HEIGHT)


def alt_band(spread: Band, result: Result) -> str:
    """The spread in words."""
    here = float(e2e(result.runs["company"])[result.scenario.me])
    return (f"E2E of our request in company over {len(spread.seeds)} seeds: from {g.duration(float(spread.e2e.min()))} to "
            f"{g.duration(float(spread.e2e.max()))}, median {g.duration(float(np.median(spread.e2e)))}; on the screen "
            f"{g.duration(here)}.")


def table_band(spread: Band) -> pd.DataFrame:
    """A row for each seed."""
    return pd.DataFrame({"seed": spread.seeds, "E2E in company, s": spread.e2e})
