"""QLM's global scheduler: Eq. 6 to 13, its fallback, and the search beyond its size."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.qlm.programme import exact, plan, printed
from baselines.qlm.schedule import Plan, QueueProblem, evaluate, queue_waits_s
from baselines.qlm.search import alike_groups, edf, search
from baselines.solver import SolverMissing, SolverSettings

TIGHT = SolverSettings(gap=1e-6)


def problem_of(seed: int, instances: int, groups: int, llms: int, **change) -> QueueProblem:
    """Unequal speeds, swaps, running work and SLOs from some seconds to an hour."""
    rng = np.random.default_rng(seed)
    work = rng.uniform(5, 30, groups) * rng.uniform(0.7, 3, (instances, 1))
    values = {
        "llm": rng.integers(0, llms, groups),
        "slo_s": rng.choice([20.0, 60.0, 300.0, 3600.0], groups) - rng.uniform(0, 20, groups),
        "requests": rng.integers(1, 1000, groups),
        "work_s": work,
        "completion_s": work + rng.uniform(5, 20, (instances, groups)),
        "swap_s": rng.uniform(5, 60, (instances, llms)),
        "loaded": rng.integers(-1, llms, instances),
        "ready_s": rng.uniform(0, 10, instances),
        "ready_tail_s": rng.uniform(0, 10, (instances, groups)),
        "own_wait_s": work * rng.uniform(0, 1, (instances, 1)),
    }
    return QueueProblem(**(values | change))


def all_queues(instances: int, groups: Sequence[int]):
    for assigned in itertools.product(range(instances), repeat=len(groups)):
        parts = [
            [i for i, g in zip(groups, assigned, strict=True) if g == k] for k in range(instances)
        ]
        yield from itertools.product(*[itertools.permutations(part) for part in parts])


def brute_force(problem: QueueProblem) -> list[Plan]:
    """Every plan, the best first."""
    plans = []
    for queues in all_queues(problem.instances, problem.servable.tolist()):
        if all(problem.allowed[g, i] for g, queue in enumerate(queues) for i in queue):
            plans.append(evaluate(problem, queues, "exact"))
    return sorted(plans, key=lambda found: found.objective)


# Two LLMs; one instance has LLM 0 loaded and is busy for 1 s, 4 s until its batch is done.
SMALL = {
    "llm": [0, 0, 1],
    "slo_s": [100.0, 5.0, 20.0],
    "requests": [10, 20, 30],
    "work_s": [[6.0, 8.0, 10.0]],
    "completion_s": [[16.0, 18.0, 25.0]],
    "swap_s": [[7.0, 9.0]],
    "loaded": [0],
    "ready_s": [1.0],
    "ready_tail_s": [[3.0, 3.0, 3.0]],
}

# ---- Eq. 10 ----


def test_waiting_in_a_virtual_queue():
    problem = QueueProblem(**SMALL)
    # Same LLM: 1, + 6. Then LLM 1: the second group has to complete (18), and 9 to swap.
    assert queue_waits_s(problem, 0, [0, 1, 2]) == [1.0, 7.0, 7.0 + 18 + 9]
    # LLM 1 first: what runs must end (1 + 3), 9 to swap; then 25 and 7 to swap back.
    assert queue_waits_s(problem, 0, [2, 0, 1]) == [13.0, 13.0 + 25 + 7, 51.0]
    assert queue_waits_s(problem, 0, []) == []


def test_only_a_group_for_which_what_runs_stays_waits_for_its_end():
    # LLM 0 is loaded, 3 s are left of what runs; group 0 would wait for them, group 1 would not. Swapping to
    # LLM 1 takes 9 s. Group 0 first: 3 + 9, then 6 of its own; group 1 first: 9, then 8.
    problem = QueueProblem(
        llm=[1, 1], slo_s=[17.0, 12.0], requests=[10, 20], work_s=[[6.0, 8.0]],
        completion_s=[[16.0, 18.0]], swap_s=[[7.0, 9.0]], loaded=[0], ready_tail_s=[[3.0, 0.0]],
    )  # fmt: skip
    assert queue_waits_s(problem, 0, [0, 1]) == [12.0, 18.0]
    assert queue_waits_s(problem, 0, [1, 0]) == [9.0, 17.0]
    # In time only with group 1 first, and only as nothing stays for it.
    for found in (edf(problem), search(problem), exact(problem, TIGHT)):
        assert found.queues == ((1, 0),)
        assert found.feasible
        assert found.wait_s.tolist() == [17.0, 9.0]
    held = replace(problem, ready_tail_s=[[0.0, 5.0]])
    # Group 1 would begin at 5 + 9, group 0 behind it at 14 + 8: late by 2 s of 20 requests and 5 s of 10.
    # Behind group 0 it begins at 9 + 6, late by 3 s of 20 requests, and group 0 is in time.
    for found in (search(held), exact(held, TIGHT)):
        assert found.queues == ((0, 1),)
        assert found.late_s.tolist() == [0.0, 3.0]
    assert evaluate(held, [[1, 0]], "edf").late_s.tolist() == [5.0, 2.0]


def test_edf_goes_where_what_runs_does_not_hold_a_group_up():
    # The first instance would begin at 5 + 9, the second is ready at 2 and begins at 2 + 9. Two groups that
    # only what runs tells apart are not alike: the one that is not held up may not change places.
    problem = QueueProblem(
        llm=[1, 1], slo_s=[20.0, 90.0], requests=[10, 10], work_s=[[6.0, 6.0]] * 2,
        completion_s=[[16.0, 16.0]] * 2, swap_s=[[7.0, 9.0]] * 2, loaded=[0, 0],
        ready_s=[0.0, 2.0], ready_tail_s=[[5.0, 0.0], [0.0, 0.0]],
    )  # fmt: skip
    assert edf(problem).queues == ((1,), (0,))
    assert edf(problem).wait_s.tolist() == [11.0, 9.0]
    assert alike_groups(problem) == []
    assert alike_groups(replace(problem, ready_tail_s=None)) == [[0, 1]]


def test_penalties_are_weighted_by_requests():
    found = evaluate(QueueProblem(**SMALL), [[0, 1, 2]], "exact")
    assert found.late_s.tolist() == [0, 2, 14]
    assert found.penalty == 20 * 2 + 30 * 14
    assert found.waiting == 10 * 1 + 20 * 7 + 30 * 34
    assert not found.feasible
    assert found.objective == pytest.approx(460 + 1e-4 * 1170)


def test_own_waiting_moves_the_deadline():
    problem = QueueProblem(**SMALL, own_wait_s=[[0.0, 4.5, 0.0]])
    assert evaluate(problem, [[1, 0, 2]], "exact").late_s.tolist() == [0, 0.5, 14.0]


# ---- the optimum ----


@pytest.mark.parametrize("solver", ["highs", "cbc"])
@pytest.mark.parametrize("seed", range(4))
def test_the_optimum_is_that_of_brute_force(seed: int, solver: str):
    settings_ = SolverSettings(gap=1e-6, solver=solver)
    for groups in (1, 2, 3, 4):
        problem = problem_of(10 * seed + groups, 2, groups, 2)
        best = brute_force(problem)[0]
        found = exact(problem, settings_, start=edf(problem))
        assert found.optimal
        assert found.objective == pytest.approx(best.objective, rel=1e-5, abs=1e-4)
        assert found.feasible == best.feasible
        assert search(problem).objective == pytest.approx(best.objective, rel=1e-5, abs=1e-4)


def test_with_an_instance_that_cannot_serve_an_llm():
    for seed in range(4):
        problem = problem_of(seed, 2, 4, 2)
        swap = problem.swap_s.copy()
        swap[0, 1] = np.inf
        problem = problem_of(seed, 2, 4, 2, swap_s=swap)
        found = exact(problem, TIGHT)
        assert found.objective == pytest.approx(brute_force(problem)[0].objective, rel=1e-5)
        assert all(problem.llm[i] == 0 for i in found.queues[0])


def test_alike_groups_and_instances():
    """The constraints that break symmetries leave an optimum in."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        problem = problem_of(
            seed, 2, 4, 2,
            llm=[0, 0, 0, 1], requests=[5, 5, 5, 9], work_s=np.full((2, 4), 9.0),
            completion_s=np.full((2, 4), 20.0), swap_s=[[5.0, 8.0]] * 2, loaded=[0, 0],
            slo_s=rng.uniform(0, 30, 4), ready_s=[1.0, 1.0], ready_tail_s=np.full((2, 4), 2.0),
            own_wait_s=np.full((2, 4), 3.0),
        )  # fmt: skip
        found = exact(problem, TIGHT)
        assert found.objective == pytest.approx(brute_force(problem)[0].objective, rel=1e-5)


