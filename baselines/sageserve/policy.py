"""SageServe and what it compares itself with, as policies of a cluster with regions.

What happens at each arrival (routing, scaling at the endpoint, signals of the queue manager) is in the
engine, by the parameters of the scenario's pools (`scaling`, cooldown included), routes and queue
manager. A policy says which rule the pools go by, at which thresholds, and once an hour what they are to
reach: forecast (section 6.4), then integer programme (section 5.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from baselines.parameters import NamedPolicy, NonNegative, Parameters, PolicyError
from baselines.sageserve.endpoints import Endpoints
from baselines.sageserve.forecast import (
    DAY_S,
    DemandForecast,
    ForecastSettings,
    arima,
    holt_winters,
    in_sample,
    oracle,
    seasonal,
)
from baselines.sageserve.programme import (
    RELEASED_COSTS,
    NoPlan,
    ProvisioningPlan,
    ProvisioningProblem,
    provision,
)
from baselines.space import Choice, Real, Space
from llmscale_env.control.command import Command
from llmscale_env.control.demand import Demand, DemandRecord
from llmscale_env.control.forecast import FORECASTERS, Forecaster, make_forecaster
from llmscale_env.control.regions import ScalingOrder
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.regions import ScalingConfig
from llmscale_env.scenarios.schema import Scenario

TOLERANCE_S = 1e-6
THRESHOLDS_OF = {"paper": {"high": 0.7, "low": 0.3}, "released": {"high": 0.5, "low": 0.25}}
"""Effective memory utilisations to scale by, in the text (section 7.2) and in the released code."""
SEES_FUTURE = ("oracle", "in-sample")
"""Forecasts that are ablations: they are told what will come."""


LONGEST_SEASON_S = 366 * DAY_S


class ScalingParameters(Parameters):
    """At which utilisation pools scale.

    Attributes:
        thresholds: "scenario": the numbers of the pools' `scaling`, by default the paper's text; "paper": the
            text's 70 and 30 %; "released": the released code's 50 and 25 %.
        high, low: utilisations in place of those; None: by `thresholds`.
    """

    thresholds: Literal["scenario", "paper", "released"] = "scenario"
    high: Annotated[float, Field(ge=1e-6, le=10)] | None = None
    low: Annotated[float, Field(ge=0, le=10)] | None = None

    def changes(self) -> dict[str, float]:
        """What differs from the numbers of the pools' `scaling`."""
        own = {"high": self.high, "low": self.low}
        found = THRESHOLDS_OF.get(self.thresholds, {}) | {
            name: value for name, value in own.items() if value is not None
        }
        # In millionths, as engines compare them: what is equal there is refused, not passed over.
        return {name: round(value, 6) for name, value in found.items()}


THRESHOLDS: Space = {"high": Real(0.3, 1.0), "low_share": Real(0.1, 0.9)}
"""What a search of thresholds is over: the upper one, and what share of it the lower one is."""


def thresholds_of(point: dict[str, Any]) -> dict[str, Any]:
    """Parameters of a point of `THRESHOLDS`, with whatever else it has."""
    values = {key: value for key, value in point.items() if key != "low_share"}
    if "low_share" in point:
        values["low"] = values["high"] * point["low_share"]
    return values


