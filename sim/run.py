"""Run: what happened, as columns. Token times and the state of every slot at time t are derived from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.policy import Policy
from sim.service import StepTime
from sim.trace import Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Outcomes of a request.
FINISHED, CANCELLED, REFUSED, UNFINISHED, HANDED_OFF = range(5)
LEFT = (CANCELLED, HANDED_OFF)  # before the end: given up by its client, or gone to another server


@dataclass(frozen=True)
class Steps:
    """The steps, one row for each stretch of equal batches; all columns have the length of the number of rows.

    Step i (0 ≤ i < count) of a row starts at start_us + i·first_us + growth_us·i(i−1)/2 and takes
    first_us + i·growth_us. Rows are in time order and do not overlap; between two rows the device is idle.

    start_us   float64  clock at which the first step of the row starts, µs
    count      int64    steps in the row, ≥ 1
    first_us   float64  duration of its first step, µs
    growth_us  float64  by how much each further step takes longer, µs
    decode     int64    requests that get one decode token in each step
    prefilling int64    requests that get prompt tokens in each step
    prefill    int64    prompt tokens in each step
    free       int64    blocks free after the decisions for the last step of the row; 0 without a limit on memory
    """

    start_us: Floats
    count: Ints
    first_us: Floats
    growth_us: Floats
    decode: Ints
    prefilling: Ints
    prefill: Ints
    free: Ints

    @property
    def end_us(self) -> Floats:
        """Clock at which the last step of each row ends, µs."""
        n = self.count
        return self.start_us + n * self.first_us + self.growth_us * (n * (n - 1) / 2)


class Event(NamedTuple):
    """Something that happened to a request when a step was decided or ended, at the clock at_us, µs.

    That the head of the queue is blocked is told when it is first seen, and again when it needs another number of blocks at
    the start of a row: within a row, what it needs falls with what the cache forgets, and so does what is free.

    kind       what                                tokens                        blocks
    admitted   it is back after a preemption       cached or kept tokens         –
    blocked    the head cannot enter               blocks that must be free:     blocks free
                                                   its own, the watermark, and
                                                   cached ones that nobody holds
    preempted  its blocks were taken away          computed tokens given up      blocks it held; `by`: who needed them
    caught up  after a preemption, its next token  tokens computed               –
    cancelled  it left while it ran (its client    computed tokens               blocks it held
               gave up, or it was handed off)
    """

    kind: str
    at_us: float
    request: int
    tokens: int
    blocks: int = 0
    by: int = -1


@dataclass(frozen=True)
class Run:
    """One trace served under one policy. Request columns have the trace's length and order; times are µs, nan: never.

    admitted_us     start of the first step that works on the request
    first_token_us  end of the step that finishes its prompt
    finished_us     end of the step that yields its last token (static: still the request's own last token)
    released_us     when its slot becomes free: finished_us, but the end of the whole batch under static batching
    outcome         FINISHED, CANCELLED, REFUSED, UNFINISHED or HANDED_OFF (it left for another server)
    cached          prompt tokens found in the prefix cache at the first admission
    preemptions     how often the request lost its blocks
    recomputed      tokens that were computed and thrown away by preemptions
    events          what happened to whom, in order of time
    address         first block of the piece that the request was given, −1: never; None: memory is not contiguous
    grants          if asked for: for each row of steps, who gets how many tokens in each of its steps, in that order
    stopped         why the run ended with requests left; empty: it did not
    """

    trace: Trace
    service: StepTime
    policy: Policy
    admitted_us: Floats
    first_token_us: Floats
    finished_us: Floats
    released_us: Floats
    outcome: NDArray[np.int8]
    steps: Steps
    cached: Ints
    preemptions: Ints
    recomputed: Ints
    address: Ints | None = None
    events: tuple[Event, ...] = ()
    grants: tuple[list[tuple[int, int]], ...] | None = None
    stopped: str = ""

    def __len__(self) -> int:
        return len(self.trace)


def read_only(*parts: object) -> None:
    """Close the arrays of these dataclasses, and of a Run's steps, to writing: what is cached and shared stays as it is."""
    for part in parts:
        for held in vars(part).values():
            if isinstance(held, np.ndarray):
                held.setflags(write=False)
            elif isinstance(held, Steps):
                read_only(held)


def closed(run: Run) -> Run:
    """The run, read-only."""
    read_only(run)
    return run
