"""Environment steps and PPO frames per second, and whose time they are, for `python -m experiments.bench`.

Random actions drawn beforehand; CartPole beside it shows what the frameworks cost by themselves. With
one thread, times are CPU seconds of the process (on a machine with nothing else to do they are the
wall's); with more, the wall's. The engine's share is the time in which at least one thread is inside
it; drawing the requests of a new episode stands apart; what is left of a step is Python, what is left of
a PPO frame the learner's.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

ID = "llmscale/MixedSLO-Hours-v1"
IDS = (
    ID,
    "llmscale/MultiModelQueue-v0",
    "llmscale/Placement-v1",
    "llmscale/PlacementPerRequest-v0",
    "llmscale/BurstMulticast-v0",
    "llmscale/MultiRegion-v1",
)
CARTPOLE = "CartPole-v1"
VECTOR_FORMS = ((1, 1), (8, 1), (64, 1), (64, 2), (256, 2))
"""Environments and threads of the vectorised form."""

EPISODE_STEPS = {IDS[0]: 240, IDS[1]: 360, IDS[2]: 180, IDS[3]: 4_000, IDS[4]: 300, IDS[5]: 96}
"""Of the fourth: with a fifth of the choices at random to wait, some 3,000 and never more than this."""


Clock = Callable[[], float]
Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def _clock(threads: int) -> Clock:
    return time.process_time if threads == 1 else time.perf_counter


class Stopwatch:
    """Time during which at least one of the calls that it wraps is under way."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.clock = clock
        self.spans: list[tuple[float, float]] = []

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, with every call noted."""

        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            start = self.clock()
            try:
                return function(*arguments, **named)
            finally:
                self.spans.append((start, self.clock()))

        return timed

    def total_s(self, since: float = 0.0) -> float:
        """Length of the union of all calls that began at `since` or later."""
        total, end = 0.0, since
        for start, stop in sorted(span for span in self.spans if span[0] >= since):
            total += max(0.0, stop - max(start, end))
            end = max(end, stop)
        return total


class Arrivals:
    """How many requests have arrived in the steps that it wraps."""

    def __init__(self) -> None:
        self.n = 0

    def wrap(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """`ServingCore.step`, with the arrivals of its interval counted."""

        @functools.wraps(step)
        def counted(core: Any, *arguments: Any) -> Any:
            found = step(core, *arguments)
            self.n += int(core.sim.by_class["arrived"].sum())
            return found

        return counted


class Watches(NamedTuple):
    """What is timed, and counted, inside an environment's step."""

    engine: Stopwatch
    new_episodes: Stopwatch
    arrivals: Arrivals


@contextmanager
def watched(clock: Clock) -> Iterator[Watches]:
    """Watches the engine's work, the start of episodes and arrivals as long as the context lasts."""
    from llmscale_env.envs.core import ServingCore

    watches = Watches(Stopwatch(clock), Stopwatch(clock), Arrivals())
    plan: list[tuple[Any, str, Wrapper]] = [
        *((owner, name, watches.engine.wrap) for owner, name in engine_calls()),
        (ServingCore, "start", watches.new_episodes.wrap),
        (ServingCore, "step", watches.arrivals.wrap),
    ]
    with wrapped(plan):
        yield watches


def engine_calls() -> list[tuple[Any, str]]:
    """(owner, name) of what a step spends its time in, in the fast engine."""
    from llmscale_env.sim.fast import EngineBatch, gateways, virtual_queues

    return [
        *((EngineBatch, name) for name in ("advance_range", "close_windows", "apply")),
        *((virtual_queues, name) for name in ("see_many", "order_many")),
        *((gateways, name) for name in ("see_gateways", "next_decisions", "assign_many")),
    ]


@contextmanager
def wrapped(plan: Sequence[tuple[Any, str, Wrapper]]) -> Iterator[None]:
    """Calls of (owner, name) go through a wrapper as long as the context lasts."""
    kept = [(owner, name, name in vars(owner), getattr(owner, name)) for owner, name, _ in plan]
    for (owner, name, _, function), (_, _, wrap) in zip(kept, plan, strict=True):
        setattr(owner, name, wrap(function))
    try:
        yield
    finally:
        for owner, name, own, function in kept:
            if own:
                setattr(owner, name, function)
            else:
                delattr(owner, name)


