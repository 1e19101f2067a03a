"""`llmscale serve`: what is seen of a cluster, who can run on it, what is held, what is written."""

from __future__ import annotations

import inspect
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baselines import make_policy
from baselines.practice.seen import kv_capacity
from experiments.desk.advising.case import POOL
from experiments.desk.serve import command
from experiments.desk.serve.metrics import FIRST_S, LONGEST_S, Reader, describe
from experiments.desk.serve.ordered import FORMER_S, Found, Ordered
from experiments.desk.serve.scale import KubernetesError, Limits, Scale, ScaleApi, Writer
from experiments.desk.serve.seen import (
    Cluster,
    NotSeen,
    SeenView,
    Target,
    act,
    needs,
    runnable,
    seen_of,
    trial,
)
from experiments.desk.serve.shadow import Decision, Exporter, Shadow, log_line
from llmscale_env._cli import Slip
from llmscale_env.control.command import Command
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.workload.served.client import (
    Prometheus,
    PrometheusError,
    Series,
    is_address,
    label_matchers,
)
from tests.shadowed_cluster import free_port

EVERY_S = 30.0
ONE = Cluster("llama-3.1-8b", "a100-80gb", 1, 60.0, 20, EVERY_S, (Target("all", 1.0, 0.05),))
TWO = replace(ONE, targets=(Target("chat", 1.0, 0.05), Target("batch", 60.0, 0.2)))
RUN = ("static", "hpa", "kpa", "ray-serve", "keda", "wva")


# ---- what is seen ----


@pytest.fixture(scope="module")
def views() -> Callable[[Cluster], Iterator[Any]]:
    """Makes views of a simulated cluster, decision by decision, that follows an autoscaler."""

    def of(cluster: Cluster, policy: str = "hpa:concurrency_target=64") -> Iterator[Any]:
        scenario = trial(cluster)
        sim = ClusterSimulation(scenario)
        sim.start(0, draw_requests(scenario, np.random.default_rng(1)))
        driver = make_policy(policy)
        driver.reset(scenario, 0)
        for _ in range(scenario.n_steps):
            view = sim.view(0)
            yield view
            sim.apply(0, driver.act(view))
            sim.advance()

    return of


@pytest.mark.parametrize("name", RUN)
def test_what_is_seen_is_enough(views, name):
    """A policy that sees only what vLLM tells decides as one that sees everything."""
    full, blind = make_policy(name), make_policy(name)
    scenario = trial(ONE)
    full.reset(scenario, 0)
    blind.reset(scenario, 0)
    orders = [(full.act(view), act(blind, scenario, seen_of(view))) for view in views(ONE)]
    assert all(one == other for one, other in orders)
    changes = {command.targets.get(POOL) for command, _ in orders}
    assert len(changes) > (1 if name == "static" else 2)


def test_which_policies_can_run():
    found = dict(runnable(ONE))
    assert {name for name, lacks in found.items() if not lacks} == set(RUN)
    assert "pools.waiting_tokens" in found["llumnix"]
    assert "totals.input_tokens" in found["dynamo"]
    assert "arrived" in found["twin"]
    assert not any("\n" in lacks for lacks in found.values())


class _Asks:
    """Reads one thing of every view."""

    name = "asks"

    def __init__(self, reads: Callable[[Any], Any], after: int = 0) -> None:
        self.reads, self.after = reads, after

    def reset(self, scenario: Any, seed: int) -> None:
        pass

    def act(self, view: Any) -> Command:
        if view.step >= self.after:
            self.reads(view)
        return Command(targets={POOL: 3})


@pytest.mark.parametrize(
    "reads,lacks",
    [
        (lambda view: view.under_way, "under_way"),
        (lambda view: view.queued(0), "queued"),
        (lambda view: view.waiting, "waiting"),
        (lambda view: view.snapshot, "snapshot"),
        (lambda view: view.forecast_rate_per_s, "forecast_rate_per_s"),
        (lambda view: view.history, "history"),
        (lambda view: view.save_under_way(), "save_under_way"),
        (lambda view: getattr(view, "reports", None), "reports"),
        (lambda view: view.pools["oldest_s"], "pools.oldest_s"),
        (lambda view: view.pools[0]["limit_sum"], "pools.limit_sum"),
        (lambda view: view.pools[0].dtype, "pools"),
        (lambda view: view.instances["batch_limit"], "instances.batch_limit"),
        (lambda view: view.instances[:1]["loaded_s"], "instances.loaded_s"),
        (lambda view: view.totals["on_time"], "totals.on_time"),
        (lambda view: view.window.ttft_late, "window.ttft_late"),
        (lambda view: view.window.ttft_max_s, "window.ttft_max_s"),
        (lambda view: view.window.violations, "window.violations"),
    ],
)
def test_what_vllm_does_not_tell(reads, lacks):
    found = needs(_Asks(reads), ONE)
    assert found.startswith(f"needs {lacks}: vLLM does not tell ")
    assert needs(_Asks(reads, after=20), ONE) == found  # also of one that asks late


def test_the_future_is_not_seen():
    told = _Asks(lambda view: None)
    told.is_clairvoyant = True
    assert "future" in needs(told, ONE)
    assert needs(_Asks(lambda view: None), ONE) == ""


def test_counts_are_seen_of_one_class(views):
    some = 0
    for view in views(ONE):
        shown = SeenView(view.scenario, seen_of(view))
        window, pools, rows = shown.window, shown.pools, shown.instances
        for name in ("arrived", "started", "finished", "output_tokens"):
            assert np.array_equal(getattr(window, name), getattr(view.window, name))
            assert np.array_equal(shown.totals[name], view.totals[name])
        for name in ("ttft_mean_s", "itl_mean_s", "arrival_rate_per_s"):
            assert np.allclose(getattr(window, name), getattr(view.window, name), equal_nan=True)
        for name in ("tokens", "preemptions"):
            assert np.array_equal(getattr(window, name), getattr(view.window, name))
        for name in ("active", "draining", "running", "kv_tokens", "kv_capacity", "kv_max"):
            assert np.array_equal(pools[name], view.pools[name])
        assert pools[0]["waiting"] == view.pools[0]["waiting"] + view.pools[0]["preempted"]
        assert pools["loading"][0] == view.pools["loading"][0] + view.pools["acquiring"][0]
        assert shown.instances_of(0) == view.instances_of(0)
        assert shown.pool(POOL)["active"] == view.pools["active"][0]
        active = view.pools["active"][0]
        assert int((rows["state"] == view.instances["state"].max()).sum()) <= len(rows)
        assert len(rows[rows["kv_tokens"] > 0]) <= active + int(view.pools["draining"][0])
        some += int(window.arrived[0])
    assert some > 1000


def test_counts_are_not_seen_of_several_classes(views):
    view = next(iter(views(TWO)))
    shown = SeenView(view.scenario, seen_of(view))
    for reads in (lambda: shown.window.arrived, lambda: shown.totals["finished"]):
        with pytest.raises(NotSeen, match="class"):
            reads()
    assert shown.window.tokens.tolist() == [0]
    assert needs(make_policy("keda"), TWO) == ""


def test_there_is_one_pool(views):
    view = next(iter(views(ONE)))
    shown = SeenView(view.scenario, seen_of(view))
    with pytest.raises(KeyError, match="batch"):
        shown.pool("batch")
    with pytest.raises(IndexError, match="pool 1"):
        shown.instances_of(1)
    assert (shown.time_s, shown.step, shown.clock_s) == (0.0, 0, view.clock_s)


# ---- what Prometheus has ----


