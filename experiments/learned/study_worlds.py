"""Planner, pupil, and rules with searched settings: hours at matched 99 %, and worlds not as believed.

All play the same two-hour windows, as many of each test day. On "the world" each is run at several settings,
and judged by the GPU-hours that it needs for 99 % of every class (`experiments.learned.matched`). "inf" is
where no setting has them, in all windows or in some resamples of these. Rules have the settings found for
reward, the same with one knob turned, those found for the fewest GPU-hours at 99 %, and the published ones.
The planner has other prices of a late request, which are what it weighs GPUs against, and the network that
ships other quantiles of its instance counts. Batch classes count by the worst one of each window, which asks
a little more than 99 % of each.

Then the world is another than everybody believes: iterations take 20 % longer, an instance serves twice as
long after its order, or what is shown is 30 s old. How much reward does each lose? "bursts" has the
same test days with the bursts of `mixed-slo-bursty`, for which the rules were searched anew (on its training
days), and planner and pupil were not. `learned-days` has the days as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, every, less, more
from experiments.harness.figure import Grid, claimed, where, wide
from experiments.harness.parameters import Parameters, ours
from experiments.learned.matched import Floats, difference, interval, matched_hours
from experiments.learned.players import (
    AT_TARGET,
    ENV,
    NAMES,
    PLANNER,
    PUBLISHED,
    PUPIL,
    TUNED,
    policy_named,
)
from experiments.output import new_figure
from llmscale_env.control.reward import even_seeds
from llmscale_env.scenarios import Scenario, load_scenario

if TYPE_CHECKING:
    from pandas import DataFrame

NAME = "learned-worlds"
FIGURE = "Worlds"
RULES = ("paced", "chiron", "static")
ALL = (*NAMES, *RULES)
THE_WORLD, BURSTS = "the world", "bursts"
WRONG: dict[str, dict[str, Any]] = {
    "iterations 20 % slower": {"fleet.pools.*.time_factor": 1.2},
    "starts twice as long": {
        "fleet.pools.*.load_time_factor": 2.0,
        "fleet.pools.*.acquire_time_factor": 2.0,
    },
    "metrics 30 s late": {"metric_delay_s": 30},
}
SAME = 0.1
SAME_WORDS = "by 0.1 at most, 5 % of the reward of a window"
KNOBS = {"paced": "spare={}", "chiron": "theta={}", "static": "mixed={}"}
TURNED = {"paced": (4, 5, 6), "chiron": (0.5, 0.4, 0.3), "static": (7, 8, 11)}
"""Of the settings for reward, which have 2.89, 0.798 and 9."""
LATE_PRICES = (2.0, 4.0, 8.0)
"""Settings of the planner; 2 is its default."""
QUANTILES = (0.5, 0.65, 0.75, 0.8, 0.85, 0.875, 0.9)
"""Settings of the pupil; 0.65 is its default. Far beyond 0.9 it fills pools that it leaves empty."""
USUAL = (TUNED, "2", "0.65")


class Settings(Parameters):
    """Attributes are explained where they are declared."""

    workload: Annotated[str, ours("days that nobody was tuned on")] = "mixed-slo/test-hours"
    horizon_s: Annotated[float, ours("of a window; 0: the environment's", ge=0)] = 0.0


PARAMETERS = {
    "quick": Settings(seeds=2, horizon_s=900.0),
    "paper": Settings(seeds=12),
}


def _players(parameters: Settings, case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Who plays in the world of a case, with which settings."""
    if case["world"] != THE_WORLD:
        return [{"who": who, "setting": TUNED} for who in ALL]
    ours = [{"who": PLANNER, "setting": f"{price:g}"} for price in LATE_PRICES]
    ours += [{"who": PUPIL, "setting": f"{quantile:g}"} for quantile in QUANTILES]
    rules = [
        {"who": who, "setting": setting}
        for who in RULES
        for setting in (TUNED, AT_TARGET, PUBLISHED)
    ]
    # As it is named: see `policy_named`.
    turned = [
        {"who": f"{who}-tuned:{KNOBS[who].format(value)}", "setting": PUBLISHED}
        for who in RULES
        for value in TURNED[who]
    ]
    return ours + rules + turned


