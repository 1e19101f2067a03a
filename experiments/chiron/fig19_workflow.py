"""GPUs over time when a million batch requests arrive beside bursty interactive ones.

Llama 8B on at most 50 A100: 30 interactive requests/s with Gamma gaps (coefficient of variation 4), and after
five minutes a million batch requests with a TTFT target of one hour. Chiron lets them wait, serves them on
spare mixed instances, and adds batch instances where its estimate asks for it. Llumnix hands every request to
an instance at once and adds instances one by one.

Two versions of Llumnix are run. "Tuned" is the setting that its sweep finds for W_B with the small model; in
it requests stay at the instance that they reached on arrival, so that instances which come later have
nothing to do. The other is the same, but waiting requests move to emptier instances. The paper says nothing
of either. Its Llumnix has "similar instance-level throughput as Chiron" and instances that come later serve,
so sentences are judged by the one that moves, which is also the stronger opponent. GPU-hours are those billed
until the deadline at 65 minutes, whoever finishes earlier or later. All start with 15 instances. Ours:
ShareGPT single-turn lengths, whose outputs (472 tokens on average) seem longer than those of the paper's
Figure 8 (`lengths` changes them). The load is feasible with them: an instance does 15.3 of these requests per
second at best (Figure 3), so that a million of them within the hour and 30 interactive ones per second take
21 of the 50 GPUs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from agents.statistics import Interval, mean_interval
from baselines import make_policy
from experiments.chiron.batch_queue import batch_requests, last_finish_s, queue_kept, queued
from experiments.chiron.llumnix_settings import tuned
from experiments.chiron.setting import measured, scenario_of
from experiments.harness.claims import (
    Claim,
    about,
    at_least,
    at_most,
    best_of,
    every,
    exact,
    gain,
    led_by,
)
from experiments.harness.figure import SEEDS, Grid, claimed, dress, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from llmscale_env.control.policy import Policy
from llmscale_env.control.results.result import EpisodeResult
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.schema import Scenario

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 19"
NAMES = {
    "chiron": "Chiron",
    "llumnix-tuned": "Llumnix (tuned)",
    "llumnix-tuned-moving": "the same, waiting requests move to emptier instances",
}
ALL_MET = 0.995
"""What rounds to "all": the paper gives whole per cents."""
NO_WORSE = 0.01
"""Share of requests on time by which Chiron may lie below who is compared with in GPU-hours."""

SETTLED_S = 120.0
"""The fleet starts with 15 instances; what a policy makes of them shows from then on."""

PACE_S = 600.0
"""Over so long the pace at which the queue is admitted is taken."""


class Workflow(Parameters):
    """Parameters of this figure."""

    policies: Annotated[
        tuple[Literal["chiron", "llumnix-tuned", "llumnix-tuned-moving"], ...],
        ours("A.2 has the first two; llumnix-tuned-moving: see the text", min_length=1),
    ] = ("chiron", "llumnix-tuned", "llumnix-tuned-moving")
    rate_per_s: Annotated[float, paper("A.2", gt=0)] = 30.0
    cv: Annotated[float, paper("A.2", gt=0)] = 4.0
    batch_requests: Annotated[int, paper("A.2", ge=1)] = 1_000_000
    batch_at_s: Annotated[float, paper("A.2", ge=10)] = 300.0
    batch_ttft_s: Annotated[float, paper("section 6: one hour", ge=60)] = 3600.0
    close_share: Annotated[
        float, paper("A.2: at 50 of 5 to 65 minutes it gets close", ge=0.1, le=1)
    ] = 0.75
    after_s: Annotated[float, ours("to see what is late", ge=0)] = 600.0
    lengths: Annotated[str, ours("ShareGPT as serving benchmarks use it")] = "sharegpt-single-turn"


PARAMETERS = {
    "quick": Workflow(seeds=1, batch_requests=100_000, batch_ttft_s=360.0, after_s=120.0),
    "paper": Workflow(seeds=5),
}


cases = Grid(
    {"seed": SEEDS, "policy": "policies"},
    keep=(
        *("rate_per_s", "cv", "batch_requests", "batch_at_s", "batch_ttft_s"),
        *("close_share", "after_s", "lengths"),
    ),
)


def scenario_for(case: Mapping[str, Any]) -> Scenario:
    """`chiron-8b` with bursty interactive requests and the queue."""
    scenario = scenario_of(
        "small", rate_per_s=case["rate_per_s"], batch_requests=case["batch_requests"]
    )
    return load_scenario(
        scenario,
        **{
            "workload.streams.interactive.arrivals": {"kind": "gamma", "cv": case["cv"]},
            "workload.streams.interactive.lengths": case["lengths"],
            "workload.batch_queues.batch.lengths": case["lengths"],
            "workload.batch_queues.batch.at_s": case["batch_at_s"],
            "classes.batch.ttft_s": case["batch_ttft_s"],
            "horizon_s": case["batch_at_s"] + case["batch_ttft_s"] + case["after_s"],
        },
    )


def policy_for(case: Mapping[str, Any]) -> Policy:
    """The case's policy; Llumnix as its sweep says, "llumnix-tuned-moving" with rebalancing."""
    if not case["policy"].startswith("llumnix-tuned"):
        return make_policy(case["policy"])
    moving = {"rebalance": True} if case["policy"] == "llumnix-tuned-moving" else {}
    return make_policy("llumnix", **{**tuned("W_B", "small"), **moving})


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One episode: a row that sums it up, and a row per control interval."""
    scenario = scenario_for(case)
    start = time.perf_counter()
    result = run_episode(policy_for(case), scenario, case["seed"])
    wall_s = time.perf_counter() - start
    return [
        {"row": "summary", **summary(result, scenario, case), "wall_s": wall_s},
        *({"row": "interval", **row} for row in over_time(result, scenario)),
    ]


def over_time(result: EpisodeResult, scenario: Scenario) -> list[dict[str, float]]:
    """A row per control interval.

    Its end, mean GPUs billed (in all, by mixed and batch instances), batch requests that wait for their
    first admission at its end, requests in the shared queues.
    """
    series = result.series
    time_s = series["time_s"].to_numpy(np.float64)
    length_s = np.diff(time_s, prepend=0.0)
    gpus = {
        pool.name: series[f"{pool.name}/gpu_s"].to_numpy(np.float64) / length_s
        for pool in scenario.fleet.pools
    }
    batch = batch_requests(result)
    admitted_s = np.sort((batch["arrival_s"] + batch["queued_s"]).dropna())
    arrived = np.searchsorted(np.sort(batch["arrival_s"]), time_s, side="right")
    waiting = arrived - np.searchsorted(admitted_s, time_s, side="right")
    roles = {pool.name: pool.role for pool in scenario.fleet.pools}
    return [
        {
            "time_s": float(time_s[k]),
            "gpus": float(sum(each[k] for each in gpus.values())),
            "mixed_gpus": float(sum(gpus[p][k] for p in gpus if roles[p] == "mixed")),
            "batch_gpus": float(sum(gpus[p][k] for p in gpus if roles[p] == "batch")),
            "waiting": int(waiting[k]),
            "shared_queue": int(shared),
        }
        for k, shared in enumerate(queued(result, scenario))
    ]


def summary(
    result: EpisodeResult, scenario: Scenario, case: Mapping[str, Any]
) -> dict[str, float | None]:
    """What the text of A.2 speaks of; times in minutes."""
    at_s, deadline_s = case["batch_at_s"], case["batch_at_s"] + case["batch_ttft_s"]
    close_s = at_s + case["close_share"] * case["batch_ttft_s"]
    rows = over_time(result, scenario)
    time_s = np.array([row["time_s"] for row in rows])
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    multiplexing = (time_s > at_s) & (time_s <= close_s)
    remaining = float(columns["waiting"][time_s <= close_s + 1e-9][-1])
    started = sum(
        result.series[f"{pool.name}/loads"].to_numpy(np.float64)
        for pool in scenario.fleet.pools
        if pool.role == "batch"
    )
    most = int(started.argmax())
    finished_min = last_finish_s(result, scenario) / 60
    until_deadline = measured(result, scenario, 0.0, deadline_s)
    multiplexed = queue_kept(result, scenario, at_s, close_s)
    return {
        "gpus_before": float(columns["gpus"][time_s <= at_s].mean()),
        "gpus_most": float(columns["gpus"].max()),
        "mixed_gpus": float(columns["mixed_gpus"][multiplexing].mean()),
        "mixed_served_per_s": multiplexed["finished_per_s"] * multiplexed["mixed_share"],
        "served_per_s": multiplexed["finished_per_s"],
        "remaining": remaining,
        "added_at_once": float(started[most]),
        "added_most_min": float(time_s[most]) / 60 if started[most] > 0 else None,
        "finished_min": finished_min,
        "gpu_hours": until_deadline["gpu_hours"],
        # Of those that arrived before the deadline: the rest of the run is for them to finish.
        "attainment": until_deadline["slo_attainment"],
        "interactive_attainment": until_deadline["interactive_attainment"],
        "batch_attainment": until_deadline["batch_attainment"],
    }


def excerpt(frame: DataFrame, parameters: Workflow) -> DataFrame:
    """A row per run, and every fourth interval."""
    interval = (frame["time_s"].rank(method="dense") % 4 == 0) | frame["time_s"].isna()
    each = [
        "row",
        "time_s",
        "gpus",
        "batch_gpus",
        "waiting",
        "gpus_most",
        "gpu_hours",
        "attainment",
    ]
    return frame.loc[interval, ["seed", "policy", *each]]


def plot(frame: DataFrame, parameters: Workflow) -> Any:
    """GPUs over time above, batch requests that still wait below; a line per seed."""
    figure = new_figure(8.4, 6.4)
    top, bottom = figure.subplots(2, 1, sharex=True)
    rows = frame[frame["row"] == "interval"]
    for k, policy in enumerate(parameters.policies):
        mine = where(rows, policy=policy)
        for n, (_, one) in enumerate(mine.groupby("seed")):
            minutes = one["time_s"] / 60
            label = NAMES.get(policy, policy) if n == 0 else None
            look = {"color": f"C{k}", "lw": 1.6 if n == 0 else 0.7, "alpha": 1 if n == 0 else 0.5}
            top.plot(minutes, one["gpus"], label=label, **look)
            if one["batch_gpus"].max() > 0:
                name = f"{label}: of these batch instances" if label else None
                top.plot(minutes, one["batch_gpus"], ":", label=name, **look)
            bottom.plot(minutes, one["waiting"] / 1000, label=label, **look)
    at_min = parameters.batch_at_s / 60
    deadline_min = at_min + parameters.batch_ttft_s / 60
    close_min = at_min + parameters.close_share * parameters.batch_ttft_s / 60
    for axes in (top, bottom):
        for time_min in (at_min, deadline_min):
            axes.axvline(time_min, color="0.4", lw=0.9, ls="--")
        dress(axes, bottom=0)
    top.axhline(50, color="0.4", lw=0.8, ls=":")
    top.plot(at_min, 15, "k*", ms=10, label="the paper: 15 GPUs until then")
    top.set_ylabel("GPUs (billed)")
    top.set_title(
        f"{parameters.batch_requests:,} batch requests at {at_min:g} min, their "
        f"deadline at {deadline_min:g} min (dashed); cap of 50 GPUs (dotted)",
        fontsize=9,
    )
    fifth = parameters.batch_requests / 5000
    bottom.plot(close_min, fifth, "k*", ms=10, label="the paper's Chiron: a fifth is left")
    bottom.set(xlabel="time (min)", ylabel="batch requests not yet\nadmitted (thousands)")
    for axes in (top, bottom):
        axes.legend(fontsize=8)
    return figure


class Seen:
    """The rows of a figure: one per episode, and those of its control intervals."""

    def __init__(self, frame: DataFrame) -> None:
        self._episodes = frame[frame["row"] == "summary"].set_index(["policy", "seed"])
        self._intervals = frame[frame["row"] == "interval"]
        self.policies = set(self._episodes.index.get_level_values("policy"))

    def of(self, policy: str, what: str, times: float = 1) -> Interval:
        """A number of the episodes."""
        return mean_interval(times * self._episodes.loc[policy, what].astype(float))

    def ratio(self, above: str, below: str) -> Interval:
        """One number of Chiron's episodes over another."""
        mine = self._episodes.loc["chiron", [above, below]].astype(float)
        return mean_interval(mine[above] / mine[below])

    def share(self, policy: str, slo_class: str = "") -> Interval:
        """Per cent of requests on time, of all or of a class."""
        return self.of(policy, f"{slo_class}_attainment" if slo_class else "attainment", 100)

    def saved(self, one: str, other: str) -> Interval:
        """By how many per cent one has fewer GPU-hours than the other, seed by seed."""
        hours = self._episodes["gpu_hours"].astype(float)
        return mean_interval(100 * (1 - hours.loc[one] / hours.loc[other]))

    def during(self, policy: str, what: str, from_s: float, until_s: float) -> Interval:
        """Mean over the intervals that lie between, seed by seed; NaN if there are none."""
        mine = self._of(policy)
        part = mine[(mine["time_s"] > from_s) & (mine["time_s"] <= until_s)]
        return mean_interval(part.groupby("seed")[what].mean().astype(float))

    def each(self, policy: str, number: Callable[[DataFrame], float]) -> float:
        """Mean over the seeds of a number of their intervals."""
        return mean_interval([number(one) for _, one in self._of(policy).groupby("seed")]).mean

    def _of(self, policy: str) -> DataFrame:
        return self._intervals[self._intervals["policy"] == policy]


