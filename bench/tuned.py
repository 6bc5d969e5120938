"""How far plain Python goes when the loop is tuned by hand: decodes apart from prompts, and the context kept, not summed."""

from __future__ import annotations

import math

import numpy as np

from sim.service import StepTime
from sim.trace import Trace

Times = tuple[list[float], list[float], list[float]]


def serve(trace: Trace, service: StepTime, slots: int, budget: int) -> Times:
    """When each request was admitted, got its first token and its last one, µs.

    The rules and limits of bench/plain.py. What is left per token is one subtraction and one test.
    """
    if slots >= budget:
        raise ValueError(f"the budget must be larger than the slots, not {budget} for {slots}")
    arrival, prompt, output = trace.arrival_us.tolist(), trace.prompt.tolist(), trace.output.tolist()
    base = service.base_us(np.arange(budget + 1)).tolist()
    context_us, attention_us, request_us = service.context_us, service.attention_us, service.request_us
    n = len(arrival)
    admitted, first, finished = [math.nan] * n, [math.nan] * n, [math.nan] * n
    todo = list(output)  # tokens that each request has yet to yield
    computed = [0] * n  # prompt tokens done
    decoding: list[int] = []
    prefilling: list[int] = []
    context = 0  # tokens that the next decodes attend to
    head, now = 0, 0.0

    while head < n or decoding or prefilling:
        if not decoding and not prefilling and arrival[head] > now:
            now = arrival[head]
        # Who gets what: a token for every decode, then prompts as far as the budget goes.
        left = budget - len(decoding)
        grants = []
        for r in prefilling:
            chunk = min(left, prompt[r] - computed[r])
            grants.append((r, chunk))
            left -= chunk
        while left and head < n and arrival[head] <= now and len(decoding) + len(grants) < slots:
            chunk = min(left, prompt[head])
            grants.append((head, chunk))
            left -= chunk
            admitted[head] = now
            head += 1
        # How long the step takes.
        now += base[budget - left] + context_us * context + request_us * (len(decoding) + len(grants))
        for r, chunk in grants:
            now += attention_us * chunk * (computed[r] + (chunk + 1) / 2)
        # What it yields.
        ended = False
        for r in decoding:
            todo[r] -= 1
            if not todo[r]:
                finished[r] = now
                context -= prompt[r] + output[r] - 1
                ended = True
        context += len(decoding)
        if ended:
            context -= sum(not todo[r] for r in decoding)
            decoding = [r for r in decoding if todo[r]]
        if grants:
            prefilling = []
            for r, chunk in grants:
                computed[r] += chunk
                if computed[r] < prompt[r]:
                    prefilling.append(r)
                    continue
                first[r] = now
                todo[r] -= 1
                if todo[r]:
                    decoding.append(r)
                    context += prompt[r] + 1
                else:
                    finished[r] = now
    return admitted, first, finished
