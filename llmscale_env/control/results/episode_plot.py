"""The picture of an episode, for `EpisodeResult.plot`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env._writing import replace_files

if TYPE_CHECKING:
    from llmscale_env.control.results.result import EpisodeResult

SUFFIXES = (".png", ".svg", ".pdf")
MAX_BINS = 240
"""More bins than that across a picture are noise."""


def draw_episode(result: EpisodeResult, path: Path) -> Path:
    """Arrivals, requests waiting, instances and batch limits per pool, SLO attainment over time.

    Classes of a group are one line. From two hours on the axis is in hours.

    Raises:
        ValueError: a suffix other than `SUFFIXES`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"path = {path.name!r}: must end in one of {', '.join(SUFFIXES)}")
    figure = Figure(figsize=(10, 11), layout="constrained")
    FigureCanvasAgg(figure)
    arrivals, waiting, instances, limits, attainment = figure.subplots(5, 1, sharex=True)
    edges = _edges(result)
    unit_s, unit = (3600.0, "hours") if edges[-1] >= 7200 else (1.0, "s")
    for colour, (name, classes) in enumerate(result.class_groups.items()):
        mine = result.requests[result.requests["slo_class"].isin(classes)]
        _draw_group(mine, edges, unit_s, name, f"C{colour}", arrivals, waiting, attainment)
    _draw_pools(result, edges, unit_s, instances, limits)
    arrivals.set_ylabel("arrivals per s")
    arrivals.set_yscale("symlog", linthresh=10)
    arrivals.set_ylim(bottom=0)
    waiting.set_ylabel("requests waiting\nfor their first admission")
    waiting.set_yscale("symlog", linthresh=10)
    waiting.set_ylim(bottom=0)
    instances.set_ylabel("instances")
    instances.set_ylim(bottom=-0.2)
    limits.set_ylabel("batch limit, mean\nof serving instances")
    limits.set_ylim(bottom=0)
    attainment.set_ylabel("on time, of those that\narrived then and ended")
    attainment.set_ylim(-0.03, 1.03)
    attainment.set_xlabel(f"time in {unit}")
    attainment.set_xlim(0, edges[-1] / unit_s)
    for axes in (arrivals, waiting, instances, limits, attainment):
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    from llmscale_env.control.results.result import on_time_share

    share = on_time_share(result.summary, "joint")
    on_time = "no request judged" if np.isnan(share) else f"{100 * share:.1f} % on time"
    figure.suptitle(
        f"{result.scenario}, seed {result.seed}\n{result.policy}: "
        f"{on_time}, {result.summary['gpu_hours']:.2f} GPU-hours",
        fontsize="medium",
        wrap=True,
    )
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=90, format=path.suffix[1:].lower())
    path.parent.mkdir(parents=True, exist_ok=True)
    return replace_files({path: lambda part: part.write_bytes(buffer.getvalue())})[0]


def _edges(result: EpisodeResult) -> NDArray[np.float64]:
    """Bounds of the bins: control intervals, or several of them at a time."""
    horizon_s = result.summary["horizon_s"]
    ends = result.series["time_s"].to_numpy(dtype=float)
    if len(ends) < 2:
        ends = np.linspace(0, horizon_s, 61)[1:]
    step = -(-len(ends) // MAX_BINS)
    inner = ends[step - 1 : -1 : step]
    return np.concatenate([[0.0], inner[inner < horizon_s], [horizon_s]])


def _draw_group(
    requests: Any,
    edges: NDArray[np.float64],
    unit_s: float,
    name: str,
    colour: str,
    arrivals: Any,
    waiting: Any,
    attainment: Any,
) -> None:
    arrival_s = requests["arrival_s"].to_numpy()
    count = np.histogram(arrival_s, edges)[0]
    arrivals.stairs(count / np.diff(edges), edges / unit_s, label=name, color=colour)
    there = requests[requests["outcome"] != "rejected"]
    came = np.sort(there["arrival_s"].to_numpy())
    left = there["arrival_s"].to_numpy() + there["queued_s"].to_numpy()
    left = np.sort(left[~np.isnan(left)])
    queue = np.searchsorted(came, edges) - np.searchsorted(left, edges)
    waiting.plot(edges / unit_s, queue, label=name, color=colour)
    outcome = requests["outcome"].to_numpy()
    on_time = np.histogram(arrival_s[outcome == "on_time"], edges)[0]
    # With the unfinished ones every picture would end in a fall.
    ended = np.histogram(arrival_s[outcome != "unfinished"], edges)[0]
    share = np.divide(on_time, ended, out=np.full(len(ended), np.nan), where=ended > 0)
    middle = (edges[1:] + edges[:-1]) / 2 / unit_s
    attainment.plot(middle, share, ".-", markersize=3, linewidth=0.8, label=name, color=colour)


def _means(
    time: NDArray[np.float64],
    values: NDArray[np.float64],
    counts: NDArray[np.bool_],
    edges: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Mean of the values that count in each bin, NaN where none does: single steps would be a blot."""
    place = np.clip(np.searchsorted(edges, time, side="left") - 1, 0, len(edges) - 2)
    n = np.bincount(place[counts], minlength=len(edges) - 1)
    total = np.bincount(place[counts], values[counts], minlength=len(edges) - 1)
    return np.divide(total, n, out=np.full(len(n), np.nan), where=n > 0)


def _draw_pools(
    result: EpisodeResult, edges: NDArray[np.float64], unit_s: float, axes: Any, limits: Any
) -> None:
    time = result.series["time_s"].to_numpy(dtype=float) / unit_s
    pools = [c.removesuffix("/active") for c in result.series.columns if c.endswith("/active")]
    for k, pool in enumerate(pools):
        active = result.series[f"{pool}/active"].to_numpy()
        # Lines of equal counts would hide each other.
        shift = 0.04 * (k - (len(pools) - 1) / 2)
        axes.step(time, active + shift, where="pre", color=f"C{k}", label=pool)
        if f"{pool}/batch_limit" in result.series:
            limit = result.series[f"{pool}/batch_limit"].to_numpy(dtype=float)
            mean = _means(time, limit, active > 0, edges / unit_s)
            limits.stairs(mean, edges / unit_s, baseline=None, color=f"C{k}", label=pool)
        coming = np.zeros(len(time))
        for state in ("acquiring", "loading"):
            if f"{pool}/{state}" in result.series:
                coming = coming + result.series[f"{pool}/{state}"].to_numpy()
        if coming.any():
            axes.fill_between(
                time,
                active,
                active + coming,
                step="pre",
                color=f"C{k}",
                alpha=0.3,
                linewidth=0,
                label="(loading)",
            )
