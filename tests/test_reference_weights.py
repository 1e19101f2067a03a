"""Weights that flow, homes of copies, twins: docs/engine.md section 15, by hand (laws: `weight_laws`).

A link moves one byte per picosecond. Slots sit on hosts of their own and are joined by a link out and a link
in each; the weights are 12 bytes in 3 layers, so that a layer takes 4 ps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

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
from tests.small_clusters import (
    Engine,
    column,
    pool,
    profile,
    queued,
    run,
    seen,
    swapping,
    table,
    times,
)

BYTE_PER_PS = 10**6
OFF, ACQUIRING, LOADING, ACTIVE, DRAINING, DONATING = InstanceState
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


def test_a_fan_out_shares_the_source_s_link(engine_class: Engine) -> None:
    engine = engine_class(cluster(speeds={"out_links": 3 * 10**6, "in_links": 10**7}), NOBODY)
    engine.scale([1, 2, 3], [0, 0, 0])
    assert active_from(engine, range(1, 4)) == [12, 12, 12]
    engine = engine_class(cluster(speeds={"out_links": 3 * 10**6, "in_links": 10**7}), NOBODY)
    engine.scale([1], [0])
    # Alone the layer's 4 bytes take ceil(4 / 3) = 2.
    assert active_from(engine, range(1, 2)) == [6]


def test_layers_differ_by_a_byte_at_most(engine_class: Engine) -> None:
    # 11 bytes in 3 layers: 3, 4, 4.
    engine = engine_class(cluster(flowing(weight_bytes=11)), NOBODY)
    engine.scale([1], [0])
    engine.advance(4)
    assert layers(engine)[1] == 1
    engine.advance(8)
    assert layers(engine)[1] == 2
    assert active_from(engine, range(1, 2)) == [11]


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


def test_the_gateway_waits_for_the_last_layer(engine_class: Engine) -> None:
    engine = engine_class(cluster(flowing(initial_active=0)), table((0, 2, 1)))
    engine.set_target(0, 1)
    engine.advance(100)
    assert times(engine, 0)[:2] == (12, 12 + 11)


# --- sources ---


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


def test_every_host_may_have_a_copy_at_the_start(engine_class: Engine) -> None:
    spec = cluster(host_cache_at_start=True, host_keep_alive_ps=int(NEVER))
    engine = engine_class(spec, NOBODY)
    engine.set_target(0, 2, LoadSource.HOST)
    assert engine.loading()["load_from"][1] == 5
    engine.fail_host(1)
    # What it had is lost: its slot loads from SSD.
    assert engine.loading()["load_from"][1] == FROM_SSD
    engine = run(engine_class, replace(spec, host_keep_alive_ps=20), NOBODY, 21)
    engine.set_target(0, 2, LoadSource.HOST)
    assert engine.loading()["load_from"][1] == FROM_SSD


def test_a_copy_may_be_given_up_while_it_is_loaded_from(engine_class: Engine) -> None:
    spec = cluster(host_cache_at_start=True, host_keep_alive_ps=3)
    engine = engine_class(spec, NOBODY)
    engine.set_target(0, 2, LoadSource.HOST)
    assert active_from(engine, range(1, 2)) == [12]


# --- homes ---


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


def test_who_loads_from_a_failed_host_s_memory_goes_elsewhere(engine_class: Engine) -> None:
    engine = engine_class(cluster(homes=(1,)), NOBODY)
    engine.scale([2, 3], [4 + 1, 2])
    engine.advance(5)
    engine.fail_host(1)
    # Slot 2 has a layer, and takes the second again, from slot 0.
    assert engine.loading()["load_from"].tolist()[2:] == [0, 2]
    assert active_from(engine, range(2, 4)) == [13, 17]


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


def test_new_homes_are_spread(engine_class: Engine) -> None:
    route = RouteSpec(RouterKind.JSQ_REQUESTS, ())
    pools = tuple(flowing(llm=m, n_slots=1, initial_active=0) for m in range(4))
    routes = tuple((replace(route, pools=(m,)),) for m in range(4))
    engine = engine_class(cluster(*pools, routes=routes, homes=(0, 1, 0, 0)), NOBODY)
    engine.fail_host(0)
    # Host 1 has one already: 2, 3, then 1 as the lowest of three with one each.
    assert engine.homes()["host"].tolist() == [2, 1, 3, 1]


def test_requests_of_a_failed_host_are_served_elsewhere(engine_class: Engine) -> None:
    spec = cluster(flowing(initial_active=2, repair_ps=50), homes=(0,))
    engine = run(engine_class, spec, table(*((0, 2, 5) for _ in range(6))), 30)
    engine.fail_host(0)
    assert seen(engine, 1, "waiting", "running") == (3, 3)
    engine.advance(10**4)
    assert column(engine, "state") == [RequestState.FINISHED] * 6
    assert column(engine, "restarts") == [1, 0] * 3
    assert engine.homes().tolist() == [(1, True)]


def test_a_failed_host_loses_saved_kv_and_warm_weights(engine_class: Engine) -> None:
    one = pool(batch_limit=1, pull=(0, 1), evicts_in_order=True)
    engine = run(engine_class, queued(one), table((0, 4, 10, 1), (20, 4, 30, 0)), 40)
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


@pytest.mark.parametrize("fails, ready_ps", [(False, 40), (True, 140)])
def test_a_failed_host_s_warm_weights_are_fetched_again(
    engine_class: Engine, fails: bool, ready_ps: int
) -> None:
    engine = engine_class(queued(swapping(warm=(1,)), n_llms=2), table((10, 4, 1, 0, 1)))
    if fails:
        engine.fail_host(0)
    engine.advance(1000)
    assert times(engine, 0)[0] == 10 + ready_ps
