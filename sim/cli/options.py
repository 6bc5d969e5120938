"""The options of `python -m sim run`: their names, ranges, defaults and help; and the small language of --policy."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

from sim.hardware import GPUS, MODELS, TENSOR_PARALLEL
from sim.policy import Memory, Order, Policy, Prompts, continuous, faster_transformer, orca, sarathi_serve, static, vllm, vllm_v0
from sim.readers import READERS
from sim.service import Service, service
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


def switch(text: str) -> bool:
    """An argparse type: on or off."""
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"must be on or off, not {text!r}")
    return text == "on"


_PROMPTS = get_args(Prompts)
_ORDERS = tuple(order.replace("_", "-") for order in get_args(Order))
_SLOTS = whole(1, 1_000_000)
_BUDGET = whole(1, 1_000_000_000, none="none")
_TIMEOUT = real(0, math.inf)
_BLOCKS, _BLOCK_SIZE, _LONGEST = whole(2, 1_000_000_000), whole(1, 1_000_000), whole(2, 2 * MAX_TOKENS)
_SETTINGS: dict[str, Callable[[str], object]] = {
    "slots": _SLOTS, "budget": _BUDGET, "prompts": choice("way of prompts", _PROMPTS), "fill-timeout": _TIMEOUT,
    "blocks": _BLOCKS, "block-size": _BLOCK_SIZE, "longest": _LONGEST, "prefix-cache": switch, "watermark": real(0, 1),
    "swap": real(0.001, 1e6), "order": choice("order", _ORDERS), "noise": real(0, 100),
}  # fmt: skip

Settings = dict[str, Any]  # by the names in _SETTINGS; "own budget": it is set for this policy alone
Plan = Callable[[Service, int], Policy]
"""A policy that still has to hear for which server, whose memory it gets, and how long the longest request is, tokens."""


def _static(name: str, own: Settings, server: Service, longest: int) -> Policy:
    return static(own["slots"], own["fill-timeout"], name)


def _continuous(name: str, own: Settings, server: Service, longest: int) -> Policy:
    return continuous(own["slots"], own["budget"], own["prompts"], name)


def _vllm(name: str, own: Settings, server: Service, longest: int) -> Policy:
    memory = Memory(_blocks(own, server), own["block-size"], own.get("prefix-cache", True))
    return _tuned(vllm(own["slots"], own["budget"], memory, name), own)


def _vllm_v0(name: str, own: Settings, server: Service, longest: int) -> Policy:
    # A prompt goes whole, so a budget below it would shut it out: vLLM's default is max(max_model_len, 2048).
    budget = own["budget"] if "own budget" in own else max(2048, longest)
    # Every GPU moves its share over its own link.
    block_bytes = server.kv_bytes_per_token_per_gpu * own["block-size"]
    swap_us = block_bytes / (own["swap"] * 1e9) * 1e6 if "swap" in own else None
    return _tuned(vllm_v0(own["slots"], budget, _blocks(own, server), own["block-size"], swap_us, name), own)


def _orca(name: str, own: Settings, server: Service, longest: int) -> Policy:
    return orca(own["slots"], _blocks(own, server), own["longest"] or longest, own["block-size"], name)


def _sarathi_serve(name: str, own: Settings, server: Service, longest: int) -> Policy:
    return _tuned(sarathi_serve(own["slots"], own["budget"], _blocks(own, server), own["block-size"], name), own)


def _faster_transformer(name: str, own: Settings, server: Service, longest: int) -> Policy:
    blocks, longest = _blocks(own, server), own["longest"] or longest
    return faster_transformer(own["slots"], blocks, longest, own["fill-timeout"], own["block-size"], name)


def _blocks(own: Settings, server: Service) -> int:
    return own["blocks"] or server.blocks(own["block-size"])


def _tuned(policy: Policy, own: Settings) -> Policy:
    """The preset with another watermark and order, where they are set."""
    memory = policy.memory
    if memory is not None and "watermark" in own:
        memory = replace(memory, watermark=own["watermark"])
    order = own.get("order", policy.order).replace("-", "_")
    return replace(policy, memory=memory, order=order, noise=own.get("noise", 0.0), seed=own["seed"])


# What each policy is made by, and which settings it listens to.
_POLICIES: dict[str, tuple[Callable[[str, Settings, Service, int], Policy], tuple[str, ...]]] = {
    "static": (_static, ("slots", "fill-timeout")),
    "continuous": (_continuous, ("slots", "budget", "prompts")),
    "vllm": (_vllm, ("slots", "budget", "blocks", "block-size", "prefix-cache", "watermark", "order", "noise")),
    "vllm-v0": (_vllm_v0, ("slots", "budget", "blocks", "block-size", "swap", "watermark", "order", "noise")),
    "orca": (_orca, ("slots", "blocks", "block-size", "longest")),
    "sarathi-serve": (_sarathi_serve, ("slots", "budget", "blocks", "block-size", "watermark", "order", "noise")),
    "faster-transformer": (_faster_transformer, ("slots", "blocks", "block-size", "longest", "fill-timeout")),
}

POLICY_HELP = """\
policies and their settings:
""" + "\n".join(f"  {name:20}{', '.join(listens)}" for name, (_, listens) in _POLICIES.items()) + f"""
  budget        of vllm-v0: the longest request, at least 2,048 tokens, unless set here, as prompts go whole
  prefix-cache  on or off (default: on, as in vLLM)
  watermark     share of the blocks that an admission leaves free (default: vllm 0, the others 0.01)
  swap          GB/s from each GPU to the host and back: who is preempted is swapped, not computed anew
  order         who goes first: {', '.join(_ORDERS)} (default: fcfs)
  noise         of shortest-predicted: standard deviation of the logarithm of the guess over the truth (default: 0)
