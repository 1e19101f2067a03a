"""Output lengths predicted from history (section 2.3), and predicted again (section 4.3).

"We use the estimated output length of each input length in the historical data as the predicted
output length": the conditional mean, unbiased by construction. A request that has emitted more than
was predicted is predicted again, by the mean of the outputs that were longer than it is so far.

Ours: input lengths are told apart in bins (those of Figure 2 are not given), a bin is believed once
it has `enough` outputs, and before that all bins together are. Short outputs finish first, so what
has finished by the start of a run is too short on average; a `prior` dampens that.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PROMPT_EDGES: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Ours: first prompt length of each bin but the first."""


@runtime_checkable
class OutputPredictor(Protocol):
    """What predicts total output tokens.

    Attributes:
        oracle: it knows the truth, which nobody can; results with one must say so.
    """

    oracle: bool

    def observe(self, input_tokens: ArrayLike, output_tokens: ArrayLike) -> None:
        """Requests that have finished, (n,) each."""

    def predict(self, requests: ArrayLike, input_tokens: ArrayLike) -> Floats:
        """(n,) total output tokens of new requests.

        Args:
            requests: (n,) ids.
            input_tokens: (n,).
        """

    def repredict(
        self, requests: ArrayLike, input_tokens: ArrayLike, emitted_tokens: ArrayLike
    ) -> Floats:
        """(n,) total output tokens, given that each has emitted so many and goes on: above them.

        Args:
            requests: (n,) ids.
            input_tokens, emitted_tokens: (n,).
        """


class Constant:
    """The same for all: a prediction that knows nothing.

    Args:
        tokens: of each output.

    Raises:
        ValueError: less than one token.
    """

    oracle = False

    def __init__(self, tokens: float) -> None:
        if not (tokens >= 1 and math.isfinite(tokens)):
            raise ValueError(f"tokens = {tokens}: must be at least 1 and finite")
        self.tokens = float(tokens)

    def observe(self, input_tokens: ArrayLike, output_tokens: ArrayLike) -> None:
        """Nothing is learnt."""

    def predict(self, requests: ArrayLike, input_tokens: ArrayLike) -> Floats:
        return np.full(np.shape(input_tokens), self.tokens)

    def repredict(
        self, requests: ArrayLike, input_tokens: ArrayLike, emitted_tokens: ArrayLike
    ) -> Floats:
        return np.maximum(self.tokens, np.asarray(emitted_tokens, np.float64) + 1)


class Oracle:
    """The true lengths. For bounds and tests: no system has them.

    Args:
        output_tokens: (n,) true output of each request, by id.
    """

    oracle = True

    def __init__(self, output_tokens: ArrayLike) -> None:
        self.output_tokens = np.asarray(output_tokens, np.float64)

    def observe(self, input_tokens: ArrayLike, output_tokens: ArrayLike) -> None:
        """Nothing is left to learn."""

    def predict(self, requests: ArrayLike, input_tokens: ArrayLike) -> Floats:
        return self.output_tokens[np.asarray(requests, np.int64)]

    def repredict(
        self, requests: ArrayLike, input_tokens: ArrayLike, emitted_tokens: ArrayLike
    ) -> Floats:
        return self.predict(requests, input_tokens)


