"""What the paper's appendix A.2 says of Figure 19, held against its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from agents.statistics import Interval, mean_interval
from experiments.harness.claims import Claim, about, at_least, at_most, exact
from experiments.harness.figure import claimed

if TYPE_CHECKING:
    from pandas import DataFrame

    from experiments.chiron.fig19_workflow import Workflow

NO_WORSE = 0.01
"""Share of requests on time by which Chiron may lie below who is compared with in GPU-hours."""

SETTLED_S = 120.0
"""The fleet starts with 15 instances; what a policy makes of them shows from then on."""

PACE_S = 600.0
"""Over so long the pace at which the queue is admitted is taken."""


class Seen:
    """The rows of a figure: one per episode, and those of its control intervals."""

    def __init__(self, frame: DataFrame) -> None:
        self._episodes = frame[frame["row"] == "summary"].set_index(["policy", "seed"])
        self._intervals = frame[frame["row"] == "interval"]
        self.policies = set(self._episodes.index.get_level_values("policy"))

    def of(self, policy: str, what: str, times: float = 1) -> Interval:
        """A number of the episodes."""
        return mean_interval(times * self._episodes.loc[policy, what].astype(float))

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
def judge(frame: DataFrame, parameters: Workflow, *, all_met: float) -> Iterator[Claim]:
    """The sentences of A.2, its last ones first; what needs a policy that was not run is left out.

    Args:
        frame: rows of the figure.
        parameters: with which they were made.
        all_met: the share of SLOs that counts as all.
    """
    seen = Seen(frame)
    others = [
        policy for policy in ("llumnix-tuned", "llumnix-tuned-moving") if policy in seen.policies
    ]
    if "chiron" in seen.policies:
        yield from [_fewer_hours(seen, policy, parameters) for policy in others[:1]]
        yield at_least(
            "Chiron meets all SLOs",
            100 * all_met,
            seen.share("chiron"),
            nothing=None,
            unit="% of requests on time",
            paper="all",
            reason=_on_time(seen, "chiron"),
        )
    yield from [_half(seen, policy, parameters) for policy in others]
    if "chiron" in seen.policies:
        yield from [_fewer_hours(seen, policy, parameters) for policy in others[1:]]
    yield from [
        about(
            f"At first {name} is over-provisioned with 15 GPUs on average",
            15,
            seen.during(policy, "gpus", SETTLED_S, parameters.batch_at_s),
            nothing=None,
            unit=f"GPUs from {SETTLED_S / 60:g} min on",
            reason=_at_first(seen, policy, parameters),
            note="all start with 15 instances, so the first two minutes are left out",
        )
        for policy, name in (("chiron", "Chiron"), ("llumnix-tuned", "Llumnix (tuned)"))
        if policy in seen.policies and parameters.batch_at_s > SETTLED_S
    ]
    if "llumnix-tuned" in seen.policies:
        yield about(
            "Llumnix adds instances until the cap of 50",
            50,
            seen.of("llumnix-tuned", "gpus_most"),
            nothing=None,
            unit="GPUs at most",
        )
    if "chiron" in seen.policies:
        yield from _of_chiron(seen, parameters)


def _where(policy: str) -> str:
    return " (waiting requests move)" if policy == "llumnix-tuned-moving" else ""


def _fewer_hours(seen: Seen, policy: str, parameters: Workflow) -> Claim:
    saved, mine, theirs = seen.saved("chiron", policy), seen.share("chiron"), seen.share(policy)
    reason = f"{_on_time(seen, policy)}; {_course(seen, policy, parameters)}"
    if mine.mean < theirs.mean - 100 * NO_WORSE:
        reason = (
            f"{saved.mean:.0f} % fewer do not count, since Chiron has {mine.mean:.1f} % of the requests "
            f"on time and Llumnix {theirs.mean:.1f} %"
        )
        saved = exact(0.0)
    return about(
        f"Chiron uses 60 % fewer GPU-hours than Llumnix{_where(policy)}, and no fewer requests are on time",
        60,
        saved,
        nothing=0,
        unit="% fewer, until the deadline",
        reason=reason,
        note=f"on time: Chiron {mine.mean:.1f} %, Llumnix {theirs.mean:.1f} %",
    )


def _half(seen: Seen, policy: str, parameters: Workflow) -> Claim:
    return about(
        f"Llumnix{_where(policy)} meets the SLOs of only half of the requests",
        50,
        seen.share(policy),
        nothing=None,
        unit="% of requests on time",
        reason=f"{_on_time(seen, policy)}; {_course(seen, policy, parameters)}",
    )


def _of_chiron(seen: Seen, parameters: Workflow) -> list[Claim]:
    at_s, target_s, n = parameters.batch_at_s, parameters.batch_ttft_s, parameters.batch_requests
    close_s, deadline_min = at_s + parameters.close_share * target_s, (at_s + target_s) / 60
    until = f"until {close_s / 60:g} min"
    served = seen.of("chiron", "mixed_served_per_s").mean
    mixed, batch = (
        seen.during("chiron", f"{role}_gpus", at_s, close_s).mean for role in ("mixed", "batch")
    )
    first_min = seen.each("chiron", lambda one: one.loc[one["batch_gpus"] > 0, "time_s"].min() / 60)
    most = seen.each("chiron", lambda one: one["batch_gpus"].max())
    helped = (
        f"{batch:.1f} batch GPUs on average {until}, the first from {first_min:.1f} min on, and "
        f"{mixed:.1f} mixed ones"
    )
    in_paper = (n - n / 5) / (close_s - at_s)
    found = [
        about(
            "Chiron serves the batch queue on 10 over-provisioned GPUs",
            10,
            seen.of("chiron", "mixed_gpus"),
            nothing=None,
            unit=f"mixed GPUs, {until}",
            reason=f"mixed instances are a reserve in proportion to the interactive load, for which there "
            f"are {_before(seen, parameters):.1f} GPUs before the queue comes and not 15; {helped}",
        ),
        about(
            "Chiron serves 20 batch requests per second on them",
            20,
            seen.of("chiron", "mixed_served_per_s"),
            nothing=None,
            unit=f"batch requests/s on mixed instances, {until}",
            reason=f"{mixed:.1f} mixed GPUs did {served / max(mixed, 1e-9):.1f} each; the paper's 20 on 10 "
            "are 2 each",
            note=f"the paper's numbers do not agree with each other: four fifths of {n:,} requests in "
            f"{(close_s - at_s) / 60:g} minutes are {in_paper:.0f} per second",
        ),
        about(
            f"At {close_s / 60:g} min a fifth of the batch requests is left",
            n / 5,
            seen.of("chiron", "remaining"),
            nothing=None,
            unit="requests",
            reason=helped,
        ),
        about(
            "Chiron then adds 10 instances at once",
            10,
            seen.of("chiron", "added_at_once"),
            nothing=1,
            unit="batch instances, the most at one decision",
            reason=f"they are added in several steps, {most:.1f} batch GPUs at the most in all",
        ),
    ]
    enough = served * target_s >= n
    found += [
        about(
            f"It adds them at {close_s / 60:g} min",
            close_s / 60,
            seen.of("chiron", "added_most_min"),
            nothing=None,
            unit="min, when it adds most",
            reason=""
            if enough
            else "Algorithm 2 adds instances as soon as the estimate for a group exceeds its target. The "
            f"{mixed:.1f} mixed GPUs did {served:.0f} batch requests/s, so that by themselves they would do "
            f"{served * target_s:,.0f} of {n:,} within {target_s / 60:g} minutes: too few at the first "
            f"look at the queue. The first batch GPU is billed at {first_min:.1f} min",
        ),
        at_most(
            f"With Chiron all requests are completed at {deadline_min:g} min",
            deadline_min,
            seen.of("chiron", "finished_min"),
            nothing=None,
            unit="min, the last batch request",
            reason=_on_time(seen, "chiron"),
        ),
    ]
    return found


def _before(seen: Seen, parameters: Workflow) -> float:
    from_s = SETTLED_S if parameters.batch_at_s > SETTLED_S else 0.0
    return seen.during("chiron", "gpus", from_s, parameters.batch_at_s).mean


def _at_first(seen: Seen, policy: str, parameters: Workflow) -> str:
    gpus, mixed = (
        seen.during(policy, what, SETTLED_S, parameters.batch_at_s).mean
        for what in ("gpus", "mixed_gpus")
    )
    rate = parameters.rate_per_s
    reserve = f", {mixed:.1f} of them mixed, that is reserve" if policy == "chiron" else ""
    return (
        f"{rate:g} requests/s on {gpus:.1f} GPUs are {rate / gpus:.1f} per GPU{reserve}; on the paper's 15 "
        f"they are {rate / 15:.1f}"
    )


def _on_time(seen: Seen, policy: str) -> str:
    batch, interactive = (seen.share(policy, name).mean for name in ("batch", "interactive"))
    done_min = seen.of(policy, "finished_min").mean
    return (
        f"{batch:.1f} % of the batch requests and {interactive:.1f} % of the interactive ones are on time; "
        f"the last batch request is done at {done_min:.0f} min, or not before the end"
    )


def _course(seen: Seen, policy: str, parameters: Workflow) -> str:
    """How fast the queue is admitted with few GPUs and with many."""
    at_s = parameters.batch_at_s
    deadline_s = at_s + parameters.batch_ttft_s
    few = seen.each(policy, lambda one: _at(one, at_s)["gpus"])
    early = seen.each(policy, lambda one: _pace(one, at_s, at_last=False))
    late = seen.each(policy, lambda one: _pace(one, deadline_s, at_last=True))
    most = seen.of(policy, "gpus_most").mean
    end = seen.each(policy, lambda one: _at(one, deadline_s)["gpus"])
    text = (
        f"with {few:.0f} GPUs when it came and {most:.0f} at the most the queue is admitted at {early:.0f} "
        f"requests/s at first and at {late:.0f} at last"
    )
    return f"{text}; {end:.0f} GPUs are left at the deadline" if end < 0.9 * most else text


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
