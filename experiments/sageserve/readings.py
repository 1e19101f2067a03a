"""Readings of SageServe's paper: its text and its released code say different things.

The text scales at 70 and 30 % of the memory and has over 10 million requests in the week; the released code
scales at 50 and 25 %, and the released hourly counts have 7.4 million. All sentences of all figures are
judged in one of the two, the released code (`judged_first`); what is saved counts only at equal service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.statistics import Interval
from experiments.harness.claims import Claim, Verdict, led_by
from experiments.harness.figure import where
from experiments.sageserve.days import (
    LATENCIES,
    LLAMA_2,
    NAMES,
    more_percent,
    percentile,
    saved_percent,
)
from experiments.sageserve.setting import RAISED, SHOWN

if TYPE_CHECKING:
    from pandas import DataFrame

TEXT, RELEASED = "text", "released code"
"""The text's thresholds and the introduction's 10 million requests; both as the released code has them."""

EPSILON = 0.8
"""Share of its peak that a region serves itself: above 0 to 1 (section 5.1); the released code has 1."""

REROUTED = f"released code, epsilon {EPSILON:g}"
SLIGHTLY_REROUTED = "released code, epsilon 0.9"
KV = "text, KV of all heads"
THRESHOLDS, LOAD = "released thresholds alone", "released load alone"
ROOMY = "released thresholds, room for more VMs"
IN_SAMPLE = {f"the same, released forecast, theta at {ttft_s} s": ttft_s for ttft_s in (25, 30)}
"""The released code forecasts an hour in sample, from what will have come.

Section 3.2 has theta "at a certain target latency", here these. At 25 and 30 s it is near the 3,758 tokens/s
of Llama-2 in the released code; in all other settings it is at 20 s.
"""

_IN_SAMPLE = ":forecast=in-sample"


def in_sample(policy: str, ttft_s: float) -> str:
    """A policy with the released code's forecast, and theta at this target."""
    return f"{policy}{_IN_SAMPLE},theta_ttft_s={ttft_s:g}"


MORE_ROOM = 40
"""Instances that an endpoint may have where it takes VMs of other LLMs, beyond 20 of its own (ours)."""


ABOUT = {
    TEXT: "text: 70 and 30 %, 10.2 million requests a week",
    RELEASED: "released code: 50 and 25 %, 7.4 million requests a week",
    REROUTED: f"released code: 50 and 25 %, 7.4 million requests a week; epsilon {EPSILON:g}",
    SLIGHTLY_REROUTED: "released code: 50 and 25 %, 7.4 million requests a week; section 5.1: epsilon 0.9",
    KV: "text; released code: KV of all heads",
    THRESHOLDS: "text: 10.2 million requests a week; released code: 50 and 25 %",
    ROOMY: "text: 10.2 million requests a week, VMs of other LLMs too (section 7.2, Figure 15); released "
    "code: 50 and 25 %",
    **{
        name: "text: 10.2 million requests a week, VMs of other LLMs too, theta at a target latency (section "
        f"3.2), here {ttft_s} s; released code: 50 and 25 %, forecast in sample"
        for name, ttft_s in IN_SAMPLE.items()
    },
    LOAD: "text: 70 and 30 %; released code: 7.4 million requests a week",
}
"""Of a reading: thresholds and load."""

_REACTIVE_OF = {SLIGHTLY_REROUTED: RELEASED, **dict.fromkeys(IN_SAMPLE, ROOMY)}

NOT_WORSE = 5.0
"""Percent by which a latency may grow and still count as "not harmed" (ours)."""


def setting(
    name: str, rate_scale: float, *, thresholds: str = "scenario", load: float = 1.0, **more: Any
) -> dict[str, Any]:
    """Columns of a case in a setting of that name; `load`: requests over those of our week."""
    return {
        "setting": name,
        "thresholds": thresholds,
        "rate_scale": rate_scale * load,
        "epsilon": 1.0,
        **more,
    }


def as_released(name: str, rate_scale: float, **more: Any) -> dict[str, Any]:
    """Thresholds and requests of the released code, as `setting`."""
    return setting(name, rate_scale, thresholds="released", load=1 / RAISED, **more)


