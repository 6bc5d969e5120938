"""How every figure speaks: one colour, hatch and label a role, light and dark, and the builders that lessons share.

Figures are plain dicts {"data": […], "layout": {…}}: plotly.graph_objects would validate every value first and take longer
than the simulation. Solid is work; hatched is a seat or a byte that does nothing. Nothing here knows Streamlit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Figure = dict[str, Any]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Streamlit brings Source Sans; the rest stands in where a figure is shown elsewhere.
FONT = "'Source Sans', system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
MOST_BARS = 2000
"""Above this many bars a timeline shows the share of its lanes in each role instead (DESIGN.md, figure grammar)."""
FITTING = {"minsize": 11, "mode": "hide"}
"""Plotly's uniformtext: a label on a bar is shown at full size or, where it does not fit, not at all."""
TICK = 10
"""Pixels above the lanes for the ticks of arrivals."""
BINS = 240
"""Time bins of such a timeline: about one for every four pixels of a wide screen."""


@dataclass(frozen=True)
class Pic:
    """A figure with its two twins for those who do not see it.

    figure  plain Plotly dict
    alt     what the figure shows, as a finding, in one or two sentences
    table   the same numbers as a table, built only when asked for
    height  px, fixed
    """

    figure: Figure
    alt: str
    table: Callable[[], pd.DataFrame]
    height: int


@dataclass(frozen=True)
class Role:
    """What a bar stands for. `light` and `dark` are its colour on either background, `hatch` a Plotly pattern shape.

    label  on the picture, short;  says  the same as a phrase for hover texts and alt texts
    """

    key: str
    label: str
    says: str
    light: str
    dark: str
    hatch: str = ""
    solid: bool = False


# Hues after Okabe and Ito's set for colour-blind readers (Color Universal Design, 2008), darkened on light and lightened
# on dark until each stands off its background by 3:1 and carries its text at 4.5:1 (WCAG 2.2, 1.4.3 and 1.4.11).
ROLES: dict[str, Role] = {role.key: role for role in (
    Role("prefill", "prefill", "prefill", "#00664E", "#5FE0B7", "x", solid=True),
    Role("decode", "decode", "decode", "#12639B", "#56B4E9", "", solid=True),
    Role("stalled", "stalled", "stalled: no token in this step", "#B3261E", "#FF6F61", "|"),
    Role("budget", "no budget", "waits for token budget", "#7A5AB5", "#B79CF0", "-"),
    Role("held", "ended, held", "ended, but its batch holds the slot", "#C24E00", "#FF8A3D", "/"),
    Role("filling", "batch filling", "free: the batch waits to fill", "#A23B78", "#E58CC0", "."),
    Role("late", "left without", "empty: the batch left without the request that waits", "#5B6472", "#A3ACBA", "\\"),
    Role("boundary", "joins next step", "free until the running step ends", "#3B3F46", "#D7DBE0", "+"),
    Role("nothing", "no request", "no request for this slot", "#80868F", "#6E7681", ""),
    Role("waiting", "waiting", "waiting in the queue", "#8A6A00", "#E8C547", "."),
    Role("reserved", "reserved", "reserved for tokens to come", "#7A5AB5", "#B79CF0", "/"),
    Role("memory", "no memory", "waits for KV memory", "#8A6A00", "#E8C547", "x"),
    Role("tokens", "tokens", "keys and values of tokens", "#12639B", "#56B4E9", "", solid=True),
    Role("internal", "never filled", "held, and no token will ever fill it (internal fragmentation)", "#C24E00", "#FF8A3D", "x"),
    Role("external", "cannot be given", "too little, or not in one piece, while a request waits (external fragmentation)",
         "#5B6472", "#A3ACBA", "\\"),
    Role("free", "free", "free, and nobody waits for it", "#80868F", "#6E7681", ""),
    Role("hit", "cache hit", "found in the cache", "#00664E", "#5FE0B7", "", solid=True),
    Role("miss", "cache miss", "computed anew", "#A23B78", "#E58CC0", "\\"),
    Role("again", "computed anew", "computes anew what it had", "#A23B78", "#E58CC0", "\\", solid=True),
    Role("preempted", "preempted", "preempted", "#B3261E", "#FF6F61", "+"),
)}

