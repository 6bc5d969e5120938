"""Knob: the one declaration of a control, from which the widget, the link, the command line and the tests read."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from explainers.kit.text import clip

Value = bool | int | float | str
Kind = Literal["bool", "int", "float", "choice"]

# Keys of the link that are not knobs (explainers/kit/link.py, and Streamlit's own).
RESERVED = frozenset({"v", "request", "t", "hide", "guess", "embed", "embed_options"})

LONGEST = 64  # characters of a raw value that are looked at; no value of ours is longer
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")  # ASCII digits only, no hex, no `_`
_BOOLS = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}


@dataclass(frozen=True)
class Knob:
    """One control. Its kind follows from `options` (a choice) or else from the type of `default`.

    key        in the link, in `values` and as the widget's key: small letters, digits, `_`
    label      what stands above the control
    low, high  range of an int or float, both ends allowed
    step       grid of an int or float, counted from `low`; None: 1 for an int, any value for a float
    options    the values of a choice, in order; all numbers: a slider (of any scale), else a select box
    unit       after the number: "ms", "requests/s"
    help       one or two sentences for the tooltip
    main       the lesson's main knob, on the first screen
    group      heading under which it stands among the others
    """

    key: str
    label: str
    default: Value
    low: float | None = None
    high: float | None = None
    step: float | None = None
    options: tuple[Value, ...] | None = None
    unit: str = ""
    help: str = ""
    main: bool = False
    group: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError where the declaration contradicts itself."""
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.key) or self.key in RESERVED:
            raise ValueError(f"knob {self.key!r}: a key is small letters, digits and _, and none of {sorted(RESERVED)}")
        if self.kind in ("int", "float"):
            if self.low is None or self.high is None or not self.low < self.high:
                raise ValueError(f"knob {self.key!r}: low and high must be given, low below high")
            if self.step is not None and not self.step > 0:
                raise ValueError(f"knob {self.key!r}: step must be above 0, not {self.step}")
        if self.fit(self.default) != (self.default, None):
            raise ValueError(f"knob {self.key!r}: the default {self.default!r} is not a value it allows")

    @property
    def kind(self) -> Kind:
        """What sort of value: "choice", "bool", "int" or "float"."""
        if self.options is not None:
            return "choice"
        if isinstance(self.default, bool):
            return "bool"
        return "int" if isinstance(self.default, int) else "float"

    @property
    def numeric(self) -> bool:
        """Whether the values are numbers, options included."""
        if self.options is None:
            return self.kind != "bool"
        return all(isinstance(o, int | float) and not isinstance(o, bool) for o in self.options)

    def show(self, value: Value) -> str:
        """`value` for a reader, with the unit: "8 requests/s", "on", "until full"."""
        if isinstance(value, bool):
            return "on" if value else "off"
        shown = f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
        return f"{shown} {self.unit}" if self.unit and not isinstance(value, str) else shown

    def fit(self, raw: object) -> tuple[Value, str | None]:
        """The allowed value nearest to `raw` (a link's text or a Python value), and what was adjusted, if anything.

        Never raises. The note quotes at most a clipped, printable piece of `raw`; it is not escaped for Markdown
        (explainers.kit.text.plain does that where it is shown).
        """
        if self.options is not None:
            return self._fit_choice(raw)
        if self.kind == "bool":
            return self._fit_bool(raw)
        number = _number(raw)
        if number is None:
            return self.default, f"{self.label}: {_quote(raw)} is not a number; {self.show(self.default)} is used"
        return self._fit_number(number, raw)

    def _fit_bool(self, raw: object) -> tuple[Value, str | None]:
        if isinstance(raw, bool):
            return raw, None
        known = _BOOLS.get(str(raw)[:LONGEST].strip().lower()) if isinstance(raw, str | int) else None
        if known is None:
            return self.default, f"{self.label}: {_quote(raw)} is neither on nor off; {self.show(self.default)} is used"
        return known, None

    def _fit_choice(self, raw: object) -> tuple[Value, str | None]:
        assert self.options is not None
        said = encoded(raw) if isinstance(raw, bool | int | float | str) else ""
        for option in self.options:
            if encoded(option) == said:
                return option, None
        number = _number(raw)
        if self.numeric and number is not None:
            for option in self.options:
                if float(option) == number:  # "8.0" or "08" for 8
                    return option, None
            near = _nearest(self.options, number)
            return near, f"{self.label}: {_quote(raw)} is not offered; {self.show(near)}, the nearest, is used"
        return self.default, f"{self.label}: {_quote(raw)} is not offered; {self.show(self.default)} is used"

    def _fit_number(self, number: float, raw: object) -> tuple[Value, str | None]:
        assert self.low is not None and self.high is not None
        if number < self.low:
            return self._typed(self.low), f"{self.label}: {_quote(raw)} is below {self.show(self.low)}; that is used"
        if number > self.high:
            return self._typed(self.high), f"{self.label}: {_quote(raw)} is above {self.show(self.high)}; that is used"
        step = self.step if self.step is not None else (1.0 if self.kind == "int" else None)
        if step is None:
            return self._typed(number), None
        # On the grid low + k·step; rounding to 9 places takes the binary fraction's tail off (0.1·3).
        on_grid = min(self.high, round(self.low + round((number - self.low) / step) * step, 9))
        if math.isclose(on_grid, number, rel_tol=1e-9, abs_tol=1e-9):
            return self._typed(on_grid), None
        return self._typed(on_grid), (
            f"{self.label}: {_quote(raw)} is between two steps of {step:g}; {self.show(self._typed(on_grid))} is used"
        )

    def _typed(self, number: float) -> int | float:
        return round(number) if self.kind == "int" else float(number)


