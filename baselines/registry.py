"""Reference policies by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from baselines.blitzscale.distserve import DistServePolicy
from baselines.chiron import ChironPolicy
from baselines.llumnix import LlumnixPolicy
from baselines.paced import can_pace
from baselines.parameters import PolicyError, parse_policy
from baselines.qlm.policy import QlmPolicy
from baselines.sageserve.policy import (
    is_siloed,
)
from baselines.tunable import TUNABLE
from baselines.tuned_settings import TunedPolicy, shipped_settings
from llmscale_env import ENVIRONMENTS
from llmscale_env._cli import closest
from llmscale_env.control.policy import Policy
from llmscale_env.scenarios import load_scenario, scenario_names
from llmscale_env.scenarios.schema import Scenario

_MAKERS: dict[str, Callable[..., Policy]] = {
    **TUNABLE,
    # The batch limit that Chiron's text implies: 2048 to 4096 is "nearly 50x" it (6.2).
    "llumnix-64": partial(LlumnixPolicy, batch_limit=64),
    # The local autoscaler alone, under a utilisation threshold (Chiron, section 6.3, Figure 18).
    "chiron-local": partial(LlumnixPolicy, controller="chiron", batch_limit=None),
    # The global one alone, over fixed batch limits.
    "chiron-global": partial(ChironPolicy, controller="fixed"),
    # QLM's request groups by earliest deadline, without its programme (section 9), and without swapping.
    "edf-groups": partial(QlmPolicy, scheduler="edf"),
    "no-swap": partial(QlmPolicy, scheduler="edf", swapping=False),
    # On half of the GPUs (BlitzScale, section 6.2).
    "distserve-half": partial(DistServePolicy, share=0.5),
}

TUNED_NAMES = tuple(f"{policy}-tuned" for policy in TUNABLE)
"""Those with the settings that a search found for the scenario, where there was one."""

for _policy, _kind in TUNABLE.items():
    _MAKERS[f"{_policy}-tuned"] = partial(TunedPolicy, policy=_policy, kind=_kind)

POLICY_NAMES: tuple[str, ...] = tuple(_MAKERS)
"""Names that `make_policy` knows."""


QUEUE_POLICIES = ("qlm", "edf-groups", "no-swap", "edf", "vllm", "shepherd")
"""Those that order virtual queues over `group_queues`; most others start and stop instances of pools."""

PLACEMENT_POLICIES = ("jsq", "power-of-two", "machine-wide", "aladdin")
"""Those that choose the workers of one LLM among pools of several degrees, and who gets a request."""


WEIGHT_POLICIES = ("blitzscale", "serverlessllm", "allcache", "distserve", "distserve-half")
"""Those that say from where instances load, on clusters whose weights flow."""


REGION_POLICIES = ("reactive", "siloed", "lt-i", "lt-u", "lt-ua")
"""SageServe's and those that it is compared with, for pools that scale when requests reach their region."""


def policies_for(scenario: Scenario) -> tuple[str, ...]:
    """Names of the policies that a scenario is made for."""
    if any(route.placement is not None for route in scenario.fleet.routes):
        # Left as it is, a cluster whose requests wait to be placed serves nobody.
        held = any(route.kind == "hold" for route in scenario.fleet.routes)
        return _with_settings(
            PLACEMENT_POLICIES if held else ("static", *PLACEMENT_POLICIES), scenario
        )
    if any(pool.flows for pool in scenario.fleet.pools):
        cached = scenario.fleet.host_cache == "always"
        names = ["static", *(name for name in WEIGHT_POLICIES if cached or name != "allcache")]
        return _with_settings(names, scenario)
    if all(pool.scaling for pool in scenario.fleet.pools):
        siloed = is_siloed(scenario)
        names = ["static", *(n for n in REGION_POLICIES if (n == "siloed") == siloed)]
        return _with_settings(names, scenario)
    others = (*PLACEMENT_POLICIES, *WEIGHT_POLICIES, *REGION_POLICIES, *TUNED_NAMES)
    ordered = scenario.fleet.group_queues > 0
    able = {
        "paced": can_pace(scenario),
        # Its model is fitted to iterations that prefill alone.
        "dynamo-load": not any(pool.chunk_tokens for pool in scenario.fleet.pools),
    }
    names = [n for n in POLICY_NAMES if n not in others and (n in QUEUE_POLICIES) == ordered]
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
