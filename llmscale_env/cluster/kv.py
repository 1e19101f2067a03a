"""How many tokens of KV cache fit beside the weights."""

from __future__ import annotations

from llmscale_env.cluster.cards import PLAIN_BYTES, GpuCard, LlmCard, gpu_card, llm_card

TP_DEGREES = (1, 2, 4, 8)
"""Tensor-parallel degrees that are tried: the GPUs of one host."""

ACTIVATION_TOKENS = 4096
"""Tokens of the largest iteration, for which activation memory is reserved."""

LEAST_KV_TOKENS = 2048
"""Of KV cache that an instance has to have room for: with less it could not serve one long prompt."""


class DoesNotFitError(ValueError):
    """The weights leave too little room for KV cache; the message has the figures."""


def activation_reserve_bytes(llm: LlmCard, tp: int) -> int:
    """Bytes per GPU that one iteration of `ACTIVATION_TOKENS` needs besides weights and KV.

    Hidden states are whole on every GPU (residual, input and output of a layer: 4 copies), MLP and
    logits are sharded; this is what an engine's profiling run at start-up finds, to first order. With a
    mixture of experts the MLP is as wide as all experts of a token.
    """
    used = (llm.experts_per_token + llm.shared_experts) * llm.expert_hidden
    dense = llm.mlp_hidden if llm.expert_layers < llm.layers else 0
    per_token = 4 * llm.hidden + (2 * max(dense, used) + llm.vocab) / tp
    return int(ACTIVATION_TOKENS * per_token * PLAIN_BYTES)


def kv_capacity_tokens(
    llm: str | LlmCard,
    gpu: str | GpuCard,
    tp: int = 1,
    *,
    memory_fraction: float = 0.9,
    draft: str | LlmCard | None = None,
) -> int:
    """Tokens of KV cache that an instance of `tp` GPUs holds.

    Args:
        llm: card or name.
        gpu: card or name.
        tp: tensor-parallel degree.
        memory_fraction: share of each GPU's memory that the engine may use (vLLM's
            `gpu_memory_utilization`; its default is 0.9).
        draft: an LLM that drafts for it on the same GPUs (speculative decoding). Its weights, and
            its KV of every token, come out of the same memory; activations are those of the one
            that needs more.

    Raises:
        DoesNotFitError: weights and activations leave less KV memory than `LEAST_KV_TOKENS` take.
        ValueError: `tp` does not divide the heads of either, or `memory_fraction` is not in (0, 1].
    """
    gpu, llms = gpu_card(gpu), _both(llm, draft)
    for card in llms:
        card.check_tp(tp)
    if not 0.0 < memory_fraction <= 1.0:
        raise ValueError(f"memory_fraction = {memory_fraction}: must be in (0, 1]")
    usable = gpu.memory_bytes * memory_fraction
    weights, activations, kv_bytes = _needs(llms, tp)
    tokens = int((usable - weights - activations) // kv_bytes)
    least = _least_tokens(llms)
    if tokens < least:
        fitting = fitting_tp(llm, gpu, memory_fraction=memory_fraction, draft=draft)
        named = " with draft ".join(card.name for card in llms)
        hint = f"it fits at tp in {list(fitting)}" if fitting else "no degree up to 8 fits"
        raise DoesNotFitError(
            f"tp = {tp}: {named} does not fit on {gpu.name}: each GPU would need "
            f"{weights / 1e9:.1f} GB of weights, {activations / 1e9:.1f} GB of activations and "
            f"{least * kv_bytes / 1e9:.1f} GB of KV cache for {least} tokens, and has "
            f"{usable / 1e9:.1f} GB (memory_fraction = {memory_fraction}); {hint}"
        )
    return tokens


def fitting_tp(
    llm: str | LlmCard,
    gpu: str | GpuCard,
    *,
    memory_fraction: float = 0.9,
    draft: str | LlmCard | None = None,
) -> tuple[int, ...]:
    """The degrees of `TP_DEGREES` at which weights and the least KV cache fit, ascending.

    With a `draft`, its weights and KV as well (see `kv_capacity_tokens`).
    """
    usable, llms = gpu_card(gpu).memory_bytes * memory_fraction, _both(llm, draft)

    def fits(tp: int) -> bool:
        weights, activations, kv_bytes = _needs(llms, tp)
        return usable - weights - activations >= _least_tokens(llms) * kv_bytes

    return tuple(tp for tp in TP_DEGREES if all(card.fits_tp(tp) for card in llms) and fits(tp))


def _both(llm: str | LlmCard, draft: str | LlmCard | None) -> list[LlmCard]:
    return [llm_card(name) for name in (llm, draft) if name is not None]


def _least_tokens(llms: list[LlmCard]) -> int:
    return min([LEAST_KV_TOKENS, *(card.context_limit for card in llms if card.context_limit)])


def _needs(llms: list[LlmCard], tp: int) -> tuple[float, int, float]:
    """Bytes per GPU of weights, of activations, and of each token of KV."""
    return (
        sum(card.weight_bytes for card in llms) / tp,
        max(activation_reserve_bytes(card, tp) for card in llms),
        sum(card.kv_bytes_per_token_per_gpu(tp) for card in llms),
    )
