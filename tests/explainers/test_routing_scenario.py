"""The routing lesson's set-up, held to what can be worked out without it."""

from __future__ import annotations

import numpy as np
import pytest

from explainers.routing import scenario
from explainers.routing.scenario import KNOBS, PRESETS, Result
from sim.trace import Trace
from sim.workloads import before_the_reply

VALUES = {preset.key: dict(preset.values) for preset in PRESETS}
SMALL = {"sessions": 6, "turns": 3}


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return {key: scenario.result(values) for key, values in VALUES.items()}


def test_every_preset_fits_the_knobs_and_every_request_is_served_once(results: dict[str, Result]) -> None:
    for key, result in results.items():
        for knob, value in VALUES[key].items():
            assert next(k for k in KNOBS if k.key == knob).fit(str(value)) == (value, None), (key, knob)
        for fleet in result.fleets.values():
            assert fleet.requests.sum() == len(result.scenario.trace), key
            assert np.array_equal(fleet.hits + fleet.misses, fleet.trace.prompt) and (fleet.hits >= 0).all(), key
            assert np.isfinite(fleet.ttft).all(), key


def test_all_routers_get_the_same_requests_and_nobody_beats_one_infinite_cache(results: dict[str, Result]) -> None:
    for key, result in results.items():
        assert len({id(fleet.trace) for fleet in result.fleets.values()}) == 1
        for n in result.numbers.values():
            assert n["hit_rate"] <= result.ceiling + 1e-12, key
            assert n["again"] <= n["computed"], key


def test_the_ceiling_of_two_turns_by_hand() -> None:
    # One conversation, two turns. The second prompt quotes the first one and its reply. All of what the first left behind is
    # found in whole blocks of 16 tokens: of its prompt and reply, but the last token, which is never computed.
    trace = scenario.build({"sessions": 1, "turns": 2}).trace
    first = int(trace.prompt[0] + trace.output[0])
    result = scenario.result({"sessions": 1, "turns": 2})
    assert result.ceiling == (first - 1) // 16 * 16 / trace.prompt.sum()


def test_round_robin_throws_the_conversation_away_and_the_others_keep_it(results: dict[str, Result]) -> None:
    classic = results["calm"]
    went = classic.fleets["round_robin"].replica
    assert went.tolist() == [i % 4 for i in range(len(went))]
    for session in range(24):
        assert len(set(classic.fleets["sticky"].replica[scenario.sessions(classic.scenario.trace) == session])) == 1
    robin, sticky, aware = (n["hit_rate"] for n in classic.numbers.values())
    assert aware > sticky > robin and aware > 2 * robin
    assert classic.numbers["round_robin"]["ttft_p99"] > classic.numbers["aware"]["ttft_p99"]


def test_one_shared_prompt_sends_everything_to_one_replica_until_the_imbalance_counts(results: dict[str, Result]) -> None:
    assert results["shared"].fleets["aware"].requests.tolist() == [120, 0, 0, 0]
    assert results["shared"].numbers["aware"]["idle"] == 3
    assert results["shared"].numbers["aware"]["hit_rate"] < results["shared"].numbers["sticky"]["hit_rate"]
    for way_out in ({"apart": 4}, {"router": scenario.DYNAMO}):  # what the preset says to try
        assert scenario.result(VALUES["shared"] | way_out).numbers["aware"]["idle"] == 0


def test_with_so_much_cache_the_three_differ_little_and_with_a_small_one_a_lot(results: dict[str, Result]) -> None:
    def spread(result: Result) -> float:
        rates = [n["hit_rate"] for n in result.numbers.values()]
        return max(rates) - min(rates)

    plenty = results["plenty"]
    assert spread(plenty) < 0.05 and all(n["evicted"] == 0 for n in plenty.numbers.values())
    assert spread(scenario.result(VALUES["plenty"] | {"fit": scenario.OWN_NUMBER, "cache": 8_192})) > 0.2