class Store:
    """Samples in memory, asked as the reader asks Prometheus."""

    ahead = 0.0

    def ahead_s(self) -> float:
        return self.ahead

    def __init__(self) -> None:
        self.samples: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
        self.ended: dict[tuple[tuple[str, str], ...], float] = {}
        self.down = False

    def add(self, name: str, time_s: float, value: float, **labels: str) -> None:
        key = tuple(sorted({"__name__": name, **labels}.items()))
        self.samples.setdefault(key, []).append((time_s, value))
        self.ended.pop(key, None)

    def end(self, time_s: float, **labels: str) -> None:
        """These series are marked stale: their target is gone."""
        for key in self.samples:
            if labels.items() <= dict(key).items():
                self.ended[key] = time_s

    def query(self, text: str, at_s: float) -> list[Series]:
        if self.down:
            raise PrometheusError("no answer")
        found = re.fullmatch(r"(\w*)(?:\{(.*)\})?(?:\[(\d+)s\])?", text)
        assert found, text
        name, inner, back = found.groups()
        matchers = re.findall(r'(\w+)(=~?)"([^"]*)"', inner or "")
        if name:
            matchers.append(("__name__", "=", name))
        rows = []
        for key, samples in self.samples.items():
            labels = dict(key)
            if not all(
                re.fullmatch(value if op == "=~" else re.escape(value), labels.get(label, ""))
                for label, op, value in matchers
            ):
                continue
            if back:
                kept = [s for s in samples if at_s - int(back) < s[0] <= at_s]
            else:
                kept = [s for s in samples if at_s - 300 < s[0] <= at_s][-1:]
                kept = [] if self.ended.get(key, np.inf) <= at_s else kept
            if kept:
                times, values = zip(*kept, strict=True)
                rows.append(Series(labels, times, values))
        return rows

    def scrape(self, time_s: float, pod: str, up: bool = True, **values: float) -> None:
        """A scrape of a pod: gauges and counters by short names."""
        labels = {"pod": pod, "namespace": "llm"}
        self.add("up", time_s, float(up), **labels)
        if not up:
            return
        given = {"running": 0.0, "waiting": 0.0, "kv": 0.0, **values}
        for short, value in given.items():
            self.add(LONG[short], time_s, value, **labels)


LONG = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv": "vllm:kv_cache_usage_perc",
    "old_kv": "vllm:gpu_cache_usage_perc",
    "started": "vllm:time_to_first_token_seconds_count",
    "ttft": "vllm:time_to_first_token_seconds_sum",
    "finished": "vllm:request_success_total",
    "tokens": "vllm:generation_tokens_total",
    "itl_sum": "vllm:inter_token_latency_seconds_sum",
    "itl_count": "vllm:inter_token_latency_seconds_count",
}
T = 1_700_000_000.0
SCRAPE_S = 10.0


def reader_of(store: Store, **changes: Any) -> Reader:
    reader = Reader(store, EVERY_S, 4, 1000, 'namespace="llm"')  # type: ignore[arg-type]
    return replace(reader, **changes)


def filled(pods: dict[str, dict[str, float]], times: Any = (0, 10, 20, 30)) -> Store:
    store = Store()
    for time_s in times:
        for pod, values in pods.items():
            store.scrape(T + time_s, pod, **values)
    return store


def test_pods_become_a_view():
    store = filled({"a": {"running": 3, "waiting": 2, "kv": 0.25}, "b": {"running": 1, "kv": 0.5}})
    store.scrape(T + 30, "c", up=False)
    reading = reader_of(store).look(0, T + 31)
    seen = reading.seen
    assert (seen.have, seen.on_the_way, int(seen.active.sum())) == (3, 1, 2)
    assert (seen.running.tolist(), seen.waiting.tolist()) == ([3, 1, 0, 0], [2, 0, 0, 0])
    assert seen.kv_tokens.tolist() == [250, 500, 0, 0]
    assert (seen.length_s, seen.step, seen.time_s) == (0.0, 0, 0.0)
    assert (reading.interval_s, reading.sample_s, reading.pods) == (10.0, T + 30, ("a", "b"))
    assert set(seen.window.values()) == {0.0}
    monday = time.gmtime(T + 31)
    clock = monday.tm_wday * 86_400 + monday.tm_hour * 3600 + monday.tm_min * 60 + monday.tm_sec
    assert seen.clock_s == pytest.approx(clock)


def test_the_same_samples_give_the_same_readings():
    store = filled({"b": {"running": 3, "tokens": 7}, "a": {"running": 1}})
    other = Store()
    other.samples = dict(reversed(store.samples.items()))
    one, two = reader_of(store).look(0, T + 31), reader_of(other).look(0, T + 31)
    assert np.array_equal(one.seen.running, two.seen.running)
    assert (one.pods, one.sample_s, one.seen.window) == (two.pods, two.sample_s, two.seen.window)


def test_counters_that_grow_begin_and_are_reset():
    store = filled({"a": {"tokens": 100, "finished": 5, "running": 4}})
    reader = reader_of(store)
    reader.look(0, T + 31)
    store.scrape(T + 40, "a", tokens=150, finished=6, running=4)
    store.scrape(T + 50, "a", tokens=20, finished=0, running=1)  # restarted
    store.scrape(T + 60, "a", tokens=50, finished=2, running=3)
    store.scrape(T + 60, "b", tokens=30, finished=1, running=2)  # a pod that is new
    store.add(LONG["finished"], T + 60, 4, pod="a", namespace="llm", finished_reason="abort")
    reading = reader.look(1, T + 61)
    window = reading.seen.window
    assert window["tokens"] == 50 + 20 + 30 + 30
    assert window["finished"] == (1 + 0 + 2 + 4) + 1
    assert window["arrived"] == (7 + 3) + (1 + 2)  # the restarted one had nothing before
    assert reading.resets == 2
    assert reading.seen.length_s == EVERY_S
    assert reading.seen.totals["tokens"] == 130
    again = reader.look(2, T + 62)  # no new sample: nothing is counted twice
    assert (again.seen.window["tokens"], again.seen.totals["tokens"]) == (0, 130)


def test_arrivals_are_what_finished_and_what_is_there_more():
    store = filled({"a": {"finished": 5, "running": 4, "waiting": 1}})
    reader = reader_of(store)
    reader.look(0, T + 31)
    store.scrape(T + 60, "a", finished=12, running=6, waiting=2)
    assert reader.look(1, T + 61).seen.window["arrived"] == 7 + 3
    store.scrape(T + 90, "a", finished=12, running=1, waiting=0)  # clients went away
    assert reader.look(2, T + 91).seen.window["arrived"] == 0


def test_means_are_of_the_interval():
    store = filled({"a": {"started": 10, "ttft": 5.0, "itl_sum": 1.0, "itl_count": 100}})
    reader = reader_of(store)
    reader.look(0, T + 31)
    store.scrape(T + 60, "a", started=14, ttft=7.0, itl_sum=1.5, itl_count=110)
    view = SeenView(ONE.scenario(1), reader.look(1, T + 61).seen)
    assert view.window.ttft_mean_s[0] == pytest.approx(0.5)
    assert view.window.itl_mean_s[0] == pytest.approx(0.05)


def test_a_missed_scrape_changes_nothing_and_several_do():
    store = filled({"a": {"running": 3}, "b": {"running": 2}, "c": {"running": 1}})
    reader = reader_of(store)
    reader.look(0, T + 31)
    for late in (40, 50, 60, 70):
        store.scrape(T + late, "a", up=False)
        for pod in "bc":
            store.scrape(T + late, pod, running=2)
    one = reader.look(1, T + 41)
    assert (int(one.seen.running.sum()), one.missing, one.sample_s) == (7, (), T + 30)
    several = reader.look(2, T + 71)
    assert (int(several.seen.running.sum()), several.missing) == (4, ("a",))
    assert (several.seen.have, several.seen.on_the_way) == (3, 1)
    for late in range(80, 1000, 10):
        store.scrape(T + late, "a", up=False)
        store.scrape(T + late, "b", running=2)
        store.scrape(T + late, "c", running=2)
    much_later = reader.look(32, T + 991)  # it is not taken for one that loads
    assert much_later.missing == ("a",)
    assert (much_later.ordered, much_later.expected, much_later.seen.on_the_way) == (3, 3, 1)


