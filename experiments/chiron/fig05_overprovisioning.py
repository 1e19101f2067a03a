"""Over-provisioning that burstiness makes necessary.

Arrivals with Gamma gaps of a coefficient of variation (CV) from 1 to 16, at the load times and rates of both
models in workload B. "Necessary over-provisioning" has three readings: the spike between two intervals, the
rate of an interval over the mean rate, and the least simulated fleet that meets its SLOs. Claims are about
the 99th percentile.

The readings are: the percentile of the spike, the rate in an interval as long as the load time over that in
the interval before (section 2.3); the percentile of the rate in an interval over the mean rate (section 5.2
chooses theta so); and simulated, the least static fleet of the small model whose SLO attainment reaches the
percentile, over the least one that serves half of them in time when they come evenly. The paper says
nothing of this figure's own load; rates are those of section 6.2. Fleets are interactive instances, counted
whole, with a small batch limit so that one of them is a small step; requests of the last `left_out_s` are
not judged, since they cannot finish. They are judged by the paper's target for the first token, 10 s, and by
1 s, which leaves a burst less time to pass. An empty interval counts as holding one request
(`least_before`); at a CV of 16 one or two in a hundred are empty, and the 99th percentile of the spike is
then the count of an interval over one. What even the largest fleet does not reach counts as infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveFloat

from agents.statistics import Interval
from experiments.chiron.setting import episode, scenario_of
from experiments.chiron.spikes import gamma_arrivals, gamma_counts, quantiles, spike_ratios
from experiments.harness.claims import Claim, about, at_least, best_of, every
from experiments.harness.figure import SEEDS, Grid, by_seed, claimed, dress, line, listed, where
from experiments.harness.parameters import Parameters, one_each, ours, paper
from experiments.output import new_figure
from llmscale_env.scenarios.load import load_scenario

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 5"
TICKS = (0.5, 1, 2, 3, 5, 10, 30, 100, 300)
TAIL = 99
SPIKE, PEAK, FLEET = "spike", "peak over mean", "fleet"
SHOWN = {
    SPIKE: "spike: rate over that of the interval before",
    PEAK: "rate in an interval over the mean rate",
    FLEET: "simulated: static fleet over that for even arrivals",
}


class OverProvisioning(Parameters):
    """Parameters of this figure."""

    cvs: Annotated[
        tuple[PositiveFloat, ...], ours("Figure 17's 8 in the middle, in powers of two")
    ] = (1.0, 2.0, 4.0, 8.0, 16.0)
    percentiles: Annotated[
        tuple[Annotated[float, Field(gt=0, lt=100)], ...],
        ours("p90 and p99 as in Figure 4, p50, p95"),
    ] = (50.0, 90.0, 95.0, 99.0)
    configurations: Annotated[tuple[Literal["small", "large"], ...], paper("section 6")] = (
        "small",
        "large",
    )
    rates_per_s: Annotated[
        tuple[PositiveFloat, ...], ours("section 6.2's of W_B, by configuration")
    ] = (50.0, 10.0)
    load_times_s: Annotated[
        tuple[PositiveFloat, ...],
        ours("15 s and 60 s, the ends of the paper's range, as the scenarios have"),
    ] = (15.0, 60.0)
    intervals: Annotated[int, ours("enough for a 99th percentile", ge=2)] = 2000
    least_before: Annotated[int, ours("an empty interval counts as one request", ge=0)] = 1
    even_cv: Annotated[float, ours("all but evenly spaced requests", gt=0)] = 0.05
    simulated_s: Annotated[float, ours("as the scenarios have", gt=0)] = 1800.0
    left_out_s: Annotated[float, ours("the longest answers take half of it", ge=0)] = 120.0
    ttfts_s: Annotated[
        tuple[PositiveFloat, ...],
        ours("section 6's 10 s, and 1 s, which leaves no time to queue"),
    ] = (10.0, 1.0)
    batch_limit: Annotated[int, ours("half the scenario's: smaller steps of the fleet", ge=1)] = 32
    most_instances: Annotated[int, paper("section 6: 50 GPUs", ge=1, le=50)] = 50

    _one_each = one_each("rates_per_s", "load_times_s")


PARAMETERS = {
    "quick": OverProvisioning(seeds=3, intervals=500, cvs=(1.0, 4.0, 8.0, 16.0)),
    "paper": OverProvisioning(seeds=10),
}


def cases(parameters: OverProvisioning) -> list[dict[str, Any]]:
    """Drawn processes for each model, and fleets of the small one."""
    return DRAWN(parameters) + SIMULATED(parameters)


def _models(parameters: OverProvisioning, case: dict[str, Any]) -> list[dict[str, Any]]:
    """Configurations with their rates and load times, which the fleets of the small one have already."""
    values = (parameters.configurations, parameters.rates_per_s, parameters.load_times_s)
    names = ("configuration", "rate_per_s", "load_time_s")
    return [dict(zip(names, each, strict=True)) for each in zip(*values, strict=True)]


DRAWN = Grid(
    {"seed": SEEDS, "kind": ("drawn",), "configuration": _models, "cv": "cvs"},
    keep=("intervals", "least_before", "percentiles"),
    first=("seed", "kind", "configuration", "cv"),
)
SIMULATED = Grid(
    {
        "seed": SEEDS,
        "kind": ("simulated",),
        "configuration": lambda parameters, case: [
            {name: model[name] for name in ("configuration", "rate_per_s")}
            for model in _models(parameters, case)
            if model["configuration"] == "small"
        ],
        "cv": lambda parameters, case: (parameters.even_cv, *parameters.cvs),
    },
    keep=(
        *("percentiles", "simulated_s", "left_out_s"),
        *("ttfts_s", "batch_limit", "most_instances"),
    ),
    first=("seed", "kind", "configuration", "cv"),
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per reading and percentile: what has to be there, as a multiple or in instances."""
    if case["kind"] == "drawn":
        return _drawn(case)
    return _simulated(case)


