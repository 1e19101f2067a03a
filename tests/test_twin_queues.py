"""The planner of virtual queues: what waits too long, which orders are tried, and that the best is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baselines import PolicyError, make_policy
from baselines.twin.late import late_in_queues
from llmscale_env.control.command import Command
from llmscale_env.control.run import run_episode
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.sim.observed import QUEUE_SEEN

SCENARIO = load_scenario("multi-model-queue", horizon_s=600)


def queue(requests: int, tokens: int, predicted: int, oldest_s: float) -> Any:
    row = np.zeros((), QUEUE_SEEN)
    row["requests"], row["tokens"], row["predicted_tokens"] = requests, tokens, predicted
    row["oldest_ps"] = -1 if requests == 0 else round(oldest_s * 1e12)
    return row


def test_who_is_late_in_queues_by_hand() -> None:
    """A prompt token costs 0.01 GPU-seconds, an output token 0.1; two GPUs; it is 100 s now.

    The second queue is due first, at 80 + 30 = 110: its 10 GPU-seconds are done at 105. The first is due at
    90 + 40 = 130 with 100 GPU-seconds, of which 50 fit: half of its eight are late. Nobody is in the third.
    """
    rows = np.array([[queue(8, 0, 1000, 90.0), queue(4, 500, 50, 80.0), queue(0, 0, 0, 0.0)]])
    costs, targets = np.array([[0.01] * 3, [0.1] * 3]), np.array([40.0, 30.0, 1.0])
    assert late_in_queues(rows, costs, targets, 100.0, 2.0).tolist() == [[4.0, 0.0, 0.0]]
    # One GPU: 30 GPU-seconds until 130, 10 of them for the second queue, so 80 of 100 are over.
    assert late_in_queues(rows, costs, targets, 100.0, 1.0).tolist() == [
        [pytest.approx(6.4), 0.0, 0.0]
    ]


class Watched:
    """A policy, and what was tried at each decision."""

    def __init__(self, name: str) -> None:
        inner: Any = make_policy(name)
        self.inner = inner
        self.name = name
        self.tried: list[list[Command]] = []
        self.best: list[int] = []
        found = inner._best

        def best(view: ClusterView, commands: list[Command]) -> int:
            self.tried.append(commands)
            self.best.append(found(view, commands))
            return int(self.best[-1])

        inner._best = best

    def reset(self, scenario: Any, seed: int) -> None:
        self.inner.reset(scenario, seed)

    def act(self, view: ClusterView) -> Command:
        before = len(self.tried)
        given: Command = self.inner.act(view)
        if len(self.tried) > before:
            assert given is self.tried[-1][self.best[-1]]
        return given


def test_it_gives_the_best_of_several_orders() -> None:
    policy = Watched("twin-queues")
    ours = run_episode(policy, SCENARIO, 1003)
    others = run_episode(make_policy("qlm"), SCENARIO, 1003)
    assert max(len(commands) for commands in policy.tried) >= 4
    assert any(policy.best)
    for commands in policy.tried:
        sent = [tuple(sorted(command.pull.items())) for command in commands]
        assert len(set(sent)) == len(sent)
    assert ours.summary["reward"] > others.summary["reward"]


@pytest.mark.slow
def test_threads_and_a_second_run_change_nothing() -> None:
    found = [
        run_episode(make_policy(name), SCENARIO, 3).summary["reward"]
        for name in ("twin-queues", "twin-queues", "twin-queues:threads=2")
    ]
    assert len(set(found)) == 1


def test_a_plan_that_was_not_tried_is_forgotten() -> None:
    """Where QLM plans before anything has come in a whole bin, its groups are gone when orders are tried."""
    scenario = load_scenario("multi-model-queue", horizon_s=90)
    policy = make_policy("twin-queues:invoke=always")
    assert len(run_episode(policy, scenario, 0).decisions) == 90 / scenario.control_interval_s


def test_it_is_refused_where_it_cannot_plan() -> None:
    for env in ("mixed-slo-hours", "multi-region"):
        with pytest.raises(PolicyError, match="twin-queues"):
            make_policy("twin-queues").reset(load_scenario(env, horizon_s=900), 0)
