"""Loading from a prefill instance that sends KV caches, or from a decode instance.

Three machines of one GPU serve Llama-2-7B: a prefill instance, a decode instance, and a second prefill
instance that is started again and again from one of the two. Panel (a) shows the time to load, panel (b) the
mean time between tokens of requests whose first token came during a load.

Links have 100 Gbps each way. The second prefill instance is stopped as soon as it serves. KV caches and
weights share the links max-min fairly in the engine; nothing about interference is assumed. TBT includes the
KV transfer. The paper names neither load nor workload: rates are shares of what the prefill instance can
prefill, two of the paper's traces stand for short and long answers, with Poisson arrivals. `network=figure-5`
has its 200 Gbps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from agents.statistics import mean_interval
from baselines.blitzscale.trigger import prefill_tokens_per_s
from experiments.blitzscale.serving import episode
from experiments.harness.claims import Claim, about, best_of, every
from experiments.harness.figure import SEEDS, Grid, claimed, dress, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from llmscale_env.control.command import Command
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import pool_times
from llmscale_env.sim.orders import Loads
from llmscale_env.sim.spec import InstanceState
from llmscale_env.workload.tables import load_lengths

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 9"
SENDER, STARTED, DECODER = 0, 1, 2
SOURCES = {
    "none": ("no load", "0.5", ":"),
    "decode": ("from the decode instance", "C0", "-"),
    "prefill": ("from the prefill instance", "C3", "--"),
}
WORKLOADS = {"azure-code": "AzureCode", "azure-conv": "AzureConv"}


class Interference(Parameters):
    """Parameters of this figure."""

    workloads: Annotated[
        tuple[Literal["azure-code", "azure-conv"], ...],
        ours("short and long answers", min_length=1),
    ] = ("azure-code", "azure-conv")
    loads: Annotated[
        tuple[Annotated[float, Field(gt=0, lt=1)], ...],
        ours("of the prefill instance's speed; the trigger scales at 0.7", min_length=1),
    ] = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8)
    network: Annotated[str, paper("Table 1, cluster A")] = "blitzscale-a"
    times: Annotated[int, ours("loads per run", ge=1)] = 30
    every_s: Annotated[float, ours("from one load to the next", gt=0)] = 6.0
    look_s: Annotated[float, ours("resolution of load times", gt=0)] = 0.025


PARAMETERS = {
    "quick": Interference(seeds=3, loads=(0.3, 0.7), times=20),
    "paper": Interference(),
}


KEPT = ("network", "times", "every_s", "look_s")
cases = Grid(
    {"workload": "workloads", "load": "loads", "source": SOURCES, "seed": SEEDS},
    keep=KEPT,
    first=KEPT,
)


def scenario_of(case: Mapping[str, Any]) -> Scenario:
    """Three machines, and Poisson arrivals at a share of the prefill instance's speed."""
    base = load_scenario("blitzscale-azure-code-7b")
    common = {
        "v1": None,
        "llm": "llama-2-7b",
        "weights": "flow",
        "batch_limit": 256,
        "max_batch": 256,
    }
    pools = [
        {**common, "name": "prefill", "phase": "prefill", "max_instances": 2},
        {**common, "name": "decode", "phase": "decode", "max_instances": 1},
    ]
    speed = prefill_tokens_per_s(pool_times(base, base.fleet.pools[0]))
    stream = {
        "name": "requests", "llm": "llama-2-7b", "slo_class": "interactive", "lengths": case["workload"],
        "arrivals": {"kind": "poisson"},
        "rate_per_s": case["load"] * speed / mean_input(case["workload"]),
    }  # fmt: skip
    return load_scenario(
        base,
        control_interval_s=case["look_s"],
        workload={"streams": [stream]},
        network={"machine": case["network"], "startup_s": 0},
        **{"fleet.max_gpus": 3, "fleet.gpus_per_host": 1, "fleet.pools": pools},
    )  # fmt: skip


def mean_input(workload: str) -> float:
    """Mean prompt of a table of lengths."""
    inputs, _ = load_lengths(workload).sample(20_000, np.random.default_rng(0))
    return float(inputs.mean())


class AgainAndAgain:
    """Starts the second prefill instance from one source, and stops it when it serves.

    Attributes:
        begun_s, ended_s: of the loads.
    """

    name = "again and again"

    def __init__(self, source: Literal["none", "decode", "prefill"], every_s: float, times: int):
        self.code = {"decode": DECODER, "prefill": SENDER, "none": None}[source]
        self.every_s, self.times = every_s, times
        self.begun_s: list[float] = []
        self.ended_s: list[float] = []

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Nothing has been loaded."""
        self.begun_s, self.ended_s = [], []

    def act(self, view: ClusterView) -> Command:
        """One order at most."""
        if self.code is None:
            return Command()
        state = view.instances[STARTED]["state"]
        if state == InstanceState.ACTIVE:
            if len(self.ended_s) < len(self.begun_s):
                self.ended_s.append(view.time_s)
            return Command(drain=(STARTED,))
        begun = len(self.begun_s)
        due = begun < self.times and view.time_s >= self.every_s * (begun + 1) - 1e-9
        if state != InstanceState.OFF or not due:
            return Command()
        self.begun_s.append(view.time_s)
        return Command(scale=Loads((STARTED,), (self.code,)))


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One episode with all its loads."""
    policy = AgainAndAgain(case["source"], case["every_s"], case["times"])
    arrivals_s = case["every_s"] * (case["times"] + 1)
    result = episode(scenario_of(case), policy, case["seed"], arrivals_s, 2 * case["every_s"])
    table = result.requests
    n = len(policy.ended_s)
    begun, ended = np.array(policy.begun_s[:n]), np.array(policy.ended_s)
    if case["source"] == "none":
        begun, ended = np.array([case["every_s"]]), np.array([arrivals_s])
    first = (table["arrival_s"] + table["ttft_s"]).to_numpy()
    chosen = table[within(first, begun, ended)]
    tbt = chosen["itl_mean_s"].dropna()
    return [
        {
            "load_s": float((ended - begun).mean()) if n else None,
            "loaded": n,
            "requests": len(chosen),
            "tbt_mean_s": float(tbt.mean()) if len(tbt) else None,
            "tbt_p95_s": float(tbt.quantile(0.95)) if len(tbt) else None,
            "tbt_token_s": over_tokens(chosen["itl_mean_s"], chosen["output_tokens"]),
        }
    ]


