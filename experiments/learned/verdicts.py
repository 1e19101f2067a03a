"""Who won: the lines of issue 8's "Done when", held against the standings on the test windows.

On a bursty workload the learned policy's whole interval must lie below that of every heuristic; on a smooth
one its mean difference to the best heuristic, window by window, must not be above 0; one of unknown shape (a
trace that was dropped in) is held to the same as a bursty one. Over all workloads together its GPU-hours
above the clairvoyant bound must be at most half of the best heuristic's. Nothing is won by who does not reach
the target (with every network), by who has no interval (one training seed, one window) or an endless one,
over a heuristic whose knob was not turned far enough (down: it might need less; up: it misses the target
where it still needs less than the learned policy does), or by a policy that has seen the test. Heuristics
that miss the target wherever their knob stands are otherwise out of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from agents.statistics import Interval
from experiments.harness.claims import Claim, Verdict
from experiments.learned.family import shape_of
from experiments.learned.protocol import ANY_OF_VALIDATION
from experiments.learned.standings import Standing, percent
from experiments.learned.statistics import RESAMPLES, shares, t_interval, window_draws

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
    judged: list[Judged] = []
    for workload in dict.fromkeys(s.workload for s in found):
        name = chosen_learned(found, workload)
        mine = next((s for s in found if s.workload == workload and s.policy == name), None)
        heuristics = [s for s in found if s.workload == workload and not s.learned]
        judged.append(Judged(workload, mine, heuristics))
        made.append(_fairly(_claim(judged[-1], target), [judged[-1]]))
    distance = _distance_claim(judged, bounds, resamples)
    return [*made, _fairly(distance, judged)]


@dataclass(frozen=True)
class Judged:
    """Who is held against whom.

    Attributes:
        workload: name.
        mine: the learned policy, if there is one.
        heuristics: all that were run.
    """

    workload: str
    mine: Standing | None
    heuristics: Sequence[Standing]

    @property
    def best(self) -> Standing | None:
        """The heuristic that needs least at the target; None if none reaches it."""
        reach = [s for s in self.heuristics if reaches(s)]
        return min(reach, key=lambda s: s.matched.mean, default=None)

    @property
    def open_ends(self) -> list[str]:
        """Of heuristics of which it is not known how little they need: who, and why."""
        found = [
            f"{s.policy} reaches the target at the lowest setting of its knob: a lower one may need less"
            for s in self.heuristics
            if s.at_edge
        ]
        if self.mine is not None and reaches(self.mine):
            found += [
                f"{s.policy} misses the target at the highest setting of its knob, which needs less than the "
                "learned policy: a higher one may reach it"
                for s in self.heuristics
                if s.ends_early and s.most_gpu_hours < self.mine.matched.mean
            ]
        return found


def reaches(s: Standing) -> bool:
    """Whether a policy reaches the target at all."""
    return not np.isnan(s.matched.mean)


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
        choices = [s.choice for s in found if s.policy == name and s.workload in common]
        return (sum(not c.reaches for c in choices), sum(c.gpu_hours for c in choices))

    return min(names, key=rank)


def _claim(judged: Judged, target: float) -> Claim:
    mine, best = judged.mine, judged.best
    shape = shape_of(judged.workload)
    where = f"on {judged.workload} ({shape}), at {percent(target)} of both classes"
    smooth = shape == "smooth"
    sentence = (
        f"{where}, the learned policy is not worse than the best heuristic"
        if smooth
        else f"{where}, the learned policy needs fewer GPU-hours than every heuristic that keeps it, "
        "intervals apart"
    )
    unit = "GPU-h more" if smooth else "GPU-h saved"
    number = "at most 0" if smooth else "more than 0"

    def said(ours: Interval, verdict: Verdict, reason: str = "", note: str = "") -> Claim:
        return Claim(sentence, f"{number} {unit}", ours, unit, verdict, reason, note)

    if mine is None:
        return said(NOTHING, Verdict.UNMEASURED, "no learned policy was compared")
    if not reaches(mine):
        return said(NOTHING, Verdict.NOT, f"{mine.policy}: {mine.shortfall(target)}")
    note = f"Learned: {mine.policy}, {mine.trained}, {mine.matched} GPU-h"
    if not np.isnan(mine.at_target.pooled.mean):
        note += f" (all trainings, pooled over networks: {mine.at_target.pooled})"
    note += "."
    if mine.left_out:
        note += f" Settings that lack training seeds are left out: {'; '.join(mine.left_out)}."
    if best is None:
        reason = (
            "no heuristic reaches it at any setting, the learned policy does"
            if judged.heuristics
            else "no heuristic was compared"
        )
        return said(NOTHING, Verdict.UNMEASURED, reason, note)
    note += f" Best heuristic: {best.policy}, {best.matched} GPU-h."
    untuned = [s.policy for s in judged.heuristics if not is_tuned(s)]
    if untuned:
        note += f" Not tuned for this workload: {', '.join(untuned)}."
    ours, reason = _not_worse(mine, best) if smooth else _apart(mine, judged)
    if not reason and np.isnan(mine.matched.low):
        reason = NO_INTERVAL
    if not reason and np.isinf(mine.matched.high):
        reason = ENDLESS
    if not reason and judged.open_ends:
        reason = judged.open_ends[0]
    return said(ours, Verdict.NOT if reason else Verdict.REPRODUCED, reason, note)


NO_INTERVAL = "there is no interval: one training seed, or one window"
ENDLESS = "its interval is endless: too many resamples miss the target"


def with_interval(claim: Claim) -> Claim:
    """The claim; nothing holds, not even its direction, without an interval."""
    won = claim.verdict in (Verdict.REPRODUCED, Verdict.DIRECTION)
    if won and np.isnan([claim.ours.low, claim.ours.high]).any():
        return replace(claim, verdict=Verdict.NOT, reason=NO_INTERVAL)
    return claim


def why_not(gap: Interval) -> str:
    """Why a difference is not below 0, for a claim that there is one."""
    found = ["it is the other way round in the mean"] if gap.mean >= 0 else []
    if np.isnan([gap.low, gap.high]).any():
        return "; ".join([*found, NO_INTERVAL])
    if gap.low <= 0 <= gap.high:
        found.append("the interval holds 0")
    return "; ".join(found)


def is_tuned(s: Standing) -> bool:
    """Whether a search has found its settings for the workload's kind, or for any where it has no kin."""
    return s.base in (f"tuned on val-{s.workload.removeprefix('test-')}", ANY_OF_VALIDATION)


