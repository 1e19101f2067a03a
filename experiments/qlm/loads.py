"""QLM's workloads W_A and W_B: a trace of so many requests at a rate per class, served to the end.

Each trace of the paper has 3,500 requests (section 8), Poisson arrivals and ShareGPT lengths. On W_A so few
find a place in the batches of 50 A100 at once and no queue forms, so rates are kept for some time
instead, or batches are as small as in the released code (`single_model_load`). Requests of a class are
spread evenly over its LLMs. An episode ends when the last request is done or after `patience_s`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from baselines import make_policy
from experiments.harness.figure import dress, lines, where, wide
from experiments.qlm.mega import apart, with_mega_prompts
from llmscale_env.control.policy import Policy
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.run import run_episode
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.workload.requests import COLUMNS, RequestTable

if TYPE_CHECKING:
    from pandas import DataFrame

LITERAL_REQUESTS = 3500
"""Of each trace of the paper."""

RELEASED_BATCH = 10
"""Requests that an instance of the released code has at most (`max_batch_size` of its config.yaml)."""

RELEASED = {"fleet.pools.a100.batch_limit": RELEASED_BATCH}

STYLES = {
    "qlm": ("QLM", "C0", "o-"),
    "edf": ("EDF", "C2", "s-"),
    "vllm": ("vLLM", "C3", "^-"),
    "edf:by=slo": ("EDF by SLO", "C4", "v-"),
    "shepherd": ("SHEPHERD", "C1", "D-"),
    "edf:swapping=true": ("EDF with swapping", "C9", "s-"),
    "vllm:swapping=true": ("vLLM with swapping", "C5", "^-"),
    "edf:swapping=true,queues=per-instance": (
        "EDF with swapping, a queue per instance",
        "C8",
        "s-",
    ),
    "vllm:swapping=true,queues=per-instance": (
        "vLLM with swapping, a queue per instance",
        "C6",
        "^-",
    ),
}
"""Name in pictures, colour, line."""


def scenario_at(case: Mapping[str, Any]) -> Scenario:
    """The scenario of a case: `scenario`, `rates` by class, `interval_s`, `patience_s`, `changes`.

    Classes without a rate have no requests.
    """
    base = load_scenario(case["scenario"])
    streams = [stream for stream in base.workload.streams if stream.slo_class in case["rates"]]
    workload = base.workload.model_copy(update={"streams": tuple(streams)})
    base = base.model_copy(update={"workload": workload})
    rates = {}
    for name, rate in case["rates"].items():
        streams = [stream for stream in base.workload.streams if stream.slo_class == name]
        for stream in streams:
            rates[f"workload.streams.{stream.name}.rate_per_s"] = rate / len(streams)
    return load_scenario(
        base,
        horizon_s=case["patience_s"],
        control_interval_s=case["interval_s"],
        **rates,
        **case.get("changes", {}),
    )


def single_model_load(
    load: str, interactive_per_s: float, batch_per_s: float, trace_s: float
) -> dict[str, Any]:
    """Rates of the three classes of W_A and the number of requests, as `run_trace` takes them.

    Args:
        load: "equal": all three classes at the interactive rate, kept for `trace_s` seconds. "fixed":
            batch classes at `batch_per_s` each, whatever the interactive rate, for as long. "literal":
            as "equal", 3,500 requests in all. "released": as "literal", in batches of at most
            `RELEASED_BATCH`, and arrivals are looked at every second.
        interactive_per_s: the rate that the figures vary.
        batch_per_s: see `load`.
        trace_s: see `load`; never fewer than 3,500 requests.

    Raises:
        ValueError: an unknown load.
    """
    if load not in ("equal", "fixed", "literal", "released"):
        raise ValueError(f"load = {load!r}: must be 'equal', 'fixed', 'literal' or 'released'")
    batch = float(batch_per_s if load == "fixed" else interactive_per_s)
    rates = {"interactive": float(interactive_per_s), "batch-1": batch, "batch-2": batch}
    n = LITERAL_REQUESTS
    if load in ("equal", "fixed"):
        n = max(n, round(trace_s * sum(rates.values())))
    found = {"load": load, "rates": rates, "requests": n}
    return found | ({"interval_s": 1.0, "changes": RELEASED} if load == "released" else {})


def single_model_cases(
    parameters: Any, loads: Iterable[str], rates: Iterable[float]
) -> list[dict[str, Any]]:
    """What cases of W_A hold for each load and interactive rate, with a figure's other parameters."""
    return [
        {
            "interactive_per_s": float(rate),
            "interval_s": parameters.interval_s,
            "patience_s": parameters.patience_s,
            **single_model_load(load, rate, parameters.batch_per_s, parameters.trace_s),
        }
        for load in loads
        for rate in rates
    ]


