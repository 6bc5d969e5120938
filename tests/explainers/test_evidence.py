"""The proof page's data: nothing is left out, and a replay is what the real engines' recordings say."""

from __future__ import annotations

import subprocess

import pytest

from explainers.course import evidence
from sim import record
from sim.record import CLAIMS, Claim


def test_every_claim_stands_under_one_heading() -> None:
    under = [name for _, patterns in evidence.GROUPS for name in evidence.names(patterns)]
    assert sorted(under) == sorted(CLAIMS)


def test_the_replays_that_come_along_agree_in_every_decision() -> None:
    # peers/vllm: 64 recordings; peers/sglang-router: 27 replayable files.
    vllm, router = evidence.replay("vllm"), evidence.replay("router")
    assert (vllm.agree, vllm.differ) == (64, 0) and vllm.decisions > 10_000
    assert (router.agree, router.differ) == (27, 0) and router.decisions == 7_330


def test_a_replay_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], 1, "", "no such folder")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(RuntimeError, match="no such folder"):
        evidence.replay("vllm")


def test_a_row_says_outside_where_a_claim_is_and_why() -> None:
    made = Claim("x", "a paper", "a quantity", 2.0, 3.456789, "s", 1.0, 3.0, "so", "for this reason")
    assert evidence.row(made) == {
        "Figure": "a quantity", "Theirs": "2 s", "Ours": "3.457 s", "Allowed": "1 to 3 s", "": "OUTSIDE",
        "Why, and what else to know": "for this reason",
    }


def test_the_readme_s_table_is_the_record_s() -> None:
    from tools import record_table

    assert record_table.stands_in_readme(record.compute(["orca-*", "chunk-*", "sarathi-*", "shortest-first-*"]))
