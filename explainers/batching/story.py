"""The batching lesson's words: runs → the sentence of difference, causes, a request's life, questions. Pure; no Streamlit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from explainers.batching import scenario
from explainers.batching.figures import DECODE, IDLE, NAMES, SAME, shares, whole_shares
from explainers.batching.scenario import PRESETS, Result, Sweep, Values, filled
from explainers.kit import files
from explainers.kit import grammar as g
from explainers.kit.assumed import head_row, server_rows
from explainers.kit.compare import reply_clause, turns_out
from explainers.kit.grammar import count, duration, listed, percent
from explainers.kit.quiz import Prediction, Question, apart, question
from sim.metrics import ROLES, Ledger, e2e, frame, lanes, queue_wait, slot_segments, token_times, ttft
from sim.run import Run
from sim.service import Service, attention_units, step_us

TITLE = "Static and continuous batching"
QUESTION = "A batch of requests lasts as long as its longest reply. What do the slots of the others do until then?"
LEAD = ("A request is a prompt and its reply; a slot holds one. In each step the GPU reads new prompts (prefill) and adds a "
        "token to each running reply (decode). Static: a batch keeps its slots until all have ended. Continuous: a free slot is "
        "refilled at once.")
"""What a newcomer must know before the figure; at most 260 characters."""
WORDS: tuple[tuple[str, str], ...] = (
    ("Request", "A prompt sent to the server, and the reply that it wants."),
    ("Token", "A piece of text, about three quarters of an English word; prompts and replies are counted in them."),
    ("Step", "One pass of the model on the GPU, for all requests then in the batch; also called an iteration."),
    ("Slot", "A place in the batch; it holds one request at a time."),
    ("Slot-time", "Slots times seconds: four slots for two seconds are eight slot-seconds."),
    ("Prefill", "The step that reads a whole prompt and yields the reply's first token."),
    ("Decode", "The steps after it; each adds one token to the reply."),
    ("Static batching", "A batch starts together and keeps all its slots until its longest reply has ended."),
    ("Continuous batching", "Before every step, free slots are given to waiting requests; this is iteration-level scheduling."),
    ("TTFT", "Time to first token: from a request's arrival until its reply begins."),
    ("ITL", "Inter-token latency: the gap between two tokens of a reply."),
    ("E2E", "End-to-end latency: from a request's arrival until its last token."),
    ("p50, p99", "The value that half, or 99 of 100, of the requests stay below."),
)
"""(term, one plain sentence of fewer than 20 words)."""
PREDICTION = Prediction("What share of slot-time is idle under static batching?", "%", 0, 100)
CLAIMS: tuple[str, ...] = ("orca*", *(
    f"step-time-{gpu}-{kind}-{error}" for gpu in ("a100", "h100") for kind in ("decode", "prefill", "hybrid")
    for error in ("median", "p95")))

_SAME_US = 1e-3
_POINT = 0.005
_HALF_MS = 0.0005


# --- the sentence of difference ---------------------------------------------------------------------------------------


def headline(result: Result, answer: bool = True) -> str:
    """What differs between the policies, and why. `answer` False: without the idle shares, which the learner is to predict."""
    one, other = (e2e(run) for run in result.runs.values())
    if bool(np.all(np.abs(one - other) <= SAME)):
        return _no_difference(result, answer)
    s, c = result.ledgers["static"], result.ledgers["continuous"]
    cause = max(IDLE, key=lambda role: s.share(role) - c.share(role))
    caused = s.share(cause) - c.share(cause) > _POINT
    longest = _longest(result.runs["static"])
    if answer:
        share, idle = shares(s)[cause], percent(s.idle_share)
        inside = f" ({'all of it' if share == idle else share} {_WHERE[cause].format(longest=longest)})" if caused else ""
        lead = f"Static batching leaves {idle} of slot-time idle{inside}, continuous {percent(c.idle_share)}"
    elif s.idle_share < c.idle_share - _POINT:
        lead = "Static batching leaves less slot-time idle"
    else:
        lead = "Both policies leave about as much slot-time idle"
    if answer or not caused:
        return f"{lead}; {reply_clause(*_both(result), 'with continuous batching ')}."
    does = _DOES.get(cause, f"Static batching loses slot-time above all {_WHERE[cause]}").format(longest=longest)
    so = f"{turns_out(*_both(result))} {reply_clause(*_both(result))}"
    return f"{does}; continuous batching {_INSTEAD.get(cause, _REFILLS)}, {so}."


_DOES = {
    "held": "Static batching holds slots after their own request has ended, until {longest} has",
    "filling": "Static batching keeps slots open while a batch waits to fill",
    "late": "A static batch that has left takes nobody in, so that requests wait beside empty slots",
}
_REFILLS = "refills a slot at the next step"
_INSTEAD = {"filling": "lets a request start at the next step", "late": "lets them join at the next step"}


_WHERE = {
    "stalled": "in replies that get no token while others' prompts run",
    "budget": "in slots whose next request waits for token budget",
    "held": "in slots held after their own request ended, until {longest} did",
    "filling": "in slots kept open while a batch waits to fill",
    "late": "in empty slots of batches that had left without the requests that wait",
    "boundary": "in slots whose next request joins when the running step ends",
    "nothing": "in slots for which there is no request",
}


def _both(result: Result) -> tuple[dict[str, float], dict[str, float]]:
    return result.summaries["static"], result.summaries["continuous"]


def _no_difference(result: Result, answer: bool) -> str:
    run = result.runs["static"]
    n, slots = len(run), run.policy.slots
    if n == 1:
        why = "there is one request, and nobody to share a batch with"
    elif slots == 1:
        why = "with one slot a batch is one request, and its slot is free when it ends"
    elif _held(run).any():
        why = "nobody waits for the slots that a batch holds"
    elif n <= slots:
        why = "all requests fit into one batch and end together"
    else:
        why = "the members of each batch end together, and no slot is held after its request"
    said = ""
    if answer:
        idle = {percent(book.idle_share) for book in result.ledgers.values()}
        said = " No slot is ever idle." if idle == {"0 %"} else f" Idle slot-time: {' and '.join(sorted(idle))} under both." \
            if len(idle) == 1 else ""
    return f"No difference: every request ends at the same moment under both policies, because {why}.{said}"


# --- batches and causes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """A static batch: requests `first`…`last` (indices), its start and end, when the server was free for it, and why it left.

    left  "full", "timeout" (the oldest had waited as long as allowed), "last" (no more were to come) or "busy" (it was
          ready before the server was free)
    """

    first: int
    last: int
    start_us: float
    end_us: float
    free_us: float
    longest: int
    left: str

    @property
    def size(self) -> int:
        """Members."""
        return self.last - self.first + 1

    def name(self) -> str:
        """ "request 3", "requests 1–4"."""
        return f"request {self.first + 1}" if self.size == 1 else f"requests {self.first + 1}–{self.last + 1}"


def batches(run: Run) -> list[Batch]:
    """The batches of a static run, in order. First come, first served, so that each holds neighbouring requests."""
    starts = np.flatnonzero(np.diff(run.admitted_us, prepend=-np.inf) > 0)
    ends = np.append(starts[1:], len(run)) - 1
    found: list[Batch] = []
    for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
        free = found[-1].end_us if found else 0.0
        start = float(run.admitted_us[first])
        longest = first + int(np.argmax(run.finished_us[first:last + 1]))
        found.append(Batch(first, last, start, float(run.released_us[first]), free, longest, _left(run, first, start, free)))
    return found


def _left(run: Run, first: int, start: float, free: float) -> str:
    if start <= free + _SAME_US and free > 0:
        return "busy"
    fills = first + run.policy.slots - 1
    if fills < len(run) and abs(start - run.trace.arrival_us[fills]) <= _SAME_US:
        return "full"
    if fills >= len(run) and abs(start - run.trace.arrival_us[-1]) <= _SAME_US:
        return "last"
    return "timeout"


def _held(run: Run) -> g.Floats:
    """Seconds that each request's slot was held after its end."""
    held: g.Floats = (run.released_us - run.finished_us) / 1e6
    return np.where(held > SAME, held, 0.0)


