"""Links of a cluster, from machines by name to paths, on clusters that can be counted by hand."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmscale_env.cluster.cards import llm_card
from llmscale_env.cluster.loading import CLUSTER_A, CLUSTER_B, NetworkConfig, load_times_s
from llmscale_env.cluster.machines import BYTES_PER_GBIT, MACHINES, machine
from llmscale_env.cluster.multicast import Plan
from llmscale_env.cluster.multicast_time import done_s, layer_times_ps
from llmscale_env.cluster.topology import FROM_SSD, PoolLayout, link_tables, topology
from llmscale_env.scenarios import ScenarioError, load_scenario
from llmscale_env.scenarios.load import with_overrides

GB = 1e9
TABLES = (
    "out_links",
    "in_links",
    "local_out_links",
    "local_in_links",
    "from_host_links",
    "from_ssd_links",
    "host_out_links",
    "host_in_links",
    "ssd_host_links",
)


def config(**fields) -> NetworkConfig:
    speeds = {
        "ssd_bytes_per_s": 1 * GB,
        "host_bytes_per_s": 16 * GB,
        "intra_host_bytes_per_s": 200 * GB,
        "inter_host_bytes_per_s": 12 * GB,
    }
    return NetworkConfig(**{**speeds, **fields})


def speeds(tables, links) -> list[int]:
    return [tables.capacity[k] for k in links]


# ---- machines ----


def test_cluster_a_is_the_default_and_table_1():
    named = NetworkConfig.model_validate("blitzscale-a")
    for field in ("ssd", "host", "intra_host", "inter_host"):
        name = f"{field}_bytes_per_s"
        assert getattr(named, name) == getattr(CLUSTER_A, name)
    assert (named.pcie_bytes_per_s, named.gpus_per_pcie) == (2 * named.host_bytes_per_s, 2)
    assert CLUSTER_B.intra_host_bytes_per_s == 256 * BYTES_PER_GBIT
    assert (CLUSTER_A.nvlink, CLUSTER_B.nvlink) == (True, False)
    shape = {name: (MACHINES[name].hosts, MACHINES[name].gpus_per_host) for name in MACHINES}
    assert shape["blitzscale-a"] == (4, 8)
    assert shape["blitzscale-b"] == (2, 8)


def test_table_2():
    assert len([m for m in MACHINES.values() if "Table 2" in m.source]) == 6
    cheap = machine("a2-ultragpu-8g")
    assert (cheap.ssd_gbps, cheap.remote_ssd_gbps, cheap.network_gbps) == (2.58, 0.29, 12.5)
    # The paper: "2-10 Gbps per-GPU" SSDs, and "network BW" of 12.5 to 200.
    clouds = [m for m in MACHINES.values() if "Table 2" in m.source]
    assert all(2 < m.ssd_gbps < 10 for m in clouds)
    assert [m.name for m in clouds if not m.nvlink] == ["ml.hpcgni2.28xlarge"]
    for each in MACHINES.values():
        NetworkConfig.model_validate(each.name)


def test_a_scenario_names_its_machines():
    named = load_scenario("aladdin-split", network="blitzscale-b")
    assert named.network == CLUSTER_B
    both = load_scenario("aladdin-split", network={"machine": "blitzscale-b", "startup_s": 0})
    dotted = load_scenario("aladdin-split", **{"network": "blitzscale-b", "network.startup_s": 0})
    assert both.network == dotted.network == CLUSTER_B.model_copy(update={"startup_s": 0})
    assert with_overrides(named, {"network.startup_s": 1}).network.nvlink is False
    with pytest.raises(ScenarioError, match=r"did you mean 'blitzscale-b'"):
        load_scenario("aladdin-split", network="blitzscale-bb")


# ---- tables ----


def test_links_of_one_gpu_by_hand():
    """Two hosts of two GPUs that share a PCIe link; four instances."""
    network = config(pcie_bytes_per_s=20 * GB)
    tables = link_tables(network, 2, [PoolLayout(1, 4)])
    assert tables.hosts == (0, 0, 1, 1)
    for slot in range(4):
        assert speeds(tables, tables.out_links[slot]) == [12_000]
        assert speeds(tables, tables.in_links[slot]) == [12_000]
        assert speeds(tables, tables.local_out_links[slot]) == [200_000]
        assert speeds(tables, tables.from_host_links[slot]) == [16_000, 20_000]
        assert speeds(tables, tables.from_ssd_links[slot]) == [1_000, 16_000, 20_000]
    for host in range(2):
        assert speeds(tables, tables.host_out_links[host]) == [24_000]
        assert speeds(tables, tables.ssd_host_links[host]) == [2_000]
    assert tables.from_host_links[0][1] == tables.from_host_links[1][1]
    assert tables.from_host_links[1][1] != tables.from_host_links[2][1]
    assert tables.from_host_links[0][0] != tables.from_host_links[1][0]


def test_wide_instances_have_their_groups_to_themselves():
    network = config(pcie_bytes_per_s=20 * GB, nic_bytes_per_s=15 * GB)
    tables = link_tables(network, 4, [PoolLayout(4, 1), PoolLayout(1, 4)])
    # Four lanes of 16 through two PCIe links of 20, four of 12 through two cards of 15.
    assert speeds(tables, tables.from_host_links[0]) == [40_000]
    assert speeds(tables, tables.out_links[0]) == [30_000]
    assert speeds(tables, tables.out_links[1]) == [12_000, 15_000]
    assert tables.out_links[1][1] == tables.out_links[2][1] != tables.out_links[3][1]
    assert tables.in_links[1][1] == tables.in_links[2][1] != tables.out_links[1][1]


def test_without_nvlink_neighbours_meet_on_pcie():
    tables = link_tables(CLUSTER_B, 8, [PoolLayout(1, 4)])
    assert (
        tables.local_in_links[0][1] == tables.from_host_links[1][1] == tables.from_host_links[0][1]
    )
    assert tables.local_out_links[0][1] != tables.local_in_links[0][1]
    assert len(link_tables(CLUSTER_A, 8, [PoolLayout(1, 4)]).local_in_links[0]) == 1


def test_a_host_s_total_is_shared_by_its_memory():
    network = config(host_network_bytes_per_s=24 * GB, ssd_host_bytes_per_s=3 * GB)
    tables = link_tables(network, 4, [PoolLayout(2, 4)])
    assert tables.host_out_links[1] == tables.out_links[2][1:] == tables.out_links[3][1:]
    assert tables.host_in_links[0] == tables.in_links[0][1:]
    assert set(tables.ssd_host_links[0]) < set(tables.from_ssd_links[0])
    assert tables.from_ssd_links[0][1] == tables.from_ssd_links[1][1]
    capped = link_tables(
        network.model_copy(update={"host_memory_bytes_per_s": 5 * GB}), 4, [PoolLayout(2, 4)]
    )
    assert speeds(capped, capped.host_out_links[0]) == [5_000, 24_000]


def test_memory_that_sends_over_the_gpus_cards():
    tables = link_tables(config(memory_uses_nics=True), 4, [PoolLayout(1, 8)])
    assert speeds(tables, tables.host_out_links[0]) == [48_000]
    assert tables.host_out_links[0] == tables.out_links[3][1:] != tables.out_links[4][1:]
    cards = config(memory_uses_nics=True, nic_bytes_per_s=15 * GB)
    tables = link_tables(cards, 4, [PoolLayout(1, 4)])
    assert speeds(tables, tables.host_in_links[0]) == [30_000]  # two cards


def test_twins_have_the_same_gpus():
    pools = [PoolLayout(2, 3), PoolLayout(2, 3, twin_of=0), PoolLayout(4, 1)]
    tables = link_tables(config(), 8, pools)
    assert tables.hosts == (0, 0, 0, 0, 0, 0, 0)  # GPUs 0 to 5 twice; 4 more begin at the sixth
    for name in TABLES[:6]:
        rows = getattr(tables, name)
        assert rows[:3] == rows[3:6]
        assert rows[6] not in rows[:3]


@pytest.mark.parametrize(
    "pools, message",
    [
        ([PoolLayout(1, 2, twin_of=3)], "must be a pool with its own GPUs"),
        ([PoolLayout(1, 2, twin_of=0)], "must be a pool with its own GPUs"),
        ([PoolLayout(1, 2), PoolLayout(2, 2, twin_of=0)], "must have the same tp and slots"),
    ],
)
def test_wrong_twins(pools, message):
    with pytest.raises(ValueError, match=message):
        link_tables(config(), 8, pools)


def test_without_loading_there_are_the_links_of_kv_alone():
    pools = [PoolLayout(1, 3), PoolLayout(2, 2)]
    for network in (CLUSTER_A, CLUSTER_B, config(host_network_bytes_per_s=1e9)):
        less = link_tables(network, 4, pools, loading=False)
        more = link_tables(network, 4, pools)
        assert less[1:5] == more[1:5]
        assert more.capacity[: len(less.capacity)] == less.capacity
        assert less.from_host_links == less.host_out_links == ()


@pytest.mark.parametrize("name", ["blitzscale-a", "blitzscale-b", "figure-5", "a2-ultragpu-8g"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_flows_and_formulas_agree(name, tp):
    """`load_times_s` is what flows take when nobody else is there, but for whole bytes per microsecond."""
    network = NetworkConfig.model_validate({"machine": name, "startup_s": 0})
    card = llm_card("llama-3.1-8b")
    found = topology(network, 8, [PoolLayout(tp, 16 // tp)])
    plans = {
        ("ssd", False): Plan(((FROM_SSD, 0),)),
        ("host", False): Plan(((found.memory(0), 0),)),
        ("multicast", False): Plan(((0, 8 // tp),)),
        ("multicast", True): Plan(((0, 1),)),
    }
    for (source, same_host), plan in plans.items():
        formula = load_times_s(card, "a100-80gb", tp, network, same_host=same_host)[source]
        flows = done_s(layer_times_ps(found, plan, card.weight_bytes, card.layers))
        assert flows[0] == pytest.approx(formula, rel=2e-3)


layouts = st.lists(st.builds(PoolLayout, st.sampled_from([1, 2, 4]), st.integers(1, 5)), min_size=1)
networks = st.builds(
    config,
    pcie_bytes_per_s=st.sampled_from([None, 20 * GB]),
    gpus_per_pcie=st.integers(1, 4),
    nic_bytes_per_s=st.sampled_from([None, 15 * GB]),
    gpus_per_nic=st.integers(1, 4),
    nvlink=st.booleans(),
    host_network_bytes_per_s=st.sampled_from([None, 48 * GB]),
    ssd_host_bytes_per_s=st.sampled_from([None, 3 * GB]),
    host_memory_bytes_per_s=st.sampled_from([None, 9 * GB]),
)


@given(networks, st.integers(1, 8), layouts)
@settings(max_examples=100, deadline=None)
def test_no_path_holds_a_link_twice(network, gpus_per_host, pools):
    found = topology(network, gpus_per_host, pools)
    tables = found.links
    n_hosts = len(tables.host_out_links)
    sources = [FROM_SSD, *range(found.n_slots), *map(found.memory, range(n_hosts))]
    for source, slot in product(sources, range(found.n_slots)):
        path = found.path(source, slot)
        assert path
        assert len(set(path)) == len(path)
        assert all(0 <= k < len(tables.capacity) for k in path)
    for slot, host in product(range(found.n_slots), range(n_hosts)):
        path = (*tables.out_links[slot], *tables.host_in_links[host])
        assert len(set(path)) == len(path)
    outs = {k for row in (*tables.out_links, *tables.host_out_links) for k in row}
    ins = {k for row in (*tables.in_links, *tables.host_in_links) for k in row}
    assert not outs & ins  # both directions have their own
    assert all(a <= b for a, b in pairwise(tables.hosts))
