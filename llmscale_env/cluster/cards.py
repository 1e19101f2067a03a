"""Cards of GPUs and LLMs: the few published numbers that everything else is derived from.

KV bytes per token, weight bytes, KV capacity, load times and the roofline all come from here. The
shipped cards are in `data/gpus.json` and `data/llms.json`, each with its source. A card of one's own
is a file whose path stands for it wherever a name does (`card_files`), or is registered with
`register_gpu` or `register_llm` and then known by its name in this process.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from llmscale_env._reading import read_json

PLAIN_BYTES = 2
"""Of a value that is not quantised: activations, embedding, head, norms, router and biases."""

COMPUTE_FORMATS = ("bf16", "fp8", "fp4")
"""In which tensor cores multiply; bf16 stands for fp16 as well, which has the same peak."""

FP8_BYTES = 1 + 4 / 128**2
"""Of a weight: 8 bits, and a scale of 32 bits for a block of 128 x 128 (DeepSeek's and Qwen's files)."""

NVFP4_BYTES = 0.5 + 1 / 16
"""Of a weight: 4 bits, and a scale of 8 bits for every 16."""

MXFP4_BYTES = 0.5 + 1 / 32
"""Of a weight: 4 bits, and a scale of 8 bits for every 32."""

KV_CONTEXT = 1024
"""Tokens of context at which KV bytes per token are taken, where some layers have a sliding window."""


class UnknownCardError(ValueError):
    """No card of that name; the message lists the known ones."""


@dataclass(frozen=True)
class GpuCard:
    """One GPU, from its data sheet.

    Attributes:
        name: lower case with dashes; of a card from a file, the file's path.
        memory_bytes: device memory as the CUDA driver reports it (a little below the nominal size:
            79.15 of 80 GiB on an A100), since that is what serving engines take their share of.
        flops_per_s: dense fp16/bf16 tensor-core peak. Data sheets print the one with sparsity first,
            which is twice as much.
        memory_bytes_per_s: peak device memory bandwidth.
        pcie_bytes_per_s: host to device, one direction.
        nvlink_bytes_per_s: to the other GPUs of the host, one direction; PCIe's figure on cards
            without NVLink.
        source: the data sheet.
        times_of: name of the card with the same chip and other links between GPUs, whose iteration times
            this one has but for what its all-reduces take longer; "": it has its own.
        flops_per_s_fp8, flops_per_s_fp4: dense peaks; 0: the tensor cores have no such mode. Weights in that
            format are possible all the same: they are read in it and multiplied in bf16.
        linked_gpus: GPUs that `nvlink_bytes_per_s` joins; a larger tensor-parallel degree has PCIe.
    """

    name: str
    memory_bytes: int
    flops_per_s: float
    memory_bytes_per_s: float
    pcie_bytes_per_s: float
    nvlink_bytes_per_s: float
    source: str = "user"
    times_of: str = ""
    flops_per_s_fp8: float = 0
    flops_per_s_fp4: float = 0
    linked_gpus: int = 8

    def __post_init__(self) -> None:
        _check_fields(self)

    def peak_flops_per_s(self, compute: str = "bf16") -> float:
        """Dense peak of a format of `COMPUTE_FORMATS`; bf16's where the tensor cores lack it."""
        own = {"fp8": self.flops_per_s_fp8, "fp4": self.flops_per_s_fp4}.get(compute, 0)
        return own or self.flops_per_s

    def link_bytes_per_s(self, tp: int) -> float:
        """Between the GPUs of an instance, one direction."""
        return self.nvlink_bytes_per_s if tp <= self.linked_gpus else self.pcie_bytes_per_s

    @property
    def vllm_batch_defaults(self) -> tuple[int, int]:
        """`max_num_batched_tokens` and `max_num_seqs` of a vLLM server of which nothing is said.

        Source: vLLM 0.26, `engine/arg_utils.py`, `get_batch_defaults`.
        """
        large = self.memory_bytes >= 70 * 2**30 and "a100" not in self.name
        return (8192, 1024) if large else (2048, 256)


