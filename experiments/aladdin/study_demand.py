"""Workers that follow demand, against fixed fleets.

Chat requests come to `aladdin-large` (Llama-2-13B, one A100 per worker) at a rate that goes up and down
like a day, passed in minutes, or that trebles and falls again. Aladdin sets the number of workers by Eq.
7 with change points; fixed fleets have the least workers that attain as much, found by a search that
knows what will come. The paper has no figure or number of this, so all of it is ours.

Eq. 7 is learnt from experience, or is the line that models and history give ("prior"); without change
points the rate is the mean of all that is remembered or that of the last period. Fixed fleets, of
Aladdin's placement and of the shortest queue, have the least workers with which as many of the same
requests keep both SLOs as of the first of these, but for one in a thousand. Workers start in no time, as
the paper has it (it leaves switching out). GPU-hours are of the time in which requests come. Fleets that
scale begin with two workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from agents.statistics import Interval, mean_interval
from baselines import make_policy
from baselines.aladdin.policy import AladdinPolicy
from experiments.aladdin.least import Search
from experiments.aladdin.parts import in_order
from experiments.aladdin.serving import capacity_per_worker, measured
from experiments.harness.claims import Claim, Words, asked, at_least, at_most, every
from experiments.harness.figure import claimed, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.workload.requests import RequestTable

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Section 5.2 (no figure)"
SCENARIO = "aladdin-large"
LEARNT, PRIOR, WINDOW, LAST = "learnt", "prior", "window", "last"
FIXED, QUEUE = "fixed", "fixed-jsq"
SCALED = {
    LEARNT: {},
    PRIOR: {"line": "prior"},
    WINDOW: {"rate": "window"},
    LAST: {"rate": "last"},
}
NAMES = {
    LEARNT: ("Eq. 7 learnt, change points", "C0", "-"),
    PRIOR: ("Eq. 7 as models and history say", "C2", "-"),
    WINDOW: ("no change points: mean of all", "C4", "-"),
    LAST: ("no change points: last period", "C5", ":"),
    FIXED: ("least fixed fleet, best fit", "k", "--"),
    QUEUE: ("least fixed fleet, shortest queue", "C1", "--"),
}
LOADS = {"day": "a day in {s:g} s", "step": "a step"}


class Demand(Parameters):
    """Parameters of this study."""

    loads: Annotated[
        tuple[str, ...], ours("a rate that moves all the time, and one that jumps", min_length=1)
    ] = tuple(LOADS)
    rate_per_s: Annotated[
        float, ours("mean of the day; with its peak about the paper's 25", gt=0)
    ] = 12.0
    amplitude: Annotated[float, ours("of the day, as in scenario placement", ge=0, lt=1)] = 0.8
    low_per_s: Annotated[float, ours("first and last third of the step", gt=0)] = 6.0
    high_per_s: Annotated[float, ours("second third", gt=0)] = 18.0
    arrivals_s: Annotated[float, ours("40 periods of 10 s", gt=0)] = 400.0
    patience_s: Annotated[float, ours("until all have ended", gt=0)] = 80.0
    heartbeat_s: Annotated[
        float, ours("the paper gives none; a third of the TTFT target", gt=0)
    ] = 0.2
    slack: Annotated[
        float,
        ours("a fixed fleet may lose a request in a thousand more, or one would decide", ge=0),
    ] = 0.001
    period_s: Annotated[float, ours("between two looks at the rate", gt=0)] = 10.0
    theta: Annotated[
        float, paper("section 4.2: between 0 and 1; the value is ours", gt=0, le=1)
    ] = 0.7


PARAMETERS = {"quick": Demand(seeds=1, arrivals_s=150.0), "paper": Demand(seeds=3)}


def cases(parameters: Demand) -> list[dict[str, Any]]:
    """One per seed and load: the fixed fleets are measured against what scaling attains."""
    common = parameters.model_dump(exclude={"seeds", "loads"})
    return [
        {"seed": seed, "load": load, **common}
        for seed in parameters.seed_list()
        for load in parameters.loads
    ]


def requests_of(case: Mapping[str, Any]) -> tuple[Scenario, RequestTable]:
    """The cluster with time for all to end, and what comes."""
    total, stream = case["arrivals_s"], "workload.streams.chat"
    if case["load"] == "day":
        # From the trough of the night to the next.
        day = {
            "kind": "diurnal", "amplitude": case["amplitude"], "period_s": total, "peak_s": total / 2,
        }  # fmt: skip
        short = load_scenario(
            SCENARIO, horizon_s=total,
            **{f"{stream}.rate_per_s": case["rate_per_s"], f"{stream}.arrivals": day},
        )  # fmt: skip
        requests = draw_requests(short, np.random.default_rng(case["seed"]))
    else:
        rng = np.random.default_rng(case["seed"])
        parts = [
            draw_requests(
                load_scenario(SCENARIO, horizon_s=total / 3, **{f"{stream}.rate_per_s": rate}), rng
            )
            for rate in (case["low_per_s"], case["high_per_s"], case["low_per_s"])
        ]
        requests = RequestTable.build(
            np.concatenate([part.arrival_s + k * total / 3 for k, part in enumerate(parts)]),
            np.concatenate([part.input_tokens for part in parts]),
            np.concatenate([part.output_tokens for part in parts]),
            predicted_output_tokens=np.concatenate(
                [part.predicted_output_tokens for part in parts]
            ),
            llm_names=parts[0].llm_names,
            class_names=parts[0].class_names,
        )
    return load_scenario(SCENARIO, horizon_s=total + case["patience_s"]), requests


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of totals, and of workers over time (`time_s` is None in totals)."""
    scenario, requests = requests_of(case)
    pool = scenario.fleet.pools[0]
    rows: list[dict[str, Any]] = []

    def episode(name: str, policy: Any, workers: int | None) -> dict[str, Any]:
        # The shortest queue decides once, and heartbeats cost time.
        beat_s = case["heartbeat_s"] if isinstance(policy, AladdinPolicy) else 1.0
        long = load_scenario(scenario, control_interval_s=beat_s)
        result = run_episode(policy, long, case["seed"], requests=requests, forecaster=None)
        slo = scenario.classes[0]
        found = measured(result.requests, slo.ttft_s, slo.itl_s)
        series = result.series[result.series["time_s"] <= case["arrivals_s"] + 1e-6]
        active = series[f"{pool.name}/active"]
        total = {
            "policy": name,
            "time_s": None,
            "workers": float(active.mean()),
            "gpu_hours": float(series["gpu_s"].sum()) / 3600,
            "changes": len(policy.demand.changes) if workers is None else 0,
            "pairs": len(policy.demand.pairs) if workers is None else 0,
            "opened": sum("targets" in d for d in result.decisions[1:]),
            **found,
        }
        step = max(1, round(2.0 / beat_s))
        over_time = [
            {"policy": name, "time_s": float(t), "workers": float(n)}
            for t, n in zip(series["time_s"][::step], active[::step], strict=True)
        ]
        return {"total": total, "rows": [total, *over_time]}

    common = {"theta": case["theta"]}
    for name, changes in SCALED.items():
        policy = make_policy("aladdin", scale=True, period_s=case["period_s"], **common, **changes)
        rows += episode(name, policy, None)["rows"]
    target = next(float(r["attainment"]) for r in rows if r["policy"] == LEARNT)
    peak = (
        case["high_per_s"]
        if case["load"] == "step"
        else case["rate_per_s"] * (1 + case["amplitude"])
    )
    start = int(np.ceil(peak / capacity_per_worker(pool.llm, "a100-80gb", pool.tp)))
    for name, kind, values in ((FIXED, "aladdin", common), (QUEUE, "jsq", {})):
        tried: dict[int, dict[str, Any]] = {}

        def attains(
            n: int, name: str = name, kind: str = kind, values: Any = values, tried: Any = tried
        ) -> float:
            tried[n] = episode(name, make_policy(kind, workers=n, **values), n)
            return float(tried[n]["total"]["attainment"])

        least = Search(attains, 3 * start).least(target - case["slack"], start)
        if least is None:
            rows.append({"policy": name, "time_s": None, "workers": None, "gpu_hours": None,
                         "attainment": max(t["total"]["attainment"] for t in tried.values())})  # fmt: skip
        else:
            rows += tried[least]["rows"]
    counts, edges = np.histogram(requests.arrival_s, np.arange(0, case["arrivals_s"] + 1, 10))
    rows += [
        {"policy": "arrivals", "time_s": float(b), "workers": float(n) / 10}
        for n, b in zip(counts, edges[1:], strict=True)
    ]
    return rows


