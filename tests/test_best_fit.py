"""Best fit by hand, docs/engine.md section 14, on both engines, and Aladdin's Figure 3."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from baselines.aladdin.constraints import Request as AladdinRequest
from baselines.aladdin.constraints import Rules
from baselines.aladdin.performance import DecodeTime, PrefillTime
from llmscale_env.sim.reference import ReferenceEngine
from llmscale_env.sim.spec import (
    ClusterSpec,
    Fallback,
    PlacementSpec,
    RouterKind,
    RouteSpec,
)
from tests.refusals import refuses
from tests.small_clusters import ENGINES, Engine, pool, profile, run, table
from tests.test_split_phases import cluster as split_cluster

LOOSE = PlacementSpec(
    prefill_const_ps=5.0,
    prefill_per_token_ps=3.0,
    decode_const_ps=10.0,
    decode_per_request_ps=1.0,
    decode_per_token_ps=2.0,
    ttft_ps=10**9,
    itl_ps=10**9,
    theta=1.0,
)
"""The times of `small_clusters`, and targets that nobody misses."""


def cluster(
    placement: PlacementSpec,
    n_slots: int = 3,
    kind: int = RouterKind.BEST_FIT,
    capacity: int = 1000,
    **changes: Any,
) -> ClusterSpec:
    return ClusterSpec(
        profiles=(profile(kv_capacity_tokens=capacity),),
        pools=(pool(pull=(), n_slots=n_slots, initial_active=n_slots, **changes),),
        routes=((RouteSpec(kind, (0,), placement=placement),),),
        half_block_tokens=0,
    )


def placed(engine: Any, n_requests: int) -> list[int]:
    """Instance of each request, -1: in the gateway."""
    running = engine.results()["instance"].tolist()
    for i in range(len(engine.instances())):
        for r in engine.own_queue(i):
            running[r] = i
    for r in engine.gateway(0):
        running[r] = -1
    return running[:n_requests]


@pytest.mark.parametrize(
    "kind, together, worst",
    [
        (RouterKind.JSQ_REQUESTS, [[0, 2], [1, 3]], 10),
        (RouterKind.BEST_FIT, [[0, 1], [2, 3]], 7),
    ],
)
def test_aladdins_figure_3(
    engine_class: Engine, kind: int, together: list[list[int]], worst: int
) -> None:
    """Two workers of 9 KV tokens: the shortest queue needs 10, the best placement 7."""
    # In order of arrival: long prompt, long output, long prompt, long output.
    requests = table((0, 4, 1), (0, 1, 4), (0, 4, 1), (0, 1, 4))
    engine = run(engine_class, cluster(LOOSE, 2, kind, capacity=9), requests, 1)
    where = placed(engine, 4)
    assert [[r for r in range(4) if where[r] == i] for i in range(2)] == together
    inputs, outputs = requests.input_tokens.tolist(), requests.output_tokens.tolist()
    demands = [
        max(sum(inputs[r] + k + 1 for r in mine if outputs[r] > k) for k in range(4))
        for mine in together
    ]
    assert max(demands) == worst
    engine.advance(10**4)
    # Where 10 are needed one has to wait for the other.
    first = engine.results()["admitted_ps"].tolist()
    assert (max(first) > 0) == (worst > 9)


def test_the_fullest_that_can_take_it(engine_class: Engine) -> None:
    """All go to one instance until its memory would not last; then to the next."""
    spec = cluster(LOOSE, capacity=40)
    engine = engine_class(spec, table((0, 10, 5), (0, 10, 5), (0, 10, 5), (0, 2, 5), (0, 9, 2)))
    engine.advance(1)
    # Two need 30 at most, a third would make 45. 2 + 5 still fit (37), 9 + 2 go to the second: (at their
    # second token) 12 + 12 + 4 + 11 = 39 would fit too.
    assert placed(engine, 5) == [0, 0, 1, 0, 0]


def test_decode_limit(engine_class: Engine) -> None:
    """(b): 2 L <= T - 10 - (B + 1)."""
    requests = table((0, 10, 5), (0, 10, 5), (0, 10, 5))
    # gamma 1: L = 15 each. With two: 60 <= T - 12; with three: 90 <= T - 13.
    for itl_ps, expected in ((71, [0, 1, 2]), (72, [0, 0, 1]), (102, [0, 0, 1]), (103, [0, 0, 0])):
        # (d) is not asked as nobody has emitted.
        engine = run(engine_class, cluster(replace(LOOSE, gamma=1.0, itl_ps=itl_ps)), requests, 1)
        assert placed(engine, 3) == expected
    # theta: 60 <= 0.5 * (132 - 12).
    for itl_ps, expected in ((131, [0, 1, 2]), (132, [0, 0, 1])):
        strict = replace(LOOSE, gamma=1.0, theta=0.5, itl_ps=itl_ps)
        engine = run(engine_class, cluster(strict), requests, 1)
        assert placed(engine, 3) == expected


def test_prefill_limit(engine_class: Engine) -> None:
    """(c): 5 + 3 * 20 <= T."""
    requests = table((0, 10, 5), (0, 10, 5))
    for ttft_ps, expected in ((64, [0, 1]), (65, [0, 0])):
        engine = run(engine_class, cluster(replace(LOOSE, ttft_ps=ttft_ps)), requests, 1)
        assert placed(engine, 2) == expected
    # Alone it does not meet its target either: it waits, or goes to the least full.
    for fallback, expected in ((Fallback.WAIT, [-1]), (Fallback.LEAST, [0])):
        tight = replace(LOOSE, ttft_ps=34, fallback=fallback)
        engine = run(engine_class, cluster(tight), table((0, 10, 5)), 1)
        assert placed(engine, 1) == expected


def test_nobody_joins_whose_prefill_is_under_way(engine_class: Engine) -> None:
    """(d) for an ongoing request with l_out = 0 and t_dec = 0: a prefill may cost T_dec * 0 - 0, nothing.

    The first one's prefill takes until 35. From then on it has saved T - (t - 35) as printed.
    """
    placement = replace(LOOSE, saved_over_tokens=True, gamma=0.0, itl_ps=1000)
    for at_ps, expected in ((10, 1), (34, 1), (36, 0)):
        requests = table((0, 10, 50), (at_ps, 10, 5))
        engine = run(engine_class, cluster(placement, 2), requests, at_ps + 1)
        assert placed(engine, 2) == [0, expected]


@pytest.mark.parametrize(
    "saved_over_tokens, itl_ps, expected",
    [(True, 106, 1), (True, 107, 0), (False, 159, 1), (False, 160, 0)],
)
def test_a_prefill_may_cost_what_the_running_have_saved(
    engine_class: Engine, saved_over_tokens: bool, itl_ps: int, expected: int
) -> None:
    """(d): the first has emitted at 35, 68 and 103; at 104 a prefill would take 35."""
    # As printed T * 3 - (104 - 35) >= 35 / theta = 250, so T >= 106.33. Its mean ITL is over two intervals:
    # T * 2 - 69 >= 250, so T >= 159.5. (b) is met by far.
    placement = replace(LOOSE, itl_ps=itl_ps, theta=0.14, gamma=0.0, decode_per_token_ps=0.001)
    placement = replace(placement, saved_over_tokens=saved_over_tokens)
    engine = run(engine_class, cluster(placement, 2), table((0, 10, 50), (104, 10, 50)), 105)
    assert placed(engine, 2) == [0, expected]


def test_who_exceeds_the_prediction_counts_with_one_more(engine_class: Engine) -> None:
    """(b) with L = input + emitted + 1: prediction 2, but it goes on."""
    requests = replace(table((0, 10, 50), (170, 10, 2)), predicted_output_tokens=[2, 2])
    # Tokens at 35, 68, 103, 140, 179: at 170 it has emitted 4, so it counts 10 + 5. 2 * (15 + 12) <= T - 12.
    for itl_ps, expected in ((65, 1), (66, 0)):
        placement = replace(LOOSE, itl_ps=itl_ps, gamma=1.0, prefill_per_token_ps=0.0)
        placement = replace(placement, prefill_const_ps=0.0)
        engine = run(engine_class, cluster(placement, 2), requests, 171)
        assert placed(engine, 2) == [0, expected]


def test_an_instance_with_times_of_its_own(engine_class: Engine) -> None:
    requests = table((0, 10, 5), (0, 10, 5))
    engine = engine_class(cluster(replace(LOOSE, ttft_ps=100)), requests)
    engine.set_placement_model(0, (101.0, 0.0, 10.0, 1.0, 2.0))
    engine.advance(1)
    assert placed(engine, 2) == [1, 1]
    engine = engine_class(cluster(replace(LOOSE, ttft_ps=100)), requests)
    engine.set_placement_model(0, (101.0, 0.0, 10.0, 1.0, 2.0))
    engine.set_placement_model(0, None)
    engine.advance(1)
    assert placed(engine, 2) == [0, 0]
    refuses("decode_per_token_ps = 0", engine.set_placement_model, 0, (1.0, 1.0, 1.0, 1.0, 0.0))
    refuses("five finite numbers", engine.set_placement_model, 0, (1.0,))


def test_strictness_can_be_changed(engine_class: Engine) -> None:
    engine = engine_class(cluster(LOOSE), table((0, 10, 5), (0, 10, 5), (5, 10, 5)))
    engine.set_placement(0, 0, replace(LOOSE, ttft_ps=34))
    engine.advance(1)
    assert engine.gateway(0) == [0, 1]
    engine.set_placement(0, 0, LOOSE)
    engine.route_gateway(0)
    engine.advance(6)
    assert placed(engine, 3) == [0, 0, 1]  # at 5 both prefill


def test_the_scaled_norm_weighs_requests(engine_class: Engine) -> None:
    """One long request outweighs three short ones; scaled by a small batch limit, it does not."""
    requests = table((0, 200, 1), (0, 10, 1), (0, 10, 1), (0, 10, 1), (1, 1, 1))
    for scaled, expected in ((False, 0), (True, 1)):
        placement = replace(LOOSE, scaled_norm=scaled)
        engine = engine_class(cluster(placement, 2, RouterKind.HOLD, batch_limit=4), requests)
        engine.advance(1)
        engine.assign([0, 1, 2, 3], [0, 1, 1, 1])
        engine.set_router(0, 0, RouterKind.BEST_FIT)
        engine.advance(2)
        assert placed(engine, 5)[4] == expected


def test_decode_instances_are_asked_for_memory_only(engine_class: Engine) -> None:
    """No prefill limit there; 12 + 12 and what comes fit once, not twice."""
    spec = split_cluster(
        decode={"n_slots": 2, "initial_active": 2},
        times_of=profile(kv_capacity_tokens=45),
        network=None,
    )
    route = replace(
        spec.routes[0][0],
        decode_kind=RouterKind.BEST_FIT,
        placement=replace(LOOSE, ttft_ps=1),
    )
    spec = replace(spec, routes=((route,),))
    engine = run(engine_class, spec, table((0, 10, 5), (0, 10, 5), (0, 10, 6)), 200)
    # 15 each at their last tokens but one of the third, then 16 alone: 45 just fit.
    assert engine.results()["instance"].tolist() == [1, 1, 1]
    engine = run(engine_class, spec, table((0, 10, 5), (0, 10, 5), (0, 11, 6)), 200)
    assert engine.results()["instance"].tolist() == [1, 1, 2]


def test_impossible_placements_are_refused() -> None:
    for changes, message in (
        ({"gamma": 1.5}, "gamma = 1.5"),
        ({"theta": -1.0}, "theta = -1.0"),
        ({"itl_ps": 0}, "itl_ps = 0"),
        ({"fallback": 2}, "fallback = 2"),
        ({"decode_per_token_ps": 0.0}, "must be positive"),
        ({"prefill_const_ps": float("nan")}, "finite"),
    ):
        refuses(message, replace, LOOSE, **changes)
    with pytest.raises(ValueError, match="BEST_FIT needs one"):
        replace(cluster(LOOSE), routes=((RouteSpec(RouterKind.BEST_FIT, (0,)),),))


# ---- constraint (d) at the ends of theta ----

NEARLY_ONE = 1.0 - 2.0**-20


@pytest.mark.parametrize(
    "saved_over_tokens, theta, itl_ps, expected",
    [
        # As printed 3 T - 69 >= 35 / theta; over intervals 2 T - 69 >= 35 / theta.
        (True, 1.0, 34, 1),  # 33 < 35
        (True, 1.0, 35, 0),  # 36
        (False, 1.0, 51, 1),  # 33
        (False, 1.0, 52, 0),  # 35: just
        (False, NEARLY_ONE, 52, 1),  # 35 are too few by a millionth
        (False, NEARLY_ONE, 53, 0),
        # 35 * 2**30 are 37,580,963,840.
        (True, 2.0**-30, 12_526_987_969, 1),
        (True, 2.0**-30, 12_526_987_970, 0),
        (False, 2.0**-30, 18_790_481_954, 1),
        (False, 2.0**-30, 18_790_481_955, 0),
        # Nothing of what has been saved may be used: no target is high enough.
        (True, 0.0, 10**15, 1),
        (False, 0.0, 10**15, 1),
    ],
)
def test_saved_time_at_the_ends_of_theta(
    engine_class: Engine, saved_over_tokens: bool, theta: float, itl_ps: int, expected: int
) -> None:
    """Emitted at 35, 68 and 103; at 104 a prefill would take 35. (b) is met by far, but for theta = 0."""
    placement = replace(
        LOOSE,
        theta=theta,
        itl_ps=itl_ps,
        gamma=0.0,
        decode_const_ps=0.0,
        decode_per_request_ps=0.0,
        decode_per_token_ps=1e-3,
        saved_over_tokens=saved_over_tokens,
    )
    engine = run(engine_class, cluster(placement, 2), table((0, 10, 50), (104, 10, 50)), 105)
    assert placed(engine, 2) == [0, expected]


@pytest.mark.parametrize("theta", [2.0**-30, 1.0])
def test_a_prefill_that_costs_nothing_still_waits_for_who_is_late(
    engine_class: Engine, theta: float
) -> None:
    """0 <= theta (3 T - 69) from T = 23 on, 0 <= theta (2 T - 69) from 35 on, whatever theta is."""
    free = replace(LOOSE, prefill_const_ps=0.0, prefill_per_token_ps=0.0, gamma=0.0, theta=theta)
    free = replace(free, decode_const_ps=0.0, decode_per_request_ps=0.0, decode_per_token_ps=1e-12)
    for tokens, itl_ps, expected in ((True, 22, 1), (True, 23, 0), (False, 34, 1), (False, 35, 0)):
        placement = replace(free, itl_ps=itl_ps, saved_over_tokens=tokens)
        engine = run(engine_class, cluster(placement, 2), table((0, 10, 50), (104, 10, 50)), 105)
        assert placed(engine, 2) == [0, expected]


def held(engine_class: Engine, placement: PlacementSpec, requests: Any, where: list[int]) -> Any:
    """The first requests are put where it is said; from then on best fit places."""
    spec = cluster(placement, 2, RouterKind.HOLD, capacity=10**6)
    engine = run(engine_class, spec, requests, 1)
    engine.assign(list(range(len(where))), where)
    engine.set_router(0, 0, RouterKind.BEST_FIT)
    return engine


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("theta", [2.0**-40, 2.0**-20, 2.0**-8, 1 - 2.0**-8, NEARLY_ONE, 1.0])
def test_engines_and_rules_agree_at_the_ends_of_theta(theta: float, tokens: bool) -> None:
    """Targets at which (d) just holds, holds by far and fails, with requests that run and that wait."""
    broken = []
    for seed in range(40):
        rng = np.random.default_rng([seed, tokens])
        where = [int(i) for i in rng.integers(0, 2, rng.integers(1, 6))]
        rows = [(0, int(rng.integers(1, 40)), int(rng.integers(20, 60))) for _ in where]
        at_ps, prompt = int(rng.integers(150, 900)), int(rng.integers(1, 40))
        while (
            True
        ):  # a time at which nobody has a token: it would be before the arrival, or after it
            engine = held(ReferenceEngine, LOOSE, table(*rows), where)
            engine.advance(at_ps)
            before = [r.emitted for i in engine.all_instances for r in i.all_requests]
            engine.advance(at_ps + 1)
            if before == [r.emitted for i in engine.all_instances for r in i.all_requests]:
                break
            at_ps += 1
        workers = [
            tuple(
                AladdinRequest(
                    r.input_tokens,
                    r.predicted_output_tokens,
                    r.emitted,
                    float(at_ps - r.first_token_ps) if r.emitted else 0.0,
                    started=r in instance.running,
                )
                for r in instance.all_requests
            )
            for instance in engine.all_instances
        ]
        # The target at which (d) holds on a worker: theta (T times - t_dec) >= prefill.
        urgent = max(workers, key=len)
        new = sum(r.input_tokens for r in urgent if r.new)
        needed = (5 + 3 * (new + prompt)) / theta
        just = max(
            (
                math.ceil((needed + r.decoding_s) / (r.emitted_tokens - (not tokens)))
                for r in urgent
                if r.emitted_tokens > 1
            ),
            default=100,
        )
        itl_ps = max(1, just + int(rng.choice([0, -1, 1, 5])) * max(1, just >> 16))
        placement = replace(
            LOOSE,
            theta=theta,
            itl_ps=itl_ps,
            gamma=0.5,
            decode_const_ps=0.0,
            decode_per_request_ps=0.0,
            decode_per_token_ps=1e-3,
            saved_over_tokens=tokens,
        )
        rules = Rules(
            PrefillTime(3.0, 5.0),
            DecodeTime(1e-3, 0.0, 0.0),
            kv_capacity=1e6,
            ttft_slo_s=1e9,
            itl_slo_s=float(itl_ps),
            gamma=0.5,
            theta=theta,
            saved_over="tokens" if tokens else "intervals",
        )
        new_one = AladdinRequest(prompt, 30)
        fullest = sorted(
            range(2),
            key=lambda i: len(workers[i]) ** 2 + rules.weighted_context(workers[i]) ** 2,
            reverse=True,
        )
        broken += [rules.broken((*workers[i], new_one)) for i in fullest if workers[i]]
        expected = next((i for i in fullest if rules.takes(workers[i], new_one)), -1)
        for engine_class in ENGINES:
            engine = held(engine_class, placement, table(*rows, (at_ps, prompt, 30)), where)
            engine.advance(at_ps + 1)
            assert placed(engine, len(rows) + 1)[-1] == expected, f"{engine_class}, seed {seed}"
    assert broken.count("d") >= 5
    assert broken.count("") >= 5
