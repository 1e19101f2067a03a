"""Prices of misses that move: what they do to rewards, what is measured, how they move, what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents import train
from agents.configuration.environments import make_scenario, make_vector_env, simulation_of
from agents.configuration.settings import LagrangianConfig
from agents.learning.cloning import _SEEDS_OF_COPYING, watch
from agents.learning.lagrangian import LagrangianVecEnv, misses, priced_rewards
from agents.models.store import LAST, read
from agents.runs.files import read_csv
from agents.vec_adapter import NativeVecEnv
from baselines import make_policy
from llmscale_env._cli import Slip
from llmscale_env.control.reward import violation_prices
from llmscale_env.control.run import run_episode
from tests import small_runs
from tests.small_runs import BUSY, UNWATCHED, asked

TINY = [
    *BUSY,
    "scenario.workload.rate_scale=3",
    "n_envs=2",
    "ppo.n_steps=6",
    "ppo.batch_size=12",
    "ppo.net=[8]",
    "validation_every=12",
    *UNWATCHED,
]


def config_of(*words: str) -> Any:
    return small_runs.config_of(*TINY, *words)


def play(settings: LagrangianConfig, multipliers: list[float], steps: int = 12) -> Any:
    config = config_of()
    scenario = make_scenario(config)
    native = NativeVecEnv(make_vector_env(config, scenario, 2), reward_scale=0.5)
    env = LagrangianVecEnv(native, scenario, settings)
    env.multipliers[:] = multipliers
    native.seed_each([3, 4])
    env.reset()
    still = np.array([[1, 0, 0, 3, 3, 3, 0, 0]] * 2)
    seen, plain, parts, summaries = [], [], [], []
    for _ in range(steps):
        _, rewards, dones, infos = env.step(still)
        seen.append(rewards)
        plain.append(native.native_rewards.copy())
        parts.append(native.native_infos["reward_parts"]["violations"])
        if dones.any():
            summaries.append(native.native_infos["episode_summary"])
            assert infos[0]["episode"]["r"] == pytest.approx(np.sum(plain[-6:], axis=0)[0])
    native.close()
    return env, np.array(seen), np.array(plain), np.array(parts), summaries


def test_with_multipliers_of_one_only_the_cut_off_are_charged_besides():
    settings = LagrangianConfig(attainment=0.99)
    _, seen, plain, parts, summaries = play(settings, [1.0, 1.0])
    ends = [5, 11]
    inner = [step for step in range(12) if step not in ends]
    np.testing.assert_allclose(seen[inner], plain[inner] * 0.5, rtol=1e-6)
    assert (parts < 0).any()
    price = violation_prices(make_scenario(config_of()))
    for end, summary in zip(ends, summaries, strict=True):
        cut_off = np.zeros(2)
        for c, name in enumerate(["interactive", "batch"]):
            missed = summary[f"{name}/arrived"] * (1 - summary[f"{name}/slo_attainment"])
            cut_off += price[c] * (missed - summary[f"{name}/violations"])
        assert (cut_off > 0).all()
        np.testing.assert_allclose(plain[end] - seen[end] / 0.5, cut_off, rtol=1e-4)


def test_a_class_of_which_nothing_is_asked_costs_what_the_scenario_says():
    _, seen, plain, _, _ = play(LagrangianConfig(attainment={}), [1.0, 1.0])
    np.testing.assert_allclose(seen, plain * 0.5, rtol=1e-6)


@pytest.mark.parametrize("multiplier", [0.25, 4.0])
def test_a_multiplier_is_the_price_of_every_miss(multiplier: float):
    settings = LagrangianConfig(attainment=0.99)
    env, seen, plain, parts, summaries = play(settings, [multiplier, multiplier])
    extra = seen / 0.5 - plain
    # Within an episode the price of violations is so many times what it was; the last step has the rest.
    ends = [5, 11]
    inner = [step for step in range(12) if step not in ends]
    more = multiplier - 1.0
    np.testing.assert_allclose(extra[inner], more * parts[inner], rtol=1e-4, atol=1e-4)
    price = violation_prices(make_scenario(config_of()))
    for end, summary in zip(ends, summaries, strict=True):
        total = np.zeros(2)
        for c, name in enumerate(["interactive", "batch"]):
            missed = summary[f"{name}/arrived"] * (1 - summary[f"{name}/slo_attainment"])
            total -= multiplier * price[c] * missed
        charged = extra[end - 5 : end + 1].sum(axis=0) + parts[end - 5 : end + 1].sum(axis=0)
        np.testing.assert_allclose(charged, total, rtol=1e-4)
    # What is measured is what the summaries say.
    env.update()
    for c, name in enumerate(["interactive", "batch"]):
        arrived = sum(s[f"{name}/arrived"].sum() for s in summaries)
        in_time = sum((s[f"{name}/arrived"] * s[f"{name}/slo_attainment"]).sum() for s in summaries)
        assert env.attainment[0, c] == pytest.approx(in_time / arrived)
    assert env.attainment[0, 0] < 0.9


def test_a_copy_learns_the_value_of_what_training_charges():
    config = config_of(
        "lagrangian.attainment=0.99",
        "lagrangian.start=3",
        "lagrangian.rate=0",
        "warm_start.policy=static",
        "warm_start.episodes=1",
    )
    scenario = make_scenario(config)
    seen = watch(config, [(scenario, make_policy("static"))])
    native = NativeVecEnv(make_vector_env(config, scenario, 1), reward_scale=1.0)
    env = LagrangianVecEnv(native, scenario, config.lagrangian)
    native.seed_each(list(config.drawn_seeds(1, 0, _SEEDS_OF_COPYING)))
    env.reset()
    rewards = [env.step(action[None])[1][0] for action in seen.actions]
    native.close()
    np.testing.assert_allclose(seen.priced, rewards, rtol=1e-4)
    assert seen.priced.sum() < 1.5 * seen.rewards.sum() < 0


def test_under_prices_open_requests_are_no_misses():
    # A batch target that lasts: requests are open at the horizon, and shares leave them out.
    dollars = "{gpu_hour_usd: 2.5, late_request_usd: 0.002, start_usd: 0.0, unit_usd: 20.0}"
    config = config_of(
        f"scenario.reward.prices={dollars}",
        "lagrangian.attainment=0.99",
        "lagrangian.start=3",
        "lagrangian.rate=0",
    )
    scenario = make_scenario(config)
    native = NativeVecEnv(make_vector_env(config, scenario, 1), reward_scale=1.0)
    env = LagrangianVecEnv(native, scenario, config.lagrangian)
    native.seed_each([3])
    env.reset()
    result = run_episode(make_policy("static"), scenario, 3)
    summary = result.summary
    judged = {c: summary[f"{c}/arrivals"] - summary[f"{c}/unfinished"] for c in env.class_names}
    assert summary["batch/unfinished"] > 0
    missed = misses(summary, scenario)
    for c, name in enumerate(env.class_names):
        assert missed[c] == pytest.approx(
            judged[name] * (1 - summary[f"{name}/slo_attainment"]), abs=1e-6
        )
    own = np.sum(result.series["reward"])
    asked = priced_rewards(result, scenario, config.lagrangian)
    assert own - asked.sum() == pytest.approx(2 * np.sum(violation_prices(scenario) * missed))
    # The environment counts the same way.
    still = np.array([[1, 0, 0, 3, 3, 3, 0, 0]])
    extra = 0.0
    for _ in range(6):
        _, rewards, _, _ = env.step(still)
        extra += rewards[0] - native.native_rewards[0]
    end = native.native_infos["episode_summary"]
    late = np.array([end[f"{name}/violations"][0] for name in env.class_names])
    native.close()
    assert late.sum() > 0
    assert extra == pytest.approx(-2 * np.sum(violation_prices(scenario) * late), rel=1e-4)
    env.update()
    for c, name in enumerate(env.class_names):
        if late[c]:
            assert env.attainment[0, c] == pytest.approx(end[f"{name}/slo_attainment"][0])


def test_only_the_class_that_is_asked_for_moves():
    settings = LagrangianConfig(attainment={"interactive": 0.9})
    env, *_ = play(settings, [1.0, 1.0])
    env.update()
    assert env.multipliers[0, 0] == pytest.approx(1.0 + 5.0 * (0.9 - env.attainment[0, 0]))
    assert env.multipliers[0, 0] > 1.0
    assert env.multipliers[0, 1] == 1.0


def test_ascent_by_hand_and_its_bounds():
    settings = LagrangianConfig(attainment=0.99, rate=2.0, most=1.5)
    env, *_ = play(settings, [1.0, 1.0], steps=1)

    def measured(missed: list[float], arrived: list[float]) -> list[float]:
        env._missed[:], env._arrived[:] = missed, arrived
        env.update()
        return env.multipliers[0].tolist()

    # 1 + 2 * (0.99 - 0.90), 1 + 2 * (0.99 - 1.0)
    assert measured([10, 0], [100, 100]) == pytest.approx([1.18, 0.98])
    assert measured([100, 0], [100, 0]) == pytest.approx([1.5, 0.98])  # at most; nobody came
    for _ in range(100):
        measured([0, 0], [100, 100])
    assert env.multipliers.tolist() == [[0.0, 0.0]]


def test_without_a_rate_the_price_is_fixed():
    env, *_ = play(LagrangianConfig(attainment=0.99, start=4.0, rate=0.0), [4.0, 4.0])
    env.update()
    assert env.attainment[0, 0] < 0.9
    assert env.multipliers.tolist() == [[4.0, 4.0]]


def test_multipliers_are_logged_and_taken_up(tmp_path: Path):
    folder = tmp_path / "run"
    words = asked(*TINY, "lagrangian.attainment=0.99", "total_timesteps=24")
    assert train.main([*words, f"out={folder}"]) == 0
    multipliers = read(folder / LAST)["run"]["prices"]["multipliers"]
    assert multipliers[0, 0] > 1.0
    more = ["env=burst-multicast", f"out={folder}", "resume=true", "total_timesteps=36"]
    assert train.main(more) == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tb" / "ppo"))
    events.Reload()
    used = [e.value for e in events.Scalars("llmscale/lagrangian/interactive/multiplier")]
    assert used[0] == 1.0
    assert len(used) == 3
    assert used[2] == pytest.approx(multipliers[0, 0])  # where the first part ended


def validation_of(folder: Path, *words: str) -> Any:
    """The validation of a run, which keeps nothing here."""
    from agents.learning.callbacks import Validation
    from agents.runs.stopping import Stop

    config = config_of("lagrangian.attainment=0.99", *words)
    scenario = make_scenario(config)
    keeper: Any = None
    simulation = simulation_of(config, scenario)
    return Validation(config, scenario, folder, simulation, Stop(), [], keeper)


def test_the_best_model_lacks_least_and_then_costs_least(tmp_path: Path):
    made = validation_of(tmp_path)

    def row(interactive: float, batch: float, hours: float) -> list[dict[str, Any]]:
        share = {"interactive/slo_attainment": interactive, "batch/slo_attainment": batch}
        return [{**share, "gpu_hours": hours, "reward": 0.0}]

    order = [row(0.9, 1.0, 1.0), row(0.98, 1.0, 4.0), row(0.99, 0.995, 3.0), row(1.0, 1.0, 2.0)]
    assert sorted(order, key=made.score) == order


def test_at_fixed_prices_the_best_model_has_the_best_return(tmp_path: Path):
    words = ["lagrangian.rate=0", "lagrangian.start=3", "validation_rate_scales=0.5,1.5"]
    made = validation_of(tmp_path, *words)
    assert list(made.scenarios) == ["x0.5", "x1.5"]
    half, more = made.scenarios.values()
    assert (half.workload.rate_scale, more.workload.rate_scale) == (0.5, 1.5)

    def row(workload: str, gpu: float, missed: int) -> dict[str, Any]:
        """Of 100 interactive requests; the reward charges half of the missed ones (the rest is cut off)."""
        own = 0.5 * missed * violation_prices(made.scenarios[workload])[0]
        return {
            "workload": workload,
            "reward": -gpu - own,
            "cost/violations": own,
            "interactive/arrivals": 100.0,
            "interactive/slo_attainment": 1 - missed / 100,
            "interactive/late": missed / 2,
            "interactive/rejected": 0,
            "interactive/unfinished": missed / 2,
            **{f"batch/{end}": 0 for end in ("late", "rejected", "unfinished")},
            "batch/arrivals": 0.0,
            "batch/slo_attainment": 1.0,
        }

    assert made.score([row("x0.5", 7.0, 0)]) == (pytest.approx(-7.0),)
    a, b = 3 * violation_prices(half)[0], 3 * violation_prices(more)[0]
    assert a > 2 * b  # a miss weighs more where fewer requests are expected
    rows = [row("x0.5", 7.0, 2), row("x1.5", 9.0, 4)]
    assert made.score(rows) == (pytest.approx(-(7.0 + 2 * a + 9.0 + 4 * b) / 2),)


def test_a_run_at_fixed_prices_and_several_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "run"
    words = ["lagrangian.attainment=0.99", "lagrangian.rate=0", "validation_rate_scales=0.5,1.5"]
    words += ["total_timesteps=24", f"out={folder}"]
    assert train.main(asked(*TINY, *words)) == 0
    assert "at its price" in capsys.readouterr().err
    rows = read_csv(folder / "validation.csv")
    loads = {row["workload"]: row["joint/arrivals"] for row in rows if row["timesteps"] == 0}
    assert loads["x1.5"] > loads["x0.5"]


def test_a_load_that_is_none_is_a_slip():
    with pytest.raises(Slip, match=r"validation_rate_scales"):
        config_of("validation_rate_scales=0")


def test_an_unknown_class_is_a_slip():
    with pytest.raises(Slip, match=r"lagrangian\.attainment\.chat: there is no such class"):
        train.check(config_of("lagrangian.attainment={chat: 0.9}"))


def test_what_will_be_late_costs_a_share_of_the_price():
    from agents.configuration.environments import shaping_of

    words = ["shaping=0.5", "ppo.gamma=0.98", "scenario.reward.violation_weight=2"]
    config = config_of(*words)
    found = shaping_of(config, make_scenario(config))
    assert found is not None
    assert (found.weight, found.gamma) == (
        1.0,
        0.98,
    )  # no attainment is asked: the scenario's price
    config = config_of(*words, "lagrangian.start=3", "lagrangian.attainment=0.99")
    found = shaping_of(config, make_scenario(config))
    assert found is not None
    assert found.weight == 3.0
    assert shaping_of(config_of(), make_scenario(config)) is None


def test_a_learner_sees_the_term_and_tables_do_not():
    totals = {}
    for words in ([], ["shaping=1", "ppo.gamma=1"]):
        config = config_of(*words)
        scenario = make_scenario(config)
        env = make_vector_env(config, scenario, 2)
        env.reset(seed=7)
        still = np.array([[1, 0, 0, 3, 3, 3, 0, 0]] * 2)
        rewards, infos = [], {}
        for _ in range(scenario.n_steps):
            _, reward, *_, infos = env.step(still)
            rewards.append(reward)
        env.close()
        totals[bool(words)] = (np.array(rewards), infos["episode_summary"]["reward"])
    plain, shaped = totals[False], totals[True]
    np.testing.assert_array_equal(plain[1], shaped[1])
    assert (shaped[0] != plain[0]).any()
    np.testing.assert_allclose(shaped[0].sum(axis=0), plain[0].sum(axis=0), rtol=1e-5)
