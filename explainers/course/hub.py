"""The default page: the lessons as a path in levels, each with its question, its picture and whether it is done."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import streamlit as st

from explainers import LEVELS, PATH, Entry
from explainers.kit import lesson as kit
from explainers.kit import progress
from explainers.kit.grammar import Pic
from explainers.kit.lesson import SANDBOX
from explainers.kit.thumbnail import thumbnail

ROW = 3  # cards in a row


@st.cache_resource(show_spinner=False, max_entries=32)
def _picture(key: str, dark: bool) -> Pic:
    """The lesson's stage as it stands untouched, small."""
    scenario, figures = (import_module(f"explainers.{key}.{room}") for room in ("scenario", "figures"))
    return thumbnail(figures.stage(scenario.result({}), dark=dark, answer=False))


def page(pages: Mapping[str, Any]) -> None:
    """The hub. `pages` are the menu's, by key of the lesson; also "glossary", "readings", "proof"."""
    progress.keep([entry.key for entry in PATH], st.rerun)  # first, so that what is done is known before the pictures come
    done = progress.done()
    with st.container(key="hub-title", gap="small"):
        st.title("Which request runs next?", anchor=False)
        st.markdown(
            "Behind every chat window stands a server that decides, dozens of times a second, **which requests run next**. "
            "These lessons let you watch it decide, change its rules and see what each decision costs. "
            "Every picture is drawn from a simulation that decides as real engines do."
        )
    ahead = next((entry for entry in PATH if entry.key not in done), PATH[0])
    word = "Start here" if not done else "Go on" if len(done) < len(PATH) else "All done. Once more"
    with st.container(horizontal=True, vertical_alignment="center", key="hub-start"):
        if st.button(f"{word}: {ahead.title}", type="primary", key="hub:start"):
            st.switch_page(pages[ahead.key])
        minutes = sum(entry.minutes for entry in PATH if entry.key not in done)
        st.markdown(f"{len(done)} of {len(PATH)} done" + (f", about {minutes} minutes to go" if minutes else ""), width="content")
    for level, name in enumerate(LEVELS):
        entries = [entry for entry in PATH if entry.level == level]
        if not entries:
            continue
        st.header(f"{level + 1}. {name}", anchor=False)
        row = st.columns(ROW, gap="medium")
        for place, entry in zip(row, entries, strict=False):
            with place:
                _card(entry, pages[entry.key], entry.key in done)


def _card(entry: Entry, where: Any, is_done: bool) -> None:
    """One lesson: picture, name, question, how long it takes; and for those who know, its sandbox."""
    story = import_module(f"explainers.{entry.key}.story")
    with st.container(border=True, key=f"hub-{entry.key}", gap="small"):
        kit.still(f"hub:picture-{entry.key}", _picture(entry.key, kit.dark()))
        st.page_link(where, label=f"**{entry.title}**")
        st.markdown(story.QUESTION)
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(f"{entry.minutes} min · {'✓ done' if is_done else 'not done yet'}", width="content")
            st.page_link(where, label="Skip to its sandbox", query_params=SANDBOX)
