"""How far the step times of sim.service are from the measured ones, by device and kind of step."""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.record.claim import Claim
from sim.service import Service, attention_units, service

Floats = NDArray[np.float64]

POINTS = Path(__file__).parent / "data" / "step_points.csv"
DEVICES = {"a100": "A100-80G", "h100": "H100"}
KINDS = ("decode", "prefill", "hybrid")
LIMITS = {"median": 6.0, "p95": 22.0}  # %, for every device, kind of step and form

# Held-out errors of the smooth fit in %, median and p95: CALIBRATION.md, section 1.
_CALIBRATION = {
    ("a100", "decode"): (3.4, 14.5),
    ("a100", "prefill"): (4.7, 12.0),
    ("a100", "hybrid"): (5.1, 16.8),
    ("h100", "decode"): (2.9, 14.3),
    ("h100", "prefill"): (3.9, 10.9),
    ("h100", "hybrid"): (5.0, 21.0),
}

# How much longer the linear products take for 8 tokens more, %: CALIBRATION.md, "Where the remaining p95 comes from".
# (device, model, tp, tokens) -> %
_TILE_STEPS = {
    ("a100", "Llama-3-8B", 1, 128): 37.0,
    ("a100", "Llama-3-8B", 1, 256): 36.0,
    ("a100", "Llama-3-8B", 1, 512): 12.0,
    ("h100", "Llama-2-70B", 4, 256): 57.0,
    ("h100", "Llama-2-70B", 4, 512): 51.0,
}


@lru_cache(maxsize=4)
def errors(tiles: bool = False, path: Path = POINTS) -> dict[tuple[str, str], Floats]:
    """|model/measured - 1| of every measured point, by (device, kind of step)."""
    found: dict[tuple[str, str], list[Floats]] = {}
    for (device, model, tp), rows in _points(path).items():
        chunk, done, decodes, context, ms = rows.T
        served = service(model, DEVICES[device], tp, tiles=tiles)
        model_ms = served.step_us(chunk + decodes, decodes * context, attention_units(chunk, done)) / 1e3
        off = np.abs(model_ms / ms - 1)
        kind = np.where(chunk == 0, "decode", np.where(decodes == 0, "prefill", "hybrid"))
        for name in KINDS:
            found.setdefault((device, name), []).append(off[kind == name])
    return {key: np.concatenate(parts) for key, parts in found.items()}


@lru_cache(maxsize=4)
def counts(path: Path = POINTS) -> dict[tuple[str, str], tuple[int, int]]:
    """(device, kind of step) -> how many points there are, and in how many of them a chunk follows computed tokens (p > 0).

    The attention of the latter is partly modelled: CALIBRATION.md, section 0.
    """
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for (device, _, _), rows in _points(path).items():
        chunk, done, decodes = rows.T[:3]
        for name in KINDS:
            mine = (chunk == 0) if name == "decode" else (chunk > 0) & ((decodes == 0) == (name == "prefill"))
            all_, partly = found.get((device, name), (0, 0))
            found[device, name] = (all_ + int(mine.sum()), partly + int((mine & (done > 0)).sum()))
    return found


def _points(path: Path) -> dict[tuple[str, str, int], Floats]:
    """(device, model, tp) -> rows of chunk, done, decodes, context, ms."""
    groups: dict[tuple[str, str, int], list[list[float]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            values = [float(row[column]) for column in ("chunk", "done", "decodes", "context", "ms")]
            groups.setdefault((row["device"], row["model"], int(row["tp"])), []).append(values)
    return {key: np.array(rows) for key, rows in groups.items()}


def _error(name: str, device: str, kind: str, statistic: str, tiles: bool) -> Claim:
    off = errors(tiles)[device, kind]
    value = np.median(off) if statistic == "median" else np.quantile(off, 0.95)
    form = "with tiles" if tiles else "smooth"
    theirs = None if tiles else _CALIBRATION[device, kind][statistic != "median"]
    steps, modelled = counts()[device, kind]
    partly = f"; {modelled:,} of them partly modelled: chunks of a prompt that is partly computed" if modelled else ""
    return Claim(
        name,
        "kernels measured by Vidur, AIConfigurator and LLMServingSim; shared/step-times/CALIBRATION.md, sections 0 and 1",
        f"{statistic} of |model/measured − 1|, {kind} steps on the {DEVICES[device]}, {form}",
        theirs,
        round(float(value) * 100, 2),
        "%",
        None,
        LIMITS[statistic],
        f"{steps:,} {kind} steps assembled from measured kernels (no LM head, sampling or CPU time), four models at the tensor "
        f"parallel sizes measured{partly}",
        "fitted by tools/fit_tiles.py, whose held-out errors are within 0.2 points (median) and 0.3 points (p95) of these; the "
        "limit is this project's choice"
        if tiles
        else "theirs is the same fit's error on the third of the points that was held out; ours is over all points, two thirds "
        "of which were fitted; the limit is this project's choice",
    )


def linear_us(served: Service, tokens: int) -> float:
    """Time of the layers without attention and all-reduce, µs."""
    latency, rate = served.gpu.allreduce_line(served.tp) if served.tp > 1 else (0.0, np.inf)
    comm = 2 * served.model.layers * (latency + tokens * served.model.hidden * 2 / rate)
    return float(served.base_us(tokens)) - served.overhead_us - comm


def _tile_step(name: str, device: str, model: str, tp: int, tokens: int) -> Claim:
    served = service(model, DEVICES[device], tp, tiles=True)
    ours = (linear_us(served, tokens + 8) / linear_us(served, tokens) - 1) * 100
    theirs = _TILE_STEPS[device, model, tp, tokens]
    return Claim(
        name,
        "Vidur profiling CSV (microsoft/vidur 7d47513); shared/step-times/CALIBRATION.md, 'Where the remaining p95 comes from'",
        f"how much longer the linear products of {model} (TP{tp}) take on the {DEVICES[device]} for {tokens + 8} tokens than "
        f"for {tokens}",
        theirs,
        round(ours, 1),
        "%",
        theirs - 10,
        theirs + 10,
        "layers without attention and all-reduce, with tiles",
        "" if abs(ours - theirs) <= 10 else
        "one set of constants serves all models, and the measured step differs from model to model",
    )  # fmt: skip


def _table() -> dict[str, Callable[[], Claim]]:
    table: dict[str, Callable[[], Claim]] = {}
    for tiles in (False, True):
        for device in DEVICES:
            for kind in KINDS:
                for statistic in LIMITS:
                    name = f"step-time-{device}-{kind}-{statistic}" + ("-tiles" if tiles else "")
                    table[name] = partial(_error, name, device, kind, statistic, tiles)
    for device, model, tp, tokens in _TILE_STEPS:
        name = f"tile-step-{device}-{model.lower()}-{tokens}"
        table[name] = partial(_tile_step, name, device, model, tp, tokens)
    return table


CLAIMS = _table()
