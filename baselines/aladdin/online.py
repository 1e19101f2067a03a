"""Performance models that follow what workers report (sections 4.2, 5.1: step 3 of Figures 4 and 5).

The paper says that the scheduler "continuously updates the performance model according to the
worker's execution traces", and no more; how is ours:

- Every worker has its own line, fitted to a sliding window of its reports. The profile that it
  began with counts as some reports, so that what a window does not tell apart (every batch was
  alike) keeps its profiled value.
- Drift is looked for with two one-sided CUSUM charts (Page, 1954) of the standardised errors
  against the reference. Their limit is set so that there is one false alarm in so many reports on
  average (Siegmund's approximation, 1985). Errors within `tolerance` do not count: they are the
  model's own, for real iterations are not quite linear.
- At an alarm the reports from before the estimated change are dropped and the reference is scaled
  by how much longer iterations have become since. It then counts as one report only, until
  `relearn_reports` have come; what has been fitted by then is the new reference, and drift is
  looked for again.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from baselines.aladdin.performance import DecodeTime, LinearFit, PrefillTime, same_anywhere

Floats = NDArray[np.float64]


SATURATING_TOKENS = 256.0
"""Fewest tokens of a prefill that is a sample of Eq. 2 as the paper means it."""


@dataclass(frozen=True)
class DriftRule:
    """When a worker has drifted.

    Attributes:
        false_alarm_reports: mean number of reports between two false alarms, where errors are
            normal and independent and `tolerance` is 0; a tolerance makes them rarer.
        shift: smallest lasting shift that matters, in standard deviations of an error.
        tolerance: relative error that is no drift. 5 % is the paper's largest error of the decode
            model (section 6.2).
        noise_floor: smallest standard deviation of an error, relative to the prediction.
        window: latest reports that a line is fitted to.
        prior_reports: the reference counts as so many reports.
        relearn_reports: after an alarm, reports from which the new reference is learnt.

    Raises:
        ValueError: a value out of range.
    """

    false_alarm_reports: float = 10_000.0
    shift: float = 1.0
    tolerance: float = 0.05
    noise_floor: float = 0.005
    window: int = 128
    prior_reports: float = 8.0
    relearn_reports: int = 24

    def __post_init__(self) -> None:
        for name, low, inclusive in (
            ("false_alarm_reports", 10.0, True),
            ("shift", 0.0, False),
            ("tolerance", 0.0, True),
            ("noise_floor", 0.0, False),
            ("window", 1, True),
            ("prior_reports", 0.0, False),
            ("relearn_reports", 1, True),
        ):
            value = getattr(self, name)
            if not ((value >= low if inclusive else value > low) and math.isfinite(value)):
                raise ValueError(
                    f"{name} = {value}: must be {'at least' if inclusive else 'above'} {low:g}"
                )

    @property
    def limit(self) -> float:
        """Of either CUSUM, in standard deviations."""
        return cusum_limit(self.false_alarm_reports, self.shift / 2)


@lru_cache(maxsize=64)
def cusum_limit(reports: float, slack: float) -> float:
    """Limit h of two one-sided CUSUMs of standard normal errors with one false alarm in `reports`.

    Siegmund's approximation of one chart's run length, (exp(2 k b) - 2 k b - 1) / (2 k^2) with
    b = h + 1.166; two charts have half of it.
    """
    from scipy.optimize import brentq

    def excess(b: float) -> float:
        return (math.expm1(2 * slack * b) - 2 * slack * b) / (2 * slack**2) - 2 * reports

    high = 1.0
    while excess(high) < 0:
        high *= 2
    return max(float(brentq(excess, 0.0, high)) - 1.166, 0.1)


@dataclass
class OnlineLine:
    """One line of one worker, re-fitted to its latest reports.

    Attributes:
        reference: the profile that it starts from.
        rule: of drift and re-learning.
        drifts: numbers (from 0) of the reports at which drift was found.
    """

    reference: LinearFit
    rule: DriftRule = field(default_factory=DriftRule)
    drifts: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._window: deque[tuple[Floats, float]] = deque(maxlen=self.rule.window)
        self._count = 0
        self._believed: Floats = self.reference.coefficients.copy()  # the reference of now
        self._sigma = self.reference.sigma  # of now
        self._learning = 0  # reports until the new reference stands
        self._sums = [0.0, 0.0]  # too slow, too fast
        self._runs = [0, 0]  # reports since the sum was 0
        values, vectors = np.linalg.eigh(self.reference.gram / self.reference.samples)
        self._root: Floats = (vectors * np.sqrt(np.maximum(values, 0.0))).T  # of one report
        self._fitted: Floats | None = self.reference.coefficients

    @property
    def reports(self) -> int:
        """How many have come."""
        return self._count

    def report(self, x: ArrayLike, y: float) -> bool:
        """One observation.

        Args:
            x: (p,) columns as in the reference.
            y: what was measured.

        Returns:
            Whether this report gives drift away.

        Raises:
            ValueError: a shape that differs from the reference's, or a value that is not finite.
        """
        row = np.asarray(x, np.float64)
        if row.shape != self.reference.coefficients.shape:
            raise ValueError(
                f"x has shape {row.shape}: the model has columns {', '.join(self.reference.names)}"
            )
        if not (np.isfinite(row).all() and math.isfinite(y)):
            raise ValueError(f"x = {row.tolist()}, y = {y}: must be finite")
        self._window.append((row, float(y)))
        self._count += 1
        self._fitted = None
        if self._learning:
            self._learning -= 1
            if self._learning == 0:
                self._settle()
            return False
        since = self._chart(row, float(y))
        if since:
            self._relearn(since)
        return bool(since)

    def _chart(self, row: Floats, y: float) -> int:
        """Moves the CUSUM charts on; how many reports ago drift began if one passes its limit, else 0."""
        predicted = float(row @ self._believed)
        noise = self._sigma * float(self.reference.spread(row))
        noise = max(noise, self.rule.noise_floor * abs(predicted), 1e-300)
        for side, signed in enumerate((y - predicted, predicted - y)):
            z = (signed - self.rule.tolerance * abs(predicted)) / noise
            self._sums[side] = max(0.0, self._sums[side] + z - self.rule.shift / 2)
            self._runs[side] = self._runs[side] + 1 if self._sums[side] > 0 else 0
        worst = int(np.argmax(self._sums))
        return self._runs[worst] if self._sums[worst] > self.rule.limit else 0

    def _relearn(self, since: int) -> None:
        """Drift was found; it began `since` reports ago."""
        while len(self._window) > since:
            self._window.popleft()
        measured = sum(y for _, y in self._window)
        before = sum(float(row @ self._believed) for row, _ in self._window)
        if before > 0 and measured > 0:
            self._believed = self._believed * (measured / before)
            self._sigma *= measured / before
        self._sums, self._runs = [0.0, 0.0], [0, 0]
        self._learning = self.rule.relearn_reports
        self.drifts.append(self._count - 1)

    def _settle(self) -> None:
        """The reports since the alarm make the new reference."""
        self._believed = self.coefficients.copy()
        self._fitted = None
        rows = np.array([row for row, _ in self._window])
        errors = np.array([y for _, y in self._window]) - rows @ self._believed
        freedom = max(len(rows) - rows.shape[1], 1)
        self._sigma = max(self._sigma, math.sqrt(float(errors @ errors) / freedom))

    @property
    def coefficients(self) -> Floats:
        """(p,) of the line as it is believed now, none negative."""
        from scipy.optimize import nnls

        if self._fitted is None:
            rows = np.array([row for row, _ in self._window])
            target = np.array([y for _, y in self._window])
            prior = self._root * math.sqrt(1.0 if self._learning else self.rule.prior_reports)
            x = np.concatenate([rows, prior])
            y = np.concatenate([target, prior @ self._believed])
            size = np.abs(x).max(axis=0)
            size = np.where(size > 0, size, 1.0)
            self._fitted = same_anywhere(nnls(x / size, y)[0], float(np.abs(y).max())) / size
        return self._fitted

    @property
    def believed(self) -> Floats:
        """(p,) coefficients of the reference that drift is looked for against."""
        return self._believed

    def predict(self, x: ArrayLike) -> Floats:
        """(...,) predictions at x (..., p)."""
        predicted: Floats = np.asarray(x, np.float64) @ self.coefficients
        return predicted


class WorkerModels:
    """Eq. 2 and 3 of one worker, kept up to date.

    Args:
        prefill, decode: the profile of its LLM, GPU and degree (`performance.fit_prefill`,
            `fit_decode`).
        rule: of drift.
        prefill_range: fewest and most tokens of a prefill that is a sample of Eq. 2. It is about
            prompts that "saturate the worker's computing power": shorter ones take the time of
            reading the weights; in longer ones than profiled, attention grows with the square.

    Raises:
        ValueError: a range that is empty.
    """

    def __init__(
        self,
        prefill: LinearFit,
        decode: LinearFit,
        rule: DriftRule | None = None,
        prefill_range: tuple[float, float] = (SATURATING_TOKENS, 4096.0),
    ) -> None:
        if not prefill_range[0] < prefill_range[1]:
            raise ValueError(f"prefill_range = {prefill_range}: must ascend")
        rule = rule or DriftRule()
        self.prefill_range = prefill_range
        self.prefill_line = OnlineLine(prefill, rule)
        self.decode_line = OnlineLine(decode, rule)

    def report_prefill(self, tokens: float, seconds: float) -> bool:
        """A prefill iteration; whether it gives drift away. Outside the range it is no sample."""
        if not self.prefill_range[0] <= tokens <= self.prefill_range[1]:
            return False
        return self.prefill_line.report((tokens, 1.0), seconds)

    def report_decode(self, batch: int, context_tokens: float, seconds: float) -> bool:
        """A decode iteration; whether it gives drift away. One request alone is no sample of Eq. 3."""
        if batch <= 1:
            return False
        return self.decode_line.report((context_tokens, batch, 1.0), seconds)

    @property
    def prefill(self) -> PrefillTime:
        """Eq. 2 as it is believed now."""
        return PrefillTime(*_positive_first(self.prefill_line))

    @property
    def decode(self) -> DecodeTime:
        """Eq. 3 as it is believed now."""
        return DecodeTime(*_positive_first(self.decode_line))

    @property
    def drifted(self) -> bool:
        """Whether it has ever been found to drift."""
        return bool(self.prefill_line.drifts or self.decode_line.drifts)


def _positive_first(line: OnlineLine) -> list[float]:
    """Coefficients; a time per token that a few noisy reports push to 0 keeps the reference's."""
    values = [float(value) for value in line.coefficients]
    if not values[0] > 0:
        values[0] = float(line.believed[0]) or float(line.reference.coefficients[0])
    return values