@dataclass(frozen=True)
class Preset:
    """A named set of knob values; knobs it leaves out go to their defaults. `watch`: what to look for, one sentence."""

    key: str
    name: str
    values: Mapping[str, Value]
    watch: str


def changed(knobs: Sequence[Knob], values: Mapping[str, Value]) -> dict[str, Value]:
    """The values that are not the default."""
    return {knob.key: values[knob.key] for knob in knobs if values[knob.key] != knob.default}


def encoded(value: Value) -> str:
    """`value` as it stands in a link; `Knob.fit` reads it back unchanged."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return str(value)


def ranges(names: Mapping[str, str]) -> Knob:
    """The view "over" of a lesson whose sweep goes over one of these knobs (key → name), the first one if nothing is chosen."""
    return Knob("over", "Over the whole range", next(iter(names)), options=tuple(names))


def defaults(knobs: Sequence[Knob]) -> dict[str, Value]:
    """Key → default of every knob."""
    return {knob.key: knob.default for knob in knobs}


def _nearest(options: tuple[Value, ...], number: float) -> Value:
    values = [float(option) for option in options]
    within = min(max(number, min(values)), max(values))  # beyond them, far away or at infinity, distances would all be one
    return min(options, key=lambda option: abs(float(option) - within))


def _number(raw: object) -> float | None:
    """`raw` as a number, ±inf for what overflows, None for what is none (nan included)."""
    if isinstance(raw, bool):
        return None
    if isinstance(raw, int | float):
        try:
            number = float(raw)
        except OverflowError:  # an int beyond the floats
            return math.inf if raw > 0 else -math.inf
        return None if math.isnan(number) else number
    if not isinstance(raw, str) or len(raw) > LONGEST:
        return None
    said = raw.strip()
    return float(said) if _NUMBER.fullmatch(said) else None


def _quote(raw: object) -> str:
    if isinstance(raw, str):
        return f"“{clip(raw, 24)}”"
    if isinstance(raw, int) and abs(raw) >= 10**24:  # str() of a huge int is slow, and refused beyond 4,300 digits
        return "a number of more than 24 digits"
    return f"“{clip(str(raw), 24)}”" if isinstance(raw, int | float) else "that value"
