"""The engine: decides before every step which requests run in it, and takes stretches of equal steps at once.

Decisions are those of vLLM's v1 scheduler with unlimited memory: first come, first served; running requests are granted
tokens before waiting ones; a decode is one token, a prompt as much as the budget leaves (peers/vllm/SEMANTICS.md, rules
1-6 and 13-19). Static batching is the same loop with the door shut while a batch runs.

Between two events the batch stays as it is, so each step takes longer than the one before by the same amount: decode
contexts grow by one token a request, and the attention of equal prompt chunks of c tokens by c² units a chunk. Such a
stretch is one row, its end the sum of an arithmetic series. Work is O(log n) per event, whatever the number of tokens.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import chain

import numpy as np

from sim.policy import Policy
from sim.run import FINISHED, UNFINISHED, Run, Steps
from sim.service import StepTime
from sim.trace import Trace

_NEVER = 1 << 60
_REQUEST = (1 << 32) - 1  # the low half of an entry in the heap of ends


def simulate(trace: Trace, service: StepTime, policy: Policy) -> Run:
    """Serve the whole trace under the policy, to the end. ValueError names the row that the policy cannot serve."""
    engine = Engine(service, policy)
    engine.submit(trace)
    engine.advance(math.inf)
    return engine.run(trace)


class Engine:
    """One server, resumable: `submit` requests, `advance` the clock, read the `run`.

    A stretch is taken only if it ends by the time asked for. So `advance` never splits a row, and a request that is
    submitted later still cuts the stretch during which it arrives.

    longest_stretch limits how many steps are taken at once. Only tests set it: one step at a time gives the same run.
    """

    def __init__(self, service: StepTime, policy: Policy, longest_stretch: int = _NEVER) -> None:
        self.service, self.policy, self.longest_stretch = service, policy, longest_stretch
        # Columns of the requests submitted; times in µs.
        self._arrival: list[float] = []
        self._prompt: list[int] = []
        self._output: list[int] = []
        self._admitted: list[float] = []
        self._first: list[float] = []
        self._finished: list[float] = []
        self._released: list[float] = []
        self._rows: list[tuple[float, ...]] = []
        self._base: list[float] = []  # step time by tokens in the step, µs
        self._clock = 0.0
        self._next = 0  # the first request not yet admitted
        self._freed = 0  # static: the first request whose slot is not yet free
        self._partial, self._done = -1, 0  # the request whose prompt is half done (-1: none), and its tokens done
        self._decoding = 0
        self._context = 0  # tokens that the next decode step attends to, over all decoding requests
        self._decode_steps = 0
        self._ends: list[int] = []  # heap: the decode step that ends a request, << 32, | the request

    def submit(self, trace: Trace) -> None:
        """Queue requests that arrive no earlier than those submitted before. ValueError names row and reason."""
        arrival, policy = trace.arrival_us, self.policy
        if self._arrival and arrival[0] < self._arrival[-1]:
            raise ValueError(f"row 0 arrives at {arrival[0]:.0f} µs, before a request submitted earlier ({self._arrival[-1]:.0f} µs)")
        if trace.cancel is not None and np.isfinite(trace.cancel).any():
            row = int(np.flatnonzero(np.isfinite(trace.cancel))[0])
            raise ValueError(f"row {row} is cancelled, which the engine does not model yet: leave out the cancel column")
        if policy.batching == "continuous" and policy.prompts != "chunked" and policy.budget is not None:
            too_long = np.flatnonzero(trace.prompt > policy.budget)
            if len(too_long):
                row = int(too_long[0])
                raise ValueError(
                    f"row {row}: its prompt of {trace.prompt[row]} tokens never fits the budget of {policy.budget} whole; "
                    "raise the budget, or let prompts be chunked"
                )
        self._arrival += arrival.tolist()
        self._prompt += trace.prompt.tolist()
        self._output += trace.output.tolist()
        for column in (self._admitted, self._first, self._finished, self._released):
            column += [math.nan] * len(trace)

    def advance(self, until_us: float) -> None:
        """Take every stretch that ends by `until_us`; inf: to the end, and no further request will come."""
        policy, service = self.policy, self.service
        static = policy.batching == "static"
        alone = policy.prompts == "alone" and not static
        split = policy.prompts == "chunked" and not static
        slots, longest = policy.slots, self.longest_stretch
        budget = _NEVER if policy.budget is None or static else policy.budget
        context_us, attention_us, request_us = service.context_us, service.attention_us, service.request_us
        arrival, prompt, output = self._arrival, self._prompt, self._output
        admitted, first, finished = self._admitted, self._first, self._finished
        record, base, ends = self._rows.append, self._base, self._ends
        t, head, partial, done, n = self._clock, self._next, self._partial, self._done, self._decoding
        context, k = self._context, self._decode_steps
        total = len(arrival)
        next_arrival = arrival[head] if head < total else math.inf

        while True:
            running = n if partial < 0 else n + 1
            if not running:
                if static:
                    self._release(head, t)
                    next_arrival = self._launch(head, t, until_us)
                if next_arrival > t:
                    if next_arrival > until_us or next_arrival == math.inf:
                        break
                    t = next_arrival

            # 1. The prompt tokens of this step: the half-done prompt first, then who waits.
            granted = prefilling = entering = 0
            units, swell = 0.0, 0  # units of prefill attention, and how many more the next equal step needs
            left = budget if alone else budget - n
            chunk = rest = 0
            if partial >= 0:
                rest = prompt[partial] - done
                chunk = granted = rest if rest < left else left
                units, prefilling = chunk * (done + (chunk + 1) / 2), 1
                left -= chunk
            if next_arrival <= t and running < slots and left > 0 and not (static and running):
                room = slots - running
                while room and left > 0 and head + entering < total and arrival[head + entering] <= t:
                    chunk = rest = prompt[head + entering]
                    if chunk > left:
                        if not split:
                            break
                        chunk = left
                    granted += chunk
                    units += chunk * ((chunk + 1) / 2)
                    prefilling += 1
                    left -= chunk
                    room -= 1
                    entering += 1

            # 2. For how many steps nothing else happens, and how long the first of them takes.
            decoding = 0 if alone and granted else n
            m = 1
            if not granted:
                m = (ends[0] >> 32) - k
            elif chunk < rest and not entering:
                m = (rest - 1) // chunk
                if n and (ends[0] >> 32) - k < m:
                    m = (ends[0] >> 32) - k
                swell = chunk * chunk
            if m > longest:
                m = longest
            tokens = decoding + granted
            if tokens >= len(base):
                self._tabulate(tokens)
            first_us = base[tokens] + attention_us * units + request_us * (decoding + prefilling)
            growth = attention_us * swell
            if decoding:
                first_us += context_us * context
                growth += context_us * decoding
            end = t + m * first_us + growth * (m * (m - 1) // 2)
            if m > 1 and t < next_arrival < end and left > 0 and running < slots and not static:
                m = _steps_until(next_arrival - t, first_us, growth)
                end = t + m * first_us + growth * (m * (m - 1) // 2)
            if end > until_us:
                break

            # 3. Take them.
            record((t, m, first_us, growth, decoding, prefilling, granted))
            if decoding:
                k += m
                context += n * m
                while n and ends[0] >> 32 == k:
                    i = heappop(ends) & _REQUEST
                    finished[i] = end
                    n -= 1
                    context -= prompt[i] + output[i]
            if granted:
                unfinished = chunk < rest
                for i in range(head, head + entering):
                    admitted[i] = t
                finishing = range(head, head + entering - unfinished)
                for i in (partial, *finishing) if partial >= 0 and (entering or not unfinished) else finishing:
                    first[i] = end
                    if output[i] == 1:
                        finished[i] = end
                    else:
                        heappush(ends, (k + output[i] - 1) << 32 | i)
                        n += 1
                        context += prompt[i] + 1
                head += entering
                if not unfinished:
                    partial = -1
                elif entering:
                    partial, done = head - 1, chunk
                else:
                    done += m * chunk
                next_arrival = arrival[head] if head < total else math.inf
            t = end

        self._clock, self._next, self._partial, self._done, self._decoding = t, head, partial, done, n
        self._context, self._decode_steps = context, k

    def run(self, trace: Trace) -> Run:
        """What happened so far, as columns; `trace` is what was submitted."""
        finished = np.array(self._finished)
        rows = np.fromiter(chain.from_iterable(self._rows), np.float64).reshape(-1, 7)
        start, count, first_us, growth, decode, prefilling, prefill = rows.T
        whole = [column.astype(np.int64) for column in (count, decode, prefilling, prefill)]
        return Run(
            trace,
            self.service,
            self.policy,
            admitted_us=np.array(self._admitted),
            first_token_us=np.array(self._first),
            finished_us=finished,
            released_us=np.array(self._released) if self.policy.batching == "static" else finished,
            outcome=np.where(np.isnan(finished), UNFINISHED, FINISHED).astype(np.int8),
            steps=Steps(start.copy(), whole[0], first_us.copy(), growth.copy(), *whole[1:]),
        )

    def _launch(self, head: int, now: float, until_us: float) -> float:
        """Clock at which the next static batch leaves: full, timed out, or the trace is over. inf: not known yet."""
        arrival, last = self._arrival, head + self.policy.slots - 1
        if head == len(arrival):
            return math.inf
        if last < len(arrival):
            full = arrival[last]
        else:
            full = arrival[-1] if until_us == math.inf else math.inf
        return max(now, min(full, arrival[head] + 1e6 * self.policy.fill_timeout))

    def _release(self, head: int, now: float) -> None:
        """Static: the batch is over, and the slots of all its members are free."""
        self._released[self._freed : head] = [now] * (head - self._freed)
        self._freed = head

    def _tabulate(self, tokens: int) -> None:
        """Extend the table of step times to at least `tokens` tokens."""
        size = max(1024, len(self._base))
        while size <= tokens:
            size *= 2
        self._base[:] = self.service.base_us(np.arange(size)).tolist()


def _steps_until(gap: float, first: float, growth: float) -> int:
    """The least m ≥ 1 with m·first + growth·m(m−1)/2 ≥ gap: the root of the quadratic, corrected for rounding."""
    half = first - growth / 2
    m = max(1, int(2 * gap / (half + math.sqrt(half * half + 2 * growth * gap))))
    while m * first + growth * (m * (m - 1) // 2) < gap:
        m += 1
    while m > 1 and (m - 1) * first + growth * ((m - 1) * (m - 2) // 2) >= gap:
        m -= 1
    return m
