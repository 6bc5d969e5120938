"""Hardware: what the GPUs can do and how the models are built, as constants with units and sources."""

from __future__ import annotations

from dataclasses import dataclass

MIB, GIB = 2**20, 2**30
TENSOR_PARALLEL = (1, 2, 4, 8)  # the sizes the all-reduce was measured at


@dataclass(frozen=True)
class Fit:
    """What the step-time formula of sim.service needs of a device: five numbers, and two more with tiles.

    tau_us     fixed time of one layer (launches, norms, small kernels), µs
    compute    share of the peak FLOP/s that the linear layers reach
    memory     share of the peak bandwidth at which weights are read
    kv         share of the peak bandwidth at which decode attention reads KV
    attention  share of the peak FLOP/s that prefill attention reaches
    tile       tokens in a tile of the matrix products; 0: the smooth formula
    padding    share of the empty rest of the last tile that is paid for, 0 to 1
    """

    tau_us: float
    compute: float
    memory: float
    kv: float
    attention: float
    tile: int = 0
    padding: float = 0.0


@dataclass(frozen=True)
class GPU:
    """One device, its fitted constants, and the all-reduce among several of it.

    name          as in GPUS
    peak_flops    dense bf16, FLOP/s
    bandwidth     device memory, byte/s
    memory_bytes  device memory that a program can use, bytes
    smooth        constants of the smooth step-time formula
    tiled         constants of the formula with tiles, fitted by themselves
    allreduce     (tensor parallel size, latency in µs, bytes per µs) of one all-reduce, by size
    source        where the numbers come from, and what is assumed
    """

    name: str
    peak_flops: float
    bandwidth: float
    memory_bytes: int
    smooth: Fit
    tiled: Fit
    allreduce: tuple[tuple[int, float, float], ...]
    source: str

    def allreduce_line(self, tp: int) -> tuple[float, float]:
        """(latency in µs, bytes per µs) of one all-reduce among `tp` GPUs. KeyError for a size that is not listed."""
        return {size: (alpha, rate) for size, alpha, rate in self.allreduce}[tp]


