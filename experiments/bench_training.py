"""Whose time training is, by `python -m experiments.bench what=training`.

Learners as `agents.train` makes them, on `mixed-slo-hours` with its own options, but without validation: with
the observation of these options, with blocks of any cluster size added, and on changing scenarios.
Beside them PPO of the same network, `n_envs`, `n_steps` and batch on CartPole-v1.

One thread, CPU seconds (on a machine with nothing else to do they are the wall's). `agents.train` lets two
threads advance the engine, so there its share is smaller. Calls are timed one inside the other and every
second is counted once, for the innermost:

    engine    events, windows and orders in the fast engine's kernels
    drawing   the requests of new episodes
    starting  the rest of new episodes: the engine's arrays; new scenarios and their environments
    python    the rest of the environment: observations, orders from actions, masks, infos, rewards
    rollout   the rest of collecting: policy, adapter of the vector environment, buffers, callbacks
    learner   updates of the networks
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from experiments.bench_env import CARTPOLE, Wrapper, engine_calls, wrapped

PARTS = ("engine", "drawing", "starting", "python", "rollout", "learner")
SECONDS = 20.0
"""Of a configuration, about."""

SIZE_FREE = ("class_load", "urgency", "pool_state", "slo_tails")
QUICK = {
    "n_envs": 2,
    "same_arrivals": 1,
    "group_baseline": False,
    "hyper.n_steps": 240,
    "hyper.batch_size": 120,
    "hyper.n_epochs": 1,
}
VARIED = {"n_envs": 36, "same_arrivals": 3, "randomise.groups": 12}


class Ledger:
    """Time by part, of calls one inside the other: that of the inner one is not the outer one's.

    Args:
        clock: seconds.

    Attributes:
        spent_s: by part.
    """

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self._clock = clock
        self._open: list[str] = []
        self._since = 0.0
        self.spent_s: dict[str, float] = {}

    def _turn(self) -> None:
        """The part that was under way until now is given its time."""
        now = self._clock()
        if self._open:
            part = self._open[-1]
            self.spent_s[part] = self.spent_s.get(part, 0.0) + now - self._since
        self._since = now

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Time in here is `part`'s, as far as it is no inner one's."""
        self._turn()
        self._open.append(part)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def wrapper(self, part: str) -> Wrapper:
        """What makes of a function one whose calls are noted for a part."""

        def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def timed(*arguments: Any, **named: Any) -> Any:
                with self.of(part):
                    return function(*arguments, **named)

            return timed

        return wrap


def _config(changes: dict[str, Any], quick: bool) -> Any:
    """Defaults of `mixed-slo-hours` with changes, one engine thread; `hyper.` is the learner's section."""
    from agents.configuration.config import make_config

    given = {"env_threads": 1, **changes, **(QUICK if quick else {})}
    if quick and "randomise.groups" in given:
        given["randomise.groups"] = given["n_envs"]
    agent = given.get("agent", "ppo")
    return make_config(
        "mixed-slo-hours", {k.replace("hyper.", f"{agent}."): v for k, v in given.items()}
    )


def _plan(venv: Any, model: Any, is_ours: bool) -> list[tuple[Any, str, str]]:
    """What is timed: (owner, attribute, part)."""
    learning = [(model, "train", "learner")]
    if not is_ours:
        return [*learning, *((venv, name, "python") for name in ("reset", "step_wait"))]
    from agents.learning import variety
    from llmscale_env.envs import core

    return [
        *learning,
        *((venv.env, name, "python") for name in ("reset", "step", "action_masks")),
        *((owner, name, "engine") for owner, name in engine_calls()),
        (core, "draw_requests", "drawing"),
        (core.ServingCore, "start", "starting"),
        (variety, "make_vector_env", "starting"),
        (variety.ScenarioSource, "scenario", "starting"),
    ]


def measure(what: str, venv: Any, model: Any, callback: Any, seconds: float) -> dict[str, Any]:
    """A row: `model` learns on `venv` for about `seconds`, after a rollout to warm up.

    Whole episodes of `mixed-slo-hours`, so that starting them has its share.
    """
    from agents.vec_adapter import NativeVecEnv

    ours = isinstance(venv, NativeVecEnv)
    clock = time.process_time
    rollout = model.n_steps * venv.num_envs
    start = clock()
    model.learn(rollout, callback=callback)
    each_s = clock() - start
    episode = 240 // math.gcd(240, model.n_steps) if ours else 1
    rollouts = episode * max(1, round(seconds / each_s / episode))
    before = int(model.num_timesteps)
    ledger = Ledger(clock)
    plan = [(owner, name, ledger.wrapper(part)) for owner, name, part in _plan(venv, model, ours)]
    with wrapped(plan), ledger.of("rollout"):
        model.learn(rollouts * rollout, callback=callback, reset_num_timesteps=False)
    steps = int(model.num_timesteps) - before
    total_s = sum(ledger.spent_s.values())
    shares = {part: 100 * ledger.spent_s.get(part, 0.0) / total_s for part in PARTS}
    return {
        "what": what,
        "environments": venv.num_envs,
        "steps": steps,
        "steps_per_s": round(steps / total_s),
        "us_per_step": round(total_s / steps * 1e6, 1),
        **{f"{part}_percent": round(share, 2) for part, share in shares.items()},
    }


def ours(what: str, changes: dict[str, Any], quick: bool) -> dict[str, Any]:
    """A learner of `agents.train` on `mixed-slo-hours`."""
    from stable_baselines3.common.logger import configure

    from agents.configuration.environments import make_scenario
    from agents.learning.callbacks import RolloutTags
    from agents.learning.learner import _training_env, make_learner
    from agents.vec_adapter import NativeVecEnv

    config = _config(changes, quick)
    scenario = make_scenario(config)
    venv = NativeVecEnv(_training_env(config, scenario), reward_scale=config.reward_scale)
    try:
        model = make_learner(config, venv, scenario)
        model.set_logger(configure(None, []))
        venv.seed_each(config.training_seeds())
        return measure(what, venv, model, RolloutTags(venv), 0.0 if quick else SECONDS)
    finally:
        venv.close()


def cartpole(quick: bool) -> dict[str, Any]:
    """PPO with the settings of `mixed-slo-hours` on CartPole-v1."""
    import gymnasium as gym
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.vec_env import DummyVecEnv

    from agents.models.algorithms import make_model

    config = _config({}, quick)
    venv = DummyVecEnv([functools.partial(gym.make, CARTPOLE) for _ in range(config.n_envs)])
    try:
        model = make_model(config, venv)
        model.set_logger(configure(None, []))
        what = f"ppo, {CARTPOLE}, DummyVecEnv"
        return measure(what, venv, model, None, 0.0 if quick else SECONDS)
    finally:
        venv.close()


def bench_training(quick: bool) -> list[dict[str, Any]]:
    """Steps per second of learners, and whose time it is."""
    import torch

    from agents.configuration.config import make_config

    torch.set_num_threads(1)
    more = (*(make_config("mixed-slo-hours", {}).observation or ()), *SIZE_FREE)
    rows = [cartpole(quick)]
    for agent in ("ppo", "maskable-ppo"):
        for seen, changes in (("", {}), (" and size-free blocks", {"observation": more})):
            what = f"{agent}, mixed-slo-hours{seen}"
            rows.append(ours(what, {"agent": agent, **changes}, quick))
    varied = {"agent": "maskable-ppo", "observation": more, **VARIED}
    rows.append(ours("maskable-ppo, 12 groups of changing scenarios", varied, quick))
    return rows
