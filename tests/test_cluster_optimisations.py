"""Prefix caching and speculative decoding: tables by hand, limits, messages, scenarios, both engines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from baselines.profile import pool_tokens_per_s
from experiments import best_batch_size
from llmscale_env.cluster.cards import gpu_card, llm_card
from llmscale_env.cluster.iteration_data import load_models
from llmscale_env.cluster.iteration_model import IterationTables
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.cluster.kv import (
    DoesNotFitError,
    activation_reserve_bytes,
    fitting_tp,
    kv_capacity_tokens,
)
from llmscale_env.cluster.optimisations import (
    AverageHits,
    SpeculativeConfig,
    check_draft,
    draft_model,
    optimised_tables,
    tokens_per_round,
    verification_base_ps,
    with_average_hits,
    with_speculation,
)
from llmscale_env.control.reward import draw_requests, serving_cost_gpu_s
from llmscale_env.scenarios import ScenarioError, load_scenario
from llmscale_env.sim.compile import compile_cluster, pool_load_times_s
from llmscale_env.sim.fast import FastEngine
from llmscale_env.sim.reference import ReferenceEngine
from llmscale_env.sim.spec import ProfileSpec
from llmscale_env.workload.requests import PS_PER_S
from tests.refusals import refuses
from tests.small_world import SMALL_WORLD

GPU = "a100-80gb"
SPEC_70B = SpeculativeConfig()
SPEC_8B = SpeculativeConfig(draft_llm="llama-3.2-3b", draft_tokens=2)


def toy(scale: int = 1, **changes: object) -> IterationTables:
    """Batch sizes 0..4; flat until 10 tokens, then 100 ps a token (times `scale`)."""
    tables = IterationTables(
        decode_base_ps=np.array([1000, 1000, 1010, 1020, 1030]) * scale,
        decode_per_token_ps=np.array([5, 5, 5, 5, 5]) * scale,
        prefill_knot_tokens=np.array([0, 10]),
        prefill_knot_ps=np.array([1000, 1000]) * scale,
        prefill_slope_ps=np.array([0, 100]) * scale,
        prefill_pair_ps=8 * scale,
        mixed_knot_tokens=np.array([0, 10]),
        mixed_knot_ps=np.array([1000, 1000]) * scale,
        mixed_slope_ps=np.array([0, 100]) * scale,
        mixed_base_ps=np.array([0, 1, 2, 3, 4]) * scale,
        mixed_per_token_ps=np.array([5, 5, 5, 5, 5]) * scale,
        mixed_pair_ps=8 * scale,
        mixed_chunk_ps=60 * scale,
        kv_capacity_tokens=1000,
        swap_out_ps_per_token=3 * scale,
        swap_in_ps_per_token=4 * scale,
    )
    return replace(tables, **changes)  # type: ignore[arg-type]


def line_ps(tables: IterationTables, part: str, tokens: float) -> int:
    knots = getattr(tables, f"{part}_knot_tokens")
    k = max(k for k in range(len(knots)) if knots[k] <= tokens)
    ps = getattr(tables, f"{part}_knot_ps")[k]
    return int(ps + getattr(tables, f"{part}_slope_ps")[k] * (tokens - knots[k]))


def mixed_ps(tables: IterationTables, decoding: int, prompt: int) -> int:
    """A chunked iteration without context, pairs and chunk constant, as docs/engine.md has it."""
    return line_ps(tables, "mixed", decoding + prompt) + int(tables.mixed_base_ps[decoding])


def same(one: IterationTables, other: IterationTables) -> bool:
    return all(np.array_equal(v, vars(other)[k]) for k, v in vars(one).items())


# ---- prefix caching ----


def test_average_hits_by_hand():
    config = AverageHits(hit_share=0.5, memory_share=0.25)
    found = with_average_hits(toy(), config, chunk_tokens=40)
    # 20 prompt tokens are 10 new ones: the knot moves out, a prompt token costs half
    assert found.prefill_knot_tokens.tolist() == [0, 20]
    assert found.prefill_knot_ps.tolist() == [1000, 1000]
    assert found.prefill_slope_ps.tolist() == [0, 50]
    assert found.prefill_pair_ps == found.mixed_pair_ps == 6  # 8 * (1 - 1/4)
    assert found.kv_capacity_tokens == 750
    # 4 decoding and 36 prompt tokens, 18 of them new: 22 computed
    assert mixed_ps(found, 4, 36) == 1000 + 100 * 12 + 4
    assert found.mixed_chunk_ps == 60
    assert np.array_equal(found.decode_base_ps, toy().decode_base_ps)
    assert np.array_equal(found.decode_per_token_ps, toy().decode_per_token_ps)


def test_half_a_prompt_cached_costs_what_the_other_half_costs_new():
    model = iteration_time_model("llama-3.1-8b", GPU)
    plain = model.profile()
    found = with_average_hits(plain, AverageHits(hit_share=0.5))
    for n in (100, 256, 1000, 4096, 20_000):
        new, cached = n // 2, n - n // 2
        expected = plain.prefill_s(new, new * (2 * cached + new))
        assert found.prefill_s(n) == pytest.approx(expected, rel=1e-4)


def test_no_hits_and_no_memory_change_nothing():
    nothing = AverageHits(hit_share=0, memory_share=0)
    assert same(with_average_hits(toy(), nothing), toy())
    only_memory = with_average_hits(toy(), AverageHits(hit_share=0, memory_share=0.5))
    assert same(replace(only_memory, kv_capacity_tokens=1000), toy())
    model = iteration_time_model("llama-3.1-8b", GPU)
    assert same(optimised_tables(model), model.profile())


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 500)), min_size=1, max_size=4),
    st.floats(0.01, 0.98),
    st.integers(5, 2000),
)
def test_chunked_iterations_are_exact_when_full_and_never_too_short_where_convex(steps, hit, chunk):
    slopes = np.cumsum([slope for _, slope in steps])  # rising: a convex line
    knots = np.cumsum([0, *(width for width, _ in steps[:-1])])
    ps = 1000 + np.cumsum([0, *(np.diff(knots) * slopes[:-1])])
    shape = {"knot_tokens": knots, "knot_ps": ps, "slope_ps": slopes}
    plain = toy(**{f"mixed_{k}": v for k, v in shape.items()})
    found = with_average_hits(plain, AverageHits(hit_share=hit), chunk_tokens=chunk)
    assert (np.diff(found.mixed_knot_tokens) > 0).all()
    assert (np.diff(found.mixed_knot_ps) >= 0).all()
    assert (found.mixed_slope_ps >= 0).all()
    # knots sit on whole tokens and slopes are whole picoseconds, each rounded
    rounding = 2 * int(slopes[-1]) + chunk + 2
    for decoding in range(5):
        for tokens in {chunk, decoding + 1, (decoding + chunk) // 2 + 1}:
            prompt = max(tokens - decoding, 0)
            computed = decoding + (1 - hit) * prompt
            k = np.searchsorted(knots, computed, side="right") - 1
            wanted = ps[k] + slopes[k] * (computed - knots[k]) + decoding
            got = mixed_ps(found, decoding, prompt)
            assert got >= wanted - rounding
            if tokens == chunk:
                assert got <= wanted + rounding


def test_more_hits_never_take_longer():
    model = iteration_time_model("llama-3.1-70b", GPU, 4)
    found = [
        optimised_tables(model, average_hits=AverageHits(hit_share=h))
        for h in (0, 0.1, 0.5, 0.9, 0.99)
    ]
    for tokens in (1, 50, 700, 4096, 30_000):
        seconds = [tables.prefill_s(tokens) for tables in found]
        assert seconds == sorted(seconds, reverse=True)


# ---- speculative decoding ----


def test_tokens_per_round():
    assert tokens_per_round(3, 0.5) == 1.875  # (1 - 1/16) / (1/2)
    assert tokens_per_round(5, 0.0) == 1.0  # the target's own token
    assert tokens_per_round(5, 1.0) == 6.0
    a, k = 0.8, 7
    assert tokens_per_round(k, a) == pytest.approx((1 - a ** (k + 1)) / (1 - a))
    assert SpeculativeConfig(draft_tokens=3, acceptance=0.5).tokens_per_round == 1.875
    refuses("draft_tokens = 0: must be at least 1", tokens_per_round, 0, 0.5)
    refuses(r"acceptance = 1\.5: must be in", tokens_per_round, 3, 1.5)


def test_speculation_by_hand():
    target, draft = toy(10), toy(1)
    config = SpeculativeConfig(draft_tokens=3, acceptance=0.5)
    found = with_speculation(target, draft, config, kv_capacity_tokens=700, chunk_tokens=100)
    # 4 requests. Draft: three iterations of 1030, the second and third with 4 and 8 more tokens of
    # context at 5. Target: 16 tokens, 6 beyond the bend, 10000 + 6 * 1000, and 40 for those that
    # decode; 80 per pair, 16 pairs for each request's 4 new tokens.
    round_ps = 3 * 1030 + 5 * 12 + 16_040 + 80 * 4 * 16
    assert found.decode_base_ps[4] == round(round_ps / 1.875)
    # one request: 4 tokens stay below the bend
    assert found.decode_base_ps[1] == round((3 * 1000 + 5 * 3 + 10_010 + 80 * 16) / 1.875)
    # context: the target's scores, 2 * 4 * 80 per token, take longer than reading at 50
    assert found.decode_per_token_ps[2] == round((3 * 5 + 640) / 1.875)
    reading = with_speculation(
        replace(target, prefill_pair_ps=1), draft, config, kv_capacity_tokens=700
    )
    assert reading.decode_per_token_ps[2] == round((3 * 5 + 50) / 1.875)
    # both prefill one after the other
    for tokens in (1, 10, 11, 500):
        assert line_ps(found, "prefill", tokens) == 11 * line_ps(draft, "prefill", tokens)
    assert found.prefill_pair_ps == 88
    assert found.kv_capacity_tokens == 700
    assert (found.swap_out_ps_per_token, found.swap_in_ps_per_token) == (33, 44)


def test_a_full_chunked_iteration_by_hand():
    target, draft = toy(10), toy(1)
    config = SpeculativeConfig(draft_tokens=3, acceptance=0.5)
    found = with_speculation(target, draft, config, kv_capacity_tokens=700, chunk_tokens=100)
    # 4 decoding requests and 96 prompt tokens are 1 / 1.875 of a round with 180 prompt tokens: the
    # target sees 16 + 180, the draft 4 + 180 and then two decode iterations of 1030
    target_ps = 10_000 + 1000 * (196 - 10) + 40 + 80 * 4 * 16
    draft_ps = 1000 + 100 * (184 - 10) + 4 + 2 * 1030 + 5 * 12
    assert mixed_ps(found, 4, 96) == pytest.approx((target_ps + draft_ps) / 1.875, abs=100)
    # without decoding requests there is no round
    alone = 11 * (1000 + 100 * 90)
    assert mixed_ps(found, 0, 100) + found.mixed_chunk_ps == pytest.approx(alone + 660, abs=100)
    assert found.mixed_pair_ps == 88
    assert found.mixed_chunk_ps == round(660 / 1.875)


def test_nothing_accepted_is_a_loss_and_everything_a_gain():
    model = iteration_time_model("llama-3.1-70b", GPU, 4)
    plain = model.profile()
    never, always = (
        optimised_tables(model, speculative=SpeculativeConfig(acceptance=a)) for a in (0.0, 1.0)
    )
    draft = iteration_time_model("llama-3.1-8b", GPU, 4).profile()
    assert (never.decode_base_ps[1:] >= (plain.decode_base_ps + 4 * draft.decode_base_ps)[1:]).all()
    assert (never.decode_per_token_ps > plain.decode_per_token_ps).all()
    assert always.decode_base_ps[1] < 0.4 * plain.decode_base_ps[1]
    assert np.allclose(never.decode_base_ps[1:] / always.decode_base_ps[1:], 5, rtol=1e-6)


def test_verification_is_bound_by_memory_first_and_by_compute_later():
    tables = iteration_time_model("llama-3.1-70b", GPU, 4).profile()
    verified = verification_base_ps(tables, 4)
    assert verified[1] == tables.decode_base_ps[1]
    assert verified[8] < 1.1 * tables.decode_base_ps[8]
    # beyond, a verified token costs what the next prompt token costs
    slope = (verified[4000] - verified[2000]) / (2000 * 5)
    assert slope == pytest.approx(tables.mixed_slope_ps[-1], rel=0.02)


@pytest.mark.parametrize("k", [1, 4, 8])
def test_shipped_models_keep_their_promises(k):
    drafted = 0
    for model in load_models():
        config = SpeculativeConfig(
            draft_llm="llama-2-7b" if model.llm == "llama-2-70b" else "llama-3.2-3b", draft_tokens=k
        )
        try:
            found = optimised_tables(
                model,
                max_batch=1024,
                speculative=config,
                average_hits=AverageHits(),
                chunk_tokens=512,
            )
        except ValueError:
            continue
        drafted += 1
        plain = model.profile(max_batch=1024)
        ProfileSpec(**vars(found))
        b = np.arange(1, 1025)
        verified = verification_base_ps(plain, k)
        # tables are whole picoseconds, so decode itself may rise by one per request
        assert (verified >= plain.decode_base_ps * (1 - 1e-6)).all()
        assert (np.diff(verified[1:] / b) <= 1e-6 * verified[1]).all()
        # whole picoseconds are the only way in which a request may take longer in a larger batch
        assert (np.diff(found.decode_base_ps[1:] / b) <= 1.0).all()
        for part in ("prefill", "mixed"):
            assert (np.diff(getattr(found, f"{part}_knot_tokens")) > 0).all()
            assert (np.diff(getattr(found, f"{part}_knot_ps")) >= 0).all()
        assert found.kv_capacity_tokens < plain.kv_capacity_tokens
    assert drafted >= 9


def test_tables_must_be_alike():
    short = iteration_time_model("llama-3.1-8b", GPU).profile(max_batch=2)
    with pytest.raises(ValueError, match="up to a batch of 2, the target's go to 4"):
        with_speculation(toy(), short, SPEC_70B, kv_capacity_tokens=10)
    with pytest.raises(ValueError, match="kv_capacity_tokens = 0"):
        with_speculation(toy(), toy(), SPEC_70B, kv_capacity_tokens=0)
    with pytest.raises(ValueError, match="chunk_tokens = -1"):
        with_average_hits(toy(), AverageHits(), chunk_tokens=-1)
    with pytest.raises(ValueError, match=r"memory_share = 0\.9: leaves none of 5 KV tokens"):
        with_average_hits(toy(kv_capacity_tokens=5), AverageHits(memory_share=0.9))


# ---- the draft ----


def test_the_draft_takes_memory_for_its_weights_and_its_kv():
    target, draft, gpu = llm_card("llama-3.1-70b"), llm_card("llama-3.1-8b"), gpu_card(GPU)
    free = (
        gpu.memory_bytes * 0.9
        - (target.weight_bytes + draft.weight_bytes) / 4
        - activation_reserve_bytes(target, 4)
    )
    kv_bytes = (target.kv_bytes_per_token + draft.kv_bytes_per_token) / 4
    assert kv_capacity_tokens(target, gpu, 4, draft=draft) == int(free // kv_bytes)
    model = iteration_time_model("llama-3.1-70b", GPU, 4)
    found = optimised_tables(
        model, speculative=SPEC_70B, average_hits=AverageHits(memory_share=0.5)
    )
    assert found.kv_capacity_tokens == int(free // kv_bytes) // 2


def test_a_draft_may_not_fit_where_the_target_does():
    kv_capacity_tokens("llama-3.1-8b", "a10-24gb", 1)
    with pytest.raises(DoesNotFitError, match=r"llama-3.1-8b with draft llama-3.2-3b does not fit"):
        kv_capacity_tokens("llama-3.1-8b", "a10-24gb", 1, draft="llama-3.2-3b")
    assert fitting_tp("llama-3.1-8b", "a10-24gb") == (1, 2, 4, 8)
    assert fitting_tp("llama-3.1-8b", "a10-24gb", draft="llama-3.2-3b") == (2, 4, 8)


def test_the_draft_is_of_the_same_kind_or_from_the_roofline():
    composed = iteration_time_model("llama-3.1-70b", GPU, 4)
    assert (draft_model(composed, SPEC_70B).kind, draft_model(composed, SPEC_70B).tp) == (
        "composed",
        4,
    )
    # Llama 3.2 3B was measured end to end only, and not at all on one A100
    assert draft_model(composed, SPEC_8B).kind == "roofline"
    whole = iteration_time_model("llama-2-70b", GPU, 4)
    assert whole.kind == "end-to-end"
    assert draft_model(whole, SpeculativeConfig(draft_llm="llama-2-7b")).kind == "composed"


def test_who_may_draft():
    assert check_draft("llama-3.1-70b", 4, SPEC_70B).name == "llama-3.1-8b"
    with pytest.raises(ValueError, match=r"'llama-3.1-8b'.*fewer weights.*allowed: llama-3.2-3b"):
        check_draft("llama-3.1-8b", 1, SPEC_70B)
    refuses(r"has 128256 words, llama-2-70b 32000", check_draft, "llama-2-70b", 4, SPEC_70B)
    refuses("allowed: none of the known LLMs; register_llm", check_draft, "bloom-176b", 8, SPEC_70B)


@pytest.mark.parametrize(
    "config, field, value",
    [
        (AverageHits, "hit_share", 1.0),
        (AverageHits, "hit_share", -0.1),
        (AverageHits, "memory_share", float("nan")),
        (SpeculativeConfig, "draft_tokens", 0),
        (SpeculativeConfig, "draft_tokens", 65),
        (SpeculativeConfig, "acceptance", 1.1),
        (SpeculativeConfig, "draft_llm", "gpt"),
        (SpeculativeConfig, "gamma", 3),
    ],
)
def test_parameters_are_checked(config, field, value):
    refuses(field, config, **{field: value}, error=ValidationError)


# ---- scenarios ----

POOL = "fleet.pools.0"


def test_a_pool_names_its_optimisations():
    plain = load_scenario(SMALL_WORLD)
    assert plain.fleet.pools[0].average_hits is plain.fleet.pools[0].speculative is None
    # a whole object, or one field of an object that was not there
    whole = load_scenario(SMALL_WORLD, **{f"{POOL}.average_hits": {"hit_share": 0.3}})
    field = load_scenario(plain, **{"fleet.pools.interactive.average_hits.hit_share": 0.3})
    assert whole.fleet.pools[0] == field.fleet.pools[0]
    assert field.fleet.pools[0].average_hits == AverageHits(hit_share=0.3)
    as_it_is = load_scenario(plain, **{f"{POOL}.average_hits": AverageHits(hit_share=0.3)})
    assert as_it_is.fleet.pools[0] == field.fleet.pools[0]
    # a second field beside the first, and off again
    more = load_scenario(field, **{f"{POOL}.average_hits.memory_share": 0.1})
    assert more.fleet.pools[0].average_hits == AverageHits(hit_share=0.3, memory_share=0.1)
    assert load_scenario(more, **{f"{POOL}.average_hits": None}) == plain
    drafted = load_scenario(plain, **{f"{POOL}.speculative.draft_llm": "Llama3.2-3B"})
    assert drafted.fleet.pools[0].speculative == SpeculativeConfig(draft_llm="llama-3.2-3b")


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("average_hits.hit_share", 1, r"interactive.average_hits.hit_share = 1: .*less than 1"),
        ("average_hits.hits", 1, r"interactive.average_hits.hits: there is no such field"),
        ("average_hits", 3, r"interactive.average_hits = 3"),
        ("speculative.draft_tokens", 0, r"speculative.draft_tokens = 0: .*greater than or equal"),
        ("speculative.draft_llm", "gpt", r"speculative.draft_llm = 'gpt': llm = 'gpt' is unknown"),
        ("speculative.acceptance", 0.5, r"draft_llm = 'llama-3.1-8b': does not have fewer weights"),
    ],
)
def test_scenario_errors_name_the_field(field, value, message):
    with pytest.raises(ScenarioError, match=message):
        load_scenario(SMALL_WORLD, **{f"{POOL}.{field}": value})


def test_a_draft_that_leaves_no_memory_is_refused():
    pool = {
        "llm": "llama-3.1-8b",
        "gpu": "a10-24gb",
        "name": "small",
        "v1": None,
        "max_instances": 1,
    }
    changes = {"fleet.pools.0": pool, f"{POOL}.speculative": {"draft_llm": "llama-3.2-3b"}}
    routes = [{"pools": ["small"], "queue": "batch"}]
    with pytest.raises(ScenarioError, match=r"with draft llama-3.2-3b does not fit on a10-24gb"):
        load_scenario(SMALL_WORLD, **changes, **{"fleet.routes": routes})


def optimised_scenario(**changes: object):
    return load_scenario(
        SMALL_WORLD,
        **{
            "horizon_s": 60,
            "fleet.pools.interactive.average_hits": {},
            "fleet.pools.interactive.speculative": {"draft_llm": "llama-3.2-3b"},
            "fleet.pools.mixed.average_hits": {"hit_share": 0.3},
            "fleet.pools.mixed.speculative": {"draft_llm": "llama-3.2-3b", "draft_tokens": 2},
            "fleet.pools.mixed.chunk_tokens": 512,
            **changes,
        },
    )


def test_profiles_differ_where_optimisations_do():
    plain = compile_cluster(load_scenario(SMALL_WORLD))
    assert len(plain.profiles) == 1
    spec = compile_cluster(optimised_scenario())
    assert [pool.profile for pool in spec.pools] == [0, 1, 2]
    # the third pool is plain
    for name, value in vars(plain.profiles[0]).items():
        assert np.array_equal(value, getattr(spec.profiles[2], name))
    pool = optimised_scenario().fleet.pools[1]
    expected = optimised_tables(
        iteration_time_model("llama-3.1-8b", GPU),
        max_batch=pool.max_batch,
        average_hits=pool.average_hits,
        speculative=pool.speculative,
        chunk_tokens=512,
    )
    for name, value in vars(expected).items():
        assert np.array_equal(value, getattr(spec.profiles[1], name))
    assert spec.pools[0].watermark_tokens == int(0.01 * spec.profiles[0].kv_capacity_tokens)
    kv_bytes = sum(llm_card(n).kv_bytes_per_token for n in ("llama-3.1-8b", "llama-3.2-3b"))
    assert spec.pools[0].host_kv_bytes == int(64e9)
    assert spec.profiles[0].kv_bytes_per_token == kv_bytes
    # a chunk budget makes a profile of its own only where the tables depend on it
    chunked = {"fleet.pools.batch.chunk_tokens": 256, "fleet.pools.mixed.chunk_tokens": 512}
    assert len(compile_cluster(load_scenario(SMALL_WORLD, **chunked)).profiles) == 1


def test_a_draft_is_loaded_and_its_work_is_charged():
    plain, scenario = load_scenario(SMALL_WORLD), optimised_scenario()
    before, after = (pool_load_times_s(s, s.fleet.pools[0]) for s in (plain, scenario))
    shard = llm_card("llama-3.2-3b").weight_bytes / plain.network.ssd_bytes_per_s
    assert after["ssd"] - before["ssd"] == pytest.approx(shard)
    # one request at a time, this draft is too slow for this target: work left over costs more
    assert serving_cost_gpu_s(scenario)[0][1] > serving_cost_gpu_s(plain)[0][1]
    # and Chiron's guess before it has measured anything is made from the same tables
    guesses = [pool_tokens_per_s(s, s.fleet.pools[0], 64, 200, 200) for s in (plain, scenario)]
    assert guesses[1] < guesses[0]


def test_both_engines_agree_with_both_on():
    scenario = optimised_scenario()
    requests = draw_requests(scenario, np.random.default_rng(5))
    spec = compile_cluster(scenario)
    slow, fast = ReferenceEngine(spec, requests), FastEngine(spec, requests)
    for engine in (slow, fast):
        engine.advance(60 * PS_PER_S)
    assert np.array_equal(slow.results(), fast.results())
    finished = fast.results()["finished_ps"] >= 0
    assert finished.sum() > 100
    # both kinds of pool served, and the modifiers are felt
    first = spec.pools[0].n_slots
    assert {bool(i < first) for i in fast.results()["instance"][finished]} == {True, False}
    plain = load_scenario(scenario, **{f"fleet.pools.{n}.{o}": None for n in (0, 1)
                                       for o in ("average_hits", "speculative")})  # fmt: skip
    other = FastEngine(compile_cluster(plain), requests)
    other.advance(60 * PS_PER_S)
    assert not np.array_equal(other.results()["finished_ps"], fast.results()["finished_ps"])


def test_the_best_batch_size_falls():
    """Chiron, Section 6.3, in small: KV memory is full at a smaller limit with either."""
    rows = best_batch_size.sweep(
        ["llama-3.1-8b"],
        "sharegpt-single-turn",
        (384, 640, 896),
        warm_up_s=300,
        measured_s=300,
    )
    limits = {row[1]: row[2] for row in best_batch_size.best(rows)}
    assert limits == {"plain": 896, "prefix cache": 640, "speculative": 384, "both": 384}
