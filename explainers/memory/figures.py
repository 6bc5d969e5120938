"""The memory lesson's pictures: runs → Plotly figures with alt text and a table. Pure; nothing here knows Streamlit."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from explainers.kit import grammar as g
from explainers.kit.grammar import Figure, Floats, Ints, Pic, Row
from explainers.memory import scenario
from explainers.memory.scenario import Band, Preemption, Result, Sweep
from sim.kv.occupancy import PARTS, Occupancy, tokens_at
from sim.kv.reserve import blocks_needed
from sim.kv.sharing import Shared, beams, samples
from sim.orders import outputs
from sim.run import LEFT, Run

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
MOST_PIECES = g.MOST_BARS // 2
"""Most bars of an address space: the stage has two."""
TABLE_HEIGHT, PREEMPTION_HEIGHT, SWEEP_HEIGHT, BAND_HEIGHT, SHARING_HEIGHT, RECORDED_HEIGHT = 300, 300, 346, 150, 300, 220
TOKENS, RESERVED, INTERNAL, EXTERNAL, FREE = range(len(PARTS))
WASTE = (INTERNAL, EXTERNAL)


def names(result: Result) -> dict[str, str]:
    """What each allocator is called on the screen, by key."""
    return {key: policy.name for key, policy in result.scenario.policies.items()}


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
    alive = result.holdings[key].at(t_us)
    tokens, final = tokens_at(run, t_us), final_tokens(run)
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
def _reserved_of(trace: Any, policy: Any) -> Ints:
    return blocks_needed(trace, policy)


def _reserved(run: Run) -> Ints:
    return _reserved_of(run.trace, run.policy)


def _waits(there: Occupancy, t_us: float) -> bool:
    row = int(np.searchsorted(there.start_us, t_us, side="right")) - 1
    return row >= 0 and t_us < there.end_us[row] and bool(there.waits[row])


def _spread(start: Ints, length: Ints) -> Ints:
    """Every number in the spans from `start` on."""
    length = np.maximum(length, 0)
    return np.arange(length.sum()) + np.repeat(start - (np.cumsum(length) - length), length)


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
    """The instant that is shown when the learner has chosen none: the most tokens in both memories while somebody waits."""
    full = [(there, there.waits & (there.end_us > there.start_us)) for there in result.occupancies.values()]
    end = min((float(there.end_us[-1]) for there, _ in full if len(there.end_us)), default=0.0)
    at = np.concatenate([np.concatenate([there.start_us, (there.start_us + there.end_us) / 2]) for there, _ in full])
    at = at[at < end]
    if not len(at):
        return end
    waits, filled = np.zeros(len(at), bool), np.zeros(len(at))
    for there, waiting in full:
        row = np.searchsorted(there.start_us, at, side="right") - 1
        waits |= (row >= 0) & waiting[row]
        xs = np.stack([there.start_us, there.end_us], 1).ravel()
        filled += np.interp(at, xs, np.stack([there.first["tokens"], there.last["tokens"]], 1).ravel()) / there.pool
    return float(at[np.argmax(filled + 2.0 * waits)])


# --- the stage --------------------------------------------------------------------------------------------------------


def stage(result: Result, *, dark: bool, selected: int | None = None, cursor_ms: float | None = None,
          answer: bool = True) -> Pic:
    """Both memories at one instant, and below them where the memory went over time, with the means, on one axis.

    answer False: neither titles nor alt text state how many requests fit at once, which the learner is about to predict.
    """
    zero = zero_us(result)
    t_us = instant_us(result) if cursor_ms is None else zero + 1000 * cursor_ms
    there = {key: cells(result, key, t_us) for key in result.runs}
    end = axis_end_ms(result)
    data: list[dict[str, Any]] = []
    sheet = g.layout(dark, STAGE_HEIGHT, barmode="overlay", bargap=0.0, margin={"l": LEFT_PX, "r": RIGHT_PX, "t": 4, "b": BELOW_PX})
    notes: list[dict[str, Any]] = []
    shapes = [_cursor_line((t_us - zero) / 1000, dark)]
    places = _places(len(there))
    for i, (key, space) in enumerate(there.items()):
        low, high = places[i]
        axes = ("x2", f"y{i + 3}")
        data += _strip(space, axes, result, selected, dark)
        sheet[f"yaxis{i + 3}"] = _address_axis(space, (low, high))
        notes.append(g.note(_title(result, key, answer), 0, high, dark, yshift=2, xshift=-LEFT_PX + 4, font={"size": 12}))
        tag, frame = _outlined(space, axes, dark)
        notes += tag
        shapes.append(frame)
    for i, key in enumerate(result.runs):
        low, high = places[len(there) + i]
        axis = f"y{i + 1}" if i else "y"
        data += _stack(result, key, axis, end, dark)
        sheet["yaxis" + axis[1:]] = {"domain": [low, high], "range": [0, 100], "tickvals": [0, 50, 100], "ticktext": ["", "50 %", ""],
                                     "fixedrange": True, "showgrid": True, "tickfont": {"size": 10}}
        notes.append(g.note(_means(result, key, dark), 0, high, dark, yshift=1, xshift=-LEFT_PX + 4, font={"size": 11}))
        notes += _done(result, key, axis, end, dark)
        shapes.append(_window(result, key, axis, dark))
    row = max(space.row for space in there.values())
    sheet["xaxis2"] = {"range": [0, row], "fixedrange": True, "visible": False, "anchor": f"y{len(there) + 2}"}
    sheet["xaxis"] = g.time_axis(end, "") | {"anchor": "y2", "title": {"text": ""}}
    sheet["annotations"], sheet["shapes"] = notes + _below(there, (t_us - zero) / 1000, end, dark), shapes
    return Pic({"data": data, "layout": sheet}, alt_stage(result, answer), lambda: table_stage(result, cursor_ms), STAGE_HEIGHT)


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
    """ "Orca (Max)  7 of 40 fit, tokens fill 20 %"; where much is free, the share is of what the requests have taken."""
    mean = scenario.mean_shares(result, key)
    fill = f"tokens fill {g.percent(scenario.filled_share(mean))}{' of theirs' if mean['free'] >= 0.005 else ''}"
    fit = f"{scenario.fit_at_once(result, key):,} of {len(result.scenario.trace):,} fit, " if answer else ""
    return f"<b>{names(result)[key]}</b>  {fit}{fill}"


def _strip(space: Cells, axes: tuple[str, str], result: Result, selected: int | None, dark: bool) -> list[dict[str, Any]]:
    """One trace a part, then the selected request's outline and the requests' numbers: always the same traces."""
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
    chosen = np.flatnonzero(space.request == selected) if selected is not None else np.empty(0, np.int64)
    data.append({
        "type": "bar", "orientation": "h", "name": "selected", "xaxis": axes[0], "yaxis": axes[1], "width": 0.98,
        "y": row[chosen].tolist(), "base": offset[chosen].tolist(), "x": space.length[chosen].tolist(), "hoverinfo": "skip",
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
        mine = np.flatnonzero(there & (np.arange(len(space.part)) != outlined))
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


def largest_waste(space: Cells) -> int:
    """The longest piece that is wasted, inside a reservation or out of reach, the first of equal ones; −1: none."""
    waste = np.flatnonzero(np.isin(space.part, WASTE))
    return int(waste[np.argmax(space.length[waste])]) if len(waste) else -1


def _outlined(space: Cells, axes: tuple[str, str], dark: bool) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A frame round the largest wasted piece, with its size on a tag; hidden where it is too small to be seen."""
    look, piece = g.theme(dark), largest_waste(space)
    seen = piece >= 0 and space.length[piece] / space.row * NARROW >= 3
    frame = {"name": "largest", "type": "rect", "xref": axes[0], "yref": axes[1], "layer": "above", "visible": bool(seen),
             "line": {"color": look.ink, "width": 2.5}, "x0": 0, "x1": 0, "y0": 0, "y1": 0}
    if not seen:
        return [], frame
    start, n, row = int(space.start[piece] % space.row), int(space.length[piece]), int(space.start[piece] // space.row)
    frame |= {"x0": start, "x1": start + n, "y0": row - 0.46, "y1": row + 0.46}
    words = f"<b>{n:,}</b> {g.ROLES[PARTS[space.part[piece]]].label}"
    inside = n / space.row * NARROW >= 6 * len(words) - 30
    text = words if inside else f"<b>{n:,}</b>"
    right = start + n > space.row / 2
    tag = g.note(text, start + n if right else start, row, dark, xref=axes[0], yref=axes[1],
                 xanchor="right" if right else "left", yanchor="middle", bgcolor=look.ink, borderpad=0,
                 font={"size": 10.5, "color": look.paper})
    return [tag], frame


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
    """Each part's mean share as whole per cent that add up to 100."""
    mean = scenario.mean_shares(result, key)
    return dict(zip(PARTS, g.apportion([mean[part] for part in PARTS], 100), strict=True))


def _means(result: Result, key: str, dark: bool) -> str:
    """ "Orca (Max), while some wait: ■ 20 %  ▨ 13 %  …": the parts that are there, in the marks of the key."""
    mean, whole = scenario.mean_shares(result, key), shares(result, key)
    parts = [f"{_mark(part, dark)} {g.percent_of(mean[part], whole[part])}" for part in PARTS if mean[part] >= 0.0005]
    when = "while some wait" if math.isfinite(result.saturated[key][0]) else "mean of the run"
    return f"{names(result)[key]}, {when}:  " + "  ".join(parts)


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
    right = f"time, {'ms' if end <= 60_000 else 's'}<br><span style='color:{look.select}'>│ above: {g.duration(at_ms / 1000)}</span>"
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


def table_stage(result: Result, cursor_ms: float | None = None) -> pd.DataFrame:
    """A row for each request that holds memory at the instant, under each allocator; token slots."""
    t_us = instant_us(result) if cursor_ms is None else zero_us(result) + 1000 * cursor_ms
    parts = []
    for key, name in names(result).items():
        space = cells(result, key, t_us, most=sys.maxsize)
        frame = pd.DataFrame({"request": space.request, "part": [PARTS[k] for k in space.part], "slots": space.length})
        wide = frame.pivot_table(index="request", columns="part", values="slots", aggfunc="sum", fill_value=0)
        wide = wide.reindex(columns=list(PARTS), fill_value=0).reset_index()
        wide["request"] = [str(r + 1) if r >= 0 else "nobody" for r in wide["request"]]
        wide.insert(0, "allocator", name)
        parts.append(wide.rename(columns={part: f"{g.ROLES[part].label}, slots" for part in PARTS}))
    return pd.concat(parts, ignore_index=True)
