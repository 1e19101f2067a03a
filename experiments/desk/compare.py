"""Two answers of `llmscale advise` side by side: what was asked, who wins, how policies differ.

    llmscale compare A.json B.json [out=FILE.md]
    (or: python -m experiments.desk.compare ...)

    A.json B.json   answers; differences are B less A
    out=FILE.md     the same as a page of Markdown

Attainment is on the held-out part of each trace, and differs in points of a percent. GPU-hours and
dollars are of that part too; where the parts are not of one length, they are told per hour of it.
Exit codes: 0, 2 for a slip.

Examples:
    llmscale compare monday.json tuesday.json
    llmscale compare load-180s.json load-60s.json out=faster-loading.md
    llmscale compare a100.json h100.json | less
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.desk.answer import Answer, Outcome, Ranked, Target, read_answer
from experiments.desk.page import percent
from llmscale_env._cli import Slip, check_file, parse_options, run_command, table
from llmscale_env._writing import write_text

NOT_THERE = "\N{EN DASH}"


def compared(
    a: Answer, b: Answer, names: tuple[str, str] = ("A", "B"), markdown: bool = False
) -> str:
    """Two answers side by side, as text or Markdown.

    Args:
        a, b: the answers; differences are b less a.
        names: what the columns are called.
        markdown: tables and headings of Markdown, else columns aligned.
    """
    parts = [
        ("Question", _questions(a, b, names, markdown)),
        ("Winner", _winners(a, b, names, markdown)),
        ("On time, held-out part", _attainment(a, b, names, markdown)),
        (_cost_title(a, b), _costs(a, b, names, markdown)),
    ]
    if basis := _basis(a, b, names):
        parts.append(("What each rests on, where they differ", basis))
    if settings := _settings(a, b, names, markdown):
        parts.append(("Settings that differ", settings))
    return "\n\n".join(
        f"## {title}\n\n{text}" if markdown else f"{title}\n{text}" for title, text in parts
    )


def _questions(a: Answer, b: Answer, names: tuple[str, str], markdown: bool) -> str:
    """The fields in which the questions differ; the command line goes without saying."""
    rows = []
    for field in type(a.question).model_fields:
        first, second = getattr(a.question, field), getattr(b.question, field)
        if field not in ("words", "targets") and first != second:
            rows.append((field, _plain(first), _plain(second)))
    for name in _either(_target_names(a), _target_names(b)):
        first, second = _target(a, name), _target(b, name)
        if first != second:
            rows.append((f"target of {name}", _told(first), _told(second)))
    if a.version != b.version:
        rows.append(("version of llmscale", a.version, b.version))
    if not rows:
        return "both answer the same question"
    return _table(("", *names), rows, markdown)


def _basis(a: Answer, b: Answer, names: tuple[str, str]) -> str:
    """Sentences that one of them rests on alone: a roofline's times beside measured ones, say."""
    lines = []
    for name, mine, other in ((names[0], a, b), (names[1], b, a)):
        lines += [f"- {name}: {said}" for said in mine.rests_on if said not in other.rests_on]
    return "\n".join(lines)


def _winners(a: Answer, b: Answer, names: tuple[str, str], markdown: bool) -> str:
    rows = []
    for name, answer in zip(names, (a, b), strict=True):
        winner = answer.of(answer.winner)
        outcome = winner.held_out
        shares = ", ".join(
            f"{target.name} {percent(outcome.attainment.get(target.name))}"
            for target in answer.question.targets
        )
        keeps = "keeps every target" if winner.keeps else "misses a target"
        cost = (f"{outcome.gpu_hours:,.2f}", _dollars(outcome.usd))
        rows.append((name, winner.policy, shares, keeps, *cost, f"{outcome.peak_gpus:,}"))
    head = ("", "policy", "on time", "", "GPU-hours", "dollars", "peak GPUs")
    return _table(head, rows, markdown)


def _attainment(a: Answer, b: Answer, names: tuple[str, str], markdown: bool) -> str:
    rows = []
    for policy in _policies(a, b):
        for name in _either(_target_names(a), _target_names(b)):
            shares = [
                None if ranked is None else ranked.held_out.attainment.get(name)
                for ranked in (_of(a, policy), _of(b, policy))
            ]
            first, second = shares
            change = (
                NOT_THERE
                if first is None or second is None
                else f"{100 * (second - first):+.2f} points"
            )
            rows.append((policy, name, percent(first), percent(second), change))
    return _table(("policy", "class", *names, "difference"), rows, markdown)


