"""Bursts of eight times the load: who recovers.

Interactive requests of all LLMs come eight times as often during two bursts; LT-I, LT-U and LT-UA on the
same requests, on the day of Figure 11. The panels are memory utilisation, instances and 95 % TTFT of
Llama-2 in US-East. Forecasts do not see bursts come; LT-UA may leave its target in the last 20 minutes of
an hour if five times the forecast arrives.

When and for how long the load is eight times as high is ours: half an hour, ending with the hour, so that
LT-UA's 20 minutes lie in it; the paper says "randomly". Its released code has nine times in one minute of
every hour. Recovered means below the upper threshold for ten minutes. Both readings of the paper are run,
thresholds and requests of the text and of its released code; all sentences are judged in the released
code's. A request waits at the instance that it was sent to: instances that come later serve
those that come later, so that latencies are of hours where many have queued, also after the hour in which
LT-I gives its instances back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from baselines.sageserve.policy import THRESHOLDS_OF
from experiments.harness.claims import Claim, at_least, every, less, more
from experiments.harness.figure import SEEDS, Grid, claimed, dress, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.sageserve.days import (
    LLAMA_2,
    NAMES,
    STYLES,
    TIME,
    instances,
    interactive,
    more_percent,
    run_days,
    stairs,
    utilisation,
)
from experiments.sageserve.readings import (
    RELEASED,
    TEXT,
    judged_first,
    read,
    short,
    text_and_released,
)
from experiments.sageserve.setting import SHOWN, parts

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pandas import DataFrame

FIGURE = "Figure 16"
SERIES = ("series",)
POLICIES = ("lt-i", "lt-u", "lt-ua")
REGION = "us-east"
CALM_MIN = 10.0
BIN_H = 0.25
HIGH = {TEXT: THRESHOLDS_OF["paper"]["high"], RELEASED: THRESHOLDS_OF["released"]["high"]}
AFTER_H = 2.0
"""How long after the start of a burst latencies count as its, and how long recovering may take at most."""


class Bursts(Parameters):
    """Parameters of this figure."""

    from_h: Annotated[float, ours("the day of Figure 11", ge=0, lt=168)] = 72.0
    hours: Annotated[float, paper("one day", gt=0, le=168)] = 24.0
    history_h: Annotated[float, ours("the day before, to forecast from", ge=0)] = 24.0
    interval_s: Annotated[float, ours("fine enough to see recovery", gt=0)] = 60.0
    rate_scale: Annotated[float, ours("the week's own rates", gt=0)] = 1.0
    factor: Annotated[float, paper("section 7.3.4: 8x", gt=1)] = 8.0
    bursts_h: Annotated[
        tuple[float, ...], paper("Figure 16: two; ours: at night, in the morning", min_length=1)
    ] = (4.5, 10.5)
    minutes: Annotated[float, ours("half an hour, to the end of an hour", gt=0)] = 30.0


PARAMETERS = {
    "quick": Bursts(seeds=1, hours=13.0),
    "paper": Bursts(seeds=5),
}


cases = Grid(
    {
        "setting": text_and_released,
        "seed": SEEDS,
        "policy": POLICIES,
        "bursts": lambda parameters, case: [
            [[at, parameters.minutes, parameters.factor] for at in parameters.bursts_h]
        ],
        "bin_h": (BIN_H,),
    },
    keep=("from_h", "hours", "history_h", "interval_s"),
    first=("setting", "policy", "bursts", "bin_h"),
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of `days`, of Llama-2 in the region shown."""
    return [row for row in run_days(case) if row["llm"] == LLAMA_2 and row["region"] == REGION]


def recovery_min(
    hour: NDArray[np.float64], used: NDArray[np.float64], from_h: float, limit: float = 0.7
) -> float:
    """Minutes from `from_h` until the use has been at most `limit` for `CALM_MIN` (their start counts).

    At most `AFTER_H` hours, and 0 for who never exceeds it.
    """
    within = (hour >= from_h - 1e-9) & (hour <= from_h + AFTER_H + 1e-9)
    hours, over = hour[within], ~(used[within] <= limit)
    if not over.any():
        return 0.0
    begin = int(np.argmax(over))
    for k in range(begin, len(hours)):
        ahead = (hours >= hours[k] - 1e-9) & (hours < hours[k] + CALM_MIN / 60 - 1e-9)
        if not over[ahead].any() and hours[-1] >= hours[k] + CALM_MIN / 60 - 1e-9:
            return float(60 * (hours[k] - from_h))
    return 60 * AFTER_H


def excerpt(frame: DataFrame, parameters: Bursts) -> DataFrame:
    """Totals of all runs, and what is drawn: the first seed, interactive requests."""
    return short(frame[(frame["kind"] == "total") | _drawn(frame, parameters)])


def _drawn(frame: DataFrame, parameters: Bursts) -> Any:
    """Rows of the picture: of intervals those in the hour after a burst begins, and every fifth."""
    first = (frame["seed"] == frame["seed"].min()) & (frame["setting"] == TEXT)
    there = first & (frame["llm"] == LLAMA_2) & (frame["region"] == REGION)
    latency = (frame["kind"] == "latency") & (frame["slo_class"] == "interactive")
    hour = frame["hour"].astype(float)
    near = hour.to_numpy()[:, None] - np.array(parameters.bursts_h)
    close = ((near > -0.1) & (near < 1)).any(axis=1)
    fifth = (hour * 3600 / parameters.interval_s).round() % 5 == 0
    return there & (latency | ((frame["kind"] == "series") & (close | fifth)))


