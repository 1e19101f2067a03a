"""GPU time of ServerlessLLM by the time after which its instances stop, against BlitzScale.

Figure 14 says that BlitzScale takes 40 % less GPU time than ServerlessLLM, and the paper gives a stop time
for BlitzScale alone (2 s). So this study runs ServerlessLLM with several stop times, on machines of eight
GPUs and on logical hosts of one, and keeps BlitzScale at 2 s. Everything else is Figure 14's: AzureCode,
Llama-2-7B, cluster A.

The 2 s are section 5.3's, "given rapid autoscaling"; section 6.2 puts ServerlessLLM on logical hosts of one
GPU where it counts copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from agents.statistics import Interval, mean_interval
from experiments.blitzscale.end_to_end import run as run_system
from experiments.blitzscale.end_to_end import runs, span
from experiments.blitzscale.serving import SYSTEMS, SystemName
from experiments.blitzscale.setting import Workload
from experiments.harness.claims import Claim, asked, best_of, every, gain, more
from experiments.harness.figure import claimed, dress
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure

if TYPE_CHECKING:
    from pandas import DataFrame

NAME = "blitzscale-stop-times"
FIGURE = "Figure 14, by ServerlessLLM's stop time"
CODE: Workload = "azure-code"
HOSTS: tuple[SystemName, ...] = ("serverlessllm", "serverlessllm-logical")
HOSTS_SHOWN = dict(zip(HOSTS, ("machines of 8 GPUs", "hosts of one GPU"), strict=True))
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
    """Section 6.2, by stop time and kind of host: questions, as the paper gives no stop time."""
    ttft = {
        stop: 1e3 * at(frame, HOSTS[0], stop, "ttft_mean_s").mean() for stop in parameters.stops_s
    }
    mine = 1e3 * at(frame, "blitzscale", BLITZSCALE_STOP_S, "ttft_mean_s").mean()
    setting = "AzureCode, Llama-2-7B; BlitzScale's instances stop after 2 s"
    yield asked(
        best_of(
            "At which stop time of ServerlessLLM is the saving 40 %?",
            [
                gain(
                    f"{words}, {stop:g} s",
                    40,
                    saved(frame, name, stop),
                    nothing=0,
                    unit="% less GPU time",
                )
                for name, words in HOSTS_SHOWN.items()
                for stop in parameters.stops_s
            ],
            paper="40 % (its stop time is not given)",
            how="instances that stay longer stand idle longer; loading differs as well, but costs little",
            setting=setting,
            note="mean TTFT by stop time, machines of eight GPUs: "
            + ", ".join(f"{ms:.0f} ms at {stop:g} s" for stop, ms in ttft.items())
            + f"; BlitzScale {mine:.0f} ms",
            reason="most GPU time is of instances that serve or stand idle until they stop",
        )
    )
    short, long = min(parameters.stops_s), max(parameters.stops_s)
    yield asked(
        every(
            f"Does ServerlessLLM's GPU time grow with its stop time ({short:g} to {long:g} s)?",
            [
                more(
                    words,
                    0.0,
                    mean_interval(
                        (
                            100
                            * (at(frame, name, long, "gpu_s") / at(frame, name, short, "gpu_s") - 1)
                        )
                        .dropna()
                        .to_numpy()
                    ),
                    unit="%",
                )
                for name, words in HOSTS_SHOWN.items()
            ],
            paper="not in the paper",
            how="an instance stands idle until it stops",
            setting=setting,
            reason="an instance that stays longer saves starts, and in this load more than it costs",
        )
    )
