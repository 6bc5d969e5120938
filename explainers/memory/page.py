"""The memory lesson's page: order and layout only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from explainers.kit import lesson as kit
from explainers.kit.knobs import ranges
from explainers.kit.link import State
from explainers.kit.served import Served, selected
from explainers.kit.text import plain
from explainers.kit.upload import Upload
from explainers.memory import figures, scenario, story
from explainers.memory.scenario import GENERATED, KNOBS, OWN, Result
from sim.readers import recording

RANGES = {"block": "Block size", "rate": "Arrival rate"}
LESSON = kit.Lesson("memory", story.TITLE, story.QUESTION, story.LEAD, story.WORDS, KNOBS, scenario.PRESETS,
                    (ranges(RANGES),))
UPLOAD = Upload(LESSON.key, ["json", "gz"], recording.read, story.read, when_read={"source": OWN},
                when_gone={"source": GENERATED}, after=lambda: st.rerun())
SERVED = Served(LESSON, scenario, UPLOAD)
GROUPS = ("Memory", "Requests", "Sharing", "Server", "Own file")

KIND, KINDS = LESSON.id("kind"), {"beams": "Beams", "samples": "Samples"}
WHICH, MOMENT = LESSON.id("which"), LESSON.id("moment")


def page() -> None:
    """Lay out the lesson; a full rerun. What a knob changes stands in the parts below, which are redrawn without the rest."""
    state = kit.open_page(LESSON)
    if isinstance(why := SERVED.result(state), str):
        _without_result(state, why)
        return
    kit.keep_parts(LESSON, True)
    asked = st.container()
    left, right = st.columns([0.71, 0.29], gap="medium")
    middle, strip, lower = st.container(), kit.aside(LESSON, "range"), kit.aside(LESSON, "after")
    with strip:
        st.header("Over the whole range", anchor=False)
        kit.over(LESSON, RANGES, "memory:stage")
    with left:
        stage(strip)
    with asked:
        prediction()
    with right, kit.panel(LESSON):
        setup()
    with left, kit.aside(LESSON, "details"):
        details()
        table()
        causes()
        preemption()
    with middle:
        measures()
        beside()
    with lower:
        sharing()
        questions()
        st.header("Against the record", anchor=False)
        kit.against_the_record(LESSON, story.CLAIMS, story.FIRST_CLAIMS)
        outside()
        kit.reset(LESSON, UPLOAD.forget)


# --- the parts, each redrawn when a knob moves: the stage, then REST ----------------------------------------------------


@st.fragment(key="memory:stage")
def stage(strip: DeltaGenerator) -> None:
    """The main knobs, the sentence of difference and both memories, and in the container `strip` what they are over a range."""
    state, result = SERVED.now()
    answer = kit.answered(state)
    picture = figures.stage(result, dark=kit.dark(), selected=selected(state, result), cursor_ms=state.cursor, answer=answer)
    if given := story.given(result):
        kit.sentence(LESSON, given, "given")
    else:
        kit.main_knobs(LESSON, state, _main_moved, story.idle(state.values))
    kit.sentence(LESSON, story.headline(result, answer))
    kit.chart(LESSON, "stage", picture, _marked, told="life")
    with strip:
        if kit.first_view(LESSON):
            st.empty()  # a part must write into a container of the page in its first run, or never
        else:
            _range(state, result)
    kit.rest_follows(LESSON, _rest)


def _range(state: State, result: Result) -> None:
    """The sweep strip and the band over seeds."""
    if kit.veiled(LESSON, state, "The sweep over block size and load, and the spread over seeds,"):
        return
    if state.values["source"] != GENERATED:
        st.caption("A recording has its own blocks and arrivals: there is no range to sweep and no seed.")
        return
    kit.let_draw()
    curve = SERVED.sweep(state, str(state.view["over"]))
    pictures = {"sweep": figures.sweep(curve, dark=kit.dark()), "band": figures.band(SERVED.band(state), result, dark=kit.dark())}
    kit.sentence(LESSON, story.sweep_words(curve), "over")
    for name, picture in pictures.items():  # made before any is sent, so that they come in one go
        kit.chart(LESSON, name, picture)


@st.fragment(key="memory:prediction")
def prediction() -> None:
    """The prediction, or the answer to it."""
    state, result = SERVED.now()
    kit.prediction(LESSON, state, story.prediction(result), lambda guess: story.feedback(result, guess), _redraw,
                   story.hint(result))


@st.fragment(key="memory:setup")
def setup(upload: bool = True) -> None:
    """The presets, what to watch for, and the knobs but the main ones."""
    state = kit.state(LESSON)
    preset = kit.presets(LESSON, state)
    kit.sentence(LESSON, f"**Watch for:** {preset.watch}" if preset else story.watch(state.values), "watch")
    idle = story.idle(state.values)
    shown = state if state.values["source"] == GENERATED else replace(state, hidden=state.hidden | idle.keys())
    kit.controls(LESSON, shown, GROUPS[:-1], _moved, idle=idle)
    if upload:
        _own_file(state)
    kit.controls(LESSON, shown, GROUPS[-1:], _moved, headings=not upload or "upload" in state.hidden, idle=idle)


@st.fragment(key="memory:details")
def details() -> None:
    """One request's life, and where every request is at the time cursor."""
    if kit.first_view(LESSON):
        return
    state, result = SERVED.now()
    marked = selected(state, result)
    kit.request(LESSON, marked, len(result.scenario.trace), _lives(result, marked), _marked)
    told = story.cursor_data(result, kit.answered(state))
    kit.instant(LESSON, told, _marked, always=True, first=story.first_instant_ms(result))


