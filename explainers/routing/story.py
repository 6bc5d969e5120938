"""The routing lesson's words: fleets → the sentence of difference, causes, a request's way, questions. Pure; no Streamlit."""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pandas as pd

from explainers.kit import files
from explainers.kit.assumed import head_row, server_rows
from explainers.kit.grammar import count, duration, listed, percent
from explainers.kit.knobs import changed
from explainers.kit.quiz import Prediction, Question, apart, question
from explainers.routing import scenario
from explainers.routing.scenario import KEYS, PRESETS, Result, Sweep, Values, filled

TITLE = "Where a request is sent"
QUESTION = "A conversation's memory lies on the server that answered last. Who sends the next turn there, and at what price?"
LEAD = ("Each turn of a conversation quotes all that was said before. A replica that answered it still has its keys and values: "
        "only the new question must be computed. Another replica computes anew what it has not seen. A router decides at "
        "each arrival.")
"""What a newcomer must know before the figure; at most 260 characters."""
WORDS: tuple[tuple[str, str], ...] = (
    ("Replica", "One of several servers that run the same model."),
    ("Router", "What decides, as a request comes, which replica gets it."),
    ("Prefix cache", "Keys and values of earlier prompts and replies, kept until the room is needed."),
    ("Hit rate", "The share of all prompt tokens that are found in a prefix cache."),
    ("Round robin", "Replicas take turns, whatever is asked."),
    ("Sticky session", "All turns of a conversation go to one replica; also called session affinity."),
    ("KV-cache-aware routing", "The router weighs what lies where against how busy each replica is."),
    ("Eviction", "What was kept makes room for something else, the longest unused first."),
    ("TTFT", "Time to first token: from a request's arrival until its reply begins."),
    ("p50, p99", "The value that half, or 99 of 100, of the requests stay below."),
)
"""(term, one plain sentence of fewer than 20 words)."""
SHORT = {"round_robin": "round robin", "sticky": "sticky", "aware": "third"}
ORDERS = tuple(permutations(KEYS))
PREDICTION = Prediction(
    "Which router finds most, and which has the lowest p99 TTFT?", "best first", 0, len(ORDERS) ** 2 - 1,
    choices=(("By hit rate, best first", tuple(" > ".join(SHORT[k] for k in order) for order in ORDERS)),
             ("By p99 TTFT, best first", tuple(" > ".join(SHORT[k] for k in order) for order in ORDERS))))
CLAIMS: tuple[str, ...] = ("route-*",)


def shown(result: Result, what: str) -> dict[str, float]:
    """Each router's "hit_rate" or "ttft_p99" as the page shows it: what reads the same is the same. The best is the smallest."""
    if what == "hit_rate":
        return {key: -round(100 * result.numbers[key][what]) for key in KEYS}
    return {key: round(result.numbers[key][what], 3) for key in KEYS}


def best(result: Result, what: str) -> tuple[str, ...]:
    """The routers, best first: by "hit_rate" (highest) or "ttft_p99" (lowest); equals in the order of the stage."""
    values = shown(result, what)
    return tuple(sorted(KEYS, key=lambda key: values[key]))


def _served(result: Result) -> bool:
    return all(np.isfinite(result.numbers[key]["ttft_p99"]) for key in KEYS)


def _name(result: Result, key: str) -> str:
    return result.scenario.policies[key]


def _titled(result: Result, key: str) -> str:
    name = _name(result, key)
    return name[0].upper() + name[1:]


def headline(result: Result, answer: bool = True) -> str:
    """What differs between the routers, and why. `answer` False: without hit rates and latencies."""
    gone = scenario.lost(result, "round_robin")
    refused = int(max(result.numbers[key]["refused"] for key in KEYS))
    if refused:
        return (f"{count(refused, 'request')} of {len(result.scenario.trace)} can never fit the memory of a replica and "
                f"{'is' if refused == 1 else 'are'} refused: more memory, or shorter prompts, would let "
                f"{'it' if refused == 1 else 'them'} in.")
    if gone is None:
        lead = f"{_titled(result, 'round_robin')} sends no request away from tokens of it that lie elsewhere"
    else:
        lead = (f"{_titled(result, 'round_robin')} sends turn {gone.turn} of conversation {gone.session} to replica "
                f"{gone.went}; {gone.tokens:,} of its tokens lie on replica {gone.lay}")
    if not answer:
        return f"{lead}."
    found = [f"{_name(result, key)} {percent(result.numbers[key]['hit_rate'])}" for key in KEYS]
    slow = [duration(result.numbers[key]["ttft_p99"]) for key in KEYS]
    return (f"{lead}. Found in a cache, of all prompt tokens: {listed(found)}, of {percent(result.ceiling)} that could be; "
            f"the p99 "
            f"of the time to first token is {listed(slow)}.")


