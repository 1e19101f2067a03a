"""A small BlitzScale cluster under bursts, and views of it made by hand, for tests of its policies."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from baselines import make_policy
from llmscale_env.control.results.result import EpisodeResult
from llmscale_env.control.run import run_episode
from llmscale_env.control.view import ClusterView, RequestsUnderWay
from llmscale_env.scenarios import load_scenario
from llmscale_env.sim.observed import INSTANCE_DTYPE
from llmscale_env.sim.spec import InstanceState, RequestState

ACTIVE = InstanceState.ACTIVE
SCENARIO = "blitzscale-azure-code-7b"
MEMORY = 64
"""Code of machine 0's memory: 32 slots twice."""


def workload(spikes: Any = (5.0,), rate: float = 1.0, factor: float = 30.0, **lengths: int) -> Any:
    """One request per second, and for two seconds thirty times as many."""
    return {
        "streams": [
            {
                "name": "code",
                "llm": "llama-2-7b",
                "slo_class": "interactive",
                "arrivals": {
                    "kind": "spikes",
                    "factor": factor,
                    "duration_s": 2.0,
                    "at_s": list(spikes),
                },
                "lengths": {"kind": "fixed", "input_tokens": 1500, "output_tokens": 20, **lengths},
                "rate_per_s": rate,
            }
        ]
    }


def scenario(horizon_s: float = 20.0, work: Any = None, **changes: Any) -> Any:
    one = {f"fleet.pools.{name}.initial_instances": 1 for name in ("prefill", "decode")}
    given = {"workload": work or workload(), "horizon_s": horizon_s, **one, **changes}
    return load_scenario(SCENARIO, impossible_commands="error", **given)


def run(policy: str, of: Any) -> EpisodeResult:
    return run_episode(make_policy(policy), of, seed=3)


def loads(result: EpisodeResult) -> list[tuple[float, tuple[int, ...], tuple[int, ...]]]:
    """Time, slots and sources of every order to load."""
    return [
        (d["time_s"], d["scale"]["slots"], d["scale"]["sources"])
        for d in result.decisions
        if "scale" in d
    ]


def under_way(*rows: tuple[int, int, bool]) -> RequestsUnderWay:
    """Requests handed over: arrival, KV tokens, movable; 10 of the tokens have been emitted."""
    n = len(rows)
    arrival, tokens, movable = (np.array(column) for column in zip(*rows, strict=True))
    whole, real = np.zeros(n, np.int64), np.zeros(n)
    return RequestsUnderWay(
        request_id=np.arange(100, 100 + n),
        arrival_s=arrival.astype(float),
        slo_class=whole,
        deadline_s=real,
        input_tokens=tokens - 10,
        predicted_output_tokens=whole,
        emitted_tokens=whole + 10,
        llm=whole,
        instance=whole,
        state=np.full(n, RequestState.HANDOVER, np.int8),
        movable=movable.astype(bool),
        first_token_s=real,
    )


def shown(
    active: Any, time_s: float = 0.0, *, arrived: int = 0, waits: int = 0, **more: Any
) -> ClusterView:
    """A view of 64 slots: prefill 0 to 31, decode 32 to 63.

    Args:
        active: slots that serve.
        time_s: present time.
        arrived: prompt tokens of the last second.
        waits: prompt tokens of a request that waits for prefill.
        more: columns of instances by slot.
    """
    rows = np.zeros(64, INSTANCE_DTYPE)
    rows["state"] = InstanceState.OFF
    rows["state"][list(active)] = ACTIVE
    for name, values in more.items():
        for slot, value in values.items():
            rows[name][slot] = value
    way = replace(
        under_way((0, 10, True)),
        state=np.array([RequestState.GATEWAY if waits else RequestState.RUNNING], np.int8),
        arrival_s=np.array([time_s]),
        input_tokens=np.array([waits]),
        emitted_tokens=np.array([0]),
    )
    weights = SimpleNamespace(
        instances=rows[None],
        source=np.full((1, 64), -2),
        partner=np.full((1, 64), -1),
        mutating=np.zeros((1, 64), bool),
        home=np.array([[0]]),
        there=np.array([[True]]),
    )
    window = SimpleNamespace(length_s=1.0, input_tokens=np.array([arrived]))
    view = SimpleNamespace(
        time_s=time_s,
        window=window,
        under_way=way,
        weights=weights,
        host_has=lambda host, llm: True,
    )
    return view  # type: ignore[return-value]


def decides(policy: str, max_gpus: int = 32) -> Any:
    """A policy at the start of an episode: instances do 1,000 prompt tokens per second, 10,000 KV tokens."""
    found = make_policy(f"{policy},prefill_tokens_per_s=1000,decode_tokens=10000")
    found.reset(scenario(**{"fleet.max_gpus": max_gpus, "network.nvlink": False}), 0)
    return found
