"""Pipeline configurations of live scaling: BlitzScale's integer programme (section 5.2, Eq. 1).

While a new instance (the target) loads, batches are executed by both: the target runs the first T_i
layers of batch i and the overloaded instance (the source) the other S_i. The programme chooses T_i so
that the average latency at the source is small:

    min  sum over batches of (S_1 + ... + S_req) / N
    C1   S_i + T_i = L
    C2   T_1 + ... + T_i <= S_1 + ... + S_(i-1)       for i > 1: done at the target in time
    C3   Time_l * T_i <= T_1 + ... + T_(i-1)          for i > 1: loaded in time, as printed

Time counts in executions of one layer, from when the source begins with the first batch; the target has
its first layer loaded and executed by then. As printed, C3 compares loading with the target's work, not
with time, and binds no first batch: for L = 7, Time_l = 6, N = 6 it lets the target run three layers of
that at once and none of the others, an average of 21.5, more than best effort's 21.0. What the text
says ("when the target instance executes request i's T_i layers, all these layers must be loaded") is

    C3'  Time_l * (T_i - 1) <= S_1 + ... + S_(i-1)

since the source takes batch i at the time on the right, and layer T_i comes at the time on the left. It
gives T = (1, 2, 2, 3, 4, 4) and 17.0. That form is the default, the printed one a variant.

Batches of unequal tokens get weights, their tokens relative to a batch of weight 1 (the paper's
"regulation parameter": prefill time of a layer is about linear in tokens), by which their layers'
times are multiplied. `Time_l` is in layers of weight 1. C3' leaves the target the time of one layer of
the first batch to execute one that has just come: for a heavier batch that is too short, and the source
waits for the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from baselines.solver import SolverSettings, import_pulp, run, variable

Form = Literal["corrected", "printed"]


@dataclass(frozen=True)
class Pipeline:
    """How many layers of each batch the target executes.

    Attributes:
        layers: of the LLM (L).
        target_layers: of each batch, first come first (T_i).
        weights: time of a layer of each batch.
        optimal: the solver has proved it.
    """

    layers: int
    target_layers: tuple[int, ...]
    weights: tuple[float, ...]
    optimal: bool = False

    @property
    def source_layers(self) -> tuple[int, ...]:
        """Layers of each batch that the source executes (S_i)."""
        return tuple(self.layers - t for t in self.target_layers)

    @property
    def latencies(self) -> tuple[float, ...]:
        """When the source has finished each batch, from when it begins with the first."""
        done, found = 0.0, []
        for weight, layers in zip(self.weights, self.source_layers, strict=True):
            done += weight * layers
            found.append(done)
        return tuple(found)

    @property
    def average(self) -> float:
        """Mean of `latencies`: what the programme minimises."""
        return sum(self.latencies) / len(self.latencies)

    def breaks(self, load_time: float, form: Form = "corrected") -> tuple[str, ...]:
        """Constraints that it does not keep, as "C2 of batch 3"."""
        found = []
        source = target = own = 0.0
        pairs = zip(self.weights, self.target_layers, strict=True)
        for i, (weight, t) in enumerate(pairs, start=1):
            own += weight * t
            loading = load_time * t - target if form == "printed" else load_time * (t - 1) - source
            if not 0 <= t <= self.layers:
                found.append(f"C1 of batch {i}")
            if i > 1 and own > source + 1e-9:
                found.append(f"C2 of batch {i}")
            if (i > 1 or form == "corrected") and loading > 1e-9:
                found.append(f"C3 of batch {i}")
            source += weight * (self.layers - t)
            target = own
        return tuple(found)


def best_effort(
    layers: int, loaded: int, batches: int, weights: Sequence[float] | None = None
) -> Pipeline:
    """As many layers of each batch on the target as are loaded, but not more than half.

    Args:
        layers: of the LLM.
        loaded: on the target, when batches come to it.
        batches: how many.
        weights: see `Pipeline`; all 1 if left out.
    """
    _check(layers, batches, 1.0, weights)
    take = max(0, min(loaded, max(1, layers // 2)))
    return Pipeline(layers, (take,) * batches, tuple(weights or (1.0,) * batches))


def zigzag(
    layers: int,
    load_time: float,
    batches: int,
    *,
    weights: Sequence[float] | None = None,
    form: Form = "corrected",
    settings: SolverSettings | None = None,
) -> Pipeline:
    """The integer programme.

    Args:
        layers: of the LLM (L).
        load_time: time to load a layer, in executions of a layer of weight 1 (Time_l).
        batches: that are served while it loads (N).
        weights: time of a layer of each batch; all 1 if left out.
        form: of C3, see the module.
        settings: of the solver. Of equally good answers it depends on the solver which one comes.

    Raises:
        SolverMissing: PuLP or a solver is not installed.
        ValueError: a number out of range.
        RuntimeError: the solver ended without an answer.
    """
    _check(layers, batches, load_time, weights)
    weight = tuple(weights or (1.0,) * batches)
    pulp = import_pulp()
    programme = pulp.LpProblem("zigzag", pulp.LpMinimize)
    # C1: S_i = L - T_i
    t = [variable(programme, f"T_{i}", 0, layers, integer=True) for i in range(batches)]
    # The latency of every batch from i on holds S_i.
    programme += pulp.lpSum(
        (batches - i) / batches * weight[i] * (layers - t[i]) for i in range(batches)
    )
    if form == "corrected":
        programme += load_time * (t[0] - 1) <= 0
    for i in range(1, batches):
        own = pulp.lpSum(weight[j] * t[j] for j in range(i))
        source = pulp.lpSum(weight[j] * (layers - t[j]) for j in range(i))
        programme += own + weight[i] * t[i] <= source
        if form == "corrected":
            programme += load_time * (t[i] - 1) <= source
        else:
            programme += load_time * t[i] <= own
    outcome = run(programme, settings or SolverSettings(gap=0.0))
    if not outcome.found:
        raise RuntimeError(f"no answer for {batches} batches of {layers} layers: {outcome}")
    found = tuple(round(each.varValue) for each in t)
    return Pipeline(layers, found, weight, outcome.optimal)


def _check(layers: int, batches: int, load_time: float, weights: Sequence[float] | None) -> None:
    if layers < 1:
        raise ValueError(f"layers = {layers}: must be at least 1")
    if batches < 1:
        raise ValueError(f"batches = {batches}: must be at least 1")
    if not load_time > 0:
        raise ValueError(f"load_time = {load_time}: must be positive")
    if weights is not None and (len(weights) != batches or min(weights) <= 0):
        raise ValueError(f"weights = {list(weights)}: must be {batches} positive numbers")
