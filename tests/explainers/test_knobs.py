"""A knob takes any text from a link and gives a value it allows, saying what it changed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explainers.kit.knobs import Knob, encoded

RATE = Knob("rate", "Arrival rate", 8.0, 0.5, 50.0, 0.5, unit="requests/s")
SLOTS = Knob("slots", "Slots", 4, 1, 32)
STEPPED = Knob("count", "Requests", 14, 2, 64, 2)
GPU = Knob("gpu", "GPU", "A100-80G", options=("A100-80G", "H100"))
WAIT = Knob("wait", "Fill timeout", math.inf, options=(0.0, 50.0, 200.0, math.inf), unit="ms")
TILES = Knob("tiles", "Tile rounding", False)
ALL = (RATE, SLOTS, STEPPED, GPU, WAIT, TILES)

HOSTILE = (
    "", " ", "nan", "NaN", "0x10", "1_0", "٤", "４", "1e", "--4", "4;drop", "<script>alert(1)</script>", "9" * 10_000,
    "\x00", "\u202e4", "None", "[4]", "1/2",
)  # fmt: skip


@pytest.mark.parametrize("raw", HOSTILE)
@pytest.mark.parametrize("knob", ALL, ids=lambda knob: knob.key)
def test_what_is_no_value_becomes_the_default_and_is_said(knob: Knob, raw: str) -> None:
    value, note = knob.fit(raw)
    assert value == knob.default
    assert note is not None and knob.label in note


@pytest.mark.parametrize(
    ("raw", "value", "said"),
    [
        ("9e99", 50.0, "is above 50 requests/s"),
        ("1e999", 50.0, "is above 50 requests/s"),
        ("-1e999", 0.5, "is below 0.5 requests/s"),
        ("-3", 0.5, "is below 0.5 requests/s"),
        ("3.7", 3.5, "between two steps of 0.5"),
        (math.inf, 50.0, "is above"),
        (10**400, 50.0, "is above"),
    ],
)
def test_a_number_out_of_range_is_brought_to_the_range(raw: object, value: float, said: str) -> None:
    fitted, note = RATE.fit(raw)
    assert fitted == value
    assert note is not None and said in note


@pytest.mark.parametrize(
    ("knob", "raw", "value"),
    [
        (RATE, "8", 8.0),
        (RATE, "+8.0", 8.0),
        (RATE, " 8 ", 8.0),
        (RATE, "5e-1", 0.5),
        (SLOTS, "32", 32),
        (SLOTS, "4.0", 4),
        (GPU, "H100", "H100"),
        (WAIT, "inf", math.inf),
        (WAIT, "50", 50.0),
        (WAIT, "50.0", 50.0),
        (TILES, "1", True),
        (TILES, "off", False),
    ],
)
def test_a_value_that_fits_is_taken_silently(knob: Knob, raw: str, value: object) -> None:
    assert knob.fit(raw) == (value, None)
    assert type(knob.fit(raw)[0]) is type(knob.default)


def test_steps_count_from_the_low_end() -> None:
    assert STEPPED.fit("14") == (14, None)  # 2 + 6·2
    assert STEPPED.fit("17")[0] in (16, 18)


def test_a_number_that_is_not_offered_becomes_the_nearest_option() -> None:
    value, note = WAIT.fit("150")
    assert value == 200.0 and note is not None and "nearest" in note
    assert WAIT.fit("1e999")[0] == math.inf


def test_a_note_quotes_a_short_printable_piece_only() -> None:
    for raw in ("x" * 10_000, "\x07\u202e<b>" * 50, "y\n" * 40):
        _, note = RATE.fit(raw)
        assert note is not None and len(note) < 120 and note.isprintable()


@given(st.one_of(st.text(max_size=80), st.floats(), st.integers(), st.none(), st.booleans(), st.binary(max_size=8)))
def test_whatever_comes_in_an_allowed_value_comes_out(raw: object) -> None:
    for knob in ALL:
        value, note = knob.fit(raw)
        assert knob.fit(value) == (value, None)
        assert note is None or note.isprintable()
        if knob.options is not None:
            assert value in knob.options
        elif knob.kind != "bool":
            assert knob.low is not None and knob.high is not None and knob.low <= float(value) <= knob.high


@given(st.integers(0, 99))
def test_every_value_on_the_grid_survives_the_link(step: int) -> None:
    value = 0.5 + 0.5 * step
    assert RATE.fit(encoded(value)) == (value, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "Rate", "label": "", "default": 1, "low": 0, "high": 2},
        {"key": "v", "label": "", "default": 1, "low": 0, "high": 2},
        {"key": "embed", "label": "", "default": True},
        {"key": "a", "label": "", "default": 3, "low": 0, "high": 2},
        {"key": "a", "label": "", "default": 1},
        {"key": "a", "label": "", "default": 1, "low": 0, "high": 2, "step": 0},
        {"key": "a", "label": "", "default": "x", "options": ("y",)},
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(wrong: dict) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match="knob"):
        Knob(**wrong)


def test_a_value_is_shown_with_its_unit() -> None:
    assert RATE.show(8.0) == "8 requests/s"
    assert SLOTS.show(1200) == "1,200"
    assert TILES.show(True) == "on"


def test_far_beyond_the_options_the_last_one_is_the_nearest() -> None:
    knob = Knob("x", "X", 64, options=(64, 12_288, 16_384))
    assert [knob.fit(raw)[0] for raw in ("99999999999999999999", "-99999999999999999999", "1e308")] == [16_384, 64, 16_384]