class ReactivePolicy(NamedPolicy):
    """The status quo: every pool scales by its utilisation when a request reaches its region (section 7.2).

    "reactive" is the unified form, in which an endpoint serves everything; "siloed" wants separate
    pools for what can wait (role "batch"; section 4).
    """

    parameters_type = ScalingParameters
    parameters: ScalingParameters
    usual_name = "reactive"
    siloed: ClassVar[bool] = False
    SPACE: ClassVar[Space] = THRESHOLDS
    of_grid = staticmethod(thresholds_of)

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Look for the pools.

        Raises:
            PolicyError: a pool has no `scaling`, or not with such thresholds; or the scenario is siloed and
                the policy is not, or the other way round.
        """
        pools = scenario.fleet.pools
        changes = self.parameters.changes()
        check_scaling(scenario, self.name, changes)
        if is_siloed(scenario) != self.siloed:
            which = "pools of role batch" if self.siloed else "no pools of role batch"
            raise PolicyError(
                f"{self.name}: scenario {scenario.name!r}: needs {which}, as "
                f"{'sageserve-siloed-day' if self.siloed else 'sageserve-day'} has"
            )
        order = ScalingOrder("reactive", thresholds=changes)
        self._orders = {pool.name: order for pool in pools}

    def act(self, view: ClusterView) -> Command:
        """The rule at the first decision, nothing afterwards."""
        if view.step > 0:
            return Command()
        return Command(scaling=self._orders, reason="reactive")


class SiloedPolicy(ReactivePolicy):
    """Separate pools, each reactive (section 4)."""

    usual_name = "siloed"
    siloed = True


def check_scaling(scenario: Scenario, policy: str, changes: Mapping[str, float]) -> None:
    """Refuse a scenario some of whose pools have no rule of scaling, or not with these thresholds."""
    for pool in scenario.fleet.pools:
        if pool.scaling is None:
            raise PolicyError(
                f"{policy}: pool {pool.name!r} has no scaling; those of 'sageserve-day' have"
            )
        try:
            ScalingConfig.model_validate(pool.scaling.model_dump() | dict(changes))
        except ValidationError as error:
            why = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            raise PolicyError(f"{policy}: pool {pool.name!r}: {why}") from None


def is_siloed(scenario: Scenario) -> bool:
    """Whether some pools are for what can wait."""
    return any(pool.role == "batch" for pool in scenario.fleet.pools)


class LongTermParameters(ScalingParameters):
    """How the hour is planned; cooldown and length of the hour are the scenario's (`scaling`).

    Attributes:
        forecast: "arima"; "seasonal-naive" (last season); another name of `llmscale_env.control.forecast`, or
            a forecaster; or the ablations "oracle" and "in-sample", which are told what will come.
        season_s: season of "arima" (in Fourier terms), "holt-winters" and "seasonal-naive"; 0: none. None: a
            day for "seasonal-naive", none for the others. The scenario's `history_s` has to hold it: until
            then the forecast is that without a season.
        level_s: "seasonal-naive" multiplies last season by the load of so long over that one season before
            (ours); 0: last season as it was.
        harmonics: pairs of Fourier terms of "arima" with a season; None: 8 for each day of it.
        order: (p, d, q) of "arima" and "in-sample", at most (100, 2, 100); None: the released code's
            (3, 1, 2), with a season (2, 0, 1), since the season leaves nothing to be differenced (ours).
        train_s: what a fit of "arima" takes in at most, not below six hours and two seasons; None: two days,
            or two seasons where they are longer.
        bin_s: width of the windows (15 minutes; released code: 60 s).
        lead_s: windows that begin earlier than this ahead do not count (released code: 1200).
        beta: buffer, as a share of the load of the past hour that can wait.
        epsilon: share of its peak that a region serves itself, above 0 and at most 1 (section 5.1, without a
            number; released code: 1).
        cross_region: all regions together serve everything (not in the released code).
        vm_cost, start_cost: alpha and sigma of the objective (released code).
        theta_ttft_s: tokens per second of an instance are those at which 95 % of interactive requests have
            their first token within this time (`baselines.sageserve.profile`; section 3.2: "at a certain
            target latency"). Ours: 20 s; within the released code's 10 s one in twenty of Bloom's prompts is
            not even prefilled. None: what an instance serves if nobody ever waits.
        theta_itl: whether they also have to keep the ITL that the scenario charges them for
            (`baselines.sageserve.endpoints.charged_itl_s`). The paper's service levels are of TTFT.
        expected: what LT-UA holds the observed load against: "then", the mean forecast of the time in which
            it looks (the last 20 minutes; released code: of that minute), or "peak", that of the hour's peak.
        above, below: of observed over expected load, at which LT-UA goes out, and in; None: the pools' own
            (section 6.5.1: 5 and 0.5).
        last_s: time at the end of the hour in which LT-UA looks at the load; None: the pools' own (20 min).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    forecast: str | Forecaster = "arima"
    season_s: Annotated[float, Field(ge=0, le=LONGEST_SEASON_S)] | None = None
    level_s: Annotated[float, Field(ge=0, le=LONGEST_SEASON_S)] = 0.0
    harmonics: Annotated[int, Field(ge=1, le=1000)] | None = None
    order: tuple[int, int, int] | None = None
    train_s: Annotated[float, Field(gt=0, le=LONGEST_SEASON_S, allow_inf_nan=False)] | None = None
    bin_s: Annotated[float, Field(ge=1, le=3600, allow_inf_nan=False)] = 900.0
    lead_s: NonNegative = 0.0
    beta: Annotated[float, Field(ge=0, le=10)] = 0.1
    epsilon: Annotated[float, Field(gt=0, le=1)] = 1.0
    cross_region: bool = True
    vm_cost: Annotated[float, Field(ge=0, le=1e6)] = RELEASED_COSTS[0]
    start_cost: Annotated[float, Field(ge=0, le=1e6)] = RELEASED_COSTS[1]
    theta_ttft_s: Annotated[float, Field(gt=0, le=DAY_S)] | None = 20.0
    theta_itl: bool = True
    expected: Literal["then", "peak"] = "then"
    above: Annotated[float, Field(ge=1e-6, le=1000)] | None = None
    below: Annotated[float, Field(ge=0, le=1000)] | None = None
    last_s: NonNegative | None = None

    @field_validator("order", mode="before")
    @classmethod
    def _three(cls, value: Any) -> Any:
        if value is None:
            return None
        try:
            p, d, q = (
                int(str(part)) for part in (value.split(",") if isinstance(value, str) else value)
            )
        except (TypeError, ValueError):
            p = d = q = -1
        if not (0 <= p <= 100 and 0 <= d <= 2 and 0 <= q <= 100):
            raise ValueError("must be three whole numbers p,d,q: p and q in 0..100, d in 0..2")
        return p, d, q

    @field_validator("forecast", mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        known = [
            *SEES_FUTURE,
            *(name for name, kind in FORECASTERS.items() if not kind.is_clairvoyant),
        ]
        own = isinstance(value, Forecaster) and not value.is_clairvoyant
        if not own and (not isinstance(value, str) or value not in known):
            raise ValueError(f"must be one of {sorted(known)}, or a Forecaster not told the future")
        return value

    @model_validator(mode="after")
    def _of_use(self) -> LongTermParameters:
        season = f"season_s = {self.season_s}"
        if self.season_s and self.season_s < 3 * self.bin_s:
            raise ValueError(
                f"{season}: must be 0 or at least three bins of bin_s = {self.bin_s:g}"
            )
        if self.season_s and self.forecast not in ("arima", "holt-winters", "seasonal-naive"):
            raise ValueError(f"{season}: for forecast = arima, holt-winters or seasonal-naive only")
        if self.train_s is not None:
            train = f"train_s = {self.train_s:g}"
            if self.forecast != "arima":
                raise ValueError(f"{train}: for forecast = arima only")
            least = max(2 * (self.season_s or 0.0), DAY_S / 4)
            if self.train_s < least:
                raise ValueError(f"{train}: must be at least {least:g}: six hours and two seasons")
        if self.order and self.forecast not in ("arima", "in-sample"):
            raise ValueError(f"order = {self.order}: for forecast = arima or in-sample only")
        if self.forecast == "seasonal-naive" and self.season_s == 0:
            raise ValueError("season_s = 0: must be above 0 for forecast = seasonal-naive")
        if self.level_s and self.forecast != "seasonal-naive":
            raise ValueError(f"level_s = {self.level_s:g}: for forecast = seasonal-naive only")
        if self.harmonics and not (self.forecast == "arima" and self.season_s):
            raise ValueError(
                f"harmonics = {self.harmonics}: for forecast = arima with a season_s only"
            )
        return self

    def changes(self) -> dict[str, float]:
        own = {"above": self.above, "below": self.below, "last_s": self.last_s}
        named = {name: round(value, 6) for name, value in own.items() if value is not None}
        return super().changes() | named

    @property
    def orders(self) -> tuple[int, int, int]:
        """(p, d, q) of ARIMA."""
        seasonal = self.forecast == "arima" and self.season_s
        return self.order or ((2, 0, 1) if seasonal else (3, 1, 2))

    def settings(self) -> ForecastSettings:
        """For `DemandForecast`."""
        bin_s, season_s = self.bin_s, self.season_s or 0.0
        made: Any = self.forecast
        if isinstance(made, str) and made in ("arima", *SEES_FUTURE):
            made = arima(
                self.orders,
                bin_s=bin_s,
                train_s=2 * DAY_S if self.train_s is None else self.train_s,
                season_s=season_s,
                harmonics=self.harmonics,
            )
        elif made == "seasonal-naive":
            season_s = DAY_S if self.season_s is None else season_s
            made = seasonal(season_s, bin_s=bin_s, level_s=self.level_s)
        elif made == "holt-winters":
            made = holt_winters(season_s, bin_s=bin_s)
        return ForecastSettings(made, bin_s=bin_s, lead_s=self.lead_s, beta=self.beta)


class LongTermPolicy(NamedPolicy):
    """LT-I, LT-U and LT-UA: plans for an hour, carried out at once or as utilisation asks for it (6.5.1).

    Until there is anything to forecast from, pools are reactive (ours). What LT-I could not start for want
    of VMs it orders again at the next decision.

    Attributes:
        rule: "immediate", "target" or "target-ahead".

    Raises:
        PolicyError: a parameter that is unknown or not allowed.
    """

    parameters_type = LongTermParameters
    usual_name = "lt-i"
    parameters: LongTermParameters
    rule: ClassVar[Literal["immediate", "target", "target-ahead"]] = "immediate"
    SPACE: ClassVar[Space] = {
        **THRESHOLDS,
        "forecast": Choice(("arima", "seasonal-naive", "holt-winters")),
        "beta": Real(0.0, 1.0),
        "epsilon": Real(0.5, 1.0),
        "theta_ttft_s": Real(15.0, 120.0, log=True),
    }
    of_grid = staticmethod(thresholds_of)

    def __init__(self, name: str = "", **values: Any) -> None:
        super().__init__(name, **values)
        try:
            self._settings = self.parameters.settings()
            make_forecaster(self._settings.forecaster)
        except ValueError as error:
            raise PolicyError(f"{self.name}: {error}") from None
        self._endpoints: tuple[Scenario, Endpoints] | None = None

    @property
    def is_clairvoyant(self) -> bool:
        """Whether it is an ablation that is told what will come."""
        forecast = self.parameters.forecast
        return isinstance(forecast, str) and forecast in SEES_FUTURE

    def reset(self, scenario: Scenario, seed: int) -> None:
        """Look for the endpoints.

        Raises:
            PolicyError: a scenario that it cannot plan for.
        """
        self._thresholds = self.parameters.changes()
        check_scaling(scenario, self.name, self._thresholds)
        if is_siloed(scenario):
            raise PolicyError(
                f"{self.name}: scenario {scenario.name!r} is siloed; it plans for such as 'sageserve-day'"
            )
        if self._endpoints is None or self._endpoints[0] != scenario:
            p = self.parameters
            endpoints = Endpoints(
                scenario, self.name, theta_ttft_s=p.theta_ttft_s, theta_itl=p.theta_itl
            )
            self._endpoints = (scenario, endpoints)
        self._scenario = scenario
        self._pools = [pool.name for pool in scenario.fleet.pools]
        self._begin(None)

    def set_future(self, demand: DemandRecord) -> None:
        """What will come, for the ablations."""
        all_of_it = demand.all(self.parameters.bin_s)
        came = self._load(all_of_it, interactive=True)
        if self.parameters.forecast == "oracle":
            self._begin(oracle(came))
        else:
            self._begin(in_sample(came, self.parameters.orders))

    def _begin(self, future: NDArray[np.float64] | None) -> None:
        places = self.endpoints.places
        sizes = (len(places.llms), len(places.regions))
        self.forecast = DemandForecast(*sizes, self._settings, future)
        self._observed = 0
        self._next_s = 0.0
        self._targets: dict[str, int] = {}

    @property
    def endpoints(self) -> Endpoints:
        """Of the scenario."""
        assert self._endpoints is not None, "reset comes first"
        return self._endpoints[1]

    def act(self, view: ClusterView) -> Command:
        """A plan at the beginning of every hour."""
        again = {
            name: target
            for p, name in enumerate(self._pools)
            if (target := self._targets.get(name)) is not None and view.instances_of(p) != target
        }
        if view.time_s < self._next_s - TOLERANCE_S:
            return Command(targets=again)
        period = self.endpoints.period_s
        self._next_s = (np.floor(view.time_s / period + TOLERANCE_S) + 1) * period
        self._observe(view.demand(self.parameters.bin_s))
        if not self._observed:
            order = ScalingOrder("reactive", thresholds=self._thresholds)
            reactive = dict.fromkeys(self._pools, order)
            return Command(scaling=reactive, reason="nothing to forecast from: reactive")
        problem = self.problem(view)
        try:
            plan = provision(problem)
        except NoPlan as error:
            return Command(targets=again, reason=f"{error}; as before")
        return self._command(problem, plan)

    def _observe(self, demand: Demand) -> None:
        interactive = self._load(demand, interactive=True)
        background = self._load(demand, interactive=False)
        for k in range(self._observed, len(interactive)):
            self.forecast.observe(interactive[k], background[k])
        self._observed = len(interactive)

    def _load(self, demand: Demand, *, interactive: bool) -> NDArray[np.float64]:
        """(k, i, j) tokens per second of the requests that are served at once, or of the others."""
        mine = self.endpoints.interactive == interactive
        found: NDArray[np.float64] = demand.tokens_per_s[..., mine].sum(axis=-1)
        return found

    def problem(self, view: ClusterView) -> ProvisioningProblem:
        """The programme for the next hour."""
        p, endpoints, seen = self.parameters, self.endpoints, view.regions
        ahead = self.forecast.ahead()
        self._ahead = ahead
        n_llms, _, n_kinds = endpoints.pool.shape
        return ProvisioningProblem(
            instances=endpoints.instances(seen),
            demand=ahead.windows,
            throughput=endpoints.theta,
            vm_cost=np.full(n_kinds, p.vm_cost),
            start_cost=np.full((n_llms, n_kinds), p.start_cost),
            epsilon=p.epsilon,
            cross_region=p.cross_region,
            capacity=endpoints.capacity(seen),
            min_instances=endpoints.least,
            max_instances=endpoints.most,
        )

    def _expected(self, p: int, i: int, j: int) -> float:
        """Tokens per second that LT-UA holds the load of pool `p`, of LLM i and region j, against."""
        rule = self._scenario.fleet.pools[p].scaling
        if rule is None or self.parameters.expected == "peak":
            return float(self._ahead.peak[i, j])
        last_s = self._thresholds.get("last_s", rule.last_s)
        return float(self._ahead.mean(rule.period_s - last_s, rule.period_s)[i, j])

    def _command(self, problem: ProvisioningProblem, plan: ProvisioningPlan) -> Command:
        targets, orders = {}, {}
        kind = "none" if self.rule == "immediate" else self.rule
        for i, j, k in np.argwhere(self.endpoints.pool >= 0).tolist():
            pool = int(self.endpoints.pool[i, j, k])
            name = self._pools[pool]
            targets[name] = int(plan.target[i, j, k])
            load = self._expected(pool, i, j)
            orders[name] = ScalingOrder(kind, targets[name], load, self._thresholds)
        reason = (
            f"{problem.instances.sum()} to {plan.target.sum()} instances for "
            f"{self._ahead.peak.sum():.0f} tokens/s (error {100 * self._ahead.error.mean():.0f} %), "
            f"{'optimal' if plan.optimal else 'not proved optimal'}"
        )
        if plan.missing > 0:
            reason += f", {plan.missing:.2f} instances missing"
        if self.rule != "immediate":
            return Command(scaling=orders, reason=reason)
        self._targets = targets
        return Command(targets=targets, scaling=orders, reason=reason)


class TargetPolicy(LongTermPolicy):
    """LT-U: plans are carried out as utilisation asks for it."""

    usual_name = "lt-u"
    rule = "target"


class TargetAheadPolicy(LongTermPolicy):
    """LT-UA: likewise, and beyond the plan where the load is far from the forecast."""

    usual_name = "lt-ua"
    rule = "target-ahead"
    SPACE: ClassVar[Space] = {
        **LongTermPolicy.SPACE,
        "above": Real(1.1, 10.0, log=True),
        "below": Real(0.1, 0.9),
    }
