"""What vLLM writes of its requests, as arrivals and lengths.

- `vllm-bench`: the JSON of `vllm bench serve --save-result --save-detailed`.
- `otel`: OpenTelemetry spans of `vllm serve --otlp-traces-endpoint`, as a collector writes them: OTLP JSON
  (one object, or one per line), or a CSV with a span per line.
- `vllm-log`: the log of `vllm serve --enable-log-requests --enable-log-outputs`, with
  VLLM_LOGGING_LEVEL=DEBUG.

Read off vLLM 0.9 to 0.26 (`benchmarks/serve.py`, `tracing/otel.py`, `entrypoints/logger.py`). Each reader
gives times in nanoseconds since some fixed instant, and lengths in tokens; 0 where a request has none.
"""

from __future__ import annotations

import csv
import datetime
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from io import TextIOBase
from typing import Any

import numpy as np
from numpy.typing import NDArray

SERVED = ("vllm-bench", "otel", "vllm-log")
"""Names of the formats."""

SPAN = "llm_request"
"""Name of vLLM's spans of requests; a collector's file has others beside them."""

_START = ("startTimeUnixNano", "start_unix_ns")
_INPUT = ("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens")
_OUTPUT = ("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens")
"""Attributes of spans: vLLM's names, and those of OpenTelemetry's later conventions."""

_MOST_TOKENS = 2**31 - 1
_MOST_NS = 2**62

Columns = dict[str, NDArray[np.int64]]


class NotServed(ValueError):
    """A file that is not as its format says; one line with the place, without the file's name."""


def detect(start: str) -> str | None:
    """Which of `SERVED` a file is that begins with this text; None: none of them."""
    if start.lstrip().startswith("{"):
        if '"resourceSpans"' in start:
            return "otel"
        return "vllm-bench" if '"input_lens"' in start or '"ttfts"' in start else None
    names = {name.strip() for name in start.partition("\n")[0].split(",")}
    if names & {*_INPUT, *_OUTPUT}:
        return "otel"
    return "vllm-log" if _LINE.search(start) else None


def read_served(lines: TextIOBase, form: str, max_rows: int | None = None) -> Columns:
    """Columns `ns`, `input` and `output` of a file, in its order.

    Args:
        lines: the text, from its beginning.
        form: one of `SERVED`.
        max_rows: no more than the first requests of the file.

    Raises:
        NotServed: malformed, or without lengths; says how to have vLLM write them.
    """
    rows = {"vllm-bench": _bench, "otel": _spans, "vllm-log": _log}[form](lines)
    found = list(rows)[:max_rows]
    if not found:
        raise NotServed("1: no requests")
    columns = np.array(found, dtype=np.int64)
    return {"ns": columns[:, 0], "input": columns[:, 1], "output": columns[:, 2]}


Rows = Iterator[tuple[int, int, int]]


