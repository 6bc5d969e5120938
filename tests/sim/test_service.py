"""Step time, KV bytes and blocks: worked by hand, from CALIBRATION.md, and against the measured steps."""

from __future__ import annotations

import csv
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.hardware import GPUS, MODELS
from sim.service import Affine, Service, attention_units, service, step_us

MEASURED = Path(__file__).resolve().parents[3] / "shared/step-times/measured_points.csv"
GPU_OF = {"a100": "A100-80G", "h100": "H100"}


# ---- step time, by hand ---------------------------------------------------------------------------------------------


def test_sixteen_decodes_at_1k_context_take_11_9_ms() -> None:
    # Llama-3-8B, A100. Layers 32 · 0.050536 = 1.617 ms. Weights 13.9586e9 B / (2.039e12 · 0.76267) = 8.976 ms;
    # compute 13.9586e9 · 16 / (312e12 · 0.65389) = 1.095 ms; root of squares 9.043 ms.
    # KV 131,072 B · 16,384 / (2.039e12 · 0.83443) = 1.262 ms. Sum 11.922 ms (CALIBRATION.md section 3: 11.9).
    served = service("Llama-3-8B", "A100-80G")
    assert served.step_us(16, context=16 * 1024) / 1e3 == pytest.approx(11.922, abs=2e-3)


def test_a_prompt_of_16384_tokens_alone_takes_1622_ms() -> None:
    # Compute 13.9586e9 · 16,384 / (312e12 · 0.65389) = 1,121.00 ms, with the weights 1,121.04 ms.
    # Attention 4 · 32 · 32 · 128 = 524,288 FLOP a pair, 16,384 · 16,385 / 2 = 134,225,920 pairs, / (312e12 · 0.45212)
    # = 498.88 ms. Layers 1.617 ms. Sum 1,621.5 ms (CALIBRATION.md section 3: 1,622).
    served = service("Llama-3-8B", "A100-80G")
    assert served.step_us(16384, attention=attention_units(16384)) / 1e3 == pytest.approx(1621.5, abs=0.2)


def test_a_70b_decode_step_on_four_h100_with_two_all_reduces_a_layer() -> None:
    # 32 decodes at 2,048. Layers 80 · 0.061696 = 4.936 ms. Per GPU weights 34.2255e9 B / (3.35e12 · 0.88860) = 11.497 ms,
    # compute 34.2255e9 · 32 / (989e12 · 0.63523) = 1.743 ms, root of squares 11.629 ms.
    # KV 81,920 B · 65,536 / (3.35e12 · 0.90779) = 1.765 ms.
    # All-reduce 160 · (31.343 µs + 32 · 8,192 · 2 B / 253,098 B/µs) = 160 · 33.414 µs = 5.346 ms. Sum 23.676 ms.
    served = service("Llama-2-70B", "H100", tp=4)
    assert served.step_us(32, context=32 * 2048) / 1e3 == pytest.approx(23.676, abs=4e-3)


@pytest.mark.parametrize(
    ("budget", "steps", "gap_ms", "ttft_ms"),
    [
        (128, 147, 22.4, 2776),
        (256, 69, 37.1, 2049),
        (512, 34, 68.8, 1800),
        (1024, 17, 132, 1699),
        (2048, 9, 258, 1661),
        (4096, 5, 500, 1645),
        (8192, 3, 936, 1638),
    ],
)
def test_a_16384_token_prompt_in_chunks_beside_16_decodes(budget: int, steps: int, gap_ms: float, ttft_ms: float) -> None:
    # CALIBRATION.md section 3, Llama-3-8B on the A100: the longest gap of the decodes and the prompt's TTFT, model columns.
    served = service("Llama-3-8B", "A100-80G")
    done = np.arange(0, 16384, budget - 16)
    chunk = np.minimum(budget - 16, 16384 - done)
    context = 16 * (1024 + np.arange(len(done)))
    times = served.step_us(chunk + 16, context, attention_units(chunk, done)) / 1e3
    assert len(times) == steps
    assert times.max() == pytest.approx(gap_ms, rel=0.03)
    assert times.sum() == pytest.approx(ttft_ms, rel=0.03)


