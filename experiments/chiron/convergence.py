"""One overloaded instance under the local autoscaler: how its batch moves, and when it has converged.

The instance is the fast engine's, sampled every fraction of a second; what is sampled is what any
observer sees (limit, running batch, tokens). Figures 11, 12 and 15 look at the same kind of run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import PositiveFloat

from experiments.chiron.instance import MAX_REQUEST_TOKENS
from experiments.harness.parameters import Parameters, ours, paper
from llmscale_env.cluster.iteration_model import IterationTables
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.cluster.optimisations import (
    AverageHits,
    SpeculativeConfig,
    optimised_tables,
)
from llmscale_env.sim.compile import CONTROLLERS
from llmscale_env.sim.engine import make_engine
from llmscale_env.sim.spec import (
    ClassSpec,
    ClusterSpec,
    PoolSpec,
    PreemptionMode,
    ProfileSpec,
    RouterKind,
    RouteSpec,
)
from llmscale_env.workload import tables
from llmscale_env.workload.requests import PS_PER_S, RequestTable

GPU = "a100-80gb"
MAX_BATCH = 4096
TENSOR_PARALLEL = {"llama-3.1-8b": 1, "llama-3.1-70b": 4}
DRAFTS = {"llama-3.1-8b": "llama-3.2-3b", "llama-3.1-70b": "llama-3.1-8b"}
"""The paper names the 70B's (section 6); the 8B's is the smallest of its family that is known here."""

OVERLOAD_PER_S = {"llama-3.1-8b": 40.0, "llama-3.1-70b": 20.0}
"""Requests/s, some three times what an instance can serve with any of `VARIANTS`, so that there always is
a queue and the limit binds. Ours: the paper's constant rate has no number."""

VARIANTS = ("plain", "prefix cache", "speculative", "both")
SMALL, LARGE = "llama-3.1-8b", "llama-3.1-70b"
SHORT = {SMALL: "8B", LARGE: "70B"}
NAMES = {"chiron": "Chiron", "chiron-literal": "Algorithm 1 as printed"}
"""Controllers in pictures and sentences."""
MEMORY_IS_FULL = 0.8
"""Share of KV memory, mean over time, from which memory holds the batch."""


class LocalParameters(Parameters):
    """What the figures about one instance share."""

    llms: Annotated[
        tuple[Literal["llama-3.1-8b", "llama-3.1-70b"], ...], paper("section 6", min_length=1)
    ] = ("llama-3.1-8b", "llama-3.1-70b")
    controllers: Annotated[
        tuple[Literal["chiron", "chiron-literal"], ...],
        ours("TBP after a raise (section 4.1), and as printed", min_length=1),
    ] = ("chiron", "chiron-literal")
    slos_s: Annotated[
        tuple[PositiveFloat, ...], paper("section 6, interactive and batch", min_length=1)
    ] = (0.2, 2.0)
    lengths: Annotated[str, ours("ShareGPT as serving benchmarks use it")] = "sharegpt-single-turn"
    first_limit: Annotated[int, ours("as the scenarios' interactive pools", ge=1, le=MAX_BATCH)] = (
        64
    )
    window_iterations: Annotated[
        int, ours("a step is seen at a sample; 1: the printed one, at each change", ge=1)
    ] = 16
    settles: Annotated[bool, ours("a window begins once the batch has the new size")] = False
    reverts: Annotated[bool, ours("a raise that brings no throughput is taken back")] = False
    kv_watermark: Annotated[float, ours("vLLM's default", ge=0, lt=1)] = 0.01
    preemption: Annotated[Literal["recompute", "swap"], ours("vLLM's default")] = "recompute"
    duration_s: Annotated[int, ours("several times the paper's longest convergence", ge=1)] = 1800
    sample_s: Annotated[float, ours("one to three iterations", gt=0)] = 0.1


