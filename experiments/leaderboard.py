"""Write the leaderboard page from the results of `python -m experiments.run leaderboard`.

    python -m experiments.leaderboard [scale=paper|quick] [results=DIRECTORY] [out=FILE]

    scale=paper          results at full size; quick: the small ones
    results=DIRECTORY    where `experiments.run` wrote; "results" if left out
    out=FILE             the page; "docs/leaderboard.md" if left out. Its picture goes to images/ beside it

Exit code 1 where there are no results, or they were made by other code than is here now (`stale=true` takes
them all the same, and the page says so).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.harness.catalogue import SCALES, entries
from experiments.harness.fingerprint import fingerprint
from experiments.harness.page import measured, table_lines
from experiments.harness.results import Result, read_result, read_table, title_of
from experiments.output import RESULTS, replace_file
from llmscale_env._cli import flag, one_of, parse_options, run_command

PAGE = Path("docs/leaderboard.md")

OF_OLD_VERSIONS = {"placement": "Placement-v0", "multi-region": "MultiRegion-v0"}
"""What results of other code than is here now are of, where `env=NAME` means a later version since.

To be emptied when the results are made anew.
"""


def page(result: Result, picture: str, text: str, warning: str = "") -> str:
    """The page as Markdown.

    Args:
        result: of the leaderboard.
        picture: address of its picture.
        text: what is shown, without its first line.
        warning: what is wrong with the result.
    """
    lines = ["# Leaderboard", "", "Made by `python -m experiments.leaderboard`.", ""]
    lines += [f"**{warning}**", ""] if warning else []
    older = OF_OLD_VERSIONS if warning else {}
    of = " and ".join(f"`{env}` ({version})" for env, version in older.items())
    note = [f"Figures of {of} are of versions before those here now.", ""] if of else []
    lines += note
    lines += [text, "", f"![rewards by environment]({picture})"]
    for name in result.tables:
        env = title_of(name, result.name)
        lines += ["", f"## {env}", ""]
        if env in older:
            lines += [f"**Of {older[env]}; `env={env}` now means a later version.**", ""]
        lines += table_lines(*read_table(result.folder / name))
    lines += [
        "",
        "## Best learned against best handwritten",
        "",
        *note,
        "| environment and claim | ours | verdict | who, and why |",
        "|---|---|---|---|",
    ]
    for c in result.claims:
        why = ": ".join(text.rstrip(".") for text in (c.note, c.reason) if text)
        lines.append(f"| {c.sentence} | {measured(c)} | {c.verdict.value} | {why} |")
    lines += ["", f"`{result.command}`: {result.runs} runs, {result.wall_s:,.0f} s of one core."]
    return "\n".join(lines) + "\n"


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command: 0 written, 1 no results that fit, 2 for a slip."""
    return run_command("leaderboard", __doc__, words, _run, wordless=True)


def _run(words: list[str]) -> int:
    options = parse_options(words, ("scale", "results", "out", "stale"))
    scale = one_of(options, "scale", SCALES[::-1])
    stale = flag(options, "stale", False)
    (entry,) = (e for e in entries() if e.name == "leaderboard")
    folder = Path(options.get("results", RESULTS)) / entry.name / scale
    try:
        result = read_result(folder)
    except ValueError as error:
        print(f"leaderboard: {error}", file=sys.stderr)
        return 1
    if result is None:
        command = f"python -m experiments.run leaderboard scale={scale}"
        print(f"leaderboard: {folder} holds no results; make them: {command}", file=sys.stderr)
        return 1
    warning = ""
    if result.code != fingerprint(entry.module):
        warning = (
            "These results are of other code than is here now: CHANGELOG.md says what has changed."
        )
        if not stale:
            print(f"leaderboard: {folder}: {warning} stale=true takes them", file=sys.stderr)
            return 1
    out = Path(options.get("out", PAGE))
    picture = out.parent / "images" / result.pictures[0]
    drawn = (folder / result.pictures[0]).read_bytes()
    replace_file(picture, lambda part: _write(part, drawn))
    text = page(result, f"images/{picture.name}", entry.text, warning)
    replace_file(out, lambda part: _write(part, text.encode()))
    print(f"written: {out}, {picture}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
