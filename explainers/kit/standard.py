"""The page of a lesson, laid out as every other: what differs stands in its rooms and in a few sections of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from explainers.kit import lesson as kit
from explainers.kit.link import State
from explainers.kit.served import Served, selected
from explainers.kit.text import plain


@dataclass(frozen=True)
class Section:
    """A part of the page of its own, full width, below the stage; `draw(state, result)` draws it when the stage is there.

    veiled  what of it waits for the prediction, as the beginning of a sentence; empty: nothing
    marks   it marks the selected request, and is redrawn when another is selected
    """

    key: str
    heading: str
    draw: Callable[[State, Any], None]
    veiled: str = ""
    marks: bool = False


@dataclass(frozen=True)
class Standard:
    """A lesson and its rooms.

    groups    of knobs, in order
    over      the knobs that the sweep can go over → their names; where they are more than one, the lesson has that view
    idle      the knobs that play no part now, and why
    sections  between the stage and the sweep
    band      whether the seeds' spread stands beside the sweep, for the values as they are
    file      label and help of the visitor's own file, where the lesson takes one
    hides     keys of knobs that are not shown now
    """

    lesson: kit.Lesson
    served: Served
    figures: ModuleType
    story: ModuleType
    groups: Sequence[str]
    over: Mapping[str, str]
    idle: Callable[[State], Mapping[str, str]]
    sections: Sequence[Section] = ()
    band: Callable[[State], bool] = lambda state: True
    first_claims: Sequence[str] = ()
    file: tuple[str, str] | None = None
    hides: Callable[[State], frozenset[str]] = field(default=lambda state: frozenset())

    # --- the page --------------------------------------------------------------------------------------------------------

    def page(self) -> None:
        """Lay out the lesson; a full rerun. What a knob changes stands in the parts, which are redrawn without the rest."""
        lesson = self.lesson
        state = kit.open_page(lesson)
        if isinstance(why := self.served.result(state), str):
            self._without_result(state, why)
            return
        kit.keep_parts(lesson, True)
        asked = st.container()
        left, right = st.columns([0.71, 0.29], gap="medium")
        middle = st.container()
        more, strip, lower = (kit.aside(lesson, what) for what in ("sections", "range", "after"))
        with strip:
            st.header("Over the whole range", anchor=False)
            if len(self.over) > 1:
                kit.over(lesson, self.over, self._part("stage"))
        with left:
            self._draw("stage", lambda: self._stage(strip))
        with asked:
            self._draw("prediction", self._prediction)
        with right, kit.panel(self.lesson):
            self._draw("setup", lambda: self._setup(self.file is not None))
        with left, kit.aside(lesson, "details"):
            self._draw("details", self._details)
        with middle:
            self._draw("numbers", self._numbers)
        with more:
            for section in self.sections:
                self._draw(section.key, partial(self._section, section))
        with lower:
            self._draw("questions", self._questions)
            st.header("Against the record", anchor=False)
            kit.against_the_record(lesson, self.story.CLAIMS, self.first_claims or self.story.CLAIMS)
            self._draw("outside", self._outside)
            kit.reset(lesson, self.served.upload.forget if self.served.upload else lambda: None)

    def _part(self, name: str) -> str:
        return f"{self.lesson.key}:{name}"

    def _draw(self, name: str, body: Callable[[], None]) -> None:
        """A part that can be redrawn alone."""
        st.fragment(body, key=self._part(name))()

    @property
    def _rest(self) -> tuple[str, ...]:
        names = ("prediction", "details", "numbers", *(s.key for s in self.sections), "questions", "outside")
        return tuple(map(self._part, names))

    # --- the parts, each redrawn when a knob moves: the stage, then the rest ----------------------------------------------

    def _stage(self, strip: DeltaGenerator) -> None:
        """The main knobs, the sentence of difference and the stage, and in `strip` what they are over their range."""
        state, result = self.served.now()
        answer = kit.answered(state)
        picture = self.figures.stage(result, dark=kit.dark(), selected=selected(state, result), cursor_ms=state.cursor,
                                     answer=answer)
        kit.main_knobs(self.lesson, state, lambda: kit.owe_rest(self.lesson), self.idle(state))
        kit.sentence(self.lesson, self.story.headline(result, answer))
        kit.chart(self.lesson, "stage", picture, self.marked, told="life")
        with strip:
            if kit.first_view(self.lesson):
                st.empty()  # a part must write into a container of the page in its first run, or never
            else:
                self._range(state, result)
        kit.rest_follows(self.lesson, lambda: kit.redraw_rest(self.lesson, self._rest))

    def _range(self, state: State, result: Any) -> None:
        """The sweep strip and the band over seeds."""
        if kit.veiled(self.lesson, state, "The sweep over the whole range, and the spread over seeds,"):
            return
        over = str(state.view.get("over", next(iter(self.over))))
        kit.let_draw()
        try:
            curve = self.served.sweep(state, over)
        except ValueError as error:  # a recorded trace has its own load
            st.info(plain(str(error)))
            return
        pictures = {"sweep": self.figures.sweep(curve, dark=kit.dark())}
        if self.band(state):
            pictures["band"] = self.figures.band(self.served.band(state), result, dark=kit.dark())
        kit.sentence(self.lesson, self.story.sweep_words(curve), "over")
        for name, picture in pictures.items():  # made before any is sent, so that they come in one go
            kit.chart(self.lesson, name, picture)

    def _prediction(self) -> None:
        state, result = self.served.now()
        kit.prediction(self.lesson, state, self.story.PREDICTION, lambda guess: self.story.feedback(result, guess),
                       lambda: kit.redraw(self.lesson, self._rest), self.story.hint(result))

    def _setup(self, upload: bool) -> None:
        """The presets, what to watch for, and the knobs but the main ones."""
        state = kit.state(self.lesson)
        preset = kit.presets(self.lesson, state)
        kit.sentence(self.lesson, f"**Watch for:** {preset.watch}" if preset else self.story.watch(state.values), "watch")
        shown = replace(state, hidden=state.hidden | self.hides(state))
        kit.controls(self.lesson, shown, self.groups, self.moved, idle=self.idle(state))
        if upload:
            self._own_file(state)

    def _details(self) -> None:
        """One request's life, and the instant under the time cursor."""
        if kit.first_view(self.lesson):
            return
        state, result = self.served.now()
        request = selected(state, result)
        told = "Choose a request, or click one in a figure: here stands its life, and every figure marks it." \
            if request is None else "\n\n".join(self.story.life(result, policy, request) for policy in self.policies(result))
        kit.request(self.lesson, request, len(result.scenario.trace), told, self.marked)
        kit.instant(self.lesson, self.story.cursor_data(result), self.marked)

    def _numbers(self) -> None:
        """The measures side by side, and why they are what they are."""
        if kit.first_view(self.lesson):
            return
        state, result = self.served.now()
        st.header("In numbers", anchor=False)
        measures, why = st.columns([0.5, 0.5], gap="medium")
        with measures:
            kit.numbers(self.lesson, self.story.numbers(result, answer=kit.answered(state)), self.story.numbers_note(result))
        with why:
            if not kit.veiled(self.lesson, state, "Why they are what they are"):
                kit.sentence(self.lesson, "\n".join(f"- {cause}" for cause in self.story.causes(result)), "causes")

    def _section(self, section: Section) -> None:
        if kit.first_view(self.lesson):
            return
        state, result = self.served.now()
        st.header(section.heading, anchor=False)
        if not section.veiled or not kit.veiled(self.lesson, state, section.veiled):
            section.draw(state, result)

    def _questions(self) -> None:
        if not kit.first_view(self.lesson):
            state, result = self.served.now()
            kit.quiz(self.lesson, state, lambda: self.story.quiz(result))

    def _outside(self) -> None:
        """What the model holds and leaves out, and what can be taken along."""
        if kit.first_view(self.lesson):
            return
        state, result = self.served.now()
        name = f"stepwise-{self.lesson.key}"
        taken = kit.TakeAway(self.story.python_lines(state.values), {
            "Requests (CSV)": (f"{name}.csv", "text/csv", lambda: self.story.requests_csv(result)),
            "Trace for Perfetto (JSON)": (f"{name}.json", "application/json", lambda: self.story.chrome_trace(result)),
        })
        own = self.served.upload.file() if self.served.upload and self.served.own(state) else ""
        kit.closing(self.lesson, self.story.models(result), self.story.leaves_out(), taken, own)

    # --- callbacks -------------------------------------------------------------------------------------------------------

    def moved(self) -> None:
        """A knob moved."""
        kit.moved(self.lesson, self.served.there())

    def marked(self) -> None:
        """Another request is selected, or the instant."""
        kit.rerun(*map(self._part, ("stage", "details", *(s.key for s in self.sections if s.marks))))

    # --- what the parts share --------------------------------------------------------------------------------------------

    @staticmethod
    def policies(result: Any) -> Sequence[str]:
        """Keys of what is compared, in the order of the stage."""
        return list(result.scenario.policies)

    def _own_file(self, state: State) -> None:
        if self.served.upload and self.file and "upload" not in state.hidden:
            st.subheader(self.file[0], anchor=False)
            self.served.upload.draw(self.file[1])

    def _without_result(self, state: State, why: str) -> None:
        """The page while there is nothing to simulate: why, and the controls that mend it."""
        kit.keep_parts(self.lesson, False)
        left, right = st.columns([0.71, 0.29], gap="medium")
        with left:
            st.warning(plain(why))
            kit.main_knobs(self.lesson, state, self.moved, self.idle(state))
            self._own_file(state)
            kit.keep_address(self.lesson)
            kit.reset(self.lesson, self.served.upload.forget if self.served.upload else lambda: None)
        with right, kit.panel(self.lesson):
            self._draw("setup", lambda: self._setup(False))
