"""Shortest first in a burst and above capacity: the bands of papers/FACTS.md section 8."""

from __future__ import annotations

import numpy as np
import pytest

from sim import metrics, record
from sim.engine import simulate
from sim.policy import Policy
from sim.record import shortest_first
from sim.service import Affine
from sim.trace import Trace

BANDS = {
    "shortest-first-mean-sharegpt": (2.05, 2.0, 5.0),  # 1.15 / 0.56
    "shortest-first-mean-lmsys": (4.55, 2.0, 5.0),  # 1.73 / 0.38
    "shortest-first-p90-lmsys": (2.8, 2.0, None),
    "shortest-first-longest-wait": (None, 1.0, None),
}


@pytest.mark.parametrize("name", BANDS)
def test_shortest_first_gains_within_the_band_and_makes_someone_wait_longer(name: str) -> None:
    (claim,) = record.compute([name])
    assert (claim.theirs, claim.low, claim.high) == BANDS[name]
    assert claim.inside


def test_the_burst_is_as_large_as_the_papers_and_ends_under_both_orders() -> None:
    for order in ("fcfs", "shortest"):
        run = shortest_first.served("LMSYS", order)  # type: ignore[arg-type]
        assert len(run.trace) == 2_000 and np.isfinite(run.finished_us).all()


def test_one_slot_shortest_first_waits_as_worked_by_hand() -> None:
    # Replies of 5, 2 and 1 tokens at 1 ms a step, all there at once: they end at 5, 7, 8 ms in order of arrival, at 1, 3, 8 ms
    # shortest first; per output token (5/5 + 7/2 + 8/1) / 3 = 25/6 ms against (1/1 + 3/2 + 8/5) / 3 = 41/30 ms.
    trace = Trace([0, 0, 0], [4, 4, 4], [5, 2, 1])
    mean = {
        order: float(metrics.normalised_latency(simulate(trace, Affine(1_000, 0, 0), Policy("one", slots=1, order=order))).mean())
        for order in ("fcfs", "shortest")
    }  # type: ignore[arg-type]
    assert mean["fcfs"] * 1e3 == pytest.approx(25 / 6) and mean["shortest"] * 1e3 == pytest.approx(41 / 30)
