"""Cards of GPUs and LLMs: the few published numbers that everything else is derived from.

KV bytes per token, weight bytes, KV capacity, load times and the roofline all come from here. A
card of one's own is registered with `register_gpu` or `register_llm` and is then known by its
name everywhere.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields, replace
from typing import TypeVar

GIB = 2**30


class UnknownCardError(ValueError):
    """No card of that name; the message lists the known ones."""


@dataclass(frozen=True)
class GpuCard:
    """One GPU, from its data sheet.

    Attributes:
        name: lower case with dashes.
        memory_bytes: device memory as the CUDA driver reports it (a little below the nominal size:
            79.15 of 80 GiB on an A100), since that is what serving engines take their share of.
        flops_per_s: dense fp16/bf16 tensor-core peak.
        memory_bytes_per_s: peak device memory bandwidth.
        pcie_bytes_per_s: host to device, one direction.
        nvlink_bytes_per_s: to the other GPUs of the host, one direction; PCIe's figure on cards
            without NVLink.
        source: the data sheet.
        times_of: name of the card with the same chip and other links between GPUs, whose iteration times
            this one has but for what its all-reduces take longer; "": it has its own.
    """

    name: str
    memory_bytes: int
    flops_per_s: float
    memory_bytes_per_s: float
    pcie_bytes_per_s: float
    nvlink_bytes_per_s: float
    source: str = "user"
    times_of: str = ""

    def __post_init__(self) -> None:
        _check_fields(self)


@dataclass(frozen=True)
class LlmCard:
    """One decoder-only LLM served in 16-bit weights, from its published configuration.

    Attributes:
        name: lower case with dashes.
        layers, hidden, heads, kv_heads, head_dim, mlp_hidden, vocab: the shape; `kv_heads` equals
            `heads` without grouped-query attention.
        parameters: all weights, embeddings included.
        bytes_per_weight, bytes_per_kv: 2 for fp16 and bf16.
        source: where the shape is published.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_hidden: int
    vocab: int
    parameters: int
    bytes_per_weight: int = 2
    bytes_per_kv: int = 2
    source: str = "user"

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.heads % self.kv_heads:
            raise ValueError(
                f"card {self.name!r}: kv_heads = {self.kv_heads} must divide heads = {self.heads}"
            )

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self.parameters * self.bytes_per_weight

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token keeps, over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_kv

    @property
    def grouped_query(self) -> bool:
        """Whether several query heads share one KV head."""
        return self.kv_heads < self.heads

    def kv_bytes_per_token_per_gpu(self, tp: int) -> float:
        """Bytes of one token's KV on each of `tp` GPUs (`tp` above `kv_heads` copies heads)."""
        return self.kv_bytes_per_token * max(1.0 / tp, 1.0 / self.kv_heads)

    def attention_flops_per_pair(self, tp: int) -> float:
        """FLOPs per GPU of one unit of the pair sum `chunk * (2 * cached + chunk)`, all layers.

        Causal attention of a chunk costs `4 * chunk * (cached + chunk / 2)` FLOPs per head
        dimension (scores and weighted values, a multiply and an add each): 2 per unit.
        """
        return 2.0 * self.layers * self.heads * self.head_dim / tp

    def fits_tp(self, tp: int) -> bool:
        """Whether the heads can be cut into `tp` equal shards."""
        return tp >= 1 and self.heads % tp == 0

    def check_tp(self, tp: int) -> None:
        """Raise a ValueError unless `fits_tp`."""
        if not self.fits_tp(tp):
            raise ValueError(
                f"tp = {tp!r}: must be a positive divisor of the {self.heads} heads of {self.name}"
            )


def _check_fields(card: GpuCard | LlmCard) -> None:
    """Refuse a name of another spelling, and numbers that are not positive."""
    name = card.name
    if not name or name != name.lower() or " " in name or "_" in name:
        raise ValueError(f"name = {name!r}: use lower case with dashes, such as 'my-gpu-80gb'")
    for field in fields(card):
        value = getattr(card, field.name)
        if field.type in ("int", "float") and not value > 0:
            raise ValueError(f"card {name!r}: {field.name} = {value!r} must be positive")


