"""Aladdin's performance models (section 3): KV use, prefill time, decode time, the context limit.

| equation | here |
|---|---|
| 1: kv = h (l_in + l_out) + j | `KvUse` |
| 2: t_pre = k1 sum l_in + c1 | `PrefillTime` |
| 3: t_d = (k2 l_ave + c2) b + c3, b > 1 | `DecodeTime.seconds`; l_ave b is the context of the batch |
| 4: l_d <= (T_dec - c2 b - c3) / k2, b > 1 | `DecodeTime.context_limit` |

Coefficients come from samples by least squares (`fit_kv`, `fit_prefill`, `fit_decode`), with
prediction intervals. "All coefficients in Eq. 4 are positive" (section 3.2): one that least squares
would make negative is held at 0. What a single worker reports while it serves goes to `online`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

DIGITS = 12
"""Digits of fits behind the first: the last three or four of a double are the processor's."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class KvUse:
    """Eq. 1: KV memory of one request.

    Attributes:
        per_token: h, in tokens or bytes per token of input and output so far.
        const: j, in tokens or bytes per request.

    Raises:
        ValueError: a coefficient is negative or not finite, or `per_token` is 0.
    """

    per_token: float = 1.0
    const: float = 0.0

    def __post_init__(self) -> None:
        _check_coefficients(self, "per_token", "const", positive="per_token")

    def of(self, tokens: ArrayLike) -> Floats:
        """KV of a request with so many tokens, l_in + l_out; the shape of `tokens`."""
        return self.per_token * np.asarray(tokens, np.float64) + self.const


@dataclass(frozen=True)
class PrefillTime:
    """Eq. 2: time of a prefill iteration.

    Attributes:
        per_token_s: k1.
        const_s: c1.

    Raises:
        ValueError: a coefficient is negative or not finite, or `per_token_s` is 0.
    """

    per_token_s: float
    const_s: float

    def __post_init__(self) -> None:
        _check_coefficients(self, "per_token_s", "const_s", positive="per_token_s")

    def seconds(self, tokens: float) -> float:
        """t_p of prompts with so many tokens in all."""
        return self.per_token_s * tokens + self.const_s

    def most_tokens(self, limit_s: float) -> float:
        """Prompt tokens that take `limit_s`; negative if not even an empty prefill is as short."""
        return (limit_s - self.const_s) / self.per_token_s


@dataclass(frozen=True)
class DecodeTime:
    """Eq. 3: time of a decode iteration of more than one request.

    Attributes:
        per_token_s: k2, per token of context summed over the batch.
        per_request_s: c2.
        const_s: c3.

    Raises:
        ValueError: a coefficient is negative or not finite, or `per_token_s` is 0.
    """

    per_token_s: float
    per_request_s: float
    const_s: float

    def __post_init__(self) -> None:
        _check_coefficients(self, "per_token_s", "per_request_s", "const_s", positive="per_token_s")

    def seconds(self, batch: float, context_tokens: float) -> float:
        """t_d of `batch` requests with so many tokens of context in all (b l_ave)."""
        return self.per_token_s * context_tokens + self.per_request_s * batch + self.const_s

    def context_limit(self, batch: float, slo_s: float) -> float:
        """Eq. 4: l_d(b), the context of a batch whose iteration takes `slo_s` (T_dec).

        Eq. 3 and 4 hold for b > 1: a single request has no limit. A negative limit says that the
        batch is too large with no context at all.
        """
        if batch <= 1:
            return math.inf
        return (slo_s - self.const_s - self.per_request_s * batch) / self.per_token_s


