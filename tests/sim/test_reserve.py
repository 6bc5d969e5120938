"""Reserved memory: the buddy allocator on pools that are no power of two, and what each baseline reserves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.kv.reserve import Buddy, blocks_needed, piece, power_of_two
from sim.policy import Memory, Policy, Reserve, orca_in_one_piece
from sim.trace import Trace


def pieces(blocks: int) -> list[tuple[int, int]]:
    """First block and size of the pieces that a fresh pool consists of: one for each 1 in binary, the largest first."""
    found, address = [], 0
    for digit, size in zip(f"{blocks:b}", (1 << k for k in reversed(range(len(f"{blocks:b}")))), strict=True):
        if digit == "1":
            found.append((address, size))
            address += size
    return found


def drained(buddy: Buddy) -> list[tuple[int, int]]:
    """The free pieces, the largest first, each by taking it."""
    found = []
    while size := buddy.largest:
        address = buddy.take(size)
        assert address is not None
        found.append((address, size))
    return found


@pytest.mark.parametrize(("count", "size"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (1_024, 1_024), (1_025, 2_048)])
def test_a_piece_is_the_next_power_of_two(count: int, size: int) -> None:
    assert piece(count) == size


def test_thirteen_blocks_are_pieces_of_8_4_and_1() -> None:
    # 13 = 1101 in binary: 8 at 0, 4 at 8, 1 at 12.
    assert drained(Buddy(13)) == [(0, 8), (8, 4), (12, 1)]


def test_splits_and_merges_on_thirteen_blocks() -> None:
    buddy = Buddy(13)
    assert buddy.take(3) == 8  # takes 4: the piece of 4 fits, the 8 stays whole
    assert buddy.take(1) == 12
    assert buddy.take(1) == 0  # the 8 is halved three times; left: 1 at 1, 2 at 2, 4 at 4
    assert buddy.free == 7
    assert buddy.take(2) == 2
    assert buddy.take(2) == 4  # the 4 is halved; left: 1 at 1, 2 at 6
    assert (buddy.free, buddy.largest) == (3, 2)
    assert buddy.take(3) is None  # 3 are free, but not in one piece
    assert buddy.free == 3

    buddy.give(0, 1)  # merges with 1: 2 at 0; its buddy at 2 is taken
    assert buddy.largest == 2
    buddy.give(2, 2)  # 4 at 0; its buddy at 4 is not whole
    assert buddy.largest == 4
    buddy.give(4, 2)  # with the 2 at 6: 4 at 4, with the 4 at 0: 8 at 0
    assert (buddy.free, buddy.largest) == (8, 8)
    buddy.give(12, 1)  # its buddy would be 13, which does not exist
    buddy.give(8, 3)  # gives back 4; with the 1 at 12 it makes no larger piece, nor with the 8 below it
    assert (buddy.free, buddy.largest) == (13, 8)
    assert drained(buddy) == [(0, 8), (8, 4), (12, 1)]


def test_neighbours_that_are_not_buddies_do_not_merge() -> None:
    buddy = Buddy(8)
    assert [buddy.take(2) for _ in range(4)] == [0, 2, 4, 6]
    buddy.give(2, 2)
    buddy.give(4, 2)  # 2 … 5 are free, but 2 belongs to 0 and 4 to 6
    assert (buddy.free, buddy.largest) == (4, 2)
    assert buddy.take(4) is None


def test_the_papers_pool_holds_seven_of_its_longest() -> None:
    # 15,700 = 8,192 + 4,096 + 2,048 + 1,024 + 256 + 64 + 16 + 4: 4 + 2 + 1 pieces of 2,048, the batch of 7.00 of Orca (Max) in
    # figure 13 of the PagedAttention paper. What is left, 1,364 slots, is 8.7 % of the pool, its 8.9 % of "external & others".
    buddy = Buddy(15_700)
    taken = [buddy.take(2_048) for _ in range(8)]
    assert taken[7] is None
    assert sorted(taken[:7]) == [2_048 * i for i in range(7)]  # type: ignore[type-var]
    assert (buddy.free, buddy.largest) == (1_364, 1_024)


@given(st.integers(1, 70), st.lists(st.tuples(st.booleans(), st.integers(1, 80)), max_size=60))
def test_pieces_never_overlap_and_merge_whenever_they_can(blocks: int, wishes: list[tuple[bool, int]]) -> None:
    buddy, owner, held = Buddy(blocks), [False] * blocks, list[tuple[int, int]]()
    for gives, number in wishes:
        if gives and held:
            address, count = held.pop(number % len(held))
            buddy.give(address, count)
            owner[address : address + piece(count)] = [False] * piece(count)
        else:
            # The largest stretch of 2^k free blocks at a multiple of 2^k within one of the first pieces.
            largest = max(
                (size for start, whole in pieces(blocks) for size in (1 << k for k in range(whole.bit_length()))
                 for at in range(start, start + whole, size) if not any(owner[at : at + size])),
                default=0,
            )
            assert buddy.largest == largest
            address_or_none = buddy.take(number)
            assert (address_or_none is None) == (piece(number) > largest)
            if address_or_none is not None:
                address, size = address_or_none, piece(number)
                assert address % size == 0 and address + size <= blocks
                assert not any(owner[address : address + size])
                owner[address : address + size] = [True] * size
                held.append((address, number))
        assert buddy.free == owner.count(False)
    for address, count in held:
        buddy.give(address, count)
    assert drained(buddy) == pieces(blocks)


# ---- what is reserved

TRACE = Trace([0, 0, 0, 0], [100, 7, 1_500, 2_000], [25, 1, 600, 100])


@pytest.mark.parametrize(
    ("reserve", "slots"),
    [
        ("maximum", [2_048, 2_048, 2_048, 2_048]),
        ("power", [132, 8, 2_048, 2_048]),  # 100 + 32 (the paper's example: 25 becomes 32), 7 + 1; 1,500 + 1,024 is cut
        ("output", [125, 8, 2_048, 2_048]),  # 1,500 + 600 would pass 2,048: the reply ends at 548; 2,000 + 48
    ],
)
def test_what_the_papers_baselines_reserve(reserve: Reserve, slots: list[int]) -> None:
    assert blocks_needed(TRACE, orca_in_one_piece(8, 15_700, 2_048, reserve)).tolist() == slots


def test_reservations_are_whole_blocks_and_paging_needs_what_its_tokens_fill() -> None:
    reserved = Policy("reserved", memory=Memory(1_000, 16, reserve="output"))
    assert blocks_needed(TRACE, reserved).tolist() == [8, 1, 132, 132]  # 125, 8, 2,100 and 2,100 tokens
    paged = Policy("paged", memory=Memory(1_000, 16))
    assert blocks_needed(TRACE, paged).tolist() == [8, 1, 132, 132]  # one token less each
    assert blocks_needed(Trace([0], [16], [1]), paged).tolist() == [1]  # the only output token has no KV
    assert blocks_needed(Trace([0], [16], [1]), reserved).tolist() == [2]


@pytest.mark.parametrize(("tokens", "power"), [(1, 1), (2, 2), (3, 4), (25, 32), (1 << 20, 1 << 20), ((1 << 20) + 1, 1 << 21)])
def test_powers_of_two_stay_as_they_are(tokens: int, power: int) -> None:
    assert power_of_two(np.array([tokens])).tolist() == [power]


@given(st.integers(0, 5), st.sampled_from(["power", "output"]))
def test_a_guess_that_is_off_reserves_too_much_but_never_too_little(seed: int, reserve: Reserve) -> None:
    n = 2_000
    trace = Trace(np.zeros(n), np.full(n, 10), np.full(n, 100))
    needed = blocks_needed(trace, orca_in_one_piece(8, 1 << 20, 1 << 19, reserve, noise=0.5, seed=seed))
    assert (needed >= 110).all()
    if reserve == "output":
        # The median of |z| of a standard normal is 0.6745: half of the guesses are above 100·exp(0.5·0.6745) = 140.1.
        assert np.median(needed - 10) == pytest.approx(140.1, abs=8)
