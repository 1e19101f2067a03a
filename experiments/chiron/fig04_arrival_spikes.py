"""Request arrival spikes of real services.

A spike is the arrival rate in an interval over that in the interval before; an interval is as long as a model
takes to load, 15 to 60 s (section 2.3). The paper's two months of production traces are not public. An hour
of the two services of Azure's public traces of 2023 stands in: chat, code completion, and a cluster that
serves both.

The services are the tables of arrivals per second that ship with the library; the cluster is their sum, each
from its first request on. Pairs of intervals begin every `step_s`, so that no choice of a first interval
matters. Dashed: what a Poisson process of the same mean rate has, by counting noise alone. An empty interval
counts as holding one request (`least_before`; 0 leaves pairs that begin with one out), or the spike after
it would be infinite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from experiments.chiron.spikes import consecutive, quantiles, spike_ratios
from experiments.harness.claims import Claim, about, every, exact, led_by
from experiments.harness.figure import Grid, claimed, dress, where
from experiments.harness.parameters import Parameters, ours
from experiments.output import new_figure
from llmscale_env.workload.tables import load_counts

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 4"
SERVICES = {
    "azure-conv-2023": "chat",
    "azure-code-2023": "code",
    "azure-conv-2023+azure-code-2023": "chat and code",
}
LEVELS = {"p90": 0.90, "p99": 0.99}
PAPER = {"p90": 1.6, "p99": 3.0}
LOWEST = 0.1
"""Smaller spikes (falls of the rate, down to nothing) are drawn here."""
CALM_TICKS, WILD_TICKS = (0.5, 1, 2, 3, 5, 10), (1, 10, 100, 1000)


class Spikes(Parameters):
    """Parameters of this figure."""

    seeds: Annotated[int, ours("draws of the Poisson process beside the services", ge=1)] = 20
    tables: Annotated[
        tuple[str, ...], ours("public traces that ship as tables; + adds up", min_length=1)
    ] = tuple(SERVICES)
    load_times_s: Annotated[
        tuple[Annotated[int, Field(ge=1, le=600)], ...],
        ours("both ends of the paper's 15 s to a minute (2.3), and one between", min_length=1),
    ] = (15, 30, 60)
    step_s: Annotated[int, ours("a pair of intervals begins every so often", ge=1)] = 10
    least_before: Annotated[int, ours("an empty interval counts as one request", ge=0)] = 1


PARAMETERS = {"quick": Spikes(seeds=5), "paper": Spikes()}


cases = Grid(
    {
        "table": "tables",
        "load_time_s": "load_times_s",
        "source": ("service", "poisson"),
        "seed": lambda parameters, case: (
            [0] if case["source"] == "service" else parameters.seed_list()
        ),
    },
    keep=("step_s", "least_before"),
    first=("seed", "table", "load_time_s", "step_s", "least_before"),
)


def bins_of(name: str) -> tuple[NDArray[np.int64], float]:
    """Arrivals per bin and the bin's width: of a table, or of several joined by "+" together.

    Raises:
        ValueError: an unknown table, or tables of different bins.
    """
    tables = [load_counts(part) for part in name.split("+")]
    widths = sorted({table.bin_s for table in tables})
    if len(widths) > 1:
        raise ValueError(f"table = {name!r}: bins are {widths} s wide, must be equal to be added")
    n = min(len(table.counts) for table in tables)
    return np.sum([table.counts[:n] for table in tables], axis=0), widths[0]


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of the service all pairs of intervals; of a Poisson process the percentiles of its spikes."""
    bins, bin_s = bins_of(case["table"])
    if case["source"] == "poisson":
        rng = np.random.default_rng(case["seed"])
        bins = rng.poisson(bins.mean(), len(bins))
    width, step = (max(1, round(case[k] / bin_s)) for k in ("load_time_s", "step_s"))
    pairs = consecutive(bins, width, step)
    if case["source"] == "poisson":
        ratios = spike_ratios(pairs[:, 1], pairs[:, 2], case["least_before"])
        found = quantiles(ratios, list(LEVELS.values()))
        return [dict(zip(LEVELS, found, strict=True))]
    return [
        {"time_s": first * bin_s, "before": before, "after": after}
        for first, before, after in pairs
    ]


def percentiles(frame: DataFrame, parameters: Spikes) -> DataFrame:
    """Percentiles of the services' spikes, the share of intervals that are empty, and Poisson's."""
    import pandas as pd

    rows = []
    for table in parameters.tables:
        for load_time_s in parameters.load_times_s:
            mine = where(frame, table=table, load_time_s=load_time_s)
            service, poisson = (where(mine, source=source) for source in ("service", "poisson"))
            ratios = spike_ratios(service["before"], service["after"], parameters.least_before)
            row: dict[str, Any] = {"table": table, "load_time_s": load_time_s}
            found = quantiles(ratios, list(LEVELS.values()))
            for name, value in zip(LEVELS, found, strict=True):
                row |= {name: value, f"poisson_{name}": poisson[name].mean()}
            row["empty"] = float((service["before"] == 0).mean())
            rows.append(row)
    return pd.DataFrame(rows).set_index(["table", "load_time_s"])


