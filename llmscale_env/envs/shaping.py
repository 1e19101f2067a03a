"""A potential-based term of the reward: requests that wait and will be late cost before they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.reward import check_weight, is_real, violation_prices
from llmscale_env.control.snapshot import Snapshot
from llmscale_env.envs.service import Service
from llmscale_env.scenarios.schema import Scenario


@dataclass(frozen=True)
class Shaping:
    """Settings of the term.

    A step's reward gets `gamma * Phi(next) - Phi(now)` added, with
    `Phi = -weight * sum_c w_c * late_c / arrivals_c`, 0 at the end of an episode. Of class c, `w_c`
    is the weight, `late_c` the waiting requests expected to be late, `arrivals_c` the expected
    arrivals per interval. Discounted, the terms of an episode add up to 0: rankings of policies by
    discounted return stay the same (Ng, Harada and Russell, ICML 1999).

    Attributes:
        weight: as the scenario's `violation_weight`; with prices, 1 is the price. With the scenario's own
            number a request costs when it is foreseen to be late what it will cost when it is, and the
            violation itself is taken back then.
        gamma: the learner's discount.

    Raises:
        ValueError: a weight below 0, or a discount out of (0, 1].
    """

    weight: float = 1.0
    gamma: float = 1.0

    def __post_init__(self) -> None:
        check_weight("shaping.weight", self.weight)
        if not (is_real(self.gamma) and 0 < self.gamma <= 1):
            raise ValueError(f"shaping.gamma = {self.gamma!r}: must be above 0 and at most 1")

    @classmethod
    def of(cls, value: Shaping | Mapping[str, float] | float | None) -> Shaping | None:
        """What a user gives: settings, their names with values, or a weight.

        Raises:
            ValueError: an unknown name, or a value that is not allowed.
        """
        if value is None or isinstance(value, Shaping):
            return value
        if not isinstance(value, Mapping):
            return cls(value)
        unknown = set(value) - {"weight", "gamma"}
        if unknown:
            raise ValueError(f"shaping: {list(unknown)} unknown; there are ['weight', 'gamma']")
        return cls(**value)


class LateBacklog:
    """The potential of `n` episodes and its differences from step to step."""

    def __init__(self, scenario: Scenario, settings: Shaping, n: int) -> None:
        self.settings = settings
        self._service = Service(scenario)
        own = scenario.reward
        one = own if own.prices is not None else own.model_copy(update={"violation_weight": 1.0})
        at_weight_one = scenario.model_copy(update={"reward": one})
        self._each = settings.weight * violation_prices(at_weight_one)
        self.now = np.zeros(n)

    def start(self, e: int) -> None:
        """A new episode: nobody waits."""
        self.now[e] = 0.0

    def potential(self, now: Snapshot) -> NDArray[np.float64]:
        """(E,) `Phi`, at most 0."""
        return -(self._service.will_be_late(now) * self._each).sum(axis=1)

    def step(self, now: Snapshot, done: NDArray[np.bool_]) -> NDArray[np.float64]:
        """(E,) the term of the step that led here."""
        new: Any = np.where(done, 0.0, self.potential(now))
        term = self.settings.gamma * new - self.now
        self.now = new
        return term
