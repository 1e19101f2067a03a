"""Raw measurement files: lines of a CSV with a header, numbers checked, one clear error for a slip."""

from __future__ import annotations

import csv
import gzip
import io
import os
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np


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
