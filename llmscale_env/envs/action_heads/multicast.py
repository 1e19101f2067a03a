"""Orders about instances whose weights flow: how many, who sends to them, who works while it loads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.scaling import FleetSeen, Preference, Scaler
from llmscale_env.control.snapshot import Snapshot
from llmscale_env.envs.action_heads.orders import ActionOrders
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import SOURCES
from llmscale_env.sim.orders import AS_IS, Mutate
from llmscale_env.sim.spec import InstanceState, LoadSource, PoolPhase

LEVELS = np.array([0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128])


class Multicast:
    """Instances of each pool, and from whom those that start get their weights, through the scale planner.

    Raises:
        ValueError: a pool whose weights do not flow.
    """

    name = "multicast"
    preferences: tuple[Preference, ...] = ("planner", "decode", "any", "host", "ssd")
    chains = (1, 2, 4, None)

    def __init__(self, scenario: Scenario) -> None:
        pools = scenario.fleet.pools
        for pool in pools:
            if not pool.flows:
                raise ValueError(
                    f"action = {self.name!r}: pool {pool.name!r} has weights = {pool.weights!r}; all pools "
                    "need 'flow'"
                )
        self._scaler = scaler = Scaler(scenario)
        self._levels = [LEVELS[pool.max_instances >= LEVELS] for pool in pools]
        self.parts = [f"{pool.name}/instances" for pool in pools]
        self.choices = [[str(v) for v in levels] for levels in self._levels]
        self.parts += ["weights/from", "weights/chains"]
        self.choices += [list(self.preferences), [str(k or "all") for k in self.chains]]
        phases = [pool.phase for pool in pools]
        # Decode first: what has been prefilled is to go on.
        self._order = sorted(range(len(pools)), key=lambda p: phases[p] != "decode")
        self._live = self._mutate = -1
        if any(phase == "prefill" for phase in phases):
            self._live = len(self.parts)
            self.parts.append("weights/live")
            self.choices.append(["off", "on"])
        # Prefill pools whose instances can become those of a decode pool.
        self._twins: dict[int, int] = {}
        for p, slots in enumerate(scaler.slots):
            twin = int(scaler.twins[slots[0]])
            other = int(scaler.pool_of[twin]) if twin >= 0 else -1
            if other >= 0 and (phases[p], phases[other]) == ("prefill", "decode"):
                self._twins[p] = other
        if self._twins:
            self._mutate = len(self.parts)
            self.parts.append("decode/by")
            self.choices.append(["load", "mutate"])

    def _have(self, now: Snapshot) -> NDArray[np.int64]:
        """(E, P) instances, those included that others are about to become."""
        pools = now.pools
        have = pools["acquiring"] + pools["loading"] + pools["active"]
        for p, other in self._twins.items():
            have[:, other] += now.weights.mutating[:, self._scaler.slots[p]].sum(axis=1)
        return have

    def write(self, action: NDArray[np.int64], now: Snapshot, orders: ActionOrders) -> None:
        have = self._have(now)
        want = np.stack(
            [levels[action[:, p]] for p, levels in enumerate(self._levels)], axis=1
        ).astype(np.int64)
        for e in np.flatnonzero((want != have).any(axis=1)).tolist():
            self._write_one(e, action[e], have[e], want[e], now, orders)

    def _write_one(
        self,
        e: int,
        action: NDArray[np.int64],
        have: NDArray[np.int64],
        want: NDArray[np.int64],
        now: Snapshot,
        orders: ActionOrders,
    ) -> None:
        scaler = self._scaler
        seen = FleetSeen.of(now.weights, e)
        have = have.copy()
        going: list[int] = []
        if self._mutate >= 0 and action[self._mutate]:
            for p, other in self._twins.items():
                some = scaler.mutations(seen, p, int(want[other] - have[other]))
                have[p] -= len(some)
                have[other] += len(some)
                going += some
        orders.first += [(e, Mutate(i)) for i in going]
        wanted: dict[int, int] = {}
        mutated = len(going) > 0
        for p in self._order:
            rise = int(want[p] - have[p])
            present = scaler.present(seen, p) - sum(scaler.pool_of[i] == p for i in going)
            if rise < 0:
                lower = max(0, present + rise)
                orders.for_pools().targets[e, p] = lower
                going += scaler.stops(seen, p, present - lower, going)
            elif rise > 0:
                back = 0 if mutated else min(rise, scaler.revivable(seen, p))
                if back:
                    orders.for_pools().targets[e, p] = present + back
                wanted[p] = rise - back
        prefer = self.preferences[action[len(self._levels)]]
        chains = self.chains[action[len(self._levels) + 1]]
        live = self._live >= 0 and bool(action[self._live])
        loads = scaler.loads(seen, wanted, prefer=prefer, chains=chains, live=live, going=going)
        orders.impossible[e] += sum(wanted.values()) - len(loads)
        if len(loads):
            orders.last.append((e, loads))

    def mask(self, now: Snapshot) -> list[NDArray[np.bool_]]:
        scaler, pools, weights = self._scaler, now.pools, now.weights
        n = len(now.time_s)
        have = self._have(now)
        state = weights.instances["state"]
        off = state == InstanceState.OFF
        held = ((~off) * scaler.gpus).sum(axis=1)
        paired = scaler.twins >= 0
        spare = off & (~paired | off[:, scaler.twins])
        active = state == InstanceState.ACTIVE
        masks = []
        mutable = np.zeros((n, len(self._levels)), np.int64)
        for p, other in self._twins.items():
            serves = active[:, scaler.slots[other]].any(axis=1)
            some = active[:, scaler.slots[p]].sum(axis=1) - 1
            mutable[:, other] = np.where(serves, np.maximum(some, 0), 0)
        for p, levels in enumerate(self._levels):
            free = (scaler.spec.max_gpus - held) // scaler.spec.pools[p].gpus
            room = np.minimum(spare[:, scaler.slots[p]].sum(axis=1), free)
            most = have[:, p] + room + pools["draining"][:, p] + mutable[:, p]
            masks.append(levels <= most[:, None])
        serving = active.any(axis=1)
        decode = (active & (scaler.phase_of == PoolPhase.DECODE)).any(axis=1)
        copy = weights.there.any(axis=1)
        yes = np.ones(n, bool)
        masks.append(np.stack([serving | copy, decode, serving, copy, yes], axis=1))
        masks.append(np.ones((n, len(self.chains)), bool))
        if self._live >= 0:
            prefill = (active & (scaler.phase_of == PoolPhase.PREFILL)).any(axis=1)
            masks.append(np.stack([yes, prefill], axis=1))
        if self._mutate >= 0:
            masks.append(np.stack([yes, (mutable > 0).any(axis=1)], axis=1))
        return masks


class PlannedLoads:
    """Targets whose source is multicast, where weights flow: who sends is the scale planner's choice.

    Without it the engine takes the nearest instance (docs/engine.md, section 15), several targets the same
    one. Where loading takes a time by its source, that of multicast is the planner's
    (`sim.compile.pool_load_times_s`), and nobody is chosen.
    """

    def __init__(self, scenario: Scenario) -> None:
        pools = scenario.fleet.pools
        self._flows = np.array([pool.flows for pool in pools])
        self._own = np.array([SOURCES[pool.engine_source] for pool in pools])
        self._scaler = Scaler(scenario)

    def write(self, now: Snapshot, orders: ActionOrders) -> None:
        """Put loads in the place of targets that rise."""
        pools = now.pools
        present = pools["acquiring"] + pools["loading"] + pools["active"]
        given = orders.for_pools()
        source = np.where(given.sources == AS_IS, self._own, given.sources)
        rises = self._flows & (source == LoadSource.MULTICAST) & (given.targets > present)
        for e in np.flatnonzero(rises.any(axis=1)).tolist():
            seen, scaler = FleetSeen.of(now.weights, e), self._scaler
            going: list[int] = []
            for p in np.flatnonzero((given.targets[e] != AS_IS) & ~rises[e]).tolist():
                going += scaler.stops(seen, p, int(present[e, p] - given.targets[e, p]), going)
            wanted: dict[int, int] = {}
            for p in np.flatnonzero(rises[e]).tolist():
                rise = int(given.targets[e, p] - present[e, p])
                back = min(rise, scaler.revivable(seen, p))
                given.targets[e, p] = present[e, p] + back if back else AS_IS
                wanted[p] = rise - back
            loads = scaler.loads(seen, wanted, going=going)
            orders.impossible[e] += sum(wanted.values()) - len(loads)
            if len(loads):
                orders.last.append((e, loads))
