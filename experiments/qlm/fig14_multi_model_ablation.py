"""What each operation is worth with several LLMs: QLM without one of them.

Workload W_B at 250 Batch-1 requests per second (Figure 12's setting), QLM whole and with one operation
switched off. Without swapping each instance keeps one LLM. Without warm start QLM still swaps, but every swap
fetches the weights from storage: its bar has host memory for one LLM only.

Without pulling in the order of the plan, instances take their groups in order of arrival; without eviction,
running requests stay; without load balancing, groups go to instances round robin, or at random as new groups
of the released code do. As far as the paper says, "model warm start" is the operation of swapping; what else
it switches off with it is not said. Nor is how instances are given to LLMs where none swaps: by the work of
their requests, or in turn (three, three, two, two, two). That each LLM has one instance alone, so that seven
of twelve stay idle, is ours, and no comparison at equal service.

Three settings: batches of up to 256 (vLLM's default); of up to 10 as in the released code, where the paper's
3,500 requests wait for places in batches; swaps four times as long, so that one from host memory takes longer
than 20 s, as section 8 says of QLM's ("the model swapping time exceeds the interactive request SLO (20s)").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from agents.statistics import mean_interval
from experiments.harness.claims import (
    Claim,
    asked,
    at_least,
    best_of,
    every,
    gain,
    more,
    settings,
)
from experiments.harness.figure import Grid, claimed, where, wide
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.qlm.loads import RELEASED_BATCH, bars_by_variant, run_trace
from llmscale_env.scenarios.load import load_scenario

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 14"
COLD_BYTES = 140e9
"""Holds the weights of one Llama-2-70B, or of the two small LLMs, but no two large ones."""

QLM, BY_WORK, IN_TURN, ALONE, COLD = (
    "QLM",
    "without swapping",
    "without swapping, in turn",
    "without swapping, an instance per LLM",
    "without warm start",
)
WITHOUT: dict[str, tuple[str, dict[str, Any]]] = {
    QLM: ("qlm", {}),
    "without pulling": ("qlm:pulling=false", {}),
    "without eviction": ("qlm:eviction=false", {}),
    "without load balancing": ("qlm:placement=round-robin", {}),
    "random placement": ("qlm:placement=random", {}),
    COLD: ("qlm", {"host_weight_bytes": COLD_BYTES}),
    BY_WORK: ("qlm:swapping=false", {}),
    IN_TURN: ("qlm", {}),
    ALONE: ("qlm", {}),
}
"""Policy, and fields of the pool."""
DEALT = {IN_TURN: (3, 3, 2, 2, 2), ALONE: (1, 1, 1, 1, 1)}
"""Instances of each LLM, in pools that do not swap."""
USUAL, TEN, LONG = "batches of 256", "batches of 10", "a swap over 20 s"
SETTINGS: dict[str, dict[str, Any]] = {
    USUAL: {},
    TEN: {"batch_limit": RELEASED_BATCH},
    LONG: {"load_time_factor": 4.0},
}
"""Fields of the pool."""
SOURCES = {USUAL: "vLLM's default", TEN: "released code", LONG: "section 8"}
SWAPS = (QLM, COLD, BY_WORK, IN_TURN)
HAS = {
    USUAL: tuple(WITHOUT),
    TEN: tuple(name for name in WITHOUT if name not in ("random placement", ALONE)),
    LONG: SWAPS,
}
"""Variants of a setting: with long swaps those that swaps concern; in batches of 10 runs are long."""


def _variants(_: Ablation, case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each with its policy and its changes to the scenario."""
    found = []
    for variant, (policy, fields) in WITHOUT.items():
        if variant not in HAS[case["setting"]]:
            continue
        changed = SETTINGS[case["setting"]] | fields
        changes: dict[str, Any] = {f"fleet.pools.a100.{k}": v for k, v in changed.items()}
        if variant in DEALT:
            changes = {"fleet.pools": _pools(case["scenario"], DEALT[variant], changed)}
        found.append({"variant": variant, "policy": policy, "changes": changes})
    return found


def _pools(
    scenario: str, instances: tuple[int, ...], fields: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The scenario's pool cut into one per LLM, with so many instances each."""
    pool = load_scenario(scenario).fleet.pools[0]
    plain = pool.model_dump(mode="json", exclude_unset=True) | {"swaps_to": []} | dict(fields)
    return [
        {**plain, "name": f"a100-{k}", "llm": llm, "max_instances": n, "initial_instances": n}
        for k, (llm, n) in enumerate(zip(pool.llms, instances, strict=True))
    ]


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
        "variant": _variants,
        "seed": lambda parameters, case: parameters.seed_list()[
            : None if case["setting"] == USUAL else parameters.few_seeds
        ],
    }
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One trace."""
    return [run_trace(case)]


def plot(frame: DataFrame, parameters: Ablation) -> Any:
    """Throughput and attainment of each variant; a row per setting."""
    figure = new_figure(10, 3.4 * len(parameters.settings) + 0.6)
    panels = figure.subplots(len(parameters.settings), 2, squeeze=False)
    met = "SLOs met (% of Batch-1 requests)"
    for setting, (left, right) in zip(parameters.settings, panels, strict=True):
        part = where(frame, setting=setting)
        names = [variant for variant in WITHOUT if variant in set(part["variant"])]
        bars_by_variant(left, part, names, "requests_per_s", "throughput (requests/s)", names=True)
        bars_by_variant(right, part, names, "batch-1_attainment", met, names=False)
        left.set_title(setting, fontsize=9)
    return figure


PLACED = {"without load balancing": "round robin", "random placement": "random"}
"""Without load balancing, section 8.3's two ways."""
SWAPPED = {BY_WORK: "dealt by work", IN_TURN: "dealt in turn", COLD: "swaps from storage"}
"""Without the operation of swapping."""
LSOS = ("without pulling", "without eviction", "without load balancing")
ALL = (*LSOS, "random placement", BY_WORK, COLD)
UNITS = {"throughput": "%", "SLOs": "points"}
"""Of what is lost: of throughput, and of the SLOs of Batch-1 requests."""


