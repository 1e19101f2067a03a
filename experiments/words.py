"""How long the sentences of the documentation are: a mean of 25 words at most, and none over 40.

    python -m experiments.words                     per page: words, sentences, their mean and longest
    python -m experiments.words docs/engine.md      its sentences of more than 40 words, too
    python -m experiments.words docs README.md      of some pages or folders

Text in code blocks, tables and headings is no sentence; a link counts by its text, and what stands in
backquotes is one word. An item of a list ends a sentence, and so does a colon before a list or a code block.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmscale_env._cli import Slip, run_command, table

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "docs")
LONGEST, MEAN = 40, 25
"""Words of a sentence: no more in any, and no more in the mean of a page."""

_ENDS = re.compile(r"(?<=[.!?])[)\"'*_]*\s+(?=[\"'(*_`\[]*[A-Z0-9`])")
_NO_END = re.compile(r"\b(e\.g|i\.e|et al|vs|cf|Fig|Figs|Eq|Eqs|Sec|No|approx)\.$")


@dataclass(frozen=True)
class PageWords:
    """The sentences of a page.

    Attributes:
        words: of all text, tables included; without code blocks.
        sentences: as they stand, without marks of Markdown.
    """

    path: Path
    words: int
    sentences: tuple[str, ...]

    @property
    def lengths(self) -> list[int]:
        """Words of each sentence."""
        return [len(s.split()) for s in self.sentences]

    @property
    def mean(self) -> float:
        """Words of a sentence; 0 without sentences."""
        return sum(self.lengths) / max(1, len(self.sentences))

    @property
    def too_long(self) -> list[str]:
        """Sentences of more than `LONGEST` words."""
        return [s for s in self.sentences if len(s.split()) > LONGEST]


def read_page(path: Path) -> PageWords:
    """The sentences of a file of Markdown."""
    text = re.sub(r"<!--.*?-->", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"^(---\n.*?\n---\n)", "", text, flags=re.DOTALL)
    text = re.sub(r"^\s*(```|~~~).*?^\s*\1\s*$", "\n\n", text, flags=re.DOTALL | re.MULTILINE)
    sentences = tuple(s for block in _blocks(text) for s in _sentences(block))
    return PageWords(path, len(_plain(text).split()), sentences)


def pages(places: Sequence[str] = PAGES) -> list[PageWords]:
    """Pages, sorted; the files of Markdown in folders.

    Raises:
        Slip: neither a file of Markdown nor a folder.
    """
    found: list[Path] = []
    for place in places:
        path = Path(place) if Path(place).exists() else ROOT / place
        if path.is_dir():
            found += sorted(path.rglob("*.md"))
        elif path.suffix == ".md" and path.is_file():
            found.append(path)
        else:
            raise Slip(f"{place!r}: must be a file of Markdown or a folder")
    return [read_page(path) for path in found]


def _plain(text: str) -> str:
    """Without the marks of Markdown."""
    text = re.sub(r"!\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"(`+)(.+?)\1", "Code", text, flags=re.DOTALL)
    return re.sub(r"<[^>\n]+>|[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}(?=\W|$)", "", text)


def _blocks(text: str) -> Iterator[str]:
    """Paragraphs and items of lists."""
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        bare = line.strip()
        item = re.match(r"([-*+]|\d+[.)])\s+(.*)", bare)
        ends = not bare or bare.startswith(("|", "#", ">", "<", "!!!", "???", "===")) or item
        if ends and block:
            yield " ".join(block)
            block = []
        if item:
            block = [item[2]]
        elif not ends:
            block.append(bare)


def _sentences(block: str) -> Iterator[str]:
    begun = ""
    for part in _ENDS.split(_plain(block)):
        begun = f"{begun} {part}".strip()
        if not _NO_END.search(begun):
            yield begun
            begun = ""
    if begun:
        yield begun


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 where all pages keep both bounds, otherwise 1."""
    return run_command("words", __doc__, argv, _show, wordless=True)


def _show(words: list[str]) -> int:
    read = pages(words or PAGES)
    rows = []
    for page in read:
        longest = max(page.lengths, default=0)
        kept = page.mean <= MEAN and longest <= LONGEST
        path = page.path.resolve()
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        count = str(len(page.sentences))
        rows.append(
            [
                str(name),
                str(page.words),
                count,
                f"{page.mean:.1f}",
                str(longest),
                "" if kept else "!",
            ]
        )
    total = sum(page.words for page in read)
    print(
        table(
            ["page", "words", "sentences", "mean", "longest", ""],
            [*rows, ["all", str(total)] + [""] * 4],
        )
    )
    if words:
        for page in read:
            for sentence in page.too_long:
                print(f"\n{page.path}: {len(sentence.split())} words: {sentence}")
    return int(any(row[-1] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
