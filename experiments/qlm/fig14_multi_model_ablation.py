"""What each operation is worth with several LLMs: QLM without one of them.

Workload W_B at 250 Batch-1 requests per second (Figure 12's setting), QLM whole and with one operation
switched off. Without swapping each instance keeps one LLM, dealt out in turn over the instances. A second bar
is ours: without warm start QLM still swaps, but every swap fetches the weights from storage.

Without pulling in the order of the plan, instances take their groups in order of arrival; without eviction,
running requests stay; without load balancing, groups go to instances round robin. As far as the paper says,
"model warm start" is the operation of swapping; what else it switches off with it is not said. The bar
without warm start has host memory for one LLM only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from agents.statistics import mean_interval
from experiments.harness.claims import Claim, at_least, best_of, every, gain, more
from experiments.harness.figure import Grid, claimed, where, wide
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.qlm.loads import RELEASED, bars_by_variant, run_trace
from experiments.qlm.readings import read

if TYPE_CHECKING:
    from pandas import DataFrame, Series

FIGURE = "Figure 14"
COLD_BYTES = 140e9
"""Holds the weights of one Llama-2-70B, or of the two small LLMs, but no two large ones."""

WITHOUT: dict[str, tuple[str, dict[str, Any]]] = {
    "QLM": ("qlm", {}),
    "without pulling": ("qlm:pulling=false", {}),
    "without eviction": ("qlm:eviction=false", {}),
    "without load balancing": ("qlm:placement=round-robin", {}),
    "random placement": ("qlm:placement=random", {}),
    "without warm start": ("qlm", {"fleet.pools.a100.host_weight_bytes": COLD_BYTES}),
    "without swapping": ("qlm:swapping=false", {}),
}


SETTINGS: dict[str, dict[str, Any]] = {
    "batches of 256": {},
    "batches of 10": RELEASED,
    "a swap over 20 s": {"fleet.pools.a100.load_time_factor": 4.0},
}
"""Where the text or the released code allows them: see the text."""

USUAL = next(iter(SETTINGS))


class Ablation(Parameters):
    """Parameters of this figure."""

    batch_1_per_s: Annotated[float, paper("Figure 14's caption", gt=0)] = 250.0
    few_seeds: Annotated[int, ours("in the other settings, whose runs are long", ge=1)] = 3
    settings: Annotated[tuple[str, ...], ours("see the text", min_length=1)] = tuple(SETTINGS)
    batch_2_per_s: Annotated[float, ours("as in Figure 12", gt=0)] = 250.0
    requests: Annotated[int, paper("section 8", ge=10)] = 3500
    interval_s: Annotated[float, ours("as in Figure 12", gt=0)] = 5.0
    patience_s: Annotated[float, ours("as in Figure 12", gt=0)] = 3600.0


PARAMETERS = {
    "quick": Ablation(seeds=1, requests=1000, settings=("batches of 256",)),
    "paper": Ablation(seeds=5),
}


cases = Grid(
    {
        "scenario": ("qlm-multi",),
        "rates": lambda parameters, _: [
            {
                "rates": {"batch-1": parameters.batch_1_per_s, "batch-2": parameters.batch_2_per_s},
                "requests": parameters.requests,
                "interval_s": parameters.interval_s,
                "patience_s": parameters.patience_s,
            }
        ],
        "setting": "settings",
        "variant": lambda parameters, case: [
            {"variant": variant, "policy": policy, "changes": SETTINGS[case["setting"]] | changes}
            for variant, (policy, changes) in WITHOUT.items()
        ],
        "seed": lambda parameters, case: parameters.seed_list()[
            : None if case["setting"] == USUAL else parameters.few_seeds
        ],
    }
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One trace."""
    return [run_trace(case)]


def plot(frame: DataFrame, parameters: Ablation) -> Any:
    """Throughput and attainment of each variant."""
    figure = new_figure(10, 4.2)
    left, right = figure.subplots(1, 2)
    names, met = list(WITHOUT), "SLOs met (% of Batch-1 requests)"
    bars_by_variant(left, frame, names, "requests_per_s", "throughput (requests/s)", names=True)
    bars_by_variant(right, frame, names, "batch-1_attainment", met, names=False)
    return figure


LSOS = ("without pulling", "without eviction", "without load balancing")
SWAPPING = ("without swapping", "without warm start")
ALL = (*LSOS, *SWAPPING)
UNITS = {"throughput": "%", "SLOs": "points"}
"""Of what is lost: of throughput, and of the SLOs of Batch-1 requests."""


@claimed
def claims(frame: DataFrame, parameters: Ablation) -> Iterator[Claim]:
    """Sections 1 and 8.2."""
    by, met = (wide(frame, "variant", name) for name in ("requests_per_s", "batch-1_attainment"))
    lost = {
        "throughput": 100 * (1 - by.div(by["QLM"], axis=0)),
        "SLOs": 100 * met.rsub(met["QLM"], axis=0),
    }
    losses = (
        f"lost without {', '.join(each.removeprefix('without ') for each in ALL)}: "
        + "; ".join(f"{name} {_losses(table.mean())} {UNITS[name]}" for name, table in lost.items())
    )
    setting = f"{parameters.batch_1_per_s:g} Batch-1 requests/s"

    def loses(variant: str, name: str, sentence: str) -> Claim:
        found = mean_interval(lost[name][variant])
        return at_least(sentence, 1, found, nothing=0, unit=UNITS[name])

    yield gain(
        "Model swapping improves throughput by 300 %",
        300,
        mean_interval(100 * (by["QLM"] / by["without swapping"] - 1)),
        nothing=0,
        unit="%",
        how="instances load LLMs in turn, in place of one LLM each",
        reason="12 instances are enough for each of five LLMs to have two or three of its own",
        setting=setting,
    )
    yield every(
        "Each of the four operations contributes to latency or throughput",
        [
            best_of(f"QLM {variant}", [loses(variant, name, name) for name in UNITS])
            for variant in (*LSOS, SWAPPING[0])
        ],
        paper="each contributes (read as 1 % or a point)",
        how="each operation switched off by itself",
        reason=losses,
        setting=setting,
    )
    after = {name: max(LSOS, key=lambda each: float(lost[name][each].mean())) for name in UNITS}
    yield read(
        "Model warm start contributes the most to SLOs and throughput",
        [
            every(
                f"QLM {variant}",
                [
                    more(
                        name,
                        0,
                        mean_interval(lost[name][variant] - lost[name][after[name]]),
                        unit=f"{UNITS[name]} more than {after[name]}",
                    )
                    for name in UNITS
                ],
            )
            for variant in reversed(SWAPPING)
        ],
        paper="the most",
        how="what QLM loses if every swap fetches weights from storage, less what it loses without the next "
        "operation",
        reason=losses,
        setting=f"{setting}; leads: no warm start, in section 8.2's words",
    )
    yield every(
        "The other operations contribute primarily to the latency SLO attainment",
        [loses(variant, "SLOs", f"QLM {variant}") for variant in LSOS],
        paper="they contribute (read as a point or more)",
        how="each operation switched off by itself",
        reason=f"QLM meets {100 * met['QLM'].mean():.1f} % of the Batch-1 SLOs, and without one of these "
        f"operations {100 * met[list(LSOS)].mean().min():.1f} % or more",
        setting=setting,
    )


def _losses(lost: Series) -> str:
    return ", ".join(f"{lost[name]:.1f}" for name in ALL)
