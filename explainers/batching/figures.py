"""The batching lesson's pictures: runs → Plotly figures with alt text and a table. Pure; nothing here knows Streamlit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from explainers.batching.scenario import SEEDS, Band, Result, Sweep
from explainers.kit import grammar as g
from explainers.kit.grammar import Figure, Panel, Pic, Row
from sim.metrics import ROLES, Segments, e2e, slot_segments

STAGE_HEIGHT = 396
LEDGER_HEIGHT = 190
SWEEP_HEIGHT = 330
BAND_HEIGHT = 150
NAMES = {"static": "Static", "continuous": "Continuous"}
IDLE = tuple(role for role in ROLES if role not in ("prefill", "decode"))
MOST_ROWS = 40
"""Above so many requests `gainers` draws the sorted differences instead of a row for each request."""


# --- the stage --------------------------------------------------------------------------------------------------------


def stage(result: Result, *, dark: bool, selected: int | None = None, cursor_ms: float | None = None) -> Pic:
    """Both policies' slots above each other on one axis of ms, each idle piece with its cause, the largest one outlined."""
    segments = {key: slot_segments(run) for key, run in result.runs.items()}
    end = axis_end_ms(result)
    panels = [_panel(result, key, segments[key]) for key in result.runs]
    figure = g.timeline(panels, ROLES, dark=dark, height=STAGE_HEIGHT, end=end, cursor=cursor_ms, selected=selected)
    if len(figure["data"]) and figure["data"][0]["type"] == "bar":
        notes, frames = figure["layout"]["annotations"], figure["layout"]["shapes"]
        for i, key in enumerate(result.runs):
            panel_notes, panel_frames = _on_the_picture(result, key, panels[i], f"y{i + 1}" if i else "y", end, dark)
            notes += panel_notes
            frames += panel_frames
        notes += _sooner(result, end, dark)
    return Pic(figure, alt_stage(result), lambda: table_stage(result), STAGE_HEIGHT)


def axis_end_ms(result: Result) -> float:
    """Right end of the stage's time axis, ms: the later end of both runs and a little room."""
    return max(summary["makespan"] for summary in result.summaries.values()) * 1000 * 1.015


def alt_stage(result: Result) -> str:
    """The stage's finding in words."""
    said = []
    for key, run in result.runs.items():
        ledger = result.ledgers[key]
        cause = max(IDLE, key=ledger.share)
        idle = f"{g.percent(ledger.idle_share)} of slot-time idle"
        if ledger.share(cause) > 0:
            idle += f", most of it {g.ROLES[cause].says}" if ledger.share(cause) > ledger.idle_share / 2 else ""
        said.append(f"{NAMES[key]} batching: done after {g.duration(result.summaries[key]['makespan'])}, {idle}")
    return (f"Timelines of {g.count(len(result.scenario.trace), 'request')} in {g.count(_slots(result), 'slot')} under both policies. "
            + "; ".join(said) + ".")


def table_stage(result: Result) -> pd.DataFrame:
    """A row for each piece of a slot's time."""
    parts = []
    for key, run in result.runs.items():
        s, zero = slot_segments(run), run.trace.arrival_us[0]
        parts.append(pd.DataFrame({
            "policy": NAMES[key], "slot": s.slot + 1, "from, ms": (s.start_us - zero) / 1000, "to, ms": (s.end_us - zero) / 1000,
            "what": [g.ROLES[ROLES[k]].says for k in s.role], "request": pd.array(np.where(s.request < 0, -1, s.request + 1), "Int64"),
        }))
    table = pd.concat(parts, ignore_index=True)
    table["request"] = table["request"].mask(table["request"] < 0)
    return table


def _slots(result: Result) -> int:
    return next(iter(result.runs.values())).policy.slots


def _panel(result: Result, key: str, s: Segments) -> Panel:
    run, ledger = result.runs[key], result.ledgers[key]
    title = f"<b>{NAMES[key]}</b>  {g.percent(ledger.idle_share)} idle"
    zero = float(run.trace.arrival_us[0])
    return Panel(title, run.policy.slots, s.slot, (s.start_us - zero) / 1000, (s.end_us - zero) / 1000, s.role, s.request,
                 _cell_notes(run.trace.output, s))


def _cell_notes(output: NDArray[np.int64], s: Segments) -> list[str]:
    decode = ROLES.index("decode")
    return [f"{output[r]:,} output tokens" if k == decode else "" for k, r in zip(s.role.tolist(), s.request.tolist(), strict=True)]


