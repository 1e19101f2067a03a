"""What `agents.evaluate` takes from `baselines.tune`, and gives to dashboards."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from agents import evaluate
from agents.runs.openmetrics import write_openmetrics
from baselines import tune
from llmscale_env.scenarios import load_scenario
from llmscale_env.workload.generate import day_drawn

SHORT = ["env=burst-multicast", "episodes=2", "scenario.horizon_s=20"]


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "evaluation.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def run(*words: str, folder: Path) -> list[dict[str, str]]:
    assert evaluate.main([*SHORT, *words, f"out={folder}"]) == 0
    return rows_of(folder)


def without_name(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{key: value for key, value in row.items() if key != "policy"} for row in rows]


# ---------------------------------------------------------------- settings of a search


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    """What a search has written."""
    path = tmp_path / "found" / "mine.yaml"
    words = ["policy=static", "env=burst-multicast", "scenario.horizon_s=20", "seeds=1"]
    words += ["prefill=4,6", "decode=3", "batch_limit=64", "cache=none", f"out={path}"]
    assert tune.main(words) == 0
    return path


def test_a_setting_that_was_found_runs_as_its_parameters_do(tuned: Path, tmp_path: Path):
    # A point of `static` is not yet its parameters: those of the file are.
    found = yaml.safe_load(tuned.read_text())["parameters"]
    assert found
    rows = run(f"policies={tuned}", folder=tmp_path / "file")
    spelled = "+".join(f"{key}={value}" for key, value in _flat(found).items())
    same = run(f"policies=static:{spelled}", folder=tmp_path / "spelled")
    assert {row["policy"] for row in rows} == {"mine"}
    assert without_name(rows) == without_name(same)


def _flat(parameters: dict[str, Any]) -> dict[str, Any]:
    """As the command line takes them: instances by the pools' names."""
    flat: dict[str, Any] = {}
    for key, value in parameters.items():
        flat |= value if key == "instances" else {key: value}
    return flat


def test_players_that_look_at_nothing_stand_beside_policies(tmp_path: Path):
    words = "policies=do-nothing,random,random-masked,static"
    alone = run(words, folder=tmp_path / "alone")
    assert [row["policy"] for row in alone[::2]] == [
        "do-nothing",
        "random",
        "random, masked",
        "static",
    ]
    assert run(words, "workers=2", folder=tmp_path / "two") == alone
    assert len({row["reward"] for row in alone}) > 4


def test_it_stands_beside_others_and_in_other_processes(tuned: Path, tmp_path: Path):
    words = f"policies={tuned},static"
    alone = run(words, folder=tmp_path / "alone")
    assert [row["policy"] for row in alone] == ["mine", "mine", "static", "static"]
    assert run(words, "workers=2", folder=tmp_path / "two") == alone


def test_a_setting_of_another_scenario_is_told(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    told = yaml.safe_load(tuned.read_text())
    tuned.write_text(yaml.safe_dump({**told, "scenario": "placement"}))
    run(f"policies={tuned}", folder=tmp_path / "out")
    assert "was tuned on placement, and runs on burst-multicast" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "there is no such file"),
        ("- 1", "must hold `policy` and `parameters`"),
        ("policy: static", "must hold `policy` and `parameters`"),
        ("policy: [1]\nparameters: {}", "must hold `policy` and `parameters`"),
        ("policy: sttic\nparameters: {}", "policy = 'sttic': unknown (did you mean static?)"),
        ("policy: static\nparameters: {nowhere: 3}", "neither a parameter nor a pool"),
        ("policy: static\nparameters: {each: -3}", "each = -3"),
        ("policy: [", "not valid YAML"),
    ],
)
def test_files_that_hold_no_setting_are_refused(
    text: str | None, message: str, tmp_path: Path, refused: Any
):
    path = tmp_path / "mine.yaml"
    if text is not None:
        path.write_text(text)
    out = tmp_path / "out"
    error = refused(evaluate.main, [*SHORT, f"policies=static,{path}", f"out={out}"])
    assert error.startswith("evaluate: policies: ")
    assert message in error
    assert not out.exists()


