"""The chunked-prefill lesson's words: runs → the sentence of difference, causes, lives, questions. Pure; no Streamlit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from explainers.chunked_prefill import scenario
from explainers.chunked_prefill.figures import names
from explainers.chunked_prefill.scenario import KEYS, PRESETS, Result, Roofline, Sweep, Values, filled
from explainers.kit import files
from explainers.kit.assumed import head_row, server_rows
from explainers.kit.grammar import count, duration, percent
from explainers.kit.knobs import changed
from explainers.kit.quiz import Prediction, Question, apart, question
from sim.metrics import frame
from sim.service import attention_units, step_us

TITLE = "Chunked prefill"
QUESTION = "Sixteen replies are under way, and a long prompt lands among them. How long does everybody wait?"
LEAD = ("Each tick is a token that reaches a reader. In a step the GPU reads prompt tokens (prefill) and adds a token to each "
        "running reply (decode); the step lasts as long as all of it takes. Chunks: the prompt is read in pieces, beside "
        "the replies.")
"""What a newcomer must know before the figure; at most 260 characters."""
WORDS: tuple[tuple[str, str], ...] = (
    ("Stream", "A reply under way, read as it comes."),
    ("Prefill", "Reading a prompt: all its tokens can go through the model at once."),
    ("Decode", "Adding one token to each running reply in a step."),
    ("Generation stall", "A hole in the streams, while steps are busy with somebody's prompt."),
    ("Chunked prefill", "A prompt is read in pieces, each in a step beside the decodes."),
    ("Token budget", "The most tokens in a step: one for each stream, the rest for prompts."),
    ("Ridge", "Tokens in a step at which computing takes as long as reading the model's weights."),
    ("ITL", "Inter-token latency: the gap between two tokens of a reply; Sarathi-Serve says TBT."),
    ("TTFT", "Time to first token: from a request's arrival until its reply begins."),
    ("p50, p99", "The value that half, or 99 of 100, of the gaps stay below."),
)
"""(term, one plain sentence of fewer than 20 words)."""
PREDICTION = Prediction("Read first and alone, how long does it freeze the streams?", "ms", 0, 100_000)
CLAIMS: tuple[str, ...] = ("chunk-*", "sarathi-*", "step-time-a100-hybrid-*", "step-time-h100-hybrid-*")
FIRST_CLAIMS = ("chunk-*-512", "sarathi-*-over-vllm", "sarathi-ablation-*")
RARELY_SAID = (
    "**The corner is round.** Below the ridge a step is said to be bound by the weights, above it by computing. In truth the "
    "time rises well before it, and at the ridge both cost about as much: a step there takes some 1.4 times the floor.",
    "**The chunk nearest the ridge costs the newcomer most** of all that are not tiny: each of its many steps reads all weights "
    "again, for few tokens. The useful budget is **two to four times the ridge**: for Llama-3-8B on an A100 and 16,384 tokens, "
    "256 to 512, where the gap is still tens of milliseconds and the newcomer's first token comes a quarter to a tenth later.",
    "**One token more can cost a whole tile.** Measured on an A100, linear operations of Llama-3-8B: 136 tokens take 37 % longer "
    "than 128, 264 take 36 % longer than 256, 520 take 12 % longer than 512. So it is the whole step, chunk and decodes "
    "together, that should land on a multiple of 128. Switch on tile rounding to see the stairs.",
)
"""What is true here and seldom said; measurements: step-times/CALIBRATION.md, sections 1 to 3."""


def headline(result: Result, answer: bool = True) -> str:
    """What differs between the policies, and why. `answer` False: without how long the streams freeze."""
    alone, whole, chunks = (result.summaries[key] for key in KEYS)
    v, n = result.scenario.values, result.scenario.streams
    budget, cap = int(v["budget"]), int(v["cap"])
    who = "the newcomer's" if int(v["long"]) == 1 else "the slowest newcomer's"
    if all(abs(chunks[what] - whole[what]) <= 0.02 * whole[what] for what in ("gap_max_ms", "ttft_ms")):
        same = f"Under a budget of {budget:,} tokens chunks do what whole prompts do"
        if not answer:
            return f"{same}: there is nothing to cut."
        gaps = _ms(chunks["gap_max_ms"]), _ms(alone["gap_max_ms"])
        return f"{same}, at most {gaps[0]} without a token; read first and alone, it is {gaps[1]}."
    cut = f"in chunks of at most {cap:,} tokens" if 0 < cap < budget - n else f"in chunks under a budget of {budget:,} tokens"
    if not answer:
        return (f"Read first and alone, the prompt freezes every stream; {cut} no gap is longer than "
                f"{_ms(chunks['gap_max_ms'])}, and {who} first token comes {_later(chunks['ttft_ms'] / alone['ttft_ms'])}.")
    firsts = f"after {_ms(chunks['ttft_ms'])} instead of {_ms(alone['ttft_ms'])}"
    return (f"Read first and alone, the prompt freezes every stream for {_ms(alone['gap_max_ms'])}; {cut} no gap is longer than "
            f"{_ms(chunks['gap_max_ms'])}, and {who} first token comes {firsts}.")


def _later(times: float) -> str:
    """ "11 % later", "3.1 times as late", "2 % sooner"."""
    if times >= 2:
        return f"{times:.1f} times as late"
    return f"{percent(abs(times - 1))} {'later' if times >= 1 else 'sooner'}"


def _ms(ms: float) -> str:
    return duration(ms / 1000)


def causes(result: Result) -> list[str]:
    """Why each policy's longest gap is as long as it is."""
    v, n = result.scenario.values, result.scenario.streams
    left, s = scenario.to_compute(v), result.summaries
    chunk = min(int(v["budget"]) - n, left, int(v["cap"]) or left)
    return [
        f"**{names(result)['alone']}: {_ms(s['alone']['gap_max_ms'])}.** {_in_the_gap(result, 'alone'):,} prompt tokens are read "
        "in steps of their own: no stream gets a token meanwhile.",
        f"**{names(result)['whole']}: {_ms(s['whole']['gap_max_ms'])}.** The streams are in the same step as the prompt: they "
        "save a step of their own, but this one lasts as long as the prompt takes.",
        f"**{names(result)['chunks']}: {_ms(s['chunks']['gap_max_ms'])}.** "
        f"{count(int(s['chunks']['prompt_steps']), 'step')} with up to {chunk:,} prompt tokens beside {count(n, 'decode')}; "
        + ("each lasts as long as so many tokens take, and the later ones a little longer, as they attend to all that was read "
           "before." if s["chunks"]["prompt_steps"] > 1 else "it lasts as long as so many tokens take."),
    ]


