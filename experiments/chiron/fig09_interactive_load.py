"""Workload A: throughput per instance and SLO attainment against the interactive arrival rate.

Interactive requests only (Poisson, ShareGPT lengths), for the small model, the large one, and both sharing
the 50 GPUs. Llumnix is run with one setting for all workloads ("untuned") and with one per workload
("tuned"); `experiments.chiron.llumnix_sweep` finds them, with up to eight seeds and two loads of each
workload. "Untuned" is drawn in two readings. The text gives no batch limit, but section 6.2 implies about 64
by calling Chiron's 2048 to 4096 "nearly 50x higher"; that is probably what the paper ran. Our sweep finds
a larger one, which is the stronger opponent. Every sentence about the untuned Llumnix is judged
for both. Throughput per instance is requests finished per second and billed instance (loading and
draining ones included); SLO attainment is the share of arrivals whose TTFT and mean ITL both meet their
targets. Lines are means over the seeds, bands their range. The paper runs both models with prefix caching
and speculative decoding, of which it gives no parameters; here, as in all figures but 11 and 12, they run
plain.

Ours: an episode of half an hour whose first ten minutes are warm-up, since the paper's 3,500 requests are
over in ten seconds at 340 requests/s, before a single new instance has loaded. The last two minutes let
requests finish and are not judged. `requests=3500` gives the literal reading: so many requests, from the
fleet at the start, measured until the last has finished. Chiron keeps three times the instances that run
interactive requests (theta = 1/3, the paper's default, meant for bursts). With Poisson arrivals, and no batch
requests to use the reserve, that costs throughput per instance. So Chiron with hardly any reserve is drawn
too. The claims are about the default. A gain in throughput counts only at loads at which no more
requests are late, and sentences about all loads are judged by the share of loads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import PositiveFloat

from agents.statistics import Interval, mean_interval
from experiments.chiron.comparison import (
    at_load,
    better_served,
    by_load,
    compared,
    gain_percent,
    gain_points,
    largest_gain,
    lower_at,
    reached,
    up_to,
)
from experiments.chiron.llumnix_settings import OPPONENTS, UNTUNED_READINGS, llumnix_policies
from experiments.chiron.loads import EXHAUSTED, draw_column, run_load
from experiments.chiron.setting import CONFIGURATIONS
from experiments.harness.claims import Claim, about, at_least, at_most
from experiments.harness.figure import SEEDS, Grid, claimed, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 9"
POLICIES = ("chiron", *OPPONENTS)
DRAWN = ("chiron", "chiron-lean", *OPPONENTS)
ROWS = {
    "throughput_per_instance": "requests/s per instance",
    "slo_attainment": "SLO attainment (%)",
    "gpus": "GPUs (mean)",
}
EXHAUSTS_PER_S, VIOLATES_PER_S = 40, 100  # Llumnix's GPUs, Chiron's SLOs
_PACE = "within the paper's range; includes the rates that its text names"


class InteractiveLoad(Parameters):
    """Parameters of this figure."""

    seeds: Annotated[int, ours("enough for an interval", ge=1, le=1000)] = 3
    small_rates_per_s: Annotated[tuple[PositiveFloat, ...], ours(_PACE)] = (
        20, 60, 100, 160, 220, 280, 340, 400,
    )  # fmt: skip
    large_rates_per_s: Annotated[tuple[PositiveFloat, ...], ours(_PACE)] = (
        5, 10, 20, 30, 40, 50, 60,
    )  # fmt: skip
    mixed_rates_per_s: Annotated[tuple[PositiveFloat, ...], ours(_PACE)] = (
        10, 20, 40, 60, 80, 100, 120,
    )  # fmt: skip
    named_small_per_s: Annotated[float, paper("6.1")] = 340
    named_large_per_s: Annotated[float, paper("6.1")] = 40
    warm_up_s: Annotated[int, ours("one instance every ten seconds is Llumnix's pace", ge=0)] = 600
    measured_s: Annotated[int, ours("thousands of requests at every rate", ge=60)] = 1080
    tail_s: Annotated[int, ours("longer than any request takes on time", ge=0)] = 120
    lean_theta: Annotated[
        float, ours("hardly any reserve, drawn beside the default theta of 1/3", gt=0, lt=0.9)
    ] = 0.8
    requests: Annotated[int, ours("0: by time; 3500 is the paper's trace", ge=0)] = 0
    no_worse_points: Annotated[
        float, ours("more throughput counts only where attainment is no lower", ge=0)
    ] = 1.0
    meets: Annotated[float, ours("attainment at which a load counts as served", gt=0, lt=1)] = 0.95


PARAMETERS = {
    "quick": InteractiveLoad(
        seeds=1,
        small_rates_per_s=(100, 340),
        large_rates_per_s=(10, 40),
        mixed_rates_per_s=(40, 100),
        warm_up_s=300,
        measured_s=300,
    ),
    "paper": InteractiveLoad(),
}


def _policies(parameters: InteractiveLoad, case: dict[str, Any]) -> list[dict[str, str]]:
    policies = {
        "chiron": "chiron",
        "chiron-lean": f"chiron:theta={parameters.lean_theta:g}",
        **llumnix_policies("W_A", case["configuration"]),
    }
    return [{"policy_name": name, "policy": policy} for name, policy in policies.items()]


cases = Grid(
    {
        "workload": ("W_A",),
        "configuration": CONFIGURATIONS,
        "load": lambda parameters, case: map(float, _rates(parameters)[case["configuration"]]),
        "policy": _policies,
        "seed": SEEDS,
    },
    keep=("warm_up_s", "measured_s", "tail_s", "requests"),
)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One episode."""
    return [run_load(case)]