@claimed
def claims(frame: DataFrame, parameters: Workflow) -> Iterator[Claim]:
    """The sentences of A.2, its last ones first; what needs a policy that was not run is left out."""
    seen = Seen(frame)
    others = {
        policy: name
        for policy, name in (
            ("llumnix-tuned-moving", "waiting requests move"),
            ("llumnix-tuned", "they stay, as tuned"),
        )
        if policy in seen.policies
    }
    chiron = "chiron" in seen.policies
    if chiron:
        hours = [_fewer_hours(seen, policy, name) for policy, name in others.items()]
        met = at_least(
            "SLOs met",
            100 * ALL_MET,
            seen.share("chiron"),
            nothing=None,
            unit="% of requests on time",
            reason=_on_time(seen, "chiron"),
        )
        yield every(
            "Chiron uses 60 % less GPU node hours while meeting all SLOs",
            [*([led_by("GPU-hours", hours)] if hours else []), met],
            paper="60 %, all SLOs",
            how="batch requests wait for spare mixed instances, and batch instances with large batches are "
            "added by the estimated wait",
            note=f"{seen.share('chiron').mean:.1f} % on time",
            setting="against Llumnix tuned whose waiting requests move to instances added later",
        )
    if others:
        yield led_by(
            "By the deadline, only 50 % of requests satisfy SLOs with Llumnix",
            [
                about(
                    name,
                    50,
                    seen.share(policy),
                    nothing=None,
                    unit="%",
                    reason=f"{_on_time(seen, policy)}; {_course(seen, policy, parameters)}",
                )
                for policy, name in others.items()
            ],
            how="batch requests go to instances as they arrive; those added later have the same limit",
            setting="judged where waiting requests move to instances added later; where they stay "
            + (
                ""
                if "llumnix-tuned" not in others
                else f"{seen.share('llumnix-tuned').mean:.0f} % are, "
            )
            + "because those get none",
        )
    yield from _first(seen, parameters)
    if others:
        yield every(
            "Llumnix adds instances until the maximum cluster capacity of 50 is reached",
            [
                about(name, 50, seen.of(policy, "gpus_most"), nothing=None, unit="GPUs at most")
                for policy, name in others.items()
            ],
            how="the queue keeps utilisation above its range, so it adds one instance after another",
        )
    if chiron:
        yield from _of_chiron(seen, parameters)


