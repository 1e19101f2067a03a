"""How far best fit (Algorithm 1) is from the fewest workers, over generated small cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from baselines.aladdin.constraints import Request, Rules, Worker
from baselines.aladdin.performance import DecodeTime, PrefillTime
from baselines.aladdin.placement import Order, best_fit
from baselines.aladdin.programme import fewest_workers
from baselines.solver import SolverSettings

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
        scarce: "memory", "decode" or "prefill": what was made scarce.
    """

    requests: tuple[Request, ...]
    workers: tuple[Worker, ...]
    rules: Rules
    scarce: str


def generate(seed: int, new: int = 8, ongoing: int = 4) -> Case:
    """A case in which a worker holds two to five requests.

    Inputs and outputs are log-normal with medians of 150 and 250 tokens (about those of single-turn
    ShareGPT); one of memory, decode time and prefill time is scarce.

    Args:
        seed: of its randomness.
        new: requests to be placed.
        ongoing: on workers already.

    Raises:
        ValueError: no new request, or a negative number.
    """
    if new < 1 or ongoing < 0:
        raise ValueError(f"new = {new}, ongoing = {ongoing}: must be at least 1 and 0")
    rng = np.random.default_rng(seed)
    scarce = ("memory", "decode", "prefill")[seed % 3]
    count = new + ongoing
    inputs = np.clip(rng.lognormal(np.log(150), 0.9, count), 8, 900).astype(int)
    outputs = np.clip(rng.lognormal(np.log(250), 0.8, count), 2, 1000).astype(int)
    rules = Rules(
        prefill=PREFILL,
        decode=DECODE,
        kv_capacity=float(rng.integers(2000, 3500)) if scarce == "memory" else 1e6,
        # With gamma 0.5 and theta 0.9 this leaves room for 1,700 to 3,000 tokens of weighted context.
        itl_slo_s=0.018 + float(rng.uniform(9e-4, 1.6e-3)) if scarce == "decode" else 0.1,
        ttft_slo_s=float(rng.uniform(0.12, 0.25)) if scarce == "prefill" else 10.0,
    )
    requests = tuple(Request(int(a), float(b)) for a, b in zip(inputs[:new], outputs, strict=False))
    old = []
    for a, b in zip(inputs[new:], outputs[new:], strict=True):
        emitted = int(rng.integers(1, b)) if b > 1 else 1
        spent = emitted * rules.itl_slo_s * float(rng.uniform(0.3, 0.9))
        old.append(Request(int(a), float(b), emitted, spent))
    workers = best_fit(old, (), rules).workers if old else ()
    return Case(requests, workers, rules, scarce)


def compare(case: Case, settings: SolverSettings | None = None) -> dict[str, Any]:
    """Workers that the optimum and each order of best fit need.

    Args:
        case: the problem.
        settings: of the solver.

    Returns:
        Plain scalars: requests, workers that are there, what is scarce, `optimum` (-1: none was
        proved), and `best_fit` (literal norm), `scaled`, `first_fit`.

    Raises:
        SolverMissing: no PuLP, or no solver for it.
    """
    found = fewest_workers(case.requests, case.workers, case.rules, settings=settings)
    placed = {
        order: best_fit(case.requests, case.workers, case.rules, order=order) for order in ORDERS
    }
    return {
        "scarce": case.scarce,
        "requests": len(case.requests),
        "there": len(case.workers),
        "optimum": found.used if found.optimal else -1,
        "best_fit": placed["literal"].used,
        "scaled": placed["scaled"].used,
        "first_fit": placed["first"].used,
    }


def study(seeds: Sequence[int], new: int = 8, ongoing: int = 4) -> list[dict[str, Any]]:
    """One row of `compare` for each generated case, with its seed.

    Args:
        seeds: one for each case.
        new, ongoing: see `generate`.
    """
    return [{"seed": int(seed)} | compare(generate(seed, new, ongoing)) for seed in seeds]


def summary(rows: Sequence[dict[str, Any]], name: str = "best_fit") -> dict[str, float]:
    """How a heuristic compares with the optimum, over the rows that have one.

    Args:
        rows: of `study`.
        name: the heuristic's column.

    Returns:
        `cases`, `optimal` (share that needs no more workers), `mean_gap` and `worst_gap`
        (additional workers as a share of the optimum).

    Raises:
        ValueError: no row has an optimum.
    """
    some = [row for row in rows if row["optimum"] > 0]
    if not some:
        raise ValueError("rows: none has a proved optimum")
    gap = np.array([row[name] / row["optimum"] - 1 for row in some])
    return {
        "cases": float(len(some)),
        "optimal": float((gap == 0).mean()),
        "mean_gap": float(gap.mean()),
        "worst_gap": float(gap.max()),
    }
