"""The preemption lesson's page: what differs from every lesson's layout."""

from __future__ import annotations

from typing import Any

from explainers.kit import lesson as kit
from explainers.kit.knobs import ranges
from explainers.kit.link import State
from explainers.kit.served import Served, selected
from explainers.kit.standard import Section, Standard
from explainers.preemption import figures, scenario, story

RANGES = {"memory": "Memory", "rate": "Arrival rate"}
LESSON = kit.Lesson("preemption", story.TITLE, story.QUESTION, story.LEAD, story.WORDS, scenario.KNOBS, scenario.PRESETS,
                    (ranges(RANGES),))


def _idle(state: State) -> dict[str, str]:
    idle = {}
    if state.values["arrivals"] == scenario.AT_ONCE:
        idle["rate"] = "Plays no part while all requests come at once."
    if state.values["order"] != scenario.GUESSED:
        idle["noise"] = "Plays no part: only “shortest first, guessed” guesses."
    if state.values["order"] != scenario.PRIORITY and state.values["victim"] != scenario.LEAST_URGENT:
        idle["urgent"] = "Plays no part: neither rule looks at who is urgent."
    return idle


def _who_waits(state: State, result: Any) -> None:
    picture = figures.who_waits(result, dark=kit.dark(), selected=selected(state, result))
    kit.chart(LESSON, "who", picture, PAGE.marked)


PAGE = Standard(
    LESSON, Served(LESSON, scenario), figures, story, ("Server", "Requests"), RANGES, _idle,
    (Section("waits", "Who waits", _who_waits, "Who waits, short replies or long ones,", marks=True),),
)
page = PAGE.page
