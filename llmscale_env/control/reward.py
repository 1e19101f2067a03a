"""What a control interval costs; the reward is minus that.

cost = gpu_weight * GPU-seconds / (reference_gpus * control_interval_s)
     + violation_weight * sum over classes of weight * violations / expected arrivals per interval
     + load_weight * instances started

GPU-seconds count loading and draining. Every arrival that misses a target, or is rejected, is one
violation, charged in the interval in which it becomes certain. Dividing by *expected* arrivals, a
constant of the scenario, leaves nothing to gain by serving fewer. Work left over when the horizon cuts
the episode is charged the GPU-seconds that serving it one by one would have taken.

With prices (`reward.prices`) it is, in units of `unit_usd`,

cost = gpu_hour_usd * GPU-hours + sum over classes of weight * late_request_usd * violations
     + start_usd * instances started

and `control.unfinished_work` says what of the work left over is charged and late.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.failures import draw_failures
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import pool_times, ps, serving
from llmscale_env.workload import RequestTable, generate_requests
from llmscale_env.workload.config import (
    DayArrivals,
    HourlyArrivals,
    PoissonArrivals,
    StreamConfig,
    WorkloadConfig,
)
from llmscale_env.workload.days import expected_jobs, expected_requests
from llmscale_env.workload.generate import day_drawn, days_to_draw, queue_size, request_chunks
from llmscale_env.workload.hourly import (
    HOUR_S,
    MINUTE_S,
    days_of,
    expected_rates,
    hourly_rate,
    on_day,
)

PARTS = ("gpu", "violations", "loads", "leftover")
"""The parts of a step's cost, in the order of `RewardParts.stack`."""

_ESTIMATION_SEEDS = range(990_000, 990_008)


def expected_arrivals(scenario: Scenario) -> tuple[float, ...]:
    """Expected arrivals per class and episode: the mean over eight fixed episodes, at least one."""
    # What the table of requests depends on: scenarios that differ in the fleet share it.
    regions, classes = scenario.region_names, [c.name for c in scenario.classes]
    times = (scenario.history_s, scenario.horizon_s)
    text = repr((scenario.workload.model_dump_json(), classes, scenario.fleet.llms, regions, times))
    return _expected_arrivals(ScenarioKey(scenario, text))


def serving_cost_gpu_s(scenario: Scenario) -> tuple[tuple[float, float], ...]:
    """Per LLM: GPU-seconds per prompt token and per output token of a request served alone.

    The dearest pool of the LLM counts. A batch shares these costs, so doing the work in time is always
    cheaper than leaving it to be charged.
    """
    return _serving_cost_gpu_s(ScenarioKey(scenario, scenario.model_dump_json()))


class ScenarioKey:
    """A scenario as a key of a cache: those with the same text are one."""

    def __init__(self, scenario: Scenario, text: str) -> None:
        self.scenario = scenario
        self._text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScenarioKey) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


@lru_cache(maxsize=64)
def _expected_arrivals(key: ScenarioKey) -> tuple[float, ...]:
    scenario = key.scenario
    names = [c.name for c in scenario.classes]
    counts = np.zeros(len(names))
    # A queue's size is no matter of chance, and it may hold a million requests.
    known = {s.name: _expected_of(scenario, s) for s in scenario.workload.streams}
    drawn = tuple(s for s in scenario.workload.streams if known[s.name] is None)
    streams = scenario.workload.model_copy(
        update={"batch_queues": (), "jobs": (), "streams": drawn}
    )
    alone = scenario.model_copy(
        update={"workload": streams, "history_s": _drawn_history_s(scenario)}
    )
    for seed in _ESTIMATION_SEEDS if drawn else ():
        table = draw_requests(alone, np.random.default_rng(seed))
        counts += np.bincount(table.slo_class, minlength=len(names))
    counts /= len(_ESTIMATION_SEEDS)
    for stream in scenario.workload.streams:
        expected = known[stream.name]
        if expected is not None and stream.slo_class is not None:
            counts[names.index(stream.slo_class)] += expected
    for queue in scenario.workload.batch_queues:
        counts[names.index(queue.slo_class)] += queue_size(
            scenario.workload, queue, scenario.horizon_s
        )
    targets = {c.name: c.ttft_s for c in scenario.classes}
    for job in scenario.workload.jobs:
        mine = [targets[name] for name in job.classes]
        scale = scenario.workload.rate_scale
        each = expected_jobs(job, mine, scale, scenario.horizon_s)
        counts[[names.index(name) for name in job.classes]] += each
    return tuple(np.maximum(counts, 1.0).tolist())


