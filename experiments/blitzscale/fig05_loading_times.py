"""Times that the text states, on the links of Figure 5 and Table 1.

How long weights take to an idle GPU from another host, from the GPUs of its own host and from its SSD, as
bytes over the speed of the links. The time that the integer programme of zigzag scheduling takes to solve is
measured, too. Loading times have no cost of software in them and so are lower bounds, where the paper's are
measured.

Layers come one after the other, and a chain (of seven over NVLink) adds one layer's time per hop. The
programme (32 layers, a dozen batches, corrected C3) is timed over several load times per layer: wall time of
PuLP and its solver on the machine that the result names, the median of some repetitions, measured anew by
each command; with several workers other programmes run beside it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from baselines.blitzscale.zigzag import zigzag
from baselines.solver import SolverSettings
from experiments.harness.claims import Claim, about, at_most, every, exact
from experiments.harness.figure import claimed, dress
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from llmscale_env.cluster.cards import llm_card
from llmscale_env.cluster.loading import NetworkConfig
from llmscale_env.cluster.machines import machine
from llmscale_env.cluster.multicast import Plan, targets_of, tree
from llmscale_env.cluster.multicast_time import done_s, layer_times_ps
from llmscale_env.cluster.topology import FROM_SSD, PoolLayout, topology

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 5"

Load = Literal["network", "nvlink-7b", "nvlink-8b", "ssd-7b", "ssd-70b"]

# What is loaded: words, LLM, tensor parallelism, machine, from where, the paper's seconds, where it says so.
LOADS = {
    "network": ("7B from another host, 200 Gbps RDMA", "llama-2-7b", 1, "figure-5", "network", 0.65, "5.1"),
    "nvlink-7b": ("7B to seven neighbours, NVLink", "llama-2-7b", 1, "blitzscale-a", "nvlink", 0.105, "5.1"),
    "nvlink-8b": ("8B to seven neighbours, NVLink", "llama-3.1-8b", 1, "blitzscale-a", "nvlink", 0.120, "4"),
    "ssd-7b": ("7B from a 10 Gbps SSD", "llama-2-7b", 1, "blitzscale-a", "ssd", 11.2, "1"),
    "ssd-70b": ("70B on 4 GPUs from 10 Gbps SSDs", "llama-2-70b", 4, "blitzscale-a", "ssd", 28.0, "6.1"),
}  # fmt: skip
ILP_S = 0.040


class LoadingTimes(Parameters):
    """Parameters of these times."""

    seeds: Annotated[int, ours("nothing is random", ge=1, le=1)] = 1
    loads: Annotated[tuple[Load, ...], ours("all that the text states")] = get_args(Load)
    layers: Annotated[int, paper("section 5.2: 32 for Llama2-7B", ge=1)] = 32
    batches: Annotated[int, paper("section 5.2: 'a dozen or so'", ge=1)] = 12
    load_times: Annotated[tuple[float, ...], ours("6 is Figure 12's; others around it")] = (
        1, 2, 4, 6, 8, 12,
    )  # fmt: skip
    repeats: Annotated[int, ours("of each programme; the median counts", ge=1)] = 5


PARAMETERS = {"quick": LoadingTimes(repeats=3), "paper": LoadingTimes()}


def cases(parameters: LoadingTimes) -> list[dict[str, Any]]:
    """A run per load, and one for each programme."""
    (seed,) = parameters.seed_list()
    programme = parameters.model_dump(include={"layers", "batches", "repeats"})
    return [
        *({"seed": seed, "kind": "load", "load": load} for load in parameters.loads),
        *(
            {
                "seed": seed,
                "kind": "programme",
                "timed": True,
                "load_time": float(each),
                **programme,
            }
            for each in parameters.load_times
        ),
    ]


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Seconds."""
    if case["kind"] == "load":
        return [{"seconds": load_s(case["load"]), "optimal": None}]
    settings = SolverSettings(gap=0.0)
    taken = []
    for _ in range(case["repeats"]):
        begin = time.perf_counter()
        found = zigzag(case["layers"], case["load_time"], case["batches"], settings=settings)
        taken.append(time.perf_counter() - begin)
    return [{"seconds": statistics.median(taken), "optimal": found.optimal}]


