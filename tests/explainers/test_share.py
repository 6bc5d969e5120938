"""A teacher's link: it opens where it says, hides what it says, and its QR code holds it."""

from __future__ import annotations

import struct
from itertools import pairwise
from urllib.parse import parse_qsl, urlsplit

import pytest

from explainers.batching import scenario
from explainers.kit import link, share
from explainers.kit.knobs import defaults

KNOBS, PRESETS = scenario.KNOBS, scenario.PRESETS
NOW = link.State(values=defaults(KNOBS) | {"slots": 7}, selected=2, cursor=12.5, guess=40.0)


def opened(query: str) -> link.State:
    return link.decode(dict(parse_qsl(query)), KNOBS)


def test_as_the_page_stands_it_restores_the_whole_state_and_hides_what_was_chosen() -> None:
    state = opened(share.teacher_query(KNOBS, NOW, None, ["seed", "quiz"], embed=False))
    assert state == link.State(NOW.values, 2, 12.5, 40.0, hidden=frozenset({"seed", "quiz"}))


def test_from_a_preset_it_starts_there_with_the_prediction_still_to_be_made() -> None:
    giant = next(p for p in PRESETS if p.key == "giant")
    state = opened(share.teacher_query(KNOBS, NOW, giant, [], embed=True))
    assert state.values == defaults(KNOBS) | dict(giant.values)
    assert state.guess is None and state.selected is None and not state.notes


def test_what_it_cannot_hide_is_left_out() -> None:
    assert opened(share.teacher_query(KNOBS, NOW, None, ["nothing", "<b>", "presets"], False)).hidden == {"presets"}
    assert set(share.PARTS) == link.HIDEABLE


@pytest.mark.parametrize(("page", "made"), [
    ("http://localhost:8501/batching", "http://localhost:8501/batching?v=1"),
    ("https://host.example/course/batching?x=1#y", "https://host.example/course/batching?v=1"),
    ("https://host.example/course/", "https://host.example/course/batching?v=1"),
])
def test_the_address_is_that_of_the_server_that_shows_the_page(page: str, made: str) -> None:
    assert share.address(page, "batching", "v=1") == made


def test_the_qr_code_is_a_square_png_that_holds_a_whole_link() -> None:
    address = share.address("https://host.example/", "batching", share.teacher_query(KNOBS, NOW, None, list(share.PARTS), True))
    assert urlsplit(address).query.endswith("embed=true") and len(address) > 200
    png = share.qr(address)
    width, height = struct.unpack(">II", png[16:24])
    assert png.startswith(b"\x89PNG") and width == height > 4 * 29  # version 3 has 29 modules; 4 pixels each


def test_a_stored_link_of_version_1_still_opens_as_it_did() -> None:
    # Written by the course when version 1 was new; what it means may never change.
    stored = ("v=1&slots=4&spread=0.8&requests=14&giant=1&seed=2&arrivals=all+at+once&rate=3.0&timeout=0&model=Llama-3-8B"
              "&gpu=A100-80G&source=generated&start=0&take=200&request=3&t=120.5&guess=38&hide=seed")
    state = opened(stored)
    assert state.notes == () and (state.selected, state.cursor, state.guess, state.hidden) == (2, 120.5, 38.0, {"seed"})
    assert state.values["slots"] == 4 and state.values["arrivals"] == scenario.AT_ONCE and state.values["spread"] == 0.8


def test_every_lesson_but_the_first_recalls_one_before_it() -> None:
    from explainers import PATH
    from explainers.kit.recall import RECALL

    assert list(RECALL) == [entry.key for entry in PATH[1:]]
    for before, entry in pairwise(PATH):
        assert f"“{before.title}”" in RECALL[entry.key].prompt
