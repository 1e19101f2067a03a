"""Split phases, best fit and placement by command from a scenario's YAML to a policy's command."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmscale_env.control.command import Command, CommandError
from llmscale_env.control.reward import serving_cost_gpu_s
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.scenarios import validate_scenario
from llmscale_env.sim.compile import compile_cluster
from llmscale_env.sim.linear import linear_times
from llmscale_env.sim.spec import PoolPhase, RequestState, RouterKind
from llmscale_env.workload.requests import PS_PER_S, RequestTable
from tests.small_clusters import profile
from tests.small_tables import requests_of

LLM = "llama-3.1-8b"
PREFILL = {
    "name": "prefill",
    "llm": LLM,
    "v1": None,
    "max_instances": 2,
    "initial_instances": 1,
    "phase": "prefill",
    "batch_limit": 64,
    "max_batch": 64,
}
DECODE = {**PREFILL, "name": "decode", "phase": "decode", "drifts": [1.5]}
ROUTE = {"kind": "jsq-requests", "pools": ["prefill"], "decode_pools": ["decode"]}


def scenario(pools: Any = (PREFILL, DECODE), route: Any = ROUTE, **changes: Any) -> Any:
    fleet = {"max_gpus": 8, "gpus_per_host": 2, "pools": list(pools), "routes": [route]}
    fields = {"name": "split", "workload": {}, "fleet": fleet, "impossible_commands": "error"}
    return validate_scenario(fields | changes)


def requests(n: int = 8, output: int = 20) -> RequestTable:
    return requests_of(scenario(), np.linspace(0, 0.5, n), 300, output)


def started(of: Any, table: RequestTable | None = None) -> ClusterSimulation:
    simulation = ClusterSimulation(of)
    simulation.start(0, requests() if table is None else table)
    return simulation


def test_links_from_the_network() -> None:
    spec = compile_cluster(scenario(network={"host_network_bytes_per_s": 25e9}))
    network = spec.network
    assert network is not None
    assert [pool.phase for pool in spec.pools] == [PoolPhase.PREFILL, PoolPhase.DECODE]
    # Slots 0 and 1 share host 0, 2 and 3 host 1: two links of the host each, four per slot.
    assert len(network.capacity) == 2 * 2 + 4 * 4
    shared = [network.out_links[i][1] for i in range(4)]
    assert shared[0] == shared[1] != shared[2] == shared[3]
    assert network.capacity[shared[0]] == 25_000
    # 100 Gbit/s between hosts, 1600 within one, per GPU.
    assert network.capacity[network.out_links[0][0]] == 12_500
    assert network.capacity[network.local_in_links[3][0]] == 200_000
    whole = scenario([{**PREFILL, "phase": "both"}], {"pools": ["prefill"]})
    assert compile_cluster(whole).network is None


@pytest.mark.parametrize(
    "pools, route, message",
    [
        ((PREFILL,), {"pools": ["prefill"]}, "hands its requests over"),
        ((PREFILL, DECODE), {**ROUTE, "pools": ["decode"]}, "is a decode pool"),
        ((PREFILL, DECODE), {**ROUTE, "decode_pools": ["prefill"]}, "is no decode pool"),
        (({**PREFILL, "evicts": True}, DECODE), ROUTE, "evicts: not together with phase"),
        ((PREFILL, {**DECODE, "chunk_tokens": 64}), ROUTE, "chunk_tokens: not together"),
        ((PREFILL, {**DECODE, "drifts": [0]}), ROUTE, "drifts"),
        ((PREFILL, DECODE), {**ROUTE, "placement": {"gamma": 2}}, "gamma"),
    ],
)
def test_impossible_scenarios_are_refused(pools: Any, route: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scenario(pools, route)


def test_linear_times_of_a_linear_profile_are_its_own() -> None:
    assert linear_times(profile(), 16) == (5.0, 3.0, 10.0, 1.0, 2.0)
    doubled = profile().slower(2)
    assert linear_times(doubled, 16) == (10.0, 6.0, 20.0, 2.0, 4.0)
    assert doubled.kv_capacity_tokens == 1000
    with pytest.raises(ValueError, match="batch_limit = 17"):
        linear_times(profile(), 17)


def test_a_placement_is_derived_from_class_and_times() -> None:
    route = {"kind": "best-fit", "pools": ["prefill"], "placement": {"theta": 0.5, "ttft_s": 2.0}}
    spec = compile_cluster(scenario([{**PREFILL, "phase": "both"}], route))
    placement = spec.routes[0][0].placement
    assert placement is not None
    assert (placement.theta, placement.ttft_ps) == (0.5, 2 * PS_PER_S)
    assert placement.itl_ps == round(scenario().classes[0].itl_s * PS_PER_S)
    expected = linear_times(spec.profiles[0], 64)
    assert placement.model == expected
    # Times of an 8B on an A100: some 10 ms per decode iteration, a tenth of a millisecond per prompt token.
    assert 2e9 < expected[2] < 5e10
    assert 1e7 < expected[1] < 2e8


def test_an_episode_with_split_phases() -> None:
    simulation = started(scenario())
    simulation.advance()
    states = simulation.engine.results(0)["state"]
    assert (states == RequestState.FINISHED).all()
    assert set(simulation.engine.results(0)["instance"].tolist()) == {2}
    assert simulation.view(0).instances["iterations"][0] > 0


def test_a_policy_places_what_is_held() -> None:
    route = {**ROUTE, "kind": "hold", "decode_kind": "hold"}
    simulation = started(scenario(route=route))
    simulation.advance()
    view = simulation.view(0)
    assert view.gateway(LLM) == tuple(range(8))
    seen = view.under_way
    assert seen.movable.all()
    assert (seen.instance == -1).all()
    assert len(seen) == 8
    with pytest.raises(KeyError, match="there are"):
        view.gateway("unknown")
    assert simulation.apply(0, Command(assign=([3, 1], [0, 0]))) == 0
    assert simulation.view(0).own_queue(0) == (3, 1)
    simulation.advance()
    view = simulation.view(0)
    assert view.gateway(LLM, prefilled=True) == (1, 3)  # prefilled together: in order of id
    report = view.reports[0]
    assert (report["prefill_requests"], report["prefill_tokens"]) == (2, 600)
    seen = view.under_way
    handed = seen.state == RequestState.HANDOVER
    assert seen.request_id[handed].tolist() == [1, 3]
    assert seen.emitted_tokens[handed].tolist() == [1, 1]
    assert not np.isnan(seen.first_token_s[handed]).any()
    simulation.apply(0, Command(assign=([1, 3], [2, 2]), predictions=([1], [50])))
    seen = simulation.view(0).under_way
    assert seen.predicted_output_tokens[seen.request_id == 1].tolist() == [50]
    assert not seen.movable[seen.instance == 2].any()  # memory is reserved for both
    simulation.advance()
    results = simulation.engine.results(0)
    assert np.flatnonzero(results["state"] == RequestState.FINISHED).tolist() == [1, 3]
    with pytest.raises(CommandError, match="assign: requests: 1 is in no gateway"):
        simulation.apply(0, Command(assign=([1], [0])))
    assert Command(assign=([1], [0])).to_dict() == {"assign": 1}


def test_rules_can_be_changed_by_command() -> None:
    route = {**ROUTE, "kind": "hold", "placement": {}}
    simulation = started(scenario(route=route))
    simulation.advance()
    simulation.apply(
        0,
        Command(
            routers={c.name: "best-fit" for c in scenario().classes},
            decode_routers={scenario().classes[0].name: "best-fit"},
            placement={
                scenario().classes[0].name: {"gamma": 0.25, "itl_s": 0.5, "fallback": "least"}
            },
            placement_models={2: (0.01, 1e-4, 0.01, 1e-5, 1e-8)},
            drift={2: 1.5},
            route_gateway=(LLM,),
        ),
    )
    now = simulation.engine.placement(0, 0, 0)
    assert now is not None
    assert (now.gamma, now.itl_ps, now.fallback) == (0.25, PS_PER_S // 2, 1)
    assert simulation.engine.states.fit[0, 2]["c3"] == 0.01 * PS_PER_S
    assert int(simulation.engine.states.route[0, 0, 0]["decode_kind"]) == RouterKind.BEST_FIT
    simulation.advance()
    assert (simulation.engine.results(0)["state"] == RequestState.FINISHED).all()
    # A drifted worker's iterations take half as long again.
    report = simulation.view(0).reports[2]
    spec = simulation.engine.spec
    built = spec.profiles[spec.pools[1].profile]
    b, context = int(report["decode_requests"]), int(report["decode_context"])
    once = int(built.decode_base_ps[b]) + int(built.decode_per_token_ps[b]) * context
    assert report["decode_s"] * PS_PER_S / once == pytest.approx(1.5, rel=1e-4)
    for bad, message in (
        (Command(drift={2: 3.0}), "must be one of"),
        (Command(drift={0: 1.5}), "must be one of"),
        (Command(placement={scenario().classes[0].name: {"gamma": 3}}), "gamma"),
        (Command(placement_models={9: None}), "instance = 9"),
        (Command(decode_routers={scenario().classes[0].name: "shared-queue"}), "is unknown"),
        (Command(route_gateway=("nobody",)), "is unknown"),
        (Command(predictions=([0], [0])), "predictions"),
    ):
        with pytest.raises(CommandError, match=message):
            simulation.apply(0, bad)


def test_leftover_work_of_handed_over_requests_is_decoding_only() -> None:
    route = {**ROUTE, "decode_kind": "hold"}
    simulation = started(scenario(route=route), requests(1))
    simulation.advance()
    _, per_output = np.array(serving_cost_gpu_s(simulation.scenario)).T
    assert simulation.leftover_gpu_s(0) == pytest.approx(19 * per_output[0])
