"""Block tables: who holds which physical blocks, on paper and against the rules taken word by word."""

from __future__ import annotations

from dataclasses import fields, replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.engine import simulate
from sim.kv import fifo
from sim.kv.holdings import Holdings, holdings
from sim.kv.occupancy import occupancy, tokens_at
from sim.policy import Policy, continuous, orca, orca_in_one_piece
from sim.run import Run
from sim.service import Affine, StepTime
from sim.trace import Content, Trace
from tests.sim import plain_paged
from tests.sim.cases import starved
from tests.sim.test_memory import cases as vllm_cases
from tests.sim.test_occupancy import FOUR, SECOND, in_one_piece, middles, paged, served, worlds

Row = tuple[int, int, int, int, float, float]


def rows(held: Holdings) -> list[Row]:
    """First block, blocks, request, place in its table, start and end in s."""
    columns = held.first, held.length, held.request, held.logical, held.start_us / 1e6, held.end_us / 1e6
    return sorted(zip(*[column.tolist() for column in columns], strict=True), key=lambda row: (row[4], row[2], row[3]))


def tables(held: Holdings) -> dict[int, list[int]]:
    """Request → its physical blocks in logical order; every place must be filled exactly once."""
    found: dict[int, dict[int, int]] = {}
    for first, length, request, logical, _, _ in rows(held):
        for k in range(length):
            assert logical + k not in found.setdefault(request, {})
            found[request][logical + k] = first + k
    assert all(sorted(table) == list(range(len(table))) for table in found.values())
    return {request: [table[place] for place in range(len(table))] for request, table in found.items()}


def of(trace: Trace, policy: Policy) -> list[Row]:
    return rows(holdings(simulate(trace, SECOND, policy, record_grants=True)))


# ---- on paper


def test_on_paper_pieces_of_a_buddy_allocator() -> None:
    # 29 slots are pieces of 16 at 0, 8 at 16, 4 at 24, 1 at 28. Each request needs 8: the first takes the 8; the second halves
    # the 16 and takes its front, the third its back. The second ends after two seconds and the fourth takes its place.
    assert of(FOUR, in_one_piece("maximum")) == [
        (16, 8, 0, 0, 0, 3), (0, 8, 1, 0, 0, 2), (8, 8, 2, 0, 0, 3), (0, 8, 3, 0, 2, 7),
    ]
    # 7, 4, 8, 8 slots: the second fits the 4. The piece of the first has 8.
    assert of(FOUR, in_one_piece("power")) == [(16, 8, 0, 0, 0, 3), (24, 4, 1, 0, 0, 2), (0, 8, 2, 0, 0, 3), (8, 8, 3, 0, 0, 5)]


def test_on_paper_pages_are_taken_from_the_front_and_come_back_at_the_end_last_one_first() -> None:
    # Seven blocks of 4. Second 2: the third request (5 tokens) takes block 4. Second 3: the second has ended, and the list is
    # 5, 6, 1; the first takes 5. First (0, 5) and third (2, 4) end: 6, 1, 5, 0, 4, 2. Second 5: the fourth (5 tokens) takes 6.
    assert of(FOUR, paged(7)) == [
        (0, 1, 0, 0, 0, 3), (1, 1, 1, 0, 0, 2), (2, 1, 2, 0, 0, 3), (3, 1, 3, 0, 0, 5),
        (4, 1, 2, 1, 1, 3), (5, 1, 0, 1, 2, 3), (6, 1, 3, 1, 4, 5),
    ]


def test_on_paper_the_blocks_of_a_preempted_request_go_to_who_needed_one() -> None:
    # Four blocks of 4, as in test_occupancy: the fourth gives block 3 to the third, and is back when the others have ended.
    # Then the list is, from the front: of the first (0, 1) 1 and 0, of the third (2, 3) 3 and 2.
    assert of(FOUR, paged(4)) == [
        (0, 1, 0, 0, 0, 3), (1, 1, 1, 0, 0, 2), (2, 1, 2, 0, 0, 3), (3, 1, 3, 0, 0, 1),
        (3, 1, 2, 1, 1, 3), (1, 1, 0, 1, 2, 3), (1, 1, 3, 0, 3, 7), (0, 1, 3, 1, 6, 7),
    ]


