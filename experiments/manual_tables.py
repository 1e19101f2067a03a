"""Tables of an environment's page: rows that differ only in a name share one, with a place-holder for it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from llmscale_env.envs.base import ServingEnv
from llmscale_env.scenarios import Scenario

Names = tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """Entries that are alike but for the names in them.

    Attributes:
        numbers: their places, in order.
        name: with a place-holder for what differs, such as `POOL/active`.
        text: what the other cells of the table say.
    """

    numbers: tuple[int, ...]
    name: str
    text: str


def choices(env: ServingEnv, section: str) -> str:
    """The parts of an action. A part whose choices a table of the section lists says so."""
    parts = [
        (part, "as listed below" if _listed(part, section) else ", ".join(offered))
        for part, offered in env.action_choices.items()
    ]
    rows, names = folded(parts, placeholders(env.scenario))
    lines = [f"| {shown(row.numbers)} | `{row.name}` | {row.text} |" for row in rows]
    return "\n".join(["| Num | Part | Choices |", "|---|---|---|", *lines]) + _legend(names)


def entries(env: ServingEnv, said: str = "") -> str:
    """The entries of an observation; place-holders that the text `said` explains are not again."""
    parts = [
        (entry.name, f"{entry.low:g} | {entry.high:g} | {entry.meaning}")
        for entry in env.observation_entries
    ]
    rows, names = folded(parts, placeholders(env.scenario))
    lines = [f"| {shown(row.numbers)} | `{row.name}` | {row.text} |" for row in rows]
    head = ["| Num | Entry | Min | Max | Meaning |", "|---|---|---|---|---|"]
    return "\n".join([*head, *lines]) + _legend(names, said)


def placeholders(scenario: Scenario) -> dict[Names, str]:
    """Lists of names and the word that stands for one of them."""
    fleet = scenario.fleet
    found = {
        "CLASS": tuple(c.name for c in scenario.classes),
        "LLM": tuple(fleet.llms),
        "QUEUE": tuple(queue.name for queue in fleet.queues),
        "REGION": tuple(scenario.region_names),
        "POOL": tuple(pool.name for pool in fleet.pools),
    }
    return {names: word for word, names in found.items() if len(names) > 1}


def folded(
    parts: Sequence[tuple[str, str]], words: Mapping[Names, str]
) -> tuple[list[Row], dict[str, Names]]:
    """Rows in the order of their first number, and what the place-holders in them stand for.

    Args:
        parts: name and text of every entry, in order.
        words: place-holders of lists of names.
    """
    alike: dict[tuple[str, int], list[int]] = {}
    for k, (name, text) in enumerate(parts):
        pieces = 0 if name.startswith("last/") else name.count("/") + 1
        alike.setdefault((text, pieces), []).append(k)
    rows: list[Row] = []
    used: dict[str, Names] = {}
    for (text, pieces), numbers in alike.items():
        if not pieces:  # the last action, part by part
            rows.append(Row(tuple(numbers), "last/PART", f"{text}, by part of the action"))
            continue
        for group in _groups(numbers, [name.split("/") for name, _ in parts]):
            columns = _columns([parts[k][0].split("/") for k in group])
            name = "/".join(_word(column, words, used) for column in columns)
            rows.append(Row(tuple(group), name, text))
    return sorted(rows, key=lambda row: row.numbers[0]), used


def shown(numbers: Sequence[int]) -> str:
    """Numbers as a reader takes them in: `3`, `2-8`, `9, 16, ..., 44`."""
    runs = _runs(numbers)
    words = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ", ".join(words if len(words) < 4 else [*words[:2], "...", words[-1]])


def _groups(numbers: list[int], names: list[list[str]]) -> list[list[int]]:
    """Numbers cut into those that one row can show."""
    these = [names[k] for k in numbers]
    whole = [list(found) for found in product(*_columns(these))] == these
    if len(numbers) == 1 or (whole and _regular(numbers)):
        return [numbers]
    for piece in (-1, 0):
        cut: dict[str, list[int]] = {}
        for k in numbers:
            cut.setdefault(names[k][piece], []).append(k)
        if len(cut) > 1:
            return [group for part in cut.values() for group in _groups(part, names)]
    return [[k] for k in numbers]


def _columns(names: list[list[str]]) -> list[Names]:
    """What stands in each piece of some names, in order."""
    return [tuple(dict.fromkeys(column)) for column in zip(*names, strict=True)]


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Numbers cut where they skip one."""
    runs: list[list[int]] = []
    for k in numbers:
        if runs and runs[-1][-1] == k - 1:
            runs[-1].append(k)
        else:
            runs.append([k])
    return runs


def _regular(numbers: list[int]) -> bool:
    """Whether runs of one length come at one distance, so that two of them and the last tell all."""
    runs = _runs(numbers)
    steps = {b[0] - a[0] for a, b in pairwise(runs)}
    return len({len(run) for run in runs}) == 1 and len(steps) < 2


def _word(column: Names, words: Mapping[Names, str], used: dict[str, Names]) -> str:
    """What stands for a piece of the names of a row."""
    if len(column) == 1:
        return column[0]
    if column in words:
        used[words[column]] = column
        return words[column]
    numbered = [re.fullmatch(r"(\D+)(\d+)", name) for name in column]
    if len({found and found[1] for found in numbered}) == 1 and numbered[0] and numbered[-1]:
        return f"{numbered[0][1]}{{{numbered[0][2]}..{numbered[-1][2]}}}"
    return "{" + ",".join(column) + "}"


def _legend(used: Mapping[str, Names], said: str = "") -> str:
    """What the place-holders mean, as a paragraph below the table; what is `said` already is left out."""
    before = " ".join(said.split())
    meant = [f"`{word}`: {', '.join(names)}." for word, names in used.items()]
    meant = [sentence for sentence in meant if sentence not in before]
    if not meant:
        return ""
    order = "Numbers are in this order."
    if len(used) > 1:
        order = "Numbers are in this order; of several in a name, the last changes first."
    return "\n\n" + textwrap.fill(" ".join([*meant, order]), 110, break_on_hyphens=False)


def _listed(part: str, section: str) -> bool:
    return f"| Choice of `{part.rpartition('/')[2]}` |" in section
