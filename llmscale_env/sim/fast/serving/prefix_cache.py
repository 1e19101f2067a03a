"""The prefix cache of an instance of vLLM V1 in runs of blocks (docs/engine.md, section 19).

What the page says of single blocks is done here for *extents* (`state.cache_records`). A free one stands in
the list of its instance for its blocks from the last to the first, which is how a request releases them. So a
request costs a few steps here, however long it is.

Blocks that requests fill while they decode are named when it matters: when the request leaves, or another
one looks up or names blocks of its sequence (`_settle`). Nameless blocks are numbers only: `v1.used` blocks
are held by running requests, `v1.cached` are free and have names, all others are free and have none.

A request holds extents that it found (`hits` blocks, from the first on) and extents that it made. Of several
bearers of a name a lookup finds the first one, and later ones come behind it. So what a request found is what
a lookup finds for as long as it holds it.
"""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.serving.hashing import splitmix64
from llmscale_env.sim.fast.serving.timing import block_needs, iterations_done
from llmscale_env.sim.fast.state.memory import (
    blocks_at,
    bucket_of,
    const_of,
    extent_at,
    glob_of,
    inst_at,
    pool_at,
    prof_at,
    req_at,
    span_at,
    v1_at,
)
from llmscale_env.sim.fast.state.records import NEEDS_ROOM
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec import RequestState

_RUNNING = int(RequestState.RUNNING)
_FAR = np.int64(2**31)


# ---- extents: the table by owner -------------------------------------------------------------------


@njit
def _bucket(S, i, owner):
    mixed = splitmix64(np.uint64(owner) ^ (np.uint64(i) << np.uint64(40)))
    return np.int64(mixed & np.uint64(glob_of(S).bucket_mask))


@njit
def _unused(S):
    """An extent that is not in use."""
    glob = glob_of(S)
    x = np.int64(glob.extent_free)
    if x >= 0:
        glob.extent_free = extent_at(S, x).after
    else:
        x = np.int64(glob.extent_top)
        glob.extent_top += 1
    glob.extents += 1
    return x


@njit
def _enlist(S, x):
    """Extent `x` comes last in its bucket."""
    extent = extent_at(S, x)
    b = _bucket(S, np.int64(extent.inst), extent.owner)
    last = np.int64(-1)
    y = np.int64(bucket_of(S)[b])
    while y >= 0:
        last = y
        y = np.int64(extent_at(S, y).after)
    extent.before = last
    extent.after = -1
    if last >= 0:
        extent_at(S, last).after = x
    else:
        bucket_of(S)[b] = x


@njit
def _discard(S, x):
    """Extent `x` has no blocks left."""
    extent = extent_at(S, x)
    if extent.before >= 0:
        extent_at(S, extent.before).after = extent.after
    else:
        bucket_of(S)[_bucket(S, np.int64(extent.inst), extent.owner)] = extent.after
    if extent.after >= 0:
        extent_at(S, extent.after).before = extent.before
    extent.after = glob_of(S).extent_free
    glob_of(S).extent_free = x
    glob_of(S).extents -= 1


@njit
def rehash(S, old, n):
    """Fill the buckets, all empty, from the `n` of a smaller table; the order of naming stays."""
    for b in range(n):
        x = np.int64(old[b])
        while x >= 0:
            after = np.int64(extent_at(S, x).after)
            _enlist(S, x)
            x = after


@njit
def _find(S, i, owner, k):
    """The bearer named first of block `k` of a sequence, -1: none; and the block up to which it is that."""
    until = _FAR
    x = np.int64(bucket_of(S)[_bucket(S, i, owner)])
    while x >= 0:
        extent = extent_at(S, x)
        if extent.owner == owner and extent.inst == i:
            if extent.lo > k:
                until = min(until, np.int64(extent.lo))
            elif extent.hi > k:
                return x, min(until, np.int64(extent.hi))
        x = np.int64(extent.after)
    return x, k


# ---- extents that are free -------------------------------------------------------------------------


