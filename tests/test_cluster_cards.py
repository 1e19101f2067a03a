"""Cards, KV capacity and load times: hand-computed cases and published figures."""

from __future__ import annotations

import csv
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import ValidationError

from llmscale_env.cluster.cards import (
    GpuCard,
    LlmCard,
    UnknownCardError,
    gpu_card,
    known_gpus,
    known_llms,
    llm_card,
    register_gpu,
    register_llm,
)
from llmscale_env.cluster.kv import DoesNotFitError, fitting_tp, kv_capacity_tokens
from llmscale_env.cluster.loading import CLUSTER_B, NetworkConfig, chain_s, load_times_s
from tests.refusals import refuses

SHARED = Path(__file__).resolve().parents[1].parent / "shared"
OPT = {
    "facebook/opt-13b": LlmCard("opt-13b", 40, 5120, 40, 40, 128, 20480, 50272, 12_853_473_280),
    "facebook/opt-66b": LlmCard("opt-66b", 64, 9216, 72, 72, 128, 36864, 50272, 65_715_200_000),
    "facebook/opt-175b": LlmCard("opt-175b", 96, 12288, 96, 96, 128, 49152, 50272, 174_600_000_000),
}


def test_kv_bytes_per_token_by_hand():
    assert llm_card("llama-2-7b").kv_bytes_per_token == 2 * 32 * 32 * 128 * 2 == 524_288
    assert llm_card("llama-2-70b").kv_bytes_per_token == 327_680  # 8 KV heads for 64 query heads
    assert llm_card("bloom-176b").kv_bytes_per_token == 4_014_080


def test_a_kv_head_is_copied_once_tp_exceeds_the_kv_heads():
    card = replace(llm_card("llama-2-70b"), name="two-kv-heads", kv_heads=2)
    assert card.kv_bytes_per_token_per_gpu(2) == card.kv_bytes_per_token / 2
    assert card.kv_bytes_per_token_per_gpu(8) == card.kv_bytes_per_token / 2


@pytest.mark.parametrize("name", known_llms())
def test_shape_adds_up_to_the_published_parameters(name: str):
    card = llm_card(name)
    embeddings = card.vocab * card.hidden
    tied = name in ("bloom-176b", "llama-3.2-3b", "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b")
    counted = card.layer_weights + embeddings * (1 if tied else 2)
    # Biases of the experts are 0.3 % of gpt-oss-20b.
    assert counted == pytest.approx(card.parameters, rel=0.004 if "gpt-oss" in name else 0.002)


@pytest.mark.parametrize(
    "spelling, name",
    [
        ("Llama2-70B", "llama-2-70b"),
        ("meta-llama/Llama-2-70b-hf", "llama-2-70b"),
        ("Llama 3.1 8B", "llama-3.1-8b"),
        ("Bloom-176B", "bloom-176b"),
        ("llama_2_7b", "llama-2-7b"),
    ],
)
def test_spellings_of_the_papers(spelling: str, name: str):
    assert llm_card(spelling).name == name


def test_unknown_names_say_what_is_known():
    with pytest.raises(UnknownCardError, match=r"Did you mean 'llama-2-7b'\?.*mistral-7b"):
        llm_card("lama-2-7b")
    with pytest.raises(UnknownCardError, match="Known: a100-80gb, h100-80gb, a10-24gb, v100-32gb"):
        gpu_card("tpu")


def test_own_cards_are_known_by_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("llmscale_env.cluster.cards._GPUS", {})
    card = GpuCard("my-gpu", 2**34, 1e14, 1e12, 1e10, 1e10)
    assert register_gpu(card) is gpu_card("My GPU")
    register_gpu(card)
    refuses("already the card", lambda: register_gpu(replace(card, flops_per_s=2e14)))
    with pytest.raises(ValueError, match="already the card of 'llama-2-7b'"):
        register_llm(replace(llm_card("llama-2-13b"), name="llama2-7b"))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"layers": 0}, "layers = 0"),
        ({"kv_heads": 3}, "kv_heads = 3 must divide"),
        ({"experts": 8, "expert_hidden": 64}, r"experts_per_token = 0 must be in 1\.\.8"),
        ({"experts": 8, "experts_per_token": 2}, "expert_hidden = 0 with experts = 8"),
        ({"kv_lora_rank": 512}, "needs qk_rope_dim"),
        ({"window": 128}, "window_layers = 0 with window = 128"),
        ({"compute": "fp6"}, "compute = 'fp6' must be one of bf16, fp8, fp4"),
        ({"context_limit": -1}, "context_limit = -1"),
        ({"parameters": 10**9}, "is less than the"),
        ({"name": "Llama 2"}, "lower case"),
    ],
)
def test_impossible_cards_are_errors(change: dict, message: str):
    refuses(message, lambda: replace(llm_card("llama-2-7b"), **change))


