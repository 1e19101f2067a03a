"""Mixtures of experts, latent attention, windows, formats and the context limit: by hand and as published."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmscale_env import cards as cards_command
from llmscale_env.cluster.card_files import CardFileError, card_from_config
from llmscale_env.cluster.cards import (
    GpuCard,
    LlmCard,
    UnknownCardError,
    gpu_card,
    known_gpus,
    known_llms,
    llm_card,
    register_llm,
)
from llmscale_env.cluster.iteration_time import basis, iteration_time_model
from llmscale_env.cluster.kv import fitting_tp, kv_capacity_tokens
from llmscale_env.cluster.loading import load_times_s
from llmscale_env.cluster.roofline import (
    EXPERT_COMPUTE_SHARE,
    EXPERT_READ_SHARE,
    expert_s,
    matrix_s,
    published_runs,
    roofline_bands,
    roofline_model,
    roofline_pairs,
    shipped_efficiency,
)
from llmscale_env.cluster.roofline_fit import fit_experts
from llmscale_env.scenarios import load_scenario
from llmscale_env.scenarios.load import ScenarioError
from llmscale_env.sim.compile import compile_cluster
from llmscale_env.sim.engine import ENGINES, make_engine
from llmscale_env.sim.spec import RequestState
from llmscale_env.workload.requests import RequestTable
from tests.refusals import refuses
from tests.small_world import SMALL_WORLD

# Bytes of the weights in the published files, and weights that a token is multiplied with by the makers' own
# count: with the output head (gpt-oss, DeepSeek), or with head and embedding (Qwen, Mistral), one more table
# of vocabulary times hidden. Sources: indices of the safetensors, model cards, DeepSeek's README_WEIGHTS.
PUBLISHED_BYTES = {
    "llama-3.3-70b": 141_107_412_992,
    "qwen3-4b": 8_044_936_192,
    "qwen3-8b": 16_381_470_720,
    "qwen3-14b": 29_536_614_400,
    "qwen3-32b": 65_524_246_528,
    "qwen3-30b-a3b": 61_064_245_248,
    "qwen3-235b-a22b": 470_187_269_120,
    "gpt-oss-20b": 13_761_264_768,
    "gpt-oss-120b": 65_248_815_744,
    "mixtral-8x7b": 93_405_585_408,
    "mixtral-8x22b": 281_241_268_224,
    "mistral-7b-v0.3": 14_496_047_104,
    "mistral-nemo": 24_495_564_800,
}
PUBLISHED_ACTIVE = {
    "gpt-oss-20b": (3.6e9, 0),
    "gpt-oss-120b": (5.1e9, 0),
    "deepseek-v3": (36.6e9, 0),
    "qwen3-30b-a3b": (3.353e9, 151_936 * 2048),
    "qwen3-235b-a22b": (22.1e9, 151_936 * 4096),
    "mixtral-8x7b": (12.9e9, 32_000 * 4096),
    "mixtral-8x22b": (39.1e9, 32_000 * 6144),
}


@pytest.mark.parametrize("name", PUBLISHED_BYTES)
def test_weight_bytes_are_those_of_the_published_files(name: str):
    assert llm_card(name).weight_bytes == PUBLISHED_BYTES[name]


@pytest.mark.parametrize("name", PUBLISHED_ACTIVE)
def test_active_weights_are_the_makers(name: str):
    published, embedding = PUBLISHED_ACTIVE[name]
    assert llm_card(name).active_parameters + embedding == pytest.approx(published, rel=0.01)


def test_a_mixture_of_experts_by_hand():
    card = llm_card("mixtral-8x7b")
    attention = 4096 * 128 * (2 * 32 + 2 * 8)
    expert = 3 * 4096 * 14336
    assert (card.attention_weights, card.expert_weights) == (attention, expert)
    assert card.layer_weights == 32 * (attention + 8 * expert + 4096 * 8)
    assert card.active_parameters == 32 * (attention + 2 * expert + 4096 * 8) + 32_000 * 4096
    assert card.experts_per_gpu(4) == 2
    assert card.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2 == 131_072


def test_latent_attention_by_hand():
    card = llm_card("deepseek-v3")
    queries = 7168 * 1536 + 1536 * 128 * (128 + 64)
    keys = 7168 * (512 + 64) + 512 * 128 * (128 + 128)
    assert card.attention_weights == queries + keys + 128 * 128 * 7168
    # One latent of 512 and 64 rotary values per token and layer, not one for K and one for V.
    assert card.kv_bytes_per_token == 61 * 576 * 2 == 70_272
    assert card.kv_bytes_per_token_per_gpu(8) == 70_272  # every GPU has all of it
    dense, experts = 3 * 3 * 7168 * 18432, 58 * (256 + 1) * 3 * 7168 * 2048
    assert card.layer_weights == 61 * card.attention_weights + dense + experts + 58 * 7168 * 256
    # 671 billion weights, those of the layers in 8 bits with a scale of 32 for 128 x 128 of them.
    quantised = card.layer_weights - card.router_weights
    expected = quantised * (1 + 4 / 16384) + (card.parameters - quantised) * 2
    assert card.weight_bytes == round(expected) == 673_150_575_280


def test_sliding_windows_by_hand():
    card = llm_card("gpt-oss-20b")
    per_layer = 2 * 8 * 64 * 2
    assert card.kv_bytes(100) == 24 * 100 * per_layer
    assert card.kv_bytes(8192) == (12 * 8192 + 12 * 128) * per_layer == 204_472_320
    assert card.kv_bytes_per_token == (12 * 1024 + 12 * 128) * per_layer / 1024 == 27_648
    long = replace(card, name="long-window", window=4096)
    assert long.kv_bytes_per_token == 24 * per_layer  # such a window counts as none
    assert long.sliding_layers == 0


def test_formats_by_hand():
    card = llm_card("llama-3.3-70b")
    layers = 80 * (8192 * 128 * (2 * 64 + 2 * 8) + 3 * 8192 * 28672)
    plain = 70_553_706_496 - layers
    assert llm_card("llama-3.3-70b-fp8").weight_bytes == round(layers * (1 + 4 / 16384) + plain * 2)
    assert llm_card("llama-3.3-70b-nvfp4").weight_bytes == layers * 9 // 16 + plain * 2
    both = llm_card("Llama 3.3 70B-FP8-KV-FP8")
    assert (both.name, both.compute) == ("llama-3.3-70b-fp8-kv-fp8", "fp8")
    assert both.kv_bytes_per_token == card.kv_bytes_per_token // 2 == 163_840
    # 141 GB of weights fit two GPUs of 80 GB, a third of them fits one.
    assert fitting_tp("llama-3.3-70b", "h100") == (2, 4, 8)
    assert fitting_tp("llama-3.3-70b-nvfp4", "h100") == (1, 2, 4, 8)
    with pytest.raises(UnknownCardError, match="stored in fewer than 16 bits as it is"):
        llm_card("gpt-oss-20b-fp8")
    with pytest.raises(UnknownCardError, match=r"llm = 'qwen3-33b-fp8'.*Did you mean 'qwen3-32b'"):
        llm_card("qwen3-33b-fp8")
    assert register_llm(both) is both
    assert both.name not in known_llms()  # its name says it all, in any process


def test_tensor_cores_without_a_format_multiply_in_bf16():
    hopper, ampere, blackwell = (gpu_card(name) for name in ("h200", "a100-40gb", "b200"))
    assert hopper.peak_flops_per_s("fp8") == 1979e12
    assert hopper.peak_flops_per_s("fp4") == hopper.peak_flops_per_s() == 989e12
    assert ampere.peak_flops_per_s("fp8") == 312e12
    assert blackwell.peak_flops_per_s("fp4") == 9e15
    assert gpu_card("l40s").link_bytes_per_s(2) == 32e9  # no NVLink: PCIe
    assert hopper.link_bytes_per_s(8) == 450e9


def test_every_card_of_the_issue_is_there_with_its_source():
    for name in ("h100", "h200", "b200", "l40s", "a100-40gb"):
        assert gpu_card(name).source.startswith(("https://", "NVIDIA"))
    for name in known_llms()[known_llms().index("llama-3.3-70b") :]:
        card = llm_card(name)
        assert card.source.startswith("https://huggingface.co/")
        assert card.context_limit >= 32768
    assert llm_card("qwen/Qwen3-30B-A3B").name == "qwen3-30b-a3b"
    assert llm_card("llama-2-7b").context_limit == 4096


def test_distinct_experts_are_what_a_draw_finds():
    card, rng = llm_card("qwen3-30b-a3b"), np.random.default_rng(0)
    for tokens in (1, 4, 16, 64):
        drawn = [
            len({e for _ in range(tokens) for e in rng.permutation(128)[:8]}) for _ in range(200)
        ]
        assert card.distinct_experts(tokens) == pytest.approx(np.mean(drawn), rel=0.02)
    assert card.distinct_experts(0) == 0
    assert card.distinct_experts(1) == pytest.approx(8)


def test_a_few_tokens_read_few_experts_and_many_read_all():
    card, gpu = llm_card("qwen3-30b-a3b"), gpu_card("h200")
    efficiency = shipped_efficiency()[0]
    one, many = (expert_s(card, gpu, 1, np.array([float(n)]), efficiency)[0] for n in (1, 1000))
    expert_bytes = 3 * 2048 * 768 * 2
    assert one == pytest.approx(8 * expert_bytes / (4.8e12 * EXPERT_READ_SHARE))
    assert many == pytest.approx(128 * expert_bytes / (4.8e12 * EXPERT_READ_SHARE), rel=1e-6)
    # 100,000 tokens compute eight experts each.
    lots = expert_s(card, gpu, 2, np.array([1e5]), efficiency)[0]
    flops = 2 * 8 * 1e5 * 3 * 2048 * 768 / 2
    assert lots == pytest.approx(flops / (989e12 * EXPERT_COMPUTE_SHARE))


def test_shares_of_experts_are_those_of_measured_products():
    read, compute, rest_s, off = fit_experts()
    assert (round(read, 2), round(compute, 2)) == (EXPERT_READ_SHARE, EXPERT_COMPUTE_SHARE)
    assert 0 < rest_s < 2e-5
    assert len(off) == 16
    assert np.abs(off).max() < 0.2


@pytest.mark.parametrize("llm", ["qwen3-8b", "qwen3-30b-a3b", "llama-3.1-8b-fp8"])
@pytest.mark.parametrize("gpu", ["h100", "b200", "l40s"])
def test_the_prefill_line_is_the_roofline_at_every_token(llm: str, gpu: str):
    model, card = roofline_model(llm, gpu), llm_card(llm)
    tokens = np.array([1, 2, 100, 183, 184, 185, 186, 264, 265, 300, 1000, 4000, 20_000, 10**5])
    exact = matrix_s(card, gpu_card(gpu), 1, tokens.astype(float), shipped_efficiency()[0])
    line = [model.prefill_s(t, 0) for t in tokens]
    hinges = np.isin(tokens, [1, 2])
    assert line == pytest.approx(exact, rel=0.06 if card.experts else 0.01)
    assert np.array(line)[hinges] == pytest.approx(exact[hinges], rel=1e-6)


def test_lines_on_which_published_results_rest_stay_as_they_are():
    """SageServe's week, Aladdin on V100 and QLM on A10: two hinges, the slope of the token that bends."""
    for where in (
        ("llama-3.1-8b", "a100-80gb", 8),
        ("llama-2-7b", "v100-32gb", 1),
        ("mistral-7b", "a10-24gb", 1),
    ):
        llm, gpu, tp = where
        model = roofline_model(*where)
        bend = model.prefill_knot_tokens[-1]
        at = matrix_s(
            llm_card(llm), gpu_card(gpu), tp, np.array([bend, bend + 1.0]), shipped_efficiency()[0]
        )
        assert model.prefill_knot_tokens == (0, bend)
        assert model.prefill_slope_s == at[1] - at[0]
        exact = roofline_model(replace(llm_card(llm), name="the-same"), gpu, tp)
        assert model.prefill_slope_s < exact.prefill_slope_s
        assert model.decode_base_s == exact.decode_base_s
        assert "too flat" in model.notes
        assert "too flat" not in exact.notes


