"""Trained policies that ship, one folder each: `model.safetensors`, `config.yaml`, `card.yaml`.

`SHA256SUMS` lists models and configurations (`sha256sum --check SHA256SUMS`); changed ones are not loaded.
Cards are not listed.

`policies=pretrained` means the one that its environment recommends, `policies=pretrained:NAME` one by name.

A card says what one must know before trusting a policy:

| key | what |
|---|---|
| `environment` | its short name |
| `id` | of the environment that it was trained on, with its version |
| `about` | one sentence |
| `recommended` | true for the one that `pretrained` means; needed where an environment has several |
| `data` | what it was trained on, and by what it was chosen |
| `seeds` | of training |
| `command` | that trains it again |
| `revision` | of the code that trained it |
| `figures` | measured, with the commands that measured them |
| `limits` | where it is not to be used, or was not tried |
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from agents.models.store import MODEL
from llmscale_env._cli import closest
from llmscale_env._reading import Unreadable, read_yaml

FOLDER = Path(__file__).parent
CARD, SUMS = "card.yaml", "SHA256SUMS"
_LISTED = (MODEL, "config.yaml")
KEYS = ("environment", "id", "about", "data", "seeds", "command", "figures", "limits")
"""What every card must have."""

MAX_BYTES = 2_000_000
"""No model may be larger."""

WORD = "pretrained"


class PretrainedError(ValueError):
    """No such policy, or one that is not whole; one line."""


@dataclass(frozen=True)
class Pretrained:
    """A policy that ships.

    Attributes:
        name: of its folder.
        environment: short name.
        recommended: whether `pretrained` means it.
        folder: where it lies.
        card: everything that its card says.
    """

    name: str
    environment: str
    recommended: bool
    folder: Path
    card: dict[str, Any]

    @property
    def model(self) -> Path:
        return self.folder / MODEL


def is_pretrained(name: str) -> bool:
    """Whether a name in `policies=` means a policy that ships."""
    return name == WORD or name.startswith(f"{WORD}:")


def shipped(
    environment: str | None = None, folder: Path | None = None, without: Collection[str] = ()
) -> list[Pretrained]:
    """All policies that ship, or those of an environment, by name; those in `without` are not looked at.

    Raises:
        PretrainedError: a folder lacks a file, or its card a key, or its model is too large, or a file is not
            the one that SHA256SUMS lists.
    """
    home = FOLDER if folder is None else folder
    folders = [path.parent for path in sorted(home.glob(f"*/{CARD}"))]
    found = [_read(each) for each in folders if each.name not in without]
    return [each for each in found if environment in (None, each.environment)]


def find(name: str, environment: str | None = None, folder: Path | None = None) -> Pretrained:
    """The policy that `pretrained` or `pretrained:NAME` means.

    Args:
        name: as in `policies=`.
        environment: short name of the environment, for `pretrained`; of a given name whichever has it.
        folder: where policies are looked for in place of the shipped ones.

    Raises:
        PretrainedError: none ships for the environment, or none of this name; and as `shipped`.
    """
    _, named, wanted = name.partition(":")
    if named:
        environment = None
    there = shipped(environment, folder)
    where = "any environment" if environment is None else repr(environment)
    if not there:
        every = shipped(folder=folder)
        best = [each for each in every if each.recommended] or every
        others = [f"{WORD}:{each.name}" for each in best]
        raise PretrainedError(
            f"{name}: no trained policy ships for {where}; "
            + (f"of others there are, by name: {others}" if others else "none ships at all")
            + f". Train one: python -m agents.train env={environment or 'mixed-slo-hours'}"
        )
    names = [each.name for each in there]
    if named:
        if "=" in wanted:
            raise PretrainedError(
                f"{name!r}: quantile= is all that may follow, as {WORD}:quantile=0.8"
            )
        if wanted not in names:
            hint = closest(wanted, names)
            raise PretrainedError(f"{name!r}: no trained policy of this name ships{hint}")
        return there[names.index(wanted)]
    best = [each for each in there if each.recommended]
    if len(there) == 1:
        return there[0]
    if len(best) != 1:
        raise PretrainedError(
            f"{name}: {len(names)} ship for {where}; name one, as {WORD}:{names[0]}"
        )
    return best[0]


def load(name: str, environment: str, folder: Path | None = None) -> Any:
    """The policy (`agents.learned.LearnedPolicy`) that a name means.

    Raises:
        PretrainedError: as `find`.
        ModelError: the model cannot be read.
    """
    from agents.learned import LearnedPolicy

    return LearnedPolicy(find(name, environment, folder).model, name=name)


def sums_of(home: Path) -> str:
    """What SHA256SUMS is to say of the policies in `home`: a line per file that decides what one does."""
    files = [path for name in _LISTED for path in home.glob(f"*/{name}")]
    lines = [
        f"{sha256(path.read_bytes()).hexdigest()}  {path.relative_to(home).as_posix()}\n"
        for path in sorted(files)
    ]
    return "".join(lines)


def listed(home: Path) -> list[str]:
    """The lines of SHA256SUMS in `home`."""
    path = home / SUMS
    return path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []


def lines_of(lines: Iterable[str], names: Collection[str], *, others: bool = False) -> list[str]:
    """Of the lines of SHA256SUMS those about policies of these names, or about all `others`."""
    return [line for line in lines if (line[66:].partition("/")[0] in names) != others]


def check_others(home: Path, names: Collection[str]) -> None:
    """Refuse to go on if a file of another policy than these is not the one that SHA256SUMS lists.

    Raises:
        PretrainedError: naming the first such line.
    """
    wanted, there = (
        lines_of(lines, names, others=True)
        for lines in (listed(home), sums_of(home).splitlines(keepends=True))
    )
    odd = sorted(set(wanted) ^ set(there), key=lambda line: line[66:])
    if odd:
        raise PretrainedError(
            f"{home / SUMS}: {odd[0][66:].strip()} is missing, or is not the file that is listed"
        )


@functools.cache
def _read(folder: Path) -> Pretrained:
    sums = listed(folder.parent)
    for name in _LISTED:
        path = folder / name
        if not path.is_file():
            raise PretrainedError(f"pretrained policy {folder.name!r}: {name} is missing")
        if f"{sha256(path.read_bytes()).hexdigest()}  {folder.name}/{name}\n" not in sums:
            raise PretrainedError(
                f"pretrained policy {folder.name!r}: {name} is not the file that {SUMS} lists (if shipping "
                "it was interrupted: ship it again)"
            )
    size = (folder / MODEL).stat().st_size
    if size > MAX_BYTES:
        raise PretrainedError(
            f"pretrained policy {folder.name!r}: {MODEL} has {size:,} bytes; at most {MAX_BYTES:,}"
        )
    try:
        card = read_yaml(folder / CARD)
    except Unreadable as error:
        raise PretrainedError(f"pretrained policy {folder.name!r}: {CARD}: {error}") from None
    missing = [key for key in KEYS if not isinstance(card, dict) or card.get(key) is None]
    if missing:
        raise PretrainedError(f"pretrained policy {folder.name!r}: {CARD} lacks {missing}")
    return Pretrained(
        folder.name, str(card["environment"]), bool(card.get("recommended", False)), folder, card
    )
