"""Who won: the lines of issue 8's "Done when", held against the standings on the test windows.

On a bursty workload the learned policy's whole interval must lie below that of every heuristic; on a smooth
one (or one of unknown shape: a trace that was dropped in is held to the same as a bursty one) its mean
difference to the best heuristic, window by window, must not be above 0. Over all workloads together its
GPU-hours above the clairvoyant bound must be at most half of the best heuristic's. Who never reaches the
target has lost, and a win over a heuristic whose knob was not turned down far enough is none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from agents.statistics import Interval
from experiments.harness.claims import Claim, Verdict, at_most, more
from experiments.learned.family import shape_of
from experiments.learned.matched import shares
from experiments.learned.protocol import ANY_OF_VALIDATION
from experiments.learned.standings import Standing
from experiments.learned.statistics import RESAMPLES, expanded_interval, window_draws

Bounds = Mapping[str, Mapping[int, float]]
"""By workload and window, GPU-hours; NaN: nobody can serve it."""

NOTHING = Interval(np.nan, np.nan, np.nan)


def verdicts(
    found: Sequence[Standing], bounds: Bounds, target: float, *, resamples: int = RESAMPLES
) -> list[Claim]:
    """A claim per test workload, and one on the distance to the bound.

    Args:
        found: `standings`.
        bounds: of every workload; windows as in `found`.
        target: attainment of every class.
        resamples: of the bootstrap, as in `found`.
    """
    made = []
    pairs: dict[str, tuple[Standing, Standing]] = {}
    lost: list[str] = []
    judged: set[str | None] = set()
    for workload in dict.fromkeys(s.workload for s in found):
        name = chosen_learned(found, workload)
        judged.add(name)
        mine = next((s for s in found if s.workload == workload and s.policy == name), None)
        heuristics = [s for s in found if s.workload == workload and not s.learned]
        made.append(_claim(workload, mine, heuristics, target))
        best = least(heuristics)
        if mine is None or best is None:
            continue
        if np.isnan(mine.matched.mean):
            lost.append(workload)
        elif _mean_bound(bounds, workload) is not None:
            pairs[workload] = (mine, best)
    none = judged <= {None}
    made.append(_distance_claim(pairs, bounds, len(made), none, lost, resamples))
    note = _not_fair(found, judged)
    return [replace(claim, note=f"{claim.note} {note}".strip()) for claim in made]


def chosen_learned(found: Sequence[Standing], workload: str) -> str | None:
    """The learned policy, of those on a workload, that validation prefers.

    On the workloads on which they all are: fewest misses of the target, then fewest GPU-hours. One that was
    trained on the test is judged only where there is no other.
    """
    there = [s for s in found if s.learned and s.workload == workload]
    fair = [s for s in there if not s.base.startswith("leaks")]
    names = list(dict.fromkeys(s.policy for s in fair or there))
    on = [{s.workload for s in found if s.policy == name} for name in names]
    if not names:
        return None
    common = set.intersection(*on)

    def rank(name: str) -> tuple[int, float]:
        choices = [
            s.choice
            for s in found
            if s.policy == name and s.workload in common and s.choice is not None
        ]
        return (sum(not c.reaches for c in choices), sum(c.gpu_hours for c in choices))

    return min(names, key=rank)


def least(heuristics: Sequence[Standing]) -> Standing | None:
    """The heuristic that needs least at the target; None if none reaches it."""
    reach = [s for s in heuristics if not np.isnan(s.matched.mean)]
    return min(reach, key=lambda s: s.matched.mean, default=None)


def _claim(
    workload: str, mine: Standing | None, heuristics: Sequence[Standing], target: float
) -> Claim:
    shape = shape_of(workload)
    where = f"on {workload} ({shape}), at {target:.0%} of both classes"
    smooth = shape == "smooth"
    sentence = (
        f"{where}, the learned policy is not worse than the best heuristic"
        if smooth
        else f"{where}, the learned policy needs fewer GPU-hours than every heuristic, intervals apart"
    )
    best = least(heuristics)
    if mine is None:
        return more(sentence, 0.0, NOTHING, unit="GPU-h", reason="no learned policy was compared")
    if np.isnan(mine.matched.mean):
        said = f"{mine.policy} never reaches it (best {100 * mine.best_attainment:.2f} %)"
        return replace(more(sentence, 0.0, NOTHING, unit="GPU-h", reason=said), verdict=Verdict.NOT)
    note = f"Learned: {mine.policy}, {mine.matched} GPU-h."
    if mine.left_out:
        note += f" Training seeds {list(mine.left_out)} lack a setting, and are left out."
    if best is None:
        said = "no heuristic reaches it at any setting, the learned policy does"
        return more(sentence, 0.0, NOTHING, unit="GPU-h", reason=said, note=note)
    note += f" Best heuristic: {best.policy}, {best.matched} GPU-h."
    untuned = [s.policy for s in heuristics if not is_tuned(s)]
    if untuned:
        note += f" Not tuned for this workload: {', '.join(untuned)}."
    if smooth:
        claim = _not_worse(sentence, mine, best, note)
    else:
        claim = _apart(sentence, mine, heuristics, note)
    edge = [s.policy for s in heuristics if s.at_edge and s.matched.mean <= best.matched.mean]
    if claim.verdict is Verdict.REPRODUCED and edge:
        said = (
            f"{edge[0]} reaches the target at every setting of its knob: a lower one may need less"
        )
        claim = replace(claim, verdict=Verdict.NOT, reason=said)
    return claim


def is_tuned(s: Standing) -> bool:
    """Whether a search has found its settings for the workload's kind."""
    return s.base.startswith("tuned on val-") or s.base == ANY_OF_VALIDATION