def test_windows_and_latents_in_the_times():
    oss = llm_card("gpt-oss-20b")
    full = replace(oss, name="no-window", window=0, window_layers=0)
    times, without = roofline_model(oss, "h100"), roofline_model(full, "h100")
    assert times.decode_per_token_s[0] == pytest.approx(without.decode_per_token_s[0] / 2)
    assert times.prefill_pair_s == pytest.approx(without.prefill_pair_s / 2)
    # At twice the window in context both layers read 128 tokens more or less: the same sum.
    assert times.decode_s(8, 8 * 128) == pytest.approx(without.decode_s(8, 8 * 128), rel=1e-9)
    assert times.decode_s(8, 8 * 8192) < without.decode_s(8, 8 * 8192)
    # Latent attention on one GPU computes 128 heads per latent, on eight it reads the same bytes.
    latent = llm_card("deepseek-v3")
    one, eight = (roofline_model(latent, "h100", tp).decode_per_token_s[0] for tp in (1, 8))
    share = shipped_efficiency()[0]
    assert eight == pytest.approx(70_272 / (3.35e12 * share.kv_read))
    flops = 61 * 128 * 2 * (512 + 512 + 64)
    assert one == pytest.approx(max(eight, flops / (989e12 * share.attention_compute)))


def test_fp8_is_faster_where_the_tensor_cores_have_it():
    plain, quantised = "llama-3.1-8b", "llama-3.1-8b-fp8"
    for gpu, ratio in (("h100", 0.56), ("a100-40gb", 1.0)):
        one, other = (roofline_model(name, gpu).prefill_slope_s for name in (plain, quantised))
        assert other / one == pytest.approx(ratio, abs=0.03)
    small = [roofline_model(name, "a100-40gb").decode_s(1, 0) for name in (plain, quantised)]
    assert small[1] < 0.65 * small[0]  # read in 8 bits all the same


