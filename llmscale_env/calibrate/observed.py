"""What a client saw of a serving engine, read from the files that people have.

| file | known by |
|---|---|
| `vllm bench serve --save-result --save-detailed` (JSON, one object or one per line) | `ttfts`, `itls` |
| GuideLLM (JSON, versions 0.2 to 0.8) | `benchmarks` |
| OpenTelemetry spans of vLLM as CSV | columns named after the spans' attributes |
| plain CSV | `arrival_time_s`, `input_tokens`, `output_tokens`, `ttft_s`, `e2e_s` |

Formats read off vLLM 0.26 (`benchmarks/serve.py`, `tracing/otel.py`) and GuideLLM 0.2.1 to 0.8.1.
docs/calibrate.md says what each of them lacks.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env._reading import Unreadable, parse_json

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_TOKENS = 2**27
"""Of a prompt or an answer; more is a slip, and the engines' sums stay within 64 bits."""

MOST_SECONDS = 2 * 86_400
"""Of all runs of a file together: with pauses between them it fits the simulator's clock."""

LARGEST_FILE = 2**28


class ObservedError(ValueError):
    """A file of observed requests cannot be used; the message names the file, the place and the field."""


@dataclass(frozen=True)
class Observed:
    """Requests that a client sent, and when it got their tokens.

    Attributes:
        name: the file's name.
        source: its format, in words.
        run: (n,) the run that each belongs to; a server is empty when a run begins.
        arrival_s: (n,) when it was sent, the first of its run at 0; ascending within a run.
        input_tokens, output_tokens: (n,) lengths.
        ttft_s, e2e_s: (n,) from sending to the first and to the last token.
        believed: (n,) whether these latencies are to be fitted or scored. Warm-up requests and those that
            were cut off are load and no more; latencies of the latter are NaN.
        run_names: what the file calls its runs: the column `run`, or the numbers of results and benchmarks.
        remarks: what was left out, and what the format hides.
    """

    name: str
    source: str
    run: Ints
    arrival_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    ttft_s: Floats
    e2e_s: Floats
    believed: NDArray[np.bool_]
    run_names: tuple[str, ...] = ("",)
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.run)

    def only(self, names: Sequence[str]) -> Observed:
        """The requests of some runs.

        Raises:
            ObservedError: no run of that name.
        """
        for name in names:
            if name not in self.run_names:
                known = ", ".join(map(repr, self.run_names))
                raise ObservedError(f"{self.name}: no run {name!r}; there are {known}")
        wanted = [k for k, name in enumerate(self.run_names) if name in names]
        rows = np.isin(self.run, wanted)
        columns = {
            column: getattr(self, column)[rows]
            for column in ("arrival_s", "input_tokens", "output_tokens", "ttft_s", "e2e_s", "believed")
        }  # fmt: skip
        chosen = tuple(self.run_names[k] for k in wanted)
        return replace(
            self, run=np.searchsorted(wanted, self.run[rows]), run_names=chosen, **columns
        )

    @property
    def tpot_s(self) -> Floats:
        """(n,) time per output token after the first; NaN where there is but one token."""
        after = np.where(self.output_tokens > 1, self.output_tokens - 1, np.nan)
        seconds: Floats = (self.e2e_s - self.ttft_s) / after
        return seconds