def _expected_of(scenario: Scenario, stream: StreamConfig) -> float | None:
    """Requests of a stream whose rates are known, bursts included; None of other streams.

    Not drawn, since they may be millions.
    """
    arrivals = stream.arrivals
    if isinstance(arrivals, DayArrivals):
        assert stream.rate_per_s is not None
        rate = stream.rate_per_s * scenario.workload.rate_scale
        return expected_requests(arrivals, rate, scenario.horizon_s)
    if isinstance(arrivals, PoissonArrivals) and scenario.workload.counts_history:
        assert stream.rate_per_s is not None
        return stream.rate_per_s * scenario.workload.rate_scale * scenario.horizon_s
    if not isinstance(arrivals, HourlyArrivals) or arrivals.start_s == "random":
        return None
    if arrivals.start_s == "random-day":
        days = days_of(arrivals)
        starts = [on_day(arrivals, day) for day in range(days)]
        each = [_expected_of(scenario, stream.model_copy(update={"arrivals": at})) for at in starts]
        return sum(x for x in each if x is not None) / days
    begin, end = scenario.history_s, scenario.history_s + scenario.horizon_s
    hours = math.ceil(end / HOUR_S)
    own = hourly_rate(arrivals) if stream.rate_per_s is None else stream.rate_per_s
    rates = expected_rates(
        arrivals, own * scenario.workload.rate_scale, float(arrivals.start_s), hours
    )
    edges = np.arange(len(rates) + 1) * MINUTE_S
    came = np.concatenate([[0.0], np.cumsum(rates * MINUTE_S)])

    def until(time_s: float) -> float:
        return float(np.interp(min(max(time_s, begin), end), edges, came))

    found = until(end) - until(begin)
    for burst in arrivals.bursts:
        within = until(burst.at_s + burst.duration_s) - until(burst.at_s)
        found += (burst.factor - 1) * within
    return found


def _drawn_history_s(scenario: Scenario) -> float:
    """Length of the history whose requests are drawn one by one; a counted one is not."""
    return 0.0 if scenario.workload.counts_history else scenario.history_s


def _after_history(workload: WorkloadConfig, drawn_s: float) -> WorkloadConfig:
    """The workload with its batch queues moved behind so much history."""
    if not drawn_s or not workload.batch_queues:
        return workload
    queues = tuple(
        queue.model_copy(update={"at_s": queue.at_s + drawn_s}) for queue in workload.batch_queues
    )
    return workload.model_copy(update={"batch_queues": queues})


def draw_requests(scenario: Scenario, rng: np.random.Generator) -> RequestTable:
    """The requests of one episode of `scenario`, and what else chance does to it."""
    drawn_s = _drawn_history_s(scenario)
    table = generate_requests(
        _after_history(scenario.workload, drawn_s),
        classes=scenario.classes,
        llms=scenario.fleet.llms,
        horizon_s=drawn_s + scenario.horizon_s,
        rng=rng,
        regions=scenario.region_names,
        history_s=scenario.history_s - drawn_s,
    )
    if drawn_s > 0:
        begin, end = (ps(s) for s in (scenario.history_s, scenario.history_s + scenario.horizon_s))
        table = replace(table.between(begin, end), history=table.between(0, begin))
    if all(pool.mtbf_s is None for pool in scenario.fleet.pools):
        return table
    return replace(table, failures=draw_failures(scenario, rng))


def even_seeds(scenario: Scenario, first: int, n: int, *, any_time: bool = False) -> list[int]:
    """`n` seeds from `first` on under which every day that a seed may draw comes equally often.

    Where `n` is no multiple of the number of days, some come once more than others. Of a scenario whose seeds
    draw no day: the `n` seeds from `first` on.

    Args:
        scenario: whose seeds.
        first, n: see above.
        any_time: whether windows that begin at any time of a day are of the day on which they begin; else
            such a scenario draws no day.

    Raises:
        ValueError: a negative number.
    """
    if first < 0 or n < 0:
        raise ValueError(f"first = {first}, n = {n}: must not be negative")
    workload, horizon_s = scenario.workload, scenario.horizon_s
    days = days_to_draw(workload, horizon_s, any_time=any_time)
    if days is None:
        return list(range(first, first + n))
    each, more = divmod(n, days)
    seeds: list[int] = []
    came: Counter[int | None] = Counter()
    for seed in count(first):
        if len(seeds) == n:
            break
        day = day_drawn(workload, horizon_s, np.random.default_rng(seed), any_time=any_time)
        if came[day] == each and more:
            more -= 1
        elif came[day] >= each:
            continue
        came[day] += 1
        seeds.append(seed)
    return seeds