def test_a_pod_that_is_gone_leaves_its_slot():
    store = filled({"a": {"running": 3}, "b": {"running": 2, "tokens": 5}})
    reader = reader_of(store)
    reader.look(0, T + 31)
    store.end(T + 35, pod="a")
    store.scrape(T + 60, "b", running=2, tokens=9)
    reading = reader.look(1, T + 61)
    assert (reading.seen.have, reading.ordered, reading.pods) == (1, 2, ("b",))
    assert reading.missing == ("a",)  # so far: nobody ordered fewer
    assert reading.seen.running.tolist() == [0, 2, 0, 0]
    assert reading.seen.window["tokens"] == 4
    store.scrape(T + 90, "b", running=2)
    store.scrape(T + 90, "d", running=7)
    assert reader.look(2, T + 91).seen.running.tolist() == [7, 2, 0, 0]


def test_more_pods_than_expected_are_all_seen():
    store = filled({f"p{k}": {"running": k} for k in range(6)})
    assert reader_of(store).look(0, T + 31).seen.running.tolist() == [0, 1, 2, 3, 4, 5]


def test_replicas_and_deletions_come_from_kube_state_metrics():
    store = filled({"a": {"running": 3, "kv": 0.5}, "b": {"running": 2, "kv": 0.1}})
    for late in (0, 30):
        store.add("kube_deployment_spec_replicas", T + late, 5, deployment="vllm", namespace="llm")
    store.add("kube_pod_deletion_timestamp", T + 30, 1, exported_pod="b", exported_namespace="llm")
    store.add("kube_pod_deletion_timestamp", T + 30, 1, pod="a", namespace="other")
    reading = reader_of(store, namespace="llm", deployment="vllm").look(0, T + 31)
    assert (reading.replicas, reading.seen.have, reading.seen.on_the_way) == (5, 5, 4)
    pools = SeenView(ONE.scenario(1), reading.seen).pools[0]
    assert (pools["draining"], pools["running"], pools["kv_tokens"]) == (1, 5, 500)
    assert reader_of(store, namespace="llm").look(0, T + 31, replicas=2).seen.have == 2


def test_names_of_older_versions_and_several_engines():
    store = Store()
    for late in (20, 30):
        store.add("up", T + late, 1, instance="h:1", namespace="llm")
        for engine, (running, kv) in {"0": (3, 0.2), "1": (5, 0.4)}.items():
            labels = {"instance": "h:1", "namespace": "llm", "engine": engine}
            store.add(LONG["running"], T + late, running, **labels)
            store.add(LONG["waiting"], T + late, 1, **labels)
            store.add(LONG["old_kv"], T + late, kv, **labels)
    seen = reader_of(store).look(0, T + 31).seen
    assert (seen.running[0], seen.waiting[0], seen.kv_tokens[0]) == (8, 2, 300)


def test_a_store_without_up_and_a_selector_of_nothing():
    store = filled({"a": {"running": 3}})
    store.samples = {
        key: rows for key, rows in store.samples.items() if ("__name__", "up") not in key
    }
    assert reader_of(store).look(0, T + 31).seen.have == 1
    store.add("up", T + 30, 1.0, instance="node-exporter", job="node")
    assert reader_of(store, selector="").look(0, T + 31).seen.have == 1


@pytest.mark.parametrize("late,interval", [(51, None), (26, 10.0), (25, None)])
def test_a_gap(late, interval):
    reader = reader_of(filled({"a": {"running": 3}}), scrape_s=interval)
    before = reader.look(0, T + 31)
    if late > 25:
        with pytest.raises(PrometheusError, match=f"gap: the newest sample is {late - 5}"):
            reader.look(1, T + 25 + late)
        assert before.seen.step == 0
    else:
        assert reader.look(1, T + 50).seen.step == 1


def test_after_a_gap_the_window_is_as_long_and_after_a_long_one_begins_anew():
    store = filled({"a": {"tokens": 10}})
    reader = reader_of(store)
    reader.look(0, T + 31)
    for late in (300, 310):
        store.scrape(T + late, "a", tokens=70)
    seen = reader.look(10, T + 311).seen
    assert (seen.length_s, seen.window["tokens"], seen.step) == (300.0, 60, 1)
    store.scrape(T + 320 + LONGEST_S, "a", tokens=500)
    store.scrape(T + 330 + LONGEST_S, "a", tokens=500)
    seen = reader.look(140, T + 331 + LONGEST_S).seen
    assert (seen.length_s, seen.window["tokens"], seen.totals["tokens"]) == (0.0, 0, 60)


def test_nothing_matches():
    store = filled({"a": {}})
    with pytest.raises(PrometheusError, match="nothing matches"):
        reader_of(store, selector='namespace="other"').look(0, T + 31)
    with pytest.raises(PrometheusError, match="nothing matches"):
        reader_of(Store()).look(0, T + FIRST_S)


@contextmanager
def http_server(answer: Callable[[Any], tuple[int, bytes]]) -> Iterator[str]:
    """A server whose answers are made of the handler of each request."""

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            code, body = answer(self)
            try:
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                pass  # who asked has gone

        do_GET = do_PATCH = _any

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    "code,body,says",
    [
        (400, b'{"status":"error","error":"parse error"}', "HTTP 400: parse error"),
        (502, b"<html>bad gateway</html>", "HTTP 502"),
        (400, b"[" * 100_000, "HTTP 400: no reason given"),
        (200, b"<html>login</html>", "not JSON"),
        (200, b"[" * 200_000, "not JSON"),
        (200, b'{"status":"success","data":{"result":[{"metric":{}}]}}', "not an answer"),
        (200, b'{"status":"success","data":{"result":5}}', "not an answer"),
        (200, b"[]", "not an answer"),
        (200, b'{"status":"error","error":"too\\nmuch"}', "too much"),
        (200, b'{"status":"error","data":{"result":[]}}', "refused"),
        (
            200,
            b'{"status":"success","warnings":["a store is away"],"data":{"result":[]}}',
            "a store is away",
        ),
        *(
            (
                200,
                b'{"status":"success","data":{"result":[{"metric":{},"value":[%s]}]}}' % sample,
                "not an answer",
            )
            for sample in (b'5,"abc"', b"5", b"NaN,1", b"5,null", b"5," + b"9" * 400)
        ),
        (200, b" " * 5000, "more than 4,000 bytes"),
    ],
)
def test_answers_that_are_none(code, body, says):
    most = 2**26 if b"[[" in body else 4000
    with (
        http_server(lambda _: (code, body)) as url,
        pytest.raises(PrometheusError, match=re.escape(says)) as told,
    ):
        Prometheus(url, most_bytes=most).query("up", T)
    assert "\n" not in str(told.value)


def test_the_clock_of_a_server():
    def answer(handler: Any) -> tuple[int, bytes]:
        asked.append(handler.path)
        now = time.time() + 100
        told = {"status": "success", "data": {"resultType": "scalar", "result": [now, str(now)]}}
        return 200, json.dumps(told).encode()

    asked: list[str] = []
    with http_server(answer) as url:
        assert Prometheus(url).ahead_s() == pytest.approx(100, abs=2)
    assert asked == ["/api/v1/query?query=time%28%29"]
    for body in (b'{"status":"success","data":{"result":[1,"NaN"]}}', b'{"status":"success"}'):
        with (
            http_server(lambda _, body=body: (200, body)) as url,
            pytest.raises(PrometheusError, match="no time"),
        ):
            Prometheus(url).ahead_s()


@pytest.mark.parametrize(
    "text,good",
    [
        ("http://h:9090", True),
        ("https://[::1]:9090/prom", True),
        ("http://u:p@h:9090", False),
        ("http://u@h", False),
        ("http://:p@h", False),
        ('http://h"x', False),
        ("http://h'x", False),
        ("http://h\x00", False),
        ("http://h\u2028x", False),
        ("http://h x", False),
        ("http://h?x=1", False),
        ("http://h:0", False),
        ("http://", False),
        ("ftp://h", False),
    ],
)
def test_addresses(text, good):
    assert is_address(text) is good


