"""Settings for a case, found on the first part of its trace: the least fixed fleet, and each autoscaler's.

A search sees the first part under `HEADROOM` times its requests. What keeps a target with nothing to spare
there would miss it as soon as the held-out part is a little busier.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from baselines.fleet import UniformPolicy
from baselines.parameters import PolicyError
from baselines.registry import POLICIES, TUNABLE, settings_of, space_of
from baselines.space import Choice, Part, Space, Whole
from baselines.tuned_settings import FOLDER, read_settings, settings_path
from baselines.tuning.episodes import Episodes, fingerprint
from baselines.tuning.halving import Plan
from baselines.tuning.search import Points, from_optuna, halve
from baselines.tuning.trials import Score, Trial
from experiments.desk.advising.case import POOL, TUNING_SEED, Case
from experiments.desk.advising.episode import play_tuning
from experiments.least import least
from llmscale_env.scenarios.schema import Scenario

HEADROOM = 1.1
"""Requests that settings have to stand, over those of the first part. Ours."""

LIMITS = (None, 128, 64, 32)
"""Batch limits of fixed fleets; None: the engine's own."""

TRIALS = 40
"""Settings that are tried of each autoscaler, where the first part is short."""

LEAST_TRIALS = 12

LIKE = "mixed-slo-hours"
"""A service that ships, for which every policy's settings at 99 % were searched."""

EPISODE_REQUESTS = 40_000
"""Requests of a first part that is short; of longer ones fewer settings are tried."""

PLANNER_SHARE = 20
"""A planner plays what it may order, and an episode takes so many times as long."""

SEARCH_SEED = 0
"""Of the sampler. It is not the command's: what is named must not hang on a draw."""

# One pool has nothing to divide among classes or pools, and load_s says how long loading takes.
_FIXED_HERE = ("load_source", "serving", "own_share")


def key_of(case: Case) -> str:
    """16 hexadecimal digits of all that an outcome of a search hangs on but for policy and settings."""
    code = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        code.update(path.read_bytes())
    return fingerprint(f"advise {code.hexdigest()}", [case.tuning(HEADROOM).scenario])


def trials_of(name: str, requests: int) -> int:
    """Settings that are tried, by the work that one is; never by the clock, so that an answer repeats."""
    wanted = TRIALS * EPISODE_REQUESTS // max(requests, EPISODE_REQUESTS)
    if POLICIES[name].plans:
        wanted //= PLANNER_SHARE
    return max(LEAST_TRIALS if not POLICIES[name].plans else 2, wanted)


def space_here(name: str, scenario: Scenario) -> Space:
    """What is searched of a policy's space, and its least number of replicas, which every operator sets.

    More than the fixed fleet, with which the scenario starts, would not be searched for savings.
    """
    space = space_of(TUNABLE[name], scenario)
    found = {key: part for key, part in space.items() if key not in _FIXED_HERE}
    if issubclass(TUNABLE[name], UniformPolicy):
        found["min_instances"] = Whole(1, scenario.fleet.pools[0].initial_instances)
    return found


