"""Scenarios like another one: its fields but for those that the file names."""

from __future__ import annotations

import pytest

from llmscale_env.scenarios import ScenarioError, load_scenario


def test_a_shipped_scenario_has_the_fields_of_the_one_that_it_is_like():
    day, large = load_scenario("mixed-slo"), load_scenario("mixed-slo-large")
    assert large.classes == day.classes
    assert large.fleet.max_gpus == 50
    assert [pool.max_instances for pool in large.fleet.pools] == [50, 50, 50]
    assert large.workload.rate_scale == 3.125
    assert large.workload.streams == day.workload.streams


def test_overrides_go_before_what_the_file_changes(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("like: mixed-slo-hours\nname: mine\nfleet.max_gpus: 12\n")
    assert load_scenario(path).horizon_s == 7200
    assert load_scenario(path).fleet.max_gpus == 12
    assert load_scenario(path).name == "mine"
    assert load_scenario(path, **{"fleet.max_gpus": 9}).fleet.max_gpus == 9


@pytest.mark.parametrize("name", ["nowhere", "mine"])
def test_a_scenario_is_like_a_shipped_one(tmp_path, name):
    path = tmp_path / "mine.yaml"
    path.write_text(f"like: {name}\n")
    with pytest.raises(
        ScenarioError, match=rf"mine\.yaml: like = '{name}': must be another shipped"
    ):
        load_scenario(path)