def test_the_band_holds_what_it_says():
    bands = roofline_bands()
    for part, band in bands.items():
        inside = []
        for pair in roofline_pairs():
            ratios = getattr(pair, part)
            inside.append(np.mean((ratios >= band.low) & (ratios <= band.high)))
        assert np.mean(inside) == pytest.approx(0.9, abs=0.04)
        assert band.pairs == len(roofline_pairs()) == 11
        assert 0.5 < band.covered < 0.95
    today = next(pair for pair in roofline_pairs() if pair.gpu == "h200-141gb")
    # The engine of today is near the roofline; those of 2023 are up to four times slower.
    assert np.median(today.decode) == pytest.approx(0.85, abs=0.1)
    assert np.median(today.prefill) == pytest.approx(0.98, abs=0.1)


def test_published_runs_of_experts_are_near_the_roofline():
    ratios = {gpu: [] for gpu in ("a100-80gb", "h100-80gb")}
    for run in published_runs():
        model = roofline_model(run.llm, run.gpu, run.tp)
        n, inputs = run.requests, run.input_tokens
        steps = [model.decode_s(n, n * (inputs + k)) for k in range(1, run.output_tokens)]
        assert run.roofline_s == pytest.approx(
            model.prefill_s(n * inputs, n * inputs**2) + sum(steps)
        )
        ratios[run.gpu].append(run.seconds / run.roofline_s)
    # Two A100, eight H100 (vLLM of early 2024): within a third, and within a factor of two.
    assert all(0.75 < ratio < 1.05 for ratio in ratios["a100-80gb"])
    assert all(1.1 < ratio < 1.8 for ratio in ratios["h100-80gb"])


