"""Pictures of runs: learning curve, policies side by side, an episode."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agents.runs.comparison import grouped
from agents.runs.files import read_csv
from agents.statistics import mean_interval
from llmscale_env._writing import replace_file
from llmscale_env.scenarios import Scenario

LABEL_WIDTH = 26
"""Characters of a policy's name in a line: options make names that would leave no room for the picture."""

COLOURS = (
    "tab:blue",
    "tab:orange",
    "tab:green",
    "tab:red",
    "tab:purple",
    "tab:brown",
    "tab:pink",
    "tab:gray",
    "tab:olive",
    "tab:cyan",
)
"""Of the learner, then of the others in their order: the same in both pictures of a run."""


MARKERS = "os^D"
"""Of the first ten policies, of the next ten, ...: there are ten colours."""


def learning_curve(folder: Path, path: Path, scenario: Scenario) -> Path:
    """Reward, attainment and GPU-hours over steps, with intervals and reference levels.

    The intervals are of the difference, episode by episode, from the references' mean: how hard an episode
    is would make them wider than the panel.

    Args:
        folder: run folder with validation.csv and references.csv.
        path: of the PNG.
        scenario: of the run.

    Raises:
        FileNotFoundError: the folder has no validation.csv.
    """
    rows = read_csv(folder / "validation.csv")
    references = folder / "references.csv"
    levels = grouped(read_csv(references), "policy") if references.is_file() else {}
    steps = grouped(rows, "timesteps")
    learner = str(rows[0]["policy"])
    panels = [("reward", "reward per episode", 1.0)]
    panels += [
        (f"{name}/slo_attainment", f"{name}: on time, %", 100.0) for name in scenario.class_groups
    ]
    panels += [("gpu_hours", "GPU-hours", 1.0)]
    figure = _figure(11.0, 7.0)
    axes = figure.subplots(2, (len(panels) + 1) // 2, squeeze=False).ravel()
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis, (key, label, factor) in zip(axes, panels, strict=False):
        x = np.array(sorted(steps))
        usual = _usual(levels or steps, key)
        centre = float(np.nanmean(list(usual.values())))
        found = [
            mean_interval([(r[key] - usual[_episode(r)] + centre) * factor for r in steps[step]])
            for step in x
        ]
        axis.fill_between(
            x, [i.low for i in found], [i.high for i in found], alpha=0.2, color=COLOURS[0], lw=0
        )
        axis.plot(x, [i.mean for i in found], color=COLOURS[0], marker=".", label=learner)
        means = []
        for k, (policy, mine) in enumerate(levels.items()):
            level = float(np.mean([row[key] * factor for row in mine]))
            means.append(level)
            colour = COLOURS[(k + 1) % len(COLOURS)]
            axis.axhline(level, color=colour, ls="--", lw=1.2, label=str(policy))
        _limits(axis, [i.mean for i in found], means)
        axis.set(xlabel="environment steps", ylabel=label)
        axis.grid(alpha=0.3)
        axis.ticklabel_format(axis="x", style="sci", scilimits=(3, 3))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9)
    n = len(next(iter(steps.values())))
    figure.suptitle(
        f"{scenario.name}: {learner} on {n} validation episodes and the levels of reference policies on the "
        "same\n(band: 95 % interval of the paired difference from their mean)",
        fontsize=10,
    )
    return _save(figure, path)


def _episode(row: Mapping[str, Any]) -> tuple[Any, Any]:
    return row.get("workload"), row["seed"]


def _usual(groups: Mapping[Any, Sequence[Mapping[str, Any]]], key: str) -> dict[Any, float]:
    """What all rows of an episode have in the mean."""
    found: dict[Any, list[float]] = defaultdict(list)
    for row in (row for rows in groups.values() for row in rows):
        found[_episode(row)].append(row[key])
    return {episode: float(np.mean(values)) for episode, values in found.items()}


def _limits(axis: Any, curve: Sequence[float], levels: Sequence[float]) -> None:
    """Where everything beyond the first steps can be told apart: an untrained policy is far off."""
    shown = np.array([*curve[len(curve) // 4 :], *levels], np.float64)
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    pad = 0.15 * (high - low) or 0.05 * abs(high) or 1.0
    axis.set_ylim(low - pad, high + pad)


def comparison(summary: Sequence[Mapping[str, Any]], scenario: Scenario, path: Path) -> Path:
    """GPU-hours against attainment, and reward, each with 95 % intervals."""
    labels = [textwrap.fill(str(row["policy"]), LABEL_WIDTH) for row in summary]
    lines = np.array([label.count("\n") + 1 for label in labels])
    # A name of several lines has the height of so many names of one.
    heights = np.cumsum(lines) - lines / 2
    figure = _figure(10.0, max(4.0, 1.0 + 0.22 * lines.sum()))
    left, right = figure.subplots(1, 2)
    for k, (row, height) in enumerate(zip(summary, heights, strict=True)):
        colour, marker = COLOURS[k % len(COLOURS)], MARKERS[k // len(COLOURS) % len(MARKERS)]
        left.errorbar(
            row["gpu_hours"],
            100 * row["joint/slo_attainment"],
            xerr=_error(row, "gpu_hours", 1.0),
            yerr=_error(row, "joint/slo_attainment", 100.0),
            fmt=marker,
            capsize=2,
            color=colour,
        )
        right.errorbar(
            row["reward"],
            height,
            xerr=_error(row, "reward", 1.0),
            fmt=marker,
            capsize=3,
            color=colour,
        )
    left.set(xlabel="GPU-hours (fewer is better)", ylabel="requests on time, all classes, %")
    right.set_yticks(heights, labels, fontsize=8)
    right.invert_yaxis()
    right.set(xlabel="reward per episode (more is better)")
    for axis in (left, right):
        axis.grid(alpha=0.3)
    episodes = int(summary[0]["episodes"])
    said = f"means over {episodes} episodes, 95 % intervals" if episodes > 1 else "one episode"
    figure.suptitle(
        f"{scenario.name}: {said} (colours as on the right)",
        fontsize=10,
    )
    return _save(figure, path)


def _error(row: Mapping[str, Any], key: str, factor: float) -> list[list[float]]:
    mean, low, high = (row[k] * factor for k in (key, f"{key}/low", f"{key}/high"))
    return [[max(mean - low, 0.0)], [max(high - mean, 0.0)]]


def _figure(width: float, height: float) -> Any:
    """An empty figure that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Any, path: Path) -> Path:
    return replace_file(path, lambda part: figure.savefig(part, dpi=100, format="png"))