@dataclass(frozen=True)
class LlmCard:
    """One decoder-only LLM, from its published configuration.

    Attributes:
        name: lower case with dashes; of a card from a file, the file's path.
        layers, hidden, heads, kv_heads, head_dim, mlp_hidden, vocab: the shape; `kv_heads` equals
            `heads` without grouped-query attention. `mlp_hidden` is the width of a dense MLP.
        parameters: all weights, embeddings included.
        bytes_per_weight: of the matrices of the layers, scales included: 2 for fp16 and bf16. Embedding,
            head, norms, router and biases are never quantised and have 2 (4, if this is 4).
        bytes_per_kv: of a value in the KV cache; 1 for fp8.
        source: where the shape is published.
        compute: one of `COMPUTE_FORMATS`, in which the layers' matrices are multiplied if the GPU can.
        mlp_matrices: of an MLP, 3 with a gate (SwiGLU); 0: 3, or 2 where `mlp_hidden` is four times `hidden`.
        experts: of a layer with a mixture of experts; 0: all layers are dense.
        experts_per_token, expert_hidden: how many of them a token goes through, and how wide one is.
        shared_experts: as wide, which every token goes through besides.
        dense_layers: of all layers, those with a dense MLP in place of experts.
        bytes_per_expert_weight: as `bytes_per_weight`, of the experts; 0: the same.
        kv_lora_rank: latent values that a layer keeps per token (multi-head latent attention, MLA); 0: none.
        q_lora_rank: of its compressed queries; 0: they are not compressed.
        qk_rope_dim, qk_nope_dim, v_head_dim: of its heads; the first is kept per token as well.
        window, window_layers: tokens that so many of the layers attend to; the others attend to all. A window
            above `KV_CONTEXT` counts as none, which is right up to its length and too much beyond.
        context_limit: tokens of prompt and output together that the LLM is made for; 0: it has no limit.
        times_of: name of an LLM with the same layers, whose measured iteration times this one has as well.
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
    bytes_per_weight: float = PLAIN_BYTES
    bytes_per_kv: float = PLAIN_BYTES
    source: str = "user"
    compute: str = "bf16"
    mlp_matrices: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_hidden: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    bytes_per_expert_weight: float = 0
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    qk_rope_dim: int = 0
    qk_nope_dim: int = 0
    v_head_dim: int = 0
    window: int = 0
    window_layers: int = 0
    context_limit: int = 0
    times_of: str = ""

    def __post_init__(self) -> None:
        _check_fields(self)
        wrong = ""
        if self.heads % self.kv_heads:
            wrong = f"kv_heads = {self.kv_heads} must divide heads = {self.heads}"
        elif self.compute not in COMPUTE_FORMATS:
            wrong = f"compute = {self.compute!r} must be one of {', '.join(COMPUTE_FORMATS)}"
        elif self.experts and not 1 <= self.experts_per_token <= self.experts:
            wrong = f"experts_per_token = {self.experts_per_token} must be in 1..{self.experts}"
        elif bool(self.experts) != bool(self.expert_hidden):
            wrong = f"expert_hidden = {self.expert_hidden} with experts = {self.experts}"
        elif self.experts and self.dense_layers >= self.layers:
            wrong = f"dense_layers = {self.dense_layers} must be below layers = {self.layers}"
        elif self.kv_lora_rank and not (self.qk_rope_dim and self.qk_nope_dim and self.v_head_dim):
            wrong = "kv_lora_rank needs qk_rope_dim, qk_nope_dim and v_head_dim"
        elif bool(self.window) != bool(self.window_layers) or self.window_layers > self.layers:
            wrong = f"window_layers = {self.window_layers} with window = {self.window}"
        elif self.layer_weights > 1.1 * self.parameters:
            wrong = (
                f"parameters = {self.parameters} is less than the {self.layer_weights} of its layers "
                "(mlp_matrices = 2 says that an MLP has no gate)"
            )
        if wrong:
            raise ValueError(f"card {self.name!r}: {wrong}")

    # Weights -----------------------------------------------------------------------------------------

    @cached_property
    def attention_weights(self) -> int:
        """Weights of the matrices of one layer's attention."""
        if not self.kv_lora_rank:
            return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        qk = self.qk_nope_dim + self.qk_rope_dim
        q = self.q_lora_rank
        queries = q * (self.hidden + self.heads * qk) if q else self.hidden * self.heads * qk
        keys = self.hidden * (self.kv_lora_rank + self.qk_rope_dim)
        up = self.kv_lora_rank * self.heads * (self.qk_nope_dim + self.v_head_dim)
        return queries + keys + up + self.heads * self.v_head_dim * self.hidden

    @property
    def expert_layers(self) -> int:
        """Layers with a mixture of experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def _mlp_matrices(self) -> int:
        return self.mlp_matrices or (2 if self.mlp_hidden == 4 * self.hidden else 3)

    @cached_property
    def expert_weights(self) -> int:
        """Weights of one expert of one layer."""
        return self._mlp_matrices * self.hidden * self.expert_hidden

    @cached_property
    def dense_weights(self) -> int:
        """Weights that every token goes through, all layers: attention, dense MLP, shared experts."""
        mlp = (
            (self.layers - self.expert_layers) * self._mlp_matrices * self.hidden * self.mlp_hidden
        )
        shared = self.expert_layers * self.shared_experts * self.expert_weights
        return self.layers * self.attention_weights + mlp + shared

    @property
    def router_weights(self) -> int:
        """Weights that choose a token's experts, all layers."""
        return self.expert_layers * self.hidden * self.experts

    @property
    def layer_weights(self) -> int:
        """Weights of the matrices of all layers, every expert counted."""
        return (
            self.dense_weights
            + self.router_weights
            + self.expert_layers * self.experts * self.expert_weights
        )

    @property
    def active_parameters(self) -> int:
        """Weights that one token is multiplied with: its experts alone, and the output head.

        The input embedding is looked up, so it does not count; norms and biases are left out.
        """
        used = self.expert_layers * self.experts_per_token * self.expert_weights
        return self.dense_weights + self.router_weights + used + self.vocab * self.hidden

    @property
    def plain_bytes(self) -> float:
        """Of a weight that is not quantised."""
        return max(PLAIN_BYTES, self.bytes_per_weight)

    @property
    def expert_bytes(self) -> float:
        """Of one expert of one layer."""
        return self.expert_weights * (self.bytes_per_expert_weight or self.bytes_per_weight)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        experts = self.expert_layers * self.experts
        plain = self.parameters - self.dense_weights - experts * self.expert_weights
        if self.bytes_per_weight == self.plain_bytes and not self.bytes_per_expert_weight:
            return round(self.parameters * self.plain_bytes)
        layers = self.dense_weights * self.bytes_per_weight + experts * self.expert_bytes
        return round(layers + max(plain, 0) * self.plain_bytes)

    def distinct_experts(self, tokens: Any) -> Any:
        """Experts of a layer that a batch of `tokens` goes through, on average.

        `n (1 - (1 - k / n) ** tokens)`: routing is taken to be uniform and independent. Real routing is
        skewed, which reads fewer.
        Takes a number or an array, gives the same.
        """
        return self.experts * (1.0 - (1.0 - self.experts_per_token / self.experts) ** tokens)

    def experts_per_gpu(self, tp: int) -> float:
        """Experts' worth of weights per layer on each of `tp` GPUs.

        With expert parallelism that many whole experts, with tensor parallelism a share of each: the bytes
        and, under uniform routing, the bytes read are the same.
        """
        return self.experts / tp

    # Attention and its cache ---------------------------------------------------------------------------

    @property
    def sliding_layers(self) -> int:
        """Layers whose attention and KV stop growing at `window` tokens."""
        return self.window_layers if self.window <= KV_CONTEXT else 0

    @property
    def kv_bytes_per_token_and_layer(self) -> float:
        """Bytes that a token keeps in a layer that attends to all of the context."""
        if self.kv_lora_rank:
            return (self.kv_lora_rank + self.qk_rope_dim) * self.bytes_per_kv
        return 2 * self.kv_heads * self.head_dim * self.bytes_per_kv

    def kv_bytes(self, context_tokens: int) -> float:
        """Bytes of KV that a request holds at this context, over all layers."""
        full = (self.layers - self.window_layers) * context_tokens
        held = full + self.window_layers * min(context_tokens, self.window)
        return held * self.kv_bytes_per_token_and_layer

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token keeps, over all layers.

        With sliding windows the mean at `KV_CONTEXT` tokens of context.
        """
        if not self.sliding_layers:
            return round(self.layers * self.kv_bytes_per_token_and_layer)
        return round(self.kv_bytes(KV_CONTEXT) / KV_CONTEXT)

    @property
    def grouped_query(self) -> bool:
        """Whether several query heads share one KV head."""
        return self.kv_heads < self.heads

    def kv_share(self, tp: int) -> float:
        """Share of KV that each of `tp` GPUs holds.

        `tp` above `kv_heads` copies heads. The latent values of MLA belong to all heads: every GPU has them.
        """
        return 1.0 if self.kv_lora_rank else max(1.0 / tp, 1.0 / self.kv_heads)

    def kv_bytes_per_token_per_gpu(self, tp: int) -> float:
        """Bytes of one token's KV on each of `tp` GPUs."""
        return self.kv_bytes_per_token * self.kv_share(tp)

    @property
    def _pair_flops(self) -> int:
        """FLOPs of a head for one unit of the pair sum: scores and weighted values."""
        if self.kv_lora_rank:
            return self.qk_nope_dim + self.qk_rope_dim + self.v_head_dim
        return 2 * self.head_dim

    def attention_flops_per_pair(self, tp: int) -> float:
        """FLOPs per GPU of one unit of the pair sum `chunk * (2 * cached + chunk)`, all layers.

        Causal attention of a chunk costs `4 * chunk * (cached + chunk / 2)` FLOPs per head
        dimension (scores and weighted values, a multiply and an add each): 2 per unit. Layers with a sliding
        window are not among them (`window_flops_per_token`).
        """
        return float((self.layers - self.sliding_layers) * self.heads * self._pair_flops) / tp

    def window_flops_per_token(self, tp: int) -> float:
        """FLOPs per GPU of a prompt token's attention in layers with a sliding window."""
        return 2.0 * self.sliding_layers * self.heads * self._pair_flops * self.window / tp

    def decode_flops_per_token(self, tp: int) -> float:
        """FLOPs per GPU of a decoding request's attention per token of context, all layers.

        MLA decodes in latent space (the up-projections are absorbed): scores over the latent values and the
        rotary ones, weighted sums over the latent ones.
        """
        if self.kv_lora_rank:
            per_head = 2 * (2 * self.kv_lora_rank + self.qk_rope_dim)
        else:
            per_head = 4 * self.head_dim
        return float((self.layers - self.sliding_layers) * self.heads * per_head) / tp

    # Tensor parallelism ----------------------------------------------------------------------------------

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
    wrong = not name or name != name.lower() or " " in name or "_" in name
    if wrong and not is_path(name):
        raise ValueError(f"name = {name!r}: use lower case with dashes, such as 'my-gpu-80gb'")
    for field in fields(card):
        value = getattr(card, field.name)
        if field.type in ("int", "float") and not (value > 0 or value == 0 == field.default):
            raise ValueError(f"card {name!r}: {field.name} = {value!r} must be positive")


