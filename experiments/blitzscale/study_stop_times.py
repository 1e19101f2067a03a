"""GPU time of ServerlessLLM by the time after which its instances stop, against BlitzScale.

Figure 14 says that BlitzScale takes 40 % less GPU time than ServerlessLLM. The paper gives a stop time for
BlitzScale alone (2 s, section 5.3, as it loads so fast), and section 6.2 puts ServerlessLLM on logical hosts
of one GPU. So this study runs ServerlessLLM with several stop times, on machines of eight GPUs and on hosts
of one, and keeps BlitzScale at 2 s. Everything else is Figure 14's: AzureCode, Llama-2-7B, cluster A.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from agents.statistics import Interval, mean_interval
from experiments.blitzscale.end_to_end import run as run_system
from experiments.blitzscale.end_to_end import runs, span
from experiments.blitzscale.serving import SYSTEMS, SystemName
from experiments.blitzscale.setting import Workload
from experiments.harness.claims import Claim, about, more
from experiments.harness.figure import claimed, dress
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

NAME = "blitzscale-stop-times"
FIGURE = "Figure 14, by ServerlessLLM's stop time"
CODE: Workload = "azure-code"
HOSTS: tuple[SystemName, ...] = ("serverlessllm", "serverlessllm-logical")
BLITZSCALE_STOP_S = 2.0
"""Section 5.3."""


class StopTimes(Parameters):
    """Parameters of this study."""

    stops_s: Annotated[
        tuple[float, ...], ours("the paper gives BlitzScale's 2 s alone", min_length=2)
    ] = (2.0, 5.0, 10.0, 15.0, 30.0)
    arrivals_s: Annotated[
        float, paper("section 6: the trace. 0: all of it, else a part from anywhere in it", ge=0)
    ] = 0.0
    patience_s: Annotated[float, ours("until all have ended", gt=0)] = 60.0
    trigger: Annotated[
        Literal["paper", "code"], paper('section 5.3; "code" is the released code\'s')
    ] = "paper"


PARAMETERS = {
    # A run of 300 s costs about 2 s of a core.
    "quick": StopTimes(seeds=3, stops_s=(2.0, 5.0, 15.0), arrivals_s=300.0),
    "paper": StopTimes(seeds=6),
}


def cases(parameters: StopTimes) -> list[dict[str, Any]]:
    """A run per seed of BlitzScale, and one per seed, kind of host and stop time of ServerlessLLM."""
    common = parameters.model_dump(include={"patience_s", "trigger"})
    common |= {"column": CODE, **span(CODE, parameters.arrivals_s)}
    settings = [("blitzscale", BLITZSCALE_STOP_S)]
    settings += [(system, stop) for system in HOSTS for stop in parameters.stops_s]
    return [
        {**common, "system": system, "timeout_s": stop, "seed": seed}
        for system, stop in settings
        for seed in parameters.seed_list()
    ]


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is measured of an episode, in a row."""
    return [row for row in run_system(case) if row["kind"] == "run"]


def at(frame: DataFrame, system: str, stop_s: float, value: str) -> Any:
    """A value of every run with a stop time, by seed."""
    return runs(frame[frame["timeout_s"].astype(float) == stop_s], CODE, system, value)


def saved(frame: DataFrame, system: str, stop_s: float) -> Interval:
    """By how many per cent BlitzScale's GPU time is below ServerlessLLM's, over seeds."""
    blitzscale = at(frame, "blitzscale", BLITZSCALE_STOP_S, "gpu_s")
    other = at(frame, system, stop_s, "gpu_s")
    return mean_interval((100 * (1 - blitzscale / other)).dropna().to_numpy())


def plot(frame: DataFrame, parameters: StopTimes) -> Any:
    """GPU time and mean TTFT over the stop time."""
    figure = new_figure(9.0, 3.8)
    panels = figure.subplots(1, 2)
    for axes, (value, scale, label) in zip(
        panels,
        (("gpu_s", 1 / 3600, "GPU time (hours)"), ("ttft_mean_s", 1e3, "TTFT, mean (ms)")),
        strict=True,
    ):
        for name in HOSTS:
            system = SYSTEMS[name]
            means = [scale * at(frame, name, stop, value).mean() for stop in parameters.stops_s]
            axes.plot(parameters.stops_s, means, "o-", color=system.colour, label=system.shown)
        ours = scale * at(frame, "blitzscale", BLITZSCALE_STOP_S, value).mean()
        axes.axhline(ours, color=SYSTEMS["blitzscale"].colour, label="BlitzScale, 2 s")
        dress(
            axes,
            xlabel="ServerlessLLM's instances stop after (s)",
            ylabel=f"{label}, mean of the runs",
            bottom=0,
        )
    panels[0].legend(fontsize=7)
    return figure


@claimed
def claims(frame: DataFrame, parameters: StopTimes) -> Iterator[Claim]:
    """Section 6.2, by stop time and kind of host."""
    for name in HOSTS:
        shown = SYSTEMS[name].shown
        for stop in parameters.stops_s:
            ttft = 1e3 * at(frame, name, stop, "ttft_mean_s").mean()
            less = 1e3 * at(frame, "blitzscale", BLITZSCALE_STOP_S, "ttft_mean_s").mean()
            yield about(
                f"40 % less GPU time than {shown}, that stops after {stop:g} s",
                40,
                saved(frame, name, stop),
                nothing=0,
                unit="%",
                paper="40 % (its stop time is not given)",
                note=f"mean TTFT {less:.0f} ms, ServerlessLLM {ttft:.0f} ms",
                reason=REASON,
            )
        short, long = min(parameters.stops_s), max(parameters.stops_s)
        growth = 100 * (at(frame, name, long, "gpu_s") / at(frame, name, short, "gpu_s") - 1)
        yield more(
            f"{shown}: GPU time grows with the stop time ({short:g} to {long:g} s)",
            0.0,
            mean_interval(growth.dropna().to_numpy()),
            unit="%",
            paper="not in the paper",
            reason="an instance that stays longer saves starts, and in this load more than it costs",
        )


REASON = (
    "most of both systems' GPU time is that of instances that serve or stand idle until they stop, so the "
    "saving depends on ServerlessLLM's stop time, which the paper does not give"
)
"""Why the published saving is met at some stop times only."""
