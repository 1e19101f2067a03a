"""The limit of time that is set reaches the solver, and the tests lift it where they do not ask for it."""

from __future__ import annotations

from typing import Any

import pytest

from baselines.sageserve.programme import provision
from baselines.solver import SolverSettings, import_pulp, run, variable
from tests.test_sageserve_programme import problem
from tests.waiting import PATIENCE_S


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The limits of the solvers that programmes are given to."""
    pulp = import_pulp()
    solve, found = pulp.LpProblem.solve, []

    def watched(self: Any, solver: Any, **options: Any) -> Any:
        found.append(solver.timeLimit)
        return solve(self, solver, **options)

    monkeypatch.setattr(pulp.LpProblem, "solve", watched)
    return found


def programme() -> Any:
    pulp = import_pulp()
    made = pulp.LpProblem("small", pulp.LpMinimize)
    x = variable(made, "x", 0, 9, integer=True)
    made += x
    made += 2 * x >= 3
    return made


@pytest.mark.solver_clock
@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_a_limit_that_is_set_reaches_the_solver(solver: str, asked: list[float]) -> None:
    small = programme()
    assert run(small, SolverSettings(time_limit_s=7.5, solver=solver)).optimal
    assert asked == [7.5]
    if solver == "highs":  # and what it makes of it
        assert small.solverModel.getOptionValue("time_limit")[1] == 7.5


@pytest.mark.solver_clock
def test_a_limit_reaches_the_solver_through_a_programme_of_a_baseline(asked: list[float]) -> None:
    provision(problem(), SolverSettings(gap=0.0, time_limit_s=7.5))
    assert set(asked) == {7.5}


def test_elsewhere_the_tests_lift_it(asked: list[float]) -> None:
    run(programme(), SolverSettings(time_limit_s=7.5))
    assert asked == [PATIENCE_S]
