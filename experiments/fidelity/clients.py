"""Real servers: latencies that a client saw, against those of the simulator fitted to others of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.client_runs import HEAD, Runs
from experiments.fidelity.part import Part

TARGETS_PERCENT = {"TTFT": 15.0, "time per token": 5.0, "E2E": 5.0}
"""Most that the median error of single requests should be."""

_COLUMNS = ("fitted to", "scored on", "metric", "n", "median |error|", "p90 |error|", "outside")


def clients_part(data: Path, out: Path) -> Part:
    """What `experiments.client_runs` prints of requests that were not fitted, beside the targets."""
    runs = Runs("global", 0, out)
    runs.ours()
    runs.reference(data / "reference")
    rows = []
    for values in runs.rows:
        row: dict[str, Any] = dict(zip(HEAD, values, strict=True))
        if row["fitted to"] != "the cards alone":
            share = 100 * float(row["median |error|"]) / TARGETS_PERCENT[row["metric"]]
            rows.append((*(row[name] for name in _COLUMNS), round(share)))
    return Part(
        "Requests of real vLLM servers that were not fitted: errors in percent "
        "(outside: requests beyond what was fitted)",
        (*_COLUMNS, "median error in percent of its target, %"),
        rows,
        "median error in percent of its target, %",
        100.0,
    )
