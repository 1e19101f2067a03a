"""Two instances execute batches together while one of them loads: BlitzScale's Figure 12, step by step.

The target executes first layers of batches, the source takes batches in order and executes what is left of
each. Time counts in executions of one layer of a batch of weight 1, from when the target has its first
layer. How far the target goes with a batch is one of

- `pull`: zigzag as the released code does it, without a programme: whenever the target is free it
  executes one layer of the first batch, in order, whose next layer it has and which the source has not
  taken; the source takes the head with the layers that are done by then;
- `best-effort`: as many layers as it has, at most half, once for each batch;
- a `Pipeline` of the programme: the same order as `pull`, up to T_i layers, and the source waits for them.

The source takes no batch that the target could execute a layer of and has not touched, and none while the
target is at it (ours, as the engines: docs/engine.md). If both could take one at the same time, the
source is first with a batch that the target has worked on. A batch of which the target has executed all
layers is done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from baselines.blitzscale.zigzag import Pipeline

Rule = Literal["pull", "best-effort"]
SOURCE, TARGET = "source", "target"


@dataclass(frozen=True)
class Step:
    """Layers that an instance executes in one go.

    Attributes:
        instance: `SOURCE` or `TARGET`.
        batch: number, from 0 on.
        first: layer, from 0 on.
        layers: how many.
        begin, end: times.
    """

    instance: str
    batch: int
    first: int
    layers: int
    begin: float
    end: float


@dataclass(frozen=True)
class Execution:
    """What both instances did.

    Attributes:
        layers: of the LLM.
        steps: by time.
        finished: (n,) end of each batch.
        taken: (n,) when the target, or the source without it, first took the batch.
    """

    layers: int
    steps: tuple[Step, ...]
    finished: tuple[float, ...]
    taken: tuple[float, ...]

    @property
    def target_layers(self) -> tuple[int, ...]:
        """Layers of each batch that the target executed."""
        return tuple(
            sum(s.layers for s in self.steps if s.batch == batch and s.instance == TARGET)
            for batch in range(len(self.finished))
        )

    def latency(self, batch: int) -> float:
        """Time of a batch from when it was first taken: Figure 12 counts so."""
        return self.finished[batch] - self.taken[batch]


def loaded_at(layers: int, load_time: float) -> tuple[float, ...]:
    """Times at which layers come, one every `load_time`, the first at 0."""
    return tuple(k * load_time for k in range(layers))


def execute(
    rule: Rule | Pipeline,
    loads: Sequence[float],
    weights: Sequence[float],
    *,
    arrivals: Sequence[float] | None = None,
) -> Execution:
    """Both instances at work until all batches are done.

    Args:
        rule: see the module.
        loads: (L,) when the target has each layer, ascending; infinite: never.
        weights: (n,) time of a layer of each batch.
        arrivals: (n,) when each batch is there, ascending; all at 0 if left out.

    Raises:
        ValueError: no layers, times that do not ascend, or a pipeline of another shape.
    """
    come = tuple(arrivals or (0.0,) * len(weights))
    _check(rule, loads, weights, come)
    return _Pair(rule, tuple(loads), tuple(weights), come).run()


class _Pair:
    """State of both instances."""

    def __init__(
        self,
        rule: Rule | Pipeline,
        loads: tuple[float, ...],
        weights: tuple[float, ...],
        come: tuple[float, ...],
    ) -> None:
        self.rule = rule
        self.loads = loads
        self.weights = weights
        self.come = come
        n = len(weights)
        self.layers = len(loads)
        self.done = [0] * n  # by the target
        self.by_source = [False] * n
        self.finished = [math.inf] * n
        self.taken = [math.inf] * n
        self.at: dict[str, Step | None] = {SOURCE: None, TARGET: None}
        self.steps: list[Step] = []

    def run(self) -> Execution:
        """Events until nothing is left."""
        now = 0.0
        while True:
            self._end(now)
            while self._begin(now):
                pass
            ahead = [step.end for step in self.at.values() if step is not None]
            if not all(math.isfinite(end) for end in self.finished):
                ahead += [time for time in (*self.loads, *self.come) if now < time < math.inf]
            if not ahead:
                break
            now = min(ahead)
        return Execution(self.layers, tuple(self.steps), tuple(self.finished), tuple(self.taken))

    def _end(self, now: float) -> None:
        for instance, step in self.at.items():
            if step is None or step.end > now:
                continue
            self.at[instance] = None
            if instance == TARGET:
                self.done[step.batch] += step.layers
            if instance == SOURCE or self.done[step.batch] == self.layers:
                self.finished[step.batch] = now

    def _begin(self, now: float) -> bool:
        """One step of one instance, if any can begin."""
        loaded = sum(time <= now for time in self.loads)
        waiting = [
            batch
            for batch, time in enumerate(self.come)
            if time <= now and not self.by_source[batch] and self.done[batch] < self.layers
        ]
        if self.at[SOURCE] is None and waiting:
            head = waiting[0]
            busy = self.at[TARGET]
            if (busy is None or busy.batch != head) and not self._wants(head, loaded):
                self.by_source[head] = True
                self._step(SOURCE, head, self.done[head], self.layers - self.done[head], now)
                return True
        if self.at[TARGET] is None:
            for batch in waiting:
                layers = self._go(batch, loaded)
                if layers:
                    self._step(TARGET, batch, self.done[batch], layers, now)
                    return True
        return False

    def _wants(self, head: int, loaded: int) -> bool:
        """Whether the target is to work on the batch before the source may take it."""
        if isinstance(self.rule, Pipeline):
            return self.done[head] < self.rule.target_layers[head]
        return self.done[head] == 0 and loaded > 0

    def _go(self, batch: int, loaded: int) -> int:
        """Layers that the target would execute of a batch now."""
        done = self.done[batch]
        if self.rule == "best-effort":
            return min(loaded, max(1, self.layers // 2)) if done == 0 else 0
        most = self.layers
        if isinstance(self.rule, Pipeline):
            most = self.rule.target_layers[batch]
        return int(done < min(loaded, most))

    def _step(self, instance: str, batch: int, first: int, layers: int, now: float) -> None:
        step = Step(instance, batch, first, layers, now, now + layers * self.weights[batch])
        self.at[instance] = step
        self.taken[batch] = min(self.taken[batch], now)
        self.steps.append(step)


def _check(
    rule: Rule | Pipeline,
    loads: Sequence[float],
    weights: Sequence[float],
    come: Sequence[float],
) -> None:
    if not loads or list(loads) != sorted(loads):
        raise ValueError(f"loads = {list(loads)}: must be ascending times, one for each layer")
    if not weights or min(weights) <= 0:
        raise ValueError(f"weights = {list(weights)}: must be positive numbers")
    if len(come) != len(weights) or list(come) != sorted(come) or not math.isfinite(come[-1]):
        raise ValueError(f"arrivals = {list(come)}: must be {len(weights)} ascending times")
    if isinstance(rule, Pipeline):
        shape = (rule.layers, len(rule.target_layers))
        if shape != (len(loads), len(weights)):
            raise ValueError(
                f"rule: a pipeline of {shape[1]} batches and {shape[0]} layers, for {len(weights)} "
                f"and {len(loads)}"
            )
        last = max(rule.target_layers)
        if last and not math.isfinite(loads[last - 1]):
            raise ValueError(
                f"loads[{last - 1}] is infinite, and the pipeline waits for that layer"
            )
    elif rule not in ("pull", "best-effort"):
        raise ValueError(f"rule = {rule!r}: must be 'pull', 'best-effort' or a Pipeline")
