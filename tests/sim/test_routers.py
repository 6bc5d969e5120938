"""Each router's rule, decided by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from sim import routers
from sim.kv.match import Index
from sim.kv.tree import Tree, common
from sim.routers import ROUTERS, Arrival, Ring, mixed


def arrival(load: list[int], match: list[int] | None = None, *, session: int | None = None, prompt: int = 160, size: int = 16,
            content: tuple[int, ...] | str = (), waiting: list[int] | None = None, usage: list[float] | None = None,
            prefill: list[int] | None = None, active: list[int] | None = None) -> Arrival:
    """A request of ten blocks of 16 tokens, unless said otherwise."""
    none = [0] * len(load)
    return Arrival(0.0, session, prompt, load, prefill or none, active or none, waiting or none, usage or [0.0] * len(load), size,
                   lambda: match or none, lambda: content)


def test_round_robin_takes_turns_and_a_newcomer_gets_its_turn() -> None:
    decide = routers.round_robin()
    assert [decide(arrival([9, 0, 0])) for _ in range(4)] == [0, 1, 2, 0]
    assert [decide(arrival([0, 0, 0, 0])) for _ in range(4)] == [0, 1, 2, 3]  # the fifth request, 4 mod 4


def test_random_draws_all_alike_and_repeats_with_its_seed() -> None:
    one, same = (routers.random(seed=3) for _ in range(2))
    drawn = [one(arrival([0] * 4)) for _ in range(4000)]
    assert drawn == [same(arrival([5, 0, 0, 0])) for _ in range(4000)]
    assert all(abs(count - 1000) < 4 * 27.4 for count in Counter(drawn).values())  # √(4000 · ¼ · ¾) = 27.4


def test_least_loaded_takes_the_first_of_equals() -> None:
    assert routers.least_loaded()(arrival([3, 1, 2, 1])) == 1


def test_power_of_two_never_takes_the_most_loaded_and_takes_the_least_loaded_in_half_the_draws() -> None:
    decide = routers.power_of_two(seed=1)
    drawn = Counter(decide(arrival([2, 7, 0, 1])) for _ in range(6000))
    # Of the six pairs, three hold replica 2, two of the others replica 3, and one is left for replica 0.
    assert drawn[1] == 0
    assert [round(drawn[i] / 1000) for i in (2, 3, 0)] == [3, 2, 1]
    assert routers.power_of_two()(arrival([4])) == 0


def test_session_hash_is_the_hash_modulo_the_replicas() -> None:
    decide = routers.session_hash(hashed=lambda session: session)
    assert [decide(arrival([0] * 4, session=s)) for s in (0, 5, 6, 5)] == [0, 1, 2, 1]
    assert decide(arrival([0] * 5, session=6)) == 1


@pytest.mark.parametrize("name", ["session_hash", "consistent_hash", "bounded_load"])
def test_routers_by_session_say_that_a_trace_has_none(name: str) -> None:
    with pytest.raises(ValueError, match="no sessions"):
        ROUTERS[name]()(arrival([0, 0]))


def test_a_ring_sends_a_key_to_the_next_point_and_wraps_round() -> None:
    ring = Ring(2, lambda replica, point: 100 * point + 10 * replica)  # points at 0, 100 | 10, 110 | 20, 120
    assert [ring.first(key, 3) for key in (0, 1, 20, 21, 105, 121)] == [0, 1, 2, 0, 1, 0]
    assert list(ring.walk(15, 3)) == [2, 0, 1]


def test_when_a_replica_joins_the_ring_moves_its_share_only_and_modulo_nearly_everything() -> None:
    sessions, before, after = range(4000), [0] * 4, [0] * 5
    ring, modulo = routers.consistent_hash(), routers.session_hash()
    moved = [(ring(arrival(before, session=s)), ring(arrival(after, session=s))) for s in sessions]
    assert {new for old, new in moved if old != new} == {4}
    # A fifth; with 150 points a replica's share has a standard deviation of about 1/√150 of itself, 8 %.
    assert sum(old != new for old, new in moved) / 4000 == pytest.approx(1 / 5, rel=4 * 0.082)
    stayed = sum(modulo(arrival(before, session=s)) == modulo(arrival(after, session=s)) for s in sessions)
    assert stayed / 4000 == pytest.approx(1 / 5, abs=4 * 0.0063)  # h mod 4 = h mod 5 for 4 of 20 rests


def test_bounded_load_walks_on_from_whoever_is_above_the_bound() -> None:
    decide, ring = routers.bounded_load(factor=1.25), Ring(256)
    first, second, third = ring.walk(mixed(7), 3)
    load = [0, 0, 0]
    load[first], load[second], load[third] = 6, 5, 0
    # Bound 1.25 · (11 + 1) / 3 = 5: the first has 6, the second just 5.
    assert decide(arrival(load, session=7)) == second
    load[first] = 5
    assert decide(arrival(load, session=7)) == third  # 1.25 · 11 / 3 = 4.58
    assert decide(arrival([1, 1, 1], session=7)) == first  # 1.25 · 4 / 3 = 1.67
    assert decide(arrival([1] * 20, session=7)) == Ring(256).first(mixed(7), 20)  # 1.25 · 21 / 20 = 1.31


def test_bounded_load_below_one_request_each_lets_no_busy_replica_take_any() -> None:
    # KubeAI pull request 519: 1.25 · (1 + 1) / 4 = 0.625, so one request in flight is too many.
    ring, load = Ring(256), [0, 0, 0, 0]
    order = list(ring.walk(mixed(3), 4))
    load[order[0]] = 1
    assert routers.bounded_load()(arrival(load, session=3)) == order[1]


def test_prefix_hash_sends_equal_starts_together_until_their_place_is_too_busy() -> None:
    decide, start = routers.prefix_hash(tokens=32, factor=1.25), (100, 101)
    home = decide(arrival([0] * 4, content=(*start, 7, 8)))
    assert decide(arrival([0] * 4, content=(*start, 9))) == home
    assert {decide(arrival([0] * 4, content=(key, key + 1))) for key in range(0, 400, 2)} == {0, 1, 2, 3}
    load = [3, 3, 3, 3]
    load[home] = 5  # 1.25 · 15 / 4 = 4.69
    load[(home + 2) % 4] = 2
    load[(home + 3) % 4] = 4
    assert decide(arrival(load, content=start)) == (home + 2) % 4


def test_longest_match_asks_for_load_only_among_equals_and_where_nothing_lies() -> None:
    decide = routers.longest_match()
    assert decide(arrival([0, 90, 3], match=[4, 5, 0])) == 1
    assert decide(arrival([7, 9, 3], match=[5, 5, 0])) == 0
    assert decide(arrival([7, 9, 3], match=[0, 0, 0])) == 2
    assert routers.longest_match(least=2)(arrival([7, 9, 3], match=[1, 0, 0])) == 2


def test_cache_aware_goes_to_the_owner_of_the_deepest_node_even_if_another_has_the_text_too() -> None:
    decide = routers.cache_aware(threshold=0.5, apart=2, ratio=1.5)
    assert decide(arrival([0, 0], content="system one")) == 0  # cold: least loaded, first of equals
    assert decide(arrival([4, 1], content="system two")) == 1  # 3 apart and 4 > 1.5: the least loaded, though the text matches
    assert decide(arrival([1, 0], content="system xyz")) == 0  # "system " was worker 0's first: 7 of 10 match
    assert decide(arrival([1, 0], content="system two")) == 1  # all of it matches, and its end is worker 1's
    assert decide(arrival([3, 2], content="sys and 10")) == 1  # 3 of 10 match: cold, the least loaded


def test_cache_aware_compares_shares_and_loads_strictly() -> None:
    decide = routers.cache_aware(threshold=0.5, apart=2, ratio=2.0)
    decide(arrival([0, 1], content="abcd"))
    assert decide(arrival([3, 1], content="abcd")) == 0  # 2 apart is not more than 2
    assert decide(arrival([6, 3], content="abcd")) == 0  # 6 is not more than 2 · 3
    assert decide(arrival([1, 0], content="abXY")) == 1  # half is not more than half


def test_prefix_aware_forgets_nothing_and_looks_at_no_load() -> None:
    decide = routers.prefix_aware(seed=2)
    first = decide(arrival([0, 0, 0], content=(1, 2, 3)))
    load = [0, 0, 0]
    load[first] = 500
    assert decide(arrival(load, content=(1, 2, 9))) == first
    assert routers.prefix_aware(least=4)(arrival([2, 1, 2], content=(1, 2))) == 1


def test_dynamo_takes_the_lowest_sum_of_prefill_and_decode_blocks() -> None:
    # The example of Dynamo's documentation (FACTS.md 6.2): prefill and decode blocks (8, 10), (5, 5), (2, 9): costs 18, 10, 11.
    # Here a prompt of 5 blocks: behind 3 blocks still to prefill, alone, and with 3 of its own there.
    asked = arrival([0, 0, 0], prompt=80, prefill=[48, 0, 0], match=[0, 0, 3], active=[5, 0, 4])
    assert routers.dynamo()(asked) == 1
    assert asked.score == [18, 10, 11]
    asked = arrival([0, 0], match=[0, 10], active=[0, 30])
    assert routers.dynamo(scale=4)(asked) == 1  # 40 + 10 against 0 + 40
    assert routers.dynamo(scale=2)(asked) == 0  # 20 + 10 against 0 + 40
    assert {routers.dynamo(seed=seed)(arrival([9, 0])) for seed in range(20)} == {0, 1}  # equal costs: any


def test_llm_d_adds_weighted_scores() -> None:
    asked = arrival([0, 0, 0], match=[5, 0, 10], waiting=[4, 0, 8], usage=[0.5, 0.25, 1.0])
    # Queue (8 − w) / 8: ½, 1, 0. Memory: ½, ¾, 0. Prefix: ½, 0, 1. Weighted 2, 2, 3: 3.5, 3.5, 3. Weighted 1, 1, 2: 2, 1.75, 2.
    assert routers.llm_d()(asked) in (0, 1)
    assert asked.score == [3.5, 3.5, 3.0]
    assert routers.llm_d(1, 1, 3)(asked) == 2
    assert asked.score == [2.5, 1.75, 3.0]
    asked = arrival([0, 0], match=[0, 1], waiting=[3, 3], usage=[0.0, 0.0])
    assert routers.llm_d()(asked) == 1 and asked.score == [4.0, 4.3]  # equal queues: both 1


def test_aibrix_takes_the_best_match_that_is_not_too_busy() -> None:
    decide = routers.aibrix()
    # Mean 4.5, deviation √((3 · 1.5² + 4.5²) / 4) = 2.6: nobody is too busy.
    assert decide(arrival([6, 6, 6, 0], match=[3, 9, 0, 1])) == 1
    # 10 apart: only the least loaded may match.
    assert decide(arrival([10, 0, 5], match=[9, 1, 5])) == 1
    assert decide(arrival([10, 0, 5], match=[9, 0, 5])) == 1  # no match among them: the least loaded
    # Mean 3, deviation √((5² + 2² + 2² + 1²) / 4) = 2.92, bound 5.92: the best match is too busy; of equals the less loaded.
    assert decide(arrival([8, 1, 1, 2], match=[9, 0, 4, 4])) == 2
    assert decide(arrival([8, 1, 1, 2], match=[9, 0, 0, 0])) == 1
    assert decide(arrival([2, 2], match=[0, 1])) == 1  # all alike: 2 is just the bound


def test_a_tree_splits_where_texts_part_and_hands_its_owner_on() -> None:
    tree = Tree()
    tree.insert("hello world", 0)
    tree.insert("hello there", 1)
    assert tree.match("hello world") == (11, 0)
    assert tree.match("hello t") == (7, 1)
    assert tree.match("hello") == (5, 0)  # within the upper half, which worker 0 brought
    assert tree.match("") == (0, -1) and tree.match("x") == (0, -1)
    assert tree.shares("hello there", 3) == [6, 11, 0]


@pytest.mark.parametrize(("piece", "text", "place", "equal"), [
    ("abc", "abc", 0, 3), ("abc", "xabd", 1, 2), ("abcdefgh", "ab", 0, 2), ("b", "ab", 1, 1), ((1, 2, 3, 4), (1, 2, 3, 5), 0, 3)])
def test_common_counts_equal_elements(piece: str, text: str, place: int, equal: int) -> None:
    assert common(piece, text, place) == equal


def test_an_index_matches_in_a_row_from_the_start() -> None:
    index = Index(3)
    for key, replica, live in ((0, 0, 4), (0, 1, 2), (0, 2, 4), (100, 0, 3), (100, 1, 3)):
        index.tell(key, replica, live)
    path = [(0, 0, 4), (4, 100, 5)]
    # Replica 1 has the end of the prompt, but not what goes before it.
    assert index.match(path, 9, 3) == [7, 2, 4]
    assert index.match(path, 3, 3) == [3, 2, 3]
    index.tell(0, 0, 0)
    assert index.match(path, 9, 3) == [0, 2, 4]
    assert index.match([(0, 7, 2)], 9, 3) == [0, 0, 0]


def test_an_index_of_what_was_sent_forgets_the_oldest_beyond_its_size_and_what_is_too_old() -> None:
    index = Index(1, most=5)
    index.send([(0, 0, 4)], 4, 0, now=0.0)
    index.send([(0, 50, 3)], 3, 0, now=1.0)
    assert index.match([(0, 0, 4)], 4, 1) == [2]  # 7 sent, 5 kept: two of the older line's end are gone
    assert index.match([(0, 50, 3)], 3, 1) == [3]
    index = Index(1, lasting=10.0)
    index.send([(0, 0, 4)], 4, 0, now=0.0)
    index.send([(0, 50, 3)], 3, 0, now=5.0)
    index.forget(now=10.5)
    assert index.match([(0, 0, 4)], 4, 1) == [0] and index.match([(0, 50, 3)], 3, 1) == [3]
