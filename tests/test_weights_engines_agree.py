"""Both engines give the same picoseconds while weights flow (docs/engine.md, section 15).

`LLMSCALE_CASES=5000 pytest tests/test_weights_engines_agree.py` compares more cases.
"""

from __future__ import annotations

from collections import Counter

import pytest

from llmscale_env.sim.reference import ReferenceEngine
from tests.engine_cases import mechanisms, run_case
from tests.test_engines_agree import CHUNK, N_CASES, compared
from tests.weight_cases import WEIGHT_MECHANISMS, make_weight_case

_reached: Counter[str] = Counter()
_compared: set[int] = set()


@pytest.mark.parametrize("first", range(0, N_CASES, CHUNK))
def test_engines_agree_on_weights_that_flow(first: int) -> None:
    for seed in range(first, min(first + CHUNK, N_CASES)):
        _reached.update(compared(seed, make_weight_case(seed), WEIGHT_MECHANISMS))
        _compared.add(seed)


def test_cases_reach_every_mechanism_of_weights() -> None:
    for seed in set(range(N_CASES)) - _compared:  # run alone, or on another worker
        case = make_weight_case(seed)
        engine, trace = run_case(ReferenceEngine, case)
        _reached.update(mechanisms(engine, case, trace, WEIGHT_MECHANISMS))
    missing = sorted(WEIGHT_MECHANISMS - set(_reached))
    if N_CASES >= 300:
        assert not missing, f"{N_CASES} cases never reach {missing}"
