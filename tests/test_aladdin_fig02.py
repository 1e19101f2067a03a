"""Aladdin's Figure 2 in small: ranges, sums over batches, bias."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from experiments.aladdin import fig02_output_lengths as fig02


def test_errors_of_sums_by_hand():
    predicted, actual = np.full(5, 10.0), np.array([8, 12, 6, 10, 99])
    # Off by 2, -2, 4, 0, the last one fills no batch of two: 9 is the mean.
    assert fig02.batch_error(predicted, actual, 2) == pytest.approx((0 + 4) / 2 / 18)
    assert fig02.batch_error(predicted[:4], actual[:4], 1) == pytest.approx(2 / 9)


def test_medians_by_hand():
    found = fig02.medians(np.array([0, 0, 0, 2]), np.array([1, 5, 9, 30]), 3)
    assert found.tolist() == [5, 7, 30]  # nobody is in range 1: all together


def rows(**values) -> tuple[pd.DataFrame, fig02.OutputLengths]:
    parameters = fig02.OutputLengths(**values)
    found = [{**case, **row} for case in fig02.cases(parameters) for row in fig02.run(case)]
    return pd.DataFrame(found), parameters


def test_a_small_run():
    frame, parameters = rows(
        seeds=3, tables=("sharegpt",), history=4000, requests=4096, edges=(64,)
    )
    cdf = frame[(frame["kind"] == "cdf") & (frame["seed"] == 30_000)]
    for low, part in cdf.groupby("low"):
        assert part["share"].is_monotonic_increasing
        assert part["share"].iloc[-1] == 1  # no output is longer than 1,024 tokens
        assert low in (0, 64)
    assert cdf.groupby("low")["count"].first().sum() == 4096
    verdicts = [claim.verdict for claim in fig02.claims(frame, parameters)]
    assert verdicts == ["reproduced"] * 3
    fig02.plot(frame, parameters)


def test_a_biased_predictor_is_told():
    frame, parameters = rows(seeds=2, tables=("sharegpt",), history=1000, requests=2048)
    # The median's rows as if they were the mean's: it is below the mean of these lengths.
    frame["predictor"] = frame["predictor"].map({"median": "mean", "mean": "median"})
    bias, *_ = fig02.claims(frame, parameters)
    assert bias.verdict == "not reproduced"
    assert "prompt tokens" in bias.reason


def test_errors_that_all_have_one_sign_do_not_cancel():
    frame, parameters = rows(seeds=2, tables=("sharegpt",), history=1000, requests=2048)
    batches = frame["kind"] == "batch"
    frame.loc[batches, "error"] = 0.4
    *_, cancel = fig02.claims(frame, parameters)
    assert cancel.verdict == "not reproduced"
