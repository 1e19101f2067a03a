"""Commands to regions, managers and rules of scaling: docs/engine.md section 17."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.observed import SPOT_DTYPE
from llmscale_env.sim.spec import ClusterSpec
from llmscale_env.sim.spec.region_checks import (
    check_manager_thresholds,
    check_regional,
    check_scaling,
)
from llmscale_env.sim.spec.regions import ScalingThresholds
from llmscale_env.workload.requests import PS_PER_S

if TYPE_CHECKING:
    from llmscale_env.sim.reference.fleet.spot import SpotVms
    from llmscale_env.sim.reference.instance import Instance
    from llmscale_env.sim.reference.regions.endpoint_scaling import EndpointRule
    from llmscale_env.sim.reference.serving.region_routing import Regions


class RegionOrders:
    """The part of `ReferenceEngine` that SageServe needs."""

    spec: ClusterSpec
    events: Counter[str]
    regions: Regions
    spot_vms: SpotVms
    rules: list[EndpointRule | None]
    instances_of: list[list[Instance]]

    def set_regional(
        self,
        llm: int,
        slo_class: int,
        threshold_ppm: int | Sequence[int] | None = None,
        preference: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Change thresholds and order of regions of a route that has a preference; None: as it is.

        Args:
            llm, slo_class: whose route.
            threshold_ppm: utilisation below which a region is taken in that order: one for all, or one by
                region.
            preference: by region of the client its regions in order.
        """
        takes, orders = check_regional(self.spec, llm, slo_class, threshold_ppm, preference)
        if orders is not None:
            self.regions.preference[llm, slo_class] = orders
        if takes is not None:
            self.regions.takes[llm, slo_class] = takes
            self.events["thresholds_differ"] += len(set(takes)) > 1
        self.events["regional_changed"] += 1

    def set_managers(self, one_ppm: Sequence[int], two_ppm: Sequence[int]) -> None:
        """Utilisations below which each manager takes one request, and two."""
        check_manager_thresholds(self.spec, one_ppm, two_ppm)
        self.regions.set_thresholds(one_ppm, two_ppm)
        self.events["managers_changed"] += 1

    def set_scaling(
        self,
        pool: int,
        kind: int,
        target: int = -1,
        forecast_utps: int = 0,
        thresholds: ScalingThresholds | None = None,
    ) -> None:
        """Begin an hour of a pool's rule.

        Args:
            pool: one that has `scaling`.
            kind: `ScalingKind` from now on.
            target: instances that are planned for; -1: none.
            forecast_utps: load that is expected, in millionths of tokens per second.
            thresholds: when the rule acts from now on; None: by the pool's own numbers.
        """
        scaling = check_scaling(self.spec, pool, kind, target, forecast_utps, thresholds)
        rule = self.rules[pool]
        assert rule is not None
        rule.scaling = scaling
        self.events["scaling_thresholds"] += thresholds is not None
        rule.hour(int(kind), int(target), int(forecast_utps))
        self.events["scaling_changed"] += 1

    def spot(self) -> NDArray[np.void]:
        """(n_pools,) `SPOT_DTYPE`."""
        vms = self.spot_vms
        rows = []
        for p, rule in enumerate(self.rules):
            waiting = [i.lease.waited for i in self.instances_of[p]]
            rows.append(
                (
                    vms.vms[p],
                    vms.reclaims_own[p],
                    vms.reclaims_others[p],
                    vms.donations[p],
                    *divmod(vms.own_ps[p] + sum(ps for own, ps in waiting if own), PS_PER_S),
                    *divmod(vms.others_ps[p] + sum(ps for own, ps in waiting if not own), PS_PER_S),
                    rule.looks_out if rule else 0,
                    rule.looks_in if rule else 0,
                )
            )
        return np.array(rows, dtype=SPOT_DTYPE)