def _fewer_hours(seen: Seen, policy: str, name: str) -> Claim:
    saved, mine, theirs = seen.saved("chiron", policy), seen.share("chiron"), seen.share(policy)
    reason = _on_time(seen, policy)
    if mine.mean < theirs.mean - 100 * NO_WORSE:
        reason = (
            f"{saved.mean:.0f} % fewer do not count, since Chiron has {mine.mean:.1f} % of the requests "
            f"on time and Llumnix {theirs.mean:.1f} %"
        )
        saved = exact(0.0)
    return gain(name, 60, saved, nothing=0, unit="% less until the deadline", reason=reason)


def _first(seen: Seen, parameters: Workflow) -> Iterator[Claim]:
    """The minutes before the queue, and the reserve that then serves it."""
    at_s, target_s = parameters.batch_at_s, parameters.batch_ttft_s
    parts = [
        about(
            name,
            15,
            seen.during(policy, "gpus", SETTLED_S, at_s),
            nothing=None,
            unit="GPUs at first",
            reason=_at_first(seen, policy, parameters),
        )
        for policy, name in (("chiron", "Chiron"), ("llumnix-tuned", "Llumnix"))
        if policy in seen.policies and at_s > SETTLED_S
    ]
    if "chiron" in seen.policies:
        parts.append(
            about(
                "Chiron, mixed",
                10,
                seen.of("chiron", "mixed_gpus"),
                nothing=None,
                unit=f"GPUs until {(at_s + parameters.close_share * target_s) / 60:g} min",
                reason="mixed instances are a reserve in proportion to the interactive load",
            )
        )
    if parts:
        yield every(
            "Both are over-provisioned with 15 GPUs, of which Chiron multiplexes 10",
            parts,
            paper="15 and 10 GPUs",
            how="interactive instances and their reserve under each policy's own rule",
            setting=f"from {SETTLED_S / 60:g} min on, as all start with 15 instances",
        )


