"""Traces of what an engine has served: vLLM's files, and its metrics in Prometheus."""

from __future__ import annotations

import gzip
import http.server
import json
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmscale_env import traces
from llmscale_env.workload.readers import detect_format, read_trace
from llmscale_env.workload.served.prometheus import (
    PrometheusError,
    read_duration,
    read_time,
    trace_of_metrics,
)
from tests.shadowed_cluster import find_prometheus, running, wait_until

BINARY = find_prometheus(Path(__file__).resolve().parents[1])

REQUESTS = [(0.0, 100, 7), (0.5, 30, 1), (2.25, 4000, 250)]
"""Seconds of sending, prompt and answer in tokens: what every file below holds."""

# ---------------------------------------------------------------- files of vLLM


def bench(path: Path, **changes: Any) -> Path:
    failed = (3.0, 50, 0)
    rows = [*REQUESTS, failed]
    content = {
        "date": "20260101-000000",
        "completed": 3,
        "input_lens": [row[1] for row in rows],
        "output_lens": [row[2] for row in rows],
        "ttfts": [0.1] * 4,
        "itls": [[]] * 4,
        "start_times": [1234.5 + row[0] for row in rows],
        "generated_texts": [""] * 4,
        "errors": ["", "", "", "refused"],
    }
    path.write_text(json.dumps({**content, **changes}))
    return path


def span(row: tuple[float, int, int], name: str = "llm_request") -> dict[str, Any]:
    attributes = [
        {"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": str(row[1])}},
        {"key": "gen_ai.usage.completion_tokens", "value": {"intValue": row[2]}},
        {"key": "gen_ai.request.id", "value": {"stringValue": "a"}},
    ]
    start = str(1_700_000_000_000_000_000 + round(row[0] * 1e9))
    return {"name": name, "startTimeUnixNano": start, "attributes": attributes}


