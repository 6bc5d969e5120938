"""The batching lesson's page: order and layout only."""

from __future__ import annotations

from typing import Any

import streamlit as st

from explainers.batching import figures, scenario, story
from explainers.batching.scenario import Band, Result, Sweep
from explainers.kit import lesson as kit
from explainers.kit.knobs import Value
from explainers.kit.link import State
from explainers.kit.text import plain
from explainers.kit.upload import Upload
from sim.readers import azure

LESSON = kit.Lesson("batching", story.TITLE, story.QUESTION, scenario.KNOBS, scenario.PRESETS)
UPLOAD = Upload(LESSON.key, azure.read, when_read={"source": scenario.OWN}, when_gone={"source": scenario.GENERATED})
GROUPS = ("Requests", "Arrivals", "Server", "Own file")

Key = tuple[tuple[str, Value], ...]


@st.cache_resource(max_entries=128, show_spinner=False)
def _result(key: Key) -> Result:
    return scenario.result(dict(key))


@st.cache_resource(max_entries=32, show_spinner=False)
def _sweep(key: Key, over: str) -> Sweep:
    return scenario.sweep(dict(key), over=over)


@st.cache_resource(max_entries=32, show_spinner=False)
def _band(key: Key) -> Band:
    return scenario.band(dict(key))


# What comes from a visitor's file is kept for that visitor's session only.
@st.cache_resource(scope="session", max_entries=8, show_spinner=False)
def _own_result(key: Key, upload: int, _trace: Any) -> Result:
    return scenario.result(dict(key), _trace)


@st.cache_resource(scope="session", max_entries=4, show_spinner=False)
def _own_sweep(key: Key, over: str, upload: int, _trace: Any) -> Sweep:
    return scenario.sweep(dict(key), _trace, over)


def page() -> None:
    """Draw the lesson; called at every rerun. What changes first on the screen is sent first."""
    state = kit.open_page(LESSON)
    key, trace = tuple(state.values.items()), UPLOAD.trace()
    own = state.values["source"] == scenario.OWN
    result: Result | str
    try:
        result = _own_result(key, UPLOAD.number(), trace) if own else _result(key)
    except ValueError as error:  # for the learner: no file yet, an empty window
        result = str(error)
    if isinstance(result, str):
        _without_result(state, result)
        return

    n = len(result.scenario.trace)
    answer, dark = kit.answered(state), kit.dark()
    selected = state.selected if state.selected is not None and state.selected < n else None
    kit.prediction(LESSON, state, story.PREDICTION, lambda guess: story.feedback(result, guess))
    left, right = st.columns([0.71, 0.29], gap="medium")
    with left:
        kit.sentence(LESSON, story.headline(result, answer))
        kit.main_knobs(LESSON, state)
        stage = figures.stage(result, dark=dark, selected=selected, cursor_ms=state.cursor, answer=answer)
        kit.chart(LESSON, "stage", stage, clicks=True)
        kit.stage_first()
        kit.instant(LESSON, story.cursor_data(result))
    with right:
        _controls(state)
    with left:
        st.header("One request", anchor=False)
        kit.request_picker(LESSON, selected, n)
        kit.sentence(LESSON, _lives(result, selected), "life")
        st.header("Where the slot-time went", anchor=False)
        if not kit.veiled(LESSON, state, "The ledger of slot-time"):
            kit.chart(LESSON, "ledger", figures.ledger(result, dark=dark))
            kit.sentence(LESSON, "\n".join(f"- {cause}" for cause in story.causes(result)), "causes")

    st.header("Who gains, who loses", anchor=False)
    measures, requests = st.columns([0.36, 0.64], gap="medium")
    with measures:
        kit.numbers(LESSON, story.numbers(result, answer=answer))
    with requests:
        kit.chart(LESSON, "gainers", figures.gainers(result, dark=dark, selected=selected), clicks=True)

    st.header("Over the whole range", anchor=False)
    if not kit.veiled(LESSON, state, "The sweep over slots and load, and the spread over seeds,"):
        _range(key, own, dark)
    _end(state, result)


def _lives(result: Result, request: int | None) -> str:
    if request is None:
        return "Choose a request, or click one in a figure: here stands its life under both policies, and every figure marks it."
    return "\n\n".join(story.life(result, policy, request) for policy in result.runs)


def _controls(state: State, upload: bool = True) -> None:
    preset = kit.presets(LESSON, state)
    kit.sentence(LESSON, f"**Watch for:** {preset.watch}" if preset else story.watch(state.values), "watch")
    kit.controls(LESSON, state, GROUPS[:-1])
    if upload:
        _own_file(state)
    kit.controls(LESSON, state, GROUPS[-1:], headings=not upload or "upload" in state.hidden)


def _own_file(state: State) -> None:
    if "upload" not in state.hidden:
        st.subheader("A trace of your own", anchor=False)
        UPLOAD.draw("Azure's format: CSV with TIMESTAMP, ContextTokens, GeneratedTokens")


def _without_result(state: State, why: str) -> None:
    """The page while there is nothing to simulate: what is missing, and the controls that mend it."""
    left, right = st.columns([0.71, 0.29], gap="medium")
    with left:
        st.warning(plain(why))
        kit.main_knobs(LESSON, state)
        _own_file(state)
        kit.keep_address(LESSON)
        kit.reset(LESSON, UPLOAD.forget)
    with right:
        _controls(state, upload=False)


@st.fragment
def _range(key: Key, own: bool, dark: bool) -> None:
    """The sweep strip and the band over seeds; follow the stage, which is on its way by now."""
    over = st.segmented_control("Over", ["slots", "rate"], format_func={"slots": "Slots", "rate": "Arrival rate"}.get,
                                default="slots", required=True, key=LESSON.id("over"), label_visibility="collapsed")
    trace, number = UPLOAD.trace(), UPLOAD.number()
    curve = _own_sweep(key, over, number, trace) if own else _sweep(key, over)
    kit.chart(LESSON, "sweep", figures.sweep(curve, dark=dark))
    if not own:
        kit.chart(LESSON, "band", figures.band(_band(key), _result(key), dark=dark))


def _end(state: State, result: Result) -> None:
    """From the questions to the reset."""
    if "quiz" not in state.hidden:
        st.header("Check yourself", anchor=False)
        if not kit.veiled(LESSON, state, "The quiz, whose questions come from this run,"):
            kit.check_yourself(LESSON, story.quiz(result))
    st.header("Against the record", anchor=False)
    kit.against_the_record(LESSON, story.CLAIMS)
    st.header("What this models, and what it leaves out", anchor=False)
    kit.what_it_models(LESSON, story.models(result), story.leaves_out())
    st.header("Take it away", anchor=False)
    if state.values["source"] == scenario.OWN:
        st.caption(f"The link does not carry your file {plain(UPLOAD.file(), 60)}: whoever opens it must drop it in themselves.")
    kit.take_away(LESSON, kit.TakeAway(story.python_lines(state.values), {
        "Requests (CSV)": ("stepwise-batching.csv", "text/csv", lambda: story.requests_csv(result)),
        "Trace for Perfetto (JSON)": ("stepwise-batching.json", "application/json", lambda: story.chrome_trace(result)),
    }), "stage")
    kit.reset(LESSON, UPLOAD.forget)
