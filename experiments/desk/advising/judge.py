"""How a policy does on a case: both parts of the trace in one run, what each brought, and what would help."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baselines.fleet import UniformPolicy
from baselines.registry import TUNABLE
from experiments.desk.advising.case import INTERVAL_S, POOL, Case
from experiments.desk.advising.episode import gpu_hours, run, worst_share
from experiments.desk.advising.search import fixed_settings
from experiments.desk.answer import Decision, Fixed, Outcome, Series
from experiments.desk.targets import Target
from experiments.least import least
from llmscale_env.control.results.result import EpisodeResult

WORST_S = 300.0
"""Length of the worst stretch."""

WORST_STEP_S = 30.0
"""Between two stretches that are looked at."""

MOST_POINTS = 360
"""Intervals of a `Series`."""

MORE_FLEETS = 4
"""Fixed fleets of up to so many times `max_gpus` are tried where none within it keeps the targets."""


@dataclass(frozen=True)
class Verdict:
    """A policy over the whole trace.

    Attributes:
        tuned, held_out: of the two parts.
        series: over the held-out part.
    """

    tuned: Outcome
    held_out: Outcome
    series: Series


def judge(name: str, settings: Mapping[str, Any], case: Case) -> Verdict:
    """Run a policy over both parts: the held-out one begins with the fleet and the queues that are there.

    Args:
        name: in the registry.
        settings: its parameters.
        case: the cluster and its load.
    """
    if name == "static":
        case = replace(case, initial=int(settings[POOL]))
    result = run(TUNABLE[name](**settings), case.whole(), case.seed)
    return Verdict(
        _outcome(result, case, 0.0, case.tuned_s),
        _outcome(result, case, case.tuned_s, case.horizon_s),
        _series(result, case),
    )


def keeps(outcome: Outcome, targets: Sequence[Target]) -> bool:
    """Whether every class reaches its target; one of which no request was judged does not."""
    return shortfall(outcome, targets) <= 0


def shortfall(outcome: Outcome, targets: Sequence[Target]) -> float:
    """By how much the class that is worst off misses its target; below 0: it is kept."""
    return max(target.attainment - (outcome.attainment[target.name] or 0.0) for target in targets)


@dataclass(frozen=True)
class Fleets:
    """Fixed fleets on the held-out part.

    Attributes:
        enough: instances that keep every target; None: of those tried none does.
        tried: instances of the least one that keeps them, else of the largest one that was tried.
        outcome: of that one.
        attainment: of its worst class.
    """

    enough: int | None
    tried: int
    outcome: Outcome
    attainment: float


def fleets(case: Case, limit: int | None, start: int) -> Fleets:
    """The least fixed fleet that keeps the targets on the held-out part, also above `max_gpus`.

    Args:
        case: the cluster and its load.
        limit: batch limit.
        start: a guess.
    """
    most = MORE_FLEETS * case.most
    wide = replace(case, max_gpus=MORE_FLEETS * case.max_gpus)

    def kept(instances: int) -> bool:
        settings = fixed_settings(instances, limit)
        return keeps(judge("static", settings, wide).held_out, case.targets)

    found = least(kept, most, start)
    tried = most if found is None else found
    outcome = judge("static", fixed_settings(tried, limit), wide).held_out
    return Fleets(found, tried, outcome, worst_share(outcome.attainment, case.targets))


def hindsight(fixed: Fleets, case: Case, limit: int | None) -> Fixed | None:
    """The least fixed fleet that keeps the targets, as an answer tells it."""
    if fixed.enough is None:
        return None
    return Fixed(
        instances=fixed.enough,
        gpus=fixed.enough * case.tp,
        batch_limit=limit,
        gpu_hours=fixed.outcome.gpu_hours,
        usd=fixed.outcome.usd,
    )


def needed(name: str, settings: Mapping[str, Any], case: Case, fixed: Fleets) -> str:
    """What would reach the targets on the held-out part, found by simulations of that part: with hindsight.

    Args:
        name, settings: the policy, which misses them.
        case: the cluster and its load.
        fixed: what fixed fleets reach.
    """
    return f"with hindsight, {_needed(name, settings, case, fixed)}"


def _needed(name: str, settings: Mapping[str, Any], case: Case, fixed: Fleets) -> str:
    tp = case.tp
    if fixed.enough is None:
        return (
            f"no fixed fleet of up to {fixed.tried * tp} GPUs keeps it: with that many "
            f"{100 * fixed.attainment:.2f} % of the worst class are on time, so the SLO is out of reach of "
            "this GPU and engine, not of the fleet"
        )
    if fixed.enough > case.most:
        return (
            f"max_gpus={fixed.enough * tp}: a fixed fleet of {fixed.enough * tp} GPUs is the least that "
            "keeps it"
        )
    if name == "static":
        return f"a fixed fleet of {fixed.enough * tp} GPUs keeps it"
    fleet = f"a fixed fleet of {fixed.enough * tp} GPUs"
    if not issubclass(TUNABLE[name], UniformPolicy):
        return f"{fleet} keeps it; {name} has no least number of instances that could be raised"
    floor, outcome = _least_floor(name, settings, case, fixed.enough)
    if floor is None or outcome is None:
        return f"{fleet} keeps it; {name} misses it with any min_instances"
    return (
        f"min_instances={floor} keeps it, with {outcome.gpu_hours:.2f} GPU-hours; {fleet} does too"
    )


def _least_floor(
    name: str, settings: Mapping[str, Any], case: Case, start: int
) -> tuple[int | None, Outcome | None]:
    made: dict[int, Outcome] = {}

    def kept(floor: int) -> bool:
        raised = {**settings, "min_instances": floor}
        made[floor] = judge(name, raised, case).held_out
        return keeps(made[floor], case.targets)

    floor = least(kept, case.most, min(start, case.most))
    return floor, None if floor is None else made[floor]


# ---- parts of an episode ----


def _outcome(result: EpisodeResult, case: Case, from_s: float, to_s: float) -> Outcome:
    requests, series = result.requests, result.series
    arrival_s = requests["arrival_s"].to_numpy()
    mine = requests[(arrival_s >= from_s) & (arrival_s < to_s)]
    end_s = series["time_s"].to_numpy()
    rows = (end_s > from_s + 1e-9) & (end_s <= to_s + 1e-9)
    hours = gpu_hours(result, from_s, to_s)
    held = case.tp * _held(result)[rows]
    names = [target.name for target in case.targets]
    of = {name: mine[mine["slo_class"] == name] for name in names}
    price = case.usd_per_gpu_hour
    changes = [d for d in _changes(result) if from_s <= d.time_s < to_s]
    return Outcome(
        attainment={name: _share(of[name]) for name in names},
        gpu_hours=hours,
        usd=None if price is None else price * hours,
        scaling_actions=len(changes),
        worst_five_minutes=_worst([of[name] for name in names], from_s, to_s),
        ttft_p99_s={name: _p99(of[name]["ttft_s"]) for name in names},
        itl_p99_s={name: _p99(of[name]["itl_mean_s"]) for name in names},
        mean_gpus=3600 * hours / (to_s - from_s),
        peak_gpus=int(held.max(initial=0)),
    )


def _judged(requests: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(arrivals, whether on time). What is still unfinished at the episode's end is not."""
    return requests["arrival_s"].to_numpy(), (requests["outcome"] == "on_time").to_numpy()


