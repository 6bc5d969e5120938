"""Lifecycle: what one request went through, when, and why: each wait with its cause and the event that ended it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.kv.reserve import blocks_needed, piece
from sim.run import CANCELLED, FINISHED, HANDED_OFF, REFUSED, Ints, Run
from sim.slots import BUDGET, FILLING, Instants, blocked, instants
from sim.visits import heads

# outcome → the last state, and what ended the wait or the run before it; and the same said of another request.
_ENDS = {
    FINISHED: ("finished", "its last token"), CANCELLED: ("cancelled", "its client gave up"),
    HANDED_OFF: ("handed off", "it was handed off"),
}
_LEAVES = {FINISHED: "finished", CANCELLED: "gave up", HANDED_OFF: "was handed off"}


@dataclass(frozen=True)
class Stage:
    """A stretch of a request's life, start_us ≤ end_us (µs). What happens in an instant starts and ends there.

    state  waiting, running, preempted (an instant), and at the end finished, cancelled, handed off,
           refused or unfinished (instants)
    cause  of a wait: what kept the request out; of a preemption: who needed the block; of a refusal: the reason; else empty
    until  the event that ended a wait or a run; else empty
    """

    state: str
    start_us: float
    end_us: float
    cause: str = ""
    until: str = ""


def refusal(run: Run, request: int) -> str:
    """Why the request can never be served: what it needs and what there is. ValueError if it was not refused."""
    if run.outcome[request] != REFUSED:
        raise ValueError(f"request {request} was not refused")
    policy, prompt = run.policy, run.trace.prompt[request]
    if policy.longest is not None and prompt >= policy.longest:
        return f"its prompt has {prompt} tokens, a prompt and its reply may have {policy.longest}"
    assert policy.memory is not None  # nothing else is refused
    needs, blocks = blocks_needed(run.trace, policy)[request], policy.memory.blocks
    if policy.memory.contiguous:
        return f"needs a piece of {piece(int(needs))} blocks, the largest of the pool has {1 << (blocks.bit_length() - 1)}"
    return f"needs {needs} blocks, the pool has {blocks}"


def life(run: Run, request: int) -> list[Stage]:
    """The stages of one request from its arrival to its end, each starting where the one before it ended.

    A run that stopped before is told up to its last step. A wait whose cause changes is several stages.
    """
    at, arrival = instants(run), float(run.trace.arrival_us[request])
    if run.outcome[request] == REFUSED:
        return [Stage("refused", arrival, arrival, refusal(run, request))]
    over = max(arrival, float(at.grid[-1]))
    v, stages = at.visits, list[Stage]()
    rows = np.flatnonzero(v.request == request)
    needed_by = [event.by for event in run.events if event.request == request and event.kind == "preempted"]
    for row in rows.tolist():
        stages += _waits(run, at, row, over)
        if math.isnan(v.entered[row]):
            break
        start, end = float(v.entered[row]), float(v.done[row])
        if row != rows[-1]:
            by = needed_by[row - int(rows[0])]
            why = f"request {by} needed a block" if by != request else "it needed a block and was the last in line itself"
            stages += [Stage("running", start, end, until="preempted"), Stage("preempted", end, end, why)]
        elif math.isnan(end):
            stages.append(Stage("running", start, max(start, over), until="the run stopped"))
        else:
            stages.append(Stage("running", start, end, until=_ENDS[int(run.outcome[request])][1]))
    end = stages[-1].end_us if stages else arrival  # it may have left the moment it came
    state = _ENDS.get(int(run.outcome[request]), ("unfinished", ""))[0]
    return [*stages, Stage(state, end, end)]


def _waits(run: Run, at: Instants, row: int, over: float) -> list[Stage]:
    """The wait of one row of the visits, cut where its cause changes."""
    v = at.visits
    start, out = float(v.queued[row]), float(v.out[row])
    end = max(start, over) if math.isnan(out) else out
    low, high = np.searchsorted(at.grid, [start, end])
    high = min(int(high), len(at.grid) - 1)
    causes = _causes(run, at, row, np.arange(low, high))
    stages = list[Stage]()
    times = [*at.grid[low:high].tolist(), end]
    if not causes and end > start:  # a client that gave up after the last step
        causes, times = ["nothing runs any more"], [start, end]
    for cause, begin, stop in zip(causes, times, times[1:], strict=False):
        if stages and stages[-1].cause == cause:
            begin = stages.pop().start_us
        stages.append(Stage("waiting", begin, stop, cause))
    if stages and stages[-1].end_us < end:
        last = stages.pop()
        stages.append(Stage("waiting", last.start_us, end, last.cause))
    return [Stage(s.state, s.start_us, s.end_us, s.cause, _until(run, at, row, s, out)) for s in stages]


def _causes(run: Run, at: Instants, row: int, ks: Ints) -> list[str]:
    """What keeps one row of the visits out in each of the intervals `ks` of the grid."""
    if not len(ks):
        return []
    times, v = at.grid[ks], at.visits
    head = heads(v, at.noticed, times)
    lacking, event = blocked(run, v, times)
    full = at.free[ks] == 0
    if run.policy.batching == "static":
        late = np.where(full, "slots full", _left_behind(run, at, row, ks))
        return [str(text) for text in np.where(at.unseen[ks] == FILLING, "batch filling", late)]
    texts = []
    for i, k in enumerate(ks.tolist()):
        if times[i] < at.noticed[row]:
            texts.append("step boundary")
        elif full[i]:
            texts.append("slots full")
        elif at.preempting[k]:
            texts.append("a step with a preemption")
        elif at.kept_out[k] == BUDGET:
            texts.append("budget spent" if _spent(run, at, k) else "prompts held back")
        elif head[i] != row:
            texts.append(f"behind request {v.request[head[i]]}, the head of the line")
        elif lacking[i] == row:
            texts.append(f"not enough blocks: needs {run.events[event[i]].tokens}, {run.events[event[i]].blocks} free")
        else:
            texts.append("not enough blocks")
    return texts


def _left_behind(run: Run, at: Instants, row: int, ks: Ints) -> NDArray[np.str_]:
    """Static: who had come when the batch left and finds free slots had no memory, others came too late."""
    v = at.visits
    began = np.sort(v.entered[~np.isnan(v.entered)])
    if not len(began):  # no batch ever left
        return np.full(len(ks), "not enough blocks")
    launch = began[np.maximum(np.searchsorted(began, at.grid[ks], side="right") - 1, 0)]
    return np.where((v.queued[row] <= launch) & (run.policy.memory is not None), "not enough blocks", "batch left")


def _spent(run: Run, at: Instants, k: int) -> bool:
    """Whether the step that runs in interval k leaves too little of the budget; else prompts are held back (prefill_every)."""
    policy, steps = run.policy, run.steps
    r = int(np.searchsorted(at.clock.start, at.grid[k], side="right")) - 1
    used = int(steps.prefill[r]) + (0 if policy.prompts == "alone" else int(steps.decode[r]))
    return policy.prefill_every == 1 or (policy.budget is not None and used >= policy.budget)


def _until(run: Run, at: Instants, row: int, stage: Stage, out: float) -> str:
    """The event at the end of a wait, of the kind that its cause waits for."""
    v, t, cause, static = at.visits, stage.end_us, stage.cause, run.policy.batching == "static"
    if t == v.gone[row]:
        return _ENDS[int(run.outcome[v.request[row]])][1]
    if math.isnan(out) and t >= at.grid[-1]:
        return "the run stopped"
    left = np.flatnonzero((v.left == t) & (v.request != v.request[row]))
    if static and cause != "batch filling":
        if len(left):
            return f"request {v.request[left[np.argmax(v.done[left])]]} ended its batch"
        return "a batch left" if (v.entered == t).any() else "the step ended"
    if static:
        came = np.flatnonzero(run.trace.arrival_us == t)
        return f"request {came[-1]} arrived" if len(came) else "the fill timeout ran out"
    if (cause == "slots full" or cause.startswith("not enough")) and len(left):
        return _how_it_left(run, at, int(left[0]))
    if cause.startswith("behind"):
        ahead = int(cause.split()[2].rstrip(","))
        if (v.entered[v.request == ahead] == t).any():
            return f"request {ahead} entered"
        if (v.gone[v.request == ahead] == t).any():
            return f"request {ahead} {_LEAVES[int(run.outcome[ahead])]}"
    ready = np.flatnonzero(v.ready == t)
    if cause == "budget spent" and len(ready):
        return f"the prompt of request {v.request[ready[0]]} was done"
    return "the step ended"


def _how_it_left(run: Run, at: Instants, row: int) -> str:
    v = at.visits
    who = int(v.request[row])
    if row + 1 < len(v.request) and v.request[row + 1] == who:
        return f"request {who} was preempted"
    return f"request {who} {_LEAVES[int(run.outcome[who])]}"
