"""Laws of weights that flow (docs/engine.md, section 15), for tests of generated cases."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from llmscale_env.sim.reference import ReferenceEngine
from llmscale_env.sim.spec import InstanceState

OFF, ACQUIRING, LOADING, ACTIVE, DRAINING, DONATING = InstanceState


class Watched(ReferenceEngine):
    """Looks at every change of flows."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.moved: Counter[int] = Counter()
        self.volume: dict[int, int] = {}
        network = self.network
        share, start, end = network._share, network.start, network._end

        def watched_share(now_ps: int) -> None:
            share(now_ps)
            load: Counter[int] = Counter()
            users: Counter[int] = Counter()
            for flow in network.flows.values():
                for link in flow.path:
                    load[link] += flow.rate
                    users[link] += 1
            for link, rate in load.items():
                assert rate <= max(network.capacity[link], users[link])

        def watched_start(number: int, path: Any, volume: int, then: Any) -> None:
            slot = number - len(self.requests)
            if 0 <= slot < len(self.all_instances):
                self.check_layer(slot)
            self.volume[number] = volume
            self.moved[number] = self.clock.now
            start(number, path, volume, then)

        def watched_end(number: int) -> None:
            flow = network.flows[number]
            if flow.path:
                fastest = min(network.capacity[link] for link in flow.path)
                least_ps = -(-self.volume[number] * 10**6 // max(fastest, 1))
                assert self.clock.now - self.moved[number] >= least_ps
            end(number)

        network._share, network.start, network._end = watched_share, watched_start, watched_end

    def check_layer(self, slot: int) -> None:
        """The layer that begins to flow is at its source."""
        loader = self.all_instances[slot].loader
        if 0 <= loader.source < len(self.all_instances):
            source = self.all_instances[loader.source]
            assert source.llm == self.all_instances[slot].llm
            assert source.state in (ACTIVE, DRAINING) or source.loader.layers > loader.layers


class WatchedPairs(Watched):
    """Looks at pairs whenever it stands, too (section 16)."""

    def advance(self, until_ps: int) -> None:
        super().advance(until_ps)
        for slot in self.all_instances:
            assert not (
                slot.state == OFF and (slot.running or slot.in_pair or slot.handover.co_held)
            )
            work = slot.helping.work
            if work is not None:
                assert slot.helping.leader is not None
                assert work in slot.helping.leader.leading.batches
                assert work.done < slot.loader.layers
            for batch in slot.leading.batches:
                assert set(batch.requests) <= set(slot.running)
            for request in slot.handover.co_held:
                assert request.helper is slot
                held = request.held_by is not None
                assert held or request in self.all_instances[request.instance].running
        for request in self.requests:
            assert request.helper is None or request in request.helper.handover.co_held


def broken_weight_law(case: Any, trace: Any) -> str | None:
    """The first snapshot at which slots or homes are impossible."""
    spec = case.spec
    pools = [spec.pools[p] for p in spec.pool_of_slot]
    for label, at in trace.looks().items():
        fleet, weights = at["instances"], at["loading"]
        has, state = weights["layers_loaded"], fleet["state"]
        all_layers = np.array([p.layers for p in pools])
        flows = np.array([p.weight_bytes > 0 for p in pools])
        serving = np.isin(state, [ACTIVE, DRAINING])
        laws = {
            "who serves has all layers": bool((has[serving] == all_layers[serving]).all()),
            # Once the leader has failed its helper becomes active with the next event.
            "who loads lacks one, or works for another": label.startswith("after")
            or bool(((has < all_layers) | (weights["partner"] >= 0))[state == LOADING].all()),
            "who is off has none": bool((has[state == OFF] == 0).all()),
            "who loads has a source": bool(
                (weights["load_from"][flows & (state == LOADING)] > -2).all()
            ),
            "one of two twins is off": all(
                state[i] == OFF or twin < 0 or state[twin] == OFF
                for i, twin in enumerate(spec.twin_of_slot)
            ),
            "homes are kept": all(
                (a >= 0) == (b >= 0)
                for a, b in zip(spec.homes or at["homes"]["host"], at["homes"]["host"], strict=True)
            ),
        }
        for law, holds in laws.items():
            if not holds:
                return f"{label}: {law}"
    return None
