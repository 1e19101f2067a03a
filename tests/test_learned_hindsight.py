"""Schedules for a known window: the search by hand, the policy that follows one, the tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from pandas import DataFrame

from experiments.harness.catalogue import load, matching
from experiments.harness.claims import Verdict
from experiments.learned import study_hindsight
from experiments.learned.family import scenario_of
from experiments.learned.hindsight import Planned, Played, best_fixed, player, trimmed
from llmscale_env._cli import Slip

NEED = (1, 4, 2, 2, 3, 0)


class Counted:
    """Attains where every slot has what it needs and the limit is not 8; an instance costs one per slot."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    def __call__(self, counts: Sequence[int], batch_limit: int) -> Played:
        self.asked.append(tuple(counts))
        enough = all(c >= n for c, n in zip(counts, NEED, strict=True)) and batch_limit != 8
        share = 0.99 + batch_limit / 1e6 if enough else 0.5
        return Played(tuple(counts), batch_limit, float(sum(counts)), share)


def test_the_smallest_fixed_fleet_that_attains():
    found = best_fixed(Counted(), len(NEED), 6, (8, 16, 32), 0.99)
    assert found is not None
    assert (found.counts, found.batch_limit) == ((4,) * 6, 32)  # 32 attains more than 16
    assert best_fixed(Counted(), len(NEED), 3, (16,), 0.99) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_schedule_loses_all_that_is_not_needed(seed: int):
    play = Counted()
    start = play((4,) * 6, 16)
    found = trimmed(play, start, 0.99, 200, np.random.default_rng(seed))
    assert found.counts == NEED
    assert found.attainment >= 0.99


def test_a_search_stops_when_its_episodes_are_over_and_never_gets_worse():
    play = Counted()
    start = play((5,) * 6, 16)
    found = trimmed(play, start, 0.99, 7, np.random.default_rng(0))
    assert len(play.asked) <= 1 + 7
    assert found.gpu_hours < start.gpu_hours
    assert found.attainment >= 0.99


def test_a_move_pays_where_no_instance_can_be_spared():
    """Either the first slot has three, or both of the others have two."""

    def play(counts: Sequence[int], batch_limit: int) -> Played:
        enough = counts[0] >= 3 or min(counts[1:]) >= 2
        return Played(tuple(counts), batch_limit, float(sum(counts)), 1.0 if enough else 0.0)

    start = play((2, 2, 2), 16)
    found = trimmed(play, start, 0.99, 300, np.random.default_rng(1))
    assert sum(found.counts) <= 4


def test_a_schedule_is_followed_and_played_once(monkeypatch: pytest.MonkeyPatch):
    from experiments.learned import hindsight

    scenario = scenario_of(
        "mixed-slo-v0/test-mmpp", {"horizon_s": 60.0, "workload.batch_queues.overnight.at_s": 10.0}
    )
    play = player(scenario, 30000, 20.0)
    found = play((3, 1, 1), 64)
    assert (found.counts, found.batch_limit) == ((3, 1, 1), 64)
    # Two more for 40 s; who drains is billed until it is idle.
    more = play((3, 3, 3), 64).gpu_hours - found.gpu_hours
    assert 20 <= more * 3600 <= 80
    assert 0 <= found.attainment <= 1
    monkeypatch.setattr(hindsight, "run_episode", None)
    assert play([3, 1, 1], 64) is found


def test_counts_by_slot_and_nothing_in_other_pools():
    from types import SimpleNamespace

    scenario = scenario_of("mixed-slo-v0/test-mmpp")
    policy = Planned((3, 1), 900.0, 64)
    policy.reset(scenario, 0)
    asked = [policy.act(SimpleNamespace(time_s=t)) for t in (0.0, 890.0, 900.0, 1799.0)]
    assert [dict(c.targets)["mixed"] for c in asked] == [3, 3, 1, 1]
    assert {dict(c.targets)[name] for c in asked for name in ("interactive", "batch")} == {0}
    assert asked[0].load_source == "multicast"


def rows(schedule: float) -> DataFrame:
    return DataFrame(
        [
            {
                "workload": "test-spikes",
                "window": 30000 + k,
                "bound_gpu_hours": 1.0,
                "schedule_gpu_hours": schedule + 0.01 * k,
                "fixed_gpu_hours": 2.0,
            }
            for k in range(4)
        ]
        + [
            {
                "workload": "test-spikes",
                "window": 30009,
                "bound_gpu_hours": 1.0,
                "schedule_gpu_hours": None,  # no fixed fleet attains there
                "fixed_gpu_hours": None,
            }
        ]
    )


def test_the_share_of_the_distance_that_is_left():
    settings = study_hindsight.Settings(workloads=("test-spikes",))
    (row,) = study_hindsight.tables(rows(1.4), settings)["windows"]
    assert row["windows"] == 4
    assert row["distance left"].mean == pytest.approx(0.415)
    (claim,) = study_hindsight.claims(rows(1.4), settings)
    assert claim.verdict is Verdict.REPRODUCED
    (claim,) = study_hindsight.claims(rows(1.8), settings)
    assert claim.verdict is Verdict.DIRECTION
    assert study_hindsight.plot(rows(1.4), settings) is not None
    (claim,) = study_hindsight.claims(rows(1.4).head(1), settings)
    assert claim.verdict is Verdict.NOT
    assert "no interval" in claim.reason


def test_cases_and_slips():
    experiment = load(matching(["learned-hindsight"])[0])
    made = study_hindsight.cases(experiment.settings("paper", {"seeds": "2"}))
    assert len(made) == 2 * 6
    assert {case["seed"] for case in made} == {30000, 30001}
    with pytest.raises(Slip, match="test-nothing"):
        experiment.settings("quick", {"workloads": "test-nothing"})
