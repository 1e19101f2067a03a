"""Output lengths given the prompt's length, and how well their conditional mean predicts them.

Left: the output tokens of ShareGPT's requests for prompts in ranges of length. Right: the error of the
mean output of a prompt's range, which is Aladdin's predictor, for one request and for the sum over a
batch. Outputs are those in ShareGPT (1,024 tokens at most); the paper has Llama-2-13b-chat answer the
prompts.

The median of a range stands beside the mean: it is nearer to a single request, and biased where lengths
are skewed. History and requests are drawn apart, but from the same distribution and one by one: load that
changes, or a batch of alike requests, is not in here. Lengths are those of the shipped tables: first
turns (prompts up to 1,024 tokens), and prompts with the whole conversation. Ranges are ours: the paper's
are in its picture only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt

from agents.statistics import mean_interval
from baselines.aladdin.prediction import PROMPT_EDGES, ConditionalMean
from experiments.aladdin.setting import lengths
from experiments.harness.claims import Claim, asked, at_least, at_most, between, every
from experiments.harness.figure import SEEDS, Grid, claimed, dress, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 2"
TABLES = {
    "sharegpt-single-turn": "first turns",
    "sharegpt": "prompts with the conversation so far",
}
PREDICTORS = {
    "mean": "mean of the prompt's range (Aladdin)",
    "median": "median of the range",
}
BATCHES = tuple(2**k for k in range(10))
FEWEST = 100
"""Requests of a range that is drawn and judged."""

MAX_PROMPT = 8192
"""As long as the tables have them; a lower limit would heap them up there."""


class OutputLengths(Parameters):
    """Parameters of this figure."""

    tables: Annotated[tuple[str, ...], paper("section 2.3: ShareGPT", min_length=1)] = tuple(TABLES)
    edges: Annotated[
        tuple[PositiveInt, ...], ours("first prompt length of each range but the first")
    ] = PROMPT_EDGES
    history: Annotated[int, ours("requests that the predictor has seen", ge=100)] = 20_000
    requests: Annotated[int, ours("requests that it predicts", ge=1024)] = 51_200
    claimed_batch: Annotated[PositiveInt, ours("a batch that an A100 runs within the SLO")] = 32


PARAMETERS = {
    "quick": OutputLengths(seeds=4),
    "paper": OutputLengths(seeds=20),
}


cases = Grid(
    {"seed": SEEDS, "table": "tables"}, keep=("edges", "history", "requests", "claimed_batch")
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of three kinds: "cdf" by range and tokens, "range", and "batch" by predictor and batch."""
    rng = np.random.default_rng(case["seed"])
    seen = lengths(case["table"], case["history"], rng, MAX_PROMPT)
    inputs, outputs = lengths(case["table"], case["requests"], rng, MAX_PROMPT)
    predictor = ConditionalMean(edges=tuple(case["edges"]), prior_requests=0)
    predictor.observe(*seen)
    ids = np.arange(len(inputs))
    predicted = {
        "mean": predictor.predict(ids, inputs),
        "median": medians(predictor.bins(seen[0]), seen[1], len(case["edges"]) + 1)[
            predictor.bins(inputs)
        ],
    }
    rows = _ranges(case["edges"], predictor.bins(inputs), outputs, predicted["mean"])
    order = rng.permutation(len(inputs))
    for name, tokens in predicted.items():
        bias = float(tokens.mean() / outputs.mean() - 1)
        rows += [
            {
                "kind": "batch",
                "predictor": name,
                "batch": batch,
                "bias": bias,
                "error": batch_error(tokens[order], outputs[order], batch),
            }
            for batch in sorted({*BATCHES, case["claimed_batch"]})
        ]
    return rows


def medians(bins: NDArray[np.int64], outputs: NDArray[Any], n: int) -> NDArray[np.float64]:
    """(n,) median output of each range; of all where a range has none."""
    return np.array(
        [np.median(outputs[bins == k] if (bins == k).any() else outputs) for k in range(n)]
    )


def batch_error(predicted: NDArray[np.float64], actual: NDArray[Any], batch: int) -> float:
    """Mean error of the sum over a batch, without its sign, as a share of the mean sum.

    Args:
        predicted, actual: (n,) tokens; requests that follow one another share a batch, and what does
            not fill one is left out.
        batch: requests.
    """
    n = len(actual) // batch * batch
    error = (predicted[:n] - actual[:n]).reshape(-1, batch).sum(axis=1)
    return float(np.abs(error).mean() / (actual[:n].mean() * batch))


