"""The batching lesson's pictures: runs → Plotly figures with alt text and a table. Pure; nothing here knows Streamlit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from explainers.batching.scenario import Band, Result, Sweep
from explainers.kit import grammar as g
from explainers.kit.grammar import Figure, Floats, Ints, Panel, Pic, Row
from sim.metrics import ROLES, Ledger, Segments, e2e, slot_segments

STAGE_HEIGHT = 396
BELOW = 52
"""Pixels below the lanes of the stage: the numbers of the time axis, and two lines of key."""
LANES_PX, LABEL_PX = 140, 15
"""Height of a panel's lanes, and what a lane must have for a label on its bars, px."""
LEDGER_HEIGHT = 190
SWEEP_HEIGHT = 346
BAND_HEIGHT = 150
NAMES = {"static": "Static", "continuous": "Continuous"}
DECODE = ROLES.index("decode")
IDLE = ROLES[DECODE + 1:]
NOTHING = ROLES.index("nothing")
CAUSED = 0.01
"""Share of slot-time from which a piece that the policy causes is outlined before a longer one for which there is no request."""
LABELS = 3
"""So many pieces of each cause carry its name on the picture, the longest ones."""
SEEN = 600
"""A piece of at least one in so many parts of the time axis is a pixel or more wide, and what it stands for is in the key."""
TAG_PX, TAG_WORDS_PX = 36, 90
"""Width of the tag on the outlined piece, px: the share alone, and with "of slot-time"."""
NARROW = 295
"""Pixels between the axes of the stage on a screen of 375 px."""
GAINERS_HEIGHT = 330
MOST_ROWS = 22
"""Above so many requests `gainers` draws the sorted differences instead of a row for each request."""


SAME = 1e-9
"""Seconds within which two latencies are one: clocks with fractions of a µs agree to this."""
HALF_MS = 0.0005


def shares(book: Ledger) -> dict[str, str]:
    """Each role's share of slot-time as text, rounded so that the idle ones add up to the whole idle share, and all to 100 %."""
    return {role: g.percent_of(book.share(role), whole) for role, whole in whole_shares(book).items()}


def whole_shares(book: Ledger) -> dict[str, int]:
    """The same as whole per cent: largest remainder within the idle roles, and within the two that work."""
    idle = round(100 * book.idle_share)
    parts: dict[str, int] = {}
    for roles, whole in ((ROLES[:DECODE + 1], 100 - idle), (IDLE, idle)):
        parts |= dict(zip(roles, g.apportion([book.share(role) for role in roles], whole), strict=True))
    return parts


# --- the stage --------------------------------------------------------------------------------------------------------


def stage(result: Result, *, dark: bool, selected: int | None = None, cursor_ms: float | None = None,
          answer: bool = True) -> Pic:
    """Both policies' slots above each other on one axis of ms, each idle piece with its cause, the largest outlined.

    answer False: neither titles nor alt text state the total idle share, which the learner is about to predict.
    """
    segments = {key: slot_segments(run) for key, run in result.runs.items()}
    end = axis_end_ms(result)
    panels = [_panel(result, key, s, end, answer) for key, s in segments.items()]
    figure = g.timeline(panels, ROLES, dark=dark, height=STAGE_HEIGHT, end=end, cursor=cursor_ms, selected=selected, below=BELOW)
    layout = figure["layout"]
    drawn = figure["data"][0]["type"] == "bar"
    if drawn:
        for i, (key, s) in enumerate(segments.items()):
            notes, frame = _outlined(panels[i], s, result.ledgers[key], f"y{i + 1}" if i else "y", end, dark)
            layout["annotations"] += notes
            layout["shapes"].append(frame)
        layout["annotations"] += _sooner(result, end, dark)
    muted = g.theme(dark).muted
    layout["annotations"] += [
        g.note("  ".join(g.key(("prefill", "decode"), dark)), 1, 1, dark, xanchor="right", yanchor="top"),
        g.note(_key_below(panels, list(segments.values()), end, drawn, dark), 0, 0, dark, xshift=-30,
               yshift=-20 if drawn else -37, yanchor="top", font={"size": 11, "color": muted}),
    ]
    if drawn:  # the axis's title gives way to the key
        layout["annotations"].append(g.note(layout["xaxis"].pop("title")["text"], 1, 0, dark, yshift=-20, xanchor="right",
                                            yanchor="top", font={"size": 12, "color": muted}))
    return Pic(figure, alt_stage(result, answer), lambda: table_stage(result), STAGE_HEIGHT)


