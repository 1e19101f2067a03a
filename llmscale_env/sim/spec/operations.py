"""What instances do at their boundaries by themselves, and how a command changes it (engine.md, 8 and 9)."""

from __future__ import annotations

from dataclasses import dataclass

from llmscale_env.sim.spec.kinds import PullRule


@dataclass(frozen=True)
class Operations:
    """What a pool's instances do at their boundaries by themselves; a command can change it.

    Attributes are those of `PoolSpec`.
    """

    pull_rule: int
    evicts_in_order: bool
    swap_flushes: bool
    static_batch: bool


def changed_operations(
    now: Operations,
    chunk_tokens: int,
    pull_rule: int | None,
    evicts_in_order: bool | None,
    swap_flushes: bool | None,
    static_batch: bool | None,
) -> Operations:
    """Operations with some changed, None: as they are.

    Raises:
        ValueError: no such pull rule, or a static batch with chunked prefill.
    """
    if pull_rule is not None and pull_rule not in tuple(PullRule):
        raise ValueError(f"pull_rule = {pull_rule!r}: must be one of {[int(r) for r in PullRule]}")
    if static_batch and chunk_tokens > 0:
        raise ValueError("static_batch: not with chunked prefill")
    return Operations(
        now.pull_rule if pull_rule is None else int(pull_rule),
        now.evicts_in_order if evicts_in_order is None else bool(evicts_in_order),
        now.swap_flushes if swap_flushes is None else bool(swap_flushes),
        now.static_batch if static_batch is None else bool(static_batch),
    )