def _not_worse(mine: Standing, best: Standing) -> tuple[Interval, str]:
    """The mean difference, paired by window; and why it is no win, if it is above 0."""
    gap = difference(mine, best)
    if gap.mean <= 0:
        return gap, ""
    apart = "the interval holds 0" if gap.low <= 0 else "the interval does not hold 0"
    if np.isnan(gap.low):
        apart = "there is no interval"
    return gap, f"worse by {100 * gap.mean / best.matched.mean:.1f} %; {apart}"


def difference(mine: Standing, other: Standing) -> Interval:
    """GPU-hours at the target above another policy's, on the same resampled windows.

    Resamples in which the other one alone misses the target are left out; those in which both do count
    against `mine`.
    """
    a, b = mine.at_target.resampled, other.at_target.resampled
    a, b = a[np.isfinite(b) | np.isinf(a)], b[np.isfinite(b) | np.isinf(a)]
    found = np.full(len(a), np.inf)
    found[np.isfinite(a)] = a[np.isfinite(a)] - b[np.isfinite(a)]
    n = min(mine.at_target.n, other.at_target.n)
    return t_interval(mine.matched.mean - other.matched.mean, found, n)


def _apart(mine: Standing, judged: Judged) -> tuple[Interval, str]:
    """How far the whole interval is below those of all heuristics; and why it is not, if it is not.

    The interval that is shown reaches from the smallest saving that the intervals allow to the largest.
    """
    reach = [s for s in judged.heuristics if reaches(s)]
    best = min(reach, key=lambda s: s.matched.mean)
    mean = best.matched.mean - mine.matched.mean
    if any(np.isnan(s.matched.low) for s in (mine, *reach)):
        lost = f"{best.policy} needs no more" if mean <= 0 else NO_INTERVAL
        return Interval(mean, np.nan, np.nan), lost
    room = min(s.matched.low for s in reach) - mine.matched.high
    shown = Interval(mean, min(room, mean), best.matched.high - mine.matched.low)
    if mean <= 0:
        return shown, f"{best.policy} needs no more"
    if room > 0:
        return shown, ""
    if np.isinf(mine.matched.high):
        return shown, ENDLESS
    close = [s.policy for s in reach if s.matched.low <= mine.matched.high]
    return shown, f"intervals meet: {', '.join(close)}"


