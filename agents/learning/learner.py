"""Learning: a model of stable-baselines3 on the vectorised environment, validated on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecEnv

from agents.configuration.config import TrainConfig
from agents.configuration.environments import codec_of, make_vector_env
from agents.configuration.settings import teacher_of
from agents.exploration.anchor import Anchor
from agents.exploration.held_noise import HeldNoise
from agents.exploration.prior import as_is_choices, lean_towards
from agents.exploration.sharpening import Sharpening
from agents.learned import LearnedPolicy
from agents.learning.callbacks import (
    Progress,
    RolloutTags,
    Validation,
    log_references,
    take_back_events,
    went_astray,
)
from agents.learning.checkpoint import Keeper
from agents.learning.cloning import Demonstrations, clone, watch
from agents.learning.lagrangian import DualAscent, LagrangianVecEnv
from agents.learning.same_arrivals import GroupBaseline
from agents.learning.translation import TranslationError
from agents.learning.variety import ScenarioSource, VarietyVectorEnv, is_varied
from agents.models.algorithms import make_model
from agents.models.store import (
    COPY,
    LAST,
    ModelError,
    cannot_resume,
    contents_of,
    load_model,
    write,
)
from agents.runs.comparison import Row
from agents.runs.files import said, write_json
from agents.runs.folders import clear_parts
from agents.runs.stopping import Stop, terminating
from agents.vec_adapter import NativeVecEnv
from llmscale_env._cli import Slip
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.scenarios import Scenario


def learn(
    config: TrainConfig,
    scenario: Scenario,
    folder: Path,
    simulation: ClusterSimulation,
    references: list[Row],
    resumes: bool,
    on_validation: Callable[[int, list[Row]], object] | None = None,
    wished: Callable[[], bool] | None = None,
) -> None:
    """Train to `config.total_timesteps`; best and last model end up in `folder`.

    Args:
        config: of the run.
        scenario: what is simulated.
        folder: the run folder.
        simulation: of the scenario, for validation.
        references: validation rows of the reference policies.
        resumes: go on from the folder's last model, if it got as far as having one.
        on_validation: called with the steps and the rows of every validation, after the model is saved; what
            it raises ends learning.
        wished: asked before every rollout; true ends the run as an interrupt would.

    Raises:
        KeyboardInterrupt: interrupted; the last model has been saved.
        ModelError: the last model of the folder cannot be read, or an older version made it.
        Slip: see `warm_start`.
    """
    if resumes and (why := cannot_resume(folder)):
        raise ModelError(why)
    resumes = resumes and (folder / LAST).is_file()
    clear_parts(folder)
    native = NativeVecEnv(_training_env(config, scenario), reward_scale=config.reward_scale)
    env: VecEnv = native
    prices = None
    if config.lagrangian.attainment is not None:
        apart = config.drawn_workloads() if config.lagrangian.per == "workload" else ()
        env = prices = LagrangianVecEnv(native, scenario, config.lagrangian, apart)
    noise = HeldNoise(config.noise_hold_steps) if config.noise_hold_steps > 1 else None
    keeper = Keeper(native, prices, noise)
    try:
        if resumes:
            model, found = keeper.resume(folder, config, env)
        else:
            model = make_learner(config, env, scenario)
            if config.warm_start.policy is not None:
                with terminating():
                    warm_start(model, config, scenario, folder, simulation)
            native.seed_each(config.training_seeds())
        done = model.num_timesteps
        model.set_logger(configure(str(folder / "tb" / config.agent), ["tensorboard"]))
        if resumes:
            keeper.put_back_logged(model)
            take_back_events(model)
        log_references(folder / "tb", references, scenario, config.total_timesteps)
        with Stop(wished) as stop:
            validation = Validation(
                config,
                scenario,
                folder,
                simulation,
                stop,
                references,
                keeper,
                on_validation,
            )
            if resumes:
                validation.resume(found)
            more = _callbacks(config, folder, prices, noise)
            callbacks = CallbackList(
                [validation, RolloutTags(native), *more, Progress(config.total_timesteps)]
            )
            try:
                if done < config.total_timesteps:
                    model.learn(
                        config.total_timesteps - done,
                        callback=callbacks,
                        reset_num_timesteps=not resumes,
                    )
                else:
                    validation.init_callback(model)
                if model.num_timesteps >= config.total_timesteps:
                    keeper.capture(model)
                stop.check()
                if validation.last_validation < model.num_timesteps:
                    validation.validate()
            except ValueError as error:
                if "found invalid values" not in str(error):  # torch, of a distribution
                    raise
                raise went_astray(model) from None
            except KeyboardInterrupt:
                # After a second Ctrl-C, which comes at any moment, the file that is there is whole.
                if stop.in_order:
                    validation.save()
                raise
            finally:
                model.logger.close()
    finally:
        env.close()


def _training_env(config: TrainConfig, scenario: Scenario) -> Any:
    """What is learnt on."""
    if not is_varied(config):
        return make_vector_env(config, scenario, config.n_envs)
    return VarietyVectorEnv(config, ScenarioSource(config, scenario))


def make_learner(config: TrainConfig, env: VecEnv, scenario: Scenario) -> Any:
    """An untrained model that mostly leaves the cluster as it is (`agents.exploration.prior`)."""
    model = make_model(config, env)
    decoder = codec_of(config, scenario).decoder
    choices = as_is_choices(decoder.parts, decoder.choices, scenario)
    biases = [
        config.as_is_bias
        if part.endswith(("/instances", "/residual", "/serves"))
        else config.as_is_bias_settings
        for part in decoder.parts
    ]
    lean_towards(model, choices, biases)
    return model


def warm_start(
    model: Any,
    config: TrainConfig,
    scenario: Scenario,
    folder: Path,
    simulation: ClusterSimulation,
) -> None:
    """Make `model` a copy of `warm_start.policy`; the copy and how good it is are written to `folder`.

    It is watched on what training begins with: the scenario, or those that are drawn. In all rounds but the
    first the copy plays, and the policy says what it would order.

    Raises:
        Slip: the action space has nothing that the policy's commands can be translated to.
    """
    from baselines import make_policy

    name = str(config.warm_start.policy)
    rewards = []
    seen: Demonstrations | None = None
    try:
        for round_ in range(config.warm_start.rounds):
            if is_varied(config):
                source = ScenarioSource(config, scenario)
                n = config.warm_start.episodes
                drawn = [
                    (source.scenario(e, 0, 0), source.label(e, 0))
                    for e in range(n * round_, n * (round_ + 1))
                ]
                made = {label: make_policy(teacher_of(name, label)) for _, label in drawn}
                plays = [(other, made[label]) for other, label in drawn]
                ready = None
            else:
                plays, ready = [(scenario, make_policy(name))], simulation
            leader = LearnedPolicy(model=model, config=config) if round_ else None
            if round_ == 0:
                said(f"warm start: {name} plays {config.warm_start.episodes} episodes")
            more = watch(config, plays, ready, leader, round_)
            seen = more if seen is None else seen.followed_by(more)
            fitted = clone(
                model,
                seen,
                config.warm_start,
                config.reward_scale,
                config.seed,
                begins=round_ == 0,
            )
            rewards.append(more.mean_return)
            if config.warm_start.rounds > 1:
                said(
                    f"warm start, round {round_ + 1} of {config.warm_start.rounds}: reward "
                    f"{more.mean_return:.2f}, {len(seen.actions):,} decisions, the copy agrees on "
                    f"{100 * fitted['agreement']:.1f} %"
                )
    except TranslationError as error:
        raise Slip(f"warm_start.policy = {name!r}: {error}") from None
    assert seen is not None  # there is a round
    write_json(
        folder / "warm_start.json",
        {
            "policy": name,
            "episodes": len(seen.lengths),
            "decisions": len(seen.actions),
            "mean_return": seen.own_return,
            "mean_return_as_actions": seen.as_actions,
            "mean_return_of_all": rewards[0],
            "mean_returns_of_copies": rewards[1:],
            "exact_choices": seen.exact_choices,
            "exact_commands": seen.exact_commands,
            "decisions_with_orders_left_out": seen.left_out,
            "parts_left_as_they_are": list(seen.untranslated),
            **fitted,
        },
    )
    write(folder / COPY, contents_of(model))
    left_out = ", ".join(f"{key} {n}x" for key, n in seen.left_out.items()) or "nothing"
    led = "".join(f", the copy {reward:.1f}" for reward in rewards[1:])
    said(
        f"warm start from {name}: {len(seen.actions):,} decisions, {100 * seen.exact_choices:.1f} % of "
        f"the choices exact, left out: {left_out}; reward {seen.own_return:.1f}, as actions "
        f"{seen.as_actions:.1f}{led}; the copy agrees on {100 * fitted['agreement']:.1f} %"
    )


def _callbacks(
    config: TrainConfig, folder: Path, prices: LagrangianVecEnv | None, noise: HeldNoise | None
) -> list[BaseCallback]:
    """What else happens during learning, as the configuration asks."""
    found: list[BaseCallback] = []
    if noise is not None:
        found.append(noise)
    if config.sharpen != 1:
        found.append(Sharpening(config.sharpen, config.total_timesteps))
    if prices is not None:
        found.append(DualAscent(prices))
    if config.group_baseline:
        found.append(GroupBaseline(config.same_arrivals))
    start = config.warm_start
    if start.policy is not None and start.kl > 0 and start.kl_steps > 0:
        copy: Any = load_model(folder / COPY, config)
        found.append(Anchor(copy.policy, start.kl, start.kl_steps))
    return found
