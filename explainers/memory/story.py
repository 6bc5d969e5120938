"""The memory lesson's words: runs → the sentence of difference, where the memory goes, a request's life, questions. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from explainers.kit import files
from explainers.kit import grammar as g
from explainers.kit.assumed import Row, head_row, server_rows
from explainers.kit.compare import reply_clause, turns_out
from explainers.kit.grammar import count, duration, listed, percent, percent_of
from explainers.kit.quiz import Prediction, Question, apart, question
from explainers.memory import figures, scenario
from explainers.memory.scenario import CV, GENERATED, LENGTHS, OWN, PRESETS, SLOTS, Preemption, Result, Sweep, Values, filled
from sim.kv.occupancy import PARTS, tokens_at
from sim.kv.reserve import blocks_needed, piece
from sim.lifecycle import Stage, refusal
from sim.lifecycle import life as stages
from sim.metrics import e2e, frame, makespan, normalised_latency, queue_wait, ttft
from sim.orders import outputs
from sim.policy import Memory
from sim.readers.recording import Recording
from sim.run import CANCELLED, FINISHED, REFUSED, UNFINISHED, Ints, Run
from sim.service import Affine, Service

TITLE = "Reserve or page the memory"
QUESTION = "Nobody knows how long a reply will be. How much memory should a request get when it starts?"
LEAD = ("Each token leaves its keys and values, its KV, in the GPU's memory until its request ends. Orca (Max), a server of "
        "2022, reserves the maximum length for everyone, in one piece. Paged memory gives out small blocks as tokens come. Both "
        "face the same requests.")
"""What a newcomer must know before the figure; at most 260 characters."""
WORDS: tuple[tuple[str, str], ...] = (
    ("KV", "Keys and values: what the model keeps of each token, to read it again in every later step."),
    ("Token slot", "Room for the KV of one token; memory is counted in them."),
    ("Pool", "All token slots of the GPU that are left beside the model's weights."),
    ("Reservation", "Slots set aside for a request when it starts, filled or not."),
    ("Block", "A few neighbouring token slots, 16 as a rule, given out together."),
    ("Block table", "A request's list of its blocks: where in memory its first, second, third block lies."),
    ("Internal fragmentation", "Slots that a request holds and that no token will ever fill."),
    ("External fragmentation", "Free slots in pieces too small to be given; here also free slots that are too few."),
    ("Buddy allocator", "Gives out pieces of 1, 2, 4, 8 … slots by halving larger ones, and merges them again."),
    ("Preemption", "A running request loses its blocks, because another needs them, and goes back to the queue."),
    ("Recompute, swap", "Two ways back: compute the lost KV again, or fetch it from the host's memory."),
    ("Orca (Max), (Pow2), (Oracle)", "Reserve the maximum length; the output rounded up to a power of two; the true length."),
    ("Copy on write", "A shared block is copied only when one of its holders writes into it."),
    ("TTFT, E2E", "Time from a request's arrival until its first and until its last token."),
    ("ShareGPT, Alpaca", "Public collections of conversations and of instructions, from which the lengths are taken."),
    ("Poisson arrivals", "Requests come one by one, each at random, with the same mean rate all the time."),
    ("Step", "One pass of the model, which gives every running request at most one new token."),
    ("p50, p99", "The value that half, or 99 of 100, of the requests stay below."),
)
"""(term, one plain sentence of fewer than 20 words)."""
CLAIMS: tuple[str, ...] = ("paged-*",)
FIRST_CLAIMS: tuple[str, ...] = ("paged-stack-*", "paged-batch-*", "paged-rate-*")

_SAME_US = 1e-3
_ROOM = {"maximum": "the maximum length of {longest:,} token slots", "power": "its output rounded up to a power of two",
         "output": "exactly what it will need"}


# --- what is on the screen --------------------------------------------------------------------------------------------


def called(result: Result, key: str) -> str:
    """The allocator's name within a sentence: "Orca (Max)", "paged memory", "vLLM"."""
    policy = result.scenario.policies[key]
    return policy.name if _memory(result.runs[key]).contiguous or policy.name == "vLLM" else "paged memory"


def _memory(run: Run) -> Memory:
    memory = run.policy.memory
    assert memory is not None  # build sees to it
    return memory


def _titled(text: str) -> str:
    return text if text.startswith("vLLM") else text[:1].upper() + text[1:]


def final_tokens(run: Run) -> Ints:
    """KV tokens of each request at its end: prompt + output − 1, as the last token has none."""
    tokens: Ints = run.trace.prompt + outputs(run.trace, run.policy) - 1
    return tokens


def held_slots(run: Run) -> Ints:
    """Token slots that each request takes from the pool at its largest: reserved and rounded up, or in whole blocks."""
    needs = blocks_needed(run.trace, run.policy)
    if _memory(run).contiguous:
        return np.array([piece(int(blocks)) for blocks in needs.tolist()], np.int64)
    return needs * _memory(run).block_size


def _pool(run: Run) -> int:
    return _memory(run).blocks * _memory(run).block_size


def _at(us: float, zero: float) -> str:
    return duration(float(us - zero) / 1e6)


def _zero(result: Result) -> float:
    return float(result.scenario.trace.arrival_us[0])


# --- the sentence of difference ---------------------------------------------------------------------------------------


def headline(result: Result, answer: bool = True) -> str:
    """What differs between the memories, and why. `answer` False: without how many requests fit, which is to be predicted."""
    one, other = result.runs["reserved"], result.runs["other"]
    a, b = called(result, "reserved"), called(result, "other")
    summed, compared = ({"makespan": makespan(run), "e2e_p50": _median(e2e(run))} for run in (one, other))
    if one.policy == other.policy:
        return f"No difference: both memories are {a}. Choose another second allocator."
    if bool(np.all(np.abs(e2e(one) - e2e(other)) <= 1e-6)):
        why = "because nobody waits for memory" if not any(math.isfinite(start) for start, _ in result.saturated.values()) else \
            "although requests wait for memory: both let in the same ones at the same time"
        return f"No difference: every request ends at the same moment with {a} and with {b}, {why}."
    if stalled := [f"{_titled(called(result, key))} comes to a stop: {count(n, 'request')} never {'ends' if n == 1 else 'end'}."
                   for key, run in result.runs.items() if (n := int((run.outcome == UNFINISHED).sum()))]:
        return " ".join([*stalled, "So times of the two cannot be compared."])
    if not answer:
        return (f"{a} sets {_gives(one)} aside for each request as it starts; {b} {_takes(other)}, "
                f"{turns_out(summed, compared)} {reply_clause(summed, compared)}.")
    fits = [_fits(result, key) for key in result.runs]
    once = ", and computes shared prompts once" if other.cached.any() else ""
    fill = [figures.fill(result, key) for key in result.runs]
    return (f"{a} holds {fits[0]} at once, as each sets {_gives(one)} aside, and tokens fill {fill[0]} of what is taken; {b} "
            f"holds {fits[1]} and fills {fill[1]}{once}, {turns_out(summed, compared)} {reply_clause(summed, compared)}.")


