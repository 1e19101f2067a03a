"""Aladdin's baselines (sections 6.1 and 6.3): a fixed number of workers, and a rule that knows no SLO."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from baselines.aladdin.configuration import RequestTokens
from baselines.aladdin.fleet import (
    Degree,
    Workers,
    choose,
    history,
    most_workers,
    prefill_number,
    starting_number,
)
from baselines.parameters import NamedPolicy, Parameters, PolicyError, PositiveCount
from baselines.space import Choice, Real, Space
from llmscale_env.control.command import Command
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario


class FixedParameters(Parameters):
    """Workers and a rule.

    Attributes:
        tp: GPUs of a worker; None: for `machine-wide` the most that there are, else the best (Eq. 6).
        workers: how many (decode workers, where phases are split); None: as `fleet` says.
        fleet: as many as the scenario has GPUs for ("all": these do not scale, so this is a fleet for the
            peak), or as those allow that it starts with ("start").
        prefill_workers: of split phases; None: as the scenario starts.
        by: what a queue's length is: its "requests", or their "tokens" (not for `power-of-two`).
    """

    tp: Annotated[int, Field(ge=1, le=8)] | None = None
    workers: PositiveCount | None = None
    fleet: Literal["all", "start"] = "all"
    prefill_workers: PositiveCount | None = None
    by: Literal["requests", "tokens"] = "requests"


class FixedWorkersPolicy(NamedPolicy):
    """Joins the shortest queue, on workers of one degree.

    Attributes:
        rule: "jsq" or "power-of-two".
        degree: of a worker, where `tp` does not say.
        searched: what a search of settings is over, beside the share of the GPUs that workers take.

    Raises:
        PolicyError: an unknown parameter, or a value that is not allowed.
    """

    parameters_type = FixedParameters
    usual_name = "jsq"
    parameters: FixedParameters
    rule: ClassVar[str] = "jsq"
    degree: ClassVar[Degree] = "best"
    searched: ClassVar[tuple[str, ...]] = ("tp", "by")

    @classmethod
    def space_of(cls, scenario: Scenario) -> Space:
        """What a search of settings is over."""
        degrees = tuple(sorted({pool.tp for pool in scenario.fleet.pools}))
        ranges: Space = {"tp": Choice(degrees), "by": Choice(("requests", "tokens"))}
        return {"share": Real(0.05, 1.0), **{name: ranges[name] for name in cls.searched}}

    @classmethod
    def of_grid_in(cls, point: dict[str, Any], scenario: Scenario) -> dict[str, Any]:
        """Parameters of a point: as many workers as its share of the GPUs holds."""
        values = {key: value for key, value in point.items() if key != "share"}
        if "share" in point:
            policy = cls(**values)
            tokens = RequestTokens.of(*history(scenario))
            workers = choose(scenario, policy.name, tokens, policy.parameters.tp, cls.degree)
            most = most_workers(scenario, workers, policy.parameters.prefill_workers, policy.name)
            values["workers"] = max(1, round(point["share"] * most))
        return values

    def __init__(self, name: str = "", **values: Any) -> None:
        super().__init__(name, **values)
        if self.rule != "jsq" and self.parameters.by != "requests":
            raise PolicyError(
                f"{self.name}: by = {self.parameters.by!r}: must be 'requests', which the shorter of two "
                "queues is told by; jsq takes both"
            )

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Choose the workers.

        Raises:
            PolicyError: several LLMs, an unknown degree, too many workers, or prefill workers where phases
                are not split.
        """
        p = self.parameters
        tokens = RequestTokens.of(*history(scenario))
        self.workers = choose(scenario, self.name, tokens, p.tp, self.degree)
        number = p.workers
        if number is None and p.fleet == "all":
            number = most_workers(scenario, self.workers, p.prefill_workers, self.name)
        number = starting_number(scenario, self.workers, number, p.prefill_workers, self.name)
        rule = f"jsq-{p.by}" if self.rule == "jsq" else self.rule
        self._start = starting_command(scenario, self.workers, number, p.prefill_workers, rule)

    def act(self, view: ClusterView) -> Command:
        """The orders at the first decision, nothing afterwards."""
        return self._start if view.step == 0 else Command()


class PowerOfTwoPolicy(FixedWorkersPolicy):
    """Joins the shorter of two queues that are drawn by chance."""

    usual_name = "power-of-two"
    rule = "power-of-two"
    searched = ("tp",)


class MachineWidePolicy(FixedWorkersPolicy):
    """Default vLLM: all GPUs of a machine in one worker (Aladdin, section 6.3)."""

    usual_name = "machine-wide"
    degree = "largest"
    searched = ("by",)


def starting_command(
    scenario: Scenario, workers: Workers, number: int, prefill_workers: int | None, rule: str
) -> Command:
    """Workers of the chosen pool and no others, and the rule for arrivals or, of split phases, decode."""
    pools = scenario.fleet.pools
    targets = {pools[p].name: 0 for p in workers.others}
    targets[pools[workers.pool].name] = number
    classes = [c.name for c in scenario.classes]
    if workers.prefill is None:
        routers, decode = dict.fromkeys(classes, rule), {}
    else:
        # Prefill has no queue to speak of: the least tokens, whoever decodes (section 5.1).
        routers, decode = dict.fromkeys(classes, "jsq-tokens"), dict.fromkeys(classes, rule)
        number_of_prefill = prefill_number(scenario, workers, prefill_workers)
        targets[pools[workers.prefill].name] = number_of_prefill
    return Command(
        targets=targets,
        routers=routers,
        decode_routers=decode,
        reason=f"{number} workers of {pools[workers.pool].tp} GPUs, {rule}",
    )
