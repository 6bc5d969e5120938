"""The chunked-prefill lesson's pictures: runs → Plotly figures with alt text and a table. Pure; nothing here knows Streamlit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from explainers.chunked_prefill import scenario
from explainers.chunked_prefill.scenario import KEYS, Band, Curve, Load, Result, Roofline, Sweep
from explainers.kit import grammar as g
from explainers.kit.grammar import Floats, Ints, Pic, Row

STAGE_HEIGHT, ROOFLINE_HEIGHT, SWEEP_HEIGHT, BAND_HEIGHT, CURVE_HEIGHT = 468, 320, 430, 150, 300
SHOWN_BEFORE_MS = 200.0
"""The stage begins so long before the landing."""
HEAD_PX, STREAMS_PX, NEW_PX, STEPS_PX, GAP_PX, BELOW_PX = 18, 68, 13, 32, 4, 52
"""Heights of a panel's parts: title, lanes of the streams, of the long prompts, of the engine; between panels; below."""
LEFT_PX, RIGHT_PX = 46, 10
NARROW = 319
"""Pixels between the axes of the stage on a screen of 375 px."""
MOST_TICKS = 1200
"""Token times of a panel that are drawn: more are closer than a pixel."""
MOST_STEPS = 160
"""Steps with prompt tokens in a panel that are bars of their own; more are drawn as the rows of the run, stretches of steps."""


def names(result: Result) -> dict[str, str]:
    """What each policy is called on the screen, by key."""
    return {key: policy.name for key, policy in result.scenario.policies.items()}


# --- the stage --------------------------------------------------------------------------------------------------------


def stage(result: Result, *, dark: bool, selected: int | None = None, cursor_ms: float | None = None,
          answer: bool = True) -> Pic:
    """The same moment under the three policies: the streams' tokens as ticks, the long prompts, and what each step holds.

    answer False: the longest gap is neither outlined nor said, and neither the time axis nor what one points at gives it away.
    """
    start, end = -SHOWN_BEFORE_MS, result.end_ms
    data: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    shapes = [g.cursor_line(cursor_ms, dark)]
    sheet = g.layout(dark, STAGE_HEIGHT, barmode="overlay", bargap=0.0,
                     margin={"l": LEFT_PX, "r": RIGHT_PX, "t": 4, "b": BELOW_PX})
    top = _top(result)
    for i, (key, (lanes, steps)) in enumerate(zip(KEYS, _places(), strict=True)):
        y, y2 = (f"y{2 * i + 1}" if i else "y"), f"y{2 * i + 2}"
        data += _targets(result, key, y, start) + _ticks(result, key, y, start, dark) + _separators(result, y, start, dark)
        data += _newcomers(result, key, y, dark) + _engine(result, key, y2, start, dark)
        sheet["yaxis" + y[1:]] = _lanes_axis(result, lanes)
        sheet["yaxis" + y2[1:]] = _steps_axis(steps, top)
        notes.append(g.note(_title(result, key, answer), 0, lanes[1], dark, yshift=1, xshift=-LEFT_PX + 4, font={"size": 12}))
        shapes += [_landing(result, y, dark), _hole(result, key, y, answer, dark), _chosen(result, key, y, selected, start, dark)]
        notes += (_length(result, key, y, dark) if answer else []) + _said_of_steps(result, key, y2, top, dark)
    sheet["xaxis"] = _clock(start, end, answer) | {"anchor": f"y{2 * len(KEYS)}"}
    sheet["annotations"], sheet["shapes"] = notes + _below(answer, dark), shapes
    if not answer:
        data = [{k: v for k, v in trace.items() if k != "hovertemplate"} | {"hoverinfo": "skip"} for trace in data]
    return Pic({"data": data, "layout": sheet}, alt_stage(result, answer), lambda: table_stage(result, answer), STAGE_HEIGHT)


def _places() -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """The vertical shares of each panel's lanes and of its engine, the first on top."""
    plot = STAGE_HEIGHT - 4 - BELOW_PX
    at, found = float(plot), []
    for _ in KEYS:
        at -= HEAD_PX
        lanes = (at - STREAMS_PX - NEW_PX) / plot, at / plot
        at -= STREAMS_PX + NEW_PX + 1
        found.append((lanes, (max(at - STEPS_PX, 0.0) / plot, at / plot)))
        at -= STEPS_PX + GAP_PX
    return found


def _rows(result: Result) -> float:
    """How much room the lane of long prompts takes, in lanes of streams."""
    return result.scenario.streams * NEW_PX / STREAMS_PX


def _lanes_axis(result: Result, domain: tuple[float, float]) -> dict[str, Any]:
    n = result.scenario.streams
    return {"domain": list(domain), "range": [n + _rows(result), 0], "fixedrange": True, "showgrid": False, "zeroline": False,
            "tickvals": [n / 2, n + _rows(result) / 2], "ticktext": [g.count(n, "stream").replace(" ", "<br>"), "prompt"],
            "tickfont": {"size": 10.5}}


def _steps_axis(domain: tuple[float, float], top: float) -> dict[str, Any]:
    return {"domain": list(domain), "range": [0, top], "fixedrange": True, "showgrid": False, "zeroline": False,
            "tickvals": [top / 2], "ticktext": ["engine"], "tickfont": {"size": 10.5}}


def _log(tokens: float) -> float:
    """Height of so many tokens: a step holds a few, or ten thousand."""
    return math.log2(1 + tokens)


