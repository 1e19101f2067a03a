"""Weights that flow, homes of copies, twins: docs/engine.md section 15, by hand and as laws.

A link moves one byte per picosecond. Slots sit on hosts of their own and are joined by a link out and a link
in each; the weights are 12 bytes in 3 layers, so that a layer takes 4 ps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llmscale_env.sim.reference import ReferenceEngine
from llmscale_env.sim.spec import (
    FROM_SSD,
    NEVER,
    NO_SOURCE,
    ClusterSpec,
    InstanceState,
    LoadSource,
    NetworkSpec,
    PoolPhase,
    PoolSpec,
    RequestState,
    RouterKind,
    RouteSpec,
)
from tests.engine_cases import run_case
from tests.small_clusters import column, pool, profile, queued, seen, swapping, table, times
from tests.test_engines_agree import broken_law
from tests.weight_cases import WEIGHT_MECHANISMS, make_weight_case, mechanisms

ENGINES = (ReferenceEngine,)
Engine = Callable[..., Any]
every = pytest.mark.parametrize("engine_class", ENGINES)

BYTE_PER_PS = 10**6
OFF, ACQUIRING, LOADING, ACTIVE, DRAINING = InstanceState
NOBODY = table((10**6, 1, 1))
"""Requests of a cluster that is only looked at while it loads."""


def network(hosts: tuple[int, ...], **speeds: int) -> NetworkSpec:
    """Per slot a link out, in, from host memory and from SSD; per host one out, in, and from SSD to memory.

    Args:
        hosts: of every slot; two on one are twins.
        speeds: bytes per microsecond by table, where it is not a byte per picosecond.
    """
    capacity: list[int] = []

    def rows(name: str, n: int) -> tuple[tuple[int, ...], ...]:
        first = len(capacity)
        capacity.extend([speeds.get(name, BYTE_PER_PS)] * n)
        return tuple((first + k,) for k in range(n))

    slots = ("out_links", "in_links", "from_host_links", "from_ssd_links")
    tables = {name: rows(name, max(hosts) + 1) for name in slots}
    tables = {name: tuple(table[h] for h in hosts) for name, table in tables.items()}
    for name in ("host_out_links", "host_in_links", "ssd_host_links"):
        tables[name] = rows(name, max(hosts) + 1)
    local = {name: ((),) * len(hosts) for name in ("local_out_links", "local_in_links")}
    return NetworkSpec(capacity=np.array(capacity), **tables, **local)


def flowing(**changes: Any) -> PoolSpec:
    """Four slots, the first of them active."""
    fields = {"n_slots": 4, "pull": (), "weight_bytes": 12, "layers": 3}
    return pool(**(fields | changes))


def cluster(*pools: PoolSpec, speeds: dict[str, int] | None = None, **changes: Any) -> ClusterSpec:
    pools = pools or (flowing(),)
    owners = [p for p in pools if p.twin_of < 0]
    n = sum(p.n_slots for p in owners)
    # Pools with a twin stand first, their twins at the end.
    hosts = (*range(n), *(k for p in pools if p.twin_of >= 0 for k in range(p.n_slots)))
    fields: dict[str, Any] = {
        "profiles": (profile(),),
        "pools": pools,
        "routes": ((RouteSpec(RouterKind.JSQ_REQUESTS, (0,)),),),
        "half_block_tokens": 0,
        "gpus_per_host": 1,
        "network": network(hosts, **(speeds or {})),
        "host_keep_alive_ps": 0,
    }
    return ClusterSpec(**(fields | changes))


def layers(engine: Any) -> list[int]:
    return engine.loading()["layers_loaded"].tolist()


def states(engine: Any) -> list[int]:
    return engine.instances()["state"].tolist()


def active_from(engine: Any, instances: range, until_ps: int = 200) -> list[int]:
    """When each of these becomes ACTIVE, the engine being advanced a picosecond at a time."""
    found: dict[int, int] = {}
    while engine.now_ps < until_ps:
        engine.advance(engine.now_ps + 1)
        for i in instances:
            if engine.instances()["state"][i] == ACTIVE:
                found.setdefault(i, engine.now_ps - 1)
    return [found.get(i, -1) for i in instances]


# --- layers ---


@every
def test_a_chain_forwards_each_layer_as_soon_as_it_has_come(engine_class: Engine) -> None:
    engine = engine_class(cluster(), NOBODY)
    engine.scale([1, 2, 3], [0, 1, 2])
    engine.advance(9)
    # At 8 the second layer has come to slot 1, the first to slot 2.
    assert layers(engine) == [3, 2, 1, 0]
    assert engine.loading()["load_from"].tolist() == [NO_SOURCE, 0, 1, 2]
    assert seen(engine, 1, "source", "loaded_ps") == (LoadSource.MULTICAST, -1)
    # One layer behind the other: 12, 16 and 20, not 12, 24 and 36.
    assert active_from(engine, range(1, 4)) == [12, 16, 20]


@every
def test_a_fan_out_shares_the_source_s_link(engine_class: Engine) -> None:
    engine = engine_class(cluster(speeds={"out_links": 3 * 10**6, "in_links": 10**7}), NOBODY)
    engine.scale([1, 2, 3], [0, 0, 0])
    assert active_from(engine, range(1, 4)) == [12, 12, 12]
    engine = engine_class(cluster(speeds={"out_links": 3 * 10**6, "in_links": 10**7}), NOBODY)
    engine.scale([1], [0])
    # Alone the layer's 4 bytes take ceil(4 / 3) = 2.
    assert active_from(engine, range(1, 2)) == [6]


@every
def test_layers_differ_by_a_byte_at_most(engine_class: Engine) -> None:
    # 11 bytes in 3 layers: 3, 4, 4.
    engine = engine_class(cluster(flowing(weight_bytes=11)), NOBODY)
    engine.scale([1], [0])
    engine.advance(4)
    assert layers(engine)[1] == 1
    engine.advance(8)
    assert layers(engine)[1] == 2
    assert active_from(engine, range(1, 2)) == [11]


@every
def test_weights_and_kv_share_a_link(engine_class: Engine) -> None:
    prefill = flowing(n_slots=2, initial_active=1, phase=PoolPhase.PREFILL)
    decode = pool(pull=(), phase=PoolPhase.DECODE)
    route = RouteSpec(RouterKind.JSQ_REQUESTS, (0,), decode_pools=(1,))
    engine = engine_class(cluster(prefill, decode, routes=((route,),)), table((0, 10, 2)))
    # Prefilled at 35: 11 bytes of KV to slot 2, over slot 0's link out.
    engine.advance(33)
    engine.scale([1], [0])
    # Alone for 2 ps, then both at half a byte per ps: the first layer's other 2 bytes until 39, the second
    # layer until 47, the third until 55. The KV has 1 byte left at 55 and was 10 bytes on its way.
    engine.advance(56)
    assert states(engine) == [ACTIVE, ACTIVE, ACTIVE]
    assert seen(engine, 2, "in_flight", "running") == (1, 0)
    engine.advance(57)
    # Alone again: the last byte takes 1 ps.
    assert seen(engine, 2, "in_flight", "running") == (0, 1)


@every
def test_a_source_that_disappears(engine_class: Engine) -> None:
    engine = engine_class(cluster(), NOBODY)
    engine.scale([1, 2], [0, 1])
    engine.advance(10)
    assert layers(engine) == [3, 2, 1, 0]
    engine.fail(1)
    # Slot 2 keeps its layer, loses half of the second, and takes it again from slot 0: 14, 18. Slot 1
    # loads anew, from SSD as its pool does.
    assert engine.loading()["load_from"].tolist() == [NO_SOURCE, FROM_SSD, 0, NO_SOURCE]
    assert layers(engine) == [3, 0, 1, 0]
    assert active_from(engine, range(1, 3)) == [22, 18]


@every
def test_a_source_that_is_active_may_drain_but_not_turn_off(engine_class: Engine) -> None:
    engine = engine_class(cluster(), table((0, 1, 2)))
    engine.scale([1], [0])
    engine.advance(2)
    engine.drain(0)
    # Prefill until 8, decode 10 + 1 + 4 = 15 until 23: it goes on sending until then.
    assert active_from(engine, range(1, 2)) == [12]
    engine = engine_class(cluster(), table((0, 1, 1)))
    engine.scale([1], [0])
    engine.advance(2)
    engine.drain(0)
    engine.advance(9)
    # Off at 8, when the second layer had just come: it ends first, as flows do. SSD serves the third.
    assert states(engine)[:2] == [OFF, LOADING]
    assert engine.loading()["load_from"][1] == n_slots_plus_host(engine, 0)
    assert active_from(engine, range(1, 2)) == [12]


def n_slots_plus_host(engine: Any, host: int) -> int:
    return FROM_SSD if engine.spec.host_keep_alive_ps == 0 else engine.spec.n_instances + host


@every
def test_the_fewest_layers_are_cancelled_first(engine_class: Engine) -> None:
    engine = engine_class(cluster(), NOBODY)
    engine.scale([3, 1, 2], [0, 3, 3])
    engine.advance(10)
    assert layers(engine) == [3, 0, 0, 2]
    order = []
    for count in (3, 2, 1):
        before = states(engine)
        engine.set_target(0, count)
        order.append(next(i for i in range(4) if states(engine)[i] != before[i]))
    # Slots 1 and 2 share slot 3's link and have none yet: the higher one first.
    assert order == [2, 1, 3]


@every
def test_what_waits_for_a_cancelled_slot_goes_elsewhere(engine_class: Engine) -> None:
    engine = engine_class(cluster(flowing(acquire_ps=5)), NOBODY)
    engine.scale([1, 2], [0, 1])
    engine.advance(3)
    engine.fail(1)
    # Slot 2 was to load from slot 1; it finds out at 5 and takes slot 0.
    assert engine.loading()["load_from"].tolist()[:3] == [NO_SOURCE, FROM_SSD, NO_SOURCE]
    engine.advance(6)
    assert engine.loading()["load_from"][2] == 0
    assert active_from(engine, range(2, 3)) == [17]


@every
def test_the_gateway_waits_for_the_last_layer(engine_class: Engine) -> None:
    engine = engine_class(cluster(flowing(initial_active=0)), table((0, 2, 1)))
    engine.set_target(0, 1)
    engine.advance(100)
    assert times(engine, 0)[:2] == (12, 12 + 11)


# --- sources ---


@every
@pytest.mark.parametrize(
    "source, code, loaded_ps",
    [(LoadSource.SSD, -1, 24), (LoadSource.HOST, -1, 24), (LoadSource.MULTICAST, 0, 12)],
)
def test_the_sources_of_set_target(
    engine_class: Engine, source: int, code: int, loaded_ps: int
) -> None:
    engine = engine_class(cluster(speeds={"from_ssd_links": 500_000}), NOBODY)
    engine.set_target(0, 2, source)
    assert engine.loading()["load_from"][1] == code
    assert active_from(engine, range(1, 2)) == [loaded_ps]


@every
def test_the_nearest_source_is_on_the_same_host(engine_class: Engine) -> None:
    net = network((0, 1, 2, 3))
    tables = ("host_out_links", "host_in_links", "ssd_host_links")
    net = replace(net, **{name: getattr(net, name)[:2] for name in tables})
    engine = engine_class(cluster(network=net, gpus_per_host=2), NOBODY)
    engine.scale([3], [FROM_SSD])
    engine.advance(13)
    engine.set_target(0, 4, LoadSource.MULTICAST)
    # Slot 1 sits beside slot 0, slot 2 beside slot 3.
    assert engine.loading()["load_from"].tolist() == [NO_SOURCE, 0, 3, FROM_SSD]


@every
def test_host_memory_serves_its_own_host_and_as_a_home_all(engine_class: Engine) -> None:
    spec = cluster(flowing(initial_active=0), homes=(1,), speeds={"host_out_links": 500_000})
    engine = engine_class(spec, NOBODY)
    engine.set_target(0, 3, LoadSource.MULTICAST)
    # Slot 1 sits on the home; slots 0 and 2 share its host's link out: a quarter byte per ps each.
    assert engine.loading()["load_from"].tolist() == [5, 5, 5, NO_SOURCE]
    assert seen(engine, 0, "source") == (LoadSource.HOST,)
    assert active_from(engine, range(3)) == [48, 12, 48]
    engine = engine_class(replace(spec, homes=()), NOBODY)
    engine.set_target(0, 1, LoadSource.MULTICAST)
    assert engine.loading()["load_from"][0] == FROM_SSD


@every
def test_every_host_may_have_a_copy_at_the_start(engine_class: Engine) -> None:
    spec = cluster(host_cache_at_start=True, host_keep_alive_ps=int(NEVER))
    engine = engine_class(spec, NOBODY)
    engine.set_target(0, 2, LoadSource.HOST)
    assert engine.loading()["load_from"][1] == 5
    engine.fail_host(1)
    # What it had is lost: its slot loads from SSD.
    assert engine.loading()["load_from"][1] == FROM_SSD
    engine = engine_class(replace(spec, host_keep_alive_ps=20), NOBODY)
    engine.advance(21)
    engine.set_target(0, 2, LoadSource.HOST)
    assert engine.loading()["load_from"][1] == FROM_SSD


@every
def test_a_copy_may_be_given_up_while_it_is_loaded_from(engine_class: Engine) -> None:
    spec = cluster(host_cache_at_start=True, host_keep_alive_ps=3)
    engine = engine_class(spec, NOBODY)
    engine.set_target(0, 2, LoadSource.HOST)
    assert active_from(engine, range(1, 2)) == [12]


# --- homes ---


@every
def test_a_host_fails_and_the_copy_is_restored_elsewhere(engine_class: Engine) -> None:
    engine = engine_class(cluster(homes=(2,), speeds={"host_in_links": 500_000}), NOBODY)
    engine.set_target(0, 3, LoadSource.SSD)
    engine.advance(5)
    engine.fail_host(2)
    # Slot 2 had a layer and loads anew. Host 0 has slot 0, which is active: no time, but an event.
    assert layers(engine) == [3, 1, 0, 0]
    assert engine.homes().tolist() == [(0, False)]
    engine.advance(6)
    assert engine.homes().tolist() == [(0, True)]
    engine.fail_host(0)
    # The next home is host 1, whose slot is still loading, and nobody is active: from SSD in 12.
    engine.advance(17)
    assert engine.homes().tolist() == [(1, False)]
    engine.advance(18 + 1)
    assert engine.homes().tolist() == [(1, True)]


@every
def test_a_restored_copy_comes_from_a_slot_and_starts_again_if_that_fails(
    engine_class: Engine,
) -> None:
    spec = cluster(flowing(n_slots=5, initial_active=0, repair_ps=100), homes=(3,))
    engine = engine_class(spec, NOBODY)
    engine.scale([4], [FROM_SSD])
    engine.advance(13)
    engine.fail_host(3)
    # To host 0 from slot 4 in 12 ps, until 25.
    assert engine.homes().tolist() == [(0, False)]
    engine.scale([1], [5 + 0])
    engine.advance(20)
    assert layers(engine) == [0, 0, 0, 0, 3]  # slot 1 waits for the copy
    engine.fail(4)
    # From SSD now, all of it: until 32.
    engine.advance(32)
    assert engine.homes().tolist() == [(0, False)]
    engine.advance(33)
    assert engine.homes().tolist() == [(0, True)]
    assert active_from(engine, range(1, 2)) == [32 + 12]


@every
def test_who_loads_from_a_failed_host_s_memory_goes_elsewhere(engine_class: Engine) -> None:
    engine = engine_class(cluster(homes=(1,)), NOBODY)
    engine.scale([2, 3], [4 + 1, 2])
    engine.advance(5)
    engine.fail_host(1)
    # Slot 2 has a layer, and takes the second again, from slot 0.
    assert engine.loading()["load_from"].tolist()[2:] == [0, 2]
    assert active_from(engine, range(2, 4)) == [13, 17]


@every
def test_a_failed_host_s_instances_find_nothing_in_its_memory(engine_class: Engine) -> None:
    one = flowing(initial_active=2, load_source=LoadSource.HOST)
    engine = engine_class(cluster(one, host_keep_alive_ps=int(NEVER)), NOBODY)
    engine.fail(0)
    assert engine.loading()["load_from"][0] == 4
    engine.fail_host(1)
    assert engine.loading()["load_from"][1] == FROM_SSD
    # Nor afterwards, as if its instance had just gone.
    engine.fail(1)
    assert engine.loading()["load_from"][1] == FROM_SSD


@every
def test_a_source_that_swaps_to_another_llm_is_gone(engine_class: Engine) -> None:
    row = (RouteSpec(RouterKind.SHARED_QUEUE, (), queue=0),)
    spec = cluster(
        flowing(n_slots=2, initial_active=0), swapping(), routes=(row, row), queue_llm=(-1,)
    )
    engine = engine_class(spec, table((5, 4, 1, 0, 1)))
    engine.scale([0], [2])
    engine.advance(6)
    assert seen(engine, 2, "state", "llm") == (LOADING, 1)
    assert (engine.loading()["load_from"][0], layers(engine)[0]) == (FROM_SSD, 1)


@every
def test_new_homes_are_spread(engine_class: Engine) -> None:
    route = RouteSpec(RouterKind.JSQ_REQUESTS, ())
    pools = tuple(flowing(llm=m, n_slots=1, initial_active=0) for m in range(4))
    routes = tuple((replace(route, pools=(m,)),) for m in range(4))
    engine = engine_class(cluster(*pools, routes=routes, homes=(0, 1, 0, 0)), NOBODY)
    engine.fail_host(0)
    # Host 1 has one already: 2, 3, then 1 as the lowest of three with one each.
    assert engine.homes()["host"].tolist() == [2, 1, 3, 1]


@every
def test_requests_of_a_failed_host_are_served_elsewhere(engine_class: Engine) -> None:
    spec = cluster(flowing(initial_active=2, repair_ps=50), homes=(0,))
    engine = engine_class(spec, table(*((0, 2, 5) for _ in range(6))))
    engine.advance(30)
    engine.fail_host(0)
    assert seen(engine, 1, "waiting", "running") == (3, 3)
    engine.advance(10**4)
    assert column(engine, "state") == [RequestState.FINISHED] * 6
    assert column(engine, "restarts") == [1, 0] * 3
    assert engine.homes().tolist() == [(1, True)]


@every
def test_a_failed_host_loses_saved_kv_and_warm_weights(engine_class: Engine) -> None:
    one = pool(batch_limit=1, pull=(0, 1), evicts_in_order=True)
    engine = engine_class(queued(one), table((0, 4, 10, 1), (20, 4, 30, 0)))
    engine.advance(40)
    # Request 0 has made way, its KV is in host memory; its instance is failed with its host.
    assert seen(engine, 0, "host_kv_bytes") == (6,)
    engine.drain(0)
    engine.advance(1900)
    assert states(engine) == [OFF]
    assert seen(engine, 0, "host_kv_bytes") == (6,)
    engine.fail_host(0)
    assert seen(engine, 0, "host_kv_bytes") == (0,)
    engine.set_target(0, 1)
    engine.advance(2000)
    assert times(engine, 0)[3] == 1900 + 23 - 38  # 6 tokens prefilled


@every
@pytest.mark.parametrize("fails, ready_ps", [(False, 40), (True, 140)])
def test_a_failed_host_s_warm_weights_are_fetched_again(
    engine_class: Engine, fails: bool, ready_ps: int
) -> None:
    engine = engine_class(queued(swapping(warm=(1,)), n_llms=2), table((10, 4, 1, 0, 1)))
    if fails:
        engine.fail_host(0)
    engine.advance(1000)
    assert times(engine, 0)[0] == 10 + ready_ps


# --- twins ---


def twins(**changes: Any) -> ClusterSpec:
    """Prefill slots 0 and 1, decode slot 2, and the prefill slots' twins 3 and 4, which decode."""
    first = flowing(n_slots=2, initial_active=2, phase=PoolPhase.PREFILL)
    decode = flowing(n_slots=1, phase=PoolPhase.DECODE)
    second = replace(first, phase=PoolPhase.DECODE, twin_of=0, initial_active=0)
    route = RouteSpec(RouterKind.JSQ_REQUESTS, (0,), decode_pools=(1, 2))
    return cluster(first, decode, second, routes=((route,),), **changes)


