"""vLLM's metrics in Prometheus, read at one instant and made into what a policy sees.

**Which pods there are.** A pod is a target that Prometheus scrapes and that `selector` matches. The label
`pod` names it, else `instance`. Prometheus' own series `up` says that a target exists, also when nothing
answers there.

- A pod *serves* if its last sample of vLLM's gauges is at most two scrape intervals old. One missed scrape
  changes nothing: the sample before it is used.
- A pod is *on its way* if it exists and has never served: a vLLM that loads weights does not answer.
- A pod is *missing* if it has served and its last sample is older. It counts as ordered and not as serving,
  and its load is left out. `Reading.missing` names it: the shadow then orders no fewer pods than there are.
  After `MISSING_S` it counts as on its way, as a pod that has restarted and loads.
- A pod is *gone* if Prometheus no longer lists it as a target: its series have been marked stale. Its last
  increases are lost, and its requests are counted neither as finished nor as arrived again.
- A pod *drains* if kube-state-metrics says so (`kube_pod_deletion_timestamp`). Without that metric a pod that
  is deleted serves until it is gone.

**How many are ordered.** If the replica count is known (`kube_deployment_spec_replicas` of the deployment, or
read from Kubernetes), pods on their way are that count less those that serve: pods without an address are no
targets yet. Otherwise they are the targets that do not serve.

**Counters.** Increases are summed by hand from raw samples, per pod and series, since `increase()`
extrapolates. A value below the one before is a reset: the counter began again from 0, and what it counted
between its last sample and the restart is lost. At the first look counters are only noted. A series that
appears later began from 0. Of two looks that lie more than `LONGEST_S` apart the later one is a first look.

**Arrivals** are not counted by vLLM. They are what finished in the interval plus what the pod has more than
before, for every pod that serves. A pod that restarted, or did not serve before, had nothing.

**Gaps.** `PrometheusError`: no answer, an error, nothing that matches, or no sample of any pod within two
scrape intervals (Prometheus has just started, or does not scrape). Nothing is forgotten then.
"""

from __future__ import annotations

import http.client
import json
import math
import re
import statistics
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.desk.serve.seen import CLASS_COUNTS, POOL_COUNTS, SUMS, Seen
from llmscale_env.sim.spec import InstanceState
from llmscale_env.workload.requests import WEEK_S

MISSING_S = 300.0
"""A pod that has not been seen for longer is taken for one that loads again."""

LONGEST_S = 3600.0
"""Of the time whose samples are asked for at once."""

FIRST_S = 60.0
"""So far back goes the first look, to find out how often Prometheus scrapes."""

FRESH_INTERVALS = 2.0
FRESH_SLACK_S = 0.5
"""A sample is fresh for two scrape intervals, and the time that a scrape itself may take."""

EPOCH_MONDAY_S = 4 * 86_400.0
"""The first Monday after the epoch, which was a Thursday."""

RUNNING, WAITING, KV = "running", "waiting", "kv"

_GAUGES: dict[str, tuple[str, ...]] = {
    RUNNING: ("vllm:num_requests_running",),
    WAITING: ("vllm:num_requests_waiting",),
    KV: ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
}
_COUNTERS: dict[str, tuple[str, ...]] = {
    "started": ("vllm:time_to_first_token_seconds_count",),
    "ttft_sum_s": ("vllm:time_to_first_token_seconds_sum",),
    "finished": ("vllm:request_success_total",),
    "output_tokens": ("vllm:request_generation_tokens_sum",),
    "tokens": ("vllm:generation_tokens_total",),
    "preemptions": ("vllm:num_preemptions_total",),
    # Means over finished requests; older versions have times between tokens alone, whose mean is over tokens.
    "itl_sum_s": (
        "vllm:request_time_per_output_token_seconds_sum",
        "vllm:inter_token_latency_seconds_sum",
        "vllm:time_per_output_token_seconds_sum",
    ),
    "itl_count": (
        "vllm:request_time_per_output_token_seconds_count",
        "vllm:inter_token_latency_seconds_count",
        "vllm:time_per_output_token_seconds_count",
    ),
}
_NAMES = sorted(
    {name for group in (_GAUGES, _COUNTERS) for names in group.values() for name in names}
)


