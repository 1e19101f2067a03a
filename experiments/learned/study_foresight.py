"""What a planner's distance to foresight is made of.

The planner (`baselines/twin`) plays windows of test days with ever more told to it: the futures that it
draws, the true rates with other half minutes, and what really comes. Told all, it also gets more orders to
choose from, or looks three times as far ahead. What each step gains is that part of the regret. "behind the
planner" is how much less reward a row has, on the same windows. There are as many windows of every day.

Beside it stand rules with searched settings, and the planner with one thing changed. It looks half or twice
as far ahead, plays one future in place of eight, or up to four of each kind, or takes rates that it has
seen without a drawn factor. These have fewer windows, so they are compared with it by the paired column.

With "true rates" interactive requests of a half minute are those of one from anywhere in the same ten
minutes, since the load's rates change every ten minutes. Jobs are where they are. Lengths are true in all
that is told. Who knows what comes needs no margin. So the price of late requests is the true one where the
future is told, and the planner's own elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from agents.statistics import Interval, mean_interval
from baselines.twin.futures import FutureDrawer
from baselines.twin.policy import TwinPolicy
from experiments.harness.claims import Claim, at_most, less, more
from experiments.harness.figure import Grid, claimed
from experiments.harness.parameters import Parameters, ours
from experiments.output import new_figure
from llmscale_env.control.policy import Policy
from llmscale_env.control.reward import even_seeds
from llmscale_env.control.twins import Future, unfinished
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios import Scenario, load_scenario
from llmscale_env.workload.config import TEN_MINUTES_S
from llmscale_env.workload.requests import PS_PER_S, RequestTable

if TYPE_CHECKING:
    from pandas import DataFrame

NAME = "learned-foresight"
FIGURE = "Regret"
RULES = ("paced-tuned", "chiron-tuned", "static-tuned")
DRAWN = "planner"
RATES, KNOWN, ORDERS, FAR = "true rates", "true future", "more orders", "farther ahead"
TOLD = (RATES, KNOWN, ORDERS, FAR)
CHANGED = {
    "60 s ahead": "twin:look_ahead_s=60",
    "240 s ahead": "twin:look_ahead_s=240",
    "four rounds": "twin:rounds=4",
    "no drawn factor": "twin:spread=0",
}
"""The planner with one parameter changed."""
ONE = "one future"
STEPS = (-4, -3, -2, -1, 0, 1, 2, 3, 4)
"""Instances more or fewer of who has more orders."""
PART_S = 30
FUTURES = 8
"""That are drawn where the rates are told."""


class Settings(Parameters):
    """Attributes are explained where they are declared."""

    env: Annotated[str, ours("two-hour windows")] = "mixed-slo-hours"
    workload: Annotated[
        str, ours("days that nobody was tuned on; empty: the environment's own")
    ] = "mixed-slo/test-hours"
    far_s: Annotated[float, ours("look-ahead; the planner's is 120 s", gt=0)] = 360.0
    horizon_s: Annotated[float, ours("of a window; 0: the environment's", ge=0)] = 0.0
    changed_seeds: Annotated[int, ours("windows of a changed planner; they cost most", ge=1)] = 4


PARAMETERS = {
    "quick": Settings(seeds=2, changed_seeds=2, horizon_s=900.0),
    "paper": Settings(seeds=8),
}


def _scenario(values: Mapping[str, Any]) -> Scenario:
    """What is played."""
    changes = {name: values[name] for name in ("workload", "horizon_s") if values[name]}
    return load_scenario(values["env"], **changes)


def _seeds(parameters: Settings, case: Mapping[str, Any]) -> list[int]:
    """Windows, as many of every day."""
    first, *_ = seeds = parameters.seed_list()
    n = len(seeds)
    if case["who"] in (*CHANGED, ONE):
        n = min(n, parameters.changed_seeds)
    return even_seeds(_scenario(parameters.model_dump()), first, n, any_time=True)


cases = Grid(
    {"who": (*RULES, DRAWN, *CHANGED, ONE, *TOLD), "seed": _seeds},
    keep=("env", "workload", "far_s", "horizon_s"),
)


class Told(FutureDrawer):
    """Is told what comes.

    Args:
        scenario: of the cluster.
        seed: of what is drawn.
        requests: of the episode.
        rates_only: interactive requests of half minutes of the same ten minutes; several futures, all alike.
    """

    def __init__(
        self, scenario: Scenario, seed: int, requests: RequestTable, rates_only: bool
    ) -> None:
        super().__init__(scenario, seed, (1 / FUTURES,) * FUTURES if rates_only else (1.0,))
        self._requests, self._rates_only = requests, rates_only
        urgent = np.array([c.priority == 0 for c in scenario.classes])
        self._moves = urgent[requests.slo_class]

    def see(self, view: ClusterView) -> None:
        """Nothing is learnt from what has come."""

    @property
    def knows(self) -> bool:
        """Always."""
        return True

    @property
    def knows_a_day(self) -> bool:
        """As who is not told: it has the same orders to choose from."""
        return self._requests.past is not None

    def draw(self, view: ClusterView, until_s: float) -> list[Future]:
        """A future for each stratum."""
        lengths = self._requests.output_tokens[unfinished(view).request_id].astype(np.int64)
        return [Future(lengths, self._between(view.time_s, until_s)) for _ in self.strata]

    def _between(self, now_s: float, until_s: float) -> RequestTable:
        times = self._requests.arrival_ps
        now_ps, end_ps = round(now_s * PS_PER_S), round(until_s * PS_PER_S)
        if not self._rates_only:
            first, end = np.searchsorted(times, (now_ps, end_ps), side="right")
            return self._rows(np.arange(first, end), times[first:end])
        part_ps, n = PART_S * PS_PER_S, TEN_MINUTES_S // PART_S
        # Jobs stay where they are: nothing that recent rates announce.
        still = np.flatnonzero(~self._moves & (times > now_ps) & (times < end_ps))
        rows, moved = [still], [times[still]]
        for part in range(now_ps // part_ps, -(-end_ps // part_ps)):
            other = part // n * n + int(self._rng.integers(n))
            first, end = np.searchsorted(times, (other * part_ps, (other + 1) * part_ps))
            drawn = first + np.flatnonzero(self._moves[first:end])
            rows.append(drawn)
            moved.append(times[drawn] + (part - other) * part_ps)
        chosen, at = np.concatenate(rows), np.concatenate(moved)
        comes = np.flatnonzero((at > now_ps) & (at < end_ps))
        comes = comes[np.argsort(at[comes], kind="stable")]
        return self._rows(chosen[comes], at[comes])

    def _rows(self, rows: NDArray[np.int64], at_ps: NDArray[np.int64]) -> RequestTable:
        names = ("llm", "region", "slo_class", "input_tokens", "output_tokens")
        columns: dict[str, Any] = {
            name: getattr(self._requests, name)[rows]
            for name in (*names, "predicted_output_tokens")
        }
        return replace(self._requests, past=None, history=None, arrival_ps=at_ps, **columns)


class Foreseeing(TwinPolicy):
    """The planner, told what comes in an episode.

    Args:
        requests: of the episode.
        who: one of `TOLD`.
        values: parameters of the planner.
    """

    def __init__(self, requests: RequestTable, who: str, **values: Any) -> None:
        super().__init__(who, **values)
        self._requests, self._who = requests, who

    def reset(self, scenario: Scenario, seed: int) -> None:
        """As the planner's."""
        super().reset(scenario, seed)
        self._drawer = Told(scenario, seed, self._requests, self._who == RATES)

    def _options(self, view: ClusterView) -> list[tuple[int, int]]:
        found = super()._options(view)
        if self._who != ORDERS:
            return found
        n, limits = found[0][0], dict.fromkeys(limit for _, limit in found)
        counts = [min(max(n + step, 1), self._most) for step in STEPS]
        return list(dict.fromkeys([found[0], *((k, x) for k in counts for x in limits)]))


