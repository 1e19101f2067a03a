"""Policies beside each other at the same loads: gains, shares of loads, and from which load on.

Frames have a row per run with `policy_name`, `configuration`, `load`, `seed`, `slo_attainment` and what
is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

import numpy as np

from agents.statistics import Interval, mean_interval
from experiments.chiron.llumnix_settings import UNTUNED_READINGS
from experiments.harness.claims import Claim, Verdict, Words, at_least, every, gain, led_by

if TYPE_CHECKING:
    from pandas import DataFrame

NOTHING = Interval(math.nan, math.nan, math.nan)


def by_load(frame: DataFrame, policy: str, column: str) -> DataFrame:
    """A policy's values of a column, which no run need have: a row per load, a column per seed."""
    mine = frame[frame["policy_name"] == policy]
    if column not in mine:
        mine = mine.assign(**{column: math.nan})
    return mine.pivot_table(index=["configuration", "load"], columns="seed", values=column)


def compared(
    frame: DataFrame,
    column: str,
    better: str,
    other: str,
    how: Callable[[DataFrame, DataFrame], DataFrame],
    *,
    no_worse_by: float | None = None,
) -> DataFrame:
    """`how(better's values, other's values)` where both were run.

    Args:
        frame: rows with `policy_name`, `configuration`, `load`, `seed`.
        column: what is compared.
        better, other: names of policies.
        how: of two frames as `by_load` gives them.
        no_worse_by: only where the first one's mean attainment is at most so much below the other's.
    """
    found = how(by_load(frame, better, column), by_load(frame, other, column))
    if no_worse_by is not None:
        mine, theirs = (
            by_load(frame, policy, "slo_attainment").mean(axis=1).reindex(found.index)
            for policy in (better, other)
        )
        found = found[mine >= theirs - no_worse_by]
    return found


def gain_percent(ours: DataFrame, theirs: DataFrame) -> DataFrame:
    """By how many per cent `ours` is larger."""
    return 100 * (ours / theirs - 1)


def saving_percent(ours: DataFrame, theirs: DataFrame) -> DataFrame:
    """By how many per cent `ours` is smaller."""
    return 100 * (1 - ours / theirs)


def gain_points(ours: DataFrame, theirs: DataFrame) -> DataFrame:
    """Difference of two shares in percentage points."""
    return 100 * (ours - theirs)


def _everywhere(found: DataFrame) -> DataFrame:
    """The loads that were run, with the seeds that all of them have."""
    return found.dropna(how="all").dropna(axis="columns")


def up_to(found: DataFrame) -> tuple[Interval, str]:
    """The largest mean over the seeds, with its interval, and where it was ("small, 340")."""
    kept = found.dropna(how="all")
    if kept.empty:
        return NOTHING, "nowhere"
    configuration, load = kept.mean(axis=1).idxmax()
    most = kept.loc[(configuration, load)].dropna()
    return mean_interval(most), f"{configuration}, {load:,.0f}"


def at_load(found: DataFrame, configuration: str, load: float) -> Interval:
    """The values at one place; NaN if it was not run."""
    if (configuration, load) not in found.index:
        return NOTHING
    return mean_interval(found.loc[(configuration, load)])


def largest_gain(
    frame: DataFrame,
    column: str,
    better: str,
    other: str,
    how: Callable[[DataFrame, DataFrame], DataFrame],
    no_worse_by: float,
) -> tuple[Interval, str, bool]:
    """`up_to` where attainment is no lower, where and at how many loads that is, and whether it counts.

    Arguments as `compared`. Where attainment is lower at every load, the largest gain of all, which does not
    count. NaN only where not both were run.
    """
    ran = compared(frame, column, better, other, how).dropna(how="all")
    kept = compared(frame, column, better, other, how, no_worse_by=no_worse_by).dropna(how="all")
    slack = f"lower by more than {100 * no_worse_by:g} percentage point"
    if ran.empty:
        return NOTHING, "nowhere run", True
    if kept.empty:
        found, where = up_to(ran)
        return found, f"at {where}; attainment is {slack} at all {len(ran)} loads", False
    found, where = up_to(kept)
    return found, f"at {where}; attainment is not {slack} at {len(kept)} of {len(ran)} loads", True


def share_higher(
    frame: DataFrame, column: str, better: str, other: str, no_worse_by: float
) -> tuple[Interval, int]:
    """Loads (%) at which `better` is higher and its attainment no lower; and of how many loads.

    Arguments as `compared`.
    """
    higher = _everywhere(compared(frame, column, better, other, lambda mine, theirs: mine - theirs))
    kept = compared(frame, column, better, other, gain_percent, no_worse_by=no_worse_by).index
    holds = (higher > 0).mul(higher.index.isin(kept), axis=0)
    return mean_interval(100 * holds.mean(axis=0)), len(holds)


