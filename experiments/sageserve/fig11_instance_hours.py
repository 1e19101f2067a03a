"""A peak day under four strategies: instance-hours, latency, memory utilisation and scaling waste.

Llama-2-70B on a peak day, with the other three LLMs beside it: reactive, LT-I, LT-U and LT-UA on the same
requests, all from 8 instances per LLM and region. Figures 11 and 12 have billed instance-hours, Figure 13
95th percentiles of interactive requests by clients' region, Figure 14 effective memory utilisation, Figure
15 hours of VMs that were paid for and did not serve yet. The paper does not name its peak day; ours is
Thursday, which has most tokens of Llama-2, and forecasts know the day before.

Hours are billed from the order of a VM until it is leased out again. The released simulator counts KV of
every attention head, for Llama-2 eight times what it is; further runs in which Llama-2 scales at an eighth
of the thresholds show what that means ("as the released code counts"). An endpoint has at most 20 instances
(Figure 5), as many as VMs of its own; so that VMs of other LLMs are taken too, as in Figure 15, further
runs leave room for 40. Dollars are hours times a price, $98.32 in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from agents.statistics import Interval, mean_interval
from experiments.harness.claims import (
    Claim,
    about,
    asked,
    at_most,
    best_of,
    between,
    every,
    gain,
    less,
    more,
)
from experiments.harness.figure import (
    SEEDS,
    Grid,
    claimed,
    dress,
    paper_stars,
    places,
    where,
)
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.sageserve.days import (
    LATENCIES,
    NAMES,
    PLACES,
    POLICIES,
    STYLES,
    TIME,
    by_seed,
    instances,
    less_percent,
    more_percent,
    percentile,
    run_days,
    saved_percent,
    utilisation,
)
from experiments.sageserve.days import LLAMA_2 as LLM
from experiments.sageserve.setting import SHOWN, parts

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

NOT_WORSE = 5.0
"""Percent by which a latency may grow and still count as "not harmed" (ours)."""

SLO_TTFT_S = 60.0
"""The loosest level of section 3.3: "from a second to a minute", for the 95th percentile."""


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


cases = Grid(
    {
        "bursts": ([],),
        "bin_h": lambda parameters, case: (parameters.hours,),
        "variation": lambda parameters, case: [
            {"thresholds_over": times, "most": most}
            for times, most in dict.fromkeys(
                (
                    (1.0, OWN_VMS),
                    (parameters.thresholds_over, OWN_VMS),
                    (1.0, parameters.more_room),
                )
            )
        ],
        "seed": SEEDS,
        "policy": POLICIES,
    },
    keep=("from_h", "hours", "history_h", "interval_s", "rate_scale"),
    first=(
        *("from_h", "hours", "history_h", "interval_s", "rate_scale", "thresholds_over"),
        *("bursts", "bin_h", "policy", "most"),
    ),
)


def varied(frame: DataFrame, *, thresholds_over: float = 1.0, most: int = OWN_VMS) -> DataFrame:
    """Rows of one variation, without its columns."""
    mine = where(frame, thresholds_over=thresholds_over, most=most)
    return mine.drop(columns=["thresholds_over", "most"])


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of `days`."""
    return run_days(case)


def excerpt(frame: DataFrame, parameters: Day) -> DataFrame:
    """Totals of all runs; latencies of interactive requests, and of the first seed series, of one LLM."""
    one = frame["llm"] == LLM
    latency = (frame["kind"] == "latency") & one & (frame["slo_class"] == "interactive")
    drawn = (frame["kind"] == "series") & one & (frame["seed"] == frame["seed"].min())
    columns = ["requests", "unfinished", "on_time", "reclaims_own", "reclaims_others", "donations"]
    few = frame[(frame["kind"] == "total") | latency | (drawn & (frame["most"] == OWN_VMS))]
    return few.drop(columns=[name for name in columns if name in few])


def plot(frame: DataFrame, parameters: Day) -> dict[str, Any]:
    """Figures 11 to 15; curves are of the first seed, bars means."""
    seed = parameters.seed_list()[0]
    roomy = varied(frame, most=parameters.more_room)
    frame = varied(frame)
    return {
        "fig11": _instances(frame, seed),
        "fig12": _hours_by_region(frame),
        "fig13": _latencies_by_region(frame),
        "fig14": _memory_by_region(frame, seed),
        "fig15": _waste_by_llm(frame),
        "fig15-room": _waste_by_llm(roomy),
    }


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


HOW = "LT plans each hour's instances from a forecast, reactive orders at 70 % of the memory"
STABLE = ("lt-u", "lt-ua")
"""What repairs LT-I, section 7.3.2."""


