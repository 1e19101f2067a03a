"""What section 2.3 says of request groups, held against immediate autoscaling at the same loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, about, exact

if TYPE_CHECKING:
    from pandas import DataFrame

PLACE = ["load_time_s", "cv"]


def group_claims(mine: DataFrame, theirs: DataFrame, no_worse_points: float) -> list[Claim]:
    """Hysteresis, throughput with no more late requests, then throughput and actions at each load.

    Args:
        mine, theirs: Figure 6's rows with groups and with immediate autoscaling; no claims without either.
        no_worse_points: by how many percentage points attainment may be lower and still count as no worse.
    """
    if mine.empty or theirs.empty:
        return []
    found = [_hysteresis(mine, theirs), _no_worse(mine, theirs, no_worse_points)]
    for load_time_s, part in mine.groupby("load_time_s"):
        other = theirs[theirs["load_time_s"] == load_time_s]
        why = _range(part, other)
        for cv, one in part.groupby("cv"):
            where = f"({load_time_s:g} s to load, CV {cv:g})"
            found += _at_load(one, other[other["cv"] == cv], where, why)
    return found


def _hysteresis(mine: DataFrame, theirs: DataFrame) -> Claim:
    ratios = _beside(theirs, mine, "hysteresis")
    fewer = _beside(theirs, mine, "actions_per_1000").groupby(PLACE).mean()
    bounds = [
        f"{name} {part['hysteresis'].min():.3g} to {part['hysteresis'].max():.3g}"
        for name, part in (("immediate", theirs), ("groups", mine))
    ]
    return about(
        "Groups reduce hysteresis 20 times",
        20.0,
        mean_interval(ratios.groupby("seed").mean()),
        nothing=1.0,
        unit=f"x, mean over {len(fewer)} loads, immediate against groups",
        paper="20 x",
        reason="as defined, scaling actions over scale-ups, it is 1 + downs / ups and so between 1 and 2 for "
        f"a fleet that starts from none: {', '.join(bounds)} in all runs. Scaling actions per request, which "
        f"can, fall {fewer.min():.0f} to {fewer.max():.0f} times",
    )


def _no_worse(mine: DataFrame, theirs: DataFrame, points: float) -> Claim:
    """The gain in throughput where waiting for a deadline does not make more requests late."""
    more = _beside(mine, theirs, "throughput")
    means = [part.groupby(PLACE)["slo_attainment"].mean() for part in (mine, theirs)]
    good = means[0] >= means[1] - points / 100
    best = more.groupby(PLACE).mean()[good].idxmax() if good.any() else None
    ours = exact(1.0) if best is None else mean_interval(more.xs(best, level=PLACE))
    where = "" if best is None else f", largest with {best[0]:g} s to load and CV {best[1]:g}"
    on_time = f"{100 * means[0].min():.1f} to {100 * means[0].max():.1f} %"
    return about(
        "Groups raise throughput 2.5 times, with no more late requests",
        2.5,
        ours,
        nothing=1.0,
        unit="x per billed instance",
        paper="2.5 x",
        reason=_range(mine, theirs),
        note=f"attainment is not lower by more than {points:g} percentage point at {good.sum()} of "
        f"{len(good)} loads{where}; groups have {on_time} of the requests on time, immediate autoscaling "
        f"{100 * means[1].min():.1f} to {100 * means[1].max():.1f} %",
    )


def _at_load(mine: DataFrame, theirs: DataFrame, where: str, why: str) -> list[Claim]:
    on_time = [100 * part["slo_attainment"].mean() for part in (mine, theirs)]
    ups = [part["scale_ups"].mean() for part in (mine, theirs)]
    shown = ", ".join(f"{value:.2f}" for value in sorted(mine["throughput"]))
    return [
        about(
            f"Groups raise throughput 2.5 times {where}",
            2.5,
            mean_interval(_beside(mine, theirs, "throughput")),
            nothing=1.0,
            unit=f"x per billed instance, with {on_time[0]:.1f} % on time against {on_time[1]:.1f} %",
            paper="2.5 x",
            reason=f"{why}; groups by seed {shown}",
        ),
        about(
            f"Groups take a twentieth of the scaling actions {where}",
            1 / 20,
            mean_interval(_beside(mine, theirs, "actions_per_1000")),
            nothing=1.0,
            unit="of those of immediate autoscaling, per request",
            paper="hysteresis falls 20 times: 0.05",
            reason=f"groups start {ups[0]:.1f} instances in an episode, immediate autoscaling {ups[1]:.0f}",
        ),
    ]


def _range(mine: DataFrame, theirs: DataFrame) -> str:
    shown = []
    for name, part in (("groups", mine), ("immediate autoscaling", theirs)):
        means = part.groupby("cv")["throughput"].mean()
        ends = f"{means.iloc[0]:.2f}" + (f" to {means.iloc[-1]:.2f}" if len(means) > 1 else "")
        shown.append(f"{name} {ends}")
    low, high = mine["cv"].min(), mine["cv"].max()
    what = f"at CV {low:g}" + (f" to {high:g}" if high > low else "")
    return f"requests/s per billed instance {what}: {', '.join(shown)}"


def _beside(above: DataFrame, below: DataFrame, measure: str) -> Any:
    """One over the other by load time, CV and seed; none where the other is nothing or unknown."""
    keys = [*PLACE, "seed"]
    ratios = above.set_index(keys)[measure] / below.set_index(keys)[measure]
    return ratios.replace([np.inf], np.nan)
