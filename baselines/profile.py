"""What an instance can do, from its iteration times: a policy's guess before it has measured anything."""

from __future__ import annotations

from llmscale_env.cluster.iteration_model import IterationTables, IterationTimeModel
from llmscale_env.cluster.kv import kv_capacity_tokens
from llmscale_env.scenarios.pools import PoolConfig
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import pool_times


def saturated_tokens_per_s(
    model: IterationTimeModel | IterationTables,
    batch: int,
    kv_tokens: int,
    input_tokens: float,
    output_tokens: float,
) -> float:
    """Output tokens per second of an instance whose queue never runs empty, prefill first.

    In the steady state every output of `output_tokens` costs one prefill of its prompt and its
    share of as many decode iterations, at a mean context of the prompt and half the output.

    Args:
        model: iteration times.
        batch: batch limit.
        kv_tokens: KV memory; it may allow fewer than `batch`.
        input_tokens, output_tokens: means of the requests.
    """
    output = max(output_tokens, 1.0)
    context = input_tokens + output / 2
    running = max(1, min(batch, int(kv_tokens // max(context, 1.0))))
    decode = model.decode_s(running, running * context) / running
    return output / (model.prefill_s(input_tokens) + output * decode)


def pool_tokens_per_s(
    scenario: Scenario,
    pool: PoolConfig,
    batch: int,
    input_tokens: float,
    output_tokens: float,
) -> float:
    """`saturated_tokens_per_s` of an instance of a scenario's pool."""
    times = pool_times(scenario, pool)
    if isinstance(times, IterationTables):
        kv = times.kv_capacity_tokens
    else:
        share = scenario.memory_fraction
        kv = kv_capacity_tokens(pool.llm, pool.gpu, pool.tp, memory_fraction=share)
    return saturated_tokens_per_s(times, batch, kv, input_tokens, output_tokens)
