"""One policy for several workloads: prices of each, teachers of each, validation on others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents import train
from agents.configuration.config import make_config, parse_words
from agents.configuration.environments import make_scenario
from agents.configuration.settings import teacher_of
from agents.learning.lagrangian import LagrangianVecEnv
from agents.learning.variety import ScenarioSource, VarietyVectorEnv
from agents.models.store import LAST, read
from agents.runs.comparison import lacking
from agents.runs.files import read_csv
from agents.vec_adapter import NativeVecEnv
from llmscale_env._cli import Slip
from tests import small_runs
from tests.small_runs import BUSY, UNWATCHED, asked

DRAWN = "randomise.ranges.workload={choices: [chat, spike]}"
SMALL = [
    *BUSY,
    "scenario.workload=chat",
    "n_envs=4",
    "ppo.n_steps=6",
    "ppo.batch_size=24",
    "ppo.net=[8]",
    "validation_every=24",
    *UNWATCHED,
    "randomise.groups=4",
    DRAWN,
]
PRICES = ["lagrangian.attainment=0.99", "lagrangian.per=workload"]


def config_of(*words: str) -> Any:
    return small_runs.config_of(*SMALL, *words)


def test_a_group_is_called_by_what_it_has_drawn():
    config = config_of("randomise.ranges.workload.rate_scale=[0.5, 2.0]")
    scenario = make_scenario(config)
    source = ScenarioSource(config, scenario)
    labels = {source.label(group, 0) for group in range(20)}
    assert labels == {"chat", "spike"}
    by_name = {name: make_scenario(config_of(f"scenario.workload={name}")) for name in labels}
    for group in range(20):
        drawn = source.scenario(group, 0, 0)
        assert drawn.workload.streams == by_name[source.label(group, 0)].workload.streams
        assert drawn.workload.rate_scale != 1.0
    plain = small_runs.config_of(*SMALL[:-2])
    assert ScenarioSource(plain, scenario).label(0, 0) == ""


def test_prices_and_what_is_measured_belong_to_workloads():
    config = config_of(*PRICES)
    scenario = make_scenario(config)
    env = VarietyVectorEnv(config, ScenarioSource(config, scenario))
    native = NativeVecEnv(env)
    prices = LagrangianVecEnv(native, scenario, config.lagrangian, config.drawn_workloads())
    assert prices.workloads == ("chat", "spike")
    prices.multipliers[:] = [[1.0, 1.0], [5.0, 1.0]]
    native.seed_each([3, 4, 5, 6])
    prices.reset()
    still = np.array([[1, 0, 0, 3, 3, 3, 0, 0]] * 4)
    arrived = np.zeros(2)
    for step in range(6):
        labels = list(env.labels)
        _, rewards, _, _ = prices.step(still)
        extra = rewards - native.native_rewards
        parts = native.native_infos["reward_parts"]["violations"]
        for group, label in enumerate(labels):
            if label == "chat":
                # What the horizon cuts off is charged with the last interval.
                assert extra[group] == pytest.approx(0.0, abs=1e-4) or (
                    step == 5 and extra[group] < 0
                )
            elif native.native_infos["metrics"]["interactive/arrived"][group]:
                assert extra[group] <= 4.0 * parts[group] + 1e-4
    assert set(labels) == {"chat", "spike"}
    arrivals = native.native_infos["metrics"]["interactive/arrived"]
    for group, label in enumerate(labels):
        arrived[prices.workloads.index(label)] += arrivals[group]
    np.testing.assert_array_equal(prices._arrived[:, 0], arrived)
    prices.update()
    assert prices.attainment.shape == (2, 2)
    for w in range(2):
        before = [1.0, 5.0][w]
        moved = before + 5.0 * (0.99 - prices.attainment[w, 0])
        assert prices.multipliers[w, 0] == pytest.approx(moved)
    prices.close()


def test_teachers_of_workloads():
    assert teacher_of("static-tuned:workload={workload}", "chat") == "static-tuned:workload=chat"
    assert teacher_of("chiron", "chat") == "chiron"


def test_what_is_lacking_on_one_workload_is_not_made_up_for_by_another():
    rows = [
        {"workload": "a", "x/slo_attainment": 1.0, "y/slo_attainment": 0.9},
        {"workload": "a", "x/slo_attainment": 0.8, "y/slo_attainment": 0.9},
        {"workload": "b", "x/slo_attainment": 1.0, "y/slo_attainment": 1.0},
    ]
    # a: x 0.9, y 0.9; b: both 1.
    assert lacking(rows, {"x": 0.95, "y": 0.99}) == pytest.approx((0.05 + 0.09) / 2)
    assert lacking(rows, {"x": 0.9}) == pytest.approx(0.0)
    assert lacking([rows[1]], {"x": 0.9}) == pytest.approx(0.1)


def test_a_share_of_no_judged_request_is_no_attainment():
    def row(arrivals: int, unfinished: int, share: float) -> dict[str, Any]:
        return {"x/arrivals": arrivals, "x/unfinished": unfinished, "x/slo_attainment": share}

    late, opened, empty = row(10, 2, 0.5), row(10, 10, 1.0), row(0, 0, 1.0)
    assert lacking([late, opened, empty], {"x": 0.9}) == pytest.approx(0.4)
    assert lacking([opened, empty], {"x": 0.9}) == pytest.approx(0.9)
    assert lacking([empty], {"x": 0.9}) == 0.0


def test_a_run_on_a_family(tmp_path: Path):
    out = tmp_path / "run"
    words = [
        *asked(*SMALL, *PRICES, "total_timesteps=24", f"out={out}"),
        "validation_workloads=spike,chat",
        "warm_start.policy=static:{workload}=1",
        "warm_start.episodes=4",
        "warm_start.epochs=1",
    ]
    with pytest.raises(Slip, match=r"warm_start.policy: .*chat"):
        train.check(make_config("burst-multicast", parse_words(words[1:], ("out",))[0]))
    words = [w for w in words if not w.startswith("warm_start.policy")]
    words.append("warm_start.policy=static:interactive=1")
    words[words.index("references=none")] = "references=static"
    assert train.main(words) == 0
    rows = read_csv(out / "validation.csv")
    assert [row["workload"] for row in rows if row["timesteps"] == 0] == ["spike", "chat"]
    assert {row["workload"] for row in read_csv(out / "references.csv")} == {"spike", "chat"}
    assert rows[0]["reward"] != rows[1]["reward"]
    assert read(out / LAST)["run"]["prices"]["multipliers"].shape == (2, 2)
    assert json.loads((out / "warm_start.json").read_text())["episodes"] == 4
    more = ["env=burst-multicast", f"out={out}", "resume=true", "total_timesteps=48"]
    assert train.main(more) == 0


@pytest.mark.parametrize(
    "words, said",
    [
        (["validation_workloads=nowhere"], "validation_workloads, .*nowhere"),
        (["warm_start.policy=static-tuned:workload={workload}"], "no tuned settings"),
    ],
)
def test_slips(words: list[str], said: str):
    with pytest.raises(Slip, match=said):
        train.check(config_of(*words))


@pytest.mark.parametrize(
    "word", ["lagrangian.per=workload", "warm_start.policy=static-tuned:workload={workload}"]
)
def test_what_wants_drawn_workloads_says_so(word: str):
    with pytest.raises(Slip, match=r"randomise\.ranges\.workload\.choices"):
        small_runs.config_of(*SMALL[:-2], word)