@st.fragment(key="memory:table")
def table() -> None:
    """The block table of the selected request, at the time cursor."""
    if kit.first_view(LESSON):
        return
    state, result = SERVED.now()
    st.header("Its block table at the time cursor", anchor=False)
    kit.chart(LESSON, "table", figures.table(result, dark=kit.dark(), selected=selected(state, result), cursor_ms=state.cursor))


@st.fragment(key="memory:causes")
def causes() -> None:
    """Where the memory goes."""
    if kit.first_view(LESSON):
        return
    _, result = SERVED.now()
    st.header("Where the memory goes", anchor=False)
    kit.sentence(LESSON, "\n".join(f"- {cause}" for cause in story.causes(result)), "causes")


@st.fragment(key="memory:preemption")
def preemption() -> None:
    """When the paged memory runs out: one preemption, step by step."""
    if kit.first_view(LESSON):
        return
    _, result = SERVED.now()
    st.header("When the memory runs out", anchor=False)
    kit.sentence(LESSON, story.preemptions(result), "preemptions")
    found = len(scenario.preemptions(result))
    if not found:
        return
    at = st.session_state.get(WHICH)  # where an option is gone, Streamlit leaves its label there
    if not isinstance(at, int) or at >= found:
        st.session_state[WHICH] = 0
    with st.container(horizontal=True, vertical_alignment="bottom"):
        label = lambda k: story.preemption_label(result, k)  # noqa: E731
        which = st.selectbox("Preemption", range(found), key=WHICH, format_func=label, width=300)
        scenes = story.preempted(result, which)
        names = [scene.name for scene in scenes]
        moment = names.index(st.segmented_control("Moment", names, default=names[0], required=True, key=MOMENT))
        st.button("Show this moment on the stage", LESSON.id("show"), on_click=_show, args=(story.ms_of(result, scenes[moment]),))
    kit.sentence(LESSON, f"**{names[moment]}.** {scenes[moment].words}", "scene")
    kit.chart(LESSON, "preemption", figures.preemption(result, which, dark=kit.dark()))


@st.fragment(key="memory:measures")
def measures() -> None:
    """The measures of both allocators, side by side."""
    if kit.first_view(LESSON):
        return
    state, result = SERVED.now()
    st.header("Side by side", anchor=False)
    kit.numbers(LESSON, story.numbers(result, answer=kit.answered(state)), story.numbers_note(result))


