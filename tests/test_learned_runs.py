"""Learned policies under the protocol: which runs are one policy, where they compete, what they are."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agents.models.store import contents_of, write
from experiments.learned import study_ablations
from experiments.learned.ablations import ABLATIONS
from experiments.learned.family import workloads
from experiments.learned.protocol import learned_cases, learned_who, play
from experiments.learned.runs import Run, find_runs, one_each, run_of, setting_of
from experiments.learned.standings import Choice
from experiments.learned.verdicts import chosen_learned


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folders of networks that have learnt nothing: two seeds, and a price of their own."""
    from agents.configuration.config import make_config
    from agents.configuration.environments import make_scenario, make_vector_env
    from agents.models.algorithms import make_model
    from agents.vec_adapter import NativeVecEnv

    home = tmp_path_factory.mktemp("runs")
    small = {"n_envs": 2, "ppo.net": [8], "ppo.n_steps": 16, "ppo.batch_size": 32}
    drawn = {
        "randomise.ranges": {"workload": {"choices": ["mixed-slo-v0/train-poisson"]}},
        "randomise.groups": 1,
        "validation_workloads": ["mixed-slo-v0/val-spikes"],
    }
    for name, changes in {
        "a": {**drawn, "seed": 0},
        "b": {**drawn, "seed": 1},
        "c": {"seed": 0, "scenario.classes.batch.weight": 3.0},
        "d": {"seed": 0, "scenario.workload": "mixed-slo-v0/val-mmpp"},
        "e": {"seed": 0, "scenario.workload": "mixed-slo-v0/val-code"},
        "f": {"seed": 0, "scenario.workload": "mixed-slo-v0/test-code"},
    }.items():
        config = make_config("mixed-slo-v0", {**small, **changes})
        env = NativeVecEnv(make_vector_env(config, make_scenario(config), 2))
        (home / name).mkdir()
        model = contents_of(make_model(config, env))
        write(home / name / "model_best.safetensors", model)
        (home / name / "config.yaml").write_text(config.to_yaml())
    return home


def test_runs_are_settings_of_a_policy_with_seeds(runs: Path, tmp_path: Path):
    found = find_runs([str(runs / name) for name in "abc"], "mixed-slo-v0")
    assert [(r.policy, r.setting, r.training_seed) for r in found] == [
        ("ppo", "as configured", 0),
        ("ppo", "as configured", 1),
        ("ppo", "classes.batch.weight 3", 0),
    ]
    assert found[0].leaks == ()
    assert found[2].leaks == (
        "mixed-slo-v0",
    )  # the plain scenario, which has the traces' test times
    assert find_runs([str(runs / "b")], "mixed-slo-v0")[0].training_seed == 1
    assert find_runs([str(runs)], "placement") == []
    with pytest.raises(ValueError, match="no such file or folder"):
        find_runs([str(runs / "nothing")], "mixed-slo-v0")
    assert len(find_runs([str(runs)], "mixed-slo-v0")) == 6
    with pytest.raises(ValueError, match="no such policy ships for mixed-slo-v0"):
        find_runs(["pretrained:placement"], "mixed-slo-v0")
    shutil.copytree(runs / "a", tmp_path / "of" / "val-code" / "seed0")
    assert len(find_runs([str(tmp_path)], "mixed-slo-v0")) == 1  # however deep
    assert find_runs(["none"], "mixed-slo-v0") == []
    with pytest.raises(ValueError, match="no such policy ships"):
        find_runs(["pretrained:mixed-slo-v0-maskable-pp"], "mixed-slo-v0")


def test_a_damaged_model_is_told_before_anything_runs(runs: Path, tmp_path: Path):
    shutil.copy(runs / "a" / "config.yaml", tmp_path)
    (tmp_path / "model_best.safetensors").write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"model_best\.safetensors.*cannot be read"):
        find_runs([str(tmp_path)], "mixed-slo-v0")


