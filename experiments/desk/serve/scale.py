"""Replica counts written to Kubernetes' scale subresource, within limits and with a dead-man's stop.

Off unless it is asked for. Rules, in this order, at every decision:

1. **Stopped** stays stopped until the command is started again.
2. Nothing is written while the shadow holds (a gap, pods it cannot judge), or while the oldest sample in its
   view is older than `dead_after_s`. If the process ends, the count stays as it is.
3. **Somebody else.** The count is read before every decision. If it is not what was last read or written
   here, somebody else has changed it: writing stops for good, so that two autoscalers never fight. After a
   write that was not answered, both the old count and the new one are expected.
4. A deployment with 0 replicas is switched off, as for Kubernetes' own autoscaler: nothing is written.
5. The order is brought into `min_replicas..max_replicas`, then at most `max_step` away from the present
   count. The rest follows at later decisions, if the order stands.
6. The write names the version that was read. Kubernetes refuses it with 409 if the deployment has changed
   since: nothing is written, and the next decision reads anew. It does so too after 5xx, 408, 429 and
   time-outs. Any other refusal (401, 403, 404, ...) would come again, and stops writing for good.
"""

from __future__ import annotations

import http.client
import json
import operator
import ssl
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_BYTES = 2**20
"""Of an answer."""

MOST_REPLICAS = 1_000_000
"""More are taken for a broken answer."""

RETRIED = (408, 409, 429)
"""Refusals of the moment, beside those of 500 and more."""


class KubernetesError(RuntimeError):
    """The API server does not answer as it should; one line.

    Attributes:
        for_good: it would answer the same again.
        unknown: whether the write was carried out is not known.
    """

    def __init__(self, message: str, *, for_good: bool = False, unknown: bool = False) -> None:
        super().__init__(message)
        self.for_good, self.unknown = for_good, unknown


@dataclass(frozen=True)
class Scale:
    """The scale subresource as it was read: replicas ordered, and the version of the deployment."""

    replicas: int
    version: str