def _key_below(panels: list[Panel], segments: list[Segments], end: float, drawn: bool, dark: bool) -> str:
    """What the picture holds and does not name itself: hatches without a label that fits, ticks, the outline; two lines at most.

    drawn  the slots themselves are drawn, not their shares
    """
    named = {role for p, s in zip(panels, segments, strict=True) for role in _named(p, s, end)} if drawn else set()
    least = end * 1000 / SEEN
    there = {ROLES[k] for s in segments for k in np.unique(s.role[s.end_us - s.start_us >= least]).tolist()}
    entries = g.key([role for role in IDLE if role in there and role not in named], dark)
    if drawn and len(panels[0].arrivals):
        entries.append("<b>|</b> arrival")
    if drawn and any(largest_idle(p.lanes, s) >= 0 for p, s in zip(panels, segments, strict=True)):
        entries.append("<b>▭</b> largest idle, % of slot-time")
    if len(entries) <= 2 or not drawn:
        return "  ".join(entries)
    half = math.ceil(len(entries) / 2)
    return "  ".join(entries[:half]) + "<br>" + "  ".join(entries[half:])


def _named(panel: Panel, s: Segments, end: float) -> set[str]:
    """The idle roles of which a label fits on a piece even on a narrow screen."""
    if LANES_PX / panel.lanes < LABEL_PX:
        return set()
    width = (s.end_us - s.start_us) / 1000 / end * NARROW
    return {ROLES[k] for k, text, px in zip(s.role.tolist(), panel.label, width.tolist(), strict=True)
            if ROLES[k] in IDLE and text and px >= 6 * len(text) + 8}


def axis_end_ms(result: Result) -> float:
    """Right end of the stage's time axis, ms: the later end of both runs and a little room."""
    return max(summary["makespan"] for summary in result.summaries.values()) * 1000 * 1.015


def alt_stage(result: Result, answer: bool = True) -> str:
    """The stage's finding in words, without the total idle share if `answer` is False."""
    said = []
    for key, book in result.ledgers.items():
        cause = max(IDLE, key=book.share)
        idle = f", {g.percent(book.idle_share)} of slot-time idle" if answer else ""
        if book.share(cause) > 0:
            idle += f", {'most of it' if book.share(cause) > book.idle_share / 2 else 'the largest part'} {g.ROLES[cause].says}" \
                if answer else f", idle mostly because {g.ROLES[cause].says}"
        said.append(f"{NAMES[key]} batching: done after {g.duration(result.summaries[key]['makespan'])}{idle}")
    what = f"{g.count(len(result.scenario.trace), 'request')} in {g.count(_slots(result), 'slot')}"
    return f"Timelines of {what} under both policies. {'; '.join(said)}."


def table_stage(result: Result) -> pd.DataFrame:
    """A row for each piece of a slot's time."""
    parts = []
    for key, run in result.runs.items():
        s, zero = slot_segments(run), run.trace.arrival_us[0]
        request = pd.Series(s.request + 1, dtype="Int64").mask(s.request < 0)
        parts.append(pd.DataFrame({
            "policy": NAMES[key], "slot": s.slot + 1, "from, ms": (s.start_us - zero) / 1000, "to, ms": (s.end_us - zero) / 1000,
            "what": [g.ROLES[ROLES[k]].says for k in s.role], "request": request,
        }))
    return pd.concat(parts, ignore_index=True)


def largest_idle(slots: int, s: Segments) -> int:
    """The piece to outline, the first of equal ones; −1 where no slot is ever idle.

    The longest that the policy causes, if that is at least CAUSED of slot-time; else the longest of all: a slot for which
    there is no request is idle under any policy, and would hide what this one does.
    """
    span = s.end_us - s.start_us
    idle = np.flatnonzero(s.role > DECODE)
    caused = idle[(s.role[idle] != NOTHING) & (span[idle] >= CAUSED * slots * (s.end_us.max() - s.start_us.min()))]
    for pieces in (caused, idle):
        if len(pieces):
            return int(pieces[np.argmax(span[pieces])])
    return -1


def piece_share(slots: int, s: Segments, piece: int) -> float:
    """Share of all slot-time that a piece takes."""
    return float((s.end_us - s.start_us)[piece] / (slots * (s.end_us.max() - s.start_us.min())))


