"""The static fleet: a number of instances, fixed batch limits, one routing rule, and no more decisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from baselines.fleet import class_pool
from baselines.parameters import BatchLimit, Count, NamedPolicy, Parameters, PolicyError
from baselines.space import Real, Space, Whole
from llmscale_env.control.command import RULES, Command
from llmscale_env.control.regions import ScalingOrder
from llmscale_env.control.reward import draw_requests, seed_of_each_day
from llmscale_env.control.unfinished_work import full_batch_cost_gpu_s
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.pools import PoolConfig
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import compile_cluster
from llmscale_env.sim.spec.checks import check_router

_NO_POOL = -0.5
"""Where the range of a pool's share begins: below 0 the pool is left out."""

_SEED = 990_300
"""Of the requests by which GPUs are shared out among LLMs: no episode's own."""


class StaticParameters(Parameters):
    """Counts and limits by pool; a pool left out keeps what the scenario starts with.

    Attributes:
        each: instances of every pool that `instances` does not name; None: what the scenario starts with.
        instances: instances by pool.
        batch_limit: running requests per instance in every pool.
        batch_limits: the same by pool.
        router: the rule by which requests of every class are routed, as in a scenario's routes; None: the
            scenario's own.
    """

    each: Count | None = None
    instances: dict[str, Count] = {}
    batch_limit: BatchLimit | None = None
    batch_limits: dict[str, BatchLimit] = {}
    router: str | None = None


def _by_work(scenario: Scenario) -> dict[str, float]:
    """Share of each pool, 1 at most: the GPU time that its LLM asks for, evenly among the LLM's pools."""
    llms, pools = scenario.fleet.llms, scenario.fleet.pools
    of_llm = np.full(len(llms), 1e-9)
    for seed in seed_of_each_day(scenario, _SEED):
        drawn = draw_requests(scenario, np.random.default_rng(seed))
        per_input, per_output = full_batch_cost_gpu_s(scenario)[:, drawn.llm, drawn.slo_class]
        work_s = drawn.input_tokens * per_input + drawn.predicted_output_tokens * per_output
        of_llm += np.bincount(drawn.llm, work_s, minlength=len(llms))
    mine = [llms.index(pool.llm) for pool in pools]
    each = of_llm / np.maximum(np.bincount(mine, minlength=len(llms)), 1)
    return {pool.name: float(each[m] / each.max()) for pool, m in zip(pools, mine, strict=True)}