def _median(seconds: g.Floats) -> float:
    there = seconds[~np.isnan(seconds)]
    return float(np.median(there)) if len(there) else math.nan


def _gives(run: Run) -> str:
    return _ROOM[_memory(run).reserve].format(longest=run.policy.longest or 0)


def _takes(run: Run) -> str:
    memory = _memory(run)
    if memory.contiguous:
        return f"sets {_gives(run)} aside"
    once = " and keeps shared prompts once" if run.cached.any() else ""
    return f"takes a block of {count(memory.block_size, 'slot')} when a token needs it{once}"


def _fits(result: Result, key: str) -> str:
    """ "7 of 40 requests", "all 40"."""
    n, most = len(result.scenario.trace), scenario.fit_at_once(result, key)
    if n == most:
        return f"all {n:,} requests" if n > 1 else "the one request"
    return f"{most:,} of {count(n, 'request')}"


# --- prediction -------------------------------------------------------------------------------------------------------


def prediction(result: Result) -> Prediction:
    """How many fit at once under the reserving allocator."""
    n = len(result.scenario.trace)
    return Prediction(f"How many of the {n:,} run at once with {called(result, 'reserved')}?" if n > 1 else
                      f"Does the request fit with {called(result, 'reserved')}?", "requests", 0, n)


def hint(result: Result) -> str:
    """What to estimate the prediction from."""
    run = result.runs["reserved"]
    return f"{_pool(run):,} token slots; prompt and reply together: at most {int(run.policy.longest or 0):,}."


def feedback(result: Result, guess: float | None) -> str:
    """The answer to the prediction and why; `guess` in requests, None: skipped."""
    run, other = result.runs["reserved"], result.runs["other"]
    truth, n, longest = scenario.fit_at_once(result, "reserved"), len(run), int(run.policy.longest or 0)
    whole, size = _pool(run), piece(longest)
    room = f"{whole:,} token slots hold {count(whole // size, 'piece')} of {size:,}"
    if truth == n:
        why = f"{room}, and only {n:,} came." if whole // size > n else f"{room}."
    elif truth == whole // size:
        left = whole - truth * size
        why = f"{room}; {f'the {left:,} left over are too few for one more.' if left else 'none is left over.'}"
    else:
        why = f"{room}, but so many were never there together."
    beside = ""
    if run.policy != other.policy:
        beside = f" {_titled(called(result, 'other'))} held {scenario.fit_at_once(result, 'other'):,}."
    if guess is None:
        return f"It is **{truth:,}**: {why}{beside}"
    verdict = "Right" if round(guess) == truth else "Fewer than you said" if guess > truth else "More than you said"
    said = f", you said {guess:,.0f}" if round(guess) != truth else ""
    return f"{verdict}: it is **{truth:,}**{said}. {why[0].upper()}{why[1:]}{beside}"


# --- where the memory goes --------------------------------------------------------------------------------------------


def causes(result: Result) -> list[str]:
    """A sentence for each part of the memory of at least a per cent, by allocator; whole per cents that add up to 100."""
    said = []
    for key, run in result.runs.items():
        mean, whole = scenario.mean_shares(result, key), figures.shares(result, key)
        name = _titled(called(result, key))
        for part in PARTS:
            if whole[part]:
                said.append(f"**{name}: {g.ROLES[part].label} {percent_of(mean[part], whole[part])}.** "
                            f"{_cause(result, run, key, part)}")
    return said


def _cause(result: Result, run: Run, key: str, part: str) -> str:
    memory = _memory(run)
    if part == "tokens":
        if math.isfinite(result.saturated[key][0]):
            return "On average while requests wait for memory."
        return "On average over the whole run; nobody waited for memory."
    if part == "reserved":
        if memory.reserve == "nothing":
            return "The rest of last blocks that the next tokens will fill."
        return "Set aside when the request started; a token will fill it, but until then nobody else may."
    if part == "internal":
        return _inner_waste(run)
    if part == "external":
        return _outer_waste(run)
    if math.isfinite(result.saturated[key][0]):
        return "Free in those moments in which nobody waited for it."
    return "Free, and nobody waited for it."


def _inner_waste(run: Run) -> str:
    memory = _memory(run)
    if memory.reserve == "nothing":
        return (f"The last block of a request stays partly empty: at most {count(memory.block_size - 1, 'slot')} each, "
                "whatever its length.")
    needs, tokens = blocks_needed(run.trace, run.policy), final_tokens(run)
    worst = int(np.argmax(np.where(np.isfinite(run.admitted_us), needs - tokens, -1)))
    return (f"Reserved beyond what the reply turned out to need. Request {worst + 1} was given {int(needs[worst]):,} slots and "
            f"ended with {int(tokens[worst]):,} tokens.")


def _outer_waste(run: Run) -> str:
    memory = _memory(run)
    if memory.reserve == "nothing":
        return ("Free, but too few for the next in line, behind whom all others wait. Blocks are alike, so none of this is "
                "fragmentation.")
    rounded = int((held_slots(run) - blocks_needed(run.trace, run.policy)).sum())
    up = "What the buddy allocator rounds up to a power of two, and free pieces" if rounded else "Free pieces"
    return f"{up} that are too small for the next in line."


# --- a request's life -------------------------------------------------------------------------------------------------


def life(result: Result, key: str, request: int) -> str:
    """What one request went through with one memory: its waits and their causes, what it held, each preemption."""
    run, zero, trace = result.runs[key], _zero(result), result.scenario.trace
    prompt, output = int(trace.prompt[request]), int(outputs(trace, run.policy)[request])
    said = [f"**{_titled(called(result, key))}.** Request {request + 1} ({prompt:,} prompt, {output:,} output tokens) "
            f"came at {_at(trace.arrival_us[request], zero)}"]
    if run.outcome[request] == REFUSED:
        return f"{said[0]} and was refused: {refusal(run, request)}."
    if not math.isfinite(run.admitted_us[request]):
        gone = run.outcome[request] == CANCELLED
        return f"{said[0]}; it never started{': its client gave up first' if gone else ''}."
    said.append(_waited(run, request))
    said.append(_holds(run, request))
    if math.isfinite(run.first_token_us[request]):
        said.append(f"TTFT {duration(float(ttft(run)[request]))}")
    said += _lost(run, request, zero)
    if run.outcome[request] == FINISHED:
        said.append(f"ended at {_at(run.finished_us[request], zero)}: E2E {duration(float(e2e(run)[request]))}")
    elif run.outcome[request] != UNFINISHED:
        said.append(f"left at {_at(run.finished_us[request], zero)}, before its end")
    return "; ".join(said) + "."


