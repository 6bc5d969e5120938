"""Chunked prefill against the record: the calibration's stall table, Sarathi-Serve's capacities, SARATHI's tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from sim import capacity
from sim.engine import simulate
from sim.metrics import itl_quantiles, token_times, ttft
from sim.policy import Policy, orca, sarathi_serve, vllm_v0
from sim.record import alternating
from sim.record.claim import Claim
from sim.service import Service, attention_units, service, step_us
from sim.trace import Trace

# --- the 16,384-token stall (step-times/CALIBRATION.md, section 3) ------------------------------------------------------

STREAMS, CONTEXT, PROMPT, TOKENS = 16, 1024, 16_384, 24
# budget → longest gap and TTFT, ms: the calibration's own model, and assembled from measured kernels
STALL = {
    128: (22.4, 2776, 21.2, 2719), 256: (37.1, 2049, 33.9, 1932), 512: (68.8, 1800, 61.6, 1661), 1024: (132, 1699, 126, 1692),
    2048: (258, 1661, 241, 1608), 4096: (500, 1645, 453, 1532), 8192: (936, 1638, 845, 1505),
}
ALONE = (1633, 1622, 1505, 1492)


@lru_cache(maxsize=32)
def stall(budget: int | None) -> tuple[float, float]:
    """Longest gap of the streams and TTFT of the prompt, ms; budget None: prompts first and alone.

    The streams run until each has TOKENS tokens and CONTEXT of context; then the prompt lands, half a step later.
    """
    server = service("Llama-3-8B", "A100-80G")
    policy = Policy("alone", slots=64, prompts="alone") if budget is None else Policy("chunks", slots=64, budget=budget)
    n = STREAMS
    first = Trace(np.zeros(n), np.full(n, CONTEXT - TOKENS), np.full(n, 4 * TOKENS))
    times = token_times(simulate(first, server, policy), n - 1)
    landing = float(times[TOKENS] + times[TOKENS + 1]) / 2
    trace = Trace(np.append(np.zeros(n), landing), np.append(first.prompt, PROMPT), np.append(np.full(n, 2_000), 2))
    run = simulate(trace, server, policy)
    gap = max(float(np.diff(t)[t[1:] > landing].max()) for t in (token_times(run, i) for i in range(n)))
    return 1000 * gap, 1000 * float(ttft(run)[n])


def _stall(budget: int | None, which: int) -> Claim:
    theirs = (ALONE if budget is None else STALL[budget])[which]
    assembled = (ALONE if budget is None else STALL[budget])[2 + which]
    what, name = (("longest gap of sixteen streams", "gap"), ("TTFT of the prompt", "ttft"))[which]
    how = "read first and alone" if budget is None else f"under a token budget of {budget:,}"
    return Claim(
        f"chunk-{name}-{budget or 'alone'}", "step-times/CALIBRATION.md, section 3: its model column",
        f"{what} when a prompt of {PROMPT:,} tokens is {how}", theirs, round(stall(budget)[which], 1), "ms",
        0.97 * theirs, 1.03 * theirs,
        f"Llama-3-8B on one A100-80G, {STREAMS} streams with {CONTEXT:,} tokens of context, the engine under the calibrated "
        f"step times",
        f"assembled from measured kernels: {assembled:,} ms",
    )


# --- Sarathi-Serve (OSDI 2024) ------------------------------------------------------------------------------------------

REQUESTS, SEED, BATCH = 2_048, 0, 128
# model, GPUs, strict and relaxed P99 TBT, s (table 3)
SET_UPS = {"mistral": ("Mistral-7B", 1, 0.1, 0.5), "yi": ("Yi-34B", 2, 0.2, 1.0)}
_PUBLISHED = "Sarathi-Serve (OSDI 2024), "


def policy(system: str, server: Service, batch: int = BATCH, budget: int = 512) -> Policy:
    """The three systems as its artifact runs them: blocks of 16 tokens in what fits beside the weights."""
    blocks = server.blocks()
    return {
        "vLLM": partial(vllm_v0, batch, capacity.LONGEST, blocks),
        "Sarathi-Serve": partial(sarathi_serve, batch, budget, blocks),
        "Orca": partial(orca, 16, blocks, capacity.LONGEST),
    }[system]()


@lru_cache(maxsize=64)
def found(model: str, system: str, strict: bool, batch: int = BATCH, overhead: bool = False) -> float:
    """Capacity by the paper's rule, requests/s; the budget is 512 under the strict limit and 2,048 under the relaxed one.

    overhead: with what CALIBRATION.md, section 4, says a 2023 engine adds to a step, and the LM head.
    """
    name, gpus, tight, loose = SET_UPS[model]
    server = service(name, "A100-80G", gpus)
    if overhead:
        server = replace(server, overhead_us=1_200 + server.lm_head_us, overhead_per_request_us=100)
    rule = capacity.Rule(tight if strict else loose)
    asked = policy(system, server, batch, 512 if strict else 2_048)
    return capacity.search(capacity.chat(REQUESTS, SEED), server, asked, rule).rate


def _capacity_set_up(model: str, strict: bool) -> str:
    name, gpus, tight, loose = SET_UPS[model]
    return (f"{name} on {gpus} A100-80G, {REQUESTS:,} requests of its chat lengths, Poisson, batch {BATCH} (Orca 16, reserving "
            f"{capacity.LONGEST:,} tokens each), budget {512 if strict else 2_048:,}; median scheduling delay ≤ 2 s and P99 "
            f"TBT ≤ "
            f"{tight if strict else loose:g} s, to 2.5 %; no engine overhead, seed {SEED}")


# requests/s of Sarathi-Serve and vLLM over all limits of figure 12, as others read them off it
_READ_OFF = {"mistral": "2.0 to 2.3 and 0.78 to 1.57", "yi": "1.14 to 1.28 and below 0.8"}


def _absolute(model: str, strict: bool, over: str) -> str:
    """What to know of the rates themselves: ours are higher, and an engine's overhead is part of why."""
    if over != "vLLM":
        return ""
    with_engine = [found(model, system, strict, overhead=True) for system in ("Sarathi-Serve", over)]
    ours, others = with_engine
    return (f"; theirs, read off figure 12 by others: {_READ_OFF[model]}. With an engine's overhead of 1.2 + 0.1 · batch ms a "
            f"step and the LM head ours are {ours:.2f} and {others:.2f}, {ours / others:.2f} times")