def test_a_time_says_what_it_rests_on():
    band = roofline_bands()["decode"]
    told = basis(iteration_time_model("qwen3-30b-a3b", "h200"))
    assert told.startswith(f"roofline, decode x {band.low:.1f} to {band.high:.1f}, prefill x")
    assert (
        f"{band.low:.1f} to {band.high:.1f} (decode)" in roofline_model("qwen3-8b", "h100").source
    )
    assert basis(iteration_time_model("llama-2-70b", "a100", 4)).startswith("measured (fit off by")
    assert basis(iteration_time_model("llama-3.1-8b", "a100")).startswith("sum of measured kernels")
    carried = iteration_time_model("llama-3.3-70b", "a100", 4)
    assert carried.llm == "llama-3.3-70b"
    assert (
        basis(carried) == "interpolated from llama-3.1-70b on a100-80gb (sum of measured kernels)"
    )
    other = iteration_time_model("llama-2-70b", "a100-80gb-pcie", 4)
    assert basis(other) == "interpolated from llama-2-70b on a100-80gb (measured)"
    assert carried.decode_s(8, 8000) == iteration_time_model("llama-3.1-70b", "a100", 4).decode_s(
        8, 8000
    )


# Files ----------------------------------------------------------------------------------------------------

QWEN_MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936,
    "max_position_embeddings": 40960, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "tie_word_embeddings": False, "sliding_window": 4096, "use_sliding_window": False,
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "hidden_size": 2880, "num_hidden_layers": 24,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880,
    "num_local_experts": 32, "experts_per_token": 4, "vocab_size": 201088, "attention_bias": True,
    "max_position_embeddings": 131072, "sliding_window": 128, "tie_word_embeddings": False,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "moe_layer_freq": 1, "kv_lora_rank": 512, "q_lora_rank": 1536,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "vocab_size": 129280,
    "max_position_embeddings": 163840, "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip
MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "num_local_experts": 8,
    "num_experts_per_tok": 2, "vocab_size": 32000, "max_position_embeddings": 32768, "sliding_window": None,
}  # fmt: skip
QWEN: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
    "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.mark.parametrize(
    "config, name",
    [
        (QWEN_MOE, "qwen3-30b-a3b"),
        (GPT_OSS, "gpt-oss-20b"),
        (DEEPSEEK, "deepseek-v3"),
        (LLAMA, "llama-3.3-70b"),
        (MIXTRAL, "mixtral-8x7b"),
        (QWEN, "qwen3-0.6b"),
    ],
)
def test_a_config_json_is_the_card_of_the_same_model(tmp_path: Path, config: dict, name: str):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    found, card = llm_card(str(path)), llm_card(name)
    shown = ("parameters", "weight_bytes", "active_parameters", "kv_bytes_per_token", "layer_weights",
             "context_limit", "compute", "window_layers", "expert_layers")  # fmt: skip
    assert {k: getattr(found, k) for k in shown} == {k: getattr(card, k) for k in shown}
    assert found.name == str(path)
    gpu, tp = next((g, fitting_tp(card, g)[0]) for g in known_gpus()[::-1] if fitting_tp(card, g))
    assert kv_capacity_tokens(found, gpu, tp) == kv_capacity_tokens(card, gpu, tp)
    assert load_times_s(found, gpu, tp) == load_times_s(card, gpu, tp)
    ours, theirs = (roofline_model(which, gpu, tp) for which in (found, card))
    assert (ours.decode_base_s, ours.prefill_knot_s) == (
        theirs.decode_base_s,
        theirs.prefill_knot_s,
    )


def test_quantised_configs(tmp_path: Path):
    beside = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    plain = llm_card(str(tmp_path / "config.json"))
    (tmp_path / "nv").mkdir()
    (tmp_path / "nv" / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "nv" / "hf_quant_config.json").write_text(json.dumps(beside))
    four = llm_card(str(tmp_path / "nv" / "config.json"))
    assert (
        four.weight_bytes == llm_card("llama-3.3-70b-nvfp4").weight_bytes < plain.weight_bytes / 3
    )
    assert (four.compute, four.bytes_per_kv) == ("fp4", 1.0)
    awq = {**LLAMA, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    assert card_from_config(awq, "x").bytes_per_weight == (4 + 20 / 128) / 8
    nested = {"text_config": LLAMA, "architectures": ["Wrapped"]}
    assert card_from_config(nested, "x").parameters == plain.parameters


def test_window_keys_that_are_no_windows():
    assert card_from_config(QWEN_MOE, "x").window_layers == 0
    used = {**QWEN_MOE, "use_sliding_window": True, "max_window_layers": 28}
    assert card_from_config(used, "x").window_layers == 20
    first = {**MIXTRAL, "sliding_window": 512}
    assert card_from_config(first, "x").window_layers == 32
    silent = {k: v for k, v in GPT_OSS.items() if k != "layer_types"}
    assert card_from_config(silent, "x").window_layers == 12


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "cannot be read"),
        ("{", "not JSON"),
        ("[]", "must hold an object"),
        (
            {**LLAMA, "architectures": ["Gemma3ForCausalLM"]},
            r"Gemma3.*must be one of LlamaForCausalLM",
        ),
        ({}, r"architectures = None: must be one of"),
        ({**LLAMA, "hidden_size": "8192"}, r"hidden_size = '8192': must be a whole number"),
        ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers = 0: must be positive"),
        ({k: v for k, v in LLAMA.items() if k != "vocab_size"}, "vocab_size = None"),
        ({**LLAMA, "num_key_value_heads": 7}, "kv_heads = 7 must divide"),
        ({**QWEN_MOE, "mlp_only_layers": [3]}, r"mlp_only_layers = \[3\]"),
        (
            {**LLAMA, "quantization_config": {"quant_method": "bitsandbytes"}},
            "quant_method = 'bitsandbytes'",
        ),
        ({**LLAMA, "mlp_bias": True}, "mlp_bias"),
    ],
)
def test_configs_that_are_not_understood_are_one_clear_error(tmp_path: Path, content, message: str):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    refuses(message, llm_card, str(path), error=CardFileError)
    with pytest.raises(ScenarioError, match=message):
        load_scenario(SMALL_WORLD, **{"fleet.pools.mixed.llm": str(path)})