# A request keeps its shade of its role's colour in every lane and under every policy: neighbours differ, the hue does not.
_SHADES = {False: (0.0, -0.30, 0.13), True: (0.0, 0.34, -0.17)}
# In memory many requests lie side by side, in pieces: more tones, of the blues next to the role's own.
_TONES = {"tokens": {False: ("#12639B", "#0A3A5E", "#2F79AE", "#35519E", "#006B75", "#1E4A7A"),
                     True: ("#56B4E9", "#9AD3F5", "#3F8FC2", "#8FA9EE", "#4FC3CB", "#B9C8F7")}}


@dataclass(frozen=True)
class Theme:
    """Colours that are no role: background, text, lines, the mark of what the reader selected."""

    paper: str
    ink: str
    muted: str
    grid: str
    on_solid: str
    select: str
    gain: str
    loss: str


LIGHT = Theme("#FBFAF7", "#1B1F24", "#59616B", "#E4E2DB", "#FFFFFF", "#D1006C", "#00775A", "#C24E00")
DARK = Theme("#12161D", "#E9ECF0", "#A3ACB8", "#2A313B", "#0B0E13", "#FF7AC0", "#2BC79B", "#FF8A3D")


def theme(dark: bool) -> Theme:
    """The light or the dark set."""
    return DARK if dark else LIGHT


def colour(role: str, dark: bool, shade: int = 0) -> str:
    """The colour of a role, `#rrggbb`; `shade` 0 ≤ … < `shades(role)` tells neighbouring requests apart within a solid role."""
    if role in _TONES:
        return _TONES[role][dark][shade % shades(role)]
    known = ROLES[role]
    return mix(known.dark if dark else known.light, _SHADES[dark][shade % 3])


def shades(role: str) -> int:
    """How many shades of its colour a solid role has."""
    return len(_TONES[role][False]) if role in _TONES else len(_SHADES[False])


def wash(role: str, dark: bool) -> str:
    """The pale ground under a role's hatch: its colour at one part in eight over the background."""
    base = _rgb(theme(dark).paper)
    return _hex(base + (_rgb(colour(role, dark)) - base) * 0.125)


def mix(colour_: str, by: float) -> str:
    """`colour_` moved towards white (by > 0) or black (by < 0) by that share."""
    rgb = _rgb(colour_)
    return _hex(rgb + ((255.0 if by > 0 else 0.0) - rgb) * abs(by))


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two `#rrggbb` colours, 1 to 21 (WCAG 2.2, relative luminance)."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour_: str) -> float:
    c = _rgb(colour_) / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    return float(linear @ np.array([0.2126, 0.7152, 0.0722]))


def _rgb(colour_: str) -> Floats:
    return np.array([int(colour_[i:i + 2], 16) for i in (1, 3, 5)], np.float64)


def _hex(rgb: Floats) -> str:
    return "#" + "".join(f"{round(float(c)):02X}" for c in rgb)


# --- words for numbers ------------------------------------------------------------------------------------------------


def percent(share: float) -> str:
    """A share as whole percent; small but real shares are not rounded away: "38 %", "under 1 %", "0 %"."""
    return "–" if math.isnan(share) else percent_of(share, round(100 * share))


def apportion(parts: Sequence[float], whole: int) -> list[int]:
    """Whole numbers in proportion to `parts` that add up to `whole`: largest remainder, the earlier of equal ones first."""
    total = sum(parts)
    if total <= 0:
        return [0] * len(parts)
    exact = [part / total * whole for part in parts]
    found = [math.floor(x + 1e-9) for x in exact]
    for i in sorted(range(len(parts)), key=lambda i: (round(found[i] - exact[i], 9), i))[:whole - sum(found)]:
        found[i] += 1
    return found


