"""The preemption lesson's page: order and layout only."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from explainers.kit import lesson as kit
from explainers.kit.link import State
from explainers.kit.served import Served, selected
from explainers.kit.text import plain
from explainers.preemption import figures, scenario, story
from explainers.preemption.scenario import Result

LESSON = kit.Lesson("preemption", story.TITLE, story.QUESTION, story.LEAD, story.WORDS, scenario.KNOBS, scenario.PRESETS)
GROUPS = ("Server", "Requests")
OVER, RANGES = LESSON.id("over"), {"memory": "Memory", "rate": "Arrival rate"}
SERVED = Served(LESSON, scenario)


def page() -> None:
    """Lay out the lesson; a full rerun. What a knob changes stands in the parts below, which are redrawn without the rest."""
    state = kit.open_page(LESSON)
    if isinstance(why := SERVED.result(state), str):
        _without_result(state, why)
        return
    kit.keep_parts(LESSON, True)
    asked = st.container()
    left, right = st.columns([0.71, 0.29], gap="medium")
    waits, strip, lower = st.container(), st.container(), st.container()
    with strip:
        st.header("Over the whole range", anchor=False)
        st.segmented_control("Over", list(RANGES), format_func=RANGES.__getitem__, default="memory", required=True, key=OVER,
                             label_visibility="collapsed", on_change=lambda: st.rerun("preemption:stage"))
    with left:
        stage(strip)
    with asked:
        prediction()
    with right:
        st.header("Set-up", anchor=False)
        setup()
    with left:
        details()
    with waits:
        who_waits()
    with lower:
        questions()
        st.header("Against the record", anchor=False)
        kit.against_the_record(LESSON, story.CLAIMS, story.CLAIMS)
        outside()
        kit.reset(LESSON, lambda: None)


# --- the parts, each redrawn when a knob moves: the stage, then REST ----------------------------------------------------


@st.fragment(key="preemption:stage")
def stage(strip: DeltaGenerator) -> None:
    """The main knobs, the sentence of difference and both timelines, and in `strip` what they are over their range."""
    state, result = SERVED.now()
    answer = kit.answered(state)
    picture = figures.stage(result, dark=kit.dark(), selected=selected(state, result), cursor_ms=state.cursor, answer=answer)
    kit.main_knobs(LESSON, state, lambda: kit.owe_rest(LESSON))
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
    if kit.veiled(LESSON, state, "The sweep over memory and load, and the spread over seeds,"):
        return
    curve = SERVED.sweep(state, st.session_state[OVER])
    pictures = {"sweep": figures.sweep(curve, dark=kit.dark()), "band": figures.band(SERVED.band(state), result, dark=kit.dark())}
    kit.let_draw()
    kit.sentence(LESSON, story.sweep_words(curve), "over")
    for name, picture in pictures.items():  # made before any is sent, so that they come in one go
        kit.chart(LESSON, name, picture)


@st.fragment(key="preemption:prediction")
def prediction() -> None:
    """The prediction, or the answer to it."""
    state, result = SERVED.now()
    kit.prediction(LESSON, state, story.PREDICTION, lambda guess: story.feedback(result, guess), _redraw)


@st.fragment(key="preemption:setup")
def setup() -> None:
    """The presets, what to watch for, and the knobs but the main ones."""
    state = kit.state(LESSON)
    preset = kit.presets(LESSON, state)
    kit.sentence(LESSON, f"**Watch for:** {preset.watch}" if preset else story.watch(state.values), "watch")
    kit.controls(LESSON, state, GROUPS, _moved, idle=_idle(state))


def _idle(state: State) -> dict[str, str]:
    """The knobs that play no part now, and why."""
    idle = {}
    if state.values["arrivals"] == scenario.AT_ONCE:
        idle["rate"] = "Plays no part while all requests come at once."
    if state.values["order"] != scenario.GUESSED:
        idle["noise"] = "Plays no part: only “shortest first, guessed” guesses."
    if state.values["order"] != scenario.PRIORITY and state.values["victim"] != scenario.LEAST_URGENT:
        idle["urgent"] = "Plays no part: neither rule looks at who is urgent."
    return idle


@st.fragment(key="preemption:details")
def details() -> None:
    """One request's life, and the instant under the time cursor."""
    if kit.first_view(LESSON):
        return
    state, result = SERVED.now()
    marked = selected(state, result)
    kit.request(LESSON, marked, len(result.scenario.trace), _lives(result, marked), _marked)
    kit.instant(LESSON, story.cursor_data(result), _marked)


@st.fragment(key="preemption:waits")
def who_waits() -> None:
    """The measures under both rules, and who pays."""
    if kit.first_view(LESSON):
        return
    state, result = SERVED.now()
    st.header("Who waits", anchor=False)
    measures, waits = st.columns([0.36, 0.64], gap="medium")
    with measures:
        kit.numbers(LESSON, story.numbers(result, answer=kit.answered(state)), story.numbers_note(result))
    with waits:
        if not kit.veiled(LESSON, state, "Who waits, short replies or long ones,"):
            kit.chart(LESSON, "who", figures.who_waits(result, dark=kit.dark(), selected=selected(state, result)), _marked)
            kit.sentence(LESSON, "\n".join(f"- {cause}" for cause in story.causes(result)), "causes")


@st.fragment(key="preemption:questions")
def questions() -> None:
    """Check yourself."""
    if not kit.first_view(LESSON):
        state, result = SERVED.now()
        kit.quiz(LESSON, state, lambda: story.quiz(result))


@st.fragment(key="preemption:outside")
def outside() -> None:
    """What the model holds and leaves out, and what can be taken along."""
    if kit.first_view(LESSON):
        return
    state, result = SERVED.now()
    taken = kit.TakeAway(story.python_lines(state.values), {
        "Requests (CSV)": ("stepwise-preemption.csv", "text/csv", lambda: story.requests_csv(result)),
        "Trace for Perfetto (JSON)": ("stepwise-preemption.json", "application/json", lambda: story.chrome_trace(result)),
    })
    kit.closing(LESSON, story.models(result), story.leaves_out(), taken)


REST = tuple(f"preemption:{part}" for part in ("prediction", "details", "waits", "questions", "outside"))
MARKED = tuple(f"preemption:{part}" for part in ("stage", "details", "waits"))


# --- callbacks --------------------------------------------------------------------------------------------------------


def _moved() -> None:
    """A knob moved."""
    kit.moved(LESSON, SERVED.there())


def _rest() -> None:
    """The browser has drawn the stage."""
    kit.redraw_rest(LESSON, REST)


def _redraw() -> None:
    """The prediction is answered, or asked again."""
    kit.redraw(LESSON, REST)


def _marked() -> None:
    """Another request is selected."""
    st.rerun(MARKED)


# --- what the parts share ---------------------------------------------------------------------------------------------


def _lives(result: Result, request: int | None) -> str:
    if request is None:
        return "Choose a request, or click one in a figure: here stands its life under both rules, and every figure marks it."
    return "\n\n".join(story.life(result, policy, request) for policy in result.runs)


def _without_result(state: State, why: str) -> None:
    """The page while there is nothing to simulate: why, and the controls that mend it."""
    kit.keep_parts(LESSON, False)
    left, right = st.columns([0.71, 0.29], gap="medium")
    with left:
        st.warning(plain(why))
        kit.main_knobs(LESSON, state, _moved)
        kit.keep_address(LESSON)
        kit.reset(LESSON, lambda: None)
    with right:
        st.header("Set-up", anchor=False)
        setup()