@njit
def _leave_cache(S, x):
    extent = extent_at(S, x)
    step = v1_at(S, extent.inst)
    if extent.older >= 0:
        extent_at(S, extent.older).newer = extent.newer
    else:
        step.oldest = extent.newer
    if extent.newer >= 0:
        extent_at(S, extent.newer).older = extent.older
    else:
        step.newest = extent.older
    step.cached -= extent.hi - extent.lo


@njit
def _enter_cache(S, x):
    extent = extent_at(S, x)
    step = v1_at(S, extent.inst)
    extent.older = step.newest
    extent.newer = -1
    if step.newest >= 0:
        extent_at(S, step.newest).newer = x
    else:
        step.oldest = x
    step.newest = x
    step.cached += extent.hi - extent.lo


@njit
def _let_go(S, x):
    """One request less holds extent `x`."""
    extent = extent_at(S, x)
    extent.refs -= 1
    if extent.refs == 0:
        v1_at(S, extent.inst).used -= extent.hi - extent.lo
        _enter_cache(S, x)


@njit
def _split(S, x, at):
    """Extent `x` keeps its blocks from `at` on; those below are a new one, which is returned."""
    y = _unused(S)
    high, low = extent_at(S, x), extent_at(S, y)
    low.owner, low.inst, low.refs = high.owner, high.inst, high.refs
    low.lo, low.hi = high.lo, at
    high.lo = at
    low.made, high.made = high.made, y
    low.before, low.after = high.before, x
    if high.before >= 0:
        extent_at(S, high.before).after = y
    else:
        bucket_of(S)[_bucket(S, np.int64(low.inst), low.owner)] = y
    high.before = y
    if high.refs == 0:
        step = v1_at(S, low.inst)
        low.older, low.newer = x, high.newer
        if high.newer >= 0:
            extent_at(S, high.newer).older = y
        else:
            step.newest = y
        high.newer = y
    return y


@njit
def trim(S, i, more):
    """Blocks that have been taken, `more` beside those counted, and were in the cache lose their names."""
    step = v1_at(S, i)
    inst = inst_at(S, i)
    n = step.used + more + step.cached
    n -= prof_at(S, inst.profile).cap // pool_at(S, inst.pool).block_tokens
    while n > 0:
        x = np.int64(step.oldest)
        extent = extent_at(S, x)
        size = np.int64(extent.hi - extent.lo)
        if n < size:
            extent.hi -= n
            step.cached -= n
            return
        _leave_cache(S, x)
        _discard(S, x)
        n -= size


# ---- names -----------------------------------------------------------------------------------------


@njit
def _request_of(S, name):
    """The request whose sequence has this name, -1: none that is known."""
    n = glob_of(S).n_requests
    low = name - blocks_at(S, 0).name  # where it is unless some have been forgotten
    if low < 0 or n == 0:
        return np.int64(-1)
    if low < n and blocks_at(S, low).name == name:
        return low
    low, high = np.int64(0), np.int64(n)
    while low < high:
        middle = (low + high) >> 1
        if blocks_at(S, middle).name < name:
            low = middle + 1
        else:
            high = middle
    return low if low < n and blocks_at(S, low).name == name else np.int64(-1)


@njit
def _running(S, i, owner):
    """The request of instance `i`'s batch whose sequence is `owner`, -1: there is none."""
    r = _request_of(S, owner) if owner >= 0 else np.int64(-1)
    if r >= 0 and (req_at(S, r).state != _RUNNING or req_at(S, r).instance != i):
        return np.int64(-1)
    return r


@njit
def _borne_later(S, x, lo, hi):
    """Whether any of these blocks of extent `x`'s sequence has a bearer behind `x` in the order of naming."""
    mine = extent_at(S, x)
    y = np.int64(mine.after)
    while y >= 0:
        extent = extent_at(S, y)
        if extent.owner == mine.owner and extent.inst == mine.inst:
            if extent.lo < hi and extent.hi > lo:
                return True
        y = np.int64(extent.after)
    return False