def _on_the_picture(result: Result, key: str, panel: Panel, axis: str, end: float,
                    dark: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Labels of the causes in their largest pieces, and the frame round the largest idle piece with its share."""
    look = g.theme(dark)
    notes: list[dict[str, Any]] = []
    span = panel.end - panel.start
    largest = _largest_idle(panel)
    frames = [{"name": "largest", "type": "rect", "xref": "x", "yref": axis, "layer": "above", "visible": largest >= 0,
               "line": {"color": look.ink, "width": 2}, **_box(panel, largest)}]
    for k, role in enumerate(ROLES):
        mine = np.flatnonzero(panel.role == k)
        if role in ("prefill", "decode") or not len(mine):
            continue
        piece = largest if largest in mine else int(mine[np.argmax(span[mine])])
        text = g.ROLES[role].label
        if piece == largest:
            share = span[piece] / (panel.lanes * (panel.end.max() - panel.start.min()))
            text = f"{text}: <b>{g.percent(float(share))}</b>"
        if panel.lanes <= 12 and span[piece] >= 0.012 * end * len(g.ROLES[role].label):
            notes.append(g.note(text, float(panel.start[piece] + span[piece] / 2), float(panel.lane[piece]), dark, xref="x",
                                yref=axis, xanchor="center", yanchor="middle", bgcolor=look.paper, borderpad=1,
                                font={"size": 11, "color": look.ink}, captureevents=False))
    return notes, frames


def _largest_idle(panel: Panel) -> int:
    """The longest piece in which a slot does nothing; −1 where there is none."""
    idle = np.flatnonzero(panel.role >= 2)
    return int(idle[np.argmax((panel.end - panel.start)[idle])]) if len(idle) else -1


def _box(panel: Panel, piece: int) -> dict[str, float]:
    if piece < 0:
        return {"x0": 0, "x1": 0, "y0": 0, "y1": 0}
    lane = float(panel.lane[piece])
    return {"x0": float(panel.start[piece]), "x1": float(panel.end[piece]), "y0": lane - 0.42, "y1": lane + 0.42}


def _sooner(result: Result, end: float, dark: bool) -> list[dict[str, Any]]:
    """An arrow from the earlier end to the later one, with the time between them, in the panel that ends first."""
    ends = {key: summary["makespan"] * 1000 for key, summary in result.summaries.items()}
    first, last = min(ends, key=lambda k: ends[k]), max(ends, key=lambda k: ends[k])
    gap = ends[last] - ends[first]
    if gap < 0.08 * end:
        return []
    i = list(ends).index(first)
    axis = f"y{i + 1}" if i else "y"
    look = g.theme(dark)
    arrow = g.note("", ends[first], 0.5, dark, xref="x", yref=f"{axis} domain", ax=ends[last], ay=0.5, axref="x",
                   ayref=f"{axis} domain", showarrow=True, arrowhead=2, arrowwidth=1.5, arrowcolor=look.ink)
    said = g.note(f"{g.duration(gap / 1000)}<br>sooner", (ends[first] + ends[last]) / 2, 0.5, dark, xref="x",
                  yref=f"{axis} domain", xanchor="center", yanchor="middle", align="center", bgcolor=look.paper,
                  font={"size": 12, "color": look.ink})
    return [arrow, said]


# --- the ledger -------------------------------------------------------------------------------------------------------


def ledger(result: Result, *, dark: bool) -> Pic:
    """Where the slot-time went: a bar of 100 % for each policy, the parts in the stage's colours and hatches."""
    keys = list(result.ledgers)
    look = g.theme(dark)
    data = []
    for role in ROLES:
        shares = [result.ledgers[key].share(role) for key in keys]
        data.append({
            "type": "bar", "orientation": "h", "name": g.ROLES[role].label, "y": [NAMES[key] for key in keys],
            "x": [100 * share for share in shares], "marker": g.swatch(role, dark), "width": 0.62,
            "text": [g.percent(share) if share >= 0.045 else "" for share in shares], "textposition": "inside", "textangle": 0,
            "insidetextanchor": "middle", "showlegend": any(shares),
            "insidetextfont": {"size": 12, "color": look.on_solid if g.ROLES[role].solid else look.ink},
            "customdata": [[-1, g.ROLES[role].says, result.ledgers[key].seconds[role]] for key in keys],
            "hovertemplate": "<b>%{customdata[1]}</b><br>%{x:.1f} % of slot-time, %{customdata[2]:,.3f} slot-seconds<extra></extra>",
        })
    sheet = g.layout(dark, LEDGER_HEIGHT, barmode="stack", margin={"l": 82, "r": 10, "t": 6, "b": 84}, showlegend=True,
                     legend={"orientation": "h", "x": -0.02, "xanchor": "left", "y": -0.32, "yanchor": "top", "traceorder": "normal",
                             "font": {"size": 11}, "itemclick": False, "itemdoubleclick": False},
                     yaxis={"autorange": "reversed", "fixedrange": True, "showgrid": False, "tickfont": {"size": 12, "color": look.ink}},
                     xaxis={"range": [0, 100], "ticksuffix": " %", "fixedrange": True, "showgrid": False, "ticks": "outside",
                            "ticklen": 3, "nticks": 6})
    return Pic({"data": data, "layout": sheet}, alt_ledger(result), lambda: table_ledger(result), LEDGER_HEIGHT)


def alt_ledger(result: Result) -> str:
    """The ledger's finding in words."""
    said = []
    for key, book in result.ledgers.items():
        parts = [f"{g.ROLES[role].says} {g.percent(book.share(role))}" for role in ROLES if book.share(role) >= 0.005]
        said.append(f"{NAMES[key]}: {', '.join(parts)}")
    return "Where the slot-time went. " + ". ".join(said) + "."


def table_ledger(result: Result) -> pd.DataFrame:
    """A row for each role: slot-seconds and share under each policy; the last row is the sum."""
    rows = []
    for role in (*ROLES, None):
        row: dict[str, Any] = {"slot-time": g.ROLES[role].says if role else "all"}
        for key, book in result.ledgers.items():
            row[f"{NAMES[key]}, slot-seconds"] = book.seconds[role] if role else book.total
            row[f"{NAMES[key]}, %"] = 100 * (book.share(role) if role else 1.0)
        rows.append(row)
    return pd.DataFrame(rows)


# --- who gains, who loses ---------------------------------------------------------------------------------------------


def gainers(result: Result, *, dark: bool, selected: int | None = None) -> Pic:
    """E2E latency of each request under both policies, those who gain most on top."""
    one, other = (e2e(run) for run in result.runs.values())
    order = np.argsort(other - one, kind="stable")
    many = len(order) > MOST_ROWS
    height = 300 if many else 74 + 17 * max(len(order), 4)
    figure = _sorted_gains(one, other, order, dark, height, selected) if many else _dumbbells(result, one, other, order, dark, height, selected)
    return Pic(figure, alt_gainers(result), lambda: table_gainers(result), height)


def alt_gainers(result: Result) -> str:
    """Who gains and who loses, in words."""
    one, other = (e2e(run) for run in result.runs.values())
    better, worse = other < one - 1e-9, other > one + 1e-9
    same = len(one) - int(better.sum()) - int(worse.sum())
    said = [f"{g.count(int(better.sum()), 'request')} {'ends' if better.sum() == 1 else 'end'} sooner under continuous batching",
            f"{int(worse.sum())} later", f"{same} at the same time"]
    best = int(np.argmin(other - one))
    lead = f" Request {best + 1} gains most: {g.duration(float(one[best]))} to {g.duration(float(other[best]))}." if better.any() else ""
    return f"End-to-end latency of each request: {g.listed(said)}.{lead}"


def table_gainers(result: Result) -> pd.DataFrame:
    """A row for each request, E2E in ms under each policy and the difference."""
    columns = {f"{NAMES[key]} E2E, ms": e2e(run) * 1000 for key, run in result.runs.items()}
    table = pd.DataFrame({"request": np.arange(1, len(result.scenario.trace) + 1), "output tokens": result.scenario.trace.output, **columns})
    one, other = columns.values()
    return table.assign(**{"difference, ms": other - one})


def _dumbbells(result: Result, one: g.Floats, other: g.Floats, order: g.Ints, dark: bool, height: int, selected: int | None) -> Figure:
    look = g.theme(dark)
    rows = list(range(len(order)))
    data: list[dict[str, Any]] = []
    for good, tone in ((True, look.gain), (False, look.loss)):
        xs: list[float | None] = []
        ys: list[float | None] = []
        for row, r in zip(rows, order.tolist(), strict=True):
            if (other[r] <= one[r]) == good:
                xs += [float(one[r]), float(other[r]), None]
                ys += [row, row, None]
        data.append({"type": "scatter", "mode": "lines", "x": xs, "y": ys, "hoverinfo": "skip",
                     "line": {"color": tone, "width": 5, "dash": "solid" if good else "1px,1px"}})
    for k, (key, values) in enumerate(zip(result.runs, (one, other), strict=True)):
        mark = g.policy_line(k, dark)
        data.append({"type": "scatter", "mode": "markers", "name": NAMES[key], "x": values[order].tolist(), "y": rows,
                     "customdata": [[r, f"request {r + 1}", f"{1000 * values[r]:,.0f} ms"] for r in order.tolist()],
                     "marker": {"symbol": mark["symbol"], "size": 10, "color": mark["color"], "line": {"width": 2, "color": mark["color"]}},
                     "hovertemplate": f"<b>%{{customdata[1]}}</b>, {NAMES[key].lower()}: %{{customdata[2]}}<extra></extra>"})
    top = order[0]
    notes = [g.note(name, float(values[top]), 0, dark, xref="x", yref="y", yshift=8, xanchor="center",
                    font={"size": 11, "color": g.policy_line(k, dark)["color"]})
             for k, (name, values) in enumerate(zip(("static", "continuous"), (one, other), strict=True))]
    if abs(one[top] - other[top]) < 0.2 * max(one.max(), other.max()):
        notes = [g.note("○ static   ● continuous", 0, 1, dark, yshift=2, font={"size": 11, "color": look.muted})]
    ends = np.maximum(one, other)
    notes += [g.note(_signed_gain(float(other[r] - one[r])), float(ends[r]), row, dark, xref="x", yref="y", xshift=10, yanchor="middle",
                     font={"size": 11, "color": look.gain if other[r] <= one[r] else look.loss})
              for row, r in zip(rows, order.tolist(), strict=True)]
    shapes = [{"name": "selected", "type": "rect", "xref": "paper", "yref": "y", "x0": 0, "x1": 1,
               "y0": (at := int(np.flatnonzero(order == selected)[0]) if selected is not None and selected < len(order) else 0) - 0.5,
               "y1": at + 0.5, "visible": selected is not None, "line": {"color": look.select, "width": 2}, "layer": "below"}]
    sheet = g.layout(dark, height, margin={"l": 40, "r": 62, "t": 22, "b": 40}, annotations=notes, shapes=shapes,
                     yaxis={"range": [len(order) - 0.5, -0.9], "tickvals": rows, "ticktext": [str(r + 1) for r in order.tolist()],
                            "fixedrange": True, "showgrid": False, "title": {"text": "request"}},
                     xaxis={"rangemode": "tozero", "range": [0, 1.02 * float(ends.max())], "fixedrange": True, "title": {"text": "E2E latency, s"}})
    return {"data": data, "layout": sheet}


def _signed_gain(change: float) -> str:
    if abs(change) < 0.0005:
        return "same"
    return f"{'−' if change < 0 else '+'}{g.duration(abs(change))}"


def _sorted_gains(one: g.Floats, other: g.Floats, order: g.Ints, dark: bool, height: int, selected: int | None) -> Figure:
    look = g.theme(dark)
    change = (other - one)[order]
    x = (100 * (np.arange(len(order)) + 0.5) / len(order))
    data = []
    for good, tone in ((True, look.gain), (False, look.loss)):
        kept = (change <= 0) == good
        data.append({"type": "scatter", "mode": "markers", "x": x[kept].tolist(), "y": change[kept].tolist(),
                     "marker": {"size": 5, "color": tone, "symbol": "circle" if good else "x"},
                     "customdata": [[r] for r in order[kept].tolist()],
                     "hovertemplate": "request %{customdata[0]}+1: %{y:,.3f} s<extra></extra>"})
    at = np.flatnonzero(order == selected) if selected is not None else np.empty(0, np.int64)
    data.append({"type": "scatter", "mode": "markers", "x": x[at].tolist(), "y": change[at].tolist(), "hoverinfo": "skip",
                 "marker": {"size": 13, "symbol": "circle-open", "color": look.select, "line": {"width": 3}}})
    gain = float(np.mean(change < 0))
    notes = [g.note(f"{g.percent(gain)} of requests end sooner", 0, 1, dark, yshift=2, font={"size": 12, "color": look.gain})]
    sheet = g.layout(dark, height, margin={"l": 50, "r": 12, "t": 24, "b": 40}, annotations=notes,
                     yaxis={"title": {"text": "change of E2E, s"}, "zeroline": True, "zerolinecolor": look.muted, "fixedrange": True},
                     xaxis={"title": {"text": "requests, those who gain most first"}, "ticksuffix": " %", "range": [0, 100],
                            "showgrid": False, "fixedrange": True})
    return {"data": data, "layout": sheet}


# --- the sweep and the band -------------------------------------------------------------------------------------------


def sweep(curve: Sweep, *, dark: bool) -> Pic:
    """Idle share and p99 of E2E over the whole range of one knob, with "you are here"."""
    word = {"slots": "slots (batch size)", "rate": "arrival rate, requests/s"}[curve.over]
    rows = [Row("idle share of slot-time", ".0%", {NAMES[k].lower(): y for k, y in curve.idle.items()}),
            Row("p99 E2E latency, s", "~g", {NAMES[k].lower(): y for k, y in curve.e2e_p99.items()})]
    figure = g.strip(curve.x, rows, curve.x_here, x_title=word, dark=dark, height=SWEEP_HEIGHT, log=True)
    return Pic(figure, alt_sweep(curve), lambda: table_sweep(curve), SWEEP_HEIGHT)


def alt_sweep(curve: Sweep) -> str:
    """The sweep's finding in words: at both ends and here."""
    i = int(np.flatnonzero(curve.x == curve.x_here)[0])
    word = {"slots": "slots", "rate": "requests/s"}[curve.over]
    said = [f"at {curve.x[j]:g} {word}, idle share is " + g.listed([f"{g.percent(float(y[j]))} under {k}" for k, y in curve.idle.items()])
            for j in dict.fromkeys((0, i, len(curve.x) - 1))]
    note = f" Only the first {curve.requests:,} requests of the file." if curve.capped else ""
    return f"Sweep over {word}: {'; '.join(said)}.{note}"


def table_sweep(curve: Sweep) -> pd.DataFrame:
    """A row for each value of the knob."""
    return pd.DataFrame({curve.over: curve.x, **{f"{NAMES[k]} idle, %": 100 * y for k, y in curve.idle.items()},
                         **{f"{NAMES[k]} p99 E2E, s": y for k, y in curve.e2e_p99.items()}})


def band(spread: Band, result: Result, *, dark: bool) -> Pic:
    """The headline's idle share over the seeds: a dot for each, the median, and the run on the screen."""
    look = g.theme(dark)
    data: list[dict[str, Any]] = []
    notes = []
    for k, (key, idle) in enumerate(spread.idle.items()):
        mark = g.policy_line(k, dark)
        data.append({"type": "scatter", "mode": "markers", "name": NAMES[key], "x": (100 * idle).tolist(), "y": [NAMES[key]] * len(idle),
                     "marker": {"symbol": "circle-open", "size": 9, "color": mark["color"], "line": {"width": 1.5}},
                     "text": [f"seed {seed}" for seed in spread.seeds], "hovertemplate": "%{text}: %{x:.1f} %<extra></extra>"})
        here = result.ledgers[key].idle_share
        data.append({"type": "scatter", "mode": "markers", "x": [100 * here], "y": [NAMES[key]],
                     "marker": {"symbol": "diamond", "size": 13, "color": look.select},
                     "hovertemplate": "on the screen: %{x:.1f} %<extra></extra>"})
        notes.append(g.note(f"median {g.percent(spread.median(key))}", 100 * spread.median(key), NAMES[key], dark, xref="x", yref="y",
                            xanchor="center", yshift=7, font={"size": 11, "color": look.ink}))
    notes.append(g.note("◆ on the screen", 1, 1, dark, xanchor="right", font={"size": 11, "color": look.select}))
    sheet = g.layout(dark, BAND_HEIGHT, margin={"l": 82, "r": 14, "t": 18, "b": 40}, annotations=notes,
                     yaxis={"autorange": "reversed", "fixedrange": True, "showgrid": True, "type": "category", "tickfont": {"size": 12, "color": look.ink}},
                     xaxis={"range": [0, 100], "ticksuffix": " %", "fixedrange": True, "title": {"text": f"idle share of slot-time, {SEEDS} seeds"}})
    return Pic({"data": data, "layout": sheet}, alt_band(spread, result), lambda: table_band(spread), BAND_HEIGHT)


def alt_band(spread: Band, result: Result) -> str:
    """The band's finding in words."""
    said = [f"{key}: median {g.percent(spread.median(key))}, from {g.percent(float(idle.min()))} to {g.percent(float(idle.max()))}, "
            f"here {g.percent(result.ledgers[key].idle_share)}" for key, idle in spread.idle.items()]
    return f"Idle share of slot-time over {len(spread.seeds)} seeds. {'; '.join(said)}."


def table_band(spread: Band) -> pd.DataFrame:
    """A row for each seed."""
    return pd.DataFrame({"seed": spread.seeds, **{f"{NAMES[k]} idle, %": 100 * idle for k, idle in spread.idle.items()}})