def _top(result: Result) -> float:
    return 1.06 * _log(max(float((run.steps.prefill + run.steps.decode).max()) for run in result.runs.values()))


def _clock(start: float, end: float, answer: bool) -> dict[str, Any]:
    """Time since the landing; without the answer only the landing is marked."""
    axis = g.time_axis(end, "")
    unit, at = "ms" if end <= 60_000 else "s", axis["tickvals"]
    words = ["landing", *(axis["ticktext"][1:] if answer else [""] * (len(at) - 1))]
    if answer:
        words[-1] += f" {unit}"
    return axis | {"range": [start, end], "ticktext": words, "title": {"text": ""}}


def _title(result: Result, key: str, answer: bool) -> str:
    """ "Prompt first and alone  gap 1.63 s, TTFT 1.62 s"."""
    found = result.summaries[key]
    said = f"  gap {g.duration(found['gap_max_ms'] / 1000)}, TTFT {g.duration(found['ttft_ms'] / 1000)}" if answer else ""
    return f"<b>{names(result)[key]}</b>{said}"


def _targets(result: Result, key: str, axis: str, start: float) -> list[dict[str, Any]]:
    """A bar over each stream's lane that cannot be seen, to point at and to click."""
    n, gap = result.scenario.streams, result.gaps[key]
    tokens = len(scenario.token_ms(result, key, 0.0))
    says = (f"{tokens} tokens from the landing on<br>longest gap {g.duration(gap.ms / 1000)}, "
            f"from {gap.start_ms:,.0f} to {gap.end_ms:,.0f} ms")
    return [{"type": "bar", "orientation": "h", "name": "streams", "yaxis": axis, "width": 1.0,
             "y": [k + 0.5 for k in range(n)], "base": [start] * n, "x": [result.end_ms - start] * n,
             "marker": {"color": "rgba(0,0,0,0)", "line": {"width": 0}}, "customdata": [[k] for k in range(n)],
             "hovertemplate": [f"<b>stream {k + 1}</b>: {says}<extra></extra>" for k in range(n)]}]


def _ticks(result: Result, key: str, axis: str, start: float, dark: bool) -> list[dict[str, Any]]:
    """A tick for each token. All streams have theirs at the end of the same steps, so a line through all lanes draws a step's.

    Closer than the picture can show they are drawn once.
    """
    at = thinned(scenario.token_ms(result, key, start), result.end_ms - start)
    n = result.scenario.streams
    x = np.repeat(np.round(at, 2), 3).tolist()
    return [{"type": "scatter", "mode": "lines", "name": "token", "yaxis": axis, "x": x,
             "y": [0, n, None] * len(at), "connectgaps": False, "hoverinfo": "skip",
             "line": {"width": 1.4, "color": g.colour("decode", dark)}}]


def thinned(at: Floats, span: float) -> Floats:
    """Of moments that fall into one of MOST_TICKS parts of `span`, the first and, so that no gap grows, the last."""
    if len(at) <= MOST_TICKS:
        return at
    part = np.floor(at / (span / (MOST_TICKS / 2)))
    edge = np.diff(part) != 0
    return at[np.concatenate(([True], edge)) | np.concatenate((edge, [True]))]


def _separators(result: Result, axis: str, start: float, dark: bool) -> list[dict[str, Any]]:
    """Paper between the lanes, which cuts the lines of a step into the ticks of its streams."""
    n = result.scenario.streams
    y = [value for k in range(n + 1) for value in (k, k, None)]
    return [{"type": "scatter", "mode": "lines", "name": "lanes", "yaxis": axis, "x": [start, result.end_ms, None] * (n + 1),
             "y": y, "hoverinfo": "skip", "line": {"width": min(1.4, 0.3 * STREAMS_PX / n), "color": g.theme(dark).paper}}]


def _newcomers(result: Result, key: str, axis: str, dark: bool) -> list[dict[str, Any]]:
    """Each long prompt: it waits, it is computed, and it has its first token; its further ones are not drawn."""
    run, landing, n = result.runs[key], result.scenario.landing_us, result.scenario.streams
    k = len(run) - n
    arrival, admitted, first = ((column[n:] - landing) / 1000 for column in
                                (run.trace.arrival_us, run.admitted_us, run.first_token_us))
    tall = _rows(result) / k
    y = (n + tall * (np.arange(k) + 0.5)).tolist()
    data = []
    for role, a, b in (("waiting", arrival, admitted), ("prefill", admitted, first)):
        marker = g.swatch(role, dark)
        marker["pattern"] = marker["pattern"] | {"size": 4}
        data.append({
            "type": "bar", "orientation": "h", "name": g.ROLES[role].label, "yaxis": axis, "width": 0.7 * tall, "y": y,
            "base": np.round(a, 2).tolist(), "x": np.round(b - a, 2).tolist(), "marker": marker,
            "customdata": [[n + j, f"{s:,.0f}–{t:,.0f} ms ({t - s:,.0f} ms)"] for j, (s, t) in
                           enumerate(zip(a.tolist(), b.tolist(), strict=True))],
            "hovertemplate": f"<b>long prompt</b>: {g.ROLES[role].says}<br>%{{customdata[1]}}<extra></extra>"})
    data.append({
        "type": "scatter", "mode": "markers", "name": "first token", "yaxis": axis, "x": np.round(first, 2).tolist(), "y": y,
        "marker": {"symbol": "diamond", "size": max(5.0, min(9.0, 0.9 * NEW_PX / k)), "color": g.colour("decode", dark),
                   "line": {"width": 1, "color": g.theme(dark).ink}},
        "customdata": [[n + j] for j in range(k)],
        "hovertemplate": [f"<b>long prompt {j + 1}</b>: first token, TTFT {t - s:,.0f} ms<extra></extra>" for j, (s, t) in
                          enumerate(zip(arrival.tolist(), first.tolist(), strict=True))]})
    return data


