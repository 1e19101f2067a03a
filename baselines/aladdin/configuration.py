"""Worker configuration (section 4.1): the tensor-parallel degree with the best throughput per GPU.

Eq. 6, T_max = min{ M / (N m_r (t_compute + t_comm)), B / (N T_dec) }: the first is the throughput
with KV memory full, at the batch M / m_r, the second that with an iteration as long as the decode
SLO allows, at the batch B. The iteration times are this project's calibrated ones, which include
the all-reduces of the degree.

Choices of ours:

- m_r, "the average per request KV cache demand": input and output of a request, as it is at its end
  (`RequestTokens.final`), or what a batch holds of a request on average over time (`held`).
- Batches are whole requests.
- Eq. 5's computing time k4 / N + c4 and a communication time proportional to (N - 1) / N cannot be
  told apart by iteration times: k4 / N + c4 + k6 (N - 1) / N = (k4 - k6) / N + (c4 + k6).
  `fit_degrees` therefore either takes k6 as given or fits the two sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from baselines.aladdin.performance import fit_line
from llmscale_env.cluster.cards import gpu_card
from llmscale_env.cluster.iteration_model import IterationTimeModel
from llmscale_env.cluster.iteration_time import all_reduce_s_per_token, iteration_time_model
from llmscale_env.cluster.kv import DoesNotFitError

LARGEST_BATCH = 4096


@dataclass(frozen=True)
class RequestTokens:
    """KV demand of an average request, learnt from the history (m_r in tokens).

    Attributes:
        final: mean of input and output: demand at the end.
        held: mean over the time that requests decode, in which long outputs weigh more:
            E[in out + out^2 / 2] / E[out].
    """

    final: float
    held: float

    @classmethod
    def of(cls, input_tokens: ArrayLike, output_tokens: ArrayLike) -> RequestTokens:
        """Of requests that have finished.

        Args:
            input_tokens, output_tokens: (n,).

        Raises:
            ValueError: no requests, unequal lengths, or a length that is not positive.
        """
        a, b = (np.asarray(x, np.float64).reshape(-1) for x in (input_tokens, output_tokens))
        if len(a) == 0 or len(a) != len(b):
            raise ValueError(
                f"{len(a)} inputs, {len(b)} outputs: needs one of each per request, and a request"
            )
        if not ((a > 0) & (b > 0) & np.isfinite(a) & np.isfinite(b)).all():
            raise ValueError("input_tokens and output_tokens must be positive and finite")
        return cls(float((a + b).mean()), float((a * b + b * b / 2).mean() / b.mean()))


@dataclass(frozen=True)
class DegreeTime:
    """Eq. 5 with communication: iteration time as a function of the degree.

    Attributes:
        divided_s: k4, less k6 where communication was not given.
        const_s: c4, plus k6 where communication was not given.
        communication_s: k6, times (N - 1) / N.
    """

    divided_s: float
    const_s: float
    communication_s: float = 0.0

    def seconds(self, tp: int) -> float:
        """t_compute + t_comm at a degree."""
        return self.divided_s / tp + self.const_s + self.communication_s * (tp - 1) / tp


def fit_degrees(degrees: ArrayLike, seconds: ArrayLike, communication_s: float = 0.0) -> DegreeTime:
    """Eq. 5 from iteration times of one batch at several degrees.

    Args:
        degrees: (n,) at least three (a fit through two has nothing to check it).
        seconds: (n,).
        communication_s: k6, measured otherwise; 0: left in the other two.

    Raises:
        ValueError: too few samples, or values that are not finite.
    """
    n = np.asarray(degrees, np.float64)
    y = np.asarray(seconds, np.float64) - communication_s * (n - 1) / n
    fit = fit_line({"divided_s": 1 / n, "const_s": np.ones(len(n))}, y)
    return DegreeTime(float(fit.coefficients[0]), float(fit.coefficients[1]), communication_s)


@dataclass(frozen=True)
class DegreeRow:
    """One line of the table over degrees.

    Attributes:
        tp: GPUs per worker (N).
        throughput: tokens/s per GPU (Eq. 6); 0 if the degree is out.
        reason: "best", or why not.
        bottleneck: "kv", "slo", or "" if the degree is out.
        kv_capacity_tokens: of one worker (M); 0 if the LLM does not fit.
        kv_batch: requests that fill it (M / m_r).
        kv_iteration_s: iteration time of that batch (t_compute + t_comm).
        kv_throughput: tokens/s per GPU with memory full.
        slo_batch: B, the largest batch whose iteration keeps the SLO.
        slo_throughput: tokens/s per GPU at B.
        single_s: iteration time of one request alone.
        kind: where the times come from (`IterationTimeModel.kind`).
    """

    tp: int
    throughput: float
    reason: str
    bottleneck: str = ""
    kv_capacity_tokens: int = 0
    kv_batch: int = 0
    kv_iteration_s: float = math.nan
    kv_throughput: float = 0.0
    slo_batch: int = 0
    slo_throughput: float = 0.0
    single_s: float = math.nan
    kind: str = ""


def degree_table(
    llm: str,
    gpu: str,
    request_tokens: float,
    itl_slo_s: float,
    *,
    degrees: Sequence[int] = (1, 2, 4),
    link_bytes_per_s: float | None = None,
    model_of: Callable[..., IterationTimeModel] = iteration_time_model,
    kind_of: dict[int, str] | None = None,
) -> tuple[DegreeRow, ...]:
    """Throughput per GPU of each degree (Eq. 6).

    Args:
        llm, gpu: names of cards.
        request_tokens: m_r, tokens of KV that a request takes on average, which is also the mean
            context.
        itl_slo_s: T_dec, mean inter-token latency (ATGT) that is promised.
        degrees: that are tried; the paper's machines have 4 GPUs.
        link_bytes_per_s: between the GPUs of a worker, one direction, for machines without the
            card's own link (the paper's A100s have PCIe only); None: the card's.
        model_of: called as `model_of(llm, gpu, tp)`, or with a kind besides.
        kind_of: degree to kind of iteration times, where not the best one is wanted.

    Returns:
        One row for each degree, in their order.

    Raises:
        ValueError: a number out of range, or no degrees.
    """
    for name, value in (("request_tokens", request_tokens), ("itl_slo_s", itl_slo_s)):
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} = {value}: must be positive and finite")
    if link_bytes_per_s is not None and not link_bytes_per_s > 0:
        raise ValueError(f"link_bytes_per_s = {link_bytes_per_s}: must be positive")
    if not degrees:
        raise ValueError("degrees: at least one")
    rows = []
    for tp in degrees:
        kind = (kind_of or {}).get(tp)
        model = model_of(llm, gpu, tp) if kind is None else model_of(llm, gpu, tp, kind)
        extra = 0.0
        if link_bytes_per_s is not None:
            extra = all_reduce_s_per_token(llm, gpu, tp, link_bytes_per_s)
            extra -= all_reduce_s_per_token(llm, gpu, tp, gpu_card(gpu).nvlink_bytes_per_s)
        rows.append(_row(model, tp, request_tokens, itl_slo_s, extra))
    best = max(rows, key=lambda row: row.throughput)
    if best.throughput == 0:
        return tuple(rows)
    result = []
    for row in rows:
        if row is best:
            reason = "best"
        elif row.throughput > 0:
            share = row.throughput / best.throughput
            reason = f"{share:.0%} of the throughput per GPU of tp = {best.tp}"
        else:
            reason = row.reason
        result.append(DegreeRow(**(vars(row) | {"reason": reason})))
    return tuple(result)


def best_degree(rows: Sequence[DegreeRow]) -> int | None:
    """N^opt, the degree with the most throughput per GPU; None if none fits and keeps the SLO."""
    best = max(rows, key=lambda row: row.throughput)
    return best.tp if best.throughput > 0 else None


def _row(
    model: IterationTimeModel, tp: int, request_tokens: float, slo_s: float, extra_s: float
) -> DegreeRow:
    try:
        capacity = model.profile(max_batch=1).kv_capacity_tokens
    except DoesNotFitError as error:
        return DegreeRow(tp, 0.0, f"does not fit: {error}", kind=model.kind)
    base, per_token = model.decode_tables(LARGEST_BATCH)
    batch = np.arange(LARGEST_BATCH + 1)
    seconds = base + (per_token * request_tokens + extra_s) * batch
    within = seconds[1:] <= slo_s
    slo_batch = LARGEST_BATCH if within.all() else int(np.argmin(within))
    kv_batch = min(int(capacity // request_tokens), LARGEST_BATCH)
    seen: dict[str, Any] = {
        "tp": tp,
        "kv_capacity_tokens": capacity,
        "kv_batch": kv_batch,
        "slo_batch": slo_batch,
        "single_s": float(seconds[1]),
        "kind": model.kind,
    }
    if kv_batch == 0:
        reason = f"{capacity} tokens of KV memory are less than one request of {request_tokens:.0f}"
        return DegreeRow(throughput=0.0, reason=f"does not fit: {reason}", **seen)
    seen["kv_iteration_s"] = float(seconds[kv_batch])
    seen["kv_throughput"] = kv_batch / (tp * float(seconds[kv_batch]))
    if slo_batch == 0:
        reason = f"one request takes {1e3 * seconds[1]:.1f} ms per token, {1e3 * slo_s:g} allowed"
        return DegreeRow(throughput=0.0, reason=f"misses the decode SLO: {reason}", **seen)
    seen["slo_throughput"] = slo_batch / (tp * slo_s)
    throughput = min(seen["kv_throughput"], seen["slo_throughput"])
    bottleneck = "kv" if seen["kv_throughput"] <= seen["slo_throughput"] else "slo"
    return DegreeRow(throughput=throughput, reason="", bottleneck=bottleneck, **seen)
