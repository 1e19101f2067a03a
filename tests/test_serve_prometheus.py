"""The shadow on a real Prometheus server that scrapes a simulated cluster every second."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from baselines import make_policy
from baselines.practice.seen import kv_capacity
from experiments.desk.advising.case import POOL
from experiments.desk.serve.metrics import Reader
from experiments.desk.serve.seen import Cluster, Target, needs
from experiments.desk.serve.shadow import Shadow
from llmscale_env.control.command import Command
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.scenarios.load import load_scenario
from llmscale_env.workload.served.client import Prometheus
from tests.shadowed_cluster import (
    NAMESPACE,
    Pod,
    PodServer,
    PrometheusServer,
    Replay,
    caught_up,
    find_prometheus,
    running,
    wait_until,
)

BINARY = find_prometheus(Path(__file__).resolve().parents[1])
pytestmark = pytest.mark.skipif(
    BINARY is None,
    reason="no Prometheus server: none in PATH, in $LLMSCALE_PROMETHEUS or from `make prometheus`",
)

EVERY_S = 15.0
CLUSTER = Cluster("llama-3.1-8b", "a100-80gb", 1, 30.0, 12, EVERY_S, (Target("all", 1.0, 0.05),))
STEPS = 24
DRIVER = "hpa:concurrency_target=64+queue_target=none+kv_target=none+down_window_s=60"
POLICIES = (
    DRIVER,
    "keda:kv_target=0.05+queue_target=2",
    "kpa:target=40+stable_window_s=30",
    "ray-serve:target=20+look_back_s=15+up_delay_s=0+down_delay_s=45",
    "wva:kv_threshold=0.1+kv_spare=0.05+period_s=15+metric_window_s=30",
    "static:serving=5",
)


def shadow_of(policy: str, prometheus: PrometheusServer, **changes: object) -> Shadow:
    reader = Reader(
        Prometheus(prometheus.url),
        EVERY_S,
        CLUSTER.max_instances,
        kv_capacity(CLUSTER.scenario(1), 0),
        f'namespace="{NAMESPACE}",job="vllm"',
        NAMESPACE,
        load_s=CLUSTER.load_s,
    )
    return Shadow(make_policy(policy), CLUSTER, replace(reader, **changes))


def wait_for(prometheus: PrometheusServer, pods: PodServer, step: int) -> None:
    wait_until(lambda: caught_up(prometheus, pods, step), 60.0, f"samples of step {step}")


def scrape_failed(prometheus: PrometheusServer, pod: str) -> bool:
    return prometheus.query("up").get(pod) == 0.0


def a_busy_middle(seed: int = 3):
    """(scenario, requests): few, then many, then few."""
    rate = 24.0
    scenario = load_scenario(CLUSTER.scenario(2, rate), horizon_s=STEPS * EVERY_S)
    requests = draw_requests(scenario, np.random.default_rng(seed))
    middle = (requests.arrival_s > 60) & (requests.arrival_s < 180)
    keep = middle | (np.random.default_rng(seed).random(len(requests.arrival_s)) < 0.15)
    return scenario, requests.take(np.flatnonzero(keep))


class Expected:
    """What a policy orders in the simulator, of which it sees everything."""

    def __init__(self, name: str, scenario) -> None:
        self.policy = make_policy(name)
        self.policy.reset(scenario, 0)
        self.order = -1

    def act(self, view) -> Command:
        command = self.policy.act(view)
        if command != Command():
            self.order = command.targets.get(POOL, view.instances_of(0))
        return command


@pytest.mark.slow
@pytest.mark.parametrize("replicas_known", [True, False])
def test_decisions_equal_those_in_the_simulator(tmp_path, replicas_known):
    """Also over a restart of Prometheus, counters reset, a missed scrape, and a pod that vanishes."""
    scenario, requests = a_busy_middle()
    for name in POLICIES:
        assert needs(make_policy(name), CLUSTER) == ""
    sim = ClusterSimulation(scenario)
    sim.start(0, requests)
    expected = {name: Expected(name, scenario) for name in POLICIES}
    orders = {name: [] for name in POLICIES}
    vanished = restarted = False
    with running(BINARY, tmp_path) as (prometheus, pods):
        replay = Replay(sim, pods, kv_capacity(scenario, 0))
        kube = {"deployment": "vllm"} if replicas_known else {}
        shadows = {name: shadow_of(name, prometheus, **kube) for name in POLICIES}
        names_before: set[str] = set()
        for step in range(STEPS):
            view = sim.view(0)
            commands = {name: each.act(view) for name, each in expected.items()}
            pods.replicas = view.instances_of(0) if replicas_known else None
            replay.show(step)
            wait_for(prometheus, pods, step)
            serving = [name for name, pod in pods.pods.items() if pod is not None]
            if step == 12:  # one scrape fails, and the sample before it is still there
                pods.failing = {serving[0]}
                failed = partial(scrape_failed, prometheus, serving[0])
                wait_until(failed, 30.0, "a scrape that failed")
            at_s = time.time()
            decisions = {name: each.decide(step, at_s) for name, each in shadows.items()}
            pods.failing = set()
            for name, decision in decisions.items():
                assert decision.held == "", (step, name)
                if decision.kept:  # nobody says whether the pod that vanished was deleted
                    assert vanished, (step, name, decision)
                    assert not replicas_known, (step, name, decision)
                    gone = decision.seen["missing"]
                    assert not set(gone) & set(pods.pods)
                    assert expected[name].order < decision.order == decision.have + len(gone)
                else:
                    assert decision.order == expected[name].order, (step, name, decision)
                assert decision.reason == commands[name].reason, (step, name)
                orders[name].append(decision.order)
            seen, window = decisions[DRIVER].seen, view.window
            assert (seen["running"], seen["waiting"]) == (
                int(view.pools["running"][0]),
                int(view.pools["waiting"][0] + view.pools["preempted"][0]),
            )
            alike = set(serving) == names_before and step not in (8, 9)
            names_before = set(serving)
            if alike and not vanished and step > 0:
                found = {k: seen["window"][k] for k in ("started", "finished", "output_tokens")}
                assert found == {k: float(getattr(window, k).sum()) for k in found}, step
                assert seen["window"]["arrived"] == float(window.arrived.sum()), step
                mean = seen["window"]["ttft_sum_s"] / max(1, seen["window"]["started"])
                assert mean == pytest.approx(float(window.ttft_mean_s[0]), abs=1e-4, nan_ok=True)
            sim.apply(0, commands[DRIVER])
            if step == 7:
                replay.reset(serving[0])
            if step == 8:
                assert seen["counter_resets"] > 0
            if step == 10:
                prometheus.stop()
                down = shadow_of("static:serving=5", prometheus).decide(0, time.time())
                assert down.order is None
                assert down.held.startswith("Prometheus")
                prometheus.start()
                restarted = True
            if step == 14:
                fails = next(iter(replay.names()))
                replay.failed.add(fails)
                sim.apply(0, Command(fail=(fails,)))
                vanished = True
            sim.advance()
    assert restarted
    assert max(orders[DRIVER]) > 4 > orders[DRIVER][-1]  # it went up and down again
    for name in POLICIES[1:-1]:
        assert len(set(orders[name])) > 2, name


def test_a_shadow_over_failures_of_all_kinds(tmp_path):
    """With pods set by hand: load, a missing pod, a server that is down, a shadow that begins anew."""
    policy = "keda:kv_target=0.5+queue_target=10"
    with running(BINARY, tmp_path) as (prometheus, pods):
        for name in ("a", "b", "c"):
            pods.pods[name] = Pod(running=10, waiting=0, kv=0.5, tokens=1000.0)
        pods.pods["d"] = None  # loads
        pods.list_targets()
        wait_for(prometheus, pods, 0)
        shadow = shadow_of(policy, prometheus)
        first = shadow.decide(0, time.time())
        assert (first.have, first.order, first.seen["on_the_way"]) == (4, 4, 1)

        for name in ("a", "b", "c"):
            pods.pods[name] = Pod(running=10, waiting=20, kv=0.5, tokens=1500.0, step=1)
        pods.pods["a"].tokens = 100.0  # restarted between two scrapes
        wait_for(prometheus, pods, 1)
        second = shadow.decide(1, time.time())
        assert (second.order, second.seen["waiting"]) == (6, 60)
        assert second.seen["counter_resets"] == 1
        assert second.seen["window"]["tokens"] == 100 + 500 + 500

        for name in ("b", "c"):
            pods.pods[name] = Pod(kv=0.1, step=2)
        pods.failing = {"a"}
        wait_until(
            lambda: (
                time.time() - prometheus.query('timestamp(up{pod="b"})')["b"] < 0.4
                and "a" in shadow.reader.look(2, time.time()).missing
            ),
            30.0,
            "a is missing",
        )
        missing = shadow.decide(3, time.time())
        assert (missing.order, missing.have) == (4, 4)
        assert missing.kept == "kept at 4, not 1: 2 of 4 pods serve"
        assert missing.seen["missing"] == ["a", "d"]  # of d nobody knows since when it loads

        prometheus.stop()
        down = shadow.decide(4, time.time())
        assert (down.order, down.have) == (4, None)
        assert down.held.startswith("Prometheus: no answer")
        pods.failing = set()
        pods.pods = {name: Pod(kv=0.1, step=5) for name in ("b", "c")}  # a and d are deleted
        pods.list_targets()
        prometheus.start()
        both = {"b": 5.0, "c": 5.0}
        wait_until(
            lambda: both.items() <= prometheus.query("replay_step").items(), 60.0, "scrapes again"
        )
        # That a and d were deleted meanwhile, Prometheus does not know.
        again = shadow_of(policy, prometheus).decide(0, time.time())
        assert (again.held, again.seen["missing"]) == ("", ["a", "d"])
        assert (again.order, again.have) == (4, 4)  # one that begins anew keeps what it finds
        after = shadow.decide(6, time.time())
        assert (after.held, after.order) == ("", 4)
        assert after.seen["window_s"] == 3 * EVERY_S