def test_a_gpu_from_yaml(tmp_path: Path):
    path = tmp_path / "my_gpu.yaml"
    path.write_text("like: h100\nmemory_bytes_per_s: 3.9e12\nmemory_bytes: 100e9\n")
    card = gpu_card(str(path))
    assert card == replace(
        gpu_card("h100"),
        name=str(path),
        memory_bytes_per_s=3.9e12,
        memory_bytes=100 * 10**9,
        source="user",
    )
    model = iteration_time_model("qwen3-8b", str(path), 2)
    assert (model.gpu, model.kind) == (str(path), "roofline")
    own = tmp_path / "own.yml"
    own.write_text(
        "memory_bytes: 48e9\nflops_per_s: 300e12\nmemory_bytes_per_s: 900e9\n"
        "pcie_bytes_per_s: 32e9\nnvlink_bytes_per_s: 32e9\n"
    )
    assert gpu_card(str(own)) == GpuCard(str(own), 48 * 10**9, 300e12, 900e9, 32e9, 32e9)
    # A file that has changed is read anew.
    own.write_text(own.read_text().replace("900e9", "800e9") + "linked_gpus: 2\n")
    os.utime(own, ns=(1, 1))
    assert gpu_card(str(own)).memory_bytes_per_s == 800e9


@pytest.mark.parametrize(
    "text, message",
    [
        ("- 1", "must hold a mapping"),
        ("like: h1000", "Did you mean 'h100-80gb'"),
        ("like: h100\nname: mine", "the path of its file is the name"),
        ("like: h100\nmemory_bytes_per_second: 3", "did you mean 'memory_bytes_per_s'"),
        ("like: h100\nmemory_bytes_per_s: fast", "memory_bytes_per_s = 'fast' must be a number"),
        ("like: h100\nlinked_gpus: 1.5", "linked_gpus = 1.5 must be a whole number"),
        (f"like: h100\nmemory_bytes: {10**400}", "must be a number"),
        ("like: h100\nmemory_bytes: -1", "memory_bytes = -1 must be positive"),
        ("memory_bytes: 3", "flops_per_s, memory_bytes_per_s"),
        ("like: [", "not valid YAML"),
    ],
)
def test_files_that_are_no_card_are_one_clear_error(tmp_path: Path, text: str, message: str):
    path = tmp_path / "gpu.yaml"
    path.write_text(text)
    refuses(message, gpu_card, str(path), error=CardFileError)
    refuses("must be a YAML file", gpu_card, "config.json", error=CardFileError)


def test_an_llm_from_yaml_and_variants_of_files(tmp_path: Path):
    path = tmp_path / "small@home.yaml"
    path.write_text("like: qwen3-8b\nbytes_per_kv: 1\n")
    card = llm_card(str(path))
    assert card.kv_bytes_per_token == llm_card("qwen3-8b").kv_bytes_per_token / 2
    tuned = llm_card(f"{path}@Mine")
    assert tuned.name == f"{path}@mine"
    assert iteration_time_model(tuned, "h100").llm == str(path)


def test_a_scenario_serves_cards_from_files(tmp_path: Path):
    llm, gpu = tmp_path / "config.json", tmp_path / "gpu.yaml"
    llm.write_text(json.dumps(QWEN_MOE))
    gpu.write_text("like: h200\n")
    changes = {
        "fleet.pools.*.llm": str(llm),
        "fleet.pools.*.gpu": str(gpu),
        "workload.streams.*.llm": str(llm),
        "workload.batch_queues.*.llm": str(llm),
        "fleet.queues.*.llm": str(llm),
    }
    scenario = load_scenario(SMALL_WORLD, **changes)
    pool = scenario.fleet.pools[0]
    assert (pool.llm, pool.gpu) == (str(llm), str(gpu))
    named = load_scenario(SMALL_WORLD, **{"workload.streams.*.llm": "Llama 3.1 8B"})
    assert {stream.llm for stream in named.workload.streams} == {"llama-3.1-8b"}
    # Nothing about it is in this process alone: what goes to another one is the scenario.
    again = pickle.loads(pickle.dumps(scenario))
    profile = compile_cluster(again).profiles[0]
    assert profile.kv_capacity_tokens == kv_capacity_tokens("qwen3-30b-a3b", "h200", pool.tp)
    with pytest.raises(ScenarioError, match=r"deepseek-v3 does not fit on .*gpu\.yaml"):
        load_scenario(SMALL_WORLD, **{**changes, "fleet.pools.*.llm": "deepseek-v3"})


