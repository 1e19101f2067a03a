"""Request placement by best fit (section 4.2, Algorithm 1), and the worked example of Figure 3.

The readable form, for tests and small studies: a placement looks at whole workers. The compiled
router of the fast engine does the same from running sums.

`capacity_norm` is "the L2 norm of batch size B and weighted context length". As printed it adds
requests to tokens, so that context decides alone; the scaled norm takes both as shares of what a
worker holds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from baselines.aladdin.constraints import Request, Rules, Worker
from baselines.aladdin.performance import DecodeTime, PrefillTime

Order = Literal["literal", "scaled", "first"]


def capacity_norm(worker: Sequence[Request], rules: Rules, scaled: bool = False) -> float:
    """How full a worker is: sqrt(B^2 + (sum l_in + gamma l_out)^2).

    Args:
        worker: its requests.
        rules: gamma, and what a share is of.
        scaled: batch as a share of the batch limit, context as a share of KV memory.
    """
    batch, context = float(len(worker)), rules.weighted_context(worker)
    if scaled:
        batch /= rules.batch_limit
        context *= rules.kv.per_token / rules.kv_capacity
    return math.hypot(batch, context)


@dataclass(frozen=True)
class Placed:
    """Where requests went.

    Attributes:
        assigned: for each request, the index of its worker; -1: nowhere.
        workers: all workers with what they have now, new ones last.
        opened: new workers.
        misfits: requests that no empty worker could take; each has a worker of its own (Algorithm 1
            opens a bin without asking).
    """

    assigned: tuple[int, ...]
    workers: tuple[Worker, ...]
    opened: int
    misfits: tuple[int, ...]

    @property
    def used(self) -> int:
        """Workers that have requests."""
        return sum(1 for worker in self.workers if worker)


def candidate(
    request: Request, workers: Sequence[Worker], rules: Rules, order: Order = "literal"
) -> int | None:
    """The worker that takes a request (lines 4 to 10 of Algorithm 1); None: none can.

    Args:
        request: a new one, or for a decode instance one that has been prefilled.
        workers: in any order; the first wins a tie.
        rules: limits.
        order: "literal" or "scaled": fullest first by that norm; "first": as they come (first fit).

    Raises:
        ValueError: another order.
    """
    if order not in ("literal", "scaled", "first"):
        raise ValueError(f"order = {order!r}: must be 'literal', 'scaled' or 'first'")
    indices = list(range(len(workers)))
    if order != "first":
        norms = [capacity_norm(worker, rules, order == "scaled") for worker in workers]
        indices.sort(key=lambda i: -norms[i])  # stable
    return next((i for i in indices if rules.takes(workers[i], request)), None)


def best_fit(
    requests: Sequence[Request],
    workers: Sequence[Worker],
    rules: Rules,
    *,
    order: Order = "literal",
    most_workers: int | None = None,
) -> Placed:
    """Algorithm 1 on requests in order of arrival, opening workers as needed.

    Args:
        requests: new ones.
        workers: with what they have.
        rules: limits.
        order: see `candidate`.
        most_workers: no more than so many in all; what then fits nowhere is not placed. None: no
            limit.
    """
    now = [tuple(worker) for worker in workers]
    assigned: list[int] = []
    misfits: list[int] = []
    for j, request in enumerate(requests):
        found = candidate(request, now, rules, order)
        if found is None:
            if most_workers is not None and len(now) >= most_workers:
                assigned.append(-1)
                continue
            found = len(now)
            now.append(())
            if not rules.takes((), request):
                misfits.append(j)
        now[found] = (*now[found], request)
        assigned.append(found)
    return Placed(tuple(assigned), tuple(now), len(now) - len(workers), tuple(misfits))


def shortest_queue(requests: Sequence[Request], workers: Sequence[Worker]) -> Placed:
    """Join the shortest queue: each request to the worker with the fewest, the first on ties.

    Raises:
        ValueError: no workers.
    """
    if not workers:
        raise ValueError("workers: at least one")
    now = [tuple(worker) for worker in workers]
    assigned = []
    for request in requests:
        found = min(range(len(now)), key=lambda i: len(now[i]))
        now[found] = (*now[found], request)
        assigned.append(found)
    return Placed(tuple(assigned), tuple(now), 0, ())


def smallest_peak(requests: Sequence[Request], workers: Sequence[Worker], rules: Rules) -> Placed:
    """The placement whose fullest worker needs the least KV memory at its peak, by trying all.

    Args:
        requests: at most some ten.
        workers: with what they have; their number is fixed.
        rules: how KV is counted.

    Raises:
        ValueError: no workers, or more than a million placements.
    """
    if not workers:
        raise ValueError("workers: at least one")
    if len(workers) ** len(requests) > 10**6:
        raise ValueError(f"{len(requests)} requests on {len(workers)} workers: too many to try all")
    best: tuple[float, tuple[int, ...], list[Worker]] | None = None
    for assigned in itertools.product(range(len(workers)), repeat=len(requests)):
        now = [
            (*worker, *(r for r, i in zip(requests, assigned, strict=True) if i == g))
            for g, worker in enumerate(workers)
        ]
        peak = max(rules.peak_kv(worker) for worker in now)
        if best is None or peak < best[0]:
            best = peak, assigned, now
    assert best is not None
    return Placed(best[1], tuple(best[2]), 0, ())


@dataclass(frozen=True)
class Example:
    """Figure 3.

    Attributes:
        requests: in order of arrival.
        rules: limits: one token takes one unit of KV memory, of which a worker has 9.
        shortest: join the shortest queue on two workers.
        best: the placement with the smallest peak.
        best_fit: what Algorithm 1 does.
    """

    requests: tuple[Request, ...]
    rules: Rules
    shortest: Placed
    best: Placed
    best_fit: Placed

    def peaks(self, placed: Placed) -> tuple[float, ...]:
        """Largest KV demand of each worker."""
        return tuple(self.rules.peak_kv(worker) for worker in placed.workers)


def figure_3() -> Example:
    """The worked example: shortest queue needs 10 of KV memory, the best placement 7 (section 4.2).

    The text gives two workers with KV capacity 9; requests 1 to 4, which arrive one by one but are
    submitted together; two with a long prompt and two with a long output; shortest queue puts those
    with a long prompt on one worker; the peaks 10 and 10, and 7 and 7. It does not give the
    lengths. Let the two of a kind be equal, a (long prompt) with input P and output p, and b (long
    output) with input q and output Q, p < Q. As memory is counted in (e), two a's end with 2 (P +
    p) and two b's with 2 (q + Q), which are 10. One of each has (P + p) + (q + p) when a ends: 5 +
    q + p = 7. So q + p = 2, and in whole tokens q = p = 1, P = Q = 4: the only solution. Shortest
    queue alternates, so arrivals are a, b, a, b.
    """
    long_prompt, long_output = Request(4, 1), Request(1, 4)
    requests = (long_prompt, long_output, long_prompt, long_output)
    rules = Rules(  # memory alone is scarce in this example
        prefill=PrefillTime(1e-9, 0.0),
        decode=DecodeTime(1e-9, 0.0, 0.0),
        kv_capacity=9.0,
        ttft_slo_s=1.0,
        itl_slo_s=1.0,
        count_last_token=True,
    )
    empty: tuple[Worker, ...] = ((), ())
    return Example(
        requests,
        rules,
        shortest=shortest_queue(requests, empty),
        best=smallest_peak(requests, empty, rules),
        best_fit=best_fit(requests, empty, rules, most_workers=2),
    )
