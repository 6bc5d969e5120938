"""Where requests are sent: SGLang's, llm-d's, KubeAI's and Mooncake's figures, and the set-ups that ours come from."""

from __future__ import annotations

import numpy as np
import pytest

from sim import record
from sim.policy import Memory, vllm
from sim.record import closed_loop, routing
from sim.routers import ROUTERS, Arrival
from sim.service import Affine
from sim.trace import Content, Trace

# Name → theirs, least and most; papers/FACTS.md, section 6, and what its sources print.
BANDS = {
    "route-sglang-hit-cache-aware": (75.0, 60.0, 90.0),
    "route-sglang-hit-round-robin": (20.0, 10.0, 45.0),
    "route-sglang-throughput": (1.92, 1.5, 2.3),  # 158,596 / 82,665
    "route-llmd-output": (1.97, 1.7, 2.2),  # 8,730 / 4,429
    "route-llmd-output-precise": (8730.0, None, None),
    "route-llmd-output-random": (4429.0, None, None),
    "route-llmd-ttft-precise": (0.542, None, 1.0),
    "route-llmd-ttft-random": (92.6, None, None),
    "route-chwbl-throughput-1200": (2.27, 1.6, 2.5),  # 71,812 / 31,625
    "route-chwbl-ttft-1200": (95.4, 80.0, None),  # 0.386 s of 8.482
    "route-chwbl-throughput-300": (1.14, 0.97, 1.31),  # 41,521 / 36,395
    "route-chwbl-ttft-300": (-1.2, None, 20.0),  # 128.5 ms of 126.9
    "route-chwbl-throughput-1200-memory-10": (None, 0.9, 1.1),
    "route-mooncake-random-over-load-balance": (3.73, 1.0, None),  # 19.65 / 5.27
    "route-mooncake-load-balance-over-local-cache": (1.47, 1.0, None),  # 5.27 / 3.58
    "route-mooncake-random-over-local-cache": (5.49, 4.0, 10.0),  # 19.65 / 3.58
}
OUTSIDE = {
    "route-sglang-hit-round-robin": "7.1 of eight workers",
    "route-sglang-throughput": "53 % here, 20 % there",
    "route-chwbl-ttft-1200": "no request waits",
    "route-chwbl-throughput-300": "not explained",
    "route-chwbl-throughput-1200-memory-10": "does not vanish",
    "route-mooncake-random-over-local-cache": "does not print",
}
SHOWN_ONLY = {"route-llmd-output-precise", "route-llmd-output-random", "route-llmd-ttft-random"}


@pytest.mark.parametrize("name", BANDS)
def test_each_claim_is_held_to_its_band_or_says_why_not(name: str) -> None:
    (claim,) = record.compute([name])
    assert (claim.theirs, claim.low, claim.high) == BANDS[name]
    assert claim.inside is (None if name in SHOWN_ONLY else name not in OUTSIDE)
    assert OUTSIDE.get(name, "") in claim.note
    assert claim.inside or claim.note


def test_every_claim_of_this_room_is_tested() -> None:
    rest = {f"route-sglang-ceiling-{which}" for which in ("one", "even", "shuffled")} | {
        "route-llmd-queue-random", "route-llmd-queue-precise"}
    assert set(routing.CLAIMS) == BANDS.keys() | rest


def test_ceilings_are_what_arithmetic_says() -> None:
    # Of 2,176 tokens 2,048 are shared. One cache misses the first of 16: 15/16 · 2048/2176 = 88.2 %. Two of a group on each of
    # eight workers: half of them, 47.1 %. In a random order a group meets 8·(1 − (7/8)^16) = 7.055 workers: 52.6 %.
    ours = [claim.ours for claim in record.compute(["route-sglang-ceiling-*"])]
    assert ours[:2] == pytest.approx([88.2, 47.1], abs=0.05) and ours[2] == pytest.approx(52.6, abs=2.0)


def test_the_set_up_names_concurrency_and_memory() -> None:
    (claim,) = record.compute(["route-sglang-hit-cache-aware"])
    assert "1,024 slots" in claim.set_up and "KV tokens" in claim.set_up


def test_under_random_the_queue_grows_with_time_and_under_precise_routing_it_does_not() -> None:
    # At a steady rate beyond what is served, twice the time leaves twice the queue.
    random, precise = record.compute(["route-llmd-queue-random", "route-llmd-queue-precise"])
    run = routing.llm_d("random", routing.STEADY)
    end = float(run.trace.arrival[-1])
    half, full = (routing.waiting(run, end - left) for left in (150.0, 0.0))
    assert random.inside and full == random.ours and full / half == pytest.approx(2, rel=0.15)
    assert precise.inside and precise.ours <= 10


