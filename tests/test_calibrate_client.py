"""`python -m llmscale_env.calibrate observed=RUN`: what a client saw, read, replayed and fitted."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import re
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from experiments import client_runs
from llmscale_env import calibrate as command
from llmscale_env.calibrate import fit as fit_module
from llmscale_env.calibrate.fit import (
    Calibration,
    Parameters,
    Problem,
    calibrate,
    halves,
    scaled,
    score,
)
from llmscale_env.calibrate.observed import (
    Observed,
    ObservedError,
    busy_periods,
    read_observed,
)
from llmscale_env.calibrate.replay import FrontEnd, Replay, Replayed, Server
from llmscale_env.cluster.cards import gpu_card, llm_card
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.cluster.roofline import matrix_s, roofline_model, shipped_efficiency
from llmscale_env.scenarios import load_scenario
from llmscale_env.sim.compile import compile_cluster

REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "data" / "reference"
LLM, GPU = "llama-3.1-8b", "a100-80gb"
SERVER = Server(2048, 64, 200_000)
TRUTH = Parameters(
    read=1.15, compute=0.9, context=1.3, attention=1.2, per_request_s=4e-5, per_chunk_s=2e-3,
    delay_s=6e-3, delay_per_token_s=1e-6,
)  # fmt: skip
RUN = (  # arrival, input tokens, output tokens, TTFT, E2E
    (0.0, 100, 5, 0.5, 0.9),
    (0.25, 300, 3, 0.125, 0.375),
    (2.0, 7, 2, 0.0625, 0.5),
)


def observed(
    rows: tuple[tuple[float, int, int, float, float], ...] = RUN, run: tuple[int, ...] = ()
) -> Observed:
    columns = [np.asarray(column) for column in zip(*rows, strict=True)]
    number = np.asarray(run or (0,) * len(rows))
    return Observed("made.csv", "CSV", number, *columns, np.ones(len(rows), bool))


def drawn(n: int, seed: int = 3) -> Observed:
    """Requests in bursts and alone, seen by a client of a simulated server whose times are known."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(np.where(np.arange(n) % 40 < 20, 0.15, 1.5)))
    given, made = rng.integers(50, 3000, n), rng.integers(2, 200, n)
    blank = observed(
        tuple(zip(arrival, given, made, arrival * 0 + 1, arrival * 0 + 9, strict=True))
    )
    seen = Replay(blank, SERVER).run(scaled(roofline_model(LLM, GPU), TRUTH), TRUTH.front_end)
    return replace(blank, ttft_s=seen.ttft_s, e2e_s=seen.e2e_s)


# --- The four formats ----------------------------------------------------------------------------


def plain_csv(path: Path, rows: Any = RUN) -> Path:
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["arrival_time_s", "input_tokens", "output_tokens", "ttft_s", "e2e_s"])
        out.writerows(rows)
    return path


def spans_csv(path: Path, rows: Any = RUN) -> Path:
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        usage, latency = "gen_ai.usage.", "gen_ai.latency."
        out.writerow(
            ["name", "startTimeUnixNano", usage + "prompt_tokens", usage + "completion_tokens",
             latency + "time_to_first_token", latency + "e2e"]
        )  # fmt: skip
        out.writerow(["Init device", 1_700_000_000 * 10**9, "0", "0", "0", "0"])
        for sent, *rest in rows:
            out.writerow(["llm_request", (1_700_000_000 + sent) * 1e9, *rest])
    return path


def bench_json(path: Path, rows: Any = RUN, **changes: Any) -> Path:
    content = {
        "backend": "vllm",
        "request_rate": "inf",
        "start_times": [512.5 + sent for sent, *_ in rows],
        "input_lens": [row[1] for row in rows],
        "output_lens": [row[2] for row in rows],
        "ttfts": [row[3] for row in rows],
        # As many chunks as it likes: only their sum counts.
        "itls": [[(e2e - ttft) / 2] * 2 for *_, ttft, e2e in rows],
        "errors": [""] * len(rows),
    }
    path.write_text(json.dumps(content | changes, indent=1))
    return path


