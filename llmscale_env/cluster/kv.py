"""How many tokens of KV cache fit beside the weights."""

from __future__ import annotations

from llmscale_env.cluster.cards import GpuCard, LlmCard, gpu_card, llm_card

TP_DEGREES = (1, 2, 4, 8)
"""Tensor-parallel degrees that are tried: the GPUs of one host."""

ACTIVATION_TOKENS = 4096
"""Tokens of the largest iteration, for which activation memory is reserved by default."""


class DoesNotFitError(ValueError):
    """The weights leave no room for KV cache; the message has the figures."""


def activation_reserve_bytes(llm: LlmCard, tp: int, tokens: int = ACTIVATION_TOKENS) -> int:
    """Bytes per GPU that one iteration of `tokens` needs besides weights and KV.

    Hidden states are whole on every GPU (residual, input and output of a layer: 4 copies), MLP and
    logits are sharded; this is what an engine's profiling run at start-up finds, to first order.
    """
    per_token = 4 * llm.hidden + (2 * llm.mlp_hidden + llm.vocab) / tp
    return int(tokens * per_token * llm.bytes_per_weight)


def kv_capacity_tokens(
    llm: str | LlmCard,
    gpu: str | GpuCard,
    tp: int = 1,
    *,
    memory_fraction: float = 0.9,
    activation_tokens: int = ACTIVATION_TOKENS,
    draft: str | LlmCard | None = None,
) -> int:
    """Tokens of KV cache that an instance of `tp` GPUs holds.

    Args:
        llm: card or name.
        gpu: card or name.
        tp: tensor-parallel degree.
        memory_fraction: share of each GPU's memory that the engine may use (vLLM's
            `gpu_memory_utilization`; its default is 0.9).
        activation_tokens: tokens of the largest iteration; its activations are kept free.
        draft: an LLM that drafts for it on the same GPUs (speculative decoding). Its weights, and
            its KV of every token, come out of the same memory; activations are those of the one
            that needs more.

    Raises:
        DoesNotFitError: weights and activations leave no KV memory.
        ValueError: `tp` does not divide the heads of either, or `memory_fraction` is not in (0, 1].
    """
    llm, gpu = llm_card(llm), gpu_card(gpu)
    llms = [llm] if draft is None else [llm, llm_card(draft)]
    for card in llms:
        card.check_tp(tp)
    if not 0.0 < memory_fraction <= 1.0:
        raise ValueError(f"memory_fraction = {memory_fraction}: must be in (0, 1]")
    usable = gpu.memory_bytes * memory_fraction
    weights = sum(card.weight_bytes for card in llms) / tp
    activations = max(activation_reserve_bytes(card, tp, activation_tokens) for card in llms)
    kv_bytes = sum(card.kv_bytes_per_token_per_gpu(tp) for card in llms)
    tokens = int((usable - weights - activations) // kv_bytes)
    if tokens < 1:
        fitting = fitting_tp(
            llm,
            gpu,
            memory_fraction=memory_fraction,
            activation_tokens=activation_tokens,
            draft=draft,
        )
        named = " with draft ".join(card.name for card in llms)
        hint = f"it fits at tp in {list(fitting)}" if fitting else "no degree up to 8 fits"
        raise DoesNotFitError(
            f"tp = {tp}: {named} does not fit on {gpu.name}: each GPU would need "
            f"{weights / 1e9:.1f} GB of weights and {activations / 1e9:.1f} GB of activations, "
            f"and has {usable / 1e9:.1f} GB (memory_fraction = {memory_fraction}); {hint}"
        )
    return tokens


def fitting_tp(
    llm: str | LlmCard,
    gpu: str | GpuCard,
    *,
    memory_fraction: float = 0.9,
    activation_tokens: int = ACTIVATION_TOKENS,
    min_kv_tokens: int = 1,
    draft: str | LlmCard | None = None,
) -> tuple[int, ...]:
    """The degrees of `TP_DEGREES` at which weights and `min_kv_tokens` of KV fit, ascending.

    With a `draft`, its weights and KV as well (see `kv_capacity_tokens`).
    """
    gpu = gpu_card(gpu)
    llms = [llm_card(name) for name in (llm, draft) if name is not None]
    fitting = []
    for tp in TP_DEGREES:
        if not all(card.fits_tp(tp) for card in llms):
            continue
        free = (
            gpu.memory_bytes * memory_fraction
            - sum(card.weight_bytes for card in llms) / tp
            - max(activation_reserve_bytes(card, tp, activation_tokens) for card in llms)
        )
        if free >= min_kv_tokens * sum(card.kv_bytes_per_token_per_gpu(tp) for card in llms):
            fitting.append(tp)
    return tuple(fitting)
