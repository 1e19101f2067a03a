"""Unequal GPUs: throughput of mixes of A10 and A100, by who places the request groups.

Workload W_A with Vicuna-13B on 15 instances, of which a share are two A10 (24 GB each; the weights do not fit
on one) and the others one A100 (80 GB). QLM's plan places groups by the estimated speeds; round robin and
random placement deal them out evenly. Throughput is that of the whole trace, to the end of its last request.

With every placement each instance orders its own groups as QLM does. Ours: the number of instances stays the
same at every share; the paper raises that of the A100 "proportionately" and does not say from what. Three
classes of equal rates, in all 1,000 requests per instance, so that each has several groups to serve. As in
the paper instances take only from their own virtual queue here; a fourth line is QLM as elsewhere in these
pages, where an idle instance also takes from groups of others. `llm=mistral-7b` serves Mistral-7B on one A10
or A100 each instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, about, at_least
from experiments.harness.figure import SEEDS, Grid, claimed, dress, line, listed
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.qlm.loads import lines_by_policy, of_policy, serve, single_model_load
from experiments.qlm.setting import LENGTHS, gpus_per_instance, shown
from llmscale_env.scenarios.load import validate_scenario
from llmscale_env.scenarios.schema import Scenario

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 15"
CARDS = {"a10": "a10-24gb", "a100": "a100-80gb"}
STYLES = {
    "qlm:share=false": ("QLM", "C0", "o-"),
    "qlm:share=false,placement=round-robin": ("round robin", "C3", "^-"),
    "qlm:share=false,placement=random": ("random", "C1", "D-"),
    "qlm": ("QLM, idle instances help others", "C0", ".--"),
}
QLM, ROUND_ROBIN, RANDOM, _ = STYLES
TTFT_S = {"interactive": 20, "batch-1": 60, "batch-2": 3600}


class Heterogeneity(Parameters):
    """Parameters of this figure."""

    policies: Annotated[tuple[str, ...], paper("section 8.3", min_length=1)] = tuple(STYLES)
    a10_shares: Annotated[tuple[float, ...], paper("0 to 100 %, the steps are ours")] = (
        0.0,
        0.2,
        0.3,
        0.5,
        0.8,
        1.0,
    )
    llm: Annotated[str, ours("that of section 8.1; or mistral-7b")] = "vicuna-13b"
    instances: Annotated[int, ours("a third of the testbed, for time", ge=2)] = 15
    requests_per_instance: Annotated[int, ours("two batches per group and more", ge=1)] = 1000
    interactive_per_s: Annotated[float, ours("as in Figure 9", gt=0)] = 500.0
    interval_s: Annotated[float, ours("as in Figure 9", gt=0)] = 5.0
    patience_s: Annotated[float, ours("long enough for all to end", gt=0)] = 1800.0


PARAMETERS = {
    "quick": Heterogeneity(
        seeds=1, a10_shares=(0.0, 0.3, 1.0), instances=10, requests_per_instance=400
    ),
    "paper": Heterogeneity(seeds=3),
}


cases = Grid(
    {
        "load": lambda parameters, _: [
            {
                **single_model_load("equal", parameters.interactive_per_s, 0.0, 0.0),
                "requests": parameters.requests_per_instance * parameters.instances,
                "llm": parameters.llm,
                "a10_share": float(share),
                "a10": round(share * parameters.instances),
                "instances": parameters.instances,
                "interval_s": parameters.interval_s,
                "patience_s": parameters.patience_s,
            }
            for share in parameters.a10_shares
        ],
        "policy": "policies",
        "seed": SEEDS,
    }
)


def mixed(case: Mapping[str, Any]) -> Scenario:
    """Instances of both kinds (the A10 first) that serve one LLM in three classes."""
    counts = {"a10": case["a10"], "a100": case["instances"] - case["a10"]}
    pools = [
        {
            "name": name,
            "llm": case["llm"],
            "gpu": CARDS[name],
            "tp": gpus_per_instance(case["llm"], CARDS[name]),
            "v1": None,
            "max_instances": n,
            "initial_instances": n,
            "batch_limit": 256,
            "max_batch": 256,
            "pull": ["new"],
            "evicts_in_order": True,
            "async_kv": True,
        }
        for name, n in counts.items()
        if n
    ]
    return validate_scenario(
        {
            "name": "qlm-heterogeneity",
            "horizon_s": case["patience_s"],
            "control_interval_s": case["interval_s"],
            "classes": [
                {"name": name, "ttft_s": ttft_s, "itl_s": 10, "priority": int(ttft_s > 20)}
                for name, ttft_s in TTFT_S.items()
            ],
            "workload": {
                "streams": [
                    {
                        "name": name,
                        "llm": case["llm"],
                        "slo_class": name,
                        "lengths": LENGTHS,
                        "rate_per_s": rate,
                    }
                    for name, rate in case["rates"].items()
                ]
            },
            "fleet": {
                "max_gpus": sum(pool["tp"] * pool["max_instances"] for pool in pools),
                "group_queues": 256,
                "queues": [{"name": "new"}],
                "pools": pools,
                "routes": [{"slo_class": "*", "kind": "shared-queue", "queue": "new"}],
            },
        }
    )


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One trace; `a10_requests`: share of the requests that ended on A10."""
    row, table = serve(case, mixed(case))
    return [{**row, "a10_requests": float((table["instance"] < case["a10"]).mean())}]


