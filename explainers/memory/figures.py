"""The memory lesson's pictures: runs → Plotly figures with alt text and a table. Pure; nothing here knows Streamlit."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from explainers.kit import grammar as g
from explainers.kit.grammar import Floats, Ints, Pic, Row
from explainers.memory import scenario
from explainers.memory.scenario import Band, Preemption, Result, Sweep
from sim.kv.occupancy import PARTS, Occupancy, tokens_at
from sim.kv.reserve import blocks_needed
from sim.kv.sharing import Shared, beams, samples
from sim.orders import outputs
from sim.policy import Policy
from sim.run import LEFT, Run
from sim.trace import Trace

STAGE_HEIGHT = 416
STRIP_PX, STACK_PX = 99, 43
"""Height of an address space and of a stack over time, px."""
HEAD_PX, GAP_PX, BELOW_PX = 18, 6, 50
"""Room for a title, between the two times, and below: the numbers of the time axis and the key."""
LEFT_PX, RIGHT_PX = 44, 10
NARROW = 300
"""Pixels between the axes of the stage on a screen of 375 px."""
BINS = 160
"""Time bins of a stack over time."""
ROWS = 8
"""An address space is wrapped into more than half as many rows, and at most so many."""
DIGIT_PX = 7
MOST_DOTS = 1000
"""Steps of a recording that are drawn, and those in which we differ."""
MOST_PIECES = g.MOST_BARS // 2
"""Most bars of an address space: the stage has two."""
TABLE_HEIGHT, PREEMPTION_HEIGHT, SWEEP_HEIGHT, BAND_HEIGHT, SHARING_HEIGHT, RECORDED_HEIGHT = 300, 300, 346, 150, 300, 220
TOKENS, RESERVED, INTERNAL, EXTERNAL, FREE = range(len(PARTS))
WASTE = (INTERNAL, EXTERNAL)


def names(result: Result) -> dict[str, str]:
    """What each allocator is called on the screen, by key."""
    found = {key: policy.name for key, policy in result.scenario.policies.items()}
    return found | ({"other": f"{found['other']}, second"} if found["other"] == found["reserved"] else {})


def zero_us(result: Result) -> float:
    """The clock at which the first request comes, µs: 0 of every time axis."""
    return float(result.scenario.trace.arrival_us[0])


# --- one instant of the memory: who holds which slots -------------------------------------------------------------------


@dataclass(frozen=True)
class Cells:
    """The memory at one instant, from its first token slot to its last, as pieces of one part and one request each.

    start, length  token slots, int64
    part           index in PARTS
    request        who holds it, −1: nobody
    holders        how many requests hold it, 0: nobody
    pool           token slots in all;  row  token slots in a row of the picture: every piece lies within one row
    grain          1: exact; else so many token slots were taken together, for what most of them are
    """

    start: Ints
    length: Ints
    part: NDArray[np.int8]
    request: Ints
    holders: Ints
    pool: int
    row: int
    grain: int = 1

    @property
    def rows(self) -> int:
        """Rows of the picture."""
        return -(-self.pool // self.row)


def row_slots(pool: int) -> int:
    """Token slots in a row: a power of two, so that no piece of a buddy allocator is broken that fits in a row."""
    return 1 << max(0, math.ceil(math.log2(max(pool, 1) / ROWS)))


def cells(result: Result, key: str, t_us: float, most: int = MOST_PIECES) -> Cells:
    """What each token slot of an allocator's memory holds at t (µs), in the step that runs then.

    Where that is more than `most` pieces, requests are not told apart, and where it still is, slots are taken together.
    """
    run = result.runs[key]
    memory = run.policy.memory
    assert memory is not None  # build sees to it
    there, size = result.occupancies[key], memory.block_size
    alive = result.holdings(key, t_us).at(t_us)
    tokens, final = tokens_at(run, t_us, result.instants[key]), final_tokens(run)
    who = alive.request
    first, length, before = alive.first * size, alive.length * size, alive.logical * size
    filled = np.clip(tokens[who] - before, 0, length)
    lasts = np.clip(np.maximum(final, tokens)[who] - before, filled, length)
    held = np.clip(_reserved(run)[who] * size - before, lasts, length) if memory.contiguous else length
    part = np.full(there.pool, EXTERNAL if _waits(there, t_us) else FREE, np.int8)
    owner, holders = np.full(there.pool, -1, np.int64), np.zeros(there.pool, np.int64)
    np.add.at(holders, (i := _spread(first, length)), 1)
    for what, a, b in ((EXTERNAL, held, length), (INTERNAL, lasts, held), (RESERVED, filled, lasts), (TOKENS, 0, filled)):
        i = _spread(first + a, b - a)
        part[i], owner[i] = what, np.repeat(who, np.maximum(b - a, 0))
    return _runs(part, owner, holders, row_slots(there.pool), most)


def final_tokens(run: Run) -> Ints:
    """KV tokens of each request when its last token comes; of who left before, the most that it had computed."""
    final: Ints = run.trace.prompt + outputs(run.trace, run.policy) - 1
    left = np.isin(run.outcome, LEFT)
    if left.any():
        final = np.where(left, 0, final)
        for e in run.events:
            if left[e.request] and e.kind in ("preempted", "cancelled"):
                final[e.request] = max(int(final[e.request]), e.tokens)
    return final


@lru_cache(maxsize=16)
def _reserved_of(trace: Trace, policy: Policy) -> Ints:
    return blocks_needed(trace, policy)


def _reserved(run: Run) -> Ints:
    return _reserved_of(run.trace, run.policy)


def _waits(there: Occupancy, t_us: float) -> bool:
    row = int(np.searchsorted(there.start_us, t_us, side="right")) - 1
    return row >= 0 and t_us < there.end_us[row] and bool(there.waits[row])


def _spread(start: Ints, length: Ints) -> Ints:
    """Every number in the spans from `start` on."""
    length = np.maximum(length, 0)
    every: Ints = np.arange(length.sum()) + np.repeat(start - (np.cumsum(length) - length), length)
    return every


def _runs(part: NDArray[np.int8], owner: Ints, holders: Ints, row: int, most: int) -> Cells:
    """Runs of equal slots, broken at the ends of rows."""
    ends = (np.diff(part) != 0) | (np.diff(holders) != 0)
    ends[row - 1::row] = True
    whose, grain, pool = ends | (np.diff(owner) != 0), 1, len(part)
    if whose.sum() < most:
        ends = whose
    else:
        owner = np.full(pool, -1, np.int64)
        if ends.sum() >= most:
            grain = min(1 << math.ceil(math.log2(2 * pool / most)), row)
            part, holders = _coarse(part, grain), np.zeros(pool, np.int64)
            ends = np.diff(part) != 0
            ends[row - 1::row] = True
    start = np.concatenate(([0], np.flatnonzero(ends) + 1))
    return Cells(start, np.diff(np.append(start, pool)), part[start], owner[start], holders[start], pool, row, grain)


def _coarse(part: NDArray[np.int8], grain: int) -> NDArray[np.int8]:
    """Every `grain` neighbours made what most of them are."""
    group = np.arange(len(part)) // grain
    votes = np.bincount(group * len(PARTS) + part, minlength=(int(group[-1]) + 1) * len(PARTS)).reshape(-1, len(PARTS))
    return np.repeat(votes.argmax(axis=1).astype(np.int8), grain)[:len(part)]


def instant_us(result: Result) -> float:
    """The instant that is shown when the learner has chosen none."""
    return scenario.fullest_us(result.occupancies)


# --- the stage --------------------------------------------------------------------------------------------------------


def shown_us(result: Result, cursor_ms: float | None) -> float:
    """The instant that is shown: the cursor's, or the default where it stands behind the end of both runs, µs."""
    if cursor_ms is None or cursor_ms > axis_end_ms(result):
        return instant_us(result)
    return zero_us(result) + 1000 * cursor_ms


