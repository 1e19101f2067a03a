"""One policy in the shadow of one deployment: at every turn it looks, decides, logs, exports, and may write.

**Holding.** The last order stands, and the policy is not asked or not followed, while there is nothing sound
to decide on:

- Prometheus does not answer, has a gap, or holds something that is no metric;
- no pod serves, or fewer than half of those that should;
- more pods serve than Kubernetes has replicas: others' pods are read, or pods end and nobody says which;
- the policy asks for something that is not seen, fails, or orders something that is no number of pods.

**Missing pods.** While fewer pods serve than should, but at least half of them, the policy decides. An order
below what is ordered becomes what is ordered: load that is not seen is no reason to take pods away. Silence
excuses a pod only as long as it may load (`ordered`).

**Bounds.** An order is at least 1, since without a pod nothing is seen and the order would stand for good. It
is at most `max_instances`. `kept` says where the policy wanted something else.

**Time.** A policy's clock counts whole intervals since the start, those that were held or missed included.
The window of the first view after a gap is as long as the gap.

**Restarts.** A policy begins anew with the pods that it finds: its first order keeps them. Nothing is kept on
disk; windows of minutes fill up again.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from experiments.desk.advising.case import POOL
from experiments.desk.serve.metrics import Reader, Reading, describe
from experiments.desk.serve.scale import Writer
from experiments.desk.serve.seen import Cluster, NotSeen, Seen, act
from llmscale_env.control.command import Command
from llmscale_env.control.policy import Policy
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.workload.served.client import PrometheusError

_LONGEST_NOTE = 200


@dataclass(frozen=True)
class Decision:
    """What was decided at a turn.

    Attributes:
        turn: whole intervals since the start.
        time_s: Unix time.
        order: instances to have; None: nothing was ever seen.
        have: on their way and active; None: not seen.
        reason: the policy's.
        held: why the last order stands; "": it was decided.
        kept: why the order is not the policy's own; "": it is.
        not_applied: other orders of the policy, which nobody carries out.
        seen: what was seen, in plain values; {} if nothing was.
        view_age_s: age of the oldest sample in the view by the server's clock; of the last view while it
            holds. None: no view yet.
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
    _ahead_s: float = field(default=0.0, init=False)

    def decide(self, turn: int, at_s: float) -> Decision:
        """Look and decide.

        Args:
            turn: whole intervals since the start; turns may be missed, and never come again.
            at_s: Unix time.
        """
        replicas = self.writer.read() if self.writer is not None else None
        try:
            reading = self.reader.look(turn, at_s, replicas, self._order)
        except PrometheusError as error:
            return self._finished(
                Decision(turn, at_s, self._order, replicas, "", f"Prometheus: {error}")
            )
        self._view_s, self._ahead_s = reading.sample_s, reading.ahead_s
        decision = self._decided(turn, at_s, reading)
        self._order = decision.order
        return self._finished(decision)

    def _decided(self, turn: int, at_s: float, reading: Reading) -> Decision:
        seen, most = reading.seen, self.cluster.max_instances
        have, told = seen.have, describe(reading)
        held = self._unsound(reading)
        command, order = Command(), 0
        if not held:
            try:
                command = self._asked(seen)
                order = self._order_of(command, have)
            except NotSeen as error:
                held = f"{self.policy.name} needs {error}"
            except (
                Exception
            ) as error:  # of a policy that is not ours, say: the order before it stands
                held = f"{self.policy.name}: {type(error).__name__}: {error}"
                held = " ".join(held.split())[:_LONGEST_NOTE]
        if held:
            last = reading.ordered if self._order is None else self._order
            return Decision(turn, at_s, min(max(last, 1), most), have, "", held, seen=told)
        wanted, kept = order, ""
        serving = int(seen.active.sum())
        if serving < reading.expected and order < reading.ordered:
            order = reading.ordered
            kept = f"kept at {order}, not {wanted}: {serving} of {reading.expected} pods serve"
        elif order < 1:
            order = 1
            kept = f"kept at 1, not {wanted}: without a pod nothing is seen"
        elif order > most:
            order = most
            kept = f"kept at {most}, not {wanted}: max_instances"
        others = tuple(name for name in command.to_dict() if name not in ("targets", "reason"))
        return Decision(turn, at_s, order, have, command.reason, "", kept, others, told)

    def _unsound(self, reading: Reading) -> str:
        """Why there is nothing to decide on; "" if there is."""
        serving, expected = int(reading.seen.active.sum()), reading.expected
        if reading.replicas is not None and serving > reading.replicas:
            return (
                f"{serving} pods serve and Kubernetes has {reading.replicas} replicas: others' pods are "
                "read, or pods end that kube-state-metrics does not tell of"
            )
        lacks = f": {', '.join(reading.missing[:3])} missing" if reading.missing else ""
        if serving == 0:
            return f"none of {reading.ordered} pods serves{lacks}"
        if 2 * serving < expected:
            return f"{serving} of {expected} pods serve{lacks}"
        if serving < expected and reading.ordered > self.cluster.max_instances:
            return (
                f"{serving} of {expected} pods serve, and there are more than max_instances{lacks}"
            )
        return ""

    def _asked(self, seen: Seen) -> Command:
        if self._scenario is None:
            scenario = self.cluster.scenario(seen.have)
            self.policy.reset(scenario, 0)
            self._scenario = scenario
        return act(self.policy, self._scenario, seen)

    def _order_of(self, command: Command, have: int) -> int:
        """Instances that a command means: those that it names, or those that there are.

        An empty command, as between two looks of a slower policy, leaves the last order as it is.

        Raises:
            TypeError: it names something that is no whole number.
        """
        if command == Command() and self._order is not None:
            return self._order
        return operator.index(command.targets.get(POOL, have))

    def _finished(self, decision: Decision) -> Decision:
        now_s = decision.time_s + self._ahead_s
        age_s = None if self._view_s is None else max(0.0, now_s - self._view_s)
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
