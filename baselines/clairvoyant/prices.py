"""What the tokens of a request cost at least: a split of every iteration's time among its tokens.

A *price* is a pair (a, b), both at least 0: a decoded token with `ctx` tokens of context is charged
`a + b * ctx`. It is valid if no iteration that an instance can run is charged more than it takes. Then,
whatever is batched with what, the charges of any requests never exceed the time of the iterations that
served them, in any stretch of time: an iteration's time is split in proportion to the charges, what is
left over belongs to nobody, and nobody's part is negative.

**Decode iterations.** `n` requests with `c` tokens of context in all take `base[n] + per_token[n] * c`. At
most `max_batch` run; they are launched only if `c + n * spare <= capacity` (docs/engine.md, section
4: half a block and the new token; with V1 nothing, as its blocks hold the new token), and every request
has at least `least` tokens of context. For a given `n`, time minus charge is linear in `c`, so a price is
valid if it is at the least and at the largest `c` of each `n`: a polygon, whose corners are the prices
that no valid one beats. Several corners hold at once; each is a row of the programme in every slot.

**Prefill iterations (prefill first).** `T` tokens take `line(T)` plus a term that is additive over prompts.
A prompt of `p` tokens is in an iteration of `p <= T <= max(p, budget)`: all prompts together keep to the
budget, unless the first one alone does not. It is charged `p * min line(T) / T` over those `T`, and its
own additive term.

**Mixed iterations (chunked prefill).** They take `line(n + T) + mixed_base[n] + mixed_per_token[n] * c` plus
additive terms, `n + T` at most the chunk budget. Given a price for decoding, a prompt's token is charged
the least of (time - charges of the decoding) / T over all `n`, `T` and both ends of `c` (linear in `c`
again); if that is negative the price is not valid. Pair terms of a prompt's chunks add up to
`pair * p * p`, and there are at least `ceil(p / budget)` chunks.

**Prefilled again.** A request that lost its KV gets its next token from a prefill of its whole context,
which is charged as a decoded token. So a valid price must not exceed what a prompt of that length is
charged at least: `a + b * ctx <= q * ctx`, `q` the least charge per prefilled token, holds for every
`ctx >= least` if `a / least + b <= q`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.spec import ClusterSpec, ProfileSpec

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_CONTEXTS = np.geomspace(4, 1_000_000, 25)
"""Directions in which corners are looked for: tokens of context per decoding request."""

_SHRINK = 1 - 1e-12
"""For the rounding of float64, in which the integer tables are divided."""


@dataclass(frozen=True)
class Mode:
    """What a prompt is charged on one kind of machine.

    Attributes:
        budget: of tokens in a mixed iteration; 0: prefill first.
        per_token_ps: by the prompt's tokens, from 1 on; the last entry counts beyond.
        per_pair_ps: times the square of its tokens.
        per_chunk_ps: times the least number of chunks.
    """

    budget: int
    per_token_ps: Floats
    per_pair_ps: float
    per_chunk_ps: float

    def charge_ps(self, tokens: Ints) -> Floats:
        """(n,) of prompts of so many tokens."""
        rate = self.per_token_ps[np.minimum(tokens, len(self.per_token_ps)) - 1]
        found: Floats = tokens * (rate + self.per_pair_ps * tokens)
        if self.budget:
            found = found + self.per_chunk_ps * np.ceil(tokens / self.budget)
        return found


@dataclass(frozen=True)
class Prices:
    """Valid prices of decoding, and what prompts are charged with any of them, in picoseconds of a GPU.

    Attributes:
        per_request_ps, per_context_ps: (k,) the pairs (a, b).
        modes: how machines prefill.
    """

    per_request_ps: Floats
    per_context_ps: Floats
    modes: tuple[Mode, ...]

    def prefill_ps(self, tokens: Ints) -> Floats:
        """(n,) what prompts of so many tokens are charged: the least of all machines."""
        found: Floats = np.min([mode.charge_ps(tokens) for mode in self.modes], axis=0)
        return found

    def decode_ps(self, tokens: Ints, context: Ints) -> Floats:
        """(k, n) what decoding so many tokens, with so much context in all, is charged by each pair."""
        found: Floats = np.outer(self.per_request_ps, tokens)
        return found + np.outer(self.per_context_ps, context)


def line_ps(tokens: Ints, knots: Ints, values: Ints, slopes: Ints) -> Ints:
    """The engines' piecewise linear time."""
    k = np.searchsorted(knots, tokens, side="right") - 1
    found: Ints = values[k] + slopes[k] * (tokens - knots[k])
    return found