@njit
def _name(S, i, r, owner, to):
    """Request `r` gives its next blocks, up to `to`, names of sequence `owner`."""
    mine = blocks_at(S, r)
    x = np.int64(mine.made)
    if x >= 0:
        extent = extent_at(S, x)
        goes_on = extent.owner == owner and extent.hi == mine.named and extent.refs == 1
        if goes_on and not _borne_later(S, x, mine.named, to):
            extent.hi = to
            mine.named = to
            return
    y = _unused(S)
    extent = extent_at(S, y)
    extent.owner, extent.inst, extent.refs = owner, i, 1
    extent.lo, extent.hi, extent.made = mine.named, to, x
    _enlist(S, y)
    mine.made = y
    mine.named = to


@njit
def _known(S, i, r, done):
    """Tokens of decoding request `r` that have their names, full blocks of them, after `done` more steps.

    It was given a token in the composition at hand, unless its last one is on its way.
    """
    req = req_at(S, r)
    return np.int64(req.input) + inst_at(S, i).iter_no + done - req.join_iter - (req.decoding == 2)


@njit
def _settle(S, i, owner):
    """If sequence `owner` is that of a request that decodes at instance `i`: name what it has filled."""
    r = _running(S, i, owner)
    if r < 0 or req_at(S, r).decoding == 0:
        return
    to = _known(S, i, r, 0) // pool_at(S, inst_at(S, i).pool).block_tokens
    if to > blocks_at(S, r).named:
        _name(S, i, r, owner, to)


