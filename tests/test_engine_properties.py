"""Laws that hold at every step with everything on: virtual queues, swaps, copies, failures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from llmscale_env.sim.fast import FastEngine
from llmscale_env.sim.reference import ReferenceEngine
from llmscale_env.sim.spec import RequestState
from tests.engine_cases import Case, Trace, first_difference, make_case, run_case
from tests.moved_episodes import (
    Restless,
    difference_when_moved,
    often,
    refuse_touching,
    three_tables,
)
from tests.test_engines_agree import broken_law


def rich(seed: int) -> Case:
    """A generated case whose instances pull from several queues and swap."""
    while True:
        case = make_case(seed)
        swaps = any(len(pool.llms) > 1 for pool in case.spec.pools)
        if swaps and len(case.script) > 5 and len(case.requests) > 10:
            return case
        seed += 10_000


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_at_any_step(seed: int) -> None:
    case = rich(seed)
    last = int(case.requests.arrival_ps[-1]) + 200 * max(1, int(case.stops_ps[0]) // 50)
    more = np.linspace(1, last, 60).astype(int).tolist()
    case = replace(case, stops_ps=tuple(sorted({*case.stops_ps, *more})))
    _, expected = run_case(ReferenceEngine, case)
    _, got = run_case(FastEngine, case)
    assert broken_law(case, expected) is None
    assert broken_law(case, got) is None
    assert first_difference(expected, got) is None


@pytest.mark.slow
def test_a_saved_episode_goes_on_the_same() -> None:
    Restless.seen.clear()
    for seed in range(5, 15):
        assert difference_when_moved(often(rich(seed))) is None, seed
    assert all(Restless.seen[k] > 0 for k in ("mid-swap", "mid-copy", "after set_pull"))


@pytest.mark.parametrize("seed", range(8))
def test_episodes_side_by_side_do_not_touch_each_other(seed: int) -> None:
    case = rich(seed)
    alone = refuse_touching(case, three_tables(case.requests), capacity=len(case.requests))
    finished = [(engine.results()["state"] == RequestState.FINISHED).sum() for engine in alone]
    assert seed > 0 or min(finished) > 0  # of the first case at least


def test_the_comparison_sees_a_difference() -> None:
    one, other = Trace(), Trace()
    one.answers, other.answers = [1], [2]
    assert first_difference(one, other) is not None
