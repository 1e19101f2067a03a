"""Largest inter-token latency per request, without looking at single tokens.

Every instance numbers its *items*: spans of time that lie between two tokens of whoever was
decoding then. A request's
largest gap is the largest item numbered after the one at which it joined the decoding batch. Items
older and smaller than a later one
can never be an answer, so a stack of decreasing values holds all answers, and a binary search finds
one.

A prefill iteration stalls the requests that decode: their gap lasts from the prefill's start to the
end of the next decode iteration.
Until that end is known the item is *pending*; it lies on top of the stack with its start in place
of a value.
A request that is restored or prefilled anew has a gap of its own, from its last token before it
left.
"""

from __future__ import annotations

from llmscale_env.sim.fast.state.lists import running_row
from llmscale_env.sim.fast.state.memory import const_of, inst_at, lists_of, req_at, stack_of
from llmscale_env.sim.jit import njit


@njit(forceinline=True)
def _first_after(S, i, n, item):
    """Position of the first of `n` stack entries numbered above `item` (`n` if none)."""
    lo, hi = 0, n
    while lo < hi:
        mid = (lo + hi) >> 1
        if stack_of(S)[i, mid, 0] > item:
            hi = mid
        else:
            lo = mid + 1
    return lo


@njit
def _mark(S, i, lo, end, item):
    """Among entries `lo..end`, mark the first numbered above `item` as needed (number >= 0)."""
    hi = end
    while lo < hi:
        mid = (lo + hi) >> 1
        number = stack_of(S)[i, mid, 0]
        if number < 0:
            number = -number - 1
        if number > item:
            hi = mid
        else:
            lo = mid + 1
    if lo < end and stack_of(S)[i, lo, 0] < 0:
        stack_of(S)[i, lo, 0] = -stack_of(S)[i, lo, 0] - 1


@njit
def _compact(S, i):
    """Keep only entries that answer for a running request: at most two for each."""
    inst = inst_at(S, i)
    settled = inst.stack_n - inst.pend_n
    for k in range(inst.stack_n):
        stack_of(S)[i, k, 0] = -stack_of(S)[i, k, 0] - 1
    for evictable in range(2):
        r = lists_of(S)[running_row(S, i, evictable), 0]
        while r >= 0:
            if req_at(S, r).decoding:
                _mark(S, i, 0, settled, req_at(S, r).item_start)
                _mark(S, i, settled, inst.stack_n, req_at(S, r).item_start)
            r = req_at(S, r).next
    kept = 0
    pending = 0
    for k in range(inst.stack_n):
        if stack_of(S)[i, k, 0] >= 0:
            stack_of(S)[i, kept, 0] = stack_of(S)[i, k, 0]
            stack_of(S)[i, kept, 1] = stack_of(S)[i, k, 1]
            kept += 1
            if k >= settled:
                pending += 1
    inst.stack_n = kept
    inst.pend_n = pending


@njit
def _room(S, i):
    if inst_at(S, i).stack_n >= const_of(S).stack_depth - 1:
        _compact(S, i)


@njit(forceinline=True)
def push_item(S, i, value):
    """A new item of `value` (no item is pending)."""
    inst = inst_at(S, i)
    inst.items += 1
    n = inst.stack_n
    while n > 0 and stack_of(S)[i, n - 1, 1] <= value:
        n -= 1
    inst.stack_n = n
    _room(S, i)
    n = inst.stack_n
    stack_of(S)[i, n, 0] = inst.items
    stack_of(S)[i, n, 1] = value
    inst.stack_n = n + 1


@njit(forceinline=True)
def push_pending(S, i, begin):
    """A prefill iteration that began at `begin` stalls the decoding requests."""
    inst = inst_at(S, i)
    _room(S, i)
    inst.items += 1
    stack_of(S)[i, inst.stack_n, 0] = inst.items
    stack_of(S)[i, inst.stack_n, 1] = begin
    inst.stack_n += 1
    inst.pend_n += 1


@njit(forceinline=True)
def settle_pending(S, i, end):
    """The first decode iteration after the pending prefills ended at `end`."""
    inst = inst_at(S, i)
    if inst.pend_n == 0:
        return
    first = inst.stack_n - inst.pend_n
    # The earliest prefill has the longest gap: it decides which older entries go.
    largest = end - stack_of(S)[i, first, 1]
    n = first
    while n > 0 and stack_of(S)[i, n - 1, 1] <= largest:
        n -= 1
    for k in range(first, inst.stack_n):
        stack_of(S)[i, n, 0] = stack_of(S)[i, k, 0]
        stack_of(S)[i, n, 1] = end - stack_of(S)[i, k, 1]
        n += 1
    inst.stack_n = n
    inst.pend_n = 0


@njit(forceinline=True)
def largest_gap(S, i, r):
    """Largest gap of running request `r` in settled items, -1 if there is none."""
    inst = inst_at(S, i)
    settled = inst.stack_n - inst.pend_n
    k = _first_after(S, i, settled, req_at(S, r).item_start)
    best = req_at(S, r).max_itl
    if k < settled and stack_of(S)[i, k, 1] > best:
        best = stack_of(S)[i, k, 1]
    return best


@njit
def last_token_ps(S, i, r, t):
    """When decoding request `r` emitted its last token, seen at a boundary at `t`."""
    if req_at(S, r).gap_open:
        return req_at(S, r).last_token
    inst = inst_at(S, i)
    settled = inst.stack_n - inst.pend_n
    for k in range(settled, inst.stack_n):
        if stack_of(S)[i, k, 0] > req_at(S, r).item_start:
            return stack_of(S)[i, k, 1]
    return t


@njit(forceinline=True)
def close_gaps(S, i, end):
    """Restored requests emitted their first token after the interruption at `end`."""
    inst = inst_at(S, i)
    if inst.gaps_open == 0:
        return
    for evictable in range(2):
        r = lists_of(S)[running_row(S, i, evictable), 0]
        while r >= 0:
            req = req_at(S, r)
            if req.gap_open:
                req.gap_open = 0
                gap = end - req.last_token
                if gap > req.max_itl:
                    req.max_itl = gap
            r = req.next
    inst.gaps_open = 0


@njit
def clear_items(S, i):
    """Nothing runs any more: no item can be asked for."""
    inst_at(S, i).stack_n = 0
    inst_at(S, i).pend_n = 0
