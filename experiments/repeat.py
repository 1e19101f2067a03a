"""Do some of the runs behind the pages again with the code as it is now, and compare the rows.

    python -m experiments.repeat NAME [NAME ...] [share=0.05] [least=4] [pages=DIRECTORY] [out=DIRECTORY]
                                 [workers=N] [launcher=ray]

    NAME               an experiment, a paper (chiron), or all
    share=0.05         of an experiment's runs, drawn by their digests: the same ones on any machine
    least=4            but so many at least, or all that it has
    pages=DIRECTORY    where the pages lie; "docs/reproduction" if left out
    out=DIRECTORY      where finished runs are kept; "results" if left out

A page's rows were made by some revision of the code. When the code behind them has changed since, it need not
have changed what they say. Where every run that is done again gives the rows that lie beside the page, to
their five digits, the page counts as made by the code of now and says how many were. Where one differs the
experiment has to be run anew. Of an excerpt only what lies there is compared, to the decimals of its columns.
Numbers that time the machine (an experiment's `CLOCKS`) are not compared; those below 1e-12 count as 0.
Exit code 0 when nothing differs, 1 when something does or a run failed, 2 for a slip, 130 when interrupted.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments.harness.cache import RunCache
from experiments.harness.catalogue import Entry, Experiment, load, matching
from experiments.harness.execute import Case, outcomes
from experiments.harness.fingerprint import fingerprint
from experiments.harness.results import (
    constants,
    digest_of,
    few_digits,
    read_records,
    write_records,
)
from experiments.output import RESULTS
from experiments.report import PAGES, cases_now, digest_of_file
from llmscale_env import _spread
from llmscale_env._cli import (
    Slip,
    check_folder,
    complain,
    number,
    parse_options,
    run_command,
    whole,
)
from llmscale_env._spread import Launcher, OtherCode, WorkerLost, launcher_of

Row = Mapping[str, str]
NOISE = 1e-12
"""Numbers below it are nothing."""


def drawn(cases: Sequence[Case], rows: Sequence[Row], share: float, least: int) -> list[Case]:
    """Some runs of those that have rows beside the page; none that time the machine."""
    names = columns_of(cases)
    there = [case for case in cases if not case.get("timed") and known(case, rows, names)]
    return sorted(there, key=digest_of)[: max(least, math.ceil(share * len(there)))]


def columns_of(cases: Sequence[Case]) -> set[str]:
    """What tells runs apart; a run may lack some that others have."""
    return {name for case in cases for name in case}


def known(case: Case, rows: Sequence[Row], names: Collection[str]) -> list[Row]:
    """The rows of a run; `names`: `columns_of` all runs."""
    cells = {
        name: _cell(case.get(name))
        for name in names
        if rows and name in rows[0] and not isinstance(case.get(name), (dict, list))
    }
    return [row for row in rows if all(row[name] == cell for name, cell in cells.items())]


def difference(
    experiment: Experiment,
    case: Case,
    there: Sequence[Row],
    made: Sequence[Mapping[str, Any]],
    decimals: Mapping[str, int],
) -> str:
    """How the rows of a run that was done again differ from those that are known; "" if they do not.

    Args:
        experiment: of the run.
        case: the run.
        there: its rows as they lie beside the page: all but those of series, or an excerpt.
        made: its rows now.
        decimals: see `decimals_of`; of all rows beside the page.
    """
    clocks, left_out = experiment.clocks, constants(experiment.parameters["paper"])
    names = [name for name in there[0] if name not in clocks]
    now = []
    for row in made:
        if not experiment.excerpt and row.get("kind") in experiment.series:
            continue
        cells = {name: _cell(value) for name, value in {**case, **row}.items()}
        now.append(tuple(_without_noise(cells.get(name, "")) for name in names))
        new = set(row) - set(there[0]) - set(clocks)
        odd = [n for n in sorted(new) if cells[n] not in ("", left_out.get(n, ""))]
        if odd and not experiment.excerpt:
            return f"{odd[0]} {cells[odd[0]]}, which the rows there have not"
    was = [tuple(_without_noise(row[name]) for name in names) for row in there]
    missing = Counter(was) - Counter(now)
    if experiment.excerpt and missing:
        # What an excerpt rounds and leaves out of its series on purpose; a row now stands for one there.
        series = "kind" in names and names.index("kind")
        left = list((Counter(now) - Counter(was)).elements())
        for gone in list(missing.elements()):
            blank = series is not False and gone[series] in experiment.series
            for other in left:
                if all(map(partial(_alike, blank), gone, other, (decimals[n] for n in names))):
                    missing[gone] -= 1
                    left.remove(other)
                    break
        missing = +missing
    if missing and not now:
        return "no rows now"
    for gone in missing:
        near = max(now, key=lambda other: sum(a == b for a, b in zip(gone, other, strict=True)))
        return (
            ", ".join(
                f"{name} {new or 'nothing'} for {old or 'nothing'}"
                for name, old, new in zip(names, gone, near, strict=True)
                if old != new
            )
            or "a row less than there"
        )
    if not experiment.excerpt and len(now) != len(was):
        return f"{len(now)} rows for {len(was)}"
    return ""


def _alike(blank: bool, there: str, now: str, decimals: int) -> bool:
    """Whether an excerpt may have the one for the other: nothing, or as many decimals as its column."""
    if there == now or (blank and not there):
        return True
    try:
        # `now` has been rounded once: half a unit, and what five digits leave of it.
        return 0 < decimals < 5 and abs(float(there) - float(now)) <= 0.501 * 10.0**-decimals
    except ValueError:
        return False


def decimals_of(rows: Sequence[Row]) -> dict[str, int]:
    """By column of a whole file the most decimals that a number has."""
    names = rows[0] if rows else ()
    return {n: max(len(row[n].partition(".")[2].partition("e")[0]) for row in rows) for n in names}


def _without_noise(cell: str) -> str:
    """Nothing as what it is, whatever another processor's sums leave of it."""
    try:
        return "0" if abs(float(cell)) < NOISE else cell
    except ValueError:
        return cell


