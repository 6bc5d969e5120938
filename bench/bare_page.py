"""The page that the lessons are measured against: one slider and a ready-made figure for each of its values, nothing else.

    streamlit run bench/bare_page.py -- FILE

FILE: JSON, a list with a {"figure", "headline"} for each value of the slider, from 0 on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import streamlit as st


@st.cache_resource
def ready_made(file: str) -> list[tuple[go.Figure, str]]:
    """The figures and sentences, put together once for the whole server."""
    made: list[dict[str, Any]] = json.loads(Path(file).read_text(encoding="utf-8"))
    return [(go.Figure(one["figure"]), one["headline"]) for one in made]


st.set_page_config(layout="wide")
pages = ready_made(sys.argv[1])
value = st.slider("Value", 0, len(pages) - 1, 0, key="value")
figure, headline = pages[value]
with st.container(key="headline"):
    st.markdown(headline)
with st.container(key="stage"):
    st.plotly_chart(figure, theme=None, key="figure")
