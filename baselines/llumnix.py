"""Llumnix's autoscaler, as Chiron compares itself with it.

Chiron, section 6 ("Experiment Setup"): the autoscaler of Llumnix (Sun et al., 2024, arXiv 2406.03243)
"keeps average token utilization across all instances between a configurable threshold range by adding
and removing serving instances"; section 6.2: "Llumnix increases capacity gradually one instance at a
time"; appendix A.2: it "does not enable queuing" of batch requests and does not adapt the batch size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import model_validator

from baselines.fleet import UniformParameters, UniformPolicy
from baselines.parameters import BatchLimit, Finite, Positive
from baselines.space import BATCH_LIMIT, Choice, Real, Space
from llmscale_env.control.command import Command
from llmscale_env.control.view import ClusterView
from llmscale_env.sim.spec import InstanceState


class LlumnixParameters(UniformParameters):
    """Chiron's description, with Llumnix's own metric at hand.

    Attributes:
        metric: "utilisation" (Chiron's words): KV tokens in use and demanded by waiting requests, over
            KV capacity. "freeness" (Llumnix's own): -(free blocks - blocks waited for) / requests.
        low, high: range in which utilisation is kept. As shipped the setting with the best attainment over
            several workloads together, as Chiron's base version has it (docs/policies.md).
        freeness_low, freeness_high: the same for "freeness", in blocks per request; Llumnix ships
            -60 and -10.
        period_s: time between two looks; Llumnix ships 10 s.
        count_loading: instances that are still loading count as empty ones, as Llumnix counts those
            that it adds; otherwise only active ones do, and every look before they serve adds more.
        keep_below_high: an instance is removed only if the rest stays below `high` without it.
        rebalance: at every look, requests that wait at fuller instances move to emptier ones, so that an
            instance that has just come gets work (Llumnix reschedules across instances; here only
            requests that wait move, running ones stay where their KV memory is).
        batch_limit: of the same setting; it is also vLLM's default of `max_num_seqs`.
    """

    metric: Literal["utilisation", "freeness"] = "utilisation"
    low: Positive = 0.005
    high: Positive = 0.02
    freeness_low: Finite = -60.0
    freeness_high: Finite = -10.0
    period_s: Positive = 10.0
    count_loading: bool = True
    keep_below_high: bool = True
    rebalance: bool = True
    batch_limit: BatchLimit | None = 256

    @model_validator(mode="after")
    def _ordered(self) -> LlumnixParameters:
        for what in ("", "freeness_"):
            self._ascending(f"{what}low", f"{what}high")
        return self


def token_utilisation(kv_tokens: float, waiting_tokens: float, capacity_tokens: float) -> float:
    """KV tokens in use and waited for, over those that there are; above 1 when requests wait."""
    return (kv_tokens + waiting_tokens) / capacity_tokens


def freeness_load(
    kv_tokens: float,
    waiting_tokens: float,
    capacity_tokens: float,
    requests: int,
    block_tokens: int,
) -> float:
    """Llumnix's load: -(free blocks - blocks waited for) / requests; it rises towards 0 and above.

    An empty fleet counts as having one request.
    """
    free = (capacity_tokens - kv_tokens - waiting_tokens) / block_tokens
    return -free / max(requests, 1)


def evened_out(waiting: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Moves (from, to, count) after which the numbers of waiting requests differ by one at most.

    Args:
        waiting: requests that wait, by instance.
    """
    if not waiting:
        return []
    order = sorted(waiting, key=lambda i: (-waiting[i], i))
    low, more = divmod(sum(waiting.values()), len(order))
    surplus = {i: waiting[i] - low - (k < more) for k, i in enumerate(order)}
    givers = [i for i in order if surplus[i] > 0]
    takers = [i for i in reversed(order) if surplus[i] < 0]
    moves = []
    while givers and takers:
        source, target = givers[0], takers[0]
        count = min(surplus[source], -surplus[target])
        moves.append((source, target, count))
        surplus[source] -= count
        surplus[target] += count
        if surplus[source] == 0:
            givers.pop(0)
        if surplus[target] == 0:
            takers.pop(0)
    return moves


def even_moves(
    view: ClusterView, pools: Sequence[int], targets: Mapping[str, int]
) -> tuple[tuple[int, int, int], ...]:
    """Moves that even out what waits at the active instances of each pool.

    None while `targets` takes instances away: one that these orders drain routes what it holds itself, and
    cannot be moved to.
    """
    for p in pools:
        count = targets.get(view.scenario.fleet.pools[p].name)
        if count is not None and count < view.instances_of(p):
            return ()
    states = view.instances
    moves: list[tuple[int, int, int]] = []
    for p in pools:
        mine = np.flatnonzero(
            (view.instance_pool == p) & (states["state"] == int(InstanceState.ACTIVE))
        )
        moves += evened_out({int(i): int(states["waiting"][i]) for i in mine})
    return tuple(moves)


class RebalancingPolicy(UniformPolicy):
    """One whose parameters have `rebalance`: at every look waiting requests are evened out."""

    parameters: Any

    def act(self, view: ClusterView) -> Command:
        """Counts, and moves of waiting requests, whenever the period is over."""
        looks = view.step > 0 and view.time_s >= self._period.next_s - 1e-9
        command = super().act(view)
        if not (looks and self.parameters.rebalance):
            return command
        return replace(command, move_waiting=even_moves(view, self._pools, command.targets))


class LlumnixPolicy(RebalancingPolicy):
    """One instance more above the range, one fewer below it, for all classes alike.

    Where the papers leave a choice: the average is over all instances together (Llumnix sums its
    instances up before it divides); loading instances count as empty ones (`count_loading`); an
    instance goes only if the average stays below `high` without it (`keep_below_high`), since a flat
    range would otherwise make two instances one and one two for ever; a draining instance counts
    neither with its memory nor with its requests.
    """

    parameters_type = LlumnixParameters
    usual_name = "llumnix"
    parameters: LlumnixParameters

    GRID: ClassVar[dict[str, tuple[object, ...]]] = {
        "high": (0.02, 0.05, 0.1, 0.2, 0.4, 0.8),
        "low_share": (0.25, 0.5, 0.75),
        "batch_limit": (32, 64, 128, 256),
        "rebalance": (True, False),
    }
    SPACE: ClassVar[Space] = {
        "high": Real(0.003, 0.95, log=True),
        "low_share": Real(0.1, 0.9),
        "batch_limit": BATCH_LIMIT,
        "rebalance": Choice((True, False)),
    }
    """What `baselines.tune` sweeps and searches; `low = low_share * high`."""

    @staticmethod
    def of_grid(point: dict[str, float]) -> dict[str, float]:
        """Parameters of a point of `GRID`."""
        values = dict(point)
        share = values.pop("low_share")
        return {**values, "low": round(share * values["high"], 6)}

    def desired(self, view: ClusterView, p: int, have: int) -> tuple[int, str]:
        """`have`, or one more or fewer."""
        settings = self.parameters
        low, high = settings.low, settings.high
        if settings.metric == "freeness":
            low, high = settings.freeness_low, settings.freeness_high
        active = int(view.pools["active"][p])
        counted = have if settings.count_loading else active
        if counted == 0 or not view.pools[p]["active"]:
            return have, "nothing serves yet"
        load = self._load(view, p, counted)
        why = f"{settings.metric} {load:.3g}"
        if load > high:
            return have + 1, why
        spread = self._load(view, p, counted - 1) if counted > 1 else float("inf")
        if load < low and (spread <= high or not settings.keep_below_high):
            return have - 1, why
        return have, why

    def _load(self, view: ClusterView, p: int, instances: int) -> float:
        """The load of pool `p` if `instances` instances carried it."""
        seen = view.pools[p]
        states = view.instances
        going = states[(view.instance_pool == p) & (states["state"] == int(InstanceState.DRAINING))]
        kv = int(seen["kv_tokens"])  # of active instances
        waiting = int(seen["waiting_tokens"])
        active = int(seen["active"])
        each = int(seen["kv_capacity"]) / max(active, 1)
        if self.parameters.metric == "utilisation":
            return token_utilisation(kv, waiting, each * instances)
        requests = int(seen["running"] + seen["waiting"] + seen["preempted"])
        requests -= int((going["running"] + going["preempted"]).sum())
        block = view.scenario.fleet.block_tokens
        return freeness_load(kv, waiting, each * instances, requests, block)