def _of_chiron(seen: Seen, parameters: Workflow) -> Iterator[Claim]:
    at_s, target_s, n = parameters.batch_at_s, parameters.batch_ttft_s, parameters.batch_requests
    close_s, deadline_min = at_s + parameters.close_share * target_s, (at_s + target_s) / 60
    mixed = seen.of("chiron", "mixed_gpus").mean
    served = seen.of("chiron", "mixed_served_per_s").mean
    first_min = seen.each("chiron", lambda one: one.loc[one["batch_gpus"] > 0, "time_s"].min() / 60)
    most = seen.each("chiron", lambda one: one["batch_gpus"].max())
    in_paper = (n - n / 5) / (close_s - at_s)
    words = {
        "unit": "batch requests/s",
        "reason": f"{mixed:.1f} mixed GPUs did {served:.0f} in all, {served / max(mixed, 1e-9):.1f} each",
    }
    yield best_of(
        "The local autoscaler maintains 20 batch requests/s on the over-provisioned capacity",
        [
            about(
                "per instance",
                20,
                seen.ratio("mixed_served_per_s", "mixed_gpus"),
                nothing=None,
                **words,
            ),
            about("in all", 20, seen.of("chiron", "mixed_served_per_s"), nothing=None, **words),
        ],
        how="mixed instances serve the queue beside interactive requests, with batch limits of their own",
        setting=f"20 per instance on 15 instances are the {in_paper:.0f} per second that leave a fifth",
    )
    added_early = (
        "Algorithm 2 adds instances as soon as the estimate exceeds the target; "
        f"{mixed:.1f} mixed GPUs would do {served * target_s:,.0f} of {n:,} in time, so the first batch "
        f"instance comes at {first_min:.1f} min; {most:.1f} at the most in all"
    )
    yield every(
        f"At {close_s / 60:g} min a fifth of the requests remains and 10 new instances are added",
        [
            about(
                name,
                number,
                seen.of("chiron", column),
                nothing=None,
                unit=unit,
                reason=added_early,
            )
            for name, number, column, unit in (
                ("remaining", n / 5, "remaining", "requests"),
                ("added at once", 10, "added_at_once", "instances"),
                ("most are added", close_s / 60, "added_most_min", "min"),
            )
        ],
        paper=f"{n / 5:,.0f} requests, 10 instances at {close_s / 60:g} min",
        how="the estimated wait of a request group exceeds its deadline",
        note=f"{seen.of('chiron', 'remaining').mean:,.0f} requests remain then",
    )
    yield at_most(
        f"At {deadline_min:g} min all requests are completed by Chiron",
        deadline_min,
        seen.of("chiron", "finished_min"),
        nothing=None,
        unit="min, the last batch request",
        reason=_on_time(seen, "chiron"),
        how="batch instances added by the estimated wait",
    )