def seed_of_each_day(scenario: Scenario, first: int) -> list[int]:
    """One seed, from `first` on, for each day that a seed may draw; `first` alone where none is drawn."""
    return even_seeds(scenario, first, days_to_draw(scenario.workload, scenario.horizon_s) or 1)


def draw_chunks(
    scenario: Scenario, rng: np.random.Generator, chunk_s: float
) -> Iterator[tuple[int, RequestTable]]:
    """The table of `draw_requests` in pieces, for episodes too long to be held at once.

    Yields (end of the piece in ps, piece).

    The first piece has the history (drawn whole) and the failures. Pieces end where `chunk_s`, counted from
    the start of the history, is a whole number, and at the horizon.

    Raises:
        ValueError: a `chunk_s` that is not positive.
    """
    drawn_s = _drawn_history_s(scenario)
    begin, end = (ps(s) for s in (drawn_s, drawn_s + scenario.horizon_s))
    chunks = request_chunks(
        _after_history(scenario.workload, drawn_s),
        classes=scenario.classes,
        llms=scenario.fleet.llms,
        horizon_s=drawn_s + scenario.horizon_s,
        rng=rng,
        regions=scenario.region_names,
        chunk_s=chunk_s,
        history_s=scenario.history_s - drawn_s,
    )
    before: list[RequestTable] = []
    is_first = True
    for chunk in chunks:
        if begin > 0 and ps(chunk.from_s) < begin:
            before.append(chunk.requests)
        if ps(chunk.to_s) <= begin:
            continue
        table = chunk.requests.between(begin, end)
        if is_first:
            is_first = False
            history = None
            if before:
                history = before[0]
                for later in before[1:]:
                    history = history.followed_by(later)
                history = history.between(0, begin)
            table = replace(table, history=history, past=chunk.requests.past)
            if any(pool.mtbf_s is not None for pool in scenario.fleet.pools):
                table = replace(table, failures=draw_failures(scenario, rng))
        yield min(ps(chunk.to_s), end) - begin, table


@lru_cache(maxsize=64)
def _serving_cost_gpu_s(key: ScenarioKey) -> tuple[tuple[float, float], ...]:
    scenario = key.scenario
    costs = dict.fromkeys(scenario.fleet.llms, (0.0, 0.0))
    for pool in scenario.fleet.pools:
        for llm in pool.llms:
            model = pool_times(scenario, serving(pool, llm))
            prefill = model.prefill_s(1024) / 1024 * pool.tp
            decode = model.decode_s(1, 1024) * pool.tp
            old = costs[llm]
            costs[llm] = (max(old[0], prefill), max(old[1], decode))
    return tuple(costs.values())


@dataclass(frozen=True)
class RewardParts:
    """Cost of one interval by part, each (E,): `reward` is minus their sum."""

    gpu: NDArray[np.float64]
    violations: NDArray[np.float64]
    loads: NDArray[np.float64]
    leftover: NDArray[np.float64]

    @property
    def reward(self) -> NDArray[np.float64]:
        return -(self.gpu + self.violations + self.loads + self.leftover)

    def stack(self) -> NDArray[np.float64]:
        """(4, E), in the order of `PARTS`."""
        return np.stack([self.gpu, self.violations, self.loads, self.leftover])


def violation_prices(scenario: Scenario) -> NDArray[np.float64]:
    """(C,) what one violation of each class costs by the scenario's own reward, class weights included."""
    weights = np.array([c.weight for c in scenario.classes])
    prices = scenario.reward.prices
    if prices is not None:
        late_usd = prices.late_request_usd
        if isinstance(late_usd, dict):
            each = np.array([late_usd.get(c.name, 0.0) for c in scenario.classes])
        else:
            each = np.full(len(weights), late_usd)
        return each * weights / prices.unit_usd
    expected = np.array(expected_arrivals(scenario)) / scenario.n_steps
    return scenario.reward.violation_weight * weights / expected