def guidellm_json(path: Path, rows: Any = RUN, old: bool = False, **groups: Any) -> Path:
    def request(sent: float, given: int, made: int, ttft: float, e2e: float) -> dict[str, Any]:
        at = 1_700_000_000.0 + sent
        if old:
            times = {"start_time": at, "first_token_time": at + ttft, "last_token_time": at + e2e}
            return {"prompt_tokens": given, "output_tokens": made, **times, "end_time": at + 99}
        times = {
            "targeted_start": at - 1,
            "request_start": at,
            "first_token_iteration": at + ttft,
            "last_token_iteration": at + e2e,
            "request_end": at + 99,
        }
        info = {"status": "completed", "timings": times}
        tokens = {"input_metrics": {"text_tokens": given}, "output_metrics": {"text_tokens": made}}
        return {"info": info, **tokens}

    requests = {"successful": [request(*row) for row in rows], "incomplete": [], "errored": []}
    benchmarks = [{"type_": "generative_benchmark", "requests": requests | groups}]
    path.write_text(json.dumps({"metadata": {"version": 1}, "benchmarks": benchmarks}))
    return path


FORMATS: dict[str, Callable[[Path], Path]] = {
    "plain": lambda folder: plain_csv(folder / "a.csv"),
    "spans": lambda folder: spans_csv(folder / "a.csv"),
    "bench": lambda folder: bench_json(folder / "a.json"),
    "guidellm": lambda folder: guidellm_json(folder / "a.json"),
    "guidellm 0.3": lambda folder: guidellm_json(folder / "a.json", old=True),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_tells_the_same(tmp_path: Path, kind: str):
    seen = read_observed(FORMATS[kind](tmp_path), warm_up=1)
    arrival, given, made, ttft, e2e = (np.asarray(column) for column in zip(*RUN, strict=True))
    np.testing.assert_allclose(seen.arrival_s, arrival, atol=1e-6)
    assert seen.input_tokens.tolist() == given.tolist()
    assert seen.output_tokens.tolist() == made.tolist()
    np.testing.assert_allclose(seen.ttft_s, ttft, atol=1e-6)
    np.testing.assert_allclose(seen.e2e_s, e2e, atol=1e-6)
    np.testing.assert_allclose(seen.tpot_s, (e2e - ttft) / (made - 1), atol=1e-6)
    assert seen.believed.tolist() == [False, True, True]


def test_a_packed_file_and_milliseconds(tmp_path: Path):
    lines = (
        "run,arrival_s,input,output,ttft_ms,e2e_ms\nb,5,10,2,100,200\na,1,20,3,50,80\nb,4,1,1,7,7\n"
    )
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(lines.encode()))
    seen = read_observed(path, warm_up=0)
    assert seen.run.tolist() == [0, 0, 1]
    assert seen.arrival_s.tolist() == [0, 1, 0]
    assert seen.ttft_s == pytest.approx([0.007, 0.1, 0.05])
    assert np.isnan(seen.tpot_s[0])
    assert seen.run_names == ("b", "a")
    one = seen.only(["a"])
    assert (one.run.tolist(), one.input_tokens.tolist(), one.run_names) == ([0], [20], ("a",))
    with pytest.raises(ObservedError, match="no run 'c'; there are 'b', 'a'"):
        seen.only(["c"])


def test_failed_requests_are_counted_and_left_out(tmp_path: Path):
    rows = (*RUN, (3.0, 50, 4, 0.0, 0.0), (4.0, 50, 0, 0.1, 0.1), (5.0, 60, 4, 0.1, 0.2))
    path = bench_json(
        tmp_path / "a.json", rows, errors=["", "", "", "", "", "broke"], max_concurrency=8
    )
    seen = read_observed(path)
    assert len(seen) == 3
    told = " ".join(seen.remarks)
    assert "1 left out: failed" in told
    assert "2 left out: without any token" in told
    assert "max_concurrency = 8" in told


