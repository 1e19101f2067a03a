"""The three learners: made, trained, saved, taken up again and run, and who is asked for masks and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents import evaluate, train
from agents.configuration.config import make_config, read_config
from agents.configuration.environments import codec_of, make_scenario, make_vector_env
from agents.learned import LearnedPolicy
from agents.models.algorithms import is_recurrent
from agents.models.store import LAST, steps_of
from agents.vec_adapter import NativeVecEnv
from llmscale_env._cli import Slip
from llmscale_env.control.run import run_episode
from tests.small_runs import SMALL, UNWATCHED, asked, config_of, network_of


def tiny(agent: str, *words: str) -> list[str]:
    return asked(
        *SMALL,
        f"agent={agent}",
        "total_timesteps=128",
        "n_envs=4",
        f"{agent}.n_steps=16",
        f"{agent}.batch_size=32",
        f"{agent}.n_epochs=1",
        f"{agent}.net=[8]",
        *(["recurrent-ppo.lstm_size=8"] if agent == "recurrent-ppo" else []),
        "validation_every=64",
        *UNWATCHED,
        *words,
    )


@pytest.mark.parametrize("agent", ["maskable-ppo", "recurrent-ppo"])
def test_train_resume_evaluate(agent: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "run"
    assert train.main([*tiny(agent), f"out={folder}"]) == 0
    config = read_config(folder)
    assert config.agent == agent
    assert config.ppo is None
    # What is left out stays as it was, the agent included.
    words = ["env=burst-multicast", f"out={folder}", "resume=true", "total_timesteps=192"]
    assert train.main(words) == 0
    assert steps_of(folder / LAST) == 192
    capsys.readouterr()
    words = [*SMALL, f"policies=static,{folder}", "episodes=1", f"out={tmp_path / 'compared'}"]
    assert evaluate.main(words) == 0
    assert f"{folder.name} " in capsys.readouterr().out
    with pytest.raises(Slip, match="agent cannot change"):
        train.plan(["env=burst-multicast", f"out={folder}", "resume=true", "agent=ppo"])


def test_masks_reach_the_learner_through_the_adapter():
    from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported

    config = config_of(*tiny("maskable-ppo"))
    env = NativeVecEnv(make_vector_env(config, make_scenario(config), 3))
    env.seed(5)
    env.reset()
    assert is_masking_supported(env)
    masks = get_action_masks(env)
    np.testing.assert_array_equal(masks, env.env.action_masks())
    assert masks.shape == (3, env.action_space.nvec.sum())
    assert not masks.all()  # six GPUs do not hold 16 instances
    env.close()


def test_a_masked_policy_orders_only_what_is_possible():
    """Masks come from the codec when a policy runs, from the environment when it learns: the same ones."""
    from agents.models.algorithms import make_model, takes_masks

    config = config_of(*tiny("maskable-ppo"))
    scenario = make_scenario(config)
    env = NativeVecEnv(make_vector_env(config, scenario, 1))
    model = make_model(config, env)
    assert takes_masks(model)
    policy = LearnedPolicy(model=model, config=config)
    codec = codec_of(config, scenario)
    env.seed(3)
    env.reset()
    masks, actions = [], []
    choose = policy.choose

    def watched(observation: Any, **more: Any) -> Any:
        masks.append(more["action_masks"])
        actions.append(choose(observation, **more))
        return actions[-1]

    vars(policy)["choose"] = watched
    run_episode(policy, scenario, 3)
    starts = np.concatenate([[0], np.cumsum(codec.action_space.nvec)[:-1]])
    for mask, action in zip(masks, actions, strict=True):
        np.testing.assert_array_equal(mask, env.env.action_masks()[0])
        assert mask[starts + action].all()
        env.step(action[None])
    assert len(masks) == 12
    env.close()


def test_a_recurrent_policy_remembers_within_an_episode_and_forgets_between_them():
    config, scenario, model = untrained("recurrent-ppo")
    assert is_recurrent(model)
    policy = LearnedPolicy(model=model, config=config)
    memories = []
    predict = model.predict

    def watched(observation: Any, **more: Any) -> Any:
        memories.append((more["state"], bool(more["episode_start"][0])))
        return predict(observation, **more)

    model.predict = watched
    run_episode(policy, scenario, 3)
    first = [m for m, _ in memories]
    assert first[0] is None
    assert all(m is not None and np.abs(m[0]).max() > 0 for m in first[1:])
    assert [start for _, start in memories] == [True] + [False] * 11
    run_episode(policy, scenario, 3)
    assert memories[12][0] is None
    for before, again in zip(first[1:], memories[13:], strict=True):
        np.testing.assert_array_equal(before[0], again[0][0])


def untrained(agent: str, *words: str) -> tuple[Any, Any, Any]:
    """Configuration, scenario and a network that has learnt nothing."""
    config = config_of(*tiny(agent, *words))
    return config, make_scenario(config), network_of(config)


@pytest.mark.parametrize(
    "quantile, count", [(None, 2), (0.05, 0), (0.25, 1), (0.5, 2), (0.75, 3), (0.99, 3)]
)
def test_a_quantile_of_the_counts_that_a_network_would_draw(quantile: float | None, count: int):
    import torch

    config, scenario, model = untrained("ppo")
    codec = codec_of(config, scenario)
    parts = codec.decoder.parts
    probability = np.full(int(codec.action_space.nvec.sum()), 1e-6)
    starts = np.concatenate([[0], np.cumsum(codec.action_space.nvec)[:-1]])
    probability[starts[0] + np.arange(4)] = [0.1, 0.2, 0.4, 0.3]
    limits = parts.index("interactive/batch_limit")
    probability[starts[limits] + np.arange(3)] = [0.3, 0.4, 0.3]
    with torch.no_grad():
        model.policy.action_net.weight.zero_()
        model.policy.action_net.bias.copy_(torch.as_tensor(np.log(probability)))
    policy: Any = LearnedPolicy(model=model, config=config, quantile=quantile)
    actions: list[Any] = []
    policy.fit(scenario)
    decode = policy._codec.decode
    policy._codec.decode = lambda action, view: (actions.append(action), decode(action, view))[1]
    run_episode(policy, scenario, 3)
    assert len(actions) == 12
    assert {int(action[0]) for action in actions} == {count}
    assert {int(action[limits]) for action in actions} == {1}  # no count: the most probable


def test_a_quantile_keeps_to_what_is_possible():
    config, scenario, model = untrained("maskable-ppo")
    codec = codec_of(config, scenario)
    starts = np.concatenate([[0], np.cumsum(codec.action_space.nvec)[:-1]])
    for quantile in (0.001, 0.5, 0.999):
        policy: Any = LearnedPolicy(model=model, config=config, quantile=quantile)
        policy.fit(scenario)
        mask, decode = policy._codec.mask, policy._codec.decode
        masks: list[Any] = []
        policy._codec.mask = lambda view, of=mask, to=masks: (to.append(of(view)), to[-1])[1]

        def checked(action: Any, view: Any, of: Any = decode, seen: Any = masks) -> Any:
            assert seen[-1][starts + action].all()
            return of(action, view)

        policy._codec.decode = checked
        run_episode(policy, scenario, 3)
        assert len(masks) == 12


def test_a_quantile_that_is_none_or_of_a_network_that_remembers():
    from agents.models.store import ModelError

    for agent, quantile, error in (
        ("ppo", 0.0, ValueError),
        ("ppo", 1.0, ValueError),
        ("recurrent-ppo", 0.5, ModelError),
    ):
        config, _, model = untrained(agent)
        with pytest.raises(error, match="quantile"):
            LearnedPolicy(model=model, config=config, quantile=quantile)
    for agent, value, said in (
        ("ppo", 1, "quantile = 1"),
        ("recurrent-ppo", 0.5, "quantile = 0.5"),
    ):
        with pytest.raises(Slip, match=said):
            make_config("burst-multicast", {"agent": agent, "quantile": value})


def test_a_quantile_where_nothing_is_counted_is_refused(tmp_path: Path, capsys):
    from agents.models.store import ModelError

    config, scenario, model = untrained("ppo", "action=batch_limits,loading")
    policy = LearnedPolicy(model=model, config=config, quantile=0.8)
    with pytest.raises(ModelError) as error:
        policy.fit(scenario)
    said = "quantile = 0.8: is of instance counts, and action = batch_limits, loading has none"
    assert str(error.value) == f"policy ppo: {said}"
    LearnedPolicy(model=model, config=config).fit(scenario)
    folder = tmp_path / "run"
    words = tiny("ppo", "action=batch_limits,loading", "quantile=0.8")
    assert train.main([*words, f"out={folder}"]) == 2
    assert capsys.readouterr().err == f"train: {said}\n"
    assert not folder.exists()
    # A quantile of changes does something, if not the same.
    train.check(config_of("action=instances", "quantile=0.8"))


# ---- what is seen and decided ----


def test_blocks_heads_and_forecaster_go_to_environment_and_policy_alike(tmp_path: Path):
    words = ["observation=clock,arrivals,forecast,last_action", "action=instances,batch_limits"]
    forecaster = "forecaster={kind: ewma, alpha: 0.9}"
    folder = tmp_path / "run"
    assert train.main([*tiny("ppo", *words, forecaster), f"out={folder}"]) == 0
    config = read_config(folder)
    assert config.action == ("instances", "batch_limits")
    policy, scenario = LearnedPolicy(folder), make_scenario(config)
    env = make_vector_env(config, scenario, 1)
    obs, _ = env.reset(seed=[4])
    seen = []
    predict, choose = policy.model.predict, policy.choose

    def watched(observation: Any, **more: Any) -> Any:
        seen.append(observation)
        return choose(observation, **more)

    vars(policy)["choose"] = watched
    run_episode(policy, scenario, 4, forecaster=policy.forecaster)
    rates = []
    for mine in seen:
        np.testing.assert_array_equal(mine, obs[0])
        rates.append(mine[7])
        obs, *_ = env.step(predict(obs, deterministic=True)[0])
    assert len(set(rates)) > 5  # there is a forecast, and it moves
    env.close()


@pytest.mark.parametrize(
    "word,said",
    [
        ("action=instance", "action = 'instance': unknown head"),
        ("observation=clocks", "observation = 'clocks': unknown block"),
        ("forecaster=ewna", "ewna"),
        ("reference=llumnx", "reference: unknown policy 'llumnx' (did you mean llumnix?)"),
        ("warm_start.policy=llumnx", "warm_start.policy: unknown policy 'llumnx'"),
    ],
)
def test_slips_about_names(word: str, said: str):
    with pytest.raises(Slip) as slip:
        train.check(config_of(*tiny("ppo", word)))
    assert said in str(slip.value)


@pytest.mark.parametrize(
    "words,said",
    [
        (["ppo.lstm_size=3"], "ppo.lstm_size': ppo takes ['n_steps'"),
        (["ppo.lstm_size=3"], "agent=recurrent-ppo has it"),
        (["ppo.n_step=3"], "did you mean ppo.n_steps?"),
        (["agent=maskable-ppo", "ppo.gamma=0.9"], "ppo.gamma: is an option of agent=ppo"),
        (["recurrent-ppo.gamma=0.9"], "the agent is ppo"),
    ],
)
def test_hyperparameters_of_another_learner_are_a_slip(words: list[str], said: str):
    with pytest.raises(Slip) as slip:
        config_of(*words)
    assert said in str(slip.value)
