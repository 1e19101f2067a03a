"""Every policy in every environment.

Each environment's own scenario, every reference policy that it is made for at its published constants,
`POLICY-tuned` besides where a search on the scenario has left settings (baselines/tuned), the simple rules
that its learners are compared with (`references` of agents/configs: fixed fleets picked by hand, say),
trained policies that ship, and run folders given as `learned=`; all on the same windows. A win is an
opponent whose reward, paired window by window, is lower with a 95 % interval (of training seeds and windows)
that leaves out 0; a loss the reverse; anything else is neither, and so is everything of a policy of one
training seed. The bound is the clairvoyant one for 99 % of every class (docs/clairvoyant.md), where its proof
covers the environment: a policy below 99 % may be under it.

`python -m experiments.leaderboard` writes the page docs/leaderboard.md from the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, field_validator

from agents.config import environment_names, make_config
from agents.statistics import Interval
from baselines import make_policy, policies_for
from experiments.harness.claims import Claim, more
from experiments.harness.parameters import Parameters, known, ours
from experiments.learned.protocol import policy_of, seen_by
from experiments.learned.runs import Run, find_runs
from experiments.learned.standings import mean_of
from experiments.learned.statistics import (
    fewest,
    resampled_means,
    stratified_interval,
    t_interval,
)
from experiments.learned.verdicts import why_not, with_interval
from experiments.output import new_figure
from llmscale_env.control.run import run_episode
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.scenarios import load_scenario

if TYPE_CHECKING:
    from pandas import DataFrame

NAME = "leaderboard"
FIGURE = "Leaderboard"

ENVIRONMENTS = environment_names()
Names = tuple[str, ...]


class Settings(Parameters):
    """Attributes are explained where they are declared."""

    seeds: Annotated[int, ours("windows", ge=1, le=1000)] = 20
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
        environments=("mixed-slo-v0", "placement", "burst-multicast"),
        bound_windows=0,
    ),
    "paper": Settings(),
}


def cases(parameters: Settings) -> list[dict[str, Any]]:
    """Every policy of every environment, and the bound of the windows of those that have one."""
    made: list[dict[str, Any]] = []
    seeds = parameters.seed_list()
    for env in parameters.environments:
        where = {"kind": "policy", "environment": env, "windows": seeds}
        scenario = load_scenario(env)
        made += [
            {**where, "policy": name, "learned": False, "parameters": {}, "training_seed": 0}
            for name in dict.fromkeys((*policies_for(scenario), *make_config(env, {}).references))
        ]
        made += [
            {
                **where,
                "policy": name_of(run, env),
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


def name_of(run: Run, env: str) -> str:
    """What a learned policy is called: its setting, and what it was trained on, if something else."""
    said = f"{run.policy}, {run.setting}"
    others = [name for name in run.trained_on if name != env]
    return f"{said}, trained on {', '.join(others)}" if others else said


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


@dataclass(frozen=True)
class Entrant:
    """A policy in an environment.

    Attributes:
        name, learned: as in the rows.
        values: by column, (training seeds, windows).
        means: by column, (resamples,) of resamples of seeds and windows, windows being those of all others.
        n: of what there is least to draw from.
    """

    name: str
    learned: bool
    values: dict[str, Any]
    means: dict[str, Any]
    n: int

    def interval(self, column: str, times: float = 1.0) -> Interval:
        """Mean of a column and its 95 % interval."""
        centre = times * float(np.mean(self.values[column]))
        return t_interval(centre, times * self.means[column], self.n)

    def above(self, other: Entrant) -> Interval:
        """Reward above another's, on the same windows."""
        centre = float(np.mean(self.values["reward"]) - np.mean(other.values["reward"]))
        found = self.means["reward"] - other.means["reward"]
        return t_interval(centre, found, min(self.n, other.n))


def entrants(frame: DataFrame, environment: str) -> list[Entrant]:
    """Every policy of an environment, the best mean reward first.

    Raises:
        ValueError: two runs of the same name and training seed, or windows that some lack.
    """
    rows = frame[(frame["environment"] == environment) & (frame["kind"] == "policy")]
    found = []
    windows = sorted(set(rows["window"]))
    for name, mine in rows.groupby("policy", sort=False):
        if mine.duplicated(["training_seed", "window"]).any():
            raise ValueError(f"{environment}: two runs are {name} with the same training seed")
        learned = bool(mine["learned"].iloc[0])
        values = {
            c: mine.pivot(index="training_seed", columns="window", values=c)
            .reindex(columns=windows)
            .to_numpy(np.float64)
            for c in _COLUMNS
        }
        if np.isnan(values["reward"]).any():
            raise ValueError(f"{environment}: {name} has not run in all windows")
        means = {c: resampled_means(table, environment, str(name)) for c, table in values.items()}
        n = fewest(values["reward"], learned)
        found.append(Entrant(str(name), learned, values, means, n))
    return sorted(found, key=lambda one: -float(np.mean(one.values["reward"])))


