"""Aladdin's Figure 3: 10 against 7."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.aladdin import fig03_worked_example as fig03


def rows(**values) -> tuple[pd.DataFrame, fig03.WorkedExample]:
    parameters = fig03.WorkedExample(**values)
    found = [{**case, **row} for case in fig03.cases(parameters) for row in fig03.run(case)]
    return pd.DataFrame(found), parameters


def test_the_paper_s_numbers():
    frame, parameters = rows()
    assert [fig03.peak(frame, name) for name in fig03.PLACEMENTS] == [10, 7, 7]
    assert [claim.verdict for claim in fig03.claims(frame, parameters)] == ["reproduced"] * 3
    fig03.plot(frame, parameters)


def test_memory_by_hand():
    frame, _ = rows()
    one = frame[(frame["placement"] == "shortest") & (frame["request"] == 2)]
    # A prompt of 1 and an output of 4, and the moment after it.
    assert one["kv"].tolist() == [1, 2, 3, 4, 5]
    assert set(one["worker"]) == {2}


@pytest.mark.parametrize("capacity, placed", [(9, 4), (6, 2)])
def test_what_fits_nowhere_is_on_no_worker(capacity, placed):
    frame, _ = rows(kv_capacity=capacity)
    mine = frame[(frame["placement"] == "best-fit") & frame["kv"].notna()]
    assert mine["request"].nunique() == placed


def test_other_counting_gives_other_numbers():
    frame, parameters = rows(count_last_token=False)
    first, *_ = fig03.claims(frame, parameters)
    assert fig03.peak(frame, "shortest") == 8
    assert first.verdict == "not reproduced"
    assert first.reason
