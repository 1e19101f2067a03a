"""Links and what flows over them (docs/engine.md, sections 11 and 15).

Few flows are under way at a time, so what happens at a start or an end walks over all of them. Rates
depend on the set of flows only: they are computed once when the events of a time have changed it, before
the next end of a flow is asked for.
"""

from __future__ import annotations

from llmscale_env.sim.fast.state.memory import (
    const_of,
    flow_at,
    flows_of,
    glob_of,
    inst_at,
    link_cap_of,
    link_use_of,
    links_of,
)
from llmscale_env.sim.fast.state.records import NO_EVENT, STALE
from llmscale_env.sim.fast.state.structures import key_at
from llmscale_env.sim.jit import njit

MILLIONTHS = 1_000_000

_LEFT, _FLOWS = 0, 1
"""Columns of `link_use`."""

_OUT, _IN, _LOCAL_OUT, _LOCAL_IN, _FROM_HOST, _FROM_SSD = 0, 1, 2, 3, 4, 5
_HOST_OUT, _HOST_IN, _SSD_HOST = 0, 1, 2
"""Tables of links, those with a row per slot and those with one per host: order of `layout.links_of`."""

NO_LINKS = 0
"""The row without links."""


# ---- paths: two rows of links each ---------------------------------------------------------------


@njit
def _slot_row(S, table, i):
    return 1 + table * const_of(S).n_inst + i


@njit
def _host_row(S, table, host):
    return 1 + 6 * const_of(S).n_inst + table * const_of(S).n_hosts + host


@njit
def path_between(S, source, target):
    """From one slot to another, of a KV cache or of weights."""
    if inst_at(S, source).host == inst_at(S, target).host:
        return _slot_row(S, _LOCAL_OUT, source), _slot_row(S, _LOCAL_IN, target)
    return _slot_row(S, _OUT, source), _slot_row(S, _IN, target)


@njit
def path_to_slot(S, code, i):
    """Weights from a source code to slot `i`."""
    n_inst = const_of(S).n_inst
    if code < 0:
        return NO_LINKS, _slot_row(S, _FROM_SSD, i)
    if code < n_inst:
        return path_between(S, code, i)
    if code - n_inst == inst_at(S, i).host:
        return NO_LINKS, _slot_row(S, _FROM_HOST, i)
    return _host_row(S, _HOST_OUT, code - n_inst), _slot_row(S, _IN, i)


@njit
def path_to_host(S, code, host):
    """Weights from a source code, never another host's memory, to the memory of a host."""
    if code < 0:
        return NO_LINKS, _host_row(S, _SSD_HOST, host)
    if code >= const_of(S).n_inst or inst_at(S, code).host == host:
        return NO_LINKS, NO_LINKS
    return _slot_row(S, _OUT, code), _host_row(S, _HOST_IN, host)


@njit
def _link(S, r, k):
    """Link number `k` on the path of flow `r`; -1: none."""
    width = const_of(S).link_width
    if k < width:
        return links_of(S)[flow_at(S, r).first, k]
    return links_of(S)[flow_at(S, r).second, k - width]


# ---- rates ---------------------------------------------------------------------------------------


@njit
def _settle(S, t):
    """Count what has moved at the rates of until now; all flows have been seen at one time."""
    if glob_of(S).n_flows == 0 or flow_at(S, flows_of(S)[0]).seen == t:
        return
    for n in range(glob_of(S).n_flows):
        flow = flow_at(S, flows_of(S)[n])
        flow.left = max(0, flow.left - flow.rate * (t - flow.seen))
        flow.seen = t


@njit
def _tightest(S):
    """(link, share) of the link that gives its flows least, among those with flows; -1: none has."""
    use = link_use_of(S)
    best, least = -1, 0
    for n in range(glob_of(S).n_flows):
        r = flows_of(S)[n]
        if flow_at(S, r).fixed:
            continue
        for k in range(2 * const_of(S).link_width):
            link = _link(S, r, k)
            if link < 0:
                continue
            share = use[link, _LEFT] // use[link, _FLOWS]
            if best < 0 or share < least or (share == least and link < best):
                best, least = link, share
    return best, max(1, least)


@njit
def _fix(S, r, share):
    flow = flow_at(S, r)
    flow.fixed = 1
    flow.rate = share
    use = link_use_of(S)
    for k in range(2 * const_of(S).link_width):
        link = _link(S, r, k)
        if link >= 0:
            use[link, _LEFT] = max(0, use[link, _LEFT] - share)
            use[link, _FLOWS] -= 1


@njit
def share(S):
    """New rates by progressive filling, new ends."""
    glob, flows, use = glob_of(S), flows_of(S), link_use_of(S)
    width = const_of(S).link_width
    for n in range(glob.n_flows):
        flow_at(S, flows[n]).fixed = 1
        for k in range(2 * width):
            link = _link(S, flows[n], k)
            if link >= 0:
                flow_at(S, flows[n]).fixed = 0
                use[link, _LEFT] = link_cap_of(S)[link]
                use[link, _FLOWS] = 0
    for n in range(glob.n_flows):
        for k in range(2 * width):
            link = _link(S, flows[n], k)
            if link >= 0:
                use[link, _FLOWS] += 1
    while True:
        tightest, rate = _tightest(S)
        if tightest < 0:
            break
        for n in range(glob.n_flows):
            if flow_at(S, flows[n]).fixed:
                continue
            for k in range(2 * width):
                if _link(S, flows[n], k) == tightest:
                    _fix(S, flows[n], rate)
                    break
    glob.flow_key = NO_EVENT
    for n in range(glob.n_flows):
        r = flows[n]
        flow = flow_at(S, r)
        flow.end = flow.seen
        if flow.rate > 0:
            flow.end += (flow.left + flow.rate - 1) // flow.rate
        key = key_at(flow.end)
        if key < glob.flow_key or (key == glob.flow_key and r < glob.flow_next):
            glob.flow_key = key
            glob.flow_next = r


@njit
def bring_up_to_date(addresses, first, last):
    """Rates of flows in episodes `first..last - 1`, where orders of now have changed who flows."""
    for e in range(first, last):
        if glob_of(addresses[e]).flow_key == STALE:
            share(addresses[e])


@njit
def start(S, r, path, volume_bytes, t):
    """Flow number `r` over the links of two rows begins."""
    glob = glob_of(S)
    _settle(S, t)
    flows_of(S)[glob.n_flows] = r
    glob.n_flows += 1
    flow = flow_at(S, r)
    flow.left = volume_bytes * MILLIONTHS
    flow.rate = 0
    flow.seen = t
    flow.first, flow.second = path
    flow.active = 1
    glob.flow_key = STALE


@njit
def stop(S, r, t):
    """Flow `r` ends, or is broken off."""
    glob, flows = glob_of(S), flows_of(S)
    _settle(S, t)
    n = 0
    while flows[n] != r:
        n += 1
    glob.n_flows -= 1
    flows[n] = flows[glob.n_flows]
    flow_at(S, r).active = 0
    glob.flow_key = STALE
