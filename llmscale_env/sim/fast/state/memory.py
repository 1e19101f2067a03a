"""How the kernels reach the arrays of one episode.

A kernel function is given a single integer `S`: the address of the episode's table of addresses, one per
array of `layout.State`. Handing a tuple of 30 arrays from function to function would copy some 200
words and count references at every call, which was nine tenths of the run time; an address costs nothing, and
a function named after the array reads `inst_at(S, i).kv` as plainly. `EngineBatch` owns the arrays and keeps
them alive.

The accessors are intrinsics: a few machine instructions put in place, where functions would each have to be
compiled, linked and inlined at hundreds of calls.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from llmscale_env.sim.checked_kernels import CHECKED
from llmscale_env.sim.fast.state.cache_records import BLOCKS, EXTENT, SPAN, Loose
from llmscale_env.sim.fast.state.flow_records import CO, FLOW, HOME, LIVE, LOAD
from llmscale_env.sim.fast.state.layout import (
    STATE_FIELDS,
)
from llmscale_env.sim.fast.state.queue_records import AGING, QUEUE
from llmscale_env.sim.fast.state.records import (
    CLS,
    CONST,
    FIT,
    GLOB,
    INST,
    POOL,
    PROF,
    REPORT,
    REQ,
    ROUTE,
    SERVED_COLUMNS,
    TALLY,
    V1,
)
from llmscale_env.sim.fast.state.region_records import ENDPOINT, LEASE, MANAGER, ROAM
from llmscale_env.sim.observed import POOL_SEEN, QUEUE_SEEN

_MANY = 2**40
"""Leading dimension of a view: nothing is checked against it."""

_CACHE_LINE = 64
"""Bytes."""

_I64 = ir.IntType(64)
_PLACE = {name: k for k, name in enumerate((*STATE_FIELDS, *Loose._fields))}


def _base(builder: Any, table: Any, name: str) -> Any:
    """Pointer (i8*) to the array called `name` of the episode whose table is at `table`."""
    pointers = builder.inttoptr(table, _I64.as_pointer())
    address = _constant(builder, builder.gep(pointers, [_I64(_PLACE[name])]))
    return builder.inttoptr(address, cgutils.voidptr_t)


def _constant(builder: Any, pointer: Any) -> Any:
    """Load what no kernel writes: the compiler may keep it in a register over stores to other arrays."""
    loaded = builder.load(pointer)
    loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
    return loaded


def _field(builder: Any, table: Any, array: str, dtype: np.dtype, field: str) -> Any:
    """An int64 field of the first record of `array`."""
    assert dtype.fields is not None
    offset = dtype.fields[field][1]
    pointer = builder.gep(_base(builder, table, array), [_I64(offset)])
    return _constant(builder, builder.bitcast(pointer, _I64.as_pointer()))


def _records(name: str, dtype: np.dtype) -> Any:
    """`f(S, k)`: record `k` of the array called `name`."""
    record = numba.from_dtype(dtype)
    size = dtype.itemsize

    @intrinsic
    def at(typing_context, S, k):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            index = context.cast(builder, args[1], signature.args[1], types.int64)
            offset = builder.mul(index, _I64(size))
            pointer = builder.gep(_base(builder, args[0], name), [offset])
            return builder.bitcast(pointer, context.get_value_type(record))

        return record(S, k), generate

    return at


def _record(name: str, dtype: np.dtype) -> Any:
    """`f(S)`: the only record of the array called `name`."""
    record = numba.from_dtype(dtype)

    @intrinsic
    def of(typing_context, S):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            pointer = _base(builder, args[0], name)
            return builder.bitcast(pointer, context.get_value_type(record))

        return record(S), generate

    return of


def _array(name: str, dtype: type, *trailing: int | str, sliced: bool = CHECKED) -> Any:
    """`f(S)`: the array called `name`; trailing dimensions are numbers or fields of `const`.

    Numba adds the length to an index below 0, and looks at every index for that: a tenth of the run time. No
    kernel has such an index, so an array says that its length is 0, and there is nothing to add. It says the
    true one where a kernel takes a slice of it (`sliced`), or where indices are checked.
    """
    layout = "C" if sliced else "A"  # "A": elements are found by strides alone
    array_type = types.Array(numba.from_dtype(np.dtype(dtype)), 1 + len(trailing), layout)
    size = np.dtype(dtype).itemsize

    @intrinsic
    def of(typing_context, S):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
            shape = [_I64(_MANY)]
            for dimension in trailing:
                if isinstance(dimension, int):
                    shape.append(_I64(dimension))
                elif dimension == "capacity":
                    shape.append(_field(builder, args[0], "glob", GLOB, dimension))
                else:
                    shape.append(_field(builder, args[0], "const", CONST, dimension))
            strides = [_I64(size)]
            for dimension in reversed(shape[1:]):
                strides.insert(0, builder.mul(strides[0], dimension))
            array = context.make_array(array_type)(context, builder)
            populate_array(
                array,
                data=builder.bitcast(_base(builder, args[0], name), array.data.type),
                shape=cgutils.pack_array(builder, shape if sliced else [_I64(0)] * len(shape)),
                strides=cgutils.pack_array(builder, strides),
                itemsize=context.get_constant(types.intp, size),
                meminfo=None,
            )
            return array._getvalue()

        return array_type(S), generate

    return of


@intrinsic
def prefetch_request(typing_context, S, r):  # type: ignore[no-untyped-def]
    """Bring request `r`'s record into the processor's cache: it will soon be written."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        number = context.cast(builder, args[1], signature.args[1], types.int64)
        first = builder.mul(number, _I64(REQ.itemsize))
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], kind)
        write, keep, data = word(1), word(3), word(1)
        for offset in (*range(0, REQ.itemsize, _CACHE_LINE), REQ.itemsize - 1):
            place = builder.add(first, _I64(offset))
            pointer = builder.gep(_base(builder, args[0], "req"), [place])
            builder.call(prefetch, [pointer, write, keep, data])
        return context.get_dummy_value()

    return types.none(S, r), generate


