"""What takes longer than a breath: claims are computed in a process of their own, so that no session's slider waits for them."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

import streamlit as st

from sim.record import Claim, compute, named


@st.cache_resource(show_spinner=False)
def _process() -> ProcessPoolExecutor:
    """One process for all sessions: what claims share is simulated once. It starts when the first claim is asked for."""
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    atexit.register(pool.shutdown, wait=False, cancel_futures=True)
    return pool


def _one(name: str) -> Claim:
    return compute([name])[0]


@st.cache_resource(show_spinner=False, max_entries=512)
def _claim(name: str) -> Future[Claim]:
    try:
        return _process().submit(_one, name)
    except (NotImplementedError, OSError):  # where there are no processes, in place
        here: Future[Claim] = Future()
        here.set_result(_one(name))
        return here


def claims(patterns: Sequence[str]) -> list[Future[Claim]]:
    """The claims named, each once for all sessions: asked for now if nobody has."""
    return [_claim(name) for name in named(patterns)]