def test_a_server_that_is_not_there_or_does_not_answer(tmp_path):
    with pytest.raises(PrometheusError, match="no answer"):
        Prometheus(f"http://127.0.0.1:{free_port()}").query("up", T)
    release = threading.Event()
    with http_server(lambda _: (release.wait(20), (200, b""))[1]) as url:
        with pytest.raises(PrometheusError, match="no answer"):
            Prometheus(url, timeout_s=0.1).query("up", T)
        release.set()
    asked: list[tuple[str, str | None]] = []

    def answer(handler: Any) -> tuple[int, bytes]:
        asked.append((handler.path, handler.headers["Authorization"]))
        return (
            200,
            b'{"status":"success","data":{"result":[{"metric":{"pod":"a"},"value":[5,"NaN"]}]}}',
        )

    token = tmp_path / "token"
    token.write_text("secret\n")
    with http_server(answer) as url:
        (row,) = Prometheus(f"{url}/prom/", token_file=token).query('up{a="b"}', 5.0)
    assert (row.labels, row.times_s) == ({"pod": "a"}, (5.0,))
    assert np.isnan(row.values[0])
    assert asked == [("/prom/api/v1/query?query=up%7Ba%3D%22b%22%7D&time=5.000", "Bearer secret")]


@pytest.mark.parametrize("text", ["namespace=llm", 'a="b"}[5m] or up{c="d"', 'a="b",', "", "x"])
def test_selectors_that_are_none(text):
    with pytest.raises(ValueError, match="label matchers"):
        label_matchers(text)


def test_selectors():
    assert label_matchers('{namespace="llm", job=~"v.*"}') == 'namespace="llm", job=~"v.*"'


# ---- what is decided ----


def shadow_of(store: Store, policy: Any = None, writer: Writer | None = None) -> Shadow:
    policy = make_policy("keda:kv_target=0.5+queue_target=10") if policy is None else policy
    reader = reader_of(store, kv_capacity=kv_capacity(ONE.scenario(1), 0), load_s=ONE.load_s)
    return Shadow(policy, ONE, reader, writer)


LOADED = {pod: {"running": 10.0, "waiting": 20.0, "kv": 0.5} for pod in "abc"}


def test_a_shadow_begins_with_what_there_is_and_then_decides():
    store = filled(LOADED)
    shadow = shadow_of(store)
    first = shadow.decide(0, T + 31)
    assert (first.order, first.have, first.held) == (3, 3, "")
    assert set(first.not_applied) == {"batch_limits", "controllers", "routers"}
    for pod in "abc":
        store.scrape(T + 60, pod, **LOADED[pod])
    second = shadow.decide(1, T + 61)
    assert (second.order, second.reason) == (6, "kv 1.5, queue 60")
    assert "order 6" in second.line()
    assert json.loads(log_line(second))["seen"]["waiting"] == 60


def test_an_empty_command_leaves_the_last_order():
    store = filled(LOADED)
    shadow = shadow_of(store, make_policy("static:serving=7"))
    for turn in range(3):
        assert shadow.decide(turn, T + 31 + turn).order == 7


def test_without_prometheus_the_last_order_stands():
    store = filled(LOADED)
    shadow = shadow_of(store)
    store.down = True
    nothing = shadow.decide(0, T + 30)
    assert (nothing.order, nothing.held) == (None, "Prometheus: no answer")
    store.down = False
    shadow.decide(1, T + 31)
    for pod in "abc":
        store.scrape(T + 60, pod, **LOADED[pod])
    assert shadow.decide(2, T + 61).order == 6
    store.down = True
    held = shadow.decide(3, T + 91)
    assert (held.order, held.have, held.view_age_s) == (6, None, 31.0)
    store.down = False
    for pod in "abc":
        store.scrape(T + 300, pod)
    back = shadow.decide(10, T + 301)
    assert (back.order, back.held, back.seen["window_s"]) == (1, "", 8 * EVERY_S)


def test_where_pods_are_missing_no_order_is_below_them_and_where_most_are_it_stands():
    store = filled(LOADED)
    shadow = shadow_of(store)
    shadow.decide(0, T + 31)
    for late in (40, 50, 60, 70, 80):
        store.scrape(T + late, "a", up=False)
        store.scrape(T + late, "b", up=late < 60)
        store.scrape(T + late, "c", kv=0.01)
    few = shadow.decide(1, T + 61)
    assert (few.order, few.kept) == (3, "kept at 3, not 1: 2 of 3 pods serve")
    half = shadow.decide(2, T + 81)
    assert (half.order, half.held) == (3, "1 of 3 pods serve: a, b missing")
    for pod in "ab":
        store.end(T + 85, pod=pod)
    store.scrape(T + 90, "c", kv=0.01)
    gone = shadow.decide(3, T + 91)  # nobody ordered that
    assert (gone.order, gone.held) == (3, "1 of 3 pods serve: a, b missing")
    store.scrape(T + 120, "c", kv=0.01)
    for pod in "de":
        store.scrape(T + 120, pod, kv=0.01)
    other = shadow.decide(4, T + 121)
    assert (other.order, other.have, other.held, other.kept) == (1, 3, "", "")


class ScaleInMemory:
    """The scale subresource, without HTTP."""

    def __init__(self, replicas: int) -> None:
        self.replicas, self.written = replicas, []

    def read(self) -> Scale:
        return Scale(self.replicas, "1")

    def write(self, replicas: int, version: str) -> Scale:
        self.replicas = replicas
        self.written.append(replicas)
        return self.read()


TEN = [f"p{k}" for k in range(10)]
BUSY = {"running": 100.0, "waiting": 5.0, "kv": 0.5}


def darkened(name: str, left: set[str], **how: bool) -> tuple[ScaleInMemory, list[Any]]:
    """What becomes of ten loaded pods of which only `left` go on to be seen, for ten minutes.

    Args:
        name: of a policy.
        left: pods.
        how: `gone`: the others are no targets any more; `from_start`: they were dark before the shadow was.
    """
    gone, from_start = how.get("gone", False), how.get("from_start", False)
    store, api = Store(), ScaleInMemory(10)
    writer = Writer(api, Limits(1, 20, 4, 60.0))  # type: ignore[arg-type]
    shadow = shadow_of(store, make_policy(name), writer)
    shadow.reader.scrape_s = SCRAPE_S
    decisions = []
    for step in range(20):
        dark = step > 1 or from_start
        for late in (0, 10, 20):
            at_s = T + EVERY_S * step + late
            for pod in TEN:
                served = {"finished": at_s - T, "started": at_s - T, "tokens": 100 * (at_s - T)}
                if pod in left or not dark:
                    store.scrape(at_s, pod, **BUSY, **served)
                elif not gone:
                    store.scrape(at_s, pod, up=False)
        if dark and gone:
            for pod in TEN:
                if pod not in left:
                    store.end(T + EVERY_S * step, pod=pod)
        decisions.append(shadow.decide(step, T + EVERY_S * step + 21))
        if step == 1:
            api.written.clear()
    return api, decisions


@pytest.mark.parametrize("how", [{}, {"from_start": True}, {"gone": True}])
@pytest.mark.parametrize("left", [set(), {"p0"}])
@pytest.mark.parametrize("name", ["hpa", "hpa:concurrency_target=8", *RUN[2:]])
def test_a_loaded_fleet_that_goes_dark_is_left_alone(name, left, how):
    api, decisions = darkened(name, left, **how)
    assert api.written == []
    assert all(decision.held for decision in decisions[4:])
    assert {decision.order for decision in decisions[4:]} == {decisions[1].order}
    if how.get("from_start"):
        assert decisions[0].order == 10


@pytest.mark.parametrize("name", ["hpa:kv_target=0.9", "keda:kv_target=0.9"])
def test_a_fleet_of_which_a_part_is_dark_does_not_shrink(name):
    api, decisions = darkened(name, set(TEN[:6]), from_start=True)
    assert api.written == []
    assert decisions[-1].held == ""
    assert decisions[-1].order == 10
    assert decisions[-1].kept.endswith("6 of 10 pods serve")


def test_without_a_replica_count_targets_that_vanish_are_missing():
    store = filled({pod: {"kv": 0.01} for pod in TEN}, range(0, 40, 10))
    shadow = shadow_of(store, make_policy("static:serving=10"))
    assert shadow.decide(0, T + 31).order == 10
    for pod in TEN[:8]:
        store.end(T + 35, pod=pod)
    shadow.policy = _Orders(1)
    for step in range(1, 40):
        for pod in TEN[8:]:
            store.scrape(T + 30 * step + 30, pod, kv=0.01)
        decision = shadow.decide(step, T + 30 * step + 31)
        assert (decision.order, decision.have) == (10, 2), step
        assert decision.held == "2 of 10 pods serve: p0, p1, p2 missing"