def percent_of(share: float, whole: int) -> str:
    """A share that was rounded to `whole` per cent so that the parts add up: as `percent`, small but real ones are kept."""
    if whole == 0 and share > 1e-9:
        return "under 1 %"
    return "over 99 %" if whole == 100 and share < 1 - 1e-9 else f"{whole} %"


def duration(seconds: float) -> str:
    """A time for a sentence: "0 ms", "0.4 ms", "140 ms", "5.93 s", "17.1 s", "3,502 s"."""
    if math.isnan(seconds):
        return "–"
    size = abs(seconds)
    if size < 0.9995:
        ms = 1000 * seconds
        return f"{ms:.0f} ms" if size == 0 or abs(ms) >= 9.95 else f"{ms:.1f} ms"
    return f"{seconds:.2f} s" if size < 9.995 else f"{seconds:.1f} s" if size < 999.5 else f"{seconds:,.0f} s"


def count(n: int, one: str, many: str = "") -> str:
    """ "1 request", "14 requests"."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def listed(parts: Sequence[str], join: str = "and") -> str:
    """ "a", "a and b", "a, b and c"."""
    return f" {join} ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


# --- the sheet of paper -----------------------------------------------------------------------------------------------


def layout(dark: bool, height: int, **more: Any) -> dict[str, Any]:
    """The layout that every figure starts from: our template, a fixed height, no legend, no drag that loses the axis.

    Margins are small enough for 375 px; `more` overrides and adds keys of Plotly's layout.
    """
    look = theme(dark)
    axis = {"gridcolor": look.grid, "zeroline": False, "linecolor": look.grid, "tickcolor": look.muted, "automargin": False,
            "tickfont": {"color": look.muted, "size": 11}, "title": {"font": {"color": look.muted, "size": 12}, "standoff": 4}}
    base = {
        "paper_bgcolor": look.paper, "plot_bgcolor": look.paper, "font": {"family": FONT, "size": 12, "color": look.ink},
        "xaxis": axis, "yaxis": axis, "separators": ".,", "showlegend": False, "hovermode": "closest", "dragmode": False,
        "hoverlabel": {"bgcolor": look.ink, "bordercolor": look.ink, "align": "left",
                       "font": {"color": look.paper, "family": FONT, "size": 12}},
    }
    return {"template": {"layout": base}, "height": height, "autosize": True,
            "margin": {"l": 34, "r": 12, "t": 10, "b": 34}, **more}


def note(text: str, x: float, y: float, dark: bool, **more: Any) -> dict[str, Any]:
    """Text on the picture, without an arrow; paper coordinates unless `xref`/`yref` say otherwise."""
    return {"text": text, "x": x, "y": y, "xref": "paper", "yref": "paper", "showarrow": False, "align": "left",
            "xanchor": "left", "yanchor": "bottom", "font": {"color": theme(dark).ink, "size": 12}, **more}


def swatch(role: str, dark: bool) -> dict[str, Any]:
    """Plotly `marker` of a bar in this role: solid for work, hatched on a pale ground for idleness and waste."""
    known = ROLES[role]
    tone, ground = colour(role, dark), wash(role, dark)
    if known.solid:
        pattern = {"shape": known.hatch, "fgcolor": mix(tone, -0.45 if not dark else 0.55), "bgcolor": tone, "size": 5,
                   "solidity": 0.35}
        # Prompts are slivers beside replies: their edge is ink, so that one of two pixels is still seen.
        edge = theme(dark).ink if role == "prefill" else theme(dark).paper
        return {"color": tone, "line": {"width": 1, "color": edge}, "pattern": pattern}
    pattern = {"shape": known.hatch, "fgcolor": tone, "bgcolor": ground, "size": 7, "solidity": 0.22}
    return {"color": ground if not known.hatch else tone, "line": {"width": 1, "color": tone}, "pattern": pattern}


def bar_font(role: str, dark: bool) -> dict[str, Any]:
    """Font of text on a bar: on a hatch the text gets a halo of the background, so that the lines stop short of it."""
    look = theme(dark)
    if ROLES[role].solid:
        return {"color": look.on_solid, "size": 12}
    halo = ", ".join([f"0 0 2px {look.paper}"] * 6)
    return {"color": look.ink, "size": 11, "shadow": halo}


_GLYPHS = {"x": "▩", "/": "▨", "\\": "▧", "|": "▥", "-": "▤", "+": "▦", ".": "▒", "": "□"}


def key(roles: Sequence[str], dark: bool) -> list[str]:
    """An entry for each role, to stand beside or below a picture whose bars are too thin for a label: mark and label."""
    return [f'<span style="color:{colour(role, dark)}">{"■" if ROLES[role].solid else _GLYPHS[ROLES[role].hatch]}</span> '
            f"{ROLES[role].label}" for role in roles]


# --- timelines --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Panel:
    """One policy's lanes over time. All columns have one entry a piece; pieces of a lane do not overlap.

    title    over the lanes; may hold <b>
    lanes    number of lanes
    lane     int64, counted from 0, the top one
    start, end  float64, ms
    role     int, index in `roles` of `timeline`
    request  int64, index of the request, or −1
    label    text on each piece, shown where it fits ("" for none)
    hover    one line more for each piece, or empty
    arrivals  ms, by request: a tick for each above the lanes; empty: none
    """

    title: str
    lanes: int
    lane: Ints
    start: Floats
    end: Floats
    role: NDArray[Any]
    request: Ints
    label: Sequence[str]
    hover: Sequence[str] = ()
    arrivals: Floats = field(default_factory=lambda: np.empty(0))


def timeline(panels: Sequence[Panel], roles: Sequence[str], *, dark: bool, height: int, end: float, lane_word: str = "slot",
             cursor: float | None = None, selected: int | None = None, most: int = MOST_BARS, below: int = 36) -> Figure:
    """Panels above each other on one axis of ms from 0 to `end`: one trace for each role and panel, in the same order always.

    `customdata[0]` of each bar and tick is its request's index, −1: none. The ticks are the last traces, one a panel.
    `selected` is outlined in every panel. The layout shape named "cursor" is the time cursor over all panels (hidden while
    `cursor` is None). Above `most` bars in a panel: the share of its lanes by role, in BINS bins.
    """
    aggregate = max(len(p.start) for p in panels) > most
    domains = _domains(len(panels), height, bottom=below)
    data: list[dict[str, Any]] = []
    ticks: list[dict[str, Any]] = []
    sheet = layout(dark, height, barmode="overlay", bargap=0.0, uniformtext=FITTING,
                   margin={"l": 34, "r": 12, "t": 4, "b": below})
    annotations, shapes = [], [cursor_line(cursor, dark)]
    for i, (panel, (low, high)) in enumerate(zip(panels, domains, strict=True)):
        axis = f"y{i + 1}" if i else "y"
        data += _areas(panel, roles, axis, end, dark) if aggregate else _bars(panel, roles, axis, dark)
        shapes.append(_outline(panel, selected, axis, aggregate, dark))
        room = TICK / ((high - low) * (height - below - 4) - TICK) if len(panel.arrivals) and not aggregate else 0.0
        sheet[f"yaxis{i + 1}" if i else "yaxis"] = _lane_axis(panel, (low, high), aggregate, lane_word, room)
        ticks.append(_arrival_ticks(panel, axis, room, dark))
        annotations.append(note(panel.title, 0, high, dark, yshift=5, font={"size": 13, "color": theme(dark).ink}))
    pieces = sum(len(p.start) for p in panels)
    sheet["xaxis"] = time_axis(end, f": {pieces:,} pieces, shown as shares of the {lane_word}s" if aggregate else "") | {
        "anchor": f"y{len(panels)}" if len(panels) > 1 else "y"}
    sheet["annotations"], sheet["shapes"] = annotations, shapes
    return {"data": data + ticks, "layout": sheet}


def _arrival_ticks(panel: Panel, axis: str, room: float, dark: bool) -> dict[str, Any]:
    """A tick for each arrival in the `room` above the lanes (a share of their height); none without room."""
    at = panel.arrivals.tolist() if room else []
    return {"type": "scatter", "mode": "markers", "name": "arrivals", "yaxis": axis, "x": at,
            "y": [-0.5 - 0.5 * room * panel.lanes] * len(at), "cliponaxis": False,
            "marker": {"symbol": "line-ns", "size": 0.6 * TICK, "line": {"width": 1.5, "color": theme(dark).ink}},
            "customdata": [[r, f"<b>request {r + 1}</b>: comes", f"{t:,.0f} ms"] for r, t in enumerate(at)],
            "hovertemplate": "%{customdata[1]}<br>%{customdata[2]}<extra></extra>"}


def time_axis(end: float, and_: str) -> dict[str, Any]:
    """An axis of ms, labelled in ms up to a minute and in s beyond, with at most seven ticks."""
    unit, scale = ("ms", 1.0) if end <= 60_000 else ("s", 1000.0)
    rough = max(end / scale, 1e-3) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * (1 - 1e-9))
    ticks = np.arange(0, end / scale + step / 1e6, step)
    return {"range": [0, end], "tickvals": (ticks * scale).tolist(), "ticktext": [f"{t:,g}" for t in ticks.tolist()],
            "title": {"text": f"time, {unit}{and_}"}, "ticks": "outside", "ticklen": 4, "fixedrange": True}


def _domains(n: int, height: int, title: int = 28, bottom: int = 36) -> list[tuple[float, float]]:
    """The vertical share of each panel, the first on top, with room for its title above."""
    plot = height - bottom - 4
    each = 1 / n
    return [(1 - each * (i + 1), 1 - each * i - title / plot) for i in range(n)]


def _lane_axis(panel: Panel, domain: tuple[float, float], aggregate: bool, word: str, room: float = 0.0) -> dict[str, Any]:
    axis: dict[str, Any] = {"domain": list(domain), "fixedrange": True, "showgrid": False, "zeroline": False}
    if aggregate:
        return axis | {"range": [0, 1], "tickvals": [0, 0.5, 1], "ticktext": ["0 %", "50 %", "100 %"],
                       "title": {"text": ""}, "tickfont": {"size": 9}}
    every = max(1, math.ceil(panel.lanes / 8))
    shown = list(range(0, panel.lanes, every))
    return axis | {"range": [panel.lanes - 0.5, -0.5 - room * panel.lanes], "tickvals": shown,
                   "ticktext": [str(k + 1) for k in shown], "title": {"text": word, "standoff": 2}}


def cursor_line(at: float | None, dark: bool) -> dict[str, Any]:
    """The time cursor at `at` ms, hidden while that is None."""
    x = 0.0 if at is None else at
    return {"name": "cursor", "type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1,
            "visible": at is not None, "layer": "above", "line": {"color": theme(dark).select, "width": 2}}


def _bars(panel: Panel, roles: Sequence[str], axis: str, dark: bool) -> list[dict[str, Any]]:
    traces = []
    span = panel.end - panel.start
    # Prefill is drawn last: a sliver would vanish under its neighbours' edges. (Plotly's zorder would undo uniformtext.)
    for k, key in sorted(enumerate(roles), key=lambda pair: pair[1] == "prefill"):
        mine = np.flatnonzero(panel.role == k)
        who = panel.request[mine].tolist()
        marker = swatch(key, dark)
        if ROLES[key].solid and key != "prefill":
            shades = [colour(key, dark, s) for s in range(3)]
            marker = {"color": [shades[max(r, 0) % 3] for r in who], "line": marker["line"]}
        traces.append({
            "type": "bar", "orientation": "h", "name": ROLES[key].label, "yaxis": axis,
            "width": 0.94 if key == "prefill" else 0.84,
            "y": panel.lane[mine].tolist(), "base": panel.start[mine].tolist(), "x": span[mine].tolist(), "marker": marker,
            "text": [panel.label[i] for i in mine.tolist()], "insidetextfont": bar_font(key, dark),
            "textposition": "inside", "insidetextanchor": "middle" if ROLES[key].solid else "start", "textangle": 0,
            "customdata": _custom(panel, mine, ROLES[key].says),
            "hovertemplate": "%{customdata[1]}<br>%{customdata[2]}<extra></extra>",
        })
    return traces


def _custom(panel: Panel, mine: Ints, says: str) -> list[list[Any]]:
    """[request index, what, from–to] for each piece."""
    rows = zip(panel.request[mine].tolist(), panel.start[mine].tolist(), panel.end[mine].tolist(), mine.tolist(), strict=True)
    return [[r, f"<b>request {r + 1}</b>: {says}" if r >= 0 else f"<b>{says}</b>",
             f"{a:,.0f}–{b:,.0f} ms ({b - a:,.0f} ms)" + (f"<br>{panel.hover[i]}" if len(panel.hover) and panel.hover[i] else "")]
            for r, a, b, i in rows]


def _outline(panel: Panel, selected: int | None, axis: str, aggregate: bool, dark: bool) -> dict[str, Any]:
    """A frame round the time and lane that the selected request occupies, or a hidden one: the same shapes always."""
    mine = np.flatnonzero(panel.request == selected) if selected is not None else np.empty(0, np.int64)
    frame = {"name": "selected", "type": "rect", "xref": "x", "yref": axis, "layer": "above", "visible": bool(len(mine)),
             "line": {"color": theme(dark).select, "width": 3}, "x0": 0, "x1": 0, "y0": 0, "y1": 0}
    if not len(mine):
        return frame
    low, high = (0.0, 1.0) if aggregate else (panel.lane[mine[0]] - 0.46, panel.lane[mine[0]] + 0.46)
    return frame | {"x0": float(panel.start[mine].min()), "x1": float(panel.end[mine].max()), "y0": float(low), "y1": float(high)}


def _areas(panel: Panel, roles: Sequence[str], axis: str, end: float, dark: bool) -> list[dict[str, Any]]:
    edges = np.linspace(0.0, max(end, 1e-9), BINS + 1)
    middle = ((edges[1:] + edges[:-1]) / 2).tolist()
    traces = []
    for k, key in enumerate(roles):
        mine = panel.role == k
        share = occupancy(panel.start[mine], panel.end[mine], edges) / panel.lanes
        tone = swatch(key, dark)
        traces.append({
            "type": "scatter", "mode": "lines", "name": ROLES[key].label, "yaxis": axis, "stackgroup": axis,
            "x": middle, "y": np.round(share, 5).tolist(), "line": {"width": 0, "shape": "hvh", "color": colour(key, dark)},
            "fillcolor": tone["color"], "fillpattern": tone["pattern"],
            "hovertemplate": f"{ROLES[key].says}: %{{y:.0%}} of slots<extra></extra>",
        })
    return traces


def occupancy(start: Floats, end: Floats, edges: Floats) -> Floats:
    """Mean number of intervals that are open in each bin between `edges` (ascending); exact, whatever their number."""

    def passed(at: Floats) -> Floats:
        """∫ of the number of marks ≤ t, up to each edge."""
        sums = np.concatenate(([0.0], np.cumsum(np.sort(at))))
        n = np.searchsorted(np.sort(at), edges)
        integral: Floats = n * edges - sums[n]
        return integral

    mean: Floats = np.diff(passed(start) - passed(end)) / np.diff(edges)
    return mean


# --- sweep strips -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One quantity of a sweep strip: name, Plotly tick format, a curve for each policy over the strip's x.

    top  upper end of the axis; None: a little above the highest value
    """

    title: str
    tickformat: str
    curves: Mapping[str, Floats]
    top: float | None = None


