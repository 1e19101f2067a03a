"""Minari datasets of an environment: what policies saw, did and earned, an episode after the other.

Orders of a handwritten policy become the nearest actions (`agents.learning.translation`), and those are
carried out. So a dataset holds what the environment's action space can do, and its consequences.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.configuration.config import FIRST_TRAINING_SEED, environment_id
from agents.learning.translation import Translator
from llmscale_env._cli import Slip

RANDOM = "random"
NAMESPACE = "llmscale"


@dataclass(frozen=True)
class Transitions:
    """Decisions of all episodes, one after the other.

    Attributes:
        observations, following: (N, k) before a decision, and at the next one.
        actions: (N, parts).
        masks: (N, sum of choices) which choices were possible.
        rewards: (N,) unscaled.
        nvec: choices of each part.
    """

    observations: NDArray[np.float32]
    following: NDArray[np.float32]
    actions: NDArray[np.int64]
    masks: NDArray[np.bool_]
    rewards: NDArray[np.float64]
    nvec: NDArray[np.int64]


def dataset_id(env: str, policy: str) -> str:
    """How Minari calls the decisions of a policy on an environment."""
    return f"{NAMESPACE}/{env}/{re.sub(r'[^A-Za-z0-9]+', '-', policy).strip('-')}-v0"


def record(
    env: str,
    policy: str,
    episodes: int,
    seed: int,
    folder: Path,
    overrides: Mapping[str, Any] | None = None,
) -> tuple[str, float]:
    """Let a policy play, and write what happened as a dataset below `folder`.

    Args:
        env: short name of the environment.
        policy: name of a reference policy, or "random": possible choices with equal chances.
        episodes: how many; all policies meet the same requests.
        seed: another one gives other requests.
        folder: where Minari keeps datasets.
        overrides: changed fields of the scenario.

    Returns:
        The dataset's name, and the mean reward of an episode.

    Raises:
        Slip: there is such a dataset already.
        PolicyError: an unknown policy, or one that cannot run the scenario.
        TranslationError: actions have nothing that the policy's orders could be translated to.
    """
    import gymnasium
    from minari.data_collector import EpisodeBuffer

    name = dataset_id(env, policy)
    if (folder / name).exists():
        raise Slip(f"out = {str(folder)!r}: holds {name} already")
    given = {"overrides": dict(overrides)} if overrides else {}
    made = gymnasium.make(f"llmscale_env:{environment_id(env)}", **given)  # type: ignore[arg-type]
    buffers, rewards = [], []
    begin, choose = _chooser(made.unwrapped, policy)
    for number in range(episodes):
        episode_seed = FIRST_TRAINING_SEED + 10_000 * seed + number
        observation, info = made.reset(seed=episode_seed)
        begin(episode_seed)
        seen, masks, actions, earned = [observation], [info["action_mask"]], [], []
        truncated = False
        while not truncated:
            action = choose()
            observation, reward, _, truncated, info = made.step(action)
            seen.append(observation)
            masks.append(info["action_mask"])
            actions.append(action)
            earned.append(float(reward))
        buffers.append(
            EpisodeBuffer(
                id=number,
                seed=episode_seed,
                observations=np.stack(seen),
                actions=np.stack(actions),
                rewards=earned,
                terminations=[False] * len(earned),
                truncations=[False] * (len(earned) - 1) + [True],
                infos={"action_mask": np.stack(masks)},
            )
        )
        rewards.append(float(np.sum(earned)))
    with _minari(folder) as minari:
        minari.create_dataset_from_buffers(
            name,
            buffers,
            env=made,
            algorithm_name=policy,
            description=f"{policy} on {environment_id(env)}: {episodes} episodes",
        )
    made.close()
    return name, float(np.mean(rewards))


def _chooser(env: Any, policy: str) -> tuple[Callable[[int], None], Callable[[], Any]]:
    """What begins an episode of a policy, and what gives its next action."""
    from baselines import make_policy

    rng = np.random.default_rng(0)
    nvec = env.codec.decoder.nvec

    def at_random() -> Any:
        nonlocal rng
        possible = np.split(env.action_masks(), np.cumsum(nvec)[:-1])
        return np.array([rng.choice(np.flatnonzero(p)) if p.any() else 0 for p in possible])

    def begin_random(seed: int) -> None:
        nonlocal rng
        rng = np.random.default_rng([seed, 1])

    if policy == RANDOM:
        return begin_random, at_random
    teacher = make_policy(policy)
    teacher.reset(env.scenario, 0)
    translator = Translator(env.codec, env.scenario)

    def begin(seed: int) -> None:
        teacher.reset(env.scenario, seed)
        translator.reset()

    def translated() -> Any:
        view = env.view()
        return translator.translate(teacher.act(view), view).action

    return begin, translated


def names(folder: Path) -> list[str]:
    """Datasets below a folder.

    Raises:
        Slip: there are none.
    """
    found = sorted(
        path.parent.parent.relative_to(folder).as_posix()
        for path in folder.glob(f"{NAMESPACE}/*/*/data/metadata.json")
    )
    if not found:
        raise Slip(f"data = {str(folder)!r}: holds no dataset; `make` writes them")
    return found


def load(folder: Path, chosen: Sequence[str]) -> Transitions:
    """The decisions of some datasets below a folder, read by Minari.

    Raises:
        Slip: one cannot be read, or has other spaces than the first.
    """
    parts: dict[str, list[Any]] = {
        key: [] for key in ("observations", "following", "actions", "masks", "rewards")
    }
    space: Any = None
    with _minari(folder) as minari:
        for name in chosen:
            try:
                dataset = minari.load_dataset(name)
                episodes = list(dataset.iterate_episodes())
            except (AssertionError, KeyError, OSError, TypeError, ValueError) as error:
                raise Slip(f"data: {name}: Minari cannot read it ({error})") from None
            spaces = dataset.observation_space, dataset.action_space
            if space is not None and spaces != space:
                raise Slip(f"data: {name} has other spaces than {chosen[0]}")
            space = spaces
            for episode in episodes:
                parts["observations"].append(episode.observations[:-1])
                parts["following"].append(episode.observations[1:])
                parts["actions"].append(episode.actions)
                parts["masks"].append(episode.infos["action_mask"][:-1])
                parts["rewards"].append(episode.rewards)
    joined = {key: np.concatenate(found) for key, found in parts.items()}
    joined["masks"] = joined["masks"].astype(bool)
    return Transitions(**joined, nvec=np.asarray(space[1].nvec))


@contextmanager
def _minari(folder: Path) -> Iterator[Any]:
    """Minari, with its datasets in a folder."""
    import minari

    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(folder.resolve())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of authors and links that are not given
            yield minari
    finally:
        if before is None:
            del os.environ["MINARI_DATASETS_PATH"]
        else:
            os.environ["MINARI_DATASETS_PATH"] = before