def _ranges(
    edges: list[int], bins: NDArray[np.int64], outputs: NDArray[Any], predicted: NDArray[np.float64]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    limits = [0, *edges, None]
    grid = np.unique(np.rint(np.linspace(0, 1024, 65))).astype(int)
    for k, (low, high) in enumerate(pairwise(limits)):
        mine = outputs[bins == k]
        if len(mine) < FEWEST:
            continue
        common = {"low": low, "high": high, "count": len(mine)}
        rows.append(
            {
                "kind": "range",
                **common,
                "actual": float(mine.mean()),
                "predicted": float(predicted[bins == k].mean()),
                "median": float(np.median(mine)),
            }
        )
        share = np.searchsorted(np.sort(mine), grid, side="right") / len(mine)
        rows += [
            {"kind": "cdf", **common, "tokens": int(t), "share": float(s)}
            for t, s in zip(grid, share, strict=True)
        ]
    return rows


def excerpt(frame: DataFrame, parameters: OutputLengths) -> DataFrame:
    """Ranges of all seeds; of distributions and errors the means over the seeds, which are drawn."""
    import pandas as pd

    drawn = frame["kind"] != "range"
    place = ["table", "kind", "low", "high", "tokens", "predictor", "batch"]
    means = frame[drawn].groupby(place, dropna=False)[["share", "error"]].mean().reset_index()
    return pd.concat([frame[~drawn], means.assign(seed=frame["seed"].min())], ignore_index=True)


def plot(frame: DataFrame, parameters: OutputLengths) -> Any:
    """A panel of distributions per table, and one of errors."""
    from matplotlib import colormaps

    figure = new_figure(4.4 * (len(parameters.tables) + 1), 4.4)
    *panels, right = figure.subplots(1, len(parameters.tables) + 1)
    colours = colormaps["viridis"](np.linspace(0, 0.95, len(parameters.edges) + 1))
    places = {low: k for k, low in enumerate([0, *parameters.edges])}
    for axes, table in zip(panels, parameters.tables, strict=True):
        mine = where(frame, table=table, kind="cdf")
        mine = mine.astype({"low": float, "tokens": float, "share": float})
        for low, part in mine.groupby("low"):
            high = part["high"].iloc[0]
            name = (
                f"{low:.0f} and more"
                if _none(high)
                else f"{max(low, 1):.0f} to {float(high) - 1:.0f}"
            )
            mean = part.groupby("tokens")["share"].mean()
            axes.plot(mean.index, mean, color=colours[places[int(low)]], label=name)
        dress(
            axes,
            title=f"{table}:\n{TABLES.get(table, '')}",
            xlabel="output (tokens)",
            ylabel="share of outputs at most so long",
            legend={"title": "prompt (tokens)", "title_fontsize": 8, "loc": "lower right"},
        )
    errors = where(frame, kind="batch").astype({"batch": float, "error": float})
    for k, table in enumerate(parameters.tables):
        for (predictor, name), style in zip(PREDICTORS.items(), ("o-", "s:"), strict=True):
            part = where(errors, table=table, predictor=predictor)
            mean = 100 * part.groupby("batch")["error"].mean()
            right.plot(mean.index, mean, style, color=f"C{k}", ms=4, label=f"{table}:\n{name}")
            if predictor == "mean":
                alone = mean.iloc[0] / np.sqrt(mean.index)
                right.plot(mean.index, alone, "--", color="0.6", lw=1, zorder=0)
    right.plot([], [], "--", color="0.6", lw=1, label="as independent errors: 1 / sqrt(batch)")
    right.set_xscale("log", base=2)
    right.set_yscale("log")
    right.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    right.minorticks_off()
    right.set_xlabel("requests in a batch")
    right.set_ylabel("mean error of the predicted sum (%)")
    right.legend(fontsize=7, loc="lower left")
    right.grid(alpha=0.3)
    return figure


@claimed
def claims(frame: DataFrame, parameters: OutputLengths) -> Iterator[Claim]:
    """Section 2.3."""
    batch = parameters.claimed_batch
    bias, single, sums = [], [], []
    for table in parameters.tables:
        mine = where(frame, kind="batch", predictor="mean", table=table)
        mine = mine.astype({"batch": int, "error": float, "bias": float})
        by = mine.pivot(index="seed", columns="batch", values="error")
        off = mean_interval(100 * mine.drop_duplicates("seed")["bias"])
        name, reason = TABLES.get(table, table), _worst_range(frame, table)
        bias.append(between(name, -2, 2, off, nothing=None, unit="% too many", reason=reason))
        single.append(at_least(name, 25, mean_interval(100 * by[1]), nothing=0, unit="%"))
        ratio = mean_interval(by[batch] / by[1])
        sums.append(at_most(name, 0.5, ratio, nothing=1, unit="times the error of one"))
    # True by construction, as history and requests are drawn from one distribution.
    yield asked(
        every(
            "Does the conditional mean of past outputs predict without bias?",
            bias,
            paper="non-biased (read as within 2 %)",
            how="means of past outputs by range of prompt length, of requests from the same distribution",
        )
    )
    yield every(
        "The error of a single prediction may be high",
        single,
        paper="high (no number; read as 25 % of the mean output)",
        how="the same predictions, request by request",
    )
    yield every(
        "The errors of a batch's requests partially cancel",
        sums,
        paper="partially (no number; read as half or less)",
        how=f"the same predictions, summed over batches at random; independent errors give {batch**-0.5:.2f}",
        setting=f"{batch} requests in a batch",
    )


def _worst_range(frame: DataFrame, table: str) -> str:
    """The range of prompts whose mean is predicted worst."""
    mine = where(frame, table=table, kind="range")
    mean = mine.astype({"low": float, "actual": float, "predicted": float})
    mean = mean.groupby("low")[["actual", "predicted"]].mean()
    off = 100 * (mean["predicted"] / mean["actual"] - 1)
    low = off.abs().idxmax()
    return f"the range from {low:.0f} prompt tokens on is off most, by {off[low]:+.1f} %"


def _none(value: Any) -> bool:
    return value is None or value != value
