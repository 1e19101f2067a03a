"""Converged batch size of the local autoscaler, by model and optimisation.

One instance of each model, plain, with prefix caching, with speculative decoding and with both, under a
constant rate of ShareGPT requests that is some three times what it can serve, so that the limit always
binds. Shown is the second half of each run: the running batch, the range in which the limit moves, and
the best of a ladder of fixed limits (most tokens per second with a mean inter-token latency within
the target). Where KV memory holds the batch below its limit, the limit says nothing, so claims are
about the batch that runs; `size=limit` takes the limit, which is the literal reading. Parameters of both
optimisations are ours (docs/calibration.md): half of every prompt found in a cache that takes a fifth of
KV memory; four drafted tokens, each accepted with 70 %; Llama 3.1 8B drafts for the 70B as in the paper,
Llama 3.2 3B for the 8B. Algorithm 1 as printed is drawn beside the engine's steady form of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from agents.statistics import Interval, mean_interval
from experiments.chiron.convergence import (
    MAX_BATCH,
    OVERLOAD_PER_S,
    SHORT,
    VARIANTS,
    LocalParameters,
    steady,
    watch,
)
from experiments.harness.claims import Claim, about, at_least, at_most
from experiments.harness.parameters import ours
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 11"
MEMORY_IS_FULL = 0.8
"""Share of KV memory, mean over time, from which memory holds the batch."""
COLOURS = {"chiron": "C0", "chiron-literal": "C1"}
NAMES = {"chiron": "Chiron, made steady", "chiron-literal": "Algorithm 1 as printed"}


class ConvergedBatch(LocalParameters):
    """Parameters of this figure."""

    ladder: Annotated[tuple[int, ...], ours("fixed limits to compare with")] = (
        16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 1024, 1536, 2048, 4096,
    )  # fmt: skip
    size: Annotated[
        Literal["batch", "limit"],
        ours("requests that run; the limit where it does not bind is any number"),
    ] = "batch"
    untuned_limit: Annotated[
        int, ours("2048 to 4096 is 'nearly 50 times' about 64; the paper does not print it")
    ] = 64


PARAMETERS = {
    "quick": ConvergedBatch(
        seeds=2,
        duration_s=900,
        ladder=(32, 64, 128, 256, 384, 512, 768, 1024, 2048),
    ),
    "paper": ConvergedBatch(seeds=5),
}


def cases(parameters: ConvergedBatch) -> list[dict[str, Any]]:
    """A run per seed, model, variant and target with each controller, and without target the ladder."""
    common = parameters.shared()
    found = []
    for seed in parameters.seed_list():
        for llm in parameters.llms:
            for variant in VARIANTS:
                one = {"seed": seed, "llm": llm, "variant": variant, **common}
                one["rate_per_s"] = OVERLOAD_PER_S[llm]
                found += [
                    {**one, "controller": controller, "itl_slo_s": slo_s}
                    for controller in parameters.controllers
                    for slo_s in parameters.slos_s
                ]
                if seed == parameters.seed_list()[0]:
                    found += [
                        {**one, "controller": "fixed", "itl_slo_s": None, "first_limit": limit}
                        for limit in parameters.ladder
                    ]
    return found


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The second half of a run."""
    slo_s = case["itl_slo_s"] or np.inf
    watched = watch({**case, "itl_slo_s": case["itl_slo_s"] or 1.0})
    return [steady(watched, slo_s)]


def best_fixed(frame: DataFrame, llm: str, variant: str, slo_s: float) -> Any:
    """Row of the ladder with most tokens/s among those within the target; None if there is none."""
    mine = frame[
        (frame["controller"] == "fixed")
        & (frame["llm"] == llm)
        & (frame["variant"] == variant)
        & (frame["itl_s"] <= slo_s)
    ]
    return mine.loc[mine["tokens_per_s"].idxmax()] if len(mine) else None


