"""One request of the reference engine, docs/engine.md section 2."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmscale_env.sim.spec import RequestState

if TYPE_CHECKING:
    from llmscale_env.sim.reference.instance import Instance
    from llmscale_env.sim.reference.state.block_pool import Block, BlockName


@dataclass(slots=True, eq=False)
class Request:
    """A row of the requests table, and what has happened to it so far.

    Attributes:
        priority: of its SLO class.
        queue: shared queue that it waits in or came from, or else that of its route; -1: none.
        emitted: tokens emitted so far.
        to_prefill: tokens of its context still to prefill; 0 while it decodes.
        to_compute, done, to_come: in a pool with `v1`, steps that are composed included: tokens of its
            context not yet given to a step, tokens whose KV is there, tokens about to be emitted.
        name, spans: of its sequence of tokens, and (owner, end) of those that are others' (`Prefixes`).
        blocks, named: KV blocks that it holds, in order, and how many of them have a name.
        cached_tokens: of its prompt, those found in the cache when it was first admitted.
        promised_tokens: of its context, those that a `PREFIX_AWARE` route found in the cache of the instance
            to which it sent it last.
        saved_on: instance that keeps its KV cache in host memory (`saved_bytes` of it), if any.
        last_token_ps: time of its latest token, -1 before the first.
        at: instance in whose own queue it waits, to which its KV is on its way, or where it has landed.
        held_by: `PREFILL` instance that keeps its KV until it has been copied.
        helper, helped_layers: instance that has prefilled so many of its layers, until it has landed.
        flows: how many flows of its KV are under way.
        region: of its client.
        to_region: where it is on its way to, -1: nowhere.
        rank: its priority in the own queue that it waits in, where the pool has `priorities`.
        first_prediction: of its output when it arrived.
    """

    id: int
    arrival_ps: int
    llm: int
    slo_class: int
    input_tokens: int
    output_tokens: int
    predicted_output_tokens: int
    priority: int
    queue: int
    region: int = 0
    name: int = 0
    spans: tuple[tuple[int, int], ...] = ()
    state: RequestState = RequestState.FUTURE
    emitted: int = 0
    to_prefill: int = 0
    to_compute: int = 0
    done: int = 0
    to_come: int = 0
    blocks: list[Block] = field(default_factory=list)
    named: int = 0
    cached_tokens: int = 0
    promised_tokens: int = 0
    saved_on: Instance | None = None
    saved_bytes: int = 0
    last_token_ps: int = -1
    at: Instance | None = None
    held_by: Instance | None = None
    helper: Instance | None = None
    helped_layers: int = 0
    flows: int = 0
    to_region: int = -1
    rank: int = 0
    instance: int = -1
    admitted_ps: int = -1
    first_token_ps: int = -1
    finished_ps: int = -1
    max_itl_ps: int = -1
    preemptions: int = 0
    evictions: int = 0
    restarts: int = 0
    first_prediction: int = field(init=False)

    def __post_init__(self) -> None:
        self.first_prediction = self.predicted_output_tokens

    @property
    def ctx(self) -> int:
        """KV tokens while it runs: its prompt and what it has emitted."""
        return self.input_tokens + self.emitted

    @property
    def left(self) -> int:
        """Tokens that the predictor thinks are still to come (negative if it was wrong)."""
        return self.predicted_output_tokens - self.emitted

    def block_name(self, index: int, size: int) -> BlockName:
        """Of its block number `index` of `size` tokens: equal names, equal tokens up to the block's end."""
        end = (index + 1) * size
        return next((owner for owner, to in self.spans if end <= to), self.name), index

    def emit(self, now_ps: int) -> None:
        """One more token."""
        self.emitted += 1
        if self.first_token_ps < 0:
            self.first_token_ps = now_ps
        else:
            self.max_itl_ps = max(self.max_itl_ps, now_ps - self.last_token_ps)
        self.last_token_ps = now_ps