def test_pure_affinity_makes_a_hot_spot_with_a_queue(results: dict[str, Result]) -> None:
    skewed = results["skewed"].numbers
    assert skewed["aware"]["imbalance"] > 2 > skewed["sticky"]["imbalance"]
    assert skewed["aware"]["hit_rate"] == max(n["hit_rate"] for n in skewed.values())
    assert skewed["aware"]["ttft_p99"] == max(n["ttft_p99"] for n in skewed.values())
    assert skewed["aware"]["ttft_p50"] == max(n["ttft_p50"] for n in skewed.values())


def test_highest_hit_rate_is_not_lowest_latency_and_not_for_one_seed_alone(results: dict[str, Result]) -> None:
    n = results["latency"].numbers
    assert n["aware"]["hit_rate"] == max(each["hit_rate"] for each in n.values())
    assert n["sticky"]["ttft_p99"] < n["aware"]["ttft_p99"] and n["sticky"]["ttft_p50"] < n["aware"]["ttft_p50"]
    spread = scenario.band(VALUES["latency"])
    assert (spread.hit_rate["aware"] > spread.hit_rate["sticky"]).sum() >= 9
    assert (spread.ttft_p99["aware"] > spread.ttft_p99["sticky"]).sum() >= 8


def test_stale_knowledge_costs_what_fresh_knowledge_finds(results: dict[str, Result]) -> None:
    fresh = scenario.result(VALUES["stale"] | {"delay": 0.0})
    assert fresh.numbers["aware"]["hit_rate"] - results["stale"].numbers["aware"]["hit_rate"] > 0.2
    assert results["stale"].numbers["aware"]["gone"] > 0 == fresh.numbers["aware"]["gone"]


def test_when_a_replica_joins_hash_mod_n_moves_most_and_the_ring_about_one_in_n(results: dict[str, Result]) -> None:
    joins = results["joins"]
    moved, there = scenario.moved(joins, "sticky") or (0, 0)
    ring, same = scenario.moved(joins, "aware") or (0, 0)
    assert there == same > 20
    assert moved / there > 0.7  # 5 of 6 hashes have another remainder by 6 than by 5
    assert 0 < ring / there < 1 / 3  # 1 in 6, with room for chance
    trace, fleet = joins.scenario.trace, joins.fleets["aware"]
    late = trace.arrival >= joins.scenario.joins[-1]
    before = {s: fleet.replica[(scenario.sessions(trace) == s) & ~late] for s in range(48)}
    for session, went in zip(scenario.sessions(trace)[late].tolist(), fleet.replica[late].tolist(), strict=True):
        if len(before[session]) and went != before[session][-1]:
            assert went == 5  # the ring moves conversations to the new replica only
    assert (fleet.replica[~late] < 5).all() and scenario.moved(results["classic"], "sticky") is None


def test_the_sample_is_mooncake_s_and_its_conversations_are_guessed(results: dict[str, Result]) -> None:
    real = results["real"]
    assert len(real.scenario.trace) == 600 and real.scenario.note.startswith("Conversations are guessed")
    # The trace's first request has 6,758 prompt tokens and 500 of output (its first line).
    assert (real.scenario.trace.prompt[0], real.scenario.trace.output[0]) == (6758, 500)
    robin, sticky, aware = (n["hit_rate"] / real.ceiling for n in real.numbers.values())
    assert robin < 0.4 and sticky > 0.6 and aware > 0.6  # "a third of what there is to find, the other two most of it"


def test_what_was_lost_is_the_largest_gap_and_lay_where_it_says(results: dict[str, Result]) -> None:
    result = results["calm"]
    gone = scenario.lost(result, "round_robin")
    decisions = result.fleets["round_robin"].decisions
    assert gone is not None and decisions is not None
    there = decisions.there[gone.request]
    assert there[gone.lay - 1] - there[gone.went - 1] == gone.tokens > 0
    where = result.fleets["round_robin"].replica
    assert (decisions.there.max(axis=1) - decisions.there[np.arange(120), where]).max() == gone.tokens
    assert result.scenario.turn[gone.request] == gone.turn
    assert scenario.lost(result, "aware") is None