def _longest(run: Run) -> str:
    """ "the longest of the batch, request 1,"; of several batches that hold slots, the one that does so longest in sum."""
    held = _held(run)
    if run.policy.batching != "static":
        return "the longest of the batch"
    sums = [(float(held[b.first:b.last + 1].sum()), b) for b in batches(run)]
    holding = sum(total > 0 for total, _ in sums)
    worst = max(sums, key=lambda pair: pair[0])[1].longest + 1
    if holding == 0:
        return "the longest of the batch"
    return f"the longest of the batch, {'such as ' if holding > 1 else ''}request {worst},"


def causes(result: Result) -> list[str]:
    """A sentence for each cause of idleness of at least a per cent of slot-time, under each policy; they add up to the whole."""
    said = []
    for key, book in result.ledgers.items():
        for role, whole in _idle_parts(book):
            said.append(f"**{NAMES[key]}: {g.ROLES[role].label} {whole} %.** {_cause(result.runs[key], role)}")
        if round(100 * book.idle_share) == 0:
            said.append(f"**{NAMES[key]}:** {'no slot is' if book.idle_share <= SAME else 'slots are hardly'} ever idle.")
    return said


def _idle_parts(book: Ledger) -> list[tuple[str, int]]:
    """The idle roles of at least a whole per cent, largest first; whole per cents that add up to the idle share."""
    parts = whole_shares(book)
    return sorted(((role, parts[role]) for role in IDLE if parts[role]), key=lambda part: -book.share(part[0]))


