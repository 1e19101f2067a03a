"""Heuristics and their knobs: one number per policy that trades GPU-hours for attainment.

A setting of factor `f` asks for about `f` times the fleet that the policy's own setting asks for: targets
of use are divided by it, margins and counts multiplied. Factor 1 is the tuned setting where a search has
found one, else the policy's defaults; tables say which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator

from baselines import PolicyError, make_policy
from baselines.registry import TUNABLE
from baselines.tuned_settings import read_settings, settings_path
from experiments.harness.parameters import known
from experiments.learned.family import FAMILY, SCENARIO
from llmscale_env._reading import read_yaml
from llmscale_env.scenarios.schema import Scenario

HEURISTICS = tuple(
    name for name, kind in TUNABLE.items() if hasattr(kind, "GRID") or hasattr(kind, "grid_of")
)
"""Every policy with a grid of settings: those that start and stop instances of pools."""

Heuristics = Annotated[tuple[str, ...], AfterValidator(lambda names: known(names, HEURISTICS))]
"""Some of them, as a parameter of a study."""

DIVIDED: dict[str, tuple[str, ...]] = {
    "llumnix": ("low", "high"),
    "hpa": ("queue_target", "kv_target", "concurrency_target"),
    "kpa": ("target",),
    "ray-serve": ("target",),
    "keda": ("queue_target", "kv_target"),
    "wva": ("kv_threshold", "kv_spare", "queue_threshold", "queue_spare"),
    "wva-tokens": ("kv_threshold", "queue_threshold"),
    "dynamo-load": ("sensitivity", "ttft_s", "itl_s"),
    "chiron": ("theta", "delta"),
}
"""Targets, which a larger fleet brings down."""

MULTIPLIED: dict[str, tuple[str, ...]] = {
    "dynamo": ("margin",),
    "paced": ("margin", "peak_margin", "spare"),
    "llumnix-freeness": ("low", "high"),
}
"""What grows with the fleet: a margin; free blocks per request, written as negative loads."""


@dataclass(frozen=True)
class Base:
    """What a policy's knob turns around.

    Attributes:
        source: "tuned on WORKLOAD", "tuned", or "defaults".
        parameters: that differ from the policy's defaults.
    """

    source: str
    parameters: dict[str, Any]


def base_of(policy: str, workload: str | None = None) -> Base:
    """The settings that a search found for a validation workload, for the family, or the defaults.

    Args:
        policy: one of `HEURISTICS`.
        workload: name of the validation workload; None: that of the family alone is looked for.

    Raises:
        PolicyError: a file of settings is malformed.
    """
    if workload is not None:
        name = f"{FAMILY}/{workload}"
        if settings_path(policy, SCENARIO, name).exists():
            return Base(f"tuned on {workload}", read_settings(policy, SCENARIO, workload=name))
    path = settings_path(policy, SCENARIO)
    if path.exists():
        parameters = read_settings(policy, SCENARIO)
        of = read_yaml(path).get("workload")
        return Base(f"tuned on {of}" if of else "tuned", parameters)
    return Base("defaults", {})


def turned(
    policy: str, base: Mapping[str, Any], factor: float, scenario: Scenario
) -> dict[str, Any] | None:
    """The parameters of a policy whose knob is turned by `factor`.

    A share ends just below 1 where it would be more; what else the knob turns goes on.

    Returns:
        None where that is no setting of the policy.
    """
    if policy == "static":
        made = _fleet(base, factor, scenario)
    else:
        kind = TUNABLE[policy]
        whole = {**kind.parameters_type().model_dump(), **base}
        made = dict(base)
        for name in DIVIDED.get(policy, ()):
            made[name] = _below(kind, name, _scaled(whole[name], 1 / factor))
        for name in MULTIPLIED.get(policy, ()):
            made[name] = _scaled(whole[name], factor)
        if policy == "chiron" and made["theta"] + made["delta"] >= 1.0:
            made["delta"] = float(f"{_MOST * (1.0 - made['theta']):.6g}")
        if policy == "paced":
            # Of what the margin asks for: as many interactive instances as before, the others mixed. Requests
            # go to a lone interactive one first, and its queue of prefills holds up its decoding.
            made["own_share"] = min(1.0, float(f"{whole['own_share'] / factor:.6g}"))
    try:
        make_policy(policy, **made)
    except PolicyError:
        return None
    return made


_MOST = 0.999
"""Of a limit that a value must stay below."""


def _below(kind: Any, name: str, value: float | None) -> float | None:
    """A value, brought below its limit if it has one."""
    if value is None:
        return None
    rules = kind.parameters_type.model_fields[name].metadata
    limits = [float(rule.lt) for rule in rules if hasattr(rule, "lt")]
    return min([value, *(_MOST * limit for limit in limits)])


def _scaled(value: float | None, factor: float) -> float | None:
    """Six digits, so that a setting has one spelling."""
    return None if value is None else float(f"{value * factor:.6g}")


def _fleet(base: Mapping[str, Any], factor: float, scenario: Scenario) -> dict[str, Any]:
    """Counts of a fixed fleet, `factor` times as many, in proportion no more than the GPUs allow."""
    pools = {pool.name: pool for pool in scenario.fleet.pools}
    each = base.get("each")
    own = dict(base.get("instances", {}))
    counts = {}
    for name, pool in pools.items():
        start = pool.initial_instances if each is None else each
        counts[name] = factor * own.get(name, base.get(name, start))
    gpus = sum(count * pools[name].tp for name, count in counts.items())
    most = min(1.0, scenario.fleet.max_gpus / gpus) if gpus else 1.0
    rest = {k: v for k, v in base.items() if k not in pools and k not in ("each", "instances")}
    made = {
        name: min(round(count * most), pools[name].max_instances) for name, count in counts.items()
    }
    # Rounding may go over the edge by an instance.
    while sum(n * pools[name].tp for name, n in made.items()) > scenario.fleet.max_gpus:
        made[max(made, key=lambda name: made[name])] -= 1
    return {**rest, **made}
