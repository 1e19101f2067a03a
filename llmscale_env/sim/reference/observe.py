"""What the reference engine shows at the present time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import simpy
from numpy.typing import NDArray

from llmscale_env.sim.observed import (
    FINISHED_DTYPE,
    HOME_DTYPE,
    INSTANCE_DTYPE,
    LOADING_DTYPE,
    QUEUED_DTYPE,
    REPORT_DTYPE,
    RESULT_DTYPE,
    RUN_DTYPE,
    UNDER_WAY_DTYPE,
)
from llmscale_env.sim.reference.state.request import Request
from llmscale_env.sim.reference.weights.parameter_pool import ParameterPool
from llmscale_env.sim.spec import ClusterSpec, InstanceState, PlacementSpec, RequestState
from llmscale_env.sim.spec.checks import check_class, check_range

if TYPE_CHECKING:
    from llmscale_env.sim.reference.instance import Instance
    from llmscale_env.sim.reference.serving.region_routing import Regions
    from llmscale_env.sim.reference.serving.routing import Router


class Observation:
    """The part of `ReferenceEngine` that moves nothing."""

    spec: ClusterSpec
    requests: list[Request]
    by_id: dict[int, Request]
    queues_of: list[deque[Request]]
    gateways: list[deque[Request]]
    decode_gateways: list[deque[Request]]
    finished: list[int]
    parameters: ParameterPool
    instances_of: list[list[Instance]]
    all_instances: list[Instance]
    router: Router
    regions: Regions
    clock: simpy.Environment

    @property
    def now_ps(self) -> int:
        """The time it stands at."""
        return int(self.clock.now)

    def ids(self) -> NDArray[np.int64]:
        """(n,) ids of the requests that are known, in the order of `results`."""
        return np.array([r.id for r in self.requests], np.int64)

    def results(self) -> NDArray[np.void]:
        """(n,) `RESULT_DTYPE`: what has happened to every request so far."""
        rows = [
            (
                int(r.state),
                r.instance,
                r.admitted_ps,
                r.first_token_ps,
                r.finished_ps,
                r.max_itl_ps,
                r.emitted,
                r.preemptions,
                r.evictions,
                r.restarts,
                r.cached_tokens,
            )
            for r in self.requests
        ]
        return np.array(rows, dtype=RESULT_DTYPE)

    def instances(self) -> NDArray[np.void]:
        """(n_instances,) `INSTANCE_DTYPE`."""
        rows = [
            (
                int(i.state),
                i.source,
                i.llm,
                i.batch_limit,
                len(i.running),
                len(i.own_queue),
                len(i.preempted),
                i.kv_tokens,
                i.host_kv_bytes,
                i.loaded_ps,
                i.iterations,
                i.tokens,
                i.swaps,
                i.failures,
                len(i.handover.in_flight),
                len(i.handover.landed),
                i.handover.held_tokens,
                i.scheduler.kv_cached,
                i.scheduler.asked_tokens,
                i.scheduler.hit_tokens,
            )
            for i in self.all_instances
        ]
        return np.array(rows, dtype=INSTANCE_DTYPE)

    def cached_blocks(self) -> list[list[tuple[int, int]]]:
        """Per instance the blocks in its prefix cache that no request holds, in the order in which they go.

        Of each the name of the sequence of tokens (`Prefixes`), and how many of its blocks come before.
        """
        return [i.scheduler.cached_blocks for i in self.all_instances]

    def queues(self) -> list[list[int]]:
        """Request ids in each shared queue, head first."""
        return [[r.id for r in queue] for queue in self.queues_of]

    def gateway(self, llm: int) -> list[int]:
        llm = check_range("llm", llm, 0, self.spec.n_llms - 1)
        return [r.id for r in self.gateways[llm]]

    def gpu_ps(self) -> list[int]:
        """GPU-picoseconds billed to each pool up to now."""
        return [
            sum(i.billed_until(self.now_ps) for i in instances) * pool.gpus
            for pool, instances in zip(self.spec.pools, self.instances_of, strict=True)
        ]

    def finish_log(self) -> list[int]:
        """Request ids in order of finishing."""
        return list(self.finished)

    def conservation(self) -> dict[RequestState, int]:
        """How many requests are in each state."""
        counts = Counter(r.state for r in self.requests)
        return {state: counts[state] for state in RequestState}

    def own_queue(self, instance: int) -> list[int]:
        instance = check_range("instance", instance, 0, len(self.all_instances) - 1)
        return [r.id for r in self.all_instances[instance].own_queue]

    def decode_gateway(self, llm: int) -> list[int]:
        llm = check_range("llm", llm, 0, self.spec.n_llms - 1)
        return [r.id for r in self.decode_gateways[llm]]

    def reports(self) -> NDArray[np.void]:
        """(n_instances,) `REPORT_DTYPE`."""
        return np.array([tuple(i.report.values()) for i in self.all_instances], dtype=REPORT_DTYPE)

    def loading(self) -> NDArray[np.void]:
        """(n_instances,) `LOADING_DTYPE`."""
        rows = []
        for i in self.all_instances:
            partner = i.leading.helper or i.helping.leader
            index = -1 if partner is None else partner.index
            batches = len(i.leading.batches)
            rows.append((i.loader.has, i.loader.source, index, batches, i.helping.helped_ps))
        return np.array(rows, dtype=LOADING_DTYPE)

    def homes(self) -> NDArray[np.void]:
        """(n_llms,) `HOME_DTYPE`."""
        return np.array(
            list(zip(self.parameters.homes, self.parameters.there, strict=True)), dtype=HOME_DTYPE
        )

    # --- requests that wait or run ---

    def queued(self, queue: int) -> NDArray[np.void]:
        """(n,) `QUEUED_DTYPE`, the requests in a shared queue, head first."""
        queue = check_range("queue", queue, 0, len(self.queues_of) - 1)
        rows = [
            (
                r.id,
                r.arrival_ps,
                r.slo_class,
                r.input_tokens,
                r.predicted_output_tokens,
                r.emitted,
                queue,
                r.llm,
                r.first_token_ps >= 0,
            )
            for r in self.queues_of[queue]
        ]
        return np.array(rows, dtype=QUEUED_DTYPE)

    def waiting(self) -> NDArray[np.void]:
        """(n,) `QUEUED_DTYPE`, the requests in all shared queues, queue by queue, head first."""
        parts = [self.queued(q) for q in range(len(self.queues_of))]
        return np.concatenate([np.zeros(0, QUEUED_DTYPE), *parts])

    def runs(self, queue: int) -> NDArray[np.void]:
        """(n,) `RUN_DTYPE`, the same in runs of consecutive requests that are alike."""
        queue = check_range("queue", queue, 0, len(self.queues_of) - 1)
        alike = groupby(
            self.queues_of[queue], lambda r: (r.arrival_ps, r.slo_class, r.first_token_ps >= 0)
        )
        rows = [(*what, sum(1 for _ in members)) for what, members in alike]
        return np.array(rows, dtype=RUN_DTYPE)

    def under_way(self) -> NDArray[np.void]:
        """(n,) `UNDER_WAY_DTYPE`, the requests in gateways and at instances, list by list."""
        # (where, whether its requests may be assigned, they)
        lists: list[tuple[int, bool, Iterable[Request]]] = []
        for before, between in zip(self.gateways, self.decode_gateways, strict=True):
            lists += [(-1, True, before), (-1, True, between)]
        for i in self.all_instances:
            evictable = i.evictable()
            others = [r for r in i.running if r not in evictable]
            here = (
                i.own_queue,
                i.preempted,
                i.handover.in_flight,
                i.handover.landed,
                others,
                evictable,
            )
            lists += [(i.index, requests is i.own_queue, requests) for requests in here]
        rows = [
            (
                r.id,
                r.arrival_ps,
                r.llm,
                r.slo_class,
                instance,
                int(r.state),
                movable,
                r.input_tokens,
                r.predicted_output_tokens,
                r.emitted,
                r.first_token_ps,
            )
            for instance, movable, requests in lists
            for r in requests
        ]
        return np.array(rows, dtype=UNDER_WAY_DTYPE)

    def finished_since(self, before: int) -> NDArray[np.void]:
        """(n,) `FINISHED_DTYPE`, requests that finished after the first `before` ones, in order."""
        rows = [
            (
                r.id,
                r.llm,
                r.region,
                r.slo_class,
                r.input_tokens,
                r.output_tokens,
                r.first_token_ps - r.arrival_ps,
            )
            for r in (self.by_id[k] for k in self.finished[before:])
        ]
        return np.array(rows, dtype=FINISHED_DTYPE)

    def running_by_class(self) -> NDArray[np.int64]:
        found = np.zeros((len(self.all_instances), len(self.spec.classes)), np.int64)
        for i in self.all_instances:
            for r in i.running:
                found[i.index, r.slo_class] += 1
        return found

    def running_from(self) -> NDArray[np.int64]:
        """(I, Q) running and preempted requests of every instance by the shared queue that they came from."""
        found = np.zeros((len(self.all_instances), len(self.queues_of)), np.int64)
        for i in self.all_instances:
            for r in (*i.running, *i.preempted):
                if r.queue >= 0:
                    found[i.index, r.queue] += 1
        return found

    def pulls(self) -> tuple[tuple[int, ...], ...]:
        return tuple(i.pull for i in self.all_instances)

    # --- weights, rules ---

    def ready_ps(self) -> NDArray[np.int64]:
        """(I,) when instances that are acquired or loaded will serve; 0: not known, -1: others."""
        known = {
            InstanceState.ACQUIRING: lambda i: i.expected_ps,
            InstanceState.LOADING: lambda i: max(0, i.loaded_ps),
        }
        return np.array(
            [known[i.state](i) if i.state in known else -1 for i in self.all_instances], np.int64
        )

    def weights_ready_ps(self) -> NDArray[np.int64]:
        llms = range(self.spec.n_llms)
        rows = [[i.weights.ready_ps.get(m, -1) for m in llms] for i in self.all_instances]
        return np.array(rows, np.int64)

    def host_has(self, host: int, llm: int) -> bool:
        host = check_range("host", host, 0, self.spec.n_hosts - 1)
        llm = check_range("llm", llm, 0, self.spec.n_llms - 1)
        return self.parameters.host_will_have(host, llm)

    def placement(self, llm: int, slo_class: int) -> PlacementSpec | None:
        return self.router.placements[check_class(self.spec, llm, slo_class)]

    def regional(self, llm: int, slo_class: int) -> tuple[list[int], tuple[tuple[int, ...], ...]]:
        key = check_class(self.spec, llm, slo_class)
        order = tuple(tuple(int(j) for j in row) for row in self.regions.preference[key])
        return list(self.regions.takes[key]), order

    def manager_ppm(self) -> NDArray[np.int64]:
        return np.stack(
            [np.array(ppm, np.int64) for ppm in (self.regions.one_ppm, self.regions.two_ppm)],
            axis=-1,
        )
