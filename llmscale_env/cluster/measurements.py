"""Measured iterations as arrays, and the lines of the raw files that they are read from."""

from __future__ import annotations

import csv
import gzip
import io
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PARTS = ("decode", "prefill", "mixed")

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Measurements:
    """Iterations of one (LLM, GPU, tp), one row each.

    Attributes:
        llm, gpu, tp, kind, source, notes: as in `IterationTimeModel`.
        part: (n,) index into `PARTS`.
        decode_requests, context_tokens: (n,) decoding requests and their context in all.
        chunks, chunk_tokens, cached_tokens: (n,) prefill chunks, tokens of each, context cached
            before for each.
        seconds: (n,) duration of the iteration.
        group: (n,) label of the configuration: rows of one group are held out together.
        scored: (n,) whether the row is a point of the data (else support between the points).
        fitted: (n,) whether the row takes part in the fit (else it is only compared with it).
        tile_tokens: kernels see the tokens of an iteration rounded up to a multiple of this (1:
            nothing is known about it).
    """

    llm: str
    gpu: str
    tp: int
    kind: str
    source: str
    part: Ints
    decode_requests: Ints
    context_tokens: Floats
    chunks: Ints
    chunk_tokens: Ints
    cached_tokens: Ints
    seconds: Floats
    group: Ints
    scored: NDArray[np.bool_]
    fitted: NDArray[np.bool_]
    notes: str = ""
    tile_tokens: int = 1

    @property
    def total_tokens(self) -> Ints:
        """(n,) tokens of each iteration: one per decoding request, and all chunks."""
        return self.decode_requests + self.chunks * self.chunk_tokens

    @property
    def pair_sum(self) -> Floats:
        """(n,) sum over the chunks of `chunk * (2 * cached + chunk)`."""
        chunk = self.chunk_tokens.astype(np.float64)
        pairs: Floats = self.chunks * chunk * (2 * self.cached_tokens + chunk)
        return pairs

    def only(self, keep: NDArray[np.bool_]) -> Measurements:
        """The rows of a mask."""
        columns: dict[str, Any] = {
            k: v[keep] for k, v in vars(self).items() if isinstance(v, np.ndarray)
        }
        return replace(self, **columns)

    def of(self, part: str) -> Measurements:
        """The rows of one part."""
        return self.only(self.part == PARTS.index(part))


class RawDataError(ValueError):
    """A raw file is missing or malformed; the message has file, line and what was expected."""


def records(path: Path, columns: tuple[str, ...]) -> Iterable[tuple[int, dict[str, str]]]:
    """Lines of a CSV (or .csv.gz) with a header, with their numbers.

    Raises:
        RawDataError: the file cannot be read, a column is missing or a line is malformed.
    """
    if os.path.exists(path) and not path.is_file():  # a pipe, say, which may wait for ever
        raise RawDataError(f"{path}: is no file that can be read")
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or "not a gzip file"
        raise RawDataError(f"{path}: cannot be read ({reason})") from None
    except (UnicodeDecodeError, EOFError, zlib.error):
        raise RawDataError(f"{path}: not a CSV in UTF-8") from None
    reader = csv.DictReader(io.StringIO(text))
    try:
        yield from _checked(reader, path, columns)
    except csv.Error as error:
        raise RawDataError(f"{path.name}, line {reader.line_num}: no CSV ({error})") from None


def _checked(
    reader: csv.DictReader[str], path: Path, columns: tuple[str, ...]
) -> Iterable[tuple[int, dict[str, str]]]:
    missing = [c for c in columns if c not in (reader.fieldnames or ())]
    if missing:
        raise RawDataError(
            f"{path.name}, line 1: no column {', '.join(missing)}; expected {', '.join(columns)}"
        )
    for record in reader:
        if any(record[c] is None for c in columns) or None in record:
            raise RawDataError(
                f"{path.name}, line {reader.line_num}: expected {len(reader.fieldnames or ())} "
                "values, one per column of the header"
            )
        yield reader.line_num, record


def whole(record: dict[str, str], column: str, where: str) -> int:
    """A column's whole number, not below 0.

    Raises:
        RawDataError: it is none.
    """
    try:
        value = int(record[column])
    except ValueError:
        value = -1
    if not 0 <= value < 2**53:
        raise RawDataError(
            f"{where}: {column} = {record[column]!r}, expected a whole number not below 0"
        )
    return value


def number(
    record: dict[str, str], column: str, where: str, *, at_least: float | None = None
) -> float:
    """A column's number, above 0 or not below `at_least`.

    Raises:
        RawDataError: it is none.
    """
    try:
        value = float(record[column])
    except ValueError:
        value = float("nan")
    low_enough = value > 0 if at_least is None else value >= at_least
    if not (np.isfinite(value) and low_enough):
        bound = "above 0" if at_least is None else f"not below {at_least:g}"
        raise RawDataError(f"{where}: {column} = {record[column]!r}, expected a number {bound}")
    return value
