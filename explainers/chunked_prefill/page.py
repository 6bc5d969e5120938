"""The chunked-prefill lesson's page: what differs from every lesson's layout."""

from __future__ import annotations

from concurrent.futures import BrokenExecutor, Future
from typing import Any

import streamlit as st

from explainers.chunked_prefill import figures, scenario, story
from explainers.kit import lesson as kit
from explainers.kit import session, worker
from explainers.kit.knobs import Knob
from explainers.kit.link import State
from explainers.kit.served import Served
from explainers.kit.standard import Section, Standard
from explainers.kit.text import plain
from explainers.kit.widgets import draw

LIMIT = Knob("limit", "Limit of the P99 time between tokens", 100, options=scenario.LIMITS_MS, unit="ms")
LESSON = kit.Lesson("chunked_prefill", story.TITLE, story.QUESTION, story.LEAD, story.WORDS, scenario.KNOBS, scenario.PRESETS,
                    (LIMIT,))


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


SEARCH, ASKED = LESSON.id("search"), LESSON.id("asked")


def _capacity(state: State, result: Any) -> None:
    """How much load each policy bears: asked for, computed in a process of its own, kept for all visitors."""
    kit.sentence(LESSON, story.CAPACITY, "capacity-words")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        with st.container(width=420):
            draw(LIMIT, session.name(LESSON.key, LIMIT.key), _limited)
        st.button("Find the capacity", key=LESSON.id("find"), on_click=lambda: st.session_state.update({SEARCH: True}))
    if st.session_state.get(SEARCH):
        _found(state)


def _limited() -> None:
    kit.rerun("chunked_prefill:capacity", "chunked_prefill:details")  # the second keeps the address


def _asked(state: State) -> dict[str, tuple[tuple[Any, ...], Future[Any]]]:
    """What is asked of the worker by policy, and its answer to be. What a moved knob made idle does not stand in its way."""
    limit = int(state.view[LIMIT.key])
    queries = {key: (LESSON.key, scenario.bears(state.values, key), key, limit) for key in scenario.KEYS}
    for query in set(st.session_state.get(ASKED, ())) - set(queries.values()):
        worker.give_up(query)
    st.session_state[ASKED] = tuple(queries.values())
    return {key: (query, worker.ask(query, scenario.load, *query[1:], reports=True)) for key, query in queries.items()}


def _found(state: State) -> None:
    asked = [future for _, future in _asked(state).values()]
    if not all(future.done() and not worker.given_up(future) for future in asked):
        _progress(state)
        return
    try:
        found = dict(zip(scenario.KEYS, (future.result() for future in asked), strict=True))
    except ValueError as error:
        st.warning(plain(str(error)))
        return
    except BrokenExecutor:
        st.warning("The process that searched has ended twice, perhaps for want of memory. Try another set-up, or load the page "
                   "anew.")
        return
    limit = int(state.view[LIMIT.key])
    curve = scenario.curve(state.values, {key: load for key, (load, _) in found.items()}, limit)
    kit.sentence(LESSON, story.capacity_words(curve, sum(speed for _, speed in found.values()) / len(found)), "found")
    kit.chart(LESSON, "capacity", figures.curve(curve, dark=kit.dark()))


@st.fragment(run_every=0.5)
def _progress(state: State) -> None:
    """How far the searches are; when all are there, the section is drawn with them."""
    asked = _asked(state)
    done = [future.done() for _, future in asked.values()]
    told = [worker.progress(query) for query, _ in asked.values()]
    share, words = story.search_progress(done, told)
    st.progress(share, words)
    st.button("Cancel", key=LESSON.id("cancel"), on_click=_cancel)
    if all(done):
        st.rerun()


def _cancel() -> None:
    for query in st.session_state.pop(ASKED, ()):
        worker.give_up(query)
    st.session_state[SEARCH] = False
    st.rerun()


PAGE = Standard(
    LESSON, Served(LESSON, scenario), figures, story, ("Requests", "Server"), {"budget": "Token budget"}, _idle,
    (Section("why", "Why: the roofline of a step", _why), Section("capacity", "How much load each bears", _capacity)),
    first_claims=story.FIRST_CLAIMS,
)
page = PAGE.page