def test_twins_sit_on_the_same_gpus() -> None:
    spec = twins()
    assert spec.host_of_slot == (0, 1, 2, 0, 1)
    assert spec.twin_of_slot == (3, 4, -1, 0, 1)
    assert spec.active_at_start == (True, True, True, False, False)
    both = spec.with_pool(0, initial_active=1).with_pool(2, initial_active=1)
    assert both.active_at_start == (True, False, True, False, True)


@every
def test_an_idle_instance_mutates_at_once(engine_class: Engine) -> None:
    engine = engine_class(twins(max_gpus=3), NOBODY)
    engine.mutate(1)
    assert states(engine) == [ACTIVE, OFF, ACTIVE, OFF, ACTIVE]
    assert layers(engine) == [3, 0, 3, 0, 3]
    # The twin's GPUs are taken.
    assert engine.set_target(0, 2) == 1
    with pytest.raises(ValueError, match="twin 4 is not OFF"):
        engine.scale([1], [0])
    engine.advance(10)
    assert engine.gpu_ps() == [10, 10, 10]
    engine.mutate(4)
    assert states(engine) == [ACTIVE, ACTIVE, ACTIVE, OFF, OFF]


@every
def test_a_busy_instance_mutates_when_its_work_is_done(engine_class: Engine) -> None:
    engine = engine_class(twins(), table((0, 10, 4), (1, 10, 4), (2, 10, 2)))
    engine.advance(20)
    # Requests 0 and 2 at slot 0 (prefilled one after the other), 1 at slot 1.
    engine.mutate(0)
    assert states(engine)[0] == DRAINING
    assert engine.set_target(2, 1) == 1
    # Request 2 has gone to slot 1. Prefill until 35; of 11 bytes of KV to slot 2 one goes alone, the others
    # share its link in with those of request 1: until 56.
    engine.advance(56)
    assert states(engine)[0] == DRAINING
    engine.advance(57)
    assert states(engine) == [OFF, ACTIVE, ACTIVE, ACTIVE, OFF]
    engine.advance(10**4)
    assert column(engine, "state") == [RequestState.FINISHED] * 3
    assert column(engine, "instance")[2] == 3