def trace(scenario: Scenario, n: int, seed: int) -> RequestTable:
    """The first `n` requests of the scenario's streams.

    Raises:
        ValueError: there are not so many within the horizon.
    """
    table = draw_requests(scenario, np.random.default_rng(seed))
    if len(table) < n:
        raise ValueError(f"requests = {n}: only {len(table)} come within {scenario.horizon_s} s")
    return replace(table, **{name: getattr(table, name)[:n] for name in COLUMNS})


def run_trace(case: Mapping[str, Any], policy: Policy | None = None) -> dict[str, Any]:
    """One episode.

    Args:
        case: see `scenario_at`; `requests`, `policy` (as `make_policy` takes it), `seed`; `mega`: share
            of mega prompts, their least and most tokens (none if left out).
        policy: runs in place of the case's, such as one that measures itself.

    Returns:
        `attainment` (share of all requests on time) and `CLASS_attainment`; `drained_s`, when the last
        request was done (None if some never were); `requests_per_s`, those done over that time, or over
        the whole episode; `on_time_per_s`, those of them in time; `loaded_per_s`, requests done per second
        in the second half of the time in which requests arrive; `preemptions`, `swaps`, `evictions`,
        `calls` of QLM's scheduler; `largest_queue` and `mean_queue`, see `queue_sizes`; with mega prompts
        `ordinary_attainment`, `mega_attainment` and `apart`, see `experiments.qlm.mega`.
    """
    return serve(case, scenario_at(case), policy)[0]


def serve(
    case: Mapping[str, Any], scenario: Scenario, policy: Policy | None = None
) -> tuple[dict[str, Any], DataFrame]:
    """The same on a scenario that is there; also the table of requests (`RunResult.requests`)."""
    # What comes after the trace would cost time to draw: a shorter horizon draws the same requests.
    total = sum(case["rates"].values())
    enough = (case["requests"] + 8 * case["requests"] ** 0.5 + 60) / total
    short = scenario.model_copy(update={"horizon_s": min(scenario.horizon_s, enough)})
    requests = trace(short, case["requests"], case["seed"])
    mega = np.zeros(len(requests), np.bool_)
    if "mega" in case:
        requests, mega = with_mega_prompts(requests, case["seed"], *case["mega"])
    # Policies that keep an LLM per instance deal those out by the streams' work, and the reward, which nobody
    # looks at, draws episodes of them: their shares count, so a trace's worth of requests is enough.
    thin = case["requests"] / (total * scenario.horizon_s)
    scenario = scenario.model_copy(
        update={"workload": scenario.workload.model_copy(update={"rate_scale": thin})}
    )
    policy = policy or make_policy(case["policy"])
    simulation = ClusterSimulation(scenario)
    result = run_episode(policy, scenario, requests=requests, simulation=simulation)
    table = result.requests
    good = table["outcome"] == "on_time"
    end = table["arrival_s"] + table["e2e_s"]
    whole = bool(table["e2e_s"].notna().all())
    time_s = float(end.max()) if whole else scenario.horizon_s
    last_s = float(table["arrival_s"].max())
    row: dict[str, Any] = {
        "attainment": float(good.mean()),
        "drained_s": time_s if whole else None,
        "requests_per_s": float(table["e2e_s"].notna().sum()) / time_s,
        "on_time_per_s": float(good.sum()) / time_s,
        "loaded_per_s": float(((end > last_s / 2) & (end <= last_s)).sum()) / (last_s / 2),
        "preemptions": int(table["preemptions"].sum()),
        "swaps": int(simulation.engine.instances(0)["swaps"].sum()),
        "evictions": int(table["evictions"].sum()),
        "calls": len(getattr(policy, "calls", ())),
        **queue_sizes(table["arrival_s"].to_numpy(), table["ttft_s"].to_numpy(), time_s),
    }
    for slo_class in scenario.classes:
        mine = table["slo_class"] == slo_class.name
        row[f"{slo_class.name}_attainment"] = float(good[mine].mean()) if mine.any() else None
    if "mega" in case:
        for name, some in (("ordinary", ~mega), ("mega", mega)):
            row[f"{name}_attainment"] = float(good[some].mean()) if some.any() else None
        row["apart"] = apart(table["instance"].to_numpy(), mega)
    return row, table