_Card = TypeVar("_Card", GpuCard, LlmCard)


def card_from(kind: type[_Card], values: dict[str, Any]) -> _Card:
    """A card from plain values, as a JSON or YAML file has them.

    Raises:
        ValueError: a field is unknown, missing, of another type, or out of range.
    """
    known = {field.name: field for field in fields(kind)}
    taken: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{key!r} is no field of a card{hint}")
        taken[key] = _as(str(known[key].type), key, value)
    missing = [name for name, f in known.items() if name not in taken and _required(f.default)]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing")
    return kind(**taken)


def _required(default: object) -> bool:
    return not isinstance(default, (str, int, float))


def _as(kind: str, key: str, value: Any) -> Any:
    if kind == "str":
        if not isinstance(value, str):
            raise ValueError(f"{key} = {value!r} must be text")
        return value
    try:
        # YAML takes 312e12 for text.
        number = float(value) if not isinstance(value, bool) else None
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or number != number or abs(number) == float("inf"):
        raise ValueError(f"{key} = {value!r} must be a number")
    if kind == "float":
        return number
    if number != int(number):
        raise ValueError(f"{key} = {value!r} must be a whole number")
    return int(number) if isinstance(value, str) else int(value)


def _shipped(kind: type[_Card], file: str) -> tuple[dict[str, _Card], dict[str, str]]:
    """Cards by name, and their names by alias, of a data file."""
    cards: dict[str, _Card] = {}
    aliases: dict[str, str] = {}
    content = read_json(Path(__file__).parent / "data" / f"{file}.json")
    for entry in content[file]:
        spelled = entry.pop("aliases")
        card = card_from(kind, entry)
        cards[card.name] = card
        aliases.update(dict.fromkeys(spelled, card.name))
    return cards, aliases


