"""From rows to tables: which setting a policy is given, what it does on the test windows, who wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agents.statistics import Interval
from experiments.learned.matched import TARGET, Matched, Settings, matched_hours
from experiments.learned.protocol import CLASSES
from experiments.learned.statistics import improvement_interval, stratified_interval

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Choice:
    """The setting of a policy for a test workload, by validation windows alone.

    Attributes:
        setting: its label.
        reaches: whether it kept the target in validation; else it is the one that came nearest.
        attainment, gpu_hours: in validation, of the worst class and in the mean.
    """

    setting: str
    reaches: bool
    attainment: float
    gpu_hours: float


def episodes_of(frame: DataFrame) -> DataFrame:
    """Rows of episodes."""
    return frame[frame["kind"] == "policy"]


def settings_of(frame: DataFrame, policy: str, base: str, workload: str) -> Settings:
    """Everything that a policy did on a workload, setting by setting.

    Settings that lack training seeds of the one that has the most are left out, and named in
    `Settings.left_out`: leaving out the seeds would leave out what is known of them.

    Args:
        frame: rows of episodes.
        policy: its name.
        base: what its knob turns around.
        workload: name.

    Raises:
        ValueError: there are no such rows.
    """
    rows = rows_of(frame, policy, base, workload)
    if rows.empty:
        raise ValueError(f"{policy} on {workload}: there are no rows")
    with_seeds = {
        str(name): {int(k) for k in part["training_seed"]}
        for name, part in rows.groupby("setting", sort=False)
    }
    most = max(len(found) for found in with_seeds.values())
    seeds = next(sorted(found) for found in with_seeds.values() if len(found) == most)
    labels = [name for name, found in with_seeds.items() if found >= set(seeds)]
    left_out = [name for name in with_seeds if name not in labels]
    windows = sorted(set(rows["window"]))
    at = rows.set_index(["setting", "training_seed", "window"])

    def table(column: str) -> NDArray[np.float64]:
        return np.array(
            [[[float(at.at[(s, k, w), column]) for w in windows] for k in seeds] for s in labels]
        )

    attainment = np.stack([table(f"{c}_attainment") for c in CLASSES], axis=1)
    return Settings(tuple(labels), table("gpu_hours"), attainment, tuple(seeds), tuple(left_out))


def rows_of(
    frame: DataFrame, policy: str, base: str, workload: str, setting: str | None = None
) -> DataFrame:
    """Episodes of a policy on a workload, at one setting or all."""
    mine = (frame["policy"] == policy) & (frame["workload"] == workload) & (frame["base"] == base)
    return frame[mine if setting is None else mine & (frame["setting"] == setting)]


def base_on(frame: DataFrame, policy: str, workload: str) -> str:
    """What a policy's knob turned around on a workload of the test.

    Raises:
        ValueError: several things, of which only one could be judged.
    """
    rows = frame[(frame["policy"] == policy) & (frame["workload"] == workload)]
    bases = list(dict.fromkeys(rows["base"]))
    if len(bases) != 1:
        raise ValueError(f"{policy} on {workload}: has the bases {bases}; must be one")
    return str(bases[0])


def choose(
    frame: DataFrame, policy: str, base: str, validated_on: tuple[str, ...], target: float = TARGET
) -> Choice:
    """The cheapest setting that keeps every class at the target in validation, else the nearest to it.

    Means over the workloads of validation, each with the same weight.

    Raises:
        ValueError: as `settings_of`.
    """
    found = [settings_of(frame, policy, base, name) for name in validated_on]
    labels = found[0].labels
    share = np.mean([s.attainment.mean(axis=(2, 3)) for s in found], axis=0).min(axis=1)
    hours = np.mean([s.points()[1] for s in found], axis=0)
    reaches = np.flatnonzero(share >= target - 1e-12)
    best = int(reaches[np.argmin(hours[reaches])]) if len(reaches) else int(np.argmax(share))
    return Choice(labels[best], len(reaches) > 0, float(share[best]), float(hours[best]))


def bounds_of(frame: DataFrame, workload: str) -> dict[int, float]:
    """GPU-hours of the clairvoyant bound by window.

    Where even foresight does not keep the target, that of the most attainment that was tried and is possible;
    NaN: none was.
    """
    found: dict[int, float] = {}
    for row in _bounds(frame, workload):
        hours = row["bound_gpu_hours"]
        found.setdefault(int(row["window"]), float("nan"))
        if hours is not None and not np.isnan(hours):
            found[int(row["window"])] = float(hours)
    return found


def impossible(frame: DataFrame, workload: str) -> list[int]:
    """Windows in which even foresight does not keep the target."""
    rows = _bounds(frame, workload)
    most = max((row.get("attainment", 0.0) for row in rows), default=0.0)
    return [
        int(row["window"])
        for row in rows
        if row.get("attainment", 0.0) == most
        if row["bound_gpu_hours"] is None or np.isnan(row["bound_gpu_hours"])
    ]


def _bounds(frame: DataFrame, workload: str) -> list[dict[str, Any]]:
    """Rows of bounds, those of the most attainment last."""
    rows = frame[(frame["kind"] == "bound") & (frame["workload"] == workload)]
    made = [{str(k): v for k, v in row.items()} for row in rows.to_dict("records")]
    return sorted(made, key=lambda row: row.get("attainment", 0.0))


@dataclass(frozen=True)
class Standing:
    """A policy on a test workload.

    Attributes:
        policy, workload, learned, base: names.
        choice: of its setting; None where nothing was validated.
        attainment: by class, mean over test windows at that setting.
        gpu_hours: mean and interval at that setting.
        distance: GPU-hours over the bound, likewise, on windows that have one.
        at_target: GPU-hours at the target (`experiments.learned.matched`).
        matched_distance: of that, over the mean bound of all windows.
        at_edge: the cheapest setting reaches the target, so a lower one might do so for less.
        best_attainment: of the worst class, at the setting that comes nearest to 1.
        seeds, left_out: training seeds, and settings that lack some of them.
        others: `reward`, `violations`, `rejected`, `ttft_s_p99`, `itl_s_p99`, `scaling_actions` (means),
            `worst_window` (attainment of the worst class in the worst window).
    """

    policy: str
    workload: str
    learned: bool
    base: str
    choice: Choice | None
    attainment: dict[str, float]
    gpu_hours: Interval
    distance: Interval
    at_target: Matched
    matched_distance: float
    at_edge: bool
    best_attainment: float
    seeds: tuple[int, ...]
    left_out: tuple[str, ...]
    others: dict[str, float]

    @property
    def matched(self) -> Interval:
        """`at_target.interval`."""
        return self.at_target.interval

    def shortfall(self, target: float) -> str:
        """Why there is no `matched`, in a few words: nobody reaches the target, or not every network does."""
        alone = self.at_target.by_seed
        reach = int((~np.isnan(alone)).sum())
        if reach:
            return f"{reach} of {len(alone)} networks reach {target:.0%}"
        return f"never {target:.0%}; best {100 * self.best_attainment:.2f} %"


_MEANS = ("reward", "violations", "rejected", "ttft_s_p99", "itl_s_p99", "scaling_actions")


def standings(
    frame: DataFrame,
    validated_on: Mapping[str, tuple[str, ...]],
    target: float = TARGET,
    *,
    resamples: int = 2000,
) -> list[Standing]:
    """Every policy on every test workload.

    Args:
        frame: rows of episodes and bounds.
        validated_on: by test workload, the workloads by which settings are chosen.
        target: attainment of every class.
        resamples: of the bootstrap.
    """
    rows = episodes_of(frame)
    found = []
    for workload in dict.fromkeys(rows.loc[rows["split"] == "test", "workload"]):
        bounds = bounds_of(frame, workload)
        for policy in dict.fromkeys(rows.loc[rows["workload"] == workload, "policy"]):
            base = base_on(rows, policy, workload)
            found.append(
                _standing(
                    rows, policy, base, workload, validated_on[workload], bounds, target, resamples
                )
            )
    return found


def _standing(
    rows: DataFrame,
    policy: str,
    base: str,
    workload: str,
    validated_on: tuple[str, ...],
    bounds: Mapping[int, float],
    target: float,
    resamples: int,
) -> Standing:
    every = settings_of(rows, policy, base, workload)
    share, dearness = every.points()
    learned = bool(rows_of(rows, policy, base, workload)["learned"].iloc[0])
    training = training_of(policy, base) if learned else None
    at = matched_hours(every, workload, target, training=training, resamples=resamples)
    choice = choose(rows, policy, base, validated_on, target)
    mine = rows_of(rows, policy, base, workload, choice.setting)
    mine = mine[mine["training_seed"].isin(every.seeds)]
    hours = by_seed(mine, "gpu_hours")
    how: Any = {
        "trainings": None if training is None else {workload: training},
        "resamples": resamples,
    }
    windows = sorted(set(mine["window"]))
    bound = np.array([bounds.get(int(w), np.nan) for w in windows])
    known = ~np.isnan(bound)
    nothing = Interval(np.nan, np.nan, np.nan)
    classes = [f"{c}_attainment" for c in CLASSES]
    mean_bound = float(np.mean(bound[known])) if known.all() and len(known) else float("nan")
    return Standing(
        policy,
        workload,
        learned,
        base,
        choice,
        {c: float(mine[f"{c}_attainment"].mean()) for c in CLASSES},
        stratified_interval({workload: hours}, mean_of, **how),
        stratified_interval({workload: hours[:, known] / bound[known]}, mean_of, **how)
        if known.any()
        else nothing,
        at,
        at.interval.mean / mean_bound,
        bool(share[np.argmin(dearness)] >= target - 1e-12),
        float(share.max()),
        every.seeds,
        every.left_out,
        {
            **{name: float(mine[name].mean()) for name in _MEANS},
            "worst_window": float(mine[classes].min(axis=1).min()),
        },
    )


def training_of(policy: str, base: str) -> str:
    """Which training the seeds of a policy are of: networks made for several workloads are several."""
    return f"{policy}, {base}"


def by_seed(rows: DataFrame, column: str) -> NDArray[np.float64]:
    """(training seeds, windows) of a column of one policy's rows at one setting on one workload."""
    return rows.pivot(index="training_seed", columns="window", values=column).to_numpy(np.float64)


