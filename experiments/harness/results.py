"""What a finished experiment leaves in `results/NAME/SCALE`: rows, pictures, claims, how it was made."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.statistics import Interval, shown
from experiments.harness.claims import Claim
from experiments.harness.fingerprint import ROOT
from experiments.harness.parameters import Parameters
from experiments.harness.picture import save
from llmscale_env._reading import read_json
from llmscale_env._writing import replace_file

if TYPE_CHECKING:
    from pandas import DataFrame

ROWS, RECORD = "rows.csv", "result.json"
RECORDS = "records.json"
"""Beside a page: of all its results what the rows there do not say."""
DIGITS = 5
"""Significant digits of numbers in the rows beside a page."""


@dataclass(frozen=True)
class Result:
    """One experiment at one scale, as it lies on disk.

    Attributes:
        name, scale: of the experiment.
        figure: of the paper.
        claims: judged.
        parameters: by name: (value, source).
        command: that makes it again.
        runs, wall_s: how many runs, and their seconds in all.
        code: fingerprint.
        versions: machine and packages.
        pictures: file names.
        folder: where it lies.
        tables: file names, of CSV files.
        run_code, claims_code: fingerprints of what its runs and its claims depend on, each without the other.
        cases: digest of the runs (`digest_of`).
        rows: digest of the file of rows beside the page; "" where none lies there.
        repeated: how many of the runs later code has done again, with the same rows (`experiments.repeat`).
    """

    name: str
    scale: str
    figure: str
    claims: tuple[Claim, ...]
    parameters: Mapping[str, tuple[Any, str]]
    command: str
    runs: int
    wall_s: float
    code: str
    versions: Mapping[str, str]
    pictures: tuple[str, ...]
    folder: Path
    tables: tuple[str, ...] = ()
    run_code: str = ""
    claims_code: str = ""
    cases: str = ""
    rows: str = ""
    repeated: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a JSON file."""
        record = {name: value for name, value in vars(self).items() if name != "folder"}
        record["claims"] = [claim.as_dict() for claim in self.claims]
        record["wall_s"] = round(self.wall_s, 1)
        return record

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], folder: Path) -> Result:
        """What `as_dict` gave.

        Raises:
            KeyError, TypeError, ValueError: it gave something else.
        """
        changed = {
            "claims": tuple(Claim.from_dict(claim) for claim in data["claims"]),
            "parameters": {k: (v[0], v[1]) for k, v in data["parameters"].items()},
            "pictures": tuple(data["pictures"]),
            "tables": tuple(data.get("tables", ())),
            "folder": folder,
        }
        return cls(**{**data, **changed})


def digest_of(value: Any) -> str:
    """Sixteen hex digits for what JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def frame_of(cases: Sequence[Mapping[str, Any]], rows: Sequence[Any]) -> DataFrame:
    """All rows of all runs, in the order of the cases, with the cases' plain values as columns."""
    import pandas as pd

    table = []
    for case, mine in zip(cases, rows, strict=True):
        fixed = {k: v for k, v in case.items() if not isinstance(v, (dict, list, tuple))}
        table += [{**fixed, **row} for row in mine]
    return pd.DataFrame(table)


def write_result(
    result: Result,
    frame: DataFrame,
    figures: Mapping[str, Any],
    tables: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> Path:
    """Put a result in its folder, whole: what lay there before stays until all is written.

    Args:
        result: where it goes, and what is written down of it.
        frame: all rows.
        figures: by file name.
        tables: by file name, rows; intervals and numbers as text that a reader sees.
    """
    result.folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=result.folder.parent, prefix=f".{result.folder.name}."))
    try:
        part.chmod(0o755)
        frame.to_csv(part / ROWS, index=False)
        for name, figure in figures.items():
            save(figure, part / name)
        for name, rows in (tables or {}).items():
            write_table(part / name, rows)
        record = json.dumps(result.as_dict(), indent=1)
        (part / RECORD).write_text(f"{record}\n", encoding="utf-8")
        shutil.rmtree(result.folder, ignore_errors=True)
        part.replace(result.folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return result.folder


def cell(value: Any) -> str:
    """A value as a table shows it; a number that is not there is a dash."""
    if isinstance(value, float):
        if math.isnan(value):
            return "-"
        return shown(value)
    if isinstance(value, Interval) and math.isnan(value.mean):
        return "-"
    return str(value)


def write_table(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    shown: Callable[[Any], str] = cell,
) -> None:
    """Rows as a CSV file, of what a reader sees unless `shown` says otherwise."""
    with path.open("w", encoding="utf-8", newline="") as file:
        names = list(dict.fromkeys(k for row in rows for k in row))
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: shown(v) for k, v in row.items()} for row in rows)


def number_or_text(value: Any) -> str:
    """A value as a program reads it: a number with `DIGITS` digits, nothing where there is none."""
    if isinstance(value, float):
        return "" if math.isnan(value) else few_digits(repr(float(value)))  # numpy's, too
    return str(value)


def table_file(experiment: str, key: str) -> str:
    """Name of the file of an experiment's table."""
    return f"{experiment}-{key}.csv"


def title_of(file: str, experiment: str) -> str:
    """What a table is called where there are several: its key."""
    return Path(file).stem.removeprefix(f"{experiment}-")


def read_table(path: Path) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table that `write_result` wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    return (rows[0], rows[1:]) if rows else ([], [])


