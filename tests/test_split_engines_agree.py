"""Both engines give the same picoseconds with split phases, links, placement and best fit."""

from __future__ import annotations

import pytest

from tests.moved_episodes import difference_when_moved
from tests.split_cases import SPLIT_MECHANISMS, make_split_case
from tests.test_engines_agree import CHUNK, CHUNKS, compared, never_reached


@CHUNKS
def test_engines_agree(first: int) -> None:
    for seed in range(first, first + CHUNK):
        compared(seed, make_split_case(seed))


@pytest.mark.slow
def test_cases_reach_every_mechanism() -> None:
    assert never_reached(make_split_case, SPLIT_MECHANISMS) == []


@pytest.mark.parametrize("seed", range(12))
def test_an_episode_can_be_saved_and_restored_at_any_time(seed: int) -> None:
    assert difference_when_moved(make_split_case(1000 + seed)) is None


def test_generator_is_deterministic() -> None:
    one, other = make_split_case(7), make_split_case(7)
    assert one.script == other.script
    assert one.stops_ps == other.stops_ps
