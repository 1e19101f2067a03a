"""Where a request goes among regions, and in one (docs/engine.md, section 17)."""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.serving.hashing import quantile, splitmix64
from llmscale_env.sim.fast.serving.timing import iterations_done, kv_after, kv_now
from llmscale_env.sim.fast.state.memory import (
    active_of,
    cls_at,
    const_of,
    counting_of,
    endpoint_at,
    glob_of,
    ids_of,
    inst_at,
    latency_of,
    lease_at,
    manager_at,
    manager_pools_of,
    pool_at,
    prefer_of,
    prof_at,
    region_first_of,
    region_pools_of,
    req_at,
    roam_at,
    route_at,
    takes_of,
    token_bins_of,
    transit_of,
)
from llmscale_env.sim.fast.state.records import DECODE
from llmscale_env.sim.fast.state.structures import insert, push_back
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec.kinds import RequestState, RouterKind
from llmscale_env.sim.spec.regions import MOST_TOKENS, PPM

_TRANSIT = int(RequestState.TRANSIT)
_REGIONAL = int(RouterKind.REGIONAL)
_SALT = np.uint64(0x9FB21C651E98DF25)


# ---- requests on their way: a heap by (time, request) --------------------------------------------


@njit
def _comes_before(heap, k, time, r):
    return heap[0, k] < time or (heap[0, k] == time and heap[1, k] < r)


@njit
def _depart(S, time, r):
    glob = glob_of(S)
    heap = transit_of(S)
    k = glob.n_transit
    glob.n_transit = k + 1
    while k > 0 and not _comes_before(heap, (k - 1) >> 1, time, r):
        above = (k - 1) >> 1
        heap[0, k] = heap[0, above]
        heap[1, k] = heap[1, above]
        k = above
    heap[0, k] = time
    heap[1, k] = r


@njit
def next_to_reach(S):
    """The request that reaches its region next, which is no longer on its way."""
    glob = glob_of(S)
    heap = transit_of(S)
    first = heap[1, 0]
    n = glob.n_transit - 1
    glob.n_transit = n
    time, r = heap[0, n], heap[1, n]
    k = 0
    while 2 * k + 1 < n:
        child = 2 * k + 1
        if child + 1 < n and _comes_before(heap, child + 1, heap[0, child], heap[1, child]):
            child += 1
        if not _comes_before(heap, child, time, r):
            break
        heap[0, k] = heap[0, child]
        heap[1, k] = heap[1, child]
        k = child
    heap[0, k] = time
    heap[1, k] = r
    return first


# ---- between regions -----------------------------------------------------------------------------


@njit
def used_now(S, i, t):
    """KV tokens of instance `i` that utilisations count."""
    return kv_now(S, i, t) + const_of(S).waiting_counts * inst_at(S, i).waiting


@njit
def memory(S, pools, first, last, t):
    """KV tokens used, and there to be used, on the active instances of `pools[first:last]`."""
    used, room = np.int64(0), np.int64(0)
    for k in range(first, last):
        p = pools[k]
        n = pool_at(S, p).n_active
        room += n * prof_at(S, pool_at(S, p).profile).cap
        for a in range(n):
            used += used_now(S, active_of(S)[p, a], t)
    return min(used, MOST_TOKENS), room


@njit
def is_below(S, pools, first, last, t, ppm):
    """Whether the utilisation of `pools[first:last]` is below `ppm`; False without active instances.

    What is used lies between the use at the starts and the ends of the segments under way, which
    mostly settles it.
    """
    low, more, room = np.int64(0), np.int64(0), np.int64(0)
    for k in range(first, last):
        p = pools[k]
        n = pool_at(S, p).n_active
        room += n * prof_at(S, pool_at(S, p).profile).cap
        for a in range(n):
            inst = inst_at(S, active_of(S)[p, a])
            low += inst.kv + const_of(S).waiting_counts * inst.waiting
            if inst.mode == DECODE:
                more += kv_after(S, active_of(S)[p, a], inst.seg_n) - inst.kv
    if min(low, MOST_TOKENS) * PPM >= ppm * room:
        return False
    if (low + more) * PPM < ppm * room:
        return True
    used, room = memory(S, pools, first, last, t)
    return used * PPM < ppm * room


@njit
def _latency(S, r, j):
    """Time that request `r` takes to region `j`."""
    knots = latency_of(S)[roam_at(S, r).region, j]
    if knots[0] == 0:
        return np.int64(0)
    seed = splitmix64(np.uint64(glob_of(S).salt) ^ np.uint64(ids_of(S)[r]))
    return quantile(knots, 1, knots[0], splitmix64(seed ^ _SALT ^ np.uint64(j)))


@njit
def _choose(S, r, m, c, t):
    """Region that request `r` is sent to, -1: no active instance in any."""
    takes = takes_of(S)[m, c]
    order = prefer_of(S)[m, c, roam_at(S, r).region]
    pools, places = region_pools_of(S)[m, c], region_first_of(S)[m, c]
    n = const_of(S).n_regions
    for k in range(n):
        j = order[k]
        if j < 0:
            break
        if is_below(S, pools, places[j], places[j + 1], t, takes[j]):
            return j
    best, best_used, best_room = np.int64(-1), np.int64(0), np.int64(1)
    for k in range(n):
        j = order[k]
        if j < 0:
            break
        used, room = memory(S, pools, places[j], places[j + 1], t)
        if room > 0 and (best < 0 or used * best_room < best_used * room):
            best, best_used, best_room = j, used, room
    return best