def _in_the_gap(result: Result, key: str) -> int:
    """Prompt tokens of the steps that lie in a policy's longest gap."""
    gap, steps = result.gaps[key], result.runs[key].steps
    start, end = (1000 * at + result.scenario.landing_us for at in (gap.start_ms, gap.end_ms))
    inside = (steps.start_us >= start - 1) & (steps.start_us < end - 1)  # µs; every step is far longer
    return int((steps.prefill * steps.count)[inside].sum())


def life(result: Result, policy_key: str, request: int) -> str:
    """What a stream or a newcomer goes through under one policy."""
    run, scene, s = result.runs[policy_key], result.scenario, result.summaries[policy_key]
    who = f"**{names(result)[policy_key]}.** "
    if request < scene.streams:
        gap = result.gaps[policy_key]
        return (f"{who}Stream {request + 1} ({int(run.trace.prompt[request]):,} tokens of context at its start) gets a token "
                f"every {_ms(s['gap_p50_ms'])} as a rule; its longest gap is {_ms(gap.ms)}, from {_ms(gap.start_ms)} to "
                f"{_ms(gap.end_ms)} after the landing.")
    k = request - scene.streams + 1
    arrival, admitted, first = (float(x[request]) for x in (run.trace.arrival_us, run.admitted_us, run.first_token_us))
    wait = (admitted - arrival) / 1e6
    mine = (run.steps.prefill > 0) & (run.steps.start_us >= admitted - 1) & (run.steps.end_us <= first + 1)
    steps = int(run.steps.count[mine].sum())
    return (f"{who}Long prompt {k} ({int(run.trace.prompt[request]):,} tokens, {int(run.cached[request]):,} of them cached) "
            f"waited {duration(wait)} until a step took it up, was read in {count(steps, 'step')}, and had its first token "
            f"{duration((first - arrival) / 1e6)} after it came.")


