"""Samples and beams of one prompt: which blocks they share, worked by hand, in closed form and step by step."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.kv.sharing import Shared, Tables, beams, sample_blocks, samples


def test_two_samples_of_a_prompt_of_seven_by_hand() -> None:
    # Blocks of 4. The prompt fills block 0 and three places of block 1. The first sample to write shares block 1, so it
    # copies it to block 2; the second is alone in block 1 by then. Token 9 starts a block of its own for each: 3 and 4.
    shared = samples(prompt=7, output=3, n=2, block_size=4)
    assert shared.tables == [[0, 2, 3], [0, 1, 4]]
    assert shared.refs == {0: 2, 1: 1, 2: 1, 3: 1, 4: 1}
    assert (shared.blocks, shared.without, shared.copies) == (5, 6, 1)
    assert shared.saving == pytest.approx(1 / 6)


def test_a_prompt_that_ends_with_its_block_is_never_copied() -> None:
    shared = samples(prompt=8, output=2, n=3, block_size=4)
    assert shared.tables == [[0, 1, 2], [0, 1, 3], [0, 1, 4]]
    assert (shared.blocks, shared.without, shared.copies) == (5, 9, 0)


def test_one_output_token_needs_no_kv_so_all_share_the_whole_prompt() -> None:
    shared = samples(prompt=7, output=1, n=3, block_size=4)
    assert shared.tables == [[0, 1]] * 3
    assert (shared.refs, shared.without) == ({0: 3, 1: 3}, 6)


@given(prompt=st.integers(1, 60), output=st.integers(2, 60), n=st.integers(1, 7), size=st.sampled_from([1, 2, 3, 4, 16]))
def test_samples_in_closed_form(prompt: int, output: int, n: int, size: int) -> None:
    # The full blocks of the prompt are there once, all else once a sample; all but one sample copy a half-full last block.
    full, each = prompt // size, -(-(prompt + output - 1) // size)
    shared = samples(prompt, output, n, size)
    assert shared.blocks == shared.most == full + n * (each - full)
    assert shared.without == n * each
    assert shared.copies == (n - 1) * (prompt % size > 0)


@given(prompt=st.integers(1, 40), output=st.integers(1, 40), n=st.integers(1, 7), size=st.integers(1, 17))
def test_many_prompts_at_once_hold_what_each_holds(prompt: int, output: int, n: int, size: int) -> None:
    prompts, outputs = np.array([prompt, prompt + 1]), np.array([output, 1])
    expected = [samples(p, o, n, size).blocks for p, o in zip(prompts.tolist(), outputs.tolist(), strict=True)]
    assert sample_blocks(prompts, outputs, n, size).tolist() == expected


@given(prompt=st.integers(1, 20), n=st.integers(1, 5), size=st.integers(1, 5), data=st.data())
def test_a_block_counts_the_tables_that_have_it_and_in_the_end_none_is_left(
    prompt: int, n: int, size: int, data: st.DataObject
) -> None:
    tables = Tables(prompt, n, size)
    contents: list[list[object]] = [[("prompt", i) for i in range(prompt)] for _ in range(n)]  # what each sequence must read
    cells: dict[int, list[object]] = {}  # what each physical block holds
    for block, first in zip(tables.tables[0], range(0, prompt, size), strict=True):
        cells[block] = contents[0][first : first + size]
    for step in range(data.draw(st.integers(0, 12))):
        if data.draw(st.booleans()):
            parents = data.draw(st.lists(st.integers(0, n - 1), min_size=n, max_size=n))
            tables.fork(parents)
            contents = [list(contents[parent]) for parent in parents]
        else:
            before = [list(table) for table in tables.tables]
            tables.write()
            for i, (old, new) in enumerate(zip(before, tables.tables, strict=True)):
                if len(new) > len(old):
                    cells[new[-1]] = []
                elif new[-1] != old[-1]:
                    cells[new[-1]] = list(contents[i][(len(new) - 1) * size :])  # the copy
                contents[i].append((i, step))
            for i, table in enumerate(tables.tables):
                cells[table[-1]].append(contents[i][-1])
        assert tables.refs == Counter(block for table in tables.tables for block in table)
        for table, content in zip(tables.tables, contents, strict=True):
            assert [token for block in table for token in cells[block]] == content, "nobody writes into another's tokens"
    tables.free()
    assert tables.refs == {}


class Parents:
    """A generator that is given its draws."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = np.array(rows)

    def integers(self, low: int, high: int, shape: tuple[int, int]) -> np.ndarray:
        assert (low, high, self.rows.shape) == (0, self.rows.shape[1], shape)
        return self.rows


def beams_of(rows: list[list[int]], prompt: int, size: int) -> Shared:
    return beams(prompt, len(rows) + 1, len(rows[0]), size, Parents(rows))  # type: ignore[arg-type]


def test_two_beams_by_hand() -> None:
    # Blocks of 2, prompt 2: block 0. Token 3: each beam starts a block, 1 and 2. Both go on from beam 1: block 1 is free,
    # block 2 shared. Token 4: the first beam copies it, to the lowest free number, 1. Each goes on from itself. Token 5: 3, 4.
    shared = beams_of([[9, 9], [1, 1], [0, 1]], prompt=2, size=2)  # the first row is not used: all go on from the prompt
    assert shared.tables == [[0, 1, 3], [0, 2, 4]]
    assert (shared.blocks, shared.without, shared.copies, shared.most) == (5, 6, 1, 5)


def test_beams_that_all_go_on_from_one_share_all_but_their_last_block() -> None:
    # Prompt 4, blocks of 4, 9 decode steps, always from beam 0: 13 tokens are 4 blocks; the last one is everybody's own.
    shared = beams_of([[0, 0, 0]] * 9, prompt=4, size=4)
    assert [table[:3] for table in shared.tables] == [shared.tables[0][:3]] * 3
    assert (shared.blocks, shared.without) == (3 + 3, 12)


def test_beams_that_never_fork_hold_what_samples_hold() -> None:
    ours, theirs = beams_of([[0, 1, 2]] * 20, prompt=7, size=4), samples(7, 21, 3, 4)
    assert (ours.tables, ours.copies) == (theirs.tables, theirs.copies)


def test_two_beams_share_a_full_block_with_the_chance_of_a_common_parent() -> None:
    # Blocks of 1: a token written s steps ago is one block if the beams have had a common parent since: each step with
    # chance 1/2. After 5 decode steps: the prompt 1 block, the tokens 2 − (1 − 2^−s) for s = 4 … 0: expected 1 + 5 + 31/16.
    rng = np.random.default_rng(0)
    held = [beams(1, 6, 2, 1, rng).blocks for _ in range(4000)]
    assert np.mean(held) == pytest.approx(1 + 5 + 31 / 16, abs=4 * np.std(held) / 4000**0.5)


def test_one_beam_shares_nothing() -> None:
    assert beams(10, 30, 1, 4, np.random.default_rng(1)).saving == 0


@pytest.mark.parametrize("bad", [{"prompt": 0}, {"output": 0}, {"n": 0}, {"block_size": 0}])
def test_what_is_less_than_one_is_refused_by_name(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(bad))} must be at least 1"):
        samples(**{"prompt": 3, "output": 3, "n": 2, "block_size": 4, **bad})