class OneFuture(TwinPolicy):
    """The planner, which plays one future, as likely to be mild as bad."""

    def reset(self, scenario: Scenario, seed: int) -> None:
        """As the planner's."""
        super().reset(scenario, seed)
        self._drawer = FutureDrawer(scenario, seed, (1.0,), spread=self.parameters.spread)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A window under one of them."""
    from baselines import make_policy
    from llmscale_env.control.reward import draw_requests
    from llmscale_env.control.run import run_episode

    scenario, who = _scenario(case), case["who"]
    if who in TOLD:
        ahead = {"look_ahead_s": case["far_s"]} if who == FAR else {}
        if who != RATES:
            ahead["late_price"] = 1.0
        requests = draw_requests(scenario, np.random.default_rng(case["seed"]))
        policy: Policy = Foreseeing(requests, who, **ahead)
    elif who == ONE:
        policy = OneFuture(who)
    else:
        policy = make_policy("twin" if who == DRAWN else CHANGED.get(who, who))
    made: dict[str, Any] = run_episode(policy, scenario, case["seed"]).summary
    first = scenario.classes[0].name
    names = ("reward", "gpu_hours", f"{first}/slo_attainment", "scaling_actions")
    return [{name.removeprefix(f"{first}/"): made[name] for name in names}]


def _of(frame: DataFrame, value: str) -> DataFrame:
    """A row per window, a column each."""
    return frame.pivot(index="seed", columns="who", values=value).astype(float)


def tables(frame: DataFrame, parameters: Settings) -> dict[str, list[dict[str, Any]]]:
    """All of them, and what the planner's regret is made of."""
    rewards, hours, shares = (_of(frame, v) for v in ("reward", "gpu_hours", "slo_attainment"))
    rows = [
        {
            "who": who,
            "windows": int(rewards[who].notna().sum()),
            "reward": mean_interval(rewards[who]),
            "behind the planner": mean_interval(rewards[DRAWN] - rewards[who]),
            "on time %": mean_interval(100 * shares[who]),
            "GPU-hours": mean_interval(hours[who]),
        }
        for who in dict.fromkeys(frame["who"])
    ]
    parts = (("rates", RATES, DRAWN), ("half minutes", KNOWN, RATES))
    more_parts = (("orders", ORDERS, KNOWN), ("look-ahead", FAR, KNOWN))
    regret = [
        {"part": part, "reward": mean_interval(rewards[better] - rewards[worse])}
        for part, better, worse in (*parts, *more_parts)
    ]
    return {"windows": rows, "regret": regret}


