"""Attainment against the time that scaling stops for; network use of serving.

BurstGPT-like bursts on Llama-2-7B and 70B (4 GPUs) on cluster A, with a chosen time for every load. Panels
(a) to (d) show the requests that keep the TTFT and the TBT target, by that time. Panels (e) and (f) show the
share of the links between machines that KV caches take when all GPUs serve.

Phases are split, and the trigger is the paper's. As in the paper's simulator a load takes its time whoever
else loads; instances do not work before it is over. All GPUs serve in DistServe (full). The peak second asks
for all instances by the profile (section 6.1), as in Figure 13; `peak` makes it less. With 7B the cluster
then may not recover for minutes: looked at over time, with a stop of 2 s, prefill takes all GPUs but one as a
burst begins, decode finds none when it asks, and prefill instances hold KV caches that nobody takes. Ours:
the workload imitates BurstGPT (the paper's hour is not named); a request's TBT is its mean; who has no first
token at the end counts with the time it has waited; links are looked at 10 times a second and averaged over
each second, in the five minutes around the second in which most requests come.

Settings of the claims, where the paper leaves them open:

- Table 1 has links of 100 Gbps per GPU; section 3, which says that they are under-used, has 200 Gbps;
- the links are measured in "the evaluation setup" (caption), with "workload traces": BurstGPT with both LLMs
  as in (a) to (d), or section 6's three workloads;
- violations are counted against a load of the 70B model from SSD (28 s, section 6.1), or against the longest
  stop of the released scripts (5 s), or against those of ServerlessLLM on the same requests, of whose scaling
  section 2 says "our measurements in the next section show" that it is too slow; or 95 % is the share of all
  requests (section 3: "most of requests");
- stops are of half-hours, or of the five minutes around a peak (`BurstGPT-5min` of the released
  configurations; which five minutes is ours);
- how long a look at the links is, the paper does not say; means over 5 and 10 s are questions of ours;
- 256 Gbps are "per-instance" in words, and the speed of a GPU's PCIe link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from agents.statistics import Interval, mean_interval
from baselines import make_policy
from experiments.blitzscale.end_to_end import scenario_for
from experiments.blitzscale.serving import (
    SYSTEMS,
    Watched,
    episode,
    measured,
    policy_of,
    serve,
    with_stop,
)
from experiments.blitzscale.setting import (
    HOUR_S,
    SCENARIOS,
    SETTINGS,
    Setting,
    Workload,
    horizon_of,
    scaled_workload,
)
from experiments.harness.claims import Claim, about, asked, at_most, best_of, every, settings
from experiments.harness.figure import claimed, dress, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from llmscale_env.cluster.cards import llm_card
from llmscale_env.cluster.machines import BYTES_PER_GBIT
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.schema import Scenario

if TYPE_CHECKING:
    from pandas import DataFrame, Series

FIGURE = "Figure 3"
BURSTY = SETTINGS["burstgpt"]
SERVED: dict[str, Setting] = {
    "llama-2-7b": replace(
        SETTINGS["azure-code"], mix=BURSTY.mix, shown=BURSTY.shown, hosts=BURSTY.hosts
    ),
    "llama-2-70b": BURSTY,
}
"""Targets: section 3. Both models fill the 32 GPUs of cluster A in the peak second."""
BASES = {"llama-2-7b": SCENARIOS["azure-code"], "llama-2-70b": SCENARIOS["burstgpt"]}
LARGE = "llama-2-70b"
SHOWN = {"llama-2-7b": "7B", LARGE: "70B", "llama-3.1-8b": "8B"}
OF_SYSTEMS = {
    "serverlessllm": (
        "ServerlessLLM's (5 min)",
        "section 2: ServerlessLLM; section 3: copies for 5 minutes",
    ),
    "serverlessllm-code": (
        "ServerlessLLM's (30 s)",
        "section 2: ServerlessLLM; released code: copies for 30 s",
    ),
}
"""Whose violations a short stop is to eliminate: "our measurements in the next section show that SSD-based
scaling significantly lags behind applications' requirements", of ServerlessLLM."""
RELEASED_STOP_S = 5.0
"""The longest stop of the released scripts, which have 0 to 5 s."""
TABLE_GBPS = 100.0
"""Of a GPU's link to other machines: Table 1."""
BURSTGPT: Workload = "burstgpt"
TRACES: tuple[Workload, ...] = ("azure-code", "azure-conv")
LOOKS_S = (5, 10)
FEW = 50
"""Episodes with fewer requests have no attainment to speak of."""


