"""The rules of autoscalers in use, on cases worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baselines.llumnix import freeness_load
from baselines.practice import dynamo, keda, kpa
from baselines.practice.dynamo_load import Engine, Line, estimated_ttft_s, load_step
from baselines.practice.freeness import FreenessPolicy, instances_to_add
from baselines.practice.kpa import PanicMode
from baselines.practice.ray_serve import Delay, desired_replicas
from baselines.practice.seen import MovingMean
from baselines.practice.wva import WvaPolicy, saturation_step
from baselines.practice.wva_tokens import WvaTokensPolicy, capacity_step, derived_capacity


def test_a_moving_mean_forgets():
    mean = MovingMean(60.0)
    for time_s, value in ((0, 6.0), (2, 12.0), (4, 0.0), (62, 30.0)):
        mean.add(time_s, value)
    assert mean.mean(60.0) == 15.0  # 4 s and 62 s: the window is open at 2 s
    assert mean.mean(6.0) == 30.0
    mean.add(100, 10.0)
    assert mean.mean(60.0) == 20.0
    assert mean.mean(0.5) == 10.0  # the newest is always there


# ---- Knative ----


def test_kpa_rounds_up():
    assert [kpa.wanted_replicas(c, 70.0) for c in (0.0, 0.5, 70.0, 71.0, 210.0)] == [0, 1, 1, 2, 3]


def test_kpa_panics_at_twice_the_ready_replicas_and_holds_for_60_s():
    mode = PanicMode()
    assert mode.decide(0.0, stable=3, panic=5, ready=3) == 3  # 5/3 is below 2
    assert mode.decide(2.0, stable=3, panic=6, ready=3) == 6  # 6/3 is 2
    assert mode.decide(4.0, stable=4, panic=2, ready=3) == 6  # no scale-down in panic
    assert mode.decide(6.0, stable=7, panic=2, ready=6) == 7  # the stable window asks for more
    assert mode.decide(62.0, stable=4, panic=2, ready=7) == 7  # held 60 s since 2 s
    assert mode.decide(64.0, stable=4, panic=2, ready=7) == 4
    assert mode.since_s is None


def test_kpa_extends_the_panic_while_it_lasts():
    mode = PanicMode()
    for time_s in (0.0, 30.0, 60.0):
        assert mode.decide(time_s, stable=1, panic=4, ready=2) == 4
    assert mode.decide(119.0, stable=2, panic=2, ready=4) == 4
    assert mode.decide(122.0, stable=2, panic=2, ready=4) == 2


def test_kpa_halves_at_most():
    assert PanicMode().decide(0.0, stable=1, panic=1, ready=9) == 4


# ---- Ray Serve ----


def test_ray_divides_by_the_target():
    assert desired_replicas(5.0, 2.0, running=4) == 3
    assert desired_replicas(8.0, 2.0, running=4) == 4
    # Half the way from 4 to 10, and from 4 to 1: 7 and ceil(2.5).
    assert desired_replicas(20.0, 2.0, 4, up_factor=0.5) == 7
    assert desired_replicas(2.0, 2.0, 4, down_factor=0.5) == 3
    # A tenth of the way from 4 to 3 would round up to 4 for ever.
    assert desired_replicas(6.0, 2.0, 4, down_factor=0.1) == 3


def test_ray_waits_30_s_up_and_600_s_down():
    delay = Delay(30.0, 600.0)
    assert [delay.decide(t, 5, 2) for t in (0.0, 10.0, 20.0)] == [2, 2, 2]
    assert delay.decide(30.0, 6, 2) == 6  # the last word counts
    assert delay.decide(31.0, 3, 6) == 6
    assert delay.decide(600.0, 3, 6) == 6
    assert delay.decide(610.0, 6, 6) == 6  # enough again: the time begins anew
    assert delay.decide(620.0, 3, 6) == 6
    assert delay.decide(1219.0, 3, 6) == 6
    assert delay.decide(1220.0, 2, 6) == 2


# ---- KEDA ----


def test_keda_takes_the_larger_demand():
    assert keda.wanted_replicas(1.3, 0, 0.6, 30) == 3  # 1.3 / 0.6 = 2.17
    assert keda.wanted_replicas(1.2, 0, 0.6, 30) == 2
    assert keda.wanted_replicas(1.3, 100, 0.6, 30) == 4
    assert keda.wanted_replicas(0.0, 0, 0.6, 30) == 0  # at once: nothing stabilises it


# ---- llm-d, saturation ----


@pytest.mark.parametrize(
    "kv, queue, pending, step",
    [
        ((0.75, 0.76), (2, 2), 0, 1),  # 0.045 of 0.10 is left
        ((0.5, 0.5), (3, 3), 0, 1),  # 2 of 3 are left
        ((0.75, 0.76), (2, 2), 1, 0),  # one is on its way
        ((0.70, 0.70), (0, 0), 0, 0),  # exactly 0.10 is left, 1.4 do not fit one
        ((0.35, 0.35), (1, 1), 0, -1),  # 0.70 and 2 on one: 0.10 and 3 are left
        ((0.36, 0.35), (1, 1), 0, 0),  # 0.71 on one
        ((0.35, 0.35), (1, 2), 0, 0),  # 3 on one: 2 are left
        ((0.1,), (0,), 0, 0),  # the last one stays
        ((0.9, 0.5), (0, 7), 0, 1),  # all are saturated, by one or the other
        ((0.9, 0.5), (0, 7), 2, 0),
        ((0.9, 0.1, 0.1), (0, 0, 0), 0, -1),  # saturated ones are left out of the mean
        ((), (), 0, 0),  # nobody reports: that is not idle
    ],
)
def test_wva_goes_by_what_is_left(kv, queue, pending, step):
    assert saturation_step(kv, queue, pending) == step


@given(
    st.integers(2, 12),
    st.floats(0.0, 0.79),
    st.floats(0.0, 4.9),
    st.floats(0.05, 0.7),
    st.floats(1, 4),
)
def test_wva_does_not_swing(n, kv, queue, kv_spare, queue_spare):
    """What it takes away it does not order again, if the load is spread as it assumes."""
    spares = {"kv_spare": kv_spare, "queue_spare": queue_spare}
    if saturation_step([kv] * n, [queue] * n, 0, **spares) < 0:
        more = n / (n - 1)
        assert saturation_step([kv * more] * (n - 1), [queue * more] * (n - 1), 0, **spares) <= 0


def test_wva_points_are_settings():
    point = {"kv_threshold": 0.4, "kv_spare_share": 0.5, "queue_threshold": 10.0}
    made = WvaPolicy.of_grid({**point, "queue_spare_share": 0.2})
    assert made == {
        "kv_threshold": 0.4,
        "kv_spare": 0.2,
        "queue_threshold": 10.0,
        "queue_spare": 2.0,
    }
    assert WvaPolicy.of_grid({"kv_threshold": 0.8})["kv_spare"] == 0.1


# ---- llm-d, tokens ----


def test_wva_tokens_steps():
    # 170 / 0.85 = 200 tokens wanted, 150 there: half a replica is missing.
    assert capacity_step(170.0, 100.0, ready=1, pending=0) == 1
    assert capacity_step(170.0, 100.0, ready=2, pending=0) == 0
    assert capacity_step(340.0, 100.0, ready=1, pending=0) == 3
    assert capacity_step(340.0, 100.0, ready=1, pending=3) == 0  # loading ones count
    # 140 / 0.70 = 200 of 400: two are spare; pending ones do not make more spare.
    assert capacity_step(140.0, 100.0, ready=4, pending=0) == -2
    assert capacity_step(141.0, 100.0, ready=4, pending=0) == -1
    assert capacity_step(140.0, 100.0, ready=2, pending=2) == 0
    assert capacity_step(0.0, 100.0, ready=3, pending=0) == -2  # one stays


@given(st.floats(0.0, 5000.0), st.integers(1, 40))
def test_wva_tokens_does_not_swing(demand, ready):
    step = capacity_step(demand, 100.0, ready, 0)
    assert ready + step >= 1
    again = capacity_step(demand, 100.0, ready + step, 0)
    assert again == 0


def test_wva_tokens_capacity_before_anything_was_measured():
    # 4096 tokens of an iteration keep 4096 * 100 / 400 = 1024 requests going, 256 may run.
    assert derived_capacity(4096, 256, 300, 100) == 256 * 350
    assert derived_capacity(400, 256, 300, 100) == 100 * 350
    point = WvaTokensPolicy.of_grid({"up_threshold": 0.5, "down_share": 0.5})
    assert point == {"up_threshold": 0.5, "down_boundary": 0.25}


# ---- Dynamo, throughput ----


class LinearTimes:
    """Decode in 10 ms and 1 us per token of context, prefill in 100 us per token."""

    def decode_s(self, batch, context_tokens):
        return 0.010 + 1e-6 * context_tokens

    def prefill_s(self, tokens, pair_sum=None):
        return 1e-4 * tokens


def test_dynamo_finds_the_largest_batch():
    # Context 1000 + 400 / 2 = 1200: 0.010 + 0.0012 b <= 0.05 for b up to 33.
    assert dynamo.best_batch(LinearTimes(), 1000, 400, 0.05, 1e6, 256) == 33
    assert dynamo.best_batch(LinearTimes(), 1000, 400, 0.05, 12_500, 256) == 10  # memory
    assert dynamo.best_batch(LinearTimes(), 1000, 400, 0.05, 1e6, 8) == 8  # the limit
    assert dynamo.best_batch(LinearTimes(), 1000, 400, 0.001, 1e6, 256) == 1  # none keeps it
    rate = dynamo.decode_requests_per_s(LinearTimes(), 1000, 400, 0.05, 1e6, 256)
    assert rate == pytest.approx(33 / (400 * 0.0496))


def test_dynamo_rounds_each_phase_up_or_the_sum():
    # 12 requests/s of 0.1 s prefill are 1.2 instances.
    assert dynamo.planned(1.2, 1.1, split=True) == (2, 2)
    assert dynamo.planned(1.2, 1.1, split=False) == (0, 3)
    assert dynamo.planned(0.0, 0.0, split=False) == (0, 0)


# ---- Dynamo, load ----


def test_lines_are_fitted_to_the_last_samples():
    line = Line(3)
    for x, y in ((0, 100.0), (1, 1.0), (2, 3.0), (3, 5.0)):  # the first is forgotten
        line.add(x, y)
    assert len(line) == 3
    assert line.fitted()(10) == pytest.approx(19.0)
    assert line.mean_tokens == 2.0
    flat = Line(4)
    flat.add(5, 2.0)
    flat.add(5, 4.0)
    assert flat.fitted()(100) == 3.0
    with pytest.raises(ValueError, match="at least one"):
        Line(4).fitted()


def test_ttft_is_in_iterations_of_the_budget():
    # 4096 + 4096 + 1808 tokens, 1 ms each and 0.1 ms per token.
    seconds = estimated_ttft_s(lambda n: 0.001 + 1e-4 * n, 9000, 1000, 4096)
    assert seconds == pytest.approx(3 * 0.001 + 1.0)
    assert estimated_ttft_s(lambda n: 1.0, 0, 4096, 4096) == 1.0
    assert estimated_ttft_s(lambda n: 1.0, 0, 0, 4096) == 0.0


LOAD = {
    "prefill": lambda n: 1e-4 * n,
    "decode": lambda c: 0.01 + 1e-7 * c,
    "prompt": 1000.0,
    "context": 1000.0,
    "budget": 4000.0,
    "memory": 400_000.0,
    "ttft_s": 1.1,
    "itl_s": 0.05,
}


@pytest.mark.parametrize(
    "queued, kv, step",
    [
        ((10_001, 10_001), (0, 0), 1),  # TTFT 1.1001 s on both
        ((10_001, 9_000), (0, 0), 0),  # on one only
        ((0, 0), (399_001, 399_001), 1),  # ITL above 0.05 s on both
        ((0,), (0,), 0),  # the last one stays
        # Twice the queue of 3999 takes 0.7998 s; 0.8 of the 1.0 s that the prompt leaves are allowed.
        ((3_999, 0), (0, 0), -1),
        ((4_000, 0), (0, 0), 0),
        # Twice the context: 0.04 s, 0.8 of the target, at 300000 tokens with the next request's.
        ((0, 0), (149_400, 0), -1),
        ((0, 0), (149_600, 0), 0),
        ((0, 0), (0, 200_000), 0),  # twice that fills the memory
    ],
)
def test_dynamo_load_steps(queued, kv, step):
    engines = [Engine(q, k) for q, k in zip(queued, kv, strict=True)]
    assert load_step(engines, **LOAD) == step


def test_dynamo_load_needs_memory_for_what_waits():
    roomy = {**LOAD, "ttft_s": 100.0, "itl_s": 10.0}
    assert load_step([Engine(100_000, 99_000)] * 2, **roomy) == -1
    assert load_step([Engine(100_000, 101_000)] * 2, **roomy) == 0
    assert load_step([], **LOAD) == 0


@given(st.integers(2, 10), st.floats(0, 20_000), st.floats(0, 400_000))
def test_dynamo_load_does_not_swing(n, queued, kv):
    if load_step([Engine(queued, kv)] * n, **LOAD) < 0:
        more = n / (n - 1)
        assert load_step([Engine(queued * more, kv * more)] * (n - 1), **LOAD) <= 0


# ---- Llumnix ----


def test_freeness_adds_until_below_the_threshold():
    # 100 requests leave 500 free blocks: load -5; to reach -10 500 more are needed.
    assert instances_to_add(-5.0, 100, 1000.0, -10.0) == 1
    assert instances_to_add(-5.0, 100, 250.0, -10.0) == 2
    assert instances_to_add(-5.0, 100, 200.0, -10.0) == 3
    assert instances_to_add(-10.0, 100, 200.0, -10.0) == 0
    assert instances_to_add(3.0, 100, math.inf, -10.0) == 1  # as released: one per look
    assert FreenessPolicy.of_grid({"free": 20.0, "low_factor": 3.0}) == {
        "high": -20.0,
        "low": -60.0,
    }


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(0, 500), st.integers(1, 16))
def test_freeness_adds_the_fewest_and_does_not_take_them_away_again(kv, waiting, requests, n):
    each, block, high, low = 64_000, 16, -10.0, -60.0

    def load(instances):
        return freeness_load(kv, waiting, each * instances, requests, block)

    more = instances_to_add(load(n), requests, each / block, high)
    assert (more > 0) == (load(n) > high)
    if more:
        assert load(n + more) <= high + 1e-6
        assert more == 1 or load(n + more - 1) > high - 1e-6
        assert not load(n + more - 1) < low
