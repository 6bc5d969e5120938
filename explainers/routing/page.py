"""The routing lesson's page: what differs from every lesson's layout."""

from __future__ import annotations

from typing import Any

import streamlit as st

from explainers.kit import lesson as kit
from explainers.kit.knobs import ranges
from explainers.kit.link import State
from explainers.kit.served import Served, selected
from explainers.kit.standard import Section, Standard
from explainers.kit.upload import Upload
from explainers.routing import figures, scenario, story
from sim.readers import mooncake
from sim.trace import Trace

RANGES = {"cache": "Memory per replica", "replicas": "Replicas", "rate": "Load"}
LESSON = kit.Lesson("routing", story.TITLE, story.QUESTION, story.LEAD, story.WORDS, scenario.KNOBS, scenario.PRESETS,
                    (ranges(RANGES),))


def _says(trace: Trace) -> str:
    return f"{len(trace):,} requests over {trace.arrival[-1]:,.0f} s"


UPLOAD = Upload(LESSON.key, ["jsonl", "json", "txt"], mooncake.read, _says, when_read={"source": scenario.OWN},
                when_gone={"source": scenario.GENERATED}, after=lambda: st.rerun())
GENERATORS = ("sessions", "turns", "prompts", "skew", "prefix", "question", "answer", "think", "rate", "seed")


def _idle(state: State) -> dict[str, str]:
    v = state.values
    idle: dict[str, str] = {}
    if v["source"] != scenario.GENERATED:
        idle |= dict.fromkeys(GENERATORS, "Plays no part: the requests come from a recorded trace.")
    if v["fit"] == scenario.FITS:
        idle["cache"] = "Plays no part: the memory is what fits on the GPU."
    if v["router"] != scenario.SGLANG:
        idle |= dict.fromkeys(("threshold", "apart", "ratio"), "Plays no part: it is SGLang's router's.")
    if v["router"] not in scenario.KNOWING:
        idle |= dict.fromkeys(("knowledge", "delay"), "Plays no part: this router does not ask what lies where.")
    return idle


def _hides(state: State) -> frozenset[str]:
    """The window is of a recorded trace."""
    return frozenset({"start", "take"}) if state.values["source"] == scenario.GENERATED else frozenset()


def _why(state: State, result: Any) -> None:
    """What each router knew when it decided where to send the selected request; none selected: the one that lost most."""
    gone = scenario.lost(result, "round_robin")
    request = selected(state, result)
    shown = request if request is not None else gone.request if gone is not None else 0
    for key in result.fleets:
        kit.chart(LESSON, f"choice-{key}", figures.choice(result, key, shown, dark=kit.dark()))


def _ledger(state: State, result: Any) -> None:
    """Where the prompt tokens went: found, computed though somebody had them, and new."""
    kit.chart(LESSON, "ledger", figures.ledger(result, dark=kit.dark()))


PAGE = Standard(
    LESSON, Served(LESSON, scenario, UPLOAD), figures, story, ("Routers", "Fleet", "Conversations", "Own file"),
    RANGES, _idle,
    (Section("choice", "Why it was sent there", _why, "What each router knew", marks=True),
     Section("tokens", "Where the prompt tokens went", _ledger, "The ledger of prompt tokens")),
    band=lambda state: bool(state.values["source"] == scenario.GENERATED), hides=_hides,
    file=("A trace of your own", "Mooncake's format: JSONL with timestamp, input_length, output_length, hash_ids"),
)
page = PAGE.page