class RewardModel:
    """Turns counts into costs, for any number of episodes at once."""

    def __init__(self, scenario: Scenario) -> None:
        config = scenario.reward
        self._prices = config.prices
        self._reference = config.reference_gpus or float(scenario.fleet.max_gpus)
        self._interval_s = scenario.control_interval_s
        self._classes = [c.name for c in scenario.classes]
        self._class_weights = np.array([c.weight for c in scenario.classes])
        if self._prices is None:
            self._expected = np.array(expected_arrivals(scenario)) / scenario.n_steps
            own = (config.gpu_weight, config.violation_weight, config.load_weight)
        else:
            self._late = violation_prices(scenario)
            own = (1.0, 1.0, 1.0)
        self._weights: dict[str, Any] = {
            "gpu": own[0],
            "violations": dict.fromkeys(self._classes, own[1]),
            "loads": own[2],
        }
        self._weigh()

    def _weigh(self) -> None:
        gpu, by_class, loads = self._weights.values()
        violations = np.array([by_class[name] for name in self._classes])
        prices = self._prices
        if prices is not None:
            self._per_gpu_s = gpu * prices.gpu_hour_usd / 3600.0 / prices.unit_usd
            self._per_violation = violations * self._late
            self._per_load = loads * prices.start_usd / prices.unit_usd
            return
        self._per_gpu_s = gpu / (self._reference * self._interval_s)
        self._per_violation = violations * self._class_weights / self._expected
        self._per_load = loads

    @property
    def weights(self) -> dict[str, Any]:
        """Weights now: `gpu` (of unfinished work too), `violations` by class, `loads`.

        With prices they are multiples of these, 1 at first.
        """
        return {**self._weights, "violations": dict(self._weights["violations"])}

    def set_weights(
        self,
        *,
        gpu: float | None = None,
        violations: float | Mapping[str, float] | None = None,
        loads: float | None = None,
    ) -> None:
        """Other weights from now on; what is left out stays as it is.

        Args:
            gpu, loads: in place of `gpu_weight` and `load_weight` of the scenario's reward; with prices,
                times the price.
            violations: in place of its `violation_weight`, for all classes or by class; with prices, times
                the price. A class's own weight counts besides.

        Raises:
            ValueError: an unknown class, or a weight that is no number, negative or not finite.
        """
        new = self.weights
        if violations is not None:
            by_class = violations
            if not isinstance(by_class, Mapping):
                by_class = dict.fromkeys(self._classes, by_class)
            for name in by_class:
                if name not in self._classes:
                    raise ValueError(f"violations: {name!r} is no class; there are {self._classes}")
            new["violations"] |= {
                name: check_weight(f"violations.{name}", value) for name, value in by_class.items()
            }
        for name, value in (("gpu", gpu), ("loads", loads)):
            if value is not None:
                new[name] = check_weight(name, value)
        self._weights = new
        self._weigh()

    def parts(
        self,
        gpu_s: NDArray[np.float64],
        violations: NDArray[Any],
        loads: NDArray[Any],
        leftover_gpu_s: NDArray[np.float64] | float = 0.0,
    ) -> RewardParts:
        """Costs from differences over an interval.

        Args:
            gpu_s: (E,) GPU-seconds.
            violations: (E, C) violations by class.
            loads: (E,) instances started.
            leftover_gpu_s: (E,) of work left at truncation.
        """
        return RewardParts(
            gpu=gpu_s * self._per_gpu_s,
            # A sum along rows, not a matrix product: its order must not depend on how many rows there are.
            violations=(violations * self._per_violation).sum(axis=1),
            loads=loads * self._per_load,
            leftover=np.broadcast_to(leftover_gpu_s, gpu_s.shape) * self._per_gpu_s,
        )


def is_real(value: object) -> bool:
    """Whether `value` is a number, Python's or NumPy's, and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_weight(name: str, value: float) -> float:
    """`value` as a float, or a ValueError that names it and says what a weight must be."""
    try:
        number = float(value) if is_real(value) else math.nan
    except OverflowError:  # an integer of hundreds of digits
        number = math.inf
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} = {value!r}: a weight must be finite and at least 0")
    return number
