"""Copies of the weights in the hosts' memory over time: ServerlessLLM's cache against BlitzScale's one.

All three workloads on logical hosts of one instance each (16, 32, 16), each scaled so that its peak second
takes all hosts. A host has a copy while it runs an instance and for 5 minutes after its last one stopped.
BlitzScale keeps one copy of the LLM whatever happens, which is a line here and not a measurement.

Five minutes is ServerlessLLM's setting; 30 s is its baseline's in the published code. Demand comes from the
profile second by second, without queues: prefill by tokens, decode by KV cache; instances stop after 2 s
without work. Ours: instances start on the first free hosts, which is the placement with the fewest copies, so
the claims meet ServerlessLLM at its best. The BurstGPT-like hours are generated anew with each seed; the
Azure traces have their own counts per second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, get_args

import numpy as np

from agents.statistics import mean_interval
from experiments.blitzscale.host_cache import Placement, simulate
from experiments.blitzscale.setting import SETTINGS, Workload, horizon_of, scaled_demand
from experiments.harness.claims import Claim, at_least, every, less
from experiments.harness.figure import SEEDS, Grid, claimed, dress, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 16"
SERIES = ("bin",)
BIN_S = 20


class HostCopies(Parameters):
    """Parameters of this figure."""

    workloads: Annotated[tuple[Workload, ...], paper("section 6", min_length=1)] = get_args(
        Workload
    )
    keep_alives_s: Annotated[
        tuple[int, ...], paper("section 6.2: 5 minutes; 30 s is the published code's", min_length=1)
    ] = (300, 30)
    placement: Annotated[Placement, ours("the paper is silent; the fewest copies")] = "packed"
    idle_timeout_s: Annotated[int, paper("section 5.3", ge=0)] = 2
    traces: Annotated[str, ours("folder of the real traces; empty: what ships")] = ""


PARAMETERS = {"quick": HostCopies(seeds=5), "paper": HostCopies(seeds=30)}


cases = Grid(
    {"seed": SEEDS, "workload": "workloads", "keep_alive_s": "keep_alives_s"},
    keep=("placement", "idle_timeout_s", "traces"),
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per bin of time, and one of the whole."""
    setting = SETTINGS[case["workload"]]
    found = scaled_demand(
        setting,
        setting.hosts,
        "both",
        horizon_of(case["workload"]),
        case["seed"],
        case["traces"],
    )
    cache = simulate(
        np.minimum(found.instances("both"), setting.hosts)[:, None],
        hosts=setting.hosts,
        keep_alive_s=case["keep_alive_s"],
        idle_timeout_s=case["idle_timeout_s"],
        placement=case["placement"],
        rng=np.random.default_rng(case["seed"]),
    )
    copies, running = cache.copies[:, 0], cache.running[:, 0]
    rows: list[dict[str, Any]] = [
        {
            "kind": "whole",
            "copies": float(copies.mean()),
            "running": float(running.mean()),
            "without": float((copies == 0).mean()),
            "of_hosts": float(copies.mean() / setting.hosts),
        }
    ]
    for at in range(0, len(copies), BIN_S):
        part = slice(at, at + BIN_S)
        rows.append(
            {
                "kind": "bin",
                "second": at,
                "copies": float(copies[part].mean()),
                "running": float(running[part].mean()),
            }
        )
    return rows


def excerpt(frame: DataFrame, parameters: HostCopies) -> DataFrame:
    """A row per run, and of the first seed what is drawn."""
    return frame[(frame["kind"] != "bin") | (frame["seed"] == frame["seed"].min())]


def plot(frame: DataFrame, parameters: HostCopies) -> Any:
    """A panel per workload."""
    figure = new_figure(4.6 * len(parameters.workloads), 4.2)
    panels = figure.subplots(1, len(parameters.workloads), squeeze=False)[0]
    first = where(frame, seed=frame["seed"].min(), kind="bin")
    for k, (axes, name) in enumerate(zip(panels, parameters.workloads, strict=True)):
        setting = SETTINGS[name]
        for n, keep in enumerate(parameters.keep_alives_s):
            mine = first[
                (first["workload"] == name) & (first["keep_alive_s"].astype(float) == keep)
            ].sort_values("second")
            at = mine["second"].astype(float) / 60
            copies = mine["copies"].astype(float)
            axes.plot(at, copies, color=f"C{n}", lw=1.4, label=f"ServerlessLLM, {keep} s")
            if n == 0:
                running = mine["running"].astype(float)
                axes.fill_between(at, running, color="0.8", label="instances", step="post")
        axes.axhline(1, color="C2", lw=2, label="BlitzScale")
        axes.axhline(setting.hosts, color="0.4", ls="--", lw=1, label="hosts")
        dress(
            axes,
            title=f"{setting.shown},\n{setting.hosts} hosts",
            xlabel="time (min)",
            ylim=(0, setting.hosts * 1.08),
            xlim=(0, float(at.max())),
        )
        if k == 0:
            axes.set_ylabel(f"copies in host memory (means of {BIN_S} s)")
            axes.legend(fontsize=8)
    return figure


@claimed
def claims(frame: DataFrame, parameters: HostCopies) -> Iterator[Claim]:
    """Copies against one, and what silence does to ServerlessLLM's on BurstGPT."""
    keep = parameters.keep_alives_s[0]
    whole = frame[(frame["kind"] == "whole") & (frame["keep_alive_s"].astype(float) == keep)]
    setting = f"copies stay {keep} s, instances start on the first free hosts"
    yield every(
        "BlitzScale has orders of magnitude smaller host cache usage",
        [
            at_least(
                SETTINGS[name].shown,
                10,
                mean_interval(where(whole, workload=name)["copies"].astype(float)),
                nothing=1,
                unit="copies to one",
            )
            for name in parameters.workloads
        ],
        paper="orders of magnitude (read as 10 times)",
        how="ServerlessLLM keeps a copy on each host that an instance has left; BlitzScale keeps one by "
        "definition",
        setting=setting,
        reason="the mean over time: after a peak all hosts have a copy for the keep-alive, between bursts "
        "few, and in silences none; the other two workloads have more than ten",
    )
    if "burstgpt" not in parameters.workloads or len(parameters.workloads) < 2:
        return
    burst = where(whole, workload="burstgpt").set_index("seed")
    others = whole[whole["workload"] != "burstgpt"].groupby("seed")["of_hosts"].mean()
    yield every(
        "On BurstGPT ServerlessLLM caches less, as many times have no requests",
        [
            less(
                "of the share of hosts elsewhere",
                1,
                mean_interval(burst["of_hosts"].astype(float) / others.astype(float)),
                unit="times",
            ),
            at_least(
                "of the time no host has a copy",
                5,
                mean_interval(100 * burst["without"].astype(float)),
                nothing=0,
                unit="%",
            ),
        ],
        paper="slightly better; many times (read as 5 %)",
        how="copies leave after the keep-alive in silences of the BurstGPT-like hours",
        setting=setting,
        reason="the generated hours have more bursts, or fewer silences of more than the keep-alive",
    )
