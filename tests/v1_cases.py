"""Generated cases of pools that schedule as vLLM's V1 engine does: `engine_cases` with such pools.

`python -m tests.v1_cases FIRST COUNT` prints which mechanisms a range of seeds reaches.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmscale_env.sim.spec import (
    ClusterSpec,
    PoolSpec,
    PreemptionMode,
    ProfileSpec,
    RouterKind,
    RouteSpec,
    V1Spec,
)
from llmscale_env.workload.prefixes import NO_PREFIX, Prefixes, spans_of
from llmscale_env.workload.requests import RequestTable
from tests.engine_cases import Case, Command, Trace, _Generator, print_reached

NEW = (RouterKind.PREFIX_AWARE, RouterKind.LEAST_PENDING_PREFILL)
"""Rules that other cases have no use for."""

V1_MECHANISMS = frozenset(
    {
        "v1_waits_for_host",
        "v1_last_token_in_flight",
        "v1_preempted_in_flight",
        "v1_prompt_split",
        "v1_no_blocks",
        "finished_preempted",
        # prefix caches
        "v1_hit",
        "v1_hit_of_running",
        "v1_hit_in_step",
        "v1_found_again",
        "v1_more_hits_later",
        "v1_second_bearer",
        "v1_evicted",
        "v1_cache_lost",
        # routing
        "router_prefix_aware",
        "router_least_pending_prefill",
        "prefix_aware_hit",
        "prefix_aware_elsewhere",
    }
)
"""What a good set of them makes happen, besides what other cases do."""


class _V1Generator(_Generator):
    def spec(self) -> ClusterSpec:
        spec = super().spec()
        self.block_tokens = self.pick(1, 2, 4, 4, 16)
        profiles = tuple(self.in_blocks(profile) for profile in spec.profiles)
        pools = tuple(
            self.as_v1(pool, profiles[pool.profile], spec.queue_llm) if self.chance(0.85) else pool
            for pool in spec.pools
        )
        limits = tuple(self.pick(0, 10, 40) for _ in spec.routes) if self.chance(0.3) else ()
        routes = tuple(tuple(map(self.rerouted, row)) for row in spec.routes)
        return replace(spec, profiles=profiles, pools=pools, context_limits=limits, routes=routes)

    def rerouted(self, route: RouteSpec) -> RouteSpec:
        """Every other route goes by prefixes or pending prompts."""
        kind = self.pick(route.kind, RouterKind.PREFIX_AWARE, RouterKind.PREFIX_AWARE, *NEW[1:])
        if not route.pools or self.chance(0.33):
            kind = route.kind
        return replace(
            route,
            kind=kind,
            prefill_load_scale=self.pick(0.0, 0.3, 1.0, 1.0, 7.7),
            overlap_score_credit=self.pick(0.0, 0.37, 1.0, 1.0),
        )

    def command(self, spec: ClusterSpec, at_ps: int) -> Command:
        command = super().command(spec, at_ps)
        if command.name == "set_router" and self.chance(0.5):
            return replace(command, args=(*command.args[:2], int(self.pick(*NEW))))
        return command

    def in_blocks(self, profile: ProfileSpec) -> ProfileSpec:
        size = self.block_tokens
        return replace(
            profile, kv_capacity_tokens=max(size, profile.kv_capacity_tokens // size * size)
        )

    def as_v1(self, pool: PoolSpec, profile: ProfileSpec, queue_llm: tuple[int, ...]) -> PoolSpec:
        """The pool without what it cannot have, and with a budget that a full batch fits."""
        return replace(
            pool,
            chunk_tokens=profile.max_batch + self.pick(0, 0, 1, 5, 20, 1000),
            preemption=PreemptionMode.RECOMPUTE,
            evicts=False,
            evicts_in_order=False,
            static_batch=False,
            async_kv=False,
            swaps=(),
            warm=(),
            pull=tuple(q for q in pool.pull if queue_llm[q] in (-1, pool.llm)),
            v1=V1Spec(
                block_tokens=self.block_tokens,
                reserve_full=self.chance(0.6),
                asynchronous=self.chance(0.75),
                prefix_cache=self.chance(0.8),
                host_base_ps=self.pick(0, self.ps(0, 3), self.ps(0, 40)),
                host_per_request_ps=self.pick(0, 0, self.ps(0, 2)),
            ),
        )

    def requests(self, spec: ClusterSpec) -> RequestTable:
        """Shared prompts, turns of conversations, twins: of any age, or close behind each other."""
        table = super().requests(spec)
        if self.chance(0.2):
            return table
        n, longest = len(table), self.longest_input
        inputs, outputs = table.input_tokens.copy(), table.output_tokens
        prefix_of, tokens = np.full(n, NO_PREFIX), np.zeros(n, np.int64)
        prompts = [self.int(1, 2 * longest) for _ in range(self.pick(1, 1, 3))]
        reach, alone = self.pick(1, 3, 10, n), self.pick(0.1, 0.3, 0.7)
        for row in range(n):
            if self.chance(alone):
                continue
            if row == 0 or self.chance(0.4):
                number = self.int(0, len(prompts) - 1)
                owner, whole = -2 - number, prompts[number]
            else:
                owner = row - self.int(1, min(row, reach))
                whole = int(inputs[owner] + outputs[owner])
            kind = self.pick("turn", "turn", "twin", "part")
            if kind == "twin" and owner >= 0:
                whole = int(inputs[owner])
            if kind == "part":
                shared = self.int(1, min(whole, int(inputs[row])))
            elif whole <= 3 * self.capacity // 4:
                shared = whole
                inputs[row] = whole + (0 if kind == "twin" else self.int(0, longest // 2))
            else:
                continue
            prefix_of[row], tokens[row] = owner, shared
        prefixes = spans_of(prefix_of, tokens, inputs, outputs)
        return replace(table, input_tokens=inputs, prefixes=prefixes)

    def case(self) -> Case:
        return replace(super().case(), observes=("cached_blocks",))


def repeated(prefixes: Prefixes | None, times: int) -> Prefixes | None:
    """Those of a table that comes several times over: later ones begin like the first ones."""
    if prefixes is None:
        return None
    return Prefixes(
        np.arange(times * len(prefixes)),
        np.cumsum([0, *np.tile(np.diff(prefixes.first), times)]),
        np.tile(prefixes.owner, times),
        np.tile(prefixes.end, times),
    )


def broken_block_law(case: Case, trace: Trace) -> str | None:
    """The first snapshot at which blocks are lost, or are there twice."""
    spec = case.spec
    for label, at in trace.looks().items():
        for i, p in enumerate(spec.pool_of_slot):
            v1, slot = spec.pools[p].v1, at["instances"][i]
            if v1 is None:
                continue
            blocks, size = at["cached_blocks"][i], v1.block_tokens
            capacity = spec.profiles[spec.pools[p].profile].kv_capacity_tokens
            laws = {
                "what is cached is what is counted": len(blocks) * size == slot["kv_cached"],
                "blocks are held, cached or free": slot["kv_tokens"] + slot["kv_cached"]
                <= capacity,
                "no cache without memory": slot["state"] != 0 or slot["kv_cached"] == 0,
                "no cache where there is none": v1.prefix_cache or not blocks,
                "no more is found than is asked for": slot["hit_tokens"] <= slot["asked_tokens"],
            }
            for law, holds in laws.items():
                if not holds:
                    return f"{label}, instance {i}: {law}"
        found = at["results"]["cached_tokens"]
        if not ((found >= 0) & (found < case.requests.input_tokens)).all():
            return f"{label}: at least one token of a prompt is computed"
    return None


def make_v1_case(seed: int) -> Case:
    return _V1Generator(seed).case()


if __name__ == "__main__":
    print_reached(make_v1_case, V1_MECHANISMS, broken_block_law)