def _cell(value: Any) -> str:
    return "" if value is None else few_digits(str(value))


def repeat(
    entry: Entry, pages: Path, folder: Path, share: float, least: int, launcher: Launcher
) -> tuple[int, str]:
    """(runs done again, what differs or is missing) of an experiment; what does not is written down.

    Raises:
        Slip, WorkerLost, OtherCode: as `harness.execute.outcomes`.
        ValueError: the page's records or rows cannot be read.
    """
    beside = pages / entry.paper
    kept, source = read_records(beside).get(entry.name), beside / f"{entry.name}.csv"
    if kept is None or not source.is_file():
        return 0, "no rows beside the page"
    experiment = load(entry)
    values = {name: value for name, (value, _) in kept.parameters.items()}
    if values != experiment.parameters["paper"].model_dump(mode="json"):
        return 0, "other parameters now"
    if kept.rows != digest_of_file(source) or kept.cases != cases_now(experiment):
        return 0, "other runs now, or other rows than were written down"
    code = fingerprint(entry.module, "run")
    if kept.run_code == code:
        return 0, ""
    try:
        with source.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except csv.Error as error:
        raise ValueError(f"{source}: cannot be read ({error})") from None
    made = experiment.cases(experiment.settings("paper", {}))
    cases = json.loads(json.dumps([dict(case) for case in made]))
    names, todo = columns_of(cases), drawn(cases, rows, share, least)
    if not todo:
        return 0, "no runs whose rows lie there"
    decimals = decimals_of(rows)
    cache, odd = RunCache(folder / "cache" / entry.name, code), ""
    kept_runs = [(case, cache.get(case)) for case in todo]
    for case, run in kept_runs:
        now = (
            ""
            if run is None
            else difference(experiment, case, known(case, rows, names), run[0], decimals)
        )
        odd = odd or _told(case, now)
    left = [case for case, run in kept_runs if run is None]
    with closing(outcomes(entry.module, left, launcher)) as ended:
        for outcome in ended:
            case = outcome.case
            if not outcome.error:
                cache.put(case, outcome.rows, outcome.wall_s)
            found = outcome.error or difference(
                experiment, case, known(case, rows, names), outcome.rows, decimals
            )
            odd = odd or _told(case, found)
    if not odd:
        records = read_records(beside)
        if records.get(entry.name) != kept or kept.rows != digest_of_file(source):
            return len(todo), "the page has changed meanwhile"
        records[entry.name] = replace(kept, run_code=code, repeated=len(todo))
        write_records(beside, list(records.values()))
    return len(todo), odd


def _told(case: Case, found: str) -> str:
    return f"{dict(case)}: {found}" if found else ""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; see the module for exit codes."""
    return run_command("repeat", __doc__, words, _repeat, wordless=True)


def _repeat(words: list[str]) -> int:
    names = [word for word in words if "=" not in word]
    if not names:
        raise Slip("which experiment? `python -m experiments.list` names them all")
    options = parse_options(
        [word for word in words if "=" in word], ("share", "least", "pages", "out", *_spread.WORDS)
    )
    launcher = launcher_of(options)
    share = number(options, "share", 0.05, 0.0, 1.0)
    least = whole(options, "least", 4, 1, 10**6)
    pages, folder = Path(options.get("pages", PAGES)), Path(options.get("out", RESULTS))
    chosen, status = matching(names), 0
    check_folder("out", folder)
    for entry in chosen:
        try:
            runs, odd = repeat(entry, pages, folder, share, least, launcher)
        except Slip:
            raise
        except (ValueError, WorkerLost, OtherCode) as error:
            complain(f"repeat: {entry.name}: {error}")
            status = 1
            continue
        status = max(status, int(bool(odd)))
        told = odd or ("the same rows" if runs else "made by the code of now")
        print(f"{entry.name}: {runs} runs: {told}" if runs else f"{entry.name}: {told}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
