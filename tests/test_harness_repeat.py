"""Results that lie beside the pages: a page made from them alone, and runs that are done again."""

from __future__ import annotations

import csv
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from experiments import repeat, report, run
from experiments.harness.catalogue import PAPERS, entries, load, matching
from experiments.harness.claims import about, exact
from experiments.harness.fingerprint import fingerprint
from experiments.harness.parameters import Parameters
from experiments.harness.results import read_records, write_records

NAME, PAPER = "blitzscale-fig12", "blitzscale"
(ENTRY,) = matching([NAME])


@pytest.fixture
def pages(tmp_path):
    """A page with one figure, whose runs take no time, as another revision left it."""
    beside = tmp_path / "pages" / PAPER
    beside.mkdir(parents=True)
    for path in (report.PAGES / PAPER).glob(f"{NAME}*"):
        shutil.copy(path, beside)
    kept = read_records(report.PAGES / PAPER)[NAME]
    digests = {"cases": report.cases_now(load(ENTRY)), "rows": kept.rows}
    write_records(beside, [replace(kept, run_code="older", repeated=0, **digests)])
    return tmp_path / "pages"


def again(pages, *words):
    return repeat.main([NAME, f"pages={pages}", f"out={pages / 'results'}", "workers=1", *words])


def paged(pages, *words):
    words = [f"paper={PAPER}", f"out={pages}", f"results={pages / 'none'}", *words]
    status = report.main(words)
    path = pages / f"{PAPER}.md"
    return status, path.read_text() if path.exists() else ""


def change(pages, change_rows):
    """Other rows beside the page, written down as its own."""
    path = pages / PAPER / f"{NAME}.csv"
    rows = list(csv.DictReader(path.read_text().splitlines()))
    change_rows(rows)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    kept = read_records(pages / PAPER)[NAME]
    write_records(pages / PAPER, [replace(kept, rows=report.digest_of_file(path))])


def test_every_page_has_its_records():
    for paper in PAPERS:
        names = {entry.name for entry in entries() if entry.paper == paper}
        assert set(read_records(report.PAGES / paper)) <= names


def test_runs_with_the_same_rows_make_a_result_one_of_today(pages, capsys):
    status, text = paged(pages)
    assert (status, text) == (1, "")
    assert "made by other code than is here now" in capsys.readouterr().err
    assert again(pages, "share=1") == 0
    kept = read_records(pages / PAPER)[NAME]
    assert kept.run_code == fingerprint("experiments.blitzscale.fig12_zigzag", "run")
    assert kept.repeated == kept.runs == 13
    status, text = paged(pages)
    assert status == 0
    assert "13 of the runs, done again later, gave the same." in text
    assert "## Figure 12" in text
    assert again(pages) == 0
    assert "made by the code of now" in capsys.readouterr().out


def test_as_few_runs_as_asked_for_are_done_again(pages, capsys):
    assert again(pages, "share=0.01", "least=2") == 0
    assert f"{NAME}: 2 runs: the same rows" in capsys.readouterr().out
    assert read_records(pages / PAPER)[NAME].repeated == 2


def test_a_row_that_differs_is_named(pages, capsys):
    path = pages / PAPER / f"{NAME}.csv"
    column = path.read_text().partition("\n")[0].split(",")[-1]
    change(pages, lambda rows: rows[0].update({column: "12345.6"}))
    assert again(pages, "share=1") == 1
    assert f"{column} " in (told := capsys.readouterr().out)
    assert " for 12345.6" in told
    assert read_records(pages / PAPER)[NAME].run_code == "older"


def test_rows_that_were_not_written_down_are_refused(pages, capsys):
    path = pages / PAPER / f"{NAME}.csv"
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")
    assert again(pages, "share=1") == 1
    assert "other rows than were written down" in capsys.readouterr().out
    assert paged(pages)[0] == 1
    assert "written down for other rows" in capsys.readouterr().err


def test_rows_too_many_or_too_few_are_told(pages, capsys):
    change(pages, lambda rows: rows.append(dict(rows[-1])))
    assert again(pages, "share=1") == 1
    assert "a row less than there" in capsys.readouterr().out


def test_other_runs_than_there_are_now_are_refused(pages, capsys):
    kept = read_records(pages / PAPER)[NAME]
    write_records(pages / PAPER, [replace(kept, cases="others")])
    assert again(pages) == 1
    assert "other runs now" in capsys.readouterr().out
    assert paged(pages)[0] == 1
    assert "made of other runs than there are now" in capsys.readouterr().err


def test_a_quick_page_replaces_no_page_of_the_papers_scale(pages, tmp_path, capsys):
    folder = tmp_path / "results"
    assert run.main([NAME, f"out={folder}", "workers=1"]) == 0
    words = [f"paper={PAPER}", f"out={pages}", f"results={folder}", "scale=quick"]
    assert report.main(words) == 1
    assert "has the page at the paper's scale, which stays" in capsys.readouterr().err


