"""vLLM's V1 scheduler, docs/engine.md section 19: cases worked out by hand, on both engines.

A block has 4 tokens, a step takes 10 ps and 1 more for each token in it.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from baselines import make_policy
from llmscale_env import load_scenario, run_episode
from llmscale_env.scenarios.pools import PoolConfig, V1Config
from llmscale_env.sim.fast import FastEngine
from llmscale_env.sim.spec import (
    ClusterSpec,
    PlacementSpec,
    PreemptionMode,
    ProfileSpec,
    PullRule,
    RequestState,
    RouterKind,
    RouteSpec,
    V1Spec,
)
from llmscale_env.workload.prefixes import Prefixes, spans_of
from llmscale_env.workload.requests import RequestTable
from tests.refusals import refuses
from tests.small_clusters import Engine, column, pool, run, seen, table
from tests.small_world import SMALL_WORLD
from tests.test_engines_agree import compared, never_reached
from tests.v1_cases import V1_MECHANISMS, make_v1_case

WHENEVER = 10**6


def cluster(blocks: int = 10, budget: int = 8, const_ps: int = 10, **changes: Any) -> ClusterSpec:
    """One instance; `changes` are those of its pool, or of its `V1Spec`. Without prefix cache by default."""
    changes = {"prefix_cache": False, **changes}
    of_v1 = {name: changes.pop(name) for name in V1Spec.__annotations__ if name in changes}
    profile = ProfileSpec.linear(
        max_batch=min(8, budget),
        decode_const_ps=const_ps,
        decode_per_request_ps=1,
        decode_per_token_ps=0,
        prefill_const_ps=const_ps,
        prefill_per_token_ps=1,
        kv_capacity_tokens=4 * blocks,
    )
    fields = {"pull": (), "batch_limit": min(8, budget), "chunk_tokens": budget}
    v1 = V1Spec(block_tokens=4, **of_v1)
    return ClusterSpec(
        profiles=(profile,),
        pools=(pool(v1=v1, **(fields | changes)),),
        routes=((RouteSpec(RouterKind.ROUND_ROBIN, (0,)),),),
        half_block_tokens=0,
    )


def first_and_last(engine: Any) -> list[tuple[int, int]]:
    """(first token, last token) of every request."""
    return list(zip(column(engine, "first_token_ps"), column(engine, "finished_ps"), strict=True))


def test_one_request_step_after_step(engine_class: Engine) -> None:
    """5 tokens in, 3 out: 5, 1 and 1 tokens, each step after 3 ps of the host's."""
    spec = cluster(asynchronous=False, host_base_ps=2, host_per_request_ps=1)
    engine = run(engine_class, spec, table((0, 5, 3)), WHENEVER)
    assert first_and_last(engine) == [(18, 18 + 14 + 14)]
    assert seen(engine, 0, "iterations", "tokens") == (3, 3)


def test_one_request_with_steps_composed_ahead(engine_class: Engine) -> None:
    """The first step waits for the host; the others are ready when the one before them ends."""
    spec = cluster(host_base_ps=2, host_per_request_ps=1)
    engine = run(engine_class, spec, table((0, 5, 3)), WHENEVER)
    assert first_and_last(engine) == [(3 + 15, 3 + 15 + 11 + 11)]
    assert seen(engine, 0, "iterations", "tokens") == (3, 3)


def test_chunks_beside_a_decode(engine_class: Engine) -> None:
    """B comes while the first step runs, when the second is composed already: it is in the third."""
    engine = run(engine_class, cluster(), table((0, 3, 6), (1, 20, 2)), WHENEVER)
    # Steps: A 3 | A 1 | A 1, B 7 | A 1, B 7 | A 1, B 6 | A 1, B 1.
    assert first_and_last(engine) == [(13, 89), (77, 89)]