def _ratio(model: str, strict: bool, over: str, theirs: float | None, low: float | None, high: float | None,
           where: str) -> Claim:
    ours = found(model, "Sarathi-Serve", strict), found(model, over, strict)
    return Claim(
        f"sarathi-{model}-{'strict' if strict else 'relaxed'}-over-{over.lower()}", _PUBLISHED + where,
        f"capacity of chunked prefill over {over}'s, {SET_UPS[model][0]}, {'strict' if strict else 'relaxed'} limit", theirs,
        round(ours[0] / ours[1], 2), "times", low, high, _capacity_set_up(model, strict),
        f"ours: {ours[0]:.2f} and {ours[1]:.2f} requests/s{_absolute(model, strict, over)}",
    )


def _batch() -> Claim:
    small, large = (found("mistral", "vLLM", True, batch) for batch in (32, BATCH))
    return Claim(
        "sarathi-vllm-batch", _PUBLISHED + "section 5.2: almost the same for a maximum batch of 32, 64 and 128",
        "change of vLLM's capacity when its largest batch goes from 32 to 128, strict limit", None,
        round(100 * abs(large / small - 1), 1), "%", None, 10.0, _capacity_set_up("mistral", True),
    )


# --- the ablation (table 4) ---------------------------------------------------------------------------------------------

# Its artifact's osdi-experiments/table-6/scheduling_ablation.sh: so many requests at so many a second, three schedulers.
ABLATED, ABLATED_RATE, DRAWS = 128, 1.0, 9
TABLE_4 = {"hybrid": (0.53, 0.68), "chunk": (1.04, 0.17), "both": (0.76, 0.14)}  # chat: P50 TTFT, P99 TBT, s


@lru_cache(maxsize=4)
def ablated(which: str) -> tuple[tuple[float, float], ...]:
    """P50 TTFT and P99 TBT, s, on Yi-34B, for each of the draws.

    "hybrid": whole prompts beside decodes, as a budget of all that a prompt can have; "both": a budget of 512; "chunk":
    chunks of 512 and decodes take turns.
    """
    server, told = service("Yi-34B", "A100-80G", 2), []
    for seed in range(DRAWS):
        trace = capacity.chat(ABLATED, seed)(ABLATED_RATE)
        if which == "chunk":
            first, gaps = alternating.serve(trace, server, 512, BATCH)
            told.append((float(np.median(first)), float(np.quantile(gaps, 0.99))))
        else:
            budget = {"hybrid": capacity.LONGEST, "both": 512}[which]
            run = simulate(trace, server, policy("Sarathi-Serve", server, budget=budget))
            told.append((float(np.median(ttft(run))), float(itl_quantiles(run, (0.99,))[0])))
    return tuple(told)