def plot(frame: DataFrame, parameters: ConvergedBatch) -> Any:
    """A panel per model and target; bars are batches, whiskers the range of the limit."""
    rows, columns = len(parameters.slos_s), len(parameters.llms)
    figure = new_figure(5.6 * columns, 3.6 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    width = 0.8 / len(parameters.controllers)
    places = np.arange(len(VARIANTS))
    for row, slo_s in enumerate(parameters.slos_s):
        for column, llm in enumerate(parameters.llms):
            axes = grid[row, column]
            for k, controller in enumerate(parameters.controllers):
                mine = _of(frame, llm, controller, slo_s).groupby("variant").mean(numeric_only=True)
                mine = mine.loc[list(VARIANTS)]
                x = places + (k - (len(parameters.controllers) - 1) / 2) * width
                name = NAMES.get(controller, controller)
                colour = COLOURS.get(controller, "C2")
                axes.bar(x, mine["batch"], width * 0.9, color=colour, alpha=0.6, label=name)
                middle = mine["limit"]
                spread = [middle - mine["limit_low"], mine["limit_high"] - middle]
                axes.errorbar(
                    x, middle, spread, fmt="_", color="0.15", capsize=3, lw=1,
                    label="its limit: median, 5 to 95 %" if k == 0 else None,
                )  # fmt: skip
            best = [best_fixed(frame, llm, variant, slo_s) for variant in VARIANTS]
            at = [(x, one["batch"]) for x, one in zip(places, best, strict=True) if one is not None]
            axes.plot(
                *zip(*at, strict=True), "D", color="C3", ms=5, ls="", label="best fixed limit"
            )
            axes.set_yscale("log", base=2)
            axes.set_ylim(0.7, 2 * MAX_BATCH)
            axes.set_yticks([1, 4, 16, 64, 256, 1024, 4096], [1, 4, 16, 64, 256, 1024, 4096])
            axes.set_xticks(places, VARIANTS)
            axes.set_ylabel("requests")
            axes.set_title(f"{llm}, ITL target {slo_s:g} s", fontsize=10)
            axes.grid(axis="y", alpha=0.3)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8)
    return figure


def claims(frame: DataFrame, parameters: ConvergedBatch) -> list[Claim]:
    """Both optimisations make the batch smaller and something better; models and classes differ."""
    size, (tight_s, *loose_s) = parameters.size, sorted(parameters.slos_s)
    found = []
    for llm in parameters.llms:
        mine = _of(frame, llm, "chiron", tight_s)
        for variant in VARIANTS[1:3]:
            found.append(
                at_most(
                    f"With {LONG[variant]} the converged batch is smaller ({SHORT.get(llm, llm)})",
                    0.99,
                    _ratio(mine, variant, "plain", size),
                    nothing=1.0,
                    unit="of the plain one",
                    paper="smaller (bars)",
                    reason=_smaller_reason(frame, llm, variant, tight_s),
                )
            )
            found.append(
                at_least(
                    f"With {LONG[variant]} throughput or latency improves ({SHORT.get(llm, llm)})",
                    1.01,
                    _better(mine, variant),
                    nothing=1.0,
                    unit="x, the better of tokens/s and 1 / ITL",
                    paper="improves",
                    reason=_better_reason(frame, llm, variant),
                )
            )
    if len(parameters.llms) > 1:
        small, large = parameters.llms[:2]
        found.append(
            about(
                "The small model's interactive batch is 5 times the large one's (6.1)",
                5.0,
                _between(frame, (small, tight_s), (large, tight_s), size),
                nothing=1.0,
                unit="x",
                reason=_memory_reason(frame, small, tight_s),
            )
        )
    for llm in parameters.llms:
        for slo_s in loose_s[-1:]:
            found.append(
                about(
                    "With the batch target the limit is nearly 50 times an untuned limit (6.2; "
                    f"{SHORT.get(llm, llm)})",
                    50.0,
                    _by_seed(
                        _plain(frame, llm, slo_s),
                        lambda one: one["limit"].mean() / parameters.untuned_limit,
                    ),
                    nothing=1.0,
                    unit=f"x an untuned limit of {parameters.untuned_limit}",
                    paper="nearly 50 x (2048 to 4096)",
                    reason=_memory_reason(frame, llm, slo_s),
                )
            )
    if "chiron-literal" in parameters.controllers:
        found += [_literal(frame, llm, tight_s) for llm in parameters.llms]
    return found


LONG = {"prefix cache": "prefix caching", "speculative": "speculative decoding", "both": "both"}


def _literal(frame: DataFrame, llm: str, slo_s: float) -> Claim:
    mine = _of(frame, llm, "chiron-literal", slo_s)
    best = best_fixed(frame, llm, "plain", slo_s)
    reached = _by_seed(
        mine[mine["variant"] == "plain"],
        lambda one: (
            one["tokens_per_s"].mean() / (best["tokens_per_s"] if best is not None else 1.0)
        ),
    )
    return about(
        f"Algorithm 1 as printed converges to the optimal batch size ({SHORT.get(llm, llm)})",
        1.0,
        reached,
        nothing=0.1,
        unit="of the best fixed limit's tokens/s",
        paper="the optimal batch size (4.2)",
        reason="a halved limit lowers throughput, so the next ratio of previous to current throughput is "
        "above one and halves again, down to one request; there throughput no longer changes",
    )


