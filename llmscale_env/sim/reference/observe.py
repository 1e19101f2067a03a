"""What the reference engine shows at the present time."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

import numpy as np
import simpy
from numpy.typing import NDArray

from llmscale_env.sim.checks import check_range
from llmscale_env.sim.reference.parameter_pool import ParameterPool
from llmscale_env.sim.reference.request import Request
from llmscale_env.sim.spec import (
    HOME_DTYPE,
    INSTANCE_DTYPE,
    LOADING_DTYPE,
    REPORT_DTYPE,
    RESULT_DTYPE,
    ClusterSpec,
    RequestState,
)

if TYPE_CHECKING:
    from llmscale_env.sim.reference.instance import Instance


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
                len(i.desk.in_flight),
                len(i.desk.landed),
                i.desk.held_tokens,
            )
            for i in self.all_instances
        ]
        return np.array(rows, dtype=INSTANCE_DTYPE)

    def queues(self) -> list[list[int]]:
        """Request ids in each shared queue, head first."""
        return [[r.id for r in queue] for queue in self.queues_of]

    def gateway(self, llm: int) -> list[int]:
        """Request ids that wait for any instance of an LLM, head first."""
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
        """Request ids in an instance's own queue, head first; of a DECODE instance without reservation."""
        instance = check_range("instance", instance, 0, len(self.all_instances) - 1)
        return [r.id for r in self.all_instances[instance].own_queue]

    def decode_gateway(self, llm: int) -> list[int]:
        """Request ids that have been prefilled and wait for any decode instance, head first."""
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