_GPUS: dict[str, GpuCard] = {
    card.name: card
    for card in (
        GpuCard(
            "a100-80gb",
            int(79.15 * GIB),
            312e12,
            2.039e12,
            32e9,
            300e9,
            "NVIDIA A100 data sheet (SXM4, HBM2e, NVLink 3 at 600 GB/s both ways, PCIe 4.0 x16)",
        ),
        GpuCard(
            "h100-80gb",
            int(79.10 * GIB),
            989e12,
            3.35e12,
            64e9,
            450e9,
            "NVIDIA H100 data sheet (SXM5, HBM3, NVLink 4 at 900 GB/s both ways, PCIe 5.0 x16)",
        ),
        GpuCard(
            "a10-24gb",
            int(22.0 * GIB),
            125e12,
            0.6e12,
            32e9,
            32e9,
            "NVIDIA A10 data sheet (GDDR6, no NVLink, PCIe 4.0 x16)",
        ),
        GpuCard(
            "v100-32gb",
            int(31.7 * GIB),
            125e12,
            0.9e12,
            16e9,
            150e9,
            "NVIDIA V100 data sheet (SXM2, HBM2, NVLink 2 at 300 GB/s both ways, PCIe 3.0 x16)",
        ),
        GpuCard(
            "a100-80gb-pcie",
            int(79.15 * GIB),
            312e12,
            2.039e12,
            32e9,
            32e9,
            "as a100-80gb, GPUs of a host connected by PCIe 4.0 x16 (Aladdin's testbed, its section 6.1)",
            times_of="a100-80gb",
        ),
    )
}

_LLMS: dict[str, LlmCard] = {
    card.name: card
    for card in (
        LlmCard(
            "llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000, 6_738_415_616, source="Meta, Llama 2"
        ),
        LlmCard(
            "llama-2-13b", 40, 5120, 40, 40, 128, 13824, 32000, 13_015_864_320,
            source="Meta, Llama 2",
        ),
        LlmCard(
            "llama-2-70b", 80, 8192, 64, 8, 128, 28672, 32000, 68_976_648_192,
            source="Meta, Llama 2",
        ),
        LlmCard(
            "llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, 8_030_261_248,
            source="Meta, Llama 3.1",
        ),
        LlmCard(
            "llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128256, 70_553_706_496,
            source="Meta, Llama 3.1",
        ),
        LlmCard(
            "llama-3.2-3b", 28, 3072, 24, 8, 128, 8192, 128256, 3_212_749_824,
            source="Meta, Llama 3.2",
        ),
        LlmCard(
            "mistral-7b", 32, 4096, 32, 8, 128, 14336, 32000, 7_241_732_096,
            source="Mistral AI, Mistral 7B",
        ),
        LlmCard(
            "vicuna-13b", 40, 5120, 40, 40, 128, 13824, 32000, 13_015_864_320,
            source="LMSYS, Vicuna 13B (shape of Llama 2 13B)",
        ),
        LlmCard(
            "bloom-176b", 70, 14336, 112, 112, 128, 57344, 250880, 176_247_271_424,
            source="BigScience, BLOOM",
        ),
    )
}  # fmt: skip