def plot(frame: DataFrame, parameters: Heterogeneity) -> Any:
    """Throughput, the gain over even placement, and how many requests went to A10."""
    figure = new_figure(12.5, 4)
    left, middle, right = figure.subplots(1, 3)
    policies = parameters.policies
    look: dict[str, Any] = {"along": 0.01, "ms": 4}
    for axes, column, scale in ((left, "requests_per_s", 1), (right, "a10_requests", 100)):
        lines_by_policy(
            axes, frame, policies, "a10_share", column, scale, STYLES, band=None, **look
        )
    for policy in (ROUND_ROBIN, RANDOM) if QLM in policies else ():
        if policy in policies:
            name, colour, style = STYLES[policy]
            gain = _gain(frame, policy).melt(value_name="gain")
            own: dict[str, Any] = {"color": colour, "label": f"over {name}", "edge": None}
            line(middle, gain, "a10_share", "gain", style, **look, **own)
    fair = _fair_share(frame)
    if fair is not None:
        shares, parts = 100 * np.array(list(fair)), 100 * np.array(list(fair.values()))
        right.plot(shares, parts, "k:", label="by speed")
    right.plot([0, 100], [0, 100], color="grey", lw=0.8, label="evenly")
    middle.axhline(0, color="grey", lw=0.8)
    for axes, label in (
        (left, "throughput (requests/s)"),
        (middle, "QLM's gain in throughput (%)"),
        (right, "requests served by A10 (%)"),
    ):
        xlabel = f"instances of A10 (% of {parameters.instances})"
        dress(axes, xlabel=xlabel, ylabel=label, legend={"fontsize": 7})
    left.set_ylim(bottom=0)
    left.set_title("; ".join(shown(parameters.llm, card) for card in CARDS.values()), fontsize=8)
    return figure


def _speed(frame: DataFrame, policy: str) -> DataFrame:
    """Throughput by seed (rows) and share (columns)."""
    return of_policy(frame, policy, "a10_share", "requests_per_s")


def _gain(frame: DataFrame, policy: str) -> DataFrame:
    """By how many per cent QLM has more of it."""
    return 100 * (_speed(frame, QLM) / _speed(frame, policy) - 1)


def _fair_share(frame: DataFrame) -> dict[float, float] | None:
    """Requests for A10 in proportion to speed, from the two homogeneous clusters under QLM."""
    speed = _speed(frame, QLM).mean() if (frame["policy"] == QLM).any() else {}
    if 0.0 not in speed or 1.0 not in speed:
        return None
    slow, fast = float(speed[1.0]), float(speed[0.0])
    return {
        float(s): s * slow / (s * slow + (1 - s) * fast)
        for s in sorted(frame["a10_share"].unique())
    }


@claimed
def claims(frame: DataFrame, parameters: Heterogeneity) -> Iterator[Claim]:
    """Section 8.3."""
    fair = _fair_share(frame)
    mixed_shares = [s for s in parameters.a10_shares if 0.2 <= s <= 0.5]
    if fair is None or not mixed_shares:
        return
    mine = frame[(frame["policy"] == QLM) & frame["a10_share"].isin(mixed_shares)]
    ratio = (mine["a10_requests"] / mine["a10_share"].map(fair)).groupby(mine["seed"]).mean()
    setting = "mean of 20 to 50 % A10"
    yield about(
        "The global scheduler assigns proportionally fewer requests to A10",
        1.0,
        mean_interval(ratio),
        nothing=None,
        unit="x the share that their speed asks for",
        paper="proportionally",
        how="the plan places groups by the profiled speed of each GPU",
        note="; ".join(
            f"{100 * s:g} % A10: {100 * part:.0f} % of requests, by speed {100 * fair[float(s)]:.0f} %"
            for s, part in mine.groupby("a10_share")["a10_requests"].mean().items()
        ),
        setting=setting,
    )
    gains = {p: _gain(frame, p) for p in (ROUND_ROBIN, RANDOM) if p in parameters.policies}
    notes = {
        p: f"gain {listed(gain.mean(), ' %', '+.0f', scale=100, place=' %')}"
        for p, gain in gains.items()
    }
    if ROUND_ROBIN in gains:
        yield at_least(
            "Round robin loads A10 and A100 equally, so that the queue drains later than with QLM",
            1,
            mean_interval(gains[ROUND_ROBIN][mixed_shares].mean(axis=1)),
            nothing=0,
            unit="% more throughput with QLM",
            paper="later",
            how="both order each instance's groups alike; only the plan knows the speeds",
            note=notes[ROUND_ROBIN],
            setting=setting,
        )
    if RANDOM in gains:
        gain = gains[RANDOM]
        inside, ends = gain[mixed_shares].mean(axis=1), gain[[0.0, 1.0]].mean(axis=1)
        yield at_least(
            "The improvement over random placement is 2 to 5 times higher at 20 to 50 % A10 than "
            "at 0 or 100 %",
            2,
            mean_interval(inside / ends) if (ends > 0).all() else mean_interval(0 * ends),
            nothing=1,
            unit="x",
            paper="2 to 5 x",
            how="only QLM's plan knows the speeds",
            reason="random placement gives some instances more groups than others, so QLM gains where all "
            "GPUs are alike"
            if (ends > 0).all()
            else "there is no gain at the ends, so no ratio",
            note=notes[RANDOM],
            setting=setting,
        )
