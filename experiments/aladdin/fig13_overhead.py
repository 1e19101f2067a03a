"""Seconds per scheduling round against the arrival rate.

A round is Algorithm 1 on the requests of a heartbeat (a second here; the paper gives none), on a fleet in
steady state with Table 3's degrees on A100. Measured is processor time of the algorithm in Python, which
looks at whole workers at every placement, and compiled, as the simulator's router. Times are those of the
machine that ran it.

A round places requests one by one under constraints (b) to (e), with Table 2's SLOs; the fleet's ongoing
requests were packed by the same algorithm and a share of them has left since. More requests per second
come with more workers that hold more requests together, as in the paper. The least of some repetitions of
a round counts. The router's rounds are the placements of one heartbeat in an episode with as many
workers, after a minute of arrivals. Times are kept like all results of runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from agents.statistics import mean_interval
from baselines.aladdin.constraints import Request, Rules, Worker
from baselines.aladdin.placement import best_fit
from experiments.aladdin.parts import in_order, nearest
from experiments.aladdin.population import arriving, fleet
from experiments.aladdin.serving import large
from experiments.aladdin.setting import DEGREES, LENGTHS, SHORT, rules_of, shown
from experiments.bench_placement import timed
from experiments.harness.claims import Claim, at_most, every
from experiments.harness.figure import claimed, dress, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from llmscale_env.control.reward import draw_requests
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.sim.compile import compile_cluster

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 13"
CLOCKS = ("seconds",)
GPU = "a100-80gb"


@dataclass(frozen=True)
class Round:
    """What a scheduler is given.

    Attributes:
        new: requests of a heartbeat.
        workers: with their ongoing requests.
        rules: limits of a worker.
    """

    new: Sequence[Request]
    workers: Sequence[Worker]
    rules: Rules


STYLES = {
    "python": ("Algorithm 1 in Python", "o-"),
    "router": ("the simulator's router", "s--"),
}


class Overhead(Parameters):
    """Parameters of this figure."""

    llms: Annotated[
        tuple[Literal["llama-2-7b", "llama-2-13b", "llama-2-70b"], ...],
        paper("section 6.1", min_length=1),
    ] = ("llama-2-7b", "llama-2-13b", "llama-2-70b")
    schedulers: Annotated[
        tuple[Literal["python", "router"], ...], ours("all there are", min_length=1)
    ] = ("python", "router")
    rates_per_s: Annotated[
        tuple[Annotated[float, Field(ge=2)], ...],
        ours("log-spaced around the paper's 25 per second", min_length=1),
    ] = (2.5, 5, 10, 25, 50, 100)
    claimed_rate_per_s: Annotated[float, paper("section 6.5", gt=0)] = 25.0
    claimed_s: Annotated[float, paper("section 6.5", gt=0)] = 0.05
    heartbeat_s: Annotated[float, ours("not in the paper", gt=0)] = 1.0
    gamma: Annotated[float, paper("section 4.2", ge=0, le=1)] = 0.5
    theta: Annotated[float, ours("the paper gives no value", gt=0, le=1)] = 0.9
    pace: Annotated[float, ours("inter-token latency, of the SLO", gt=0, le=1)] = 0.8
    room: Annotated[float, ours("share of requests gone since the fleet was full", ge=0, lt=1)] = (
        0.1
    )
    lengths: Annotated[str, paper("section 6.1: ShareGPT")] = LENGTHS
    rounds: Annotated[int, ours("of other requests on the same fleet", ge=1)] = 4
    repeats: Annotated[int, ours("of a round; the least counts", ge=1)] = 3
    warm_up_s: Annotated[float, ours("of the router: longer than the longest output", gt=0)] = 60.0


PARAMETERS = {
    "quick": Overhead(seeds=2, rates_per_s=(2.5, 10, 25, 50), rounds=2),
    "paper": Overhead(seeds=5),
}


def cases(parameters: Overhead) -> list[dict[str, Any]]:
    """A run per seed, LLM and rate; all schedulers meet the same rounds."""
    kept = {"seeds", "llms", "schedulers", "rates_per_s", "claimed_rate_per_s", "claimed_s"}
    common = parameters.model_dump(exclude=kept)
    return [
        {
            "seed": seed,
            "llm": llm,
            "rate_per_s": float(rate),
            "schedulers": list(parameters.schedulers),
            **common,
        }
        for seed in parameters.seed_list()
        for llm in parameters.llms
        for rate in parameters.rates_per_s
    ]


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per round and scheduler."""
    rng = np.random.default_rng(case["seed"])
    rules = rules_of(case["llm"], GPU, gamma=case["gamma"], theta=case["theta"])
    workers = fleet(case["lengths"], case["rate_per_s"], rules, case["pace"], case["room"], rng)
    n = max(1, round(case["rate_per_s"] * case["heartbeat_s"]))
    rows = []
    if "python" in case["schedulers"]:
        for number in range(case["rounds"]):
            this = Round(arriving(case["lengths"], n, rng), workers, rules)
            call = partial(best_fit, this.new, this.workers, this.rules)
            rows.append(
                {
                    "scheduler": "python",
                    "round": number,
                    "requests": n,
                    "workers": len(workers),
                    "ongoing": sum(map(len, workers)),
                    "tried": tries(this) / n,
                    "seconds": least_s(call, case["repeats"]),
                }
            )
    if "router" in case["schedulers"]:
        rows += router_rounds(case, max(1, len(workers)))
    return rows


