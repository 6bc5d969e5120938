"""The readings' loader: what it refuses, and that it says where; and that a reading stands no earlier than its lesson."""

from __future__ import annotations

import json
from typing import Any

import pytest

from explainers import PATH
from explainers.course import readings

GOOD: list[dict[str, Any]] = json.loads(readings.FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("field, value, said", [
    ("url", "http://arxiv.org/abs/2309.06180", "https://"),
    ("level", 4, "level must be from 1 to 3"),
    ("level", True, "level must be a whole number"),
    ("year", "2023", "year must be a whole number"),
    ("why", "", "why must be text"),
    ("licence", "MIT", "licence missing or unknown"),
    ("order", 1, "orders must be 1 to"),
])
def test_a_wrong_entry_is_refused_by_name(field: str, value: object, said: str) -> None:
    wrong = [*GOOD[:2], {**GOOD[2], field: value}, *GOOD[3:]]
    with pytest.raises(ValueError, match=said):
        readings.read(wrong)


def test_a_missing_field_is_refused_with_its_entry() -> None:
    short = {name: value for name, value in GOOD[1].items() if name != "year"}
    with pytest.raises(ValueError, match=r"entry 2 \(Orca.*year missing"):
        readings.read([GOOD[0], short])


def test_a_level_does_not_go_back() -> None:
    first, last = {**GOOD[0], "level": 3, "order": 1}, {**GOOD[1], "level": 1, "order": 2}
    with pytest.raises(ValueError, match="lower level"):
        readings.read([last | {"order": 2}, first])


def test_a_reading_comes_no_earlier_than_the_lesson_it_backs() -> None:
    level = {entry.key: entry.level + 1 for entry in PATH}
    for reading in readings.readings():
        assert reading.level >= level[reading.lesson], reading.title
