"""From rows to tables: what every policy does on the test windows, at which settings, and who wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.statistics import Interval
from experiments.learned.choices import (
    Choice,
    base_on,
    by_seed,
    choose,
    choose_training,
    chosen_rows,
    episodes_of,
    rows_of,
    settings_of,
    training_of,
)
from experiments.learned.knob_ends import ends_early, low_end
from experiments.learned.matched import TARGET, Matched, matched_hours
from experiments.learned.protocol import CLASSES
from experiments.learned.statistics import improvement_interval, stratified_interval

if TYPE_CHECKING:
    from pandas import DataFrame


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


def mean_bound(frame: DataFrame, workload: str) -> float:
    """Of all windows; NaN where one has none."""
    values = list(bounds_of(frame, workload).values())
    return float(np.mean(values)) if values else float("nan")


def impossible(frame: DataFrame, workload: str) -> list[int]:
    """Windows in which even foresight is proven not to keep the target."""
    rows = _bounds(frame, workload)
    most = max((row.get("attainment", 0.0) for row in rows), default=0.0)
    return [
        int(row["window"])
        for row in rows
        if row.get("attainment", 0.0) == most and row["bound_status"] == "infeasible"
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
        trained: of a learned policy's trainings the one that validation prefers (`trained_as`), of which all
            the rest is; empty for others.
        choice: of its setting, by validation.
        attainment: by class, mean over test windows at that setting.
        gpu_hours: mean and interval at that setting.
        distance: GPU-hours over the bound, likewise, on windows that have one.
        at_target: GPU-hours at the target (`experiments.learned.matched`); pooled: over all trainings.
        matched_distance: of that, over the mean bound of all windows.
        at_edge: the lowest setting of its knob reaches the target for least, so a lower one might for less.
        ends_early: no setting reaches the target, and the highest still needs more than the one before.
        most_gpu_hours: at the setting that needs most.
        best_attainment: of the worst class, at the setting that comes nearest to 1, of the best network.
        seeds, left_out: training seeds, and settings that lack some of them.
        others: `reward`, `violations`, `rejected`, `ttft_s_p99`, `itl_s_p99`, `scaling_actions` (means),
            `worst_window` (attainment of the worst class in the worst window).
    """

    policy: str
    workload: str
    learned: bool
    base: str
    trained: str
    choice: Choice
    attainment: dict[str, float]
    gpu_hours: Interval
    distance: Interval
    at_target: Matched
    matched_distance: float
    at_edge: bool
    ends_early: bool
    most_gpu_hours: float
    best_attainment: float
    seeds: tuple[int, ...]
    left_out: tuple[str, ...]
    others: dict[str, float]

    @property
    def matched(self) -> Interval:
        """`at_target.interval`."""
        return self.at_target.interval

    @property
    def training(self) -> str:
        """Which training its seeds are of (`training_of`)."""
        return training_of(self.policy, self.base, self.trained)

    def shortfall(self, target: float) -> str:
        """Why there is no `matched`, in a few words: nobody reaches the target, or not every network does."""
        alone = self.at_target.by_seed
        reach = int((~np.isnan(alone)).sum())
        if reach:
            return f"{reach} of {len(alone)} networks reach {percent(target)}"
        return f"never {percent(target)}; best {100 * self.best_attainment:.2f} %"


def percent(share: float) -> str:
    """A share as text, with the digits that it has."""
    return f"{100 * share:g}%"


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
    whole = settings_of(rows, policy, base, workload)
    learned = bool(rows_of(rows, policy, base, workload)["learned"].iloc[0])
    trained = choose_training(rows, policy, base, validated_on, target) if learned else None
    every = settings_of(rows, policy, base, workload, trained)
    training = training_of(policy, base, trained) if trained is not None else None
    at = matched_hours(every, workload, target, training=training, pool=whole, resamples=resamples)
    choice = choose(rows, policy, base, validated_on, target, trained)
    mine = chosen_rows(rows, policy, base, workload, choice, every.seeds)
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
    bounded = known.all() and len(known)
    alone = [every.of_seed(k) for k in range(len(every.seeds))]
    return Standing(
        policy=policy,
        workload=workload,
        learned=learned,
        base=base,
        trained=trained or "",
        choice=choice,
        attainment={c: float(mine[f"{c}_attainment"].mean()) for c in CLASSES},
        gpu_hours=stratified_interval({workload: hours}, mean_of, **how),
        distance=stratified_interval({workload: hours[:, known] / bound[known]}, mean_of, **how)
        if known.any()
        else nothing,
        at_target=at,
        matched_distance=at.interval.mean / (float(np.mean(bound)) if bounded else np.nan),
        at_edge=any(low_end(one, target) for one in alone),
        ends_early=not learned and ends_early(every, target),
        most_gpu_hours=float(every.points()[1].max()),
        best_attainment=max(float(one.points()[0].max()) for one in alone),
        seeds=every.seeds,
        left_out=whole.left_out,
        others={
            **{name: float(mine[name].mean()) for name in _MEANS},
            "worst_window": float(mine[classes].min(axis=1).min()),
        },
    )


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
        By policy: on how many workloads it reaches the target at all, and its worst class's attainment on
        the worst of them; then with 95 % intervals the interquartile mean of GPU-hours over the bound (where
        there is one); that of the reward above that of `against` in the same window, as a share of that of
        `against` on the workload, since rewards of different workloads have different sizes; and the chance
        that a run of it has the better reward than one of `against`.
    """
    rows = episodes_of(frame)
    rewards: dict[str, dict[str, Any]] = {}
    ratios: dict[str, dict[str, Any]] = {}
    trainings: dict[str, dict[str, str]] = {}
    for s in found:
        mine = chosen_rows(rows, s.policy, s.base, s.workload, s.choice, s.seeds)
        bounds = bounds_of(frame, s.workload)
        bound = np.array([bounds.get(int(w), np.nan) for w in sorted(set(mine["window"]))])
        rewards.setdefault(s.policy, {})[s.workload] = by_seed(mine, "reward")
        if s.learned:
            trainings.setdefault(s.policy, {})[s.workload] = s.training
        known = ~np.isnan(bound)
        if known.any():
            table = by_seed(mine, "gpu_hours")[:, known] / bound[known]
            ratios.setdefault(s.policy, {})[s.workload] = table
    made = []
    for policy, mine in rewards.items():
        its = [s for s in found if s.policy == policy]
        row: dict[str, Any] = {
            "policy": policy,
            "matched on": f"{sum(not np.isnan(s.matched.mean) for s in its)} of {len(its)}",
            "worst class on worst workload %": 100 * min(min(s.attainment.values()) for s in its),
        }
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
