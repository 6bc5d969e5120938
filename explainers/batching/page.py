"""The batching lesson's page: order and layout only."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from explainers.batching import figures, scenario, story
from explainers.batching.scenario import Result
from explainers.kit import lesson as kit
from explainers.kit.knobs import ranges
from explainers.kit.link import State
from explainers.kit.served import Served, selected
from explainers.kit.text import plain
from explainers.kit.upload import Upload
from sim.readers import azure

RANGES = {"slots": "Slots", "rate": "Arrival rate"}
LESSON = kit.Lesson("batching", story.TITLE, story.QUESTION, story.LEAD, story.WORDS, scenario.KNOBS, scenario.PRESETS,
                    (ranges(RANGES),))
UPLOAD = Upload(LESSON.key, ["csv", "txt"], azure.read, lambda trace: f"{len(trace):,} requests over {trace.arrival[-1]:,.0f} s",
                when_read={"source": scenario.OWN}, when_gone={"source": scenario.GENERATED}, after=lambda: st.rerun())
GROUPS = ("Requests", "Arrivals", "Server", "Own file")
GENERATORS = ("spread", "requests", "giant", "seed", "arrivals", "rate")  # knobs that a recorded trace takes the place of
WINDOW = frozenset({"start", "take"})  # and those that it needs
FIRST_CLAIMS = ("orca*", "step-time-a100-*-median")


SERVED = Served(LESSON, scenario, UPLOAD)


def page() -> None:
    """Lay out the lesson; a full rerun. What a knob changes stands in the parts below, which are redrawn without the rest."""
    state = kit.open_page(LESSON)
    if isinstance(why := SERVED.result(state), str):
        _without_result(state, why)
        return
    kit.keep_parts(LESSON, True)
    asked = st.container()
    left, right = st.columns([0.71, 0.29], gap="medium")
    gains, strip, lower = st.container(), kit.aside(LESSON, "range"), kit.aside(LESSON, "after")
    with strip:
        st.header("Over the whole range", anchor=False)
        kit.over(LESSON, RANGES, "batching:stage")
    with left:
        stage(strip)
    with asked:
        prediction()
    with right, kit.panel(LESSON):
        setup()
    with left, kit.aside(LESSON, "details"):
        details()
    with gains:
        requests()
    with lower:
        questions()
        st.header("Against the record", anchor=False)
        kit.against_the_record(LESSON, story.CLAIMS, FIRST_CLAIMS)
        outside()
        kit.reset(LESSON, UPLOAD.forget)


# --- the parts, each redrawn when a knob moves: the stage, then REST ----------------------------------------------------


@st.fragment(key="batching:stage")
def stage(strip: DeltaGenerator) -> None:
    """The main knob, the sentence of difference and both timelines, and in the container `strip` what they are over its range."""
    state, result = SERVED.now()
    answer = kit.answered(state)
    headline = story.headline(result, answer)
    picture = figures.stage(result, dark=kit.dark(), selected=selected(state, result), cursor_ms=state.cursor, answer=answer)
    kit.main_knobs(LESSON, state, lambda: kit.owe_rest(LESSON))
    kit.sentence(LESSON, headline)
    kit.chart(LESSON, "stage", picture, _marked, told="life")
    with strip:
        if kit.first_view(LESSON):
            st.empty()  # a part must write into a container of the page in its first run, or never
        else:
            _range(state, result)
    kit.rest_follows(LESSON, _rest)


def _range(state: State, result: Result) -> None:
    """The sweep strip and the band over seeds."""
    if kit.veiled(LESSON, state, "The sweep over slots and load, and the spread over seeds,"):
        return
    kit.let_draw()
    curve = SERVED.sweep(state, str(state.view["over"]))
    pictures = {"sweep": figures.sweep(curve, dark=kit.dark())}
    if state.values["source"] == scenario.GENERATED:  # a recorded trace has no seed
        pictures["band"] = figures.band(SERVED.band(state), result, dark=kit.dark())
    kit.sentence(LESSON, story.sweep_words(curve), "over")
    for name, picture in pictures.items():  # made before any is sent, so that they come in one go
        kit.chart(LESSON, name, picture)


@st.fragment(key="batching:prediction")
def prediction() -> None:
    """The prediction, or the answer to it."""
    state, result = SERVED.now()
    kit.prediction(LESSON, state, story.PREDICTION, lambda guess: story.feedback(result, guess), _redraw,
                   "Estimate it from the picture.")


@st.fragment(key="batching:setup")
def setup(upload: bool = True) -> None:
    """The presets, what to watch for, and the knobs but the main one."""
    state = kit.state(LESSON)
    preset = kit.presets(LESSON, state)
    kit.sentence(LESSON, f"**Watch for:** {preset.watch}" if preset else story.watch(state.values), "watch")
    idle = _idle(state)
    kit.controls(LESSON, state, GROUPS[:-1], _moved, idle=idle)
    if upload:
        _own_file(state)
    generated = state.values["source"] == scenario.GENERATED
    shown = replace(state, hidden=state.hidden | WINDOW) if generated else state
    kit.controls(LESSON, shown, GROUPS[-1:], _moved, headings=not upload or "upload" in state.hidden, idle=idle)
    if state.values["source"] == scenario.SAMPLE:
        st.caption("The sample: the first ten minutes of [Azure's conversation trace of 2023]"
                   "(https://github.com/Azure/AzurePublicDataset), Microsoft, CC-BY 4.0.")


def _idle(state: State) -> dict[str, str]:
    """The knobs that play no part now, and why."""
    if state.values["source"] != scenario.GENERATED:
        return dict.fromkeys(GENERATORS, "Plays no part: the requests come from a recorded trace.")
    if state.values["arrivals"] == scenario.AT_ONCE:
        return {"rate": "Plays no part while all requests come at once: choose another pattern above."}
    return {}


@st.fragment(key="batching:details")
def details() -> None:
    """One request's life, the instant under the time cursor, and the ledger."""
    if kit.first_view(LESSON):
        return
    state, result = SERVED.now()
    marked = selected(state, result)
    kit.request(LESSON, marked, len(result.scenario.trace), _lives(result, marked), _marked)
    kit.instant(LESSON, story.cursor_data(result), _marked)
    st.header("Where the slot-time went", anchor=False)
    if not kit.veiled(LESSON, state, "The ledger of slot-time"):
        kit.chart(LESSON, "ledger", figures.ledger(result, dark=kit.dark()))
        kit.sentence(LESSON, "\n".join(f"- {cause}" for cause in story.causes(result)), "causes")