def test_a_place_in_the_batch_comes_free_one_step_later(engine_class: Engine) -> None:
    """A's last token comes out at 24. The step composed at 13 holds nothing, as A still has the place."""
    engine = run(engine_class, cluster(batch_limit=1), table((0, 3, 2), (0, 3, 2)), WHENEVER)
    assert first_and_last(engine) == [(13, 24), (24 + 13, 24 + 13 + 11)]
    engine = run(
        engine_class,
        cluster(batch_limit=1, asynchronous=False),
        table((0, 3, 2), (0, 3, 2)),
        WHENEVER,
    )
    assert first_and_last(engine) == [(13, 24), (37, 48)]


def test_preempted_in_flight(engine_class: Engine) -> None:
    """5 blocks. Both need a third for their second decode: B gives way, and its token still comes."""
    engine = run(engine_class, cluster(blocks=5, budget=16), table((0, 7, 6), (0, 7, 5)), 30)
    assert seen(engine, 0, "running", "preempted", "kv_tokens") == (1, 1, 12)
    engine.advance(WHENEVER)
    # B is taken back at 80 with 9 tokens, and emits its third to fifth token.
    assert first_and_last(engine) == [(24, 80), (24, 80 + 19 + 11 + 11)]
    assert column(engine, "preemptions") == [0, 1]


def test_the_head_must_fit_as_a_whole(engine_class: Engine) -> None:
    """B needs 4 blocks of which 2 are free; a chunk of it would fit, and so would C, behind it."""
    rows = table((0, 12, 4), (18, 16, 1), (18, 2, 1))
    engine = run(engine_class, cluster(blocks=6), rows, WHENEVER)
    assert first_and_last(engine) == [(32, 65), (101, 101), (113, 113)]
    assert column(engine, "admitted_ps")[1] == 65
    engine = run(engine_class, cluster(blocks=6, reserve_full=False), rows, WHENEVER)
    assert column(engine, "admitted_ps")[1] == 32  # 7 tokens of it, in the 2 blocks


def test_finished_while_preempted(engine_class: Engine) -> None:
    """The host needs 8 ps for a step, the GPU 5. B gives way with its last token in flight, and ends."""
    profile_ps = {"const_ps": 3, "host_base_ps": 8}
    engine = run(
        engine_class, cluster(blocks=4, budget=16, **profile_ps), table((0, 7, 4), (0, 7, 2)), 26
    )
    assert seen(engine, 0, "running", "preempted") == (1, 1)
    engine.advance(WHENEVER)
    # 0 composed | 8 the first step, of 17 ps | 25 a token each, B gives way | 33 B ends.
    assert first_and_last(engine)[1] == (25, 33)


# ---- the prefix cache ----------------------------------------------------------------------------


def sharing(table: RequestTable, *prefixes: tuple[int, int]) -> RequestTable:
    """The table with (prefix_of, prefix_tokens) of each request."""
    of, tokens = zip(*prefixes, strict=True)
    shared = spans_of(of, tokens, table.input_tokens, table.output_tokens)
    return replace(table, prefixes=shared)


def served(engine_class: Engine, spec: ClusterSpec, requests: RequestTable) -> Any:
    engine = run(engine_class, spec, requests, WHENEVER)
    assert engine.conservation()[RequestState.FINISHED] == len(requests)
    return engine


def test_a_hit_inside_one_step(engine_class: Engine) -> None:
    """Equal prompts of 9. B comes next in the same step, finds A's 2 full blocks and computes 1 token."""
    rows = sharing(table((0, 9, 2), (0, 9, 2)), (-1, 0), (0, 9))
    engine = run(engine_class, cluster(blocks=8, budget=16, prefix_cache=True), rows, 1)
    assert seen(engine, 0, "kv_tokens", "kv_cached") == (4 * 4, 0)  # two blocks once, one more each
    engine.advance(WHENEVER)
    assert first_and_last(engine) == [(20, 32), (20, 32)]
    assert column(engine, "cached_tokens") == [0, 8]
    assert engine.cached_blocks() == [[(0, 1), (0, 0)]]
    assert seen(engine, 0, "asked_tokens", "hit_tokens", "kv_cached") == (18, 8, 8)


