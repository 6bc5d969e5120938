"""The preemption lesson's pictures: runs → Plotly figures with alt text and a table. Pure; nothing here knows Streamlit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from explainers.kit import grammar as g
from explainers.kit.grammar import Panel, Pic, Row
from explainers.preemption.scenario import FCFS, LAST, SWAP, Band, Outcome, Result, Sweep

STAGE_HEIGHT = 534
BELOW = 66
"""Pixels below the lanes of the stage: the numbers of the time axis and its key."""
WHO_HEIGHT = 320
SWEEP_HEIGHT = 470
BAND_HEIGHT = 150
NAMES = {"first": "above", "other": "below"}
ROLES = ("waiting", "preempted", "prefill", "again", "decode")
WAITING, PREEMPTED, PREFILL, AGAIN, DECODE = range(5)
MOST_LANES = 40
"""Above so many requests the stage draws shares instead of a lane for each."""
LABELS = 4
"""So many waits of each kind carry their name on the picture, the longest ones."""


def rule(result: Result, key: str) -> str:
    """The rule of a panel as its title: who goes first, and who gives way and how where that is not vLLM's way."""
    if key == "first":
        return FCFS.capitalize()
    v = result.scenario.values
    gives = "" if v["victim"] == LAST else f"; the {v['victim']} gives way"
    return f"{v['order']}{gives}{', swapped' if v['give'] == SWAP else ''}".capitalize()


# --- the stage --------------------------------------------------------------------------------------------------------


def stage(result: Result, *, dark: bool, selected: int | None = None, cursor_ms: float | None = None,
          answer: bool = True) -> Pic:
    """Both policies above each other on one axis of ms, a lane for each request: waits, prompts, replies, what is done anew.

    The request that waited longest is outlined in each. answer False: no title states the mean latency per token.
    """
    end = axis_end_ms(result)
    panels = [_panel(result, key, end, answer) for key in result.runs]
    many = len(result.scenario.trace) > MOST_LANES
    figure = g.timeline(panels, ROLES, dark=dark, height=STAGE_HEIGHT, end=end, lane_word="request", cursor=cursor_ms,
                        selected=selected, most=-1 if many else g.MOST_BARS, below=BELOW)
    layout, muted = figure["layout"], g.theme(dark).muted
    for i, (key, panel) in enumerate(zip(result.runs, panels, strict=True)):
        notes, frame = _unluckiest(result.outcomes[key], panel, f"y{i + 1}" if i else "y", many, dark)
        layout["annotations"] += notes
        layout["shapes"].append(frame)
    entries = [*g.key(ROLES, dark), *([] if many else ["<b>▭</b> waits longest"])]
    layout["annotations"].append(g.note("  ".join(entries[:3]) + "<br>" + "  ".join(entries[3:]), 0, 0, dark, xshift=-30,
                                        yshift=-37, yanchor="top", font={"size": 11, "color": muted}))
    return Pic(figure, alt_stage(result, answer), lambda: table_stage(result), STAGE_HEIGHT)


def axis_end_ms(result: Result) -> float:
    """Right end of the stage's time axis, ms: the later end of both runs and a little room."""
    return max(float(run.steps.end_us[-1]) for run in result.runs.values()) / 1000 * 1.02


def alt_stage(result: Result, answer: bool = True) -> str:
    """The stage's finding in words; without the mean latencies if `answer` is False."""
    said = []
    for key, o in result.outcomes.items():
        n = o.numbers
        mean = f", {g.duration(n['mean'])} a token on average" if answer else ""
        said.append(f"{rule(result, key)}: {g.count(int(n['preemptions']), 'preemption')} of "
                    f"{g.count(int(n['victims']), 'request')}{mean}, request {o.unluckiest + 1} waits longest, "
                    f"{g.duration(n['longest'])}")
    return f"Timelines of {g.count(len(result.scenario.trace), 'request')} under two rules on one memory. {'. '.join(said)}."


def table_stage(result: Result) -> pd.DataFrame:
    """A row for each request: its lengths, and under each policy its wait, its preemptions and its latency per token."""
    trace = result.scenario.trace
    columns: dict[str, Any] = {"request": np.arange(1, len(trace) + 1), "prompt": trace.prompt, "reply": trace.output}
    for key, o in result.outcomes.items():
        run = result.runs[key]
        columns |= {
            f"{NAMES[key]}: waits, ms": 1000 * o.wait, f"{NAMES[key]}: preempted": run.preemptions,
            f"{NAMES[key]}: tokens anew": run.recomputed, f"{NAMES[key]}: ms a token": 1000 * o.latency,
        }
    return pd.DataFrame(columns)


