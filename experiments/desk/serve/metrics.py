"""vLLM's metrics in Prometheus, read at one instant and made into what a policy sees.

**Which pods there are.** A pod is a target that Prometheus scrapes and that `selector` matches. The labels
`namespace` and `pod` name it, or else `instance`. Prometheus' own series `up` says that a target exists, also
when nothing answers there.

- A pod *serves* if its last sample of vLLM's gauges is at most two scrape intervals old. One missed scrape
  changes nothing: the sample before it is used.
- A pod is *on its way* if it exists and does not serve. A policy sees it as one that loads.
- It is *missing* if it should serve, which `ordered` finds out. `Reading.missing` names it, and
  `Reading.expected` counts those that should serve. Its load is not seen; the shadow is careful then.
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

**Time** is the server's: a look is made at its present time, and ages are by its clock.

**What is not believed.** `PrometheusError`, before anything is remembered:

- no answer, an error, a partial answer, nothing that matches;
- no sample of any pod within two scrape intervals (Prometheus has just started, or does not scrape);
- this machine's clock and the server's differ by more than two scrape intervals;
- the last sample of a pod's metric, or the replica count, is NaN, infinite, negative or absurdly large. A
  share of KV memory that is a little above 1 is taken for 1. Earlier samples of that kind are skipped.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiments.desk.serve.ordered import Key, Ordered
from experiments.desk.serve.seen import CLASS_COUNTS, POOL_COUNTS, SUMS, Seen
from llmscale_env.sim.spec import InstanceState
from llmscale_env.workload.requests import WEEK_S
from llmscale_env.workload.served import client
from llmscale_env.workload.served.client import Prometheus, PrometheusError, Series, sound

LONGEST_S = 3600.0
"""Of the time whose samples are asked for at once."""

FIRST_S = 60.0
"""So far back goes the first look, to find out how often Prometheus scrapes."""

FRESH_INTERVALS = 2.0
FRESH_SLACK_S = 0.5
"""A sample is fresh for two scrape intervals, and the time that a scrape itself may take."""

SKEW_INTERVALS = 2.0
"""By so many scrape intervals the clocks may differ."""

EPOCH_MONDAY_S = 4 * 86_400.0
"""The first Monday after the epoch, which was a Thursday."""

MOST_REPLICAS = 1_000_000
MOST_SHARE = 1.5
"""Of KV memory in use; vLLM may tell a little more than all."""

RUNNING, WAITING, KV = "running", "waiting", "kv"

_GAUGES: dict[str, tuple[str, ...]] = {
    RUNNING: (client.RUNNING,),
    WAITING: (client.WAITING,),
    KV: client.KV_SHARE,
}
_COUNTERS: dict[str, tuple[str, ...]] = {
    "started": ("vllm:time_to_first_token_seconds_count",),
    "ttft_sum_s": ("vllm:time_to_first_token_seconds_sum",),
    "finished": ("vllm:request_success_total",),
    "output_tokens": (f"{client.OUTPUTS}_sum",),
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
_MOST = {
    **dict.fromkeys((client.RUNNING, client.WAITING), client.MOST_INSIDE),
    **dict.fromkeys(client.KV_SHARE, MOST_SHARE),
    **{name: client.MOST_COUNTED for names in _COUNTERS.values() for name in names},
}
"""What a metric can be at most, by name."""


@dataclass
class Pod:
    """What is remembered of a pod between two looks.

    Attributes:
        slot: its row in `Seen`.
        inside: requests running and waiting at the last look at which it served.
        serves: whether it did at the last look.
        counters: last sample that was counted, (time, value), by the labels of its series.
    """

    slot: int
    inside: float = 0.0
    serves: bool = False
    counters: dict[tuple[tuple[str, str], ...], tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """What a look found.

    Attributes:
        seen: for the policy.
        at_s: Unix time of the look by the server's clock; `sample_s`: of the oldest sample in use.
        ahead_s: by how much that clock is ahead of this machine's.
        interval_s: between scrapes.
        replicas: ordered in Kubernetes; None: not known.
        ordered: pods that there should be; `expected`: of them, those that should serve.
        missing: pods that should serve and are not seen, as far as their names are known.
        resets: counter resets since the last look.
        pods: names of those that serve.
    """

    seen: Seen
    at_s: float
    ahead_s: float
    sample_s: float
    interval_s: float
    replicas: int | None
    ordered: int
    expected: int
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
        selector: label matchers of the targets, such as `namespace="llm"`; "": all.
        namespace, deployment: of the deployment whose replica count kube-state-metrics tells; "": not asked.
        scrape_s: scrape interval; None: the median distance of samples.
        load_s: from an order of a pod until it serves.
        exact: every target that `selector` matches is a pod of vLLM's. Else those are that have its metrics,
            and the others of their jobs; so it is with an empty selector.
    """

    prometheus: Prometheus
    every_s: float
    slots: int
    kv_capacity: int
    selector: str = ""
    namespace: str = ""
    deployment: str = ""
    scrape_s: float | None = None
    load_s: float = 180.0
    exact: bool = True
    _pods: dict[Key, Pod] = field(default_factory=dict, init=False)
    _ordered: Ordered = field(init=False)
    _totals: dict[str, float] = field(default_factory=dict, init=False)
    _last: tuple[int, float] | None = field(default=None, init=False)
    _interval_s: float | None = field(default=None, init=False)
    _looks: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._ordered = Ordered(self.load_s)

    def look(
        self, turn: int, at_s: float, replicas: int | None = None, order: int | None = None
    ) -> Reading:
        """The cluster at a time.

        Args:
            turn: whole control intervals since the start; it may skip some, and never falls.
            at_s: Unix time, by the clock of this machine.
            replicas: ordered, if Kubernetes was asked; None: kube-state-metrics is.
            order: the last one of the policy; None: none.

        Raises:
            PrometheusError: see the module; what is remembered stays as it was.
        """
        ahead_s = self.prometheus.ahead_s()
        at_s += ahead_s
        first = self._last is None or not 0 <= at_s - self._last[1] <= LONGEST_S
        back_s = FIRST_S if self._last is None or first else at_s - self._last[1]
        known_s = self.scrape_s or self._interval_s or FIRST_S
        back_s = min(max(back_s, self.every_s) + 4 * known_s, LONGEST_S)
        names = "|".join(["up", *sorted(_MOST)])
        matchers = ",".join(filter(None, (f'__name__=~"{names}"', self.selector)))
        raw = self.prometheus.query(f"{{{matchers}}}[{math.ceil(back_s)}s]", at_s)
        listed = self.prometheus.query(f"up{{{self.selector}}}", at_s)
        deleted = self._draining(at_s)
        if replicas is None and self.deployment:
            replicas = self._replicas(at_s)
        if replicas is not None and not sound(replicas, MOST_REPLICAS):
            raise PrometheusError(f"{replicas} replicas, which is no count")

        interval_s = self.scrape_s or _spacing(raw) or known_s
        if abs(ahead_s) > SKEW_INTERVALS * interval_s:
            side = "ahead of" if ahead_s > 0 else "behind"
            raise PrometheusError(f"its clock is {abs(ahead_s):.1f} s {side} this machine's")
        fresh_s = FRESH_INTERVALS * interval_s + FRESH_SLACK_S
        by_pod, broken = _by_pod(raw, at_s - fresh_s)
        gauges = {key: _gauges(rows) for key, rows in by_pod.items()}
        fresh = {
            key
            for key, (_, sample_s) in gauges.items()
            if sample_s is not None and at_s - sample_s <= fresh_s
        }
        # A store without `up`: a pod is there while its samples are fresh.
        targets = self._targets(raw, listed) or fresh
        newest = max((row.times_s[-1] for row in raw), default=None)
        if newest is None or not (targets or replicas):
            raise PrometheusError(f"nothing matches {{{self.selector}}}")
        if at_s - newest > fresh_s:
            raise PrometheusError(f"a gap: the newest sample is {at_s - newest:.1f} s old")
        if told := [broken[key] for key in sorted(targets & broken.keys())]:
            raise PrometheusError(told[0])

        vanished = self._pods.keys() - targets
        if vanished and replicas is None:
            deleted_since = deleted | self._draining(at_s, f"[{math.ceil(back_s)}s]")
            vanished = {key for key in vanished if not _drains(key, deleted_since)}

        # Nothing is refused from here on.
        drained = self._pods.keys() - targets - vanished
        self._settle_pods(sorted(targets))
        names_of = _names(targets)
        draining = drained | {key for key in targets if _drains(key, deleted)}
        active = (targets & fresh) - draining
        found = self._ordered.look(
            at_s, targets, active, draining, replicas, order, self.every_s + fresh_s
        )
        size = max([self.slots, *(pod.slot + 1 for pod in self._pods.values())])
        state = np.full(size, int(InstanceState.OFF), np.int8)
        running, waiting, kv = (np.zeros(size, np.int64) for _ in range(3))
        before = {key: (pod.serves, pod.inside) for key, pod in self._pods.items()}
        samples: list[float] = []
        for key, pod in self._pods.items():
            pod.serves = key in fresh
            values, sample_s = gauges.get(key, ({}, None))
            if not pod.serves or sample_s is None:
                continue
            samples.append(sample_s)
            drains = key in draining
            state[pod.slot] = int(InstanceState.DRAINING if drains else InstanceState.ACTIVE)
            running[pod.slot] = round(values[RUNNING])
            waiting[pod.slot] = round(values[WAITING])
            kv[pod.slot] = round(min(1.0, values.get(KV, 0.0)) * self.kv_capacity)
            pod.inside = values[RUNNING] + values[WAITING]
        on_the_way = len(targets - draining - active)
        if replicas is not None:
            on_the_way = max(0, replicas - len(active))

        window, resets = self._count(by_pod, before, first)
        length_s = 0.0 if first or self._last is None else (turn - self._last[0]) * self.every_s
        for name, value in window.items():
            self._totals[name] = self._totals.get(name, 0.0) + value
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
        return Reading(
            seen=seen,
            at_s=at_s,
            ahead_s=ahead_s,
            # Of the oldest sample in use: a view is as old as its oldest part.
            sample_s=min(samples, default=newest),
            interval_s=interval_s,
            replicas=replicas,
            ordered=found.ordered,
            expected=found.expected,
            missing=tuple(names_of.get(key, key[1]) for key in found.missing),
            resets=resets,
            pods=tuple(sorted(names_of[key] for key, pod in self._pods.items() if pod.serves)),
        )

    def _targets(self, raw: Sequence[Series], listed: Sequence[Series]) -> set[Key]:
        """Pods of vLLM's among the targets that are listed."""
        if self.exact and self.selector:
            return {_key_of(row.labels) for row in listed}
        gauges = [row.labels for row in raw if row.labels.get("__name__") in _MOST]
        vllm = {_key_of(labels) for labels in gauges} | self._pods.keys()
        jobs = {labels["job"] for labels in gauges if labels.get("job")}
        return {
            key
            for row in listed
            if (key := _key_of(row.labels)) in vllm or row.labels.get("job") in jobs
        }

    def _settle_pods(self, targets: Sequence[Key]) -> None:
        """Pods that are gone leave their slots; new ones take the lowest free ones, by their names."""
        for key in [key for key in self._pods if key not in targets]:
            del self._pods[key]
        taken = {pod.slot for pod in self._pods.values()}
        free = iter(slot for slot in range(len(taken) + len(targets)) if slot not in taken)
        for key in targets:
            if key not in self._pods:
                self._pods[key] = Pod(next(free))

    def _count(
        self,
        by_pod: Mapping[Key, Sequence[Series]],
        before: Mapping[Key, tuple[bool, float]],
        first: bool,
    ) -> tuple[dict[str, float], int]:
        """What every counter grew by since the last look, over all pods; and how many were reset."""
        window = dict.fromkeys((*CLASS_COUNTS, *POOL_COUNTS, *SUMS), 0.0)
        resets = 0
        for key, pod in self._pods.items():
            rows, grown = by_pod.get(key, ()), dict.fromkeys(_COUNTERS, 0.0)
            restarted = False
            for counter, names in _COUNTERS.items():
                for row in _first_named(rows, names):
                    labels = tuple(sorted(row.labels.items()))
                    known = pod.counters.get(labels)
                    if first:
                        known = row.times_s[-1], row.values[-1]
                    more, last, fell = _increase(row, known)
                    pod.counters[labels] = last
                    grown[counter] += more
                    restarted |= fell > 0
                    resets += fell
            served, inside = before[key]
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
        found = {row.values[-1] for row in self.prometheus.query(text, at_s)}
        if len(found) > 1:
            raise PrometheusError(f"deployment {self.deployment!r} has several replica counts")
        if found and not sound(min(found), MOST_REPLICAS):
            raise PrometheusError(f"{min(found):g} replicas, which is no count")
        return round(min(found)) if found else None

    def _draining(self, at_s: float, back: str = "") -> set[Key]:
        """Pods that are being deleted, by kube-state-metrics, whether or not its labels were honoured.

        Args:
            at_s: Unix time.
            back: range before it, such as "[60s]", for those that were deleted in it.
        """
        found = set()
        for row in self.prometheus.query(f"kube_pod_deletion_timestamp{back}", at_s):
            space = row.labels.get("exported_namespace") or row.labels.get("namespace", "")
            if not self.namespace or space == self.namespace:
                found.add((space, row.labels.get("exported_pod") or row.labels.get("pod", "")))
        return found


