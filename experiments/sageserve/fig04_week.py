"""Requests and tokens per second over the week, interactive and not.

The generated week (mix `sageserve-week`) beside the published one: interactive requests with a daily wave
that all but stops at the weekend, and fewer non-interactive ones without one. Lines are hourly means of one
draw; steps are the 4-hour means read off the source's figures, raised by the same factor as the mix (10.2
instead of 7.4 million requests). The request trace itself is not published.

The week is drawn to what is published, so that what it is like is asked and not judged: the paper's
sentences on the figure, the released notebooks, and curves read off saved figures. Ours: shapes of lengths,
and the noise of what was not measured (see the mix). Which day is which follows the source's labels; the
paper's own figure cannot be read off in the text at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, about, asked, at_least, at_most, every, less, more
from experiments.harness.figure import SEEDS, Grid, claimed, dress, where
from experiments.harness.parameters import Parameters, paper
from experiments.output import new_figure
from experiments.sageserve.setting import DAYS, RAISED, binned
from llmscale_env.workload.week import WEEK_LLMS, sageserve_week

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 4"
PUBLISHED = Path(__file__).parent.parent / "data" / "sageserve_week_4h.csv"
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


MINUTES = {
    "ratio_p90": ("over the one before, 90th percentile", 1.24, 1.19),
    "ratio_p99": ("over the one before, 99th percentile", 1.91, None),
    "level_p99": ("over its hour's median, 99th percentile", 2.6, 1.5),
    "level_sd": ("over its hour's median, standard deviation", 0.32, 0.16),
}
"""Statistics of minutes of prompt tokens: what each is, and its value for the source's models A and C."""


@claimed
def claims(frame: DataFrame, parameters: WholeWeek) -> Iterator[Claim]:
    """Section 3.3 on the figure and the released notebooks: questions, as it is drawn to them."""
    import pandas as pd

    hours = where(frame, row="hour")
    shapes = pd.DataFrame([shape(part) for _, part in hours.groupby("seed")])
    unit = {"requests": 1e-6, "niw_share": 100.0, "niw_tokens": 100.0}
    of = {name: mean_interval(unit.get(name, 1.0) * values) for name, values in shapes.items()}
    how = "drawn from hourly rates that were read off the released notebooks' figures"
    words: Any = {"how": how}
    yield asked(
        more(
            "Have interactive requests a diurnal pattern?",
            1,
            of["peak_to_trough"],
            paper="diurnal",
            setting="highest over lowest 4 hours of a day, Tuesday to Friday",
            **words,
        )
    )
    yield asked(
        less(
            "Are non-interactive requests fewer than interactive ones?",
            50,
            of["niw_share"],
            unit="% of requests",
            paper="lower",
            **words,
        )
    )
    yield asked(
        about(
            "Are non-interactive requests not periodic, as in the released notebooks?",
            0.45,
            of["daily"],
            nothing=1,
            paper="not periodic; 0.45 in the released notebooks",
            setting="daily wave relative to the mean, over that of interactive requests",
            **words,
        )
    )
    yield asked(
        about(
            "Do non-interactive requests stay as stable through the week as in the released notebooks?",
            0.67,
            of["background_weekend"],
            nothing=None,
            paper="stable; 0.67 in the released notebooks",
            setting="weekend over weekdays; interactive requests fall to 0.2",
            **words,
        )
    )
    yield asked(
        at_least(
            "Has the week over 10 million requests, as the introduction says?",
            10,
            of["requests"],
            nothing=None,
            unit="million",
            note="the mix is raised to this number: the released hourly counts have 7.4 million",
        )
    )
    words = {"paper": "released notebooks"}
    yield asked(
        every(
            "Does the draw have the hours of the released notebooks?",
            [
                about("interactive, weekend over weekdays", 0.23, of["weekend"], nothing=1),
                about("interactive, highest over lowest 4 h", 3.5, of["peak_to_trough"], nothing=1),
                about("% non-interactive requests", 18, of["niw_share"], nothing=50),
                about("% non-interactive tokens", 13, of["niw_tokens"], nothing=50),
                at_most("distance of 4-hour means", 0.1, of["difference"], nothing=1),
            ],
            **words,
        )
    )
    parts = [
        about(
            f"model {model}, a minute {meaning}",
            value,
            mean_interval(where(frame, row="texture", kind=model)[name]),
            nothing=0 if name == "level_sd" else 1,
        )
        for name, (meaning, *values) in MINUTES.items()
        for model, value in zip("AC", values, strict=True)
        if value is not None
    ]
    reason = (
        "spikes of the mix last one minute; those of the source build up over several or are fewer"
    )
    sentence = "Do minutes of prompt tokens vary as in the released notebooks?"
    yield asked(every(sentence, parts, reason=reason, **words))