def _row(
    what: str,
    envs: int,
    threads: int,
    steps: int,
    total_s: float,
    watches: Watches,
    start: float,
    inside_s: float | None = None,
) -> dict[str, Any]:
    """A row; `inside_s` is the time spent in the environment, if not all of it is."""
    engine_s, new_s = (watch.total_s(start) for watch in watches[:2])
    arrived = watches.arrivals.n
    inside_s = total_s if inside_s is None else inside_s
    python_s = inside_s - engine_s - new_s
    return {
        "what": what,
        "environments": envs,
        "threads": threads,
        "steps": steps,
        "steps_per_s": round(steps / total_s),
        "arrivals_per_step": round(arrived / steps, 1),
        "requests_per_s": round(arrived / total_s),
        "us_per_step": round(total_s / steps * 1e6, 1),
        "python_us_per_step": round(python_s / steps * 1e6, 1),
        "engine_percent": round(100 * engine_s / total_s, 1),
        "new_episodes_percent": round(100 * new_s / total_s, 1),
        "python_percent": round(100 * python_s / total_s, 1),
        "learner_percent": round(100 * (total_s - inside_s) / total_s, 1),
    }


def single(env_id: str, steps: int) -> dict[str, Any]:
    """One environment, random actions, reset where an episode ends (resets are counted in)."""
    import gymnasium as gym

    env = gym.make(env_id)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(steps)]
    env.reset(seed=0)
    env.step(actions[0])
    env.reset(seed=0)
    clock = _clock(1)
    with watched(clock) as watches:
        start = clock()
        for action in actions:
            done = env.step(action)[2:4]
            if any(done):
                env.reset()
        total_s = clock() - start
    env.close()
    return _row(f"{env_id}, gym.make", 1, 1, steps, total_s, watches, start)


def vectorised(env_id: str, n_envs: int, threads: int, steps: int) -> dict[str, Any]:
    """Our vectorised environment, random actions; `steps` over all of its environments."""
    env = _make_vec(env_id, n_envs, threads)
    rounds = max(1, steps // n_envs)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(rounds)]
    env.reset(seed=0)
    env.step(actions[0])
    clock = _clock(threads)
    with watched(clock) as watches:
        start = clock()
        for action in actions:
            env.step(action)
        total_s = clock() - start
    env.close()
    what = f"{env_id}, gym.make_vec"
    return _row(what, n_envs, threads, rounds * n_envs, total_s, watches, start)


def _make_vec(env_id: str, n_envs: int, threads: int) -> Any:
    import gymnasium as gym

    import llmscale_env  # noqa: F401  (registers the environments)

    return gym.make_vec(
        env_id, num_envs=n_envs, vectorization_mode="vector_entry_point", threads=threads
    )


def bench_env(quick: bool) -> list[dict[str, Any]]:
    """Environment steps per second, of one environment and of many in one call."""
    import llmscale_env  # noqa: F401

    steps = 200 if quick else 10_000
    rows = [single(CARTPOLE, steps)]
    for env_id in IDS:
        rows.append(single(env_id, steps))
        for n_envs, threads in VECTOR_FORMS[:2] if quick else VECTOR_FORMS:
            # Whole episodes, so that starting them has its share.
            whole = 0 if quick else EPISODE_STEPS[env_id] * n_envs
            rows.append(vectorised(env_id, n_envs, threads, max(steps, whole)))
    return rows


def ppo(what: str, venv: Any, frames: int, rollout: int) -> dict[str, Any]:
    """SB3's PPO with its default network, `rollout` frames between updates; one thread for torch."""
    import torch
    from stable_baselines3 import PPO

    torch.set_num_threads(1)
    n_steps = max(8, rollout // venv.num_envs)
    model = PPO(
        "MlpPolicy", venv, n_steps=n_steps, batch_size=256, n_epochs=10, device="cpu", seed=0
    )
    model.learn(n_steps * venv.num_envs)  # warm
    clock = _clock(1)
    stepping = Stopwatch(clock)
    for name in ("reset", "step_async", "step_wait"):
        setattr(venv, name, stepping.wrap(getattr(venv, name)))
    with watched(clock) as watches:
        start = clock()
        model.learn(frames, reset_num_timesteps=True)
        total_s = clock() - start
    frames = int(model.num_timesteps)
    inside_s = stepping.total_s(start)
    row = _row(what, venv.num_envs, 1, frames, total_s, watches, start, inside_s)
    venv.close()
    return row


def bench_ppo(quick: bool) -> list[dict[str, Any]]:
    """PPO frames per second on our environment beside CartPole, with the same settings."""
    import gymnasium as gym
    from stable_baselines3.common.vec_env import DummyVecEnv

    import llmscale_env  # noqa: F401
    from agents.vec_adapter import NativeVecEnv

    frames, rollout = (256, 256) if quick else (20_480, 2_048)
    rows = []
    for env_id in (CARTPOLE, ID):
        makers: list[Callable[[], Any]] = [functools.partial(gym.make, env_id) for _ in range(8)]
        rows.append(ppo(f"PPO, {env_id}, DummyVecEnv", DummyVecEnv(makers), frames, rollout))
    for n_envs in (8,) if quick else (8, 64):
        venv = NativeVecEnv(_make_vec(ID, n_envs, 1))
        rows.append(ppo(f"PPO, {ID}, vectorised", venv, frames, rollout))
    return rows
