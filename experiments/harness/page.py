"""The page of a paper: each figure beside the paper's numbers, as Markdown and as HTML."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from agents.statistics import Interval, shown
from experiments.harness.catalogue import PAPERS, Entry
from experiments.harness.claims import TOLERANCE, Claim, Verdict
from experiments.harness.results import Result, read_table, title_of

_ALWAYS_COUNTED = (Verdict.REPRODUCED, Verdict.DIRECTION, Verdict.NOT)
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
img { max-width: 100%; } table { border-collapse: collapse; margin: 1rem 0; font-size: 0.9rem; }
th, td { border: 1px solid #ccc; padding: 0.3rem 0.6rem; text-align: left; vertical-align: top; }
th { background: #f3f3f3; } code { background: #f3f3f3; padding: 0 0.2em; }
pre { background: #f3f3f3; padding: 0.6rem; overflow-x: auto; } pre code { padding: 0; }
"""


def markdown(
    paper: str,
    results: Sequence[tuple[Entry, Result]],
    missing: Sequence[Entry],
    wrong: Mapping[Entry, str],
    scale: str,
    without_series: Mapping[Entry, bool] | None = None,
) -> str:
    """The page of one paper.

    Args:
        paper: key of `PAPERS`.
        results, missing: experiments with results, and those without.
        wrong: which results are not what they should be, and why.
        scale: of the results.
        without_series: experiments whose rows lie beside the page without series over time, and whether any
            are left.
    """
    without_series = without_series or {}
    claims = [claim for _, result in results for claim in result.claims]
    counts = Counter(claim.verdict for claim in claims)
    lines = [
        f"# {PAPERS[paper]}: what reproduces",
        "",
        "Made by `python -m experiments.report`"
        + ("" if scale == "paper" else f" from results at scale **{scale}**, not the paper's sizes")
        + ". Each figure stands beside the paper's numbers, with a verdict by rules that are the same "
        "for all (`experiments/harness/claims.py`): *reproduced* is within "
        f"{TOLERANCE:.0%} of the paper's number (or on its right side, where it promises a least or a "
        "most; or in its range), with an interval that leaves out no effect; *same direction, another "
        "size* is not that, but has the paper's sign with such an interval (a level, as \"all SLOs are "
        'met", has no direction); *not measured* is what never happened; the rest is *not reproduced*, '
        "with the reason that was found. Intervals are 95 %, over seeds; a number without one has no "
        "sampling error or one seed.",
        "",
        ", ".join(f"{counts[v]} {v.value}" for v in Verdict if counts[v] or v in _ALWAYS_COUNTED)
        + f", of {len(claims)} claims.",
        "",
        "| | figure | claim | paper | ours | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for entry, result in results:
        for claim in result.claims:
            figure = f"[{result.figure}](#{_anchor(result, entry)})"
            lines.append(f"| {_mark(claim)} | {figure} {_row(claim)}")
    for entry, result in results:
        rows = _rows(entry, without_series.get(entry))
        lines += ["", *_section(entry, result, wrong.get(entry, ""), rows)]
    if missing:
        lines += ["", "## Not run", ""]
        lines += [f"- `{entry.name}`: {entry.title}" for entry in missing]
    return "\n".join(lines) + "\n"


def html(text: str, title: str) -> str:
    """The same page for a browser; pictures lie beside it."""
    from markdown import Markdown

    converter = Markdown(extensions=["tables", "fenced_code", "toc", "md_in_html"])
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>{_STYLE}</style>\n{converter.convert(text)}\n</html>\n"
    )


def measured(claim: Claim) -> str:
    """Our number with its interval and unit."""
    shown = interval(claim.ours)
    return shown if math.isnan(claim.ours.mean) else f"{shown} {claim.unit}".rstrip()


def interval(found: Interval) -> str:
    """A mean with its bounds, where it has any that differ from it."""
    if math.isnan(found.mean):
        return "not measured"
    if math.isnan(found.low) or found.low == found.high:
        return shown(found.mean, 3)
    return f"{shown(found.mean, 3)} [{shown(found.low, 3)}, {shown(found.high, 3)}]"


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown; nothing without a head."""
    if not head:
        return []
    marked = ["---" if _is_text(k, rows) else "---:" for k in range(len(head))]
    return ["| " + " | ".join(line) + " |" for line in (head, marked, *rows)]


def _is_text(column: int, rows: Sequence[Sequence[str]]) -> bool:
    return any(row[column][:1].isalpha() for row in rows)


def _rows(entry: Entry, left: bool | None) -> str:
    """Where an experiment's rows are: beside the page all (None), those that are `left`, or none."""
    if left is False:
        return "rows, an episode each, stay in `results/`"
    what = "rows" if left is None else "rows, but for the many of series and episodes,"
    return f"{what} in [{entry.name}.csv]({entry.paper}/{entry.name}.csv)"


def _section(entry: Entry, result: Result, wrong: str, rows: str) -> list[str]:
    lines = [f"## {_heading(result, entry)}", ""]
    lines += [f"**This result was {wrong}.**", ""] if wrong else []
    lines += [f"![{entry.title}]({entry.paper}/{name})" for name in result.pictures]
    for name in result.tables:
        lines += ["", f"*{title_of(name, entry.name)}*"] if len(result.tables) > 1 else []
        lines += ["", *table_lines(*read_table(result.folder / name))]
    lines += ["", entry.text]
    if result.claims:
        lines += ["", "| | claim | paper | ours | verdict |", "|---|---|---|---|---|"]
        lines += [f"| {_mark(claim)} {_row(claim)}" for claim in result.claims]
    reasons = [f"- {claim.sentence}: {claim.reason}" for claim in result.claims if claim.reason]
    if reasons:
        lines += ["", "Why:", "", *reasons]
    notes = [f"- {claim.sentence}: {claim.note}" for claim in result.claims if claim.note]
    if notes:
        lines += ["", "Notes:", "", *notes]
    lines += ["", "| parameter | value | from |", "|---|---|---|"]
    lines += [f"| `{k}` | {_value(v)} | {source} |" for k, (v, source) in result.parameters.items()]
    lines += [
        "",
        f"`{result.command}`: {result.runs} runs, {result.wall_s:,.0f} s of one core; {rows}.",
    ]
    return lines


def _row(claim: Claim) -> str:
    return f"| {claim.sentence} | {claim.paper} | {measured(claim)} | {claim.verdict.value} |"


def _heading(result: Result, entry: Entry) -> str:
    return f"{result.figure}: {entry.title.rstrip('.')}"


def _anchor(result: Result, entry: Entry) -> str:
    """As GitHub and Python-Markdown make it from the heading."""
    kept = "".join(c for c in _heading(result, entry).lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _mark(claim: Claim) -> str:
    marks = {Verdict.REPRODUCED: "✓", Verdict.DIRECTION: "~", Verdict.NOT: "✗"}
    return marks.get(claim.verdict, "–")


def _value(value: object) -> str:
    return ", ".join(str(v) for v in value) if isinstance(value, list) else str(value)