def test_of_equally_late_plans_the_one_with_the_least_waiting():
    # Nobody is late in any order: the short group with many requests goes first, on an instance each.
    problem = QueueProblem(
        llm=[0, 0, 0], slo_s=[1e4] * 3, requests=[1, 100, 1], work_s=[[50.0, 5, 60]] * 2,
        completion_s=[[60.0, 15, 70]] * 2, swap_s=[[9.0]] * 2, loaded=[0, 0],
    )  # fmt: skip
    for found in (exact(problem, TIGHT), plan(problem)):
        assert found.feasible
        assert found.penalty == 0
        assert found.waiting == 5.0
        assert sorted(found.queues) == [(0,), (1, 2)] or sorted(found.queues) == [(1, 0), (2,)]


def test_whether_all_slos_can_be_met_is_not_traded_for_waiting():
    # The second group first makes one request 1 s late, and saves 100 requests 10 s.
    problem = QueueProblem(
        llm=[0, 0], slo_s=[10.0, 100.0], requests=[1, 100], work_s=[[10.0, 11.0]],
        completion_s=[[20.0, 21.0]], swap_s=[[9.0]], loaded=[0], waiting_weight=0.01,
    )  # fmt: skip
    assert [found.queues for found in brute_force(problem)] == [((1, 0),), ((0, 1),)]
    found = exact(problem, TIGHT)
    assert found.feasible
    assert found.queues == ((0, 1),)


