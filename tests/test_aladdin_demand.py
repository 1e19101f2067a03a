"""Aladdin's Eq. 7, changes of demand, and grouped scheduling (Eq. 8)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from baselines.aladdin.constraints import Request
from baselines.aladdin.demand import (
    DemandMonitor,
    WorkerLine,
    change_points,
    dispersion,
    fit_workers,
    lower_rate,
    penalty,
    standard_error,
)
from baselines.aladdin.gap import generate
from baselines.aladdin.groups import (
    SchedulingTime,
    choose_groups,
    grouped_workers,
    smallest_group,
    split,
)

# ---- Eq. 7 ----


def test_workers_by_hand():
    line = WorkerLine(per_rate=0.5, const=0.3)
    assert [line.workers(rate) for rate in (0, 0.1, 1, 1.4, 10)] == [0, 1, 1, 1, 6]
    assert line.workers(1.5) == 2
    assert WorkerLine(per_rate=0.5, const=-9.0).workers(1) == 1  # arrivals need somebody


def test_below_the_lower_rate_there_is_a_margin():
    line = WorkerLine(per_rate=1.0, const=0.0, lower_rate=16.0, error_at_lower=0.1, z=2.0)
    assert line.workers(17) == 17
    assert line.workers(16) == math.ceil(16 * 1.2)
    assert line.workers(4) == math.ceil(4 * 1.4)  # a quarter of the requests, twice the error
    plain = WorkerLine(per_rate=1.0, const=0.0, lower_rate=16.0, below="line")
    assert plain.workers(4) == 4


def test_the_standard_error_and_the_lower_rate():
    values = [10, 20, 30]  # sigma 10, mean 20
    assert standard_error(values, 25) == pytest.approx(2)
    # An error of 10 % of the mean: (10 / 2)^2 = 25 requests, in 0.5 s.
    assert lower_rate(values, [5, 5, 5], 0.5) == pytest.approx(50)
    assert lower_rate([5, 5, 5], values, 0.5, error=0.2) == pytest.approx(12.5)


def test_the_line_is_found_again():
    rng = np.random.default_rng(0)
    truth = WorkerLine(0.37, -1.2)
    rates = rng.uniform(10, 100, 60)
    workers = [truth.workers(rate) for rate in rates]
    found = fit_workers(rates, workers, rounded=True)
    assert found.per_rate == pytest.approx(0.37, rel=0.02)
    assert found.const == pytest.approx(-1.2, abs=0.3)
    off = np.array([found.workers(rate) - n for rate, n in zip(rates, workers, strict=True)])
    assert np.abs(off).max() <= 1
    # As printed the line goes through numbers that are rounded up already.
    literal = fit_workers(rates, workers)
    assert literal.const - found.const == pytest.approx(0.5)
    over = np.array([literal.workers(rate) - n for rate, n in zip(rates, workers, strict=True)])
    assert over.mean() == pytest.approx(0.5, abs=0.15)


def test_rates_up_to_the_lower_one_do_not_count():
    rates = [1, 2, 10, 20, 30]
    found = fit_workers(rates, [9, 9, 10, 20, 30], lower_rate=5)
    assert (found.per_rate, found.const) == pytest.approx((1, 0), abs=1e-9)
    assert found.lower_rate == 5
    with pytest.raises(ValueError, match="2 pairs"):
        fit_workers(rates, [9, 9, 10, 20, 30], lower_rate=10)


# ---- change points ----


def test_a_change_is_where_it_is():
    rng = np.random.default_rng(0)
    counts = np.concatenate([rng.poisson(20, 60), rng.poisson(40, 30), rng.poisson(15, 30)])
    found = change_points(counts)
    assert len(found) == 2
    assert abs(found[0] - 60) <= 1
    assert abs(found[1] - 90) <= 1


def test_it_is_the_optimal_split():
    """One change at most: the place with the least squares, if it gains more than the penalty."""
    rng = np.random.default_rng(3)
    for level in (11, 14, 20):
        counts = np.concatenate([rng.poisson(10, 20), rng.poisson(level, 20)])
        x = 2 * np.sqrt(counts + 0.375)

        def cost(part):
            return float(((part - part.mean()) ** 2).sum())

        gains = {k: cost(x) - cost(x[:k]) - cost(x[k:]) for k in range(2, 39)}
        best = max(gains, key=gains.__getitem__)
        found = change_points(counts)
        if gains[best] < penalty(40, 1e-3):
            assert found == []
        else:
            assert best in found


def test_false_alarms_are_no_more_than_stated():
    rng = np.random.default_rng(1)
    for level in (0.01, 0.1):
        looks = sum(bool(change_points(rng.poisson(12, 60), false_alarm=level)) for _ in range(600))
        assert looks / 600 < level + 3 * math.sqrt(level / 600)


def test_bursty_arrivals_are_no_changes():
    rng = np.random.default_rng(2)
    plain = scaled = 0
    found = []
    for _ in range(40):
        bursty = rng.negative_binomial(5, 5 / 25, 120)  # mean 20, variance 100
        found.append(dispersion(bursty))
        plain += bool(change_points(bursty))
        scaled += bool(change_points(bursty, over=dispersion(bursty)))
    assert np.mean(found) == pytest.approx(5, rel=0.2)
    assert plain > 25  # taken for Poisson most look changed
    assert scaled <= 2
    assert dispersion(rng.poisson(20, 500)) == pytest.approx(1, abs=0.25)
    assert dispersion([1, 2, 3]) == 1


def test_the_monitor_follows():
    rng = np.random.default_rng(4)
    monitor = DemandMonitor(heartbeat_s=2.0)
    before = [monitor.observe(int(n)) for n in rng.poisson(20, 100)]
    assert not any(found.changed for found in before)
    assert before[-1].rate == pytest.approx(10, rel=0.1)
    assert before[-1].heartbeats == 100
    after = [monitor.observe(int(n)) for n in rng.poisson(60, 20)]
    first = next(k for k, found in enumerate(after) if found.changed)
    assert first <= 3
    assert after[first].heartbeats <= 5  # what came before is forgotten
    assert after[-1].rate == pytest.approx(30, rel=0.1)
    fall = [monitor.observe(int(n)) for n in rng.poisson(20, 20)]
    assert any(found.changed for found in fall[:5])
    assert fall[-1].rate == pytest.approx(10, rel=0.2)


def test_bad_arguments():
    for name, call in {
        "per_rate": lambda: WorkerLine(0.0, 1.0),
        "rate": lambda: WorkerLine(1.0, 1.0).workers(-1),
        "below": lambda: WorkerLine(1.0, 1.0, below="x"),  # type: ignore[arg-type]
        "values": lambda: standard_error([1], 1),
        "heartbeat_s": lambda: lower_rate([1, 2], [1, 2], 0.0),
        "one of each": lambda: fit_workers([1, 2], [1]),
        "false_alarm": lambda: penalty(10, 0.0),
        "counts": lambda: change_points([-1, 2, 3, 4]),
        "over": lambda: change_points([1, 2, 3, 4], over=0.5),
        "shortest": lambda: DemandMonitor(1.0, shortest=0),
        "arrivals": lambda: DemandMonitor(1.0).observe(-1),
    }.items():
        with pytest.raises(ValueError, match=name):
            call()


# ---- groups (appendix A) ----


def test_group_sizes_by_hand():
    assert smallest_group(0.1) == 5  # the paper's example
    assert smallest_group(0.05) == 10
    plan = split(rate=44.0, workers=22, groups=4)
    assert plan.workers == (6, 6, 5, 5)
    assert plan.rates == (12, 12, 10, 10)  # N_i / N_w r_a
    assert plan.additional == 2
    assert plan.error == pytest.approx(2 / 22)
    assert split(44.0, 22, 1).additional == 0


def test_the_error_of_the_smallest_group_is_kept():
    for error in (0.05, 0.1, 0.25):
        size = smallest_group(error)
        for groups in (2, 3, 7):
            assert split(1.0, size * groups, groups).error <= error + 1e-12


def test_scheduling_time():
    truth = SchedulingTime(per_step_s=1e-4, const_s=2e-3, heartbeat_s=0.5)
    assert truth.seconds(14) == pytest.approx(2e-3 + 1e-4 * 7 * 3)
    rates = [5, 10, 25, 50]
    found = SchedulingTime.fit(rates, [truth.seconds(rate) for rate in rates], 0.5)
    assert found.per_step_s == pytest.approx(1e-4)
    assert truth.seconds(truth.most_rate(0.05)) == pytest.approx(0.05)
    assert truth.most_rate(1e-3) == 0


def test_the_fewest_groups_that_are_fast_enough():
    scheduling = SchedulingTime(per_step_s=1e-3, const_s=0.0, heartbeat_s=1.0)
    # 40 requests/s take 214 ms, 20 take 88 ms, 13.3 take 51 ms, 10 take 35 ms.
    plan = choose_groups(40.0, 24, scheduling, 0.05)
    assert plan is not None
    assert plan.groups == 4
    assert plan.scheduling_s <= 0.05
    assert min(plan.workers) >= 5
    assert choose_groups(40.0, 24, scheduling, 0.5).groups == 1  # type: ignore[union-attr]
    assert choose_groups(40.0, 18, scheduling, 0.05) is None  # groups would be too small
    # As printed: 1 / (2 e) = 5 requests/s are the least of a group.
    literal = choose_groups(40.0, 18, scheduling, 0.05, literal=True)
    assert literal is not None
    assert literal.groups == 4
    assert choose_groups(40.0, 18, scheduling, 0.01, literal=True) is None
    assert choose_groups(3.0, 2, scheduling, 0.5).groups == 1  # type: ignore[union-attr]


def test_more_groups_need_no_fewer_workers():
    case = generate(0, new=60, ongoing=0)
    one, four, all_ = (sum(grouped_workers(case.requests, g, case.rules)) for g in (1, 4, 60))
    assert one <= four <= all_ == 60
    assert len(grouped_workers(case.requests, 4, case.rules)) == 4
    dealt = grouped_workers([Request(10, 10)] * 3, 2, case.rules)
    assert dealt == (1, 1)


def test_bad_groups():
    scheduling = SchedulingTime(1e-3, 0.0, 1.0)
    for name, call in {
        "error": lambda: smallest_group(0.0),
        "groups": lambda: split(1.0, 3, 4),
        "rate": lambda: choose_groups(0.0, 3, scheduling, 1.0),
        "per_step_s": lambda: SchedulingTime(0.0, 0.0, 1.0),
        "groups =": lambda: grouped_workers([], 0, generate(0).rules),
    }.items():
        with pytest.raises(ValueError, match=name):
            call()
