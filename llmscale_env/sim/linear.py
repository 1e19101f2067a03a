"""Aladdin's linear iteration times (its Eq. 2 and 3) of a profile that need not be linear."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.spec import ClusterSpec, ProfileSpec
from llmscale_env.workload.requests import PS_PER_S

PROMPT_TOKENS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
CONTEXT_TOKENS = (64, 256, 1024, 2048)
"""Where the fit looks: prompts alone in a prefill, and contexts per decoding request."""


def linear_times(
    profile: ProfileSpec, batch_limit: int
) -> tuple[float, float, float, float, float]:
    """Coefficients (c1, k1, c3, c2, k2) in ps that come closest to a profile, by least squares.

    Prefill takes `c1 + k1 * tokens`, decode of `b` requests `c3 + c2 * b + k2 * context`. Fitted over
    `PROMPT_TOKENS` and, for batches up to `batch_limit`, `CONTEXT_TOKENS` each, as far as they fit
    the KV cache.

    Raises:
        ValueError: `batch_limit` is not in the profile's tables.
    """
    if not 1 <= batch_limit <= profile.max_batch:
        raise ValueError(f"batch_limit = {batch_limit}: must be in 1..{profile.max_batch}")
    tokens = np.array(PROMPT_TOKENS)
    k = np.searchsorted(profile.prefill_knot_tokens, tokens, side="right") - 1
    prefill_ps = profile.prefill_knot_ps[k] + profile.prefill_slope_ps[k] * (
        tokens - profile.prefill_knot_tokens[k]
    )
    prefill_ps = prefill_ps + profile.prefill_pair_ps * tokens * tokens
    c1, k1 = _least_squares([np.ones(len(tokens)), tokens], prefill_ps)

    batches = np.unique(np.geomspace(1, batch_limit, 24).round().astype(np.int64))
    b, each = (grid.ravel() for grid in np.meshgrid(batches, CONTEXT_TOKENS))
    fits = b * each <= profile.kv_capacity_tokens
    b, each = (b[fits], each[fits]) if fits.any() else (batches[:1], np.ones(1, np.int64))
    context = b * each
    decode_ps = profile.decode_base_ps[b] + profile.decode_per_token_ps[b] * context
    c3, c2, k2 = _least_squares([np.ones(len(b)), b, context], decode_ps)
    # Aladdin divides by the last one.
    return c1, k1, c3, c2, max(k2, 1e-3)


def _least_squares(columns: list[np.ndarray], values: np.ndarray) -> tuple[float, ...]:
    """Coefficients that are the same on any machine for times that are exactly linear: rounded to 1e-3 ps."""
    matrix = np.stack([np.asarray(column, np.float64) for column in columns], axis=1)
    scale = np.abs(matrix).max(axis=0)
    found = np.linalg.lstsq(matrix / scale, values.astype(np.float64), rcond=None)[0] / scale
    return tuple(float(x) for x in found.round(3))


def worker_times_s(spec: ClusterSpec) -> NDArray[np.float64]:
    """(I, 5) Aladdin's (c1, k1, c3, c2, k2) of every slot, from its own pool's iteration times."""
    pools = [linear_times(spec.profiles[p.profile], p.batch_limit) for p in spec.pools]
    return np.array([pools[p] for p in spec.pool_of_slot]).reshape(-1, 5) / PS_PER_S
