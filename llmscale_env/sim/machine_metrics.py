"""What became of an episode's machines: pure functions of what was counted and looked at now and then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from llmscale_env.sim.metrics import Floats, rate
from llmscale_env.sim.spec import LoadSource


def hysteresis(scale_ups: float, scale_downs: float) -> float:
    """All scaling actions over the upward ones (Chiron, section 2.3); lower is calmer.

    Without any upward action the number of downward ones, as if there had been one: 0 when nothing
    moved.
    """
    return float((scale_ups + scale_downs) / max(scale_ups, 1))


def time_integral(values: ArrayLike, end_s: ArrayLike, start: ArrayLike = 0.0) -> Any:
    """Integral over time of something that was looked at now and then, by the trapezoid rule.

    Args:
        values: (T, ...) what was seen at the end of each interval.
        end_s: (T,) times at which the intervals end, rising from 0.
        start: (...) value at time 0.
    """
    seen = np.asarray(values, dtype=np.float64)
    before = np.concatenate([np.broadcast_to(start, (1, *seen.shape[1:])), seen[:-1]])
    length = np.diff(np.asarray(end_s, dtype=np.float64), prepend=0.0)
    return np.tensordot(length, (seen + before) / 2, axes=1)


def summarise_cluster(
    *,
    pool_names: Sequence[str],
    gpus: ArrayLike,
    gpu_s: ArrayLike,
    busy_s: ArrayLike,
    serving_s: ArrayLike,
    kv_use: ArrayLike,
    scale_ups: ArrayLike,
    scale_downs: ArrayLike,
    loads_by_source: ArrayLike,
    horizon_s: float,
) -> dict[str, float]:
    """Metrics of the machines: of the cluster, and of each pool as `pool/NAME/METRIC`.

    * `gpu_seconds`, `gpu_hours`: billed, loading and draining included; `gpus_mean`: over the
      horizon;
    * `instances_mean`: instances in service (active or draining), over the horizon;
    * `scale_ups`, `scale_downs`: instances started, and stopped; `scaling_actions`: both;
      `hysteresis`: see there;
    * `loads_ssd`, `loads_host`, `loads_multicast`: loadings begun, by source;
    * `utilisation`: instance-seconds in an iteration over those in service (0 without any);
      `billed_utilisation`: GPU-seconds in an iteration over those billed;
    * `kv_use_mean`: share of KV memory in use, weighted by the time in service of the pools.

    Args:
        pool_names: P names.
        gpus: (P,) GPUs per instance.
        gpu_s: (P,) GPU-seconds billed.
        busy_s: (P,) instance-seconds in an iteration.
        serving_s: (P,) instance-seconds in service.
        kv_use: (P,) mean share of KV memory in use.
        scale_ups, scale_downs: (P,).
        loads_by_source: (P, 3) in the order of `LoadSource`.
        horizon_s: length of the episode.

    Raises:
        ValueError: a shape is not as stated, or a value is negative or not finite.
    """
    given = {
        "gpus": gpus,
        "gpu_s": gpu_s,
        "busy_s": busy_s,
        "serving_s": serving_s,
        "kv_use": kv_use,
        "scale_ups": scale_ups,
        "scale_downs": scale_downs,
        "loads_by_source": loads_by_source,
    }
    arrays = {}
    for name, value in given.items():
        array = np.asarray(value, dtype=np.float64)
        shape: tuple[int, ...] = (len(pool_names),)
        if name == "loads_by_source":
            shape += (len(LoadSource),)
        if array.shape != shape or not ((array >= 0) & (array < np.inf)).all():
            raise ValueError(f"{name}: must be numbers of at least 0 of shape {shape}: {value!r}")
        arrays[name] = array
    summary = _machines(arrays, horizon_s)
    for p, pool in enumerate(pool_names):
        mine = {name: array[p : p + 1] for name, array in arrays.items()}
        summary |= {f"pool/{pool}/{k}": v for k, v in _machines(mine, horizon_s).items()}
    return summary


def summarise_prefix_caches(tokens: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    """`prefix_hit_rate` of all caches together and of each pool, as `pool/NAME/prefix_hit_rate`.

    Tokens found over tokens asked for, by admissions: vLLM's `vllm:prefix_cache_hits_total` over
    `vllm:prefix_cache_queries_total` counts besides each step in which a request waits for memory.
    0 where none was asked for.

    Args:
        tokens: (asked, found) by pool, of pools with a prefix cache; empty: there is no such metric.
    """
    if not tokens:
        return {}
    asked, found = (sum(column) for column in zip(*tokens.values(), strict=True))
    by_pool = {f"pool/{pool}/prefix_hit_rate": rate(hit, of) for pool, (of, hit) in tokens.items()}
    return {"prefix_hit_rate": rate(found, asked), **by_pool}


def _machines(arrays: Mapping[str, Floats], horizon_s: float) -> dict[str, float]:
    total = {name: float(array.sum()) for name, array in arrays.items()}
    loads = arrays["loads_by_source"].sum(axis=0)
    return {
        "gpu_seconds": total["gpu_s"],
        "gpu_hours": total["gpu_s"] / 3600,
        "gpus_mean": rate(total["gpu_s"], horizon_s),
        "instances_mean": rate(total["serving_s"], horizon_s),
        "scale_ups": total["scale_ups"],
        "scale_downs": total["scale_downs"],
        "scaling_actions": total["scale_ups"] + total["scale_downs"],
        "hysteresis": hysteresis(total["scale_ups"], total["scale_downs"]),
        **{f"loads_{source.name.lower()}": float(loads[source]) for source in LoadSource},
        "utilisation": min(rate(total["busy_s"], total["serving_s"]), 1.0),
        "billed_utilisation": rate(float(arrays["busy_s"] @ arrays["gpus"]), total["gpu_s"]),
        "kv_use_mean": rate(float(arrays["kv_use"] @ arrays["serving_s"]), total["serving_s"]),
    }
