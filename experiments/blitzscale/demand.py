"""Instances that a second of requests asks for, from the profile: prefill by tokens, decode by KV cache.

What BlitzScale's monitor goes by (section 5.3: tokens per second and KV usage against bounds from a profile),
without queues: the requests of a second are to be prefilled within it, and each holds its KV cache until
its last token comes at the pace of a full batch.

Workloads are scaled to a cluster by it, so it knows targets and memory only. The policies' profile
(`baselines.blitzscale.monitor.capacity_of`) is of a scenario's pools and counts the link as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmscale_env.cluster.cards import llm_card
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.cluster.kv import kv_capacity_tokens
from llmscale_env.workload.requests import PS_PER_S, RequestTable

KV_BOUND = 0.95
"""Share of the KV cache that is filled at most: decode_min of the published code."""


@dataclass(frozen=True)
class InstanceBounds:
    """What one instance can do at most within the SLOs.

    Attributes:
        prefill_tokens_per_s: of a prefill instance.
        decode_kv_tokens: context of a full batch on a decode instance.
        itl_s: time of one decode iteration of that batch.
        kv_bytes_per_token: over all GPUs of the instance.
    """

    prefill_tokens_per_s: float
    decode_kv_tokens: float
    itl_s: float
    kv_bytes_per_token: float


def bounds(
    llm: str,
    gpu: str,
    tp: int,
    *,
    ttft_s: float,
    itl_s: float,
    mean_input_tokens: float,
    mean_output_tokens: float,
) -> InstanceBounds:
    """The fastest prefill within the TTFT target, the largest decode batch within the ITL target and memory.

    Args:
        llm, gpu, tp: what is profiled.
        ttft_s, itl_s: targets.
        mean_input_tokens, mean_output_tokens: of the workload; a request's context is its input and half of
            its output.

    Raises:
        ValueError: one prompt or one request already takes longer than its target.
    """
    model = iteration_time_model(llm, gpu, tp)
    most = 0.0
    for prompts in range(1, 65):
        tokens = prompts * mean_input_tokens
        seconds = model.prefill_s(tokens, tokens * mean_input_tokens)
        if seconds > ttft_s:
            break
        most = max(most, tokens / seconds)
    context = mean_input_tokens + mean_output_tokens / 2
    kv = KV_BOUND * kv_capacity_tokens(llm, gpu, tp)
    batch = min(int(kv / context), model.max_batch)
    while batch > 0 and model.decode_s(batch, batch * context) > itl_s:
        batch -= 1
    if most == 0 or batch == 0:
        raise ValueError(
            f"ttft_s = {ttft_s}, itl_s = {itl_s}: {llm} on {tp} {gpu} cannot meet them with prompts of "
            f"{mean_input_tokens:.0f} tokens"
        )
    return InstanceBounds(
        prefill_tokens_per_s=most,
        decode_kv_tokens=batch * context,
        itl_s=model.decode_s(batch, batch * context),
        kv_bytes_per_token=llm_card(llm).kv_bytes_per_token_per_gpu(tp) * tp,
    )


@dataclass(frozen=True)
class Demand:
    """Demand per second, as real numbers of instances.

    Attributes:
        requests: (n,) arrivals in the second.
        prefill, decode: (n,) instances.
        kv_tokens: (n,) tokens of KV cache that are held on average in the second.
    """

    requests: NDArray[np.int64]
    prefill: NDArray[np.float64]
    decode: NDArray[np.float64]
    kv_tokens: NDArray[np.float64]

    def load(self, phases: str = "both") -> NDArray[np.float64]:
        """(n,) instances of "prefill", of "decode" or of both, as real numbers."""
        return np.sum(self._parts(phases), axis=0)

    def instances(self, phases: str = "both") -> NDArray[np.int64]:
        """(n,) whole instances; with both, each kind is rounded up."""
        parts = [np.ceil(np.round(part, 9)) for part in self._parts(phases)]
        return np.sum(parts, axis=0).astype(np.int64)

    def _parts(self, phases: str) -> list[NDArray[np.float64]]:
        known = {
            "prefill": [self.prefill],
            "decode": [self.decode],
            "both": [self.prefill, self.decode],
        }
        if phases not in known:
            raise ValueError(f"phases = {phases!r}: must be one of {list(known)}")
        return known[phases]


def demand(requests: RequestTable, limits: InstanceBounds, horizon_s: float) -> Demand:
    """Demand in each second of [0, horizon)."""
    n = int(np.ceil(horizon_s))
    arrival_s = requests.arrival_ps / PS_PER_S
    second = np.minimum(arrival_s.astype(np.int64), n - 1)
    inputs = requests.input_tokens.astype(np.float64)
    outputs = requests.output_tokens.astype(np.float64)
    prefill = np.bincount(second, weights=inputs, minlength=n) / limits.prefill_tokens_per_s
    kv = held(arrival_s, arrival_s + outputs * limits.itl_s, inputs + outputs / 2, n)
    return Demand(
        requests=np.bincount(second, minlength=n),
        prefill=prefill,
        decode=kv / limits.decode_kv_tokens,
        kv_tokens=kv,
    )


def held(
    start_s: NDArray[np.float64],
    end_s: NDArray[np.float64],
    amount: NDArray[np.float64],
    n: int,
) -> NDArray[np.float64]:
    """(n,) average of what is held in each second, if `amount[k]` is held in `[start_s[k], end_s[k])`."""
    total = np.zeros(n + 1)
    # Integral of a step at time t over [0, x]: max(x - t, 0), summed exactly by its second differences.
    for times, sign in ((start_s, 1.0), (end_s, -1.0)):
        inside = times < n
        at = times[inside].astype(np.int64)
        part = 1.0 - (times[inside] - at)
        signed = sign * amount[inside]
        total += np.bincount(at, weights=signed * part, minlength=n + 1)[: n + 1]
        total += np.bincount(at + 1, weights=signed * (1.0 - part), minlength=n + 2)[: n + 1]
    return np.maximum(np.cumsum(total)[:n], 0.0)