def test_a_comma_or_a_plus_separates_parameters(tmp_path: Path):
    comma = run("policies=static:prefill=4,decode=3", folder=tmp_path / "comma")
    plus = run("policies=static:prefill=4+decode=3", folder=tmp_path / "plus")
    assert comma == plus
    assert {row["policy"] for row in plus} == {"static:prefill=4+decode=3"}


def test_windows_can_be_of_every_day_as_often(tmp_path: Path):
    words = ["env=mixed-slo-hours", "scenario.workload=mixed-slo/test-hours", "policies=static"]
    words += ["scenario.workload.rate_scale=0.01", "episodes=8", "even=true", f"out={tmp_path}"]
    assert evaluate.main(words) == 0
    scenario = load_scenario("mixed-slo-hours", workload="mixed-slo/test-hours")
    days = [
        day_drawn(
            *(scenario.workload, scenario.horizon_s, np.random.default_rng(int(row["seed"]))),
            any_time=True,
        )
        for row in rows_of(tmp_path)
    ]
    assert sorted(days) == sorted([10, 11, 12, 13] * 2)


def test_a_parameter_without_a_policy_says_how_it_is_written(refused: Any):
    error = refused(evaluate.main, [*SHORT, "policies=static,decode=3"])
    assert "'decode=3' is no policy" in error
    assert "static:KEY=VALUE+KEY=VALUE" in error


# ---------------------------------------------------------------- OpenMetrics


def parsed(path: Path) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    return {
        family.name: {
            tuple(sorted(sample.labels.items())): sample.value for sample in family.samples
        }
        for family in text_string_to_metric_families(path.read_text())
    }


def test_the_summary_is_valid_openmetrics(tmp_path: Path):
    pytest.importorskip("prometheus_client")
    path = tmp_path / "new" / "metrics.txt"
    rows = run("policies=static,static:each=1", f"openmetrics={path}", folder=tmp_path / "out")
    found = parsed(path)
    assert path.read_text().endswith("# EOF\n")
    for policy in ("static", "static:each=1"):
        mine = [row for row in rows if row["policy"] == policy]
        labels = (("env", "burst-multicast"), ("policy", policy))
        hours = sum(float(row["gpu_hours"]) for row in mine) / len(mine)
        assert found["llmscale_gpu_hours"][labels] == pytest.approx(hours)
        assert found["llmscale_episodes"][labels] == len(mine)
        low, high = (found[f"llmscale_reward_{end}"][labels] for end in ("low", "high"))
        assert low <= found["llmscale_reward"][labels] <= high
        of_class = (("class", "code"), *labels)
        share = [float(row["code/slo_attainment"]) for row in mine]
        assert found["llmscale_attainment_ratio"][of_class] == pytest.approx(sum(share) / len(mine))


def test_names_are_escaped_and_what_is_not_known_is_left_out(tmp_path: Path):
    pytest.importorskip("prometheus_client")
    scenario = load_scenario("burst-multicast")
    row = {"policy": 'a"b\\c\nd', "episodes": 3, "reward": -1.5, "gpu_hours": math.nan}
    path = write_openmetrics(tmp_path / "metrics.txt", [row], scenario)
    found = parsed(path)
    labels = (("env", "burst-multicast"), ("policy", 'a"b\\c\nd'))
    assert found["llmscale_reward"] == {labels: -1.5}
    assert "llmscale_gpu_hours" not in found
    assert "llmscale_attainment_ratio" not in found


def test_a_place_that_takes_no_file_is_refused_before_the_work(tmp_path: Path, refused: Any):
    pytest.importorskip("prometheus_client")
    words = [*SHORT, "policies=static", f"out={tmp_path / 'out'}", f"openmetrics={tmp_path}"]
    assert "is a folder; must be a file's name" in refused(evaluate.main, words)
    assert not list((tmp_path / "out").iterdir())
