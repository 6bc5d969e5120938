"""How long a fleet takes: Mooncake's conversation trace on 16 replicas behind one router, with the step times of all."""

from __future__ import annotations

import time
from pathlib import Path

from bench.report import Goal, Row
from sim.fleet import FleetRun, simulate_fleet
from sim.policy import Memory, vllm
from sim.readers import mooncake
from sim.service import service

TRACE = Path(__file__).parents[2] / "shared" / "traces" / "mooncake_conversation_trace.jsonl"
REPLICAS, SLOTS, BUDGET = 16, 256, 8192
SERVICE = service("Llama-3-8B", "A100-80G")
POLICY = vllm(SLOTS, BUDGET, Memory(SERVICE.blocks(mooncake.BLOCK), mooncake.BLOCK, prefix_cache=True))
ROUTERS = ("cache_aware", "dynamo")  # with a tree of its own; with cache events from every replica
MOST_S, ROUNDS = 3.0, 3


def measure() -> tuple[list[Row], list[Goal], str]:
    """The rows, the goals, and a line on what was measured; none where the trace is not there. The reading is not in it."""
    if not TRACE.exists():
        return [], [], f"Fleet: not measured, as {TRACE} is not there."
    trace = mooncake.read(TRACE)
    rows: list[Row] = []
    goals, said = [], []
    for router in ROUTERS:
        best, run = float("inf"), None
        for _ in range(ROUNDS):
            start = time.process_time()
            run = simulate_fleet(trace, SERVICE, POLICY, router, REPLICAS)
            best = min(best, time.process_time() - start)
        case = f"{len(trace):,} requests of Mooncake's conversations, {REPLICAS} replicas, {router}"
        rows.append({"case": case, "requests": len(trace), "us_per_request": best / len(trace) * 1e6, "seconds": best,
                     "plain_us": None, "simpy_us": None, "times_plain": None, "times_simpy": None})
        goals.append(Goal(f"{case}, s", best, at_most=MOST_S))
        said.append(f"{case}: {best:.2f} s; {what_happened(run)}.")
    return rows, goals, "\n".join(said)


def what_happened(run: FleetRun | None) -> str:
    """What the router achieved, one line."""
    assert run is not None
    steps = sum(int(one.steps.count.sum()) for one in run.runs if one is not None)
    return (f"{steps:,} steps, {100 * run.hit_rate:.1f} % of the prompt tokens found, {run.imbalance:.2f} times the mean of "
            "requests on the busiest replica")