def test_results_that_were_appended_are_runs_of_their_own(tmp_path: Path):
    one = json.dumps(json.loads(bench_json(tmp_path / "a.json").read_text()))
    (tmp_path / "a.json").write_text(f"{one}\n{one}\n")
    seen = read_observed(tmp_path / "a.json")
    assert seen.run.tolist() == [0, 0, 0, 1, 1, 1]
    assert seen.believed.tolist() == [False, True, True, True, True, True]


def test_what_guidellm_cut_off_is_load_and_no_more(tmp_path: Path):
    cut = {
        "info": {"timings": {"request_start": 1_700_000_001.0}},
        "prompt_tokens": 40,
        "output_tokens": 9,
    }
    waits = {"info": {"timings": {}}, "prompt_tokens": 40}
    path = guidellm_json(tmp_path / "a.json", incomplete=[cut, waits], errored=[{}])
    seen = read_observed(path, warm_up=0)
    assert seen.believed.tolist() == [True, True, False, True]
    assert np.isnan(seen.e2e_s[2])
    assert "1 left out: errored" in seen.remarks
    # Its end is not known, so the server is not known to be empty again.
    assert busy_periods(seen).tolist() == [0, 0, 1, 1]


def broken(path: Path, kind: str) -> None:
    head = "arrival_time_s,input_tokens,output_tokens,ttft_s,e2e_s\n"
    texts = {
        "column": "arrival_time_s,input_tokens,output_tokens,ttft_s\n0,1,2,0.1\n",
        "text": head + "0,1,2,soon,0.2\n",
        "backwards": head + "0,1,2,0.3,0.2\n",
        "half": head + "0,1.5,2,0.1,0.2\n",
        "few": head + "0,1,2,0.1\n",
        "none": head,
        "ns": head + "0,1,2,0.1,0.2\n1e18,1,2,0.1,0.2\n",
    }
    if kind in texts:
        path.write_text(texts[kind])
    elif kind == "summary":
        path.write_text('{"mean_ttft_ms": 50.0, "completed": 3}')
    elif kind == "lengths":
        bench_json(path, ttfts=[0.1])
    elif kind == "sample":
        guidellm_json(path)
        content = json.loads(path.read_text())
        content["benchmarks"][0]["request_totals"] = {"successful": 900}
        path.write_text(json.dumps(content))
    else:
        guidellm_json(path, successful=[{"info": {"timings": {"request_start": 5.0}}}])


@pytest.mark.parametrize(
    "kind, message",
    [
        ("column", "line 1: no column for E2E; expected one of e2e_s"),
        ("text", "line 2: ttft_s = 'soon', expected a number"),
        ("backwards", "line 2: E2E = 0.2 s, must not be below TTFT = 0.3 s"),
        ("half", "line 2: input tokens = 1.5, expected a whole number"),
        ("few", "line 2: expected 5 values, got 4"),
        ("none", "0 requests with latencies"),
        ("ns", "must be at most 172800 s; arrivals are in seconds"),
        ("summary", "--save-detailed"),
        ("lengths", "lists of different lengths"),
        ("sample", "request_totals.successful = 900, but 3 are listed"),
        ("no tokens", "requests.successful[0]: no time of sending or no prompt_tokens"),
    ],
)
def test_a_bad_file_is_told_in_one_line(
    tmp_path: Path, refused: Callable[..., str], kind: str, message: str
):
    csv_kinds = ("column", "text", "backwards", "half", "few", "none", "ns")
    path = tmp_path / ("a.csv" if kind in csv_kinds else "a.json")
    broken(path, kind)
    words = [f"observed={path}", f"llm={LLM}", f"gpu={GPU}", "tp=1", f"out={tmp_path}/out.json"]
    said = refused(command.main, words)
    assert message in said
    assert path.name in said
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    "words, message",
    [
        (["llm=llama-3.1-8b"], "observed=... needs gpu, tp"),
        ([f"llm={LLM}", f"gpu={GPU}", "tp=1", "search=fast"], "search = 'fast'"),
        ([f"llm={LLM}", f"gpu={GPU}", "tp=1", "kv_tokens=0"], "kv_tokens = '0'"),
        ([f"llm={LLM}", f"gpu={GPU}", "tp=1", "kv_tokens=300"], "a request of 303 tokens does not"),
        ([f"llm={LLM}", f"gpu={GPU}", "tp=1", "also=llama-2-7b"], "needs out=FILE.json"),
        ([f"llm={LLM}", f"gpu={GPU}", "tp=1", "also=llama-9", "out=OUT"], "also = 'llama-9'"),
        ([f"llm={LLM}", f"gpu={GPU}", "tp=1", "data=a.json", "also=x"], "also is no option of"),
        ([f"llm={LLM}", f"gpu={GPU}", "tp=1"], "too few to hold half of them out"),
    ],
)
def test_slips_of_the_command(
    tmp_path: Path, refused: Callable[..., str], words: list[str], message: str
):
    path, out = plain_csv(tmp_path / "a.csv"), f"out={tmp_path / 'a.json'}"
    given = [out if word == "out=OUT" else word for word in words]
    assert message in refused(command.main, [f"observed={path}", *given])


