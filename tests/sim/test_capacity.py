"""Capacity: where the limit lies is worked out beforehand."""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pytest

from sim import capacity
from sim.cli import commands
from sim.policy import Policy
from sim.service import Affine
from sim.trace import Trace

ONE = Policy("one at a time", slots=1)
TEN_MS = Affine(1_000, 0, 0)  # a step is 1 ms; ten tokens are ten steps


def evenly(n: int, prompt: int = 4, output: int = 10):
    return lambda rate: Trace(np.arange(n) / rate, np.full(n, prompt), np.full(n, output))


def test_the_median_delay_alone_limits_a_server_that_serves_one_at_a_time() -> None:
    # A request takes 10 ms. At rate r > 100/s the i-th waits i·(0.01 − 1/r) s; the median of 1,025 is the 512th:
    # 512·(0.01 − 1/r) = 2 where 1/r = 0.01 − 2/512, r = 164.1/s.
    found = capacity.search(evenly(1_025), TEN_MS, ONE, capacity.Rule(tbt_s=1.0))
    limit = 1 / (0.01 - 2 / 512)
    assert limit / 1.025 <= found.rate <= limit
    assert [p.holds for p in found.points] == [p.rate <= limit for p in found.points]


def test_the_time_between_tokens_limits_where_prompts_stop_the_replies() -> None:
    # Whole prompts of 99 tokens at 0.1 ms a token beside replies: while two requests overlap, some step takes 10 ms.
    clock, many = Affine(100, 100, 0), Policy("whole", slots=8, prompts="whole")
    trace = evenly(1_024, prompt=99, output=50)
    loose = capacity.search(trace, clock, many, capacity.Rule(tbt_s=1.0))
    tight = capacity.search(trace, clock, many, capacity.Rule(tbt_s=0.001))
    assert 0 < tight.rate < loose.rate
    # Alone, a reply of 50 tokens takes 10 ms and 49 · 0.2 ms: below one request in 19.8 ms nobody overlaps.
    assert tight.rate >= 1 / 0.0198 / 1.025


def test_a_limit_that_no_rate_keeps_is_no_capacity_and_one_that_all_keep_ends_the_search() -> None:
    never = capacity.search(evenly(64), TEN_MS, ONE, capacity.Rule(tbt_s=1e-6))
    assert never.rate == 0 and not any(p.holds for p in never.points) and never.done
    few = capacity.search(evenly(3), TEN_MS, ONE, capacity.Rule(tbt_s=1.0))
    assert few.rate >= 1024 and all(p.holds for p in few.points)


def test_the_search_ends_within_the_granularity_and_counts_what_it_simulated() -> None:
    told: list[capacity.Capacity] = []
    found = capacity.search(evenly(1_025), TEN_MS, ONE, capacity.Rule(1.0), report=told.append)
    held = max(p.rate for p in found.points if p.holds)
    broken = min(p.rate for p in found.points if not p.holds)
    assert held == found.rate and broken / held <= 1.025
    assert found.requests == 1_025 * len(found.points) and [len(t.points) for t in told] == list(range(1, len(found.points) + 1))
    assert told[-1].done and not any(t.done for t in told[:-1])


def test_the_same_requests_come_at_every_rate_only_closer_together() -> None:
    at = capacity.chat(1_024, 0)
    slow, fast = at(1.0), at(4.0)
    assert np.array_equal(slow.prompt, fast.prompt) and np.array_equal(slow.output, fast.output)
    assert np.allclose(slow.arrival, 4 * fast.arrival, atol=4e-6)
    assert (slow.prompt + slow.output).max() <= 8_192


def test_chat_lengths_have_the_quantiles_that_the_paper_prints() -> None:
    trace = capacity.chat(200_000, 1)(1.0)  # table 2: prompt median 1,730, P90 5,696; output median 415, P90 834
    for lengths, median, p90 in ((trace.prompt, 1_730, 5_696), (trace.output, 415, 834)):
        assert np.median(lengths) == pytest.approx(median, rel=0.03) and np.quantile(lengths, 0.9) == pytest.approx(p90, rel=0.03)


def test_the_table_is_made_from_the_trace(shared) -> None:
    from tools import lengths

    assert lengths.table(shared("traces/sarathi_openchat_sharegpt4_8k.csv")) == capacity.LENGTHS.read_text()


@pytest.mark.parametrize("limits", [{"tbt_s": 0.0}, {"tbt_s": math.nan}, {"tbt_s": 1.0, "delay_s": -1.0}])
def test_a_limit_that_is_none_is_refused_by_name(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be more than 0 s"):
        capacity.Rule(**limits)


def test_the_command_tells_text_json_and_csv_of_the_same_search(capsys) -> None:
    asked = ["capacity", "--slo-tbt", "0.1", "--model", "Mistral-7B", "--requests", "1024", "--policy", "sarathi-serve:slots=128"]
    outs = []
    for more in ([], ["--json"], ["--csv"]):
        assert commands.main([*asked, *more]) == 0
        outs.append(capsys.readouterr().out)
    told = json.loads(outs[1])
    (policy,) = told["policies"]
    rows = list(csv.DictReader(io.StringIO(outs[2])))
    assert [float(r["rate"]) for r in rows] == [p["rate"] for p in policy["points"]]
    assert max(float(r["rate"]) for r in rows if r["holds"] == "1") == policy["capacity"]
    assert f"{policy['capacity']:.2f}" in outs[0] and told["limits"] == {"tbt_p99_s": 0.1, "delay_p50_s": 2.0}


def test_the_command_refuses_what_makes_no_sense(capsys) -> None:
    with pytest.raises(SystemExit):
        commands.main(["capacity"])
    assert "--slo-tbt" in capsys.readouterr().err
    assert commands.main(["capacity", "--slo-tbt", "1", "--policy", "nothing"]) == 2
    assert commands.main(["capacity", "--slo-tbt", "1", "--model", "Yi-34B", "--gpu", "A100-40G"]) == 2
    assert "use tp=2 or more" in capsys.readouterr().err