@claimed
def claims(frame: DataFrame, parameters: Ablation) -> Iterator[Claim]:
    """Sections 1 and 8.2."""
    speed, lost = {}, {}
    for setting in parameters.settings:
        part = where(frame, setting=setting)
        by, met = (wide(part, "variant", name) for name in ("requests_per_s", "batch-1_attainment"))
        speed[setting] = by
        lost[setting] = {
            "throughput": 100 * (1 - by.div(by[QLM], axis=0)),
            "SLOs": 100 * met.rsub(met[QLM], axis=0),
        }
    whole = [setting for setting in parameters.settings if setting != LONG]
    losses = "; ".join(_told(setting, lost[setting]) for setting in whole)

    def loses(where_: str, variant: str, name: str, sentence: str) -> Claim:
        found = mean_interval(lost[where_][name][variant])
        return at_least(sentence, 1, found, nothing=0, unit=UNITS[name])

    def either(where_: str, variant: str) -> Claim:
        return best_of(f"QLM {variant}", [loses(where_, variant, name, name) for name in UNITS])

    readings = {**SWAPPED, ALONE: "an instance per LLM"}
    parts = [
        asked(replace(claim, setting="ours")) if variant == ALONE else claim
        for name, by in speed.items()
        for variant, how in readings.items()
        if variant in by
        for claim in [
            gain(
                f"{name}, {how}",
                300,
                mean_interval(100 * (by[QLM] / by[variant] - 1)),
                nothing=0,
                unit="%",
                setting=f"{SOURCES[name]}; {'section 8.2' if variant == COLD else 'section 1'}",
            )
        ]
    ]
    alone = max(part.ours.mean for part in parts if part.question)
    yield settings(
        "Model swapping improves throughput by 300 %",
        parts,
        how="instances load LLMs in turn, in place of one LLM each",
        reason="12 instances are enough for each of five LLMs to have two or three of its own; with one "
        f"each, the others idle (ours), it would be {alone:.0f} %",
    )
    yield settings(
        "Each of the four operations contributes to latency or throughput",
        [
            every(
                f"{name}; {PLACED[placed]}; {SWAPPED[swapped]}",
                [
                    either(name, variant)
                    for variant in ("without pulling", "without eviction", placed, swapped)
                ],
                setting=f"{SOURCES[name]}; sections 8.2 and 8.3",
            )
            for name in whole
            for placed in PLACED
            if placed in HAS[name]
            for swapped in SWAPPED
        ],
        paper="each contributes (read as 1 % or a point)",
        how="each operation switched off by itself",
        reason=losses,
    )
    yield settings(
        "Model warm start contributes the most to SLOs and throughput",
        [
            every(
                f"{where_}, {SWAPPED[variant]}",
                [
                    more(
                        name,
                        0,
                        mean_interval(table[variant] - table[after]),
                        unit=f"{UNITS[name]} more than {after}",
                    )
                    for name, table in lost[where_].items()
                    for after in [str(table[list(LSOS)].mean().idxmax())]
                ],
                setting=SOURCES[where_],
            )
            for where_ in whole
            for variant in (COLD, BY_WORK)
        ],
        paper="the most",
        how="what QLM loses without it, less what it loses without the next operation",
        reason=losses,
    )
    yield settings(
        "The other operations contribute primarily to the latency SLO attainment",
        [
            every(
                name,
                [loses(name, variant, "SLOs", f"QLM {variant}") for variant in LSOS],
                setting=SOURCES[name],
            )
            for name in whole
        ],
        paper="they contribute (read as a point or more)",
        how="each operation switched off by itself",
        reason=losses,
    )


def _told(setting: str, lost: Mapping[str, DataFrame]) -> str:
    """What is lost without each operation, in a setting."""
    some = [each for each in ALL if each in HAS[setting]]
    names = ", ".join(each.removeprefix("without ") for each in some)
    numbers = "; ".join(
        f"{name} {', '.join(f'{table[each].mean():.1f}' for each in some)} {UNITS[name]}"
        for name, table in lost.items()
    )
    return f"{setting}, lost without {names}: {numbers}"
