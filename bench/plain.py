"""What one would write without this project: continuous batching as a plain loop over steps and over the requests in each."""

from __future__ import annotations

import math

import numpy as np

from sim.service import StepTime
from sim.trace import Trace

Times = tuple[list[float], list[float], list[float]]


def serve(trace: Trace, service: StepTime, slots: int, budget: int) -> Times:
    """When each request was admitted, got its first token and its last one, µs.

    First come first served, unlimited memory. Who runs comes first, in order of admission: a token for a decode, as much
    of a prompt as the budget leaves; then who waits. slots < budget, so that no decode is ever left out. Lists and local
    names, no numpy in the loop, step times by tokens from a table. bench/tuned.py is what careful tuning makes of it.
    """
    if slots >= budget:
        raise ValueError(f"the budget must be larger than the slots, not {budget} for {slots}")
    arrival, prompt, output = trace.arrival_us.tolist(), trace.prompt.tolist(), trace.output.tolist()
    base = service.base_us(np.arange(budget + 1)).tolist()
    context_us, attention_us, request_us = service.context_us, service.attention_us, service.request_us
    n = len(arrival)
    admitted, first, finished = [math.nan] * n, [math.nan] * n, [math.nan] * n
    computed, yielded = [0] * n, [0] * n  # prompt tokens done, output tokens there
    running: list[int] = []
    head, now = 0, 0.0

    while head < n or running:
        if not running and arrival[head] > now:
            now = arrival[head]
        left, context, units = budget, 0, 0.0
        chunks = {}
        for r in running:
            if computed[r] < prompt[r]:
                chunks[r] = chunk = min(left, prompt[r] - computed[r])
                units += chunk * (computed[r] + (chunk + 1) / 2)
                left -= chunk
            else:
                context += prompt[r] + yielded[r]
                left -= 1
        while left and head < n and arrival[head] <= now and len(running) < slots:
            chunks[head] = chunk = min(left, prompt[head])
            units += chunk * (chunk + 1) / 2
            left -= chunk
            admitted[head] = now
            running.append(head)
            head += 1

        now += base[budget - left] + context_us * context + attention_us * units + request_us * len(running)

        for r in running:
            if r in chunks:
                computed[r] += chunks[r]
                if computed[r] < prompt[r]:
                    continue
                first[r] = now
            yielded[r] += 1
            if yielded[r] == output[r]:
                finished[r] = now
        running = [r for r in running if yielded[r] < output[r]]
    return admitted, first, finished
