"""The command line of `python -m llmscale_env.calibrate`: reports, own CSV, refits, slips."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from llmscale_env import calibrate
from llmscale_env.cluster.iteration_data import load_models
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.cluster.readers import CSV_COLUMNS
from tests.waiting import printed

ROOT = Path(__file__).resolve().parents[1]
RAW = ROOT.parent / "shared" / "data" / "calibration"
SHIPPED = ROOT / "llmscale_env" / "cluster" / "data" / "iteration_times.json"

needs_raw = pytest.mark.skipif(not RAW.exists(), reason="shared data are not there")


def own_csv(path: Path, extra: str = "") -> Path:
    lines = [",".join(CSV_COLUMNS)]
    for b in (1, 2, 4, 8, 16):
        for context in (100, 500, 1000, 2000):
            lines.append(f"decode,{b},{context},0,0,0,{20 + 0.1 * b + 0.0004 * b * context:.4f}")
    for chunk in (64, 128, 256, 512, 1024):
        lines.append(f"prefill,0,0,1,{chunk},0,{25 + 0.08 * chunk:.4f}")
    path.write_text("\n".join(lines) + "\n" + extra)
    return path


def test_own_csv_becomes_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source, out = own_csv(tmp_path / "my.csv"), tmp_path / "deep" / "my.json"
    words = [
        f"csv={source}",
        "llm=mistral-7b",
        "gpu=a10",
        "tp=1",
        f"out={out}",
        f"plots={tmp_path}",
    ]
    assert calibrate.main(words) == 0
    printed = capsys.readouterr().out
    assert "mistral-7b" in printed
    assert "derived" in printed  # no mixed rows
    model = iteration_time_model("mistral-7b", "a10", 1, data=out)
    assert model.kind == "user"
    assert model.decode_s(4, 4 * 750) == pytest.approx(20.4e-3 + 4 * 750 * 4e-7, rel=1e-4)
    assert model.prefill_s(512) == pytest.approx((25 + 0.08 * 512) / 1e3, rel=0.02)
    assert [p.name for p in tmp_path.glob("*.png")] == ["calibration_mistral-7b_a10-24gb_user.png"]
    assert not list(out.parent.glob(".*")), "no temporary file is left"


@pytest.mark.parametrize(
    "row, message",
    [
        ("decode,x,100,0,0,0,20", "line 27: decode_requests = 'x', expected a whole number"),
        ("decode,1,100,0,0,0,-3", "line 27: iteration_ms = '-3', expected a number above 0"),
        ("decode,1,100,0,0,0,nan", "line 27: iteration_ms = 'nan'"),
        ("decoding,1,100,0,0,0,20", "line 27: kind = 'decoding', expected one of decode, prefill"),
        ("decode,1,100,0,0,0", "line 27: expected 7 values"),
        ("decode,0,100,0,0,0,20", "line 27: decode_requests = 0, expected at least 1"),
        ("prefill,0,0,1,0,0,20", "line 27: prefill_requests = 1, prefill_chunk_tokens = 0"),
        ("prefill,3,0,1,8,0,20", "line 27: decode_requests = 3, expected 0"),
        ("decode,3,9,1,8,0,20", "line 27: prefill_requests = 1, expected 0"),
    ],
)
def test_a_malformed_row_is_named(
    tmp_path: Path, refused: Callable[..., str], row: str, message: str
):
    source, out = own_csv(tmp_path / "my.csv", row + "\n"), tmp_path / "my.json"
    words = [f"csv={source}", "llm=mistral-7b", "gpu=a10", "tp=1", f"out={out}"]
    assert message in refused(calibrate.main, words)
    assert not out.exists()


@pytest.mark.parametrize(
    "words, message",
    [
        (["repot"], "'repot': expected 'report' or key=value"),
        (["report", "out=x"], "out is no option of report"),
        (["report", "format=html"], "format = 'html'"),
        (["report", "data=nowhere.json"], "nowhere.json: cannot be read"),
        (["out=x"], "give one of: report, data="),
        (["data=a", "data=b"], "data is given twice"),
        (["data=nowhere"], "data = nowhere: no such directory"),
        (["csv=a.csv", "llm=mistral-7b"], "csv=... needs gpu, tp"),
        (["csv=a.csv", "llm=mistrl-7b", "gpu=a10", "tp=1"], "Did you mean 'mistral-7b'?"),
        (["csv=a.csv", "llm=mistral-7b", "gpu=a10", "tp=3"], "tp = '3'"),
        (["csv=no.csv", "llm=mistral-7b", "gpu=a10", "tp=1"], "no.csv: cannot be read"),
    ],
)
def test_slips_are_one_line_and_code_2(refused: Callable[..., str], words: list[str], message: str):
    assert message in refused(calibrate.main, words)


def test_missing_column_and_output_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source = own_csv(tmp_path / "my.csv")
    words = [f"csv={source}", "llm=mistral-7b", "gpu=a10", "tp=1", f"out={source}/sub/x.json"]
    assert calibrate.main(words) == 2
    assert "calibrate:" in capsys.readouterr().err
    source.write_text("kind,decode_requests\ndecode,1\n")
    assert calibrate.main(words[:-1]) == 2
    assert "line 1: no column decode_mean_context" in capsys.readouterr().err


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "models.json"
    path.write_text("old")

    def broken(*args: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrate.json, "dumps", broken)
    with pytest.raises(KeyboardInterrupt):
        calibrate.write_models(path, load_models())
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["models.json"]


def test_report_runs_as_a_module_without_heavy_imports():
    code = (
        "import sys, llmscale_env.calibrate as c\n"
        "assert c.main(['report', 'format=markdown']) == 0\n"
        "bad = {'torch', 'scipy', 'matplotlib', 'pandas', 'numba'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    table = printed(code)
    assert "| llama-2-70b | a100-80gb | 4 | composed |" in table
    assert "roofline" in table


def test_docs_show_the_shipped_report():
    printed = calibrate.report(
        load_models(), calibrate.read_data_file().get("roofline"), markdown=True
    )
    page = (ROOT / "docs" / "calibration.md").read_text()
    for table in printed.split("\n\n"):
        assert table in page, "run: python -m llmscale_env.calibrate report format=markdown"


@pytest.mark.slow
@needs_raw
def test_refit_gives_the_shipped_file(tmp_path: Path):
    out = tmp_path / "again.json"
    assert calibrate.main([f"data={RAW}", f"out={out}"]) == 0
    again, shipped = load_models(out), load_models()
    assert [(m.llm, m.gpu, m.tp, m.kind) for m in again] == [
        (m.llm, m.gpu, m.tp, m.kind) for m in shipped
    ]
    # On one machine they are equal byte for byte; another's linear algebra may end in other bits.
    for a, b in zip(again, shipped, strict=True):
        assert a.prefill_knot_tokens == b.prefill_knot_tokens
        assert a.mixed_knot_tokens == b.mixed_knot_tokens
        for name in ("decode_base_s", "decode_per_token_s", "prefill_knot_s", "mixed_knot_s"):
            np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-4)
        for part, error in b.errors.items():
            assert a.errors[part].mean == pytest.approx(error.mean, abs=2e-4)


@pytest.mark.slow
@needs_raw
def test_a_fit_is_the_same_twice():
    from llmscale_env.cluster.fitting import fit
    from llmscale_env.cluster.readers import read_calibration_dir

    first, second = (
        next(m for m in read_calibration_dir(RAW) if m.llm == "mistral-7b") for _ in range(2)
    )
    assert fit(first) == fit(second)


@needs_raw
def test_dense_support_agrees_with_the_composed_files():
    """The formula composes the points of the files themselves: 70B TP4 to their last digit."""
    from llmscale_env.cluster.readers import composed_times, dense_rows, read_calibration_dir

    sets = {(m.llm, m.tp, m.kind): m for m in read_calibration_dir(RAW)}
    # The attention profile starts at 64 tokens; below, the file has a value of its own.
    for name, model, tp, measured, points_known in (
        ("llama-2-70b", "Llama-2-70B", 4, False, 18),
        ("llama-2-70b", "Llama-2-70B", 2, True, 17),
        ("mistral-7b", "Llama-3-8B(no kv-append)", 4, False, 18),
        ("llama-3.1-8b", "Llama-3-8B", 4, False, 18),
    ):
        data = sets[name, tp, "composed"]
        points = data.of("prefill")
        points = points.only(points.scored & (points.chunks == 1))
        known = dict(zip(points.total_tokens.tolist(), points.seconds, strict=True))
        dense = dense_rows(composed_times(RAW, model, tp, measured_attention=measured))
        compared = [
            (row.ms / 1e3, known[row.chunk_tokens])
            for row in dense
            if row.part == "prefill"
            and row.chunk_tokens in known
            and not (measured and row.chunk_tokens < 64)
        ]
        assert len(compared) == points_known
        for made, written in compared:
            assert made == pytest.approx(written, rel=2e-4)


@needs_raw
def test_measured_attention_composes_the_rows_of_the_file():
    """Decode and chunked iterations of Llama 2 70B on two GPUs, to the file's last digit."""
    from llmscale_env.cluster.readers import composed_times, read_calibration_dir

    data = next(
        m
        for m in read_calibration_dir(RAW)
        if (m.llm, m.tp, m.kind) == ("llama-2-70b", 2, "composed")
    )
    assert "attention measured" in data.source
    times = composed_times(RAW, "Llama-2-70B", 2, measured_attention=True)
    rows = data.only(data.scored & (data.part != 1))
    matrix = times.matrix_ms(rows.total_tokens)
    assert len(rows.seconds) == 178 + 1044
    for k, seconds in enumerate(rows.seconds):
        b, ms = int(rows.decode_requests[k]), float(matrix[k])
        if b:
            ms += times.decode_attention_ms(b, rows.context_tokens[k] / b)
        if rows.chunks[k]:
            ms += times.prefill_attention_ms([(rows.chunk_tokens[k], rows.cached_tokens[k])])
        assert ms == pytest.approx(1e3 * seconds, rel=1e-6)