def plot(frame: DataFrame, parameters: InteractiveLoad) -> Any:
    """Three configurations side by side: throughput, attainment, and the GPUs that they take."""
    figure = new_figure(13, 9)
    panels = figure.subplots(3, 3, sharex="col")
    named = {"small": [parameters.named_small_per_s], "large": [parameters.named_large_per_s]}
    for k, configuration in enumerate(CONFIGURATIONS):
        mine = where(frame, configuration=configuration)
        marks = named.get(configuration, [EXHAUSTS_PER_S, VIOLATES_PER_S])
        draw_column(panels[:, k], mine, DRAWN, ROWS, names=k == 0, marks=marks)
        panels[0, k].set_title(f"{configuration} (dotted: rates that the paper names)", fontsize=10)
        panels[2, k].set_xlabel("arrival rate (requests/s)")
    panels[1, 0].legend(fontsize=9, loc="lower left")
    return figure


@claimed
def claims(frame: DataFrame, parameters: InteractiveLoad) -> Iterator[Claim]:
    """Section 6.1, and what sections 1 and 8 say of interactive requests."""
    slack = parameters.no_worse_points / 100
    column = "throughput_per_instance"
    for other in UNTUNED_READINGS:
        points, at = up_to(compared(frame, "slo_attainment", "chiron", other, gain_points))
        yield about(
            f"Up to 90 % higher SLO attainment than Llumnix ({OPPONENTS[other]})",
            90,
            points,
            nothing=0,
            unit="percentage points",
            reason=f"largest difference, at {at}; who is never late leaves nothing to gain. "
            f"{_attainments(frame)}",
        )
    for other in UNTUNED_READINGS:
        more, at = largest_gain(frame, column, "chiron", other, gain_percent, slack)
        yield about(
            f"Up to 300 % more throughput per instance than Llumnix ({OPPONENTS[other]}), with no more "
            "late requests",
            300,
            more,
            nothing=0,
            unit="%",
            reason=_gpus(frame, other),
            note=f"largest gain {at}",
        )
    for other, name in OPPONENTS.items():
        yield better_served(
            f"Better SLO attainment than Llumnix ({name})",
            "better",
            frame,
            other,
            slack,
            "loads",
            reason=f"{lower_at(frame, 'chiron', other, slack)}. {_attainments(frame)}",
        )
    for other, name in OPPONENTS.items():
        yield at_least(
            f"Equal or higher throughput per instance than Llumnix ({name}) for all configurations",
            100,
            _share_no_lower(frame, other),
            nothing=None,
            unit="% of the loads",
            paper="all",
            reason=_gpus(frame, other),
            note="counted where Chiron has at least 99 % of the other's throughput, whatever the "
            f"attainment; {lower_at(frame, 'chiron', other, slack)}",
        )
    gains, lean = (
        compared(frame, column, mine, "llumnix-tuned", gain_percent)
        for mine in ("chiron", "chiron-lean")
    )
    for configuration, rate in (
        ("small", parameters.named_small_per_s),
        ("large", parameters.named_large_per_s),
    ):
        if (configuration, rate) in gains.index:
            yield about(
                f"10 % more throughput than Llumnix (tuned) ({configuration}, {rate:g} requests/s)",
                10,
                at_load(gains, configuration, rate),
                nothing=0,
                unit="%",
                reason=f"with the small reserve Chiron's throughput is "
                f"{at_load(lean, configuration, rate).mean:+.0f} % beside the tuned one's",
                note=_beside(frame, configuration, rate),
            )
    yield from _batch_sizes(frame, parameters)
    yield from _exhaustion(frame, max(parameters.mixed_rates_per_s), parameters.meets)


