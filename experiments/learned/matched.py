"""GPU-hours at matched attainment: what a policy needs to keep every class at 99 %, whatever its own taste.

Policies weigh GPUs against lateness differently, so equal settings say little. Each is therefore run at
several settings of a knob, and asked: what is the least it needs at 99 %? Between two settings the answer
is interpolated: one of them on some windows, the other on the rest, is a policy too, whose means lie on
the straight line between theirs. So the answer is on the lower edge of the hull of the settings' points
(worst class's attainment, GPU-hours), at the target. For such a mixture the worst class is no worse than the
mean of the two worst, so the answer errs on the safe side.

A policy none of whose settings reaches the target has no answer (NaN), which tables say in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agents.statistics import Interval
from experiments.learned.statistics import RESAMPLES, draws

Floats = NDArray[np.float64]

TARGET = 0.99


@dataclass(frozen=True)
class Settings:
    """What a policy did on a workload at every setting of its knob.

    Attributes:
        labels: (K,) of the settings.
        gpu_hours: (K, training seeds, windows).
        attainment: (K, classes, training seeds, windows).
    """

    labels: tuple[str, ...]
    gpu_hours: Floats
    attainment: Floats

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

    def cheapest(self, target: float = TARGET) -> int | None:
        """The setting of fewest GPU-hours whose every class reaches the target; None: none does."""
        share, hours = self.points()
        reaches = np.flatnonzero(share >= target - 1e-12)
        return int(reaches[np.argmin(hours[reaches])]) if len(reaches) else None


def at_target(share: Floats, hours: Floats, target: float = TARGET) -> float:
    """GPU-hours at the target, of settings and mixtures of two.

    Args:
        share: (K,) attainment.
        hours: (K,) GPU-hours.
        target: that is to be reached.

    Returns:
        NaN if no setting reaches it.
    """
    above = share >= target - 1e-12
    if not above.any():
        return float("nan")
    best = hours[above].min()
    if above.all():
        return float(best)
    s0, h0 = share[~above][:, None], hours[~above][:, None]
    s1, h1 = share[above][None, :], hours[above][None, :]
    part = np.clip((target - s0) / (s1 - s0), 0.0, 1.0)
    return float(min(best, (h0 + part * (h1 - h0)).min()))


def matched_hours(
    settings: Mapping[str, Settings],
    target: float = TARGET,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Interval]:
    """By policy, GPU-hours at the target on one workload, with 95 % bootstrap intervals.

    All policies meet the same resampled windows. The interval has no bounds where more than one in twenty
    resamples does not reach the target; of the few otherwise, one counts as endless.

    Args:
        settings: by policy; all on the same windows.
        target: attainment of every class.
        resamples, seed: of the bootstrap.

    Raises:
        ValueError: policies with different numbers of windows.
    """
    widths = {s.gpu_hours.shape[2] for s in settings.values()}
    if len(widths) > 1:
        raise ValueError(f"windows: must be as many for all policies, got {sorted(widths)}")
    return {
        name: _matched(mine, target, resamples, seed) if len(mine.labels) else _NOWHERE
        for name, mine in settings.items()
    }


_NOWHERE = Interval(np.nan, np.nan, np.nan)


def _matched(settings: Settings, target: float, resamples: int, seed: int) -> Interval:
    centre = at_target(*settings.points(), target)
    if np.isnan(centre):
        return _NOWHERE
    _, n_seeds, n_windows = settings.gpu_hours.shape
    if n_seeds * n_windows == 1:
        return Interval(centre, np.nan, np.nan)
    found = np.empty(resamples)
    for k, draw in enumerate(draws(n_seeds, {"": n_windows}, resamples, seed)):
        some = np.ix_(draw.seeds, draw.windows[""])
        share = settings.attainment[:, :, some[0], some[1]].mean(axis=(2, 3)).min(axis=1)
        hours = settings.gpu_hours[:, some[0], some[1]].mean(axis=(1, 2))
        found[k] = at_target(share, hours, target)
    lost = np.isnan(found)
    if lost.mean() > 1 / 20:
        return Interval(centre, np.nan, np.nan)
    found[lost] = np.inf
    low, high = np.percentile(found, [2.5, 97.5], method="nearest")
    return Interval(centre, float(low), float(high))


def ordered(hours: Mapping[str, Interval]) -> Sequence[str]:
    """Policies by GPU-hours at the target, those without an answer last."""
    return sorted(hours, key=lambda p: (np.isnan(hours[p].mean), hours[p].mean, p))
