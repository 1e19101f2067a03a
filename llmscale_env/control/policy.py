"""What a policy is: twenty lines are enough for a useful one."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from llmscale_env.control.command import Command
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario


@runtime_checkable
class Policy(Protocol):
    """Anything that turns what can be seen of a cluster into orders.

    An ablation that is told the future has `is_clairvoyant = True` and `set_future(demand: DemandRecord)`,
    which the run loop calls after `reset`; its name should say so.

    Where a network learns from it or changes its orders, two more may be there. `see(view)` is for decisions
    at which it is not asked: it looks, as `act` does, and orders nothing (`warm_start.every` of training).
    `carried_out(command)` tells it after a decision what was ordered in its place.

    Attributes:
        name: what tables call it.
    """

    name: str

    def reset(self, scenario: Scenario, seed: int) -> None:
        """A new episode of `scenario` begins; a policy that draws does so from `seed`."""

    def act(self, view: ClusterView) -> Command:
        """Orders for the interval that begins now."""


def is_policy(value: object) -> bool:
    """Whether it is a policy; a class of policies, or the name of one, is none."""
    return isinstance(value, Policy) and not isinstance(value, type)
