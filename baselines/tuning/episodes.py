"""Episodes of a search, kept in a file, so that an interrupted search goes on where it was.

A search is deterministic: run again, it asks for the same episodes in the same order, and those that are in
the file are not simulated again. The file's name hangs on the policy, the scenarios and all sources of the
simulator and the policies, so nothing of an older version is ever taken.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from baselines.tuning.trials import Outcome
from llmscale_env._sealed import opened, sealed
from llmscale_env._spread import ALONE, Crew, Launcher, crew
from llmscale_env.cluster.cards import gpu_card, is_path, llm_card
from llmscale_env.control.results.result import on_time_share
from llmscale_env.control.reward import day_drawn, days_to_draw, even_seeds
from llmscale_env.control.run import run_episode
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.workload.config import TraceArrivals

FIRST_SEED = 1_000
MAX_SEEDS = 1_000
"""Tuning seeds stay far below the evaluation's, which begin at 10000."""

Play = Callable[[Any, ClusterSimulation, int], Outcome]
"""What an episode comes to: of a policy, a simulation that may be used again, and a seed."""

_ROOT = Path(__file__).parents[2]


def default_folder() -> Path:
    """Where episodes are kept unless a folder is named."""
    return Path(platformdirs.user_cache_dir("llmscale")) / "tune"


def fingerprint(name: str, scenarios: Sequence[Scenario]) -> str:
    """16 hexadecimal digits of everything that an episode's outcome hangs on but for setting and seed."""
    made = hashlib.sha256(name.encode())
    for scenario in scenarios:
        made.update(scenario.model_dump_json().encode())
        for pool in scenario.fleet.pools:
            # What a file holds that a pool names for a card.
            cards = [repr(llm_card(llm)) for llm in pool.llms if is_path(llm)]
            cards += [repr(gpu_card(pool.gpu))] if is_path(pool.gpu) else []
            made.update("".join(cards).encode())
        for path in _named(scenario):
            made.update(path.read_bytes())
    for package in ("llmscale_env", "baselines"):
        for path in sorted((_ROOT / package).rglob("*")):
            if path.suffix in (".py", ".yaml", ".csv", ".json", ".npz", ".gz") and (
                "tuned" not in path.parts and "tuning" not in path.parts
            ):
                made.update(path.relative_to(_ROOT).as_posix().encode())
                made.update(path.read_bytes())
    return made.hexdigest()[:16]


def _named(scenario: Scenario) -> Iterator[Path]:
    """Files that a scenario names and reads when it is simulated; what they hold may change."""
    if scenario.iteration_times is not None:
        yield Path(scenario.iteration_times)
    for stream in scenario.workload.streams:
        if isinstance(stream.arrivals, TraceArrivals):
            yield Path(stream.arrivals.path)


