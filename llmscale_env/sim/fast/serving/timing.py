"""Iteration times and the closed form of a run of decode iterations."""

from __future__ import annotations

import math

from llmscale_env.sim.fast.state.memory import (
    glob_of,
    growing_of,
    inst_at,
    knots_of,
    pool_at,
    prof_at,
    tab_of,
    v1_at,
)
from llmscale_env.sim.fast.state.records import (
    DECODE,
    DECODE_BASE,
    DECODE_TOKEN,
    MIXED_BASE,
    MIXED_TOKEN,
)
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec.kinds import NEVER

_OVERFLOWS = 2.0**62 + 2.0**12
"""Past all time by more than floating point can be wrong, and short of what 64 bits hold."""


@njit(forceinline=True)
def _knots(S, f, kind, n, tokens):
    k = 0  # most prompts are short
    while k + 1 < n and knots_of(S)[f, kind, k + 1, 0] <= tokens:
        k += 1
    return knots_of(S)[f, kind, k, 1] + knots_of(S)[f, kind, k, 2] * (
        tokens - knots_of(S)[f, kind, k, 0]
    )


@njit
def prefill_ps(S, f, tokens, pairs):
    """Time of a prefill iteration of `tokens` new tokens, `pairs` the sum of their squares."""
    prof = prof_at(S, f)
    return _knots(S, f, 0, prof.n_prefill, tokens) + prof.prefill_pair * pairs


@njit
def mixed_ps(S, f, decoding, context, tokens, pairs, chunks):
    """Time of a chunked iteration: `decoding` requests and `tokens` of `chunks` prompt chunks."""
    prof = prof_at(S, f)
    return (
        _knots(S, f, 1, prof.n_mixed, decoding + tokens)
        + tab_of(S)[f, MIXED_BASE, decoding]
        + tab_of(S)[f, MIXED_TOKEN, decoding] * context
        + prof.mixed_pair * pairs
        + prof.mixed_chunk * chunks
    )


@njit
def decode_first_ps(S, f, batch, context):
    """Time of a decode iteration of `batch` requests with `context` tokens in their KV cache."""
    return tab_of(S)[f, DECODE_BASE, batch] + tab_of(S)[f, DECODE_TOKEN, batch] * context


@njit
def decode_step_ps(S, f, batch):
    """By how much each decode iteration of a batch is longer than the one before."""
    return tab_of(S)[f, DECODE_TOKEN, batch] * batch


@njit
def _span(n, first, step):
    return n * first + step * ((n * (n - 1)) >> 1)


@njit
def span_ps(n, first, step):
    """Time of `n` decode iterations in a row, the first of which takes `first`; `NEVER` if past all time."""
    if float(n) * (float(first) + 0.5 * float(step) * float(n)) >= _OVERFLOWS:
        return NEVER
    return _span(n, first, step)


@njit
def iterations_within(elapsed, first, step):
    """The largest `n` with `span_ps(n) <= elapsed` (0 if none)."""
    if elapsed < first:
        return 0
    if step == 0:
        return elapsed // first
    # The quadratic's root in floating point is near; integers settle it.
    half = first - 0.5 * step
    n = int(2.0 * elapsed / (half + math.sqrt(half * half + 2.0 * step * elapsed)))
    while _span(n, first, step) > elapsed:
        n -= 1
    while _span(n + 1, first, step) <= elapsed:
        n += 1
    return n


@njit
def boundary_is_done(S, i):
    """Whether a boundary of instance `i` at exactly the present time is already behind us."""
    glob = glob_of(S)
    return not (glob.phase == 0 or (glob.phase == 1 and i > glob.index))


@njit
def iterations_done(S, i, t):
    """Iterations of the decode segment under way at instance `i` that have ended by `t`."""
    inst = inst_at(S, i)
    if inst.mode != DECODE:
        return 0
    elapsed = t - inst.seg_start
    if not boundary_is_done(S, i):
        elapsed -= 1
    if elapsed < inst.seg_first_ps:
        return 0
    return min(inst.seg_n, iterations_within(elapsed, inst.seg_first_ps, inst.seg_step_ps))


@njit
def block_needs(S, i, n):
    """Blocks that the next `n` steps take where all of instance `i`'s requests decode (`v1` only)."""
    inst = inst_at(S, i)
    size = pool_at(S, inst.pool).block_tokens
    taken = (n // size) * inst.n_dec
    for k in range(1, n % size + 1):
        taken += growing_of(S)[i, (-(inst.iter_no + k)) % size]
    return taken


@njit
def kv_after(S, i, n):
    """KV tokens in use at instance `i` after `n` iterations of the segment under way, if there is one."""
    inst = inst_at(S, i)
    size = pool_at(S, inst.pool).block_tokens
    if size > 0:
        return (v1_at(S, i).used + block_needs(S, i, n)) * size
    return inst.kv + n * inst.n_dec


@njit
def kv_now(S, i, t):
    """KV tokens in use at instance `i` at time `t`."""
    return kv_after(S, i, iterations_done(S, i, t))
