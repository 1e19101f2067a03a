"""Settings and fixtures that all tests share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.waiting import PATIENCE_S

# Numba compiles inside the first example, so a deadline per example would measure the compiler. In
# CI the examples are the same on every run: a red build can then be repeated.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Plots are drawn to files, with or without a display.
os.environ.setdefault("MPLBACKEND", "Agg")


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The folder that holds pyproject.toml."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session", autouse=True)
def _solvers_have_time() -> Iterator[Any]:
    """No solver stops by the clock: what it has found by then depends on how busy the machine is.

    Yields the function that makes solvers as users have it, for tests that are marked `solver_clock`.
    """
    from baselines import solver

    made = solver._solver

    def unhurried(pulp: Any, limits: solver.SolverSettings, warm: bool) -> Any:
        return made(pulp, replace(limits, time_limit_s=PATIENCE_S), warm)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(solver, "_solver", unhurried)
        yield made


@pytest.fixture(autouse=True)
def _solver_clock(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, _solvers_have_time: Any
) -> None:
    """Tests that are marked `solver_clock` have the limits that are set."""
    if request.node.get_closest_marker("solver_clock"):
        monkeypatch.setattr("baselines.solver._solver", _solvers_have_time)


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator that is the same in every test."""
    return np.random.default_rng(20240607)


@pytest.fixture(params=range(2), ids=("ReferenceEngine", "FastEngine"))
def engine_class(request: pytest.FixtureRequest) -> Any:
    """The reference engine, then the fast one."""
    from tests.small_clusters import ENGINES

    return ENGINES[request.param]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Gives words to a command that are wrong; what it says of them, in one line, ending with code 2."""

    def error_of(main: Callable[[list[str]], int], words: list[str]) -> str:
        assert main(words) == 2
        out, error = capsys.readouterr()
        assert (out, error.count("\n")) == ("", 1)
        return error

    return error_of
