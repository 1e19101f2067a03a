"""What has been learnt of output lengths, per LLM and class, from requests that have finished.

QLM fits mean and standard deviation "from the request input-output history" (section 6). Here nothing is
known before it has happened: a prior counts as some requests until real ones outweigh it (ours). Note
that short outputs finish first, so early means are low; the prior dampens that too.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Statistics:
    """Of the output tokens of one LLM and class.

    Attributes:
        mean: mu_o.
        std: sigma_o.
        largest: most that was seen; 0 before the first.
        count: requests seen, those of the prior left out.
    """

    mean: float
    std: float
    largest: float
    count: int


@dataclass
class OutputHistory:
    """Online mean and standard deviation, per key (an LLM and a class, say).

    Attributes:
        prior_mean: tokens, before anything was seen.
        prior_std: likewise.
        prior_requests: the prior counts as so many requests; 0: only what was seen counts, the prior
            only before the first.

    Raises:
        ValueError: a value out of range.
    """

    prior_mean: float
    prior_std: float
    prior_requests: float = 32.0
    _sums: dict[Hashable, tuple[int, float, float, float]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for name in ("prior_mean", "prior_std", "prior_requests"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} = {value}: must be at least 0 and finite")

    def observe(self, key: Hashable, tokens: ArrayLike) -> None:
        """Requests that have finished.

        Args:
            key: their LLM and class.
            tokens: (n,) of each output.

        Raises:
            ValueError: a negative or endless output.
        """
        values = np.asarray(tokens, np.float64).reshape(-1)
        if len(values) == 0:
            return
        if not (np.isfinite(values) & (values >= 0)).all():
            raise ValueError("tokens: outputs must be at least 0 and finite")
        n, mean, squares, largest = self._sums.get(key, (0, 0.0, 0.0, 0.0))
        more, its_mean = len(values), float(values.mean())
        # Sums of squares about the mean (Chan, Golub, LeVeque 1979) stay accurate over millions.
        both = n + more
        squares += float(((values - its_mean) ** 2).sum())
        squares += (its_mean - mean) ** 2 * n * more / both
        mean += (its_mean - mean) * more / both
        self._sums[key] = (both, mean, squares, max(largest, float(values.max())))

    def statistics(self, key: Hashable) -> Statistics:
        """What is believed of a key's outputs: prior and past together."""
        n, mean, squares, largest = self._sums.get(key, (0, 0.0, 0.0, 0.0))
        weight = self.prior_requests if n else max(self.prior_requests, 1.0)
        total = n + weight
        both = (n * mean + weight * self.prior_mean) / total
        squares += weight * self.prior_std**2
        squares += n * (mean - both) ** 2 + weight * (self.prior_mean - both) ** 2
        return Statistics(both, math.sqrt(squares / total), largest, n)
