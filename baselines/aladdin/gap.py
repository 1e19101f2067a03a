"""How far Algorithms 1 and 2 are from what the programmes find, over generated small cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.random import Generator

from baselines.aladdin.constraints import Request, Rules, Worker
from baselines.aladdin.performance import DecodeTime, PrefillTime
from baselines.aladdin.placement import Order, best_fit, shortest_queue
from baselines.aladdin.programme import fewest_workers
from baselines.aladdin.rebalance import NewRequest, PredictionErrors, exact, greedy
from baselines.solver import SolverSettings

Scarce = Literal["memory", "decode", "prefill"]
Kind = Literal["chat", "triplets", "gaps"]
SCARCE: tuple[Scarce, ...] = ("memory", "decode", "prefill")
ORDERS: tuple[Order, ...] = ("literal", "scaled", "first")

# Llama-2-13b on one A100, rounded (`profiling.profile`).
PREFILL = PrefillTime(per_token_s=1.2e-4, const_s=7e-3)
DECODE = DecodeTime(per_token_s=5e-7, per_request_s=3e-5, const_s=0.018)


@dataclass(frozen=True)
class Case:
    """One small placement problem.

    Attributes:
        requests: new ones, in order of arrival.
        workers: with ongoing requests.
        rules: limits.
        scarce: what was made scarce.
    """

    requests: tuple[Request, ...]
    workers: tuple[Worker, ...]
    rules: Rules
    scarce: Scarce


def generate(
    seed: int, new: int = 8, ongoing: int = 4, *, scarce: Scarce | None = None, kind: Kind = "chat"
) -> Case:
    """A case in which a worker holds two to five requests.

    "chat": inputs and outputs are log-normal with medians of 150 and 250 tokens (about those of
    single-turn ShareGPT). Twice as many ongoing requests as asked for are packed by best fit, and half
    of them are gone by now, so that workers differ in what they have left.

    "triplets": requests that come in groups of three, shuffled, each of which fills a worker exactly
    (the hard class of bin packing of Falkenauer, Journal of Heuristics 2, 1996): a worker that gets
    another pair leaves something unused. There are no ongoing ones.

    "gaps": every worker has an ongoing request and room for one more of some length, and the new
    requests, shuffled, are as long as these gaps: a request that takes a larger gap than its own
    leaves its own to nobody. Where prefill is scarce the gap is the time that the ongoing request
    has saved, of which the load of a worker says nothing.

    Args:
        seed: of its randomness.
        new: requests to be placed; of triplets a multiple of three.
        ongoing: on workers already; none of triplets, of gaps as many as are new.
        scarce: None: by the seed.
        kind: see above.

    Raises:
        ValueError: no new request, a negative number, or numbers that a kind does not have.
    """
    if new < 1 or ongoing < 0:
        raise ValueError(f"new = {new}, ongoing = {ongoing}: must be at least 1 and 0")
    if kind == "triplets" and (new % 3 or ongoing):
        raise ValueError(f"new = {new}, ongoing = {ongoing}: triplets need a multiple of 3 and 0")
    if kind == "gaps" and new != ongoing:
        raise ValueError(f"new = {new}, ongoing = {ongoing}: gaps need as many of either")
    rng = np.random.default_rng(seed)
    scarce = scarce or SCARCE[seed % 3]
    rules = Rules(
        prefill=PREFILL,
        decode=DECODE,
        kv_capacity=float(rng.integers(1900, 2600)) if scarce == "memory" else 1e6,
        # With gamma 0.5 and theta 0.9 this leaves room for 1,700 to 3,000 tokens of weighted context.
        itl_slo_s=0.018 + float(rng.uniform(9e-4, 1.6e-3)) if scarce == "decode" else 0.1,
        ttft_slo_s=float(rng.uniform(0.12, 0.25)) if scarce == "prefill" else 10.0,
    )
    if kind == "triplets":
        return Case(_triplets(new // 3, rules, scarce, rng), (), rules, scarce)
    if kind == "gaps":
        return Case(*_gaps(new, rules, scarce, rng), rules, scarce)
    count = new + 2 * ongoing
    inputs = np.clip(rng.lognormal(np.log(150), 0.9, count), 8, 900).astype(int)
    outputs = np.clip(rng.lognormal(np.log(250), 0.8, count), 2, 1000).astype(int)
    requests = tuple(Request(int(a), float(b)) for a, b in zip(inputs[:new], outputs, strict=False))
    old = []
    for a, b in zip(inputs[new:], outputs[new:], strict=True):
        emitted = int(rng.integers(1, b)) if b > 1 else 1
        spent = (emitted - 1) * rules.itl_slo_s * float(rng.uniform(0.3, 0.9))
        old.append(Request(int(a), float(b), emitted, spent))
    stays = set(rng.permutation(2 * ongoing)[:ongoing].tolist())
    packed = best_fit(old, (), rules) if old else None
    workers: list[Worker] = []
    for i in range(len(packed.workers) if packed else 0):
        mine = [j for j, where in enumerate(packed.assigned if packed else ()) if where == i]
        workers.append(tuple(old[j] for j in mine if j in stays))
    return Case(requests, tuple(worker for worker in workers if worker), rules, scarce)


def _triplets(bins: int, rules: Rules, scarce: Scarce, rng: Generator) -> tuple[Request, ...]:
    """Three requests to each worker's limit; outputs are as short as they can be, so inputs fill it."""
    output = 1 if scarce != "decode" else 2
    limit = {
        "memory": rules.kv_capacity,
        "decode": rules.context_limit(3) - 3 * rules.gamma * output,
        "prefill": rules.prefill.most_tokens(rules.ttft_slo_s),
    }[scarce]
    whole = int(limit * (1 + 1e-9))
    requests = []
    for _ in range(bins):
        # One of 38 to 49 %, and two that share the rest: none fits with two others by chance for long.
        first = int(whole * rng.uniform(0.38, 0.49))
        second = int((whole - first) * rng.uniform(0.4, 0.6))
        sizes = (first, second, whole - first - second)
        requests += [Request(size, float(output)) for size in sizes]
    return tuple(requests[k] for k in rng.permutation(len(requests)))