def test_a_prompt_that_is_there_as_a_whole(engine_class: Engine) -> None:
    """One token must be computed: of 2 blocks B finds 1. Its second one bears A's name a second time."""
    rows = sharing(table((0, 8, 1), (40, 8, 1)), (-1, 0), (0, 8))
    engine = served(engine_class, cluster(blocks=8, prefix_cache=True), rows)
    assert first_and_last(engine) == [(18, 18), (54, 54)]
    assert column(engine, "cached_tokens") == [0, 4]
    assert engine.cached_blocks() == [[(0, 1), (0, 1), (0, 0)]]


def test_the_next_turn(engine_class: Engine) -> None:
    """A leaves 12 tokens, as the KV of its 7th is never made. B is A's 13 tokens and 2 more."""
    rows = sharing(table((0, 6, 7), (200, 15, 2)), (-1, 0), (0, 13))
    engine = served(engine_class, cluster(blocks=8, prefix_cache=True), rows)
    assert first_and_last(engine) == [(16, 82), (213, 224)]
    assert column(engine, "cached_tokens") == [0, 12]
    assert engine.cached_blocks() == [[(1, 3), (0, 2), (0, 1), (0, 0)]]


def test_what_was_released_first_goes_first(engine_class: Engine) -> None:
    """6 blocks. C finds A's first one, and takes 2 without a name and A's second one. D is B again."""
    rows = sharing(
        table((0, 8, 1), (40, 9, 1), (80, 16, 1), (140, 9, 1)), (-1, 0), (-1, 0), (0, 4), (1, 9)
    )
    spec = cluster(blocks=6, budget=16, prefix_cache=True)
    engine = run(engine_class, spec, rows, 70)
    assert engine.cached_blocks() == [[(0, 1), (0, 0), (1, 1), (1, 0)]]
    engine.advance(120)
    assert engine.cached_blocks() == [[(1, 1), (1, 0), (2, 3), (2, 2), (2, 1), (0, 0)]]
    engine.advance(WHENEVER)
    assert first_and_last(engine) == [(18, 18), (59, 59), (102, 102), (151, 151)]
    assert column(engine, "cached_tokens") == [0, 0, 4, 8]
    assert engine.cached_blocks() == [[(2, 2), (2, 1), (0, 0), (1, 1), (1, 0)]]


def test_who_gave_way_finds_its_own_blocks(engine_class: Engine) -> None:
    """As in `test_preempted_in_flight`, but B finds its first block: 5 tokens to compute, not 9."""
    spec = cluster(blocks=5, budget=16, prefix_cache=True)
    engine = run(engine_class, spec, table((0, 7, 6), (0, 7, 5)), 30)
    assert engine.cached_blocks() == [
        [(1, 0)]
    ]  # its second block has just become full: no name yet
    engine.advance(WHENEVER)
    assert first_and_last(engine) == [(24, 80), (24, 80 + 15 + 11 + 11)]
    assert column(engine, "cached_tokens") == [0, 0]  # at the first admission
    # As vLLM, which counts B's 4 apart.
    assert seen(engine, 0, "asked_tokens", "hit_tokens") == (14, 0)
    assert engine.cached_blocks() == [[(0, 1), (0, 0), (1, 1), (1, 0)]]


def test_one_that_waits_may_find_more_later(engine_class: Engine) -> None:
    """5 blocks, of which A holds 3. B begins with 16 tokens of A, finds 8, and needs 3 blocks beside them.

    At 51 A knows 12 tokens: its third block has a name, and B needs 2.
    """
    rows = sharing(table((0, 8, 12), (20, 17, 1)), (-1, 0), (0, 16))
    spec = cluster(blocks=5, budget=32, prefix_cache=True, asynchronous=False)
    engine = served(engine_class, spec, rows)
    assert column(engine, "admitted_ps") == [0, 51]
    assert column(engine, "cached_tokens") == [0, 12]
    assert seen(engine, 0, "asked_tokens", "hit_tokens") == (
        8 + 17,
        12,
    )  # once, however often it was tried
    assert first_and_last(engine) == [(18, 67 + 7 * 11), (67, 67)]
    assert column(engine, "preemptions") == [0, 0]


