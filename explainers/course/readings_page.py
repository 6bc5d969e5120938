"""The readings' page: a path in the course's three levels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from explainers import LEVELS
from explainers.course.readings import readings


def page(pages: Mapping[str, Any]) -> None:
    """Every reading with its year, why it earns the time, and the lesson it backs."""
    st.title("Readings", anchor=False)
    st.markdown("Read them in this order, a level after its lessons. Each line says why it earns the time.")
    for level, name in enumerate(LEVELS, start=1):
        st.header(f"{level}. {name}", anchor=False)
        for reading in (r for r in readings() if r.level == level):
            with st.container(key=f"reading-{reading.order}", gap=None):
                st.markdown(f"**{reading.order}. [{reading.title}]({reading.url})**  \n"
                            f"{reading.authors}, {reading.venue}, {reading.year}. {reading.why}")
                if reading.lesson in pages:
                    st.page_link(pages[reading.lesson], label=f"Backs: {pages[reading.lesson].title}")
