"""Families of workloads: their splits share neither times nor parameters, and they are named as mixes are."""

from __future__ import annotations

import json

import numpy as np
import pytest

from baselines.tuned_settings import settings_path
from llmscale_env.scenarios import load_scenario
from llmscale_env.scenarios.load import ScenarioError
from llmscale_env.workload.families import SPLITS, common_data, member_data, member_names, members
from llmscale_env.workload.mixes import mix_data
from llmscale_env.workload.tables import load_counts
from tests.refusals import refuses

FAMILY = "mixed-slo-v0"


def streams(split: str) -> list[dict]:
    return [s for m in members(FAMILY, split) for s in member_data(m.name)["streams"]]


def arrivals(split: str, kind: str) -> list[dict]:
    kinds = [s["arrivals"] for s in streams(split) if isinstance(s["arrivals"], dict)]
    return [a for a in kinds if a["kind"] == kind]


@pytest.mark.parametrize("name", [m.name for m in members(FAMILY)])
def test_every_member_is_a_workload_of_its_scenario(name: str):
    scenario = load_scenario(name.partition("/")[0], workload=name)
    assert scenario.name == FAMILY
    assert {s.slo_class for s in scenario.workload.streams} == {"interactive", "batch"}
    assert [q.name for q in scenario.workload.batch_queues] == ["overnight"]


def test_the_days_of_the_splits_are_apart():
    """The family mixed-slo: one mix, whole days from midnight and windows from any time."""
    days = {"train": set(range(1, 9)), "validation": {9, 10}, "test": {11, 12, 13, 14}}
    own = load_scenario("mixed-slo").workload
    for member in members("mixed-slo"):
        scenario = "mixed-slo-hours" if member.name.endswith("-hours") else "mixed-slo"
        workload = load_scenario(scenario, workload=member.name).workload
        assert workload.jobs == own.jobs
        for arrivals in workload.day_arrivals:
            assert set(arrivals.days) == days[member.split]
            assert arrivals.start_s == ("random" if scenario.endswith("hours") else 0)
        rates = {s.name: (s.rate_per_s, s.lengths) for s in workload.streams}
        assert rates == {s.name: (s.rate_per_s, s.lengths) for s in own.streams}
    assert {m.name.partition("/")[2] for m in members("mixed-slo")} == {
        f"{split}{suffix}" for split in days for suffix in ("", "-hours")
    }
    assert set(member_names()) >= {m.name for m in members("mixed-slo")}


def test_every_split_has_smooth_and_bursty_workloads():
    for split in SPLITS:
        assert {m.shape for m in members(FAMILY, split)} == {"smooth", "bursty"}


def test_training_sees_no_trace():
    assert arrivals("train", "counts") == []
    assert arrivals("train", "levels") == []


def test_validation_and_test_are_other_times_of_the_traces():
    parts: dict[str, dict[str, set[tuple[float, float]]]] = {}
    for split in ("validation", "test"):
        for a in arrivals(split, "counts"):
            end = a.get("to_s", load_counts(a["table"]).duration_s)
            mine = parts.setdefault(a["table"], {}).setdefault(split, set())
            mine.add((a.get("from_s", 0.0), end))
    assert set(parts) == {"azure-code-2023", "azure-conv-2023"}
    for by_split in parts.values():
        assert max(end for _, end in by_split["validation"]) <= min(
            start for start, _ in by_split["test"]
        )
    ((_, third),) = parts["azure-code-2023"]["validation"]
    assert third == pytest.approx(load_counts("azure-code-2023").duration_s / 3, rel=0.01)


@pytest.mark.parametrize("kind", ["mmpp", "spikes"])
def test_test_parameters_are_seen_nowhere_else(kind: str):
    by_split = {s: {json.dumps(a, sort_keys=True) for a in arrivals(s, kind)} for s in SPLITS}
    assert all(by_split.values())
    for one in SPLITS:
        for other in SPLITS:
            assert one == other or not by_split[one] & by_split[other]


def test_every_test_names_a_validation_workload():
    validation = {m.name for m in members(FAMILY, "validation")}
    for m in members(FAMILY):
        assert (m.of in validation) if m.split == "test" else (m.of is None)


def test_a_stream_takes_the_place_of_the_common_one():
    common = [s["name"] for s in common_data(FAMILY)["streams"]]
    assert common == ["documents"]
    rates = {
        name: [s["rate_per_s"] for s in member_data(name)["streams"] if s["name"] == "documents"]
        for name in ("mixed-slo-v0/test-chat", "mixed-slo-v0/test-documents")
    }
    assert rates == {"mixed-slo-v0/test-chat": [2.0], "mixed-slo-v0/test-documents": [4.0]}


def test_a_member_is_a_copy():
    member_data("mixed-slo-v0/test-chat")["streams"][0]["rate_per_s"] = 0.1
    assert member_data("mixed-slo-v0/test-chat")["streams"][0]["rate_per_s"] == 20.0
    assert mix_data("mixed-slo-v0/test-chat") == member_data("mixed-slo-v0/test-chat")


def test_slips_are_named():
    refuses(r"mixed-slo-v0 has \['train-poisson'", member_data, "mixed-slo-v0/nothing")
    refuses("family = 'nothing'", mix_data, "nothing/at-all")
    refuses("split = 'dev'", members, FAMILY, "dev")
    with pytest.raises(ScenarioError, match="workload: workload = 'mixed-slo-v0/nothing'"):
        load_scenario(FAMILY, workload="mixed-slo-v0/nothing")


def test_settings_of_a_member_have_a_file_of_one_folder():
    path = settings_path("hpa", FAMILY, "mixed-slo-v0/val-code")
    assert path.name == "hpa_mixed-slo-v0_mixed-slo-v0-val-code.yaml"


def test_windows_come_from_their_part_alone():
    """A window of the code trace's test part: its seconds without arrivals are those of the table."""
    from llmscale_env.control.reward import draw_requests

    scenario = load_scenario(
        FAMILY,
        workload="mixed-slo-v0/test-code",
        **{"workload.streams.code.arrivals.start_s": 0.0, "horizon_s": 600},
    )
    alone = scenario.workload.model_copy(
        update={
            "streams": tuple(s for s in scenario.workload.streams if s.name == "code"),
            "batch_queues": (),
        }
    )
    scenario = load_scenario(scenario, workload=alone.model_dump())
    requests = draw_requests(scenario, np.random.default_rng(0))
    counts = load_counts("azure-code-2023").counts[1140:1740]
    seconds = np.unique(requests.arrival_s.astype(int))
    assert len(seconds) > 20
    assert np.all(counts[seconds] > 0)