def _cause(run: Run, role: str) -> str:
    if role == "held":
        held = _held(run)
        worst = max(batches(run), key=lambda b: float(held[b.first:b.last + 1].sum()))
        waiting = int((held[worst.first:worst.last + 1] > 0).sum())
        return (f"A batch lasts until its longest request ends. In the batch of {worst.name()}, {count(waiting, 'slot')} stood "
                f"idle until request {worst.longest + 1} had written its {run.trace.output[worst.longest]:,} tokens.")
    if role == "filling":
        return (f"A slot is free and a request waits, but the batch is not full: it leaves when it is, or when its oldest "
                f"request has waited {duration(run.policy.fill_timeout)}.")
    if role == "late":
        return "A batch that has left takes nobody in: who comes later waits for its end beside an empty slot."
    if role == "boundary":
        return "A request that comes during a step joins when the step ends."
    if role == "stalled":
        return "While a step holds prompts only, the running replies get no token."
    if role == "budget":
        return "The step's token budget is spent before the waiting request's turn comes."
    return "Fewer requests are there than slots: before they come, between them, or because none are left at the end."


# --- a request's life -------------------------------------------------------------------------------------------------


def life(result: Result, policy_key: str, request: int) -> str:
    """What happened to one request under one policy, with the exact causes of its waits."""
    run = result.runs[policy_key]
    zero, trace = float(run.trace.arrival_us[0]), run.trace
    wait = _static_wait(run, request) if run.policy.batching == "static" else _continuous_wait(run, request)
    prefill = (run.first_token_us[request] - run.admitted_us[request]) / 1e6
    prompt, output = int(trace.prompt[request]), int(trace.output[request])
    said = [f"**{NAMES[policy_key]}.** Request {request + 1} ({prompt:,} prompt, {output:,} output tokens) "
            f"came at {_at(trace.arrival_us[request], zero)}", wait,
            f"prefilled in {duration(prefill)}: TTFT {duration(float(ttft(run)[request]))}"]
    if output > 1:
        said.append(f"wrote {count(output - 1, 'more token')}, {_gaps(run, request)}")
    said.append(f"ended at {_at(run.finished_us[request], zero)}: E2E {duration(float(e2e(run)[request]))}")
    held = float(_held(run)[request])
    if held:
        batch = next(b for b in batches(run) if b.first <= request <= b.last)
        said.append(f"its slot was held {duration(held)} longer, until request {batch.longest + 1} of its batch ended")
    return "; ".join(said) + "."


def _gaps(run: Run, request: int) -> str:
    """The usual gap between a reply's tokens, and the longer ones of steps that also read newcomers' prompts, or the longest."""
    times = token_times(run, request)
    gaps = np.diff(times)
    usual, most = float(np.median(gaps)), float(gaps.max())
    said = f"one every {duration(usual)}"
    if duration(most) == duration(usual):
        return said
    ends = run.steps.end_us[run.steps.prefilling > 0] / 1e6
    shared = gaps[(np.abs(times[1:, None] - ends) <= _SAME_US / 1e6).any(axis=1)] if len(ends) else gaps[:0]
    if not len(shared) or float(shared.max()) < most:
        return f"{said} as a rule; the longest gap was {duration(most)}"
    return (f"{said} as a rule; {count(len(shared), 'gap')} of up to {duration(most)}, in steps that also read newcomers' "
            f"prompts, added {duration(float((shared - usual).sum()))} in all")


def _at(us: float, zero: float) -> str:
    return duration(float(us - zero) / 1e6)


def _static_wait(run: Run, request: int) -> str:
    every = batches(run)
    k = next(i for i, b in enumerate(every) if b.first <= request <= b.last)
    batch, arrival = every[k], float(run.trace.arrival_us[request])
    if batch.start_us - arrival <= _SAME_US:
        return "started at once"
    parts = []
    busy = min(batch.free_us, batch.start_us) - arrival
    if busy > _SAME_US:
        ahead = every[k - 1]
        if ahead.start_us <= arrival and ahead.size < run.policy.slots:
            why = f"the batch of {ahead.name()} had left without it and ran until {_batch_end(run, ahead)}"
        elif ahead.start_us <= arrival or k == 1:
            why = f"all slots were taken until {_batch_end(run, ahead)}"
        else:
            why = f"the batches before its own ran until {_batch_end(run, ahead)}"
        parts.append((busy, why))
    filling = batch.start_us - max(batch.free_us, arrival)
    if filling > _SAME_US:
        parts.append((filling, {
            "full": f"its batch waited to fill, until request {batch.last + 1} came",
            "last": f"its batch waited to fill, until request {batch.last + 1}, the last of all, came",
            "timeout": f"its batch waited to fill, until {'it' if request == batch.first else f'request {batch.first + 1}'} "
                       f"had waited the fill timeout of {duration(run.policy.fill_timeout)}",
        }[batch.left]))
    total = duration((batch.start_us - arrival) / 1e6)
    if len(parts) == 1:
        return f"waited {total}: {parts[0][1]}"
    return f"waited {total}: " + ", then ".join(f"{duration(us / 1e6)} while {why}" for us, why in parts)


