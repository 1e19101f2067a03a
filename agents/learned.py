"""A trained network as a policy like any other: it runs through the same loop, on the same requests."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agents.configuration.config import TrainConfig, read_config
from agents.configuration.environments import (
    are_counts,
    check_quantile,
    codec_of,
    make_scenario,
)
from agents.models.algorithms import is_recurrent, takes_masks
from agents.models.store import (
    ModelError,
    contents_of,
    dumps,
    find_model,
    load_model,
    loads,
    model_of,
)
from llmscale_env.control.command import Command
from llmscale_env.control.forecast import make_forecaster
from llmscale_env.control.view import ClusterView
from llmscale_env.envs.codec import Codec
from llmscale_env.scenarios import Scenario

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm


class LearnedPolicy:
    """What a trained network decides, every control interval: of each part the most probable choice.

    With `quantile` it takes, of each pool's instance counts, the smallest one at or below which the network
    would draw in that share of decisions: a margin that needs no other training. A half, the median, lies
    between two fleets that the network wavers between, where the most probable one may be the smallest.

    Args:
        path: run folder (its best model is taken) or model file in one.
        name: what tables call it; by default the run folder's name, followed by that of a model in it
            which is not what the folder means.
        model: a network in memory in place of the file's (needs `config`).
        config: of the run in place of the one beside the file.
        quantile: of the instance counts, above 0 and below 1; None: as the configuration says, and if it says
            nothing, the most probable ones.

    Raises:
        ModelError: see `find_model` and `load_model`; a quantile for a network that remembers.
        ValueError: a quantile that is none.

    Attributes:
        forecaster: what the network was trained to see in the forecast entries; `run_episode` takes it
            (its own default is that of the environments, "ewma").
    """

    def __init__(
        self,
        path: str | Path = "",
        *,
        name: str | None = None,
        model: BaseAlgorithm | None = None,
        config: TrainConfig | None = None,
        quantile: float | None = None,
    ) -> None:
        if quantile is not None and not 0 < quantile < 1:
            raise ValueError(f"quantile = {quantile!r}: must be above 0 and below 1")
        self.path: Path | None = None
        if model is None:
            self.path = find_model(path)
            config = config or read_config(self.path.parent)
            model = load_model(self.path, config)
        if config is None:
            raise ValueError("a model in memory needs the configuration of its run")
        self.config = config
        self.quantile = config.quantile if quantile is None else quantile
        self._asked = quantile
        self.model = model
        self.name = name or (_named_after(self.path) if self.path else config.agent)
        self.forecaster = config.forecaster
        self._masked, self._recurrent = takes_masks(model), is_recurrent(model)
        if quantile is not None and self._recurrent:
            raise ModelError(
                f"policy {self.name}: quantile = {quantile}: is for networks without memory"
            )
        self._memory: Any = None  # of a recurrent network, of the present episode
        self._codec: Any = None
        self._scenario: Scenario | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Plain values, and the model as the bytes of its file: a policy can be sent to another process."""
        state = {key: value for key, value in vars(self).items() if key != "model"}
        return {
            **state,
            "_memory": None,
            "_codec": None,
            "_scenario": None,
            "_bytes": dumps(contents_of(self.model)),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        contents = loads(state.pop("_bytes"))
        vars(self).update(state)
        self.model = model_of(contents, self.config)

    def fit(self, scenario: Scenario) -> None:
        """Get ready for a scenario.

        Raises:
            ModelError: its observations or actions are others than those trained with; its configuration
                names what there is not; it was made with a quantile of instance counts, and decides none.
        """
        where = f"model {str(self.path)!r}" if self.path else f"policy {self.name}"
        try:
            codec = codec_of(self.config, scenario)
            if self.forecaster is not None:
                make_forecaster(self.forecaster)
        except ValueError as error:
            raise ModelError(f"{where}: its configuration: {error}") from None
        if self._asked is not None:
            try:
                check_quantile(self._asked, codec)
            except ValueError as error:
                raise ModelError(f"policy {self.name}: {error}") from None
        for what, own, other in (
            ("observations", self.model.observation_space, codec.observation_space),
            ("actions", self.model.action_space, codec.action_space),
        ):
            if own != other:
                raise ModelError(
                    f"{where}: was trained with {what} {_short(own)}; scenario {scenario.name!r} "
                    f"has {_short(other)}. Train anew for other pools, classes, or queues"
                )
        self._check_names(codec, where, scenario)
        self._codec, self._scenario = codec, scenario

    def _check_names(self, codec: Codec, where: str, scenario: Scenario) -> None:
        """Whether no entry or part stands where another did in training, if its scenario is still there."""
        try:
            trained = codec_of(self.config, make_scenario(self.config))
        except ValueError:
            return
        seen = ([entry.name for entry in each.encoder.entries] for each in (trained, codec))
        for what, own, other in (
            ("sees", *seen),
            ("decides", trained.decoder.parts, codec.decoder.parts),
        ):
            for mine, theirs in zip(own, other, strict=True):
                if mine != theirs and theirs in own:
                    raise ModelError(
                        f"{where}: {what} {mine!r} where scenario {scenario.name!r} has {theirs!r}. List "
                        "its pools and classes in the order of training, or train anew"
                    )

    def reset(self, scenario: Scenario, seed: int) -> None:
        """A new episode. A recurrent network forgets; `seed` is for the policy under a residual head.

        Raises:
            ModelError: see `fit`.
        """
        if scenario is not self._scenario:
            self.fit(scenario)
        self._codec.reset(seed)
        self._memory = None

    def act(self, view: ClusterView) -> Command:
        """The command that the network finds best."""
        observation = self._codec.encode(view)
        more: dict[str, Any] = {}
        if self._masked:
            more["action_masks"] = self._codec.mask(view)
        return self._codec.decode(self.choose(observation, **more), view)

    def choose(self, observation: NDArray[np.float32], **more: Any) -> NDArray[np.int64]:
        """(parts,) or (n, parts) what the network chooses from (k,) or (n, k) entries.

        Args:
            observation: what the environment shows.
            more: `action_masks` for a learner that takes them.
        """
        if not self._recurrent:
            return self._decide(observation, more.get("action_masks"))
        # sb3-contrib takes `state=None` for the start of an episode.
        more["state"] = self._memory
        more["episode_start"] = np.array([self._memory is None])
        action, self._memory = self.model.predict(observation, deterministic=True, **more)
        return action

    def _decide(self, observation: NDArray[np.float32], masks: Any) -> NDArray[np.int64]:
        """Without stable-baselines3's distributions, whose making takes longer than the network."""
        import torch

        from agents.models.decoding import IMPOSSIBLE, decided

        policy: Any = self.model.policy
        space: Any = self.model.action_space
        if policy.training:
            policy.set_training_mode(False)
        with torch.no_grad():
            seen, many = policy.obs_to_tensor(observation)
            features = policy.extract_features(seen, policy.pi_features_extractor)
            logits = policy.action_net(policy.mlp_extractor.forward_actor(features))
            if masks is not None:
                possible = torch.as_tensor(masks).reshape(logits.shape)
                logits = torch.where(possible, logits, IMPOSSIBLE)
            counts = are_counts(self._codec.decoder.parts)
            action = decided(
                logits.split(space.nvec.tolist(), dim=1), counts, self.quantile
            ).numpy()
        return action if many else action[0]


def _named_after(model: Path) -> str:
    """The run folder's name; where it is not the model that the folder means, the file's name follows."""
    model = model.resolve()
    folder = model.parent
    with suppress(ModelError):  # alone: the folder means no model
        if find_model(folder).name != model.name:
            return f"{folder.name}-{model.stem}"
    return folder.name


def _short(space: Any) -> str:
    """A space in few words: bounds of a Box are left out."""
    nvec = getattr(space, "nvec", None)
    return f"{type(space).__name__}{tuple(space.shape) if nvec is None else nvec.tolist()}"
