"""Where learning starts from: a network that mostly leaves the cluster as the scenario made it.

Untrained, a network orders everything with equal chance: instances come and go in every pool,
batch limits jump between 8 and 1024, and what one choice does drowns in what the others do. A bias on
the choices that change nothing makes the first policy a noisy static one, from which single deviations can be
told to help or to hurt. It is a starting point, not a bound: learning moves the bias like any weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llmscale_env.scenarios import Scenario
from llmscale_env.scenarios.fleet import PlacementConfig, RouteConfig


def as_is_choices(
    parts: Sequence[str], choices: Sequence[Sequence[str]], scenario: Scenario
) -> list[int | None]:
    """Per part of an action the choice that leaves things as the scenario starts; None: unknown.

    Args:
        parts: names, such as "mixed/instances" or "load_source".
        choices: what each choice of each part means.
        scenario: its batch limits, overflow shares, loading sources and placement are "as it is".
    """
    pools = {pool.name: pool for pool in scenario.fleet.pools}
    found: list[int | None] = []
    for part, options in zip(parts, choices, strict=True):
        name, _, what = part.rpartition("/")
        if what == "instances" and "+1" in options:  # changes
            found.append(_exact(options, "0"))
        elif what == "instances" and name in pools:
            found.append(_nearest(options, pools[name].initial_instances))
        elif what == "residual":
            found.append(_exact(options, "x1"))
        elif what == "rule" and name in pools:
            found.append(_exact(options, getattr(pools[name].scaling, "kind", "none")))
        elif what == "threshold":
            found.append(_nearest(options, _first_route(scenario).threshold))
        elif what == "first":
            found.append(_exact(options, name))
        elif what == "release":
            found.append(_exact(options, "usual"))
        elif what == "batch_limit" and name in pools:
            found.append(_nearest(options, pools[name].batch_limit))
        elif what == "overflow_share":
            shares = [scenario.route_of(llm, name).overflow_share for llm in scenario.fleet.llms]
            found.append(_nearest(options, float(np.mean(shares))))
        elif what == "load_source":
            sources = [pool.engine_source for pool in scenario.fleet.pools]
            found.append(_exact(options, max(set(sources), key=sources.count)))
        elif what == "serves":
            found.append(_exact(options, "keep"))
        elif what == "make_way" and name in pools:
            found.append(_exact(options, "evict" if pools[name].evicts_in_order else "finish"))
        elif part == "placement/rule":
            found.append(_exact(options, _first_route(scenario).kind))
        elif name == "placement":
            placement = _first_route(scenario).placement or PlacementConfig()
            found.append(_nearest(options, getattr(placement, what)))
        else:
            found.append(None)
    return found


def lean_towards(model: Any, choices: Sequence[int | None], biases: Sequence[float]) -> None:
    """Add a bias to the logit of one choice per part of a MultiDiscrete action.

    Args:
        model: of stable-baselines3, with a MultiDiscrete action space and a linear last layer.
        choices: per part, None: leave it.
        biases: per part, natural logarithm of how many times likelier the choice becomes.

    Raises:
        ValueError: not one choice per part.
    """
    import torch

    nvec = model.action_space.nvec
    if len(choices) != len(nvec):
        raise ValueError(f"{len(choices)} choices: must be one for each of {len(nvec)} parts")
    starts = np.concatenate([[0], np.cumsum(nvec)[:-1]])
    with torch.no_grad():
        for start, choice, bias in zip(starts, choices, biases, strict=True):
            if choice is not None:
                model.policy.action_net.bias[int(start) + choice] += bias


def _first_route(scenario: Scenario) -> RouteConfig:
    """That of the first LLM and class: one rule is ordered for all."""
    return scenario.route_of(scenario.fleet.llms[0], scenario.classes[0].name)


def _exact(options: Sequence[str], wanted: str) -> int | None:
    return list(options).index(wanted) if wanted in options else None


def _nearest(options: Sequence[str], wanted: float) -> int:
    return int(np.argmin([abs(float(option) - wanted) for option in options]))
