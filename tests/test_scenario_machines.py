"""Scenarios on other machines: what is the machine's, and what stays."""

from __future__ import annotations

import pytest

from llmscale_env.cluster.machines import BYTES_PER_GBIT, MACHINES, machine
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios import ScenarioError, load_scenario

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
