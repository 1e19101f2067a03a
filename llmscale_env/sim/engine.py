"""The border between control and the simulator: what every engine does, and how to get one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.observed import Gateways, VirtualQueues, Weights
from llmscale_env.sim.orders import Orders
from llmscale_env.sim.spec import ClusterSpec, PlacementSpec
from llmscale_env.sim.spec.regions import ScalingThresholds
from llmscale_env.sim.streaming import Retired
from llmscale_env.workload.requests import RequestTable


class Engine(Protocol):
    """Episodes of one cluster, side by side: `E` of them with `I` instance slots in `P` pools.

    Times are picoseconds. Columns of structured arrays stand in `sim.observed`, the meaning of every order in
    docs/engine.md. An order that is not possible raises `ValueError` and changes nothing.

    Attributes:
        spec: the cluster (the same for all).
        n_episodes: how many episodes.
    """

    spec: ClusterSpec
    n_episodes: int

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

    def restore(self, e: int, saved: dict[str, NDArray[Any]]) -> None:
        """Put episode `e` where `save` was called (of this batch or another of the same spec).

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

    # ---- orders for all episodes ----

    def apply(self, orders: Orders) -> NDArray[np.int64]:
        """Carry out orders for all episodes now, or none of them; `orders` stays as it is.

        Returns:
            (E,) how many instances could not be started: there were no GPUs or VMs, or a source of weights
            had gone by then. `orders.impossible` counts the other choices.

        Raises:
            ValueError: as `OrderChecks.check`; nothing has changed then.
        """

    # ---- orders for one episode: fleet ----

    def set_target(self, e: int, pool: int, count: int, source: int | None = None) -> int:
        """Order `count` instances for a pool; returns how many could not be started."""

    def drain(self, e: int, instance: int) -> None:
        """Drain an active instance."""

    def mutate(self, e: int, instance: int) -> None:
        """Let an active instance drain and its twin serve in its place, with the weights that are there."""

    def scale(
        self,
        e: int,
        slots: Sequence[int],
        sources: Sequence[int],
        partners: Sequence[int] | None = None,
    ) -> None:
        """Start slots, each loading its layers from where it is told: all of them, or none.

        Args:
            e: episode.
            slots: `OFF` ones, in the order in which they are started.
            sources: of each the source code: a slot of the same LLM that has weights, is getting them
                or comes earlier in `slots`; the number of slots plus a host that has them in memory; or
                `FROM_SSD`.
            partners: of each an active instance of its pool that it helps while it loads, or -1; None:
                nobody helps.
        """

    def fail(self, e: int, instance: int) -> None:
        """Let an instance break down; it is repaired and loads anew, unless it was draining."""

    def fail_host(self, e: int, host: int) -> None:
        """Let all of a host break down: its instances fail, what it had in memory is lost."""

    # ---- orders for one episode: serving ----

    def set_batch_limit(self, e: int, pool: int, limit: int) -> None:
        """Set the batch limit of every instance of a pool."""

    def set_instance_limit(self, e: int, instance: int, limit: int) -> None:
        """Set the batch limit of one instance."""

    def set_controller(self, e: int, pool: int, kind: int) -> None:
        """Set who moves the batch limit of a pool's instances."""

    def set_overflow_share(self, e: int, llm: int, slo_class: int, share: float) -> None:
        """Set the share of a class's requests that try the overflow pools first."""

    def set_router(self, e: int, llm: int, slo_class: int, kind: int) -> None:
        """Set the routing rule of a class's arrivals from now on."""

    def evict(self, e: int, instance: int, count: int) -> None:
        """Order the eviction of running requests of lower priority at the next boundary."""

    def move_waiting(self, e: int, instance: int, to: int, count: int) -> None:
        """Move the last `count` requests that wait at an active instance to the end of another's queue."""

    # ---- orders for one episode: virtual queues ----

    def set_pull(self, e: int, instance: int, queues: Sequence[int]) -> None:
        """Set the shared queues that an instance pulls from, in order: its virtual queue."""

    def set_operations(
        self,
        e: int,
        pool: int,
        pull_rule: int | None = None,
        evicts_in_order: bool | None = None,
        swap_flushes: bool | None = None,
        static_batch: bool | None = None,
    ) -> None:
        """Change what a pool's instances do by themselves; None: as it is."""

    def set_arrival_queues(
        self, e: int, llm: int, slo_class: int, uppers: Sequence[int], queues: Sequence[int]
    ) -> None:
        """Set where a class's requests join shared queues from now on, by their input tokens.

        `queues[k]` takes requests of at most `uppers[k]` (rising), the last one those above all.
        """

    def regroup(self, e: int, requests: Sequence[int], queues: Sequence[int]) -> None:
        """Move waiting requests to the ends of shared queues, in the order in which they are named."""

    # ---- orders for one episode: placement ----

    def route_gateway(self, e: int, llm: int) -> None:
        """Route again what waits in an LLM's gateway, then what waits in its decode gateway."""

    def assign(self, e: int, requests: Sequence[int], instances: Sequence[int]) -> None:
        """Put waiting requests at the ends of instances' own queues, in the order given.

        Args:
            e: episode.
            requests: ids, all different, from gateways and own queues (without KV memory reserved).
            instances: for each where it goes.

        Raises:
            ValueError: one may not go there; nobody has moved.
        """

    def set_predictions(self, e: int, requests: Sequence[int], tokens: Sequence[int]) -> None:
        """New predicted output lengths, in all, of requests that are under way."""

    def set_profile(self, e: int, instance: int, profile: int) -> None:
        """Iterations of an instance take the times of another profile from now on."""

    def set_decode_router(self, e: int, llm: int, slo_class: int, kind: int) -> None:
        """Set the rule by which a class's handed-over requests are routed from now on."""

    def placement(self, e: int, llm: int, slo_class: int) -> PlacementSpec | None:
        """What best fit goes by now for a class; None: its route has no placement."""

    def set_placement(self, e: int, llm: int, slo_class: int, placement: PlacementSpec) -> None:
        """Set what best fit goes by from now on, for a class that has a placement."""

    def set_placement_model(self, e: int, instance: int, model: Sequence[float] | None) -> None:
        """Coefficients (c1, k1, c3, c2, k2) of one instance for best fit; None: those of the route."""

    # ---- orders for one episode: regions ----

    def regional(
        self, e: int, llm: int, slo_class: int
    ) -> tuple[list[int], tuple[tuple[int, ...], ...]]:
        """Thresholds of a route in millionths by region; its order of regions by region of the client."""

    def set_regional(
        self,
        e: int,
        llm: int,
        slo_class: int,
        threshold_ppm: int | Sequence[int] | None = None,
        preference: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Change thresholds and order of regions of a route that has a preference; None: as it is.

        Args:
            e: episode.
            llm, slo_class: whose route.
            threshold_ppm: utilisation below which a region is taken in that order: one for all, or one by
                region.
            preference: by region of the client its regions in order.
        """

    def manager_ppm(self, e: int) -> NDArray[np.int64]:
        """(K, 2) utilisations below which each manager takes one request, and two."""

    def set_managers(self, e: int, one_ppm: Sequence[int], two_ppm: Sequence[int]) -> None:
        """Set the utilisations below which each manager takes one request, and two."""

    def set_scaling(
        self,
        e: int,
        pool: int,
        kind: int,
        target: int = -1,
        forecast_utps: int = 0,
        thresholds: ScalingThresholds | None = None,
    ) -> None:
        """Begin an hour of a pool's rule.

        Args:
            e: episode.
            pool: one that has `scaling`.
            kind: `ScalingKind` from now on.
            target: instances that are planned for; -1: none.
            forecast_utps: load that is expected, in millionths of tokens per second.
            thresholds: when the rule acts from now on; None: by the pool's own numbers.
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
