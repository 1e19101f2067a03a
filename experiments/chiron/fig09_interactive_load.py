"""Workload A: throughput per instance and SLO attainment against the interactive arrival rate.

Interactive requests only (Poisson, ShareGPT lengths), for the small model, the large one, and both sharing
the 50 GPUs. Llumnix has one setting for all workloads ("untuned") or one per workload ("tuned"). "Untuned"
has two readings: a batch limit of 64, which section 6.2 implies, and the 1024 that our sweep finds best.

`experiments.chiron.llumnix_sweep` finds the settings, with up to eight seeds and two loads of each workload.
Section 6.2 implies about 64 by calling Chiron's 2048 to 4096 "nearly 50x higher"; that is probably what the
paper ran, and our sweep's is the stronger opponent. Throughput per instance is requests finished per second
and billed instance (loading and draining ones included); SLO attainment is the share of arrivals whose TTFT
and mean ITL both meet their targets. Lines are means over the seeds, bands their range. The paper runs both
models with prefix caching and speculative decoding, of which it gives no parameters; here, as in all figures
but 11 and 12, they run plain.

Ours: an episode of half an hour whose first ten minutes are warm-up, since the paper's 3,500 requests are
over in ten seconds at 340 requests/s, before a single new instance has loaded. The last two minutes let
requests finish and are not judged. `requests=3500` gives the literal reading: so many requests, from the
fleet at the start, measured until the last has finished. Chiron keeps three times the instances that run
interactive requests (theta = 1/3, the paper's default, meant for bursts). With Poisson arrivals, and no batch
requests to use the reserve, that costs throughput per instance. So Chiron with hardly any reserve is drawn
too. The claims are about the default; sentences about all loads are judged by the share of loads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import PositiveFloat

from agents.statistics import Interval, mean_interval
from experiments.chiron.comparison import (
    against_all,
    against_untuned,
    at_load,
    better_served,
    by_load,
    compared,
    gain_percent,
    gain_points,
    mean_gains,
    reached,
    up_to,
)
from experiments.chiron.llumnix_settings import OPPONENTS, llumnix_policies
from experiments.chiron.loads import EXHAUSTED, draw_column, run_load
from experiments.chiron.setting import CONFIGURATIONS
from experiments.harness.claims import Claim, about, at_least, at_most, every, gain
from experiments.harness.figure import SEEDS, Grid, claimed, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 9"
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

    def points(other: str) -> Claim:
        found, at = up_to(compared(frame, "slo_attainment", "chiron", other, gain_points))
        return gain(
            OPPONENTS[other],
            90,
            found,
            nothing=0,
            unit="percentage points",
            reason="no load has a larger difference",
            how="Chiron's local autoscaler raises batch limits until the 50 GPUs carry the load; Llumnix "
            "with a limit of 64 runs out of GPUs",
            setting=f"largest at {at}",
        )

    yield against_untuned("Chiron achieves up to 90 % higher SLO attainment than Llumnix", points)
    yield against_all(
        "Chiron has equal or higher throughput per instance than both versions of Llumnix",
        lambda other: at_least(
            OPPONENTS[other],
            100,
            _share_no_lower(frame, other),
            nothing=None,
            unit="% of the loads",
            reason=f"{mean_gains(frame, other)}; {_gpus(frame, other)}",
        ),
        paper="for all configurations",
        how="batch limits that follow load and lengths, against static ones",
        setting="counted where it has at least 99 % of the other's",
    )
    gains, lean = (
        compared(frame, column, mine, "llumnix-tuned", gain_percent)
        for mine in ("chiron", "chiron-lean")
    )
    named = [("small", parameters.named_small_per_s), ("large", parameters.named_large_per_s)]
    if places := [place for place in named if place in gains.index]:
        yield every(
            "Chiron's throughput is 10 % higher than that of Llumnix (tuned)",
            [
                gain(
                    f"{configuration}, {rate:g} requests/s",
                    10,
                    at_load(gains, configuration, rate),
                    nothing=0,
                    unit="%",
                    reason="Chiron's reserve of two thirds costs more than its batch sizes gain; with hardly "
                    f"any reserve it has {at_load(lean, configuration, rate).mean:+.0f} %",
                )
                for configuration, rate in places
            ],
            how="batch limits that follow the lengths of requests, against the best static one",
        )
    yield from _batch_sizes(frame, parameters)
    yield against_all(
        "Chiron achieves better SLO satisfaction than Llumnix (tuned and untuned)",
        lambda other: better_served(OPPONENTS[other], frame, other, slack, "loads"),
        paper="better",
        how="Chiron's instances take larger batches, so that the GPUs last longer",
    )
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

    def served(policy: str) -> Interval:
        return reached(frame, policy, "mixed", "slo_attainment", meets, last=True)

    def exhausts(policy: str) -> Claim:
        full = reached(share, policy, "mixed", "gpu_share", EXHAUSTED, last=False)
        on_time = at_load(
            100 * by_load(frame, policy, "slo_attainment"), "mixed", float(EXHAUSTS_PER_S)
        )
        reason = (
            f"it takes all GPUs at {_rate(full, most_per_s)} requests/s; fewer than {meets:.0%} are on time "
            f"beyond {_rate(served(policy), most_per_s)}"
        )
        return every(
            OPPONENTS[policy],
            [
                about(
                    "takes all GPUs",
                    EXHAUSTS_PER_S,
                    full,
                    nothing=None,
                    unit="requests/s",
                    reason=reason,
                ),
                at_most(
                    f"at {EXHAUSTS_PER_S} requests/s",
                    100 * meets,
                    on_time,
                    nothing=None,
                    unit="% of the requests on time",
                    reason=reason,
                ),
            ],
            how=f"it adds instances until {EXHAUSTED:.0%} of the GPUs are taken, and requests then queue",
            setting="both models on 50 GPUs",
        )

    if EXHAUSTS_PER_S in frame.loc[frame["configuration"] == "mixed", "load"].to_numpy():
        yield against_untuned(
            "Llumnix (untuned) exhausts all GPUs at 40 requests/s, leading to SLO violations",
            exhausts,
            paper=f"{EXHAUSTS_PER_S} requests/s",
        )
    yield about(
        "Chiron utilizes all GPUs, leading to SLO violations beyond 100 requests/s",
        VIOLATES_PER_S,
        served("chiron"),
        nothing=None,
        unit=f"requests/s, the last with {meets:.0%} on time",
        paper=f"{VIOLATES_PER_S} requests/s",
        reason=f"rates up to {most_per_s:g} were run",
        how="Chiron adds instances until the GPUs run out, and requests then queue",
        setting="both models on 50 GPUs",
    )


def _rate(found: Interval, most_per_s: float) -> str:
    """A rate at which something ends or begins, which may lie beyond those that were run."""
    return f"{found.mean:.0f}" if math.isfinite(found.mean) else f"more than {most_per_s:g}"


def _batch_sizes(frame: DataFrame, parameters: InteractiveLoad) -> Iterator[Claim]:
    at = ("small", parameters.named_small_per_s), ("large", parameters.named_large_per_s)
    small, large = (by_load(frame, "chiron", f"{name}_interactive_limit") for name, _ in at)
    if at[0] not in small.index or at[1] not in large.index:
        return
    one, other = mean_interval(small.loc[at[0]]), mean_interval(large.loc[at[1]])
    yield gain(
        "Chiron maintains a 5 times higher batch size for the small model than for the large one",
        5,
        mean_interval(small.loc[at[0]] / large.loc[at[1]]),
        nothing=1,
        unit="x",
        reason=f"interactive instances have {one.mean:.0f} and {other.mean:.0f}",
        how=f"limits that the local autoscaler sets: {one.mean:.0f} and {other.mean:.0f}",
        setting=f"mean limits of interactive instances at {at[0][1]:g} and {at[1][1]:g} requests/s",
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
    return f"GPUs taken, mean over all loads: {shown}"


def _rates(parameters: InteractiveLoad) -> dict[str, tuple[float, ...]]:
    return {name: getattr(parameters, f"{name}_rates_per_s") for name in CONFIGURATIONS}