# --- The replay ----------------------------------------------------------------------------------


def test_a_lone_request_by_hand():
    at = TRUTH
    model = scaled(roofline_model(LLM, GPU), at)
    run = observed(((0.0, 1000, 3, 1.0, 2.0),))
    seen = Replay(run, SERVER).run(model, at.front_end)
    prefill = model.mixed_s(0, 0, 1000, 1000**2, 1)
    assert seen.ttft_s[0] == pytest.approx(
        at.delay_s + 1000 * at.delay_per_token_s + prefill, rel=1e-4
    )
    decode = model.decode_s(1, 1001) + model.decode_s(1, 1002)
    assert seen.e2e_s[0] - seen.ttft_s[0] == pytest.approx(decode, rel=1e-6)
    assert seen.tpot_s[0] == pytest.approx(decode / 2, rel=1e-6)


def test_the_server_is_empty_where_the_observed_one_was():
    """The client sends when its last answer is there; a slow simulation must not let them meet."""
    one_by_one = observed(((0.0, 500, 50, 0.1, 1.0), (1.0, 500, 50, 0.1, 1.0)))
    slow = scaled(roofline_model(LLM, GPU), replace(TRUTH, read=3.0))
    seen = Replay(one_by_one, SERVER).run(slow, FrontEnd())
    assert seen.e2e_s[0] > 1.0
    assert seen.e2e_s[0] == pytest.approx(seen.e2e_s[1], rel=1e-9)
    together = observed(((0.0, 500, 50, 0.1, 1.01), (1.0, 500, 50, 0.1, 1.0)))
    met = Replay(together, SERVER).run(slow, FrontEnd())
    assert met.e2e_s[0] > seen.e2e_s[0]


def test_busy_periods_end_with_the_last_request_and_with_the_run():
    rows = ((0.0, 9, 9, 1, 5.0), (1.0, 9, 9, 1, 1.0), (4.9, 9, 9, 0.01, 0.05), (5.0, 9, 9, 1, 1.0))
    assert busy_periods(observed(rows)).tolist() == [0, 0, 0, 1]
    assert busy_periods(observed(rows, run=(0, 0, 1, 1))).tolist() == [0, 0, 1, 2]


def test_the_front_end_serves_one_after_the_other():
    rng = np.random.default_rng(0)
    sent, tokens = np.sort(rng.uniform(0, 3, 50)), rng.integers(1, 900, 50).astype(float)
    free, expected = 0.0, []
    for at, n in zip(sent, tokens, strict=True):
        free = max(free, at) + 1e-4 * n
        expected.append(free + 0.25)
    np.testing.assert_allclose(FrontEnd(0.25, 1e-4).passed_s(sent, tokens), expected)


def test_largest_batch_counts_what_runs_at_once():
    rng = np.random.default_rng(1)
    begin = rng.integers(0, 40, 60).astype(float)
    end = begin + rng.integers(1, 12, 60)
    nan = np.full(60, np.nan)
    found = Replayed(nan, nan, nan, begin, end).largest_batch()
    at = np.arange(60)
    running = ((begin <= at[:, None]) & (at[:, None] < end)).sum(axis=1)
    for k in range(60):
        assert found[k] == running[int(begin[k]) : int(end[k])].max()


