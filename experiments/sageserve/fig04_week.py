"""Requests and tokens per second over the week, interactive and not.

What the generated week (mix `sageserve-week`) has in common with the published one: a daily wave of
interactive requests that all but stops at the weekend, on a background of non-interactive ones that
knows no hour. Lines are means over an hour of one draw, steps the 4-hour means that were read off the
source's figures, raised by the same factor as the mix (10.2 instead of 7.4 million requests). The
request trace is not published, so the claims hold the draw against statistics of it that are:
the paper's text, its released notebooks, and curves read off saved figures. Ours: shapes of lengths,
and the noise of what was not measured (see the mix). Which day is which follows the source's labels;
the paper's own figure cannot be read off in the text at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, about, at_least, at_most
from experiments.harness.figure import SEEDS, Grid, claimed, dress, where
from experiments.harness.parameters import Parameters, paper
from experiments.output import new_figure
from experiments.sageserve.setting import DAYS, binned
from llmscale_env.workload.week import WEEK_LLMS, sageserve_week

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 4"
PUBLISHED = Path(__file__).parent.parent / "data" / "sageserve_week_4h.csv"
PUBLISHED_REQUESTS = 7_435_314.0
"""Of the hourly table that the mix follows; the mix has 10.2 million."""

RAISED = 10.2e6 / PUBLISHED_REQUESTS
KINDS = ("interactive", "non-interactive")
A, C = WEEK_LLMS.index("llama-2-70b"), WEEK_LLMS.index("llama-3.1-8b")
"""LLMs that serve the source's models A and C, whose minutes were measured."""


class WholeWeek(Parameters):
    """Parameters of this figure."""

    rate_scale: Annotated[float, paper("section 1: over 10 million requests", gt=0)] = 1.0


PARAMETERS = {"quick": WholeWeek(seeds=3), "paper": WholeWeek(seeds=5)}


cases = Grid({"seed": SEEDS}, keep=("rate_scale",))


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per hour and kind, and one with the texture of minutes per measured LLM."""
    found = binned(sageserve_week(rate_scale=case["rate_scale"]), case["seed"])
    hours = found.coarser(60)
    requests = hours.requests.sum(axis=(2, 3)) / 3600.0
    tokens = (hours.input_tokens + hours.output_tokens).sum(axis=(2, 3)) / 3600.0
    rows: list[dict[str, Any]] = [
        {
            "row": "hour",
            "kind": KINDS[k],
            "hour": hour,
            "requests_per_s": float(requests[k, hour]),
            "tokens_per_s": float(tokens[k, hour]),
        }
        for k in range(2)
        for hour in range(requests.shape[1])
    ]
    weekdays = found.input_tokens[0, : (5 * 1440)].sum(axis=2)
    for name, llm in (("A", A), ("C", C)):
        rows.append({"row": "texture", "kind": name, **texture(weekdays[:, llm])})
    return rows


def texture(per_minute: NDArray[np.float64]) -> dict[str, float]:
    """How minutes differ: ratios of consecutive ones, and values over their hour's median.

    Args:
        per_minute: (n,) whole hours of minutes.
    """
    before, after = per_minute[:-1], per_minute[1:]
    ratio = after[before > 0] / before[before > 0]
    hours = per_minute[: len(per_minute) // 60 * 60].reshape(-1, 60)
    median = np.median(hours, axis=1, keepdims=True)
    level = (hours / np.where(median > 0, median, np.nan)).ravel()
    return {
        "ratio_p90": float(np.quantile(ratio, 0.9)),
        "ratio_p99": float(np.quantile(ratio, 0.99)),
        "level_p99": float(np.nanquantile(level, 0.99)),
        "level_sd": float(np.nanstd(level)),
    }


def published() -> DataFrame:
    """The source's 4-hour means: bin_start_h, iw_rps, niw_rps, iw_tokens_per_s, niw_tokens_per_s."""
    import pandas as pd

    return pd.read_csv(PUBLISHED, comment="#")


def excerpt(frame: DataFrame, parameters: WholeWeek) -> DataFrame:
    """The hours of the first seed, which are drawn, and what is not by the hour of all."""
    return frame[(frame["row"] != "hour") | (frame["seed"] == frame["seed"].min())]


def plot(frame: DataFrame, parameters: WholeWeek) -> Any:
    """Requests above, tokens below; the draw as lines, the source as steps."""
    hours = frame[(frame["row"] == "hour") & (frame["seed"] == frame["seed"].min())]
    source = published()
    figure = new_figure(11, 6)
    top, bottom = figure.subplots(2, 1, sharex=True)
    scale = RAISED * parameters.rate_scale
    for kind, short, color in zip(KINDS, ("iw", "niw"), ("C0", "C1"), strict=True):
        mine = where(hours, kind=kind).sort_values("hour")
        at = (mine["hour"] + 0.5) / 24
        edges = np.append(source["bin_start_h"], 168) / 24
        label = f"{kind}, published (4 h, raised {RAISED:.2f} times)"
        for axes, what, unit in ((top, "rps", 1.0), (bottom, "tokens_per_s", 1e3)):
            rate = mine["requests_per_s" if what == "rps" else what] / unit
            axes.plot(at, rate, color=color, lw=1.2, label=f"{kind}, generated")
            theirs = source[f"{short}_{what}"] * scale / unit
            axes.stairs(theirs, edges, color=color, ls="--", lw=1, alpha=0.7, label=label)
    bottom.set_xlabel("day of the week (UTC)")
    bottom.set_xticks(np.arange(7) + 0.5, DAYS)
    for axes, label in ((top, "requests per second"), (bottom, "thousand tokens per second")):
        dress(axes, ylabel=label, xlim=(0, 7), bottom=0)
        for day in range(1, 7):
            axes.axvline(day, color="0.8", lw=0.8)
    top.legend(fontsize=8, ncols=2)
    return figure


