"""Head-of-line blocking of interactive requests, with and without eviction.

One instance is full of batch requests, of which more wait, when a burst of interactive ones arrives. The
figure shows how long these are blocked, that is wait until they join the running batch, with and without
QLM's eviction. The paper does not say how many arrive together, so bursts of several sizes are shown.

The interactive queue comes first in the virtual queue. Without eviction it waits for running requests to
finish; with QLM's eviction these make room, and their KV cache is copied to host memory beside the iterations
(it occupies the GPU until then). Two more bars show what the copy costs: "ahead" copies before the next
iteration as vLLM does, which delays the next token of all, and "free" copies in no time. All requests have
ShareGPT lengths. Where memory and not the batch limit holds the batch (Vicuna-13B), requests that were
preempted on overflow come before any queue, and nothing is evicted for those that wait behind them;
kv_watermark=0.2 spares all but 1 % of these preemptions, and shows what they cost.

An iteration prefills up to 4,096 tokens, and with Mistral-7B up to 32,768 as well: vLLM of 2024 takes as many
as its `max_model_len`, so that a whole burst is admitted at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from experiments.harness.claims import Claim, at_least, best_of, every
from experiments.harness.figure import (
    SEEDS,
    Grid,
    claimed,
    dress,
    interval_of,
    legend_below,
    line,
    listed,
    where,
    wide,
)
from experiments.harness.parameters import ours, paper
from experiments.output import new_figure
from experiments.qlm.readings import least_first
from experiments.qlm.setting import PaperLlms, cluster, lengths, shown, together
from llmscale_env.sim.compile import compile_cluster
from llmscale_env.sim.engine import make_engine
from llmscale_env.workload.requests import PS_PER_S, RequestTable

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 4"
CLASSES = ("interactive", "batch")
CONTEXT = {"mistral-7b": 32_768, "vicuna-13b": 4096, "llama-2-70b": 4096}
"""`max_model_len` of vLLM, by which it bounds the tokens that an iteration prefills."""
SERVING = {
    "waits": "no eviction",
    "evicts": "eviction, copied beside the iterations (QLM)",
    "ahead": "eviction, copied ahead of an iteration",
    "free": "eviction, copies take no time",
}
HOST_KV_BYTES = {"mistral-7b": 80e9, "vicuna-13b": 80e9, "llama-2-70b": 320e9}
"""Host memory of an instance, section 8.3."""


class Eviction(PaperLlms):
    """Parameters of this figure."""

    bursts: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        ours("from one to a full batch of interactive requests", min_length=1),
    ] = (1, 4, 16, 64, 256)
    prefill_tokens: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        ours("of an iteration at most; up to the LLM's context, as in vLLM of 2024", min_length=1),
    ] = (4096, 32_768)
    repeats: Annotated[int, ours("bursts of a run", ge=1)] = 10
    gap_s: Annotated[int, ours("until a burst is served and forgotten", ge=1)] = 300
    warm_up_s: Annotated[int, ours("until the batch is full and old", ge=2)] = 600
    batch_limit: Annotated[int, ours("vLLM's default", ge=1)] = 256
    kv_watermark: Annotated[
        float, ours("KV memory kept free at admission: vLLM's default", ge=0, lt=0.5)
    ] = 0.01
    lengths: Annotated[str, paper("section 2.4: ShareGPT")] = "sharegpt-single-turn"
    queued: Annotated[int, ours("batch requests, outlast the run", ge=1)] = 60_000


PARAMETERS = {
    "quick": Eviction(seeds=4, repeats=5, queued=40_000),
    "paper": Eviction(seeds=20),
}


def _budgets(parameters: Eviction, llm: str) -> list[int]:
    return [tokens for tokens in parameters.prefill_tokens if tokens <= CONTEXT[llm]]


cases = Grid(
    {
        "seed": SEEDS,
        "llm": "llms",
        "prefill_tokens": lambda parameters, case: _budgets(parameters, case["llm"]),
        "burst": "bursts",
        "serving": tuple(SERVING),
    },
    keep=(
        *("repeats", "gap_s", "warm_up_s", "batch_limit"),
        *("kv_watermark", "lengths", "queued"),
    ),
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Blocking of the interactive requests, and the rhythm of the instance before they came."""
    scenario = cluster(
        (case["llm"],),
        CLASSES,
        batch_limit=case["batch_limit"],
        kv_watermark=case["kv_watermark"],
        evicts_in_order=case["serving"] != "waits",
        async_kv=case["serving"] != "ahead",
        host_kv_bytes=HOST_KV_BYTES[case["llm"]],
        prefill_tokens=case["prefill_tokens"],
    )
    spec = compile_cluster(scenario)
    if case["serving"] == "free":
        profiles = tuple(replace(p, swap_out_ps_per_token=0) for p in spec.profiles)
        spec = replace(spec, profiles=profiles)
    requests = _requests(case)
    engine = make_engine(spec)
    engine.reset(0, requests)

    def seen(at_s: float) -> tuple[int, int]:
        engine.advance(0, round(at_s * PS_PER_S))
        done = int((engine.results(0)["finished_ps"] >= 0).sum())
        return int(engine.instances(0)[0]["iterations"]), done

    half, full = seen(case["warm_up_s"] / 2), seen(case["warm_up_s"])
    seen(case["warm_up_s"] + (case["repeats"] + 1) * case["gap_s"])
    results, mine = engine.results(0), requests.slo_class == 0
    if int((results["admitted_ps"] < 0).sum()) == 0:
        raise ValueError(f"queued = {case['queued']}: the batch requests do not outlast the run")
    if (results["first_token_ps"][mine] < 0).any():
        raise ValueError(f"gap_s = {case['gap_s']}: interactive requests still wait at the end")
    blocked = (results["admitted_ps"][mine] - requests.arrival_ps[mine]) / PS_PER_S
    first = (results["first_token_ps"][mine] - requests.arrival_ps[mine]) / PS_PER_S
    return [
        {
            "blocked_s": float(blocked.mean()),
            "longest_s": float(blocked.max()),
            "first_token_s": float(first.mean()),
            "evictions": int(results["evictions"].sum()),
            "preemptions": int(results["preemptions"].sum()),
            "iteration_s": case["warm_up_s"] / 2 / max(1, full[0] - half[0]),
            "departure_s": case["warm_up_s"] / 2 / max(1, full[1] - half[1]),
        }
    ]


