"""Forecasts of arrivals (or tokens) per control interval; only the clairvoyant sees the future."""

from llmscale_env.control.forecast.arima import ARIMA
from llmscale_env.control.forecast.base import ERROR_BEFORE_DATA, Forecaster
from llmscale_env.control.forecast.clairvoyant import Clairvoyant
from llmscale_env.control.forecast.make import FORECASTERS, ForecasterSpec, make_forecaster
from llmscale_env.control.forecast.smoothing import EWMA, HoltWinters, LastValue, SeasonalNaive

__all__ = [
    "ARIMA",
    "ERROR_BEFORE_DATA",
    "EWMA",
    "FORECASTERS",
    "Clairvoyant",
    "Forecaster",
    "ForecasterSpec",
    "HoltWinters",
    "LastValue",
    "SeasonalNaive",
    "make_forecaster",
]
