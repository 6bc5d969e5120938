"""What takes longer than a breath: claims and searches run in processes of their own, so that no session's slider waits."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import streamlit as st

from sim.record import Claim, compute, named


@st.cache_resource(show_spinner=False)
def _process(work: str) -> ProcessPoolExecutor:
    """One process for all sessions and each kind of work; it starts when the first one is asked for.

    "claims": what they share is simulated once. "searches": they do not wait until all claims are done.
    """
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    atexit.register(pool.shutdown, wait=False, cancel_futures=True)
    return pool


def _one(name: str) -> Claim:
    return compute([name])[0]


@st.cache_resource(show_spinner=False, max_entries=512)
def _claim(name: str) -> Future[Claim]:
    try:
        return _process("claims").submit(_one, name)
    except (NotImplementedError, OSError):  # where there are no processes, in place
        here: Future[Claim] = Future()
        here.set_result(_one(name))
        return here


def claims(patterns: Sequence[str]) -> list[Future[Claim]]:
    """The claims named, each once for all sessions: asked for now if nobody has."""
    return [_claim(name) for name in named(patterns)]


@st.cache_resource(show_spinner=False, max_entries=512)
def _asked(key: Hashable) -> dict[str, Future[Any]]:
    return {}


def ask(key: Hashable, function: Callable[..., Any], *args: Any) -> Future[Any]:
    """What `function(*args)` gives, computed once for all sessions under this key; asked for now if nobody has.

    function  of a module's top level, and what it takes and gives can be pickled by the two processes
    """
    kept = _asked(key)
    future = kept.get("future")
    if future is None or future.cancelled():
        try:
            future = _process("searches").submit(function, *args)
        except (NotImplementedError, OSError):  # where there are no processes, in place
            future = Future()
            try:
                future.set_result(function(*args))
            except ValueError as error:
                future.set_exception(error)
        kept["future"] = future
    return future


def give_up(key: Hashable) -> None:
    """Take back what was asked for under this key, if it has not begun."""
    future = _asked(key).get("future")
    if future is not None:
        future.cancel()
