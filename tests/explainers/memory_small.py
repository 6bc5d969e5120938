"""A memory small enough to be worked on paper, for the tests of the memory lesson.

32 token slots, steps of 1 ms. Three requests at once, 4 prompt and 3 output tokens: the first step computes the prompt (4 KV),
each further one adds a token, and the last output token has no KV: 6 KV at the end, after three steps.

Orca (Max), maximum length 16: two pieces of 16 fit, request 3 waits until 3 ms. A piece holds 4, 5, 6 tokens in turn; 6 of it
will be filled, so 10 never. Paged, blocks of 4: all three enter with one block each, and take a second one at 1 ms, of which
two slots are filled in the end.
"""

from __future__ import annotations

import numpy as np

from explainers.memory import scenario as s
from sim.policy import Memory, Policy, orca_in_one_piece
from sim.service import Affine
from sim.trace import Trace

US = 1000.0


def by_hand() -> s.Result:
    """Both memories of the module's text."""
    trace = Trace(np.zeros(3), np.full(3, 4), np.full(3, 3))
    paged = Policy("Paged, block 4", "continuous", 16, None, "whole", memory=Memory(8, 4), longest=16)
    policies = {"reserved": orca_in_one_piece(16, 32, 16, "maximum"), "other": paged}
    return s.serve(s.Scenario(trace, Affine(US), policies, s.filled({})))
