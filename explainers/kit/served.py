"""What a lesson's page draws, kept between reruns: the run, the sweep and the band for the values of the knobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import streamlit as st

from explainers.kit import lesson as kit
from explainers.kit.knobs import Value
from explainers.kit.link import State
from explainers.kit.upload import Upload

Key = tuple[tuple[str, Value], ...]


class Scenario(Protocol):
    """A lesson's room scenario.py. `result` and `sweep` raise ValueError, for the learner, where there is nothing to serve."""

    OWN: str

    def result(self, values: Mapping[str, Value], uploaded: Any = None) -> Any:
        """Its runs and their numbers."""

    def sweep(self, values: Mapping[str, Value], uploaded: Any = None, over: Any = "") -> Any:
        """The outcome over the range of a knob."""

    def band(self, values: Mapping[str, Value]) -> Any:
        """The outcome over the seeds."""


# Streamlit takes into the key what does not start with an underscore: `lesson` stands for the scenario, a number for the file.
# So many are kept that a slider finds its way back, and so few that a server of large results stays below a GB.
@st.cache_resource(max_entries=32, show_spinner=False)
def _result(lesson: str, key: Key, _scenario: Scenario) -> Any:
    return _scenario.result(dict(key))


@st.cache_resource(max_entries=64, show_spinner=False)
def _sweep(lesson: str, key: Key, over: str, _scenario: Scenario) -> Any:
    return _scenario.sweep(dict(key), over=over)


@st.cache_resource(max_entries=64, show_spinner=False)
def _band(lesson: str, key: Key, _scenario: Scenario) -> Any:
    return _scenario.band(dict(key))


# What comes from a visitor's file is kept for that visitor's session only.
@st.cache_resource(scope="session", max_entries=8, show_spinner=False)
def _own_result(lesson: str, key: Key, upload: int, _scenario: Scenario, _file: Any) -> Any:
    return _scenario.result(dict(key), _file)


@st.cache_resource(scope="session", max_entries=4, show_spinner=False)
def _own_sweep(lesson: str, key: Key, over: str, upload: int, _scenario: Scenario, _file: Any) -> Any:
    return _scenario.sweep(dict(key), _file, over)


@dataclass(frozen=True)
class Served:
    """A lesson served with its scenario, and with the visitor's own file where the knob `source` says so.

    upload  None: the lesson takes no file
    """

    lesson: kit.Lesson
    scenario: Scenario
    upload: Upload[Any] | None = None

    def own(self, state: State) -> bool:
        """Whether the visitor's file is meant."""
        return self.upload is not None and state.values["source"] == self.scenario.OWN

    def result(self, state: State) -> Any:
        """The result, or, a str, why there is none, for the learner: no file yet, an empty window, weights that do not fit."""
        key = tuple(state.values.items())
        try:
            if self.upload is not None and self.own(state):
                return _own_result(self.lesson.key, key, self.upload.number(), self.scenario, self.upload.trace())
            return _result(self.lesson.key, key, self.scenario)
        except ValueError as error:
            return str(error)

    def there(self) -> bool:
        """Whether there is a result to draw. For callbacks."""
        return not isinstance(self.result(kit.state(self.lesson)), str)

    def now(self) -> tuple[State, Any]:
        """State and result, for the parts of the page, which are drawn only where there is a result."""
        state = kit.state(self.lesson)
        result = self.result(state)
        assert not isinstance(result, str), result
        return state, result

    def sweep(self, state: State, over: str) -> Any:
        """The sweep over one knob."""
        key = tuple(state.values.items())
        if self.upload is not None and self.own(state):
            return _own_sweep(self.lesson.key, key, over, self.upload.number(), self.scenario, self.upload.trace())
        return _sweep(self.lesson.key, key, over, self.scenario)

    def band(self, state: State) -> Any:
        """The band over the seeds; of generated requests only."""
        return _band(self.lesson.key, tuple(state.values.items()), self.scenario)


def selected(state: State, result: Any) -> int | None:
    """The selected request, if the result's trace has so many."""
    return state.selected if state.selected is not None and state.selected < len(result.scenario.trace) else None
