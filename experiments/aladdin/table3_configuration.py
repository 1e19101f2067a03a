"""Best GPUs per worker by LLM and GPU (Eq. 5 and 6).

Throughput per GPU of a worker with 1, 2 or 4 GPUs, the smaller of that with KV memory full and that at
the largest batch that keeps Table 2's decode SLO. Times on A100 are end-to-end for Llama-2-70B and
composed of kernels for the smaller ones; those on V100 are a roofline, since no V100 was measured.

The paper's A100s have PCIe only and its V100s NVLink; ours were measured over NVLink, and PCIe adds what
its all-reduces take longer at the card's bandwidth. Both links are shown for both GPUs. The demand of a
request, the paper's m_r, is read as that at its end, of ShareGPT's first turns; "held" is the mean over
the time that it decodes. Composed times and the roofline leave out what an engine does around its
kernels: `overheads_ms` adds so much to each iteration of several GPUs (in the engines of the paper's
time, their processes' communication was measured at 6 to 7 ms). How well Eq. 5, k4 / N + c4, gives
iteration times of several degrees is shown where three of them hold the LLM: the line is fitted to one
request alone, communication included (it has the same shape in N, so the two cannot be told apart).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveInt

from agents.statistics import Interval, mean_interval
from baselines.aladdin.configuration import (
    DegreeRow,
    RequestTokens,
    best_degree,
    degree_table,
    fit_degrees,
)
from experiments.aladdin.setting import DEGREES, GPU_NAMES, LENGTHS, SHORT, SLOS_S, lengths
from experiments.harness.claims import Claim, about, asked, at_most, every, exact, more
from experiments.harness.figure import SEEDS, Grid, claimed, dress, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from llmscale_env.cluster.cards import gpu_card
from llmscale_env.cluster.iteration_model import IterationTimeModel
from llmscale_env.cluster.iteration_time import iteration_time_model

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Table 3"
LINKS = {"pcie": "PCIe", "nvlink": "NVLink"}
OWN_LINK = {"a100-80gb": "pcie", "v100-32gb": "nvlink"}
"""Section 6.1."""

SOURCES = {"end-to-end": "end-to-end times", "composed": "composed times", "roofline": "a roofline"}


class Configuration(Parameters):
    """Parameters of this table."""

    llms: Annotated[tuple[str, ...], paper("section 6.1", min_length=1)] = tuple(SHORT)
    gpus: Annotated[
        tuple[Literal["a100-80gb", "v100-32gb"], ...], paper("section 6.1", min_length=1)
    ] = ("a100-80gb", "v100-32gb")
    links: Annotated[
        tuple[Literal["pcie", "nvlink"], ...],
        paper("section 6.1: PCIe for A100, NVLink for V100; both for both", min_length=1),
    ] = ("pcie", "nvlink")
    degrees: Annotated[tuple[PositiveInt, ...], paper("section 6.1: 4 GPUs", min_length=1)] = (
        1,
        2,
        4,
    )
    lengths: Annotated[str, paper("Table 3: ShareGPT")] = LENGTHS
    demand: Annotated[
        Literal["final", "held"], ours("m_r, the average demand of a request: that at its end")
    ] = "final"
    requests: Annotated[int, ours("of the history", ge=100)] = 20_000
    overheads_ms: Annotated[
        tuple[Annotated[float, Field(ge=0)], ...],
        ours(
            "beside 0: around the 6 to 7 ms of Vidur's profiles, Llama-2-70B and CodeLlama-34B on A100"
        ),
    ] = (4, 8, 12, 16, 20)


PARAMETERS = {"quick": Configuration(seeds=2), "paper": Configuration(seeds=5)}


cases = Grid(
    {
        "seed": SEEDS,
        "llm": "llms",
        "gpu": "gpus",
        "link": "links",
        "overhead_ms": lambda parameters, case: sorted({0.0, *map(float, parameters.overheads_ms)}),
    },
    keep=("degrees", "lengths", "demand", "requests"),
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per degree."""
    rng = np.random.default_rng(case["seed"])
    tokens = RequestTokens.of(*lengths(case["lengths"], case["requests"], rng))
    llm, gpu = case["llm"], case["gpu"]
    # Table 2 has no SLO where an LLM does not fit; that of the other GPU will do.
    _, itl_s = SLOS_S.get((llm, gpu)) or SLOS_S[llm, "a100-80gb"]
    card = gpu_card(gpu)
    rows = degree_table(
        llm,
        gpu,
        getattr(tokens, case["demand"]),
        itl_s,
        degrees=case["degrees"],
        link_bytes_per_s=card.pcie_bytes_per_s if case["link"] == "pcie" else None,
        model_of=partial(slower, case["overhead_ms"] / 1e3),
    )
    best = best_degree(rows)
    errors = eq5_errors(rows)
    return [
        {
            **vars(row),
            "kv_iteration_s": _finite(row.kv_iteration_s),
            "single_s": _finite(row.single_s),
            "request_tokens": getattr(tokens, case["demand"]),
            "best": best or 0,
            "eq5_error": errors.get(row.tp),
        }
        for row in rows
    ]