def strip(x: Floats, rows: Sequence[Row], x_here: float, *, x_title: str, dark: bool, height: int,
          log: bool = False, note_below: str = "") -> Figure:
    """Small graphs above each other over one x, a curve for each policy, and a line with "you are here" at `x_here`.

    log: a logarithmic x with a tick at each value. note_below: a line under the axis, its place is kept if empty.
    """
    look = theme(dark)
    sheet = layout(dark, height, margin={"l": 46, "r": 84, "t": 20, "b": 56})
    data: list[dict[str, Any]] = []
    annotations, shapes = [], []
    for i, (row, (low, high)) in enumerate(zip(rows, _domains(len(rows), height, 34, 72), strict=True)):
        axis = f"y{i + 1}" if i else "y"
        highest = max((float(np.nanmax(y)) for y in row.curves.values() if np.isfinite(y).any()), default=0.0)
        top = row.top or 1.12 * highest or 1.0
        sheet["yaxis" + axis[1:]] = {"domain": [low, high], "range": [0, top], "tickformat": row.tickformat, "nticks": 4,
                                     "fixedrange": True, "showgrid": True}
        annotations.append(note(row.title, 0, high, dark, yshift=3, bgcolor=look.paper, font={"size": 12, "color": look.muted}))
        for k, (name, y) in enumerate(row.curves.items()):
            data.append(_curve(name, x, y, k, axis, row.tickformat, x_title, dark))
        annotations += _ends(row.curves, x, axis, top, (high - low) * (height - 76), dark, log)
    shapes.append({"name": "here", "type": "line", "xref": "x", "yref": "paper", "x0": x_here, "x1": x_here, "y0": 0, "y1": 1,
                   "line": {"color": look.select, "width": 2, "dash": "dot"}, "layer": "below"})
    annotations.append(note("you are here", math.log10(x_here) if log else x_here, 1, dark, xref="x", xanchor="center",
                            yshift=2, font={"size": 11, "color": look.select}))
    below = f'{x_title}<br><span style="font-size:11px">{note_below or " "}</span>'
    sheet["xaxis"] = {"anchor": axis, "title": {"text": below}, "fixedrange": True, "showgrid": False, "ticks": "outside",
                      "ticklen": 4, "range": _x_range(x, log), **_x_ticks(x, log)}
    sheet["annotations"], sheet["shapes"] = annotations, shapes
    return {"data": data, "layout": sheet}