def _engine(result: Result, key: str, axis: str, start: float, dark: bool) -> list[dict[str, Any]]:
    """What each step holds, stacked: decode tokens below, prompt tokens on top. Steps without prompt tokens are one bar a row."""
    a, b, decode, prefill, count = steps_ms(result, key, start)
    low, high = np.log2(1 + decode), np.log2(1 + decode + prefill)
    custom = [[-1, f"{p:,} prompt and {d:,} decode tokens",
               f"{s:,.0f}–{e:,.0f} ms" + (f", {k:,} steps of {(e - s) / k:,.1f} ms" if k > 1 else f", a step of {e - s:,.1f} ms")]
              for s, e, d, p, k in zip(a.tolist(), b.tolist(), decode.tolist(), prefill.tolist(), count.tolist(), strict=True)]
    data = []
    for role, base, top in (("decode", np.zeros(len(a)), low), ("prefill", low, high)):
        mine = np.flatnonzero(top > base)
        data.append({
            "type": "bar", "name": g.ROLES[role].label, "yaxis": axis, "x": np.round((a + b)[mine] / 2, 2).tolist(),
            "width": np.round((b - a)[mine], 2).tolist(), "base": np.round(base[mine], 3).tolist(),
            "y": np.round((top - base)[mine], 3).tolist(),
            "marker": {"color": g.colour(role, dark), "line": {"width": 0.5, "color": g.theme(dark).paper}},
            "customdata": [custom[i] for i in mine.tolist()],
            "hovertemplate": f"<b>{g.ROLES[role].says}</b>: %{{customdata[1]}}<br>%{{customdata[2]}}<extra></extra>"})
    return data


def steps_ms(result: Result, key: str, start: float) -> tuple[Floats, Floats, Ints, Ints, Ints]:
    """What the engine runs from `start` to the end of the picture: start and end, ms; decode and prompt tokens; how many steps.

    A row of the run, except that of steps with prompt tokens each stands for itself, unless they are more than MOST_STEPS.
    """
    run, landing = result.runs[key], result.scenario.landing_us
    steps = run.steps
    mine = (steps.start_us < landing + 1000 * result.end_ms) & (steps.end_us > landing + 1000 * start)
    each = mine & (steps.prefill > 0)
    split = each if steps.count[each].sum() <= MOST_STEPS else np.zeros(len(mine), bool)
    rows = np.repeat(np.arange(len(mine)), np.where(split, steps.count, 1) * mine)
    place = np.arange(len(rows)) - np.searchsorted(rows, rows)
    first, growth, begin = steps.first_us[rows], steps.growth_us[rows], steps.start_us[rows]
    a = begin + place * first + growth * (place * (place - 1) / 2)
    b = np.where(split[rows], a + first + place * growth, steps.end_us[rows])
    a, b = (np.clip((x - landing) / 1000, start, result.end_ms) for x in (a, b))
    return a, b, steps.decode[rows], steps.prefill[rows], np.where(split[rows], 1, steps.count[rows])


def _hole(result: Result, key: str, axis: str, answer: bool, dark: bool) -> dict[str, Any]:
    """The longest gap, outlined over all streams; hidden without the answer."""
    gap, tone = result.gaps[key], g.colour("stalled", dark)
    return {"name": "gap", "type": "rect", "xref": "x", "yref": axis, "x0": gap.start_ms, "x1": gap.end_ms, "y0": 0,
            "y1": result.scenario.streams, "layer": "above", "visible": answer, "fillcolor": _clear(tone, 0.13),
            "line": {"width": 2, "color": tone}}


def _length(result: Result, key: str, axis: str, dark: bool) -> list[dict[str, Any]]:
    """The gap's length on a tag: inside where there is room on a narrow screen, else beside it, towards the middle."""
    gap, look, n = result.gaps[key], g.theme(dark), result.scenario.streams
    span = result.end_ms + SHOWN_BEFORE_MS
    text = f"<b>{g.duration(gap.ms / 1000)}</b>"
    says = f"{text} without a token"
    inside = gap.ms / span * NARROW >= 6.2 * len(says) - 30
    right = (gap.start_ms + gap.end_ms) / 2 > (result.end_ms - SHOWN_BEFORE_MS) / 2
    at = (gap.start_ms + gap.end_ms) / 2 if inside else gap.start_ms if right else gap.end_ms
    side = "center" if inside else "right" if right else "left"
    return [g.note(says if inside else text, at, n / 2, dark, xref="x", yref=axis, xanchor=side, yanchor="middle",
                   xshift=0 if inside else -3 if right else 3, bgcolor=g.colour("stalled", dark), borderpad=3,
                   font={"size": 13 if inside else 12, "color": look.on_solid})]


def _clear(tone: str, by: float) -> str:
    """A colour, let through by so much."""
    return f"rgba({int(tone[1:3], 16)},{int(tone[3:5], 16)},{int(tone[5:7], 16)},{by})"


