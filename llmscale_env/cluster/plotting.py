"""Pictures of fits against the points that were measured, for `python -m llmscale_env.calibrate`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmscale_env._writing import replace_file
from llmscale_env.cluster.fitting import predict
from llmscale_env.cluster.measurements import PARTS

if TYPE_CHECKING:
    from llmscale_env.cluster.iteration_model import IterationTimeModel
    from llmscale_env.cluster.measurements import Measurements

OVERVIEW = (
    ("llama-2-70b", "a100-80gb", "composed"),
    ("llama-3.1-8b", "a100-80gb", "composed"),
    ("llama-2-70b", "a100-80gb", "end-to-end"),
    ("llama-3.2-3b", "a100-80gb", "end-to-end"),
)
"""Drawn when the public data are fitted; a user's own data are drawn whatever they are."""


def draw_fits(
    models: tuple[IterationTimeModel, ...], sets: list[Measurements], directory: Path
) -> list[Path]:
    """Draw decode, prefill and predicted-against-measured panels; one PNG per (LLM, GPU, kind).

    Returns:
        The files written, in the directory, which is made if it is not there.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    pairs: dict[tuple[str, str, str], list[tuple[IterationTimeModel, Measurements]]] = {}
    for model, data in zip(models, sets, strict=True):
        pairs.setdefault((model.llm, model.gpu, model.kind), []).append((model, data))
    chosen = [key for key in OVERVIEW if key in pairs] or sorted(pairs)
    written = []
    for key in chosen:
        figure = Figure(figsize=(13, 3.9), layout="constrained")
        FigureCanvasAgg(figure)
        decode, prefill, scatter = figure.subplots(1, 3)
        for colour, (model, data) in enumerate(sorted(pairs[key], key=lambda p: p[0].tp)):
            _decode_panel(decode, model, data, f"C{colour}")
            _prefill_panel(prefill, model, data, f"C{colour}")
            _scatter_panel(scatter, model, data, f"C{colour}")
        _finish(decode, prefill, scatter)
        figure.suptitle(f"{key[0]} on {key[1]}, {key[2]}: points of the data, lines fitted")
        path = directory / f"calibration_{'_'.join(key).replace('.', '-')}.png"
        written.append(replace_file(path, partial(figure.savefig, dpi=75)))
    return written


def _decode_panel(axes: Any, model: IterationTimeModel, data: Measurements, colour: str) -> None:
    rows = data.of("decode")
    rows = rows.only(rows.scored)
    mean = rows.context_tokens / np.maximum(rows.decode_requests, 1)
    # One context per batch size: the one nearest to a common level that all batches reach.
    level = float(
        np.median([mean[rows.decode_requests == b].min() for b in np.unique(rows.decode_requests)])
    )
    level = max(level, 512.0)
    batch = np.unique(rows.decode_requests)
    at = [
        int(
            np.flatnonzero(rows.decode_requests == b)[
                np.argmin(abs(mean[rows.decode_requests == b] - level))
            ]
        )
        for b in batch
    ]
    axes.plot(batch, 1e3 * rows.seconds[at], "o", ms=3.5, color=colour)
    grid = np.arange(1, int(batch.max()) + 1)
    context = np.interp(grid, batch, mean[at])
    base, per_token = model.decode_tables(int(grid[-1]))
    axes.plot(
        grid, 1e3 * (base[grid] + per_token[grid] * grid * context), color=colour, lw=1.2,
        label=f"TP {model.tp}",
    )  # fmt: skip


def _prefill_panel(axes: Any, model: IterationTimeModel, data: Measurements, colour: str) -> None:
    rows = data.of("prefill")
    rows = rows.only(rows.scored)
    one = rows.chunks == 1
    axes.plot(rows.total_tokens[one], 1e3 * rows.seconds[one], "o", ms=3.5, color=colour)
    axes.plot(rows.total_tokens[~one], 1e3 * rows.seconds[~one], "x", ms=4, color=colour, alpha=0.6)
    grid = np.unique(np.geomspace(8, rows.total_tokens.max(), 400).astype(int))
    axes.plot(
        grid, [1e3 * model.prefill_s(int(t)) for t in grid], color=colour, lw=1.2,
        label=f"TP {model.tp}",
    )  # fmt: skip


def _scatter_panel(axes: Any, model: IterationTimeModel, data: Measurements, colour: str) -> None:
    rows = data.only(data.scored & data.fitted)
    made = predict(model, rows)
    for part, (name, marker) in enumerate(zip(PARTS, "ox.", strict=True)):
        mine = rows.part == part
        if mine.any():
            axes.plot(
                1e3 * rows.seconds[mine], 100 * (made[mine] / rows.seconds[mine] - 1), marker,
                ms=3, color=colour, alpha=0.5, label=f"TP {model.tp} {name}",
            )  # fmt: skip


def _finish(decode: Any, prefill: Any, scatter: Any) -> None:
    decode.set(
        xlabel="decoding requests", ylabel="iteration, ms", title="decode, about 512 tokens each",
        xscale="log", ylim=(0, None),
    )  # fmt: skip
    prefill.set(
        xlabel="new tokens", ylabel="iteration, ms", xscale="log", yscale="log",
        title="prefill (o one prompt, x several)",
    )  # fmt: skip
    scatter.set(
        xlabel="iteration in the data, ms", ylabel="fit above data, %", xscale="log",
        title="every fitted point", ylim=(-25, 25),
    )  # fmt: skip
    for axes in (decode, prefill, scatter):
        axes.grid(alpha=0.3)
    decode.legend(fontsize=8)
    scatter.legend(fontsize=6, ncols=2)