def plot(frame: DataFrame, parameters: Spikes) -> Any:
    """Per service the spikes over time and their distribution, a colour per load time."""
    figure = new_figure(11.0, 3.2 * len(parameters.tables))
    panels = figure.subplots(
        len(parameters.tables), 2, squeeze=False, gridspec_kw={"width_ratios": [1.6, 1]}
    )
    found = percentiles(frame, parameters)
    for (series, spread), table in zip(panels, parameters.tables, strict=True):
        mine = where(frame, table=table, source="service")
        for k, load_time_s in enumerate(parameters.load_times_s):
            part = where(mine, load_time_s=load_time_s)
            if parameters.least_before == 0:
                part = part[part["before"] > 0]
            ratios = spike_ratios(part["before"], part["after"], parameters.least_before)
            shown = np.maximum(ratios, LOWEST)
            series.plot(part["time_s"] / 60, shown, ".", ms=3, color=f"C{k}")
            row = found.loc[(table, load_time_s)]
            larger = 1 - np.arange(len(ratios)) / len(ratios)
            label = f"{load_time_s} s: p90 {row['p90']:.3g}, p99 {row['p99']:.3g}"
            spread.plot(np.sort(ratios), larger, color=f"C{k}", label=label)
            noise = [row["poisson_p90"], row["poisson_p99"]]
            spread.plot(noise, [0.1, 0.01], "--", color=f"C{k}", lw=1)
        spread.plot([], [], "--", color="0.4", lw=1, label="Poisson of the same rate")
        spread.plot(list(PAPER.values()), [0.1, 0.01], "k*", ms=10, label="paper: p90 1.6, p99 3")
        for level in PAPER.values():
            series.axhline(level, color="k", lw=0.8, ls=":")
        name = SERVICES.get(table, table)
        series.set(xlabel="time (min)", ylabel="spike (ratio of rates)")
        dress(series, title=f"{name}: spikes (dotted: the paper's p90 and p99)", log="y")
        calm = found.loc[table, "p99"].max() < 10
        top, ticks = (10, CALM_TICKS) if calm else (30_000, WILD_TICKS)
        series.set_ylim(LOWEST / 1.3, ticks[-1])
        spread.set(xlabel="spike (ratio of rates)", ylabel="share of larger spikes")
        dress(spread, title=f"{name}: by load time", log="xy", ticks=ticks, legend="upper right")
        spread.set(xlim=(0.5, top), ylim=(2e-3, 1.2))
        series.yaxis.set_major_formatter("{x:g}")
    return figure


@claimed
def claims(frame: DataFrame, parameters: Spikes) -> Iterator[Claim]:
    """Section 2.3's two percentiles: of the cluster, and beside it of single services."""
    found = percentiles(frame, parameters)
    ends_s = sorted({min(parameters.load_times_s), max(parameters.load_times_s)})
    first, *rest = tables = sorted(parameters.tables, key=lambda table: "+" not in table)
    singly = "".join(f"; {_range(found, table)}" for table in rest)
    yield led_by(
        "The p90 and p99 values of the arrival spikes are 1.6 and 3",
        [
            every(
                SERVICES.get(table, table),
                [
                    about(
                        f"{name}, intervals of {load_time_s} s",
                        number,
                        exact(float(found.loc[(table, load_time_s), name])),
                        nothing=None,
                        unit="x",
                    )
                    for name, number in PAPER.items()
                    for load_time_s in ends_s
                ],
            )
            for table in tables
        ],
        paper=" and ".join(f"{number:g}" for number in PAPER.values()),
        how="arrivals of the traces, counted; no policy is involved",
        setting="chat and code of Azure's traces, a sum of ours: the paper's own cluster is not public",
        reason="another service than the paper's, an hour in place of two months; a Poisson process of its "
        f"rate has {_range(found, first, 'poisson_')}",
        note=f"{_range(found, first)}{singly}",
    )


def _range(found: DataFrame, table: str, prefix: str = "") -> str:
    """Both percentiles of a service over the load times."""
    shown = (
        f"{name} {values.min():.3g} to {values.max():.3g}"
        for name in LEVELS
        for values in [found.loc[table, f"{prefix}{name}"]]
    )
    return f"{SERVICES.get(table, table)} {', '.join(shown)}"
