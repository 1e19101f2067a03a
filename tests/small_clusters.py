"""Small clusters whose times are easily computed by hand, for tests of both engines.

A decode iteration takes 10 + b + 2c ps, a prefill 5 + 3T, a mixed one 10 + 3(b + T) + 2c; paging rounds
nothing. Class `k` of every LLM waits in shared queue `k`, which takes any LLM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from llmscale_env.sim.fast import FastEngine
from llmscale_env.sim.reference import ReferenceEngine
from llmscale_env.sim.spec import (
    ClassSpec,
    ClusterSpec,
    PoolSpec,
    ProfileSpec,
    RouterKind,
    RouteSpec,
    SwapSpec,
)
from llmscale_env.workload.requests import RequestTable

ENGINES = (ReferenceEngine, FastEngine)
"""A test runs on both of them if it takes the fixture `engine_class`."""
Engine = Callable[..., Any]


def profile(**changes: Any) -> ProfileSpec:
    numbers: dict[str, Any] = {
        "max_batch": 16,
        "decode_const_ps": 10,
        "decode_per_request_ps": 1,
        "decode_per_token_ps": 2,
        "prefill_const_ps": 5,
        "prefill_per_token_ps": 3,
        "kv_capacity_tokens": 1000,
    }
    return ProfileSpec.linear(**(numbers | changes))


def pool(**changes: Any) -> PoolSpec:
    """One active instance of LLM 0 that pulls from queue 0."""
    fields: dict[str, Any] = {
        "llm": 0,
        "profile": 0,
        "n_slots": 1,
        "initial_active": 1,
        "batch_limit": 16,
        "pull": (0,),
    }
    return PoolSpec(**(fields | changes))


def swapping(n_llms: int = 2, fetch_ps: int = 100, swap_ps: int = 40, **changes: Any) -> PoolSpec:
    """An instance that serves LLMs 0 to `n_llms - 1`, whose weights are a byte each."""
    swaps = tuple(SwapSpec(m, 0, 1, fetch_ps, swap_ps) for m in range(n_llms))
    return pool(swaps=swaps, **changes)


def queued(
    *pools: PoolSpec,
    n_queues: int = 2,
    n_llms: int = 1,
    profiles: tuple[ProfileSpec, ...] | None = None,
    ttft_slo_ps: tuple[int, ...] = (),
    priorities: tuple[int, ...] = (),
    **changes: Any,
) -> ClusterSpec:
    """Everybody waits in shared queues."""
    classes = [ClassSpec() for _ in range(n_queues)]
    for c, slo in enumerate(ttft_slo_ps):
        classes[c] = replace(classes[c], ttft_slo_ps=slo)
    for c, priority in enumerate(priorities):
        classes[c] = replace(classes[c], priority=priority)
    row = tuple(RouteSpec(RouterKind.SHARED_QUEUE, (), queue=q) for q in range(n_queues))
    return ClusterSpec(
        profiles=profiles or (profile(),),
        pools=pools,
        routes=(row,) * n_llms,
        classes=tuple(classes),
        queue_llm=(-1,) * n_queues,
        half_block_tokens=changes.pop("half_block_tokens", 0),
        **changes,
    )


def table(*rows: tuple[int, ...]) -> RequestTable:
    """Rows of (arrival ps, input tokens, output tokens[, queue = 0[, LLM = 0]])."""
    full = [(*row, 0, 0)[:5] if len(row) == 3 else (*row, 0)[:5] for row in rows]
    arrival, inputs, outputs, classes, llms = zip(*full, strict=True)
    return RequestTable(
        arrival_ps=arrival,
        llm=llms,
        region=[0] * len(rows),
        slo_class=classes,
        input_tokens=inputs,
        output_tokens=outputs,
        predicted_output_tokens=outputs,
        llm_names=tuple(f"llm{m}" for m in range(8)),
        class_names=tuple(f"class{c}" for c in range(8)),
    )


def run(engine_class: Engine, spec: ClusterSpec, requests: RequestTable, until_ps: int) -> Any:
    """An engine that has come as far as this."""
    engine = engine_class(spec, requests)
    engine.advance(until_ps)
    return engine


def times(engine: Any, request: int) -> tuple[int, int, int, int]:
    """(admitted, first token, finished, largest ITL)."""
    row = engine.results()[request]
    return tuple(
        int(row[name]) for name in ("admitted_ps", "first_token_ps", "finished_ps", "max_itl_ps")
    )


def column(engine: Any, name: str) -> list[int]:
    """A column of the results."""
    return engine.results()[name].tolist()


def seen(engine: Any, instance: int, *names: str) -> tuple[int, ...]:
    """Columns of an instance's row."""
    row = engine.instances()[instance]
    return tuple(int(row[name]) for name in names)
