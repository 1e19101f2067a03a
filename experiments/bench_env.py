"""Environment steps and PPO frames per second, and whose time they are, for `python -m experiments.bench`.

Random actions drawn beforehand; CartPole beside it shows what the frameworks cost by themselves. The
share of the engine is the time in which at least one thread is inside it; the rest of a step is
Python, the rest of a PPO frame the learner's.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

ID = "llmscale/MixedSLO-v0"
CARTPOLE = "CartPole-v1"
HEAD = (
    "what",
    "environments",
    "steps",
    "steps_per_s",
    "us_per_step",
    "engine_percent",
    "environment_percent",
    "learner_percent",
)
VECTOR_SIZES = (1, 8, 64, 256)


def environments_exist() -> bool:
    """Whether `llmscale_env.envs` has the environment yet."""
    return find_spec("llmscale_env.envs.mixed_slo") is not None


class Stopwatch:
    """Time during which at least one of the calls that it wraps is under way."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, with every call noted."""

        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.spans.append((start, time.perf_counter()))

        return timed

    def total_s(self, since: float = 0.0) -> float:
        """Length of the union of all calls that began at `since` or later."""
        total, end = 0.0, since
        for start, stop in sorted(span for span in self.spans if span[0] >= since):
            total += max(0.0, stop - max(start, end))
            end = max(end, stop)
        return total


@contextmanager
def engine_watched() -> Iterator[Stopwatch]:
    """A stopwatch around the fast engine's calls that simulate, as long as the context lasts."""
    from llmscale_env.sim.fast import EngineBatch

    watch = Stopwatch()
    names = [name for name in ("advance", "advance_range") if hasattr(EngineBatch, name)]
    kept = {name: getattr(EngineBatch, name) for name in names}
    for name, function in kept.items():
        setattr(EngineBatch, name, watch.wrap(function))
    try:
        yield watch
    finally:
        for name, function in kept.items():
            setattr(EngineBatch, name, function)


def _row(
    what: str, envs: int, steps: int, total_s: float, engine_s: float | None, env_s: float | None
) -> tuple[Any, ...]:
    """`engine_s` is part of `env_s`; None where there is none."""
    inside = total_s if env_s is None else env_s
    engine = 0.0 if engine_s is None else engine_s
    shares = (engine, inside - engine, total_s - inside)
    return (
        what,
        envs,
        steps,
        round(steps / total_s),
        round(total_s / steps * 1e6, 1),
        *(round(100 * share / total_s, 1) for share in shares),
    )


def single(env_id: str, steps: int) -> tuple[Any, ...]:
    """One environment, random actions, reset where an episode ends (resets are counted in)."""
    import gymnasium as gym

    env = gym.make(env_id)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(steps)]
    env.reset(seed=0)
    env.step(actions[0])
    env.reset(seed=0)
    with engine_watched() as watch:
        start = time.perf_counter()
        for action in actions:
            done = env.step(action)[2:4]
            if any(done):
                env.reset()
        total_s = time.perf_counter() - start
    env.close()
    return _row(f"{env_id}, gym.make", 1, steps, total_s, watch.total_s(start), None)


def vectorised(n_envs: int, steps: int) -> tuple[Any, ...]:
    """Our vectorised environment, random actions; `steps` over all of its environments."""
    import gymnasium as gym

    env = gym.make_vec(ID, num_envs=n_envs, vectorization_mode="vector_entry_point")
    rounds = max(1, steps // n_envs)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(rounds)]
    env.reset(seed=0)
    env.step(actions[0])
    with engine_watched() as watch:
        start = time.perf_counter()
        for action in actions:
            env.step(action)
        total_s = time.perf_counter() - start
    env.close()
    what = f"{ID}, gym.make_vec"
    return _row(what, n_envs, rounds * n_envs, total_s, watch.total_s(start), None)


def bench_env(quick: bool) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Environment steps per second, of one environment and of many in one call."""
    import llmscale_env  # noqa: F401  (registers the environments)

    steps = 200 if quick else 20_000
    rows = [single(CARTPOLE, steps)]
    if environments_exist():
        rows.append(single(ID, steps))
        for n_envs in VECTOR_SIZES[:2] if quick else VECTOR_SIZES:
            rows.append(vectorised(n_envs, 200 if quick else max(steps, 100 * n_envs)))
    return HEAD, rows


def _adapter() -> Any:
    """The class of `agents` that makes a vectorised environment one of stable-baselines3, or None."""
    from stable_baselines3.common.vec_env import VecEnv

    if find_spec("agents") is None:
        return None
    agents = importlib.import_module("agents")
    for module in pkgutil.iter_modules(agents.__path__, "agents."):
        if "vec" not in module.name:
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, VecEnv) and value is not VecEnv:
                return value
    return None


def ppo(what: str, venv: Any, frames: int, rollout: int) -> tuple[Any, ...]:
    """SB3's PPO with its default network, `rollout` frames between updates; one thread for torch."""
    import torch
    from stable_baselines3 import PPO

    torch.set_num_threads(1)
    n_steps = max(8, rollout // venv.num_envs)
    model = PPO(
        "MlpPolicy", venv, n_steps=n_steps, batch_size=256, n_epochs=10, device="cpu", seed=0
    )
    model.learn(n_steps * venv.num_envs)  # warm
    stepping = Stopwatch()
    for name in ("step_async", "step_wait"):
        setattr(venv, name, stepping.wrap(getattr(venv, name)))
    with engine_watched() as watch:
        start = time.perf_counter()
        model.learn(frames, reset_num_timesteps=True)
        total_s = time.perf_counter() - start
    frames = int(model.num_timesteps)
    row = _row(what, venv.num_envs, frames, total_s, watch.total_s(start), stepping.total_s(start))
    venv.close()
    return row


def bench_ppo(quick: bool) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """PPO frames per second on our environment beside CartPole, with the same settings."""
    import gymnasium as gym
    from stable_baselines3.common.vec_env import DummyVecEnv

    import llmscale_env  # noqa: F401

    frames, rollout = (256, 256) if quick else (20_480, 2_048)
    rows = []
    for env_id in (CARTPOLE, ID) if environments_exist() else (CARTPOLE,):
        makers: list[Callable[[], Any]] = [functools.partial(gym.make, env_id) for _ in range(8)]
        rows.append(ppo(f"PPO, {env_id}, DummyVecEnv", DummyVecEnv(makers), frames, rollout))
    adapter = _adapter()
    if adapter is not None and environments_exist():
        for n_envs in (8,) if quick else (8, 64):
            vector = gym.make_vec(ID, num_envs=n_envs, vectorization_mode="vector_entry_point")
            rows.append(ppo(f"PPO, {ID}, vectorised", adapter(vector), frames, rollout))
    return HEAD, rows
