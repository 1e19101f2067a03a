"""The reference policies, each declared once; what a search for their settings looks through."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

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
from baselines.twin.policy import TwinPolicy
from baselines.twin.queues import TwinQueuesPolicy
from llmscale_env.scenarios.schema import Scenario


class Listed(NamedTuple):
    """A policy that can be asked for by name.

    Attributes:
        make: its class, or a call that makes a variant of it.
        family: what it decides, and so which clusters it is for: `pools` (how many instances), `queues`
            (virtual queues over `group_queues`), `placement` (workers of one LLM among pools of several
            degrees), `weights` (from where instances load), `regions` (pools that scale when requests reach
            their region).
        tunable: a search can look for its settings, so there is NAME-tuned.
        plans: it simulates what it may order, and a decision takes a hundred times as long as others' do.
    """

    make: Any
    family: str = "pools"
    tunable: bool = True
    plans: bool = False


POLICIES: dict[str, Listed] = {
    "static": Listed(StaticPolicy),
    "llumnix": Listed(LlumnixPolicy),
    "llumnix-freeness": Listed(FreenessPolicy),
    "hpa": Listed(HpaPolicy),
    "kpa": Listed(KpaPolicy),
    "ray-serve": Listed(RayServePolicy),
    "keda": Listed(KedaPolicy),
    "wva": Listed(WvaPolicy),
    "wva-tokens": Listed(WvaTokensPolicy),
    "dynamo": Listed(DynamoPolicy),
    "dynamo-load": Listed(DynamoLoadPolicy),
    "chiron": Listed(ChironPolicy),
    "paced": Listed(PacedPolicy),
    "twin": Listed(TwinPolicy, plans=True),
    "qlm": Listed(QlmPolicy, "queues"),
    "twin-queues": Listed(TwinQueuesPolicy, "queues", plans=True),
    "edf": Listed(EdfPolicy, "queues"),
    "vllm": Listed(VllmPolicy, "queues"),
    "shepherd": Listed(ShepherdPolicy, "queues"),
    "jsq": Listed(FixedWorkersPolicy, "placement"),
    "power-of-two": Listed(PowerOfTwoPolicy, "placement"),
    "machine-wide": Listed(MachineWidePolicy, "placement"),
    "aladdin": Listed(AladdinPolicy, "placement"),
    "blitzscale": Listed(BlitzScalePolicy, "weights"),
    "serverlessllm": Listed(ServerlessLlmPolicy, "weights"),
    "allcache": Listed(AllCachePolicy, "weights"),
    "distserve": Listed(DistServePolicy, "weights"),
    "reactive": Listed(ReactivePolicy, "regions"),
    "siloed": Listed(SiloedPolicy, "regions"),
    "lt-i": Listed(LongTermPolicy, "regions"),
    "lt-u": Listed(TargetPolicy, "regions"),
    "lt-ua": Listed(TargetAheadPolicy, "regions"),
    # The batch limit that Chiron's text implies: 2048 to 4096 is "nearly 50x" it (6.2).
    "llumnix-64": Listed(partial(LlumnixPolicy, batch_limit=64), tunable=False),
    # The local autoscaler alone, under a utilisation threshold (Chiron, section 6.3, Figure 18).
    "chiron-local": Listed(
        partial(LlumnixPolicy, controller="chiron", batch_limit=None), tunable=False
    ),
    # The global one alone, over fixed batch limits.
    "chiron-global": Listed(partial(ChironPolicy, controller="fixed"), tunable=False),
    # QLM's request groups by earliest deadline, without its programme (section 9), and without swapping.
    "edf-groups": Listed(partial(QlmPolicy, scheduler="edf"), "queues", tunable=False),
    "no-swap": Listed(partial(QlmPolicy, scheduler="edf", swapping=False), "queues", tunable=False),
    # On half of the GPUs (BlitzScale, section 6.2).
    "distserve-half": Listed(partial(DistServePolicy, share=0.5), "weights", tunable=False),
}
"""All reference policies; `static` is for every kind of cluster on which a fixed fleet can serve."""

TUNABLE: dict[str, Any] = {name: each.make for name, each in POLICIES.items() if each.tunable}
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