class StopTimes(Parameters):
    """Parameters of this figure."""

    seeds: Annotated[int, ours("as many as cost some 20 core-minutes", ge=1)] = 4
    large_seeds: Annotated[
        int, ours("of stops of the 70B model, about which the text has numbers", ge=1)
    ] = 16
    llms: Annotated[
        tuple[Literal["llama-2-7b", "llama-2-70b"], ...], paper("section 3", min_length=1)
    ] = ("llama-2-7b", "llama-2-70b")
    stops_s: Annotated[
        tuple[Annotated[float, Field(ge=0)], ...],
        ours(
            "the paper's axis is only drawn; 5 s is the longest of the released scripts, 11 and 28 s are "
            "loads from SSD",
            min_length=2,
        ),
    ] = (0.0, 0.25, 0.5, 0.75, 1.0, 2.0, 5.0, 11.0, 28.0)
    loading: Annotated[
        tuple[Literal["serverlessllm", "serverlessllm-code"], ...],
        paper(
            "section 2: ServerlessLLM's scaling, against which section 3 measures what is needed; section 3: "
            "copies for five minutes; released code: for 30 s"
        ),
    ] = ("serverlessllm", "serverlessllm-code")
    arrivals_s: Annotated[float, ours("the paper names no length; cost", gt=0)] = 1800.0
    patience_s: Annotated[float, ours("until all have ended", gt=0)] = 60.0
    part_s: Annotated[
        float, paper("released configurations: data sets of 5 minutes; of links and stops", gt=0)
    ] = 300.0
    part_seeds: Annotated[int, ours("of those parts: enough for an interval", ge=1)] = 40
    links_gbps: Annotated[
        tuple[Annotated[float, Field(gt=0)], ...],
        paper("Table 1: 100 per GPU; sections 1 and 3: 200", min_length=1),
    ] = (TABLE_GBPS, 200.0)
    look_s: Annotated[float, ours("between two looks at the links", gt=0)] = 0.1
    peak: Annotated[
        float,
        paper(
            "section 6.1: all instances can handle the peak; their share that it fills", gt=0, le=1
        ),
    ] = 1.0
    most: Annotated[
        float, paper("section 1: 95 %, there of violations; share that 'most' is", gt=0, le=1)
    ] = 0.95


PARAMETERS = {
    "quick": StopTimes(
        seeds=2,
        large_seeds=2,
        part_seeds=4,
        stops_s=(0.0, 0.5, 2.0, 11.0),
        arrivals_s=1200.0,
    ),
    "paper": StopTimes(),
}


def cases(parameters: StopTimes) -> list[dict[str, Any]]:
    """A run per workload, LLM, link and seed for the links, and one per LLM, stop and seed.

    Of the large LLM also one per seed with each system that loads as it can.
    """
    scales = {llm: rate_scale(llm, parameters.peak) for llm in parameters.llms}
    found: list[dict[str, Any]] = []
    for gbps in parameters.links_gbps:
        common = {"kind": "network", "link_gbps": gbps, "look_s": parameters.look_s,
                  "patience_s": parameters.patience_s, "part_s": parameters.part_s}  # fmt: skip
        served: list[dict[str, Any]] = [
            {"workload": BURSTGPT, "llm": llm, "rate_scale": scale, "arrivals_s": HOUR_S}
            for llm, scale in scales.items()
        ]
        served += [
            {"workload": name, "llm": SETTINGS[name].llm, "rate_scale": None,
             "arrivals_s": horizon_of(name)}
            for name in TRACES
        ]  # fmt: skip
        found += [
            {**common, **one, "seed": seed} for one in served for seed in parameters.seed_list()
        ]
    for llm, scale in reversed(scales.items()):
        stop = {"kind": "stop", "workload": BURSTGPT, "llm": llm, "rate_scale": scale,
                "arrivals_s": parameters.arrivals_s, "patience_s": parameters.patience_s}  # fmt: skip
        spans: list[tuple[int, dict[str, Any]]] = [(parameters.seeds, {})]
        ways: list[dict[str, Any]] = [{"stop_s": float(stop_s)} for stop_s in parameters.stops_s]
        if llm == LARGE:
            parts = (parameters.part_seeds, {"part_s": parameters.part_s})
            spans = [parts, (parameters.large_seeds, {})]
            ways += [{"kind": "system", "system": name} for name in parameters.loading]
        found += [
            {**stop, **part, "seed": seed, **way}
            for seeds, part in spans
            for seed in parameters.model_copy(update={"seeds": seeds}).seed_list()
            for way in ways
        ]
    return found


