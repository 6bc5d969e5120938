"""A teacher's link: where it starts, what it hides, whether it is embedded; as text and as a QR code for the lecture hall."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlencode, urlsplit

import segno

from explainers.kit import link
from explainers.kit.knobs import Knob, Preset, defaults

PARTS: Mapping[str, str] = {"presets": "Presets", "prediction": "Prediction", "quiz": "Check yourself", "upload": "Own file"}
"""Parts of the page that a link may hide besides knobs (link.HIDEABLE) → their names on the screen."""


def teacher_query(knobs: Sequence[Knob], state: link.State, preset: Preset | None, hidden: Sequence[str], embed: bool) -> str:
    """The query of a teacher's link.

    preset  where it starts, with the prediction still to be made; None: as the page stands
    hidden  keys of knobs and PARTS that it hides; others are left out
    """
    known = {knob.key for knob in knobs} | set(PARTS)
    hide = frozenset(hidden) & known
    if preset is None:
        made = replace(state, hidden=hide)
    else:
        made = link.State(values=defaults(knobs) | dict(preset.values), hidden=hide)
    return link.text(knobs, made) + ("&" + urlencode({"embed": "true"}) if embed else "")


def address(page: str, key: str, query: str) -> str:
    """The whole address of a lesson on the server that shows `page`, the address of the page as the browser has it."""
    parts = urlsplit(page)
    before = parts.path.rstrip("/").removesuffix(f"/{key}")
    return f"{parts.scheme}://{parts.netloc}{before}/{key}?{query}"


def qr(text: str) -> bytes:
    """A QR code of the text as a PNG, dark on white with its quiet zone, so that it is read in either theme."""
    out = io.BytesIO()
    segno.make(text, error="l", micro=False).save(out, kind="png", scale=4, border=4)
    return out.getvalue()
