"""SLO satisfaction under bursty arrivals.

Workload A, interactive requests only, with Gamma gaps of a growing coefficient of variation (CV), under
Chiron with its default over-provisioning of 3 (theta = 1/3) and with others. Below are the GPUs that this
takes, and the batch limits that the local autoscaler arrives at. "Sufficient" is taken as 99 % of SLOs met;
the paper gives neither threshold nor rates.

The mean rates are those of the interactive requests in workload B (section 6.2). The first minutes, in which
a fleet finds its size, and requests that come too late to finish are not judged. Half the width of the range
of IBP, delta, is the policy's 0.1, or less where theta leaves less room; no over-provisioning at all is
theta = 0.95, since the policy wants theta + delta below 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field, PositiveFloat

from agents.statistics import mean_interval
from experiments.chiron.setting import episode, measured, scenario_of
from experiments.chiron.spikes import gamma_arrivals
from experiments.harness.claims import Claim, at_least, every
from experiments.harness.figure import SEEDS, Grid, claimed, dress, line, where, wide
from experiments.harness.parameters import Parameters, one_each, ours, paper, something_left
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 17"
DEFAULT = 3.0
ENOUGH = 0.99
ENOUGH_UNTIL_CV = 8.0


class Burstiness(Parameters):
    """Parameters of this figure."""

    model_config = ConfigDict(validate_default=True)

    cvs: Annotated[
        tuple[PositiveFloat, ...], ours("on both sides of the paper's 8", min_length=1)
    ] = (1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0)
    over_provisionings: Annotated[
        tuple[Annotated[float, Field(gt=1)], ...],
        ours("3 is section 6.3's; beside it less and more, the first theta = 0.95", min_length=1),
    ] = (1 / 0.95, 2.0, 3.0, 5.0)
    configurations: Annotated[
        tuple[Literal["small", "large"], ...], paper("section 6", min_length=1)
    ] = ("small", "large")
    rates_per_s: Annotated[
        tuple[PositiveFloat, ...],
        ours("by configuration; 6.3 gives none, these are W_B's interactive rates (6.2)"),
    ] = (50.0, 10.0)
    horizon_s: Annotated[float, ours("as the scenarios have", gt=0)] = 1800.0
    warm_up_s: Annotated[float, ours("the fleet finds its size", ge=0)] = 300.0
    left_out_s: Annotated[float, ours("the longest answers take half of it", ge=0)] = 120.0

    _one_each = one_each("rates_per_s")
    _something_left = something_left("left_out_s", "warm_up_s")


PARAMETERS = {
    "quick": Burstiness(seeds=3, cvs=(1.0, 4.0, 8.0, 16.0, 24.0)),
    "paper": Burstiness(seeds=10),
}


cases = Grid(
    {
        "seed": SEEDS,
        "configuration": lambda parameters, _: [
            {"configuration": configuration, "rate_per_s": rate}
            for configuration, rate in zip(
                parameters.configurations, parameters.rates_per_s, strict=True
            )
        ],
        "over_provisioning": "over_provisionings",
        "cv": "cvs",
    },
    keep=("horizon_s", "warm_up_s", "left_out_s"),
)


def theta_delta(over_provisioning: float) -> dict[str, float]:
    """Chiron's parameters for a level of over-provisioning."""
    theta = 1 / over_provisioning
    return {"theta": theta, "delta": min(0.1, theta / 2, (1 - theta) / 2)}


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One episode."""
    scenario = scenario_of(
        case["configuration"],
        rate_per_s=case["rate_per_s"],
        horizon_s=case["horizon_s"],
        **gamma_arrivals(case["cv"]),
    )
    result = episode("chiron", scenario, case["seed"], **theta_delta(case["over_provisioning"]))
    found = measured(result, scenario, case["warm_up_s"], case["horizon_s"] - case["left_out_s"])
    series = result.series[result.series["time_s"] > case["warm_up_s"]]
    limit = batch_limit(series, [pool.name for pool in scenario.fleet.pools])
    row = {"slo_attainment": found["slo_attainment"], "gpus": found["gpus"], "batch_limit": limit}
    return [row]


def batch_limit(series: DataFrame, pools: Sequence[str]) -> float:
    """Mean batch limit of active instances over the intervals."""
    active = sum(series[f"{pool}/active"] for pool in pools)
    limits = sum(series[f"{pool}/active"] * series[f"{pool}/batch_limit"] for pool in pools)
    return float(limits.sum() / active.sum())


def plot(frame: DataFrame, parameters: Burstiness) -> Any:
    """Attainment, GPUs, batch limits; a column per model, a line per over-provisioning."""
    n = len(parameters.configurations)
    figure = new_figure(5.4 * n, 7.6)
    panels = figure.subplots(3, n, squeeze=False, sharex=True, height_ratios=[1.8, 1, 1])
    for k, configuration in enumerate(parameters.configurations):
        above, below, lowest = panels[:, k]
        for c, factor in enumerate(parameters.over_provisionings):
            mine = where(frame, configuration=configuration, over_provisioning=factor)
            label = f"{factor:.3g} (theta {1 / factor:.2g})"
            label += ", the paper's" if factor == DEFAULT else ""
            look: dict[str, Any] = {
                "ms": 4,
                "lw": 2.4 if factor == DEFAULT else 1.2,
                "color": f"C{c}",
            }
            line(above, mine, "cv", "slo_attainment", scale=100, edge=None, label=label, **look)
            for axes, name in ((below, "gpus"), (lowest, "batch_limit")):
                line(axes, mine, "cv", name, band=None, **look)
        for axes in (above, below, lowest):
            axes.axvline(8, color="k", lw=1, ls=":", label="the paper: 3 is enough up to here")
        rate = parameters.rates_per_s[k]
        legend = {"loc": "lower left", "title": "over-provisioning", "title_fontsize": 8}
        title = f"{configuration} model, {rate:g} requests/s"
        dress(above, title=title, legend=legend, ylabel="SLOs met (% of requests)", ylim=(0, 103))
        dress(below, ylabel="GPUs (mean)", ylim=(0, 52))
        labels: dict[str, Any] = {
            "xlabel": "burstiness (CV of the gaps)",
            "ylabel": "batch limit (mean)",
        }
        dress(lowest, log="x", ticks=parameters.cvs, bottom=0, **labels)
    return figure


@claimed
def claims(frame: DataFrame, parameters: Burstiness) -> Iterator[Claim]:
    """Section 6.3: three is enough up to a burstiness of 8, not beyond."""
    beyond = sorted(cv for cv in parameters.cvs if cv > ENOUGH_UNTIL_CV)
    within = sorted(cv for cv in parameters.cvs if cv <= ENOUGH_UNTIL_CV)
    default = where(frame, over_provisioning=DEFAULT)
    if default.empty:
        return
    models = {
        configuration: where(default, configuration=configuration)
        for configuration in parameters.configurations
    }
    if ENOUGH_UNTIL_CV in within:
        yield every(
            "The default over-provisioning of 3 is sufficient to handle a burstiness of 8",
            [
                at_least(
                    f"{name} model",
                    100 * ENOUGH,
                    mean_interval(met[met.mean().idxmin()]),
                    nothing=None,
                    unit="% of SLOs met",
                    reason=_by_over_provisioning(where(frame, configuration=name)),
                )
                for name, mine in models.items()
                for met in [100 * wide(mine, "cv", "slo_attainment")[within]]
            ],
            paper="sufficient",
            how="instances that are there take such bursts into their batches, with hardly any reserve too; "
            "what the reserve is worth shows beyond",
            setting=f"the least met from CV {within[0]:g} to {within[-1]:g}",
        )
    if beyond:
        yield every(
            "As burstiness increases, over-provisioning is insufficient, leading to SLO violations",
            [
                at_least(
                    f"{name} model",
                    100 * (1 - ENOUGH),
                    mean_interval(violated[violated.mean().idxmin()]),
                    nothing=None,
                    unit="% of SLOs violated",
                    reason="the reserve takes these bursts too: at most "
                    f"{violated.mean().max():.2g} % of SLOs are violated at any of these CVs",
                )
                for name, mine in models.items()
                for violated in [100 - 100 * wide(mine, "cv", "slo_attainment")[beyond]]
            ],
            paper="violations (curve)",
            how="bursts exceed what the reserve can take before new instances have loaded",
            setting=f"the least violated of CV {_listed(beyond)}",
        )


def _listed(cvs: Sequence[float]) -> str:
    return ", ".join(f"{cv:g}" for cv in cvs)


def _by_over_provisioning(frame: DataFrame) -> str:
    """What each over-provisioning meets and takes at the burstiness that three should be enough for."""
    at = where(frame, cv=ENOUGH_UNTIL_CV).groupby("over_provisioning")
    mean = at[["slo_attainment", "gpus"]].mean()
    parts = [
        f"{100 * row['slo_attainment']:.2f} % with {row['gpus']:.1f} GPUs at {factor:.3g}"
        for factor, row in mean.iterrows()
    ]
    return f"SLOs met at CV {ENOUGH_UNTIL_CV:g} by over-provisioning: {', '.join(parts)}"