def test_a_run_without_a_column_has_not_the_rows_of_runs_with_it():
    rows = [{"seed": "1", "part_s": "", "x": "2"}, {"seed": "1", "part_s": "300", "x": "3"}]
    cases = [{"seed": 1}, {"seed": 1, "part_s": 300.0}]
    names = repeat.columns_of(cases)
    assert [repeat.known(case, rows, names) for case in cases] == [rows[:1], rows[1:]]


def test_rows_are_compared_both_ways():
    experiment = replace(load(ENTRY), clocks=("seconds",), excerpt=None, series=("second",))
    case = {"n": 3}

    def told(known, made, of=experiment):
        return repeat.difference(of, case, known, made, repeat.decimals_of(known))

    known = [{"n": "3", "x": "0.25", "seconds": "1"}]
    assert told(known, [{"x": 0.25, "seconds": 2.0}]) == ""
    assert told(known, [{"x": 0.25000001}, {"kind": "second", "x": 9.0}]) == ""
    assert told(known, [{"x": 0.3}]) == "x 0.3 for 0.25"
    assert told(known, [{"x": 0.25}, {"x": 0.25}]) == "2 rows for 1"
    assert told(known * 2, [{"x": 0.25}]) == "a row less than there"
    assert told(known, [{"x": 0.25, "failed": 9}]) == "failed 9, which the rows there have not"
    assert told(known, [{"x": 0.25, "failed": None}]) == ""
    assert told(known, []) == "no rows now"
    nothing = [{"n": "3", "x": "-6.6613e-16", "seconds": "1"}]
    assert told(nothing, [{"x": 2.2204e-16}]) == ""
    assert told(nothing, [{"x": 1e-9}]) == "x 1e-09 for 0"
    some = replace(experiment, excerpt=lambda frame, parameters: frame)
    assert told(known, [{"x": 0.25, "failed": 9}, {"x": 7.0}], some) == ""


def test_claims_beside_the_page_are_judged_by_the_code_of_now(pages):
    beside = pages / PAPER
    kept = read_records(beside)[NAME]
    run_code = fingerprint("experiments.blitzscale.fig12_zigzag", "run")
    old = (replace(about("s", 2.0, exact(9.0), nothing=1.0), sentence="Of yesterday"),)
    write_records(beside, [replace(kept, run_code=run_code, claims_code="older", claims=old)])
    status, text = paged(pages)
    assert status == 0
    assert "Of yesterday" not in text
    assert "verdict" in text
    assert not read_records(beside)[NAME].claims, "the rows beside the page say the same"


@pytest.mark.parametrize(
    "words, line",
    [
        ([], "repeat: which experiment?"),
        ([NAME, "share=2"], "repeat: share = '2': must be a number at least 0 and at most 1"),
        (["chiron-fig0"], "repeat: unknown experiment 'chiron-fig0'"),
    ],
)
def test_slips_are_one_line(words, line, capsys):
    assert repeat.main(words) == 2
    assert capsys.readouterr().err.startswith(line)


def test_pages_without_records_have_nothing_to_repeat(tmp_path, capsys):
    assert repeat.main([NAME, f"pages={tmp_path}"]) == 1
    assert "no rows beside the page" in capsys.readouterr().out
    (tmp_path / PAPER).mkdir()
    (tmp_path / PAPER / "records.json").write_text("[1]")
    assert repeat.main([NAME, f"pages={tmp_path}"]) == 1
    assert "records.json: cannot be read" in capsys.readouterr().err


def test_of_an_excerpt_what_lies_there_is_compared_to_its_decimals():
    experiment = SimpleNamespace(
        parameters={"paper": Parameters()},
        clocks=(),
        series=("series",),
        excerpt=lambda frame, parameters: frame,
    )
    there = [
        {"seed": "1", "kind": "series", "use": "0.847", "hours": "", "n": "1"},
        {"seed": "1", "kind": "total", "use": "0.5", "hours": "2.25", "n": "1"},
    ]
    decimals = repeat.decimals_of([*there, {**there[0], "n": "0.98765"}])
    assert decimals == {"seed": 0, "kind": 0, "use": 3, "hours": 2, "n": 5}

    def told(*rows):
        return repeat.difference(experiment, {"seed": 1}, there, rows, decimals)

    series = {"kind": "series", "use": 0.84731, "hours": 0.978, "n": 1.0}
    total = {"kind": "total", "use": 0.50004, "hours": 2.25, "n": 1.0}
    assert told(series, total, {**total, "use": 0.1}) == ""
    for change in ({"use": 0.5006}, {"hours": 2.26}, {"hours": 1.0}, {"n": 0.6}):
        (name,) = change
        assert name in told(series, {**total, **change})
    assert told(series)
    assert told(total, total)  # one row does not stand for two
    there[1]["hours"] = ""
    assert "hours" in told(series, total)  # nothing is left out of totals