def _not_worse(sentence: str, mine: Standing, best: Standing, note: str) -> Claim:
    """The mean difference, paired by window, is not above 0."""
    gap = difference(mine, best)
    share = 100 * gap.mean / best.matched.mean
    apart = "the interval holds 0" if gap.low <= 0 else "the interval does not hold 0"
    if np.isnan(gap.low):
        apart = "there is no interval"
    return at_most(
        sentence,
        0.0,
        gap,
        nothing=None,
        unit="GPU-h more",
        reason=f"worse by {share:.1f} %; {apart}",
        note=note,
    )


def difference(mine: Standing, other: Standing) -> Interval:
    """GPU-hours at the target above another policy's, on the same resampled windows.

    Where neither reaches the target in a resample, that counts against `mine`.
    """
    with np.errstate(invalid="ignore"):
        found = mine.at_target.resampled - other.at_target.resampled
    found = np.where(np.isnan(found), np.inf, found)
    n = min(mine.at_target.n, other.at_target.n)
    return _plain(expanded_interval(mine.matched.mean - other.matched.mean, found, n))


def _apart(sentence: str, mine: Standing, heuristics: Sequence[Standing], note: str) -> Claim:
    """The whole interval below those of all heuristics that reach the target."""
    reach = [s.matched for s in heuristics if not np.isnan(s.matched.mean)]
    best = min(reach, key=lambda m: m.mean)
    room = min(m.low for m in reach) - mine.matched.high  # NaN where either has no interval
    mean = best.mean - mine.matched.mean
    if not np.isfinite(room):
        room = min(mean, -abs(mean))
    gain = Interval(mean, min(room, mean), best.high - mine.matched.low)
    return more(sentence, 0.0, _plain(gain), unit="GPU-h saved", note=note)


def _plain(interval: Interval) -> Interval:
    """Endless bounds as missing ones, which a file can hold."""
    low, high = (v if np.isfinite(v) else np.nan for v in (interval.low, interval.high))
    return Interval(interval.mean, low, high)


def _mean_bound(bounds: Bounds, workload: str) -> float | None:
    """Mean over all windows; None where there is none, or a window has none."""
    values = list(bounds.get(workload, {}).values())
    return float(np.mean(values)) if values and not np.isnan(values).any() else None


def _distance_claim(
    pairs: Mapping[str, tuple[Standing, Standing]],
    bounds: Bounds,
    of: int,
    none: bool,
    lost: Sequence[str],
    resamples: int,
) -> Claim:
    above: list[NDArray[np.float64]] = []
    centre = np.zeros(2)
    for workload, both in pairs.items():
        by_window = np.array([bounds[workload][w] for w in sorted(bounds[workload])])
        drawn = shares(window_draws(workload, len(by_window), resamples)) @ by_window
        above.append(np.array([s.at_target.resampled - drawn for s in both]))
        centre += [s.matched.mean - by_window.mean() for s in both]
    ratio = NOTHING
    if above:
        mine, best = np.sum(above, axis=0)
        # A resample in which a heuristic never reaches the target says nothing for or against.
        with np.errstate(invalid="ignore"):
            found = np.where(np.isfinite(best), mine / best, 1.0)
        n = min(s.at_target.n for both in pairs.values() for s in both)
        ratio = _plain(expanded_interval(float(centre[0] / centre[1]), found, n))
    claim = at_most(
        "its distance to the clairvoyant bound is at most half of the best heuristic's",
        0.5,
        ratio,
        nothing=1.0,
        unit="of the best heuristic's GPU-hours above the bound",
        note=f"Over the {len(pairs)} of {of} test workloads on which both reach the target, with a bound.",
        reason="no learned policy was compared" if none else "",
    )
    if not lost:
        return claim
    reason = f"it never reaches the target on {', '.join(lost)}, where a heuristic does"
    return replace(claim, verdict=Verdict.NOT, reason=reason)


def _not_fair(found: Sequence[Standing], judged: Collection[str | None]) -> str:
    bases = {s.base for s in found if s.policy in judged}
    leaking = sorted(base for base in bases if base.startswith("leaks"))
    return f"Not a fair test: training {leaking[0]}." if leaking else ""
