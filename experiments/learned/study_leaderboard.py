"""Every policy in every environment.

Each environment's own scenario, every reference policy that it is made for at its published constants,
`POLICY-tuned` besides where a search on the scenario has left settings (baselines/tuned), trained policies
that ship, and run folders given as `learned=`; all on the same windows. A win is an opponent whose reward,
paired window by window, is lower with a 95 % interval that leaves out 0; a loss the reverse; anything else
is neither. The bound is the clairvoyant one for 99 % of every class (docs/clairvoyant.md), where its proof
covers the environment: a policy below 99 % may be under it.

`python -m experiments.leaderboard` writes the page docs/leaderboard.md from the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, field_validator

import llmscale_env
from agents.statistics import Interval, mean_interval, paired_difference
from baselines import make_policy, policies_for
from experiments.harness.claims import Claim, more
from experiments.harness.parameters import Parameters, known, ours
from experiments.learned.protocol import policy_of, seen_by
from experiments.learned.runs import find_runs
from experiments.output import new_figure
from llmscale_env.control.run import run_episode
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.scenarios import load_scenario

if TYPE_CHECKING:
    from pandas import DataFrame

NAME = "leaderboard"
FIGURE = "Leaderboard"

ENVIRONMENTS = tuple(entry.short_name for entry in llmscale_env.ENVIRONMENTS)
LONG = ("multi-region",)
"""Whose episodes are days."""

Names = tuple[str, ...]


class Settings(Parameters):
    """Attributes are explained where they are declared."""

    seeds: Annotated[int, ours("windows", ge=1, le=1000)] = 20
    long_seeds: Annotated[int, ours("windows where an episode is a day", ge=1, le=1000)] = 3
    environments: Annotated[Names, ours("all")] = ENVIRONMENTS
    learned: Annotated[
        Names, ours('run folders, folders of runs, or "pretrained": all that ship')
    ] = ("pretrained",)
    attainment: Annotated[float, ours("of every class, for the bound", gt=0, le=1)] = 0.99
    bound_windows: Annotated[int, Field(ge=0), ours("that have a bound, from the first on")] = 20

    @field_validator("environments")
    @classmethod
    def _known(cls, names: Names) -> Names:
        return known(names, ENVIRONMENTS)


PARAMETERS = {
    "quick": Settings(
        seeds=2,
        environments=("mixed-slo", "placement", "burst-multicast"),
        bound_windows=0,
    ),
    "paper": Settings(),
}


def cases(parameters: Settings) -> list[dict[str, Any]]:
    """Every policy of every environment, and the bound of the windows of those that have one."""
    made: list[dict[str, Any]] = []
    for env in parameters.environments:
        n = parameters.long_seeds if env in LONG else parameters.seeds
        seeds = parameters.seed_list()[:n]
        if n > len(seeds):
            seeds = list(range(parameters.seed_list()[0], parameters.seed_list()[0] + n))
        where = {"kind": "policy", "environment": env, "windows": seeds}
        scenario = load_scenario(env)
        made += [
            {**where, "policy": name, "learned": False, "parameters": {}, "training_seed": 0}
            for name in policies_for(scenario)
        ]
        made += [
            {
                **where,
                "policy": f"{run.policy}, {run.setting}",
                "learned": True,
                "model": run.path,
                "digest": run.digest,
                "training_seed": run.training_seed,
            }
            for run in find_runs(parameters.learned, env)
            if not run.made_for  # another workload than the environment's own
        ]
        if has_bound(scenario):
            made += [
                {**where, "kind": "bound", "windows": [seed], "attainment": parameters.attainment}
                for seed in seeds[: parameters.bound_windows]
            ]
    return made


def has_bound(scenario: Any) -> bool:
    """Whether the clairvoyant bound is proven for a scenario."""
    from baselines.clairvoyant import NotSupported
    from baselines.clairvoyant.bound import check_supported

    try:
        check_supported(scenario)
    except NotSupported:
        return False
    return True


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The episodes of one policy in one environment, or the bound of a window."""
    scenario = load_scenario(case["environment"])
    if case["kind"] == "bound":
        from baselines.clairvoyant import clairvoyant_bound

        (seed,) = case["windows"]
        bound = clairvoyant_bound(scenario, seed, case["attainment"])
        hours = bound.gpu_hours if bound.status == "optimal" else None
        return [{"window": seed, "bound_gpu_hours": hours}]
    policy = policy_of(case) if case["learned"] else make_policy(case["policy"])
    simulation = ClusterSimulation(scenario)
    rows = []
    for seed in case["windows"]:
        found = run_episode(
            policy, scenario, seed, simulation=simulation, forecaster=seen_by(policy, case)
        ).summary
        shares = [found[f"{c.name}/slo_attainment"] for c in scenario.classes]
        rows.append(
            {
                "window": seed,
                "reward": found["reward"],
                "gpu_hours": found["gpu_hours"],
                "joint_attainment": found["joint/slo_attainment"],
                "worst_attainment": min(shares),
                "rejected": found["joint/rejected"],
                "ttft_s_p99": found["joint/ttft_s_p99"],
                "scaling_actions": found["scaling_actions"],
            }
        )
    return rows