def test_overload_has_an_answer_and_is_reported():
    problem = QueueProblem(**SMALL)
    found = plan(problem)
    best = brute_force(problem)[0]
    assert (found.method, found.optimal, found.feasible) == ("exact", True, False)
    assert found.queues == best.queues
    relaxed = QueueProblem(**(SMALL | {"slo_s": [100.0, 50.0, 50.0]}))
    assert plan(relaxed).feasible


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_order_of_groups_and_instances_does_not_matter(seed: int):
    rng = np.random.default_rng(seed)
    problem = problem_of(seed, 2, 4, 2)
    i, g = rng.permutation(4), rng.permutation(2)
    other = QueueProblem(
        llm=problem.llm[i], slo_s=problem.slo_s[i], requests=problem.requests[i],
        work_s=problem.work_s[g][:, i], completion_s=problem.completion_s[g][:, i],
        swap_s=problem.swap_s[g], loaded=problem.loaded[g], ready_s=problem.ready[g],
        ready_tail_s=problem.ready_tail[g][:, i], own_wait_s=problem.own_wait[g][:, i],
    )  # fmt: skip
    a, b = exact(problem, TIGHT), exact(other, TIGHT)
    assert a.objective == pytest.approx(b.objective, rel=1e-5)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_more_capacity_never_costs(seed: int):
    problem = problem_of(seed, 3, 4, 2)
    fewer = problem_of(
        seed, 2, 4, 2,
        **{
            name: getattr(problem, name)[:2]
            for name in ("work_s", "completion_s", "swap_s", "loaded", "ready_s", "ready_tail_s")
        },
        llm=problem.llm, slo_s=problem.slo_s, requests=problem.requests,
        own_wait_s=problem.own_wait[:2],
    )  # fmt: skip
    more, less = exact(problem, TIGHT), exact(fewer, TIGHT)
    assert more.objective <= less.objective * (1 + 1e-5) + 1e-6


# ---- what cannot be served ----


