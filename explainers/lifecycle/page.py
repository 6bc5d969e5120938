"""The page of one request's life: what differs from every lesson's layout."""

from __future__ import annotations

from typing import Any

import streamlit as st

from explainers.kit import lesson as kit
from explainers.kit.link import State
from explainers.kit.served import Served
from explainers.kit.standard import Section, Standard
from explainers.lifecycle import figures, scenario, story

LESSON = kit.Lesson("lifecycle", story.TITLE, story.QUESTION, story.LEAD, story.WORDS, scenario.KNOBS, scenario.PRESETS)


def _company(state: State, result: Any) -> None:
    """The same request, alone and in company."""
    st.caption(story.WORKED_NOTE)
    kit.sentence(LESSON, story.company_words(result), "company-words")
    kit.chart(LESSON, "company", figures.company(result, dark=kit.dark(), cursor_ms=state.cursor))


def _leaving(state: State, result: Any) -> None:
    """Cancelled or handed off at any moment, with the knobs for it beside."""
    kit.controls(LESSON, state, ("Leaving early",), PAGE.moved, headings=False)
    st.subheader("Cancelled", anchor=False)
    kit.sentence(LESSON, story.leaving_words(result), "leaving-words")
    kit.chart(LESSON, "leaving", figures.leaving(result, dark=kit.dark(), cursor_ms=state.cursor))
    with st.container(key=LESSON.box("flag")):  # there or not, what follows keeps its place
        if flag := story.flag(result):
            st.warning(flag)
    st.subheader("Handed off to another server", anchor=False)
    kit.sentence(LESSON, story.handoff_words(result), "handoff-words")
    kit.chart(LESSON, "handoff", figures.handoff(result, dark=kit.dark()))


def _mixed_up(state: State, result: Any) -> None:
    """Three arguments, a picture each."""
    for name, heading, words, draw in (
        ("launches", "The time to enqueue a step does not add to every gap", story.launch_words, figures.launches),
        ("crowd", "More tokens per second is not a faster reply", story.crowd_words, figures.crowd),
        ("order", "A bound does not say who runs next", story.order_words, figures.order),
    ):
        st.subheader(heading, anchor=False)
        kit.sentence(LESSON, words(result), f"{name}-words")
        kit.chart(LESSON, name, draw(result, dark=kit.dark()))


PAGE = Standard(
    LESSON, Served(LESSON, scenario), figures, story, ("Worked example", "In company", "Server"), {"others": "Other requests"},
    lambda state: story.idle(state.values),
    (
        Section("alone", "The same request, alone and in company", _company, marks=True),
        Section("early", "When it leaves early", _leaving, marks=True),
        Section("mixed", "Three things that are easily mixed up", _mixed_up),
    ),
    first_claims=story.FIRST_CLAIMS,
)
page = PAGE.page