@dataclass(frozen=True, eq=False)
class LinearFit:
    """A least-squares line with what its prediction intervals need.

    Attributes:
        names: of the p coefficients.
        coefficients: (p,).
        gram: (p, p) X'X of the n samples.
        covariance: (p, p) inverse of `gram` over the coefficients that are not held at 0.
        sigma: standard deviation of the residuals, in the unit of what is predicted.
        freedom: their degrees of freedom.
        samples: n.
        mean_error, worst_error: relative, absolute, over the samples.
    """

    names: tuple[str, ...]
    coefficients: Floats
    gram: Floats
    covariance: Floats
    sigma: float
    freedom: int
    samples: int
    mean_error: float
    worst_error: float

    def predict(self, x: ArrayLike) -> Floats:
        """(...,) predictions at x (..., p)."""
        predicted: Floats = np.asarray(x, np.float64) @ self.coefficients
        return predicted

    def spread(self, x: ArrayLike) -> Floats:
        """(...,) standard deviation of one more observation at x (..., p), as multiples of sigma."""
        x = np.asarray(x, np.float64)
        return np.sqrt(1.0 + np.einsum("...i,ij,...j->...", x, self.covariance, x))

    def deviation(self, x: ArrayLike) -> Floats:
        """(...,) the same in the unit of what is predicted."""
        return self.sigma * self.spread(x)

    def interval(self, x: ArrayLike, level: float = 0.95) -> tuple[Floats, Floats]:
        """Prediction interval at x (..., p): where `level` of further observations fall.

        Raises:
            ValueError: a level outside 0..1.
        """
        from scipy.stats import t

        if not 0 < level < 1:
            raise ValueError(f"level = {level}: must be between 0 and 1")
        half = float(t.isf((1 - level) / 2, self.freedom)) * self.deviation(x)
        middle = self.predict(x)
        return middle - half, middle + half

    def inverse_interval(
        self, x: ArrayLike, column: int, target: float, level: float = 0.95
    ) -> tuple[float, float, float]:
        """Where the prediction and its interval reach a target, along one column (Figures 6 and 7).

        Args:
            x: (p,) the other columns' values; that of `column` does not count.
            column: what varies, the context say.
            target: time, or KV.
            level: of the interval.

        Returns:
            The column's value at which the upper bound, the prediction and the lower bound are
            `target`.

        Raises:
            ValueError: a level outside 0..1, a coefficient that is 0, or an interval that never
                reaches the target because the line's slope is not told from 0.
        """
        from scipy.optimize import brentq

        x = np.array(x, np.float64)
        slope = self.coefficients[column]
        if slope <= 0:
            raise ValueError(
                f"column = {column}: {self.names[column]} is {slope}, must be positive"
            )
        x[column] = 0.0
        middle = (target - float(self.predict(x))) / slope

        def at(value: float, side: int) -> float:
            x[column] = value
            return float(self.interval(x, level)[side]) - target

        found = []
        for side, direction in ((1, -1.0), (0, 1.0)):
            if at(middle, side) == 0:  # no noise at all
                found.append(middle)
                continue
            step = max(float(np.ptp(self.interval(x, level))) / slope, 1e-9 * abs(middle), 1e-12)
            for _ in range(60):
                end = middle + direction * step
                if at(end, side) * -direction <= 0:
                    break
                step *= 2
            else:
                raise ValueError(
                    f"target = {target}: the {level:g} interval never reaches it; too much noise"
                )
            found.append(float(brentq(at, *sorted((middle, end)), args=(side,))))
        return found[0], middle, found[1]


def fit_kv(tokens: ArrayLike, kv: ArrayLike) -> tuple[KvUse, LinearFit]:
    """Eq. 1 from samples; columns of the fit: tokens, 1.

    Args:
        tokens: (n,) input and output so far of a request.
        kv: (n,) its KV, in tokens or bytes.

    Raises:
        ValueError: too few samples, equal ones, or values that are not finite.
    """
    fit = fit_line({"per_token": tokens, "const": np.ones(np.shape(tokens))}, kv)
    return KvUse(*map(float, fit.coefficients)), fit


def fit_prefill(tokens: ArrayLike, seconds: ArrayLike) -> tuple[PrefillTime, LinearFit]:
    """Eq. 2 from samples; columns of the fit: tokens, 1.

    Args:
        tokens: (n,) prompt tokens of a prefill iteration, all requests together.
        seconds: (n,) its time.

    Raises:
        ValueError: as `fit_kv`.
    """
    fit = fit_line({"per_token_s": tokens, "const_s": np.ones(np.shape(tokens))}, seconds)
    return PrefillTime(*map(float, fit.coefficients)), fit


