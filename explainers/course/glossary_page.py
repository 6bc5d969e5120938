"""The glossary's page: a search over the words, each with what it is, what it is not, and where to see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from explainers.kit.glossary import Term, matching, terms
from explainers.kit.link import ANEW


def page(pages: Mapping[str, Any]) -> None:
    """All words, or those that are asked for; `?term=key` opens one above the others."""
    st.title("Words", anchor=False)
    st.markdown("The field's words in one plain sentence each, what each is not, and a lesson set up so that you see it.")
    typed = st.text_input("Find a word", placeholder="for example: preemption", width=420, max_chars=60)
    found = _nearest_first(matching(typed), typed)
    opened = {term.key: term for term in terms()}.get(st.query_params.get("term", "").strip().lower())
    if opened and not typed.strip():
        with st.container(border=True, key="term-opened"):
            _entry(opened, found, pages, anchor=False)
    if not found:
        st.info("No word here holds that. Try a shorter piece of it, or empty the field to see all.")
        return
    st.header(f"All {len(found)} words" if not typed.strip() else "1 word" if len(found) == 1 else f"{len(found)} words",
              anchor=False)
    half = (len(found) + 1) // 2
    for place, part in zip(st.columns(2, gap="large"), (found[:half], found[half:]), strict=True):
        with place:
            for term in part:
                with st.container(key=f"term-{term.key}", gap="small"):
                    _entry(term, found, pages, anchor=True)


def _nearest_first(found: Sequence[Term], typed: str) -> list[Term]:
    """Words whose name holds what was asked for stand before those that only speak of it."""
    wanted = typed.strip().lower()
    return sorted(found, key=lambda term: not any(wanted in form.lower() for form in (term.term, *term.aliases)))


def _entry(term: Term, shown: Sequence[Term], pages: Mapping[str, Any], *, anchor: bool) -> None:
    """A word's name, its sentences, its neighbours (a link each, if they are on the page) and the way to the lesson."""
    st.subheader(term.term, anchor=term.key if anchor else False)
    lines = [term.short, f"*{term.not_}*"]
    if names := _other_names(term):
        lines.append(f"Also called: {', '.join(names)}.")
    if term.see:
        name, on_page = {other.key: other.term for other in terms()}, {other.key for other in shown}
        near = [f"[{name[key]}](#{key})" if key in on_page else name[key] for key in term.see]
        lines.append(f"See also: {', '.join(near)}.")
    st.markdown("  \n".join(lines))
    if term.lesson in pages:
        link(term, pages)


def _other_names(term: Term) -> list[str]:
    """Spellings that are another name: neither a form of the word itself nor the plural of one before."""
    return [form for form in term.aliases
            if not form.lower().startswith(term.term[:4].lower()) and not (form.endswith("s") and form[:-1] in term.aliases)]


def link(term: Term, pages: Mapping[str, Any]) -> None:
    """Into the lesson that shows the term, with its knobs set for it."""
    set_for_it = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in term.state.items()}
    query = {"v": "1", ANEW: "1", **set_for_it}
    st.page_link(pages[term.lesson], label=f"See it: {pages[term.lesson].title}", query_params=query if term.state else None)
