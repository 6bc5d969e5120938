"""The chunked-prefill lesson's words, held to the run that they tell."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from time import monotonic, sleep

import pytest

from explainers.chunked_prefill import figures, scenario, story
from explainers.chunked_prefill.scenario import PRESETS
from explainers.kit import worker
from explainers.kit.grammar import duration
from sim import record
from sim.capacity import Rule, chat, search
from sim.policy import sarathi_serve
from sim.service import service

CLASSIC = scenario.result({})


def test_the_headline_says_the_freeze_only_once_it_is_answered() -> None:
    freeze = duration(CLASSIC.summaries["alone"]["gap_max_ms"] / 1000)
    assert freeze in story.headline(CLASSIC) and freeze not in story.headline(CLASSIC, answer=False)
    shown = figures.stage(CLASSIC, dark=False, answer=False)
    notes = [str(note["text"]) for note in shown.figure["layout"]["annotations"]]
    texts = " ".join([shown.alt, story.headline(CLASSIC, False), *notes])
    assert freeze not in texts and freeze not in story.numbers(CLASSIC, answer=False).to_string()


@pytest.mark.parametrize("preset", PRESETS, ids=lambda p: p.key)
def test_every_preset_has_words_for_all_parts(preset: scenario.Preset) -> None:
    result = scenario.result(preset.values)
    assert story.watch(preset.values) == preset.watch
    assert len(story.causes(result)) == 3 and len(story.numbers(result)) == 6
    for asked in story.quiz(result):
        assert sum(option.correct for option in asked.options) == 1 and len({o.text for o in asked.options}) == len(asked.options)
    for key in result.runs:
        for request in (0, result.scenario.streams):
            assert story.life(result, key, request).startswith("**")
        spans = story.cursor_data(result)[key]["spans"]
        assert all(len(who) == len(start) == len(end) for _, who, start, end in spans)


def test_feedback_takes_a_guess_within_a_third_for_close() -> None:
    truth = CLASSIC.summaries["alone"]["gap_max_ms"]
    assert story.feedback(CLASSIC, 1.2 * truth).startswith("Close")
    assert story.feedback(CLASSIC, 0.0).startswith("More than you said") and story.feedback(CLASSIC, 1e6).startswith("Less")
    assert duration(truth / 1000) in story.feedback(CLASSIC, None)


def test_the_freeze_is_explained_by_the_tokens_that_are_read_in_it() -> None:
    assert "16,384 prompt tokens are read" in story.feedback(CLASSIC, None)
    joined = scenario.result({"long": 3})  # the holes of three prompts, a quarter of a second apart, are one
    assert "49,152 prompt tokens are read" in story.causes(joined)[0] and "slowest newcomer's" in story.headline(joined)
    apart = scenario.result({"long": 2, "spacing": 2000, "prompt": 8192})  # the first is read long before the second comes
    assert "8,192 prompt tokens are read" in story.feedback(apart, None)


def test_the_small_budget_question_is_a_division() -> None:
    # 64 less 16 streams leaves 48: 16,384 / 48 = 341.3, so 342 steps.
    (asked,) = [q for q in story.quiz(CLASSIC) if "64 tokens" in q.prompt]
    assert next(o.text for o in asked.options if o.correct) == "342"


def test_what_is_rarely_said_is_what_the_calibration_measured() -> None:
    said = " ".join(story.RARELY_SAID)
    for one in ("37 %", "36 %", "12 %", "two to four times the ridge", "1.4 times"):
        assert one in said
    curve = scenario.sweep({})
    ridge = float(min(curve.x, key=lambda x: abs(x - curve.ridge)))
    first = dict(zip(curve.x.tolist(), curve.ttft_ms["chunks"].tolist(), strict=True))
    alone = float(curve.ttft_ms["alone"][0])
    assert first[ridge] / alone > 1.6  # 128: 71 to 82 % more
    assert 1.05 < first[512] / alone < first[256] / alone < 1.35  # 11 % and 26 to 29 % more


def test_the_claims_of_the_lesson_exist() -> None:
    there = record.named(story.CLAIMS)
    assert all(any(fnmatchcase(name, pattern) for name in there) for pattern in story.FIRST_CLAIMS)


def test_the_load_that_a_policy_bears_is_what_the_search_finds_and_the_curve_shows_it() -> None:
    values = tuple({"model": "Mistral-7B", "budget": 512}.items())
    load, speed = scenario.load(values, "chunks", 100)
    server = service("Mistral-7B", "A100-80G")
    found = search(chat(2048, 1), server, sarathi_serve(128, 512, server.blocks()), Rule(0.1))
    assert load.capacity == found.rate and speed > 0
    assert (load.rate[1:] > load.rate[:-1]).all() and load.capacity in load.rate
    curve = scenario.curve(dict(values), {"chunks": load}, 100)
    assert f"**{load.capacity:.2f} requests/s**" in story.capacity_words(curve, speed)
    json.dumps(figures.curve(curve, dark=True).figure, allow_nan=False)


def test_where_no_rate_keeps_the_limit_that_is_said() -> None:
    load, speed = scenario.load({"budget": 16384}, "chunks", 50)
    if load.capacity == 0:
        assert "take a smaller budget" in story.capacity_words(scenario.curve({}, {"chunks": load}, 50), speed)
    else:
        assert load.tbt_p99_ms[load.rate == load.capacity][0] <= 50


def _counts(until: int, report: Callable[[int], None]) -> int:
    for i in range(until):
        report(i)
        sleep(0.002)
    return until


def _soon(condition: Callable[[], bool]) -> bool:
    end = monotonic() + 60
    while not condition() and monotonic() < end:
        sleep(0.01)
    return condition()


def test_a_search_is_run_once_for_all_tells_how_far_it_is_and_stops_when_it_is_given_up() -> None:
    long, short = ("test", "long"), ("test", "short")
    first = worker.ask(long, _counts, 10**9, reports=True)
    assert worker.ask(long, _counts, 10**9, reports=True) is first
    behind = worker.ask(short, _counts, 3, reports=True)
    assert _soon(lambda: (worker.progress(long) or 0) > 3) and worker.progress(short) is None
    worker.give_up(long)
    assert _soon(lambda: worker.given_up(first))
    assert behind.result(60) == 3 and worker.progress(short) == 2 and not worker.given_up(behind)
    again = worker.ask(long, _counts, 10**9, reports=True)
    assert again is not first
    worker.give_up(long)
    assert _soon(lambda: worker.given_up(again))


def _dies(deaths: int, where: str) -> str:
    """Takes its process along, the first so many times."""
    before = Path(where).stat().st_size if Path(where).exists() else 0
    with open(where, "a", encoding="ascii") as file:
        file.write("x")
    if before < deaths:
        os._exit(1)
    return "alive"


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_search_whose_process_dies_is_asked_for_once_more(deaths: int, tmp_path: Path) -> None:
    key, args = ("test", "dies", deaths), (deaths, str(tmp_path / "deaths"))
    first = worker.ask(key, _dies, *args)
    assert _soon(first.done) and worker.lost(first)
    second = worker.ask(key, _dies, *args)
    assert second is not first and _soon(second.done)
    assert worker.lost(second) if deaths == 2 else second.result() == "alive"
    assert worker.ask(key, _dies, *args) is second
    assert worker.ask(("test", "after", deaths), _counts, 2, reports=True).result(60) == 2


def test_only_chunks_are_searched_anew_for_another_budget() -> None:
    one, other = scenario.filled({"budget": 512}), scenario.filled({"budget": 256})
    assert [key for key in scenario.KEYS if scenario.bears(one, key) != scenario.bears(other, key)] == ["chunks"]
    tried: list[tuple[int, float]] = []
    scenario.load(scenario.bears(one, "chunks"), "chunks", 100, tried.append)
    assert [n for n, _ in tried] == list(range(1, len(tried) + 1)) and tried[-1][1] > 0


def test_progress_counts_searches_and_rates() -> None:
    # One done; one with 4 of about 10 rates tried: 1.4 of 3.
    share, words = story.search_progress([True, False, False], [(8, 90_000.0), (4, 80_000.0), None])
    assert share == pytest.approx(1.4 / 3)
    assert words.startswith("Searching: 1 of 3 policies; 12 rates tried, 80,000 requests simulated a second.")
    assert story.search_progress([False] * 3, [None] * 3) == (0.0, "Searching: 0 of 3 policies. The lesson goes on meanwhile.")


def test_the_model_s_error_stands_behind_each_number() -> None:
    table = story.numbers(CLASSIC).set_index("")
    off = {kind: f"±\u00a0{scenario.model_error({}, kind)[0]:.1f}\u00a0%" for kind in ("decode", "prefill", "hybrid")}
    assert table.loc["Longest gap of a stream", "Alone"].endswith(off["prefill"])
    assert table.loc["Longest gap of a stream", "Chunks"].endswith(off["hybrid"])
    # Half of all gaps are decodes alone where the prompt takes one step, and chunks where it takes 34 of them.
    assert table.loc["Gap between tokens (ITL), p50", "Whole"].endswith(off["decode"])
    assert table.loc["Gap between tokens (ITL), p50", "Chunks"].endswith(off["hybrid"])
    a40 = scenario.result({"gpu": "A40"})
    assert "±" not in story.numbers(a40).to_string() and "data sheet" in story.numbers_note(a40)


def test_take_away_redoes_the_run() -> None:
    scope: dict[str, object] = {}
    exec(story.python_lines({"budget": 256}), scope)  # noqa: S102  # our own lines
    assert scope["result"].summaries == scenario.result({"budget": 256}).summaries  # type: ignore[attr-defined]
    events = json.loads(story.chrome_trace(CLASSIC))["traceEvents"]
    steps = [e for e in events if e.get("args", {}).get("prompt tokens") and e["pid"] == 3]
    assert sum(e["args"]["prompt tokens"] for e in steps if e["ts"] >= CLASSIC.scenario.landing_us) == 16_384
    assert story.requests_csv(CLASSIC).count("\n") == 3 * 17 + 1


def test_the_lead_is_short_and_words_are_plain() -> None:
    assert len(story.LEAD) <= 260 and all(len(says.split()) < 20 for _, says in story.WORDS)
