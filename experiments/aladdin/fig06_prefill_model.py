"""Prefill time as a line in the input tokens of a batch (Eq. 2), against measured points.

Points: batches of 1, 2, 4 and 8 prompts, by the input tokens of the whole batch, on A100; "end-to-end"
iterations were measured whole (NVLink machines), "composed" ones are sums of measured kernels, in
which batches differ by attention alone. The line and its 95 % prediction interval are a least-squares
fit to all batches from `least_tokens` on, where a prompt has "a reasonable input length" (section 3.2);
hollow points below take no part. An error is the prediction's, of the measured time; "left out" means
that all points with as many input tokens were no part of the fit. Composed attention is a formula in
FLOPs, matrix products are measured kernels. The panels of V100 show a roofline from its data sheet and
validate nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import PositiveInt

from agents.statistics import Interval
from baselines.aladdin.performance import LinearFit
from experiments.aladdin.measured import KINDS, NO_V100, SETS, check, points
from experiments.aladdin.setting import SLOS_S, shown
from experiments.harness.claims import Claim, at_most, exact
from experiments.harness.figure import claimed, dress, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 6"
NONE = Interval(float("nan"), float("nan"), float("nan"))


class PrefillModel(Parameters):
    """Parameters of this figure."""

    seeds: Annotated[int, ours("nothing is random", ge=1, le=1)] = 1
    requests: Annotated[tuple[PositiveInt, ...], paper("section 6.2", min_length=1)] = (1, 2, 4, 8)
    most_tokens: Annotated[int, paper("section 6.1: the LLMs' context length", ge=1)] = 4096
    least_tokens: Annotated[int, ours("shorter inputs do not fill a GPU", ge=1)] = 512
    level: Annotated[float, ours("of prediction intervals", gt=0, lt=1)] = 0.95


PARAMETERS = {"quick": PrefillModel(), "paper": PrefillModel()}


def cases(parameters: PrefillModel) -> list[dict[str, Any]]:
    """One per LLM, GPU, degree and kind of times."""
    common = parameters.model_dump(exclude={"seeds"}) | {"requests": list(parameters.requests)}
    return [
        {"seed": seed, "llm": llm, "gpu": gpu, "tp": tp, "kind": kind, **common}
        for seed in parameters.seed_list()
        for llm, gpu, tp, kind in SETS
    ]


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per point, with the line's prediction; `interval_tokens` is the same in all."""
    every = points(case["llm"], case["gpu"], case["tp"], case["kind"], "prefill")
    every = every.only(
        np.isin(every.requests, case["requests"]) & (every.total <= case["most_tokens"])
    )
    used = every.total >= case["least_tokens"]
    mine = every.only(used)
    checked = check(
        {"tokens": mine.total, "const": np.ones(len(mine.total))}, mine.seconds, mine.total
    )
    fit = checked.fit
    x = np.column_stack([every.total, np.ones(len(every.total))])
    predicted = fit.predict(x)
    low, high = fit.interval(x, case["level"])
    ttft_s = SLOS_S[case["llm"], case["gpu"]][0]
    # Not beyond what was measured, where the SLO leaves room for more.
    target_s = min(ttft_s, float(fit.predict([case["most_tokens"], 1.0])))
    below, middle, above = fit.inverse_interval([0.0, 1.0], 0, target_s, case["level"])
    attention = check(
        {
            "tokens": mine.total,
            "const": np.ones(len(mine.total)),
            "pairs": mine.requests * mine.tokens_each**2,
        },
        mine.seconds,
        mine.total,
    )
    held_out = np.full(len(used), np.nan)
    held_out[used] = checked.held_out
    return [
        {
            "requests": int(every.requests[k]),
            "tokens_each": float(every.tokens_each[k]),
            "total": float(every.total[k]),
            "seconds": float(every.seconds[k]),
            "used": bool(used[k]),
            "predicted_s": float(predicted[k]),
            "low_s": float(low[k]),
            "high_s": float(high[k]),
            "error": float(predicted[k] / every.seconds[k] - 1),
            "held_out": None if np.isnan(held_out[k]) else float(held_out[k]),
            "per_token_s": float(fit.coefficients[0]),
            "const_s": float(fit.coefficients[1]),
            "interval_tokens": float(max(above - middle, middle - below)),
            "line_tokens": _line_tokens(fit, middle, case["level"]),
            "worst_with_attention": float(np.abs(attention.error).max()),
        }
        for k in range(len(used))
    ]


def _line_tokens(fit: LinearFit, tokens: float, level: float) -> float:
    """Half of the confidence interval of the line itself at so many tokens, in tokens."""
    x = np.array([tokens, 1.0])
    half = float(np.ptp(fit.interval(x, level))) / 2
    spread = float(fit.spread(x))
    return half * math.sqrt(max(spread**2 - 1, 0.0)) / spread / float(fit.coefficients[0])


