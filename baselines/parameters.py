"""Parameters of reference policies: frozen, checked, and told in one line when they are wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from llmscale_env._cli import closest

Count = Annotated[int, Field(ge=0, le=10_000)]
PositiveCount = Annotated[int, Field(ge=1, le=10_000)]
BatchLimit = Annotated[int, Field(ge=1, le=4096)]
Share = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
LoadSource = Literal["ssd", "host", "multicast"]
"""From where instances that are started load their weights."""


class PolicyError(ValueError):
    """A policy that does not exist, has no such parameter, or cannot run the scenario."""


class Parameters(BaseModel):
    """What a policy's parameters have in common: no unknown fields, no change afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def _ascending(self, low: str, high: str) -> None:
        """Raises ValueError unless one parameter is less than another."""
        a, b = getattr(self, low), getattr(self, high)
        if a >= b:
            raise ValueError(f"{low} = {a}: must be less than {high} = {b}")


P = TypeVar("P", bound=Parameters)


def checked(policy: str, kind: type[P], values: Mapping[str, Any]) -> P:
    """Parameters of a policy from plain values (text is taken for the number that it says).

    Raises:
        PolicyError: an unknown parameter, or a value that is not allowed; one line.
    """
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            hint = closest(where, kind.model_fields)
            raise PolicyError(f"{policy}: there is no parameter {where!r}{hint}") from None
        message = first["msg"].removeprefix("Value error, ")
        if not where:
            raise PolicyError(f"{policy}: {message}") from None
        raise PolicyError(f"{policy}: {where} = {first['input']!r}: {message}") from None


class NamedPolicy:
    """A policy with a name and checked parameters.

    Args:
        name: what tables call it; "": its usual name.
        values: fields of its `parameters_type`.

    Raises:
        PolicyError: an unknown parameter, or a value that is not allowed.
    """

    parameters_type: ClassVar[type[Parameters]]
    usual_name: ClassVar[str]
    parameters: Any

    def __init__(self, name: str = "", **values: Any) -> None:
        self.name = name or self.usual_name
        self.parameters = checked(self.name, self.parameters_type, values)


def split_policies(text: str) -> list[str]:
    """The policies of a list: "hpa,static:interactive=6,mixed=4" has two, the second with two parameters."""
    names: list[str] = []
    for part in filter(None, text.split(",")):
        if names and ":" in names[-1] and re.match(r"\s*[A-Za-z_][\w.-]*\s*=", part):
            names[-1] += f"+{part.strip()}"
        else:
            names.append(part)
    return names


def parse_policy(text: str) -> tuple[str, dict[str, Any]]:
    """A policy's name and parameters from words such as "static:interactive=6,mixed=4".

    A plus sign separates as well as a comma does. The value "none" is None.

    Raises:
        PolicyError: something after the colon that is not `key=value`, or a key given twice.
    """
    name, colon, rest = text.partition(":")
    values: dict[str, Any] = {}
    for part in re.split(r"[,+](?=\s*[A-Za-z_])", rest) if colon else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise PolicyError(
                f"policy {text!r}: {part!r} must be key=value, as in 'static:interactive=6,mixed=4'"
            )
        if key in values:
            raise PolicyError(f"policy {text!r}: {key} is given twice")
        values[key] = None if value.lower() == "none" else value
    return name.strip(), values
