"""The week: latency in bins of three hours, GPU-hours and dollars.

Reactive, LT-I, LT-U and LT-UA over the week, Monday 0 h UTC to Sunday 24 h: 95th percentiles of TTFT and E2E
latency of Llama-2-70B's interactive requests by the time of their arrival. The week is run as the text has it
(thresholds of 70 and 30 %, over 10 million requests) and as the released code has (50 and 25 %, 7.4 million).
It is also run with the code's thresholds and the text's requests: within an LLM's own 20 VMs per region, and
with VMs of other LLMs too. Section 7.2 allows the latter, and Figure 15 has it. Hours and dollars are judged
in all of these settings, other sentences in the released code's setting.

All start from 8 instances per LLM and region. GPU-hours are billed ones of all four LLMs (8 GPUs an
instance). They count if Llama-2's latencies are no worse than reactive's and the 95 % TTFT of every LLM is
within a minute. Dotted is an ablation, LT-U that is told the load of the next hour ("oracle").

LT is reactive in the first hour, with nothing to forecast from. A month counts as 52 / 12 weeks. At quick
scale a part of the week: Friday noon to Saturday midnight, a weekday's evening and the start of the
weekend, with the day before to forecast from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, asked, at_least, at_most, best_of, every, gain, less
from experiments.harness.claims import settings as in_settings
from experiments.harness.figure import SEEDS, Grid, claimed, dress, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.sageserve.days import (
    EVERYWHERE,
    LATENCIES,
    LLAMA_2,
    NAMES,
    ORACLE,
    POLICIES,
    STYLES,
    by_seed,
    chosen,
    interactive,
    more_percent,
    percentile,
    run_days,
    saved_percent,
    stairs,
)
from experiments.sageserve.readings import (
    ABOUT,
    IN_SAMPLE,
    MORE_ROOM,
    RELEASED,
    ROOMY,
    TEXT,
    THRESHOLDS,
    at_equal_service,
    by_setting,
    in_sample,
    judged_first,
    read,
    setting,
    short,
    text_and_released,
    within_slo,
)
from experiments.sageserve.setting import DAYS, SHOWN, parts

if TYPE_CHECKING:
    from pandas import DataFrame, Series

FIGURE = "Figure 17"
SERIES = ("series", "latency")
PLANNED = POLICIES[1:]
HOW = "LT plans each hour's instances from a forecast, reactive orders when its memory threshold is passed"
WEEKS_A_MONTH = 52 / 12
WEEKDAYS_H = 120.0
"""When the weekend begins."""


class Week(Parameters):
    """Parameters of this figure."""

    from_h: Annotated[float, paper("section 7.3.5: the week", ge=0, lt=168)] = 0.0
    hours: Annotated[float, paper("section 7.3.5: the week", gt=0, le=168)] = 168.0
    history_h: Annotated[float, ours("nothing comes before the week", ge=0)] = 0.0
    interval_s: Annotated[float, paper("section 5: e.g. every 15 mins", gt=0)] = 900.0
    rate_scale: Annotated[float, ours("the week's own rates", gt=0)] = 1.0
    bin_h: Annotated[float, paper("Figure 17: 3 hours", gt=0)] = 3.0
    price: Annotated[float, paper("Figure 11: $98.32 an instance-hour", gt=0)] = 98.32


PARAMETERS = {
    "quick": Week(seeds=1, from_h=108.0, hours=36.0, history_h=24.0),
    "paper": Week(seeds=3),
}


def settings(parameters: Week, case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Text and released code, and what else either allows."""
    rate = parameters.rate_scale
    return [
        *text_and_released(parameters, case),
        setting(THRESHOLDS, rate, thresholds="released"),
        setting(ROOMY, rate, thresholds="released", most=MORE_ROOM),
        *(setting(name, rate, thresholds="released", most=MORE_ROOM) for name in IN_SAMPLE),
    ]


def policies(parameters: Week, case: Mapping[str, Any]) -> tuple[str, ...]:
    """Those that are run in a setting."""
    return {
        TEXT: (*POLICIES, ORACLE),
        THRESHOLDS: ("reactive", *PLANNED[:2]),
        ROOMY: ("reactive", "lt-i"),
        **{name: (in_sample("lt-i", ttft_s),) for name, ttft_s in IN_SAMPLE.items()},
    }.get(case["setting"], POLICIES)


