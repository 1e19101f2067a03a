"""Queue drain time of two LLMs on one instance: earliest deadline first against grouping by LLM.

Requests of two LLMs, half of each, wait in front of one instance that swaps between them. EDF serves them in
order of their deadlines; the oracle serves one LLM's requests, swaps once, and serves the other's. How
deadlines and LLMs mix is ours: in deadline order requests of an LLM come in runs of random length.

EDF swaps whenever the next request is for the other LLM: the running batch is served to its end, weights are
loaded, and the next batch is only as large as the run of requests that follow one another for the same LLM.
Runs of 1 are a random order (a request's LLM says nothing about its deadline), longer runs favour EDF. Swap
times follow from weights and links (`swap_times_s`): warm, both LLMs are in host memory; cold, weights come
from storage at every swap. A pair shares an instance with as many GPUs as the larger LLM needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, at_least, every
from experiments.harness.figure import (
    SEEDS,
    Grid,
    claimed,
    dress,
    legend_below,
    listed,
    places,
    where,
    wide,
)
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.qlm.readings import least_first
from experiments.qlm.setting import SHORT, cluster, gpus_per_instance, lengths
from llmscale_env.sim.compile import compile_cluster, swap_times_s
from llmscale_env.sim.engine import make_engine
from llmscale_env.workload.requests import PS_PER_S, RequestTable

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 5"
PAIRS = {
    "a100-80gb": (
        ("mistral-7b@a", "mistral-7b@b"),
        ("mistral-7b", "vicuna-13b"),
        ("vicuna-13b@a", "vicuna-13b@b"),
        ("mistral-7b", "llama-2-70b"),
        ("llama-2-70b@a", "llama-2-70b@b"),
    ),
    "a10-24gb": (("mistral-7b@a", "mistral-7b@b"), ("mistral-7b", "vicuna-13b")),
}
"""Pairs that fit; "@a" and "@b" are fine-tuned versions with weights of their own."""

WEIGHTS = {"warm": "in host memory", "cold": "in storage"}


class DrainTime(Parameters):
    """Parameters of this figure."""

    gpus: Annotated[tuple[str, ...], paper("section 8", min_length=1)] = ("a100-80gb", "a10-24gb")
    queue: Annotated[int, ours("some full batches", ge=2)] = 1000
    runs: Annotated[
        tuple[Annotated[float, Field(ge=1)], ...],
        ours("mean requests of one LLM that follow one another; 1: random order", min_length=1),
    ] = (1, 8, 64)
    batch_limit: Annotated[int, ours("vLLM's default", ge=1)] = 256
    lengths: Annotated[str, paper("section 2.4: ShareGPT")] = "sharegpt-single-turn"


PARAMETERS = {"quick": DrainTime(seeds=4), "paper": DrainTime(seeds=20)}


cases = Grid(
    {
        "seed": SEEDS,
        "gpu": "gpus",
        "pair": lambda parameters, case: [
            {"first": first, "second": second} for first, second in PAIRS[case["gpu"]]
        ],
        "weights": tuple(WEIGHTS),
        # The oracle's order does not depend on runs.
        "order": lambda parameters, _: [
            *({"order": "edf", "run": float(length)} for length in parameters.runs),
            {"order": "oracle", "run": None},
        ],
    },
    keep=("queue", "batch_limit", "lengths"),
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Time until the last request of the queue has finished."""
    llms, gpu = (case["first"], case["second"]), case["gpu"]
    scenario = cluster(
        llms,
        ("deadlines",) if case["order"] == "edf" else ("first", "second"),
        gpu=gpu,
        tp=max(gpus_per_instance(llm, gpu) for llm in llms),
        batch_limit=case["batch_limit"],
        host_weight_bytes=320e9 if case["weights"] == "warm" else 0.0,
        warm=list(llms) if case["weights"] == "warm" else [],
    )
    rng = np.random.default_rng(case["seed"])
    n = case["queue"]
    drawn = lengths(case["lengths"], n, rng)
    llm = alternating(n, case["run"] or 1.0, rng)
    requests = RequestTable.build(
        np.zeros(n),
        **drawn,
        llm=llm,
        slo_class=0 if case["order"] == "edf" else llm,
        llm_names=tuple(scenario.fleet.llms),
        class_names=tuple(c.name for c in scenario.classes),
    )
    engine = make_engine(compile_cluster(scenario))
    engine.reset(0, requests)
    for hour in range(1, 10_000):
        engine.advance(0, hour * 3600 * PS_PER_S)
        finished = engine.results(0)["finished_ps"]
        if (finished >= 0).all():
            break
    pool = scenario.fleet.pools[0]
    swaps = [swap_times_s(scenario, pool, llm) for llm in llms]
    return [
        {
            "drain_s": float(finished.max() / PS_PER_S),
            "swaps": int(engine.instances(0)[0]["swaps"]),
            "swap_s": float(
                np.mean([move + (case["weights"] == "cold") * fetch for fetch, move in swaps])
            ),
        }
    ]


