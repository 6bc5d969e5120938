"""What the learner is asked: a number to predict, and questions whose wrong options are named misconceptions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prediction:
    """A number to commit before the answer shows, in [low, high]."""

    question: str
    unit: str
    low: int
    high: int
    step: int = 1


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
