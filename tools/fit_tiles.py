"""Which form of tile rounding fits the measured steps best, and with which constants?

    python -m tools.fit_tiles [measured_points.csv]        (1.5 minutes on one core)

Matrix products work in tiles of tokens, so 136 tokens cost more than 128 by far more than 8 tokens' worth. The smooth
formula of sim.service passes through the middle of that staircase; rounding tokens up on top of it would count the tile
twice. So every form here is fitted anew. Printed per device, tile and form: median/p95 of |model/measured - 1| in % for
each kind of step, first held out (three folds, seed 0), then with the point's model and TP left out of the fit, then on
all points; and the constants of the fit to all points. sim/hardware.py has those of "blend, halving", tile 128 for the
A100 and 256 for the H100: the least sum of held-out p95. "fading", which lets the rounding die away in large steps, fits best
without fading; plain rounding up to 128 or 256 is worse than the smooth form in decode steps. Counting waves of tiles over
the SMs, matrix by matrix, was tried too and is no better (hybrid, held out: A100 3.7/10.6, H100 4.6/17.0 at best); it is not
kept here. What was measured, and how: CALIBRATION.md beside the points.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sim.hardware import GPU, GPUS

Floats = NDArray[np.float64]
DEVICES = {"a100": "A100-80G", "h100": "H100"}
KINDS = ("decode", "prefill", "hybrid")
POINTS = Path(__file__).resolve().parents[2] / "shared/step-times/measured_points.csv"

# A vector of constants: tau in ms, the inverses of e_c, e_m, e_kv, e_a, the share beta of the tile's rest that is paid,
# and 1024/reach: how fast that share fades with the tokens in the step.
START = np.array([0.05, 1 / 0.65, 1 / 0.8, 1 / 0.85, 1 / 0.45, 0.7, 1.0])
LOW = np.array([0.0, 1.0, 1 / 0.95, 1.0, 1.0, 0.0, 0.0])
HIGH = np.array([0.2, 5.0, 5.0, 5.0, 10.0, 1.0, 20.0])

Tokens = Callable[[Floats, Floats], Floats]  # (tokens, constants) -> tokens paid for


def up(tokens: Floats, tile: int) -> Floats:
    """Tokens rounded up to whole tiles."""
    return np.asarray(np.ceil(tokens / tile) * tile)


def halving(tokens: Floats, tile: int) -> Floats:
    """Rounded up to whole tiles; steps that fit in half a tile use the half, and so on down to 64."""
    size: Floats = np.full(tokens.shape, float(tile))
    while (size > 64).any():
        smaller = (size > 64) & (tokens <= size / 2)
        if not smaller.any():
            break
        size = np.where(smaller, size / 2, size)
    return np.asarray(np.ceil(tokens / size) * size)


def forms(tile: int) -> dict[str, tuple[Tokens, tuple[int, ...]]]:
    """Form -> (tokens paid for, which of the constants are free)."""
    common = (0, 1, 2, 3, 4)

    def fading(t: Floats, x: Floats, rounded: Floats) -> Floats:
        return np.asarray(t + x[5] * np.exp(-rounded * x[6] / 1024) * (rounded - t))

    return {
        "smooth": (lambda t, x: t, common),
        "up": (lambda t, x: up(t, tile), common),
        "up above one tile": (lambda t, x: np.where(t > tile, up(t, tile), t), common),
        "up to 1024": (lambda t, x: np.where(t <= 1024, up(t, tile), t), common),
        "blend": (lambda t, x: t + x[5] * (up(t, tile) - t), (*common, 5)),
        "blend, halving": (lambda t, x: t + x[5] * (halving(t, tile) - t), (*common, 5)),
        "blend to 1024, halving": (lambda t, x: t + x[5] * np.where(t <= 1024, halving(t, tile) - t, 0), (*common, 5)),
        "fading, halving": (lambda t, x: fading(t, x, halving(t, tile)), (*common, 5, 6)),
    }


def predict(points: pd.DataFrame, gpu: GPU, tokens: Tokens, x: Floats) -> Floats:
    """Step times in ms of the formula of sim.service with `tokens` in the linear products."""
    t, weights = points["T"].to_numpy(float), 2 * points["P"].to_numpy(float)
    linear = np.hypot(weights / gpu.bandwidth * x[2], weights * tokens(t, x) / gpu.peak_flops * x[1])
    attention = points["KVd"].to_numpy() / gpu.bandwidth * x[3] + points["A"].to_numpy() / gpu.peak_flops * x[4]
    layers = points["L"].to_numpy(float)
    return np.asarray(layers * x[0] + 1e3 * (linear + attention) + points["comm"].to_numpy())


def comm_ms(points: pd.DataFrame, gpu: GPU) -> Floats:
    """All-reduce time of each point, ms (not fitted here)."""
    alpha, rate = np.array([gpu.allreduce_line(tp) if tp > 1 else (0.0, np.inf) for tp in points["tp"]]).T
    return np.asarray(2e-3 * points["L"] * (alpha + 2 * points["T"] * points["d"] / rate))


def fit(points: pd.DataFrame, gpu: GPU, tokens: Tokens, free: tuple[int, ...]) -> Floats:
    """Constants with the least squared log error, each kind of step weighing the same (Levenberg-Marquardt in a box)."""
    measured = np.log(points["ms"].to_numpy())
    weight = 1 / np.sqrt(points.groupby("kind")["ms"].transform("size").to_numpy(float))
    index = list(free)

    def residuals(x: Floats) -> Floats:
        return np.asarray(weight * (np.log(predict(points, gpu, tokens, x)) - measured))

    x, damping = START.copy(), 1e-3
    best = residuals(x)
    for _ in range(300):
        columns = []
        for i in index:
            moved = x.copy()
            moved[i] += 1e-6
            columns.append((residuals(moved) - best) / 1e-6)
        jacobian = np.array(columns).T
        normal = jacobian.T @ jacobian
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-12), -jacobian.T @ best)
        trial = x.copy()
        trial[index] = np.clip(x[index] + step, LOW[index], HIGH[index])
        found = residuals(trial)
        if found @ found < best @ best:
            done = best @ best - found @ found < 1e-12 * (best @ best)
            x, best, damping = trial, found, damping / 3
            if done:
                break
        else:
            damping *= 4
            if damping > 1e12:
                break
    return x


def errors(points: pd.DataFrame, model_ms: Floats) -> str:
    """median/p95 of |model/measured - 1| in %, per kind of step."""
    off = np.abs(model_ms / points["ms"].to_numpy() - 1) * 100
    kinds = points["kind"].to_numpy()
    return " | ".join(f"{np.median(off[kinds == k]):4.1f}/{np.quantile(off[kinds == k], 0.95):4.1f}" for k in KINDS)


def held_out(points: pd.DataFrame, gpu: GPU, tokens: Tokens, free: tuple[int, ...], fold: NDArray[np.int64]) -> Floats:
    """Each point's time from the fit to the folds that it is not in, ms."""
    model_ms = np.empty(len(points))
    for k in np.unique(fold):
        x = fit(points[fold != k], gpu, tokens, free)
        model_ms[fold == k] = predict(points[fold == k], gpu, tokens, x)
    return model_ms


