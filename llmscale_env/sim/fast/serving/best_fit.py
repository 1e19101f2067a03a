"""Aladdin's best-fit placement (docs/engine.md, section 14).

A placement asks every candidate for its norm, and the fullest ones whether they would fit to the end. Two
things keep that cheap with many full batches:

- What is summed up over an instance's requests stays good while nobody comes or goes: of those that decode,
  all have emitted `s` tokens more after `s` iterations, until one of them exceeds its prediction. Whoever
  changes an instance's requests clears `fit_valid`.
- Constraint (e) is settled by a sum that is surely too small or surely too large, mostly; only otherwise
  are the predicted ends gone through, from a list that is sorted at most once per such change.
"""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.serving.timing import iterations_done
from llmscale_env.sim.fast.state.lists import (
    flight_row,
    landed_row,
    preempted_row,
    running_row,
)
from llmscale_env.sim.fast.state.memory import (
    active_of,
    const_of,
    fit_at,
    fit_list_of,
    fit_long_of,
    inst_at,
    lists_of,
    norms_of,
    pool_at,
    prof_at,
    req_at,
    route_at,
    route_pools_of,
)
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec import Fallback, PoolPhase

_PREFILLS = int(PoolPhase.PREFILL)
_LEAST = int(Fallback.LEAST)
_NONE = np.int64(2**62)


@njit
def _rows(S, i, k):
    """The lists of instance `i`'s requests: own queue, preempted, in flight, landed, running (two)."""
    if k == 0:
        return np.int64(i)
    if k == 1:
        return preempted_row(S, i)
    if k == 2:
        return flight_row(S, i)
    if k == 3:
        return landed_row(S, i)
    return running_row(S, i, k - 4)


@njit
def _sum_up(S, i, done, itl_ps):
    """Sums over instance `i`'s requests, `done` iterations into its segment."""
    inst, fit = inst_at(S, i), fit_at(S, i)
    fit.iter_no = inst.iter_no + done
    fit.life = _NONE
    fit.itl_ps = itl_ps
    fit.n = fit.n_dec = fit.n_over = fit.inputs = fit.outputs = fit.context = 0
    fit.own_tokens = fit.new_tokens = fit.prefilling = 0
    fit.ahead = fit.ahead_still = _NONE
    fit.listed = 0
    for k in range(6):
        r = lists_of(S)[_rows(S, i, k), 0]
        while r >= 0:
            req = req_at(S, r)
            emitted = np.int64(req.emitted)
            decoding = k >= 4 and req.decoding == 1
            if decoding:
                emitted = fit.iter_no - req.join_iter
            left = req.predicted - emitted
            fit.n += 1
            fit.inputs += req.input
            fit.context += req.input + emitted
            fit.outputs += max(np.int64(req.predicted), emitted + 1)
            if k == 0:
                fit.own_tokens += req.input + emitted
            if emitted == 0:
                fit.new_tokens += req.input
            if decoding:
                fit.n_dec += 1
                if left <= 1:
                    fit.n_over += 1
                else:
                    fit.life = min(fit.life, left - 1)
                fit.ahead = min(fit.ahead, itl_ps * emitted + req.first)
            elif k >= 4 and emitted == 0:
                fit.prefilling = 1
            elif k >= 4:
                fit.ahead_still = min(fit.ahead_still, itl_ps * emitted + req.first)
            r = np.int64(req.next)
    inst.fit_valid = 1


@njit
def see_sums(S, i, t, itl_ps):
    """See to it that the sums hold at `t`; returns iterations since they were made."""
    inst, fit = inst_at(S, i), fit_at(S, i)
    done = iterations_done(S, i, t)
    since = inst.iter_no + done - fit.iter_no
    if inst.fit_valid == 0 or since > fit.life or fit.itl_ps != itl_ps:
        _sum_up(S, i, done, itl_ps)
        since = np.int64(0)
    return since


@njit
def _make_list(S, i, items):
    """Fill `items` with predicted tokens to come << 32 | KV tokens, ascending; first those that decode.

    As of the last sums; who has exceeded the prediction is left out.
    """
    fit = fit_at(S, i)
    half = const_of(S).half_block
    n = 0
    for part in range(2):
        for k in range(4, 6) if part == 0 else range(6):
            r = lists_of(S)[_rows(S, i, k), 0]
            while r >= 0:
                req = req_at(S, r)
                decoding = k >= 4 and req.decoding == 1
                if decoding == (part == 0):
                    emitted = np.int64(req.emitted)
                    if decoding:
                        emitted = fit.iter_no - req.join_iter
                    left = max(np.int64(1), req.predicted - emitted)
                    if not decoding or req.predicted - emitted > 1:
                        items[n] = (left << 32) | (req.input + emitted + half)
                        n += 1
                r = np.int64(req.next)
        if part == 0:
            fit.n_moving = n
            items[:n].sort()
        else:
            fit.n_still = n - fit.n_moving
            items[fit.n_moving : n].sort()


