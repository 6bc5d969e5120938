"""A knob as a Streamlit widget. Ranges come from the declaration alone and never change, or the widget would lose its value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from explainers.kit.knobs import Knob

MOST_STEPS = 300  # a slider with more steps than its pixels cannot be set exactly: a number field can


def draw(knob: Knob, key: str, moved: Callable[[], None], idle: str = "") -> None:
    """The widget of `knob`; its value lives in session state under `key`, which must already be set.

    It is also told as the default: a browser that is sent two runs at once draws only the second, where Streamlit no longer
    says what was set in the first.

    idle  why it plays no part now; it cannot be moved then, and its help says so
    """
    now: Any = knob.fit(st.session_state[key])[0]
    unit = f" ({knob.unit})" if knob.unit and knob.unit not in knob.label.lower() else ""
    common: dict[str, Any] = {
        "label": knob.label + unit, "key": key, "help": f"{idle} {knob.help}".strip() or None, "on_change": moved,
        "persist_state": "session", "disabled": bool(idle),
    }  # fmt: skip
    if knob.options is not None:
        if knob.numeric:
            st.select_slider(options=knob.options, value=now, **common,
                             format_func=lambda v: knob.show(v).removesuffix(f" {knob.unit}"))
        else:
            st.selectbox(options=knob.options, index=list(knob.options).index(now), **common)
    elif knob.kind == "bool":
        st.toggle(value=now, **common)
    else:
        assert knob.low is not None and knob.high is not None
        kind = int if knob.kind == "int" else float
        low, high, step = kind(knob.low), kind(knob.high), kind(knob.step or (1 if kind is int else (knob.high - knob.low) / 100))
        widget = st.slider if (high - low) / step <= MOST_STEPS else st.number_input
        widget(min_value=low, max_value=high, value=now, step=step, **common)
