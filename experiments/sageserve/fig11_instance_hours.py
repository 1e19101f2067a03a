"""A peak day under four strategies: instance-hours, latency, memory utilisation and scaling waste.

Llama-2-70B on a peak day, with the other three LLMs beside it: reactive, LT-I, LT-U and LT-UA on the same
requests, all from 8 instances per LLM and region. Pictures are of the text's setting (thresholds of 70 and
30 %, over 10 million requests a week), but for the map of settings, up to those of the released code (50 and
25 %, 7.4 million). Levels of service and use of the hardware are judged in all settings of the map, other
sentences in the released code's.

The released code's numbers are run together and each alone, and together with an epsilon below 1, which
section 5.1 allows without a number. What is gained at a latency worse by more than the paper's sentence
allows does not count.

Figures 11 and 12 have billed instance-hours, Figure 13 95th percentiles of interactive requests by clients'
region, Figure 14 effective memory utilisation, Figure 15 hours of VMs that were paid for and did not serve
yet. The paper does not name its peak day; ours is Thursday, which has most tokens of Llama-2, and forecasts
know the day before.

Hours are billed from the order of a VM until it is leased out again. The released simulator counts KV of
every attention head, for Llama-2 eight times what it is; a setting in which Llama-2 scales at an eighth of
the text's thresholds shows what that means. An endpoint has at most 20 instances (Figure 5), as many as VMs
of its own; so that VMs of other LLMs are taken too, as in Figure 15, further runs leave room for 40. Dollars
are hours times a price, $98.32 in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from agents.statistics import Interval, mean_interval
from experiments.harness.claims import (
    Claim,
    about,
    asked,
    at_least,
    at_most,
    best_of,
    between,
    every,
    gain,
    less,
    more,
)
from experiments.harness.claims import settings as in_settings
from experiments.harness.figure import SEEDS, Grid, claimed, dress, paper_stars, places, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.sageserve.days import (
    EVERYWHERE,
    LATENCIES,
    NAMES,
    PLACES,
    POLICIES,
    STYLES,
    TIME,
    by_seed,
    chosen,
    instances,
    less_percent,
    more_percent,
    percentile,
    run_days,
    saved_percent,
    utilisation,
)
from experiments.sageserve.days import LLAMA_2 as LLM
from experiments.sageserve.readings import (
    ABOUT,
    EPSILON,
    KV,
    LOAD,
    NOT_WORSE,
    RELEASED,
    REROUTED,
    SLIGHTLY_REROUTED,
    TEXT,
    THRESHOLDS,
    as_released,
    at_equal_service,
    by_setting,
    half_hours,
    judged_first,
    nearest,
    read,
    setting,
    short,
    worse_percent,
)
from experiments.sageserve.setting import RAISED, SHOWN, parts

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figures 11 to 15"
SERIES = ("series",)
WASTED = ("waste_own_h", "waste_others_h")
LESS_WASTE = 0.7
"""Of GPU time until instances serve, section 7.3."""
HOURS = {"reactive": 302.25, "lt-i": 227.25, "lt-u": 247.5, "lt-ua": 233.25}
SAVED = {"lt-i": 24.8, "lt-u": 18.2, "lt-ua": 22.8}
OWN_VMS = 20
"""Of an LLM in a region, and instances at an endpoint (section 4, Figure 5)."""

SLIGHTLY = 25.0
"""Percent by which LT-I, which "slightly harms" latencies, may make them worse (ours)."""

ROOM = "text, more room"
MAP = (TEXT, THRESHOLDS, LOAD, RELEASED, SLIGHTLY_REROUTED, REROUTED, KV)
"""Settings in which hours are compared, from the text's to those of the released code."""

SLOS = {
    "a second": (1.0, "section 3.3: the tighter end"),
    "10 s": (10.0, "released code"),
    "a minute": (60.0, "section 3.3: the looser end; Table 1 has 34.5 s"),
}
"""Limits of the 95 % TTFT, and where each stands; section 3.3: "ranges from a second to a minute"."""


