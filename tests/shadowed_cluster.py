"""A simulated cluster under vLLM's metric names, and a real Prometheus that scrapes it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.sim.spec import InstanceState
from llmscale_env.workload.requests import PS_PER_S

NAMESPACE = "llm"
SERVES = (int(InstanceState.ACTIVE), int(InstanceState.DRAINING))


def find_prometheus(root: Path) -> str | None:
    """The server's binary: in PATH, in $LLMSCALE_PROMETHEUS, or where `make prometheus` puts it."""
    named = os.environ.get("LLMSCALE_PROMETHEUS")
    if named:
        return named if Path(named).is_file() else None
    made = root / ".prometheus" / "usr" / "bin" / "prometheus"
    return shutil.which("prometheus") or (str(made) if made.is_file() else None)


@dataclass(eq=False)  # collectors are told apart by themselves
class Pod:
    """What a vLLM says of itself. `step` says which state of the cluster this is of."""

    running: int = 0
    waiting: int = 0
    kv: float = 0.0
    started: float = 0.0
    ttft_sum_s: float = 0.0
    finished: float = 0.0
    output_tokens: float = 0.0
    tokens: float = 0.0
    preemptions: float = 0.0
    itl_sum_s: float = 0.0
    itl_count: float = 0.0
    step: int = 0

    def collect(self) -> Iterator[Any]:
        """As a collector of prometheus_client."""
        labels, values = ("model_name", "engine"), ("llama", "0")
        for name, value in (
            ("vllm:num_requests_running", self.running),
            ("vllm:num_requests_waiting", self.waiting),
            ("vllm:kv_cache_usage_perc", self.kv),
            ("replay_step", self.step),
        ):
            gauge = GaugeMetricFamily(name, name, labels=labels)
            gauge.add_metric(values, value)
            yield gauge
        for name, value in (
            ("vllm:generation_tokens", self.tokens),
            ("vllm:num_preemptions", self.preemptions),
        ):
            counter = CounterMetricFamily(name, name, labels=labels)
            counter.add_metric(values, value)
            yield counter
        done = CounterMetricFamily(
            "vllm:request_success", "requests", labels=(*labels, "finished_reason")
        )
        done.add_metric((*values, "stop"), self.finished)
        yield done
        for name, count, total in (
            ("vllm:time_to_first_token_seconds", self.started, self.ttft_sum_s),
            ("vllm:request_generation_tokens", self.finished, self.output_tokens),
            ("vllm:request_time_per_output_token_seconds", self.itl_count, self.itl_sum_s),
        ):
            histogram = HistogramMetricFamily(name, name, labels=labels)
            histogram.add_metric(values, [("+Inf", count)], total)
            yield histogram


class PodServer:
    """Answers `/metrics/POD` for every pod, and keeps Prometheus' list of targets.

    Attributes:
        pods: by name; None: it loads, and answers 503.
        failing: pods whose scrapes fail, however well they are.
        scrapes: by name, how many were answered with metrics.
        draining: pods that are being deleted, as kube-state-metrics says.
        replicas: ordered; None: nobody says.
    """

    def __init__(self, targets: Path) -> None:
        self.pods: dict[str, Pod | None] = {}
        self.failing: set[str] = set()
        self.draining: set[str] = set()
        self.replicas: int | None = None
        self._targets = targets
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code, body = server._answer(self.path)
                self.send_response(code)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()
        self.list_targets()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._http.server_address[1]}"

    def _answer(self, path: str) -> tuple[int, bytes]:
        registry = CollectorRegistry()
        name = path.rpartition("/")[2]
        if name == "kube":
            registry.register(self)
            return 200, generate_latest(registry)
        pod = self.pods.get(name)
        if pod is None or name in self.failing:
            return 503, b""
        registry.register(pod)
        return 200, generate_latest(registry)

    def collect(self) -> Iterator[Any]:
        """What kube-state-metrics says."""
        if self.replicas is not None:
            wanted = GaugeMetricFamily(
                "kube_deployment_spec_replicas", "n", labels=("namespace", "deployment")
            )
            wanted.add_metric((NAMESPACE, "vllm"), self.replicas)
            yield wanted
        going = GaugeMetricFamily("kube_pod_deletion_timestamp", "t", labels=("namespace", "pod"))
        for name in sorted(self.draining):
            going.add_metric((NAMESPACE, name), 1.0)
        yield going

    def list_targets(self) -> None:
        """Tell Prometheus which pods there are."""
        groups = [
            {
                "targets": [self.address],
                "labels": {
                    "__metrics_path__": f"/metrics/{name}",
                    "pod": name,
                    "namespace": NAMESPACE,
                    "job": "vllm",
                },
            }
            for name in sorted(self.pods)
        ]
        kube = {"__metrics_path__": "/kube", "job": "kube-state-metrics"}
        part = self._targets.with_suffix(".part")
        part.write_text(json.dumps([*groups, {"targets": [self.address], "labels": kube}]))
        part.replace(self._targets)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@dataclass