@pytest.mark.parametrize(
    ("gpu", "model", "tp", "alone", "at_512"),
    [
        ("H100", "Llama-3-8B", 1, 523, (24.3, 659)),
        ("A100-80G", "Llama-2-70B", 4, 3758, (150, 4385)),
        ("H100", "Llama-2-70B", 4, 1268, (57.5, 1732)),
    ],
)
def test_the_same_prompt_on_other_gpus_and_models(
    gpu: str, model: str, tp: int, alone: float, at_512: tuple[float, float]
) -> None:
    # CALIBRATION.md section 3, last paragraph: alone, and at budget 512 the longest gap and the TTFT, ms.
    served = service(model, gpu, tp)
    assert served.step_us(16384, attention=attention_units(16384)) / 1e3 == pytest.approx(alone, rel=0.01)
    done = np.arange(0, 16384, 496)
    chunk = np.minimum(496, 16384 - done)
    times = served.step_us(chunk + 16, 16 * (1024 + np.arange(len(done))), attention_units(chunk, done)) / 1e3
    assert (times.max(), times.sum()) == (pytest.approx(at_512[0], rel=0.03), pytest.approx(at_512[1], rel=0.03))


def test_overheads_add_per_step_and_per_request() -> None:
    plain = service("Llama-2-7B", "A100-80G")
    # Vidur's 2023 engine, CALIBRATION.md section 4: about 1.2 + 0.10 · batch ms.
    real = service("Llama-2-7B", "A100-80G", overhead_us=1200, overhead_per_request_us=100)
    assert real.step_us(8, 800, requests=8) - plain.step_us(8, 800, requests=8) == pytest.approx(2000)


def test_the_lm_head_of_llama_3_8b_takes_0_68_ms_on_the_a100() -> None:
    assert service("Llama-3-8B", "A100-80G").lm_head_us == pytest.approx(675.6, rel=1e-3)  # calibration.json lm_head_ms


def test_the_ridge_lies_at_153_and_295_tokens_in_theory_and_at_131_and_211_as_fitted() -> None:
    # CALIBRATION.md section 2.
    a100, h100 = service("Llama-3-8B", "A100-80G"), service("Llama-2-70B", "H100", tp=4)
    assert (round(a100.ridge_tokens_theory), round(h100.ridge_tokens_theory)) == (153, 295)
    assert (round(a100.ridge_tokens), round(h100.ridge_tokens)) == (131, 211)


def test_steps_broadcast_and_equal_the_sum_of_their_parts() -> None:
    served = service("Mistral-7B", "H100", overhead_per_request_us=3)
    tokens, context = np.array([[1], [512]]), np.array([0, 1000, 2000])
    times = served.step_us(tokens, context, 10.0, 2)
    assert times.shape == (2, 3)
    assert times[1, 2] == pytest.approx(
        served.base_us(512) + 2000 * served.context_us + 10 * served.attention_us + 2 * served.request_us
    )


@given(prompt=st.integers(1, 20000), chunk=st.integers(1, 5000))
def test_chunks_of_a_prompt_attend_to_as_many_pairs_as_the_whole(prompt: int, chunk: int) -> None:
    done = np.arange(0, prompt, chunk)
    parts = attention_units(np.minimum(chunk, prompt - done), done)
    assert parts.sum() == prompt * (prompt + 1) / 2


def test_an_affine_clock_of_whole_microseconds_stays_whole() -> None:
    clock = Affine(5000, per_token_us=12, per_request_us=30)
    assert clock.step_us(np.array([1, 512]), context=9999, requests=4).tolist() == [5132.0, 11264.0]
    assert step_us(clock, 1) == 5012


# ---- tiles ----------------------------------------------------------------------------------------------------------


def test_136_tokens_pay_for_most_of_a_second_tile() -> None:
    # A100, Llama-3-8B, one layer: weights 436.2e6 B / (2.039e12 · 0.79795) = 0.26810 ms.
    # 128 tokens: compute 436.2e6 · 128 / (312e12 · 0.66502) = 0.26911 ms, root of squares 0.37986, with tau 0.42178 ms.
    # 136 tokens pay for 136 + 0.6439 · 120 = 213.27: 0.44839 ms, root 0.52243, with tau 0.56435 ms. Measured 0.412, 0.565.
    served = service("Llama-3-8B", "A100-80G", tiles=True)
    at_128, at_136 = served.base_us(np.array([128, 136])) / 32e3
    assert (at_128, at_136) == (pytest.approx(0.42178, abs=1e-4), pytest.approx(0.56435, abs=1e-4))


