"""The words of one request's life: from its runs to sentences, questions, and what to take along. Pure; no Streamlit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from explainers.kit import files
from explainers.kit import grammar as g
from explainers.kit.assumed import head_row, server_rows
from explainers.kit.grammar import count, duration
from explainers.kit.knobs import Value
from explainers.kit.quiz import Prediction, Question, apart, question
from explainers.lifecycle import scenario
from explainers.lifecycle.figures import NAMES, lived, longest_gap, megabytes, place, tokens_ms
from explainers.lifecycle.scenario import CROWD, CROWD_OUTPUT, CROWD_PROMPT, LINKS, PRESETS, Result, Sweep, Worked, filled
from explainers.lifecycle.scenario import gap_with_launch as gap_of
from sim.lifecycle import life as stages
from sim.metrics import e2e, frame, makespan, output_throughput, queue_wait, tpot, ttft
from sim.run import FINISHED

Values = Mapping[str, Value]

TITLE = "The life of one request"
QUESTION = "Where does the time go between sending a prompt and reading the last token of its reply?"
LEAD = ("A request waits in a queue, then the server reads its prompt, then it writes the reply token by token. Four numbers "
        "say how long that takes; move them, and the sum under them follows.")
WORDS: tuple[tuple[str, str], ...] = (
    ("Token", "A piece of text, about three quarters of an English word; models read and write tokens."),
    ("Admission", "The moment when the server starts to work on a request and it stops waiting."),
    ("Queue wait", "From a request's arrival until its admission."),
    ("Prefill", "The work on the whole prompt; at its end comes the first token of the reply."),
    ("Decode", "The steps after it; each adds one token to the reply."),
    ("TTFT", "Time to first token: from arrival until the reply begins."),
    ("ITL", "Inter-token latency: one gap between two tokens of a reply."),
    ("TPOT", "Time per output token: the mean of one reply's gaps."),
    ("E2E", "End-to-end latency: from arrival until the last token; here also called response time."),
    ("Slot", "A place among the requests that run at once."),
    ("KV cache", "The keys and values of all tokens so far; every further token needs them."),
    ("Block", "A piece of the memory for the KV cache, here of 16 tokens."),
    ("Hand-off", "A running request moves to another server, which writes the rest of the reply."),
)
"""(term, one plain sentence of fewer than 20 words)."""
ASKED = 200
PREDICTION = Prediction(f"How long would a reply of {ASKED} tokens take, from its arrival?", "ms", 0, 20_000)
WORKED_NOTE = ("The times of the worked example above are your own, from the knobs. From here on everything is simulated, step "
               "by step.")
CLAIMS: tuple[str, ...] = tuple(f"step-time-{gpu}-{kind}-{error}" for gpu in ("a100", "h100")
                                for kind in ("decode", "prefill", "hybrid") for error in ("median", "p95"))
FIRST_CLAIMS = ("step-time-a100-*-median",)

_HALF_MS = 0.5


def _ms(value: float) -> str:
    return f"{value:,.0f} ms"


# --- the worked example -----------------------------------------------------------------------------------------------


def the_sum(w: Worked, tokens: int | None = None) -> str:
    """The response time written out: "30 + 50 + 100 × 5 = 580 ms"."""
    n = w.tokens if tokens is None else tokens
    return f"{w.wait:g} + {w.prefill:g} + {n - 1:,} × {w.gap:g} = {w.e2e_of(n):,.0f} ms"


def headline(result: Result, answer: bool = True) -> str:
    """The sum, and what its parts are."""
    w = result.worked
    said = f"{the_sum(w)}. Queue wait, prefill, and {count(w.gaps, 'gap')} between {count(w.tokens, 'token')}."
    if not w.gaps:
        said = f"{the_sum(w)}. Queue wait and prefill: the first token is the last, so there is no gap."
    clock = f" It came at {_ms(w.arrival)}, so the clock then says {_ms(w.last)}." if w.arrival else ""
    return said + clock


def hint(result: Result) -> str:
    """What to estimate the prediction from."""
    return f"This one, of {result.worked.tokens:,} tokens, takes {_ms(result.worked.e2e)}."


def feedback(result: Result, guess: float | None) -> str:
    """The answer to PREDICTION, and which slip leads to the guess; None: skipped."""
    w = result.worked
    right = w.e2e_of(ASKED)
    why = f"TTFT {_ms(w.ttft)} + {ASKED - 1} gaps × {w.gap:g} ms."
    if guess is None:
        return f"It is **{_ms(right)}**: {why}"
    if abs(guess - right) < _HALF_MS:
        return f"Right: it is **{_ms(right)}**, you said {_ms(guess)}. {why}"
    return f"It is **{_ms(right)}**, you said {_ms(guess)}: {why}{_slip(w, ASKED, guess)}"


def _slip(w: Worked, n: int, guess: float) -> str:
    """What the guess is the result of, if it is one of the usual slips."""
    slips = (
        (w.ttft + n * w.gap, f"You counted {n} gaps; between {n} tokens there are {n - 1}."),
        ((n - 1) * w.gap, "You counted the gaps only; before them come the queue wait and the prefill."),
        (n * w.gap, f"You counted {n} gaps and no TTFT; between {n} tokens there are {n - 1}, after the first one."),
        (w.prefill + (n - 1) * w.gap, "You left out the queue wait: the reader's clock starts at the arrival."),
        (w.e2e * n / w.tokens, "You scaled the whole time; queue wait and prefill do not grow with the reply."),
        (w.arrival + w.e2e_of(n), "That is the time on the clock; the response time counts from the arrival."),
    )
    return next((f" {words}" for value, words in slips if abs(guess - value) < _HALF_MS), "")


# --- alone and in company ---------------------------------------------------------------------------------------------


def company_words(result: Result) -> str:
    """What company costs the same request, part by part."""
    one, many = (_times(result, key) for key in NAMES)
    if result.scenario.trace.arrival_us.size == 1:
        return "Nobody else is there: both lives are the same."
    more = many["e2e"] - one["e2e"]
    if abs(more) < 5e-4:
        return "Company costs it nothing here: it finds a slot free, and nobody's prompt comes while it runs."
    parts = [(many["wait"] - one["wait"], "in the queue"), (many["prefill"] - one["prefill"], "in the prefill"),
             (many["decode"] - one["decode"], "in the gaps")]
    told = g.listed([f"{duration(part)} {where}" for part, where in parts if abs(part) >= 5e-4])
    word = "later" if more > 0 else "sooner"
    return f"In company its reply is complete **{duration(abs(more))} {word}**: {told} more than alone.{_gap_words(result)}"


def _gap_words(result: Result) -> str:
    found = longest_gap(result, "company")
    if found is None:
        return ""
    took = duration((found[1] - found[0]) / 1000)
    usual = duration(float(np.median(np.diff(tokens_ms(result, "company")))) / 1000)
    why = ": a step in it also reads a newcomer's prompt" if found[2] else ""
    return f" Its longest gap is {took}, where {usual} is usual{why}."


def _times(result: Result, key: str) -> dict[str, float]:
    """Its latencies in a run, s; prefill: admission to first token, decode: first to last."""
    run, r = result.runs[key], place(result, key)
    wait, first, last = (float(measure(run)[r]) for measure in (queue_wait, ttft, e2e))
    return {"wait": wait, "ttft": first, "e2e": last, "prefill": first - wait, "decode": last - first}


def causes(result: Result) -> list[str]:
    """Our request's life alone and in company, and what its longest gap comes from."""
    gap = _gap_words(result).strip()
    return [*(life(result, key, result.scenario.me) for key in NAMES), *([f"**In company.** {gap}"] if gap else [])]