def spans(path: Path, indent: int | None = None) -> Path:
    # As a collector writes them: by end, the last first here; other spans stand between.
    told = [span((9.0, 1, 1), "engine_start"), *map(span, reversed(REQUESTS))]
    objects = [
        {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": part}]}]}
        for part in (told[:2], told[2:])
    ]
    if indent:
        objects = [{"resourceSpans": [each for o in objects for each in o["resourceSpans"]]}]
    path.write_text("\n".join(json.dumps(each, indent=indent) for each in objects) + "\n")
    return path


def spans_csv(path: Path) -> Path:
    head = "name,startTimeUnixNano,gen_ai.usage.prompt_tokens,gen_ai.usage.completion_tokens"
    rows = [f"llm_request,{round(1e18) + round(t * 1e9)},{a},{b}" for t, a, b in REQUESTS]
    path.write_text("\n".join([head, *reversed(rows), f"other,{round(1e18)},,"]) + "\n")
    return path


PARAMS = "SamplingParams(n=1, stop_token_ids=[128009], max_tokens=500)"
PREFIX = "(APIServer pid=7) INFO 12-31 23:59:{second:02d} [logger.py:41] "


def ids(n: int) -> str:
    return str(list(range(100, 100 + n)))


def log(path: Path) -> Path:
    """Older vLLM has all in one line, newer ones ids in a DEBUG line; answers come whole or in parts."""
    prompt = "'say prompt_token_ids: [1, 2] and output_token_ids: [3]'"
    lines = [
        "INFO 12-31 23:00:00 [api_server.py:1] vLLM API server version 0.11",
        PREFIX.format(second=1)
        + f"Received request cmpl-a-0: prompt: {prompt}, params: {PARAMS}, prompt_token_ids: {ids(100)}, "
        "prompt_embeds shape: None, lora_request: None.",
        PREFIX.format(second=1).replace("INFO", "DEBUG")
        + f"Request chatcmpl-b details: prompt: {prompt}, prompt_token_ids: {ids(30)}, "
        "prompt_embeds shape: None.",
        PREFIX.format(second=1)
        + f"Received request chatcmpl-b: params: {PARAMS}, lora_request: None.",
        "a line of something else",
        PREFIX.format(second=2) + f"Generated response cmpl-a: output: {prompt}, "
        f"output_token_ids: {ids(7)}, finish_reason: stop",
        PREFIX.format(second=2)
        + "Generated response chatcmpl-b (streaming complete): output: 'x', "
        "output_token_ids: None, finish_reason: streaming_complete",
        PREFIX.format(second=2) + "Generated response chatcmpl-b (streaming delta): output: 'x', "
        "output_token_ids: [5], finish_reason: None",
        # A year ends, and a request is never answered.
        f"INFO 01-01 00:00:02 logger.py:37] Received request c: params: {PARAMS}, "
        f"prompt_token_ids: {ids(4000)}, lora_request: None.",
        f"INFO 01-01 00:00:03 [logger.py:37] Received request d: params: {PARAMS}, "
        f"prompt_token_ids: {ids(9)}, lora_request: None.",
        "INFO 01-01 00:00:09 [logger.py:37] Generated response c: output: '', "
        f"output_token_ids: {tuple(range(250))}, finish_reason: stop",
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    "make, name, form",
    [
        (bench, "run.json", "vllm-bench"),
        (spans, "spans.jsonl", "otel"),
        (lambda path: spans(path, indent=2), "spans.json", "otel"),
        (spans_csv, "spans.csv", "otel"),
    ],
)
def test_files_with_exact_times_hold_the_requests(
    make: Callable[[Path], Path], name: str, form: str, tmp_path: Path
):
    path = make(tmp_path / name)
    assert detect_format(path) == form
    trace = read_trace(path)
    assert trace.format == form
    assert (trace.arrival_ps / 1e12).tolist() == pytest.approx([row[0] for row in REQUESTS])
    assert trace.input_tokens.tolist() == [row[1] for row in REQUESTS]
    assert trace.output_tokens.tolist() == [row[2] for row in REQUESTS]
    assert trace.dropped_zero_output == (1 if form == "vllm-bench" else 0)
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_trace(packed).input_tokens.tolist() == trace.input_tokens.tolist()


def test_a_log_has_whole_seconds_and_counts_token_ids(tmp_path: Path):
    path = log(tmp_path / "vllm.log")
    trace = read_trace(path)
    assert trace.format == "vllm-log"
    assert trace.input_tokens.tolist() == [100, 30, 4000]
    assert trace.output_tokens.tolist() == [7, 1, 250]
    assert trace.dropped_zero_output == 1  # the one that is not answered
    # Two in a second, evenly; then one in the middle of the third second of the new year.
    assert (trace.arrival_ps / 1e12).tolist() == pytest.approx([0.0, 0.5, 61.25])


def test_stats_tell_of_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert traces.main(["stats", str(log(tmp_path / "vllm.log"))]) == 0
    out = capsys.readouterr().out
    assert "(vllm-log); 1 rows with no output tokens left out" in out


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"input_lens": [1], "ttfts": [1]}', ":1: no list 'start_times'"),
        ('{"input_lens": [1], "output_lens": [1], "start_times": []}', "of different lengths"),
        ('{"input_lens": [1.5], "output_lens": [1], "start_times": [0]}', "input_lens = '1.5'"),
        ('{"input_lens": [1], "output_lens": [1], "start_times": ["x"]}', "start_times = 'x'"),
        ('{"input_lens": [1]}\n{"input_lens": [1]}\n', ":1: 2 results of the benchmark"),
        ('{"input_lens": [1}', ":1: not JSON"),
        ('{"resourceSpans": [{"scopeSpans": 3}]}', "scopeSpans: expected a list"),
        ('{"resourceSpans": []}', ":1: no requests"),
        ("startTimeUnixNano,gen_ai.usage.prompt_tokens\n1,2\n", "completion_tokens' is missing"),
        (
            "startTimeUnixNano,gen_ai.usage.prompt_tokens,gen_ai.usage.completion_tokens\n1,2,3\nx,2,3\n",
            ":3: startTimeUnixNano = 'x'",
        ),
        (
            "startTimeUnixNano,gen_ai.usage.prompt_tokens,gen_ai.usage.completion_tokens\n1,2\n",
            ":2: expected 3 fields, got 2",
        ),
        (
            "INFO 01-01 00:00:00 [a.py:1] Received request a: params: None, lora_request: None.\n",
            ":1: no prompt has its token ids; start vLLM with --enable-log-requests",
        ),
        (
            "INFO 02-30 00:00:00 [a.py:1] Received request a: params: None.\n",
            ":1: no time: 02-30",
        ),
    ],
)
def test_bad_files_are_refused_with_the_place(text: str, message: str, tmp_path: Path):
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(ValueError) as refused:
        read_trace(path)
    assert message in str(refused.value)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


