"""Pictures of the protocol: Pareto fronts, GPU-hours at matched attainment, distances to the bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.harness.figure import dress
from experiments.learned.choices import base_on, episodes_of, settings_of, trainings_in
from experiments.learned.family import shape_of
from experiments.learned.matched import TARGET
from experiments.learned.standings import Standing, mean_bound, percent
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

_MARKERS = "osD^v<>PX*hd"
_LEAST_MISSED = 0.01
"""Per cent: where nobody missed anything, on an axis without 0."""


_TICKS = (100, 10, 1, 0.1, _LEAST_MISSED)


def styles(policies: Sequence[str], learned: set[str]) -> dict[str, dict[str, Any]]:
    """Colour, marker and width by policy; learned ones stand out."""
    from matplotlib import colormaps

    colours = colormaps["tab20"](np.arange(20))
    others = [p for p in policies if p not in learned]
    found: dict[str, dict[str, Any]] = {}
    for k, policy in enumerate(others):
        marker = _MARKERS[k % len(_MARKERS)]
        found[policy] = {
            "color": colours[(2 * k + k // 10) % 20],
            "marker": marker,
            "lw": 1.0,
            "ms": 4,
        }
    for k, policy in enumerate(p for p in policies if p in learned):
        found[policy] = {
            "color": ("black", "maroon", "navy", "darkslategray")[k % 4],
            "marker": "*",
            "lw": 2.2,
            "ms": 9,
        }
    return found


def pareto(frame: DataFrame, found: Sequence[Standing], target: float = TARGET) -> Any:
    """GPU-hours against what the worst class misses, a panel per test workload; settings joined by lines.

    Those of a policy that was trained are means over its networks; a line for each price.
    """
    rows = episodes_of(frame)
    panels = list(dict.fromkeys(s.workload for s in found))
    policies = list(dict.fromkeys(s.policy for s in found))
    looks = styles(policies, {s.policy for s in found if s.learned})
    figure, axes = _panels(panels, 4.6, 3.8)
    for axis, workload in zip(axes, panels, strict=False):
        for s in (s for s in found if s.workload == workload):
            base = base_on(rows, s.policy, workload)
            whole = settings_of(rows, s.policy, base, workload)
            for trained in trainings_in(whole) if s.learned else [None]:
                share, hours = settings_of(rows, s.policy, base, workload, trained).points()
                order = np.argsort(hours)
                missed = np.maximum(100 * (1 - share[order]), _LEAST_MISSED)
                look = looks[s.policy]
                axis.plot(
                    hours[order], missed, label=s.policy, zorder=3 if s.learned else 2, **look
                )
        said = f"{percent(target)} on time"
        axis.axhline(100 * (1 - target), color="gray", ls="--", lw=1, label=said)
        _draw_bound(axis, mean_bound(frame, workload))
        label = "arrivals of the worst class not on time, %"
        ends = (100, _LEAST_MISSED * 0.8)
        title = f"{workload} ({shape_of(workload)})"
        dress(axis, title=title, log="y", xlabel="GPU-hours per window", ylabel=label, ylim=ends)
        axis.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    _legend(figure, axes)
    return figure


def bars(frame: DataFrame, found: Sequence[Standing], target: float = TARGET) -> Any:
    """GPU-hours at the target with intervals (arrows: endless ones); who never reaches it is named with the
    best that it does.
    """
    panels = list(dict.fromkeys(s.workload for s in found))
    policies = list(dict.fromkeys(s.policy for s in found))
    looks = styles(policies, {s.policy for s in found if s.learned})
    figure, axes = _panels(panels, 4.6, 0.9 + 0.3 * len(policies))
    for axis, workload in zip(axes, panels, strict=False):
        mine = [s for s in found if s.workload == workload]
        mine.sort(key=lambda s: (np.isnan(s.matched.mean), s.matched.mean, -s.best_attainment))
        most = max((s.matched.mean for s in mine if not np.isnan(s.matched.mean)), default=1.0)
        for y, s in enumerate(mine):
            if np.isnan(s.matched.mean):
                said = s.shortfall(target)
                clear = {"color": "white", "pad": 0.5}  # of the bound's line
                look = {"va": "center", "fontsize": 8, "color": "firebrick", "zorder": 4}
                axis.text(0.02 * most, y, said, bbox=clear, **look)
                continue
            axis.barh(y, s.matched.mean, color=looks[s.policy]["color"], height=0.7)
            low, high = s.matched.low, s.matched.high
            if np.isnan(low):
                look = {"va": "center", "ha": "right", "fontsize": 7, "color": "white"}
                axis.text(s.matched.mean, y, "no interval ", **look)
            elif np.isinf(high):
                axis.plot([low, 1.1 * most], [y, y], color="black", lw=1.5)
                axis.scatter([low], [y], color="black", marker="|", zorder=3)
                axis.scatter([1.1 * most], [y], color="black", marker=">", s=20, zorder=3)
            else:
                axis.plot([low, high], [y, y], color="black", lw=1.5, marker="|")
        _draw_bound(axis, mean_bound(frame, workload))
        axis.set_yticks(range(len(mine)), [s.policy for s in mine], fontsize=8)
        axis.set_ylim(len(mine) - 0.4, -0.6)
        axis.set_title(f"{workload} ({shape_of(workload)})", fontsize=10)
        axis.set_xlabel(f"GPU-hours per window at {percent(target)} of every class", fontsize=8)
    _legend(figure, axes)
    return figure


def distances(found: Sequence[Standing], target: float = TARGET) -> Any:
    """GPU-hours at the target over the bound, by policy; a point per workload."""
    policies = list(dict.fromkeys(s.policy for s in found))
    panels = list(dict.fromkeys(s.workload for s in found))
    figure = new_figure(8.0, 1.6 + 0.35 * len(policies))
    axis = figure.subplots()
    from matplotlib import colormaps

    colours = colormaps["tab10"](np.arange(10))
    for k, workload in enumerate(panels):
        points = [
            (s.matched_distance, policies.index(s.policy)) for s in found if s.workload == workload
        ]
        some = [(x, y) for x, y in points if not np.isnan(x)]
        if some:
            marker = "o" if shape_of(workload) == "smooth" else "^"
            x, y = np.array(some).T
            axis.scatter(
                x,
                y + 0.08 * (k - len(panels) / 2),
                color=colours[k % 10],
                marker=marker,
                label=workload,
            )
    axis.axvline(1.0, color="tab:red", ls=":", label="clairvoyant bound")
    axis.set_yticks(range(len(policies)), policies)
    axis.invert_yaxis()
    axis.set_xlabel(
        f"GPU-hours at {percent(target)} of every class over the bound (absent: never reaches it)"
    )
    axis.grid(alpha=0.3, axis="x")
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _draw_bound(axis: Any, hours: float) -> None:
    if not np.isnan(hours):
        axis.axvline(hours, color="tab:red", ls=":", lw=1.5, label="clairvoyant bound")


def _panels(names: Sequence[str], width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure with so many panels, and room for a legend."""
    columns = min(3, max(1, len(names)))
    rows = -(-len(names) // columns) or 1
    figure = new_figure(width * columns, height * rows + 0.8)
    axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    return figure, axes[: len(names)]


def _legend(figure: Any, axes: Sequence[Any]) -> None:
    """One legend below all panels."""
    seen: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        seen.update(zip(labels, handles, strict=True))
    if seen:
        figure.legend(seen.values(), seen.keys(), loc="outside lower center", ncols=7, fontsize=8)