def _slots(result: Result) -> int:
    return next(iter(result.runs.values())).policy.slots


def _panel(result: Result, key: str, s: Segments, end: float, answer: bool) -> Panel:
    run = result.runs[key]
    title = f"<b>{NAMES[key]}</b>  {g.duration(result.summaries[key]['makespan'])}"
    if answer:
        title += f", {g.percent(result.ledgers[key].idle_share)} idle"
    zero = float(run.trace.arrival_us[0])
    tokens = [f"{run.trace.output[r]:,} output tokens" if k == DECODE else ""
              for k, r in zip(s.role.tolist(), s.request.tolist(), strict=True)]
    came = (run.trace.arrival_us - zero) / 1000
    return Panel(title, run.policy.slots, s.slot, (s.start_us - zero) / 1000, (s.end_us - zero) / 1000, s.role, s.request,
                 _labels(run.policy.slots, s, end), tokens, came if came[-1] > 0 else came[:0])


def _labels(slots: int, s: Segments, end: float) -> list[str]:
    """A request's number on its decode piece, the cause on the longest idle pieces of each kind.

    The outlined piece also carries its share; where both do not fit on a narrow screen, the share goes first, and where its
    cause stands on another piece, so does "of slot-time".
    """
    span = s.end_us - s.start_us
    label = [str(r + 1) if k == DECODE else "" for k, r in zip(s.role.tolist(), s.request.tolist(), strict=True)]
    for k, role in enumerate(ROLES):
        mine = np.flatnonzero(s.role == k) if role in IDLE else np.empty(0, np.int64)
        for i in mine[np.argsort(-span[mine], kind="stable")][:LABELS].tolist():
            label[i] = g.ROLES[role].label
    largest = largest_idle(slots, s)
    if largest >= 0:
        px, words = span / 1000 / end * NARROW, 5.5 * len(label[largest])
        others = (s.role == s.role[largest]) & (np.arange(len(span)) != largest) & (px >= words + 8)
        if px[largest] < words + TAG_PX or (others.any() and TAG_WORDS_PX <= px[largest] < words + TAG_WORDS_PX):
            label[largest] = ""
    return label