def over_tokens(itl_mean_s: Any, output_tokens: Any) -> float | None:
    """Mean time between tokens over all tokens, of requests that have ended."""
    gaps = (output_tokens - 1)[itl_mean_s.notna()]
    total = float(gaps.sum())
    return float((itl_mean_s.dropna() * gaps).sum() / total) if total else None


def within(times: Any, begun: Any, ended: Any) -> Any:
    """Which times lie in one of the intervals, of which none overlap and all are in order."""
    k = np.searchsorted(begun, times, side="right") - 1
    return (k >= 0) & (times <= np.append(ended, -np.inf)[k])


def plot(frame: DataFrame, parameters: Interference) -> Any:
    """Left: load times; then TBT by workload."""
    columns = 1 + len(parameters.workloads)
    figure = new_figure(4.2 * columns, 3.8)
    panels = figure.subplots(1, columns)
    for k, (workload, marker) in enumerate(zip(parameters.workloads, "os^v", strict=False)):
        for source, (shown, colour, line) in SOURCES.items():
            for axes, column, label in (
                (panels[0], "load_s", f"{shown}, {WORKLOADS.get(workload, workload)}"),
                (panels[1 + k], "tbt_mean_s", shown),
            ):
                if column == "load_s" and source == "none":
                    continue
                table = by_load(frame, workload, source, column)
                scale = 1.0 if column == "load_s" else 1e3
                axes.plot(
                    100 * table.columns, scale * table.mean(), marker=marker, ms=4, color=colour,
                    ls=line, label=label, alpha=1.0 if k == 0 or axes is not panels[0] else 0.5,
                )  # fmt: skip
        panels[1 + k].set_title(f"(b) {WORKLOADS.get(workload, workload)}", fontsize=9)
        panels[1 + k].set_ylabel("TBT during a load, mean of requests (ms)")
    panels[0].set_title("(a) scaling speed", fontsize=9)
    panels[0].set_ylabel("time to load (s)")
    for axes in panels:
        axes.axvline(70, color="grey", lw=0.8, ls=":", label="the trigger scales here")
        dress(axes, xlabel="load of the prefill instance (%)", bottom=0, legend={"fontsize": 7})
    return figure


def by_load(frame: DataFrame, workload: str, source: str, column: str) -> DataFrame:
    """A column by seed (rows) and load (columns)."""
    mine = where(frame, workload=workload, source=source)
    return mine.pivot_table(index="seed", columns="load", values=column).astype(float)


@claimed
def claims(frame: DataFrame, parameters: Interference) -> Iterator[Claim]:
    """Section 4, at the load where the trigger scales."""
    at = min(parameters.loads, key=lambda x: abs(x - 0.7))
    load = f"load of {100 * at:g} %, where the trigger scales (the paper's is not known)"

    def ratios(column: str) -> dict[str, DataFrame]:
        return {
            WORKLOADS[workload]: by_load(frame, workload, "prefill", column)
            / by_load(frame, workload, "decode", column)
            for workload in parameters.workloads
        }

    longer = ratios("load_s")
    yield every(
        "Loading from a prefill instance takes 1.5 times as long",
        [
            about(name, 1.5, mean_interval(table[at]), nothing=1, unit="times")
            for name, table in longer.items()
        ],
        how="weights and KV caches leave the prefill instance by one link and share it max-min fairly",
        setting=load,
        note="; ".join(f"{name}: {_words(table, '{:.2f}')}" for name, table in longer.items()),
        reason="the load gets what KV caches leave of the link, so the factor grows with the load",
    )
    worse = {name: 100 * (table - 1) for name, table in ratios("tbt_mean_s").items()}
    yield best_of(
        "Serving is degraded by up to 32 % (TBT)",
        [
            about(name, 32, mean_interval(table[at]), nothing=0, unit="%")
            for name, table in worse.items()
        ],
        paper="up to 32 %",
        how="KV caches of requests whose first token comes during a load wait for the shared link",
        setting=load,
        note="; ".join(f"{name}: {_words(table, '{:+.0f}')}" for name, table in worse.items()),
        reason="all that is added is in the gap with the KV transfer, so short answers (AzureCode) suffer "
        "more than 32 % at every load and long ones (AzureConv) hardly; the paper's lengths are not known",
    )


def _words(table: DataFrame, shape: str) -> str:
    return ", ".join(f"{shape.format(v)} at {100 * k:g} %" for k, v in table.mean().items())
