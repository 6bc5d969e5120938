"""`run`: one trace served under several policies, side by side, as a table for people or JSON for machines."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim import workloads
from sim.cli import options, text
from sim.cli.options import GENERATED, UsageError
from sim.engine import Engine
from sim.metrics import Ledger, goodput, idle_step_share, ledger, summary
from sim.policy import Policy
from sim.readers import READERS, ReaderError
from sim.run import REFUSED, UNFINISHED, Run
from sim.service import Service
from sim.trace import Trace, TraceError

Say = Callable[[str], None]

_SLICES, _MANY = 50, 50_000  # runs of more requests than this show how far they are

# JSON key, key in sim.metrics.summary, label, unit in the table, factor from the JSON's unit to it
METRICS: tuple[tuple[str, str, str, str, float], ...] = (
    ("makespan_s", "makespan", "makespan", "s", 1),
    ("output_tokens_per_s", "tokens_per_s", "output throughput", "tokens/s", 1),
    ("requests_per_s", "requests_per_s", "request throughput", "requests/s", 1),
    ("queue_wait_p50_s", "queue_wait_p50", "queue wait, p50", "s", 1),
    ("queue_wait_p99_s", "queue_wait_p99", "queue wait, p99", "s", 1),
    ("ttft_p50_s", "ttft_p50", "TTFT, p50", "s", 1),
    ("ttft_p99_s", "ttft_p99", "TTFT, p99", "s", 1),
    ("itl_p50_s", "itl_p50", "ITL, p50", "ms", 1e3),
    ("itl_p99_s", "itl_p99", "ITL, p99", "ms", 1e3),
    ("itl_max_s", "itl_max", "ITL, largest", "ms", 1e3),
    ("tpot_p50_s", "tpot_p50", "TPOT, p50", "ms", 1e3),
    ("tpot_p99_s", "tpot_p99", "TPOT, p99", "ms", 1e3),
    ("e2e_p50_s", "e2e_p50", "E2E latency, p50", "s", 1),
    ("e2e_p99_s", "e2e_p99", "E2E latency, p99", "s", 1),
    ("goodput_per_s", "goodput", "goodput", "requests/s", 1),
    ("idle_time_share", "idle_share", "idle share of slot-time", "%", 100),
    ("idle_step_share", "idle_step_share", "idle share of slot-steps", "%", 100),
    ("preemptions", "preemptions", "preemptions", "", 1),
    ("recomputed_tokens", "recomputed", "tokens computed anew after them", "tokens", 1),
    ("cached_tokens", "cached", "prompt tokens found in the cache", "tokens", 1),
    ("refused", "refused", "refused: can never fit", "requests", 1),
    ("unfinished", "unfinished", "not finished", "requests", 1),
)
_COUNTS = ("preemptions", "recomputed_tokens", "cached_tokens", "refused", "unfinished")  # a row only where one is above 0
LABELS = {
    "prefill": "prefill", "decode": "decode", "stalled": "stalled: the step holds prompts only",
    "budget": "free: the token budget is spent", "held": "finished, held by its batch",
    "filling": "free: the batch waits to fill", "late": "free: the batch left without who waits",
    "memory": "free: too few KV blocks for who waits",
    "boundary": "free: who waits joins at the step's end", "nothing": "free: nobody waits",
}  # fmt: skip

# JSON key, label and unit of a policy's settings
SETTINGS = (("slots", "slots", ""), ("fill_timeout_s", "fill timeout", "s"), ("budget", "token budget", "tokens"),
            ("prompts", "prompts", ""), ("order", "order", ""), ("blocks", "KV blocks", ""),
            ("block_size", "block size", "tokens"), ("prefix_cache", "prefix cache", ""), ("longest", "reserved for", "tokens"),
            ("watermark", "watermark", ""), ("swap_us", "swap, per block", "µs"))


class BadInputError(ValueError):
    """What was given cannot be read or served; the message says which file, line and column, or which request."""


@dataclass(frozen=True)
class Outcome:
    """One policy's run and its numbers: `metrics` by JSON key, in s and shares."""

    policy: Policy
    metrics: dict[str, float]
    ledger: Ledger


@dataclass(frozen=True)
class Comparison:
    """One trace and one service under several policies. seed: None where no chance entered."""

    trace: Trace
    source: dict[str, Any]
    seed: int | None
    service: Service
    outcomes: tuple[Outcome, ...]