def rate_scale(llm: str, peak: float) -> float:
    """By what the mix's rates are multiplied so that the peak second fills so much of all instances."""
    setting = SERVED[llm]
    workload = scaled_workload(setting, peak * setting.instances, "both", HOUR_S)
    return float(f"{workload.rate_scale:.4g}")


def scenario_of(llm: str, scale: float) -> Scenario:
    """Cluster A with the bursty requests."""
    bursty = load_scenario(BASES[LARGE]).workload.model_dump()
    for stream in bursty["streams"]:
        stream["llm"] = llm
    return load_scenario(BASES[llm], workload={**bursty, "rate_scale": scale})


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Attainment, or the use of links in every second with requests."""
    if case["workload"] == BURSTGPT:
        scenario = scenario_of(case["llm"], case["rate_scale"])
    else:
        column = {"column": case["workload"], "system": "distserve", "whole": True}
        scenario = scenario_for(column)
    if case["kind"] == "stop":
        stopping = with_stop(scenario, case["stop_s"])
        return [measured(serve(stopping, "allcache", case), stopping)]
    if case["kind"] == "system":
        policy = policy_of(case["workload"], case["system"])
        return [measured(serve(scenario, policy, case), scenario)]
    link = {"network.inter_host_bytes_per_s": case["link_gbps"] * BYTES_PER_GBIT}
    fast = load_scenario(scenario, control_interval_s=case["look_s"], **link)
    watched = Watched(make_policy(SYSTEMS["distserve"].policy))
    times = (case["arrivals_s"], case["patience_s"], case["part_s"])
    episode(fast, watched, case["seed"], *times)
    # At the beginning all instances but two load their weights over the same links.
    serving = np.array(watched.loading) == 0
    return by_second(np.array(watched.time_s)[serving], np.array(watched.sent)[serving])


def by_second(time_s: ArrayLike, sent: ArrayLike) -> list[dict[str, Any]]:
    """Mean share in use of every second that was looked at throughout and in which anything is sent."""
    second = np.floor(np.asarray(time_s) + 1e-9).astype(np.int64)
    looks = np.bincount(second)
    whole = looks == looks.max(initial=0)
    use = np.where(whole, np.bincount(second, weights=np.asarray(sent)) / looks.clip(1), 0.0)
    return [{"second": int(t), "use": float(use[t])} for t in np.flatnonzero(use)]


def excerpt(frame: DataFrame, parameters: StopTimes) -> DataFrame:
    """What is drawn: all stops, and the links of the run with the busiest second."""
    import pandas as pd

    attainment = ["requests", "ttft_attainment", "tbt_attainment"]
    which = ["kind", "workload", "llm", "link_gbps", "seed", "stop_s", "part_s", "system"]
    links = [busiest_run(frame, parameters, llm).index for llm in parameters.llms]
    rows = pd.concat([frame[frame["kind"] != "network"], *(frame.loc[index] for index in links)])
    return rows.reindex(columns=[*which, *attainment, "second", "use"])


def plot(frame: DataFrame, parameters: StopTimes) -> Any:
    """A row per LLM: TTFT, TBT, links."""
    figure = new_figure(12.0, 3.4 * len(parameters.llms))
    panels = figure.subplots(len(parameters.llms), 3, squeeze=False)
    for row, llm in zip(panels, parameters.llms, strict=True):
        setting = SERVED[llm]
        name = "70B" if llm == LARGE else "7B"
        for axes, what, target in (
            (row[0], "ttft", setting.ttft_s),
            (row[1], "tbt", setting.itl_s),
        ):
            table = 100 * attained(frame, llm, f"{what}_attainment")
            axes.plot(table.columns, table.mean(), "o-", ms=4, color="C0", label="mean of the runs")
            axes.fill_between(
                table.columns, table.min(), table.max(), color="C0", alpha=0.15, lw=0,
                label="lowest and highest run",
            )  # fmt: skip
            axes.set_xscale("symlog", linthresh=0.25)
            ticks = [t for t in (0, 0.25, 0.5, 1, 2, 4, 11, 28) if t <= max(parameters.stops_s)]
            dress(
                axes,
                title=f"Llama-2-{name}: {what.upper()}",
                size=9,
                ticks=ticks,
                ylim=(0, 103),
                xlabel="time that a scaling stops for (s)",
                ylabel=f"requests within {what.upper()} of {1e3 * target:g} ms (%)",
            )
        if llm == LARGE:
            row[0].axvline(0.5, color="k", ls="--", lw=1, label="the paper: most need this or less")
        row[0].legend(fontsize=7, loc="lower left")
        mine = busiest_run(frame, parameters, llm)
        axes = row[2]
        axes.bar(mine["second"], mine["use"], width=1.0, color="C0",
                 label="run with the busiest second")  # fmt: skip
        axes.axhline(15, color="k", ls="--", lw=1, label="the paper: less than 15 %")
        dress(
            axes,
            title=f"Llama-2-{name}: KV caches of a full cluster",
            size=9,
            xlabel="time (s)",
            ylabel="links between machines in use (%)",
            ylim=(0, max(20.0, 1.1 * float(mine["use"].max())) if len(mine) else 20.0),
            legend={"fontsize": 7, "loc": "upper right"},
        )
    return figure


# ---- what claims are made of ----


def attained(frame: DataFrame, llm: str, column: str, *, parts: bool = False) -> DataFrame:
    """A column by seed (rows) and stop (columns), of episodes, or of parts around a peak, with requests."""
    mine = where(frame, llm=llm, kind="stop")
    mine = mine[mine["part_s"].notna() == parts]
    mine = mine[mine["requests"].astype(float) >= FEW]
    return mine.pivot_table(index="seed", columns="stop_s", values=column).astype(float)


def links_of(frame: DataFrame, workload: str, llm: str, gbps: float) -> DataFrame:
    """The seconds of runs with these links in which anything is sent."""
    mine = where(frame, kind="network", workload=workload, llm=llm, link_gbps=gbps)
    mine = mine.dropna(subset=["use"])
    return mine.assign(use=100 * mine["use"].astype(float))


def busiest_run(frame: DataFrame, parameters: StopTimes, llm: str) -> DataFrame:
    """The run with the busiest second of the slowest links, by second."""
    links = links_of(frame, BURSTGPT, llm, min(parameters.links_gbps))
    seed = links.loc[links["use"].idxmax(), "seed"] if len(links) else None
    return where(links, seed=seed).sort_values("second")


def busiest(links: DataFrame, over_s: int = 1) -> float:
    """The most that a run's links are used in so many seconds in a row, on average over them."""
    second = links["second"].astype(np.int64).to_numpy()
    use = np.bincount(second - second.min(), weights=links["use"].astype(float))
    return float(np.convolve(use, np.ones(over_s)).max() / over_s)


