"""PPO with RLlib, on one agent or on one agent per region.

    python -m agents.examples.rllib [KEY=VALUE ...]

    env=mixed-slo-hours    an environment with MultiDiscrete actions; multi-region-parallel: one agent per
                           region, all with one policy (extra `multiagent`)
    total_timesteps=60000  environment steps
    train_batch=1920       of them per update
    runners=0              processes that play episodes; 0: this one plays them
    seed=0                 of everything
    episodes=10            test episodes, with the seeds 10000 and up
    workload=NAME          of the test episodes (default: test days, where the environment has them)
    out=FOLDER             where the checkpoint goes (default: none is written)
    ray.address=ADDRESS    of a cluster (docs/clusters.md); else RAY_ADDRESS, else one of this machine alone
    scenario.FIELD=VALUE   changes the scenario (scenario.fleet.max_gpus=12)

Prints the mean reward of the test episodes before and after. Needs the extra `rllib`; docs/examples.md has
what it reaches. It shows RLlib's new API stack on a CPU, no more: no validation, nothing tuned. Actions are
drawn without the masks; what is impossible the environment clips and counts.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agents.examples import settings as command
from agents.runs.files import said
from llmscale_env._cli import Slip, check_folder, run_command, whole
from llmscale_env._spread import on_ray

PARALLEL = "multi-region-parallel"
# A reward is some tens of dollars a day, a step of half a minute costs a hundredth of one.
REWARD_SCALE = 10.0
# The first policy takes the choice that leaves the cluster as it is exp(1) times as often as any other. With
# exp(3) the policy that draws learns, but its most probable choice, which the test takes, stays that one.
AS_IS_BIAS = 1.0


def make_env(settings: Mapping[str, Any]) -> Any:
    """The environment, in whichever process RLlib asks for it."""
    import gymnasium

    import llmscale_env  # noqa: F401  (registers)

    if settings["parallel"]:
        from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv

        from llmscale_env.envs.multi_region_parallel import MultiRegionParallelEnv

        return ParallelPettingZooEnv(MultiRegionParallelEnv(overrides=settings["overrides"]))
    env = gymnasium.make(settings["id"], overrides=settings["overrides"])
    return gymnasium.wrappers.TransformReward(env, lambda reward: REWARD_SCALE * float(reward))


def make_algorithm(settings: Mapping[str, Any], batch: int, runners: int, seed: int) -> Any:
    """RLlib's PPO; untrained, it leans towards leaving the cluster as it is."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    register_env("llmscale", make_env)
    config = (
        PPOConfig()
        .environment("llmscale", env_config=dict(settings), disable_env_checking=True)
        .env_runners(num_env_runners=runners, rollout_fragment_length="auto")
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=batch,
            minibatch_size=min(480, batch),
            num_epochs=6,
            lr=[[0, 1e-3], [settings["steps"], 0.0]],
            gamma=0.99,
            lambda_=0.95,
            use_kl_loss=False,
            clip_param=0.2,
            vf_loss_coeff=0.25,
            vf_clip_param=float("inf"),
            grad_clip=0.5,
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], vf_share_layers=False))
        .debugging(seed=seed, log_level="ERROR")
    )
    if settings["parallel"]:
        config = config.multi_agent(
            policies={"region"}, policy_mapping_fn=lambda agent, episode, **_: "region"
        )
    algorithm = config.build_algo()
    if not settings["parallel"]:
        _begin_as_it_is(algorithm, make_env(settings).unwrapped)
    return algorithm


