"""What became of an episode's requests: pure functions of what an engine reports.

Every arrival (a request that came before the horizon) ends as exactly one `Outcome`. Shares are of
all arrivals, so that what was never served counts as missed; latencies are of those that have one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmscale_env.sim.compile import ps
from llmscale_env.sim.spec import RequestState
from llmscale_env.workload.config import SLOClass
from llmscale_env.workload.requests import PS_PER_S, RequestTable

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
ItlStatistic = Literal["mean", "max"]

JOINT = "joint"
"""The group of all classes."""

LATENCIES = ("ttft_s", "itl_s", "e2e_s")
PERCENTILES = (50, 90, 99)


class Outcome(IntEnum):
    """How an arrival ended; `NOT_ARRIVED` is the request that comes at the horizon or later."""

    NOT_ARRIVED = -1
    ON_TIME = 0
    LATE = 1
    REJECTED = 2
    UNFINISHED = 3


OUTCOMES = tuple(outcome.name.lower() for outcome in Outcome if outcome >= 0)
"""Names of the outcomes of an arrival, in the order of their numbers."""


class Verdicts(NamedTuple):
    """Requests held against the targets of their classes, each (n,).

    Attributes:
        outcome: int8, an `Outcome`.
        ttft_met: the first token came in time.
        itl_met: finished, with the ITL statistic within its target.
    """

    outcome: NDArray[np.int8]
    ttft_met: Bools
    itl_met: Bools


def judge(
    requests: RequestTable,
    results: NDArray[Any],
    classes: Sequence[SLOClass],
    horizon_ps: int,
    itl_statistic: ItlStatistic = "mean",
    lost: Bools | None = None,
) -> Verdicts:
    """Hold every request against its class's targets.

    On time: finished, TTFT at most its target, and so the ITL statistic. Late: finished otherwise;
    or not finished, and either its first token came late, or its deadline passed without one, or it
    can no longer meet its ITL target (`doomed`). Unfinished: the rest. Comparisons are in whole
    picoseconds, so a latency equal to its target meets it.

    Args:
        requests: (n,) the episode's table.
        results: (n,) RESULT_DTYPE, as read at `horizon_ps`.
        classes: in the order of `requests.class_names`.
        horizon_ps: when the results were read; arrivals from then on have not arrived.
        itl_statistic: which ITL of a request its target holds for: "mean", the time from the first
            token to the last over the tokens after the first (0 for one token), or "max".
        lost: (n,) requests that are late too, if they would be unfinished.

    Raises:
        ValueError: lengths differ, or the results were read at another time than `horizon_ps`.
    """
    _check(requests, results, classes, horizon_ps)
    if itl_statistic not in ("mean", "max"):
        raise ValueError(f"itl_statistic = {itl_statistic!r}: must be 'mean' or 'max'")
    ttft_target = np.array([ps(c.ttft_s) for c in classes], np.int64)[requests.slo_class]
    itl_target = np.array([ps(c.itl_s) for c in classes], np.int64)[requests.slo_class]
    arrived = results["state"] != RequestState.FUTURE
    finished = results["state"] == RequestState.FINISHED
    rejected = results["state"] == RequestState.REJECTED
    first = results["first_token_ps"]
    started = first >= 0
    ttft_met = started & (first - requests.arrival_ps <= ttft_target)
    if itl_statistic == "max":
        within = results["max_itl_ps"] <= itl_target
    else:
        # spent <= target * gaps, without the product, which a generous target would overflow.
        gaps = requests.output_tokens.astype(np.int64) - 1
        spent = results["finished_ps"] - first
        within = (gaps == 0) | ((spent - 1) // np.maximum(gaps, 1) < itl_target)
    itl_met = finished & within
    overdue = horizon_ps - requests.arrival_ps > ttft_target
    late = finished | (started & ~ttft_met) | (~started & overdue)
    late |= ttft_met & doomed(requests, results, classes, horizon_ps, itl_statistic)
    outcome = np.full(len(requests), Outcome.UNFINISHED, np.int8)
    outcome[late if lost is None else late | lost] = Outcome.LATE
    outcome[itl_met & ttft_met] = Outcome.ON_TIME
    outcome[rejected] = Outcome.REJECTED
    outcome[~arrived] = Outcome.NOT_ARRIVED
    return Verdicts(outcome, ttft_met, itl_met)


def doomed(
    requests: RequestTable,
    results: NDArray[Any],
    classes: Sequence[SLOClass],
    horizon_ps: int,
    itl_statistic: ItlStatistic = "mean",
) -> NDArray[np.bool_]:
    """(n,) unfinished requests with a first token that cannot meet their ITL target any more.

    For the mean: more time has passed since the first token than all tokens may take. Leaving such a
    request unfinished at the horizon does not save it from being late.
    """
    itl_target = np.array([ps(c.itl_s) for c in classes], np.int64)[requests.slo_class]
    first = results["first_token_ps"]
    open_ = (first >= 0) & (results["state"] != RequestState.FINISHED)
    if itl_statistic == "max":
        return open_ & (results["max_itl_ps"] > itl_target)
    gaps = np.maximum(requests.output_tokens.astype(np.int64) - 1, 1)
    return open_ & ((horizon_ps - first - 1) // gaps >= itl_target)


def _check(
    requests: RequestTable, results: NDArray[Any], classes: Sequence[SLOClass], horizon_ps: int
) -> None:
    n = len(requests)
    if results.shape != (n,):
        raise ValueError(f"results: expected shape ({n},), got {results.shape}")
    names = tuple(c.name for c in classes)
    if names != requests.class_names:
        raise ValueError(f"classes: {names}, but the requests' are {requests.class_names}")
    future = results["state"] == RequestState.FUTURE
    wrong = future != (requests.arrival_ps >= horizon_ps)
    if wrong.any():
        row = int(np.argmax(wrong))
        state = RequestState(int(results["state"][row])).name
        raise ValueError(
            f"horizon_ps = {horizon_ps}: request {row} arrives at {requests.arrival_ps[row]} and "
            f"is {state}; results must be read at the horizon"
        )


def latencies(requests: RequestTable, results: NDArray[Any]) -> dict[str, Floats]:
    """Seconds per request, each (n,), NaN where there is none yet.

    Returns:
        `queued_s` (arrival to first admission), `ttft_s`, `itl_mean_s` and `e2e_s` (of finished
        requests), `itl_max_s` (of those with two tokens). Both ITLs are 0 for a finished request
        of one token.
    """
    arrival, first, last = requests.arrival_ps, results["first_token_ps"], results["finished_ps"]
    finished = last >= 0
    one_token = finished & (requests.output_tokens == 1)
    gaps = np.maximum(requests.output_tokens.astype(np.int64) - 1, 1)
    return {
        "queued_s": _seconds(results["admitted_ps"] - arrival, results["admitted_ps"] >= 0),
        "ttft_s": _seconds(first - arrival, first >= 0),
        "itl_mean_s": _seconds((last - first) / gaps, finished),
        "itl_max_s": _seconds(
            np.where(one_token, 0, results["max_itl_ps"]), one_token | (results["max_itl_ps"] >= 0)
        ),
        "e2e_s": _seconds(last - arrival, finished),
    }


def _seconds(time_ps: NDArray[Any], there: Bools) -> Floats:
    return np.where(there, time_ps / PS_PER_S, np.nan)


class RequestColumns(NamedTuple):
    """What is kept of every arrival, each (n,); the metrics of any group of them follow from it.

    Attributes:
        arrival_s: float32, which is no more than 0.04 s off within a week.
        llm, slo_class, region: int8 indices.
        instance: int32, the last one that admitted it, -1: none did.
        outcome: int8, an `Outcome`; `ttft_met`, `itl_met`: as in `Verdicts`; `finished`.
        ttft_s: to the first token; `itl_s`: the statistic that the target holds for, of those finished
            with two tokens or more; `e2e_s`: of those finished. NaN where there is none.
        output_tokens, emitted_tokens: int32.
        preemptions, evictions: int32.
        cached_tokens: int32, of the prompt, found in a prefix cache at the first admission.
    """

    arrival_s: NDArray[np.float32]
    llm: NDArray[np.int8]
    slo_class: NDArray[np.int8]
    region: NDArray[np.int8]
    instance: NDArray[np.int32]
    outcome: NDArray[np.int8]
    ttft_met: Bools
    itl_met: Bools
    finished: Bools
    ttft_s: NDArray[Any]
    itl_s: NDArray[Any]
    e2e_s: NDArray[Any]
    output_tokens: NDArray[np.int32]
    emitted_tokens: NDArray[np.int32]
    preemptions: NDArray[np.int32]
    evictions: NDArray[np.int32]
    cached_tokens: NDArray[np.int32]


def request_columns(
    requests: RequestTable,
    results: NDArray[Any],
    classes: Sequence[SLOClass],
    horizon_ps: int,
    itl_statistic: ItlStatistic = "mean",
    precision: type = np.float64,
    lost: Bools | None = None,
) -> RequestColumns:
    """Of those that have arrived; `precision`: of the latencies. The other arguments are those of `judge`."""
    verdicts = judge(requests, results, classes, horizon_ps, itl_statistic, lost)
    came = verdicts.outcome != Outcome.NOT_ARRIVED
    measured = latencies(requests, results)
    finished = results["state"] == RequestState.FINISHED
    # One token has no gap to measure, and 0 s would flatter the others.
    several = finished & (requests.output_tokens > 1)
    itl_s = np.where(several, measured[f"itl_{itl_statistic}_s"], np.nan)
    return RequestColumns(
        arrival_s=requests.arrival_s[came].astype(np.float32),
        llm=requests.llm[came].astype(np.int8),
        slo_class=requests.slo_class[came].astype(np.int8),
        region=requests.region[came].astype(np.int8),
        instance=results["instance"][came],
        outcome=verdicts.outcome[came],
        ttft_met=verdicts.ttft_met[came],
        itl_met=verdicts.itl_met[came],
        finished=finished[came],
        ttft_s=measured["ttft_s"][came].astype(precision),
        itl_s=itl_s[came].astype(precision),
        e2e_s=measured["e2e_s"][came].astype(precision),
        output_tokens=requests.output_tokens[came],
        emitted_tokens=results["emitted_tokens"][came],
        preemptions=results["preemptions"][came],
        evictions=results["evictions"][came],
        cached_tokens=results["cached_tokens"][came],
    )


def summarise_columns(
    columns: RequestColumns,
    classes: Sequence[SLOClass],
    llm_names: Sequence[str],
    horizon_s: float,
    *,
    instance_s: ArrayLike | None = None,
    groups: Mapping[str, Sequence[int]] | None = None,
    decided: bool = False,
    cached: bool = False,
) -> dict[str, float]:
    """Metrics of an episode's requests, by group: keys are `GROUP/METRIC`.

    Groups are each class by its name, and "joint" for all of them. With several LLMs there are also
    `LLM/CLASS` and `LLM/joint` for each. The metrics of a group:

    * `arrivals`, and of these `on_time`, `late`, `rejected`, `unfinished` (they add up to it);
    * `slo_attainment`, `ttft_attainment`, `itl_attainment`: shares of arrivals that were on time,
      met the TTFT target, finished within the ITL target; `weighted_slo_attainment`: on-time
      arrivals over arrivals, each counted with its class's weight. 1 where nothing arrived;
    * `ttft_s_*`, `itl_s_*`, `e2e_s_*` with `mean`, `p50`, `p90`, `p99`, `max`: of the requests that
      have a first token; that finished with two tokens or more (the statistic that the target
      holds for); that finished. **NaN where there is no such request**, and nowhere else;
    * `goodput_requests_per_s`, `goodput_tokens_per_s`: requests that were on time, and their output
      tokens, over the horizon; `throughput_requests_per_s`: finished ones; and
      `throughput_tokens_per_s`: all tokens emitted;
    * `throughput_requests_per_instance_s`, `throughput_tokens_per_instance_s`: finished requests and
      emitted tokens over `instance_s` (0 if that is 0; only if it is given). The instances of an
      LLM serve all its classes, and each class's part is over all of them;
    * `preemptions`, `evictions`: how often the group's requests were;
    * `cached_tokens_mean`: prompt tokens found in a prefix cache at the first admission, of requests that
      have been admitted (0 without any); only if `cached`.

    Args:
        columns: of the arrivals.
        classes, llm_names: that their numbers mean.
        horizon_s: length of the episode.
        instance_s: (n_llms,) instance-seconds in service, by LLM.
        groups: further groups of classes by name, with the numbers of their classes.
        decided: unfinished requests count in no share.
        cached: there are prefix caches.

    Raises:
        ValueError: a class called "joint" or with a "/" in its name; `instance_s` not of the shape
            stated, or negative.
    """
    _check_names(classes)
    served = _instance_seconds(instance_s, len(llm_names))
    several = len(llm_names) > 1  # the only LLM's groups would repeat the others
    everybody = np.ones(len(columns.llm), bool)
    summary: dict[str, float] = {}
    for m, prefix in [(None, ""), *((m, f"{n}/") for m, n in enumerate(llm_names) if several)]:
        mine = everybody if m is None else columns.llm == m
        time_s = None if served is None else float(served.sum() if m is None else served[m])
        found_in = {c.name: mine & (columns.slo_class == k) for k, c in enumerate(classes)}
        for name, members in (groups or {}).items():
            found_in[name] = mine & np.isin(columns.slo_class, members)
        for name, group in (found_in | {JOINT: mine}).items():
            found = _group(columns, group, classes, horizon_s, time_s, decided)
            if cached:
                each = columns.cached_tokens[group & (columns.instance >= 0)]
                found["cached_tokens_mean"] = rate(each.sum(dtype=np.int64), len(each))
            summary |= {f"{prefix}{name}/{key}": float(x) for key, x in found.items()}
    return summary


def _check_names(classes: Sequence[SLOClass]) -> None:
    for c in classes:
        if c.name == JOINT or "/" in c.name:
            raise ValueError(f"classes: the name {c.name!r} is taken for keys of the summary")


def _instance_seconds(instance_s: ArrayLike | None, n_llms: int) -> Floats | None:
    if instance_s is None:
        return None
    served = np.asarray(instance_s, dtype=np.float64)
    if served.shape != (n_llms,) or not (served >= 0).all():
        raise ValueError(f"instance_s = {instance_s!r}: must be {n_llms} numbers of at least 0")
    return served


def _group(
    columns: RequestColumns,
    group: Bools,
    classes: Sequence[SLOClass],
    horizon_s: float,
    instance_s: float | None,
    decided: bool = False,
) -> dict[str, float]:
    """Metrics of a group of arrivals; one column of it at a time, as there may be millions."""
    n = int(group.sum())
    outcome = columns.outcome[group]
    counts = np.bincount(outcome, minlength=len(OUTCOMES)).tolist()
    if sum(counts) != n:
        raise RuntimeError(f"{n} arrivals, but outcomes {counts}: one was lost")
    on_time = outcome == Outcome.ON_TIME
    weight = np.array([c.weight for c in classes])[columns.slo_class[group]]
    found: dict[str, float] = {"arrivals": n, **dict(zip(OUTCOMES, counts, strict=True))}
    counted = np.full(len(outcome), True) if not decided else outcome != Outcome.UNFINISHED
    whole = int(counted.sum())
    found["slo_attainment"] = _share(counts[Outcome.ON_TIME], whole)
    found["ttft_attainment"] = _share(int((columns.ttft_met[group] & counted).sum()), whole)
    found["itl_attainment"] = _share(int((columns.itl_met[group] & counted).sum()), whole)
    # Weights added in another order differ in the last bit.
    weighted = _share(float(weight[on_time].sum()), float(weight[counted].sum()))
    del weight
    found["weighted_slo_attainment"] = min(weighted, 1.0)
    for name in LATENCIES:
        found |= _distribution(name, getattr(columns, name)[group])
    finished = int(columns.finished[group].sum())
    emitted = int(columns.emitted_tokens[group].sum(dtype=np.int64))
    good_tokens = int(columns.output_tokens[group][on_time].sum(dtype=np.int64))
    found["goodput_requests_per_s"] = rate(counts[Outcome.ON_TIME], horizon_s)
    found["goodput_tokens_per_s"] = rate(good_tokens, horizon_s)
    found["throughput_requests_per_s"] = rate(finished, horizon_s)
    found["throughput_tokens_per_s"] = rate(emitted, horizon_s)
    if instance_s is not None:
        found["throughput_requests_per_instance_s"] = rate(finished, instance_s)
        found["throughput_tokens_per_instance_s"] = rate(emitted, instance_s)
    for name in ("preemptions", "evictions"):
        found[name] = int(getattr(columns, name)[group].sum(dtype=np.int64))
    return found


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 1.0


def rate(amount: float, time_s: float) -> float:
    """So much per second; 0 within no time."""
    return float(amount / time_s) if time_s > 0 else 0.0


def _distribution(name: str, column: Floats) -> dict[str, float]:
    values = column[~np.isnan(column)]
    del column
    if len(values) == 0:
        found = [np.nan] * (2 + len(PERCENTILES))
    else:
        found = [values.mean(dtype=np.float64), *np.percentile(values, PERCENTILES), values.max()]
    return dict(zip(distribution_keys(name), found, strict=True))


def distribution_keys(name: str) -> list[str]:
    """Keys of the statistics of a latency, such as "ttft_s_p99"."""
    return [f"{name}_{s}" for s in ("mean", *(f"p{q}" for q in PERCENTILES), "max")]


def leftover_gpu_seconds(
    requests: RequestTable,
    results: NDArray[Any],
    prefill_gpu_s_per_token: ArrayLike,
    decode_gpu_s_per_token: ArrayLike,
) -> Floats:
    """GPU-seconds that the work left over at truncation would still take, by LLM (n_llms,).

    Every arrival that is neither finished nor rejected is charged the output tokens it still lacks
    and, unless it is running with a first token, the prefill of its prompt and of what it has
    emitted; that prefill yields one of the tokens. A KV cache saved in host memory is not credited:
    leaving work is never to be cheaper than doing it.

    Args:
        requests, results: (n,) as for `judge`.
        prefill_gpu_s_per_token, decode_gpu_s_per_token: (n_llms,) GPU-seconds per token.

    Raises:
        ValueError: a cost is negative or not finite, or shapes differ.
    """
    n_llms = len(requests.llm_names)
    costs = []
    for name, cost in (("prefill", prefill_gpu_s_per_token), ("decode", decode_gpu_s_per_token)):
        array = np.asarray(cost, dtype=np.float64)
        if array.shape != (n_llms,) or not ((array >= 0) & (array < np.inf)).all():
            raise ValueError(
                f"{name}_gpu_s_per_token = {cost!r}: must be {n_llms} numbers of at least 0"
            )
        costs.append(array)
    prefill, decode = leftover_tokens(requests, results)
    each = prefill * costs[0][requests.llm] + decode * costs[1][requests.llm]
    return np.bincount(requests.llm, weights=each, minlength=n_llms).astype(np.float64)


def leftover_tokens(
    requests: RequestTable, results: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(n,) tokens still to be prefilled, (n,) to be decoded: see `leftover_gpu_seconds`."""
    state = results["state"]
    over = (RequestState.FUTURE, RequestState.FINISHED, RequestState.REJECTED)
    left = ~np.isin(state, [int(s) for s in over])
    emitted = results["emitted_tokens"].astype(np.int64)
    decodes = (state == RequestState.RUNNING) & (emitted > 0)
    prefills = left & ~(decodes | (state == RequestState.HANDOVER))
    prefill = np.where(prefills, requests.input_tokens + emitted, 0)
    decode = np.where(left, requests.output_tokens - emitted - prefills, 0)
    return prefill, decode