def test_a_few_targets_that_vanish_are_taken_for_deleted_after_a_while():
    store = filled({pod: {"kv": 0.01} for pod in TEN}, range(0, 40, 10))
    shadow = shadow_of(store, _Orders(10))
    shadow.decide(0, T + 31)
    store.end(T + 35, pod="p0")
    shadow.policy = _Orders(3)
    orders = []
    for step in range(1, 8):
        for late in (10, 20, 30):
            for pod in TEN[1:]:
                store.scrape(T + 30 * step + late, pod, kv=0.01)
        orders.append(shadow.decide(step, T + 30 * step + 31).order)
    assert orders[:3] == [10, 10, 10]
    assert orders[-1] == 3


def test_targets_that_were_deleted_before_they_vanished_are_not_missing():
    store = filled({pod: {"kv": 0.01} for pod in TEN}, range(0, 40, 10))
    shadow = shadow_of(store, _Orders(10))
    shadow.decide(0, T + 31)
    shadow.policy = _Orders(2)
    for pod in TEN[:4]:
        store.end(T + 50, pod=pod)
        store.add("kube_pod_deletion_timestamp", T + 40, 1, pod=pod, namespace="llm")
        store.end(T + 55, __name__="kube_pod_deletion_timestamp", pod=pod)
    for pod in TEN[4:]:
        store.scrape(T + 60, pod, kv=0.01)
    decision = shadow.decide(1, T + 61)
    assert (decision.order, decision.kept, decision.seen["missing"]) == (2, "", [])


def test_targets_that_vanish_after_an_order_for_fewer_are_not_missing():
    store = filled({pod: {"kv": 0.01} for pod in TEN}, range(0, 40, 10))
    shadow = shadow_of(store, _Orders(6))
    assert shadow.decide(0, T + 31).order == 6
    for pod in TEN[:4]:
        store.end(T + 35, pod=pod)
    for pod in TEN[4:]:
        store.scrape(T + 60, pod, kv=0.01)
    decision = shadow.decide(1, T + 61)
    assert (decision.order, decision.kept, decision.seen["missing"]) == (6, "", [])


# ---- how many should serve ----


def keys(*names: str) -> set[tuple[str, str]]:
    return {("llm", name) for name in names}


class Looks:
    """`Ordered` at seconds of a time, with a slack of 10 s."""

    def __init__(self, load_s: float = 60.0) -> None:
        self.ordered = Ordered(load_s)

    def __call__(
        self, at_s: float, targets: str, serving: str, replicas: int | None = None, **more: Any
    ) -> Found:
        draining = keys(*more.get("draining", ""))
        order = more.get("order")
        sets = (keys(*targets), keys(*serving), draining)
        return self.ordered.look(at_s, *sets, replicas, order, 10.0)


def names(found: Found) -> str:
    return "".join(name for _, name in found.missing)


def test_silent_pods_are_excused_while_they_may_load():
    look = Looks()
    assert look(0, "ab", "a") == Found(2, 2, (("llm", "b"),))  # nobody knows since when
    assert look(10, "abcd", "ab") == Found(4, 2, ())
    assert look(20, "abcde", "abe").expected == 3
    assert names(look(30, "abcde", "ab")) == "e"  # it has served, however new it is
    assert look(40, "abcd", "ab", draining="e") == Found(4, 2, ())
    assert look(80, "abcd", "ab").expected == 2
    late = look(81, "abcd", "abc")
    assert (late.expected, names(late)) == (4, "d")
    served = look(100, "abcd", "abd")  # one that has served never loads
    assert (served.expected, names(served)) == (4, "c")


def test_a_target_that_comes_back_is_not_new():
    look = Looks()
    look(0, "abc", "abc")
    assert names(look(10, "a", "a")) == "bc"
    assert look(20, "abc", "a") == Found(3, 3, (("llm", "b"), ("llm", "c")))
    look(30, "a", "a")
    assert (
        look(40 + FORMER_S, "ab", "a").expected == 2
    )  # forgotten by then: b is new, and c is missing


def test_a_rise_of_the_replica_count_excuses_pods_once():
    look = Looks()
    assert look(0, "abcd", "abcd", 4).expected == 4
    assert look(10, "abcd", "abcd", 7).expected == 4  # without targets yet
    assert look(30, "abcdef", "abcde", 7).expected == 5
    assert look(31, "abcdef", "ab", 7).expected == 5  # c, d and e do not load
    assert look(40, "abcdef", "abcde", 6).expected == 5
    assert look(81, "abcdef", "abcde", 6).expected == 5  # f is a target since 30 s
    assert look(101, "abcdef", "abcde", 6).expected == 6


def test_pods_that_drain_are_not_expected():
    look = Looks()
    look(0, "abcd", "abcd")
    assert look(10, "abcd", "ab", draining="cd") == Found(2, 2, ())
    assert look(20, "ab", "ab") == Found(2, 2, ())


def test_a_pod_that_still_loads_may_be_cancelled():
    look = Looks()
    look(0, "ab", "ab")
    look(10, "abcd", "ab")
    assert look(20, "ab", "ab") == Found(2, 2, ())


# ---- what is not believed ----

BAD = (math.nan, math.inf, -math.inf, -1.0, 1e300, 1e18)


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("which", ["running", "waiting", "kv", "finished", "ttft"])
def test_a_bad_sample_holds_the_order_until_it_is_over(which, value):
    counted = {"finished": 5.0, "ttft": 1.0}
    store = filled({pod: {**LOADED[pod], **counted} for pod in "abc"})
    shadow = shadow_of(store)
    first = shadow.decide(0, T + 31)
    for late, bad in ((60, True), (90, False), (120, False)):
        for pod in "abc":
            values = {**LOADED[pod], "finished": 5.0 + late, "ttft": 1.0 + late}
            store.scrape(T + late, pod, **values | ({which: value} if bad and pod == "b" else {}))
    bad, good = shadow.decide(1, T + 61), shadow.decide(2, T + 91)
    assert (bad.order, bad.seen) == (first.order, {})
    assert bad.held == f"Prometheus: {LONG[which]} of b is {value:g}"
    assert (good.held, good.seen["window"]["finished"]) == ("", 3 * 90)
    assert "NaN" not in log_line(good)


def test_a_share_of_kv_memory_a_little_above_one_is_one():
    seen = reader_of(filled({"a": {"kv": 1.04}})).look(0, T + 31).seen
    assert seen.kv_tokens[0] == 1000


@pytest.mark.parametrize("value", BAD)
def test_a_replica_count_that_is_none(value):
    store = filled(LOADED)
    store.add("kube_deployment_spec_replicas", T + 30, value, deployment="vllm", namespace="llm")
    with pytest.raises(PrometheusError, match="replicas, which is no count"):
        reader_of(store, namespace="llm", deployment="vllm").look(0, T + 31)


def test_deployments_of_one_name_have_no_one_replica_count():
    store = filled(LOADED)
    for space, count in (("llm", 3), ("prod", 5)):
        labels = {"deployment": "vllm", "namespace": space}
        store.add("kube_deployment_spec_replicas", T + 30, count, **labels)
    with pytest.raises(PrometheusError, match="several replica counts"):
        reader_of(store, deployment="vllm").look(0, T + 31)


@pytest.mark.parametrize(
    "ahead,holds", [(19.0, False), (21.0, True), (-19.0, False), (-21.0, True)]
)
def test_clocks_that_differ_hold_the_order(ahead, holds):
    store = filled(LOADED)
    store.ahead = ahead
    decision = shadow_of(store).decide(0, T + 31 - ahead)
    side = "ahead of" if ahead > 0 else "behind"
    told = f"Prometheus: its clock is 21.0 s {side} this machine's"
    assert decision.held == (told if holds else "")
    assert decision.view_age_s == (None if holds else 1.0)  # by the server's clock