def compare(asked: argparse.Namespace, say: Say) -> Comparison:
    """Do what was asked. UsageError for options that do not go together, BadInputError for the rest."""
    plans, server = options.asked_plans(asked), options.asked_server(asked)
    limits = None
    if asked.ttft_limit is not None or asked.tpot_limit is not None:
        limits = tuple(math.inf if limit is None else limit for limit in (asked.ttft_limit, asked.tpot_limit))
    trace, source = _read(asked, say) if asked.trace is not None else _generate(asked)
    try:
        if asked.start or asked.length or asked.limit:
            trace = trace.window(asked.start, asked.length, asked.limit)
        longest = int((trace.prompt + trace.output).max())
        chosen = [plan(server, longest) for plan in plans]
        outcomes = tuple(_outcome(_serve(trace, server, policy, say), limits, say) for policy in chosen)
    except ValueError as error:
        raise BadInputError(f"{source.get('file') or 'generated requests'}: {error}") from None
    return Comparison(trace, source, asked.seed if asked.trace is None else None, server, outcomes)


def _read(asked: argparse.Namespace, say: Say) -> tuple[Trace, dict[str, Any]]:
    given = [f"--{key.replace('_', '-')}" for key in GENERATED if vars(asked)[key] is not None]
    if given:
        raise UsageError(f"{', '.join(given)}: only for generated requests, without --trace")
    shown = "standard input" if asked.trace == "-" else text.clean(asked.trace)
    say(f"reading {shown}")
    try:
        trace = READERS[asked.format](sys.stdin.buffer if asked.trace == "-" else Path(asked.trace))
    except OSError as error:
        raise BadInputError(f"{shown}: {error.strerror or error}") from None
    except (ReaderError, TraceError) as error:
        raise BadInputError(f"{shown}: {error}") from None
    return trace, {"file": shown, "format": asked.format}


def _generate(asked: argparse.Namespace) -> tuple[Trace, dict[str, Any]]:
    given = vars(asked)
    how: dict[str, Any] = {key: default if given[key] is None else given[key] for key, default in GENERATED.items()}
    n, rate, seed = how["requests"], how["rate"], asked.seed
    if asked.burstiness is not None and how["arrivals"] != "burst":
        raise UsageError("--burstiness: only with --arrivals burst")
    arrivals = {
        "poisson": lambda: workloads.poisson(n, rate, seed),
        "burst": lambda: workloads.gamma_bursts(n, rate, how["burstiness"], seed, exact_span=False),
        "even": lambda: workloads.evenly_spaced(n, rate),
        "once": lambda: workloads.all_at_once(n),
    }[how["arrivals"]]()
    prompt = workloads.lognormal(n, how["prompt_mean"], how["prompt_cv"], seed, of="prompt")
    output = workloads.lognormal(n, how["output_mean"], how["output_cv"], seed, of="output")
    if how["arrivals"] != "burst":
        del how["burstiness"]
    if how["arrivals"] == "once":
        del how["rate"]
    try:
        return workloads.workload(arrivals, prompt, output, "generated"), {"generated": how}
    except TraceError as error:
        raise UsageError(str(error)) from None