# ---------------------------------------------------------------- Prometheus

FROM, STEP = 1_700_000_000.0, 10.0
ENDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


class Pods:
    """What vLLM's pods would have counted of known requests, asked as Prometheus is.

    Args:
        requests: (arrival, end, prompt, answer, pod) in seconds after FROM.
        absent: of a pod, (from, to) at which Prometheus has nothing of it.
        resets: of a pod, when its counters begin anew.
    """

    def __init__(
        self,
        requests: list[tuple[float, float, int, int, str]],
        absent: dict[str, list[tuple[float, float]]] | None = None,
        resets: dict[str, float] | None = None,
        models: tuple[str, ...] = ("llama",),
    ) -> None:
        self.requests, self.models = requests, models
        self.absent, self.resets = absent or {}, resets or {}
        self.asked: list[dict[str, str]] = []

    def value(self, metric: str, pod: str, at: float, end: float = np.inf) -> float | None:
        if any(a <= at < b for a, b in self.absent.get(pod, ())):
            return None
        mine = [r for r in self.requests if r[4] == pod]
        if metric == "vllm:num_requests_running":
            return sum(r[0] <= at < r[1] for r in mine)
        if metric == "vllm:num_requests_waiting":
            return 0.0
        since = self.resets.get(pod, -np.inf)
        ended = [r for r in mine if r[1] <= at and (at < since or r[1] > since)]
        tokens = [r[2] if "prompt" in metric else r[3] for r in ended]
        return float(sum(tokens)) if metric.endswith("_sum") else sum(t <= end for t in tokens)

    def __call__(self, path: str, parameters: dict[str, str]) -> Any:
        assert path == "/api/v1/query_range"
        self.asked.append(parameters)
        metric = parameters["query"].partition("{")[0]
        times = np.arange(
            float(parameters["start"]), float(parameters["end"]) + 1e-6, float(parameters["step"])
        )
        ends = (*ENDS, np.inf) if metric.endswith("_bucket") else (np.inf,)
        result = []
        for pod in sorted({r[4] for r in self.requests}):
            for end in ends:
                found = [(t, self.value(metric, pod, t - FROM, end)) for t in times]
                values = [[t, str(v)] for t, v in found if v is not None]
                labels = {"__name__": metric, "pod": pod, "model_name": self.models[-1]}
                if len(self.models) > 1 and pod == "a":
                    labels["model_name"] = self.models[0]
                if metric.endswith("_bucket"):
                    labels["le"] = "+Inf" if end == np.inf else f"{end:.1f}"
                if values:
                    result.append({"metric": labels, "values": values})
        return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def service(n: int = 400, seed: int = 3, horizon_s: float = 580.0) -> list[Any]:
    """Requests of two pods that all come and end in the ten minutes from FROM on."""
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.uniform(1.0, horizon_s, n))
    end = np.minimum(arrival + rng.exponential(8.0, n), 599.0)
    prompts, answers = rng.integers(1, 4000, n), rng.integers(1, 900, n)
    pods = rng.choice(["a", "b"], n)
    rows = zip(arrival, end, prompts, answers, pods, strict=True)
    return [(float(a), float(e), int(p), int(o), str(pod)) for a, e, p, o, pod in rows]


def drawn_from(pods: Pods, **changes: Any) -> Any:
    words = {"from_s": FROM, "to_s": FROM + 600, "step_s": STEP, **changes}
    return trace_of_metrics("http://localhost:1", ask=pods, **words)


def test_arrivals_are_counted_and_tokens_add_up():
    rows = service()
    drawn = drawn_from(Pods(rows))
    came, _ = np.histogram([r[0] for r in rows], np.arange(0, 601, STEP))
    found, _ = np.histogram(drawn.arrival_s, np.arange(0, 601, STEP))
    assert found.tolist() == came.tolist()
    assert drawn.input_tokens.sum() == sum(r[2] for r in rows)
    assert drawn.output_tokens.sum() == sum(r[3] for r in rows)
    assert (drawn.ended, drawn.open_at_start, drawn.open_at_end, drawn.gaps) == (400, 0, 0, 0)
    # In each bucket as many as there were.
    edges = [0, *ENDS]
    for drawn_lengths, true in ((drawn.input_tokens, 2), (drawn.output_tokens, 3)):
        there, _ = np.histogram([r[true] - 0.5 for r in rows], edges)
        assert np.histogram(drawn_lengths - 0.5, edges)[0].tolist() == there.tolist()