@dataclass
class _Rows:
    """Requests as they are read, run by run."""

    name: str
    rows: list[tuple[int, float, int, int, float, float, bool]] = field(default_factory=list)
    run_names: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)

    def add(
        self, where: str, run: int, arrival: Any, tokens: tuple[Any, Any], ttft: Any, e2e: Any,
        *, believed: bool = True,
    ) -> None:  # fmt: skip
        """One request; `believed=False`: it was cut off, so it is load only."""
        sent = _number(where, "arrival", arrival, -math.inf)
        given, made = (
            _count(where, f"{which} tokens", n)
            for which, n in zip(("input", "output"), tokens, strict=True)
        )
        if not believed:
            self.rows.append((run, sent, given, made, math.nan, math.nan, False))
            return
        first, last = _number(where, "TTFT", ttft, 0.0), _number(where, "E2E", e2e, 0.0)
        # The clock of a client may step back by less than it shows.
        if last < first - 1e-6:
            raise ObservedError(f"{where}: E2E = {last:g} s, must not be below TTFT = {first:g} s")
        self.rows.append((run, sent, given, made, first, max(first, last), True))

    def observed(self, source: str, warm_up: int) -> Observed:
        """All of them, those of a run by arrival.

        Raises:
            ObservedError: none is left to be fitted, or the runs are longer than `MOST_SECONDS`.
        """
        rows = sorted(self.rows, key=lambda row: row[:2])
        usable = sum(row[-1] for row in rows)
        if usable - warm_up < 1:
            raise ObservedError(
                f"{self.name}: {usable} requests with latencies, of which the first {warm_up} are warm-up: "
                "none is left"
            )
        remarks = [f"{n} left out: {why}" for why, n in self.dropped.items()] + self.remarks
        # A run of which nothing is left is none.
        number, run = np.unique([row[0] for row in rows], return_inverse=True)
        sent = np.asarray([row[1] for row in rows])
        for k in range(len(number)):
            sent[run == k] -= sent[run == k][0]
        believed = np.asarray([row[-1] for row in rows])
        believed[np.flatnonzero(believed)[:warm_up]] = False
        e2e = np.asarray([row[5] for row in rows])
        lasts = sum(
            float(np.nanmax((sent + np.nan_to_num(e2e))[run == k])) for k in range(len(number))
        )
        if lasts > MOST_SECONDS:
            raise ObservedError(
                f"{self.name}: its runs last {lasts:g} s, must be at most {MOST_SECONDS} s; arrivals are in "
                "seconds, those of OpenTelemetry in nanoseconds"
            )
        return Observed(
            name=self.name,
            source=source,
            run=run,
            arrival_s=sent,
            input_tokens=np.asarray([row[2] for row in rows], dtype=np.int64),
            output_tokens=np.asarray([row[3] for row in rows], dtype=np.int64),
            ttft_s=np.asarray([row[4] for row in rows]),
            e2e_s=e2e,
            believed=believed,
            run_names=tuple(self.run_names[k] for k in number),
            remarks=tuple(remarks),
        )


def read_observed(path: Path, *, warm_up: int = 1) -> Observed:
    """Requests of a file in one of the formats above; `.gz` is unpacked.

    Args:
        path: the file.
        warm_up: so many requests, the first of the file, are load only: a server's first ones are slow.

    Raises:
        ObservedError: the file cannot be read, is of no known format or says something impossible.
    """
    if path.name.removesuffix(".gz").endswith((".json", ".jsonl")):
        return _read_json(path, warm_up)
    return _read_csv(path, warm_up)


# --- CSV -----------------------------------------------------------------------------------------

COLUMNS: dict[str, dict[str, float]] = {
    "arrival": {
        "arrival_time_s": 1.0, "arrival_s": 1.0, "startTimeUnixNano": 1e-9, "start_unix_ns": 1e-9,
    },
    "input": {"input_tokens": 1, "input": 1, "gen_ai.usage.prompt_tokens": 1},
    "output": {"output_tokens": 1, "output": 1, "gen_ai.usage.completion_tokens": 1},
    "TTFT": {"ttft_s": 1.0, "ttft_ms": 1e-3, "gen_ai.latency.time_to_first_token": 1.0},
    "E2E": {"e2e_s": 1.0, "e2e_ms": 1e-3, "gen_ai.latency.e2e": 1.0},
}  # fmt: skip
"""Of each quantity the columns that may hold it, with the factor to seconds or tokens."""

SPAN = "llm_request"
"""Name of vLLM's spans of requests; its start-up spans are in the same file."""


def _read_csv(path: Path, warm_up: int) -> Observed:
    lines = csv.reader(io.StringIO(_text(path), newline=""))
    try:
        header = [name.strip() for name in next(lines, [])]
        found = {what: _column(path.name, header, what) for what in COLUMNS}
        spans = any(header[i].startswith("gen_ai.") for i, _ in found.values())
        rows = _Rows(path.name)
        for values in lines:
            if not values:
                continue
            where = f"{path.name}: line {lines.line_num}"
            if len(values) != len(header):
                raise ObservedError(f"{where}: expected {len(header)} values, got {len(values)}")
            row = dict(zip(header, values, strict=True))
            if spans and row.get("name", SPAN) != SPAN:
                rows.dropped[f"spans that are not named {SPAN}"] += 1
                continue
            name = row.get("run", "")
            if name not in rows.run_names:
                rows.run_names.append(name)
            run = rows.run_names.index(name)
            got = {
                what: _scaled(where, header[i], values[i], scale)
                for what, (i, scale) in found.items()
            }
            tokens = (got["input"], got["output"])
            rows.add(where, run, got["arrival"], tokens, got["TTFT"], got["E2E"])
    except csv.Error as error:
        raise ObservedError(f"{path.name}: line {lines.line_num}: {error}") from None
    if spans:
        rows.remarks.append(
            "the server's clock, from its front end on: network and HTTP are not in these latencies"
        )
    return rows.observed("OpenTelemetry spans as CSV" if spans else "CSV", warm_up)


