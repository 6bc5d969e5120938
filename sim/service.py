"""Service: how long a step takes, how large a token's KV is, and how many blocks fit beside the weights.

A step holds T tokens: the prompt tokens of its chunks and one token for each decoding request. Its time is

    t = L·tau + sqrt((W/(BW·e_m))² + (F·T/(PK·e_c))²) + KV·Σctx/(BW·e_kv) + A/(PK·e_a) + comm

    W   2·P/TP, bytes of layer weights per GPU            F   2·P/TP, FLOP per token
    KV  2·L·n_kv·128·2/TP, bytes per context token        Σctx over the decoding requests
    A   4·L·n_q·128/TP · Σ c·(p + (c+1)/2), FLOP of prefill attention for chunks of c tokens after p computed ones
    comm  2·L·(alpha + T·d·2/B) for TP > 1

and is kernel time only: no LM head, no sampling, no engine; give those as an overhead. Source of the form, its constants
and its errors (median 2.9 to 5.3 %, p95 11 to 21 % by device and kind of step): shared/step-times/CALIBRATION.md, section 1.

With tiles the linear products pay for T + padding·(T rounded up - T) tokens instead of T, with constants of their own
(tools/fit_tiles.py): median 2.5 to 4.9 %, p95 8 to 17 % on the same points. The steps are those of an average model:
linear products of Llama-3-8B on the A100 from 128 to 136 tokens +34 % (measured +37), 256 to 264 +26 (+36), 512 to 520
+15 (+12); of Llama-2-70B TP4 on the H100 from 256 to 264 +30 (+57) and 512 to 520 +22 (+51), only half of what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.hardware import GPU, GPUS, MODELS, TENSOR_PARALLEL, Fit, Model

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BYTES_PER_PARAMETER = 2  # bf16


class StepTime(Hashable, Protocol):
    """Anything hashable that can say how long a step takes:

    base_us(T) + context_us · Σctx + attention_us · Σ attention_units + request_us · requests, in µs.
    """

    def base_us(self, tokens: Ints) -> Floats:
        """The part that depends only on how many tokens are in the step (≥ 1), fixed overhead included, µs."""

    @property
    def context_us(self) -> float:
        """µs per token of context of the decoding requests."""

    @property
    def attention_us(self) -> float:
        """µs per unit of prefill attention (see attention_units)."""

    @property
    def request_us(self) -> float:
        """µs per request in the step."""


def attention_units(chunk: ArrayLike, done: ArrayLike = 0) -> Floats:
    """c·(p + (c+1)/2): the query-key pairs of a chunk of c prompt tokens after p computed ones, causal."""
    c, p = np.asarray(chunk, np.float64), np.asarray(done, np.float64)
    return c * (p + (c + 1) / 2)


def step_us(
    service: StepTime, tokens: ArrayLike, context: ArrayLike = 0, attention: ArrayLike = 0.0, requests: ArrayLike = 0
) -> Floats:
    """Time of steps in µs; arrays broadcast.

    tokens     tokens in the step, ≥ 1
    context    context tokens summed over the decoding requests
    attention  attention_units summed over the prompt chunks
    requests   requests in the step
    """
    return np.asarray(
        service.base_us(np.asarray(tokens, np.int64))
        + service.context_us * np.asarray(context, np.float64)
        + service.attention_us * np.asarray(attention, np.float64)
        + service.request_us * np.asarray(requests, np.float64)
    )


@dataclass(frozen=True)
class Affine:
    """The simplest step time: base + per_token_us · T + per_request_us · requests, µs.

    With whole numbers every time is a whole µs, which float64 adds exactly.
    """

    base: float
    per_token_us: float = 0.0
    per_request_us: float = 0.0
    context_us: float = 0.0
    attention_us: float = 0.0

    def __post_init__(self) -> None:
        """Raise ValueError for a time that is negative or not finite."""
        for field, value in vars(self).items():
            if not 0 <= value < math.inf:
                raise ValueError(f"Affine: {field} must be 0 µs or more, not {value}")

    @property
    def request_us(self) -> float:
        """µs per request in the step."""
        return self.per_request_us

    def base_us(self, tokens: ArrayLike) -> Floats:
        """base + per_token_us · T, µs."""
        return np.asarray(self.base + self.per_token_us * np.asarray(tokens, np.float64))

    def step_us(self, tokens: ArrayLike, context: ArrayLike = 0, attention: ArrayLike = 0.0, requests: ArrayLike = 0) -> Floats:
        """See sim.service.step_us."""
        return step_us(self, tokens, context, attention, requests)


def _round_up(tokens: Floats, tile: int) -> Floats:
    """Tokens in whole tiles. A step that fits in half a tile uses half tiles, and so on down to 64 tokens."""
    halvings = np.clip(np.floor(np.log2(tile / np.maximum(tokens, 1))), 0, np.log2(tile / 64))
    size = tile / 2**halvings
    return np.asarray(np.ceil(tokens / size) * size)


@dataclass(frozen=True)
class Service:
    """A model on `tp` GPUs of one kind. Hashable, so it can key a cache.

    tp                       tensor parallel size: 1, 2, 4 or 8
    overhead_us              engine time per step, µs (scheduling, sampling, LM head: whatever is not in the formula)
    overhead_per_request_us  engine time per request in the step, µs. Vidur measured about 1,200 + 100 · requests µs for
                             a 2023 engine (CALIBRATION.md, section 4)
    tiles                    matrix products work in tiles of tokens, so that one token more can cost a whole tile;
                             False: the smooth formula through the middle of that staircase

    Raises ValueError where a field is out of range, or where the weights do not fit.
    """

    model: Model
    gpu: GPU
    tp: int = 1
    overhead_us: float = 0.0
    overhead_per_request_us: float = 0.0
    tiles: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError that names the field and its range."""
        if self.tp not in TENSOR_PARALLEL:
            raise ValueError(f"tp must be one of {', '.join(map(str, TENSOR_PARALLEL))}, not {self.tp}")
        if self.model.heads % self.tp or self.model.kv_heads % self.tp:
            raise ValueError(
                f"tp={self.tp} does not divide the heads of {self.model.name}: "
                f"{self.model.heads} query, {self.model.kv_heads} key/value"
            )
        for field in ("overhead_us", "overhead_per_request_us"):
            value = getattr(self, field)
            if not (0 <= value < math.inf):
                raise ValueError(f"{field} must be 0 µs or more and finite, not {value}")
        self._check_fit(1.0)

    # ---- time -------------------------------------------------------------------------------------------------------

    def base_us(self, tokens: ArrayLike) -> Floats:
        """Layers, linear products, all-reduce and overhead of a step of `tokens` (≥ 1) tokens, µs; same shape as tokens."""
        t = np.asarray(tokens, np.float64)
        paid = t + self.fit.padding * (_round_up(t, self.fit.tile) - t) if self.tiles else t
        return np.asarray(self.fixed_us + np.hypot(self._weights_us, self._token_us * paid) + self._comm_token_us * t)

    @property
    def fit(self) -> Fit:
        """The constants in use: the GPU's smooth ones, or with tiles the tiled ones."""
        return self.gpu.tiled if self.tiles else self.gpu.smooth

    @property
    def context_us(self) -> float:
        """µs to read the KV of one context token."""
        return self.kv_bytes_per_token_per_gpu / (self.gpu.bandwidth * self.fit.kv) * 1e6

    @property
    def attention_us(self) -> float:
        """µs per query-key pair of prefill attention, all layers."""
        flop = 4 * self.model.layers * self.model.heads * self.model.head_dim / self.tp
        return flop / (self.gpu.peak_flops * self.fit.attention) * 1e6

    @property
    def request_us(self) -> float:
        """µs per request in the step."""
        return self.overhead_per_request_us

    def step_us(self, tokens: ArrayLike, context: ArrayLike = 0, attention: ArrayLike = 0.0, requests: ArrayLike = 0) -> Floats:
        """See sim.service.step_us."""
        return step_us(self, tokens, context, attention, requests)

    @property
    def fixed_us(self) -> float:
        """What every step costs whatever is in it: layer times, all-reduce latencies and the overhead, µs."""
        latency = self.gpu.allreduce_line(self.tp)[0] if self.tp > 1 else 0.0
        return self.overhead_us + self.model.layers * (self.fit.tau_us + 2 * latency)

    @property
    def lm_head_us(self) -> float:
        """Time to read the LM head once, µs. Not part of the step time: add it to overhead_us where it matters."""
        head = BYTES_PER_PARAMETER * self.model.hidden * self.model.vocab / self.tp
        return head / (self.gpu.bandwidth * self.fit.memory) * 1e6

    @property
    def ridge_tokens(self) -> float:
        """Tokens in a step at which computing takes as long as reading the weights: PK·e_c/(BW·e_m)."""
        return self._weights_us / self._token_us

    @property
    def ridge_tokens_theory(self) -> float:
        """The same from the data sheet, PK/BW (bf16: two FLOP per parameter and token, two bytes per parameter)."""
        return self.gpu.peak_flops / self.gpu.bandwidth

    @property
    def _weights_us(self) -> float:
        weights = BYTES_PER_PARAMETER * self.model.layer_parameters / self.tp
        return weights / (self.gpu.bandwidth * self.fit.memory) * 1e6

    @property
    def _token_us(self) -> float:
        flop = 2 * self.model.layer_parameters / self.tp
        return flop / (self.gpu.peak_flops * self.fit.compute) * 1e6

    @property
    def _comm_token_us(self) -> float:
        if self.tp == 1:
            return 0.0
        rate = self.gpu.allreduce_line(self.tp)[1]
        return 2 * self.model.layers * self.model.hidden * BYTES_PER_PARAMETER / rate

    # ---- memory -----------------------------------------------------------------------------------------------------

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one token, whole model."""
        m = self.model
        return 2 * m.layers * m.kv_heads * m.head_dim * BYTES_PER_PARAMETER

    @property
    def kv_bytes_per_token_per_gpu(self) -> int:
        """Bytes of keys and values of one token on each GPU."""
        return self.kv_bytes_per_token // self.tp

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, embedding and LM head included, whole model."""
        return BYTES_PER_PARAMETER * (self.model.layer_parameters + self.model.embedding_parameters)

    def kv_tokens(self, memory_utilization: float = 0.9) -> int:
        """Tokens whose KV fits beside the weights in that share of the memory of all `tp` GPUs.

        Activations, CUDA graphs and the driver's own memory are left out: an engine that measures them fits a few per
        cent less. ValueError where the share is not in (0, 1] or the weights do not fit in it.
        """
        if not 0 < memory_utilization <= 1:
            raise ValueError(f"memory_utilization must be above 0 and at most 1, not {memory_utilization}")
        self._check_fit(memory_utilization)
        free = self.gpu.memory_bytes * memory_utilization - self.weight_bytes / self.tp
        return int(free // self.kv_bytes_per_token_per_gpu)

    def blocks(self, block_size: int = 16, memory_utilization: float = 0.9) -> int:
        """Whole KV blocks of `block_size` tokens that fit beside the weights (see kv_tokens)."""
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1 token, not {block_size}")
        return self.kv_tokens(memory_utilization) // block_size

    def _check_fit(self, memory_utilization: float) -> None:
        room = self.gpu.memory_bytes * memory_utilization
        if self.weight_bytes / self.tp < room:
            return
        larger = [tp for tp in TENSOR_PARALLEL if self.weight_bytes / tp < room]
        raise ValueError(
            f"the weights of {self.model.name} take {self.weight_bytes / self.tp / 1e9:.1f} GB on each GPU at tp={self.tp}, "
            f"more than {room / 1e9:.1f} GB of {self.gpu.name}: "
            + (f"use tp={larger[0]} or more" if larger else "use a smaller model or a larger GPU")
        )


def service(
    model: str, gpu: str, tp: int = 1, *, overhead_us: float = 0.0, overhead_per_request_us: float = 0.0, tiles: bool = False
) -> Service:
    """The Service of a model and a GPU by name. ValueError lists the known names."""
    if model not in MODELS:
        raise ValueError(f"unknown model {model!r}; known: {', '.join(MODELS)}")
    if gpu not in GPUS:
        raise ValueError(f"unknown GPU {gpu!r}; known: {', '.join(GPUS)}")
    return Service(MODELS[model], GPUS[gpu], tp, overhead_us, overhead_per_request_us, tiles)
