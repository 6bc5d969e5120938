"""Replay of the real sglang-router's decisions: the same prompts and loads must go to the same workers.

A recording names its policy, the parameters that differ from the command line's defaults, the router's own order of
workers, and for each request session, turn, the loads before it and the worker (peers/sglang-router/golden/README.md).
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sim import routers
from sim.routers import Arrival, Router
from tests.peers import blake3

KNOBS = {"cache_threshold": "threshold", "balance_abs_threshold": "apart", "balance_rel_threshold": "ratio"}
NO_PART = {"policy", "eviction_interval_secs"}  # of the parameters: no tree grew to where it is cut
AT_RANDOM = {
    "random": "draws at random",
    "power_of_two": "draws two workers at random",
    "manual": "places every new key at random, or at random among equals",
    "bucket": "recorded nowhere, so never compared",
}


class NotReplayable(Exception):
    """The file is sound, but nothing in it is decided by a rule alone."""


class Broken(Exception):
    """The file contradicts itself or its workload."""


@dataclass(frozen=True)
class Replayed:
    """How many decisions agree, and the first that does not."""

    agree: int
    difference: str = ""


def read(path: Path) -> Any:
    """The JSON of a file, packed or not."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return json.loads(text)


def replay(path: Path) -> Replayed:
    """Decide every request of the file anew. NotReplayable says why not; any other exception: the file is broken."""
    recording = read(path)
    if not isinstance(recording, dict) or not {"policy", "requests", "router_worker_order"} <= recording.keys():
        raise NotReplayable("holds no decisions")
    policy, requests, workers = recording["policy"], recording["requests"], recording["n_workers"]
    if policy in AT_RANDOM:
        raise NotReplayable(f"{policy} {AT_RANDOM[policy]}")
    if requests and all("worker" not in request for request in requests):
        raise NotReplayable(f"{policy}: the router refused every request")
    if not requests:
        raise Broken("no requests")
    order = recording["router_worker_order"]
    if sorted(order) != list(range(workers)):
        raise Broken(f"router_worker_order {order} is no order of {workers} workers")
    workload = _workload(path, recording["workload"])
    decide, keys = _router(recording, workload)
    for i, request in enumerate(requests):
        text, loads, theirs = _prompt(workload, request, i), request["loads_before"], request["worker"]
        if len(loads) != workers or theirs not in order:
            raise Broken(f"request {i}: worker {theirs} and loads {loads} are not of {workers} workers")
        if policy == "cache_aware" and request.get("router_reported_loads", loads) != loads:
            raise Broken(f"request {i}: the router reported {request['router_reported_loads']}, loads_before says {loads}")
        session = keys[request["session"]]
        ours = order[decide(Arrival(0.0, session, len(text), [loads[worker] for worker in order], content=partial(str, text)))]
        if ours != theirs:  # from here on the two routers have seen different things
            return Replayed(i, f"request {i} went to worker {theirs}, here to {ours}")
    return Replayed(len(requests))


def _router(recording: dict[str, Any], workload: dict[str, Any]) -> tuple[Router, list[int]]:
    """The router of a recording, its workers in the router's order; and the hash of each session's key."""
    policy, parameters = recording["policy"], recording["params"]
    sessions = [session["id"] for session in workload["sessions"]]
    keys = list(range(len(sessions)))
    unknown = parameters.keys() - NO_PART - (KNOBS.keys() if policy == "cache_aware" else set())
    if parameters.get("max_tree_size", 0) >= sum(request["chars"] for request in recording["requests"]):
        unknown -= {"max_tree_size"}  # no tree grows beyond it
    if unknown:
        raise NotReplayable(f"{policy} with {', '.join(sorted(unknown))}, which is not modelled")
    if policy == "cache_aware":
        return routers.cache_aware(**{KNOBS[name]: value for name, value in parameters.items() if name in KNOBS}), keys
    if policy == "round_robin":
        return routers.round_robin(), keys
    if policy == "consistent_hashing":
        if not recording["session_key_header"]:
            raise NotReplayable("consistent_hashing without a key draws at random")
        itself: Callable[[int], int] = int  # the keys are hashed already
        keys = [blake3.number(str(session)) for session in sessions]
        if any(model != "unknown" for model in recording["model_ids"]):
            return routers.session_hash(itself), keys
        urls = [recording["worker_urls"][worker] for worker in recording["router_worker_order"]]
        return routers.consistent_hash(150, itself, lambda worker, point: blake3.number(f"{urls[worker]}#{point}")), keys
    raise NotReplayable(f"{policy} is not modelled")


def _workload(path: Path, name: str) -> dict[str, Any]:
    for file in (path.with_name(name), path.with_name(name + ".gz")):
        if file.exists():
            return dict(read(file))
    raise Broken(f"its workload {name} is not beside it")


def _prompt(workload: dict[str, Any], request: dict[str, Any], place: int) -> str:
    """The text of a request, checked against its length and hash, and its place against the workload's order."""
    expected = workload["order"][place]
    if request["i"] != place or any(request[name] != expected[name] for name in ("session", "turn")):
        raise Broken(f"request {place} is not the one that its workload has there")
    session, turn = workload["sessions"][request["session"]], request["turn"]
    text = workload["systems"][session["system"]]
    for earlier in session["turns"][:turn]:
        text += f" USER {earlier['user']} BOT {earlier['reply']}"
    text += f" USER {session['turns'][turn]['user']} BOT"
    if len(text) != request["chars"] or hashlib.sha256(text.encode()).hexdigest()[:12] != request["sha"]:
        raise Broken(f"request {place}: its text is not the one that was sent")
    return text


def main(folder: Path) -> int:
    """Replay every file of a folder; print what agrees, and return 1 unless something was replayed and all of it agrees."""
    agree = differ = decisions = 0
    files = sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])
    for path in files:
        try:
            result = replay(path)
        except NotReplayable as reason:
            print(f"{path.name}: skipped: {reason}")
            continue
        except Exception as error:  # whatever a broken file can raise
            print(f"{path.name}: not a recording that can be replayed: {error!r}")
            differ += 1
            continue
        decisions += result.agree
        agree += not result.difference
        differ += bool(result.difference)
        print(f"{path.name}: {result.agree} decisions agree{result.difference and ', then ' + result.difference}")
    if not agree and not differ:
        print(f"no recording in {folder} could be replayed")
    print(f"{decisions} equal decisions in {agree + differ} files")
    print(f"{agree} agree, {differ} differ")
    return 0 if agree and not differ else 1
