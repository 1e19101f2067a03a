"""Scaling at the endpoint, requests that reach a region, queue managers (docs/engine.md, section 17)."""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.fleet import scaling
from llmscale_env.sim.fast.serving.queues import (
    leave,
)
from llmscale_env.sim.fast.serving.region_routing import (
    endpoint,
    is_below,
    next_to_reach,
    roll,
    used_now,
)
from llmscale_env.sim.fast.serving.routing import route, to_instance
from llmscale_env.sim.fast.serving.wake import call_for_changed
from llmscale_env.sim.fast.state.lists import (
    queue_row,
)
from llmscale_env.sim.fast.state.memory import (
    active_of,
    const_of,
    endpoint_at,
    glob_of,
    lists_of,
    manager_at,
    manager_pools_of,
    pool_at,
    prof_at,
    region_first_of,
    region_pools_of,
    req_at,
    roam_at,
    transit_of,
)
from llmscale_env.sim.fast.state.structures import key_at
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec.regions import MOST_TOKENS, PPM, ScalingKind

_NONE = int(ScalingKind.NONE)
_REACTIVE = int(ScalingKind.REACTIVE)
_AHEAD = int(ScalingKind.TARGET_AHEAD)
_ARRIVAL, _SIGNAL = 2, 4
_NO_TIME = np.int64(2**62)


# ---- rules ---------------------------------------------------------------------------------------


@njit
def _sign(x):
    if x == 0:
        return 0
    return 1 if x > 0 else -1


@njit
def _by_memory(S, p, t):
    """1 above the upper utilisation or with nobody active, -1 below the lower one, else 0."""
    ep = endpoint_at(S, p)
    pool = pool_at(S, p)
    if pool.n_active == 0:
        return 1
    used = np.int64(0)
    for a in range(pool.n_active):
        used += used_now(S, active_of(S)[p, a], t)
    used = min(used, MOST_TOKENS)
    room = pool.n_active * prof_at(S, pool.profile).cap
    if used * PPM > ep.high_ppm * room:
        return 1
    return -1 if used * PPM < ep.low_ppm * room else 0


@njit
def _by_load(S, p, t):
    ep = endpoint_at(S, p)
    roll(S, p, t)
    if ep.window >= ep.above:
        return 1 if ep.either_way or ep.way >= 0 else 0
    if ep.window <= ep.below:
        return -1 if ep.either_way or ep.way <= 0 else 0
    return 0


@njit
def _wish(S, p, t):
    ep = endpoint_at(S, p)
    if ep.kind == _REACTIVE:
        return _by_memory(S, p, t)
    if ep.target < 0:
        return 0
    n = scaling.present(S, p)
    if ep.kind == _AHEAD:
        if (ep.target - n) * ep.way <= 0:
            ep.there = 1
        if ep.there and t - ep.began_ps >= ep.late_ps:
            return _by_load(S, p, t)
    towards = _sign(ep.target - n)
    if towards == 0:
        return 0
    return towards if _by_memory(S, p, t) == towards else 0


@njit
def look(S, p, t, router, features):
    """Order an instance of pool `p` more or less if its rule says so."""
    ep = endpoint_at(S, p)
    if ep.kind == _NONE or t - ep.changed_ps < ep.cooldown_ps:
        return
    wish = _wish(S, p, t)
    if wish == 0:
        return
    n = scaling.present(S, p)
    number = min(max(n + wish, ep.least), ep.most)
    number = max(number, n - max(0, pool_at(S, p).n_active - ep.least))
    if number == n:
        return
    ep.changed_ps = t
    if number > n:
        ep.looks_out += 1
    else:
        ep.looks_in += 1
    scaling.set_target(S, p, number, pool_at(S, p).load_source, t, router, features)


@njit
def begin_hour(S, p, kind, target, above, below):
    """Command: pool `p` has a plan for the next hour (`target` -1: none)."""
    ep = endpoint_at(S, p)
    ep.kind = kind
    ep.target = -1
    ep.way = 0
    if target >= 0:
        ep.target = min(max(target, ep.least), ep.most)
        ep.way = _sign(ep.target - scaling.present(S, p))
    ep.began_ps = glob_of(S).now_ps
    ep.there = 0
    ep.above = above
    ep.below = below


