"""The options of `python -m sim run`: their names, ranges, defaults and help; and the small language of --policy."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import get_args

from sim.hardware import GPUS, MODELS, TENSOR_PARALLEL
from sim.policy import Policy, Prompts, continuous, static
from sim.readers import READERS
from sim.trace import MAX_TOKENS, MAX_US
from sim.workloads import MAX_REQUESTS

ARRIVALS = ("poisson", "burst", "even", "once")
GENERATED = {
    "requests": 1000, "rate": 2.0, "arrivals": "poisson", "burstiness": 0.15,
    "prompt_mean": 1155.0, "prompt_cv": 0.96, "output_mean": 211.0, "output_cv": 0.77,
}  # fmt: skip
"""Defaults of a generated workload; the lengths are those of Azure's conversations of 2023 (papers/FACTS.md section 9)."""


class UsageError(ValueError):
    """An option, or several together, that make no sense."""


def whole(low: int, high: int, none: str = "") -> Callable[[str], int | None]:
    """An argparse type: a whole number from low to high, or, where `none` names it, no limit."""

    def parse(text: str) -> int | None:
        if none and text == none:
            return None
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(
                f"must be a whole number from {low:,} to {high:,}{f' or {none}' if none else ''}, not {text!r}"
            )
        return value

    return parse


