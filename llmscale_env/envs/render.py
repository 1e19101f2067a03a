"""Pictures and text of an episode in progress."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.scenarios.schema import Scenario

if TYPE_CHECKING:
    from llmscale_env.envs.core import ServingCore


@dataclass
class History:
    """What the pictures are drawn from: one row per control interval.

    Attributes:
        rows: by name; without the intervals before a state that was saved without a history.
        last: number of the last interval that has a row.
    """

    rows: dict[str, list[float]] = field(default_factory=dict)
    last: int = -1

    def add(self, scenario: Scenario, core: ServingCore) -> None:
        """Note the control interval that has just ended; nothing between the ends of intervals."""
        number = int(core.sim.interval[0]) - 1
        if number <= self.last:
            return
        time_s = float(core.snapshot().time_s[0])
        before_s = min(number * scenario.control_interval_s, time_s)
        if self.rows and self.last == number - 1:
            before_s = self.rows["time_s"][-1]
        length_s, self.last = time_s - before_s, number
        self._put("time_s", time_s)
        for name, value in core.metrics().items():
            self._put(name, float(value[0]))
        for c, slo_class in enumerate(scenario.classes):
            arrived = float(core.sim.history[0, number, c])
            self._put(f"{slo_class.name}/rate", arrived / max(length_s, 1e-9))

    def _put(self, name: str, value: float) -> None:
        self.rows.setdefault(name, []).append(value)

    def copy(self) -> History:
        return History({name: list(values) for name, values in self.rows.items()}, self.last)


def text_frame(scenario: Scenario, core: ServingCore) -> str:
    """The cluster now, as a table."""
    metrics = {name: float(value[0]) for name, value in core.metrics().items()}
    now = core.snapshot()
    lines = [
        f"{scenario.name}  t = {now.time_s[0]:.0f} s of {scenario.horizon_s:.0f} s"
        f"  GPU-hours {metrics['gpu_hours']:.2f}  reward {metrics['reward']:.2f}"
    ]
    lines.append(
        f"{'pool':<14}{'active':>7}{'loading':>8}{'running':>8}{'waiting':>8}{'limit':>7}{'KV':>6}"
    )
    for p, pool in enumerate(scenario.fleet.pools):
        row = now.pools[0, p]
        kv = row["kv_tokens"] / max(int(row["kv_capacity"]), 1)
        lines.append(
            f"{pool.name:<14}{row['active']:>7}{row['acquiring'] + row['loading']:>8}"
            f"{row['running']:>8}{row['waiting']:>8}{metrics[f'{pool.name}/batch_limit']:>7.0f}{kv:>6.0%}"
        )
    for queue in scenario.fleet.queues:
        lines.append(f"queue {queue.name}: {metrics[f'queue/{queue.name}']:.0f}")
    if "queue/gateway" in metrics:
        lines.append(f"without a worker: {metrics['queue/gateway']:.0f}")
    if scenario.fleet.group_queues:
        lines.append(f"request groups: {metrics['queue/groups']:.0f} waiting")
    for slo_class in scenario.classes:
        share, late = (
            metrics[f"{slo_class.name}/{key}"] for key in ("slo_attainment", "violations")
        )
        on_time = core.sim.engine.class_seen["on_time"][0, scenario.classes.index(slo_class)]
        judged = f"{share:.1%} on time" if on_time + late > 0 else "- on time"
        lines.append(f"{slo_class.name}: {judged}, {late:.0f} violations")
    return "\n".join(lines)


WIDTH, HEIGHT, DPI = 800, 640, 80
"""Pixels of a frame."""

_PANELS = ("arrivals per second", "requests waiting", "active instances", "on time so far")


class FrameDrawer:
    """Frames of an episode: arrivals, queues, instances per pool, SLO attainment over time.

    What is there stays on the canvas, so a frame draws only the intervals that are new. Where one of them
    passes a panel's range the range doubles, and all is drawn again. Where lines join, some pixels depend on
    how often it was drawn.

    Args:
        scenario: what is simulated.
        gateway: whether requests that wait without a worker are a line.
    """

    def __init__(self, scenario: Scenario, gateway: bool) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self._scenario = scenario
        figure = Figure(figsize=(WIDTH / DPI, HEIGHT / DPI), dpi=DPI)
        self._canvas = FigureCanvasAgg(figure)
        self._axes: Any = figure.subplots(4, 1, sharex=True)
        figure.subplots_adjust(left=0.08, right=0.76, top=0.98, bottom=0.07, hspace=0.12)
        self._lines = list(_lines_of(scenario, gateway))
        self._pools = [pool.name for pool in scenario.fleet.pools]
        self._tops = [1.0, 10.0, 1.0, 1.02]
        self._drawn = -1  # rows that are on the canvas; -1: not even the panels
        self._prepare()

    def draw(self, history: History) -> NDArray[np.uint8]:
        """(HEIGHT, WIDTH, 3) picture of the episode so far."""
        rows = {name: np.array(values) for name, values in history.rows.items()}
        n = len(rows.get("time_s", ()))
        if n < self._drawn:  # another episode
            self._tops, self._drawn = [1.0, 10.0, 1.0, 1.02], -1
        if self._raise_tops(rows) or self._drawn < 0:
            for axis, top in zip(self._axes, self._tops, strict=True):
                axis.set_ylim(0, top)
            self._canvas.draw()
            self._drawn = 0
        if n > self._drawn:
            self._add(rows, max(self._drawn - 1, 0), n)
            self._drawn = n
        return np.asarray(self._canvas.buffer_rgba())[:, :, :3].copy()

    def _prepare(self) -> None:
        """Empty panels with their legends, and an artist for each thing that is drawn."""
        self._artists = [
            self._axes[panel].plot([], [], label=label, lw=width, animated=True)[0]
            for panel, label, _, width in self._lines
        ]
        self._bars = [
            self._axes[2].fill_between([], [], label=name, animated=True, color=f"C{k}", step="pre")
            for k, name in enumerate(self._pools)
        ]
        for axis, title in zip(self._axes, _PANELS, strict=True):
            axis.set_ylabel(title, fontsize=8)
            axis.set_xlim(0, self._scenario.horizon_s)
            axis.tick_params(labelsize=7)
            axis.grid(alpha=0.3)
            # Beside the panel: within it, eleven queues hide what is drawn.
            axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=7)
        self._axes[1].set_yscale("symlog")
        self._axes[3].set_xlabel("time, s", fontsize=8)

    def _raise_tops(self, rows: dict[str, NDArray[np.float64]]) -> bool:
        """Let every panel have room for all rows; whether one had not."""
        highest = [0.0] * len(_PANELS)
        for panel, _, name, _ in self._lines:
            new = rows.get(name, np.zeros(0))[max(self._drawn, 0) :]
            highest[panel] = max(highest[panel], float(new.max(initial=0.0)))
        counts = [rows.get(f"{pool}/active", np.zeros(0)) for pool in self._pools]
        total = np.sum(counts, axis=0)[max(self._drawn, 0) :]
        highest[2] = float(np.max(total, initial=0.0))
        # Powers of two of the first range: how they were reached does not show.
        tops = [
            top * 2.0 ** max(0, math.ceil(math.log2(high / top))) if high > top else top
            for high, top in zip(highest, self._tops, strict=True)
        ]
        changed, self._tops = tops != self._tops, tops
        return changed

    def _add(self, rows: dict[str, NDArray[np.float64]], first: int, last: int) -> None:
        """Draw rows `first` to `last` on what is there."""
        time_s = rows["time_s"][first:last]
        if first == 0:
            time_s = np.concatenate([[0.0], time_s])
        base = np.zeros(len(time_s))
        for artist, pool in zip(self._bars, self._pools, strict=True):
            count = _held(rows[f"{pool}/active"], first, last)
            artist.set_data(time_s, base, base + count)
            artist.axes.draw_artist(artist)
            base = base + count
        for artist, (panel, _, name, _) in zip(self._artists, self._lines, strict=True):
            artist.set_data(time_s, _held(rows[name], first, last))
            if panel == 0:
                artist.set_drawstyle("steps-pre")
            artist.axes.draw_artist(artist)


def _held(values: NDArray[np.float64], first: int, last: int) -> NDArray[np.float64]:
    """Rows `first` to `last`; before the first of all it was as there."""
    rows = values[first:last]
    return np.concatenate([rows[:1], rows]) if first == 0 else rows


def _lines_of(scenario: Scenario, gateway: bool) -> Iterator[tuple[int, str, str, float]]:
    """(panel, label, name of the row, width) of each line."""
    for slo_class in scenario.classes:
        yield 0, slo_class.name, f"{slo_class.name}/rate", 1.5
        yield 3, slo_class.name, f"{slo_class.name}/slo_attainment", 1.5
    for queue in scenario.fleet.queues:
        yield 1, f"queue {queue.name}", f"queue/{queue.name}", 1.5
    if scenario.fleet.group_queues:
        yield 1, "request groups", "queue/groups", 1.5
    if gateway:
        yield 1, "without a worker", "queue/gateway", 1.5
    for pool in scenario.fleet.pools:
        yield 1, f"waiting, {pool.name}", f"{pool.name}/waiting", 0.8