_WAITS: tuple[tuple[str, str], ...] = (
    ("behind request", "behind others in the queue"), ("not enough blocks", "first in line, for memory"),
    ("slots full", "for a place among those that may run at once"), ("budget spent", "for token budget"),
    ("a step with a preemption", "as nobody is admitted in a step that preempts"),
    ("step boundary", "for the running step to end"),
)


def _waited(run: Run, request: int) -> str:
    """How long it waited before it first ran, and for what."""
    lasted: dict[str, float] = {}
    for stage in _first_wait(stages(run, request)):
        why = next((words for start, words in _WAITS if stage.cause.startswith(start)), stage.cause)
        lasted[why] = lasted.get(why, 0.0) + (stage.end_us - stage.start_us) / 1e6
    lasted = {why: s for why, s in lasted.items() if s > _SAME_US / 1e6}
    if not lasted:
        return "started at once"
    total = duration(float(queue_wait(run)[request]))
    if len(lasted) == 1:
        return f"waited {total} {next(iter(lasted))}{_lacked(run, request)}"
    return f"waited {total}: {listed([f'{duration(s)} {why}' for why, s in lasted.items()])}{_lacked(run, request)}"


def _first_wait(all_: list[Stage]) -> list[Stage]:
    end = next((i for i, stage in enumerate(all_) if stage.state != "waiting"), len(all_))
    return all_[:end]


def _lacked(run: Run, request: int) -> str:
    """ " (it needed 2,048 slots in one piece; 1,364 were free)", as it was when the request was first in line."""
    mine = [e for e in run.events if e.kind == "blocked" and e.request == request and e.at_us < run.admitted_us[request]]
    if not mine:
        return ""
    size, last = _memory(run).block_size, mine[-1]
    needs, free = last.tokens * size, last.blocks * size
    where = " in one piece" if _memory(run).contiguous else ""
    return f" (it needed {needs:,} slots{where}; {free:,} were free in all)"


def _holds(run: Run, request: int) -> str:
    """What it took from the memory."""
    memory, tokens = _memory(run), int(final_tokens(run)[request])
    needs = int(blocks_needed(run.trace, run.policy)[request])
    if memory.contiguous:
        took, address = int(held_slots(run)[request]), -1 if run.address is None else int(run.address[request])
        never = needs - tokens
        parts = [f"{tokens:,} were filled when it ended"]
        if never > 0:
            parts.append(f"{never:,} never")
        if took > needs:
            parts.append(f"{took - needs:,} came on top, as pieces are powers of two")
        return f"was given {count(took, 'slot')} in one piece, from {address:,} on: {listed(parts)}"
    size = memory.block_size
    empty = needs * size - tokens
    rest = f"with {count(empty, 'slot')} of the last one empty" if empty else "all of them full"
    cached = int(run.cached[request])
    found = f"found {count(cached, 'token')} of its prompt in the cache, and " if cached else ""
    return f"{found}grew to {count(needs, 'block')} of {size} for its {tokens:,} tokens, {rest}"


def _lost(run: Run, request: int, zero: float) -> list[str]:
    """Each time it was preempted, and its return."""
    mine = [e for e in run.events if e.request == request and e.kind in ("preempted", "admitted", "caught up")]
    said = []
    for i, event in enumerate(mine):
        if event.kind != "preempted":
            continue
        why = f"request {event.by + 1} needed a block" if event.by not in (request, -1) else \
            "it needed a block itself and was the last in line"
        back = next((e for e in mine[i + 1:] if e.kind == "admitted"), None)
        again = next((e for e in mine[i + 1:] if e.kind == "caught up"), None)
        told = f"preempted at {_at(event.at_us, zero)} with {event.tokens:,} tokens in {count(event.blocks, 'block')}, as {why}"
        if back is not None:
            told += f"; back at {_at(back.at_us, zero)}"
            if again is not None:
                told += f", its next token at {_at(again.at_us, zero)}"
        said.append(told)
    if len(said) > 2:
        lost = int(run.recomputed[request])
        said = [said[0], f"preempted {len(said) - 1} more times, {lost:,} tokens computed and thrown away in all"]
    return said


def first_instant_ms(result: Result) -> float:
    """Where the time cursor stands until it is placed, ms."""
    return (figures.instant_us(result) - _zero(result)) / 1000


# --- preemptions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """One moment of a preemption: its name, what happens, and the instant to show, µs."""

    name: str
    words: str
    at_us: float


def preempted(result: Result, which: int) -> list[Scene]:
    """A preemption in three moments: the step before, the step that takes the blocks away, and what follows."""
    run, zero, found = result.runs["other"], _zero(result), scenario.preemptions(result)
    there, event = result.occupancies["other"], found[which]
    row = max(int(np.searchsorted(there.start_us, event.at_us + _SAME_US, side="right")) - 1, 1)
    before, after = float(there.end_us[row - 1] - _SAME_US), float(there.start_us[min(row + 1, len(there.start_us) - 1)])
    who, blocks = f"Request {event.request + 1}", count(event.blocks, "block")
    together = sum(abs(other.at_us - event.at_us) <= _SAME_US for other in found)
    also = f" It is one of {together} that lose their blocks in this step." if together > 1 else ""
    holders, free = count(int(there.holders[row - 1]), "request"), count(int(run.steps.free[row - 1]), "block")
    return [
        Scene("Before", f"In the step that ends at {_at(before, zero)}, {holders} hold memory, and {free} of "
              f"{_memory(run).blocks:,} are free. {who} has {event.tokens:,} tokens in {blocks}.", before),
        Scene("The step", f"At {_at(event.at_us, zero)} {_taker(event)}: it gives up {blocks} with the KV of {event.tokens:,} "
              f"tokens and goes back to the head of the queue.{also}", event.at_us),
        Scene("After", _after(run, event, zero), after),
    ]


def _taker(event: Preemption) -> str:
    """Who needs a block, and why this request loses its own."""
    who = f"request {event.request + 1}"
    if event.by == event.request:
        return f"{who} needs a block for its next token, none is free, and it is itself the last in line"
    by = "a running request" if event.by < 0 else f"request {event.by + 1}"
    return f"{by} needs a block for its next token, and none is free. {_titled(who)} is the last in line"


def ms_of(result: Result, scene: Scene) -> float:
    """The scene's instant as the time cursor has it."""
    return max(0.0, round((scene.at_us - _zero(result)) / 1000, 3))


def _after(run: Run, event: Preemption, zero: float) -> str:
    later = [e for e in run.events if e.request == event.request and e.at_us >= event.at_us - _SAME_US]
    back = next((e for e in later if e.kind == "admitted"), None)
    swaps = _memory(run).swap_us is not None
    if back is None:
        return f"Request {event.request + 1} never comes back in this run."
    kept = f"with {count(back.tokens, 'token')} " + ("swapped in" if swaps else "found in the cache") if back.tokens else \
        "with nothing kept"
    again = next((e for e in later if e.kind == "caught up"), None)
    then = f", and writes its next token at {_at(again.at_us, zero)}" if again else ""
    return f"Request {event.request + 1} comes back at {_at(back.at_us, zero)} {kept}{then}. {cost(run, event)}"


