"""Pictures of a day under several policies: SageServe's Figures 11 to 15."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.output import new_figure
from experiments.sageserve.days import (
    NAMES,
    PLACES,
    STYLES,
    by_seed,
    instances,
    percentile,
    utilisation,
)
from experiments.sageserve.setting import SHOWN

if TYPE_CHECKING:
    from pandas import DataFrame

LLM = "llama-2-70b"


def instances_in_all(frame: DataFrame, policies: Sequence[str], seed: int, step_h: float) -> Any:
    """Figure 11: instances of all regions over the day, hours below the curve in the legend."""
    figure = new_figure(8, 4.5)
    axes = figure.subplots()
    for policy in policies:
        line = instances(frame, policy, LLM)[seed]
        line = line.groupby(np.ceil(line.index.to_numpy() / step_h - 1e-9) * step_h).mean()
        hours = by_seed(frame, policy, llm=LLM)[seed]
        axes.step(
            line.index,
            line,
            where="pre",
            color=STYLES[policy],
            label=f"{NAMES[policy]}: {hours:.0f} instance-hours",
        )
    _finish(axes, "instances in three regions, mean of an hour")
    axes.set_title(SHOWN[LLM], fontsize=10)
    return figure


def hours_by_region(frame: DataFrame, policies: Sequence[str]) -> Any:
    """Figure 12: bars of instance-hours by region."""
    figure = new_figure(7, 4)
    axes = figure.subplots()
    width = 0.8 / len(policies)
    for k, policy in enumerate(policies):
        heights = [by_seed(frame, policy, llm=LLM, region=region).mean() for region in PLACES]
        bars = axes.bar(
            np.arange(len(PLACES)) + (k - (len(policies) - 1) / 2) * width,
            heights,
            width,
            color=STYLES[policy],
            label=NAMES[policy],
        )
        axes.bar_label(bars, fmt="%.0f", fontsize=8)
    axes.set_xticks(range(len(PLACES)), list(PLACES.values()))
    axes.set_ylabel(f"instance-hours of {SHOWN[LLM]}")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def latencies(frame: DataFrame, policies: Sequence[str]) -> Any:
    """Figure 13: 95th percentiles of TTFT and E2E latency by the clients' region."""
    figure = new_figure(10, 4)
    width = 0.8 / len(policies)
    for axes, column, label in zip(
        figure.subplots(1, 2), ("ttft_s_p95", "e2e_s_p95"), ("TTFT", "E2E latency"), strict=True
    ):
        for k, policy in enumerate(policies):
            axes.bar(
                np.arange(len(PLACES)) + (k - (len(policies) - 1) / 2) * width,
                [percentile(frame, policy, column, LLM, region).mean() for region in PLACES],
                width,
                color=STYLES[policy],
                label=NAMES[policy],
            )
        axes.set_xticks(range(len(PLACES)), list(PLACES.values()))
        axes.set_ylabel(f"95 % {label} of {SHOWN[LLM]} (s)")
        axes.grid(axis="y", alpha=0.3)
        axes.legend(fontsize=8)
    return figure


def memory(frame: DataFrame, policies: Sequence[str], seed: int) -> Any:
    """Figure 14: effective memory utilisation, a panel per region."""
    figure = new_figure(9, 8)
    panels = figure.subplots(len(PLACES), 1, sharex=True)
    for axes, (region, name) in zip(panels, PLACES.items(), strict=True):
        for policy in policies:
            line = utilisation(frame, policy, LLM, region)[seed]
            axes.step(line.index, line, where="pre", color=STYLES[policy], label=NAMES[policy])
        for threshold in (0.3, 0.7):
            axes.axhline(threshold, color="0.5", ls=":", lw=1)
        _finish(axes, f"memory in use, {name}")
        if axes is not panels[-1]:
            axes.set_xlabel("")
    return figure


def waste(frame: DataFrame, policies: Sequence[str]) -> Any:
    """Figure 15: hours of VMs on their way, from the LLM's own spot VMs and from those of others."""
    figure = new_figure(9, 4.5)
    axes = figure.subplots()
    width = 0.8 / len(policies)
    for k, policy in enumerate(policies):
        at = np.arange(len(SHOWN)) + (k - (len(policies) - 1) / 2) * width
        own, others = (
            np.array([by_seed(frame, policy, column, llm=llm).mean() for llm in SHOWN])
            for column in ("waste_own_h", "waste_others_h")
        )
        colour = STYLES[policy]
        axes.bar(at, own, width, color=colour, label=f"{NAMES[policy]}, own spot VMs")
        axes.bar(
            at,
            others,
            width,
            bottom=own,
            color=colour,
            alpha=0.5,
            hatch="//",
            label=f"{NAMES[policy]}, other LLMs' VMs",
        )
    axes.set_xticks(range(len(SHOWN)), list(SHOWN.values()))
    axes.set_ylabel("instance-hours until VMs served, three regions")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def _finish(axes: Any, label: str) -> None:
    axes.set_xlabel("hour of the day (UTC)")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