def mean_use(links: DataFrame) -> float:
    """The mean over a run's seconds in which anything is sent."""
    return float(links["use"].astype(float).mean())


def longest(stops_s: Sequence[float], values: Sequence[float], limit: float) -> float:
    """Where a falling curve first crosses a limit, linear in between; NaN: it starts below, or never does."""
    for k in range(1, len(stops_s)):
        if values[k - 1] >= limit > values[k]:
            share = (values[k - 1] - limit) / (values[k - 1] - values[k])
            return float(stops_s[k - 1] + share * (stops_s[k] - stops_s[k - 1]))
    return float("nan")


def gone(table: DataFrame, of_s: float) -> DataFrame:
    """Share of the violations with stops of so long that shorter ones have not, from attainment."""
    missed = 1 - table[[stop for stop in table if stop <= of_s]]
    return 1 - missed.div(missed[of_s], axis=0)


def gone_of(table: DataFrame, missed: Series[float]) -> DataFrame:
    """Share of a system's violations (by seed) that stops have not, from attainment with them."""
    there = missed.index.intersection(table.index)
    return 1 - (1 - table.loc[there]).div(missed[there], axis=0)


def missed_by(frame: DataFrame, system: str, *, parts: bool = False) -> Series[float]:
    """Share of requests over the TTFT target with a system, by seed, as `attained`."""
    mine = where(frame, kind="system", llm=LARGE, system=system)
    mine = mine[mine["part_s"].notna() == parts]
    mine = mine[mine["requests"].astype(float) >= FEW]
    return 1 - mine.set_index("seed")["ttft_attainment"].astype(float)