def plot(frame: DataFrame, parameters: Settings) -> Any:
    """Rewards, best last."""
    rewards = _of(frame, "reward")
    names = list(dict.fromkeys(frame["who"]))
    figure = new_figure(8.0, 4.2)
    axis = figure.subplots()
    for k, who in enumerate(names):
        found = mean_interval(rewards[who])
        colour = "C0" if who in RULES else "C2" if who in TOLD else "C1"
        axis.plot(rewards[who], [k] * len(rewards), ".", color=colour, alpha=0.3)
        axis.plot([found.low, found.high], [k, k], color=colour, lw=2)
        axis.plot([found.mean], [k], "o", color=colour, ms=8)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlabel("reward of a window (dots), mean and 95 % interval")
    axis.grid(alpha=0.3, axis="x")
    return figure


@claimed
def claims(frame: DataFrame, parameters: Settings) -> Iterator[Claim]:
    """What issue 30 set out to show."""
    rewards = _of(frame, "reward")
    best = max(RULES, key=lambda who: rewards[who].mean())
    ahead: Interval = mean_interval(rewards[DRAWN] - rewards[best])
    yield more(
        "the planner has more reward than every tuned rule",
        0.0,
        ahead,
        unit="of reward",
        reason=f"it is level with {best}",
        note=f"Paired, over {len(rewards)} windows.",
    )
    known = rewards[[KNOWN, ORDERS, FAR]].max(axis=1)
    left = (known - rewards[DRAWN]).mean() / (known - rewards[best]).mean()
    yield at_most(
        "of the best rule's distance to foresight at most 60 % is left",
        0.6,
        Interval(float(left), np.nan, np.nan),
        nothing=1.0,
        unit="of the best rule's distance",
        reason="most of it is what rates do not say, bursts of half a minute above all",
    )
    yield less(
        "what comes is worth more than more orders or a longer look-ahead",
        0.0,
        mean_interval(
            rewards[[ORDERS, FAR]].max(axis=1) - rewards[KNOWN] - (rewards[KNOWN] - rewards[DRAWN])
        ),
        unit="of reward",
    )