def test_capacity_by_hand():
    # 79.15 GiB * 0.9 - 6,738,415,616 * 2 bytes - 4096 tokens * (4*4096 + 2*11008 + 32000) * 2 bytes
    free = int(79.15 * 2**30) * 0.9 - 13_476_831_232 - 4096 * 70_400 * 2
    assert kv_capacity_tokens("llama-2-7b", "a100", 1) == int(free // 524_288) == 119_084


@pytest.mark.parametrize("gpu", known_gpus())
@pytest.mark.parametrize("llm", known_llms())
def test_every_llm_fits_every_gpu_or_is_refused(llm: str, gpu: str):
    fits = fitting_tp(llm, gpu)
    tokens = {tp: kv_capacity_tokens(llm, gpu, tp) for tp in fits}
    assert all(count >= 2048 for count in tokens.values())
    card = llm_card(llm)
    for one, other in pairwise(fits):
        # The KV cache is cut as the weights are, until a GPU has one KV head or all latent values.
        cut = card.kv_share(one) / card.kv_share(other)
        assert tokens[other] > cut * tokens[one]
    for tp in {1, 2, 4, 8} - set(fits):
        with pytest.raises(
            (DoesNotFitError, ValueError), match=rf"{llm} does not fit on {gpu}|tp = {tp}: must"
        ) as refused:
            kv_capacity_tokens(llm, gpu, tp)
        assert "\n" not in str(refused.value)


def test_room_for_a_long_prompt_is_the_least_that_fits():
    # 138.0 GB of weights on two GPUs of 69.5 GB; 327,680 bytes of KV per token, half of them on each.
    # Activations take 0.63 GB: what is left of 69.8 GB are 0.2 GB, or 1150 tokens.
    room = GpuCard("small", int(69.8e9 / 0.9), 1e14, 1e12, 1e10, 1e10)
    with pytest.raises(DoesNotFitError, match=r"0\.3 GB of KV cache for 2048 tokens"):
        kv_capacity_tokens("llama-2-70b", room, 2)


def test_what_does_not_fit_says_what_does():
    with pytest.raises(
        DoesNotFitError, match=r"138\.0 GB of weights.*it fits at tp in \[2, 4, 8\]"
    ):
        kv_capacity_tokens("llama-2-70b", "a100-80gb", 1)
    with pytest.raises(DoesNotFitError, match="no degree up to 8 fits"):
        kv_capacity_tokens("bloom-176b", "a10", 8)
    refuses("tp = 3", kv_capacity_tokens, "llama-2-7b", "a100", 3)
    with pytest.raises(ValueError, match=r"memory_fraction = 1\.5"):
        kv_capacity_tokens("llama-2-7b", "a100", 1, memory_fraction=1.5)


def test_capacity_is_near_the_one_distserve_publishes():
    path = SHARED / "data" / "calibration" / "distserve_a100_80g_max_kv_tokens.csv"
    if not path.exists():
        pytest.skip("shared data are not there")
    with path.open() as stream:
        rows = [r for r in csv.DictReader(stream) if r["pp"] == "1"]
    compared = 0
    for row in rows:
        card, tp = OPT[row["model"]], int(row["tp"])
        published = int(row["max_num_tokens"])
        # Theirs fills 93 % of 80 GiB, ours 90 % of 79.15 and keeps 1 GB of activations free.
        spare = 0.055 * tp * 80 * 2**30 / card.kv_bytes_per_token
        assert published - spare < kv_capacity_tokens(card, "a100", tp) < published
        compared += 1
    assert compared == 12


def test_ssd_time_is_the_one_blitzscale_states():
    bare = NetworkConfig(startup_s=0)
    # "a 4-GPU 70 B instance needs 28 seconds", "Llama-2 7B ... 11.2 seconds with 10 Gbps SSD"
    assert load_times_s("llama-2-70b", "a100", 4, bare)["ssd"] == pytest.approx(28, rel=0.02)
    assert load_times_s("llama-2-7b", "a100", 1, bare)["ssd"] == pytest.approx(11.2, rel=0.05)


@pytest.mark.parametrize("llm", ["llama-3.1-8b", "llama-2-13b", "llama-2-70b"])
def test_default_load_times_are_in_chirons_range(llm: str):
    times = load_times_s(llm, "a100", fitting_tp(llm, "a100")[0])
    assert 15 < times["ssd"] < 60
    assert times["host"] < times["ssd"] / 3
    assert times["multicast"] == pytest.approx(times["host"], rel=0.35)


def test_ssd_of_a_host_is_shared_by_the_shards():
    network = NetworkConfig(ssd_host_bytes_per_s=2.5e9, startup_s=0)
    weights = llm_card("llama-2-70b").weight_bytes
    assert load_times_s("llama-2-70b", "a100", 4, network)["ssd"] == pytest.approx(weights / 2.5e9)
    assert load_times_s("llama-2-70b", "a100", 2, network)["ssd"] == pytest.approx(weights / 2.5e9)


def test_a_chain_takes_the_time_of_its_slowest_link():
    # 10 layers of 1 byte over links of 1 and 2 bytes/s: the first layer is there after 1.5 s, the
    # other nine follow one a second, whichever link comes first.
    assert chain_s(10, [1.0], 10) == 10
    assert chain_s(10, [1.0, 2.0], 10) == chain_s(10, [2.0, 1.0], 10) == 10.5
    assert chain_s(10, [1.0, 2.0, 2.0, 2.0], 10) == 11.5


def test_multicast_hardly_depends_on_the_receivers():
    one = load_times_s("llama-2-70b", "a100", 4)["multicast"]
    seven = load_times_s("llama-2-70b", "a100", 4, receivers=7)["multicast"]
    assert one < seven < 1.1 * one
    inside = load_times_s("llama-3.1-8b", "a100", 1, same_host=True)["multicast"]
    # BlitzScale: 120 ms to broadcast Llama 3 8B within a host.
    assert inside - NetworkConfig().startup_s == pytest.approx(0.08, abs=0.04)
    assert load_times_s("llama-3.1-8b", "a100", 1, CLUSTER_B, same_host=True)["multicast"] > inside


def test_bad_networks_and_chains():
    refuses("ssd_bytes_per_s", NetworkConfig, ssd_bytes_per_s=0, error=ValidationError)
    with pytest.raises(ValidationError, match="ssd_speed"):
        NetworkConfig(ssd_speed=1)  # type: ignore[call-arg]
    refuses("at least one link", chain_s, 1, [], 1)
    refuses("receivers = 0", load_times_s, "llama-2-7b", "a100", receivers=0)
