"""What happens during learning besides learning: TensorBoard tags, validation, checkpoints, progress."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import TensorBoardOutputFormat
from tqdm import tqdm

from agents.configuration.config import TrainConfig
from agents.configuration.environments import simulations_of, validation_scenarios
from agents.learned import LearnedPolicy
from agents.learning.checkpoint import Keeper
from agents.learning.lagrangian import asked_of
from agents.learning.validation_score import worth
from agents.models.store import BEST, ModelError, check_finite, contents_of, write
from agents.runs.comparison import (
    Row,
    grouped,
    judged_shares,
    lacking,
    metrics_of,
    run_on_each,
)
from agents.runs.files import read_csv, write_csv
from agents.runs.stopping import Stop
from agents.vec_adapter import NativeVecEnv
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.scenarios import Scenario

GAUGES = ("active", "loading", "running", "waiting", "batch_limit")
"""Last part of the names of metrics that say how things stand, and are averaged over a rollout's steps."""


class RolloutTags(BaseCallback):
    """`llmscale/reward/*`, `llmscale/fleet/*` and `llmscale/episode/*` of the training episodes."""

    def __init__(self, env: NativeVecEnv) -> None:
        super().__init__()
        self._vec = env
        self._sums: dict[str, float] = defaultdict(float)
        self._steps = 0
        self._ended: dict[str, list[float]] = defaultdict(list)

    def _on_rollout_start(self) -> None:
        self._sums.clear()
        self._ended.clear()
        self._steps = 0

    def _on_step(self) -> bool:
        infos = self._vec.native_infos
        self._steps += 1
        self._sums["reward/total"] += float(self._vec.native_rewards.mean())
        for part, values in infos.get("reward_parts", {}).items():
            if not part.startswith("_"):
                self._sums[f"reward/{part}"] += float(np.mean(values))
        metrics = infos.get("metrics", {})
        for name, values in metrics.items():
            if name.rpartition("/")[2] in GAUGES or name.startswith("queue/"):
                self._sums[f"fleet/{name}"] += float(np.mean(values))
        done = self.locals["dones"]
        if done.any():
            for name, values in metrics.items():
                if name.endswith("slo_attainment") or "/" not in name:
                    self._ended[f"episode/{name}"].extend(np.asarray(values)[done].tolist())
        return True

    def _on_rollout_end(self) -> None:
        for name, total in self._sums.items():
            self.logger.record(f"llmscale/{name}", total / self._steps)
        for name, values in self._ended.items():
            self.logger.record(f"llmscale/{name}", float(np.mean(values)))


