"""Families of workloads: what policies are trained, chosen and tested on, apart in time and in source.

`mixed-slo/test-hours` is a name like that of a mix: `load_scenario("mixed-slo-hours", workload=...)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

_HERE = Path(__file__).parent

Split = Literal["train", "validation", "test"]
SPLITS: tuple[str, ...] = get_args(Split)


@dataclass(frozen=True)
class Member:
    """A workload of a family.

    Attributes:
        name: as in `workload=NAME`, FAMILY/MEMBER.
        split: what it may be used for.
    """

    name: str
    split: Split


@cache
def family_names() -> tuple[str, ...]:
    """The shipped families."""
    return tuple(sorted(path.stem for path in _HERE.glob("*.yaml")))


@cache
def members(family: str, split: str | None = None) -> tuple[Member, ...]:
    """The workloads of a family, or those of a split ("train", "validation", "test").

    Raises:
        ValueError: there is no such family or split.
    """
    if split is not None and split not in SPLITS:
        raise ValueError(f"split = {split!r}: must be one of {list(SPLITS)}")
    found = (Member(f"{family}/{n}", d["split"]) for n, d in _file(family)["workloads"].items())
    return tuple(member for member in found if split in (None, member.split))


def member_names() -> tuple[str, ...]:
    """Names of all workloads of all families."""
    return tuple(member.name for family in family_names() for member in members(family))


def common_data(family: str) -> dict[str, Any]:
    """Streams and batch queues that every workload of a family has, as plain data.

    Raises:
        ValueError: there is no such family.
    """
    return {key: [dict(part) for part in parts] for key, parts in _file(family)["common"].items()}


def member_data(name: str) -> dict[str, Any]:
    """A workload of a family as plain data, as `mixes.mix_data` gives a mix.

    Raises:
        ValueError: there is no such family, or it has no such workload.
    """
    family, _, member = name.partition("/")
    workloads = _file(family)["workloads"]
    if member not in workloads:
        raise ValueError(f"workload = {name!r}: {family} has {list(workloads)}")
    made = common_data(family)
    for key in made:
        own = [dict(part) for part in workloads[member].get(key, [])]
        taken = {part["name"] for part in own}
        made[key] = own + [part for part in made[key] if part["name"] not in taken]
    return made


def _file(family: str) -> dict[str, Any]:
    if family not in family_names():
        raise ValueError(f"family = {family!r}: there are {list(family_names())}")
    return _read(family)


@cache
def _read(family: str) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((_HERE / f"{family}.yaml").read_text(encoding="utf-8"))
    return data
