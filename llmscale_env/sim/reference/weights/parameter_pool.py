"""Where each LLM's weights lie (BlitzScale's global parameter pool): docs/engine.md sections 3 and 15."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from llmscale_env.sim.spec import FROM_SSD, NO_SOURCE, InstanceState, LoadSource

if TYPE_CHECKING:
    from llmscale_env.sim.reference.engine import ReferenceEngine
    from llmscale_env.sim.reference.fleet.lifecycle import SlotLife

_HOLDING = (InstanceState.ACTIVE, InstanceState.DRAINING)


class ParameterPool:
    """Finds sources of weights, and keeps one copy of those that have a home.

    Attributes:
        homes: host of each LLM's copy, -1: none.
        there: whether that copy is there.
        gone_ps: when the last instance of an LLM on a host went `OFF`, by (host, llm).
        restored_from: source code of each copy on its way to its home, by LLM.
    """

    def __init__(self, engine: ReferenceEngine) -> None:
        spec = engine.spec
        self.engine = engine
        self.n_slots, self.n_hosts = spec.n_instances, spec.n_hosts
        self.homes = list(spec.homes) or [-1] * spec.n_llms
        self.there = [home >= 0 for home in self.homes]
        self.gone_ps: dict[tuple[int, int], int] = {}
        if spec.host_cache_at_start:
            self.gone_ps = {(h, m): 0 for h in range(self.n_hosts) for m in range(spec.n_llms)}
        self.restored_from: dict[int, int] = {}
        self._failing_host = -1

    # --- where weights are ---

    def _holders(self, llm: int) -> Iterator[SlotLife]:
        return (i for i in self.engine.all_instances if i.llm == llm and i.state in _HOLDING)

    def host_has(self, host: int, llm: int) -> bool:
        """Whether a host has an LLM's weights in memory."""
        if host == self._failing_host:
            return False
        if self.homes[llm] == host and self.there[llm]:
            return True
        if any(i.host == host for i in self._holders(llm)):
            return True
        gone_ps = self.gone_ps.get((host, llm))
        kept_ps = self.engine.spec.host_keep_alive_ps
        return gone_ps is not None and self.engine.now_ps - gone_ps <= kept_ps

    def host_will_have(self, host: int, llm: int) -> bool:
        """Whether it has them, or is to have them as the LLM's home."""
        return self.homes[llm] == host or self.host_has(host, llm)

    def weights_at(self, source: LoadSource, llm: int, host: int) -> bool:
        """Whether an instance that starts to load by `load_ps` now finds its LLM's weights there."""
        if source == LoadSource.MULTICAST:
            return any(self._holders(llm))
        return source == LoadSource.SSD or self.host_has(host, llm)

    def found(self, ordered: LoadSource, llm: int, host: int) -> int:
        """Source code for a slot of a host that starts to load by this rule."""
        if ordered == LoadSource.MULTICAST:
            return self.nearest(llm, host)
        if ordered == LoadSource.HOST and self.host_has(host, llm):
            return self.n_slots + host
        return FROM_SSD

    def nearest(self, llm: int, host: int) -> int:
        """Source code that `MULTICAST` takes on a host: a slot there, any slot, host memory, SSD."""
        slots = [i.index for i in self._holders(llm)]
        local = [i.index for i in self._holders(llm) if i.host == host]
        if slots:
            return min(local or slots)
        if self.host_has(host, llm):
            return self.n_slots + host
        if self.there[llm]:
            return self.n_slots + self.homes[llm]
        return FROM_SSD

    def kind_of(self, code: int) -> LoadSource:
        """What an observer sees of a source code."""
        if code == FROM_SSD:
            return LoadSource.SSD
        return LoadSource.MULTICAST if code < self.n_slots else LoadSource.HOST

    def serves(self, code: int, llm: int) -> bool:
        """Whether the source that `scale` named and that has not gone since may be loaded from."""
        return code < self.n_slots or self.host_will_have(code - self.n_slots, llm)

    def offers(self, code: int, llm: int, layer: int) -> bool:
        """Whether a source that serves has this layer by now."""
        if code == FROM_SSD:
            return True
        if code < self.n_slots:
            slot = self.engine.all_instances[code]
            return slot.state in _HOLDING or slot.loader.layers > layer
        host = code - self.n_slots
        # What a host once had it keeps for those who load from it; a copy on its way is to be waited for.
        coming = self.homes[llm] == host and not self.there[llm]
        return self.host_has(host, llm) or not coming

    # --- what changes ---

    def look(self, llm: int) -> None:
        """There is news of an LLM: those who wait for a layer look for it."""
        for slot in self.engine.all_instances:
            if slot.llm == llm:
                slot.loader.look()

    def slot_gone(self, slot: SlotLife, held: bool = True) -> None:
        """A slot has lost its weights or will not get them; `held`: it was in service."""
        if held:
            self.gone_ps[slot.host, slot.llm] = self.engine.now_ps
        self._source_gone(slot.index)

    def _source_gone(self, code: int) -> None:
        for other in self._loading_from(code):
            other.loader.source_gone()
        for m, source in sorted(self.restored_from.items()):
            if source == code:
                self.engine.events["restored_anew"] += 1
                self.engine.network.stop(self._number(m))
                self._restore(m)

    def _loading_from(self, code: int) -> list[SlotLife]:
        states = (InstanceState.ACQUIRING, InstanceState.LOADING)
        slots = self.engine.all_instances
        return [i for i in slots if i.loader.source == code and i.state in states]

    def slot_moved(self, slot: SlotLife, twin: SlotLife) -> None:
        """A slot's weights are its twin's now: flows go on."""
        self.gone_ps[slot.host, slot.llm] = self.engine.now_ps
        for other in self._loading_from(slot.index):
            self.engine.events["source_mutated"] += 1
            other.loader.source = twin.index
        for llm, code in self.restored_from.items():
            if code == slot.index:
                self.restored_from[llm] = twin.index

    # --- failures of hosts ---

    def begin_host_failure(self, host: int) -> None:
        """What a host had in memory is lost, and it has nothing until `end_host_failure`."""
        self._failing_host = host
        for llm, home in enumerate(self.homes):
            if home == host:
                self.there[llm] = False
                if self.restored_from.pop(llm, NO_SOURCE) != NO_SOURCE:
                    self.engine.events["restoring_lost"] += 1
                    self.engine.network.stop(self._number(llm))
        self._source_gone(self.n_slots + host)

    def end_host_failure(self) -> None:
        """Its instances have failed, too: the copies that it kept get new homes and are restored."""
        host, self._failing_host = self._failing_host, -1
        self.gone_ps = {key: ps for key, ps in self.gone_ps.items() if key[0] != host}
        for llm, home in enumerate(self.homes):
            if home == host:
                others = [h for h in range(self.n_hosts) if h != host] or [host]
                self.homes[llm] = min(others, key=self.homes.count)
                self._restore(llm)

    def _number(self, llm: int) -> int:
        """Of the flow that restores a copy."""
        return len(self.engine.requests) + self.n_slots + llm

    def _restore(self, llm: int) -> None:
        host, network = self.homes[llm], self.engine.network
        code = self.nearest(llm, host)
        self.restored_from[llm] = code
        self.engine.events[f"restored_from_{self.kind_of(code).name.lower()}"] += 1
        size = max(pool.weight_bytes for pool in self.engine.spec.pools if pool.llm == llm)
        path = network.paths.to_host(code, host)
        network.start(self._number(llm), path, size, partial(self._restored, llm))

    def _restored(self, llm: int) -> None:
        del self.restored_from[llm]
        self.there[llm] = True
        self.look(llm)