def test_runs_that_were_trained_in_other_ways_are_no_seeds_of_one_setting(
    runs: Path, tmp_path: Path
):
    for name, changes in (("hasty", "gamma: 0.5"), ("priced", "seed: 7")):
        folder = tmp_path / name
        folder.mkdir()
        text = (runs / "b" / "config.yaml").read_text()
        key = changes.partition(":")[0]
        folder.joinpath("config.yaml").write_text(re.sub(rf"{key}: \S+", changes, text, count=1))
        (folder / "model_best.safetensors").write_bytes(
            (runs / "b" / "model_best.safetensors").read_bytes()
        )
    found = find_runs([str(runs / "a"), str(tmp_path / "priced")], "mixed-slo-v0")
    assert [run.training_seed for run in found] == [0, 7]
    with pytest.raises(ValueError, match=r"differ in ppo.gamma \(0.5 and "):
        find_runs([str(runs / "a"), str(tmp_path / "hasty")], "mixed-slo-v0")


@pytest.mark.parametrize(
    "changes, made_for, leaks",
    [
        ({"scenario.workload": "mixed-slo-v0/val-code"}, "val-code", ()),
        (
            {"scenario.workload": "mixed-slo-v0/val-code", "scenario.workload.rate_scale": 1.2},
            "val-code",
            (),
        ),
        # Another part of the trace is another workload.
        (
            {
                "scenario.workload": "mixed-slo-v0/val-code",
                "scenario.workload.streams.code.arrivals.to_s": 3600.0,
            },
            "",
            ("mixed-slo-v0/val-code", "unnamed"),
        ),
        # The best model was chosen by the test.
        (
            {
                "scenario.workload": "mixed-slo-v0/val-code",
                "validation_workloads": ["mixed-slo-v0/test-code"],
            },
            "",
            ("mixed-slo-v0/test-code", "mixed-slo-v0/val-code"),
        ),
        (
            {"randomise.ranges": {"workload": {"choices": ["mixed-slo-v0/train-poisson"]}}},
            "",
            ("mixed-slo-v0",),
        ),
        (
            {
                "randomise.ranges": {"workload": {"choices": ["mixed-slo-v0/train-poisson"]}},
                "validation_workloads": ["mixed-slo-v0/val-code", "mixed-slo-v0/val-mmpp"],
            },
            "",
            (),
        ),
    ],
)
def test_what_a_run_has_seen(
    changes: dict[str, Any], made_for: str, leaks: tuple[str, ...], tmp_path: Path
):
    from agents.configuration.config import make_config

    grouped = {"randomise.groups": 1} if "randomise.ranges" in changes else {}
    config = make_config("mixed-slo-v0", {**changes, **grouped})
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    (tmp_path / "model_best.safetensors").write_bytes(b"")
    run = run_of(config, tmp_path / "model_best.safetensors")
    assert (run.made_for, run.leaks) == (made_for, leaks)


def test_a_policy_that_has_seen_the_test_has_a_name_of_its_own(runs: Path):
    fair, leak = find_runs([str(runs / "a"), str(runs / "f")], "mixed-slo-v0")
    assert (fair.policy, leak.policy) == ("ppo", "ppo")
    assert learned_who(fair)["policy"] == "ppo"
    assert learned_who(leak)["policy"] == "ppo, leaks mixed-slo-v0/test-code"


@pytest.mark.parametrize(
    "changes, setting",
    [
        ({"lagrangian.attainment": 0.98}, "at 0.98"),
        ({"lagrangian.attainment": {"batch": 0.9}}, "batch at 0.9"),
        (
            {"lagrangian.attainment": 0.99, "lagrangian.rate": 0, "lagrangian.start": 4},
            "misses at 4",
        ),
        (
            {
                "lagrangian.attainment": 0.99,
                "lagrangian.rate": 0,
                "lagrangian.start": 4,
                "scenario.reward.violation_weight": 2,
            },
            "misses at 4, violation_weight 2",
        ),
        (
            {"scenario.classes.batch.weight": 3, "scenario.classes.interactive.weight": 2},
            "classes.batch.weight 3, classes.interactive.weight 2",
        ),
        ({"scenario.reward.violation_weight": 20}, "violation_weight 20"),
        ({}, "as configured"),
    ],
)
def test_a_setting_is_what_a_run_was_told_of_attainment(changes: dict[str, Any], setting: str):
    from agents.configuration.config import make_config

    assert setting_of(make_config("mixed-slo-v0", changes)) == setting


