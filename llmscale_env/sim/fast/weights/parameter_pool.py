"""Where each LLM's weights lie, and which source a slot loads from (docs/engine.md, sections 3 and 15)."""

from __future__ import annotations

from llmscale_env.sim.fast.state.memory import (
    const_of,
    glob_of,
    home_at,
    host_count_of,
    host_gone_of,
    inst_at,
    load_at,
)
from llmscale_env.sim.jit import njit
from llmscale_env.sim.spec.kinds import FROM_SSD, InstanceState, LoadSource

_ACTIVE = int(InstanceState.ACTIVE)
_DRAINING = int(InstanceState.DRAINING)
_SSD = int(LoadSource.SSD)
_HOST = int(LoadSource.HOST)
_MULTICAST = int(LoadSource.MULTICAST)


@njit
def _holds(S, i, m):
    inst = inst_at(S, i)
    return inst.llm == m and (inst.state == _ACTIVE or inst.state == _DRAINING)


@njit
def host_has(S, host, m, t):
    """Whether a host has LLM `m`'s weights in memory."""
    if host == glob_of(S).failing_host:
        return False
    home = home_at(S, m)
    if (home.host == host and home.there) or host_count_of(S)[host, m] > 0:
        return True
    gone = host_gone_of(S)[host, m]
    return gone >= 0 and t - gone <= const_of(S).keep_alive


@njit
def host_will_have(S, host, m, t):
    """Whether it has them, or is to have them as the LLM's home."""
    return home_at(S, m).host == host or host_has(S, host, m, t)


@njit
def weights_at(S, source, m, host, t):
    """Whether an instance that starts to load by `load_ps` finds its LLM's weights there."""
    if source == _SSD:
        return True
    if source == _HOST:
        return host_has(S, host, m, t)
    for h in range(const_of(S).n_hosts):
        if host_count_of(S)[h, m] > 0:
            return True
    return False


@njit
def nearest(S, m, host, t):
    """Source code that `MULTICAST` takes on a host: a slot there, any slot, host memory, SSD."""
    anywhere = -1
    for i in range(const_of(S).n_inst):
        if _holds(S, i, m):
            if inst_at(S, i).host == host:
                return i
            if anywhere < 0:
                anywhere = i
    if anywhere >= 0:
        return anywhere
    if host_has(S, host, m, t):
        return const_of(S).n_inst + host
    if home_at(S, m).there:
        return const_of(S).n_inst + home_at(S, m).host
    return FROM_SSD


@njit
def found(S, ordered, m, host, t):
    """Source code for a slot of a host that starts to load by this rule."""
    if ordered == _MULTICAST:
        return nearest(S, m, host, t)
    if ordered == _HOST and host_has(S, host, m, t):
        return const_of(S).n_inst + host
    return FROM_SSD


@njit
def kind_of(S, code):
    """`LoadSource` that an observer sees of a source code."""
    if code < 0:
        return _SSD
    return _MULTICAST if code < const_of(S).n_inst else _HOST


@njit
def serves(S, code, m, t):
    """Whether the source that `scale` named and that has not gone since may be loaded from."""
    return code < const_of(S).n_inst or host_will_have(S, code - const_of(S).n_inst, m, t)


@njit
def offers(S, code, m, layer, t):
    """Whether a source that serves has this layer by now."""
    if code < 0:
        return True
    if code < const_of(S).n_inst:
        state = inst_at(S, code).state
        return state == _ACTIVE or state == _DRAINING or load_at(S, code).layers > layer
    host = code - const_of(S).n_inst
    # What a host once had it keeps for those who load from it; a copy on its way is to be waited for.
    coming = home_at(S, m).host == host and not home_at(S, m).there
    return not coming or host_has(S, host, m, t)
