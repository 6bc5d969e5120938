"""Orders: who is first among those who wait. Each is a small function; the smallest key goes first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sim.policy import Policy
from sim.trace import Trace

Floats = NDArray[np.float64]
# A key from what is known at arrival, one element a request; what chance adds comes from the generator.
Order = Callable[[Trace, Policy, np.random.Generator | None], Floats]


def outputs(trace: Trace, policy: Policy) -> NDArray[np.int64]:
    """Output tokens of each request, cut where the policy cuts them."""
    longest = policy.longest
    return trace.output if longest is None else np.clip(longest - trace.prompt, 1, trace.output)


def guess(n: int, policy: Policy, rng: np.random.Generator | None = None) -> Floats:
    """Logarithms of guessed over true output tokens of n requests: Policy.noise times a standard normal; [n].

    An engine draws for each part of a trace from one generator; without one the trace is whole, and Policy.seed decides.
    """
    z: Floats = (rng or np.random.default_rng(policy.seed)).standard_normal(n)
    return policy.noise * z


def priority(trace: Trace, policy: Policy, rng: np.random.Generator | None = None) -> Floats:
    """The trace's priority: smaller is more urgent (vLLM's priority policy)."""
    return np.zeros(len(trace)) if trace.priority is None else np.asarray(trace.priority, np.float64)


def shortest(trace: Trace, policy: Policy, rng: np.random.Generator | None = None) -> Floats:
    """Output tokens: the shortest job first, with the length known."""
    return np.asarray(outputs(trace, policy), np.float64)


def shortest_predicted(trace: Trace, policy: Policy, rng: np.random.Generator | None = None) -> Floats:
    """A guess of the output tokens: the truth times a lognormal factor of median 1."""
    tokens: Floats = outputs(trace, policy).astype(np.float64) * np.exp(guess(len(trace), policy, rng))
    return tokens


def least_attained(trace: Trace, policy: Policy, rng: np.random.Generator | None = None) -> Floats:
    """Nothing yet: what counts are the output tokens a request has had so far (FastServe's idea, without its queues)."""
    return np.zeros(len(trace))


ORDERS: dict[str, Order] = {
    "priority": priority, "shortest": shortest, "shortest_predicted": shortest_predicted, "least_attained": least_attained,
}
# What each output token that a request has had adds to its key: shortest first counts what is left.
PER_TOKEN: dict[str, float] = {"priority": 0.0, "shortest": -1.0, "shortest_predicted": -1.0, "least_attained": 1.0}