def policy_line(k: int, dark: bool) -> dict[str, Any]:
    """Colour, dash and mark of the k-th policy where lines stand for policies: no role's hue, told apart by dash and mark."""
    look = theme(dark)
    return ({"color": look.muted, "dash": "dash"}, {"color": look.ink, "dash": "solid"},
            {"color": look.muted, "dash": "dot"})[k % 3]


def policy_mark(k: int, dark: bool, size: int) -> dict[str, Any]:
    """Plotly `marker` of the k-th policy: a ring for the first, a disc for the second, a square ring for the third."""
    line = policy_line(k, dark)
    return {"symbol": "square" if k % 3 == 2 else "circle", "size": size,
            "color": line["color"] if k % 3 == 1 else theme(dark).paper,
            "line": {"width": 2, "color": line["color"]}}


def _curve(name: str, x: Floats, y: Floats, k: int, axis: str, form: str, x_title: str, dark: bool) -> dict[str, Any]:
    mark = policy_line(k, dark)
    return {"type": "scatter", "mode": "lines+markers", "name": name, "yaxis": axis, "x": x.tolist(), "y": y.tolist(),
            "line": {"color": mark["color"], "dash": mark["dash"], "width": 2},
            "marker": policy_mark(k, dark, 7), "cliponaxis": False,
            "hovertemplate": f"{name}: %{{y:{form}}}<br>{x_title}: %{{x}}<extra></extra>"}


