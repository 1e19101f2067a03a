"""Policies whose settings a search can look for, and what it looks through."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from baselines.aladdin.policy import AladdinPolicy
from baselines.aladdin.simple import FixedWorkersPolicy, MachineWidePolicy, PowerOfTwoPolicy
from baselines.blitzscale.distserve import DistServePolicy
from baselines.blitzscale.policy import AllCachePolicy, BlitzScalePolicy, ServerlessLlmPolicy
from baselines.chiron import ChironPolicy
from baselines.fleet import UniformPolicy, class_pool
from baselines.hpa import HpaPolicy
from baselines.llumnix import LlumnixPolicy
from baselines.paced import PacedPolicy
from baselines.parameters import PolicyError
from baselines.practice.dynamo import DynamoPolicy
from baselines.practice.dynamo_load import DynamoLoadPolicy
from baselines.practice.freeness import FreenessPolicy
from baselines.practice.keda import KedaPolicy
from baselines.practice.kpa import KpaPolicy
from baselines.practice.ray_serve import RayServePolicy
from baselines.practice.wva import WvaPolicy
from baselines.practice.wva_tokens import WvaTokensPolicy
from baselines.qlm.policy import QlmPolicy
from baselines.qlm.shepherd_policy import ShepherdPolicy
from baselines.qlm.simple import EdfPolicy, VllmPolicy
from baselines.sageserve.policy import (
    LongTermPolicy,
    ReactivePolicy,
    SiloedPolicy,
    TargetAheadPolicy,
    TargetPolicy,
)
from baselines.space import Choice, Space
from baselines.static import StaticPolicy
from llmscale_env.scenarios.schema import Scenario

TUNABLE: dict[str, Any] = {
    "static": StaticPolicy,
    "llumnix": LlumnixPolicy,
    "llumnix-freeness": FreenessPolicy,
    "hpa": HpaPolicy,
    "kpa": KpaPolicy,
    "ray-serve": RayServePolicy,
    "keda": KedaPolicy,
    "wva": WvaPolicy,
    "wva-tokens": WvaTokensPolicy,
    "dynamo": DynamoPolicy,
    "dynamo-load": DynamoLoadPolicy,
    "chiron": ChironPolicy,
    "paced": PacedPolicy,
    "qlm": QlmPolicy,
    "edf": EdfPolicy,
    "vllm": VllmPolicy,
    "shepherd": ShepherdPolicy,
    "aladdin": AladdinPolicy,
    "jsq": FixedWorkersPolicy,
    "power-of-two": PowerOfTwoPolicy,
    "machine-wide": MachineWidePolicy,
    "blitzscale": BlitzScalePolicy,
    "serverlessllm": ServerlessLlmPolicy,
    "allcache": AllCachePolicy,
    "distserve": DistServePolicy,
    "reactive": ReactivePolicy,
    "siloed": SiloedPolicy,
    "lt-i": LongTermPolicy,
    "lt-u": TargetPolicy,
    "lt-ua": TargetAheadPolicy,
}
"""Each has a `SPACE`, or `space_of` where it hangs on the scenario; some also a `GRID`, or `grid_of`. Where a
point is no setting yet, `of_grid` makes it one (`of_grid_in` with the scenario). `begins_with`, where there
is one, names points of the space that are tried first."""


def grid_of(kind: Any, scenario: Scenario) -> dict[str, tuple[Any, ...]]:
    """Values to try by parameter; none for policies that have ranges only."""
    return dict(kind.grid_of(scenario) if hasattr(kind, "grid_of") else getattr(kind, "GRID", {}))


def space_of(kind: Any, scenario: Scenario) -> Space:
    """Ranges to search by parameter."""
    space: Space = kind.space_of(scenario) if hasattr(kind, "space_of") else kind.SPACE
    if issubclass(kind, UniformPolicy) and _serves_by_class(scenario):
        space = {**space, "serving": Choice(("alike", "by-class"))}
    starts = issubclass(kind, (UniformPolicy, ChironPolicy, PacedPolicy))
    if starts and not any(pool.flows for pool in scenario.fleet.pools):
        space = {**space, "load_source": Choice(("ssd", "multicast"))}
    return space


def _serves_by_class(scenario: Scenario) -> bool:
    try:
        for llm in scenario.fleet.llms:
            class_pool(scenario, llm, "")
    except PolicyError:
        return False
    return True


def begins_with(kind: Any, scenario: Scenario, space: Space) -> list[dict[str, Any]]:
    """Points of the policy's own at which a search of `space` begins; none where it was told other ranges."""
    if not hasattr(kind, "begins_with") or space != space_of(kind, scenario):
        return []
    return list(kind.begins_with(scenario))


def settings_of(kind: Any, point: Mapping[str, Any], scenario: Scenario) -> dict[str, Any]:
    """Parameters of the policy from a point of its grid or space."""
    if hasattr(kind, "of_grid_in"):
        return dict(kind.of_grid_in(dict(point), scenario))
    return dict(getattr(kind, "of_grid", dict)(dict(point)))


def grid_points(
    kind: Any, values: Mapping[str, Sequence[Any]], scenario: Scenario
) -> list[dict[str, Any]]:
    """Parameters of every point of a policy's grid, with some of its values replaced or added; each once."""
    grid = {**grid_of(kind, scenario), **values}
    made = [
        settings_of(kind, dict(zip(grid, point, strict=True)), scenario)
        for point in itertools.product(*grid.values())
    ]
    distinct = {tuple(sorted((key, repr(value)) for key, value in p.items())): p for p in made}
    return list(distinct.values())