def _column(name: str, header: Sequence[str], what: str) -> tuple[int, float]:
    """Place and factor of the first column that holds a quantity."""
    for column, scale in COLUMNS[what].items():
        if header.count(column) > 1:
            raise ObservedError(f"{name}: line 1: column {column} is there twice")
        if column in header:
            return header.index(column), scale
    raise ObservedError(
        f"{name}: line 1: no column for {what}; expected one of {', '.join(COLUMNS[what])}"
    )


def _scaled(where: str, column: str, text: str, scale: float) -> float:
    """A number in seconds or tokens."""
    try:
        return float(text) * scale
    except ValueError:
        raise ObservedError(f"{where}: {column} = {text!r}, expected a number") from None


def _text(path: Path) -> str:
    """A file's text, unpacked."""
    try:
        if not path.is_file():
            raise ObservedError(f"observed = {path}: no such file")
        if path.stat().st_size > LARGEST_FILE:
            raise ObservedError(f"observed = {path}: longer than {LARGEST_FILE:,} bytes")
        if path.suffix == ".gz":
            with gzip.open(path) as packed:
                content = packed.read(LARGEST_FILE + 1)
            if len(content) > LARGEST_FILE:
                raise ObservedError(f"observed = {path}: longer than {LARGEST_FILE:,} bytes")
        else:
            content = path.read_bytes()
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ObservedError(f"observed = {path}: byte {error.start} is no text in UTF-8") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        if isinstance(error, ObservedError):
            raise
        what = getattr(error, "strerror", None) or error
        raise ObservedError(f"observed = {path}: cannot be read ({what})") from None


# --- JSON ----------------------------------------------------------------------------------------


def _read_json(path: Path, warm_up: int) -> Observed:
    text = _text(path)
    lines = [line for line in text.splitlines() if line.strip()]
    # `--append-result` writes one object a line.
    each = len(lines) > 1 and all(line.startswith("{") and line.endswith("}") for line in lines)
    try:
        objects = [parse_json(part) for part in (lines if each else [text])]
    except Unreadable as error:
        raise ObservedError(f"observed = {path}: {error}") from None
    rows = _Rows(path.name, run_names=[str(k) for k in range(len(objects))])
    if len(objects) == 1 and isinstance(objects[0], dict) and "benchmarks" in objects[0]:
        return _guidellm(objects[0], rows, warm_up)
    for k, content in enumerate(objects):
        where = path.name if len(objects) == 1 else f"{path.name}: object {k + 1}"
        _vllm_bench(content, where, k, rows)
    return rows.observed("vllm bench serve", warm_up)


DETAILED = ("input_lens", "output_lens", "ttfts", "itls", "start_times")


def _vllm_bench(content: Any, where: str, run: int, rows: _Rows) -> None:
    """The requests of one result of `vllm bench serve`, in seconds."""
    if not isinstance(content, dict):
        raise ObservedError(f"{where}: expected an object of vllm bench serve or GuideLLM")
    missing = [key for key in DETAILED if key not in content]
    if missing:
        raise ObservedError(
            f"{where}: no {', '.join(missing)}; expected a result of vllm bench serve with --save-result "
            "--save-detailed (start_times: vLLM 0.11 or later), or of GuideLLM"
        )
    lists = {key: _list(where, key, content[key]) for key in DETAILED}
    lists["errors"] = _list(where, "errors", content.get("errors") or [""] * len(lists["ttfts"]))
    sizes = {key: len(values) for key, values in lists.items()}
    if len(set(sizes.values())) != 1:
        raise ObservedError(f"{where}: lists of different lengths: {sizes}")
    for i in range(sizes["ttfts"]):
        here = f"{where}: request {i}"
        given, made, ttft, gaps, sent, error = (lists[key][i] for key in (*DETAILED, "errors"))
        if error:
            rows.dropped["failed"] += 1
            continue
        # Chat answers with HTTP 200 and no token count as a success there.
        if not ttft or not made:
            rows.dropped["without any token"] += 1
            continue
        gaps = [_number(here, "itls", gap, 0.0) for gap in _list(here, "itls", gaps)]
        first = _number(here, "ttfts", ttft, 0.0)
        rows.add(here, run, sent, (given, made), first, first + sum(gaps))
    if content.get("max_concurrency"):
        rows.remarks.append(
            f"max_concurrency = {content['max_concurrency']}: sent when others had ended; replayed at the "
            "times at which they were sent"
        )
    if content.get("request_rate") in ("inf", math.inf):
        rows.remarks.append("request_rate = inf: all at once")