def _gaps(
    workers: int, rules: Rules, scarce: Scarce, rng: Generator
) -> tuple[tuple[Request, ...], tuple[Worker, ...]]:
    """Workers with one ongoing request each, and the requests that fill what they have left."""
    sizes = rng.integers(100, 900, workers)
    there: list[Worker] = []
    for size in sizes.tolist():
        # With ten tokens emitted in no time, an ongoing request can wait for any of these prefills.
        emitted, prompt, spent = 10, int(rng.integers(100, 900)), 0.0
        if scarce == "memory":  # the prompt and ten tokens are held while the other is prefilled
            prompt = int(rules.kv_capacity) - size - emitted
        elif scarce == "decode":  # outputs of eleven tokens and of one weigh gamma each
            prompt = int(rules.context_limit(2) - 12 * rules.gamma) - size
        else:
            spent = (emitted - 1) * rules.itl_slo_s - rules.prefill.seconds(size) / rules.theta
        there.append((Request(prompt, float(emitted + 1), emitted, spent),))
    requests = tuple(Request(int(sizes[k]), 1.0) for k in rng.permutation(workers))
    return requests, tuple(there)


def fewest_by_shortest_queue(case: Case) -> int:
    """The fewest workers on which the shortest queue breaks no constraint.

    The rule does not look at limits, so somebody has to give it enough workers: of those that are
    there and so many empty ones, all are counted, since all get requests while queues are shorter there.

    Raises:
        ValueError: not even a worker for each new request would do.
    """
    for empty in range(len(case.requests) + 1):
        workers = (*case.workers, *(((),) * empty))
        if not workers:
            continue
        placed = shortest_queue(case.requests, workers)
        touched = set(placed.assigned)
        if not any(case.rules.broken(placed.workers[i]) for i in touched):
            return placed.used
    raise ValueError("requests: one of them fits on no worker")


