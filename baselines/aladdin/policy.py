"""Aladdin's policy: worker configuration, best-fit placement, re-balancing and scaling on a cluster.

The placement itself is the engine's rule `best-fit` (docs/engine.md, section 14), request by request as
they arrive; at each heartbeat the policy learns from reports and finished requests, corrects
predictions, moves what has not started, routes what waits, and sets the number of workers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from baselines.aladdin.configuration import RequestTokens
from baselines.aladdin.constraints import Rules
from baselines.aladdin.fleet import (
    PREFILL_LOAD,
    choose,
    history,
    profiled,
    starting_number,
)
from baselines.aladdin.learning import WorkerBook
from baselines.aladdin.moves import Seen, errors_of, moves
from baselines.aladdin.online import SATURATING_TOKENS
from baselines.aladdin.performance import KvUse
from baselines.aladdin.prediction import ConditionalMean, under_estimated
from baselines.aladdin.scaling import WorkerDemand, requests_per_worker
from baselines.aladdin.simple import starting_command
from baselines.fleet import Period
from baselines.parameters import Parameters, PolicyError, Positive, PositiveCount, checked
from llmscale_env.control.command import Command
from llmscale_env.control.view import ClusterView, RequestsUnderWay
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import pool_tables
from llmscale_env.sim.spec import InstanceState

LONGEST = 1_000_000
"""No prediction is longer."""


class AladdinParameters(Parameters):
    """Aladdin (Nie et al., 2024), and what can be switched off.

    Attributes:
        tp: GPUs of a worker; None: the best (Eq. 6).
        workers: how many at the start (decode workers, where phases are split); None: as many as the
            GPUs that the scenario starts with allow.
        prefill_workers: of split phases; None: as the scenario starts, or as the rate asks.
        scale: their number follows the demand (Eq. 7); None: it does where the scenario has GPUs left
            and `workers` is not given.
        gamma: strictness of (b): share of outputs that keep the decode SLO.
        theta: share of the slack in (b) and (d).
        norm: of a worker's load: as printed ("literal"), or in shares of what it holds ("scaled").
        fallback: what becomes of a request that no worker may take: it waits, or goes to the least full.
        predict: output lengths: as the scenario "given" them, or of new requests by the mean of the
            finished ones with such a prompt ("history").
        repredict: requests that outlive their prediction are predicted again.
        rebalance: Algorithm 2.
        objective: its sum of distances, or of their squares.
        errors: of outlived predictions only the "increase" counts, or all of the new one ("printed").
        check: a move has to keep the constraints (the paper does not ask).
        prompts: what Eq. 2 is fitted to. "history": prompts as they come, whatever their length; a short
            one takes as long as reading the weights, several times what a line through long ones says, and
            (d) then lets decoding requests miss. "saturating": prompts that "saturate the worker's computing
            power", for which the paper gives Eq. 2.
        relearn: performance models follow the workers' reports.
        refit_s: how often all models are fitted anew and finished requests enter the history; a worker
            that has drifted is fitted at once.
        period_s: of the count of arrivals for Eq. 7.
        false_alarm: chance of a false change point at one look.
        patience: share of the TTFT target that a request may wait for a worker before one is opened
            (0: Algorithm 1's at once).
    """

    tp: Annotated[int, Field(ge=1, le=8)] | None = None
    workers: PositiveCount | None = None
    prefill_workers: PositiveCount | None = None
    scale: bool | None = None
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.5
    theta: Annotated[float, Field(gt=0, le=1)] = 0.9
    norm: Literal["literal", "scaled"] = "literal"
    fallback: Literal["wait", "least"] = "wait"
    predict: Literal["given", "history"] = "given"
    repredict: bool = True
    rebalance: bool = True
    objective: Literal["sum", "squares"] = "sum"
    errors: Literal["increase", "printed"] = "increase"
    check: bool = True
    prompts: Literal["history", "saturating"] = "history"
    relearn: bool = True
    refit_s: Positive = 5.0
    period_s: Positive = 10.0
    false_alarm: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    patience: Annotated[float, Field(ge=0, le=1)] = 0.25


class AladdinPolicy:
    """See `AladdinParameters`.

    Args:
        name: as it is shown in tables.
        values: fields of the parameters.
    """

    def __init__(self, name: str = "aladdin", **values: object) -> None:
        self.name = name
        self.parameters = checked(name, AladdinParameters, values)

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Start an episode: choose the workers' degree, profile them, take up the history.

        Raises:
            PolicyError: several LLMs, no placement on the routes, an unknown degree, too many workers,
                or SLOs that no worker keeps.
        """
        p = self.parameters
        inputs, outputs = history(scenario)
        self.workers = choose(scenario, self.name, RequestTokens.of(inputs, outputs), p.tp)
        route = scenario.route_of(scenario.fleet.llms[0], scenario.classes[0].name)
        if route.placement is None:
            raise PolicyError(
                f"{self.name}: scenario {scenario.name!r} has no placement on its routes"
            )
        self.scenario = scenario
        self._pool = scenario.fleet.pools[self.workers.pool]
        self._split = self.workers.prefill is not None
        number = starting_number(scenario, self.workers, p.workers, self.name)
        prompts = inputs if p.prompts == "history" else None
        decode = profiled(scenario, self._pool, prompts)
        prefill = decode
        if self.workers.prefill is not None:
            prefill = profiled(scenario, scenario.fleet.pools[self.workers.prefill], prompts)
        self._profile = decode
        self._prefill_s = prefill.prefill.seconds(float(np.mean(inputs)))
        short = 0.0 if p.prompts == "history" else SATURATING_TOKENS
        self.book = WorkerBook(prefill, decode, shortest_tokens=short)
        self.history = ConditionalMean()
        self.history.observe(inputs, outputs)
        self._itl_s = min(c.itl_s for c in scenario.classes)
        self._ttft_s = min(c.ttft_s for c in scenario.classes)
        self.demand = self._demand(number, inputs, outputs)
        self._refit = Period(p.refit_s)
        self._ended: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._before: Seen | None = None
        self._pool_of: NDArray[np.int64] = np.zeros(0, np.int64)
        self._rules: dict[int, Rules] = {}
        self._tables = pool_tables(scenario, self._pool)
        start = starting_command(scenario, self.workers, number, p.prefill_workers, "best-fit")
        c1, k1, c3, c2, k2 = self.book.profiled
        settings: dict[str, Any] = {
            "prefill_const_s": max(c1, 1e-9),
            "prefill_per_token_s": k1,
            "decode_const_s": c3,
            "decode_per_request_s": c2,
            "decode_per_token_s": k2,
            "gamma": p.gamma,
            "theta": p.theta,
            "fallback": p.fallback,
            "scaled_norm": p.norm == "scaled",
        }
        self._start = replace(start, placement={c.name: settings for c in scenario.classes})

    def _demand(
        self, number: int, inputs: NDArray[np.int32], outputs: NDArray[np.int32]
    ) -> WorkerDemand | None:
        p, pools = self.parameters, self.scenario.fleet.pools
        used = [self.workers.pool, *self.workers.others]
        if self.workers.prefill is not None:
            used.append(self.workers.prefill)
        left = self.scenario.fleet.max_gpus - sum(
            pools[k].initial_instances * pools[k].tp for k in used
        )
        if not (p.scale if p.scale is not None else p.workers is None and left >= self._pool.tp):
            return None
        held = 0
        if self.workers.prefill is not None:
            prefill = pools[self.workers.prefill]
            held = prefill.tp * prefill.max_instances
        room = (self.scenario.fleet.max_gpus - held) // self._pool.tp
        try:
            per_worker = requests_per_worker(
                None if self._split else self._profile.prefill,
                self._profile.decode,
                self._profile.kv_capacity_tokens,
                self._itl_s,
                inputs,
                outputs,
                p.theta,
            )
        except ValueError as error:
            raise PolicyError(f"{self.name}: {error}") from None
        return WorkerDemand.start(
            per_worker,
            inputs,
            outputs,
            period_s=p.period_s,
            false_alarm=p.false_alarm,
            most=max(1, min(room, self._pool.max_instances)),
        )

    def act(self, view: ClusterView) -> Command:
        """One heartbeat."""
        if view.step == 0:
            self._pool_of = view.instance_pool
            self._refit.due(view.time_s)
            return self._start
        p = self.parameters
        command = Command()
        finished = view.finished
        self._ended.append((finished.input_tokens, finished.output_tokens))
        refit = self._refit.due(view.time_s)
        if refit:
            inputs, outputs = zip(*self._ended, strict=True)
            self.history.observe(np.concatenate(inputs), np.concatenate(outputs))
            self._ended.clear()
        serving = np.flatnonzero(
            (self._pool_of == self.workers.pool) & (view.instances["state"] == InstanceState.ACTIVE)
        )
        models: dict[int, Any] = {}
        if p.relearn:
            some = self.book.observe(view, serving)
            models = self.book.news(self.book.learners() if refit else some)
            for i in models:
                self._rules.pop(i, None)
        under_way = view.under_way
        predicted, outlived, corrections = self._predict(under_way)
        assign = None
        if p.rebalance and len(serving) > 1:
            workers = serving.tolist()
            errors = errors_of(workers, self._before, finished, outlived, p.errors == "printed")
            found = moves(
                workers,
                errors,
                [self.book.decode_of(i) for i in workers],
                under_way,
                predicted,
                view.time_s,
                self._rules_of if p.check else None,
                p.objective,
            )
            assign = found if len(found[0]) else None
        waiting = (under_way.instance < 0) & ((under_way.emitted_tokens > 0) == self._split)
        targets = self._scale(view, under_way, waiting, serving)
        self._before = Seen.of(under_way, predicted)
        if models or corrections or assign or targets or waiting.any():
            command = Command(
                targets=targets,
                placement_models=models,
                predictions=corrections,
                assign=assign,
                route_gateway=self.scenario.fleet.llms if waiting.any() else (),
                reason=_words(models, corrections, assign, targets, int(waiting.sum())),
            )
        return command

    def _predict(
        self, under_way: RequestsUnderWay
    ) -> tuple[
        NDArray[np.int64],
        tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
        tuple[NDArray[np.int64], NDArray[np.int64]] | None,
    ]:
        """Predictions from now on; instance, old and new one of those outlived; what the engine is told."""
        p = self.parameters
        old = under_way.predicted_output_tokens.astype(np.int64)
        now = old.copy()
        if p.predict == "history":
            fresh = under_way.movable & (under_way.emitted_tokens == 0)
            if self._before is not None:
                fresh &= ~self._before.find(under_way.request_id)[0]
            guess = self.history.predict(under_way.request_id[fresh], under_way.input_tokens[fresh])
            now[fresh] = np.clip(np.rint(guess), 1, LONGEST).astype(np.int64)
        outlived = np.zeros(0, np.int64)
        if p.repredict:
            ids, new = under_estimated(
                self.history,
                under_way.request_id,
                under_way.input_tokens,
                now,
                under_way.emitted_tokens,
            )
            outlived = np.flatnonzero(np.isin(under_way.request_id, ids))
            now[outlived] = np.clip(np.ceil(new), 1, LONGEST).astype(np.int64)
        changed = np.flatnonzero(now != old)
        told = None
        if len(changed):
            told = under_way.request_id[changed].astype(np.int64), now[changed]
        triple = under_way.instance[outlived], old[outlived], now[outlived]
        return now, triple, told

    def _rules_of(self, instance: int) -> Rules:
        """Limits of a worker, with the models that the router has of it."""
        if instance not in self._rules:
            p, pool = self.parameters, self._pool
            capacity = self._tables.kv_capacity_tokens
            self._rules[instance] = Rules(
                prefill=self.book.prefill_of(instance),
                decode=self.book.decode_of(instance),
                kv_capacity=float(capacity - int(pool.kv_watermark * capacity)),
                ttft_slo_s=self._ttft_s,
                itl_slo_s=self._itl_s,
                kv=KvUse(1.0, self.scenario.fleet.block_tokens // 2 + 1.0),
                gamma=p.gamma,
                theta=p.theta,
                batch_limit=float(pool.batch_limit),
                decode_only=self._split,
            )
        return self._rules[instance]

    def _scale(
        self,
        view: ClusterView,
        under_way: RequestsUnderWay,
        waiting: NDArray[np.bool_],
        serving: NDArray[np.int64],
    ) -> dict[str, int]:
        """New numbers of workers; empty without news."""
        if self.demand is None:
            return {}
        have = view.instances_of(self.workers.pool)
        # Algorithm 1 opens a worker for a request that none takes (line 12).
        overdue = 0
        if waiting.any():
            if self._split:
                overdue = int(waiting.sum())
            else:
                limit = self.parameters.patience * self._ttft_s
                overdue = int((view.time_s - under_way.arrival_s[waiting] >= limit).sum())
        opened = min(overdue, 1)
        busy = len(np.intersect1d(under_way.instance, serving)) + opened
        wanted = self.demand.observe(view.time_s, int(view.window.arrived.sum()), busy)
        targets = {}
        number = have
        if wanted is not None:
            number = wanted
        if opened:
            number = max(number, min(have + opened, self.demand.most))
        if number != have:
            targets[self._pool.name] = number
        prefill = self.workers.prefill
        if wanted is not None and prefill is not None and not self.parameters.prefill_workers:
            pool = self.scenario.fleet.pools[prefill]
            load = self.demand.rate * self._prefill_s / PREFILL_LOAD
            targets[pool.name] = int(np.clip(np.ceil(load) + 1, 1, pool.max_instances))
        return targets


def _words(
    models: dict[int, Any], corrections: Any, assign: Any, targets: dict[str, int], waiting: int
) -> str:
    parts = []
    if targets:
        parts.append("workers " + ", ".join(f"{name} {n}" for name, n in targets.items()))
    if models:
        parts.append(f"{len(models)} models learnt")
    if corrections is not None:
        parts.append(f"{len(corrections[0])} predictions corrected")
    if assign is not None:
        parts.append(f"{len(assign[0])} moved")
    if waiting:
        parts.append(f"{waiting} waited")
    return "; ".join(parts)