def pieces(result: Result, key: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What each request's time goes to: request, start and end in ms since the first arrival, role (index in ROLES)."""
    v, run = result.outcomes[key].visits, result.runs[key]
    over = float(run.steps.end_us[-1])
    again = np.append(False, v.request[1:] == v.request[:-1])[: len(v.request)]
    out = np.fmin(v.out, over)
    ready = np.fmin(np.where(np.isnan(v.ready), v.done, v.ready), over)
    done = np.fmin(v.done, over)
    parts = [
        (v.queued, out, np.where(again, PREEMPTED, WAITING)),
        (v.entered, ready, np.where(again, AGAIN, PREFILL)),
        (ready, done, np.full(len(ready), DECODE)),
    ]
    start, end = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    role, who = np.concatenate([part[2] for part in parts]), np.tile(v.request, 3)
    kept = end > start
    zero = float(run.trace.arrival_us[0])
    return who[kept], (start[kept] - zero) / 1000, (end[kept] - zero) / 1000, role[kept]


def _panel(result: Result, key: str, end: float, answer: bool) -> Panel:
    who, start, stop, role = pieces(result, key)
    n = result.outcomes[key].numbers
    title = f"<b>{rule(result, key)}</b>"
    if answer:
        title += f"  {g.duration(n['mean'])} a token"
    label = [""] * len(who)
    for k, word in ((WAITING, "waiting"), (PREEMPTED, "preempted")):
        mine = np.flatnonzero(role == k)
        for i in mine[np.argsort(start[mine] - stop[mine], kind="stable")][:LABELS].tolist():
            label[i] = word if (stop[i] - start[i]) / end > 0.09 else ""
    trace = result.scenario.trace
    hover = [f"{trace.output[r]:,} output tokens" if k == DECODE else ""
             for k, r in zip(role.tolist(), who.tolist(), strict=True)]
    return Panel(title, len(trace), who, start, stop, role, who, label, hover)


def _unluckiest(o: Outcome, panel: Panel, axis: str, many: bool, dark: bool) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A frame round the request that waits longest, with how long."""
    look, r = g.theme(dark), o.unluckiest
    mine = np.flatnonzero(panel.request == r)
    seen = not many and o.numbers["longest"] > 0
    frame = {"name": "unluckiest", "type": "rect", "xref": "x", "yref": axis, "layer": "above", "visible": bool(seen),
             "line": {"color": look.ink, "width": 2}, "x0": 0, "x1": 0, "y0": r - 0.5, "y1": r + 0.5}
    said = g.duration(o.numbers["longest"])
    if many:
        return [g.note(f"request {r + 1} waits longest: <b>{said}</b>", 1, 1, dark, yref=f"{axis} domain", xanchor="right",
                       yanchor="top", bgcolor=look.paper)], frame
    if not seen or not len(mine):
        return [], frame
    stop = float(panel.end[mine].max())
    frame |= {"x0": float(panel.start[mine].min()), "x1": stop}
    place = {"xanchor": "right", "xshift": -2} if stop > 0.8 * float(panel.end.max()) else {"xanchor": "left", "xshift": 2}
    tag = g.note(f"waits <b>{said}</b>", stop, r, dark, xref="x", yref=axis, yanchor="middle", bgcolor=look.ink, borderpad=1,
                 font={"size": 11, "color": look.paper}, **place)
    return [tag], frame


# --- who waits --------------------------------------------------------------------------------------------------------


def who_waits(result: Result, *, dark: bool, selected: int | None = None) -> Pic:
    """Each request's wait over the length of its reply, under both rules: who pays."""
    look, trace = g.theme(dark), result.scenario.trace
    data = []
    for k, (key, o) in enumerate(result.outcomes.items()):
        data.append({
            "type": "scatter", "mode": "markers", "name": NAMES[key], "x": trace.output.tolist(), "y": o.wait.tolist(),
            "marker": g.policy_mark(k, dark, 9), "cliponaxis": False,
            "customdata": [[r, f"request {r + 1}", f"{1000 * w:,.0f} ms"] for r, w in enumerate(o.wait.tolist())],
            "hovertemplate": f"<b>%{{customdata[1]}}</b>, {NAMES[key]}: waits %{{customdata[2]}}<br>"
                             "%{x:,} output tokens<extra></extra>",
        })
    if selected is not None and selected < len(trace):
        waits = [float(o.wait[selected]) for o in result.outcomes.values()]
        data.append({"type": "scatter", "mode": "markers", "x": [int(trace.output[selected])] * 2, "y": waits,
                     "hoverinfo": "skip",
                     "marker": {"size": 15, "symbol": "circle-open", "color": look.select, "line": {"width": 3}}})
    notes = [g.note("○ above  ● below", 0, 1, dark, yshift=3, font={"size": 11, "color": look.muted})]
    top = max(float(o.wait.max()) for o in result.outcomes.values()) or 1.0
    sheet = g.layout(
        dark, WHO_HEIGHT, margin={"l": 48, "r": 16, "t": 24, "b": 42}, annotations=notes,
        xaxis={"title": {"text": "length of the reply, tokens"}, "rangemode": "tozero", "fixedrange": True, "nticks": 7},
        yaxis={"title": {"text": "waits in all, s"}, "range": [-0.02 * top, 1.08 * top], "fixedrange": True, "nticks": 6})
    return Pic({"data": data, "layout": sheet}, alt_who_waits(result), lambda: table_stage(result), WHO_HEIGHT)


def halves(result: Result, key: str) -> tuple[float, float]:
    """Mean wait, s, of the shorter and of the longer half of the replies."""
    order, wait = np.argsort(result.scenario.trace.output, kind="stable"), result.outcomes[key].wait
    half = max(1, len(order) // 2)
    return float(wait[order[:half]].mean()), float(wait[order[half:]].mean()) if len(order) > half else 0.0


def alt_who_waits(result: Result) -> str:
    """Who waits, in words."""
    said = []
    for key in result.outcomes:
        short, long = halves(result, key)
        said.append(f"{NAMES[key]}, the shorter half of the replies waits {g.duration(short)} on average, the longer half "
                    f"{g.duration(long)}")
    return f"Wait of each request over the length of its reply: {'; '.join(said)}."


# --- the sweep and the band -------------------------------------------------------------------------------------------

_OVER = {"memory": "KV memory, tokens", "rate": "arrival rate, requests/s"}


def sweep(curve: Sweep, *, dark: bool) -> Pic:
    """Mean latency per token, longest wait and preemptions over the whole range of one knob, with "you are here"."""
    rows = [Row(title, form, {NAMES[k]: y * scale for k, y in curves.items()}) for title, form, curves, scale in (
        ("mean latency, ms a token", ",.0f", curve.mean, 1000.0), ("longest wait, s", "~g", curve.longest, 1.0),
        ("preemptions", ",.0f", curve.preemptions, 1.0))]
    figure = g.strip(curve.x, rows, curve.x_here, x_title=_OVER[curve.over], dark=dark, height=SWEEP_HEIGHT, log=True,
                     note_below=curve.note)
    if curve.over == "memory":  # every other power of two has room on a narrow screen
        figure["layout"]["xaxis"]["ticktext"] = [f"{v // 1024:.0f}K" if v % 1024 == 0 and v / 1024 in (1, 2, 4, 8, 16, 32, 64)
                                                 else "" for v in curve.x.tolist()]
    return Pic(figure, alt_sweep(curve), lambda: table_sweep(curve), SWEEP_HEIGHT)


def alt_sweep(curve: Sweep) -> str:
    """The sweep's finding in words: at both ends and here."""
    said = []
    for i in dict.fromkeys((0, int(np.flatnonzero(curve.x == curve.x_here)[0]), len(curve.x) - 1)):
        mean = g.listed([f"{g.duration(float(y[i]))} {NAMES[k]}" for k, y in curve.mean.items()])
        said.append(f"at {curve.x[i]:,g} the mean latency per token is {mean}")
    return f"Sweep over {_OVER[curve.over]}: {'; '.join(said)}. {curve.note}".rstrip()


def table_sweep(curve: Sweep) -> pd.DataFrame:
    """A row for each value of the knob."""
    return pd.DataFrame({
        _OVER[curve.over]: curve.x, **{f"{NAMES[k]}: ms a token": 1000 * y for k, y in curve.mean.items()},
        **{f"{NAMES[k]}: longest wait, s": y for k, y in curve.longest.items()},
        **{f"{NAMES[k]}: preemptions": y for k, y in curve.preemptions.items()},
    })


def band(spread: Band, result: Result, *, dark: bool) -> Pic:
    """The longest wait over the seeds: a dot for each, the median, and the run on the screen."""
    rows = [g.Seeds(NAMES[key], waits, result.outcomes[key].numbers["longest"], g.duration(spread.median(key)))
            for key, waits in spread.longest.items()]
    title = f"longest wait, s, {len(spread.seeds)} seeds"
    figure = g.over_seeds(rows, spread.seeds, "%{x:.2f} s", dark=dark, height=BAND_HEIGHT, left=60,
                          xaxis={"rangemode": "tozero", "title": {"text": title}})
    return Pic(figure, alt_band(spread, result), lambda: table_band(spread), BAND_HEIGHT)


def alt_band(spread: Band, result: Result) -> str:
    """The band's finding in words."""
    said = []
    for key, waits in spread.longest.items():
        ends = f"from {g.duration(float(waits.min()))} to {g.duration(float(waits.max()))}"
        here = g.duration(result.outcomes[key].numbers["longest"])
        said.append(f"{NAMES[key]}: median {g.duration(spread.median(key))}, {ends}, on the screen {here}")
    return f"Longest wait over {len(spread.seeds)} seeds. {'; '.join(said)}."


def table_band(spread: Band) -> pd.DataFrame:
    """A row for each seed."""
    return pd.DataFrame({"seed": spread.seeds, **{f"{NAMES[k]}: longest wait, s": y for k, y in spread.longest.items()}})