def compare(case: Case, settings: SolverSettings | None = None) -> dict[str, Any]:
    """Workers that the optimum and each placement need.

    Args:
        case: the problem.
        settings: of the solver.

    Returns:
        Plain scalars: requests, workers that are there, what is scarce, `optimum` (-1: none was
        proved within the solver's limits), and `best_fit` (literal norm), `scaled`, `first_fit`,
        `shortest` (-1: none keeps the limits).

    Raises:
        SolverMissing: no PuLP, or no solver for it.
    """
    found = fewest_workers(case.requests, case.workers, case.rules, settings=settings)
    placed = {
        order: best_fit(case.requests, case.workers, case.rules, order=order) for order in ORDERS
    }
    try:
        shortest = fewest_by_shortest_queue(case)
    except ValueError:
        shortest = -1
    return {
        "scarce": case.scarce,
        "requests": len(case.requests),
        "there": len(case.workers),
        "optimum": found.used if found.optimal else -1,
        "best_fit": placed["literal"].used,
        "scaled": placed["scaled"].used,
        "first_fit": placed["first"].used,
        "shortest": shortest,
    }


def summary(rows: Sequence[Mapping[str, Any]], name: str = "best_fit") -> dict[str, float]:
    """How a placement compares with the optimum, over the rows where both have an answer.

    Args:
        rows: of `compare`.
        name: the placement's column.

    Returns:
        `cases`, `optimal` (share that needs no more workers), `mean_workers` and `worst_workers`
        (additional workers), `mean_gap` and `worst_gap` (as a share of the optimum).

    Raises:
        ValueError: no row has both.
    """
    some = [row for row in rows if row["optimum"] > 0 and row[name] > 0]
    if not some:
        raise ValueError("rows: none has a proved optimum")
    more = np.array([row[name] - row["optimum"] for row in some], float)
    gap = more / np.array([row["optimum"] for row in some])
    return {
        "cases": float(len(some)),
        "optimal": float((more == 0).mean()),
        "mean_workers": float(more.mean()),
        "worst_workers": float(more.max()),
        "mean_gap": float(gap.mean()),
        "worst_gap": float(gap.max()),
    }


# ---- Algorithm 2 ----


def compare_moves(
    seed: int, workers: int = 3, new: int = 6, settings: SolverSettings | None = None
) -> dict[str, Any]:
    """What Algorithm 2's moves leave of generated errors, by the greedy search and by the programme.

    Errors are of up to 400 tokens and 3 requests of either sign, those of a worker alike; models differ
    up to fourfold; new requests of 5 to 300 predicted tokens wait anywhere.

    Args:
        seed: of its randomness.
        workers, new: how many.
        settings: of the solver.

    Returns:
        Plain scalars: sum of distances `before`, and left by `greedy` and `exact` (-1: none was proved
        within the solver's limits); `greedy_moved`, `exact_moved`.

    Raises:
        SolverMissing: no PuLP, or no solver for it.
    """
    rng = np.random.default_rng(seed)
    decode = [
        DecodeTime(5e-7 * rng.uniform(0.5, 2), 3e-5 * rng.uniform(0.5, 2), 0.018)
        for _ in range(workers)
    ]
    errors = []
    for _ in range(workers):
        sign = float(rng.choice([-1, 1]))
        errors.append(
            PredictionErrors(sign * float(rng.integers(0, 401)), sign * float(rng.integers(0, 4)))
        )
    requests = [
        NewRequest(int(rng.integers(workers)), float(rng.integers(5, 300))) for _ in range(new)
    ]
    near, best = greedy(errors, decode, requests), exact(errors, decode, requests, settings)
    return {
        "before": near.before,
        "greedy": near.after,
        "exact": best.after if best.proved else -1.0,
        "greedy_moved": near.moved,
        "exact_moved": best.moved,
    }
