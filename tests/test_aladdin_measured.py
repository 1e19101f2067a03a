"""The table of measured points that ships for Aladdin's Figures 6 and 7, and fits to it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.aladdin import measured
from experiments.aladdin.measured import SETS, check, points

RAW = Path(__file__).resolve().parents[2] / "shared" / "data" / "calibration"


@pytest.mark.parametrize("part", ["prefill", "decode"])
@pytest.mark.parametrize("llm, gpu, tp, kind", SETS)
def test_there_are_points_of_every_set(llm, gpu, tp, kind, part):
    found = points(llm, gpu, tp, kind, part)
    assert len(found.requests) >= 7
    assert (found.seconds > 0).all()
    assert found.only(found.requests == 1).total.tolist() == sorted(
        found.tokens_each[found.requests == 1]
    )


def test_a_point_of_the_table():
    found = points("llama-2-13b", "a100-80gb", 1, "composed", "prefill")
    two = found.only((found.requests == 2) & (found.tokens_each == 512))
    assert two.seconds == pytest.approx([0.1324655], rel=1e-5)
    assert two.total == [1024]
    with pytest.raises(LookupError, match="end-to-end"):
        points("llama-2-13b", "a100-80gb", 1, "end-to-end", "prefill")


@pytest.mark.skipif(not RAW.exists(), reason="shared data are not there")
def test_the_table_is_made_from_the_public_data(tmp_path):
    out = tmp_path / "table.csv"
    assert measured.main([f"data={RAW}", f"out={out}"]) == 0
    assert out.read_bytes() == measured.TABLE.read_bytes()


def test_slips(capsys):
    for words in (["data=/nowhere"], ["out=x"], ["folder=x"]):
        assert measured.main(words) == 2
        assert capsys.readouterr().err.startswith("measured: ")


def test_left_out_points_are_predicted_by_the_others():
    x = np.array([1.0, 2, 3, 4, 4])
    y = np.array([2.0, 3, 4, 9, 9])
    found = check({"x": x, "one": np.ones(5)}, y, x)
    # Without x = 4 the rest lies on x + 1.
    assert found.held_out[3:] == pytest.approx([5 / 9 - 1] * 2)
    assert found.fit.coefficients == pytest.approx([2, 0])  # a constant below 0 is held at 0
    assert found.error == pytest.approx([0, 1 / 3, 1 / 2, -1 / 9, -1 / 9])
    lonely = check({"x": x, "one": np.ones(5)}, y, np.zeros(5))
    assert np.isnan(lonely.held_out).all()
