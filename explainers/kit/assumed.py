"""What the simulated server is taken to be: model, GPU and step time, with sources, for a lesson's table of constants."""

from __future__ import annotations

from sim.service import Service

Row = tuple[str, str, str]

FITTED = ("fitted to measured kernels of the A100 and the H100: Vidur's profiles, NVIDIA AIConfigurator, LLMServingSim; "
          "the project's step-times/CALIBRATION.md, section 1, with the unrounded constants of calibration.json")
_NOT_MEASURED = frozenset({"OPT-13B", "Yi-34B"})  # models that no measured point holds; Mistral-7B has Llama-3-8B's layers


def server_rows(server: Service) -> list[Row]:
    """(what, value with unit, source) of the model, the GPU and the parts of a step's time."""
    gpu, model = server.gpu, server.model
    shape = f"{model.source}; no measured step time: its shape, with the GPU's fitted constants" \
        if model.name in _NOT_MEASURED else model.source
    return [
        ("Model", f"{model.name}, {model.layer_parameters / 1e9:.2f}·10⁹ layer parameters, bf16", shape),
        ("GPU", f"{gpu.name}, {gpu.peak_flops / 1e12:,.0f} TFLOP/s, {gpu.bandwidth / 1e12:.3f} TB/s", gpu.source),
        ("Step time", "fixed + √(weights² + compute²) + contexts + prefill attention", FITTED),
        ("Fixed part", f"{server.fixed_us / 1000:.2f} ms a step", FITTED),
        ("Reading a token's KV", f"{server.context_us:.3f} µs per token of context and step; the token being decoded counts",
         FITTED),
    ]


def head_row(server: Service) -> Row:
    """The LM head, which is left out."""
    took = server.lm_head_us / 1000
    return "LM head", f"0 ms; reading it would take {took:.2f} ms a step", "left out; computed from the above"