def _guidellm(content: Mapping[str, Any], rows: _Rows, warm_up: int) -> Observed:
    """The requests of every benchmark of a GuideLLM file; each is a run of its own."""
    benchmarks = _list(rows.name, "benchmarks", content["benchmarks"])
    rows.run_names = [str(k) for k in range(len(benchmarks))]
    for k, benchmark in enumerate(benchmarks):
        where = f"{rows.name}: benchmarks[{k}]"
        groups = _object(where, "requests", _object(where, "", benchmark).get("requests"))
        for status in ("successful", "incomplete", "errored"):
            listed = _list(where, f"requests.{status}", groups.get(status) or [])
            totals = benchmark.get("request_totals")
            if isinstance(totals, dict) and (totals.get(status) or 0) > len(listed):
                raise ObservedError(
                    f"{where}: request_totals.{status} = {totals[status]}, but {len(listed)} are listed; the "
                    "load cannot be replayed from a sample"
                )
            for i, request in enumerate(listed):
                here = f"{where}.requests.{status}[{i}]"
                if status == "errored":
                    rows.dropped["errored"] += 1
                else:
                    _guidellm_request(here, k, _object(here, "", request), status, rows)
    return rows.observed("GuideLLM", warm_up)


_TIMES = {
    "sent": ("request_start", "start_time", "resolve_start"),
    "first": ("first_token_iteration", "first_iteration", "first_token_time"),
    "last": ("last_token_iteration", "last_iteration", "last_token_time", "request_end", "end_time"),
}  # fmt: skip
"""Names of a request's times over GuideLLM's versions, Unix seconds."""


def _guidellm_request(
    where: str, run: int, request: Mapping[str, Any], status: str, rows: _Rows
) -> None:
    def part(of: Mapping[str, Any], key: str) -> dict[str, Any]:
        return _object(where, key, of.get(key) or {})

    timings = {**request, **part(part(request, "info"), "timings")}
    times = {
        what: next((timings[n] for n in names if timings.get(n) is not None), None)
        for what, names in _TIMES.items()
    }
    tokens = tuple(
        _first(request.get(f"{kind}_tokens"), part(request, f"{side}_metrics").get("text_tokens"))
        for kind, side in (("prompt", "input"), ("output", "output"))
    )  # fmt: skip
    cut_off = status == "incomplete"
    if times["sent"] is None or tokens[0] is None or (cut_off and not tokens[1]):
        if not cut_off:
            raise ObservedError(f"{where}: no time of sending or no prompt_tokens")
        rows.dropped["cut off before the first token"] += 1
        return
    sent = _number(where, "request_start", times["sent"], 0.0)
    if cut_off:
        rows.add(where, run, sent, (tokens[0], tokens[1]), None, None, believed=False)
        return
    if times["first"] is None or not tokens[1]:
        rows.dropped["without any token"] += 1
        return
    first = _number(where, "first_token_iteration", times["first"], 0.0)
    last = _number(where, "last_token_iteration", _first(times["last"], first), 0.0)
    rows.add(where, run, sent, (tokens[0], tokens[1]), first - sent, last - sent)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _list(where: str, key: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ObservedError(f"{where}: {key}: expected a list, got {type(value).__name__}")
    return value


def _object(where: str, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ObservedError(f"{where}: {key}{': ' if key else ''}expected an object")
    return value


def _number(where: str, name: str, value: Any, low: float) -> float:
    """A finite number of at least `low`."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or value < low:
        at_least = "" if low == -math.inf else f" of at least {low:g}"
        raise ObservedError(f"{where}: {name} = {value!r}, expected a finite number{at_least}")
    return float(value)


def _count(where: str, name: str, value: Any) -> int:
    number = _number(where, name, value, 1.0)
    if number != int(number) or number > MOST_TOKENS:
        raise ObservedError(
            f"{where}: {name} = {value!r}, expected a whole number in 1..{MOST_TOKENS}"
        )
    return int(number)


def busy_periods(observed: Observed) -> Ints:
    """(n,) number of the busy period in which each request arrived.

    A period ends when every request sent before has ended, as the client saw it. Requests that were cut off
    have no known end: they keep their period open up to the end of their run.
    """
    ends = observed.arrival_s + np.where(np.isnan(observed.e2e_s), np.inf, observed.e2e_s)
    period = np.zeros(len(observed), dtype=np.int64)
    latest = -math.inf
    for before, now in pairwise(range(len(observed))):
        if observed.run[before] != observed.run[now]:
            period[now], latest = period[before] + 1, -math.inf
            continue
        latest = max(latest, ends[before])
        period[now] = period[before] + (observed.arrival_s[now] >= latest)
    return period