def _ends(curves: Mapping[str, Floats], x: Floats, axis: str, top: float, pixels: float, dark: bool,
          log: bool) -> list[dict[str, Any]]:
    """The name of each curve at its right end, moved apart where two would overlap."""
    last = {name: float(y[-1]) if math.isfinite(y[-1]) else 0.0 for name, y in curves.items()}
    at: list[dict[str, Any]] = []
    below = -math.inf
    for name, value in sorted(last.items(), key=lambda item: item[1]):
        y = max(value / top * pixels, below + 15)
        below = y
        k = list(curves).index(name)
        at.append(note(name, math.log10(float(x[-1])) if log else float(x[-1]), 0, dark, xref="x", yref=axis + " domain",
                       xshift=8, yshift=y, yanchor="middle", font={"size": 12, "color": policy_line(k, dark)["color"]}))
    return at


def _x_range(x: Floats, log: bool) -> list[float]:
    low, high = float(x[0]), float(x[-1])
    if log:
        low, high = math.log10(low), math.log10(high)
    pad = 0.04 * (high - low or 1)
    return [low - pad, high + pad]


def _x_ticks(x: Floats, log: bool) -> dict[str, Any]:
    if not log:
        return {"nticks": 8}
    return {"type": "log", "tickvals": x.tolist(), "ticktext": [f"{v:g}" for v in x.tolist()]}