def _serve(trace: Trace, server: Service, policy: Policy, say: Say) -> Run:
    """sim.engine.simulate, in slices of the trace's time where it takes long enough to show how far it is."""
    engine = Engine(server, policy)
    say(f"{policy.name}: {len(trace):,} requests")
    engine.submit(trace)
    engine.close()
    if len(trace) > _MANY:
        for part in range(1, _SLICES):
            engine.advance(float(trace.arrival_us[len(trace) * part // _SLICES]))
            say(f"{policy.name}: {100 * part // _SLICES} % of the requests have arrived")
    engine.advance(math.inf)
    return engine.run(trace)


def _outcome(run: Run, limits: tuple[float, ...] | None, say: Say) -> Outcome:
    say(f"{run.policy.name}: metrics")
    found = summary(run) | {"idle_step_share": idle_step_share(run)}
    found |= {"preemptions": run.preemptions.sum(), "recomputed": run.recomputed.sum(), "cached": run.cached.sum(),
              "refused": (run.outcome == REFUSED).sum(), "unfinished": (run.outcome == UNFINISHED).sum()}
    if limits:
        found["goodput"] = goodput(run, *limits)
    metrics = {key: found[name] for key, name, *_ in METRICS if name in found}
    return Outcome(run.policy, {key: int(value) if key in _COUNTS else value for key, value in metrics.items()}, ledger(run))


def to_json(c: Comparison) -> dict[str, Any]:
    """Plain data with stable keys: version, trace, seed, service, runs. Times in s; null: no such quantity, or no limit."""
    return {
        "version": 1,
        "trace": {**c.source, **describe(c.trace)},
        "seed": c.seed,
        "service": {"model": c.service.model.name, "gpu": c.service.gpu.name, "tp": c.service.tp,
                    "overhead_us": c.service.overhead_us, "overhead_per_request_us": c.service.overhead_per_request_us,
                    "tiles": c.service.tiles},
        "runs": [{"policy": settings(o.policy), "metrics": {key: _finite(value) for key, value in o.metrics.items()},
                  "ledger": {"slot_s": o.ledger.seconds, "total_slot_s": o.ledger.total}} for o in c.outcomes],
    }


def describe(trace: Trace) -> dict[str, float]:
    """What a trace holds: requests, the time between its first and last arrival, mean lengths."""
    return {"requests": len(trace), "span_s": float(trace.arrival[-1] - trace.arrival[0]),
            "prompt_mean": float(trace.prompt.mean()), "output_mean": float(trace.output.mean())}


def settings(policy: Policy) -> dict[str, Any]:
    """The policy's settings that play a part; null: no limit."""
    shared = {"name": policy.name, "batching": policy.batching, "slots": policy.slots}
    if policy.batching == "static":
        shared |= {"fill_timeout_s": _finite(policy.fill_timeout)}
    else:
        shared |= {"budget": policy.budget, "prompts": policy.prompts}
    memory = policy.memory
    if memory is None:
        return shared
    shared |= {"blocks": memory.blocks, "block_size": memory.block_size}
    if memory.reserve == "maximum":
        return shared | {"longest": policy.longest}
    shared |= {"order": policy.order.replace("_", "-"), "prefix_cache": memory.prefix_cache, "watermark": memory.watermark}
    return shared if memory.swap_us is None else shared | {"swap_us": memory.swap_us}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def table(c: Comparison) -> str:
    """The comparison as text: policies as columns, metrics with their units as rows, then where the slots' time went."""
    d = describe(c.trace)
    number = text.number
    source = c.source.get("file") or f"generated, seed {c.seed}"
    head = (
        f"{source}: {len(c.trace):,} requests over {number(d['span_s'])} s, "
        f"on average {number(d['prompt_mean'])} prompt and {number(d['output_mean'])} output tokens\n"
        f"{c.service.model.name} on {c.service.tp} × {c.service.gpu.name}"
    )
    rows = [["", "", *(o.policy.name for o in c.outcomes)]]
    for key, label, unit in SETTINGS:
        if any(key in settings(o.policy) for o in c.outcomes):
            rows.append([label, unit, *(_setting(settings(o.policy), key) for o in c.outcomes)])
    rows.append([""] * len(rows[0]))
    for key, _, label, unit, factor in METRICS:
        if key in c.outcomes[0].metrics and (key not in _COUNTS or any(o.metrics[key] for o in c.outcomes)):
            shown = (lambda count: f"{count:,}") if key in _COUNTS else number
            rows.append([label, unit, *(shown(factor * o.metrics[key]) for o in c.outcomes)])
    rows.append([""] * len(rows[0]))
    rows.append(["slot-time, slots × makespan", "slot-s", *(number(o.ledger.total) for o in c.outcomes)])
    for role, label in LABELS.items():
        if any(o.ledger.seconds.get(role) for o in c.outcomes):
            rows.append(["  " + label, "%", *(_share(o.ledger, role) for o in c.outcomes)])
    return head + "\n\n" + text.table(rows, left=2)


def _share(ledger: Ledger, role: str) -> str:
    return f"{100 * ledger.share(role):.2f}" if role in ledger.seconds else "0.00"


def _setting(settings: dict[str, Any], key: str) -> str:
    if key not in settings:
        return "–"
    value = settings[key]
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else f"{value:,g}" if isinstance(value, int | float) else str(value)
