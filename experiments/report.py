"""Collect results into a page: a paper's main claims, each figure, the paper's numbers, ours, a verdict.

    python -m experiments.report [paper=chiron] [scale=paper|quick] [results=DIRECTORY] [out=DIRECTORY]
    python -m experiments.report redraw=true [paper=chiron] [out=DIRECTORY]

    paper=NAME           one paper; all that have results if left out
    scale=paper          results at the paper's sizes; quick: the small ones
    results=DIRECTORY    where `experiments.run` wrote; "results" if left out
    out=DIRECTORY        where the pages go; "docs/reproduction" if left out
    redraw=true          nothing but the pictures, anew from the rows that lie beside the pages

Writes OUT/PAPER.md, the same as PAPER.html, and in OUT/PAPER/ pictures, rows, `claims.csv` (every claim and
its parts), `parameters.csv` and `records.json` (what else a result holds); rows that an experiment names as
series (many) are left out. At the paper's scale, what DIRECTORY has no result of today of is taken from
beside the page, and judged anew where all rows lie there. Experiments without results are named on the page.
Results that other code made than is here now (see `experiments.repeat`), or that were made with other
parameters than those of their scale, are an error; `stale=true` takes them all the same, and the page says of
each what it is. `redraw=true` needs no results: it draws with the figures' code as it is now
what lies in OUT/PAPER/NAME.csv, and leaves pictures alone whose rows do not lie there, or come from other
cases than the figure has now; each is named.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from experiments.harness.catalogue import PAPERS, Entry, Experiment, entries, load
from experiments.harness.claims import Claim
from experiments.harness.fingerprint import fingerprint
from experiments.harness.maps import maps
from experiments.harness.page import (
    MAPS,
    claims_table,
    html,
    mapped_claims,
    markdown,
    parameters_table,
)
from experiments.harness.parameters import Parameters
from experiments.harness.picture import is_whole, pictures_of, save
from experiments.harness.results import (
    RECORDS,
    ROWS,
    Result,
    cell,
    digest_of,
    number_or_text,
    of_cases,
    read_records,
    read_result,
    read_rows,
    rows_beside_page,
    write_records,
    write_table,
)
from experiments.output import RESULTS
from llmscale_env._cli import (
    Slip,
    check_folder,
    complain,
    flag,
    one_of,
    parse_options,
    run_command,
    some_of,
)
from llmscale_env._writing import replace_file

PAGES = Path("docs/reproduction")


def collect(
    paper: str, scale: str, folder: Path, out: Path
) -> tuple[list[tuple[Entry, Result]], list[Entry], dict[Entry, str]]:
    """(experiments with results, those without, what is wrong with the results of some).

    A result comes from `folder`; at the paper's scale from beside the page in `out` where there is none, or
    one of other code or parameters than those of now.

    Raises:
        ValueError: a result that cannot be read.
    """
    kept = read_records(out / paper) if scale == "paper" else {}
    found, missing, wrong = [], [], {}
    for entry in entries():
        if entry.paper != paper:
            continue
        result = read_result(folder / entry.name / scale)
        fault = _fault(entry, result) if result else ""
        if entry.name in kept and (result is None or fault):
            all_rows = folder / entry.name / scale / ROWS
            result, fault = _beside_page(entry, kept[entry.name], all_rows)
        if result is None:
            missing.append(entry)
            continue
        if fault:
            wrong[entry] = fault
        found.append((entry, result))
    return found, missing, wrong


def _fault(entry: Entry, result: Result) -> str:
    """What is wrong with a result from `experiments.run`."""
    if result.code != fingerprint(entry.module):
        return "made by other code than is here now"
    return _other_parameters(entry, result)


def _other_parameters(entry: Entry, result: Result) -> str:
    values = {name: value for name, (value, _) in result.parameters.items()}
    now = load(entry).parameters[result.scale].model_dump(mode="json")
    return "" if values == now else f"made with other parameters than those of scale {result.scale}"


def _beside_page(entry: Entry, kept: Result, all_rows: Path) -> tuple[Result, str]:
    """A result whose rows lie beside the page, judged by the code of now; and what is wrong with it.

    Where an excerpt lies there it is judged from `all_rows`, if these are the ones that it was taken from.
    """
    experiment = load(entry)
    source = kept.folder / f"{entry.name}.csv"
    fault = _other_parameters(entry, kept)
    if kept.rows != digest_of_file(source):
        fault = f"written down for other rows than those in {source.name}"
    elif not fault and kept.cases != cases_now(experiment):
        fault = "made of other runs than there are now"
    elif not fault and kept.run_code != fingerprint(entry.module, "run"):
        fault = "made by other code than is here now"
    code = fingerprint(entry.module, "claims")
    if kept.claims and kept.claims_code == code:
        return kept, fault
    claims = _judged(experiment, kept, source) or _judged_whole(experiment, kept, all_rows)
    if claims is None:
        return kept, fault or "judged by other code than is here now"
    return replace(kept, claims=claims, claims_code=code), fault


def cases_now(experiment: Experiment) -> str:
    """Digest of an experiment's runs at the paper's scale."""
    made = experiment.cases(experiment.settings("paper", {}))  # as `experiments.run` makes them
    return digest_of([dict(case) for case in made])


def digest_of_file(path: Path) -> str:
    """Of its text; "" if there is none."""
    return digest_of(path.read_text(encoding="utf-8")) if path.is_file() else ""


def _judged(experiment: Experiment, result: Result, source: Path) -> tuple[Claim, ...] | None:
    """The claims of an experiment from the rows beside the page, if all of them lie there."""
    if not source.is_file() or experiment.series or experiment.excerpt:
        return None
    parameters = _parameters(experiment, result)
    try:
        return tuple(experiment.claims(read_rows(source, parameters), parameters))
    except (LookupError, ValueError, TypeError, ArithmeticError):
        return None


def _judged_whole(experiment: Experiment, kept: Result, all_rows: Path) -> tuple[Claim, ...] | None:
    """The claims from all rows of a run, if what lies beside the page was taken from them."""
    import pandas as pd

    if not all_rows.is_file():
        return None
    parameters = _parameters(experiment, kept)
    try:
        taken = rows_beside_page(all_rows, experiment.series, parameters, experiment.excerpt)
        if taken is None or digest_of(taken) != kept.rows:
            return None
        return tuple(experiment.claims(pd.read_csv(all_rows, low_memory=False), parameters))
    except (LookupError, ValueError, TypeError, ArithmeticError):
        return None


def _without_claims(entry: Entry, result: Result, source: Path) -> Result:
    """A result as it is written down: without claims, if the rows beside the page say the same."""
    again = _judged(load(entry), result, source)
    same = again is not None and _told(entry, replace(result, claims=again)) == _told(entry, result)
    return replace(result, claims=() if same else result.claims, rows=digest_of_file(source))


def _told(entry: Entry, result: Result) -> list[list[str]]:
    """All that claims and their parts say, with a reader's digits."""
    rows = claims_table([(entry, result)])
    return [[cell(value) for value in row.values()] for row in rows]