def hint(result: Result) -> str:
    """What to estimate the prediction from."""
    steps = result.runs["alone"].steps
    before = steps.end_us <= result.scenario.landing_us
    apart = float(np.median((steps.end_us - steps.start_us)[before]) / 1000)
    return f"Ticks before the landing are {apart:.0f} ms apart: how many would fit into the hole?"


def feedback(result: Result, guess: float | None) -> str:
    """The answer to the prediction and why; `guess` in ms, None: skipped."""
    truth = result.summaries["alone"]["gap_max_ms"]
    tokens = _in_the_gap(result, "alone")
    why = (f" {tokens:,} prompt tokens are read, about {1000 * truth / tokens:.0f} µs each, and then one step of decodes; until "
           "it ends nobody gets a token.")
    if guess is None:
        return f"It is **{_ms(truth)}**.{why}"
    near = 0.75 <= guess / truth <= 1.33
    verdict = "Close" if near else "Less than you said" if guess > truth else "More than you said"
    return f"{verdict}: it is **{_ms(truth)}**, you said {_ms(guess)}.{why}"


def watch(values: Values) -> str:
    """What to look for: the preset's line where the values are a preset's, else one for the budget."""
    now = filled(values)
    for preset in PRESETS:
        if filled(preset.values) == now:
            return preset.watch
    left, cap, n = scenario.to_compute(now), int(now["cap"]), int(now["streams"])
    if int(now["long"]) == 1 and left + n <= int(now["budget"]) and not 0 < cap < left:
        return "The prompt fits into one step beside the streams: chunks do what whole prompts do. Take a longer prompt or a " \
            "smaller budget."
    if 0 < cap < int(now["budget"]) - n:
        return "The cap, not the budget, cuts the prompt: move it and watch both prices."
    if int(now["budget"]) <= 128:
        return "So small a budget is mostly weights: watch how long the newcomer waits for its first token."
    if int(now["budget"]) >= 4096:
        return "So large a budget is nearly the whole prompt: watch the gap grow with it."
    return "Watch the two prices: the longest gap of the streams, and the newcomer's first token."


_NUMBERS = (
    ("Longest gap of a stream", "gap_max_ms"), ("Gap between tokens (ITL), p99", "gap_p99_ms"),
    ("Gap between tokens (ITL), p50", "gap_p50_ms"), ("Newcomer's TTFT", "ttft_ms"),
)
_KIND = {"alone": "prefill", "whole": "hybrid", "chunks": "hybrid"}  # of the steps that read the prompt


def numbers(result: Result, answer: bool = True) -> pd.DataFrame:
    """The measures side by side, as text; without the longest gap and the p99 before the prediction if not `answer`."""
    v = result.scenario.values
    rows: list[tuple[str, ...]] = [
        (name, *(_ms(result.summaries[key][what]) + _off(v, _kind(result, key, what)) for key in KEYS))
        for name, what in _NUMBERS if answer or what not in ("gap_max_ms", "gap_p99_ms", "ttft_ms")
    ]
    lost = result.lost
    rows.append(("Prompt tokens/s lost to chunks", "–", "–",
                 f"{percent(lost.share)}: {lost.tokens_per_s:,.0f} of {lost.whole:,.0f}{_off(v, 'prefill')}"))
    rows.append(("Error of prompt steps, median (p95)", *(_error(result, key) for key in KEYS)))
    return pd.DataFrame(rows, columns=["", "Alone", "Whole", "Chunks"])


def _kind(result: Result, key: str, what: str) -> str:
    """The kind of step that makes a number: a median gap shorter than any step beside a prompt is a step of decodes."""
    steps = result.runs[key].steps
    beside = steps.first_us[(steps.prefill > 0) & (steps.decode > 0)]
    short = 1000 * result.summaries[key]["gap_p50_ms"] < float(beside.min(initial=np.inf))
    return "decode" if what == "gap_p50_ms" and short else _KIND[key]


def _off(values: Values, kind: str) -> str:
    """The model's median error on measured steps of a kind, to stand behind a number; nothing where nothing was measured."""
    found = scenario.model_error(values, kind)
    return "" if found is None else f" ±\u00a0{found[0]:.1f}\u00a0%"  # no line ends within it


def _error(result: Result, key: str) -> str:
    found = scenario.model_error(result.scenario.values, _KIND[key])
    return "not measured" if found is None else f"{found[0]:.1f} % ({found[1]:.0f} %)"


