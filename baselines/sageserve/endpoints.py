"""A scenario's endpoints as the integer programme takes them: by LLM i, region j and GPU type k."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from baselines.parameters import PolicyError
from baselines.sageserve.profile import Profile, ProfileSettings
from baselines.sageserve.throughput import throughput
from llmscale_env.control.regions import RegionPlaces, RegionsSeen
from llmscale_env.control.reward import draw_requests, expected_arrivals
from llmscale_env.scenarios.schema import Scenario

PROFILE_SEED = 990_100
"""Of the requests on whose lengths theta is measured: no episode's own."""

PROFILE_REQUESTS = 20_000


class Endpoints:
    """Who serves which LLM where, and how much.

    Attributes:
        places: numbers of pools, LLMs and regions.
        kinds: (GPU, tensor-parallel degree) by k.
        pool: (i, j, k) number of the pool, -1: none.
        theta: (i, k) tokens per second of an instance (`baselines.sageserve.profile`).
        least, most: (i, j) instances of an endpoint.
        interactive: (C,) which classes are served at once, the others can wait.
        period_s: of the pools' rules.

    Args:
        scenario: all of whose pools have `scaling`.
        policy: named in errors.
        theta_ttft_s: target TTFT of theta; None: what an instance serves if nobody ever waits.
        theta_itl: whether theta keeps the ITL as well that the scenario charges (`charged_itl_s`).

    Raises:
        PolicyError: two pools of one kind at an endpoint, different hours, or targets that an LLM does not
            keep even without load.
    """

    def __init__(
        self,
        scenario: Scenario,
        policy: str,
        *,
        theta_ttft_s: float | None = None,
        theta_itl: bool = True,
    ) -> None:
        pools = scenario.fleet.pools
        self.places = places = RegionPlaces(scenario)
        self.kinds = tuple(dict.fromkeys((pool.gpu, pool.tp) for pool in pools))
        shape = (len(places.llms), len(places.regions), len(self.kinds))
        self.pool = np.full(shape, -1, np.int64)
        self.least, self.most = (np.zeros(shape[:2], np.int64) for _ in range(2))
        for p, pool in enumerate(pools):
            assert pool.scaling is not None
            where: tuple[int, ...] = (
                int(places.llm[p]),
                int(places.region[p]),
                self.kinds.index((pool.gpu, pool.tp)),
            )
            if self.pool[where] >= 0:
                raise PolicyError(
                    f"{policy}: pools {pools[self.pool[where]].name!r} and {pool.name!r} are of one LLM, "
                    "region and GPU: one endpoint is planned as one pool"
                )
            self.pool[where] = p
            most = pool.scaling.most
            self.least[where[:2]] += pool.scaling.least
            self.most[where[:2]] += pool.max_instances if most is None else most
        periods = {pool.scaling.period_s for pool in pools if pool.scaling}
        if len(periods) > 1:
            raise PolicyError(f"{policy}: pools have scaling.period_s of {sorted(periods)}")
        self.period_s = periods.pop()
        self.interactive = np.array([c.priority == 0 for c in scenario.classes])
        self.theta = np.zeros((shape[0], shape[2]))
        itl_s = charged_itl_s(scenario) if theta_itl and theta_ttft_s is not None else None
        for kind, theta in _thetas(scenario.model_dump_json(), theta_ttft_s, itl_s).items():
            if theta <= 0:
                llm, (gpu, tp) = places.llms[kind[0]], self.kinds[kind[1]]
                also = "" if itl_s is None else f" with an ITL of {itl_s:g} s (theta_itl)"
                raise PolicyError(
                    f"{policy}: theta_ttft_s = {theta_ttft_s}{also}: too short for {llm!r} on {tp} {gpu}: "
                    "however few requests there are, too many are later"
                )
            self.theta[kind] = theta

    def instances(self, seen: RegionsSeen) -> NDArray[np.int64]:
        """(i, j, k) instances there or on their way."""
        return np.where(self.pool >= 0, seen.instances[self.pool], 0)

    def capacity(self, seen: RegionsSeen) -> NDArray[np.int64]:
        """(j, k) VMs of a region."""
        there = np.where(self.pool >= 0, seen.vms[self.pool], 0)
        return np.asarray(there.sum(axis=0), np.int64)


def charged_itl_s(scenario: Scenario) -> float | None:
    """The tightest ITL target that the reward charges interactive requests for; None: it charges none."""
    charged = [c.itl_s for c in scenario.classes if c.priority == 0 and c.weight > 0]
    return min(charged, default=None)


@lru_cache(maxsize=8)
def _thetas(
    scenario_json: str, ttft_s: float | None, itl_s: float | None
) -> dict[tuple[int, int], float]:
    """Theta by LLM and kind."""
    scenario = Scenario.model_validate_json(scenario_json)
    lengths, llms = _lengths(scenario), scenario.fleet.llms
    kinds = tuple(dict.fromkeys((pool.gpu, pool.tp) for pool in scenario.fleet.pools))
    found: dict[tuple[int, int], float] = {}
    for pool in scenario.fleet.pools:
        where = (llms.index(pool.llm), kinds.index((pool.gpu, pool.tp)))
        if where in found:
            continue
        if ttft_s is None:
            most = throughput(pool.llm, pool.gpu, pool.tp, *lengths[where[0]])
            found[where] = most.tokens_per_s
            continue
        # Requests are balanced within a deployment, or among all instances of the pool.
        settings = ProfileSettings(
            instances=pool.deployment_instances or max(pool.initial_instances, 1),
            ttft_s=ttft_s,
            itl_s=itl_s,
            itl_statistic=scenario.itl_statistic,
        )
        found[where] = Profile(scenario, pool, *lengths[where[0]], settings).theta()
    return found


def _lengths(scenario: Scenario) -> tuple[tuple[NDArray[np.int32], NDArray[np.int32]], ...]:
    """Per LLM input and output tokens of interactive requests of the scenario's workload."""
    expected = sum(expected_arrivals(scenario))
    few = scenario.workload.scaled(min(1.0, PROFILE_REQUESTS / expected))
    table = draw_requests(
        scenario.model_copy(update={"workload": few}), np.random.default_rng(PROFILE_SEED)
    )
    now = np.array([c.priority == 0 for c in scenario.classes])[table.slo_class]
    found = []
    for i in range(len(scenario.fleet.llms)):
        mine = table.llm == i
        mine = mine & now if (mine & now).any() else mine
        found.append((table.input_tokens[mine], table.output_tokens[mine]))
    return tuple(found)