def life(result: Result, policy_key: str, request: int) -> str:
    """What any request of the company goes through, alone or there, and what it waits for."""
    run, r = (scenario.alone(result, request), 0) if policy_key == "alone" else (result.runs["company"], request)
    waits, runs, lost = dict[str, float](), 0.0, 0
    for stage in stages(run, r):
        took = (stage.end_us - stage.start_us) / 1e6
        if stage.state == "waiting":
            why = next((words for start, words in _CAUSES if stage.cause.startswith(start)), stage.cause)
            waits[why] = waits.get(why, 0.0) + took
        runs += took if stage.state == "running" else 0.0
        lost += stage.state == "preempted"
    longest = sorted(waits.items(), key=lambda item: -item[1])
    told = "does not wait" if not waits else \
        f"waits {duration(sum(waits.values()))}: {g.listed([f'{duration(took)} {why}' for why, took in longest])}"
    again = f", loses its blocks {'once' if lost == 1 else f'{lost} times'} to others" if lost else ""
    whole = f"E2E {duration(float(e2e(run)[r]))}"
    mine = " (the request that we follow)" if request == result.scenario.me else ""
    return f"**{NAMES[policy_key]}.** Request {request + 1}{mine} {told}{again}, and runs for {duration(runs)}: {whole}."