def _memory_reason(frame: DataFrame, llm: str, slo_s: float) -> str:
    """What holds the batch: memory or latency, as measured."""
    mine = _plain(frame, llm, slo_s).mean(numeric_only=True)
    seen = (
        f"{mine['batch']:.0f} requests run on average at a limit of {mine['limit']:.0f} and a mean ITL of "
        f"{mine['itl_s']:.2g} s, with {mine['kv_use']:.0%} of KV memory in use"
    )
    if _memory_holds(frame, llm, slo_s):
        return f"{SHORT.get(llm, llm)}: KV memory holds the batch, not the target: {seen}"
    return f"{SHORT.get(llm, llm)}: the target holds the batch, not KV memory: {seen}"


def _memory_holds(frame: DataFrame, llm: str, slo_s: float) -> bool:
    return bool(_plain(frame, llm, slo_s)["kv_use"].mean() > MEMORY_IS_FULL)


def _smaller_reason(frame: DataFrame, llm: str, variant: str, slo_s: float) -> str:
    """Why the batch became smaller, or did not: from the runs and the fixed limits."""
    best = [best_fixed(frame, llm, which, slo_s) for which in ("plain", variant)]
    shown = " to ".join("none" if one is None else f"{one['batch']:.0f}" for one in best)
    reason = f"the best fixed limit goes from {shown} requests; {_memory_reason(frame, llm, slo_s)}"
    if variant == "prefix cache" and _memory_holds(frame, llm, slo_s):
        reason += "; so the fall is the share of memory that the cache takes, which is ours"
    if variant == "prefix cache" and not _memory_holds(frame, llm, slo_s):
        reason += f"; a cache shortens prefills, which lowers ITL ({_at_same(frame, llm, variant)})"
    return reason


def _better_reason(frame: DataFrame, llm: str, variant: str) -> str:
    """Whether an optimisation makes iterations of the same batch faster."""
    small = frame.loc[frame["controller"] == "fixed", "first_limit"].min()
    reason = f"with the same batch: {_at_same(frame, llm, variant)}, {_at_same(frame, llm, variant, small)}"
    if variant == "speculative" and llm == "llama-3.1-8b":
        reason += "; the 3B draft, which is ours, costs too much of the 8B's time"
    return reason


def _at_same(frame: DataFrame, llm: str, variant: str, limit: int | None = None) -> str:
    """ITL without and with an optimisation at one fixed limit (the middle one of the ladder if None)."""
    ladder = frame[(frame["controller"] == "fixed") & (frame["llm"] == llm)]
    limits = sorted(ladder["first_limit"].unique())
    if not limits:
        return "no fixed limits were run"
    limit = limits[len(limits) // 2] if limit is None else limit
    itl_s = ladder[ladder["first_limit"] == limit].set_index("variant")["itl_s"]
    return f"{itl_s['plain']:.3f} to {itl_s[variant]:.3f} s at a limit of {limit:.0f}"


def _of(frame: DataFrame, llm: str, controller: str, slo_s: float) -> DataFrame:
    same = (frame["llm"] == llm) & (frame["controller"] == controller)
    return frame[same & np.isclose(frame["itl_slo_s"].astype(float), slo_s)]


def _plain(frame: DataFrame, llm: str, slo_s: float) -> DataFrame:
    mine = _of(frame, llm, "chiron", slo_s)
    return mine[mine["variant"] == "plain"]


def _by_seed(frame: DataFrame, number: Any) -> Interval:
    return mean_interval([float(number(mine)) for _, mine in frame.groupby("seed")])


def _ratio(frame: DataFrame, variant: str, base: str, column: str) -> Interval:
    def one(mine: DataFrame) -> float:
        values = mine.set_index("variant")[column]
        return float(values[variant] / values[base])

    return _by_seed(frame, one)


def _better(frame: DataFrame, variant: str) -> Interval:
    def one(mine: DataFrame) -> float:
        rows = mine.set_index("variant")
        faster = rows["tokens_per_s"][variant] / rows["tokens_per_s"]["plain"]
        return float(max(faster, rows["itl_s"]["plain"] / rows["itl_s"][variant]))

    return _by_seed(frame, one)


def _between(
    frame: DataFrame, one: tuple[str, float], other: tuple[str, float], column: str
) -> Interval:
    above, below = (_plain(frame, *which).set_index("seed")[column] for which in (one, other))
    return mean_interval([float(value) for value in above / below])