def test_pods_of_one_name_in_two_namespaces_are_two():
    store = Store()
    for late in (0, 10, 20, 30):
        for space, running in (("llm", 3.0), ("prod", 4.0)):
            labels = {"pod": "vllm-0", "namespace": space}
            store.add("up", T + late, 1.0, **labels)
            for short, value in (
                ("running", running),
                ("waiting", 0.0),
                ("tokens", late * running),
            ):
                store.add(LONG[short], T + late, value, **labels)
    reader = reader_of(store, selector="")
    reading = reader.look(0, T + 11)
    assert (reading.seen.running.tolist(), reading.pods) == (
        [3, 4, 0, 0],
        ("llm/vllm-0", "prod/vllm-0"),
    )
    assert reader.look(1, T + 31).seen.window["tokens"] == 20 * 7
    store.add("kube_pod_deletion_timestamp", T + 30, 1.0, pod="vllm-0", namespace="prod")
    assert reader.look(2, T + 32).seen.active.tolist() == [True, False, False, False]


def test_in_a_namespace_only_targets_of_vllms_jobs_are_pods():
    store = Store()
    for late in (0, 10, 20, 30):
        for pod, job, up in (("a", "vllm", 1), ("b", "vllm", 0), ("redis", "redis", 1)):
            store.add("up", T + late, up, pod=pod, namespace="llm", job=job)
        for short in ("running", "waiting"):
            store.add(LONG[short], T + late, 1.0, pod="a", namespace="llm", job="vllm")
    reading = reader_of(store, exact=False).look(0, T + 31)
    assert (reading.ordered, reading.pods, reading.missing) == (2, ("a",), ("b",))
    assert reader_of(store).look(0, T + 31).ordered == 3


def test_more_pods_than_kubernetes_has_are_others():
    store = filled({pod: {"running": 200.0, "waiting": 50.0, "kv": 0.9} for pod in TEN})
    api = ScaleInMemory(2)
    writer = Writer(api, Limits(1, 20, 4, 60.0))  # type: ignore[arg-type]
    decision = shadow_of(store, writer=writer).decide(0, T + 31)
    assert decision.held.startswith("10 pods serve and Kubernetes has 2 replicas")
    assert decision.order == 2
    for pod in TEN[2:]:
        store.add("kube_pod_deletion_timestamp", T + 30, 1, pod=pod, namespace="llm")
    shadow = shadow_of(store, writer=writer)
    assert shadow.decide(0, T + 31).held == ""
    assert api.written == []


class _Orders:
    """Orders one thing."""

    name = "orders"

    def __init__(self, order: Any) -> None:
        self.order = order

    def reset(self, scenario: Any, seed: int) -> None:
        pass

    def act(self, view: Any) -> Command:
        if isinstance(self.order, Exception):
            raise self.order
        return Command(targets={POOL: self.order})


@pytest.mark.parametrize(
    "order,becomes,kept,held",
    [
        (5, 5, "", ""),
        (np.int64(5), 5, "", ""),
        (10**6, 20, "kept at 20, not 1000000: max_instances", ""),
        (-5, 1, "kept at 1, not -5: without a pod nothing is seen", ""),
        (0, 1, "kept at 1, not 0: without a pod nothing is seen", ""),
        (2.7, 3, "", "orders: TypeError"),
        (math.nan, 3, "", "orders: TypeError"),
        (None, 3, "", "orders: TypeError"),
        (ZeroDivisionError("by\nnothing"), 3, "", "orders: ZeroDivisionError: by nothing"),
        (RecursionError("deep"), 3, "", "orders: RecursionError: deep"),
    ],
)
def test_an_order_is_bounded_and_one_that_is_none_holds(order, becomes, kept, held):
    decision = shadow_of(filled(LOADED), _Orders(order)).decide(0, T + 31)
    assert (decision.order, decision.kept) == (becomes, kept)
    assert decision.held.startswith(held)
    assert bool(decision.held) == bool(held)


def test_a_policy_that_fails_once_goes_on():
    store = filled(LOADED)
    shadow = shadow_of(store, _Orders(5))
    assert shadow.decide(0, T + 31).order == 5
    shadow.policy.order = ValueError("x")
    assert shadow.decide(1, T + 32).order == 5
    shadow.policy.order = 7
    assert shadow.decide(2, T + 33).order == 7


def test_while_all_pods_load_the_order_stands():
    store = filled({"a": LOADED["a"]})
    shadow = shadow_of(store, _Orders(2))
    assert shadow.decide(0, T + 31).order == 2
    store.add("kube_pod_deletion_timestamp", T + 40, 1, pod="a", namespace="llm")
    store.end(T + 50, pod="a", __name__="up")
    store.scrape(T + 60, "b", up=False)
    shadow.policy = _Orders(7)
    held = shadow.decide(1, T + 61)
    assert (held.order, held.held, held.seen["expected"]) == (2, "none of 1 pods serves", 0)


def test_dark_pods_beyond_the_bound_hold():
    cluster = replace(ONE, max_instances=2)
    store = filled(LOADED)
    shadow = replace(shadow_of(store, _Orders(1)), cluster=cluster)
    assert shadow.decide(0, T + 31).order == 1
    for late in (40, 50, 60):
        store.scrape(T + late, "a", up=False)
        for pod in "bc":
            store.scrape(T + late, pod)
    held = shadow.decide(1, T + 61)
    assert (held.order, held.held[:19]) == (1, "2 of 3 pods serve, ")


def test_a_policy_that_asks_for_more_in_a_rare_case_is_held():
    store = filled(LOADED)
    shadow = shadow_of(store, _Asks(lambda view: view.under_way, after=1))
    assert shadow.decide(0, T + 31).order == 3
    held = shadow.decide(1, T + 32)
    assert (held.order, held.held[:21]) == (3, "asks needs under_way:")


def test_decisions_are_exported():
    store = filled(LOADED)
    shadow, exporter = shadow_of(store), Exporter("keda")
    value = exporter.registry.get_sample_value
    exporter.add(shadow.decide(0, T + 31), writing=False)
    store.down = True
    exporter.add(shadow.decide(1, T + 61), writing=True)
    keda = {"policy": "keda"}
    assert value("llmscale_desired_instances", keda) == 3
    assert value("llmscale_decisions_total", keda) == value("llmscale_holds_total", keda) == 1
    assert value("llmscale_holding", keda) == 1
    assert value("llmscale_view_age_seconds", keda) == 31
    assert value("llmscale_instances", {"state": "active"}) == 3
    assert value("llmscale_writing") == 1


# ---- what is written ----


class Kubernetes:
    """The scale subresource of one deployment."""

    def __init__(self, replicas: int = 3) -> None:
        self.replicas, self.version = replicas, 7
        self.fails: dict[str, tuple[int, bytes]] = {}
        self.hangs: set[str] = set()
        self.asked: list[tuple[str, str, Any, dict[str, str]]] = []
        self.release = threading.Event()

    def answer(self, handler: Any) -> tuple[int, bytes]:
        length = int(handler.headers["Content-Length"] or 0)
        body = json.loads(handler.rfile.read(length)) if length else None
        self.asked.append((handler.command, handler.path, body, dict(handler.headers)))
        if handler.command in self.fails:
            return self.fails[handler.command]
        if body is not None:
            if body["metadata"]["resourceVersion"] != str(self.version):
                return 409, b'{"kind":"Status","message":"the object has been modified"}'
            self.replicas, self.version = body["spec"]["replicas"], self.version + 1
        if handler.command in self.hangs:  # and carries it out
            self.release.wait(20)
        spec = {"replicas": self.replicas} if self.replicas else {}
        scale = {"kind": "Scale", "metadata": {"resourceVersion": str(self.version)}, "spec": spec}
        return 200, json.dumps(scale).encode()

    @property
    def written(self) -> list[int]:
        return [body["spec"]["replicas"] for verb, _, body, _ in self.asked if verb == "PATCH"]


LIMITS = Limits(min_replicas=2, max_replicas=10, max_step=3, dead_after_s=60.0)


@pytest.fixture
def kubernetes(tmp_path) -> Iterator[tuple[Kubernetes, Writer]]:
    fake = Kubernetes()
    token = tmp_path / "token"
    token.write_text("secret\n")
    with http_server(fake.answer) as url:
        yield fake, Writer(ScaleApi(url, "llm", "vllm", token, timeout_s=1.0), LIMITS)
        fake.release.set()


