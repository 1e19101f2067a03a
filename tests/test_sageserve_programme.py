"""SageServe's integer programme: by hand, and the optimum against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.sageserve.programme import RELEASED_COSTS, NoPlan, ProvisioningProblem, provision
from baselines.solver import SolverSettings


def problem(**change) -> ProvisioningProblem:
    """One LLM, two regions, one GPU type: 100 tokens/s per instance, VM 10, start 150."""
    values = {
        "instances": [[[2], [1]]],
        "demand": [[[100.0, 350.0], [200.0, 50.0]]],
        "throughput": [[100.0]],
        "vm_cost": [RELEASED_COSTS[0]],
        "start_cost": [[RELEASED_COSTS[1]]],
        "epsilon": 1.0,
    }
    return ProvisioningProblem(**{**values, **change})


def brute_force(p: ProvisioningProblem, most: int):
    """(least missing, least cost) over all targets of 0..most instances."""
    best = (np.inf, np.inf)
    for flat in itertools.product(range(most + 1), repeat=int(np.prod(p.shape))):
        target = np.array(flat).reshape(p.shape)
        delta = target - p.instances
        if ((p.throughput[:, None, :] == 0) & (delta > 0)).any():
            continue
        if p.capacity is not None:
            held = (target * p.vms_per_instance[:, None, :]).sum(axis=0)
            if (held > p.capacity).any():
                continue
        together = target.sum(axis=2)
        if p.min_instances is not None and (together < p.min_instances).any():
            continue
        if p.max_instances is not None and (together > p.max_instances).any():
            continue
        missing = p.missing(delta)
        missing = 0.0 if missing < 1e-9 else missing
        if missing > best[0] + 1e-9:
            continue
        cost = p.cost(delta)
        if missing < best[0] - 1e-9 or cost < best[1]:
            best = (missing, cost)
    return best


# ---- by hand ----


def test_by_hand():
    # Peaks 350 and 200 need 4 and 2 instances; together 400 at most at one time.
    plan = provision(problem())
    assert plan.delta.tolist() == [[[2], [1]]]
    assert plan.target.tolist() == [[[4], [2]]]
    assert plan.cost == 3 * 10 + 3 * 150
    assert plan.optimal
    assert plan.missing == 0


def test_epsilon_leaves_the_rest_to_other_regions():
    # Half of each peak: 1.75 and 1 -> 2 and 1 would do, but all together are 400 in the second window.
    plan = provision(problem(epsilon=0.5))
    assert plan.target.sum() == 4
    assert plan.target[0, 0, 0] >= 2
    assert plan.target[0, 1, 0] >= 1
    alone = provision(problem(epsilon=0.5, cross_region=False))
    assert alone.target.tolist() == [[[2], [1]]]
    assert alone.cost == 0


def test_what_is_too_much_goes():
    plan = provision(problem(instances=[[[9], [9]]]))
    assert plan.target.tolist() == [[[4], [2]]]
    assert plan.cost == -12 * 10
    kept = provision(problem(instances=[[[9], [9]]], min_instances=[[5, 3]]))
    assert kept.target.tolist() == [[[5], [3]]]


def test_the_cheaper_gpu_per_token():
    # 100 tokens/s for 10 + 150, or 300 for 30 + 200: three of the first cost 480, one of the second 230.
    two = problem(
        instances=[[[0, 0]]],
        demand=[[[300.0]]],
        throughput=[[100.0, 300.0]],
        vm_cost=[10.0, 30.0],
        start_cost=[[150.0, 200.0]],
    )
    plan = provision(two)
    assert plan.delta.tolist() == [[[0, 1]]]
    assert plan.cost == 230
    full = provision(ProvisioningProblem(**{**fields_of(two), "capacity": [[5, 0]]}))
    assert full.delta.tolist() == [[[3, 0]]]


def fields_of(p: ProvisioningProblem) -> dict:
    return {k: v for k, v in vars(p).items() if k != "shape"}


def test_too_little_capacity_serves_what_it_can():
    plan = provision(problem(capacity=[[3], [1]]))
    # 0.5 and 1 instances are missing in the regions; together there are 4 for 400.
    assert plan.target.tolist() == [[[3], [1]]]
    assert plan.missing == pytest.approx(0.5 + 1.0)
    with pytest.raises(NoPlan, match="contradict"):
        provision(problem(capacity=[[3], [1]], min_instances=[[4, 0]]))


@pytest.mark.parametrize("limits", [{"capacity": [[5], [3]]}, {"max_instances": [[5, 3]]}])
@pytest.mark.parametrize("demand", [1e3, 1e6, 1e9, 1e12, 1e14])
def test_whatever_is_asked_for_all_that_there_is_serves(demand, limits):
    """5 and 3 instances of 100 tokens/s at most: 1e6 and more of each region lack all but those 8, twice."""
    plan = provision(problem(demand=np.full((1, 2, 1), demand), **limits))
    assert plan.target.tolist() == [[[5], [3]]]
    assert plan.missing == pytest.approx(2 * (2 * demand / 100 - 8))


def test_an_llm_that_runs_nowhere_is_missed():
    plan = provision(problem(throughput=[[0.0]]))
    assert plan.missing > 0
    assert (plan.delta <= 0).all()


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_both_solvers(solver):
    plan = provision(problem(epsilon=0.5), SolverSettings(gap=0.0, solver=solver))
    assert plan.cost == 10 + 150
    assert plan.optimal


def test_a_gap_is_kept():
    """With a gap of a half the answer costs at most twice the optimum."""
    rng = np.random.default_rng(0)
    big = ProvisioningProblem(
        instances=np.zeros((4, 3, 2), np.int64),
        demand=rng.uniform(100, 5000, (4, 3, 4)),
        throughput=rng.uniform(300, 900, (4, 2)),
        vm_cost=np.array([10.0, 17.0]),
        start_cost=np.full((4, 2), 150.0),
    )
    loose = provision(big, SolverSettings(gap=0.5))
    tight = provision(big, SolverSettings(gap=0.0))
    assert tight.optimal
    assert tight.cost <= loose.cost + 1e-6 <= 2 * tight.cost + 1e-6
    assert big.missing(tight.delta) < 1e-6


# ---- against brute force ----


@st.composite
def small_problems(draw):
    i, j, k = draw(st.sampled_from([(1, 2, 1), (1, 2, 2), (2, 2, 1), (2, 1, 2), (1, 3, 1)]))
    most = 3
    numbers = st.integers(0, 2**32 - 1)
    rng = np.random.default_rng(draw(numbers))
    windows = draw(st.integers(1, 3))
    values = {
        "instances": rng.integers(0, most + 1, (i, j, k)),
        "demand": np.round(rng.uniform(0, 260, (i, j, windows))),
        "throughput": rng.choice([0.0, 90.0, 100.0, 170.0], (i, k), p=[0.1, 0.3, 0.3, 0.3]),
        "vm_cost": rng.integers(0, 20, k).astype(float),
        "start_cost": rng.integers(1, 200, (i, k)).astype(float),
        "epsilon": float(rng.choice([0.3, 0.7, 1.0])),
        "cross_region": bool(rng.random() < 0.7),
        "max_instances": np.full((i, j), most),
    }
    if rng.random() < 0.5:
        values["capacity"] = rng.integers(0, 5, (j, k))
        values["vms_per_instance"] = rng.integers(1, 3, (i, k))
    elif rng.random() < 0.5:
        values["min_instances"] = rng.integers(0, 2, (i, j))
    return ProvisioningProblem(**values), most


@given(small_problems())
@settings(max_examples=80, deadline=None)
def test_equals_brute_force(drawn):
    p, most = drawn
    missing, cost = brute_force(p, most)
    if not np.isfinite(missing):
        with pytest.raises(NoPlan):
            provision(p)
        return
    plan = provision(p)
    assert plan.optimal
    assert plan.missing == pytest.approx(missing, abs=1e-5)
    assert plan.cost == pytest.approx(cost, abs=1e-6)
    assert (plan.target >= 0).all()


@pytest.mark.parametrize(
    "change, word",
    [
        ({"instances": [[2, 1]]}, "instances"),
        ({"demand": [[100.0, 1.0]]}, "demand"),
        ({"demand": [[[1e300], [1.0]]]}, r"demand: must be in 0\.\.1e\+15"),
        ({"demand": [[[np.nan], [1.0]]]}, "demand"),
        ({"throughput": [[-1.0]]}, "throughput"),
        ({"vm_cost": [np.nan]}, "vm_cost"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"capacity": [[1]]}, "capacity"),
        ({"vms_per_instance": [[0]]}, "vms_per_instance"),
    ],
)
def test_bad_problems_are_named(change, word):
    with pytest.raises(ValueError, match=word):
        problem(**change)
