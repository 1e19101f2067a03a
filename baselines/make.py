"""Reference policies by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from baselines.paced import can_pace
from baselines.parameters import PolicyError, parse_policy
from baselines.registry import POLICIES, TUNABLE
from baselines.sageserve.policy import is_siloed
from baselines.tuned_settings import TunedPolicy, shipped_settings
from baselines.twin import policy as twin
from baselines.twin import queues as twin_queues
from llmscale_env import ENVIRONMENTS
from llmscale_env._cli import closest
from llmscale_env.control.policy import Policy
from llmscale_env.scenarios import load_scenario, scenario_names
from llmscale_env.scenarios.schema import Scenario

_MAKERS: dict[str, Callable[..., Policy]] = {name: each.make for name, each in POLICIES.items()}

TUNED_NAMES = tuple(f"{policy}-tuned" for policy in TUNABLE)
"""Those with the settings that a search found for the scenario, where there was one."""

for _policy, _kind in TUNABLE.items():
    _MAKERS[f"{_policy}-tuned"] = partial(TunedPolicy, policy=_policy, kind=_kind)

POLICY_NAMES: tuple[str, ...] = tuple(_MAKERS)
"""Names that `make_policy` knows."""


PLACEMENT_POLICIES = tuple(name for name, each in POLICIES.items() if each.family == "placement")


def _family(scenario: Scenario) -> str:
    """What there is to decide on a scenario's cluster (`Listed.family`)."""
    fleet = scenario.fleet
    if any(route.placement is not None for route in fleet.routes):
        return "placement"
    if any(pool.flows for pool in fleet.pools):
        return "weights"
    if all(pool.scaling for pool in fleet.pools):
        return "regions"
    return "queues" if fleet.group_queues > 0 else "pools"


def policies_for(scenario: Scenario, *, planners: bool = True) -> tuple[str, ...]:
    """Names of the policies that a scenario is made for.

    Args:
        scenario: which one.
        planners: also those that simulate what they may order, and take minutes for an episode.
    """
    family, fleet = _family(scenario), scenario.fleet
    # Left as it is, a cluster whose requests wait to be placed, or for a list of queues, serves nobody.
    held = family == "queues" or any(route.kind == "hold" for route in fleet.routes)
    siloed = family == "regions" and is_siloed(scenario)
    able = {
        "static": not held,
        "paced": family == "pools" and can_pace(scenario),
        "twin": family == "pools" and not twin.why_not(scenario),
        "twin-queues": family == "queues" and not twin_queues.why_not(scenario),
        # Its model is fitted to iterations that prefill alone.
        "dynamo-load": not any(pool.chunk_tokens for pool in fleet.pools),
        "allcache": fleet.host_cache == "always",
        **{n: (n == "siloed") == siloed for n, e in POLICIES.items() if e.family == "regions"},
    }
    names = [n for n, each in POLICIES.items() if each.family == family or n == "static"]
    names = [n for n in names if planners or not POLICIES[n].plans]
    return _with_settings([n for n in names if able.get(n, True)], scenario)


def _with_settings(names: Sequence[str], scenario: Scenario) -> tuple[str, ...]:
    """These and NAME-tuned of those for whom the package has the scenario's settings."""
    tuned = [n for n in names if n in TUNABLE and shipped_settings(n, scenario.name).is_file()]
    return (*names, *(f"{n}-tuned" for n in tuned))


def misfit(name: str, scenario: Scenario, error: PolicyError) -> str:
    """An error of a policy, with the environments that it is made for where the scenario is none of them."""
    kind = name.partition(":")[0].removesuffix("-tuned")
    envs = {e.short_name for e in ENVIRONMENTS} & set(scenario_names())
    fit = [env for env in sorted(envs) if kind in policies_for(load_scenario(env))]
    if kind in policies_for(scenario) or not fit:
        return str(error)
    return f"{kind} is made for {', '.join(fit)}, not for {scenario.name} ({error})"


def make_policy(name: str, **parameters: Any) -> Policy:
    """A reference policy by name, with its parameters.

    Args:
        name: one of `POLICY_NAMES`, or with parameters in the text: "static:interactive=6,mixed=4".
            The whole text becomes the policy's name in tables.
        parameters: fields of the policy's parameters (docs/policies.md); they go before the text's.

    Raises:
        PolicyError: an unknown policy or parameter, or a value that is not allowed; one line.
    """
    kind, values = parse_policy(name)
    if kind not in _MAKERS:
        raise PolicyError(f"policy = {kind!r} is unknown{closest(kind, POLICY_NAMES)}")
    if "name" in values:
        raise PolicyError(f"{kind}: name = {values['name']!r}: the whole text is the policy's name")
    return _MAKERS[kind](name, **{**values, **parameters})