def _scenario(world: str, workload: str, horizon_s: float) -> Scenario:
    """What is played; a horizon of 0 is the environment's."""
    changes = dict(WRONG.get(world, {}))
    if horizon_s:
        changes["horizon_s"] = horizon_s
    if world == BURSTS:
        days = load_scenario(ENV, workload=workload).workload.day_arrivals[0].days
        arrivals = {f"workload.streams.{s}.arrivals.days": days for s in ("chat", "code")}
        return load_scenario("mixed-slo-bursty", **arrivals, **changes)
    return load_scenario(ENV, workload=workload, **changes)


def _seeds(parameters: Settings, case: Mapping[str, Any]) -> list[int]:
    """As many windows of every day."""
    first, *_ = seeds = parameters.seed_list()
    scenario = _scenario(case["world"], parameters.workload, parameters.horizon_s)
    return even_seeds(scenario, first, len(seeds), any_time=True)


cases = Grid(
    {"world": (THE_WORLD, *WRONG, BURSTS), "player": _players, "seed": _seeds},
    keep=("workload", "horizon_s"),
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A window under one of them."""
    from agents.evaluate import make_policies
    from llmscale_env.control.run import run_episode

    scenario = _scenario(case["world"], case["workload"], case["horizon_s"])
    (policy,) = make_policies(policy_named(case["who"], case["setting"]), ENV, scenario)
    made: dict[str, Any] = run_episode(policy, scenario, case["seed"]).summary
    shares = [made.get(f"{c.name}/slo_attainment", np.nan) for c in scenario.classes]
    return [
        {
            "reward": made["reward"],
            "gpu_hours": made["gpu_hours"],
            "interactive": shares[0],
            # Nobody of a class: nobody is late.
            "batch": float(np.min(np.nan_to_num(np.array(shares[1:], float), nan=1.0))),
        }
    ]


def _settings_of(frame: DataFrame, who: str) -> DataFrame:
    """Rows on the world of a policy, at every setting, whose words say the knob where it was turned."""
    mine = where(frame, world=THE_WORLD)
    mine = mine[mine["who"].str.partition("-")[0] == who]
    knob = mine["who"].str.partition(":")[2]
    return mine.assign(setting=mine["setting"].where(knob == "", knob))


def _matched(frame: DataFrame, who: str) -> tuple[float, Floats]:
    mine = _settings_of(frame, who)
    hours = wide(mine, "setting", "gpu_hours").to_numpy().T
    shares = [wide(mine, "setting", name).to_numpy().T for name in ("interactive", "batch")]
    return matched_hours(hours, np.stack(shares, axis=1))


def _usual(frame: DataFrame, world: str, value: str) -> DataFrame:
    """A row per window, a column per policy with its usual settings."""
    mine = where(frame, world=world)
    return wide(mine[mine["setting"].isin(USUAL)], "who", value)


def tables(frame: DataFrame, parameters: Settings) -> dict[str, list[dict[str, Any]]]:
    """Hours at matched attainment, every setting, and every world."""
    found = {who: _matched(frame, who) for who in ALL}
    matched = [
        {
            "policy": who,
            "GPU-hours at 99 %": interval(*found[who]),
            "the planner needs more": difference(found[PLANNER], found[who]),
        }
        for who in found
    ]
    settings = [
        {
            "policy": who,
            "setting": setting,
            "reward": mean_interval(mine["reward"]),
            "interactive %": mean_interval(100 * mine["interactive"]),
            "worst batch class %": mean_interval(100 * mine["batch"]),
            "GPU-hours": mean_interval(mine["gpu_hours"]),
        }
        for who in ALL
        for setting, mine in _settings_of(frame, who).groupby("setting", sort=False)
    ]
    worlds = []
    usual = _usual(frame, THE_WORLD, "reward")
    for world in dict.fromkeys(frame["world"]):
        rewards = _usual(frame, world, "reward")
        on_time = _usual(frame, world, "interactive")
        for who in ALL:
            row: dict[str, Any] = {
                "world": world,
                "policy": who,
                "reward": mean_interval(rewards[who]),
                "the planner is ahead": mean_interval(rewards[PLANNER] - rewards[who]),
                "interactive %": mean_interval(100 * on_time[who]),
            }
            if world in WRONG:
                row["loses"] = mean_interval(usual[who] - rewards[who])
            worlds.append(row)
    return {"matched": matched, "settings": settings, "worlds": worlds}


def plot(frame: DataFrame, parameters: Settings) -> Any:
    """Settings as points, and rewards by world."""
    figure = new_figure(11.0, 4.2)
    left, right = figure.subplots(1, 2)
    for k, who in enumerate(ALL):
        mine = _settings_of(frame, who)
        means = mine.groupby("setting")[["interactive", "batch", "gpu_hours"]].mean()
        worst = 100 * means[["interactive", "batch"]].min(axis=1)
        left.plot(worst, means["gpu_hours"], "o", color=f"C{k}", label=who)
        hours = _matched(frame, who)[0]
        if np.isfinite(hours):
            left.plot(99, hours, "_", color=f"C{k}", ms=16, mew=2)
    left.axvline(99, color="0.7", lw=1)
    left.set_xlim(94, 100)
    left.set_xlabel("on time, worst class (%); bars: hours at 99 %")
    left.set_ylabel("GPU-hours of a window")
    left.legend()
    worlds = list(dict.fromkeys(frame["world"]))
    for k, who in enumerate(ALL):
        found = [mean_interval(_usual(frame, world, "reward")[who]) for world in worlds]
        x = np.arange(len(worlds)) + 0.15 * (k - 2)
        right.vlines(x, [i.low for i in found], [i.high for i in found], color=f"C{k}")
        right.plot(x, [i.mean for i in found], "o", color=f"C{k}", label=who)
    right.set_xticks(
        range(len(worlds)), [world.replace(" ", "\n", 1) for world in worlds], fontsize=8
    )
    right.set_ylabel("reward of two hours")
    right.grid(alpha=0.3, axis="y")
    return figure


@claimed
def claims(frame: DataFrame, parameters: Settings) -> Iterator[Claim]:
    """What issue 30 set out to show."""
    found = {who: _matched(frame, who) for who in ALL}
    usual = _usual(frame, THE_WORLD, "reward")
    best = max(RULES, key=lambda who: usual[who].mean())
    bursts = _usual(frame, BURSTS, "reward")
    for who, name in NAMES.items():
        yield every(
            f"With 99 % of every class on time the {name} needs fewer GPU-hours than every tuned rule",
            [less(f"than {rule}", 0.0, difference(found[who], found[rule])) for rule in RULES],
            unit="GPU-hours more",
        )
        yield every(
            f"The {name} has no less reward than every tuned rule",
            [less(f"than {rule}", SAME, mean_interval(usual[rule] - usual[who])) for rule in RULES],
            unit="of reward less",
            setting=SAME_WORDS,
        )
        for world in WRONG:
            lost = usual - _usual(frame, world, "reward")
            yield less(
                f"With {world} the {name} loses no more reward than {best}",
                SAME,
                mean_interval(lost[who] - lost[best]),
                unit="of reward more",
                setting=SAME_WORDS,
            )
        yield every(
            f"With more bursts the {name} has more reward than every rule searched there",
            [
                more(f"than {rule}", 0.0, mean_interval(bursts[who] - bursts[rule]))
                for rule in RULES
            ],
            unit="of reward",
        )