class StaticPolicy(NamedPolicy):
    """Keeps a fleet as it is: over-provisioning, the operator's oldest rule.

    `make_policy("static", interactive=6, mixed=4)` gives counts by pool, `**{"mixed.batch_limit": 96}`
    a pool's batch limit, `each=6` so many instances in every pool.

    Args:
        name: what tables call it.
        values: fields of `StaticParameters`, names of pools, or `POOL.batch_limit`.

    Raises:
        PolicyError: a count or a limit that is out of range.
    """

    parameters_type = StaticParameters
    usual_name = "static"
    parameters: StaticParameters

    @staticmethod
    def grid_of(scenario: Scenario) -> dict[str, tuple[object, ...]]:
        """What `baselines.tune` sweeps: 0, 1, 2, 4, ... instances of each pool, fixed batch limits."""
        grid: dict[str, tuple[object, ...]] = {}
        for pool in scenario.fleet.pools:
            most = pool.max_instances
            powers = [2**k for k in range(most.bit_length()) if 2**k < most]
            grid[pool.name] = (0, *powers, most)
        limit = min(pool.max_batch for pool in scenario.fleet.pools)
        return {
            **grid,
            "batch_limit": tuple(b for b in (32, 64, 128, 256) if b <= limit) or (limit,),
        }

    @staticmethod
    def space_of(scenario: Scenario) -> Space:
        """What it searches: GPUs in all, the pools' shares of them, and a batch limit of each pool.

        A third of a share's range means that the pool is left out: with ranges from 0 on, a search as
        good as never draws a fleet of one pool.
        """
        pools = scenario.fleet.pools
        least = min(pool.tp for pool in pools)
        limits = {
            p.name: Whole(min(16, p.max_batch), min(512, p.max_batch), log=True) for p in pools
        }
        return {
            "gpus": Whole(least, scenario.fleet.max_gpus),
            **{f"{pool.name}.share": Real(_NO_POOL, 1.0) for pool in pools},
            **{f"{name}.batch_limit": limit for name, limit in limits.items()},
        }

    @staticmethod
    def begins_with(scenario: Scenario) -> list[dict[str, Any]]:
        """Points of the space that a search begins with.

        Of several LLMs with pools of their own: fleets of several sizes in which each LLM has GPUs as it has
        work, the same in each of its pools. Of one LLM: fleets of the one pool that serves all, if there is.
        They are a corner of the space, and often the cheapest fleets, since nothing idles while another pool
        is full.
        """
        pools, most = scenario.fleet.pools, scenario.fleet.max_gpus
        if len(scenario.fleet.llms) > 1 and not any(pool.swaps_to for pool in pools):
            shares = {f"{name}.share": share for name, share in _by_work(scenario).items()}
            limits = {f"{q.name}.batch_limit": min(q.batch_limit, 512) for q in pools}
            sizes = [most * k // 12 for k in range(5, 10)]
            return [{"gpus": gpus, **shares, **limits} for gpus in sizes]
        try:
            alone = {class_pool(scenario, llm, "") for llm in scenario.fleet.llms}
        except PolicyError:
            return []
        if len(alone) > 1:
            return []
        shares = {f"{q.name}.share": 1.0 if p in alone else _NO_POOL for p, q in enumerate(pools)}
        step = min(q.tp for q in pools)
        return [
            {"gpus": gpus, **shares, **{f"{q.name}.batch_limit": limit for q in pools}}
            for gpus in range(step, most + 1, step * max(1, most // (16 * step)))
            for limit in (16, 48, 128)
            if limit <= min(q.max_batch for q in pools)
        ]

    @staticmethod
    def of_grid_in(point: dict[str, Any], scenario: Scenario) -> dict[str, Any]:
        """A point's fleet: of the grid, as large as the GPUs allow; of the ranges, by shares."""
        pools = {pool.name: pool for pool in scenario.fleet.pools}
        if "gpus" in point:
            others = {k: v for k, v in point.items() if k != "gpus" and not k.endswith(".share")}
            shares = {name: point[f"{name}.share"] for name in pools}
            return {**_shared_out(point["gpus"], shares, pools), **others}
        gpus = sum(point[name] * pool.tp for name, pool in pools.items() if name in point)
        most = scenario.fleet.max_gpus
        if gpus <= most:
            return point
        return {k: int(v * most / gpus) if k in pools else v for k, v in point.items()}

    def __init__(self, name: str = "", **values: Any) -> None:
        known = {
            key: value for key, value in values.items() if key in StaticParameters.model_fields
        }
        instances = dict(known.pop("instances", {}))
        limits = dict(known.pop("batch_limits", {}))
        for key, value in values.items():
            if key in StaticParameters.model_fields:
                continue
            pool, dot, what = key.rpartition(".")
            if dot and what == "batch_limit":
                limits[pool] = value
            else:
                instances[key] = value
        super().__init__(name, **known, instances=instances, batch_limits=limits)

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Check the counts and the rule against the fleet.

        Raises:
            PolicyError: an unknown pool, more instances than its slots, more GPUs than the fleet's,
                a batch limit above the pool's `max_batch`, an unknown rule, or one for which a route lacks
                what it needs.
        """
        self._check_router(scenario)
        pools = {pool.name: pool for pool in scenario.fleet.pools}
        for name in (*self.parameters.instances, *self.parameters.batch_limits):
            if name not in pools:
                raise PolicyError(
                    f"{self.name}: {name!r} is neither a parameter nor a pool; "
                    f"there are pools {list(pools)}"
                )
        each = self.parameters.each
        counts = {
            name: pool.initial_instances if each is None else each for name, pool in pools.items()
        }
        counts |= self.parameters.instances
        limits: dict[str, int] = {}
        if self.parameters.batch_limit is not None:
            limits = dict.fromkeys(pools, self.parameters.batch_limit)
        limits |= self.parameters.batch_limits
        for name, pool in pools.items():
            if counts[name] > pool.max_instances:
                raise PolicyError(
                    f"{self.name}: {name} = {counts[name]}: must be at most {pool.max_instances}"
                )
            if limits.get(name, 1) > pool.max_batch:
                raise PolicyError(
                    f"{self.name}: {name}.batch_limit = {limits[name]}: must be at most "
                    f"{pool.max_batch}"
                )
        gpus = sum(count * pools[name].tp for name, count in counts.items())
        if gpus > scenario.fleet.max_gpus:
            raise PolicyError(
                f"{self.name}: the instances {counts} take {gpus} GPUs, the fleet has "
                f"{scenario.fleet.max_gpus}"
            )
        rule = self.parameters.router
        self._orders = Command(
            targets=counts,
            batch_limits=limits,
            controllers=dict.fromkeys(pools, "fixed"),
            scaling={name: ScalingOrder("none") for name, pool in pools.items() if pool.scaling},
            routers={} if rule is None else {c.name: rule for c in scenario.classes},
            route_gateway=() if rule is None else scenario.fleet.llms,
            reason="static",
        )

    def _check_router(self, scenario: Scenario) -> None:
        rule = self.parameters.router
        if rule is None:
            return
        if rule not in RULES:
            raise PolicyError(f"{self.name}: router = {rule!r} is unknown; there are {list(RULES)}")
        spec = compile_cluster(scenario)
        for llm in range(spec.n_llms):
            for slo_class in range(len(spec.classes)):
                try:
                    check_router(spec, llm, slo_class, RULES[rule])
                except ValueError as error:
                    raise PolicyError(f"{self.name}: router = {rule!r}: {error}") from None

    def act(self, view: ClusterView) -> Command:
        """The orders at the first decision, nothing afterwards."""
        return self._orders if view.step == 0 else Command()


def _shared_out(
    gpus: int, shares: Mapping[str, float], pools: Mapping[str, PoolConfig]
) -> dict[str, int]:
    """Instances of each pool by its share of the GPUs: whole ones, then one more by largest remainder.

    Shares of 0 and below are none; if all are, they are alike.
    """
    shares = {name: max(0.0, share) for name, share in shares.items()}
    if not any(shares.values()):
        shares = dict.fromkeys(shares, 1.0)
    whole = sum(shares.values())
    wanted = {name: gpus * share / whole / pools[name].tp for name, share in shares.items()}
    found = {name: min(int(n), pools[name].max_instances) for name, n in wanted.items()}
    left = gpus - sum(n * pools[name].tp for name, n in found.items())
    for name in sorted(wanted, key=lambda name: found[name] - wanted[name]):
        pool = pools[name]
        if wanted[name] > found[name] and found[name] < pool.max_instances and pool.tp <= left:
            found[name] += 1
            left -= pool.tp
    return found