class PrometheusServer:
    """A real server on a free port, which scrapes every second."""

    binary: str
    folder: Path
    port: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def targets(self) -> Path:
        return self.folder / "targets.json"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it on the data that it has, and wait until it answers."""
        self.port = self.port or free_port()
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [
                {
                    "job_name": "pods",
                    "honor_labels": True,
                    "file_sd_configs": [{"files": [str(self.targets)], "refresh_interval": "1s"}],
                }
            ],
        }
        path = self.folder / "prometheus.yml"
        path.write_text(json.dumps(config))  # JSON is YAML
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self.binary,
                    f"--config.file={path}",
                    f"--storage.tsdb.path={self.folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: _answers(f"{self.url}/-/ready"), 60.0, "Prometheus is ready")

    def stop(self) -> None:
        """End it; what it has stored stays."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30.0)
            self._process = None

    def query(self, text: str) -> dict[str, float]:
        """Values of an instant query now, by pod."""
        words = urllib.parse.urlencode({"query": text})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{words}", timeout=10.0) as answer:
            rows = json.load(answer)["data"]["result"]
        return {row["metric"].get("pod", ""): float(row["value"][1]) for row in rows}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def wait_until(true: Callable[[], bool], patience_s: float, what: str) -> None:
    """Poll until something holds.

    Raises:
        TimeoutError: it does not.
    """
    until = time.monotonic() + patience_s
    while not true():
        if time.monotonic() > until:
            raise TimeoutError(f"not within {patience_s:g} s: {what}")
        time.sleep(0.05)


def caught_up(prometheus: PrometheusServer, pods: PodServer, step: int) -> bool:
    """Whether Prometheus has what the pods show now: targets, and samples of `step` of all that answer."""
    answering = {n for n, pod in pods.pods.items() if pod is not None and n not in pods.failing}
    try:
        listed = prometheus.query('up{job="vllm"}')
        shown = prometheus.query("replay_step")
        going = prometheus.query("kube_pod_deletion_timestamp")
        known = prometheus.query("kube_deployment_spec_replicas")
    except OSError:
        return False
    replicas = None if pods.replicas is None else {"": float(pods.replicas)}
    return (
        set(listed) == set(pods.pods)
        and {name for name, up in listed.items() if up == 1.0} == answering
        and shown == dict.fromkeys(answering, float(step))
        and set(going) == pods.draining
        and (replicas is None or known == replicas)
    )


@contextmanager
def running(binary: str, folder: Path) -> Iterator[tuple[PrometheusServer, PodServer]]:
    """A Prometheus and the pods that it scrapes."""
    prometheus = PrometheusServer(binary, folder)
    pods = PodServer(prometheus.targets)
    try:
        prometheus.start()
        yield prometheus, pods
    finally:
        prometheus.stop()
        pods.close()


