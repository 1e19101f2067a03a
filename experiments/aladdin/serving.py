"""What Aladdin's serving figures share: clusters, requests, one episode and what is measured."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from baselines import make_policy
from baselines.aladdin.fleet import history
from baselines.aladdin.policy import AladdinPolicy
from baselines.aladdin.scaling import requests_per_worker
from experiments.aladdin.setting import DEGREES, LENGTHS, SLOS_S, profiled
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.scenarios.schema import Scenario

if TYPE_CHECKING:
    from pandas import DataFrame

TESTBEDS = {
    ("llama-2-13b", "a100-80gb"): "aladdin-13b-a100",
    ("llama-2-70b", "a100-80gb"): "aladdin-70b-a100",
    ("llama-2-7b", "v100-32gb"): "aladdin-7b-v100",
    ("llama-2-13b", "v100-32gb"): "aladdin-13b-v100",
}
"""Scenarios of section 6.3."""

CARDS = {"a100-80gb": "a100-80gb-pcie", "v100-32gb": "v100-32gb"}
"""Section 6.1: the A100 are connected by PCIe."""

PREFILL_SHARE = 0.3
"""Ours: prefill workers of the decode-only study are busy for this share of their time."""


@lru_cache(maxsize=32)
def capacity_per_worker(
    llm: str, gpu: str, tp: int, *, decode_only: bool = False, lengths: str = LENGTHS
) -> float:
    """Requests/s that a worker takes with all of the decode SLO used, on average (k5 of Eq. 7 inverted).

    No placement takes more: requests are a fluid here, without bursts, errors of prediction or TTFT.
    """
    table = {"workload.streams.chat.lengths.table": lengths}
    inputs, outputs = history(load_scenario("aladdin-large", **table))
    found = profiled(llm, CARDS[gpu], tp)
    return requests_per_worker(
        None if decode_only else found.prefill,
        found.decode,
        found.kv_capacity_tokens,
        SLOS_S[llm, gpu][1],
        inputs,
        outputs,
    )


def four_gpus(llm: str, gpu: str, rate_per_s: float) -> Scenario:
    """4 GPUs of section 6.1."""
    return load_scenario(TESTBEDS[llm, gpu], **{"workload.streams.chat.rate_per_s": rate_per_s})


def large(llm: str, gpu: str, rate_per_s: float, max_gpus: int) -> Scenario:
    """The large simulation with another LLM: pools of every degree that holds it, none started."""
    ttft_s, itl_s = SLOS_S[llm, gpu]
    common = _pool(llm, gpu)
    pools = [
        {**common, "name": f"tp{tp}", "tp": tp, "max_instances": max_gpus // tp, "initial_instances": 0}
        for tp in (1, 2, 4)
        if (llm, tp) != ("llama-2-70b", 1)
    ]  # fmt: skip
    pools[0]["initial_instances"] = 1
    names = [pool["name"] for pool in pools]
    return load_scenario(
        "aladdin-large",
        **{
            "classes.chat.ttft_s": ttft_s,
            "classes.chat.itl_s": itl_s,
            "workload.streams.chat.llm": llm,
            "workload.streams.chat.rate_per_s": rate_per_s,
            "fleet.max_gpus": max_gpus,
            "fleet.pools": pools,
            "fleet.routes": [{"kind": "best-fit", "pools": names, "placement": {}}],
        },
    )


def decode_only(llm: str, gpu: str, rate_per_s: float, max_gpus: int) -> Scenario:
    """Split phases where decode alone matters: prefill workers to spare, KV caches moved in no time."""
    ttft_s, itl_s = SLOS_S[llm, gpu]
    tp = DEGREES[llm, gpu]
    inputs, _ = history(load_scenario("aladdin-split"))
    prefill_s = profiled(llm, CARDS[gpu], tp).prefill.seconds(float(np.mean(inputs)))
    count = ceil(rate_per_s * prefill_s / PREFILL_SHARE) + 1
    common = {**_pool(llm, gpu), "tp": tp}
    pools = [
        {**common, "name": "prefill", "phase": "prefill", "max_instances": count,
         "initial_instances": count},
        {**common, "name": "decode", "phase": "decode", "max_instances": max_gpus // tp,
         "initial_instances": 1},
    ]  # fmt: skip
    return load_scenario(
        "aladdin-split",
        **{
            "classes.chat.ttft_s": ttft_s,
            "classes.chat.itl_s": itl_s,
            "workload.streams.chat.llm": llm,
            "workload.streams.chat.rate_per_s": rate_per_s,
            "fleet.max_gpus": max_gpus + count * tp,
            "fleet.pools": pools,
            "network.inter_host_bytes_per_s": 1e15,
            "network.intra_host_bytes_per_s": 1e15,
        },
    )


def _pool(llm: str, gpu: str) -> dict[str, Any]:
    return {
        "v1": None, "llm": llm, "gpu": CARDS[gpu], "batch_limit": 256, "max_batch": 256,
        "load_s": {"ssd": 0.0},
    }  # fmt: skip


def serve(
    scenario: Scenario, policy: str, case: Mapping[str, Any], **parameters: Any
) -> dict[str, float | None]:
    """One episode: arrivals for a while, and time for all of them to end.

    Args:
        scenario: the cluster.
        policy: by name.
        case: `seed`, `arrivals_s`, `patience_s`, `heartbeat_s`, `predictor`.
        parameters: of the policy.

    Returns:
        `requests`, `attainment`, `ttft_attainment`, `itl_attainment` (shares of all requests),
        `ttft_p99_s`, `atgt_p99_s`, `atgt_mean_s`.
    """
    changes = {"horizon_s": case["arrivals_s"], "workload.predictor.kind": case["predictor"]}
    short = load_scenario(scenario, **changes)
    requests = draw_requests(short, np.random.default_rng(case["seed"]))
    horizon_s = case["arrivals_s"] + case["patience_s"]
    made = make_policy(policy, **parameters)
    # The others decide once, and heartbeats cost time.
    beat_s = case["heartbeat_s"] if isinstance(made, AladdinPolicy) else horizon_s
    long = load_scenario(short, horizon_s=horizon_s, control_interval_s=beat_s)
    table = run_episode(made, long, case["seed"], requests=requests, forecaster=None).requests
    return measured(table, scenario.classes[0].ttft_s, scenario.classes[0].itl_s)


def measured(table: DataFrame, ttft_s: float, itl_s: float) -> dict[str, float | None]:
    """What `serve` returns, from a table of requests."""
    if len(table) == 0:
        return {"requests": 0}
    ended = table["outcome"].isin(["on_time", "late"])
    # An output of one token has no ATGT to miss.
    calm = ended & ~(table["itl_mean_s"] > itl_s)
    early = table["ttft_s"] <= ttft_s
    atgt = table["itl_mean_s"].dropna()
    ttft = table["ttft_s"].dropna()
    return {
        "requests": len(table),
        "attainment": float((calm & early).mean()),
        "ttft_attainment": float(early.mean()),
        "itl_attainment": float(calm.mean()),
        "ttft_p99_s": float(ttft.quantile(0.99)) if len(ttft) else None,
        "atgt_p99_s": float(atgt.quantile(0.99)) if len(atgt) else None,
        "atgt_mean_s": float(atgt.mean()) if len(atgt) else None,
    }