def _drawn(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    width_s = case["load_time_s"]
    counts = gamma_counts(
        case["rate_per_s"],
        case["cv"],
        width_s,
        width_s * case["intervals"],
        np.random.default_rng(case["seed"]),
    )
    readings = {
        SPIKE: spike_ratios(counts[:-1], counts[1:], case["least_before"]),
        PEAK: counts / (case["rate_per_s"] * width_s),
    }
    empty = float((counts == 0).mean())
    return [
        {"reading": reading, "percentile": percentile, "needed": value, "empty": empty}
        for reading, values in readings.items()
        for percentile, value in zip(
            case["percentiles"],
            quantiles(values, np.array(case["percentiles"]) / 100),
            strict=True,
        )
    ]


def _simulated(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    base = scenario_of(
        case["configuration"],
        rate_per_s=case["rate_per_s"],
        horizon_s=case["simulated_s"],
        **gamma_arrivals(case["cv"]),
    )
    itl_s = next(c.itl_s for c in base.classes if c.name == "interactive")

    @cache
    def attainments(instances: int) -> dict[float, float]:
        # Instances that the policy orders would load first: these are there from the start.
        fleet = {"interactive": instances, "mixed": 0, "batch": 0}
        there = {f"fleet.pools.{pool}.initial_instances": n for pool, n in fleet.items()}
        result = episode(
            "static",
            load_scenario(base, **there),
            case["seed"],
            batch_limit=case["batch_limit"],
        )
        requests = result.requests
        came = requests[requests["arrival_s"] < case["simulated_s"] - case["left_out_s"]]
        # A request of one token has no inter-token latency; one that has not finished has no end.
        good = came["e2e_s"].notna() & ~(came["itl_mean_s"] > itl_s)
        return {ttft_s: float((good & (came["ttft_s"] <= ttft_s)).mean()) for ttft_s in ttfts_s}

    def attainment(ttft_s: float, instances: int) -> float:
        return attainments(instances)[ttft_s]

    ttfts_s = case["ttfts_s"]
    rows = []
    for ttft_s in ttfts_s:
        for percentile in case["percentiles"]:
            found = least(partial(attainment, ttft_s), percentile / 100, case["most_instances"])
            row = {"reading": FLEET, "ttft_s": ttft_s, "percentile": percentile, "needed": found}
            rows.append(row)
    return rows


def least(reached: Callable[[int], float], goal: float, most: int) -> int | None:
    """The least number from 1 to `most` that reaches the goal, by halving; None if not even `most`.

    `reached` is taken to rise.
    """
    if reached(most) < goal:
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) >= goal else (middle, high)
    return high


def over_provisioning(frame: DataFrame, parameters: OverProvisioning) -> DataFrame:
    """All readings as multiples: fleets over what carries even arrivals of the same seed.

    That is the fleet of the lowest percentile: a higher one already holds a reserve.
    """
    keys = ["seed", "ttft_s"]
    fleet = frame["reading"] == FLEET
    even = frame[fleet & (frame["cv"] == parameters.even_cv)]
    even = even[even["percentile"] == min(parameters.percentiles)]
    base = even.set_index(keys)["needed"].rename("base")
    found = frame[~(fleet & (frame["cv"] == parameters.even_cv))].join(base, on=keys)
    needed = found["needed"].astype(float).fillna(np.inf)  # more than the largest fleet
    found["needed"] = needed / found["base"].astype(float).where(found["reading"] == FLEET, 1.0)
    return found.drop(columns="base")


def _of(found: DataFrame, reading: str, configuration: str, ttft_s: float | None) -> DataFrame:
    mine = where(found, reading=reading, configuration=configuration)
    return mine if ttft_s is None else where(mine, ttft_s=ttft_s)


def _readings(
    parameters: OverProvisioning,
) -> list[tuple[str, str, float | None]]:
    """(reading, configuration, TTFT target) of each panel, two of drawn ones and a fleet in a row."""
    fleets = [
        (FLEET, "small", t) for t in parameters.ttfts_s if "small" in parameters.configurations
    ]
    found: list[tuple[str, str, float | None]] = []
    for configuration in parameters.configurations:
        found += [(SPIKE, configuration, None), (PEAK, configuration, None)]
        found += fleets[:1]
        fleets = fleets[1:]
    return found + fleets


def plot(frame: DataFrame, parameters: OverProvisioning) -> Any:
    """A panel per reading and model, a line per percentile, the seeds' range shaded."""
    found = over_provisioning(frame, parameters)
    panels = _readings(parameters)
    down = -(-len(panels) // 3)
    figure = new_figure(13.0, 3.9 * down)
    grid = figure.subplots(down, 3, squeeze=False).ravel()
    for axes, (reading, configuration, ttft_s) in zip(grid, panels, strict=False):
        mine = _of(found, reading, configuration, ttft_s)
        for percentile in parameters.percentiles:
            part = where(mine, percentile=percentile)
            line(axes, part, "cv", "needed", ms=4, shade=0.2, edge=None, label=f"p{percentile:g}")
        axes.axhline(3, color="k", lw=0.8, ls=":", label="the paper: 3 is enough up to a CV of 8")
        axes.axvline(8, color="k", lw=0.8, ls=":")
        finite = mine["needed"][np.isfinite(mine["needed"])]
        top = max(6.0, 1.2 * float(finite.max())) if len(finite) else 6.0
        k = parameters.configurations.index(configuration)
        what = f"TTFT {ttft_s:g} s" if ttft_s else f"intervals of {parameters.load_times_s[k]:g} s"
        which = f"{configuration} model, {parameters.rates_per_s[k]:g} requests/s, {what}"
        legend = {"loc": "upper left", "title": "to meet SLOs at", "title_fontsize": 8}
        labels: dict[str, Any] = {
            "xlabel": "burstiness (CV of the gaps)",
            "ylabel": "over-provisioning (x)",
        }
        title = f"{SHOWN[reading]}\n{which}"
        dress(axes, title=title, size=9, log="xy", ticks=parameters.cvs, legend=legend, **labels)
        axes.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
        axes.minorticks_off()
        axes.set_ylim(0.5, top)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return figure


@claimed
def claims(frame: DataFrame, parameters: OverProvisioning) -> Iterator[Claim]:
    """Section 2.3: more is needed with burstiness, and in proportion; nothing is said of a single CV."""
    found = where(over_provisioning(frame, parameters), percentile=TAIL)
    parts = []
    for reading, configuration, ttft_s in _readings(parameters):
        rows = _of(found, reading, configuration, ttft_s)
        if rows["cv"].nunique() > 1:
            target = f", TTFT {ttft_s:g} s" if ttft_s else ""
            parts.append((reading, f"{reading}{target}, {configuration} model", rows))
    if not parts:
        return
    parts.sort(key=lambda part: part[0] == SPIKE)  # the largest numbers last
    low, high = min(parameters.cvs), max(parameters.cvs)
    yield every(
        "More burstiness needs more over-provisioning",
        [
            at_least(
                name,
                1.1,
                _by_seed(rows, lambda needed: needed.iloc[-1] / needed.iloc[0]),
                nothing=1.0,
                unit=f"x at CV {high:g} of what CV {low:g} needs",
                reason=_beyond(rows),
            )
            for _, name, rows in parts
        ],
        paper="rises (curve; 10 % is ours)",
        how="counts of Gamma arrivals for the first two readings, simulated static fleets for the third",
        setting=f"p{TAIL}; all readings and both models",
    )
    # Not of fleets: they are counted whole, and at a low CV need none beyond the mean.
    names = {PEAK: "rate over the mean, section 5.2", SPIKE: "spike, section 2.3"}
    yield best_of(
        "Over-provisioning is proportional to the burstiness of arrivals",
        [
            every(
                name,
                [
                    about(
                        part,
                        1.0,
                        _by_seed(rows, _exponent),
                        nothing=0.0,
                        unit="power of the CV that the need beyond the mean grows with",
                        reason=_beyond(rows),
                    )
                    for its, part, rows in parts
                    if its == reading
                ],
            )
            for reading, name in names.items()
        ],
        paper="proportional: 1",
        how="counts of Gamma arrivals in intervals as long as the load time, over their mean",
        setting=f"p{TAIL}, CV {low:g} to {high:g}; read as the rate over the mean, by which section 5.2 "
        "chooses the over-provisioning",
        note="the spike between two intervals grows faster than in proportion",
    )


def _beyond(rows: DataFrame) -> str:
    text = f"needed beyond the mean by CV: {listed(_means(rows) - 1, form='.2f')}"
    empty = rows.groupby("cv")["empty"].mean().iloc[-1] if "empty" in rows else math.nan
    return (
        f"{text}; at the last {100 * empty:.1f} % of the intervals are empty" if empty > 0 else text
    )


def _means(rows: DataFrame) -> Any:
    return rows.groupby("cv")["needed"].mean()


def _exponent(needed: Any) -> float:
    """Slope of what is needed beyond the mean over the CV, both in logarithms."""
    beyond = np.log(np.maximum(needed.to_numpy(float) - 1, 1e-9))
    return float(np.polyfit(np.log(needed.index.to_numpy(float)), beyond, 1)[0])


def _by_seed(rows: DataFrame, number: Callable[[Any], float]) -> Interval:
    """Of what is needed by CV."""
    return by_seed(rows, lambda one: number(one.set_index("cv")["needed"].sort_index()))