def queue_sizes(
    arrival_s: NDArray[np.float64], ttft_s: NDArray[np.float64], time_s: float
) -> dict[str, float]:
    """Requests that wait for their first token, from 0 to `time_s`.

    Args:
        arrival_s: (n,) when each came.
        ttft_s: (n,) how long its first token took; NaN: it never came.
        time_s: the end.

    Returns:
        `largest_queue` over all instants and `mean_queue` over the time.
    """
    first_s = np.where(np.isnan(ttft_s), np.inf, arrival_s + ttft_s)
    times = np.concatenate([arrival_s, first_s])
    change = np.repeat([1, -1], len(arrival_s))
    waiting = np.cumsum(change[np.lexsort((change, times))])  # who leaves goes first
    waited = np.minimum(first_s, time_s) - arrival_s
    return {"largest_queue": float(waiting.max()), "mean_queue": float(waited.sum()) / time_s}


def of_policy(frame: DataFrame, policy: str, x: str, column: str) -> DataFrame:
    """A policy's values of a column: a row per seed, a column per `x`."""
    return wide(where(frame, policy=policy), x, column)


def points_above(frame: DataFrame, other: str, x: str, column: str = "attainment") -> DataFrame:
    """By how many percentage points QLM meets more SLOs than another: rows and columns as above."""
    return 100 * (of_policy(frame, "qlm", x, column) - of_policy(frame, other, x, column))


def lines_by_policy(
    axes: Any,
    frame: DataFrame,
    policies: Sequence[str],
    x: str,
    column: str,
    scale: float,
    styles: Mapping[str, tuple[str, str, str]] = STYLES,
    **look: Any,
) -> None:
    """A line over `x` per policy, in its style, with the range over the seeds; `look`: see `line`."""
    look = {"scale": scale, "edge": None, "ms": 4, **look}
    lines(axes, frame, "policy", policies, styles, x, column, **look)


def bars_by_variant(
    axes: Any, frame: DataFrame, variants: Sequence[str], column: str, label: str, *, names: bool
) -> None:
    """A bar per variant with the range over the seeds, the first one in colour; shares in per cent."""
    grouped = (100 if column.endswith("attainment") else 1) * frame.set_index("variant")[column]
    grouped = grouped.groupby(level=0)
    mean, low, high = (
        getattr(grouped, each)().reindex(variants) for each in ("mean", "min", "max")
    )
    places = np.arange(len(variants))
    colours = ["C0", *["C7"] * (len(variants) - 1)]
    spread = np.stack([mean - low, high - mean])
    axes.barh(places, mean, color=colours, xerr=spread, capsize=3)
    axes.set_yticks(places, variants if names else [""] * len(variants))
    axes.invert_yaxis()
    dress(axes, lines="x", xlabel=label)
