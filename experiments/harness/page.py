"""The page of a paper: each figure beside the paper's numbers, as Markdown and as HTML."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from agents.statistics import Interval, shown
from experiments.harness.catalogue import OURS, PAPERS, Entry
from experiments.harness.claims import Claim, Verdict
from experiments.harness.fingerprint import ROOT
from experiments.harness.headlines import headlines, judged_by, learnt
from experiments.harness.results import Result, read_table, title_of

MAPS = "maps.png"
"""The picture of `harness.maps`, beside a page."""
_MARKS = {
    Verdict.REPRODUCED: "✓",
    Verdict.DIRECTION: "~",
    Verdict.NOT: "✗",
    Verdict.UNMEASURED: "–",
}
_LEGEND = ", ".join(f"{mark} {v.value}" for v, mark in _MARKS.items())
_LEGEND += " ([rules](../experiments.md#verdicts))."
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

    Raises:
        ValueError: a headline names a claim that its experiment does not make, though its result is of today.
    """
    without_series = without_series or {}
    said = "statement" if paper == OURS else "sentence"
    whose = "statement that we set out to show" if paper == OURS else "sentence of the paper"
    size = "" if scale == "paper" else f" from results at scale **{scale}**, not the paper's sizes"
    lines = [
        f"# {PAPERS[paper]}: what reproduces",
        "",
        f"Made by `python -m experiments.report`{size}. {_LEGEND} Intervals are 95 % over seeds; a number "
        f"without one has no sampling error or one seed. A row is one {whose}; its parts "
        f"(models, loads, readings) are in [claims.csv]({paper}/claims.csv), what was set in "
        f"[parameters.csv]({paper}/parameters.csv). {_repeated(results)}".rstrip(),
        "",
        *_main_claims(paper, results, wrong),
        *_where_they_hold(paper, mapped_claims(paper, results)),
    ]
    counted = [c for _, result in results for c in result.claims if not c.question]
    lines += [f"## All {said}s", "", f"{_counts(counted)}, of {len(counted)} {said}s.", ""]
    if scale == "paper" and (found := learnt(paper)):
        lines += ["## What the paper does not say", "", *(f"- {one}" for one in found), ""]
    above = {(headline.experiment, headline.sentence) for headline in headlines(paper)}
    for entry, result in results:
        rows = _rows(entry, without_series.get(entry))
        lines += [*_section(entry, result, wrong.get(entry, ""), rows, above), ""]
    questions = [
        _row(claim, f"[{result.figure}](#{_anchor(result, entry)})")
        for entry, result in results
        for claim in result.claims
        if claim.question
    ]
    if questions:
        lines += ["## Questions of ours", "", "They count nowhere above.", ""]
        lines += [
            "| | figure | question | expected | ours | |",
            "|---|---|---|---|---|---|",
        ]
        lines += [*questions, ""]
    if missing:
        lines += ["## Not run", ""]
        lines += [f"- `{entry.name}`: {entry.title}" for entry in missing]
    return "\n".join(lines).rstrip() + "\n"


def _main_claims(
    paper: str, results: Sequence[tuple[Entry, Result]], wrong: Mapping[Entry, str]
) -> list[str]:
    """The table of the main claims, with its counts; nothing where a paper has none."""
    claims = {entry.name: result.claims for entry, result in results}
    links = {e.name: f"[{r.figure}](#{_anchor(r, e)})" for e, r in results}
    old = {entry.name for entry in wrong}
    rows, found = [], []
    for headline in headlines(paper):
        try:
            claim = judged_by(headline, claims)
        except ValueError:
            if headline.experiment not in old:
                raise
            claim = None
        if claim is None:
            state = "is older than this claim" if headline.experiment in old else "has not been run"
            what = f"`{headline.experiment}` {state}"
            rows.append(_cells("–", f"{headline.says} ({headline.where})", "", what, "", ""))
            continue
        found.append(claim)
        good = claim.verdict is Verdict.REPRODUCED
        why = claim.how if good else headline.why or claim.reason
        why += f" ([map](#{_MAPS.lower().replace(' ', '-')}))" if claim.mapped else ""
        says = f"{headline.says} ({headline.where}; {links[headline.experiment]})"
        rows.append(_cells(_mark(claim), says, claim.paper, measured(claim), claim.setting, why))
    if not rows:
        return []
    head = [
        "| | main claim | paper | ours | setting | how, or why not |",
        "|---|---|---|---|---|---|",
    ]
    left = len(rows) - len(found)
    not_run = f", {left} not run" if left else ""
    counts = f"**{_counts(found)}{not_run}, of {len(rows)} main claims.**"
    return ["## Main claims", "", counts, "", *head, *rows, ""]


_MAPS = "Where the main claims hold"


def mapped_claims(paper: str, results: Sequence[tuple[Entry, Result]]) -> list[tuple[str, Claim]]:
    """Main claims that were judged in several settings, each under what it says."""
    claims = {entry.name: result.claims for entry, result in results}
    found = []
    for headline in headlines(paper):
        with suppress(ValueError):  # told where the table is made
            claim = judged_by(headline, claims)
            if claim is not None and claim.mapped:
                found.append((headline.says, claim))
    return found


