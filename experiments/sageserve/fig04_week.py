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

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, about, at_least, at_most
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


def cases(parameters: WholeWeek) -> list[dict[str, Any]]:
    """A draw per seed."""
    return [{"seed": seed, "rate_scale": parameters.rate_scale} for seed in parameters.seed_list()]


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


def plot(frame: DataFrame, parameters: WholeWeek) -> Any:
    """Requests above, tokens below; the draw as lines, the source as steps."""
    hours = frame[(frame["row"] == "hour") & (frame["seed"] == frame["seed"].min())]
    source = published()
    figure = new_figure(11, 6)
    top, bottom = figure.subplots(2, 1, sharex=True)
    scale = RAISED * parameters.rate_scale
    for kind, short, color in zip(KINDS, ("iw", "niw"), ("C0", "C1"), strict=True):
        mine = hours[hours["kind"] == kind].sort_values("hour")
        at = (mine["hour"].astype(float) + 0.5) / 24
        edges = np.append(source["bin_start_h"], 168) / 24
        for axes, column, theirs, unit in (
            (top, "requests_per_s", f"{short}_rps", 1.0),
            (bottom, "tokens_per_s", f"{short}_tokens_per_s", 1e3),
        ):
            axes.plot(
                at,
                mine[column].astype(float) / unit,
                color=color,
                lw=1.2,
                label=f"{kind}, generated",
            )
            axes.stairs(
                source[theirs] * scale / unit,
                edges,
                color=color,
                ls="--",
                lw=1,
                alpha=0.7,
                label=f"{kind}, published (4 h, raised {RAISED:.2f} times)",
            )
    top.set_ylabel("requests per second")
    bottom.set_ylabel("thousand tokens per second")
    bottom.set_xlabel("day of the week (UTC)")
    bottom.set_xticks(np.arange(7) + 0.5, DAYS)
    for axes in (top, bottom):
        axes.set_xlim(0, 7)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        for day in range(1, 7):
            axes.axvline(day, color="0.8", lw=0.8)
    top.legend(fontsize=8, ncols=2)
    return figure


def shape(hours: DataFrame) -> dict[str, float]:
    """The numbers that claims are about, of one draw (rows of hours)."""
    by = {
        kind: part.sort_values("hour")
        for kind, part in hours.assign(hour=hours["hour"].astype(int)).groupby("kind")
    }
    rps = {kind: by[kind]["requests_per_s"].to_numpy(dtype=float) for kind in KINDS}
    tps = {kind: by[kind]["tokens_per_s"].to_numpy(dtype=float) for kind in KINDS}
    iw, niw = (rps[kind] for kind in KINDS)
    days = {kind: rps[kind].reshape(7, 24).mean(axis=1) for kind in KINDS}
    wave = iw.reshape(42, 4).mean(axis=1)[6:30].reshape(4, 6)
    theirs = published()["iw_rps"].to_numpy(dtype=float)
    ours_4h = iw.reshape(42, 4).mean(axis=1)
    return {
        "requests": float((iw + niw).sum() * 3600),
        "weekend": float(days[KINDS[0]][5:].mean() / days[KINDS[0]][:5].mean()),
        "background_weekend": float(days[KINDS[1]][5:].mean() / days[KINDS[1]][:5].mean()),
        "peak_to_trough": float((wave.max(axis=1) / wave.min(axis=1)).mean()),
        "niw_share": float(niw.sum() / (iw + niw).sum()),
        "niw_tokens": float(tps[KINDS[1]].sum() / (tps[KINDS[0]] + tps[KINDS[1]]).sum()),
        "daily": daily_wave(niw[24:120]) / daily_wave(iw[24:120]),
        "difference": float(np.abs(ours_4h / ours_4h.mean() - theirs / theirs.mean()).mean()),
    }


def daily_wave(rates: NDArray[np.float64]) -> float:
    """Amplitude of the sinusoid with a period of a day in hourly rates, over their mean."""
    turn = np.exp(-2j * np.pi * np.arange(len(rates)) / 24)
    return float(2 * np.abs((rates * turn).mean()) / rates.mean())