class Validation(BaseCallback):
    """Validates between rollouts, keeps the best and the last model, and writes both down.

    The last model holds exactly what has been learnt from its steps: it is as it was after an update and
    before the next rollout; an interrupted rollout is not counted, and is played again.

    Args:
        config: of the run.
        scenario: what it is validated on.
        folder: the run folder.
        simulation: of the scenario, to use again; other workloads get their own.
        stop: when to end.
        references: validation rows of the reference policies.
        keeper: writes down where the run is.
        on_validation: called with the steps and the rows of every validation, after all is saved.
    """

    def __init__(
        self,
        config: TrainConfig,
        scenario: Scenario,
        folder: Path,
        simulation: ClusterSimulation,
        stop: Stop,
        references: list[Row],
        keeper: Keeper,
        on_validation: Callable[[int, list[Row]], object] | None = None,
    ) -> None:
        super().__init__()
        self._on_validation = on_validation
        self.config, self.scenario, self.folder = config, scenario, folder
        self.stop = stop
        self.keeper = keeper
        self.scenarios = validation_scenarios(config, scenario)
        self.simulations = simulations_of(config, self.scenarios, simulation)
        self.levels = {
            policy: float(np.mean([row["reward"] for row in mine]))
            for policy, mine in grouped(references, "policy").items()
        }
        self.rows: list[Row] = []
        self.best: tuple[float, ...] = (-np.inf,)
        self.last_validation = -1
        self._rollout_began = 0

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from what an earlier part of the run wrote down."""
        self.best, self.last_validation = tuple(state["best"]), state["last"]
        path = self.folder / "validation.csv"
        if path.is_file():
            # A later one, of which the last model knows nothing, is made again.
            self.rows = [r for r in read_csv(path) if r["timesteps"] <= self.last_validation]

    # ---- stable-baselines3's hooks ----

    def _on_rollout_start(self) -> None:
        self._check()
        self.stop.ask()
        self._rollout_began = self.model.num_timesteps
        self.keeper.capture(self.model)
        due = self.last_validation + self.config.validation_every
        if self.last_validation < 0 or self.model.num_timesteps >= due:
            self.validate()

    def _on_step(self) -> bool:
        if self.stop.wanted:
            self.model.num_timesteps = self._rollout_began
            return False
        return True

    # ---- the work ----

    def _check(self) -> None:
        """Raises ModelError if the last update has led to weights that are no numbers."""
        try:
            check_finite(self.model)
        except ModelError:
            raise went_astray(self.model) from None

    def validate(self) -> None:
        """Run the validation episodes with the policy as it is now; keep it if it is the best."""
        self._check()
        steps = self.model.num_timesteps
        policy = LearnedPolicy(model=self.model, config=self.config)
        rows = run_on_each(
            policy,
            self.scenarios,
            self.config.validation_seeds(),
            simulations=self.simulations,
            after_each=self.stop.check,
        )
        self.rows += [{"timesteps": steps, **row} for row in rows]
        self.last_validation = steps
        score = self.score(rows)
        is_best = score > self.best
        if is_best:
            self.best = score
            write(self.folder / BEST, contents_of(self.model))
        write_csv(self.folder / "validation.csv", self.rows)
        # Before the model: what is missing of events of steps that it has learnt from stays so.
        log_levels(tensorboard_writer(self.model), rows, self.scenario, steps)
        self.save()
        tqdm.write(self._line(steps, rows, is_best), file=sys.stderr)
        if self._on_validation is not None:
            self._on_validation(steps, rows)

    def score(self, rows: list[Row]) -> tuple[float, ...]:
        """What the best model has most of, in order.

        Where prices of misses move, it is the one that lacks least attainment, and of those the one with the
        fewest GPU-hours; where they are fixed, the one with the best return at these prices.
        """
        settings = self.config.lagrangian
        if settings.attainment is None or settings.is_fixed:
            return (worth(rows, self.config, self.scenario),)
        asked = asked_of(settings, self.scenario)
        hours = float(np.mean([row["gpu_hours"] for row in rows]))
        return (-round(lacking(rows, asked), 6), -hours)

    def save(self) -> None:
        """Write the last model, whole, and where the run is."""
        state = {"best": list(self.best), "last": self.last_validation}
        self.keeper.write(self.folder, self.model, state)

    def _line(self, steps: int, rows: list[Row], is_best: bool) -> str:
        mean = {
            key: float(np.mean([row[key] for row in rows])) for key in metrics_of(self.scenario)
        }
        judged = {name: judged_shares(rows, name) for name in self.scenario.class_groups}
        classes = ", ".join(
            f"{name} {100 * np.mean(shares):.1f} %" if shares else f"{name} -"
            for name, shares in judged.items()
        )
        at_price = ""
        if self.config.lagrangian.is_fixed:
            at_price = f", at its price {worth(rows, self.config, self.scenario):.1f}"
        # A residual network begins as the rule that it corrects: it is no better than that one then.
        same = [name for name, level in self.levels.items() if abs(mean["reward"] - level) < 1e-9]
        beaten = [n for n, level in self.levels.items() if mean["reward"] > level and n not in same]
        decimals = 1 if abs(mean["reward"]) >= 10 else 3
        return (
            f"{steps:>11,} steps  reward {mean['reward']:8.{decimals}f}"
            f"{' (best)' if is_best else '       '}  "
            f"{classes}, {mean['gpu_hours']:.2f} GPU-h{at_price}"
            + (f"  as {', '.join(same)}" if same else "")
            + (f"  above {', '.join(beaten)}" if beaten else "")
        )


class WentAstray(ModelError):
    """An update has made weights so large that they, or what the network says, are no numbers."""


def went_astray(model: Any) -> WentAstray:
    """The error, for a model as it is now."""
    return WentAstray(
        f"learning went astray: after {model.num_timesteps:,} steps the network's numbers are NaN or "
        "infinite. Train anew with a lower learning_rate"
    )


class Progress(BaseCallback):
    """A bar over the steps, on terminals."""

    def __init__(self, total: int) -> None:
        super().__init__()
        self._total = total
        self._bar: Any = None

    def _on_training_start(self) -> None:
        self._bar = tqdm(
            total=self._total,
            initial=self.model.num_timesteps,
            unit=" steps",
            unit_scale=True,
            disable=None,
            leave=False,
            smoothing=0.05,
        )

    def _on_step(self) -> bool:
        self._bar.update(self.training_env.num_envs)
        return True

    def _on_training_end(self) -> None:
        self._bar.close()


def tensorboard_writer(model: Any) -> Any:
    """The writer behind a model's logger, or None without one."""
    for output in model.logger.output_formats:
        if isinstance(output, TensorBoardOutputFormat):
            return output.writer
    return None


def take_back_events(model: Any) -> None:
    """Have TensorBoard leave out what was logged of steps that are taken again: those beyond the model's."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    start = SessionLog(status=SessionLog.START)
    tensorboard_writer(model).file_writer.add_event(
        Event(step=model.num_timesteps + 1, session_log=start)
    )


def log_levels(writer: Any, rows: list[Row], scenario: Scenario, steps: int) -> None:
    """Write the means of validation rows as `llmscale/eval/*`."""
    if writer is None:
        return
    for key in metrics_of(scenario):
        value = np.array([row[key] for row in rows], np.float64)
        if not np.isnan(value).all():
            writer.add_scalar(f"llmscale/eval/{key}", float(np.nanmean(value)), steps)
    writer.flush()


def log_references(folder: Path, rows: list[Row], scenario: Scenario, until: int) -> None:
    """Level lines: per policy a TensorBoard run of its own, with the tags of the learner's validation.

    The same tags land in the same chart, so one sees when learning passes a level.
    """
    from torch.utils.tensorboard import SummaryWriter

    for policy, mine in grouped(rows, "policy").items():
        # In place of the lines of earlier sessions, which may have been shorter.
        with SummaryWriter(str(folder / f"reference_{policy}"), purge_step=0) as writer:
            for step in (0, until):
                log_levels(writer, mine, scenario, step)
