"""Utilisation of the cluster, with and without batch requests on its spare capacity.

Workload B at the queues of section 6.2: 700k requests for the small model, 80k for the large one, beside 50
and 10 interactive requests/s. Chiron's mixed instances are the over-provisioned capacity. Beside it stands
the same Chiron whose mixed instances take no batch requests, so that batch instances serve them all. Llumnix
is untuned, with the batch limit of 64 that section 6.2 implies.

Everything is measured from the queue's arrival to its deadline. Utilisation is the share of KV memory of the
active instances that is in use, throughput per instance counts all requests. The same interactive requests
come to all, and a gain counts only where no fewer of them are on time. Ours: a reserve of theta = 0.8, which
leaves hardly any spare capacity to use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

import numpy as np
from pydantic import PositiveInt

from agents.statistics import mean_interval
from baselines import make_policy
from experiments.chiron.batch_queue import queue_kept
from experiments.chiron.comparison import not_counted, weakest_first
from experiments.chiron.llumnix_settings import policy_text, untuned_64
from experiments.chiron.loads import scenario_at, summary_of
from experiments.harness.claims import Claim, Words, every, more, settings
from experiments.harness.figure import SEEDS, Grid, claimed, legend_below, places, where, wide
from experiments.harness.parameters import Parameters, one_each, ours, paper
from experiments.output import new_figure
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.schema import Scenario

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 2 (left)"
SYSTEMS = {
    "shared": "Chiron",
    "apart": "Chiron, no batch requests on mixed instances",
    "llumnix": "Llumnix (untuned, batch limit 64)",
}
QUANTITIES = {
    "throughput_per_instance": "throughput (requests/s per instance)",
    "kv_use": "KV memory in use (%)",
    "gpus": "GPUs (mean)",
}
BESIDE = {"apart": "that without", "llumnix": "Llumnix's"}
SLACK = 0.01
"""Share of interactive requests by which fewer may be on time."""


class SpareCapacity(Parameters):
    """Parameters of this figure."""

    seeds: Annotated[int, ours("enough for an interval", ge=1, le=1000)] = 10
    configurations: Annotated[tuple[Literal["small", "large"], ...], paper("Figure 2")] = (
        "small",
        "large",
    )
    queues: Annotated[tuple[PositiveInt, ...], paper("section 6.2: 700k and 80k")] = (
        700_000,
        80_000,
    )
    thetas: Annotated[
        tuple[Annotated[float, ours("", gt=0, lt=0.9)], ...],
        ours("the default of 6.3, and one with hardly any reserve", min_length=1),
    ] = (1 / 3, 0.8)
    tail_s: Annotated[int, ours("as in Figure 10", ge=0)] = 300

    _one_each = one_each("queues")


PARAMETERS = {
    "quick": SpareCapacity(seeds=1, queues=(200_000, 30_000)),
    "paper": SpareCapacity(),
}


def _systems(parameters: SpareCapacity, case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for k, theta in enumerate(parameters.thetas):
        for system in ("shared", "apart"):
            yield {"system": system, "theta": theta, "policy": f"chiron:theta={theta:.6g}"}
        if k == 0:
            yield {
                "system": "llumnix",
                "theta": theta,
                "policy": policy_text("llumnix", untuned_64()),
            }


cases = Grid(
    {
        "configuration": lambda parameters, _: [
            {"configuration": name, "load": float(queue)}
            for name, queue in zip(parameters.configurations, parameters.queues, strict=True)
        ],
        "system": _systems,
        "seed": SEEDS,
    },
    keep=("tail_s",),
)


def apart(scenario: Scenario) -> Scenario:
    """The scenario with mixed instances that take no batch requests."""
    routes = [route.model_dump() for route in scenario.fleet.routes]
    for route in routes:
        if route["slo_class"] == "batch":
            route["overflow"] = []
    mixed: dict[str, Any] = {
        f"fleet.pools.{pool.name}.pull": [] for pool in scenario.fleet.pools if pool.role == "mixed"
    }
    return load_scenario(scenario, **{"fleet.routes": routes, **mixed})


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One episode, from the queue's arrival to its deadline."""
    scenario = scenario_at("W_B", case["configuration"], case["load"], 600)
    begin_s = min(queue.at_s for queue in scenario.workload.batch_queues)
    end_s = begin_s + next(c.ttft_s for c in scenario.classes if c.name == "batch")
    scenario = load_scenario(scenario, horizon_s=end_s + case["tail_s"])
    if case["system"] == "apart":
        scenario = apart(scenario)
    result = run_episode(make_policy(case["policy"]), scenario, case["seed"])
    kept = queue_kept(result, scenario, begin_s, end_s)
    series = result.series
    part = series[(series["time_s"] > begin_s + 1e-9) & (series["time_s"] <= end_s + 1e-9)]
    active, used = (
        np.array([part[f"{pool.name}/{what}"].to_numpy() for pool in scenario.fleet.pools])
        for what in ("active", "kv_use")
    )
    return [
        {
            **summary_of(result, scenario, begin_s, end_s),
            "mixed_share": kept["mixed_share"],
            "kv_use": 100 * float(np.nansum(active * used) / active.sum()),
        }
    ]


