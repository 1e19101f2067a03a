"""Aladdin's policy: worker configuration, best-fit placement, re-balancing and scaling on a cluster.

The placement itself is the engine's rule `best-fit` (docs/engine.md, section 14), request by request as
they arrive; at each heartbeat the policy learns from reports and finished requests, corrects
predictions, moves what has not started, routes what waits, and sets the number of workers.
"""

from __future__ import annotations

from copy import deepcopy
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
    prefill_gpus,
    profiled,
    starting_number,
)
from baselines.aladdin.learning import WorkerBook
from baselines.aladdin.moves import ErrorLedger, Outlived, Seen, early, errors_of, moves
from baselines.aladdin.online import SATURATING_TOKENS
from baselines.aladdin.performance import KvUse
from baselines.aladdin.prediction import (
    ConditionalMean,
    Constant,
    Oracle,
    OutputPredictor,
    under_estimated,
)
from baselines.aladdin.scaling import Rate, WorkerDemand, requests_per_worker
from baselines.aladdin.simple import starting_command
from baselines.fleet import Period
from baselines.parameters import Parameters, PolicyError, Positive, PositiveCount, checked
from baselines.space import Choice, Real, Space
from llmscale_env.control.command import Command
from llmscale_env.control.reward import draw_requests
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
        fallback: what becomes of a request that no worker may take: it waits, or goes to the least full;
            None: as the scenario says.
        saved_over: in (d), T_dec times the "intervals" between an ongoing request's tokens, as ATGT is
            measured, or times its "tokens", as printed.
        predict: output lengths of new requests: as the scenario has "given" them, by the mean of the
            finished ones with such a prompt ("history"), the same for all ("constant"), or as they
            will be ("oracle", which no system has: the policy's name says so). The policy's own
            reach the router at the first heartbeat that sees a request; it is placed by the
            scenario's if that is later.
        constant_tokens: that "constant" predicts; None: the mean of the history.
        repredict: the router is told when requests that outlive their prediction are predicted again.
        rebalance: Algorithm 2.
        span: its errors are accumulated for "outstanding" requests, or are those that have come to
            light since the last "heartbeat".
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
        rate: that Eq. 7 is asked for: since the last change point ("changes"), of the whole "window"
            that is remembered, or of the "last" period.
        line: Eq. 7 is fitted to experience ("learnt"), or stays what models and history say ("prior").
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
    fallback: Literal["wait", "least"] | None = None
    saved_over: Literal["intervals", "tokens"] = "intervals"
    predict: Literal["given", "history", "constant", "oracle"] = "given"
    constant_tokens: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    repredict: bool = True
    rebalance: bool = True
    span: Literal["outstanding", "heartbeat"] = "outstanding"
    objective: Literal["sum", "squares"] = "sum"
    errors: Literal["increase", "printed"] = "increase"
    check: bool = True
    prompts: Literal["history", "saturating"] = "history"
    relearn: bool = True
    refit_s: Positive = 5.0
    period_s: Positive = 10.0
    false_alarm: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    rate: Rate = "changes"
    line: Literal["learnt", "prior"] = "learnt"
    patience: Annotated[float, Field(ge=0, le=1)] = 0.25


class AladdinPolicy:
    """See `AladdinParameters`.

    Args:
        name: as it is shown in tables; " (oracle)" follows where the predictor knows the truth.
        predictor: of output lengths, in place of `predict`; every episode begins with a copy of it,
            to which the history is told.
        values: fields of the parameters.

    Attributes:
        oracle: whether output lengths are known beforehand, as no system knows them.

    Raises:
        PolicyError: an unknown parameter, a value that is not allowed, or a predictor that is none.
    """

    parameters_type = AladdinParameters
    parameters: AladdinParameters

    @staticmethod
    def space_of(scenario: Scenario) -> Space:
        """What a search of settings is over: workers, their constraints, and how their number follows."""
        degrees = tuple(sorted({pool.tp for pool in scenario.fleet.pools}))
        return {
            "tp": Choice((None, *degrees)),
            "gamma": Real(0.0, 1.0),
            "theta": Real(0.3, 1.0),
            "norm": Choice(("literal", "scaled")),
            "fallback": Choice(("wait", "least")),
            "rebalance": Choice((True, False)),
            "prompts": Choice(("history", "saturating")),
            "rate": Choice(("changes", "window", "last")),
            "period_s": Real(2.0, 60.0, log=True),
            "patience": Real(0.0, 1.0),
        }

    def __init__(
        self, name: str = "aladdin", predictor: OutputPredictor | None = None, **values: object
    ) -> None:
        self.parameters = p = checked(name, AladdinParameters, values)
        if predictor is not None:
            if not isinstance(predictor, OutputPredictor):
                raise PolicyError(
                    f"{name}: predictor = {predictor!r}: must be an OutputPredictor "
                    "(by name: predict=history, constant or oracle)"
                )
            if "predict" in values:
                raise PolicyError(f"{name}: predict = {p.predict!r}: not beside a predictor")
        if p.constant_tokens is not None and p.predict != "constant":
            raise PolicyError(
                f"{name}: constant_tokens = {p.constant_tokens:g}: needs predict=constant"
            )
        self._given = predictor
        self.oracle = p.predict == "oracle" if predictor is None else bool(predictor.oracle)
        self.name = f"{name} (oracle)" if self.oracle else name

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
        number = starting_number(scenario, self.workers, p.workers, p.prefill_workers, self.name)
        prompts = inputs if p.prompts == "history" else None
        decode = profiled(scenario, self._pool, prompts)
        prefill = decode
        if self.workers.prefill is not None:
            prefill = profiled(scenario, scenario.fleet.pools[self.workers.prefill], prompts)
        self._profile = decode
        self._prefill_s = prefill.prefill.seconds(float(np.mean(inputs)))
        short = 0.0 if p.prompts == "history" else SATURATING_TOKENS
        self.book = WorkerBook(prefill, decode, shortest_tokens=short)
        self.predictor = self._predictor(scenario, seed, outputs)
        self.predictor.observe(inputs, outputs)
        self._itl_s = min(c.itl_s for c in scenario.classes)
        self._ttft_s = min(c.ttft_s for c in scenario.classes)
        self.demand = self._demand(number, inputs, outputs)
        self._refit = Period(p.refit_s)
        self._ended: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._before: Seen | None = None
        self._errors = ErrorLedger(self._itl_s, p.errors == "printed")
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
            "scaled_norm": p.norm == "scaled",
            "saved_over_tokens": p.saved_over == "tokens",
        }
        if p.fallback is not None:
            settings["fallback"] = p.fallback
        self._start = replace(start, placement={c.name: settings for c in scenario.classes})

    def _predictor(
        self, scenario: Scenario, seed: int, outputs: NDArray[np.int32]
    ) -> OutputPredictor:
        p = self.parameters
        self._truth: NDArray[np.int32] | None = None
        if self._given is not None:
            return deepcopy(self._given)
        if p.predict == "constant":
            return Constant(p.constant_tokens or float(np.mean(outputs)))
        if p.predict == "oracle":
            drawn = draw_requests(scenario, np.random.default_rng(seed))
            self._truth = drawn.input_tokens
            return Oracle(drawn.output_tokens)
        return ConditionalMean()

    def _demand(
        self, number: int, inputs: NDArray[np.int32], outputs: NDArray[np.int32]
    ) -> WorkerDemand | None:
        p, fleet = self.parameters, self.scenario.fleet
        pools, tp = fleet.pools, self._pool.tp
        started = sum(
            pools[k].initial_instances * pools[k].tp
            for k in (self.workers.pool, *self.workers.others)
        )
        held = prefill_gpus(self.scenario, self.workers, p.prefill_workers)
        left = fleet.max_gpus - started - held
        if not (p.scale if p.scale is not None else p.workers is None and left >= tp):
            return None
        prefill = None if self.workers.prefill is None else pools[self.workers.prefill]
        if prefill is not None and not p.prefill_workers:  # their number follows the rate, too
            held = prefill.tp * prefill.max_instances
        most = min(max((fleet.max_gpus - held) // tp, number), self._pool.max_instances)
        if prefill is not None:
            rest = (fleet.max_gpus - most * tp) // prefill.tp
            self._most_prefill = min(rest, prefill.max_instances)
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
            most=most,
            rate_of=p.rate,
            learns=p.line == "learnt",
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
            self.predictor.observe(np.concatenate(inputs), np.concatenate(outputs))
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
        predicted, believed, outlived, corrections = self._predict(under_way)
        assign = None
        if p.rebalance and len(serving) > 1:
            workers = serving.tolist()
            if p.span == "outstanding":
                self._errors.forget(under_way, view.time_s)
                self._errors.fail(outlived)
                self._errors.end(early(self._before, finished), view.time_s)
                errors = self._errors.errors(workers)
            else:
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
            if len(found[0]):
                assign = found
                self._note_moves(under_way, predicted, found)
        waiting = (under_way.instance < 0) & ((under_way.emitted_tokens > 0) == self._split)
        targets = self._scale(view, under_way, waiting, serving)
        self._before = Seen.of(under_way, believed)
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
        NDArray[np.int64],
        Outlived,
        tuple[NDArray[np.int64], NDArray[np.int64]] | None,
    ]:
        """The router's predictions from now on, the policy's, what has been outlived, and what the
        engine is told.

        The policy's differ where the router is not told that a prediction has failed: Algorithm 2
        asks for the new one in any case.
        """
        p, ids = self.parameters, under_way.request_id
        told = under_way.predicted_output_tokens.astype(np.int64)
        now = told.copy()
        there, at = np.zeros(len(ids), bool), np.zeros(len(ids), np.int64)
        if self._before is not None:
            there, at = self._before.find(ids)
        if (p.predict != "given" or self._given is not None) and not there.all():
            fresh = ~there
            self._check(ids[fresh], under_way.input_tokens[fresh])
            guess = self.predictor.predict(ids[fresh], under_way.input_tokens[fresh])
            now[fresh] = np.clip(np.rint(guess), 1, LONGEST).astype(np.int64)
        planned = now.copy()
        if self._before is not None and not p.repredict:
            planned[there] = self._before.predicted[at[there]]
        some, new = under_estimated(
            self.predictor, ids, under_way.input_tokens, planned, under_way.emitted_tokens
        )
        failed = np.flatnonzero(np.isin(ids, some))
        known = planned.copy()
        known[failed] = np.clip(np.ceil(new), 1, LONGEST).astype(np.int64)
        outlived = Outlived(ids[failed], under_way.instance[failed], planned[failed], known[failed])
        if p.repredict:
            now = known
        changed = np.flatnonzero(now != told)
        corrections = None
        if len(changed):
            corrections = ids[changed].astype(np.int64), now[changed]
        return now, known, outlived, corrections

    def _check(self, requests: NDArray[np.int64], inputs: NDArray[np.int64]) -> None:
        """The oracle's requests are those of the episode, or it would be wrong without a word."""
        truth = self._truth
        if truth is None:
            return
        if int(requests.max()) >= len(truth) or (truth[requests] != inputs).any():
            raise PolicyError(
                f"{self.name}: predict = 'oracle' knows the requests that the scenario draws from the "
                "episode's seed; of others give AladdinPolicy(predictor=Oracle(output_tokens))"
            )

    def _note_moves(
        self,
        under_way: RequestsUnderWay,
        predicted: NDArray[np.int64],
        found: tuple[NDArray[np.int64], NDArray[np.int64]],
    ) -> None:
        """Lines 17 to 20 of Algorithm 2 for the heartbeats to come."""
        for request, to in zip(*(column.tolist() for column in found), strict=True):
            (k,) = np.flatnonzero(under_way.request_id == request)
            self._errors.move(request, int(under_way.instance[k]), to, int(predicted[k]))

    def _rules_of(self, instance: int) -> Rules:
        """Limits of a worker, with the models that the router has of it."""
        if instance not in self._rules:
            p, pool = self.parameters, self._pool
            capacity = self._tables.kv_capacity_tokens
            self._rules[instance] = Rules(
                prefill=self.book.prefill_of(instance),
                decode=self.book.decode_of(instance),
                kv_capacity=float(capacity - int(pool.watermark * capacity)),
                ttft_slo_s=self._ttft_s,
                itl_slo_s=self._itl_s,
                kv=KvUse(1.0, self.scenario.fleet.block_tokens // 2 + 1.0),
                gamma=p.gamma,
                theta=p.theta,
                batch_limit=float(pool.batch_limit),
                decode_only=self._split,
                saved_over=p.saved_over,
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
            targets[pool.name] = int(np.clip(np.ceil(load) + 1, 1, self._most_prefill))
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