@dataclass
class Replay:
    """Shows a simulated cluster of one pool as pods: one per life of an instance.

    Attributes:
        sim: one episode, started.
        pods: where it is shown.
        kv_capacity: tokens of an instance.
        failed: instances that did not drain before they went.
    """

    sim: ClusterSimulation
    pods: PodServer
    kv_capacity: int
    failed: set[int] = field(default_factory=set)
    _lives: dict[int, tuple[str, int, int]] = field(default_factory=dict, init=False)
    _ended: dict[int, int] = field(default_factory=dict, init=False)
    _served: set[int] = field(default_factory=set, init=False)
    _resets: dict[str, Pod] = field(default_factory=dict, init=False)

    def names(self) -> dict[int, str]:
        """Pod of every instance that there is."""
        return {slot: name for slot, (name, _, _) in self._lives.items()}

    def reset(self, name: str) -> None:
        """From now on the counters of a pod count from here: its process has restarted, its work has not."""
        shown = self.pods.pods[name]
        assert shown is not None
        had = self._resets.get(name, Pod())
        self._resets[name] = Pod(
            **{key: getattr(shown, key) + getattr(had, key) for key in COUNTERS}
        )

    def show(self, step: int) -> None:
        """The pods as the instances are now."""
        rows = self.sim.engine.instances(0)
        now_ps = self.sim.engine.now_ps(0)
        shown: dict[str, Pod | None] = {}
        self.pods.draining = set()
        for slot, state in enumerate(rows["state"].tolist()):
            failed = state not in SERVES and slot in self._served  # it begins anew as another pod
            if slot in self._lives and (failed or state == int(InstanceState.OFF)):
                name = self._lives.pop(slot)[0]
                if slot in self.failed:
                    self.failed.discard(slot)
                else:  # it has drained since the last step
                    self.pods.draining.add(name)
                self._ended[slot] = self._ended.get(slot, 0) + 1
            self._served.discard(slot)
            if state == int(InstanceState.OFF):
                continue
            if state in SERVES:
                self._served.add(slot)
            if slot not in self._lives:
                name = f"vllm-{slot}-{self._ended.get(slot, 0)}"
                self._lives[slot] = name, now_ps if step else -1, int(rows["tokens"][slot])
            name = self._lives[slot][0]
            shown[name] = self._pod(slot, rows[slot], step) if state in SERVES else None
            if state == int(InstanceState.DRAINING):
                self.pods.draining.add(name)
        changed = set(shown) != set(self.pods.pods)
        self.pods.pods = shown
        if changed:
            self.pods.list_targets()

    def _pod(self, slot: int, row: Any, step: int) -> Pod:
        name, since_ps, tokens = self._lives[slot]
        results = self.sim.engine.results(0)
        requests = self.sim.requests[0]
        assert requests is not None
        mine = results["instance"] == slot
        first = mine & (results["first_token_ps"] > since_ps)
        done = mine & (results["finished_ps"] > since_ps)
        many = done & (requests.output_tokens > 1)
        waits = (results["first_token_ps"] - requests.arrival_ps)[first]
        spent = (results["finished_ps"] - results["first_token_ps"])[many]
        pod = Pod(
            running=int(row["running"]),
            waiting=int(row["waiting"] + row["preempted"]),
            kv=int(row["kv_tokens"]) / self.kv_capacity,
            started=float(first.sum()),
            ttft_sum_s=float(waits.sum()) / PS_PER_S,
            finished=float(done.sum()),
            output_tokens=float(requests.output_tokens[done].sum()),
            tokens=float(row["tokens"]) - tokens,
            itl_sum_s=float((spent / (requests.output_tokens[many] - 1)).sum()) / PS_PER_S,
            itl_count=float(np.count_nonzero(many)),
            step=step,
        )
        gone = self._resets.get(name)
        if gone is not None:
            for key in COUNTERS:
                setattr(pod, key, getattr(pod, key) - getattr(gone, key))
        return pod


COUNTERS = (
    "started", "ttft_sum_s", "finished", "output_tokens", "tokens", "itl_sum_s", "itl_count",
)  # fmt: skip
