"""Readers of request traces: Azure LLM inference CSV, BurstGPT CSV, Mooncake JSONL, plain CSV, vLLM's logs.

Files may be gzipped. A fast reader (pandas, in chunks) takes well-formed files; where it stumbles,
a line-by-line one looks for the first bad line, so that the error can name it.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.workload.log_means import LogMeans
from llmscale_env.workload.prefixes import (
    NO_PREFIX,
    Prefixes,
    previous_of,
    shared_blocks,
    spans_of,
)
from llmscale_env.workload.requests import PS_PER_S
from llmscale_env.workload.served.logs import SERVED, NotServed, detect, read_served

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Labels:
    """A column of names: which there are, and each row's index into them."""

    names: tuple[str, ...]
    index: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> Labels:
        return Labels(self.names, self.index[rows])


@dataclass(frozen=True)
class Trace:
    """A request trace, sorted by arrival.

    Attributes:
        path, format: where it was read from, and how.
        arrival_ps: (n,) int64 since the first request of the file.
        input_tokens, output_tokens: (n,) int64, at least 1.
        llm, slo_class: (n,) names, or None where the file has none.
        dropped_zero_output, dropped_zero_input: rows left out because nothing was generated
            (failed requests in BurstGPT) or the prompt was empty; one with both counts as the
            first.
        prefixes: which rows begin with the same tokens (owners are rows); None where the file does not say.
    """

    path: str
    format: str
    arrival_ps: NDArray[np.int64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    llm: Labels | None = None
    slo_class: Labels | None = None
    dropped_zero_output: int = 0
    dropped_zero_input: int = 0
    prefixes: Prefixes | None = None

    def __len__(self) -> int:
        return len(self.arrival_ps)

    @property
    def duration_s(self) -> float:
        """From the first to the last arrival."""
        return float(self.arrival_ps[-1] - self.arrival_ps[0]) / PS_PER_S

    @property
    def period_ps(self) -> int:
        """Length of the trace when it is stitched end to end: its span and one mean gap more."""
        span = int(self.arrival_ps[-1])
        return span + max(span // max(len(self) - 1, 1), PS_PER_S // 1000)

    @cached_property
    def log_means(self) -> LogMeans:
        """What the trace, taken for a log, tells of outputs by input."""
        return LogMeans.of(self.input_tokens)


@dataclass(frozen=True)
class _Format:
    """Columns of a CSV format (lower case, blanks stripped) and how its time is written."""

    arrival: str
    inputs: str
    outputs: str
    timestamp: bool
    llm: str | None = None
    slo_class: str | None = None
    conversation: str | None = None
    example: str = ""


_CSV = {
    "plain": _Format(
        "arrival_time_s",
        "input_tokens",
        "output_tokens",
        timestamp=False,
        llm="llm",
        slo_class="slo_class",
        conversation="conversation",
        example="12.5,374,44",
    ),
    "azure": _Format(
        "timestamp",
        "contexttokens",
        "generatedtokens",
        timestamp=True,
        example="2023-11-16 18:15:46.6805900,374,44 or 2024-05-10 00:00:00.009930+00:00,374,44",
    ),
    "burstgpt": _Format(
        "timestamp",
        "request tokens",
        "response tokens",
        timestamp=False,
        llm="model",
        example="5,ChatGPT,472,18,490,Conversation log",
    ),
}
FORMATS = (*_CSV, "mooncake", *SERVED)
_MOONCAKE_EXAMPLE = '{"timestamp": 3000, "input_length": 6758, "output_length": 500}'
_CHUNK_ROWS = 1_000_000
_LONGEST_HEADER = 100_000
_MOST_TOKENS = 2.0**31 - 1
_MOST_S = 9e9
"""Of a time, which is kept in nanoseconds at first."""
_MOST_DAYS = 100


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as handle:
        return handle.read(2) == b"\x1f\x8b"


def _open(path: Path) -> io.TextIOBase:
    if _is_gzip(path):
        return io.TextIOWrapper(gzip.open(path, "rb"), encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _header(path: Path) -> list[str]:
    with _open(path) as lines:
        first = next(csv.reader([lines.readline(_LONGEST_HEADER).lstrip("\ufeff")]), [])
    return [name.strip().lower() for name in first]


def detect_format(path: Path) -> str:
    """Which format a file has, by how it begins.

    Raises:
        ValueError: if it is none of `FORMATS`.
    """
    with _open(path) as lines:
        beginning = lines.read(_LONGEST_HEADER).lstrip("\ufeff")
    if served := detect(beginning):
        return served
    start = beginning.partition("\n")[0]
    if start.lstrip().startswith("{"):
        return "mooncake"
    header = set(_header(path))
    for name, form in _CSV.items():
        if {form.arrival, form.inputs, form.outputs} <= header:
            return name
    raise ValueError(
        f"{path}:1: no known trace format; expected JSON lines like {_MOONCAKE_EXAMPLE}, or one of "
        "these headers: "
        + "; ".join(f"{f.arrival},{f.inputs},{f.outputs} ({n})" for n, f in _CSV.items())
        + "; or what vLLM writes (docs/workloads.md)"
        + f"; found {start.strip()[:80]!r}"
    )


class _BadLine(ValueError):
    """Something that the fast reader cannot place on a line."""


def _whole(values: Any, what: str) -> NDArray[np.int64]:
    """Non-negative whole numbers, or `_BadLine`."""
    numbers = np.asarray(values, dtype=np.float64)
    if not ((numbers >= 0) & (numbers <= _MOST_TOKENS) & (numbers == np.floor(numbers))).all():
        raise _BadLine(what)
    return numbers.astype(np.int64)


def _times_ns(column: pd.Series, timestamp: bool) -> NDArray[np.int64]:
    """Times as nanoseconds since some fixed instant."""
    import pandas as pd

    if timestamp:
        stamps = pd.to_datetime(column, format="ISO8601", utc=True)
        if stamps.isna().any():
            raise _BadLine("timestamp")
        day = pd.Timestamp("2020-01-01", tz="UTC")
        return (stamps - day).dt.as_unit("ns").to_numpy().astype(np.int64)
    seconds = column.to_numpy(dtype=np.float64)
    if not (np.abs(seconds) < _MOST_S).all():
        raise _BadLine("time")
    return np.rint(seconds * 1e9).astype(np.int64)


def _csv_chunks(
    path: Path, form: _Format, header: list[str], max_rows: int | None
) -> Iterator[dict[str, Any]]:
    import pandas as pd

    wanted = [form.arrival, form.inputs, form.outputs]
    text = {name for name in (form.llm, form.slo_class, form.conversation) if name in header}
    types: dict[int, Any] = dict.fromkeys(range(len(header)), str)
    types.update({header.index(c): np.float64 for c in wanted[1:]})
    if not form.timestamp:
        types[header.index(form.arrival)] = np.float64
    # All columns are read: with fewer, pandas would not refuse rows that have too many fields
    # ("1,024" for 1024 makes one).
    with pd.read_csv(
        path,
        header=0,
        names=range(len(header)),
        dtype=types,
        chunksize=_CHUNK_ROWS,
        nrows=max_rows,
        encoding="utf-8",
        keep_default_na=False,
        na_values={k: [] for k in types},
        compression="gzip" if _is_gzip(path) else None,
    ) as reader:
        for frame in reader:
            if not isinstance(frame.index, pd.RangeIndex):
                raise _BadLine("a field too many, which pandas takes for an index")
            chunk: dict[str, Any] = {
                "ns": _times_ns(frame[header.index(form.arrival)], form.timestamp),
                "input": _whole(frame[header.index(form.inputs)], form.inputs),
                "output": _whole(frame[header.index(form.outputs)], form.outputs),
            }
            for field in ("llm", "slo_class", "conversation"):
                name = getattr(form, field)
                if name in text:
                    chunk[field] = frame[header.index(name)].to_numpy(dtype=object)
            yield chunk


def _diagnose_csv(path: Path, form: _Format, header: list[str]) -> str:
    """The first line of a CSV that is not as it should be, and what was expected there."""
    from datetime import datetime

    at = [header.index(c) for c in (form.arrival, form.inputs, form.outputs)]
    with _open(path) as lines:
        rows = csv.reader(lines)
        next(rows)
        for row in rows:
            where = f"{path}:{rows.line_num}"
            if not row:
                continue
            if not max(at) < len(row) <= len(header):
                return f"{where}: expected {len(header)} fields ({form.example}), got {len(row)}"
            try:
                if form.timestamp:
                    datetime.fromisoformat(row[at[0]])
                elif not abs(float(row[at[0]])) < _MOST_S:
                    raise ValueError
            except ValueError:
                kind = "a time stamp" if form.timestamp else "seconds"
                return (
                    f"{where}: {header[at[0]]} = {row[at[0]]!r}: expected {kind}, "
                    f"as in {form.example}"
                )
            for k in at[1:]:
                try:
                    _whole(float(row[k]), header[k])
                except ValueError:
                    return (
                        f"{where}: {header[k]} = {row[k]!r}: expected a whole number of tokens, "
                        f"0 or more, as in {form.example}"
                    )
    return f"{path}: not a well-formed CSV, expected rows like {form.example}"


def _either(row: dict[str, Any], *names: str) -> Any:
    """What stands under the first of these names that the row has."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def _hash_ids(row: dict[str, Any], input_tokens: int, block_tokens: int) -> list[int]:
    """The hashes of a row's blocks, if there are as many as its prompt has blocks (one in part, or none)."""
    ids = row.get("hash_ids")
    if ids is None or ids == []:
        return []
    full = input_tokens // block_tokens
    whole = isinstance(ids, list) and all(type(x) is int and 0 <= x < 2**64 for x in ids)
    if not whole or not full <= len(ids) <= -(-input_tokens // block_tokens):
        count = f", {len(ids)} of them" if isinstance(ids, list) else ""
        raise ValueError(
            f"hash_ids = {str(ids)[:60]}{count}: expected whole numbers from 0 on, one for each "
            f"{block_tokens} tokens (hash_block_tokens) of an input of {input_tokens}, "
            f"which makes {full}, and one more for a rest"
        )
    return ids


def _mooncake_chunks(
    path: Path, max_rows: int | None, block_tokens: int
) -> Iterator[dict[str, Any]]:
    ms: list[float] = []
    inputs: list[int] = []
    outputs: list[int] = []
    ids, counts = array("Q"), array("q")
    session_ms: dict[Any, float] = {}
    with _open(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            if len(ms) == max_rows:
                break
            try:
                row = json.loads(line)
                at = _either(row, "timestamp", "created_time")
                session = row.get("session_id")
                if at is None:
                    at = session_ms[session] + float(_either(row, "delay", "delay_ms"))
                if not abs(float(at)) < 1000 * _MOST_S:
                    raise ValueError
                if session is not None:
                    session_ms[session] = float(at)
                tokens = (
                    _either(row, "input_length", "input_tokens"),
                    _either(row, "output_length", "output_tokens"),
                )
                for value in tokens:
                    _whole(float(value), "length")
            except (
                ValueError,
                KeyError,
                TypeError,
                AttributeError,
                OverflowError,
                RecursionError,
            ):
                raise ValueError(
                    f"{path}:{number}: expected a JSON object like {_MOONCAKE_EXAMPLE} "
                    f"(milliseconds, whole tokens), got {line.strip()[:80]!r}"
                ) from None
            try:
                mine = _hash_ids(row, int(tokens[0]), block_tokens)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from None
            ms.append(float(at))
            inputs.append(int(tokens[0]))
            outputs.append(int(tokens[1]))
            ids.extend(mine)
            counts.append(len(mine))
    chunk = {
        "ns": np.rint(np.array(ms) * 1e6).astype(np.int64),
        "input": np.array(inputs, dtype=np.int64),
        "output": np.array(outputs, dtype=np.int64),
    }
    if len(ids):
        chunk["ids"] = np.frombuffer(ids, np.uint64)
        chunk["ids_of_row"] = np.frombuffer(counts, np.int64)
    yield chunk


def _backwards_line(path: Path, kept_row: int) -> int:
    """Line number of a data row (counted from 0), blank lines not counted as rows."""
    header = 0 if detect_format(path) == "mooncake" else 1
    with _open(path) as lines:
        seen = -1 - header
        for number, line in enumerate(lines, start=1):
            seen += bool(line.strip())
            if seen == kept_row:
                return number
    raise AssertionError("the row was there when the file was read")


def read_trace(
    path: str | Path,
    format: str = "auto",
    sort: bool = False,
    max_rows: int | None = None,
    hash_block_tokens: int = 512,
) -> Trace:
    """Read a trace.

    Args:
        path: the file, plain or gzipped.
        format: "auto" (by how it begins), "plain", "azure", "burstgpt", "mooncake", "vllm-bench", "otel"
            or "vllm-log".
        sort: sort by arrival (stable) instead of refusing arrivals that go backwards. What vLLM writes is
            always sorted: it stands there in the order in which requests ended.
        max_rows: read no more than the first rows.
        hash_block_tokens: tokens that an id of Mooncake's `hash_ids` stands for.

    Raises:
        ValueError: a malformed row (names the line and what was expected), arrivals that go
            backwards, an unknown format, or no usable row.
        OSError: the file cannot be read.
    """
    path = Path(path)
    if hash_block_tokens < 1:
        raise ValueError(f"hash_block_tokens = {hash_block_tokens}: must be at least 1")
    if format != "auto" and format not in FORMATS:
        raise ValueError(f"format = {format!r}: must be one of {['auto', *FORMATS]}")
    if os.path.exists(path) and not path.is_file():  # a pipe, say, which may wait for ever
        raise ValueError(f"{path}: is no file that can be read")
    try:
        name = detect_format(path) if format == "auto" else format
        return _read(path, name, sort, max_rows, hash_block_tokens)
    except (UnicodeDecodeError, EOFError, csv.Error, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a readable text file ({error})") from None


def _read(path: Path, name: str, sort: bool, max_rows: int | None, hash_block_tokens: int) -> Trace:
    chunks: list[dict[str, Any]]
    if name in SERVED:
        sort = True
        with _open(path) as lines:
            try:
                chunks = [read_served(lines, name, max_rows)]
            except NotServed as error:
                raise ValueError(f"{path}:{error}") from None
    elif name == "mooncake":
        chunks = list(_mooncake_chunks(path, max_rows, hash_block_tokens))
    else:
        form, header = _CSV[name], _header(path)
        missing = [c for c in (form.arrival, form.inputs, form.outputs) if c not in header]
        if missing:
            raise ValueError(
                f"{path}:1: column {missing[0]!r} is missing (format {name}); found {header}"
            )
        try:
            chunks = list(_csv_chunks(path, form, header, max_rows))
        except (ValueError, UnicodeDecodeError) as error:
            if isinstance(error, UnicodeDecodeError):
                raise
            raise ValueError(_diagnose_csv(path, form, header)) from None

    def column(key: str) -> NDArray:
        return np.concatenate([chunk[key] for chunk in chunks])

    if not chunks or not len(chunks[0]["ns"]):
        raise ValueError(f"{path}: no rows after the header")
    ns, inputs, outputs = column("ns"), column("input"), column("output")
    order = np.arange(len(ns))
    backwards = np.flatnonzero(np.diff(ns) < 0)
    if len(backwards) and sort:
        order = np.argsort(ns, kind="stable")
    elif len(backwards):
        row = int(backwards[0]) + 1
        raise ValueError(
            f"{path}:{_backwards_line(path, row)}: arrival {(ns[row] - ns[row - 1]) / 1e9:.6g} s "
            "from the one above it: arrivals must not go backwards (sort=true sorts them)"
        )
    span_days = (ns[order[-1]] - ns[order[0]]) / 86_400e9
    if span_days > _MOST_DAYS:
        raise ValueError(
            f"{path}: arrivals span {span_days:.0f} days; time in picoseconds holds {_MOST_DAYS}: "
            "cut the file"
        )
    keep = order[(outputs[order] > 0) & (inputs[order] > 0)]
    if len(keep) == 0:
        raise ValueError(f"{path}: no row has both input and output tokens above 0")

    def labels(key: str) -> Labels | None:
        if key not in chunks[0]:
            return None
        import pandas as pd

        index, found = pd.factorize(column(key)[keep], sort=True)
        return Labels(tuple(str(value) for value in found), index.astype(np.int64))

    x, y = inputs[keep], outputs[keep]
    prefixes = None
    if "ids" in chunks[0]:
        counts = column("ids_of_row")
        ends = np.cumsum(counts)
        mine = [chunks[0]["ids"][ends[r] - counts[r] : ends[r]] for r in keep]
        first = np.append(0, np.cumsum(counts[keep]))
        prefix_of, tokens = _alike_by_hashes(np.concatenate(mine), first, x, hash_block_tokens)
        prefixes = spans_of(prefix_of, tokens, x, y)
    elif conversation := labels("conversation"):
        prefixes = spans_of(*_alike_by_conversation(conversation, x, y), x, y)
    return Trace(
        path=str(path),
        format=name,
        arrival_ps=(ns[keep] - ns[order[0]]) * 1000,
        input_tokens=x,
        output_tokens=y,
        llm=labels("llm"),
        slo_class=labels("slo_class"),
        dropped_zero_output=int((outputs == 0).sum()),
        dropped_zero_input=int(((inputs == 0) & (outputs > 0)).sum()),
        prefixes=prefixes,
    )


def _alike_by_hashes(
    ids: NDArray[np.uint64],
    first: NDArray[np.int64],
    inputs: NDArray[np.int64],
    block_tokens: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(prefix_of, prefix_tokens) of rows by the hashes of their blocks, as in `shared_blocks`."""
    owner, depth = shared_blocks(ids, first)
    # An owner's last block may be full only in part.
    tokens = np.minimum(np.minimum(depth * block_tokens, inputs), inputs[owner])
    return owner, np.where(owner >= 0, tokens, 0)


def _alike_by_conversation(
    conversation: Labels, inputs: NDArray[np.int64], outputs: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(prefix_of, prefix_tokens) of rows that begin like the row before of their conversation, if they do."""
    none = [k for k, value in enumerate(conversation.names) if not value.strip()]
    owner = previous_of(np.where(np.isin(conversation.index, none), -1, conversation.index))
    tokens = (inputs + outputs)[owner]
    owner = np.where(tokens <= inputs, owner, NO_PREFIX)
    return owner, np.where(owner >= 0, tokens, 0)


def only_llm(trace: Trace, llm: str) -> Trace:
    """The rows of one LLM; times stay as they are.

    Raises:
        ValueError: if the trace names no LLMs or not this one.
    """
    if trace.llm is None:
        raise ValueError(f"only_llm = {llm!r}: {trace.path} does not name LLMs")
    if llm not in trace.llm.names:
        raise ValueError(f"only_llm = {llm!r}: {trace.path} has {list(trace.llm.names)}")
    keep = np.flatnonzero(trace.llm.index == trace.llm.names.index(llm))
    return replace(
        trace,
        arrival_ps=trace.arrival_ps[keep],
        input_tokens=trace.input_tokens[keep],
        output_tokens=trace.output_tokens[keep],
        llm=trace.llm.take(keep),
        slo_class=None if trace.slo_class is None else trace.slo_class.take(keep),
        prefixes=None if trace.prefixes is None else trace.prefixes.take(keep),
    )


@lru_cache(maxsize=8)
def _cached(
    path: str,
    format: str,
    sort: bool,
    llm: str | None,
    hash_block_tokens: int,
    stamp: tuple[int, int],
) -> Trace:
    trace = read_trace(path, format, sort, hash_block_tokens=hash_block_tokens)
    return trace if llm is None else only_llm(trace, llm)


def load_trace(
    path: str | Path,
    format: str = "auto",
    sort: bool = False,
    llm: str | None = None,
    hash_block_tokens: int = 512,
) -> Trace:
    """`read_trace`, remembered until the file changes (an episode per reset reads it once)."""
    try:
        status = Path(path).stat()
    except FileNotFoundError as error:
        what = "no such trace; a relative path begins at the current folder"
        raise FileNotFoundError(error.errno, what, str(path)) from None
    stamp = status.st_mtime_ns, status.st_size
    return _cached(str(path), format, sort, llm, hash_block_tokens, stamp)