def test_memory_that_is_lost(engine_class: Engine) -> None:
    rows = sharing(table((0, 9, 1), (100, 9, 1), (300, 9, 1)), (-2, 8), (-2, 8), (-2, 8))
    engine = run(engine_class, cluster(prefix_cache=True, repair_ps=5), rows, 150)
    assert column(engine, "cached_tokens") == [0, 8, 0]
    assert engine.cached_blocks() == [[(-2, 1), (-2, 0)]]
    engine.fail(0)
    assert seen(engine, 0, "kv_cached", "hit_tokens") == (0, 8)
    engine.advance(WHENEVER)
    assert column(engine, "cached_tokens") == [0, 8, 0]


def test_names_of_pieces_go_on(engine_class: Engine) -> None:
    """A turn whose predecessor came in an earlier piece, and has been forgotten, finds it."""
    whole = sharing(table((0, 6, 7), (200, 15, 2), (400, 9, 1)), (-1, 0), (0, 13), (-1, 0))
    spec = cluster(blocks=8, prefix_cache=True)
    engine = run(engine_class, spec, whole.take(np.arange(1)), 100)
    engine.retire()
    engine.extend(whole.take(np.arange(1, 2)))
    engine.advance(300)
    assert engine.retire().results["cached_tokens"].tolist() == [12]
    assert whole.prefixes is not None
    names = replace(whole.prefixes.take(np.arange(2, 3)), name=np.array([1]))
    again = replace(whole.take(np.arange(2, 3)), prefixes=names)
    refuses(r"prefixes.name\[0\] = 1: must be at least 2", engine.extend, again)


@pytest.mark.parametrize(
    "of, tokens, said",
    [
        ([-1, 1], [0, 3], r"prefix_of\[1\] = 1: must be an earlier row"),
        ([-1, 0], [0, 9], r"prefix_tokens\[1\] = 9: must be in 0..8"),
        ([-1, 0], [0, 7], r"prefix_tokens\[1\] = 7: must be in 0..6"),
        ([-1, -1], [0, 1], r"prefix_tokens\[1\] = 1: must be in 0..0"),
        ([-1], [0], "prefix_of: must be 2 whole numbers"),
    ],
)
def test_what_prefixes_cannot_be(of: list[int], tokens: list[int], said: str) -> None:
    inputs = np.array([4, 8 if tokens[-1] != 7 else 20])
    with pytest.raises(ValueError, match=said):
        spans_of(of, tokens, inputs, np.array([5 if tokens[-1] != 7 else 2, 1]))


@pytest.mark.parametrize(
    "owner, end, said",
    [
        ([-2, 0], [9, 4], r"prefixes.end\[1\] = 4: must be at least 1, and rise"),
        ([-2, 0], [0, 4], r"prefixes.end\[0\] = 0: must be at least 1"),
        ([-2, 0], [4, 13], r"prefixes.end\[1\] = 13: must not be behind the prompt"),
        ([-2, 1], [4, 9], r"prefixes.owner\[1\] = 1: must be below the request's own name"),
        ([-1, 0], [4, 9], r"prefixes.owner\[0\] = -1: must be a name, or -2 or below"),
        ([-2, 0], [4, 9.5], r"end\[1\] = 9.5: must be a whole number"),
    ],
)
def test_spans_that_cannot_be(owner: list[int], end: Any, said: str) -> None:
    """The engines follow spans unseen: a fall in them had led out of the arrays."""
    with pytest.raises(ValueError, match=said):
        replace(table((0, 9, 6), (0, 12, 6)), prefixes=Prefixes([0, 1], [0, 0, 2], owner, end))


