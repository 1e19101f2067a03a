"""What Chiron's Figures 11, 12 and 15 share: an overloaded instance, its steps, when it has converged."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from experiments.chiron.convergence import (
    SHARED,
    VARIANTS,
    LocalParameters,
    Watched,
    arrivals,
    converged_s,
    instance_tables,
    steady,
    steps,
    watch,
)

TIME_S = np.arange(1.0, 21.0)


def batches(*parts):
    return np.concatenate([np.full(n, value, float) for value, n in parts])


def test_converged_is_when_it_stays_near_what_it_ends_at():
    climb = batches((1, 2), (40, 2), (60, 2), (100, 14))
    assert converged_s(TIME_S, climb, band=1.2, share=1.0, hold_s=0) == 7
    assert converged_s(TIME_S, climb, band=2.0, share=1.0, hold_s=0) == 5
    assert converged_s(TIME_S, climb, band=100.0, share=1.0, hold_s=0) == 1


def test_a_lapse_counts_against_the_share_of_what_is_left():
    lapse = batches((1, 2), (100, 13), (10, 1), (100, 4))  # far at 1, 2 and 16
    assert math.isnan(converged_s(TIME_S, lapse, band=2, share=1.0, hold_s=0))
    # From 3 on one of 18 is far: 5.6 %.
    assert converged_s(TIME_S, lapse, band=2, share=0.94, hold_s=0) == 3
    assert math.isnan(converged_s(TIME_S, lapse, band=2, share=0.95, hold_s=0))


def test_passing_by_is_not_converging():
    passing = batches((100, 1), (500, 1), (100, 18))
    assert converged_s(TIME_S, passing, band=2, share=0.9, hold_s=0) == 1
    assert converged_s(TIME_S, passing, band=2, share=0.9, hold_s=2) == 3


def test_what_changes_at_the_end_has_not_converged():
    assert math.isnan(converged_s(TIME_S, batches((10, 15), (100, 5)), 2, 0.9, 0))


@pytest.fixture
def made_up():
    """Ten seconds, two requests running: the limit goes 4, 8, 2 at samples 3 and 7."""
    limit = [4, 4, 8, 8, 8, 8, 2, 2, 2, 2]
    samples = pd.DataFrame(
        {
            "time_s": np.arange(1.0, 11.0),
            "limit": limit,
            "running": 2,
            "waiting": 9,
            "tokens": [10, 20, 25, 30, 35, 40, 60, 80, 100, 120],
            "kv_use": 0.25,
        }
    )
    return Watched(
        samples=samples,
        first_token_s=np.array([0.5, 4.5, 4.5]),
        itl_s=np.array([0.9, 0.1, 0.3]),
        finished_s=np.array([4.0, 6.0, 7.0]),
        preemptions=3,
    )


def test_a_step_is_what_lies_between_two_changes(made_up):
    found = steps(made_up)
    assert found["limit"].tolist() == [4, 8, 2]
    assert found["end_s"].tolist() == [2, 6, 10]
    assert found["start_s"].tolist() == [0, 2, 6]
    assert found["running"].tolist() == [2, 2, 2]
    assert found["kv_use"].tolist() == [0.25] * 3
    # Two requests for 2, 4 and 4 s; 20, 20 and 80 tokens, of which 1, 2 and 0 are first ones.
    assert found["itl_s"].tolist() == pytest.approx([4 / 19, 8 / 18, 8 / 80])


def test_a_step_without_tokens_has_no_latency(made_up):
    made_up.samples.loc[:, "tokens"] = 3
    assert np.isnan(steps(made_up)["itl_s"]).tolist()[1:] == [True, True]


def test_steady_is_the_second_half(made_up):
    found = steady(made_up, 0.2)
    assert found["limit"] == 2
    assert found["batch"] == 2
    assert found["tokens_per_s"] == 20  # 80 in the 4 s from the first sample after 5 s
    assert found["itl_s"] == pytest.approx(0.2)
    assert found["itl_violations"] == 0.5
    assert found["preemptions"] == 3


def test_arrivals_come_at_the_rate_and_from_the_seed():
    one, again, other = (arrivals("sharegpt-single-turn", 20.0, 500, seed) for seed in (1, 1, 2))
    assert len(one) == pytest.approx(10_000, rel=0.04)
    assert (one.arrival_ps == again.arrival_ps).all()
    assert (one.input_tokens == again.input_tokens).all()
    assert len(one) != len(other)


def case(**changes):
    chosen = LocalParameters(duration_s=40, first_limit=16).model_dump(include=set(SHARED))
    start = {"llm": "llama-3.1-8b", "variant": "plain", "controller": "chiron", "itl_slo_s": 0.2}
    return {**chosen, **start, "rate_per_s": 40.0, "seed": 3, **changes}


def test_a_fixed_limit_stays_and_fills():
    samples = watch(case(controller="fixed")).samples
    assert (samples["limit"] == 16).all()
    assert (samples["running"].iloc[20:] == 16).all()
    assert samples["waiting"].iloc[-1] > 1000


def test_the_controller_goes_for_its_target():
    tight, loose = (watch(case(itl_slo_s=slo_s)).samples["limit"] for slo_s in (0.02, 0.5))
    assert loose.iloc[-1] > 8 * 16
    assert tight.iloc[-1] < 4 * 16


def test_optimisations_change_the_instance_as_they_say():
    plain, cached, drafted, both = (
        instance_tables("llama-3.1-70b", v).kv_capacity_tokens for v in VARIANTS
    )
    assert cached == pytest.approx(0.8 * plain, rel=1e-3)
    assert drafted < plain
    assert both == pytest.approx(0.8 * drafted, rel=1e-3)


@pytest.mark.parametrize("start", [1, 64, 4096])
@pytest.mark.parametrize("window_iterations", [1, 16])
def test_a_saturated_instance_ends_near_the_best_fixed_limit(start, window_iterations):
    case = {
        **LocalParameters(
            duration_s=240, sample_s=1.0, window_iterations=window_iterations
        ).model_dump(include=set(SHARED)),
        "llm": "llama-3.1-8b",
        "variant": "plain",
        "itl_slo_s": 2.0,
        "rate_per_s": 40.0,
        "seed": 0,
    }

    def tokens_per_s(controller, limit):
        watched = watch({**case, "controller": controller, "first_limit": limit})
        return steady(watched, 2.0)["tokens_per_s"]

    best = max(tokens_per_s("fixed", limit) for limit in (256, 512, 1024, 4096))
    assert tokens_per_s("chiron", start) >= 0.95 * best
