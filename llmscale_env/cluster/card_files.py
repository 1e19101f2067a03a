"""Cards from files: a model's `config.json` as Hugging Face has it, and YAML with a card's fields.

The path is the card's name: a scenario that names it means the same in every process. A relative path
is looked for where the command runs.

A YAML file names fields of `GpuCard` or `LlmCard`; `like: CARD` takes the others from a card that is known:

    like: h100-80gb
    memory_bytes_per_s: 3.9e12
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from llmscale_env._reading import Unreadable, read_json, read_yaml
from llmscale_env.cluster.cards import (
    FP8_BYTES,
    MXFP4_BYTES,
    NVFP4_BYTES,
    PLAIN_BYTES,
    GpuCard,
    LlmCard,
    UnknownCardError,
    card_from,
    gpu_card,
    llm_card,
)

ARCHITECTURES = (
    "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM", "MixtralForCausalLM", "GptOssForCausalLM", "DeepseekV3ForCausalLM",
)  # fmt: skip
"""Whose `config.json` is understood. A wrong count is worse than none, so others are refused."""

_EXPERTS = (
    "Qwen3MoeForCausalLM", "MixtralForCausalLM", "GptOssForCausalLM", "DeepseekV3ForCausalLM",
)  # fmt: skip

_Card = TypeVar("_Card", GpuCard, LlmCard)


class CardFileError(UnknownCardError):
    """A file that is no card; the message names the file and the field."""


def gpu_from_file(path: str) -> GpuCard:
    """The card of a YAML file with fields of `GpuCard`.

    Raises:
        CardFileError: the file cannot be read, or is no card.
    """
    if path.endswith(".json"):
        raise CardFileError(f"gpu = {path!r}: must be a YAML file with a card's fields")
    return _gpu(path, *_stamp("gpu", path))


def llm_from_file(path: str) -> LlmCard:
    """The card of a Hugging Face `config.json`, or of a YAML file with fields of `LlmCard`.

    A `hf_quant_config.json` beside the first says in which format its weights are (ModelOpt).

    Raises:
        CardFileError: the file cannot be read, is no card, or of an architecture not in `ARCHITECTURES`.
    """
    return _llm(path, *_stamp("llm", path))


def _stamp(what: str, path: str) -> tuple[int, int]:
    """When a file was changed, and how long it is: a card is read anew when the file is another."""
    try:
        found = Path(path).stat()
    except OSError as error:
        raise CardFileError(f"{what} = {path!r}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise CardFileError(f"{what} = {path!r}: cannot be read ({error})") from None
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=64)
def _gpu(path: str, changed: int, size: int) -> GpuCard:
    return _from_yaml(GpuCard, "gpu", path)


@lru_cache(maxsize=64)
def _llm(path: str, changed: int, size: int) -> LlmCard:
    if not path.endswith(".json"):
        return _from_yaml(LlmCard, "llm", path)
    try:
        config = read_json(Path(path))
        beside = Path(path).with_name("hf_quant_config.json")
        quantised = read_json(beside) if beside.is_file() else None
    except Unreadable as error:
        raise CardFileError(f"llm = {path!r}: {error}") from None
    try:
        return card_from_config(config, path, quantised)
    except ValueError as error:
        raise CardFileError(f"llm = {path!r}: {error}") from None


def _from_yaml(kind: type[_Card], what: str, path: str) -> _Card:
    try:
        found = read_yaml(Path(path))
    except Unreadable as error:
        raise CardFileError(f"{what} = {path!r}: {error}") from None
    try:
        if not isinstance(found, dict):
            raise ValueError("must hold a mapping of fields")
        if "name" in found:
            raise ValueError("leave name out: the path of its file is the name of a card")
        own = {"source": "user", **found}
        like = own.pop("like", None)
        if like is not None:
            if not isinstance(like, str):
                raise ValueError(f"like = {like!r} must be the name of a card")
            # Times that were measured on the other card are not those of a changed one.
            known = asdict((gpu_card if what == "gpu" else llm_card)(like)) | {"times_of": ""}
            own = {**known, **own}
        return card_from(kind, {**own, "name": path})
    except ValueError as error:
        raise CardFileError(f"{what} = {path!r}: {error}") from None


def card_from_config(
    config: Mapping[str, Any], name: str, quantised: Mapping[str, Any] | None = None
) -> LlmCard:
    """The card that a Hugging Face `config.json` describes.

    Weights are counted from the shape: norms, biases, sinks and routers as the architectures have them in
    vLLM 0.26. A layer for multi-token prediction is not loaded and not counted.

    Args:
        config: what the file holds; that of a multimodal model has the LLM under `text_config`.
        name: of the card.
        quantised: what `hf_quant_config.json` holds, which ModelOpt writes beside it.

    Raises:
        ValueError: a key is missing or of another type, or what it says is not understood.
    """
    if not isinstance(config, Mapping):
        raise ValueError("must hold an object")
    text = config.get("text_config")
    read = _Config({**config, **text} if isinstance(text, Mapping) else config)
    named = read.values.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else None
    if architecture not in ARCHITECTURES:
        raise ValueError(f"architectures = {named!r}: must be one of {', '.join(ARCHITECTURES)}")
    hidden, heads = read.whole("hidden_size"), read.whole("num_attention_heads")
    head_dim = read.whole("head_dim", default=hidden // heads)
    mla = architecture == "DeepseekV3ForCausalLM"
    card: dict[str, Any] = {
        "name": name,
        "source": name,
        "layers": read.whole("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": read.whole("num_key_value_heads", default=heads),
        "head_dim": read.whole("v_head_dim") if mla else head_dim,
        "mlp_hidden": read.whole("intermediate_size"),
        "vocab": read.whole("vocab_size"),
        "mlp_matrices": 3,
        "context_limit": read.whole("max_position_embeddings"),
    }
    if mla:
        card |= {
            "kv_lora_rank": read.whole("kv_lora_rank"),
            "q_lora_rank": read.whole("q_lora_rank", default=0),
            "qk_rope_dim": read.whole("qk_rope_head_dim"),
            "qk_nope_dim": read.whole("qk_nope_head_dim"),
            "v_head_dim": card["head_dim"],
        }
    if architecture in _EXPERTS:
        card |= _experts(read)
    card |= _window(read, architecture, card["layers"])
    card |= _formats(read, quantised)
    # The card checks itself; with a count that no check refuses it knows the shape's weights.
    shape = LlmCard(**card, parameters=2**60)
    matrices = shape.layer_weights + shape.vocab * hidden * (
        1 if read.flag("tie_word_embeddings") else 2
    )
    return LlmCard(**card, parameters=matrices + _vectors(shape, read, architecture))


class _Config:
    """Keys of a `config.json`, checked as they are read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def get(self, *names: str) -> Any:
        return next((self.values[n] for n in names if self.values.get(n) is not None), None)

    def whole(self, *names: str, default: int | None = None) -> int:
        value = self.get(*names)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**40:
            raise ValueError(f"{names[0]} = {value!r}: must be a whole number")
        if value == 0 and default is None:
            raise ValueError(f"{names[0]} = 0: must be positive")
        return value

    def flag(self, name: str) -> bool:
        return bool(self.values.get(name))