@pytest.mark.parametrize(
    "columns, said",
    [
        ({"prefix_of": [float("nan"), -1], "prefix_tokens": [4, 0]}, r"prefix_of\[0\] = nan"),
        ({"prefix_of": [-1, 0], "prefix_tokens": [0, 1.5]}, r"prefix_tokens\[1\] = 1.5"),
        ({"prefix_of": [-(2**70), 0]}, "prefix_of: of type object, must be whole numbers of 64"),
        ({"prefix_of": [-2], "prefix_tokens": 7}, r"prefix_tokens\[0\] = 7: must be in 0..6"),
        ({"prefix_of": [-1, -1, -1]}, r"prefix_of: of shape \(3,\), must be a number or 2 of them"),
        ({"prefix_tokens": 4}, "prefix_tokens: needs prefix_of"),
        (
            {"input_tokens": [2**32 + 4, 8]},
            r"input_tokens\[0\] = 4294967300: must be a whole number",
        ),
        ({"output_tokens": [1, 2.5]}, r"output_tokens\[1\] = 2.5: must be a whole number"),
        ({"arrival_s": [0, 1e30]}, r"arrival_ps\[1\] = 1e\+42: must be a whole number"),
        ({"arrival_s": 3.0}, r"arrival_s: of shape \(\), must be a list of numbers"),
    ],
)
def test_tables_that_cannot_be_built(columns: dict[str, Any], said: str) -> None:
    given = {"arrival_s": [0, 1], "input_tokens": [6, 8], "output_tokens": [2, 1], **columns}
    with pytest.raises(ValueError, match=said):
        RequestTable.build(**given)


def test_chains_are_resolved_once() -> None:
    """The third turn begins with tokens of the shared prompt, of the first turn and of the second."""
    rows = RequestTable.build(
        [0, 1, 2, 3],
        [6, 12, 20, 8],
        [2, 4, 1, 1],
        prefix_of=[-2, 0, 1, 2],
        prefix_tokens=[5, 8, 15, 7],
    )
    assert rows.prefixes is not None
    spans = [rows.prefixes.spans(row) for row in range(4)]
    assert spans == [[(-2, 5)], [(-2, 5), (0, 8)], [(-2, 5), (0, 8), (1, 15)], [(-2, 5), (0, 7)]]
    later = rows.take(np.array([1, 3])).prefixes
    assert later is not None
    assert [later.spans(row) for row in range(2)] == [spans[1], spans[3]]
    assert later.name.tolist() == [1, 3]
    joined = rows.take(np.array([0])).followed_by(rows.take(np.array([2, 3]))).prefixes
    assert joined is not None
    assert [joined.spans(row) for row in range(3)] == [spans[0], spans[2], spans[3]]
    with pytest.raises(ValueError, match="in both tables, or in neither"):
        rows.followed_by(table((5, 3, 2)))
    with pytest.raises(ValueError, match="prefixes: of 2 requests, must be of 4"):
        replace(rows, prefixes=later)