@njit
def send(S, r, t):
    """Global routing of request `r`; False if it finds no region."""
    req = req_at(S, r)
    j = _choose(S, r, req.llm, req.cls, t)
    if j < 0:
        return False
    req.state = _TRANSIT
    req.at = -1
    roam_at(S, r).to = j
    _depart(S, t + _latency(S, r, j), r)
    return True


# ---- in a region ---------------------------------------------------------------------------------


@njit
def _least_to_do(S, p, first, last, t):
    """Of the active instances `first` to `last - 1` of pool `p` that with the least to do."""
    best, least = np.int64(-1), np.int64(0)
    for a in range(first, last):
        i = active_of(S)[p, a]
        inst = inst_at(S, i)
        if best >= 0 and inst.waiting + max(0, inst.left - inst.seg_n * inst.n_dec) >= least:
            continue  # even at the end of its segment it would not be less
        load = inst.waiting + max(0, inst.left - iterations_done(S, i, t) * inst.n_dec)
        if best < 0 or load < least:
            best, least = i, load
    return best


@njit
def endpoint(S, pools, first, last, t):
    """Endpoint routing among `pools[first:last]`: an instance, or -1."""
    if last - first == 1:
        p = pools[first]
        if endpoint_at(S, p).deployment >= pool_at(S, p).n_slots:
            return _least_to_do(S, p, 0, pool_at(S, p).n_active, t)
    best, begin, end = np.int64(-1), np.int64(0), np.int64(0)
    best_used, best_room = np.int64(0), np.int64(1)
    for k in range(first, last):
        p = pools[k]
        pool = pool_at(S, p)
        width = endpoint_at(S, p).deployment
        cap = prof_at(S, pool.profile).cap
        a = 0
        while a < pool.n_active:
            since = a
            d = (active_of(S)[p, a] - pool.first_slot) // width
            used = np.int64(0)
            while a < pool.n_active and (active_of(S)[p, a] - pool.first_slot) // width == d:
                used += used_now(S, active_of(S)[p, a], t)
                a += 1
            used = min(used, MOST_TOKENS)
            room = (a - since) * cap
            if best < 0 or used * best_room < best_used * room:
                best, begin, end, best_used, best_room = p, since, a, used, room
    if best < 0:
        return best
    return _least_to_do(S, best, begin, end, t)


@njit
def endpoint_of_route(S, m, c, j, t):
    """Endpoint routing of a route in region `j`."""
    places = region_first_of(S)[m, c]
    return endpoint(S, region_pools_of(S)[m, c], places[j], places[j + 1], t)


@njit
def stays_in_region(S, r, i, t):
    """Where in its region request `r` goes that waited at instance `i`; -1: it is routed anew."""
    req = req_at(S, r)
    p = inst_at(S, i).pool
    if route_at(S, req.llm, req.cls).kind == _REGIONAL:
        return endpoint_of_route(S, req.llm, req.cls, endpoint_at(S, p).region, t)
    for k in range(const_of(S).n_managers):
        manager = manager_at(S, k)
        if manager.queue == req.queue:
            for n in range(manager.n_pools):
                if manager_pools_of(S)[k, n] == p:
                    return endpoint(S, manager_pools_of(S)[k], 0, manager.n_pools, t)
    return np.int64(-1)


# ---- the own queue where there are priorities ----------------------------------------------------


@njit
def join_own(S, i, r, t):
    """Request `r` joins instance `i`'s own queue, at the end of those of its priority."""
    if not endpoint_at(S, inst_at(S, i).pool).priorities:
        push_back(S, i, r)
        return
    req = req_at(S, r)
    mine = cls_at(S, req.cls)
    if mine.priority == 1 and t - req.arrival < mine.promote_ps:
        push_back(S, i, r)
        return
    insert(S, i, r, lease_at(S, i).last_first)
    lease_at(S, i).last_first = r


# ---- observed load -------------------------------------------------------------------------------


@njit
def roll(S, p, t):
    """Bring the bins of pool `p` up to time `t`."""
    ep = endpoint_at(S, p)
    now = t // ep.bin_ps
    if now == ep.bin:
        return
    bins = token_bins_of(S)[p]
    n = ep.bins + 1
    if now - ep.bin >= n:
        bins[:n] = 0
        ep.window = 0
        ep.bin = now
    while ep.bin < now:
        ep.window += bins[ep.bin % n]  # complete now
        ep.bin += 1
        ep.window -= bins[ep.bin % n]  # the oldest one
        bins[ep.bin % n] = 0


@njit
def count(S, r):
    """Rules of scaling of its client's region see the tokens of request `r`, which arrives."""
    req = req_at(S, r)
    if cls_at(S, req.cls).priority != 0:
        return
    pools = counting_of(S)[req.llm, roam_at(S, r).region]
    k = 0
    while pools[k] >= 0:
        roll(S, pools[k], req.arrival)
        ep = endpoint_at(S, pools[k])
        token_bins_of(S)[pools[k], ep.bin % (ep.bins + 1)] += req.input + req.predicted
        k += 1
