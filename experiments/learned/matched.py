"""GPU-hours at matched attainment: what a policy needs to keep every class at 99 %, whatever its own taste.

Policies weigh GPUs against lateness differently, so equal settings say little. Each is therefore run at
several settings of a knob, and asked: what is the least it needs at 99 %? Between two settings the answer
is interpolated: one of them on some windows, the other on the rest, is a policy too, whose means lie on
the straight line between theirs. So the answer is on the lower edge of the hull of the settings' points
(worst class's attainment, GPU-hours), at the target. For such a mixture the worst class is no worse than the
mean of the two worst, so the answer errs on the safe side.

A policy none of whose settings reaches the target has no answer (NaN), which tables say in words.

Of a policy that was trained several times each network is asked by itself, as each heuristic is, and the
mean over the networks counts: whoever has one network turns the knob of that one. It has no answer where one
of them has none. The other reading, `Matched.pooled`, takes the mean over networks first, setting by setting,
and matches that: what is to be expected of a network whose knob was set before anybody had seen it run.

The least over noisy points is a little too low for all. `Matched.held_out` says how much: mixtures found on
half of the windows, measured on the other half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agents.statistics import Interval
from experiments.learned.statistics import (
    RESAMPLES,
    fewest,
    seed_draws,
    shares,
    t_interval,
    window_draws,
)

Floats = NDArray[np.float64]

TARGET = 0.99


@dataclass(frozen=True)
class Settings:
    """What a policy did on a workload at every setting of its knob.

    Attributes:
        labels: (K,) of the settings.
        gpu_hours: (K, training seeds, windows).
        attainment: (K, classes, training seeds, windows).
        seeds: the training seeds, which all settings have.
        left_out: settings that lack some of them, and are not here.
    """

    labels: tuple[str, ...]
    gpu_hours: Floats
    attainment: Floats
    seeds: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        k = len(self.labels)
        shape = self.gpu_hours.shape
        right = self.attainment.ndim == 4 and self.attainment.shape[2:] == shape[1:]
        if shape[0] != k or self.attainment.shape[0] != k or not right:
            raise ValueError(
                f"{k} labels, gpu_hours {shape}, attainment {self.attainment.shape}: do not fit"
            )

    def points(self) -> tuple[Floats, Floats]:
        """(K,) attainment of the worst class, and (K,) GPU-hours: means over seeds and windows."""
        return self.attainment.mean(axis=(2, 3)).min(axis=1), self.gpu_hours.mean(axis=(1, 2))

    def of_seed(self, k: int) -> Settings:
        """The same of one training seed alone."""
        some = slice(k, k + 1)
        return Settings(self.labels, self.gpu_hours[:, some], self.attainment[:, :, some])


def mixture(share: Floats, hours: Floats, target: float = TARGET) -> Floats | None:
    """(K,) parts of the windows on which each setting is used, so that the target costs least.

    Args:
        share: (K,) attainment.
        hours: (K,) GPU-hours.
        target: that is to be reached.

    Returns:
        At most two parts are above 0; None if no setting reaches the target.
    """
    above = np.flatnonzero(share >= target - 1e-12)
    if not len(above):
        return None
    parts = np.zeros(len(share))
    best = above[np.argmin(hours[above])]
    below = np.flatnonzero(share < target - 1e-12)
    if len(below):
        s0, h0 = share[below][:, None], hours[below][:, None]
        s1, h1 = share[above][None, :], hours[above][None, :]
        part = np.clip((target - s0) / (s1 - s0), 0.0, 1.0)
        mixed = h0 + part * (h1 - h0)
        if mixed.min() < hours[best]:
            i, j = np.unravel_index(np.argmin(mixed), mixed.shape)
            parts[above[j]] = part[i, j]
            parts[below[i]] = 1.0 - part[i, j]
            return parts
    parts[best] = 1.0
    return parts


def at_target(share: Floats, hours: Floats, target: float = TARGET) -> float:
    """GPU-hours of the `mixture` (arguments as there); NaN if no setting reaches the target."""
    parts = mixture(share, hours, target)
    return float("nan") if parts is None else float(parts @ hours)


@dataclass(frozen=True)
class HeldOut:
    """What mixtures that keep the target on one half of the windows do on the other, mean of both ways.

    Attributes:
        gpu_hours, attainment: means over networks and windows, of the worst class. Where no setting reaches
            the target on a half, that which comes nearest is used. NaN where there is one window.
    """

    gpu_hours: float
    attainment: float


def held_out(settings: Settings, target: float = TARGET) -> HeldOut:
    """Every other window, and those between them."""
    _, n_classes, n_seeds, n_windows = settings.attainment.shape
    if n_windows < 2:
        return HeldOut(np.nan, np.nan)
    hours, attained = 0.0, np.zeros(n_classes)
    for k in range(n_seeds):
        for first in (0, 1):
            share = settings.attainment[:, :, k, first::2].mean(axis=2).min(axis=1)
            parts = mixture(share, settings.gpu_hours[:, k, first::2].mean(axis=1), target)
            if parts is None:
                parts = np.eye(len(share))[np.argmax(share)]
            hours += float(parts @ settings.gpu_hours[:, k, 1 - first :: 2].mean(axis=1))
            attained += parts @ settings.attainment[:, :, k, 1 - first :: 2].mean(axis=2)
    n = 2 * n_seeds
    return HeldOut(hours / n, float(attained.min()) / n)


@dataclass(frozen=True)
class Matched:
    """GPU-hours of a policy at the target.

    Attributes:
        interval: mean over the networks (or of a policy that was not trained) and 95 % interval, endless at
            the top where in too many resamples one does not reach the target; NaN: one never does.
        resampled: (resamples,) infinite where the target is not reached. Those of several policies on one
            workload are of the same windows, so they may be subtracted.
        by_seed: (training seeds,) of each alone; NaN: it does not reach the target.
        n: of what there is least to draw from, seeds or windows (`statistics.fewest`).
        pooled: of the means over networks, setting by setting; the same where there is one.
        held_out: on windows by which its settings were not found.
    """

    interval: Interval
    resampled: Floats
    by_seed: Floats
    n: int
    pooled: Interval
    held_out: HeldOut


def matched_hours(
    settings: Settings,
    workload: str = "",
    target: float = TARGET,
    *,
    training: str | None = None,
    pool: Settings | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Matched:
    """GPU-hours at the target on one workload.

    Args:
        settings: of the policy.
        workload: name; policies on the same one meet the same resampled windows.
        target: attainment of every class.
        training: name of the training whose seeds there are; None: the policy is not trained.
        pool: what `Matched.pooled` is of, with the same seeds; None: `settings`.
        resamples, seed: of the bootstrap.
    """
    _, n_seeds, n_windows = settings.gpu_hours.shape
    n = fewest(settings.gpu_hours[0], training is not None)
    by_seed = np.array([at_target(*settings.of_seed(k).points(), target) for k in range(n_seeds)])
    # (resamples, seeds or windows) how often each was drawn, of all draws.
    seeds = shares(seed_draws(training or "", n_seeds, resamples, seed))
    windows = shares(window_draws(workload, n_windows, resamples, seed))
    pooled = _resampled(pool or settings, seeds, windows, target)
    centre = at_target(*(pool or settings).points(), target)
    if n_seeds == 1 and pool is None:
        found = pooled
    else:
        alone = np.ones((resamples, 1))
        each = np.stack(
            [_resampled(settings.of_seed(k), alone, windows, target) for k in range(n_seeds)], 1
        )
        drawn = np.where(seeds > 0, each, 0.0)  # what was not drawn may be endless
        found = np.asarray((drawn * seeds).sum(axis=1))
    mean = float(by_seed.mean())
    if np.isnan(mean):  # one that never reaches it does so in no resample either, but by chance
        found = np.full(resamples, np.inf)
    return Matched(
        interval=t_interval(mean, found, n),
        resampled=found,
        by_seed=by_seed,
        n=n,
        pooled=t_interval(centre, pooled, n),
        held_out=held_out(settings, target),
    )


def _resampled(settings: Settings, seeds: Floats, windows: Floats, target: float) -> Floats:
    """(resamples,) GPU-hours at the target of resamples (`statistics.shares`); infinite: none."""
    hours = np.einsum("ksw,rs,rw->rk", settings.gpu_hours, seeds, windows, optimize=True)
    attained = np.einsum("kcsw,rs,rw->rkc", settings.attainment, seeds, windows, optimize=True)
    found = np.array(
        [at_target(a, h, target) for a, h in zip(attained.min(axis=2), hours, strict=True)]
    )
    found[np.isnan(found)] = np.inf
    return found