def test_a_group_that_no_instance_can_serve_is_reported():
    change = {"work_s": [[6.0, np.inf, 10.0]], "completion_s": [[16.0, np.inf, 25.0]]}
    problem = QueueProblem(**(SMALL | change))
    for found in (plan(problem), edf(problem), search(problem), exact(problem)):
        assert found.unservable == (1,)
        assert sorted(found.queues[0]) == [0, 2]
        assert np.isnan(found.wait_s[1])
    nothing = QueueProblem(**(SMALL | {"swap_s": [[np.inf, np.inf]]}))
    for found in (plan(nothing), exact(nothing), edf(nothing)):
        assert found.unservable == (0, 1, 2)
        assert found.queues == ((),)
        assert found.feasible


def test_nothing_to_do():
    problem = problem_of(0, 2, 0, 2)
    assert plan(problem).queues == ((), ())


# ---- earliest deadline first ----


def test_edf_knows_llms_swaps_and_speeds():
    # Deadlines: group 2 (10 s), 0, 1. Instance 1 is twice as fast; LLM 1 is loaded on instance 0.
    problem = QueueProblem(
        llm=[0, 0, 1], slo_s=[20.0, 30.0, 10.0], requests=[1, 1, 1],
        work_s=[[10.0, 10, 10], [5.0, 5, 5]], completion_s=[[12.0, 12, 12], [6.0, 6, 6]],
        swap_s=[[8.0, 8.0]] * 2, loaded=[1, 0],
    )  # fmt: skip
    # Group 2: done at 10 on instance 0, at 8 + 5 on 1. Then 0 and 1 stay on instance 1.
    assert edf(problem).queues == ((2,), (0, 1))
    assert edf(problem).wait_s.tolist() == [0.0, 5.0, 0.0]


# ---- the search ----


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    instances=st.integers(1, 6),
    groups=st.integers(0, 25),
    llms=st.integers(1, 4),
)
def test_the_search_is_never_worse_than_edf(seed: int, instances: int, groups: int, llms: int):
    problem = problem_of(seed, instances, groups, llms)
    rng = np.random.default_rng(seed)
    swap = np.where(rng.random(problem.swap_s.shape) < 0.2, np.inf, problem.swap_s)
    problem = problem_of(seed, instances, groups, llms, swap_s=swap)
    found, fallback = search(problem, rounds=20), edf(problem)
    assert found.objective <= fallback.objective
    again = search(problem, rounds=20)
    assert again.queues == found.queues
    assert sorted(itertools.chain(*found.queues)) == problem.servable.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_search_finds_the_optimum_of_mid_size_cases(seed: int):
    problem = problem_of(seed, 3, 6, 3)
    found = exact(problem, SolverSettings(gap=1e-3))
    assert found.optimal
    assert search(problem).objective <= found.objective * 1.01


def test_two_llms_are_separated_rather_than_swapped():
    """Fig. 5's case: by deadline the LLMs alternate, by QLM each instance keeps one."""
    n = 12
    problem = QueueProblem(
        llm=np.arange(n) % 2, slo_s=200.0 + np.arange(n), requests=np.full(n, 100.0),
        work_s=np.full((1, n), 10.0), completion_s=np.full((1, n), 30.0), swap_s=[[40.0, 40.0]],
        loaded=[0],
    )  # fmt: skip
    by_deadline = evaluate(problem, [range(n)], "edf")
    found = search(problem)
    assert found.queues[0] == (*range(0, n, 2), *range(1, n, 2))
    assert found.feasible
    assert not by_deadline.feasible


def test_hundreds_of_groups():
    problem = problem_of(0, 50, 400, 3)
    found = plan(problem, rounds=20)
    assert found.method == "search"
    assert found.objective < edf(problem).objective


# ---- as printed ----


def test_the_printed_programme():
    """Two groups of one LLM on one instance, and one position more for an empty group."""
    case = {
        "llm": [0, 0], "slo_s": [9.0, 4.0], "requests": [1, 1], "work_s": [[6.0, 8.0]],
        "completion_s": [[16.0, 18.0]], "swap_s": [[7.0]], "loaded": [0],
    }  # fmt: skip
    found = printed(QueueProblem(**case), positions=2)
    assert found.queues == ((1, 0),)  # the other way round 6 > 4
    assert found.objective == pytest.approx((0 - 4) + (8 - 9))
    overloaded = printed(QueueProblem(**(case | {"slo_s": [7.0, 4.0]})), positions=2)
    assert overloaded.infeasible
    assert overloaded.queues is None


