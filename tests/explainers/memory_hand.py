"""Small memories of the memory lesson that are worked out on paper: a step takes 1 ms, whatever is in it."""

from __future__ import annotations

from explainers.memory.scenario import SLOTS, Result, Scenario, filled, serve
from sim.policy import Memory, Policy, orca_in_one_piece
from sim.service import Affine
from sim.trace import Trace


def by_hand(prompt: list[int], output: list[int], tokens: int, longest: int, block: int = 2,
            swap_us: float | None = None) -> Result:
    """Requests that all come at 0, in a memory of `tokens` slots: Orca (Max), which reserves `longest`, and blocks of `block`."""
    trace = Trace([0.0] * len(prompt), prompt, output)
    paged = Policy(f"Paged, block {block}", "continuous", SLOTS, None, "whole", longest=longest,
                   memory=Memory(tokens // block, block, swap_us=swap_us))
    policies = {"reserved": orca_in_one_piece(SLOTS, tokens, longest, "maximum"), "other": paged}
    return serve(Scenario(trace, Affine(1000), policies, filled({})))


def four() -> Result:
    """Four requests of 2 prompt and 3 output tokens, so 4 tokens of KV each; 16 slots, at most 8 a request, blocks of 2.

    Orca (Max): two pieces of 8; requests 1 and 2 run from 0 to 3 ms, 3 and 4 to 6 ms. While the others wait, tokens take 4, 6
    and 8 of the 16 slots, those to come 4, 2 and 0, and 8 are never filled: 37.5 %, 12.5 %, 50 %.
    Paged: a block for each prompt, and a second one for each at 1 ms: all four run from 0 to 3 ms. Tokens take 8, 12 and 16
    slots of 8, 16 and 16 that are taken: 36 of 40.
    """
    return by_hand([2] * 4, [3] * 4, 16, 8)


def short() -> Result:
    """Two requests of 2 prompt and 5 output tokens, so 6 tokens of KV each, in 4 blocks of 2.

    At 3 ms both have 4 tokens in 2 blocks, and request 1 needs a third: request 2 gives way. Request 1 ends at 5 ms; request 2
    computes its 5 known tokens at once, has its fourth output token at 6 ms and its last at 7 ms. Orca (Max), 8 slots: one
    after the other, until 5 and 10 ms.
    """
    return by_hand([2, 2], [5, 5], 8, 8)
