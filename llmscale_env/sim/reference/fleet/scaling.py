"""Commands that start, stop and break instances: docs/engine.md sections 8, 10 and 15."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmscale_env.sim.reference.weights.parameter_pool import ParameterPool
from llmscale_env.sim.spec import ClusterSpec, InstanceState, LoadSource
from llmscale_env.sim.spec.checks import (
    check_drain,
    check_fail,
    check_mutate,
    check_range,
    check_target,
)
from llmscale_env.sim.spec.weight_checks import check_scale

if TYPE_CHECKING:
    from llmscale_env.sim.reference.fleet.spot import SpotVms
    from llmscale_env.sim.reference.instance import Instance

_COUNTED = (InstanceState.ACQUIRING, InstanceState.LOADING, InstanceState.ACTIVE)


class FleetOrders:
    """The part of `ReferenceEngine` that orders instances."""

    spec: ClusterSpec
    events: Counter[str]
    parameters: ParameterPool
    spot_vms: SpotVms
    instances_of: list[list[Instance]]
    all_instances: list[Instance]

    def _slot(self, instance: int) -> Instance:
        return self.all_instances[check_range("instance", instance, 0, len(self.all_instances) - 1)]

    def _states(self) -> list[InstanceState]:
        return [i.state for i in self.all_instances]

    def set_target(self, pool: int, count: int, source: int | None = None) -> int:
        """Have `count` instances of a pool in `ACQUIRING + LOADING + ACTIVE`.

        Args:
            pool: index of the pool.
            count: instances wanted, 0..n_slots.
            source: `LoadSource` of those started; None: the pool's own.

        Returns:
            How many are missing for want of GPUs or VMs.
        """
        pool, count, source = check_target(self.spec, pool, count, source)
        instances = self.instances_of[pool]

        def having() -> int:
            return sum(i.state in _COUNTED for i in instances)

        for instance in instances:
            if having() < count and instance.state == InstanceState.DRAINING:
                instance.reactivate()
        for instance in instances:
            room = instance.is_free and self._gpus_left(pool)
            if having() < count and room and self._vm_left(pool):
                instance.start(LoadSource(source))
        while having() > count and self._release_one(instances):
            pass
        missing = max(0, count - having())
        self.events["target_missed"] += missing > 0
        return missing

    def _gpus_left(self, pool: int) -> bool:
        held = sum(i.pool.gpus for i in self.all_instances if i.state != InstanceState.OFF)
        return held + self.spec.pools[pool].gpus <= self.spec.max_gpus

    def _vm_left(self, pool: int) -> bool:
        return self.spec.pools[pool].spot is None or self.spot_vms.giver(pool) is not None

    @staticmethod
    def _release_one(instances: list[Instance]) -> bool:
        """Give up the one that is farthest from serving, or least busy; False if nobody can be.

        A VM that has been taken from spot has to serve first.
        """
        leased = instances[0].pool.spot is not None
        for state in _COUNTED[2:] if leased else _COUNTED:
            there = [i for i in reversed(instances) if i.state == state]
            if not there:
                continue
            if state == InstanceState.ACTIVE:
                min(there, key=lambda i: i.requests).drain()
            else:
                max(there, key=lambda i: (-i.loader.layers, i.loaded_ps)).cancel()
            return True
        return False

    def drain(self, instance: int) -> None:
        """Take one active instance out of service once its batch is done."""
        self._slot(check_drain(self.spec, instance, self._states())).drain()

    def fail(self, instance: int) -> None:
        """An instance breaks down; it is repaired and loads anew, unless it was draining."""
        self._slot(check_fail(self.spec, instance, self._states())).fail()

    def scale(
        self,
        slots: Sequence[int],
        sources: Sequence[int],
        partners: Sequence[int] | None = None,
    ) -> None:
        """Start slots, each loading its layers from where it is told: all of them, or none.

        Args:
            slots: `OFF` ones, in the order in which they are started.
            sources: of each the source code: a slot of the same LLM that has weights, is getting them or
                comes earlier in `slots`; the number of slots plus a host that has them in memory; or
                `FROM_SSD`.
            partners: of each an active instance of its pool that it helps while it loads, or -1; None: nobody
                helps.
        """
        instances = self.all_instances
        slots, sources, partners = check_scale(
            self.spec,
            slots,
            sources,
            partners,
            self._states(),
            [i.llm for i in instances],
            [i.in_pair for i in instances],
            self.parameters.host_will_have,
        )
        for slot, source, partner in zip(slots, sources, partners, strict=True):
            self.events["scaled"] += 1
            if partner >= 0:
                instances[slot].helping.leader = instances[partner]
                instances[partner].leading.helper = instances[slot]
            instances[slot].start(LoadSource.MULTICAST, source)

    def mutate(self, instance: int) -> None:
        in_pair = [i.in_pair for i in self.all_instances]
        self._slot(check_mutate(self.spec, instance, self._states(), in_pair)).mutate()

    def fail_host(self, host: int) -> None:
        """All of a host breaks down: its instances fail, what it had in memory is lost."""
        host = check_range("host", host, 0, self.spec.n_hosts - 1)
        self.events["fail_host"] += 1
        self.parameters.begin_host_failure(host)
        there = [i for i in self.all_instances if i.host == host]
        for instance in there:
            instance.lose_host_memory()
        for instance in there:
            if instance.state != InstanceState.OFF:
                instance.fail()
        self.parameters.end_host_failure()