def _batch_end(run: Run, batch: Batch) -> str:
    """ "request 1, the longest of its batch, ended"; "requests 1–4 ended" where they end together."""
    if not _held(run)[batch.first:batch.last + 1].any():
        return f"{batch.name()} ended"
    return f"request {batch.longest + 1}, the longest of its batch, ended"


def _continuous_wait(run: Run, request: int) -> str:
    arrival, start = float(run.trace.arrival_us[request]), float(run.admitted_us[request])
    if start - arrival <= _SAME_US:
        return "started at once"
    total = duration((start - arrival) / 1e6)
    taken = int(((run.admitted_us < start - _SAME_US) & (run.released_us >= start - _SAME_US)).sum())
    with_it = int((np.abs(run.admitted_us[:request] - start) <= _SAME_US).sum())
    if with_it < run.policy.slots - taken:  # it would have had a free slot before
        return f"waited {total}: a slot was free, and the running step had to end"
    lane = lanes(run)
    before = np.flatnonzero((lane == lane[request]) & (np.abs(run.released_us - start) <= _SAME_US))
    until = f"until request {before[0] + 1} ended" if len(before) else "until one of them ended"
    ahead = int((run.admitted_us[:request] > arrival + _SAME_US).sum())
    queue = f", with {count(ahead, 'request')} ahead of it in the queue" if ahead else ""
    return f"waited {total}: all slots were taken {until}{queue}"


# --- prediction, watch-for lines, numbers -----------------------------------------------------------------------------


def feedback(result: Result, guess: float | None) -> str:
    """The answer to the prediction and why; `guess` in per cent, None: skipped."""
    book = result.ledgers["static"]
    truth = 100 * book.idle_share
    parts = [f"{whole} % {_WAS[role]}" for role, whole in _idle_parts(book)]
    why = f" Of all slot-time, {listed(parts)}." if parts else " Slots work practically all the time."
    if guess is None:
        return f"It is **{percent(book.idle_share)}**.{why}"
    off = guess - truth
    verdict = "Close" if abs(off) <= 5 else "Less than you said" if off > 0 else "More than you said"
    return f"{verdict}: it is **{percent(book.idle_share)}**, you said {guess:.0f} %.{why}"


_WAS = {
    "stalled": "got no token while prompts ran",
    "budget": "waited for token budget",
    "held": "was held after its request had ended",
    "filling": "was kept open while a batch filled",
    "late": "was empty because a batch had left without the requests that waited",
    "boundary": "waited for the running step to end",
    "nothing": "had no request",
}


def watch(values: Values) -> str:
    """What to look for: the preset's line where the values are a preset's, else one for the kind of arrivals."""
    now = filled(values)
    for preset in PRESETS:
        if filled(preset.values) == now:
            return preset.watch
    if now["source"] != scenario.GENERATED:
        whose = "Your file's" if now["source"] == scenario.OWN else "Real"
        return f"{whose} requests: which causes of idleness remain under continuous batching?"
    if now["arrivals"] != scenario.AT_ONCE:
        return "Watch what a request meets that comes while a batch runs, and one that comes while the server is free."
    if int(now["slots"]) >= int(now["requests"]):
        return ("Every request has a slot from the start, so that nobody waits for one: here continuous batching has nothing to "
                "give back. Take fewer slots than requests.")
    if int(now["slots"]) == 1:
        return "With one slot a batch is one request: both policies do the same. Take more slots."
    if float(now["spread"]) == 0 and int(now["giant"]) == 1:
        return "Equal replies end together, so that no slot is held after its request. Give the lengths some spread."
    return "Watch how long each slot is held after its request has ended: that is what continuous batching gives back."


_NUMBERS = (
    ("Last reply ends after", "makespan"), ("Output tokens per second", "tokens_per_s"),
    ("Time to first token (TTFT), p50", "ttft_p50"), ("Time to first token (TTFT), p99", "ttft_p99"),
    ("End-to-end latency (E2E), p50", "e2e_p50"), ("End-to-end latency (E2E), p99", "e2e_p99"),
    ("Wait in the queue, p50", "queue_wait_p50"), ("Gap between tokens (ITL), p50", "itl_p50"),
    ("Gap between tokens (ITL), p99", "itl_p99"), ("Gap between tokens (ITL), longest", "itl_max"))


