"""BlitzScale's Figure 1 in small."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.blitzscale import fig01_demand as fig01
from llmscale_env.workload.tables import load_counts
from tests.test_figures import small, small_run

NAME = "blitzscale-fig01"


def test_spread_by_hand():
    assert fig01.spread(np.array([4.0, 2.0, 0.0, 6.0, 1.0]), 2) == 3.0
    assert fig01.spread(np.array([4.0, 2.0, 1.0]), 2) == 1.0


def test_requests_are_the_traces_own():
    frame = small_run(NAME)
    seconds = frame[frame["kind"] == "second"]
    assert seconds["requests"].tolist() == load_counts("azure-conv-2023").counts.tolist()
    # Half a gigabyte per thousand tokens: some 1,250 of each request, for some ten seconds.
    assert 20 < seconds["kv_gb"].astype(float).mean() < 60


def test_claims():
    rise, kv = fig01.claims(small_run(NAME), small(NAME))
    assert rise.verdict == "reproduced"
    assert rise.ours.mean == pytest.approx(5.0)
    low, high = kv.parts
    assert low.ours.mean < 25 < 50 < high.ours.mean


def test_a_flat_rate_does_not_rise():
    flat = small_run(NAME).assign(rise=1.2)
    assert fig01.claims(flat, small(NAME))[0].verdict != "reproduced"