def test_the_form_is_the_rooflines_at_its_own_shares():
    start = roofline_model(LLM, GPU)
    own = Parameters(per_request_s=0.0, per_chunk_s=0.0)
    model = scaled(start, own)
    for batch, context in ((1, 500), (7, 7000), (100, 90_000)):
        assert model.decode_s(batch, context) == pytest.approx(
            start.decode_s(batch, context), rel=1e-9
        )
    tokens = np.asarray([4096.0, 8192.0])
    slope = (
        np.diff(matrix_s(llm_card(LLM), gpu_card(GPU), 1, tokens, shipped_efficiency()[0]))[0]
        / 4096
    )
    assert model.mixed_s(0, 0, 3000, 0) == pytest.approx(3000 * slope, rel=1e-6)
    # An iteration without a chunk costs the same in both forms.
    busy = scaled(start, TRUTH)
    assert busy.mixed_s(5, 4000, 0, 0, 0) == pytest.approx(busy.decode_s(5, 4000), rel=1e-9)
    assert busy.prefill_s(700) == pytest.approx(busy.mixed_s(0, 0, 700, 700**2, 1), rel=1e-9)
    assert busy.decode_s(1, 0) == pytest.approx(1.15 * start.decode_s(1, 0) + 4e-5, rel=1e-9)


def test_defaults_are_those_of_vllm():
    assert vars(Server.of_gpu(gpu_card("h100-80gb")))["max_num_batched_tokens"] == 8192
    assert Server.of_gpu(gpu_card("a100-80gb")).max_num_batched_tokens == 2048
    assert Server.of_gpu(gpu_card("a10")).max_num_seqs == 256


# --- The fit -------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["blocks", "later"])
def test_halves_are_disjoint_and_leave_nothing_out(split: str):
    run = drawn(60)
    run = replace(run, believed=np.arange(60) != 0, run=np.repeat([0, 1], [40, 20]))
    fitted, held_out = halves(run, split)
    assert not (fitted & held_out).any()
    assert (fitted | held_out).tolist() == run.believed.tolist()
    if split == "later":
        assert np.flatnonzero(held_out).tolist() == [*range(20, 40), *range(50, 60)]
    else:
        assert np.flatnonzero(fitted).tolist() == [*range(1, 10), *range(20, 30), *range(40, 50)]


class Done(NamedTuple):
    """A fit by the command: what it was, what was said, the files."""

    fit: Calibration
    out: str
    err: str
    folder: Path
    words: list[str]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """120 requests, as `vllm bench serve` writes them, fitted on the command line."""
    run, folder = drawn(120), tmp_path_factory.mktemp("client")
    columns = (run.arrival_s, run.input_tokens, run.output_tokens, run.ttft_s, run.e2e_s)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    path = bench_json(folder / "run.json", rows)
    settings = ["max_num_batched_tokens=2048", "max_num_seqs=64", "warm_up=0", f"plots={folder}"]
    words = [f"observed={path}", f"llm={LLM}", f"gpu={GPU}", "tp=1", *settings]
    fits: list[Calibration] = []

    def spied(*args: Any, **options: Any) -> Calibration:
        fits.append(calibrate(*args, **options))
        return fits[-1]

    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(fit_module, "calibrate", spied)
        more = ["search=local", f"out={folder / 'my_gpu.json'}", "also=llama-3.1-70b:4"]
        assert command.main([*words, *more]) == 0
    return Done(fits[0], out.getvalue(), err.getvalue(), folder, words)


@pytest.fixture
def recovered(done: Done) -> Calibration:
    return done.fit


def test_known_times_are_found_again(recovered: Calibration):
    """From latencies alone, held-out requests are met, and so are the times behind them."""
    before, after = (recovered.scores[name] for name in ("cards alone", "held out"))
    for metric, most in (("TTFT", 0.03), ("time per token", 0.005), ("E2E", 0.01)):
        assert after[metric].median < most
        assert before[metric].median > 3 * after[metric].median
    true, found = scaled(roofline_model(LLM, GPU), TRUTH), recovered.model
    assert found.decode_s(1, 1000) == pytest.approx(true.decode_s(1, 1000), rel=0.01)
    assert found.decode_s(12, 20_000) == pytest.approx(true.decode_s(12, 20_000), rel=0.03)
    assert found.prefill_s(2048) == pytest.approx(true.prefill_s(2048), rel=0.05)