def numbers(result: Result, answer: bool = True) -> pd.DataFrame:
    """The measures side by side, as text: columns "", "Static", "Continuous"; the idle share only if `answer`."""
    rows = [(name, *(f"{s[key]:,.0f}" if key == "tokens_per_s" else duration(s[key]) for s in result.summaries.values()))
            for name, key in _NUMBERS]
    if answer:
        rows.append(("Idle slot-time", *(percent(book.idle_share) for book in result.ledgers.values())))
    return pd.DataFrame(rows, columns=["", *(NAMES[key] for key in result.summaries)])


def numbers_note(result: Result) -> str:
    """What the labels of `numbers` mean, in a line or two."""
    n, said = len(result.scenario.trace), ""
    if n == 1:
        said = " Of one request, p50 and p99 are the same."
    elif n <= 100:  # numpy's linear quantile: the place 0.99·(n − 1), counted from 0
        said = f" Of {n} requests, p99 lies between the two largest values."
    longer = " Long gaps: a newcomer's prompt makes the step that reads it longer for all." \
        if _prompts_beside_decodes(result.runs["continuous"]) else ""
    return f"p50: half of the requests stay below it; p99: 99 of 100; for gaps, of all gaps of all replies.{said}{longer}"


def _prompts_beside_decodes(run: Run) -> bool:
    return bool(((run.steps.prefilling > 0) & (run.steps.decode > 0)).any())


def sweep_words(curve: Sweep) -> str:
    """What the sweep shows from end to end, and what idle slots mean there and do not."""
    if curve.note and curve.over == "rate":
        return curve.note
    at = int(np.flatnonzero(curve.x == curve.x_here)[0])
    unit = "slots" if curve.over == "slots" else "requests/s"
    ends = {key: f"the idle share goes from {percent(float(idle[0]))} to {percent(float(idle[-1]))} and the p99 of E2E latency "
                 f"from {duration(float(curve.e2e_p99[key][0]))} to {duration(float(curve.e2e_p99[key][-1]))}"
            for key, idle in curve.idle.items()}
    told = f"{ends['static']} under both policies" if len(set(ends.values())) == 1 else \
        "; ".join(f"under {key} batching {said}" for key, said in ends.items())
    here = " and ".join(f"{percent(float(idle[at]))} and {duration(float(curve.e2e_p99[key][at]))} under {key}"
                        for key, idle in curve.idle.items())
    means = _SWEPT[curve.over]
    return f"From {curve.x[0]:g} to {curve.x[-1]:g} {unit}, {told}. At {curve.x_here:g}, where you are, they are {here}. {means}"


_SWEPT = {
    "slots": "An idle slot is not an idle GPU: a step of few requests takes nearly as long as one of many, so an empty slot "
             "costs little; a request that waits for one costs its reader time. Why not always many slots? Each needs memory for "
             "its KV cache, which this lesson leaves out.",
    "rate": "At a low rate slots are idle because nobody is there, which no policy mends; at a high one requests queue, and a "
            "slot that is held or stays empty makes them wait longer.",
}


# --- check yourself ---------------------------------------------------------------------------------------------------


def quiz(result: Result) -> list[Question]:
    """Four questions whose numbers are the run's; wrong options are named misconceptions. The same for the same run."""
    return [_slot_question(result), _mean_question(result), _gain_question(result), _throughput_question(result)]


def _slot_question(result: Result) -> Question:
    """When a static batch gives a slot back."""
    run = result.runs["static"]
    held, zero = _held(run), float(run.trace.arrival_us[0])
    if not held.any():
        return question(
            "Under static batching here, how much slot-time is held by requests that have already ended?",
            ("None", "The members of each batch end at the same step, so that nothing is held."),
            ("All the idle time", "idle slot-time is always held by ended requests",
             "A slot is also idle while a batch fills, or when no request is there for it."),
            ("As much as under any lengths", "static batching wastes the same whatever the lengths",
             "What is held is the time from a request's end to the end of the longest of its batch."))
    r = int(np.argmax(held))
    batch = next(b for b in batches(run) if b.first <= r <= b.last)
    return question(
        f"Under static batching, when can the slot of request {r + 1} serve another request?",
        (f"At {_at(run.released_us[r], zero)}, when request {batch.longest + 1} ends",
         f"The batch of {batch.name()} gives its slots back together, when its longest request has ended."),
        (f"At {_at(run.finished_us[r], zero)}, when it has written its last token", "a request's slot is free when it ends",
         f"That is so under continuous batching; a static batch holds it {duration(float(held[r]))} longer."),
        (f"At {_at(run.first_token_us[r], zero)}, when its prompt has been prefilled", "a slot is needed for the prompt only",
         "Each output token needs the request's place in the batch and its KV cache."),
        ("When all requests of the trace have ended", "a static batch is the whole trace",
         f"A batch holds at most {count(run.policy.slots, 'request')}; the next one starts when it ends."))


