"""Routers that go by prompts, docs/engine.md sections 6 and 19: cases worked out by hand, on both engines.

As in `test_vllm_v1`: a block has 4 tokens, a step takes 10 ps and 1 more for each token in it. There are two
instances, each a pool; class 0 may go to both, class 1 goes to instance 0, class 2 to instance 1.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from agents.runs.comparison import run_policy, summarise
from agents.runs.comparison import table as comparison_table
from baselines import make_policy
from llmscale_env import load_scenario, run_episode
from llmscale_env.sim.custom_router import FEATURES, router
from llmscale_env.sim.spec import ClassSpec, ClusterSpec, RouterKind, RouteSpec
from tests.small_clusters import Engine, column, run, table
from tests.small_world import SMALL_WORLD
from tests.test_vllm_v1 import WHENEVER, as_v1, cluster, sharing

HITS = FEATURES.index("prefix_hit_tokens")
NONE, SHARED = (-1, 0), (-2, 8)
"""In `sharing`: begins like nothing else; with two blocks of a prompt that no request owns."""


def two(
    kind: int, blocks: int = 20, custom: Any = None, v1: bool = True, **of_route: Any
) -> ClusterSpec:
    """Class 0 goes by `kind`."""
    spec = cluster(blocks, budget=16, prefix_cache=True)
    pool = spec.pools[0] if v1 else replace(spec.pools[0], v1=None)
    alone = (RouteSpec(RouterKind.ROUND_ROBIN, (p,)) for p in range(2))
    return replace(
        spec,
        pools=(pool, pool),
        routes=((RouteSpec(kind, (0, 1), **of_route), *alone),),
        classes=(ClassSpec(),) * 3,
        custom_router=custom,
    )


# ---- what is found -------------------------------------------------------------------------------


def most_hits(features, n, request_id, input_tokens, predicted, slo_class):  # type: ignore[no-untyped-def]
    best = 0
    for k in range(1, n):
        if features[k, HITS] > features[best, HITS]:
            best = k
    return best


def at_least_12(features, n, request_id, input_tokens, predicted, slo_class):  # type: ignore[no-untyped-def]
    return 0 if features[1, HITS] >= 12 else 1


def test_a_custom_router_sees_hits(engine_class: Engine) -> None:
    """Instance 1 has the shared prompt. Of 8 tokens of it a prompt of 8 finds 4: one token is computed."""
    rows = sharing(
        table((0, 9, 1, 2), (50, 9, 1), (100, 5, 1), (150, 8, 1)), SHARED, SHARED, NONE, SHARED
    )
    engine = run(engine_class, two(RouterKind.CUSTOM, custom=router(most_hits)), rows, WHENEVER)
    assert column(engine, "instance") == [1, 1, 0, 1]
    assert column(engine, "cached_tokens") == [0, 8, 0, 4]


def test_blocks_filled_while_decoding_are_found_at_once(engine_class: Engine) -> None:
    """Request 0 has 6 tokens and, from 16 ps on, one more every 11 ps: the 12th at 71 ps."""
    rows = sharing(table((0, 6, 40, 2), (70, 31, 1), (71, 31, 1)), NONE, (0, 30), (0, 30))
    engine = run(engine_class, two(RouterKind.CUSTOM, custom=router(at_least_12)), rows, WHENEVER)
    assert column(engine, "instance") == [1, 1, 0]


def test_blocks_taken_while_decoding_are_no_longer_found(engine_class: Engine) -> None:
    """5 blocks. Request 0 leaves 4 with names. Request 1 takes the one without, at 113 ps the last of the
    others for its 5th token, and at 157 ps the next one for its 9th token."""
    rows = sharing(
        table((0, 17, 1, 2), (100, 3, 9, 2), (156, 17, 1), (157, 17, 1)),
        *(NONE, NONE, (0, 16), (0, 16)),
    )
    engine = run(engine_class, two(RouterKind.CUSTOM, 5, router(at_least_12)), rows, WHENEVER)
    assert column(engine, "instance") == [1, 1, 0, 1]


def test_no_cache_nothing_found(engine_class: Engine) -> None:
    rows = sharing(table((0, 9, 1, 2), (50, 9, 1)), SHARED, SHARED)
    spec = two(RouterKind.CUSTOM, custom=router(most_hits), v1=False)
    assert column(run(engine_class, spec, rows, WHENEVER), "instance") == [1, 0]


def test_a_lookup_leaves_the_order_of_eviction(engine_class: Engine) -> None:
    """Request 2 finds 8 tokens at instance 0, but load alone counts, and goes to instance 1."""
    rows = sharing(
        table((0, 9, 1, 1), (50, 9, 1, 1), (100, 5, 60, 1), (130, 9, 1)), NONE, NONE, NONE, (0, 8)
    )
    spec = two(RouterKind.PREFIX_AWARE, prefill_load_scale=0.0)
    engine = run(engine_class, spec, rows, 129)
    before = engine.cached_blocks()[0]
    assert before == [(0, 1), (0, 0), (1, 1), (1, 0)]
    engine.advance(131)
    assert engine.cached_blocks()[0] == before
    engine.advance(WHENEVER)
    assert column(engine, "instance")[3] == 1


# ---- the rules -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other, scale, credit, chosen",
    [
        ((80, 6), 1.0, 1.0, 0),  # 1 to compute and 8 in memory against 9 and 0: a tie
        ((80, 7), 1.0, 1.0, 1),  # 1 + 12 against 9
        ((80, 7), 2.0, 1.0, 0),  # 2 + 12 against 18
        ((80, 6), 1.0, 0.75, 1),  # 3 + 8 against 9
        ((80, 6), 1.0, 0.0, 1),  # 9 + 8 against 9
        ((80, 1), 0.0, 1.0, 1),  # 4 against 0
        ((95, 6), 2.0, 1.0, 1),  # its prompt is not computed yet: 2 * (1 + 6) + 8 against 18
    ],
)
def test_prompt_tokens_to_compute_against_tokens_in_memory(
    engine_class: Engine, other: tuple[int, int], scale: float, credit: float, chosen: int
) -> None:
    """At 100 ps instance 0 has the prompt's 8 tokens, and runs another request: (arrival, prompt).

    That has been given its prompt and 1 token more, or 2 where its prompt is computed.
    """
    rows = sharing(table((0, 9, 1, 1), (*other, 20, 1), (100, 9, 1)), SHARED, NONE, SHARED)
    of_route = {"prefill_load_scale": scale, "overlap_score_credit": credit}
    engine = run(engine_class, two(RouterKind.PREFIX_AWARE, **of_route), rows, WHENEVER)
    assert column(engine, "instance")[2] == chosen
    assert column(engine, "cached_tokens")[2] == (8 if chosen == 0 else 0)


def test_who_waits_counts_with_what_it_has_to_compute(engine_class: Engine) -> None:
    """Three at once. Instance 0 costs 3, then 3 * 2 + 10, then 3 * 3 + 20; instance 1 costs 3 * 9."""
    rows = sharing(table((0, 9, 1, 1), *[(100, 9, 1)] * 3), *[SHARED] * 4)
    engine = run(engine_class, two(RouterKind.PREFIX_AWARE, prefill_load_scale=3.0), rows, WHENEVER)
    assert column(engine, "instance") == [0, 0, 0, 1]


@pytest.mark.parametrize("v1", [True, False])
def test_least_pending_prefill(engine_class: Engine, v1: bool) -> None:
    """Prompts of 5, 9, 3, 3, 1 make 11 on instance 0 and 10 on 1. At 40 ps all are computed."""
    rows = table((0, 5, 1), (0, 9, 1), (0, 3, 1), (0, 3, 1), (0, 1, 1), (1, 1, 1), (40, 1, 1))
    engine = run(engine_class, two(RouterKind.LEAST_PENDING_PREFILL, v1=v1), rows, WHENEVER)
    assert column(engine, "instance") == [0, 1, 0, 0, 1, 1, 0]


def test_a_prompt_counts_until_its_steps_have_ended(engine_class: Engine) -> None:
    """A prompt of 40 takes steps of 16, 16 and 8 that end at 26, 52 and 70: 24 are left at 27, 8 at 53."""
    rows = table(
        *((0, 40, 1, 1), (27, 25, 1, 2), (27, 1, 1), (53, 9, 1, 2), (60, 1, 1), (70, 1, 1))
    )
    engine = run(engine_class, two(RouterKind.LEAST_PENDING_PREFILL), rows, WHENEVER)
    assert column(engine, "instance") == [0, 1, 0, 1, 0, 0]


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"prefill_load_scale": -1.0}, r"prefill_load_scale = -1.0: must be in 0..1000"),
        ({"overlap_score_credit": math.nan}, r"overlap_score_credit = nan: must be in 0..1"),
        ({"decode_kind": RouterKind.PREFIX_AWARE}, r"decode_kind = .*: must be one of \["),
    ],
)
def test_what_a_route_cannot_say(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        two(RouterKind.PREFIX_AWARE, **changes)


# ---- in a scenario -------------------------------------------------------------------------------


def test_hit_rates_of_an_episode() -> None:
    scenario = load_scenario("chat-prefix", horizon_s=150)
    results = {
        rule: run_episode(make_policy(f"static:router={rule}"), scenario, 3)
        for rule in ("round-robin", "prefix-aware")
    }
    summary, frame = results["prefix-aware"].summary, results["prefix-aware"].requests
    admitted = frame[frame["instance"] >= 0]
    assert admitted["preemptions"].sum() == 0
    found, asked = admitted["cached_tokens"].sum(), admitted["input_tokens"].sum()
    assert summary["prefix_hit_rate"] == summary["pool/chat/prefix_hit_rate"] == found / asked
    assert summary["joint/cached_tokens_mean"] == pytest.approx(admitted["cached_tokens"].mean())
    assert summary["prefix_hit_rate"] > results["round-robin"].summary["prefix_hit_rate"] > 0.1
    assert "prefix hits" in str(results["prefix-aware"])


def test_without_a_cache_there_is_no_hit_rate() -> None:
    for changes, there in (({}, False), (as_v1(), True)):
        scenario = load_scenario(SMALL_WORLD, horizon_s=60, **changes)
        rows = run_policy(make_policy("static"), scenario, [1, 2])
        assert ("prefix_hit_rate" in rows[0]) is there
        assert ("joint/cached_tokens_mean" in rows[0]) is there
        shown = comparison_table(summarise(rows, scenario), scenario)
        assert ("prefix hits %" in shown) is there