# The command ------------------------------------------------------------------------------------------------


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cards_command.main(list(words)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ("llms",),
        ("gpus",),
        ("fits", "gpu=a100-40gb,a100-80gb,l40s,h100,h200,b200"),
        ("measured",),
        (
            "times",
            "llm=llama-3.1-8b,llama-3.1-8b-fp8,qwen3-30b-a3b,gpt-oss-20b",
            "gpu=h100,h200",
            "tp=1",
        ),
    ],
)
def test_the_page_shows_what_the_command_prints(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    page = (Path(__file__).resolve().parents[1] / "docs" / "cards.md").read_text()
    *tables, last = printed(capsys, *words, "format=markdown").strip().split("\n\n")
    told = f"run: python -m llmscale_env.cards {' '.join(words)} format=markdown"
    assert all(table in page for table in tables or [last]), told
    if words == ("measured",):
        running = " ".join(page.split())
        assert all(f"- {line}" in running for line in last.splitlines()), told


def test_the_command_tells_times_with_their_band_and_why_something_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN_MOE))
    lines = printed(
        capsys, "times", f"llm={path}", "gpu=l40s", "batch=8", "context=100"
    ).splitlines()
    model, band = iteration_time_model(str(path), "l40s", 2), roofline_bands()["decode"]
    ms = 1e3 * model.decode_s(8, 800)
    assert "tp = 1: " in lines[1]
    assert "does not fit on l40s-48gb: each GPU would need 61.1 GB of weights" in lines[1]
    assert f"{ms:.3g} ({ms * band.low:.3g} to {ms * band.high:.3g})" in lines[2]
    assert "roofline, decode x" in lines[2]
    (measured,) = printed(capsys, "times", "llm=llama-2-70b", "gpu=a100", "tp=4").splitlines()[1:2]
    assert "measured (fit off by decode 2.0 %, prefill 4.7 %)" in measured
    assert "nine tenths" not in printed(capsys, "times", "llm=llama-2-70b", "gpu=a100", "tp=4")
    assert "https://huggingface.co/Qwen/Qwen3-8B" in printed(capsys, "sources")


def test_capacities_are_those_that_servers_logged():
    # vLLM 0.26 on an H200 (this project's run); vLLM 0.11 on 80-GB GPUs (OpenTelemetry files of
    # https://github.com/inference-sim/inference-sim, eval/ground_truth): "GPU KV cache size" of each.
    codellama = LlmCard("codellama-34b", 48, 8192, 64, 8, 128, 22016, 32000, 33_743_970_304)
    for llm, gpu, fraction, logged in (
        ("llama-3.1-8b", "h200", 0.92, 919_824),
        ("llama-2-7b", "h100", 0.9, 119_008),
        (codellama, "h100", 0.9, 40_592),
    ):
        tokens = kv_capacity_tokens(llm, gpu, 1, memory_fraction=fraction)
        assert tokens == pytest.approx(logged, rel=0.015)


def test_requests_beyond_the_context_of_their_llm_are_rejected_if_asked_for() -> None:
    """Llama 2 takes 4,096 tokens of prompt and output together."""
    table = RequestTable.build([0.0, 1.0, 2.0], [4_000, 4_000, 9_000], [96, 97, 5])
    for says, rejected in (("reject", [1, 2]), ("ignore", [])):
        scenario = load_scenario("blitzscale-azure-code-7b", **{"fleet.context_limits": says})
        for name in ENGINES:
            engine = make_engine(compile_cluster(scenario), engine=name)
            engine.reset(0, table)
            engine.advance(0, 10**13)
            state = engine.results(0)["state"]
            assert np.flatnonzero(state == RequestState.REJECTED).tolist() == rejected