def mean_of(values: Any) -> float:
    """The mean of all values."""
    return float(np.mean(values))


def overall(
    frame: DataFrame, found: list[Standing], against: str | None, *, resamples: int = 2000
) -> list[dict[str, Any]]:
    """Policies over all test workloads, at the settings that validation chose.

    Args:
        frame: rows of episodes and bounds.
        found: `standings`.
        against: the handwritten policy with which every other is compared; None: no comparison.
        resamples: of the bootstrap.

    Returns:
        By policy, with 95 % intervals: interquartile mean of GPU-hours over the bound (where there is one);
        interquartile mean of the reward above that of `against` in the same window, as a share of that of
        `against` on the workload, since rewards of different workloads have different sizes; and the chance
        that a run of it has the better reward than one of `against`.
    """
    rows = episodes_of(frame)
    rewards: dict[str, dict[str, Any]] = {}
    ratios: dict[str, dict[str, Any]] = {}
    trainings: dict[str, dict[str, str]] = {}
    for s in found:
        assert s.choice is not None
        mine = rows_of(rows, s.policy, s.base, s.workload, s.choice.setting)
        mine = mine[mine["training_seed"].isin(s.seeds)]
        bounds = bounds_of(frame, s.workload)
        bound = np.array([bounds.get(int(w), np.nan) for w in sorted(set(mine["window"]))])
        rewards.setdefault(s.policy, {})[s.workload] = by_seed(mine, "reward")
        if s.learned:
            trainings.setdefault(s.policy, {})[s.workload] = training_of(s.policy, s.base)
        known = ~np.isnan(bound)
        if known.any():
            table = by_seed(mine, "gpu_hours")[:, known] / bound[known]
            ratios.setdefault(s.policy, {})[s.workload] = table
    made = []
    for policy, mine in rewards.items():
        row: dict[str, Any] = {"policy": policy, "workloads": len(mine)}
        how: Any = {"trainings": trainings.get(policy), "resamples": resamples}
        if policy in ratios:
            row |= {"GPU-h / bound, IQM": stratified_interval(ratios[policy], **how)}
        if against is not None and against in rewards and policy != against:
            theirs = {workload: rewards[against][workload] for workload in mine}
            gain = {
                w: 100 * (mine[w] - theirs[w].mean(axis=0)) / abs(theirs[w].mean()) for w in mine
            }
            row |= {
                f"reward above {against} %, IQM": stratified_interval(gain, **how),
                f"P(better reward than {against})": improvement_interval(
                    mine, theirs, trainings=trainings.get(policy), resamples=min(resamples, 500)
                ),
            }
        made.append(row)
    return made
