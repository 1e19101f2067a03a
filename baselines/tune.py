"""A parameter sweep of a reference policy on a scenario: what "tuned" means in its name.

    python -m baselines.tune policy=llumnix [env=mixed-slo] [workloads=chat,spike,...] [seeds=8]
                             [score=reward|attainment] [out=FILE] [write=true] [high=0.1,0.2 ...]
                             [scenario.FIELD=VALUE ...]

    policy=NAME          llumnix, hpa or chiron
    env=NAME             scenario (a shipped one, or a YAML file)
    workloads=A,B        shipped workloads in place of the scenario's: one setting for all of them
    seeds=N              episodes per setting: seeds 1000, 1001, ...; evaluation uses those from 10000 up
    score=reward         mean reward; or "attainment": mean share of arrivals on time, then fewer GPU-hours
    high=0.1,0.2         values to try for one parameter in place of the grid's
    out=FILE             where the best setting goes; baselines/tuned/POLICY_SCENARIO.yaml if left out
    write=false          print the table only
    scenario.FIELD=VALUE changes the scenario (as in scenario.fleet.max_gpus=12)

Chiron, section 6: for "Llumnix (tuned)" there is "a parameter sweep per-workload to find the configuration
that maximizes SLO attainment and throughput", and for the untuned one "the configuration that maximizes
SLO satisfaction across all workloads" (`workloads=... score=attainment`). Every setting meets the same
episodes.
"""

from __future__ import annotations

import datetime
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from baselines.chiron import ChironPolicy
from baselines.hpa import HpaPolicy
from baselines.llumnix import LlumnixPolicy
from baselines.parameters import PolicyError
from baselines.tuned_settings import settings_path
from llmscale_env._cli import HELP_WORDS, Slip, closest, flag, one_of, parse_options, some_of, whole
from llmscale_env.control.run import run_episode
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.scenarios.load import ScenarioError, load_scenario
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.workload.mixes import mix_names

KINDS: dict[str, Any] = {"llumnix": LlumnixPolicy, "hpa": HpaPolicy, "chiron": ChironPolicy}
FIRST_SEED = 1_000
MAX_SEEDS = 1_000
"""Tuning seeds stay far below the evaluation's, which begin at 10000."""

_SHOWN = 12
_WORDS = ("policy", "env", "workloads", "seeds", "score", "out", "write")


@dataclass(frozen=True)
class Trial:
    """One setting and what it came to: means over the seeds.

    Attributes:
        parameters: of the policy.
        reward, attainment, gpu_hours: of an episode; attainment is the share of all arrivals on time.
        reward_error: standard error of the mean reward.
    """

    parameters: dict[str, Any]
    reward: float
    attainment: float
    gpu_hours: float
    reward_error: float

    def key(self, score: str) -> tuple[float, ...]:
        """What to sort by, the best first; rounded, so that ties go to fewer GPU-hours."""
        if score == "reward":
            return (-self.reward,)
        return (-round(self.attainment, 4), self.gpu_hours)


