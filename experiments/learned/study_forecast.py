"""What a forecaster that is trained on training days has learnt: days, or their seconds by heart.

The planner (`baselines/twin`) takes what comes from times that looked like now, of one day before and of
today ("analogs"). Here a network that is trained on training days foresees the worst half minute of the next
two minutes beside it, on validation days. Scores are in GPUs of load, and less is better.

Both are told chat and code apart. The planner sees one class of both, and parts it by the lengths of prompts,
so it may foresee less well than "analogs" do.

In `mixed-slo` the rates of a day change every ten minutes. The seconds within are those of one hour of
Azure's traces, from a drawn second on, on training and test days alike. A network may so have learnt that
hour by heart. "halves apart" shows it: training days have the seconds of the first half of that hour, the
days that are foreseen those of the second half. In "the second half" both have those of the second half, so
that what is foreseen is the same. The analogs come from the day before, which has the same seconds as what
is foreseen. Chat and code requests are counted in bins of 10 s. The score is the continuous ranked
probability score in GPUs (less is better), from twenty quantiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.statistics import Interval, mean_interval
from baselines.twin.futures import BIN_S, LOOKS, WORST, analog_paths, worst_sums
from experiments.harness.claims import Claim, less, more
from experiments.harness.figure import SEEDS, Grid, claimed, where
from experiments.harness.parameters import Parameters, ours
from experiments.output import new_figure
from llmscale_env.control.unfinished_work import full_batch_cost_gpu_s
from llmscale_env.scenarios import load_scenario
from llmscale_env.workload.config import TEN_MINUTES_S, DayArrivals, TableLengths
from llmscale_env.workload.days import day_rates
from llmscale_env.workload.tables import load_counts, load_lengths

if TYPE_CHECKING:
    from pandas import DataFrame

NAME = "learned-forecast"
FIGURE = "Forecasts"
SAME, SECOND, APART = "the same hour", "the second half", "halves apart"
HALVES = {SAME: (None, None), SECOND: (1, 1), APART: (0, 1)}
"""Of which half of the hour the seconds are: of training days, and of those that are foreseen."""
WINDOW = TEN_MINUTES_S // BIN_S
"""Bins of ten minutes."""
DAY = 86_400 // BIN_S
AHEAD = 12
"""Bins that are foreseen."""
QUANTILES = np.arange(0.025, 1.0, 0.05)
EDGES = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 24, 30, 36, 48, 60, 90, 120, 180, 360)
"""Bins back from now, between which rates are entries of the network."""


class Settings(Parameters):
    """Attributes are explained where they are declared."""

    stretches: Annotated[int, ours("two hours of training days and the day before each", ge=1)] = (
        200
    )
    judged: Annotated[int, ours("the same of validation days", ge=1)] = 16
    epochs: Annotated[int, ours("of the network's training", ge=1)] = 12


PARAMETERS = {
    "quick": Settings(seeds=2, stretches=20, judged=4, epochs=4),
    "paper": Settings(seeds=5),
}

cases = Grid({"seed": SEEDS, "seconds": tuple(HALVES)}, keep=("stretches", "judged", "epochs"))


class Stretch(NamedTuple):
    """A day and two hours.

    Attributes:
        counts: (2, k) chat and code requests by bin.
        work: (k,) GPUs that they keep busy.
    """

    counts: NDArray[np.float64]
    work: NDArray[np.float64]


class Days:
    """Draws stretches of the days of `mixed-slo`.

    Args:
        split: of the family `mixed-slo`.
        half: of the hour from which seconds are; None: all of it.
    """

    def __init__(self, split: str, half: int | None) -> None:
        scenario = load_scenario("mixed-slo-hours", workload=f"mixed-slo/{split}-hours")
        cost = full_batch_cost_gpu_s(scenario)[:, 0, 0]
        self._streams = []
        for stream in scenario.workload.streams[:2]:
            arrivals = stream.arrivals
            assert isinstance(arrivals, DayArrivals)
            assert arrivals.seconds is not None
            shape = load_counts(arrivals.seconds).counts.astype(float)
            middle = len(shape) // 2
            if half is not None:
                shape = shape[:middle] if half == 0 else shape[middle:]
            lengths = stream.lengths
            assert isinstance(lengths, TableLengths)
            drawn = load_lengths(lengths.table).sample(10_000, np.random.default_rng(0))
            mean = np.array([tokens.mean() for tokens in drawn])
            assert stream.rate_per_s is not None
            rates = stream.rate_per_s * day_rates(arrivals)
            self._streams.append((rates, shape, float(cost @ mean)))
            self._days = sorted(arrivals.days)

    def draw(self, rng: np.random.Generator) -> Stretch:
        """Two hours of a drawn day, and the day before."""
        n = DAY // WINDOW
        first = n * (int(rng.choice(self._days)) - 1) + int(rng.integers(n - 12))
        windows = np.arange(first - n, first + 12)
        counts = []
        for rates, shape, _ in self._streams:
            starts = rng.integers(max(1, len(shape) - TEN_MINUTES_S), size=len(windows))
            seconds = shape[(starts[:, None] + np.arange(TEN_MINUTES_S)) % len(shape)]
            parts = seconds.reshape(len(windows), WINDOW, BIN_S).sum(axis=2)
            parts = BIN_S * WINDOW * parts / np.maximum(parts.sum(axis=1, keepdims=True), 1.0)
            week_later = np.where(windows < 0, windows + 7 * n, windows)
            counts.append(rng.poisson(rates[week_later][:, None] * parts).ravel())
        found = np.array(counts, float)
        costs = np.array([cost for *_, cost in self._streams])
        return Stretch(found, costs @ found / BIN_S)

    @property
    def costs(self) -> list[float]:
        """GPU-seconds of a request of each stream."""
        return [cost for *_, cost in self._streams]


def entries(stretch: Stretch, at: NDArray[np.int64]) -> NDArray[np.float32]:
    """(n, entries) what the network sees at some bins: rates lately over those of a quarter of an hour."""
    level = LOOKS[-1]
    found = []
    for series in (*stretch.counts, stretch.work):
        sums = np.concatenate([[0.0], np.cumsum(series)])
        usual = (sums[at] - sums[at - level]) / level + 0.01
        for near, far in pairwise(EDGES):
            rate = (sums[at - near] - sums[at - far]) / (far - near)
            found.append(np.log((rate + 0.05 * usual) / usual))
        found.append(np.log(usual))
    return np.stack(found, axis=1).astype(np.float32)


def worst(stretch: Stretch, at: NDArray[np.int64]) -> NDArray[np.float64]:
    """(n,) GPUs in the worst half minute of the bins that follow."""
    return worst_sums(stretch.work[at[:, None] + np.arange(AHEAD)]) / WORST


def usual(stretch: Stretch, at: NDArray[np.int64]) -> NDArray[np.float64]:
    """(n,) GPUs of the last quarter of an hour, of which the network foresees multiples."""
    sums = np.concatenate([[0.0], np.cumsum(stretch.work)])
    return (sums[at] - sums[at - LOOKS[-1]]) / LOOKS[-1] + 0.1


def score(quantiles: NDArray[np.float64], came: NDArray[np.float64]) -> float:
    """Mean continuous ranked probability score of (n, QUANTILES) quantiles."""
    off = came[:, None] - quantiles
    return float(2 * np.maximum(QUANTILES * off, (QUANTILES - 1) * off).mean())


def trained(stretches: list[Stretch], epochs: int, seed: int) -> Any:
    """A network, as a function of a stretch and bins, that gives quantiles."""
    import torch

    torch.set_num_threads(1)  # so that sums are the same on any machine
    torch.manual_seed(seed)
    every = np.arange(max(EDGES), DAY + 12 * WINDOW - AHEAD, 9)
    seen = np.concatenate([entries(s, every) for s in stretches])
    level = np.concatenate([usual(s, every) for s in stretches])
    came = np.concatenate([worst(s, every) for s in stretches])
    mean, spread = seen.mean(axis=0), seen.std(axis=0) + 1e-3
    x = torch.as_tensor((seen - mean) / spread)
    y = torch.as_tensor(np.log((came + 0.1) / level), dtype=torch.float32)
    weight = torch.as_tensor(level, dtype=torch.float32) / 10
    q = torch.as_tensor(QUANTILES, dtype=torch.float32)
    network = torch.nn.Sequential(
        torch.nn.Linear(x.shape[1], 128),
        torch.nn.SiLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(128, 128),
        torch.nn.SiLU(),
        torch.nn.Linear(128, len(QUANTILES)),
    )
    optimiser = torch.optim.AdamW(network.parameters(), 1e-3, weight_decay=1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(512):
            off = (y[rows, None] - network(x[rows])) * weight[rows, None]
            optimiser.zero_grad()
            torch.maximum(q * off, (q - 1) * off).mean().backward()
            optimiser.step()
    network.eval()

    def quantiles(stretch: Stretch, at: NDArray[np.int64]) -> NDArray[np.float64]:
        with torch.no_grad():
            logs = network(torch.as_tensor((entries(stretch, at) - mean) / spread)).double().numpy()
        found: NDArray[np.float64] = np.exp(logs) * usual(stretch, at)[:, None] - 0.1
        return found

    return quantiles


def analogs(
    stretch: Stretch, at: NDArray[np.int64], costs: list[float], rng: np.random.Generator
) -> NDArray[np.float64]:
    """(n, QUANTILES) as the planner foresees."""
    found = []
    for now in at.tolist():
        paths = [
            cost * analog_paths(series[None, :now], AHEAD, 256, rng)[0]
            for series, cost in zip(stretch.counts, costs, strict=True)
        ]
        found.append(np.quantile(worst_sums(np.sum(paths, axis=0) / BIN_S) / WORST, QUANTILES))
    return np.array(found)


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Both scores on the same stretches."""
    rng = np.random.default_rng(case["seed"])
    halves = HALVES[case["seconds"]]
    train, judge = Days("train", halves[0]), Days("validation", halves[1])
    foresee = trained(
        [train.draw(rng) for _ in range(case["stretches"])], case["epochs"], case["seed"]
    )
    at = np.arange(DAY + 12, DAY + 12 * WINDOW - AHEAD, 12)
    stretches = [judge.draw(rng) for _ in range(case["judged"])]
    came = np.concatenate([worst(s, at) for s in stretches])
    by_network = np.concatenate([foresee(s, at) for s in stretches])
    by_analogs = np.concatenate([analogs(s, at, judge.costs, rng) for s in stretches])
    return [
        {
            "network": score(by_network, came),
            "analogs": score(by_analogs, came),
            "gpus": float(came.mean()),
        }
    ]