def test_a_seed_decides_what_is_drawn():
    pods = Pods(service())
    same, other = drawn_from(pods, seed=0), drawn_from(pods, seed=1)
    again = drawn_from(pods, seed=0)
    assert same.input_tokens.tolist() == again.input_tokens.tolist()
    assert same.arrival_s.tolist() == again.arrival_s.tolist()
    assert same.input_tokens.tolist() != other.input_tokens.tolist()


def test_what_is_open_at_the_ends_is_counted_where_it_came():
    rows = service()
    # From the second minute to the eighth.
    drawn = drawn_from(Pods(rows), from_s=FROM + 120, to_s=FROM + 480)
    came = [r for r in rows if 120 < r[0] <= 480]
    assert len(drawn) == len(came)
    assert drawn.open_at_start == sum(r[0] <= 120 < r[1] for r in rows) > 0
    assert drawn.open_at_end == sum(r[0] <= 480 < r[1] for r in rows) > 0
    assert drawn.input_tokens.mean() == pytest.approx(np.mean([r[2] for r in came]), rel=0.1)


def test_a_counter_that_begins_anew_and_a_missed_scrape_lose_nothing():
    rows = service()
    quiet = drawn_from(Pods(rows))
    # Pod b starts again just after a scrape, and one of a is missed.
    disturbed = drawn_from(Pods(rows, {"a": [(200, 230)]}, {"b": 300.001}))
    assert disturbed.ended == quiet.ended
    assert disturbed.input_tokens.sum() == quiet.input_tokens.sum()
    assert disturbed.gaps > 0


def test_a_pod_that_comes_later_counts_from_zero_and_one_that_goes_takes_what_it_ran():
    rows = [r for r in service() if r[4] == "a" or r[0] > 260]
    joined = drawn_from(Pods(rows, {"b": [(0, 280)]}))
    assert len(joined) == len(rows)
    gone = drawn_from(Pods(rows, {"b": [(0, 280), (400, 601)]}))
    lost = [r for r in rows if r[4] == "b" and r[1] > 390]
    assert len(gone) == len(rows) - len(lost)


def test_long_ranges_are_asked_in_parts():
    pods = Pods([(1.0, 2.0, 10, 5, "a"), (25_000.5, 25_002.0, 40, 6, "a")])
    drawn = drawn_from(pods, to_s=FROM + 30_000, step_s=2.0)
    assert drawn.input_tokens.tolist() == [10, 40]
    assert drawn.arrival_s[1] == pytest.approx(25_001, abs=1.0)
    assert len(pods.asked) == 12
    assert all(
        (float(p["end"]) - float(p["start"])) / float(p["step"]) < 11_000 for p in pods.asked
    )


@pytest.mark.parametrize(
    "pods, changes, message",
    [
        (Pods([]), {}, "no series vllm:request_prompt_tokens_bucket"),
        (Pods(service(), models=("llama", "qwen")), {}, "several models: llama, qwen"),
        (Pods([(700.0, 701.0, 1, 1, "a")]), {}, "no request arrived"),
        (Pods([(100.0, 701.0, 1, 1, "a")]), {}, "no request ended"),
        (Pods([]), {"to_s": FROM}, "must be 1 to"),
        (Pods([]), {"selector": "a}b"}, "label matchers"),
        (Pods([]), {"from_s": np.nan}, "from = nan: must be a number"),
        (Pods([]), {"to_s": np.inf}, "to = inf: must be a number"),
        (Pods([]), {"to_s": 1e300}, "must be 1 to"),
        (Pods([]), {"step_s": 0.0}, "step = 0: must be a number"),
        (Pods([]), {"step_s": np.nan}, "step = nan: must be a number"),
    ],
)
def test_what_cannot_be_made_a_trace_is_refused(pods: Pods, changes: dict[str, Any], message: str):
    with pytest.raises(PrometheusError, match=message):
        drawn_from(pods, **changes)


@pytest.mark.parametrize("value", ["+Inf", "-Inf", "1e300", "-5", "abc", "1e15"])
@pytest.mark.parametrize("metric", ["running", "prompt_tokens_bucket", "generation_tokens_sum"])
def test_values_that_are_no_counts_are_refused(metric: str, value: str):
    pods = Pods(service())

    def ask(path: str, parameters: dict[str, str]) -> Any:
        answer = pods(path, parameters)
        if metric in parameters["query"]:
            answer["data"]["result"][0]["values"][3][1] = value
        return answer

    with pytest.raises(PrometheusError, match=metric) as told:
        trace_of_metrics("http://localhost:1", FROM, FROM + 600, STEP, ask=ask)
    assert "\n" not in str(told.value)