def text_and_released(parameters: Any, case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For a `Grid`: the paper's text and its released code."""
    return [make(name, parameters.rate_scale) for name, make in _READINGS.items()]


_READINGS: dict[str, Callable[..., dict[str, Any]]] = {TEXT: setting, RELEASED: as_released}


def judged_first(frame: DataFrame) -> dict[str, DataFrame]:
    """The rows of both readings, that first in which sentences are judged.

    Raises:
        ValueError: it was not run.
    """
    frames = by_setting(frame, (RELEASED, TEXT))
    if RELEASED not in frames:
        raise ValueError(f"no rows of {RELEASED!r}, in which sentences are judged")
    return frames


def by_setting(frame: DataFrame, names: Iterable[str] = (TEXT, RELEASED)) -> dict[str, DataFrame]:
    """The rows of each of these settings that was run, policies by their plain names.

    Where a setting differs in what LT plans alone, reactive was not run again: its rows are another's.
    """
    there = set(frame["setting"])
    frames = {name: where(frame, setting=name) for name in names if name in there}
    for name, mine in frames.items():
        if name in _REACTIVE_OF:
            import pandas as pd

            mine = mine.assign(policy=mine["policy"].str.split(_IN_SAMPLE).str[0])
            reactive = where(frame, setting=_REACTIVE_OF[name], policy="reactive")
            frames[name] = pd.concat([reactive, mine])
    return frames


OF_A_SETTING = ("thresholds", "rate_scale", "epsilon", "thresholds_over", "most", "bin_h")
"""Columns that follow from a setting's name, or are alike in all cases."""

UNSEEN = (
    *("requests", "unfinished", "on_time", "reclaims_own", "reclaims_others", "donations"),
    *("ttft_s_p50", "e2e_s_p50", "spot", "role"),
)
"""Columns that no picture shows."""


def short(frame: DataFrame) -> DataFrame:
    """Rows as they lie beside a page: without `OF_A_SETTING` and `UNSEEN`, and hours in totals alone."""
    import pandas as pd

    frame = frame.drop(columns=[*OF_A_SETTING, *UNSEEN], errors="ignore")
    hours = frame["instance_hours"].mask(frame["kind"] == "series", pd.NA)
    if "kv_use" in frame:
        frame = frame.assign(kv_use=frame["kv_use"].astype(float).round(3))
    return frame.assign(instance_hours=hours)


def half_hours(frame: DataFrame) -> Any:
    """Which rows are of a full or half hour."""
    return (2 * frame["hour"].astype(float)) % 1 == 0


def worse_percent(frame: DataFrame, policy: str, llms: Iterable[str] = (LLAMA_2,)) -> float:
    """By how much the 95 % TTFT or E2E latency of these LLMs is above reactive's, whichever is most."""
    pair = (policy, "reactive")
    return float(
        np.max(
            [
                more_percent(*(percentile(frame, p, column, llm) for p in pair)).mean
                for column, llm in product(LATENCIES, llms)
            ]
        )
    )


def at_equal_service(
    claims: Iterable[Claim],
    frame: DataFrame,
    policies: Iterable[str],
    allowed: Mapping[str, float],
    llms: Iterable[str] = (LLAMA_2,),
) -> list[Claim]:
    """What policies save, a claim each: it counts only if no latency grows by more than is `allowed`.

    Args:
        claims: one for each of `policies`, in their order.
        frame: rows of one setting.
        policies: of the claims.
        allowed: percent by policy; `NOT_WORSE` where it has none.
        llms: whose latencies.
    """
    policies, llms = list(policies), tuple(llms)
    worse_of = {policy: worse_percent(frame, policy, llms) for policy in dict.fromkeys(policies)}
    found = []
    for claim, policy in zip(claims, policies, strict=True):
        worse, most = worse_of[policy], allowed.get(policy, NOT_WORSE)
        if np.isnan(worse):
            unknown = Interval(np.nan, np.nan, np.nan)
            claim = replace(claim, ours=unknown, verdict=Verdict.UNMEASURED)
        elif claim.ours.mean > 0 and worse > most:
            claim = replace(
                claim,
                sentence=f"{claim.sentence}, at a latency {worse:.0f} % worse",
                verdict=Verdict.NOT,
                reason=f"what is saved at a latency more than {most:g} % worse does not count",
            )
        found.append(claim)
    return found


SLO_TTFT_S = 60.0
"""Of the 95th percentile: the looser end of "from a second to a minute" (section 3.3)."""


def within_slo(claims: Iterable[Claim], frame: DataFrame, policies: Iterable[str]) -> list[Claim]:
    """As `at_equal_service`: what is saved counts only if every LLM's 95 % TTFT is within `SLO_TTFT_S`."""
    found = []
    for claim, policy in zip(claims, policies, strict=True):
        ttft_s = max(float(percentile(frame, policy, "ttft_s_p95", llm).mean()) for llm in SHOWN)
        if ttft_s > SLO_TTFT_S:
            reason = "what is saved with a 95 % TTFT over a minute does not count"
            claim = replace(claim, verdict=Verdict.NOT, reason=reason)
        found.append(claim)
    return found


def nearest(frames: Mapping[str, DataFrame], policies: Iterable[str], **which: str) -> str:
    """Which setting saves most hours, whatever becomes of TTFT and E2E latency: a sentence, or none."""
    of = {
        (name, policy): saved_percent(mine, policy, **which).mean
        for name, mine in frames.items()
        for policy in policies
    }
    known = {case: saved for case, saved in of.items() if not np.isnan(saved)}
    if not known:
        return ""
    name, policy = max(known, key=known.__getitem__)
    worse = worse_percent(frames[name], policy)
    latency = "" if np.isnan(worse) else f", with {worse:+.0f} % in the worse latency of Llama-2"
    return f"Most hours are saved by {NAMES[policy]} ({name}): {of[name, policy]:.1f} %{latency}."


def read(
    frames: Mapping[str, Any],
    sentence: str,
    rule: Callable[..., Claim],
    judge: Callable[[Any], list[Claim]],
    **words: Any,
) -> Claim:
    """A sentence judged in the first of several settings, measured or not; the others count nowhere.

    Args:
        frames: rows by setting, or what was made of them.
        sentence: what the paper says.
        rule: as `claims.every`, of the parts in a setting.
        judge: parts of the sentence from the rows of a setting.
        words: see `claims.Words`.

    Raises:
        ValueError: there are no settings.
    """
    if not frames:
        raise ValueError(f"{sentence!r}: no setting was run")
    parts = [rule(name, judge(mine)) for name, mine in frames.items()]
    shown = parts[0]
    about = ABOUT.get(shown.sentence, shown.sentence)
    words["setting"] = "; ".join(filter(None, (words.get("setting"), about)))
    return replace(led_by(sentence, parts, **words), unit=shown.unit)
