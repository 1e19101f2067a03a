"""What a policy network is shown: blocks of normalised numbers, each documented entry by entry.

A block turns a `Snapshot` of `E` episodes into (E, k) floats in its stated bounds, dimensionless
and on fixed physical scales (no
running statistics), so that one observation means the same in every episode.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.snapshot import Snapshot
from llmscale_env.envs.observation_blocks.base import (
    Block,
    Entry,
    Floats,
    check_names,
)
from llmscale_env.envs.observation_blocks.days import DayClock, Deferrable, Felt, Load, Pools
from llmscale_env.envs.observation_blocks.endpoints import Endpoints, RegionalLoad, Tails, WeekClock
from llmscale_env.envs.observation_blocks.placing import Gateway, Lengths, Request, Workers
from llmscale_env.envs.observation_blocks.pools import (
    Arrivals,
    Backpressure,
    Clock,
    Fleet,
    Forecast,
    Latency,
    Queues,
)
from llmscale_env.envs.observation_blocks.size_free import (
    ClassLoad,
    PoolState,
    SLOTails,
    Urgency,
    Wishes,
)
from llmscale_env.envs.observation_blocks.virtual_queues import Groups, Instances
from llmscale_env.envs.observation_blocks.weights import Links, WeightsBlock
from llmscale_env.scenarios.schema import Scenario


class LastAction:
    """The last decision, each part as a fraction of its range."""

    name = "last_action"

    def __init__(self, scenario: Scenario, parts: Sequence[str]) -> None:
        self._parts = list(parts)

    def entries(self) -> list[Entry]:
        return [
            Entry(f"last/{part}", "choice / (choices - 1); 0 at the start") for part in self._parts
        ]

    def encode(self, now: Snapshot, last_action: Floats) -> Floats:
        return last_action


BLOCKS = {
    "clock": Clock,
    "arrivals": Arrivals,
    "forecast": Forecast,
    "latency": Latency,
    "queues": Queues,
    "fleet": Fleet,
    "backpressure": Backpressure,
    "groups": Groups,
    "instances": Instances,
    "gateway": Gateway,
    "lengths": Lengths,
    "request": Request,
    "workers": Workers,
    "weights": WeightsBlock,
    "links": Links,
    "week_clock": WeekClock,
    "regional_load": RegionalLoad,
    "endpoints": Endpoints,
    "tails": Tails,
    "class_load": ClassLoad,
    "urgency": Urgency,
    "pool_state": PoolState,
    "slo_tails": SLOTails,
    "day_clock": DayClock,
    "load": Load,
    "deferrable": Deferrable,
    "felt": Felt,
    "pools": Pools,
    "wishes": Wishes,
    "last_action": LastAction,
}
"""Known blocks; an environment is given their names, in order."""


class ObservationEncoder:
    """Blocks put together: one flat float32 vector per episode.

    Args:
        scenario: what is observed.
        blocks: names of `BLOCKS`, in order.
        action_parts: names of the action's parts, for `last_action`.

    Attributes:
        entries: of all blocks, in order.
        spans: which of them are each block's, by its name.

    Raises:
        ValueError: no names, an unknown one, or nothing to see.
    """

    def __init__(
        self, scenario: Scenario, blocks: Sequence[str], action_parts: Sequence[str]
    ) -> None:
        self.blocks: list[Block] = []
        self.entries: list[Entry] = []
        self.spans: dict[str, slice] = {}
        for name in check_names("observation", blocks, BLOCKS, "block"):
            if name == "queues" and not scenario.fleet.queues:
                continue
            last = name == "last_action"
            block = LastAction(scenario, action_parts) if last else BLOCKS[name](scenario)
            self.blocks.append(block)
            entries = block.entries()
            self.spans[name] = slice(len(self.entries), len(self.entries) + len(entries))
            self.entries += entries
        if not self.entries:
            raise ValueError(
                f"observation = {list(blocks)}: there is nothing to see in this scenario"
            )
        self.low = np.array([entry.low for entry in self.entries], np.float32)
        self.high = np.array([entry.high for entry in self.entries], np.float32)

    def encode(self, now: Snapshot, last_action: Floats) -> NDArray[np.float32]:
        """(E, k) observation, clipped to its bounds."""
        parts = [block.encode(now, last_action) for block in self.blocks]
        return np.clip(np.concatenate(parts, axis=1), self.low, self.high).astype(np.float32)
