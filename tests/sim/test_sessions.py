"""Session workloads: what each turn quotes, when it comes, and what a server with a prefix cache finds of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine import simulate
from sim.hardware import GPUS, MODELS
from sim.policy import Memory, vllm
from sim.service import Service
from sim.trace import Trace
from sim.workloads import before_the_reply, lognormal, poisson, sessions, think_times


def tokens(trace: Trace, request: int) -> list[tuple[int, int]]:
    """The prompt of a request, token by token: (stream, place)."""
    content = trace.content
    assert content is not None
    runs = range(content.first[request], content.first[request + 1])
    return [(int(content.stream[j]), int(content.start[j]) + k) for j in runs for k in range(content.length[j])]


def test_two_sessions_by_hand() -> None:
    # Session 0 from 10 s, three turns; session 1 from 11 s, one turn. One system prompt of 100 tokens; 0.5 s a token.
    trace = sessions([10, 11], [3, 1], [100], 0,
                     question=[7, 3, 2, 9], answer=[4, 6, 1, 8], think=[50, 2, 30, 50], token_s=0.5, seed=1)
    # Turn 2 at 10 + 4 · 0.5 + 2 = 14 s, with 100 + 7 + 4 + 3 tokens; turn 3 at 14 + 6 · 0.5 + 30 = 47 s, with 6 + 2 more.
    assert trace.arrival.tolist() == [10, 11, 14, 47]
    assert trace.session is not None and trace.session.tolist() == [0, 1, 0, 0]
    assert trace.prompt.tolist() == [107, 109, 114, 122]
    assert trace.output.tolist() == [4, 8, 6, 1]
    content = trace.content
    assert content is not None
    one, two, three = (tokens(trace, i) for i in (0, 2, 3))
    reply = [[(int(content.reply[i]), k) for k in range(trace.output[i])] for i in range(4)]
    assert two[:111] == one + reply[0] and three[:120] == two + reply[2]
    other = tokens(trace, 1)
    assert other[:100] == one[:100] and not set(other[100:]) & set(one + two + three)


drawn = st.integers(1, 6).flatmap(lambda s: st.tuples(
    st.lists(st.integers(1, 4), min_size=s, max_size=s), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(0, 99)))


@given(drawn)
def test_each_turn_goes_on_from_the_one_before_and_its_reply(case: tuple[list[int], list[int], int]) -> None:
    turns, prefixes, seed = case
    n = sum(turns)
    trace = sessions(poisson(len(turns), 1, seed), turns, prefixes, 1, lognormal(n, 5, 1, seed, of="prompt"),
                     lognormal(n, 4, 1, seed), think_times(n, 3, seed), 0.25, seed)
    content, session = trace.content, trace.session
    assert content is not None and session is not None and len(trace) == n
    assert np.bincount(session).tolist() == turns
    used: set[tuple[int, int]] = set()  # every question and reply is nobody else's
    for s in range(len(turns)):
        rows = np.flatnonzero(session == s)
        before: list[tuple[int, int]] = []
        for i in rows:
            prompt = tokens(trace, i)
            assert prompt[:len(before)] == before and len(set(prompt)) == len(prompt)
            before = prompt + [(int(content.reply[i]), k) for k in range(trace.output[i])]
        own = {token for token in before if token[0] >= len(prefixes)}
        assert len(before) - len(own) in prefixes and not own & used
        used |= own


def test_the_most_used_system_prompt_has_its_share_by_zipf_s_law() -> None:
    trace = sessions(np.zeros(20_000), 1, [11, 12, 13], 1.0, np.ones(20_000, int), np.ones(20_000, int), np.zeros(20_000), 0, 3)
    # 1 + 1/2 + 1/3 = 11/6: shares of 6/11, 3/11 and 2/11. The standard error of the largest is 0.0035.
    assert np.bincount(trace.prompt - 12) / 20_000 == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.015)


def test_think_times_are_exponential() -> None:
    think = think_times(50_000, 20, 1)
    assert think.mean() == pytest.approx(20, rel=0.02) and think.std() == pytest.approx(20, rel=0.03)
    assert np.mean(think > 40) == pytest.approx(np.exp(-2), abs=0.006)
    assert (think_times(10, 20, 1) == think[:10]).all() and not (think_times(10, 20, 2) == think[:10]).any()


def test_more_sessions_leave_the_first_ones_as_they_were() -> None:
    def made(s: int) -> Trace:
        n = 3 * s
        return sessions(poisson(s, 1, 5), 3, [50, 60], 1, lognormal(n, 20, 1, 5, of="prompt"), lognormal(n, 9, 1, 5),
                        think_times(n, 4, 5), 0.1, 5)

    few, many = made(10), made(40)
    assert few.session is not None and many.session is not None
    assert many.take(many.session < 10).columns["prompt"].tolist() == few.prompt.tolist()
    assert many.take(many.session < 10).arrival.tolist() == few.arrival.tolist()


def test_a_server_finds_the_whole_blocks_of_what_the_turn_before_left() -> None:
    # System prompt 100, question 7, reply 40: turn 2 begins with 147 tokens that were here. The last token of a reply is
    # never computed, so 146 lie in the cache: nine blocks of 16, 144 tokens. Session 1 finds the system prompt: six, 96.
    server = Service(MODELS["Llama-3-8B"], GPUS["A100-80G"])
    trace = sessions([0, 100], [2, 1], [100], 0, [7, 5, 60], [40, 3, 2], [0, 60, 0], 0.1, 1)
    run = simulate(trace, server, vllm(8, 512, Memory(1000, 16, True)))
    assert trace.session is not None and trace.session.tolist() == [0, 0, 1]
    assert run.cached.tolist() == [0, 144, 96]
    assert not before_the_reply(trace, run.finished_us / 1e6).any()


def test_who_comes_before_the_reply_is_told() -> None:
    trace = Trace([0, 1, 2, 3, 4], [1] * 5, [1] * 5, session=[7, 8, 7, 8, 7])
    # Session 7: turns at 0, 2 and 4 s, the first two end at 2 and 4.5 s: the third is early. Session 8: the first never ends.
    assert before_the_reply(trace, [2, np.nan, 4.5, 9, 9]).tolist() == [False, False, False, True, True]
    with pytest.raises(ValueError, match="does not say"):
        before_the_reply(Trace([0], [1], [1]), [1])


GOOD = {"starts": [0, 1], "turns": 2, "prefixes": [5], "skew": 1, "question": [1] * 4, "answer": [1] * 4, "think": [1] * 4,
        "token_s": 0.1, "seed": 1}


@pytest.mark.parametrize(("bad", "words"), [
    ({"starts": []}, "starts must be one time a session"),
    ({"turns": 0}, "turns must be a whole number from 1 on"),
    ({"turns": [2, 2, 1]}, "one for each of the 2 sessions"),
    ({"turns": 1.5}, "turns must be a whole number"),
    ({"turns": 10**7}, "at most 10000000 together"),
    ({"prefixes": []}, "prefixes must be lengths"),
    ({"prefixes": [0]}, "prefixes must be lengths from 1"),
    ({"question": [1] * 3}, r"question must be one number for each of the 4 turns, not of shape \(3,\)"),
    ({"answer": [1, 1, 1, 0]}, "answer must be lengths from 1"),
    ({"think": [1, 1, -1, 1]}, "think must be from 0"),
    ({"think": [1, np.nan, 1, 1]}, "think must be from 0"),
    ({"token_s": -1}, "token_s must be a number from 0 to 1000 s"),
    ({"skew": -1}, "skew must be a number from 0 to 100"),
    ({"seed": 0.5}, "seed must be a whole number"),
])
def test_a_bad_parameter_is_named_with_its_range(bad: dict[str, object], words: str) -> None:
    assert len(sessions(**GOOD)) == 4  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=words):
        sessions(**(GOOD | bad))  # type: ignore[arg-type]
