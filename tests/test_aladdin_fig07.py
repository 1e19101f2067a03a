"""Aladdin's Figure 7: decode times and context limits, on measured and on made-up points."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from experiments.aladdin import fig07_decode_model as fig07
from experiments.aladdin.measured import Points, points


def rows(module, parameters, change=None, monkeypatch=None):
    """All rows of a figure; with other points if `change(points, key)` makes them."""
    if change is not None:
        monkeypatch.setattr(module, "points", lambda *key: change(points(*key), key))
    found = [{**case, **row} for case in module.cases(parameters) for row in module.run(case)]
    return pd.DataFrame(found)


def exact_decode(found: Points, key) -> Points:
    """Batches by powers, so that every limit is reached."""
    grid = [(b, c) for b in (1, 2, 8, 32) for c in (64.0, 512.0, 4096.0)]
    requests, each = np.array(grid).T
    slo_s = fig07.SLOS_S[key[0], key[1]][1]
    seconds = slo_s / 2 + 1e-4 * requests + slo_s / 4 / 4096 * requests * each / 4
    return Points(requests.astype(int), each, seconds)


def test_where_measured_iterations_reach_the_slo():
    total, seconds = np.array([300.0, 100, 200]), np.array([0.4, 0.1, 0.2])
    assert fig07.reached(total, seconds, 0.3) == pytest.approx(250)
    assert fig07.reached(total, seconds, 0.1) == pytest.approx(100)
    assert fig07.reached(total, seconds, 0.41) is None
    assert fig07.reached(total, seconds, 0.09) is None
    assert fig07.reached(total[:1], seconds[:1], 0.4) is None


def test_the_interval_counts_only_where_requests_can_have_the_context():
    limits = pd.DataFrame(
        {
            "requests": [2, 16],
            "predicted_tokens": [9000, 8000],
            "low_tokens": [1000, 7900],
            "high_tokens": [20_000, 8050],
        }
    )
    assert fig07.interval_tokens(limits, 4096) == 100
    assert math.isnan(fig07.interval_tokens(limits, 400))


def test_decodes_on_a_line_are_reproduced(monkeypatch):
    parameters = fig07.DecodeModel()
    frame = rows(fig07, parameters, exact_decode, monkeypatch)
    found = fig07.claims(frame, parameters)
    by = {claim.sentence.partition(" (")[0]: claim for claim in found}
    assert by["Predicted decode times are wrong by less than 5 %"].verdict == "not measured"  # V100
    assert [c.verdict for c in found if "wrong by" in c.sentence][:6] == ["reproduced"] * 6
    assert [c.verdict for c in found if "interval is" in c.sentence] == ["reproduced"] * 4
    assert [c.verdict for c in found if "larger the batch" in c.sentence] == ["reproduced"] * 4
    # Context alone makes single requests 12.5 % slower here.
    assert {c.verdict for c in found if "single request" in c.sentence} == {"not reproduced"}
    fig07.plot(frame, parameters)


def test_decode_as_measured():
    parameters = fig07.DecodeModel()
    frame = rows(fig07, parameters)
    found = fig07.claims(frame, parameters)
    assert all(claim.reason for claim in found if claim.verdict != "reproduced")
    limits = frame[(frame["row"] == "limit") & (frame["kind"] == "roofline")]
    off = limits["predicted_tokens"].astype(float) / limits["measured_tokens"].astype(float)
    assert off.dropna().to_numpy() == pytest.approx(1, rel=1e-6)  # the roofline is a line itself
    fig07.plot(frame, parameters)