def overloaded(parameters: LocalParameters, case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The models with rates that each is overloaded by."""
    return [{"llm": llm, "rate_per_s": OVERLOAD_PER_S[llm]} for llm in parameters.llms]


SHARED = (
    *("lengths", "first_limit", "window_iterations", "settles", "reverts"),
    *("kv_watermark", "preemption", "duration_s", "sample_s"),
)
"""Parameters that every case holds."""


@dataclass(frozen=True)
class Watched:
    """An instance that was watched.

    Attributes:
        samples: a row per sample: `time_s`, `limit`, `running`, `waiting`, `tokens` (so
            far), `kv_use` (share of KV memory).
        first_token_s: (m,) when requests had their first token, sorted.
        itl_s: (n,) mean inter-token latency of requests that finished, with two tokens or more.
        finished_s: (n,) when they did.
        preemptions: in all.
    """

    samples: pd.DataFrame
    first_token_s: NDArray[np.float64]
    itl_s: NDArray[np.float64]
    finished_s: NDArray[np.float64]
    preemptions: int


def instance_tables(llm: str, variant: str) -> IterationTables:
    """Iteration times of one of `VARIANTS`; the optimisations with their default parameters."""
    prefix = AverageHits() if variant in ("prefix cache", "both") else None
    draft = SpeculativeConfig(draft_llm=DRAFTS[llm]) if variant in ("speculative", "both") else None
    model = iteration_time_model(llm, GPU, TENSOR_PARALLEL[llm])
    return optimised_tables(model, max_batch=MAX_BATCH, average_hits=prefix, speculative=draft)


def arrivals(lengths: str, rate_per_s: float, duration_s: float, seed: int) -> RequestTable:
    """Poisson arrivals with a table's lengths."""
    rng = np.random.default_rng(seed)
    n = rng.poisson(rate_per_s * duration_s)
    drawn = tables.load_lengths(lengths).sample(n, rng)
    prompt, output = (tables.round_tokens(column, MAX_REQUEST_TOKENS // 2) for column in drawn)
    return RequestTable.build(np.sort(rng.uniform(0, duration_s, n)), prompt, output)


def watch(case: Mapping[str, Any]) -> Watched:
    """Run one instance and sample it.

    Args:
        case: `llm`, `variant` (of `VARIANTS`), `controller` ("chiron", "chiron-literal", "fixed"),
            `itl_slo_s`, `rate_per_s`, `seed`, and what `LocalParameters.shared` gives.
    """
    sample_s = case["sample_s"]
    requests = arrivals(case["lengths"], case["rate_per_s"], case["duration_s"], case["seed"])
    spec = _spec(case)
    engine = make_engine(spec)
    engine.reset(0, requests)
    names = ("batch_limit", "running", "waiting", "tokens", "kv_tokens")
    rows = []
    for k in range(1, math.floor(case["duration_s"] / sample_s) + 1):
        engine.advance(0, round(k * sample_s * PS_PER_S))
        seen = engine.instances(0)[0]
        rows.append((k * sample_s, *(int(seen[name]) for name in names)))
    samples = pd.DataFrame(rows, columns=["time_s", "limit", *names[1:-1], "kv_use"])
    samples["kv_use"] /= spec.profiles[0].kv_capacity_tokens
    results = engine.results(0)
    first = results["first_token_ps"][results["first_token_ps"] >= 0] / PS_PER_S
    done = (results["finished_ps"] >= 0) & (requests.output_tokens > 1)
    decoding_s = (results["finished_ps"] - results["first_token_ps"])[done] / PS_PER_S
    return Watched(
        samples=samples,
        first_token_s=np.sort(first),
        itl_s=decoding_s / (requests.output_tokens[done] - 1),
        finished_s=results["finished_ps"][done] / PS_PER_S,
        preemptions=int(results["preemptions"].sum()),
    )


def steady(watched: Watched, itl_slo_s: float) -> dict[str, float]:
    """What the second half of a run was like.

    Returns:
        `limit` (median), `limit_low`, `limit_high` (5th and 95th percentile), `batch` (running requests,
        mean), `kv_use` (share of KV memory, mean), `tokens_per_s`, `itl_s` (mean over finished requests
        of their mean; NaN without any), `itl_violations` (share of them above the target) and
        `preemptions` (in all the run).
    """
    samples = watched.samples
    half_s = samples["time_s"].iloc[-1] / 2
    late = samples[samples["time_s"] > half_s]
    itl_s = watched.itl_s[watched.finished_s > half_s]
    low, middle, high = late["limit"].quantile([0.05, 0.5, 0.95])
    return {
        "limit": float(middle),
        "limit_low": float(low),
        "limit_high": float(high),
        "batch": float(late["running"].mean()),
        "kv_use": float(late["kv_use"].mean()),
        "tokens_per_s": float(np.ptp(late["tokens"]) / np.ptp(late["time_s"])),
        "itl_s": float(itl_s.mean()) if len(itl_s) else math.nan,
        "itl_violations": float((itl_s > itl_slo_s).mean()) if len(itl_s) else math.nan,
        "preemptions": watched.preemptions,
    }


def converged_s(
    time_s: NDArray[np.float64],
    values: NDArray[np.float64],
    band: float,
    share: float,
    hold_s: float,
) -> float:
    """The first time from which values stay near their median over the second half.

    Args:
        time_s: (n,) rising, evenly.
        values: (n,) batch sizes.
        band: near means from `median / band` to `median * band`.
        share: of all values from then on that must be near; 1: all of them.
        hold_s: without a break they must be near at first, so that passing by does not count.

    Returns:
        NaN if there is no such time before the second half: it did not converge.
    """
    middle = np.median(values[time_s > time_s[-1] / 2])
    far = (values < middle / band) | (values > middle * band)
    remaining = np.arange(len(far), 0, -1)
    often = np.cumsum(far[::-1])[::-1] <= (1 - share) * remaining + 1e-9
    seen = np.concatenate([[0], np.cumsum(far)])
    held = np.searchsorted(time_s, time_s + hold_s, "right")
    first = np.flatnonzero(often & (seen[held] == seen[:-1]) & (time_s <= time_s[-1] / 2))
    return float(time_s[first[0]]) if len(first) else math.nan


def steps(watched: Watched) -> pd.DataFrame:
    """A row per step of the autoscaler: from one change of the limit to the next.

    An update that leaves the limit as it was begins no step, and what falls between two samples is one.

    Returns:
        `start_s`, `end_s`, `limit`, `running` and `kv_use` (means) and `itl_s`: time in which requests ran,
        over tokens that were not a request's first. NaN in steps without such a token.
    """
    samples = watched.samples
    time_s = samples["time_s"].to_numpy()
    limit = samples["limit"].to_numpy()
    since_s = np.diff(time_s, prepend=0.0)
    ran_s = np.cumsum(samples["running"].to_numpy() * since_s)
    used_s = np.cumsum(samples["kv_use"].to_numpy() * since_s)
    later = samples["tokens"].to_numpy() - np.searchsorted(watched.first_token_s, time_s, "right")
    # A change seen at a sample happened after the one before, which therefore ends the old step.
    ends = np.append(np.flatnonzero(np.diff(limit)), len(limit) - 1)
    start_s = np.concatenate([[0.0], time_s[ends[:-1]]])
    length_s = time_s[ends] - start_s
    spent_s, tokens = np.diff(ran_s[ends], prepend=0.0), np.diff(later[ends], prepend=0)
    return pd.DataFrame(
        {
            "start_s": start_s,
            "end_s": time_s[ends],
            "limit": limit[ends],
            "running": spent_s / length_s,
            "kv_use": np.diff(used_s[ends], prepend=0.0) / length_s,
            "itl_s": np.where(tokens > 0, spent_s / np.maximum(tokens, 1), np.nan),
        }
    )


def _spec(case: Mapping[str, Any]) -> ClusterSpec:
    llm = case["llm"]
    profile = instance_tables(llm, case["variant"])
    pool = PoolSpec(
        llm=0,
        profile=0,
        n_slots=1,
        gpus=TENSOR_PARALLEL[llm],
        initial_active=1,
        batch_limit=case["first_limit"],
        controller=CONTROLLERS[case["controller"]],
        controller_max_batch=MAX_BATCH,
        controller_window_iterations=case["window_iterations"],
        controller_settles=case["settles"],
        controller_reverts=case["reverts"],
        preemption=PreemptionMode[case["preemption"].upper()],
        watermark_tokens=round(case["kv_watermark"] * profile.kv_capacity_tokens),
    )
    return ClusterSpec(
        profiles=(ProfileSpec(**vars(profile)),),
        pools=(pool,),
        routes=((RouteSpec(kind=RouterKind.ROUND_ROBIN, pools=(0,)),),),
        classes=(ClassSpec(itl_slo_ps=round(case["itl_slo_s"] * PS_PER_S)),),
    )
