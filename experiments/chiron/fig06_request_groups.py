"""Request groups against hysteresis.

Bursty batch requests with deadlines from a quarter of an hour to an hour, beside one mixed instance that
carries less than they need. Immediate autoscaling adds batch instances as requests arrive and removes them as
they complete. Chiron holds requests back in groups of similar deadlines, and adds batch instances when a
group's estimated wait exceeds its deadline.

Requests arrive for some hours, and the cluster goes on until all are served. The mixed instance stands for
capacity that interactive requests leave free. Llumnix keeps utilisation in a range. There are at most so many
groups. All policies have the same fixed batch limit, so that only scaling differs.

The paper defines hysteresis as all scaling actions over scale-ups. A fleet that starts and ends without
batch instances takes down each instance that it has started, so this ratio is 2 for every policy, and
it lies between 1 and 2 for any that starts from none: it cannot fall 20 times. What can is the number
of scaling actions, which is given per hour and per thousand requests served. Groups buy throughput with
requests that wait until their deadline, of which some are late while immediate autoscaling has none:
a gain in throughput counts only at loads at which no more are late. Throughput is per instance that is
billed, loading included, until the last request has finished.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from agents.statistics import mean_interval
from baselines import make_policy
from experiments.chiron.immediate import ImmediatePolicy
from experiments.chiron.setting import CONFIGURATIONS
from experiments.harness.claims import Claim, best_of, every, exact, gain, less
from experiments.harness.figure import SEEDS, Grid, claimed, dress, line, paper_stars, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from llmscale_env.control.policy import Policy
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.schema import Scenario

if TYPE_CHECKING:
    from pandas import DataFrame

    from llmscale_env.control.results.result import EpisodeResult
    from llmscale_env.workload.requests import RequestTable

FIGURE = "Figure 6"
SERVING = ("mixed", "batch")
"""Pools that serve batch requests."""
PLACE = ["load_time_s", "cv"]

MEASURES = {
    "actions_per_hour": "scaling actions per hour",
    "actions_per_1000": "scaling actions per 1000 requests",
    "hysteresis": "hysteresis (actions / scale-ups)",
    "throughput": "requests/s per billed instance",
    "slo_attainment": "SLOs met (share of requests)",
}


TIMES = {"actions_per_1000": 1 / 20, "throughput": 2.5}
"""What groups make of hysteresis and throughput, section 2.3."""


class RequestGroups(Parameters):
    """Parameters of this figure."""

    deadlines_s: Annotated[
        tuple[PositiveFloat, ...], ours("up to the paper's hour; the TTFT target of a class each")
    ] = (900.0, 1800.0, 2700.0, 3600.0)
    rate_per_s: Annotated[float, ours("one batch instance and the mixed one carry it", gt=0)] = 6.0
    cvs: Annotated[tuple[PositiveFloat, ...], ours("around the 4 of appendix A.2, Gamma gaps")] = (
        1.0, 4.0, 8.0, 16.0,
    )  # fmt: skip
    arriving_s: Annotated[float, ours("two and a half times the longest deadline", gt=0)] = 9000.0
    max_groups: Annotated[
        tuple[PositiveInt, ...], ours("from all in one to nearly each its own")
    ] = (1, 8, 64)
    default_groups: Annotated[int, ours("as the policy has; the claims are about it", ge=1)] = 8
    by_request: Annotated[bool, ours("also with every request's own deadline judged")] = True
    load_times_s: Annotated[tuple[PositiveFloat, ...], paper("section 2.3, both ends")] = (
        15.0,
        60.0,
    )
    batch_limit: Annotated[int, ours("small, so that a fleet has several instances", ge=1)] = 32
    mixed_batch_limit: Annotated[
        int, ours("what interactive requests leave of one instance", ge=1)
    ] = 16
    no_worse_points: Annotated[
        float, ours("loads at which no more are late: attainment is at most so much lower", ge=0)
    ] = 1.0


PARAMETERS = {
    "quick": RequestGroups(
        seeds=2,
        cvs=(1.0, 4.0, 8.0),
        arriving_s=5400.0,
        max_groups=(1, 8),
        load_times_s=(60.0,),
        by_request=False,
    ),
    "paper": RequestGroups(seeds=3),
}


cases = Grid(
    {
        "seed": SEEDS,
        "load_time_s": "load_times_s",
        "cv": "cvs",
        "deadlines_s": lambda parameters, _: [list(parameters.deadlines_s)],
        "policy": lambda parameters, _: [
            {"policy": "immediate"},
            {"policy": "llumnix"},
            *(
                {"policy": "chiron", "judge": "group", "max_groups": groups}
                for groups in parameters.max_groups
            ),
            *[{"policy": "chiron", "judge": "each", "max_groups": parameters.default_groups}]
            * parameters.by_request,
        ],
    },
    keep=("rate_per_s", "arriving_s", "batch_limit", "mixed_batch_limit"),
)


def scenario_of(case: Mapping[str, Any]) -> Scenario:
    """The small model's cluster with a stream of batch requests per deadline, and no others."""
    base = load_scenario(CONFIGURATIONS["small"]).model_dump()
    interactive, batch = base["classes"]
    stream = base["workload"]["streams"][0]
    of_interactive, of_batch = base["fleet"]["routes"]
    names = {f"batch-{deadline:g}": deadline for deadline in case["deadlines_s"]}
    pools = []
    for pool in base["fleet"]["pools"]:
        limit = case["mixed_batch_limit" if pool["name"] == "mixed" else "batch_limit"]
        start = {"interactive": 1, "mixed": 1, "batch": 0}[pool["name"]]
        load = {"ssd": case["load_time_s"]}
        pools.append({**pool, "batch_limit": limit, "initial_instances": start, "load_s": load})
    arrivals = {"kind": "gamma", "cv": case["cv"]}
    rate = case["rate_per_s"] / len(names)
    changed = {
        "horizon_s": case["arriving_s"] + 1.5 * max(names.values()),
        "classes": [interactive, *({**batch, "name": n, "ttft_s": d} for n, d in names.items())],
        "workload": {
            "streams": [
                {**stream, "name": n, "slo_class": n, "arrivals": arrivals, "rate_per_s": rate}
                for n in names
            ]
        },
        "fleet": {
            **base["fleet"],
            "pools": pools,
            # Llumnix serves every class from one pool: the batch pool, in which no request differs.
            "routes": [
                {**of_interactive, "pools": ["interactive", "batch"]},
                *({**of_batch, "slo_class": n, "pools": ["batch"]} for n in names),
            ],
        },
    }
    return Scenario.model_validate({**base, **changed})


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One episode: requests come for a while, and are all served."""
    scenario = scenario_of(case)
    requests = until(
        draw_requests(scenario, np.random.default_rng(case["seed"])), case["arriving_s"]
    )
    result = run_episode(policy_of(case), scenario, case["seed"], requests=requests)
    return [counted(result)]


def policy_of(case: Mapping[str, Any]) -> Policy:
    """The policy of a case; batch limits stay fixed under all of them."""
    same = {"controller": "fixed", "min_mixed": 1}
    if case["policy"] == "immediate":
        return ImmediatePolicy(**same)
    if case["policy"] == "llumnix":
        return make_policy("llumnix", batch_limit=case["batch_limit"])
    return make_policy("chiron", judge=case["judge"], max_groups=case["max_groups"], **same)


def until(requests: RequestTable, time_s: float) -> RequestTable:
    """The requests that arrive before a time."""
    n = int(np.searchsorted(requests.arrival_s, time_s))
    columns = ("arrival_ps", "llm", "region", "slo_class", "input_tokens", "output_tokens")
    kept = {name: getattr(requests, name)[:n] for name in (*columns, "predicted_output_tokens")}
    return replace(requests, **kept)


def counted(result: EpisodeResult) -> dict[str, Any]:
    """Scaling, and throughput until the last request has finished."""
    requests, series = result.requests, result.series
    finished_s = requests["arrival_s"] + requests["e2e_s"]
    served = int(finished_s.notna().sum())
    end_s = float(finished_s.max())
    ups = int(sum(series[f"{pool}/loads"].sum() for pool in SERVING))
    downs = int(sum(series[f"{pool}/stops"].sum() for pool in SERVING))
    # The interval in which the last request finishes counts whole.
    before = series["time_s"].shift(fill_value=0.0) < end_s
    instance_s = float(sum(series[f"{pool}/gpu_s"][before].sum() for pool in SERVING))
    hours = end_s / 3600
    return {
        "scale_ups": ups,
        "scale_downs": downs,
        "hysteresis": (ups + downs) / ups if ups else float("nan"),
        "actions_per_hour": (ups + downs) / hours,
        "actions_per_1000": 1000 * (ups + downs) / served,
        "throughput": served / instance_s,
        "slo_attainment": float((requests["outcome"] == "on_time").mean()),
        "unserved": len(requests) - served,
    }


def _name(policy: str, judge: object, groups: object) -> str:
    if policy != "chiron":
        return {"immediate": "immediate", "llumnix": "Llumnix"}[policy]
    name = f"Chiron, {groups:.0f} group{'s' if groups != 1 else ''}"
    return f"{name}, each request judged" if judge == "each" else name


def plot(frame: DataFrame, parameters: RequestGroups) -> Any:
    """A panel per measure over burstiness, a line per policy; dashed: the shorter load time."""
    frame = frame.copy()
    columns = [
        frame[name] if name in frame else [None] * len(frame)
        for name in ("policy", "judge", "max_groups")
    ]
    frame["name"] = [_name(*values) for values in zip(*columns, strict=True)]
    figure = new_figure(13.0, 7.2)
    panels = figure.subplots(2, 3).ravel()
    longest = max(parameters.load_times_s)
    for axes, (measure, title) in zip(panels, MEASURES.items(), strict=False):
        for k, name in enumerate(dict.fromkeys(frame["name"])):
            for load_time_s in parameters.load_times_s:
                part = where(frame, name=name, load_time_s=load_time_s)
                look: dict[str, Any] = {"style": "--", "lw": 1.0, "band": None}
                if load_time_s == longest:
                    look = {"style": "o-", "lw": 1.6, "label": name, "edge": None}
                line(axes, part, "cv", measure, ms=4, color=f"C{k}", **look)
        if measure in TIMES and "immediate" in set(frame["name"]):
            told = where(frame, name="immediate", load_time_s=longest).groupby("cv")[measure].mean()
            label = "the paper's best, from our immediate"
            paper_stars(axes, told.index[-1:], TIMES[measure] * told.iloc[-1:], label)
        xlabel = "burstiness (CV of the gaps)"
        dress(axes, title=title, log="x", ticks=parameters.cvs, xlabel=xlabel)
        if measure.startswith("actions"):
            axes.set_yscale("log")
        elif measure == "hysteresis":
            axes.set_ylim(0.9, 2.2)
            for bound in (1, 2):
                axes.axhline(bound, color="k", lw=0.8, ls=":")
        elif measure == "slo_attainment":
            axes.set_ylim(min(0.9, float(frame[measure].min()) - 0.02), 1.005)
        else:
            axes.set_ylim(bottom=0)
    panels[-1].axis("off")
    title = f"{longest:g} s to load"
    title += "".join(f"; dashed: {t:g} s" for t in parameters.load_times_s if t != longest)
    handles = panels[1].get_legend_handles_labels()
    panels[-1].legend(*handles, loc="upper left", fontsize=9, title=title)
    return figure


@claimed
def claims(frame: DataFrame, parameters: RequestGroups) -> Iterator[Claim]:
    """Section 2.3, groups against immediate autoscaling: hysteresis, throughput, scaling actions."""
    mine, theirs = where(frame, policy="chiron"), where(frame, policy="immediate")
    if "judge" in frame:
        mine = where(mine, judge="group", max_groups=parameters.default_groups)
    if mine.empty or theirs.empty:
        return
    actions = _beside(mine, theirs, "actions_per_1000")
    fewer = 1 / actions.groupby(PLACE).mean()
    yield gain(
        "Groups reduce hysteresis 20 times",
        20.0,
        mean_interval(_beside(theirs, mine, "hysteresis").groupby("seed").mean()),
        nothing=1.0,
        unit="x, immediate against groups",
        paper="20 x",
        reason="as the paper defines it (scaling actions over scale-ups) it lies between 1 and 2 for any "
        f"fleet that starts from none. Scaling actions per request do fall, {fewer.min():.0f} to "
        f"{fewer.max():.0f} times",
        how="scaling actions over scale-ups of mixed and batch instances",
        setting="mean over all loads",
    )
    more = _beside(mine, theirs, "throughput").groupby(PLACE)
    on_time = [part.groupby(PLACE)["slo_attainment"].mean() for part in (mine, theirs)]
    good = on_time[0] >= on_time[1] - parameters.no_worse_points / 100
    parts = [
        gain(
            _place(place),
            2.5,
            mean_interval(ratios),
            nothing=1.0,
            unit=f"x per billed instance, {100 * on_time[0][place]:.1f} % on time",
        )
        for place, ratios in more
        if good[place]
    ]
    none = gain("at no load", 2.5, exact(1.0), nothing=1.0, unit="x per billed instance")
    yield best_of(
        "Groups improve throughput 2.5 times",
        sorted(parts, key=lambda part: -part.ours.mean) or [none],
        paper="2.5 x",
        reason=f"no more are late at {good.sum()} of {len(good)} loads; over all loads the gain is "
        f"{more.mean().min():.2f} to {more.mean().max():.2f} x",
        how="batch instances stay busy, since Chiron adds them only when a group's estimated wait exceeds "
        "its deadline",
        setting=f"largest gain of the {good.sum()} of {len(good)} loads at which no more than "
        f"{parameters.no_worse_points:g} percentage point more are late",
    )
    yield every(
        "By serving requests in groups, frequent scaling actions are reduced",
        [
            less(
                _place(place),
                1.0,
                mean_interval(ratios),
                unit="of the scaling actions of immediate autoscaling, per request",
            )
            for place, ratios in actions.groupby(PLACE)
        ],
        paper="reduced",
        how="batch instances are added when a group's estimated wait exceeds its deadline, not per request",
        setting=f"every load; {parameters.default_groups} groups",
        note=f"{fewer.min():.0f} to {fewer.max():.0f} times fewer",
    )


def _place(place: tuple[float, float]) -> str:
    return f"{place[0]:g} s to load, CV {place[1]:g}"


def _beside(above: DataFrame, below: DataFrame, measure: str) -> Any:
    """One over the other by load time, CV and seed; none where the other is nothing or unknown."""
    keys = [*PLACE, "seed"]
    ratios = above.set_index(keys)[measure] / below.set_index(keys)[measure]
    return ratios.replace([np.inf], np.nan)