def _begin_as_it_is(algorithm: Any, env: Any) -> None:
    """Add the bias to the learner's last layer, and give its weights to those that play."""
    from agents.exploration.prior import as_is_choices

    as_is = as_is_choices(env.action_names, list(env.action_choices.values()), env.scenario)
    nvec = env.action_space.nvec
    starts = np.cumsum(nvec) - nvec
    weights = algorithm.learner_group.get_weights()
    layer = "pi.net.mlp.0."
    module = weights["default_policy"]
    module[f"{layer}weight"] = module[f"{layer}weight"] * 0.01
    module[f"{layer}bias"] = module[f"{layer}bias"] * 0.0
    for start, choice in zip(starts, as_is, strict=True):
        if choice is not None:
            module[f"{layer}bias"][start + choice] = AS_IS_BIAS
    algorithm.learner_group.set_weights(weights)
    algorithm.env_runner_group.sync_weights(from_worker_or_learner_group=algorithm.learner_group)


def chooser(algorithm: Any, module: str) -> Any:
    """A function from an observation to the most probable action."""
    import torch

    network = algorithm.get_module(module)
    distribution = network.get_inference_action_dist_cls()

    def choose(observation: Any) -> Any:
        batch = {"obs": torch.as_tensor(np.asarray(observation, np.float32)[None])}
        with torch.no_grad():
            logits = network.forward_inference(batch)["action_dist_inputs"]
        return distribution.from_logits(logits).to_deterministic().sample()[0].numpy()

    return choose


def test(algorithm: Any, given: Mapping[str, Any], settings: command.Settings) -> list[float]:
    """Rewards of the test episodes, with the most probable actions."""
    env = make_env(given)
    agents = env.par_env.possible_agents if given["parallel"] else []
    choose = chooser(algorithm, "region" if agents else "default_policy")
    rewards = []
    for seed in settings.test_seeds:
        observation, _ = env.reset(seed=seed, options=settings.test_options)
        total, over = 0.0, False
        while not over:
            if agents:
                actions = {agent: choose(mine) for agent, mine in observation.items()}
                observation, reward, _, truncated, _ = env.step(actions)
                total += reward[agents[0]]  # the whole cluster's, the same for all
                over = all(truncated.values())
            else:
                observation, reward, _, over, _ = env.step(choose(observation))
                total += float(reward) / REWARD_SCALE
        rewards.append(total)
    return rewards


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 after a slip (named in one line), 130 when interrupted."""
    return run_command("rllib", __doc__, argv, _run, wordless=True)


def _run(words: Sequence[str]) -> int:
    parallel = f"env={PARALLEL}" in words
    words = ["env=multi-region" if word == f"env={PARALLEL}" else word for word in words]
    settings = command.read(words, more=("train_batch", "runners", "out", "ray.address"))
    batch = whole(settings.others, "train_batch", 1920, 1, 10**7)
    runners = whole(settings.others, "runners", 0, 0, 1000)
    out = Path(settings.others["out"]) if "out" in settings.others else None
    if out is not None:
        check_folder("out", out)
    ray = on_ray.import_ray()
    try:
        import ray.rllib
    except ImportError as error:
        raise Slip(f"RLlib is missing ({error.name}): pip install 'llmscale[rllib]'") from None
    # RLlib's own code uses what its newer parts warn of.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    logging.getLogger("ray").setLevel(logging.ERROR)
    ours = not ray.is_initialized()
    if ours:
        address = settings.others.get("ray.address") or os.environ.get("RAY_ADDRESS") or "local"
        on_ray.connect(ray, address)
    algorithm = None
    given = {"id": settings.id, "overrides": dict(settings.overrides), "parallel": parallel}
    given["steps"] = settings.total_timesteps
    try:
        algorithm = make_algorithm(given, batch, runners, settings.seed)
        settings.tell("before", test(algorithm, given, settings))
        steps = 0
        while steps < settings.total_timesteps:
            found = algorithm.train()["env_runners"]
            steps = int(found["num_env_steps_sampled_lifetime"])
            mean = found.get("episode_return_mean", float("nan"))
            said(f"steps {steps:>9,}  scaled return of training episodes {mean:10.1f}")
        settings.tell("after", test(algorithm, given, settings))
        if out is not None:
            print(f"checkpoint  {algorithm.save_to_path(str(out.resolve()))}")
    finally:
        if algorithm is not None:
            algorithm.stop()
        if ours:
            ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
