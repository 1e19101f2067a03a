"""Claims of a paper, held against what was measured.

The rules are fixed here, so that no experiment has its own idea of success:

- *reproduced*: the mean is within 25 % of the paper's number (`about`, which "up to" is read as too), on
  its right side (`at_least`, `at_most`) or in its range (`between`), or is the number itself where it is
  that of a worked example (`exactly`); and the interval of the measurement leaves out the value at which
  there would be no effect (`nothing`). A sentence without a number ("shorter", "the most": `more`, `less`)
  asks for just this last;
- *same direction, another size*: not that, but the effect has the paper's sign, and the interval leaves
  out no effect. A level (`nothing` is None: "all SLOs are met", "15 GPUs") has no direction: it reproduces
  or not;
- *not measured*: there is no number, as when nothing of the kind happened in any run;
- *not reproduced*: anything else.

A claim is one sentence of a paper. Models, regions, loads and readings are its parts (`every`, `best_of`,
`led_by`), which count nowhere by themselves; `settings` are those that the text or the released code allows,
and make a map (`harness.maps`). A question of ours (`asked`) is judged and counts nowhere, as a part neither.
An improvement beyond what the paper has is no failure (`gain`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any, TypedDict, Unpack

from agents.statistics import Interval

TOLERANCE = 0.25
FINITE = sys.float_info.max


class Verdict(StrEnum):
    """What became of a claim."""

    REPRODUCED = "reproduced"
    DIRECTION = "same direction, another size"
    NOT = "not reproduced"
    UNMEASURED = "not measured"


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper and what was found.

    Attributes:
        sentence: what the paper says, in our words.
        paper: its number as it stands there.
        ours: what was measured: mean and 95 % interval over the seeds (NaN bounds without any).
        unit: of `ours`, as it is shown after the number.
        verdict: see the module.
        reason: why it did not reproduce; empty where it did.
        note: what the reader should know whatever the verdict.
        how: by which mechanism the number came about: what earns the verdict.
        setting: what was run, where the paper's text leaves it open or has several.
        parts: what the sentence was judged by, a claim each.
        question: whether it is ours and not the paper's, so that it counts nowhere.
        good: between which numbers it reproduces; None where there is no such end, or it is not judged.
        mapped: whether its parts are `settings`.
    """

    sentence: str
    paper: str
    ours: Interval
    unit: str
    verdict: Verdict
    reason: str = ""
    note: str = ""
    how: str = ""
    setting: str = ""
    parts: tuple[Claim, ...] = ()
    question: bool = False
    good: tuple[float | None, float | None] = (None, None)
    mapped: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a JSON file, which has no such numbers: NaN as None, infinity as "inf".

        What is as it is by default is left out.
        """
        plain = {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if getattr(self, each.name) != each.default
        }
        plain["ours"] = {
            k: None if math.isnan(v) else str(v) if math.isinf(v) else v
            for k, v in asdict(self.ours).items()
        }
        if self.parts:
            plain["parts"] = [part.as_dict() for part in self.parts]
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Claim:
        """What `as_dict` gave."""
        ours = {k: math.nan if v is None else float(v) for k, v in data["ours"].items()}
        parts = tuple(cls.from_dict(part) for part in data.get("parts", ()))
        changed = {"ours": Interval(**ours), "verdict": Verdict(data["verdict"]), "parts": parts}
        if "good" in data:
            changed["good"] = tuple(data["good"])
        return cls(**{**data, **changed})


def exact(value: float) -> Interval:
    """A number without sampling error (a deterministic computation)."""
    return Interval(value, value, value)


class Words(TypedDict, total=False):
    """What a claim may say besides.

    Attributes:
        unit: shown after numbers.
        paper: the number as it stands in the paper, if that says more.
        reason: why, if it does not reproduce; dropped if it does.
        note, how, setting: see `Claim`.
    """

    unit: str
    paper: str
    reason: str
    note: str
    how: str
    setting: str


def about(
    sentence: str,
    number: float,
    ours: Interval,
    *,
    nothing: float | None,
    **words: Unpack[Words],
) -> Claim:
    """The paper gives a number, or says "up to" one.

    Args:
        sentence: what it says.
        number: its number, in `unit`.
        ours: what was measured.
        nothing: the value that there would be without the effect; None for a level.
        words: see `Words`.

    Raises:
        ValueError: `number` equals `nothing`.
    """
    slack = TOLERANCE * abs(number)
    text = _unjudged(sentence, f"{number:g}", ours, **words)
    return _judged(text, number - slack, number + slack, nothing, up=_up(sentence, number, nothing))


def gain(
    sentence: str, number: float, ours: Interval, *, nothing: float, **words: Unpack[Words]
) -> Claim:
    """The paper reports an improvement, or one of "up to" a number: near it, or more. As `about`."""
    text = _unjudged(sentence, f"{number:g}", ours, **words)
    slack = TOLERANCE * abs(number)
    up = _up(sentence, number, nothing)
    low, high = (number - slack, FINITE) if up else (-FINITE, number + slack)
    return _judged(text, low, high, nothing, up=up)


def exactly(sentence: str, number: float, ours: Interval, **words: Unpack[Words]) -> Claim:
    """The paper works an example out: its number or another, with no tolerance but that of floats.

    Arguments as `about`.
    """
    slack = 1e-9 * abs(number)
    text = _unjudged(sentence, f"{number:g}", ours, **words)
    return _judged(text, number - slack, number + slack, None, up=True)


def more(sentence: str, than: float, ours: Interval, **words: Unpack[Words]) -> Claim:
    """The paper says that there is more, without a number: the whole interval must lie above `than`.

    Other arguments as `about`.
    """
    text = _unjudged(sentence, f"more than {than:g}", ours, **words)
    return _beyond(text, than, up=True)


def less(sentence: str, than: float, ours: Interval, **words: Unpack[Words]) -> Claim:
    """The paper says that there is less, without a number: the whole interval must lie below `than`.

    Other arguments as `about`.
    """
    text = _unjudged(sentence, f"less than {than:g}", ours, **words)
    return _beyond(text, than, up=False)


def at_least(
    sentence: str,
    number: float,
    ours: Interval,
    *,
    nothing: float | None,
    **words: Unpack[Words],
) -> Claim:
    """The paper promises a number or more; none is named in "more", which is `more`. Arguments as `about`."""
    text = _unjudged(sentence, f"at least {number:g}", ours, **words)
    return _judged(text, number, math.inf, nothing, up=_up(sentence, number, nothing))


def at_most(
    sentence: str,
    number: float,
    ours: Interval,
    *,
    nothing: float | None,
    **words: Unpack[Words],
) -> Claim:
    """The paper promises a number or less; none is named in "less", which is `less`. Arguments as `about`."""
    text = _unjudged(sentence, f"at most {number:g}", ours, **words)
    return _judged(text, -math.inf, number, nothing, up=_up(sentence, number, nothing))


def between(
    sentence: str,
    low: float,
    high: float,
    ours: Interval,
    *,
    nothing: float | None,
    **words: Unpack[Words],
) -> Claim:
    """The paper gives a range. Arguments as `about`; its ends count as within.

    Raises:
        ValueError: the range is empty or holds `nothing`.
    """
    if not low < high:
        raise ValueError(f"{sentence!r}: {low} to {high} is no range")
    if nothing is not None and low <= nothing <= high:
        raise ValueError(f"{sentence!r}: the paper's range holds no effect, {nothing}")
    text = _unjudged(sentence, f"{low:g} to {high:g}", ours, **words)
    return _judged(text, low, high, nothing, up=_up(sentence, low, nothing))


_ORDER = {Verdict.NOT: 0, Verdict.DIRECTION: 1, Verdict.REPRODUCED: 2}


def every(sentence: str, parts: Iterable[Claim], **words: Unpack[Words]) -> Claim:
    """A sentence about all of its parts: as good as the worst of them, which is the one that is shown.

    Parts that were not measured count for nothing, unless none was; a note says how many were.

    Args:
        sentence: what the paper says.
        parts: claims, whose sentences name the part alone ("8B", "at 40 requests/s").
        words: see `Words`; what is left out is that of the part that is shown.

    Raises:
        ValueError: there are no parts.
    """
    return _whole(sentence, parts, min, words)


def best_of(sentence: str, parts: Iterable[Claim], **words: Unpack[Words]) -> Claim:
    """A sentence that one part is enough for: "up to", or settings among which the paper leaves the choice.

    Arguments as `every`.
    """
    return _whole(sentence, parts, max, words)


def led_by(sentence: str, parts: Iterable[Claim], **words: Unpack[Words]) -> Claim:
    """A sentence judged by its first part, the paper's own setting, measured or not; the others are variants.

    Arguments as `every`.
    """
    found = tuple(parts)
    return _whole(sentence, found, lambda known, key: found[0], words)


def settings(sentence: str, parts: Iterable[Claim], **words: Unpack[Words]) -> Claim:
    """A sentence in every setting that the paper's text or its released code allows: the best counts.

    Where none reproduces, the nearest to the paper's number is shown. Settings of ours are parts too
    (`asked`): the map shows them, and they count for nothing.

    Args:
        sentence: what the paper says.
        parts: a claim per setting, the one that we judge first in front. Its sentence names the setting
            ("batch limit 64"), its `setting` where that stands ("section 6.2", "released code", "ours").
        words: as `every`.

    Raises:
        ValueError: there are no parts, or all are ours.
    """
    found = tuple(parts)
    if found and all(part.question for part in found):
        raise ValueError(f"{sentence!r}: all settings are ours")
    told = _whole(sentence, found, lambda known, key: max(known, key=_nearness), words)
    return replace(told, mapped=True)


def _nearness(claim: Claim) -> tuple[int, float]:
    """How well a setting does: its verdict first, then, unless it reproduces, how near its number comes."""
    order = _ORDER.get(claim.verdict, 0)
    low, high = claim.good
    if claim.verdict is Verdict.REPRODUCED or math.isnan(claim.ours.mean):
        return order, 0.0
    below = 0.0 if low is None else low - claim.ours.mean
    above = 0.0 if high is None else claim.ours.mean - high
    return order, -max(below, above, 0.0)


def asked(claim: Claim) -> Claim:
    """A question of ours, which no paper answers: it counts nowhere."""
    return replace(claim, question=True)


def _whole(
    sentence: str, parts: Iterable[Claim], chosen: Callable[..., Claim], words: Words
) -> Claim:
    found = tuple(parts)
    if not found:
        raise ValueError(f"{sentence!r} has no parts")
    counted = [part for part in found if not part.question] or list(found)
    known = [part for part in counted if part.verdict is not Verdict.UNMEASURED] or counted
    shown = chosen(known, key=lambda part: _ORDER.get(part.verdict, 0))
    unit = f"{shown.unit} ({shown.sentence})".lstrip() if len(found) > 1 else shown.unit
    note = shown.note
    if len(known) < len(counted):
        note = f"{note}; {len(known)} of {len(counted)} parts measured".removeprefix("; ")
    told = replace(
        shown, sentence=sentence, unit=unit, note=note, parts=found, question=False, mapped=False
    )
    told = replace(told, **words)
    return replace(told, reason="") if shown.verdict is Verdict.REPRODUCED else told


def _unjudged(
    sentence: str,
    number: str,
    ours: Interval,
    *,
    unit: str = "",
    paper: str = "",
    reason: str = "",
    note: str = "",
    how: str = "",
    setting: str = "",
) -> Claim:
    """A claim without its verdict; `number`: the paper's, as it is shown if `paper` says no more."""
    shown = paper or f"{number} {unit}".rstrip()
    return Claim(sentence, shown, ours, unit, Verdict.NOT, reason, note, how, setting)


