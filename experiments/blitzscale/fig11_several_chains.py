"""Why several chains: what a live target sends is in the way of what it forwards.

Two decode instances have the weights and may send; two prefill instances are to load them, and work while
they load, so that KV caches leave them. With one source Algorithm 1 makes one chain, with two sources two.
Left: time until both have loaded; right: what the first target's KV caches get while it forwards.

Hosts have one GPU, at a switch whose links carry both directions at once. In one chain the first target
forwards weights over the link that its KV caches leave by; in two chains no target forwards. Links are shared
max-min fairly, and KV caches ask for a part of a link, from nothing to all of it. The dotted line (ours) is
what an instance sends that prefills at full speed and executes half of the layers, the most that live scaling
lets the target do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from baselines.blitzscale.trigger import prefill_tokens_per_s
from experiments.harness.claims import Claim, about, exact, exactly
from experiments.harness.figure import SEEDS, Grid, claimed, dress
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from llmscale_env.cluster.cards import llm_card
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.cluster.loading import GBIT_PER_S
from llmscale_env.cluster.multicast import scale_plan, sources_of, targets_of
from llmscale_env.cluster.multicast_time import done_s, fair_rates, layer_times_ps
from llmscale_env.cluster.topology import Links, Topology, switch

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 11"
GPU = "a100-80gb"
CHAINS = {1: "one chain (one source)", 2: "two chains (two sources)"}
# Slots of the cluster: two decode instances, then two targets; a target's KV caches go to one each.
DECODES, TARGETS = (0, 1), (2, 3)


class SeveralChains(Parameters):
    """Parameters of this figure."""

    seeds: Annotated[int, ours("nothing is random", ge=1, le=1)] = 1
    llm: Annotated[str, paper("section 5.1: Llama2-7B")] = "llama-2-7b"
    link_gbps: Annotated[float, paper("Table 1: RDMA", gt=0)] = 100.0
    steps: Annotated[int, ours("parts of a link that KV caches ask for", ge=2)] = 20


PARAMETERS = {"quick": SeveralChains(), "paper": SeveralChains(steps=50)}


def kv_part(llm: str, link_gbps: float) -> float:
    """Part of a link that KV caches of half the layers take at full prefill speed."""
    speed = prefill_tokens_per_s(iteration_time_model(llm, GPU, 1))
    return speed * llm_card(llm).kv_bytes_per_token / 2 / (link_gbps * GBIT_PER_S)


def _parts(parameters: SeveralChains, case: Mapping[str, Any]) -> list[float]:
    """Equal steps of a link, and what an instance sends that executes half of the layers."""
    parts = {*np.linspace(0, 1, parameters.steps + 1).round(6).tolist()}
    return sorted({*parts, round(kv_part(parameters.llm, parameters.link_gbps), 6)})


cases = Grid({"seed": SEEDS, "chains": CHAINS, "kv_part": _parts}, keep=("llm", "link_gbps"))


def with_kv(found: Topology, part: float) -> tuple[Topology, list[Links]]:
    """The cluster with a path for each target's KV caches, which ask for a part of its link."""
    links = found.links
    if part == 0:
        return found, []
    asked = tuple(max(1, round(part * links.capacity[links.out_links[t][0]])) for t in TARGETS)
    n = len(links.capacity)
    wider = links._replace(capacity=(*links.capacity, *asked))
    paths = [
        (*links.out_links[target], *links.in_links[decode], n + k)
        for k, (target, decode) in enumerate(zip(TARGETS, DECODES, strict=True))
    ]
    return Topology(wider, found.nvlink), paths


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per target."""
    bare = switch([case["link_gbps"] * GBIT_PER_S] * 4)
    found, kv = with_kv(bare, case["kv_part"])
    plan = scale_plan(
        sources_of(found, DECODES[: case["chains"]]),
        targets_of(found, TARGETS),
        nvlink=found.nvlink,
    )
    card = llm_card(case["llm"])

    def seconds(where: Topology, beside: Sequence[Links]) -> dict[int, float]:
        came = layer_times_ps(where, plan, card.weight_bytes, card.layers, beside=beside)
        return dict(zip(plan.slots, map(float, done_s(came)), strict=True))

    alone, beside = seconds(bare, []), seconds(found, kv)
    weights = [found.path(sender, slot) for sender, slot in plan.edges]
    rates = fair_rates(found.links.capacity, [*weights, *kv])[len(weights) :]
    asked = [found.links.capacity[path[-1]] for path in kv]
    rows = []
    for k, target in enumerate(TARGETS):
        fed = [slot for sender, slot in plan.edges if sender == target]
        got = rates[k] / asked[k] if kv else 1.0
        rows.append(
            {
                "target": k + 1,
                "forwards_to": len(fed),
                "seconds": beside[target],
                "alone_s": alone[target],
                "kv_got": case["kv_part"] * got,
                "disturbed": got < 1 - 1e-6
                or any(beside[slot] > alone[slot] * (1 + 1e-6) for slot in fed),
            }
        )
    return rows


def plot(frame: DataFrame, parameters: SeveralChains) -> Any:
    """Left: loading. Right: what KV caches get."""
    figure = new_figure(10.4, 4.0)
    left, right = figure.subplots(1, 2)
    part = kv_part(parameters.llm, parameters.link_gbps)
    for k, (chains, words) in enumerate(CHAINS.items()):
        mine = frame[frame["chains"] == chains].astype({"seconds": float, "kv_got": float})
        last = mine.groupby("kv_part")["seconds"].max()
        left.plot(last.index, last, lw=2, color=f"C{k}", ls=("-", "--")[k], label=words)
        first = mine[mine["target"] == 1].set_index("kv_part")["kv_got"]
        right.plot(first.index, first, lw=2, color=f"C{k}", ls=("-", "--")[k], label=words)
    for axes in (left, right):
        axes.axvline(part, color="k", ls=":", lw=1, label="half the layers at full prefill speed")
        dress(axes, xlabel="part of a link that a target's KV caches ask for", bottom=0, legend={})
    left.set_ylabel(f"s until both have {llm_card(parameters.llm).name}")
    right.set_ylabel("part of a link that T1's KV caches get")
    return figure


@claimed
def claims(frame: DataFrame, parameters: SeveralChains) -> Iterator[Claim]:
    """Who can scale live without interference."""
    wanted = kv_part(parameters.llm, parameters.link_gbps)
    part = min(frame["kv_part"].unique(), key=lambda each: abs(each - wanted))
    mine = frame[frame["kv_part"] == part].astype({"seconds": float, "alone_s": float})
    for chains, free, sentence in (
        (1, {2}, "With a single chain only T2 can scale without interference"),
        (2, {1, 2}, "With two chains both T1 and T2 can scale live without interference"),
    ):
        rows = mine[mine["chains"] == chains]
        found = set(rows[~rows["disturbed"].astype(bool)]["target"])
        yield exactly(
            sentence,
            len(TARGETS),
            exact(sum((k in found) == (k in free) for k in (1, 2))),
            unit="of 2 targets as the paper says",
            paper=" and ".join(f"T{k}" for k in sorted(free)),
            how="a target is disturbed if its KV caches get less than they ask for, or what it forwards "
            "comes later than without them",
            setting=f"KV caches on {100 * part:.0f} % of a link",
            note=f"the last layer comes {(rows['seconds'] / rows['alone_s']).max():.2f} times as late as "
            "without KV caches",
        )
    alone = (
        frame[frame["kv_part"] == 0].astype({"seconds": float}).groupby("chains")["seconds"].max()
    )
    yield about(
        "A single chain has a similar multicast time",
        1,
        exact(alone[1] / alone[2]),
        nothing=None,
        unit="times that of two chains",
        paper="similar",
        how="no target works meanwhile; the second hop of one chain adds the time of a layer",
    )
