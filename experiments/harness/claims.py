"""Claims of a paper, held against what was measured.

The rules are fixed here, so that no experiment has its own idea of success:

- *reproduced*: within 25 % of the paper's number (`about`, which "up to" is read as too), or on its right
  side (`at_least`, `at_most`), judged by the mean;
- *same direction, another size*: not that, but the effect has the paper's sign, and the interval
  of the measurement does not hold the value at which there would be no effect;
- *not reproduced*: anything else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from agents.statistics import Interval

TOLERANCE = 0.25


class Verdict(StrEnum):
    """What became of a claim."""

    REPRODUCED = "reproduced"
    DIRECTION = "same direction, another size"
    NOT = "not reproduced"


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper and what was found.

    Attributes:
        sentence: what the paper says, in our words.
        paper: its number as it stands there.
        ours: what was measured: mean and 95 % interval over the seeds (NaN bounds without any).
        unit: of `ours`, as it is shown after the number.
        verdict: see the module.
        reason: why it did not reproduce, or what else the reader should know.
    """

    sentence: str
    paper: str
    ours: Interval
    unit: str
    verdict: Verdict
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a JSON file; NaN as None."""
        plain = asdict(self)
        plain["ours"] = {k: None if math.isnan(v) else v for k, v in plain["ours"].items()}
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Claim:
        """What `as_dict` gave."""
        ours = {k: math.nan if v is None else float(v) for k, v in data["ours"].items()}
        changed = {"ours": Interval(**ours), "verdict": Verdict(data["verdict"])}
        return cls(**{**data, **changed})


def exact(value: float) -> Interval:
    """A number without sampling error (a deterministic computation)."""
    return Interval(value, value, value)


def about(
    sentence: str,
    number: float,
    ours: Interval,
    *,
    nothing: float,
    unit: str = "",
    paper: str = "",
    reason: str = "",
) -> Claim:
    """The paper gives a number, or says "up to" one.

    Args:
        sentence: what it says.
        number: its number, in `unit`.
        ours: what was measured.
        nothing: the value that there would be without the effect.
        unit: shown after numbers.
        paper: the number as it stands in the paper, if that says more.
        reason: see `Claim`.

    Raises:
        ValueError: `number` equals `nothing`.
    """
    good = abs(ours.mean - number) <= TOLERANCE * abs(number)
    return _judged(sentence, number, ours, nothing, unit, paper, reason, good)


def at_least(
    sentence: str,
    number: float,
    ours: Interval,
    *,
    nothing: float,
    unit: str = "",
    paper: str = "",
    reason: str = "",
) -> Claim:
    """The paper promises a number or more. Arguments as `about`."""
    shown = paper or f"at least {_shown(number, unit)}"
    return _judged(sentence, number, ours, nothing, unit, shown, reason, ours.mean >= number)


def at_most(
    sentence: str,
    number: float,
    ours: Interval,
    *,
    nothing: float,
    unit: str = "",
    paper: str = "",
    reason: str = "",
) -> Claim:
    """The paper promises a number or less. Arguments as `about`."""
    shown = paper or f"at most {_shown(number, unit)}"
    return _judged(sentence, number, ours, nothing, unit, shown, reason, ours.mean <= number)


def _judged(
    sentence: str,
    number: float,
    ours: Interval,
    nothing: float,
    unit: str,
    paper: str,
    reason: str,
    good: bool,
) -> Claim:
    if number == nothing:
        raise ValueError(f"{sentence!r}: the paper's number {number} is no effect at all")
    up = number > nothing
    edge = ours.low if up else ours.high
    edge = ours.mean if math.isnan(edge) else edge
    if good and not math.isnan(ours.mean):
        verdict = Verdict.REPRODUCED
    elif (edge > nothing) if up else (edge < nothing):
        verdict = Verdict.DIRECTION
    else:
        verdict = Verdict.NOT
    return Claim(sentence, paper or _shown(number, unit), ours, unit, verdict, reason)


def _shown(number: float, unit: str) -> str:
    return f"{number:g} {unit}".rstrip()
