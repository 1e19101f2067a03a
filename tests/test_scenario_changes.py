"""Scenarios made from others: like one that ships, with other streams, on other machines."""

from __future__ import annotations

import pytest

from llmscale_env.cluster.machines import BYTES_PER_GBIT, MACHINES, machine
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios import ScenarioError, load_scenario
from tests.small_world import SMALL_WORLD

# ---- like another: its fields but for those that the file names ----


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


# ---- other streams in the place of a mix's: what becomes of its queues and jobs ----


MINE = {"name": "mine", "llm": "llama-3.1-8b", "slo_class": "interactive", "rate_per_s": 2.0}
QUEUE = {"name": "late", "llm": "llama-3.1-8b", "slo_class": "batch", "n_requests": 9}


def parts(scenario) -> list[str]:
    return [part.name for part in scenario.workload.parts]


@pytest.mark.parametrize("name", [SMALL_WORLD, "mixed-slo"], ids=["small", "mixed-slo"])
def test_other_streams_replace_queues_and_jobs(name):
    assert parts(load_scenario(name, **{"workload.streams": [MINE]})) == ["mine"]
    assert parts(load_scenario(load_scenario(name), **{"workload.streams": [MINE]})) == ["mine"]


@pytest.mark.parametrize("turn", [1, -1])
def test_queues_that_are_named_too_are_there(turn):
    changes = {"workload.streams": [MINE], "workload.batch_queues": [QUEUE]}
    scenario = load_scenario(SMALL_WORLD, **dict([*changes.items()][::turn]))
    assert parts(scenario) == ["mine", "late"]


def test_a_mix_with_other_streams():
    work = {"mix": "mixed-slo-hours", "streams": [MINE]}
    assert parts(load_scenario(SMALL_WORLD, workload=work)) == ["mine"]
    work["batch_queues"] = [QUEUE]
    assert parts(load_scenario(SMALL_WORLD, workload=work)) == ["mine", "late"]


def test_a_changed_stream_and_no_streams_leave_queues_as_they_are():
    plain = load_scenario(SMALL_WORLD)
    changed = load_scenario(SMALL_WORLD, **{"workload.streams.chat.rate_per_s": 3.0})
    assert changed.workload.batch_queues == plain.workload.batch_queues
    alone = load_scenario(SMALL_WORLD, **{"workload.streams": []})
    assert alone.workload.parts == plain.workload.batch_queues


# ---- on other machines: what is the machine's, and what stays ----


CODE = "blitzscale-azure-code-7b"


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_of_the_tables_serves(name):
    from baselines import make_policy

    scenario = load_scenario(CODE, machine=name, horizon_s=20)
    kind = machine(name)
    assert scenario.fleet.gpus_per_host == kind.gpus_per_host == 8
    assert scenario.fleet.max_gpus == 8 * (kind.hosts or 4)
    assert scenario.network.inter_host_bytes_per_s == kind.network_gbps * BYTES_PER_GBIT
    assert (scenario.network.nvlink, scenario.network.startup_s) == (kind.nvlink, 0)
    for pool in scenario.fleet.pools:
        assert pool.gpu.startswith(kind.gpu)
        assert pool.gpu.endswith("pcie") == (not kind.nvlink)
        assert pool.max_instances == scenario.fleet.max_gpus
    result = run_episode(make_policy("blitzscale"), scenario, 0)
    assert result.summary["gpu_seconds"] > 0


def test_instances_of_four_gpus_keep_their_share():
    scenario = load_scenario("blitzscale-burstgpt-70b", machine="blitzscale-b")
    assert scenario.fleet.max_gpus == 16
    assert {pool.max_instances for pool in scenario.fleet.pools} == {4}
    back = load_scenario(scenario, machine="blitzscale-a")
    assert back == load_scenario("blitzscale-burstgpt-70b")


@pytest.mark.parametrize("path", ["network", "network.machine"])
def test_links_of_another_machine_leave_the_rest(path):
    shipped = load_scenario("burst-multicast", **{"network.communicator_s": 0.1})
    for start in ("burst-multicast", shipped):
        found = load_scenario(start, **{path: "blitzscale-a"}).network
        assert found.startup_s == 0
        assert found.nvlink
        assert found.intra_host_bytes_per_s == 1600 * BYTES_PER_GBIT
    assert found.communicator_s == 0.1


@pytest.mark.parametrize("path", ["network", "network.machine", "machine"])
def test_an_unknown_machine_is_named(path):
    with pytest.raises(ScenarioError, match=r"machine = 'blitzscale-c': unknown; did you mean"):
        load_scenario(CODE, **{path: "blitzscale-c"})
