"""The demand of the next hour: forecasts of interactive tokens per LLM and region (section 6.4).

Every bin, the tokens that came are observed; every hour a forecast of the bins of the next hour is
asked for, from what has been observed until then. To the forecast comes a buffer, beta = 10 % of the
non-interactive load of the past hour. The paper names ARIMA and no order, bin or training window: here
they are parameters of the forecaster (`llmscale_env.control.forecast`), any other of which may take
its place. The released code differs in three ways, of which two are parameters:

- order (3, 1, 2) on bins of one minute (`RELEASED`);
- the demand is the maximum of minutes 20 to 60 of the hour ahead (`lead_s`);
- it fits on the evaluation trace itself and predicts each bin from the true ones before it. That sees
  the future, so it is no forecaster here but an ablation: `in_sample` gives its values, `sees_future`
  marks it, as it marks "oracle".
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmscale_env.control.forecast import Clairvoyant, Forecaster, ForecasterSpec, make_forecaster

Floats = NDArray[np.float64]
Method = Literal["mle", "hannan-rissanen"]

HOUR_S = 3600.0
DAY_S = 86_400.0


def arima(
    order: Sequence[int] = (3, 1, 2),
    *,
    bin_s: float = 900.0,
    train_s: float = 2 * DAY_S,
    first_s: float = DAY_S / 4,
    refit_s: float = HOUR_S,
    method: Method = "hannan-rissanen",
    season_s: float = 0.0,
    harmonics: int | None = None,
) -> dict[str, Any]:
    """ARIMA as `ForecastSettings.forecaster` takes it, in seconds instead of bins.

    Args:
        order: (p, d, q).
        bin_s: of the settings.
        train_s: what a fit takes in at most.
        first_s: when the first fit comes (later if the order needs more values); until then the last
            value is the forecast.
        refit_s: time between fits.
        method: see `llmscale_env.control.forecast.ARIMA`. On the week, hourly fits of 12 series take
            5 s by Hannan and Rissanen's regression and minutes by maximum likelihood; the hour's peak
            is then wrong by 11.9 and 11.0 % (`python -m experiments.run sageserve-tableF scale=paper`,
            first seed).
        season_s: a season in Fourier terms; 0: none. A fit takes in two of them where `train_s` is shorter.
        harmonics: pairs of Fourier terms; None: 8 for each day of the season (ours).
    """
    p, d, q = order
    refit = max(round(refit_s / bin_s), 1)
    # On the hour, and with as many values as the order needs (see `control.forecast.ARIMA`).
    first = -(-max(round(first_s / bin_s), d + 2 * (p + q) + 4) // refit) * refit
    found = {
        "kind": "arima",
        "order": [p, d, q],
        "train_window": max(round(max(train_s, 2 * season_s) / bin_s), first),
        "min_train": first,
        "refit_every": refit,
        "method": method,
    }
    if season_s > 0:
        if harmonics is None:
            harmonics = max(1, round(8 * season_s / DAY_S))
        found.update(season_length=round(season_s / bin_s), harmonics=harmonics)
    return found


def seasonal(
    season_s: float = DAY_S, *, bin_s: float = 900.0, level_s: float = 0.0
) -> dict[str, Any]:
    """The value one season ago, as `ForecastSettings.forecaster` takes it.

    Args:
        season_s: length of the season.
        bin_s: of the settings.
        level_s: time over which recent load is compared with that of last season, by whose ratio the forecast
            is multiplied; 0: not at all.
    """
    found = {"kind": "seasonal-naive", "season_length": round(season_s / bin_s)}
    return found | ({"level_length": max(round(level_s / bin_s), 1)} if level_s > 0 else {})


def holt_winters(season_s: float = 0.0, *, bin_s: float = 900.0) -> dict[str, Any]:
    """Exponential smoothing with trend and season (0: none), as `ForecastSettings.forecaster` takes it."""
    return {"kind": "holt-winters", "season_length": round(season_s / bin_s)}


@dataclass(frozen=True)
class ForecastSettings:
    """How the demand of the next hour is forecast.

    Attributes:
        forecaster: name or mapping for `make_forecaster`, or a forecaster.
        bin_s: width of the windows w of section 5.1, over which tokens are averaged (15 min: how often
            section 5 holds provisioning to be viable).
        horizon_s: how far ahead (the decision window, 1 h).
        lead_s: windows that begin earlier than this ahead do not count (0; released code: 1200).
        beta: buffer as a share of the non-interactive load of the past hour.

    Raises:
        ValueError: a value out of range, or a horizon that is no whole number of bins.
    """

    forecaster: ForecasterSpec = field(default_factory=arima)
    bin_s: float = 900.0
    horizon_s: float = HOUR_S
    lead_s: float = 0.0
    beta: float = 0.1

    def __post_init__(self) -> None:
        if not self.bin_s > 0:
            raise ValueError(f"bin_s = {self.bin_s}: must be positive")
        for name in ("horizon_s", "lead_s"):
            bins = getattr(self, name) / self.bin_s
            if bins < 0 or abs(bins - round(bins)) > 1e-9:
                raise ValueError(
                    f"{name} = {getattr(self, name)}: must be a whole number of bins of {self.bin_s:g} s"
                )
        if not self.lead_s < self.horizon_s:
            raise ValueError(f"lead_s = {self.lead_s}: must be below horizon_s = {self.horizon_s}")
        if not 0 <= self.beta <= 10:
            raise ValueError(f"beta = {self.beta}: must be in 0..10")

    @property
    def steps(self) -> int:
        """Bins in the horizon."""
        return round(self.horizon_s / self.bin_s)

    @property
    def skipped(self) -> int:
        """Bins at its beginning that do not count."""
        return round(self.lead_s / self.bin_s)


RELEASED = ForecastSettings(arima((3, 1, 2), bin_s=60.0), bin_s=60.0, lead_s=1200.0)
"""Bins, order and lead of the released code, out of sample."""


@dataclass(frozen=True)
class DemandAhead:
    """A forecast.

    Attributes:
        tokens_per_s: (LLM, region, w) interactive load in each window that counts, without the buffer.
        buffer: (LLM, region) beta times the non-interactive load of the past hour.
        error: (LLM, region) weighted absolute percentage error of the forecaster's recent forecasts,
            one bin ahead (1 before there is any).
        starts_s: (w,) when each window begins, from now on.
        bin_s: width of a window.
    """

    tokens_per_s: Floats
    buffer: Floats
    error: Floats
    starts_s: Floats
    bin_s: float

    @property
    def windows(self) -> Floats:
        """Rho (LLM, region, w): what the integer programme has to serve, the buffer included."""
        return self.tokens_per_s + self.buffer[..., None]

    @property
    def peak(self) -> Floats:
        """(LLM, region) largest window without the buffer."""
        return self.tokens_per_s.max(axis=-1)

    def mean(self, from_s: float, to_s: float) -> Floats:
        """(LLM, region) mean load between two times ahead, without buffer; without windows the peak."""
        end_s = np.minimum(self.starts_s + self.bin_s, to_s)
        share = np.maximum(end_s - np.maximum(self.starts_s, from_s), 0.0)
        if not share.sum() > 0:
            return self.peak
        found: Floats = self.tokens_per_s @ (share / share.sum())
        return found


class DemandForecast:
    """Forecasts for each LLM and region from bins observed one by one.

    Args:
        n_llms, n_regions: sizes.
        settings: see there.
        future: (bins, LLM, region) the interactive load itself or a fit to it, for ablations only
            (`oracle`, `in_sample`).

    Raises:
        ValueError: a value out of range.
    """

    def __init__(
        self,
        n_llms: int,
        n_regions: int,
        settings: ForecastSettings | None = None,
        future: ArrayLike | None = None,
    ) -> None:
        if n_llms < 1 or n_regions < 1:
            raise ValueError(f"n_llms = {n_llms}, n_regions = {n_regions}: must be at least 1")
        self.settings = settings or ForecastSettings()
        self._shape = (n_llms, n_regions)
        made: Forecaster = (
            make_forecaster(self.settings.forecaster) if future is None else Clairvoyant()
        )
        made.reset(n_llms * n_regions)
        if isinstance(made, Clairvoyant) and future is not None:
            given = np.asarray(future, np.float64)
            made.set_future(given.reshape(len(given), -1))
        self._forecaster = made
        hour = max(round(HOUR_S / self.settings.bin_s), 1)
        self._background = np.zeros((hour, *self._shape))
        self._bins = 0

    @property
    def sees_future(self) -> bool:
        """Whether this is an ablation that is told what will be."""
        return self._forecaster.is_clairvoyant

    def observe(self, interactive: ArrayLike, background: ArrayLike = 0.0) -> None:
        """Take in the bin that has just ended.

        Args:
            interactive: (LLM, region) tokens per second that came.
            background: the same, non-interactive.

        Raises:
            ValueError: a wrong shape, or a value that is negative or not finite.
        """
        values = np.asarray(interactive, np.float64)
        if values.shape != self._shape:
            raise ValueError(f"interactive: expected shape {self._shape}, got {values.shape}")
        other = np.broadcast_to(np.asarray(background, np.float64), self._shape)
        if not ((other >= 0) & (other < np.inf)).all():
            raise ValueError("background: must be finite and at least 0")
        self._forecaster.update(values.reshape(-1))
        self._background[self._bins % len(self._background)] = other
        self._bins += 1

    def ahead(self) -> DemandAhead:
        """The windows of the next hour, from what has been observed."""
        settings = self.settings
        path = self._forecaster.predict_path(settings.steps)[settings.skipped :]
        seen = min(self._bins, len(self._background))
        buffer = settings.beta * self._background.sum(axis=0) / max(seen, 1)
        return DemandAhead(
            np.ascontiguousarray(path.T).reshape(*self._shape, -1),
            buffer,
            self._forecaster.recent_error().reshape(self._shape),
            np.arange(settings.skipped, settings.steps, dtype=np.float64) * settings.bin_s,
            settings.bin_s,
        )


def rolling(
    interactive: ArrayLike,
    settings: ForecastSettings,
    *,
    every_s: float = HOUR_S,
    future: ArrayLike | None = None,
) -> tuple[NDArray[np.int64], Floats]:
    """The forecasts that would have been made every hour of a series: each from its past only.

    Args:
        interactive: (bins, LLM, region) tokens per second.
        settings: see there.
        every_s: time between forecasts, a whole number of bins.
        future: as in `DemandForecast`.

    Returns:
        (k,) bins observed before each forecast (the first after `every_s`, the last with all of its
        windows in the series), and (k, LLM, region, w) forecasts.
    """
    series = np.asarray(interactive, np.float64)
    bins, n_llms, n_regions = series.shape
    step = round(every_s / settings.bin_s)
    forecast = DemandForecast(n_llms, n_regions, settings, future)
    at, found = [], []
    for t in range(bins - settings.steps):
        forecast.observe(series[t])
        if (t + 1) % step == 0:
            at.append(t + 1)
            found.append(forecast.ahead().tokens_per_s)
    windows = settings.steps - settings.skipped
    shape = (len(found), n_llms, n_regions, windows)
    return np.array(at, np.int64), np.array(found, np.float64).reshape(shape)


def windows_of(interactive: ArrayLike, at: ArrayLike, settings: ForecastSettings) -> Floats:
    """What came in the windows that forecasts at `at` are about: (k, LLM, region, w)."""
    series = np.asarray(interactive, np.float64)
    first = np.asarray(at, np.int64)[:, None] + np.arange(settings.skipped, settings.steps)
    return np.moveaxis(series[first], 1, -1)


@dataclass(frozen=True)
class ForecastError:
    """How wrong forecasts were, all LLMs and regions together, as shares of what came.

    Attributes:
        windows: sum of absolute errors of all windows over the sum of what came (WAPE).
        peak: the same of the largest window of each hour, which is what is provisioned for.
        short: what the peaks were forecast too low by, as a share of them.
        n: forecasts.
    """

    windows: float
    peak: float
    short: float
    n: int


def forecast_error(forecast: Floats, came: Floats) -> ForecastError:
    """The error of (k, LLM, region, w) forecasts against what came; NaN if nothing did."""
    if forecast.shape != came.shape:
        raise ValueError(f"forecast: expected shape {came.shape}, got {forecast.shape}")
    if came.size == 0 or not came.sum() > 0:
        return ForecastError(np.nan, np.nan, np.nan, len(came))
    peak, most = came.max(axis=-1), forecast.max(axis=-1)
    return ForecastError(
        float(np.abs(forecast - came).sum() / came.sum()),
        float(np.abs(most - peak).sum() / peak.sum()),
        float(np.maximum(peak - most, 0).sum() / peak.sum()),
        len(came),
    )


def oracle(interactive: ArrayLike) -> Floats:
    """The ablation "oracle": the future itself, for `future`."""
    return np.array(interactive, np.float64)


def in_sample(
    interactive: ArrayLike, order: Sequence[int] = (3, 1, 2), method: Method = "hannan-rissanen"
) -> Floats:
    """The ablation "in-sample", as the released code has it, for `future`.

    One model per series, fitted to all of it, predicts every bin from the true bins before it; where none
    can be fitted, each bin is the one before it.

    Args:
        interactive: (bins, LLM, region) tokens per second.
        order: (p, d, q).
        method: of the fit; "mle" takes minutes on a week of minutes.

    Returns:
        (bins, LLM, region) fitted values, at least 0.
    """
    from statsmodels.tsa.arima.model import ARIMA

    series = np.asarray(interactive, np.float64)
    flat = series.reshape(len(series), -1)
    fitted = np.zeros_like(flat)
    for k in range(flat.shape[1]):
        scale = float(flat[:, k].mean())
        if not scale > 0:
            continue
        with warnings.catch_warnings():
            # As in `llmscale_env.control.forecast.arima`: poor starting values, early stops.
            warnings.simplefilter("ignore")
            model = ARIMA(
                flat[:, k] / scale,
                order=tuple(order),
                enforce_stationarity=method == "mle",
                enforce_invertibility=method == "mle",
            )
            try:
                result = (
                    model.fit(method_kwargs={"maxiter": 50, "disp": 0}, cov_type="none")
                    if method == "mle"
                    else model.fit(method="hannan_rissanen", cov_type="none")
                )
                fitted[:, k] = np.asarray(result.predict()) * scale
            except (ValueError, np.linalg.LinAlgError):  # too few bins, or too much alike
                fitted[:, k] = flat[[0, *range(len(flat) - 1)], k]
    return np.maximum(fitted, 0.0).reshape(series.shape)
