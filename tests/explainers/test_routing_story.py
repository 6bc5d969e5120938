"""The routing lesson's words, held to the fleets that they tell."""

from __future__ import annotations

import json

import numpy as np
import pytest

from explainers.routing import scenario, story
from explainers.routing.scenario import KEYS, PRESETS

CALM = scenario.result(next(preset.values for preset in scenario.PRESETS if preset.key == "calm"))
CLASSIC = scenario.result({})
LATENCY = scenario.result(next(p for p in PRESETS if p.key == "latency").values)
ALONE = scenario.result({"replicas": 1, "sessions": 6})
FULL = scenario.result({"prefix": 6_000, "cache": 4_096, "sessions": 4})


def number(hit: tuple[str, ...], ttft: tuple[str, ...]) -> int:
    return story.PREDICTION.number([story.ORDERS.index(hit), story.ORDERS.index(ttft)])


def test_the_order_is_that_of_the_numbers_on_the_page() -> None:
    # Few at a time: 42, 81, 86 % and 288, 159, 152 ms.
    assert story.best(CALM, "hit_rate") == story.best(CALM, "ttft_p99") == ("aware", "sticky", "round_robin")
    order = ("aware", "sticky", "round_robin")
    assert story.feedback(CALM, number(order, order)).startswith("Both right")
    assert story.feedback(CALM, number(order, KEYS)).startswith("Hit rate right, latency not")
    assert "The two orders are the same" in story.feedback(CALM, None)


def test_on_the_busy_fleet_one_starts_with_the_two_orders_differ() -> None:
    # 41, 65, 87 % and 946, 2,154, 507 ms: sticky sessions find more than round robin, but the slow ones queued at one replica.
    assert story.best(CLASSIC, "hit_rate") == ("aware", "sticky", "round_robin")
    assert story.best(CLASSIC, "ttft_p99") == ("aware", "round_robin", "sticky")
    fleet = CLASSIC.fleets["sticky"]
    (where,) = set(fleet.replica[np.argsort(fleet.ttft)[-8:]].tolist())
    went = np.bincount(fleet.replica, minlength=4)
    assert went.argmax() == where
    assert f"They differ: to find it may mean to queue for it. Sticky sent {went[where]} of 96 requests to replica {where + 1}." \
        in story.feedback(CLASSIC, None)
    assert story._crowd(CALM) == ""  # round robin is last, and sends as many everywhere


def test_the_highest_hit_rate_is_not_the_lowest_latency_where_the_preset_says_so() -> None:
    assert story.best(LATENCY, "hit_rate")[0] == "aware" and story.best(LATENCY, "ttft_p99")[0] == "sticky"
    assert "They differ" in story.feedback(LATENCY, None)


def test_between_equals_either_order_is_right_and_nothing_served_is_no_order() -> None:
    for guess in (0, 7, len(story.ORDERS) ** 2 - 1):
        assert story.feedback(ALONE, guess).startswith("Both right")
    assert "=" in story.feedback(ALONE, None)
    assert "no order" in story.feedback(FULL, 0) and "refused" in story.headline(FULL)
    assert "you said" not in story.feedback(CLASSIC, 9_999)


def test_the_headline_tells_no_hit_rate_before_the_answer() -> None:
    told = story.headline(CLASSIC, answer=False)
    assert "%" not in told and "tokens lie on replica" in told and "41 %" in story.headline(CLASSIC)
    assert len(story.numbers(CLASSIC, answer=False)) == 1


@pytest.mark.parametrize("result", [CLASSIC, LATENCY, ALONE, FULL], ids=["classic", "latency", "alone", "full"])
def test_questions_have_one_right_answer_and_causes_add_up(result: scenario.Result) -> None:
    for asked in story.quiz(result):
        assert sum(option.correct for option in asked.options) == 1
    for key in KEYS:
        n, total = result.numbers[key], int(result.scenario.trace.prompt.sum())
        assert n["computed"] + result.fleets[key].hits.sum() == total
        assert story.life(result, key, 0).startswith("**")
    assert len(story.causes(result)) >= 3


def test_found_and_computed_are_all_prompt_tokens_in_the_question() -> None:
    (asked,) = [q for q in story.quiz(CLASSIC) if "How many did it find" in q.prompt]
    right = next(o.text for o in asked.options if o.correct)
    assert int(right.replace(",", "")) == CLASSIC.fleets["round_robin"].hits.sum()


def test_take_away_redoes_the_run() -> None:
    scope: dict[str, object] = {}
    exec(story.python_lines({"sessions": 6}), scope)  # noqa: S102  # our own lines
    made = scope["result"].numbers["sticky"]  # type: ignore[attr-defined]
    assert {k: v for k, v in made.items() if v == v} == {
        k: v for k, v in scenario.result({"sessions": 6}).numbers["sticky"].items() if v == v}
    assert story.requests_csv(CLASSIC).count("\n") == 3 * len(CLASSIC.scenario.trace) + 1
    assert len(json.loads(story.chrome_trace(CLASSIC))["traceEvents"]) >= 3 * len(CLASSIC.scenario.trace)
    told = story.cursor_data(CLASSIC)["sticky"]
    assert sum(len(who) for _, who, _, _ in told["spans"]) == len(CLASSIC.scenario.trace) and np.isfinite(told["end"])


def test_the_lead_is_short_and_words_are_plain() -> None:
    assert len(story.LEAD) <= 260 and all(len(says.split()) < 20 for _, says in story.WORDS)
    for preset in PRESETS:
        assert story.watch(preset.values) == preset.watch
