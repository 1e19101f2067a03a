"""Waiting time over-estimated by systems for fixed batches, and the GPUs that a TTFT target takes.

Left: true and estimated waiting time by position in the queue of one Llama-2-70B on four A100. Right: the
fewest GPUs from which on 99 % of interactive and of batch requests have their first token within their
targets. Rates, queues and numbers of GPUs are ours, since the paper gives none of them.

Systems for DNNs estimate with fixed batches of deterministic time (SHEPHERD as QLM describes it,
`baselines.qlm.shepherd`): batch after batch, each as large as memory holds to its end and as long as the
longest output that a request may have. QLM's estimate is Eq. 2, with outputs of requests that have finished
and the throughput of the instance's log.

"One LLM": all requests are for one Llama-2-70B; "several": the interactive ones for one fine-tuned version,
the batch requests for three others. All batch requests are there at the start. What arrives in the first two
minutes is served, but does not count. The requests take the time of some 8 instances. At this rate a group of
interactive requests (delta = 4, on one virtual queue as long as it takes arrivals) fills slowly, so QLM is
shown with delta = 1 as well. The other systems keep one LLM on each instance, as section 1 says of previous
systems ("independent instances for each model").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pandas import Series
from pydantic import PositiveInt

from agents.statistics import mean_interval
from baselines import make_policy
from baselines.backpressure import waiting_time_s
from baselines.qlm.shepherd import execution_s
from experiments.chiron.instance import backlog
from experiments.chiron.queue_waits import observe
from experiments.harness.claims import Claim, about, at_least, led_by
from experiments.harness.figure import SEEDS, Grid, claimed, dress, interval_of, line, places, where
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from experiments.qlm.setting import gpus_per_instance, shown
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.schema import Scenario

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURE = "Figure 1"
LLM, GPU = "llama-2-70b", "a100-80gb"
MODELS = {"one": "one LLM", "several": "several LLMs"}
NAMES = {
    "qlm": "QLM",
    "qlm:delta=1": "QLM, delta 1",
    "edf": "EDF",
    "vllm": "vLLM",
    "shepherd": "SHEPHERD",
}
ESTIMATES = {"fixed": "fixed batches of the longest output (previous systems)", "qlm": "QLM"}


class Overestimation(Parameters):
    """Parameters of this figure."""

    queue: Annotated[int, paper("section 8: requests of a trace", ge=10)] = 3500
    points: Annotated[int, ours("positions that are drawn", ge=2)] = 100
    max_output: Annotated[float, ours("most output tokens, as our SHEPHERD policy", gt=0)] = 2048.0
    batch_limit: Annotated[int, ours("vLLM's default", ge=1)] = 256
    lengths: Annotated[str, ours("ShareGPT as serving benchmarks use it")] = "sharegpt-single-turn"
    queued: Annotated[int, ours("outlasts the history by the queue", ge=1)] = 40_000
    warm_up_s: Annotated[int, ours("until the batch is full and old", ge=0)] = 600
    history_s: Annotated[int, ours("half an hour of work before", ge=1)] = 1800
    policies: Annotated[
        tuple[str, ...], ours("QLM, also with its smallest groups, and section 8's", min_length=1)
    ] = ("qlm", "qlm:delta=1", "edf", "vllm", "shepherd")
    interactive_per_s: Annotated[float, ours("interactive requests", gt=0)] = 10.0
    batch_requests: Annotated[int, ours("ten minutes of as many", ge=0)] = 6000
    interactive_s: Annotated[float, paper("section 1: 20 s TTFT", gt=0)] = 20.0
    batch_s: Annotated[float, ours("TTFT target of the batch requests", gt=0)] = 600.0
    share: Annotated[float, paper("section 8: p99 TTFT", gt=0, le=1)] = 0.99
    settle_s: Annotated[float, ours("until LLMs are placed and outputs known", ge=0)] = 120.0
    instances: Annotated[
        tuple[PositiveInt, ...], ours("of four GPUs each, from what the load takes", min_length=1)
    ] = (10, 16, 20, 24, 32, 48, 64)


PARAMETERS = {
    "quick": Overestimation(seeds=2, instances=(14, 32, 64)),
    "paper": Overestimation(seeds=3),
}

WAITS = Grid(
    {"half": ("waits",), "seed": SEEDS},
    keep=(
        *("queue", "points", "max_output", "batch_limit"),
        *("lengths", "queued", "warm_up_s", "history_s"),
    ),
    first=("half", "seed"),
)
FLEETS = Grid(
    {
        "half": ("gpus",),
        "seed": SEEDS,
        "policy": "policies",
        "llms": MODELS,
        "instances": "instances",
    },
    keep=(
        *("batch_limit", "lengths", "interactive_per_s", "batch_requests"),
        *("interactive_s", "batch_s", "settle_s"),
    ),
    first=("half", "seed", "policy", "llms", "instances"),
)


def cases(parameters: Overestimation) -> list[dict[str, Any]]:
    """Per seed a run of the left half, and one per policy, LLMs and fleet of the right half."""
    return sorted(WAITS(parameters) + FLEETS(parameters), key=itemgetter("seed"))


def run(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Left: positions with true and estimated waits. Right: a row of attainment."""
    return _waits(case) if case["half"] == "waits" else [attainment(case)]