def _outlined(panel: Panel, s: Segments, book: Ledger, axis: str, end: float,
              dark: bool) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A frame round the piece that `largest_idle` chooses, with its share of slot-time on a tag at its right end.

    Where there is no room for "of slot-time" on a narrow screen, the tag is the number alone.
    """
    look, piece = g.theme(dark), largest_idle(panel.lanes, s)
    frame = {"name": "largest", "type": "rect", "xref": "x", "yref": axis, "layer": "above", "visible": piece >= 0,
             "line": {"color": look.ink, "width": 2.5}, "x0": 0, "x1": 0, "y0": 0, "y1": 0}
    if piece < 0:
        return [], frame
    start, stop, lane = float(panel.start[piece]), float(panel.end[piece]), float(panel.lane[piece])
    frame |= {"x0": start, "x1": stop, "y0": lane - 0.42, "y1": lane + 0.42}
    role = ROLES[s.role[piece]]
    alone = np.count_nonzero(s.role == s.role[piece]) == 1  # then the piece is the cause, and so are the figures
    share = shares(book)[role] if alone else g.percent(piece_share(panel.lanes, s, piece))
    words = 5.5 * len(panel.label[piece]) + TAG_WORDS_PX
    unit = " of slot-time" if (stop - start) / end * NARROW >= words else ""
    tag = g.note(f"<b>{share}</b>{unit}", stop, lane, dark, xref="x", yref=axis, xanchor="right", yanchor="middle",
                 bgcolor=look.ink, borderpad=1, xshift=-1, font={"size": 11, "color": look.paper})
    return [tag], frame


def _sooner(result: Result, end: float, dark: bool) -> list[dict[str, Any]]:
    """An arrow from the later end to the earlier one, with the time between them, in the panel that ends first."""
    ends = {key: summary["makespan"] * 1000 for key, summary in result.summaries.items()}
    first, last = min(ends, key=lambda k: ends[k]), max(ends, key=lambda k: ends[k])
    gap = ends[last] - ends[first]
    if gap < 0.12 * end:
        return []
    i = list(ends).index(first)
    axis, look = f"y{i + 1} domain" if i else "y domain", g.theme(dark)
    arrow = g.note("", ends[first], 0.5, dark, xref="x", yref=axis, ax=ends[last], ay=0.5, axref="x", ayref=axis,
                   showarrow=True, arrowhead=2, arrowwidth=1.5, arrowcolor=look.ink)
    said = g.note(f"<b>{g.duration(gap / 1000)}</b><br>sooner", (ends[first] + ends[last]) / 2, 0.5, dark, xref="x", yref=axis,
                  xanchor="center", yanchor="middle", align="center", bgcolor=look.paper)
    return [arrow, said]


# --- the ledger -------------------------------------------------------------------------------------------------------


def ledger(result: Result, *, dark: bool) -> Pic:
    """Where the slot-time went: a bar of 100 % for each policy, the parts in the stage's colours and hatches.

    The one legend of the lesson: it is the key of the stage too.
    """
    keys = list(result.ledgers)
    said = {key: shares(book) for key, book in result.ledgers.items()}
    data = []
    for role in ROLES:
        parts = [result.ledgers[key].share(role) for key in keys]
        data.append({
            "type": "bar", "orientation": "h", "name": g.ROLES[role].label, "y": [NAMES[key] for key in keys],
            "x": [100 * part for part in parts], "marker": g.swatch(role, dark), "width": 0.62,
            "text": [said[key][role] for key in keys], "textposition": "inside", "textangle": 0,
            "insidetextanchor": "middle", "showlegend": max(parts) >= 0.0005, "insidetextfont": g.bar_font(role, dark),
            "customdata": [[-1, g.ROLES[role].says, result.ledgers[key].seconds[role]] for key in keys],
            "hovertemplate": "<b>%{customdata[1]}</b><br>%{x:.1f} % of slot-time, %{customdata[2]:,.3f} slot-s<extra></extra>",
        })
    legend = {"orientation": "h", "x": -0.02, "xanchor": "left", "y": -0.32, "yanchor": "top", "traceorder": "normal",
              "font": {"size": 11}, "itemclick": False, "itemdoubleclick": False}
    sheet = g.layout(
        dark, LEDGER_HEIGHT, barmode="stack", uniformtext=g.FITTING, margin={"l": 82, "r": 24, "t": 6, "b": 84},
        showlegend=True, legend=legend, yaxis=g.named_rows(dark) | {"showgrid": False},
        xaxis={"range": [0, 100], "ticksuffix": " %", "fixedrange": True, "showgrid": False, "ticks": "outside", "ticklen": 3,
               "nticks": 6})
    return Pic({"data": data, "layout": sheet}, alt_ledger(result), lambda: table_ledger(result), LEDGER_HEIGHT)


def alt_ledger(result: Result) -> str:
    """The ledger's finding in words."""
    said = []
    for key, book in result.ledgers.items():
        parts = [f"{g.ROLES[role].says} {shares(book)[role]}" for role, whole in whole_shares(book).items() if whole]
        said.append(f"{NAMES[key]}: {', '.join(parts)}")
    return f"Where the slot-time went. {'. '.join(said)}."


def table_ledger(result: Result) -> pd.DataFrame:
    """A row for each role: slot-seconds and share under each policy; the last row is the whole."""
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
    if len(order) > MOST_ROWS:
        figure = _sorted_gains(one, other, order, dark, selected)
    else:
        figure = _dumbbells(list(result.runs), (one, other), order, dark, selected)
    return Pic(figure, alt_gainers(result), lambda: table_gainers(result), GAINERS_HEIGHT)


def alt_gainers(result: Result) -> str:
    """Who gains and who loses, in words."""
    one, other = (e2e(run) for run in result.runs.values())
    sooner, later = int((other < one - SAME).sum()), int((other > one + SAME).sum())
    said = [f"{g.count(sooner, 'request')} {'ends' if sooner == 1 else 'end'} sooner under continuous batching",
            f"{later} later", f"{len(one) - sooner - later} at the same time"]
    best = int(np.argmin(other - one))
    lead = f" Request {best + 1} gains most: {g.duration(float(one[best]))} to {g.duration(float(other[best]))}."
    return f"End-to-end latency of each request: {g.listed(said)}.{lead if sooner else ''}"


def table_gainers(result: Result) -> pd.DataFrame:
    """A row for each request, E2E in ms under each policy and the difference."""
    trace = result.scenario.trace
    columns = {f"{NAMES[key]} E2E, ms": e2e(run) * 1000 for key, run in result.runs.items()}
    one, other = columns.values()
    return pd.DataFrame({"request": np.arange(1, len(trace) + 1), "output tokens": trace.output, **columns,
                         "difference, ms": other - one})


