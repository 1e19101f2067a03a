"""Reactive thresholds: too late with the right one, too much with a lower one.

A reactive rule orders an instance when the load exceeds its threshold; the ideal knows the load five
minutes ahead. One LLM whose instances serve 4,000 tokens per second and take five minutes to come, under a
load that rises, then stays, with one small burst. It is an illustration: the load curve is drawn by us to
cross the thresholds when the caption says, and the rules run on it.

The rule orders when the load exceeds its threshold times the instances that are there or on their way, and
gives none back within the time shown. Grey is what a reactive rule lacks or has too much. The curve crosses
3,500 at minute 10 and 4,000 at minute 15, is stable below 7,000 afterwards, and has its burst at minute 25.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from experiments.harness.claims import Claim, about, every, exact, more
from experiments.harness.figure import Grid, claimed, dress, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 1"


class Thresholds(Parameters):
    """Parameters of this figure."""

    capacity: Annotated[float, paper("Figure 1: 4000 tokens/s", gt=0)] = 4000.0
    thresholds: Annotated[tuple[float, ...], paper("Figure 1: 4000 and 3500")] = (4000.0, 3500.0)
    delay_min: Annotated[int, paper("Figure 1: ordered at 15, there at 20 minutes", ge=0)] = 5
    knots_min: Annotated[tuple[float, ...], ours("crosses thresholds when the caption says")] = (
        0.0,
        15.0,
        22.0,
        40.0,
    )
    knots_tps: Annotated[tuple[float, ...], ours("see knots_min")] = (
        2500.0,
        4000.0,
        6800.0,
        6800.0,
    )
    burst_min: Annotated[int, paper("Figure 1: over allocation at 25 minutes")] = 25
    burst_tps: Annotated[float, ours("small: two instances serve it", ge=0)] = 400.0


PARAMETERS = {"quick": Thresholds(seeds=1), "paper": Thresholds(seeds=1)}


cases = Grid(
    {
        "threshold": lambda parameters, case: (0.0, *parameters.thresholds),  # 0: the ideal
        "seed": lambda parameters, case: parameters.seed_list()[:1],  # nothing is drawn
    },
    keep=("capacity", "delay_min", "knots_min", "knots_tps", "burst_min", "burst_tps"),
)


def load_of(case: Mapping[str, Any]) -> NDArray[np.float64]:
    """(minutes,) tokens per second."""
    minutes = np.arange(int(case["knots_min"][-1]) + 1)
    load = np.interp(minutes, case["knots_min"], case["knots_tps"])
    load[case["burst_min"]] += case["burst_tps"]
    return load


def reactive(load: NDArray[np.float64], threshold: float) -> NDArray[np.int64]:
    """(minutes,) instances ordered by the end of each minute: those there and those on their way."""
    ordered = np.zeros(len(load), np.int64)
    have = 1
    for t, tps in enumerate(load):
        # At the threshold, as the caption has it: ordered at minute 15 where the load reaches 4,000.
        have = max(have, math.floor(tps / threshold + 1e-9) + 1)
        ordered[t] = have
    return ordered


def ideal(load: NDArray[np.float64], capacity: float, delay: int) -> NDArray[np.int64]:
    """(minutes,) instances ordered by who knows what will be needed when they have come."""
    needed = np.floor(load / capacity + 1e-9).astype(np.int64) + 1
    ahead = needed[np.minimum(np.arange(len(load)) + delay, len(load) - 1)]
    return np.maximum.accumulate(ahead)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per minute."""
    load, delay = load_of(case), case["delay_min"]
    if case["threshold"] > 0:
        ordered = reactive(load, case["threshold"])
    else:
        ordered = ideal(load, case["capacity"], delay)
    serving = np.ones(len(load), np.int64)
    serving[delay:] = ordered[: len(load) - delay] if delay else ordered
    return [
        {
            "minute": t,
            "load": float(load[t]),
            "ordered": int(ordered[t]),
            "serving": int(serving[t]),
            "short": bool(load[t] >= case["capacity"] * serving[t]),
        }
        for t in range(len(load))
    ]


def plot(frame: DataFrame, parameters: Thresholds) -> Any:
    """A panel per threshold: load, what the ideal orders, what the rule orders and what serves."""
    figure = new_figure(9, 6)
    panels = figure.subplots(len(parameters.thresholds), 1, sharex=True, squeeze=False)[:, 0]
    goal = _of(frame, 0.0)["serving"].to_numpy(float) * parameters.capacity
    for axes, threshold in zip(panels, parameters.thresholds, strict=True):
        mine = _of(frame, threshold)
        minutes, have = mine["minute"], mine["serving"].to_numpy(float) * parameters.capacity
        axes.fill_between(minutes, goal, have, step="post", color="0.8", label="difference")
        axes.plot(minutes, mine["load"], "k", lw=1.3, label="load")
        axes.step(minutes, goal, where="post", color="C0", label="capacity, ideal")
        label = f"capacity, reactive at {threshold:,.0f}"
        axes.step(minutes, have, where="post", color="C3", label=label)
        dress(axes, ylabel="tokens per second", bottom=0, legend="upper left")
    panels[-1].set_xlabel("time (minutes)")
    return figure


@claimed
def claims(frame: DataFrame, parameters: Thresholds) -> Iterator[Claim]:
    """The three sentences of the caption."""

    def at_minute(sentence: str, number: float, threshold: float, more_than: int = 1) -> Claim:
        mine = _of(frame, threshold)
        found = mine[mine["ordered"] > more_than]["minute"]
        ours_ = exact(float(found.iloc[0]) if len(found) else math.nan)
        return about(sentence, number, ours_, nothing=None, unit="min")

    right, low = parameters.thresholds[0], parameters.thresholds[-1]
    ideal_ = _of(frame, 0.0)
    setting = "the load curve is ours, drawn to the caption"
    yield every(
        "The ideal orders at minute 10 and processes tokens by minute 15",
        [
            at_minute("orders", 10, 0.0),
            about(
                "serves",
                15,
                exact(float(ideal_[ideal_["serving"] > 1]["minute"].min())),
                nothing=None,
                unit="min",
            ),
        ],
        how="the ideal orders for the load that it will see when the instance has come",
        setting=setting,
    )
    short = exact(float(_of(frame, right)["short"].sum()))
    yield every(
        f"A threshold of {right:,.0f} orders at minute 15 and has too few instances for 5 minutes",
        [
            at_minute("orders", 15, right),
            about("too few instances", 5, short, nothing=0, unit="min"),
        ],
        how="the rule orders when the load reaches the threshold; the instance comes five minutes later",
        setting=setting,
    )
    extra = float(_of(frame, low)["serving"].sum() - ideal_["serving"].sum())
    yield every(
        f"A threshold of {low:,.0f} orders another instance at minute 25 and has too many",
        [
            at_minute("orders", 25, low, 2),
            more("above the ideal", 0, exact(extra), unit="instance-minutes"),
        ],
        how="one minute of burst exceeds the lower threshold, and the rule orders a third instance",
        setting=setting,
    )


def _of(frame: DataFrame, threshold: float) -> DataFrame:
    return where(frame, threshold=threshold).sort_values("minute")