cases = Grid(
    {
        "seed": SEEDS,
        "setting": settings,
        "policy": policies,
        "bursts": ([],),
    },
    keep=("from_h", "hours", "history_h", "interval_s", "bin_h"),
    first=("setting", "policy", "bursts"),
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of `days`; of intervals none, as hours are summed."""
    return [row for row in run_days(case) if row["kind"] != "series"]


def excerpt(frame: DataFrame, parameters: Week) -> DataFrame:
    """Totals of all runs, and the latencies that are drawn: interactive requests of the first seed."""
    drawn = (
        (frame["kind"] == "latency") & (frame["llm"] == LLAMA_2) & (frame["region"] == EVERYWHERE)
    )
    drawn &= (frame["seed"] == frame["seed"].min()) & (frame["slo_class"] == "interactive")
    drawn &= frame["setting"].isin((TEXT, RELEASED))
    return short(frame[(frame["kind"] == "total") | drawn])


def plot(frame: DataFrame, parameters: Week) -> Any:
    """A column per reading, a panel per latency (first seed)."""
    frames = by_setting(where(frame, seed=parameters.seed_list()[0]))
    figure = new_figure(11, 7)
    panels = figure.subplots(2, len(frames), sharex=True, sharey="row", squeeze=False)
    end = parameters.from_h + parameters.hours
    ticks = np.arange(np.ceil(parameters.from_h / 24) * 24, end + 1, 24)
    for column, (name, mine) in zip(panels.T, frames.items(), strict=True):
        for axes, (latency, label) in zip(column, LATENCIES.items(), strict=True):
            _curves(axes, mine, latency, parameters)
            dress(axes, ylabel=f"95 % {label} (s)", bottom=0, legend={})
        column[0].set_title(f"{SHOWN[LLAMA_2]}, {name}", fontsize=10)
        column[1].set_xticks(ticks, [DAYS[int(t // 24) % 7] for t in ticks])
        column[1].set_xlabel("time of arrival (UTC), bins of three hours")
    return figure


def _curves(axes: Any, frame: DataFrame, column: str, parameters: Week) -> None:
    """A latency over the week, a curve per policy that was run."""
    for policy in (*POLICIES, ORACLE):
        look = {"color": STYLES[policy], "ls": ":" if policy == ORACLE else "-"}
        rows = interactive(frame, policy, llm=LLAMA_2, region=EVERYWHERE)
        rows = rows.assign(hour=parameters.from_h + rows["hour"].astype(float))
        if not rows.empty:
            stairs(axes, rows, column, parameters.bin_h, label=NAMES[policy], **look)


def week_dollars(frame: DataFrame, policy: str, parameters: Week, **which: str) -> Series[float]:
    """What a policy saves in a week against reactive by seed; a part of it is taken as typical."""
    saved = by_seed(frame, "reactive", **which) - by_seed(frame, policy, **which)
    return saved * parameters.price * 168 / parameters.hours


@claimed
def claims(frame: DataFrame, parameters: Week) -> Iterator[Claim]:
    """Sentences of section 7.3.5, of the introduction and of the abstract; questions about the oracle."""
    frames = judged_first(frame)
    yield from _savings(
        {**frames, **by_setting(frame, (THRESHOLDS, ROOMY, *IN_SAMPLE))}, parameters
    )
    yield read(
        frames,
        "SageServe reduces the 95 % TTFT and E2E latency against reactive",
        every,
        lambda mine: _lower(mine, *PLANNED),
        paper="reduced",
        setting=f"{SHOWN[LLAMA_2]}, mean of bins",
        how="LT holds instances for the forecast peak",
        reason="On three mornings the load of Llama-2 doubles, and ARIMA out of sample forecasts too little; "
        "LT may not go beyond its plan. The released code forecasts in sample.",
    )

    def similar(mine: DataFrame) -> list[Claim]:
        early = mine[mine["hour"].astype(float) + parameters.from_h < WEEKDAYS_H]
        apart = {label: _apart(early, column) for column, label in LATENCIES.items()}
        return parts(at_most, 10, apart, nothing=None, unit="% apart")

    yield read(
        frames,
        "LT-U and LT-UA behave similarly during weekdays",
        every,
        similar,
        paper="similarly (read as within 10 %)",
        setting=f"95th percentiles, {SHOWN[LLAMA_2]}, mean of bins",
        how="LT-UA leaves its target only if 5 times or half of the forecast comes, which is rare",
        reason="They part where 5 times or half of the forecast comes late in an hour.",
    )

    def answered(mine: DataFrame) -> list[Claim]:
        of = _answers(mine, "lt-ua")
        share = mean_interval(100 * (1 - of["unfinished"] / of["requests"]))
        return [at_least("LT-UA", 99.9, share, nothing=None, unit="%")]

    yield read(
        frames,
        "SageServe scales to the trace of a week: it answers all requests",
        every,
        answered,
        paper="scales well",
        setting="LT-UA",
        how="requests answered by the end of the week",
    )
    text = by_setting(frame)[TEXT]
    words: Any = {"setting": "an ablation that sees the future"}
    sentence = "Would LT-U with a perfect forecast reduce the 95 % TTFT and E2E latency?"
    yield asked(every(sentence, _lower(text, ORACLE), **words))
    sentence = "Would LT-U with a perfect forecast use 25 % fewer GPU-hours?"
    yield asked(every(sentence, _saved(text, ORACLE), **words))


def _answers(frame: DataFrame, policy: str) -> DataFrame:
    """Requests of all LLMs by seed, and those that were not answered."""
    of = chosen(frame, "latency", policy=policy, region=EVERYWHERE)
    return of.groupby("seed")[["requests", "unfinished"]].sum().astype(float)


def _saved(frame: DataFrame, *policies: str) -> list[Claim]:
    """Hours of four LLMs saved against reactive, at equal service."""
    found = {NAMES[policy]: saved_percent(frame, policy) for policy in policies}
    told = parts(gain, 25, found, nothing=0, unit="% fewer")
    return within_slo(at_equal_service(told, frame, policies, {}), frame, policies)


def _lower(frame: DataFrame, *policies: str) -> list[Claim]:
    """By how much 95th percentiles of Llama-2 are above reactive's."""
    found = {
        f"{NAMES[policy]}, {label}": more_percent(
            *(percentile(frame, p, column, LLAMA_2) for p in (policy, "reactive"))
        )
        for policy in policies
        for column, label in LATENCIES.items()
    }
    return parts(less, 0, found, unit="% more")


def _savings(frames: Mapping[str, DataFrame], parameters: Week) -> Iterator[Claim]:
    def run_there(mine: DataFrame) -> list[str]:
        return [policy for policy in PLANNED if policy in set(mine["policy"])]

    def fewer(name: str, mine: DataFrame) -> Claim:
        hours = best_of("GPU-hours", _saved(mine, *run_there(mine)))
        million = mean_interval(_answers(mine, "reactive")["requests"] / 1e6)
        enough = at_least("requests", 10, million, nothing=None, unit="million")
        verdict = every(name, [hours, enough]).verdict
        return replace(
            hours,
            sentence=f"{name}: {million.mean:.1f} million",
            verdict=verdict,
            reason=f"{million.mean:.1f} million requests" if hours.verdict != verdict else "",
            parts=(hours, enough),
            setting=ABOUT[name],
            unit="% fewer",
        )

    yield in_settings(
        "SageServe uses 25 % fewer GPU-hours over a week of 10 million requests",
        [_unless_it_sees_ahead(name, fewer(name, mine)) for name, mine in frames.items()],
        paper="25 %, over 10 million",
        how=HOW,
        reason="With more requests reactive orders fewer VMs that it soon returns, and LT saves less. The "
        "released counts, with which LT saves most, have 7.4 million.",
    )

    def dollars(name: str, mine: DataFrame, gpus: int = 1) -> Claim:
        policies = run_there(mine)
        found = {
            NAMES[policy]: gpus * week_dollars(mine, policy, parameters) * WEEKS_A_MONTH / 1e6
            for policy in policies
        }
        told = parts(gain, 2, found, nothing=0, unit="million $")
        told = within_slo(at_equal_service(told, mine, policies, {}), mine, policies)
        return replace(best_of(name, told, setting=ABOUT.get(name, "")), unit="million $")

    first, most = next(iter(frames.items()))
    used = by_seed(most, "reactive").mean() * 168 / parameters.hours
    needed = 2e6 / WEEKS_A_MONTH / parameters.price
    yield in_settings(
        "SageServe saves $2 million a month",
        [
            *(_unless_it_sees_ahead(name, dollars(name, mine)) for name, mine in frames.items()),
            asked(dollars(f"{first}, price per GPU", most, 8)),
        ],
        paper="up to $2M (abstract), over $2M (introduction)",
        how="instance-hours of four LLMs saved in the week, times the price",
        reason=f"$2 million a month at the paper's price are {needed:,.0f} instance-hours a week; reactive "
        f"uses {used:,.0f} in all.",
    )


def _unless_it_sees_ahead(name: str, claim: Claim) -> Claim:
    """A forecast that is fitted to the hour which it forecasts is no setting of a system that could run."""
    return asked(claim) if name in IN_SAMPLE else claim


def _apart(frame: DataFrame, column: str) -> Series[float]:
    """By how many percent a latency of LT-U and LT-UA differs, by seed."""
    one, other = (percentile(frame, policy, column, LLAMA_2) for policy in ("lt-u", "lt-ua"))
    return (100 * (other / one - 1)).abs()