def share_better_served(
    frame: DataFrame, better: str, other: str, apart_by: float
) -> tuple[Interval, int, int]:
    """Loads (%) at which `better` has the higher attainment, of those at which the means differ.

    Args:
        frame, better, other: as in `compared`.
        apart_by: difference of mean attainments above which two loads count.

    Returns:
        The share (0 if they differ at none, NaN if not both were run), at how many loads they differ, and
        of how many.
    """
    found = compared(frame, "slo_attainment", better, other, lambda mine, theirs: mine - theirs)
    found = _everywhere(found)
    apart = found[found.mean(axis=1).abs() > apart_by]
    if found.empty:
        return NOTHING, 0, 0
    if apart.empty:
        return Interval(0.0, 0.0, 0.0), 0, len(found)
    return mean_interval(100 * (apart > 0).mean(axis=0)), len(apart), len(found)


def better_served(
    name: str, frame: DataFrame, other: str, slack: float, loads: str, reason: str = ""
) -> Claim:
    """That Chiron has the higher attainment, at all `loads` at which it differs by more than `slack`."""
    share, apart, of = share_better_served(frame, "chiron", other, slack)
    return at_least(
        name,
        100,
        share,
        nothing=50,
        unit=f"% of the {apart} (of {of}) {loads} at which it differs by more than "
        f"{100 * slack:g} percentage point",
        reason=reason or lower_at(frame, "chiron", other, slack),
    )


def against_untuned(sentence: str, part: Callable[[str], Claim], **words: Unpack[Words]) -> Claim:
    """A sentence about the untuned Llumnix: judged by the first of `UNTUNED_READINGS`.

    Arguments as `against_all`.
    """
    first, *rest = (part(other) for other in UNTUNED_READINGS)
    shown = filter(None, (f"against Llumnix {first.sentence}", first.setting))
    told: Words = {"setting": "; ".join(shown), **words}
    return replace(led_by(sentence, [first, *rest], **told), unit=first.unit)


def most_gained(
    name: str,
    number: float,
    found: tuple[Interval, str, bool],
    **words: Unpack[Words],
) -> Claim:
    """A part about what `largest_gain` found, which does not hold where it does not count."""
    most, where, counts = found
    told = replace(gain(name, number, most, nothing=0, **words), setting=f"largest {where}")
    return told if counts else not_counted(told, f"does not count, since it is {where}")


def not_counted(claim: Claim, reason: str) -> Claim:
    """The claim, not reproduced for this reason whatever its number, unless nothing was measured."""
    if claim.verdict is Verdict.UNMEASURED:
        return claim
    return replace(claim, verdict=Verdict.NOT, reason=reason)


def against_all(sentence: str, part: Callable[[str], Claim], **words: Unpack[Words]) -> Claim:
    """A sentence about both versions of Llumnix, of the untuned one in the reading that leads.

    Args:
        sentence: what the paper says.
        part: of a version's name, what is found beside it.
        words: as `every` takes them.
    """
    untuned = against_untuned("untuned", part)
    return every(sentence, [untuned, part("llumnix-tuned")], **words)


def weakest_first(parts: Iterable[Claim]) -> list[Claim]:
    """Parts by their number, so that of those that do alike a sentence shows the lowest."""
    return sorted(parts, key=lambda part: part.ours.mean)


def mean_gains(frame: DataFrame, other: str) -> str:
    """Chiron's mean throughput per instance beside another's, by configuration, in words."""
    means = frame.groupby(["configuration", "policy_name"])["throughput_per_instance"].mean()
    table = means.unstack()
    gains = 100 * (table["chiron"] / table[other] - 1)
    shown = ", ".join(f"{name} {gain:+.0f} %" for name, gain in gains.items())
    return f"mean gain in throughput by configuration: {shown}"


def lower_at(frame: DataFrame, better: str, other: str, by: float) -> str:
    """Loads at which the first one's mean attainment is lower by more than `by`, in words."""
    found = compared(frame, "slo_attainment", better, other, gain_points).mean(axis=1)
    worse = found[found < -100 * by]
    places = ", ".join(
        f"{name} {load:,.0f} ({worse[name, load]:.1f})" for name, load in worse.index
    )
    return (
        f"attainment is lower by more than {100 * by:g} percentage point at {len(worse)} of "
        f"{found.notna().sum()} loads{': ' if places else ''}{places}"
    )


def reached(
    frame: DataFrame, policy: str, configuration: str, column: str, limit: float, last: bool
) -> Interval:
    """The first load at which `column` is at least `limit`, or the last before it falls below.

    Found seed by seed. Of a seed that never comes to that it is only known that the load would lie beyond
    those that were run: infinite if so for some, NaN if it happened with no seed. 0 is the last load
    before it falls below if it is below at the lowest already.
    """
    values = by_load(frame, policy, column)
    if configuration not in values.index.get_level_values(0):
        return NOTHING
    loads = []
    for _, mine in values.loc[configuration].sort_index().items():
        hit = (mine < limit if last else mine >= limit).to_numpy()
        at = int(np.argmax(hit))
        if not hit.any():
            loads.append(math.inf)
        elif last:
            loads.append(float(mine.index[at - 1]) if at else 0.0)
        else:
            loads.append(float(mine.index[at]))
    if all(math.isinf(load) for load in loads):
        return NOTHING
    if any(math.isinf(load) for load in loads):
        return Interval(math.inf, math.nan, math.nan)
    return mean_interval(loads)
