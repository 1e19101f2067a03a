"""Prometheus' HTTP API, and the names under which it has vLLM's metrics.

What comes from a server is checked here once, for the trace (`served.prometheus`) and for the shadow of
`llmscale serve`. An answer that is too long, is nested too deeply, is an error, is partial, or holds a
sample that is no number is a `PrometheusError`. Whether a number makes sense as a metric, `sound` says.

Requests are GETs: they read, and a proxy that lets nothing else pass lets them pass.
"""

from __future__ import annotations

import http.client
import json
import math
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_SHARE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""The first is the name since vLLM's engine V1."""

PROMPTS = "vllm:request_prompt_tokens"
OUTPUTS = "vllm:request_generation_tokens"

MOST_INSIDE = 2.0**24
"""Requests in one pod; more are taken for a broken metric."""

MOST_COUNTED = 2.0**48
"""Of a counter: tokens of some 90 years at 100,000 a second."""

_SAID = 300


class PrometheusError(ValueError):
    """Prometheus does not answer, answers with an error, or has no sound samples; one line says which."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


@dataclass(frozen=True)
class Series:
    """Raw samples of a series, oldest first.

    Attributes:
        labels: `__name__` is its name.
        times_s: Unix times.
        values: one for each; they may be NaN or infinite, as Prometheus' may.
    """

    labels: Mapping[str, str]
    times_s: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Prometheus:
    """A server.

    Attributes:
        url: of the server, a path before `/api` included.
        timeout_s: for each request.
        token_file: holds a bearer token, read anew for each request; None: no token is sent.
        most_bytes: of an answer.
    """

    url: str
    timeout_s: float = 10.0
    token_file: Path | None = None
    most_bytes: int = 2**26

    def ask(self, path: str, parameters: Mapping[str, str]) -> Any:
        """The decoded answer of an endpoint such as `/api/v1/query`.

        Raises:
            PrometheusError: no answer, a refusal, or one that is too long or not JSON.
        """
        words = urllib.parse.urlencode(parameters)
        request = urllib.request.Request(f"{self.url.rstrip('/')}{path}?{words}")
        try:
            if self.token_file is not None:
                token = self.token_file.read_text(encoding="utf-8").strip()
                request.add_header("Authorization", f"Bearer {token}")
            with urllib.request.urlopen(request, timeout=self.timeout_s) as answer:
                body = answer.read(self.most_bytes + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise PrometheusError(f"HTTP {error.code}: {_said(error)}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise PrometheusError(f"no answer: {reason}") from None
        if len(body) > self.most_bytes:
            raise PrometheusError(f"an answer of more than {self.most_bytes:,} bytes")
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise PrometheusError("is no Prometheus: its answer is not JSON") from None

    def query(self, text: str, at_s: float) -> list[Series]:
        """The series of an instant query; of a range selector all samples in the range.

        Raises:
            PrometheusError: see `ask` and `series_of`.
        """
        return series_of(self.ask("/api/v1/query", {"query": text, "time": f"{at_s:.3f}"}))

    def ahead_s(self) -> float:
        """By how much the server's clock is ahead of this machine's.

        Raises:
            PrometheusError: see `ask`, or no time in the answer.
        """
        before_s = time.time()
        started_s = time.monotonic()
        answer = self.ask("/api/v1/query", {"query": "time()"})
        took_s = time.monotonic() - started_s
        try:
            found = float(_result(answer)[1])
        except (ValueError, KeyError, TypeError, IndexError, OverflowError):
            found = math.nan
        if not math.isfinite(found):
            raise PrometheusError("not an answer of Prometheus: no time()")
        return found - (before_s + took_s / 2)


def _said(error: urllib.error.HTTPError) -> str:
    """An error in Prometheus' words, if it is one of its own."""
    try:
        return str(json.loads(error.read(2**16))["error"])[:_SAID]
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException, RecursionError):
        return "no reason given"


def _result(answer: Any) -> Any:
    """What an answer holds, if it is whole.

    Raises:
        PrometheusError: it is an error, or a part only.
        KeyError, TypeError: it is none of Prometheus'.
    """
    if answer["status"] != "success":
        raise PrometheusError(str(answer.get("error", "refused"))[:_SAID])
    if warnings := answer.get("warnings"):
        raise PrometheusError(f"a part of an answer: {warnings}"[:_SAID])
    return answer["data"]["result"]


def series_of(answer: Any) -> list[Series]:
    """The series of a decoded answer to a query.

    Raises:
        PrometheusError: an error, a partial answer, or one that is none of Prometheus'.
    """
    try:
        rows = []
        for row in _result(answer):
            samples = row["values"] if "values" in row else [row["value"]]
            pairs = [(float(time_s), float(value)) for time_s, value in samples]
            times, values = zip(*pairs, strict=True)
            if not all(map(math.isfinite, times)):
                raise ValueError("a sample without a time")
            labels = {str(key): str(value) for key, value in row["metric"].items()}
            rows.append(Series(labels, times, values))
    except PrometheusError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise PrometheusError(f"not an answer of Prometheus ({error!r})"[:_SAID]) from None
    return rows


def sound(value: float, most: float) -> bool:
    """Whether a sample can be one of a metric that is never below 0."""
    return 0.0 <= value <= most  # not so for NaN


def is_address(text: str) -> bool:
    """Whether a text is the address of a server: HTTP, no credentials, and nothing that ends a quotation."""
    if not text.isascii() or not text.isprintable() or set(text) & set(" \"'`\\<>{}|^"):
        return False
    try:
        parts = urllib.parse.urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return good and "@" not in parts.netloc and not parts.query and not parts.fragment


def label_matchers(text: str) -> str:
    """A selector's matchers, checked.

    Args:
        text: such as `namespace="llm",job=~"vllm.*"`; braces around them are taken off.

    Raises:
        ValueError: it is none.
    """
    inner = text.strip().removeprefix("{").removesuffix("}")
    one = r'\s*[A-Za-z_][A-Za-z0-9_]*\s*(=|!=|=~|!~)\s*"(?:[^"\\\n]|\\.)*"\s*'
    if not re.fullmatch(f"{one}(,{one})*", inner):
        raise ValueError('must be label matchers with values in double quotes, as namespace="llm"')
    return inner


def deployment_pods(deployment: str) -> str:
    """Matcher of a Deployment's pods: DEPLOYMENT-HASH-ID, and none of DEPLOYMENT-OTHER-HASH-ID."""
    name = deployment.replace(".", "[.]")
    return f'pod=~"{name}-[a-z0-9]+-[a-z0-9]{{5}}"'