@pytest.mark.parametrize("gpu", ["A100-80G", "H100"])
def test_a_token_more_never_makes_a_step_shorter(gpu: str) -> None:
    for tiles in (False, True):
        assert (np.diff(service("Llama-3-8B", gpu, tiles=tiles).base_us(np.arange(1, 5000))) > 0).all()


def test_small_steps_use_small_tiles() -> None:
    # On the H100 with its tile of 256, 64 tokens fill a quarter tile and 128 a half: nothing is paid beyond them,
    # so the time per token jumps just after 64, 128, 256 and 512, and nowhere between.
    times = service("Llama-3-8B", "H100", tiles=True).base_us(np.arange(1, 600))
    growth = np.diff(times)
    assert (np.flatnonzero(growth > 20 * np.median(growth)) + 1).tolist() == [64, 128, 256, 512]


# ---- measured steps -------------------------------------------------------------------------------------------------


def _measured() -> list[dict[str, str]]:
    if not MEASURED.exists():
        pytest.skip(f"{MEASURED} is not here; the record holds us to a copy of these points")
    with MEASURED.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("tiles", [False, True], ids=["smooth", "tiles"])
def test_median_error_is_at_most_6_and_p95_at_most_22_percent_per_device_and_kind(tiles: bool) -> None:
    # Columns: T tokens in the step; c prompt tokens after p computed ones; D decodes at context ctx each; ms measured.
    errors: dict[tuple[str, str], list[float]] = {}
    for row in _measured():
        served = service(row["model"], GPU_OF[row["dev"]], int(row["tp"]), tiles=tiles)
        units = attention_units(int(row["c"]), int(row["p"]))
        model_us = served.step_us(int(row["T"]), int(row["D"]) * int(row["ctx"]), units)
        errors.setdefault((row["dev"], row["kind"]), []).append(abs(float(model_us) / 1e3 / float(row["ms"]) - 1))
    assert set(errors) == {(device, kind) for device in GPU_OF for kind in ("decode", "prefill", "hybrid")}
    for key, off in errors.items():
        assert np.median(off) <= 0.06, key
        assert np.quantile(off, 0.95) <= 0.22, key


def test_shapes_give_the_parameters_kv_bytes_and_attention_flop_of_the_measured_configurations() -> None:
    # P: layer parameters per GPU. KVd: bytes of decode context per GPU. A: attention FLOP per GPU. L, d: layers, width.
    seen = set()
    for row in _measured():
        model, tp = MODELS[row["model"]], int(row["tp"])
        served = service(row["model"], GPU_OF[row["dev"]], tp)
        assert model.layer_parameters == float(row["P"]) * tp
        assert (model.layers, model.hidden) == (int(row["L"]), int(row["d"]))
        assert served.kv_bytes_per_token_per_gpu * int(row["D"]) * int(row["ctx"]) == float(row["KVd"])
        flop = served.attention_us * 1e-6 * served.gpu.peak_flops * served.fit.attention
        assert flop * attention_units(int(row["c"]), int(row["p"])) == pytest.approx(float(row["A"]))
        seen.add((row["model"], tp))
    assert len(seen) == 6


# ---- models and memory ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "parameters"),
    [  # as counted in the published checkpoints; ours leave out norms and biases (most in OPT: 2,672,640)
        ("Llama-3-8B", 8_030_261_248),
        ("Llama-2-7B", 6_738_415_616),
        ("Mistral-7B", 7_241_732_096),
        ("OPT-13B", 12_853_473_280),
        ("Yi-34B", 34_388_917_248),
        ("CodeLlama-34B", 33_743_970_304),
        ("Llama-2-70B", 68_976_648_192),
    ],
)
def test_shapes_give_the_published_parameter_counts(model: str, parameters: int) -> None:
    shape = MODELS[model]
    assert shape.layer_parameters + shape.embedding_parameters == pytest.approx(parameters, rel=3e-4)


def test_a_token_of_opt_13b_keeps_800_kib_of_kv() -> None:
    # PagedAttention (SOSP 2023), section 3: 2 (key and value) · 5120 · 40 layers · 2 bytes.
    assert service("OPT-13B", "A100-40G").kv_bytes_per_token == 800 * 1024


