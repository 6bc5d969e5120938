"""Small runs of the batching lesson that are worked out on paper: a step takes 1 ms, whatever is in it."""

from __future__ import annotations

import math

from explainers.batching.scenario import GENERATED, Result, Scenario, filled, serve
from sim.policy import continuous, static
from sim.service import Affine
from sim.trace import Trace


def by_hand(output: list[int], slots: int, arrival_ms: list[float] | None = None, timeout: float = math.inf) -> Result:
    """Requests of one prompt token on a server whose every step takes 1 ms; arrivals all at 0 unless given."""
    n = len(output)
    trace = Trace([ms / 1000 for ms in arrival_ms or [0.0] * n], [1] * n, output)
    policies = {"static": static(slots, timeout), "continuous": continuous(slots, prompts="whole")}
    return serve(Scenario(trace, Affine(1000), policies, filled({"source": GENERATED})))


def swapped(result: Result) -> Result:
    """The same numbers with the policies' names exchanged: what the words would say if continuous batching lost."""
    keys = list(result.runs)
    turn = dict(zip(keys, reversed(keys), strict=True))
    return Result(result.scenario, {k: result.runs[turn[k]] for k in keys}, {k: result.ledgers[turn[k]] for k in keys},
                  {k: result.summaries[turn[k]] for k in keys})
