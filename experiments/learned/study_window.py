"""One bursty window, second by second.

Policies on the same requests: what arrives, how many instances serve and load, how many requests wait for
their first admission, and the share of the last half minute's arrivals that end on time. A heuristic's factor
and the learned policy's quantile are told: column `chosen` of learned-mixed-slo-v0's table has those that
validation chose. Without a learned policy heuristics are compared.
Instances are seen at the control intervals (10 s), all else every second. Attainment falls at the very end
since requests that are not done by then count as missed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import field_validator, model_validator

from experiments.harness.claims import Claim
from experiments.harness.parameters import FIRST_SEED, Parameters, known, ours
from experiments.learned.family import Workload, scenario_of, workloads
from experiments.learned.knobs import HEURISTICS, base_of, turned
from experiments.learned.protocol import learned_who, place, policy_of, seen_by
from experiments.learned.runs import Run, find_runs
from experiments.output import new_figure
from llmscale_env.control.run import run_episode

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "A window"
SERIES = ("second",)

WINDOW_S = 30
"""Attainment is that of the arrivals of so many seconds."""


class Settings(Parameters):
    """Attributes are explained where they are declared."""

    seeds: Annotated[int, ours("one window", ge=1, le=1)] = 1
    window: Annotated[int, ours("its seed; the first test window", ge=0)] = FIRST_SEED
    workload: Annotated[str, ours("a bursty one")] = "test-spikes"
    heuristics: Annotated[
        tuple[str, ...],
        ours("names, with a factor of its knob where it is not 1: static,paced:1.2"),
    ] = ("static", "paced")
    learned: Annotated[
        tuple[str, ...], ours("as in learned-mixed-slo-v0; of what competes there one is shown")
    ] = ("pretrained",)
    setting: Annotated[str, ours("of the learned policy; empty: the only one that there is")] = ""
    training_seed: Annotated[int, ours("of the learned policy", ge=0)] = 0
    quantile: Annotated[
        float, ours("of its instance counts; 0: the one of its run", ge=0, lt=1)
    ] = 0.0
    from_s: Annotated[float, ours("what is drawn begins", ge=0)] = 0.0
    until_s: Annotated[float, ours("and ends", gt=0)] = 1800.0

    @field_validator("workload")
    @classmethod
    def _shipped(cls, name: str) -> str:
        (found,) = known((name,), [w.name for w in workloads("test")])
        return found

    @field_validator("heuristics")
    @classmethod
    def _heuristics(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        known(tuple(split(name)[0] for name in names), HEURISTICS)
        if len(set(names)) < len(names):
            raise ValueError(f"{list(names)}: one is given twice")
        return names

    @model_validator(mode="after")
    def _some_seconds(self) -> Settings:
        if self.until_s <= self.from_s:
            raise ValueError(f"until_s = {self.until_s:g}: must be above from_s = {self.from_s:g}")
        return self


def split(name: str) -> tuple[str, float]:
    """A heuristic and the factor of its knob, from "paced:1.2".

    Raises:
        ValueError: the factor is no number above 0.
    """
    policy, colon, text = name.partition(":")
    try:
        factor = float(text) if colon else 1.0
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise ValueError(f"{name!r}: the factor must be a number above 0")
    return policy, factor


CHOSEN = Settings(heuristics=("static", "paced:1.2"), setting="misses at 2.5", quantile=0.1)
"""What validation chose for test-spikes (column `chosen` of learned-mixed-slo-v0's table)."""

PARAMETERS = {"quick": CHOSEN, "paper": CHOSEN}


def cases(parameters: Settings) -> list[dict[str, Any]]:
    """A run of each policy."""
    (workload,) = (w for w in workloads("test") if w.name == parameters.workload)
    where = {**place(workload, 1), "windows": [parameters.window]}
    scenario = scenario_of(workload.data)
    if parameters.from_s >= scenario.horizon_s:
        raise ValueError(
            f"from_s = {parameters.from_s:g}: must be below the episode's {scenario.horizon_s:g} s"
        )
    made: list[dict[str, Any]] = []
    for text in parameters.heuristics:
        name, factor = split(text)
        kin = workload.validated_on[0] if workload.validated_on else None
        found = turned(name, base_of(name, kin).parameters, factor, scenario)
        if found is None:
            raise ValueError(f"heuristics = {text!r}: there is no such setting")
        made.append({**where, "policy": text, "learned": False, "parameters": found})
    runs = find_runs(parameters.learned, "mixed-slo-v0")
    run = shown(runs, workload, parameters.training_seed, parameters.setting)
    if run is not None:
        made.append({**where, **learned_who(run, parameters.quantile or None)})
    return made


def shown(
    runs: Sequence[Run], workload: Workload, training_seed: int, setting: str = ""
) -> Run | None:
    """Of those that compete on a workload: one that was made for its kind before one that was not.

    Raises:
        ValueError: somebody competes, but not with this training seed, or not at this setting; or at several,
            and none is named.
    """
    there = [run for run in runs if run.competes_on(workload)]
    if not there:
        return None
    made_for = [run for run in there if run.made_for] or there
    settings = sorted({run.setting for run in made_for})
    if setting not in settings and (setting or len(settings) > 1):
        raise ValueError(f"setting = {setting!r}: must be one of {settings}")
    at = [run for run in made_for if run.setting == (setting or settings[0])]
    mine = [run for run in at if run.training_seed == training_seed]
    if not mine:
        seeds = sorted({run.training_seed for run in at})
        raise ValueError(f"training_seed = {training_seed}: must be one of {seeds}")
    if len(mine) > 1:
        names = [run.path for run in mine]
        raise ValueError(
            f"learned: {names} are alike in setting and training seed; name one of them"
        )
    return mine[0]


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per second, and one of the whole window."""
    scenario = scenario_of(case["data"], case["overrides"])
    policy = policy_of({**case, "policy": str(case["policy"]).partition(":")[0]})
    (seed,) = case["windows"]
    result = run_episode(policy, scenario, seed, forecaster=seen_by(policy, case))
    horizon = int(scenario.horizon_s)
    pools = [pool.name for pool in scenario.fleet.pools]
    ends = result.series["time_s"].to_numpy()
    # As it was last seen; before the first look, as it is then.
    at = np.maximum(np.searchsorted(ends, np.arange(horizon), side="right") - 1, 0)
    serving = sum(result.series[f"{p}/active"].to_numpy() for p in pools)
    loading = sum(
        (result.series[f"{p}/acquiring"] + result.series[f"{p}/loading"]).to_numpy() for p in pools
    )
    interactive = result.requests[result.requests["slo_class"] == "interactive"]
    seen = seconds_of(
        interactive["arrival_s"].to_numpy(),
        interactive["queued_s"].to_numpy(),
        interactive["outcome"].to_numpy(),
        horizon,
    )
    rows: list[dict[str, Any]] = [
        {
            "kind": "second",
            "second": k,
            "serving": int(serving[at[k]]),
            "loading": int(loading[at[k]]),
            **{name: values[k] for name, values in seen.items()},
        }
        for k in range(horizon)
    ]
    rows.append(
        {
            "kind": "window",
            "gpu_hours": result.summary["gpu_hours"],
            "reward": result.summary["reward"],
            "interactive_attainment": result.summary["interactive/slo_attainment"],
            "batch_attainment": result.summary["batch/slo_attainment"],
            "scaling_actions": result.summary["scaling_actions"],
        }
    )
    return rows


def seconds_of(arrival_s: Any, queued_s: Any, outcome: Any, horizon: int) -> dict[str, Any]:
    """Requests by second.

    Args:
        arrival_s: (n,) when they came.
        queued_s: (n,) until their first admission; NaN: never.
        outcome: (n,) how they ended; who was rejected has never waited.
        horizon: seconds in all.

    Returns:
        `arrived` in the second, `waiting` at its end, `attainment` of those that arrived in the last
        `WINDOW_S` seconds (NaN if nobody did).
    """
    came = np.minimum(np.asarray(arrival_s).astype(int), horizon - 1)
    arrived = np.bincount(came, minlength=horizon)
    good = np.bincount(came, weights=np.asarray(outcome) == "on_time", minlength=horizon)
    turned_away = np.bincount(came[np.asarray(outcome) == "rejected"], minlength=horizon)
    admitted = np.asarray(arrival_s) + np.asarray(queued_s)
    left = np.bincount(admitted[admitted < horizon].astype(int), minlength=horizon)
    total, fine = np.cumsum(arrived), np.cumsum(good)
    before = np.arange(horizon) - WINDOW_S
    lately = total - np.where(before >= 0, total[np.maximum(before, 0)], 0)
    lately_fine = fine - np.where(before >= 0, fine[np.maximum(before, 0)], 0)
    share = np.where(lately > 0, lately_fine / np.maximum(lately, 1), np.nan)
    return {
        "arrived": arrived.tolist(),
        "waiting": (total - np.cumsum(left + turned_away)).tolist(),
        "attainment": share.tolist(),
    }


def plot(frame: DataFrame, parameters: Settings) -> Any:
    """Four strips over the same time; a colour per policy."""
    rows = frame[frame["kind"] == "second"]
    rows = rows[(rows["second"] >= parameters.from_s) & (rows["second"] < parameters.until_s)]
    totals = frame[frame["kind"] == "window"].set_index("policy")
    figure = new_figure(11.0, 8.5)
    axes = figure.subplots(4, 1, sharex=True)
    policies = list(dict.fromkeys(rows["policy"]))
    first = rows[rows["policy"] == policies[0]]
    axes[0].fill_between(first["second"], first["arrived"].astype(float), step="post", color="gray")
    axes[0].set_ylabel("interactive\narrivals per s")
    for k, policy in enumerate(policies):
        mine = rows[rows["policy"] == policy]
        at = totals.loc[policy]
        label = (
            f"{policy}: {at['gpu_hours']:.2f} GPU-h, {100 * at['interactive_attainment']:.1f} / "
        )
        label += f"{100 * at['batch_attainment']:.1f} % on time"
        time = mine["second"]
        axes[1].step(time, mine["serving"], where="post", color=f"C{k}", label=label)
        coming = mine["serving"].astype(float) + mine["loading"].astype(float)
        axes[1].fill_between(
            time, mine["serving"].astype(float), coming, step="post", color=f"C{k}", alpha=0.3
        )
        axes[2].step(time, mine["waiting"], where="post", color=f"C{k}")
        axes[3].step(time, 100 * mine["attainment"].astype(float), where="post", color=f"C{k}")
    axes[1].set_ylabel("instances serving\n(pale: loading)")
    axes[1].set_ylim(bottom=0)
    axes[2].set_ylabel("interactive\nrequests waiting")
    axes[3].set_ylabel(f"on time, % of arrivals\nof {WINDOW_S} s")
    axes[3].set_xlabel(f"seconds into window {parameters.window} of {parameters.workload}")
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=2, fontsize=9)
    return figure


def claims(frame: DataFrame, parameters: Settings) -> list[Claim]:
    """None: it is a picture to look at."""
    return []
