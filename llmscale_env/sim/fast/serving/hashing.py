"""All the chance that the engine uses: hashes of numbers (docs/engine.md, sections 6 and 17)."""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.jit import njit


@njit
def splitmix64(x):
    x = np.uint64(x) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit
def quantile(knots, first, n, draw):
    """Linear between the `n` quantiles in `knots` from place `first` on; `draw` is a hash.

    The product of a difference and 20 bits could overflow, so that its upper and lower part are
    multiplied one by one, which gives the same number.
    """
    y = np.int64(draw >> np.uint64(44)) * (n - 1)
    k, f = y >> 20, y & 0xFFFFF
    low = knots[first + k]
    rise = knots[first + k + 1] - low
    return low + (rise >> 20) * f + (((rise & 0xFFFFF) * f) >> 20)