def load_s(name: str) -> float:
    """Seconds until the last GPU has all weights."""
    _, llm, tp, where, source, _, _ = LOADS[name]
    card, host = llm_card(llm), machine(where).gpus_per_host
    per_host = host // tp
    found = topology(NetworkConfig.model_validate(where), host, [PoolLayout(tp, 2 * per_host)])
    plan = {
        "network": Plan(((0, per_host),)),
        "nvlink": tree(0, targets_of(found, range(1, per_host)), 1),
        "ssd": Plan(((FROM_SSD, 0),)),
    }[source]
    return float(done_s(layer_times_ps(found, plan, card.weight_bytes, card.layers)).max())


def plot(frame: DataFrame, parameters: LoadingTimes) -> Any:
    """Left: loads, ours and the paper's. Right: the programme by load time."""
    figure = new_figure(11.0, 3.8)
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    loads = frame[frame["kind"] == "load"].set_index("load")["seconds"]
    names = [name for name in LOADS if name in loads.index]
    for k, name in enumerate(names):
        left.plot(
            loads[name],
            k,
            "o",
            color="C0",
            label="ours: bytes over link speeds" if k == 0 else None,
        )
        left.plot(LOADS[name][5], k, "k*", ms=10, label="the paper, measured" if k == 0 else None)
    left.set_yticks(range(len(names)), [LOADS[name][0] for name in names])
    dress(
        left,
        log="x",
        ylim=(len(names) - 0.5, -0.5),
        xlabel="seconds until all weights are there",
        legend={},
    )
    programmes = frame[frame["kind"] == "programme"].sort_values("load_time")
    right.plot(
        programmes["load_time"], 1e3 * programmes["seconds"].astype(float), "o-", ms=4, label="here"
    )
    right.axhline(1e3 * ILP_S, color="k", ls="--", lw=1, label="the paper: less than this")
    dress(
        right,
        xlabel="time to load a layer (executions of a layer)",
        ylabel=f"ms to solve, {parameters.layers} layers, {parameters.batches} batches",
        bottom=0,
        legend={},
    )
    return figure


SENTENCES: dict[str, tuple[Load, ...]] = {
    "Llama-2-7B takes 650 ms over 200 Gbps RDMA, and 105 ms over NVLink": ("network", "nvlink-7b"),
    "Broadcasting Llama-3-8B to the GPUs of a machine takes 120 ms": ("nvlink-8b",),
    "Loading Llama-2-7B takes 11.2 s with a 10 Gbps SSD": ("ssd-7b",),
    "A 70B instance of 4 GPUs needs 28 s to load its parameters": ("ssd-70b",),
}


@claimed
def claims(frame: DataFrame, parameters: LoadingTimes) -> Iterator[Claim]:
    """Seconds to load, milliseconds to solve."""
    loads = frame[frame["kind"] == "load"].set_index("load")["seconds"]
    for sentence, names in SENTENCES.items():
        parts = [
            about(LOADS[name][0], LOADS[name][5], exact(float(loads[name])), nothing=None, unit="s")
            for name in names
            if name in parameters.loads
        ]
        if parts:
            yield every(
                sentence,
                parts,
                paper=", ".join(part.paper for part in parts),
                how="bytes over link speed, layer by layer",
                reason="ours is bytes over link speed; what the paper measures beyond that is software",
            )
    programme = frame[frame["kind"] == "programme"]
    seconds = programme["seconds"].astype(float)
    yield at_most(
        "The integer programme takes less than 40 ms to solve for Llama-2-7B",
        1e3 * ILP_S,
        exact(1e3 * seconds.max()),
        nothing=None,
        unit="ms",
        how=f"the slowest of {len(seconds)} load times, each the median of {parameters.repeats} solutions, "
        f"{int(programme['optimal'].astype(bool).sum())} proved optimal",
        setting=f"{parameters.layers} layers, {parameters.batches} batches",
        reason="time of PuLP and its solver on the machine that the result names",
    )
