"""The chunked-prefill lesson's page: what differs from every lesson's layout."""

from __future__ import annotations

from typing import Any

import streamlit as st

from explainers.chunked_prefill import figures, scenario, story
from explainers.kit import lesson as kit
from explainers.kit.link import State
from explainers.kit.served import Served
from explainers.kit.standard import Section, Standard

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


PAGE = Standard(
    LESSON, Served(LESSON, scenario), figures, story, ("Requests", "Server"), {"budget": "Token budget"}, _idle,
    (Section("why", "Why: the roofline of a step", _why),), first_claims=story.FIRST_CLAIMS,
)
page = PAGE.page