def _mean_question(result: Result) -> Question:
    """Idle share of slot-time ↔ mean number of slots at work."""
    slots, idle = _slots(result), result.ledgers["static"].idle_share
    right, other = (1 - idle) * slots, (1 - result.ledgers["continuous"].idle_share) * slots
    wrong = [(float(slots), "a slot that is taken is at work", "A slot can be held by a request that has ended."),
             (idle * slots, "the idle share counts the slots at work", "That is the mean number of idle slots."),
             (other, "both policies keep as many slots at work", "That is continuous batching's number."),
             (slots / 2, "half the slots work, as a rule of thumb", "It depends on the lengths and the arrivals.")]
    return question(
        f"Under static batching {percent(idle)} of slot-time is idle. How many of {count(slots, 'slot')} are at work on average?",
        (f"{right:.1f}", f"(1 − {idle:.3f}) × {slots}: the share that is not idle, times the slots."),
        *((f"{n:.1f}", name, why) for n, name, why in apart(right, wrong, 0.05 * slots)),
        ("It cannot be said without the GPU's utilisation", "idle slots are an idle GPU",
         "The GPU runs a step whenever any slot works: slot-time says how many requests share it."))


def _gain_question(result: Result) -> Question:
    """Why one request loses, or what the largest gain is made of, or what would let anyone gain."""
    static, cont = result.runs["static"], result.runs["continuous"]
    change = e2e(cont) - e2e(static)
    waits = queue_wait(cont) - queue_wait(static)
    worst, best = int(np.argmax(change)), int(np.argmin(change))
    if change[worst] >= _HALF_MS and waits[worst] <= SAME:
        return _loser_question(worst, float(change[worst]))
    if change[best] <= -_HALF_MS:
        return _winner_question(best, float(change[best]), float(waits[best]))
    return question(
        "Hardly anybody gains from continuous batching here. What would let somebody gain?",
        ("Several slots and outputs of different lengths", "Then slots come free at different times, for others to take."),
        ("A faster GPU", "continuous batching is a matter of speed", "Both policies would be faster alike."),
        ("Longer prompts, all of one length", "longer work makes the difference",
         "Requests that end together leave nothing to reclaim."),
        ("One slot, so that nobody shares", "sharing is what costs time", "With one slot both policies do the same."))


def _loser_question(request: int, later: float) -> Question:
    return question(
        f"Request {request + 1} ends {duration(later)} later under continuous batching, though it starts no later. Why?",
        ("Its steps are fuller: newcomers' prompts and decodes run beside it",
         "A step takes longer the more tokens it holds, most of all one that reads a newcomer's prompt: everyone in it gets the "
         "next token later."),
        ("It is paused while newcomers run", "continuous batching takes turns",
         "Each running request gets a token in every step; but a newcomer's prompt makes that step longer for all."),
        ("It loses its slot to a newcomer", "requests that join push others out", "A newcomer takes a slot that is free."),
        ("Its prompt is computed again", "joining a batch starts it anew",
         "Each prompt is prefilled once; its KV cache stays until the request ends."))


def _winner_question(request: int, change: float, waits: float) -> Question:
    prompt = f"Request {request + 1} ends {duration(-change)} sooner under continuous batching. What is most of that?"
    others = (("It writes fewer tokens", "a policy changes the replies", "Both policies serve the same trace."),
              ("Its prompt is cut short", "joining late skips the prompt", "The whole prompt is prefilled under both."))
    if waits < change / 2:
        return question(
            prompt, (f"Its queue wait is {duration(-waits)} shorter", "It starts at the next step for which a slot is free."),
            ("Its steps are shorter", "continuous batching speeds up the GPU", "A step of the same tokens takes the same time."),
            *others)
    return question(
        prompt, ("Its steps are shorter", "Fewer prompts and contexts share its steps: its tokens follow more closely."),
        ("Its queue wait is shorter", "every gain is a shorter wait", "Its wait explains less than half of the gain."), *others)


def _throughput_question(result: Result) -> Question:
    """The ratio of throughputs is that of the makespans."""
    a, b = (result.summaries[key]["makespan"] for key in ("static", "continuous"))
    idle = [book.idle_share for book in result.ledgers.values()]
    wrong = [(float(_slots(result)), "the gain is the number of slots",
              "Static batching uses the slots too, though not all the time."),
             (idle[0] / max(idle[1], 1e-3), "throughput goes with the idle share",
              "What counts is the time in which the same tokens are written."),
             (b / a, "a shorter run has less throughput", "The same tokens in less time are more per second."),
             (2.0, "continuous batching doubles throughput, always", "The gain depends on the lengths and the arrivals.")]
    return question(
        f"Both policies write the same {int(result.scenario.trace.output.sum()):,} output tokens: static in {duration(a)}, "
        f"continuous in {duration(b)}. How does continuous batching's throughput compare with static's?",
        (f"{a / b:.2f} times", f"The same tokens in {duration(b)} instead of {duration(a)}: the ratio of the makespans."),
        *((f"{n:.2f} times", name, why) for n, name, why in apart(a / b, wrong, 0.05 * a / b)),
        ("It cannot be said: the policies write different tokens", "a policy changes the replies",
         "One trace, one service: both write the same tokens."))


