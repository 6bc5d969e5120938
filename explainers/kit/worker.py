"""What takes longer than a breath: claims and searches run in processes of their own, so that no session's slider waits."""

from __future__ import annotations

import atexit
import itertools
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from threading import Lock
from typing import Any, TypeVar

import streamlit as st

from sim.record import Claim, compute, named

_T = TypeVar("_T")


@st.cache_resource(show_spinner=False)
def _process() -> ProcessPoolExecutor:
    """One process for the claims of all sessions, as what they share is simulated once; it starts when one is asked for."""
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    atexit.register(pool.shutdown, wait=False, cancel_futures=True)
    return pool


def _one(name: str) -> Claim:
    return compute([name])[0]


def _renewed(process: Any, submit: Callable[[], _T]) -> _T:
    """What `submit` gives; where the process it goes to has ended, a new one is begun for it."""
    try:
        return submit()
    except BrokenExecutor:
        process.clear()
        return submit()


@st.cache_resource(show_spinner=False, max_entries=512)
def _claim(name: str) -> Future[Claim]:
    try:
        return _renewed(_process, lambda: _process().submit(_one, name))
    except (NotImplementedError, OSError):  # where there are no processes, in place
        here: Future[Claim] = Future()
        here.set_result(_one(name))
        return here


def claims(patterns: Sequence[str]) -> list[Future[Claim]]:
    """The claims named, each once for all sessions: asked for now if nobody has."""
    found = [_claim(name) for name in named(patterns)]
    for name, future in zip(named(patterns), found, strict=True):
        if lost(future):
            _claim.clear(name)
    return [_claim(name) for name in named(patterns)] if any(map(lost, found)) else found


def lost(future: Future[Any]) -> bool:
    """Whether its process ended under it, as when the machine's memory ran out."""
    return future.done() and not future.cancelled() and isinstance(future.exception(), BrokenExecutor)


class GivenUp(Exception):
    """Whoever asked for it takes it back."""


class _Searches:
    """A process for searches: what it reports while it works, and a way to stop what it works on."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self.reports = context.SimpleQueue()
        self.stop = context.Array("q", _LATEST)  # numbers of searches that are given up, each in its place
        self.pool = ProcessPoolExecutor(1, context, _begin, (self.reports, self.stop))
        self.known: dict[int, Any] = {}
        self._number = itertools.count(1)
        atexit.register(self.pool.shutdown, wait=False, cancel_futures=True)

    def submit(self, function: Callable[..., Any], args: tuple[Any, ...], reports: bool) -> Asked:
        """Begin a search as soon as those before it are done."""
        number = next(self._number)
        return Asked(number, self.pool.submit(_work, number, function, args, reports))

    def give_up(self, asked: Asked) -> None:
        """It does not begin, or it stops at its next report. The pool calls running also what is only next."""
        if not asked.future.cancel():
            self.stop[asked.number % _LATEST] = asked.number

    def told(self, number: int) -> Any | None:
        """The last report of a search, None: none yet."""
        with _READING:
            while not self.reports.empty():
                whose, what = self.reports.get()
                self.known[whose] = what
        return self.known.get(number)


_LATEST = 64  # so many searches at most are under way or given up while it still matters
_READING = Lock()
_from_here: list[Any] = []  # in the process for searches: where reports go, and the numbers that are given up


@dataclass(frozen=True)
class Asked:
    """A search that somebody asked for."""

    number: int
    future: Future[Any]


def _begin(reports: Any, stop: Any) -> None:
    _from_here[:] = [reports, stop]


def _work(number: int, function: Callable[..., Any], args: tuple[Any, ...], reports: bool) -> Any:
    told, stop = _from_here

    def go_on() -> None:
        if stop[number % _LATEST] == number:
            raise GivenUp

    def report(what: Any) -> None:
        told.put((number, what))
        go_on()

    go_on()
    return function(*args, report) if reports else function(*args)


@st.cache_resource(show_spinner=False)
def _searches() -> _Searches:
    """Of all sessions; it starts when the first search is asked for, and does not wait for claims."""
    return _Searches()


@st.cache_resource(show_spinner=False, max_entries=512)
def _asked(key: Hashable) -> dict[str, Any]:
    return {}


def ask(key: Hashable, function: Callable[..., Any], *args: Any, reports: bool = False) -> Future[Any]:
    """What `function(*args)` gives, computed once for all sessions under this key; asked for now if nobody has.

    function  of a module's top level; what it takes, gives and reports can be pickled
    The first loss of its process is mended by asking again; the second is its answer, BrokenExecutor.

    reports   it takes `report` as its last argument and calls `report(what)` now and then: `progress` tells the last one,
              and there it stops when it is given up
    """
    kept = _asked(key)
    again = "asked" in kept and lost(kept["asked"].future) and not kept.get("again", False)
    if again or "asked" not in kept or given_up(kept["asked"].future):
        kept["again"] = again
        try:
            kept["asked"] = _renewed(_searches, lambda: _searches().submit(function, args, reports))
        except (NotImplementedError, OSError, ImportError):  # where there are no processes, in place
            kept["asked"] = Asked(0, _here(function, (*args, _silent) if reports else args))
    asked: Asked = kept["asked"]
    return asked.future


def _silent(what: Any) -> None:
    pass


def _here(function: Callable[..., Any], args: tuple[Any, ...]) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(function(*args))
    except ValueError as error:
        future.set_exception(error)
    return future


def progress(key: Hashable) -> Any | None:
    """What the search under this key reported last; None: nothing yet."""
    asked = _asked(key).get("asked")
    return _searches().told(asked.number) if asked and asked.number else None


def given_up(future: Future[Any]) -> bool:
    """Whether somebody took it back before it was done."""
    return future.cancelled() or (future.done() and isinstance(future.exception(), GivenUp))


def give_up(key: Hashable) -> None:
    """Take back what was asked for under this key, if it is not done."""
    asked = _asked(key).get("asked")
    if asked is not None and asked.number and not asked.future.done():
        _searches().give_up(asked)