def _requests(case: Mapping[str, Any]) -> RequestTable:
    rng = np.random.default_rng(case["seed"])
    names = {"llm_names": (case["llm"],), "class_names": CLASSES}
    waiting = RequestTable.build(
        np.zeros(case["queued"]),
        **lengths(case["lengths"], case["queued"], rng),
        slo_class=1,
        **names,
    )
    # A burst may come anywhere in an iteration.
    at = case["warm_up_s"] + case["gap_s"] * np.arange(case["repeats"])
    at = np.repeat(at + rng.random(case["repeats"]), case["burst"])
    urgent = RequestTable.build(at, **lengths(case["lengths"], len(at), rng), **names)
    return together([waiting, urgent])


def excerpt(frame: DataFrame, parameters: Eviction) -> DataFrame:
    """The columns that are drawn."""
    return frame[["seed", "llm", "prefill_tokens", "burst", "serving", "blocked_s", "iteration_s"]]


def plot(frame: DataFrame, parameters: Eviction) -> Any:
    """A panel per LLM: blocking against the size of the burst."""
    figure = new_figure(4.1 * len(parameters.llms), 4.4)
    panels = figure.subplots(1, len(parameters.llms), squeeze=False, sharey=True)[0]
    for axes, llm in zip(panels, parameters.llms, strict=True):
        part = where(frame, llm=llm, prefill_tokens=_budgets(parameters, llm)[0])
        for k, (serving, name) in enumerate(SERVING.items()):
            look: dict[str, Any] = {"color": f"C{3 if k == 0 else k - 1}", "ms": 5, "label": name}
            style = "o-" if serving in ("waits", "evicts") else "x:"
            mine = where(part, serving=serving)
            line(axes, mine, "burst", "blocked_s", style, band=None, **look)
        own = part["iteration_s"].mean()
        axes.axhline(own, color="0.4", lw=0.9, ls="--", label="one iteration")
        axes.set_xscale("log", base=2)
        axes.set_xticks(parameters.bursts, [str(n) for n in parameters.bursts])
        dress(axes, title=shown(llm), log="y", xlabel="interactive requests arriving together")
    panels[0].set_ylabel("head-of-line blocking (s), mean")
    legend_below(figure, panels[0], 3)
    return figure


@claimed
def claims(frame: DataFrame, parameters: Eviction) -> Iterator[Claim]:
    """Tens of seconds without eviction, 100 to 1000 times less with it."""
    waits, shorter = [], []
    for llm in parameters.llms:
        ratios: list[Claim] = []
        for tokens in _budgets(parameters, llm):
            part = where(frame, llm=llm, prefill_tokens=tokens)
            without, evicts = (
                wide(where(part, serving=serving), "burst", "blocked_s")
                for serving in ("waits", "evicts")
            )
            ratio = without / evicts
            largest, best = max(parameters.bursts), ratio.mean().idxmax()
            words = f", prefills of {tokens:,} tokens" if ratios else ""
            ratios.append(
                at_least(
                    f"{shown(llm)}, {best} at a time{words}",
                    100.0,
                    interval_of(ratio[best]),
                    nothing=1.0,
                    unit="times",
                    note=f"by size of the burst: {listed(ratio.mean(), 'x', '.2g')}",
                )
            )
            if words:
                continue
            waits.append(
                at_least(
                    f"{shown(llm)}, {largest} at a time",
                    10.0,
                    interval_of(without[largest]),
                    nothing=None,
                    unit="s on average",
                    reason=f"mean blocking {listed(without.mean(), ' s', '.2g')}",
                )
            )
        shorter.append(best_of(shown(llm), ratios) if len(ratios) > 1 else ratios[0])
    batch = (
        f"a batch of up to {parameters.batch_limit} and bursts of up to {max(parameters.bursts)}"
    )
    yield best_of(
        "Without eviction head-of-line blocking can be in the order of tens of seconds",
        least_first(waits)[::-1],
        paper="tens of seconds",
        how="interactive requests wait for running batch requests to finish",
        setting=batch,
    )
    yield every(
        "Eviction makes head-of-line blocking 100 to 1000 times shorter",
        least_first(shorter),
        paper="100 to 1000 times",
        how="batch requests are evicted at the end of an iteration",
        reason="with so many running requests one of them finishes soon, and with eviction a burst still "
        "waits for the prefills of its own requests. Where memory limits the batch (Vicuna-13B), "
        "preempted requests go before the burst",
        setting=batch,
    )
