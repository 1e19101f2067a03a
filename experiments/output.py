"""What every experiment leaves behind: a table on the screen, a CSV, a picture, the machine's name."""

from __future__ import annotations

import csv
import io
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from llmscale_env._writing import replace_file, write_text

RESULTS = Path("results")
"""Where experiments write unless told otherwise; git ignores it."""


def text_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns aligned: text to the left, numbers to the right."""
    cells = [[shown(value) for value in row] for row in rows]
    widths = [max(len(line[k]) for line in [head, *cells]) for k in range(len(head))]
    left = [all(isinstance(row[k], str) for row in rows) for k in range(len(head))]

    def line(values: Sequence[str]) -> str:
        parts = (
            value.ljust(width) if first else value.rjust(width)
            for value, width, first in zip(values, widths, left, strict=True)
        )
        return "  ".join(parts).rstrip()

    return "\n".join([line(head), *(line(row) for row in cells)])


def shown(value: object) -> str:
    """A value as a table shows it: numbers with four significant digits, large ones in groups."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Head and rows of a table, from rows by column; all have the same columns.

    Raises:
        ValueError: they do not.
    """
    head = list(rows[0])
    if any(list(row) != head for row in rows):
        raise ValueError(f"rows of other columns than {head}")
    return head, [list(row.values()) for row in rows]


def write_csv(path: Path, head: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    """Write a table with all its digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return write_text(path, text.getvalue())


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path) -> Path:
    """Write a figure as PNG, readable at the width of a page."""
    from experiments.harness.picture import save

    return replace_file(path, lambda part: save(figure, part))


def machine() -> dict[str, str]:
    """Processor, cores, Python and the versions that matter for speed."""
    found = {
        "cpu": _cpu_model(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    for name in ("numpy", "numba", "simpy", "gymnasium", "stable-baselines3", "torch"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
