"""What QLM compares itself with and that needs no estimates: first come first served, earliest deadline."""

from __future__ import annotations

from contextlib import suppress
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from baselines.parameters import BatchLimit, NamedPolicy, Parameters, PolicyError
from baselines.qlm.fixed import fixed_llms
from baselines.qlm.problem import serving_instances
from baselines.space import BATCH_LIMIT, Choice, Space
from llmscale_env.control.command import Command
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario


class VllmParameters(Parameters):
    """vLLM: every instance takes requests first come first served, nobody is evicted for another.

    Attributes:
        batch_limit: running requests per instance; None: as the scenario says.
        swapping: false (ours, the stronger form): an instance keeps one LLM (`baselines.qlm.fixed`), as
            section 1 says of Clockwork. true (section 8.2: "none of them consider the impact of model
            swapping"): an instance without running requests loads the LLM of its queue's head, request by
            request. So it does anyway where not every LLM can have an instance. With one LLM both are
            the same.
        queues: "shared": all instances of an LLM take from one queue (one per class with `edf`); with
            swapping all instances do. "per-instance": requests are dealt out in turn, at each decision, to
            the instances that serve their LLM, each of which serves its own in order (section 2.3:
            one virtual queue per instance); after a failure they are dealt out anew.
    """

    batch_limit: BatchLimit | None = None
    swapping: bool = False
    queues: Literal["shared", "per-instance"] = "shared"


class EdfParameters(VllmParameters):
    """Earliest deadline first (section 8): the requests with the tightest SLOs come first.

    Attributes:
        by: "deadline": by arrival plus TTFT target. "slo": by the target itself, as the section's
            sentence reads; among equal ones first come first served.
    """

    by: Literal["deadline", "slo"] = "deadline"


class VllmPolicy(NamedPolicy):
    """First come first served. See `VllmParameters`."""

    parameters_type = VllmParameters
    usual_name = "vllm"
    parameters: VllmParameters
    SPACE: ClassVar[Space] = {
        "batch_limit": BATCH_LIMIT,
        "swapping": Choice((True, False)),
        "queues": Choice(("shared", "per-instance")),
    }
    _first = 0

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Start an episode.

        Raises:
            PolicyError: requests do not all come through shared queues of any LLM, or there are too few of
                them.
        """
        self.scenario = scenario
        fleet = scenario.fleet
        self._llm = None
        if not self.parameters.swapping:
            # Where not every LLM can have an instance they have to take turns.
            with suppress(PolicyError):
                self._llm = fixed_llms(scenario, self.name)
        kinds = 1 if self._llm is None else len(fleet.llms)
        needed, what = len(scenario.classes) * kinds, "each LLM and class"
        if self.parameters.queues == "per-instance":
            slots = sum(pool.max_instances for pool in fleet.pools)
            needed, what = 1 + slots * self._per_instance(), "arrivals, and each instance and kind"
        if fleet.group_queues < needed:
            raise PolicyError(
                f"{self.name}: needs a group queue for {what}, {needed} in all; scenario "
                f"{scenario.name!r} has {fleet.group_queues}"
            )
        self._first = len(fleet.queues)
        self._next = 0

    def act(self, view: ClusterView) -> Command:
        """With shared queues all is said at the start: the engine does the rest."""
        dealt = self.parameters.queues == "per-instance"
        regroup = self._dealt(view) if dealt else None
        if view.step > 0:
            return Command(regroup=regroup)
        fleet, classes = self.scenario.fleet, self.scenario.classes
        limit = self.parameters.batch_limit
        return Command(
            arrival_queues={
                (llm, c.name): ((), (self._first if dealt else self._queues(self._shared(m))[k],))
                for m, llm in enumerate(fleet.llms)
                for k, c in enumerate(classes)
                if self.scenario.route_of(llm, c.name).queue is not None
            },
            pull={
                i: self._order(
                    self._queues(
                        1 + i * self._per_instance()
                        if dealt
                        else self._shared(0 if self._llm is None else max(0, int(self._llm[i])))
                    )
                )
                for i in range(len(view.instances))
            },
            regroup=regroup,
            operations={pool.name: self._operations() for pool in fleet.pools},
            batch_limits={} if limit is None else {pool.name: limit for pool in fleet.pools},
        )

    def _dealt(self, view: ClusterView) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Requests that no serving instance has, in order of arrival, with queues of instances in turn."""
        waiting, instances = view.waiting, serving_instances(view)
        owner = (waiting.queue - self._first - 1) // self._per_instance()
        lost = np.flatnonzero(~np.isin(owner, instances))
        if not len(lost) or not len(instances):
            return None
        lost = lost[np.argsort(waiting.arrival_s[lost], kind="stable")]
        pools = self.scenario.fleet.pools
        serves = [pools[int(view.instance_pool[i])].llms for i in instances]
        names = self.scenario.fleet.llms
        able = [np.array([name in llms for llms in serves]) for name in names]
        if self._llm is not None:
            able = [self._llm[instances] == m for m in range(len(names))]
        queues = np.full(len(lost), -1)
        for k, r in enumerate(lost.tolist()):
            turn = (self._next + np.arange(len(instances))) % len(instances)
            found = turn[able[int(waiting.llm[r])][turn]]
            if len(found):
                self._next = int(found[0]) + 1
                start = 1 + int(instances[found[0]]) * self._per_instance()
                queues[k] = self._queues(start)[int(waiting.slo_class[r])]
        good = queues >= 0
        return waiting.request_id[lost][good], queues[good]

    def _shared(self, llm: int) -> int:
        """The first of the group queues that instances of an LLM share."""
        return 0 if self._llm is None else llm * self._per_instance()

    def _per_instance(self) -> int:
        """Queues that an instance's requests need."""
        return len(set(self._queues(0)))

    def _queues(self, start: int) -> list[int]:
        """The queue of each class, of those from the `start`-th group queue on."""
        return [self._first + start] * len(self.scenario.classes)

    def _order(self, queues: list[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(queues))

    def _operations(self) -> dict[str, object]:
        return {
            "pull_rule": "in-order",
            "evicts_in_order": False,
            "swap_flushes": False,
            "static_batch": False,
        }


class EdfPolicy(VllmPolicy):
    """A queue per class, the earliest deadline first. See `EdfParameters`."""

    parameters_type = EdfParameters
    usual_name = "edf"
    SPACE: ClassVar[Space] = {**VllmPolicy.SPACE, "by": Choice(("deadline", "slo"))}
    parameters: EdfParameters

    def _queues(self, start: int) -> list[int]:
        return [self._first + start + k for k in range(len(self.scenario.classes))]

    def _order(self, queues: list[int]) -> tuple[int, ...]:
        ttft = [c.ttft_s for c in self.scenario.classes]
        return tuple(queues[k] for k in sorted(range(len(queues)), key=lambda k: (ttft[k], k)))

    def _operations(self) -> dict[str, object]:
        rule = "earliest-deadline" if self.parameters.by == "deadline" else "in-order"
        return {**super()._operations(), "pull_rule": rule}
