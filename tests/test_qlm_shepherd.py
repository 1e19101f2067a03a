"""SHEPHERD's placement: fixed batches, deterministic times, one LLM per instance."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest

from baselines.qlm.shepherd import PlacementProblem, execution_s, place
from baselines.solver import SolverMissing, SolverSettings

# One LLM, two instances: batches of 4 take 10 s, first tokens after 1 s.
ONE = {
    "llm": [0, 0],
    "slo_s": [5.0, 25.0],
    "requests": [6, 30],
    "batch": [[4], [4]],
    "execution_s": [[10.0], [10.0]],
    "prefill_s": [[1.0], [1.0]],
    "swap_s": [[7.0], [7.0]],
    "loaded": [0, 0],
}


def random_problem(seed: int, instances: int, llms: int, streams: int) -> PlacementProblem:
    rng = np.random.default_rng(seed)
    fast = rng.integers(0, 2, instances)  # two kinds of GPU
    batch = np.array([[2, 1, 2], [5, 3, 4]])[fast][:, :llms]
    if llms > 1:
        batch[:, llms - 1] *= fast  # the largest LLM fits one kind only
    return PlacementProblem(
        llm=rng.integers(0, llms, streams), slo_s=rng.choice([3.0, 8.0, 15.0, 22.0], streams),
        requests=rng.integers(0, 14, streams), batch=batch,
        execution_s=np.array([[9.0, 7, 12], [5.0, 6, 10]])[fast][:, :llms],
        prefill_s=np.full((instances, llms), 1.0), swap_s=np.full((instances, llms), 4.0),
        loaded=rng.integers(-1, llms, instances), ready_s=rng.integers(0, 3, instances),
    )  # fmt: skip


def most_on_time(problem: PlacementProblem) -> int:
    """Every LLM on every instance; then every batch's place in time for every stream."""
    instances, llms = problem.batch.shape
    best = 0
    for chosen in itertools.product(range(llms), repeat=instances):
        total = 0
        for m in range(llms):
            streams = [s for s in range(len(problem.llm)) if problem.llm[s] == m]
            if not streams:
                continue
            slots = []  # (requests, streams that would be on time)
            for g in range(instances):
                if chosen[g] != m or problem.batch[g, m] == 0:
                    continue
                first = problem.ready_s[g] + problem.prefill_s[g, m]
                first += problem.swap_s[g, m] * (problem.loaded[g] != m)
                for at in range(20):
                    token = first + at * problem.execution_s[g, m]
                    fit = [s for s in streams if token <= problem.slo_s[s] + 1e-9]
                    if fit:
                        slots.append((int(problem.batch[g, m]), fit))
            left = {s: int(problem.requests[s]) for s in streams}
            total += _best_use(slots, left)
        best = max(best, total)
    return best


def _best_use(slots: list, left: dict[int, int]) -> int:
    states = {tuple(left.values())}
    names = list(left)
    for size, fit in slots:
        states |= {
            (*state[:i], max(0, state[i] - size), *state[i + 1 :])
            for state in states
            for i in range(len(names))
            if names[i] in fit
        }
    return sum(left.values()) - min(sum(state) for state in states)


def test_execution_time():
    assert execution_s(0.5, 0.02, 2000, 300) == pytest.approx(40.5)
    assert execution_s(0.5, 0.02, 2000, 300, output="mean") == pytest.approx(6.5)
    assert execution_s([[0.5, 1.0]], 0.02, [2000, 1000], 300).tolist() == [[40.5, 21.0]]
    with pytest.raises(ValueError, match="output = 'all'"):
        execution_s(1, 1, 1, 1, output="all")


def test_one_llm_by_hand():
    # First tokens at 1, 11, 21 s: one place each within 5 s, three within 25 s.
    problem = PlacementProblem(**(ONE | {"requests": [6, 12]}))
    assert [problem.places(0, s) for s in (0, 1)] == [1, 3]
    found = place(problem)
    assert found.optimal
    assert found.on_time.tolist() == [6, 12]
    assert found.llm.tolist() == [0, 0]
    assert found.batches.tolist() == [[1, 2], [1, 1]]
    assert int(place(PlacementProblem(**ONE)).on_time.sum()) == 24  # six full batches
    assert found.unplaced == ()


def test_loading_counts():
    problem = PlacementProblem(**(ONE | {"loaded": [-1, -1], "ready_s": [0.0, 9.0]}))
    # First tokens at 8 and 18 s on one, at 17 s on the other.
    assert [problem.places(g, s) for g in (0, 1) for s in (0, 1)] == [0, 2, 0, 1]
    assert place(problem).on_time.tolist() == [0, 12]


def test_no_instance_holds_two_llms():
    # One instance could serve both LLMs in time, one after the other; SHEPHERD leaves one out.
    case = {
        "llm": [0, 1], "slo_s": [5.0, 500.0], "requests": [3, 4], "batch": [[4, 4]],
        "execution_s": [[10.0, 10.0]], "prefill_s": [[1.0, 1.0]], "swap_s": [[7.0, 7.0]],
        "loaded": [0],
    }  # fmt: skip
    found = place(PlacementProblem(**case))
    assert found.llm.tolist() == [1]
    assert found.on_time.tolist() == [0, 4]
    assert found.unplaced == (0,)