def test_the_tenants_take_73_percent_of_the_pods() -> None:
    # Its ladder is 17,084 requests, the 750 of the warm-up among them.
    # The report: 150 · (6,000 + 5 · 1,200) = 1,800,000 tokens of 8 · 307,328.
    trace, stage = routing.tenants(routing.LADDER)
    assert trace.content is not None and len(trace) == len(stage) == 17_084 and int(trace.prompt[0]) == 7_200
    asked = np.unique(trace.content.stream)
    tokens = 6_000 * int((asked < 150).sum()) + 1_200 * int((asked >= 150).sum())
    assert tokens == 1_800_000 and tokens / (8 * 307_328) == pytest.approx(0.732, abs=0.001)
    assert routing.POD_TOKENS % routing.POD_BLOCK == 0


def test_an_l4_holds_fp8_layers_and_96_thousand_tokens() -> None:
    # 0.9 · 23,034 MiB = 21.737 GB, less 6.979 GB of layers at a byte a weight and 2.101 GB of embedding and head at two;
    # 131,072 bytes a token.
    assert routing.l4_tokens() == pytest.approx((21.7374e9 - 6.9793e9 - 2.1013e9) / 131_072, rel=1e-3)


def test_conversations_have_the_notebooks_means() -> None:
    trace = routing.threads(2_400)
    assert trace.session is not None
    assert len(trace) / 2_400 == pytest.approx(7.38, rel=0.03)
    assert float(trace.prompt.mean()) == pytest.approx(386, rel=0.01)
    assert (np.diff(trace.session) >= 0).all()


def two_talks(sessions: int) -> Trace:
    """Conversations of two turns: 16 tokens, a reply of 16, then those and 16 more."""
    n = 2 * sessions
    stream = np.concatenate([[10 * s, 10 * s, 10 * s + 1, 10 * s + 2] for s in range(sessions)])
    reply = np.concatenate([[10 * s + 1, 10 * s + 3] for s in range(sessions)])
    first = np.concatenate([[4 * s, 4 * s + 1] for s in range(sessions)] + [[4 * sessions]])
    content = Content(first, stream, np.zeros(4 * sessions, np.int64), np.full(4 * sessions, 16), reply)
    return Trace(np.zeros(n), np.tile([16, 48], sessions), np.full(n, 16), session=np.arange(n) // 2, content=content)


def test_a_turn_comes_when_its_reply_has_ended_and_a_conversation_when_another_has() -> None:
    # A millisecond a step: 16 steps a reply, at 0 and 20 ms by a clock of 20 ms; so the second conversation begins at 40 ms, the
    # third at 80.
    policy = vllm(4, 64, Memory(64, 16, prefix_cache=True))
    served = closed_loop.serve(two_talks(3), 1, Affine(1_000, 0, 0), policy, ROUTERS["least_loaded"](), 1)
    assert served.runs[0].trace.arrival.tolist() == pytest.approx([0, 0.02, 0.04, 0.06])
    assert served.begun == pytest.approx(0.08)
    # The second turn finds 16 tokens of the first and 15 of its reply, whole blocks of 16: 16.
    assert served.runs[0].cached.tolist() == [0, 16, 0, 16]


def test_a_closed_loop_needs_more_conversations_than_are_under_way() -> None:
    policy = vllm(4, 64, Memory(64, 16, prefix_cache=True))
    with pytest.raises(ValueError, match="more conversations than 3"):
        closed_loop.serve(two_talks(3), 3, Affine(1_000, 0, 0), policy, ROUTERS["least_loaded"](), 1)
    with pytest.raises(ValueError, match="prefix cache"):
        closed_loop.serve(two_talks(3), 1, Affine(1_000, 0, 0), vllm(4, 64, Memory(64)), ROUTERS["least_loaded"](), 1)


def test_mooncakes_schedulers_decide_as_worked_by_hand() -> None:
    # 100, 400 and 300 tokens pending; of a prompt of 1,024 tokens 0, 512 and 0 are cached: 1124, 912 and 1324 to compute.
    arrival = Arrival(0.0, None, 1_024, [1, 1, 1], [100, 400, 300], block_size=512, match=lambda: [0, 1, 0])
    assert routing.load_balance(arrival) == 0 and routing.local_cache(arrival) == 1


def test_all_of_the_conversations_sample_is_served_by_every_scheduler() -> None:
    for scheduler in ("random", "load balance", "local cache"):
        run = routing.conversation(scheduler)
        assert len(run) == 1_750 and np.isfinite(run.ttft).all()
        assert int((run.hits + run.misses).sum()) == int(run.trace.prompt.sum())
