"""Stays: each time a request held memory, from which step to which, and how its tokens grew, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.orders import outputs
from sim.policy import Memory, Policy
from sim.run import LEFT, Floats, Ints, Run
from sim.slots import Instants


@dataclass(frozen=True)
class Stays:
    """Each time a request held memory, and how its tokens grow: prompts row by row, decodes by one at each decode step.

    request             who
    enter, leave        it holds memory in the step rows enter ≤ row < leave
    ready, exit         it decodes in the rows ready ≤ row < exit, and has offset + begun[…][row] tokens
    left_us             when it gave up its memory, µs; inf: it has not
    kept                its tokens when it entered: found in the prefix cache, or swapped in
    known, end          its tokens before its first decode step, and from `exit` on
    final               its final length
    stay, row, tokens   of each row before `ready`: whose, which, and the tokens after its first and its last step
    begun               of each step row: decode steps begun by its first and by its last step
    """

    request: Ints
    enter: Ints
    ready: Ints
    exit: Ints
    leave: Ints
    left_us: Floats
    kept: Ints
    known: Ints
    end: Ints
    offset: Ints
    final: Ints
    stay: Ints
    row: Ints
    tokens: tuple[Ints, Ints]
    begun: tuple[Ints, Ints]


def limited(run: Run) -> Memory:
    """The memory of a run; ValueError if it has no limit."""
    if run.policy.memory is None:
        raise ValueError(f"policy {run.policy.name!r} has memory without limit; there is no pool to split")
    return run.policy.memory


def stays_of(run: Run, at: Instants) -> Stays:
    """The stays of a run, in the order of admission. ValueError as `sim.kv.occupancy.occupancy`."""
    v, clock, steps = at.visits, at.clock, run.steps
    entered = ~np.isnan(v.entered)
    computed, most = _computed(run, v.request)
    final = run.trace.prompt + outputs(run.trace, run.policy) - 1
    final = np.where(np.isin(run.outcome, LEFT), most, final)
    order = np.lexsort((v.rank, v.entered))[: int(entered.sum())]  # in which tokens are granted
    request, kept, known, computed = v.request[order], v.kept[order], v.known[order], computed[order]
    start, rows = clock.start, len(clock.start)
    enter = np.searchsorted(start, v.entered[order], side="right") - 1
    exits = np.searchsorted(start, v.done[order])  # nan: after the last row
    leave = np.searchsorted(start, v.left[order])
    ready = np.minimum(np.where(np.isnan(v.ready[order]), exits, np.searchsorted(start, v.ready[order])), exits)
    decoded = np.concatenate([[0], np.cumsum(steps.count * (steps.decode > 0))])
    begun = (decoded[:-1] + (steps.decode > 0), decoded[1:])
    odd = _odd(run.policy)
    if odd:
        ready = exits
    stay, row = spans(enter, ready)
    if odd:
        tokens = _from_grants(run, request[stay], stay, row, kept[stay])
    else:
        goal = np.where(np.isnan(v.ready[order]) & (computed >= 0), computed, known)
        tokens = _in_line(steps.prefill, steps.count, goal - kept, kept, stay, row)
    offset = known - decoded[ready.clip(0, rows)]
    end = offset + decoded[exits]
    last = np.append(stay[1:] != stay[:-1], True)[: len(stay)] & (exits == ready)[stay]
    end[stay[last]] = tokens[1][last]
    left_us = np.where(np.isnan(v.left[order]), np.inf, v.left[order])
    return Stays(request, enter, ready, exits, leave, left_us, kept, known, end, offset, final[request], stay, row, tokens, begun)


def _odd(policy: Policy) -> bool:
    """Whether more than one prompt may be half done, or a decoding request may get nothing in a step that has decodes."""
    if policy.batching == "static":
        return False
    few = policy.budget is not None and policy.slots > policy.budget and policy.prompts == "alone"
    return policy.chunk_cap > 0 or policy.prefill_every > 1 or few


def _computed(run: Run, request: Ints) -> tuple[Ints, Ints]:
    """Tokens that each row of the visits had when it was taken away, −1 if it was not; the most that each request lost."""
    computed, most = np.full(len(request), -1, np.int64), np.zeros(len(run), np.int64)
    row = np.searchsorted(request, np.arange(len(run))).tolist()
    for event in run.events:
        if event.kind in ("preempted", "cancelled"):
            computed[row[event.request]] = event.tokens
            row[event.request] += 1
            most[event.request] = max(int(most[event.request]), event.tokens)
    return computed, most


def spans(first: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Index and number of every whole number in the spans first ≤ number < end."""
    length = np.maximum(end - first, 0)
    which = np.repeat(np.arange(len(first)), length)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(length) - length - first, length)


def _in_line(prefill: Ints, count: Ints, need: Ints, kept: Ints, stay: Ints, row: Ints) -> tuple[Ints, Ints]:
    """Tokens after the first and the last step of a row, of prompts that are computed one after the other."""
    before = np.cumsum(need) - need
    line = np.concatenate([[0], np.cumsum(prefill * count)])
    first = kept[stay] + (line[row] + prefill[row] - before[stay]).clip(0, need[stay])
    return first, kept[stay] + (line[row + 1] - before[stay]).clip(0, need[stay])


def _from_grants(run: Run, request: Ints, stay: Ints, row: Ints, kept: Ints) -> tuple[Ints, Ints]:
    """The same for any prompts and decodes, from who was granted what."""
    if run.grants is None:
        raise ValueError("who got which tokens does not follow from the policy: simulate with record_grants=True")
    flat = [(r, i, tokens) for r, grants in enumerate(run.grants) for i, tokens in grants]
    rows, who, granted = np.array(flat, np.int64).reshape(-1, 3).T
    order = np.argsort(rows * len(run) + who)
    keys = np.append((rows * len(run) + who)[order], -1)
    place = np.searchsorted(keys[:-1], row * len(run) + request)
    grant = np.where(keys[place] == row * len(run) + request, np.append(granted[order], 0)[place], 0)
    total = np.cumsum(grant * run.steps.count[row])
    begin = np.searchsorted(stay, stay)
    last = kept + total - np.concatenate([[0], total])[begin]
    return last - grant * (run.steps.count[row] - 1), last


def running(start_us: Floats, count: Ints, first_us: Floats, growth_us: Floats, t_us: float) -> tuple[int, int, float]:
    """The row that starts last by t, −1 if none; which of its steps runs then, and for how long (µs)."""
    row = int(np.searchsorted(start_us, t_us, side="right")) - 1
    if row < 0:
        return -1, 0, 0.0
    first, growth, since, last = float(first_us[row]), float(growth_us[row]), t_us - float(start_us[row]), int(count[row]) - 1
    b = first - growth / 2
    step = int(min(2 * since / max(b + max(b * b + 2 * growth * since, 0.0) ** 0.5, 1e-300), last))
    # The root may be off by rounding: one step more or less.
    if step < last and after(step + 1, first, growth) <= since:
        step += 1
    if step and after(step, first, growth) > since:
        step -= 1
    return row, step, since - after(step, first, growth)


def after(i: int, first: float, growth: float) -> float:
    """How long the first i steps of a row take, µs."""
    return i * first + growth * (i * (i - 1) / 2)
