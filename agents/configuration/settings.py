"""The parts of a training configuration: hyperparameters of each learner, and what goes with all of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Count = Annotated[int, Field(ge=1, le=10**12)]
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def is_number(value: Any) -> bool:
    """Whether a value is a number, which true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_share(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1


class Frozen(BaseModel):
    """Plain data that does not change and takes no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PPOConfig(Frozen):
    """Hyperparameters of stable-baselines3's PPO, under its names.

    Attributes:
        learning_rate, learning_rate_end: the rate falls linearly from one to the other.
        net: hidden layers, the same for policy and value, not shared.
        activation: of hidden layers; "norm-tanh" is `agents.models.activations.NormTanh`.
        (others): as in stable-baselines3.
    """

    n_steps: Annotated[int, Field(ge=2, le=100_000)]
    batch_size: Annotated[int, Field(ge=2, le=10_000_000)]
    n_epochs: Annotated[int, Field(ge=1, le=1000)]
    learning_rate: Positive
    learning_rate_end: NonNegative
    gamma: Share
    gae_lambda: Share
    clip_range: Positive
    ent_coef: NonNegative
    vf_coef: NonNegative
    max_grad_norm: Positive
    target_kl: Positive | None
    net: Annotated[tuple[Annotated[int, Field(ge=1, le=65536)], ...], Field(max_length=16)]
    activation: Literal["tanh", "norm-tanh", "relu", "silu"]


class MaskablePPOConfig(PPOConfig):
    """Hyperparameters of sb3-contrib's MaskablePPO: those of PPO."""


class RecurrentPPOConfig(PPOConfig):
    """Hyperparameters of sb3-contrib's RecurrentPPO: those of PPO, and its LSTM's.

    Attributes:
        lstm_size: units of a layer of the LSTMs, one for the policy and one for the value.
        lstm_layers: layers of each.
    """

    lstm_size: Annotated[int, Field(ge=1, le=65536)]
    lstm_layers: Annotated[int, Field(ge=1, le=8)]


AGENTS: dict[str, type[PPOConfig]] = {
    "ppo": PPOConfig,
    "maskable-ppo": MaskablePPOConfig,
    "recurrent-ppo": RecurrentPPOConfig,
}
"""The learners, and which hyperparameters each takes: sections of a configuration."""


WORKLOAD = "{workload}"
"""Stands in `warm_start.policy` for the name of the workload that an episode has drawn."""


def teacher_of(policy: str, workload: str) -> str:
    """The name of the policy to copy on a drawn workload, which stands where the name says `{workload}`."""
    return policy.replace(WORKLOAD, workload)


class WarmStartConfig(Frozen):
    """A network that begins as the copy of a handwritten policy (`agents.learning.cloning`).

    Attributes:
        policy: name of a reference policy; None: no warm start. Where training draws workloads by name,
            `{workload}` in it stands for the drawn one: `static-tuned:workload={workload}`.
        episodes: that it plays to be watched in each round, of the scenarios that are trained on.
        rounds: in those after the first the copy plays, and learns what the policy would order where it
            comes (`agents.learning.cloning`).
        every: in those it is asked at every so manieth decision only, so more episodes are led in the same
            time; above 1 it needs a `see`, as `twin` has (`llmscale_env.control.policy`).
        epochs, batch_size, learning_rate: of the supervised training.
        entropy: coefficient of the policy's entropy in it, which keeps the copy trying other things: the
            policy's choice becomes about exp(1 / entropy) times as likely as any other one (150 times at
            0.2). With 0 it ends so sure of itself that learning has nothing to learn from.
        spread: where above 0, what is learnt is not the policy's choice but one near it: a choice that is k
            levels away counts exp(-k^2 / (2 spread^2)). The copy then tries a level more or less (at 0.45
            each one time in fourteen), and hardly ever the other end of a range. Choices without an order
            (names) are learnt as they are.
        spread_settings: the same for everything but instance counts; None: as much.
        kl: coefficient of the KL divergence from the copy in PPO's loss, at the start.
        kl_steps: environment steps in which it falls linearly to 0; 0: none.
    """

    policy: str | None = None
    episodes: Annotated[int, Field(ge=1, le=100_000)] = 16
    rounds: Annotated[int, Field(ge=1, le=100)] = 1
    every: Annotated[int, Field(ge=1, le=1000)] = 1
    epochs: Annotated[int, Field(ge=1, le=10_000)] = 30
    batch_size: Annotated[int, Field(ge=2, le=10_000_000)] = 256
    learning_rate: Positive = 1e-3
    entropy: NonNegative = 0.2
    spread: NonNegative = 0.0
    spread_settings: NonNegative | None = None
    kl: NonNegative = 1.0
    kl_steps: Annotated[int, Field(ge=0, le=10**12)] = 0


class LagrangianConfig(Frozen):
    """Prices of misses that move until an attainment is met (`agents.learning.lagrangian`).

    Attributes:
        attainment: share of arrivals to be served in time, for every class or by class; None: prices stay
            as the scenario has them.
        per: "class": one price of a class for all that is trained on; "workload": one in each workload
            that `randomise.ranges.workload.choices` names, so that the target is kept on every one.
        rate: how much a multiplier rises per rollout and unit of attainment that is lacking; 0: it stays at
            `start`, the price of every miss, and the best model has the best return at that price.
        start: multiplier at the start; 1: the scenario's own price.
        most: the largest multiplier.
    """

    attainment: Share | dict[str, Share] | None = None
    per: Literal["class", "workload"] = "class"
    rate: NonNegative = 5.0
    start: NonNegative = 1.0
    most: Positive = 100.0

    @property
    def is_fixed(self) -> bool:
        """Whether misses have prices that never move."""
        return self.attainment is not None and self.rate == 0

    @field_validator("attainment", mode="before")
    @classmethod
    def _shares(cls, value: Any) -> Any:
        shares = value.values() if isinstance(value, dict) else [value]
        if value is not None and not all(_is_share(share) for share in shares):
            raise ValueError("must be a share of arrivals in 0..1, one by class, or null")
        return value

    @model_validator(mode="after")
    def _bounded(self) -> LagrangianConfig:
        if self.start > self.most:
            raise ValueError(f"lagrangian.start = {self.start}: must be at most {self.most}, most")
        return self


class RangeConfig(Frozen):
    """What a field of the scenario is drawn from: an interval, or some values.

    Attributes:
        low, high: the interval, ends included.
        scale: "linear", or "log" for an interval of factors.
        times: the drawn number multiplies what the field is, and does not replace it.
        choices: values, all alike likely, in place of the interval.
    """

    low: float | None = None
    high: float | None = None
    scale: Literal["linear", "log"] = "linear"
    times: bool = False
    choices: tuple[Any, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _pair(cls, value: Any) -> Any:
        """`[low, high]` is short for the interval."""
        is_pair = isinstance(value, (list, tuple)) and len(value) == 2
        if is_pair and all(is_number(end) for end in value):
            return {"low": value[0], "high": value[1]}
        if not isinstance(value, (dict, RangeConfig)):
            raise ValueError(
                "must be [low, high], two numbers, or have low and high, or choices, "
                "as {choices: [A, B, C]}"
            )
        return value

    @model_validator(mode="after")
    def _one_form(self) -> RangeConfig:
        if self.choices:
            if self.low is not None or self.high is not None or self.times:
                raise ValueError("choices exclude low, high and times")
            return self
        if self.low is None or self.high is None or self.low > self.high:
            raise ValueError(f"low = {self.low}, high = {self.high}: must be numbers, low first")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"low = {self.low}: must be above 0 on a log scale")
        return self


class RandomiseConfig(Frozen):
    """Training on many scenarios side by side, drawn anew now and then (`agents.learning.variety`).

    Attributes:
        ranges: by dotted path of a field of the scenario; empty: one scenario for all.
        groups: scenarios side by side; `n_envs` is divided among them.
        episodes: after how many a group gets a new scenario.
    """

    ranges: dict[str, RangeConfig] = {}
    groups: Annotated[int, Field(ge=1, le=10_000)] = 4
    episodes: Annotated[int, Field(ge=1, le=10**9)] = 1


class StageConfig(Frozen):
    """A stage of a curriculum.

    Attributes:
        steps: environment steps that it lasts.
        overrides: fields of the training scenario meanwhile, by dotted path.
    """

    steps: Count
    overrides: dict[str, Any]


SECTIONS: dict[str, type[Frozen]] = {
    "warm_start": WarmStartConfig,
    "lagrangian": LagrangianConfig,
    "randomise": RandomiseConfig,
}
"""Sections of options that hold for every learner."""

SWITCHES = {"warm_start": "policy", "lagrangian": "attainment", "randomise": "ranges"}
"""Of sections without effect as long as one of their options is None or empty: which one."""