class PrometheusError(RuntimeError):
    """Prometheus does not answer, answers with an error, or has nothing fresh; one line that says which."""


@dataclass(frozen=True)
class Series:
    """Raw samples of a series, oldest first.

    Attributes:
        labels: `__name__` is its name.
        times_s: Unix times.
        values: one for each.
    """

    labels: Mapping[str, str]
    times_s: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Prometheus:
    """Prometheus' HTTP API (`/api/v1/query`).

    Attributes:
        url: of the server, a path before `/api` included.
        timeout_s: for each request.
        token_file: holds a bearer token, read anew for each request; None: no token is sent.
    """

    url: str
    timeout_s: float = 10.0
    token_file: Path | None = None

    def query(self, text: str, at_s: float) -> list[Series]:
        """The series of an instant query; of a range selector all samples in the range.

        Raises:
            PrometheusError: see there.
        """
        words = urllib.parse.urlencode({"query": text, "time": f"{at_s:.3f}"})
        request = urllib.request.Request(f"{self.url.rstrip('/')}/api/v1/query?{words}")
        try:
            if self.token_file is not None:
                token = self.token_file.read_text(encoding="utf-8").strip()
                request.add_header("Authorization", f"Bearer {token}")
            with urllib.request.urlopen(request, timeout=self.timeout_s) as answer:
                body = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise PrometheusError(_told(error.code, error.read())) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise PrometheusError(f"no answer: {reason}") from None
        return _series_of(body)


def _told(code: int, body: bytes) -> str:
    """An error in Prometheus' words, if it is one of its own."""
    try:
        said = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        said = "no reason given"
    return f"HTTP {code}: {said[:300]}"


def _series_of(body: bytes) -> list[Series]:
    try:
        found = json.loads(body)["data"]["result"]
        rows = []
        for row in found:
            samples = row["values"] if "values" in row else [row["value"]]
            pairs = [(float(time_s), float(value)) for time_s, value in samples]
            times, values = zip(*pairs, strict=True)
            rows.append(Series(dict(row["metric"]), tuple(times), tuple(values)))
    except (ValueError, KeyError, TypeError) as error:
        raise PrometheusError(f"an answer that is none of Prometheus': {error!r}"[:300]) from None
    return rows


@dataclass
class Pod:
    """What is remembered of a pod between two looks.

    Attributes:
        slot: its row in `Seen`.
        served_s: time of its last sample of vLLM's gauges; None: it has never served.
        inside: requests running and waiting at the last look at which it served.
    """

    slot: int
    served_s: float | None = None
    inside: float = 0.0
    serves: bool = False


@dataclass(frozen=True)
class Reading:
    """What a look found.

    Attributes:
        seen: for the policy.
        at_s: Unix time of the look; `sample_s`: of the newest sample in it.
        interval_s: between scrapes.
        replicas: ordered in Kubernetes; None: not known.
        missing: pods that have served and are not seen.
        resets: counter resets since the last look.
        pods: names of those that serve.
    """

    seen: Seen
    at_s: float
    sample_s: float
    interval_s: float
    replicas: int | None
    missing: tuple[str, ...]
    resets: int
    pods: tuple[str, ...]