@njit
def _peaks_fit(items, n_moving, n_still, since, left_new, kv_new, allowed):
    """Whether, at every predicted end, what is still there fits; from the last end back to the first."""
    a, b = n_moving - 1, n_moving + n_still - 1
    used, n = np.int64(0), np.int64(0)
    new_there = False
    while a >= 0 or b >= n_moving or not new_there:
        end = np.int64(0)
        if a >= 0:
            end = (items[a] >> 32) - since
        if b >= n_moving:
            end = max(end, items[b] >> 32)
        if not new_there and left_new >= end:
            end = left_new
            used += kv_new
            n += 1
            new_there = True
        while a >= 0 and (items[a] >> 32) - since >= end:
            used += (items[a] & 0xFFFFFFFF) + since
            n += 1
            a -= 1
        while b >= n_moving and (items[b] >> 32) >= end:
            used += items[b] & 0xFFFFFFFF
            n += 1
            b -= 1
        if used + n * end > allowed:
            return False
    return True


@njit
def _fits_to_the_end(S, i, since, context_new, left_new):
    """Constraint (e) for a request of so many tokens of context and predicted tokens to come."""
    inst, fit = inst_at(S, i), fit_at(S, i)
    half = const_of(S).half_block
    allowed = prof_at(S, inst.profile).cap - inst.watermark
    if fit.context + since * fit.n_dec + context_new + (fit.n + 1) * (half + 1) > allowed:
        return False  # already at the first iteration
    # As if all were there with all that they will ever have.
    last = fit.inputs + fit.outputs + since * fit.n_over + context_new + left_new
    if last + (fit.n + 1) * half <= allowed:
        return True
    if fit.n > const_of(S).fit_width:
        # Rare: so many would have to wait that they are not kept.
        if since > 0:
            _sum_up(S, i, fit.iter_no + since - inst.iter_no, fit.itl_ps)
            since = np.int64(0)
        items = fit_long_of(S)
        _make_list(S, i, items)
        return _peaks_fit(
            items, fit.n_moving, fit.n_still, since, left_new, context_new + half, allowed
        )
    row = fit_list_of(S)[i]
    if fit.listed == 0:
        _make_list(S, i, row)
        fit.listed = 1
    return _peaks_fit(row, fit.n_moving, fit.n_still, since, left_new, context_new + half, allowed)


@njit
def _length(inputs, outputs, gamma):
    return np.float64(inputs) + gamma * np.float64(outputs)


@njit
def _may_take(S, i, m, c, r, t, decode):
    """Whether instance `i`, whose sums hold, can take request `r` by all constraints that are asked."""
    rule, fit = route_at(S, m, c), fit_at(S, i)
    inst, req = inst_at(S, i), req_at(S, r)
    c1, k1, c3, c2, k2 = rule.c1, rule.k1, rule.c3, rule.c2, rule.k2
    if fit.has_model:
        c1, k1, c3, c2, k2 = fit.c1, fit.k1, fit.c3, fit.c2, fit.k2
    prefills = pool_at(S, inst.pool).phase == _PREFILLS
    since = inst.iter_no + iterations_done(S, i, t) - fit.iter_no
    outputs = max(np.int64(req.predicted), np.int64(req.emitted) + 1)
    if not prefills and fit.n > 0:
        most = rule.theta * (np.float64(rule.itl_ps) - c3 - c2 * np.float64(fit.n + 1)) / k2
        there = fit.outputs + since * fit.n_over
        if _length(fit.inputs + req.input, there + outputs, rule.gamma) > most:
            return False
    context = np.int64(req.input) + req.emitted
    if not decode:
        prefill = c1 + k1 * np.float64(fit.new_tokens + context)
        if prefill > np.float64(rule.ttft_ps):
            return False
        ahead = fit.ahead_still
        if fit.n_dec > 0:
            ahead = min(ahead, fit.ahead + rule.itl_ps * since)
        saved = _NONE
        if ahead != _NONE:
            saved = ahead - t - (0 if rule.saved_over_tokens else rule.itl_ps)
        if fit.prefilling:
            saved = min(saved, np.int64(0))
        if not prefills and saved != _NONE and prefill > rule.theta * np.float64(saved):
            return False
    return prefills or _fits_to_the_end(S, i, since, context, outputs - req.emitted)


@njit
def best_fit(S, m, c, which, r, t):
    """The fullest candidate that can take request `r`; -1: none, and it is to wait."""
    rule, norms = route_at(S, m, c), norms_of(S)
    n_pools = rule.n_decode if which == 2 else rule.n_pools
    least, lowest = np.int64(-1), 0.0
    for k in range(n_pools):
        p = route_pools_of(S)[m, c, which, k]
        for a in range(pool_at(S, p).n_active):
            i = active_of(S)[p, a]
            inst, fit = inst_at(S, i), fit_at(S, i)
            since = see_sums(S, i, t, rule.itl_ps)
            b = np.float64(fit.n)
            length = _length(fit.inputs, fit.outputs + since * fit.n_over, rule.gamma)
            if rule.scaled:
                b = b / np.float64(inst.limit)
                length = length / np.float64(prof_at(S, inst.profile).cap)
            norms[i] = b * b + length * length
            if least < 0 or norms[i] < lowest:
                least, lowest = i, norms[i]
    while True:
        best, highest = np.int64(-1), -1.0
        for k in range(n_pools):
            p = route_pools_of(S)[m, c, which, k]
            for a in range(pool_at(S, p).n_active):
                i = active_of(S)[p, a]
                if norms[i] > highest:
                    best, highest = i, norms[i]
        if best < 0:
            break
        if _may_take(S, best, m, c, r, t, which == 2):
            return best
        norms[best] = -2.0
    return least if rule.fallback == _LEAST else np.int64(-1)