def router_rounds(case: Mapping[str, Any], workers: int) -> list[dict[str, Any]]:
    """A row per heartbeat of an episode: all placements in it, each at the least of the repetitions."""
    rate = case["rate_per_s"]
    gpus = max(4, workers * DEGREES[case["llm"], GPU])
    scenario = large(case["llm"], GPU, rate, gpus)
    pool = next(p for p in scenario.fleet.pools if p.tp == DEGREES[case["llm"], GPU])
    route = {
        "kind": "best-fit",
        "pools": [pool.name],
        # Nobody calls those that wait: without a place they go to the least full.
        "placement": {"gamma": case["gamma"], "theta": case["theta"], "fallback": "least"},
    }
    alone = {**pool.model_dump(), "max_instances": workers, "initial_instances": workers}
    horizon_s = case["warm_up_s"] + case["rounds"] * case["heartbeat_s"]
    scenario = load_scenario(
        scenario,
        horizon_s=horizon_s,
        **{
            "fleet.pools": [alone],
            "fleet.routes": [route],
            "workload.predictor.kind": "conditional_mean",
        },
    )
    requests = draw_requests(scenario, np.random.default_rng(case["seed"]))
    spec = compile_cluster(scenario)
    timed(spec, requests)  # compiles
    runs = [timed(spec, requests) for _ in range(case["repeats"])]
    taken_ns = np.min([run[0] for run in runs], axis=0)
    running = runs[0][1]
    since_s = 1e-12 * requests.arrival_ps - case["warm_up_s"]
    rows = []
    for number in range(case["rounds"]):
        here = np.floor(since_s / case["heartbeat_s"]) == number
        if not here.any():
            continue
        rows.append(
            {
                "scheduler": "router",
                "round": number,
                "requests": int(here.sum()),
                "workers": workers,
                "ongoing": int(running[here].mean()),
                "seconds": 1e-9 * float(taken_ns[here].sum()),
            }
        )
    return rows


class _Counting(Rules):
    """Rules that know how often they were asked."""

    def takes(self, worker: Sequence[Request], request: Request) -> bool:
        object.__setattr__(self, "asked", getattr(self, "asked", 0) + 1)
        return super().takes(worker, request)


def tries(this: Round) -> int:
    """Workers whose constraints Algorithm 1 looks at in a round, over all requests."""
    rules = _Counting(**vars(this.rules))
    best_fit(this.new, this.workers, rules)
    return int(getattr(rules, "asked", 0))


def least_s(call: Callable[[], Any], repeats: int) -> float:
    """Processor time of a call; other work on the machine can only add to it."""
    found = math.inf
    for _ in range(repeats):
        begin = time.process_time()
        call()
        found = min(found, time.process_time() - begin)
    return found