def claims(frame: DataFrame, parameters: WholeWeek) -> list[Claim]:
    """The paper's text, and statistics of its published notebooks."""
    hours = frame[frame["row"] == "hour"]
    shapes = [shape(part) for _, part in hours.groupby("seed")]

    def of(name: str, unit: float = 1.0) -> Any:
        return mean_interval([s[name] / unit for s in shapes])

    textures = frame[frame["row"] == "texture"]

    def minutes(model: str, name: str) -> Any:
        return mean_interval(textures[textures["kind"] == model][name].astype(float))

    notebooks = "released notebooks"
    found = [
        at_least(
            "The week has over 10 million requests",
            10,
            of("requests", 1e6),
            nothing=None,
            unit="million",
            paper="over 10 million",
        ),
        about(
            "Interactive requests at the weekend, over those of weekdays",
            0.23,
            of("weekend"),
            nothing=1,
            paper=f"0.23 ({notebooks})",
        ),
        about(
            "Non-interactive requests stay stable through the week: weekend over weekdays",
            0.67,
            of("background_weekend"),
            nothing=None,
            paper=f"0.67 ({notebooks})",
        ),
        about(
            "Interactive requests are diurnal: highest over lowest 4 hours of a weekday",
            3.5,
            of("peak_to_trough"),
            nothing=1,
            paper=f"about 3.5 ({notebooks})",
            reason="the published number is the largest of a day's ratios, this the mean of Tuesday to "
            "Friday: the source's own 4-hour means have 2.0 on Tuesday, 3.2, 3.0 and 2.6 after it",
        ),
        about(
            "Non-interactive requests are not periodic: daily wave, relative to their mean, over that of "
            "interactive ones",
            0.45,
            of("daily"),
            nothing=1,
            paper="not periodic; 0.45 (4-hour means of the released notebooks)",
            note="amplitudes of the sinusoid with a period of a day, Tuesday to Friday; what there is of it "
            "in the source comes from higher days, Tuesday and Friday",
            reason="bursts of model B's non-interactive requests are drawn anew for every week and add to it",
        ),
        about(
            "Non-interactive requests are fewer",
            18,
            mean_interval([100 * s["niw_share"] for s in shapes]),
            nothing=50,
            unit="% of requests",
            paper=f"lower; 18 % ({notebooks})",
        ),
        about(
            "Non-interactive tokens",
            13,
            mean_interval([100 * s["niw_tokens"] for s in shapes]),
            nothing=50,
            unit="% of tokens",
            paper=f"13 % ({notebooks})",
        ),
        at_most(
            "Interactive 4-hour means follow the published ones",
            0.1,
            of("difference"),
            nothing=1,
            unit="of the mean",
            paper="ours: within a tenth of the mean",
            reason="the hourly table that the mix follows was read off a noisier figure than the "
            "4-hour means",
        ),
    ]
    for model, name, value, text in (
        ("A", "ratio_p90", 1.24, "a minute over the one before, 90th percentile"),
        ("A", "ratio_p99", 1.91, "a minute over the one before, 99th percentile"),
        ("A", "level_p99", 2.6, "a minute over its hour's median, 99th percentile"),
        ("A", "level_sd", 0.32, "standard deviation of a minute over its hour's median"),
        ("C", "ratio_p90", 1.19, "a minute over the one before, 90th percentile"),
        ("C", "level_p99", 1.5, "a minute over its hour's median, 99th percentile"),
        ("C", "level_sd", 0.16, "standard deviation of a minute over its hour's median"),
    ):
        found.append(
            about(
                f"Prompt tokens of model {model}: {text}",
                value,
                minutes(model, name),
                nothing=0 if name == "level_sd" else 1,
                paper=f"{value} ({notebooks})",
                reason="spikes of the mix last one minute and are 1.2 % of all, so a little more than one "
                "ratio in a hundred is 2 or more; those of the source build up over more than a minute or "
                "are fewer"
                if (model, name) == ("A", "ratio_p99")
                else "noise of minutes, arrivals and log-normal prompts together; the mix sets the standard "
                "deviation, not this quantile",
            )
        )
    return found