_CAUSES = (
    ("step boundary", "for the running step to end"), ("slots full", "for a slot"), ("behind", "behind others in line"),
    ("not enough blocks", "for blocks"), ("a step with a preemption", "in steps that take blocks away"),
    ("budget spent", "for room in a step"),
)
"""How a wait's cause starts (sim.lifecycle) → the same in plain words."""


def numbers(result: Result, answer: bool = True) -> pd.DataFrame:
    """The measures of the same request, side by side."""
    rows = []
    for name, key in (("Queue wait", "wait"), ("Time to first token (TTFT)", "ttft"), ("End-to-end latency (E2E)", "e2e")):
        rows.append((name, *(duration(_times(result, run)[key]) for run in NAMES)))
    for name, pick in (("Gap between tokens (ITL), median", np.median), ("Gap between tokens (ITL), longest", np.max)):
        gaps = [np.diff(tokens_ms(result, key)) for key in NAMES]
        rows.append((name, *(duration(float(pick(x)) / 1000) if len(x) else "–" for x in gaps)))
    rows.append(("Mean gap (TPOT)", *(duration(float(tpot(result.runs[key])[place(result, key)])) for key in NAMES)))
    return pd.DataFrame(rows, columns=["", *NAMES.values()])


def numbers_note(result: Result) -> str:
    """Where the numbers come from."""
    v = result.scenario.values
    return (f"Simulated with {v['model']} on one {v['gpu']}: a prompt of {int(v['prompt']):,} tokens and a reply of "
            f"{count(int(v['tokens']), 'token')}. The worked example's times are your own and play no part here.")


# --- leaving early ----------------------------------------------------------------------------------------------------


def leaving_words(result: Result) -> str:
    """What it held, when that is released, and what a server loses that forgets."""
    left, zero = result.left, float(result.scenario.trace.arrival_us[result.scenario.me])
    when = f"Its client gives up after {duration((left.asked_us - zero) / 1e6)}."
    if not left.slot:
        return f"{when} It is still waiting then and holds **no slot and no block**: it leaves the queue, and that is all."
    late = duration((left.gone_us - left.asked_us) / 1e6)
    held = f"**1 slot and {count(left.blocks, 'block')}** ({count(left.tokens, 'token')} of KV)"
    freed = f"They are free {late} later: the server notices when the running step ends."
    return f"{when} It holds {held}. {freed} {_forgets(result)}"


def _forgets(result: Result) -> str:
    left, slots = result.left, result.scenario.policy.slots
    lost = f"A server that forgets goes on with {count(slots - 1, 'slot')} and {count(left.blocks, 'block')} fewer, for good"
    kept, leaked = result.runs["cancelled"], result.runs["leaked"]
    never = int((leaked.outcome != FINISHED).sum() - (kept.outcome != FINISHED).sum())
    if never:
        return f"{lost}: {count(never, 'request')} {'is' if never == 1 else 'are'} never served."
    both = (kept.outcome == FINISHED) & (leaked.outcome == FINISHED)
    later = float((e2e(leaked) - e2e(kept))[both].mean()) if both.any() else 0.0
    if abs(later) < 5e-4:
        return f"{lost}. Nobody feels it yet: the next leaks will add to it."
    return f"{lost}: the others' replies take {duration(abs(later))} {'longer' if later > 0 else 'less'} on average."


