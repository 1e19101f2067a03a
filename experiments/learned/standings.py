"""From rows to tables: which setting a policy is given, what it does on the test windows, who wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agents.statistics import Interval
from experiments.learned.matched import TARGET, Settings, matched_hours
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


def settings_of(frame: DataFrame, policy: str, base: str | None, workload: str) -> Settings:
    """Everything that a policy did on a workload, setting by setting.

    Training seeds that not all settings have are left out.

    Args:
        frame: rows of episodes.
        policy: its name.
        base: what its knob turns around; None: whatever it is.
        workload: name.

    Raises:
        ValueError: there are no such rows, or no seed that all settings have.
    """
    rows = frame[(frame["policy"] == policy) & (frame["workload"] == workload)]
    rows = rows if base is None else rows[rows["base"] == base]
    if rows.empty:
        raise ValueError(f"{policy} on {workload}: there are no rows")
    labels = list(dict.fromkeys(rows["setting"]))
    seeds = sorted(
        set.intersection(*(set(rows.loc[rows["setting"] == s, "training_seed"]) for s in labels))
    )
    if not seeds:
        raise ValueError(f"{policy} on {workload}: no training seed has all of {labels}")
    windows = sorted(set(rows["window"]))
    at = rows.set_index(["setting", "training_seed", "window"])

    def table(column: str) -> NDArray[np.float64]:
        return np.array(
            [[[float(at.at[(s, k, w), column]) for w in windows] for k in seeds] for s in labels]
        )

    attainment = np.stack([table(f"{c}_attainment") for c in CLASSES], axis=1)
    return Settings(tuple(labels), table("gpu_hours"), attainment)


def base_on(frame: DataFrame, policy: str, workload: str) -> str:
    """What a policy's knob turned around on a workload of the test."""
    rows = frame[(frame["policy"] == policy) & (frame["workload"] == workload)]
    return str(rows["base"].iloc[0])


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
    """GPU-hours of the clairvoyant bound by window; those that nobody can serve are NaN."""
    rows = frame[(frame["kind"] == "bound") & (frame["workload"] == workload)]
    if rows.empty:  # nobody asked for any: there is not even a column
        return {}
    return {
        int(w): float("nan") if b is None else float(b)
        for w, b in zip(rows["window"], rows["bound_gpu_hours"], strict=True)
    }


@dataclass(frozen=True)
class Standing:
    """A policy on a test workload.

    Attributes:
        policy, workload, learned, base: names.
        choice: of its setting; None where nothing was validated.
        attainment: by class, mean over test windows at that setting.
        gpu_hours: mean and interval at that setting.
        distance: GPU-hours over the bound, likewise, on windows that have one.
        matched: GPU-hours at the target (`experiments.learned.matched`).
        matched_distance: of `matched`, over the mean bound of all windows.
        at_edge: every setting reaches the target, so a lower one might still do so for less.
        best_attainment: of the worst class, at the setting that comes nearest to 1.
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
    matched: Interval
    matched_distance: float
    at_edge: bool
    best_attainment: float
    others: dict[str, float]


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
        policies = list(dict.fromkeys(rows.loc[rows["workload"] == workload, "policy"]))
        every = {p: settings_of(rows, p, base_on(rows, p, workload), workload) for p in policies}
        matched = matched_hours(every, target, resamples=resamples)
        bounds = bounds_of(frame, workload)
        for policy in policies:
            found.append(
                _standing(rows, policy, workload, validated_on, every, matched, bounds, target)
            )
    return found


def _standing(
    rows: DataFrame,
    policy: str,
    workload: str,
    validated_on: Mapping[str, tuple[str, ...]],
    every: Mapping[str, Settings],
    matched: Mapping[str, Interval],
    bounds: Mapping[int, float],
    target: float,
) -> Standing:
    base = base_on(rows, policy, workload)
    choice = choose(rows, policy, base, validated_on[workload], target)
    mine = rows[
        (rows["policy"] == policy)
        & (rows["workload"] == workload)
        & (rows["base"] == base)
        & (rows["setting"] == choice.setting)
    ]
    hours = by_seed(mine, "gpu_hours")
    windows = sorted(set(mine["window"]))
    bound = np.array([bounds.get(int(w), np.nan) for w in windows])
    known = ~np.isnan(bound)
    nothing = Interval(np.nan, np.nan, np.nan)
    classes = [f"{c}_attainment" for c in CLASSES]
    mean_bound = float(np.mean(bound[known])) if known.all() and len(known) else float("nan")
    return Standing(
        policy,
        workload,
        bool(mine["learned"].iloc[0]),
        base,
        choice,
        {c: float(mine[f"{c}_attainment"].mean()) for c in CLASSES},
        stratified_interval({workload: hours}, mean_of),
        stratified_interval({workload: hours[:, known] / bound[known]}, mean_of)
        if known.any()
        else nothing,
        matched[policy],
        matched[policy].mean / mean_bound,
        bool((every[policy].points()[0] >= target - 1e-12).all()),
        float(every[policy].points()[0].max()),
        {
            **{name: float(mine[name].mean()) for name in _MEANS},
            "worst_window": float(mine[classes].min(axis=1).min()),
        },
    )


def by_seed(rows: DataFrame, column: str) -> NDArray[np.float64]:
    """(training seeds, windows) of a column of one policy's rows at one setting on one workload."""
    return rows.pivot(index="training_seed", columns="window", values=column).to_numpy(np.float64)


def mean_of(values: Any) -> float:
    """The mean of all values."""
    return float(np.mean(values))


def overall(
    frame: DataFrame, found: list[Standing], against: str | None, column: str = "distance"
) -> list[dict[str, Any]]:
    """Policies over all test workloads, at the settings that validation chose.

    Args:
        frame: rows of episodes and bounds.
        found: `standings`.
        against: the policy whose runs every other's are compared with; None: no comparison.
        column: "distance" (GPU-hours over the bound; over nothing where a window has none).

    Returns:
        By policy: interquartile mean of GPU-hours over the bound and of the reward with 95 % intervals, and
        the chance that a run of it has the better reward than one of `against`.
    """
    rows = episodes_of(frame)
    rewards: dict[str, dict[str, Any]] = {}
    ratios: dict[str, dict[str, Any]] = {}
    for s in found:
        assert s.choice is not None
        mine = rows[
            (rows["policy"] == s.policy)
            & (rows["workload"] == s.workload)
            & (rows["base"] == s.base)
            & (rows["setting"] == s.choice.setting)
        ]
        bounds = bounds_of(frame, s.workload)
        bound = np.array([bounds.get(int(w), np.nan) for w in sorted(set(mine["window"]))])
        rewards.setdefault(s.policy, {})[s.workload] = by_seed(mine, "reward")
        known = ~np.isnan(bound)
        if known.any():
            table = by_seed(mine, "gpu_hours")[:, known] / bound[known]
            ratios.setdefault(s.policy, {})[s.workload] = table
    made = []
    for policy, mine in rewards.items():
        row: dict[str, Any] = {"policy": policy}
        reward = stratified_interval(mine)
        row |= {"reward IQM": reward}
        if policy in ratios:
            row |= {f"{column} IQM": stratified_interval(ratios[policy])}
        if against in rewards and policy != against:
            theirs = {workload: rewards[against][workload] for workload in mine}
            row["P(better reward)"] = improvement_interval(mine, theirs, resamples=500)
        made.append(row)
    return made