_ABLATION = (f"Yi-34B on two A100-80G, {ABLATED} requests of its chat lengths at {ABLATED_RATE:g}/s, batch {BATCH}, budget 512, "
             f"as its artifact's script; {DRAWS} draws, seeds 0 to {DRAWS - 1}")
_METRICS = ("P50 TTFT", "P99 TBT")


def _medians(metric: int) -> str:
    ours = ", ".join(f"{np.median([d[metric] for d in ablated(which)]):.2f} s {name}" for which, name in
                     (("hybrid", "hybrid only"), ("chunk", "chunks only"), ("both", "both")))
    theirs = ", ".join(f"{TABLE_4[which][metric]:.2f}" for which in ("hybrid", "chunk", "both"))
    return f"medians of ours: {ours}; theirs {theirs} s"


def _ablation(metric: int, low: float, high: float | None) -> Claim:
    over, under = ("both", "hybrid") if metric == 0 else ("hybrid", "both")
    ratios = [a[metric] / b[metric] for a, b in zip(ablated(over), ablated(under), strict=True)]
    what = ("chunks and hybrid batches over that of hybrid batches only", "hybrid batches only over that with chunks")[metric]
    theirs = round(TABLE_4[over][metric] / TABLE_4[under][metric], 2)
    return Claim(
        f"sarathi-ablation-{('ttft', 'tbt')[metric]}", _PUBLISHED + "table 4, chat", f"{_METRICS[metric]} of {what}", theirs,
        round(float(np.median(ratios)), 2), "times", low, high, _ABLATION,
        f"{min(ratios):.1f} to {max(ratios):.1f} times over the draws; {_medians(metric)}",
    )


def _ablation_order(metric: int, ascending: tuple[str, str, str], words: str) -> Claim:
    draws = zip(*(ablated(which) for which in ascending), strict=True)
    held = sum(a[metric] <= b[metric] < c[metric] for a, b, c in draws)
    return Claim(
        f"sarathi-ablation-{('ttft', 'tbt')[metric]}-order", _PUBLISHED + "table 4, chat",
        f"draws of {DRAWS} in which {_METRICS[metric]} is ordered as theirs: {words}", None, held, "draws", DRAWS, None,
        _ABLATION, _medians(metric),
    )


# --- what chunks cost (figure 14) ---------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def overhead(budget: int, prompt: int) -> float:
    """Prefill time in chunks over prefill time whole, less one."""
    server = service("Yi-34B", "A100-80G", 2)
    trace = Trace(np.zeros(1), np.array([prompt]), np.array([1]))
    whole, chunked = (float(simulate(trace, server, Policy("one", slots=1, budget=b)).first_token_us[0]) for b in (None, budget))
    return chunked / whole - 1


def _overhead(budget: int, most: float) -> Claim:
    ours = max(overhead(budget, prompt) for prompt in (2_048, 4_096, 8_192))
    return Claim(
        f"sarathi-overhead-{budget}", _PUBLISHED + "figure 14: at most about 25 % at 512, nearly nothing at 2,048",
        f"most that chunks of {budget:,} tokens lengthen the prefill of 2K to 8K tokens", None, round(100 * ours, 1), "%", None,
        most,
        "Yi-34B on two A100-80G, one prompt, nothing beside it",
    )


# --- SARATHI (arXiv 2308.16369) -----------------------------------------------------------------------------------------

A6000 = "LLaMA-13B on one A6000: peak FLOP/s and bandwidth of its data sheet, efficiencies fitted on the A100; tile rounding on"


def _tile() -> Claim:
    server = service("LLaMA-13B", "A6000", tiles=True)
    at = [float(step_us(server, n, 0, attention_units(n))) for n in (256, 257)]
    return Claim(
        "sarathi-tile-257", "SARATHI (arXiv 2308.16369), figure 7: 69.8 to 92.33 ms",
        "how much longer a step takes with one token more than 256", 32.0, round(100 * (at[1] / at[0] - 1), 1), "%", 25.0, 35.0,
        A6000,
        "ours has stairs of 128 tokens of which 64 % is paid, as fitted on the A100; theirs is one model on one GPU",
    )