# Spellings of the papers and data sources; everything is compared in lower case with dashes.
_GPU_ALIASES = {
    "a100": "a100-80gb",
    "a100-80g": "a100-80gb",
    "nvidia-a100": "a100-80gb",
    "a800-80gb": "a100-80gb",
    "h100": "h100-80gb",
    "h100-80g": "h100-80gb",
    "a10": "a10-24gb",
    "a10-24g": "a10-24gb",
    "a10g": "a10-24gb",
    "v100": "v100-32gb",
    "v100-32g": "v100-32gb",
}
_LLM_ALIASES = {
    "llama2-7b": "llama-2-7b",
    "llama2-13b": "llama-2-13b",
    "llama2-70b": "llama-2-70b",
    "meta-llama/llama-2-7b-hf": "llama-2-7b",
    "meta-llama/llama-2-13b-hf": "llama-2-13b",
    "meta-llama/llama-2-70b-hf": "llama-2-70b",
    "llama-3-8b": "llama-3.1-8b",
    "llama3-8b": "llama-3.1-8b",
    "llama3.1-8b": "llama-3.1-8b",
    "llama-8b": "llama-3.1-8b",
    "meta-llama/meta-llama-3-8b": "llama-3.1-8b",
    "llama-3-70b": "llama-3.1-70b",
    "llama3-70b": "llama-3.1-70b",
    "llama3.1-70b": "llama-3.1-70b",
    "llama-70b": "llama-3.1-70b",
    "meta-llama/meta-llama-3-70b": "llama-3.1-70b",
    "llama3.2-3b": "llama-3.2-3b",
    "mistral": "mistral-7b",
    "vicuna": "vicuna-13b",
    "bloom": "bloom-176b",
    "bloom176b": "bloom-176b",
    "bigscience/bloom": "bloom-176b",
}


def _spelling(name: str) -> str:
    return "-".join(name.strip().lower().replace("_", "-").split())


_Card = TypeVar("_Card", GpuCard, LlmCard)


def _look_up(name: str, cards: dict[str, _Card], aliases: dict[str, str], what: str) -> _Card:
    key = _spelling(name)
    key = aliases.get(key, key)
    if key in cards:
        return cards[key]
    close = difflib.get_close_matches(key, [*cards, *aliases], n=1)
    hint = f" Did you mean {aliases.get(close[0], close[0])!r}?" if close else ""
    known = ", ".join(cards)
    raise UnknownCardError(f"{what} = {name!r} is unknown.{hint} Known: {known}.")


def gpu_card(name: str | GpuCard) -> GpuCard:
    """The card of a GPU by name or alias (a card is passed through).

    Raises:
        UnknownCardError: no such GPU; the message lists those known.
    """
    return name if isinstance(name, GpuCard) else _look_up(name, _GPUS, _GPU_ALIASES, "gpu")


def llm_card(name: str | LlmCard) -> LlmCard:
    """The card of an LLM by name or alias (a card is passed through).

    `BASE@VARIANT` is a fine-tuned version of an LLM: other weights of the same shape.

    Raises:
        UnknownCardError: no such LLM; the message lists those known.
    """
    if isinstance(name, LlmCard):
        return name
    base, _, variant = name.partition("@")
    card = _look_up(base, _LLMS, _LLM_ALIASES, "llm")
    if not variant:
        return card
    return replace(card, name=f"{card.name}@{_spelling(variant)}", source=f"as {card.name}")


def base_of(card: LlmCard) -> LlmCard:
    """The LLM whose shape, and so whose iteration times, a fine-tuned version has."""
    return llm_card(card.name.partition("@")[0]) if "@" in card.name else card


def register_gpu(card: GpuCard) -> GpuCard:
    """Make a GPU known by its name in this process; the same card twice is fine.

    Raises:
        ValueError: another card already has the name.
    """
    return _register(card, _GPUS, _GPU_ALIASES)


def register_llm(card: LlmCard) -> LlmCard:
    """Make an LLM known by its name in this process; the same card twice is fine.

    Raises:
        ValueError: another card already has the name.
    """
    return _register(card, _LLMS, _LLM_ALIASES)


def _register(card: _Card, cards: dict[str, _Card], aliases: dict[str, str]) -> _Card:
    taken = aliases.get(card.name, card.name)
    if taken in cards and cards[taken] != card:
        raise ValueError(f"name = {card.name!r} is already the card of {cards[taken].name!r}")
    cards[card.name] = card
    return card


def known_gpus() -> tuple[str, ...]:
    """Names of all GPUs with a card."""
    return tuple(_GPUS)


def known_llms() -> tuple[str, ...]:
    """Names of all LLMs with a card."""
    return tuple(_LLMS)
