"""Searches for a policy's best setting: a whole grid, part of one, or Optuna's sampler, within a budget."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from baselines.space import Choice, Part, Real, Space, Whole
from baselines.tuning.episodes import Episodes, identity, tuning_seeds
from baselines.tuning.halving import Plan
from baselines.tuning.trials import Score, Trial

STARTUP_TRIALS = 10
"""Random points before Optuna's sampler goes by what was found (its own default)."""

_DUPLICATES = 200


class TunerMissing(ImportError):
    """Optuna is not installed."""


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        trials: every setting, the best first; those of later rounds come before all others.
        steps: control intervals that it took, those replayed from its file included.
    """

    trials: list[Trial]
    steps: int


Asked = Callable[[Trial], None]
Points = Iterator[tuple[dict[str, Any], Asked]]


def import_optuna() -> Any:
    """Optuna, without its log.

    Raises:
        TunerMissing: it is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise TunerMissing("search=optuna needs Optuna: pip install 'llmscale[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def sweep(
    episodes: Episodes, points: Sequence[Mapping[str, Any]], seeds: int, score: Score
) -> Found:
    """Every point on every seed; the best first, ties in the order of the points.

    Raises:
        PolicyError: a point is no setting of the policy, or the policy cannot run a scenario.
    """
    for point in points:
        episodes.kind(**point)  # every slip before the first episode
    run = tuning_seeds(episodes.scenarios[0], seeds)
    episodes.prepare(points, run)
    n = len(episodes.scenarios)
    trials = [Trial.of(point, episodes.outcomes(point, run), n) for point in points]
    trials.sort(key=score.key)
    return Found(trials, episodes.simulated + episodes.replayed)


def halve(
    episodes: Episodes,
    points: Points,
    plan: Plan,
    score: Score,
    known: Sequence[Mapping[str, Any]] = (),
) -> Found:
    """Successive halving of the points that an iterator gives, within a plan's budget.

    A point that was there before costs nothing, and is told to the iterator again. `known` are the points
    that it will give, where they do not hang on what it is told: their episodes can run side by side.

    Raises:
        PolicyError: as in `sweep`.
    """
    seeds = tuning_seeds(episodes.scenarios[0], plan.rounds[-1][1])

    def trial(settings: Mapping[str, Any], n_seeds: int) -> Trial:
        outcomes = episodes.outcomes(settings, seeds[:n_seeds])
        return Trial.of(settings, outcomes, len(episodes.scenarios))

    n_settings, n_seeds = plan.rounds[0]
    first = {identity(settings): settings for settings in known}
    episodes.prepare(list(first.values())[:n_settings], seeds[:n_seeds])
    there: dict[str, Trial] = {}
    again = 0
    for settings, tell in points:
        key = identity(settings)
        again = again + 1 if key in there else 0
        if key not in there:
            there[key] = trial(settings, n_seeds)
        tell(there[key])
        if len(there) >= n_settings or again > _DUPLICATES:
            break
    best = sorted(there.values(), key=score.key)
    for n_settings, n_seeds in plan.rounds[1:]:
        on, out = best[:n_settings], best[n_settings:]
        episodes.prepare([t.parameters for t in on], seeds[:n_seeds])
        best = sorted((trial(t.parameters, n_seeds) for t in on), key=score.key) + out
    return Found(best, episodes.simulated + episodes.replayed)


def from_list(points: Sequence[Mapping[str, Any]], seed: int) -> Points:
    """The policy's defaults, then the points in an order drawn from `seed`."""
    order = list(points)
    random.Random(seed).shuffle(order)
    for point in ({}, *order):
        yield dict(point), lambda trial: None


def from_optuna(
    space: Space,
    settings_of: Callable[[Mapping[str, Any]], dict[str, Any]],
    loss: Callable[[Trial], float],
    seed: int,
    first: Sequence[Mapping[str, Any]] = (),
) -> Points:
    """The policy's defaults, then points of Optuna's tree-structured Parzen estimator.

    Args:
        space: ranges.
        settings_of: parameters of a point.
        loss: what is to be small.
        seed: of the sampler.
        first: points that are tried before the sampler's own, which it learns from as well.

    Raises:
        TunerMissing: Optuna is not installed.
    """
    optuna = import_optuna()
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
    study = optuna.create_study(sampler=sampler, direction="minimize")
    ranges = {name: _distribution(optuna, part) for name, part in space.items()}
    for point in first:
        study.enqueue_trial(dict(point))
    yield {}, lambda trial: None
    while True:
        asked = study.ask(ranges)
        point = {name: _rounded(space[name], asked.params[name]) for name in space}
        yield settings_of(point), partial(_tell, study, asked, loss)


def _tell(study: Any, asked: Any, loss: Callable[[Trial], float], trial: Trial) -> None:
    study.tell(asked, loss(trial))


def _distribution(optuna: Any, part: Part) -> Any:
    kinds = optuna.distributions
    if isinstance(part, Real):
        return kinds.FloatDistribution(part.low, part.high, log=part.log)
    if isinstance(part, Whole):
        return kinds.IntDistribution(part.low, part.high, log=part.log)
    assert isinstance(part, Choice)
    return kinds.CategoricalDistribution(part.values)


def _rounded(part: Part, value: Any) -> Any:
    """Three digits: what is written is what was tried, and nobody knows a setting better than that."""
    return float(f"{value:.3g}") if isinstance(part, Real) else value
