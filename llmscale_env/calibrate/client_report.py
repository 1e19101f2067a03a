"""What a fit to observed requests says of itself: tables, remarks, a picture."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmscale_env._cli import table
from llmscale_env._writing import replace_file
from llmscale_env.calibrate.fit import METRICS, Calibration, Parameters, Range, Score
from llmscale_env.calibrate.observed import Observed, busy_periods
from llmscale_env.calibrate.replay import Replayed

MEANINGS = {
    "read": "reading the weights, times the roofline",
    "compute": "matrix products, times the roofline",
    "context": "reading KV in decode, times the roofline",
    "attention": "attention in prefill, times the roofline",
    "per_request_s": "engine, s per decoding request of a step",
    "per_chunk_s": "engine, s per chunk of a prompt",
    "delay_s": "front end, s per request",
    "delay_per_token_s": "front end, s per prompt token, one request at a time",
}
FEW = 100
"""Below so many requests a p99 is the worst one or two."""


def load_lines(observed: Observed) -> list[str]:
    """What was read, and what the file hides."""
    runs, periods = int(observed.run[-1]) + 1, int(busy_periods(observed)[-1]) + 1
    head = (
        f"{observed.name}: {observed.source}, {len(observed)} requests, {int(observed.believed.sum())} of "
        f"them with latencies to compare; {_count(runs, 'run')}, {_count(periods, 'busy period')}"
    )
    return [head, *(f"  {remark}" for remark in observed.remarks)]


def score_lines(scores: dict[str, Score]) -> list[str]:
    """A table with a row per set of requests and metric, and how to read it."""
    head = (
        "requests", "metric", "n", "p50 s", "p90 s", "p99 s", "median |error|", "p90 |error|",
        "median error",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for name, of in scores.items():
        for metric, row in of.items():
            pairs = zip(row.measured, row.simulated, strict=True)
            rows.append(
                (
                    name, metric, str(row.n),
                    *(f"{a:.4g} / {b:.4g} ({100 * (b / a - 1):+.1f} %)" for a, b in pairs),
                    f"{100 * row.median:.1f} %", f"{100 * row.p90:.1f} %", f"{100 * row.bias:+.1f} %",
                )
            )  # fmt: skip
    return [
        table(head, rows),
        "",
        "p50, p90, p99: measured / simulated. Errors are those of single requests; above 0: too slow.",
    ]


def parameter_table(at: Parameters, undecided: Sequence[str]) -> str:
    """A row per parameter."""
    rows = []
    for name, what in MEANINGS.items():
        free = "; this run does not decide it" if name in undecided else ""
        rows.append((name, f"{getattr(at, name):.4g}", what + free))
    return table(("parameter", "value", "what"), rows)


def range_lines(covered: Range, n_outside: int | None, few: int) -> list[str]:
    """What is extrapolated, said aloud."""
    lines = [
        f"fitted on batches up to {covered.batch}, prompts up to {covered.prompt_tokens} tokens and contexts "
        f"up to {covered.context_tokens}; beyond that the times are extrapolated by the roofline's form"
    ]
    if n_outside:
        lines.append(f"{_count(n_outside, 'scored request')} beyond that range: EXTRAPOLATED")
    if few < FEW:
        lines.append(f"p99 of {few} requests is the worst of them")
    return lines


def fit_lines(fit: Calibration) -> list[str]:
    """The report of a fit."""
    held_out = min(row.n for row in fit.scores["held out"].values())
    return [
        parameter_table(fit.parameters, fit.undecided),
        "",
        *score_lines(fit.scores),
        *range_lines(fit.range, fit.n_outside, held_out),
        f"{fit.replays} replays",
    ]


def draw(
    observed: Observed,
    replayed: Replayed,
    groups: dict[str, NDArray[np.bool_]],
    title: str,
    path: Path,
) -> Path:
    """Draw measured against simulated, request by request: a PNG with one panel per metric.

    Args:
        observed, replayed: the same requests.
        groups: which of them belong together, by name.
        title: above the panels.
        path: the file.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.3), layout="constrained")
    FigureCanvasAgg(figure)
    for panel, (metric, name) in zip(figure.subplots(1, 3), METRICS.items(), strict=True):
        seen, made = getattr(observed, name), getattr(replayed, name)
        drawn = np.isfinite(seen) & (seen > 0) & np.any(list(groups.values()), axis=0)
        for group, which in groups.items():
            of = drawn & which
            panel.loglog(seen[of], made[of], "o", ms=3, alpha=0.6, label=f"{group} ({of.sum()})")
        if drawn.any():
            ends = np.asarray([seen[drawn].min(), seen[drawn].max()])
            panel.loglog(ends, ends, color="0.3", lw=0.8)
            panel.fill_between(
                ends, 0.9 * ends, 1.1 * ends, color="0.85", lw=0, label="within 10 %"
            )
        panel.set_xlabel(f"{metric}, measured (s)")
        panel.set_ylabel("simulated (s)")
        panel.legend(fontsize=8)
    figure.suptitle(title)
    return replace_file(path, partial(figure.savefig, dpi=75))


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