# --- over the seeds ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seeds:
    """One row of `over_seeds`: its name, a value for each seed, the value on the screen, and the median in words."""

    name: str
    values: Floats
    here: float
    median: str


def over_seeds(rows: Sequence[Seeds], seeds: Sequence[int], form: str, *, dark: bool, height: int, left: int, top: int = 20,
               xaxis: Mapping[str, Any]) -> Figure:
    """A row each: a ring for every seed, the median, and a diamond for the run on the screen.

    form  of a value under the pointer, in Plotly's way: "%{x:.1f} %";  left, top  margins, px
    """
    look = theme(dark)
    data: list[dict[str, Any]] = []
    notes = [note("◆ on the screen", 1, 1, dark, xanchor="right", yshift=3, font={"size": 11, "color": look.select})]
    for k, row in enumerate(rows):
        data.append({"type": "scatter", "mode": "markers", "name": row.name, "x": row.values.tolist(),
                     "y": [row.name] * len(row.values),
                     "marker": {"symbol": "circle-open", "size": 9, "line": {"width": 2}, "color": policy_line(k, dark)["color"]},
                     "text": [f"seed {seed}" for seed in seeds], "hovertemplate": f"%{{text}}: {form}<extra></extra>"})
        data.append({"type": "scatter", "mode": "markers", "x": [row.here], "y": [row.name], "name": "on the screen",
                     "marker": {"symbol": "diamond", "size": 13, "color": look.select},
                     "hovertemplate": f"on the screen: {form}<extra></extra>"})
        notes.append(note(f"median {row.median}", float(np.median(row.values)), k, dark, xref="x", yref="y", xanchor="center",
                          yshift=7, font={"size": 11, "color": look.ink}))
    sheet = layout(dark, height, margin={"l": left, "r": 16, "t": top, "b": 40}, annotations=notes, yaxis=named_rows(dark),
                   xaxis={"fixedrange": True, "nticks": 6, **xaxis})
    return {"data": data, "layout": sheet}


def named_rows(dark: bool) -> dict[str, Any]:
    """A y axis of names, the first on top."""
    return {"autorange": "reversed", "fixedrange": True, "type": "category", "tickfont": {"size": 12, "color": theme(dark).ink}}