def _exhaustion(frame: DataFrame, most_per_s: float, meets: float) -> Iterator[Claim]:
    """The mixed configuration: who takes all GPUs from which rate on, and who is then late.

    What is said of a rate that was not run is left out.

    Args:
        frame: all rows.
        most_per_s: the highest rate that was run.
        meets: share of requests on time from which on SLOs count as met.
    """
    share = frame.assign(gpu_share=frame["gpus"] / 50)
    served = {
        policy: reached(frame, policy, "mixed", "slo_attainment", meets, last=True)
        for policy in POLICIES
    }
    limit = f"{meets:.0%}"
    shown = "; ".join(f"{name} {_rate(served[name], most_per_s)}" for name in POLICIES)
    for policy in UNTUNED_READINGS:
        name = f"Llumnix ({OPPONENTS[policy]})"
        full = reached(share, policy, "mixed", "gpu_share", EXHAUSTED, last=False)
        yield about(
            f"Mixed: {name} exhausts the GPUs at {EXHAUSTS_PER_S} requests/s",
            EXHAUSTS_PER_S,
            full,
            nothing=None,
            unit="requests/s",
            reason=f"it has them at {_rate(full, most_per_s)}; rates up to {most_per_s:g} were run",
            note=f"lowest rate at which {EXHAUSTED:.0%} of the GPUs are taken on average",
        )
        on_time = at_load(
            100 * by_load(frame, policy, "slo_attainment"), "mixed", float(EXHAUSTS_PER_S)
        )
        if math.isnan(on_time.mean):
            continue
        yield at_most(
            f"Mixed: at {EXHAUSTS_PER_S} requests/s that leads to SLO violations of {name}",
            100 * meets,
            on_time,
            nothing=None,
            unit="% of the requests on time",
            paper="SLO violations",
            reason="with these GPUs it serves that rate in time; rates beyond which fewer "
            f"than {limit} are on time: {shown}",
        )
    yield about(
        f"Mixed: Chiron violates SLOs only beyond {VIOLATES_PER_S} requests/s",
        VIOLATES_PER_S,
        served["chiron"],
        nothing=None,
        unit="requests/s",
        reason=f"rates up to {most_per_s:g} were run",
        note=f"rates beyond which fewer than {limit} of the requests are on time: {shown}",
    )


def _rate(found: Interval, most_per_s: float) -> str:
    """A rate at which something ends or begins, which may lie beyond those that were run."""
    if math.isnan(found.mean):
        return f"none up to {most_per_s:g}"
    return (
        f"none up to {most_per_s:g} for some seeds"
        if math.isinf(found.mean)
        else f"{found.mean:.0f}"
    )


def _batch_sizes(frame: DataFrame, parameters: InteractiveLoad) -> Iterator[Claim]:
    at = ("small", parameters.named_small_per_s), ("large", parameters.named_large_per_s)
    small, large = (by_load(frame, "chiron", f"{name}_interactive_limit") for name, _ in at)
    if at[0] not in small.index or at[1] not in large.index:
        return
    one, other = mean_interval(small.loc[at[0]]), mean_interval(large.loc[at[1]])
    yield about(
        "Chiron's batch size for the small model is five times that for the large one",
        5,
        mean_interval(small.loc[at[0]] / large.loc[at[1]]),
        nothing=1,
        unit="x",
        reason=f"batch limits of the interactive instances, {one.mean:.0f} at {at[0][1]:g} requests/s "
        f"and {other.mean:.0f} at {at[1][1]:g}",
    )


def _share_no_lower(frame: DataFrame, other: str) -> Interval:
    mine = by_load(frame, "chiron", "throughput_per_instance")
    theirs = by_load(frame, other, "throughput_per_instance")
    return mean_interval(100 * (mine >= 0.99 * theirs).mean(axis=0))


def _gpus(frame: DataFrame, other: str) -> str:
    """The GPUs that a throughput per instance is paid with."""
    taken = frame.groupby("policy_name")["gpus"].mean()
    names = [name for name in ("chiron", "chiron-lean", other) if name in taken.index]
    shown = ", ".join(f"{name} {taken[name]:.0f}" for name in names)
    return f"GPUs taken for the same requests, mean over all loads: {shown}"


def _attainments(frame: DataFrame) -> str:
    """Lowest attainment of each policy over all loads, for a reader who wonders."""
    means = frame.groupby(["policy_name", "configuration", "load"])["slo_attainment"].mean()
    lowest = means.groupby("policy_name").min()
    text = ", ".join(f"{name} {100 * lowest[name]:.0f} %" for name in POLICIES if name in lowest)
    return f"Lowest attainment over all loads: {text}"


def _beside(frame: DataFrame, configuration: str, rate: float) -> str:
    """Attainment and GPUs beside a throughput."""
    here = where(frame, configuration=configuration, load=rate).groupby("policy_name")
    means = here[["slo_attainment", "gpus"]].mean()
    return "; ".join(
        f"{name} {100 * row['slo_attainment']:.0f} % on time with {row['gpus']:.0f} GPUs"
        for name, row in means.reindex(n for n in DRAWN if n in means.index).iterrows()
    )


def _rates(parameters: InteractiveLoad) -> dict[str, tuple[float, ...]]:
    return {name: getattr(parameters, f"{name}_rates_per_s") for name in CONFIGURATIONS}
