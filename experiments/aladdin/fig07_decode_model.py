"""Decode time as a line in batch and context (Eq. 3), and the context that keeps the SLO (Eq. 4).

Above: iteration time against the context of the batch, a colour per batch size, with points measured on
A100 (as in Figure 6) and lines fitted to all of 2 to `most_requests` requests. Below: the context at
which an iteration takes the decode SLO of Table 2, by batch size, predicted with its 95 % interval and
measured. The panels of V100 show a roofline and validate nothing.

Measured limits lie on a straight line between two measured contexts; batches whose measured contexts do
not reach the SLO, or start above it, have no point. End-to-end times vary the context of single requests
only, so these are in that fit, against the equation's b > 1, and it gives no context limits. In composed
times decode attention is a formula (a constant, and bytes of KV over a bandwidth, fitted to measured
kernels), so they test how time depends on the batch and not on context. Batches of unequal contexts were
measured by no source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from agents.statistics import Interval
from baselines.aladdin.performance import LinearFit
from experiments.aladdin.measured import KINDS, NO_V100, SETS, check, points
from experiments.aladdin.parts import in_order, nearest
from experiments.aladdin.setting import SLOS_S, shown
from experiments.harness.claims import Claim, at_most, exact, less
from experiments.harness.claims import every as of_all
from experiments.harness.figure import claimed, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 7"
NONE = Interval(float("nan"), float("nan"), float("nan"))


class DecodeModel(Parameters):
    """Parameters of this figure."""

    seeds: Annotated[int, ours("nothing is random", ge=1, le=1)] = 1
    most_requests: Annotated[
        int, ours("about what the SLO allows: 28, 36 and 130 requests of 600 tokens", ge=2)
    ] = 64
    most_context: Annotated[int, paper("section 6.1: of a request", ge=1)] = 4096
    level: Annotated[float, ours("of prediction intervals", gt=0, lt=1)] = 0.95


PARAMETERS = {"quick": DecodeModel(), "paper": DecodeModel()}


def cases(parameters: DecodeModel) -> list[dict[str, Any]]:
    """One per LLM, GPU, degree and kind of times."""
    common = parameters.model_dump(exclude={"seeds"})
    return [
        {"seed": seed, "llm": llm, "gpu": gpu, "tp": tp, "kind": kind, **common}
        for seed in parameters.seed_list()
        for llm, gpu, tp, kind in SETS
    ]


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of two kinds: "point" with the line's prediction, and "limit" by batch size."""
    every = points(case["llm"], case["gpu"], case["tp"], case["kind"], "decode")
    every = every.only(every.tokens_each <= case["most_context"])
    least = 1 if case["kind"] == "end-to-end" else 2
    used = (every.requests >= least) & (every.requests <= case["most_requests"])
    mine = every.only(used)
    columns = {
        "per_token_s": mine.total,
        "per_request_s": mine.requests.astype(float),
        "const_s": np.ones(len(mine.total)),
    }
    group = np.array([f"{b} {t}" for b, t in zip(mine.requests, mine.tokens_each, strict=True)])
    checked = check(columns, mine.seconds, mine.requests if least > 1 else group)
    fit = checked.fit
    x = np.column_stack([every.total, every.requests, np.ones(len(every.total))])
    predicted = fit.predict(x)
    held_out = np.full(len(used), np.nan)
    held_out[used] = checked.held_out
    rows: list[dict[str, Any]] = [
        {
            "row": "point",
            "requests": int(every.requests[k]),
            "total": float(every.total[k]),
            "seconds": float(every.seconds[k]),
            "used": bool(used[k]),
            "predicted_s": float(predicted[k]),
            "error": float(predicted[k] / every.seconds[k] - 1),
            "per_token_s": float(fit.coefficients[0]),
            "held_out": None if np.isnan(held_out[k]) else float(held_out[k]),
        }
        for k in range(len(used))
    ]
    if case["kind"] == "end-to-end":
        return rows
    slo_s = SLOS_S[case["llm"], case["gpu"]][1]
    for requests in np.unique(mine.requests):
        one = mine.only(mine.requests == requests)
        limit = reached(one.total, one.seconds, slo_s)
        low, middle, high = _limits(fit, float(requests), slo_s, case["level"])
        rows.append(
            {
                "row": "limit",
                "requests": int(requests),
                "measured_tokens": limit,
                "predicted_tokens": middle,
                "low_tokens": low,
                "high_tokens": high,
            }
        )
    return rows