_GPUS, _GPU_ALIASES = _shipped(GpuCard, "gpus")
_LLMS, _LLM_ALIASES = _shipped(LlmCard, "llms")

_FORMATS: dict[str, dict[str, Any]] = {
    "-kv-fp8": {"bytes_per_kv": 1.0},
    "-fp8": {"bytes_per_weight": FP8_BYTES, "compute": "fp8"},
    "-nvfp4": {"bytes_per_weight": NVFP4_BYTES, "compute": "fp4"},
}
"""Endings of an LLM's name: KV cache or weights in another format than the card's 16 bits."""


def _spelling(name: str) -> str:
    return "-".join(name.strip().lower().replace("_", "-").split())


_FILE = re.compile(r"(.+\.(?:json|ya?ml))(?:@(.*))?", re.DOTALL)


def is_path(name: str) -> bool:
    """Whether a name stands for a card's file: it ends in .json, .yaml or .yml."""
    return _FILE.fullmatch(name) is not None


def _parts(name: str) -> tuple[str, str]:
    """Base and variant of an LLM's name."""
    file = _FILE.fullmatch(name)
    if file is not None:
        return file[1], file[2] or ""
    base, _, variant = name.partition("@")
    return base, variant


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
    """The card of a GPU by name, alias or file (a card is passed through).

    Args:
        name: as spelled by people; or the path of a YAML file (`card_files.gpu_from_yaml`).

    Raises:
        UnknownCardError: no such GPU; the message lists those known. A file that is no card.
    """
    if isinstance(name, GpuCard):
        return name
    if is_path(name):
        from llmscale_env.cluster.card_files import gpu_from_file

        return gpu_from_file(name)
    return _look_up(name, _GPUS, _GPU_ALIASES, "gpu")