def flag(result: Result) -> str:
    """The warning above the broken books; empty where they balance."""
    if "leaked" not in result.books:
        return ""
    memory = result.scenario.policy.memory
    assert memory is not None
    b = result.books["leaked"]
    ours, others, free = int(b.ours[-1]), int(b.others[-1]), int(b.free[-1])
    return (f"The books of the server that forgets do not balance, and that is on purpose: at the end, requests hold "
            f"{ours + others}, {free} are free, and the pool has {memory.blocks}. {count(int(b.missing[-1]), 'block')} "
            f"belong to nobody.")


def handoff_words(result: Result) -> str:
    """What must travel, and how long."""
    t, left, link = result.transfer, result.left, str(result.scenario.values["link"])
    tokens = f"the tokens themselves ({t.token_bytes:,} bytes)"
    if not left.tokens:
        again = t.token_bytes > scenario.TOKEN_BYTES * int(result.scenario.trace.prompt[result.scenario.me])
        why = "it has lost its blocks to others" if again else "nothing has been computed yet"
        return f"Handed off at that moment instead, only {tokens} must travel: {why}."
    each = t.kv_bytes / left.tokens
    faster = "sending is" if t.over_ms[link] < t.anew_ms else "computing it anew is"
    return (f"Handed off at that moment instead, {tokens} and its KV cache must travel: {count(left.tokens, 'token')} × "
            f"{each / 1024:,.0f} KiB = **{megabytes(t.kv_bytes)}**. Over {link}: **{duration(t.over_ms[link] / 1000)}**; the "
            f"other server would need {duration(t.anew_ms / 1000)} to compute it anew, so {faster} faster.")


# --- the short arguments ----------------------------------------------------------------------------------------------


def launch_words(result: Result) -> str:
    """Whether the time to enqueue a step adds to every gap."""
    w, launch = result.worked, float(result.scenario.values["launch"])
    ahead, waits = gap_of(result, False), gap_of(result, True)
    wrong = w.e2e + w.gaps * launch
    if not launch:
        return f"Here it takes no time to enqueue a step: the gap is {ahead:g} ms either way."
    if launch > w.gap:
        return (f"A step takes the GPU {w.gap:g} ms and the CPU {launch:g} ms to enqueue. Even enqueued ahead, the CPU is the "
                f"slower of the two: a token comes every {ahead:g} ms. Only with a dependency do both add up, to {waits:g} ms.")
    twice = "Adding it to a gap would count it twice."
    if w.gaps:
        twice = (f"Adding {launch:g} ms to each of {count(w.gaps, 'gap')} would say {_ms(wrong)} instead of {_ms(w.e2e)}, and "
                 "count that time twice.")
    return (f"While the GPU works on one step, the CPU enqueues the next ({launch:g} ms): the gap stays {ahead:g} ms. {twice} "
            f"Only if the CPU must wait for each token first does the gap grow, to {waits:g} ms.")


def crowd_words(result: Result) -> str:
    """More tokens per second for all, a longer time for one."""
    one, many = (result.crowd[slots] for slots in CROWD)
    rate = output_throughput(many) / output_throughput(one)
    first = float(e2e(many)[0]) / float(e2e(one)[0])
    return (f"{len(many)} requests come at once. With {count(CROWD[1], 'slot')} the server writes **{rate:.0f} times** as many "
            f"tokens per second as with one, and the first user's reply takes **{first:.2f} times** as long. Throughput is the "
            f"server's, latency is a user's. Sharing helps those who would have waited: the last reply is complete after "
            f"{duration(float(e2e(many)[-1]))} instead of {duration(float(e2e(one)[-1]))}.")


def order_words(result: Result) -> str:
    """The same bound, two orders."""
    fcfs, shortest = result.orders["fcfs"], result.orders["shortest"]
    return (f"One slot, five requests, the same work: in either order all are done after **{duration(makespan(fcfs))}**. That is "
            f"what the bound says. Who runs next it does not say: first come, first served makes the mean response "
            f"time {duration(float(e2e(fcfs).mean()))}, shortest first {duration(float(e2e(shortest).mean()))}, while request 1 "
            f"waits {duration(float(queue_wait(shortest)[0]))} instead of {duration(float(queue_wait(fcfs)[0]))}.")


