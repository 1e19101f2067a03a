"""Aladdin's Figure 6: a line through prefill times, on measured and on made-up points."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from experiments.aladdin import fig06_prefill_model as fig06
from experiments.aladdin.measured import Points, points


def rows(module, parameters, change=None, monkeypatch=None):
    """All rows of a figure; with other points if `change(points, key)` makes them."""
    if change is not None:
        monkeypatch.setattr(module, "points", lambda *key: change(points(*key), key))
    found = [{**case, **row} for case in module.cases(parameters) for row in module.run(case)]
    return pd.DataFrame(found)


def exact_prefill(found: Points, key) -> Points:
    return Points(found.requests, found.tokens_each, 1e-4 * found.total + 0.01)


def verdicts(claims):
    return [claim.verdict for claim in claims]


def test_points_on_a_line_are_reproduced(monkeypatch):
    parameters = fig06.PrefillModel()
    frame = rows(fig06, parameters, exact_prefill, monkeypatch)
    found = fig06.claims(frame, parameters)
    assert verdicts(found) == ["reproduced"] * 18 + ["not measured"] * 2
    assert all(claim.ours.mean < 1e-6 for claim in found[:18])
    # What is shorter takes no part, and is predicted all the same.
    assert frame.loc[~frame["used"], "total"].max() < parameters.least_tokens
    assert frame["error"].abs().max() < 1e-9
    fig06.plot(frame, parameters)


def test_prefill_as_measured():
    parameters = fig06.PrefillModel()
    frame = rows(fig06, parameters)
    found = fig06.claims(frame, parameters)
    assert all(claim.reason for claim in found if claim.verdict != "reproduced")
    one = frame[(frame["llm"] == "llama-2-13b") & (frame["tp"] == 1)]
    spread = fig06.batch_spread(one[one["used"]])
    # 504.1 ms for a prompt of 4,096 tokens, 465.3 ms for eight of 512.
    assert spread[4096] == pytest.approx(504.1351 / 465.3419 - 1, rel=1e-4)


def test_the_interval_in_tokens_by_hand(monkeypatch):
    def noisy(found: Points, key) -> Points:
        off = 0.005 * (-1.0) ** np.arange(len(found.total))
        return Points(found.requests, found.tokens_each, 1e-4 * found.total + 0.05 + off)

    parameters = fig06.PrefillModel()
    frame = rows(fig06, parameters, noisy, monkeypatch)
    mine = frame[(frame["llm"] == "llama-2-7b") & (frame["gpu"] == "a100-80gb")]
    # 5 ms either way are 50 tokens; 95 % of further points, some two of those.
    assert 90 < mine["interval_tokens"].iloc[0] < 130
    # A line through n points is known sqrt(n) better in their middle, about twice worse at the end.
    assert 10 < mine["line_tokens"].iloc[0] < 60
