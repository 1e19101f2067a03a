"""Spot VMs: taken, loaded, donated (docs/engine.md, section 17)."""

from __future__ import annotations

import numpy as np

from llmscale_env.sim.fast.serving.hashing import quantile, splitmix64
from llmscale_env.sim.fast.state.memory import (
    const_of,
    endpoint_at,
    glob_of,
    inst_at,
    lease_at,
    pool_at,
    reclaim_of,
)
from llmscale_env.sim.fast.state.region_records import OTHER_VM, OWN_VM, REPAIRED_VM
from llmscale_env.sim.fast.state.structures import key_at, schedule
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec.kinds import InstanceState, LoadSource
from llmscale_env.workload.requests import PS_PER_S

_OFF = int(InstanceState.OFF)
_ACQUIRING = int(InstanceState.ACQUIRING)
_LOADING = int(InstanceState.LOADING)
_DRAINING = int(InstanceState.DRAINING)
_DONATING = int(InstanceState.DONATING)
_SSD = int(LoadSource.SSD)
_HOST = int(LoadSource.HOST)
_SALT = np.uint64(0xC2B2AE3D27D4EB4F)


@njit
def giver(S, p):
    """The pool whose VM an instance of pool `p` would take, -1: there is none."""
    mine = endpoint_at(S, p)
    if mine.vms > 0:
        return p
    best, most = np.int64(-1), np.int64(0)
    for q in range(const_of(S).n_pools):
        other = endpoint_at(S, q)
        if other.spot and other.group == mine.group and other.vms > most:
            best, most = q, other.vms
    return best


@njit
def reclaim(S, i, t):
    """`OFF` slot `i` takes a VM; there is one."""
    inst = inst_at(S, i)
    lease = lease_at(S, i)
    p = inst.pool
    ep = endpoint_at(S, p)
    number = ep.reclaims_own + ep.reclaims_others
    q = giver(S, p)
    endpoint_at(S, q).vms -= 1
    if q == p:
        ep.reclaims_own += 1
        lease.kind = OWN_VM
    else:
        ep.reclaims_others += 1
        lease.kind = OTHER_VM
    seed = splitmix64(np.uint64(glob_of(S).salt) ^ _SALT ^ np.uint64(p))
    duration = quantile(reclaim_of(S)[p], 0, ep.n_knots, splitmix64(seed ^ np.uint64(number)))
    lease.since_ps = inst.billed_ps = t
    inst.state = _ACQUIRING
    inst.loaded_ps = t + duration
    if q != p:
        inst.loaded_ps += ep.redeploy_ps if ep.local else ep.redeploy_remote_ps
    schedule(S, i, key_at(t + duration))


@njit
def redeploy(S, i, t):
    """Instance `i` has its VM, and loads its LLM."""
    inst = inst_at(S, i)
    ep = endpoint_at(S, inst.pool)
    local = ep.local == 1 or lease_at(S, i).kind == REPAIRED_VM
    inst.state = _LOADING
    inst.loaded_from = _HOST if local else _SSD
    pool_at(S, inst.pool).source_used[inst.loaded_from] += 1
    inst.loaded_ps = t + (ep.redeploy_ps if local else ep.redeploy_remote_ps)
    schedule(S, i, key_at(inst.loaded_ps))


@njit
def _end_waiting(S, i, t):
    lease = lease_at(S, i)
    if lease.since_ps >= 0:
        ep = endpoint_at(S, inst_at(S, i).pool)
        waited = t - lease.since_ps
        if lease.kind == OWN_VM:
            ep.own_s += (ep.own_ps + waited) // PS_PER_S
            ep.own_ps = (ep.own_ps + waited) % PS_PER_S
        else:
            ep.others_s += (ep.others_ps + waited) // PS_PER_S
            ep.others_ps = (ep.others_ps + waited) % PS_PER_S
        lease.since_ps = -1


@njit
def serves(S, i, t):
    """Instance `i` is active now; so its weights are in the region."""
    _end_waiting(S, i, t)
    endpoint_at(S, inst_at(S, i).pool).local = 1


@njit
def donate(S, i, t):
    """Instance `i`, which nothing is on any more, goes to spot."""
    inst = inst_at(S, i)
    inst.state = _DONATING
    schedule(S, i, key_at(t + endpoint_at(S, inst.pool).donate_ps))


@njit
def donated(S, i, t):
    """The VM of instance `i` is leased out."""
    inst = inst_at(S, i)
    ep = endpoint_at(S, inst.pool)
    inst.gpu_ps += t - inst.billed_ps
    inst.billed_ps = -1
    inst.state = _OFF
    glob_of(S).gpus_held -= pool_at(S, inst.pool).gpus
    schedule(S, i, np.int64(2**63 - 1))
    ep.vms += 1
    ep.donations += 1


@njit
def fail(S, i, was, t):
    """Instance `i` has failed: its VM is repaired and loaded anew, or donated if that was to come."""
    inst = inst_at(S, i)
    _end_waiting(S, i, t)
    if was == _DRAINING or was == _DONATING:
        donate(S, i, t)
        return
    lease_at(S, i).kind = REPAIRED_VM
    repair = pool_at(S, inst.pool).repair_ps
    inst.state = _ACQUIRING
    inst.loaded_ps = t + repair + endpoint_at(S, inst.pool).redeploy_ps
    schedule(S, i, key_at(t + repair))