@dataclass(frozen=True)
class Machine:
    """What an instance is, as far as its iterations go.

    Attributes:
        profile: iteration times.
        gpus: GPUs of an instance; charges are GPU time, so iterations count as often.
        chunk_tokens, prefill_tokens: budgets as in `PoolSpec`.
        spare_tokens: KV that an iteration needs for each request that decodes, beside the context.
    """

    profile: ProfileSpec
    gpus: int
    chunk_tokens: int
    prefill_tokens: int
    spare_tokens: int


def machines(cluster: ClusterSpec) -> list[Machine]:
    """Those of a cluster's pools, at every speed that they can be made to have."""
    found = []
    for pool in cluster.pools:
        budget = 0 if pool.chunk_tokens else pool.prefill_tokens
        # V1 counts whole blocks, which hold the new token as well.
        spare = 0 if pool.v1 is not None else cluster.half_block_tokens + 1
        for number in (pool.profile, *pool.drifts):
            profile = cluster.profiles[number]
            found.append(Machine(profile, pool.gpus, pool.chunk_tokens, budget, spare))
    # Machines that are the same but for their batch limit: the profile is compared by identity.
    return list(
        {
            (id(m.profile), m.gpus, m.chunk_tokens, m.prefill_tokens, m.spare_tokens): m
            for m in found
        }.values()
    )


def decode_corners(machine: Machine, least: int) -> tuple[Floats, ...]:
    """(requests, context, GPU time), (m,) each, of decode iterations: valid for these, valid for all."""
    profile = machine.profile
    n = np.arange(1, profile.max_batch + 1)
    low = n * least
    high = profile.kv_capacity_tokens - n * machine.spare_tokens
    n, low, high = n[high >= low], low[high >= low], high[high >= low]
    base, per_token = profile.decode_base_ps[n], profile.decode_per_token_ps[n]
    time = np.concatenate([base + per_token * low, base + per_token * high]) * machine.gpus
    parts = (np.concatenate([n, n]), np.concatenate([low, high]), time)
    return tuple(part.astype(np.float64) for part in parts)


def corner_prices(requests: Floats, context: Floats, time: Floats) -> tuple[Floats, Floats]:
    """Corners of the valid prices, for the directions `_CONTEXTS`; (k,) each.

    A corner is a line through two neighbours on the hull of the iterations' (requests, context) per unit of
    time. It is scaled down at last, so that it holds for all iterations as computed.
    """
    x, y = requests / time, context / time
    order = np.lexsort((y, x))[::-1]  # most requests per time first
    hull: list[int] = []
    for i in order.tolist():
        if hull and y[i] <= y[hull[-1]]:
            continue  # neither more requests nor more context than the last
        while len(hull) > 1:
            o, p = hull[-2], hull[-1]
            if (x[p] - x[o]) * (y[i] - y[o]) - (y[p] - y[o]) * (x[i] - x[o]) > 0:
                break
            hull.pop()
        hull.append(i)
    pairs = [(1 / x[hull[0]], 0.0), (0.0, 1 / y[hull[-1]])]
    for p, q in itertools.pairwise(hull):
        # a * x + b * y = 1 through both.
        size = x[p] * y[q] - x[q] * y[p]
        if size > 0:
            pairs.append(((y[q] - y[p]) / size, (x[p] - x[q]) / size))
    found = np.maximum(np.array(pairs), 0.0)
    charged = found[:, :1] * requests + found[:, 1:] * context
    found *= (time / np.maximum(charged, 1e-300)).min(axis=1, keepdims=True) * _SHRINK
    best = {int(np.argmax(found[:, 0] + found[:, 1] * each)) for each in _CONTEXTS}
    found = found[sorted(best)]
    return found[:, 0], found[:, 1]


