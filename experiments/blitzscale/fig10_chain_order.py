"""A serial forwarding chain against other plans, and the order in it.

Left: the time to send Llama-2-7B from one source over equal links to more and more targets. Middle: the
instances that serve over time in both orders, where T2's link is twice as fast as T1's (the paper's (b)).
Right: Algorithm 1 against the best of all plans on random links (ours).

Hosts have one GPU each, at a switch, each with a link of its own speed, both ways at once; a target forwards
a layer as soon as it has it, and flows share links max-min fairly. On the left a chain stands beside a binary
tree and fan-out from the source. On the right every forest is tried, by the time until the last target has
loaded and by the mean over the targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, about, every, exact, more
from experiments.harness.figure import claimed, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from llmscale_env.cluster.cards import llm_card
from llmscale_env.cluster.loading import GBIT_PER_S
from llmscale_env.cluster.multicast import (
    Plan,
    all_forests,
    fan_out,
    scale_plan,
    sources_of,
    targets_of,
    tree,
)
from llmscale_env.cluster.multicast_time import done_s, layer_times_ps
from llmscale_env.cluster.topology import Topology, switch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pandas import DataFrame

FIGURE = "Figure 10"
PLANS = {
    "chain": "chain (Algorithm 1)",
    "tree": "binary tree",
    "fan-out": "fan-out from the source",
}
ORDERS = {"fast-first": "S, T2, T1 (faster link first)", "slow-first": "S, T1, T2"}
AIMS = {"last": "time until the last has loaded", "mean": "mean time over the targets"}


class ChainOrder(Parameters):
    """Parameters of this figure."""

    seeds: Annotated[int, ours("random clusters against the best plan", ge=1)] = 40
    llm: Annotated[str, paper("section 5.1: Llama2-7B")] = "llama-2-7b"
    link_gbps: Annotated[float, paper("Table 1: RDMA", gt=0)] = 100.0
    targets: Annotated[tuple[int, ...], ours("the figure draws 3")] = (
        1,
        2,
        3,
        4,
        6,
        8,
        12,
        16,
        24,
        31,
    )
    many: Annotated[int, ours("GPUs of cluster A less one, without NVLink", ge=2)] = 31
    few: Annotated[int, paper("Figure 10 (a)", ge=1)] = 3
    faster: Annotated[float, paper("section 5.1: 'the downtime is only half'", gt=1)] = 2.0
    random_sources: Annotated[int, ours("of a random cluster", ge=1)] = 2
    random_targets: Annotated[int, ours("five take minutes", ge=1, le=5)] = 4
    random_layers: Annotated[int, ours("fewer than 32 for time", ge=1)] = 16
    slowest_gbps: Annotated[float, ours("Table 2: 12.5", gt=0)] = 12.5
    fastest_gbps: Annotated[float, ours("Table 2: 200", gt=0)] = 200.0


PARAMETERS = {"quick": ChainOrder(seeds=10, random_layers=8), "paper": ChainOrder()}


def cases(parameters: ChainOrder) -> list[dict[str, Any]]:
    """A run per number of targets, one per order, one per random cluster."""
    seeds = parameters.seed_list()
    common = parameters.model_dump(include={"llm", "link_gbps"})
    chance = parameters.model_dump(
        include={
            "llm", "random_sources", "random_targets", "random_layers", "slowest_gbps", "fastest_gbps",
        }
    )  # fmt: skip
    return [
        *({"seed": seeds[0], "part": "targets", "n": int(n), **common} for n in parameters.targets),
        {"seed": seeds[0], "part": "order", "faster": parameters.faster, **common},
        *({"seed": seed, "part": "optimum", **chance} for seed in seeds),
    ]


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of a part."""
    return {"targets": _targets, "order": _order, "optimum": _optimum}[case["part"]](case)


def finished_s(found: Topology, plan: Plan, llm: str, layers: int = 0) -> NDArray[np.float64]:
    """(n_targets,) seconds until each target has loaded, as in `plan.slots`."""
    card = llm_card(llm)
    return done_s(layer_times_ps(found, plan, card.weight_bytes, layers or card.layers))