def _waits(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    model = iteration_time_model(LLM, GPU, gpus_per_instance(LLM))
    requests = backlog(case["lengths"], case["queued"], case["seed"])
    waits = observe(
        model,
        requests,
        instances=1,
        batch_limit=case["batch_limit"],
        warm_up_s=case["warm_up_s"],
        history_s=case["history_s"],
        queue=case["queue"],
    )
    history, place = waits.history, np.arange(case["queue"])
    qlm = waiting_time_s(place, history.mean_tokens, history.std_tokens, history.tokens_per_s, 0.5)
    mean_input, most = float(requests.input_tokens.mean()), case["max_output"]
    kv = model.profile(max_batch=case["batch_limit"]).kv_capacity_tokens
    batch = max(1, min(case["batch_limit"], int(kv // (mean_input + most))))
    each_s = execution_s(
        batch * model.prefill_s(mean_input),
        model.decode_s(batch, batch * (mean_input + most / 2)),
        most,
        history.mean_tokens,
    )
    fixed = fixed_batches_s(place, batch, float(each_s))
    drawn = np.unique(np.rint(np.linspace(0, case["queue"] - 1, case["points"])).astype(int))
    return [
        {
            "position": int(k),
            "wait_s": float(waits.busy_s[k]),
            "qlm_s": float(qlm[k]),
            "fixed_s": float(fixed[k]),
            "fixed_batch": batch,
            "execution_s": float(each_s),
        }
        for k in drawn
    ]


def fixed_batches_s(place: NDArray[np.int64], batch: int, each_s: float) -> NDArray[np.float64]:
    """When the request at each position begins, if batches of fixed size and time follow each other."""
    return np.asarray(place // batch * each_s, np.float64)


def scenario_of(case: Mapping[str, Any]) -> Scenario:
    """`qlm-multi` with these requests, and instances on which all LLMs may be loaded."""
    instances = int(case["instances"])
    main = f"{LLM}@a"
    others = [] if case["llms"] == "one" else [f"{LLM}@{each}" for each in "bcd"]
    late, tp = others or [main], gpus_per_instance(LLM)
    interactive = {
        "name": "interactive",
        "llm": main,
        "slo_class": "interactive",
        "lengths": case["lengths"],
        "rate_per_s": case["interactive_per_s"],
    }
    queues = [
        {
            "name": f"batch-{k}",
            "llm": llm,
            "slo_class": "batch",
            "lengths": case["lengths"],
            "n_requests": case["batch_requests"] // len(late),
        }
        for k, llm in enumerate(late)
    ]
    pool = {
        "llm": main,
        "swaps_to": others,
        "tp": tp,
        "v1": None,
        "max_instances": instances,
        "initial_instances": instances,
        "batch_limit": case["batch_limit"],
        "max_batch": case["batch_limit"],
    }
    return load_scenario(
        "qlm-multi",
        **{
            "horizon_s": case["batch_s"] + case["interactive_s"],
            "classes": [
                {"name": "interactive", "ttft_s": case["interactive_s"], "itl_s": 10},
                {"name": "batch", "ttft_s": case["batch_s"], "itl_s": 10, "priority": 1},
            ],
            "workload": {"streams": [interactive], "batch_queues": queues},
            "fleet.max_gpus": tp * instances,
            **{f"fleet.pools.a100.{name}": value for name, value in pool.items()},
        },
    )


def attainment(case: Mapping[str, Any]) -> dict[str, Any]:
    """Share of each class with a first token in time, of those whose time is up before the end."""
    scenario = scenario_of(case)
    found = run_episode(make_policy(case["policy"]), scenario, case["seed"]).requests
    shares: dict[str, Any] = {"gpus": scenario.fleet.max_gpus}
    for each in scenario.classes:
        mine = found[found["slo_class"] == each.name]
        mine = mine[mine["arrival_s"] + each.ttft_s <= scenario.horizon_s]
        if each.name == "interactive":
            mine = mine[mine["arrival_s"] >= case["settle_s"]]
        on_time = float((mine["ttft_s"] <= each.ttft_s).mean()) if len(mine) else 1.0
        shares[f"{each.name}_on_time"] = on_time
    return shares


def plot(frame: DataFrame, parameters: Overestimation) -> Any:
    """Left: waits by position. Right: GPUs by policy."""
    figure = new_figure(10.6, 4.6)
    left, right = figure.subplots(1, 2)
    waits = where(frame, half="waits")
    for column, name, style, colour, width in (
        ("fixed_s", ESTIMATES["fixed"], "-", "C3", 1.6),
        ("wait_s", "true waiting time", "-", "0.2", 2.4),
        ("qlm_s", ESTIMATES["qlm"], "--", "C0", 1.6),
    ):
        look: dict[str, Any] = {"color": colour, "lw": width, "label": name}
        line(left, waits, "position", column, style, band=None, **look)
    left.set_xlabel("position in the queue (requests ahead)")
    left.set_ylabel("waiting time (s), mean over seeds")
    dress(left, title=shown(LLM), bottom=0, legend={}, xlim=(0, None))
    for k, policy in enumerate(parameters.policies):
        at, width = places(k, len(parameters.policies), len(MODELS))
        found = [needed(frame, policy, llms, parameters.share) for llms in MODELS]
        bars = [gpus.mean() if len(gpus) else np.nan for gpus in found]
        right.bar(at, bars, width * 0.95, color=f"C{k}", label=NAMES.get(policy, policy))
        for x, gpus in zip(at, found, strict=True):
            if len(gpus):
                right.plot([x, x], [gpus.min(), gpus.max()], color="0.2", lw=1.2)
            else:
                most = max(parameters.instances) * gpus_per_instance(LLM)
                right.text(x, 1, f"not with {most}", rotation=90, ha="center", va="bottom", size=8)
    right.set_xticks(range(len(MODELS)), MODELS.values())
    ylabel = f"GPUs for {parameters.share:.0%} on time (mean; lines: least and most)"
    dress(right, lines="y", legend={}, ylabel=ylabel)
    return figure


@claimed
def claims(frame: DataFrame, parameters: Overestimation) -> Iterator[Claim]:
    """Previous systems over-estimate and take more GPUs; QLM's estimate is right."""
    waits = where(frame, half="waits")
    waits = waits[waits["wait_s"] > 0]
    last = where(waits, position=waits["position"].max())
    setting = f"{shown(LLM)}, {parameters.queue:,} requests ahead"
    yield at_least(
        "Previously proposed systems over-estimate the waiting time in the queue",
        1.5,
        interval_of(last["fixed_s"] / last["wait_s"]),
        nothing=1.0,
        unit="times the true wait",
        paper="higher (curve; read as 1.5 times or more)",
        how=f"their estimate counts fixed batches of {last['fixed_batch'].iloc[0]:.0f} requests, each "
        f"{last['execution_s'].iloc[0]:.0f} s long, where the instance batches continuously",
        setting=setting,
    )
    yield about(
        "QLM's estimate bounds the waiting time of a long queue tightly",
        1.0,
        interval_of(last["qlm_s"] / last["wait_s"]),
        nothing=None,
        unit="times the true wait",
        paper="close to the true wait (curve)",
        how="output tokens ahead over the throughput that the instance has logged (Eq. 2)",
        setting=setting,
    )
    if "qlm" not in parameters.policies:
        return
    own = [policy for policy in parameters.policies if policy.startswith("qlm")]
    # Of section 8's baselines SHEPHERD is the one that section 1 names among the previous systems.
    others = sorted((p for p in parameters.policies if p not in own), key="shepherd".__ne__)
    most = max(parameters.instances) * gpus_per_instance(LLM)
    for llms, name in MODELS.items() if others else ():
        fewest = {
            policy: needed(frame, policy, llms, parameters.share) for policy in parameters.policies
        }
        parts = []
        for policy, qlm in ((p, q) for p in others for q in own):
            # Not with the largest fleet: more than that.
            least = fewest[policy].reindex(parameters.seed_list()).fillna(float(most))
            part = at_least(
                f"{NAMES.get(policy, policy)} against {NAMES.get(qlm, qlm)}",
                1.25,
                mean_interval((least / fewest[qlm]).dropna()),
                nothing=1.0,
                unit="times QLM's GPUs",
            )
            parts.append(part)
        counts = "; ".join(
            f"{NAMES.get(each, each)} {_mean(fewest[each], most, parameters.seeds)}"
            for each in parameters.policies
        )
        yield led_by(
            f"Previous systems take more GPUs than QLM to maintain a TTFT of "
            f"{parameters.interactive_s:g} s ({name})",
            parts,
            paper="more (bars; read as 1.25 times or more)",
            how="QLM serves interactive and batch requests on the same instances",
            reason="a group takes arrivals until it holds four average batches and stays in one virtual "
            f"queue, so few instances serve the interactive ones. Needed: {counts}",
            setting=f"{parameters.interactive_per_s:g} interactive requests/s and "
            f"{parameters.batch_requests:,} batch requests",
        )


def needed(frame: DataFrame, policy: str, llms: str, share: float) -> Any:
    """By seed the fewest GPUs from which on both classes are on time; seeds without any are left out."""
    mine = _fleets(frame, policy, llms)
    enough = mine[["interactive_on_time", "batch_on_time"]].astype(float).min(axis=1) >= share
    fewest = {}
    for seed, part in mine.groupby("seed"):
        short = part.loc[~enough[part.index], "gpus"].max()  # NaN if none is too small
        good = part["gpus"][~(part["gpus"] <= short)]
        if len(good):
            fewest[seed] = float(good.min())
    return Series(fewest, dtype=float)


def _fleets(frame: DataFrame, policy: str, llms: str) -> DataFrame:
    return where(frame, half="gpus", policy=policy, llms=llms)


def _mean(gpus: Any, most: int, seeds: int) -> str:
    unable = seeds - len(gpus)
    more = f"more than {most} GPUs in {unable} of {seeds} runs"
    found = f"{gpus.mean():.0f} GPUs" if len(gpus) else ""
    return ", ".join([found] * bool(found) + [more] * bool(unable))
