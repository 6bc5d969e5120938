"""What the learner is asked: a number to predict, and questions whose wrong options are named misconceptions."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Prediction:
    """A number to commit before the answer shows, in [low, high].

    choices  instead of a number: (label, options) each to choose from; the number then has a digit for each of them, the first
             one the highest, in the base of how many options it has
    """

    question: str
    unit: str
    low: int
    high: int
    step: int = 1
    choices: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def number(self, chosen: Sequence[int]) -> int:
        """The number that stands for these options, counted from 0."""
        total = 0
        for (_, options), one in zip(self.choices, chosen, strict=True):
            total = total * len(options) + one
        return total


@dataclass(frozen=True)
class Option:
    """One answer. `why`: what is right about it, or the misconception behind it and where it fails; a sentence or two."""

    text: str
    correct: bool
    why: str


@dataclass(frozen=True)
class Question:
    """A question whose numbers come from the run on the screen; exactly one option is right."""

    prompt: str
    options: tuple[Option, ...]

    def __post_init__(self) -> None:
        """Raise ValueError unless one option is right, the texts differ, and each option says why."""
        if sum(option.correct for option in self.options) != 1:
            raise ValueError(f"question {self.prompt!r}: exactly one option must be correct")
        if len({option.text for option in self.options}) < len(self.options):
            raise ValueError(f"question {self.prompt!r}: two options read the same")
        if not all(option.why for option in self.options):
            raise ValueError(f"question {self.prompt!r}: every option needs a why")


def question(prompt: str, right: tuple[str, str], *wrong: tuple[str, str, str]) -> Question:
    """At most four options, none twice, in an order that the texts alone decide.

    right: (text, why); wrong: (text, the misconception, why it fails), the best ones first.
    """
    options = {right[0]: Option(right[0], True, right[1])}
    for text, misconception, why in wrong:
        if len(options) < 4:
            said = f"You assumed that {misconception}. {why} The right answer: {lowered(right[0])}."
            options.setdefault(text, Option(text, False, said))
    return Question(prompt, tuple(sorted(options.values(), key=lambda o: zlib.crc32((prompt + o.text).encode()))))


def apart(right: float, wrong: Sequence[tuple[float, str, str]], least: float) -> list[tuple[float, str, str]]:
    """The wrong numbers that are far enough from the right one to be plainly wrong."""
    return [option for option in wrong if abs(option[0] - right) >= least]


def lowered(text: str) -> str:
    """The text as it stands within a sentence: its first word small."""
    return text[:1].lower() + text[1:]