def _tokens(where: str, name: str, value: Any) -> int:
    """A whole number of tokens, 0 or more."""
    try:
        number = float(value)
        if 0 <= number <= _MOST_TOKENS and number == int(number) and not isinstance(value, bool):
            return int(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise NotServed(
        f"{where}: {name} = {str(value)[:60]!r}: expected a whole number of tokens, 0 or more"
    )


# --- the benchmark's result ---------------------------------------------------------------------------


def _bench(lines: TextIOBase) -> Rows:
    """Of `vllm bench serve`; seconds of the client's clock, at which it sent."""
    text = lines.read()
    results = [line for line in text.splitlines() if line.strip()]
    if len(results) > 1 and all(r.startswith("{") and r.rstrip().endswith("}") for r in results):
        raise NotServed(
            f"1: {len(results)} results of the benchmark, a line each; a trace is one of them: keep its line"
        )
    content = _json("1", text)
    wanted = ("start_times", "input_lens", "output_lens")
    lists = {name: content.get(name) for name in wanted}
    for name, values in lists.items():
        if not isinstance(values, list):
            raise NotServed(
                f"1: no list {name!r}; expected a result of vllm bench serve with --save-result "
                "--save-detailed (start_times: of vLLM 0.11 or later)"
            )
    starts, inputs, outputs = (lists[name] or [] for name in wanted)
    errors = content.get("errors") or [""] * len(starts)
    if not len(starts) == len(inputs) == len(outputs) == len(errors):
        raise NotServed(
            "1: start_times, input_lens, output_lens and errors are of different lengths"
        )
    for k, (start, given, made, error) in enumerate(
        zip(starts, inputs, outputs, errors, strict=True)
    ):
        where = f"1: request {k}"
        if isinstance(start, bool) or not isinstance(start, int | float) or not abs(start) < 9e9:
            raise NotServed(f"{where}: start_times = {start!r}: expected seconds")
        made = 0 if error else _tokens(where, "output_lens", made)
        yield round(start * 1e9), _tokens(where, "input_lens", given), made


def _json(where: str, text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise NotServed(f"{line or where}: not JSON ({error})") from None
    if not isinstance(content, dict):
        raise NotServed(f"{where}: expected a JSON object")
    return content


# --- spans --------------------------------------------------------------------------------------------


def _spans(lines: TextIOBase) -> Rows:
    """Of OpenTelemetry; the server's clock, at which a request came."""
    start = lines.read(1)
    if start != "{":
        yield from _span_rows(_chained(start, lines))
        return
    text = start + lines.read()
    objects = [(str(n), line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not all(line.startswith("{") and line.rstrip().endswith("}") for _, line in objects):
        objects = [("1", text)]  # one object, on several lines
    for where, part in objects:
        content = _json(where, part)
        for resource in _members(where, content, "resourceSpans"):
            for scope in _members(where, resource, "scopeSpans"):
                for span in _members(where, scope, "spans"):
                    if span.get("name") == SPAN:
                        attributes = {
                            str(a.get("key")): _plain(a.get("value"))
                            for a in _members(where, span, "attributes")
                        }
                        yield _span(where, {**attributes, _START[0]: span.get(_START[0])})


def _chained(start: str, lines: TextIOBase) -> Iterator[str]:
    yield start + lines.readline()
    yield from lines


def _span_rows(lines: Iterable[str]) -> Rows:
    rows = csv.reader(lines)
    header = [name.strip().lstrip("\ufeff") for name in next(rows, [])]
    for names in (_START, _INPUT, _OUTPUT):
        if not set(names) & set(header):
            raise NotServed(f"1: column {names[0]!r} is missing; found {header}")
    for row in rows:
        if not row:
            continue
        if len(row) != len(header):
            raise NotServed(f"{rows.line_num}: expected {len(header)} fields, got {len(row)}")
        span = dict(zip(header, row, strict=True))
        if span.get("name", SPAN) == SPAN:
            yield _span(str(rows.line_num), span)


def _members(where: str, of: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = of.get(key) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise NotServed(f"{where}: {key}: expected a list of objects")
    return found


def _plain(value: Any) -> Any:
    """What an attribute of OTLP holds: `{"intValue": "12"}` and the like."""
    return next(iter(value.values()), None) if isinstance(value, dict) else value


def _span(where: str, span: Mapping[str, Any]) -> tuple[int, int, int]:
    def of(names: tuple[str, ...]) -> Any:
        return next((span[n] for n in names if span.get(n) not in (None, "")), None)

    try:
        at = int(of(_START))
        if not 0 <= at < _MOST_NS:
            raise ValueError
    except (TypeError, ValueError):
        raise NotServed(f"{where}: {_START[0]} = {of(_START)!r}: expected nanoseconds") from None
    # A request that failed has no usage.
    given, made = (_tokens(where, names[0], of(names) or 0) for names in (_INPUT, _OUTPUT))
    return at, given, made


# --- the log ------------------------------------------------------------------------------------------

_LINE = re.compile(
    r"\b(?:INFO|DEBUG) +(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) +\S+\] "
    r"(Received request|Request|Generated response) ([^\s:]+)(.*)"
)
"""A line of vLLM's log of requests. Its times have no year and whole seconds."""

_COMPLETE = re.compile(r"<streaming_complete: (\d+) tokens>")
_FLAGS = (
    "start vLLM with --enable-log-requests --enable-log-outputs, without --max-log-len, and with "
    "VLLM_LOGGING_LEVEL=DEBUG"
)


def _log(lines: TextIOBase) -> Rows:
    """Of vLLM's log: when a request was received, and how many token ids stand there.

    The requests of a second are spread evenly over it, in their order.
    """
    second: dict[str, int] = {}
    inputs: dict[str, int] = {}
    whole: Counter[str] = Counter()
    deltas: Counter[str] = Counter()
    latest, years = 0, 0
    for number, line in enumerate(lines, start=1):
        found = _LINE.search(line)
        if not found:
            continue
        month, day, hour, minute, sec, what, name, rest = found.groups()
        try:
            at = datetime.datetime(
                2024 + years, int(month), int(day), int(hour), int(minute), int(sec)
            )
        except ValueError:
            raise NotServed(f"{number}: no time: {month}-{day} {hour}:{minute}:{sec}") from None
        now = int((at - datetime.datetime(2024, 1, 1)).total_seconds())
        if now < latest - 180 * 86_400:  # a new year
            years, now = years + 1, now + (366 if years == 0 else 365) * 86_400
        latest = max(latest, now)
        if what == "Received request":
            second.setdefault(name, now)
        if what != "Generated response":
            ids = _ids(rest, "prompt_token_ids: ")
            if ids:
                inputs[name] = ids
        elif "(streaming delta)" in rest[:20]:
            deltas[name] += _ids(rest, "output_token_ids: ")
        else:
            told = _COMPLETE.search(rest)
            whole[name] += int(told[1]) if told else _ids(rest, "output_token_ids: ")
    if not second:
        raise NotServed(f"1: no request was received; {_FLAGS}")
    for what, known in (("prompt", inputs), ("output", {**whole, **deltas})):
        if not any(known.values()):
            raise NotServed(f"1: no {what} has its token ids; {_FLAGS}")
    of_second = Counter(second.values())
    seen: Counter[int] = Counter()
    for name, now in second.items():
        # A completion's prompts are numbered; its response is not.
        answer = name if name in whole or name in deltas else name.removesuffix("-0")
        at_ns = now * 10**9 + (2 * seen[now] + 1) * 10**9 // (2 * of_second[now])
        seen[now] += 1
        yield at_ns, inputs.get(name, 0), whole[answer] or deltas[answer]


def _ids(text: str, key: str) -> int:
    """How many token ids stand behind the last `key`; 0: None, or no list."""
    _, there, ids = text.rpartition(key)
    if not there:
        return 0
    ids = ids.partition("]")[0].partition(", finish_reason")[0]
    return len(re.findall(r"\d+", ids))
