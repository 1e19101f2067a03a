"""Which pool's workers serve, how many there are at the start, and what history says of requests.

A scenario offers one pool for each number of GPUs that a worker can have. Aladdin, and the baselines
with its best worker configuration, use the pool with the best throughput per GPU (Eq. 6); default vLLM
the one with most GPUs. Where phases are split these are the decode pools, and prefill has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from baselines.aladdin.configuration import DegreeRow, RequestTokens, degree_table
from baselines.aladdin.profiling import PROMPT_TOKENS, Profile, profile
from baselines.parameters import PolicyError
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.scenarios.pools import PoolConfig
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.workload.arrivals import Arrivals
from llmscale_env.workload.config import CountArrivals, StreamConfig, TraceArrivals
from llmscale_env.workload.generate import draw_lengths
from llmscale_env.workload.readers import Trace, load_trace

HISTORY = 4000
"""Requests that are known before an episode."""

QUANTILES = 100
"""Prompts of the history that Eq. 2 is fitted to."""

PREFILL_LOAD = 0.6
"""Ours: share of their time that prefill workers of split phases are busy, where their number is chosen."""

Degree = Literal["best", "largest"]


@dataclass(frozen=True)
class Workers:
    """What serves.

    Attributes:
        pool: number of the pool of whole workers, or of decode workers.
        prefill: number of the prefill pool; None: phases are not split.
        others: pools that are switched off.
        rows: Eq. 6 for each degree that there is.
    """

    pool: int
    prefill: int | None
    others: tuple[int, ...]
    rows: tuple[DegreeRow, ...]


def history(scenario: Scenario) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(n,) input and (n,) output tokens of earlier requests: the paper's historical data.

    Drawn from the distributions of the scenario's streams (by rate) with a seed of their own, not from the
    episode; of a replayed trace, rows drawn from all of it (what a service's log tells), none twice.

    Raises:
        PolicyError: there are no streams.
        ValueError, OSError: a trace file that cannot be read.
    """
    parts = scenario.workload.streams
    if not parts:
        raise PolicyError(f"scenario {scenario.name!r}: no streams, so there is no history")
    rates = np.array([s.rate_per_s or 1.0 for s in parts])
    shares = (rates / rates.sum()).tolist()
    traces = [_trace_of(part) for part in parts]
    # A short trace has no 4,000 rows to tell of: repeated, each would be its own history many times.
    total = min(
        [float(HISTORY)]
        + [len(t) / share for t, share in zip(traces, shares, strict=True) if t is not None]
    )
    drawn = []
    for part, trace, share in zip(parts, traces, shares, strict=True):
        n = max(1, round(total * share))
        rng = np.random.default_rng(0)
        nothing = np.zeros(n, np.int64)
        earlier = Arrivals(nothing)
        if trace is not None:
            earlier = Arrivals(nothing, trace, rng.choice(len(trace), n, replace=False))
        drawn.append(draw_lengths(part.lengths, earlier, rng))
    inputs, outputs = (np.concatenate(column) for column in zip(*drawn, strict=True))
    return inputs, outputs


def _trace_of(part: StreamConfig) -> Trace | None:
    """The trace that says how long a stream's requests are."""
    if part.lengths.kind != "trace":
        return None
    source = part.arrivals
    if isinstance(source, TraceArrivals):
        return load_trace(source.path, source.format, source.sort, source.only_llm)
    assert isinstance(source, CountArrivals)
    assert source.trace_path is not None
    return load_trace(source.trace_path, source.trace_format)


def choose(
    scenario: Scenario, policy: str, tokens: RequestTokens, tp: int | None, degree: Degree = "best"
) -> Workers:
    """The pools that a policy uses.

    Args:
        scenario: with one LLM.
        policy: for errors.
        tokens: demand of a request (m_r).
        tp: GPUs of a worker; None: chosen.
        degree: how: Eq. 6, or the largest.

    Raises:
        PolicyError: several LLMs, pools that are no workers, or no pool with that degree.
    """
    if len(scenario.fleet.llms) != 1:
        raise PolicyError(
            f"{policy}: serves one LLM, scenario {scenario.name!r} has {list(scenario.fleet.llms)}"
        )
    numbers = {pool.name: p for p, pool in enumerate(scenario.fleet.pools)}
    routes = [scenario.route_of(scenario.fleet.llms[0], c.name) for c in scenario.classes]
    if any(r.pools != routes[0].pools or r.decode_pools != routes[0].decode_pools for r in routes):
        raise PolicyError(f"{policy}: all classes need routes to the same pools")
    route = routes[0]
    split = bool(route.decode_pools)
    names: Sequence[str] = route.decode_pools if split else route.pools
    if not names:
        raise PolicyError(f"{policy}: scenario {scenario.name!r} routes to no pools")
    itl_s = min(c.itl_s for c in scenario.classes)
    rows = {}
    for name in names:
        pool = scenario.fleet.pools[numbers[name]]
        (rows[name],) = degree_table(
            pool.llm,
            pool.gpu,
            tokens.final,
            itl_s,
            degrees=(pool.tp,),
            model_of=lambda llm, gpu, tp: iteration_time_model(
                llm, gpu, tp, data=scenario.iteration_times
            ),
        )
    if tp is not None:
        some = [name for name in names if rows[name].tp == tp]
        if not some:
            raise PolicyError(
                f"{policy}: tp = {tp}: there are pools with {sorted({r.tp for r in rows.values()})}"
            )
    else:
        some = list(names)
    if degree == "largest":
        chosen = max(some, key=lambda name: rows[name].tp)
    else:
        chosen = max(some, key=lambda name: rows[name].throughput)
    used = {numbers[chosen]}
    prefill = None
    if split:
        prefill = numbers[route.pools[0]]
        used.add(prefill)
    others = tuple(p for p in range(len(numbers)) if p not in used)
    return Workers(numbers[chosen], prefill, others, tuple(rows.values()))