def gain(frame: DataFrame, seconds: str) -> Interval:
    """By how many percent the network's score is less than the analogs'."""
    mine = where(frame, seconds=seconds).astype({"network": float, "analogs": float})
    return mean_interval(100 * (1 - mine["network"] / mine["analogs"]))


def tables(frame: DataFrame, parameters: Settings) -> dict[str, list[dict[str, Any]]]:
    """Scores in GPUs."""
    rows = []
    for seconds in HALVES:
        mine = where(frame, seconds=seconds)
        scores = {name: mean_interval(mine[name].astype(float)) for name in ("analogs", "network")}
        rows.append({"seconds": seconds, **scores, "network better by %": gain(frame, seconds)})
    return {"scores": rows}


def plot(frame: DataFrame, parameters: Settings) -> Any:
    """Two bars for each."""
    figure = new_figure(6.0, 3.8)
    axis = figure.subplots()
    for k, name in enumerate(("analogs", "network")):
        for place, seconds in enumerate(HALVES):
            values = where(frame, seconds=seconds)[name].astype(float)
            x = place + 0.36 * (k - 0.5)
            label = name if place == 0 else None
            axis.bar(x, values.mean(), width=0.34, color=f"C{k}", alpha=0.8, label=label)
            axis.plot([x] * len(values), values, ".", color="black", ms=5)
    axis.set_xticks(range(len(HALVES)), HALVES)
    axis.set_ylabel("score of the worst half minute (GPUs)")
    axis.set_ylim(bottom=0)
    axis.legend(loc="upper left")
    axis.grid(alpha=0.3, axis="y")
    return figure


@claimed
def claims(frame: DataFrame, parameters: Settings) -> Iterator[Claim]:
    """Where the network foresees better."""
    yield more(
        "Where training days share their seconds, a trained network foresees better than analogs",
        0.0,
        gain(frame, SAME),
        unit="% lower score",
    )
    yield less(
        "On seconds that training days have not had, it foresees worse than analogs",
        0.0,
        gain(frame, APART),
        unit="% lower score",
    )
    both = [
        where(frame, seconds=name).set_index("seed")["network"].astype(float)
        for name in (SECOND, APART)
    ]
    yield more(
        "To have seen these very seconds on training days is worth a lower score of the network",
        0.0,
        mean_interval(100 * (1 - both[0] / both[1])),
        unit="% lower score",
    )
