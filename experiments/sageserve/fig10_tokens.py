"""Prompt, output and total tokens per request.

Cumulative distributions of the generated week by LLM, on a log scale. What is known of the source are means
and three quantiles, from its released notebooks; log-normal shapes, independent and with outputs alike for
all LLMs, are ours.

The source's model B is served by Bloom-176B. Its prompts end at B's 99th percentile, since an instance of
it on 8 A100 holds 63,000 tokens of KV cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, about, asked, every, more
from experiments.harness.figure import SEEDS, Grid, claimed, dress, where
from experiments.harness.parameters import Parameters, ours
from experiments.output import new_figure
from experiments.sageserve.setting import SHOWN, parts
from llmscale_env.workload import generate_requests
from llmscale_env.workload.requests import WEEK_S
from llmscale_env.workload.week import (
    WEEK_LLMS,
    WEEK_REGIONS,
    sageserve_week,
    week_classes,
)

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 10"
QUANTITIES = ("prompt", "output", "total")
LEVELS = tuple(
    np.round(np.concatenate([[0.001, 0.005], np.arange(1, 100) / 100, [0.995, 0.999]]), 4)
)


class Tokens(Parameters):
    """Parameters of this figure."""

    rate_scale: Annotated[float, ours("share of the week's requests that are drawn", gt=0)] = 0.1


PARAMETERS = {"quick": Tokens(seeds=3, rate_scale=0.03), "paper": Tokens(seeds=5)}


cases = Grid({"seed": SEEDS}, keep=("rate_scale",))


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per LLM (and one for all), kind of request and quantity: quantiles and shares."""
    workload = sageserve_week(rate_scale=case["rate_scale"])
    classes = week_classes(workload)
    table = generate_requests(
        workload,
        classes=classes,
        llms=WEEK_LLMS,
        regions=WEEK_REGIONS,
        horizon_s=WEEK_S,
        rng=np.random.default_rng(case["seed"]),
    )
    lengths = {
        "prompt": table.input_tokens.astype(np.int64),
        "output": table.output_tokens.astype(np.int64),
    }
    lengths["total"] = lengths["prompt"] + lengths["output"]
    interactive = table.slo_class == table.class_names.index("interactive")
    rows = []
    for llm in (*WEEK_LLMS, "all"):
        of_llm = np.ones(len(table), bool) if llm == "all" else table.llm == WEEK_LLMS.index(llm)
        for kind, of_kind in (("all", True), ("interactive", interactive), ("niw", ~interactive)):
            for quantity in QUANTITIES:
                values = lengths[quantity][of_llm & of_kind]
                quantiles = np.quantile(values, LEVELS)
                rows.append(
                    {
                        "llm": llm,
                        "kind": kind,
                        "quantity": quantity,
                        "n": len(values),
                        "mean": float(values.mean()),
                        "above_1000": float((values > 1000).mean()),
                        **{
                            f"q{level:g}": float(q)
                            for level, q in zip(LEVELS, quantiles, strict=True)
                        },
                    }
                )
    return rows


def excerpt(frame: DataFrame, parameters: Tokens) -> DataFrame:
    """What is drawn: all requests of the first seed."""
    return where(frame, seed=frame["seed"].min(), kind="all")


def plot(frame: DataFrame, parameters: Tokens) -> Any:
    """A panel per quantity, a curve per LLM, tokens on a log scale."""
    first = where(frame, seed=frame["seed"].min(), kind="all")
    figure = new_figure(12, 4)
    for axes, quantity in zip(figure.subplots(1, 3, sharey=True), QUANTITIES, strict=True):
        for color, llm in enumerate(WEEK_LLMS):
            row = where(first, llm=llm, quantity=quantity).iloc[0]
            values = [float(row[f"q{level:g}"]) for level in LEVELS]
            axes.plot(values, LEVELS, color=f"C{color}", lw=1.4, label=SHOWN[llm])
        axes.axvline(1000, color="0.5", ls="--", lw=1)
        dress(axes, log="x", xlim=(1, 2e5), ylim=(0, 1), xlabel=f"{quantity} tokens")
    figure.axes[0].set_ylabel("share of requests")
    figure.axes[0].legend(fontsize=8)
    return figure


@claimed
def claims(frame: DataFrame, parameters: Tokens) -> Iterator[Claim]:
    """The paper's two sentences on the figure and its released notebooks: questions, as lengths are drawn."""

    def of(llm: str, kind: str, quantity: str, column: str) -> Any:
        return where(frame, llm=llm, kind=kind, quantity=quantity)[column].astype(float)

    long, most = (of("all", "all", quantity, "above_1000") for quantity in ("prompt", "output"))
    for what, share in (("more than 1,000 prompt", long), ("fewer than 1,000 output", 1 - most)):
        yield asked(
            more(
                f"Has the majority of requests {what} tokens?",
                50,
                mean_interval(100 * share),
                unit="%",
                paper="the majority",
                how="log-normal lengths with the means of the released notebooks",
            )
        )

    means = {
        "outputs": (222.2, "all", "all", "output", "mean"),
        "non-interactive requests": (4450, "all", "niw", "total", "mean"),
        "interactive requests": (6600, "all", "interactive", "total", "mean"),
        "interactive prompts, model A": (8400, "llama-2-70b", "interactive", "prompt", "mean"),
        "interactive prompts, model B": (7800, "bloom-176b", "interactive", "prompt", "mean"),
        "interactive prompts, model C": (6300, "llama-3.1-8b", "interactive", "prompt", "mean"),
        "interactive prompts, model D": (4600, "llama-3.2-3b", "interactive", "prompt", "mean"),
    }
    tails = {
        "prompts of model B": (49_424, "bloom-176b", "all", "prompt", "q0.99"),
        "outputs of model B": (2000, "bloom-176b", "all", "output", "q0.99"),
        "non-interactive prompts of model A, one day": (
            1840,
            "llama-2-70b",
            "niw",
            "prompt",
            "q0.99",
        ),
    }
    for what, cells in (("mean lengths", means), ("99th percentiles", tails)):
        found = parts(
            about,
            {name: number for name, (number, *_) in cells.items()},
            {name: of(*which) for name, (_, *which) in cells.items()},
            nothing=None,
            unit="tokens",
        )
        sentence = f"Does the draw have the {what} of the released notebooks?"
        yield asked(every(sentence, found, paper="released notebooks", reason=TAILS_REASON))


TAILS_REASON = (
    "The mix gives every LLM the same shape of non-interactive prompts, scaled to the mean of all; the "
    "notebooks do not say which day theirs is."
)