@claimed
def claims(frame: DataFrame, parameters: Day) -> Iterator[Claim]:
    """Sentences of sections 7.3.1 to 7.3.3, of the abstract and of the introduction."""
    plain = varied(frame)
    released = varied(frame, thresholds_over=parameters.thresholds_over)
    yield from _hours(plain, released)
    yield _dollars(plain, parameters)
    yield from _latencies(plain)
    yield from _memory(plain)
    yield from _waste(plain)
    if parameters.thresholds_over != 1:
        yield from _as_released(released)
    if parameters.more_room != OWN_VMS:
        yield _with_room(varied(frame, most=parameters.more_room), parameters)


def _saved(frame: DataFrame, numbers: Any) -> list[Claim]:
    """Instance-hours of Llama-2 that each strategy saves against reactive."""
    found = {NAMES[policy]: saved_percent(frame, policy, llm=LLM) for policy in SAVED}
    return parts(gain, numbers, found, nothing=0, unit="% fewer")


def _hours(frame: DataFrame, released: DataFrame) -> Iterator[Claim]:
    pair = ("lt-i", "reactive")
    hours = [by_seed(released, policy, llm=LLM).mean() for policy in pair]
    ttft = [percentile(released, policy, "ttft_s_p95", LLM).mean() for policy in pair]
    yield best_of(
        "SageServe saves up to 25 % of GPU-hours",
        _saved(frame, 25.0),
        paper="up to 25 %",
        setting=f"{SHOWN[LLM]}, peak day",
        how=HOW,
        reason=f"{SAVED_REASON} As the released code counts KV, LT-I has {hours[0]:.0f} instance-hours and "
        f"reactive {hours[1]:.0f}, but 95 % TTFT of {ttft[0]:.0f} s against {ttft[1]:.0f}.",
    )
    yield every(
        "LT-I, LT-U and LT-UA use 24.8, 18.2 and 22.8 % fewer instance-hours than reactive",
        _saved(frame, {NAMES[policy]: number for policy, number in SAVED.items()}),
        how=HOW,
        reason=SAVED_REASON,
    )
    by_region = {
        f"{NAMES[policy]}, {place}": saved_percent(frame, policy, llm=LLM, region=region)
        for policy, (region, place) in product(SAVED, PLACES.items())
    }
    yield every(
        "LT strategies use fewer instance-hours in all regions",
        parts(more, 0, by_region, unit="% fewer"),
        paper="better throughout all regions",
        how=HOW,
        reason="In US-West, whose clients send half of the load, LT keeps the peak's capacity at home; "
        "reactive sends the excess to other regions.",
    )
    yield every(
        "Reactive, LT-I, LT-U and LT-UA use 302, 227, 248 and 233 instance-hours on a peak day",
        parts(
            about,
            {NAMES[policy]: number for policy, number in HOURS.items()},
            {NAMES[policy]: by_seed(frame, policy, llm=LLM) for policy in HOURS},
            nothing=None,
            unit="h",
        ),
        how=HOW,
        reason="The day's interactive tokens over theta, what an instance serves with 95 % of first tokens "
        "within 20 s, are some 300 instance-hours already.",
    )


def _dollars(frame: DataFrame, parameters: Day) -> Claim:
    hours = {policy: by_seed(frame, policy, llm=LLM) for policy in POLICIES}
    week = 7 * parameters.price
    dollars = {NAMES[p]: week * (hours["reactive"] - hours[p]) / 1e6 for p in SAVED}
    return best_of(
        "The savings of a peak day come to $0.5 million a week",
        parts(gain, 0.5, dollars, nothing=0, unit="million $"),
        paper="roughly $0.5M",
        setting=SHOWN[LLM],
        how="instance-hours saved in a day, times 7, times the price",
        reason="The paper's own hours come to at most "
        f"${week * (HOURS['reactive'] - HOURS['lt-i']):,.0f} a week at its price.",
    )


