"""A native Gymnasium vector environment as stable-baselines3 wants it.

SubprocVecEnv and DummyVecEnv step single environments; an environment that advances many episodes in one
call needs neither, only this translation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn


class NativeVecEnv(VecEnv):
    """Steps a `gymnasium.vector.VectorEnv` that resets ended episodes within the same step.

    The info of an ended episode holds its own info, `terminal_observation`, `TimeLimit.truncated`, and
    `episode` with what stable-baselines3 averages: `r` (unscaled return), `l` (steps), `t` (0: no
    clock enters here). Infos of running episodes are empty unless asked for, since a dictionary per
    episode and step would cost more than the step. All are in `native_infos` as they came, but that
    `metrics` of an ended episode are its last ones, not those of the next.

    Args:
        env: the environment; its metadata must say `autoreset_mode` SAME_STEP.
        reward_scale: rewards are handed on times this.
        all_infos: fill the infos of running episodes too.

    Raises:
        ValueError: another autoreset mode.
    """

    def __init__(
        self, env: VectorEnv[Any, Any, Any], *, reward_scale: float = 1.0, all_infos: bool = False
    ) -> None:
        mode = env.metadata.get("autoreset_mode")
        if mode != AutoresetMode.SAME_STEP:
            raise ValueError(
                f"autoreset_mode = {mode}: must be SAME_STEP, since stable-baselines3 expects the "
                "first observation of the next episode from the step that ends one"
            )
        self.env = env
        self.reward_scale = reward_scale
        self.all_infos = all_infos
        self.native_infos: Mapping[str, Any] = {}
        self.native_rewards: NDArray[np.float64] = np.zeros(env.num_envs)
        self._actions: NDArray[Any] | None = None
        self._returns = np.zeros(env.num_envs)
        self._lengths = np.zeros(env.num_envs, np.int64)
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    # ---- episodes ----

    def reset(self) -> Any:
        """Begin all episodes anew, with the seeds and options given before (once)."""
        seeds: Any = self._seeds if any(seed is not None for seed in self._seeds) else None
        options = self._options[0] or None
        obs, infos = self.env.reset(seed=seeds, options=options)
        self._reset_seeds()
        self._reset_options()
        self._returns[:] = 0.0
        self._lengths[:] = 0
        self.native_infos = infos
        self.reset_infos = [
            info_of(infos, i) if self.all_infos else {} for i in range(self.num_envs)
        ]
        return obs

    def seed_each(self, seeds: Sequence[int]) -> None:
        """Seeds of the next `reset`, one per episode (`seed` gives consecutive ones)."""
        if len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds: must be one for each of {self.num_envs}")
        self._seeds = [int(seed) for seed in seeds]

    def step_async(self, actions: NDArray[Any]) -> None:
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, terminated, truncated, native = self.env.step(self._actions)
        rewards = np.asarray(rewards, np.float64)
        dones = np.logical_or(terminated, truncated)
        self.native_infos, self.native_rewards = _of_the_step(native, dones), rewards
        self._returns += rewards
        self._lengths += 1
        infos: list[dict[str, Any]] = [
            info_of(native, i) if self.all_infos else {} for i in range(self.num_envs)
        ]
        for i in np.flatnonzero(dones):
            info = info_of(native.get("final_info", {}), int(i))
            info["terminal_observation"] = np.array(native["final_obs"][i])
            info["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
            info["episode"] = {
                **info.get("episode", {}),
                "r": float(self._returns[i]),
                "l": int(self._lengths[i]),
                "t": 0.0,
            }
            infos[i] = info
            self._returns[i] = 0.0
            self._lengths[i] = 0
        return obs, (rewards * self.reward_scale).astype(np.float32), dones, infos

    def state(self) -> dict[str, Any]:
        """What `put_back` needs for going on from here: numbers and text alone."""
        return {
            "episodes": self.env.unwrapped.so_far(),  # type: ignore[attr-defined]
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
        }

    def put_back(self, state: Mapping[str, Any]) -> Any:
        """Go on from where `state` was called; the observations there.

        Raises:
            ValueError: the state is of another environment.
        """
        self._returns[:], self._lengths[:] = state["returns"], state["lengths"]
        return self.env.unwrapped.replay(state["episodes"])  # type: ignore[attr-defined]

    def close(self) -> None:
        self.env.close()

    # ---- what single environments would be asked ----

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """The attribute of the vector environment, once per episode asked for."""
        value = getattr(self.env, attr_name, None) if attr_name == "render_mode" else None
        value = value if attr_name == "render_mode" else getattr(self.env, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of the vector environment, which all episodes share.

        Raises:
            ValueError: `indices` leaves some out.
        """
        if len(set(self._get_indices(indices))) != self.num_envs:
            raise ValueError(f"{attr_name} belongs to all episodes; it cannot be set for some")
        setattr(self.env, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method of the vector environment once; its rows, by episode.

        A result that has not a row per episode (an array or list of that length) is handed to each.
        """
        result = getattr(self.env, method_name)(*method_args, **kwargs)
        rows = isinstance(result, (np.ndarray, list, tuple)) and len(result) == self.num_envs
        return [result[i] if rows else result for i in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type, indices: VecEnvIndices = None) -> list[bool]:
        """No episode is wrapped by itself."""
        return [False for _ in self._get_indices(indices)]


def _of_the_step(infos: Mapping[str, Any], dones: NDArray[np.bool_]) -> Mapping[str, Any]:
    """Infos with the metrics that the step has led to, also where another episode has begun since."""
    final = infos.get("final_info", {}).get("metrics")
    if final is None or "metrics" not in infos:
        return infos
    metrics = {k: np.where(dones, final[k], v) for k, v in infos["metrics"].items()}
    return {**infos, "metrics": metrics}


def info_of(infos: Mapping[str, Any], i: int) -> dict[str, Any]:
    """Episode `i`'s own info out of a vector environment's (arrays and `_key` masks)."""
    found: dict[str, Any] = {}
    for key, value in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        if key in ("final_obs", "final_info"):
            continue
        mask = infos.get(f"_{key}")
        if mask is not None and not np.asarray(mask)[i]:
            continue
        if isinstance(value, Mapping):
            found[key] = info_of(value, i)
        elif isinstance(value, np.ndarray) and value.ndim:
            found[key] = value[i] if value.ndim > 1 else _item(value[i])
        else:
            found[key] = value
    return found


def _item(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
