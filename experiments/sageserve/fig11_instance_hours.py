"""A peak day under four strategies: instance-hours, latency, memory utilisation and scaling waste.

Llama-2-70B on a peak day, with the other three LLMs beside it; reactive, LT-I, LT-U and LT-UA on the same
requests, all from 8 instances per LLM and region. Figure 11 has the instances of all regions (hours are
billed ones, from the order of a VM until it is leased out again), Figure 12 the hours by region, Figure 13
the 95th percentiles of TTFT and E2E latency of interactive requests by their clients' region, Figure 14
effective memory utilisation, Figure 15 the hours in which VMs were paid for and did not serve yet.

The paper does not name its peak day: ours is Thursday, which has most tokens of Llama-2 in the week. The
forecast knows the day before (ours). The released simulator counts KV of every attention head, for Llama-2
eight times what it is; further runs in which Llama-2 scales at an eighth of the thresholds show what that
means ("as the released code counts"). An endpoint has at most 20 instances (Figure 5), as many as VMs of
its own; so that VMs of other LLMs are taken too, as in Figure 15, further runs leave room for 40. Dollars
are hours times a price, $98.32 in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, about, at_least, at_most, between
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
from experiments.sageserve.setting import SHOWN

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


@claimed
def claims(frame: DataFrame, parameters: Day) -> Iterator[Claim]:
    """Numbers of Figures 11 to 15 and of sections 7.3.1 to 7.3.3."""
    plain = varied(frame)
    yield from _hours(plain)
    yield from _dollars(plain, parameters)
    yield from _latencies(plain)
    yield from _memory(plain)
    yield from _waste(plain)
    if parameters.more_room != OWN_VMS:
        yield from _with_room(varied(frame, most=parameters.more_room), parameters)
    if parameters.thresholds_over != 1:
        yield from _as_released(varied(frame, thresholds_over=parameters.thresholds_over))


def _as_released(frame: DataFrame) -> Iterator[Claim]:
    words: Any = {"reason": RELEASED_REASON}
    for policy, number in SAVED.items():
        sentence = (
            f"{NAMES[policy]} uses {number} % fewer instance-hours, as the released code counts KV"
        )
        saved = saved_percent(frame, policy, llm=LLM)
        yield about(sentence, number, saved, nothing=0, unit="%", **words)
    for (column, name), number in zip(LATENCIES.items(), (34.5, 99.1), strict=True):
        sentence = (
            f"Reactive: 95 % {name} of {SHOWN[LLM]} (Table 1), as the released code counts KV"
        )
        latency = mean_interval(percentile(frame, "reactive", column, LLM))
        yield about(sentence, number, latency, nothing=None, unit="s", **words)


def _hours(frame: DataFrame) -> Iterator[Claim]:
    for policy, number in HOURS.items():
        yield about(
            f"{NAMES[policy]}: instance-hours of {SHOWN[LLM]} on a peak day",
            number,
            mean_interval(by_seed(frame, policy, llm=LLM)),
            nothing=None,
            unit="h",
            reason=HOURS_REASON,
        )
    for policy, number in SAVED.items():
        yield about(
            f"{NAMES[policy]} uses {number} % fewer instance-hours than reactive",
            number,
            saved_percent(frame, policy, llm=LLM),
            nothing=0,
            unit="%",
            reason=SAVED_REASON,
        )
    for policy, (region, place) in product(SAVED, PLACES.items()):
        yield at_least(
            f"{NAMES[policy]} uses fewer instance-hours in {place}",
            1,
            saved_percent(frame, policy, llm=LLM, region=region),
            nothing=0,
            unit="%",
            paper="fewer",
            reason=SAVED_REASON,
        )


def _dollars(frame: DataFrame, parameters: Day) -> Iterator[Claim]:
    saved = by_seed(frame, "reactive", llm=LLM) - by_seed(frame, "lt-ua", llm=LLM)
    week = 7 * (HOURS["reactive"] - HOURS["lt-ua"]) * parameters.price
    yield about(
        f"LT-UA saves $0.5 million a week on {SHOWN[LLM]}",
        0.5e6,
        mean_interval(7 * saved * parameters.price),
        nothing=0,
        unit="$",
        paper="roughly $0.5M",
        reason=(
            f"The paper's own hours, {HOURS['reactive']} and {HOURS['lt-ua']} a day, come to "
            f"${week:,.0f} a week at its price."
        ),
    )


def _latencies(frame: DataFrame) -> Iterator[Claim]:
    words: Any = {"nothing": None, "unit": "% more", "reason": LATENCY_REASON}
    for (column, name), policy, (region, place) in product(
        LATENCIES.items(), SAVED, PLACES.items()
    ):
        more = more_percent(
            *(percentile(frame, p, column, LLM, region) for p in (policy, "reactive"))
        )
        if policy == "lt-i":
            sentence = f"LT-I slightly harms the 95 % {name} in {place}"
            yield between(sentence, 0, 25, more, paper="slightly (read as up to 25 %)", **words)
        else:
            sentence = f"{NAMES[policy]} does not harm the 95 % {name} in {place}"
            said = f"not harmed (read as at most {NOT_WORSE:g} %)"
            yield at_most(sentence, NOT_WORSE, more, paper=said, **words)


def _memory(frame: DataFrame) -> Iterator[Claim]:
    mean = {
        policy: sum(utilisation(frame, policy, LLM, region).mean() for region in PLACES) / 3
        for policy in POLICIES
    }
    yield at_least(
        "LT-I's memory utilisation is above reactive's (mean over day and regions)",
        1,
        more_percent(mean["lt-i"], mean["reactive"]),
        nothing=0,
        unit="% more",
        paper="increases",
        reason=MEMORY_REASON,
    )
    for policy in ("lt-u", "lt-ua"):
        yield at_least(
            f"{NAMES[policy]}'s is below LT-I's",
            1,
            less_percent(mean[policy], mean["lt-i"]),
            nothing=0,
            unit="% less",
            paper="resolved",
            reason=MEMORY_REASON,
        )


def _waste(frame: DataFrame) -> Iterator[Claim]:
    def total(policy: str) -> Any:
        return sum(by_seed(frame, policy, f"waste_{kind}_h") for kind in ("own", "others"))

    for policy in SAVED:
        yield between(
            f"{NAMES[policy]} wastes 70 to 80 % less on VMs that do not serve yet (four LLMs)",
            70,
            80,
            less_percent(total(policy), total("reactive")),
            nothing=0,
            unit="%",
            paper="about 70 % (section 7.3.3), up to 80 % (abstract)",
            reason=WASTE_REASON,
        )


def _with_room(frame: DataFrame, parameters: Day) -> Iterator[Claim]:
    room = f"with room for {parameters.more_room} instances"
    hours = {NAMES[p]: by_seed(frame, p, llm=LLM).mean() for p in POLICIES}
    yield at_least(
        f"Reactive also waits for VMs that it takes from other LLMs for Bloom, {room}",
        0.1,
        mean_interval(by_seed(frame, "reactive", "waste_others_h", llm="bloom-176b")),
        nothing=0,
        unit="instance-hours",
        paper="a bar of Figure 15",
        note=f"instance-hours of {SHOWN[LLM]} {room}: "
        + ", ".join(f"{name} {value:.0f}" for name, value in hours.items()),
    )


HOURS_REASON = (
    "Interactive tokens of the day over theta, what an instance serves with 95 % of first tokens within "
    "20 s, are about 300 instance-hours already, without background work and the hours' peaks."
)
SAVED_REASON = (
    "Reactive has nothing to give: its serving instances take in and put out 3,900 tokens/s, 95 % of what "
    "one can do if nobody ever waits (4,080, as fig02 has it): 70 % of the memory is 120 requests. LT "
    "spends the same hours to be there before the load. In US-West, whose clients send half of it, "
    "LT keeps the peak's capacity at home (epsilon), where reactive sends the excess elsewhere."
)
RELEASED_REASON = (
    "Reactive then takes twice its hours, and they buy latency; LT plans by theta, which lower thresholds "
    "do not change, and uses the same hours as before."
)
LATENCY_REASON = (
    "LT-I has the instances of the hour's peak from the start of the hour on, reactive waits for 70 % of the "
    "memory and then one to five minutes for VMs; both spend about the same hours, so nothing is harmed."
)
MEMORY_REASON = (
    "Reactive fills its instances up to 70 % by its rule, LT plans for the hour's peak: after 17 h UTC its "
    "instances in US-West are at 10 to 20 %, reactive's at 40 to 70 %."
)
WASTE_REASON = (
    "Less is wasted than the paper says: in a day reactive reclaims hundreds of VMs for Llama-2 alone, LT "
    "some tens for all LLMs, as it changes its target once an hour."
)
