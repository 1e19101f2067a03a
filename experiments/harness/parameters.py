"""Parameters of an experiment, each with where it comes from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

FIRST_SEED = 30_000
"""Experiments draw from seeds of their own: tuning uses those from 1000, evaluation of learned policies
those from 10000, their validation those from 20000."""


def paper(where: str, **limits: Any) -> Any:
    """For `Annotated[type, ...]`: the paper gives the value, and where it does."""
    return Field(json_schema_extra={"source": f"paper, {where}"}, **limits)


def ours(why: str, **limits: Any) -> Any:
    """A parameter that the paper leaves open: why it has this value."""
    return Field(json_schema_extra={"source": f"ours: {why}"}, **limits)


def known(names: tuple[str, ...], there: Iterable[str]) -> tuple[str, ...]:
    """`names`, all of which are `there`.

    Raises:
        ValueError: naming those that are not, and all that are.
    """
    every = list(there)
    unknown = [name for name in names if name not in every]
    if unknown:
        raise ValueError(f"unknown {unknown}; there are {every}")
    return names


def one_each(*names: str) -> Any:
    """A validator for a class's body: these fields have one value for each of its `configurations`."""

    def check(values: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
        configurations = info.data.get("configurations", values)
        if len(values) != len(configurations):
            raise ValueError(f"must have one value for each of {', '.join(configurations)}")
        return values

    return field_validator(*names)(check)


def something_left(name: str, start: str) -> Any:
    """A validator for a class's body: `start` and `name`, cut off the ends, leave part of `horizon_s`."""

    def check(value: float, info: ValidationInfo) -> float:
        data = info.data
        if {"horizon_s", start} <= set(data) and value >= data["horizon_s"] - data[start]:
            raise ValueError(f"{start} and {name} must leave something of horizon_s")
        return value

    return field_validator(name)(check)


class Parameters(BaseModel):
    """What an experiment may be asked to do differently.

    A subclass gives every field a source: `rate_per_s: Annotated[float, paper("6.2")] = 50.0`.

    Attributes:
        seeds: runs of each case with other requests.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seeds: Annotated[int, ours("enough for an interval", ge=1, le=1000)] = 5

    def seed_list(self) -> list[int]:
        """The seeds of the runs."""
        return list(range(FIRST_SEED, FIRST_SEED + self.seeds))

    def sources(self) -> dict[str, str]:
        """Where each field's value comes from. A class's defaults are what its sources say; another
        value, as at a smaller scale, is ours, and the source is named with what it says.
        """
        found = {}
        for name, field in type(self).model_fields.items():
            extra = field.json_schema_extra
            source = str(extra.get("source", "")) if isinstance(extra, dict) else ""
            if getattr(self, name) != field.default and name != "seeds":
                said = json.dumps(field.get_default(), default=str).strip('"')
                source = f"changed here from {said} ({source})"
            found[name] = source
        return found
