"""A network that copies a policy, and a KL term that decays to nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from torch.distributions import Categorical

from agents import train
from agents.configuration.environments import codec_of, make_scenario, make_vector_env
from agents.configuration.settings import WarmStartConfig
from agents.exploration.anchor import Anchor, attach, kl_of_parts
from agents.exploration.held_noise import parts_of
from agents.learned import LearnedPolicy
from agents.learning.cloning import Demonstrations, _distribution, are_ordered, clone, watch
from agents.models.store import LAST, steps_of
from baselines import make_policy
from llmscale_env.control.command import Command
from llmscale_env.control.run import run_episode
from tests.small_runs import SEEN, SMALL, UNWATCHED, asked, copying, network_of

# ---- the copy ----


class Sawtooth:
    """Something to learn: counts and limits that follow the clock."""

    name = "sawtooth"

    def reset(self, scenario: Any, seed: int) -> None:
        pass

    def act(self, view: Any) -> Command:
        late = view.time_s >= 60
        limits = dict.fromkeys(("interactive", "mixed"), 128 if late else 32)
        return Command(targets={"mixed": 2 if late else 1}, batch_limits=limits)


def test_a_run_that_cannot_copy_says_so_before_it_begins(tmp_path: Path, capsys):
    out = tmp_path / "run"
    words = ["warm_start.policy=hpa", "action=residual", "reference=chiron", f"out={out}"]
    assert train.main(asked(*words)) == 2
    assert "warm_start.policy = 'hpa': parts" in capsys.readouterr().err
    assert not out.exists()


def test_returns_end_with_their_episode():
    nothing = np.zeros((5, 1))
    seen = Demonstrations(
        observations=nothing.astype(np.float32),
        actions=nothing.astype(int),
        masks=nothing.astype(bool),
        asked=np.ones(5, bool),
        rewards=np.array([1.0, 2.0, 4.0, 10.0, 20.0]) + 0.5,
        priced=np.array([1.0, 2.0, 4.0, 10.0, 20.0]),
        lengths=(3, 2),
        own_return=0.0,
        as_actions=0.0,
        exact_choices=1.0,
        exact_commands=1.0,
        left_out={},
        untranslated=(),
        ordered=(True,),
        counts=(True,),
    )
    # By hand, discount 0.5, scale 2: 8, 4 + 0.5 * 8, 2 + 0.5 * 8; 40, 20 + 0.5 * 40.
    assert seen.returns(0.5, 2.0).tolist() == [6.0, 8.0, 8.0, 40.0, 40.0]
    assert seen.mean_return == 19.75


@pytest.mark.parametrize("agent", ["ppo", "maskable-ppo", "recurrent-ppo"])
def test_a_copy_acts_as_what_it_has_seen(agent: str):
    config = copying("action=instance_counts,batch_limits", "warm_start.episodes=3", agent=agent)
    scenario = make_scenario(config)

    seen = watch(config, [(scenario, Sawtooth())])
    assert seen.lengths == (12, 12, 12)
    assert seen.exact_commands == 1.0
    model = network_of(config)
    settings = WarmStartConfig(policy="x", epochs=150, batch_size=12, learning_rate=0.01)
    before = clone(model, seen, settings.model_copy(update={"epochs": 1}), 0.02, 0)
    after = clone(model, seen, settings, 0.02, 0)
    assert after["cross_entropy"] < 0.3 * before["cross_entropy"]
    assert after["agreement"] > max(0.95, before["agreement"])
    # It does so by itself too, on requests that it has not seen.
    policy = LearnedPolicy(model=model, config=config)
    alone, copied = (run_episode(p, scenario, 99).series for p in (Sawtooth(), policy))
    same = np.equal(alone["interactive/batch_limit"], copied["interactive/batch_limit"])
    assert set(copied["interactive/batch_limit"]) >= {32.0, 128.0}
    assert same.mean() > 0.7


def test_entropy_keeps_a_copy_trying_other_things():
    config = copying("action=instance_counts", "warm_start.episodes=2", agent="ppo")
    scenario = make_scenario(config)
    policy = make_policy("static:interactive=2,mixed=1,batch=0")
    seen = watch(config, [(scenario, policy)])
    settings = WarmStartConfig(policy="x", epochs=400, batch_size=24, learning_rate=0.01)
    odds = {}
    for entropy in (0.0, 0.2):
        model = network_of(config)
        clone(model, seen, settings.model_copy(update={"entropy": entropy}), 0.02, 0)
        found = model.policy.get_distribution(torch.as_tensor(seen.observations))
        first = found.distribution[0].probs.detach().numpy()
        others = np.delete(first, seen.actions[0, 0], axis=1)
        odds[entropy] = float(np.median(first[:, seen.actions[0, 0]] / others.mean(axis=1)))
    assert 75 < odds[0.2] < 300  # exp(1 / 0.2) is 148
    assert odds[0.0] > 4 * odds[0.2]


@pytest.mark.parametrize("agent", ["ppo", "maskable-ppo", "recurrent-ppo"])
def test_a_spread_copy_tries_the_levels_beside_the_policys(agent: str):
    config = copying("action=instance_counts,batch_limits", "warm_start.episodes=2", agent=agent)
    scenario = make_scenario(config)
    seen = watch(config, [(scenario, make_policy("static:interactive=2,mixed=1,batch=0"))])
    model = network_of(config)
    settings = WarmStartConfig(policy="x", epochs=300, batch_size=24, entropy=0.0, spread=0.45)
    assert clone(model, seen, settings, 0.02, 0)["agreement"] == 1.0
    rows = np.arange(len(seen.actions))
    found = _distribution(model, seen, rows, len(seen.lengths))
    first = parts_of(found)[0].probs.detach().numpy()  # of interactive: 2 of 0, 1, 2, 3, 4, ...
    middle = np.median(first, axis=0)
    # By hand: 1, exp(-1 / 0.405), exp(-4 / 0.405) of 1.1693.
    np.testing.assert_allclose(middle[1:4], [0.0724, 0.8551, 0.0724], atol=0.03)
    assert middle[0] < 0.01


def test_settings_may_be_spread_less_than_counts():
    config = copying("action=instance_counts,batch_limits", "warm_start.episodes=2", agent="ppo")
    scenario = make_scenario(config)
    seen = watch(config, [(scenario, make_policy("static:interactive=2,mixed=1,batch=0"))])
    assert seen.counts == (True, True, True, False, False, False)
    tried = {}
    for others in (None, 0.3, 0.0):
        model = network_of(config)
        settings = WarmStartConfig(
            policy="x", epochs=300, batch_size=24, entropy=0.0, spread=0.45, spread_settings=others
        )
        clone(model, seen, settings, 0.02, 0)
        found = parts_of(_distribution(model, seen, np.arange(len(seen.actions)), 2))
        chosen = [
            np.median(part.probs.detach().numpy()[:, k])
            for part, k in zip(found, seen.actions[0], strict=True)
        ]
        assert chosen[0] == pytest.approx(0.855, abs=0.05)  # a count is spread as before
        tried[others] = 1 - chosen[3]
    assert tried[None] > 3 * tried[0.3] > 9 * tried[0.0]


def test_choices_without_an_order_are_not_spread():
    assert are_ordered(["0", "0.25", "1"])
    assert are_ordered(["-4", "0", "+4"])
    assert are_ordered(["x0.5", "x2"])
    assert not are_ordered(["ssd", "host", "multicast"])
    config = copying("action=instance_counts,loading", "warm_start.episodes=2", agent="ppo")
    scenario = make_scenario(config)
    seen = watch(config, [(scenario, make_policy("paced:load_source=host"))])
    assert seen.ordered == (True, True, True, False)
    model = network_of(config)
    settings = WarmStartConfig(policy="x", epochs=300, batch_size=24, entropy=0.0, spread=0.45)
    clone(model, seen, settings, 0.02, 0)
    found = parts_of(_distribution(model, seen, np.arange(len(seen.actions)), len(seen.lengths)))
    source = np.median(found[3].probs.detach().numpy(), axis=0)
    assert source[1] > 0.99  # host, between ssd and multicast


def test_the_copy_of_a_policy_that_never_changes_can_still_learn_to():
    """Few units of the last hidden layer are where tanh is flat; all were, without the biases after it."""
    config = copying("action=instance_counts", "warm_start.episodes=4", agent="ppo")
    scenario = make_scenario(config)
    seen = watch(config, [(scenario, make_policy("static:interactive=2,mixed=1,batch=0"))])
    model = network_of(config)
    settings = WarmStartConfig(policy="x", epochs=300, batch_size=12)
    told = clone(model, seen, settings, 0.02, 0)
    assert told["agreement"] == 1.0
    with torch.no_grad():
        units = model.policy.mlp_extractor.policy_net(torch.as_tensor(seen.observations))
    assert float((units.abs() > 0.97).float().mean()) < 0.2


def test_a_reference_policy_through_the_codec_plays_its_rounded_orders():
    config = copying("warm_start.episodes=2")
    scenario = make_scenario(config)
    seen = watch(config, [(scenario, make_policy("llumnix"))])
    assert 0.5 < seen.exact_choices <= 1.0
    assert "routers" in seen.left_out  # one pool for all classes: no action says so
    env = make_vector_env(config, scenario, 2)
    alone = config.model_copy(update={"same_arrivals": 1})
    obs, _ = env.reset(seed=alone.drawn_seeds(2, 0, 1))
    for step in range(12):
        rows = [step, 12 + step]
        np.testing.assert_array_equal(obs, seen.observations[rows])
        np.testing.assert_array_equal(env.action_masks(), seen.masks[rows])
        obs, rewards, *_ = env.step(seen.actions[rows])
        np.testing.assert_allclose(rewards, seen.rewards[rows], rtol=1e-12)
    env.close()
    mine = [run_episode(make_policy("llumnix"), scenario, s) for s in alone.drawn_seeds(2, 0, 1)]
    assert seen.own_return == pytest.approx(np.mean([r.summary["reward"] for r in mine]))


# ---- rounds in which the copy leads ----


@pytest.mark.parametrize("agent", ["ppo", "maskable-ppo", "recurrent-ppo"])
def test_where_a_copy_leads_the_teacher_says_what_it_would_do(agent: str):
    config = copying("action=instance_counts,batch_limits", "warm_start.episodes=2", agent=agent)
    scenario = make_scenario(config)
    first = watch(config, [(scenario, Sawtooth())])
    model = network_of(config)  # untrained: it goes other ways than the teacher
    leader = LearnedPolicy(model=model, config=config)
    led = watch(config, [(scenario, Sawtooth())], leader=leader, round_=1)
    # What is played is what the leader alone plays, in episodes that the first round has not seen.
    seeds = config.model_copy(update={"same_arrivals": 1}).drawn_seeds(4, 0, 1)
    alone = [run_episode(leader, scenario, seed) for seed in seeds[2:]]
    assert led.rewards.tolist() == [r for made in alone for r in made.series["reward"]]
    assert led.rewards.tolist() != first.rewards.tolist()
    # What is written down is what the teacher orders, whoever plays.
    parts = codec_of(config, scenario).decoder.parts
    told = ("interactive/batch_limit", "mixed/batch_limit")  # always possible
    columns = [parts.index(name) for name in told]
    assert led.actions[:, columns].tolist() == first.actions[:, columns].tolist()
    assert np.isnan(led.own_return)
    both = first.followed_by(led)
    assert both.lengths == (12, 12, 12, 12)
    assert both.mean_return == pytest.approx((first.mean_return + led.mean_return) / 2)
    assert both.own_return == first.own_return


def test_a_teacher_that_can_see_is_asked_now_and_then():
    class Watching(Sawtooth):
        """Counts what it is shown."""

        def __init__(self) -> None:
            self.told: list[tuple[str, int]] = []

        def act(self, view: Any) -> Command:
            self.told.append(("act", view.step))
            return super().act(view)

        def see(self, view: Any) -> None:
            self.told.append(("see", view.step))

    words = ("warm_start.episodes=2", "warm_start.every=5", "warm_start.rounds=2")
    config = copying("action=instance_counts,batch_limits", *words)
    scenario = make_scenario(config)
    teacher, often = Watching(), config.model_copy(update={"warm_start": WarmStartConfig()})
    first = watch(config, [(scenario, teacher)])
    assert {what for what, _ in teacher.told} == {"act"}  # it leads itself
    model = network_of(config)
    leader = LearnedPolicy(model=model, config=config)
    teacher.told.clear()
    led = watch(config, [(scenario, teacher)], leader=leader, round_=1)
    in_turn = [("see" if k % 5 else "act", k) for k in range(12)]
    assert teacher.told == in_turn * 2
    # What is written down are the decisions at which it was asked, of the same episodes.
    every = often.warm_start.model_copy(update={"episodes": 2})
    often = often.model_copy(update={"warm_start": every})
    full = watch(often, [(scenario, Watching())], leader=leader, round_=1)
    asked = np.tile(np.arange(12) % 5 == 0, 2)
    assert led.asked.tolist() == asked.tolist()
    assert led.rewards.tolist() == full.rewards.tolist()
    for name in ("observations", "actions", "masks"):
        assert np.array_equal(getattr(led, name), getattr(full, name)[asked])
    # All rewards count in the returns of those that are learnt.
    both = first.followed_by(led)
    found = clone(model, both, WarmStartConfig(policy="x", epochs=2, batch_size=16), 0.02, 0)
    assert both.asked.sum() == len(both.actions) == 24 + 6
    assert both.returns(0.99, 1.0).shape == (48,)
    assert np.isfinite(found["value_loss"])


def test_a_teacher_that_cannot_see_is_asked_always(tmp_path: Path, capsys):
    words = ["warm_start.policy=static:interactive=2,mixed=1,batch=0", "warm_start.rounds=2"]
    words += ["warm_start.every=2"]
    out = tmp_path / "run"
    assert train.main([*SMALL, *UNWATCHED, *words, "action=instance_counts", f"out={out}"]) == 2
    assert "warm_start.every = 2: must be 1, as static" in capsys.readouterr().err
    assert not out.exists()


def test_a_run_learns_from_all_rounds(tmp_path: Path):
    out = tmp_path / "run"
    words = ["warm_start.policy=static:interactive=2,mixed=1,batch=0", "warm_start.rounds=3"]
    words += ["warm_start.episodes=2", "warm_start.epochs=2", "total_timesteps=16", "n_envs=2"]
    more = ["ppo.n_steps=8", "ppo.batch_size=16", "action=instance_counts"]
    assert train.main([*SMALL, *UNWATCHED, *words, *more, f"out={out}"]) == 0
    told = json.loads((out / "warm_start.json").read_text())
    assert (told["episodes"], told["decisions"]) == (6, 72)
    assert len(told["mean_returns_of_copies"]) == 2


# ---- the KL term ----


def test_kl_of_a_small_categorical_by_hand():
    p = Categorical(torch.tensor([[0.5, 0.5]]))
    q = Categorical(torch.tensor([[0.25, 0.75]]))
    three = Categorical(torch.tensor([[0.2, 0.3, 0.5]]))
    # 0.5 ln(0.5 / 0.25) + 0.5 ln(0.5 / 0.75) = 0.5 ln(4 / 3)
    assert float(kl_of_parts([p], [q])) == pytest.approx(0.5 * np.log(4 / 3), rel=1e-6)
    assert float(kl_of_parts([p, three], [q, three])) == pytest.approx(
        0.5 * np.log(4 / 3), rel=1e-6
    )


def test_an_attached_term_adds_its_gradient_and_nothing_else():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    attached = attach(x * 3.0, 5.0 * (x**2).sum())
    assert attached.tolist() == [3.0, 6.0]
    (attached.sum() * 7.0).backward()
    # d/dx (21 x) + d/dx (5 x^2), whatever the loss is multiplied with
    assert x.grad.tolist() == [21.0 + 10.0, 21.0 + 20.0]


class Two(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.MultiDiscrete([3, 2])

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action: Any):
        reward = float(action[0]) - float(action[1])
        return self._look(), reward, False, bool(self.np_random.random() < 0.1), {}

    def _look(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def action_masks(self):
        return np.array([True, True, True, True, False])


def learnt(agent: str, anchor: tuple[float, int] | None, steps: int = 64) -> Any:
    """A model after some updates; the copy is another, untrained network."""
    from sb3_contrib import MaskablePPO, RecurrentPPO

    cls, policy = {
        "ppo": (PPO, "MlpPolicy"),
        "maskable-ppo": (MaskablePPO, "MlpPolicy"),
        "recurrent-ppo": (RecurrentPPO, "MlpLstmPolicy"),
    }[agent]
    kwargs = {"lstm_hidden_size": 8} if agent == "recurrent-ppo" else {}

    def make(seed: int) -> Any:
        env = Two()
        return cls(
            policy,
            env,
            n_steps=16,
            batch_size=8,
            n_epochs=2,
            seed=seed,
            device="cpu",
            learning_rate=1e-2,
            policy_kwargs={"net_arch": [8], **kwargs},
        )

    copy = make(5).policy
    model = make(0)
    callback = Anchor(copy, *anchor) if anchor else None
    model.learn(steps, callback=callback)
    return model, callback, copy


def same(one: Any, other: Any) -> bool:
    mine, theirs = one.policy.state_dict(), other.policy.state_dict()
    return all(torch.equal(mine[key], theirs[key]) for key in mine)


@pytest.mark.parametrize("agent", ["ppo", "maskable-ppo", "recurrent-ppo"])
def test_with_coefficient_zero_updates_are_those_of_the_plain_learner(agent: str):
    plain, *_ = learnt(agent, None)
    zero, callback, _ = learnt(agent, (0.0, 10_000))
    assert same(plain, zero)
    assert "evaluate_actions" not in vars(zero.policy)
    # It has decayed to nothing before the second update: the first alone differs from the plain one's.
    held, callback, _ = learnt(agent, (5.0, 17))
    assert callback.coefficient == 0.0
    assert not same(plain, held)
    over, callback, _ = learnt(agent, (5.0, 16))
    assert same(plain, over)


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["ppo", "maskable-ppo", "recurrent-ppo"])
def test_a_large_coefficient_draws_the_policy_to_the_copy(agent: str):
    def distance(model: Any, copy: Any) -> float:
        model.policy.set_training_mode(False)
        obs = torch.as_tensor(np.random.default_rng(0).uniform(-1, 1, (64, 2)), dtype=torch.float32)
        more: tuple[Any, ...] = ()
        if agent == "maskable-ppo":
            more = (np.tile(Two().action_masks(), (64, 1)),)
        if agent == "recurrent-ppo":
            zeros = torch.zeros(1, 64, 8)
            more = ((zeros, zeros), torch.zeros(64))
        found = []
        for policy in (copy, model.policy):
            with torch.no_grad():
                made = policy.get_distribution(obs, *more)
            made = made[0] if agent == "recurrent-ppo" else made
            found.append(made.distributions if agent == "maskable-ppo" else made.distribution)
        return float(kl_of_parts(*found).mean())

    free, _, copy = learnt(agent, None, 320)
    held, callback, copy = learnt(agent, (10.0, 10**9), 320)
    assert callback.coefficient == pytest.approx(10.0, rel=1e-5)
    assert distance(held, copy) < 0.2 * distance(free, copy)


def test_a_run_with_a_warm_start_can_be_taken_up(tmp_path: Path):
    folder = tmp_path / "run"
    words = [
        *(*SMALL, *SEEN, "n_envs=2"),
        "ppo.n_steps=8",
        "ppo.batch_size=16",
        "ppo.net=[8]",
        "total_timesteps=32",
        "validation_every=16",
        *UNWATCHED,
        "warm_start.policy=llumnix",
        "warm_start.episodes=1",
        "warm_start.epochs=2",
        "warm_start.kl_steps=64",
    ]
    assert train.main([*words, f"out={folder}"]) == 0
    told = json.loads((folder / "warm_start.json").read_text())
    assert told["policy"] == "llumnix"
    assert told["decisions"] == 12
    copied = (folder / "model_copy.safetensors").read_bytes()
    more = ["env=burst-multicast", f"out={folder}", "resume=true", "total_timesteps=80"]
    assert train.main(more) == 0
    assert (folder / "model_copy.safetensors").read_bytes() == copied
    assert steps_of(folder / LAST) == 80
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tb" / "ppo"))
    events.Reload()
    values = [round(e.value, 6) for e in events.Scalars("llmscale/copy/kl_coefficient")]
    assert values == [0.75, 0.5, 0.25, 0.0, 0.0]
