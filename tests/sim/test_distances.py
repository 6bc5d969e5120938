"""Hit rates of every cache size: worked by hand, against a plain LRU cache, and against the engine's prefix cache."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine import simulate
from sim.hardware import GPUS, MODELS
from sim.kv.distances import NEVER, Blocks, blocks, curve, hit_tokens, needed
from sim.policy import Memory, vllm
from sim.service import Service
from sim.trace import Content, Trace
from sim.workloads import lognormal, poisson, sessions, think_times


def made(*requests: list[int]) -> Blocks:
    """Blocks of one token, by their keys."""
    keys = np.array([key for request in requests for key in request], np.int64)
    return Blocks(keys, np.cumsum([0, *map(len, requests)]), np.ones_like(keys))


def plain_lru(requests: list[list[int]], size: int) -> list[int]:
    """Blocks found from each request's start in a cache of so many blocks, used one by one, the last one first."""
    cache: OrderedDict[int, None] = OrderedDict()
    found = []
    for request in requests:
        found.append(next((j for j, key in enumerate(request) if key not in cache), len(request)))
        for key in reversed(request):
            cache[key] = None
            cache.move_to_end(key)
            if len(cache) > size:
                cache.popitem(last=False)
    return found


# ------------------------------------------------------------------------------------------------------ by hand

def test_distances_by_hand() -> None:
    # Used in turn: 2 1 0 | 3 0 | 4 1 0 | 2 1 0. Request 1 finds 0, used last: 1. Request 2 finds 0 behind only 0 itself: 1;
    # 1 behind 0 and 3, itself the third: 3. Request 3 finds 0: 1; 1: 2; 2 behind 0, 1, 4 and 3, itself the fifth: 5.
    found = made([0, 1, 2], [0, 3], [0, 1, 4], [0, 1, 2])
    size = needed(found)
    assert size.tolist() == [NEVER] * 3 + [1, NEVER] + [1, 3, NEVER] + [1, 2, 5]
    assert hit_tokens(size, found.tokens, [0, 1, 2, 3, 4, 5, 10**9]).tolist() == [0, 3, 4, 5, 5, 6, 6]


def test_a_block_is_not_found_without_those_before_it() -> None:
    # 7 is the block used last but one, but the request's first block, 9, was never there; then 9 is, four blocks back.
    found = made([8, 7], [9, 7], [1, 2, 3], [9, 7])
    assert needed(found).tolist() == [NEVER] * 4 + [NEVER] * 3 + [4, 5]


def test_replicas_know_nothing_of_each_other() -> None:
    found = made([0, 1], [0, 1], [0, 2], [0, 1])
    assert needed(found, [0, 1, 0, 1]).tolist() == [NEVER] * 4 + [1, NEVER] + [1, 2]
    assert needed(found, [5, 5, 5, 5]).tolist() == needed(found).tolist() == [NEVER] * 2 + [1, 2] + [1, NEVER] + [1, 3]


def test_a_key_twice_in_a_request_is_refused() -> None:
    with pytest.raises(ValueError, match="one key twice"):
        needed(made([0, 1], [2, 3, 2]))


def test_blocks_of_a_conversation_by_hand() -> None:
    # Blocks of 4. Request 0: 10 prompt tokens of streams 1 (6) and 2 (4), 7 of reply: 16 of the 17 are ever computed, four
    # blocks; tokens 0 to 8 may be found, two blocks. Request 1 quotes all of it and asks 3 more: 20 prompt tokens, of
    # which 19 may be found, four blocks, and 20 + 1 − 1 computed, five blocks.
    content = Content.of([[(1, 0, 6), (2, 0, 4)], [(1, 0, 6), (2, 0, 4), (3, 0, 7), (4, 0, 3)]], [3, 5])
    trace = Trace([0, 1], [10, 20], [7, 1], content=content)
    found = blocks(trace, 4)
    assert found.first.tolist() == [0, 4, 9] and found.tokens.tolist() == [4, 4, 0, 0] + [4, 4, 4, 4, 0]
    assert found.key[:4].tolist() == found.key[4:8].tolist() and len(np.unique(found.key)) == 5
    sizes, rates = curve(trace, 4)
    # Request 0 leaves its four blocks, the first used last: caches of 1 to 4 blocks find as many.
    assert sizes.tolist() == [0, 1, 2, 3, 4] and rates == pytest.approx([0, 4 / 30, 8 / 30, 12 / 30, 16 / 30])
    assert blocks(trace, 4, replies=False).first.tolist() == [0, 2, 7]


