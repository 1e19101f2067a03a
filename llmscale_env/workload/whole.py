"""Columns of whole numbers, as others give them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def whole_numbers(name: str, given: Any, dtype: type[np.signedinteger[Any]]) -> NDArray[Any]:
    """`given` as a contiguous array of `dtype`, or a ValueError that names a value which does not fit."""
    values, limits = np.asarray(given), np.iinfo(dtype)
    if values.dtype != dtype and values.size:
        if values.dtype.kind not in "iuf":
            raise ValueError(f"{name}: of type {values.dtype}, must be whole numbers of 64 bits")
        with np.errstate(invalid="ignore"):
            bad = ~((values >= limits.min) & (values <= limits.max) & (values == np.floor(values)))
        if bad.any():
            row = int(np.argmax(bad))
            rule = f"must be a whole number in {limits.min}..{limits.max}"
            raise ValueError(f"{name}[{row}] = {values.flat[row]}: {rule}")
    return np.ascontiguousarray(values, dtype)