def cost(run: Run, event: Preemption) -> str:
    """Recompute against swap, for one preemption."""
    any_ = (event.recompute_ms - event.extra_ms) / 1000
    again = (f"Recomputing its {count(event.tokens, 'token')} takes a step of {duration(event.recompute_ms / 1000)}, of which "
             f"any step takes {duration(any_)}: beside others only the rest is extra")
    if math.isnan(event.swap_ms):
        return again + "."
    return (f"{again}. Swapping its {count(event.blocks, 'block')} out and in again takes {duration(event.swap_ms / 1000)}, in "
            "which nobody computes.")


def preemptions(result: Result) -> str:
    """How often, whom, and what it cost in all."""
    found = scenario.preemptions(result)
    name = called(result, "other")
    if not found:
        if _memory(result.runs["other"]).contiguous:
            return (f"{name} preempts nobody: whoever starts has all the memory it will ever need. The price stands above: few "
                    "start.")
        return ("Here the paged memory never runs out, so nobody is preempted. Take less memory, or more requests: the preset "
                "“Memory runs out” does.")
    run = result.runs["other"]
    victims, lost = len({p.request for p in found}), sum(p.tokens for p in found)
    again, swap = sum(p.extra_ms for p in found) / 1000, sum(p.swap_ms for p in found) / 1000
    does = "swapped out" if _memory(run).swap_us is not None else "thrown away"
    beside = "" if math.isnan(swap) else f"; to swap their blocks out and in, {duration(swap)}, in which nobody computes"
    return (f"{count(len(found), 'preemption')} of {count(victims, 'request')}; the KV of {lost:,} tokens was {does}. To compute "
            f"it again takes {duration(again)} in all beyond the steps that run anyway{beside}.")


def preemption_label(result: Result, which: int) -> str:
    """ "3: request 21 at 5.20 s"."""
    event = scenario.preemptions(result)[which]
    return f"{which + 1}: request {event.request + 1} at {_at(event.at_us, _zero(result))}"


# --- watch-for lines, numbers, sweep ----------------------------------------------------------------------------------


def watch(values: Values) -> str:
    """What to look for: the preset's line where the values are a preset's, else one for the kind of set-up."""
    now = filled(values)
    for preset in PRESETS:
        if filled(preset.values) == now:
            return preset.watch
    if now["source"] != GENERATED:
        return "Requests, memory and clock are the recording's. Watch whether our free blocks are those that vLLM had."
    if now["other"] == scenario.MAX:
        return "Both memories are Orca (Max). Choose another second allocator."
    if now["other"] == scenario.POW2:
        return ("Pow2 reserves the output rounded up to a power of two, the buddy allocator rounds the sum up again: watch what "
                "is lost between the pieces.")
    if now["other"] == scenario.ORACLE:
        return ("Oracle knows every reply's length, so nothing it reserves stays unfilled. Watch what is lost all the same: "
                "slots that wait for tokens to come, and pieces that fit nobody.")
    if now["arrivals"] == scenario.POISSON:
        return "Watch which memory makes the queue grow first, as the arrival rate rises."
    return "Watch how many requests hold memory at once, and how much of it tokens fill."


def idle(values: Values) -> dict[str, str]:
    """The knobs that play no part now, and why."""
    v = filled(values)
    if v["source"] != GENERATED:
        return {knob.key: "Plays no part: requests, memory and clock come from the recording." for knob in scenario.KNOBS
                if knob.key not in ("source", "beams")}
    found: dict[str, str] = {}
    if v["fit"] == scenario.FITS:
        found["memory"] = "Plays no part while the memory is what fits on the GPU: set “Memory from” to “own number”."
    if v["arrivals"] == scenario.AT_ONCE:
        found["rate"] = "Plays no part while all requests come at once: choose another pattern above."
    if v["other"] not in (scenario.POW2, scenario.ORACLE):
        found["off"] = "Plays no part: only Pow2 and Oracle guess how long a reply will be."
    if v["other"] != scenario.PAGED:
        found |= dict.fromkeys(("block", "preempt"), "Plays no part on the stage: the second allocator is not paged.")
    elif scenario.shares_prompts(v):
        found["preempt"] = ("Plays no part with shared prompts: who is preempted finds those of its blocks in the prefix cache "
                            "that nobody took.")
    return found


_NUMBERS: tuple[tuple[str, str], ...] = (
    ("Last reply ends after", "makespan"), ("Output tokens per second", "tokens_per_s"),
    ("Time to first token (TTFT), p50", "ttft_p50"), ("Time to first token (TTFT), p99", "ttft_p99"),
    ("End-to-end latency (E2E), p50", "e2e_p50"), ("End-to-end latency (E2E), p99", "e2e_p99"),
    ("Gap between tokens (ITL), p50", "itl_p50"))


def numbers(result: Result, answer: bool = True) -> pd.DataFrame:
    """The measures side by side, as text: columns "", and the two allocators; how many fit only if `answer`."""
    rows = [(name, *(f"{s[key]:,.0f}" if key == "tokens_per_s" else duration(s[key]) for s in result.summaries.values()))
            for name, key in _NUMBERS]

    def row(name: str, cell: Callable[[str], str]) -> None:
        rows.append((name, *(cell(key) for key in result.runs)))

    row("Latency per output token, mean", lambda k: duration(_mean(normalised_latency(result.runs[k]))))
    row("Preemptions", lambda k: f"{int(result.runs[k].preemptions.sum()):,}")
    row("Tokens computed twice", lambda k: f"{int(result.runs[k].recomputed.sum()):,}")
    if any((run.outcome == REFUSED).any() for run in result.runs.values()):
        row("Refused: can never fit", lambda k: f"{int((result.runs[k].outcome == REFUSED).sum()):,}")
    if answer:
        row("Requests at once, most", lambda k: f"{scenario.fit_at_once(result, k):,}")
        row("Requests at once, mean", lambda k: f"{result.occupancies[k].batch(*scenario.window(result, k)):.1f}")
    names = [policy.name for policy in result.scenario.policies.values()]
    if names[0] == names[1]:
        names[1] += ", second"
    return pd.DataFrame(rows, columns=["", *names])


def _mean(values: Any) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan


def numbers_note(result: Result) -> str:
    """What the labels of `numbers` mean, in a line or two."""
    waits = [called(result, key) for key, (start, _) in result.saturated.items() if math.isfinite(start)]
    over = "the whole run" if not waits else \
        "the time while requests wait for memory" if len(waits) == 2 else \
        f"the time while requests wait for memory ({waits[0]}; for the other, where nobody waits, over the whole run)"
    return ("p50: half of the requests stay below it; p99: 99 of 100. Latency per output token is E2E over output tokens, as in "
            f"the PagedAttention paper. Means of the memory are over {over}.")


def sweep_words(curve: Sweep) -> str:
    """What the sweep shows from end to end, and what it means."""
    at = int(np.flatnonzero(curve.x == curve.x_here)[0])
    if curve.over == "block":
        waste, blocks, name = curve.waste["other"], curve.blocks["other"], curve.names["other"]
        held, here = percent(float(curve.waste["reserved"][0])), ", where you are," if curve.here else ""
        said = (f"From blocks of {curve.x[0]:g} to blocks of {curve.x[-1]:g} slots, the part of its memory that {name} keeps "
                f"without tokens goes from {percent(float(waste[0]))} to {percent(float(waste[-1]))}, and a request's block "
                f"table from {blocks[0]:,.0f} entries to {blocks[-1]:,.1f}. At {curve.x_here:g}{here} they are "
                f"{percent(float(waste[at]))} and {blocks[at]:,.1f}: large blocks stay partly empty, small ones cost "
                f"bookkeeping. {curve.names['reserved']} keeps {held} without tokens, whatever the block.")
    else:
        parts = []
        for key, name in curve.names.items():
            batch, p99 = curve.batch[key], curve.e2e_p99[key]
            parts.append(f"with {name} the mean number of requests in memory goes from {batch[0]:.1f} to {batch[-1]:.1f} and the "
                         f"p99 of E2E latency from {duration(float(p99[0]))} to {duration(float(p99[-1]))}")
        said = (f"From {curve.x[0]:g} to {curve.x[-1]:g} requests/s, {'; '.join(parts)}. A memory that holds more requests lets "
                "more of them share a step, so that the queue grows later.")
    return " ".join(filter(None, (said, curve.note, curve.fewer)))


# --- recordings -------------------------------------------------------------------------------------------------------


def read(found: Recording) -> str:
    """What was read from a file, in a few words."""
    memory = found.policy.memory
    blocks = f"{memory.blocks:,} blocks of {memory.block_size}, " if memory else ""
    return f"{count(len(found.trace), 'request')}, {blocks}{count(len(found.free), 'recorded step')}"


def given(result: Result) -> str:
    """What a recording gives in place of the knobs that then play no part; empty where the knobs give it."""
    found = result.scenario.recorded
    return "" if found is None else f"From the recording: {read(found)}. Requests, memory, allocator and clock are its own."


def recorded(result: Result) -> str:
    """Our free blocks beside the recorded ones, step by step; empty where nothing is recorded."""
    if result.recorded_free is None:
        return ""
    theirs, ours = result.recorded_free, result.runs["other"].steps.free
    if not len(theirs):
        return f"The file does not list its steps, so there is nothing to compare with. {result.scenario.note}".strip()
    n = min(len(theirs), len(ours))
    differ = np.flatnonzero(theirs[:n] != ours[:n])
    if len(theirs) == len(ours) and not len(differ):
        return (f"In all {len(theirs):,} steps of the recording our run has exactly as many free blocks as vLLM's scheduler had: "
                f"the same decisions, from the same rules. {result.scenario.note}").strip()
    where = f", first in step {int(differ[0]) + 1:,}" if len(differ) else ""
    return (f"The recording has {count(len(theirs), 'step')}, our run {len(ours):,}; the free blocks differ in {len(differ):,} "
            f"of the first {n:,}{where}. {result.scenario.note}").strip()


# --- sharing ----------------------------------------------------------------------------------------------------------

SHARING = ("Samples are several replies to one prompt; beams are candidates of which the likeliest survive each step. Both start "
           "from the same tokens, and paged memory keeps a full block once, with a count of who uses it. A last block that is "
           "only partly full is shared too, until one of its owners writes the next token: that one gets a copy first. The "
           "figure has a prompt and replies of mean length. Beams fork like this here: at every step each of the new beams takes "
           "its parent from the old ones at random, all equally likely. Real ones follow the likelihoods, so that more of them "
           "live on side by side and they share less: see the record below.")
"""What is shared and how beams fork; stands above the figure of sharing."""


# --- check yourself ---------------------------------------------------------------------------------------------------


def quiz(result: Result) -> list[Question]:
    """Four questions whose numbers are the run's; wrong options are named misconceptions. The same for the same run."""
    return [_unfilled_question(result), _slots_question(result), _preemption_question(result), _gain_question(result)]


def _unfilled_question(result: Result) -> Question:
    """What the slots are that a request of Orca (Max) never fills."""
    run = result.runs["reserved"]
    never = np.where(np.isfinite(run.admitted_us), blocks_needed(run.trace, run.policy) - final_tokens(run), 0)
    r = int(np.argmax(never))
    needs, tokens = int(blocks_needed(run.trace, run.policy)[r]), int(final_tokens(run)[r])
    if never[r] <= 1:  # the last token has no KV
        return question(
            "Here every request fills what Orca (Max) reserves for it. What does a reservation cost all the same?",
            ("Slots stand empty until their tokens come", "They are reserved from the start and filled one by one."),
            ("Nothing: what is filled is not wasted", "only slots that are never filled cost anything",
             "Until its token comes a reserved slot could have held another request's."),
            ("External fragmentation of all the rest", "reserved slots count as fragments",
             "External fragmentation is of free memory."),
            ("A second copy of each token", "a reservation keeps tokens twice", "It only keeps room."))
    return question(
        f"With Orca (Max) request {r + 1} is given {needs:,} slots and ends with {tokens:,} tokens. What are the other "
        f"{needs - tokens:,} while it runs?",
        ("Internal fragmentation: held, and never filled", "They lie inside its reservation, where no token will come."),
        ("Free: others can have them until it needs them", "a reservation is lent out while it is not used",
         "The piece must stay whole, in case the reply goes on."),
        ("Reserved for tokens to come", "every empty slot of a reservation will be filled",
         "Only slots up to the request's final length will be."),
        ("External fragmentation: free, but too small", "all waste is external fragmentation",
         "External fragmentation is free memory; this is held."))