def _experts(read: _Config) -> dict[str, int]:
    """A mixture of experts in all layers but the first few."""
    patterns = {
        "mlp_only_layers": ([], None),
        "decoder_sparse_step": (1, None),
        "moe_layer_freq": (1, None),
    }
    for key, allowed in patterns.items():
        if read.values.get(key) not in allowed:
            raise ValueError(
                f"{key} = {read.values[key]!r}: dense layers in between are not understood"
            )
    width = read.whole("intermediate_size")
    return {
        "experts": read.whole("num_experts", "num_local_experts", "n_routed_experts"),
        "experts_per_token": read.whole("num_experts_per_tok", "experts_per_token"),
        "expert_hidden": read.whole("moe_intermediate_size", default=width),
        "shared_experts": read.whole("n_shared_experts", default=0),
        "dense_layers": read.whole("first_k_dense_replace", default=0),
    }


def _window(read: _Config, architecture: str, layers: int) -> dict[str, int]:
    """Layers with a sliding window: a key alone is none, since Qwen's files have it unused."""
    window = read.whole("sliding_window", default=0)
    if architecture.startswith("Qwen") and not read.flag("use_sliding_window"):
        window = 0
    if not window:
        return {}
    kinds = read.values.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        sliding = sum(kind == "sliding_attention" for kind in kinds)
    elif architecture == "GptOssForCausalLM":  # every other one, the first first
        sliding = (layers + 1) // 2
    elif architecture.startswith("Qwen"):
        sliding = max(0, layers - read.whole("max_window_layers"))
    else:
        sliding = layers
    return {"window": window, "window_layers": sliding} if sliding else {}