def prefill_number(scenario: Scenario, workers: Workers, given: int | None) -> int:
    """Prefill workers at the start: as given, or as the scenario starts, at least one.

    Where phases are not split there are none.
    """
    if workers.prefill is None:
        return 0
    return given or max(1, scenario.fleet.pools[workers.prefill].initial_instances)


def prefill_gpus(scenario: Scenario, workers: Workers, given: int | None) -> int:
    """GPUs of these prefill workers."""
    if workers.prefill is None:
        return 0
    return scenario.fleet.pools[workers.prefill].tp * prefill_number(scenario, workers, given)


def most_workers(
    scenario: Scenario, workers: Workers, prefill_workers: int | None, policy: str
) -> int:
    """Workers that there are slots and GPUs for (decode workers, where phases are split), at least one.

    Args:
        scenario: the cluster.
        workers: the pools that serve.
        prefill_workers: prefill workers beside them; None: as the scenario starts.
        policy: for errors.

    Raises:
        PolicyError: more prefill workers than there are slots or GPUs for, with one worker beside them, or
            any where phases are not split.
    """
    pools, most_gpus = scenario.fleet.pools, scenario.fleet.max_gpus
    pool = pools[workers.pool]
    if prefill_workers is not None:
        if workers.prefill is None:
            raise PolicyError(
                f"{policy}: prefill_workers = {prefill_workers}: must be left out, since scenario "
                f"{scenario.name!r} does not split phases"
            )
        prefill = pools[workers.prefill]
        most = min((most_gpus - pool.tp) // prefill.tp, prefill.max_instances)
        if prefill_workers > most:
            raise PolicyError(
                f"{policy}: prefill_workers = {prefill_workers}: must be at most {most} of "
                f"{prefill.tp} GPUs each"
            )
    held = prefill_gpus(scenario, workers, prefill_workers)
    most = min((most_gpus - held) // pool.tp, pool.max_instances)
    if most < 1:
        raise PolicyError(
            f"{policy}: scenario {scenario.name!r}: prefill workers hold {held} of max_gpus = "
            f"{most_gpus}: at least {pool.tp} have to be left for a worker"
        )
    return most


def starting_number(
    scenario: Scenario,
    workers: Workers,
    given: int | None,
    prefill_workers: int | None,
    policy: str,
) -> int:
    """Workers at the start (decode workers, where phases are split).

    Args:
        scenario: the cluster.
        workers: the pools that serve.
        given: how many; None: as many as the GPUs that the scenario starts with allow.
        prefill_workers: prefill workers beside them; None: as the scenario starts.
        policy: for errors.

    Raises:
        PolicyError: more than there are slots or GPUs for, or prefill workers as in `most_workers`.
    """
    pools = scenario.fleet.pools
    pool = pools[workers.pool]
    most = most_workers(scenario, workers, prefill_workers, policy)
    if given is not None:
        if given > most:
            held = prefill_gpus(scenario, workers, prefill_workers)
            beside = f" beside {held} GPUs of prefill workers" if held else ""
            raise PolicyError(
                f"{policy}: workers = {given}: must be at most {most} of {pool.tp} GPUs each{beside}"
            )
        return given
    started = sum(pools[p].initial_instances * pools[p].tp for p in (workers.pool, *workers.others))
    return min(max(1, started // pool.tp), most)


def profiled(
    scenario: Scenario, pool: PoolConfig, inputs: NDArray[np.int32] | None = None
) -> Profile:
    """Eq. 2 and 3 of a pool's workers, as profiled before they serve.

    Args:
        scenario: whose iteration times.
        pool: whose workers.
        inputs: (n,) prompts of earlier requests; Eq. 2 is fitted to 100 quantiles of them. None: to the
            grid of `profiling.profile`, most of whose prompts saturate a worker.
    """
    prompts = PROMPT_TOKENS
    if inputs is not None:
        shares = (np.arange(QUANTILES) + 0.5) / QUANTILES
        prompts = tuple(int(n) for n in np.quantile(inputs, shares))
        if prompts[0] == prompts[-1]:  # all alike: a line needs two
            prompts += (2 * prompts[-1],)
    return _profiled(pool.llm, pool.gpu, pool.tp, scenario.iteration_times, prompts)


@lru_cache(maxsize=32)
def _profiled(
    llm: str, gpu: str, tp: int, data: str | None, prompt_tokens: tuple[int, ...]
) -> Profile:
    return profile(iteration_time_model(llm, gpu, tp, data=data), prompt_tokens=prompt_tokens)
