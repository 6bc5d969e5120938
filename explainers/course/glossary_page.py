"""The glossary's page: a search over the words, each with what it is, what it is not, and where to see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from explainers.kit.glossary import Term, matching, terms
from explainers.kit.link import ANEW


def page(pages: Mapping[str, Any]) -> None:
    """All words, or those that are asked for; `?term=key` opens one."""
    st.title("Words", anchor=False)
    st.markdown("The field's words in one plain sentence each, what each is not, and a lesson set up so that you see it.")
    known = {t.key: t for t in terms()}
    asked = known.get(st.query_params.get("term", ""))
    typed = st.text_input("Find a word", asked.term if asked else "", placeholder="for example: preemption", width=420,
                          max_chars=60)
    found = matching(typed)
    if not found:
        st.info("No word here holds that. Try a shorter piece of it, or empty the field to see all.")
    left, right = st.columns(2, gap="large")
    half = (len(found) + 1) // 2
    for place, part in ((left, found[:half]), (right, found[half:])):
        with place:
            for term in part:
                _entry(term, known, pages)


def _entry(term: Term, known: Mapping[str, Term], pages: Mapping[str, Any]) -> None:
    with st.container(key=f"term-{term.key}", gap=None):
        st.markdown(f"**{term.term}**" + (f"  ({', '.join(term.aliases)})" if term.aliases else ""))
        st.markdown(f"{term.short} *{term.not_}*")
        if term.see:
            st.caption("See also: " + ", ".join(known[key].term for key in term.see))
        if term.lesson in pages:
            link(term, pages)


def link(term: Term, pages: Mapping[str, Any]) -> None:
    """Into the lesson that shows the term, with its knobs set for it."""
    set_for_it = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in term.state.items()}
    query = {"v": "1", ANEW: "1", **set_for_it}
    st.page_link(pages[term.lesson], label=f"See it: {pages[term.lesson].title}", query_params=query if term.state else None)
