"""Weights that flow, twins and copies in host memory: from a scenario's YAML to a policy's command."""

from __future__ import annotations

from typing import Any

import pytest

from llmscale_env.cluster.cards import llm_card
from llmscale_env.cluster.loading import load_times_s
from llmscale_env.cluster.multicast_time import planned_load_s
from llmscale_env.scenarios import load_scenario, scenario_names, validate_scenario
from llmscale_env.sim.compile import cluster_topology, compile_cluster, pool_load_times_s
from llmscale_env.sim.spec import FROM_SSD, NEVER, LiveMode
from llmscale_env.sim.spec.links import Paths
from llmscale_env.workload.requests import PS_PER_S
from tests.small_world import SMALL_WORLD

LLM = "llama-2-7b"
PREFILL = {
    "name": "prefill",
    "llm": LLM,
    "v1": None,
    "max_instances": 16,
    "initial_instances": 1,
    "phase": "prefill",
    "weights": "flow",
}
DECODE = {**PREFILL, "name": "decode", "phase": "decode", "twin_of": "prefill"}
ROUTE = {"pools": ["prefill"], "decode_pools": ["decode"]}


def scenario(
    pools: Any = (PREFILL, DECODE), routes: Any = (ROUTE,), network: Any = None, **fleet: Any
) -> Any:
    given = {"max_gpus": 16, "pools": list(pools), "routes": list(routes), **fleet}
    network = network or {"machine": "blitzscale-a", "startup_s": 0}
    return validate_scenario({"name": "x", "workload": {}, "fleet": given, "network": network})


def test_weights_and_layers_are_the_cards_and_cross_the_machines_links() -> None:
    of = scenario(host_copies="one")
    spec = compile_cluster(of)
    for pool in spec.pools:
        assert (pool.weight_bytes, pool.layers) == (llm_card(LLM).weight_bytes, 32)
        assert pool.live_mode == LiveMode.ZIGZAG
    assert [pool.twin_of for pool in spec.pools] == [-1, 0]
    # 16 slots on two hosts of 8; the twins sit on the same GPUs.
    assert spec.host_of_slot == (*[0] * 8, *[1] * 8) * 2
    assert spec.homes == (0,)
    # The planner's paths are the engine's.
    topology, paths = cluster_topology(of), Paths(spec.network, spec.host_of_slot)
    assert topology.n_slots == spec.n_instances == 32
    for source, slot in ((FROM_SSD, 3), (0, 1), (0, 9), (17, 9), (32, 2), (32, 8), (33, 2)):
        assert topology.path(source, slot) == paths.to_slot(source, slot)
    # 100 Gbps of RDMA, 10 Gbps of SSD, NVLink of 1.6 Tbps.
    assert topology.out_bytes_per_s(0) == 12.5e9
    assert topology.links.capacity[paths.to_slot(FROM_SSD, 0)[0]] == 1250
    assert topology.links.capacity[paths.between(0, 1)[0]] == 200_000


def test_time_before_the_first_byte() -> None:
    network = {"machine": "blitzscale-a", "startup_s": 0.5, "communicator_s": 0.1}
    spec = compile_cluster(scenario([{**PREFILL, "acquire_s": 2}, DECODE], network=network))
    assert [pool.acquire_ps for pool in spec.pools] == [2.6 * PS_PER_S, 0.6 * PS_PER_S]
    timed = [{**PREFILL, "weights": "timed"}, {**DECODE, "weights": "timed", "twin_of": None}]
    spec = compile_cluster(scenario(timed, network=network))
    assert [pool.acquire_ps for pool in spec.pools] == [0, 0]  # it is part of the load time
    assert spec.pools[0].weight_bytes == 0
    assert spec.network is not None
    assert spec.network.from_host_links == ()


def test_copies_are_spread_evenly_and_caches_kept() -> None:
    llms = ["llama-2-7b", "llama-3.1-8b", "llama-2-13b"]
    pools = [
        {**PREFILL, "name": f"p{k}", "phase": "both", "llm": llm, "max_instances": 8}
        for k, llm in enumerate(llms)
    ]
    pools[1]["weights"] = "timed"
    routes = [{"pools": ["p0", "p1", "p2"]}]
    spec = compile_cluster(scenario(pools, routes, host_copies="one", max_gpus=24))
    assert spec.n_hosts == 3
    assert spec.homes == (0, -1, 1)
    assert spec.host_keep_alive_ps == 300 * PS_PER_S
    assert not spec.host_cache_at_start
    spec = compile_cluster(scenario(pools, routes, host_cache="always", max_gpus=24))
    assert spec.homes == ()
    assert spec.host_keep_alive_ps == NEVER
    assert spec.host_cache_at_start
    best = {**pools[0], "live": "best-effort"}
    spec = compile_cluster(scenario([best, *pools[1:]], routes, max_gpus=24))
    assert spec.pools[0].live_mode == LiveMode.BEST_EFFORT


@pytest.mark.parametrize(
    "pools, changes, message",
    [
        ([{**PREFILL, "load_s": {"ssd": 1}}, DECODE], {}, "load_s: not together with weights"),
        ([PREFILL, {**DECODE, "twin_of": "x"}], {}, "twin_of = 'x': unknown"),
        ([PREFILL, {**DECODE, "twin_of": "decode"}], {}, "must be another pool"),
        ([{**PREFILL, "twin_of": "decode"}, DECODE], {}, "must be another pool"),
        ([PREFILL, DECODE, {**DECODE, "name": "third"}], {}, "third.twin_of.*no other pool's yet"),
        ([{**PREFILL, "weights": "timed"}, DECODE], {}, "both pools need weights = 'flow'"),
        ([PREFILL, {**DECODE, "max_instances": 8}], {}, "max_instances = 8 must be 16"),
        ([PREFILL, {**DECODE, "tp": 2}], {}, "tp = 2 must be 1"),
        ([PREFILL, {**DECODE, "initial_instances": 16}], {"max_gpus": 32}, "17 initial instances"),
        (
            [
                {**PREFILL, "weights": "timed"},
                {**DECODE, "weights": "timed", "twin_of": None},
            ],
            {"host_copies": "one"},
            "host_copies = 'one': no pool has weights = 'flow'",
        ),
        ([PREFILL, DECODE], {"host_copies": "two"}, "host_copies"),
        ([PREFILL, DECODE], {"network": "blitzscale-c"}, "blitzscale-c.*did you mean"),
    ],
)
def test_impossible_weights_are_refused(pools: Any, changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scenario(pools, **changes)


def test_multicast_times_are_the_planners_and_those_of_the_formula() -> None:
    for name in scenario_names():
        of = load_scenario(name)
        for pool in of.fleet.pools:
            if pool.speculative is None and pool.load_s is None:
                formula = load_times_s(pool.llm, pool.gpu, pool.tp, of.network)
                assert pool_load_times_s(of, pool) == pytest.approx(formula), name
    # The planner knows what the GPUs of a machine share; the formula has links only.
    shared = {"network.host_network_bytes_per_s": 1e9, "network.startup_s": 0}
    of = load_scenario(SMALL_WORLD, **shared)
    pool = of.fleet.pools[0]
    weights = llm_card(pool.llm).weight_bytes
    assert pool_load_times_s(of, pool)["multicast"] == pytest.approx(weights / 1e9, rel=1e-6)
    assert load_times_s(pool.llm, pool.gpu, pool.tp, of.network)["multicast"] < 2
    # A machine smaller than an instance.
    assert planned_load_s(of.network, 1, 2, weights, 32) == pytest.approx(weights / 1e9, rel=1e-6)
