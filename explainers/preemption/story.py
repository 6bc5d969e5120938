"""The preemption lesson's words: runs → the sentence of difference, causes, a request's life, questions. Pure; no Streamlit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from explainers.kit import files
from explainers.kit import grammar as g
from explainers.kit.assumed import head_row, server_rows
from explainers.kit.grammar import count, duration, listed, percent
from explainers.kit.knobs import changed
from explainers.kit.quiz import Prediction, Question, apart, question
from explainers.preemption import scenario
from explainers.preemption.figures import NAMES, ROLES, halves, pieces, rule
from explainers.preemption.scenario import PRESETS, Result, Sweep, Values, filled
from sim import lifecycle
from sim.metrics import e2e, frame, ttft
from sim.service import attention_units, step_us

TITLE = "Preemption and who goes first"
QUESTION = "The memory is full and everybody is in mid-reply. Who must give way, who goes first, and who pays for it?"
LEAD = ("Every token of a running reply takes memory. When there is none left, the server preempts: it takes a request's memory "
        "away and computes it anew later. Above: first come, first served. Below: your rule, on the same requests and memory.")
"""What a newcomer must know before the figure; at most 260 characters."""
WORDS: tuple[tuple[str, str], ...] = (
    ("Preemption", "Taking a running request's memory away, so that others can go on; it waits and starts again later."),
    ("Recompute", "The preempted request's tokens are thrown away and computed anew when it is back."),
    ("Swap", "The preempted request's memory is copied to the host and copied back later."),
    ("Queue order", "Who of those who wait is let in first."),
    ("Shortest first", "The shortest reply is let in first; it needs the length, or a guess of it."),
    ("Least served", "Whoever has had the fewest tokens so far is let in first."),
    ("Starvation", "A request waits again and again because others are always preferred."),
    ("Head-of-line blocking", "A long request at the front keeps the short ones behind it waiting."),
    ("Latency per token", "End-to-end latency divided by the tokens of the reply; also called normalised latency."),
)
"""(term, one plain sentence of fewer than 20 words)."""
PREDICTION = Prediction("By how much is the mean latency per token lower below than above?", "%", -300, 100)
CLAIMS: tuple[str, ...] = ("shortest-first-*",)


def gain(result: Result) -> float:
    """By how much the mean latency per token is lower under the other rule, %; negative: higher."""
    first, other = (o.numbers["mean"] for o in result.outcomes.values())
    return 100 * (1 - other / first)


def headline(result: Result, answer: bool = True) -> str:
    """What differs between the rules, and why. `answer` False: without the latencies, which the learner is to predict."""
    one, other = result.outcomes.values()
    a, b = one.numbers, other.numbers
    first, below = result.runs.values()
    if np.array_equal(first.finished_us, below.finished_us):
        why = "they pick the same requests each time" if a["preemptions"] else "nobody has to give way"
        return f"No difference: both rules do the same, because {why}."
    who = f"the one who waits longest does so for {duration(b['longest'])} instead of {duration(a['longest'])}"
    work = f"{count(int(b['preemptions']), 'preemption')} instead of {int(a['preemptions']):,}"
    anew = f"{int(b['again']):,} tokens computed anew instead of {int(a['again']):,}"
    tail = f"{who}; {work}, {anew}."
    if not answer:
        return f"{rule(result, 'other')}: {tail}"
    change = gain(result)
    if abs(change) < 1:
        lead = f"The mean latency per token hardly changes, {duration(b['mean'])}"
    elif duration(a["mean"]) == duration(b["mean"]):
        lead = f"{rule(result, 'other')} {'lowers' if change > 0 else 'raises'} the mean latency per token by {abs(change):.0f} %"
    else:
        lead = (f"{rule(result, 'other')} {'lowers' if change > 0 else 'raises'} the mean latency per token from "
                f"{duration(a['mean'])} to {duration(b['mean'])}")
    return f"{lead}; {tail}"


def causes(result: Result) -> list[str]:
    """Who pays, under each rule: the shorter and the longer half of the replies, and what is computed twice."""
    said = []
    for key, o in result.outcomes.items():
        short, long = halves(result, key)
        trace, gave = result.scenario.trace, int(o.numbers["victims"])
        total = int(trace.prompt.sum() + trace.output.sum())
        again = o.numbers["again"] / total
        said.append(f"**{rule(result, key)}.** The shorter half of the replies waits {duration(short)} on average, the longer "
                    f"half {duration(long)}. {gave} of {count(len(trace), 'request')} had to "
                    f"give way, {count(int(o.numbers['preemptions']), 'time')} in all; computed anew: {percent(again)} of all "
                    "tokens.")
    return said


def life(result: Result, policy_key: str, request: int) -> str:
    """What happened to one request under one rule: each wait with its cause."""
    run, o = result.runs[policy_key], result.outcomes[policy_key]
    zero, trace = float(run.trace.arrival_us[0]), run.trace
    said = [f"**{rule(result, policy_key)}.** Request {request + 1} ({int(trace.prompt[request]):,} prompt, "
            f"{int(trace.output[request]):,} output tokens"
            f"{', urgent' if trace.priority is not None and trace.priority[request] == 0 else ''}) came at "
            f"{duration((trace.arrival_us[request] - zero) / 1e6)}"]
    told = _waits(lifecycle.life(run, request), zero)
    said += told[:MOST_WAITS]
    if len(told) > MOST_WAITS:
        said.append(f"and so on, {count(int(run.preemptions[request]), 'preemption')} in all")
    if not np.isnan(run.first_token_us[request]):
        said.append(f"first token after {duration(float(ttft(run)[request]))}")
    if not np.isnan(o.latency[request]):
        said.append(f"ended after {duration(float(e2e(run)[request]))}, {duration(float(o.latency[request]))} a token; "
                    f"waited {duration(float(o.wait[request]))} in all")
    return "; ".join(said) + "."


def _waits(stages: list[lifecycle.Stage], zero: float) -> list[str]:
    """Each wait in the queue as one, with the cause that took most of it, and each preemption."""
    said: list[str] = []
    causes: dict[str, float] = {}

    def close() -> None:
        total = sum(causes.values())
        if total > 0:
            said.append(f"waited {duration(total / 1e6)}, mostly: {_counted(max(causes, key=lambda c: causes[c]))}")
        causes.clear()

    for stage in stages:
        if stage.state == "waiting":
            kind = "behind others in the line" if stage.cause.startswith("behind") else stage.cause.split(":")[0]
            causes[kind] = causes.get(kind, 0.0) + stage.end_us - stage.start_us
        else:
            close()
        if stage.state == "preempted":
            said.append(f"preempted at {duration((stage.start_us - zero) / 1e6)}: {_counted(stage.cause)}")
    close()
    return said


def _counted(cause: str) -> str:
    """A cause of the simulation, which counts requests from 0, as the page says it: from 1."""
    words = cause.split()
    for i in range(1, len(words)):
        bare = words[i].rstrip(",")
        if words[i - 1] == "request" and bare.isdigit():
            words[i] = words[i].replace(bare, str(int(bare) + 1), 1)
    return " ".join(words)


def hint(result: Result) -> str:
    """What to estimate the prediction from."""
    return "Less than 0: it is higher. Look who waits in the picture."


def feedback(result: Result, guess: float | None) -> str:
    """The answer to the prediction and why; `guess` in per cent, None: skipped."""
    truth = gain(result)
    said = f"{truth:.0f} % lower" if truth >= 0.5 else f"{-truth:.0f} % higher" if truth <= -0.5 else "the same"
    short = [halves(result, key) for key in result.outcomes]
    why = (f" The shorter half of the replies waits {duration(short[1][0])} instead of {duration(short[0][0])}, the longer half "
           f"{duration(short[1][1])} instead of {duration(short[0][1])}.")
    if guess is None:
        return f"It is **{said}**.{why}"
    verdict = "Close" if abs(guess - truth) <= 8 else "Less than you said" if guess > truth else "More than you said"
    return f"{verdict}: it is **{said}**, you said {guess:.0f} %.{why}"


def watch(values: Values) -> str:
    """What to look for: the preset's line where the values are a preset's, else one for the rule."""
    now = filled(values)
    for preset in PRESETS:
        if filled(preset.values) == now:
            return preset.watch
    return {
        scenario.SHORTEST: "Watch the long replies: who is let in before them, and how often?",
        scenario.GUESSED: "Watch replies whose length is guessed badly: a long one taken for short holds memory for long.",
        scenario.PRIORITY: "Watch the requests that are not urgent: they wait for those that are, also for later ones.",
        scenario.LEAST: "Whoever has had least goes first: newcomers overtake those who have given way.",
        scenario.FCFS: "Both panels serve in the order of arrival: only who gives way differs, or how.",
    }[str(now["order"])]


MOST_WAITS = 8
"""So many waits and preemptions of a request are told one by one."""

_NUMBERS = (
    ("Latency per token, mean", "mean"), ("Latency per token, p90", "p90"), ("Longest wait of a request", "longest"),
    ("Wait, mean", "waits"),
    ("Wait of the urgent, mean", "urgent"), ("Wait of the others, mean", "others"),
    ("Time to first token (TTFT), p99", "ttft_p99"), ("Last reply ends after", "makespan"), ("Preemptions", "preemptions"),
    ("Requests that had to give way", "victims"), ("Tokens computed anew", "again"),
)
_COUNTS = ("preemptions", "victims", "again")


def numbers(result: Result, answer: bool = True) -> pd.DataFrame:
    """The measures side by side, as text: columns "", "Above", "Below"; without the mean and p90 of latency if not `answer`."""
    v = result.scenario.values
    urgency = v["order"] == scenario.PRIORITY or v["victim"] == scenario.LEAST_URGENT
    rows = [
        (name, *(f"{o.numbers[key]:,.0f}" if key in _COUNTS else duration(o.numbers[key]) for o in result.outcomes.values()))
        for name, key in _NUMBERS
        if (answer or key not in ("mean", "p90")) and (urgency or key not in ("urgent", "others"))
    ]
    return pd.DataFrame(rows, columns=["", "Above", "Below"])


def numbers_note(result: Result) -> str:
    """What the labels of `numbers` mean."""
    return ("Latency per token: arrival to last token, over the tokens of the reply. p90, p99: 90, 99 of 100 requests stay "
            "below. A wait counts from the arrival and after each preemption.")


def sweep_words(curve: Sweep) -> str:
    """What the sweep shows from end to end."""
    what = {"memory": "tokens of memory", "rate": "requests/s"}[curve.over]
    told = [f"{NAMES[key]} from {duration(float(y[0]))} to {duration(float(y[-1]))}" for key, y in curve.mean.items()]
    at = -1 if curve.over == "memory" else 0
    one, other = (float(y[at]) for y in curve.mean.values())
    met = abs(one - other) <= 0.01 * one
    end = {("memory", True): "With memory for all, the rules are one and the same.",
           ("memory", False): "Even with the most memory requests wait, for slots or for the step's budget, so the order "
                              "still counts.",
           ("rate", True): "Below what the server can take, hardly anybody waits and the order plays no part.",
           ("rate", False): "Even at the lowest rate requests wait here, so the order still counts."}[curve.over, met]
    return f"From {curve.x[0]:,.0f} to {curve.x[-1]:,.0f} {what} the mean latency per token goes {listed(told)}. {end}"


# --- the questions ----------------------------------------------------------------------------------------------------


def quiz(result: Result) -> list[Question]:
    """Questions whose numbers come from the run on the screen."""
    asked = [_recompute_question(result), _fcfs_question(result)]
    return asked if abs(gain(result)) < 1 else [_who_pays(result), *asked]


def _who_pays(result: Result) -> Question:
    """Whether the order makes a step faster, or only moves waits about."""
    a, b = (o.numbers["mean"] for o in result.outcomes.values())
    (short_a, long_a), (short_b, long_b) = (halves(result, key) for key in result.outcomes)
    return question(
        f"The mean latency per token is {1000 * a:.1f} ms above and {1000 * b:.1f} ms below. Where does most of the "
        f"difference come from?",
        ("From how long requests wait: a second of it weighs more on a short reply than on a long one",
         f"The shorter half of the replies waits {duration(short_b)} below instead of {duration(short_a)}, the longer half "
         f"{duration(long_b)} instead of {duration(long_a)}."),
        ("The GPU computes faster under one of the rules", "an order speeds up the GPU",
         "A step of the same tokens takes the same time under both rules."),
        ("One of the rules writes shorter replies", "a policy changes the replies", "Both serve the same trace."),
        ("One of the rules uses less memory per token", "an order changes what a token takes",
         "A token takes the same memory under both."))


def _recompute_question(result: Result) -> Question:
    """What it costs to compute a victim's tokens anew: one prefill of them."""
    server, mean = result.scenario.service, _mean_lost(result)
    right = float(step_us(server, mean, 0, attention_units(mean))) / 1000
    decode = mean * float(step_us(server, 1, mean, 0)) / 1000
    swap = server.kv_bytes_per_token * mean / (scenario.HOST_GB_S * 1e6)
    wrong = [(decode, "what was decoded must be decoded again, token by token",
              "The tokens are known, so they are read in one step, as a prompt."),
             (swap, "computing anew takes as long as a copy to the host",
              "That is how long the swap of its keys and values takes, one way."),
             (right / mean, "a step costs as much for many tokens as for one", "That is one token's share.")]
    return question(
        f"A request that has {mean:,} tokens computed gives way. What does it cost the GPU to compute them anew, in a step of "
        "their own?",
        (duration(right / 1000), f"One step that reads {mean:,} tokens, as if they were a prompt."),
        *((duration(n / 1000), name, why) for n, name, why in apart(right, wrong, 0.1 * right)),
        ("Nothing: the tokens are known",
         "known tokens need no computing", "Their keys and values are gone, and only the model makes them."))


