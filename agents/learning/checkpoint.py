"""Where a run is, so that one that was stopped or killed goes on bit for bit as if it had not been.

Between an update and the next rollout that is: the network and its optimiser, the generators of random
numbers, the episodes under way (their seeds and actions so far, which are played again), what the learner has
seen last, prices that move, noise that is held, and what of the last update is yet to be logged. Beside it
stands what validation has found.

One thing is not of it: a copy of a policy that was interrupted while it was made is made anew, from the same
seed.
"""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agents.exploration.held_noise import HeldNoise
from agents.learning.lagrangian import LagrangianVecEnv
from agents.models.algorithms import is_recurrent
from agents.models.store import LAST, ModelError, contents_of, model_of, read, write
from agents.runs.files import said
from agents.vec_adapter import NativeVecEnv


class Keeper:
    """Sees where a run is, writes it down, and puts a new process there.

    Args:
        native: the environment that is learnt on.
        prices: the wrapper around it whose prices move, if there is one.
        noise: that is held, if it is.
    """

    def __init__(
        self,
        native: NativeVecEnv,
        prices: LagrangianVecEnv | None = None,
        noise: HeldNoise | None = None,
    ) -> None:
        self._native, self._prices, self._noise = native, prices, noise
        self._moving: dict[str, Any] = {}
        self._logged: dict[str, float] = {}

    def capture(self, model: Any) -> None:
        """Remember where the rollout that follows begins: all that it will move."""
        memory = getattr(model, "_last_lstm_states", None)
        held = None if self._noise is None or self._noise.noise is None else self._noise.noise
        self._moving = {
            "episodes": list(model.ep_info_buffer or ()),
            "random": {
                "python": random.getstate(),
                "numpy": np.random.get_state(legacy=False),  # noqa: NPY002  stable-baselines3's
                "torch": torch.get_rng_state().numpy().copy(),
            },
            "seen": np.array(model._last_obs),
            "starts": np.array(model._last_episode_starts),
            "memory": memory and [[part.numpy().copy() for part in pair] for pair in memory],
            "env": self._native.state(),
            "prices": None if self._prices is None else self._prices.state(),
            "noise": None if held is None else held.numpy().copy(),
            "logged": _to_log(model.logger),
        }

    def write(self, folder: Path, model: Any, validation: dict[str, Any]) -> None:
        """Write the run's last model, whole: the network as it is now, and where `capture` was called."""
        optimiser = model.policy.optimizer.state_dict()
        contents = {
            **contents_of(model),
            "run": {
                "updates": model._n_updates,
                "logits_times": getattr(model, "logits_times", None),
                "optimiser": {
                    "state": {
                        str(k): {name: value.numpy() for name, value in each.items()}
                        for k, each in optimiser["state"].items()
                    },
                    "groups": optimiser["param_groups"],
                },
                **self._moving,
                "validation": validation,
            },
        }
        write(folder / LAST, contents)

    def resume(self, folder: Path, config: Any, env: Any) -> tuple[Any, dict[str, Any]]:
        """The run's last model on `env`, everything else put where it was; what `write` got as `validation`.

        Raises:
            ModelError: the file is missing, damaged, or of another run.
        """
        contents = read(folder / LAST)
        try:
            model = model_of(contents, config, env)
            run = contents["run"]
            self._restore(model, run)
            found = run["validation"]
            return model, {"best": [float(b) for b in found["best"]], "last": int(found["last"])}
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            text = " ".join(str(error).split())[:200]
            raise ModelError(
                f"model {str(folder / LAST)!r}: no run can go on from it ({text})"
            ) from None

    def put_back_logged(self, model: Any) -> None:
        """What of the last update is yet to be logged, to the logger that a resumed model now has."""
        for name, value in self._logged.items():
            model.logger.record(name, value)

    def _restore(self, model: Any, run: dict[str, Any]) -> None:
        _put_back(model.policy.optimizer, run["optimiser"])
        model._n_updates = int(run["updates"])
        means = [(float(each["r"]), float(each["l"])) for each in run["episodes"]]
        if not np.isfinite(means).all():
            raise ValueError("returns of episodes are no numbers")
        model.ep_info_buffer = deque(run["episodes"], maxlen=model._stats_window_size)
        model.ep_success_buffer = deque(maxlen=model._stats_window_size)
        if run["logits_times"] is not None:
            model.logits_times = float(run["logits_times"])
        model._last_obs = self._native.put_back(run["env"])
        if not np.array_equal(model._last_obs, run["seen"]):
            said(
                "the simulator is not the one that this run began with: it goes on, but not bit for bit"
            )
        model._last_episode_starts = np.array(run["starts"], bool).reshape(model.n_envs)
        if is_recurrent(model):
            kind = type(model._last_lstm_states)
            model._last_lstm_states = kind(
                *(tuple(torch.from_numpy(part) for part in pair) for pair in run["memory"])
            )
        if self._prices is not None:
            self._prices.put_back(run["prices"])
        if self._noise is not None and run["noise"] is not None:
            self._noise.noise = torch.from_numpy(run["noise"])
        self._logged = {name: float(value) for name, value in run.get("logged", {}).items()}
        # Last: what came before may have drawn.
        version, words, gauss = run["random"]["python"]
        random.setstate((version, tuple(words), gauss))
        np.random.set_state(run["random"]["numpy"])  # noqa: NPY002
        torch.set_rng_state(torch.from_numpy(run["random"]["torch"]))


def _to_log(logger: Any) -> dict[str, float]:
    """What the next rollout's end will log besides its own: stable-baselines3 does so with updates."""
    left_out = {name for name, where in logger.name_to_excluded.items() if "tensorboard" in where}
    return {name: float(v) for name, v in logger.name_to_value.items() if name not in left_out}


def _put_back(optimiser: Any, state: dict[str, Any]) -> None:
    """Put Adam where it was. torch takes anything here, and would fail at the first update.

    Raises:
        ValueError: the state is of another network.
    """
    own = optimiser.state_dict()["param_groups"]
    found = {
        int(k): {name: torch.from_numpy(value) for name, value in each.items()}
        for k, each in state["state"].items()
    }
    weights = [weight for group in optimiser.param_groups for weight in group["params"]]
    for k, each in found.items():
        shapes = {"step": (), **dict.fromkeys(("exp_avg", "exp_avg_sq"), tuple(weights[k].shape))}
        if {name: tuple(value.shape) for name, value in each.items()} != shapes:
            raise ValueError(f"the optimiser's state of weights {k} is of another network")
        if not all(bool(value.isfinite().all()) for value in each.values()):
            raise ValueError(f"the optimiser's state of weights {k} is no finite numbers")
    groups = [
        {**group, "lr": float(f["lr"])} for group, f in zip(own, state["groups"], strict=True)
    ]
    optimiser.load_state_dict({"state": found, "param_groups": groups})