def turn(writer: Writer, order: int, held: str = "", age_s: float = 1.0) -> str:
    writer.read()
    return writer.write(order, held, age_s)


def test_an_order_is_written_in_steps_within_limits(kubernetes):
    fake, writer = kubernetes
    outcomes = [turn(writer, order) for order in (20, 20, 20, 20, 0, 0, 0, 0)]
    assert fake.written == [6, 9, 10, 7, 4, 2]
    assert outcomes == ["written"] * 3 + ["unchanged"] + ["written"] * 3 + ["unchanged"]
    verb, path, body, headers = next(each for each in fake.asked if each[0] == "PATCH")
    assert path == "/apis/apps/v1/namespaces/llm/deployments/vllm/scale"
    assert body == {"metadata": {"resourceVersion": "7"}, "spec": {"replicas": 6}}
    assert headers["Content-Type"] == "application/merge-patch+json"
    assert (verb, headers["Authorization"]) == ("PATCH", "Bearer secret")


def test_nothing_is_written_while_holding_or_on_an_old_view(kubernetes):
    fake, writer = kubernetes
    assert turn(writer, 5, held="a gap") == "held"
    assert turn(writer, 5, age_s=60.1) == "dead"
    assert fake.written == []
    assert turn(writer, 5, age_s=60.0) == "written"


def test_a_deployment_that_is_switched_off_stays_off(kubernetes):
    fake, writer = kubernetes
    fake.replicas = 0
    assert (turn(writer, 5), fake.written) == ("off", [])


def test_somebody_else_changes_the_count(kubernetes):
    fake, writer = kubernetes
    assert turn(writer, 4) == "written"
    fake.replicas = 8
    assert turn(writer, 5) == "stopped"
    assert writer.note == "somebody else set 8 replicas; 4 were expected"
    fake.replicas = 4
    assert (turn(writer, 5), fake.written) == ("stopped", [4])


def test_somebody_else_changes_the_deployment_between_reading_and_writing(kubernetes):
    fake, writer = kubernetes
    writer.read()
    fake.version += 1  # its image, say
    assert writer.write(5, "", 1.0) == "failed"
    assert "HTTP 409: the object has been modified" in writer.note
    assert (turn(writer, 5), fake.replicas) == ("written", 5)


@pytest.mark.parametrize("code", [401, 403, 404, 422])
@pytest.mark.parametrize("verb", ["GET", "PATCH"])
def test_a_refusal_stops_writing_for_good(kubernetes, code, verb):
    fake, writer = kubernetes
    fake.fails[verb] = code, b'{"message":"deployments/scale is forbidden"}'
    assert turn(writer, 5) == ("refused" if verb == "PATCH" else "stopped")
    assert f"HTTP {code}: deployments/scale is forbidden" in writer.note
    fake.fails.clear()
    assert (turn(writer, 5), fake.replicas) == ("stopped", 3)


@pytest.mark.parametrize("code", [409, 429, 500, 503])
@pytest.mark.parametrize("verb", ["GET", "PATCH"])
def test_a_failure_is_tried_again(kubernetes, code, verb):
    fake, writer = kubernetes
    fake.fails[verb] = code, b"<html>"
    assert turn(writer, 5) == "failed"
    assert str(code) in writer.note
    fake.fails.clear()
    assert (turn(writer, 5), fake.replicas) == ("written", 5)


def test_a_write_that_is_not_answered_may_have_been_carried_out(kubernetes):
    fake, writer = kubernetes
    writer.api = replace(writer.api, timeout_s=0.2)
    fake.hangs = {"PATCH"}
    assert turn(writer, 5) == "failed"
    assert "no answer" in writer.note
    assert fake.replicas == 5
    fake.hangs = set()
    assert turn(writer, 6) == "written"  # 5 is our own
    assert not writer.stopped


def test_no_server_and_answers_that_are_none():
    gone = ScaleApi(f"http://127.0.0.1:{free_port()}", "llm", "vllm")
    with pytest.raises(KubernetesError, match="no answer"):
        gone.read()
    bodies = [b'{"spec":3}', b"[" * 200_000]
    for count in (b"-1", b"1e999", b"NaN", b"2.5", b"99999999"):
        bodies.append(b'{"spec":{"replicas":%s},"metadata":{"resourceVersion":"1"}}' % count)
    for body in bodies:
        with (
            http_server(lambda _, body=body: (200, body)) as url,
            pytest.raises(KubernetesError, match="no Scale"),
        ):
            ScaleApi(url, "llm", "vllm").read()


def test_a_shadow_writes_what_it_decides(kubernetes):
    fake, writer = kubernetes
    store = filled(LOADED)
    shadow = shadow_of(store, writer=writer)
    assert shadow.decide(0, T + 31).written == "unchanged"
    for pod in "abc":
        store.scrape(T + 60, pod, **LOADED[pod])
    wrote = shadow.decide(1, T + 61)
    assert (wrote.order, wrote.written, wrote.note) == (6, "written", "3 to 6")
    after = shadow.decide(2, T + 62)
    assert (after.have, after.seen["on_the_way"], after.written) == (6, 3, "unchanged")
    store.down = True
    fake.replicas = 5
    assert shadow.decide(3, T + 91).written == "stopped"


# ---- the command line ----

GOOD = ("policy=keda", "prometheus=http://localhost:9090")
APPLY = ("apply=scale", "kubernetes=https://k:6443", "namespace=llm", "deployment=vllm")


@pytest.mark.parametrize(
    "words,says",
    [
        (("prometheus=http://p:9090",), "policy= is missing"),
        (("policy=keda",), "prometheus= is missing"),
        (("policy=kedda", GOOD[1]), "did you mean keda"),
        (("policy=keda:kv=1", GOOD[1]), "no parameter 'kv'"),
        (("policy=qlm", GOOD[1]), "does not decide how many pods"),
        (("policy=keda", "prometheus=localhost:9090"), "must be an address"),
        (("policy=keda", "prometheus=http://u:p@h:9090"), "must be an address"),
        (("policy=keda", "prometheus=http://h:99999"), "must be an address"),
        ((*GOOD, "every=0s"), "every = '0s': must be a time"),
        ((*GOOD, "every=1.2.3s"), "every = '1.2.3s': must be a time"),
        ((*GOOD, "scrape=x"), "scrape = 'x': must be a time"),
        ((*GOOD, "selector=namespace=llm"), "double quotes"),
        ((*GOOD, "namespace=a/b"), "must be a name in Kubernetes"),
        ((*GOOD, "port=99999"), "port = '99999'"),
        ((*GOOD, "turns=0"), "turns = '0'"),
        ((*GOOD, "llm=gpt-9"), "gpt-9"),
        ((*GOOD, "tp=3"), "3"),
        ((*GOOD, "load_s=-1"), "load_s = '-1'"),
        ((*GOOD, "max_instances=0"), "max_instances = '0'"),
        ((*GOOD, "slo=ttft:1"), "slo = 'ttft:1'"),
        ((*GOOD, "apply=yes"), "apply = 'yes'"),
        ((*GOOD, "max_step=2"), "max_step=: is for apply=scale"),
        ((*GOOD, *APPLY[:1]), "apply=scale needs kubernetes="),
        ((*GOOD, *APPLY[:3]), "apply=scale needs deployment="),
        ((*GOOD, *APPLY, "token_file=/nowhere/t"), "token_file = '/nowhere/t'"),
        ((*GOOD, *APPLY, "min_replicas=9", "max_replicas=3"), "min_replicas = '9'"),
        ((*GOOD, *APPLY, "max_replicas=65"), "at most max_instances = 64"),
        ((*GOOD, *APPLY, "dead_after_s=0"), "dead_after_s = '0'"),
        ((*GOOD, "prometheus_token_file=/nowhere/t"), "prometheus_token_file = '/nowhere/t'"),
        ((*GOOD, "config=/nowhere/serve.yaml"), "config = '/nowhere/serve.yaml'"),
        (("policies", "gpu=abacus"), "abacus"),
    ],
)
def test_slips(words, says, capsys):
    assert command.main(words) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    "text,says",
    [
        ("- a", "must hold keys"),
        ("polcy: keda", "did you mean policy"),
        ("policy: [keda]", "must be text"),
        ("namespace: 3", "namespace = 3: must be text"),
        ("targets: {}", "targets: must be a list"),
        ("targets: [{name: a, ttft_s: 1}]", "targets: must be a list"),
        ("targets: [{name: a, ttft_s: 1, itl_s: x}]", "itl_s = 'x'"),
        ("targets: [{name: a, ttft_s: 1, itl_s: 1, tpot: 2}]", "has others"),
        ("every_s: 0.1", "every_s = '0.1'"),
        ("tp: 3.5", "tp = '3.5'"),
        ("a: [", "not valid YAML"),
    ],
)
def test_slips_in_a_file(tmp_path, text, says):
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    with pytest.raises(Slip, match=re.escape(says)):
        command.ask((*GOOD, f"config={path}"))


