"""vLLM's V1 scheduler, docs/engine.md section 19: cases worked out by hand, on both engines.

A block has 4 tokens, a step takes 10 ps and 1 more for each token in it.
"""

from __future__ import annotations

from typing import Any

import pytest

from baselines import make_policy
from llmscale_env import load_scenario, run_episode
from llmscale_env.sim.spec import (
    ClusterSpec,
    PlacementSpec,
    PreemptionMode,
    ProfileSpec,
    PullRule,
    RouterKind,
    RouteSpec,
    V1Spec,
)
from tests.refusals import refuses
from tests.small_clusters import Engine, column, pool, run, seen, table
from tests.test_engines_agree import compared, never_reached
from tests.v1_cases import V1_MECHANISMS, make_v1_case

WHENEVER = 10**6


def cluster(blocks: int = 10, budget: int = 8, const_ps: int = 10, **changes: Any) -> ClusterSpec:
    """One instance; `changes` are those of its pool, or of its `V1Spec`."""
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


# ---- generated cases and scenarios ---------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 40])
def test_engines_agree(first: int) -> None:
    for seed in range(first, first + 40):
        compared(seed, make_v1_case(seed))


@pytest.mark.slow
def test_cases_reach_every_mechanism() -> None:
    assert never_reached(make_v1_case, V1_MECHANISMS) == []


def as_v1(**of_pool: Any) -> dict[str, Any]:
    """Overrides by which the three pools of `mixed-slo-v0` schedule as vLLM V1 does."""
    names = ("interactive", "mixed", "batch")
    changes = {"v1": {}, "evicts": False, "controller": "fixed", "chunk_tokens": 4096, **of_pool}
    return {f"fleet.pools.{name}.{field}": v for name in names for field, v in changes.items()}


def test_a_scenario_runs_on_both_engines() -> None:
    scenario = load_scenario("mixed-slo-v0", horizon_s=120, **as_v1())
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
        ({"kv_watermark": 0.1}, "kv_watermark: with v1, give v1.watermark"),
        ({"v1": {"host_s": -1}}, "host_s"),
    ],
)
def test_what_a_scenario_cannot_say(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load_scenario("mixed-slo-v0", **as_v1(**changes))


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