@every
def test_a_mutation_is_called_off_by_a_target(engine_class: Engine) -> None:
    engine = engine_class(twins(), table((0, 10, 4)))
    engine.advance(20)
    engine.mutate(0)
    engine.set_target(0, 2)
    engine.advance(10**4)
    assert states(engine) == [ACTIVE, ACTIVE, ACTIVE, OFF, OFF]
    engine.drain(0)
    assert states(engine) == [OFF, ACTIVE, ACTIVE, OFF, OFF]
    engine = engine_class(twins(), table((0, 10, 4)))
    engine.advance(20)
    engine.mutate(0)
    engine.fail(0)
    engine.advance(10**4)
    assert states(engine) == [OFF, ACTIVE, ACTIVE, OFF, OFF]


@every
def test_flows_go_on_from_the_twin(engine_class: Engine) -> None:
    engine = engine_class(twins().with_pool(1, initial_active=0), NOBODY)
    engine.scale([2], [1])
    engine.advance(6)
    engine.mutate(1)
    assert engine.loading()["load_from"][2] == 4
    assert active_from(engine, range(2, 3)) == [12]


# --- what is refused ---


@every
@pytest.mark.parametrize(
    "slots, sources, error",
    [
        ([1], [0, 0], "sources: 2 of them for 1 slots"),
        ([4], [0], r"slots\[0\] = 4: must be an integer in 0\.\.3"),
        ([0], [-1], r"slots\[0\] = 0: is ACTIVE, must be OFF"),
        ([1, 1], [0, 0], r"slots\[1\] = 1: it or its twin comes twice"),
        ([1], [8], r"sources\[0\] = 8: must be an integer in -1\.\.7"),
        ([1], [5], r"sources\[0\] = 5: host 1 has no such weights"),
        ([1], [2], r"sources\[0\] = 2: must be of LLM 0, and not OFF"),
        ([1, 2], [2, 0], r"sources\[0\] = 2: must be of LLM 0, and not OFF"),
        ([1], [1], r"sources\[0\] = 1: must be of LLM 0, and not OFF"),
        ([1, 2, 3], [0, 0, 0], "slots: 3 GPUs, but max_gpus = 3 and 1 are held"),
    ],
)
def test_scale_refuses(
    engine_class: Engine, slots: list[int], sources: list[int], error: str
) -> None:
    engine = engine_class(cluster(max_gpus=3), NOBODY)
    with pytest.raises(ValueError, match=error):
        engine.scale(slots, sources)
    assert states(engine) == [ACTIVE, OFF, OFF, OFF]
    engine.scale([2, 1], [0, 2])
    assert states(engine) == [ACTIVE, LOADING, LOADING, OFF]


