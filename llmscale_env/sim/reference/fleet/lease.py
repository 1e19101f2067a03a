"""An instance slot whose VM comes from spot and goes back to it (docs/engine.md, section 17)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmscale_env.sim.spec import InstanceState, LoadSource

if TYPE_CHECKING:
    from llmscale_env.sim.reference.fleet.lifecycle import SlotLife


class Lease:
    """Moves a slot of a spot pool between `OFF`, service and `DONATING`.

    Attributes:
        own: whether its VM had the pool's LLM when it was reclaimed.
        since_ps: when that was ordered; -1: it has served or failed since.
    """

    def __init__(self, slot: SlotLife) -> None:
        self.slot = slot
        self.engine = slot.engine
        self.own = False
        self.since_ps = -1

    @property
    def waited(self) -> tuple[bool, int]:
        """(whether it is of the own LLM, time since it was ordered; 0 if it does not wait)."""
        waits = self.since_ps >= 0
        return self.own, self.engine.now_ps - self.since_ps if waits else 0

    def reclaim(self) -> None:
        """`OFF -> ACQUIRING`, and on when the VM has been taken from its lessee."""
        slot = self.slot
        self.own, duration_ps = self.engine.spot_vms.take(slot.pool_index)
        self.since_ps = slot.billed_from_ps = self.engine.now_ps
        slot.state = InstanceState.ACQUIRING
        slot.expected_ps = self.engine.now_ps + duration_ps
        if not self.own:
            slot.expected_ps += self.engine.spot_vms.redeploy_ps(slot.pool_index)
        slot.change_after(duration_ps, slot.activate if self.own else self._redeploy)

    def _redeploy(self) -> None:
        """`ACQUIRING -> LOADING` the pool's LLM in place of another."""
        slot, vms = self.slot, self.engine.spot_vms
        local = vms.local[slot.pool_index]
        self.engine.events["redeploy_local" if local else "redeploy_remote"] += 1
        self._load(vms.redeploy_ps(slot.pool_index), local)

    def _load(self, duration_ps: int, local: bool) -> None:
        slot = self.slot
        slot.state = InstanceState.LOADING
        slot.source = int(LoadSource.HOST if local else LoadSource.SSD)
        slot.loads[slot.source] += 1
        slot.loaded_ps = self.engine.now_ps + duration_ps
        slot.change_after(duration_ps, slot.activate)

    def serves(self) -> None:
        """It is `ACTIVE` now; so its weights are in the region."""
        if self.slot.pool.spot is not None:
            self._end_waiting()
            self.engine.spot_vms.local[self.slot.pool_index] = True

    def _end_waiting(self) -> None:
        self.engine.spot_vms.waited(self.slot.pool_index, *self.waited)
        self.since_ps = -1

    def donate(self) -> None:
        """`DRAINING -> DONATING`."""
        assert self.slot.pool.spot is not None
        self.slot.state = InstanceState.DONATING
        self.slot.change_after(self.slot.pool.spot.donate_ps, self._donated)

    def _donated(self) -> None:
        """`DONATING -> OFF`."""
        self.slot.end_billing()
        self.slot.state = InstanceState.OFF
        self.engine.spot_vms.give(self.slot.pool_index)

    def fail(self, was: InstanceState) -> None:
        """The VM stays: it is repaired and loaded anew, or donated if that was to come."""
        slot = self.slot
        self._end_waiting()
        if was in (InstanceState.DRAINING, InstanceState.DONATING):
            self.donate()
            return
        assert slot.pool.spot is not None
        duration_ps = slot.pool.spot.redeploy_ps
        slot.state = InstanceState.ACQUIRING
        slot.expected_ps = self.engine.now_ps + slot.pool.repair_ps + duration_ps
        slot.change_after(slot.pool.repair_ps, lambda: self._load(duration_ps, True))
