"""All the chance that an engine uses: hashes of numbers (docs/engine.md, sections 6 and 17)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmscale_env.sim.reference.state.request import Request
    from llmscale_env.sim.spec import ClusterSpec

U64 = 2**64 - 1
LATENCY_SALT = 0x9FB21C651E98DF25
RECLAIM_SALT = 0xC2B2AE3D27D4EB4F
"""They make the draws for different uses independent."""


def splitmix64(x: int) -> int:
    """Hash of 64 bits (Steele, Lea and Flood 2014)."""
    x = (x + 0x9E3779B97F4A7C15) & U64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & U64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & U64
    return x ^ (x >> 31)


def quantile_ps(knots_ps: Sequence[int], draw: int) -> int:
    """Linear between quantiles at equal steps; `draw` is a hash, of which the highest 20 bits count."""
    y = (draw >> 44) * (len(knots_ps) - 1)
    k, f = y >> 20, y & (2**20 - 1)
    return knots_ps[k] + ((knots_ps[k + 1] - knots_ps[k]) * f >> 20)


def latency_ps(spec: ClusterSpec, salt: int, request: Request, region: int) -> int:
    """Time from a request's client to a region."""
    if spec.latency is None:
        return 0
    seed = splitmix64((salt ^ request.id) & U64)
    draw = splitmix64(seed ^ LATENCY_SALT ^ region)
    return quantile_ps(spec.latency.knots_ps[request.region][region], draw)


def reclaim_ps(knots_ps: Sequence[int], salt: int, pool: int, number: int) -> int:
    """Time that a pool's reclaim number `number` takes."""
    return quantile_ps(
        knots_ps, splitmix64(splitmix64((salt ^ RECLAIM_SALT ^ pool) & U64) ^ number)
    )
