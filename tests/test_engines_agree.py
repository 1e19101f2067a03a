"""Both engines give the same picoseconds on generated cases; `make engines` draws fresh ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest

from llmscale_env.sim.fast import FastEngine
from llmscale_env.sim.reference import ReferenceEngine
from llmscale_env.sim.spec import PoolPhase, RequestState
from tests.engine_cases import (
    MECHANISMS,
    Case,
    Trace,
    first_difference,
    make_case,
    mechanisms,
    run_case,
)
from tests.region_cases import broken_spot_law
from tests.v1_cases import broken_block_law

CHUNKS = pytest.mark.parametrize("first", [0, 50])
CHUNK = 50
TO_REACH_ALL = 300
"""Seeds from 0 on that reach every mechanism of their kind."""


def broken_law(case: Case, trace: Trace) -> str | None:
    """The first snapshot at which requests got lost, came twice or an instance overflowed."""
    requests, spec = case.requests, case.spec
    pool_of = np.repeat(np.arange(len(spec.pools)), [pool.n_slots for pool in spec.pools])
    capacity = {
        (p, swap.llm): spec.profiles[swap.profile].kv_capacity_tokens
        for p, pool in enumerate(spec.pools)
        for swap in pool.served
    }
    gpus = np.array([spec.pools[p].gpus for p in pool_of])
    for label, at in trace.looks().items():
        counts, fleet, results = at["conservation"], at["instances"], at["results"]
        decodes = np.array([spec.pools[p].phase == PoolPhase.DECODE for p in pool_of])
        own = [queue for queue, d in zip(at["own_queues"], decodes, strict=True) if not d]
        waiting = {
            RequestState.GATEWAY: at["gateways"],
            RequestState.SHARED_QUEUE: at["queues"],
            RequestState.OWN_QUEUE: own,
        }
        arrived = int((requests.arrival_ps < at["now_ps"]).sum())
        laws = {
            "every request is somewhere": sum(counts.values()) == len(requests),
            "arrivals are no longer to come": counts[RequestState.FUTURE]
            == len(requests) - arrived,
            "lists hold what the states say": all(
                sorted(chain(*lists)) == np.flatnonzero(results["state"] == state).tolist()
                for state, lists in waiting.items()
            ),
            "instances hold the others": [
                int(fleet["running"].sum()),
                int(fleet["preempted"].sum()),
                int(fleet["waiting"][decodes].sum() + fleet["in_flight"].sum())
                + int(fleet["landed"].sum() + sum(map(len, at["decode_gateways"]))),
            ]
            == [
                counts[state]
                for state in (
                    RequestState.RUNNING,
                    RequestState.PREEMPTED,
                    RequestState.HANDOVER,
                )
            ],
            "KV is held for those that have not landed": int((fleet["kv_held"] > 0).sum())
            <= int(fleet["waiting"][decodes].sum() + fleet["in_flight"].sum())
            + sum(map(len, at["decode_gateways"])),
            "nothing sleeps at a decode instance": all(
                slot["landed"] == 0
                and (slot["in_flight"] > 0 or slot["preempted"] + slot["waiting"] == 0)
                for slot in fleet[decodes & (fleet["running"] == 0)]
                if label.startswith("before")
            ),
            "KV memory does not overflow": all(
                slot["kv_tokens"] <= capacity[p, slot["llm"]]
                for p, slot in zip(pool_of.tolist(), fleet, strict=True)
            ),
            "host memory does not go negative": bool((fleet["host_kv_bytes"] >= 0).all()),
            "GPUs suffice": int(gpus[fleet["state"] != 0].sum()) <= spec.max_gpus,
            "tokens are all accounted for": int(fleet["tokens"].sum())
            == int(results["emitted_tokens"].sum())
            or bool(results["restarts"].any()),
        }
        for law, holds in laws.items():
            if not holds:
                return f"{label}: {law}"
    return None


def compared(
    seed: int, case: Case, doublings: int = 0, reference: Any = ReferenceEngine
) -> tuple[Any, Trace]:
    """Both engines run a case and agree, and no law is broken; returns the reference and what it showed."""
    engine, expected = run_case(reference, case, doublings)
    broken = broken_law(case, expected)
    if "spot" in case.observes:
        broken = broken or broken_spot_law(case, expected)
    if "cached_blocks" in case.observes:
        broken = broken or broken_block_law(case, expected)
    assert broken is None, f"seed {seed}: {broken}"
    _, got = run_case(FastEngine, case, doublings)
    difference = first_difference(expected, got)
    assert difference is None, f"seed {seed}, reference / fast: {difference}"
    return engine, expected


def never_reached(make: Callable[[int], Case], among: frozenset[str]) -> list[str]:
    """Mechanisms that the cases of the first seeds do not make happen."""
    missing = set(among)
    for case in map(make, range(TO_REACH_ALL)):
        engine, trace = run_case(ReferenceEngine, case)
        missing -= mechanisms(engine, case, trace, among)
    return sorted(missing)


@CHUNKS
def test_engines_agree(first: int) -> None:
    for seed in range(first, first + CHUNK):
        compared(seed, make_case(seed))


@CHUNKS
def test_engines_agree_with_everything_on_that_qlm_does(first: int) -> None:
    """Instances of several LLMs, lists in order, evictions beside the iterations, failures: all at once."""
    reached: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        case = make_case(seed, qlm=True)
        engine, trace = compared(seed, case)
        reached.update(mechanisms(engine, case, trace))
    wanted = {"swap_warm", "swap_cold", "evict_for_pull", "restored", "fail_active", "regrouped"}
    assert not wanted - set(reached), f"cases {first} and up never reach all of {wanted}"


@pytest.mark.slow
def test_cases_reach_every_mechanism() -> None:
    """Agreement means little for what no case makes happen."""
    assert never_reached(make_case, MECHANISMS) == []


def test_generator_is_deterministic() -> None:
    one, other = make_case(7), make_case(7)
    assert one.script == other.script
    assert one.stops_ps == other.stops_ps
    for column in ("arrival_ps", "input_tokens", "output_tokens", "slo_class"):
        assert np.array_equal(getattr(one.requests, column), getattr(other.requests, column))


def test_a_difference_is_found_and_named() -> None:
    """The comparison itself can fail: one picosecond more per prefill is seen."""
    from dataclasses import replace

    case = make_case(1)
    slower = tuple(
        replace(
            p,
            prefill_knot_ps=p.prefill_knot_ps + 1,
            mixed_knot_ps=p.mixed_knot_ps + 1,
        )
        for p in case.spec.profiles
    )
    _, one = run_case(ReferenceEngine, case)
    _, other = run_case(ReferenceEngine, replace(case, spec=replace(case.spec, profiles=slower)))
    difference = first_difference(one, other)
    assert difference is not None
    assert "before commands at" in difference
