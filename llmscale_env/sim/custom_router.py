"""A user's own router: a small function, compiled, that the fast engine calls for every arrival."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from llmscale_env.sim import jit as _jit  # noqa: F401  (settles the cache before numba is imported)

FEATURES = (
    "requests",
    "waiting_tokens",
    "kv_tokens",
    "kv_capacity_tokens",
    "predicted_left_tokens",
    "batch_limit",
    "evictable_running",
    "instance",
    "prefix_hit_tokens",
)
"""Columns of the feature table, one row per candidate (docs/engine.md, section 6)."""

N_FEATURES = len(FEATURES)


class RouterError(ValueError):
    """A custom router raised, or answered with something that is no candidate."""


RAISED = -(2**63)
"""The compiled router's answer where the function raised."""


def router(function: Callable[..., int]) -> Any:
    """Compile `function` for use as `ClusterSpec.custom_router`.

    `function(features, n, request_id, input_tokens, predicted_output_tokens, slo_class) -> int` gets a
    float64 array of which the first `n` rows are the candidates, columns as in `FEATURES`, and
    answers with a row number, or with -1 for the route's shared queue. It must compile in
    Numba's nopython mode. What it raises, an index beyond the table included, ends the run: `RouterError`.

    Example:
        >>> from llmscale_env.sim.custom_router import router
        >>> @router
        ... def emptiest(features, n, request_id, input_tokens, predicted, slo_class):
        ...     best = 0
        ...     for k in range(1, n):
        ...         if features[k, 2] / features[k, 3] < features[best, 2] / features[best, 3]:
        ...             best = k
        ...     return best
    """
    import numba

    answer = numba.njit(boundscheck=True)(function)

    def guarded(features, n, request_id, input_tokens, predicted, slo_class):  # type: ignore[no-untyped-def]
        # An exception would be swallowed at the border of C.
        try:
            return answer(features, n, request_id, input_tokens, predicted, slo_class)
        except Exception:
            return RAISED

    compiled = numba.cfunc(_signature())(guarded)
    compiled.__wrapped__ = function
    return compiled


@cache
def _signature() -> Any:
    from numba import types

    integers = (types.int64,) * 5
    return types.int64(types.Array(types.float64, 2, "C"), *integers)


@cache
def no_router() -> Any:
    """What the engine is given when no route is custom (it is never called)."""
    import numba

    return numba.cfunc(_signature())(_no_router)


def _no_router(features, n, request_id, input_tokens, predicted, slo_class):  # type: ignore[no-untyped-def]
    return 0


def features_buffer(n_instances: int) -> np.ndarray:
    """The table that the engine fills for the router."""
    return np.zeros((max(n_instances, 1), N_FEATURES))
