"""LLMs that take turns on an instance, computed by hand from docs/engine.md section 9, both engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llmscale_env.sim.fast import FastEngine
from llmscale_env.sim.reference import ReferenceEngine
from llmscale_env.sim.reference.weights.host_memory import HostWeights
from llmscale_env.sim.spec import (
    InstanceState,
    LoadSource,
    PreemptionMode,
    PullRule,
    RequestState,
    SwapSpec,
)
from llmscale_env.workload.requests import RequestTable
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

TURNS = table((0, 4, 2, 0, 0), (0, 4, 2, 0, 1))
"""A request of LLM 0, which is done at 38, and one of LLM 1 behind it."""


def engine_of(engine_class: Engine, requests: RequestTable, n_llms: int = 2, **changes: Any) -> Any:
    """One instance (its pool changed so) that serves `n_llms` LLMs."""
    moving = profile(swap_out_ps_per_token=1, swap_in_ps_per_token=2)
    one = swapping(n_llms, **changes)
    return engine_class(queued(one, n_llms=n_llms, profiles=(moving,)), requests)


# --- how long a swap takes ---


def test_warm(engine_class: Engine) -> None:
    engine = engine_of(engine_class, TURNS, warm=(1,))
    engine.advance(39)
    assert seen(engine, 0, "state", "llm", "source", "loaded_ps", "swaps") == (
        InstanceState.LOADING,
        1,
        LoadSource.HOST,
        78,
        1,
    )
    engine.advance(1000)
    assert times(engine, 0) == (0, 17, 38, 21)
    assert times(engine, 1) == (78, 95, 116, 21)
    assert seen(engine, 0, "state", "llm", "loaded_ps") == (InstanceState.ACTIVE, 1, -1)


def test_cold(engine_class: Engine) -> None:
    engine = engine_of(engine_class, TURNS)
    engine.advance(39)
    # From storage until 138, then to the GPUs.
    assert seen(engine, 0, "source", "loaded_ps") == (LoadSource.SSD, 178)
    engine.advance(1000)
    assert times(engine, 1)[0] == 178


def test_fetched_ahead(engine_class: Engine) -> None:
    """A list that is set while LLM 0 is served fetches LLM 1 meanwhile."""
    engine = engine_of(engine_class, TURNS)
    engine.advance(1)
    engine.set_pull(0, (0,))
    engine.advance(39)
    assert seen(engine, 0, "source", "loaded_ps") == (LoadSource.SSD, 1 + 100 + 40)
    early = engine_of(engine_class, TURNS, fetch_ps=37)
    early.advance(1)
    early.set_pull(0, (0,))
    early.advance(39)
    # There at 38, as the swap begins.
    assert seen(early, 0, "source", "loaded_ps") == (LoadSource.HOST, 78)


def test_streamed_through_when_host_memory_is_exhausted(engine_class: Engine) -> None:
    requests = table((0, 4, 2, 0, 0), (0, 4, 2, 0, 1), (0, 4, 2, 0, 0))
    engine = engine_of(engine_class, requests, host_weight_bytes=0, warm=(1,))
    engine.advance(1)
    engine.set_pull(0, (0,))  # nothing can be fetched ahead
    engine.advance(39)
    assert seen(engine, 0, "source", "loaded_ps") == (LoadSource.SSD, 178)
    engine.advance(1000)
    # And again on the way back: done at 178 + 38 = 216, there at 356.
    assert times(engine, 1)[2] == 216
    assert times(engine, 2)[0] == 356


def test_an_llm_larger_than_its_share_of_host_memory_is_streamed(engine_class: Engine) -> None:
    swaps = (SwapSpec(0, 0, 5, 100, 40), SwapSpec(1, 0, 9, 100, 40))
    spec = queued(pool(swaps=swaps, host_weight_bytes=8, warm=(1,)), n_llms=2)
    engine = run(engine_class, spec, table((0, 4, 2, 0, 0), (0, 4, 2, 0, 1), (0, 4, 2, 0, 0)), 1000)
    assert times(engine, 1)[0] == 178
    # LLM 0 has stayed: 216 + 40.
    assert times(engine, 2)[0] == 256


@pytest.mark.parametrize("first", [1, 2])
def test_a_fetch_under_way_gives_way_to_another_llm(engine_class: Engine, first: int) -> None:
    """At 38 LLM `first` is swapped to, while LLM 2 is on its way since 1 and LLM 1 would follow."""
    requests = table((0, 4, 2, 0, 0), (0, 4, 1, 1, 1), (0, 4, 1, 2, 2))
    engine = run(engine_class, queued(swapping(3), n_queues=3, n_llms=3), requests, 1)
    engine.set_pull(0, (0, 2, 1))  # LLM 2 until 101, LLM 1 until 201
    engine.advance(20)
    engine.set_pull(0, (0, 1, 2) if first == 1 else (0, 2, 1))  # goes on all the same
    engine.advance(1000)
    if first == 1:
        # Broken off: LLM 1 from 38 to 138, 178; done at 195; LLM 2 from 138 to 238, 278.
        assert column(engine, "admitted_ps") == [0, 178, 278]
    else:
        # 101 + 40 = 141; done at 158; LLM 1 until 201, 241.
        assert column(engine, "admitted_ps") == [0, 241, 141]


def test_the_llm_used_last_stays(engine_class: Engine) -> None:
    """Host memory for two of three: 0, 1, 2, 0, 2, 1."""
    requests = table(*((0, 4, 1, 0, m) for m in (0, 1, 2, 0, 2, 1)))
    engine = engine_of(engine_class, requests, 3, host_weight_bytes=2)
    engine.advance(10**4)
    # Each serves 17. 1 and 2 come cold; 0 was dropped for 2 (1 had been used since), and drops 1; 2 is
    # still there; 1 is not.
    assert column(engine, "admitted_ps") == [0, 157, 314, 471, 528, 685]


def test_weights_outlive_the_instance(engine_class: Engine) -> None:
    engine = engine_of(engine_class, TURNS)
    engine.advance(50)
    assert engine.set_target(0, 0) == 0
    assert seen(engine, 0, "state") == (InstanceState.OFF,)
    assert engine.gpu_ps() == [50]
    engine.advance(60)
    engine.set_target(0, 1)
    assert seen(engine, 0, "llm") == (0,)
    engine.advance(1000)
    # The fetch that began at 38 went on until 138.
    assert times(engine, 1)[0] == 178
    assert engine.gpu_ps() == [50 + 940]


def test_the_other_llm_brings_its_own_profile(engine_class: Engine) -> None:
    slow = profile(prefill_const_ps=1000, kv_capacity_tokens=30)
    swaps = (SwapSpec(0, 0, 1, 0, 40), SwapSpec(1, 1, 1, 0, 40))
    spec = queued(pool(swaps=swaps, warm=(1,)), n_llms=2, profiles=(profile(), slow))
    engine = engine_class(spec, table((0, 4, 2, 0, 0), (0, 4, 1, 0, 1), (0, 30, 1, 0, 1)))
    engine.advance(10**4)
    assert times(engine, 1) == (78, 78 + 1012, 78 + 1012, -1)
    assert column(engine, "state")[2] == RequestState.REJECTED


@pytest.mark.parametrize("watermark", [0, 1])
def test_each_llm_keeps_its_own_share_of_memory_free(engine_class: Engine, watermark: int) -> None:
    swaps = (SwapSpec(0, 0, watermark_tokens=9), SwapSpec(1, 0, watermark_tokens=watermark))
    small = profile(kv_capacity_tokens=20)
    spec = queued(pool(swaps=swaps, warm=(1,)), n_llms=2, profiles=(small,))
    rows = [(0, 5, 3, 0, 0)] * 2 + [(0, 9, 2, 0, 1)] * 2
    engine = run(engine_class, spec, table(*rows), 10**4)
    # 5 + 1 tokens each of LLM 0 would fit into 20, but not with 9 kept free; 9 + 1 each of LLM 1 just fit.
    assert times(engine, 1)[0] == times(engine, 0)[2]
    assert (times(engine, 2)[0] == times(engine, 3)[0]) == (watermark == 0)


def test_the_smallest_memory_that_may_serve_it_decides(engine_class: Engine) -> None:
    swaps = (SwapSpec(1, 1, 1, 0, 40), SwapSpec(0, 1, 1, 0, 40))
    small = replace(pool(llm=1, profile=1), swaps=swaps)
    spec = queued(pool(), small, n_llms=3, profiles=(profile(), profile(kv_capacity_tokens=9)))
    engine = run(engine_class, spec, table((0, 4, 5), (0, 4, 6), (0, 1, 1, 0, 2)), 10**4)
    # 9 tokens fit everywhere, 10 would not everywhere; nobody serves LLM 2.
    assert column(engine, "state") == [
        RequestState.FINISHED,
        RequestState.REJECTED,
        RequestState.REJECTED,
    ]


# --- when it happens, and what becomes of those who run ---

URGENT = table((0, 4, 10, 1, 0), (20, 4, 1, 0, 1))
"""A long one of LLM 0 in queue 1; one of LLM 1 comes to queue 0."""


def test_the_batch_is_served_to_its_end_first(engine_class: Engine) -> None:
    engine = engine_of(engine_class, URGENT, pull=(0, 1), warm=(1,))
    engine.advance(10**4)
    # 17, then nine iterations of 11 + 2 c, c = 5..13: 278.
    assert times(engine, 0) == (0, 17, 278, 37)
    assert times(engine, 1) == (318, 335, 335, -1)
    assert column(engine, "evictions") == [0, 0]


def test_nobody_else_joins_a_batch_that_a_swap_waits_for(engine_class: Engine) -> None:
    requests = table((0, 4, 3, 0, 0), (20, 4, 1, 0, 1), (21, 4, 1, 0, 0))
    engine = engine_of(engine_class, requests, warm=(1,))
    engine.advance(10**4)
    assert column(engine, "admitted_ps") == [0, 101, 158]


@pytest.mark.parametrize("chunk_tokens", [0, 64])
def test_flush(engine_class: Engine, chunk_tokens: int) -> None:
    engine = engine_of(
        engine_class, URGENT, pull=(0, 1), warm=(1,), swap_flushes=True, chunk_tokens=chunk_tokens
    )
    engine.advance(10**4)
    if chunk_tokens:  # mixed iterations of 10 + 3 T
        # Flushed at 22 with one token; 62, 84, 124; then 5 tokens anew: 25.
        assert times(engine, 1) == (62, 84, 84, -1)
        assert times(engine, 0)[3] == 124 + 25 - 22
    else:
        # At 38 it has two tokens, which are prefilled anew after the swaps: 78, 95, 135, 158.
        assert times(engine, 1) == (78, 95, 95, -1)
        assert times(engine, 0) == (0, 17, 158 + 7 * 11 + 2 * sum(range(7, 14)), 120)
    assert column(engine, "evictions") == [1, 0]
    assert seen(engine, 0, "host_kv_bytes", "swaps") == (0, 2)


@pytest.mark.parametrize("case", ["same queue", "earlier queue", "earliest deadline", "one stays"])
def test_who_is_not_flushed(engine_class: Engine, case: str) -> None:
    rows = {
        "same queue": [(0, 4, 10, 0, 0), (20, 4, 1, 0, 1)],
        "earlier queue": [(0, 4, 10, 0, 0), (20, 4, 1, 1, 1)],
        "earliest deadline": [(0, 4, 10, 1, 0), (20, 4, 1, 0, 1)],
        "one stays": [(0, 4, 10, 1, 0), (20, 4, 1, 0, 1), (0, 4, 10, 0, 0)],
    }[case]
    rows.sort()
    rule = PullRule.EARLIEST_DEADLINE if case == "earliest deadline" else PullRule.IN_ORDER
    engine = engine_of(
        engine_class, table(*rows), pull=(0, 1), warm=(1,), swap_flushes=True, pull_rule=rule
    )
    engine.advance(10**4)
    results = engine.results()
    assert results["evictions"].sum() == 0
    assert results["admitted_ps"].max() == 40 + np.sort(results["finished_ps"])[-2]


def test_a_flush_takes_along_who_was_just_taken_back(engine_class: Engine) -> None:
    """Preempted, admitted again and flushed, all while the urgent one waits behind it."""
    spec = queued(
        swapping(pull=(0, 1), warm=(1,), swap_flushes=True, batch_limit=3),
        n_llms=2,
        profiles=(profile(kv_capacity_tokens=16),),
    )
    engine = engine_class(spec, table((0, 4, 6, 0, 0), (0, 4, 8, 1, 0), (140, 5, 6, 0, 1)))
    # 29, then 32, 36, 40 for batches of 10, 12, 14: at 137 both have four tokens and 1 is preempted.
    # Number 0 ends at 137 + 27 + 29 = 193.
    engine.advance(193)
    assert seen(engine, 0, "running", "preempted") == (1, 1)
    engine.advance(194)
    assert seen(engine, 0, "state", "loaded_ps") == (InstanceState.LOADING, 233)
    assert engine.queues() == [[2], [1]]
    assert (column(engine, "preemptions")[1], column(engine, "evictions")[1]) == (1, 1)
    engine.advance(10**4)
    assert times(engine, 2)[:2] == (233, 253)
    assert column(engine, "state") == [RequestState.FINISHED] * 3
    assert column(engine, "emitted_tokens") == [6, 8, 6]


def test_kv_saved_before_survives_the_swap(engine_class: Engine) -> None:
    requests = table((0, 4, 10, 1, 0), (20, 4, 1, 0, 0), (21, 4, 1, 0, 1))
    engine = engine_of(
        engine_class, requests, pull=(0, 1), warm=(1,), batch_limit=1, evicts_in_order=True
    )
    engine.advance(100)
    assert seen(engine, 0, "host_kv_bytes", "llm") == (6, 1)
    engine.advance(10**4)
    # Evicted at 38: 6 + 17 = 61; swap, 101 to 118; swap, 158; restored: 12 + 11 + 12.
    assert times(engine, 1)[:2] == (38, 61)
    assert times(engine, 2)[:2] == (101, 118)
    assert times(engine, 0)[3] == 158 + 35 - 38
    assert seen(engine, 0, "host_kv_bytes") == (0,)


def test_a_swap_waits_for_a_copy_under_way(engine_class: Engine) -> None:
    requests = table((0, 4, 10, 1, 0), (20, 4, 1, 0, 0), (21, 4, 1, 0, 1))
    one = swapping(pull=(0, 1), warm=(1,), batch_limit=1, evicts_in_order=True, async_kv=True)
    slow = profile(swap_out_ps_per_token=10)
    engine = run(engine_class, queued(one, n_llms=2, profiles=(slow,)), requests, 56)
    # The copy takes from 38 to 98; the other request of LLM 0 is done at 38 + 17 = 55.
    assert seen(engine, 0, "loaded_ps", "kv_tokens") == (138, 0)
    engine.advance(10**4)
    assert times(engine, 2)[0] == 138


def test_a_swap_pays_for_kv_that_was_saved(engine_class: Engine) -> None:
    requests = table((0, 4, 10, 1, 0), (20, 4, 1, 0, 1))
    one = swapping(pull=(0, 1), warm=(1,))
    moving = profile(swap_out_ps_per_token=1, swap_in_ps_per_token=2)
    spec = queued(one, n_llms=2, profiles=(moving,), priorities=(0, 1))
    engine = run(engine_class, spec, requests, 21)
    engine.evict(0, 1)
    engine.advance(10**4)
    # At 38 nothing runs any more, and it wakes itself: 38 + 6 + 40.
    assert times(engine, 1)[0] == 84


def test_preempted_requests_come_before_any_swap(engine_class: Engine) -> None:
    spec = queued(
        swapping(warm=(1,), preemption=PreemptionMode.RECOMPUTE),
        n_llms=2,
        profiles=(profile(kv_capacity_tokens=12),),
    )
    engine = run(engine_class, spec, table((0, 4, 4), (0, 4, 4), (0, 4, 1, 0, 1)), 10**4)
    assert column(engine, "preemptions") == [0, 1, 0]
    assert engine.finish_log() == [0, 1, 2]
    assert times(engine, 2)[0] == times(engine, 1)[2] + 40


# --- commands and bills while it swaps ---


def test_billing_goes_on_while_it_swaps(engine_class: Engine) -> None:
    engine = engine_of(engine_class, TURNS, gpus=2)
    for now in (38, 100, 170, 500):
        engine.advance(now)
        assert engine.gpu_ps() == [2 * now]


def test_who_swaps_is_loading_to_every_command(engine_class: Engine) -> None:
    engine = engine_of(engine_class, TURNS)
    engine.advance(50)
    for command, args in (("drain", (0,)), ("evict", (0, 1))):
        with pytest.raises(ValueError, match="LOADING"):
            getattr(engine, command)(*args)
    assert engine.set_target(0, 1) == 0
    engine.set_batch_limit(0, 3)
    engine.advance(1000)
    assert times(engine, 1)[0] == 178
    assert seen(engine, 0, "batch_limit") == (3,)


def test_a_list_without_the_llm_that_it_loads(engine_class: Engine) -> None:
    """The swap is not taken back; what waits then decides about the next one."""
    requests = table((0, 4, 2, 0, 0), (0, 4, 2, 0, 1), (45, 4, 1, 1, 0))
    engine = engine_of(engine_class, requests, warm=(1,), pull=(0,))
    engine.advance(50)
    engine.set_pull(0, (1,))
    engine.advance(1000)
    # At 78 LLM 1 is there, and nothing for it: back to LLM 0 at 118.
    assert column(engine, "admitted_ps") == [0, -1, 118]
    assert engine.queues() == [[1], []]


def test_other_instances_find_the_present_llm_only(engine_class: Engine) -> None:
    """What HOST and MULTICAST mean for an instance that loads while the first one has swapped."""
    second = pool(initial_active=0, load_ps=(500, 300, 200), pull=())
    spec = queued(swapping(warm=(1,)), second, n_llms=2, host_keep_alive_ps=10)
    engine = run(engine_class, spec, TURNS, 38 + 10)
    engine.set_target(1, 1, LoadSource.MULTICAST)
    # Nobody holds LLM 0, but the host has had it until 38.
    assert seen(engine, 1, "source") == (LoadSource.HOST,)
    other = run(engine_class, spec, TURNS, 38 + 11)
    other.set_target(1, 1, LoadSource.MULTICAST)
    assert seen(other, 1, "source") == (LoadSource.SSD,)


# --- host memory ---


def planned(*, n_llms: int = 4, room: int = 3, warm: tuple[int, ...] = ()) -> HostWeights:
    """Weights of `m + 1` bytes for LLM `m`, fetched in 10 (m + 1)."""
    swaps = tuple(SwapSpec(m, 0, m + 1, 10 * (m + 1), 1) for m in range(n_llms))
    return HostWeights(pool(swaps=swaps, host_weight_bytes=room, warm=warm))


def test_what_is_there_at_the_start() -> None:
    assert planned(room=100, warm=(3,)).ready_ps == {0: 0, 3: 0}
    assert planned(room=6, warm=(3, 2, 1)).ready_ps == {0: 0, 3: 0}
    # The one that does not fit is passed over.
    assert planned(room=4, warm=(3, 2)).ready_ps == {0: 0, 2: 0}
    assert planned(room=0, warm=(1,)).ready_ps == {}


def test_what_is_wanted_is_fetched_one_after_the_other() -> None:
    weights = planned(room=100)
    weights.plan(5, [0, 2, 1])
    assert weights.ready_ps == {0: 0, 2: 35, 1: 55}
    # At 20 the other order is wanted: 2 is under way and goes on, 3 comes before 1 now.
    weights.plan(20, [0, 3, 1, 2])
    assert weights.ready_ps == {0: 0, 2: 35, 3: 75, 1: 95}
    # No longer wanted and not there: forgotten, though it was under way.
    weights.plan(30, [0, 1])
    assert weights.ready_ps == {0: 0, 1: 50}


def test_what_is_demanded_breaks_a_fetch_off() -> None:
    weights = planned(room=100)
    weights.plan(0, [0, 2, 1])
    assert weights.ready_ps == {0: 0, 2: 30, 1: 50}
    weights.plan(10, [1, 2], demanded=1)
    assert weights.ready_ps == {0: 0, 1: 30, 2: 60}
    # There already: what is under way goes on.
    weights.plan(31, [0, 2], demanded=0)
    assert weights.ready_ps == {0: 0, 1: 30, 2: 60}
    # Demanded itself.
    weights.plan(40, [2, 0], demanded=2)
    assert weights.ready_ps == {0: 0, 1: 30, 2: 60}


def test_what_has_no_room_is_dropped() -> None:
    weights = planned(room=6, warm=(1, 2))
    weights.used = {1: 1, 2: 2}
    # 3 takes 4 of 6 bytes; of those there 2 (3 bytes) does not fit any more, 1 does.
    weights.plan(100, [3])
    assert weights.ready_ps == {1: 0, 3: 140}


def ready_of(engine: Any, instance: int, now_ps: int) -> dict[int, int]:
    """When each LLM is or will be in host memory; the past does not matter."""
    if isinstance(engine, ReferenceEngine):
        ready = engine.all_instances[instance].weights.ready_ps
    else:
        row = engine.batch.states.host_ready[0, instance].tolist()
        ready = {llm: at for llm, at in enumerate(row) if at >= 0}
    return {llm: max(at, now_ps) for llm, at in ready.items()}


@pytest.mark.parametrize("seed", range(60))
def test_engines_plan_alike(seed: int) -> None:
    """More LLMs in less memory than the generated cases have, and lists that change all the time."""
    rng = np.random.default_rng(seed)
    n_llms = int(rng.integers(3, 7))
    order = rng.permutation(n_llms).tolist()
    pools = []
    for _ in range(int(rng.integers(1, 3))):
        swaps = tuple(
            SwapSpec(m, 0, *(int(x) for x in rng.integers((1, 0, 0), (11, 120, 30))))
            for m in order[: int(rng.integers(2, n_llms + 1))]
        )
        room = int(rng.integers(0, 30))
        warm = tuple(s.llm for s in swaps if rng.random() < 0.3)
        more = {"swap_flushes": bool(rng.integers(2)), "pull_rule": int(rng.integers(2))}
        one = pool(llm=swaps[0].llm, swaps=swaps, host_weight_bytes=room, warm=warm, **more)
        pools.append(replace(one, n_slots=2, batch_limit=2))
    n, n_queues = 60, n_llms + 1
    rows = zip(
        np.sort(rng.integers(0, 3000, n)).tolist(),
        *(rng.integers(1, 8, n).tolist() for _ in range(2)),
        rng.integers(0, n_queues, n).tolist(),
        rng.integers(0, n_llms, n).tolist(),
        strict=True,
    )
    spec = queued(*pools, n_queues=n_queues, n_llms=n_llms)
    requests = table(*rows)
    one, other = ReferenceEngine(spec, requests), FastEngine(spec, requests)
    now = 0
    for _ in range(80):
        now += int(rng.integers(0, 90))
        instance = int(rng.integers(spec.n_instances))
        queues = rng.permutation(n_queues)[: int(rng.integers(1, n_queues + 1))].tolist()
        for engine in (one, other):
            engine.advance(now)
        heads = [q[0] for q in one.queues() if q]
        moved = [heads[int(rng.integers(len(heads)))]] if heads else []
        to = rng.integers(0, n_queues, len(moved)).tolist()
        for engine in (one, other):
            engine.regroup(moved, to)
            engine.set_pull(instance, queues)
        for i in range(spec.n_instances):
            assert ready_of(one, i, now) == ready_of(other, i, now), f"instance {i} at {now}"
        assert np.array_equal(one.results(), other.results()), now
        assert np.array_equal(one.instances(), other.instances()), now
        assert one.queues() == other.queues(), now
    assert one.instances()["swaps"].sum() > 0
