"""The border between control and the simulator: what every engine does, and how to get one."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.observed import Gateways, VirtualQueues, Weights
from llmscale_env.sim.orders import Orders, Outcome
from llmscale_env.sim.spec import ClusterSpec, PlacementSpec
from llmscale_env.sim.streaming import Retired
from llmscale_env.workload.requests import RequestTable


class Engine(Protocol):
    """Episodes of one cluster, side by side: `E` of them with `I` instance slots in `P` pools.

    Times are picoseconds. Columns of structured arrays stand in `sim.observed`, the meaning of every order in
    docs/engine.md.

    Attributes:
        spec: the cluster (the same for all).
        n_episodes: how many episodes.
        name: by which `make_engine` makes it.
    """

    spec: ClusterSpec
    n_episodes: int
    name: str

    # ---- time ----

    def reset(self, e: int, requests: RequestTable, salt: int | None = None) -> None:
        """Start episode `e` anew at time 0 with `requests`; `salt` is in place of the table's."""

    def extend(self, e: int, requests: RequestTable) -> None:
        """Later requests of episode `e`, whose ids go on from those before; its salt is not looked at.

        Raises:
            ValueError: the cluster has flows; an arrival before the present time or before the latest
                one so far; a region, LLM or class that it does not have.
        """

    def retire(self, e: int) -> Retired:
        """Forget the requests of episode `e` that are done, after they have been counted.

        The best time is right after `close_windows`: otherwise the largest latencies of the window
        are of those since only, and `finish_log` begins anew.

        Raises:
            ValueError: the cluster has flows.
        """

    def imagine(
        self,
        e: int,
        ids: NDArray[np.int64],
        output_tokens: NDArray[np.int64],
        later: RequestTable,
    ) -> None:
        """Episode `e` goes on as it might: these requests have other lengths, others come (section 20).

        Args:
            e: the episode.
            ids: (n,) of requests that have arrived and are not done.
            output_tokens: (n,) their new lengths; one that is shorter than what is out already, or is being
                made, becomes as long as that.
            later: what arrives from now on in place of all that was to come; ids go on from those that have
                arrived, and the salt is not looked at.

        Raises:
            ValueError: the cluster has flows; an id of another request, or one twice; no length, or one
                that no instance has memory for; as `extend` about `later`. Nothing has changed then.
        """

    def save_under_way(self, e: int) -> dict[str, NDArray[Any]]:
        """As `save`, but only with requests that have arrived and are not done: no history, and no future.

        It is what `save` gives of a copy in which nothing was to arrive any more (`imagine`) and requests
        that are done were forgotten (`retire`). Output lengths are the true ones, for `imagine` to replace.

        Raises:
            ValueError: the cluster has flows.
        """

    def ids(self, e: int) -> NDArray[np.int64]:
        """(n,) ids of the requests that episode `e` knows, in the order of `results`."""

    def advance(self, e: int, until_ps: int) -> None:
        """Process every event of episode `e` before `until_ps`."""

    def advance_range(self, first: int, last: int, until_ps: NDArray[np.int64]) -> None:
        """`advance` episodes `first..last - 1` in one call, each to its own `until_ps[e]` (E,).

        The kernel releases the GIL: ranges that do not overlap can be advanced on threads.

        Raises:
            BusyError: another thread is advancing some of them.
            ValueError: no such episodes, or a time that is before now or too late.
        """

    @property
    def times_ps(self) -> NDArray[np.int64]:
        """(E,) present time of every episode; a copy."""

    def now_ps(self, e: int) -> int:
        """Present time of episode `e`."""

    def next_decisions_ps(
        self, waiting: NDArray[np.int64], soon_ps: int, retry_ps: int
    ) -> NDArray[np.int64]:
        """(E,) when the next arrival has come, or sooner if requests wait in gateways.

        Args:
            waiting: (E,) requests that were in gateways before the orders of now.
            soon_ps, retry_ps: time until those in gateways are looked at again: if one has left, if not.
        """

    def save(self, e: int) -> dict[str, NDArray[Any]]:
        """A copy of episode `e`: plain arrays that can be pickled and `restore`d; `cluster` says of which."""

    def restore(
        self, e: int, saved: dict[str, NDArray[Any]], cluster: ClusterSpec | None = None
    ) -> None:
        """Put episode `e` where `save` was called (of this batch or another of the same spec).

        Args:
            e: the episode.
            saved: from `save`.
            cluster: whose episode it is; None: this one's. It may differ from this one in times alone:
                iterations, loads and swaps that begin from now on take those of this one. A fetch that is
                under way takes at most as long as one that begins now.

        Raises:
            ValueError: `saved` is no saved episode, or one of another cluster; nothing has changed then.
        """

    # ---- counts, as of `close_windows`; live arrays ----

    def close_windows(self, first: int, last: int) -> None:
        """Count what happened since the last call, for episodes `first..last - 1`.

        Fills `class_seen`, `pool_seen` and `queue_seen`; once per control interval.
        """

    @property
    def class_seen(self) -> NDArray[Any]:
        """(E, C) CLASS_SEEN."""

    @property
    def pool_seen(self) -> NDArray[Any]:
        """(E, P) POOL_SEEN."""

    @property
    def queue_seen(self) -> NDArray[Any]:
        """(E, Q) QUEUE_SEEN; a cluster without shared queues has one that is empty."""

    def count_late(self, e: int, name: str, count: NDArray[np.int64]) -> None:
        """Count requests of episode `e` besides as `ttft_late` or `itl_late`: (C,) of each class."""

    # ---- what many episodes show ----

    @property
    def n_finished(self) -> NDArray[np.int64]:
        """(E,) requests that have finished, of those that are known (see `retire`); a copy."""

    @property
    def n_in_gateways(self) -> NDArray[np.int64]:
        """(E,) requests that wait in gateways before prefill."""

    @property
    def n_swaps(self) -> NDArray[np.int64]:
        """(E,) swaps of models so far."""

    def states_of_instances(self) -> NDArray[np.int64]:
        """(E, I) `InstanceState` of every slot."""

    def ready_ps(self, first: int, last: int) -> NDArray[np.int64]:
        """(n, I) when instances that are acquired or loaded will serve; 0: not known, -1: others."""

    def virtual_queues(self, first: int, last: int) -> VirtualQueues:
        """Episodes `first..last - 1` as they stand (some arrays are live: read them at once)."""

    def gateways(self, first: int, last: int, with_workers: bool) -> Gateways:
        """Episodes `first..last - 1` as they stand."""

    def weights(self, first: int, last: int) -> Weights:
        """Episodes `first..last - 1` as they stand."""

    # ---- what one episode shows ----

    def results(self, e: int) -> NDArray[Any]:
        """(n,) RESULT_DTYPE, every request of the episode that is known (see `ids`) as it stands."""

    def finished_since(self, e: int, before: int) -> NDArray[Any]:
        """(n,) FINISHED_DTYPE, requests that finished after the first `before` ones, in order."""

    def instances(self, e: int) -> NDArray[Any]:
        """(I,) INSTANCE_DTYPE, every slot at the present time."""

    def running_by_class(self, e: int) -> NDArray[np.int64]:
        """(I, C) running requests."""

    def running_from(self, e: int) -> NDArray[np.int64]:
        """(I, Q) running requests of every instance by the shared queue that they came from."""

    def loading(self, e: int) -> NDArray[Any]:
        """(I,) LOADING_DTYPE, the weights of every slot."""

    def homes(self, e: int) -> NDArray[Any]:
        """(M,) HOME_DTYPE, where each LLM's copy is kept."""

    def weights_ready_ps(self, e: int) -> NDArray[np.int64]:
        """(I, M) when weights are in an instance's host memory, -1: they are not on their way."""

    def host_has(self, e: int, host: int, llm: int) -> bool:
        """Whether a machine has an LLM's weights in memory, or is to have them as its home."""

    def reports(self, e: int) -> NDArray[Any]:
        """(I,) REPORT_DTYPE, the last iterations of every slot."""

    def spot(self, e: int) -> NDArray[Any]:
        """(P,) SPOT_DTYPE, spot VMs and what came of them."""

    # ---- requests that wait or run ----

    def look_up(self, episodes: NDArray[np.int64], requests: NDArray[np.int64]) -> NDArray[Any]:
        """(n,) FOUND_DTYPE, how these requests (by id) of these episodes stand; both (n,)."""

    def queued(self, e: int, queue: int) -> NDArray[Any]:
        """(n,) QUEUED_DTYPE, the requests in a shared queue, head first."""

    def waiting(self, e: int) -> NDArray[Any]:
        """(n,) QUEUED_DTYPE, the requests in all shared queues, queue by queue, head first."""

    def runs(self, e: int, queue: int) -> NDArray[Any]:
        """(n,) RUN_DTYPE, the same in runs of consecutive requests that are alike."""

    def pulls(self, e: int) -> tuple[tuple[int, ...], ...]:
        """Shared queues that each instance pulls from, in order."""

    def own_queue(self, e: int, instance: int) -> list[int]:
        """Request ids in an instance's own queue, head first; of a DECODE instance without reservation."""

    def gateway(self, e: int, llm: int) -> list[int]:
        """Request ids that wait for any instance of an LLM, head first."""

    def decode_gateway(self, e: int, llm: int) -> list[int]:
        """Request ids that have been prefilled and wait for any decode instance, head first."""

    def under_way(self, e: int) -> NDArray[Any]:
        """(n,) UNDER_WAY_DTYPE, the requests in gateways and at instances, list by list."""

    def placement(self, e: int, llm: int, slo_class: int) -> PlacementSpec | None:
        """What best fit goes by now for a class; None: its route has no placement."""

    def regional(
        self, e: int, llm: int, slo_class: int
    ) -> tuple[list[int], tuple[tuple[int, ...], ...]]:
        """Thresholds of a route in millionths by region; its order of regions by region of the client."""

    def manager_ppm(self, e: int) -> NDArray[np.int64]:
        """(K, 2) utilisations below which each manager takes one request, and two."""

    # ---- orders ----

    def apply(self, orders: Orders) -> Outcome:
        """Carry out orders now (`sim.orders`); `orders` stays as it is.

        A single order that is not possible is refused by itself. Arrays are carried out whole.

        Raises:
            ValueError: as `OrderChecks.check`; nothing has changed then.
            RouterError: a custom router has failed.
        """


ENGINES = ("fast", "reference")
"""The engines by name; docs/engine.md is what both do."""


def make_engine(spec: ClusterSpec, n_episodes: int = 1, engine: str = "fast") -> Engine:
    """An engine of a cluster, each of its episodes one without requests until its first `reset`.

    Args:
        spec: the cluster.
        n_episodes: how many episodes.
        engine: "fast", or "reference": the readable one, about a hundred times slower.

    Raises:
        ValueError: an engine of another name.
    """
    if engine == "reference":
        from llmscale_env.sim.reference import ReferenceBatch

        return ReferenceBatch(spec, n_episodes)
    if engine != "fast":
        raise ValueError(f"engine = {engine!r}: must be one of {list(ENGINES)}")
    from llmscale_env.sim.fast import EngineBatch

    return EngineBatch(spec, n_episodes)
