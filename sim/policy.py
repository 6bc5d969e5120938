"""Policy: the rules by which a server picks what runs next, and presets named after the systems that use them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Batching = Literal["continuous", "static"]
Prompts = Literal["chunked", "whole", "alone"]


@dataclass(frozen=True)
class Policy:
    """The rules of one server. Only these differ in a comparison: trace and service are shared.

    name          shown in figures, tables and messages
    batching      "continuous": requests join and leave between any two steps;
                  "static": a batch runs until its last member ends, and only then the next one starts
    slots         most requests that may hold a place at once (vLLM: max_num_seqs; static: the batch size)
    budget        most tokens in one step (vLLM: max_num_batched_tokens); None: no limit. Continuous only; with prompts
                  alone it bounds the steps that hold prompts
    prompts       how a prompt enters (continuous only; a static batch always takes its prompts whole, in one step):
                  "chunked": split so that the step stays within the budget, beside the decodes;
                  "whole":   unsplit, beside the decodes; one that does not fit the rest of the budget waits;
                  "alone":   unsplit, in steps that hold prompts only, and before any decode
    fill_timeout  seconds that the oldest waiting request waits for a static batch to fill; inf: until it is full or
                  the trace ends
    """

    name: str
    batching: Batching = "continuous"
    slots: int = 256
    budget: int | None = None
    prompts: Prompts = "chunked"
    fill_timeout: float = math.inf

    def __post_init__(self) -> None:
        """Raise ValueError that names the field and its range."""
        if self.batching not in ("continuous", "static"):
            raise ValueError(f"policy {self.name!r}: batching must be 'continuous' or 'static', not {self.batching!r}")
        if self.prompts not in ("chunked", "whole", "alone"):
            raise ValueError(f"policy {self.name!r}: prompts must be 'chunked', 'whole' or 'alone', not {self.prompts!r}")
        if self.slots < 1:
            raise ValueError(f"policy {self.name!r}: slots must be at least 1, not {self.slots}")
        if self.budget is not None and self.budget < 1:
            raise ValueError(f"policy {self.name!r}: budget must be at least 1 token, not {self.budget}; None means no limit")
        if not self.fill_timeout >= 0:
            raise ValueError(f"policy {self.name!r}: fill_timeout must be 0 s or more, not {self.fill_timeout}")


def static(slots: int, fill_timeout: float = math.inf, name: str = "static") -> Policy:
    """Request-level batching, as FasterTransformer behind a dynamic batcher runs it.

    A batch leaves when it is full, when its oldest member has waited `fill_timeout` seconds, or when the trace has
    ended; it runs until its last member ends (Orca, OSDI 2022, section 2; Triton's max_queue_delay_microseconds).
    """
    return Policy(name, "static", slots, fill_timeout=fill_timeout)


def continuous(slots: int, budget: int | None = None, prompts: Prompts = "chunked", name: str = "continuous") -> Policy:
    """Iteration-level batching (Orca, OSDI 2022, section 3.1): the batch is chosen anew before every step.

    With a budget and chunked prompts these are the decisions of vLLM's v1 scheduler with unlimited memory.
    """
    return Policy(name, "continuous", slots, budget, prompts)
