"""The search for hyperparameters: what is tried, what is kept, how an interrupted one goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from agents import tune
from agents.configuration.config import make_config, parse_words
from agents.configuration.environments import make_scenario
from agents.configuration.settings import AGENTS
from agents.learning.validation_score import worth
from agents.tune import search_space
from llmscale_env.control.reward import violation_prices
from tests.small_runs import SMALL_RUN, config_of, rows

TINY = [
    *SMALL_RUN,
    "scenario.workload=chat",
    "ppo.n_steps=8",
    "ppo.net=[4]",
    "validation_every=16",
    "validation_episodes=1",
    "steps=32",
]


@pytest.mark.parametrize("agent", list(AGENTS))
def test_what_is_searched_are_options(agent: str):
    space = search_space(agent)
    assert f"{agent}.learning_rate" in space
    low = {path: spec.choices[0] if spec.choices else spec.low for path, spec in space.items()}
    found = make_config("burst-multicast", {"agent": agent, **low})
    assert found.hyper.learning_rate == pytest.approx(1e-4)
    assert f"{agent}.gamma" not in search_space(agent, {f"{agent}.gamma": 0.9})


def test_a_search_goes_on_where_it_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("optuna")
    import agents.learning.learner

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert tune.main([*TINY, "trials=2", f"out={whole}"]) == 0
    learn, calls = agents.learning.learner.learn, []

    def interrupted(config: Any, scenario: Any, folder: Path, *rest: Any) -> None:
        calls.append(folder.name)
        if len(calls) == 2:  # with a model of half the steps, as after Ctrl-C
            learn(config.model_copy(update={"total_timesteps": 16}), scenario, folder, *rest)
            raise KeyboardInterrupt
        learn(config, scenario, folder, *rest)

    monkeypatch.setattr(agents.learning.learner, "learn", interrupted)
    assert tune.main([*TINY, "trials=2", f"out={cut}"]) == 130
    assert tune.main([*TINY, "trials=2", f"out={cut}", "resume=true"]) == 0
    assert calls == ["trial-000", "trial-001", "trial-001"]
    found = rows(cut / "trials.csv")
    assert [row["state"] for row in found] == ["COMPLETE", "FAIL", "COMPLETE"]
    settings = [[v for k, v in r.items() if "." in k or "bias" in k] for r in found]
    assert settings[1] == settings[2] != settings[0]
    # The seed decides what is tried.
    names = [name for name in found[0] if name not in ("trial", "state", "value")]
    for mine, theirs in zip((found[0], found[2]), rows(whole / "trials.csv"), strict=True):
        assert [mine[name] for name in names] == [theirs[name] for name in names]
    assert found[0]["value"] == rows(whole / "trials.csv")[0]["value"]
    best = yaml.safe_load((whole / "best.yaml").read_text())
    assert best["value"] == max(float(row["value"]) for row in rows(whole / "trials.csv"))
    assert best["command"].startswith("python -m agents.tune env=burst-multicast")
    assert "ppo.n_steps" not in best["options"]  # given, so not searched
    make_config("burst-multicast", best["options"])
    # The same as a recipe, with what was fixed for all trials.
    words = [f"recipe={whole / 'recipe.yaml'}"]
    trained = make_config("burst-multicast", parse_words(words, ("env",))[0])
    assert trained.overrides["workload"] == "chat"
    assert trained.hyper.learning_rate == best["options"]["ppo.learning_rate"]


def test_a_search_of_other_options_is_not_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("optuna")
    (tmp_path / "tune.yaml").write_text("env: other\n")
    assert tune.main([*TINY, "trials=1", f"out={tmp_path}", "resume=true"]) == 2
    assert "has other options" in capsys.readouterr().err
    assert tune.main([*TINY, "trials=1", f"out={tmp_path}"]) == 2
    assert "is in use" in capsys.readouterr().err
    assert tune.main([*TINY, "trials=0"]) == 2
    assert "trials = '0'" in capsys.readouterr().err


def test_a_trial_that_is_below_the_others_is_stopped(tmp_path: Path):
    changes, _ = parse_words(TINY[1:-1], ())
    config = make_config("burst-multicast", {**changes, "total_timesteps": 32, "references": ()})

    reported: list[int] = []

    def hears(message: Any) -> str:
        if message is None:
            return tune.GO_ON
        steps, value, files = message
        assert files == {}  # they are at home
        assert value < 0
        reported.append(steps)
        return tune.PRUNE if len(reported) == 2 else tune.GO_ON

    tried = tune.try_one(config, make_scenario(config), {}, tmp_path, hears)
    assert tried == tune.Tried("pruned", None, {})
    assert reported == [0, 16]


def test_a_trial_that_goes_astray_does_not_end_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("optuna")
    import agents.learning.learner
    from agents.learning.callbacks import WentAstray

    learn = agents.learning.learner.learn

    def astray(config: Any, scenario: Any, folder: Path, *rest: Any) -> None:
        if folder.name == "trial-000":
            raise WentAstray("NaN")
        learn(config, scenario, folder, *rest)

    monkeypatch.setattr(agents.learning.learner, "learn", astray)
    assert tune.main([*TINY, "trials=1", f"out={tmp_path / 'search'}"]) == 0
    assert "trial 0: learning went astray" in capsys.readouterr().err
    assert [row["state"] for row in rows(tmp_path / "search" / "trials.csv")] == [
        "FAIL",
        "COMPLETE",
    ]


@pytest.mark.slow
def test_trials_side_by_side_are_those_one_by_one(tmp_path: Path):
    pytest.importorskip("optuna")
    words = [*TINY, "trials=3", "parallel=2", "env_threads=1"]
    assert tune.main([*words, f"out={tmp_path / 'one'}", "workers=1"]) == 0
    assert tune.main([*words, f"out={tmp_path / 'two'}", "workers=2"]) == 0
    one, two = ((tmp_path / name / "trials.csv").read_text() for name in ("one", "two"))
    assert one == two
    assert len(one.splitlines()) == 4
    best = yaml.safe_load((tmp_path / "two" / "best.yaml").read_text())
    assert "parallel=2" in best["command"]
    assert "workers" not in best["command"]


CLASSES = ("interactive", "batch")


def test_values_by_hand():
    config = config_of("scenario.horizon_s=60")
    scenario = make_scenario(config)
    shares = {"interactive/slo_attainment": 0.97, "batch/slo_attainment": 1.0}
    made = [
        {"reward": -10.0, "gpu_hours": 2.0, **shares},
        {"reward": -20.0, "gpu_hours": 4.0, **shares},
    ]
    assert worth(made, config, scenario) == -15.0
    asked = config_of("scenario.horizon_s=60", "lagrangian.attainment=0.99")
    assert worth(made, asked, scenario) == pytest.approx(-3.0 - 100 * 0.02)
    one = config_of("scenario.horizon_s=60", "lagrangian.attainment={batch: 0.99}")
    assert worth(made, one, scenario) == -3.0
    # At fixed prices: reward, with violations at five times what they cost.
    fixed = ("lagrangian.attainment=0.99", "lagrangian.rate=0", "lagrangian.start=5")
    at_prices = config_of("scenario.horizon_s=60", *fixed)
    # Of 100 interactive requests two are late and one is cut off; all 10 of the others are in time.
    ends = {"late": (2, 0), "rejected": (0, 0), "unfinished": (1, 0)}
    misses = {
        f"{name}/{end}": n
        for end, both in ends.items()
        for name, n in zip(CLASSES, both, strict=True)
    }
    row = {**made[0], "cost/violations": 4.0, **misses}
    a_miss = violation_prices(scenario)[[c.name for c in scenario.classes].index("interactive")]
    found = worth([row], at_prices, scenario)
    assert found == pytest.approx(-10.0 + 4.0 - 5 * a_miss * 3)


@pytest.mark.parametrize("word", ["total_timesteps=10", "evaluation_episodes=3"])
def test_options_that_a_search_has_no_use_for(word: str, tmp_path: Path, capsys):
    out = tmp_path / "search"
    assert tune.main(["env=burst-multicast", word, f"out={out}"]) == 2
    assert word.partition("=")[0] in capsys.readouterr().err
    assert not out.exists()