@needs_raw
def test_what_is_left_out_is_as_the_docs_say():
    with (RAW / "splitwise_perf_model.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    mean: dict[tuple, list[float]] = defaultdict(list)
    for r in rows:
        if r["token_size"] == "128":
            key = (r["model"], r["hardware"], int(r["tensor_parallel"]))
            mean[(*key, int(r["prompt_size"]), int(r["batch_size"]))].append(
                float(r["prompt_time"])
            )
    prompt = {k: float(np.mean(v)) for k, v in mean.items()}
    for (model, gpu, tp, size, batch), ms in prompt.items():
        if batch > 1 and size == 512 and size * batch <= 8192:
            excess = ms / prompt[model, gpu, tp, size * batch, 1] - 1
            if (model, gpu) == ("llama2-70b", "a100-80gb"):
                assert 0.06 < excess < 0.37
            else:
                assert excess < 0.01
    for tp in (2, 4, 8):
        key = ("llama2-70b", "h100-80gb-pcap", tp, 2048, 1)
        plain = ("llama2-70b", "h100-80gb", tp, 2048, 1)
        assert prompt[key] == pytest.approx(1.3 * prompt[plain], rel=1e-6)
    for gpu in ("a100-80gb", "h100-80gb"):
        assert prompt["llama2-70b", gpu, 2, 512, 64] < prompt["llama2-70b", gpu, 2, 512, 32] / 6


@needs_raw
def test_kv_append_is_that_of_its_profile():
    """Rows of Vidur's profile of Llama 3 8B (ms a layer), and between them straight lines by hand."""
    from llmscale_env.cluster.kernels import KvAppend
    from llmscale_env.cluster.readers import composed_times

    append = KvAppend(RAW)
    for chunk, cached, ms in (
        (64, 0, 0.019),
        (64, 4096, 0.036),
        (352, 0, 0.098),
        (352, 704, 0.152),
    ):
        assert append.chunk_ms(chunk, cached) == pytest.approx(ms, rel=1e-9)
    # 528 tokens lie half-way between 352 (0.098 / 352) and 704 (0.126 / 352) on the curve of large chunks.
    assert append.chunk_ms(528, 0) == pytest.approx(528 * (0.098 + 0.126) / 2 / 352)
    # 192 tokens are half-way from 64 to 320: the first curve has 0.019 / 64 there, the second begins at 352.
    assert append.chunk_ms(192, 0) == pytest.approx(192 * (0.019 / 64 + 0.098 / 352) / 2)
    # Beyond the longest context of the profile, 8,192 tokens behind 8,192, its time per token stays.
    assert append.chunk_ms(20_000, 0) == pytest.approx(20_000 * 4.477 / 8192)
    with_append = composed_times(RAW, "Llama-3-8B", 1, measured_attention=False)
    without = composed_times(RAW, "Llama-3-8B(no kv-append)", 1, measured_attention=False)
    more = with_append.prefill_attention_ms([(64, 0), (352, 0)]) - without.prefill_attention_ms(
        [(64, 0), (352, 0)]
    )
    assert more == pytest.approx(32 * (0.019 + 0.098))
    assert with_append.decode_attention_ms(8, 256) - without.decode_attention_ms(
        8, 256
    ) == pytest.approx(32 * 0.003)
