"""The scaffold of a lesson: the parts that every page shares, from the question to the reset. Words come from the lesson."""

from __future__ import annotations

import secrets
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

import pandas as pd
import streamlit as st
from plotly.basedatatypes import BaseFigure
from streamlit.delta_generator import DeltaGenerator
from streamlit.errors import StreamlitAPIException

from explainers import PATH
from explainers.kit import components, glossary, link, progress, session, share, worker
from explainers.kit.grammar import Pic
from explainers.kit.knobs import Knob, Preset, Value, defaults
from explainers.kit.quiz import Prediction, Question
from explainers.kit.recall import RECALL
from explainers.kit.text import plain
from explainers.kit.widgets import draw
from sim.record import Claim

# Streamlit's own buttons stay (camera, full screen); nothing is zoomed or selected by dragging: the time window is a knob.
_CONFIG: Final = {"displaylogo": False, "scrollZoom": False, "doubleClick": False,
                  "modeBarButtonsToRemove": ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d"]}


SANDBOX: Final = {"v": "1", link.ANEW: "1", "guess": link.SKIP, "hide": "prediction,quiz"}
"""Query of a lesson's sandbox: nothing is asked; the stage and every control stay."""


@dataclass(frozen=True)
class Lesson:
    """What the scaffold needs to know of a lesson: its address, its heading, the question it answers, its controls.

    lead   what stands after the question, two or three short lines that let a newcomer read the figure
    words  the terms used on the page and what they mean
    views  what can be chosen beside the run and stands in the link too: "over", what the sweep goes over, and others
    """

    key: str
    title: str
    question: str
    lead: str
    words: Sequence[tuple[str, str]]
    knobs: tuple[Knob, ...]
    presets: tuple[Preset, ...]
    views: tuple[Knob, ...] = ()

    def id(self, what: str) -> str:
        """Key of one of this lesson's widgets that is no knob."""
        return session.own(self.key, what)

    def box(self, what: str) -> str:
        """Key of a container, which is also a CSS class."""
        return f"{self.key}-{what}"


@dataclass(frozen=True)
class TakeAway:
    """What a learner takes along. The files are made when they are asked for."""

    python: str
    files: Mapping[str, tuple[str, str, Callable[[], str]]] = field(default_factory=dict)  # label → name, type, content


def dark() -> bool:
    """Whether the page is shown in the dark theme."""
    return bool(st.context.theme.type == "dark")


def state(lesson: Lesson) -> link.State:
    """The lesson's state as it is now: in a part that is redrawn alone, and in callbacks."""
    return session.restore(lesson.key, lesson.knobs, lesson.views)


def open_page(lesson: Lesson) -> link.State:
    """Title, question, and what did not fit in the link; the state that everything else is drawn from."""
    opened = lesson.id("opened")
    st.session_state[lesson.id("first")] = st.session_state[lesson.id("owes")] = opened not in st.session_state
    st.session_state[opened] = True
    state = session.restore(lesson.key, lesson.knobs, lesson.views)
    with st.container(key=lesson.box("title"), gap=None):
        with st.container(horizontal=True, vertical_alignment="center", key=lesson.box("heading")):
            st.title(lesson.title, anchor=False, width="content")
            with st.popover("Words used here", key=lesson.id("words"), width="content", type="tertiary"):
                st.markdown("\n".join(f"- **{word}**: {meaning}" for word, meaning in _words(lesson)))
        _lead(lesson)
    if state.notes:
        with st.container(key=lesson.box("notes")):
            lines = "\n".join(f"- {plain(note)}" for note in state.notes)
            st.warning(f"The link held values that do not fit, so they were adjusted:\n{lines}")
            st.button("Close this note", lesson.id("close"), on_click=session.change, args=(lesson.key,), kwargs={"notes": ()})
    return state


def _lead(lesson: Lesson) -> None:
    """The question and the lead; a word of the field opens where it is first used."""
    asked, lead = glossary.pieces([lesson.question, f" {lesson.lead}"], tuple(lesson.words))
    words = list(dict.fromkeys(word for _, word in (*asked, *lead) if word))
    runs = [(piece, bold, words.index(word) if word else None)
            for bold, text in ((True, asked), (False, lead)) for piece, word in text]
    components.prose(runs, [{"name": word.name, "is": word.short, "isnt": word.not_,
                             "href": f"/glossary?term={word.key}" if word.key else ""} for word in words], lesson.id("lead"))


def _words(lesson: Lesson) -> list[tuple[str, str]]:
    """The lesson's own words, and those of the glossary that its question, lead and controls use besides."""
    named = {name for names, _ in lesson.words for name in names.lower().split(", ")}
    own = {glossary.spelled()[name].key for name in named if name in glossary.spelled()}
    texts = [lesson.question, lesson.lead, *(text for knob in lesson.knobs for text in (knob.label, knob.help))]
    more = [word for word in glossary.first_uses(texts) if word.key not in own]
    return [*lesson.words, *((word.name, f"{word.short} *{word.not_}*") for word in more)]


def answered(state: link.State) -> bool:
    """Whether the learner has committed a prediction or passed it over, or the link hides it."""
    return state.guess is not None or "prediction" in state.hidden


def prediction(lesson: Lesson, state: link.State, asked: Prediction, feedback: Callable[[float | None], str],
               redraw: Callable[[], None], hint: str) -> None:
    """One row: the question and a number to commit; after that the answer, told to the number that was committed.

    A prediction is of the run it was made for: when a knob has moved, another can be made, and nothing is held back meanwhile.

    hint    what to estimate it from
    redraw  ends a callback by redrawing whatever the answer shows in
    """
    empty = lesson.id("empty")

    def commit() -> None:
        if asked.choices:
            chosen = [st.session_state[lesson.id(f"guess{i}")] for i in range(len(asked.choices))]
            guess = None if None in chosen else asked.number(chosen)
        else:
            guess = st.session_state[lesson.id("guess")]
        st.session_state[empty] = guess is None
        if guess is not None:
            settle(float(guess))

    def settle(guess: float | Literal["skip"] | None) -> None:
        session.change(lesson.key, guess=guess)
        session.asked_now(lesson.key)
        st.session_state[empty] = False
        redraw()

    if "prediction" in state.hidden:
        return
    with st.container(key=lesson.box("prediction")):
        if answered(state):
            if session.asked_before(lesson.key):
                told = "The set-up has changed since you were asked. What would you predict for this one?"
            else:
                made = None if state.guess in (None, link.SKIP) else float(state.guess)
                told = feedback(made if made is not None and asked.low <= made <= asked.high else None)
            with st.container(horizontal=True, vertical_alignment="center"):
                st.markdown(told, width="stretch")
                st.button("Predict again", key=lesson.id("again"), on_click=settle, args=(None,), type="tertiary")
            return
        with st.form(lesson.id("predict"), border=False), st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
            if not asked.choices:
                st.number_input(f"Predict first: {asked.question} ({asked.unit})", asked.low, asked.high, value=None,
                                step=asked.step, key=lesson.id("guess"), placeholder=f"{asked.low} to {asked.high}", width=480)
            for i, (label, options) in enumerate(asked.choices):
                st.selectbox(f"Predict first: {label[0].lower()}{label[1:]}", range(len(options)), index=None,
                             format_func=options.__getitem__, key=lesson.id(f"guess{i}"), width=300)
            st.form_submit_button("Commit", type="primary", key=lesson.id("commit"), on_click=commit)
            st.form_submit_button("Skip", key=lesson.id("skip"), on_click=settle, args=(link.SKIP,))
            first = "**Choose both orders first, or skip.**" if asked.choices else \
                f"**Type a number from {asked.low} to {asked.high} first, or skip.**"
            said = first if st.session_state.get(empty) else hint
            st.markdown(said, width="content")


def veiled(lesson: Lesson, state: link.State, what: str) -> bool:
    """Whether this part still waits for the prediction; then it says so in the part's place."""
    if answered(state):
        return False
    st.info(f"{what} shows when you have committed a prediction at the top, or skipped it.")
    return True


# --- pictures ---------------------------------------------------------------------------------------------------------


def sentence(lesson: Lesson, words: str, what: str = "headline") -> None:
    """A sentence in a box of fixed least height (style.css), so that nothing below it moves when it changes."""
    with st.container(key=lesson.box(what)):
        st.markdown(words)


def numbers(lesson: Lesson, rows: pd.DataFrame, note: str = "") -> None:
    """A small table of text cells, the first column naming the rows, and what must be known of it."""
    with st.container(key=lesson.box("numbers"), gap=None):
        st.table(rows, hide_index=True)
        st.caption(note)


class _Ready(BaseFigure):  # type: ignore[misc]  # plotly ships no types
    """A figure dict that is sent as it is: validating the stage takes 39 ms, drawing all of the page's pictures 6."""

    def __init__(self, figure: dict[str, Any]) -> None:
        self._ready = figure

    def to_dict(self) -> dict[str, Any]:
        return self._ready


def _bring_into_view(lesson: Lesson, to: str) -> None:
    """When the page is next drawn: "top", or a container of the lesson."""
    turn, _ = st.session_state.get(lesson.id("view"), (0, ""))
    st.session_state[lesson.id("view")] = (turn + 1, to if to == "top" else lesson.box(to))


def chart(lesson: Lesson, what: str, pic: Pic, marked: Callable[[], None] | None = None, told: str = "") -> None:
    """A figure with its alt text, and under it the same numbers as a table.

    marked  a click selects the request that it hits, and then calls this to redraw what marks it; None: no clicks
    told    the container that tells of the selected request: it comes into view
    """
    with st.container(key=lesson.box(what), gap=None):
        more: dict[str, Any] = {"on_select": _picker(lesson, what, marked, told), "selection_mode": "points"} if marked else {}
        figure = _Ready(pic.figure)
        st.plotly_chart(figure, key=lesson.id(what), theme=None, height=pic.height, config=_CONFIG, alt=pic.alt, **more)
        table(lesson, what, pic.table)


def still(key: str, pic: Pic) -> None:
    """A picture to look at only: it answers neither the pointer nor the keyboard, and has no table."""
    st.plotly_chart(_Ready(pic.figure), key=key, theme=None, height=pic.height, config={"staticPlot": True}, alt=pic.alt)


# A press of a knob redraws the stage, a moment later what follows from it (the sweep), and nothing else; the browser asks
# for the rest when it has drawn that. Were all of it sent at once, the browser would draw it in one go, and the stage would
# wait for every picture below it; so would the next press. The first view comes in the same order: what stands below the
# first screen is left out of it (`first_view`), and asked for when the stage is there.


def first_view(lesson: Lesson) -> bool:
    """Whether the browser has only the first screen of this session yet, and has not asked for the rest."""
    return bool(st.session_state[lesson.id("first")])


def first_view_ends(lesson: Lesson) -> None:
    """When the browser has asked: what is redrawn from now on is drawn whole."""
    st.session_state[lesson.id("first")] = False


def owe_rest(lesson: Lesson) -> None:
    """Callback of a knob that stands in the stage's part: that part alone is redrawn now."""
    st.session_state[lesson.id("owes")] = True


def rerun(*parts: str) -> None:
    """End of a callback: these parts alone are redrawn; all of the page where it has not drawn them, as after the back button."""
    try:
        st.rerun(parts)
    except StreamlitAPIException:
        st.rerun()


def stage_alone(lesson: Lesson, part: str) -> None:
    """The same for a knob that stands elsewhere. It takes a second run of the script, which costs the browser time."""
    owe_rest(lesson)
    rerun(part)


def moved(lesson: Lesson, there: bool) -> None:
    """Callback of a knob that stands beside the stage: that is redrawn, and then the rest.

    there  whether there is a result to draw; where there is, or was, none, all of the page is drawn anew
    """
    if there and parts_there(lesson):
        stage_alone(lesson, f"{lesson.key}:stage")
    st.rerun()


def redraw(lesson: Lesson, parts: Sequence[str]) -> None:
    """Callback: everything that shows the answer to the prediction; the set-up is as it was."""
    rerun(f"{lesson.key}:stage", *parts)


def redraw_rest(lesson: Lesson, parts: Sequence[str]) -> None:
    """Callback when the browser has drawn the stage: the rest; after the first view, also what follows the stage."""
    if first_view(lesson):
        first_view_ends(lesson)
        redraw(lesson, parts)
    rerun(*parts, f"{lesson.key}:setup")


def let_draw() -> None:
    """Between the stage and what follows it, before that is computed: the browser draws the stage meanwhile, on both cores.

    It is no loss: drawing takes longer than that, and what comes later is not drawn before. Measured on two cores, the stage is
    there 5 % sooner, and the sweep when it was.
    """
    time.sleep(0.15)


def rest_follows(lesson: Lesson, rest: Callable[[], None]) -> None:
    """At the end of the stage's part; `rest` is the callback that redraws the others."""
    turn: int | None = None
    if st.session_state.pop(lesson.id("owes"), False):
        turn = st.session_state[lesson.id("turn")] = st.session_state.get(lesson.id("turn"), 0) + 1
    components.ask_next(turn, lesson.id("next"), rest)


@st.fragment
def table(lesson: Lesson, what: str, rows: Callable[[], pd.DataFrame]) -> None:
    """The figure's numbers as a table, built and sent only when it is opened."""
    twin = st.expander("The same as a table", key=lesson.id(f"{what}_table"), on_change="rerun", type="compact")
    if twin.open:
        twin.dataframe(rows(), hide_index=True, height=240)


def _picker(lesson: Lesson, what: str, marked: Callable[[], None], told: str) -> Callable[[], None]:
    """Callback of a chart: the clicked bar's request becomes the selected one; a second click lets it go."""

    def picked() -> None:
        points = st.session_state[lesson.id(what)]["selection"]["points"]
        clicked = next((int(p["customdata"][0]) for p in points if p.get("customdata") is not None), -1)
        if clicked >= 0:
            again = session.current(lesson.key).selected == clicked
            session.change(lesson.key, selected=None if again else clicked)
            if told and not again:
                _bring_into_view(lesson, told)
            marked()

    return picked


def request(lesson: Lesson, selected: int | None, count: int, life: str, marked: Callable[[], None]) -> None:
    """One request's life, in a box that keeps its size, and the keyboard's way to select one of `count` requests.

    marked  redraws what marks the request that was selected
    """
    with st.container(key=lesson.box("life"), gap="small"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.header("One request", anchor=False, width="content")
            _request_picker(lesson, selected, count, marked)
        st.markdown(life)


def _request_picker(lesson: Lesson, selected: int | None, count: int, marked: Callable[[], None]) -> None:
    widget = lesson.id("request")
    st.session_state[widget] = selected

    def picked() -> None:
        session.change(lesson.key, selected=st.session_state[widget])
        marked()

    st.selectbox("Request", range(count), index=None, key=widget, on_change=picked, format_func=lambda r: f"Request {r + 1}",
                 placeholder="None: click one in a figure, or choose", label_visibility="collapsed")


@st.fragment
def instant(lesson: Lesson, policies: Mapping[str, Mapping[str, Any]], redraw: Callable[[], None], *, always: bool = False,
            first: float | None = None) -> None:
    """The time cursor and who is where at that instant, and the address kept in step. Moving it does not go to the server.

    redraw  redraws the timelines with the cursor in its new place, where that could not be done in the browser
    always  redraw whenever it is let go: a figure shows the instant itself, not just the cursor
    first   where it stands until it is placed, ms
    """
    widget = lesson.id("scrubber")

    def moved() -> None:
        at = st.session_state[widget]["cursor"]
        session.change(lesson.key, cursor=float(at["t"]))
        if always or not at["drawn"]:
            redraw()

    placed = session.current(lesson.key).cursor
    components.scrubber(policies, first if placed is None else placed, widget, moved)
    keep_address(lesson)


def place_cursor(lesson: Lesson, at_ms: float, to: str) -> None:
    """Callback: the time cursor stands there from now on, and the container `to` of the lesson comes into view."""
    session.change(lesson.key, cursor=at_ms)
    _bring_into_view(lesson, to)


def keep_parts(lesson: Lesson, there: bool) -> None:
    """Remember whether this rerun laid out the parts of the page."""
    st.session_state[lesson.id("parts")] = there


def parts_there(lesson: Lesson) -> bool:
    """Whether the parts of the page are there to be redrawn one by one."""
    return bool(st.session_state.get(lesson.id("parts"), False))


def keep_address(lesson: Lesson) -> None:
    """The address alone, where there is no time cursor."""
    turn, to = st.session_state.get(lesson.id("view"), (0, "top"))
    components.keep_address(link.text(lesson.knobs, session.current(lesson.key)), turn, to, lesson.id("address"))


# --- controls ---------------------------------------------------------------------------------------------------------


def main_knobs(lesson: Lesson, state: link.State, moved: Callable[[], None], idle: Mapping[str, str] | None = None) -> None:
    """The lesson's main knob, or knobs in a row; `moved` is called when one has moved. `idle` as of `controls`."""
    knobs = [knob for knob in lesson.knobs if knob.main and knob.key not in state.hidden]
    row = st.columns(len(knobs), gap="medium") if len(knobs) > 1 else [st.container()] * len(knobs)
    for place, knob in zip(row, knobs, strict=True):
        with place:
            draw(knob, session.name(lesson.key, knob.key), moved, (idle or {}).get(knob.key, ""))


def over(lesson: Lesson, names: Mapping[str, str], part: str) -> None:
    """What the sweep goes over, of `names` (knob → its name), the options of the view "over"; `part` draws it."""
    key = session.name(lesson.key, "over")
    st.segmented_control("Over", list(names), key=key, default=st.session_state[key], format_func=names.__getitem__,
                         required=True, label_visibility="collapsed", persist_state="session",
                         on_change=lambda: stage_alone(lesson, part))


def aside(lesson: Lesson, what: str) -> DeltaGenerator:
    """A container of the page that its printed handout leaves out (style.css)."""
    return st.container(key=lesson.box(f"{what}-aside"))


def panel(lesson: Lesson) -> DeltaGenerator:
    """The set-up's place beside the stage; on a wide screen it is no longer than that, and scrolls within (style.css)."""
    place = st.container(key=lesson.box("setup"))
    place.header("Set-up", anchor=False)
    return place


def presets(lesson: Lesson, state: link.State) -> Preset | None:
    """The presets in a row, and below them what to watch for; returns the one that the knobs stand at."""
    at = next((p for p in lesson.presets if defaults(lesson.knobs) | dict(p.values) == state.values), None)
    if "presets" in state.hidden:
        return at
    widget = lesson.id("preset")
    names = {p.key: p.name for p in lesson.presets}
    st.session_state[widget] = at.key if at else None

    def chosen() -> None:
        preset = next((p for p in lesson.presets if p.key == st.session_state[widget]), None)
        if preset:
            session.put(lesson.key, defaults(lesson.knobs) | dict(preset.values))
            session.change(lesson.key, cursor=None)  # it stood in another run
        st.rerun()  # the knobs too

    st.pills("Presets", list(names), format_func=lambda key: names[key], key=widget, on_change=chosen, wrap=True)
    return at


def controls(lesson: Lesson, state: link.State, groups: Sequence[str], moved: Callable[[], None], headings: bool = True,
             idle: Mapping[str, str] | None = None) -> None:
    """The knobs of these groups, each group under its name; a seed also gets a button that draws another one.

    idle  knobs that play no part now → why; they cannot be moved
    """
    idle = idle or {}
    for group in groups:
        knobs = [k for k in lesson.knobs if k.group == group and not k.main and k.key not in state.hidden]
        if not knobs:
            continue
        if headings:
            st.subheader(group, anchor=False)
        for knob in knobs:
            why = idle.get(knob.key, "")
            draw(knob, session.name(lesson.key, knob.key), moved, why)
            if knob.key == "seed":
                st.button("Re-roll the seed", key=lesson.id("reroll"), on_click=_reroll, args=(lesson, knob),
                          disabled=bool(why), width="stretch")


def _reroll(lesson: Lesson, knob: Knob) -> None:
    assert knob.low is not None and knob.high is not None
    old = session.current(lesson.key).values[knob.key]
    choices = [*range(int(knob.low), int(knob.high) + 1)]
    choices.remove(int(old))
    session.put(lesson.key, {knob.key: secrets.choice(choices)})
    st.rerun()  # the knob too: until it is drawn with its new number the browser holds on to the old one


def reset(lesson: Lesson, also: Callable[[], None]) -> None:
    """A button that returns the lesson to its default; `also` drops what the lesson itself keeps."""
    st.button("Reset the lesson", key=lesson.id("reset"), on_click=_reset, args=(lesson, also))


def _reset(lesson: Lesson, also: Callable[[], None]) -> None:
    hidden = session.current(lesson.key).hidden  # what a teacher hid stays hidden
    values: Mapping[str, Value] = defaults(lesson.knobs)
    for key in [k for k in st.session_state if str(k).startswith(lesson.id("quiz"))]:
        del st.session_state[key]
    st.session_state[session.own(lesson.key, "state")] = link.State(values, hidden=hidden)
    session.asked_now(lesson.key)
    st.session_state[lesson.id("empty")] = False
    session.put(lesson.key, defaults((*lesson.knobs, *lesson.views)))
    _bring_into_view(lesson, "top")
    also()


# --- below the figures ------------------------------------------------------------------------------------------------


def quiz(lesson: Lesson, state: link.State, questions: Callable[[], Sequence[Question]]) -> None:
    """The questions under their heading, when the prediction has been answered; nothing where a link hides them."""
    if "quiz" in state.hidden:
        return
    st.header("Check yourself", anchor=False)
    if not veiled(lesson, state, "The quiz, whose questions come from this run,"):
        check_yourself(lesson, questions())
    if lesson.key in RECALL:
        _recall(lesson, RECALL[lesson.key])


@st.fragment
def check_yourself(lesson: Lesson, questions: Sequence[Question]) -> None:
    """The questions, each with feedback on the option that was chosen."""
    for i, question in enumerate(questions):
        texts = [option.text for option in question.options]
        asked = zlib.crc32("\n".join([question.prompt, *texts]).encode())  # another run asks anew
        _ask(lesson, f"quiz{i}", question, f"quiz{i}_{asked}", f"**{i + 1}.** {question.prompt}")


@st.fragment
def _recall(lesson: Lesson, question: Question) -> None:
    """A question from an earlier lesson: what is recalled after a while stays."""
    _ask(lesson, "recall", question, "quiz_recall", f"**{question.prompt}**")


def _ask(lesson: Lesson, box: str, question: Question, widget: str, prompt: str) -> None:
    """A question in a container of its own, and what there is to say of the option that was chosen."""
    with st.container(key=lesson.box(box)):
        texts = [option.text for option in question.options]
        chosen = st.radio(prompt, range(len(texts)), index=None, key=lesson.id(widget), format_func=texts.__getitem__)
        if chosen is not None:
            option = question.options[chosen]
            (st.success if option.correct else st.error)(f"{'Right.' if option.correct else 'No.'} {option.why}")


@st.fragment
def against_the_record(lesson: Lesson, names: Sequence[str], first: Sequence[str]) -> None:
    """The published or measured figures beside ours; computed when opened, once for all sessions.

    first  the claims that matter most, by name or pattern; all of them, with their sources, stand in a fold below
    """
    part = st.expander("Compute ours and compare", key=lesson.id("record"), on_change="rerun")
    if not part.open:
        return
    with part:
        asked = worker.claims(names)
        if not all(future.done() for future in asked):
            _progress(asked)
            return
        claims = [future.result() for future in asked]
        st.markdown(_verdict(claims))
        _claim_table([c for c in claims if any(fnmatchcase(c.name, pattern) for pattern in first)])
        with st.expander(f"All {len(claims)} figures, with sources and set-ups", key=lesson.id("record_all"), type="compact"):
            _claim_table(claims)
            for c in claims:
                st.caption(f"**{plain(c.name)}**: " + plain("; ".join(filter(None, (c.source, c.set_up, c.note))), 1000))


@st.fragment(run_every=0.5)
def _progress(asked: Sequence[Future[Claim]]) -> None:
    """How many of the claims are there; when all are, the page is drawn with them."""
    done = sum(future.done() for future in asked)
    st.progress(done / len(asked), f"Computing ours: {done} of {len(asked)} figures. The lesson goes on meanwhile.")
    if done == len(asked):
        st.rerun()


def _verdict(claims: Sequence[Claim]) -> str:
    """One sentence: how many of the figures that we hold ourselves to lie inside what is allowed, and which do not."""
    held = [c for c in claims if c.inside is not None]
    outside = [plain(c.what) for c in held if not c.inside]
    told = f"**{len(held) - len(outside)} of {len(held)}** figures lie inside what we allow ourselves"
    told += f"; outside: {', '.join(outside)}." if outside else "."
    shown = len(claims) - len(held)
    return told + (f" {shown} more {'is' if shown == 1 else 'are'} shown without being held to a limit." if shown else "")


def _claim_table(claims: Sequence[Claim]) -> None:
    word = {True: "inside", False: "OUTSIDE", None: "shown only"}
    st.table(pd.DataFrame({
        "Figure": [plain(c.what) for c in claims],
        "Theirs": ["–" if c.theirs is None else f"{c.theirs:g} {c.unit}" for c in claims],
        "Ours": [f"{c.ours:.4g} {c.unit}" for c in claims],
        "Allowed": [c.tolerance for c in claims],
        "": [word[c.inside] for c in claims],
    }), hide_index=True)


def what_it_models(lesson: Lesson, rows: Sequence[tuple[str, str, str]], leaves_out: Sequence[str]) -> None:
    """Constants with units and sources, and what the lesson leaves out."""
    with st.container(key=lesson.box("models")):
        st.table(pd.DataFrame(rows, columns=["What", "Value", "Source"]), hide_index=True)
    st.markdown("**What this leaves out**\n" + "\n".join(f"- {line}" for line in leaves_out))


def closing(lesson: Lesson, models: Sequence[tuple[str, str, str]], leaves_out: Sequence[str], made: TakeAway,
            own_file: str = "") -> None:
    """What the model holds and leaves out, and what can be taken along.

    own_file  name of the visitor's file that is served, which no link carries
    """
    st.header("What this models, and what it leaves out", anchor=False)
    what_it_models(lesson, models, leaves_out)
    st.header("Take it away", anchor=False)
    if own_file:
        st.caption(f"The link does not carry your file {plain(own_file, 60)}: whoever opens it must drop it in themselves.")
    take_away(lesson, made, "stage")
    teach(lesson)
    finish(lesson)


@st.fragment
def teach(lesson: Lesson) -> None:
    """A link for a class: where it starts, what it hides; and as a QR code. Printed, the page is a one-page handout."""
    fold = st.expander("For a class: a link that starts where you say and hides what you say, and its QR code",
                       key=lesson.id("teach"), on_change="rerun", type="compact")
    if not fold.open:
        return
    with fold:
        names = {knob.key: knob.label for knob in lesson.knobs} | dict(share.PARTS)
        starts = {"": "as the page stands now", **{preset.key: preset.name for preset in lesson.presets}}
        start = st.selectbox("It starts at", list(starts), format_func=starts.__getitem__, key=lesson.id("teach_start"),
                             width=420)
        hidden = st.multiselect("It hides", list(names), format_func=names.__getitem__, key=lesson.id("teach_hide"),
                                placeholder="nothing")
        embed = st.toggle("Without menu and frame, to be embedded in another page", key=lesson.id("teach_embed"))
        preset = next((preset for preset in lesson.presets if preset.key == start), None)
        query = share.teacher_query(lesson.knobs, state(lesson), preset, hidden, embed)
        made = share.address(st.context.url or "", lesson.key, query)
        st.code(made, language=None, wrap_lines=True)
        st.image(share.qr(made), width=240, caption="Scan it to open the lesson.", output_format="PNG")
        st.caption("To print a one-page handout, use your browser's print command: controls and questions are left out.")


@st.fragment
def finish(lesson: Lesson) -> None:
    """Done or not, which the visitor's browser remembers; and the way on."""
    keys = [entry.key for entry in PATH]
    progress.keep(keys)  # before the button, so that what it says is written
    done = lesson.key in progress.done()
    with st.container(horizontal=True, vertical_alignment="center", key=lesson.box("finish")):
        st.button("Not done yet after all" if done else "I have done this lesson", key=lesson.id("done"),
                  on_click=progress.mark, args=(lesson.key, not done), type="secondary" if done else "primary")
        pages = st.session_state.get(session.PAGES, {})
        after = PATH[keys.index(lesson.key) + 1:] if lesson.key in keys else ()
        if after and after[0].key in pages:
            st.page_link(pages[after[0].key], label=f"Next: {after[0].title}")
        if lesson.key in pages:
            st.page_link(pages[lesson.key], label="Play on in the sandbox", query_params=SANDBOX)


@st.fragment
def take_away(lesson: Lesson, made: TakeAway, stage: str) -> None:
    """The link, the files, the PNG and the Python lines."""
    widget, wanted = lesson.id("take"), lesson.id("wanted")

    def asked() -> None:
        st.session_state[wanted] = st.session_state[widget]["want"]

    file, want = None, st.session_state.pop(wanted, None)
    if want and want["label"] in made.files:
        name, kind, content = made.files[want["label"]]
        file = {"turn": want["turn"], "name": name, "kind": kind, "content": content()}
    query = link.text(lesson.knobs, session.current(lesson.key))
    components.take(query, f"stepwise-{lesson.key}", lesson.box(stage), list(made.files), file, widget, asked)
    st.markdown("The same in Python:")
    st.code(made.python, language=None)  # Python's colours are too faint to read
