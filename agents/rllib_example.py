"""An autoscaler learnt with RLlib in place of stable-baselines3: a start for those who work with it.

    python -m agents.rllib_example env=mixed-slo-hours [KEY=VALUE ...]

    env=NAME               an environment with MultiDiscrete or Discrete actions; multi-region-parallel: one
                           agent per region, all with one policy (extra `multiagent`)
    iterations=20          of PPO
    train_batch=2048       environment steps per iteration
    runners=0              processes that play episodes; 0: this one plays them
    lr=0.0003  gamma=0.995  net=64,64  seed=0
    episodes=4             played at the end with the most probable actions
    out=FOLDER             where the checkpoint goes (default: runs/rllib-ENV)
    quick=true             seconds in place of minutes: a short horizon, two iterations
    ray.address=ADDRESS    of a cluster (docs/clusters.md); else RAY_ADDRESS, else one of this machine alone
    scenario.FIELD=VALUE   changes the scenario (scenario.fleet.max_gpus=12)

Needs the extra `rllib`. It shows how the environments are given to RLlib (new API stack, PPO, CPU), no more:
no validation, no choice of a best model, nothing tuned. `agents.train` has these. Actions are drawn without
the masks; what is impossible the environment clips and counts.
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

from agents.configuration.config import environment_id
from agents.runs.files import said
from llmscale_env._cli import (
    Slip,
    check_folder,
    flag,
    number,
    parse_scenario_words,
    run_command,
    whole,
    whole_numbers,
)
from llmscale_env._spread import on_ray

PARALLEL = "multi-region-parallel"
WORDS = (
    *("env", "iterations", "train_batch", "runners", "lr", "gamma", "net", "seed", "episodes"),
    *("out", "quick", "ray.address"),
)
QUICK_INTERVALS = 30
QUICK = {"iterations": "2", "train_batch": "128", "episodes": "1"}


def make_env(settings: Mapping[str, Any]) -> Any:
    """The environment, in whichever process RLlib asks for it."""
    import gymnasium

    import llmscale_env  # noqa: F401  (registers)

    if settings["env"] == PARALLEL:
        from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv

        from llmscale_env.envs.multi_region_parallel import MultiRegionParallelEnv

        return ParallelPettingZooEnv(MultiRegionParallelEnv(overrides=settings["overrides"]))
    return gymnasium.make(environment_id(settings["env"]), overrides=settings["overrides"])


def algorithm(
    settings: Mapping[str, Any],
    *,
    train_batch: int,
    runners: int = 0,
    lr: float = 3e-4,
    gamma: float = 0.995,
    net: Sequence[int] = (64, 64),
    seed: int = 0,
) -> Any:
    """RLlib's PPO on an environment.

    Args:
        settings: `{"env": short name, "overrides": changed fields of the scenario by dotted path}`.
        train_batch: environment steps per iteration.
        runners: processes that play; 0: this one.
        lr, gamma: learning rate, discount.
        net: sizes of the hidden layers.
        seed: of everything.
    """
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
            train_batch_size_per_learner=train_batch,
            minibatch_size=min(256, train_batch),
            num_epochs=8,
            lr=lr,
            gamma=gamma,
            # Returns are hundreds: unscaled they would leave the policy's gradient nothing.
            vf_loss_coeff=1e-4,
            vf_clip_param=float("inf"),
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=list(net)))
        .debugging(seed=seed, log_level="ERROR")
    )
    if settings["env"] == PARALLEL:
        config = config.multi_agent(
            policies={"region"}, policy_mapping_fn=lambda agent, episode, **_: "region"
        )
    return config.build_algo()


def play(env: Any, choose: Any, seed: int) -> tuple[float, Mapping[str, Any]]:
    """An episode: (sum of rewards, its summary).

    Args:
        env: as `make_env` gives it; agents' rewards are all the cluster's, so one of them counts.
        choose: actions from observations.
        seed: of the episode.
    """
    observation, info = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        observation, reward, _, truncated, info = env.step(choose(observation))
        if isinstance(reward, dict):
            total += next(iter(reward.values()))
            over = all(truncated.values())
            info = next(iter(info.values()), {})
        else:
            total, over = total + float(reward), truncated
    return total, info["episode_summary"]


def greedy(algo: Any, space: Any, module: str) -> Any:
    """A function from an observation to the most probable action of a trained module."""
    import torch
    from gymnasium import spaces

    network = algo.get_module(module)
    distribution = network.get_inference_action_dist_cls()

    def choose(observation: Any) -> Any:
        batch = {"obs": torch.as_tensor(np.asarray(observation, np.float32)[None])}
        with torch.no_grad():
            logits = network.forward_inference(batch)["action_dist_inputs"]
        found = distribution.from_logits(logits).to_deterministic().sample()[0].numpy()
        return int(found) if isinstance(space, spaces.Discrete) else found

    return choose


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 after a slip (named in one line), 130 when interrupted."""
    return run_command("rllib_example", __doc__, argv, _run)