def _chosen(result: Result, key: str, axis: str, selected: int | None, start: float, dark: bool) -> dict[str, Any]:
    """A frame round the lane of the selected request, or a hidden one."""
    frame = {"name": "selected", "type": "rect", "xref": "x", "yref": axis, "layer": "above", "visible": selected is not None,
             "line": {"color": g.theme(dark).select, "width": 2}, "x0": start, "x1": result.end_ms, "y0": 0, "y1": 0}
    if selected is None:
        return frame
    n = result.scenario.streams
    if selected < n:
        return frame | {"y0": selected, "y1": selected + 1}
    tall = _rows(result) / (len(result.runs[key]) - n)
    thin = {"line": {"color": g.theme(dark).select, "width": 1}} if len(result.runs[key]) - n > 1 else {}
    return frame | thin | {"y0": n + tall * (selected - n), "y1": n + tall * (selected - n + 1)}


def _landing(result: Result, axis: str, dark: bool) -> dict[str, Any]:
    return {"name": "landing", "type": "line", "xref": "x", "yref": axis, "x0": 0, "x1": 0, "y0": 0,
            "y1": result.scenario.streams + _rows(result), "layer": "above",
            "line": {"color": g.theme(dark).ink, "width": 1, "dash": "dot"}}


def _said_of_steps(result: Result, key: str, axis: str, top: float, dark: bool) -> list[dict[str, Any]]:
    """What the steps with prompt tokens are: over them where they are low, else on them; where it fits on a narrow screen."""
    steps, look, zero = result.runs[key].steps, g.theme(dark), result.scenario.landing_us
    mine = (steps.prefill > 0) & (steps.end_us > zero)
    count, most = int(steps.count[mine].sum()), int((steps.prefill + steps.decode)[mine].max())
    a, b = (float(steps.start_us[mine][0]) - zero) / 1000, (float(steps.end_us[mine][-1]) - zero) / 1000
    text = f"one step of {most:,} tokens" if count == 1 else f"{count:,} steps of up to {most:,} tokens"
    px = (b - a) / (result.end_ms + SHOWN_BEFORE_MS) * NARROW
    above = (1 - _log(most) / top) * STEPS_PX >= 12
    if px < 5.4 * len(text) and not above:
        return []
    low = _log(float(steps.decode[mine].min()))
    fits = px >= 5.4 * len(text)
    return [g.note(text, (a + b) / 2 if fits else max(a, 0.0), _log(most) if above else (low + _log(most)) / 2, dark, xref="x",
                   yref=axis, xanchor="center" if fits else "left", yanchor="bottom" if above else "middle",
                   yshift=-2 if above else 0, font={"size": 11, "color": look.ink if above else look.on_solid},
                   **({} if above or count == 1 else {"bgcolor": g.colour("prefill", dark), "borderpad": 0}))]


def _below(answer: bool, dark: bool) -> list[dict[str, Any]]:
    """The key; the gap is in it where it is drawn."""
    tick = f'<span style="color:{g.colour("decode", dark)}"><b>|</b></span> token of a stream'
    hole = f'<span style="color:{g.colour("stalled", dark)}"><b>▭</b></span> longest gap'
    first = f'<span style="color:{g.colour("decode", dark)}">◆</span> first token'
    above = "  ".join([tick, *([hole] if answer else []), first])
    below = "  ".join([*g.key(("waiting", "prefill", "decode"), dark), "(engine: log of tokens)"])
    return [g.note(f"{above}<br>{below}", 0, 0, dark, xshift=-LEFT_PX + 4, yshift=-18, yanchor="top",
                   font={"size": 11, "color": g.theme(dark).muted})]


def alt_stage(result: Result, answer: bool = True) -> str:
    """The stage's finding in words; without the lengths if `answer` is False."""
    values = result.scenario.values
    what = (f"{g.count(int(values['streams']), 'stream')} in mid-reply and "
            f"{g.count(int(values['long']), 'prompt')} of {int(values['prompt']):,} tokens landing among them, under three "
            "policies")
    if not answer:
        return f"{what}: the streams' tokens as ticks over time, and what the engine runs in each step."
    said = [f"{name}: the longest gap between two tokens is {g.duration(found['gap_max_ms'] / 1000)}, the newcomer's first token "
            f"comes after {g.duration(found['ttft_ms'] / 1000)}"
            for name, found in ((name, result.summaries[key]) for key, name in names(result).items())]
    return f"{what}. {'. '.join(said)}."


def table_stage(result: Result, answer: bool = True) -> pd.DataFrame:
    """A row for each stretch of steps under each policy, from the landing on; ms since the landing, unless `answer` is False."""
    parts = []
    for key, name in names(result).items():
        a, b, decode, prefill, count = steps_ms(result, key, 0.0)
        parts.append(pd.DataFrame({"policy": name, "from, ms": a, "to, ms": b, "steps": count, "prompt tokens in each": prefill,
                                   "stream and other decode tokens in each": decode}))
    every = pd.concat(parts, ignore_index=True)
    return every if answer else every.drop(columns=["from, ms", "to, ms", "steps"])


# --- why: step time over the tokens in the step -------------------------------------------------------------------------


