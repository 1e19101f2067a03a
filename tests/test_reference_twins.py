"""Twins that share GPUs, and what is refused where weights flow: docs/engine.md section 15, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from llmscale_env.sim.spec import (
    FROM_SSD,
    ClusterSpec,
    PoolPhase,
    RequestState,
    RouterKind,
    RouteSpec,
)
from tests.refusals import refuses
from tests.small_clusters import Engine, column, pool, run, table
from tests.test_reference_weights import (
    ACTIVE,
    DRAINING,
    LOADING,
    NOBODY,
    OFF,
    active_from,
    cluster,
    flowing,
    layers,
    states,
)

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


def test_an_idle_instance_mutates_at_once(engine_class: Engine) -> None:
    engine = engine_class(twins(max_gpus=3), NOBODY)
    engine.mutate(1)
    assert states(engine) == [ACTIVE, OFF, ACTIVE, OFF, ACTIVE]
    assert layers(engine) == [3, 0, 3, 0, 3]
    # The twin's GPUs are taken.
    assert engine.set_target(0, 2) == 1
    refuses("twin 4 is not OFF", engine.scale, [1], [0])
    engine.advance(10)
    assert engine.gpu_ps() == [10, 10, 10]
    engine.mutate(4)
    assert states(engine) == [ACTIVE, ACTIVE, ACTIVE, OFF, OFF]


def test_a_busy_instance_mutates_when_its_work_is_done(engine_class: Engine) -> None:
    engine = run(engine_class, twins(), table((0, 10, 4), (1, 10, 4), (2, 10, 2)), 20)
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


def test_a_mutation_is_called_off_by_a_target(engine_class: Engine) -> None:
    engine = run(engine_class, twins(), table((0, 10, 4)), 20)
    engine.mutate(0)
    engine.set_target(0, 2)
    engine.advance(10**4)
    assert states(engine) == [ACTIVE, ACTIVE, ACTIVE, OFF, OFF]
    engine.drain(0)
    assert states(engine) == [OFF, ACTIVE, ACTIVE, OFF, OFF]
    engine = run(engine_class, twins(), table((0, 10, 4)), 20)
    engine.mutate(0)
    engine.fail(0)
    engine.advance(10**4)
    assert states(engine) == [OFF, ACTIVE, ACTIVE, OFF, OFF]


def test_flows_go_on_from_the_twin(engine_class: Engine) -> None:
    engine = engine_class(twins().with_pool(1, initial_active=0), NOBODY)
    engine.scale([2], [1])
    engine.advance(6)
    engine.mutate(1)
    assert engine.loading()["load_from"][2] == 4
    assert active_from(engine, range(2, 3)) == [12]


def test_a_copy_that_comes_from_a_twin_starts_again_if_that_fails(engine_class: Engine) -> None:
    first = flowing(n_slots=3, initial_active=0, phase=PoolPhase.PREFILL)
    second = replace(first, phase=PoolPhase.DECODE, twin_of=0)
    route = RouteSpec(RouterKind.JSQ_REQUESTS, (0,), decode_pools=(1,))
    engine = engine_class(cluster(first, second, routes=((route,),), homes=(1,)), NOBODY)
    engine.scale([2], [FROM_SSD])
    engine.advance(13)
    engine.fail_host(1)
    engine.advance(15)  # to host 0 from slot 2 in 12 ps, until 25
    engine.mutate(2)
    assert states(engine)[2::3] == [OFF, ACTIVE]
    engine.advance(20)
    engine.fail(5)
    engine.advance(32)  # from SSD now, all of it: until 32
    assert engine.homes().tolist() == [(0, False)]
    engine.advance(33)
    assert engine.homes().tolist() == [(0, True)]


# --- what is refused ---


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
    refuses(error, engine.scale, slots, sources)
    assert states(engine) == [ACTIVE, OFF, OFF, OFF]
    engine.scale([2, 1], [0, 2])
    assert states(engine) == [ACTIVE, LOADING, LOADING, OFF]


def test_commands_refuse(engine_class: Engine) -> None:
    engine = engine_class(cluster(flowing(weight_bytes=0), pool(pull=())), NOBODY)
    refuses("weight_bytes of its pool is 0", engine.scale, [1], [0])
    refuses("has no twin", engine.mutate, 0)
    refuses(r"host = 9: must be an integer in 0\.\.4", engine.fail_host, 9)
    refuses("instance = 3: is OFF, must be ACTIVE", lambda: engine_class(twins(), NOBODY).mutate(3))


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
    refuses(error, change)


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
