"""The least GPUs that keep the SLOs against the rate (Figures 11 and 12)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from agents.statistics import Interval, mean_interval
from experiments.aladdin.least import Search
from experiments.aladdin.parts import in_order
from experiments.aladdin.serving import capacity_per_worker, decode_only, large, serve
from experiments.aladdin.setting import DEGREES, shown
from experiments.harness.claims import Claim, asked, at_least, best_of, every, gain, settings
from experiments.harness.figure import SEEDS, Grid, claimed, dress, legend_below, where
from experiments.harness.parameters import FIRST_SEED, Parameters, ours, paper
from experiments.output import new_figure
from llmscale_env.scenarios.load import load_scenario

if TYPE_CHECKING:
    from pandas import DataFrame, Series

WIDE, WIDE_GPUS = "machine-wide", 4
MIDDLE = "aladdin:theta=0.7"
LENGTHS = {"sharegpt-single-turn": "first turns", "sharegpt": "conversations"}
PREDICTORS = {"conditional_mean": "", "oracle": ", true lengths"}
TEXT = {
    "sharegpt-single-turn": "section 6.1, prompts from users",
    "sharegpt": "section 6.3, conversation content",
    "conditional_mean": "section 2.3",
    "oracle": "section 6.1, outputs are the predicted ones",
}
"""Where the paper allows lengths and predictors; of strictness section 4.2 says 0 < theta < 1."""
STYLES = {
    "aladdin": ("Aladdin", "C0", "o", "-"),
    "aladdin:gamma=1+theta=0.5": ("Aladdin, gamma = 1, theta = 0.5", "C0", "v", "--"),
    "aladdin:theta=0.7": ("Aladdin, theta = 0.7", "C0", ".", ":"),
    "jsq": ("shortest queue, best degree", "C1", "s", "-"),
    "power-of-two": ("power of two", "C2", "D", "-"),
    "machine-wide": ("default vLLM, 4 GPUs per worker", "C3", "^", "-"),
}
FLUID = "a fluid at this rate"
NEAR_FLUID = "a fluid on whole workers would save less than that, too"


class Fleets(Parameters):
    """Parameters of both figures."""

    llms: Annotated[tuple[str, ...], paper("section 6.1, those on A100", min_length=1)] = (
        "llama-2-7b",
        "llama-2-13b",
        "llama-2-70b",
    )
    gpu: Annotated[str, ours("the larger of the testbeds")] = "a100-80gb"
    study: Annotated[Literal["mixed", "decode"], paper("section 6.4")]
    policies: Annotated[
        tuple[str, ...], paper("section 6.4; theta below 0.9 is ours", min_length=1)
    ]
    rates_per_s: Annotated[
        tuple[Annotated[float, Field(gt=0)], ...],
        paper('section 6.5: "around 25 requests per second as we adopted"; the steps are ours'),
    ] = (5.0, 10.0, 15.0, 20.0, 25.0)
    targets: Annotated[
        tuple[Annotated[float, Field(gt=0, le=1)], ...],
        paper("section 6.4: P100; 99 % is ours, since one request of thousands decides P100"),
    ] = (0.99, 1.0)
    max_gpus: Annotated[int, ours("several times what is needed", ge=8)] = 256
    arrivals_s: Annotated[float, ours("hundreds of requests at the lowest rate", gt=0)] = 60.0
    patience_s: Annotated[float, ours("until all have ended", gt=0)] = 80.0
    heartbeat_s: Annotated[float, ours("the paper gives none", gt=0)] = 0.1
    lengths: Annotated[
        tuple[str, ...],
        paper(
            'section 6.1: "prompts from users of ShareGPT", first turns; section 6.3: "ShareGPT dataset for '
            'the conversation content", prompts with the turns before. The first is searched everywhere',
            min_length=1,
        ),
    ] = ("sharegpt-single-turn", "sharegpt")
    predictors: Annotated[
        tuple[Literal["conditional_mean", "oracle"], ...],
        paper(
            "section 2.3; section 6.1: outputs of this simulation are the predicted ones, so that none is "
            "wrong (oracle). The first is searched everywhere",
            min_length=1,
        ),
    ] = ("conditional_mean", "oracle")
    deciding: Annotated[
        tuple[tuple[str, float], ...],
        ours("LLMs and rates at which all lengths and predictors are searched"),
    ] = (("llama-2-7b", 20.0),)
    deciding_seeds: Annotated[int, ours("there", ge=1)] = 5

    def deciding_seed_list(self) -> list[int]:
        """Other seeds than those of the rest."""
        first = FIRST_SEED + self.seeds
        return list(range(first, first + self.deciding_seeds))


KEPT = ("gpu", "study", "max_gpus", "arrivals_s", "patience_s", "heartbeat_s")
USUAL = Grid(
    {
        "lengths": lambda parameters, case: parameters.lengths[:1],
        "predictor": lambda parameters, case: parameters.predictors[:1],
        "llm": "llms",
        "rate_per_s": lambda parameters, case: map(float, parameters.rates_per_s),
        "policy": "policies",
        "targets": lambda parameters, case: [parameters.targets],
        "seed": SEEDS,
    },
    keep=KEPT,
    first=KEPT,
)
DECIDING = Grid(
    {
        "lengths": "lengths",
        "predictor": "predictors",
        "place": lambda parameters, case: [
            {"llm": llm, "rate_per_s": float(rate)} for llm, rate in parameters.deciding
        ],
        "policy": lambda parameters, case: _deciders(parameters, case["predictor"]),
        "targets": lambda parameters, case: [(max(parameters.targets),)],
        "seed": lambda parameters, case: parameters.deciding_seed_list(),
    },
    keep=KEPT,
    first=KEPT,
)


def _deciders(parameters: Fleets, predictor: str) -> list[str]:
    """One strictness is enough with true lengths; the others do not predict, and are searched once."""
    if predictor != parameters.predictors[0]:
        return [p for p in parameters.policies if p == MIDDLE]
    return [p for p in parameters.policies if p != WIDE]


def cases(parameters: Fleets) -> list[dict[str, Any]]:
    """All LLMs and rates in the usual setting, and all settings where they decide."""
    return USUAL(parameters) + DECIDING(parameters)


def degree(case: Mapping[str, Any]) -> int:
    """GPUs of a worker: Table 3's, or a machine."""
    if case["policy"].startswith(WIDE):
        return WIDE_GPUS
    return DEGREES[case["llm"], case["gpu"]]


