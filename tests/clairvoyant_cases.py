"""Generated clusters so small that all schedules of instances can be tried."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from llmscale_env.control.command import Command
from llmscale_env.control.results.result import EpisodeResult
from llmscale_env.control.run import run_episode
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.scenarios import Scenario, validate_scenario
from llmscale_env.workload.requests import PS_PER_S, RequestTable

CLASSES = ("fast", "slow")


class Schedule:
    """Instances per interval, and one batch limit."""

    name = "schedule"

    def __init__(self, counts: tuple[int, ...], limit: int) -> None:
        self.counts, self.limit = counts, limit

    def reset(self, scenario: Scenario, seed: int) -> None:
        self.interval = 0

    def act(self, view: Any) -> Command:
        count = self.counts[min(self.interval, len(self.counts) - 1)]
        limits = {} if self.interval else {"batch_limits": {"all": self.limit}}
        self.interval += 1
        return Command(targets={"all": count}, **limits)


def case(seed: int) -> tuple[Scenario, RequestTable]:
    """A scenario of up to two instances and three intervals, and its requests."""
    rng = np.random.default_rng(seed)
    horizon = 30.0
    load = float(rng.choice([1.0, 4.0, 8.0]))
    # The memory left for KV is 60,000 to 400,000 tokens, or (0.23) so little that requests are preempted.
    memory = float(rng.choice([0.23, 0.3, 0.9]))
    scheduler = {
        "chunk_tokens": int(rng.choice([0, 0, 512])),
        "preemption": str(rng.choice(["recompute", "swap"])),
        "v1": None,
    }
    if seed % 4 == 2:
        v1 = {"prefix_cache": False, "asynchronous": seed % 8 == 2}
        scheduler = {"chunk_tokens": 512, "max_batch": 512, "v1": v1}
    scenario = validate_scenario(
        {
            "name": f"case-{seed}",
            "horizon_s": horizon,
            "control_interval_s": 10.0,
            "memory_fraction": memory,
            "classes": [
                {"name": "fast", "ttft_s": float(rng.choice([2, 5, 10])), "itl_s": 0.2},
                {
                    "name": "slow",
                    "ttft_s": 20.0,
                    "itl_s": float(rng.choice([0.5, 2.0])),
                    "priority": 1,
                },
            ],
            "workload": {
                "streams": [
                    {
                        "name": "s",
                        "llm": "llama-3.1-8b",
                        "slo_class": "fast",
                        "rate_per_s": 1.0,
                        "lengths": "sharegpt",
                        "arrivals": "poisson",
                    }
                ]
            },
            "fleet": {
                "max_gpus": 2,
                "pools": [
                    {
                        "name": "all",
                        "llm": "llama-3.1-8b",
                        "max_instances": 2,
                        "initial_instances": int(rng.integers(0, 3)),
                        **scheduler,
                        "load_s": {"ssd": load, "host": load, "multicast": load},
                    }
                ],
                "routes": [{"kind": "jsq-requests", "pools": ["all"]}],
            },
        }
    )
    # Work for the whole horizon, or a burst of it; a part of what two instances can do, or more than that.
    first, last = sorted(rng.uniform(0, 22, 2)) if rng.random() < 0.3 else (0.0, 22.0)
    size, tokens = float(rng.choice([100, 500, 1500])), float(rng.choice([5, 50, 150]))
    n = int(min(rng.uniform(10, 40) / (size * 9e-5 + tokens * 2e-4), 1500))
    arrival = np.sort(rng.uniform(first, last, n) * PS_PER_S).astype(np.int64)
    prompt = 1 + rng.exponential(size, n).astype(np.int64)
    output = 1 + rng.exponential(tokens, n).astype(np.int64)
    prompt, output = np.minimum(prompt, 6000), np.minimum(output, 800)
    zeros = np.zeros(n, np.int16)
    slow = (rng.random(n) < 0.4).astype(np.int16)
    table = RequestTable(
        arrival, zeros, zeros, slow, prompt, output, output, ("llama-3.1-8b",), CLASSES
    )
    return scenario, table


def every_schedule(scenario: Scenario, requests: RequestTable) -> Iterator[EpisodeResult]:
    """Episodes of every schedule of 0 to 2 instances, some with a small batch limit."""
    simulation = ClusterSimulation(scenario)
    for number, counts in enumerate(itertools.product(range(3), repeat=scenario.n_steps)):
        policy = Schedule(counts, 16 if number % 4 == 1 else 256)
        yield run_episode(
            policy, scenario, requests=requests, forecaster=None, simulation=simulation
        )
