"""Targets of classes of requests, and how a command line gives them: `slo=ttft:1,itl:0.05`."""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict

from llmscale_env._cli import Slip

_MOST_S = 1e6


class Target(BaseModel):
    """What is promised to a class of requests.

    Attributes:
        name: of the class.
        ttft_s: a request is on time if its first token comes so soon after it arrives,
        itl_s: and its mean inter-token latency is at most this.
        attainment: share of requests to be on time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    ttft_s: float
    itl_s: float
    attainment: float


def slo_of(text: str) -> dict[str | None, tuple[float, float]]:
    """(TTFT, ITL) targets in seconds, by class; None: of every class.

    Raises:
        Slip: another form, a class or a target that is given twice, a number that is not positive.
    """
    form = (
        "must be ttft:SECONDS,itl:SECONDS, or of classes chat/ttft:1,itl:0.05+batch/ttft:60,itl:0.2"
    )
    made: dict[str | None, tuple[float, float]] = {}
    for one in text.split("+"):
        head, slash, rest = one.rpartition("/")
        name = head if slash else None
        times = times_of(rest, text, form)
        if name == "" or name in made or (made and None in (name, *made)):
            raise Slip(f"slo = {text!r}: {form}")
        made[name] = times
    return made


def times_of(part: str, text: str, form: str) -> tuple[float, float]:
    """(TTFT, ITL) targets in seconds of `ttft:SECONDS,itl:SECONDS`.

    Args:
        part: the targets of one class.
        text: all that was given for `slo=`.
        form: what is allowed, for the message.

    Raises:
        Slip: another form, a target that is given twice, a number that is not positive.
    """
    found: dict[str, float] = {}
    for one in part.split(","):
        key, colon, value = one.partition(":")
        if key not in ("ttft", "itl") or not colon:
            raise Slip(f"slo = {text!r}: {form}")
        if key in found:
            raise Slip(f"slo = {text!r}: {key} is given twice; {form}")
        try:
            found[key] = float(value)
        except ValueError:
            found[key] = math.nan
        if not 0 < found[key] < _MOST_S:
            raise Slip(f"slo = {text!r}: {key} = {value!r}: must be a positive number of seconds")
    if len(found) < 2:
        raise Slip(f"slo = {text!r}: {form}")
    return found["ttft"], found["itl"]