def tuning_seeds(scenario: Scenario, n: int) -> list[int]:
    """`n` seeds from `FIRST_SEED` on; every day that a seed may draw comes once before any comes again.

    So the first few of them are as even as all: those of a search's first round are part of the next.
    """
    days = days_to_draw(scenario.workload, scenario.horizon_s)
    if days is None:
        return list(range(FIRST_SEED, FIRST_SEED + n))
    came: Counter[int | None] = Counter()
    order: list[tuple[int, int]] = []
    for seed in even_seeds(scenario, FIRST_SEED, -(-n // days) * days):
        day = day_drawn(scenario.workload, scenario.horizon_s, np.random.default_rng(seed))
        order.append((came[day], seed))
        came[day] += 1
    return [seed for _, seed in sorted(order)[:n]]


def identity(settings: Mapping[str, Any]) -> str:
    """A setting as text, whatever the order of its parameters."""
    return json.dumps(settings, sort_keys=True)


class Episodes:
    """Runs episodes of a policy's settings, each once. To be closed, if there are several workers.

    Args:
        kind: the policy's class.
        scenarios: each seed is one episode on every one of them.
        path: where outcomes are kept; None: only as long as this object lives.
        launcher: where episodes run that are asked for together; the outcomes are the same anywhere.
        play: plays an episode (a function that can be pickled, if there are several workers); None: with the
            requests that its seed draws, up to the scenario's end.

    Attributes:
        simulated, replayed: control intervals (environment steps) that were simulated, and that came from the
            file. Their sum is what the search has spent.
        after_each: called with the control intervals of a seed when it is known (a progress bar).
    """

    def __init__(
        self,
        kind: Any,
        scenarios: Sequence[Scenario],
        path: Path | None = None,
        launcher: Launcher = ALONE,
        play: Play | None = None,
    ) -> None:
        self.kind = kind
        self._play: Play = _played if play is None else play
        self._launcher = launcher
        self._crew: Crew | None = None
        self.scenarios = tuple(scenarios)
        self.path = path
        self.simulated = self.replayed = 0
        self.after_each: Callable[[int], object] = lambda steps: None
        self._simulations: list[ClusterSimulation] | None = None
        self._kept: dict[tuple[str, int], tuple[Outcome, ...]] = {}
        self._used: dict[tuple[str, int], tuple[Outcome, ...]] = {}
        self._ahead: dict[tuple[str, int], tuple[Outcome, ...]] = {}
        if path is not None and path.exists():
            self._kept = _read(path)

    @property
    def steps_per_seed(self) -> int:
        """Control intervals of one seed on all scenarios."""
        return sum(scenario.n_steps for scenario in self.scenarios)

    @property
    def most_gpu_hours(self) -> float:
        """Of an episode in which every GPU is billed all the time; the mean over the scenarios."""
        hours = [s.fleet.max_gpus * s.horizon_s / 3600 for s in self.scenarios]
        return sum(hours) / len(hours)

    def outcomes(self, settings: Mapping[str, Any], seeds: Sequence[int]) -> list[Outcome]:
        """Of every seed on every scenario.

        Raises:
            PolicyError: no setting of the policy, or a scenario that it cannot run.
        """
        self.prepare([settings], seeds)
        return [outcome for seed in seeds for outcome in self._one(settings, seed)]

    def prepare(self, several: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> None:
        """Run side by side what will be asked for, so far as there are several workers to do it.

        Raises:
            PolicyError: as `outcomes`.
            Slip, WorkerLost, OtherCode: see `llmscale_env._spread.Crew`. What was done is kept.
        """
        if self._launcher == ALONE:
            return
        todo: dict[tuple[str, int], Mapping[str, Any]] = {}
        for settings in several:
            for seed in seeds:
                key = identity(settings), seed
                if not any(key in known for known in (self._used, self._kept, self._ahead)):
                    todo.setdefault(key, settings)
        if not todo:
            return
        if self._crew is None:
            self._crew = crew(self._launcher).__enter__()
        for key, settings in todo.items():
            for k, scenario in enumerate(self.scenarios):
                call = self.kind, settings, scenario, key[1], self._play
                self._crew.submit((key, k), run_one, *call)
        found: dict[tuple[str, int], dict[int, Outcome]] = {key: {} for key in todo}
        for (key, k), outcome in self._crew:
            found[key][k] = outcome
            if len(found[key]) == len(self.scenarios):
                self._ahead[key] = tuple(found[key][k] for k in range(len(self.scenarios)))
                self.after_each(self.steps_per_seed)
                self._write(key, self._ahead[key])

    def close(self) -> None:
        """Let the workers go."""
        if self._crew is not None:
            self._crew.__exit__(None, None, None)
            self._crew = None

    def _one(self, settings: Mapping[str, Any], seed: int) -> tuple[Outcome, ...]:
        key = identity(settings), seed
        if key in self._used:
            return self._used[key]
        if key in self._kept:
            self.replayed += self.steps_per_seed
            self.after_each(self.steps_per_seed)
            self._used[key] = self._kept[key]
            return self._used[key]
        if key in self._ahead:  # simulated by this search, a moment ago
            self.simulated += self.steps_per_seed
            self._used[key] = self._ahead.pop(key)
            return self._used[key]
        if self._simulations is None:
            self._simulations = [ClusterSimulation(scenario) for scenario in self.scenarios]
        policy = self.kind(**settings)
        self._used[key] = tuple(
            self._play(policy, simulation, seed) for simulation in self._simulations
        )
        self.simulated += self.steps_per_seed
        self.after_each(self.steps_per_seed)
        self._write(key, self._used[key])
        return self._used[key]

    def _write(self, key: tuple[str, int], outcomes: tuple[Outcome, ...]) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        row = {"settings": key[0], "seed": key[1], "outcomes": [asdict(o) for o in outcomes]}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(sealed(row) + "\n")


def run_one(
    kind: Any, settings: Mapping[str, Any], scenario: Scenario, seed: int, play: Play | None = None
) -> Outcome:
    """One episode, in a process that may be asked again for the same scenario; `play` as in `Episodes`."""
    simulation = _simulation(scenario.model_dump_json())
    return (_played if play is None else play)(kind(**settings), simulation, seed)


@lru_cache(maxsize=32)
def _simulation(scenario: str) -> ClusterSimulation:
    return ClusterSimulation(Scenario.model_validate_json(scenario))


def _played(policy: Any, simulation: ClusterSimulation, seed: int) -> Outcome:
    scenario = simulation.scenario
    # Only trained policies read the view's forecast, and to keep one takes a sixth of an episode's time.
    forecaster = getattr(policy, "forecaster", None)
    made = run_episode(policy, scenario, seed, simulation=simulation, forecaster=forecaster).summary
    classes = tuple(on_time_share(made, c.name) for c in scenario.classes)
    return Outcome(made["reward"], made["joint/slo_attainment"], classes, made["gpu_hours"])


def _read(path: Path) -> dict[tuple[str, int], tuple[Outcome, ...]]:
    kept = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = opened(line)
        except ValueError:  # cut off by an interruption, or changed since
            continue
        kept[row["settings"], row["seed"]] = tuple(
            Outcome(**{**o, "by_class": tuple(o["by_class"])}) for o in row["outcomes"]
        )
    return kept