def roofline(roof: Roofline, *, dark: bool) -> Pic:
    """Step time over tokens in the step, both logarithmic: model, measured points, floor and slope, which meet at the ridge."""
    look, x = g.theme(dark), roof.tokens
    low, high = _roofline_range(roof)
    slope = roof.slope_ms >= 0.55 * roof.floor_ms
    data = [
        _asymptote("weights-bound floor", x, np.full(len(x), roof.floor_ms), dark),
        _asymptote("compute-bound slope", x[slope], roof.slope_ms[slope], dark),
        {"type": "scatter", "mode": "lines", "name": "decode, model", "x": x[:len(roof.decode_ms)].tolist(),
         "y": np.round(roof.decode_ms, 3).tolist(), "line": {"color": g.colour("decode", dark), "width": 2.5},
         "hovertemplate": "model: %{x} streams decode in %{y:.1f} ms<extra></extra>"},
        {"type": "scatter", "mode": "lines", "name": "prompt, model", "x": x.tolist(), "y": np.round(roof.prefill_ms, 3).tolist(),
         "line": {"color": g.colour("prefill", dark), "width": 2.5},
         "hovertemplate": "model: a prompt of %{x:,} tokens takes %{y:.1f} ms<extra></extra>"}]
    for kind, symbol in (("decode", "circle"), ("prefill", "diamond")):
        mine = [(t, ms) for k, t, ms in roof.points if k == kind]
        data.append({"type": "scatter", "mode": "markers", "name": f"{kind}, measured", "x": [t for t, _ in mine],
                     "y": [ms for _, ms in mine],
                     "marker": {"symbol": symbol, "size": 9, "color": look.paper,
                                "line": {"width": 2, "color": g.colour(kind, dark)}},
                     "hovertemplate": "measured: %{x:,} tokens, %{y:.1f} ms<extra></extra>"})
    data.append({"type": "scatter", "mode": "markers", "name": "you are here", "x": [roof.budget], "y": [roof.step_ms],
                 "marker": {"symbol": "star", "size": 14, "color": look.select, "line": {"width": 1, "color": look.paper}},
                 "hovertemplate": "a full step of the chunks: %{x:,} tokens, %{y:.1f} ms<extra></extra>"})
    shapes = [_upright("ridge", roof.ridge, look.ink, "dot"), _upright("here", roof.budget, look.select, "dot")]
    ticks = [4, 16, 64, 256, 1024, 4096, 16384]
    sheet = g.layout(
        dark, ROOFLINE_HEIGHT, margin={"l": 42, "r": 14, "t": 22, "b": 70}, shapes=shapes,
        annotations=_roofline_words(roof, low, dark),
        xaxis={"type": "log", "range": [math.log10(FROM_TOKENS), math.log10(20000)], "tickvals": ticks,
               "ticktext": [f"{t:,}" for t in ticks], "fixedrange": True, "showgrid": False, "ticks": "outside", "ticklen": 4,
               "title": {"text": "tokens in the step"}},
        yaxis={"type": "log", "range": [math.log10(low), math.log10(high)], "fixedrange": True, "showgrid": True,
               "tickvals": [t for t in (1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000) if low <= t <= high],
               "ticktext": [f"{t:,}" for t in (1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000) if low <= t <= high]})
    return Pic({"data": data, "layout": sheet}, alt_roofline(roof), lambda: table_roofline(roof), ROOFLINE_HEIGHT)


FROM_TOKENS = 3
"""Where the axis of the roofline begins."""


def _roofline_range(roof: Roofline) -> tuple[float, float]:
    return 0.55 * roof.floor_ms, 1.6 * float(max(roof.prefill_ms.max(), roof.step_ms))


def _asymptote(name: str, x: Ints, y: Floats, dark: bool) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "name": name, "x": x.tolist(), "y": np.round(y, 3).tolist(), "hoverinfo": "skip",
            "line": {"color": g.theme(dark).muted, "width": 1.5, "dash": "dash"}}


def _upright(name: str, x: float, tone: str, dash: str) -> dict[str, Any]:
    return {"name": name, "type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "layer": "below",
            "line": {"color": tone, "width": 1.5, "dash": dash}}


def _roofline_words(roof: Roofline, low: float, dark: bool) -> list[dict[str, Any]]:
    """The lines' names on them, what the verticals are above, and the key below."""
    look = g.theme(dark)
    muted, small = {"size": 11, "color": look.muted}, {"size": 11, "color": look.select}
    here, ridge = math.log10(roof.budget), math.log10(roof.ridge)
    left = here < ridge
    slope = int(np.argmin(np.abs(roof.slope_ms - 2.2 * roof.floor_ms)))
    words = [
        g.note("weights-bound floor", math.log10(1.1 * FROM_TOKENS), math.log10(roof.floor_ms), dark, xref="x", yref="y",
               yanchor="top", yshift=-3, font=muted),
        g.note("compute-bound slope", math.log10(float(roof.tokens[slope])), math.log10(2.2 * roof.floor_ms), dark,
               xref="x", yref="y", xshift=8, yshift=-4, yanchor="top", bgcolor=look.paper, borderpad=1, font=muted),
        g.note(f"ridge, {roof.ridge:,.0f}", ridge, 1, dark, xref="x", xanchor="left" if left else "right", yshift=2,
               xshift=-4 if left else 4, font={"size": 11, "color": look.ink}),
        g.note(f"budget, {roof.budget:,}", here, 1, dark, xref="x", xanchor="right" if left else "left", yshift=2,
               xshift=4 if left else -4, font=small)]
    if roof.budget > 6000:
        words[-1] |= {"xanchor": "right", "xshift": 8}
    key = [_mark("prefill", "◇", dark) + " one prompt",
           _mark("decode", "○", dark) + f" streams, {roof.context:,} tokens of context",
           f'<span style="color:{look.select}">★</span> full step with chunks']
    model = "— model" + ("  ◇ ○ measured" if roof.points else ", nothing measured")
    lines = f"{key[0]}  {key[1]}<br>{key[2]}  {model}"
    return [*words, g.note(lines, 0, 0, dark, xshift=-38, yshift=-36, yanchor="top", font=muted),
            g.note("step time, ms", 0, 1, dark, xshift=-38, yshift=2, font=muted)]


