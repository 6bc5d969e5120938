"""The record: claims are computed, held to their tolerance, and shown as they are."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from sim import record, workloads
from sim.engine import simulate
from sim.policy import static
from sim.record import orca, step_times
from sim.record.claim import Claim
from sim.service import Affine

MEASURED = Path(__file__).resolve().parents[3] / "shared/step-times/measured_points.csv"


def _claim(ours: float, low: float | None, high: float | None) -> Claim:
    return Claim("name", "paper, figure 1", "what", 10.0, ours, "ms", low, high, "set-up", "a reason")


@pytest.mark.parametrize(
    ("ours", "low", "high", "inside", "words"),
    [
        (9.0, 9.0, 11.0, True, "9 to 11 ms"),
        (11.0, 9.0, 11.0, True, "9 to 11 ms"),
        (8.9, 9.0, 11.0, False, "9 to 11 ms"),
        (11.1, None, 11.0, False, "at most 11 ms"),
        (12.0, 11.0, None, True, "at least 11 ms"),
        (1e9, None, None, None, "none"),
    ],
)
def test_inside_means_within_the_bounds(
    ours: float, low: float | None, high: float | None, inside: bool | None, words: str
) -> None:
    claim = _claim(ours, low, high)
    assert (claim.inside, claim.tolerance) == (inside, words)


@pytest.mark.parametrize("device", ["a100", "h100"])
def test_step_times_are_within_6_percent_median_and_22_percent_p95(device: str) -> None:
    claims = record.compute([f"step-time-{device}-*"])
    assert len(claims) == 12  # 3 kinds of step, median and p95, smooth and with tiles
    for claim in claims:
        assert claim.high == (6.0 if "-median" in claim.name else 22.0)
        assert claim.inside, claim


def test_the_copy_of_the_measured_points_is_what_was_measured() -> None:
    if not MEASURED.exists():
        pytest.skip(f"{MEASURED} is not here to compare the copy with")
    with MEASURED.open(newline="") as file:
        theirs = [(r["dev"], r["model"], r["tp"], r["c"], r["p"], r["D"], r["ctx"], float(r["ms"])) for r in csv.DictReader(file)]
    with step_times.POINTS.open(newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    assert len(rows) == len(theirs) == 3268
    for row, (*key, ms) in zip(rows, theirs, strict=True):
        assert list(row.values())[:-1] == key
        assert float(row["ms"]) == pytest.approx(ms, rel=1e-5)


def test_the_kinds_of_step_are_as_many_as_measured() -> None:
    # CALIBRATION.md section 0: 3,268 points; decode 47 to 54, prefill 8 to 15, hybrid 180 to 216 in each of 12 configurations.
    sizes = {key: len(off) for key, off in step_times.errors().items()}
    assert sum(sizes.values()) == 3268
    for device in ("a100", "h100"):
        assert 6 * 47 <= sizes[device, "decode"] <= 6 * 54
        assert 6 * 8 <= sizes[device, "prefill"] <= 6 * 15
        assert 6 * 180 <= sizes[device, "hybrid"] <= 6 * 216


def test_what_was_not_measured_whole_is_said() -> None:
    # No step was measured whole: each is put together from measured kernels. Counted in measured_points.csv: 302 decode steps on
    # the A100; of 1,272 hybrid ones 954 have p > 0 (945 of 1,260 on the H100), whose prefix attention is modelled.
    claims = {claim.name: claim for claim in record.compute(["step-time-*"])}
    assert claims["step-time-a100-decode-median"].set_up.startswith("302 decode steps assembled from measured kernels (no LM")
    assert "1,272 hybrid" in claims["step-time-a100-hybrid-p95"].set_up
    assert "954 of them partly modelled" in claims["step-time-a100-hybrid-p95"].set_up
    assert "945 of them partly modelled" in claims["step-time-h100-hybrid-p95"].set_up
    assert "modelled" not in claims["step-time-h100-decode-p95"].set_up


def test_the_record_says_whose_errors_they_are() -> None:
    (claim,) = record.compute(["step-time-a100-decode-median"])
    assert "held out" in claim.note and "two thirds" in claim.note and "this project's choice" in claim.note


def test_orcas_lengths_leave_43_6_percent_of_slot_steps_idle() -> None:
    # The longest of 8 outputs uniform 1 to 128 is 114.27 on average, their mean 64.5.
    assert orca.expected_idle_slot_steps() == pytest.approx(1 - 64.5 / 114.27, abs=5e-5)
    (claim,) = record.compute(["orca-idle-slot-steps"])
    assert claim.theirs == 43.6
    assert claim.low == pytest.approx(42.6)
    assert claim.high == pytest.approx(44.6)
    assert claim.inside


def test_slot_time_is_another_share_and_is_held_to_nothing() -> None:
    steps, time = record.compute(["orca-idle-slot-steps", "orca-idle-slot-time"])
    assert time.theirs is None
    assert time.inside is None
    assert time.ours < steps.ours - 1


def test_idle_slot_steps_and_time_of_a_batch_worked_by_hand() -> None:
    # 2 slots, outputs 1 and 3: three steps, 6 slot-steps, 4 used. Times: the prompts' step 10 + 2 · (4 + 4) = 26 µs,
    # then decodes of one token, 12 µs each: 50 µs; slot 1 is idle for 24 of 100 µs.
    trace = workloads.workload(workloads.all_at_once(2), np.array([4, 4]), np.array([1, 3]))
    run = simulate(trace, Affine(10, per_token_us=2), static(2))
    assert orca.idle_slot_steps(run) == pytest.approx(2 / 6)
    assert orca.idle_slot_time(run) == pytest.approx(24 / 100)


def test_an_unknown_claim_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown claim 'orca'; known: step-time-a100-decode-median, .*orca-idle-slot-time"):
        record.compute(["orca"])


def test_every_claim_computes_under_its_own_name_with_a_source_and_a_set_up() -> None:
    seen: list[tuple[int, int, str]] = []
    claims = record.compute(progress=lambda done, total, name: seen.append((done, total, name)))
    assert [claim.name for claim in claims] == list(record.CLAIMS)
    assert seen == [(i, len(claims), claim.name) for i, claim in enumerate(claims)]
    for claim in claims:
        assert claim.source
        assert claim.what
        assert claim.set_up
        assert np.isfinite(claim.ours)
        assert claim.inside or claim.note, "what is not inside says why"


def test_json_is_a_list_of_plain_rows() -> None:
    rows = record.to_json([_claim(12, 9, 11)])
    assert json.loads(json.dumps(rows)) == rows
    assert {k: rows[0][k] for k in ("name", "source", "theirs", "ours", "tolerance", "inside", "note")} == {
        "name": "name",
        "source": "paper, figure 1",
        "theirs": 10.0,
        "ours": 12,
        "tolerance": "9 to 11 ms",
        "inside": False,
        "note": "a reason",
    }


def test_what_is_outside_is_shown_as_outside_with_its_reason() -> None:
    text = record.table([_claim(12, 9, 11), _claim(10, 9, 11)])
    lines = text.splitlines()
    assert "OUTSIDE" in lines[1]
    assert "a reason" in lines[2]
    assert "inside" in lines[3]
    assert len(lines) == 4