def reached(
    total: NDArray[np.float64], seconds: NDArray[np.float64], target_s: float
) -> float | None:
    """Context at which measured iterations of one batch size take so long; None if outside of them."""
    order = np.argsort(total)
    total, seconds = total[order], seconds[order]
    if len(total) < 2 or not seconds[0] <= target_s <= seconds[-1]:
        return None
    k = min(int(np.searchsorted(seconds, target_s)), len(seconds) - 1)
    k = max(k, 1)
    share = (target_s - seconds[k - 1]) / (seconds[k] - seconds[k - 1])
    return float(total[k - 1] + share * (total[k] - total[k - 1]))


def _limits(
    fit: LinearFit, requests: float, slo_s: float, level: float
) -> tuple[float | None, float | None, float | None]:
    try:
        return fit.inverse_interval([0.0, requests, 1.0], 0, slo_s, level)
    except ValueError:  # context makes no difference that can be told
        return None, None, None


def plot(frame: DataFrame, parameters: DecodeModel) -> Any:
    """Two panels per worker, one above the other."""
    from matplotlib import colormaps

    figure = new_figure(13.0, 12.0)
    across = -(-len(SETS) // 2)
    panels = figure.subplots(4, across, squeeze=False)
    sizes = sorted({int(b) for b in frame["requests"].unique() if b <= parameters.most_requests})
    colours = dict(zip(sizes, colormaps["viridis"](np.linspace(0, 0.95, len(sizes))), strict=True))
    for k, (llm, gpu, tp, kind) in enumerate(SETS):
        above, below = panels[k // across * 2][k % across], panels[k // across * 2 + 1][k % across]
        mine = _of(frame, llm, gpu, tp, kind)
        slo_s = SLOS_S[llm, gpu][1]
        _times(above, mine[(mine["row"] == "point") & mine["used"].eq(True)], colours)
        above.axhline(1e3 * slo_s, color="C3", ls="--", lw=1)
        above.set_ylim(bottom=0)
        above.set_title(f"{shown(llm, gpu, tp)}\n{KINDS[kind]}", fontsize=9)
        above.set_xlabel("context of the batch (1,000 tokens)", fontsize=8)
        _limit_lines(below, where(mine, row="limit"), hollow=kind == "roofline")
        below.set_xlabel(f"requests in the batch; decode SLO {1e3 * slo_s:g} ms", fontsize=8)
        if k % across == 0:
            above.set_ylabel("decode iteration (ms)", fontsize=9)
            below.set_ylabel("context within the SLO\n(1,000 tokens)", fontsize=9)
        for axes in (above, below):
            axes.grid(alpha=0.3)
            axes.tick_params(labelsize=8)
    figure.legend(
        *_legend(panels[0][0], colours, parameters.level), fontsize=8, ncols=6,
        loc="outside lower center",
    )  # fmt: skip
    return figure


def _times(axes: Any, mine: DataFrame, colours: Mapping[int, Any]) -> None:
    for requests, part in mine.groupby("requests"):
        ordered = part.sort_values("total")
        total, colour = ordered["total"] / 1e3, colours[int(requests)]
        axes.plot(total, 1e3 * ordered["seconds"], "o", ms=3, color=colour)
        line = "-" if len(part) > 1 else "x"
        axes.plot(total, 1e3 * ordered["predicted_s"], line, color=colour, lw=1)


def _limit_lines(axes: Any, limits: DataFrame, hollow: bool) -> None:
    if len(limits) == 0:
        axes.text(
            0.5, 0.5, "one context per batch:\nno limits", transform=axes.transAxes,
            ha="center", va="center", fontsize=8,
        )  # fmt: skip
        axes.set_axis_off()
        return
    names = [name for name in limits.columns if name.endswith("_tokens")]
    values = limits[names].astype(float) / 1e3
    requests = limits["requests"]
    axes.plot(requests, values["predicted_tokens"], color="k", lw=1)
    axes.fill_between(requests, values["low_tokens"], values["high_tokens"], color="0.8", zorder=0)
    face = "none" if hollow else "C0"
    axes.plot(requests, values["measured_tokens"], "o", ms=4, mec="C0", mfc=face)
    axes.set_ylim(0, 1.1 * float(np.nanmax(values[["high_tokens", "predicted_tokens"]])))


def _legend(axes: Any, colours: Mapping[int, Any], level: float) -> tuple[list[Any], list[str]]:
    marks = [
        *(("o-", colour, f"{b} request{'s' if b > 1 else ''}") for b, colour in colours.items()),
        ("--", "C3", "decode SLO"),
        ("x", "0.4", "Eq. 3 at a single point"),
        ("-", "k", "Eq. 4"),
        ("s", "0.8", f"{level:.0%} prediction interval"),
        ("o", "C0", "measured (hollow: roofline)"),
    ]
    handles = [axes.plot([], [], style, color=colour, ms=4)[0] for style, colour, _ in marks]
    return handles, [name for *_, name in marks]


@claimed
def claims(frame: DataFrame, parameters: DecodeModel) -> Iterator[Claim]:
    """Sections 6.2 and 3.2."""
    errors, intervals, limits, singles = [], [], [], []
    for llm, gpu, tp, kind in SETS:
        mine, name = _of(frame, llm, gpu, tp, kind), f"{shown(llm, gpu, tp)}, {kind}"
        measured = kind != "roofline"
        points_, limit = where(mine, row="point"), where(mine, row="limit")
        used = points_[points_["used"].eq(True)]
        worst = exact(100 * float(used["error"].astype(float).abs().max())) if measured else NONE
        why = "" if measured else NO_V100
        errors.append(at_most(name, 5, worst, nothing=None, unit="% at worst", reason=why))
        if not measured:
            continue
        if kind != "end-to-end":
            tokens = exact(interval_tokens(limit, parameters.most_context))
            intervals.append(at_most(name, 300, tokens, nothing=None, unit="tokens"))
            limits.append(less(name, 1, _falls(limit), unit="times that of the smallest batch"))
        single = where(points_, requests=1)["seconds"]
        longest = exact(float(single.max() / single.min()))
        singles.append(at_most(name, 1.05, longest, nothing=None, unit="times the shortest"))
    formula = "attention in composed times is a line in the context by construction"
    yield of_all(
        "Predicted decode times are wrong by less than 5 %",
        in_order(errors),
        how=f"least-squares fit of Eq. 3 to measured iterations; {formula}",
        reason=f"{nearest(errors)}; on several GPUs single batch sizes lie off the line",
    )
    yield of_all(
        "The prediction interval of decode is within 300 tokens of the predicted context",
        in_order(intervals),
        how=f"{100 * parameters.level:g} % prediction interval of the fit, the widest over the batches",
        reason=f"{nearest(intervals)}; a token takes below a microsecond, so errors are many tokens",
    )
    yield of_all(
        "The larger the batch, the less context it may have within the SLO",
        in_order(limits),
        paper="less (Eq. 4)",
        how="measured limits of the largest batch against the smallest that reaches the SLO",
        reason=f"{nearest(limits)}; on 2 GPUs 16 and 64 requests take as long but for their context",
    )
    yield of_all(
        "The iteration of a single request is nearly constant in its context",
        in_order(singles),
        paper="nearly constant (read as within 5 %)",
        how="measured iterations of one request, the longest over the shortest",
        reason=f"{nearest(singles)}; reading the KV of every head takes time with multi-head attention",
    )
    yield at_most(
        "Batches of one size and one context in all take the same time, however it is spread over requests",
        5,
        NONE,
        nothing=None,
        unit="% apart at worst",
        paper="the same (read as within the 5 % of the model)",
        reason="no source measured batches of requests with unequal contexts",
    )


def interval_tokens(limits: DataFrame, most_context: float) -> float:
    """Furthest end of an interval from its prediction, over batches whose requests can have the context."""
    names = ["predicted_tokens", "low_tokens", "high_tokens"]
    values = limits.dropna(subset=names).astype(dict.fromkeys(names, float))
    values = values[values["predicted_tokens"] <= most_context * values["requests"]]
    off = values[names[1:]].sub(values["predicted_tokens"], axis=0)
    return float(off.abs().max().max())


def _falls(limits: DataFrame) -> Interval:
    """Eq. 4: the measured limit of the largest batch over that of the smallest."""
    seen = limits.dropna(subset=["measured_tokens"]).sort_values("requests")["measured_tokens"]
    return exact(float(seen.iloc[-1]) / float(seen.iloc[0])) if len(seen) > 1 else NONE


def _of(frame: DataFrame, llm: str, gpu: str, tp: int, kind: str) -> DataFrame:
    return where(frame, llm=llm, gpu=gpu, tp=tp, kind=kind)
