"""Aladdin as a scheduler of heartbeats: new requests are placed together, re-balanced, and then start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from baselines.aladdin.constraints import Request
from baselines.aladdin.placement import candidate
from baselines.aladdin.policy import AladdinPolicy
from llmscale_env.control.command import Command
from llmscale_env.control.view import ClusterView, RequestsUnderWay
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.spec import InstanceState


class AtHeartbeats(AladdinPolicy):
    """Section 4.2: what has arrived "between the scheduling heartbeat" waits, and Algorithm 1 places it.

    Section 4.3: Algorithm 2 may move all of it "before the execution of the new requests".

    Attributes:
        moved: requests that Algorithm 2 has moved.
    """

    def reset(self, scenario: Scenario, seed: int) -> None:
        """As the policy, but arrivals are held."""
        super().reset(scenario, seed)
        self.moved = 0
        held = {c.name: "hold" for c in scenario.classes}
        self._start = replace(self._start, routers=held)

    def act(self, view: ClusterView) -> Command:
        """Algorithm 1 for all that waits, then what the policy does, which sees it placed."""
        if view.step == 0:
            return super().act(view)
        before = view.under_way
        placed = replace(before, instance=self._place(view))
        command = super().act(cast(ClusterView, _Placed(view, placed)))
        where = placed.instance.copy()
        if command.assign is not None:
            ids, to = command.assign
            at = {int(r): k for k, r in enumerate(placed.request_id)}
            where[[at[int(r)] for r in ids]] = to
            self.moved += len(ids)
        moved = np.flatnonzero(where != before.instance)
        assign = (before.request_id[moved], where[moved]) if len(moved) else None
        return replace(command, assign=assign, route_gateway=())

    def _place(self, view: ClusterView) -> NDArray[np.int64]:
        """The instance of each request under way, with those that waited in the gateway placed."""
        seen = view.under_way
        where = seen.instance.astype(np.int64).copy()
        serving = np.flatnonzero(
            (self._pool_of == self.workers.pool) & (view.instances["state"] == InstanceState.ACTIVE)
        ).tolist()
        there = {
            i: tuple(_request(seen, k, view.time_s) for k in np.flatnonzero(where == i))
            for i in serving
        }
        waiting = np.flatnonzero((where < 0) & seen.movable)
        for k in waiting[np.argsort(seen.arrival_s[waiting], kind="stable")]:
            request = _request(seen, k, view.time_s)
            rules = self._rules_of(serving[0])
            found = candidate(request, [there[i] for i in serving], rules)
            if found is not None:
                where[k] = i = serving[found]
                there[i] = (*there[i], request)
        return where


class _Placed:
    """A view of which the requests under way are where they are about to be."""

    def __init__(self, view: ClusterView, under_way: RequestsUnderWay) -> None:
        self._view = view
        self.under_way = under_way

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


def _request(seen: RequestsUnderWay, k: Any, now_s: float) -> Request:
    emitted, first = int(seen.emitted_tokens[k]), float(seen.first_token_s[k])
    decodes = emitted > 0 and not np.isnan(first)
    return Request(
        int(seen.input_tokens[k]),
        float(seen.predicted_output_tokens[k]),
        emitted,
        max(0.0, now_s - first) if decodes else 0.0,
        started=not seen.movable[k],
    )