def _latencies(frame: DataFrame) -> Iterator[Claim]:
    def change(*policies: str) -> dict[str, Interval]:
        return {
            f"{NAMES[policy]}, {name}, {place}": more_percent(
                *(percentile(frame, p, column, LLM, region) for p in (policy, "reactive"))
            )
            for policy, (column, name), (region, place) in product(
                policies, LATENCIES.items(), PLACES.items()
            )
        }

    words: Any = {"nothing": None, "unit": "% more"}
    setting = f"95th percentiles, {SHOWN[LLM]}"
    yield every(
        "Proactive scaling does not harm the TTFT and E2E latency of requests (LT-U, LT-UA)",
        parts(at_most, NOT_WORSE, change(*STABLE), **words),
        paper=f"not harmed (read as at most {NOT_WORSE:g} % more)",
        setting=setting,
        how="LT holds instances for the forecast peak; reactive, at about the same hours, orders only when "
        "70 % of the memory is full",
    )
    yield every(
        "LT-I slightly harms the TTFT and E2E latency of requests",
        [between(part, 0, 25, found, **words) for part, found in change("lt-i").items()],
        paper="slightly (read as 0 to 25 % more)",
        setting=setting,
        how="LT-I scales to the plan at the start of the hour, in as well as out",
        reason="LT-I has the instances of the hour's peak from the start of the hour and about reactive's "
        "hours, so nothing is harmed.",
    )
    ttft = {
        f"{NAMES[policy]}, {name}": percentile(frame, policy, "ttft_s_p95", llm)
        for policy, (llm, name) in product(STABLE, SHOWN.items())
    }
    yield every(
        "SageServe satisfies all SLOs (LT-U, LT-UA)",
        parts(at_most, SLO_TTFT_S, ttft, nothing=None, unit="s"),
        paper=f"95 % TTFT within {SLO_TTFT_S:g} s, the loosest level of section 3.3",
        how="LT holds instances for the forecast peak",
        reason="At 70 % of the memory an instance of Llama-2 serves some 120 requests at once; those that "
        "arrive at a full instance wait there.",
    )


def _memory(frame: DataFrame) -> Iterator[Claim]:
    mean = {
        policy: sum(utilisation(frame, policy, LLM, region).mean() for region in PLACES) / 3
        for policy in POLICIES
    }
    above = {NAMES[policy]: more_percent(mean[policy], mean["reactive"]) for policy in SAVED}
    below = {f"{NAMES[p]} against LT-I": more_percent(mean[p], mean["lt-i"]) for p in STABLE}
    words: Any = {
        "setting": f"{SHOWN[LLM]}, mean over day and regions",
        "reason": "Reactive fills its instances up to 70 % by its rule; LT plans for the hour's peak and has "
        "room left over.",
    }
    yield every(
        "SageServe improves hardware utilisation",
        parts(more, 0, above, unit="% more"),
        paper="improving",
        how="effective memory utilisation, against reactive",
        **words,
    )
    yield every(
        "Memory utilisation increases in LT-I, which LT-U and LT-UA resolve",
        [
            *parts(more, 0, {"LT-I": above["LT-I"]}, unit="% more"),
            *parts(less, 0, below, unit="% more"),
        ],
        paper="increases; resolved (read as below LT-I)",
        how="LT-I gives instances back at the start of the hour, LT-U and LT-UA below 30 % of the memory",
        **words,
    )


def _waste(frame: DataFrame) -> Iterator[Claim]:
    total = {
        policy: sum(by_seed(frame, policy, column) for column in WASTED) for policy in POLICIES
    }
    fewer = {NAMES[p]: less_percent(total[p], total["reactive"]) for p in SAVED}
    words: Any = {
        "setting": "hours of VMs that do not serve yet, four LLMs",
        "how": "reactive orders and returns VMs all day, LT changes its target once an hour",
    }
    yield best_of(
        "SageServe reduces the scaling overhead by up to 80 %",
        parts(gain, 80, fewer, nothing=0, unit="% less"),
        paper="up to 80 %",
        **words,
    )
    yield every(
        "SageServe wastes about 70 % fewer GPU cycles during deployment",
        parts(gain, 70, fewer, nothing=0, unit="% less"),
        paper="about 70 %",
        **words,
    )


def _as_released(frame: DataFrame) -> Iterator[Claim]:
    """Questions of ours: what it means that the released code counts KV of every attention head."""
    setting = "Llama-2 scales at an eighth of the thresholds"
    reactive = by_seed(frame, "reactive", llm=LLM).mean()
    yield asked(
        every(
            "Does LT save instance-hours if KV is counted as in the released code?",
            _saved(frame, {NAMES[policy]: number for policy, number in SAVED.items()}),
            note=f"reactive then takes {reactive:.0f} instance-hours",
            setting=setting,
        )
    )
    ttft = {policy: percentile(frame, policy, "ttft_s_p95", LLM) for policy in POLICIES}
    change = {NAMES[policy]: more_percent(ttft[policy], ttft["reactive"]) for policy in SAVED}
    yield asked(
        every(
            "Is the 95 % TTFT of Llama-2 then maintained?",
            parts(at_most, NOT_WORSE, change, nothing=None, unit="% more"),
            reason="Reactive's further instances buy latency; LT plans by theta, whatever the thresholds.",
            setting=setting,
        )
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


SAVED_REASON = (
    "At 70 % of its real KV memory, reactive's instances of Llama-2 already serve nearly all they can. LT "
    "spends the same hours to be there before the load."
)
