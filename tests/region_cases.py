"""Generated cases with regions, priorities, queue managers, spot VMs and endpoint scaling (engine.md, 17).

`python -m tests.region_cases FIRST COUNT` prints which mechanisms a range of seeds reaches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from llmscale_env.sim.spec import (
    NEVER,
    ClusterSpec,
    InstanceState,
    LatencySpec,
    ManagerSpec,
    PoolSpec,
    RouterKind,
    RouteSpec,
    ScalingKind,
    ScalingSpec,
    ScalingThresholds,
    SpotSpec,
)
from llmscale_env.workload.requests import RequestTable
from tests.engine_cases import DRAWN, ROUTERS, Case, Command, _Generator, print_reached

REGION_MECHANISMS = frozenset(
    {
        # regions
        "router_regional",
        "region_preferred",
        "region_next",
        "region_least",
        "region_none",
        "transit",
        "transit_at_once",
        "reached_nobody",
        "moved_within_region",
        "regional_changed",
        "thresholds_differ",
        "gateway_left",
        # priorities
        "went_before",
        "promoted",
        "waiting_moved",
        # managers
        "signal_0",
        "signal_1",
        "signal_2",
        "managed",
        "managed_moved",
        "managers_changed",
        # spot
        "reclaim_own",
        "reclaim_other",
        "redeploy_local",
        "redeploy_remote",
        "donated",
        "reactivated",
        "target_missed",
        "fail_acquiring",
        "fail_loading",
        "fail_active",
        "fail_draining",
        "fail_donating",
        "fail_rerouted",
        "fail_to_queue",
        # scaling
        "look_in_cooldown",
        "look_in_held_back",
        "look_missed",
        *(
            f"look_{way}_{kind}"
            for way in ("out", "in")
            for kind in ("reactive", "target", "target_ahead")
        ),
        "look_out_by_load",
        "look_in_by_load",
        "scaling_changed",
        "scaling_thresholds",
        # what goes on besides
        "command_refused",
        "arrivals_tied",
        "arrival_at_a_boundary",
        "preempt_recompute",
        "preempt_swap",
        "evict_for_own",
        "from_pull_0",
        "cancel_loading",
        "drained_off",
    }
)
"""What a good set of these cases must have made happen."""


class _RegionGenerator(_Generator):
    """Draws the parts of one case."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.virtual, self.common_batch = False, 0
        self.n_regions = self.pick(1, 2, 2, 3)
        self.spot_gpus = [self.pick(1, 1, 2) for _ in range(self.n_regions)]
        self.salt = self.pick(0, self.int(0, 2**40), -self.int(1, 2**40))

    def quantiles(self, longest: int) -> tuple[int, ...]:
        low = self.pick(0, self.ps(0, longest))
        rises = [self.pick(0, self.ps(0, longest)) for _ in range(self.int(1, 3))]
        return tuple(int(k) for k in np.cumsum([low, *rises]))

    def regional(self, pool: PoolSpec, region: int) -> PoolSpec:
        """The pool as one of a region, with what such pools can have."""
        n_slots = self.int(1, 6)
        pool = replace(
            pool,
            n_slots=n_slots,
            initial_active=self.pick(0, 1, 1, self.int(1, n_slots), self.int(1, n_slots)),
            region=region,
            deployment_slots=self.pick(0, 0, 1, 2),
            priorities=self.chance(0.6),
            pull=(),
            batch_limit=min(pool.batch_limit, self.pick(2, 4, 64)),
        )
        pool = replace(pool, initial_active=min(pool.initial_active, n_slots))
        if self.chance(0.6):
            pool = replace(
                pool,
                gpus=self.spot_gpus[region],
                spot=SpotSpec(
                    group=region,
                    initial=self.pick(0, 0, 1, 3),
                    reclaim_knots_ps=self.quantiles(self.pick(1, 20, 60)),
                    donate_ps=self.pick(0, self.ps(1, 40)),
                    redeploy_ps=self.pick(0, self.ps(1, 60)),
                    redeploy_remote_ps=self.pick(0, self.ps(1, 300)),
                    local=self.chance(0.5),
                ),
            )
        if self.chance(0.7):
            pool = replace(pool, scaling=self.scaling(n_slots))
        return pool

    def scaling(self, n_slots: int) -> ScalingSpec:
        high = self.pick(50_000, 300_000, 700_000)
        least = self.pick(0, 0, 1, min(2, n_slots))
        period = self.ps(1, self.pick(50, 300))
        above = self.pick(1, 500_000, 1_000_000, 5_000_000)
        return ScalingSpec(
            kind=int(self.pick(*ScalingKind, ScalingKind.REACTIVE, ScalingKind.TARGET_AHEAD)),
            high_ppm=high,
            low_ppm=self.pick(0, high // 3, high - 1),
            cooldown_ps=max(1, self.ps(0, self.pick(2, 20, 60))),
            least=least,
            most=self.int(max(least, 1), n_slots),
            period_ps=period,
            last_ps=self.pick(0, period // 2, period, period, period),
            above_ppm=above,
            below_ppm=self.pick(0, above // 3, above - 1),
            either_way=self.chance(0.5),
            bin_ps=max(1, self.ps(1, self.pick(3, 20))),
            bins=self.pick(1, 2, 5),
        )

    def latency(self) -> LatencySpec | None:
        if self.chance(0.2):
            return None
        longest = self.pick(1, 10, 40)

        def between(one: int, other: int) -> tuple[int, ...]:
            if one == other and self.chance(0.5):
                return (0, 0)
            return self.quantiles(longest)

        regions = range(self.n_regions)
        return LatencySpec(tuple(tuple(between(c, j) for j in regions) for c in regions))

    def orders(self, regions: list[int]) -> tuple[tuple[int, ...], ...]:
        """For clients of each region those regions in some order."""
        return tuple(
            tuple(int(j) for j in self.rng.permutation(regions)) for _ in range(self.n_regions)
        )

    def spec(self) -> ClusterSpec:
        profiles = tuple(self.profile() for _ in range(self.int(1, 2)))
        classes = self.classes()
        n_llms = self.pick(1, 1, 2)
        pools: list[PoolSpec] = []
        routes: list[tuple[RouteSpec, ...]] = []
        queue_llm: list[int] = []
        managers: list[ManagerSpec] = []
        for llm in range(n_llms):
            first = len(queue_llm)
            queue_llm += [llm] * (self.n_regions + 1)
            by_region = self.chance(0.4)
            managed = range(first, first + (self.n_regions if by_region else 1))
            pulled = first + self.n_regions
            mine: list[int] = []
            for region in range(self.n_regions):
                for _ in range(self.pick(0, 1, 1, 2) if mine or region else self.int(1, 2)):
                    mine.append(len(pools))
                    pool = self.regional(self.pool(llm, profiles, []), region)
                    if self.chance(0.3):
                        pool = replace(pool, pull=(pulled,))
                    pools.append(pool)
                there = [p for p in mine if pools[p].region == region]
                for q in managed:
                    if there and self.chance(0.7):
                        managers.append(
                            ManagerSpec(
                                q,
                                self.some(there, at_least=1),
                                self.pick(600_000, 300_000, 50_000),
                                self.pick(500_000, 100_000, 20_000, 0),
                            )
                        )
            row = []
            for c in classes:
                own = self.some(mine, at_least=1) if self.chance(0.3) else tuple(mine)
                regions = sorted({pools[p].region for p in own})
                queue = self.pick(-1, pulled, managed[0])
                if c.priority == 1:
                    queue = self.pick(pulled, managed[0], managed[0])
                kind = RouterKind.REGIONAL
                if queue >= 0 and self.chance(0.6 if c.priority == 1 else 0.1):
                    kind = RouterKind.SHARED_QUEUE
                elif self.chance(0.1):
                    kind = self.pick(RouterKind.JSQ_TOKENS, RouterKind.LEAST_KV)
                row.append(
                    RouteSpec(
                        kind,
                        own,
                        queue=queue,
                        preference=self.orders(regions),
                        threshold_ppm=self.pick(0, 50_000, 200_000, 700_000, 700_000),
                        region_queues=tuple(managed)
                        if by_region and queue == managed[0] and self.chance(0.8)
                        else (),
                    )
                )
            routes.append(tuple(row))
        held = sum(pool.initial_active * pool.gpus for pool in pools)
        return ClusterSpec(
            profiles=profiles,
            pools=tuple(pools),
            routes=tuple(routes),
            classes=tuple(
                replace(c, promote_ps=self.pick(int(NEVER), self.ps(0, 20), self.ps(1, 300)))
                for c in classes
            ),
            queue_llm=tuple(queue_llm),
            max_gpus=self.pick(2**31 - 1, 2**31 - 1, held + self.int(0, 6)),
            gpus_per_host=self.pick(1, 2, 4, 8),
            host_keep_alive_ps=self.pick(0, self.ps(1, 300), int(NEVER)),
            half_block_tokens=self.half_block,
            n_regions=self.n_regions,
            latency=self.latency(),
            waiting_counts=self.chance(0.4),
            managers=tuple(managers),
            manager_period_ps=max(1, self.ps(1, self.pick(5, 40))) if managers else 0,
        )

    def requests(self, spec: ClusterSpec) -> RequestTable:
        table = super().requests(spec)
        return replace(
            table,
            region=self.rng.integers(0, self.n_regions, len(table)),
            region_names=tuple(f"region{j}" for j in range(self.n_regions)),
            salt=self.salt,
        )

    def command(self, spec: ClusterSpec, at_ps: int) -> Command:
        p = self.int(0, len(spec.pools) - 1)
        pool = spec.pools[p]
        kind = self.rng.choice(
            [
                "other",
                "target",
                "fail",
                "host",
                "drain",
                "regional",
                "managers",
                "scaling",
                "gateway",
                "move",
            ],
            p=[0.16, 0.16, 0.14, 0.02, 0.1, 0.1, 0.08, 0.16, 0.02, 0.06],
        )
        llm, slo_class = self.int(0, spec.n_llms - 1), self.int(0, len(spec.classes) - 1)
        if kind == "target":
            return Command(at_ps, "set_target", (p, self.int(0, pool.n_slots), None))
        if kind == "fail":
            return Command(at_ps, "fail", (int(self.rng.integers(2**31)), "rare"))
        if kind == "host":
            return Command(at_ps, "fail_host", (self.int(0, spec.n_hosts - 1),))
        if kind == "drain":
            return Command(at_ps, "drain", (self.int(0, spec.n_instances - 1),))
        if kind == "move":
            instance = spec.first_slot[p] + self.int(0, pool.n_slots - 1)
            to = spec.first_slot[p] + self.int(0, pool.n_slots - 1)
            return Command(at_ps, "move_waiting", (instance, to, self.pick(1, 2, 5, 1000)))
        if kind == "gateway":
            return Command(at_ps, "route_gateway", (llm,))
        if kind == "regional":
            route = spec.routes[llm][slo_class]
            regions = sorted({spec.pools[q].region for q in route.pools})
            orders = self.pick(None, self.orders(regions))
            each = [self.pick(0, 50_000, 300_000) for _ in range(spec.n_regions)]
            threshold = self.pick(None, 0, 300_000, each)
            return Command(at_ps, "set_regional", (llm, slo_class, threshold, orders))
        if kind == "managers":
            n = len(spec.managers)
            one = [self.pick(0, 300_000, 600_000, 1_000_000) for _ in range(n)]
            return Command(at_ps, "set_managers", (one, [self.pick(0, x // 2, x) for x in one]))
        if kind == "scaling":
            return self.scaling_command(spec, at_ps, p)
        if self.chance(0.1):
            kinds = (*ROUTERS, RouterKind.REGIONAL)
            return Command(at_ps, "set_router", (llm, slo_class, int(self.pick(*kinds))))
        return super().command(spec, at_ps)

    def scaling_command(self, spec: ClusterSpec, at_ps: int, p: int) -> Command:
        scaling = spec.pools[p].scaling
        target = self.int(-1 if self.chance(0.2) else 0, spec.pools[p].n_slots)
        tokens = self.int(0, self.pick(0, 2, 20, 100))
        forecast = 0  # so many tokens within the observed bins
        if scaling is not None:
            forecast = min(tokens * 10**18 // (scaling.bins * scaling.bin_ps), 2**62)
        kind = int(self.pick(*ScalingKind, *ScalingKind, ScalingKind.TARGET_AHEAD))
        thresholds = None
        if self.chance(0.4):
            period = 0 if scaling is None else scaling.period_ps
            high, above = self.pick(0, 40_000, 400_000), self.pick(300_000, 2_000_000)
            thresholds = ScalingThresholds(
                high_ppm=high,  # 0 is refused
                low_ppm=self.pick(0, high // 2, max(high - 1, 0)),
                above_ppm=above,
                below_ppm=self.pick(0, above // 2),
                last_ps=self.pick(period // 4, period),
            )
        return Command(at_ps, "set_scaling", (p, kind, target, forecast, thresholds))

    def case(self) -> Case:
        case = super().case()
        last = case.stops_ps[-2]
        tokens = int(case.requests.input_tokens.sum() + case.requests.output_tokens.sum())
        end_ps = last + (500 + 6 * tokens) * self.unit_ps
        stops = {*case.stops_ps[:-1], *(self.int(0, last) for _ in range(self.pick(0, 5))), end_ps}
        spec = case.spec
        if spec.managers:  # the reference engine looks at every single signal
            period = max(spec.manager_period_ps, end_ps // 3000)
            spec = replace(spec, manager_period_ps=period)
        if any(p.scaling for p in spec.pools):  # hours begin at the start, too
            first = [
                self.scaling_command(spec, case.stops_ps[0], p)
                for p, pool in enumerate(spec.pools)
                if pool.scaling
            ]
            case = replace(case, script=(*first, *case.script))
        return replace(case, spec=spec, stops_ps=tuple(sorted(stops)), observes=("spot",))


def make_region_case(seed: int) -> Case:
    """The case of a seed."""
    return _RegionGenerator(seed).case()


def one_to_fail(engine: Any, case: Case, seed: int, role: str) -> tuple[int]:
    """Any slot, but mostly one that is on its way, or away."""
    rng = np.random.default_rng(seed)
    states = engine.instances()["state"]
    rare = np.flatnonzero((states != InstanceState.OFF) & (states != InstanceState.ACTIVE))
    there = np.flatnonzero(states != InstanceState.OFF)
    if len(rare) and rng.random() < 0.6:
        return (int(rng.choice(rare)),)
    if len(there) and rng.random() < 0.9:
        return (int(rng.choice(there)),)
    return (int(rng.integers(len(states))),)


DRAWN["fail rare"] = one_to_fail


def broken_spot_law(case: Case, trace: Any) -> str | None:
    """The first snapshot at which a group of spot VMs has lost one, or found one."""
    pools = case.spec.pools
    first = case.spec.first_slot
    groups = {pool.spot.group for pool in pools if pool.spot}
    had = {
        g: sum(p.spot.initial + p.initial_active for p in pools if p.spot and p.spot.group == g)
        for g in groups
    }
    for label, at in trace.looks().items():
        on = at["instances"]["state"] != InstanceState.OFF
        for g in groups:
            mine = [p for p, pool in enumerate(pools) if pool.spot and pool.spot.group == g]
            held = sum(int(on[first[p] : first[p] + pools[p].n_slots].sum()) for p in mine)
            if held + int(at["spot"]["spot"][mine].sum()) != had[g]:
                return f"{label}: VMs of group {g}"
        if (at["spot"]["spot"] < 0).any():
            return f"{label}: fewer than no spot VMs"
        if any(
            b > a for a, b in zip([at["now_ps"] * 10**6] * len(pools), at["gpu_ps"], strict=True)
        ):
            return f"{label}: more GPU time than there was"
    return None


if __name__ == "__main__":
    print_reached(make_region_case, REGION_MECHANISMS, broken_spot_law)