# --- watch-for lines, what is idle ------------------------------------------------------------------------------------


def sweep_words(curve: Sweep) -> str:
    """What more company does to one user, and to the server."""
    return (f"From no others to {curve.x[-1]:.0f}, the response time of our request goes from {duration(float(curve.e2e[0]))} to "
            f"{duration(float(curve.e2e[-1]))}, while the server goes from {curve.tokens_per_s[0]:,.0f} to "
            f"{curve.tokens_per_s[-1]:,.0f} tokens per second. Each point is one draw of others, so the line is not smooth.")


def watch(values: Values) -> str:
    """What to look for: the preset's line where the values are a preset's."""
    now = filled(values)
    for preset in PRESETS:
        if filled(preset.values) == now:
            return preset.watch
    if int(now["others"]) == 0:
        return "Nobody else is there. Give it company, and see which part of its life grows."
    if int(now["tokens"]) == 1:
        return "A reply of one token has no gaps: TTFT is the whole response time."
    return "Which of the four numbers makes up most of the response time? And in company, where does the extra time come from?"


def idle(values: Values) -> dict[str, str]:
    """The knobs that play no part now, and why."""
    if int(filled(values)["others"]) == 0:
        return dict.fromkeys(("rate", "seed"), "Plays no part while nobody else is there.")
    return {}


# --- check yourself ---------------------------------------------------------------------------------------------------


def quiz(result: Result) -> list[Question]:
    """Four questions whose numbers are the learner's own."""
    return [_sum_question(result), _cancel_question(result), _crowd_question(result), _handoff_question(result)]


def _sum_question(result: Result) -> Question:
    w = result.worked
    n = 50 if w.tokens != 50 else 60
    right = w.e2e_of(n)
    wrong = [(w.ttft + n * w.gap, f"{n} tokens have {n} gaps", "The first token ends the prefill; only the others follow a gap."),
             ((n - 1) * w.gap, "a reply is its gaps", "Before the first token come queue wait and prefill."),
             (w.prefill + (n - 1) * w.gap, "the clock starts at admission", "The reader's clock starts at the arrival."),
             (w.e2e + n * w.gap, "the new reply comes on top", "It takes the place of the other one.")]
    return question(
        f"Queue wait {w.wait:g} ms, prefill {w.prefill:g} ms, gaps of {w.gap:g} ms. How long does a reply of {n} tokens take?",
        (_ms(right), f"{the_sum(w, n)}: {n - 1} gaps between {n} tokens."),
        *((_ms(x), name, why) for x, name, why in apart(right, wrong, _HALF_MS)))


def _cancel_question(result: Result) -> Question:
    left, zero = result.left, float(result.scenario.trace.arrival_us[result.scenario.me])
    asked = duration((left.asked_us - zero) / 1e6)
    if not left.slot:
        return question(
            f"The client gives up after {asked}, while its request waits. What does the server get back?",
            ("Nothing: it held neither a slot nor blocks", "Both are given at admission."),
            ("Its slot", "a slot is given at arrival", "A slot is given when the server starts to work on it."),
            ("The blocks of its prompt", "the prompt takes memory while it waits", "Blocks are taken as the prompt is computed."),
            ("All that it would have needed", "memory is set aside for those who wait", "Here blocks are taken as tokens come."))
    blocks, finished = count(left.blocks, "block"), float(result.runs["company"].finished_us[result.scenario.me])
    return question(
        f"The client gives up after {asked}; its request holds {blocks}. When can others have them?",
        (f"{duration((left.gone_us - left.asked_us) / 1e6)} later, when the running step ends",
         "The server decides before each step; a step that has begun is not interrupted."),
        ("In the same instant", "a step can be interrupted", "The GPU works on the step to its end, with these blocks in it."),
        (f"{duration((finished - left.asked_us) / 1e6)} later, when its reply would have been complete",
         "the reply is written to the end", "Nobody reads it: a server that notices stops."),
        ("When memory runs short", "blocks are collected when needed", "Released blocks are free, whether anybody needs them."))