def plot(frame: DataFrame, parameters: SpareCapacity) -> Any:
    """A panel per quantity: bars by model and reserve."""
    figure = new_figure(13, 4)
    panels = figure.subplots(1, len(QUANTITIES))
    groups = [(c, theta) for c in parameters.configurations for theta in parameters.thetas]
    for axes, (what, name) in zip(panels, QUANTITIES.items(), strict=True):
        for k, (system, label) in enumerate(SYSTEMS.items()):
            mine = [
                where(frame, configuration=c, theta=theta, system=system)[what].astype(float)
                for c, theta in groups
            ]
            x, width = places(k, len(SYSTEMS), len(groups))
            means = np.array([each.mean() for each in mine])
            ends = np.array([[each.min(), each.max()] for each in mine]).T
            spread = np.abs(ends - means)
            axes.bar(x, means, 0.9 * width, yerr=spread, capsize=2, color=f"C{k}", label=label)
        axes.set_xticks(range(len(groups)), [f"{c}\ntheta {theta:.2g}" for c, theta in groups])
        axes.set_ylabel(name)
        axes.grid(alpha=0.3, axis="y")
    legend_below(figure, panels[0])
    return figure


@claimed
def claims(frame: DataFrame, parameters: SpareCapacity) -> Iterator[Claim]:
    """What the introduction says of spare capacity, and the caption of Figure 2."""
    first, *others = parameters.thetas
    yield settings(
        "Batch requests leverage the spare capacity of over-provisioning, which improves utilisation and "
        "throughput",
        [
            _beside(frame, parameters, first, "apart", "section 6.3: default reserve"),
            *(
                _beside(frame, parameters, t, "apart", "section 5.2: hardly any reserve")
                for t in others
            ),
        ],
        paper="more than without (no number)",
        how="mixed instances stand ready for bursts of interactive requests, and meanwhile serve batch "
        "requests",
    )
    yield _beside(
        frame,
        parameters,
        first,
        "llumnix",
        "section 6.2: batch limit 64",
        sentence="Previous systems overestimate backpressure, which leads to cluster-wide underutilisation",
        paper="less than Chiron's (bars)",
        how="Llumnix adds instances as batch requests arrive, with a small batch on each",
    )


def _beside(
    frame: DataFrame,
    parameters: SpareCapacity,
    theta: float,
    other: str,
    source: str,
    sentence: str = "",
    **words: Unpack[Words],
) -> Claim:
    """That Chiron has more throughput and uses more of its memory than another system at the same load."""
    parts = [
        _more(f"{configuration}, {name}", mine, what, other)
        for configuration in parameters.configurations
        for mine in [where(frame, configuration=configuration, theta=theta)]
        for what, name in (("throughput_per_instance", "throughput"), ("kv_use", "utilisation"))
    ]
    gains = ", ".join(f"{part.sentence} {part.ours.mean:.2f}" for part in parts)
    name = sentence or f"theta {theta:.2g}, {source.partition(': ')[2]}"
    words["setting"] = f"{source}; at the same interactive load"
    words["note"] = f"in x: {gains}"
    return every(name, weakest_first(parts), **words)


def _more(name: str, mine: DataFrame, what: str, other: str) -> Claim:
    """One quantity of one model; does not count where fewer interactive requests are on time."""
    values, attainment = (
        wide(mine, "system", column) for column in (what, "interactive_attainment")
    )
    on_time = ", ".join(
        f"{SYSTEMS[system]} {100 * attainment[system].mean():.1f} %" for system in ("shared", other)
    )
    told = more(
        name,
        1.0,
        mean_interval(values["shared"] / values[other]),
        unit=f"x {BESIDE[other]}",
        reason=f"interactive requests on time: {on_time}",
    )
    if attainment["shared"].mean() >= attainment[other].mean() - SLACK:
        return told
    return not_counted(told, f"does not count: interactive requests on time: {on_time}")