_COLUMNS = (
    *("reward", "gpu_hours", "joint_attainment", "worst_attainment", "rejected"),
    *("ttft_s_p99", "scaling_actions"),
)


def board(frame: DataFrame, environment: str) -> list[dict[str, Any]]:
    """A row per policy of an environment, the best mean reward first.

    A learned policy's value of a window is the mean over its training seeds.
    """
    rows = frame[(frame["environment"] == environment) & (frame["kind"] == "policy")]
    by_window = {
        column: rows.pivot_table(index="window", columns="policy", values=column, aggfunc="mean")
        for column in _COLUMNS
    }
    rewards = by_window["reward"]
    bounds = frame[(frame["environment"] == environment) & (frame["kind"] == "bound")]
    bound = (
        bounds.set_index("window")["bound_gpu_hours"].astype(float).dropna()
        if len(bounds)
        else None
    )
    names = sorted(rewards.columns, key=lambda name: -rewards[name].mean())
    made = []
    for place, name in enumerate(names, 1):
        wins, losses = record(rewards[name], [rewards[n] for n in names if n != name])
        mine = rows[rows["policy"] == name]
        over: Interval | str = "-"
        if bound is not None and len(bound):
            over = mean_interval((by_window["gpu_hours"][name].loc[bound.index] / bound).to_numpy())
        made.append(
            {
                "place": place,
                "policy": name,
                "kind": "learned" if bool(mine["learned"].iloc[0]) else "handwritten",
                "seeds": int(mine["training_seed"].nunique()),
                "reward": mean_interval(rewards[name].to_numpy()),
                "on time %": mean_interval(100 * by_window["joint_attainment"][name].to_numpy()),
                "worst class %": 100 * float(by_window["worst_attainment"][name].mean()),
                "GPU-h": mean_interval(by_window["gpu_hours"][name].to_numpy()),
                "GPU-h / bound": over,
                "rejected": float(by_window["rejected"][name].mean()),
                "TTFT p99 s": float(by_window["ttft_s_p99"][name].mean()),
                "scalings": float(by_window["scaling_actions"][name].mean()),
                "wins": wins,
                "losses": losses,
            }
        )
    return made


def record(mine: Any, others: list[Any]) -> tuple[int, int]:
    """Opponents that are beaten, and that win: paired differences whose interval leaves out 0."""
    wins = losses = 0
    for other in others:
        difference = paired_difference(np.asarray(mine, float), np.asarray(other, float))
        wins += difference.low > 0
        losses += difference.high < 0
    return int(wins), int(losses)


def tables(frame: DataFrame, parameters: Settings) -> dict[str, list[dict[str, Any]]]:
    """A board per environment."""
    return {env: board(frame, env) for env in parameters.environments}


def plot(frame: DataFrame, parameters: Settings) -> Any:
    """Mean reward with its interval, a panel per environment; learned policies are filled."""
    boards = tables(frame, parameters)
    columns = min(3, len(boards))
    lines = -(-len(boards) // columns)
    most = max(len(rows) for rows in boards.values())
    figure = new_figure(5.4 * columns, lines * (1.2 + 0.25 * most))
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for axis in axes[len(boards) :]:
        axis.set_visible(False)
    for axis, (env, rows) in zip(axes, boards.items(), strict=False):
        for y, row in enumerate(rows):
            found = row["reward"]
            colour = "tab:red" if row["kind"] == "learned" else "tab:blue"
            axis.plot(found.mean, y, "*" if row["kind"] == "learned" else "o", color=colour)
            if not np.isnan(found.low):
                axis.plot([found.low, found.high], [y, y], color=colour, lw=1.5)
        axis.set_yticks(range(len(rows)), [row["policy"] for row in rows], fontsize=8)
        axis.invert_yaxis()
        if min(row["reward"].mean for row in rows) < -100:
            axis.set_xscale("symlog", linthresh=100)
        axis.set_title(env, fontsize=10)
        axis.set_xlabel("reward of an episode (to the right is better)")
        axis.grid(alpha=0.3, axis="x")
    return figure


def claims(frame: DataFrame, parameters: Settings) -> list[Claim]:
    """In each environment: the best learned policy against the best handwritten one."""
    made = []
    for env in parameters.environments:
        rows = board(frame, env)
        best = {
            kind: next((r for r in rows if r["kind"] == kind), None)
            for kind in ("learned", "handwritten")
        }
        sentence = (
            f"{env}: the best learned policy has a better reward than the best handwritten one"
        )
        learned, other = best["learned"], best["handwritten"]
        if learned is None or other is None:
            nothing = Interval(np.nan, np.nan, np.nan)
            made.append(
                more(sentence, 0.0, nothing, unit="reward", reason="there is none of the one kind")
            )
            continue
        at = frame[(frame["environment"] == env) & (frame["kind"] == "policy")]
        by_window = at.pivot_table(
            index="window", columns="policy", values="reward", aggfunc="mean"
        )
        difference = paired_difference(by_window[learned["policy"]], by_window[other["policy"]])
        note = f"{learned['policy']} against {other['policy']}."
        made.append(more(sentence, 0.0, difference, unit="reward", note=note))
    return made