def _parameters(experiment: Experiment, result: Result) -> Parameters:
    """Those that a result was made with; those of now where they had others then."""
    now = experiment.parameters[result.scale]
    try:
        return type(now).model_validate({k: value for k, (value, _) in result.parameters.items()})
    except ValidationError:
        return now


def write_page(
    paper: str,
    scale: str,
    found: Sequence[tuple[Entry, Result]],
    missing: Sequence[Entry],
    wrong: Mapping[Entry, str],
    out: Path,
) -> Path:
    """Write a paper's page in both forms, and what it shows; returns the Markdown file.

    Raises:
        ValueError: a main claim that no experiment makes; a page at the paper's scale that one of another
            would replace. Nothing is written then.
    """
    pictures = out / paper
    if scale != "paper" and (pictures / RECORDS).is_file():
        raise ValueError(f"out = {out}: has the page at the paper's scale, which stays")
    without_series, beside = {}, {}
    for entry, result in found:
        experiment = load(entry)
        path = pictures / f"{entry.name}.csv"
        if result.folder != pictures:
            beside[path] = rows_beside_page(
                result.folder / ROWS,
                experiment.series,
                _parameters(experiment, result),
                experiment.excerpt,
            )
        if experiment.series:
            without_series[entry] = beside[path] is not None if path in beside else path.is_file()
    text = markdown(paper, found, missing, wrong, scale, without_series)
    page = html(text, PAPERS[paper])
    for _, result in found:
        if result.folder != pictures:
            for name in (*result.pictures, *result.tables):
                _copy(result.folder / name, pictures / name)
    if (figure := maps(mapped_claims(paper, found))) is None:
        (pictures / MAPS).unlink(missing_ok=True)
    else:
        replace_file(pictures / MAPS, partial(save, figure))
    for path, rows in beside.items():
        if rows is None:
            path.unlink(missing_ok=True)
        else:
            replace_file(path, partial(_write, text=rows))
    for name, table in (("claims", claims_table(found)), ("parameters", parameters_table(found))):
        made = partial(write_table, rows=table, shown=number_or_text)
        replace_file(pictures / f"{name}.csv", made)
    if scale == "paper":
        kept = [_without_claims(e, result, pictures / f"{e.name}.csv") for e, result in found]
        write_records(pictures, kept)
    replace_file(out / f"{paper}.html", lambda part: _write(part, page))
    return replace_file(out / f"{paper}.md", lambda part: _write(part, text))


