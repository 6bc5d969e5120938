"""The engine: decides before every step which requests run in it, and takes stretches of equal steps at once.

Decisions are those of vLLM's v1 scheduler (version 0.33.0; peers/vllm/SEMANTICS.md, whose rule numbers stand in the
comments): running requests are granted tokens before waiting ones, in order of admission; a decode is one token, a prompt
as much as the budget leaves; who needs a block when none is free makes the newest running request give up its own.
Static batching is the same loop with the door shut while a batch runs.

Between two events the batch stays as it is, so each step takes longer than the one before by the same amount: decode
contexts grow by one token a request, and the attention of equal prompt chunks of c tokens by c² units a chunk. Such a
stretch is one row, its end the sum of an arithmetic series. Decoding requests are therefore kept as sums (how many, their
context, how many of them need a block at which step) and are looked at one by one only when they contend for blocks or
budget. Work is O(log n) per event, whatever the number of tokens, and O(running) where they contend or one leaves early.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import Counter, deque
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from sim.kv.content import Chains, Spans
from sim.kv.pool import Pool
from sim.kv.reserve import Buddy, blocks_needed, piece
from sim.orders import ORDERS, PER_TOKEN, outputs
from sim.policy import Memory, Policy
from sim.run import CANCELLED, FINISHED, HANDED_OFF, REFUSED, UNFINISHED, Event, Floats, Ints, Run, Steps
from sim.service import StepTime
from sim.trace import Trace

_NEVER = 1 << 60
_WITHOUT_LIMIT = Memory(1 << 40, 1)
_COLUMNS = 7  # of a step row: start, count, first duration, decode, prefilling, prefill, free blocks
_PACK = _COLUMNS << 14  # so many numbers of rows are kept as Python's before they are packed
_TABLE = 1 << 15  # larger steps are computed one by one
_REQUEST = (1 << 32) - 1  # the low half of an entry in the heap of ends


def simulate(trace: Trace, service: StepTime, policy: Policy, record_grants: bool = False) -> Run:
    """Serve the whole trace under the policy, to the end. ValueError names the row that the policy cannot serve."""
    engine = Engine(service, policy, record_grants=record_grants)
    engine.submit(trace)
    engine.advance(math.inf)
    return engine.run(trace)


class Intake(NamedTuple):
    """What an engine keeps of the requests of a trace, in its order; columns that the policy has no use for are empty."""

    arrival: list[float]  # µs
    prompt: list[int]
    ending: list[int]
    key: list[float]
    urgency: list[float]
    reserve: list[int]
    cancel: list[float]  # µs, inf: never
    refused: set[int]


# Of pass 1: budget left, prompt tokens granted, their units of attention, requests whose prompts are finished, those half
# done with their tokens, decoding requests that get nothing, whether anybody was preempted.
Grants = tuple[int, int, float, list[int], list[tuple[int, int]], list[int], bool]


class Engine:
    """One server, resumable: `submit` requests, `advance` the clock, read the `run`.

    A step that has begun is decided, and a stretch of steps is taken only if it ends by the time asked for; of one that
    somebody joins, the first step. So a request that is submitted later still cuts the stretch during which it arrives.

    longest_stretch limits how many steps are taken at once. Only tests set it: one step at a time gives the same run.
    """

    def __init__(
        self, service: StepTime, policy: Policy, *, record_grants: bool = False, longest_stretch: int = _NEVER,
        most_rows: int | None = None,
    ) -> None:
        self.service, self.policy, self.longest_stretch, self.most_rows = service, policy, longest_stretch, most_rows
        memory = self._memory = policy.memory or _WITHOUT_LIMIT
        self.stopped = ""  # why nothing more can happen though requests are left
        # For those who follow the engine: from when on another `advance` can make a difference, µs; and, if they make it a
        # list, whose first (~request) and last token has come, in order.
        self.due_us = 0.0
        self.said: list[int] | None = None
        self._closed = False
        self._clock = 0.0
        # Columns of the requests submitted; times in µs.
        self._arrival: list[float] = []
        self._prompt: list[int] = []
        self._known: list[int] = []  # tokens to compute before the next one comes: prompt, and reply after a preemption
        self._ending: list[int] = []  # tokens computed when the last one comes: prompt + output - 1
        self._key: list[float] = []  # place in the queue order, at arrival
        self._urgency: list[float] = []  # the trace's priority, where it says who gives way
        self._admitted: list[float] = []
        self._first: list[float] = []
        self._finished: list[float] = []
        self._released: list[float] = []  # static only
        # What few requests have.
        self._outcome: dict[int, int] = {}  # of the refused, and of those who left before their end
        self._cached = array("q")  # prefix-cache tokens at the first admission
        self._preemptions: Counter[int] = Counter()
        self._recomputed: Counter[int] = Counter()  # tokens computed and thrown away
        # What happened.
        self._rows: list[float] = []  # the latest step rows, one after another
        self._packed: list[Floats] = []  # those before them, in a quarter of the memory
        self._grants: list[list[tuple[int, int]]] | None = [] if record_grants else None
        self._events: list[Event] = []
        # Who waits.
        self._next = 0  # the first request that has not been admitted or, in a heap, has not arrived
        # First come, first served: the preempted, before those from `_next` on who have arrived. Else a heap of all who wait.
        self._queue: deque[int] | list[tuple[float, float, int]] = deque() if policy.order == "fcfs" else []
        self._gone: set[int] = set()  # requests from `_next` on that were refused or have given up
        self._cancels: list[tuple[float, int, int]] = []  # heap: time, request, outcome
        self._per_token = PER_TOKEN.get(policy.order, 0.0)
        # Who runs.
        self._running: dict[int, None] = {}  # in order of admission
        self._partial: dict[int, int] = {}  # running requests with a half-done prompt → tokens computed
        self._batch: list[int] = []  # static: members of the running batch
        # The decoding requests, as sums.
        self._decoding = 0
        self._context = 0  # tokens that the next decode step attends to, over all of them
        self._steps = 0  # decode steps taken
        self._since: list[int] = []  # tokens computed, less decode steps taken
        self._ends: list[int] = []  # heap: the number of the decode step that ends a request, << 32, | the request
        # How many of them need a block at decode steps ≡ r modulo the block size; twice, so that a slice may wrap.
        self._needy = [0] * (2 * memory.block_size)
        # Memory.
        self._chains = Chains(memory.block_size) if memory.prefix_cache else None
        self._pool = Pool(memory.blocks, memory.block_size, self._chains)
        self._reserve: list[int] = []  # blocks that each request reserves, where memory is reserved
        self._buddy = Buddy(memory.blocks) if memory.contiguous else None
        self._address: dict[int, int] = {}  # first block of what each request was given in one piece
        self._rng = np.random.default_rng(policy.seed)  # guesses of the output
        self._quoted = self._chains.quoted if self._chains else set[int]()  # requests whose replies later prompts quote
        self._speaking: set[int] = set()  # those of them that are decoding
        self._hit: dict[int, int] = {}  # for the grants: tokens that a request had when it last entered, where it had any
        self._kept: dict[int, int] = {}  # tokens of those swapped out to the host
        self._swap_us = 0.0  # time that swaps, and those who come back by one, add to the next step
        self._blocked = (-1, 0)  # the head that blocks were short for, and how many
        # Holding prompts back (rule 20).
        self._executed, self._last_prefill, self._bound = 0, -policy.prefill_every, False

    def submit(self, trace: Trace) -> None:
        """Queue requests that arrive no earlier than those submitted before. ValueError names row and reason."""
        arrival, offset = trace.arrival_us, len(self._arrival)
        if self._arrival and arrival[0] < self._arrival[-1]:
            raise ValueError(f"row 0 arrives at {arrival[0]:.0f} µs, but one submitted before at {self._arrival[-1]:.0f} µs")
        intake, n = self.prepare(trace), len(trace)
        self._arrival += intake.arrival
        self._prompt += intake.prompt
        self._known += intake.prompt
        self._ending += intake.ending
        self._make_room(n)
        self._key += intake.key
        self._urgency += intake.urgency
        self._reserve += intake.reserve
        for i in sorted(intake.refused):
            self._outcome[offset + i] = REFUSED
            self._gone.add(offset + i)
        if intake.cancel:
            for i in np.flatnonzero(np.isfinite(intake.cancel)).tolist():
                heappush(self._cancels, (intake.cancel[i], offset + i, CANCELLED))
        if self._chains is not None:
            self._chains.submit(trace)

    def prepare(self, trace: Trace) -> Intake:
        """What an engine of this policy keeps of the trace; a fleet's engines share it. ValueError names row and reason."""
        policy, memory = self.policy, self._memory
        output, needs = outputs(trace, policy), blocks_needed(trace, policy, self._rng)
        too_large = np.zeros(len(trace), bool)
        if memory.refuse:
            most = memory.blocks if self._buddy is None else self._buddy.most
            too_large = (needs > most) | (False if policy.longest is None else trace.prompt >= policy.longest)
        if policy.batching == "continuous" and policy.prompts != "chunked" and policy.budget is not None:
            # Who is preempted comes back with a prompt of all that it had.
            anew = policy.memory is not None and memory.reserve == "nothing" and memory.swap_us is None and memory.refuse
            whole = trace.prompt + (output - 1 if anew else 0)
            too_long = np.flatnonzero((whole > policy.budget) & ~too_large)
            if len(too_long):
                row = int(too_long[0])
                raise ValueError(
                    f"row {row}: its prompt of {trace.prompt[row]} tokens{' and its reply' if anew else ''} never fits the "
                    f"budget of {policy.budget} whole; raise the budget, or let prompts be chunked"
                )
        return Intake(
            trace.arrival_us.tolist(), trace.prompt.tolist(), (trace.prompt + output - 1).tolist(),
            [] if policy.order == "fcfs" else ORDERS[policy.order](trace, policy, self._rng).tolist(),
            ORDERS["priority"](trace, policy, None).tolist() if policy.victim == "least_urgent" else [],
            [] if memory.reserve == "nothing" else needs.tolist(),
            [] if trace.cancel_us is None else trace.cancel_us.tolist(),
            set(np.flatnonzero(too_large).tolist()),
        )

    def receive(self, intake: Intake, row: int, spans: Spans, quoted: bool) -> int:
        """Queue one request of a trace, which arrives no earlier than those before; its number in this engine.

        spans   its blocks by keys that all engines of a fleet share, if there is a prefix cache; they are the engine's then
        quoted  whether later prompts quote its reply
        """
        i = len(self._arrival)
        self._arrival.append(intake.arrival[row])
        self._prompt.append(intake.prompt[row])
        self._known.append(intake.prompt[row])
        self._ending.append(intake.ending[row])
        self._make_room(1)
        for mine, column in ((self._key, intake.key), (self._urgency, intake.urgency)):
            mine += column[row : row + 1]
        self._reserve += intake.reserve[row : row + 1]
        if row in intake.refused:
            self._outcome[i] = REFUSED
            self._gone.add(i)
        if intake.cancel and intake.cancel[row] < math.inf:
            heappush(self._cancels, (intake.cancel[row], i, CANCELLED))
        if self._chains is not None:
            self._chains.adopt(spans, quoted)
        return i

    def _make_room(self, n: int) -> None:
        """Places for the times and counts of n more requests."""
        for column in (self._admitted, self._first, self._finished):
            column += [math.nan] * n
        self._since += [0] * n
        self._cached.frombytes(bytes(8 * n))
        if self.policy.batching == "static":
            self._released += [math.nan] * n
        self.due_us = 0.0

    @property
    def waiting(self) -> int:
        """Requests that were submitted and have not been admitted, or were preempted and are not back."""
        return len(self._queue) + len(self._arrival) - self._next - len(self._gone)

    def times_of(self, request: int) -> tuple[float, float]:
        """End of its first and of its last token, µs; nan: not yet."""
        return self._first[request], self._finished[request]

    @property
    def pool(self) -> Pool:
        """Its KV blocks."""
        return self._pool

    def expect(self, trace: Trace) -> None:
        """Name the contents that will be submitted in pieces, before the first piece.

        Which prefixes are shared is then known from the start; a text that only one request had when it was looked up is
        otherwise taken for private, and a later one that quotes it does not find it.
        """
        if self._chains is not None:
            self._chains.expect(trace)

    def cancel(self, request: int, at_us: float) -> None:
        """Say that the client of a request submitted before gives up at `at_us`, or at its arrival if that is later.

        It is noticed when the step of that time ends; said too late for that, at the next decision.
        """
        self._give_up(request, at_us, CANCELLED)

    def hand_off(self, request: int, at_us: float) -> None:
        """Take a request away for another server, as `cancel` does; the event says how many tokens of KV must travel."""
        self._give_up(request, at_us, HANDED_OFF)

    def _give_up(self, request: int, at_us: float, outcome: int) -> None:
        if not 0 <= request < len(self._arrival):
            raise ValueError(f"request {request} was not submitted; there are {len(self._arrival)}, counted from 0")
        if math.isnan(at_us):
            raise ValueError(f"request {request}: the time at which it leaves must be a number of µs, not nan")
        heappush(self._cancels, (max(at_us, self._arrival[request]), request, outcome))
        self.due_us = 0.0

    def close(self) -> None:
        """Say that no further request will come: a static batch need not wait for one."""
        self._closed, self.due_us = True, 0.0

    def advance(self, until_us: float) -> None:
        """Take every stretch that ends by `until_us`; inf: close, and serve what is there to the end."""
        self._closed, self.stopped = self._closed or until_us == math.inf, ""
        policy, service, memory, pool = self.policy, self.service, self._memory, self._pool
        static = policy.batching == "static"
        alone = policy.prompts == "alone" and not static
        split = policy.prompts == "chunked" and not static
        fcfs, interval, longest = policy.order == "fcfs", policy.prefill_every, self.longest_stretch
        slots, budget = policy.slots, _NEVER if policy.budget is None or static else policy.budget
        batched = policy.batched or budget
        limited = policy.memory is not None
        reserved, cached = memory.reserve != "nothing", memory.prefix_cache
        paged = limited and not reserved
        size, watermark, full_prompt = memory.block_size, memory.watermark_blocks, memory.full_prompt
        swap_us = 0.0 if memory.swap_us is None else memory.swap_us
        swaps = memory.swap_us is not None
        fussy = policy.chunk_cap > 0 or interval > 1
        # What most runs have none of, and need not ask for at every step.
        odd = (
            fussy or static or alone or not fcfs or reserved or swaps or self._grants is not None or longest < _NEVER
            or pool.told is not None or bool(self._cancels or self._gone or self._quoted)
        )
        if not odd and not paged and slots <= budget and (not self._partial or self._next - 1 in self._partial):
            self._advance_without_limit(until_us)
            return
        most_rows = 1_000_000 + 1_000 * len(self._arrival) if self.most_rows is None else self.most_rows
        context_us, attention_us, request_us = service.context_us, service.attention_us, service.request_us
        base, far = _table(service), service.base_us
        arrival, known, admitted, first, finished = self._arrival, self._known, self._admitted, self._first, self._finished
        since, ends, ending, needy, cancels = self._since, self._ends, self._ending, self._needy, self._cancels
        queue: Any = self._queue  # a deque or a heap, as `fcfs` says
        gone, running, partial = self._gone, self._running, self._partial
        quoted, speaking, rows, grants, events = self._quoted, self._speaking, self._rows, self._grants, self._events
        t, head, n, context, k = self._clock, self._next, self._decoding, self._context, self._steps
        total = len(arrival)
        entry = math.inf if head == total else arrival[head]  # when the next request may enter, if nobody waits before it
        next_end = ends[0] >> 32 if ends else _NEVER
        next_cancel = cancels[0][0] if cancels else math.inf
        most = _COLUMNS * most_rows - sum(map(len, self._packed))
        none: list[int] = []
        cap, hold, prefilled, parked, fresh, preempted, waiting = 0, False, False, none, False, False, False
        closing, halfway = list[int](), list[tuple[int, int]]()
        back = apart = False
        said, due = self.said, 0.0

        while t < until_us:
            if odd:
                pool.now_us = t
                if len(rows) >= most:
                    self.stopped = f"stopped after {most_rows} rows of steps"
                    break
                if next_cancel <= t:
                    self._decoding, self._context, self._steps = n, context, k
                    self._cancel(t, head)
                    n, context = self._decoding, self._context
                    next_end = ends[0] >> 32 if ends else _NEVER
                    next_cancel = cancels[0][0] if cancels else math.inf
                if self._batch and not running:
                    self._end_batch(t)
                if gone:
                    head = self._skip(head)
                    entry = arrival[head] if head < total else math.inf
                if not fcfs:
                    while entry <= t:
                        self._enqueue(head)
                        head = self._skip(head + 1)
                        entry = arrival[head] if head < total else math.inf
            granted, grown, taken, left = 0, False, -1, budget - n
            # Who runs. Decodes alone, all of them, unless somebody has prompt tokens to compute or blocks are short.
            if (waiting := entry <= t or len(queue) > 0) or partial or left < 0 or (paged and needy[k % size] > pool.free):
                units, closing, halfway, parked, preempted, contended = 0.0, [], [], none, False, left < 0
                blocks = needy[k % size]
                if odd:
                    fresh = False
                    if fussy:
                        count, cap = len(running) + self._queued(t, head), 0
                        if count > 1 and policy.chunk_cap:
                            cap = max(policy.chunk_cap, batched // count) if policy.fair_cap else policy.chunk_cap
                        hold = n > 0 and self._executed + 1 - self._last_prefill < interval and not self._bound
                    # Who comes back from the host has nothing to compute but its next token: it decodes beside the others.
                    back = alone and swaps and len(queue) > 0 and (queue[0] if fcfs else queue[0][2]) in self._kept
                    apart = alone and not back
                    if apart:
                        left, contended = budget, False

                # Pass 1: the running requests. Usually they all get what they need, and only the sums matter.
                if partial and not hold:
                    for i, done in partial.items():
                        chunk = rest = known[i] - done
                        if 0 < cap < chunk:
                            chunk = cap
                        if chunk > left:
                            if len(partial) > 1 or not left or next(reversed(running)) != i:
                                contended = True
                                break
                            chunk = left
                        left -= chunk
                        granted += chunk
                        units += chunk * (done + (chunk + 1) / 2)
                        blocks += -(-(done + chunk) // size) + -done // size
                        if chunk == rest:
                            closing.append(i)
                        else:
                            halfway.append((i, done + chunk))
                if paged and blocks > pool.free:
                    contended = True
                if contended and not (apart and waiting):
                    if len(rows) >= most:
                        self.stopped = f"stopped after {most_rows} rows of steps"
                        break
                    self._decoding, self._context, self._steps = n, context, k
                    left, granted, units, closing, halfway, parked, preempted = self._contend(t, budget, cap, hold)
                    n, context, grown = self._decoding, self._context, True
                    next_end = ends[0] >> 32 if ends else _NEVER

                # Pass 2: the waiting requests, until the first that cannot enter (rules 13 to 19).
                before = granted
                if waiting and left > 0 and not preempted and len(running) < slots:
                    if static:
                        start = math.inf if running else self._launch(head, t)
                        if start > t:
                            if not running:
                                start = min(start, next_cancel)
                                if start > until_us or start == math.inf:
                                    break
                                t = start
                                continue
                            left = 0
                    if paged and not grown and not apart:
                        # Before the waiting ones ask, the running ones have their blocks (rule 13 sees what is left).
                        taken = blocks
                        if cached:
                            self._steps = k
                            self._grow(closing, halfway, blocks, n)
                        else:
                            pool.free -= blocks
                    elif speaking and apart:
                        self._steps = k
                        self._grow([], [], 0, 0)
                    while left > 0 and len(running) < slots:
                        if queue:
                            i = queue[0] if fcfs else queue[0][2]
                        elif entry <= t:
                            i = head
                        else:
                            break
                        done, chunk = 0, known[i]
                        rest = chunk
                        if cached:
                            found, idle = pool.find(i, (rest - 1) // size)
                            done = found * size
                            chunk = rest = rest - done
                        if odd:
                            if swaps and i in self._kept:
                                done = self._kept[i]
                                chunk = rest = rest - done
                            elif back:
                                break
                            if hold and rest > 1:
                                break
                            if 0 < cap < chunk:
                                chunk = cap
                            fresh = fresh or rest > 1
                        if chunk > left:
                            if not split:
                                break
                            chunk = left
                        if paged:
                            needs = -(-(done + rest if full_prompt else done + chunk) // size)
                            if watermark and running:
                                needs += watermark
                            if cached:
                                needs += idle - found
                            if needs > pool.free:
                                if self._blocked != (i, needs):
                                    self._blocked = (i, needs)
                                    events.append(Event("blocked", t, i, needs, pool.free))
                                break
                            if cached:
                                pool.hold(i, found, idle)
                                pool.take(-(-(done + chunk) // size) - done // size)
                                pool.publish(i, done + chunk)
                            else:
                                pool.free -= -(-(done + chunk) // size)
                                if done:
                                    self._swap_us += swap_us * -(-self._kept.pop(i) // size)
                            if admitted[i] != admitted[i]:
                                admitted[i] = t
                                if done:
                                    self._cached[i] = done
                            else:
                                events.append(Event("admitted", t, i, done))
                        else:
                            if reserved and not self._reserved(i, t):
                                break
                            admitted[i] = t
                        if not queue:
                            head += 1
                            if gone:
                                head = self._skip(head)
                            entry = arrival[head] if head < total else math.inf
                        elif fcfs:
                            queue.popleft()
                        else:
                            heappop(queue)
                        running[i] = None
                        if done and grants is not None:
                            self._hit[i] = done
                        granted += chunk
                        if swaps and done and rest == 1:
                            self._swap_us += context_us * (done + 1)  # its attention is that of a decode
                        else:
                            units += chunk * (done + (chunk + 1) / 2)
                        left -= chunk
                        if chunk == rest:
                            closing.append(i)
                        else:
                            halfway.append((i, done + chunk))
                if granted and (taken >= 0 or granted > before):
                    grown = grown or paged
                if odd:
                    prefilled = before > 0 or fresh
                    if granted > before:
                        if static:
                            self._batch.extend(closing)
                    elif apart and contended and waiting:
                        self._decoding, self._context, self._steps = n, context, k
                        left, granted, units, closing, halfway, parked, preempted = self._contend(t, budget, cap, hold)
                        n, context, grown = self._decoding, self._context, True
                        next_end = ends[0] >> 32 if ends else _NEVER
                    if interval > 1 and not preempted and not hold:
                        self._bound = bool(queue or entry <= t)
            elif fussy:
                self._bound = False  # nobody waits

            # How long the step takes, and for how many steps nothing else happens.
            if granted:
                decoding, prefilling, m, growth = 0 if apart else n, len(closing) + len(halfway), 1, 0.0
                tokens = decoding + granted
                first_us = base[tokens] if tokens < _TABLE else float(far(np.array([tokens]))[0])
                first_us += attention_us * units + request_us * (decoding + prefilling)
                if decoding:
                    first_us += context_us * context
                if swaps and self._swap_us:
                    first_us, self._swap_us = first_us + self._swap_us, 0.0
                end = t + first_us
                if not left and not closing and prefilling == 1 and not grown and not fussy and not speaking:
                    # The same chunk again, up to the prompt's last one or the next end.
                    i, done = halfway[0]
                    m = min((known[i] - done - 1) // chunk + 1, next_end - k, longest)
                    if m > 1 and paged:
                        m = self._affordable(m, k, n, done - chunk, chunk, 0)
                    growth = attention_us * (chunk * chunk) + context_us * decoding
                    end = t + m * first_us + growth * (m * (m - 1) // 2)
                    if next_cancel < end and m > 1:
                        m = _steps_until(next_cancel - t, first_us, growth)
                        end = t + m * first_us + growth * (m * (m - 1) // 2)
            elif n:
                decoding, prefilling, m = n, 0, next_end - k
                if grown or (waiting and speaking) or (fussy and (waiting or partial)):
                    m = 1
                elif paged and n * (m // size + 1) > pool.free:
                    m = self._affordable(m, k, n, 0, 0, max(taken, 0))
                if m > longest:
                    m = longest
                first_us = (base[n] if n < _TABLE else float(far(np.array([n]))[0])) + context_us * context + request_us * n
                if swaps and self._swap_us:
                    first_us, self._swap_us = first_us + self._swap_us, 0.0
                growth = context_us * n
                end = t + m * first_us + growth * (m * (m - 1) // 2)
                if t < entry < end or next_cancel < end:
                    # The next arrival matters if it may join, and in every other order also if it may go first.
                    joins = left > 0 and len(running) < slots and not static and (not waiting or not fcfs)
                    cut = min(entry, next_cancel) if joins else next_cancel
                    if m > 1 and cut < end:
                        m = _steps_until(cut - t, first_us, growth)
                        end = t + m * first_us + growth * (m * (m - 1) // 2)
            else:
                # Nothing can run.
                if queue or waiting:
                    rows += (t, 1, 0.0, 0, 0, 0, pool.free if limited else 0)
                    if grants is not None:
                        grants.append([])
                    if preempted:
                        continue
                wake = next_cancel
                if not waiting or not fcfs:
                    wake = min(entry, wake)
                elif wake == math.inf and head < total and arrival[-1] > t:
                    wake = arrival[bisect_right(arrival, t)]
                if wake == math.inf and waiting:
                    self.stopped = "nothing that waits can ever run"
                if wake == math.inf or wake > until_us:
                    due = wake
                    break
                t = max(t, wake)
                continue
            if end > until_us:
                if not grown and taken < 0 and not (granted and granted > before):
                    due = end
                    break
                m, end = 1, t + first_us  # a step that has begun is decided, those after it are not

            # Take them.
            if odd:
                if grants is not None:
                    grants.append(self._granted(granted, closing, halfway, decoding, parked if granted or grown else none))
                self._executed += m
                if granted and prefilled:
                    self._last_prefill = self._executed
            if paged and not grown:
                if not granted or m > 1:
                    a = k % size
                    blocks = m // size * n + sum(needy[a : a + m % size])
                    if granted:
                        done += (m - 1) * chunk
                        halfway[0] = (i, done)
                        blocks += -(-done // size) + -partial[i] // size
                    elif taken > 0:
                        blocks -= taken
                if cached and m > 1:  # what all its steps publish and evict is told when the last one starts
                    pool.now_us = t + (m - 1) * first_us + growth * ((m - 1) * (m - 2) // 2)
                if not cached:
                    pool.free -= blocks
                elif granted:
                    self._steps = k
                    self._grow(closing, halfway, blocks, decoding)
                else:
                    pool.take(blocks)
            elif m > 1 and granted:
                halfway[0] = (i, done + (m - 1) * chunk)
            rows += (t, m, first_us, decoding, prefilling, granted, pool.free if limited else 0)
            t = end
            if decoding:
                k += m
                context += n * m
            if granted:
                for i in closing:
                    # The step that closes the gap emits a token (rule 3).
                    done = known[i]
                    since[i] = done - k
                    heappush(ends, (k - done + ending[i]) << 32 | i)
                    n += 1
                    context += done + 1
                    if paged:
                        r = (k - done) % size
                        needy[r] += 1
                        needy[r + size] += 1
                        if first[i] != first[i]:
                            first[i] = t
                            if said is not None:
                                said.append(~i)
                        else:
                            events.append(Event("caught up", t, i, done))
                        if i in quoted:
                            speaking.add(i)
                    else:
                        first[i] = t
                        if said is not None:
                            said.append(~i)
                if partial:
                    for i in closing:
                        partial.pop(i, None)
                for i, done in halfway:
                    partial[i] = done
                next_end = ends[0] >> 32 if ends else _NEVER
            if (grown and parked) or next_cancel <= t:
                self._decoding, self._context, self._steps = n, context, k
                if grown and parked:
                    self._unpark(parked, decoding > 0)
                if next_cancel <= t:
                    self._cancel(t, head)
                    next_cancel = cancels[0][0] if cancels else math.inf
                n, context = self._decoding, self._context
                next_end = ends[0] >> 32 if ends else _NEVER
            if next_end == k:
                if len(rows) > _PACK:
                    most -= len(rows)
                    self._packed.append(np.array(rows))
                    rows.clear()
                if cached:
                    pool.now_us = t
                    self._release_ended(k)
                while next_end == k:
                    i = heappop(ends) & _REQUEST
                    finished[i] = t
                    if said is not None:
                        said.append(i)
                    n -= 1
                    context -= ending[i] + 1
                    del running[i]
                    if paged:
                        if speaking:
                            speaking.discard(i)
                        r = -since[i] % size
                        needy[r] -= 1
                        needy[r + size] -= 1
                        if not cached:
                            pool.free += -(-ending[i] // size)
                    elif reserved and not static:
                        self._give_back(i, 0)
                    next_end = ends[0] >> 32 if ends else _NEVER

        self._clock, self._next, self._decoding, self._context, self._steps = t, head, n, context, k
        self.due_us = max(due, t)
        if self._batch and not running:
            self._end_batch(t)

    def _advance_without_limit(self, until_us: float) -> None:
        """`advance` where nobody can contend: memory without limit, first come first served, nobody gives up.

        The same decisions by the same rules, without what they need not ask: at most one prompt is half done, that of the
        request that entered last. It takes a third of the time, and tests hold it to the loop above.
        """
        policy, service = self.policy, self.service
        split, longest = policy.prompts == "chunked", self.longest_stretch
        slots, budget = policy.slots, _NEVER if policy.budget is None else policy.budget
        context_us, attention_us, request_us = service.context_us, service.attention_us, service.request_us
        base, far = _table(service), service.base_us
        arrival, known, admitted, first, finished = self._arrival, self._known, self._admitted, self._first, self._finished
        ends, ending, rows = self._ends, self._ending, self._rows
        t, head, n, context, k = self._clock, self._next, self._decoding, self._context, self._steps
        done = self._partial.get(head - 1, 0)
        total = len(arrival)
        entry = math.inf if head == total else arrival[head]
        next_end = ends[0] >> 32 if ends else _NEVER
        said = self.said

        while True:
            granted = 0
            if done or entry <= t:
                left, room = budget - n, slots - n
                units, prefilling, entering, chunk, rest = 0.0, 0, 0, 0, 0
                if done:
                    rest = known[head - 1] - done
                    granted = chunk = rest if rest < left else left
                    units, prefilling = chunk * (done + (chunk + 1) / 2), 1
                    left -= chunk
                    room -= 1
                if left > 0 and room > 0 and entry <= t:
                    i = head
                    while left > 0 and room and i < total and arrival[i] <= t:
                        prompt = known[i]
                        if prompt > left:
                            if not split:
                                break
                            chunk, rest = left, prompt
                        else:
                            chunk = rest = prompt
                        granted += chunk
                        units += chunk * ((chunk + 1) / 2)
                        left -= chunk
                        room -= 1
                        i += 1
                    entering = i - head
                    prefilling += entering
            if granted:
                tokens, m, growth = n + granted, 1, 0.0
                first_us = base[tokens] if tokens < _TABLE else float(far(np.array([tokens]))[0])
                first_us += attention_us * units + request_us * (n + prefilling) + context_us * context
                end = t + first_us
                if chunk < rest and prefilling == 1:
                    m = min((rest - 1) // chunk, next_end - k, longest)
                    growth = attention_us * (chunk * chunk) + context_us * n
                    end = t + m * first_us + growth * (m * (m - 1) // 2)
            elif n:
                prefilling, m = 0, next_end - k
                first_us = (base[n] if n < _TABLE else float(far(np.array([n]))[0])) + context_us * context + request_us * n
                growth = context_us * n
                end = t + m * first_us + growth * (m * (m - 1) // 2)
                if t < entry < end and n < slots and n < budget:
                    m = _steps_until(entry - t, first_us, growth)
                    end = t + m * first_us + growth * (m * (m - 1) // 2)
            else:
                if entry > until_us or entry == math.inf:
                    end = entry
                    break
                t = entry
                continue
            if end > until_us:
                break
            rows += (t, m, first_us, n, prefilling, granted, 0)
            k += m
            context += n * m
            if granted:
                unfinished = chunk < rest
                last = head + entering
                for i in range(head - 1 if done else head, last - unfinished):
                    first[i] = end
                    if said is not None:
                        said.append(~i)
                    heappush(ends, (k - known[i] + ending[i]) << 32 | i)
                    n += 1
                    context += known[i] + 1
                while head < last:
                    admitted[head] = t
                    head += 1
                if not unfinished:
                    done = 0
                else:
                    done = (0 if entering else done) + m * chunk
                entry = arrival[head] if head < total else math.inf
                next_end = ends[0] >> 32 if n else _NEVER
            t = end
            if next_end == k:
                if len(rows) > _PACK:
                    self._packed.append(np.array(rows))
                    rows.clear()
                while next_end == k:
                    i = heappop(ends) & _REQUEST
                    finished[i] = t
                    if said is not None:
                        said.append(i)
                    n -= 1
                    context -= ending[i] + 1
                    next_end = ends[0] >> 32 if n else _NEVER

        self._clock, self._next, self._decoding, self._context, self._steps = t, head, n, context, k
        self.due_us = end
        # What the other loop keeps in step: who runs, in order of admission, and since when.
        self._partial.clear()
        self._running.clear()
        for i in sorted([end & _REQUEST for end in ends]):
            self._running[i] = None
        for end in ends:
            self._since[end & _REQUEST] = ending[end & _REQUEST] - (end >> 32)
        if done:
            self._partial[head - 1] = done
            self._running[head - 1] = None

    def _end_batch(self, now: float) -> None:
        """Static: the last member has ended, and the slots and the memory of all are free."""
        for i in self._batch:
            self._released[i] = now
        self._batch.clear()
        self._pool.free = self._pool.blocks

    def _enqueue(self, i: int) -> None:
        """Put request i where it belongs among those who wait; a preempted one in front."""
        if isinstance(self._queue, deque):
            self._queue.appendleft(i)
        else:
            heappush(self._queue, (self._rank(i, self._known[i] - self._prompt[i]), self._arrival[i], i))

    def _rank(self, i: int, tokens: int) -> float:
        """Place of request i in the queue order after so many output tokens."""
        return self._key[i] + self._per_token * tokens

    def _skip(self, head: int) -> int:
        """The first request from `head` on that is still there."""
        while head in self._gone:
            self._gone.remove(head)
            head += 1
        return head

    def _queued(self, now: float, head: int) -> int:
        """How many wait at the clock `now`."""
        if not isinstance(self._queue, deque):
            return len(self._queue)
        arrived = bisect_right(self._arrival, now, head)
        return len(self._queue) + arrived - head - sum(1 for i in self._gone if head <= i < arrived)

    def _launch(self, head: int, now: float) -> float:
        """Clock at which the next static batch leaves: full, timed out, or the trace is over. inf: not known yet."""
        arrival, memory = self._arrival, self._memory
        full, seats, blocks = arrival[-1] if self._closed else math.inf, 0, memory.blocks
        for i in range(head, len(arrival)):
            if i in self._gone:
                continue
            if self._reserve:
                blocks -= self._reserve[i]
            seats += 1
            # Full of requests, or of memory: when one comes that has no room, or none can have any.
            if seats == self.policy.slots or blocks < 0 or (memory.reserve == "maximum" and blocks < self._reserve[i]):
                full = arrival[i]
                break
        return max(now, min(full, arrival[head] + 1e6 * self.policy.fill_timeout))

    def _grow(self, closing: list[int], halfway: list[tuple[int, int]], blocks: int, decoding: int) -> None:
        """With a prefix cache: take the blocks that the running requests need, and publish what they fill, in their order."""
        self._pool.take(blocks)
        filled = {i: self._known[i] for i in closing} | dict(halfway)
        for i in self._running if self._speaking else self._partial:
            if i in filled:
                self._pool.publish(i, filled[i])
            elif i in self._speaking:  # a reply that others quote, with this step's token if it gets one
                self._pool.publish(i, self._since[i] + self._steps + (decoding > 0))

    def _affordable(self, m: int, k: int, n: int, done: int, chunk: int, taken: int) -> int:
        """The most steps, up to m, for which the pool has the blocks; those for the first one may be taken."""
        size, free, needy = self._pool.block_size, self._pool.free + taken, self._needy

        def blocks(m: int) -> int:
            a = k % size
            return m // size * n + sum(needy[a : a + m % size]) - (-(done + m * chunk) // size) + (-done // size)

        if blocks(m) <= free:
            return m
        low = 1
        while low + 1 < m:
            middle = (low + m) // 2
            if blocks(middle) <= free:
                low = middle
            else:
                m = middle
        return low

    def _contend(self, t: float, budget: int, cap: int, hold: bool) -> Grants:
        """Pass 1, one request after the other (rules 5 to 12). Who gets nothing is taken out of the sums."""
        pool, size, partial, since, k = self._pool, self._pool.block_size, self._partial, self._since, self._steps
        by_rank, counted = self.policy.order != "fcfs" or self.policy.victim != "last", self._chains is None
        order, index, left, preempted = list(self._running), 0, budget, False
        granted: dict[int, tuple[int, int]] = {}
        while index < len(order) and left > 0:
            i = order[index]
            computed = partial.get(i, -1)
            if computed < 0 and counted and (since[i] + k) % size:  # its block has room
                granted[i] = since[i] + k, 1
                left -= 1
                index += 1
                continue
            if computed >= 0:
                if hold:
                    index += 1
                    continue
                grant = self._known[i] - computed
                if 0 < cap < grant:
                    grant = cap
                grant = min(grant, left)
            else:
                computed, grant = since[i] + k, 1
            blocks, victim = 0 if self._reserve else -(-(computed + grant) // size) + (-computed // size), -1
            while blocks > pool.free and victim != i:
                victim = max(order, key=self._place) if by_rank else order[-1]
                place = order.index(victim)
                del order[place]
                if place < index:
                    index -= 1
                back = granted.pop(victim, (0, 0))[1]
                left += back
                self._preempt(t, victim, back, i)
                preempted = True
            if victim == i:
                if by_rank:
                    continue
                break
            pool.take(blocks)
            if self._chains is not None:
                pool.publish(i, computed + grant)
            granted[i] = (computed, grant)
            left -= grant
            index += 1
        parked = [] if left > 0 else [i for i in self._running if i not in granted and i not in partial]
        for i in parked:
            self._leave(i)
        chunks = [(i, *granted[i]) for i in granted if i in partial]
        return (
            left, sum(chunk for _, _, chunk in chunks), sum(chunk * (done + (chunk + 1) / 2) for _, done, chunk in chunks),
            [i for i, done, chunk in chunks if done + chunk == self._known[i]],
            [(i, done + chunk) for i, done, chunk in chunks if done + chunk < self._known[i]], parked, preempted,
        )

    def _place(self, i: int) -> tuple[float, float]:
        """Who of the running gives way first: the one with the largest (rule 9; Policy.victim)."""
        victim, computed = self.policy.victim, self._partial.get(i, -1)
        if victim == "newest":
            return self._arrival[i], i
        if victim == "least_urgent":
            return self._urgency[i], self._arrival[i]
        if victim == "last":
            known = self._since[i] + self._steps + 1 if computed < 0 else self._known[i]
            return self._rank(i, known - self._prompt[i]), self._arrival[i]
        held = self._since[i] + self._steps if computed < 0 else computed
        return held if victim == "longest" else -held, self._arrival[i]

    def _preempt(self, t: float, i: int, granted: int, needed_by: int) -> None:
        """Take all blocks of request i away and send it back to the queue (rules 10 and 11)."""
        computed = self._partial.pop(i, -1)
        if computed < 0:
            computed = self._since[i] + self._steps
            self._known[i] = computed + 1
            self._leave(i)
        del self._running[i]
        blocks = self._pool.release(i, computed + granted, again=True)
        self._preemptions[i] += 1
        swap_us = self._memory.swap_us
        if swap_us is None:
            self._recomputed[i] += computed
        elif computed:
            self._kept[i] = computed
            self._swap_us += swap_us * -(-computed // self._pool.block_size)
        self._hit.pop(i, None)
        self._enqueue(i)
        self._events.append(Event("preempted", t, i, computed, blocks, needed_by))

    def _leave(self, i: int) -> None:
        """Take request i out of the sums over decoding requests."""
        self._decoding -= 1
        self._speaking.discard(i)
        self._context -= self._since[i] + self._steps + 1
        self._ends.remove((self._ending[i] - self._since[i]) << 32 | i)
        heapify(self._ends)
        if not self._reserve:
            r = -self._since[i] % self._pool.block_size
            self._needy[r] -= 1
            self._needy[r + self._pool.block_size] -= 1

    def _cancel(self, now: float, head: int) -> None:
        """Drop the requests whose clients have given up: what a running one computed in this step is lost (rule 29)."""
        while self._cancels and self._cancels[0][0] <= now:
            _, i, outcome = heappop(self._cancels)
            if i in self._outcome or not math.isnan(self._finished[i]):
                continue
            if i in self._running:
                computed = self._partial.pop(i, -1)
                if computed < 0:
                    computed = self._since[i] + self._steps
                    self._leave(i)
                del self._running[i]
                if self._first[i] == now:
                    self._first[i] = math.nan
                blocks = self._give_back(i, computed)
                self._events.append(Event("cancelled", now, i, computed, blocks))
            elif not isinstance(self._queue, deque) and i < head:
                self._queue[:] = [entry for entry in self._queue if entry[2] != i]
                heapify(self._queue)
            elif isinstance(self._queue, deque) and i in self._queue:
                self._queue.remove(i)
            else:
                self._gone.add(i)
            self._outcome[i] = outcome
            self._finished[i] = now
            if self.said is not None:
                self.said.append(i)
            self._kept.pop(i, None)

    def _give_back(self, i: int, computed: int) -> int:
        """Free what request i holds; how many blocks that was. A static batch keeps it until it ends."""
        if self.policy.batching == "static" or self.policy.memory is None:
            return 0
        if not self._reserve:
            return self._pool.release(i, computed)
        blocks = self._reserve[i]
        if self._buddy is not None:
            self._buddy.give(self._address[i], blocks)
            blocks = piece(blocks)
        self._pool.free += blocks
        return blocks

    def _reserved(self, i: int, now: float) -> bool:
        """Give request i all that it reserves; False: that much is not free, or not in one piece."""
        blocks = self._reserve[i]
        if self._buddy is not None:
            address, blocks = self._buddy.take(blocks), piece(blocks)
            if address is not None:
                self._address[i] = address
        if blocks > self._pool.free if self._buddy is None else address is None:
            if self._blocked != (i, blocks) and self.policy.batching == "continuous":
                self._blocked = (i, blocks)
                self._events.append(Event("blocked", now, i, blocks, self._pool.free))
            return False
        self._pool.free -= blocks
        return True

    def _release_ended(self, k: int) -> None:
        """Free the blocks of the requests that end with decode step k, in the order in which they were scheduled."""
        ends = self._ends
        if any(end >> 32 == k for end in ends[1:3]):
            over = {end & _REQUEST for end in ends if end >> 32 == k}
            order = [i for i in self._running if i in over]
        else:
            order = [ends[0] & _REQUEST]
        for i in order:
            self._pool.release(i, self._ending[i])

    def _unpark(self, parked: list[int], stepped: bool) -> None:
        """Take the decoding requests that got nothing in the last step back into the sums; `stepped`: others decoded."""
        size = self._pool.block_size
        for i in parked:
            self._since[i] -= stepped
            done = self._since[i] + self._steps
            heappush(self._ends, (self._steps - done + self._ending[i]) << 32 | i)
            self._decoding += 1
            self._context += done + 1
            if i in self._quoted:
                self._speaking.add(i)
            self._needy[-self._since[i] % size] += 1
            self._needy[-self._since[i] % size + size] += 1

    def _granted(
        self, granted: int, closing: list[int], halfway: list[tuple[int, int]], decoding: int, parked: list[int]
    ) -> list[tuple[int, int]]:
        """Who gets how many tokens in each step, in the order in which they were granted."""
        prompts = {}
        if granted:
            prompts = {i: done - self._before(i) for i, done in [(i, self._known[i]) for i in closing] + halfway}
        idle = set(parked) | (self._partial.keys() - prompts.keys())
        return [(i, prompts.get(i, 1)) for i in self._running if i in prompts or (decoding and i not in idle)]

    def _before(self, i: int) -> int:
        """Tokens of request i computed before this step."""
        return self._partial.get(i, self._hit.get(i, 0))

    def run(self, trace: Trace) -> Run:
        """What happened so far, as columns; `trace` is what was submitted. ValueError for one of another length."""
        if len(trace) != len(self._arrival):
            raise ValueError(f"the trace has {len(trace)} requests, {len(self._arrival)} were submitted")
        n, finished = len(self._arrival), np.array(self._finished)
        outcome = np.where(np.isnan(finished), UNFINISHED, FINISHED).astype(np.int8)
        outcome[list(self._outcome)] = list(self._outcome.values())
        parts = [*self._packed, np.fromiter(self._rows, np.float64, len(self._rows))]
        start, first_us = (np.concatenate([part[column::_COLUMNS] for part in parts]) for column in (0, 2))
        count, decode, prefilling, prefill, free = (
            np.concatenate([part[column::_COLUMNS] for part in parts]).astype(np.int64) for column in (1, 3, 4, 5, 6)
        )
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
            outcome=outcome,
            steps=Steps(start, count, first_us, growth, decode, prefilling, prefill, free),
            cached=np.array(self._cached, np.int64),
            address=None if self._buddy is None else _dense(self._address, n, -1),
            preemptions=_dense(self._preemptions, n),
            recomputed=_dense(self._recomputed, n),
            events=tuple(self._events),
            grants=None if self._grants is None else tuple(self._grants),
            stopped=self.stopped,
        )


def _dense(few: dict[int, int], n: int, other: int = 0) -> Ints:
    """A column from the values that are not `other`."""
    column = np.full(n, other, np.int64)
    column[list(few)] = list(few.values())
    return column


@lru_cache(maxsize=16)
def _table(service: StepTime) -> list[float]:
    """Step time by tokens in the step, µs; engines of the same service share it."""
    table: list[float] = service.base_us(np.arange(_TABLE)).tolist()
    return table


def _steps_until(gap: float, first: float, growth: float) -> int:
    """The least m ≥ 1 with m·first + growth·m(m−1)/2 ≥ gap: the root of the quadratic, corrected for rounding."""
    half = first - growth / 2
    m = int(2 * gap / (half + math.sqrt(half * half + 2 * growth * gap))) + 1
    while m * first + growth * (m * (m - 1) // 2) < gap:
        m += 1
    while m > 1 and (m - 1) * first + growth * ((m - 1) * (m - 2) // 2) >= gap:
        m -= 1
    return m