def test_on_paper_neighbours_that_come_and_go_together_are_one_row() -> None:
    # 9 tokens of a prompt in blocks of 4 take 0 to 2; 5 more take 3 and 4. When the first has ended, the list is 5, 2, 1, 0:
    # the last one, who came later, gets these four one by one as they are no neighbours in this order.
    trace = Trace([0, 0, 0.5], [9, 5, 16], [1, 3, 1])
    assert of(trace, paged(6)) == [(0, 3, 0, 0, 0, 1), (3, 2, 1, 0, 0, 3), (5, 1, 2, 0, 1, 2), (2, 1, 2, 1, 1, 2),
                                   (1, 1, 2, 2, 1, 2), (0, 1, 2, 3, 1, 2)]


def test_on_paper_a_shared_prefix_has_two_holders() -> None:
    # Both prompts start with the same 8 tokens, blocks 0 and 1, which the first computes; then each has its own: 2 and 3.
    content = Content.of([[(1, 0, 8), (10, 0, 1)], [(1, 0, 8), (11, 0, 2)]], [20, 21])
    trace = Trace([0, 0], [9, 10], [2, 3], content=content)
    run = simulate(trace, SECOND, paged(9, prefix_cache=True), record_grants=True)
    held = holdings(run)
    assert rows(held) == [(0, 3, 0, 0, 0, 2), (0, 2, 1, 0, 0, 3), (3, 1, 1, 2, 0, 3)]
    assert tables(held.at(5e5)) == {0: [0, 1, 2], 1: [0, 1, 3]}
    assert tables(held.at(2.5e6)) == {1: [0, 1, 3]}
    assert rows(held.of(1)) == [(0, 2, 1, 0, 0, 3), (3, 1, 1, 2, 0, 3)]


def test_on_paper_with_a_prefix_cache_what_remembers_nothing_is_taken_first() -> None:
    # Five blocks of 4. The first request's 9 tokens fill 0 and 1, and a quarter of 2. Of these 2 goes to the front of the list,
    # 1 and then 0 to its back: 2, 3, 4, 1, 0. The next takes 2, 3, 4; the third quotes the 4 first tokens, block 0, and needs a
    # second one: 1, which forgets.
    content = Content.of([[(1, 0, 9)], [(2, 0, 12)], [(1, 0, 4), (3, 0, 1)]], [20, 21, 22])
    trace = Trace([0, 1, 1], [9, 12, 5], [1, 1, 1], content=content)
    assert of(trace, paged(5, prefix_cache=True)) == [
        (0, 3, 0, 0, 0, 1), (2, 3, 1, 0, 1, 2), (0, 1, 2, 0, 1, 2), (1, 1, 2, 1, 1, 2),
    ]


def test_on_paper_reserved_blocks_need_not_lie_together() -> None:
    # Orca with blocks of 4 and at most 8 tokens: two each. The second ends first and leaves 6, 3, 2: the fourth has 6 and 3.
    assert of(FOUR, orca(9, 7, 8, 4)) == [
        (0, 2, 0, 0, 0, 3), (2, 2, 1, 0, 0, 2), (4, 2, 2, 0, 0, 3), (6, 1, 3, 0, 2, 7), (3, 1, 3, 1, 2, 7),
    ]


def test_what_cannot_be_told_is_refused() -> None:
    with pytest.raises(ValueError, match="memory without limit"):
        holdings(simulate(FOUR, SECOND, continuous(4)))
    with pytest.raises(ValueError, match="record_grants"):
        holdings(simulate(FOUR, SECOND, replace(paged(7), order="shortest")))
    assert len(holdings(simulate(FOUR, SECOND, paged(7)))) == 7  # in turn: it follows from the rest
    assert len(holdings(simulate(FOUR, SECOND, orca_in_one_piece(9, 29, 8, "output")))) == 4  # reserved: it follows anyway


