"""Requests at one moment of a steady state, and on which workers they are, without a simulation."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from baselines.aladdin.constraints import Request, Rules, Worker
from baselines.aladdin.placement import best_fit
from baselines.aladdin.prediction import ConditionalMean
from experiments.aladdin.setting import MAX_OUTPUT, lengths

HISTORY = 20_000
"""Requests that the predictor has seen; they are drawn from a seed of their own."""


@lru_cache(maxsize=8)
def predictor(table: str) -> ConditionalMean:
    """Aladdin's, with a long history of these lengths."""
    found = ConditionalMean(prior_requests=0)
    found.observe(*lengths(table, HISTORY, np.random.default_rng(0)))
    return found


def arriving(table: str, n: int, rng: np.random.Generator) -> list[Request]:
    """`n` new requests with predicted outputs."""
    inputs, _ = lengths(table, n, rng)
    predicted = predictor(table).predict(np.arange(n), inputs)
    return [Request(int(i), float(p)) for i, p in zip(inputs, predicted, strict=True)]


def ongoing(table: str, rate_per_s: float, itl_s: float, rng: np.random.Generator) -> list[Request]:
    """Requests that decode at one moment, the oldest first, if every token takes `itl_s`.

    Poisson arrivals up to now, of which those are left whose output has not ended; a request that has
    outlived its prediction is predicted again.

    Args:
        table: of lengths.
        rate_per_s: arrivals.
        itl_s: inter-token latency of all.
        rng: of arrivals and lengths.
    """
    window_s = MAX_OUTPUT * itl_s
    n = int(rng.poisson(rate_per_s * window_s))
    inputs, outputs = lengths(table, n, rng)
    emitted = 1 + np.floor(np.sort(rng.random(n))[::-1] * MAX_OUTPUT).astype(int)
    left = emitted < outputs
    inputs, emitted = inputs[left], emitted[left]
    ids = np.arange(len(inputs))
    predicted = predictor(table).predict(ids, inputs)
    again = emitted >= predicted
    predicted[again] = predictor(table).repredict(ids[again], inputs[again], emitted[again])
    return [
        Request(int(i), float(p), int(e), float(e * itl_s))
        for i, p, e in zip(inputs, predicted, emitted, strict=True)
    ]


def fleet(
    table: str,
    rate_per_s: float,
    rules: Rules,
    pace: float,
    room: float,
    rng: np.random.Generator,
) -> tuple[Worker, ...]:
    """Workers with their ongoing requests: packed by best fit at a higher rate, of which some have left.

    Args:
        table: of lengths.
        rate_per_s: arrivals.
        rules: limits of a worker.
        pace: inter-token latency as a share of the SLO.
        room: share of the requests that have left since they were packed.
        rng: of all that is drawn.
    """
    packed = ongoing(table, rate_per_s / (1 - room), pace * rules.itl_slo_s, rng)
    workers = best_fit(packed, (), rules).workers
    return tuple(tuple(r for r in worker if rng.random() >= room) for worker in workers)