def causes(result: Result) -> list[str]:
    """What each router does to the caches and to the load."""
    said = []
    for key in KEYS:
        n = result.numbers[key]
        idle = f"; {count(int(n['idle']), 'replica')} got nothing" if n["idle"] else ""
        line = (f"**{_titled(result, key)}: {percent(n['hit_rate'])} found.** {int(n['again']):,} tokens are "
                f"computed that one "
                f"cache for all would have had; {int(n['evicted']):,} blocks were evicted; the busiest replica got "
                f"{n['imbalance']:.1f} times the mean{idle}.")
        if n["gone"] > 0:
            line += f" It counted on {int(n['gone']):,} tokens that were gone."
        moved = scenario.moved(result, key)
        if moved is not None and moved[1]:
            line += f" When the last replica joined, {moved[0]} of {count(moved[1], 'conversation')} under way went on elsewhere."
        if n["refused"]:
            line += f" Refused, as they can never fit the memory: {count(int(n['refused']), 'request')}."
        said.append(line)
    early = {key: int(result.numbers[key]["early"]) for key in KEYS}
    if any(early.values()):
        each = listed([f"{early[key]} under {_name(result, key)}" for key in KEYS])
        said.append(f"Turns that came before the reply to the turn before had ended, as arrivals are fixed beforehand: "
                    f"{each}. What "
                    "was not there yet could not be found.")
    return said


def life(result: Result, policy_key: str, request: int) -> str:
    """Why the router sent one request where it did, and what that cost."""
    fleet, trace = result.fleets[policy_key], result.scenario.trace
    went, prompt = int(fleet.replica[request]), int(trace.prompt[request])
    session, turn = int(scenario.sessions(trace)[request]) + 1, int(result.scenario.turn[request])
    said = [f"**{_titled(result, policy_key)}.** Request {request + 1}, turn {turn} of conversation {session} "
            f"({prompt:,} prompt, "
            f"{int(trace.output[request]):,} output tokens), came at {duration(float(trace.arrival[request]))} and went to "
            f"replica "
            f"{went + 1}"]
    hit = int(fleet.hits[request])
    found = f"{hit:,} tokens were found there ({percent(hit / prompt)})"
    if fleet.decisions is not None:
        there, load = fleet.decisions.there[request], fleet.decisions.load[request]
        most = int(np.argmax(there))
        if there[most] > there[went]:
            found += f", {int(there[most]):,} lay on replica {most + 1}"
        loads = [f"{i + 1}: {int(x)}" for i, x in enumerate(load.tolist()) if x >= 0]
        if len(loads) <= 8:
            found += f"; requests in flight then, by replica: {', '.join(loads)}"
    said.append(found)
    first = float(fleet.ttft[request])
    said.append("it was refused: it can never fit" if np.isnan(first) else f"first token after {duration(first)}")
    return "; ".join(said) + "."


def _said(order: tuple[str, ...], values: dict[str, float] | None = None) -> str:
    """ "third > sticky = round robin"; with the values, what is equal says so."""
    said = SHORT[order[0]]
    for before, key in pairwise(order):
        said += f" {'=' if values and values[before] == values[key] else '>'} {SHORT[key]}"
    return said


def hint(result: Result) -> str:
    """What to estimate the prediction from."""
    return "Filled: found in a cache. Hatched: computed."