def find_prices(
    kinds: Sequence[Machine],
    tokens: Ints,
    context: Ints,
    prompts: Ints,
    least: int,
) -> Prices:
    """Prices for a workload.

    Args:
        kinds: machines that serve it.
        tokens, context, prompts: (n,) decoded tokens, their context in all, prompt of each request that is
            to be charged, n > 0. They say how far tables reach, and which prices serve best.
        least: tokens of context of any request that decodes, also of one that nobody charges.
    """
    longest = int((prompts + tokens).max()) + 1
    corners = [decode_corners(kind, least) for kind in kinds]
    a, b = corner_prices(*(np.concatenate(parts) for parts in zip(*corners, strict=True)))
    first = [_prefill_first(kind, longest) for kind in kinds if kind.chunk_tokens == 0]
    chunked = [kind for kind in kinds if kind.chunk_tokens > 0]
    if not chunked:
        return _not_above_prefill(Prices(a, b, tuple(first)), least)
    # With mixed iterations what a prompt is charged depends on the price: one is taken, the best of some.
    best, most = None, -1.0
    for share in (1.0, 0.8, 0.6, 0.4, 0.2, 0.1, 0.0):
        for pair in zip(share * a, share * b, strict=True):
            mixed = [_mixed(kind, least, pair) for kind in chunked]
            if any(mode.per_token_ps[0] < 0 for mode in mixed):
                continue
            found = Prices(np.array([pair[0]]), np.array([pair[1]]), (*first, *mixed))
            found = _not_above_prefill(found, least)
            total = found.prefill_ps(prompts).sum() + found.decode_ps(tokens, context).sum()
            if total > most:
                best, most = found, float(total)
    assert best is not None, "a price of nothing is valid"
    return best


def _prefill_first(kind: Machine, longest: int) -> Mode:
    """`per_token_ps`: least `line(T) / T` of the iterations that a prompt of 1, 2, ... tokens is in."""
    profile, budget = kind.profile, kind.prefill_tokens
    size = np.arange(1, max(budget, longest) + 1)
    line = line_ps(
        size, profile.prefill_knot_tokens, profile.prefill_knot_ps, profile.prefill_slope_ps
    )
    rate = line / size
    rate[:budget] = np.minimum.accumulate(rate[:budget][::-1])[::-1]
    return Mode(0, rate * _SHRINK * kind.gpus, float(profile.prefill_pair_ps * kind.gpus), 0.0)


def _mixed(kind: Machine, least: int, pair: tuple[float, float]) -> Mode:
    """`per_token_ps`: one, what a prompt's token may be charged in mixed iterations, negative if nothing."""
    profile, chunk = kind.profile, kind.chunk_tokens
    size = np.arange(1, chunk + 1)
    line = line_ps(size, profile.mixed_knot_tokens, profile.mixed_knot_ps, profile.mixed_slope_ps)
    n = np.arange(0, min(profile.max_batch, chunk - 1) + 1)
    low, high = n * least, profile.kv_capacity_tokens - n * kind.spare_tokens
    n, low, high = n[high >= low], low[high >= low], high[high >= low]
    high = np.where(n == 0, 0, high)
    rate = np.inf
    for c in (low, high):
        rest = profile.mixed_base_ps[n] + profile.mixed_per_token_ps[n] * c
        rest = rest * kind.gpus - pair[0] * n - pair[1] * c
        for k, decoding in enumerate(n.tolist()):
            spent = line[decoding:] * kind.gpus + rest[k]
            rate = min(rate, float((spent / size[: chunk - decoding]).min()))
    # Below by a hair, for the rounding of the differences above.
    rate -= 1e-9 * abs(float(line[-1])) * kind.gpus / chunk
    pairs, chunks = profile.mixed_pair_ps * kind.gpus, profile.mixed_chunk_ps * kind.gpus
    return Mode(chunk, np.array([rate]), float(pairs), float(chunks))


def _not_above_prefill(prices: Prices, least: int) -> Prices:
    """Prices scaled down where a token from a prefill of its context would be cheaper than decoded."""
    cheapest = min(float(mode.per_token_ps.min()) for mode in prices.modes)
    a, b = prices.per_request_ps, prices.per_context_ps
    charged = np.maximum(a / least + b, 1e-300)
    scale = np.minimum(1.0, cheapest / charged)
    return Prices(a * scale, b * scale, prices.modes)
