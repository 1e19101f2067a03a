"""Split phases by hand, docs/engine.md section 12, on both engines.

Slot 0 prefills, slot 1 decodes, each on a host of its own; a link moves a million bytes per microsecond,
one byte per picosecond, and a token's KV is one byte.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llmscale_env.sim.spec import (
    ClusterSpec,
    InstanceState,
    NetworkSpec,
    PoolPhase,
    PoolSpec,
    PreemptionMode,
    ProfileSpec,
    RequestState,
    RouterKind,
    RouteSpec,
)
from tests.refusals import refuses
from tests.small_clusters import Engine, column, pool, profile, run, seen, table, times


def network(slots: int, capacity: int = 10**6) -> NetworkSpec:
    """One slot per host, a link each way."""
    return NetworkSpec(
        np.full(2 * slots, capacity),
        out_links=tuple((2 * i,) for i in range(slots)),
        in_links=tuple((2 * i + 1,) for i in range(slots)),
        local_out_links=((),) * slots,
        local_in_links=((),) * slots,
    )


def cluster(
    *,
    prefill: dict[str, Any] | None = None,
    decode: dict[str, Any] | None = None,
    times_of: ProfileSpec | None = None,
    capacity: int = 10**6,
    decode_kind: int = RouterKind.JSQ_REQUESTS,
    **changes: Any,
) -> ClusterSpec:
    pools: tuple[PoolSpec, ...] = (
        pool(pull=(), phase=PoolPhase.PREFILL, **(prefill or {})),
        pool(pull=(), phase=PoolPhase.DECODE, **(decode or {})),
    )
    slots = sum(p.n_slots for p in pools)
    route = RouteSpec(RouterKind.JSQ_REQUESTS, (0,), decode_pools=(1,), decode_kind=decode_kind)
    fields: dict[str, Any] = {
        "profiles": (times_of or profile(),),
        "pools": pools,
        "routes": ((route,),),
        "half_block_tokens": 0,
        "gpus_per_host": 1,
        "network": network(slots, capacity),
    }
    return ClusterSpec(**(fields | changes))


def test_prefill_flow_decode(engine_class: Engine) -> None:
    engine = run(engine_class, cluster(), table((0, 10, 3)), 36)
    # Prefill 5 + 30. The first token is out; 11 tokens wait to be copied, 11 are reserved.
    assert column(engine, "state") == [RequestState.HANDOVER]
    assert seen(engine, 0, "running", "kv_tokens", "kv_held") == (0, 11, 11)
    assert seen(engine, 1, "waiting", "in_flight", "landed", "kv_tokens") == (0, 1, 0, 11)
    engine.advance(47)
    # 11 bytes in 11 ps: landed at 46, admitted in the wake-up of that time.
    assert seen(engine, 0, "kv_tokens", "kv_held") == (0, 0)
    assert seen(engine, 1, "in_flight", "landed", "running", "kv_tokens") == (0, 0, 1, 11)
    engine.advance(1000)
    # Decode 10 + 1 + 22 = 33 and 35.
    assert times(engine, 0) == (0, 35, 46 + 33 + 35, 46 + 33 - 35)
    assert column(engine, "instance") == [1]
    assert seen(engine, 1, "kv_tokens", "iterations", "tokens") == (0, 2, 2)


def test_one_token_never_leaves_the_prefill_instance(engine_class: Engine) -> None:
    engine = run(engine_class, cluster(), table((0, 10, 1)), 100)
    assert times(engine, 0) == (0, 35, 35, -1)
    assert column(engine, "instance") == [0]
    assert seen(engine, 0, "kv_tokens") == (0,)


def test_two_flows_share_a_link(engine_class: Engine) -> None:
    engine = run(engine_class, cluster(), table((0, 10, 2), (0, 10, 2)), 87)
    # Prefilled together in 65; 22 bytes over one link take until 87.
    assert seen(engine, 1, "in_flight", "landed") == (2, 0)
    engine.advance(88)
    assert seen(engine, 1, "in_flight", "running") == (0, 2)
    engine.advance(200)
    assert column(engine, "finished_ps") == [87 + 10 + 2 + 44] * 2


def test_without_a_network_flows_take_no_time(engine_class: Engine) -> None:
    engine = run(engine_class, cluster(network=None), table((0, 10, 2), (0, 10, 2)), 200)
    assert column(engine, "finished_ps") == [65 + 56] * 2


def test_the_own_queue_waits_for_memory(engine_class: Engine) -> None:
    """Of 25 tokens the first takes 11, and the second asks for its context and one more."""
    spec = cluster(times_of=profile(kv_capacity_tokens=25))
    engine = run(engine_class, spec, table((0, 10, 5), (0, 12, 3)), 72)
    # 11 + 13 + 1 <= 25.
    assert seen(engine, 1, "waiting", "in_flight", "kv_tokens") == (0, 2, 24)
    engine = run(engine_class, spec, table((0, 10, 5), (0, 13, 3)), 76)
    assert seen(engine, 1, "waiting", "in_flight", "kv_tokens") == (1, 1, 11)
    assert engine.own_queue(1) == [1]
    assert seen(engine, 0, "kv_held") == (25,)
    engine.advance(10**4)
    # The first finishes with 4 more tokens: only then there is room.
    first, second = times(engine, 0), times(engine, 1)
    assert first[2] == 74 + 11 + 33 + 35 + 37 + 39
    assert second[2] == first[2] + 14 + (10 + 1 + 28) + (10 + 1 + 30)


@pytest.mark.parametrize("capacity, reserved", [(23, False), (24, True)])
def test_the_iteration_under_way_is_allowed_for(
    engine_class: Engine, capacity: int, reserved: bool
) -> None:
    """Whoever comes while others decode leaves room for the tokens that are being made."""
    spec = cluster(times_of=profile(kv_capacity_tokens=capacity))
    engine = engine_class(spec, table((0, 10, 9), (15, 10, 2)))
    # 0 decodes from 46 on; 1 is prefilled from 35 to 70. Asked for then: 11 tokens of 0 and one that is
    # being made, 11 of 1 and its next one.
    engine.advance(71)
    assert seen(engine, 1, "waiting", "in_flight") == ((0, 1) if reserved else (1, 0))


def test_without_candidate_it_waits_in_the_decode_gateway(engine_class: Engine) -> None:
    spec = cluster(decode={"initial_active": 0, "load_ps": (100, 0, 0)})
    engine = run(engine_class, spec, table((0, 10, 2), (0, 5, 2)), 60)
    assert engine.decode_gateway(0) == [0, 1]
    assert engine.gateway(0) == []
    assert seen(engine, 0, "kv_held", "kv_tokens") == (17, 17)
    engine.set_target(1, 1)
    engine.advance(161)
    assert engine.decode_gateway(0) == []
    assert seen(engine, 1, "in_flight") == (2,)
    engine.advance(1000)
    assert column(engine, "state") == [RequestState.FINISHED] * 2


def test_a_draining_prefill_instance_stays_until_all_is_copied(engine_class: Engine) -> None:
    engine = run(engine_class, cluster(), table((0, 10, 2)), 40)
    engine.drain(0)
    engine.advance(46)
    assert seen(engine, 0, "state") == (InstanceState.DRAINING,)
    engine.advance(47)
    assert seen(engine, 0, "state") == (InstanceState.OFF,)
    engine.advance(1000)
    assert column(engine, "state") == [RequestState.FINISHED]


def test_a_draining_decode_instance_serves_what_is_on_its_way(engine_class: Engine) -> None:
    spec = cluster(
        decode={"n_slots": 2, "initial_active": 1}, times_of=profile(kv_capacity_tokens=19)
    )
    engine = run(engine_class, spec, table((0, 8, 3), (0, 9, 3)), 60)
    assert seen(engine, 1, "waiting", "in_flight") == (1, 1)
    engine.drain(1)
    # The one without reservation goes back to the gateway.
    assert engine.decode_gateway(0) == [1]
    engine.advance(1000)
    assert seen(engine, 1, "state") == (InstanceState.OFF,)
    assert column(engine, "state") == [RequestState.FINISHED, RequestState.HANDOVER]
    engine.set_target(1, 1)
    engine.advance(2000)
    assert column(engine, "state") == [RequestState.FINISHED] * 2


def test_a_failing_prefill_instance_takes_the_kv_with_it(engine_class: Engine) -> None:
    spec = cluster(prefill={"repair_ps": 10})
    engine = run(engine_class, spec, table((0, 10, 3)), 40)
    engine.fail(0)
    assert column(engine, "state") == [RequestState.GATEWAY]
    assert column(engine, "emitted_tokens") == [0]
    assert seen(engine, 1, "in_flight", "kv_tokens") == (0, 0)
    assert seen(engine, 0, "kv_tokens", "kv_held") == (0, 0)
    engine.advance(1000)
    # Repaired at 50, prefilled at 85 (the gap since the first token at 35 is 50), copied at 96.
    assert times(engine, 0) == (0, 35, 96 + 33 + 35, 50)
    assert column(engine, "restarts") == [1]


def test_a_failing_decode_instance_sends_back_what_had_not_landed(engine_class: Engine) -> None:
    spec = cluster(decode={"n_slots": 2, "initial_active": 2}, network=network(3, 10**5))
    engine = run(engine_class, spec, table((0, 10, 3)), 40)
    assert seen(engine, 1, "in_flight") == (1,)
    engine.fail(1)
    assert seen(engine, 1, "in_flight", "kv_tokens") == (0, 0)
    assert seen(engine, 2, "in_flight", "kv_tokens") == (1, 11)
    engine.advance(10**4)
    # 11 bytes anew from 40 on, 10 ps each; nothing is prefilled again.
    assert times(engine, 0) == (0, 35, 40 + 110 + 33 + 35, 40 + 110 + 33 - 35)
    assert column(engine, "restarts") == [0]


def test_what_decodes_starts_again_after_a_failure(engine_class: Engine) -> None:
    spec = cluster(decode={"n_slots": 2, "initial_active": 2})
    engine = run(engine_class, spec, table((0, 10, 3)), 80)
    assert column(engine, "emitted_tokens") == [2]
    engine.fail(1)
    assert column(engine, "state") == [RequestState.OWN_QUEUE]
    assert engine.own_queue(0) == [0]
    engine.advance(10**4)
    # Prefilled from 80 to 115 (36 after its last token), copied at 126; the gap of 44 comes twice.
    assert times(engine, 0)[2:] == (126 + 33 + 35, 44)
    assert column(engine, "restarts") == [1]


@pytest.mark.parametrize("mode", PreemptionMode)
def test_memory_overflow_on_a_decode_instance(engine_class: Engine, mode: int) -> None:
    spec = cluster(
        times_of=profile(kv_capacity_tokens=26), decode={"preemption": mode, "host_kv_bytes": 100}
    )
    engine = run(engine_class, spec, table((0, 10, 9), (0, 10, 9)), 204)
    # Landed at 87 with 11 tokens each; after two iterations (56, 60) 26 are full, and the second gives way.
    assert column(engine, "preemptions") == [0, 1]
    assert column(engine, "state") == [RequestState.RUNNING, RequestState.PREEMPTED]
    engine.advance(10**5)
    assert column(engine, "state") == [RequestState.FINISHED] * 2
    assert column(engine, "emitted_tokens") == [9, 9]
    # What it lost it prefills itself.
    prefills = engine.reports()["prefill_requests"].tolist()
    assert prefills == [2, 1 if mode == PreemptionMode.RECOMPUTE else -1]


def test_impossible_clusters_are_refused() -> None:
    good = cluster()
    for changes, message in (
        ({"evicts": True}, r"pools\[1\].evicts: not in a DECODE pool"),
        ({"static_batch": True}, "static_batch: not in a DECODE pool"),
        ({"chunk_tokens": 8}, "chunk_tokens = 8: must be 0"),
        ({"phase": 3}, r"pools\[1\].phase = 3"),
        ({"phase": PoolPhase.BOTH}, "pool 1 is no DECODE pool"),
    ):
        refuses(message, good.with_pool, 1, **changes)
    refuses("pulls from no queue", lambda: replace(good, queue_llm=(0,)).with_pool(1, pull=(0,)))
    route = good.routes[0][0]
    for changed, message in (
        ({"decode_pools": ()}, "decode_pools: must not be empty"),
        ({"pools": (1,)}, "pool 1 is a DECODE pool"),
        ({"decode_kind": RouterKind.SHARED_QUEUE}, "decode_kind = "),
        ({"decode_kind": RouterKind.BEST_FIT}, "placement: BEST_FIT needs one"),
    ):
        refuses(message, lambda new: replace(good, routes=((replace(route, **new),),)), changed)
    refuses("a row for each of 2 slots", lambda: replace(good, network=network(3)))


def test_orders_that_a_phase_cannot_carry_out(engine_class: Engine) -> None:
    engine = run(engine_class, cluster(), table((0, 10, 3), (0, 10, 3)), 10)
    for instance in (0, 1):
        refuses("nothing to evict", engine.evict, instance, 1)
    refuses("decodes only", engine.move_waiting, 0, 1, 1)
    refuses("only where phase is BOTH", engine.set_operations, 0, evicts_in_order=True)
    refuses("must be one of", engine.set_decode_router, 0, 0, RouterKind.SHARED_QUEUE)