def _slots(result: Result) -> int:
    return result.runs["static"].policy.slots


# --- what it models ---------------------------------------------------------------------------------------------------


def models(result: Result) -> list[tuple[str, str, str]]:
    """(what, value with unit, source) of everything that the simulation on the screen assumes."""
    server, slots, prompt = result.scenario.service, _slots(result), scenario.PROMPT
    step_ms, prefill_ms = float(step_us(server, slots, slots * prompt)) / 1000, _prefill_ms(server, prompt)
    fill = duration(result.runs["static"].policy.fill_timeout)
    return [
        *server_rows(server),
        ("A decode step of all slots", f"{step_ms:.2f} ms at {prompt} tokens of context", "computed from the above"),
        ("A prompt alone", f"{prefill_ms:.2f} ms for {prompt} tokens", "computed from the above"),
        head_row(server),
        ("Static batching", f"batches of {slots}, fill timeout {fill}",
         "Orca, OSDI 2022, section 2; Triton's max_queue_delay_microseconds, whose default is 0"),
        ("Continuous batching", f"{count(slots, 'slot')}, prompts whole beside decodes, no token budget",
         "Orca, OSDI 2022, section 3, S1 (iteration-level scheduling)"),
        _requests_row(result),
    ]


def _requests_row(result: Result) -> tuple[str, str, str]:
    v, prompt, mean = result.scenario.values, scenario.PROMPT, scenario.MEAN_OUTPUT
    if v["source"] != scenario.GENERATED:
        whose = "the file that you dropped in" if v["source"] == scenario.OWN else \
            "Azure's 2023 conversation trace, first ten minutes; Microsoft, CC-BY 4.0, github.com/Azure/AzurePublicDataset"
        return "Requests", f"{count(len(result.scenario.trace), 'request')} from {int(v['start']):,} s on", whose
    median = mean / math.hypot(1, float(v["spread"]))  # of a lognormal with this mean and coefficient of variation
    lengths = f"{prompt} prompt tokens each; outputs lognormal, mean {mean}, median {median:.0f}, at most {scenario.LONGEST:,}"
    return "Requests", lengths, "chosen; Azure's 2023 conversations: mean 211, median 129, coefficient of variation 0.77"


def _prefill_ms(server: Service, prompt: int) -> float:
    return float(step_us(server, prompt, 0, attention_units(prompt))) / 1000


def leaves_out() -> list[str]:
    """What the simulation does not have."""
    return [
        "Memory: every request's KV cache fits, and equal slots are not equal memory: Orca's FasterTransformer reserves 2,048 "
        "tokens for each request, so that at 13B its batch is at most 4. How many fit is the next lesson's subject.",
        "Answers at the end of a batch: static batching here streams, each token and each end reaches its reader at once. "
        "FasterTransformer, as Orca describes it, answers when the whole batch has ended; then TTFT and E2E would be the batch's "
        "end. This favours static batching.",
        "Padding and ended members: FasterTransformer goes on computing both; here an ended member costs its slot, not step "
        "time. With unequal prompts it runs the first step at the shortest length and feeds the rest token by token.",
        "Batches of like lengths: sorting requests by expected length is static batching's obvious remedy; here they go in the "
        "order of arrival.",
        "The LM head: 0.68 ms a step for Llama-3-8B on an A100, about 6 % of a decode step; 0 here, under both policies.",
        "The engine's own time per step (scheduling, sampling): 0 ms here, under both policies; Vidur measured about 2 ms at 8 "
        "requests and 8 ms at 64 for Llama-2-7B in an engine of 2023.",
        "So times are those of the GPU's kernels. Held to a whole engine of 2023 (Llama-2-70B), this model's time "
        "per token is 0.76 and 0.51 of the measured one on an A100 with tensor parallel 4 and 8, and 0.72 and 0.51 on an H100 "
        "(medians; CALIBRATION.md, section 4).",
        "A token budget per step and chunked prompts: prompts enter whole, and a newcomer's prompt lengthens one step for all. "
        "In engines that run prompts in steps of their own (older vLLM), running replies stall longer.",
        "A steady state: with all requests at once, continuous batching's idle share is the end of the burst, when no request is "
        "left; with more requests it shrinks.",
        "Matrix tiles: real step times rise in stairs of 128 or 256 tokens; the formula is smooth. Its errors stand under "
        "“Against the record”. No step of Yi-34B or OPT-13B, nor of an A40 or an A100-40G, was measured.",
        "The network, tokenising, and clients that hang up.",
    ]