def _mean_lost(result: Result) -> int:
    lost = [e.tokens for run in result.runs.values() for e in run.events if e.kind == "preempted" and e.tokens]
    return int(np.mean(lost)) if lost else 512


def _fcfs_question(result: Result) -> Question:
    """Starvation needs a stream."""
    return question(
        "Under shortest first, when can a long request starve?",
        ("When shorter ones keep coming faster than the server can do them",
         "Each newcomer overtakes it. In a burst that ends it waits, but at last its turn comes: nobody is left to overtake it."),
        ("In every burst, if it is large enough", "a large queue is starvation", "A burst ends, and then the long one runs."),
        ("Never: each request moves up with every step", "a queue always moves up", "Here those who come later go before it."),
        ("Only if the guess of its length is wrong", "only errors starve", "A perfectly known long reply is overtaken too."))


# --- what it models ---------------------------------------------------------------------------------------------------


def models(result: Result) -> list[tuple[str, str, str]]:
    """(what, value with unit, source) of everything that the simulation on the screen assumes."""
    v, server = result.scenario.values, result.scenario.service
    return [
        *server_rows(server), head_row(server),
        ("Memory", f"{int(v['memory']):,} tokens in blocks of {scenario.BLOCK}", "chosen; vLLM's block size"),
        ("Rules above", "vLLM's scheduler: first come, first served; the last to enter gives way; recompute",
         "vLLM 0.33.0, v1 (peers/vllm/SEMANTICS.md)"),
        ("Budget", f"{scenario.BUDGET:,} tokens a step", "vLLM's default on an A100"),
        ("Swap", f"{scenario.HOST_GB_S:g} GB/s each way, {server.kv_bytes_per_token * scenario.BLOCK / 1024:,.0f} KiB a block",
         "PCIe 4.0 x16 as it is reached; bytes from the model's shape"),
        ("Requests", f"prompts lognormal, mean 161, CV {scenario.PROMPT_SPREAD}; replies lognormal, mean {int(v['reply'])}, CV "
         f"{float(v['spread']):g}; neither longer than half the memory", "means: PagedAttention paper, section 6.1 (ShareGPT)"),
        ("Guess", f"the true length times a lognormal of σ {float(v['noise']):g}", "chosen"),
    ]


