"""The solver behind the integer programmes: HiGHS, or CBC where that is missing, through PuLP."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class SolverMissing(ImportError):
    """PuLP or a solver for it is not installed."""


@dataclass(frozen=True)
class SolverSettings:
    """When a solver may stop. It runs on one thread.

    Attributes:
        gap: relative gap between the answer and the bound.
        time_limit_s: of the clock; what is found by then depends on the machine.
        max_nodes: of the branch-and-bound tree, the same on every machine (HiGHS only); None: no limit.
        solver: "highs", "cbc", or "any": the first of them that is there.
        method: of linear programmes: "choose", "simplex" or "ipm" (an interior point, then a corner of
            the same value; several times as fast on large programmes; HiGHS only).

    Raises:
        ValueError: a value out of range.
    """

    gap: float = 1e-4
    time_limit_s: float = 5.0
    max_nodes: int | None = None
    solver: str = "any"
    method: str = "choose"

    def __post_init__(self) -> None:
        if not 0 <= self.gap < 1:
            raise ValueError(f"gap = {self.gap}: must be at least 0 and below 1")
        if not self.time_limit_s > 0:
            raise ValueError(f"time_limit_s = {self.time_limit_s}: must be positive")
        if self.max_nodes is not None and self.max_nodes < 1:
            raise ValueError(f"max_nodes = {self.max_nodes}: must be at least 1")
        if self.solver not in ("highs", "cbc", "any"):
            raise ValueError(f"solver = {self.solver!r}: must be 'highs', 'cbc' or 'any'")
        if self.method not in ("choose", "simplex", "ipm"):
            raise ValueError(f"method = {self.method!r}: must be 'choose', 'simplex' or 'ipm'")


@dataclass(frozen=True)
class Outcome:
    """How a solver ended.

    Attributes:
        found: the variables hold an answer, which the caller still has to check.
        optimal: it is proved optimal within the gap.
        infeasible: it is proved that there is none.
    """

    found: bool
    optimal: bool
    infeasible: bool


def import_pulp() -> Any:
    """PuLP.

    Raises:
        SolverMissing: it is not installed.
    """
    try:
        import pulp
    except ImportError:
        raise SolverMissing("needs PuLP: pip install 'llmscale[solver]'") from None
    return pulp


def variable(
    programme: Any,
    name: str,
    low: float | None = 0.0,
    high: float | None = None,
    *,
    binary: bool = False,
    integer: bool = False,
) -> Any:
    """A new variable of a `pulp.LpProblem`, in the way that its version of PuLP likes.

    Args:
        programme: that it will belong to.
        name: its own.
        low, high: bounds; None: none.
        binary: it is 0 or 1.
        integer: it is a whole number within its bounds.
    """
    pulp = import_pulp()
    if binary:
        low, high = 0, 1
    category = pulp.LpInteger if binary or integer else pulp.LpContinuous
    make = getattr(programme, "add_variable", pulp.LpVariable)
    return make(name, low, high, category)


def run(
    programme: Any, settings: SolverSettings, start: Mapping[Any, float] | None = None
) -> Outcome:
    """Solves a PuLP problem in place.

    Args:
        programme: the `pulp.LpProblem`.
        settings: solver and limits.
        start: values of variables to begin with; those not named are 0.

    Raises:
        SolverMissing: neither HiGHS nor CBC is there, or not the one asked for.
    """
    pulp = import_pulp()
    if start is not None:
        for each in programme.variables():
            each.varValue = start.get(each, 0.0)
    status = programme.solve(_solver(pulp, settings, start is not None))
    found = status == pulp.LpStatusOptimal and _integral(pulp, programme)
    if start is not None and not found:
        # CBC now and then ends with fractions or calls a programme infeasible whose start is optimal;
        # without the start it does not.
        status = programme.solve(_solver(pulp, settings, False))
        found = status == pulp.LpStatusOptimal and _integral(pulp, programme)
    return Outcome(
        found=found,
        optimal=found and programme.sol_status == pulp.LpSolutionOptimal,
        infeasible=status == pulp.LpStatusInfeasible,
    )


def _integral(pulp: Any, programme: Any) -> bool:
    """Whether all variables have values, whole ones where they must."""
    for each in programme.variables():
        value = each.varValue
        if value is None:
            return False
        if each.cat == pulp.LpInteger and abs(value - round(value)) > 1e-4:
            return False
    return True


def _solver(pulp: Any, settings: SolverSettings, warm: bool) -> Any:
    if settings.solver in ("highs", "any"):
        highs = _highs(pulp, settings, warm)
        if highs is not None:
            return highs
    if settings.solver in ("cbc", "any"):
        for name in ("COIN_CMD", "PULP_CBC_CMD"):  # an installed CBC, the one that PuLP 3 brings
            kind = getattr(pulp, name, None)
            if kind is None:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of the second, gone in PuLP 4
                cbc = kind(
                    msg=False,
                    threads=1,
                    gapRel=settings.gap,
                    timeLimit=settings.time_limit_s,
                    warmStart=warm,
                )
                if cbc.available():
                    return cbc
    wanted = {"highs": "HiGHS", "cbc": "CBC", "any": "HiGHS or CBC"}[settings.solver]
    raise SolverMissing(f"needs {wanted}: pip install 'llmscale[solver]'")


def _highs(pulp: Any, settings: SolverSettings, warm: bool) -> Any:
    try:
        import highspy
    except ImportError:
        return None

    class WarmHighs(pulp.HiGHS):
        """PuLP's HiGHS does not pass a start on; this does."""

        def callSolver(self, lp: Any) -> None:
            if warm:
                solution = highspy.HighsSolution()
                solution.col_value = values
                lp.solverModel.setSolution(solution)
            super().callSolver(lp)

        def buildSolverModel(self, lp: Any) -> None:
            values.extend(each.varValue for each in lp.variables())
            super().buildSolverModel(lp)

        def findSolutionValues(self, lp: Any) -> tuple[int, int]:
            try:
                found: tuple[int, int] = super().findSolutionValues(lp)
            except KeyError:  # PuLP has the values by then, but no word for a limit of nodes
                feasible = highspy.SolutionStatus.kSolutionStatusFeasible
                if lp.solverModel.getInfo().primal_solution_status != feasible:
                    return pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound
                return pulp.LpStatusOptimal, pulp.LpSolutionIntegerFeasible
            return found

    values: list[float] = []
    options: dict[str, Any] = {}
    if settings.max_nodes is not None:
        options["mip_max_nodes"] = settings.max_nodes
    if settings.method != "choose":
        options["solver"] = settings.method
    return WarmHighs(
        msg=False,
        threads=1,
        gapRel=settings.gap,
        timeLimit=settings.time_limit_s,
        random_seed=0,
        **options,
    )
