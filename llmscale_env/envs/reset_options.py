"""What `reset(options=)` changes of an episode: its load, its day, or both, drawn or given.

Options hold for the episodes that begin with this `reset`, and in the vectorised form for all that follow
them until the next one:

- `rate_scale`: multiplies every stream's rate and the size of every batch queue and job;
- `day`: the day of the workload's table, one of those that it may draw (of the `workload` given beside it);
- `workload`, or a field of it by dotted path, such as `workload.streams.chat.rate_per_s`: as in `overrides`;
- `randomise`: fields of the workload, or `rate_scale`, by dotted path, each with `(low, high)`, from which
  the environment's generator draws evenly, or a list of at least three choices, or of words.

The cluster, the spaces and what a policy is told of the scenario stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from llmscale_env.scenarios import Scenario, ScenarioError, load_scenario

NAMES = ("rate_scale", "day", "workload", "randomise")

Changes = dict[str, Any]
"""Fields of the workload by dotted path."""


class ResetOptions:
    """The options of one `reset`, checked.

    Args:
        scenario: of the environment.
        options: by name; without `reset_mask`.

    Attributes:
        given: the options, as they came.

    Raises:
        ValueError: an unknown option, or a value that does not fit.
    """

    def __init__(self, scenario: Scenario, options: Mapping[str, Any] | None) -> None:
        self._scenario = scenario
        self.given = dict(options or {})
        self._fixed: Changes = {}
        self._ranges: dict[str, Any] = {}
        if "workload" in self.given:
            self._fixed["workload"] = self.given["workload"]
            self._check({})
        self._workload = changed(scenario, self._fixed).workload
        for name, value in self.given.items():
            if name == "randomise":
                self._ranges = _ranges(value)
            elif name == "day":
                self._fixed |= self._of_day(value)
            elif name == "rate_scale":
                self._fixed["workload.rate_scale"] = self._scaled(name, value)
            elif str(name).split(".")[0] == "workload":
                self._fixed[name] = value
            else:
                known = [*NAMES[:-1], "workload.FIELD", NAMES[-1]]
                raise ValueError(f"options[{name!r}]: unknown; there are {known}")
        firsts = {field: choices[0] for field, choices in self._ranges.items()}
        self._check(firsts)
        for field, choices in self._ranges.items():
            for value in choices[1:]:
                self._check({**firsts, field: value})

    def draw(self, rng: np.random.Generator) -> Changes:
        """Changes of one episode; the generator is asked only where something is drawn."""
        drawn = {}
        for field, choices in self._ranges.items():
            if isinstance(choices, tuple):
                drawn[field] = float(rng.uniform(*choices))
            else:
                drawn[field] = choices[int(rng.integers(len(choices)))]
        return self._all(drawn)

    def _all(self, drawn: Changes) -> Changes:
        found = dict(self._fixed)
        for field, value in drawn.items():
            if field == "rate_scale":
                found["workload.rate_scale"] = self._scaled(field, value)
            else:
                found[field] = value
        return found

    def _check(self, drawn: Changes) -> None:
        try:
            changed(self._scenario, self._all(drawn))
        except ScenarioError as error:
            raise ValueError(f"options: {error}") from None

    def _scaled(self, name: str, value: Any) -> float:
        if not (_is_number(value) and math.isfinite(value) and value > 0):
            raise ValueError(f"options[{name!r}] = {value!r}: must be a positive number")
        return float(value) * self._workload.rate_scale

    def _of_day(self, value: Any) -> Changes:
        tables = self._workload.day_arrivals
        mine = [s.name for s in self._workload.streams if s.arrivals in tables]
        days = sorted({d for each in tables for d in each.days})
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value not in days:
            allowed = f"one of {days}" if days else "left out: the workload has no days"
            raise ValueError(f"options['day'] = {value!r}: must be {allowed}")
        return {f"workload.streams.{name}.arrivals.days": [int(value)] for name in mine}


def changed(scenario: Scenario, changes: Mapping[str, Any]) -> Scenario:
    """The scenario with these fields; the same object where nothing changes."""
    return load_scenario(scenario, **changes) if changes else scenario


def _is_number(value: Any) -> bool:
    return isinstance(value, (Real, np.number)) and not isinstance(value, (bool, np.bool_))


def _ranges(value: Any) -> dict[str, tuple[float, float] | list[Any]]:
    """Of each field what is drawn from."""
    if not isinstance(value, Mapping):
        raise ValueError(f"options['randomise'] = {value!r}: must be a mapping of fields to ranges")
    found: dict[str, tuple[float, float] | list[Any]] = {}
    for field, given in value.items():
        where = f"options['randomise'][{field!r}]"
        if field != "rate_scale" and str(field).split(".")[0] != "workload":
            raise ValueError(f"{where}: must be rate_scale or a field of the workload")
        if isinstance(given, (str, bytes)) or not isinstance(given, Sequence) or not given:
            raise ValueError(f"{where} = {given!r}: must be (low, high) or a list of choices")
        if len(given) == 2 and all(_is_number(x) for x in given):
            low, high = map(float, given)
            if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                raise ValueError(f"{where} = {given!r}: must be two numbers, the lower one first")
            found[str(field)] = (low, high)
        else:
            found[str(field)] = list(given)
    return found