def test_the_last_block_of_a_prompt_counts_where_numbers_stand_for_blocks() -> None:
    # Numbers of 4-token blocks: [0, 1, 2] with 10 tokens, then [0, 1, 2] with 10 again: all 10 are found in 3 blocks.
    content = Content.of([[(0, 0, 10)], [(0, 0, 10)]], [-1, -2])
    found = blocks(Trace([0, 1], [10, 10], [5, 5], content=content), 4, replies=False, partial=True)
    assert found.tokens.tolist() == [4, 4, 2] * 2
    assert hit_tokens(needed(found), found.tokens, [1, 2, 3]).tolist() == [4, 8, 10]


def test_without_content_nothing_is_found() -> None:
    sizes, rates = curve(Trace([0, 1], [100, 100], [5, 5]), 16)
    assert (sizes.tolist(), rates.tolist()) == ([0], [0])


# ---------------------------------------------------------------------------------------------- any requests

some = st.lists(st.lists(st.integers(0, 30), unique=True, max_size=8), min_size=1, max_size=30)


@given(some, st.lists(st.integers(0, 3), min_size=30, max_size=30))
def test_every_size_finds_what_a_plain_lru_cache_finds(requests: list[list[int]], where: list[int]) -> None:
    found, replica = made(*requests), np.array(where[:len(requests)])
    one, fleet = needed(found), needed(found, replica)
    for size in (1, 2, 3, 5, 8, 13, 21, 31):
        hits = np.add.reduceat(np.append(one <= size, 0), found.first[:-1]) * (np.diff(found.first) > 0)
        assert hits.tolist() == plain_lru(requests, size)
        assert hit_tokens(one, found.tokens, [size])[0] == hits.sum()
        alone = sum(sum(plain_lru([r for r, w in zip(requests, where, strict=False) if w == k], size)) for k in range(4))
        assert hit_tokens(fleet, found.tokens, [size])[0] == alone


@given(some)
def test_a_larger_cache_finds_no_less(requests: list[list[int]]) -> None:
    found = made(*requests)
    rates = hit_tokens(needed(found), found.tokens, np.arange(40))
    assert rates[0] == 0 and (np.diff(rates) >= 0).all()
    assert rates[-1] == sum(plain_lru(requests, 1000))  # all that was there before at all


# --------------------------------------------------------------------------------------- the engine's own cache

def one_at_a_time(seed: int) -> Trace:
    """Sessions, each request over when the next one comes, whose prompts and computed replies fill their blocks of 16."""
    n = 60
    question, answer = 16 * lognormal(n, 3, 0.5, seed, of="prompt"), 16 * lognormal(n, 2, 0.5, seed) + 1
    question[np.arange(n) % 3 > 0] -= 1  # the last token of the reply before is computed in the turn that quotes it
    found = sessions(poisson(20, 1, seed), 3, [64, 32], 1, question, answer, think_times(n, 5, seed), 0.01, seed)
    return Trace(np.arange(n) * 1000.0, found.prompt, found.output, content=found.content)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("cache", [40, 60, 90, 150, 300, 100_000])
def test_the_engine_finds_in_its_cache_what_distances_say(cache: int, seed: int) -> None:
    trace = one_at_a_time(seed)
    assert not (trace.prompt % 16).any() and not ((trace.prompt + trace.output - 1) % 16).any()
    run = simulate(trace, Service(MODELS["Llama-3-8B"], GPUS["A100-80G"]), vllm(8, 512, Memory(cache, 16, True)))
    found = blocks(trace, 16)
    tokens = np.where(needed(found) <= cache, found.tokens, 0)
    assert run.cached.tolist() == np.add.reduceat(np.append(tokens, 0), found.first[:-1]).tolist()