def alternating(n: int, mean_run: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """(n,) 0 or 1, half of each (the odd one 0), in runs of `mean_run` on average.

    1 is a random order (whose runs are of two on average). Longer ones are geometric; what is left of one
    number when the other is used up comes last.
    """
    if mean_run <= 1:
        return rng.permutation(np.arange(n) % 2)
    left = [n - n // 2, n // 2]
    order: list[int] = []
    turn = int(rng.integers(2))
    while left[0] or left[1]:
        take = min(int(rng.geometric(1 / mean_run)), left[turn])
        order += [turn] * take
        left[turn] -= take
        turn = 1 - turn
    return np.array(order)


def plot(frame: DataFrame, parameters: DrainTime) -> Any:
    """A panel per place of the weights; for each pair a bar per order."""
    figure = new_figure(11.0, 5.2)
    panels = figure.subplots(1, len(WEIGHTS), squeeze=False, sharey=True)[0]
    pairs = [(gpu, *pair) for gpu in parameters.gpus for pair in PAIRS[gpu]]
    bars = [("oracle", None), *(("edf", float(run)) for run in reversed(parameters.runs))]
    for axes, (weights, place) in zip(panels, WEIGHTS.items(), strict=True):
        for k, (order, length) in enumerate(bars):
            name = "grouped by LLM (oracle)"
            if length is not None:
                name = f"EDF, runs of {length:g}" if length > 1 else "EDF, random order"
            run = {} if length is None else {"run": length}
            mine = where(frame, weights=weights, order=order, **run)
            mean = mine.groupby(["gpu", "first", "second"])["drain_s"].mean()
            shade = 0.35 + 0.65 * k / (len(bars) - 1)
            colour = "C0" if order == "oracle" else (0.85, 0.3, 0.2, shade)
            y, width = places(k, len(bars), len(pairs))
            axes.barh(y, [mean[pair] for pair in pairs], width, color=colour, label=name)
        axes.set_yticks(range(len(pairs)), [_pair(*pair) for pair in pairs])
        label = f"time to drain {parameters.queue:,} requests (s)"
        dress(axes, title=f"{weights}: weights {place}", log="x", lines="x", xlabel=label)
    panels[0].invert_yaxis()
    legend_below(figure, panels[0], len(bars), place="upper")
    return figure


@claimed
def claims(frame: DataFrame, parameters: DrainTime) -> Iterator[Claim]:
    """EDF takes substantially longer, across LLMs and GPUs; judged at the longest runs, which favour it."""
    longest, parts = max(parameters.runs), []
    for gpu in parameters.gpus:
        for (first, second), weights in product(PAIRS[gpu], WEIGHTS):
            part = where(frame, gpu=gpu, weights=weights, first=first, second=second)
            oracle = where(part, order="oracle").set_index("seed")["drain_s"].astype(float)
            edf = where(part, order="edf")
            ratio = wide(edf, "run", "drain_s").div(oracle, axis=0)
            mine = where(edf, run=longest).mean(numeric_only=True)
            swapping = 100 * mine["swaps"] * mine["swap_s"] / mine["drain_s"]
            found = at_least(
                f"{_pair(gpu, first, second)}, {weights}",
                1.5,
                mean_interval(ratio[longest]),
                nothing=1.0,
                unit="times",
                reason=f"swapping takes {swapping:.0f} % of EDF's drain time",
                note=f"by mean run: {listed(ratio.mean(), 'x')}",
            )
            parts.append(found)
    yield every(
        "Across models and GPUs the drain time is substantially higher with EDF than grouped by LLM",
        least_first(parts),
        paper="substantially higher (no number; read as 1.5 times or more)",
        how="EDF swaps whenever the next deadline is of the other LLM, and drains the batch first",
        setting=f"{parameters.queue:,} requests in runs of {longest:g} of an LLM, which favour EDF most",
    )


def _pair(gpu: str, first: str, second: str) -> str:
    """Such as "Mistral-7B + Vicuna-13B, 2 x a10-24gb"."""
    tp = max(gpus_per_instance(first, gpu), gpus_per_instance(second, gpu))
    bases = [llm.partition("@")[0] for llm in (first, second)]
    names = " + ".join(SHORT[base] for base in bases)
    return f"{f'2 x {SHORT[bases[0]]}' if bases[0] == bases[1] else names}, {tp} x {gpu}"
