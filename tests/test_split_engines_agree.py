"""Both engines give the same picoseconds with split phases, links, placement and best fit.

`LLMSCALE_SPLIT_CASES=3000 pytest tests/test_split_engines_agree.py` compares more cases.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from llmscale_env.sim.fast import FastEngine
from llmscale_env.sim.reference import ReferenceEngine
from tests.engine_cases import first_difference, mechanisms, run_case
from tests.moved_episodes import difference_when_moved
from tests.split_cases import SPLIT_MECHANISMS, make_split_case
from tests.test_engines_agree import broken_law

N_CASES = int(os.environ.get("LLMSCALE_SPLIT_CASES", "100"))
CHUNK = 50

_reached: Counter[str] = Counter()
_compared: set[int] = set()


@pytest.mark.parametrize("first", range(0, N_CASES, CHUNK))
def test_engines_agree(first: int) -> None:
    for seed in range(first, min(first + CHUNK, N_CASES)):
        case = make_split_case(seed)
        engine, expected = run_case(ReferenceEngine, case)
        _reached.update(mechanisms(engine, case, expected, SPLIT_MECHANISMS))
        assert (broken := broken_law(case, expected)) is None, f"seed {seed}: {broken}"
        _, got = run_case(FastEngine, case)
        difference = first_difference(expected, got)
        assert difference is None, f"seed {seed}, reference / fast: {difference}"
        _compared.add(seed)


@pytest.mark.skipif(N_CASES < 300, reason="too few cases to reach everything: make engines")
def test_cases_reach_every_mechanism() -> None:
    for seed in set(range(N_CASES)) - _compared:  # run alone, or on another worker
        case = make_split_case(seed)
        engine, trace = run_case(ReferenceEngine, case)
        _reached.update(mechanisms(engine, case, trace, SPLIT_MECHANISMS))
    missing = sorted(SPLIT_MECHANISMS - set(_reached))
    assert not missing, f"{N_CASES} cases never reach {missing}"


@pytest.mark.parametrize("seed", range(12))
def test_an_episode_can_be_saved_and_restored_at_any_time(seed: int) -> None:
    assert difference_when_moved(make_split_case(1000 + seed)) is None


def test_generator_is_deterministic() -> None:
    one, other = make_split_case(7), make_split_case(7)
    assert one.script == other.script
    assert one.stops_ps == other.stops_ps
