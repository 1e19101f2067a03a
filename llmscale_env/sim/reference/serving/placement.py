"""Commands that place requests, correct predictions and let workers drift: docs/engine.md section 13."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.observed import FOUND_DTYPE
from llmscale_env.sim.reference.state.request import Request
from llmscale_env.sim.spec import (
    ClusterSpec,
    InstanceState,
    PlacementSpec,
    RequestState,
)
from llmscale_env.sim.spec.checks import (
    check_assign,
    check_decode_router,
    check_model,
    check_placement,
    check_predictions,
    check_profile,
    check_range,
    check_whole,
)

if TYPE_CHECKING:
    from llmscale_env.sim.reference.instance import Instance
    from llmscale_env.sim.reference.serving.routing import Router


class PlacementOrders(ABC):
    """The part of `ReferenceEngine` that Aladdin needs."""

    spec: ClusterSpec
    events: Counter[str]
    requests: list[Request]
    by_id: dict[int, Request]
    gateways: list[deque[Request]]
    decode_gateways: list[deque[Request]]
    router: Router
    all_instances: list[Instance]

    @abstractmethod
    def _states(self) -> list[InstanceState]:
        """(I,) of every slot."""

    # --- routing what waits again ---

    @abstractmethod
    def place(self, request: Request) -> bool:
        """Route an arrival; False if it now waits in the gateway."""

    def place_decode(self, request: Request) -> bool:
        """Route a request that has been prefilled; False if it now waits in the decode gateway."""
        request.state = RequestState.HANDOVER
        request.at = None
        destination = self.router.decode_destination(request)
        if destination is None:
            self.events["decode_gateway"] += 1
            self.decode_gateways[request.llm].append(request)
            return False
        destination.handover.join(request)
        return True

    def route_arrival_gateway(self, llm: int) -> None:
        """Try again to place what waits in an LLM's gateway; order is kept."""
        waiting = list(self.gateways[llm])
        self.gateways[llm].clear()
        for request in waiting:
            if self.place(request):
                self.events["gateway_left"] += 1

    def route_decode_gateway(self, llm: int) -> None:
        """The same for those that have been prefilled."""
        waiting = list(self.decode_gateways[llm])
        self.decode_gateways[llm].clear()
        for request in waiting:
            if self.place_decode(request):
                self.events["decode_gateway_left"] += 1

    def look_up(self, requests: NDArray[np.int64]) -> NDArray[Any]:
        """(n,) FOUND_DTYPE, how these requests (by id) stand."""
        found = np.zeros(len(requests), FOUND_DTYPE)
        for k, number in enumerate(requests.tolist()):
            request = self.by_id.get(number)
            if request is None:
                found[k] = (RequestState.FUTURE, -1, False)
                continue
            waits = request.state in (RequestState.GATEWAY, RequestState.OWN_QUEUE)
            if request.state == RequestState.HANDOVER:
                at = request.at
                waits = request in (
                    self.decode_gateways[request.llm] if at is None else at.own_queue
                )
            found[k] = (request.state, request.llm, waits)
        return found

    # --- commands ---

    def route_gateway(self, llm: int) -> None:
        llm = check_range("llm", llm, 0, self.spec.n_llms - 1)
        self.events["gateway_by_command"] += bool(self.gateways[llm] or self.decode_gateways[llm])
        self.route_arrival_gateway(llm)
        self.route_decode_gateway(llm)

    def assign(self, requests: Sequence[int], instances: Sequence[int]) -> None:
        """Put waiting requests at the ends of instances' own queues, in the order given.

        Args:
            requests: ids, all different, from gateways and own queues (without KV memory reserved).
            instances: for each where it goes.
        """
        ids = check_whole("requests", requests)
        to = check_assign(self.spec, ids, instances, self.look_up(ids), self._states()).tolist()
        losers = set()
        for k in ids.tolist():
            request = self.by_id[k]
            prefilled = request.state == RequestState.HANDOVER
            if request.at is None:
                gateways = self.decode_gateways if prefilled else self.gateways
                gateways[request.llm].remove(request)
            else:
                request.at.own_queue.remove(request)
                losers.add(request.at)
        for k, i in zip(ids.tolist(), to, strict=True):
            request, target = self.by_id[k], self.all_instances[i]
            if target.handover.decodes:
                self.events["assigned_decode"] += 1
                target.handover.join(request)
            else:
                self.events["assigned"] += 1
                target.take_in(request)
        for loser in sorted(losers, key=lambda i: i.index):
            loser.handover.reserve()
            loser.wake()

    def set_predictions(self, requests: Sequence[int], tokens: Sequence[int]) -> None:
        ids = check_whole("requests", requests)
        lengths = check_predictions(ids, tokens, self.look_up(ids)).tolist()
        for k, n in zip(ids.tolist(), lengths, strict=True):
            self.by_id[k].predicted_output_tokens = n
            self.events["prediction_changed"] += 1

    def set_profile(self, instance: int, profile: int) -> None:
        profiles = [i.profile_index for i in self.all_instances]
        instance, profile = check_profile(self.spec, instance, profile, self._states(), profiles)
        which = self.all_instances[instance]
        which.set_profile(profile)
        self.events["profile_changed"] += 1

    def set_decode_router(self, llm: int, slo_class: int, kind: int) -> None:
        """Rule by which a class's handed-over requests are routed from now on."""
        key, rule = check_decode_router(self.spec, llm, slo_class, kind)
        self.router.decode_kinds[key] = rule
        self.events["decode_router_changed"] += 1

    def set_placement(self, llm: int, slo_class: int, placement: PlacementSpec) -> None:
        """What best fit goes by from now on, for a class that has a placement."""
        self.router.placements[check_placement(self.spec, llm, slo_class)] = placement
        self.events["placement_changed"] += 1

    def set_placement_model(self, instance: int, model: Sequence[float] | None) -> None:
        which = self.all_instances[
            check_range("instance", instance, 0, len(self.all_instances) - 1)
        ]
        which.placement_model = None if model is None else check_model(model)
        self.events["model_changed"] += 1