def _mark(role: str, sign: str, dark: bool) -> str:
    return f'<span style="color:{g.colour(role, dark)}"><b>{sign}</b></span>'


def alt_roofline(roof: Roofline) -> str:
    """The roofline's finding in words."""
    at = float(np.interp(roof.ridge, roof.tokens, roof.prefill_ms))
    said = f"Measured points: {roof.source}." if roof.points else f"There are {roof.source}."
    return (f"Step time over tokens in the step. It is at least {roof.floor_ms:.1f} ms, to read the weights, and grows with the "
            f"tokens beyond the ridge at {roof.ridge:,.0f} tokens; the corner is round: at the ridge a step takes {at:.1f} ms. A "
            f"full step at the budget of {roof.budget:,} tokens takes {roof.step_ms:.1f} ms. {said}")


def table_roofline(roof: Roofline) -> pd.DataFrame:
    """A row for each measured point, and for powers of two: tokens, model and measured, ms."""
    rows: list[dict[str, Any]] = []
    curves = {"prefill": (roof.tokens, roof.prefill_ms, "a prompt"),
              "decode": (roof.tokens[:len(roof.decode_ms)], roof.decode_ms, "streams that decode")}
    measured = {(kind, tokens): ms for kind, tokens, ms in roof.points}
    for kind, (tokens, ms, what) in curves.items():
        powers = [t for t in 2 ** np.arange(15) if t <= tokens[-1]]
        for t in sorted({*map(int, powers), *(t for k, t, _ in roof.points if k == kind and t <= tokens[-1])}):
            rows.append({"step of": what, "tokens": t, "model, ms": float(np.interp(t, tokens, ms)),
                         "measured, ms": measured.get((kind, t), math.nan)})
    return pd.DataFrame(rows)


# --- the sweep, the band, the load ------------------------------------------------------------------------------------

SHORT = {"alone": "alone", "chunks": "chunks", "whole": "whole"}
"""What each policy is called where there is little room, in the order of the styles of lines: chunks is the solid one."""


def sweep(curve: Sweep, *, dark: bool) -> Pic:
    """What the token budget does over its range: longest gap, TTFT, prompt tokens/s lost, with the ridge and "you are here"."""
    first = {key: ms / 1000 for key, ms in curve.ttft_ms.items()}
    rows = [Row("longest gap of a stream, ms", ",.0f", _by_policy(curve.gap_ms)),
            Row("TTFT of the long prompt, s", "~g", _by_policy(first)),
            Row("prompt tokens/s lost to chunking", ",.0f", {"": np.full(len(curve.x), np.nan), "chunks": curve.lost})]
    below = curve.note or f"of {curve.whole:,.0f} that a whole prompt reaches with no stream beside it"
    figure = g.strip(curve.x, rows, curve.x_here, x_title="token budget, tokens in a step", dark=dark, height=SWEEP_HEIGHT,
                     log=True, note_below=below)
    look, sheet = g.theme(dark), figure["layout"]
    figure["data"] = [trace | ({} if trace["name"] == "chunks" else {"mode": "lines"})  # no budget, so nothing to mark
                      for trace in figure["data"] if trace["name"]]
    sheet["annotations"] = [a for a in sheet["annotations"] if a["text"]]
    marks = [64, 256, 1024, 4096, 16384]
    sheet["xaxis"] |= {"tickvals": marks, "ticktext": [f"{t:,}" for t in marks]}
    if curve.x[0] / 2 <= curve.ridge <= curve.x[-1]:
        sheet["shapes"].append(_upright("ridge", curve.ridge, look.muted, "dot"))
        near = abs(math.log2(curve.x_here / curve.ridge)) < 1.6
        right = curve.x_here < curve.ridge
        sheet["annotations"].append(g.note(f"ridge {curve.ridge:,.0f}", math.log10(curve.ridge), 0, dark, xref="x",
                                           yref="y2 domain", yanchor="top", xanchor="left" if right or not near else "right",
                                           xshift=3 if right or not near else -3, yshift=19,
                                           font={"size": 11, "color": look.muted}))
    return Pic(figure, alt_sweep(curve), lambda: table_sweep(curve), SWEEP_HEIGHT)


def _by_policy(values: dict[str, Floats]) -> dict[str, Floats]:
    return {short: values[key] for key, short in SHORT.items()}


def alt_sweep(curve: Sweep) -> str:
    """The sweep's finding in words: at both ends, at the budget nearest the ridge, and here."""
    nearest = int(np.argmin(np.abs(np.log(curve.x / curve.ridge))))
    here = int(np.flatnonzero(curve.x == curve.x_here)[0])
    places = {0: "", len(curve.x) - 1: "", nearest: " (nearest the ridge)", here: " (here)"}
    said = [f"at {curve.x[i]:,.0f}{word} longest gap {g.duration(curve.gap_ms['chunks'][i] / 1000)}, TTFT "
            f"{g.duration(curve.ttft_ms['chunks'][i] / 1000)}, {curve.lost[i]:,.0f} prompt tokens/s lost"
            for i, word in sorted(places.items())]
    return (f"Sweep over the token budget: {'; '.join(said)}. Prompt first and alone: longest gap "
            f"{g.duration(curve.gap_ms['alone'][0] / 1000)}, TTFT {g.duration(curve.ttft_ms['alone'][0] / 1000)}.")