def test_a_fit_says_what_it_covers(recovered: Calibration):
    run, fitted = drawn(120), recovered.fitted
    assert recovered.model.kind == "user"
    assert recovered.model.max_prefill_tokens == run.input_tokens[fitted].max()
    held = run.input_tokens + run.output_tokens
    assert recovered.model.max_context_tokens == held[fitted].max()
    assert recovered.model.max_batch == recovered.replayed.largest_batch()[fitted].max() > 3
    outside = recovered.range.outside(run, recovered.replayed.largest_batch())
    assert not (outside & fitted).any()
    assert recovered.n_outside == (outside & recovered.held_out).sum()
    errors = recovered.model.errors
    assert errors["TTFT"].n_held_out == recovered.held_out.sum()
    assert errors["TTFT"].mean == recovered.scores["held out"]["TTFT"].mean


def test_what_a_run_does_not_decide_is_said():
    """Short prompts, one at a time: they say nothing of long ones, nor of what a batch costs."""
    rng = np.random.default_rng(5)
    rows = tuple((20.0 * k, 20, int(n), 0.05, 10.0) for k, n in enumerate(rng.integers(5, 60, 24)))
    start, blank = roofline_model(LLM, GPU), observed(rows)
    replay = Replay(blank, SERVER)
    seen = replay.run(scaled(start, TRUTH), TRUTH.front_end)
    run = replace(blank, ttft_s=seen.ttft_s, e2e_s=seen.e2e_s)
    problem = Problem(run, replay, start, run.believed)
    x = np.log(np.asarray(astuple(TRUTH)) / np.asarray(astuple(Parameters())))
    assert problem.loss(x) < 1e-2
    free = problem.undecided(x)
    assert {"attention", "compute", "per_request_s"} <= set(free)
    assert not {"read", "per_chunk_s", "delay_s"} & set(free)


def test_errors_are_those_of_the_requests_asked_for():
    run = observed(((0.0, 9, 3, 1.0, 3.0), (0.0, 9, 1, 2.0, 2.0), (0.0, 9, 3, 4.0, 8.0)))
    made = Replayed(
        np.asarray([1.1, 9.0, 3.0]), np.asarray([1.0, np.nan, 3.0]), run.e2e_s, run.e2e_s, run.e2e_s
    )
    rows = score(run, made, np.asarray([True, False, True]))
    assert rows["TTFT"].n == 2
    assert rows["TTFT"].worst == pytest.approx(0.25)
    assert rows["TTFT"].bias == pytest.approx((0.1 - 0.25) / 2)
    assert rows["time per token"].median == pytest.approx((0.0 + 0.5) / 2)
    assert rows["E2E"].mean == 0


# --- The command ---------------------------------------------------------------------------------


def test_the_command_says_all_and_draws(done: Done):
    for part in (
        "vllm bench serve, 120 requests",
        "max_num_seqs 64",
        "(by the cards)",
        "held out",
        "cards alone",
        "extrapolated by the roofline's form",
        "p99 of 60 requests is the worst of them",
        f"written: {done.folder / 'my_gpu.json'}",
    ):
        assert part in done.out
    assert "least squares: loss" in done.err
    picture = done.folder / "observed_llama-3-1-8b_a100-80gb_tp1.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_file_serves_as_iteration_times(done: Done):
    out = done.folder / "my_gpu.json"
    kept = json.loads(out.read_text())["calibration"]
    assert kept["parameters"]["read"] == pytest.approx(TRUTH.read, rel=0.05)
    assert kept["server"]["max_num_seqs"] == 64
    model = iteration_time_model(LLM, GPU, 1, data=out)
    assert model.kind == "user"
    assert model.source == "fitted to 60 requests of run.json (vllm bench serve)"
    assert model.decode_s(3, 900) == pytest.approx(done.fit.model.decode_s(3, 900), rel=1e-5)
    other = iteration_time_model("llama-3.1-70b", GPU, 4, data=out)
    roofline = roofline_model("llama-3.1-70b", GPU, 4)
    assert other.decode_s(1, 0) / roofline.decode_s(1, 0) == pytest.approx(TRUTH.read, rel=0.05)
    assert f"fitted to {LLM}" in other.source
    spec = compile_cluster(load_scenario("chiron-8b", iteration_times=str(out)))
    assert spec.profiles[0].decode_base_ps[1] == pytest.approx(
        1e12 * model.decode_s(1, 0), rel=1e-6
    )