def crossings(table: DataFrame, limit: float, sign: int = 1) -> list[float]:
    """`longest` of every seed's curve that crosses (rising ones with `sign` -1)."""
    stops = list(table.columns)
    found = [longest(stops, (sign * row).tolist(), sign * limit) for _, row in table.iterrows()]
    return [x for x in found if not np.isnan(x)]


def interval(values: Sequence[float]) -> Interval:
    """Of some values, or of none."""
    nothing = Interval(float("nan"), float("nan"), float("nan"))
    return mean_interval(values) if len(values) else nothing


def by_stop(table: DataFrame, scale: float = 1.0, shape: str = "{:.0f}") -> str:
    """Means in words."""
    return ", ".join(f"{shape.format(scale * v)} at {k:g} s" for k, v in table.mean().items())


@claimed
def claims(frame: DataFrame, parameters: StopTimes) -> Iterator[Claim]:
    """Section 3, and what the introduction makes of it."""
    if LARGE in parameters.llms:
        yield from _large(frame, parameters)
    yield from _network(frame, parameters)


def _network(frame: DataFrame, parameters: StopTimes) -> Iterator[Claim]:
    """Of how much of the links section 3 speaks, in its settings."""
    both = [(BURSTGPT, llm) for llm in parameters.llms]
    three = [(name, SETTINGS[name].llm) for name in (*TRACES, BURSTGPT)]

    def used(
        shown: str,
        runs: Sequence[tuple[Workload, str]],
        gbps: float,
        at: str,
        of: Callable[[DataFrame], float] = busiest,
    ) -> Claim:
        parts = []
        for workload, llm in runs:
            use = [of(mine) for _, mine in links_of(frame, workload, llm, gbps).groupby("seed")]
            name = f"{SHOWN[llm]}, {SETTINGS[workload].shown.split(',')[0]}"
            parts.append(at_most(name, 15, interval(use), nothing=None, unit="%"))
        return every(f"{shown}, {gbps:g} Gbps", parts, setting=at)

    found = []
    for gbps in parameters.links_gbps:
        at = "Table 1" if gbps == TABLE_GBPS else 'section 3: "operates at 200 Gbps"'
        found += [
            used("BurstGPT-like, both LLMs", both, gbps, f"Figure 3; {at}"),
            used("three workloads", three, gbps, f"section 6; {at}"),
        ]
    yield settings(
        "Serving uses less than 15 % of the network",
        [
            *found,
            asked(
                used("mean second, both LLMs", both, min(parameters.links_gbps), "ours", mean_use)
            ),
            # No text has so long a look, and Table 1 has half of these links.
            *(
                asked(
                    used(
                        f"busiest {over_s} s, both LLMs",
                        both,
                        max(parameters.links_gbps),
                        "ours",
                        partial(busiest, over_s=over_s),
                    )
                )
                for over_s in LOOKS_S
            ),
        ],
        paper="less than 15 % (up to 14.4 %)",
        how="KV caches from prefill to decode instances, in the busiest second of DistServe on all GPUs",
        reason="a token of Llama-2-7B has 0.52 MB of KV cache (no grouped heads), so the prompts of the "
        'busiest second alone take more than 15 % of all links; a mean is not the text\'s "peak usage"',
    )