def test_a_saved_episode_has_its_cache() -> None:
    """Arrays grow as the cache fills, and a restored episode goes on as the first one did."""
    cases = (c for c in map(make_v1_case, range(100)) if c.requests.prefixes is not None)
    case = next(c for c in cases if c.spec.custom_router is None)  # a compiled router has no copies
    stop = case.stops_ps[-1] // 3
    engine = FastEngine(case.spec, case.requests)
    engine.advance(stop)
    saved = engine.save()
    engine.advance(case.stops_ps[-1])
    expected, cached = engine.results(), engine.cached_blocks()
    for other in (FastEngine(case.spec, case.requests), pickle.loads(pickle.dumps(engine.batch))):
        batch = other.batch if isinstance(other, FastEngine) else other
        batch.restore(0, saved)
        batch.advance(0, case.stops_ps[-1])
        assert np.array_equal(batch.results(0), expected)
        assert batch.cached_blocks(0) == cached
    for name in ("extent", "bucket", "span"):
        with pytest.raises(ValueError, match=f"^{name}: {len(saved[name]) // 2} rows, must be"):
            batch.restore(0, {**saved, name: saved[name][: len(saved[name]) // 2]})


# ---- generated cases and scenarios ---------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 40])
def test_engines_agree(first: int) -> None:
    for seed in range(first, first + 40):
        compared(seed, make_v1_case(seed))


@pytest.mark.slow
def test_cases_reach_every_mechanism() -> None:
    assert never_reached(make_v1_case, V1_MECHANISMS) == []


def as_v1(**of_pool: Any) -> dict[str, Any]:
    """Overrides by which the three pools of the small world schedule as vLLM V1 does."""
    names = ("interactive", "mixed", "batch")
    changes = {"v1": {}, "evicts": False, "controller": "fixed", "chunk_tokens": 4096, **of_pool}
    return {f"fleet.pools.{name}.{field}": v for name in names for field, v in changes.items()}


def test_a_scenario_runs_on_both_engines() -> None:
    scenario = load_scenario(SMALL_WORLD, horizon_s=120, **as_v1())
    one, other = (
        run_episode(make_policy("static"), scenario, 1, engine=name)
        for name in ("fast", "reference")
    )
    assert one.requests.equals(other.requests)
    assert one.summary == other.summary


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"chunk_tokens": 512}, "chunk_tokens = 512: must be at least max_batch"),
        ({"preemption": "swap"}, "preemption = 'swap': must be 'recompute' with v1"),
        ({"async_kv": True}, "async_kv: not together with v1"),
        ({"kv_watermark": 0.01}, "kv_watermark: with v1, give v1.watermark"),
        ({"average_hits": {"hit_share": 0.5}}, "average_hits: not together with v1.prefix_cache"),
        ({"v1": {"host_s": -1}}, "host_s"),
    ],
)
def test_what_a_scenario_cannot_say(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load_scenario(SMALL_WORLD, **as_v1(**changes))


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"evicts": True}, "evicts: not in a pool with v1"),
        ({"async_kv": True}, "async_kv: not in a pool with v1"),
        ({"evicts_in_order": True}, "evicts_in_order: not in a pool with v1"),
        ({"preemption": PreemptionMode.SWAP}, "preemption RECOMPUTE"),
        ({"chunk_tokens": 4}, "chunk_tokens = 4: must be at least 8 with v1"),
        ({"v1": V1Spec(block_tokens=7)}, "block_tokens = 7: kv_capacity_tokens, 40, must be"),
        ({"v1": V1Spec(block_tokens=0)}, "block_tokens = 0: must be an integer in 1.."),
        ({"v1": V1Spec(host_base_ps=-1)}, "host_base_ps = -1"),
    ],
)
def test_what_a_pool_cannot_be(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        cluster().with_pool(0, **changes)


def test_what_cannot_be_ordered(engine_class: Engine) -> None:
    engine = run(engine_class, cluster(), table((0, 3, 2)), 1)
    refuses("without v1", engine.set_operations, 0, None, True)
    engine.set_operations(0, PullRule.EARLIEST_DEADLINE)
    placed = RouteSpec(RouterKind.BEST_FIT, (0,), placement=PlacementSpec(1, 1, 1, 1, 1, 9, 9))
    with pytest.raises(ValueError, match="placement: not with pools of v1"):
        ClusterSpec(profiles=cluster().profiles, pools=cluster().pools, routes=((placed,),))


def test_new_pools_schedule_as_v1_does() -> None:
    """Nothing said: vLLM's own budget; `v1: null` is what the papers' systems run on."""
    pool = {"name": "mine", "llm": "llama-3.1-8b", "max_instances": 2}
    today = PoolConfig.model_validate(pool)
    assert today.v1 == V1Config()
    assert (today.chunk_tokens, today.batch_limit, today.watermark) == (2048, 256, 0.0)
    on_h100 = PoolConfig.model_validate({**pool, "gpu": "h100-80gb"})
    assert (on_h100.chunk_tokens, on_h100.batch_limit) == (8192, 1024)
    small = PoolConfig.model_validate({**pool, "gpu": "h100-80gb", "chunk_tokens": 512})
    assert (small.max_batch, small.batch_limit) == (512, 512)
    assert PoolConfig.model_validate(today.model_dump()) == today
    before = PoolConfig.model_validate({**pool, "v1": None, "evicts": True})
    assert (before.chunk_tokens, before.watermark) == (0, 0.01)
    with pytest.raises(ValueError, match="evicts: not together with v1; `v1: null`"):
        PoolConfig.model_validate({**pool, "evicts": True})
    for field, value in (("v1", True), ("v1", "today"), ("average_hits", False)):
        with pytest.raises(ValueError, match=f"must be fields, as in `{field}: .*v1.prefix_cache"):
            PoolConfig.model_validate({**pool, field: value})