def numbers_note(result: Result) -> str:
    """What the labels of `numbers` mean."""
    off = "±: how far our step time is from measured steps of that kind on this GPU, over all LLMs measured, in the median." \
        if scenario.model_error(result.scenario.values, "hybrid") else \
        "No step was measured on this GPU: its times follow from its data sheet."
    return ("Gaps: of all streams from the landing until 0.4 s after the last newcomer's first token; p50, p99: half, 99 of 100 "
            "gaps stay below. Lost: the long prompts without streams on the GPU, whole against in chunks, as Sarathi-Serve's "
            f"figure 14 has it. {off}")


def sweep_words(curve: Sweep) -> str:
    """What the sweep shows: both prices, and where the useful budgets lie."""
    gap, first = curve.gap_ms["chunks"], curve.ttft_ms["chunks"]
    useful = (curve.x >= 2 * curve.ridge) & (curve.x <= 4 * curve.ridge)
    words = (f"From {curve.x[0]:,.0f} to {curve.x[-1]:,.0f} tokens the longest gap goes {_span(gap[0], gap[-1])}, and the "
             f"newcomer's first token {_span(first[0], first[-1])}. The ridge is at {curve.ridge:,.0f} tokens")
    if not useful.any():
        return words + "."
    gaps, firsts = gap[useful], first[useful]
    return f"{words}; two to four times that, the gap is {_between(gaps)} and the first token comes after {_between(firsts)}."


def _span(start: float, end: float) -> str:
    return f"from {_ms(float(start))} to {_ms(float(end))}"


def _between(values: np.ndarray) -> str:
    """ "53 ms to 69 ms", or one of them where they read the same."""
    low, high = _ms(float(values.min())), _ms(float(values.max()))
    return low if low == high else f"{low} to {high}"


def roofline_words(roof: Roofline) -> str:
    """What the roofline says of the chosen budget."""
    engine = f" ({_ms(roof.overhead_ms)} of it the engine's own)" if roof.overhead_ms else ""
    return (f"A step of few tokens takes about {_ms(roof.floor_ms)}{engine}, whatever is in it: the weights must be read. From "
            f"the ridge, {roof.ridge:,.0f} tokens (data sheet: {roof.ridge_theory:,.0f}), computing takes over. Your budget of "
            f"{roof.budget:,} tokens is {roof.budget / roof.ridge:.1f} times the ridge; halfway through the prompt a step filled "
            f"to it takes {_ms(roof.step_ms)}.")


CAPACITY = (
    "One long prompt shows the gap; a stream of them shows what the gap costs. Sarathi-Serve's rule: the largest rate of "
    "requests at which the median wait for the first step stays within 2 s and 99 of 100 gaps stay within a limit. Who freezes "
    "the streams must be lightly loaded to keep a tight limit; chunks keep it at a higher rate, if their own steps are "
    "short enough."
)


def search_progress(done: Sequence[bool], told: Sequence[tuple[int, float] | None]) -> tuple[float, str]:
    """How much of the searches is done, 0 to 1, and the words for it.

    done, told  by policy, in the order of KEYS: whether its search is done, and (rates tried, simulated requests/s) so far
    """
    tried = sum(1.0 if over else min(known[0], 9) / 10 if known else 0.0 for over, known in zip(done, told, strict=True))
    words = f"Searching: {sum(done)} of {len(done)} policies"
    if known := next((known for known in reversed(told) if known), None):
        words += f"; {sum(k[0] for k in told if k)} rates tried, {known[1]:,.0f} requests simulated a second"
    return tried / len(done), words + ". The lesson goes on meanwhile."


def capacity_words(curve: scenario.Curve, speed: float) -> str:
    """The capacities, and how many times the other policies' the chunks bear."""
    at = {key: load.capacity for key, load in curve.loads.items()}
    simulated = f"{speed:,.0f} requests were simulated a second."
    limit = f"{curve.slo_tbt_ms:,.0f} ms"
    if len(at) > 1 and not any(at.values()):
        return (f"No policy keeps {limit} at any rate: a step of decodes, or of the least prompt tokens, takes longer. Take "
                f"a wider limit, a smaller model or a faster GPU. {simulated}")
    if not at["chunks"]:
        return (f"With a step of the budget longer than the limit, chunks keep {limit} at no rate: take a "
                f"smaller budget. {simulated}")
    others = (("alone", "vLLM v0"), ("whole", "Orca"))
    times = [f"{at['chunks'] / at[key]:.1f} times {name}'s" for key, name in others if at.get(key)]
    over = f", {' and '.join(times)}" if times else ""
    less = " Their full steps come too near the limit: a smaller budget would bear more." \
        if any(capacity > at["chunks"] for capacity in at.values()) else ""
    return f"Within {limit}, chunks bear **{at['chunks']:.2f} requests/s**{over}.{less} {curve.what} {simulated}"