@njit(forceinline=True)
def _owner_of(S, r, j, k, size, most):
    """Whose sequence block `k` of request `r` is part of.

    Args:
        j: a span of `r`, not behind the one that is looked for.
        size: tokens of a block.
        most: blocks of `r` that count, more than `k`.

    Returns:
        (the span, or `n_spans` if the block is `r`'s own; the sequence; the block up to which it is that one)
    """
    mine = blocks_at(S, r)
    while j < mine.n_spans and span_at(S, mine.span + j).end // size <= k:
        j += 1
    if j == mine.n_spans:
        return j, np.int64(mine.name), most
    span = span_at(S, mine.span + j)
    return j, np.int64(span.owner), min(most, span.end // size)


@njit
def give_names(S, i, r, tokens):
    """The blocks that running request `r` has filled with its first `tokens` tokens have names."""
    mine = blocks_at(S, r)
    size = pool_at(S, inst_at(S, i).pool).block_tokens
    to = np.int64(tokens // size)
    j = np.int64(0)
    while mine.named < to:
        j, owner, end = _owner_of(S, r, j, mine.named, size, to)
        if j < mine.n_spans:
            _settle(S, i, owner)
        _name(S, i, r, owner, end)


@njit
def owner_runs(S, i, r):
    """Whether a request runs at instance `i` whose tokens waiting request `r` begins with."""
    mine = blocks_at(S, r)
    for j in range(mine.n_spans):
        if _running(S, i, span_at(S, mine.span + j).owner) >= 0:
            return True
    return False


@njit
def may_be_named(S, i, r):
    """Whether such a request, all of which decode, may yet name blocks of these tokens."""
    mine = blocks_at(S, r)
    inst = inst_at(S, i)
    size = pool_at(S, inst.pool).block_tokens
    for j in range(mine.n_spans):
        span = span_at(S, mine.span + j)
        q = _running(S, i, span.owner)
        if q >= 0:
            known = np.int64(req_at(S, q).input) + inst.iter_no - req_at(S, q).join_iter
            if known // size < span.end // size:
                return True
    return False


# ---- what a request finds, takes and leaves ----------------------------------------------------------


@njit
def find_hits(S, i, r):
    """Blocks of waiting request `r` that are there, from the first on; and how many of them nobody holds."""
    mine, req = blocks_at(S, r), req_at(S, r)
    size = pool_at(S, inst_at(S, i).pool).block_tokens
    most = (np.int64(req.input) + req.emitted - 1) // size
    k, idle = np.int64(0), np.int64(0)
    if not glob_of(S).shares and req.preemptions == 0:
        return k, idle
    j, seen = np.int64(0), np.int64(-1)
    while k < most:
        j, owner, end = _owner_of(S, r, j, k, size, most)
        if j < mine.n_spans and j != seen:
            seen = j
            _settle(S, i, owner)
        x, until = _find(S, i, owner, k)
        if x < 0:
            break
        until = min(until, end)
        if extent_at(S, x).refs == 0:
            idle += until - k
        k = until
    return k, idle


@njit
def found_tokens(S, i, r, t):
    """Tokens of waiting request `r` that the prefix cache of instance `i` holds at time `t`.

    Nobody can tell that it was asked. The blocks that the segment under way has taken by now lose their
    names now, and not at its end; those that it has filled are found without getting theirs.
    """
    req, size = req_at(S, r), pool_at(S, inst_at(S, i).pool).block_tokens
    if not glob_of(S).shares and req.preemptions == 0:
        return np.int64(0)
    done = iterations_done(S, i, t)
    trim(S, i, block_needs(S, i, done))
    most = (np.int64(req.input) + req.emitted - 1) // size
    k, j = np.int64(0), np.int64(0)
    while k < most:
        j, owner, end = _owner_of(S, r, j, k, size, most)
        x, until = _find(S, i, owner, k)
        if x < 0:
            q = _running(S, i, owner)
            if q < 0 or req_at(S, q).decoding == 0:
                break
            until = _known(S, i, q, done) // size
            if until <= k:
                break
        k = min(until, end)
    return k * size


@njit
def hold_hits(S, i, r, hits):
    """Request `r`, admitted, takes so many blocks that `find_hits` has found."""
    mine = blocks_at(S, r)
    size = pool_at(S, inst_at(S, i).pool).block_tokens
    k, j = np.int64(0), np.int64(0)
    while k < hits:
        j, owner, end = _owner_of(S, r, j, k, size, hits)
        x, until = _find(S, i, owner, k)
        until = min(until, end)
        if extent_at(S, x).lo < k:
            _split(S, x, k)
        if extent_at(S, x).hi > until:
            x = _split(S, x, until)
        if extent_at(S, x).refs == 0:
            _leave_cache(S, x)
            v1_at(S, i).used += until - k
        extent_at(S, x).refs += 1
        k = until
    mine.hits = mine.named = hits


@njit
def release(S, i, r, tokens, held):
    """Request `r`, whose blocks full of its first `tokens` tokens have names, lets its `held` blocks go."""
    give_names(S, i, r, tokens)
    mine = blocks_at(S, r)
    size = pool_at(S, inst_at(S, i).pool).block_tokens
    v1_at(S, i).used -= held - mine.named
    x = np.int64(mine.made)
    while x >= 0:
        below = np.int64(extent_at(S, x).made)
        _let_go(S, x)
        x = below
    k, j = np.int64(mine.hits), np.int64(mine.n_spans)
    while k > 0:
        while j > 0 and span_at(S, mine.span + j - 1).end // size >= k:
            j -= 1
        owner = mine.name
        if j < mine.n_spans:
            owner = span_at(S, mine.span + j).owner
        x, _ = _find(S, i, owner, k - 1)
        _let_go(S, x)
        k = np.int64(extent_at(S, x).lo)
    mine.made = -1
    mine.hits = mine.named = 0


@njit
def forget_cache(S, i):
    """Instance `i`, at which no request holds blocks, has lost its memory."""
    step = v1_at(S, i)
    while step.oldest >= 0:
        x = np.int64(step.oldest)
        _leave_cache(S, x)
        _discard(S, x)


@njit
def look_for_room(S):
    """Stop the episode after this event if the next one might find too little room for extents."""
    glob = glob_of(S)
    if glob.extent_size - glob.extents < const_of(S).extent_room and glob.error == 0:
        glob.error = NEEDS_ROOM
