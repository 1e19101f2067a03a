"""How long requests of a queue really wait in front of batch instances, and what Eq. 1 says beforehand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmscale_env.cluster.iteration_model import IterationTimeModel
from llmscale_env.sim.engine import Engine, make_engine
from llmscale_env.sim.spec import ClusterSpec, PoolSpec, ProfileSpec, RouterKind, RouteSpec
from llmscale_env.workload.requests import PS_PER_S, RequestTable

WATERMARK = 0.01
"""Share of KV memory kept free at admission: vLLM's default, as in the scenarios."""


@dataclass(frozen=True)
class History:
    """What is known when the queue is looked at.

    Attributes:
        mean_tokens, std_tokens: of the outputs of requests finished so far.
        tokens_per_s: Theta, of all instances together, while requests waited.
    """

    mean_tokens: float
    std_tokens: float
    tokens_per_s: float


@dataclass(frozen=True)
class Waits:
    """A queue and what became of it.

    Attributes:
        history: of the fleet in front of which it stands.
        busy_s: (n,) time to the admission of the k-th request, the fleet being at work.
        empty_s: (n,) the same requests in front of a fleet that has nothing running.
    """

    history: History
    busy_s: NDArray[np.float64]
    empty_s: NDArray[np.float64]


def observe(
    model: IterationTimeModel,
    requests: RequestTable,
    *,
    instances: int,
    batch_limit: int,
    warm_up_s: int,
    history_s: int,
    queue: int,
) -> Waits:
    """Let a fleet work on a backlog, stop after `history_s`, and follow the first of the queue.

    A queue of n < `queue` requests waits like the first n: nobody overtakes.

    Args:
        model: iteration times.
        requests: the backlog, all there at time 0.
        instances: batch instances, which pull from one queue.
        batch_limit: of each, fixed.
        warm_up_s: from then on throughput is measured.
        history_s: when the queue is looked at.
        queue: how many requests of it.

    Raises:
        ValueError: fewer are left then, or nothing has finished.
    """
    engine = _fleet(model, requests, instances, batch_limit)
    engine.advance(0, warm_up_s * PS_PER_S)
    before = int(engine.instances(0)["tokens"].sum())
    engine.advance(0, history_s * PS_PER_S)
    after = int(engine.instances(0)["tokens"].sum())
    finished = engine.results(0)["finished_ps"] >= 0
    ids = engine.queued(0, 0)["request"][:queue]
    if len(ids) < queue or not finished.any():
        raise ValueError(
            f"after {history_s} s {int(finished.sum())} of {len(requests)} requests have finished and "
            f"{len(ids)} wait: one must have finished, and queue = {queue} must wait"
        )
    outputs = requests.output_tokens[finished]
    again = RequestTable.build(
        np.zeros(queue), requests.input_tokens[ids], requests.output_tokens[ids]
    )
    return Waits(
        History(
            mean_tokens=float(outputs.mean()),
            std_tokens=float(outputs.std()),
            tokens_per_s=(after - before) / (history_s - warm_up_s),
        ),
        busy_s=_admitted_s(engine, ids, history_s) - history_s,
        empty_s=_admitted_s(
            _fleet(model, again, instances, batch_limit), np.arange(queue, dtype=np.int64), 0
        ),
    )


def _fleet(
    model: IterationTimeModel, requests: RequestTable, instances: int, batch_limit: int
) -> Engine:
    profile = model.profile(max_batch=batch_limit)
    pool = PoolSpec(
        llm=0,
        profile=0,
        n_slots=instances,
        gpus=model.tp,
        initial_active=instances,
        batch_limit=batch_limit,
        pull=(0,),
        watermark_tokens=round(WATERMARK * profile.kv_capacity_tokens),
    )
    route = RouteSpec(kind=RouterKind.SHARED_QUEUE, pools=(0,), queue=0)
    spec = ClusterSpec(
        profiles=(ProfileSpec(**vars(profile)),), pools=(pool,), routes=((route,),), queue_llm=(0,)
    )
    engine = make_engine(spec)
    engine.reset(0, requests)
    return engine


def _admitted_s(engine: Engine, ids: NDArray[np.int64], now_s: int) -> NDArray[np.float64]:
    """When requests are admitted, the engine being advanced until all of them are."""
    while True:
        now_s += 600
        engine.advance(0, now_s * PS_PER_S)
        admitted = engine.results(0)["admitted_ps"][ids]
        if (admitted >= 0).all():
            return np.asarray(admitted / PS_PER_S, np.float64)


def r_squared(true: NDArray[np.float64], estimate: NDArray[np.float64]) -> float:
    """Coefficient of determination: 1 - squared errors over squared distances from the mean.

    NaN if all of `true` are the same; it is below 0 where their mean would be the better estimate.
    """
    spread = float(((true - true.mean()) ** 2).sum())
    return 1 - float(((true - estimate) ** 2).sum()) / spread if spread > 0 else float("nan")


def relative_bias(true: NDArray[np.float64], estimate: NDArray[np.float64]) -> float:
    """Mean estimate over mean wait, less one: above 0 it errs on the safe side. NaN without any wait."""
    total = float(true.sum())
    return float(estimate.sum()) / total - 1 if total > 0 else float("nan")