def _bounded(bounds: Bounds, workload: str) -> bool:
    """Whether every window of a workload has a bound."""
    values = list(bounds.get(workload, {}).values())
    return bool(values) and not np.isnan(values).any()


def _distance_claim(judged: Sequence[Judged], bounds: Bounds, resamples: int) -> Claim:
    sentence = (
        "over all workloads together, the learned policy's GPU-hours above the clairvoyant bound are at most "
        "half of those of each workload's best heuristic"
    )
    unit = "of the best heuristics' GPU-hours above the bound"
    known = [
        (j.workload, j.mine, j.best)
        for j in judged
        if j.mine is not None and j.best is not None and reaches(j.mine)
        if _bounded(bounds, j.workload)
    ]
    there = {workload for workload, *_ in known}
    missing = [j.workload for j in judged if j.workload not in there]
    ratio = _ratio(known, bounds, resamples)
    lost = [
        j.workload
        for j in judged
        if j.mine is not None and j.best is not None and not reaches(j.mine)
    ]
    open_ends = list(dict.fromkeys(text for j in judged for text in j.open_ends))
    verdict, reason = Verdict.NOT, ""
    if all(j.mine is None for j in judged):
        verdict, reason = Verdict.UNMEASURED, "no learned policy was compared"
    elif lost:
        reason = f"it does not reach the target on {', '.join(lost)}, where a heuristic does"
    elif missing and (np.isnan(ratio.mean) or ratio.mean <= MOST):
        verdict = Verdict.UNMEASURED
        reason = f"on {', '.join(missing)} there is nothing to compare: no bound, or nobody there"
    elif np.isnan(ratio.mean):
        verdict, reason = Verdict.UNMEASURED, "the best heuristic is not above the bound"
    elif not ratio.high < 1:
        reason = "its interval holds as much as the best heuristic's, is endless, or is not there"
    elif open_ends:
        reason = open_ends[0]
    elif ratio.mean <= MOST:
        verdict = Verdict.REPRODUCED
    elif missing:
        reason = f"{ratio.mean:.2f} of it are left, and on {', '.join(missing)} nothing is compared"
    else:
        verdict, reason = Verdict.DIRECTION, f"{ratio.mean:.2f} of it are left"
    note = f"Over {len(known)} of {len(judged)} test workloads together."
    return Claim(sentence, f"at most {MOST:g}", ratio, unit, verdict, reason, note)


MOST = 0.5
"""Of the best heuristic's distance to the bound."""


def _ratio(
    known: Sequence[tuple[str, Standing, Standing]], bounds: Bounds, resamples: int
) -> Interval:
    """Sum of distances over sum of the best heuristics' distances; NaN if these are none."""
    above = np.zeros((2, resamples))
    centre = np.zeros(2)
    for workload, *both in known:
        by_window = np.array([bounds[workload][w] for w in sorted(bounds[workload])])
        drawn = shares(window_draws(workload, len(by_window), resamples)) @ by_window
        above += [s.at_target.resampled - drawn for s in both]
        centre += [s.matched.mean - by_window.mean() for s in both]
    if centre[1] <= 0:
        return NOTHING
    mine, best = above
    found = np.full(resamples, np.inf)
    fine = np.isfinite(mine) & (best > 0)
    found[fine] = mine[fine] / best[fine]  # 0 where the heuristic alone misses the target
    n = min(s.at_target.n for _, *both in known for s in both)
    return t_interval(float(centre[0] / centre[1]), found, n)


def _fairly(claim: Claim, judged: Sequence[Judged]) -> Claim:
    """The claim; nothing is won by a policy that was trained, or chosen, on what it is tested on."""
    leaking = sorted(
        {
            f"{j.mine.policy}"
            for j in judged
            if j.mine is not None and j.mine.base.startswith("leaks")
        }
    )
    if not leaking:
        return claim
    note = f"{claim.note} Not a fair test: {', '.join(leaking)}.".strip()
    if claim.verdict in (Verdict.REPRODUCED, Verdict.DIRECTION):
        return replace(claim, verdict=Verdict.NOT, reason="it has seen the test", note=note)
    return replace(claim, note=note)
