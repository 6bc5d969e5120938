"""Replays what vLLM's scheduler decided on a recorded trace, and says where we decide otherwise.

Format and rules: ../shared/peers/vllm/FORMAT.md and SEMANTICS.md. Every number is compared as it stands, in whole µs.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.engine import Engine
from sim.readers.recording import policy_of, trace_of
from sim.run import CANCELLED, FINISHED, Run
from sim.service import Affine

ENDS = {FINISHED: "length", CANCELLED: "abort"}


@dataclass(frozen=True)
class Replay:
    """How a file went: its steps, the rows they were stored in, and the first difference (empty: none)."""

    name: str
    steps: int
    rows: int
    difference: str


def replay(path: Path, longest_stretch: int = 1 << 60) -> Replay:
    """Serve the file's trace and compare. OSError, ValueError and KeyError for a file that is no recording."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    recording = json.loads(text)
    config, requests, output = recording["input"]["config"], recording["input"]["trace"], recording["output"]
    order = sorted(range(len(requests)), key=lambda i: (requests[i]["arrival_us"], i))
    width = max(2, len(str(len(requests) - 1)))
    names = [f"r{i:0{width}d}" for i in order]
    clock = recording["input"]["step_time"]
    capped = (output["stalled"] or {}).get("why") == "max_steps"  # the recording was cut after so many steps
    engine = Engine(
        Affine(clock["base_us"], clock["per_token_us"], clock["per_request_us"]), policy_of(config), record_grants=True,
        longest_stretch=1 if capped else longest_stretch, most_rows=output["num_steps"] if capped else None,
    )
    trace = trace_of([requests[i] for i in order], order)
    engine.submit(trace)
    engine.advance(math.inf)
    run = engine.run(trace)
    name = path.name.removesuffix(".gz").removesuffix(".json")
    difference = (
        _steps_differ(run, names, output) or _requests_differ(run, names, output) or _tokens_differ(run, names, output)
        or _ends_differ(run, output)
    )
    return Replay(name, int(run.steps.count.sum()), len(run.steps.count), difference)