def feedback(result: Result, guess: float | None) -> str:
    """The answer to the prediction; `guess` numbers a pair of orders, None: skipped."""
    if not _served(result):
        return "Under one of the routers nothing was served, so there is no order. Give the replicas more memory."
    hit, ttft = (shown(result, what) for what in ("hit_rate", "ttft_p99"))
    first, second = _said(best(result, "hit_rate"), hit), _said(best(result, "ttft_p99"), ttft)
    truth = f"Best first: by hit rate **{first}**, by p99 TTFT **{second}**"
    same = "The two orders are the same here." if first == second else \
        f"They differ: to find it may mean to queue for it. {_crowd(result)}".strip()
    if guess is None or not 0 <= guess < len(ORDERS) ** 2:
        return f"{truth}. {same}"
    mine = ORDERS[int(guess) // len(ORDERS)], ORDERS[int(guess) % len(ORDERS)]
    # Between equals either order is right.
    right = [all(values[a] <= values[b] for a, b in pairwise(order)) for order, values in zip(mine, (hit, ttft), strict=True)]
    verdicts = {(True, True): "Both right", (True, False): "Hit rate right, latency not",
                (False, True): "Latency right, hit rate not", (False, False): "Neither"}
    return f"{verdicts[right[0], right[1]]}. {truth}; you said {_said(mine[0])} and {_said(mine[1])}. {same}"


def _crowd(result: Result) -> str:
    """Where the requests went under the router whose slowest first tokens came last; empty if all replicas got as many."""
    key = best(result, "ttft_p99")[-1]
    served = result.fleets[key].requests
    most = int(served.argmax())
    if served[most] == served.min():
        return ""
    return f"{SHORT[key].capitalize()} sent {served[most]} of {served.sum()} requests to replica {most + 1}."


def watch(values: Values) -> str:
    """What to look for: the preset's line where the values are a preset's, else one for the third router."""
    now = filled(values)
    for preset in PRESETS:
        if filled(preset.values) == now:
            return preset.watch
    if int(now["replicas"]) == 1:
        return "One replica: every router sends everything there. Take more replicas."
    if now["source"] != scenario.GENERATED:
        return "Recorded requests: compare each router's hit rate with what one cache for all would find."
    return "Follow one conversation along the lanes: does it stay on its replica, and when is it sent elsewhere?"


_NUMBERS = (
    ("Prompt tokens found in a cache", "hit_rate"), ("Prompt tokens computed", "computed"), ("… that one cache would have "
        "had", "again"),
    ("Time to first token (TTFT), p50", "ttft_p50"), ("Time to first token (TTFT), p99", "ttft_p99"),
    ("Busiest replica's requests over the mean", "imbalance"), ("Blocks evicted", "evicted"),
)


def numbers(result: Result, answer: bool = True) -> pd.DataFrame:
    """The measures side by side, as text; before the prediction only what does not answer it."""

    def cell(key: str, what: str) -> str:
        n = result.numbers[key][what]
        if what == "hit_rate":
            return percent(n)
        return duration(n) if what.startswith("ttft") else f"{n:.2f}" if what == "imbalance" else f"{n:,.0f}"

    rows = [(name, *(cell(key, what) for key in KEYS)) for name, what in _NUMBERS if answer or what in ("imbalance",)]
    return pd.DataFrame(rows, columns=["", *(_titled(result, key) for key in KEYS)])


def numbers_note(result: Result) -> str:
    """What the labels of `numbers` mean."""
    note = f" {result.scenario.note}" if result.scenario.note else ""
    return (f"One infinite cache that sees all requests one after the other would find {percent(result.ceiling)}. p50, p99: "
            f"half, 99 of "
            f"100 requests stay below.{note}")


def sweep_words(curve: Sweep) -> str:
    """What the sweep shows from end to end."""
    what = {"cache": "tokens of memory per replica", "replicas": "replicas", "rate": "conversations/s"}[curve.over]
    shown, form = (curve.ttft_p99, duration) if curve.over == "rate" else (curve.hit_rate, percent)
    told = [f"{curve.names[key]} from {form(float(y[0]))} to {form(float(y[-1]))}" for key, y in shown.items()]
    name = "the p99 of the time to first token" if curve.over == "rate" else "the hit rate"
    end = {"cache": "What is sent to where it lies needs less memory for as many hits.",
           "replicas": "More replicas hold more; round robin spreads each conversation over all of them.",
           "rate": "Hits are also time: who computes less has room for more load."}[curve.over]
    return f"From {curve.x[0]:,g} to {curve.x[-1]:,g} {what} {name} goes: {listed(told)}. {end}"


# --- the questions ----------------------------------------------------------------------------------------------------


def quiz(result: Result) -> list[Question]:
    """Questions whose numbers come from the run on the screen."""
    asked = [_ceiling_question(result)]
    if len(result.scenario.joins) > 1:
        asked.append(_one_in_n(result))
    return [*asked, _affinity_question(result)] if _served(result) else asked


def _ceiling_question(result: Result) -> Question:
    trace, n = result.scenario.trace, result.numbers["round_robin"]
    total = int(trace.prompt.sum())
    right = total - n["computed"]
    wrong = [(n["computed"], "what is found is what is computed", "That is what had to be computed."),
             (result.ceiling * total, "round robin finds all that one cache would", "That is the ceiling."),
             (n["again"], "what is found is what was lost", "That is what one cache would have had in addition.")]
    return question(
        f"The prompts hold {total:,} tokens. Round robin computed {int(n['computed']):,} of them. How many did it find in a "
        f"cache?",
        (f"{right:,.0f}", f"Every prompt token is found or computed: {percent(n['hit_rate'])} were found."),
        *((f"{x:,.0f}", name, why) for x, name, why in apart(right, wrong, 0.02 * total)),
        ("It cannot be said without the evictions", "evictions enter the sum", "Evictions explain misses; the sum holds "
            "without them."))


def _one_in_n(result: Result) -> Question:
    n = len(result.scenario.joins)
    right = (n - 1) / n
    wrong = [(1 / n, "round robin keeps most", "That is the chance that it happens to be the same one."),
             (0.5, "it is one or the other", "There are more replicas than two." if n != 2 else "That is right for two only."),
             (1.0, "round robin never comes back", "It may come back by chance.")]
    return question(
        f"Turns of many conversations come mixed up, and round robin sends them to {n} replicas in turn. What share of the "
        f"turns goes to "
        "another replica than the turn before, about?",
        (percent(right), f"Any of {n} is as likely: 1 − 1/{n}. A conversation's memory is where it was the last time only then."),
        *((percent(x), name, why) for x, name, why in apart(right, wrong, 0.03)))


def _affinity_question(result: Result) -> Question:
    hit, ttft = best(result, "hit_rate"), best(result, "ttft_p99")
    whose = "" if hit[0] == ttft[0] else f"{_name(result, ttft[0])} "
    return question(
        f"Here {_name(result, hit[0])} has the highest hit rate, {percent(result.numbers[hit[0]]['hit_rate'])}, and {whose}the "
        f"lowest p99 TTFT, {duration(result.numbers[ttft[0]]['ttft_p99'])}. When does the highest hit rate not give the lowest "
        "latency?",
        ("When what is found is found on a busy replica: waiting there takes longer than computing it elsewhere",
         "A hit saves the prefill; a queue costs its own time. Routers with a load term give up hits for it."),
        ("When the cache is too large", "large caches are slow", "Here a larger cache costs no time."),
        ("Never: a hit is always faster", "hits are free", "A hit does not shorten the queue in front of it."),
        ("When the replies are long", "replies decide where a prompt goes", "TTFT ends where the reply begins."))


# --- what it models ---------------------------------------------------------------------------------------------------


def models(result: Result) -> list[tuple[str, str, str]]:
    """(what, value with unit, source) of everything that the simulation on the screen assumes."""
    v, scene = result.scenario.values, result.scenario
    memory = scene.policy.memory
    assert memory is not None
    return [
        *server_rows(scene.service), head_row(scene.service),
        ("Replicas", f"{len(scene.joins)}, {memory.blocks * memory.block_size:,} tokens of KV memory each, blocks of "
                     f"{memory.block_size}",
         "own number, or what fits beside the weights in 90 % of the memory"),
        ("Engine", f"vLLM v1 with its prefix cache: {scenario.SLOTS} requests at once, budget {scenario.BUDGET:,}",
         "vLLM 0.33.0 (peers/vllm/SEMANTICS.md); its defaults"),
        ("Sticky", f"{v['sticky']}", "FNV-like hash of the conversation; ring and bound: peers/sglang-router/ROUTING.md, "
                                     "section 4"),
        ("Third router", f"{v['router']}", "peers/sglang-router/ROUTING.md, section 4; SGLang's replayed decision by "
                                           "decision (tests/peers)"),
        ("Knowledge", f"{v['knowledge']}, {float(v['delay']):g} s late", "chosen; matters to longest match, Dynamo, llm-d "
            "and AIBrix"),
        ("Conversations", f"lognormal lengths, CV {scenario.QUESTION_CV:g} and {scenario.ANSWER_CV:g}; think times exponential",
         "assumed, near ShareGPT's" if v["source"] == scenario.GENERATED else "the recorded trace's own"),
    ]


def leaves_out() -> list[str]:
    """What the simulation does not have."""
    return [
        "Conversations that wait for their reply: arrivals are fixed beforehand (open loop), so a slow router does not slow "
        "its users "
        "down, and a turn may come before the reply before it has ended.",
        "The router's own time, the network, and retries; engines that fail.",
        "KV memory that is moved between replicas, or kept in host memory or on disk (LMCache, Mooncake's store).",
        "Eviction from the tree of SGLang's router, beyond 67 million characters a replica.",
        "Tokenising: SGLang's router matches characters, here they are tokens.",
        "Prefill and decode on separate replicas.",
    ]


# --- take away --------------------------------------------------------------------------------------------------------


def python_lines(values: Values) -> str:
    """Python that redoes the runs; it ends with `result`."""
    v = changed(scenario.KNOBS, filled(values))
    own = v.get("source") == scenario.OWN
    read = ["from pathlib import Path", "", "from sim.readers import mooncake", ""] if own else []
    trace = ', mooncake.read(Path("your-trace.jsonl"))' if own else ""
    return "\n".join([
        *read, "from explainers.routing import scenario",
        "",
        f"result = scenario.result({v!r}{trace})",
        "for key, numbers in result.numbers.items():",
        "    print(result.scenario.policies[key], numbers)",
    ]) + "\n"


def requests_csv(result: Result) -> str:
    """A line for each request and router: where it went, what was found, when its first and last token came, ms."""
    trace, parts = result.scenario.trace, []
    for key, fleet in result.fleets.items():
        parts.append(pd.DataFrame({
            "router": result.scenario.policies[key], "request": np.arange(1, len(trace) + 1),
            "conversation": scenario.sessions(trace) + 1, "turn": result.scenario.turn, "arrival_ms": 1000 * trace.arrival,
            "prompt": trace.prompt, "output": trace.output, "replica": fleet.replica + 1, "found": fleet.hits,
            "ttft_ms": 1000 * fleet.ttft, "e2e_ms": 1000 * fleet.e2e,
        }))
    return str(pd.concat(parts).to_csv(index=False, lineterminator="\n", float_format="%.3f"))


def chrome_trace(result: Result) -> str:
    """The stage in Chrome's trace format (Perfetto, chrome://tracing): a process per router, a thread per replica, µs."""
    events: list[files.Event] = []
    for pid, (key, fleet) in enumerate(result.fleets.items(), start=1):
        events += files.names(pid, result.scenario.policies[key], [f"replica {i + 1}" for i in range(len(fleet.runs))])
        start, end = (fleet.column(name).astype(np.float64) for name in ("admitted_us", "finished_us"))
        for r in np.flatnonzero(np.isfinite(end)).tolist():
            args = {"prompt": int(result.scenario.trace.prompt[r]), "found": int(fleet.hits[r])}
            lane, took = int(fleet.replica[r]) + 1, float(end[r] - start[r])
            events.append(files.piece(pid, lane, f"{r + 1}", "work", float(start[r]), took, args))
    return files.chrome_trace(events)


def cursor_data(result: Result) -> dict[str, Any]:
    """What the scrubber needs to say who is on which replica at an instant: per router, ms after the first arrival."""
    told: dict[str, Any] = {}
    zero = float(result.scenario.trace.arrival_us[0])
    for key, fleet in result.fleets.items():
        came = (result.scenario.trace.arrival_us - zero) / 1000
        gone = (fleet.column("finished_us").astype(np.float64) - zero) / 1000
        spans = []
        for i in range(len(result.scenario.joins)):
            mine = np.flatnonzero((fleet.replica == i) & np.isfinite(gone))
            spans.append([f"Replica {i + 1}", mine.tolist(), came[mine].tolist(), gone[mine].tolist()])
        told[key] = {"name": _titled(result, key), "end": float(np.nanmax(gone)), "spans": spans}
    return told