# ---- events --------------------------------------------------------------------------------------


@njit
def _look_at(S, pools, first, last, t, router, features):
    for k in range(first, last):
        look(S, pools[k], t, router, features)


@njit
def reach(S, t, router, features):
    """The request that is next to reach its region does so, at `t`."""
    r = next_to_reach(S)
    glob = glob_of(S)
    glob.phase = _ARRIVAL
    glob.event_ps = t
    req = req_at(S, r)
    j = roam_at(S, r).to
    roam_at(S, r).to = -1
    pools, places = region_pools_of(S)[req.llm, req.cls], region_first_of(S)[req.llm, req.cls]
    _look_at(S, pools, places[j], places[j + 1], t, router, features)
    i = endpoint(S, pools, places[j], places[j + 1], t)
    if i < 0:
        route(S, r, t, router, features)
    else:
        to_instance(S, r, i, t)
    call_for_changed(S, t, -1)


@njit
def _nobody_waits(S):
    """Whether all managers' queues are empty."""
    for k in range(const_of(S).n_managers):
        if lists_of(S)[queue_row(S, manager_at(S, k).queue), 2] > 0:
            return False
    return True


@njit
def _take(S, k, t, router, features):
    """Manager `k` takes what it has room for."""
    manager = manager_at(S, k)
    row = queue_row(S, manager.queue)
    pools, n = manager_pools_of(S)[k], manager.n_pools
    if lists_of(S)[row, 2] == 0:
        return
    wanted = 0
    if is_below(S, pools, 0, n, t, manager.two_ppm):
        wanted = 2
    elif is_below(S, pools, 0, n, t, manager.one_ppm):
        wanted = 1
    for _ in range(wanted):
        _look_at(S, pools, 0, n, t, router, features)
        i = endpoint(S, pools, 0, n, t)
        if i < 0 or lists_of(S)[row, 2] == 0:
            break
        r = lists_of(S)[row, 0]
        leave(S, r, manager.queue)
        to_instance(S, r, i, t)
    if wanted > 0:
        call_for_changed(S, t, -1)


@njit
def signal(S, next_ps, router, features):
    """The next manager signals; `next_ps`: before then nothing else happens, and no command comes."""
    glob = glob_of(S)
    t = glob.signal_ps
    period = const_of(S).manager_period
    if glob.signal_index == 0 and _nobody_waits(S):
        glob.signal_ps = max((next_ps + period - 1) // period * period, t + period)
        return
    glob.phase = _SIGNAL
    glob.event_ps = t
    _take(S, glob.signal_index, t, router, features)
    glob.signal_index += 1
    if glob.signal_index == const_of(S).n_managers:
        glob.signal_index = 0
        glob.signal_ps = t + period


@njit
def next_region_event(S, key):
    """What comes before the next instance's event (`key`), flow and arrival: nothing (0), a request that
    reaches its region (1), or a signal (2).
    """
    glob = glob_of(S)
    arrival, next_id = _NO_TIME, np.int64(0)
    if glob.next_arrival < glob.n_requests:
        next_id = glob.next_arrival
        arrival = req_at(S, next_id).arrival
    key = min(key, glob.flow_key)
    reaching = _NO_TIME
    if glob.n_transit > 0:
        reaching = transit_of(S)[0, 0]
        first = reaching < arrival or (reaching == arrival and transit_of(S)[1, 0] < next_id)
        if first and reaching <= glob.signal_ps:
            return 1 if key_at(reaching) < key else 0
    now = glob.signal_ps
    if now < arrival and now < reaching and 2 * now + 1 < key:
        return 2
    return 0


@njit
def next_other_ps(S, key, until):
    """Time of the next event but signals, at most `until`."""
    glob = glob_of(S)
    time = min(until, min(key, glob.flow_key) >> 1)
    if glob.next_arrival < glob.n_requests:
        time = min(time, req_at(S, glob.next_arrival).arrival)
    if glob.n_transit > 0:
        time = min(time, transit_of(S)[0, 0])
    return time
