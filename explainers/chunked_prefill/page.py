"""The chunked-prefill lesson's page: what differs from every lesson's layout."""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import Any

import streamlit as st

from explainers.chunked_prefill import figures, scenario, story
from explainers.kit import lesson as kit
from explainers.kit import worker
from explainers.kit.link import State
from explainers.kit.served import Served
from explainers.kit.standard import Section, Standard
from explainers.kit.text import plain

LESSON = kit.Lesson("chunked_prefill", story.TITLE, story.QUESTION, story.LEAD, story.WORDS, scenario.KNOBS, scenario.PRESETS)


def _idle(state: State) -> dict[str, str]:
    return {"spacing": "Plays no part with one long prompt."} if state.values["long"] == 1 else {}


@st.cache_resource(max_entries=64, show_spinner=False)
def _roofline(key: tuple[tuple[str, Any], ...]) -> scenario.Roofline:
    return scenario.roofline(dict(key))


def _why(state: State, result: Any) -> None:
    """The roofline of the step, and what is rarely said of it."""
    roof = _roofline(tuple(state.values.items()))
    kit.sentence(LESSON, story.roofline_words(roof), "roof-words")
    kit.chart(LESSON, "roofline", figures.roofline(roof, dark=kit.dark()))
    kit.sentence(LESSON, "\n".join(f"- {line}" for line in story.RARELY_SAID), "rarely")


LIMIT, SEARCH = LESSON.id("limit"), LESSON.id("search")


def _searches(state: State) -> dict[str, tuple[Any, ...]]:
    """What is asked of the worker for each policy, by the knobs that play a part."""
    knobs = ("budget", "cap", "model", "gpu", "tp", "tiles", "overhead", "seed")
    values = tuple((key, state.values[key]) for key in knobs)
    return {key: (LESSON.key, values, key, int(st.session_state.get(LIMIT) or 100)) for key in scenario.KEYS}


def _capacity(state: State, result: Any) -> None:
    """How much load each policy bears: asked for, computed in a process of its own, kept for all visitors."""
    kit.sentence(LESSON, story.CAPACITY, "capacity-words")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.select_slider("Limit of the P99 time between tokens (ms)", scenario.LIMITS_MS, value=100, key=LIMIT, width=420)
        st.button("Find the capacity", key=LESSON.id("find"), on_click=lambda: st.session_state.update({SEARCH: True}))
    if st.session_state.get(SEARCH):
        _found(state)


def _found(state: State) -> None:
    asked = {key: worker.ask(query, scenario.load, *query[1:]) for key, query in _searches(state).items()}
    if not all(future.done() for future in asked.values()):
        _progress(state)
        return
    try:
        found = {key: future.result() for key, future in asked.items()}
    except (ValueError, CancelledError) as error:
        st.warning(plain(str(error)) or "The search was given up. Press again to start it anew.")
        return
    limit = int(st.session_state[LIMIT])
    curve = scenario.curve(state.values, {key: load for key, (load, _) in found.items()}, limit)
    kit.sentence(LESSON, story.capacity_words(curve, sum(speed for _, speed in found.values()) / len(found)), "found")
    kit.chart(LESSON, "capacity", figures.curve(curve, dark=kit.dark()))


@st.fragment(run_every=0.5)
def _progress(state: State) -> None:
    """How many of the searches are there; when all are, the section is drawn with them."""
    asked = {key: worker.ask(query, scenario.load, *query[1:]) for key, query in _searches(state).items()}
    done = [future for future in asked.values() if future.done() and not future.cancelled()]
    speeds = [future.result()[1] for future in done if future.exception() is None]
    said = f", {speeds[-1]:,.0f} requests simulated a second" if speeds else ""
    st.progress(len(done) / len(asked), f"Searching: {len(done)} of {len(asked)} policies{said}. The lesson goes on meanwhile.")
    st.button("Cancel", key=LESSON.id("cancel"), on_click=_cancel, args=(state,))
    if all(future.done() for future in asked.values()):
        st.rerun()


def _cancel(state: State) -> None:
    for query in _searches(state).values():
        worker.give_up(query)
    st.session_state[SEARCH] = False
    st.rerun()


PAGE = Standard(
    LESSON, Served(LESSON, scenario), figures, story, ("Requests", "Server"), {"budget": "Token budget"}, _idle,
    (Section("why", "Why: the roofline of a step", _why), Section("capacity", "How much load each bears", _capacity)),
    first_claims=story.FIRST_CLAIMS,
)
page = PAGE.page