def test_words_come_before_the_file(tmp_path):
    path = tmp_path / "serve.yaml"
    path.write_text(
        "policy: hpa:kv_target=0.4\nllm: llama-3.1-8b\ngpu: h100-80gb\ntp: 2\nload_s: 90\n"
        "max_instances: 7\nevery_s: 20\n"
        "targets: [{name: chat, ttft_s: 2, itl_s: 0.1, attainment: 0.99}]\n"
    )
    asked = command.ask((f"config={path}", GOOD[1]))
    targets = (Target("chat", 2.0, 0.1),)
    assert asked.cluster == Cluster("llama-3.1-8b", "h100-80gb", 2, 90.0, 7, 20.0, targets)
    assert (asked.name, asked.policy.parameters.kv_target) == ("hpa:kv_target=0.4", 0.4)
    asked = command.ask((f"config={path}", *GOOD, "every=1m", "slo=ttft:3,itl:0.2", "tp=1"))
    assert (asked.name, asked.cluster.every_s, asked.cluster.tp) == ("keda", 60.0, 1)
    assert asked.cluster.targets == (Target("all", 3.0, 0.2),)
    assert asked.writer is None


def test_the_page_explains_every_metric_and_every_key_of_the_log():
    page = Path(__file__).parents[1].joinpath("docs", "serve.md").read_text(encoding="utf-8")
    for family in Exporter("keda").registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        assert f"`{name}" in page, name
    for part in fields(Decision):
        assert f"`{part.name}`" in page, part.name
    for key in re.findall(r'^        "(\w+)":', inspect.getsource(describe), re.MULTILINE):
        assert f"`{key}`" in page, key


def test_a_file_may_say_whose_pods_are_read(tmp_path):
    path = tmp_path / "serve.yaml"
    path.write_text("policy: keda\nnamespace: llm\ndeployment: chat\n")
    reader = command.ask((f"config={path}", GOOD[1])).reader
    assert (reader.namespace, reader.deployment, reader.exact) == ("llm", "chat", True)
    assert 'namespace="llm"' in reader.selector
    other = command.ask((f"config={path}", GOOD[1], "deployment=other")).reader
    assert (other.namespace, other.deployment) == ("llm", "other")


def test_reading_every_target_is_warned_of(monkeypatch, capsys):
    monkeypatch.setattr(command, "run", lambda asked: 0)
    assert command.main(("policy=static", GOOD[1])) == 0
    assert "every target of the server" in capsys.readouterr().err
    assert command.main(("policy=static", GOOD[1], "namespace=llm")) == 0
    assert capsys.readouterr().err == ""


def test_a_policy_that_needs_more_is_refused_in_a_line(capsys):
    assert command.main(("policy=llumnix", GOOD[1])) == 2
    told = capsys.readouterr()
    assert "policy = 'llumnix': needs pools.waiting_tokens: vLLM does not tell" in told.err
    assert told.err.count("\n") == 1


def test_a_network_is_refused_in_a_line(capsys, project_root):
    pytest.importorskip("stable_baselines3")
    folders = sorted(p.parent for p in (project_root / "agents/pretrained").glob("*/config.yaml"))
    assert command.main((f"policy={folders[0]}", GOOD[1])) == 2
    told = capsys.readouterr().err
    assert "its configuration" in told  # it was trained to decide other things
    assert told.count("\n") == 1


def test_turns_are_kept_logged_and_told(tmp_path, capsys):
    port, log = free_port(), tmp_path / "new" / "log.jsonl"
    url = f"http://127.0.0.1:{free_port()}"
    words = (
        "policy=keda",
        f"prometheus={url}",
        f"log={log}",
        f"port={port}",
        "turns=3",
        "every=10s",
    )
    asked = command.ask(words)
    now = [T]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds + (12.0 if len(slept) == 1 else 0.0)  # late, and past the next turn

    assert command.run(asked, lambda: now[0], sleep, lambda: now[0]) == 0
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(row["turn"], row["time_s"]) for row in rows if "turn" in row] == [
        (0, T), (1, T + 22), (3, T + 30),
    ]  # fmt: skip
    assert all("no answer" in row["held"] for row in rows)
    assert capsys.readouterr().out.count("nothing seen yet") == 3


@pytest.mark.parametrize("paced", [False, True])
def test_a_clock_that_is_set_back_does_not_stop_the_turns(capsys, paced):
    assert inspect.signature(command.run).parameters["clock"].default is time.monotonic
    asked = command.ask(
        ("policy=keda", f"prometheus=http://127.0.0.1:{free_port()}", "port=0", "turns=6")
    )
    now, wall, slept = [5.0], [T], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds
        wall[0] += seconds - (3600 if len(slept) == 2 else 0)

    clock = wall if paced else now
    assert command.run(asked, lambda: clock[0], sleep, lambda: wall[0]) == 0
    assert slept == [30.0] * 5
    assert capsys.readouterr().out.count("nothing seen yet") == 6


@pytest.mark.parametrize(
    "words,selector,exact",
    [
        (("namespace=llm",), 'namespace="llm"', False),
        (
            ("namespace=llm", "deployment=vllm"),
            'namespace="llm",pod=~"vllm-[a-z0-9]+-[a-z0-9]{5}"',
            True,
        ),
        (("deployment=a.b",), 'pod=~"a[.]b-[a-z0-9]+-[a-z0-9]{5}"', True),
        (("namespace=llm", "deployment=vllm", 'selector=job="x"'), 'job="x"', True),
        ((), "", False),
    ],
)
def test_pods_are_those_of_the_namespace_and_the_deployment(words, selector, exact):
    reader = command.ask((*GOOD, *words, "load_s=77")).reader
    assert (reader.selector, reader.exact, reader.load_s) == (selector, exact, 77.0)
    if selector:
        assert label_matchers(selector) == selector


def test_pods_of_other_deployments_are_not_read():
    store = Store()
    reader = command.ask((*GOOD, *APPLY[2:])).reader
    for late in (0, 10, 20, 30):
        for space, pod, running in (
            ("llm", "vllm-7d9f8c6b5-x2x9k", 1),
            ("llm", "vllm-big-7d9f8c6b5-x2x9k", 200),
            ("other", "vllm-7d9f8c6b5-aaaaa", 200),
        ):
            labels = {"pod": pod, "namespace": space}
            store.add("up", T + late, 1.0, **labels)
            for short, value in (("running", running), ("waiting", 0.0)):
                store.add(LONG[short], T + late, value, **labels)
    seen = replace(reader, prometheus=store).look(0, T + 31).seen
    assert (seen.have, int(seen.running.sum())) == (1, 1)


def test_a_port_that_is_taken_is_told():
    with http_server(lambda _: (200, b"")) as url:
        port = int(url.rpartition(":")[2])
        asked = command.ask((*GOOD, "turns=1"))
        with pytest.raises(Slip, match=f"port = '{port}'"):
            command.run(replace(asked, port=port))


def test_the_manual_and_the_table(capsys):
    assert command.main(("--help",)) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n") <= 48
    assert command.main(("policies",)) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^hpa +yes$", shown, re.M)
    assert re.search(r"^llumnix +no +needs", shown, re.M)