@dataclass
class Reader:
    """Looks at a deployment's pods in Prometheus, and remembers what counters need.

    The same samples and the same times of looking give the same readings.

    Attributes:
        prometheus: where.
        every_s: nominal control interval.
        slots: rows of `Seen` at least, the most pods that there should be.
        kv_capacity: tokens per pod, by which shares of KV memory are multiplied.
        selector: label matchers of the targets, such as `namespace="llm"`; "": targets with vLLM's metrics.
        namespace, deployment: of the deployment whose replica count kube-state-metrics tells; "": not asked.
        scrape_s: scrape interval; None: the median distance of samples.
    """

    prometheus: Prometheus
    every_s: float
    slots: int
    kv_capacity: int
    selector: str = ""
    namespace: str = ""
    deployment: str = ""
    scrape_s: float | None = None
    _pods: dict[str, Pod] = field(default_factory=dict, init=False)
    _counters: dict[tuple[tuple[str, str], ...], tuple[float, float]] = field(
        default_factory=dict, init=False
    )
    _totals: dict[str, float] = field(default_factory=dict, init=False)
    _last: tuple[int, float] | None = field(default=None, init=False)
    _interval_s: float | None = field(default=None, init=False)
    _looks: int = field(default=0, init=False)

    def look(self, turn: int, at_s: float, replicas: int | None = None) -> Reading:
        """The cluster at a time.

        Args:
            turn: whole control intervals since the start; it may skip some, and never falls.
            at_s: Unix time.
            replicas: ordered, if Kubernetes was asked; None: kube-state-metrics is.

        Raises:
            PrometheusError: see the module; what is remembered stays as it was.
        """
        first = self._last is None or at_s - self._last[1] > LONGEST_S
        back_s = FIRST_S if self._last is None or first else at_s - self._last[1]
        known_s = self.scrape_s or self._interval_s or FIRST_S
        back_s = min(max(back_s, self.every_s) + 4 * known_s, LONGEST_S)
        names = "|".join(["up", *_NAMES])
        matchers = ",".join(filter(None, (f'__name__=~"{names}"', self.selector)))
        raw = self.prometheus.query(f"{{{matchers}}}[{math.ceil(back_s)}s]", at_s)
        listed = self.prometheus.query(f"up{{{self.selector}}}", at_s)
        draining = self._draining(at_s)
        if replicas is None and self.deployment:
            replicas = self._replicas(at_s)

        by_pod = _by_pod(raw)
        interval_s = self.scrape_s or _spacing(raw) or known_s
        fresh_s = FRESH_INTERVALS * interval_s + FRESH_SLACK_S
        gauges = {pod: _gauges(rows) for pod, rows in by_pod.items()}
        vllm = {pod for pod, (_, sample_s) in gauges.items() if sample_s is not None}
        targets = {_pod_of(row.labels) for row in listed}
        if not self.selector:  # other jobs' targets are no pods of vLLM's
            targets = {pod for pod in targets if pod in vllm or pod in self._pods}
        if not targets:  # a store without `up`: a pod is there while its samples are fresh
            targets = {pod for pod in vllm if at_s - (gauges[pod][1] or 0) <= fresh_s}
        newest = max((row.times_s[-1] for rows in by_pod.values() for row in rows), default=None)
        if newest is None or not (targets or replicas):
            raise PrometheusError(f"nothing matches {{{self.selector}}}")
        if at_s - newest > fresh_s:
            raise PrometheusError(f"a gap: the newest sample is {at_s - newest:.1f} s old")

        self._settle_pods(sorted(targets))
        missing, on_the_way = [], 0
        size = max([self.slots, *(pod.slot + 1 for pod in self._pods.values())])
        state = np.full(size, int(InstanceState.OFF), np.int8)
        running, waiting, kv = (np.zeros(size, np.int64) for _ in range(3))
        before = {name: (pod.serves, pod.inside) for name, pod in self._pods.items()}
        samples: list[float] = []
        for name, pod in self._pods.items():
            values, sample_s = gauges.get(name, ({}, None))
            pod.serves = sample_s is not None and at_s - sample_s <= fresh_s
            if sample_s is not None:
                pod.served_s = sample_s
            if pod.serves and sample_s is not None:
                samples.append(sample_s)
                drains = name in draining
                state[pod.slot] = int(InstanceState.DRAINING if drains else InstanceState.ACTIVE)
                running[pod.slot], waiting[pod.slot] = (
                    round(values[RUNNING]),
                    round(values[WAITING]),
                )
                kv[pod.slot] = round(values.get(KV, 0.0) * self.kv_capacity)
                pod.inside = values[RUNNING] + values[WAITING]
            elif name not in draining:
                on_the_way += 1
                if pod.served_s is not None and at_s - pod.served_s <= MISSING_S:
                    missing.append(name)
        if replicas is not None:
            on_the_way = max(0, replicas - int((state == int(InstanceState.ACTIVE)).sum()))

        window, resets = self._count(by_pod, before, first)
        length_s = 0.0 if first or self._last is None else (turn - self._last[0]) * self.every_s
        for key, value in window.items():
            self._totals[key] = self._totals.get(key, 0.0) + value
        seen = Seen(
            time_s=turn * self.every_s,
            step=self._looks,
            clock_s=(at_s - EPOCH_MONDAY_S) % WEEK_S,
            length_s=length_s,
            state=state,
            running=running,
            waiting=waiting,
            kv_tokens=kv,
            on_the_way=on_the_way,
            window=window,
            totals=dict(self._totals),
        )
        self._last, self._interval_s = (turn, at_s), interval_s
        self._looks += 1
        pods = tuple(sorted(name for name, pod in self._pods.items() if pod.serves))
        # Of the oldest sample in use: a view is as old as its oldest part.
        sample_s = min(samples, default=newest)
        return Reading(seen, at_s, sample_s, interval_s, replicas, tuple(missing), resets, pods)

    def _settle_pods(self, targets: Sequence[str]) -> None:
        """Pods that are gone leave their slots; new ones take the lowest free ones, by their names."""
        for name in [name for name in self._pods if name not in targets]:
            del self._pods[name]
            for key in [key for key in self._counters if ("", name) in key]:
                del self._counters[key]
        taken = {pod.slot for pod in self._pods.values()}
        free = iter(slot for slot in range(len(taken) + len(targets)) if slot not in taken)
        for name in targets:
            if name not in self._pods:
                self._pods[name] = Pod(next(free))

    def _count(
        self,
        by_pod: Mapping[str, Sequence[Series]],
        before: Mapping[str, tuple[bool, float]],
        first: bool,
    ) -> tuple[dict[str, float], int]:
        """What every counter grew by since the last look, over all pods; and how many were reset."""
        window = dict.fromkeys((*CLASS_COUNTS, *POOL_COUNTS, *SUMS), 0.0)
        resets = 0
        for name, pod in self._pods.items():
            rows, grown = by_pod.get(name, ()), dict.fromkeys(_COUNTERS, 0.0)
            restarted = False
            for counter, names in _COUNTERS.items():
                for row in _first_named(rows, names):
                    key = (("", name), *sorted(row.labels.items()))
                    known = self._counters.get(key)
                    if first:
                        known = row.times_s[-1], row.values[-1]
                    more, last, fell = _increase(row, known)
                    self._counters[key] = last
                    grown[counter] += more
                    restarted |= fell > 0
                    resets += fell
            served, inside = before[name]
            if restarted or not served:
                inside = 0.0
            if pod.serves and not first:
                grown["arrived"] = max(0.0, grown["finished"] + pod.inside - inside)
            for counter, more in grown.items():
                window[counter] += more
        return window, resets

    def _replicas(self, at_s: float) -> int | None:
        """Of the deployment, by kube-state-metrics."""
        space = f',namespace="{self.namespace}"' if self.namespace else ""
        text = f'kube_deployment_spec_replicas{{deployment="{self.deployment}"{space}}}'
        rows = self.prometheus.query(text, at_s)
        return round(rows[0].values[-1]) if rows else None

    def _draining(self, at_s: float) -> set[str]:
        """Pods that are being deleted, by kube-state-metrics, whether or not its labels were honoured."""
        rows = self.prometheus.query("kube_pod_deletion_timestamp", at_s)
        found = set()
        for row in rows:
            space = row.labels.get("exported_namespace") or row.labels.get("namespace", "")
            if not self.namespace or space == self.namespace:
                found.add(row.labels.get("exported_pod") or row.labels.get("pod", ""))
        return found


