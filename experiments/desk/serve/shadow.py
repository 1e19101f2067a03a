"""One policy in the shadow of one deployment: at every turn it looks, decides, logs, exports, and may write.

**Holding.** The last order stands, and the policy is not asked, while there is nothing sound to decide on:
Prometheus does not answer or has a gap; no pod is known; half or more of the pods that have served are
missing; the policy asks for something that is not seen. Where fewer pods are missing, the policy is asked,
but an order below what there is becomes what there is: load that is not seen is no reason to take pods away.

**Time.** A policy's clock counts whole intervals since the start, those that were held or missed included.
The window of the first view after a gap is as long as the gap.

**Restarts.** A policy begins anew with the pods that it finds: its first order keeps them. Nothing is kept on
disk; windows of minutes fill up again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from experiments.desk.advising.case import POOL
from experiments.desk.serve.metrics import PrometheusError, Reader, Reading, describe
from experiments.desk.serve.scale import Writer
from experiments.desk.serve.seen import Cluster, NotSeen, act
from llmscale_env.control.command import Command
from llmscale_env.control.policy import Policy
from llmscale_env.scenarios.schema import Scenario

MISSING_SHARE = 0.5
"""Of the pods that have served; from here on the shadow holds."""


@dataclass(frozen=True)
class Decision:
    """What was decided at a turn.

    Attributes:
        turn: whole intervals since the start.
        time_s: Unix time.
        order: instances to have; None: nothing was ever seen.
        have: ordered so far: on their way and active; None: not seen.
        reason: the policy's.
        held: why the last order stands; "": it was decided.
        kept: why the order is not the policy's own; "": it is.
        not_applied: other orders of the policy, which nobody carries out.
        seen: what was seen, in plain values; {} if nothing was.
        view_age_s: age of the oldest sample in the view; of the last view while it holds. None: no view yet.
        written: outcome of writing it (`scale.Writer`), and its note; "" without a writer.
    """

    turn: int
    time_s: float
    order: int | None
    have: int | None
    reason: str
    held: str = ""
    kept: str = ""
    not_applied: tuple[str, ...] = ()
    seen: dict[str, Any] = field(default_factory=dict)
    view_age_s: float | None = None
    written: str = ""
    note: str = ""

    def line(self) -> str:
        """The decision in a short line."""
        if self.order is None:
            return f"nothing seen yet ({self.held})"
        have = "?" if self.have is None else str(self.have)
        parts = [f"{have} pods, order {self.order}"]
        if self.held:
            parts.append(f"holds: {self.held}")
        elif self.reason:
            parts.append(self.reason)
        parts += [self.kept] if self.kept else []
        if self.written:
            parts.append(f"{self.written} {self.note}".strip())
        return "; ".join(parts)


@dataclass
class Shadow:
    """See the module.

    Attributes:
        policy: its state is of this run.
        cluster: that it is told of.
        reader: what it sees.
        writer: writes its orders; None: nobody does.
    """

    policy: Policy
    cluster: Cluster
    reader: Reader
    writer: Writer | None = None
    _scenario: Scenario | None = field(default=None, init=False)
    _order: int | None = field(default=None, init=False)
    _view_s: float | None = field(default=None, init=False)

    def decide(self, turn: int, at_s: float) -> Decision:
        """Look and decide.

        Args:
            turn: whole intervals since the start; turns may be missed, and never come again.
            at_s: Unix time.
        """
        replicas = self.writer.read() if self.writer is not None else None
        try:
            reading = self.reader.look(turn, at_s, replicas)
        except PrometheusError as error:
            return self._finished(
                Decision(turn, at_s, self._order, replicas, "", f"Prometheus: {error}")
            )
        self._view_s = reading.sample_s
        decision = self._decided(turn, at_s, reading)
        self._order = decision.order
        return self._finished(decision)

    def _decided(self, turn: int, at_s: float, reading: Reading) -> Decision:
        seen = reading.seen
        have, told = seen.have, describe(reading)
        served = len(reading.missing) + len(reading.pods)
        held = ""
        if reading.missing and len(reading.missing) >= MISSING_SHARE * served:
            held = f"{len(reading.missing)} of {served} pods are missing: {', '.join(reading.missing[:3])}"
        command = Command()
        if not held:
            if self._scenario is None:
                self._scenario = self.cluster.scenario(have)
                self.policy.reset(self._scenario, 0)
            try:
                command = act(self.policy, self._scenario, seen)
            except NotSeen as error:
                held = f"{self.policy.name} needs {error}"
        if held:
            order = have if self._order is None else self._order
            return Decision(turn, at_s, order, have, "", held, seen=told)
        order, kept = self._order_of(command, have), ""
        if reading.missing and order < have:
            kept = f"kept at {have}, not {order}: {len(reading.missing)} pods are missing"
            order = have
        others = tuple(name for name in command.to_dict() if name not in ("targets", "reason"))
        return Decision(turn, at_s, order, have, command.reason, "", kept, others, told)

    def _order_of(self, command: Command, have: int) -> int:
        """Instances that a command means: those that it names, or those that there are.

        An empty command, as between two looks of a slower policy, leaves the last order as it is.
        """
        if command == Command() and self._order is not None:
            return self._order
        return int(command.targets.get(POOL, have))

    def _finished(self, decision: Decision) -> Decision:
        age_s = None if self._view_s is None else decision.time_s - self._view_s
        changes: dict[str, Any] = {"view_age_s": age_s}
        if self.writer is not None:
            order = 0 if decision.order is None else decision.order
            held = decision.held or ("" if decision.order is not None else "nothing seen")
            changes["written"] = self.writer.write(order, held, age_s if age_s is not None else 0.0)
            changes["note"] = self.writer.note
        return Decision(**{**vars(decision), **changes})


class Exporter:
    """Decisions as Prometheus metrics, and on an endpoint of their own.

    Args:
        policy: label of what is decided.
    """

    def __init__(self, policy: str) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge

        self.registry = CollectorRegistry()
        self._policy = policy
        of_policy: dict[str, Any] = {"labelnames": ("policy",), "registry": self.registry}
        self._desired = Gauge(
            "llmscale_desired_instances", "Instances that the policy would have.", **of_policy
        )
        self._instances = Gauge(
            "llmscale_instances",
            "Pods as they are seen.",
            labelnames=("state",),
            registry=self.registry,
        )
        self._decisions = Counter(
            "llmscale_decisions", "Turns at which the policy was asked.", **of_policy
        )
        self._holds = Counter("llmscale_holds", "Turns at which the last order stood.", **of_policy)
        self._holding = Gauge(
            "llmscale_holding", "Whether the last turn held the order before it.", **of_policy
        )
        self._age = Gauge(
            "llmscale_view_age_seconds", "Age of the oldest sample in the last view.", **of_policy
        )
        self._turn = Gauge(
            "llmscale_last_turn_timestamp_seconds", "When the last turn was.", **of_policy
        )
        self._resets = Counter(
            "llmscale_counter_resets", "Resets of pods' counters that were seen.", **of_policy
        )
        self._writes = Counter(
            "llmscale_scale_writes",
            "Decisions by what became of writing them to Kubernetes.",
            labelnames=("outcome",),
            registry=self.registry,
        )
        self._writing = Gauge(
            "llmscale_writing", "Whether orders are written to Kubernetes.", registry=self.registry
        )

        for counter in (self._decisions, self._holds, self._resets):
            counter.labels(policy)  # 0 until something happens

    def add(self, decision: Decision, writing: bool) -> None:
        """A decision more."""
        name = self._policy
        if decision.order is not None:
            self._desired.labels(name).set(decision.order)
        (self._holds if decision.held else self._decisions).labels(name).inc()
        self._holding.labels(name).set(bool(decision.held))
        self._turn.labels(name).set(decision.time_s)
        if decision.view_age_s is not None:
            self._age.labels(name).set(decision.view_age_s)
        for state in ("active", "on_the_way", "draining"):
            if state in decision.seen:
                self._instances.labels(state).set(decision.seen[state])
        if "missing" in decision.seen:
            self._instances.labels("missing").set(len(decision.seen["missing"]))
            self._resets.labels(name).inc(decision.seen["counter_resets"])
        if decision.written:
            self._writes.labels(decision.written).inc()
        self._writing.set(writing)

    def serve(self, port: int) -> Callable[[], None]:
        """Answer scrapes at `port` in a thread of its own; returns what ends it.

        Raises:
            OSError: the port is taken.
        """
        from prometheus_client import start_http_server

        server, thread = start_http_server(port, registry=self.registry)

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return end


def log_line(decision: Decision) -> str:
    """A decision as a line of JSON, without what is empty."""
    told = {
        key: value for key, value in asdict(decision).items() if value not in ("", None, (), {})
    }
    return json.dumps(told, ensure_ascii=False)


def open_log(path: Path) -> IO[str]:
    """A log that lines are added to; each is there whole once it is written.

    Raises:
        OSError: nothing can be written there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", encoding="utf-8", buffering=1)
