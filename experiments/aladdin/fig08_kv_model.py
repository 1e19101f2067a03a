"""KV memory as a line in the context (Eq. 1), against what an engine with pages takes.

The line is fitted to one half of the single requests and judged on the other, and on batches. It is held
against what a paged engine takes by construction (vLLM): whole pages of 16 tokens, at the bytes that the
published shapes of the LLMs give a token. Nothing was measured.

Contexts of single requests are drawn uniformly, those of batches from ShareGPT's requests at a uniform
point of their output. With `page_tokens=1` the line is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import PositiveInt

from agents.statistics import Interval, mean_interval
from baselines.aladdin.performance import fit_kv
from experiments.aladdin.setting import LENGTHS, SHORT, lengths
from experiments.harness.claims import Claim, at_least, at_most, every
from experiments.harness.figure import SEEDS, Grid, claimed, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from llmscale_env.cluster.cards import llm_card

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 8"


class KvModel(Parameters):
    """Parameters of this figure."""

    llms: Annotated[
        tuple[Literal["llama-2-7b", "llama-2-13b", "llama-2-70b"], ...],
        paper("section 6.1", min_length=1),
    ] = ("llama-2-7b", "llama-2-13b", "llama-2-70b")
    page_tokens: Annotated[PositiveInt, ours("vLLM's default")] = 16
    most_context: Annotated[int, paper("section 6.1", ge=1)] = 4096
    least_context: Annotated[int, ours("as in Figure 6", ge=1)] = 512
    requests: Annotated[int, ours("half to fit, half to judge", ge=8)] = 400
    batches: Annotated[int, ours("of requests at different points", ge=1)] = 200
    batch: Annotated[int, ours("a batch that an A100 runs within the SLO", ge=1)] = 32
    lengths: Annotated[str, paper("section 6.1: ShareGPT")] = LENGTHS
    level: Annotated[float, ours("of prediction intervals", gt=0, lt=1)] = 0.95


PARAMETERS = {"quick": KvModel(seeds=4), "paper": KvModel(seeds=20)}


cases = Grid(
    {"seed": SEEDS, "llm": "llms"},
    keep=(
        "page_tokens",
        "most_context",
        "least_context",
        "requests",
        "batches",
        "batch",
        "lengths",
        "level",
    ),
)


def paged_bytes(llm: str, tokens: ArrayLike, page_tokens: int) -> NDArray[np.float64]:
    """KV memory of requests with so much context, in whole pages; the shape of `tokens`."""
    pages = -(-np.asarray(tokens, np.int64) // page_tokens)
    return np.asarray(pages * page_tokens * llm_card(llm).kv_bytes_per_token, np.float64)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per request that is judged, and per batch."""
    rng = np.random.default_rng(case["seed"])
    llm, page = case["llm"], case["page_tokens"]
    context = rng.integers(case["least_context"], case["most_context"] + 1, case["requests"])
    seen = context[: len(context) // 2]
    use, fit = fit_kv(seen, paged_bytes(llm, seen, page))
    rows: list[dict[str, Any]] = []
    for tokens in context[len(seen) :]:
        low, high = fit.interval([float(tokens), 1.0], case["level"])
        rows.append(
            {
                "row": "request",
                "tokens": int(tokens),
                "bytes": float(paged_bytes(llm, tokens, page)),
                "predicted": float(use.of(tokens)),
                "interval": float(high - low) / 2,
            }
        )
    for _ in range(case["batches"]):
        prompt, output = lengths(case["lengths"], case["batch"], rng)
        held = prompt + np.ceil(rng.random(case["batch"]) * output).astype(int)
        rows.append(
            {
                "row": "batch",
                "tokens": int(held.sum()),
                "bytes": float(paged_bytes(llm, held, page).sum()),
                "predicted": float(use.of(held).sum()),
                "interval": None,
            }
        )
    per_token = llm_card(llm).kv_bytes_per_token
    return [{**row, "per_token": use.per_token, "card": per_token} for row in rows]


def excerpt(frame: DataFrame, parameters: KvModel) -> DataFrame:
    """What is drawn: the first seed."""
    columns = ["seed", "llm", "row", "tokens", "bytes", "predicted"]
    return where(frame, seed=frame["seed"].min())[columns]


def plot(frame: DataFrame, parameters: KvModel) -> Any:
    """Left: lines through single requests. Right: errors, of requests and of batches."""
    figure = new_figure(10.0, 4.2)
    left, right = figure.subplots(1, 2)
    first = where(frame, seed=frame["seed"].min())
    for k, llm in enumerate(parameters.llms):
        mine = where(first, llm=llm, row="request").sort_values("tokens")
        left.plot(
            mine["tokens"], mine["bytes"] / 1e9, "o", ms=3, color=f"C{k}", alpha=0.6,
            label=f"{SHORT[llm]}: pages taken",
        )  # fmt: skip
        left.plot(
            mine["tokens"], mine["predicted"] / 1e9, color="k", lw=0.8, label="_" if k else "Eq. 1"
        )
    llm = parameters.llms[0]
    for row, marker in (("request", "."), ("batch", "x")):
        mine = where(first, llm=llm, row=row)
        name = "a request" if row == "request" else f"a batch of {parameters.batch}"
        right.plot(
            mine["tokens"], 100 * (mine["predicted"] / mine["bytes"] - 1), marker, ms=5, label=name
        )
    for limit in (-1, 1):
        right.axhline(
            limit, color="k", ls="--", lw=1, label="the paper's 1 %" if limit > 0 else None
        )
    left.set_xlabel("context of a request (tokens)")
    left.set_ylabel("KV memory (GB)")
    left.set_xlim(left=0)
    left.set_ylim(bottom=0)
    right.set_xscale("log")
    right.set_xlabel("context (tokens)")
    right.set_ylabel("error of the prediction (%)")
    right.set_title(f"{SHORT[llm]} (the others differ by a factor alone)", fontsize=10)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return figure


@claimed
def claims(frame: DataFrame, parameters: KvModel) -> Iterator[Claim]:
    """Section 6.2."""
    # In shares of the prediction the LLMs are alike, so one stands for all.
    mine = where(frame, llm=parameters.llms[0])
    built = f"line fitted to whole pages of {parameters.page_tokens} tokens, which are computed, not measured"
    errors = []
    for row, name in (("request", "a request"), ("batch", f"a batch of {parameters.batch}")):
        part = where(mine, row=row)
        error = 100 * (part["predicted"] / part["bytes"] - 1).abs()
        why = (
            f"worst at {part.loc[error.idxmax(), 'tokens']:,} tokens, {error.mean():.2f} % on average; pages "
            f"of {parameters.page_tokens} tokens alone"
        )
        worst = _by_seed(part, error, "max")
        errors.append(at_most(name, 1, worst, nothing=None, unit="% at worst", reason=why))
    yield every("The predicted KV memory is wrong by less than 1 %", errors, how=built)
    part = where(mine, row="request")
    yield at_most(
        "The prediction interval of KV memory lies on the prediction",
        1,
        _by_seed(part, 100 * part["interval"].astype(float) / part["predicted"], "mean"),
        nothing=None,
        unit="% of the prediction to either side, on average",
        paper="just aligned (read as within 1 %)",
        how=f"{100 * parameters.level:g} % prediction interval of that {built}",
        reason=f"pages of {parameters.page_tokens} tokens",
    )
    if {"llama-2-13b", "llama-2-70b"} <= set(parameters.llms):
        slopes = frame.groupby(["seed", "llm"])["per_token"].first().unstack()
        yield at_least(
            "Llama-2-13b needs more KV memory for a context than Llama-2-70b",
            1.01,
            mean_interval(slopes["llama-2-13b"] / slopes["llama-2-70b"]),
            nothing=1,
            unit="times",
            paper="more (multi-head against grouped-query attention)",
            how="from the published shapes: 40 layers of 40 KV heads against 80 layers of 8",
        )


def _by_seed(mine: DataFrame, values: Any, how: str) -> Interval:
    return mean_interval(values.groupby(mine["seed"]).agg(how))