def leaves_out() -> list[str]:
    """What the simulation does not have."""
    return [
        "A guard against starvation (ageing, or a limit on waits), fair shares between clients, and quanta: least served here "
        "only says who of the waiting is next; it does not stop a running request.",
        "Running requests are preempted for want of memory alone, never because a better one waits.",
        "Prefix caching: a preempted request's blocks are gone at once; with a prefix cache it may find some of them again.",
        "A swap stops the GPU for as long as it takes; engines overlap part of it with computing.",
        "The predictor's own time and its systematic errors: guesses are unbiased in the logarithm and independent.",
        "The engine's own time per step, the network, tokenising.",
    ]


# --- take away --------------------------------------------------------------------------------------------------------


def python_lines(values: Values) -> str:
    """Python that redoes the runs; it ends with `result`."""
    v = changed(scenario.KNOBS, filled(values))
    return "\n".join([
        "from explainers.preemption import scenario",
        "",
        f"result = scenario.result({v!r})",
        "for key, outcome in result.outcomes.items():",
        "    print(result.runs[key].policy.name, outcome.numbers)",
    ]) + "\n"


def requests_csv(result: Result) -> str:
    """A line for each request and rule; requests counted from 1 as on the screen, times in ms."""
    return files.requests_csv({key: frame(run) for key, run in result.runs.items()})


