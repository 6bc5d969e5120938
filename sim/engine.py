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
from functools import lru_cache
from heapq import heappop, heappush

import numpy as np

from sim.policy import Policy
from sim.run import FINISHED, UNFINISHED, Run, Steps
from sim.service import StepTime
from sim.trace import Trace

_NEVER = 1 << 60
_TABLE = 1 << 15  # larger steps are computed one by one
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
        self._length: list[int] = []  # prompt and output
        self._ending: list[int] = []  # (output - 1) << 32 | request: how many decode steps it takes
        self._admitted: list[float] = []
        self._first: list[float] = []
        self._finished: list[float] = []
        self._released: list[float] = []
        self._rows: list[float] = []  # the step rows, one after another
        self._closed = False
        self._clock = 0.0
        self._next = 0  # the first request not yet admitted
        self._freed = 0  # static: the first request whose slot is not yet free
        self._done = 0  # prompt tokens done of the request before `_next`, if its prompt is half done; else 0
        self._decoding = 0
        self._context = 0  # tokens that the next decode step attends to, over all decoding requests
        self._steps = 0  # decode steps taken
        self._ends: list[int] = []  # heap: the number of the decode step that ends a request, << 32, | the request

    def submit(self, trace: Trace) -> None:
        """Queue requests that arrive no earlier than those submitted before. ValueError names row and reason."""
        arrival, policy = trace.arrival_us, self.policy
        if self._arrival and arrival[0] < self._arrival[-1]:
            raise ValueError(f"row 0 arrives at {arrival[0]:.0f} µs, but one submitted before at {self._arrival[-1]:.0f} µs")
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
        self._length += (trace.prompt + trace.output).tolist()
        self._ending += (trace.output - 1 << 32 | np.arange(len(arrival)) + len(self._ending)).tolist()
        for column in (self._admitted, self._first, self._finished, self._released):
            column += [math.nan] * len(trace)

    def close(self) -> None:
        """Say that no further request will come: a static batch need not wait for one."""
        self._closed = True

    def advance(self, until_us: float) -> None:
        """Take every stretch that ends by `until_us`; inf: close, and serve what is there to the end."""
        self._closed = self._closed or until_us == math.inf
        policy, service = self.policy, self.service
        static = policy.batching == "static"
        alone = policy.prompts == "alone" and not static
        split = policy.prompts == "chunked" and not static
        slots, longest = policy.slots, self.longest_stretch
        budget = _NEVER if policy.budget is None or static else policy.budget
        context_us, attention_us, request_us = service.context_us, service.attention_us, service.request_us
        base, far = _table(service), service.base_us
        arrival, prompt, length, ending = self._arrival, self._prompt, self._length, self._ending
        admitted, first, finished, ends = self._admitted, self._first, self._finished, self._ends
        rows = self._rows
        t, head, done, n, context, k = self._clock, self._next, self._done, self._decoding, self._context, self._steps
        total = len(arrival)
        # When the head of the queue may enter; a static batch shuts the door behind it.
        entry = math.inf if head == total or static else arrival[head]
        next_end = ends[0] >> 32 if ends else _NEVER

        while True:
            # 1. The prompt tokens of this step: the half-done prompt first, then who waits.
            granted = 0
            if done or entry <= t:
                left = budget if alone else budget - n
                room = slots - n
                units, prefilling, entering, chunk, rest = 0.0, 0, 0, 0, 0
                if done:
                    rest = prompt[head - 1] - done
                    granted = chunk = rest if rest < left else left
                    units, prefilling = chunk * (done + (chunk + 1) / 2), 1
                    left -= chunk
                    room -= 1
                if left > 0 and room > 0 and entry <= t:
                    i = head
                    while left > 0 and room and i < total and arrival[i] <= t:
                        size = prompt[i]
                        if size > left:
                            if not split:
                                break
                            chunk, rest = left, size
                        else:
                            chunk = rest = size
                        granted += chunk
                        units += chunk * ((chunk + 1) / 2)
                        left -= chunk
                        room -= 1
                        i += 1
                    entering = i - head
                    prefilling += entering

            # 2. How long the step takes, and for how many steps nothing else happens.
            if granted:
                decoding = 0 if alone else n
                tokens = decoding + granted
                first_us = base[tokens] if tokens < _TABLE else float(far(np.array([tokens]))[0])
                first_us += attention_us * units + request_us * (decoding + prefilling)
                if decoding:
                    first_us += context_us * context
                m, growth = 1, 0.0
                if chunk < rest and prefilling == 1:
                    # The same chunk again, up to the prompt's last one or the next end.
                    m = min((rest - 1) // chunk, next_end - k, longest)
                    growth = attention_us * (chunk * chunk) + context_us * decoding
                end = t + m * first_us + growth * (m * (m - 1) // 2)
            elif n:
                decoding, prefilling = n, 0
                m = next_end - k
                if m > longest:
                    m = longest
                first_us = (base[n] if n < _TABLE else float(far(np.array([n]))[0])) + context_us * context + request_us * n
                growth = context_us * n
                end = t + m * first_us + growth * (m * (m - 1) // 2)
                if t < entry < end and n < slots and (n < budget or alone):
                    m = _steps_until(entry - t, first_us, growth)
                    end = t + m * first_us + growth * (m * (m - 1) // 2)
            else:
                if static:
                    self._release(head, t)
                    entry = self._launch(head, t)
                if entry > until_us or entry == math.inf:
                    break
                if entry > t:
                    t = entry
                continue
            if end > until_us:
                break

            # 3. Take them.
            rows += (t, m, first_us, decoding, prefilling, granted)
            if decoding:
                k += m
                context += n * m
            if granted:
                unfinished = chunk < rest
                last = head + entering
                for i in range(head - 1 if done else head, last - unfinished):
                    first[i] = end
                    heappush(ends, ending[i] + (k << 32))
                    n += 1
                    context += prompt[i] + 1
                while head < last:
                    admitted[head] = t
                    head += 1
                if not unfinished:
                    done = 0
                else:
                    done = (0 if entering else done) + m * chunk
                entry = math.inf if static or head == total else arrival[head]
                next_end = ends[0] >> 32 if n else _NEVER
            t = end
            while next_end == k:
                i = heappop(ends) & _REQUEST
                finished[i] = t
                n -= 1
                context -= length[i]
                next_end = ends[0] >> 32 if n else _NEVER

        self._clock, self._next, self._done, self._decoding, self._context, self._steps = t, head, done, n, context, k

    def run(self, trace: Trace) -> Run:
        """What happened so far, as columns; `trace` is what was submitted."""
        finished = np.array(self._finished)
        rows = np.fromiter(self._rows, np.float64, len(self._rows)).reshape(-1, 6).T
        start, first_us = rows[0].copy(), rows[2].copy()
        count, decode, prefilling, prefill = rows[[1, 3, 4, 5]].astype(np.int64)
        growth = (self.service.attention_us * (prefill * prefill) + self.service.context_us * decode).astype(np.float64)
        growth[count == 1] = 0.0
        return Run(
            trace,
            self.service,
            self.policy,
            admitted_us=np.array(self._admitted),
            first_token_us=np.array(self._first),
            finished_us=finished,
            released_us=np.array(self._released) if self.policy.batching == "static" else finished,
            outcome=np.where(np.isnan(finished), UNFINISHED, FINISHED).astype(np.int8),
            steps=Steps(start, count, first_us, growth, decode, prefilling, prefill),
        )

    def _launch(self, head: int, now: float) -> float:
        """Clock at which the next static batch leaves: full, timed out, or the trace is over. inf: not known yet."""
        arrival, last = self._arrival, head + self.policy.slots - 1
        if head == len(arrival):
            return math.inf
        if last < len(arrival):
            full = arrival[last]
        else:
            full = arrival[-1] if self._closed else math.inf
        return max(now, min(full, arrival[head] + 1e6 * self.policy.fill_timeout))

    def _release(self, head: int, now: float) -> None:
        """Static: the batch is over, and the slots of all its members are free."""
        self._released[self._freed : head] = [now] * (head - self._freed)
        self._freed = head


@lru_cache(maxsize=16)
def _table(service: StepTime) -> list[float]:
    """Step time by tokens in the step, µs; engines of the same service share it, so a service must be hashable."""
    table: list[float] = service.base_us(np.arange(_TABLE)).tolist()
    return table


def _steps_until(gap: float, first: float, growth: float) -> int:
    """The least m ≥ 1 with m·first + growth·m(m−1)/2 ≥ gap: the root of the quadratic, corrected for rounding."""
    half = first - growth / 2
    m = max(1, int(2 * gap / (half + math.sqrt(half * half + 2 * growth * gap))))
    while m * first + growth * (m * (m - 1) // 2) < gap:
        m += 1
    while m > 1 and (m - 1) * first + growth * ((m - 1) * (m - 2) // 2) >= gap:
        m -= 1
    return m