def _pod_of(labels: Mapping[str, str]) -> str:
    return labels.get("pod") or labels.get("instance", "")


def _by_pod(rows: Iterable[Series]) -> dict[str, list[Series]]:
    found: dict[str, list[Series]] = {}
    for row in rows:
        found.setdefault(_pod_of(row.labels), []).append(row)
    return found


def _first_named(rows: Sequence[Series], names: Sequence[str]) -> list[Series]:
    """The series of the first of several names that a pod has."""
    for name in names:
        found = [row for row in rows if row.labels.get("__name__") == name]
        if found:
            return found
    return []


def _gauges(rows: Sequence[Series]) -> tuple[dict[str, float], float | None]:
    """The gauges of a pod, its engines together, and the time of their oldest last sample.

    Requests of a pod's engines add up; their shares of KV memory are averaged. Engines whose series ended
    before the others', as after a restart with another number of them, are left out.
    """
    newest = [
        row for row in rows if row.labels.get("__name__") in _GAUGES[RUNNING] + _GAUGES[WAITING]
    ]
    if not newest:
        return {}, None
    last_s = max(row.times_s[-1] for row in newest)
    values: dict[str, float] = {}
    for what, names in _GAUGES.items():
        current = [
            row.values[-1] for row in _first_named(rows, names) if row.times_s[-1] >= last_s - 1e-3
        ]
        if current:
            values[what] = statistics.fmean(current) if what == KV else sum(current)
    if RUNNING not in values or WAITING not in values:
        return {}, None
    return values, last_s