def llm_card(name: str | LlmCard) -> LlmCard:
    """The card of an LLM by name, alias or file (a card is passed through).

    Args:
        name: as spelled by people, or as Hugging Face has it; or the path of a Hugging Face `config.json`,
            or of a YAML file with a card's fields (`card_files`). `BASE@VARIANT` is a fine-tuned version of
            an LLM: other weights of the same shape. `BASE-fp8` and `BASE-nvfp4` have the layers' weights in
            that format, `BASE-kv-fp8`, also after one of them, the KV cache.

    Raises:
        UnknownCardError: no such LLM; the message lists those known. A file that is no card.
    """
    if isinstance(name, LlmCard):
        return name
    base, variant = _parts(name)
    if is_path(base):
        from llmscale_env.cluster.card_files import llm_from_file

        card = llm_from_file(base)
    else:
        card = _in_format(base)
    if not variant:
        return card
    return replace(card, name=f"{card.name}@{_spelling(variant)}", source=f"as {card.name}")


def _in_format(name: str) -> LlmCard:
    """By name, with the format that its ending asks for."""
    key = _spelling(name)
    known = key in _LLMS or key in _LLM_ALIASES
    ending = next((e for e in _FORMATS if not known and key.endswith(e)), "")
    if not ending:
        return _look_up(name, _LLMS, _LLM_ALIASES, "llm")
    try:
        card = _in_format(key.removesuffix(ending))
    except UnknownCardError as error:
        raise UnknownCardError(f"llm = {name!r}: of {ending[1:]}: {error}") from None
    changes = _FORMATS[ending]
    if "bytes_per_weight" in changes:
        stored = {card.bytes_per_weight, card.bytes_per_expert_weight or card.bytes_per_weight}
        if stored != {PLAIN_BYTES}:
            raise UnknownCardError(
                f"llm = {name!r}: the weights of {card.name} are stored in fewer than 16 bits as it is"
            )
    return replace(card, name=f"{card.name}{ending}", times_of="", **changes)


def base_of(card: LlmCard) -> LlmCard:
    """The LLM whose shape, and so whose iteration times, a fine-tuned version has."""
    base, variant = _parts(card.name)
    return llm_card(base) if variant else card


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
    if taken not in cards and _resolves(card):
        return card
    cards[card.name] = card
    return card


def _resolves(card: GpuCard | LlmCard) -> bool:
    """Whether the name alone gives the card in any process: a file's path, or a format's ending."""
    if is_path(card.name):
        return True
    if isinstance(card, GpuCard) or not card.name.endswith(tuple(_FORMATS)):
        return False
    try:
        return llm_card(card.name) == card
    except UnknownCardError:
        return False


def known_gpus() -> tuple[str, ...]:
    """Names of all GPUs with a card."""
    return tuple(_GPUS)


def known_llms() -> tuple[str, ...]:
    """Names of all LLMs with a card; each can end in a format (`llm_card`)."""
    return tuple(_LLMS)