def test_grouped_query_attention_keeps_a_quarter_of_the_kv() -> None:
    assert service("Llama-2-7B", "A100-80G").kv_bytes_per_token == 512 * 1024
    assert service("Llama-3-8B", "A100-80G").kv_bytes_per_token == 128 * 1024


def test_kv_fills_what_the_weights_leave() -> None:
    # OPT-13B: 12,582,912,000 in the layers, 5,120 · (50,272 + 2,050) = 267,888,640 in the embeddings: 25,701,601,280 B.
    # A100-40G: 42,949,672,960 B · 0.9 = 38,654,705,664; left 12,953,104,384; / 819,200 = 15,811.9 tokens; / 16 = 988.2 blocks.
    served = service("OPT-13B", "A100-40G")
    assert served.weight_bytes == 25_701_601_280
    assert (served.kv_tokens(), served.blocks(16)) == (15_811, 988)


def test_tensor_parallel_splits_weights_and_kv() -> None:
    # Each of 4 GPUs keeps a quarter of every token's KV and of the weights, so 4 GPUs fit as much as one with 4 times the
    # memory: (4 · 85,899,345,920 · 0.9 - 2 · 68,975,329,280) / 327,680 = 522,710.9 tokens.
    served = service("Llama-2-70B", "A100-80G", tp=4)
    assert served.kv_bytes_per_token_per_gpu == 327_680 // 4
    assert served.kv_tokens() == math.floor((4 * 85_899_345_920 * 9 // 10 - 2 * 68_975_329_280) / 327_680)


def test_gpus_that_were_not_measured_have_the_a100s_efficiencies() -> None:
    for name in ("A100-40G", "A40"):
        assert GPUS[name].smooth == GPUS["A100-80G"].smooth
        assert GPUS[name].tiled == GPUS["A100-80G"].tiled
        assert "not measured" in GPUS[name].source


# ---- what is refused ------------------------------------------------------------------------------------------------


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'GPT-5'; known: Llama-3-8B, .*Llama-2-70B"):
        service("GPT-5", "H100")
    with pytest.raises(ValueError, match=r"unknown GPU 'B200'; known: A100-80G, H100, A100-40G, A40"):
        service("Llama-3-8B", "B200")


def test_tensor_parallel_is_1_2_4_or_8_and_divides_the_heads() -> None:
    with pytest.raises(ValueError, match="tp must be one of 1, 2, 4, 8, not 3"):
        service("Llama-3-8B", "H100", tp=3)
    odd = dataclasses.replace(MODELS["Llama-3-8B"], name="odd", heads=36, kv_heads=36)
    with pytest.raises(ValueError, match="tp=8 does not divide the heads of odd: 36 query, 36 key/value"):
        Service(odd, GPUS["H100"], tp=8)


def test_weights_that_do_not_fit_say_how_many_gpus_would_do() -> None:
    with pytest.raises(
        ValueError, match=r"weights of Llama-2-70B take 138.0 GB .* tp=1, .* 85.9 GB of A100-80G: use tp=2 or more"
    ):
        service("Llama-2-70B", "A100-80G")
    # Two GPUs hold the weights, but not in half of their memory.
    with pytest.raises(ValueError, match="use tp=4 or more"):
        service("Llama-2-70B", "A100-80G", tp=2).kv_tokens(0.5)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_overhead_is_a_finite_time(value: float) -> None:
    with pytest.raises(ValueError, match="overhead_us must be 0 µs or more"):
        service("Llama-3-8B", "H100", overhead_us=value)
    with pytest.raises(ValueError, match="overhead_per_request_us must be 0 µs or more"):
        service("Llama-3-8B", "H100", overhead_per_request_us=value)


def test_memory_utilization_and_block_size_have_ranges() -> None:
    served = service("Llama-3-8B", "H100")
    for share in (0.0, 1.01, math.nan):
        with pytest.raises(ValueError, match="memory_utilization must be above 0 and at most 1"):
            served.kv_tokens(share)
    with pytest.raises(ValueError, match="block_size must be at least 1 token, not 0"):
        served.blocks(0)


def test_equal_services_are_one_key_of_a_cache() -> None:
    assert len({service("Yi-34B", "H100", tp=2), service("Yi-34B", "H100", tp=2), service("Yi-34B", "H100", tp=4)}) == 2