def test_loaded_llms_stay_where_that_costs_nothing():
    case = {
        "llm": [0, 1], "slo_s": [500.0, 500.0], "requests": [4, 4], "batch": [[4, 4]] * 2,
        "execution_s": [[10.0, 10.0]] * 2, "prefill_s": [[1.0, 1.0]] * 2,
        "swap_s": [[7.0, 7.0]] * 2, "loaded": [1, 0],
    }  # fmt: skip
    assert place(PlacementProblem(**case)).llm.tolist() == [1, 0]


def test_instances_that_are_left_serve_what_is_late():
    found = place(PlacementProblem(**(ONE | {"slo_s": [-1.0, -1.0]})))
    assert found.on_time.tolist() == [0, 0]
    assert found.llm.tolist() == [0, 0]
    idle = place(PlacementProblem(**(ONE | {"requests": [0, 0], "loaded": [-1, -1]})))
    assert idle.llm.tolist() == [-1, -1]
    too_large = place(PlacementProblem(**(ONE | {"batch": [[0], [0]]})))
    assert too_large.unplaced == (0, 1)


@pytest.mark.parametrize("solver", ["highs", "cbc"])
@pytest.mark.parametrize("seed", range(6))
def test_no_placement_has_more_on_time(seed: int, solver: str):
    problem = random_problem(seed, instances=3, llms=1 + seed % 3, streams=4)
    found = place(problem, SolverSettings(gap=1e-6, solver=solver))
    assert int(found.on_time.sum()) == most_on_time(problem)


@pytest.mark.parametrize("seed", range(8))
def test_what_it_promises_holds_on_every_instance(seed: int):
    """Batches by SLO, one after the other: each begins by its SLO."""
    problem = random_problem(seed, instances=8, llms=3, streams=6)
    found = place(problem)
    for g in range(8):
        m = int(found.llm[g])
        assert all(problem.llm[s] == m for s in np.flatnonzero(found.batches[g]))
        ahead = 0
        for s in sorted(range(6), key=lambda s: problem.slo_s[s]):
            ahead += int(found.batches[g, s])
            if found.batches[g, s]:
                assert ahead <= problem.places(g, s)


def test_order_does_not_matter_and_more_instances_never_cost():
    for seed in range(5):
        problem = random_problem(seed, instances=4, llms=3, streams=5)
        fields = ("batch", "execution_s", "prefill_s", "swap_s", "loaded", "ready_s")
        streams = {name: getattr(problem, name) for name in ("llm", "slo_s", "requests")}
        order = np.random.default_rng(seed).permutation(4)
        total = int(place(problem).on_time.sum())
        for chosen, compare in ((order, int.__eq__), (order[:3], int.__le__)):
            some = {name: getattr(problem, name)[chosen] for name in fields}
            other = PlacementProblem(**streams, **some)
            assert compare(int(place(other).on_time.sum()), total)


def test_fifty_instances():
    n = 50
    problem = PlacementProblem(
        llm=[0, 0, 1, 1, 2, 2], slo_s=[20.0, 60, 20, 3600, 60, 3600], requests=[900] * 6,
        batch=[[64, 32, 8]] * n, execution_s=[[30.0, 50, 90]] * n, prefill_s=[[1.0, 2, 4]] * n,
        swap_s=[[9.0, 15, 60]] * n, loaded=[0] * n,
    )  # fmt: skip
    found = place(problem)
    assert found.optimal
    assert found.on_time[3] == 900


@pytest.mark.parametrize(
    "change,message",
    [
        ({"llm": [0, 1]}, r"llm = 1: must be in 0\.\.0"),
        ({"loaded": [0, 3]}, "loaded = 3"),
        ({"requests": [1, -1]}, "requests = -1: must be at least 0"),
        ({"batch": [[4], [-1]]}, "batch = -1"),
        ({"execution_s": [[0.0], [1.0]]}, "execution_s = 0.0: must be positive"),
        ({"prefill_s": [[-1.0], [1.0]]}, "prefill_s = -1.0"),
        ({"swap_s": [[np.inf], [1.0]]}, "swap_s = inf"),
        ({"slo_s": [np.nan, 1.0]}, "slo_s = nan"),
        ({"ready_s": [-1.0, 1.0]}, "ready_s = -1.0"),
        ({"slo_s": [1.0]}, r"slo_s has shape \(1,\): must be \(2,\)"),
        ({"batch": [4]}, "batch must have two axes"),
    ],
)
def test_bad_input(change: dict, message: str):
    with pytest.raises(ValueError, match=message):
        PlacementProblem(**(ONE | change))


def test_a_missing_solver_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pulp", None)
    with pytest.raises(SolverMissing, match=r"pip install 'llmscale\[solver\]'"):
        place(PlacementProblem(**ONE))