# --- take away --------------------------------------------------------------------------------------------------------


def python_lines(values: Values) -> str:
    """Python that redoes the run with sim alone; it ends with `runs`, a dict of Run by policy."""
    v = filled(values)
    slots, timeout = int(v["slots"]), float(v["timeout"]) / 1000
    own = v["source"] != scenario.GENERATED
    trace = _recorded_lines(v) if own else _generated_lines(v)
    return "\n".join([
        *(["from pathlib import Path", ""] if own else []),
        *(["from sim.readers import azure"] if own else ["from sim import workloads"]),
        "from sim.engine import simulate",
        "from sim.metrics import summary",
        "from sim.policy import continuous, static",
        "from sim.service import service",
        "",
        *trace,
        f"server = service({v['model']!r}, {v['gpu']!r})",
        f"policies = [static({slots}, fill_timeout={timeout!r}), continuous({slots}, prompts=\"whole\")]",
        "runs = {policy.name: simulate(trace, server, policy) for policy in policies}",
        "for name, run in runs.items():",
        "    print(name, summary(run))",
    ]) + "\n"


def _recorded_lines(v: Values) -> list[str]:
    path, what = ("your-trace.csv", "the file that you dropped in") if v["source"] == scenario.OWN else \
        (f"assets/{scenario.SAMPLE_FILE.name}", "in the project's folder")
    return [f'trace = azure.read(Path("{path}"))  # {what}',
            f"trace = trace.window({float(v['start'])!r}, limit={int(v['take'])})"]


def _generated_lines(v: Values) -> list[str]:
    n, seed, rate = int(v["requests"]), int(v["seed"]), float(v["rate"])
    spread, mean, cap = float(v["spread"]), scenario.MEAN_OUTPUT, scenario.LONGEST
    arrivals = {
        scenario.AT_ONCE: f"all_at_once({n})",
        scenario.EVEN: f"evenly_spaced({n}, rate={rate!r})",
        scenario.POISSON: f"poisson({n}, rate={rate!r}, seed={seed})",
        scenario.BURSTS: f"gamma_bursts({n}, rate={rate!r}, burstiness={scenario.BURSTINESS}, seed={seed}, exact_span=False)",
    }[str(v["arrivals"])]
    lines = [f"output = workloads.lognormal({n}, mean={mean}, cv={spread!r}, seed={seed}, cap={cap})"]
    if int(v["giant"]) > 1:
        lines.append(f"output[{min(1, n - 1)}] *= {int(v['giant'])}")
    return [*lines, f"arrival = workloads.{arrivals}",
            f"trace = workloads.workload(arrival - arrival[0], workloads.equal({n}, {scenario.PROMPT}), output)"]


def requests_csv(result: Result) -> str:
    """A line for each request and policy; requests counted from 1 as on the screen, times in ms."""
    return files.requests_csv({key: frame(run) for key, run in result.runs.items()})


def chrome_trace(result: Result) -> str:
    """The stage in Chrome's trace format (Perfetto, chrome://tracing): a process per policy, a thread per slot, µs."""
    events: list[files.Event] = []
    for pid, (key, run) in enumerate(result.runs.items(), start=1):
        events += files.names(pid, f"{NAMES[key]} batching", [f"slot {slot + 1}" for slot in range(run.policy.slots)])
        events += _pieces(run, pid)
    return files.chrome_trace(events)


def _pieces(run: Run, pid: int) -> list[files.Event]:
    s, zero = slot_segments(run), float(run.trace.arrival_us[0])
    columns = (s.slot, s.start_us - zero, s.end_us - s.start_us, s.role, s.request)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    events = []
    for slot, start, took, k, r in rows:
        role = ROLES[k]
        args = {"request": r + 1, "prompt": int(run.trace.prompt[r]), "output": int(run.trace.output[r])} if r >= 0 else {}
        name = f"{r + 1} {g.ROLES[role].label}" if r >= 0 else g.ROLES[role].label
        events.append(files.piece(pid, slot + 1, name, "work" if k <= DECODE else "idle", start, took, args))
    return events


def cursor_data(result: Result) -> dict[str, Any]:
    """What the scrubber needs to say who is where at an instant: per policy, columns by request, ms after the first arrival."""
    told: dict[str, Any] = {}
    for key, run in result.runs.items():
        zero = float(run.trace.arrival_us[0])
        instants = {"arrival": run.trace.arrival_us, "admitted": run.admitted_us, "first": run.first_token_us,
                    "finished": run.finished_us, "released": run.released_us}
        told[key] = {"name": NAMES[key], "slots": run.policy.slots, "slot": lanes(run).tolist(),
                     **{name: files.ms(us, zero) for name, us in instants.items()}}
    return told