def totals(frame: DataFrame, load: str) -> DataFrame:
    """Rows of totals of a load."""
    return frame[(frame["load"] == load) & frame["time_s"].isna()]


def column(frame: DataFrame, load: str, policy: str, name: str) -> Any:
    """By seed, as numbers; NaN where a search found nothing."""
    mine = totals(frame, load)
    return where(mine, policy=policy).set_index("seed")[name].astype(float)


def excerpt(frame: DataFrame, parameters: Demand) -> DataFrame:
    """A row per run, and of the first seed its workers over time, where their number changes."""
    drawn = frame[frame["time_s"].notna() & (frame["seed"] == frame["seed"].min())]
    each = drawn.groupby(["load", "policy"])["workers"]
    same = (each.shift() == drawn["workers"]) & (each.shift(-1) == drawn["workers"])
    return frame[frame["time_s"].isna() | frame.index.isin(drawn.index[~same])]


def plot(frame: DataFrame, parameters: Demand) -> Any:
    """Above workers over time of the first seed, below attainment against GPU-hours of all seeds."""
    figure = new_figure(6.2 * len(parameters.loads), 8.2)
    panels = figure.subplots(2, len(parameters.loads), squeeze=False)
    first = min(parameters.seed_list())
    for (top, bottom), load in zip(panels.T, parameters.loads, strict=True):
        mine = frame[(frame["load"] == load) & (frame["seed"] == first) & frame["time_s"].notna()]
        other = top.twinx()
        part = where(mine, policy="arrivals")
        other.fill_between(
            part["time_s"].astype(float), part["workers"].astype(float), step="pre", color="0.88", zorder=0
        )  # fmt: skip
        other.set_ylabel("requests/s (grey)")
        other.set_ylim(bottom=0)
        top.set_zorder(other.get_zorder() + 1)
        top.patch.set_visible(False)
        for policy, (label, colour, line) in NAMES.items():
            part = where(mine, policy=policy)
            top.step(
                part["time_s"].astype(float), part["workers"].astype(float), where="pre", color=colour,
                ls=line, lw=1.2, label=label,
            )  # fmt: skip
            bottom.plot(
                column(frame, load, policy, "gpu_hours"),
                100 * column(frame, load, policy, "attainment"),
                "s" if policy in (FIXED, QUEUE) else "o", color=colour, label=label, alpha=0.8,
            )  # fmt: skip
        top.set_ylim(bottom=0)
        top.set_xlabel("time (s)")
        top.set_ylabel("workers (one A100 each)")
        top.set_title(LOADS[load].format(s=parameters.arrivals_s), fontsize=10)
        bottom.set_xlabel("GPU-hours while requests come")
        bottom.set_ylabel("requests that keep both SLOs (%)")
        # A difference of one request in a thousand should not fill the panel.
        bottom.set_ylim(min(99.0, bottom.get_ylim()[0]), 100.0)
        bottom.grid(alpha=0.3)
    panels[1][0].legend(fontsize=8)
    return figure


