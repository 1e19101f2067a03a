"""Which setting of a policy is used on a test workload, by validation alone.

A learned policy may have been trained several times with several prices (or for several workloads). Which of
these trainings is used is decided in validation, and so is which quantile of which network: a network of one
price has nothing to do with the one of another that happens to have the same seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from experiments.learned.matched import TARGET, Settings, at_target
from experiments.learned.protocol import ANY_OF_VALIDATION, CLASSES, trained_as

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Choice:
    """The setting of a policy for a test workload, by validation windows alone.

    Attributes:
        settings: labels, by network; one of a policy that was not trained.
        reaches: whether all kept the target in validation; else those that do not came nearest.
        attainment, gpu_hours: in validation, of the worst class and in the mean, mean over networks.
    """

    settings: tuple[str, ...]
    reaches: bool
    attainment: float
    gpu_hours: float

    def __str__(self) -> str:
        """The settings; of networks that are read in different ways, what they share and then each."""
        if len(set(self.settings)) == 1:
            return self.settings[0]
        shared = trained_as(self.settings[0])
        each = [name.removeprefix(shared).rpartition(" ")[2] or "own" for name in self.settings]
        return f"{shared}, quantiles {' '.join(each)}"


def episodes_of(frame: DataFrame) -> DataFrame:
    """Rows of episodes."""
    return frame[frame["kind"] == "policy"]


def settings_of(
    frame: DataFrame, policy: str, base: str, workload: str, trained: str | None = None
) -> Settings:
    """Everything that a policy did on a workload, setting by setting.

    Settings that lack training seeds of the one that has the most are left out, and named in
    `Settings.left_out`: leaving out the seeds would leave out what is known of them.

    Args:
        frame: rows of episodes.
        policy: its name.
        base: what its knob turns around.
        workload: name.
        trained: settings of one training alone (`trained_as`); None: all.

    Raises:
        ValueError: there are no such rows.
    """
    rows = rows_of(frame, policy, base, workload)
    if trained is not None:
        rows = rows[rows["setting"].map(trained_as) == trained]
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


def trainings_in(settings: Settings) -> list[str]:
    """Those of a learned policy that have all training seeds."""
    return list(dict.fromkeys(trained_as(label) for label in settings.labels))


def choose_training(
    frame: DataFrame, policy: str, base: str, validated_on: Sequence[str], target: float = TARGET
) -> str:
    """Of a learned policy's trainings the one whose networks need least at the target in validation.

    Each network matched by itself, as in the test: first as few as possible that miss the target, then the
    fewest GPU-hours of those that keep it, then the most attainment. Means over the workloads of validation.

    Raises:
        ValueError: as `settings_of`.
    """
    names = trainings_in(settings_of(frame, policy, base, validated_on[0]))

    def rank(trained: str) -> tuple[int, float, float]:
        _, share, hours = _in_validation(frame, policy, base, validated_on, trained)
        found = [at_target(a, h, target) for a, h in zip(share, hours, strict=True)]
        kept = [one for one in found if not np.isnan(one)]
        most = float(share.max(axis=1).mean())
        return len(found) - len(kept), float(np.mean(kept)) if kept else np.inf, -most

    return min(names, key=rank)


def choose(
    frame: DataFrame,
    policy: str,
    base: str,
    validated_on: Sequence[str],
    target: float = TARGET,
    trained: str | None = None,
) -> Choice:
    """The cheapest setting that keeps every class at the target in validation, else the nearest to it.

    Means over the workloads of validation, each with the same weight. Of a policy that was trained, network
    by network.

    Raises:
        ValueError: as `settings_of`.
    """
    labels, share, hours = _in_validation(frame, policy, base, validated_on, trained)
    best = []
    for a, h in zip(share, hours, strict=True):
        reaches = np.flatnonzero(a >= target - 1e-12)
        best.append(int(reaches[np.argmin(h[reaches])]) if len(reaches) else int(np.argmax(a)))
    networks = np.arange(len(best))
    return Choice(
        tuple(labels[k] for k in best),
        bool((share[networks, best] >= target - 1e-12).all()),
        float(share[networks, best].mean()),
        float(hours[networks, best].mean()),
    )


def _in_validation(
    frame: DataFrame, policy: str, base: str, validated_on: Sequence[str], trained: str | None
) -> tuple[tuple[str, ...], NDArray[np.float64], NDArray[np.float64]]:
    """Labels (K,), and (networks, K) attainment of the worst class and GPU-hours, means over workloads."""
    found = [settings_of(frame, policy, base, name, trained) for name in validated_on]
    share = np.mean([s.attainment.mean(axis=3) for s in found], axis=0).min(axis=1)
    hours = np.mean([s.gpu_hours.mean(axis=2) for s in found], axis=0)
    return found[0].labels, share.T, hours.T


def chosen_rows(
    frame: DataFrame, policy: str, base: str, workload: str, choice: Choice, seeds: Sequence[int]
) -> DataFrame:
    """Episodes of a policy on a workload, each network at the setting that was chosen for it."""
    rows = rows_of(frame, policy, base, workload)
    of = dict(zip(seeds, choice.settings, strict=True))
    return rows[rows["setting"] == rows["training_seed"].map(of)]


def training_of(policy: str, base: str, trained: str) -> str:
    """Which training the seeds of a policy are of: networks made for several workloads are several."""
    return f"{policy}, {trained if base == ANY_OF_VALIDATION else f'{base}, {trained}'}"


def by_seed(rows: DataFrame, column: str) -> NDArray[np.float64]:
    """(training seeds, windows) of a column of one policy's rows at one setting on one workload."""
    return rows.pivot(index="training_seed", columns="window", values=column).to_numpy(np.float64)
