"""A link carries the whole state of a lesson, and a bad link is mended and said."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explainers.kit import link
from explainers.kit.knobs import Knob, defaults, ranges
from explainers.kit.text import plain

KNOBS = (
    Knob("slots", "Slots", 4, 1, 32),
    Knob("rate", "Arrival rate", 8.0, 0.5, 50.0, 0.5, unit="requests/s"),
    Knob("gpu", "GPU", "A100-80G", options=("A100-80G", "H100")),
    Knob("tiles", "Tile rounding", False),
    Knob("seed", "Seed", 1, 0, 999_999),
)

states = st.builds(
    link.State,
    values=st.fixed_dictionaries(
        {
            "slots": st.integers(1, 32),
            "rate": st.integers(0, 99).map(lambda k: 0.5 + 0.5 * k),
            "gpu": st.sampled_from(("A100-80G", "H100")),
            "tiles": st.booleans(),
            "seed": st.integers(0, 999_999),
        }
    ),
    selected=st.none() | st.integers(0, 10_000),
    cursor=st.none() | st.floats(0, 1e8).map(lambda t: round(t, 3)),
    guess=st.none() | st.just("skip") | st.integers(0, 100).map(float),
    hidden=st.frozensets(st.sampled_from(("slots", "rate", "seed", "presets"))),
)


@given(states)
def test_a_link_restores_the_whole_state(state: link.State) -> None:
    assert link.decode(dict(parse_qsl(link.text(KNOBS, state))), KNOBS) == state


def test_a_link_says_every_value_also_the_defaults() -> None:
    query = link.encode(KNOBS, link.State(defaults(KNOBS)))
    assert query == {"v": "1", "slots": "4", "rate": "8", "gpu": "A100-80G", "tiles": "0", "seed": "1"}


def test_a_stored_link_of_version_1_keeps_its_meaning() -> None:
    stored = "v=1&slots=8&rate=2.5&gpu=H100&tiles=1&seed=77&request=3&t=412.5&guess=40&hide=rate%2Cseed&embed=true"
    assert link.decode(dict(parse_qsl(stored)), KNOBS) == link.State(
        values={"slots": 8, "rate": 2.5, "gpu": "H100", "tiles": True, "seed": 77},
        selected=2,
        cursor=412.5,
        guess=40.0,
        hidden=frozenset({"rate", "seed"}),
    )


def test_what_is_chosen_beside_the_run_stands_in_the_link_and_is_no_value() -> None:
    over = ranges({"slots": "Slots", "rate": "Arrival rate"})
    state = link.State(defaults(KNOBS), view={"over": "rate"})
    query = link.encode(KNOBS, state)
    assert query["over"] == "rate" and link.decode(query, KNOBS, (over,)) == state
    other = link.decode({"v": "1", "over": "<b>"}, KNOBS, (over,))
    assert other.view == {"over": "slots"} and other.values == defaults(KNOBS) and len(other.notes) == 1


def test_no_query_is_the_lessons_default_without_a_word() -> None:
    assert link.decode({}, KNOBS) == link.State(defaults(KNOBS))
    assert link.decode({"embed": "true"}, KNOBS).notes == ()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"v": "1", "slots": "999"}, "above 32"),
        ({"v": "1", "colour": "red"}, "“colour” is no setting"),
        ({"v": "2", "slots": "4"}, "version “2”"),
        ({"slots": "4"}, "does not say its version"),
        ({"v": "1", "hide": "slots,nothing"}, "“nothing” is no control"),
        ({"v": "1", "request": "0"}, "not a request's number"),
        ({"v": "1", "request": "1.5"}, "not a request's number"),
        ({"v": "1", "t": "-5"}, "t: “-5”"),
        ({"v": "1", "t": "1e999"}, "t: “1e999”"),
        ({"v": "1", "guess": "٤"}, "guess"),
    ],
)
def test_what_does_not_fit_is_said(query: dict[str, str], said: str) -> None:
    (note,) = link.decode(query, KNOBS).notes
    assert said in note


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=80), max_size=30))
def test_any_query_gives_an_allowed_state_and_few_notes(query: dict[str, str]) -> None:
    state = link.decode(query, KNOBS)
    assert all(knob.fit(state.values[knob.key]) == (state.values[knob.key], None) for knob in KNOBS)
    assert len(state.notes) <= link.MOST_NOTES
    assert all(note.isprintable() and len(note) < 200 for note in state.notes)


def test_text_from_outside_is_inert_in_markdown() -> None:
    assert plain("<b>*x*</b>") == r"\<b\>\*x\*\<\/b\>"
    assert plain(":red[x] $y$ `z`") == r"\:red\[x\] \$y\$ \`z\`"
    assert "\n" not in plain("a\n# b")
    assert "http\\://" not in plain("http://evil.example") and "www." not in plain("www.evil.example").replace("\\", "")