def _crowd_question(result: Result) -> Question:
    one, many = (result.crowd[slots] for slots in CROWD)
    rate = output_throughput(many) / output_throughput(one)
    ratio = float(e2e(many)[0]) / float(e2e(one)[0])
    wrong = [(1 / rate, "more tokens per second means a faster reply", "They are the tokens of all users; each gets one a step."),
             (1.0, "sharing costs a user nothing", "A step of more requests takes longer, most of all one that reads prompts."),
             (float(CROWD[1]), "a GPU shared by so many is so many times slower",
              "A step of many tokens takes little longer than one of a single token: it reads the same weights."),
             (rate, "latency grows as throughput does", "A step takes only a little longer, and writes a token for each.")]
    return question(
        f"With {CROWD[1]} slots instead of one, the server writes {rate:.0f} times as many tokens per second. How long does the "
        "first user's reply take?",
        (f"{ratio:.2f} times as long", "Each step takes a little longer for more company, and the first also reads all prompts."),
        *((f"{x:.2f} times as long", name, why) for x, name, why in apart(ratio, wrong, 0.05)))


def _handoff_question(result: Result) -> Question:
    left, server = result.left, result.scenario.service
    tokens = left.tokens or int(result.scenario.trace.prompt[result.scenario.me])
    each = server.kv_bytes_per_token
    right = float(each * tokens)
    return question(
        f"A request with {count(tokens, 'token')} in its KV cache moves to another server that has the same model. About how "
        "much must travel?",
        (megabytes(right), f"Keys and values: {each / 1024:,.0f} KiB for each of {count(tokens, 'token')}."),
        (f"{scenario.TOKEN_BYTES * tokens:,} bytes", "the text is enough",
         "The text is enough only if the other server computes all keys and values anew."),
        (megabytes(2.0 * server.model.layer_parameters), "the weights travel too", "The other server has the model already."),
        (megabytes(float(each)), "only the newest token's keys and values count", "Every token's are needed for the next one."))


# --- what it models, and what to take along -----------------------------------------------------------------------------


def models(result: Result) -> list[tuple[str, str, str]]:
    """(what, value with unit, source)."""
    server, v = result.scenario.service, result.scenario.values
    return [
        ("Worked example", "arrival, queue wait, prefill, gap", "your knobs; no simulation"),
        *server_rows(server), head_row(server),
        ("Scheduler", f"{count(int(v['slots']), 'slot')}, {scenario.BUDGET:,} tokens a step, {int(v['memory']):,} blocks of "
         f"{scenario.BLOCK} tokens", "vLLM 0.33.0's v1 scheduler, replayed decision by decision (tests/peers)"),
        ("Cancellation", "noticed when the running step ends; its result is lost", "the same scheduler"),
        ("The server that forgets", "the request's slot and blocks are taken out of its books", "a bug made on purpose"),
        ("KV of a token", f"{server.kv_bytes_per_token / 1024:,.0f} KiB",
         "2 × layers × KV heads × 128 × 2 bytes; " + server.model.source),
        ("Links", ", ".join(f"{name}: {rate / 1e9:g} GB/s" for name, rate in LINKS.items()),
         f"the standards' rates each way; {scenario.REACHED:.0%} of them is reached: assumed"),
        ("The others", f"{int(v['others'])}, Poisson; prompts lognormal, mean {scenario.PROMPT_MEAN}, replies mean "
         f"{scenario.OUTPUT_MEAN} tokens", "chosen"),
        ("Throughput argument", f"{max(CROWD)} requests at once, {CROWD_PROMPT} prompt and {CROWD_OUTPUT} output tokens each",
         "chosen"),
        ("Order argument", f"one slot, replies of {g.listed([str(n) for n in scenario.QUEUE_OUTPUTS])} tokens", "chosen"),
    ]


