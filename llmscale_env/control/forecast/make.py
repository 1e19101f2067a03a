"""Forecasters by name."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

from llmscale_env.control.forecast.arima import ARIMA
from llmscale_env.control.forecast.base import Forecaster
from llmscale_env.control.forecast.clairvoyant import Clairvoyant
from llmscale_env.control.forecast.smoothing import EWMA, HoltWinters, LastValue, SeasonalNaive

FORECASTERS: dict[str, type[Forecaster]] = {
    kind.name: kind for kind in (LastValue, SeasonalNaive, EWMA, HoltWinters, ARIMA, Clairvoyant)
}

ForecasterSpec = str | Mapping[str, Any] | Forecaster


def make_forecaster(spec: ForecasterSpec) -> Forecaster:
    """A forecaster from a name ("ewma"), a mapping of `kind` and its arguments, or a forecaster.

    `{"kind": "arima", "order": [3, 0, 1]}`; a forecaster, a user's own included, is copied. Capitals and
    `_` for `-` do no harm. `reset(n_series)` has still to be called.

    Raises:
        ValueError: for an unknown kind or argument, or a value out of range; the message names it
            and what is allowed.
    """
    if isinstance(spec, Forecaster):
        return _copied(spec)
    if isinstance(spec, str):
        spec = {"kind": spec}
    if not isinstance(spec, Mapping) or "kind" not in spec:
        raise ValueError(
            f"forecaster = {spec!r}: must be a name, a mapping with `kind` or a Forecaster; "
            f"there are {sorted(FORECASTERS)}"
        )
    name = str(spec["kind"]).lower().replace("_", "-")
    if name not in FORECASTERS:
        raise ValueError(
            f"forecaster.kind = {spec['kind']!r}: unknown; there are {sorted(FORECASTERS)}"
        )
    kind = FORECASTERS[name]
    arguments = {str(key): value for key, value in spec.items() if key != "kind"}
    known = _arguments(kind)
    for key in arguments:
        if key not in known:
            raise ValueError(f"forecaster.{key}: {name} takes no such argument; it takes {known}")
    try:
        return kind(**arguments)
    except ValueError as error:
        raise ValueError(f"forecaster.{error}") from None
    except TypeError as error:
        raise ValueError(f"forecaster of kind {name}: {error}") from None


def _copied(forecaster: Forecaster) -> Forecaster:
    name = type(forecaster).__name__
    if not hasattr(forecaster, "max_steps"):
        raise ValueError(f"forecaster = {name}: its __init__ has to call super().__init__()")
    if forecaster.is_clairvoyant and not isinstance(forecaster, Clairvoyant):
        raise ValueError(f"forecaster = {name}: only 'clairvoyant' is told the future")
    try:
        return copy.deepcopy(forecaster)
    except TypeError as error:
        raise ValueError(f"forecaster = {name}: cannot be copied: {error}") from None


def _arguments(kind: type[Forecaster]) -> list[str]:
    own = [*inspect.signature(kind).parameters, *inspect.signature(Forecaster).parameters]
    return sorted(set(own) - {"options"})
