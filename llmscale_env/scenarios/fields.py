"""What the parts of a scenario share: kinds of fields, and looking up names."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

NAME_PATTERN = r"[A-Za-z0-9][\w.-]*"
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=f"^{NAME_PATTERN}$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Frozen(BaseModel):
    """A part of a scenario: it never changes, and fields that it does not have are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def by_name(parts: tuple[Any, ...], what: str) -> dict[str, Any]:
    """Parts by their names, which must be unique; `what` names the field in the error."""
    known = {part.name: part for part in parts}
    if len(known) < len(parts):
        names = [part.name for part in parts]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{what}: two are called {twice!r}; names must be unique")
    return known


def known_by(name: str, known: dict[str, Any], where: str) -> Any:
    """What is called `name`; `where` names the field in the error."""
    if name not in known:
        raise ValueError(f"{where} = {name!r}: unknown; there are {sorted(known)}")
    return known[name]
