"""Who got which block where all free blocks are alike: the free list is a queue, so nothing need be played step by step."""

from __future__ import annotations

import math

import numpy as np

from sim.kv.stays import Stays, limited, spans
from sim.policy import Policy
from sim.run import Event, Floats, Ints, Run

Columns = tuple[Ints, Ints, Ints, Ints, Floats, Floats]


def is_queue(policy: Policy) -> bool:
    """Whether `taken` has the blocks of its runs: paged memory without prefix cache, first come, first served."""
    memory = policy.memory
    plain = memory is not None and memory.reserve == "nothing" and not memory.prefix_cache and policy.batching == "continuous"
    return plain and policy.order == "fcfs" and policy.victim == "last"


def taken(run: Run, stays: Stays, start_us: Floats, until_us: float = math.inf) -> Columns:
    """The columns of sim.kv.holdings.Holdings, from the start of each step row (µs), up to the row that starts last by then.

    Blocks are taken from the front of the free list and come back to its end. So the n-th block that is ever taken is the n-th
    that ever came into the list: first those of the memory, in order, then those given back, in turn.
    """
    memory, steps = limited(run), run.steps
    size, rows = memory.block_size, int(np.searchsorted(start_us, until_us, side="right"))
    stay, place, row, step = _blocks(run, stays, size)
    order = np.argsort((np.cumsum(steps.count) - steps.count)[row] + step, kind="stable")  # then who came in first, then place
    order = order[row[order] < rows]
    number = np.full(len(stay), -1, np.int64)
    number[order] = np.arange(len(order))
    gone = _in_order_of_leaving(run, stays, start_us, rows)
    first = np.searchsorted(stay, np.arange(len(stays.request) + 1))
    _, back = spans(1 - first[gone + 1], 1 - first[gone])  # from the last block of each to its first
    came = np.concatenate([np.arange(memory.blocks), number[-back]])  # given back: the how manieth it was when it was taken
    while len(came) and came.max() >= memory.blocks:
        came = came[came]
    block = came[: len(order)]
    start = start_us[row[order]] + step[order] * steps.first_us[row[order]] \
        + steps.growth_us[row[order]] * (step[order] * (step[order] - 1) / 2)
    end = np.full(len(stays.request), np.inf)
    end[gone] = stays.left_us[gone]
    who, where = stay[order], place[order]
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(who) != 0) | (np.diff(block) != 1) | (np.diff(start) != 0)
    left = np.flatnonzero(new)
    length = np.diff(np.append(left, len(order)))
    held = start[left] < end[who[left]]
    left, length = left[held], length[held]
    return block[left], length, stays.request[who[left]], where[left], start[left], end[who[left]]


def _blocks(run: Run, stays: Stays, size: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Every block that is taken: by which stay, its place in the block table, and in which step of which row."""
    steps = run.steps
    before = np.where(stays.exit > stays.ready, stays.known, stays.end)  # tokens before the first decode step
    prompt, all_ = -(-before // size), -(-stays.end // size)
    stay, place = spans(np.zeros_like(all_), all_)
    row, step = np.zeros_like(stay), np.zeros_like(stay)
    offset = np.cumsum(all_) - all_
    # Prompts: in each row up to its first step, then evenly up to its last.
    a, b = stays.tokens
    same = np.append(False, stays.stay[1:] == stays.stay[:-1])[: len(stays.stay)]
    held = np.where(same, -(-np.append(0, b[:-1])[: len(b)] // size), 0)
    entry, j = spans(held, -(-b // size))
    each = np.maximum((b - a) // np.maximum(steps.count[stays.row] - 1, 1), 1)[entry]
    at = offset[stays.stay[entry]] + j
    row[at] = stays.row[entry]
    step[at] = np.maximum(-(-(j * size + 1 - a[entry]) // each), 0)
    # Decodes: one token at each decode step of the run.
    s, j = spans(prompt, all_)
    nth = j * size + 1 - stays.offset[s]
    at, r = offset[s] + j, np.searchsorted(stays.begun[1], nth)
    row[at], step[at] = r, nth - stays.begun[0][r]
    return stay, place, row, step


def _in_order_of_leaving(run: Run, stays: Stays, start_us: Floats, rows: int) -> Ints:
    """The stays that end before that row is played, in the order in which they give their blocks back.

    At each row those who gave up, as noticed, then who had ended, as admitted, then the preempted, one after the other.
    """
    cancelled = [event.request for event in run.events if event.kind == "cancelled"]
    rank = np.full(len(run), len(cancelled), np.int64)
    rank[cancelled] = np.arange(len(cancelled))
    rank = rank[stays.request]
    lost: list[Event] = [event for event in run.events if event.kind == "preempted"]
    if lost:
        when = np.searchsorted(start_us, [event.at_us for event in lost])
        keys = when * len(run) + np.array([event.request for event in lost])
        turn = np.argsort(keys, kind="stable")
        mine = stays.leave * len(run) + stays.request
        found = np.searchsorted(keys[turn], mine).clip(0, len(lost) - 1)
        preempted = keys[turn][found] == mine
        rank = np.where(preempted, len(cancelled) + 1 + turn[found], rank)
    else:
        preempted = np.zeros(len(rank), bool)
    gone = np.flatnonzero(np.isfinite(stays.left_us) & (stays.leave < rows + ~preempted))
    return gone[np.lexsort((gone, rank[gone], stays.leave[gone]))]
