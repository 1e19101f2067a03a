"""How the weights of one instance come, layer by layer: docs/engine.md section 15."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmscale_env.sim.spec import NO_SOURCE, InstanceState, LoadSource

if TYPE_CHECKING:
    from llmscale_env.sim.reference.fleet.lifecycle import SlotLife


class Loader:
    """Fetches the layers of a slot in order, one flow after the other.

    Attributes:
        source: code that they come or came from; before loading starts the one that was ordered;
            `NO_SOURCE`: none.
        layers: how many have come.
        flows: whether one is on its way.
    """

    def __init__(self, slot: SlotLife) -> None:
        self.slot = slot
        self.engine = slot.engine
        self.source = NO_SOURCE
        self.layers = 0
        self.flows = False

    @property
    def number(self) -> int:
        """Of its flows."""
        return len(self.engine.requests) + self.slot.index

    @property
    def has(self) -> int:
        """Layers that the slot has."""
        if self.slot.state in (InstanceState.ACTIVE, InstanceState.DRAINING):
            return self.slot.pool.layers
        return self.layers

    def begin(self, ordered: LoadSource) -> int:
        """Loading starts, from what `scale` named if that serves still; returns the source code."""
        parameters, llm = self.engine.parameters, self.slot.llm
        if self.source != NO_SOURCE and parameters.serves(self.source, llm):
            self.engine.events["load_as_named"] += 1
        else:
            self.engine.events["named_source_gone"] += self.source != NO_SOURCE
            self.source = parameters.found(ordered, llm, self.slot.host)
        return self.source

    def look(self) -> None:
        """Start the next layer if it is there and none is on its way."""
        comes = self.slot.state == InstanceState.LOADING and self.slot.pool.weight_bytes > 0
        if not comes or self.flows or self.layers == self.slot.pool.layers:
            return
        if not self.engine.parameters.offers(self.source, self.slot.llm, self.layers):
            self.engine.events["layer_waits"] += 1
            return
        self.flows = True
        network = self.engine.network
        self.engine.events["layer_flows"] += 1
        network.start(
            self.number,
            network.paths.to_slot(self.source, self.slot.index),
            self.slot.pool.layer_bytes(self.layers),
            self._come,
        )

    def _come(self) -> None:
        """A layer has come: the next one, and those who waited for this one."""
        self.flows = False
        self.layers += 1
        if self.layers == self.slot.pool.layers:
            self.slot.loaded()
        self.look()
        self.slot.helping.wake()
        self.engine.parameters.look(self.slot.llm)

    def source_gone(self) -> None:
        """The source serves no longer: what is on its way is lost, the rest comes from elsewhere."""
        if self.slot.state == InstanceState.ACQUIRING:
            self.engine.events["named_source_gone"] += 1
            self.source = NO_SOURCE
            return
        self._break_off()
        if self.layers < self.slot.pool.layers:
            self.engine.events["source_changed"] += 1
            self.source = self.engine.parameters.nearest(self.slot.llm, self.slot.host)
            self.slot.comes_from(self.source)
            self.look()

    def stop(self) -> None:
        """No longer loading: what has come is lost as well."""
        self._break_off()
        self.source, self.layers = NO_SOURCE, 0

    def _break_off(self) -> None:
        if self.flows:
            self.engine.events["layer_broken_off"] += 1
            self.flows = False
            self.engine.network.stop(self.number)