def crowd(rise: float, tokens: float = 10.0, le: str = "10", running: float = 0.0) -> Any:
    """Answers of a pod at which `rise` requests end in the second step."""

    def ask(path: str, parameters: dict[str, str]) -> Any:
        query, start = parameters["query"], float(parameters["start"])
        if "_bucket" in query:
            labels, last = [{"le": le}, {"le": "+Inf"}], rise
        else:
            labels, last = [{}], running if "num_requests" in query else tokens
        values = [[start + STEP * k, str(last if k > 1 else 0)] for k in range(4)]
        result = [{"metric": each, "values": values} for each in labels]
        return {"status": "success", "data": {"result": result}}

    return ask


@pytest.mark.parametrize(
    "ask, message",
    [
        (crowd(1e12), "1,000,000,000,000 requests that ended: at most 10,000,000"),
        (crowd(5, running=1.2e7), "24,000,000 requests that run and wait at once"),
        (crowd(5, tokens=1e14), "5 requests that ended in a step have 100,000,000,000,000 tokens"),
        (crowd(5, le="1e300"), "without a number of tokens le"),
        (crowd(5, le="nan"), "without a number of tokens le"),
        (
            lambda *_: {"status": "success", "warnings": ["a store is away"], "data": {}},
            "a store is away",
        ),
        (
            lambda *_: {
                "status": "success",
                "data": {"result": [{"metric": {}, "values": [[FROM - 60, "1"]]}]},
            },
            "which was not asked for",
        ),
    ],
)
def test_what_no_trace_holds_is_refused(ask: Any, message: str):
    with pytest.raises(PrometheusError, match=message):
        trace_of_metrics("http://localhost:1", FROM, FROM + 30, STEP, ask=ask)


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("now", 5000.0),
        ("now-2h", 5000.0 - 7200),
        ("1700000000.5", 1_700_000_000.5),
        ("2023-11-14T22:13:20Z", 1_700_000_000.0),
        ("2023-11-14T22:13:20", 1_700_000_000.0),
        ("2023-11-15T00:13:20+02:00", 1_700_000_000.0),
    ],
)
def test_times(text: str, seconds: float):
    assert read_time(text, 5000.0) == seconds


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "now-x"])
def test_no_times(text: str):
    with pytest.raises(ValueError):
        read_time(text, 5000.0)


@pytest.mark.parametrize("text", ["", "0", "15 s", "-5m", "h", "now", "9" * 400])
def test_no_durations(text: str):
    with pytest.raises(ValueError):
        read_duration(text)