"""


def policies(text: str, shared: Settings) -> list[Plan]:
    """The policies that --policy names, with `shared` settings where one does not set its own.

    "static,continuous:slots=8:budget=none" → two. A policy with settings of its own is named as it is written.
    Raises UsageError, which lists what is known.
    """
    names = [spec.strip() for spec in text.split(",")]
    for name in names:
        if name and names.count(name) > 1:
            raise UsageError(f"--policy names {name!r} more than once")
    return [_plan(name, shared) for name in names]


def asked_plans(asked: argparse.Namespace) -> list[Plan]:
    """The same from parsed arguments."""
    keys = ("slots", "budget", "prompts", "fill_timeout", "blocks", "block_size", "longest", "seed")
    return policies(asked.policy, {key.replace("_", "-"): vars(asked)[key] for key in keys})


def asked_server(asked: argparse.Namespace) -> Service:
    """The server of parsed arguments. UsageError where the weights do not fit."""
    try:
        return service(asked.model, asked.gpu, asked.tp, overhead_us=asked.overhead_us,
                       overhead_per_request_us=asked.overhead_per_request_us, tiles=asked.tiles)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _plan(spec: str, shared: Settings) -> Plan:
    kind, *settings = spec.split(":")
    if kind not in _POLICIES:
        raise UsageError(f"unknown policy {kind!r}; known: {', '.join(_POLICIES)}")
    make, listens = _POLICIES[kind]
    own = dict(shared)
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key not in listens:
            raise UsageError(f"policy {spec!r}: {setting!r} is no setting of {kind}; known: "
                             + ", ".join(f"{known}=…" for known in listens))
        try:
            own[key] = _SETTINGS[key](value)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"policy {spec!r}: {key} {error}") from None
        own[f"own {key}"] = True
    return lambda server, longest: make(spec, own, server, longest)


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

    add_server(parser)
    add_policies(parser, "static,continuous")


def add_server(parser: argparse.ArgumentParser) -> None:
    """Declare the options that say what serves: model, GPU, overheads."""
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


def add_policies(parser: argparse.ArgumentParser, default: str) -> None:
    """Declare --policy and the settings that policies share."""
    add = parser.add_argument_group("policies").add_argument
    add("--policy", default=default, metavar="LIST",
        help=f"{', '.join(_POLICIES)}: one or several, with commas between; each may carry settings of its own, as in "
             "vllm:slots=8:budget=2048 (default: %(default)s)")
    add("--slots", type=_SLOTS, default=32, metavar="N",
        help="most requests at once; static: the batch size (default: %(default)s)")
    add("--budget", type=_BUDGET, default=512, metavar="T",
        help="continuous, vllm, sarathi-serve: most tokens in a step, or none (default: %(default)s)")
    add("--prompts", type=_SETTINGS["prompts"], default="chunked", metavar="HOW",
        help=f"continuous: how prompts enter: {', '.join(_PROMPTS)} (default: %(default)s)")
    add("--fill-timeout", type=_TIMEOUT, default=0.0, metavar="S",
        help="static, faster-transformer: seconds that the oldest request waits for its batch to fill; inf: until it is full "
             "(default: 0, which is Triton's)")
    add("--blocks", type=_BLOCKS, metavar="N",
        help="all but static and continuous, whose memory has no limit: KV blocks (default: what fits beside the weights in "
             "90 %% of the GPUs' memory)")
    add("--block-size", type=_BLOCK_SIZE, default=16, metavar="T", help="tokens in a block (default: %(default)s)")
    add("--longest", type=_LONGEST, metavar="T",
        help="orca, faster-transformer: prompt and output tokens that memory is reserved for; longer prompts are refused, longer "
             "outputs cut (default: the longest request of the trace)")