def leaves_out() -> list[str]:
    """What the lesson does not have."""
    return [
        "The way to the server and back: network, TLS, tokenising, and the text of each token on its way to the screen.",
        "The engine's own time per step (scheduling, sampling): 0 ms in the simulated runs; Vidur measured about 2 ms at 8 "
        "requests in an engine of 2023.",
        "Noticing that a client has gone: here the server knows at once and acts when the step ends; behind a proxy it may learn "
        "it later.",
        "A hand-off's own latency, its overlap with computing, and memory layouts that differ between the two servers.",
        "Several requests sharing a prefix: each holds its own blocks here.",
        "The launch argument has one CPU thread and one queue, and steps that all take as long; it is drawn, not simulated.",
    ]


def python_lines(values: Values) -> str:
    """Python that redoes the company, and the cancellation, with sim alone."""
    v = filled(values)
    n, seed = int(v["others"]) + 1, int(v["seed"])
    s = scenario
    return "\n".join([
        "from sim import workloads",
        "from sim.engine import Engine, simulate",
        "from sim.metrics import e2e, queue_wait, ttft",
        "from sim.policy import Memory, vllm",
        "from sim.service import service",
        "",
        f"n, me = {n}, {n // 2}  # of n requests, the one that we follow",
        f"arrival = workloads.poisson(n, rate={float(v['rate'])!r}, seed={seed})",
        f'prompt = workloads.lognormal(n, {s.PROMPT_MEAN}, {s.CV!r}, {seed}, cap={s.PROMPT_CAP}, of="prompt")',
        f"output = workloads.lognormal(n, {s.OUTPUT_MEAN}, {s.CV!r}, {seed}, cap={s.OUTPUT_CAP})",
        f"prompt[me], output[me] = {int(v['prompt'])}, {int(v['tokens'])}",
        "trace = workloads.workload(arrival - arrival[0], prompt, output)",
        f"server = service({v['model']!r}, {v['gpu']!r})",
        f"policy = vllm({int(v['slots'])}, {s.BUDGET}, Memory({int(v['memory'])}, {s.BLOCK}))",
        "company = simulate(trace, server, policy)",
        "print(queue_wait(company)[me], ttft(company)[me], e2e(company)[me])  # seconds",
        "",
        "engine = Engine(server, policy)",
        "engine.submit(trace)",
        "start, end = trace.arrival_us[me], company.finished_us[me]",
        f"engine.cancel(me, start + {int(v['moment'])} / 100 * (end - start))",
        'engine.advance(float("inf"))',
        "cancelled = engine.run(trace)",
        "print([event for event in cancelled.events if event.kind == 'cancelled'])  # what it held, and when it was released",
    ]) + "\n"


def requests_csv(result: Result) -> str:
    """A line for each request and run; requests counted from 1, times in ms."""
    return files.requests_csv({key: frame(run).drop(columns="slot", errors="ignore") for key, run in result.runs.items()})


def cursor_data(result: Result) -> dict[str, Any]:
    """What the scrubber needs to say who is where at an instant, in ms after our request's arrival."""
    run = result.runs["company"]
    zero = float(run.trace.arrival_us[result.scenario.me])
    at = {name: files.ms(us, zero) for name, us in (("came", run.trace.arrival_us), ("admitted", run.admitted_us),
                                                   ("ended", run.finished_us))}
    everyone, never = list(range(len(run))), [None] * len(run)
    return {"company": {"name": NAMES["company"], "end": (float(run.finished_us.max()) - zero) / 1000, "spans": [
        ["Waiting", everyone, at["came"], at["admitted"]], ["Admitted", everyone, at["admitted"], at["ended"]],
        ["Complete", everyone, at["ended"], never]]}}


def chrome_trace(result: Result) -> str:
    """Our request's lives in Chrome's trace format: a process, a thread for each run, µs."""
    keys = [key for key in (*NAMES, "cancelled") if key in result.runs]
    events = files.names(1, "our request", [NAMES.get(key, "in company, cancelled") for key in keys])
    for thread, key in enumerate(keys, start=1):
        events += [files.piece(1, thread, role, "wait" if role == "waiting" else "work", a * 1000, (b - a) * 1000, {"why": why})
                   for role, a, b, why in lived(result, key)]
    return files.chrome_trace(events)