def fluid_gpus(case: Mapping[str, Any]) -> float:
    """GPUs that Table 3's workers need if requests came as a fluid at the nominal rate.

    No placement needs fewer for long; a window of a minute may hold fewer requests, and starts empty.
    """
    tp = DEGREES[case["llm"], case["gpu"]]
    alone = case["study"] == "decode"
    per_worker = capacity_per_worker(
        case["llm"], case["gpu"], tp, decode_only=alone, lengths=case["lengths"]
    )
    return tp * case["rate_per_s"] / per_worker


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per target: `gpus` (None: not even the most do), `attainment` with them, `runs` of the search.

    Of decode-only fleets the GPUs are those of decode workers, and attainment is that of the ATGT.
    """
    tp = degree(case)
    make = decode_only if case["study"] == "decode" else large
    scenario = load_scenario(
        make(case["llm"], case["gpu"], case["rate_per_s"], case["max_gpus"]),
        **{"workload.streams.chat.lengths.table": case["lengths"]},
    )
    column = "itl_attainment" if case["study"] == "decode" else "attainment"

    def attains(workers: int) -> float:
        row = serve(scenario, case["policy"], case, tp=tp, workers=workers)
        return float(row.get(column) or 0.0)

    search = Search(attains, case["max_gpus"] // tp)
    start = int(np.ceil(1.15 * fluid_gpus(case) / tp))
    rows = []
    for target in sorted(case["targets"]):
        workers = search.least(target, start)
        rows.append(
            {
                "target": target,
                "gpus": None if workers is None else workers * tp,
                "attainment": max(search.tried.values()) if workers is None else search.at(workers),
                "fluid_gpus": fluid_gpus(case),
                "runs": len(search.tried),
            }
        )
        start = workers or start
    return rows


def plot(frame: DataFrame, parameters: Fleets) -> Any:
    """A panel per LLM and target: GPUs against the rate."""
    frame, targets = usual(frame, parameters), sorted(parameters.targets)
    figure = new_figure(5.4 * len(parameters.llms), 3.6 * len(targets))
    panels = figure.subplots(len(targets), len(parameters.llms), squeeze=False)
    for line, target in zip(panels, targets, strict=True):
        for axes, llm in zip(line, parameters.llms, strict=True):
            mine = frame[(frame["llm"] == llm) & np.isclose(frame["target"], target)]
            for policy in parameters.policies:
                label, colour, marker, style = STYLES.get(policy, (policy, None, "x", "-"))
                part = where(mine, policy=policy).groupby("rate_per_s")["gpus"]
                # A seed without an answer would make the mean look better than it is.
                whole = part.count() == part.size()
                mean, low, high = part.mean()[whole], part.min()[whole], part.max()[whole]
                axes.plot(mean, color=colour, marker=marker, ms=4, ls=style, label=label)
                lost, top = whole.index[~whole], axes.get_xaxis_transform()
                place = 0.985 - 0.03 * parameters.policies.index(policy)
                axes.plot(
                    lost, [place] * len(lost), "x", color=colour, ms=5, mew=1.6, transform=top
                )
                axes.fill_between(mean.index, low, high, color=colour, alpha=0.12, lw=0)
            axes.plot(
                mine.groupby("rate_per_s")["fluid_gpus"].first(), color="grey", lw=0.8, ls=":",
                label=FLUID,
            )  # fmt: skip
            dress(
                axes,
                title=f"{shown(llm, parameters.gpu, DEGREES[llm, parameters.gpu])} per worker\n"
                f"{100 * target:g} % of requests",
                xlabel="requests/s",
                bottom=0,
            )
        line[0].set_ylabel("GPUs" if parameters.study == "mixed" else "GPUs of decode workers")
    lost = panels[0, 0].plot([], [], "x", color="k", ms=5, mew=1.6, label="no number is enough")
    legend_below(figure, panels[0, 0])
    lost[0].set_label("_")
    return figure


# ---- what claims are made of ----


def usual(frame: DataFrame, parameters: Fleets) -> DataFrame:
    """The rows of all LLMs and rates, with the lengths and the predictor that are searched everywhere."""
    first = {"lengths": parameters.lengths[0], "predictor": parameters.predictors[0]}
    return where(frame, **first)[lambda mine: mine["seed"].isin(parameters.seed_list())]


def gpus_of(frame: DataFrame, llm: str, target: float, policy: str) -> DataFrame:
    """Least GPUs by seed (rows) and rate; NaN where not even the most do."""
    mine = frame[
        (frame["llm"] == llm) & np.isclose(frame["target"], target) & (frame["policy"] == policy)
    ]
    return mine.pivot_table(index="seed", columns="rate_per_s", values="gpus", dropna=False).astype(
        float
    )


def strictnesses(frame: DataFrame, parameters: Fleets) -> dict[str, str]:
    """Settings of Aladdin that were run, with their words: the paper leaves them open."""
    there = set(frame["policy"])
    found = [p for p in parameters.policies if p.startswith("aladdin") and p in there]
    return {p: STYLES[p][0].removeprefix("Aladdin").lstrip(", ") or "theta = 0.9" for p in found}


def name(llm: str) -> str:
    """Of an LLM, by its size."""
    return llm.removeprefix("llama-2-").upper()


@claimed
def saving_claims(
    frame: DataFrame,
    parameters: Fleets,
    others: Mapping[str, tuple[str, float]],
    sentence: str,
    hows: Mapping[str, str],
    reason: str,
) -> Iterator[Claim]:
    """Up to how many per cent fewer GPUs Aladdin needs than each of `others` (policy: its name, the number).

    The paper has all requests keep their SLOs: the highest target is its own, others are questions.

    Args:
        frame: rows of all runs.
        parameters: that they had.
        others: compared with.
        sentence: with places for {percent} and {name}.
        hows: what earns the saving, by whom it is over.
        reason: why it is not there.
    """
    whole, frame = frame, usual(frame, parameters)
    strict = strictnesses(frame, parameters)
    for other, (label, percent) in others.items():
        if other not in set(frame["policy"]) or not strict:
            continue
        says = sentence.format(percent=percent, name=label)
        for target in sorted(parameters.targets, reverse=True):
            parts = in_order(
                _saving(frame, llm, target, setting, other, percent, f"{name(llm)}, {words}")
                for llm in parameters.llms
                for setting, words in strict.items()
            )
            if target == max(parameters.targets):
                known = best_of(
                    f"{LENGTHS[parameters.lengths[0]]}, all LLMs and rates", parts, reason=reason
                )
                more = _deciding(whole, parameters, target, strict, other, percent)
                yield settings(
                    says, [known, *more], paper=f"up to {percent} %", how=hows[other], reason=reason
                )
            elif other == "jsq":
                question = f"With {100 * target:g} % of requests on time: {says}"
                yield asked(
                    best_of(
                        question,
                        parts,
                        paper=f"up to {percent} %",
                        how=hows[other],
                        reason=NEAR_FLUID,
                    )
                )


def _deciding(
    frame: DataFrame,
    parameters: Fleets,
    target: float,
    strict: Mapping[str, str],
    other: str,
    percent: float,
) -> Iterator[Claim]:
    """A setting each: lengths, predictor and strictness where they decide."""
    for llm, rate in parameters.deciding if other != WIDE else ():
        place = frame[
            (frame["llm"] == llm)
            & np.isclose(frame["rate_per_s"], rate)
            & frame["seed"].isin(parameters.deciding_seed_list())
        ]
        for lengths in parameters.lengths:
            there = where(place, lengths=lengths)
            for predictor in parameters.predictors:
                mine = there[
                    (there["predictor"] == predictor) | ~there["policy"].str.startswith("aladdin")
                ]
                for policy, words in strict.items():
                    if policy not in set(mine["policy"]):
                        continue
                    part = f"{LENGTHS[lengths]}{PREDICTORS[predictor]}, {words}"
                    found = _saving(mine, llm, target, policy, other, percent, part)
                    told = f"{TEXT[lengths]}; {TEXT[predictor]}; {name(llm)}, {found.setting}"
                    yield replace(found, setting=told)


def _saving(
    frame: DataFrame, llm: str, target: float, setting: str, other: str, percent: float, part: str
) -> Claim:
    """Of one LLM at one strictness, at the rate with the largest mean saving over all seeds."""
    one, two, queue = (gpus_of(frame, llm, target, p) for p in (setting, other, "jsq"))
    saved = (100 * (1 - one / two)).dropna(axis=1)
    ours, told = (
        Interval(float("nan"), float("nan"), float("nan")),
        "no rate with an answer in every seed",
    )
    if not saved.empty:
        rate = saved.mean().idxmax()
        ours = mean_interval(saved[rate])
        fluid = where(frame, llm=llm, rate_per_s=rate)["fluid_gpus"].iloc[0]
        told = f"{rate:g} requests/s: {one[rate].mean():.3g} GPUs against {two[rate].mean():.3g}"
        told += "" if other == "jsq" else f", shortest queue {_mean(queue, rate)}"
        told += f", a fluid {fluid:.3g}"
    return gain(part, percent, ours, nothing=0, unit="% fewer", setting=told)


def _mean(table: DataFrame, rate: float) -> str:
    return (
        f"{table[rate].mean():.3g}"
        if rate in table and table[rate].notna().all()
        else "has no answer"
    )


def reached(frame: DataFrame, parameters: Fleets, sentence: str) -> Claim:
    """Whether some number of GPUs is enough for the highest target, whatever the LLM, rate and seed."""
    frame, target = usual(frame, parameters), max(parameters.targets)

    def share(llm: str, policy: str) -> Series[float]:
        return 100 * gpus_of(frame, llm, target, policy).notna().mean(axis=1)

    parts = []
    queue = ", ".join(f"{share(llm, 'jsq').mean():.0f} % ({name(llm)})" for llm in parameters.llms)
    for policy, words in strictnesses(frame, parameters).items():
        found = [
            at_least(
                name(llm), 100, mean_interval(share(llm, policy)), nothing=None, unit="% of runs"
            )
            for llm in parameters.llms
        ]
        ordered = in_order(found, most_first=False)
        parts.append(every(words, ordered, unit="% of runs", setting="section 4.2: 0 < theta < 1"))
    return settings(
        sentence,
        parts,
        paper="all requests",
        how="constraints (b) to (e): (d) lets no prefill in where a request has saved too little for it, or "
        "still prefills itself",
        setting=f"{100 * target:g} % of requests; up to {parameters.max_gpus} GPUs",
        reason="constraint (b) counts too little context where outputs outlive their predictions. Shortest "
        f"queue has an answer in {queue}",
    )