def _up(sentence: str, number: float, nothing: float | None) -> bool:
    if number == nothing:
        raise ValueError(f"{sentence!r}: the paper's number {number} is no effect at all")
    return nothing is None or number > nothing


def _beyond(claim: Claim, than: float, *, up: bool) -> Claim:
    """The claim with its verdict: reproduced beyond `than`; there is no other size to be of."""
    return _judged(claim, -math.inf, math.inf, than, up=up)


def _judged(claim: Claim, low: float, high: float, nothing: float | None, *, up: bool) -> Claim:
    """The claim with its verdict: good lies in [low, high], and beyond `nothing`."""
    ours = claim.ours
    effect_from, effect_to = (nothing, None) if up else (None, nothing)
    ends = (
        low if math.isfinite(low) and abs(low) < FINITE else effect_from,
        high if math.isfinite(high) and abs(high) < FINITE else effect_to,
    )
    claim = replace(claim, good=ends)
    if math.isnan(ours.mean):
        return replace(claim, verdict=Verdict.UNMEASURED)
    edge = ours.low if up else ours.high
    edge = ours.mean if math.isnan(edge) else edge
    effect = nothing is None or ((edge > nothing) if up else (edge < nothing))
    if effect and low <= ours.mean <= high:
        return replace(claim, verdict=Verdict.REPRODUCED, reason="")
    if effect and nothing is not None:
        return replace(claim, verdict=Verdict.DIRECTION)
    return replace(claim, verdict=Verdict.NOT)