def begins_with(name: str, space: Space) -> list[dict[str, Any]]:
    """Parts of points at which a search begins; the sampler draws what they leave open.

    They are the settings that the same search found for a service that ships, with few replicas at least
    and with half of the fixed fleet; and the fixed fleet as the floor, which is never too little.
    """
    path = settings_path(name, LIKE, folder=FOLDER / "at-99")
    found = read_settings(name, LIKE, path) if path.is_file() else {}
    like = {key: value for key, value in found.items() if key in space and _in(space[key], value)}
    floor = space.get("min_instances")
    if not isinstance(floor, Whole):
        return [like] if like else []
    most = {"min_instances": floor.high}
    floors = dict.fromkeys((1, (floor.high + 1) // 2))
    return [most, *({**like, "min_instances": count} for count in floors)]


def _in(part: Part, value: Any) -> bool:
    return value in part.values if isinstance(part, Choice) else part.low <= value <= part.high


def able(name: str, case: Case) -> str:
    """Why a policy cannot run the case; "": it can."""
    try:
        TUNABLE[name]().reset(case.tuning(HEADROOM).scenario, 0)
    except PolicyError as error:
        return str(error)
    return ""


def fixed_settings(instances: int, limit: int | None) -> dict[str, Any]:
    """Parameters of `static`."""
    return {POOL: instances} | ({} if limit is None else {"batch_limit": limit})


def spelled(name: str, settings: Mapping[str, Any]) -> str:
    """As `policies=` of other commands takes it."""
    parts = [f"{key}={'none' if value is None else value}" for key, value in settings.items()]
    return f"{name}:{'+'.join(parts)}" if parts else name


def least_fixed(
    case: Case,
    target: float,
    folder: Path,
    code: str,
    after_each: Callable[[], object] = lambda: None,
) -> tuple[int, int | None] | None:
    """(instances, batch limit) of the smallest fixed fleet that keeps every class's target; None: none does.

    A larger limit comes first among fleets of one size. Fleets are there from the start.
    """
    scores: dict[tuple[int, int | None], bool] = {}
    sizes: dict[int, Episodes] = {}

    def enough(instances: int, limit: int | None) -> bool:
        key = instances, limit
        if key not in scores:
            if instances not in sizes:
                place = folder / f"static-{instances}_{code}.jsonl"
                sizes[instances] = _episodes("static", replace(case, initial=instances), place)
            settings = fixed_settings(instances, limit)
            trial = Trial.of(settings, sizes[instances].outcomes(settings, [TUNING_SEED]))
            scores[key] = trial.worst_class >= target
            after_each()
        return scores[key]

    best: tuple[int, int | None] | None = None
    for limit in LIMITS:
        if best is None:
            found = least(lambda n, limit=limit: enough(n, limit), case.most, case.initial)  # type: ignore[misc]
            best = None if found is None else (found, limit)
            continue
        while best[0] > 1 and enough(best[0] - 1, limit):
            best = best[0] - 1, limit
    return best


def tune(
    name: str,
    case: Case,
    target: float,
    trials: int,
    folder: str,
    code: str,
    tell: Callable[[Any], Any] | None = None,
) -> dict[str, Any]:
    """The policy's settings with the fewest GPU-hours of those that keep every class's target.

    Where none does: those that come nearest. Episodes are kept in `folder`, so that an interrupted
    search goes on where it was.

    Args:
        name: in the registry.
        case: the cluster and its load.
        target: attainment.
        trials: settings to try, the policy's defaults among them.
        folder: where episodes are kept.
        code: of the code and the case, in the file's name.
        tell: is told of each setting (`llmscale_env._spread.crew`).
    """
    kind, scenario = TUNABLE[name], case.tuning(HEADROOM).scenario
    score = Score("gpu-hours", target)
    kept = Path(folder) / f"{name}_{code}.jsonl"
    with closing(_episodes(name, case, kept)) as episodes:

        def settings(point: Mapping[str, Any]) -> dict[str, Any]:
            return settings_of(kind, point, scenario)

        def loss(trial: Trial) -> float:
            return score.loss(trial, episodes.most_gpu_hours)

        space = space_here(name, scenario)
        points = from_optuna(space, settings, loss, SEARCH_SEED, begins_with(name, space))
        if tell is not None:
            points = _telling(points, tell)
        found = halve(episodes, points, Plan(((trials, 1),), trials), score)
    return found.trials[0].parameters


def _episodes(name: str, case: Case, kept: Path) -> Episodes:
    scenario = case.tuning(HEADROOM).scenario
    play = partial(play_tuning, case, HEADROOM)
    return Episodes(TUNABLE[name], [scenario], kept, play=play)


def _telling(points: Points, tell: Callable[[Any], Any]) -> Iterator[tuple[dict[str, Any], Any]]:
    for count, point in enumerate(points):
        if count:
            tell(1)
        yield point