def _slots_question(result: Result) -> Question:
    """What one request takes from the second memory."""
    run = result.runs["other"]
    tokens, took, size = final_tokens(run), held_slots(run), _memory(run).block_size
    longest = int(result.runs["reserved"].policy.longest or 0)
    r = int(np.argmax(took - tokens)) if _memory(run).contiguous else int(np.argmin(np.abs(took - tokens - 0.6 * size)))
    right, mine = int(took[r] - tokens[r]), int(tokens[r])
    name = called(result, "other")
    wrong = [(float(max(longest - mine, 0)), "every request takes the maximum length",
              "That is Orca (Max); here it takes what it is given below."),
             (0.0, "this memory wastes nothing", "What is given out comes in fixed sizes, and the last piece is rarely full."),
             (float(size // 2), "it is always half a block", "Half a block is the mean over many lengths."),
             (float(mine % max(size, 2)), "what is left over is what stays empty",
              "The tokens left over are in the last block; the rest of that block is empty."),
             (2.0 * right + 8, "twice as much as needed is taken", "Only the last block, or the rounding up, is too much.")]
    how = f"{int(took[r]) // size:,} blocks of {size} are {int(took[r]):,} slots" if not _memory(run).contiguous else \
        f"its piece has {int(took[r]):,} slots"
    return question(
        f"Request {r + 1} ends with {mine:,} tokens. How many slots of what {name} gives it stay empty at its end?",
        (f"{right:,}", f"{_titled(how)}; {int(took[r]):,} − {mine:,} = {right:,}."),
        *((f"{x:,.0f}", myth, why) for x, myth, why in apart(float(right), wrong, 1.0)),
        ("It depends on what the others hold", "the waste of one request depends on the rest",
         "It depends on its own length and on the size of the pieces."))


def _preemption_question(result: Result) -> Question:
    """What a preemption costs, or why there is none."""
    found = scenario.preemptions(result)
    if found:
        event = max(found, key=lambda p: p.tokens)
        right = f"One step that reads {event.tokens:,} tokens"
        return question(
            f"Request {event.request + 1} is preempted with {event.tokens:,} tokens in {count(event.blocks, 'block')}. What does "
            "it take to bring it back by recomputing?",
            (right, "Its prompt and its reply so far are known, so that one prefill computes the KV of all of them: "
                    f"{duration(event.recompute_ms / 1000)} here."),
            (f"{event.tokens:,} steps, one a token", "tokens must be written again one by one",
             "They are known already; only their KV is computed, all in one step."),
            ("Nothing: its blocks wait for it", "a preempted request keeps its blocks", "Others have them by then."),
            ("A copy from the host's memory", "recomputing is swapping", "That is the other way: swap."))
    if _memory(result.runs["other"]).contiguous:
        return question(
            f"Why does {called(result, 'other')} never preempt anybody?",
            ("Whoever starts has all the memory it will need", "It is reserved at the start, so that it cannot run out later."),
            ("Its memory is larger", "the allocators have different amounts of memory", "Both have the same pool."),
            ("Replies are shorter with it", "an allocator changes the replies", "Both serve the same trace."),
            ("It swaps in the background", "memory can always be swapped", "Nothing is swapped: the rest waits in the queue."))
    return question(
        "Nobody is preempted in this run. When would the paged memory preempt somebody?",
        ("When a running request needs a block and none is free", "Then the newest one gives its blocks up."),
        ("When somebody waits in the queue", "who waits may push others out", "Who waits stays outside until blocks are free."),
        ("When a request passes the maximum length", "preemption ends long replies", "There the reply is cut, not preempted."),
        ("When a block is only partly filled", "partly filled blocks are taken back", "Nearly every last block is."))


def _gain_question(result: Result) -> Question:
    """How many times as many requests, and why not as many times as fast."""
    a, b = (result.summaries[key]["makespan"] for key in ("reserved", "other"))
    batch = [result.occupancies[key].batch(*scenario.window(result, key)) for key in result.runs]
    name, gain, more = called(result, "other"), a / b, batch[1] / batch[0] if batch[0] > 0 else 1.0
    if more > 1.1 * gain and gain > 1.05:
        return question(
            f"{_titled(name)} holds {more:.1f} times as many requests on average, but the last reply comes only {gain:.1f} times "
            "as soon. Why not as many times?",
            ("A step of more requests takes longer", "Every request in a step adds its token and the reading of its context."),
            ("Half of the blocks are not used", "paged memory is mostly empty", "How full it is stands on the stage."),
            ("Looking up block tables takes the rest", "paging costs that much time",
             "This model charges nothing for it; the paper measured 20 to 26 % in the attention kernel alone."),
            ("The replies are longer with it", "an allocator changes the replies", "Both serve the same trace."))
    wrong = [(more, "throughput goes with the number of requests in memory", "A step of more requests takes longer."),
             (1 / gain, "a shorter run has less throughput", "The same tokens in less time are more per second."),
             (2.0, "a better allocator doubles throughput", "It depends on the lengths and on the memory.")]
    return question(
        f"Both memories serve the same trace: {called(result, 'reserved')} in {duration(a)}, {name} in {duration(b)}. How does "
        "the second one's throughput compare with the first one's?",
        (f"{gain:.2f} times", "The same tokens: the ratio of the two times."),
        *((f"{x:.2f} times", myth, why) for x, myth, why in apart(gain, wrong, 0.05 * gain)),
        ("It cannot be said: they write different tokens", "an allocator changes the replies", "Both serve the same trace."))


# --- what it models ---------------------------------------------------------------------------------------------------


def models(result: Result) -> list[Row]:
    """(what, value with unit, source) of everything that the simulation on the screen assumes."""
    server, v = result.scenario.service, result.scenario.values
    rows: list[Row] = []
    if isinstance(server, Service):
        rows += [*server_rows(server), head_row(server)]
    elif isinstance(server, Affine):
        rows.append(("Step time", f"{server.base:,.0f} µs + {server.per_token_us:g} µs per token", "the recording's own clock"))
    return [*rows, *_memory_rows(result, v), *_request_rows(result, v)]


def _memory_rows(result: Result, v: Mapping[str, Any]) -> list[Row]:
    one, other = result.runs["reserved"], result.runs["other"]
    server = result.scenario.service
    pool = _pool(one)
    if v["source"] != GENERATED:
        source = "the recording's blocks times its block size"
    elif v["fit"] == scenario.FITS:
        source = "90 % of the GPU's memory less the weights, over the bytes of a token's KV; activations left out"
    else:
        source = "PagedAttention (SOSP 2023), Table 1: OPT-13B on an A100 with 40 GB" if pool == 15_700 else \
            "chosen; the PagedAttention paper has 15,700 for OPT-13B on an A100 with 40 GB"
    rows = [("KV memory", f"{pool:,} token slots" + _gigabytes(server, pool), source),
            ("Orca (Max)", f"{int(one.policy.longest or 0):,} slots for each request",
             result.scenario.note or "PagedAttention, section 6.1: reserves the model's maximum length"),
            ("Pieces", "a buddy allocator over a pool that need not be a power of two: one arena for each 1 of its binary form",
             "PagedAttention, section 6.1, assumes a buddy allocator; Knowlton, CACM 1965; the arenas are ours")]
    memory = _memory(other)
    if not memory.contiguous:
        rows.append(("Paged memory", f"{memory.blocks:,} blocks of {memory.block_size}",
                     "vLLM 0.33.0's rules for blocks and preemption (tests/peers/data/vllm/SEMANTICS.md)"))
        rows.append(("When it runs out", "the newest request gives all its blocks up: " +
                     ("swapped to the host" if memory.swap_us is not None else "recomputed"), "PagedAttention, section 4.5; "
                     "vLLM's v1 engine recomputes, and never swaps"))
    if isinstance(server, Service):
        rows.append(("Swapping", f"{scenario.PCIE / 1e9:g} GB/s each way",
                     "PCIe 4.0 x16: 31.5 GB/s by its standard; that 80 % of it is reached is assumed, whatever the block size"))
    batching = f"continuous, prompts whole beside decodes, at most {SLOTS:,} at once" if v["source"] == GENERATED else \
        "as in the recording; Orca (Max) takes prompts whole"
    return [*rows, ("Batching", batching, "Orca, OSDI 2022, section 3; the rest is left to memory")]


def _gigabytes(server: Any, pool: int) -> str:
    if not isinstance(server, Service):
        return ""
    return f", {pool * server.kv_bytes_per_token / 1e9:.1f} GB at {server.kv_bytes_per_token / 1000:,.0f} kB each"


def _request_rows(result: Result, v: Mapping[str, Any]) -> list[Row]:
    trace = result.scenario.trace
    if v["source"] != GENERATED:
        whose = "the file that you dropped in" if v["source"] == OWN else "vLLM 0.33.0's scheduler, recorded by the project"
        return [("Requests", count(len(trace), "request"), whose)]
    prompt, output = LENGTHS[str(v["mean"])]
    spread = float(v["spread"])
    rows = [
        ("Lengths", f"lognormal, means {prompt:g} and {output:g} tokens before they are cut at the maximum length",
         f"{v['mean']}'s means: PagedAttention, figure 11; that they are lognormal is our assumption"),
        ("Their spread", f"standard deviation over mean {CV[0] * spread:g} of prompts and {CV[1] * spread:g} of outputs",
         "at spread 1: that of outputs is inferred from the reserved share in the paper's figure 2, that of prompts assumed"),
        ("Queue", "all requests wait from the start (saturated)" if v["arrivals"] == scenario.AT_ONCE else
         f"Poisson, {float(v['rate']):g} requests/s",
         "the paper's figure 2 is “during the experiment in 6.2”; that its queue was never empty is our inference"),
    ]
    if int(v["samples"]) > 1 or int(v["prefix"]) > 0:
        rows.append(("Shared prompts", f"{count(int(v['samples']), 'sample')} a prompt, {int(v['prefix']):,} tokens of system "
                     "prompt", "paged memory finds full blocks in vLLM's prefix cache; reserving allocators share nothing"))
    return rows


def leaves_out() -> list[str]:
    """What the simulation does not have."""
    return [
        "The cost of paging in the kernel: the paper measures its attention kernel as 20 to 26 % slower than FasterTransformer's "
        "(figure 18a). Here a step takes the same time with either memory.",
        "The bookkeeping of block tables: the sweep shows how many blocks a request has; their cost in time is 0 here.",
        "Sequence groups: in the paper the samples or beams of a prompt are admitted and preempted together. Here, as in vLLM's "
        "v1 engine, each sample is a request of its own; beams are in their own figure only.",
        "How real beams fork: by likelihood. Here parents are drawn at random, all equally likely.",
        "The engine's own time per step (scheduling, sampling): 0 here. So our steps are faster than the 45 ms that the paper's "
        "30.4 requests in memory at 2 requests/s imply (Little's law), and fewer requests are in memory at one time.",
        "A step's other memory: activations, CUDA graphs and the driver take a share of the GPU that 15,700 slots already leave "
        "out, and “what fits” does not.",
        "The watermark: vLLM v0 kept 1 % of the blocks free at admission; the paged memory here keeps none, as v1 by default.",
        "Orca's real allocator: the paper re-implemented Orca and assumed a buddy allocator; whether Orca used one is not known.",
        "Swapping beside computing: a swap here holds up the step for as long as the copy takes. And many small copies are "
        "slower than one large one: in the paper's figure 19 swapping is worse with small blocks, and as good with 16 to 64.",
        "Prompts in steps of their own, as the vLLM of the 2023 paper ran them: here they run whole beside decodes, as in Orca, "
        "so that only the memory differs.",
        "Prefix caching by reserving allocators, larger pages, offloading to disk, and quantised KV.",
    ]


# --- take away --------------------------------------------------------------------------------------------------------


def python_lines(values: Values) -> str:
    """Python that redoes both runs with sim alone; it ends with `runs`, a dict of Run by allocator."""
    v = filled(values)
    lines = _recording_lines(v) if v["source"] != GENERATED else _generated_lines(v)
    return "\n".join([
        *lines,
        "runs = {key: simulate(trace, server, policy) for key, policy in policies.items()}",
        "for key, run in runs.items():",
        "    print(policies[key].name, occupancy(run).shares(*saturated(run)), summary(run))",
    ]) + "\n"


_IMPORTS = ["from sim.engine import simulate", "from sim.kv.occupancy import occupancy, saturated",
            "from sim.metrics import summary"]


def _recording_lines(v: Values) -> list[str]:
    path, what = ("your-recording.json", "the file that you dropped in") if v["source"] == OWN else \
        (f"assets/{scenario.RECORDING_FILE.name}", "in the project's folder")
    return [
        "from pathlib import Path", "", *_IMPORTS, "from sim.orders import outputs", "from sim.policy import orca_in_one_piece",
        "from sim.readers import recording", "",
        f'recorded = recording.read(Path("{path}"))  # {what}',
        "trace, server, paged = recorded.trace, recorded.clock, recorded.policy",
        "tokens = paged.memory.blocks * paged.memory.block_size",
        "longest = min(max(2, int((trace.prompt + outputs(trace, paged)).max())), 1 << (tokens.bit_length() - 1))",
        'policies = {"reserved": orca_in_one_piece(paged.slots, tokens, longest, "maximum"), "other": paged}',
    ]


def _generated_lines(v: Values) -> list[str]:
    """The trace, the server and the policies in Python."""
    n, samples, prefix, seed, longest = (int(v[key]) for key in ("requests", "samples", "prefix", "seed", "longest"))
    (prompt, output), spread = LENGTHS[str(v["mean"])], float(v["spread"])
    scene = scenario.build({**v, "requests": 1})
    shared = scenario.shares_prompts(filled(v))
    once = v["arrivals"] == scenario.AT_ONCE
    arrival = f"all_at_once({n})" if once else f"poisson({n}, rate={float(v['rate'])!r}, seed={seed})"
    which = f"np.arange({n}) // {samples}"
    lines = [
        "import numpy as np", "", "from sim import workloads", *_IMPORTS,
        "from sim.policy import Memory, Policy, orca_in_one_piece", "from sim.service import service",
        *(["from sim.trace import Content"] if shared else []), "",
        f'own = workloads.lognormal({n}, mean={prompt!r}, cv={CV[0] * spread!r}, seed={seed}, cap={longest // 2}, of="prompt")',
        f"prompt = np.minimum({prefix} + own, {longest - 1})" + (f"[{which}]" if samples > 1 else ""),
        f"output = workloads.lognormal({n}, mean={output!r}, cv={CV[1] * spread!r}, seed={seed})",
        f"arrival = workloads.{arrival}",
        "arrival = arrival - arrival[0]" if samples == 1 else f"arrival = (arrival - arrival[0])[{which}]",
    ]
    if shared:
        lines += _content_lines(n, samples, prefix)
    said = ', "generated", content)' if shared else ")"
    return [
        *lines, f"trace = workloads.workload(arrival, prompt, np.minimum(output, {longest} - prompt){said}",
        f"server = service({v['model']!r}, {v['gpu']!r})",
        "policies = {",
        f'    "reserved": {_policy_line(scene, "reserved")},',
        f'    "other": {_policy_line(scene, "other")},',
        "}",
    ]


def _content_lines(n: int, samples: int, prefix: int) -> list[str]:
    """What prompts have in common, as scenario._content has it."""
    own = f"(1 + i // {samples}, 0, p{f' - min({prefix}, p - 1)' if prefix else ''})"
    parts = f"[(0, 0, min({prefix}, p - 1)), {own}] if min({prefix}, p - 1) else [{own}]" if prefix else f"[{own}]"
    return [f"content = [{parts}", "           for i, p in enumerate(prompt.tolist())]",
            f"content = Content.of(content, {n + 1} + np.arange({n}))"]


def _policy_line(scene: scenario.Scenario, key: str) -> str:
    policy = scene.policies[key]
    memory = policy.memory
    assert memory is not None  # build sees to it
    if memory.contiguous:
        more = f", noise={policy.noise!r}, seed={policy.seed}" if policy.noise else ""
        return f"orca_in_one_piece({policy.slots}, {memory.blocks}, {policy.longest}, {memory.reserve!r}{more})"
    more = ", prefix_cache=True" if memory.prefix_cache else ""
    more += f", swap_us={memory.swap_us!r}" if memory.swap_us is not None else ""
    return (f'Policy({policy.name!r}, slots={policy.slots}, prompts="whole", longest={policy.longest},\n'
            f"                    memory=Memory({memory.blocks}, {memory.block_size}{more}))")


def requests_csv(result: Result) -> str:
    """A line for each request and allocator; requests counted from 1 as on the screen, times in ms, memory in token slots."""
    tables = {}
    for key, run in result.runs.items():
        address = run.address if run.address is not None else np.full(len(run), -1)
        tables[key] = frame(run).drop(columns="slot").assign(
            allocator=run.policy.name, kv_tokens=final_tokens(run), slots_held=held_slots(run), address=address,
            cached=run.cached, preemptions=run.preemptions, recomputed=run.recomputed)
    return files.requests_csv(tables)


Span = tuple[int, float, float]  # request, from, until (µs; nan: for ever)


def spans(run: Run) -> dict[str, list[Span]]:
    """Who waits, holds memory, is preempted and has ended, from when to when; each request in order of time."""
    found: dict[str, list[Span]] = {"Queued": [], "In memory": [], "Preempted": [], "Ended": []}
    changes: dict[int, list[tuple[str, float]]] = {}
    for e in run.events:
        if e.kind == "preempted" or (e.kind == "admitted" and run.admitted_us[e.request] < e.at_us):
            changes.setdefault(e.request, []).append((e.kind, e.at_us))
    for r in np.flatnonzero(run.outcome != REFUSED).tolist():
        state, since = "Queued", float(run.trace.arrival_us[r])
        ends = float(run.finished_us[r])
        if math.isfinite(run.admitted_us[r]):
            found[state].append((r, since, float(run.admitted_us[r])))
            state, since = "In memory", float(run.admitted_us[r])
        for kind, at in changes.get(r, []):
            found[state].append((r, since, at))
            state, since = ("Preempted" if kind == "preempted" else "In memory"), at
        found[state].append((r, since, ends))
        if math.isfinite(ends):
            found["Ended"].append((r, ends, math.nan))
    found["Ended"].sort(key=lambda span: span[1])
    return found


def chrome_trace(result: Result) -> str:
    """The runs in Chrome's trace format (Perfetto, chrome://tracing): a process per allocator with the parts of the pool as
    counters and a thread per request, µs."""
    events: list[files.Event] = []
    zero = _zero(result)
    for pid, (key, run) in enumerate(result.runs.items(), start=1):
        events += files.names(pid, run.policy.name, [f"request {r + 1}" for r in range(len(run))])
        end = float(run.steps.end_us[-1]) if len(run.steps.count) else zero
        for state, pieces in spans(run).items():
            if state != "Ended":
                kind = "work" if state == "In memory" else "wait"
                events += [files.piece(pid, r + 1, state, kind, since - zero, (until if until == until else end) - since,
                                       {"request": r + 1}) for r, since, until in pieces if until != since]
        events += _counters(result, key, pid, zero)
    return files.chrome_trace(events)


def _counters(result: Result, key: str, pid: int, zero: float) -> list[files.Event]:
    there = result.occupancies[key]
    found: list[files.Event] = []
    for i in range(len(there.start_us)):
        for at, part in ((there.start_us[i], there.first), (there.end_us[i], there.last)):
            found.append({"ph": "C", "name": "KV memory, token slots", "pid": pid, "tid": 0, "ts": round(float(at) - zero, 3),
                          "args": {name: round(float(part[name][i]), 1) for name in PARTS}})
    return found


def cursor_data(result: Result, answer: bool = True) -> dict[str, Any]:
    """What the scrubber needs to say where each request is at an instant, in ms after the first arrival.

    answer False: not who is in memory or queued, which counts what is to be predicted.
    """
    told: dict[str, Any] = {}
    for key, run in result.runs.items():
        zero = _zero(result)
        end = (float(run.steps.end_us[-1]) - zero) / 1000 if len(run.steps.count) else 0.0
        told[key] = {"name": run.policy.name, "end": round(end, 3), "spans": []}
        for state, pieces in spans(run).items():
            if not answer and state in ("Queued", "In memory"):
                continue
            who, since, until = np.array(pieces, np.float64).reshape(-1, 3).T
            told[key]["spans"].append([state, who.astype(int).tolist(), files.ms(since, zero), files.ms(until, zero)])
    return told


def in_memory(result: Result, key: str, at_us: float) -> Ints:
    """Requests that hold tokens at that instant; int64."""
    return np.flatnonzero(tokens_at(result.runs[key], at_us) > 0)