def eq5_errors(rows: Sequence[DegreeRow]) -> dict[int, float]:
    """Relative error of Eq. 5, fitted to one request's times, at each degree; empty with fewer than three."""
    held = [row for row in rows if np.isfinite(row.single_s)]
    if len(held) < 3:
        return {}
    line = fit_degrees([row.tp for row in held], [row.single_s for row in held])
    return {row.tp: line.seconds(row.tp) / row.single_s - 1 for row in held}


def slower(overhead_s: float, llm: str, gpu: str, tp: int) -> IterationTimeModel:
    """Iteration times with an overhead for several GPUs, if their kind leaves it out."""
    model = iteration_time_model(llm, gpu, tp)
    if tp == 1 or model.kind not in ("composed", "roofline"):
        return model
    return replace(model, decode_base_s=tuple(base + overhead_s for base in model.decode_base_s))


def _finite(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def excerpt(frame: DataFrame, parameters: Configuration) -> DataFrame:
    """What is drawn, without an overhead."""
    shown = ["seed", "llm", "gpu", "link", "overhead_ms", "kind", "tp", "throughput", "bottleneck"]
    return where(frame, overhead_ms=0)[shown]


def plot(frame: DataFrame, parameters: Configuration) -> Any:
    """A panel per LLM and GPU: throughput per GPU by degree, a bar per link."""
    figure = new_figure(3.4 * len(parameters.llms), 3.1 * len(parameters.gpus))
    panels = figure.subplots(len(parameters.gpus), len(parameters.llms), squeeze=False)
    width = 0.8 / len(parameters.links)
    frame = where(frame, overhead_ms=0)
    for line, gpu in zip(panels, parameters.gpus, strict=True):
        for axes, llm in zip(line, parameters.llms, strict=True):
            mine = where(frame, llm=llm, gpu=gpu)
            for k, link in enumerate(parameters.links):
                part = where(mine, link=link).groupby("tp")
                mean = part["throughput"].mean()
                at = np.arange(len(mean)) + (k - (len(parameters.links) - 1) / 2) * width
                axes.bar(at, mean, width, color=f"C{k}", label=LINKS[link])
                for place, tp in zip(at, mean.index, strict=True):
                    limit = part.get_group(tp).iloc[0]["bottleneck"]
                    limit = limit if isinstance(limit, str) and limit else "out"
                    axes.text(place, mean[tp], limit, ha="center", va="bottom", fontsize=7)
            if not mine["throughput"].any():
                axes.clear()
                axes.text(
                    0.5, 0.5, f"{SHORT[llm]} fits on\nno {GPU_NAMES[gpu]} worker", ha="center"
                )
                axes.set_axis_off()
                continue
            names = [f"{tp}*" if tp == DEGREES.get((llm, gpu)) else f"{tp}" for tp in mean.index]
            axes.set_xticks(range(len(mean)), names)
            dress(
                axes,
                title=f"{SHORT[llm]} on {GPU_NAMES[gpu]}, {_kind(mine)}",
                size=9,
                ylim=(0, max(1.0, 1.15 * float(mine["throughput"].max()))),
                lines="y",
            )
    for axes in panels[-1]:
        axes.set_xlabel("GPUs per worker (*: the paper's best)")
    for axes in panels[:, 0]:
        axes.set_ylabel("tokens/s per GPU")
    figure.legend(
        *panels[0][0].get_legend_handles_labels(), fontsize=8, ncols=2, title_fontsize=8,
        title='on the bars: what limits ("kv": memory, "slo": decode SLO, "out": does not fit)',
        loc="outside lower center",
    )  # fmt: skip
    return figure


@claimed
def claims(frame: DataFrame, parameters: Configuration) -> Iterator[Claim]:
    """Table 3, the introduction on workers of all GPUs, and Eq. 5."""
    plain = where(frame, overhead_ms=0)
    wide = max(parameters.degrees)
    smaller: list[bool] = []
    for gpu in parameters.gpus:
        link = OWN_LINK[gpu]
        if link not in parameters.links:
            continue
        cells = []
        for llm in parameters.llms:
            own, degree = _of(plain, llm, gpu, link), DEGREES.get((llm, gpu), 0)
            best = _best(own)
            if best.mean > 0:
                smaller.append(best.mean < wide)
            cells.append(
                about(
                    f"{SHORT[llm]}, {_kind(own)}",
                    degree,
                    best,
                    nothing=None,
                    unit="per worker" if degree else "per worker (none holds it)",
                    paper=f"{degree}" if degree else "N/A",
                    reason=_degrees(own) + _slower(frame, llm, gpu, link),
                )
            )
        yield every(
            f"Table 3: the best number of GPUs per worker on {GPU_NAMES[gpu]}",
            cells,
            paper=", ".join(
                f"{cell.paper} ({SHORT[llm]})"
                for llm, cell in zip(parameters.llms, cells, strict=True)
            ),
            how="the most throughput per GPU by Eq. 6, limited by KV memory or the decode SLO",
            setting=LINKS[link],
        )
    if smaller:
        others = plain[plain["link"] != plain["gpu"].map(OWN_LINK)]
        other = [_best(part).mean for _, part in others.groupby(["llm", "gpu"])]
        yield more(
            "One worker of all GPUs of a machine is suboptimal for most models",
            50,
            exact(100 * sum(smaller) / len(smaller)),
            unit=f"% of the {len(smaller)} pairs of LLM and GPU that fit",
            paper="most (read as more than half)",
            how=f"Eq. 6 finds more throughput per GPU with fewer than {wide} GPUs per worker",
            setting="links as in the paper",
            note=f"with the links swapped, {wide} GPUs are best for {other.count(wide)}"
            if other
            else "",
        )
    off = plain["eq5_error"].astype(float).dropna().abs()
    if len(off):
        worst = plain.loc[off.idxmax()]
        where_ = f"{SHORT[worst['llm']]} on {GPU_NAMES[worst['gpu']]}, {LINKS[worst['link']]}"
        yield asked(
            at_most(
                "Is Eq. 5 within 10 % at every degree?",
                10,
                exact(100 * float(off.max())),
                nothing=None,
                unit=f"% at worst ({where_})",
                how="a line in 1 / GPUs through the times of one request at three degrees",
                reason=f"{100 * float(off.mean()):.1f} % on average; the line falls half as much from 2 to 4 "
                "GPUs as from 1 to 2, and those times do not",
            )
        )


def _slower(frame: DataFrame, llm: str, gpu: str, link: str) -> str:
    """The best degree by what an iteration of several GPUs takes longer, where times leave that out."""
    mine = _of(frame, llm, gpu, link)
    by = {f"{extra:g}": _best(part).mean for extra, part in mine.groupby("overhead_ms") if extra}
    if not by or _kind(mine) == SOURCES["end-to-end"]:
        return ""
    found = ", ".join(f"{best:g} with {extra} ms" for extra, best in by.items())
    return f"; if iterations of several GPUs took longer: {found}"


def _of(frame: DataFrame, llm: str, gpu: str, link: str) -> DataFrame:
    return where(frame, llm=llm, gpu=gpu, link=link)


def _kind(mine: DataFrame) -> str:
    """Where the times of the degrees come from that hold the LLM (all, if none does)."""
    held = mine[mine["throughput"] > 0]
    return SOURCES[(held if len(held) else mine)["kind"].iloc[0]]


def _best(mine: DataFrame) -> Interval:
    return mean_interval(mine.groupby("seed")["best"].first().astype(float))


def _degrees(mine: DataFrame) -> str:
    """Throughput per GPU by degree."""
    by = mine.groupby("tp")["throughput"].mean()
    return "tokens/s per GPU: " + ", ".join(f"{value:,.0f} with {tp}" for tp, value in by.items())
