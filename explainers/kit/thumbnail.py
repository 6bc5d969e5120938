"""A lesson's own figure, small and without words: what a card on the hub shows."""

from __future__ import annotations

import re
from typing import Any

from explainers.kit.grammar import Pic

HEIGHT = 150  # px
_AXIS = re.compile(r"[xy]axis\d*")
_BARE = {"showticklabels": False, "ticks": "", "title": None, "showgrid": False, "showline": False, "zeroline": False}


def thumbnail(pic: Pic) -> Pic:
    """The same traces on the same axes; no text, no ticks, no cursor, nothing under the pointer."""
    layout: dict[str, Any] = dict(pic.figure["layout"])
    for key in layout:
        if _AXIS.fullmatch(key):
            layout[key] = {**layout[key], **_BARE}
    shapes = [{**shape, "label": None} for shape in layout.get("shapes", ()) if shape.get("name") != "cursor"]
    layout |= {
        "annotations": [], "shapes": shapes, "height": HEIGHT, "hovermode": False, "margin": {"l": 2, "r": 2, "t": 2, "b": 2},
    }
    data = [{**trace, "hoverinfo": "skip", "hovertemplate": None, **_wordless(trace)} for trace in pic.figure["data"]]
    return Pic({"data": data, "layout": layout}, pic.alt, pic.table, HEIGHT)


def _wordless(trace: dict[str, Any]) -> dict[str, Any]:
    if trace.get("type") == "bar":
        return {"text": None, "texttemplate": ""}
    mode = trace.get("mode")
    return {} if mode is None else {"mode": "+".join(part for part in mode.split("+") if part != "text") or "none"}
