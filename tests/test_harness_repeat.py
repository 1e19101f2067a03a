"""Results that lie beside the pages: a page made from them alone, and runs that are done again."""

from __future__ import annotations

import csv
import shutil
from dataclasses import replace

import pytest

from experiments import repeat, report
from experiments.harness.catalogue import PAPERS, entries
from experiments.harness.fingerprint import fingerprint
from experiments.harness.results import read_records, write_records

NAME, PAPER = "blitzscale-fig12", "blitzscale"


@pytest.fixture
def pages(tmp_path):
    """A page with one figure, whose runs take no time, as another revision left it."""
    beside = tmp_path / "pages" / PAPER
    beside.mkdir(parents=True)
    for path in (report.PAGES / PAPER).glob(f"{NAME}*"):
        shutil.copy(path, beside)
    kept = read_records(report.PAGES / PAPER)[NAME]
    write_records(beside, [replace(kept, run_code="older", repeated=0)])
    return tmp_path / "pages"


def again(pages, *words):
    return repeat.main([NAME, f"pages={pages}", f"out={pages / 'results'}", "workers=1", *words])


def paged(pages, *words):
    words = [f"paper={PAPER}", f"out={pages}", f"results={pages / 'none'}", *words]
    status = report.main(words)
    path = pages / f"{PAPER}.md"
    return status, path.read_text() if path.exists() else ""


def change(pages, column, value):
    path = pages / PAPER / f"{NAME}.csv"
    rows = list(csv.DictReader(path.read_text().splitlines()))
    rows[0][column] = value
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def test_every_page_has_its_records():
    for paper in PAPERS:
        if paper == "learned":
            continue
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
    change(pages, column, "12345.6")
    assert again(pages, "share=1") == 1
    assert f"{column} " in (told := capsys.readouterr().out)
    assert " for 12345.6" in told
    assert read_records(pages / PAPER)[NAME].run_code == "older"


def test_numbers_of_the_clock_are_not_compared():
    known, case = [{"n": "3", "seconds": "0.25"}], {"n": 3}
    assert repeat.difference(case, known, [{"seconds": 0.3}]) == "seconds 0.3 for 0.25"
    assert repeat.difference(case, known, [{"seconds": 0.3}], ("seconds",)) == ""
    assert repeat.difference(case, known, [], ("seconds",)) == "no rows now"


def test_claims_beside_the_page_are_judged_by_the_code_of_now(pages):
    beside = pages / PAPER
    kept = read_records(beside)[NAME]
    run_code = fingerprint("experiments.blitzscale.fig12_zigzag", "run")
    old = tuple(replace(claim, sentence=f"Old: {claim.sentence}") for claim in kept.claims)
    write_records(beside, [replace(kept, run_code=run_code, claims_code="older", claims=old)])
    status, text = paged(pages)
    assert status == 0
    assert "Old: " not in text
    assert [c.sentence for c in read_records(beside)[NAME].claims] == [
        c.sentence for c in kept.claims
    ]


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