@intrinsic
def route_at(typing_context, S, llm, slo_class):  # type: ignore[no-untyped-def]
    """Route of an LLM and a class."""
    record = numba.from_dtype(ROUTE)

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        m = context.cast(builder, args[1], signature.args[1], types.int64)
        c = context.cast(builder, args[2], signature.args[2], types.int64)
        n_classes = _field(builder, args[0], "const", CONST, "n_classes")
        offset = builder.mul(builder.add(builder.mul(m, n_classes), c), _I64(ROUTE.itemsize))
        pointer = builder.gep(_base(builder, args[0], "route"), [offset])
        return builder.bitcast(pointer, context.get_value_type(record))

    return record(S, llm, slo_class), generate


const_of = _record("const", CONST)
glob_of = _record("glob", GLOB)
inst_at = _records("inst", INST)
req_at = _records("req", REQ)
pool_at = _records("pool", POOL)
prof_at = _records("prof", PROF)
cls_at = _records("cls", CLS)
tally_at = _records("tally", TALLY)
pool_seen_at = _records("pool_seen", POOL_SEEN)
queue_seen_at = _records("queue_seen", QUEUE_SEEN)
queue_at = _records("queue", QUEUE)
aging_at = _records("aging", AGING)
flow_at = _records("flow", FLOW)
report_at = _records("report", REPORT)
fit_at = _records("fit", FIT)
load_at = _records("load", LOAD)
live_at = _records("live", LIVE)
v1_at = _records("v1", V1)
blocks_at = _records("blocks", BLOCKS)
extent_at = _records("extent", EXTENT)
span_at = _records("span", SPAN)
co_at = _records("co", CO)
home_at = _records("home", HOME)
roam_at = _records("roam", ROAM)
lease_at = _records("lease", LEASE)
endpoint_at = _records("endpoint", ENDPOINT)
manager_at = _records("manager", MANAGER)

key_of = _array("key", np.int64)
tree_of = _array("tree", np.int64)
heap_of = _array("heap", np.int64, "batch")
stack_of = _array("stack", np.int64, "stack_depth", 2)
lists_of = _array("lists", np.int64, 3)
active_of = _array("active", np.int64, "slots")
running_of = _array("running", np.int64)
running_cls_of = _array("running_cls", np.int64, "n_classes")
host_count_of = _array("host_count", np.int64, "n_llms")
host_gone_of = _array("host_gone", np.int64, "n_llms")
log_of = _array("log", np.int64, "capacity")
arrived_of = _array("arrived", np.int64, "n_classes")
by_class_of = _array("by_class", np.int64)
ids_of = _array("ids", np.int64)
tab_of = _array("tab", np.int64, 4, "tab_width")
knots_of = _array("knots", np.int64, 2, "knots", 3)
pull_of = _array("pull", np.int64, "pull_width")
place_of = _array("place", np.int64, "pull_width")
pulled_by_of = _array("pulled_by", np.int64, "pulled_by_width")
growing_of = _array("growing", np.int64, "block_width")
bucket_of = _array("bucket", np.int32)
dirty_of = _array("dirty", np.int64)
host_ready_of = _array("host_ready", np.int64, "n_llms", sliced=True)
host_used_of = _array("host_used", np.int64, "n_llms")
served_of = _array("served", np.int64, "n_llms", SERVED_COLUMNS)
route_pools_of = _array("route_pools", np.int64, "n_classes", 3, "n_pools")
flows_of = _array("flows", np.int64)
link_use_of = _array("link_use", np.int64, 2)
link_cap_of = _array("link_cap", np.int64)
links_of = _array("links", np.int64, "link_width")
fit_list_of = _array("fit_list", np.int64, "fit_width", sliced=True)
fit_long_of = _array("fit_long", np.int64, sliced=True)
norms_of = _array("norms", np.float64)
llm_cap_of = _array("llm_cap", np.int64)
token_bins_of = _array("token_bins", np.int64, "bins_width", sliced=True)
prefer_of = _array("prefer", np.int64, "n_classes", "n_regions", "n_regions")
takes_of = _array("takes", np.int64, "n_classes", "n_regions")
region_pools_of = _array("region_pools", np.int64, "n_classes", "n_pools")
region_first_of = _array("region_first", np.int64, "n_classes", "more_regions")
client_queue_of = _array("client_queue", np.int64, "n_classes", "n_regions")
latency_of = _array("latency", np.int64, "n_regions", "latency_width")
manager_pools_of = _array("manager_pools", np.int64, "n_pools")
counting_of = _array("counting", np.int64, "n_regions", "pools_width")
reclaim_of = _array("reclaim", np.int64, "reclaim_width")
transit_of = _array("transit", np.int64, "capacity")