def gain(chunk: int, batch: int, ratio: float, total: int = 1_024) -> float:
    """End-to-end gain of piggybacked decodes over prompts and decodes apart, when prompt : reply tokens are `ratio`.

    A request has `total` tokens. Apart: its prompt whole, its reply in decode steps of `batch`. Piggybacked: chunks of
    `chunk` tokens less the batch − 1 decodes beside them; what is left over, prompts or decodes, runs apart.
    """
    server = service("LLaMA-13B", "A6000", tiles=True)
    prompt = round(total * ratio / (1 + ratio))
    reply, context = total - prompt, total // 2
    decode = float(step_us(server, batch, batch * context, requests=batch)) / batch  # a token
    alone = float(step_us(server, prompt, 0, attention_units(prompt))) + reply * decode
    size = chunk - (batch - 1)
    chunks, mixed, done = -(-prompt // size), 0.0, 0
    beside = min(batch - 1, reply / chunks)  # decodes a chunk, on average
    for _ in range(chunks):
        part = min(size, prompt - done)
        mixed += float(step_us(server, part + beside, round(beside * context), attention_units(part, done), round(1 + beside)))
        done += part
    return alone / (mixed + max(0.0, reply - beside * chunks) * decode)


@lru_cache(maxsize=4)
def best_ratio(chunk: int, batch: int) -> tuple[float, float]:
    """The prompt : reply ratio with the largest gain, and that gain."""
    ratios = np.geomspace(2, 100, 120)
    gains = [gain(chunk, batch, float(ratio)) for ratio in ratios]
    return float(ratios[int(np.argmax(gains))]), float(max(gains))


def _ratio_claim(chunk: int, theirs_gain: float) -> Claim:
    batch = 18
    best, most = best_ratio(chunk, batch)
    closed = chunk / (batch - 1)
    return Claim(
        f"sarathi-best-ratio-{chunk}", "SARATHI (arXiv 2308.16369), section 4 and figure 9: the gain peaks at C/(B − 1)",
        f"ratio of prompt to reply tokens with the largest gain, chunk {chunk}, batch {batch}", round(closed, 1), round(best, 1),
        "", 0.8 * closed, 1.2 * closed, A6000 + "; 1,024 tokens a request", f"gain there: ours {most:.2f}, theirs "
        f"{theirs_gain:g} times",
    )


CLAIMS: dict[str, Callable[[], Claim]] = {
    **{f"chunk-{name}-{budget or 'alone'}": partial(_stall, budget, which)
       for budget in (None, *STALL) for which, name in enumerate(("gap", "ttft"))},
    "sarathi-mistral-strict-over-vllm": lambda: _ratio("mistral", True, "vLLM", 2.6, 2.0, 3.6, "abstract (3.5 in section 5.2)"),
    "sarathi-mistral-relaxed-over-vllm": lambda: _ratio("mistral", False, "vLLM", None, 1.1, 1.8, "figures 10 and 12, read off"),
    "sarathi-yi-strict-over-vllm": lambda: _ratio("yi", True, "vLLM", 3.7, 2.8, 4.5, "abstract, section 5.1"),
    "sarathi-yi-relaxed-over-vllm": lambda: _ratio("yi", False, "vLLM", 1.65, 1.3, 2.0, "section 5.2: 1.65 at 1 s"),
    "sarathi-mistral-strict-over-orca": lambda: _ratio("mistral", True, "Orca", None, None, None, "figure 10a: bars of 2.78 "
        "and 2.15"),
    "sarathi-yi-strict-over-orca": lambda: _ratio("yi", True, "Orca", 4.0, None, None, "section 5.1"),
    "sarathi-vllm-batch": _batch,
    "sarathi-ablation-ttft": lambda: _ablation(0, 1.0, None),
    "sarathi-ablation-tbt": lambda: _ablation(1, 4.0, 8.0),
    "sarathi-ablation-ttft-order": lambda: _ablation_order(0, ("hybrid", "both", "chunk"), "hybrid only, both, chunks only"),
    "sarathi-ablation-tbt-order": lambda: _ablation_order(1, ("both", "chunk", "hybrid"), "both, chunks only, hybrid only"),
    "sarathi-overhead-512": lambda: _overhead(512, 25.0),
    "sarathi-overhead-2048": lambda: _overhead(2_048, 5.0),
    "sarathi-tile-257": _tile,
    "sarathi-best-ratio-256": lambda: _ratio_claim(256, 1.27),
    "sarathi-best-ratio-512": lambda: _ratio_claim(512, 1.23),
}