def _targets(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    n = case["n"]
    found = switch([case["link_gbps"] * GBIT_PER_S] * (n + 1))
    targets = targets_of(found, range(1, n + 1))
    plans = {
        "chain": scale_plan(sources_of(found, [0]), targets, nvlink=found.nvlink),
        "tree": tree(0, targets),
        "fan-out": fan_out(0, targets),
    }
    return [
        {"what": name, "seconds": float(finished_s(found, plan, case["llm"]).max())}
        for name, plan in plans.items()
    ]


def _order(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    slow = case["link_gbps"] * GBIT_PER_S
    found = switch([slow * case["faster"], slow, slow * case["faster"]])
    greedy = scale_plan(sources_of(found, [0]), targets_of(found, [1, 2]), nvlink=found.nvlink)
    orders = {"fast-first": Plan(((0, 2), (2, 1))), "slow-first": Plan(((0, 1), (1, 2)))}
    return [
        {
            "what": name,
            "target": slot,
            "seconds": float(seconds),
            "greedy": plan == greedy,
        }
        for name, plan in orders.items()
        for slot, seconds in zip(plan.slots, finished_s(found, plan, case["llm"]), strict=True)
    ]


def _optimum(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    rng = np.random.default_rng(case["seed"])
    n_sources, n = case["random_sources"], case["random_targets"]
    low, high = np.log([case["slowest_gbps"], case["fastest_gbps"]])
    speeds = np.exp(rng.uniform(low, high, n_sources + n)) * GBIT_PER_S
    found = switch([float(speed) for speed in speeds])
    sources, slots = range(n_sources), range(n_sources, n_sources + n)

    def both(plan: Plan) -> dict[str, float]:
        seconds = finished_s(found, plan, case["llm"], case["random_layers"])
        return {"last": float(seconds.max()), "mean": float(seconds.mean())}

    made = scale_plan(sources_of(found, sources), targets_of(found, slots), nvlink=found.nvlink)
    naive = both(fan_out(0, targets_of(found, slots)))
    all_plans = [both(plan) for plan in all_forests(sources, slots)]
    mine = both(made)
    return [
        {
            "what": aim,
            "seconds": mine[aim],
            "best_s": min(each[aim] for each in all_plans),
            "naive_s": naive[aim],
            "plans": len(all_plans),
        }
        for aim in AIMS
    ]


def gaps(frame: DataFrame, aim: str) -> DataFrame:
    """Random clusters with `gap`, the time of Algorithm 1 over the least, and `naive_gap`."""
    mine = where(frame, part="optimum", what=aim)
    return mine.assign(
        gap=mine["seconds"].astype(float) / mine["best_s"].astype(float),
        naive_gap=mine["naive_s"].astype(float) / mine["best_s"].astype(float),
    )


def serving(frame: DataFrame, order: str) -> tuple[list[float], list[int]]:
    """Times at which another instance serves, and how many do from then on."""
    mine = where(frame, part="order", what=order)
    times = sorted(mine["seconds"].astype(float))
    return [0.0, *times], list(range(len(times) + 1))


def plot(frame: DataFrame, parameters: ChainOrder) -> Any:
    """Three panels, see the module."""
    figure = new_figure(13.0, 4.0)
    left, middle, right = figure.subplots(1, 3)
    card = llm_card(parameters.llm)
    alone_s = card.weight_bytes / (parameters.link_gbps * GBIT_PER_S)
    part = where(frame, part="targets")
    for name, words in PLANS.items():
        mine = where(part, what=name).sort_values("n")
        left.plot(mine["n"].astype(int), mine["seconds"].astype(float), "o-", ms=4, label=words)
    left.axhline(alone_s, color="k", ls="--", lw=1, label="|M| / B")
    left.set_yscale("log")
    left.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    left.minorticks_off()
    left.set_ylim(0.8 * alone_s, 1.3 * part["seconds"].astype(float).max())
    left.set_xlabel("targets")
    left.set_ylabel("s until the last has loaded")
    left.set_title(f"{card.name} over {parameters.link_gbps:g} Gbps", fontsize=10)
    for k, (order, words) in enumerate(ORDERS.items()):
        times, count = serving(frame, order)
        end = 1.25 * max(times[-1], alone_s)
        middle.step([*times, end], [*count, count[-1]], where="post", lw=2, alpha=0.8,
                    ls=("-", "--")[k], label=words)  # fmt: skip
    middle.set_yticks([0, 1, 2])
    middle.set_xlabel("s from the start")
    middle.set_ylabel("new instances that serve")
    middle.set_title(f"T2's link is {parameters.faster:g} times T1's", fontsize=10)
    for aim, words in AIMS.items():
        ratio = np.sort(gaps(frame, aim)["gap"])
        right.plot(ratio, (1 + np.arange(len(ratio))) / len(ratio), "o-", ms=3, label=words)
    right.axvline(1, color="k", ls="--", lw=1, label="best of all plans")
    right.set_xlabel("time of Algorithm 1 / of the best plan")
    right.set_ylabel("share of random clusters")
    right.set_title(
        f"{parameters.random_sources} sources, {parameters.random_targets} targets, random links",
        fontsize=10,
    )
    for axes in (left, middle, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return figure


@claimed
def claims(frame: DataFrame, parameters: ChainOrder) -> Iterator[Claim]:
    """Irrespective of the targets; half the downtime; near the optimum."""
    part = where(frame, part="targets").astype({"seconds": float})
    of = part.set_index(["what", "n"])["seconds"].to_dict()
    numbers = [
        n for n in (parameters.many, parameters.few) if ("chain", n) in of and ("chain", 1) in of
    ]
    if numbers:
        yield every(
            "With a chain the transmission time is irrespective of the instances scaled",
            [
                about(
                    f"{n} targets",
                    1,
                    exact(of["chain", n] / of["chain", 1]),
                    nothing=of["fan-out", n] / of["fan-out", 1],
                    unit="times the time to one",
                )
                for n in numbers
            ],
            paper="irrespective of them",
            how="each target forwards a layer as soon as it has it; flows share links max-min fairly",
            setting="equal links; the paper draws 3 targets, 31 are cluster A's other GPUs",
            reason="every hop adds the time of one layer, 1 + (n - 1) / "
            f"{llm_card(parameters.llm).layers}: "
            + ", ".join(f"{of['chain', n] / of['chain', 1]:.3g} times to {n}" for n in numbers),
            note="; ".join(
                f"fan-out to {n} takes {of['fan-out', n] / of['fan-out', 1]:.3g} times"
                for n in numbers
            ),
        )
    order = where(frame, part="order").astype({"seconds": float})
    times = where(order, target=2).set_index("what")["seconds"]
    made = where(order, what="fast-first")["greedy"].astype(bool).all()
    yield about(
        "With the faster link first the downtime is only half",
        0.5,
        exact(times["fast-first"] / times["slow-first"]),
        nothing=1,
        unit="of the time",
        how="time until the target with the faster link serves; Algorithm 1 "
        f"makes {'that' if made else 'another'} plan",
        setting=f"one source, two targets, one link {parameters.faster:g} times as fast",
    )
    last, mean = gaps(frame, "last"), gaps(frame, "mean")
    optimal = last["gap"] < 1 + 1e-9
    within = f"{last['gap'].mean():.2f} times the best plan's time, {last['gap'].max():.2f} at most"
    yield more(
        "Serial forwarding chains typically are optimal in broadcast time",
        50,
        mean_interval(100 * optimal.astype(float)),
        unit="% of clusters",
        paper="typically optimal (read as in more than half)",
        how="Algorithm 1 against every forest, until the last target has loaded",
        setting=f"{parameters.random_sources} sources, {parameters.random_targets} targets, random links",
        reason=f"the best in {optimal.sum()} of {len(last)} clusters, but near it in all: {within}",
        note=f"{within}; by the mean over targets {mean['gap'].mean():.3f} times; fan-out "
        f"{last['naive_gap'].mean():.2f} times",
    )
