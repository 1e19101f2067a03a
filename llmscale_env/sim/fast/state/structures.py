"""Data structures over the state's arrays: linked lists, the event tournament, the heap of finishes."""

from __future__ import annotations

from llmscale_env.sim.fast.state.memory import (
    const_of,
    heap_of,
    key_of,
    lease_at,
    lists_of,
    req_at,
    tree_of,
)
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec.kinds import NEVER

# ---- doubly linked lists of requests (rows of S.lists: head, tail, count) -----------------------


@njit
def push_back(S, row, r):
    tail = lists_of(S)[row, 1]
    req_at(S, r).prev = tail
    req_at(S, r).next = -1
    if tail >= 0:
        req_at(S, tail).next = r
    else:
        lists_of(S)[row, 0] = r
    lists_of(S)[row, 1] = r
    lists_of(S)[row, 2] += 1


@njit
def push_front(S, row, r):
    head = lists_of(S)[row, 0]
    req_at(S, r).next = head
    req_at(S, r).prev = -1
    if head >= 0:
        req_at(S, head).prev = r
    else:
        lists_of(S)[row, 1] = r
    lists_of(S)[row, 0] = r
    lists_of(S)[row, 2] += 1


@njit
def unlink(S, row, r):
    before, after = req_at(S, r).prev, req_at(S, r).next
    if before >= 0:
        req_at(S, before).next = after
    else:
        lists_of(S)[row, 0] = after
    if after >= 0:
        req_at(S, after).prev = before
    else:
        lists_of(S)[row, 1] = before
    lists_of(S)[row, 2] -= 1


@njit
def insert(S, row, r, before):
    """Put `r` behind `before` (-1: at the head)."""
    if before < 0:
        push_front(S, row, r)
        return
    after = req_at(S, before).next
    req_at(S, r).prev = before
    req_at(S, r).next = after
    req_at(S, before).next = r
    if after >= 0:
        req_at(S, after).prev = r
    else:
        lists_of(S)[row, 1] = r
    lists_of(S)[row, 2] += 1


@njit(forceinline=True)
def leave_own(S, i, r):
    """Take `r` out of instance `i`'s own queue."""
    if const_of(S).regional and lease_at(S, i).last_first == r:
        lease_at(S, i).last_first = req_at(S, r).prev
    unlink(S, i, r)


@njit
def pop_front(S, row):
    """Take the head, which is returned, out of a list that is not empty."""
    r = lists_of(S)[row, 0]
    unlink(S, row, r)
    return r


@njit(forceinline=True)
def push_back_aux(S, row, r):
    """As `push_back`, over the second pair of links, for requests that are in two lists: those in
    shared queues and those being prefilled.
    """
    tail = lists_of(S)[row, 1]
    req_at(S, r).aux_prev = tail
    req_at(S, r).aux_next = -1
    if tail >= 0:
        req_at(S, tail).aux_next = r
    else:
        lists_of(S)[row, 0] = r
    lists_of(S)[row, 1] = r
    lists_of(S)[row, 2] += 1


@njit
def push_front_aux(S, row, r):
    """As `push_front`, over the second pair of links."""
    head = lists_of(S)[row, 0]
    req_at(S, r).aux_next = head
    req_at(S, r).aux_prev = -1
    if head >= 0:
        req_at(S, head).aux_prev = r
    else:
        lists_of(S)[row, 1] = r
    lists_of(S)[row, 0] = r
    lists_of(S)[row, 2] += 1


@njit
def unlink_aux(S, row, r):
    before, after = req_at(S, r).aux_prev, req_at(S, r).aux_next
    if before >= 0:
        req_at(S, before).aux_next = after
    else:
        lists_of(S)[row, 0] = after
    if after >= 0:
        req_at(S, after).aux_prev = before
    else:
        lists_of(S)[row, 1] = before
    lists_of(S)[row, 2] -= 1


@njit
def insert_aux(S, row, r, before):
    """Put `r` behind `before` (-1: at the head), over the second pair of links."""
    if before < 0:
        push_front_aux(S, row, r)
        return
    after = req_at(S, before).aux_next
    req_at(S, r).aux_prev = before
    req_at(S, r).aux_next = after
    req_at(S, before).aux_next = r
    if after >= 0:
        req_at(S, after).aux_prev = r
    else:
        lists_of(S)[row, 1] = r
    lists_of(S)[row, 2] += 1


# ---- the next event among instances: a tournament tree over S.key, lowest index wins ties -------


@njit
def key_at(t):
    """The key of an event at `t`. One beyond the end of time never comes, so its own time need not fit."""
    return 2 * min(t, NEVER - 1)


@njit
def schedule(S, i, key):
    """Set instance `i`'s next event; logarithmic in the number of instances."""
    if key_of(S)[i] == key:
        return
    key_of(S)[i] = key
    node = (const_of(S).leaves + i) >> 1
    while node >= 1:
        a = tree_of(S)[2 * node]
        b = tree_of(S)[2 * node + 1]
        tree_of(S)[node] = b if key_of(S)[b] < key_of(S)[a] else a
        node >>= 1


# ---- finishes of an instance: a heap of (emission counter at the end << 32 | request) -----------


@njit
def _sift_up(S, i, pos, item):
    while pos > 0:
        parent = (pos - 1) >> 1
        above = heap_of(S)[i, parent]
        if above <= item:
            break
        heap_of(S)[i, pos] = above
        pos = parent
    heap_of(S)[i, pos] = item


@njit(forceinline=True)
def _sift_down(S, i, pos, item, n):
    while True:
        child = 2 * pos + 1
        if child >= n:
            break
        if child + 1 < n and heap_of(S)[i, child + 1] < heap_of(S)[i, child]:
            child += 1
        below = heap_of(S)[i, child]
        if below >= item:
            break
        heap_of(S)[i, pos] = below
        pos = child
    heap_of(S)[i, pos] = item


@njit(forceinline=True)
def heap_add(S, i, n, finish_iter, r):
    """Add `r` to instance `i`'s heap of `n` entries."""
    _sift_up(S, i, n, (finish_iter << 32) | r)


@njit(forceinline=True)
def heap_remove(S, i, n, r):
    """Take `r` out of instance `i`'s heap of `n` entries.

    One that finishes is at the root. One that is preempted or evicted is looked for: places kept with
    requests would have to be written, all over memory, at every step of every sift.
    """
    pos = 0
    while heap_of(S)[i, pos] & 0xFFFFFFFF != r:
        pos += 1
    last = heap_of(S)[i, n - 1]
    if pos == n - 1:
        return
    if pos > 0 and heap_of(S)[i, (pos - 1) >> 1] > last:
        _sift_up(S, i, pos, last)
    else:
        _sift_down(S, i, pos, last, n - 1)
