"""Weights of several LLMs in one instance's share of host memory: docs/engine.md section 9."""

from __future__ import annotations

from collections.abc import Sequence

from llmscale_env.sim.spec import PoolSpec, first_warm, fitting


class HostWeights:
    """Which LLMs' weights are in host memory, and when those on their way from storage will be.

    Storage delivers one LLM after the other.

    Attributes:
        ready_ps: when the weights of an LLM are or will be there, by LLM; absent: they are not.
        used: number of the swap that brought an LLM to the GPUs last, by LLM.
    """

    def __init__(self, pool: PoolSpec) -> None:
        self.fetch_ps = {swap.llm: swap.fetch_ps for swap in pool.served}
        self.weight_bytes = {swap.llm: swap.weight_bytes for swap in pool.served}
        self.pool = pool
        self.ready_ps = dict.fromkeys(first_warm(pool), 0)
        self.used: dict[int, int] = {}

    def take_times(self, pool: PoolSpec, now_ps: int) -> None:
        """The same pool, whose LLMs may take another time to fetch; what is under way stays under way."""
        new = {swap.llm: swap.fetch_ps for swap in pool.served}
        for llm, ready in self.ready_ps.items():
            if ready > now_ps:
                begun = ready - self.fetch_ps[llm] <= now_ps
                whole = now_ps + new[llm]
                self.ready_ps[llm] = min(ready, whole) if begun else max(ready, whole + 1)
        self.fetch_ps, self.pool = new, pool

    def plan(self, now_ps: int, wanted: Sequence[int], demanded: int | None = None) -> None:
        """Fetch what is wanted and give up what it leaves no room for.

        Args:
            now_ps: the present.
            wanted: LLMs, the most urgent first.
            demanded: the LLM that a swap waits for: a fetch of another one gives way.
        """
        there = [llm for llm, ready in self.ready_ps.items() if ready <= now_ps]
        others = sorted(there, key=lambda llm: (-self.used.get(llm, 0), llm))
        chosen = fitting([*wanted, *others], self.weight_bytes, self.pool)
        swap_waits = demanded is not None and demanded not in there
        under_way = [
            llm
            for llm, ready in self.ready_ps.items()
            if ready - self.fetch_ps[llm] <= now_ps < ready
            and llm in chosen
            and not (swap_waits and llm != demanded)
        ]
        self.ready_ps = {
            llm: self.ready_ps[llm] for llm in chosen if llm in there or llm in under_way
        }
        free_ps = max([now_ps, *(self.ready_ps[llm] for llm in under_way)])
        for llm in chosen:
            if llm not in self.ready_ps:
                free_ps += self.fetch_ps[llm]
                self.ready_ps[llm] = free_ps
