"""The reference engine's public interface and commands (docs/engine.md sections 1, 3, 8)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Sequence

import numpy as np
import simpy
from numpy.typing import NDArray

from llmscale_env.sim.reference.fleet.lifecycle import SlotLife
from llmscale_env.sim.reference.fleet.scaling import FleetOrders
from llmscale_env.sim.reference.fleet.spot import SpotVms
from llmscale_env.sim.reference.instance import Instance
from llmscale_env.sim.reference.observe import Observation
from llmscale_env.sim.reference.regions.endpoint_scaling import EndpointRule
from llmscale_env.sim.reference.regions.region_orders import RegionOrders
from llmscale_env.sim.reference.serving.network import Network
from llmscale_env.sim.reference.serving.placement import PlacementOrders
from llmscale_env.sim.reference.serving.region_routing import Regions
from llmscale_env.sim.reference.serving.routing import Router, SharedQueue
from llmscale_env.sim.reference.state.clock import Due, Phase
from llmscale_env.sim.reference.state.request import Request
from llmscale_env.sim.reference.weights.parameter_pool import ParameterPool
from llmscale_env.sim.spec import (
    NEVER,
    ClusterSpec,
    ControllerKind,
    InstanceState,
    RequestState,
    changed_operations,
)
from llmscale_env.sim.spec.checks import (
    check_arrival_queues,
    check_batch_limit,
    check_controller,
    check_evict,
    check_instance_limit,
    check_move_waiting,
    check_operations,
    check_pull,
    check_range,
    check_regroup,
    check_requests,
    check_router,
    check_share,
    check_whole,
)
from llmscale_env.sim.spec.region_checks import check_not_managed
from llmscale_env.sim.streaming import (
    Retired,
    check_imagined,
    check_later,
    check_lengths,
    check_streams,
    names_of,
)
from llmscale_env.workload.requests import RequestTable


class ReferenceEngine(FleetOrders, PlacementOrders, RegionOrders, Observation):
    """A cluster serving a table of requests, token by token.

    Args:
        spec: the cluster.
        requests: what arrives.
        salt: makes network latencies and times of reclaiming, in place of the table's.

    Raises:
        ValueError: if the table names an LLM, an SLO class or a region that the spec does not have.

    Attributes:
        events: how often each mechanism was at work, by name (for tests of coverage).
        queues_of: the shared queues, by index.
        instances_of: instances of each pool, slots ascending.
        requests: that are known, in order of id; `by_id`: the same.
        finished: request ids in order of finishing.
        controller_kind: `ControllerKind` of each pool.
        operations: `Operations` of each pool.
        parameters: where weights lie.
        regions, spot_vms: as their classes say.
        rules: of each pool its rule of scaling, if any.
        last_boundary_ps: time of the latest end of an iteration.
    """

    def __init__(self, spec: ClusterSpec, requests: RequestTable, salt: int | None = None) -> None:
        self.spec = spec
        self.clock = simpy.Environment()
        self.events: Counter[str] = Counter()
        self.last_boundary_ps = -1
        self.requests: list[Request] = []
        self.by_id: dict[int, Request] = {}
        self._next_id, self._next_name, self._last_arrival_ps = 0, 0, -1
        self._read(requests)

        self.queues_of: list[deque[Request]] = [deque() for _ in spec.queue_llm]
        self.gateways: list[deque[Request]] = [deque() for _ in range(spec.n_llms)]
        self.decode_gateways: list[deque[Request]] = [deque() for _ in range(spec.n_llms)]
        self.finished: list[int] = []
        self.controller_kind = [int(pool.controller) for pool in spec.pools]
        self.operations = [pool.operations for pool in spec.pools]
        self.longest_tokens = spec.longest_tokens

        self.instances_of: list[list[Instance]] = []
        self.all_instances: list[Instance] = []
        self.parameters = ParameterPool(self)
        self.network = Network(self.clock, spec.network, spec.host_of_slot, self.events)
        for p, pool in enumerate(spec.pools):
            self.instances_of.append([])
            for _ in range(pool.n_slots):
                index = len(self.all_instances)
                instance = Instance(self, index, p, spec.host_of_slot[index])
                if spec.active_at_start[index]:
                    instance.begin_active()
                self.instances_of[p].append(instance)
                self.all_instances.append(instance)
        for instance, twin in zip(self.all_instances, spec.twin_of_slot, strict=True):
            instance.twin = self.all_instances[twin] if twin >= 0 else None
        self.router = Router(self)
        salt = requests.salt if salt is None else salt
        self.regions = Regions(self, salt)
        self.spot_vms = SpotVms(self, salt)
        self.rules = [
            EndpointRule(self, p, pool.scaling) if pool.scaling else None
            for p, pool in enumerate(spec.pools)
        ]
        self.clock.process(self._arrivals(self.requests))
        for _ in range(len(self.all_instances) + 1):
            self.clock.step()  # SimPy's own first event of each process: they stand ready at 0.

    def _read(self, table: RequestTable) -> list[Request]:
        """Requests to come, whose ids go on from those before."""
        spec = self.spec
        check_requests(spec, table)
        names = names_of(table, self._next_name)
        requests = []
        for i in range(len(table)):
            llm, slo_class = int(table.llm[i]), int(table.slo_class[i])
            requests.append(
                Request(
                    id=self._next_id + i,
                    arrival_ps=int(table.arrival_ps[i]),
                    llm=llm,
                    slo_class=slo_class,
                    input_tokens=int(table.input_tokens[i]),
                    output_tokens=int(table.output_tokens[i]),
                    predicted_output_tokens=int(table.predicted_output_tokens[i]),
                    priority=int(spec.classes[slo_class].priority),
                    queue=int(spec.routes[llm][slo_class].queue),
                    region=int(table.region[i]) if spec.n_regions > 1 else 0,
                    name=int(names[i]),
                    spans=() if table.prefixes is None else tuple(table.prefixes.spans(i)),
                )
            )
        self.requests = [*self.requests, *requests]
        self.by_id |= {r.id: r for r in requests}
        self._next_id += len(table)
        if len(table):
            self._last_arrival_ps = int(table.arrival_ps[-1])
            self._next_name = int(names[-1]) + 1
        return requests

    # --- time ---

    def advance(self, until_ps: int) -> None:
        """Process every event before `until_ps` and stand there.

        Raises:
            ValueError: if that is in the past or not before `NEVER`.
        """
        until = check_range("until_ps", until_ps, self.now_ps, int(NEVER) - 1)
        if until > self.now_ps:
            self.clock.run(until=until)

    def extend(self, requests: RequestTable) -> None:
        """Later requests, whose ids go on from those before; their salt is not looked at (section 18).

        Raises:
            ValueError: as `Engine.extend`.
        """
        check_streams(self.spec)
        check_later(self.spec, requests, self.now_ps, self._last_arrival_ps)
        self.clock.process(self._arrivals(self._read(requests)))
        self.clock.step()  # the first event of the process, as in the constructor

    def retire(self) -> Retired:
        """Forget the requests that are done; `finish_log` begins anew.

        Raises:
            ValueError: the cluster has flows.
        """
        check_streams(self.spec)
        done = (RequestState.FINISHED, RequestState.REJECTED)
        gone = np.array([r.state in done for r in self.requests], bool)
        ids, results = self.ids()[gone], self.results()[gone]
        self.requests = [r for r in self.requests if r.state not in done]
        self.by_id = {r.id: r for r in self.requests}
        self.finished.clear()
        return Retired(ids, results)

    def take_times(self, spec: ClusterSpec) -> None:
        """Iterations and loads that begin from now on take the times of another spec of this cluster."""
        self.spec = spec
        for instance in self.all_instances:
            instance.take_times()

    def imagine(
        self, ids: NDArray[np.int64], output_tokens: NDArray[np.int64], later: RequestTable
    ) -> None:
        """Requests under way have other lengths from now on, and others arrive (section 20).

        Raises:
            ValueError: as `Engine.imagine`.
        """
        check_streams(self.spec)
        ids, output_tokens = check_lengths(ids, output_tokens)
        known = [self.by_id.get(k) for k in ids.tolist()]
        states = [RequestState.FUTURE if r is None else r.state for r in known]
        mine = [r for r in known if r is not None]
        longest = [self.longest_tokens[r.llm] - r.input_tokens for r in mine]
        longest += [0] * (len(known) - len(mine))
        most = np.array(longest, np.int64) - self.spec.half_block_tokens
        check_imagined(ids, np.array(states, np.int8), output_tokens, most)
        check_later(self.spec, later, self.now_ps, -1)
        never = [r for r in self.requests if r.state == RequestState.FUTURE]
        caches = any(pool.v1 is not None and pool.v1.prefix_cache for pool in self.spec.pools)
        next_name = (never[0].name if never else self._next_name) if caches else 0
        names_of(later, next_name)
        for request, tokens in zip(mine, output_tokens.tolist(), strict=True):
            if not self._has_last_step(request):
                sure = request.emitted + max(1, request.to_come)
                self.events["imagined_too_short"] += tokens < sure
                request.output_tokens = max(sure, tokens)
        self._next_id = never[0].id if never else self._next_id
        self._next_name = next_name
        self.requests = [r for r in self.requests if r.state != RequestState.FUTURE]
        self.by_id = {r.id: r for r in self.requests}
        self._last_arrival_ps = -1
        self.extend(later)

    def _has_last_step(self, request: Request) -> bool:
        """Whether it runs, and no further step is to be composed for it."""
        running = request.state == RequestState.RUNNING
        scheduler = self.all_instances[request.instance].scheduler
        ends = running and scheduler.has_last_step(request)
        self.events["imagined_at_its_last_step"] += ends
        return ends

    def _arrivals(self, requests: list[Request]) -> Generator:
        for request in requests:
            yield Due(self.clock, Phase.ARRIVAL, request.id).at(request.arrival_ps)
            if self.by_id.get(request.id) is not request:
                return  # others have been imagined in the place of these
            if self.last_boundary_ps == self.now_ps:
                self.events["arrival_at_a_boundary"] += 1
            half = self.spec.half_block_tokens
            total = request.input_tokens + request.output_tokens + half
            if total > self.longest_tokens[request.llm]:
                no_pool = self.longest_tokens[request.llm] < 0
                self.events["rejected_no_pool" if no_pool else "rejected_too_long"] += 1
                request.state = RequestState.REJECTED
            else:
                self._count(request)
                self.place(request)

    def _count(self, request: Request) -> None:
        """Rules of scaling of its client's region see its tokens."""
        for rule, pool in zip(self.rules, self.spec.pools, strict=True):
            here = pool.llm == request.llm and pool.region == request.region
            if rule is not None and here and request.priority == 0:
                rule.arrived(request)

    # --- what the parts of the engine ask of each other ---

    def demand(self, request: Request) -> int:
        """KV tokens that a request asks for at admission, its next token included."""
        return request.ctx + 1 + self.spec.half_block_tokens

    def itl_slo_ps(self, request: Request) -> int:
        """ITL target of its class."""
        return int(self.spec.classes[request.slo_class].itl_slo_ps)

    def place(self, request: Request) -> bool:
        """Route a request; False if it now waits in the gateway."""
        request.queue = self.router.queue_for(request)
        if self.regions.is_regional(request):
            self.events["router_regional"] += 1
            return self.regions.send(request) or self._to_gateway(request)
        destination = self.router.destination(request)
        if destination is None:
            return self._to_gateway(request)
        if isinstance(destination, SharedQueue):
            self.enqueue(request, destination.queue)
        else:
            destination.take_in(request)
        return True

    def place_from(self, instance: SlotLife, request: Request) -> None:
        """Route again a request of the own queue of an instance that drains or has failed."""
        self.regions.leave(request, instance)

    def _to_gateway(self, request: Request) -> bool:
        """It waits until an instance of its LLM serves; False."""
        self.events["gateway"] += 1
        request.state = RequestState.GATEWAY
        request.at = None
        self.gateways[request.llm].append(request)
        return False

    def enqueue(self, request: Request, queue: int, front: bool = False) -> None:
        """Into a shared queue; idle instances that pull from it look at it."""
        request.state = RequestState.SHARED_QUEUE
        request.at = None
        request.queue = queue
        if front:
            self.queues_of[queue].appendleft(request)
        else:
            self.queues_of[queue].append(request)
        self.wake_pullers(queue)

    def wake_pullers(self, queue: int) -> None:
        """Its head is another one: idle instances that pull from it look at it."""
        for instance in self.all_instances:
            if queue in instance.pull:
                instance.wake()

    def is_active(self, llm: int) -> bool:
        """Whether any instance of an LLM is `ACTIVE`."""
        return any(i.llm == llm and i.state == InstanceState.ACTIVE for i in self.all_instances)

    # --- commands (section 8) ---

    def set_batch_limit(self, pool: int, limit: int) -> None:
        """Running requests allowed on every instance of a pool."""
        pool, limit = check_batch_limit(self.spec, pool, limit)
        for instance in self.instances_of[pool]:
            instance.controller.set_limit(limit, ControllerKind(self.controller_kind[pool]))
            instance.controller.restart = True
            instance.leading.call_helper()

    def set_instance_limit(self, instance: int, limit: int) -> None:
        """Running requests allowed on one instance."""
        instance, limit = check_instance_limit(self.spec, instance, limit)
        which = self.all_instances[instance]
        kind = ControllerKind(self.controller_kind[which.pool_index])
        which.controller.set_limit(limit, kind)
        which.controller.restart = True
        which.leading.call_helper()

    def set_controller(self, pool: int, kind: int) -> None:
        """How the batch limits of a pool move from now on."""
        pool, kind = check_controller(self.spec, pool, kind)
        self.controller_kind[pool] = kind
        for instance in self.instances_of[pool]:
            instance.controller.restart = True

    def set_overflow_share(self, llm: int, slo_class: int, share: float) -> None:
        """Share of a class's requests that try the overflow pools first."""
        key, share = check_share(self.spec, llm, slo_class, share)
        self.router.overflow_share[key] = share

    def set_router(self, llm: int, slo_class: int, kind: int) -> None:
        """Routing rule of a class's arrivals from now on."""
        key, rule = check_router(self.spec, llm, slo_class, kind)
        self.router.kinds[key] = rule
        self.events["router_changed"] += 1

    def evict(self, instance: int, count: int) -> None:
        """Evict so many of an instance's priority-1 requests at its next boundary."""
        states = [int(i.state) for i in self.all_instances]
        instance, count = check_evict(self.spec, instance, count, states)
        self.all_instances[instance].ordered_evictions += count

    def move_waiting(self, instance: int, to: int, count: int) -> None:
        """Move the last `count` requests that wait at one active instance to the end of another's queue."""
        order = check_move_waiting(self.spec, instance, to, count, self._states())
        instance, to, count = order
        source, target = self.all_instances[instance], self.all_instances[to]
        moving = [source.own_queue.pop() for _ in range(min(count, len(source.own_queue)))]
        for request in reversed(moving):
            target.take_in(request)
            self.events["waiting_moved"] += 1
        if moving:
            source.wake()

    def set_pull(self, instance: int, queues: Sequence[int]) -> None:
        """The shared queues that an instance pulls from, in order: its virtual queue."""
        which = self._slot(instance)
        pull = check_pull("queues", queues, which.pool, self.spec.queue_llm)
        check_not_managed("queues", pull, self.spec)
        which.pull = pull
        which.plan_weights()
        self.events["pull_changed"] += 1
        which.wake()

    def set_operations(
        self,
        pool: int,
        pull_rule: int | None = None,
        evicts_in_order: bool | None = None,
        swap_flushes: bool | None = None,
        static_batch: bool | None = None,
    ) -> None:
        pool = check_range("pool", pool, 0, len(self.spec.pools) - 1)
        new = changed_operations(
            self.operations[pool],
            self.spec.pools[pool].chunk_tokens,
            pull_rule,
            evicts_in_order,
            swap_flushes,
            static_batch,
        )
        check_operations(self.spec.pools[pool], new)
        self.operations[pool] = new
        self.events["operations_changed"] += 1
        for instance in self.instances_of[pool]:
            instance.wake()

    def set_arrival_queues(
        self, llm: int, slo_class: int, uppers: Sequence[int], queues: Sequence[int]
    ) -> None:
        """Where a class's requests join shared queues from now on, by their input tokens.

        Args:
            llm, slo_class: of a route that has a shared queue.
            uppers: rising; `queues[k]` takes requests of at most `uppers[k]` input tokens.
            queues: one more, for those above all.
        """
        check_arrival_queues(self.spec, llm, slo_class, uppers, queues)
        self.router.arrival_queues[int(llm), int(slo_class)] = (tuple(uppers), tuple(queues))
        self.events["arrival_queues_changed"] += 1

    def regroup(self, requests: Sequence[int], queues: Sequence[int]) -> None:
        """Move waiting requests to the ends of shared queues, in the order in which they are named.

        Args:
            requests: ids, all different, of requests in shared queues.
            queues: for each the queue where it goes (its own: to the end of it).
        """
        ids = check_whole("requests", requests)
        to = check_regroup(self.spec, ids, queues, self.look_up(ids)).tolist()
        moving = [self.by_id[k] for k in ids.tolist()]
        touched = sorted({r.queue for r in moving} | set(to))
        gone = set(moving)
        for queue in touched:
            stay = [r for r in self.queues_of[queue] if r not in gone]
            self.queues_of[queue] = deque(stay)
        for request, queue in zip(moving, to, strict=True):
            request.queue = queue
            self.queues_of[request.queue].append(request)
            self.events["regrouped"] += 1
        for queue in touched:
            self.wake_pullers(queue)