def shape(hours: DataFrame) -> dict[str, float]:
    """The numbers that claims are about, of one draw (rows of hours)."""
    columns = ["requests_per_s", "tokens_per_s"]
    by = [where(hours, kind=kind).sort_values("hour")[columns].to_numpy(float).T for kind in KINDS]
    (iw, iw_tps), (niw, niw_tps) = by
    weekend, background = (_weekend(rps.reshape(7, 24).mean(axis=1)) for rps in (iw, niw))
    ours_4h = iw.reshape(42, 4).mean(axis=1)
    wave = ours_4h[6:30].reshape(4, 6)
    theirs = published()["iw_rps"].to_numpy(dtype=float)
    return {
        "requests": float((iw + niw).sum() * 3600),
        "weekend": weekend,
        "background_weekend": background,
        "peak_to_trough": float((wave.max(axis=1) / wave.min(axis=1)).mean()),
        "niw_share": float(niw.sum() / (iw + niw).sum()),
        "niw_tokens": float(niw_tps.sum() / (iw_tps + niw_tps).sum()),
        "daily": daily_wave(niw[24:120]) / daily_wave(iw[24:120]),
        "difference": float(np.abs(ours_4h / ours_4h.mean() - theirs / theirs.mean()).mean()),
    }


def _weekend(days: NDArray[np.float64]) -> float:
    """The mean of Saturday and Sunday over that of the five days before."""
    return float(days[5:].mean() / days[:5].mean())


def daily_wave(rates: NDArray[np.float64]) -> float:
    """Amplitude of the sinusoid with a period of a day in hourly rates, over their mean."""
    turn = np.exp(-2j * np.pi * np.arange(len(rates)) / 24)
    return float(2 * np.abs((rates * turn).mean()) / rates.mean())


@claimed
def claims(frame: DataFrame, parameters: WholeWeek) -> Iterator[Claim]:
    """The paper's text, and statistics of its published notebooks."""
    import pandas as pd

    hours = where(frame, row="hour")
    of = pd.DataFrame([shape(part) for _, part in hours.groupby("seed")])
    notebooks = "released notebooks"
    yield at_least(
        "The week has over 10 million requests",
        10,
        mean_interval(of["requests"] / 1e6),
        nothing=None,
        unit="million",
        paper="over 10 million",
    )
    yield about(
        "Interactive requests at the weekend, over those of weekdays",
        0.23,
        mean_interval(of["weekend"]),
        nothing=1,
        paper=f"0.23 ({notebooks})",
    )
    yield about(
        "Non-interactive requests stay stable through the week: weekend over weekdays",
        0.67,
        mean_interval(of["background_weekend"]),
        nothing=None,
        paper=f"0.67 ({notebooks})",
    )
    yield about(
        "Interactive requests are diurnal: highest over lowest 4 hours of a weekday",
        3.5,
        mean_interval(of["peak_to_trough"]),
        nothing=1,
        paper=f"about 3.5 ({notebooks})",
        reason="the published number is the largest of a day's ratios, this the mean of Tuesday to "
        "Friday: the source's own 4-hour means have 2.0 on Tuesday, 3.2, 3.0 and 2.6 after it",
    )
    yield about(
        "Non-interactive requests are not periodic: daily wave, relative to their mean, over that of "
        "interactive ones",
        0.45,
        mean_interval(of["daily"]),
        nothing=1,
        paper="not periodic; 0.45 (4-hour means of the released notebooks)",
        note="amplitudes of the sinusoid with a period of a day, Tuesday to Friday; what there is of it "
        "in the source comes from higher days, Tuesday and Friday",
        reason="bursts of model B's non-interactive requests are drawn anew for every week and add to it",
    )
    for sentence, column, number, unit, said in (
        ("Non-interactive requests are fewer", "niw_share", 18, "requests", "lower; 18 %"),
        ("Non-interactive tokens", "niw_tokens", 13, "tokens", "13 %"),
    ):
        yield about(
            sentence,
            number,
            mean_interval(100 * of[column]),
            nothing=50,
            unit=f"% of {unit}",
            paper=f"{said} ({notebooks})",
        )
    yield at_most(
        "Interactive 4-hour means follow the published ones",
        0.1,
        mean_interval(of["difference"]),
        nothing=1,
        unit="of the mean",
        paper="ours: within a tenth of the mean",
        reason="the hourly table that the mix follows was read off a noisier figure than the "
        "4-hour means",
    )
    meaning = {
        "ratio_p90": "a minute over the one before, 90th percentile",
        "ratio_p99": "a minute over the one before, 99th percentile",
        "level_p99": "a minute over its hour's median, 99th percentile",
        "level_sd": "standard deviation of a minute over its hour's median",
    }
    for model, name, value in (
        ("A", "ratio_p90", 1.24),
        ("A", "ratio_p99", 1.91),
        ("A", "level_p99", 2.6),
        ("A", "level_sd", 0.32),
        ("C", "ratio_p90", 1.19),
        ("C", "level_p99", 1.5),
        ("C", "level_sd", 0.16),
    ):
        yield about(
            f"Prompt tokens of model {model}: {meaning[name]}",
            value,
            mean_interval(where(frame, row="texture", kind=model)[name]),
            nothing=0 if name == "level_sd" else 1,
            paper=f"{value} ({notebooks})",
            reason="spikes of the mix last one minute and are 1.2 % of all, so a little more than one "
            "ratio in a hundred is 2 or more; those of the source build up over more than a minute or "
            "are fewer"
            if (model, name) == ("A", "ratio_p99")
            else "noise of minutes, arrivals and log-normal prompts together; the mix sets the standard "
            "deviation, not this quantile",
        )