class Day(Parameters):
    """Parameters of these figures."""

    from_h: Annotated[float, ours("Thursday: most tokens of Llama-2", ge=0, lt=168)] = 72.0
    hours: Annotated[float, paper("section 7.3.1: a single day", gt=0, le=168)] = 24.0
    history_h: Annotated[float, ours("the day before, to forecast from", ge=0)] = 24.0
    interval_s: Annotated[float, paper("section 5: e.g. every 15 mins", gt=0)] = 900.0
    rate_scale: Annotated[float, ours("the week's own rates", gt=0)] = 1.0
    thresholds_over: Annotated[
        float, ours("also at thresholds so much lower: KV heads counted by the released code", ge=1)
    ] = 8.0
    more_room: Annotated[
        int, ours("also with room for so many instances at an endpoint: VMs of other LLMs", ge=20)
    ] = 40
    price: Annotated[float, paper("Figure 11: $98.32 an instance-hour", gt=0)] = 98.32


PARAMETERS = {"quick": Day(seeds=1), "paper": Day(seeds=5)}


def settings(parameters: Day, case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The readings, what differs between them alone, KV as the released code counts it, and more room."""
    rate = parameters.rate_scale
    usual: dict[str, Any] = {"thresholds_over": 1.0, "most": OWN_VMS}
    return [
        setting(TEXT, rate, **usual),
        setting(THRESHOLDS, rate, thresholds="released", **usual),
        setting(LOAD, rate, load=1 / RAISED, **usual),
        as_released(RELEASED, rate, **usual),
        as_released(REROUTED, rate, **usual) | {"epsilon": EPSILON},
        as_released(SLIGHTLY_REROUTED, rate, **usual) | {"epsilon": 0.9},
        setting(KV, rate, **usual) | {"thresholds_over": parameters.thresholds_over},
        setting(ROOM, rate, **usual) | {"most": parameters.more_room},
    ]


cases = Grid(
    {
        "bursts": ([],),
        "bin_h": lambda parameters, case: (parameters.hours,),
        "setting": settings,
        "seed": SEEDS,
        "policy": lambda parameters, case: (
            POLICIES[1:] if case["setting"] == SLIGHTLY_REROUTED else POLICIES
        ),
    },
    keep=("from_h", "hours", "history_h", "interval_s"),
    first=("from_h", "hours", "history_h", "interval_s", "setting", "bursts", "bin_h", "policy"),
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of `days`."""
    return run_days(case)


def excerpt(frame: DataFrame, parameters: Day) -> DataFrame:
    """What is drawn: latencies of interactive requests and hours of one LLM; in two settings of all LLMs.

    Of curves, which are drawn by the quarter of an hour, the full and half hours.
    """
    one = frame["llm"] == LLM
    latency = (frame["kind"] == "latency") & one & (frame["slo_class"] == "interactive")
    total = (frame["kind"] == "total") & (one | frame["setting"].isin((TEXT, ROOM)))
    series = (frame["kind"] == "series") & one & (frame["setting"] == TEXT)
    series &= (frame["seed"] == frame["seed"].min()) & half_hours(frame)
    return short(frame[total | latency | series])


def plot(frame: DataFrame, parameters: Day) -> dict[str, Any]:
    """Figures 11 to 15 as the text has it, and the map; curves are of the first seed, bars means."""
    seed = parameters.seed_list()[0]
    every_setting, roomy = by_setting(frame, MAP), where(frame, setting=ROOM)
    frame = where(frame, setting=TEXT)
    return {
        "map": _map(every_setting),
        "fig11": _instances(frame, seed),
        "fig12": _hours_by_region(frame),
        "fig13": _latencies_by_region(frame),
        "fig14": _memory_by_region(frame, seed),
        "fig15": _waste_by_llm(frame),
        "fig15-room": _waste_by_llm(roomy),
    }


def _map(frames: Mapping[str, DataFrame]) -> Any:
    """Hours that each strategy saves in each setting, and what becomes of the worse latency."""
    figure = new_figure(10, 7)
    above, below = figure.subplots(2, 1, sharex=True)
    names = [name.replace(", ", ",\n").replace(" alone", "\nalone") for name in frames]
    for k, policy in enumerate(SAVED):
        x, width = places(k, len(SAVED), len(frames))
        look: dict[str, Any] = {"color": STYLES[policy], "label": NAMES[policy]}
        saved = [saved_percent(mine, policy, llm=LLM).mean for mine in frames.values()]
        above.axhline(0, color="0.3", lw=0.8)
        above.bar_label(above.bar(x, saved, width, **look), fmt="%.0f", fontsize=8)
        label = "the paper (section 7.3.1)" if k == 0 else "_"
        paper_stars(above, x, [SAVED[policy]] * len(frames), label)
        worse = [worse_percent(mine, policy) for mine in frames.values()]
        below.bar_label(below.bar(x, worse, width, **look), fmt="%.0f", fontsize=8)
    below.axhline(0, color="0.3", lw=0.8)
    below.axhline(NOT_WORSE, color="k", ls=":", lw=1, label=f"{NOT_WORSE:g} %: not harmed")
    for axes in (above, below):
        axes.set_xticks(range(len(names)), names)
    what = f"{SHOWN[LLM]}, against reactive"
    dress(above, title=what, ylabel="instance-hours saved (%)", lines="y", legend={})
    dress(below, ylabel="95 % TTFT or E2E latency,\nwhichever grows more (%)", lines="y", legend={})
    return figure


def tables(frame: DataFrame, parameters: Day) -> dict[str, list[dict[str, Any]]]:
    """The map in numbers: instance-hours of Llama-2 and its latencies, a row per setting."""
    return {"map": [_row(name, mine) for name, mine in by_setting(frame, MAP).items()]}


def _row(name: str, mine: DataFrame) -> dict[str, Any]:
    row: dict[str, Any] = {"setting": name}
    row["reactive: instance-hours"] = by_seed(mine, "reactive", llm=LLM).mean()
    ttft = percentile(mine, "reactive", "ttft_s_p95", LLM).mean()
    row["95 % TTFT (s)"] = float(ttft)
    for policy in SAVED:
        saved = saved_percent(mine, policy, llm=LLM).mean
        row[f"{NAMES[policy]}: saved %"] = saved
        row[f"{NAMES[policy]}: latency %"] = worse_percent(mine, policy)
    return row


def _instances(frame: DataFrame, seed: int) -> Any:
    """Figure 11: instances of all regions over the day, hours below the curve in the legend."""
    figure = new_figure(8, 4.5)
    axes = figure.subplots()
    for policy in POLICIES:
        values = instances(frame, policy, LLM)[seed]
        values = values.groupby(np.ceil(values.index.to_numpy() - 1e-9)).mean()
        hours = by_seed(frame, policy, llm=LLM)[seed]
        label = f"{NAMES[policy]}: {hours:.0f} instance-hours (the paper: {HOURS[policy]:g})"
        axes.step(values.index, values, where="pre", color=STYLES[policy], label=label)
    label = "instances in three regions, mean of an hour"
    dress(axes, title=SHOWN[LLM], xlabel=TIME, ylabel=label, bottom=0, legend={})
    return figure


def _bars(axes: Any, names: Iterable[str], label: str, heights: Callable[[str], Any]) -> list[Any]:
    """A group of bars by name, one of each policy; all bars of a policy together."""
    names = list(names)
    made = []
    for k, policy in enumerate(POLICIES):
        x, width = places(k, len(POLICIES), len(names))
        look = {"color": STYLES[policy], "label": NAMES[policy]}
        made.append(axes.bar(x, heights(policy), width, **look))
    axes.set_xticks(range(len(names)), names)
    dress(axes, ylabel=label, lines="y", legend={})
    return made


def _hours_by_region(frame: DataFrame) -> Any:
    """Figure 12: bars of instance-hours by region."""
    figure = new_figure(7, 4)
    axes = figure.subplots()

    def hours(policy: str) -> list[float]:
        return [by_seed(frame, policy, llm=LLM, region=region).mean() for region in PLACES]

    for bars in _bars(axes, PLACES.values(), f"instance-hours of {SHOWN[LLM]}", hours):
        axes.bar_label(bars, fmt="%.0f", fontsize=8)
    return figure


def _latencies_by_region(frame: DataFrame) -> Any:
    """Figure 13: 95th percentiles of TTFT and E2E latency by the clients' region."""
    figure = new_figure(10, 4)
    for axes, (column, name) in zip(figure.subplots(1, 2), LATENCIES.items(), strict=True):

        def latency(policy: str, column: str = column) -> list[float]:
            return [percentile(frame, policy, column, LLM, region).mean() for region in PLACES]

        _bars(axes, PLACES.values(), f"95 % {name} of {SHOWN[LLM]} (s)", latency)
    return figure


def _memory_by_region(frame: DataFrame, seed: int) -> Any:
    """Figure 14: effective memory utilisation, a panel per region."""
    figure = new_figure(9, 8)
    panels = figure.subplots(len(PLACES), 1, sharex=True)
    for axes, (region, name) in zip(panels, PLACES.items(), strict=True):
        for policy in POLICIES:
            used = utilisation(frame, policy, LLM, region)[seed]
            axes.step(used.index, used, where="pre", color=STYLES[policy], label=NAMES[policy])
        for threshold in (0.3, 0.7):
            axes.axhline(threshold, color="0.5", ls=":", lw=1)
        dress(axes, ylabel=f"memory in use, {name}", bottom=0, legend={})
    panels[-1].set_xlabel(TIME)
    return figure


def _waste_by_llm(frame: DataFrame) -> Any:
    """Figure 15: hours of VMs on their way, from the LLM's own spot VMs and from those of others."""
    figure = new_figure(9, 4.5)
    axes = figure.subplots()
    for k, policy in enumerate(POLICIES):
        at, width = places(k, len(POLICIES), len(SHOWN))
        own, others = (
            np.array([by_seed(frame, policy, column, llm=llm).mean() for llm in SHOWN])
            for column in WASTED
        )
        look: dict[str, Any] = {"color": STYLES[policy]}
        axes.bar(at, own, width, label=f"{NAMES[policy]}, own spot VMs", **look)
        look |= {"bottom": own, "alpha": 0.5, "hatch": "//"}
        axes.bar(at, others, width, label=f"{NAMES[policy]}, other LLMs' VMs", **look)
    reactive = [
        sum(by_seed(frame, "reactive", column, llm=llm).mean() for column in WASTED)
        for llm in SHOWN
    ]
    at, _ = places(POLICIES.index("lt-u"), len(POLICIES), len(SHOWN))
    told = [(1 - LESS_WASTE) * hours for hours in reactive]
    paper_stars(axes, at, told, "the paper's 70 % below our reactive (section 7.3)")
    axes.set_xticks(range(len(SHOWN)), list(SHOWN.values()))
    dress(axes, ylabel="instance-hours until VMs served, three regions", lines="y", legend={})
    return figure


HOW = "LT plans each hour's instances from a forecast, reactive orders when its memory threshold is passed"
STABLE = ("lt-u", "lt-ua")
"""What repairs LT-I, section 7.3.2."""


@claimed
def claims(frame: DataFrame, parameters: Day) -> Iterator[Claim]:
    """Sentences of sections 7.3.1 to 7.3.3, of the abstract and of the introduction, all in one reading."""
    frames = judged_first(frame)
    others = {name: mine for name, mine in by_setting(frame, MAP).items() if name not in frames}
    yield from _hours(frames, others)
    yield _dollars(frames, parameters)
    yield from _latencies(frames)
    yield _slos({**frames, **others})
    yield _utilised({**frames, **others})
    yield from _memory(frames)
    yield from _waste(frames)
    roomy = by_setting(frame, (ROOM,))
    if roomy:
        yield _with_room(roomy[ROOM], parameters)


def _saved(
    frame: DataFrame, numbers: Any, allowed: Mapping[str, float] | None = None
) -> list[Claim]:
    """Instance-hours of Llama-2 that each strategy saves against reactive, at equal service."""
    found = {NAMES[policy]: saved_percent(frame, policy, llm=LLM) for policy in SAVED}
    told = parts(gain, numbers, found, nothing=0, unit="% fewer")
    return at_equal_service(told, frame, SAVED, allowed or {})


def _hours(frames: Mapping[str, DataFrame], others: Mapping[str, DataFrame]) -> Iterator[Claim]:
    slightly = {"lt-i": SLIGHTLY}

    def most(name: str, mine: DataFrame) -> Claim:
        told = best_of(name, _saved(mine, 25.0), setting=f"{SHOWN[LLM]}; {ABOUT.get(name, name)}")
        return replace(told, unit="% fewer")

    yield in_settings(
        "SageServe saves up to 25 % of GPU-hours",
        [most(name, mine) for name, mine in {**frames, **others}.items()],
        paper="up to 25 %, tail latency maintained",
        how=HOW,
        reason="What is saved at a worse latency does not count.",
    )
    yield read(
        frames,
        "LT-I, LT-U and LT-UA use 24.8, 18.2 and 22.8 % fewer instance-hours than reactive",
        every,
        lambda mine: _saved(
            mine, {NAMES[policy]: number for policy, number in SAVED.items()}, slightly
        ),
        how=HOW,
        reason=nearest(frames, SAVED, llm=LLM),
    )

    def by_region(mine: DataFrame) -> list[Claim]:
        pairs = list(product(SAVED, PLACES.items()))
        found = {
            f"{NAMES[policy]}, {place}": saved_percent(mine, policy, llm=LLM, region=region)
            for policy, (region, place) in pairs
        }
        told = parts(more, 0, found, unit="% fewer")
        return at_equal_service(told, mine, [policy for policy, _ in pairs], slightly)

    yield read(
        frames,
        "LT strategies use fewer instance-hours in all regions",
        every,
        by_region,
        paper="better throughout all regions",
        how=HOW,
        reason="In US-West, whose clients send half of the load, LT keeps the peak's capacity at home; "
        "reactive sends the excess to other regions.",
    )
    yield read(
        frames,
        "Reactive, LT-I, LT-U and LT-UA use 302, 227, 248 and 233 instance-hours on a peak day",
        every,
        lambda mine: parts(
            about,
            {NAMES[policy]: number for policy, number in HOURS.items()},
            {NAMES[policy]: by_seed(mine, policy, llm=LLM) for policy in HOURS},
            nothing=None,
            unit="h",
        ),
        how=HOW,
        reason="The day's interactive tokens over theta, what an instance serves with 95 % of first tokens "
        "within 20 s, are some 300 instance-hours at the text's load and 220 at the released one.",
    )


def _dollars(frames: Mapping[str, DataFrame], parameters: Day) -> Claim:
    week = 7 * parameters.price

    def dollars(mine: DataFrame) -> list[Claim]:
        hours = {policy: by_seed(mine, policy, llm=LLM) for policy in POLICIES}
        found = {NAMES[p]: week * (hours["reactive"] - hours[p]) / 1e6 for p in SAVED}
        told = parts(gain, 0.5, found, nothing=0, unit="million $")
        return at_equal_service(told, mine, SAVED, {"lt-i": SLIGHTLY})

    return read(
        frames,
        "The savings of a peak day come to $0.5 million a week",
        best_of,
        dollars,
        paper="roughly $0.5M",
        setting=SHOWN[LLM],
        how="instance-hours saved in a day, times 7, times the price",
        reason="The paper's own hours come to at most "
        f"${week * (HOURS['reactive'] - HOURS['lt-i']):,.0f} a week at its price.",
    )


def _latencies(frames: Mapping[str, DataFrame]) -> Iterator[Claim]:
    def change(frame: DataFrame, *policies: str) -> dict[str, Interval]:
        return {
            f"{NAMES[policy]}, {name}, {place}": more_percent(
                *(percentile(frame, p, column, LLM, region) for p in (policy, "reactive"))
            )
            for policy, (column, name), (region, place) in product(
                policies, LATENCIES.items(), PLACES.items()
            )
        }

    words: Any = {"nothing": None, "unit": "% more"}
    place = f"95th percentiles, {SHOWN[LLM]}"
    yield read(
        frames,
        "Proactive scaling does not harm the TTFT and E2E latency of requests (LT-U, LT-UA)",
        every,
        lambda mine: parts(at_most, NOT_WORSE, change(mine, *STABLE), **words),
        paper=f"not harmed (read as at most {NOT_WORSE:g} % more)",
        setting=place,
        how="LT holds instances for the forecast peak; reactive orders only when its memory threshold is "
        "passed",
        reason="Reactive's further instances buy latency.",
    )
    yield read(
        frames,
        "LT-I slightly harms the TTFT and E2E latency of requests",
        every,
        lambda mine: [
            between(part, 0, SLIGHTLY, found, **words)
            for part, found in change(mine, "lt-i").items()
        ],
        paper=f"slightly (read as 0 to {SLIGHTLY:g} % more)",
        setting=place,
        how="LT-I scales to the plan at the start of the hour, in as well as out",
        reason="LT-I has the instances of the hour's peak from the start of the hour, where reactive waits "
        "for its threshold and then for VMs.",
    )


def _slos(frames: Mapping[str, DataFrame]) -> Claim:
    """All levels of service at each limit of TTFT that the paper or its code has."""
    in_code = [
        _levels(f"{limit}, released code", frames[RELEASED], slo_s, f"{source}; {ABOUT[RELEASED]}")
        for limit, (slo_s, source) in SLOS.items()
    ]
    slo_s, source = SLOS["a minute"]
    others = [
        _levels(f"a minute, {name}", mine, slo_s, f"{source}; {ABOUT.get(name, name)}")
        for name, mine in frames.items()
        if name != RELEASED
    ]
    return in_settings(
        "SageServe satisfies all SLOs",
        [*in_code, *others],
        paper="all; 95 % TTFT within a second to a minute, others within 24 h (section 3.3)",
        how="LT holds instances for the forecast peak, so that few requests queue; reactive's Llama-2 breaks "
        "the minute. A second is not met even in the paper's Table 1.",
        reason="Instances of the large LLMs fill up, and requests that arrive at a full one wait there.",
    )


def _levels(name: str, frame: DataFrame, slo_s: float, source: str) -> Claim:
    """The TTFT of interactive requests of each LLM and strategy, the longest first; others' deadline."""
    ttft = {
        f"{NAMES[policy]}, {shown}": mean_interval(percentile(frame, policy, "ttft_s_p95", llm))
        for policy, (llm, shown) in product(SAVED, SHOWN.items())
    }
    ttft = dict(sorted(ttft.items(), key=lambda item: -item[1].mean))
    found = parts(at_most, slo_s, ttft, nothing=None, unit="s")
    if "unfinished" in frame:
        rows = chosen(frame, "latency", slo_class="non-interactive", region=EVERYWHERE)
        for policy in SAVED:
            mine = where(rows, policy=policy).groupby("seed")[["requests", "unfinished"]].sum()
            answered = 100 * (1 - (mine["unfinished"] / mine["requests"]).astype(float))
            # Who waits at midnight is younger than 24 h, so that this asks for more than the deadline.
            unit = "% answered by the end of the day, before any deadline"
            found.append(
                at_least(
                    f"{NAMES[policy]}, non-interactive",
                    95,
                    mean_interval(answered),
                    nothing=None,
                    unit=unit,
                )
            )
    return replace(every(name, found, setting=source), unit="s")


def _against(frame: DataFrame, other: str, *policies: str) -> dict[str, Interval]:
    """By how much the memory in use of Llama-2's instances that serve is above another policy's."""
    mean = {
        policy: sum(utilisation(frame, policy, LLM, region).mean() for region in PLACES) / 3
        for policy in (other, *policies)
    }
    return {NAMES[policy]: more_percent(mean[policy], mean[other]) for policy in policies}


def _of_acquired(frame: DataFrame) -> dict[str, Interval]:
    """By how much more of the memory of all VMs that are paid for is in use than reactive's."""
    of = {}
    for policy in POLICIES:
        mine = chosen(frame, "series", policy=policy)
        used = mine["kv_use"].astype(float) * mine["active"].astype(float)
        of[policy] = used.groupby(mine["seed"]).sum() / by_seed(frame, policy)
    return {NAMES[policy]: more_percent(of[policy], of["reactive"]) for policy in SAVED}


UTILISED = {
    "VMs that serve, Llama-2": (
        lambda frame: _against(frame, "reactive", *SAVED),
        "effective memory utilisation (Figure 14)",
    ),
    "VMs paid for, all LLMs": (_of_acquired, '"utilization of acquired hardware" (section 7.3.3)'),
}
"""What the hardware may be whose memory is in use: how it is measured, and where it stands."""


def _utilised(frames: Mapping[str, DataFrame]) -> Claim:
    def judged(name: str, mine: DataFrame, which: str) -> Claim:
        measure, source = UTILISED[which]
        told = parts(more, 0, measure(mine), unit="% more")
        told = at_equal_service(told, mine, SAVED, {"lt-i": SLIGHTLY}, SHOWN)
        about = f"{source}; {ABOUT.get(name, name)}"
        return replace(every(f"{which}; {name}", told, setting=about), unit="% more")

    return in_settings(
        "SageServe improves hardware utilisation",
        [judged(name, mine, which) for name, mine in frames.items() for which in UTILISED],
        paper="improving",
        how="Reactive orders and returns VMs all day and pays for them until they serve; LT changes its "
        "target once an hour. Instances that serve are no fuller than reactive's.",
        reason="Reactive fills its instances up to its threshold by its rule; LT plans for the hour's peak "
        "and has room left over.",
    )


def _memory(frames: Mapping[str, DataFrame]) -> Iterator[Claim]:
    words: Any = {
        "setting": f"{SHOWN[LLM]}, mean over day and regions",
        "reason": "Reactive fills its instances up to its threshold by its rule; LT plans for the hour's "
        "peak and has room left over.",
    }

    def resolved(mine: DataFrame) -> list[Claim]:
        below = _against(mine, "lt-i", *STABLE)
        below = {f"{name} against LT-I": found for name, found in below.items()}
        return [
            *parts(more, 0, _against(mine, "reactive", "lt-i"), unit="% more"),
            *parts(less, 0, below, unit="% more"),
        ]

    yield read(
        frames,
        "Memory utilisation increases in LT-I, which LT-U and LT-UA resolve",
        every,
        resolved,
        paper="increases; resolved (read as below LT-I)",
        how="LT-I gives instances back at the start of the hour, LT-U and LT-UA below the lower threshold",
        **words,
    )


def _waste(frames: Mapping[str, DataFrame]) -> Iterator[Claim]:
    def fewer(frame: DataFrame, number: float) -> list[Claim]:
        total = {
            policy: sum(by_seed(frame, policy, column) for column in WASTED) for policy in POLICIES
        }
        found = {NAMES[p]: less_percent(total[p], total["reactive"]) for p in SAVED}
        return parts(gain, number, found, nothing=0, unit="% less")

    words: Any = {
        "setting": "hours of VMs that do not serve yet, four LLMs",
        "how": "reactive orders and returns VMs all day, LT changes its target once an hour",
    }
    yield read(
        frames,
        "SageServe reduces the scaling overhead by up to 80 %",
        best_of,
        lambda mine: fewer(mine, 80),
        paper="up to 80 %",
        **words,
    )
    yield read(
        frames,
        "SageServe wastes about 70 % fewer GPU cycles during deployment",
        every,
        lambda mine: fewer(mine, 70),
        paper="about 70 %",
        **words,
    )


def _with_room(frame: DataFrame, parameters: Day) -> Claim:
    return asked(
        more(
            "Does reactive take other LLMs' VMs for Bloom, as in Figure 15?",
            0,
            mean_interval(by_seed(frame, "reactive", "waste_others_h", llm="bloom-176b")),
            unit="instance-hours of waiting for them",
            paper="a bar of Figure 15",
            setting=f"room for {parameters.more_room} instances at an endpoint",
        )
    )
