"""Families of workloads: their splits share no days, and they are named as mixes are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from baselines.tuned_settings import settings_path
from llmscale_env.scenarios import held_out, load_scenario
from llmscale_env.scenarios.load import ScenarioError
from llmscale_env.workload import families
from llmscale_env.workload.families import common_data, member_data, member_names, members
from llmscale_env.workload.mixes import mix_data
from llmscale_env.workload.tables import load_counts
from tests.refusals import refuses
from tests.small_world import SMALL_WORLD

FAMILY = "mixed-slo"


@pytest.mark.parametrize("name", [m.name for m in members(FAMILY)])
def test_every_member_is_a_workload_of_its_scenario(name: str):
    scenario = load_scenario(name.partition("/")[0], workload=name)
    assert scenario.name == FAMILY
    assert {s.slo_class for s in scenario.workload.streams} == {"interactive", "batch-1h"}
    assert [job.name for job in scenario.workload.jobs] == ["jobs"]


def test_the_days_of_the_splits_are_apart():
    """One mix, whole days from midnight and windows from any time."""
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


def test_what_is_held_out_is_known_by_the_load():
    for name, held in (
        ("mixed-slo", "mixed-slo/test"),
        ("mixed-slo-hours", "mixed-slo/test-hours"),
        ("mixed-slo-bursty", ""),
        ("placement", ""),
    ):
        assert held_out(load_scenario(name, horizon_s=300)) == held
    assert held_out(load_scenario("mixed-slo-hours", workload="mixed-slo/test-hours")) == ""


def test_a_stream_takes_the_place_of_the_common_one(monkeypatch: pytest.MonkeyPatch):
    common = common_data(FAMILY)
    own = {"name": "documents", "llm": "llama-3.1-8b", "rate_per_s": 4.0}
    chat = {"name": "chat", "llm": "llama-3.1-8b", "rate_per_s": 2.0}
    made = {"a": {"streams": [chat]}, "b": {"streams": [chat, own]}}
    monkeypatch.setattr(families, "_read", lambda family: {"common": common, "workloads": made})
    rates = {
        name: {s["name"]: s["rate_per_s"] for s in member_data(f"{FAMILY}/{name}")["streams"]}
        for name in made
    }
    assert rates == {"a": {"chat": 2.0, "documents": 1.5}, "b": {"chat": 2.0, "documents": 4.0}}
    assert member_data(f"{FAMILY}/b")["jobs"] == common["jobs"]


def test_a_member_is_a_copy():
    member_data("mixed-slo/test")["streams"][0]["rate_per_s"] = 0.1
    assert member_data("mixed-slo/test")["streams"][0]["rate_per_s"] == 42.0
    assert mix_data("mixed-slo/test") == member_data("mixed-slo/test")


def test_a_workload_may_be_a_file(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(mix_data("chat")))
    named, by_path = (load_scenario("mixed-slo-hours", workload=w) for w in ("chat", str(path)))
    assert named.workload == by_path.workload
    path.write_text("- 1\n")
    for wrong, said in ((path, "must hold streams"), (tmp_path / "no.yaml", "cannot be read")):
        with pytest.raises(ScenarioError, match=f"workload: .*{wrong.name}: {said}"):
            load_scenario("mixed-slo-hours", workload=str(wrong))


def test_slips_are_named():
    refuses(r"mixed-slo has \['train'", member_data, "mixed-slo/nothing")
    refuses("family = 'nothing'", mix_data, "nothing/at-all")
    refuses("split = 'dev'", members, FAMILY, "dev")
    with pytest.raises(ScenarioError, match="workload: workload = 'mixed-slo/nothing'"):
        load_scenario(FAMILY, workload="mixed-slo/nothing")


def test_settings_of_a_member_have_a_file_of_one_folder():
    path = settings_path("hpa", FAMILY, "mixed-slo/validation")
    assert path.name == "hpa_mixed-slo_mixed-slo-validation.yaml"


def test_windows_come_from_their_part_alone():
    """A window of the code trace's last part: its seconds without arrivals are those of the table."""
    from llmscale_env.control.reward import draw_requests

    arrivals = {"kind": "counts", "table": "azure-code-2023", "from_s": 1140.0, "start_s": 0.0}
    code = load_scenario(SMALL_WORLD).workload.streams[1].model_dump()
    scenario = load_scenario(
        SMALL_WORLD, **{"workload.streams": [{**code, "arrivals": arrivals}], "horizon_s": 600}
    )
    requests = draw_requests(scenario, np.random.default_rng(0))
    counts = load_counts("azure-code-2023").counts[1140:1740]
    seconds = np.unique(requests.arrival_s.astype(int))
    assert len(seconds) > 20
    assert np.all(counts[seconds] > 0)


def test_another_day_of_a_workload_is_nobody_elses():
    name = {"workload": "mixed-slo/train"}
    days = {f"workload.streams.{stream}.arrivals.days": [3] for stream in ("chat", "code")}
    before = load_scenario("mixed-slo-hours", **name)
    assert load_scenario("mixed-slo-hours", **name, **days).workload.day_arrivals[0].days == (3,)
    assert load_scenario("mixed-slo-hours", **name) == before