def main(path: Path) -> None:
    """Print every form with its errors and constants."""
    table = pd.read_csv(path)
    for device, name in DEVICES.items():
        gpu = GPUS[name]
        points = table[table["dev"] == device].reset_index(drop=True)
        points["comm"] = comm_ms(points, gpu)
        fold = np.random.default_rng(0).permutation(len(points)) % 3
        models = points.groupby(["model", "tp"]).ngroup().to_numpy()
        print(f"\n{name}: decode | prefill | hybrid, median/p95 %: held out; left-out model; all")
        for tile in (64, 128, 256):
            for form, (tokens, free) in forms(tile).items():
                if form == "smooth" and tile > 64:
                    continue
                x = fit(points, gpu, tokens, free)
                row = [errors(points, held_out(points, gpu, tokens, free, f)) for f in (fold, models)]
                row.append(errors(points, predict(points, gpu, tokens, x)))
                constants = f"tau {x[0] * 1e3:.3f} us, " + ", ".join(
                    f"{what} {1 / x[i]:.5f}" for i, what in enumerate(("e_c", "e_m", "e_kv", "e_a"), start=1)
                )
                shape = f"beta {x[5]:.4f}, reach {1024 / max(x[6], 1e-9):.0f} tokens"
                print(f"{tile:4d} {form:24s} {'  ||  '.join(row)}   {constants}, {shape}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else POINTS)