def test_nobody_ever_came_in() -> None:
    assert of(Trace([0], [100], [5]), paged(2)) == []  # refused: it can never fit
    assert of(Trace([0], [100], [5]), in_one_piece("output")) == []


# ---- against the rules


def check_free(run: Run) -> Holdings:
    """In the last step of every row as many blocks are free as the run says, without a cache nobody shares one, and what lies
    in the blocks is what the occupancy says."""
    memory, held, parts = run.policy.memory, holdings(run), occupancy(run)
    assert memory is not None
    assert (held.start_us < held.end_us).all() and (held.length > 0).all()
    for row in range(len(run.steps.count)):
        if run.steps.first_us[row] > 0:
            t = middles(run, row)[-1]
            table_of, tokens = tables(held.at(t)), tokens_at(run, t)
            blocks = [block for table in table_of.values() for block in table]
            filled = dict.fromkeys(blocks, 0)
            for request, table in table_of.items():
                for place, block in enumerate(table):
                    there = int(np.clip(tokens[request] - place * memory.block_size, 0, memory.block_size))
                    filled[block] = max(filled[block], there)
            assert sum(filled.values()) == pytest.approx(parts.at(t)["tokens"], abs=1e-6)
            assert not blocks or 0 <= min(blocks) <= max(blocks) < memory.blocks
            assert memory.blocks - len(set(blocks)) == run.steps.free[row]
            assert memory.prefix_cache or len(set(blocks)) == len(blocks)
    return held


@given(worlds())
def test_free_blocks_are_those_of_the_run_under_every_policy(world: tuple[Trace, StepTime, Policy, dict[int, float]]) -> None:
    run = served(*world)
    held = check_free(run)
    if not run.stopped:
        assert np.isfinite(held.end_us).all()
        assert set(held.request.tolist()) == set(np.flatnonzero(~np.isnan(run.admitted_us)).tolist())


class Watched(plain_paged.Server):
    """The rules taken word by word, with the blocks numbered and every request's blocks noted at each step."""

    def __init__(self, policy: Policy, requests: list[plain_paged.Request]) -> None:
        super().__init__(policy, requests)
        self.number = {block: k for k, block in enumerate(self.free)}
        self.tables: list[dict[int, list[int]]] = []

    def release(self, r: plain_paged.Request) -> None:
        if self.memory.prefix_cache:
            super().release(r)
        else:  # nothing is remembered, and all go to the back
            self.free += reversed(r.blocks)
            r.blocks = []

    def schedule(self, now: float) -> list[tuple[plain_paged.Request, int]]:
        grants = super().schedule(now)
        if grants:
            self.tables.append({r.index: [self.number[block] for block in r.blocks] for r in self.running if r.blocks})
        return grants


@given(vllm_cases() | starved())
def test_every_block_table_is_that_of_the_rules_taken_word_by_word(case: tuple[Trace, Affine, Policy]) -> None:
    trace, clock, policy = case
    run = served(*case)
    held = check_free(run)
    with patch.object(plain_paged, "Server", Watched):
        theirs = plain_paged.serve(trace, clock, policy, most=2_000)
    assert isinstance(theirs, Watched)
    steps = [t for row in range(len(run.steps.count)) if run.steps.first_us[row] > 0 for t in middles(run, row)]
    if not run.stopped:
        assert len(steps) == len(theirs.tables)
    for t, table in zip(steps, theirs.tables, strict=False):
        assert tables(held.at(t)) == table, t


@given(worlds() | vllm_cases().map(lambda case: (*case, {})), st.floats(0, 1.2))
def test_a_free_list_that_is_a_queue_need_not_be_played(
    world: tuple[Trace, StepTime, Policy, dict[int, float]], at: float,
) -> None:
    run = served(*world)
    assume(fifo.is_queue(run.policy))
    for until in (np.inf, at * float(run.steps.end_us[-1]) if len(run.steps.count) else 0.0):
        told = holdings(run, until)
        with patch.object(fifo, "is_queue", lambda _: False):
            played = holdings(run, until)
        for column in fields(Holdings):
            assert np.array_equal(getattr(told, column.name), getattr(played, column.name)), column.name