def _increase(
    row: Series, known: tuple[float, float] | None
) -> tuple[float, tuple[float, float], int]:
    """(by how much a counter grew since `known`, its last sample, how often it was reset).

    Args:
        row: its samples, some of which may have been counted.
        known: (time, value) of the last one that was counted; None: it began from 0 since then.
    """
    last = known if known is not None else (-math.inf, 0.0)
    more, resets = 0.0, 0
    for time_s, value in zip(row.times_s, row.values, strict=True):
        if time_s <= last[0] or math.isnan(value):
            continue
        fell = value < last[1]
        resets += fell
        more += value if fell else value - last[1]
        last = time_s, value
    return more, last, resets


def _spacing(rows: Iterable[Series]) -> float | None:
    """Median distance of samples: the scrape interval. `up` has one for every scrape, failed or not."""
    rows = list(rows)
    ups = [row for row in rows if row.labels.get("__name__") == "up"]
    gaps = [
        later - sooner
        for row in ups or rows
        for sooner, later in zip(row.times_s, row.times_s[1:], strict=False)
    ]
    return statistics.median(gaps) if gaps else None


def label_matchers(text: str) -> str:
    """A selector's matchers, checked.

    Args:
        text: such as `namespace="llm",job=~"vllm.*"`; braces around them are taken off.

    Raises:
        ValueError: it is none.
    """
    inner = text.strip().removeprefix("{").removesuffix("}")
    one = r'\s*[A-Za-z_][A-Za-z0-9_]*\s*(=|!=|=~|!~)\s*"(?:[^"\\]|\\.)*"\s*'
    if not re.fullmatch(f"{one}(,{one})*", inner):
        raise ValueError('must be label matchers with values in double quotes, as namespace="llm"')
    return inner


def describe(reading: Reading) -> dict[str, Any]:
    """A reading in plain values, for the log."""
    seen = reading.seen
    return {
        "active": int(seen.active.sum()),
        "on_the_way": seen.on_the_way,
        "draining": int((seen.state == int(InstanceState.DRAINING)).sum()),
        "missing": list(reading.missing),
        "replicas": reading.replicas,
        "running": int(seen.running.sum()),
        "waiting": int(seen.waiting.sum()),
        "kv_tokens": int(seen.kv_tokens.sum()),
        "window_s": seen.length_s,
        "window": {name: round(value, 6) for name, value in seen.window.items()},
        "counter_resets": reading.resets,
        "view_age_s": round(reading.at_s - reading.sample_s, 3),
    }