def real(low: float, high: float) -> Callable[[str], float]:
    """An argparse type: a number from low to high."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be a number from {low:,g} to {high:,g}, not {text!r}")
        return value

    return parse


def choice(kind: str, known: tuple[str, ...]) -> Callable[[str], str]:
    """An argparse type: one of the known names."""

    def parse(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"unknown {kind} {text!r}; known: {', '.join(known)}")
        return text

    return parse


_PROMPTS = get_args(Prompts)
_SLOTS = whole(1, 1_000_000)
_BUDGET = whole(1, 1_000_000_000, none="none")
_TIMEOUT = real(0, math.inf)
_SETTINGS: dict[str, Callable[[str], object]] = {
    "slots": _SLOTS, "budget": _BUDGET, "prompts": choice("way of prompts", _PROMPTS), "fill-timeout": _TIMEOUT,
}  # fmt: skip
# Which settings each kind of batching listens to.
_LISTENS = {"static": ("slots", "fill-timeout"), "continuous": ("slots", "budget", "prompts")}


def policies(text: str, shared: dict[str, object]) -> list[Policy]:
    """The policies that --policy names, with `shared` settings where one does not set its own.

    "static,continuous:slots=8:budget=none" → two. A policy with settings of its own is named as it is written.
    Raises UsageError, which lists what is known.
    """
    chosen = [_policy(spec.strip(), shared) for spec in text.split(",")]
    names = [policy.name for policy in chosen]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--policy names {name!r} more than once")
    return chosen


def _policy(spec: str, shared: dict[str, object]) -> Policy:
    kind, *settings = spec.split(":")
    if kind not in _LISTENS:
        raise UsageError(f"unknown policy {kind!r}; known: {', '.join(_LISTENS)}")
    values = dict(shared)
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key not in _LISTENS[kind]:
            raise UsageError(f"policy {spec!r}: {setting!r} is no setting of {kind}; known: "
                             + ", ".join(f"{known}=…" for known in _LISTENS[kind]))
        try:
            values[key] = _SETTINGS[key](value)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"policy {spec!r}: {key} {error}") from None
    if kind == "static":
        return static(values["slots"], values["fill-timeout"], name=spec)  # type: ignore[arg-type]
    return continuous(values["slots"], values["budget"], values["prompts"], name=spec)  # type: ignore[arg-type]


def _file(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("needs the name of a file, or - for standard input")
    return text


def add_to(parser: argparse.ArgumentParser) -> None:
    """Declare every option of `run`."""
    add = parser.add_argument_group("requests from a file").add_argument
    add("--trace", type=_file, metavar="FILE",
        help="the file with the requests; - reads standard input. Without it they are generated")
    add("--format", type=choice("format", tuple(READERS)), default="azure", metavar="NAME",
        help=f"format of the file: {', '.join(READERS)} (default: %(default)s)")
    add("--start", type=real(0, MAX_US / 1e6), default=0.0, metavar="S", help="begin S seconds after the first request")
    add("--length", type=real(1e-6, MAX_US / 1e6), metavar="S", help="take the requests of S seconds (default: to the end)")
    add("--limit", type=whole(1, MAX_REQUESTS), metavar="N", help="take at most N requests")

    add = parser.add_argument_group("generated requests (without --trace)").add_argument
    said = {key: f" (default: {value:g})" if isinstance(value, float) else f" (default: {value})"
            for key, value in GENERATED.items()}
    add("--requests", type=whole(1, MAX_REQUESTS), metavar="N", help="how many" + said["requests"])
    add("--rate", type=real(0.001, 1e6), metavar="R", help="mean arrivals per second" + said["rate"])
    add("--arrivals", type=choice("way of arriving", ARRIVALS), metavar="HOW",
        help="poisson; burst: gamma gaps; even: evenly spaced; once: all at 0 s" + said["arrivals"])
    add("--burstiness", type=real(0.001, 1000), metavar="B",
        help="shape of the gamma gaps, as vLLM's bench defines it: 1 is Poisson, less comes in bursts" + said["burstiness"])
    for part in ("prompt", "output"):
        add(f"--{part}-mean", type=real(1, MAX_TOKENS), metavar="T", help=f"mean {part} tokens" + said[f"{part}_mean"])
        add(f"--{part}-cv", type=real(0, 100), metavar="C",
            help=f"standard deviation of {part} tokens over their mean; 0: all equal, else lognormal" + said[f"{part}_cv"])
    add("--seed", type=whole(0, 2**63 - 1), default=0, metavar="S",
        help="another seed draws other requests (default: %(default)s); plays no part with --trace")

    add = parser.add_argument_group("server").add_argument
    add("--model", type=choice("model", tuple(MODELS)), default="Llama-3-8B", metavar="NAME",
        help=f"{', '.join(MODELS)} (default: %(default)s)")
    add("--gpu", type=choice("GPU", tuple(GPUS)), default="A100-80G", metavar="NAME",
        help=f"{', '.join(GPUS)} (default: %(default)s)")
    add("--tp", type=int, choices=TENSOR_PARALLEL, default=1,
        help="GPUs that share the model, tensor parallel (default: %(default)s)")
    add("--overhead-us", type=real(0, 1e9), default=0.0, metavar="US", help="engine time per step, µs (default: 0)")
    add("--overhead-per-request-us", type=real(0, 1e9), default=0.0, metavar="US",
        help="engine time per request in the step, µs (default: 0)")
    add("--tiles", action="store_true", help="matrix products work in tiles of tokens; without it, the smooth formula")

    add = parser.add_argument_group("policies").add_argument
    add("--policy", default="static,continuous", metavar="LIST",
        help="static, continuous, or both, with commas between; each may carry settings of its own, as in "
             "continuous:slots=8:budget=2048 (default: %(default)s)")
    add("--slots", type=_SLOTS, default=32, metavar="N",
        help="most requests at once; static: the batch size (default: %(default)s)")
    add("--budget", type=_BUDGET, default=512, metavar="T",
        help="continuous: most tokens in a step, or none (default: %(default)s)")
    add("--prompts", type=_SETTINGS["prompts"], default="chunked", metavar="HOW",
        help=f"continuous: how prompts enter: {', '.join(_PROMPTS)} (default: %(default)s)")
    add("--fill-timeout", type=_TIMEOUT, default=0.0, metavar="S",
        help="static: seconds that the oldest request waits for its batch to fill; inf: until it is full (default: 0, which is "
             "Triton's)")
