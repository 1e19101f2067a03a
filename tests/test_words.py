"""How sentences of the documentation are counted, and that every page keeps the bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import words
from experiments.words import LONGEST, MEAN, pages, read_page


def page(folder: Path, text: str) -> words.PageWords:
    path = folder / "page.md"
    path.write_text(text, encoding="utf-8")
    return read_page(path)


def test_code_tables_headings_and_links_are_no_words_of_a_sentence(tmp_path: Path):
    read = page(
        tmp_path,
        "# A heading. Two parts\n\nOne [link to](https://example.org/a.b) `x = 1. Y` two. Three four:\n\n"
        "```\ncode. Not a sentence\n```\n\n| a. B | c |\n|---|---|\n\n- an item\n- another one. And more\n",
    )
    assert read.sentences == (
        "One link to Code two.",
        "Three four:",
        "an item",
        "another one.",
        "And more",
    )
    assert read.lengths == [5, 2, 2, 2, 2]


def test_an_abbreviation_or_a_number_ends_no_sentence(tmp_path: Path):
    read = page(tmp_path, "As in Fig. 3 and e.g. Vidur it takes 0.5 s. `next` begins here.\n")
    assert len(read.sentences) == 2


def test_every_page_keeps_the_bounds():
    for read in pages():
        assert not read.too_long, (read.path, read.too_long)
        assert read.mean <= MEAN, read.path


def test_the_command_says_which_sentence_is_too_long(tmp_path: Path, capsys):
    page(tmp_path, " ".join(["Word"] * (LONGEST + 1)) + ".\n")
    assert words.main([str(tmp_path)]) == 1
    assert f"{LONGEST + 1} words: Word Word" in capsys.readouterr().out
    page(tmp_path, "Short.\n")
    assert words.main([str(tmp_path)]) == 0


@pytest.mark.parametrize("place", ["nowhere.md", "pyproject.toml"])
def test_what_is_no_page_is_refused_in_one_line(place: str, capsys):
    assert words.main([place]) == 2
    assert "must be a file of Markdown or a folder" in capsys.readouterr().err
