"""Orders: who is first among those who wait. Each is a small function; the smallest key goes first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sim.policy import Policy
from sim.trace import Trace

Floats = NDArray[np.float64]
# A key from what is known at arrival, one element a request; and what it changes by with each output token so far.
Order = Callable[[Trace, Policy], Floats]


def priority(trace: Trace, policy: Policy) -> Floats:
    """The trace's priority: smaller is more urgent (vLLM's priority policy)."""
    return np.zeros(len(trace)) if trace.priority is None else np.asarray(trace.priority, np.float64)


def shortest(trace: Trace, policy: Policy) -> Floats:
    """Output tokens: the shortest job first, with the length known."""
    return np.asarray(trace.output, np.float64)


def shortest_predicted(trace: Trace, policy: Policy) -> Floats:
    """A guess of the output tokens: the truth times a lognormal factor of median 1 (Policy.noise, Policy.seed)."""
    rng = np.random.default_rng(policy.seed)
    guess: Floats = trace.output.astype(np.float64) * np.exp(policy.noise * rng.standard_normal(len(trace)))
    return guess


def least_attained(trace: Trace, policy: Policy) -> Floats:
    """Nothing yet: what counts are the output tokens a request has had so far (FastServe's idea, without its queues)."""
    return np.zeros(len(trace))


ORDERS: dict[str, Order] = {
    "priority": priority, "shortest": shortest, "shortest_predicted": shortest_predicted, "least_attained": least_attained,
}
# What each output token that a request has had adds to its key: shortest first counts what is left.
PER_TOKEN: dict[str, float] = {"priority": 0.0, "shortest": -1.0, "shortest_predicted": -1.0, "least_attained": 1.0}
