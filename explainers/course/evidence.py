"""What the course is held to: every claim of the record in groups, and the replays of real engines."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from sim.record import CLAIMS, Claim

ROOT = Path(__file__).resolve().parents[2]

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Step times, against measured kernels", ("step-time-*", "tile-*")),
    ("Batching: Orca's workload", ("orca-*",)),
    ("Memory: PagedAttention", ("paged-*",)),
    ("Chunked prefill: the calibration's table", ("chunk-*",)),
    ("Chunked prefill: SARATHI and Sarathi-Serve", ("sarathi-*",)),
    ("Who goes first: shortest first", ("shortest-first-*",)),
    ("Routing: SGLang, llm-d, KubeAI, Mooncake", ("route-*",)),
)
"""Headings, and the patterns of the claims under them; every claim falls under one (a test says so)."""

NOT_MODELLED = (
    "The network, tokenising, and the engine's own time per step, unless a lesson has a knob for it.",
    "Speculative decoding, mixture-of-experts models, quantised weights and caches, LoRA adapters, multimodal prompts.",
    "Pipeline parallelism, prefill and decode on separate servers, KV memory moved between servers.",
    "CUDA graphs, and kernels that run beside each other: attention of prompts and of decodes in one step are added.",
    "Clients that wait for their reply before they ask again, in the lessons: arrivals are fixed beforehand (the record's KubeAI "
    "claims do wait).",
)


@dataclass(frozen=True)
class Replay:
    """How many recorded files agree with ours and how many differ, and of how many steps or decisions."""

    name: str
    agree: int
    differ: int
    decisions: int


PEERS = {
    "vllm": ("vLLM 0.33.0's v1 scheduler", "steps"),
    "router": ("sglang-router 0.3.2", "decisions"),
}


def replay(kind: str) -> Replay:
    """Replay the recordings that come along, "vllm" or "router", in a process of its own. RuntimeError if that fails."""
    folder = ROOT / "tests" / "peers" / "data" / kind
    command = [sys.executable, "-m", "tests.peers", kind, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    last = re.search(r"(\d+) agree, (\d+) differ\s*$", done.stdout)
    if last is None:
        raise RuntimeError(f"the replay told nothing: {done.stderr[-200:] or done.stdout[-200:]}")
    each = re.findall(r"([\d,]+) (?:steps|decisions)\b", done.stdout)
    counted = sum(int(n.replace(",", "")) for n in each)
    return Replay(PEERS[kind][0], int(last[1]), int(last[2]), counted)


def names(patterns: Sequence[str]) -> list[str]:
    """The claims of a group, in the record's order."""
    return [name for name in CLAIMS if any(fnmatchcase(name, pattern) for pattern in patterns)]


def row(claim: Claim) -> dict[str, str]:
    """A claim as cells of text."""
    word = {True: "inside", False: "OUTSIDE", None: "shown only"}[claim.inside]
    return {
        "Figure": claim.what, "Theirs": "–" if claim.theirs is None else f"{claim.theirs:g} {claim.unit}",
        "Ours": f"{claim.ours:.4g} {claim.unit}", "Allowed": claim.tolerance, "": word, "Why, and what else to know": claim.note,
    }