def chrome_trace(result: Result) -> str:
    """The stage in Chrome's trace format (Perfetto, chrome://tracing): a process per rule, a thread per request, µs."""
    events: list[files.Event] = []
    for pid, key in enumerate(result.runs, start=1):
        events += files.names(pid, rule(result, key), [f"request {r + 1}" for r in range(len(result.scenario.trace))])
        for r, start, stop, k in zip(*(column.tolist() for column in pieces(result, key)), strict=True):
            kind = "work" if k >= 2 else "wait"
            events.append(files.piece(pid, r + 1, g.ROLES[ROLES[k]].label, kind, 1000 * start, 1000 * (stop - start), {}))
    return files.chrome_trace(events)


def cursor_data(result: Result) -> dict[str, Any]:
    """What the scrubber needs to say who is in which state at an instant: per rule, ms after the first arrival."""
    told: dict[str, Any] = {}
    for key, run in result.runs.items():
        who, start, stop, role = pieces(result, key)
        spans = []
        for k, name in enumerate(ROLES):
            mine = role == k
            spans.append([g.ROLES[name].label.capitalize(), who[mine].tolist(), start[mine].tolist(), stop[mine].tolist()])
        ended = np.flatnonzero(~np.isnan(run.finished_us))
        zero = float(run.trace.arrival_us[0])
        spans.append(["Finished", ended.tolist(), ((run.finished_us[ended] - zero) / 1000).tolist(), [None] * len(ended)])
        told[key] = {"name": NAMES[key].capitalize(), "end": float(run.steps.end_us[-1]) / 1000, "spans": spans}
    return told