def _at_first(seen: Seen, policy: str, parameters: Workflow) -> str:
    gpus, mixed = (
        seen.during(policy, what, SETTLED_S, parameters.batch_at_s).mean
        for what in ("gpus", "mixed_gpus")
    )
    rate = parameters.rate_per_s
    reserve = f", {mixed:.1f} of them reserve" if policy == "chiron" else ""
    return (
        f"an instance serves {rate / gpus:.1f} interactive requests/s ({gpus:.1f} GPUs{reserve}), in the "
        f"paper {rate / 15:.1f}"
    )


def _on_time(seen: Seen, policy: str) -> str:
    batch, interactive = (seen.share(policy, name).mean for name in ("batch", "interactive"))
    done_min = seen.of(policy, "finished_min").mean
    return (
        f"{batch:.1f} % of the batch requests and {interactive:.1f} % of the interactive ones are on time; "
        f"the last batch request is done at {done_min:.0f} min, or not before the end"
    )


def _course(seen: Seen, policy: str, parameters: Workflow) -> str:
    """How fast the queue is admitted at first and at last."""
    at_s = parameters.batch_at_s
    early = seen.each(policy, lambda one: _pace(one, at_s, at_last=False))
    late = seen.each(policy, lambda one: _pace(one, at_s + parameters.batch_ttft_s, at_last=True))
    return f"the queue is admitted at {early:.0f} requests/s at first and at {late:.0f} at last"


def _at(one: DataFrame, time_s: float) -> Any:
    return one[one["time_s"] <= max(time_s, one["time_s"].min())].iloc[-1]


def _pace(one: DataFrame, time_s: float, *, at_last: bool) -> float:
    """Requests admitted per second in the `PACE_S` after a time, or in the last before it with a queue."""
    queue = one[one["waiting"] > 0]
    if at_last:
        end = _at(queue, time_s) if len(queue) else one.iloc[-1]
        start = _at(one, end["time_s"] - PACE_S)
    else:
        start, end = _at(one, time_s), _at(one, time_s + PACE_S)
    length_s = float(end["time_s"] - start["time_s"])
    return float(start["waiting"] - end["waiting"]) / length_s if length_s > 0 else float("nan")
