"""Between a cluster and a network: what is seen goes through blocks, what is decided through heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from llmscale_env.control.as_command import as_command
from llmscale_env.control.command import Command
from llmscale_env.control.policy import Policy
from llmscale_env.control.snapshot import Snapshot
from llmscale_env.control.view import ClusterView
from llmscale_env.envs.actions import ActionDecoder
from llmscale_env.envs.observations import ObservationEncoder
from llmscale_env.envs.reference import Reference
from llmscale_env.scenarios.schema import Scenario


class Codec:
    """Between a cluster and a network: observation of a view, command of an action.

    It remembers the last action (the `last_action` block shows it), so one codec follows one episode.

    Args:
        scenario: what is observed and commanded.
        blocks: names of observation blocks.
        heads: names of action heads.
        reference: the policy that the head `residual` and the block `wishes` are about; it is copied.

    Raises:
        ValueError: an unknown name; a reference that nobody needs, or none where one is needed.
    """

    def __init__(
        self,
        scenario: Scenario,
        blocks: Sequence[str],
        heads: Sequence[str],
        reference: Policy | None = None,
    ) -> None:
        self.scenario = scenario
        self.decoder = ActionDecoder(scenario, heads)
        self.encoder = ObservationEncoder(scenario, blocks, self.decoder.parts)
        check_reference(reference, blocks, heads)
        self._reference = None if reference is None else Reference(reference, scenario)
        self.observation_space = spaces.Box(self.encoder.low, self.encoder.high, dtype=np.float32)
        self.action_space = spaces.MultiDiscrete(self.decoder.nvec)
        self.reset()

    def reset(self, seed: int = 0) -> None:
        """A new episode begins; a reference policy that draws does so from `seed`."""
        self._last = np.zeros((1, len(self.decoder.nvec)))
        self._asked: ClusterView | None = None
        if self._reference is not None:
            self._reference.reset(seed)

    def _snapshot(self, view: ClusterView) -> Snapshot:
        """The view's; the reference policy is asked once about each view."""
        if self._reference is None:
            return view.snapshot
        if view is not self._asked:
            self._reference.look(view)
            self._asked = view
        return replace(view.snapshot, wanted=self._reference.wanted[None])

    def encode(self, view: ClusterView) -> NDArray[np.float32]:
        """(k,) observation of a view."""
        return self.encoder.encode(self._snapshot(view), self._last)[0]

    def decode(self, action: Any, view: ClusterView) -> Command:
        """The command that an action (parts,) means now.

        Raises:
            ValueError: a wrong shape, a value that is no whole number or out of its range.
        """
        checked = self.decoder.check(action, 1)
        self._last = self.decoder.fraction(checked)
        orders = self.decoder.orders(checked, self._snapshot(view))
        command = as_command(orders, 0, self.scenario)
        if self._reference is None:
            return command
        return self._reference.command(orders.percents_of(0), command)

    def mask(self, view: ClusterView) -> NDArray[np.bool_]:
        """(sum of choices,) possible choices, parts one after the other."""
        return self.decoder.masks(self._snapshot(view))[0]


def check_reference(reference: Policy | None, blocks: Sequence[str], heads: Sequence[str]) -> None:
    """Refuse a reference policy that nobody needs, and heads and blocks without the one that they need.

    Raises:
        ValueError: saying which.
    """
    needs = [f"action {name!r}" for name in heads if name == "residual"]
    needs += [f"observation {name!r}" for name in blocks if name == "wishes"]
    if needs and reference is None:
        raise ValueError(f"reference: {needs[0]} needs a policy")
    if reference is not None and "residual" not in heads:
        raise ValueError(
            "reference: only the action head 'residual' follows one; name it in `action`"
        )
