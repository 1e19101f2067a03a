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
experiment has to be run anew. Numbers that time the machine (an experiment's `CLOCKS`) are not compared.
Exit code 0 when nothing differs, 1 when something does or a run failed, 2 for a slip, 130 when interrupted.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.harness.cache import RunCache
from experiments.harness.catalogue import Entry, Experiment, load, matching
from experiments.harness.execute import outcomes
from experiments.harness.fingerprint import fingerprint
from experiments.harness.results import few_digits, read_records, write_records
from experiments.output import RESULTS
from experiments.report import PAGES
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
from llmscale_env._spread import Launcher, launcher_of

Row = Mapping[str, str]


def drawn(experiment: Experiment, rows: Sequence[Row], share: float, least: int) -> list[Any]:
    """Some of an experiment's runs at the paper's scale, of those that have rows beside the page."""
    made = experiment.cases(experiment.parameters["paper"])
    cases = [case for case in json.loads(json.dumps([dict(c) for c in made])) if _known(case, rows)]

    def digest(case: Mapping[str, Any]) -> str:
        return hashlib.sha256(json.dumps(case, sort_keys=True).encode()).hexdigest()

    return sorted(cases, key=digest)[: max(least, math.ceil(share * len(cases)))]


def _known(case: Mapping[str, Any], rows: Sequence[Row]) -> list[Row]:
    """The rows of a run."""
    cells = {
        name: few_digits(str(value))
        for name, value in case.items()
        if name in rows[0] and value is not None and not isinstance(value, (dict, list))
    }
    return [row for row in rows if all(row[name] == cell for name, cell in cells.items())]


def difference(
    case: Mapping[str, Any],
    known: Sequence[Row],
    made: Sequence[Mapping[str, Any]],
    clocks: Sequence[str] = (),
) -> str:
    """How the rows of a run that was done again differ from those that are known; "" if they do not.

    Args:
        case: the run.
        known: its rows as they lie beside the page, or some of them.
        made: its rows now.
        clocks: columns that time the machine.
    """
    names = [name for name in known[0] if name not in clocks]
    now = [{name: _cell({**case, **row}.get(name)) for name in names} for row in made]
    for row in known:
        was = {name: row[name] for name in names}
        if was in now:
            continue
        if not now:
            return "no rows now"
        near = max(now, key=lambda other: sum(was[name] == other[name] for name in names))
        odd = [name for name in names if was[name] != near[name]]
        return ", ".join(
            f"{name} {near[name] or 'nothing'} for {was[name] or 'nothing'}" for name in odd
        )
    return ""


def _cell(value: Any) -> str:
    return "" if value is None else few_digits(str(value))


def repeat(
    entry: Entry, pages: Path, folder: Path, share: float, least: int, launcher: Launcher
) -> tuple[int, str]:
    """(runs done again, what differs or is missing) of an experiment; what does not is written down.

    Raises:
        Slip, WorkerLost, OtherCode: as `harness.execute.outcomes`.
        ValueError: the page's records cannot be read.
    """
    beside = pages / entry.paper
    kept, source = read_records(beside).get(entry.name), beside / f"{entry.name}.csv"
    if kept is None or not source.is_file():
        return 0, "no rows beside the page"
    experiment = load(entry)
    values = {name: value for name, (value, _) in kept.parameters.items()}
    if values != experiment.parameters["paper"].model_dump(mode="json"):
        return 0, "other parameters now"
    code = fingerprint(entry.module, "run")
    if kept.run_code == code:
        return 0, ""
    with source.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    todo = drawn(experiment, rows, share, least)
    if not todo:
        return 0, "no runs of these rows now"
    cache, odd = RunCache(folder / "cache" / entry.name, code), ""
    with closing(outcomes(entry.module, todo, launcher)) as ended:
        for outcome in ended:
            case = outcome.case
            if not outcome.error and not case.get("timed"):
                cache.put(case, outcome.rows, outcome.wall_s)
            found = outcome.error or difference(
                case, _known(case, rows), outcome.rows, experiment.clocks
            )
            odd = odd or (f"{dict(case)}: {found}" if found else "")
    if not odd:
        records = read_records(beside)
        records[entry.name] = replace(kept, run_code=code, repeated=len(todo))
        write_records(beside, list(records.values()))
    return len(todo), odd


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
        except ValueError as error:
            complain(f"repeat: {error}")
            return 1
        status = max(status, int(bool(odd)))
        told = odd or ("the same rows" if runs else "made by the code of now")
        print(f"{entry.name}: {runs} runs: {told}" if runs else f"{entry.name}: {told}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
