"""Whole test days: planner, pupil, and every rule with searched settings.

All play the same days from midnight to midnight, each of four test days with several draws of its requests.
No search and no training has seen them. Rules have the settings found for reward, and those found for the
fewest GPU-hours at 99 % of every class on time. The "worst hour" is the hour of arrival with the least share
of interactive requests on time, the "worst batch class" that with the least share. Both are means over days.

Intervals are of two kinds. Those over draws are about these four days: what other requests would have made
of them. Those by day take the mean of each day as one value, and are about days like these. Statements are
judged by the second. They are the least that one must doubt, as the days follow each other and share their
seconds with training days. A rule "at its best" has whichever of its settings has more reward here. One draw
of each day was known when this study was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from agents.evaluate import make_policies
from agents.statistics import Interval, mean_interval, shown
from experiments.harness.claims import Claim, every, less, more
from experiments.harness.figure import Grid, claimed, where
from experiments.harness.parameters import Parameters, ours
from experiments.learned.players import (
    AT_TARGET,
    ENV,
    NAMES,
    PLANNER,
    PUPIL,
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
SHOWN = 5
SAME = 0.5
SAME_WORDS = "by 0.5 at most, 2 % of the reward of a day"


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
    shares = {c.name: made.summary[f"{c.name}/slo_attainment"] for c in scenario.classes}
    mine = where(made.requests, slo_class=INTERACTIVE)
    # Cut off at midnight, so in the last seconds alone.
    mine = mine[mine["outcome"] != "unfinished"]
    by_hour = (mine["outcome"] == "on_time").groupby(mine["arrival_s"] // HOUR_S).mean()
    rng = np.random.default_rng(case["seed"])
    day = day_drawn(scenario.workload, scenario.horizon_s, rng)
    return [
        {
            "day": None if day is None else day + 1,  # as `options={"day": ...}` of a reset counts
            "reward": made.summary["reward"],
            "gpu_hours": made.summary["gpu_hours"],
            "interactive": shares.pop(INTERACTIVE),
            "worst_hour": float(by_hour.min()),
            "batch": min(shares.values()),
        }
    ]


def _named(frame: DataFrame) -> DataFrame:
    """With the column `policy`, as tables call it."""
    at_target = frame["setting"] == AT_TARGET
    return frame.assign(policy=frame["who"].where(~at_target, frame["who"] + f" {AT_TARGET}"))


def _rewards(frame: DataFrame) -> DataFrame:
    """A row per day and seed, a column per policy, the best one first."""
    named = _named(frame)
    rewards = named.pivot(index=["day", "seed"], columns="policy", values="reward").astype(float)
    return rewards[rewards.mean().sort_values(ascending=False).index]


def _over_draws(values: Series) -> Interval:
    """About these days: what differs between their means is no chance."""
    days = values.groupby("day")
    return mean_interval(values - days.transform("mean") + days.mean().mean())


def _by_day(values: Series) -> Interval:
    """Over the means of each day."""
    return mean_interval(values.groupby("day").mean())


def _at_their_best(rewards: DataFrame) -> list[str]:
    """Of each rule whichever of its settings has more reward, the best rule first."""
    found: dict[str, str] = {}
    for name in rewards:
        rule = str(name).removesuffix(f" {AT_TARGET}")
        if rule not in NAMES:
            found.setdefault(rule, str(name))
    return list(found.values())


def tables(frame: DataFrame, parameters: Settings) -> dict[str, list[dict[str, Any]]]:
    """Every policy, how far planner and pupil are ahead of it, and each day."""
    rewards, named = _rewards(frame), _named(frame)
    policies, ahead = [], []
    for name in rewards:
        mine = where(named, policy=name).set_index(["day", "seed"])
        policies.append(
            {
                "policy": name,
                "reward": _over_draws(mine["reward"]),
                "interactive %": _over_draws(100 * mine["interactive"]),
                "worst hour %": _over_draws(100 * mine["worst_hour"]),
                "worst batch class %": _over_draws(100 * mine["batch"]),
                "GPU-hours": _over_draws(mine["gpu_hours"]),
            }
        )
        row: dict[str, Any] = {"policy": name}
        for who, called in NAMES.items():
            apart = rewards[who] - rewards[name]
            row |= {
                f"{called} ahead": _over_draws(apart) if who != name else "",
                f"{called} ahead, by day": _by_day(apart) if who != name else "",
                f"{called}, days": _days_ahead(apart) if who != name else "",
            }
        ahead.append(row)
    means = rewards.groupby("day").mean()
    compared = [*NAMES, *_at_their_best(rewards)[:SHOWN]]
    each = [
        {"day": str(day), **{name: shown(means.loc[day, name]) for name in compared}}
        for day in means.index
    ]
    return {"policies": policies, "ahead": ahead, "rewards": each}


def _days_ahead(apart: Series) -> str:
    days = apart.groupby("day").mean()
    return f"{(days > 0).sum()} of {len(days)}"


def plot(frame: DataFrame, parameters: Settings) -> Any:
    """Rewards of each day, and GPU-hours with the worst hour."""
    figure = new_figure(11.0, 4.2)
    left, right = figure.subplots(1, 2)
    rewards, named = _rewards(frame), _named(frame)
    days = list(rewards.groupby("day").groups)
    for k, name in enumerate([*NAMES, *_at_their_best(rewards)[:SHOWN]]):
        for x, day in enumerate(days):
            mine = rewards.loc[day, name]
            at = x + 0.11 * (k - 3)
            left.plot(np.full(len(mine), at), mine, ".", color=f"C{k}", alpha=0.4)
            label = name if x == 0 else None
            left.plot(at, mine.mean(), "_", color=f"C{k}", ms=12, mew=2, label=label)
        means = where(named, policy=name)[["gpu_hours", "worst_hour"]].mean()
        place = means["gpu_hours"], 100 * means["worst_hour"]
        right.plot(*place, "o", color=f"C{k}")
        right.annotate(name, place, textcoords="offset points", xytext=(5, 3), fontsize=8)
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
    rules = _at_their_best(rewards)
    for who, name in NAMES.items():
        apart = {rule: rewards[who] - rewards[rule] for rule in rules}
        ahead = [
            more(
                f"than {rule}",
                0.0,
                _by_day(by),
                unit="of reward",
                note=f"on {_days_ahead(by)} days",
            )
            for rule, by in apart.items()
        ]
        behind = [
            less(f"than {rule}", SAME, _by_day(-by), unit="of reward less", setting=SAME_WORDS)
            for rule, by in apart.items()
        ]
        # The rule that is hardest to beat comes first, so that it is the one that is shown.
        yield every(
            f"On whole days the {name} has more reward than every rule at its best",
            sorted(ahead, key=lambda part: part.ours.low),
        )
        yield every(
            f"On whole days the {name} has no less reward than every rule at its best",
            sorted(behind, key=lambda part: -part.ours.high),
            setting=SAME_WORDS,
        )
    gain = rewards[PLANNER] - rewards[rules[0]]
    kept = rewards[PUPIL] - rewards[rules[0]]
    yield every(
        "On whole days the planner gains on the best rule, and the pupil keeps four fifths of it",
        [
            more("gained", 0.0, _by_day(gain), unit="of reward"),
            more("kept beyond four fifths", 0.0, _by_day(kept - 0.8 * gain), unit="of reward"),
        ],
    )