def _large(frame: DataFrame, parameters: StopTimes) -> Iterator[Claim]:
    """What is said of the 70B model."""
    kept = attained(frame, LARGE, "ttft_attainment")
    means = attained(frame, LARGE, "ttft_mean_s")
    setting, card = SERVED[LARGE], llm_card(LARGE)
    per_gpu_gbit = card.weight_bytes / setting.tp / BYTES_PER_GBIT
    longest_s, most = max(parameters.stops_s), 100 * parameters.most
    how = "each load takes a chosen time; the curve over these times is read off where it crosses"
    why = (
        "all that miss the target wait for a load, and few of our requests do, as one or two instances serve "
        "most of them between bursts; which hour the paper took is not known"
    )
    readings = []
    for shown, at, parts in (
        ("half-hours", "section 3", False),
        (f"{parameters.part_s / 60:g}-minute parts", "released code", True),
    ):
        table = attained(frame, LARGE, "ttft_attainment", parts=parts)
        for of_s, by in ((longest_s, "section 6.1: from SSD"), (RELEASED_STOP_S, "released code")):
            if of_s in table:
                value = interval(crossings(gone(table, of_s), parameters.most))
                readings.append((f"{shown}, of those at {of_s:g} s", f"{at}; {by}", value))
        for name in parameters.loading:
            missed = missed_by(frame, name, parts=parts)
            value = interval(crossings(gone_of(table, missed), parameters.most))
            words, by = OF_SYSTEMS[name]
            readings.append((f"{shown}, of {words}", f"{at}; {by}", value))
        value = interval(crossings(table, parameters.most))
        readings.append((f"{shown}, of all requests", f"{at}; section 3: most requests", value))
    yield settings(
        f"A stop time of 500 ms is needed to eliminate {most:g} % of the SLO violations",
        [
            about(words, 0.5, value, nothing=None, unit="s", setting=at)
            for words, at, value in readings
        ],
        how=how,
        reason=why,
        note="Llama-2-70B, BurstGPT-like, TTFT",
    )
    yield about(
        "Achieving the SLO of 1,250 ms for most requests requires a stop time of some 500 ms",
        0.5,
        interval(crossings(kept, parameters.most)),
        nothing=None,
        unit="s",
        how=how,
        setting=f"Llama-2-70B; most is {most:g} % (ours)",
        note=f"% on time: {by_stop(kept, 100)}",
        reason=why,
    )
    stops = [stop for stop in (0.5, 0.0) if stop in means]
    if stops:
        yield best_of(
            "The average TTFT with queueing is 771 ms",
            [
                about(
                    f"stop of {stop:g} s", 0.771, mean_interval(means[stop]), nothing=None, unit="s"
                )
                for stop in stops
            ],
            paper="0.771 s",
            how="mean TTFT over all requests",
            setting="Llama-2-70B; with which stop is not said",
            note=f"s: {by_stop(means, 1, '{:.2f}')}",
            reason="our load is light between bursts: TTFT without stops is near that of an idle instance",
        )
    needed = crossings(means, 1.1, -1)
    yield settings(
        "A TTFT below 1,100 ms needs a scaling speed of 256 Gbps",
        [
            about(
                f"Gbps {per}",
                256,
                interval([gpus * per_gpu_gbit / stop_s for stop_s in needed]),
                nothing=None,
                setting=at,
            )
            for per, gpus, at in (
                ("per instance", setting.tp, 'section 3: "per-instance scaling speed"'),
                ("per GPU", 1, "section 3: that of a GPU's PCIe link"),
            )
        ],
        paper="256 Gbps",
        how=f"{how} 1,100 ms, as weights over time",
        note=f"Llama-2-70B; mean TTFT, reached with stops of {interval(needed).mean:.2g} s",
        reason=why,
    )