@pytest.fixture
def prometheus() -> Iterator[Any]:
    """A server that answers as Prometheus does; `answer` may be replaced."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, words = self.path.partition("?")
            status, text = running.answer(path, dict(urllib.parse.parse_qsl(words)))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        pods = Pods(service())
        running.answer = lambda path, words: (200, json.dumps(pods(path, words)))
        running.pods = pods
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def ask(prometheus: Any, *words: str) -> list[str]:
    url = f"http://127.0.0.1:{prometheus.server_port}"
    return [f"prometheus={url}", f"from={FROM:.0f}", f"to={FROM + 600:.0f}", "step=10s", *words]


def test_the_command_writes_a_trace_and_says_what_is_drawn(
    prometheus: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "new" / "trace.csv"
    words = ask(prometheus, f"out={out}", 'selector=namespace="prod"')
    assert traces.main(words) == 0
    told = capsys.readouterr().out
    assert "400 requests arrived in 600 s" in told
    assert "drawn with seed 0" in told
    trace = read_trace(out)
    assert trace.format == "plain"
    assert len(trace) == 400
    assert trace.input_tokens.sum() == sum(r[2] for r in prometheus.pods.requests)
    assert all(p["query"].endswith('{namespace="prod"}') for p in prometheus.pods.asked)


@pytest.mark.parametrize(
    "answer, message",
    [
        ((400, '{"status": "error", "error": "bad query"}'), "HTTP 400: bad query"),
        ((200, "<html>"), "is no Prometheus"),
        ((200, '{"status": "error", "error": "too much"}'), "too much"),
        ((200, '{"status": "success"}'), "not an answer of Prometheus"),
    ],
)
def test_a_refusal_is_one_line_and_nothing_is_written(
    prometheus: Any, answer: tuple[int, str], message: str, tmp_path: Path, refused: Any
):
    prometheus.answer = lambda path, words: answer
    assert message in refused(traces.main, ask(prometheus, f"out={tmp_path / 'a.csv'}"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words, message",
    [
        (["prometheus=http://x"], "from= is missing"),
        (["prometheus=x", "from=now-1h", "to=now", "out=a.csv"], "must be an address"),
        (["prometheus=http://u:p@x", "from=now-1h", "to=now", "out=a.csv"], "must be an address"),
        (["prometheus=http://x", "from=then", "to=now", "out=a.csv"], "from = 'then'"),
        (["prometheus=http://x", "from=nan", "to=now", "out=a.csv"], "from = 'nan'"),
        (["prometheus=http://x", "from=now-1h", "to=inf", "out=a.csv"], "to = 'inf'"),
        (["prometheus=http://x", "from=now-1h", "to=now", "step=0", "out=a.csv"], "step = '0'"),
        (["prometheus=http://x", "from=now-1h", "to=now", "out=a.json"], "must end in .csv"),
        (["prometheus=http://127.0.0.1:9", "from=now-1h", "to=now", "out=a.csv"], "no answer"),
        (["from=now-1h", "to=now"], "unknown command 'from=now-1h'"),
    ],
)
def test_slips_of_the_command(
    words: list[str], message: str, refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert message in refused(traces.main, words)
    assert list(tmp_path.iterdir()) == []


class Counting:
    """A pod that counts with prometheus_client, as vLLM does."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Gauge, Histogram

        self._registry = CollectorRegistry()
        labels = ("model_name", "engine")

        def made(kind: Any, name: str, **words: Any) -> Any:
            one = kind(f"vllm:{name}", name, labels, registry=self._registry, **words)
            return one.labels("llama", "0")

        self.running = made(Gauge, "num_requests_running")
        self.waiting = made(Gauge, "num_requests_waiting")
        self.prompts = made(Histogram, "request_prompt_tokens", buckets=ENDS)
        self.outputs = made(Histogram, "request_generation_tokens", buckets=ENDS)

    def collect(self) -> Any:
        return self._registry.collect()

    def end(self, prompt: int, answer: int) -> None:
        self.running.dec()
        self.prompts.observe(prompt)
        self.outputs.observe(answer)


@pytest.mark.slow
@pytest.mark.skipif(BINARY is None, reason="no Prometheus server (make prometheus)")
def test_a_real_prometheus_gives_the_requests_that_were_counted(tmp_path: Path):
    """Twelve seconds of two pods, one of which starts again in the middle."""
    rng = np.random.default_rng(0)
    ended: list[tuple[int, int]] = []
    with running(str(BINARY), tmp_path) as (prometheus, pods):
        pods.pods = {"a": Counting(), "b": Counting()}  # type: ignore[dict-item]
        pods.list_targets()
        wait_until(
            lambda: set(prometheus.query("vllm:num_requests_running")) == {"a", "b"},
            60.0,
            "scrapes",
        )
        from_s, seen = time.time(), "vllm:request_prompt_tokens_count"
        for part in range(2):
            for _ in range(20):
                for pod in pods.pods.values():
                    assert pod is not None
                    pod.running.inc(3)
                time.sleep(0.2)
                for pod in pods.pods.values():
                    for _ in range(3):
                        ended.append((int(rng.integers(1, 3000)), int(rng.integers(1, 500))))
                        pod.end(*ended[-1])
            wait_until(lambda: prometheus.query(seen)["a"] == len(ended) / 2, 60.0, "scrapes")
            if part == 0:
                time.sleep(1.5)  # b has been scraped as well
                pods.pods["b"] = Counting()  # type: ignore[assignment]
        time.sleep(1.5)
        drawn = trace_of_metrics(prometheus.url, from_s, time.time(), 1.0, 'namespace="llm"')
    assert (drawn.ended, len(drawn)) == (len(ended), len(ended))
    assert drawn.input_tokens.sum() == sum(prompt for prompt, _ in ended)
    assert drawn.output_tokens.sum() == sum(answer for _, answer in ended)