@st.fragment(key="batching:requests")
def requests() -> None:
    """The measures of both policies, and who gains and who loses."""
    if kit.first_view(LESSON):
        return
    state, result = SERVED.now()
    st.header("Who gains, who loses", anchor=False)
    measures, gains = st.columns([0.36, 0.64], gap="medium")
    with measures:
        kit.numbers(LESSON, story.numbers(result, answer=kit.answered(state)), story.numbers_note(result))
    with gains:
        kit.chart(LESSON, "gainers", figures.gainers(result, dark=kit.dark(), selected=selected(state, result)), _marked)


@st.fragment(key="batching:questions")
def questions() -> None:
    """Check yourself."""
    if not kit.first_view(LESSON):
        state, result = SERVED.now()
        kit.quiz(LESSON, state, lambda: story.quiz(result))


@st.fragment(key="batching:outside")
def outside() -> None:
    """What the model holds and leaves out, and what can be taken along."""
    if kit.first_view(LESSON):
        return
    state, result = SERVED.now()
    taken = kit.TakeAway(story.python_lines(state.values), {
        "Requests (CSV)": ("stepwise-batching.csv", "text/csv", lambda: story.requests_csv(result)),
        "Trace for Perfetto (JSON)": ("stepwise-batching.json", "application/json", lambda: story.chrome_trace(result)),
    })
    kit.closing(LESSON, story.models(result), story.leaves_out(), taken, UPLOAD.file() if SERVED.own(state) else "")


REST = tuple(f"batching:{part}" for part in ("prediction", "details", "requests", "questions", "outside"))
MARKED = tuple(f"batching:{part}" for part in ("stage", "details", "requests"))


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
    kit.rerun(*MARKED)


# --- what the parts share ---------------------------------------------------------------------------------------------


def _lives(result: Result, request: int | None) -> str:
    if request is None:
        return "Choose a request, or click one in a figure: here stands its life under both policies, and every figure marks it."
    return "\n\n".join(story.life(result, policy, request) for policy in result.runs)


def _own_file(state: State) -> None:
    if "upload" not in state.hidden:
        st.subheader("A trace of your own", anchor=False)
        UPLOAD.draw("Azure's format: CSV with TIMESTAMP, ContextTokens, GeneratedTokens")


def _without_result(state: State, why: str) -> None:
    """The page while there is nothing to simulate: what is missing, and the controls that mend it."""
    kit.keep_parts(LESSON, False)
    left, right = st.columns([0.71, 0.29], gap="medium")
    with left:
        st.warning(plain(why))
        kit.main_knobs(LESSON, state, _moved)
        _own_file(state)
        kit.keep_address(LESSON)
        kit.reset(LESSON, UPLOAD.forget)
    with right, kit.panel(LESSON):
        setup(upload=False)
