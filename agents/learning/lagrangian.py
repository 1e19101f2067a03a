"""Prices of misses that move until an attainment is met: the Lagrangian form of the reward.

The scenario's reward charges each class's violations at a fixed price. Here the price is times a
multiplier of the class, which dual ascent moves after every rollout: up by `rate` times the attainment that
is lacking, down where there is more than asked for, and never out of [0, `most`].

What is measured is what the tables show: of all arrivals, the share served in time. A request that the
horizon cuts off is a miss there, but no violation in the scenario's reward, which charges the work left
over alone, so learners leave batch requests lying at the end. Where an attainment is asked for, every miss
of the class costs the same, cut off or not. Under `reward.prices` shares are of judged requests
only: those that the horizon cuts off while they can still be in time are no misses, and the scenario charges
all misses itself.

With `per = "workload"` every workload that training draws has multipliers of its own: a policy for a family
of services is asked to keep the target on each, and not on their average, to which easy ones would lend what
hard ones lack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from agents.configuration.settings import LagrangianConfig
from agents.vec_adapter import NativeVecEnv
from llmscale_env.control.reward import violation_prices
from llmscale_env.scenarios import Scenario

if TYPE_CHECKING:
    from llmscale_env.control.results.result import EpisodeResult


def asked_of(settings: LagrangianConfig, scenario: Scenario) -> dict[str, float]:
    """Attainment asked, by class; without the classes of which nothing is asked."""
    asked = settings.attainment
    if asked is None:
        return {}
    return asked if isinstance(asked, dict) else {c.name: asked for c in scenario.classes}


def targets_of(settings: LagrangianConfig, scenario: Scenario) -> NDArray[np.float64]:
    """(C,) attainment asked of each class; NaN: nothing is asked of it."""
    asked = asked_of(settings, scenario)
    return np.array([asked.get(c.name, np.nan) for c in scenario.classes])


def fixed_multipliers(settings: LagrangianConfig, scenario: Scenario) -> NDArray[np.float64]:
    """(C,) multipliers that training begins with, and with `rate = 0` ends with."""
    return np.where(np.isnan(targets_of(settings, scenario)), 1.0, settings.start)


def misses(row: Mapping[str, Any], scenario: Scenario) -> NDArray[np.float64]:
    """(C,) requests of each class that were not served in time; open ones count, but not under prices.

    Args:
        row: an episode's summary, or numbers of it.
        scenario: that it is an episode of.
    """
    ends = ["late", "rejected"] + (["unfinished"] if scenario.reward.prices is None else [])
    return np.array([sum(row[f"{c.name}/{end}"] for end in ends) for c in scenario.classes], float)


def priced_return(
    row: Mapping[str, Any], scenario: Scenario, multipliers: NDArray[np.float64]
) -> float:
    """What an episode is worth where every miss of a class costs `multipliers` times the scenario's price.

    Args:
        row: the episode's summary, or numbers of it.
        scenario: that it is an episode of.
        multipliers: (C,), 1 for classes of which nothing is asked: what the horizon cuts off counts for them
            here, though training does not charge it.
    """
    others = row["reward"] + row["cost/violations"]
    return float(others - np.sum(multipliers * violation_prices(scenario) * misses(row, scenario)))


def priced_rewards(
    result: EpisodeResult, scenario: Scenario, settings: LagrangianConfig
) -> NDArray[np.float64]:
    """(k,) rewards of an episode's intervals at the prices that training begins with.

    Args:
        result: the episode, whose decisions are at intervals.
        scenario: that it is an episode of.
        settings: without an attainment, rewards are the scenario's.
    """
    rewards = np.array(result.series["reward"], np.float64)
    if settings.attainment is None:
        return rewards
    asked = ~np.isnan(targets_of(settings, scenario))
    missed = misses(result.summary, scenario)
    prices = violation_prices(scenario)
    for c, name in enumerate(slo_class.name for slo_class in scenario.classes):
        if not asked[c]:
            continue
        late = np.asarray(result.series[f"{name}/violations"], np.float64)
        # The scenario's own reward has charged the late ones once, and the horizon's none.
        rewards -= prices[c] * (settings.start - 1.0) * late
        rewards[-1] -= prices[c] * settings.start * (missed[c] - late.sum())
    return rewards


_MOVING = ("multipliers", "attainment", "_late_before", "_arrived_before", "_missed", "_arrived")
"""What changes in a `LagrangianVecEnv` while it is learnt on."""


class LagrangianVecEnv(VecEnvWrapper):
    """Rewards with prices that `update` moves; what is reported of episodes stays unscaled.

    Args:
        venv: the environment.
        scenario: whose classes there are; groups of other scenarios have prices of their own.
        settings: see `LagrangianConfig`.
        workloads: names by which the environment's `labels` tell its groups apart, each with multipliers of
            its own; empty: one for all.

    Attributes:
        class_names: in the order of the arrays.
        targets: (C,) attainment asked of each class; NaN: nothing.
        workloads: names of the W rows below; ("",): one for all.
        multipliers: (W, C) present ones; 1 for classes of which nothing is asked.
        attainment: (W, C) measured since the last `update` but one; NaN before, or without arrivals.
    """

    def __init__(
        self,
        venv: NativeVecEnv,
        scenario: Scenario,
        settings: LagrangianConfig,
        workloads: Sequence[str] = (),
    ) -> None:
        super().__init__(venv)
        self._native = venv
        self._settings = settings
        self.class_names = [c.name for c in scenario.classes]
        self.targets = targets_of(settings, scenario)
        self.workloads = tuple(workloads) or ("",)
        by_class = (len(self.workloads), len(self.class_names))
        self.multipliers = np.tile(fixed_multipliers(settings, scenario), (len(self.workloads), 1))
        self.attainment = np.full(by_class, np.nan)
        self._scenario = scenario
        self._prices: dict[int, tuple[Scenario, NDArray[np.float64]]] = {}
        shape = (venv.num_envs, len(self.class_names))
        self._late_before, self._arrived_before = np.zeros(shape), np.zeros(shape)
        self._missed, self._arrived = np.zeros(by_class), np.zeros(by_class)

    def state(self) -> dict[str, Any]:
        """What `put_back` needs for going on from here."""
        return {name: getattr(self, name).copy() for name in _MOVING}

    def put_back(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state` was called."""
        for name in _MOVING:
            getattr(self, name)[:] = state[name]

    def reset(self) -> Any:
        """Begin all episodes anew."""
        self._late_before[:] = 0
        self._arrived_before[:] = 0
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        # Before the step, in which a group may get another scenario.
        price, rows = self._prices_now(), self._rows()
        obs, rewards, dones, infos = self.venv.step_wait()
        late, cut_off = self._count(dones, rows)
        multipliers = self.multipliers[rows]
        # The scenario's own reward has charged the late ones once.
        asked = ~np.isnan(self.targets)
        misses = late * (multipliers - 1.0) + cut_off * multipliers * asked
        extra = -(misses * price).sum(axis=1)
        return obs, rewards + (extra * self._native.reward_scale).astype(np.float32), dones, infos

    def _rows(self) -> NDArray[np.int64]:
        """(n,) row of the multipliers that hold for each episode."""
        if len(self.workloads) == 1:
            return np.zeros(self.num_envs, np.int64)
        labels: Sequence[str] = getattr(self._native.env, "labels", ())
        found = [self.workloads.index(label) for label in labels]
        return np.repeat(found, self.num_envs // len(found))

    def _count(
        self, dones: NDArray[np.bool_], rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(n, C) violations of the interval, and (n, C) what else is not on time at the horizon."""
        infos = self._native.native_infos
        metrics = infos["metrics"]
        late = np.stack([metrics[f"{name}/violations"] for name in self.class_names], axis=1)
        arrived = np.stack([metrics[f"{name}/arrived"] for name in self.class_names], axis=1)
        violations, came = late - self._late_before, arrived - self._arrived_before
        cut_off = np.zeros_like(violations)
        if dones.any():
            summary = infos["episode_summary"]
            share = np.stack([summary[f"{n}/slo_attainment"] for n in self.class_names], axis=1)
            if self._scenario.reward.prices is None:
                # Rounded, since the share is a quotient of whole numbers.
                in_all = np.rint(arrived * (1.0 - share))
                cut_off[dones] = in_all[dones] - late[dones]
            else:  # the share is of judged requests, and all misses among them are counted as late
                judged = np.rint(late / np.where(late > 0, 1.0 - share, 1.0))
                came -= np.where(dones[:, None] & (late > 0), arrived - judged, 0.0)
        np.add.at(self._missed, rows, violations + cut_off)
        np.add.at(self._arrived, rows, came)
        self._late_before, self._arrived_before = late.copy(), arrived.copy()
        self._late_before[dones] = 0
        self._arrived_before[dones] = 0
        return violations, cut_off

    def update(self) -> None:
        """A rollout is over: move the multipliers by what was measured in it."""
        known = self._arrived > 0
        self.attainment = np.where(known, 1.0 - self._missed / np.maximum(self._arrived, 1), np.nan)
        lacking = np.where(np.isnan(self.targets) | ~known, 0.0, self.targets - self.attainment)
        moved = self.multipliers + self._settings.rate * lacking
        asked = ~np.isnan(self.targets)
        self.multipliers = np.where(
            asked, np.clip(moved, 0.0, self._settings.most), self.multipliers
        )
        self._missed[:] = 0
        self._arrived[:] = 0

    def _prices_now(self) -> NDArray[np.float64]:
        """(n, C) or (C,) prices of the scenarios that the episodes are of."""
        scenarios = getattr(self._native.env, "scenarios", None)
        if scenarios is None:
            return self._prices_of(self._scenario)
        found = [self._prices_of(scenario) for scenario in scenarios]
        self._prices = {id(scenario): self._prices[id(scenario)] for scenario in scenarios}
        return np.repeat(found, self.num_envs // len(found), axis=0)

    def _prices_of(self, scenario: Scenario) -> NDArray[np.float64]:
        if id(scenario) not in self._prices:
            self._prices[id(scenario)] = (scenario, violation_prices(scenario))
        return self._prices[id(scenario)][1]


class DualAscent(BaseCallback):
    """Moves the multipliers after every rollout and logs them as `llmscale/lagrangian/*`."""

    def __init__(self, env: LagrangianVecEnv) -> None:
        super().__init__()
        self._env = env

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        used = self._env.multipliers.copy()
        self._env.update()
        for w, workload in enumerate(self._env.workloads):
            for c, name in enumerate(self._env.class_names):
                tag = "/".join(part for part in ("llmscale/lagrangian", workload, name) if part)
                self.logger.record(f"{tag}/multiplier", float(used[w, c]))
                if not np.isnan(self._env.attainment[w, c]):
                    self.logger.record(f"{tag}/attainment", float(self._env.attainment[w, c]))
