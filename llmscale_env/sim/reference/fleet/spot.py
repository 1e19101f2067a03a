"""Spot VMs: leased out with an LLM on them, reclaimed, donated (docs/engine.md, section 17)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from llmscale_env.sim.reference.serving.hashing import reclaim_ps

if TYPE_CHECKING:
    from llmscale_env.sim.reference.engine import ReferenceEngine


class SpotVms:
    """What every pool has leased out, and what came of it.

    Attributes:
        vms: leased out with each pool's LLM.
        local: whether each pool's weights are in its region.
        reclaims_own, reclaims_others, donations: of each pool, so far.
        own_ps, others_ps: time that instances from own and from others' VMs have waited, those that have not
            served yet left out.
    """

    def __init__(self, engine: ReferenceEngine, salt: int) -> None:
        self.engine = engine
        self.salt = salt
        pools = engine.spec.pools
        self.vms = [pool.spot.initial if pool.spot else 0 for pool in pools]
        self.local = [
            bool(pool.spot and (pool.spot.local_at_start or pool.initial_active)) for pool in pools
        ]
        self.reclaims_own = [0] * len(pools)
        self.reclaims_others = [0] * len(pools)
        self.donations = [0] * len(pools)
        self.own_ps = [0] * len(pools)
        self.others_ps = [0] * len(pools)

    def _group(self, pool: int) -> Iterator[int]:
        mine = self.engine.spec.pools[pool].spot
        assert mine is not None
        for p, other in enumerate(self.engine.spec.pools):
            if other.spot is not None and other.spot.group == mine.group:
                yield p

    def giver(self, pool: int) -> int | None:
        """The pool whose VM an instance to be started would take."""
        if self.vms[pool] > 0:
            return pool
        most = max(self._group(pool), key=lambda p: self.vms[p])
        return most if self.vms[most] > 0 else None

    def take(self, pool: int) -> tuple[bool, int]:
        """Reclaim a VM; returns whether it has the pool's LLM, and the time that takes."""
        giver = self.giver(pool)
        spot = self.engine.spec.pools[pool].spot
        assert giver is not None
        assert spot is not None
        number = self.reclaims_own[pool] + self.reclaims_others[pool]
        self.vms[giver] -= 1
        if giver == pool:
            self.reclaims_own[pool] += 1
        else:
            self.reclaims_others[pool] += 1
        self.engine.events["reclaim_own" if giver == pool else "reclaim_other"] += 1
        return giver == pool, reclaim_ps(spot.reclaim_knots_ps, self.salt, pool, number)

    def give(self, pool: int) -> None:
        """A donated VM is leased out."""
        self.engine.events["donated"] += 1
        self.vms[pool] += 1
        self.donations[pool] += 1

    def waited(self, pool: int, own: bool, duration_ps: int) -> None:
        """An instance has waited so long for service."""
        (self.own_ps if own else self.others_ps)[pool] += duration_ps

    def redeploy_ps(self, pool: int) -> int:
        """Time to put the pool's LLM on a VM that had another."""
        spot = self.engine.spec.pools[pool].spot
        assert spot is not None
        return spot.redeploy_ps if self.local[pool] else spot.redeploy_remote_ps
