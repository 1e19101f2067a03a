"""How the kernels reach the arrays of one episode.

A kernel function is given a single integer `S`: the address of the episode's table of addresses,
one per array of
`layout.State`. Handing a tuple of 25 arrays from function to function would copy some 200 words and
count references at every
call, which was nine tenths of the run time; an address costs nothing, and a function named after
the array reads `inst_at(S, i).kv` as
plainly. `EngineBatch` owns the arrays and keeps them alive.
"""

from __future__ import annotations

import numpy as np
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from llmscale_env.sim.fast.layout import (
    CLS,
    CONST,
    GLOB,
    INST,
    POOL,
    POOL_SEEN,
    PROF,
    QUEUE_SEEN,
    REQ,
    ROUTE,
    STATE_FIELDS,
    TALLY,
)
from llmscale_env.sim.jit import njit

_MANY = 2**40
"""Leading dimension of a view: nothing is checked against it."""

_PLACE = {name: k for k, name in enumerate(STATE_FIELDS)}
_GLOB, _INST, _REQ, _POOL = _PLACE["glob"], _PLACE["inst"], _PLACE["req"], _PLACE["pool"]
_ROUTE, _KEY, _TREE, _HEAP = _PLACE["route"], _PLACE["key"], _PLACE["tree"], _PLACE["heap"]
_STACK, _LISTS, _ACTIVE = _PLACE["stack"], _PLACE["lists"], _PLACE["active"]
_RUNNING_CLS, _HOST_COUNT = _PLACE["running_cls"], _PLACE["host_count"]
_HOST_GONE, _LOG, _ARRIVED = _PLACE["host_gone"], _PLACE["log"], _PLACE["arrived"]
_BY_CLASS, _TALLY = _PLACE["by_class"], _PLACE["tally"]
_POOL_SEEN, _QUEUE_SEEN = _PLACE["pool_seen"], _PLACE["queue_seen"]
_PROF, _TAB, _KNOTS, _CLS = _PLACE["prof"], _PLACE["tab"], _PLACE["knots"], _PLACE["cls"]
_PULL, _PULLED_BY = _PLACE["pull"], _PLACE["pulled_by"]
_ROUTE_POOLS, _LLM_CAP, _CONST = _PLACE["route_pools"], _PLACE["llm_cap"], _PLACE["const"]


@intrinsic
def _pointer(typing_context, address):
    """A void pointer from an address."""

    def generate(context, builder, signature, args):
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@njit
def _address(S, place):
    return carray(_pointer(S), (_MANY,), np.int64)[place]


# ---- records ----


@njit
def const_of(S):
    return carray(_pointer(_address(S, _CONST)), (_MANY,), CONST)[0]


@njit
def glob_of(S):
    return carray(_pointer(_address(S, _GLOB)), (_MANY,), GLOB)[0]


@njit
def inst_at(S, i):
    return carray(_pointer(_address(S, _INST)), (_MANY,), INST)[i]


@njit
def req_at(S, r):
    return carray(_pointer(_address(S, _REQ)), (_MANY,), REQ)[r]


@njit
def pool_at(S, p):
    return carray(_pointer(_address(S, _POOL)), (_MANY,), POOL)[p]


@njit
def route_at(S, m, c):
    return carray(_pointer(_address(S, _ROUTE)), (_MANY, const_of(S).n_classes), ROUTE)[m, c]


@njit
def prof_at(S, f):
    return carray(_pointer(_address(S, _PROF)), (_MANY,), PROF)[f]


@njit
def cls_at(S, c):
    return carray(_pointer(_address(S, _CLS)), (_MANY,), CLS)[c]


@njit
def tally_at(S, c):
    return carray(_pointer(_address(S, _TALLY)), (_MANY,), TALLY)[c]


@njit
def pool_seen_at(S, p):
    return carray(_pointer(_address(S, _POOL_SEEN)), (_MANY,), POOL_SEEN)[p]


@njit
def queue_seen_at(S, q):
    return carray(_pointer(_address(S, _QUEUE_SEEN)), (_MANY,), QUEUE_SEEN)[q]


# ---- arrays ----


@njit
def by_class_of(S):
    return carray(_pointer(_address(S, _BY_CLASS)), (_MANY,), np.int32)


@njit
def key_of(S):
    return carray(_pointer(_address(S, _KEY)), (_MANY,), np.int64)


@njit
def tree_of(S):
    return carray(_pointer(_address(S, _TREE)), (_MANY,), np.int32)


@njit
def heap_of(S):
    return carray(_pointer(_address(S, _HEAP)), (_MANY, const_of(S).batch), np.int64)


@njit
def stack_of(S):
    return carray(_pointer(_address(S, _STACK)), (_MANY, const_of(S).stack_depth, 2), np.int64)


@njit
def lists_of(S):
    return carray(_pointer(_address(S, _LISTS)), (_MANY, 3), np.int32)


@njit
def active_of(S):
    return carray(_pointer(_address(S, _ACTIVE)), (_MANY, const_of(S).slots), np.int32)


@njit
def running_cls_of(S):
    return carray(_pointer(_address(S, _RUNNING_CLS)), (_MANY, const_of(S).n_classes), np.int32)


@njit
def host_count_of(S):
    return carray(_pointer(_address(S, _HOST_COUNT)), (_MANY, const_of(S).n_llms), np.int64)


@njit
def host_gone_of(S):
    return carray(_pointer(_address(S, _HOST_GONE)), (_MANY, const_of(S).n_llms), np.int64)


@njit
def log_of(S):
    return carray(_pointer(_address(S, _LOG)), (_MANY, glob_of(S).capacity), np.int32)


@njit
def arrived_of(S):
    return carray(_pointer(_address(S, _ARRIVED)), (_MANY, const_of(S).n_classes), np.int64)


@njit
def tab_of(S):
    return carray(_pointer(_address(S, _TAB)), (_MANY, 4, const_of(S).batch + 1), np.int64)


@njit
def knots_of(S):
    return carray(_pointer(_address(S, _KNOTS)), (_MANY, 2, const_of(S).knots, 3), np.int64)


@njit
def pull_of(S):
    return carray(_pointer(_address(S, _PULL)), (_MANY, const_of(S).pull_width), np.int32)


@njit
def pulled_by_of(S):
    return carray(_pointer(_address(S, _PULLED_BY)), (_MANY, const_of(S).n_pools + 1), np.int32)


@njit
def route_pools_of(S):
    const = const_of(S)
    shape = (_MANY, const.n_classes, 2, const.n_pools)
    return carray(_pointer(_address(S, _ROUTE_POOLS)), shape, np.int32)


@njit
def llm_cap_of(S):
    return carray(_pointer(_address(S, _LLM_CAP)), (_MANY,), np.int64)