def _run(words: Sequence[str]) -> int:
    options, name, overrides = parse_scenario_words(words, WORDS)
    if name is not None:
        raise Slip(f"scenario = {name!r}: env= says which; scenario.FIELD= changes it")
    env = options.get("env", "mixed-slo-hours")
    if env != PARALLEL:
        environment_id(env)
    if flag(options, "quick"):
        options = {**QUICK, **options}
        overrides = {"horizon_s": QUICK_INTERVALS * _interval_s(env), **overrides}
    iterations = whole(options, "iterations", 20, 1, 10**6)
    train_batch = whole(options, "train_batch", 2048, 1, 10**7)
    runners = whole(options, "runners", 0, 0, 1000)
    seed = whole(options, "seed", 0, 0, 2**31 - 1)
    episodes = whole(options, "episodes", 4, 1, 10_000)
    lr = number(options, "lr", 3e-4, 0.0, 1.0, above=True)
    gamma = number(options, "gamma", 0.995, 0.0, 1.0, above=True)
    net = whole_numbers(options, "net", (64, 64), 1, 100_000)
    out = Path(options.get("out", f"runs/rllib-{env}"))
    check_folder("out", out)
    settings = {"env": env, "overrides": overrides}
    _check(settings)
    ray = on_ray.import_ray()
    try:
        import ray.rllib
    except ImportError as error:
        raise Slip(f"RLlib is missing ({error.name}): pip install 'llmscale[rllib]'") from None
    # RLlib's own code uses what its newer parts warn of.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    logging.getLogger("ray").setLevel(logging.ERROR)
    address = options.get("ray.address") or os.environ.get("RAY_ADDRESS") or "local"
    ours = not ray.is_initialized()
    if ours:
        on_ray.connect(ray, address)
    algo = None
    try:
        algo = algorithm(
            settings,
            train_batch=train_batch,
            runners=runners,
            lr=lr,
            gamma=gamma,
            net=net,
            seed=seed,
        )
        for iteration in range(1, iterations + 1):
            found = algo.train()["env_runners"]
            mean = found.get("episode_return_mean", float("nan"))
            said(
                f"iteration {iteration:>4}  steps {found['num_env_steps_sampled_lifetime']:>9,.0f}"
                f"  return of training episodes {mean:10.1f}"
            )
        _show(algo, settings, range(10_000, 10_000 + episodes))
        print(f"checkpoint  {algo.save_to_path(str(out.resolve()))}")
    finally:
        if algo is not None:
            algo.stop()
        if ours:
            ray.shutdown()
    return 0


def _interval_s(env: str) -> float:
    from llmscale_env.scenarios import load_scenario

    return load_scenario("multi-region" if env == PARALLEL else env).control_interval_s


def _check(settings: Mapping[str, Any]) -> None:
    """That there is such an environment, before anything heavy begins.

    Raises:
        Slip: there is not.
    """
    from llmscale_env.scenarios import ScenarioError, load_scenario

    name = "multi-region" if settings["env"] == PARALLEL else settings["env"]
    try:
        load_scenario(name, **settings["overrides"])
    except ScenarioError as error:
        raise Slip(str(error)) from None


def _show(algo: Any, settings: Mapping[str, Any], seeds: range) -> None:
    """The trained policy on episodes that it has not met."""
    env = make_env(settings)
    parallel = settings["env"] == PARALLEL
    agents = env.par_env.possible_agents if parallel else None
    space = env.get_action_space(agents[0]) if agents else env.action_space
    choose = greedy(algo, space, "region" if parallel else "default_policy")

    def every(observation: Any) -> Any:
        if isinstance(observation, dict):
            return {agent: choose(mine) for agent, mine in observation.items()}
        return choose(observation)

    for seed in seeds:
        total, summary = play(env, every, seed)
        print(
            f"seed {seed}  reward {total:9.1f}  on time "
            f"{100 * summary['joint/slo_attainment']:.1f} %  GPU-hours {summary['gpu_hours']:.2f}"
        )


if __name__ == "__main__":
    sys.exit(main())