def fit_decode(
    batch: ArrayLike, context_tokens: ArrayLike, seconds: ArrayLike
) -> tuple[DecodeTime, LinearFit]:
    """Eq. 3 from samples; columns of the fit: context, batch, 1.

    Samples with one request are left out, as Eq. 3 does.

    Args:
        batch: (n,) requests of a decode iteration.
        context_tokens: (n,) their context in all.
        seconds: (n,) its time.

    Raises:
        ValueError: as `fit_kv`.
    """
    batch, context, y = (np.asarray(a, np.float64) for a in (batch, context_tokens, seconds))
    if not batch.shape == context.shape == y.shape:
        raise ValueError(
            f"batch {batch.shape}, context_tokens {context.shape}, seconds {y.shape}: must be as long"
        )
    some = ~(batch <= 1)  # NaN stays in and is reported
    columns = {
        "per_token_s": context[some],
        "per_request_s": batch[some],
        "const_s": np.ones(int(some.sum())),
    }
    fit = fit_line(columns, y[some])
    return DecodeTime(*map(float, fit.coefficients)), fit


def same_anywhere(values: ArrayLike, scale: float | None = None) -> Floats:
    """Rounded, so that what another processor's BLAS leaves in the last digits decides nothing.

    Placement compares what is predicted with targets that it may meet exactly.

    Args:
        values: any shape.
        scale: what all are rounded beside, as is fit for sums that cancel; None: each beside itself.
    """
    found: Floats = np.asarray(values, np.float64)
    if scale is None:
        beside = 10.0 ** np.floor(np.log10(np.where(found == 0, 1.0, np.abs(found))))
    else:
        beside = np.full_like(found, scale or 1.0)
    rounded: Floats = np.round(found / beside, DIGITS) * beside
    return rounded


def fit_line(columns: Mapping[str, ArrayLike], y: ArrayLike) -> LinearFit:
    """Ordinary least squares without negative coefficients.

    Args:
        columns: name to (n,) values.
        y: (n,) what is to be predicted.

    Raises:
        ValueError: fewer samples than coefficients and one more, columns that do not tell the
            coefficients apart, or values that are not finite.
    """
    import statsmodels.api as sm
    from scipy.optimize import nnls

    names = tuple(columns)
    x = np.column_stack([np.asarray(column, np.float64).reshape(-1) for column in columns.values()])
    values = np.asarray(y, np.float64).reshape(-1)
    if len(values) != len(x):
        raise ValueError(f"{len(x)} samples of {', '.join(names)}, {len(values)} to be predicted")
    if not (np.isfinite(x).all() and np.isfinite(values).all()):
        raise ValueError("samples must be finite")
    if len(x) <= len(names):
        raise ValueError(
            f"{len(x)} samples for {len(names)} coefficients: at least {len(names) + 1} are needed"
        )
    size = np.abs(x).max(axis=0)
    scaled = x / np.where(size > 0, size, 1.0)  # tokens by the 100,000 beside a column of ones
    if np.linalg.matrix_rank(scaled) < len(names):
        raise ValueError(f"the samples do not tell {', '.join(names)} apart: vary them more")
    kept = np.ones(len(names), bool)
    result = sm.OLS(values, scaled).fit()
    if (result.params < 0).any():
        kept = nnls(scaled, values)[0] > 0
        result = sm.OLS(values, scaled[:, kept]).fit()
    coefficients = np.zeros(len(names))
    top = float(np.abs(values).max())
    steady = same_anywhere(result.params, top)
    coefficients[kept] = np.maximum(steady, 0.0) / size[kept]  # one at 0 may round below it
    covariance = np.zeros((len(names), len(names)))
    covariance[np.ix_(kept, kept)] = result.normalized_cov_params / np.outer(size[kept], size[kept])
    error = np.abs(x @ coefficients - values) / np.where(values != 0, np.abs(values), np.inf)
    return LinearFit(
        names=names,
        coefficients=coefficients,
        gram=same_anywhere(x.T @ x),
        covariance=same_anywhere(covariance),
        sigma=float(same_anywhere(math.sqrt(max(float(result.scale), 0.0)), top)),
        freedom=int(result.df_resid),
        samples=len(x),
        mean_error=float(error.mean()),
        worst_error=float(error.max()),
    )


def _check_coefficients(model: object, *names: str, positive: str) -> None:
    for name in names:
        value = getattr(model, name)
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} = {value}: must be at least 0 and finite")
    if not getattr(model, positive) > 0:
        raise ValueError(f"{positive} = {getattr(model, positive)}: must be positive")