def _formats(read: _Config, quantised: Mapping[str, Any] | None) -> dict[str, Any]:
    """Bytes of a weight and of a KV value, and what is multiplied in."""
    plain = 4 if read.get("torch_dtype", "dtype") == "float32" else PLAIN_BYTES
    found = read.values.get("quantization_config")
    if not found and quantised is not None:
        inner = quantised.get("quantization")
        found = {"quant_method": "modelopt", **inner} if isinstance(inner, Mapping) else {}
    if not isinstance(found, Mapping) or not found:
        return {"bytes_per_weight": plain}
    method, algorithm = found.get("quant_method"), str(found.get("quant_algo", "")).upper()
    kv = {"bytes_per_kv": 1.0} if found.get("kv_cache_quant_algo") == "FP8" else {}
    if method == "mxfp4":  # of the experts alone; read in 4 bits, multiplied in 16
        return {"bytes_per_weight": plain, "bytes_per_expert_weight": MXFP4_BYTES, **kv}
    if method == "fp8":
        return {
            "bytes_per_weight": FP8_BYTES if found.get("weight_block_size") else 1.0,
            "compute": "fp8",
            **kv,
        }
    if method == "modelopt" and "NVFP4" in algorithm:
        return {"bytes_per_weight": NVFP4_BYTES, "compute": "fp4", **kv}
    if method == "modelopt" and "FP8" in algorithm:
        return {"bytes_per_weight": 1.0, "compute": "fp8", **kv}
    if method in ("awq", "gptq"):
        # A scale of 16 bits and a zero of 4 for a group; multiplied in 16.
        inside = _Config(found)
        group = inside.whole("group_size", "q_group_size", default=128)
        bits = inside.whole("bits", "w_bit", default=4)
        return {"bytes_per_weight": (bits + 20 / group) / 8, **kv}
    raise ValueError(
        f"quantization_config.quant_method = {method!r} (quant_algo {algorithm or None!r}): "
        "must be fp8, mxfp4, awq, gptq, or modelopt with FP8 or NVFP4"
    )


def _vectors(card: LlmCard, read: _Config, architecture: str) -> int:
    """Weights that are no matrices: norms, biases, attention sinks."""
    per_layer = 2 * card.hidden
    if card.kv_lora_rank:
        per_layer += card.q_lora_rank + card.kv_lora_rank
    heads = card.heads * card.head_dim + 2 * card.kv_heads * card.head_dim
    if architecture == "Qwen2ForCausalLM":  # always, and never said
        per_layer += heads
    elif read.flag("attention_bias"):
        per_layer += heads + card.hidden
    if architecture in ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM"):  # norms of queries and keys
        per_layer += 2 * card.head_dim
    if read.flag("mlp_bias"):
        raise ValueError("mlp_bias = true: is not understood")
    total = card.layers * per_layer + card.hidden
    router = card.experts if architecture in ("GptOssForCausalLM", "DeepseekV3ForCausalLM") else 0
    total += card.expert_layers * router
    if architecture == "GptOssForCausalLM":
        total += card.layers * card.heads
        total += card.expert_layers * card.experts * (2 * card.expert_hidden + card.hidden)
    return total
