"""Links and what flows over them (docs/engine.md, section 11).

Few flows are under way at a time, so what happens at a start or an end walks over all of them.
"""

from __future__ import annotations

from llmscale_env.sim.fast.memory import (
    const_of,
    flow_at,
    flows_of,
    glob_of,
    inst_at,
    link_cap_of,
    link_use_of,
    slot_links_of,
)
from llmscale_env.sim.fast.records import NO_EVENT
from llmscale_env.sim.jit import njit

MILLIONTHS = 1_000_000

_LEFT, _FLOWS = 0, 1
"""Columns of `link_use`."""


@njit
def _link(S, r, k):
    """Link number `k` on the path of flow `r`; -1: none."""
    flow = flow_at(S, r)
    width = const_of(S).link_width
    local = 2 if inst_at(S, flow.source).host == inst_at(S, flow.target).host else 0
    if k < width:
        return slot_links_of(S)[flow.source, local, k]
    return slot_links_of(S)[flow.target, local + 1, k - width]


@njit
def _settle(S, t):
    """Count what has moved at the rates of until now."""
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
def _share(S, t):
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
        tightest, share = _tightest(S)
        if tightest < 0:
            break
        for n in range(glob.n_flows):
            if flow_at(S, flows[n]).fixed:
                continue
            for k in range(2 * width):
                if _link(S, flows[n], k) == tightest:
                    _fix(S, flows[n], share)
                    break
    glob.flow_key = NO_EVENT
    for n in range(glob.n_flows):
        r = flows[n]
        flow = flow_at(S, r)
        flow.end = t
        if flow.rate > 0:
            flow.end += (flow.left + flow.rate - 1) // flow.rate
        key = 2 * flow.end
        if key < glob.flow_key or (key == glob.flow_key and r < glob.flow_next):
            glob.flow_key = key
            glob.flow_next = r


@njit
def start(S, r, source, target, volume_bytes, t):
    """Flow `r` between two slots begins."""
    glob = glob_of(S)
    _settle(S, t)
    flows_of(S)[glob.n_flows] = r
    glob.n_flows += 1
    flow = flow_at(S, r)
    flow.left = volume_bytes * MILLIONTHS
    flow.rate = 0
    flow.seen = t
    flow.source = source
    flow.target = target
    flow.active = 1
    _share(S, t)


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
    _share(S, t)
