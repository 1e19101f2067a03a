"""Virtual queues on both engines, computed by hand from docs/engine.md sections 4, 5, 8 and 9."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmscale_env.sim.spec import (
    InstanceState,
    PreemptionMode,
    PullRule,
    RequestState,
    RouterKind,
    RouteSpec,
)
from tests.refusals import refuses
from tests.small_clusters import Engine, column, pool, profile, queued, run, seen, table, times

# --- which queue is pulled from ---


def test_pulls_in_order_of_the_list(engine_class: Engine) -> None:
    spec = queued(pool(batch_limit=1, pull=(1, 0)))
    engine = engine_class(spec, table((0, 4, 1, 0), (0, 4, 1, 1), (0, 4, 1, 0), (20, 4, 1, 1)))
    engine.advance(1000)
    # Each takes 17. Queue 1 comes first, also for the one that comes at 20.
    assert column(engine, "admitted_ps") == [17, 0, 51, 34]
    assert engine.finish_log() == [1, 0, 3, 2]


@pytest.mark.parametrize("pull", [(0, 1), (1, 0)])
def test_pulls_the_earliest_deadline(engine_class: Engine, pull: tuple[int, int]) -> None:
    one = pool(batch_limit=1, pull=pull, pull_rule=PullRule.EARLIEST_DEADLINE)
    spec = queued(one, ttft_slo_ps=(100, 80))
    engine = engine_class(spec, table((0, 4, 1, 0), (5, 4, 1, 0), (10, 4, 1, 1), (25, 4, 1, 1)))
    engine.advance(1000)
    # Deadlines 100, 105, 90 and 105; at 34 two heads tie and the list decides.
    first, second = (1, 3) if pull == (0, 1) else (3, 1)
    assert engine.finish_log() == [0, 2, first, second]
    assert column(engine, "admitted_ps")[2] == 17
    assert column(engine, "admitted_ps")[first] == 34


def test_a_queue_is_passed_over_and_its_new_head_wakes_who_could_not_take_the_old(
    engine_class: Engine,
) -> None:
    other = pool(llm=1, initial_active=0)
    spec = queued(pool(pull=(0, 1)), other, n_llms=2)
    requests = table((0, 4, 1, 0, 1), (1, 4, 1, 0, 0), (2, 4, 1, 1, 0))
    engine = run(engine_class, spec, requests, 100)
    # The head of queue 0 is of LLM 1: what is behind it has to wait, queue 1 has not.
    assert times(engine, 2) == (2, 19, 19, -1)
    assert engine.queues() == [[0, 1], []]
    engine.set_target(1, 1)
    engine.advance(1000)
    # The instance of LLM 1 takes its request at once; the idle one sees the new head then.
    assert column(engine, "admitted_ps") == [100, 100, 2]


def test_a_head_that_changes_while_it_decodes(engine_class: Engine) -> None:
    other = pool(llm=1, initial_active=0)
    spec = queued(pool(pull=(0, 1)), other, n_llms=2)
    requests = table((0, 4, 9, 1, 0), (1, 4, 1, 0, 1), (2, 4, 1, 0, 0))
    engine = run(engine_class, spec, requests, 50)
    engine.set_target(1, 1)
    engine.advance(1000)
    # Boundaries at 17, 38, 61: the head left at 50, the next one joins at 61.
    assert column(engine, "admitted_ps") == [0, 50, 61]


# --- what was meant for one instance goes to another ---


@pytest.mark.parametrize("how", ["fail", "drain", "set_pull", "set_target"])
def test_an_idle_instance_that_leaves_does_not_take_its_call_along(
    engine_class: Engine, how: str
) -> None:
    """Two commands at one time: the first frees a request, the second removes who would take it."""
    failing = pool(repair_ps=10**6, pull=(0,))
    spec = queued(failing, pool(repair_ps=10**6), pool())
    engine = run(engine_class, spec, table((0, 4, 50)), 100)
    engine.fail(0)
    args = {"fail": (1,), "drain": (1,), "set_pull": (1, ()), "set_target": (1, 0)}[how]
    getattr(engine, how)(*args)
    engine.advance(10**5)
    assert column(engine, "instance") == [2]
    assert column(engine, "state") == [RequestState.FINISHED]
    # Begun anew at 100: 17, then 49 decode iterations of 11 + 2 c with c = 5..53.
    assert column(engine, "finished_ps") == [100 + 17 + 49 * 11 + 2 * sum(range(5, 54))]


def test_a_busy_instance_that_loses_its_list_does_not_take_its_call_along(
    engine_class: Engine,
) -> None:
    routed = RouteSpec(RouterKind.ROUND_ROBIN, (0,))
    spec = queued(pool(n_slots=2, initial_active=2, batch_limit=2))
    spec = replace(spec, routes=((routed, RouteSpec(RouterKind.SHARED_QUEUE, (), queue=0)),))
    engine = run(engine_class, spec, table((0, 4, 50, 0), (0, 5, 50, 0), (200, 3, 5, 1)), 201)
    # Boundaries: 17 + 21 + 23 + 25 + 27 + 29 + 31 + 33 = 206 at the one, at the other
    # 20 + 23 + 25 + ... + 33 = 188 and 223. The first would have taken it.
    engine.set_pull(0, ())
    engine.advance(10**6)
    assert column(engine, "instance")[2] == 1
    assert column(engine, "admitted_ps")[2] == 223


# --- evictions in order ---


def evicting(**changes: Any) -> Any:
    return queued(
        pool(batch_limit=2, pull=(0, 1, 2), evicts_in_order=True, **changes),
        n_queues=3,
        profiles=(profile(swap_out_ps_per_token=1, swap_in_ps_per_token=2),),
    )


def test_who_is_evicted_in_order_and_where_to(engine_class: Engine) -> None:
    requests = table(
        (0, 4, 20, 1), (0, 4, 20, 2), (70, 2, 2, 0), (98, 2, 2, 0), (120, 2, 1, 1), (121, 2, 1, 0)
    )
    engine = engine_class(evicting(), requests)
    # 0 and 1 prefill until 29 and decode until 61 and 97. For 2, number 1 goes: admitted later, and
    # from the last queue. Its 7 tokens cost 7: 97 + 7 + 11 = 115.
    engine.advance(98)
    assert engine.queues() == [[], [], [1]]
    assert seen(engine, 0, "host_kv_bytes", "running") == (7, 2)
    # For 3, number 0 goes; 5 finds two of its own queue running, 4 two of an earlier one.
    engine.advance(116)
    assert engine.queues() == [[], [0], [1]]
    engine.advance(140)
    assert engine.queues() == [[5], [0, 4], [1]]
    assert column(engine, "evictions") == [1, 1, 0, 0, 0, 0]
    engine.advance(10**5)
    # 3 is prefilled until 115 + 7 + 11 = 133; both decode until 133 + 12 + 12 = 157.
    assert times(engine, 2) == (97, 115, 157, 42)
    assert times(engine, 3) == (115, 133, 157, 24)
    # At 157: 5 of queue 0, then 0 comes back for 14; the prefill ends at 157 + 11 + 14 = 182.
    assert times(engine, 5) == (157, 182, 182, -1)
    # Then 4 in 11: 193, then 1 for 14 more, decoding beside 0: 10 + 2 + 2 * 14 + 14 = 54.
    assert times(engine, 4) == (182, 193, 193, -1)
    assert times(engine, 0)[3] == 193 + 54 - 97
    assert times(engine, 1)[3] == 193 + 54 - 97
    assert column(engine, "state") == [RequestState.FINISHED] * 6


def test_nobody_is_evicted_in_vain(engine_class: Engine) -> None:
    spec = queued(
        pool(batch_limit=3, pull=(0, 1), evicts_in_order=True),
        profiles=(profile(kv_capacity_tokens=20),),
    )
    engine = run(engine_class, spec, table((0, 4, 3, 0), (0, 4, 9, 1), (40, 15, 2, 0)), 10**5)
    # 16 tokens would not even fit beside the first alone, which ends at 29 + 32 + 36 = 97.
    assert column(engine, "evictions") == [0, 1, 0]
    assert times(engine, 0)[2] == 97
    assert times(engine, 2)[0] == 97


def test_who_is_not_on_the_list_goes_like_a_later_queue(engine_class: Engine) -> None:
    spec = queued(pool(batch_limit=1, pull=(1,), evicts_in_order=True))
    engine = run(engine_class, spec, table((0, 4, 20, 1), (20, 4, 1, 0)), 30)
    assert column(engine, "evictions") == [0, 0]
    engine.set_pull(0, (0,))
    engine.advance(40)
    assert column(engine, "evictions") == [1, 0]
    assert engine.queues() == [[], [0]]
    assert column(engine, "admitted_ps")[1] == 38


def test_earliest_deadline_evicts_nobody(engine_class: Engine) -> None:
    spec = evicting(pull_rule=PullRule.EARLIEST_DEADLINE)
    engine = run(engine_class, spec, table((0, 4, 20, 1), (0, 4, 20, 2), (70, 2, 2, 0)), 10**5)
    assert column(engine, "evictions") == [0, 0, 0]


def test_who_was_just_taken_back_is_spared_until_the_next_boundary(engine_class: Engine) -> None:
    spec = queued(
        pool(batch_limit=3, pull=(0, 1), evicts_in_order=True, preemption=PreemptionMode.SWAP),
        profiles=(profile(kv_capacity_tokens=20),),
    )
    engine = run(engine_class, spec, table((0, 4, 12, 0), (0, 4, 14, 1), (250, 10, 6, 0)), 10**6)
    # 29, then 32, 36, 40, 44, 48 for batches of 10 to 18 tokens: at 229 both have 10 and number 1
    # is preempted. Number 0 goes on alone with 31, 33, 35, 37, 39, 41 and ends at 445: 12 tokens.
    # Then 1 comes back, and 2 does not fit; but after one iteration of 11 + 20 it has its place.
    assert times(engine, 0)[2] == 445
    assert times(engine, 2)[0] == 445 + 31
    assert column(engine, "evictions") == [0, 1, 0]


# --- copies beside the iterations ---


def copying(swap_out_ps: int, capacity: int, **changes: Any) -> Any:
    return queued(
        pool(pull=(0, 1), evicts_in_order=True, async_kv=True, **changes),
        profiles=(profile(swap_out_ps_per_token=swap_out_ps, kv_capacity_tokens=capacity),),
    )


def test_memory_comes_free_at_the_end_of_a_copy_of_an_idle_instance(engine_class: Engine) -> None:
    engine = run(engine_class, copying(10, 20), table((0, 8, 12, 1), (30, 11, 2, 0)), 157)
    # 29, 58; there 10 + 12 tokens do not fit, number 0 goes, its 10 tokens take 100.
    assert seen(engine, 0, "running", "kv_tokens", "host_kv_bytes") == (0, 10, 10)
    engine.advance(10**5)
    # Waited at the head of the line: 158 - 30. Then 5 + 33, and 11 + 24.
    assert times(engine, 1) == (158, 196, 231, 35)
    # Nothing to pay for bringing it back: 11 + 20.
    assert times(engine, 0)[3] == 231 + 31 - 58


def test_others_decode_on_while_a_copy_is_made(engine_class: Engine) -> None:
    requests = table((0, 4, 15, 0), (0, 20, 10, 1), (100, 12, 2, 0))
    engine = engine_class(copying(3, 40), requests)
    # 77, then 12 + 52: 141. There 28 + 13 do not fit; 22 tokens are gone at 141 + 66 = 207. Number 0
    # decodes alone until 164, 189, 216: the first boundary after it.
    engine.advance(200)
    assert seen(engine, 0, "kv_tokens", "running") == (8 + 22, 1)
    engine.advance(216)
    assert seen(engine, 0, "kv_tokens", "running") == (8 + 22, 1)
    engine.advance(217)
    assert seen(engine, 0, "kv_tokens", "running") == (9 + 12, 2)
    assert times(engine, 2)[0] == 216
    engine.advance(10**5)
    assert times(engine, 2)[1] == 216 + 5 + 36
    assert column(engine, "evictions") == [0, 1, 0]


def test_copies_follow_one_another_and_free_their_memory_together(engine_class: Engine) -> None:
    requests = table((0, 4, 15, 0), (0, 10, 9, 1), (0, 10, 9, 1), (100, 26, 2, 0))
    engine = engine_class(copying(3, 44), requests)
    # 77, then 13 + 54: 144. 27 of 44 are free without both; 36 ps each: 180 and 216.
    engine.advance(200)
    # Number 0 has 8 at 192; the first copy is done, but its memory is not yet free.
    assert seen(engine, 0, "kv_tokens") == (8 + 24,)
    assert engine.queues() == [[3], [1, 2]]
    engine.advance(10**5)
    assert times(engine, 3)[0] == 219  # 144 + 23 + 25 + 27
    assert column(engine, "evictions") == [0, 1, 1, 0]


def test_who_fits_in_the_place_of_a_preempted_one_does_not_wait_for_the_copy(
    engine_class: Engine,
) -> None:
    requests = table((0, 6, 12, 1), (0, 13, 9, 1), (50, 9, 2, 0))
    evicting = pool(pull=(0, 1), evicts=True, evicts_in_order=True, async_kv=True)
    times_of = profile(swap_out_ps_per_token=100, kv_capacity_tokens=30)
    engine = engine_class(queued(evicting, profiles=(times_of,), priorities=(0, 1)), requests)
    # 62. There 21 + 10 tokens do not fit: number 1 goes, and its 14 tokens stay until 1462. Number 0
    # decodes on; at 359 its 16 tokens have no room for one more, so it goes to its queue.
    engine.advance(359)
    assert seen(engine, 0, "running", "kv_tokens") == (1, 15 + 14)
    engine.advance(360)
    # Nothing runs any more, and 10 tokens fit beside the copy.
    assert column(engine, "preemptions") == [1, 0, 0]
    assert seen(engine, 0, "running", "kv_tokens") == (1, 9 + 14)
    engine.advance(10**5)
    assert times(engine, 2)[:3] == (359, 359 + 32, 359 + 32 + 31)


def test_a_copy_that_takes_no_time_frees_its_memory_at_once(engine_class: Engine) -> None:
    engine = run(engine_class, copying(0, 20), table((0, 8, 12, 1), (30, 11, 2, 0)), 10**5)
    assert times(engine, 1)[:2] == (58, 96)


def test_kv_that_is_lost_is_not_copied(engine_class: Engine) -> None:
    spec = copying(10, 20, host_kv_bytes=9)
    engine = run(engine_class, spec, table((0, 8, 12, 1), (30, 11, 2, 0)), 10**5)
    assert times(engine, 1)[:3] == (58, 96, 131)
    # Its 10 tokens are prefilled anew.
    assert times(engine, 0)[3] == 131 + 35 - 58


def test_without_async_the_copy_comes_before_the_next_iteration(engine_class: Engine) -> None:
    spec = copying(3, 40).with_pool(0, async_kv=False)
    engine = run(engine_class, spec, table((0, 4, 15, 0), (0, 20, 10, 1), (100, 12, 2, 0)), 10**5)
    assert times(engine, 2)[:2] == (141, 141 + 66 + 41)


# --- static batches ---


@pytest.mark.parametrize("static", [True, False])
def test_a_static_batch_admits_nobody_once_it_decodes(engine_class: Engine, static: bool) -> None:
    spec = queued(pool(batch_limit=4, static_batch=static))
    engine = run(engine_class, spec, table((0, 4, 2), (0, 4, 5), (20, 2, 2), (60, 2, 1)), 10**5)
    # Prefills until 29 and 40 (nothing has decoded yet), decode until 79: 0 and 2 leave. Number 1
    # goes on alone: 102, 127, 154.
    assert column(engine, "admitted_ps") == [0, 0, 29, 154 if static else 79]
    assert times(engine, 0)[2] == 79
    if static:
        assert times(engine, 1)[2] == 154
        assert times(engine, 3)[2] == 165


def test_a_static_batch_that_was_evicted_is_over(engine_class: Engine) -> None:
    spec = queued(pool(batch_limit=4, static_batch=True), n_queues=1, priorities=(1,))
    engine = run(engine_class, spec, table((0, 4, 9), (30, 4, 1)), 31)
    engine.evict(0, 1)
    engine.advance(10**5)
    # Evicted at 38, taken back at once, and the other one with it.
    assert column(engine, "admitted_ps") == [0, 38]
    assert column(engine, "evictions") == [1, 0]


# --- regroup ---


def waiting(engine_class: Engine, *rows: tuple[int, ...], **changes: Any) -> Any:
    """An engine at 10 whose only instance is `OFF`."""
    spec = queued(pool(initial_active=0, batch_limit=1, pull=(1, 0)), n_llms=2)
    engine = run(engine_class, replace(spec, **changes), table(*rows), 10)
    return engine


FIVE = ((0, 4, 1), (0, 4, 1), (0, 4, 1), (0, 4, 1), (0, 4, 1, 1), (50, 4, 1, 1))


def test_regroup_moves_to_the_ends_in_the_order_given(engine_class: Engine) -> None:
    engine = waiting(engine_class, *FIVE)
    assert engine.queues() == [[0, 1, 2, 3], [4]]
    engine.regroup([3, 1, 4], [1, 1, 0])
    assert engine.queues() == [[0, 2, 4], [3, 1]]
    engine.regroup([0], [0])
    assert engine.queues() == [[2, 4, 0], [3, 1]]
    engine.regroup([], [])
    engine.set_target(0, 1)
    engine.advance(1000)
    # 5 comes to queue 1 at 50, when 3 and 1 are done (27 and 44) and 2 runs until 61.
    assert engine.finish_log() == [3, 1, 2, 5, 4, 0]


@pytest.mark.parametrize(
    "requests, queues, words",
    [
        ([3, 5], [1, 1], "5 is in no shared queue"),
        ([3, 99], [1, 1], "99 is in no shared queue"),
        ([3, -1], [1, 1], "-1 is in no shared queue"),
        ([3, 3], [1, 1], "twice"),
        ([3, 2], [1, 2], "no shared queue 2"),
        ([3, 2], [1, -1], "no shared queue -1"),
        ([3, 2], [1], "1 of them for 2"),
    ],
)
def test_a_regrouping_that_is_refused_moves_nobody(
    engine_class: Engine, requests: list[int], queues: list[int], words: str
) -> None:
    engine = waiting(engine_class, *FIVE)
    refuses(words, engine.regroup, requests, queues)
    assert engine.queues() == [[0, 1, 2, 3], [4]]
    engine.regroup([3], [1])
    assert engine.queues() == [[0, 1, 2], [4, 3]]


def test_a_queue_of_another_llm_takes_nobody(engine_class: Engine) -> None:
    row = (RouteSpec(RouterKind.SHARED_QUEUE, (), queue=0),) * 2
    engine = waiting(
        engine_class,
        *FIVE[:2],
        queue_llm=(-1, 1),
        routes=(row, row),
        pools=(pool(initial_active=0),),
    )
    refuses("request 0 is for another LLM than queue 1", engine.regroup, [0], [1])


def test_who_runs_or_is_done_cannot_be_regrouped(engine_class: Engine) -> None:
    engine = engine_class(queued(pool(batch_limit=1)), table((0, 4, 1), (0, 4, 9), (0, 4, 1)))
    engine.advance(30)
    for request in (0, 1):
        refuses(f"{request} is in no shared queue", engine.regroup, [2, request], [1, 1])
    assert engine.queues() == [[2], []]


def test_regrouping_wakes_an_idle_instance(engine_class: Engine) -> None:
    engine = run(engine_class, queued(pool(pull=(1,))), table((0, 4, 1), (0, 4, 1)), 50)
    assert engine.queues() == [[0, 1], []]
    engine.regroup([1], [1])
    engine.advance(1000)
    assert times(engine, 1) == (50, 67, 67, -1)
    assert engine.queues() == [[0], []]


def test_regrouping_gives_a_running_batch_a_head_that_fits(engine_class: Engine) -> None:
    spec = queued(pool(), profiles=(profile(kv_capacity_tokens=20),))
    engine = run(engine_class, spec, table((0, 8, 9), (0, 15, 1), (0, 2, 1)), 31)
    # 29, 58; the second does not fit beside the first, the third would.
    engine.regroup([1], [0])
    engine.advance(10**4)
    assert column(engine, "admitted_ps")[2] == 58


# --- where arrivals wait ---


def test_arrivals_are_told_apart_by_their_input(engine_class: Engine) -> None:
    rows = [(20 + k, tokens, 1) for k, tokens in enumerate((4, 5, 10, 11))]
    spec = queued(pool(initial_active=0), n_queues=3)
    engine = run(engine_class, spec, table((0, 11, 1), *rows), 10)
    engine.set_arrival_queues(0, 0, (4, 10), (2, 1, 0))
    engine.advance(100)
    assert engine.queues() == [[0, 4], [2, 3], [1]]
    engine.set_arrival_queues(0, 0, (), (1,))
    assert engine.queues() == [[0, 4], [2, 3], [1]]


def test_an_arrival_that_is_told_apart_goes_back_to_that_queue(engine_class: Engine) -> None:
    spec = queued(pool(batch_limit=1, pull=(1, 2, 0), evicts_in_order=True), n_queues=3)
    engine = engine_class(spec, table((20, 4, 9), (40, 4, 1, 1)))
    engine.set_arrival_queues(0, 0, (), (2,))
    engine.advance(59)
    assert engine.queues() == [[], [], [0]]


@pytest.mark.parametrize(
    "uppers, queues, words",
    [
        ((), (3,), "no shared queue 3"),
        ((4,), (0,), "must be 0 rising numbers"),
        ((4, 4), (0, 1, 2), "rising"),
        ((), (), r"must be 1\.\."),
        ((), (2,), "queue 2 is for another LLM"),
    ],
)
def test_a_classification_that_is_none_is_refused(
    engine_class: Engine, uppers: tuple[int, ...], queues: tuple[int, ...], words: str
) -> None:
    row = (RouteSpec(RouterKind.SHARED_QUEUE, (), queue=0),) * 3
    spec = replace(
        queued(pool(initial_active=0), n_queues=3), queue_llm=(-1, -1, 1), routes=(row, row)
    )
    engine = engine_class(spec, table((20, 4, 1)))
    refuses(words, engine.set_arrival_queues, 0, 0, uppers, queues)
    engine.advance(30)
    assert engine.queues() == [[0], [], []]


def test_a_route_without_a_queue_has_no_classification(engine_class: Engine) -> None:
    spec = replace(queued(pool()), routes=((RouteSpec(RouterKind.ROUND_ROBIN, (0,)),) * 2,))
    with pytest.raises(ValueError, match="no shared queue"):
        engine_class(spec, table((20, 4, 1))).set_arrival_queues(0, 0, (), (0,))


# --- set_pull ---


@pytest.mark.parametrize(
    "instance, queues, words",
    [
        (0, (2,), "no shared queue 2"),
        (0, (-1,), "no shared queue -1"),
        (0, (0, 0), "comes twice"),
        (0, (0, 1), "another LLM"),
        (1, (0,), "instance = 1"),
        (-1, (0,), "instance = -1"),
    ],
)
def test_a_list_that_is_refused_changes_nothing(
    engine_class: Engine, instance: int, queues: tuple[int, ...], words: str
) -> None:
    row = (RouteSpec(RouterKind.SHARED_QUEUE, (), queue=0),) * 2
    spec = replace(queued(pool()), queue_llm=(-1, 1), routes=(row, row))
    engine = engine_class(spec, table((20, 4, 1)))
    refuses(words, engine.set_pull, instance, queues)
    engine.advance(100)
    assert times(engine, 0) == (20, 37, 37, -1)


@pytest.mark.parametrize("state", [InstanceState.OFF, InstanceState.ACQUIRING])
def test_a_list_is_kept_by_an_instance_that_does_not_serve_yet(
    engine_class: Engine, state: InstanceState
) -> None:
    spec = queued(pool(initial_active=0, batch_limit=1, acquire_ps=50, load_ps=(30, 30, 30)))
    engine = run(engine_class, spec, table((0, 4, 1, 0), (0, 4, 1, 1)), 10)
    if state != InstanceState.OFF:
        engine.set_target(0, 1)
    assert seen(engine, 0, "state") == (state,)
    engine.set_pull(0, (1,))
    engine.set_target(0, 1)
    engine.advance(1000)
    assert column(engine, "admitted_ps") == [-1, 90]
    engine.set_pull(0, ())
    engine.set_pull(0, (0,))
    engine.advance(2000)
    assert column(engine, "admitted_ps") == [1000, 90]


def test_an_empty_list_lets_the_batch_end_and_takes_nobody(engine_class: Engine) -> None:
    engine = run(engine_class, queued(pool(batch_limit=1)), table((0, 4, 3), (0, 4, 1)), 10)
    engine.set_pull(0, ())
    engine.advance(1000)
    assert times(engine, 0)[2] == 61
    assert engine.queues() == [[1], []]
    assert seen(engine, 0, "running", "state") == (0, InstanceState.ACTIVE)


def test_a_request_remembers_its_queue_when_the_list_changes(engine_class: Engine) -> None:
    """An eviction by command puts it back where it came from, whoever pulls there now."""
    spec = queued(pool(pull=(1,)), priorities=(0, 1))
    engine = run(engine_class, spec, table((0, 4, 9, 1)), 20)
    engine.set_pull(0, (0,))
    engine.evict(0, 1)
    engine.advance(1000)
    assert engine.queues() == [[], [0]]
    assert column(engine, "emitted_tokens") == [2]


@pytest.mark.parametrize("before", [True, False])
def test_static_batches_can_be_switched(engine_class: Engine, before: bool) -> None:
    spec = queued(pool(batch_limit=4, static_batch=before))
    engine = run(engine_class, spec, table((0, 4, 9), (62, 2, 9)), 65)
    engine.set_operations(0, static_batch=not before)
    engine.advance(10**5)
    # Boundaries at 17, 38, 61, 86, 113. Switched on at 65, the batch is closed by the next launch of a
    # decode iteration, and 86 still takes the other one; switched off, the launch at 86 opens it.
    assert column(engine, "admitted_ps")[1] == (113 if before else 86)
