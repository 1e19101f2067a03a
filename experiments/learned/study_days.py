"""Whole test days: planner, pupil, and every rule with searched settings.

All play the same days from midnight to midnight, each day of the test set with several draws of its
requests. No search and no training has seen them. Rules have the settings found for reward, and those found
for the fewest GPU-hours at 99 % of every class on time. "worst hour" is that of a day in which the fewest
interactive requests were on time; "middle half" is the mean of a policy's days without its best and worst
quarter.

There are few test days, and draws of one are alike. "the planner is ahead" therefore has two intervals: one
over all draws, which is about these days, and one over the means of each day ("by day"), which is about days
like them. Statements are judged by the second. "days ahead" counts days on which it is ahead in the mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from agents.evaluate import make_policies
from agents.statistics import Interval, interquartile_mean, mean_interval, shown
from experiments.harness.claims import Claim, every, less, more
from experiments.harness.figure import Grid, claimed, where
from experiments.harness.parameters import Parameters, ours
from experiments.learned.players import (
    AT_TARGET,
    ENV,
    PLANNER,
    PUPIL,
    SAME_WORDS,
    TUNED,
    policy_named,
)
from experiments.output import new_figure
from llmscale_env.control.reward import even_seeds
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios import Scenario, load_scenario
from llmscale_env.workload.generate import day_drawn

if TYPE_CHECKING:
    from pandas import DataFrame, Series

NAME = "learned-days"
FIGURE = "Days"
RULES = (
    *("paced", "chiron", "llumnix", "llumnix-freeness", "dynamo", "wva-tokens", "wva"),
    *("hpa", "keda", "kpa", "ray-serve", "static"),
)
DAY_S, HOUR_S = 86_400.0, 3600.0
INTERACTIVE = "interactive"
SAME = 1.0


class Settings(Parameters):
    """Attributes are explained where they are declared; `seeds` are draws of all days together."""

    workload: Annotated[str, ours("days that nobody was tuned on")] = "mixed-slo/test"
    horizon_s: Annotated[float, ours("from midnight on", gt=0)] = DAY_S


PARAMETERS = {"quick": Settings(seeds=4, horizon_s=900.0), "paper": Settings(seeds=20)}


def _scenario(workload: str, horizon_s: float) -> Scenario:
    return load_scenario(ENV, workload=workload, horizon_s=horizon_s)


def _seeds(parameters: Settings, case: Mapping[str, Any]) -> list[int]:
    """As many of every day."""
    first, *_ = seeds = parameters.seed_list()
    return even_seeds(_scenario(parameters.workload, parameters.horizon_s), first, len(seeds))


PLAYERS = [
    *({"who": who, "setting": TUNED} for who in (PLANNER, PUPIL)),
    *({"who": who, "setting": setting} for who in RULES for setting in (TUNED, AT_TARGET)),
]

cases = Grid({"player": PLAYERS, "seed": _seeds}, keep=("workload", "horizon_s"))


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A day under one of them."""
    scenario = _scenario(case["workload"], case["horizon_s"])
    (policy,) = make_policies(policy_named(case["who"], case["setting"]), ENV, scenario)
    made = run_episode(policy, scenario, case["seed"])
    shares = {c.name: made.summary.get(f"{c.name}/slo_attainment") for c in scenario.classes}
    mine = where(made.requests, slo_class=INTERACTIVE)
    mine = mine[
        mine["outcome"] != "unfinished"
    ]  # cut off at midnight, so in the last seconds alone
    by_hour = (mine["outcome"] == "on_time").groupby(mine["arrival_s"] // HOUR_S).mean()
    rng = np.random.default_rng(case["seed"])
    return [
        {
            "day": day_drawn(scenario.workload, scenario.horizon_s, rng),
            "reward": made.summary["reward"],
            "gpu_hours": made.summary["gpu_hours"],
            "interactive": shares.pop(INTERACTIVE),
            # Nobody of a class: nobody is late.
            "batch": min(
                1.0 if share is None or np.isnan(share) else share for share in shares.values()
            ),
            "worst_hour": float(by_hour.min()),
        }
    ]


def _named(who: str, setting: str) -> str:
    """As tables call it."""
    return f"{who} at 99 %" if setting == AT_TARGET else who


def _rewards(frame: DataFrame) -> DataFrame:
    """A row per day and seed, a column per policy, the best one first."""
    named = frame.assign(policy=[*map(_named, frame["who"], frame["setting"])])
    rewards = named.pivot(index=["day", "seed"], columns="policy", values="reward").astype(float)
    return rewards[rewards.mean().sort_values(ascending=False).index]


def _by_day(differences: Series) -> Interval:
    """Over the means of each day."""
    return mean_interval(differences.groupby("day").mean())


def _at_its_best(rewards: DataFrame, rule: str) -> str:
    """Whichever of a rule's settings has more reward on these days."""
    return next(name for name in rewards if name in (rule, _named(rule, AT_TARGET)))


def tables(frame: DataFrame, parameters: Settings) -> dict[str, list[dict[str, Any]]]:
    """Every policy, how far planner and pupil are ahead of it, and each day."""
    rewards = _rewards(frame)
    policies, ahead = [], []
    for name in rewards:
        who, _, rest = str(name).partition(" at ")
        mine = where(frame, who=who, setting=AT_TARGET if rest else TUNED)
        policies.append(
            {
                "policy": name,
                "reward": mean_interval(mine["reward"]),
                "middle half": shown(interquartile_mean(mine["reward"])),
                "interactive %": mean_interval(100 * mine["interactive"]),
                "worst hour %": mean_interval(100 * mine["worst_hour"]),
                "worst batch class %": mean_interval(100 * mine["batch"]),
                "GPU-hours": mean_interval(mine["gpu_hours"]),
            }
        )
        row: dict[str, Any] = {"policy": name}
        for one in (PLANNER, PUPIL):
            apart = rewards[one] - rewards[name]
            days = apart.groupby("day").mean()
            row[f"the {one if one == PUPIL else 'planner'} is ahead"] = mean_interval(apart)
            row["by day" if one == PLANNER else "pupil, by day"] = _by_day(apart)
            row["days ahead" if one == PLANNER else "pupil, days"] = (
                f"{(days > 0).sum()} of {len(days)}"
            )
        ahead.append(row)
    means = rewards.groupby("day").mean()
    each = [
        {"day": str(day), **{name: shown(means.loc[day, name]) for name in _shown(rewards)}}
        for day in means.index
    ]
    return {"policies": policies, "ahead": ahead, "each day": each}


def _shown(rewards: DataFrame) -> list[str]:
    """Planner, pupil and the rules that come nearest, the last one the fixed fleet."""
    rules = [name for name in rewards if name not in (PLANNER, PUPIL, "static")]
    return [PLANNER, PUPIL, *rules[:4], "static"]


def plot(frame: DataFrame, parameters: Settings) -> Any:
    """Rewards of each day, and against GPU-hours."""
    figure = new_figure(11.0, 4.2)
    left, right = figure.subplots(1, 2)
    rewards = _rewards(frame)
    days = list(rewards.groupby("day").groups)
    for k, name in enumerate(_shown(rewards)):
        for x, day in enumerate(days):
            mine = rewards.loc[day, name]
            at = x + 0.11 * (k - 3)
            left.plot(np.full(len(mine), at), mine, ".", color=f"C{k}", alpha=0.4)
            left.plot(
                at, mine.mean(), "_", color=f"C{k}", ms=12, mew=2, label=name if x == 0 else None
            )
        who, _, rest = name.partition(" at ")
        mine = where(frame, who=who, setting=AT_TARGET if rest else TUNED)
        right.plot(mine["gpu_hours"].mean(), 100 * mine["worst_hour"].mean(), "o", color=f"C{k}")
        right.annotate(
            name,
            (mine["gpu_hours"].mean(), 100 * mine["worst_hour"].mean()),
            textcoords="offset points",
            xytext=(5, 3),
            fontsize=8,
        )
    left.set_xticks(range(len(days)), [f"day {day}" for day in days])
    left.set_ylabel("reward of a day")
    left.grid(alpha=0.3, axis="y")
    left.legend(fontsize=8)
    right.set_xlabel("GPU-hours of a day")
    right.set_ylabel("interactive on time in the worst hour (%)")
    right.margins(0.2)
    return figure


@claimed
def claims(frame: DataFrame, parameters: Settings) -> Iterator[Claim]:
    """What issue 30 set out to show, on whole days."""
    rewards = _rewards(frame)
    rules = [_at_its_best(rewards, rule) for rule in RULES]
    best = max(rules, key=lambda name: rewards[name].mean())
    for one, name in ((PLANNER, "planner"), (PUPIL, "pupil")):
        yield every(
            f"On whole days the {name} has more reward than every rule at its best",
            [more(f"than {rule}", 0.0, _by_day(rewards[one] - rewards[rule])) for rule in rules],
            unit="of reward",
            note="Paired, over the means of each day.",
        )
        yield every(
            f"On whole days the {name} has no less reward than every rule at its best",
            [less(f"than {rule}", SAME, _by_day(rewards[rule] - rewards[one])) for rule in rules],
            unit="of reward less",
            setting=SAME_WORDS.format("one", "a day"),
        )
    gain = rewards[PLANNER] - rewards[best]
    yield more(
        "The pupil keeps four fifths of what the planner gains on the best rule",
        0.0,
        _by_day(rewards[PUPIL] - rewards[best] - 0.8 * gain),
        unit="of reward beyond four fifths",
    )