def test_turns_count_from_one_within_each_conversation() -> None:
    trace = Trace([0, 1, 2, 3, 4], [10] * 5, [1] * 5, session=np.array([1, 0, 1, 1, 0]))
    assert scenario.turns(trace).tolist() == [1, 1, 2, 3, 2]


def test_early_turns_are_counted_where_the_fleet_is_too_slow(results: dict[str, Result]) -> None:
    fleet = results["skewed"].fleets["aware"]
    early = before_the_reply(fleet.trace, fleet.column("finished_us").astype(float) / 1e6)
    assert results["skewed"].numbers["aware"]["early"] == early.sum() > 0 == results["classic"].numbers["aware"]["early"]


@pytest.mark.parametrize("label", next(k for k in KNOBS if k.key == "router").options or ())
def test_every_router_of_the_knob_serves(label: str) -> None:
    result = scenario.result(SMALL | {"router": label})
    assert result.scenario.policies["aware"] == label and np.isfinite(result.fleets["aware"].ttft).all()


def test_every_model_fits_on_every_gpu() -> None:
    options = {k.key: k.options or () for k in KNOBS}
    for model in options["model"]:
        for gpu in options["gpu"]:
            scenario.build(SMALL | {"model": model, "gpu": gpu, "fit": scenario.FITS})


def test_what_fits_is_the_memory_beside_the_weights() -> None:
    scene = scenario.build(SMALL | {"fit": scenario.FITS})
    assert scene.policy.memory is not None
    assert scene.policy.memory.blocks == scene.service.kv_tokens() // 16 == 467_296 // 16


def test_the_sweep_and_the_band_hold_the_run_on_the_screen() -> None:
    here = scenario.result(SMALL)
    for over in ("cache", "replicas", "rate"):
        curve = scenario.sweep(SMALL, over=over)
        i = int(np.flatnonzero(curve.x == curve.x_here)[0])
        assert {k: y[i] for k, y in curve.hit_rate.items()} == {k: n["hit_rate"] for k, n in here.numbers.items()}
        assert {k: y[i] for k, y in curve.ttft_p99.items()} == {k: n["ttft_p99"] for k, n in here.numbers.items()}
    assert scenario.band(SMALL).hit_rate["aware"][0] == here.numbers["aware"]["hit_rate"]
    with pytest.raises(ValueError, match="'cache', 'replicas' or 'rate'"):
        scenario.sweep(SMALL, over="slots")


def test_more_replicas_raise_affinity_and_lower_round_robin() -> None:
    curve = scenario.sweep(VALUES["calm"], over="replicas")
    four, sixteen = (int(np.flatnonzero(curve.x == n)[0]) for n in (4, 16))
    assert curve.hit_rate["round_robin"][sixteen] < 0.6 * curve.hit_rate["round_robin"][four]
    assert curve.hit_rate["aware"][four] > 1.5 * curve.hit_rate["aware"][0]
    assert len({float(rates[0]) for rates in curve.hit_rate.values()}) == 1  # one replica: nothing to choose


def test_messages_for_the_learner() -> None:
    own = {"source": scenario.OWN}
    with pytest.raises(ValueError, match="There is no file yet"):
        scenario.build(own)
    with pytest.raises(ValueError, match="does not say what its prompts hold"):
        scenario.build(own, Trace([0], [10], [1]))
    with pytest.raises(ValueError, match="the last request of the sample comes at"):
        scenario.build({"source": scenario.SAMPLE, "start": 10_000})
    with pytest.raises(ValueError, match="its own load"):
        scenario.sweep({"source": scenario.SAMPLE}, over="rate")


def test_shared_results_cannot_be_written_to(results: dict[str, Result]) -> None:
    fleet = results["classic"].fleets["aware"]
    with pytest.raises(ValueError, match="read-only"):
        fleet.replica[0] = 1