def plot(frame: DataFrame, parameters: PrefillModel) -> Any:
    """A panel per worker: points by batch, the line and its interval."""
    figure = new_figure(14.0, 6.6)
    panels = figure.subplots(2, -(-len(SETS) // 2), squeeze=False).ravel()
    for axes, (llm, gpu, tp, kind) in zip(panels, SETS, strict=False):
        mine = _of(frame, llm, gpu, tp, kind)
        ordered = mine.sort_values("total")
        line = ordered[ordered["used"]]
        for k, requests in enumerate(parameters.requests):
            part = where(mine, requests=requests)
            name = f"{requests} prompt{'s' if requests > 1 else ''}"
            for used, face in ((True, f"C{k}"), (False, "none")):
                some = where(part, used=used)
                axes.plot(
                    some["total"], 1e3 * some["seconds"], "os^D"[k % 4], ms=4, mec=f"C{k}",
                    mfc=face, ls="none", label=name if used else None,
                )  # fmt: skip
        axes.plot(line["total"], 1e3 * line["predicted_s"], color="k", lw=1, label="Eq. 2, fitted")
        axes.fill_between(
            line["total"], 1e3 * line["low_s"], 1e3 * line["high_s"], color="0.8", zorder=0,
            label=f"{parameters.level:.0%} prediction interval",
        )  # fmt: skip
        dress(
            axes,
            title=f"{shown(llm, gpu, tp)}\n{KINDS[kind]}",
            size=9,
            xlim=(0, parameters.most_tokens * 1.04),
            xlabel="input tokens of the batch",
            bottom=0,
        )
    for axes in panels[:: -(-len(SETS) // 2)]:
        axes.set_ylabel("prefill time (ms)")
    figure.legend(
        *panels[0].get_legend_handles_labels(), fontsize=8, ncols=6, loc="outside lower center"
    )
    return figure


@claimed
def claims(frame: DataFrame, parameters: PrefillModel) -> Iterator[Claim]:
    """Errors below 4 %, no matter how many prompts; an interval within 10 tokens."""
    for llm, gpu, tp, kind in SETS:
        where = f"{shown(llm, gpu, tp)}, {kind}"
        mine = _of(frame, llm, gpu, tp, kind)
        used = mine[mine["used"]]
        measured = kind != "roofline"
        worst = float(100 * used["error"].abs().max())
        yield at_most(
            f"Predicted prefill times are wrong by less than 4 % ({where})",
            4,
            exact(worst) if measured else NONE,
            nothing=None,
            unit="% at worst",
            reason=_why(used) if measured else NO_V100,
            note=_errors(mine) if measured else f"the line is within {worst:.0f} % of the roofline",
        )
        if not measured:
            continue
        spread = batch_spread(used)
        yield at_most(
            f"Batches of {_list(parameters.requests)} prompts with the same input tokens take "
            f"the same time ({where})",
            4,
            exact(100 * spread.max()) if len(spread) else NONE,
            nothing=None,
            unit="% apart at worst",
            paper="not related to the batch size (read as within the 4 % of the model)",
            reason=_batches(spread, kind),
        )
        yield at_most(
            f"The prediction interval is within 10 tokens of the prediction ({where})",
            10,
            exact(float(used["interval_tokens"].iloc[0])),
            nothing=None,
            unit=f"tokens at the TTFT SLO, or {parameters.most_tokens:,} tokens if these keep it "
            f"({parameters.level:.0%} interval)",
            reason="points are off the line by "
            f"{100 * used['error'].abs().mean():.1f} % on average, which is as many tokens as "
            f"{_off_tokens(used):.0f} on average",
            note="the line itself (its confidence interval) is known to "
            f"{float(used['line_tokens'].iloc[0]):.0f} tokens there",
        )


def batch_spread(used: DataFrame) -> Any:
    """By total tokens: slowest batch over fastest, less 1, where several batches have as many."""
    some = used.astype({"total": float, "seconds": float}).groupby("total")["seconds"]
    wide = some.agg(["max", "min", "count"])
    wide = wide[wide["count"] > 1]
    return wide["max"] / wide["min"] - 1


def _batches(spread: Any, kind: str) -> str:
    found = (
        f"median over {len(spread)} totals {100 * spread.median():.1f} %, most at "
        f"{spread.idxmax():.0f} tokens"
    )
    if kind == "composed":
        return f"{found}: attention is less for several short prompts than for one long prompt"
    return f"{found}: several prompts take longer than one of as many tokens in these measurements"


def _errors(mine: DataFrame) -> str:
    used, below = mine[mine["used"]], mine[~mine["used"].astype(bool)]
    text = (
        f"{len(used)} points, {100 * used['error'].abs().mean():.1f} % on average; left out in turn "
        f"{100 * used['held_out'].astype(float).abs().mean():.1f} % on average and "
        f"{100 * used['held_out'].astype(float).abs().max():.0f} % at worst"
    )
    if len(below):
        text += f"; shorter inputs {100 * below['error'].abs().max():.0f} % at worst"
    return text


def _why(used: DataFrame) -> str:
    """Where the worst point is, what a term for attention changes, and how uneven the points are."""
    worst = used.loc[used["error"].abs().idxmax()]
    single = where(used, requests=1).sort_values("total")
    each = 1e3 * (single["seconds"].diff() / single["total"].diff()).dropna()
    return (
        f"worst at {worst['requests']:.0f} x {worst['tokens_each']:.0f} tokens "
        f"({100 * worst['error']:+.1f} %); with a term for attention (the sum of squared prompts) the "
        f"worst error is {100 * float(used['worst_with_attention'].iloc[0]):.1f} %; from one measured "
        f"prompt length to the next a token costs {each.min():.3f} to {each.max():.3f} ms"
    )


def _off_tokens(used: DataFrame) -> float:
    off = (used["predicted_s"] - used["seconds"]).abs() / used["per_token_s"]
    return float(off.mean())


def _of(frame: DataFrame, llm: str, gpu: str, tp: int, kind: str) -> DataFrame:
    mine = where(frame, llm=llm, gpu=gpu)
    return where(mine, tp=tp, kind=kind)


def _list(values: Any) -> str:
    return ", ".join(str(value) for value in values)
