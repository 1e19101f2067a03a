"""What QLM compares itself with and that needs no estimates: first come first served, earliest deadline."""

from __future__ import annotations

from typing import Literal

from baselines.parameters import BatchLimit, Parameters, PolicyError, checked
from llmscale_env.control.command import Command
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario


class VllmParameters(Parameters):
    """vLLM: every instance takes requests first come first served, nobody is evicted for another.

    Attributes:
        batch_limit: running requests per instance; None: as the scenario says.
    """

    batch_limit: BatchLimit | None = None


class EdfParameters(VllmParameters):
    """Earliest deadline first (section 8): the requests with the tightest SLOs come first.

    Attributes:
        by: "deadline": by arrival plus TTFT target. "slo": by the target itself, as the section's
            sentence reads; among equal ones first come first served.
    """

    by: Literal["deadline", "slo"] = "deadline"


class VllmPolicy:
    """One queue for all requests; an instance loads the LLM of its head. See `VllmParameters`."""

    kind: type[VllmParameters] = VllmParameters

    def __init__(self, name: str = "vllm", **values: object) -> None:
        self.name = name
        self.parameters = checked(name, self.kind, values)

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Start an episode.

        Raises:
            PolicyError: requests do not all come through shared queues of any LLM.
        """
        self.scenario = scenario
        if scenario.fleet.group_queues < len(scenario.classes):
            raise PolicyError(
                f"{self.name}: needs a group queue for each class; scenario {scenario.name!r} has "
                f"{scenario.fleet.group_queues} for {len(scenario.classes)}"
            )

    def act(self, view: ClusterView) -> Command:
        """All is said at the start: the engine does the rest."""
        if view.step > 0:
            return Command()
        fleet, classes = self.scenario.fleet, self.scenario.classes
        first = len(fleet.queues)
        queues = self._queues(first)
        limit = self.parameters.batch_limit
        return Command(
            arrival_queues={
                (llm, c.name): ((), (queues[k],))
                for llm in fleet.llms
                for k, c in enumerate(classes)
                if self.scenario.route_of(llm, c.name).queue is not None
            },
            pull=dict.fromkeys(range(len(view.instances)), self._order(queues)),
            operations={pool.name: self._operations() for pool in fleet.pools},
            batch_limits={} if limit is None else {pool.name: limit for pool in fleet.pools},
        )

    def _queues(self, first: int) -> list[int]:
        """The shared queue of each class."""
        return [first] * len(self.scenario.classes)

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

    kind = EdfParameters
    parameters: EdfParameters

    def __init__(self, name: str = "edf", **values: object) -> None:
        super().__init__(name, **values)

    def _queues(self, first: int) -> list[int]:
        return [first + k for k in range(len(self.scenario.classes))]

    def _order(self, queues: list[int]) -> tuple[int, ...]:
        ttft = [c.ttft_s for c in self.scenario.classes]
        return tuple(queues[k] for k in sorted(range(len(queues)), key=lambda k: (ttft[k], k)))

    def _operations(self) -> dict[str, object]:
        rule = "earliest-deadline" if self.parameters.by == "deadline" else "in-order"
        return {**super()._operations(), "pull_rule": rule}