def test_a_network_for_one_workload_competes_where_a_heuristic_tuned_there_does(runs: Path):
    found = find_runs([str(runs / name) for name in "de"], "mixed-slo-v0")
    assert [(r.policy, r.made_for, r.leaks) for r in found] == [
        ("ppo per workload", "val-mmpp", ()),
        ("ppo per workload", "val-code", ()),
    ]
    tests = [w for w in workloads("test") if w.name in ("test-mmpp", "test-code", "test-chat")]
    windows = {"test": 1, "validation": 1}
    made = learned_cases(found, tests, workloads("validation"), windows)
    assert [(case["workload"], case["base"]) for case in made] == [
        ("test-mmpp", "trained on val-mmpp"),
        ("val-mmpp", "trained on val-mmpp"),
        ("test-code", "trained on val-code"),
        ("val-code", "trained on val-code"),
    ]
    made = learned_cases(found, tests, (), windows, (0.7,))
    assert [(case["setting"], case.get("quantile")) for case in made] == 2 * [
        ("as configured", None),
        ("as configured, quantile 0.7", 0.7),
    ]
    # For a trace whose settings are chosen on several of them, both are settings of one policy.
    trace = replace(tests[0], name="trace", validated_on=("val-mmpp", "val-code"), shape="unknown")
    made = learned_cases(found, [trace], workloads("validation"), windows)
    assert {case["base"] for case in made} == {"any workload of validation"}
    assert [(case["setting"], case["workload"]) for case in made] == [
        (f"trained on {name}, as configured", workload)
        for name in ("val-mmpp", "val-code")
        for workload in ("trace", "val-mmpp", "val-code")
    ]
    # What was trained on a workload of the test is for nobody.
    (leak,) = find_runs([str(runs / "f")], "mixed-slo-v0")
    assert (leak.policy, leak.made_for, leak.leaks) == ("ppo", "", ("mixed-slo-v0/test-code",))


def test_one_network_of_each_workload():
    def run(made_for: str, setting: str, seed: int, policy: str = "ppo per workload") -> Run:
        return Run(policy, setting, seed, f"{made_for}-{setting}-{seed}", "", made_for, ())

    chat = [run("chat", setting, seed) for setting in ("at 2", "at 5") for seed in (1, 0)]
    code = [run("code", "at 10", 0), run("code", "at 5", 0), run("code", "at 5", 3)]
    # "at 5" is the setting of most; documents have none of it.
    documents = [run("documents", "at 2", 4)]
    family = [run("", "at 10", seed, "ppo") for seed in (2, 1)]
    found = one_each([*chat, *code, *documents, *family])
    assert [r.path for r in found] == ["chat-at 5-0", "code-at 5-0", "documents-at 2-4", "-at 10-1"]


@pytest.mark.parametrize(
    "changes, turns",
    [
        ({}, True),
        ({"action": ["batch_limits"]}, False),
        ({"action": ["residual"], "reference": "hpa"}, False),
        ({"agent": "recurrent-ppo"}, False),
    ],
)
def test_quantiles_are_settings_of_networks_that_decide_counts(
    changes: dict[str, Any], turns: bool, tmp_path: Path
):
    from agents.configuration.config import make_config

    config = make_config("mixed-slo-v0", {"scenario.workload": "mixed-slo-v0/val-code", **changes})
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    (tmp_path / "model_best.safetensors").touch()
    run = run_of(config, tmp_path / "model_best.safetensors")
    tests = [w for w in workloads("test") if w.name == "test-code"]
    made = learned_cases([run], tests, (), {"test": 1, "validation": 1}, (0.7, 0.9))
    assert [case.get("quantile") for case in made] == [None, *((0.7, 0.9) if turns else ())]


