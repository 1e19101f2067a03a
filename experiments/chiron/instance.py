"""One saturated instance: throughput and inter-token latency at a batch limit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llmscale_env.cluster.iteration_model import IterationTimeModel
from llmscale_env.cluster.optimisations import (
    AverageHits,
    SpeculativeConfig,
    optimised_tables,
)
from llmscale_env.sim.engine import make_engine
from llmscale_env.sim.spec import (
    ClusterSpec,
    PoolSpec,
    PreemptionMode,
    ProfileSpec,
    RouterKind,
    RouteSpec,
)
from llmscale_env.workload import tables
from llmscale_env.workload.requests import PS_PER_S, RequestTable

MAX_REQUEST_TOKENS = 8192


@dataclass(frozen=True)
class Steady:
    """What a saturated instance does.

    Attributes:
        tokens_per_s, requests_per_s: throughput.
        itl_s: mean over finished requests of their mean inter-token latency.
        preemptions_per_request: for want of KV memory, per finished request.
    """

    tokens_per_s: float
    requests_per_s: float
    itl_s: float
    preemptions_per_request: float


def backlog(lengths: str, n: int, seed: int) -> RequestTable:
    """`n` requests with a table's lengths, all there at time 0."""
    drawn = tables.load_lengths(lengths).sample(n, np.random.default_rng(seed))
    prompt, output = (tables.round_tokens(column, MAX_REQUEST_TOKENS // 2) for column in drawn)
    return RequestTable.build(np.zeros(n), prompt, output)


def measure(
    model: IterationTimeModel,
    requests: RequestTable,
    batch_limit: int,
    *,
    watermark: float = 0.0,
    preemption: str = "recompute",
    kv_capacity_tokens: int | None = None,
    average_hits: AverageHits | None = None,
    speculative: SpeculativeConfig | None = None,
    warm_up_s: int,
    measured_s: int,
) -> Steady:
    """One saturated instance.

    Args:
        model: iteration times.
        requests: the queue at time 0; must outlast the run.
        batch_limit: running requests allowed.
        watermark: share of KV memory kept free at admission.
        preemption: "recompute" or "swap".
        kv_capacity_tokens: KV memory; from the cards (and the optimisations) if left out.
        average_hits, speculative: optimisations; None: without.
        warm_up_s, measured_s: simulated seconds before and during the measurement.

    Raises:
        ValueError: the queue ran empty, or nothing finished.
    """
    profile = optimised_tables(
        model, max_batch=batch_limit, average_hits=average_hits, speculative=speculative
    )
    if kv_capacity_tokens is not None:
        profile = replace(profile, kv_capacity_tokens=kv_capacity_tokens)
    pool = PoolSpec(
        llm=0,
        profile=0,
        n_slots=1,
        gpus=model.tp,
        initial_active=1,
        batch_limit=batch_limit,
        preemption=PreemptionMode[preemption.upper()],
        watermark_tokens=round(watermark * profile.kv_capacity_tokens),
    )
    route = RouteSpec(kind=RouterKind.ROUND_ROBIN, pools=(0,))
    spec = ClusterSpec(profiles=(ProfileSpec(**vars(profile)),), pools=(pool,), routes=((route,),))
    engine = make_engine(spec)
    engine.reset(0, requests)
    engine.advance(0, warm_up_s * PS_PER_S)
    tokens = int(engine.instances(0)[0]["tokens"])
    preemptions = int(engine.results(0)["preemptions"].sum())
    engine.advance(0, (warm_up_s + measured_s) * PS_PER_S)
    instance, results = engine.instances(0)[0], engine.results(0)
    if instance["waiting"] == 0:
        raise ValueError(f"{len(requests)} requests do not outlast {warm_up_s + measured_s} s")
    finished = results["finished_ps"] >= warm_up_s * PS_PER_S
    several = finished & (requests.output_tokens > 1)
    if not several.any():
        raise ValueError(f"no request finished in {measured_s} s")
    decoding_s = (results["finished_ps"] - results["first_token_ps"])[several] / PS_PER_S
    return Steady(
        tokens_per_s=(int(instance["tokens"]) - tokens) / measured_s,
        requests_per_s=int(finished.sum()) / measured_s,
        itl_s=float(np.mean(decoding_s / (requests.output_tokens[several] - 1))),
        preemptions_per_request=(int(results["preemptions"].sum()) - preemptions)
        / int(finished.sum()),
    )