def stage(result: Result, *, dark: bool, selected: int | None = None, cursor_ms: float | None = None,
          answer: bool = True) -> Pic:
    """Both memories at one instant, and below them where the memory went over time, with the means, on one axis.

    answer False: how many requests fit at once, which the learner is about to predict, is neither stated nor to be counted:
    of the reserved memory one request is drawn.
    """
    zero, t_us = zero_us(result), shown_us(result, cursor_ms)
    hidden = () if answer else [key for key, run in result.runs.items() if run.policy == result.runs["reserved"].policy]
    there = {key: _one_request(cells(result, key, t_us)) if key in hidden else cells(result, key, t_us) for key in result.runs}
    end = axis_end_ms(result)
    data: list[dict[str, Any]] = []
    margin = {"l": LEFT_PX, "r": RIGHT_PX, "t": 4, "b": BELOW_PX}
    sheet = g.layout(dark, STAGE_HEIGHT, barmode="overlay", bargap=0.0, margin=margin)
    notes: list[dict[str, Any]] = []
    shapes = [_cursor_line((t_us - zero) / 1000, dark)]
    places = _places(len(there))
    for i, (key, space) in enumerate(there.items()):
        low, high = places[i]
        axes = ("x2", f"y{i + 3}")
        data += _strip(space, axes, selected, dark)
        sheet[f"yaxis{i + 3}"] = _address_axis(space, (low, high))
        notes.append(g.note(_title(result, key, answer), 0, high, dark, yshift=2, xshift=-LEFT_PX + 4, font={"size": 12}))
        tag, frames = _outlined(space, axes, dark)
        notes += tag
        shapes += frames
        if key in hidden:
            veil, words = _veil(space, axes, dark)
            shapes += veil
            notes.append(words)
    for i, key in enumerate(result.runs):
        low, high = places[len(there) + i]
        axis = f"y{i + 1}" if i else "y"
        data += _stack(result, key, axis, end, dark)
        sheet["yaxis" + axis[1:]] = {"domain": [low, high], "range": [0, 100], "tickvals": [0, 50, 100], "fixedrange": True,
                                     "ticktext": ["", "50 %", ""], "showgrid": True, "tickfont": {"size": 10}}
        notes.append(g.note(_means(result, key, dark), 0, high, dark, yshift=1, xshift=-LEFT_PX + 4, font={"size": 11}))
        notes += _done(result, key, axis, end, dark)
        shapes.append(_window(result, key, axis, dark))
    notes.append(g.note(f"at {g.duration((t_us - zero) / 1e6)}", 1, places[0][1], dark, yshift=2, xanchor="right",
                        font={"size": 11, "color": g.theme(dark).select}))
    row = max(space.row for space in there.values())
    sheet["xaxis2"] = {"range": [0, row], "fixedrange": True, "visible": False, "anchor": f"y{len(there) + 2}"}
    sheet["xaxis"] = g.time_axis(end, "") | {"anchor": "y2", "title": {"text": ""}}
    sheet["annotations"], sheet["shapes"] = notes + _below(there, (t_us - zero) / 1000, end, dark), shapes
    figure = {"data": data, "layout": sheet}
    return Pic(figure, alt_stage(result, answer), lambda: table_stage(result, cursor_ms, hidden), STAGE_HEIGHT)


def axis_end_ms(result: Result) -> float:
    """Right end of the time axis, ms: the later end of both runs."""
    ends = [float(there.end_us[-1]) for there in result.occupancies.values() if len(there.end_us)]
    return max((max(ends, default=0.0) - zero_us(result)) / 1000, 1.0)


def _places(n: int) -> list[tuple[float, float]]:
    """The vertical shares of the address spaces, the first on top, and below them of the stacks."""
    plot = STAGE_HEIGHT - 4 - BELOW_PX
    at, found = float(plot), []
    for px, count in ((STRIP_PX, n), (STACK_PX, n)):
        for _ in range(count):
            at -= HEAD_PX
            found.append(((at - px) / plot, at / plot))
            at -= px
        at -= GAP_PX
    return [(max(low, 0.0), high) for low, high in found]  # the last gap falls below the picture


def _title(result: Result, key: str, answer: bool) -> str:
    """ "Orca (Max)  7 of 40 at once, tokens fill 20 %"; where much is free, the share is of what the requests have taken."""
    mean = scenario.mean_shares(result, key)
    whose = " of theirs" if mean["free"] >= 0.005 else ""
    fit = f"{scenario.fit_at_once(result, key):,} of {len(result.scenario.trace):,} at once, " if answer else ""
    return f"<b>{names(result)[key]}</b>  {fit}tokens fill {fill(result, key)}{whose}"