def _dumbbells(keys: list[str], times: tuple[Floats, Floats], order: Ints, dark: bool,
               selected: int | None) -> Figure:
    """A row for each request: static's latency, continuous's, and a line from one to the other."""
    look, (one, other) = g.theme(dark), times
    rows = list(range(len(order)))
    data = [_gap_lines(one, other, order, good, look) for good in (True, False)]
    for k, (key, values) in enumerate(zip(keys, times, strict=True)):
        data.append({
            "type": "scatter", "mode": "markers", "name": NAMES[key], "x": values[order].tolist(), "y": rows,
            "customdata": [[r, f"request {r + 1}", f"{1000 * values[r]:,.0f} ms"] for r in order.tolist()],
            "marker": g.policy_mark(k, dark, 10),
            "hovertemplate": f"<b>%{{customdata[1]}}</b>, {NAMES[key].lower()}: %{{customdata[2]}}<extra></extra>"})
    notes = [g.note("○ static  ● continuous", 0, 1, dark, yshift=3, font={"size": 11, "color": look.muted})]
    for row, r in zip(rows, order.tolist(), strict=True):
        change = float(other[r] - one[r])
        tone = look.muted if abs(change) < HALF_MS else look.gain if change < 0 else look.loss
        notes.append(g.note(_signed(change), float(max(one[r], other[r])), row, dark, xref="x", yref="y", xshift=9,
                            yanchor="middle", font={"size": 11, "color": tone}))
    at = np.flatnonzero(order == selected) if selected is not None else np.empty(0, np.int64)
    mark = float(at[0]) if len(at) else 0.0
    frame = {"name": "selected", "type": "rect", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "visible": bool(len(at)),
             "y0": mark - 0.5, "y1": mark + 0.5, "line": {"color": look.select, "width": 2}, "layer": "below"}
    sheet = g.layout(
        dark, GAINERS_HEIGHT, margin={"l": 40, "r": 62, "t": 24, "b": 40}, annotations=notes, shapes=[frame],
        yaxis={"range": [len(order) - 0.5, -0.6], "tickvals": rows, "ticktext": [str(r + 1) for r in order.tolist()],
               "fixedrange": True, "showgrid": False, "title": {"text": "request"}},
        xaxis={"range": [0, 1.03 * float(max(one.max(), other.max()))], "fixedrange": True, "title": {"text": "E2E latency, s"}})
    return {"data": data, "layout": sheet}