def board(frame: DataFrame, environment: str) -> list[dict[str, Any]]:
    """A row per policy of an environment, the best mean reward first."""
    there = entrants(frame, environment)
    rows = frame[(frame["environment"] == environment) & (frame["kind"] == "policy")]
    windows = sorted(set(rows["window"]))
    bounds = frame[(frame["environment"] == environment) & (frame["kind"] == "bound")]
    known: dict[Any, float] = {}
    if len(bounds):
        known = bounds.set_index("window")["bound_gpu_hours"].astype(float).dropna().to_dict()
    made = []
    for place, one in enumerate(there, 1):
        wins, losses = record(one, [other for other in there if other is not one])
        over: Interval | str = "-"
        if known:
            at = [k for k, window in enumerate(windows) if window in known]
            bound = np.array([known[windows[k]] for k in at])
            over = stratified_interval(
                {environment: one.values["gpu_hours"][:, at] / bound},
                mean_of,
                trainings={environment: one.name} if one.learned else None,
            )
        made.append(
            {
                "place": place,
                "policy": one.name,
                "kind": "learned" if one.learned else "handwritten",
                "seeds": len(one.values["reward"]),
                "reward": one.interval("reward"),
                "on time %": _share(one.interval("joint_attainment", 100.0)),
                "worst class %": 100 * float(one.values["worst_attainment"].mean()),
                "GPU-h": one.interval("gpu_hours"),
                "GPU-h / bound": over,
                "rejected": float(one.values["rejected"].mean()),
                "TTFT p99 s": float(one.values["ttft_s_p99"].mean()),
                "scalings": float(one.values["scaling_actions"].mean()),
                "wins": wins,
                "losses": losses,
            }
        )
    return made


def _share(found: Interval) -> Interval:
    """An interval of per cents, which ends at 0 and 100."""
    low, high = (float(np.clip(end, 0.0, 100.0)) for end in (found.low, found.high))
    return Interval(found.mean, low, high)


def record(mine: Entrant, others: Sequence[Entrant]) -> tuple[int, int]:
    """Opponents that are beaten, and that win: differences whose interval leaves out 0."""
    gaps = [mine.above(other) for other in others]
    return sum(gap.low > 0 for gap in gaps), sum(gap.high < 0 for gap in gaps)


def tables(frame: DataFrame, parameters: Settings) -> dict[str, list[dict[str, Any]]]:
    """A board per environment."""
    return {env: board(frame, env) for env in parameters.environments}


def plot(frame: DataFrame, parameters: Settings) -> Any:
    """Mean reward with its interval, a panel per environment; learned policies are filled."""
    from matplotlib.ticker import StrMethodFormatter

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
        if min(row["reward"].mean for row in rows) < -1000:
            _log_axis(axis, [row["reward"] for row in rows])
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axis.tick_params(axis="x", labelsize=8, labelrotation=30)
        axis.set_title(env, fontsize=10)
        axis.set_xlabel("reward of an episode (to the right is better)")
        axis.grid(alpha=0.3, axis="x")
    return figure


def _log_axis(axis: Any, rewards: Sequence[Interval]) -> None:
    """Rewards of very different sizes: logarithmic as far as they go, with a little room around them."""
    from matplotlib.ticker import SymmetricalLogLocator

    means = [found.mean for found in rewards]
    ends = np.array([(found.low, found.mean, found.high) for found in rewards])
    low, high = float(np.nanmin(ends)), float(np.nanmax(ends))
    near = 10.0 ** np.floor(np.log10(max(1.0, np.abs(means).min())))
    axis.set_xscale("symlog", linthresh=near, linscale=0.3)
    axis.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=near, subs=(1, 3)))
    axis.set_xlim(1.2 * low, high / 1.2 if high < 0 else high + near / 3)


def claims(frame: DataFrame, parameters: Settings) -> list[Claim]:
    """In each environment: the best learned policy against the best handwritten one."""
    made = []
    for env in parameters.environments:
        there = entrants(frame, env)
        sentence = (
            f"{env}: the best learned policy has a better reward than the best handwritten one"
        )
        learned = next((one for one in there if one.learned), None)
        other = next((one for one in there if not one.learned), None)
        if learned is None or other is None:
            nothing = Interval(np.nan, np.nan, np.nan)
            made.append(
                more(sentence, 0.0, nothing, unit="reward", reason="there is none of the one kind")
            )
            continue
        gap = learned.above(other)
        trained = len(learned.values["reward"])
        note = (
            f"{learned.name} ({trained} training seed{'s' * (trained > 1)}) against {other.name}."
        )
        claim = more(sentence, 0.0, gap, unit="reward", reason=why_not(gap), note=note)
        made.append(with_interval(claim))
    return made
