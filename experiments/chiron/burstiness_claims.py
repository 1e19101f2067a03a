"""What the paper says of over-provisioning and burstiness, held against readings of what is needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.statistics import Interval
from experiments.harness.claims import Claim, about, at_least, at_most
from experiments.harness.figure import by_seed, claimed

if TYPE_CHECKING:
    from pandas import DataFrame

SUFFICES_UNTIL = 8.0


@dataclass(frozen=True)
class Part:
    """One reading of what is needed.

    Attributes:
        reading, configuration: which.
        where: both, for sentences.
        rows: `cv`, `seed`, `needed` (a multiple; infinite where nothing suffices), and of drawn readings
            `empty`, the share of intervals without a request.
    """

    reading: str
    configuration: str
    where: str
    rows: DataFrame


@claimed
def suffices(
    parts: Sequence[Part], spikes: Sequence[Part], requests: Mapping[str, float]
) -> Iterator[Claim]:
    """Three suffices up to a burstiness of 8; no claims if 8 was not run.

    Args:
        parts: readings to judge.
        spikes: those that show what the number of requests does.
        requests: mean number in an interval, by configuration.
    """
    shown = ", ".join(
        f"{requests[part.configuration]:,.0f} requests ({part.configuration}) "
        f"{_means(part)[SUFFICES_UNTIL]:.2f}"
        for part in spikes
        if SUFFICES_UNTIL in _cvs(part)
    )
    for part in parts:
        upto = [cv for cv in _cvs(part) if cv <= SUFFICES_UNTIL]
        if SUFFICES_UNTIL not in upto:
            continue
        yield at_most(
            f"An over-provisioning of 3 suffices up to a burstiness of 8 {part.where}",
            3.0,
            _by_seed(part, lambda at: at[at.index <= SUFFICES_UNTIL].max()),
            nothing=None,
            unit=f"x, the most from CV {upto[0]:g} to {upto[-1]:g}",
            paper="3 (section 6.3)",
            reason="the paper's rate is not known, and the fewer requests an interval as long as the "
            f"load time holds, the larger its spikes: at CV {upto[-1]:g}, with a mean of {shown}",
        )


@claimed
def rises(parts: Sequence[Part]) -> Iterator[Claim]:
    """More burstiness needs more; no claims of a single CV."""
    for part in parts:
        low, *_, high = cvs = _cvs(part) if len(_cvs(part)) > 1 else (0.0, 0.0)
        if not high:
            continue
        steps = int((_means(part).diff().dropna() > 0).sum())
        yield at_least(
            f"More burstiness needs more over-provisioning {part.where}",
            1.1,
            _by_seed(part, lambda at: at.iloc[-1] / at.iloc[0]),
            nothing=1.0,
            unit=f"x at CV {high:g} of what CV {low:g} needs",
            paper="rises (curve; 10 % is ours)",
            reason=_beyond(part),
            note=f"rises on {steps} of {len(cvs) - 1} steps of the CV",
        )


def in_proportion(parts: Sequence[Part]) -> list[Claim]:
    """What is needed beyond the mean grows with the CV itself; no claims of a single CV."""
    return [
        about(
            f"Over-provisioning is proportional to burstiness {part.where}",
            1.0,
            _by_seed(part, _exponent),
            nothing=0.0,
            unit=f"power of the CV ({_cvs(part)[0]:g} to {_cvs(part)[-1]:g}) that the need beyond the mean "
            "grows with",
            paper="proportional: 1",
            reason=_beyond(part),
        )
        for part in parts
        if len(_cvs(part)) > 1
    ]


def _cvs(part: Part) -> list[float]:
    return sorted(part.rows["cv"].unique().tolist())


def _means(part: Part) -> Any:
    return part.rows.groupby("cv")["needed"].mean()


def _beyond(part: Part) -> str:
    text = ", ".join(f"{need - 1:.2f} at {cv:g}" for cv, need in _means(part).items())
    empty = part.rows.groupby("cv")["empty"].mean().iloc[-1] if "empty" in part.rows else math.nan
    if not empty > 0:
        return f"needed beyond the mean by CV: {text}"
    return f"needed beyond the mean by CV: {text}; at the last {100 * empty:.1f} % of the intervals are empty"


def _exponent(at: Any) -> float:
    """Slope of what is needed beyond the mean over the CV, both in logarithms."""
    beyond = np.log(np.maximum(at.to_numpy(float) - 1, 1e-9))
    return float(np.polyfit(np.log(at.index.to_numpy(float)), beyond, 1)[0])


def _by_seed(part: Part, number: Callable[[Any], float]) -> Interval:
    """Of what is needed by CV."""
    return by_seed(part.rows, lambda one: number(one.set_index("cv")["needed"].sort_index()))