def _drains(key: Key, deleted: Set[Key]) -> bool:
    """Whether a pod is among those that are deleted; by its name alone if its namespace is not told."""
    return key in deleted or (not key[0] and any(name == key[1] for _, name in deleted))


def _key_of(labels: Mapping[str, str]) -> Key:
    return labels.get("namespace", ""), labels.get("pod") or labels.get("instance", "")


def _names(keys: Iterable[Key]) -> dict[Key, str]:
    """Names of pods; with their namespaces if there are several."""
    keys = list(keys)
    several = len({space for space, _ in keys}) > 1
    return {key: f"{key[0]}/{key[1]}" if several else key[1] for key in keys}


def _by_pod(
    rows: Iterable[Series], fresh_from_s: float
) -> tuple[dict[Key, list[Series]], dict[Key, str]]:
    """(series by pod without samples that are none of their metric, what is wrong with pods now).

    A pod is wrong if the last sample of a series is, and is in use.
    """
    found: dict[Key, list[Series]] = {}
    broken: dict[Key, str] = {}
    for row in rows:
        name, key = row.labels.get("__name__", ""), _key_of(row.labels)
        most = _MOST.get(name, 1.0)  # `up` is 0 or 1
        kept = [
            (time_s, value)
            for time_s, value in zip(row.times_s, row.values, strict=True)
            if sound(value, most)
        ]
        if len(kept) < len(row.values):
            if not sound(row.values[-1], most) and row.times_s[-1] >= fresh_from_s:
                broken.setdefault(key, f"{name} of {key[1]} is {row.values[-1]:g}")
            if not kept:
                continue
            times, values = zip(*kept, strict=True)
            row = Series(row.labels, times, values)
        found.setdefault(key, []).append(row)
    return found, broken


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
        if time_s <= last[0]:
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


def describe(reading: Reading) -> dict[str, Any]:
    """A reading in plain values, for the log."""
    seen = reading.seen
    return {
        "active": int(seen.active.sum()),
        "on_the_way": seen.on_the_way,
        "draining": int((seen.state == int(InstanceState.DRAINING)).sum()),
        "expected": reading.expected,
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