def table_sweep(curve: Sweep) -> pd.DataFrame:
    """A row for each budget."""
    return pd.DataFrame({
        "token budget": curve.x.astype(int),
        **{f"{short}: longest gap, ms": curve.gap_ms[key] for key, short in SHORT.items()},
        **{f"{short}: TTFT, ms": curve.ttft_ms[key] for key, short in SHORT.items()},
        "prompt tokens/s lost": curve.lost})


def band(spread: Band, result: Result, *, dark: bool) -> Pic:
    """The longest gap over the seeds: a dot for each, the median, and the run on the screen."""
    look = g.theme(dark)
    data: list[dict[str, Any]] = []
    notes = [g.note("◆ on the screen", 1, 1, dark, xanchor="right", yshift=3, font={"size": 11, "color": look.select})]
    every = np.concatenate(list(spread.gap_ms.values()))
    low, high = float(every.min()), float(every.max())
    for k, (key, short) in enumerate(SHORT.items()):
        gap = spread.gap_ms[key]
        middle = float(np.median(gap))
        data.append({"type": "scatter", "mode": "markers", "name": short, "x": np.round(gap, 3).tolist(), "y": [k] * len(gap),
                     "marker": {"symbol": "circle-open", "size": 9, "line": {"width": 2},
                                "color": g.policy_line(k, dark)["color"]},
                     "text": [f"seed {s}: TTFT {t:,.0f} ms" for s, t in
                              zip(spread.seeds, spread.ttft_ms[key].tolist(), strict=True)],
                     "hovertemplate": "%{text}, longest gap %{x:,.1f} ms<extra></extra>"})
        data.append({"type": "scatter", "mode": "markers", "name": "on the screen", "x": [result.gaps[key].ms], "y": [k],
                     "marker": {"symbol": "diamond", "size": 11, "color": look.select},
                     "hovertemplate": "on the screen: %{x:,.1f} ms<extra></extra>"})
        right = math.log(middle / low) > 0.6 * math.log(max(high / low, 1.01))
        notes.append(g.note(f"median {g.duration(middle / 1000)}, {_range(gap)}", math.log10(middle), k, dark, xref="x", yref="y",
                            xanchor="right" if right else "left", yanchor="middle", xshift=-10 if right else 10,
                            font={"size": 11, "color": look.ink}))
    ticks = [t for t in (3, 10, 30, 100, 300, 1000, 3000, 10000, 30000) if low / 1.6 <= t <= high * 1.6]
    sheet = g.layout(
        dark, BAND_HEIGHT, margin={"l": 52, "r": 16, "t": 20, "b": 40}, annotations=notes,
        yaxis={"range": [2.6, -0.6], "tickvals": [0, 1, 2], "ticktext": list(SHORT.values()), "fixedrange": True,
               "showgrid": False, "tickfont": {"size": 12, "color": look.ink}},
        xaxis={"type": "log", "range": [math.log10(low / 1.6), math.log10(high * 1.6)], "tickvals": ticks, "fixedrange": True,
               "ticktext": [f"{t:,}" for t in ticks], "title": {"text": f"longest gap, ms, {len(spread.seeds)} seeds"}})
    return Pic({"data": data, "layout": sheet}, alt_band(spread), lambda: table_band(spread), BAND_HEIGHT)


def _range(values: Floats) -> str:
    return f"{float(values.min()):,.1f} to {float(values.max()):,.1f} ms"


def alt_band(spread: Band) -> str:
    """The band's finding in words."""
    said = [f"{short}: longest gap {_range(spread.gap_ms[key])}, TTFT {_range(spread.ttft_ms[key])}"
            for key, short in SHORT.items()]
    return f"Over {len(spread.seeds)} seeds. {'; '.join(said)}."


def table_band(spread: Band) -> pd.DataFrame:
    """A row for each seed."""
    return pd.DataFrame({"seed": spread.seeds,
                         **{f"{short}: longest gap, ms": spread.gap_ms[key] for key, short in SHORT.items()},
                         **{f"{short}: TTFT, ms": spread.ttft_ms[key] for key, short in SHORT.items()}})


def curve(found: Curve, *, dark: bool) -> Pic:
    """P99 time between tokens against load, a line for each policy that was searched, with the limit and the capacity found."""
    look = g.theme(dark)
    every = np.concatenate([load.tbt_p99_ms for load in found.loads.values()] + [np.array([found.slo_tbt_ms])])
    low, high = 0.7 * float(np.nanmin(every)), 1.9 * float(np.nanmax(every))
    widest = 1.08 * max(float(load.rate.max()) for load in found.loads.values())
    shown = {key: (k, found.loads[key]) for k, key in enumerate(SHORT) if key in found.loads}
    data = [trace for key, (k, load) in shown.items() for trace in _load(SHORT[key], k, load, dark)]
    small = {"size": 11, "color": look.muted}
    capacities = ", ".join(f"{SHORT[key]} {load.capacity:.2f}" if load.capacity > 0 else f"{SHORT[key]} none"
                           for key, (_, load) in shown.items())
    notes = [
        g.note(f"limit {found.slo_tbt_ms:,.0f} ms", 1, math.log10(found.slo_tbt_ms), dark, yref="y", xanchor="right", yshift=1,
               bgcolor=_clear(look.paper, 0.75), font={"size": 11, "color": look.loss}),
        g.note(f'P99 TBT, ms  (faint: a limit is broken)<br><span style="color:{look.select}">◆</span> capacity, requests/s: '
               f"{capacities}", 0, 1, dark, xshift=-42, yshift=3, font=small),
        *_tops(shown, widest, (CURVE_HEIGHT - 78) / math.log10(high / low), dark), *_queued(shown, found, dark)]
    ticks = [t for t in (3, 10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000) if low <= t <= high]
    sheet = g.layout(
        dark, CURVE_HEIGHT, margin={"l": 46, "r": 14, "t": 38, "b": 40}, annotations=notes,
        shapes=[{"name": "limit", "type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": found.slo_tbt_ms,
                 "y1": found.slo_tbt_ms, "line": {"color": look.loss, "width": 2}}],
        xaxis={"range": [0, widest], "fixedrange": True, "showgrid": False, "ticks": "outside", "ticklen": 4, "nticks": 8,
               "title": {"text": "requests/s"}},
        yaxis={"type": "log", "range": [math.log10(low), math.log10(high)], "tickvals": ticks, "fixedrange": True,
               "ticktext": [f"{t:,}" for t in ticks], "showgrid": True})
    return Pic({"data": data, "layout": sheet}, alt_curve(found), lambda: table_curve(found), CURVE_HEIGHT)