def test_the_learned_policy_that_is_judged_is_there_and_preferred_by_validation():
    def standing(policy: str, workload: str, hours: float, reaches: bool = True) -> Any:
        choice = Choice("at 0.99", reaches, 0.99, hours)
        return SimpleNamespace(
            policy=policy, workload=workload, learned=True, choice=choice, base="trained on it"
        )

    found = [standing("family", w, 3.0) for w in ("a", "b", "trace")]
    found += [standing("each", "a", 2.0), standing("each", "b", 3.5)]
    assert chosen_learned(found, "a") == chosen_learned(found, "b") == "each"
    assert chosen_learned(found, "trace") == "family"
    found[-1] = standing("each", "b", 2.0, reaches=False)
    assert chosen_learned(found, "a") == "family"
    assert chosen_learned([], "a") is None


def test_a_learned_policy_runs_under_the_protocol(runs: Path):
    tests = [w for w in workloads("test") if w.name == "test-mmpp"]
    found = find_runs([str(runs / "a")], "mixed-slo-v0")
    made = learned_cases(found, tests, workloads("validation"), {"test": 1, "validation": 1})
    assert [case["workload"] for case in made] == ["test-mmpp", "val-mmpp"]
    short = {"horizon_s": 60.0, "workload.batch_queues.overnight.at_s": 10.0}
    (row,) = play({**made[0], "overrides": short})
    (more,) = play({**made[0], "overrides": short, "quantile": 0.99})
    assert more["gpu_hours"] > row["gpu_hours"]
    assert row["window"] == 30000
    assert row["gpu_hours"] > 0


def test_what_a_policy_sees_without_a_forecast_with_an_oracles_and_blind(
    runs: Path, monkeypatch: pytest.MonkeyPatch
):
    from agents.learned import LearnedPolicy

    tests = [w for w in workloads("test") if w.name == "test-mmpp"]
    found = find_runs([str(runs / "a")], "mixed-slo-v0")
    case = learned_cases(found, tests, (), {"test": 1, "validation": 1})[0]
    short = {"horizon_s": 60.0, "workload.batch_queues.overnight.at_s": 10.0}
    choose, spans = LearnedPolicy.choose, {}
    observed: list[Any] = []

    def watched(policy: LearnedPolicy, observation: Any, **more: Any) -> Any:
        observed.append(observation)
        spans.update(policy.spans)
        return choose(policy, observation, **more)

    monkeypatch.setattr(LearnedPolicy, "choose", watched)
    seen = {}
    for name in ("none", "forecast-none", "forecast-oracle", "blind-queues"):
        observed.clear()
        play({**ABLATIONS[name].of(case), "overrides": short})
        seen[name] = np.array(observed[-6:])
    forecast, queues = spans["forecast"], spans["queues"]
    assert seen["none"][1:, forecast].any()
    assert not seen["forecast-none"][:, forecast].any()
    # An oracle knows before anything was seen. Entries: rate and error of one class, then of the other.
    assert not seen["none"][0, forecast][::2].any()
    assert seen["forecast-oracle"][0, forecast][::2].all()
    others = np.delete(np.arange(seen["none"].shape[1]), forecast)
    for name in ("forecast-none", "forecast-oracle"):
        np.testing.assert_array_equal(seen[name][0, others], seen["none"][0, others])
    assert np.ptp(seen["none"][:, queues], axis=0).max() > 0
    assert np.ptp(seen["blind-queues"][:, queues], axis=0).max() == 0


def test_who_sees_a_forecast_in_another_block_is_asked_too(monkeypatch: pytest.MonkeyPatch):
    from experiments.learned import ablations

    monkeypatch.setattr(ablations, "blocks_of", lambda model: ("class_load",))
    assert ABLATIONS["forecast-none"].holds({"learned": True, "model": "x"})