class ConditionalMean:
    """Mean output of the finished requests whose prompt was about as long (Figure 2).

    Args:
        edges: (k,) first prompt length of each bin but the first, ascending: k + 1 bins.
        enough: outputs that a bin, or what is left of it above a length, needs to be believed.
        prior_tokens: mean output before anything has finished.
        prior_requests: the prior counts as so many outputs among all.
        longest: outputs are counted up to here; longer ones count as this long (the paper's limit
            of an answer is 2048).

    Raises:
        ValueError: a value out of range.
    """

    oracle = False

    def __init__(
        self,
        edges: tuple[int, ...] = PROMPT_EDGES,
        *,
        enough: int = 30,
        prior_tokens: float = 256.0,
        prior_requests: float = 30.0,
        longest: int = 8192,
    ) -> None:
        if any(b <= a for a, b in zip((0, *edges), edges, strict=False)):
            raise ValueError(f"edges = {edges}: must be positive and ascend")
        for name, value, low in (
            ("enough", enough, 1),
            ("prior_tokens", prior_tokens, 1),
            ("prior_requests", prior_requests, 0),
            ("longest", longest, 1),
        ):
            if not (value >= low and math.isfinite(value)):
                raise ValueError(f"{name} = {value}: must be at least {low} and finite")
        self.edges = np.asarray(edges, np.int64)
        self.enough = enough
        self.prior_tokens = float(prior_tokens)
        self.prior_requests = float(prior_requests)
        self.longest = longest
        # (bins + 1, longest + 1) how many outputs had each length; the last row is all bins together.
        self._counts: Ints = np.zeros((len(edges) + 2, longest + 1), np.int64)
        self._above: tuple[Floats, Floats] | None = None

    def bins(self, input_tokens: ArrayLike) -> Ints:
        """The bin of each prompt, from 0; the shape of `input_tokens`."""
        return np.searchsorted(self.edges, np.asarray(input_tokens), side="right").astype(np.int64)

    @property
    def seen(self) -> Ints:
        """(bins,) outputs that each bin has."""
        total: Ints = self._counts[:-1].sum(axis=1)
        return total

    def observe(self, input_tokens: ArrayLike, output_tokens: ArrayLike) -> None:
        inputs = np.asarray(input_tokens).reshape(-1)
        outputs = np.asarray(output_tokens).reshape(-1)
        if inputs.shape != outputs.shape:
            raise ValueError(
                f"{len(inputs)} inputs, {len(outputs)} outputs: needs one of each per request"
            )
        if len(inputs) == 0:
            return
        if not ((inputs > 0) & (outputs > 0)).all():
            raise ValueError("input_tokens and output_tokens must be positive")
        length = np.minimum(outputs, self.longest).astype(np.int64)
        np.add.at(self._counts, (self.bins(inputs), length), 1)
        np.add.at(self._counts[-1], length, 1)
        self._above = None

    def predict(self, requests: ArrayLike, input_tokens: ArrayLike) -> Floats:
        return self._mean_above(input_tokens, np.zeros(np.shape(input_tokens), np.int64))

    def repredict(
        self, requests: ArrayLike, input_tokens: ArrayLike, emitted_tokens: ArrayLike
    ) -> Floats:
        return self._mean_above(input_tokens, np.asarray(emitted_tokens, np.int64))

    def _mean_above(self, input_tokens: ArrayLike, emitted: Ints) -> Floats:
        """E[output | output > emitted, bin]; from all bins where the bin has too few.

        With nobody that was longer, one token more than emitted: nothing is known.
        """
        if (emitted < 0).any():
            raise ValueError("emitted_tokens must be at least 0")
        if self._above is None:
            tokens = np.arange(self.longest + 1, dtype=np.float64)
            flipped = self._counts[:, ::-1].astype(np.float64)
            count = np.cumsum(flipped, axis=1)[:, ::-1]
            total = np.cumsum(flipped * tokens[::-1], axis=1)[:, ::-1]
            none = np.zeros((len(count), 1))
            self._above = np.hstack([count, none]), np.hstack([total, none])
        count, total = self._above
        at = np.minimum(emitted + 1, self.longest + 1)
        row = self.bins(input_tokens)
        own, all_ = count[row, at], count[-1, at]
        mean = total[row, at] / np.maximum(own, 1)
        # The prior knows a mean only, so it has a say on the whole and not on what is left above a length.
        weight = np.where(emitted == 0, self.prior_requests, 0.0)
        weight = np.where((weight == 0) & (all_ == 0) & (emitted == 0), 1.0, weight)
        common = total[-1, at] + weight * self.prior_tokens
        common = common / np.maximum(all_ + weight, 1e-300)
        believed = np.where(own >= self.enough, mean, common)
        return np.maximum(believed, emitted + 1.0)


def under_estimated(
    predictor: OutputPredictor,
    requests: ArrayLike,
    input_tokens: ArrayLike,
    predicted_tokens: ArrayLike,
    emitted_tokens: ArrayLike,
) -> tuple[Ints, Floats]:
    """Requests that have emitted what was predicted and go on, and their new predictions (section 4.3).

    Args:
        predictor: of output lengths.
        requests: (n,) ids of unfinished requests.
        input_tokens, predicted_tokens, emitted_tokens: (n,).

    Returns:
        (m,) ids, (m,) new total output tokens, each above what has been emitted.
    """
    ids, inputs, predicted, emitted = (
        np.asarray(a) for a in (requests, input_tokens, predicted_tokens, emitted_tokens)
    )
    some = emitted >= predicted  # unfinished with as many tokens: it will exceed them
    new = predictor.repredict(ids[some], inputs[some], emitted[some])
    return ids[some].astype(np.int64), new
