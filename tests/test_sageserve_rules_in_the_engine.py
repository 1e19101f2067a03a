"""The reference engine does at every request, signal and start what SageServe's rules on numbers say.

On generated cases; both engines agree on them (test_regions_engines_agree). Rules of scaling: see
test_reference_regions.
"""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from llmscale_env.sim.reference import ReferenceEngine
from llmscale_env.sim.reference.instance import Instance
from llmscale_env.sim.reference.serving.region_routing import Regions
from llmscale_env.sim.spec import InstanceState
from llmscale_env.workload.requests import PS_PER_S
from tests.engine_cases import run_case
from tests.region_cases import make_region_case
from tests.sageserve_rules import PullRule, choose_region, scale_out

PPM = 10**6
seen: Counter[str] = Counter()


def utilisation(regions: Regions, pools: Any) -> Any:
    used, room = regions.memory(pools)
    return Fraction(used, room) if room else math.inf


def used(regions: Regions, instance: Instance) -> int:
    """KV tokens that count as in use: also of those that wait, where the cluster says so."""
    waiting = instance.waiting_demand if regions.engine.spec.waiting_counts else 0
    return instance.kv_tokens + waiting


def region_for(regions: Regions, request: Any, real: Any) -> int | None:
    key = request.llm, request.slo_class
    each = [
        utilisation(regions, regions._pools(request, j))
        for j in range(regions.engine.spec.n_regions)
    ]
    takes = [Fraction(ppm, PPM) for ppm in regions.takes[key]]
    expected = choose_region(each, regions.preference[key][request.region], takes)
    found: int | None = real(regions, request)
    assert found == expected
    seen["regions"] += 1
    return found


def endpoint(regions: Regions, pools: Any, real: Any) -> Any:
    pools, spec = list(pools), regions.engine.spec
    deployments = []
    for p in pools:
        slots = regions.engine.instances_of[p]
        width = spec.pools[p].deployment_slots or len(slots)
        deployments += [slots[k : k + width] for k in range(0, len(slots), width)]
    active = [[i for i in d if i.state == InstanceState.ACTIVE] for d in deployments]
    found = real(regions, pools)
    if not any(active):
        assert found is None
        return found
    # Deployments without an instance have no utilisation; all others are far below that.
    each = [
        Fraction(sum(used(regions, i) for i in d), sum(i.capacity for i in d))
        if d
        else Fraction(10**6)
        for d in active
    ]
    there = active[int(np.argmin([float(x) for x in each]))]
    left = [i.waiting_demand + max(0, i.left_tokens) for i in there]
    expected = there[int(np.argmin(left))]  # the first of equals, as above
    assert found is expected
    seen["instances"] += 1
    seen["of several deployments"] += sum(map(bool, active)) > 1
    return found


def signal(regions: Regions, k: int, real: Any) -> None:
    one, two = regions.one_ppm[k], regions.two_ppm[k]
    manager = regions.engine.spec.managers[k]
    queue = regions.engine.queues_of[manager.queue]
    waiting, full = len(queue), utilisation(regions, manager.pools)
    real(regions, k)
    if two > one:
        return  # the engine allows it, the rule does not
    expected = 0
    if full < math.inf:
        expected = PullRule(high=Fraction(one, PPM), low=Fraction(two, PPM)).pulls(full)
    pulled = waiting - len(queue)
    if regions.memory(manager.pools)[1] or not expected:
        assert pulled == min(waiting, expected)
    else:  # the look before a pull has sent the last instance away
        assert pulled < expected
    seen[f"pulls of {expected}"] += waiting > expected


def place_in_queue(instance: Instance, request: Any, real: Any) -> int:
    place: int = real(instance, request)
    if instance.pool.priorities and request.priority == 1:
        spec, now_ps = instance.engine.spec, instance.engine.now_ps
        rule = PullRule(urgent_age_s=Fraction(spec.classes[request.slo_class].promote_ps, PS_PER_S))
        expected = rule.priority(Fraction(now_ps - request.arrival_ps, PS_PER_S))
        assert request.rank == expected
        seen[f"of priority {expected}"] += 1
    return place


def set_target(engine: ReferenceEngine, pool: int, count: int, real: Any, *how: Any) -> int:
    if engine.spec.pools[pool].spot is None:
        missing: int = real(engine, pool, count, *how)
        return missing
    group = list(engine.spot_vms._group(pool))
    before = list(engine.spot_vms.vms)
    missing = real(engine, pool, count, *how)
    taken = {p: before[p] - engine.spot_vms.vms[p] for p in group}
    plan = scale_out(sum(taken.values()), group.index(pool), [before[p] for p in group])
    expected = {group[k]: n for k, n in plan.others} | {pool: plan.own}
    assert taken == {p: expected.get(p, 0) for p in group}
    assert plan.missing == 0
    seen["own VMs"] += plan.own > 0
    seen["others' VMs"] += len(plan.others) > 0
    return missing


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, watch in (
        (Regions, "_region_for", region_for),
        (Regions, "endpoint", endpoint),
        (Regions, "_signal", signal),
        (Instance, "_place_in_queue", place_in_queue),
        (ReferenceEngine, "set_target", set_target),
    ):
        real = getattr(owner, name)

        def asked(
            self: Any, *given: Any, real: Any = real, watch: Any = watch, **named: Any
        ) -> Any:
            if watch is set_target:
                pool, count, *how = given
                return watch(self, pool, count, lambda e, *a: real(e, *a, **named), *how)
            return watch(self, *given, real)

        monkeypatch.setattr(owner, name, asked)
    seen.clear()


@pytest.mark.slow
@pytest.mark.usefixtures("watched")
def test_the_engine_does_what_the_rules_say() -> None:
    for seed in range(60):
        run_case(ReferenceEngine, make_region_case(seed))
    few = {
        name: seen[name]
        for name in (
            "regions",
            "instances",
            "of several deployments",
            "pulls of 0",
            "pulls of 1",
            "pulls of 2",
            "of priority 0",
            "of priority 1",
            "own VMs",
            "others' VMs",
        )
        if seen[name] < 5
    }
    assert not few