def test_blocks_are_taken_from_those_who_have_them(runs: Path):
    settings = study_ablations.Settings(
        learned=(str(runs / "a"),), policies=("static",), seeds=1, workloads=("test-mmpp",)
    )
    made = study_ablations.cases(settings)
    of = {k: {c["ablation"] for c in made if c["learned"] is k} for k in (True, False)}
    assert {"blind-queues", "blind-last_action", "load-60"} <= of[True]
    assert "blind-urgency" not in of[True]  # not among mixed-slo-v0's own blocks
    assert "forecast-none" in of[True]
    assert not any(name.startswith("blind") for name in of[False])


def test_a_run_comes_before_its_copy_that_ships(
    runs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    from experiments.learned import runs as found_in

    copy = tmp_path / "shipped"
    copy.mkdir()
    (copy / "config.yaml").write_text((runs / "a" / "config.yaml").read_text())
    (copy / "model.safetensors").write_bytes(b"the same policy, saved in another way")
    one = SimpleNamespace(name="shipped", model=copy / "model.safetensors")
    monkeypatch.setattr(found_in, "shipped", lambda env=None: [one])
    for words in (["pretrained", str(runs / "a")], [str(runs / "a"), "pretrained"]):
        (found,) = found_in.find_runs(words, "mixed-slo-v0")
        assert found.path == str(runs / "a" / "model_best.safetensors")


def test_who_sees_no_forecast_is_not_asked_what_it_does_without(monkeypatch: pytest.MonkeyPatch):
    from experiments.learned import ablations

    monkeypatch.setattr(ablations, "blocks_of", lambda model: ("queues",))
    case = {"learned": True, "model": "x"}
    assert not ABLATIONS["forecast-none"].holds(case)
    assert not ABLATIONS["forecast-oracle"].holds(case)
    assert ABLATIONS["load-60"].holds(case)


def test_the_blind_see_a_block_at_its_mean(runs: Path):
    from agents.learned import LearnedPolicy
    from experiments.learned.blind import blind
    from llmscale_env.control.simulation import ClusterSimulation
    from llmscale_env.scenarios import load_scenario

    overrides = {"horizon_s": 60.0, "workload.batch_queues.overnight.at_s": 10.0}
    scenario = load_scenario("mixed-slo-v0", workload="mixed-slo-v0/test-mmpp", **overrides)
    policy, simulation = LearnedPolicy(runs / "a"), ClusterSimulation(scenario)
    with pytest.raises(ValueError, match="block = 'urgency'"):
        blind(policy, "urgency", simulation, 1)
    blind(policy, "clock", simulation, 1)
    span = policy.spans["clock"]
    ramp = np.arange(span.stop + 3, dtype=np.float32)
    seen = policy.alter(ramp)
    # Of an episode of six decisions, the clock at its start, after one, ... and five sixths.
    assert seen[span][0] == pytest.approx(np.mean(np.arange(6) / 6), abs=1e-6)
    np.testing.assert_array_equal(np.delete(seen, span), np.delete(ramp, span))


def test_a_shipped_policy_is_evaluated_beside_others(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    import shutil

    import yaml

    from agents import evaluate
    from agents.pretrained import KEYS, sums_of

    home = tmp_path / "shipped"
    shutil.copytree(runs / "a", home / "small")
    (home / "small" / "model_best.safetensors").rename(home / "small" / "model.safetensors")
    card = {**dict.fromkeys(KEYS, "said"), "environment": "mixed-slo-v0"}
    (home / "small" / "card.yaml").write_text(yaml.safe_dump(card))
    (home / "SHA256SUMS").write_text(sums_of(home))
    monkeypatch.setattr("agents.pretrained.FOLDER", home)
    words = [
        "env=mixed-slo-v0",
        "policies=pretrained,chiron,dynamo",
        "episodes=1",
        f"out={tmp_path / 'o'}",
    ]
    assert evaluate.main([*words, "scenario.horizon_s=60", "scenario.workload=chat"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()[2:5]] == [
        "pretrained",
        "chiron",
        "dynamo",
    ]
