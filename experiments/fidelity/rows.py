"""Iteration times beside measured iterations: all rows of the data, and rows that a fit has not seen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from experiments.fidelity.part import Part
from llmscale_env.cluster.fitting import held_out_relative, predict, siblings_of
from llmscale_env.cluster.iteration_model import IterationTimeModel
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.cluster.measurements import PARTS, Floats, Measurements

ERRORS = tuple(f"{part} median / p90 / worst, %" for part in PARTS)


def kernels_part(sets: list[Measurements]) -> Part:
    """The shipped times beside every iteration composed from kernels."""
    return _part(
        "Iterations composed from kernels, beside the shipped times fitted to them",
        [m for m in sets if m.kind == "composed"],
        lambda data: predict(_shipped(data), data) / data.seconds - 1,
    )


def held_out_part(sets: list[Measurements]) -> Part:
    """Every measured configuration, predicted by a fit to nine tenths of the others.

    Rows that no fit takes (prompts of several requests of Llama 2 70B on the A100) are predicted by
    the fit to all others.
    """

    def errors(data: Measurements) -> Floats:
        used = data.only(data.fitted)
        siblings = tuple(m.only(m.fitted) for m in siblings_of(data, sets))
        relative = np.full(len(data.seconds), np.nan)
        relative[data.fitted] = held_out_relative(used, siblings)
        compared = ~data.fitted
        if compared.any():
            rows = data.only(compared)
            relative[compared] = predict(_shipped(data), rows) / rows.seconds - 1
        return relative

    return _part("Configurations that the fit has not seen", sets, errors)


def _part(title: str, sets: list[Measurements], errors: Callable[[Measurements], Floats]) -> Part:
    rows = []
    for data in sets:
        relative = np.abs(errors(data))
        seen = data.scored & ~np.isnan(relative)
        shown = []
        for part in range(len(PARTS)):
            mine = relative[seen & (data.part == part)]
            shown.append(_three(mine) if len(mine) else "-")
        rows.append((data.llm, data.gpu, data.tp, data.kind, int(seen.sum()), *shown))
    return Part(title, ("LLM", "GPU", "tp", "kind", "rows", *ERRORS), rows)


def _three(relative: Floats) -> str:
    median, p90 = np.quantile(100 * relative, (0.5, 0.9))
    return f"{median:.1f} / {p90:.1f} / {100 * relative.max():.0f}"


def _shipped(data: Measurements) -> IterationTimeModel:
    return iteration_time_model(data.llm, data.gpu, data.tp, kind=data.kind)