@st.fragment(key="memory:beside")
def beside() -> None:
    """Of a recording: its free blocks beside ours."""
    if kit.first_view(LESSON):
        return
    _, result = SERVED.now()
    if result.recorded_free is not None:
        st.header("Beside what vLLM decided", anchor=False)
        kit.sentence(LESSON, story.recorded(result), "recorded_words")
        kit.chart(LESSON, "recorded", figures.recorded(result, dark=kit.dark()))


@st.fragment(key="memory:sharing")
def sharing() -> None:
    """What samples or beams of one prompt share."""
    if kit.first_view(LESSON):
        return
    state, result = SERVED.now()
    st.header("What samples and beams share", anchor=False)
    st.markdown(story.SHARING)
    kind = st.segmented_control("Sequences", list(KINDS), format_func=KINDS.__getitem__, default="beams", required=True, key=KIND,
                                label_visibility="collapsed")
    kit.chart(LESSON, "sharing", figures.sharing(result, int(state.values["beams"]), str(kind), dark=kit.dark()))


@st.fragment(key="memory:questions")
def questions() -> None:
    """Check yourself."""
    if not kit.first_view(LESSON):
        state, result = SERVED.now()
        kit.quiz(LESSON, state, lambda: story.quiz(result))


@st.fragment(key="memory:outside")
def outside() -> None:
    """What the model holds and leaves out, and what can be taken along."""
    if kit.first_view(LESSON):
        return
    state, result = SERVED.now()
    taken = kit.TakeAway(story.python_lines(state.values), {
        "Requests (CSV)": ("stepwise-memory.csv", "text/csv", lambda: story.requests_csv(result)),
        "Trace for Perfetto (JSON)": ("stepwise-memory.json", "application/json", lambda: story.chrome_trace(result)),
    })
    kit.closing(LESSON, story.models(result), story.leaves_out(), taken, UPLOAD.file() if SERVED.own(state) else "")


REST = tuple(f"memory:{part}" for part in ("prediction", "details", "table", "causes", "preemption", "measures", "beside",
                                           "sharing", "questions", "outside"))
MARKED = ("memory:stage", "memory:details", "memory:table")


# --- callbacks --------------------------------------------------------------------------------------------------------


def _moved() -> None:
    """A knob moved."""
    kit.moved(LESSON, SERVED.there())


def _main_moved() -> None:
    """The same for a knob that stands in the stage's part: that part is redrawn anyway."""
    kit.owe_rest(LESSON)
    if not SERVED.there():
        st.rerun()


def _rest() -> None:
    """The browser has drawn the stage."""
    kit.redraw_rest(LESSON, REST)


def _redraw() -> None:
    """The prediction is answered, or asked again."""
    kit.redraw(LESSON, REST)


def _marked() -> None:
    """Another request is selected, or the time cursor was let go: the memories are drawn as they were then."""
    kit.rerun(*MARKED)


def _show(at_ms: float) -> None:
    """Put the time cursor there, and bring the stage into view."""
    kit.place_cursor(LESSON, at_ms, "stage")
    kit.rerun(*MARKED)


# --- what the parts share ---------------------------------------------------------------------------------------------


def _lives(result: Result, request: int | None) -> str:
    if request is None:
        return "Choose a request, or click one in a figure: here stands its life with both memories, and every figure marks it."
    return "\n\n".join(story.life(result, key, request) for key in result.runs)


def _own_file(state: State) -> None:
    if "upload" not in state.hidden:
        st.subheader("A recording of your own", anchor=False)
        UPLOAD.draw(f"What vLLM's scheduler decided: JSON, or JSON in gzip, of the form of assets/{scenario.RECORDING_FILE.name}")


def _without_result(state: State, why: Any) -> None:
    """The page while there is nothing to simulate: what is missing, and the controls that mend it."""
    kit.keep_parts(LESSON, False)
    left, right = st.columns([0.71, 0.29], gap="medium")
    with left:
        st.warning(plain(why))
        kit.main_knobs(LESSON, state, _moved, story.idle(state.values))
        _own_file(state)
        kit.keep_address(LESSON)
        kit.reset(LESSON, UPLOAD.forget)
    with right, kit.panel(LESSON):
        setup(upload=False)