def _held_h(answer: Answer) -> float:
    return (answer.question.span_s - answer.question.tuned_s) / 3600


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool) -> str:
    if markdown:  # a bar would end a cell
        head, *rows = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    return table(head, rows, markdown)


def _uneven(a: Answer, b: Answer) -> bool:
    return abs(_held_h(a) - _held_h(b)) > 0.01 * max(_held_h(a), _held_h(b))


def _cost_title(a: Answer, b: Answer) -> str:
    if _uneven(a, b):
        return f"Cost per hour (of {_held_h(a):.3g} and of {_held_h(b):.3g} hours held out)"
    return "Cost, held-out part"


def _costs(a: Answer, b: Answer, names: tuple[str, str], markdown: bool) -> str:
    lengths = [_held_h(a), _held_h(b)] if _uneven(a, b) else [1.0, 1.0]
    measures: list[tuple[str, Callable[[Outcome], float | None], Callable[[float | None], str]]] = [
        ("GPU-hours", lambda o: o.gpu_hours, _number),
        ("dollars", lambda o: o.usd, _dollars),
    ]
    rows = []
    for policy in _policies(a, b):
        pair = (_of(a, policy), _of(b, policy))
        for what, read, say in measures:
            found = [None if ranked is None else read(ranked.held_out) for ranked in pair]
            each = [None if v is None else v / h for v, h in zip(found, lengths, strict=True)]
            if each == [None, None]:  # no price in either
                continue
            rows.append((policy, what, say(each[0]), say(each[1]), *_change(each)))
    return _table(("policy", "", *names, "difference", ""), rows, markdown)


def _change(pair: Sequence[float | None]) -> tuple[str, str]:
    first, second = pair
    if first is None or second is None:
        return NOT_THERE, NOT_THERE
    share = f"{100 * (second / first - 1):+.1f} %" if first else NOT_THERE
    return f"{second - first:+,.2f}", share


def _settings(a: Answer, b: Answer, names: tuple[str, str], markdown: bool) -> str:
    rows = [
        (policy, first.spelled, second.spelled)
        for policy in _policies(a, b)
        if (first := _of(a, policy)) and (second := _of(b, policy))
        if first.spelled != second.spelled
    ]
    return _table(("policy", *names), rows, markdown) if rows else ""


def _policies(a: Answer, b: Answer) -> list[str]:
    return _either([r.policy for r in a.ranking], [r.policy for r in b.ranking])


def _either(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """All names, in the order of the first list and then of the second."""
    return list(dict.fromkeys([*first, *second]))


def _of(answer: Answer, policy: str) -> Ranked | None:
    return next((ranked for ranked in answer.ranking if ranked.policy == policy), None)


def _target_names(answer: Answer) -> list[str]:
    return [target.name for target in answer.question.targets]


def _target(answer: Answer, name: str) -> Target | None:
    return next((target for target in answer.question.targets if target.name == name), None)


def _told(target: Target | None) -> str:
    if target is None:
        return NOT_THERE
    share = f"{100 * target.attainment:g} %"
    return f"ttft {target.ttft_s:g} s, itl {target.itl_s:g} s for {share}"


def _plain(value: object) -> str:
    return NOT_THERE if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: float | None) -> str:
    return NOT_THERE if value is None else f"{value:,.2f}"


def _dollars(value: float | None) -> str:
    return NOT_THERE if value is None else f"${value:,.2f}"


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; see the module for exit codes."""
    return run_command("compare", __doc__, words, _run)


def _run(words: list[str]) -> int:
    # A file's name may have an equals sign in it.
    files = [word for word in words if "=" not in word or Path(word).is_file()]
    options = parse_options([word for word in words if word not in files], ("out",))
    paths = [Path(word) for word in files]
    if len(paths) != 2:
        raise Slip(f"takes two answers, as in A.json B.json; {len(paths)} are given")
    out = Path(options["out"]) if "out" in options else None
    if out is not None:
        if out.suffix.lower() != ".md":
            raise Slip(f"out = {str(out)!r}: must end in .md")
        check_file("out", out)
    a, b = (read_answer(path) for path in paths)
    stems = (paths[0].stem, paths[1].stem)
    names = ("A", "B") if stems[0] == stems[1] else stems
    for letter, path in zip(names, paths, strict=True):
        print(f"{letter}: {path}")
    print()
    print(compared(a, b, names))
    if out is not None:
        title = f"# {paths[0].name} and {paths[1].name}\n\n"
        write_text(out, title + compared(a, b, names, markdown=True) + "\n")
        print(f"\nwritten: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
