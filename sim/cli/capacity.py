"""`capacity`: the largest rate at which each policy keeps the limits, as a table, JSON or CSV."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Callable
from typing import Any

from sim import capacity
from sim.capacity import Capacity
from sim.cli import options, text
from sim.cli.run import BadInputError

Found = dict[str, Capacity]


def add_to(parser: argparse.ArgumentParser) -> None:
    """Declare every option of `capacity`."""
    add = parser.add_argument_group("limits").add_argument
    positive = options.real(1e-6, 1e6)
    add("--slo-tbt", type=positive, required=True, metavar="S", help="P99 of the time between tokens, at most")
    add("--slo-delay", type=positive, default=2.0, metavar="S",
        help="median scheduling delay, at most (default: %(default)g, Sarathi-Serve's)")
    add = parser.add_argument_group("requests").add_argument
    add("--requests", type=options.whole(1024, 100_000), default=2048, metavar="N",
        help="chat requests at each rate, at least 1,024 (default: %(default)s)")
    add("--seed", type=options.whole(0, 2**63 - 1), default=0, metavar="S", help="another seed draws others (default: "
        "%(default)s)")
    options.add_server(parser)
    options.add_policies(parser, "sarathi-serve:slots=128,vllm-v0:slots=128,orca:slots=16")


def find(asked: argparse.Namespace, say: Callable[[str], None]) -> Found:
    """Search for each policy. UsageError for options that do not go together, BadInputError for what cannot be served."""
    plans, server = options.asked_plans(asked), options.asked_server(asked)
    rule, requests = capacity.Rule(asked.slo_tbt, asked.slo_delay), capacity.chat(asked.requests, asked.seed)
    found: Found = {}
    try:
        for plan in plans:
            policy = plan(server, capacity.LONGEST)

            def report(so_far: Capacity, name: str = policy.name) -> None:
                tried = len(so_far.points)
                say(f"{name}: {tried} rates, between them {so_far.rate:.3g}/s holds; {so_far.per_second:,.0f} requests "
                    f"simulated a s")

            found[policy.name] = capacity.search(requests, server, policy, rule, report=report)
    except ValueError as error:
        raise BadInputError(str(error)) from None
    return found


def table(found: Found) -> str:
    """A row for each policy, and below it every rate that was tried."""
    rows = [["policy", "capacity, requests/s", "rates tried", "simulated a s"]]
    rows += [[name, text.number(c.rate, 3), str(len(c.points)), f"{c.per_second:,.0f}"] for name, c in found.items()]
    tried = [["policy", "requests/s", "P99 TBT, s", "median delay, s", "median TTFT, s", "holds"]]
    for name, c in found.items():
        for p in c.points:
            numbers = (p.rate, p.tbt_p99_s, p.delay_p50_s, p.ttft_p50_s)
            tried.append([name, *(text.number(x, 4) for x in numbers), "yes" if p.holds else "no"])
    return text.table(rows) + "\n\n" + text.table(tried)


def to_json(asked: argparse.Namespace, found: Found) -> dict[str, Any]:
    """{limits, requests, seed, model, gpu, tp, policies: [{policy, capacity, points: [...]}]}; times in s, rates in 1/s."""
    return {
        "limits": {"tbt_p99_s": asked.slo_tbt, "delay_p50_s": asked.slo_delay}, "requests": asked.requests, "seed": asked.seed,
        "model": asked.model, "gpu": asked.gpu, "tp": asked.tp,
        "policies": [
            {"policy": name, "capacity": c.rate, "points": [
                {key: value if value != float("inf") else None for key, value in vars(p).items()} for p in c.points
            ]} for name, c in found.items()
        ],
    }


def to_csv(found: Found) -> str:
    """policy,rate,tbt_p99_s,delay_p50_s,ttft_p50_s,holds: a line for each rate that was tried."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(["policy", "rate", "tbt_p99_s", "delay_p50_s", "ttft_p50_s", "holds"])
    for name, c in found.items():
        lines.writerows([name, *(repr(float(x)) for x in (p.rate, p.tbt_p99_s, p.delay_p50_s, p.ttft_p50_s)), int(p.holds)]
                        for p in c.points)
    return out.getvalue()