def _steps_differ(run: Run, names: list[str], output: dict[str, Any]) -> str:
    """Compare step by step: times, grants in order, free blocks, hits and victims; without steps, their digest."""
    assert run.grants is not None and run.policy.memory is not None
    theirs = [step for step in output.get("steps", []) if step["k"] is not None]
    size, digest, k = run.policy.memory.block_size, hashlib.sha256(), 0
    computed, entering = run.cached.tolist(), _entering(run)
    events = list(run.events)
    for row, grants in enumerate(run.grants):
        start, count, first = run.steps.start_us[row], int(run.steps.count[row]), run.steps.first_us[row]
        victims, hits = [], {}
        while events and events[0].at_us <= start and (grants or events[0].kind != "admitted"):
            event = events.pop(0)
            if event.kind == "preempted":
                victims.append([names[event.request], event.tokens, event.blocks])
                if not grants and row + 1 < len(run.grants) and run.steps.start_us[row + 1] == start:
                    break  # an empty step and the one after it share their start
            elif event.kind == "admitted":
                computed[event.request] = event.tokens
                if event.tokens:
                    hits[names[event.request]] = event.tokens
        if grants:
            hits |= {names[i]: computed[i] for i in entering.pop(float(start), []) if computed[i]}
        blocks = [
            sum(-(-(computed[i] + m * tokens) // size) for i, tokens in grants) for m in range(1, count + 1)
        ]
        for m in range(count):
            t0, t1 = start + m * first, start + (m + 1) * first
            free = int(run.steps.free[row]) + blocks[-1] - blocks[m]
            mine: dict[str, Any] = {"t0": t0, "t1": t1, "sched": [[names[i], tokens] for i, tokens in grants], "free": free,
                                    "preempted": victims if m == 0 else [], "hit_tokens": hits if m == 0 else {}}
            digest.update(f"{k}|{t0:.0f}|{t1:.0f}|{','.join(f'{name}:{n}' for name, n in mine['sched'])}\n".encode())
            if theirs:
                if k >= len(theirs):
                    return f"step {k}: {mine}, but theirs ended"
                step = theirs[k]
                real = {"t0": step["t0"], "t1": step["t1"], "sched": [list(item) for item in step["sched"].items()],
                        "free": step["free"], "preempted": step.get("preempted", []),
                        "hit_tokens": {name: n for name, n in step.get("hit_tokens", {}).items() if n}}
                for key, value in real.items():
                    if mine[key] != value:
                        return f"step {k}: {key} {mine[key]}, theirs {value}"
            k += 1
        for i, tokens in grants:
            computed[i] += count * tokens
    if theirs and k != len(theirs):
        return f"{k} steps, theirs {len(theirs)}"
    if k != output["num_steps"]:
        return f"{k} steps, theirs {output['num_steps']}"
    if digest.hexdigest() != output["steps_sha256"]:
        return "the digest of the steps differs"
    return ""


def _entering(run: Run) -> dict[float, list[int]]:
    """Who was first admitted at each time, µs."""
    found: dict[float, list[int]] = {}
    for i, at in enumerate(run.admitted_us.tolist()):
        found.setdefault(at, []).append(i)
    return found


def _requests_differ(run: Run, names: list[str], output: dict[str, Any]) -> str:
    theirs = {request["id"]: request for request in output["requests"]}
    for i, name in enumerate(names):
        request = theirs[name]
        mine = {
            "admit_us": _time(run.admitted_us[i]), "first_token_us": _time(run.first_token_us[i]),
            "finish_us": _time(run.finished_us[i]), "finish_reason": ENDS.get(int(run.outcome[i])),
            "num_preemptions": int(run.preemptions[i]),
            "cached_tokens_first_admit": None if math.isnan(run.admitted_us[i]) else int(run.cached[i]),
        }
        for key, value in mine.items():
            if value != request[key]:
                return f"request {name}: {key} {value}, theirs {request[key]}"
    return ""


def _tokens_differ(run: Run, names: list[str], output: dict[str, Any]) -> str:
    """When each token came, in files that tell it, and how many there were."""
    assert run.grants is not None
    prompt, computed, told = run.trace.prompt.tolist(), run.cached.tolist(), [list[float]() for _ in names]
    events = [event for event in run.events if event.kind in ("preempted", "admitted")]
    for row, grants in enumerate(run.grants):
        start, count, first = run.steps.start_us[row], int(run.steps.count[row]), run.steps.first_us[row]
        while events and events[0].at_us <= start and (grants or events[0].kind != "admitted"):
            event = events.pop(0)
            computed[event.request] = event.tokens if event.kind == "admitted" else 0
        for m in range(count):
            end = start + (m + 1) * first
            for i, tokens in grants:
                computed[i] += tokens
                gone = run.outcome[i] == CANCELLED and run.finished_us[i] <= end
                if computed[i] >= prompt[i] + len(told[i]) and not gone:
                    told[i].append(float(end))
    theirs = {request["id"]: request for request in output["requests"]}
    for name, times in zip(names, told, strict=True):
        request = theirs[name]
        if len(times) != request["num_output_tokens"]:
            return f"request {name}: {len(times)} tokens, theirs {request['num_output_tokens']}"
        for nth, (mine, real) in enumerate(zip(times, request.get("token_us") or times, strict=True)):
            if mine != real:
                return f"request {name}: token {nth} at {mine}, theirs {real}"
    return ""


def _ends_differ(run: Run, output: dict[str, Any]) -> str:
    recomputed, theirs = int(run.recomputed.sum()), output["totals"]["recomputed_tokens"]
    if recomputed != theirs:
        return f"{recomputed} tokens recomputed, theirs {theirs}"
    if bool(run.stopped) != (output["stalled"] is not None):
        return f"stopped: {run.stopped or 'no'}; theirs: {output['stalled']}"
    return ""


def _time(us: float) -> float | None:
    return None if math.isnan(us) else us
