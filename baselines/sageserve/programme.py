"""How many instances of each LLM, in which region, on which GPUs: the integer programme of section 5.1.

    minimise  sum_k alpha_k sum_ij delta_ijk + sum_ijk sigma_ik max(0, delta_ijk)
    (region)  sum_k (n_ijk + delta_ijk) theta_ik >= max_w epsilon rho_ijw          for all i, j
    (all)     sum_jk (n_ijk + delta_ijk) theta_ik >= max_w sum_j rho_ijw           for all i
    (stock)   delta_ijk >= -n_ijk

To these come the capacity of each region (section 3.1: VMs that are there) and the smallest and
largest instance set of each endpoint (section 3.2). max(0, delta) is a variable of its own that is at
least delta and at least 0, which is exact since its cost is not negative.

Where capacity cannot serve the forecast, the printed programme has no answer. Then the demand that
cannot be met is made as small as it can be first, and the cost second; `missing` says how much it is.

The released code has the costs 10 and 150, epsilon = 1 and no sum across regions: `RELEASED_COSTS` and
`cross_region=False`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baselines.solver import SolverSettings, import_pulp, run, variable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RELEASED_COSTS = (10.0, 150.0)
"""alpha and sigma of the released code, for every GPU type and LLM."""

LARGEST = 1e15
"""Largest number of a problem: whole numbers up to here are exact as floats."""

EXACT = SolverSettings(gap=0.0, time_limit_s=10.0)


class NoPlan(RuntimeError):
    """The solver gave no answer at all."""


@dataclass(frozen=True)
class ProvisioningProblem:
    """One call of the programme. i: LLMs, j: regions, k: GPU types, w: windows of the next hour.

    Attributes:
        instances: n (i, j, k), instances now, those on their way included.
        demand: rho (i, j, w), tokens per second that clients of the region will ask for.
        throughput: theta (i, k), tokens per second of an instance; 0: the LLM does not run there.
        vm_cost: alpha (k), of acquiring a VM (given back when one is released, as printed).
        start_cost: sigma (i, k), of loading an LLM onto a VM.
        epsilon: share of its peak that a region serves itself, 0 < epsilon <= 1. The paper gives no
            number; the released code has 1.
        cross_region: ask that all regions together serve everything.
        capacity: (j, k) VMs that there are; None: no limit.
        vms_per_instance: (i, k); None: 1 (section 3.2: each VM is used by one instance).
        min_instances, max_instances: (i, j) of an endpoint over all GPU types; None: 0, no limit.

    Raises:
        ValueError: a shape that does not fit, or a value out of range.
    """

    instances: Ints
    demand: Floats
    throughput: Floats
    vm_cost: Floats
    start_cost: Floats
    epsilon: float = 1.0
    cross_region: bool = True
    capacity: Ints | None = None
    vms_per_instance: Ints | None = None
    min_instances: Ints | None = None
    max_instances: Ints | None = None
    shape: tuple[int, int, int] = field(init=False)

    def __post_init__(self) -> None:
        instances = np.asarray(self.instances)
        if instances.ndim != 3:
            raise ValueError(f"instances: expected shape (i, j, k), got {instances.shape}")
        i, j, k = instances.shape
        object.__setattr__(self, "shape", (i, j, k))
        windows = np.shape(self.demand)[2] if np.ndim(self.demand) == 3 else 1
        shapes: dict[str, tuple[int, ...]] = {
            "instances": (i, j, k),
            "demand": (i, j, windows),
            "throughput": (i, k),
            "vm_cost": (k,),
            "start_cost": (i, k),
            "capacity": (j, k),
            "vms_per_instance": (i, k),
            "min_instances": (i, j),
            "max_instances": (i, j),
        }
        for name, shape in shapes.items():
            value = getattr(self, name)
            if value is None:
                continue
            whole = name not in ("demand", "throughput", "vm_cost", "start_cost")
            array = np.asarray(value, np.int64 if whole else np.float64)
            if array.shape != shape or 0 in shape:
                raise ValueError(f"{name}: expected shape {shape}, got {array.shape}")
            if not ((array >= 0) & (array <= LARGEST)).all():
                raise ValueError(f"{name}: must be in 0..{LARGEST:g}")
            object.__setattr__(self, name, array)
        if not 0 < self.epsilon <= 1:
            raise ValueError(f"epsilon = {self.epsilon}: must be above 0 and at most 1")
        if self.vms_per_instance is None:
            object.__setattr__(self, "vms_per_instance", np.ones((i, k), np.int64))
        elif (self.vms_per_instance < 1).any():
            raise ValueError("vms_per_instance: must be at least 1")

    @property
    def regional(self) -> Floats:
        """(i, j) tokens per second that each region has to serve itself."""
        found: Floats = self.epsilon * self.demand.max(axis=2)
        return found

    @property
    def total(self) -> Floats:
        """(i,) tokens per second that all regions together have to serve; 0 if that is not asked."""
        found: Floats = self.demand.sum(axis=1).max(axis=1)
        return found if self.cross_region else np.zeros_like(found)

    def cost(self, delta: Ints) -> float:
        """Gamma + mu of a plan."""
        gamma = float((delta.sum(axis=(0, 1)) * self.vm_cost).sum())
        mu = float((np.maximum(delta, 0) * self.start_cost[:, None, :]).sum())
        return gamma + mu

    def missing(self, delta: Ints) -> float:
        """Demand that a plan does not serve, in instances of the LLM's fastest kind, over all limits.

        Of an LLM that runs nowhere a token per second counts as an instance.
        """
        served = ((self.instances + delta) * self.throughput[:, None, :]).sum(axis=2)
        most = self.throughput.max(axis=1)
        unit = np.where(most > 0, most, 1.0)
        regional = np.maximum(self.regional - served, 0.0) / unit[:, None]
        total = np.maximum(self.total - served.sum(axis=1), 0.0) / unit
        return float(regional.sum() + total.sum())


@dataclass(frozen=True)
class ProvisioningPlan:
    """The programme's answer.

    Attributes:
        delta: (i, j, k) instances to add (or, below 0, to give up).
        target: (i, j, k) instances after that.
        cost: gamma + mu.
        optimal: proved within the gap.
        missing: see `ProvisioningProblem.missing`; 0 where the printed programme has an answer.
    """

    delta: Ints
    target: Ints
    cost: float
    optimal: bool
    missing: float


def provision(
    problem: ProvisioningProblem, settings: SolverSettings | None = None
) -> ProvisioningPlan:
    """Solve the programme.

    Args:
        problem: see there.
        settings: gap and limits of the solver; None: optimal, within 10 s.

    Raises:
        SolverMissing: no PuLP, or no solver for it.
        NoPlan: limits that contradict each other (more instances at least than capacity holds), or
            nothing found in time.
    """
    settings = settings or EXACT
    model = _Model(problem)
    outcome = run(model.programme, settings)
    if not outcome.found:
        model = _Model(problem, soft=True)
        model.minimise_missing()
        least = run(model.programme, settings)
        if not least.found:
            why = (
                "limits contradict each other" if least.infeasible else "nothing was found in time"
            )
            raise NoPlan(f"no plan: {why}")
        model.hold_missing()
        outcome = run(model.programme, settings)
        if not outcome.found:
            raise NoPlan("no plan: nothing was found in time")
    delta = model.delta_values()
    return ProvisioningPlan(
        delta,
        problem.instances + delta,
        problem.cost(delta),
        outcome.optimal,
        problem.missing(delta) if model.slack else 0.0,
    )


class _Model:
    """The programme in PuLP, its demands counted in instances of each LLM's fastest kind."""

    def __init__(self, problem: ProvisioningProblem, *, soft: bool = False) -> None:
        pulp = import_pulp()
        self._pulp = pulp
        self.problem = problem
        self.programme = pulp.LpProblem("sageserve", pulp.LpMinimize)
        self.slack: list[Any] = []
        llms, regions, gpus = (range(n) for n in problem.shape)
        self._delta = {
            (i, j, k): self._change(i, j, k) for i in llms for j in regions for k in gpus
        }
        added = {}
        for (i, j, k), change in self._delta.items():
            added[i, j, k] = variable(self.programme, f"added_{i}_{j}_{k}")
            self.programme += added[i, j, k] >= change
        self._objective = pulp.lpSum(
            problem.vm_cost[k] * change + problem.start_cost[i, k] * added[i, j, k]
            for (i, j, k), change in self._delta.items()
        )
        self.programme.setObjective(self._objective)
        for i in llms:
            unit = float(problem.throughput[i].max())
            served = {
                j: pulp.lpSum(
                    (int(problem.instances[i, j, k]) + self._delta[i, j, k])
                    * float(problem.throughput[i, k] / unit)
                    for k in gpus
                )
                for j in regions
                if unit > 0
            }
            # What is beyond the limits of all instances is missing anyhow. Left in, it would be so large that
            # the solver's tolerance, a share of it, hides the instances that there are.
            most = [self._most(i, j) if soft else math.inf for j in regions]
            for j in regions:
                region = problem.regional[i, j]
                self._demand(served.get(j, 0), region, unit, most[j], f"{i}_{j}", soft)
            together = pulp.lpSum(served.values())
            self._demand(together, problem.total[i], unit, sum(most), f"{i}", soft)
        self._limits()

    def _change(self, i: int, j: int, k: int) -> Any:
        have = int(self.problem.instances[i, j, k])
        high = 0 if self.problem.throughput[i, k] == 0 else None
        return variable(self.programme, f"delta_{i}_{j}_{k}", -have, high, integer=True)

    def _most(self, i: int, j: int) -> float:
        """What instances of LLM i in region j serve at most, in those of its fastest kind."""
        p, speed = self.problem, self.problem.throughput[i]
        if not speed.max() > 0:
            return 0.0
        found = math.inf if p.max_instances is None else float(p.max_instances[i, j])
        if p.capacity is None:
            return found
        assert p.vms_per_instance is not None
        held = p.capacity[j] // p.vms_per_instance[i]
        return min(found, float((held * speed).sum() / speed.max()))

    def _demand(
        self, served: Any, demand: float, unit: float, most: float, name: str, soft: bool
    ) -> None:
        if demand <= 0:
            return
        needed = min(float(demand / unit) if unit > 0 else float(demand), most)
        short: Any = 0
        if soft:
            short = variable(self.programme, f"short_{name}")
            self.slack.append(short)
        elif unit == 0:
            short = variable(self.programme, f"never_{name}", 0.0, 0.0)
        self.programme += served + short >= needed

    def _limits(self) -> None:
        p, pulp = self.problem, self._pulp
        assert p.vms_per_instance is not None
        llms, regions, gpus = (range(n) for n in p.shape)
        for j in regions:
            for k in gpus:
                if p.capacity is not None:
                    held = pulp.lpSum(
                        int(p.vms_per_instance[i, k])
                        * (int(p.instances[i, j, k]) + self._delta[i, j, k])
                        for i in llms
                    )
                    self.programme += held <= int(p.capacity[j, k])
            for i in llms:
                held = pulp.lpSum(int(p.instances[i, j, k]) + self._delta[i, j, k] for k in gpus)
                if p.min_instances is not None:
                    self.programme += held >= int(p.min_instances[i, j])
                if p.max_instances is not None:
                    self.programme += held <= int(p.max_instances[i, j])

    def minimise_missing(self) -> None:
        """First of two steps: what cannot be served."""
        self.programme.setObjective(self._pulp.lpSum(self.slack))

    def hold_missing(self) -> None:
        """Second of two steps: the cost, with no more missing than the first found."""
        least = sum(float(each.varValue or 0.0) for each in self.slack)
        self.programme += self._pulp.lpSum(self.slack) <= least + 1e-6 * max(least, 1.0)
        self.programme.setObjective(self._objective)

    def delta_values(self) -> Ints:
        """(i, j, k) of the solution."""
        found = np.zeros(self.problem.shape, np.int64)
        for place, change in self._delta.items():
            found[place] = round(change.varValue or 0.0)
        return found
