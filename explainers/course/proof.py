"""The proof page: everything we hold against the world in one table, computed live when it is asked for."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from typing import Any

import pandas as pd
import streamlit as st

from explainers.course import evidence
from explainers.kit import worker
from explainers.kit.text import plain

_PEERS, _RECORD = "proof:peers", "proof:record"


def page() -> None:
    """Real engines' decisions, then every published or measured figure beside ours."""
    st.title("Proof", anchor=False)
    st.markdown(
        "A simulator is worth what it can be held to. Here everything is computed anew when you ask for it, in a process of its "
        "own. What lies outside its tolerance is shown so, with the reason: **nothing is tuned to fit**."
    )
    st.header("The same decisions as real engines", anchor=False)
    st.markdown("What two real schedulers decided was recorded, step by step; our engine and our router decide again on the same "
                "requests, and every decision is compared.")
    st.button("Replay the recordings", key="proof:replay", on_click=lambda: st.session_state.update({_PEERS: True}))
    if st.session_state.get(_PEERS):
        _replays()
    st.header("Published and measured figures beside ours", anchor=False)
    count = sum(len(evidence.names(patterns)) for _, patterns in evidence.GROUPS)
    st.button(f"Compute all {count} figures (about a minute)", key="proof:compute",
              on_click=lambda: st.session_state.update({_RECORD: True}))
    if st.session_state.get(_RECORD):
        _record()
    st.header("What is not modelled", anchor=False)
    st.markdown("\n".join(f"- {line}" for line in evidence.NOT_MODELLED))


def _replays() -> None:
    asked = {kind: worker.ask(("proof", kind), evidence.replay, kind) for kind in evidence.PEERS}
    if not all(future.done() for future in asked.values()):
        _wait(list(asked.values()), "Replaying: {done} of {all} engines.", "replays")
        return
    rows = []
    for kind, future in asked.items():
        name, what = evidence.PEERS[kind]
        try:
            found = future.result()
            files = found.agree + found.differ
            rows.append((name, f"{files}", f"{found.decisions:,} {what}", f"{found.agree}", f"{found.differ}"))
        except (RuntimeError, OSError, CancelledError) as error:
            rows.append((name, "–", plain(str(error), 200), "–", "–"))
    st.table(pd.DataFrame(rows, columns=["Engine", "Recordings", "Compared", "Agree", "Differ"]), hide_index=True)


def _record() -> None:
    asked = worker.claims(["*"])
    if not all(future.done() for future in asked):
        _wait(asked, "Computing ours: {done} of {all} figures.", "figures")
    claims = [future.result() for future in asked if future.done() and not future.cancelled() and future.exception() is None]
    held = [claim for claim in claims if claim.inside is not None]
    outside = sum(not claim.inside for claim in held)
    if len(claims) == len(asked):
        st.markdown(f"**{len(held) - outside} of {len(held)}** lie inside what we allow ourselves, {outside} outside; "
                    f"{len(claims) - len(held)} more are shown without being held to a limit.")
    by_name = {claim.name: claim for claim in claims}
    for heading, patterns in evidence.GROUPS:
        there = [by_name[name] for name in evidence.names(patterns) if name in by_name]
        if there:
            st.subheader(heading, anchor=False)
            rows = [{key: plain(cell, 600) for key, cell in evidence.row(claim).items()} for claim in there]
            st.table(pd.DataFrame(rows), hide_index=True)
            with st.expander("Sources and set-ups", key=f"proof:sources:{patterns[0]}", type="compact"):
                for claim in there:
                    st.caption(f"**{plain(claim.what, 300)}**: {plain('; '.join((claim.source, claim.set_up)), 1000)}")


def _wait(asked: list[Future[Any]], told: str, key: str) -> None:
    """Progress, until all are there; then the page is drawn with them."""

    @st.fragment(run_every=1.0, key=f"proof:{key}")
    def progress() -> None:
        done = sum(future.done() for future in asked)
        st.progress(done / len(asked), told.format(done=done, all=len(asked)))
        if done == len(asked):
            st.rerun()

    progress()
