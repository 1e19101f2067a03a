"""Many training scenarios side by side: what is drawn, when, from which seeds, and what stays the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from agents import train
from agents.configuration.config import read_config
from agents.configuration.environments import make_scenario, make_vector_env
from agents.configuration.settings import RangeConfig
from agents.learning.variety import ScenarioSource, VarietyVectorEnv, draw, fields_at, merged_infos
from agents.models.store import LAST, steps_of
from agents.vec_adapter import NativeVecEnv
from llmscale_env._cli import Slip
from tests import small_runs
from tests.small_runs import SEEN, SMALL

FEW = [
    *(word for word in SMALL if not word.startswith("scenario.horizon_s")),
    "scenario.horizon_s=40",
    "n_envs=4",
    "ppo.n_steps=4",
    "ppo.batch_size=16",
    "ppo.net=[8]",
]
RATES = ["randomise.ranges.workload.rate_scale=[0.5, 2.0]", "randomise.groups=2"]
STILL = np.array([[2, 1, 0, 3, 3, 3, 0, 0]] * 4)


def config_of(*words: str) -> Any:
    return small_runs.config_of(*FEW, *words)


def made(*words: str) -> tuple[Any, VarietyVectorEnv]:
    config = config_of(*words)
    scenario = make_scenario(config)
    return config, VarietyVectorEnv(config, ScenarioSource(config, scenario))


def test_ranges():
    rng = np.random.default_rng(0)
    linear = RangeConfig.model_validate([1.0, 3.0])
    drawn = [draw(linear, rng) for _ in range(2000)]
    assert 1.0 <= min(drawn) < 1.01
    assert np.mean(drawn) == pytest.approx(2.0, abs=0.05)
    log = RangeConfig(low=0.25, high=4.0, scale="log")
    drawn = [draw(log, rng) for _ in range(2000)]
    assert np.mean(np.log(drawn)) == pytest.approx(0.0, abs=0.1)
    some = RangeConfig(choices=("chat", "spike"))
    assert {draw(some, rng) for _ in range(50)} == {"chat", "spike"}
    for bad in ([2.0, 1.0], [1.0], {"low": 1.0}, {"choices": ["a"], "low": 1.0}):
        with pytest.raises(ValueError, match=r"low|choices"):
            RangeConfig.model_validate(bad)


def test_fields_by_path():
    data = {"pools": [{"name": "a", "x": 1}, {"name": "b", "x": 2}], "y": {"z": 3}}
    assert fields_at(data, ["pools", "b", "x"]) == [("pools.1.x", 2)]
    assert fields_at(data, ["pools", "*", "x"]) == [("pools.0.x", 1), ("pools.1.x", 2)]
    assert fields_at(data, ["y", "z"]) == [("y.z", 3)]
    assert fields_at(data, ["y", "w"]) == []


def test_factors_multiply_and_whole_numbers_stay_whole():
    config = small_runs.config_of(
        *(word for word in FEW if word != "scenario.workload=chat"),
        "randomise.ranges.workload.streams.*.rate_per_s={low: 2, high: 2, times: true}",
        "randomise.ranges.workload.batch_queues.*.n_requests={low: 0.3333, high: 0.3333, times: true}",
        "randomise.ranges.fleet.pools.*.acquire_s=[5, 5]",
    )
    base = make_scenario(config)
    drawn = ScenarioSource(config, base).scenario(0, 0, 0)
    rates = [s.rate_per_s for s in base.workload.streams]
    assert [s.rate_per_s for s in drawn.workload.streams] == [2 * rate for rate in rates]
    assert drawn.workload.batch_queues[0].n_requests == 1333
    assert {pool.acquire_s for pool in drawn.fleet.pools} == {5.0}


def test_a_range_changes_what_those_before_it_made():
    config = config_of(
        "randomise.ranges.workload={choices: [code-burst, code-burst]}",
        "randomise.ranges.workload.rate_scale=[0.5, 0.5]",
        "randomise.ranges.workload.streams.code.rate_per_s={low: 3, high: 3, times: true}",
    )
    source = ScenarioSource(config, make_scenario(config))
    source.check()
    drawn = source.scenario(0, 0, 0)
    assert [s.name for s in drawn.workload.streams] == ["chat", "code"]
    assert drawn.workload.rate_scale == 0.5
    assert drawn.workload.streams[1].rate_per_s == 36.0


def test_scenarios_are_drawn_by_seed_group_and_generation():
    config = config_of(*RATES)
    base = make_scenario(config)

    def rate(source: ScenarioSource, *key: int) -> float:
        return source.scenario(*key, 0).workload.rate_scale

    one, again = ScenarioSource(config, base), ScenarioSource(config, base)
    keys = [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert [rate(one, *key) for key in keys] == [rate(again, *key) for key in keys]
    other = ScenarioSource(config_of(*RATES, "seed=1"), base)
    rates = [rate(one, *key) for key in keys] + [rate(other, 0, 0)]
    assert len(set(rates)) == 5
    assert all(0.5 <= value <= 2.0 for value in rates)


def test_groups_are_environments_side_by_side_and_change_after_their_episodes():
    config, env = made(*RATES, "randomise.episodes=2")
    scenarios = list(env.scenarios)
    alone = [make_vector_env(config, scenario, 2) for scenario in scenarios]
    seeds = config.training_seeds()
    obs, _ = env.reset(seed=seeds)
    parts = [one.reset(seed=seeds[2 * g : 2 * g + 2])[0] for g, one in enumerate(alone)]
    np.testing.assert_array_equal(obs, np.concatenate(parts))
    for step in range(8):  # two episodes
        obs, rewards, terminated, truncated, infos = env.step(STILL)
        found = [one.step(STILL[:2]) for one in alone]
        for mine, k in ((rewards, 1), (terminated, 2), (truncated, 3)):
            np.testing.assert_array_equal(mine, np.concatenate([f[k] for f in found]))
        assert truncated.all() == (step % 4 == 3)
        for key in ("metrics", "reward_parts"):
            for name, values in infos[key].items():
                if not name.startswith("_"):
                    theirs = np.concatenate([f[4][key][name] for f in found])
                    np.testing.assert_array_equal(values, theirs)
        if step < 7:
            np.testing.assert_array_equal(obs, np.concatenate([f[0] for f in found]))
            np.testing.assert_array_equal(env.action_masks(), infos["action_mask"])
            assert env.scenarios == scenarios
    np.testing.assert_array_equal(
        infos["final_obs"][3], found[1][4]["final_obs"][1]
    )  # of the scenario that has ended
    rates = [s.workload.rate_scale for s in (*scenarios, *env.scenarios)]
    assert len(set(rates)) == 4
    # The new groups begin as environments of their own would, with the seeds of their generation.
    fresh = [make_vector_env(config, scenario, 2) for scenario in env.scenarios]
    first = [one.reset(seed=config.drawn_seeds(2, 0, 2, g, 1))[0] for g, one in enumerate(fresh)]
    np.testing.assert_array_equal(obs, np.concatenate(first))
    np.testing.assert_array_equal(env.action_masks(), infos["action_mask"])
    for one in (env, *alone, *fresh):
        one.close()


def test_the_same_arrivals_within_a_group():
    config, env = made(*RATES, "same_arrivals=2")
    seeds = config.training_seeds()
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
    env.reset(seed=seeds)
    for step in range(12):
        *_, infos = env.step(STILL)
        came = infos["metrics"]["interactive/arrived"]
        assert came[0] == came[1], step
        assert came[2] == came[3], step
    env.close()
    with pytest.raises(Slip, match="same_arrivals = 4: must divide the 2 episodes side by side of"):
        config_of(*RATES, "same_arrivals=4")


def test_stages_follow_the_steps():
    stages = "[{steps: 32, overrides: {workload.rate_scale: 0.5}}, {steps: 16, overrides: {}}]"
    _, env = made(f"curriculum={stages}")
    env.reset(seed=1)
    rates = []
    for _ in range(16):  # of 4 steps each
        env.step(STILL)
        rates.append(env.scenarios[0].workload.rate_scale)
    # An episode is 16 steps: the first stage ends with the second, the next one changes nothing.
    assert rates == [0.5] * 7 + [1.0] * 9
    assert env._generation == [2]
    _, later = made(f"curriculum={stages}")
    later.replay(env.so_far())
    assert later.scenarios[0].workload.rate_scale == 1.0
    later.close()
    env.close()


def test_infos_of_which_some_lack_a_key():
    one = {"a": np.array([1.0, 2.0]), "_a": np.array([True, True])}
    other = {
        "a": np.array([3.0]),
        "_a": np.array([True]),
        "b": {"c": np.array([[4, 5]]), "_c": np.array([True])},
        "o": np.array([None], object),
    }
    merged = merged_infos([one, other], [2, 1])
    assert merged["a"].tolist() == [1.0, 2.0, 3.0]
    assert merged["b"]["c"].tolist() == [[0, 0], [0, 0], [4, 5]]
    assert merged["b"]["_c"].tolist() == [False, False, True]
    assert merged["o"].tolist() == [None] * 3


@pytest.mark.parametrize(
    "words,said",
    [
        (["randomise.ranges.fleet.max_gpu=[4, 8]"], "fleet.max_gpu: there is no"),
        (
            ["randomise.ranges.workload.rate_scale=[-1, 1]"],
            "(low ends of its ranges): workload.rate",
        ),
        (
            ["randomise.ranges.workload={choices: [chat, nonsense, code-burst]}"],
            "(workload = 'nonsense'): ",
        ),
        (
            ["randomise.ranges.workload={choices: [code-burst, nope]}"],
            "(workload = 'nope'): workload: mix = 'nope': unknown",
        ),
        (
            [*RATES, "randomise.ranges.workload={choices: [nope, chat]}"],
            "(low ends of its ranges, workload = 'nope'): workload: mix = 'nope': unknown",
        ),
        (["randomise.ranges.name={low: 1, high: 2, times: true}"], "is no number in the scenario"),
        # Both ends are allowed, and what is drawn between them is not.
        (["randomise.ranges.metric_delay_s=[0, 60]"], "(within its ranges): metric_delay_s"),
        (["randomise.ranges.fleet.pools.mixed.max_batch=[64, 1024]"], "has another action_space"),
        (["curriculum=[{steps: 5, overrides: {nonsense: 1}}]"], "nonsense"),
        ([*RATES, "randomise.groups=3"], ""),
    ],
)
def test_slips(words: list[str], said: str):
    with pytest.raises(Slip) as slip:
        train.check(config_of(*words))
    assert (said or "n_envs = 4: must be a multiple of randomise.groups = 3") in str(slip.value)


def test_prices_are_those_of_the_groups_scenarios():
    from agents.learning.lagrangian import LagrangianVecEnv
    from llmscale_env.control.reward import violation_prices

    config, env = made(*RATES, "lagrangian.attainment=0.99")
    native = NativeVecEnv(env)
    wrapped = LagrangianVecEnv(native, make_scenario(config), config.lagrangian)
    native.seed_each(config.training_seeds())
    wrapped.reset()
    first = wrapped._prices_now()
    expected = np.repeat([violation_prices(s) for s in env.scenarios], 2, axis=0)
    np.testing.assert_array_equal(first, expected)
    assert first[0, 0] != first[2, 0]
    for _ in range(4):
        wrapped.step(STILL)
    assert not np.array_equal(wrapped._prices_now(), first)
    wrapped.close()


@pytest.mark.slow
def test_a_run_on_many_scenarios_validates_on_its_own(tmp_path: Path):
    common = [
        *FEW,
        *SEEN,
        "total_timesteps=32",
        "validation_every=32",
        "validation_episodes=1",
        "evaluation_episodes=0",
        "references=static",
    ]
    plain, varied = tmp_path / "plain", tmp_path / "varied"
    assert train.main([*common, f"out={plain}"]) == 0
    stages = "[{steps: 16, overrides: {workload.rate_scale: 0.5}}]"
    assert train.main([*common, *RATES, f"curriculum={stages}", f"out={varied}"]) == 0
    assert (plain / "references.csv").read_bytes() == (varied / "references.csv").read_bytes()
    first = [(f / "validation.csv").read_text().splitlines()[1] for f in (plain, varied)]
    assert first[0] == first[1]  # untrained, on the same episodes
    assert read_config(varied).randomise.ranges["workload.rate_scale"].high == 2.0
    more = ["env=burst-multicast", f"out={varied}", "resume=true", "total_timesteps=64"]
    assert train.main(more) == 0
    assert steps_of(varied / LAST) == 64


CHOICES = [
    "randomise.ranges.workload.rate_scale={choices: [0.5, 1.0, 2.0]}",
    "randomise.groups=2",
    "randomise.episodes=2",
]


def test_environments_that_wait_give_the_same_as_new_ones(monkeypatch):
    """Groups that go on in an environment used before, without episodes that nobody sees, or in a new one."""
    import agents.learning.variety as variety

    def played(*words: str) -> tuple[list[Any], list[Any]]:
        seeds, made_of = [3, 4, 5, 6], []
        plain = variety.make_vector_env
        with monkeypatch.context() as patch:
            patch.setattr(variety, "make_vector_env", lambda *a: made_of.append(a[1]) or plain(*a))
            _, env = made(*CHOICES)
            if words == ("new",):
                patch.setattr(
                    variety.VarietyVectorEnv,
                    "_env_of",
                    lambda self, of: variety.make_vector_env(self._config, of, self._size),
                )
                patch.setattr(
                    plain_env(env),
                    "autoreset_mode",
                    property(lambda self: AutoresetMode.SAME_STEP, ignore),
                )
            seen = [env.reset(seed=seeds)]
            for _ in range(40):
                seen += [env.action_masks(), env.step(STILL)]
            env.close()
        return seen, made_of

    seen, few = played()
    again, many = played("new")
    assert len(few) < len(many)
    assert_same(seen, again)


def test_scenarios_that_differ_in_the_fleet_share_what_is_expected(monkeypatch):
    from llmscale_env.control import reward

    config = config_of("scenario.workload.rate_scale=1.2345")
    scenario = make_scenario(config)
    found = reward.expected_arrivals(scenario)
    monkeypatch.setattr(reward, "draw_requests", None)
    other = make_scenario(
        config_of("scenario.workload.rate_scale=1.2345", "scenario.fleet.max_gpus=9")
    )
    assert other != scenario
    assert reward.expected_arrivals(other) == found
    busier = make_scenario(config_of("scenario.workload.rate_scale=1.23456"))
    with pytest.raises(TypeError):
        reward.expected_arrivals(busier)


def plain_env(env: VarietyVectorEnv) -> Any:
    return type(env._envs[0])


def ignore(self: Any, value: bool) -> None:
    """Episodes are always begun."""


def assert_same(one: Any, two: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            assert_same(one[key], two[key])
    elif isinstance(one, (list, tuple)) or (isinstance(one, np.ndarray) and one.dtype == object):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            assert_same(a, b)
    else:
        assert np.array_equal(one, two)


@pytest.mark.slow
@pytest.mark.parametrize("rates", ["[0.5, 2.0]", "{choices: [0.5, 0.7, 0.9, 1.1, 1.3]}"])
def test_environments_that_are_done_with_are_let_go(rates: str):
    import gc

    from llmscale_env.sim.fast.engine import EngineBatch

    def engines() -> int:
        return sum(type(thing) is EngineBatch for thing in gc.get_objects())

    gc.collect()
    before = engines()
    _, env = made(f"randomise.ranges.workload.rate_scale={rates}", "randomise.groups=2")
    env.reset(seed=0)
    for _ in range(40):  # ten episodes of each group
        env.step(STILL)
    assert engines() - before <= 4  # two groups, and at most as many that wait
    env.close()