@dataclass(frozen=True)
class ScaleApi:
    """`/apis/apps/v1/namespaces/NAMESPACE/deployments/NAME/scale` of an API server.

    Attributes:
        url: of the server.
        namespace, deployment: names.
        token_file: holds a bearer token, read anew each time, since Kubernetes renews it; None: none is sent.
        ca_file: certificates that the server's is checked with; None: the system's.
        timeout_s: for each request.
    """

    url: str
    namespace: str
    deployment: str
    token_file: Path | None = None
    ca_file: Path | None = None
    timeout_s: float = 5.0

    def read(self) -> Scale:
        """The present count.

        Raises:
            KubernetesError: no answer, or a refusal.
        """
        return self._scale_of(self._ask("GET", None))

    def write(self, replicas: int, version: str) -> Scale:
        """Set the count, if the deployment is still of `version`.

        Raises:
            KubernetesError: no answer, or a refusal.
        """
        body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        return self._scale_of(self._ask("PATCH", body))

    def _ask(self, method: str, body: dict[str, Any] | None) -> bytes:
        names = [urllib.parse.quote(name, safe="") for name in (self.namespace, self.deployment)]
        path = "/apis/apps/v1/namespaces/{}/deployments/{}/scale".format(*names)
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url.rstrip("/") + path, data, method=method)
        request.add_header("Accept", "application/json")
        if data is not None:
            request.add_header("Content-Type", "application/merge-patch+json")
        try:
            if self.token_file is not None:
                token = self.token_file.read_text(encoding="utf-8").strip()
                request.add_header("Authorization", f"Bearer {token}")
            context = None
            if self.url.startswith("https:"):
                context = ssl.create_default_context(cafile=self.ca_file)
            with urllib.request.urlopen(request, timeout=self.timeout_s, context=context) as answer:
                found: bytes = answer.read(MOST_BYTES)
                return found
        except urllib.error.HTTPError as error:
            with error:
                code, said = error.code, _message(error)
            again = code >= 500 or code in RETRIED
            raise KubernetesError(
                f"{method} scale: HTTP {code}: {said}", for_good=not again, unknown=code >= 500
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise KubernetesError(f"{method} scale: no answer: {reason}", unknown=True) from None

    @staticmethod
    def _scale_of(body: bytes) -> Scale:
        try:
            found = json.loads(body)
            # Kubernetes leaves out what is 0.
            replicas = operator.index(found["spec"].get("replicas", 0))
            if not 0 <= replicas <= MOST_REPLICAS:
                raise ValueError
            return Scale(replicas, str(found["metadata"]["resourceVersion"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise KubernetesError("scale: an answer that is no Scale", unknown=True) from None


def _message(error: urllib.error.HTTPError) -> str:
    """What Kubernetes' Status says, in a line."""
    try:
        said = str(json.loads(error.read(MOST_BYTES))["message"])
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException, RecursionError):
        said = "no reason given"
    return " ".join(said.split())[:300]


@dataclass(frozen=True)
class Limits:
    """Of what is written.

    Attributes:
        min_replicas, max_replicas: never fewer, never more.
        max_step: replicas that one write adds or takes away at most.
        dead_after_s: a view that is older is not acted on.
    """

    min_replicas: int
    max_replicas: int
    max_step: int
    dead_after_s: float

    def target(self, order: int, present: int) -> int:
        """What is written for an order, from what there is."""
        wanted = min(max(order, self.min_replicas), self.max_replicas)
        return min(max(wanted, present - self.max_step), present + self.max_step)


@dataclass
class Writer:
    """Writes orders by the rules of the module; state of one run of the command.

    Attributes:
        stopped: why nothing will be written any more; "": writing goes on.
        outcome: of the last decision: "unchanged", "written", "refused", "failed", "held", "dead", "off",
            "stopped".
        note: what there is to say about it.
    """

    api: ScaleApi
    limits: Limits
    stopped: str = ""
    outcome: str = "unchanged"
    note: str = ""
    _expected: set[int] = field(default_factory=set, init=False)
    _read: Scale | None = field(default=None, init=False)

    def read(self) -> int | None:
        """Replicas that Kubernetes has been told to run; None: it does not say, and nothing will be written.

        Finds out whether somebody else has changed them.
        """
        self._read, self.note = None, ""
        try:
            scale = self.api.read()
        except KubernetesError as error:
            self.note = str(error)
            if error.for_good:
                self.stopped = self.stopped or str(error)
            return None
        if self._expected and scale.replicas not in self._expected and not self.stopped:
            told = " or ".join(str(n) for n in sorted(self._expected))
            self.stopped = f"somebody else set {scale.replicas} replicas; {told} were expected"
        self._expected, self._read = {scale.replicas}, scale
        return scale.replicas

    def write(self, order: int, held: str, view_age_s: float) -> str:
        """Bring an order to Kubernetes, after `read`; returns the outcome.

        Args:
            order: replicas.
            held: why the shadow holds; "": it does not.
            view_age_s: of the oldest sample in the view.
        """
        self.outcome = self._write(order, held, view_age_s)
        return self.outcome

    def _write(self, order: int, held: str, view_age_s: float) -> str:
        if self.stopped:
            self.note = self.stopped
            return "stopped"
        if held:
            self.note = held
            return "held"
        if view_age_s > self.limits.dead_after_s:
            self.note = f"the view is {view_age_s:.1f} s old"
            return "dead"
        if self._read is None:  # the note says why
            return "failed"
        present = self._read.replicas
        if present == 0:
            self.note = "0 replicas: switched off"
            return "off"
        target = self.limits.target(order, present)
        if target == present:
            return "unchanged"
        try:
            self.api.write(target, self._read.version)
        except KubernetesError as error:
            self.note = str(error)
            if error.for_good:
                self.stopped = str(error)
                return "refused"
            if error.unknown:
                self._expected = {present, target}
            return "failed"
        self._expected = {target}
        self.note = f"{present} to {target}"
        return "written"