def ratio(frame: DataFrame, load: str, first: str, second: str) -> Interval:
    """GPU-hours of one as a multiple of another's, over the seeds where both have an answer."""
    values = column(frame, load, first, "gpu_hours") / column(frame, load, second, "gpu_hours")
    return mean_interval(values.dropna())


@claimed
def claims(frame: DataFrame, parameters: Demand) -> Iterator[Claim]:
    """All ours: the paper has no numbers of this."""
    common: Words = {
        "paper": "not in the paper",
        "how": "Aladdin's scaling with Eq. 7 learnt and change points, on the same requests",
    }
    parts = [
        at_most(
            f"{load}, {NAMES[other][0]}",
            0.9,
            ratio(frame, load, LEARNT, other),
            nothing=1,
            unit="times its GPU-hours",
            reason=" against ".join(_of(frame, load, policy) for policy in (LEARNT, other)),
        )
        for load in parameters.loads
        for other in (FIXED, QUEUE)
    ]
    question = "Do workers that follow demand save a tenth of GPU-hours over the least fixed fleet?"
    yield asked(every(question, in_order(parts), **common))
    points = [
        at_least(
            load,
            1,
            mean_interval(100 * (share(LEARNT) - share(WINDOW))),
            nothing=0,
            unit="points",
            reason="a worker is opened for a request that waits (Algorithm 1), whatever the rate is",
            note=f"{column(frame, load, LEARNT, 'changes').mean():.1f} changes found per run",
        )
        for load in parameters.loads
        for share in [partial(column, frame, load, name="attainment")]
    ]
    question = "Do change points keep a point more of requests in their SLOs than the mean rate?"
    yield asked(every(question, in_order(points, most_first=False), **common))


def _of(frame: DataFrame, load: str, policy: str) -> str:
    hours, kept = (column(frame, load, policy, c).mean() for c in ("gpu_hours", "attainment"))
    return f"{hours:.3f} GPU-hours at {100 * kept:.1f} %"
