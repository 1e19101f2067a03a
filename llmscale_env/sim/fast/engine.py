"""The fast engine as Python sees it: one episode, or many advanced in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.custom_router import RAISED, RouterError, features_buffer, no_router
from llmscale_env.sim.fast import advance as kernels
from llmscale_env.sim.fast import batch_observe as shown
from llmscale_env.sim.fast import batch_orders as ordered
from llmscale_env.sim.fast import gateways, observe, windows
from llmscale_env.sim.fast.fleet.scaling import will_have
from llmscale_env.sim.fast.fleet_orders import FleetOrders
from llmscale_env.sim.fast.placement_orders import PlacementOrders
from llmscale_env.sim.fast.regions.region_orders import RegionOrders
from llmscale_env.sim.fast.serving import prefix_cache, queues
from llmscale_env.sim.fast.serving_orders import ServingOrders
from llmscale_env.sim.fast.state.cache_records import (
    Loose,
    check_lengths,
    loose_arrays,
    packed,
    room_for_an_event,
    unpacked,
    with_spans,
)
from llmscale_env.sim.fast.state.layout import (
    EPISODE_FIELDS,
    PER_REQUEST,
    STATE_FIELDS,
    State,
    addresses,
    allocate,
    length,
    list_rows,
    used_widths,
)
from llmscale_env.sim.fast.state.records import BAD_ROUTER_ANSWER, NEEDS_ROOM, NO_ERROR
from llmscale_env.sim.fast.state.reset import reset_episode
from llmscale_env.sim.fast.streaming import Streaming
from llmscale_env.sim.lock import Lock
from llmscale_env.sim.observed import (
    CLASS_SEEN,
    INSTANCE_DTYPE,
    QUEUED_DTYPE,
    RESULT_DTYPE,
    RUN_DTYPE,
    Gateways,
    VirtualQueues,
    Weights,
)
from llmscale_env.sim.order_checks import OrderChecks
from llmscale_env.sim.orders import Orders, Outcome, carry_out
from llmscale_env.sim.spec import NEVER, ClusterSpec, RequestState
from llmscale_env.sim.spec.checks import check_range, check_requests
from llmscale_env.sim.streaming import check_same_cluster
from llmscale_env.workload.requests import NO_REQUESTS, RequestTable


def _put(target: NDArray[Any], array: NDArray[Any]) -> None:
    """Copy records as bytes: numpy copies them field by field, which takes twelve times as long."""
    if array.dtype.names and array.flags.c_contiguous:
        target.view(np.uint8)[...] = array.view(np.uint8)
    else:
        target[...] = array


class BusyError(RuntimeError):
    """Another thread is advancing these episodes."""


class EngineBatch(Streaming, FleetOrders, ServingOrders, PlacementOrders, RegionOrders):
    """`n_episodes` episodes of one cluster, side by side in one set of arrays.

    Until its first `reset` an episode is one without requests. While a thread advances episodes, calls from
    another that need the arrays raise `BusyError`.

    Args:
        spec: the cluster (the same for all).
        n_episodes: how many episodes.
        capacity: room for requests per episode; grows when an episode needs more.
    """

    name = "fast"

    def __init__(self, spec: ClusterSpec, n_episodes: int = 1, capacity: int = 1) -> None:
        self.spec = spec
        self.n_episodes = n_episodes
        self._list_rows, _ = list_rows(spec)
        self.checks = OrderChecks(spec, n_episodes)
        with self._room_for(capacity):
            self.states: State = allocate(spec, n_episodes, max(capacity, 1))
            room = 2 * room_for_an_event(spec)
            self.loose: list[Loose] = [loose_arrays(room) for _ in range(n_episodes)]
        self._locate()
        self._features = [features_buffer(spec.n_instances) for _ in range(n_episodes)]
        self._router = spec.custom_router if spec.custom_router is not None else no_router()
        self._lock = Lock()
        self._advancing = np.zeros(n_episodes, bool)
        for e in range(n_episodes):
            reset_episode(self.states, e, spec, NO_REQUESTS, self.loose[e])

    def _locate(self) -> None:
        """Tell the kernels where the arrays are (again, after they were replaced)."""
        tables = [addresses(self.states, e, self.loose[e]) for e in range(self.n_episodes)]
        self._tables = np.stack(tables)
        self._handles = (
            self._tables.ctypes.data + np.arange(self.n_episodes) * (self._tables.strides[0])
        )

    @property
    def handles(self) -> NDArray[np.int64]:
        """(E,) where the kernels find the episodes.

        Raises:
            BusyError: another thread is advancing some of them.
        """
        if self._advancing.any():
            raise BusyError("another thread is advancing episodes of this batch")
        return self._handles

    @contextmanager
    def _advances(self, first: int, last: int) -> Iterator[NDArray[np.int64]]:
        """`handles`, of which episodes `first..last - 1` are this thread's for as long."""
        with self._lock:
            if self._advancing[first:last].any():
                raise BusyError(f"another thread is advancing some of episodes {first}..{last - 1}")
            self._advancing[first:last] = True
        try:
            yield self._handles
        finally:
            self._advancing[first:last] = False

    def __getstate__(self) -> dict[str, Any]:
        kept = self.__dict__.copy()
        for name in ("_tables", "_handles", "_router"):
            del kept[name]
        tops = self.states.glob["extent_top"][:, 0].tolist()
        loose = [packed(mine, top) for mine, top in zip(self.loose, tops, strict=True)]
        return {**kept, "loose": loose, "_advancing": np.zeros(self.n_episodes, bool)}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__dict__.update(kept)
        sizes = self.states.glob["extent_size"][:, 0].tolist()
        self.loose = [unpacked(mine, n) for mine, n in zip(self.loose, sizes, strict=True)]
        self._locate()
        custom = self.spec.custom_router
        self._router = custom if custom is not None else no_router()

    # ---- episodes ----

    @property
    def capacity(self) -> int:
        """Requests per episode that the arrays have room for."""
        return self.states.req.shape[1]

    def reset(self, e: int, requests: RequestTable, salt: int | None = None) -> None:
        check_requests(self.spec, requests)
        _ = self.handles[e]
        if len(requests) > self.capacity:
            self._grow(max(len(requests), self.capacity * 5 // 4))
        if self.states.const["caches"][0]:
            self._put_loose(e, with_spans(self.loose[e], 0, requests.prefixes))
        salt = requests.salt if salt is None else salt
        reset_episode(self.states, e, self.spec, requests, self.loose[e], salt)

    def _put_loose(self, e: int, loose: Loose) -> None:
        self.loose[e] = loose
        self._tables[e, len(STATE_FIELDS) :] = [array.ctypes.data for array in loose]

    def _make_room(self, e: int) -> None:
        """Twice as much for extents; nobody else is to use episode `e`."""
        had, glob = self.loose[e], self.states.glob[e, 0]
        with self._room_for(self.capacity):
            larger = loose_arrays(2 * len(had.extent))
        used = int(glob["extent_top"])
        larger.extent[:used] = had.extent[:used]
        self._put_loose(e, larger._replace(span=had.span))
        glob["extent_size"], glob["bucket_mask"] = len(larger.extent), len(larger.bucket) - 1
        prefix_cache.rehash(int(self._handles[e]), had.bucket, len(had.bucket))
        glob["error"] = NO_ERROR

    def _grow(self, capacity: int) -> None:
        _ = self.handles  # nobody may be reading the old arrays
        grown = {}
        with self._room_for(capacity):
            for name in PER_REQUEST:
                had = getattr(self.states, name)
                size = length(self.spec, name, capacity)
                grown[name] = np.zeros((*had.shape[:-1], size), had.dtype)
                for e, n in enumerate(self.states.glob["n_requests"][:, 0].tolist()):
                    # No more than there is: to copy what nobody has written yet would make memory of it.
                    used = length(self.spec, name, n)
                    _put(grown[name][e, ..., :used], had[e, ..., :used])
        self.states = self.states._replace(**grown)
        self.states.glob["capacity"] = capacity
        self._locate()

    @contextmanager
    def _room_for(self, capacity: int) -> Iterator[None]:
        """Say what there is no memory for."""
        try:
            yield
        except MemoryError as error:
            raise MemoryError(
                f"no memory for {self.n_episodes:,} episodes side by side with {capacity:,} requests each; "
                f"take fewer ({error})"
            ) from None

    def save(self, e: int) -> dict[str, NDArray[Any]]:
        _ = self.handles[e]
        n = int(self.states.glob[e, 0]["n_requests"])
        saved = {name: getattr(self.states, name)[e] for name in EPISODE_FIELDS}
        for name in PER_REQUEST:
            saved[name] = saved[name][..., : length(self.spec, name, n)]
        for name, width in used_widths(saved["inst"]).items():
            saved[name] = saved[name][:, :width]
        loose = packed(self.loose[e], int(self.states.glob[e, 0]["extent_top"]))
        copies = {name: array.copy() for name, array in saved.items()}
        return {"cluster": self.spec.digest, **copies, **loose._asdict()}

    def restore(
        self, e: int, saved: dict[str, NDArray[Any]], cluster: ClusterSpec | None = None
    ) -> None:
        _ = self.handles[e]
        parts = {"cluster", *EPISODE_FIELDS, *Loose._fields}
        if set(saved) != parts:
            odd = sorted(set(saved) ^ parts)
            raise ValueError(f"no saved episode: {odd} missing or too much")
        check_same_cluster(saved["cluster"], self.spec, cluster)
        n = len(saved["req"])
        widths: dict[str, int] = {}
        for name in ("inst", *EPISODE_FIELDS):
            mine, array = getattr(self.states, name)[e], saved[name]
            shape = mine.shape
            if name in PER_REQUEST:
                shape = (*shape[:-1], length(self.spec, name, n))
            if name in widths:
                shape = (shape[0], min(widths[name], shape[1]), *shape[2:])
            if array.shape != shape or array.dtype != mine.dtype:
                raise ValueError(
                    f"{name}: of shape {array.shape} and {array.dtype}, must be {shape}"
                )
            if name == "inst":
                widths = used_widths(array)
        for name, mine in self.loose[e]._asdict().items():
            if saved[name].dtype != mine.dtype or saved[name].ndim != 1:
                raise ValueError(f"{name}: of {saved[name].dtype}, must be one row of {mine.dtype}")
        check_lengths(saved["glob"][0], Loose(*(saved[name] for name in Loose._fields)))
        if int(saved["glob"][0]["n_requests"]) != n:
            raise ValueError(f"glob: {int(saved['glob'][0]['n_requests'])} requests, req has {n}")
        if n > self.capacity:
            self._grow(n)
        for name in EPISODE_FIELDS:
            target = getattr(self.states, name)[e]
            if name in PER_REQUEST:
                target = target[..., : length(self.spec, name, n)]
            if name in widths:
                target = target[:, : widths[name]]
            _put(target, saved[name])
        glob = self.states.glob[e, 0]
        glob["capacity"] = self.capacity
        loose = Loose(*(saved[name] for name in Loose._fields))
        self._put_loose(e, unpacked(loose, int(glob["extent_size"])))
        if cluster is not None:
            self._take_times(e, cluster)

    def _take_times(self, e: int, cluster: ClusterSpec) -> None:
        """Of this cluster, from those of `cluster`; fetches that are under way stay under way."""
        now, first = self.now_ps(e), self.spec.first_slot
        for p, (old, new) in enumerate(zip(cluster.pools, self.spec.pools, strict=True)):
            row = self.states.pool[e, p]
            row["acquire_ps"], row["load_ps"] = new.acquire_ps, new.load_ps
            row["wake_ps"] = new.wake_ps
            for before, after in zip(old.served, new.served, strict=True):
                slots = slice(first[p], first[p] + new.n_slots)
                ready = self.states.host_ready[e, slots, after.llm]
                begun, whole = ready - before.fetch_ps <= now, now + after.fetch_ps
                adjusted = np.where(begun, np.minimum(ready, whole), np.maximum(ready, whole + 1))
                ready[...] = np.where(ready > now, adjusted, ready)

    # ---- time ----

    def now_ps(self, e: int) -> int:
        return int(self.states.glob[e, 0]["now_ps"])

    @property
    def times_ps(self) -> NDArray[np.int64]:
        times: NDArray[np.int64] = self.states.glob["now_ps"][:, 0].copy()
        return times

    def next_decisions_ps(
        self, waiting: NDArray[np.int64], soon_ps: int, retry_ps: int
    ) -> NDArray[np.int64]:
        found = np.zeros(self.n_episodes, np.int64)
        gateways.next_decisions(self.handles, waiting, soon_ps, retry_ps, found)
        return found

    def advance(self, e: int, until_ps: int) -> None:
        low = self.now_ps(e)
        until = check_range("until_ps", until_ps, low, int(NEVER) - 1)
        with self._advances(e, e + 1) as handles:
            kernels.advance(int(handles[e]), until, self._router, self._features[e])
            while self.states.glob["error"][e, 0] == NEEDS_ROOM:
                self._make_room(e)
                kernels.advance(int(handles[e]), until, self._router, self._features[e])
        self._raise_errors(e)

    def advance_range(self, first: int, last: int, until_ps: NDArray[np.int64]) -> None:
        self._check_episodes(first, last)
        until_ps = np.ascontiguousarray(until_ps, np.int64)
        if until_ps.shape != (self.n_episodes,):
            raise ValueError(f"until_ps: of shape {until_ps.shape}, must be ({self.n_episodes},)")
        mine, now = until_ps[first:last], self.states.glob["now_ps"][first:last, 0]
        if ((mine < now) | (mine >= NEVER)).any():
            e = first + int(np.argmax((mine < now) | (mine >= NEVER)))
            check_range(f"until_ps[{e}]", until_ps[e], self.now_ps(e), int(NEVER) - 1)
        with self._advances(first, last) as handles:
            begin = first
            while begin < last:
                begin = kernels.advance_many(
                    handles, begin, last, until_ps, self._router, self._features[first]
                )
                if begin == last or self.states.glob["error"][begin, 0] != NEEDS_ROOM:
                    break
                self._make_room(begin)
        self._raise_any_error(first, last)

    def _check_episodes(self, first: int, last: int) -> None:
        check_range("first", first, 0, self.n_episodes)
        check_range("last", last, first, self.n_episodes)

    def _raise_errors(self, e: int, features: NDArray[np.float64] | None = None) -> None:
        """Raise what the custom router has left behind; `features` is the table that it was given."""
        glob = self.states.glob[e, 0]
        if glob["error"] != BAD_ROUTER_ANSWER:
            return
        request, answer = int(glob["error_request"]), int(glob["error_answer"])
        if answer != RAISED:
            raise RouterError(
                f"custom_router answered {answer} for request {request}: "
                "must be a candidate's row, or -1 where there is a queue"
            )
        place = int(self.find(e, np.array([request]))[0][0])
        mine = [int(self.states.req[name][e, place]) for name in ("input", "predicted", "cls")]
        table = self._features[e] if features is None else features
        what = f"custom_router raised at request {request}"
        try:  # the same call of its Python form says what
            self._router.__wrapped__(table, int(glob["error_candidates"]), request, *mine)
        except Exception as error:
            raise RouterError(f"{what}: {type(error).__name__}: {error}") from error
        raise RouterError(what)

    def _raise_any_error(self, first: int, last: int) -> None:
        for e in first + np.flatnonzero(self.states.glob["error"][first:last, 0]):
            self._raise_errors(int(e), self._features[first])

    def close_windows(self, first: int, last: int) -> None:
        self._check_episodes(first, last)
        windows.close_windows(self.handles, first, last)

    @cached_property
    def load_sources(self) -> NDArray[np.int64]:
        """(P,) source of loading of each pool."""
        return np.array([pool.load_source for pool in self.spec.pools], np.int64)

    def apply(self, orders: Orders) -> Outcome:
        self.checks.check(self, orders)
        return carry_out(self, orders, (self.n_episodes, len(self.spec.pools)), ordered)

    def call(self, kernel: Callable[..., None], *args: NDArray[Any]) -> None:
        """Let a kernel that may route do something to all episodes.

        Raises:
            RouterError: a custom router has failed.
        """
        kernel(self.handles, *args, self._router, self._features[0])
        self._raise_any_error(0, self.n_episodes)

    # ---- counts, as of `close_windows` (live arrays) ----

    @property
    def class_seen(self) -> NDArray[Any]:
        seen: NDArray[Any] = self.states.tally[list(CLASS_SEEN.names or ())]
        return seen

    @property
    def pool_seen(self) -> NDArray[Any]:
        return self.states.pool_seen

    @property
    def queue_seen(self) -> NDArray[Any]:
        return self.states.queue_seen

    def count_late(self, e: int, name: str, count: NDArray[np.int64]) -> None:
        self.states.tally[name][e] += count

    # ---- reading many episodes ----

    @property
    def n_finished(self) -> NDArray[np.int64]:
        finished: NDArray[np.int64] = self.states.glob["n_finished"][:, 0].copy()
        return finished

    @property
    def n_in_gateways(self) -> NDArray[np.int64]:
        found = np.zeros(self.n_episodes, np.int64)
        gateways.count_waiting(self.handles, found)
        return found

    @property
    def n_swaps(self) -> NDArray[np.int64]:
        swaps: NDArray[np.int64] = self.states.inst["swaps"].sum(axis=1)
        return swaps

    def states_of_instances(self) -> NDArray[np.int64]:
        states: NDArray[np.int64] = self.states.inst["state"].astype(np.int64)
        return states

    def ready_ps(self, first: int, last: int) -> NDArray[np.int64]:
        """(n, I) when instances that are acquired or loaded will serve; -1: none is on its way."""
        return shown.ready_ps(self, first, last)

    def virtual_queues(self, first: int, last: int) -> VirtualQueues:
        return shown.virtual_queues(self, first, last)

    def gateways(self, first: int, last: int, with_workers: bool) -> Gateways:
        return shown.gateways(self, first, last, with_workers)

    def weights(self, first: int, last: int) -> Weights:
        return shown.weights(self, first, last)

    # ---- reading one episode ----

    def finished_since(self, e: int, before: int) -> NDArray[Any]:
        return shown.finished(self, e, before)

    def running_by_class(self, e: int) -> NDArray[np.int64]:
        running: NDArray[np.int64] = self.states.running_cls[e].copy()
        return running

    def weights_ready_ps(self, e: int) -> NDArray[np.int64]:
        ready: NDArray[np.int64] = self.states.host_ready[e].copy()
        return ready

    def host_has(self, e: int, host: int, llm: int) -> bool:
        host = check_range("host", host, 0, self.spec.n_hosts - 1)
        llm = check_range("llm", llm, 0, self.spec.n_llms - 1)
        return bool(will_have(int(self.handles[e]), host, llm))

    def results(self, e: int) -> NDArray[Any]:
        out = np.zeros(int(self.states.glob[e, 0]["n_requests"]), RESULT_DTYPE)
        observe.read_results(int(self.handles[e]), out)
        return out

    def instances(self, e: int) -> NDArray[Any]:
        out = np.zeros(self.spec.n_instances, INSTANCE_DTYPE)
        observe.read_instances(int(self.handles[e]), out)
        return out

    def cached_blocks(self, e: int) -> list[list[tuple[int, int]]]:
        """Per instance the blocks in its prefix cache that no request holds, in the order in which they go.

        Of each the name of the sequence of tokens (`Prefixes`), and how many of its blocks come before.
        """
        extent, first = self.loose[e].extent, self.states.v1["oldest"][e].tolist()
        found: list[list[tuple[int, int]]] = []
        for i, slot in enumerate(self.instances(e)):
            v1, blocks = self.spec.pools[self.spec.pool_of_slot[i]].v1, []
            x = first[i] if v1 is not None and v1.prefix_cache else -1
            while x >= 0:
                mine = extent[x]
                owner, end = int(mine["owner"]), int(mine["hi"])
                blocks += [(owner, k) for k in range(end - 1, int(mine["lo"]) - 1, -1)]
                x = int(mine["newer"])
            # Those that the segment under way has taken by now are gone.
            there = int(slot["kv_cached"]) // v1.block_tokens if v1 is not None else 0
            found.append(blocks[len(blocks) - there :])
        return found

    def _list(self, e: int, row: int) -> list[int]:
        out = np.zeros(int(self.states.lists[e, row, 2]), np.int64)
        observe.read_list(int(self.handles[e]), row, out)
        return self._named(e, out).tolist()

    def queues(self, e: int) -> list[list[int]]:
        """Request ids in each shared queue, head first."""
        return [self._list(e, self._queue_row(q)) for q in range(len(self.spec.queue_llm))]

    def queued(self, e: int, queue: int) -> NDArray[Any]:
        out = np.empty(int(self.states.lists[e, self._queue_row(queue), 2]), QUEUED_DTYPE)
        queues.read_queue(int(self.handles[e]), queue, out, 0)
        out["request"] = self._named(e, out["request"])
        return out

    def waiting(self, e: int) -> NDArray[Any]:
        first = self._queue_row(0) if self.spec.queue_llm else 0
        counts = self.states.lists[e, first : first + len(self.spec.queue_llm), 2]
        out = np.empty(int(counts.sum()), QUEUED_DTYPE)
        queues.read_waiting(int(self.handles[e]), out)
        out["request"] = self._named(e, out["request"])
        return out

    def running_from(self, e: int) -> NDArray[np.int64]:
        out = np.zeros((self.spec.n_instances, len(self.spec.queue_llm)), np.int64)
        observe.read_running_from(int(self.handles[e]), out)
        return out

    def pulls(self, e: int) -> tuple[tuple[int, ...], ...]:
        counts, lists = self.states.inst[e]["n_pull"], self.states.pull[e]
        return tuple(tuple(row[:n]) for row, n in zip(lists.tolist(), counts, strict=True))

    def runs(self, e: int, queue: int) -> NDArray[Any]:
        self._queue_row(queue)
        out = np.empty(int(self.states.queue[e, queue]["runs"]), RUN_DTYPE)
        queues.read_runs(int(self.handles[e]), queue, out)
        return out

    def _queue_row(self, queue: int) -> int:
        check_range("queue", queue, 0, len(self.spec.queue_llm) - 1)
        return self._list_rows["queue"] + queue

    def gateway(self, e: int, llm: int) -> list[int]:
        check_range("llm", llm, 0, self.spec.n_llms - 1)
        return self._list(e, self._list_rows["gateway"] + llm)

    def gpu_ps(self, e: int) -> list[int]:
        """Billed GPU-picoseconds per pool."""
        out = np.zeros(self.spec.n_instances, np.int64)
        observe.read_billed(int(self.handles[e]), out)
        billed = out.tolist()  # a pool's sum may be more than 64 bits
        return [
            sum(billed[first : first + pool.n_slots]) * pool.gpus
            for first, pool in zip(self.spec.first_slot, self.spec.pools, strict=False)
        ]

    def finish_log(self, e: int) -> list[int]:
        """Request ids in the order in which they finished, of those that are known (see `retire`)."""
        log = self.states.log[e, 0, : int(self.states.glob[e, 0]["n_finished"])]
        return self._named(e, log).tolist()

    def conservation(self, e: int) -> dict[RequestState, int]:
        """How many requests are in each state; the sum is the number of requests."""
        out = np.zeros(len(RequestState), np.int64)
        observe.count_states(int(self.handles[e]), out)
        return {state: int(out[state]) for state in RequestState}


class FastEngine:
    """One episode of the fast engine: the calls of `ReferenceEngine`, answered by `EngineBatch`."""

    def __init__(self, spec: ClusterSpec, requests: RequestTable, salt: int | None = None) -> None:
        self.batch = EngineBatch(spec, 1, len(requests))
        self.batch.reset(0, requests, salt)
        self.spec = spec
        self.requests = requests

    @property
    def now_ps(self) -> int:
        """The time it stands at."""
        return self.batch.now_ps(0)

    def __getattr__(self, name: str) -> Any:
        if name == "batch" or name.startswith("_"):
            raise AttributeError(name)
        return partial(getattr(self.batch, name), 0)


__all__ = ["EngineBatch", "FastEngine", "RouterError"]