def _load(short: str, k: int, load: Load, dark: bool) -> list[dict[str, Any]]:
    """The k-th policy's line, and a mark at its capacity, if it has one."""
    look, some = g.theme(dark), load.capacity > 0
    at = float(np.interp(load.capacity, load.rate, load.tbt_p99_ms))
    return [{"type": "scatter", "mode": "lines+markers", "name": short, "x": load.rate.tolist(),
             "y": np.round(load.tbt_p99_ms, 3).tolist(), "line": g.policy_line(k, dark) | {"width": 2},
             "marker": g.policy_mark(k, dark, 7) | {"opacity": [1.0 if held else 0.4 for held in load.holds.tolist()]},
             "cliponaxis": False,
             "text": [f"median scheduling delay {g.duration(d)}" for d in load.delay_p50_s.tolist()],
             "hovertemplate": f"{short}, %{{x:.2f}} requests/s: P99 TBT %{{y:,.0f}} ms, %{{text}}<extra></extra>"},
            {"type": "scatter", "mode": "markers", "name": f"capacity, {short}", "x": [load.capacity] if some else [],
             "y": [at] if some else [],
             "marker": {"symbol": "diamond", "size": 13, "color": look.select, "line": {"width": 1, "color": look.paper}},
             "hovertemplate": f"capacity, {short}: %{{x:.2f}} requests/s<extra></extra>"}]


def _tops(shown: dict[str, tuple[int, Load]], widest: float, px: float, dark: bool) -> list[dict[str, Any]]:
    """Each policy's name beside its last point, or over it where the picture ends; apart where two would meet. px: a decade's."""
    words: list[dict[str, Any]] = []
    before, above = -math.inf, -math.inf
    ends = {key: (float(load.rate[-1]), math.log10(float(load.tbt_p99_ms[-1])), k) for key, (k, load) in shown.items()}
    for key, (x, y, k) in sorted(ends.items(), key=lambda item: item[1][:2]):
        beside = x < 0.8 * widest
        place = px * y + (0 if beside else 12)
        if (x - before) / widest * NARROW < 44:
            place = max(place, above + 13)
        words.append(g.note(SHORT[key], x, y, dark, xref="x", yref="y", xanchor="left" if beside else "center", yanchor="middle",
                            xshift=9 if beside else 0, yshift=round(place - px * y),
                            font={"size": 12, "color": g.policy_line(k, dark)["color"]}))
        before, above = x, place
    return words


def _queued(shown: dict[str, tuple[int, Load]], found: Curve, dark: bool) -> list[dict[str, Any]]:
    """Where it is the queue that ends a policy's capacity, not the time between tokens: that, under its mark."""
    words = []
    for _, load in shown.values():
        beyond = load.rate > load.capacity * (1 + 1e-9)
        if load.capacity > 0 and beyond.any() and load.tbt_p99_ms[beyond][0] <= found.slo_tbt_ms:
            at = math.log10(float(np.interp(load.capacity, load.rate, load.tbt_p99_ms)))
            text = f"beyond: median<br>delay over {found.slo_delay_s:g} s"
            words.append(g.note(text, load.capacity, at, dark, xref="x", yref="y", xanchor="center", yanchor="top", yshift=-9,
                                align="center", font={"size": 11, "color": g.theme(dark).loss}))
    return words


def alt_curve(found: Curve) -> str:
    """The capacities in words."""
    said = [f"{SHORT[key]} {load.capacity:.2f} requests/s" if load.capacity > 0 else f"{SHORT[key]} none at any rate tried"
            for key, load in found.loads.items()]
    return (f"P99 time between tokens against load. Largest rate with P99 TBT of at most {found.slo_tbt_ms:,.0f} ms and a median "
            f"scheduling delay of at most {found.slo_delay_s:g} s: {g.listed(said)}. {found.what}")


def table_curve(found: Curve) -> pd.DataFrame:
    """A row for each rate that was simulated."""
    return pd.concat([pd.DataFrame({
        "policy": SHORT[key], "requests/s": load.rate, "P99 TBT, ms": load.tbt_p99_ms,
        "median scheduling delay, s": load.delay_p50_s, "within the limits": load.holds})
        for key, load in found.loads.items()], ignore_index=True)
