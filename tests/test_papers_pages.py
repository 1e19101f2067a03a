"""The five papers' pages: main claims are judged, sentences are one row each, README has their totals."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from experiments.harness.catalogue import entries
from experiments.harness.claims import Verdict
from experiments.harness.headlines import headlines, learnt

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reproduction"
MAIN_CLAIMS = {"chiron": 9, "qlm": 7, "aladdin": 8, "blitzscale": 8, "sageserve": 7}
"""As many as the papers have in abstract, introduction and conclusion."""
MOST_LINES = 250


def claims_of(paper: str) -> list[dict[str, str]]:
    with (PAGES / paper / "claims.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("paper", MAIN_CLAIMS)
def test_main_claims_are_those_of_the_paper_and_each_is_judged_by_a_sentence(paper):
    main = headlines(paper)
    assert len(main) == MAIN_CLAIMS[paper]
    assert len({headline.says for headline in main}) == len(main)
    names = {entry.name for entry in entries() if entry.paper == paper}
    judged = {
        (row["experiment"], row["claim"]) for row in claims_of(paper) if row["counts"] == "True"
    }
    run = {row["experiment"] for row in claims_of(paper)}
    for headline in main:
        assert headline.experiment in names
        assert (headline.experiment, headline.sentence) in judged or headline.experiment not in run
    assert learnt(paper)


@pytest.mark.parametrize("paper", MAIN_CLAIMS)
def test_a_sentence_is_one_row_and_says_how_or_why(paper):
    rows = [row for row in claims_of(paper) if row["counts"] == "True"]
    sentences = [(row["experiment"], row["claim"]) for row in rows]
    assert len(set(sentences)) == len(sentences)
    for row in rows:
        assert "|" not in row["claim"]
        assert row["verdict"] in set(Verdict)
        if row["verdict"] == Verdict.REPRODUCED:
            assert row["how"], row
        elif row["verdict"] != Verdict.UNMEASURED:
            assert row["reason"], row


@pytest.mark.parametrize("paper", MAIN_CLAIMS)
def test_a_page_can_be_read_in_one_sitting(paper):
    assert len((PAGES / f"{paper}.md").read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_readme_has_the_totals_of_the_pages():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for paper, number in MAIN_CLAIMS.items():
        page = (PAGES / f"{paper}.md").read_text(encoding="utf-8")
        counts = re.search(rf"\*\*(\d+) reproduced, .*, of {number} main claims", page)
        assert counts, page[:2000]
        assert f"(docs/reproduction/{paper}.md) {counts[1]} of {number}" in readme