def test_without_padding_more_than_one_instance_is_infeasible():
    problem = problem_of(0, 2, 3, 1, slo_s=[1e4] * 3)
    assert printed(problem, padding=False).infeasible
    found = printed(problem)
    assert found.queues is not None
    assert sorted(itertools.chain(*found.queues)) == [0, 1, 2]


def test_the_printed_swap_term_counts_the_group_that_waits():
    # LLM 0 is loaded, both groups are of LLM 1: one swap at position 0. Position 0 itself waits for
    # nothing; position 1 for W of the first, S, and C of itself: printed, not what the text says.
    case = {
        "llm": [1, 1], "slo_s": [99.0, 99.0], "requests": [1, 1], "work_s": [[6.0, 8.0]],
        "completion_s": [[16.0, 18.0]], "swap_s": [[7.0, 7.0]], "loaded": [0],
    }  # fmt: skip
    found = printed(QueueProblem(**case), positions=2)
    # Order 0, 1: 6 + 7 + 18 = 31; order 1, 0: 8 + 7 + 16 = 31.
    assert found.objective == pytest.approx(31 - 2 * 99)
    with pytest.raises(ValueError, match="positions = 1: 1 queues must hold 2 groups"):
        printed(QueueProblem(**case), positions=1)


# ---- solvers and bad input ----


def test_a_missing_solver_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(SolverMissing, match=r"needs HiGHS: pip install 'llmscale\[solver\]'"):
        exact(QueueProblem(**SMALL), SolverSettings(solver="highs"))
    monkeypatch.setitem(sys.modules, "pulp", None)
    with pytest.raises(SolverMissing, match=r"needs PuLP: pip install 'llmscale\[solver\]'"):
        plan(QueueProblem(**SMALL))
    assert plan(QueueProblem(**SMALL), exact_size=0).method == "search"


def test_an_interrupted_solver_leaves_the_start():
    problem = problem_of(3, 3, 9, 3)
    start = edf(problem)
    found = exact(problem, SolverSettings(max_nodes=1), start=start)
    assert found.objective <= start.objective
    assert not found.optimal


@pytest.mark.parametrize(
    "change,message",
    [
        ({"llm": [0, 0, 2]}, r"llm = 2: must be in 0\.\.1"),
        ({"loaded": [-2]}, r"loaded = -2: must be in -1\.\.1"),
        ({"slo_s": [1.0, np.nan, 1.0]}, "slo_s = nan: must be finite"),
        ({"requests": [1, 0, 1]}, "requests = 0.0: must be positive"),
        ({"work_s": [[6.0, -8.0, 10.0]]}, "work_s = -8.0: must be at least 0"),
        ({"completion_s": [[5.0, 18.0, 25.0]]}, "completion_s = 5.0: must be at least work_s"),
        ({"swap_s": [[-1.0, 1.0]]}, "swap_s = -1.0: must be at least 0"),
        ({"ready_s": [np.inf]}, "ready_s = inf: must be at least 0 and finite"),
        ({"ready_s": [1.0, 1.0]}, r"ready has shape \(2,\): must be \(1,\)"),
        ({"slo_s": [1.0]}, r"slo_s has shape \(1,\): must be \(3,\)"),
        ({"work_s": [1.0]}, "must have two axes"),
        ({"waiting_weight": 0.0}, "waiting_weight = 0.0"),
    ],
)
def test_bad_problems(change: dict, message: str):
    with pytest.raises(ValueError, match=message):
        QueueProblem(**(SMALL | change))


def test_bad_queues_and_settings():
    problem = QueueProblem(**SMALL)
    for queues in ([[0, 1]], [[0, 1, 1, 2]], [[0, 1, 2], []]):
        with pytest.raises(ValueError, match="must hold each of"):
            evaluate(problem, queues, "edf")
    for field, value in (
        ("gap", 1.0), ("time_limit_s", 0.0), ("max_nodes", 0), ("solver", "gurobi"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=field):
            SolverSettings(**{field: value})
    with pytest.raises(ValueError, match="rounds = -1"):
        search(problem, rounds=-1)
