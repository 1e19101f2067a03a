"""The reference run: within 5 % of Vidur where the trace is at hand, and clear about it where not."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from experiments import reference_run
from experiments.reference_run import Comparison, compare, reference_quantiles, reference_requests

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
needs_trace = pytest.mark.skipif(
    not (DATA / reference_run.TRACE).is_file(), reason="the Azure conversation trace is not here"
)


def test_shipped_quantiles_are_vidurs():
    # Two numbers of the source, read by eye.
    assert reference_quantiles("vllm")["tpot_s"][0.5] == 0.056846
    assert reference_quantiles("sarathi")["ttft_s"][0.99] == 1.339024
    for scheduler in reference_run.CHUNK_TOKENS:
        quantiles = reference_quantiles(scheduler)
        assert set(quantiles) == set(reference_run.METRICS)
        for values in quantiles.values():
            assert set(reference_run.JUDGED) < set(values)
            assert list(values.values()) == sorted(values.values())


def test_rows_compare_quantile_by_quantile():
    ours = {metric: np.arange(101.0) for metric in reference_run.METRICS}
    reference = {metric: {0.5: 40.0, 0.9: 100.0, 0.99: 99.0} for metric in reference_run.METRICS}
    rows = Comparison("vllm", ours, reference).rows()
    assert [row[2] for row in rows[:3]] == ["p50", "p90", "p99"]
    assert [row[5] for row in rows[:3]] == pytest.approx([25.0, -10.0, 0.0])


@needs_trace
@pytest.mark.parametrize("scheduler", ["vllm", "sarathi"])
def test_within_five_percent_of_vidur(scheduler):
    rows = compare(scheduler, reference_requests(DATA)).rows()
    assert len(rows) == 9
    off = [row for row in rows if abs(row[-1]) > 100 * reference_run.TOLERANCE]
    assert off == []


@needs_trace
def test_command_writes_what_it_prints(tmp_path, capsys):
    assert reference_run.main([f"data={DATA}", f"out={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert "all within 5 %" in printed
    with open(tmp_path / "reference_run.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == reference_run.HEAD
    assert len(rows) == 2 * 3 * 10
    assert (tmp_path / "reference_run.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "reference_run.csv",
        "reference_run.png",
    ]


def test_exit_code_says_when_it_is_not_within(monkeypatch, tmp_path, capsys):
    far = {metric: np.full(10, 1.0) for metric in reference_run.METRICS}
    monkeypatch.setattr(reference_run, "reference_requests", lambda data: None)
    monkeypatch.setattr(
        reference_run, "compare", lambda s, r, e: Comparison(s, far, reference_quantiles(s))
    )
    assert reference_run.main(["data=.", f"out={tmp_path}"]) == 1
    assert "NOT all within 5 %" in capsys.readouterr().out


def test_another_trace_is_refused(tmp_path):
    path = tmp_path / "other.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("arrival_time_s,input_tokens,output_tokens\n0.0,10,10\n1.0,20,5\n")
    with pytest.raises(ValueError, match="another trace") as error:
        reference_requests(path)
    assert "30 prompt and 15" in str(error.value)


@pytest.mark.parametrize(
    "words,message",
    [
        ([], "data=DIRECTORY is missing"),
        (["data=nowhere"], "there is no trace nowhere"),
        (["data=.", "engine=slow"], "engine = 'slow': must be one of"),
        (["dta=."], "unknown argument 'dta=.'"),
    ],
)
def test_slips_are_one_line_and_code_2(words, message, refused):
    assert message in refused(reference_run.main, words)
