"""One window, second by second: what is counted, and whose run is shown."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from experiments.learned.family import workloads
from experiments.learned.study_window import Settings, cases, seconds_of, shown


def test_requests_by_second():
    # Four come: one is admitted at once, one after 2 s, one never, and one is turned away.
    none = float("nan")
    ends = ["on_time", "on_time", "unfinished", "rejected"]
    made = seconds_of([0.5, 1.2, 1.9, 1.95], [0.0, 2.0, none, none], ends, 40)
    assert made["arrived"][:3] == [1, 3, 0]
    assert made["waiting"][:5] == [0, 2, 2, 1, 1]
    assert made["attainment"][0] == 1.0
    assert made["attainment"][1] == pytest.approx(2 / 4)
    assert made["attainment"][30] == pytest.approx(1 / 3)  # the first has left the last half minute
    assert np.isnan(made["attainment"][35])


def test_the_network_that_was_made_for_a_workload_is_shown():
    def run(name: str, made_for: str, seed: int, setting: str = "a") -> SimpleNamespace:
        return SimpleNamespace(
            name=name,
            path=name,
            setting=setting,
            made_for=made_for,
            training_seed=seed,
            competes_on=lambda w: made_for in ("", *w.validated_on),
        )

    runs = [run("all", "", 0), run("code", "val-code", 0), run("spikes", "val-spikes", 0)]
    runs.append(run("spikes 1", "val-spikes", 1))
    by_name = {w.name: w for w in workloads("test")}
    assert shown(runs, by_name["test-spikes"], 0).name == "spikes"
    assert shown(runs, by_name["test-spikes"], 1).name == "spikes 1"
    assert shown(runs, by_name["test-chat"], 0).name == "all"
    assert shown(runs[1:2], by_name["test-chat"], 0) is None
    with pytest.raises(ValueError, match=r"training_seed = 5: must be one of \[0, 1\]"):
        shown(runs, by_name["test-spikes"], 5)
    with pytest.raises(ValueError, match=r"setting = 'b': must be one of \['a'\]"):
        shown(runs, by_name["test-spikes"], 0, "b")
    # Of two settings one has to be named, and each has its own training seeds.
    runs.append(run("spikes b", "val-spikes", 1, "b"))
    with pytest.raises(ValueError, match=r"setting = '': must be one of \['a', 'b'\]"):
        shown(runs, by_name["test-spikes"], 1)
    assert shown(runs, by_name["test-spikes"], 1, "a").name == "spikes 1"
    assert shown(runs, by_name["test-spikes"], 1, "b").name == "spikes b"
    with pytest.raises(ValueError, match=r"training_seed = 0: must be one of \[1\]"):
        shown(runs, by_name["test-spikes"], 0, "b")
    runs.append(run("spikes again", "val-spikes", 1, "b"))
    with pytest.raises(ValueError, match="alike in setting and training seed"):
        shown(runs, by_name["test-spikes"], 1, "b")


def test_a_window_ends_with_the_episode():
    with pytest.raises(ValueError, match="must be below the episode's 1800 s"):
        cases(Settings(from_s=2000.0, until_s=3000.0))
