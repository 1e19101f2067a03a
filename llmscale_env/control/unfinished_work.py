"""What the horizon leaves behind: what serving it still takes, and who of it counts as late.

Without prices every unfinished request is charged what serving it alone would take. With prices
(`reward.prices`) it is charged its share of a full batch, which is what an operator would pay, and requests
that can no longer be served in time are late:

- an interactive request (priority 0) without its first token;
- a deferrable one (priority 1) without its first token, if all GPUs of the scenario together, serving what is
  left in the order of deadlines, would not be done with it by its own.

What is left of the others stays open: it is paid for, and counts in no share.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.reward import ScenarioKey, serving_cost_gpu_s
from llmscale_env.scenarios.pools import PoolConfig
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import pool_tables, pool_times, ps, serving
from llmscale_env.sim.metrics import leftover_tokens
from llmscale_env.sim.spec import RequestState
from llmscale_env.workload.requests import PS_PER_S, RequestTable

TOKENS = 1024
"""Length of a prompt and of a context for which times per token are stated."""


def seconds_per_token(scenario: Scenario, pool: PoolConfig, itl_s: float) -> tuple[float, float]:
    """Seconds of an instance per prompt token and per output token of a class with this ITL target.

    Prompts at the pace of a prefill of `TOKENS`, output at that of the largest batch of contexts of `TOKENS`
    that fits the KV memory, the pool's `max_batch` and the target.
    """
    times, tables = pool_times(scenario, pool), pool_tables(scenario, pool)
    most = max(1, min(pool.max_batch, tables.kv_capacity_tokens // TOKENS))
    # The time of an iteration rises with the batch: the largest that meets the target by bisection.
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        if times.decode_s(middle, middle * TOKENS) <= itl_s:
            low = middle
        else:
            high = middle - 1
    return times.prefill_s(TOKENS) / TOKENS, times.decode_s(low, low * TOKENS) / low


def full_batch_cost_gpu_s(scenario: Scenario) -> NDArray[np.float64]:
    """(2, M, C) GPU-seconds per prompt and per output token by LLM and class, in a full batch.

    Of several pools the dearest counts.
    """
    return _full_batch_cost_gpu_s(ScenarioKey(scenario, scenario.model_dump_json()))


@lru_cache(maxsize=64)
def _full_batch_cost_gpu_s(key: ScenarioKey) -> NDArray[np.float64]:
    scenario = key.scenario
    llms = scenario.fleet.llms
    costs = np.zeros((2, len(llms), len(scenario.classes)))
    for pool in scenario.fleet.pools:
        for llm in pool.llms:
            for c, slo_class in enumerate(scenario.classes):
                each = seconds_per_token(scenario, serving(pool, llm), slo_class.itl_s)
                here = costs[:, llms.index(llm), c]
                here[:] = np.maximum(here, np.array(each) * pool.tp)
    costs.setflags(write=False)
    return costs


def leftover_gpu_s(
    scenario: Scenario, requests: RequestTable, results: NDArray[Any]
) -> NDArray[np.float64]:
    """(n,) GPU-seconds that serving what is unfinished of each request still takes."""
    prefill, decode = leftover_tokens(requests, results)
    if scenario.reward.prices is None:
        per_input, per_output = np.array(serving_cost_gpu_s(scenario)).T[:, requests.llm]
    else:
        costs = full_batch_cost_gpu_s(scenario)
        per_input, per_output = costs[:, requests.llm, requests.slo_class]
    return prefill * per_input + decode * per_output


def lost_at_horizon(
    scenario: Scenario, requests: RequestTable, results: NDArray[Any], horizon_ps: int
) -> NDArray[np.bool_]:
    """(n,) requests that count as late because the horizon leaves them without a token: see the module.

    None without prices. Those whose deadline has passed already are not among them.
    """
    none = np.zeros(len(requests), bool)
    if scenario.reward.prices is None:
        return none
    state = results["state"]
    over = (RequestState.FUTURE, RequestState.FINISHED, RequestState.REJECTED)
    left = ~np.isin(state, [int(s) for s in over])
    targets = np.array([ps(c.ttft_s) for c in scenario.classes], np.int64)
    due_ps = requests.arrival_ps + targets[requests.slo_class]
    without = left & (results["first_token_ps"] < 0) & (due_ps >= horizon_ps)
    deferrable = np.array([c.priority == 1 for c in scenario.classes])[requests.slo_class]
    lost = without & ~deferrable
    rows = np.flatnonzero(left)
    if not (without & deferrable).any():
        return lost
    # Work whose deadline has passed, or that has its first token, is under way and comes first.
    order = rows[np.argsort(np.where(without[rows], due_ps[rows], 0), kind="stable")]
    work = np.cumsum(leftover_gpu_s(scenario, requests, results)[order])
    left_s = (due_ps[order] - horizon_ps) / PS_PER_S
    late = work > left_s * scenario.fleet.max_gpus
    lost[order[late & (without & deferrable)[order]]] = True
    return lost
