"""Pictures and text of an episode in progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.scenarios.schema import Scenario

if TYPE_CHECKING:
    from llmscale_env.envs.core import ServingCore


@dataclass
class History:
    """What the pictures are drawn from: one row per control interval."""

    rows: dict[str, list[float]] = field(default_factory=dict)

    def add(self, scenario: Scenario, core: ServingCore) -> None:
        """Note the control interval that has just ended; nothing between the ends of intervals."""
        number = int(core.sim.interval[0]) - 1
        if number < len(self.rows.get("time_s", [])):
            return
        time_s = float(core.snapshot().time_s[0])
        length_s = time_s - self.rows["time_s"][-1] if number else time_s
        self._put("time_s", time_s)
        for name, value in core.metrics().items():
            self._put(name, float(value[0]))
        for c, slo_class in enumerate(scenario.classes):
            arrived = float(core.sim.history[0, number, c])
            self._put(f"{slo_class.name}/rate", arrived / max(length_s, 1e-9))

    def _put(self, name: str, value: float) -> None:
        self.rows.setdefault(name, []).append(value)

    def copy(self) -> History:
        return History({name: list(values) for name, values in self.rows.items()})


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


def draw_frame(scenario: Scenario, history: History) -> NDArray[np.uint8]:
    """(H, W, 3) picture: arrivals, queues, instances per pool, SLO attainment over time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 8), dpi=80, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes: Any = figure.subplots(4, 1, sharex=True)
    rows = history.rows
    time_s = rows.get("time_s", [])
    for slo_class in scenario.classes:
        axes[0].step(
            time_s, rows.get(f"{slo_class.name}/rate", []), where="pre", label=slo_class.name
        )
        axes[3].plot(time_s, rows.get(f"{slo_class.name}/slo_attainment", []), label=slo_class.name)
    for queue in scenario.fleet.queues:
        axes[1].plot(time_s, rows.get(f"queue/{queue.name}", []), label=f"queue {queue.name}")
    if scenario.fleet.group_queues:
        axes[1].plot(time_s, rows.get("queue/groups", []), label="request groups")
    if "queue/gateway" in rows:
        axes[1].plot(time_s, rows["queue/gateway"], label="without a worker")
    for pool in scenario.fleet.pools:
        axes[1].plot(
            time_s, rows.get(f"{pool.name}/waiting", []), label=f"waiting, {pool.name}", lw=0.8
        )
    counts = [np.array(rows.get(f"{pool.name}/active", [])) for pool in scenario.fleet.pools]
    axes[2].stackplot(
        time_s, *counts, labels=[pool.name for pool in scenario.fleet.pools], step="pre"
    )
    titles = ("arrivals per second", "requests waiting", "active instances", "on time so far")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_ylabel(title, fontsize=8)
        axis.set_xlim(0, scenario.horizon_s)
        # Beside the panel: within it, eleven queues hide what is drawn.
        axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=7)
        axis.grid(alpha=0.3)
    axes[1].set_yscale("symlog")
    axes[1].set_ylim(bottom=0)
    axes[3].set_ylim(0, 1.02)
    axes[3].set_xlabel("time, s")
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()
