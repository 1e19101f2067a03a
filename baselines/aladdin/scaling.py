"""How many workers: Eq. 7 from models, history and experience, with change points (section 5.2).

k5 and c5 are "learnable coefficients associated with the historical demand". Before there is any
experience, k5 is what the performance models say of an average request: a worker whose batch B takes
T_dec for a token, prefills of the requests that come meanwhile included, finishes B / (E[l_out] T_dec)
requests per second, with B = theta (T_dec - c3) / (c2 + k2 l + t_pre / E[l_out]), l the context that a
decoding request has on average (as iteration times are linear, this solves t_d(B) = T_dec (1 - share of
time in prefill)), or what KV memory holds. c5 is one, for workers that are partly filled. Experience
is a pair of rate and workers in use for each period; once rates differ enough Eq. 7 is fitted to
them, before that c5 follows them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from baselines.aladdin.configuration import RequestTokens
from baselines.aladdin.demand import DemandMonitor, WorkerLine, fit_workers, lower_rate
from baselines.aladdin.performance import DecodeTime, PrefillTime

Rate = Literal["changes", "window", "last"]

PAIRS = 36
"""Periods that are remembered."""

SETTLING = 3
"""Periods after a change that say nothing of Eq. 7: requests of the rate before still run."""


def requests_per_worker(
    prefill: PrefillTime | None,
    decode: DecodeTime,
    kv_capacity: float,
    itl_slo_s: float,
    inputs: NDArray[np.int32],
    outputs: NDArray[np.int32],
    theta: float = 1.0,
) -> float:
    """Requests/s that a worker can take (1 / k5).

    Args:
        prefill: Eq. 2; None: the worker only decodes.
        decode: Eq. 3.
        kv_capacity: M in tokens.
        itl_slo_s: T_dec.
        inputs, outputs: (n,) lengths of earlier requests.
        theta: share of the slack that is used.

    Raises:
        ValueError: not even one request keeps the SLO.
    """
    tokens = RequestTokens.of(inputs, outputs)
    output = float(np.mean(outputs))
    each = decode.per_request_s + decode.per_token_s * tokens.held
    if prefill is not None:
        each += prefill.seconds(float(np.mean(inputs))) / output
    batch = min(theta * (itl_slo_s - decode.const_s) / each, kv_capacity / tokens.held)
    if batch < 1:
        raise ValueError(
            f"itl_slo_s = {itl_slo_s}: one request takes {decode.const_s + each:.4f} s per token"
        )
    return batch / (output * itl_slo_s)


@dataclass
class WorkerDemand:
    """The number of workers at each heartbeat.

    Attributes:
        line: Eq. 7 as it is known before there is experience.
        period_s: between two looks at the rate (a heartbeat of placement is too short to count in).
        false_alarm: of the change points.
        least, most: workers.
        rate_of: the rate since the last change point ("changes"), of all periods that are remembered
            ("window"), or of the "last" one.
        learns: Eq. 7 follows experience; False: it stays `line`.
    """

    line: WorkerLine
    period_s: float
    false_alarm: float
    least: int
    most: int
    rate_of: Rate = "changes"
    learns: bool = True
    _arrivals: int = field(default=0, init=False)
    _since_s: float = field(default=0.0, init=False)
    _used: int = field(default=0, init=False)
    _settling: int = field(default=SETTLING, init=False)

    def __post_init__(self) -> None:
        self.monitor = DemandMonitor(self.period_s, self.false_alarm)
        self.pairs: deque[tuple[float, int]] = deque(maxlen=PAIRS)
        self._recent: deque[float] = deque(maxlen=self.monitor.window)
        self.changes: list[float] = []
        self.rate = 0.0

    @classmethod
    def start(
        cls,
        per_worker: float,
        inputs: NDArray[np.int32],
        outputs: NDArray[np.int32],
        *,
        period_s: float,
        false_alarm: float,
        most: int,
        below: str = "margin",
        rate_of: Rate = "changes",
        learns: bool = True,
    ) -> WorkerDemand:
        """From history (see the module)."""
        lowest = lower_rate(inputs, outputs, period_s)
        line = WorkerLine(
            1 / per_worker, 1.0, lowest, below="line" if below == "line" else "margin"
        )
        return cls(line, period_s, false_alarm, 1, most, rate_of, learns)

    def observe(self, time_s: float, arrivals: int, used: int) -> int | None:
        """One heartbeat.

        Args:
            time_s: now.
            arrivals: since the last one.
            used: workers that have requests, and those that the ones that wait would need.

        Returns:
            How many workers there should be, at the end of a period; None: no news.
        """
        self._arrivals += arrivals
        self._used = max(self._used, used)
        if time_s < self._since_s + self.period_s - 1e-9:
            return None
        demand = self.monitor.observe(self._arrivals)
        if demand.changed:
            self.changes.append(time_s)
            self._settling = SETTLING
        if self._settling:
            self._settling -= 1
        elif self._arrivals:
            self.pairs.append((self._arrivals / self.period_s, self._used))
        self._recent.append(self._arrivals / self.period_s)
        self.rate = {
            "changes": demand.rate,
            "window": float(np.mean(self._recent)),
            "last": self._recent[-1],
        }[self.rate_of]
        self._arrivals, self._used, self._since_s = 0, 0, time_s
        return self.workers()

    def workers(self) -> int:
        """N_w for the rate as it is believed."""
        return int(np.clip(self.learnt().workers(self.rate), self.least, self.most))

    def learnt(self) -> WorkerLine:
        """Eq. 7 from experience, as far as there is any."""
        line = self.line
        if len(self.pairs) < 3 or not self.learns:
            return line
        rates, used = (np.array(column, float) for column in zip(*self.pairs, strict=True))
        if rates.max() > 1.5 * rates.min() and len(rates) >= 6:
            try:
                fitted = fit_workers(rates, used, error_at_lower=line.error_at_lower)
                return WorkerLine(
                    fitted.per_rate,
                    fitted.const,
                    line.lower_rate,
                    line.error_at_lower,
                    line.below,
                    line.z,
                )
            except ValueError:  # a line that falls: rates that were too alike after all
                pass
        const = float(np.mean(used - line.per_rate * rates))
        return WorkerLine(
            line.per_rate,
            max(const, 0.0),
            line.lower_rate,
            line.error_at_lower,
            line.below,
            line.z,
        )