@dataclass(frozen=True)
class Model:
    """The shape of a decoder-only transformer in bf16 (2 bytes a parameter).

    name        as in MODELS
    layers      transformer layers, L
    hidden      width d
    heads       query heads n_q
    kv_heads    key/value heads n_kv
    ffn         inner width of the MLP
    gated       the MLP has three matrices (SwiGLU) rather than two
    vocab       rows of the embedding
    tied        the LM head is the embedding, stored once
    positions   rows of a learned position embedding; 0 with rotary positions
    head_dim    128 in all of these
    source      where the shape comes from
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    gated: bool
    vocab: int
    tied: bool
    positions: int
    source: str
    head_dim: int = 128

    @property
    def layer_parameters(self) -> int:
        """P: parameters of all layers: query, key, value and output projections and the MLP. Norms and biases are left out."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        mlp = (3 if self.gated else 2) * self.hidden * self.ffn
        return self.layers * (attention + mlp)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the token embedding, the LM head (unless tied) and the learned positions."""
        return self.hidden * (self.vocab * (1 if self.tied else 2) + self.positions)


_A100_FIT = Fit(tau_us=50.535617, compute=0.65389195, memory=0.76266908, kv=0.83442563, attention=0.45212443)
_H100_FIT = Fit(tau_us=61.695824, compute=0.63522624, memory=0.88860480, kv=0.90778753, attention=0.45363455)

# tools/fit_tiles.py prints these (row "blend, halving", tile 128 for the A100 and 256 for the H100) and what else was tried.
_A100_TILED = Fit(41.916, 0.66502, 0.79795, 0.82751, 0.55526, tile=128, padding=0.6439)
_H100_TILED = Fit(58.824, 0.65493, 0.90524, 0.91401, 0.66389, tile=256, padding=0.5865)

_A100_ALLREDUCE = ((2, 45.352101, 172122.645), (4, 48.202312, 114929.519), (8, 49.599510, 89157.260))
_H100_ALLREDUCE = ((2, 26.096720, 324041.844), (4, 31.342662, 253098.315), (8, 30.174852, 196732.075))
# A ring over PCIe 4.0 x16 (31.5 GB/s each way), 80 % of it reached: every byte crosses a link 2(n-1)/n times.
_A40_ALLREDUCE = ((2, 45.352101, 25200.0), (4, 48.202312, 16800.0), (8, 49.599510, 14400.0))

_FITTED = "shared/step-times/CALIBRATION.md section 1, fitted to measured kernels (Vidur, AIConfigurator, LLMServingSim)"

# Memory is what NVML reports to a program: 81,920 MiB (A100-80G), 81,559 (H100), 40,960 (A100-40G); the A40's 48 GB is
# GDDR6 of which ECC keeps 1/16 (the L40S, of the same size, reports 46,068 MiB).
# Source: thundergolfer.com/blog/nvidia-gpu-memory-capacity, table of Modal's GPUs.
#
# A100-80G and H100 are fitted to measurements. A100-40G and A40 are not: they have the peak FLOP/s, bandwidth and memory
# of their data sheets and the A100's fitted efficiencies and layer time; nothing measured holds them to that.
GPUS: dict[str, GPU] = {
    gpu.name: gpu
    for gpu in (
        GPU("A100-80G", 312e12, 2.039e12, 80 * GIB, _A100_FIT, _A100_TILED, _A100_ALLREDUCE, "SXM4 80 GB; " + _FITTED),
        GPU("H100", 989e12, 3.35e12, 81559 * MIB, _H100_FIT, _H100_TILED, _H100_ALLREDUCE, "SXM5 80 GB HBM3; " + _FITTED),
        GPU(
            "A100-40G", 312e12, 1.555e12, 40 * GIB, _A100_FIT, _A100_TILED, _A100_ALLREDUCE,
            "NVIDIA A100 data sheet, SXM4 40 GB; efficiencies, layer time and all-reduce of the A100-80G, not measured",
        ),
        GPU(
            "A40", 149.7e12, 0.696e12, 45 * GIB, _A100_FIT, _A100_TILED, _A40_ALLREDUCE,
            "NVIDIA A40 data sheet, 48 GB of which ECC keeps 1/16; efficiencies and layer time of the A100-80G, "
            "all-reduce assumed: a ring over PCIe 4.0 x16 at 80 % with the A100's latency; not measured",
        ),
        GPU(
            "A6000", 154.8e12, 0.768e12, 45 * GIB, _A100_FIT, _A100_TILED, _A40_ALLREDUCE,
            "NVIDIA RTX A6000 data sheet (309.7 TFLOP/s with sparsity, half of it dense), 48 GB of which ECC keeps 1/16; "
            "efficiencies and layer time of the A100-80G, all-reduce as the A40's; not measured",
        ),
    )
}  # fmt: skip

# name, layers, hidden, heads, kv_heads, ffn, gated, vocab, tied, positions, source
MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("Llama-3-8B", 32, 4096, 32, 8, 14336, True, 128256, False, 0, "Meta-Llama-3-8B config.json"),
        Model("Llama-2-7B", 32, 4096, 32, 32, 11008, True, 32000, False, 0, "Llama 2, arXiv 2307.09288; config.json"),
        Model("Mistral-7B", 32, 4096, 32, 8, 14336, True, 32000, False, 0, "Mistral 7B, arXiv 2310.06825, table 1"),
        Model("LLaMA-13B", 40, 5120, 40, 40, 13824, True, 32000, False, 0, "LLaMA, arXiv 2302.13971, table 2; config.json"),
        Model("OPT-13B", 40, 5120, 40, 40, 20480, False, 50272, True, 2050, "OPT, arXiv 2205.01068, table 1; config.json"),
        Model("Yi-34B", 60, 7168, 56, 8, 20480, True, 64000, False, 0, "Yi, arXiv 2403.04652, table 1"),
        Model("CodeLlama-34B", 48, 8192, 64, 8, 22016, True, 32000, False, 0, "CodeLlama-34b config.json"),
        Model("Llama-2-70B", 80, 8192, 64, 8, 28672, True, 32000, False, 0, "Llama 2, arXiv 2307.09288; config.json"),
    )
}
