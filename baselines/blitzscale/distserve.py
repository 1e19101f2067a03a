"""DistServe as BlitzScale compares itself with it: prefill and decode instances in fixed numbers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from baselines.blitzscale.monitor import capacity_of, pair_of
from baselines.parameters import NamedPolicy, Parameters, PolicyError, PositiveCount
from baselines.space import Real, Space, Whole
from llmscale_env.control.command import Command
from llmscale_env.control.scaling import FleetSeen, Scaler
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario


class DistServeParameters(Parameters):
    """A fleet of fixed size (DistServe does not scale).

    Attributes:
        share: of the fleet's GPUs that it uses; 1: "full", 0.5: "half".
        prefill, decode: instances; None: what is left of the share, or in the proportion in which both
            phases take the same rate of requests by the profile.
    """

    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    prefill: PositiveCount | None = None
    decode: PositiveCount | None = None


class DistServePolicy(NamedPolicy):
    """See `DistServeParameters`. Instances that the scenario does not start with load at the beginning."""

    parameters_type = DistServeParameters
    usual_name = "distserve"
    parameters: DistServeParameters

    @staticmethod
    def space_of(scenario: Scenario) -> Space:
        """What a search of settings is over: GPUs in all, and the share of them that prefills."""
        return {"gpus": Whole(2, scenario.fleet.max_gpus), "prefill_share": Real(0.05, 0.95)}

    @staticmethod
    def of_grid_in(point: dict[str, Any], scenario: Scenario) -> dict[str, Any]:
        """Parameters of a point: at least one instance of each."""
        if "gpus" not in point:
            return point
        pair = pair_of(scenario, "distserve")
        first, second = (scenario.fleet.pools[k] for k in (pair.prefill, pair.decode))
        gpus = max(point["gpus"], first.tp + second.tp)
        prefill = max(1, round(point["prefill_share"] * gpus / first.tp))
        prefill = min(prefill, (gpus - second.tp) // first.tp, first.max_instances)
        decode = min((gpus - prefill * first.tp) // second.tp, second.max_instances)
        return {"prefill": prefill, "decode": decode}

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Choose the numbers.

        Raises:
            PolicyError: a scenario that it cannot serve, or more instances than there are GPUs for.
        """
        p, fleet = self.parameters, scenario.fleet
        self.pair = pair_of(scenario, self.name)
        self.scaler = Scaler(scenario)
        tp = [fleet.pools[k].tp for k in (self.pair.prefill, self.pair.decode)]
        gpus = int(p.share * fleet.max_gpus)
        if p.prefill is not None and p.decode is not None:
            numbers = [p.prefill, p.decode]
        elif p.prefill is not None:
            numbers = [p.prefill, (gpus - p.prefill * tp[0]) // tp[1]]
        elif p.decode is not None:
            numbers = [(gpus - p.decode * tp[1]) // tp[0], p.decode]
        else:
            share = capacity_of(scenario, self.pair).prefill_share()
            # `share` of the instances, whose GPUs may differ.
            total = gpus / (share * tp[0] + (1 - share) * tp[1])
            first = min(max(1, round(share * total)), (gpus - tp[1]) // tp[0])
            numbers = [first, (gpus - first * tp[0]) // tp[1]]
        self.numbers = dict(zip((self.pair.prefill, self.pair.decode), numbers, strict=True))
        used = sum(n * size for n, size in zip(numbers, tp, strict=True))
        slots = [fleet.pools[k].max_instances for k in self.numbers]
        most = sum(slots) if not self.pair.twins else max(slots)
        if min(numbers) < 1 or used > fleet.max_gpus or sum(numbers) > most:
            raise PolicyError(
                f"{self.name}: {numbers[0]} prefill and {numbers[1]} decode instances: must be at least one "
                f"of each, on at most {fleet.max_gpus} GPUs and {most} slots"
            )

    def act(self, view: ClusterView) -> Command:
        """The orders at the first decision, nothing afterwards."""
        if view.step > 0:
            return Command()
        seen = FleetSeen.of(view.weights)
        drain, wanted = [], {}
        for p, number in self.numbers.items():
            rise = number - self.scaler.present(seen, p)
            if rise < 0:
                drain += self.scaler.release(seen, p, -rise)
            elif rise > 0:
                wanted[p] = rise
        loads = self.scaler.loads(seen, wanted, going=drain)
        return Command(
            drain=tuple(drain), scale=loads if len(loads) else None, reason="fixed split"
        )