def grid_points(kind: Any, values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Parameters of every point of a policy's grid, with some of its values replaced or added."""
    grid = {**kind.GRID, **values}
    points = [dict(zip(grid, point, strict=True)) for point in itertools.product(*grid.values())]
    of_grid = getattr(kind, "of_grid", dict)
    return [of_grid(point) for point in points]


def sweep(
    kind: Any,
    scenarios: Sequence[Scenario],
    points: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
    score: str = "reward",
) -> list[Trial]:
    """Every point on every seed of every scenario; the best first, ties in the order of the points.

    Raises:
        PolicyError: a point is no setting of the policy, or the policy cannot run a scenario.
    """
    policies = [kind(**point) for point in points]  # every slip before the first episode
    simulations = [ClusterSimulation(scenario) for scenario in scenarios]
    trials = []
    for point, policy in zip(points, policies, strict=True):
        rows = []
        for simulation, seed in itertools.product(simulations, seeds):
            result = run_episode(policy, simulation.scenario, seed, simulation=simulation).summary
            rows.append((result["reward"], result["joint/slo_attainment"], result["gpu_hours"]))
        table = np.array(rows)
        reward, attainment, gpu_hours = table.mean(axis=0).tolist()
        error = table[:, 0].std(ddof=1) / np.sqrt(len(rows)) if len(rows) > 1 else float("nan")
        trials.append(Trial(dict(point), reward, attainment, gpu_hours, float(error)))
    return sorted(trials, key=lambda trial: trial.key(score))


def settings_text(trial: Trial, header: Mapping[str, Any]) -> str:
    """The YAML file of a sweep's best setting."""
    content = {
        **header,
        "parameters": trial.parameters,
        "mean": {
            "reward": round(trial.reward, 3),
            "reward_standard_error": round(trial.reward_error, 3),
            "slo_attainment": round(trial.attainment, 5),
            "gpu_hours": round(trial.gpu_hours, 4),
        },
    }
    comment = "# Written by baselines.tune; the command below makes it anew.\n"
    return comment + yaml.safe_dump(content, sort_keys=False)


def table_text(trials: Sequence[Trial], shown: int = _SHOWN) -> str:
    """The best trials as a table."""
    names = list(trials[0].parameters)
    head = [*names, "reward", "+-", "on time", "GPU-h"]
    rows = [
        [
            *(_cell(trial.parameters[name]) for name in names),
            f"{trial.reward:.1f}",
            f"{trial.reward_error:.1f}",
            f"{100 * trial.attainment:.2f}%",
            f"{trial.gpu_hours:.2f}",
        ]
        for trial in trials[:shown]
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in (head, *rows)
    ]
    if len(trials) > shown:
        lines.append(f"... and {len(trials) - shown} more")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _values(name: str, text: str) -> list[Any]:
    """Values of a parameter from "0.1,0.2"."""
    try:
        return [yaml.safe_load(part) for part in text.split(",")]
    except yaml.YAMLError:
        raise Slip(f"{name} = {text!r}: must be values separated by commas") from None


def _run(words: Sequence[str]) -> None:
    changes = dict(word.split("=", 1) for word in words if _is_change(word))
    others = [word for word in words if not _is_change(word)]
    name = next((word.partition("=")[2] for word in others if word.startswith("policy=")), "")
    if name not in KINDS:
        raise Slip(f"policy = {name!r}: must be one of {list(KINDS)}{closest(name, KINDS)}")
    kind = KINDS[name]
    known = (*kind.GRID, *kind.parameters_type.model_fields)
    options = parse_options(others, tuple(dict.fromkeys((*_WORDS, *known))))
    seeds = range(FIRST_SEED, FIRST_SEED + whole(options, "seeds", 8, 1, MAX_SEEDS))
    score = one_of(options, "score", ("reward", "attainment"))
    env = options.get("env", "mixed-slo")
    overrides = {
        key.removeprefix("scenario."): yaml.safe_load(value) for key, value in changes.items()
    }
    try:
        scenario = load_scenario(env, **overrides)
        scenarios = [scenario]
        if "workloads" in options:
            mixes = some_of(options, "workloads", mix_names())
            scenarios = [load_scenario(env, **{**overrides, "workload": mix}) for mix in mixes]
        tried = {key: _values(key, options[key]) for key in options if key not in _WORDS}
        points = grid_points(kind, tried)
        print(
            f"{name} on {options.get('workloads', scenario.name)}: {len(points)} settings, "
            f"{len(seeds)} seeds each"
        )
        trials = sweep(kind, scenarios, points, seeds, score)
    except (ScenarioError, PolicyError) as error:
        raise Slip(str(error)) from None
    print(table_text(trials))
    if not flag(options, "write", True):
        return
    path = Path(options["out"]) if "out" in options else settings_path(name, scenario.name)
    header = {
        "policy": name,
        "scenario": scenario.name,
        "command": " ".join(["python -m baselines.tune", *words]),
        "date": datetime.date.today().isoformat(),
        "seeds": [seeds[0], seeds[-1]],
        "score": score,
        "settings_tried": len(points),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(settings_text(trials[0], header), encoding="utf-8")
    os.replace(part, path)
    print(f"written: {path}")


def _is_change(word: str) -> bool:
    return word.startswith("scenario.") and "=" in word


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; 0 when it worked, 2 for a slip."""
    words = list(sys.argv[1:] if words is None else words)
    if any(word in HELP_WORDS for word in words):
        print(__doc__)
        return 0
    try:
        _run(words)
    except Slip as slip:
        print(f"tune: {slip}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