def redraw(entry: Entry, out: Path) -> str:
    """Draw an experiment's pictures from the rows beside its paper's page; returns why not, if not."""
    source = out / entry.paper / f"{entry.name}.csv"
    if not source.is_file():
        return f"no {source}"
    experiment = load(entry)
    parameters = experiment.parameters["paper"]
    frame = read_rows(source, parameters)
    try:
        part = experiment.excerpt is not None
        if not of_cases(frame, experiment.cases(parameters), excerpt=part):
            return f"{source} holds other cases than there are now"
        pictures = pictures_of(experiment, frame, parameters)
    except (KeyError, ValueError, IndexError, OSError):
        return f"{source} is not enough to draw it"
    if not all(is_whole(figure) for figure in pictures.values()):
        return f"{source} is not enough to draw it"
    for name, figure in pictures.items():
        replace_file(source.parent / name, partial(save, figure))
    return ""


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    def write(part: Path) -> None:
        shutil.copyfile(source, part)

    replace_file(target, write)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; 0 when it worked, 1 when there is nothing sound to report, 2 for a slip."""
    return run_command("report", __doc__, words, _report, wordless=True)


def _report(words: list[str]) -> int:
    options = parse_options(words, ("paper", "scale", "results", "out", "stale", "redraw"))
    papers = some_of(options, "paper", tuple(PAPERS))
    if flag(options, "redraw"):
        return _redraw(papers, options)
    scale = one_of(options, "scale", ("paper", "quick"))
    take_stale = flag(options, "stale")
    folder, out = Path(options.get("results", RESULTS)), Path(options.get("out", PAGES))
    written, notes = 0, []
    for paper in papers:
        try:
            found, missing, wrong = collect(paper, scale, folder, out)
        except ValueError as error:
            complain(f"report: {error}")
            return 1
        if wrong and not take_stale:
            for entry, what in wrong.items():
                print(f"report: {entry.name}: {what}", file=sys.stderr)
            names = " ".join(entry.name for entry in wrong)
            print(
                f"report: nothing written; python -m experiments.run {names} scale={scale} mends it, "
                "stale=true takes them as they are",
                file=sys.stderr,
            )
            return 1
        if found:
            check_folder("out", out)
            try:
                page = write_page(paper, scale, found, missing, wrong, out)
            except ValueError as error:
                complain(f"report: {error}")
                return 1
            print(f"written: {page}")
            written += 1
        notes += [f"{entry.name}: {what}" for entry, what in wrong.items()]
        notes += [f"not run at scale {scale}: {entry.name}" for entry in missing]
    if not written:
        complain(
            f"report: no results at scale {scale} in {folder}; "
            f"python -m experiments.run all scale={scale} makes them"
        )
        return 1
    print("\n".join(notes))
    return 0


def _redraw(papers: Sequence[str], options: Mapping[str, str]) -> int:
    if unused := {"scale", "results", "stale"} & set(options):
        raise Slip(f"redraw=true takes paper and out alone, not {', '.join(sorted(unused))}")
    out = Path(options.get("out", PAGES))
    check_folder("out", out)
    drawn = 0
    for entry in entries():
        if entry.paper in papers:
            why_not = redraw(entry, out)
            drawn += not why_not
            print(
                f"{entry.name}: {f'left as it is: {why_not}' if why_not else 'drawn'}", flush=True
            )
    if not drawn:
        complain(f"report: no rows in {out} that a picture can be drawn from")
    return 0 if drawn else 1


if __name__ == "__main__":
    sys.exit(main())
