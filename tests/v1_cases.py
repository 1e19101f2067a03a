"""Generated cases of pools that schedule as vLLM's V1 engine does: `engine_cases` with such pools.

`python -m tests.v1_cases FIRST COUNT` prints which mechanisms a range of seeds reaches.
"""

from __future__ import annotations

from dataclasses import replace

from llmscale_env.sim.spec import ClusterSpec, PoolSpec, PreemptionMode, ProfileSpec, V1Spec
from tests.engine_cases import Case, _Generator, print_reached

V1_MECHANISMS = frozenset(
    {
        "v1_waits_for_host",
        "v1_last_token_in_flight",
        "v1_preempted_in_flight",
        "v1_prompt_split",
        "v1_no_blocks",
        "finished_preempted",
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
        return replace(spec, profiles=profiles, pools=pools, context_limits=limits)

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
                host_base_ps=self.pick(0, self.ps(0, 3), self.ps(0, 40)),
                host_per_request_ps=self.pick(0, 0, self.ps(0, 2)),
            ),
        )


def make_v1_case(seed: int) -> Case:
    return _V1Generator(seed).case()


if __name__ == "__main__":
    print_reached(make_v1_case, V1_MECHANISMS)