def steps(requests: float) -> float:
    """Of an O(n log n) algorithm: n log2 n, at least 1."""
    return max(1.0, requests * math.log2(max(requests, 2.0)))


def plot(frame: DataFrame, parameters: Overhead) -> Any:
    """Left: milliseconds against the rate. Right: workers of the fleet."""
    figure = new_figure(10.4, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
    for k, llm in enumerate(parameters.llms):
        mine = where(frame, llm=llm)
        for name, (words, style) in STYLES.items():
            part = where(mine, scheduler=name).groupby("rate_per_s")
            mean, worst = 1e3 * part["seconds"].mean(), 1e3 * part["seconds"].max()
            if len(mean) == 0:
                continue
            label = f"{shown(llm, GPU, DEGREES[llm, GPU])}: {words}"
            left.plot(mean.index, mean, style, color=f"C{k}", ms=4, label=label)
            left.fill_between(mean.index, mean, worst, color=f"C{k}", alpha=0.15, lw=0)
            at = parameters.claimed_rate_per_s
            if at in mean.index and k == 0 and name == "python":
                n = [steps(rate * parameters.heartbeat_s) for rate in mean.index]
                scale = mean[at] / steps(at * parameters.heartbeat_s)
                left.plot(mean.index, np.array(n) * scale, "--", color="0.5", lw=1, label="n log n")
        workers = mine.groupby("rate_per_s")["workers"].mean()
        right.plot(workers.index, workers, "o-", color=f"C{k}", ms=4, label=SHORT[llm])
    left.plot(
        parameters.claimed_rate_per_s, 1e3 * parameters.claimed_s, "k*", ms=12,
        label="the paper: less than this", ls="none",
    )  # fmt: skip
    left.set_yscale("log")
    left.set_ylabel("ms per round: mean, and up to the slowest (shaded)")
    right.set_ylabel("workers of the fleet")
    for axes in (left, right):
        dress(
            axes,
            log="x",
            ticks=parameters.rates_per_s,
            xlabel=f"requests per second; a round every {parameters.heartbeat_s:g} s",
            legend={},
        )
    return figure


@claimed
def claims(frame: DataFrame, parameters: Overhead) -> Iterator[Claim]:
    """Section 6.5."""
    at, most = parameters.claimed_rate_per_s, max(parameters.rates_per_s)
    ratio = steps(most * parameters.heartbeat_s) / steps(at * parameters.heartbeat_s)
    limit_ms = 1e3 * parameters.claimed_s
    rounds, growth = [], []
    for scheduler in parameters.schedulers:
        for llm in parameters.llms:
            mine = where(frame, scheduler=scheduler, llm=llm)
            seconds = mine.groupby(["seed", "rate_per_s"])["seconds"].mean().unstack()
            if at not in seconds:
                continue
            name = f"{SHORT[llm]}, {STYLES[scheduler][0]}"
            why = _work(where(mine, rate_per_s=at))
            taken = mean_interval(1e3 * seconds[at])
            rounds.append(at_most(name, limit_ms, taken, nothing=None, unit="ms", reason=why))
            if most > at:
                grown = mean_interval(seconds[most] / seconds[at] / ratio)
                why += f"; at {most:g}/s {_work(where(mine, rate_per_s=most))}"
                growth.append(
                    at_most(name, 1.25, grown, nothing=None, unit="times n log n", reason=why)
                )
    if rounds:
        yield every(
            f"At {at:g} requests/s a scheduling round takes less than {limit_ms:g} ms",
            in_order(rounds),
            how="processor time of Algorithm 1 for the requests of a second",
        )
    if growth:
        yield every(
            "Scheduling time grows with the arrival rate as n log n",
            in_order(growth),
            paper="O(n log n) (read as at most 25 % more)",
            how=f"the same rounds at {at:g} and {most:g} requests/s, over the growth of n log n",
            reason=f"{nearest(growth)}; each request is compared with all workers and what they hold, which "
            "grow with the rate as well",
        )


def _work(mine: DataFrame) -> str:
    mean = mine.reindex(columns=["requests", "workers", "ongoing"]).astype(float).mean()
    return "{requests:.0f} requests on {workers:.0f} workers with {ongoing:,.0f} others".format(
        **mean
    )