@every
def test_commands_refuse(engine_class: Engine) -> None:
    engine = engine_class(cluster(flowing(weight_bytes=0), pool(pull=())), NOBODY)
    with pytest.raises(ValueError, match="weight_bytes of its pool is 0"):
        engine.scale([1], [0])
    with pytest.raises(ValueError, match="has no twin"):
        engine.mutate(0)
    with pytest.raises(ValueError, match=r"host = 9: must be an integer in 0\.\.4"):
        engine.fail_host(9)
    with pytest.raises(ValueError, match="instance = 3: is OFF, must be ACTIVE"):
        engine_class(twins(), NOBODY).mutate(3)


@pytest.mark.parametrize(
    "change, error",
    [
        (lambda: cluster(flowing(layers=0)), r"pools\[0\]\.layers = 0"),
        (lambda: cluster(flowing(weight_bytes=2**50)), r"pools\[0\]\.weight_bytes"),
        (lambda: cluster(network=None), "needs a network"),
        (lambda: cluster(flowing(), flowing(layers=2)), "in 3 layers; .* in 2 of the same LLM"),
        (lambda: cluster(homes=(4,)), r"homes\[0\] = 4"),
        (lambda: cluster(homes=(0, 0)), "homes: 2 of them for 1 LLMs"),
        (lambda: cluster(flowing(weight_bytes=0), homes=(0,)), "no pool of this LLM has"),
        (lambda: twins().with_pool(2, twin_of=2), "must be another pool"),
        (lambda: twins().with_pool(2, n_slots=1), "n_slots = 1, must be 2 as there"),
        (lambda: twins().with_pool(2, initial_active=1), "more than 2 slots"),
    ],
)
def test_impossible_clusters_are_refused(change: Callable[[], Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        change()


def test_impossible_links_are_refused() -> None:
    spec = cluster()
    assert spec.network is not None
    with pytest.raises(ValueError, match=r"network\.from_host_links: .* each of 4 slots"):
        replace(spec, network=replace(spec.network, from_host_links=((0,),)))
    with pytest.raises(ValueError, match=r"in_links: .* are among host_out_links"):
        replace(spec.network, host_out_links=spec.network.in_links)
    twin = twins()
    assert twin.network is not None
    rows = twin.network.out_links
    with pytest.raises(ValueError, match=r"network\.out_links: slots of pools\[2\] and its twin"):
        replace(twin, network=replace(twin.network, out_links=(*rows[:4], rows[3])))


# --- laws, on generated cases ---


class Watched(ReferenceEngine):
    """Looks at every change of flows."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.moved: Counter[int] = Counter()
        self.volume: dict[int, int] = {}
        network = self.network
        share, start, end = network._share, network.start, network._end

        def watched_share(now_ps: int) -> None:
            share(now_ps)
            load: Counter[int] = Counter()
            users: Counter[int] = Counter()
            for flow in network.flows.values():
                for link in flow.path:
                    load[link] += flow.rate
                    users[link] += 1
            for link, rate in load.items():
                assert rate <= max(network.capacity[link], users[link])

        def watched_start(number: int, path: Any, volume: int, then: Any) -> None:
            slot = number - len(self.requests)
            if 0 <= slot < len(self.all_instances):
                self.check_layer(slot)
            self.volume[number] = volume
            self.moved[number] = self.clock.now
            start(number, path, volume, then)

        def watched_end(number: int) -> None:
            flow = network.flows[number]
            if flow.path:
                fastest = min(network.capacity[link] for link in flow.path)
                least_ps = -(-self.volume[number] * 10**6 // max(fastest, 1))
                assert self.clock.now - self.moved[number] >= least_ps
            end(number)

        network._share, network.start, network._end = watched_share, watched_start, watched_end

    def check_layer(self, slot: int) -> None:
        """The layer that begins to flow is at its source."""
        loader = self.all_instances[slot].loader
        if 0 <= loader.source < len(self.all_instances):
            source = self.all_instances[loader.source]
            assert source.llm == self.all_instances[slot].llm
            assert source.state in (ACTIVE, DRAINING) or source.loader.layers > loader.layers


def broken_weight_law(case: Any, trace: Any) -> str | None:
    """The first snapshot at which slots or homes are impossible."""
    spec = case.spec
    pools = [spec.pools[p] for p in spec.pool_of_slot]
    there: dict[str, dict[str, Any]] = {}
    for label, name, value in trace.snapshots:
        there.setdefault(label, {})[name] = value
    for label, at in there.items():
        fleet, weights = at["instances"], at["loading"]
        has, state = weights["layers_loaded"], fleet["state"]
        all_layers = np.array([p.layers for p in pools])
        flows = np.array([p.weight_bytes > 0 for p in pools])
        serving = np.isin(state, [ACTIVE, DRAINING])
        laws = {
            "who serves has all layers": bool((has[serving] == all_layers[serving]).all()),
            # Once the leader has failed its helper becomes active with the next event.
            "who loads lacks one, or works for another": label.startswith("after")
            or bool(((has < all_layers) | (weights["partner"] >= 0))[state == LOADING].all()),
            "who is off has none": bool((has[state == OFF] == 0).all()),
            "who loads has a source": bool(
                (weights["load_from"][flows & (state == LOADING)] > -2).all()
            ),
            "one of two twins is off": all(
                state[i] == OFF or twin < 0 or state[twin] == OFF
                for i, twin in enumerate(spec.twin_of_slot)
            ),
            "homes are kept": all(
                (a >= 0) == (b >= 0)
                for a, b in zip(spec.homes or at["homes"]["host"], at["homes"]["host"], strict=True)
            ),
        }
        for law, holds in laws.items():
            if not holds:
                return f"{label}: {law}"
    return None


@pytest.mark.parametrize("first", range(0, 100, 50))
def test_laws_of_generated_cases(first: int) -> None:
    reached: set[str] = set()
    for seed in range(first, first + 50):
        case = make_weight_case(seed)
        engine, trace = run_case(Watched, case)
        assert (broken := broken_law(case, trace)) is None, f"seed {seed}: {broken}"
        assert (broken := broken_weight_law(case, trace)) is None, f"seed {seed}: {broken}"
        reached |= mechanisms(engine, case, trace, WEIGHT_MECHANISMS)
    often = {"layer_flows", "layer_waits", "source_changed", "fail_host", "mutated", "scaled"}
    assert not often - reached


def test_nobody_loads_for_ever() -> None:
    """With no more commands every loading ends, chains and restored copies included."""
    for seed in range(60):
        case = make_weight_case(seed)
        engine, _ = run_case(ReferenceEngine, case)
        engine.advance(2**61)  # links may be slow
        assert not np.isin(states(engine), [ACQUIRING, LOADING]).any(), seed
        assert all(home < 0 or there for home, there in engine.homes().tolist()), seed