def _where_they_hold(paper: str, mapped: Sequence[tuple[str, Claim]]) -> list[str]:
    if not mapped:
        return []
    text = (
        "A line is a setting that the paper's text or its released code allows, the one that we judge first "
        "on top; a hollow mark is a setting of ours, which counts nowhere. Shaded: where the claim "
        f"reproduces. Where each setting stands is in [claims.csv]({paper}/claims.csv)."
    )
    return [f"## {_MAPS}", "", text, "", f"![{_MAPS}]({paper}/{MAPS})", ""]


def _counts(claims: Sequence[Claim]) -> str:
    counts = Counter(claim.verdict for claim in claims)
    return ", ".join(f"{counts[v]} {v.value}" for v in Verdict if counts[v] or v in _ALWAYS_COUNTED)


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
    what = "rows" if left is None else "rows without series and episodes"
    return f"[{what}]({entry.paper}/{entry.name}.csv)"


def _repeated(results: Sequence[tuple[Entry, Result]]) -> str:
    again = sum(result.repeated for _, result in results)
    return f"{again:,} of the runs, done again later, gave the same." if again else ""


def _section(
    entry: Entry, result: Result, wrong: str, rows: str, above: Container[tuple[str, str]]
) -> list[str]:
    """What is shown of an experiment; of main claims, which stand `above`, no reasons."""
    lines = [f"## {_heading(result, entry)}", ""]
    lines += [f"![{entry.title}]({entry.paper}/{name})" for name in result.pictures]
    for name in result.tables:
        lines += ["", f"*{title_of(name, entry.name)}*"] if len(result.tables) > 1 else []
        lines += ["", *table_lines(*read_table(result.folder / name))]
    module = f"../../{entry.path.relative_to(ROOT).as_posix()}"
    told = [
        *entry.text.partition("\n\n")[0].split(),
        f"`{result.command}`: {result.runs} runs, {result.wall_s:,.0f} s of one core; "
        f"[setting]({module}), {rows}.",
    ]
    if wrong:
        told.append(f"**This result was {wrong}.**")
    lines += ["", " ".join(told)]
    if counted := [claim for claim in result.claims if not claim.question]:
        expected = "expected" if entry.paper == OURS else "paper"
        lines += ["", f"| | claim | {expected} | ours | how, or why not |", "|---|---|---|---|---|"]
        lines += [_row(c, is_above=(entry.name, c.sentence) in above) for c in counted]
    return lines


def _row(claim: Claim, *more: str, is_above: bool = False) -> str:
    """A claim's row, with what else comes before its sentence."""
    earned = claim.verdict is Verdict.REPRODUCED
    words = [claim.how if earned else claim.reason, claim.note, claim.setting]
    told = "; ".join(
        filter(None, ["[main claim](#main-claims)", claim.note] if is_above else words)
    )
    return _cells(_mark(claim), *more, claim.sentence, claim.paper, measured(claim), told)


def _cells(*texts: str) -> str:
    """A row of a table, whatever is in the texts."""
    plain = (" ".join(text.split()).replace("|", "\\|") for text in texts)
    return f"| {' | '.join(plain)} |"


def claims_table(results: Sequence[tuple[Entry, Result]]) -> list[dict[str, Any]]:
    """A row per claim and per part, parts of parts included ("untuned > 64"), with all that was found."""
    return [
        {
            "experiment": entry.name,
            "figure": result.figure,
            "claim": claim.sentence,
            "part": part,
            "counts": not claim.question and not part,
            "paper": one.paper,
            "ours": one.ours.mean,
            "low": one.ours.low,
            "high": one.ours.high,
            "unit": one.unit,
            "verdict": one.verdict.value,
            **{
                name: _unless_said(claim, one, name)
                for name in ("setting", "how", "reason", "note")
            },
        }
        for entry, result in results
        for claim in result.claims
        for part, one in _parts("", claim)
    ]


def _unless_said(claim: Claim, part: Claim, name: str) -> str:
    """A text of a part, if its claim does not say the same."""
    text: str = getattr(part, name)
    return "" if part is not claim and text == getattr(claim, name) else text


def _parts(name: str, claim: Claim) -> Iterator[tuple[str, Claim]]:
    """A claim and what it is made of, each with where it stands."""
    yield name, claim
    for part in claim.parts:
        yield from _parts(f"{name} > {part.sentence}" if name else part.sentence, part)


def parameters_table(results: Sequence[tuple[Entry, Result]]) -> list[dict[str, Any]]:
    """A row per parameter of an experiment, its value as JSON has it."""
    return [
        {"experiment": entry.name, "parameter": name, "value": json.dumps(value), "from": source}
        for entry, result in results
        for name, (value, source) in result.parameters.items()
    ]


def _heading(result: Result, entry: Entry) -> str:
    return f"{result.figure}: {entry.title.rstrip('.')}"


def _anchor(result: Result, entry: Entry) -> str:
    """As GitHub and Python-Markdown make it from the heading."""
    kept = "".join(c for c in _heading(result, entry).lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _mark(claim: Claim) -> str:
    return _MARKS[claim.verdict]