# --- the questions ----------------------------------------------------------------------------------------------------


def quiz(result: Result) -> list[Question]:
    """Questions whose numbers come from the run on the screen."""
    return [_whole_question(result), _small_question(result), _budget_question(result)]


def _whole_question(result: Result) -> Question:
    whole, alone = result.summaries["whole"]["gap_max_ms"], result.summaries["alone"]["gap_max_ms"]
    helps = f"Beside the decodes, whole, the prompt makes a gap of {_ms(whole)}; first and alone, {_ms(alone)}. "
    asked = "Why does it help so little that the streams are in the same step?" if whole > 0.9 * alone else \
        "What of the gap remains, although the streams are in the same step?"
    return question(
        helps + asked,
        ("The step's own length: it ends for all at once, so who needs one token waits for the whole prompt",
         "Tokens come at the end of the step. Only a shorter step makes the gap shorter; what is saved is a step of decodes."),
        ("The decodes go after the prompt within the step", "a step has an order inside",
         "All tokens of a step go through together."),
        ("The prompt pushes the streams' memory out", "a prompt takes others' memory", "Here memory has no limit."),
        ("The scheduler prefers prompts", "it is a matter of who goes first", "In this policy decodes go first, and still wait."))


def _small_question(result: Result) -> Question:
    """Steps of the smallest budget: how many, and why they are dear."""
    v, n = result.scenario.values, result.scenario.streams
    left = scenario.to_compute(v)
    chunk = 64 - n
    right = -(-left // chunk)
    dear = "; each reads all weights again, so that the newcomer waits longest of all." if right > 1 else "."
    wrong = [(float(-(-left // 64)), "the decodes take no part of the budget", f"Of the 64 tokens {n} are the streams'."),
             (float(left // int(v["budget"]) + 1), "the number of steps stays the same", "A smaller budget needs more steps."),
             (float(left), "a chunk is a token", "A chunk is what the budget leaves.")]
    return question(
        f"A budget of 64 tokens, {count(n, 'stream')}, {left:,} prompt tokens to read: in how many steps?",
        (f"{right:,}", f"Each step has room for 64 − {n} = {chunk} prompt tokens{dear}"),
        *((f"{x:,.0f}", name, why) for x, name, why in apart(float(right), wrong, 0.05 * right)),
        ("It depends on the GPU", "the GPU sets the steps", "The GPU sets how long a step takes, the budget how many there are."))


def _budget_question(result: Result) -> Question:
    server = result.scenario.service
    ridge = server.ridge_tokens
    n, v = result.scenario.streams, result.scenario.values
    at = {b: float(step_us(server, b, n * int(v["context"]), attention_units(b - n), n + 1)) / 1000 for b in (128, 512)}
    return question(
        f"On this GPU a step of 128 tokens takes {_ms(at[128])}, one of 512 {_ms(at[512])}. The ridge is at {ridge:,.0f} tokens. "
        "Which budget serves both, streams and newcomer?",
        ("Two to four times the ridge", "There the weights are read for many tokens at a time, and a step is still short."),
        ("Exactly the ridge", "the ridge is the best of both", "Each step there costs some 1.4 times the floor, for few tokens."),
        ("As small as can be: readers notice gaps, not throughput", "gaps are all that counts",
         "The newcomer's first token, and all who wait behind it, pay for the many steps."),
        ("As large as can be: fewer steps, less waste", "throughput is all that counts", "Then a step is as long as the freeze."))


# --- what it models ---------------------------------------------------------------------------------------------------


def models(result: Result) -> list[tuple[str, str, str]]:
    """(what, value with unit, source) of everything that the simulation on the screen assumes."""
    v, server = result.scenario.values, result.scenario.service
    rows = [
        *server_rows(server), head_row(server),
        ("Streams", f"{result.scenario.streams}, context {int(v['context']):,} tokens ± {percent(scenario.SPREAD)}", "chosen"),
        ("Alone", "prompts first, in steps of their own", "vLLM before its v1 engine; Sarathi-Serve, OSDI 2024, section 3"),
        ("Whole", "whole prompts beside the decodes", "Orca, OSDI 2022, Algorithm 1"),
        ("Chunks", "decodes first, then prompt tokens up to the budget", "Sarathi-Serve, OSDI 2024, Algorithm 3; vLLM v1"),
        ("Memory", "no limit, prefix cache in blocks of 16 tokens", "chosen: this lesson is about time"),
    ]
    for key in ("alone", "chunks"):
        rows.append((f"Error of the step times, {names(result)[key]}", _error(result, key) + ", median (p95)",
                     "step-times/CALIBRATION.md; recomputed from the measured points"))
    return rows


def leaves_out() -> list[str]:
    """What the simulation does not have."""
    return [
        "Sums of kernels: attention of the chunk and of the decodes in one step are added. Measured joint kernels take 1.13 "
        "to 1.28 times the sum (CALIBRATION.md, section 4), 1 to 2 ms a step here.",
        "Tiny chunks use the GPU poorly: measured attention of chunks of 64 to 128 tokens takes longer than the model says.",
        "The LM head (0.68 ms a step on an A100) and the engine's own time, unless you set the engine overhead: a hundred small "
        "steps pay it a hundred times.",
        "CUDA graphs, which make decode-only steps shorter than mixed ones, pipeline parallelism, and its bubbles.",
        "Steps of Yi-34B, Mistral-7B (whose layers are Llama-3-8B's) and of the A40, A6000 and A100-40G were not measured.",
    ]


# --- take away --------------------------------------------------------------------------------------------------------


def python_lines(values: Values) -> str:
    """Python that redoes the runs; it ends with `result`."""
    v = changed(scenario.KNOBS, filled(values))
    return "\n".join([
        "from explainers.chunked_prefill import scenario",
        "",
        f"result = scenario.result({v!r})",
        "for key, summary in result.summaries.items():",
        "    print(key, summary)",
    ]) + "\n"


def requests_csv(result: Result) -> str:
    """A line for each request and policy; requests counted from 1 as on the screen, times in ms."""
    return files.requests_csv({key: frame(run) for key, run in result.runs.items()})


def chrome_trace(result: Result) -> str:
    """What the engine ran, step by step, in Chrome's trace format: a process per policy, a thread for its steps, µs."""
    events: list[files.Event] = []
    for pid, (key, run) in enumerate(result.runs.items(), start=1):
        events += files.names(pid, names(result)[key], ["steps"])
        steps, until = run.steps, result.scenario.landing_us + 1000 * result.end_ms
        for row in np.flatnonzero(steps.start_us < until).tolist():
            at, first, growth = (float(x[row]) for x in (steps.start_us, steps.first_us, steps.growth_us))
            for i in range(int(steps.count[row])):
                if at >= until:
                    break
                took = first + i * growth
                args = {"prompt tokens": int(steps.prefill[row]), "decodes": int(steps.decode[row])}
                events.append(files.piece(pid, 1, "prefill" if steps.prefill[row] else "decode", "work", at, took, args))
                at += took
    return files.chrome_trace(events)


def cursor_data(result: Result) -> dict[str, Any]:
    """What the scrubber needs to say who is in which state at an instant: per policy, ms after the landing."""
    told: dict[str, Any] = {}
    n = result.scenario.streams
    for key, run in result.runs.items():
        gap, zero = result.gaps[key], result.scenario.landing_us
        late = list(range(n, len(run.trace)))
        times = (run.trace.arrival_us, run.admitted_us, run.first_token_us)
        arrive, enter, first = (((x[n:] - zero) / 1000).tolist() for x in times)
        every = list(range(n))
        spans = [
            ["Streaming", every * 2, [0.0] * n + [gap.end_ms] * n, [gap.start_ms] * n + [None] * n],
            ["In the gap", every, [gap.start_ms] * n, [gap.end_ms] * n],
            ["Waiting", late, arrive, enter], ["Being read", late, enter, first],
            ["Replying", late, first, [None] * len(late)],
        ]
        told[key] = {"name": names(result)[key], "end": result.end_ms, "spans": spans}
    return told