def _gap_lines(one: Floats, other: Floats, order: Ints, good: bool, look: g.Theme) -> dict[str, Any]:
    """The lines of those who gain, or of those who lose, as one trace."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for row, r in enumerate(order.tolist()):
        if (other[r] <= one[r]) == good:
            xs += [float(one[r]), float(other[r]), None]
            ys += [float(row), float(row), None]
    return {"type": "scatter", "mode": "lines", "name": "sooner" if good else "later", "x": xs, "y": ys, "hoverinfo": "skip",
            "line": {"color": look.gain if good else look.loss, "width": 5, "dash": "solid" if good else "2px,2px"}}


def _signed(change: float) -> str:
    """A change of latency, s: "−2.49 s", "+37 ms", "same" below half a millisecond."""
    return "same" if abs(change) < HALF_MS else f"{'−' if change < 0 else '+'}{g.duration(abs(change))}"


def _sorted_gains(one: Floats, other: Floats, order: Ints, dark: bool, selected: int | None) -> Figure:
    """For many requests: the change of E2E, sorted, against the share of requests."""
    look = g.theme(dark)
    change = (other - one)[order]
    x = 100 * (np.arange(len(order)) + 0.5) / len(order)
    data = []
    for good, tone in ((True, look.gain), (False, look.loss)):
        kept = (change <= 0) == good
        data.append({"type": "scatter", "mode": "markers", "name": "sooner" if good else "later", "x": x[kept].tolist(),
                     "y": change[kept].tolist(), "customdata": [[r, r + 1] for r in order[kept].tolist()],
                     "marker": {"size": 5, "color": tone, "symbol": "circle" if good else "x"},
                     "hovertemplate": "<b>request %{customdata[1]}</b>: %{y:+,.3f} s<extra></extra>"})
    at = np.flatnonzero(order == selected) if selected is not None else np.empty(0, np.int64)
    data.append({"type": "scatter", "mode": "markers", "x": x[at].tolist(), "y": change[at].tolist(), "hoverinfo": "skip",
                 "marker": {"size": 13, "symbol": "circle-open", "color": look.select, "line": {"width": 3}}})
    sooner, later = int((change < -SAME).sum()), int((change > SAME).sum())
    said = f"<b>{sooner:,}</b> of {g.count(len(change), 'request')} sooner, {later:,} later"
    sheet = g.layout(
        dark, GAINERS_HEIGHT, margin={"l": 54, "r": 14, "t": 24, "b": 40}, annotations=[g.note(said, 0, 1, dark, yshift=3)],
        yaxis={"title": {"text": "change of E2E, s"}, "zeroline": True, "zerolinecolor": look.muted, "fixedrange": True},
        xaxis={"title": {"text": "requests, those who gain most first"}, "ticksuffix": " %", "range": [0, 100], "showgrid": False,
               "fixedrange": True})
    return {"data": data, "layout": sheet}


# --- the sweep and the band -------------------------------------------------------------------------------------------

_OVER = {"slots": ("slots (batch size)", "slots"), "rate": ("arrival rate, requests/s", "requests/s")}


def sweep(curve: Sweep, *, dark: bool) -> Pic:
    """Idle share and p99 of E2E over the whole range of one knob, with "you are here"."""
    rows = [Row("idle share of slot-time", ".0%", {NAMES[k].lower(): y for k, y in curve.idle.items()}, top=1.0),
            Row("p99 E2E latency, s", "~g", {NAMES[k].lower(): y for k, y in curve.e2e_p99.items()})]
    figure = g.strip(curve.x, rows, curve.x_here, x_title=_OVER[curve.over][0], dark=dark, height=SWEEP_HEIGHT, log=True,
                     note_below=curve.note)
    return Pic(figure, alt_sweep(curve), lambda: table_sweep(curve), SWEEP_HEIGHT)


def alt_sweep(curve: Sweep) -> str:
    """The sweep's finding in words: at both ends and here."""
    word = _OVER[curve.over][1]
    said = []
    for i in dict.fromkeys((0, int(np.flatnonzero(curve.x == curve.x_here)[0]), len(curve.x) - 1)):
        idle = g.listed([f"{g.percent(float(y[i]))} under {k}" for k, y in curve.idle.items()])
        said.append(f"at {curve.x[i]:g} the idle share is {idle}")
    return f"Sweep over {word}: {'; '.join(said)}. {curve.note}".rstrip()


def table_sweep(curve: Sweep) -> pd.DataFrame:
    """A row for each value of the knob."""
    return pd.DataFrame({curve.over: curve.x, **{f"{NAMES[k]} idle, %": 100 * y for k, y in curve.idle.items()},
                         **{f"{NAMES[k]} p99 E2E, s": y for k, y in curve.e2e_p99.items()}})


def band(spread: Band, result: Result, *, dark: bool) -> Pic:
    """The headline's idle share over the seeds: a dot for each, the median, and the run on the screen."""
    rows = [g.Seeds(NAMES[key], 100 * idle, 100 * result.ledgers[key].idle_share, g.percent(spread.median(key)))
            for key, idle in spread.idle.items()]
    title = f"idle share of slot-time, {len(spread.seeds)} seeds"
    figure = g.over_seeds(rows, spread.seeds, "%{x:.1f} %", dark=dark, height=BAND_HEIGHT, left=82,
                          xaxis={"range": [-2, 102], "ticksuffix": " %", "title": {"text": title}})
    return Pic(figure, alt_band(spread, result), lambda: table_band(spread), BAND_HEIGHT)


def alt_band(spread: Band, result: Result) -> str:
    """The band's finding in words."""
    said = []
    for key, idle in spread.idle.items():
        ends = f"from {g.percent(float(idle.min()))} to {g.percent(float(idle.max()))}"
        here = g.percent(result.ledgers[key].idle_share)
        said.append(f"{NAMES[key]}: median {g.percent(spread.median(key))}, {ends}, on the screen {here}")
    return f"Idle share of slot-time over {len(spread.seeds)} seeds. {'; '.join(said)}."


def table_band(spread: Band) -> pd.DataFrame:
    """A row for each seed."""
    return pd.DataFrame({"seed": spread.seeds, **{f"{NAMES[k]} idle, %": 100 * idle for k, idle in spread.idle.items()}})
