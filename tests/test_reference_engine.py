"""The reference engine on cases computed by hand from docs/engine.md.

Unless a test says otherwise a decode iteration takes 10 + b + 2c ps, a prefill 5 + 3T, a mixed one
10 + 3(b + T) + 2c, and paging rounds nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from llmscale_env.sim.reference import ReferenceEngine
from llmscale_env.sim.reference.serving.routing import OVERFLOW_SALT, splitmix64
from llmscale_env.sim.spec import (
    ClassSpec,
    ClusterSpec,
    ControllerKind,
    InstanceState,
    LoadSource,
    PoolSpec,
    PreemptionMode,
    ProfileSpec,
    RequestState,
    RouterKind,
    RouteSpec,
)
from llmscale_env.workload.requests import RequestTable
from tests import small_clusters
from tests.refusals import refuses
from tests.small_clusters import table, times

INTERACTIVE, BATCH = 0, 1


profile = partial(small_clusters.profile, max_batch=256)


def cluster(
    *pools: PoolSpec,
    routes: tuple[RouteSpec, ...] | None = None,
    profiles: tuple[ProfileSpec, ...] | None = None,
    **changes: Any,
) -> ClusterSpec:
    """One LLM; without pools: one instance; without routes: every pool, round robin."""
    pools = pools or (PoolSpec(0, 0, 1, initial_active=1),)
    routes = routes or (RouteSpec(RouterKind.ROUND_ROBIN, tuple(range(len(pools)))),)
    return ClusterSpec(
        profiles=profiles or (profile(),),
        pools=pools,
        routes=(routes,),
        classes=changes.pop("classes", (ClassSpec(),) * len(routes)),
        half_block_tokens=changes.pop("half_block_tokens", 0),
        **changes,
    )


def predicting(requests: RequestTable, *tokens: int) -> RequestTable:
    return replace(requests, predicted_output_tokens=np.array(tokens))


def run(spec: ClusterSpec, requests: RequestTable, until_ps: int = 10**6) -> ReferenceEngine:
    return small_clusters.run(ReferenceEngine, spec, requests, until_ps)


# --- iterations ---


def test_one_request_alone() -> None:
    engine = run(cluster(), table((100, 4, 3)))
    # Prefill 5 + 3 * 4 = 17; decodes with 5 and 6 tokens: 21 and 23.
    assert times(engine, 0) == (100, 117, 161, 23)
    instance = engine.instances()[0]
    assert (instance["iterations"], instance["tokens"]) == (3, 3)


def test_one_token_is_the_first_and_the_last() -> None:
    assert times(run(cluster(), table((0, 1, 1))), 0) == (0, 8, 8, -1)


def test_two_in_a_batch() -> None:
    engine = run(cluster(), table((0, 4, 3), (7, 2, 2)))
    # The second is prefilled at 17..28, then both decode with 5 + 3 tokens: 12 + 16 = 28.
    assert times(engine, 1) == (17, 28, 56, 28)
    # The first waits for that prefill: 56 - 17 = 39; then it decodes alone with 6: 23.
    assert times(engine, 0) == (0, 17, 79, 39)
    assert engine.finish_log() == [1, 0]


def test_prefill_budget_splits_admissions() -> None:
    pool = PoolSpec(0, 0, 1, initial_active=1, prefill_tokens=6)
    engine = run(cluster(pool), table((0, 4, 2), (0, 2, 2), (0, 1, 2)))
    # 4 + 2 fill the budget; the third is prefilled right after, before anybody decodes.
    assert [times(engine, r)[:2] for r in range(3)] == [(0, 23), (0, 23), (23, 31)]
    # One that is larger than the budget still goes, alone.
    engine = run(cluster(pool), table((0, 9, 1), (0, 1, 1)))
    assert [times(engine, r)[:2] for r in range(2)] == [(0, 32), (32, 40)]


def test_half_a_block_per_request_counts_as_kv_memory() -> None:
    tight = (profile(kv_capacity_tokens=17),)
    requests = table((0, 4, 2), (0, 4, 2))
    # Both need 4 + 1 tokens and twice 3 for rounding: 16 fit into 17, but 18 would not.
    assert times(run(cluster(profiles=tight, half_block_tokens=3), requests), 1)[0] == 0
    assert times(run(cluster(profiles=tight, half_block_tokens=4), requests), 1)[0] > 0


def test_closed_form_equals_step_by_step() -> None:
    n, input_tokens = 300, 7
    engine = run(cluster(), table((0, input_tokens, n + 1)))
    first, c = 5 + 3 * input_tokens, input_tokens + 1
    decode = n * (11 + 2 * c) + 2 * n * (n - 1) // 2
    assert times(engine, 0) == (0, first, first + decode, 11 + 2 * (c + n - 1))


def test_iterations_of_one_picosecond() -> None:
    shortest = profile(
        decode_const_ps=1,
        decode_per_request_ps=0,
        decode_per_token_ps=0,
        prefill_const_ps=1,
        prefill_per_token_ps=0,
    )
    assert times(run(cluster(profiles=(shortest,)), table((0, 4, 5))), 0) == (0, 1, 5, 1)


def test_chunked_prefill() -> None:
    pool = PoolSpec(0, 0, 1, initial_active=1, chunk_tokens=4)
    engine = run(cluster(pool), table((0, 6, 3), (0, 3, 2)))
    # 0..22: 4 of the first prompt. 22..44: its last 2, and 2 of the second. 44..74: the first
    # decodes with 7 tokens beside the last of the second: 10 + 3 * 2 + 14. 74..110: both decode.
    assert times(engine, 0) == (0, 44, 110, 36)
    assert times(engine, 1) == (22, 74, 110, 36)


def test_chunked_pair_and_chunk_terms() -> None:
    mixed = replace(profile(), mixed_pair_ps=100, mixed_chunk_ps=1000)
    pool = PoolSpec(0, 0, 1, initial_active=1, chunk_tokens=4)
    engine = run(cluster(pool, profiles=(mixed,)), table((0, 6, 1)))
    # Chunks of 4 after 0 and of 2 after 4: pairs 4 * 4 and 2 * (8 + 2).
    assert times(engine, 0)[2] == (22 + 1600 + 1000) + (16 + 2000 + 1000)


# --- KV memory ---


def overflowing(mode: PreemptionMode) -> tuple[ClusterSpec, RequestTable]:
    pool = PoolSpec(0, 0, 1, initial_active=1, preemption=mode)
    small = profile(kv_capacity_tokens=12, swap_out_ps_per_token=1, swap_in_ps_per_token=2)
    return cluster(pool, profiles=(small,)), table((0, 4, 4), (0, 4, 4))


def test_preemption_by_recompute() -> None:
    engine = run(*overflowing(PreemptionMode.RECOMPUTE))
    # Both prefilled by 29 and at 12 tokens by 61: the second gives way. The first ends at 109
    # (23 + 25); then the second prefills 6 tokens again (23), and decodes its last (25).
    assert times(engine, 0) == (0, 29, 109, 32)
    assert times(engine, 1) == (0, 29, 157, 132 - 61)
    assert engine.results()["preemptions"].tolist() == [0, 1]


def test_preemption_by_swap() -> None:
    spec, requests = overflowing(PreemptionMode.SWAP)
    engine = run(spec, requests, until_ps=100)
    instance = engine.instances()[0]
    assert (instance["preempted"], instance["host_kv_bytes"], instance["kv_tokens"]) == (1, 6, 7)
    engine.advance(1000)
    # Moving 6 tokens out costs 6 (61 + 23 + 6 = 90), moving them back 12: 115 + 12 + 23 = 150.
    assert times(engine, 0) == (0, 29, 115, 32)
    assert times(engine, 1) == (0, 29, 175, 150 - 61)
    assert engine.instances()[0]["host_kv_bytes"] == 0


def test_no_room_on_the_host_means_recompute() -> None:
    spec, requests = overflowing(PreemptionMode.SWAP)
    recomputed = run(*overflowing(PreemptionMode.RECOMPUTE))
    engine = run(spec.with_pool(0, host_kv_bytes=5), requests)
    assert np.array_equal(engine.results(), recomputed.results())
    assert engine.events["host_full"] == 1


def evicting(**changes: Any) -> ClusterSpec:
    """Interactive requests are routed; batch ones wait in a queue and may be evicted."""
    pool = PoolSpec(0, 0, 1, initial_active=1, batch_limit=1, pull=(0,), evicts=True)
    return cluster(
        replace(pool, **changes),
        routes=(
            RouteSpec(RouterKind.ROUND_ROBIN, (0,)),
            RouteSpec(RouterKind.SHARED_QUEUE, (), queue=0),
        ),
        classes=(ClassSpec(priority=0), ClassSpec(priority=1)),
        queue_llm=(0,),
        profiles=(profile(swap_out_ps_per_token=1, swap_in_ps_per_token=2),),
    )


def test_eviction_and_restore() -> None:
    engine = run(evicting(), table((0, 4, 5, BATCH), (20, 2, 2, INTERACTIVE)), until_ps=60)
    assert engine.queues() == [[0]]
    assert engine.instances()[0]["host_kv_bytes"] == 6
    engine.advance(1000)
    # At 38 the batch request has two tokens and goes: 6 for its KV, 11 for the prompt.
    assert times(engine, 1) == (38, 55, 72, 17)
    # At 72 its 6 tokens come back (12) and it decodes on: 12 + 23, 25, 27.
    assert times(engine, 0) == (0, 17, 159, 107 - 38)
    assert engine.results()["evictions"].tolist() == [1, 0]
    assert engine.results()["preemptions"].tolist() == [0, 0]


def test_nothing_is_evicted_in_vain() -> None:
    """Rule c: with two interactive requests running, evicting the batch one would not do."""
    spec = evicting(batch_limit=2)
    engine = run(spec, table((0, 2, 9, BATCH), (0, 2, 9, 0), (0, 2, 9, 0), (0, 2, 9, 0)), 200)
    # The first in its own queue come before the shared queue, so the batch one never started.
    assert engine.queues() == [[0]]
    assert engine.results()["evictions"].sum() == 0


def test_ordered_eviction_of_all_that_runs_wakes_the_instance_again() -> None:
    spec = evicting(batch_limit=4)
    engine = run(spec, table((0, 4, 5, BATCH), (0, 4, 5, BATCH)), until_ps=30)
    engine.evict(0, 5)
    # Both prompts: 5 + 24 = 29. Both decode from 29: 12 + 2 * 10 = 32. At 61 both are evicted and,
    # as nothing else is to be done, taken back at the same time: 12 out, 24 in, then 12 + 24.
    engine.advance(62)
    assert engine.results()["evictions"].tolist() == [1, 1]
    assert engine.instances()[0]["running"] == 2
    engine.advance(61 + 12 + 24 + 36)
    assert engine.results()["emitted_tokens"].tolist() == [2, 2]
    engine.advance(61 + 12 + 24 + 36 + 1)
    assert engine.results()["emitted_tokens"].tolist() == [3, 3]


def test_copy_saved_on_another_host_is_dropped() -> None:
    def second_host(gpus_per_host: int) -> ReferenceEngine:
        spec = evicting(n_slots=2, initial_active=2, batch_limit=1)
        engine = run(
            replace(spec, gpus_per_host=gpus_per_host),
            # Instance 0 takes the batch request; the first interactive one goes there too.
            table((0, 4, 9, BATCH), (20, 50, 9, 0)),
        )
        assert engine.results()["instance"].tolist() == [1, 0]
        assert engine.instances()["host_kv_bytes"].tolist() == [0, 0]
        return engine

    assert second_host(gpus_per_host=1).events["saved_copy_dropped"] == 1
    assert second_host(gpus_per_host=2).events["restored_by_neighbour"] == 1


def test_watermark_is_kept_free_unless_nothing_runs() -> None:
    small = (profile(kv_capacity_tokens=20),)
    pool = PoolSpec(0, 0, 1, initial_active=1, watermark_tokens=10)
    engine = run(cluster(pool, profiles=small), table((0, 15, 2), (0, 2, 2)))
    assert times(engine, 0)[0] == 0
    assert times(engine, 1)[0] == times(engine, 0)[2]


# --- routing ---


def routed(kind: RouterKind, requests: RequestTable, n: int, **changes: Any) -> list[int]:
    """Instances that arrivals go to, all before any token."""
    spec = cluster(PoolSpec(0, 0, n, initial_active=n), routes=(RouteSpec(kind, (0,)),), **changes)
    return run(spec, requests).results()["instance"].tolist()


def test_round_robin() -> None:
    assert routed(RouterKind.ROUND_ROBIN, table(*[(0, 1, 1)] * 5), 3) == [0, 1, 2, 0, 1]


def test_least_requests() -> None:
    # The third comes when instance 0 has finished its request, and 1 has not.
    requests = table((0, 1, 1), (0, 1, 9), (10, 1, 9), (11, 1, 9), (11, 1, 9))
    assert routed(RouterKind.JSQ_REQUESTS, requests, 2) == [0, 1, 0, 0, 1]


def test_least_predicted_tokens() -> None:
    # Loads: 2 + 9 = 11 on instance 0, 2 + 1 = 3, then 6 on instance 1; on 12 / 11 back to 0.
    requests = predicting(table(*[(0, 1, 1)] * 4), 9, 1, 6, 1)
    assert routed(RouterKind.JSQ_TOKENS, requests, 2) == [0, 1, 1, 0]


def test_a_request_that_outlives_its_prediction_counts_as_nothing_left() -> None:
    # At 90 request 0 has emitted more than predicted on instance 0: less than the idle 1? A tie.
    requests = predicting(table((0, 1, 30), (90, 1, 1)), 1, 1)
    assert routed(RouterKind.JSQ_TOKENS, requests, 2) == [0, 0]


def test_least_kv_in_shares_of_capacity() -> None:
    big, small = profile(kv_capacity_tokens=1000), profile(kv_capacity_tokens=100)
    spec = cluster(
        PoolSpec(0, 0, 1, initial_active=1),
        PoolSpec(0, 1, 1, initial_active=1),
        routes=(RouteSpec(RouterKind.LEAST_KV, (0, 1)),),
        profiles=(big, small),
    )
    # 51 / 1000 and 6 / 100: the third still goes to the larger one.
    engine = run(spec, table((0, 50, 1), (0, 5, 1), (0, 5, 1), (0, 5, 1)))
    assert engine.results()["instance"].tolist() == [0, 1, 0, 0]


def test_splitmix64_known_answers() -> None:
    """First outputs of the generator from seed 0 (Vigna's reference code)."""
    assert splitmix64(0) == 0xE220A8397B1DCDAF
    assert splitmix64(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4


def test_power_of_two() -> None:
    n, load = 5, [0] * 5
    expected = []
    for r in range(20):
        h = splitmix64(r)
        a, b = h % n, (h >> 32) % (n - 1)
        b += b >= a
        low, high = min(a, b), max(a, b)
        chosen = high if load[high] < load[low] else low
        load[chosen] += 1
        expected.append(chosen)
    assert len(set(expected)) == n
    assert routed(RouterKind.POWER_OF_TWO, table(*[(0, 1, 1)] * 20), n) == expected


def affine(share: float = 0.0, queue: int = 0, evicts: bool = False) -> ClusterSpec:
    """Own pool 0 and overflow pool 1 of one instance each, two running requests at most."""
    pool = PoolSpec(0, 0, 1, initial_active=1, batch_limit=2, pull=(0,), evicts=evicts)
    return cluster(
        pool,
        pool,
        routes=(
            RouteSpec(
                RouterKind.CLASS_AFFINE, (0,), overflow=(1,), queue=queue, overflow_share=share
            ),
            RouteSpec(RouterKind.CLASS_AFFINE, (1,), queue=1),
        ),
        classes=(ClassSpec(priority=0), ClassSpec(priority=1)),
        queue_llm=(0, 0),
    )


def test_class_affine_own_then_overflow_then_queue() -> None:
    """Zero queueing: a request goes on where another waits, even if the batch has space for both."""
    rows = [*[(0, 1, 90)] * 3, *[(20, 1, 90)] * 3]
    engine = run(affine(), table(*rows), until_ps=10)
    # Request 1 finds 0 waiting in the own pool, 2 finds one in each; the own pool pulls it at once.
    assert engine.results()["instance"].tolist() == [0, 1, 0, -1, -1, -1]
    # At 20 the own pool's batch is full and the other has space for one, which then waits there.
    engine.advance(21)
    assert engine.instances()["waiting"].tolist() == [0, 1]
    assert engine.queues() == [[4, 5], []]
    # Without a queue the least loaded takes them, the own pool first on a tie.
    engine = run(affine(queue=-1), table(*rows), until_ps=10**5)
    assert engine.results()["instance"].tolist() == [0, 1, 0, 1, 0, 1]


def test_class_affine_share_that_tries_overflow_first() -> None:
    draws = [(splitmix64(r ^ OVERFLOW_SALT) >> 11) * 2.0**-53 for r in range(4)]
    share = sorted(draws)[1] + 1e-9  # two of the four
    engine = run(affine(share), table(*[(100 * r, 1, 1) for r in range(4)]), until_ps=10**4)
    assert engine.results()["instance"].tolist() == [int(draw < share) for draw in draws]
    assert sum(draw < share for draw in draws) == 2


def test_class_affine_does_not_count_what_it_may_evict() -> None:
    busy = [(0, 1, 50, BATCH), (1, 1, 50, BATCH)]
    rows = [*busy, *[(20, 1, 50, INTERACTIVE)] * 4]
    # Two batch requests fill pool 1. For an interactive one there is room only if they may go.
    there = run(affine(evicts=True), table(*rows), until_ps=21)
    assert there.instances()["waiting"].tolist() == [0, 1]
    assert there.queues()[0] == [5]
    full = run(affine(evicts=False), table(*rows), until_ps=21)
    assert full.instances()["waiting"].tolist() == [0, 0]
    assert full.queues()[0] == [4, 5]


def test_custom_router_sees_features_and_its_answer_is_checked() -> None:
    seen = []

    def to_last(features, n, request_id, input_tokens, predicted, slo_class):  # type: ignore[no-untyped-def]
        seen.append((features.copy(), n, request_id, input_tokens, predicted, slo_class))
        return n - 1 if request_id < 2 else -1

    requests = predicting(table((0, 4, 3), (18, 6, 2), (18, 1, 1)), 5, 2, 1)
    pool = PoolSpec(0, 0, 2, initial_active=2, batch_limit=7, pull=(0,))
    route = RouteSpec(RouterKind.CUSTOM, (0,), queue=0)
    spec = cluster(pool, routes=(route,), queue_llm=(0,), custom_router=to_last)
    engine = run(spec, requests)
    assert engine.results()["instance"].tolist() == [1, 1, 0]
    features, *others = seen[1]
    assert others == [2, 1, 6, 2, 0]
    # At 18 request 0 runs with 4 + 1 tokens of KV and 5 - 1 predicted ones left.
    assert features.tolist() == [[0, 0, 0, 1000, 0, 7, 0, 0, 0], [1, 0, 5, 1000, 4, 7, 0, 1, 0]]

    no_queue = replace(spec, routes=((RouteSpec(RouterKind.CUSTOM, (0,)),),))
    refuses(r"returned -1 for request 2: must be in 0\.\.1", run, no_queue, requests)


def test_shared_queue_is_pulled_in_order() -> None:
    spec = cluster(
        PoolSpec(0, 0, 1, initial_active=1, batch_limit=1, pull=(1, 0)),
        routes=(
            RouteSpec(RouterKind.SHARED_QUEUE, (), queue=0),
            RouteSpec(RouterKind.SHARED_QUEUE, (), queue=1),
        ),
        queue_llm=(0, 0),
    )
    engine = run(spec, table((0, 1, 1, 0), (0, 1, 1, 0), (0, 1, 1, 1), (0, 1, 1, 1)))
    assert engine.finish_log() == [2, 3, 0, 1]


def test_gateway_holds_requests_until_somebody_is_there() -> None:
    pool = PoolSpec(0, 0, 1, load_ps=(100, 0, 0))
    engine = run(cluster(pool), table((0, 4, 1), (1, 4, 1)), until_ps=50)
    assert engine.gateway(0) == [0, 1]
    assert engine.conservation()[RequestState.GATEWAY] == 2
    assert engine.set_target(0, 1) == 0
    engine.advance(1000)
    assert [times(engine, r)[:2] for r in range(2)] == [(150, 179), (150, 179)]


def test_too_long_requests_are_rejected() -> None:
    spec = cluster(profiles=(profile(kv_capacity_tokens=20),), half_block_tokens=3)
    engine = run(spec, table((0, 10, 7), (0, 10, 8)))
    assert engine.results()["state"].tolist() == [RequestState.FINISHED, RequestState.REJECTED]


# --- the batch-size controller ---


def controlled(kind: ControllerKind, limit: int, slo_ps: int, **times: int) -> ClusterSpec:
    """Iterations of 10 ps, prefills of 5, unless told otherwise."""
    nothing = ("decode_per_request_ps", "decode_per_token_ps", "prefill_per_token_ps")
    flat = profile(**({"max_batch": 16} | dict.fromkeys(nothing, 0) | times))
    pool = PoolSpec(0, 0, 1, initial_active=1, batch_limit=limit, controller=kind)
    return cluster(pool, profiles=(flat,), classes=(ClassSpec(itl_slo_ps=slo_ps),))


def limit_at(engine: ReferenceEngine, until_ps: int) -> int:
    engine.advance(until_ps)
    return int(engine.instances()[0]["batch_limit"])


@pytest.mark.parametrize(
    "kind, last", [(ControllerKind.CHIRON, 7.0), (ControllerKind.CHIRON_LITERAL, 6.2222)]
)
def test_algorithm_1_step_by_step(kind: ControllerKind, last: float) -> None:
    engine = ReferenceEngine(controlled(kind, 8, slo_ps=20), table((0, 1, 10), (30, 1, 10)))
    # 0..15: a prefill and a decode, ITL 15: LBP 0.75, no throughput to compare with yet.
    # 8 * (0.5 / 0.75 + 0.5) = 9.33.
    assert limit_at(engine, 15) == 8
    assert limit_at(engine, 16) == 9
    # The next change of the batch is the second request, seen at 40 after its prefill: 3 tokens in
    # 25 ps after 2 in 15. The limit was raised before: TBP = 0.1333 / 0.12 > 1, halved to 4.67.
    assert limit_at(engine, 40) == 9
    assert limit_at(engine, 41) == 4
    # 40..50: two tokens in 10 ps, but nothing changed. First change: request 0 leaves at 100.
    assert limit_at(engine, 100) == 4
    # 40..100: ITL 10, LBP 0.5. The limit was lowered before, so TBP is silent: 4.67 * (0.5 / 0.5 + 0.5)
    # = 7. As printed TBP = 0.12 / 0.2 = 0.6 slows the growth: 4.67 * (0.5 / 0.6 + 0.5) = 6.22.
    engine.advance(101)
    assert engine.instances_of[0][0].controller.x == pytest.approx(last, abs=1e-4)


def test_algorithm_1_halves_when_the_slo_is_missed() -> None:
    spec = controlled(ControllerKind.CHIRON_LITERAL, 8, slo_ps=10)
    assert limit_at(ReferenceEngine(spec, table((0, 1, 10))), 16) == 4


@pytest.mark.parametrize(
    "kind, last", [(ControllerKind.CHIRON, 16), (ControllerKind.CHIRON_LITERAL, 4)]
)
def test_a_raise_that_brings_less_is_taken_back(kind: ControllerKind, last: int) -> None:
    spec = controlled(kind, 2, slo_ps=1000)
    steep = spec.profiles[0].decode_base_ps.copy()
    steep[3:] = 60  # beyond two requests everything is slow
    spec = replace(spec, profiles=(replace(spec.profiles[0], decode_base_ps=steep),))
    engine = ReferenceEngine(spec, table(*[(0, 1, 50)] * 9))
    # 0..15: two first tokens and two more, 0.267 per ps; LBP 0.015, raised to the most there is.
    assert limit_at(engine, 15) == 2
    assert limit_at(engine, 16) == 16
    # 15..80: seven first tokens and nine more, 0.246 per ps. TBP 1.08: halved.
    assert limit_at(engine, 80) == 16
    assert limit_at(engine, 81) == 8
    # The first two leave after 47 more iterations, at 2900: 0.15 per ps, less than before. That is no
    # raise's doing, and LBP is 0.06. As printed TBP is 1.64.
    assert limit_at(engine, 2900) == 8
    assert limit_at(engine, 2901) == last
    assert engine.events["halved_for_throughput"] == 1 + (last == 4)


def test_what_follows_idleness_is_not_the_effect_of_a_raise() -> None:
    spec = controlled(ControllerKind.CHIRON, 4, slo_ps=100)
    rows = [*[(0, 1, 3)] * 4, (1000, 1, 3)]
    engine = ReferenceEngine(spec, table(*rows))
    # 0..15: 8 tokens, LBP 0.15: 4 * (0.5 / 0.15 + 0.5) = 15.3. All leave at 25.
    assert limit_at(engine, 16) == 15
    # 1000..1015: one request, 2 tokens. A quarter of the throughput, but the batch had been empty.
    assert limit_at(engine, 1016) == 16


def test_a_window_of_several_iterations() -> None:
    spec = controlled(ControllerKind.CHIRON, 4, slo_ps=100).with_pool(
        0, controller_window_iterations=3
    )
    engine = ReferenceEngine(spec, table((0, 1, 50), (30, 1, 50)))
    # Decode iterations end at 15, 25, 35, the third of them with the second request at hand:
    # 35 / 3 = 11.7, LBP 0.117, 4 * (0.5 / 0.117 + 0.5) = 19.1.
    assert limit_at(engine, 35) == 4
    assert limit_at(engine, 36) == 16


def test_a_halving_does_not_lead_to_the_next() -> None:
    """Half the batch gives less throughput; printed, that is TBP above 1 and halves once more."""
    # 0..213: a prefill and 8 iterations of 26, 16 + 8 x 16 tokens. LBP 213 / 8 / 30 = 0.8875:
    # 16 * (0.5 / 0.8875 + 0.5) = 17.01.
    # ..434: one more, a prefill and 8 iterations of 27, 1 + 8 x 17 tokens: fewer per ps after a raise, so
    # halved.
    # ..610: 3 iterations of 27 until 16 leave, a prefill of 7 and 5 iterations of 18: 51 + 7 + 40 tokens.
    # LBP 176 / 8 / 30 = 0.7333: 8.507 * (0.5 / 0.7333 + 0.5) = 10.05. As printed TBP is 1.113: halved.
    # ..780: a prefill of 2, 3 iterations of 20 until one leaves, a prefill of 1, 5 of 20: 83 tokens in 170
    # ps, fewer per ps after a raise: halved. As printed it is halved at 749 too, and so on.
    times = (213, 434, 610, 780)
    exact = {
        ControllerKind.CHIRON_LITERAL: [17.01408, 8.50704, 4.25352, 2.12676],
        ControllerKind.CHIRON: [17.01408, 8.50704, 10.05378, 5.02689],
    }
    limits: dict[ControllerKind, list[int]] = {}
    for kind in (ControllerKind.CHIRON_LITERAL, ControllerKind.CHIRON):
        spec = controlled(kind, 16, slo_ps=30, max_batch=64, decode_per_request_ps=1)
        spec = spec.with_pool(0, controller_window_iterations=8)
        engine = ReferenceEngine(spec, table(*[(0, 1, 20)] * 900))
        found = []
        for until in times:
            engine.advance(until + 1)
            found.append(engine.instances_of[0][0].controller.x)
        assert found == pytest.approx(exact[kind], abs=1e-5)
        limits[kind] = [limit_at(engine, until) for until in range(2000, 8000, 100)]
    assert set(limits[ControllerKind.CHIRON_LITERAL]) == {1}
    assert min(limits[ControllerKind.CHIRON]) == 3
    assert np.median(limits[ControllerKind.CHIRON]) == 13


def test_limit_stays_in_its_range_and_in_the_tables() -> None:
    spec = controlled(ControllerKind.CHIRON_LITERAL, 8, slo_ps=10**6)
    assert limit_at(ReferenceEngine(spec, table((0, 1, 10))), 16) == 16
    low = controlled(ControllerKind.CHIRON_LITERAL, 8, slo_ps=1).with_pool(
        0, controller_min_batch=6, controller_max_batch=7
    )
    engine = ReferenceEngine(low, table((0, 1, 10)))
    assert limit_at(engine, 0) == 7
    assert limit_at(engine, 16) == 6


def test_fixed_limit_moves_by_command_only() -> None:
    engine = ReferenceEngine(
        controlled(ControllerKind.FIXED, 3, slo_ps=1), table(*[(0, 1, 10)] * 5)
    )
    assert limit_at(engine, 1) == 3
    assert engine.instances()[0]["running"] == 3
    engine.set_batch_limit(0, 2)
    assert limit_at(engine, 50) == 2
    assert engine.instances()[0]["running"] == 3  # a lower limit evicts nobody


# --- instances come and go ---


def fleet(**changes: Any) -> ClusterSpec:
    """Three slots of two GPUs, one active; SSD 100 ps, host 50, multicast 10."""
    pool = PoolSpec(0, 0, 3, gpus=2, initial_active=1, load_ps=(100, 50, 10))
    cluster_changes = {
        name: changes.pop(name)
        for name in ("gpus_per_host", "max_gpus", "host_keep_alive_ps")
        if name in changes
    }
    return cluster(replace(pool, **changes), **cluster_changes)


def loading(engine: ReferenceEngine, slot: int) -> tuple[int, int, int]:
    """(state, source, end of loading)."""
    row = engine.instances()[slot]
    return int(row["state"]), int(row["source"]), int(row["loaded_ps"])


@pytest.mark.parametrize(
    "gpus_per_host, ordered, found, loaded_ps",
    [
        (2, LoadSource.MULTICAST, LoadSource.MULTICAST, 17),
        (2, LoadSource.HOST, LoadSource.SSD, 107),
        (4, LoadSource.HOST, LoadSource.HOST, 57),
        (4, LoadSource.SSD, LoadSource.SSD, 107),
    ],
)
def test_load_sources(
    gpus_per_host: int, ordered: LoadSource, found: LoadSource, loaded_ps: int
) -> None:
    engine = run(fleet(gpus_per_host=gpus_per_host), table((0, 1, 1)), until_ps=7)
    assert engine.set_target(0, 2, ordered) == 0
    assert loading(engine, 1) == (InstanceState.LOADING, found, loaded_ps)
    engine.advance(loaded_ps + 1)
    assert loading(engine, 1) == (InstanceState.ACTIVE, found, -1)


def test_source_is_looked_for_when_acquiring_ends() -> None:
    engine = run(fleet(acquire_ps=20), table((0, 1, 1)), until_ps=10)
    engine.set_target(0, 2, LoadSource.MULTICAST)
    engine.advance(15)
    assert loading(engine, 1) == (InstanceState.ACQUIRING, -1, -1)
    engine.drain(0)  # the only one that has the weights
    engine.advance(31)
    assert loading(engine, 1) == (InstanceState.LOADING, LoadSource.HOST, 80)
    # Billed: slot 0 until 15, slot 1 from the start of loading; two GPUs each.
    assert engine.gpu_ps() == [2 * (15 + 1)]


@pytest.mark.parametrize("wait_ps, found", [(40, LoadSource.HOST), (41, LoadSource.SSD)])
def test_host_keeps_weights_for_a_while(wait_ps: int, found: LoadSource) -> None:
    engine = run(fleet(host_keep_alive_ps=40), table((0, 1, 1)), until_ps=10)
    engine.set_target(0, 0)
    engine.advance(10 + wait_ps)
    engine.set_target(0, 1, LoadSource.MULTICAST)
    assert loading(engine, 0)[1] == found


def test_gpus_run_out() -> None:
    engine = run(fleet(max_gpus=5), table((0, 1, 1)), until_ps=1)
    assert engine.set_target(0, 3) == 1
    assert engine.instances()["state"].tolist() == [
        InstanceState.ACTIVE,
        InstanceState.LOADING,
        InstanceState.OFF,
    ]


def test_falling_target_gives_up_the_slowest_first() -> None:
    # Slot 0 is active, 1 loads until 100, 2 until 105.
    pool = PoolSpec(0, 0, 4, initial_active=1, load_ps=(100, 100, 100))
    engine = run(cluster(pool), table((900, 1, 1)), until_ps=0)
    engine.set_target(0, 2)
    engine.advance(5)
    engine.set_target(0, 3)
    for target, off in [(2, 2), (1, 1), (0, 0)]:
        engine.set_target(0, target)
        assert engine.instances()["state"][off] == InstanceState.OFF
        assert (engine.instances()["state"] != InstanceState.OFF).sum() == target
    assert engine.gpu_ps() == [5 + 5 + 0]


def test_draining_finishes_its_batch_and_hands_on_its_queue() -> None:
    pool = PoolSpec(0, 0, 2, initial_active=2, batch_limit=1)
    engine = run(cluster(pool), table(*[(0, 4, 3)] * 4), until_ps=5)
    engine.drain(0)
    state = engine.instances()
    assert state["state"].tolist() == [InstanceState.DRAINING, InstanceState.ACTIVE]
    assert state["waiting"].tolist() == [0, 2]
    engine.advance(1000)
    assert engine.results()["instance"].tolist() == [0, 1, 1, 1]
    assert engine.instances()["state"].tolist() == [InstanceState.OFF, InstanceState.ACTIVE]
    assert engine.gpu_ps() == [61 + 1000]  # each request takes 61 ps alone


def test_a_draining_instance_comes_back() -> None:
    pool = PoolSpec(0, 0, 1, initial_active=1, batch_limit=1)
    engine = run(cluster(pool), table((0, 4, 3), (1, 4, 3)), until_ps=5)
    engine.drain(0)
    assert engine.gateway(0) == [1]
    engine.set_target(0, 1)
    assert engine.gateway(0) == []
    engine.advance(1000)
    assert times(engine, 1)[0] == 61


# --- the order of events ---


def test_commands_come_before_what_is_due_at_the_same_time() -> None:
    engine = run(cluster(), table((0, 4, 3), (17, 2, 2)), until_ps=17)
    # The prefill ends at 17: not seen yet, nor has the second request arrived.
    assert engine.results()["emitted_tokens"].tolist() == [0, 0]
    assert engine.conservation()[RequestState.FUTURE] == 1
    engine.drain(0)
    engine.advance(1000)
    assert engine.results()["state"].tolist() == [RequestState.FINISHED, RequestState.GATEWAY]


def test_an_arrival_comes_after_the_iteration_that_ends_then() -> None:
    # It misses the boundary at 17 and waits for the decode: 17 + 21.
    assert times(run(cluster(), table((0, 4, 3), (17, 2, 2))), 1)[0] == 38


def test_arrivals_of_one_time_share_a_prefill() -> None:
    engine = run(cluster(), table((5, 4, 1), (5, 2, 1)))
    assert [times(engine, r)[:2] for r in range(2)] == [(5, 28), (5, 28)]


def test_how_often_one_looks_changes_nothing() -> None:
    spec, requests = overflowing(PreemptionMode.SWAP)
    looking = ReferenceEngine(spec, requests)
    for t in range(1, 200):
        looking.advance(t)
        counts = looking.conservation()
        assert sum(counts.values()) == len(requests)
    assert np.array_equal(looking.results(), run(spec, requests, 200).results())


# --- queueing theory ---


def test_one_slot_is_an_m_g_1_queue() -> None:
    """Waiting obeys Lindley's recursion to the picosecond, and so Pollaczek-Khinchine."""
    rng = np.random.default_rng(1)
    n, utilisation = 40_000, 0.5
    inputs = rng.choice([10, 20, 90], size=n, p=[0.5, 0.4, 0.1])
    service = 5 + 3 * inputs
    mean = 5 + 3 * 22.0
    arrivals = np.cumsum(rng.exponential(mean / utilisation, n)).astype(np.int64)
    waited = np.zeros(n, np.int64)
    for k in range(1, n):
        gap = arrivals[k] - arrivals[k - 1]
        waited[k] = max(0, waited[k - 1] + service[k - 1] - gap)
    first = slice(8_000)
    rows = zip(arrivals[first].tolist(), inputs[first].tolist(), strict=True)
    pool = PoolSpec(0, 0, 1, initial_active=1, batch_limit=1)
    engine = run(cluster(pool), table(*((t, i, 1) for t, i in rows)), until_ps=10**8)
    assert np.array_equal(engine.results()["admitted_ps"] - arrivals[first], waited[first])

    second_moment = 0.5 * 35**2 + 0.4 * 65**2 + 0.1 * 275**2
    formula = utilisation / mean * second_moment / (2 * (1 - utilisation))
    assert waited.mean() == pytest.approx(formula, rel=0.05)


# --- bad input ---


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda e: e.advance(-1), r"until_ps = -1: must be an integer in 0\.\."),
        (lambda e: e.set_target(3, 1), r"pool = 3: must be an integer in 0\.\.0"),
        (lambda e: e.set_target(0, -1), r"count = -1: must be an integer in 0\.\.3"),
        (lambda e: e.set_target(0, 1.5), r"count = 1.5: must be an integer in 0\.\.3"),
        (lambda e: e.set_target(0, 1, 7), r"source = 7: must be an integer in 0\.\.2"),
        (lambda e: e.set_batch_limit(0, 0), r"limit = 0: must be an integer in 1\.\.256"),
        (lambda e: e.set_batch_limit(0, 257), r"limit = 257: must be an integer in 1\.\.256"),
        (lambda e: e.set_controller(0, 5), r"kind = 5: must be an integer in 0\.\.2"),
        (lambda e: e.set_overflow_share(0, 0, 1.5), r"share = 1.5: must be in 0\.\.1"),
        (lambda e: e.set_overflow_share(0, 0, float("nan")), r"share = nan"),
        (lambda e: e.drain(2), r"instance = 2: is OFF, must be ACTIVE"),
        (lambda e: e.evict(9, 1), r"instance = 9: must be an integer in 0\.\.2"),
        (lambda e: e.evict(2, 1), r"instance = 2: is OFF, must be ACTIVE or DRAINING"),
        (lambda e: e.evict(0, -1), r"count = -1: must be an integer in 0\.\."),
        (lambda e: e.gateway(4), r"llm = 4: must be an integer in 0\.\.0"),
    ],
)
def test_bad_arguments(call: Any, message: str) -> None:
    engine = ReferenceEngine(fleet(), table((0, 1, 1)))
    refuses(message, call, engine)


def test_requests_of_an_unknown_class_are_refused() -> None:
    with pytest.raises(ValueError, match=r"slo_class\[1\] = 1: must be in 0\.\.0"):
        ReferenceEngine(cluster(), table((0, 1, 1), (0, 1, 1, BATCH)))


def test_a_pool_that_evicts_needs_queues() -> None:
    with pytest.raises(ValueError, match=r"routes\[0\]\[0\]\.queue = -1: must be a shared queue"):
        cluster(PoolSpec(0, 0, 1, initial_active=1, evicts=True), classes=(ClassSpec(priority=1),))