def _strip(space: Cells, axes: tuple[str, str], selected: int | None, dark: bool,
           framed: Cells | None = None) -> list[dict[str, Any]]:
    """One trace a part, the outline of what the selected request holds, or held in `framed`, and words: always these traces."""
    look = g.theme(dark)
    row, offset = space.start // space.row, space.start % space.row
    data = []
    for k, role in enumerate(PARTS):
        mine = np.flatnonzero(space.part == k)
        who = space.request[mine].tolist()
        marker = g.swatch(role, dark)
        if k == TOKENS:
            tones = [g.colour(role, dark, s) for s in range(g.shades(role))]
            marker = {"color": [tones[max(r, 0) % len(tones)] for r in who], "line": {"width": 0.5, "color": look.paper},
                      "pattern": {"shape": ["." if n > 1 else "" for n in space.holders[mine].tolist()], "size": 5,
                                  "solidity": 0.3, "fillmode": "overlay", "fgcolor": look.on_solid}}
        elif k == FREE:
            marker = {"color": look.paper, "line": {"width": 0.5, "color": g.colour(role, dark)}}
        else:
            marker["line"] = {"width": 0.5, "color": marker["line"]["color"]}
            marker["pattern"] = marker["pattern"] | {"size": 6}
        data.append({
            "type": "bar", "orientation": "h", "name": g.ROLES[role].label, "xaxis": axes[0], "yaxis": axes[1], "width": 0.88,
            "y": row[mine].tolist(), "base": offset[mine].tolist(), "x": space.length[mine].tolist(), "marker": marker,
            "customdata": _custom(space, mine, g.ROLES[role].says),
            "hovertemplate": "%{customdata[1]}<br>%{customdata[2]}<extra></extra>"})
    of = framed or space
    mine = np.flatnonzero(of.request == selected) if selected is not None else np.empty(0, np.int64)
    data.append({
        "type": "bar", "orientation": "h", "name": "selected", "xaxis": axes[0], "yaxis": axes[1], "width": 0.98,
        "y": (of.start[mine] // of.row).tolist(), "base": (of.start[mine] % of.row).tolist(), "x": of.length[mine].tolist(),
        "hoverinfo": "skip",
        "marker": {"color": "rgba(0,0,0,0)", "line": {"width": 2.5, "color": look.select}}})
    return [*data, _labels(space, axes, dark), _numbers(space, axes, dark)]


def _custom(space: Cells, mine: Ints, says: str) -> list[list[Any]]:
    """[request index, what, where] for each piece."""
    found = []
    for i in mine.tolist():
        r, n, a, shared = int(space.request[i]), int(space.length[i]), int(space.start[i]), int(space.holders[i])
        who = f"<b>{shared} requests</b>: shared, " if shared > 1 else f"<b>request {r + 1}</b>: " if r >= 0 else ""
        most = f"<br>{space.grain} slots a cell, for what most of them are" if space.grain > 1 else ""
        found.append([r, f"{who}{says}", f"{g.count(n, 'token slot')}, {a:,}–{a + n - 1:,}{most}"])
    return found


def _numbers(space: Cells, axes: tuple[str, str], dark: bool) -> dict[str, Any]:
    """Each request's number on its longest piece of tokens, where that is long enough on a narrow screen."""
    xs, ys, texts, who = [], [], [], []
    mine = np.flatnonzero((space.part == TOKENS) & (space.request >= 0))
    seen: set[int] = set()
    for i in mine[np.argsort(-space.length[mine], kind="stable")].tolist():
        r = int(space.request[i])
        label = str(r + 1) if seen else f"request {r + 1}"
        if r not in seen and space.holders[i] == 1 and space.length[i] / space.row * NARROW >= DIGIT_PX * len(label) + 4:
            xs.append(float(space.start[i] % space.row + space.length[i] / 2))
            ys.append(int(space.start[i] // space.row))
            texts.append(label)
            who.append([r])
        seen.add(r)
    return {"type": "scatter", "mode": "text", "name": "request", "xaxis": axes[0], "yaxis": axes[1], "x": xs, "y": ys,
            "text": texts, "customdata": who, "hoverinfo": "skip",
            "textfont": {"size": 10.5, "color": g.theme(dark).on_solid}}


def _labels(space: Cells, axes: tuple[str, str], dark: bool) -> dict[str, Any]:
    """What is no token is named on its longest piece that is not outlined, where that is long enough on a narrow screen."""
    xs, ys, texts = [], [], []
    outlined = largest_waste(space)
    kinds = [(space.part == k, g.ROLES[PARTS[k]].label) for k in range(RESERVED, len(PARTS))]
    for there, label in [*kinds, (space.holders > 1, "shared")]:
        mine = np.setdiff1d(np.flatnonzero(there), outlined)
        mine = mine[space.length[mine] / space.row * NARROW >= 6 * len(label) + 6]
        if len(mine):
            i = int(mine[np.argmax(space.length[mine])])
            xs.append(float(space.start[i] % space.row + space.length[i] / 2))
            ys.append(int(space.start[i] // space.row))
            texts.append(label)
    return {"type": "scatter", "mode": "text", "name": "labels", "xaxis": axes[0], "yaxis": axes[1], "x": xs, "y": ys,
            "text": texts, "hoverinfo": "skip", "textfont": g.bar_font("internal", dark) | {"size": 10.5}}


def _address_axis(space: Cells, domain: tuple[float, float]) -> dict[str, Any]:
    every = max(1, math.ceil(space.rows / 4))
    shown = list(range(0, space.rows, every))
    return {"domain": list(domain), "range": [space.rows - 0.5, -0.5], "fixedrange": True, "showgrid": False, "zeroline": False,
            "tickvals": shown, "ticktext": [f"{k * space.row:,}" for k in shown], "tickfont": {"size": 10}}


def largest_waste(space: Cells) -> Ints:
    """The pieces of the largest waste, inside one reservation or out of reach, row by row; the first of equal ones."""
    joined = (np.diff(space.part) == 0) & (np.diff(space.request) == 0)
    joined &= (space.request[1:] >= 0) | (space.part[1:] == EXTERNAL)  # else it is of several requests, taken together
    group = np.concatenate(([0], np.cumsum(~joined)))
    size = np.bincount(group, space.length * np.isin(space.part, WASTE))
    return np.flatnonzero(group == np.argmax(size)) if size.any() else np.empty(0, np.int64)


def _outlined(space: Cells, axes: tuple[str, str], dark: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A frame round each piece of the largest waste, its size on the longest; one that is hidden where it is too small."""
    look, pieces = g.theme(dark), largest_waste(space)
    frame = {"name": "largest", "type": "rect", "xref": axes[0], "yref": axes[1], "layer": "above", "visible": True,
             "line": {"color": look.ink, "width": 2.5}}
    at = [(int(space.start[i] % space.row), int(space.length[i]), int(space.start[i] // space.row)) for i in pieces.tolist()]
    start, n, row = max(at, key=lambda piece: piece[1], default=(0, 0, 0))
    if n / space.row * NARROW < 3:
        return [], [frame | {"visible": False, "x0": 0, "x1": 0, "y0": 0, "y1": 0}]
    frames = [frame | {"x0": x, "x1": x + long, "y0": y - 0.46, "y1": y + 0.46} for x, long, y in at]
    size = f"<b>{space.length[pieces].sum():,}</b>"
    words = f"{size} {g.ROLES[PARTS[space.part[pieces[0]]]].label}"
    text = words if n / space.row * NARROW >= 6 * len(words) - 30 else size
    right = start + n > space.row / 2
    tag = g.note(text, start + n if right else start, row, dark, xref=axes[0], yref=axes[1],
                 xanchor="right" if right else "left", yanchor="middle", bgcolor=look.ink, borderpad=0,
                 font={"size": 10.5, "color": look.paper})
    return [tag], frames


def _one_request(space: Cells) -> Cells:
    """What the request has that will leave most of its slots unfilled, without the rest of the memory."""
    held = space.request >= 0
    if not held.any():
        return space
    waste = np.bincount(space.request[held], space.length[held] * (space.part[held] == INTERNAL))
    mine = space.request == (np.argmax(waste) if waste.any() else space.request[held][0])
    return replace(space, start=space.start[mine], length=space.length[mine], part=space.part[mine], request=space.request[mine],
                   holders=space.holders[mine])


def _veil(space: Cells, axes: tuple[str, str], dark: bool) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A plain band for each row of the memory, under what is drawn, and why there is no more, away from it."""
    look = g.theme(dark)
    rows = [min(space.pool - k * space.row, space.row) for k in range(space.rows)]
    band = {"name": "veil", "type": "rect", "xref": axes[0], "yref": axes[1], "layer": "below", "fillcolor": look.grid,
            "line": {"width": 0}}
    bands = [band | {"x0": 0, "x1": n, "y0": k - 0.44, "y1": k + 0.44} for k, n in enumerate(rows)]
    at = float(np.mean(space.start // space.row)) if len(space.start) else 0.0
    free = 0 if at >= (space.rows - 1) / 2 else max(space.rows - 2, 0)
    return bands, g.note("the other requests: once you have predicted", space.row / 2, free, dark, xref=axes[0], yref=axes[1],
                         xanchor="center", yanchor="middle", bgcolor=look.paper, font={"size": 11, "color": look.ink})


def binned(there: Occupancy, edges_us: Floats) -> dict[str, Floats]:
    """Each part's mean share of the pool between the edges (µs, ascending); the parts of a bin add up to 1."""
    start, span = there.start_us, np.maximum(there.end_us - there.start_us, 1e-9)
    row = np.searchsorted(start, edges_us, side="right") - 1
    u = np.clip((edges_us - start[row]) / span[row], 0, 1)
    found: dict[str, Floats] = {}
    for part in PARTS[:FREE]:
        first, last = there.first[part], there.last[part]
        before = np.concatenate(([0.0], np.cumsum((first + last) / 2 * span)))
        area = before[row] + span[row] * (first[row] * u + (last - first)[row] * u * u / 2)
        found[part] = np.clip(np.diff(np.where(row >= 0, area, 0.0)) / np.diff(edges_us) / there.pool, 0, 1)
    rest: Floats = 1 - sum(found.values(), np.zeros(len(edges_us) - 1))
    return {**found, "free": np.clip(rest, 0, 1)}


def _stack(result: Result, key: str, axis: str, end: float, dark: bool) -> list[dict[str, Any]]:
    """The parts over time as shares of the pool, up to the end of the run; one trace a part, in the order of PARTS."""
    there, zero = result.occupancies[key], zero_us(result)
    if len(there.start_us):
        last = (float(there.end_us[-1]) - zero) / 1000
        edges = np.linspace(0, last, max(2, round(BINS * last / end)) + 1)
        share = binned(there, zero + 1000 * edges)
        x = np.round((edges[1:] + edges[:-1]) / 2, 3).tolist()
    else:
        share, x = {part: np.empty(0) for part in PARTS}, []
    data = []
    for role in PARTS:
        tone = g.swatch(role, dark)
        fill = {"fillcolor": tone["color"], "fillpattern": tone["pattern"] | {"size": 6}} if role != "free" else \
            {"fillcolor": "rgba(0,0,0,0)"}
        if role == "tokens":
            fill = {"fillcolor": tone["color"]}
        data.append({
            "type": "scatter", "mode": "lines", "name": g.ROLES[role].label, "xaxis": "x", "yaxis": axis, "stackgroup": axis,
            "x": x, "y": np.round(100 * share[role], 2).tolist(),
            "line": {"width": 0 if role == "free" else 0.5, "shape": "hvh", "color": g.colour(role, dark)}, **fill,
            "hovertemplate": f"{g.ROLES[role].label}: %{{y:.0f}} % of the memory<extra></extra>"})
    return data


def shares(result: Result, key: str) -> dict[str, int]:
    """Each part's mean share as whole per cent that add up to 100: the tokens' as it is said elsewhere, then the rest."""
    mean = scenario.mean_shares(result, key)
    tokens = round(100 * mean["tokens"])
    rest = g.apportion([max(mean[part], 0.0) for part in PARTS if part != "tokens"], 100 - tokens)
    return {"tokens": tokens, **dict(zip(PARTS[RESERVED:], rest, strict=True))}


def fill(result: Result, key: str) -> str:
    """How far tokens fill what is taken, in words; of the whole memory where less than half a per cent is free."""
    mean = scenario.mean_shares(result, key)
    return g.percent(scenario.filled_share(mean) if mean["free"] >= 0.005 else mean["tokens"])


def _means(result: Result, key: str, dark: bool) -> str:
    """ "Orca (Max), while some wait: ■ 20 %  ▨ 13 %  …": the parts that are there, in the marks of the key."""
    mean, whole = scenario.mean_shares(result, key), shares(result, key)
    parts = [f"{_mark(part, dark)} {g.percent_of(mean[part], whole[part])}" for part in PARTS if whole[part]]
    when = "while some wait" if math.isfinite(result.saturated[key][0]) else "mean of the run"
    return f"{names(result)[key]}, {when}: " + "  ".join(parts)


def _mark(role: str, dark: bool) -> str:
    """The key's mark of a role, without its label."""
    return g.key([role], dark)[0].split("</span>")[0] + "</span>"


def _window(result: Result, key: str, axis: str, dark: bool) -> dict[str, Any]:
    """A line on top of the stack over the time that the means are taken from."""
    t0, t1 = ((t - zero_us(result)) / 1000 for t in scenario.window(result, key))
    return {"name": "window", "type": "line", "xref": "x", "yref": axis, "x0": t0, "x1": t1, "y0": 100, "y1": 100,
            "layer": "above", "line": {"color": g.theme(dark).ink, "width": 2}}


def _done(result: Result, key: str, axis: str, end: float, dark: bool) -> list[dict[str, Any]]:
    """Where a run ends well before the axis does: when."""
    there = result.occupancies[key]
    last = (float(there.end_us[-1]) - zero_us(result)) / 1000 if len(there.end_us) else 0.0
    if last > 0.75 * end:
        return []
    return [g.note(f"done<br>after {g.duration(last / 1000)}", last, 50, dark, xref="x", yref=axis, yanchor="middle", xshift=6,
                   font={"size": 11, "color": g.theme(dark).muted})]


def _below(there: dict[str, Cells], at_ms: float, end: float, dark: bool) -> list[dict[str, Any]]:
    """The key, the unit of time, and which instant the address spaces show."""
    look, entries = g.theme(dark), [*g.key(PARTS, dark), "<b>▭</b> largest waste"]
    if any((space.holders > 1).any() for space in there.values()):
        entries.insert(1, f"{_mark('tokens', dark).replace('■', '▒')} shared")
    muted = {"size": 11, "color": look.muted}
    lines = "  ".join(entries[:3]) + "<br>" + "  ".join(entries[3:])
    shown = f"<span style='color:{look.select}'>│ {g.duration(at_ms / 1000)}</span>"
    right = f"time, {'ms' if end <= 60_000 else 's'}<br>{shown}"
    return [g.note(lines, 0, 0, dark, xshift=-LEFT_PX + 4, yshift=-18, yanchor="top", font=muted),
            g.note(right, 1, 0, dark, xanchor="right", align="right", yanchor="top", yshift=-18, font=muted)]


def _cursor_line(at: float, dark: bool) -> dict[str, Any]:
    top = _places(2)[2][1]
    return g.cursor_line(at, dark) | {"y1": top}


def alt_stage(result: Result, answer: bool = True) -> str:
    """The stage's finding in words, without how many fit at once if `answer` is False."""
    said = []
    for key, name in names(result).items():
        mean = scenario.mean_shares(result, key)
        fit = f"{scenario.fit_at_once(result, key):,} requests at once, " if answer else ""
        parts = [f"{g.percent(mean[part])} {g.ROLES[part].label}" for part in PARTS if mean[part] >= 0.005]
        said.append(f"{name}: {fit}{g.listed(parts)}")
    pool = result.occupancies["reserved"].pool
    return (f"{g.count(len(result.scenario.trace), 'request')} in a memory of {pool:,} token slots under two allocators, means "
            f"while requests wait. {'. '.join(said)}.")


def table_stage(result: Result, cursor_ms: float | None = None, hidden: Sequence[str] = ()) -> pd.DataFrame:
    """A row for each request that holds memory at the instant, under each allocator but the hidden; token slots."""
    t_us = shown_us(result, cursor_ms)
    parts = []
    for key, name in names(result).items():
        if key in hidden:
            continue
        space = cells(result, key, t_us, most=sys.maxsize)
        frame = pd.DataFrame({"request": space.request, "part": [PARTS[k] for k in space.part], "slots": space.length})
        wide = frame.pivot_table(index="request", columns="part", values="slots", aggfunc="sum", fill_value=0)
        wide = wide.reindex(columns=list(PARTS), fill_value=0).reset_index()
        wide["request"] = [str(r + 1) if r >= 0 else "nobody" for r in wide["request"]]
        wide.insert(0, "allocator", name)
        parts.append(wide.rename(columns={part: f"{g.ROLES[part].label}, slots" for part in PARTS}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"allocator": []})


# --- one request's block table ----------------------------------------------------------------------------------------


def table(result: Result, *, dark: bool, selected: int | None = None, cursor_ms: float | None = None) -> Pic:
    """One request's memory under both allocators: its own order on top, where it lies in the memory below, lines between.

    selected None: the request that holds most. An allocator in which it holds nothing at that instant says so.
    """
    t_us = shown_us(result, cursor_ms)
    who = holds_most(result, t_us) if selected is None else selected
    entries = {key: block_table(result, key, who, t_us) for key in result.runs}
    look, plot = g.theme(dark), TABLE_HEIGHT - 4 - 24
    sheet = g.layout(dark, TABLE_HEIGHT, barmode="overlay", bargap=0.0, margin={"l": 62, "r": 10, "t": 4, "b": 24})
    data: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    for i, (key, rows) in enumerate(entries.items()):
        axis, top = f"y{i + 1}" if i else "y", 1 - i / len(entries)
        high = top - HEAD_PX / plot
        sheet["yaxis" + axis[1:]] = {
            "domain": [max(high - (plot / len(entries) - HEAD_PX - 8) / plot, 0), high], "range": [-0.3, 1.3], "tickvals": [0, 1],
            "ticktext": ["memory", "request"], "fixedrange": True, "showgrid": False, "zeroline": False}
        data += _linked(rows, result.occupancies[key].pool, axis, who, dark)
        notes.append(g.note(f"<b>{names(result)[key]}</b>  {_holding(result, key, who, rows, t_us)}", 0, high, dark, yshift=2,
                            xshift=-58, font={"size": 12}))
    notes.append(g.note("  ".join(g.key(PARTS[:FREE], dark)), 0, 0, dark, xshift=-58, yshift=-4, yanchor="top",
                        font={"size": 11, "color": look.muted}))
    sheet["xaxis"] = {"range": [0, 1], "fixedrange": True, "visible": False, "anchor": axis}
    sheet["annotations"] = notes
    return Pic({"data": data, "layout": sheet}, alt_table(result, who, entries, t_us), lambda: table_table(result, entries),
               TABLE_HEIGHT)


@dataclass(frozen=True)
class Entries:
    """A request's block table at one instant: runs of neighbouring blocks, by place in the request; columns of equal length.

    logical, physical, length  blocks: place in the request, in the memory, and how many
    parts    int64[runs, 4]  token slots of each of the first four PARTS in each run
    holders  most requests that hold a block of the run
    size     token slots of a block
    """

    logical: Ints
    physical: Ints
    length: Ints
    parts: Ints
    holders: Ints
    size: int

    @property
    def blocks(self) -> int:
        """Blocks in all."""
        return int(self.length.sum())


def block_table(result: Result, key: str, request: int, t_us: float) -> Entries:
    """What a request holds at t (µs), in its own order."""
    run = result.runs[key]
    memory = run.policy.memory
    assert memory is not None
    everyone = result.holdings(key, t_us).at(t_us)
    mine = everyone.of(request)
    order = np.argsort(mine.logical, kind="stable")
    first, length, logical, size = mine.first[order], mine.length[order], mine.logical[order], memory.block_size
    tokens, final = int(tokens_at(run, t_us, result.instants[key])[request]), int(final_tokens(run)[request])
    ends = [tokens, max(tokens, final), int(_reserved(run)[request]) * size if memory.contiguous else 1 << 60, 1 << 60]
    upto = np.stack([np.clip(end - logical * size, 0, length * size) for end in ends], 1).reshape(-1, 4)
    parts = np.diff(upto, axis=1, prepend=0)
    last = everyone.first + everyone.length
    overlap = (everyone.first[None, :] < (first + length)[:, None]) & (first[:, None] < last[None, :])
    return Entries(logical, first, length, parts, overlap.sum(1).astype(np.int64), size)


def holds_most(result: Result, t_us: float) -> int:
    """The request with the most tokens in both memories at t (µs), the first of equal ones."""
    there = [tokens_at(run, t_us, result.instants[key]) for key, run in result.runs.items()]
    return int(np.argmax(np.min(there, axis=0) * 1_000_000 + np.max(there, axis=0)))


def _linked(rows: Entries, pool: int, axis: str, who: int, dark: bool) -> list[dict[str, Any]]:
    """The request's runs in its own order (y 1) and in the memory (y 0), by part, and a band from each to its place."""
    look, size = g.theme(dark), rows.size
    all_slots = max(rows.blocks * size, 1)
    a, c, n = rows.logical * size / all_slots, rows.physical * size / pool, rows.length * size
    xs: list[float | None] = []
    ys: list[float | None] = []
    for left, low, slots in zip(a.tolist(), c.tolist(), n.tolist(), strict=True):
        xs += [left, left + slots / all_slots, low + slots / pool, low, left, None]
        ys += [0.82, 0.82, 0.18, 0.18, 0.82, None]
    tone = g.colour("tokens", dark, who)
    data: list[dict[str, Any]] = [
        {"type": "scatter", "mode": "lines", "name": "links", "yaxis": axis, "x": xs, "y": ys, "fill": "toself",
         "fillcolor": _clear(tone, 0.22), "line": {"width": 0.7, "color": tone}, "hoverinfo": "skip"},
        {"type": "bar", "orientation": "h", "name": "pool", "yaxis": axis, "y": [0], "base": [0], "x": [1], "width": 0.36,
         "marker": {"color": look.paper, "line": {"width": 1, "color": look.muted}}, "hoverinfo": "skip"}]
    before = np.cumsum(rows.parts, axis=1) - rows.parts
    hover = [[who, f"logical {_span(int(lo), int(k))} → physical {_span(int(ph), int(k))}",
              ", ".join(f"{int(v):,} {g.ROLES[PARTS[j]].label}" for j, v in enumerate(part) if v)
              + (f"<br>shared by {h} requests" if h > 1 else "")]
             for lo, ph, k, part, h in zip(rows.logical, rows.physical, rows.length, rows.parts, rows.holders, strict=True)]
    for k, role in enumerate(PARTS[:FREE]):
        there = np.flatnonzero(rows.parts[:, k])
        slots, skip = rows.parts[there, k], before[there, k]
        marker = g.swatch(role, dark)
        if role == "tokens":
            marker = {"color": tone}
        # A block is thinner than a pixel in the whole memory: its edge, of its own colour, keeps it visible.
        marker["line"] = {"width": 1, "color": tone if role == "tokens" else g.colour(role, dark)}
        data.append({
            "type": "bar", "orientation": "h", "name": g.ROLES[role].label, "yaxis": axis, "width": 0.36, "marker": marker,
            "y": [1] * len(there) + [0] * len(there),
            "base": (a[there] + skip / all_slots).tolist() + (c[there] + skip / pool).tolist(),
            "x": (slots / all_slots).tolist() + (slots / pool).tolist(), "customdata": [hover[j] for j in there.tolist()] * 2,
            "hovertemplate": "%{customdata[1]}<br>%{customdata[2]}<extra></extra>"})
    return data


def _clear(colour: str, by: float) -> str:
    """A colour, let through by so much."""
    return f"rgba({int(colour[1:3], 16)},{int(colour[3:5], 16)},{int(colour[5:7], 16)},{by})"


def _span(first: int, n: int) -> str:
    return f"block {first:,}" if n == 1 else f"blocks {first:,}–{first + n - 1:,}"


def _holding(result: Result, key: str, who: int, rows: Entries, t_us: float) -> str:
    """ "request 9 holds 33 blocks in 12 places" or why it holds none."""
    if rows.blocks:
        memory = result.runs[key].policy.memory
        where = "one piece" if memory is not None and memory.contiguous else \
            f"{g.count(rows.blocks, 'block')}, {g.count(len(rows.length), 'place')}"
        return f"request {who + 1}: {where}, {int(rows.parts[:, TOKENS].sum()):,} of {rows.blocks * rows.size:,} filled"
    mine = result.holdings(key, math.inf).of(who)
    spans = [((a - zero_us(result)) / 1e6, (b - zero_us(result)) / 1e6) for a, b in
             zip(mine.start_us.tolist(), mine.end_us.tolist(), strict=True)]
    if not spans:
        return f"request {who + 1} never holds memory"
    when = f"{g.duration(min(a for a, _ in spans))} to {g.duration(max(b for _, b in spans))}"
    return f"request {who + 1} holds nothing at {g.duration((t_us - zero_us(result)) / 1e6)}, but from {when}"


def alt_table(result: Result, who: int, entries: dict[str, Entries], t_us: float) -> str:
    """The block table's finding in words."""
    said = [f"{names(result)[key]}: {_holding(result, key, who, rows, t_us)}" for key, rows in entries.items()]
    return f"Block table of request {who + 1} at {g.duration((t_us - zero_us(result)) / 1e6)}. {'. '.join(said)}."


def table_table(result: Result, entries: dict[str, Entries]) -> pd.DataFrame:
    """A row for each run of neighbouring blocks: logical → physical, and what it holds, token slots."""
    frames = []
    for key, rows in entries.items():
        frames.append(pd.DataFrame({
            "allocator": names(result)[key], "logical block": rows.logical, "physical block": rows.physical,
            "blocks": rows.length, **{f"{g.ROLES[part].label}, slots": rows.parts[:, k] for k, part in enumerate(PARTS[:FREE])},
            "requests that hold it": rows.holders}))
    return pd.concat(frames, ignore_index=True)


# --- one preemption, step by step --------------------------------------------------------------------------------------


def preemption(result: Result, which: int = 0, *, dark: bool) -> Pic:
    """The second memory just before and just after a request lost its blocks, and what bringing it back costs."""
    found = scenario.preemptions(result)
    if not found:
        return _nobody_preempted(result, dark)
    lost = found[min(which, len(found) - 1)]
    moments = (lost.at_us - 0.5, lost.at_us)
    plot = PREEMPTION_HEIGHT - 4 - 56
    margin = {"l": LEFT_PX, "r": RIGHT_PX, "t": 4, "b": 56}
    sheet = g.layout(dark, PREEMPTION_HEIGHT, barmode="overlay", bargap=0.0, margin=margin)
    data: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    spaces = [cells(result, "other", t_us) for t_us in moments]
    for i, (space, title) in enumerate(zip(spaces, _before_and_after(result, lost), strict=True)):
        high = 1 - i / 2 - HEAD_PX / plot
        axis = f"y{i + 1}" if i else "y"
        data += _strip(space, ("x", axis), lost.request, dark, framed=spaces[0])
        sheet["yaxis" + axis[1:]] = _address_axis(space, (max(high - (plot / 2 - HEAD_PX - 4) / plot, 0), high))
        notes.append(g.note(title, 0, high, dark, yshift=2, xshift=-LEFT_PX + 4, font={"size": 12}))
    sheet["xaxis"] = {"range": [0, space.row], "fixedrange": True, "visible": False, "anchor": "y2"}
    entries = g.key(PARTS, dark)
    below = "<br>".join((_cost(lost), "  ".join(entries[:3]), "  ".join(entries[3:])))
    notes.append(g.note(below, 0, 0, dark, xshift=-LEFT_PX + 4, yshift=-3, yanchor="top",
                        font={"size": 11, "color": g.theme(dark).muted}))
    sheet["annotations"] = notes
    return Pic({"data": data, "layout": sheet}, alt_preemption(result, lost), lambda: table_preemptions(result),
               PREEMPTION_HEIGHT)


def _before_and_after(result: Result, lost: Preemption) -> tuple[str, str]:
    at = g.duration((lost.at_us - zero_us(result)) / 1e6)
    memory = result.runs["other"].policy.memory
    where = "in the host's memory" if memory is not None and memory.swap_us is not None else "gone"
    by = f"request {lost.by + 1} needs one" if lost.by >= 0 and lost.by != lost.request else "it needs one itself"
    return (f"<b>Before {at}</b>  request {lost.request + 1} has {g.count(lost.blocks, 'block')}, {by}",
            f"<b>After</b>  request {lost.request + 1} waits again, its {g.count(lost.tokens, 'token')} {where}")


def _cost(lost: Preemption) -> str:
    swap = "" if math.isnan(lost.swap_ms) else f", or swap, {g.duration(lost.swap_ms / 1000)}"
    return (f"To bring it back: compute {g.count(lost.tokens, 'token')}, {g.duration(lost.extra_ms / 1000)} more than any step"
            f"{swap}")


def _nobody_preempted(result: Result, dark: bool) -> Pic:
    why = f"Nobody is preempted under {names(result)['other']}."
    hidden = {"visible": False, "fixedrange": True, "range": [0, 1]}
    sheet = g.layout(dark, PREEMPTION_HEIGHT, xaxis=hidden, yaxis=hidden, annotations=[
        g.note(why + "<br>Less memory, or the preset “Memory runs out”, shows it.", 0.5, 0.5, dark, xanchor="center",
               yanchor="middle", align="center")])
    return Pic({"data": [], "layout": sheet}, why, lambda: table_preemptions(result), PREEMPTION_HEIGHT)


def alt_preemption(result: Result, lost: Preemption) -> str:
    """One preemption in words."""
    return f"{_plain(' '.join(_before_and_after(result, lost)))}. {_cost(lost)}."


def _plain(text: str) -> str:
    return text.replace("<b>", "").replace("</b>", ":").replace("  ", " ")


def table_preemptions(result: Result) -> pd.DataFrame:
    """A row for each preemption."""
    found, zero = scenario.preemptions(result), zero_us(result)
    return pd.DataFrame({
        "at, s": [(p.at_us - zero) / 1e6 for p in found], "request": [p.request + 1 for p in found],
        "for request": [p.by + 1 if p.by >= 0 else None for p in found], "tokens": [p.tokens for p in found],
        "blocks": [p.blocks for p in found], "recompute, ms": [p.recompute_ms for p in found],
        "swap out and in, ms": [p.swap_ms for p in found]})


# --- sharing ----------------------------------------------------------------------------------------------------------


def sharing(result: Result, width: int, kind: str = "beams", *, dark: bool) -> Pic:
    """Which blocks the samples or beams of one prompt of mean length share, at completion: a column a logical block.

    A block that several sequences share is as tall as they are many. kind: "samples" or "beams".
    """
    prompt, output = (max(1, round(x)) for x in scenario.LENGTHS[str(result.scenario.values["mean"])])
    block, seed = int(result.scenario.values["block"]), int(result.scenario.values["seed"])
    held = samples(prompt, output, width, block) if kind == "samples" else \
        beams(prompt, output, width, block, np.random.default_rng(seed))
    data, ends = _tree(held, dark)
    word = {"samples": "sample", "beams": "beam"}[kind]
    title = (f"<b>{g.count(width, word)}</b>  {held.blocks:,} blocks instead of {held.without:,}, "
             f"{g.percent(held.saving)} saved")
    sheet = g.layout(
        dark, SHARING_HEIGHT, barmode="overlay", bargap=0.0, margin={"l": LEFT_PX, "r": RIGHT_PX, "t": 24, "b": 52},
        annotations=[g.note(title, 0, 1, dark, yshift=3, xshift=-LEFT_PX + 4, font={"size": 12})],
        yaxis={"range": [width - 0.0, 0], "tickvals": [k + 0.5 for k in range(width)], "fixedrange": True, "showgrid": False,
               "ticktext": [str(k + 1) for k in range(width)], "title": {"text": word}, "zeroline": False},
        xaxis={"range": [0, ends], "fixedrange": True, "showgrid": False, "ticks": "outside", "ticklen": 4, "nticks": 7,
               "title": {"text": f"block of the sequence, {g.count(block, 'token')} each<br>"
                                 f'<span style="font-size:11px">{_mark("tokens", dark)} one owner  '
                                 f'{_mark("tokens", dark).replace("■", "▒")} shared: as tall as its owners are many</span>'}})
    return Pic({"data": data, "layout": sheet}, alt_sharing(held, width, word), lambda: table_sharing(held), SHARING_HEIGHT)


def _tree(held: Shared, dark: bool) -> tuple[list[dict[str, Any]], int]:
    """Bars of physical blocks: x logical block, y the sequences that have it. Sorted, those that share are neighbours."""
    look = g.theme(dark)
    tables = np.array(sorted(held.tables), np.int64)
    n, columns = tables.shape
    new = np.ones((n, columns), bool)
    new[1:] = tables[1:] != tables[:-1]
    same = np.concatenate(([False], (new[:, 1:] == new[:, :-1]).all(0))) if n * columns > 600 else np.zeros(columns, bool)
    left = np.flatnonzero(~same)
    right = np.append(left[1:], columns)
    bars = []
    for a, b in zip(left.tolist(), right.tolist(), strict=True):
        tops = np.flatnonzero(new[:, a])
        bars += [(a, b, top, low, int(tables[top, a])) for top, low in
                 zip(tops.tolist(), np.append(tops[1:], n).tolist(), strict=True)]
    data = []
    for shared in (False, True):
        mine = [bar for bar in bars if (bar[3] - bar[2] > 1) == shared]
        marker: dict[str, Any] = {"color": [g.colour("tokens", dark, bar[2]) for bar in mine],
                                  "line": {"width": 1, "color": look.paper}}
        if shared:
            marker["pattern"] = {"shape": ".", "size": 6, "solidity": 0.3, "fillmode": "overlay", "fgcolor": look.on_solid}
        data.append({
            "type": "bar", "name": "shared" if shared else "own", "x": [(a + b) / 2 for a, b, *_ in mine],
            "width": [b - a for a, b, *_ in mine], "base": [top for _, _, top, _, _ in mine],
            "y": [low - top for _, _, top, low, _ in mine], "marker": marker,
            "customdata": [[-1, f"physical block {p}" + (f" and {b - a - 1} more" if b - a > 1 else ""), low - top]
                           for a, b, top, low, p in mine],
            "hovertemplate": "%{customdata[1]}<br>owners: %{customdata[2]}<extra></extra>"})
    return data, columns


def alt_sharing(held: Shared, width: int, word: str) -> str:
    """What sharing saves, in words."""
    return (f"Block tables of {g.count(width, word)} of one prompt at completion: {held.blocks:,} blocks where {held.without:,} "
            f"would be needed without sharing, {g.percent(held.saving)} saved; a block was copied on write "
            f"{g.count(held.copies, 'time')}.")


def table_sharing(held: Shared) -> pd.DataFrame:
    """A row for each physical block: its owners."""
    return pd.DataFrame({"physical block": list(held.refs), "owners": list(held.refs.values())})


# --- the sweep, the band, the recording -------------------------------------------------------------------------------


def sweep(curve: Sweep, *, dark: bool) -> Pic:
    """What block size or load do over their whole range, with "you are here" if what is on the screen is a point of it."""
    rows = [Row(what, form, {curve.names[key]: y for key, y in curves.items()}, top)
            for what, form, curves, top, _ in _swept(curve)]
    title = "block size, tokens" if curve.over == "block" else "arrival rate, requests/s"
    figure = g.strip(curve.x, rows, curve.x_here, x_title=title, dark=dark, height=SWEEP_HEIGHT, log=True,
                     note_below=curve.note or curve.fewer)
    if not curve.here:
        sheet = figure["layout"]
        sheet["shapes"] = [shape for shape in sheet["shapes"] if shape.get("name") != "here"]
        sheet["annotations"] = [note for note in sheet["annotations"] if note["text"] != "you are here"]
    return Pic(figure, alt_sweep(curve), lambda: table_sweep(curve), SWEEP_HEIGHT)


Swept = tuple[str, str, dict[str, Floats], float | None, Callable[[float], str]]


def _swept(curve: Sweep) -> list[Swept]:
    """The rows of a sweep: what, tick format, curves by policy, top of the axis, and how to say a value."""
    if curve.over == "block":
        return [("taken memory without tokens", ".0%", curve.waste, 1.0, g.percent),
                ("entries in a request's block table", "~s", curve.blocks, None, lambda x: f"{x:,.3g}")]
    return [("requests that hold memory, mean", "~g", curve.batch, None, lambda x: f"{x:.1f}"),
            ("p99 E2E latency, s", "~g", curve.e2e_p99, None, g.duration)]


def alt_sweep(curve: Sweep) -> str:
    """The sweep's finding in words: at both ends and here."""
    said = []
    for i in dict.fromkeys((0, int(np.flatnonzero(curve.x == curve.x_here)[0]), len(curve.x) - 1)):
        values = []
        for what, _, curves, _, say in _swept(curve):
            each = [f"{say(float(y[i]))} under {curve.names[key]}" for key, y in curves.items()]
            values.append(f"{what.split(',')[0].split(':')[0]} {g.listed(each)}")
        said.append(f"at {curve.x[i]:g} {', '.join(values)}")
    return f"Sweep over {'block size' if curve.over == 'block' else 'arrival rate'}: {'; '.join(said)}. {curve.note}".rstrip()


def table_sweep(curve: Sweep) -> pd.DataFrame:
    """A row for each value of the knob."""
    columns = {f"{curve.names[key]}: {what.split(':')[0]}": y
               for what, _, curves, _, _ in _swept(curve) for key, y in curves.items()}
    return pd.DataFrame({"block size" if curve.over == "block" else "requests/s": curve.x, **columns})


def band(spread: Band, result: Result, *, dark: bool) -> Pic:
    """How far tokens fill the memory that is taken, over the seeds: a dot for each, the median, and the run on the screen."""
    look, called = g.theme(dark), names(result)
    data: list[dict[str, Any]] = []
    notes = [g.note("◆ on the screen", 1, 1, dark, xanchor="right", yshift=3, font={"size": 11, "color": look.select})]
    ring = {"symbol": "circle-open", "size": 9, "line": {"width": 2}}
    rows = {"reserved": 0, "other": 1}
    for k, (key, share) in enumerate(spread.tokens.items()):
        middle, here = spread.median(key), scenario.filled_share(scenario.mean_shares(result, key))
        data.append({"type": "scatter", "mode": "markers", "name": called[key], "x": (100 * share).tolist(),
                     "y": [rows[key]] * len(share), "marker": ring | {"color": g.policy_line(k, dark)["color"]},
                     "text": [f"seed {s}: {n} at once" for s, n in zip(spread.seeds, spread.fit[key].tolist(), strict=True)],
                     "hovertemplate": "%{text}, %{x:.1f} %<extra></extra>"})
        data.append({"type": "scatter", "mode": "markers", "x": [100 * here], "y": [rows[key]], "name": "on the screen",
                     "marker": {"symbol": "diamond", "size": 13, "color": look.select},
                     "hovertemplate": "on the screen: %{x:.1f} %<extra></extra>"})
        notes.append(g.note(f"median {g.percent(middle)}", 100 * middle, rows[key], dark, xref="x", yref="y",
                            xanchor="right" if middle > 0.85 else "left" if middle < 0.15 else "center", yshift=7,
                            font={"size": 11, "color": look.ink}))
    sheet = g.layout(
        dark, BAND_HEIGHT, margin={"l": 100, "r": 16, "t": 20, "b": 40}, annotations=notes,
        yaxis={"range": [1.6, -0.7], "tickvals": [0, 1], "ticktext": list(called.values()), "fixedrange": True, "showgrid": False,
               "zeroline": False, "tickfont": {"size": 12, "color": look.ink}},
        xaxis={"range": [-2, 102], "ticksuffix": " %", "fixedrange": True, "nticks": 6,
               "title": {"text": f"filled with tokens, {len(spread.seeds)} seeds"}})
    return Pic({"data": data, "layout": sheet}, alt_band(spread, result), lambda: table_band(spread, result), BAND_HEIGHT)


def alt_band(spread: Band, result: Result) -> str:
    """The band's finding in words."""
    said = []
    for key, share in spread.tokens.items():
        fit = spread.fit[key]
        said.append(f"{names(result)[key]}: median {g.percent(spread.median(key))}, from {g.percent(float(share.min()))} to "
                    f"{g.percent(float(share.max()))}, and {fit.min():,} to {fit.max():,} requests at once")
    return f"How far tokens fill the memory that is taken, over {len(spread.seeds)} seeds. {'; '.join(said)}."


def table_band(spread: Band, result: Result) -> pd.DataFrame:
    """A row for each seed."""
    called = names(result)
    return pd.DataFrame({"seed": spread.seeds, **{f"{called[k]}, filled %": 100 * x for k, x in spread.tokens.items()},
                         **{f"{called[k]}, at once": x for k, x in spread.fit.items()}})


def recorded(result: Result, *, dark: bool) -> Pic:
    """Blocks free in each step: ours as a line, the recording's as dots on it. ValueError if nothing is recorded."""
    ours, theirs, at = _free_blocks(result)
    look, n = g.theme(dark), len(theirs)
    shown = np.unique(np.concatenate([np.linspace(0, max(n - 1, 0), min(n, MOST_DOTS)).astype(np.int64),
                                      np.flatnonzero(ours[:n] != theirs)[:MOST_DOTS]])) if n else np.empty(0, np.int64)
    data = [
        {"type": "scatter", "mode": "markers", "name": "recorded", "x": at[shown].tolist(), "y": theirs[shown].tolist(),
         "marker": {"symbol": "circle-open", "size": 5, "color": look.select, "line": {"width": 1}},
         "hovertemplate": "recorded: %{y} free at %{x:,.0f} ms<extra></extra>"},
        {"type": "scatter", "mode": "lines", "name": "simulated", "x": at[shown].tolist(), "y": ours[shown].tolist(),
         "line": {"color": look.ink, "width": 1.5, "shape": "hv"},
         "hovertemplate": "simulated: %{y} free at %{x:,.0f} ms<extra></extra>"}]
    top = float(max(ours.max(initial=1), theirs.max(initial=1)))
    sheet = g.layout(
        dark, RECORDED_HEIGHT, margin={"l": LEFT_PX, "r": RIGHT_PX, "t": 24, "b": 40},
        annotations=[g.note(_agree(result), 0, 1, dark, yshift=3, xshift=-LEFT_PX + 4, font={"size": 12})],
        xaxis={"title": {"text": "time, ms    ○ recorded  — simulated"}, "fixedrange": True, "nticks": 7, "showgrid": False},
        yaxis={"title": {"text": "free blocks"}, "fixedrange": True, "range": [-0.04 * top, 1.08 * top]})
    return Pic({"data": data, "layout": sheet}, _plain(_agree(result)) + ".", lambda: table_recorded(result), RECORDED_HEIGHT)


def _free_blocks(result: Result) -> tuple[Ints, Ints, Floats]:
    """Ours and the recording's free blocks, and the start of each step, ms. A file may not list its steps: no rows then."""
    found = result.scenario.recorded
    if found is None:
        raise ValueError("the requests are no recording")
    n = min(len(found.free), len(result.runs["other"].steps.free))
    return result.runs["other"].steps.free[:n], found.free[:n], found.t0[:n] / 1000


def _agree(result: Result) -> str:
    ours, theirs, _ = _free_blocks(result)
    steps, mine = len(result.recorded_free) if result.recorded_free is not None else 0, len(result.runs["other"].steps.free)
    if not steps:
        return "<b>Free blocks</b>  the file does not list its steps"
    same = int((ours == theirs).sum())
    more = "" if steps == mine else f"; the simulation takes {mine:,} steps"
    return f"<b>Free blocks</b>  the same in {same:,} of {steps:,} recorded steps{more}"


def table_recorded(result: Result) -> pd.DataFrame:
    """A row for each step."""
    ours, theirs, at = _free_blocks(result)
    return pd.DataFrame({"step": np.arange(1, len(at) + 1), "at, ms": at, "recorded free blocks": theirs, "simulated": ours})