def _share(requests: Any) -> float | None:
    _, on_time = _judged(requests)
    return float(on_time.mean()) if len(on_time) else None


def _p99(column: Any) -> float | None:
    values = column.to_numpy(float)
    values = values[np.isfinite(values)]
    return float(np.quantile(values, 0.99)) if len(values) else None


def _worst(classes: Sequence[Any], from_s: float, to_s: float) -> float | None:
    """Lowest share on time of a class among the arrivals of five minutes that lie in the part."""
    starts = np.arange(from_s, max(to_s - WORST_S, from_s) + 1e-9, WORST_STEP_S)
    worst = math.inf
    for requests in classes:
        arrival_s, on_time = _judged(requests)
        total = np.concatenate([[0], np.cumsum(on_time)])
        first, last = (np.searchsorted(arrival_s, starts + shift) for shift in (0.0, WORST_S))
        some = last > first
        if some.any():
            share = (total[last] - total[first])[some] / (last - first)[some]
            worst = min(worst, float(share.min()))
    return None if math.isinf(worst) else worst


def _held(result: EpisodeResult) -> NDArray[np.int64]:
    """Instances that hold GPUs at the end of each interval."""
    return _sum(result, "acquiring", "loading", "active", "draining")


def _sum(result: EpisodeResult, *states: str) -> NDArray[np.int64]:
    columns = [result.series[f"{POOL}/{state}"].to_numpy(np.int64) for state in states]
    return np.sum(columns, axis=0)


def _changes(result: EpisodeResult) -> list[Decision]:
    """Orders after which there are more or fewer instances than before (draining ones are gone)."""
    count = _sum(result, "acquiring", "loading", "active")
    found = []
    for k in np.flatnonzero(np.diff(count)) + 1:
        order = result.decisions[k]
        found.append(
            Decision(
                time_s=float(order["time_s"]),
                instances=int(count[k]),
                reason=str(order.get("reason", "")),
            )
        )
    return found


def _series(result: EpisodeResult, case: Case) -> Series:
    series, requests = result.series, result.requests
    steps = round((case.horizon_s - case.tuned_s) / INTERVAL_S)
    stride = max(1, math.ceil(steps / MOST_POINTS))
    length_s = stride * INTERVAL_S
    end_s = series["time_s"].to_numpy()
    ends = case.tuned_s + length_s * np.arange(1, math.ceil(steps / stride) + 1)
    at = np.searchsorted(end_s, np.minimum(ends, case.horizon_s) - 1e-6)
    edges = np.append(case.tuned_s, ends)

    def numbers(*states: str) -> tuple[int, ...]:
        return tuple(int(n) for n in _sum(result, *states)[at])

    arrived, _ = np.histogram(requests["arrival_s"].to_numpy(), edges)
    on_time = {}
    for target in case.targets:
        arrival_s, kept = _judged(requests[requests["slo_class"] == target.name])
        came, _ = np.histogram(arrival_s, edges)
        good, _ = np.histogram(arrival_s[kept], edges)
        on_time[target.name] = tuple(
            float(g / n) if n else None for g, n in zip(good, came, strict=True)
        )
    return Series(
        start_s=case.tuned_s,
        interval_s=length_s,
        arrivals_per_s=tuple(float(n) / length_s for n in arrived),
        ready=numbers("active"),
        loading=numbers("acquiring", "loading"),
        waiting=numbers("waiting"),
        running=numbers("running"),
        on_time=on_time,
        decisions=tuple(d for d in _changes(result) if case.tuned_s <= d.time_s < case.horizon_s),
    )