def plot(frame: DataFrame, parameters: Bursts) -> Any:
    """Memory in use, instances and 95 % TTFT over the day as the text has it (first seed); bursts shaded."""
    seed = parameters.seed_list()[0]
    frame = frame[_drawn(frame, parameters)]
    figure = new_figure(10, 8)
    panels = figure.subplots(3, 1, sharex=True)
    for policy in POLICIES:
        look = {"color": STYLES[policy], "label": NAMES[policy], "lw": 1.2}
        values = utilisation(frame, policy, LLAMA_2, REGION)[seed]
        panels[0].plot(values.index, values, **look)
        values = instances(frame, policy, LLAMA_2, REGION)[seed]
        panels[1].step(values.index, values, where="pre", **look)
        stairs(panels[2], interactive(frame, policy, seed=seed), "ttft_s_p95", BIN_H, **look)
    panels[0].axhline(0.7, color="0.5", ls=":", lw=1)
    labels = ("memory in use", "instances", "95 % TTFT (s)\nof 15 min of arrivals")
    for axes, label in zip(panels, labels, strict=True):
        for at in parameters.bursts_h:
            axes.axvspan(at, at + parameters.minutes / 60, color="C0", alpha=0.15, lw=0)
        dress(axes, ylabel=label, bottom=0, legend={})
    panels[0].set_title(f"{SHOWN[LLAMA_2]}, {REGION}; shaded: 8 times the load", fontsize=10)
    panels[-1].set_xlabel(TIME)
    return figure


@claimed
def claims(frame: DataFrame, parameters: Bursts) -> Iterator[Claim]:
    """The caption of Figure 16 and section 7.3.4."""
    of = {
        name: {policy: _bursts(mine, parameters, policy, HIGH[name]) for policy in POLICIES}
        for name, mine in judged_first(frame).items()
    }

    def against(found: Mapping[str, DataFrame]) -> list[tuple[str, DataFrame, DataFrame]]:
        mine = found["lt-ua"]
        return [(f"against {NAMES[p]}", mine, found[p]) for p in POLICIES if p != "lt-ua"]

    yield read(
        of,
        "A burst first makes the memory utilisation of all three strategies spike",
        every,
        lambda found: parts(
            at_least,
            90,
            {NAMES[policy]: found[policy]["peak"] for policy in POLICIES},
            nothing=None,
            unit="% in use",
        ),
        paper="spike (read as 90 % or more)",
        setting=f"{SHOWN[LLAMA_2]}, {REGION}, two bursts of half an hour",
        how="no forecast sees the burst, and instances take minutes to come",
    )
    words: Any = {
        "how": "LT-UA goes beyond its target in the hour's last 20 minutes, as 5 times the forecast comes",
        "reason": "LT-UA has 20 instances after ten minutes; where these are full too it recovers only when "
        "the burst ends. The others plan anew at that hour's end and recover soon after.",
    }
    for sentence, said, column in (
        ("Memory utilisation remains lower for LT-UA than for the others", "low", "used"),
        ("LT-UA avoids the peaking latency of the others", "their latency peaks", "ttft_s"),
    ):

        def lower(found: Mapping[str, DataFrame], column: str = column) -> list[Claim]:
            percent = {
                part: more_percent(mine[column], its[column]) for part, mine, its in against(found)
            }
            return parts(less, 0, percent, unit="% more")

        yield read(of, sentence, every, lower, paper=said, **words)

    def sooner(found: Mapping[str, DataFrame]) -> list[Claim]:
        minutes = {
            part: its["recovery_min"] - mine["recovery_min"] for part, mine, its in against(found)
        }
        return parts(more, 0, minutes, unit="min sooner")

    yield read(
        of,
        "LT-UA recovers quickly, while LT-I and LT-U remain above the threshold",
        every,
        sooner,
        paper="quickly; the others remain high",
        **words,
    )


def _bursts(frame: DataFrame, parameters: Bursts, policy: str, high: float) -> DataFrame:
    """A row per seed, means over the bursts.

    Columns: `peak` (% of the memory), `used` (mean in the hour from a burst on), `recovery_min` (to below
    `high`) and `ttft_s` (95th percentile of the worst bin).
    """
    import pandas as pd

    used = utilisation(frame, policy, LLAMA_2, REGION)
    latency = interactive(frame, policy).astype({"hour": float, "ttft_s_p95": float})
    rows = []
    for seed, at_h in product(parameters.seed_list(), parameters.bursts_h):
        its = used[seed].dropna()
        hour, after_h = its.index.to_numpy(float), at_h + AFTER_H
        late = where(latency, seed=seed)
        late = late[late["hour"].between(at_h, after_h, inclusive="left")]
        rows.append(
            {
                "seed": seed,
                "peak": 100 * its[(hour >= at_h) & (hour <= after_h)].max(),
                "used": its[(hour > at_h) & (hour <= at_h + 1)].mean(),
                "recovery_min": recovery_min(hour, its.to_numpy(float), at_h, high),
                "ttft_s": late["ttft_s_p95"].max(),
            }
        )
    return pd.DataFrame(rows).groupby("seed").agg(lambda of: np.mean(of.to_numpy()))