def rows_beside_page(
    source: Path,
    series: Sequence[str],
    parameters: Parameters,
    excerpt: Callable[[DataFrame, Any], DataFrame] | None = None,
) -> str | None:
    """The rows of a file as they lie beside a page: few bytes, and all that `read_rows` needs.

    Left out are rows whose `kind` is in `series`, or with an `excerpt` what it does not take; columns that
    are then empty; and columns that hold the value of the parameter of their name throughout
    (`parameters.csv` lists these). Numbers have `DIGITS` significant digits, whole ones all of theirs.
    Paths below the project are told from its root. None where no row is left.

    Raises:
        ValueError: there are `series`, but no column `kind`.
    """
    text = source.read_text(encoding="utf-8").replace(f"{ROOT}{os.sep}", "")
    if excerpt is not None:
        import pandas as pd

        text = excerpt(pd.read_csv(io.StringIO(text), low_memory=False), parameters).to_csv(
            index=False
        )
        series = ()
    names, *rows = csv.reader(io.StringIO(text, newline=""))
    if series:
        if "kind" not in names:
            raise ValueError(f"{source}: no column kind, which {', '.join(series)} should be in")
        of = names.index("kind")
        rows = [row for row in rows if row[of] not in series]
    if not rows:
        return None
    short = [[few_digits(value) for value in row] for row in rows]
    known = constants(parameters)
    used = [
        k
        for k, name in enumerate(names)
        if (values := {row[k] for row in short}) != {""} and values != {known.get(name)}
    ]
    made = io.StringIO(newline="")
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow([names[k] for k in used])
    writer.writerows([row[k] for k in used] for row in short)
    return made.getvalue()


def read_rows(path: Path, parameters: Parameters) -> DataFrame:
    """The rows that `rows_beside_page` wrote, with the columns that it left out because a parameter holds
    them; numbers that a parameter has are as exact as there.
    """
    import pandas as pd

    frame = pd.read_csv(path, low_memory=False)
    known = {
        name: value
        for name, value in parameters.model_dump().items()
        if name not in frame and not isinstance(value, (tuple, list, dict)) and name != "seeds"
    }
    frame = frame.assign(**known)
    exact = {float(few_digits(repr(value))): value for value in _numbers(parameters.model_dump())}
    for name in frame.select_dtypes("float"):
        near = frame[name].map(exact)
        frame[name] = near.fillna(frame[name]).astype(float)
    return frame


def of_cases(
    frame: DataFrame, cases: Sequence[Mapping[str, Any]], *, excerpt: bool = False
) -> bool:
    """Whether rows from beside a page can come from these cases.

    They cannot where a column has a value that no case has; nor, unless they are an `excerpt`, where it lacks
    one that a case has, other than a seed.
    """
    for name in {name for case in cases for name in case} & set(frame.columns):
        there = {few_digits(str(value)) for value in frame[name].dropna().unique()}
        values = [case[name] for case in cases if name in case]
        if any(isinstance(value, (dict, list, tuple)) for value in values):
            continue
        wanted = {few_digits(str(value)) for value in values if value is not None}
        if not there <= wanted or not (excerpt or name == "seed" or there == wanted):
            return False
    return True


def few_digits(value: str) -> str:
    """A cell with few digits, if it is a number that is not whole."""
    try:
        number = float(value)
    except ValueError:
        return value
    if not math.isfinite(number):
        return value
    if number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    return f"{number:.{DIGITS}g}"


def constants(parameters: Parameters) -> dict[str, str]:
    """Parameters of one value, as cells; none of whose value is None, which a cell cannot tell."""
    return {
        name: few_digits(str(value))
        for name, value in parameters.model_dump().items()
        if isinstance(value, (str, int, float))
    }


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _numbers(one)
    elif isinstance(value, float) and not value.is_integer():
        yield value


def read_result(folder: Path) -> Result | None:
    """The result in a folder; None if there is none.

    Raises:
        ValueError: there is one that cannot be read.
    """
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        return Result.from_dict(read_json(path), folder)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); run the experiment again") from None


def write_records(folder: Path, results: Sequence[Result]) -> Path:
    """Keep what the rows beside a page do not say of these results, in the page's folder."""
    lines = (f"{json.dumps(result.name)}: {json.dumps(result.as_dict())}" for result in results)
    text = "{\n" + ",\n".join(lines) + "\n}"
    return replace_file(
        folder / RECORDS, lambda part: part.write_text(f"{text}\n", encoding="utf-8")
    )


def read_records(folder: Path) -> dict[str, Result]:
    """Results by experiment, as `write_records` kept them; none where there is no such file.

    Raises:
        ValueError: it cannot be read.
    """
    path = folder / RECORDS
    if not path.is_file():
        return {}
    try:
        found = {name: Result.from_dict(data, folder) for name, data in read_json(path).items()}
        for name, result in found.items():
            _check(name, result)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from None
    return found


def _check(name: str, result: Result) -> None:
    if result.name != name:
        raise ValueError(f"{name}: has the name {result.name!r}")
    texts = ("scale", "figure", "command", "code", "run_code", "claims_code", "cases", "rows")
    wrong = [each for each in texts if not isinstance(getattr(result, each), str)]
    numbers = (result.runs, result.wall_s, result.repeated)
    wrong += ["runs, wall_s or repeated"] * any(not isinstance(n, (int, float)) for n in numbers)
    files = (*result.pictures, *result.tables)
    wrong += ["pictures or tables"] * any(not isinstance(file, str) for file in files)
    if wrong or result.scale != "paper":
        raise ValueError(f"{name}: {', '.join(wrong) or 'scale'} is not what it must be")
