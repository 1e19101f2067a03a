"""One loop for every policy: handwritten, learned or clairvoyant."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.forecast import Forecaster, make_forecaster
from llmscale_env.control.metric_delay import DelayedCluster
from llmscale_env.control.policy import Policy, is_policy
from llmscale_env.control.results.region_result import has_regions, region_summary
from llmscale_env.control.results.series import Column, SeriesRecorder
from llmscale_env.control.results.streamed_columns import StreamedColumns
from llmscale_env.control.reward import draw_chunks, draw_requests
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.control.snapshot import FORECAST_QUANTILES
from llmscale_env.control.unfinished_work import lost_at_horizon
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import pool_load_times_s, ps
from llmscale_env.sim.machine_metrics import summarise_prefix_caches
from llmscale_env.sim.metrics import RequestColumns, request_columns
from llmscale_env.sim.picoseconds import seconds
from llmscale_env.workload.requests import PS_PER_S, RequestTable

if TYPE_CHECKING:
    from llmscale_env.control.results.result import EpisodeResult


CHUNK_S = 4 * 3600.0
"""Requests of so long a time are drawn at once, where they are drawn piece by piece."""


def load_steps(scenario: Scenario) -> int:
    """Control intervals until an instance ordered now serves (the slowest pool's usual source)."""
    seconds = max(
        pool.spot.reclaim_median_s
        if pool.spot
        else pool.acquire_s + pool_load_times_s(scenario, pool)[pool.load_source]
        for pool in scenario.fleet.pools
    )
    return max(1, int(np.ceil(seconds / scenario.control_interval_s)))


def forecast_quantiles(forecaster: Forecaster, steps: int) -> NDArray[np.float64]:
    """(n, 2) `FORECAST_QUANTILES` of each series, `steps` intervals ahead."""
    return forecaster.predict_quantiles(steps, FORECAST_QUANTILES).T


def true_rates(scenario: Scenario, requests: RequestTable) -> NDArray[np.float64]:
    """(n_steps, C) arrivals per interval and class: what only a clairvoyant is told."""
    counts = np.zeros((scenario.n_steps, len(scenario.classes)))
    step = (requests.arrival_s // scenario.control_interval_s).astype(np.int64)
    np.add.at(counts, (np.minimum(step, scenario.n_steps - 1), requests.slo_class), 1)
    return counts


def run_episode(
    policy: Policy,
    scenario: str | Scenario,
    seed: int = 0,
    *,
    requests: RequestTable | None = None,
    forecaster: Forecaster | str | dict[str, Any] | None = "ewma",
    custom_router: object | None = None,
    simulation: ClusterSimulation | None = None,
    engine: str | None = None,
) -> EpisodeResult:
    """Let `policy` run the scenario's cluster for one episode.

    The policy is asked at time 0 and then after every control interval (`Scenario.decisions` may say: also at
    arrivals). The same seed gives the same
    requests, whichever policy runs, and the same as `env.reset(seed=seed)`.

    Args:
        policy: see `Policy`.
        scenario: what is simulated: a `Scenario`, the name of one, or the path of a YAML file.
        seed: of the requests (and of a policy that draws).
        requests: a table in place of the drawn one, sorted, with the scenario's LLMs and classes.
        forecaster: what `view.forecast_rate_per_s` comes from; None for nothing.
        custom_router: see `llmscale_env.sim.custom_router`.
        simulation: one of the same scenario, with one episode, to use again, which saves its making.
        engine: "fast", or "reference": the readable one (docs/architecture.md), with the same result. None:
            that of the `simulation`, "fast" without one.

    Raises:
        CommandError: the policy ordered something impossible (as the scenario says).
        ScenarioError: an unknown scenario.
        TypeError: `policy` is none, such as the name of one.
        ValueError: `requests` names other LLMs, classes or instances than the scenario; or `simulation` has
            another scenario, engine or router, or several episodes.
    """
    from llmscale_env.control.results.result import EpisodeResult, request_frame

    scenario, sim = _prepared(policy, scenario, simulation, custom_router, engine)
    if requests is None:
        requests = draw_requests(scenario, np.random.default_rng(seed))
    _check_names(scenario, requests)
    sim.start(0, requests)
    behind = DelayedCluster(sim) if scenario.delay_steps else None
    if behind is not None:
        behind.start(0, requests)
    forecasts = _Forecasts(forecaster, scenario, requests)
    policy.reset(scenario, seed)
    if getattr(policy, "is_clairvoyant", False):
        policy.set_future(sim.demand(0))  # type: ignore[attr-defined]
    series, decisions = _play(policy, sim, forecasts, behind=behind)
    horizon_ps = ps(scenario.horizon_s)
    results = sim.engine.results(0)
    columns = request_columns(
        requests,
        results,
        scenario.classes,
        horizon_ps,
        scenario.itl_statistic,
        lost=lost_at_horizon(scenario, requests, results, horizon_ps),
    )
    return EpisodeResult.from_columns(
        requests=columns,
        frame=request_frame(requests, results, scenario, horizon_ps),
        **_outcome(policy, scenario, seed, columns, sim, series, decisions),
    )


def run_streamed(
    policy: Policy,
    scenario: str | Scenario,
    seed: int = 0,
    *,
    chunk_s: float = CHUNK_S,
    forecaster: Forecaster | str | dict[str, Any] | None = "ewma",
    custom_router: object | None = None,
    simulation: ClusterSimulation | None = None,
    engine: str | None = None,
) -> EpisodeResult:
    """As `run_episode`, for episodes of many millions of requests, which are never there all at once.

    Requests are drawn piece by piece, and forgotten when they are done but for `RequestColumns`
    (47 bytes each, latencies in float32): the result has `EpisodeResult.from_columns`' short frame, and
    latencies in its summary are those of float32 numbers. All else is bit for bit as in `run_episode`.

    Args:
        policy, forecaster: as in `run_episode`; neither may be clairvoyant.
        scenario, seed, custom_router, simulation, engine: as in `run_episode`.
        chunk_s: length of a piece.

    Raises:
        CommandError, ScenarioError, TypeError: as there.
        ValueError: as there; a policy that is to be told the future, which is not there; a cluster with
            flows (see `EngineBatch.extend`) or with a metric delay; a `chunk_s` that is not positive.
    """
    from llmscale_env.control.results.result import EpisodeResult

    scenario, sim = _prepared(policy, scenario, simulation, custom_router, engine)
    if scenario.delay_steps:
        raise ValueError(
            f"metric_delay_s = {scenario.metric_delay_s:g}: must be 0 where requests are streamed"
        )

    chunks = draw_chunks(scenario, np.random.default_rng(seed), chunk_s)
    loaded_ps, requests = next(chunks)
    sim.start(0, requests)
    forecasts = _Forecasts(forecaster, scenario, None)
    policy.reset(scenario, seed)
    if getattr(policy, "is_clairvoyant", False):
        raise ValueError(
            f"{policy.name}: is told the future, which a streamed episode does not have"
        )
    kept = StreamedColumns()

    def keep(table: RequestTable, results: NDArray[Any], at_end: bool = False) -> None:
        now_ps = sim.engine.now_ps(0)
        kept.add(
            request_columns(
                table,
                results,
                scenario.classes,
                now_ps,
                scenario.itl_statistic,
                np.float32,
                lost_at_horizon(scenario, table, results, now_ps) if at_end else None,
            )
        )

    def feed() -> None:
        """What comes until the next decision has to be there; who is done makes room."""
        nonlocal loaded_ps
        needed_ps = int(sim.interval_end_ps(sim.interval)[0])
        if loaded_ps < needed_ps:
            keep(*sim.retire(0))
        while loaded_ps < needed_ps:
            loaded_ps, later = next(chunks)
            sim.extend(0, later)

    series, decisions = _play(policy, sim, forecasts, feed)
    known = sim.requests[0]
    assert known is not None, "it has been started above"
    keep(known, sim.engine.results(0), at_end=True)
    columns = kept.all()
    return EpisodeResult.from_columns(
        requests=columns, **_outcome(policy, scenario, seed, columns, sim, series, decisions)
    )


def _prepared(
    policy: Policy,
    scenario: str | Scenario,
    simulation: ClusterSimulation | None,
    custom_router: object | None,
    engine: str | None,
) -> tuple[Scenario, ClusterSimulation]:
    """The scenario, and the simulation if it is one for it, or a new one."""
    if not is_policy(policy):
        raise TypeError(
            f"policy = {policy!r}: must be a policy, with `name`, `reset` and `act`, such as "
            'baselines.make_policy("static") makes by name'
        )
    if not isinstance(scenario, Scenario):
        scenario = load_scenario(scenario)
    if simulation is None:
        engine = "fast" if engine is None else engine
        return scenario, ClusterSimulation(scenario, custom_router=custom_router, engine=engine)
    if simulation.n_episodes != 1:
        raise ValueError(f"simulation: has {simulation.n_episodes} episodes: must have one")
    if simulation.scenario != scenario:
        raise ValueError(
            f"simulation: has scenario {simulation.scenario.name!r}: must equal the one to run "
            f"({scenario.name!r}) in every field"
        )
    for name, given, has in (
        ("engine", engine, simulation.engine_name),
        ("custom_router", custom_router, simulation.custom_router),
    ):
        if given is not None and given != has:
            raise ValueError(f"{name} = {given!r}: the simulation has {has!r}")
    return scenario, simulation


def _check_names(scenario: Scenario, requests: RequestTable) -> None:
    names = (scenario.fleet.llms, tuple(c.name for c in scenario.classes))
    if (requests.llm_names, requests.class_names) != names:
        raise ValueError(
            f"requests are of LLMs {requests.llm_names} and classes {requests.class_names}; "
            f"the scenario has {names[0]} and {names[1]}"
        )


def _play(
    policy: Policy,
    sim: ClusterSimulation,
    forecasts: _Forecasts,
    feed: Callable[[], None] = lambda: None,
    behind: DelayedCluster | None = None,
) -> tuple[dict[str, Column], list[dict[str, Any]]]:
    """From time 0 to the horizon; (series, decisions).

    `feed` is called before time goes on; the policy sees the cluster as it is `behind`, if there is a delay.
    """
    seen = sim if behind is None else behind.sim
    series = SeriesRecorder(sim)
    decisions: list[dict[str, Any]] = []
    done = np.array([False])
    while not done[0]:
        time_s = sim.engine.now_ps(0) / PS_PER_S
        command = policy.act(seen.view(0, *forecasts.now()))
        clipped = sim.apply(0, command)
        decisions.append({"time_s": time_s, **command.to_dict(), "clipped": clipped})
        feed()
        interval = int(sim.interval[0])
        done = sim.advance()
        if sim.interval[0] > interval:
            forecasts.update(sim.history[0, interval])
        if behind is not None:
            behind.follow([command])
        series.add(sim.costs(done).stack()[:, 0], clipped)
    return series.columns(), decisions


class _Forecasts:
    """A forecaster at work on one episode: classes are its series."""

    def __init__(
        self,
        forecaster: Forecaster | str | dict[str, Any] | None,
        scenario: Scenario,
        requests: RequestTable | None,
    ) -> None:
        self.interval_s = scenario.control_interval_s
        self.steps = load_steps(scenario) + scenario.delay_steps
        self._delayed = scenario.delay_steps > 0
        self.forecaster: Any = None
        if forecaster is not None:
            self.forecaster = make_forecaster(forecaster)
            self.forecaster.reset(len(scenario.classes))
            if getattr(self.forecaster, "is_clairvoyant", False):
                if requests is None:
                    raise ValueError(
                        f"forecaster = {forecaster!r}: is told the future, which a streamed episode "
                        "does not have"
                    )
                self.forecaster.set_future(true_rates(scenario, requests))
            self.steps = min(self.steps, self.forecaster.max_steps)
        # What was forecast at the last decisions, as far back as what is shown.
        self._made = deque([self._make()], maxlen=scenario.delay_steps + 1)

    def _make(self) -> tuple[Any, Any, Any]:
        if self.forecaster is None:
            return None, None, None
        rate = self.forecaster.predict(self.steps) / self.interval_s
        quantiles: Any = self._quantiles
        if self._delayed:
            quantiles = partial(np.asarray, self._quantiles())
        return rate, self.forecaster.recent_error(), quantiles

    def _quantiles(self) -> NDArray[np.float64]:
        return forecast_quantiles(self.forecaster, self.steps) / self.interval_s

    def now(self) -> tuple[Any, Any, Any]:
        """(rate, error, quantiles when they are asked for) as they are shown now."""
        return self._made[0]

    def update(self, arrived: NDArray[np.int64]) -> None:
        if self.forecaster is not None:
            self.forecaster.update(arrived.astype(np.float64))
            self._made.append(self._make())


def _prefix_tokens(sim: ClusterSimulation) -> dict[str, tuple[int, int]]:
    """Tokens asked for and found so far, by pool with a prefix cache."""
    fleet, found = sim.scenario.fleet, {}
    for p in fleet.caching_pools:
        mine = sim.engine.instances(0)[np.array(sim.engine.spec.pool_of_slot) == p]
        asked, hit = (int(mine[name].sum()) for name in ("asked_tokens", "hit_tokens"))
        found[fleet.pools[p].name] = asked, hit
    return found


def _outcome(
    policy: Policy,
    scenario: Scenario,
    seed: int,
    columns: RequestColumns,
    sim: ClusterSimulation,
    series: dict[str, Column],
    decisions: list[dict[str, Any]],
) -> dict[str, Any]:
    """What a result is made from, but for the requests."""
    pools = sim.engine.pool_seen[0]
    gpu_s = seconds(pools, "gpu")
    extra = {}
    if has_regions(scenario):
        extra = region_summary(scenario, columns, sim.engine.spot(0), gpu_s, series)
    extra |= summarise_prefix_caches(_prefix_tokens(sim))
    return {
        "scenario": scenario,
        "policy": policy.name,
        "seed": seed,
        "series": series,
        "decisions": decisions,
        "gpu_s": gpu_s,
        "loads_by_source": pools["source_used"].copy(),
        "busy_s": seconds(pools, "busy"),
        "leftover_gpu_s": sim.leftover_gpu_s(0),
        "clipped": int(sim.clipped[0]),
        "extra": extra,
    }