def test_both_kinds_of_report_in_one_process(done: Done, capsys: pytest.CaptureFixture[str]):
    """A module of the package must not take the name of one of its functions."""
    assert command.main(["report", f"data={done.folder / 'my_gpu.json'}"]) == 0
    assert "llama-3.1-70b" in capsys.readouterr().out


def test_a_file_is_scored_against_a_run(done: Done, capsys: pytest.CaptureFixture[str]):
    """The same file against the same run: the front end's delay comes from it as well."""
    assert command.main([*done.words, f"data={done.folder / 'my_gpu.json'}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    row = next(line.split() for line in lines if line.startswith("all") and "TTFT" in line)
    both = [done.fit.scores[half]["TTFT"].median for half in ("fitted", "held out")]
    assert min(both) <= float(row[-6]) / 100 + 1e-3
    assert float(row[-6]) / 100 - 1e-3 <= max(both)


def test_a_file_without_a_fit_is_scored_as_extrapolated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = plain_csv(tmp_path / "a.csv")
    out = tmp_path / "empty.json"
    command.write_models(out, ())
    assert (
        command.main([f"observed={path}", "llm=mistral-7b", "gpu=v100-32gb", "tp=1", f"data={out}"])
        == 0
    )
    assert "every request is EXTRAPOLATED from the cards" in capsys.readouterr().out


# --- Measured servers ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the shared runs are not there")
def test_both_measured_runs_of_vllm_are_met(tmp_path: Path):
    """On what was not fitted: medians of at most 5 % of E2E and time per token, 15 % of TTFT."""
    runs = client_runs.Runs("local", 0, tmp_path)
    runs.reference(REFERENCE)
    for fitted, scored, metric, _, median, *_ in runs.rows:
        if fitted != "the cards alone":
            assert median < (15 if metric == "TTFT" else 5), (fitted, scored, metric)
    assert len(runs.rows) == 3 * (2 * 3 + 2)
    assert len(list(tmp_path.glob("*.png"))) == 4


@pytest.mark.slow
def test_our_own_runs_are_met_in_other_settings_too(tmp_path: Path):
    """The table of docs/calibrate.md, and medians within the targets that docs/fidelity.md names."""
    runs = client_runs.Runs("global", 0, tmp_path)
    runs.ours()
    page = (Path(__file__).parents[1] / "docs" / "calibrate.md").read_text()
    told = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 6 and "H200" in cells[0] + cells[1]:
            told[cells[0].startswith("nothing"), cells[1]] = cells[3:]
    assert len(told) == len({row[1] for row in runs.rows}) + 1
    metrics = ("TTFT", "time per token", "E2E")
    for fitted, scored, metric, _, median, p90, *_ in runs.rows:
        alone = fitted == "the cards alone"
        found = told[alone, scored][metrics.index(metric)]
        assert [median, p90] == pytest.approx(
            [float(x) for x in re.findall(r"[\d.]+", found)], abs=0.3
        )
        assert alone or median < (15 if metric == "TTFT" else 5), (scored, metric)


def test_a_folder_without_runs_is_refused(tmp_path: Path, refused: Callable[..., str]):
    assert "has no folder 'reference'" in refused(client_runs.main, [f"data={tmp_path}"])
    (tmp_path / "reference").mkdir()
    words = [f"data={tmp_path}", f"out={tmp_path / 'out'}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_runs.Runs, "ours", lambda self: None)
        assert "no such file" in refused(client_runs.main, words)
