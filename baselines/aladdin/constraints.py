"""What a worker can take: requests, and constraints (b) to (e) of section 4.2 on one worker.

(b) Decode within the SLO: sum l_in + gamma l_out <= theta l_d(batch) (Eq. 4), for batches above 1.
(c) TTFT: the prefill of all new requests takes at most T_pre.
(d) Ongoing requests can wait so long: that prefill takes at most theta min(T_dec (l_out - 1) - t_dec).
(e) KV memory holds every request in every iteration to come, until it is predicted to end.

Where the paper leaves room:

- l_out in (b): the text on gamma ("when gamma = 1, the last token generation time can meet the
  SLO") asks for the predicted output; the notation of Table 1 says what has been emitted.
  `Rules.length` chooses.
- (d) prints T_dec l_out, with as many token times as tokens. t_dec runs from the first token, and the
  mean time between tokens (ATGT, section 2.2) divides by one fewer, so a request that is judged by its
  ATGT has saved T_dec (l_out - 1) - t_dec. `Rules.saved_over="tokens"` is the print.
- A request whose prefill is under way is both new and ongoing: it counts in (c), and in (d) it has
  l_out = t_dec = 0, so nothing joins a worker while it prefills (`Request.started`).
- The vector w of (e) has an entry for kv(l_in + l_pred), the moment after the last token. A worker
  frees a request with its last token, so an iteration holds at most l_pred - 1 of its output.
  `Rules.count_last_token` is the paper's w, which Figure 3's numbers need.
- A worker without new requests is not asked for (c) and (d). A worker that breaks a constraint
  already, because a prediction failed, takes nothing until it keeps it again.
- Predictions that have been outlived count as one token more (until they are made again).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from baselines.aladdin.performance import DecodeTime, KvUse, PrefillTime

SLACK = 1e-9
"""Relative: sums of floats at a limit are within it."""


@dataclass(frozen=True)
class Request:
    """A request as the scheduler knows it.

    Attributes:
        input_tokens: l_in.
        predicted_tokens: l_pred, of the whole output.
        emitted_tokens: l_out so far; 0: its prefill has not ended (it is new).
        decoding_s: t_dec, time since its first token.
        started: of a new one: its prefill is under way, so that it is ongoing and has saved nothing.

    Raises:
        ValueError: a value out of range.
    """

    input_tokens: int
    predicted_tokens: float
    emitted_tokens: int = 0
    decoding_s: float = 0.0
    started: bool = False

    def __post_init__(self) -> None:
        for name, low in (
            ("input_tokens", 1),
            ("predicted_tokens", 1),
            ("emitted_tokens", 0),
            ("decoding_s", 0),
        ):
            value = getattr(self, name)
            if not (value >= low and math.isfinite(value)):
                raise ValueError(f"{name} = {value}: must be at least {low} and finite")

    @property
    def new(self) -> bool:
        """It has not had its first token."""
        return self.emitted_tokens == 0

    @property
    def expected_tokens(self) -> float:
        """l_pred, at least one token more than has been emitted."""
        return max(self.predicted_tokens, self.emitted_tokens + 1.0)


Worker = tuple[Request, ...]
"""The requests of a worker: ongoing ones and new ones that have been placed there."""


@dataclass(frozen=True)
class Rules:
    """The limits of a worker.

    Attributes:
        prefill, decode: Eq. 2 and 3.
        kv_capacity: M, in the unit of `kv`, less what is to stay free.
        ttft_slo_s: T_pre.
        itl_slo_s: T_dec, of a request's mean inter-token latency (ATGT).
        kv: Eq. 1.
        gamma: 0..1, which part of the outputs must keep (b): 0 the first iteration, 1 the last.
        theta: above 0, at most 1; below 1 leaves room for wrong predictions in (b) and (d).
        batch_limit: requests of a worker; scales the norm, and is no constraint of the paper.
        decode_only: a decode instance of split-phase inference: (b) and (e) only.
        length: "predicted" or "emitted": l_out in (b) and in the norm.
        count_last_token: (e) as printed.
        saved_over: what T_dec is multiplied by in (d).

    Raises:
        ValueError: a value out of range.
    """

    prefill: PrefillTime
    decode: DecodeTime
    kv_capacity: float
    ttft_slo_s: float
    itl_slo_s: float
    kv: KvUse = field(default_factory=KvUse)
    gamma: float = 0.5
    theta: float = 0.9
    batch_limit: float = 256.0
    decode_only: bool = False
    length: Literal["predicted", "emitted"] = "predicted"
    count_last_token: bool = False
    saved_over: Literal["intervals", "tokens"] = "intervals"

    def __post_init__(self) -> None:
        for name in ("kv_capacity", "ttft_slo_s", "itl_slo_s", "batch_limit"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name} = {value}: must be positive")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma = {self.gamma}: must be in 0..1")
        if not 0 < self.theta <= 1:
            raise ValueError(f"theta = {self.theta}: must be above 0 and at most 1")
        if self.length not in ("predicted", "emitted"):
            raise ValueError(f"length = {self.length!r}: must be 'predicted' or 'emitted'")
        if self.saved_over not in ("intervals", "tokens"):
            raise ValueError(f"saved_over = {self.saved_over!r}: must be 'intervals' or 'tokens'")

    # ---- what one request adds ----

    def weight(self, request: Request) -> float:
        """l_in + gamma l_out."""
        if self.length == "emitted":
            return request.input_tokens + self.gamma * request.emitted_tokens
        return request.input_tokens + self.gamma * request.expected_tokens

    def iterations(self, request: Request) -> int:
        """How many iterations from now on hold its KV."""
        left = math.ceil(request.expected_tokens - request.emitted_tokens)
        return left + 1 if self.count_last_token else left

    def kv_at(self, request: Request, iteration: int) -> float:
        """Its KV in an iteration from now on: w[k]."""
        if iteration >= self.iterations(request):
            return 0.0
        return float(self.kv.of(request.input_tokens + request.emitted_tokens + iteration))

    # ---- sums over a worker ----

    def weighted_context(self, worker: Sequence[Request]) -> float:
        """Sum of l_in + gamma l_out."""
        return sum(self.weight(request) for request in worker)

    def context_limit(self, batch: int) -> float:
        """Right-hand side of (b): theta l_d(batch); no limit up to one request."""
        return self.theta * self.decode.context_limit(batch, self.itl_slo_s)

    def prefill_s(self, worker: Sequence[Request]) -> float:
        """Prefill time of its new requests; 0 if there are none."""
        tokens = [request.input_tokens for request in worker if request.new]
        return self.prefill.seconds(sum(tokens)) if tokens else 0.0

    def patience_s(self, worker: Sequence[Request]) -> float:
        """Right-hand side of (d): theta times what the most urgent ongoing request has saved."""
        last = 1 if self.saved_over == "intervals" else 0
        saved = [
            0.0
            if request.new
            else self.itl_slo_s * (request.emitted_tokens - last) - request.decoding_s
            for request in worker
            if request.started or not request.new
        ]
        return self.theta * min(saved) if saved else math.inf

    def peak_kv(self, worker: Sequence[Request]) -> float:
        """Largest KV over all iterations to come, if predictions hold and all prefills are done at once."""
        if not worker:
            return 0.0
        last = np.array([self.iterations(request) - 1 for request in worker])
        context = np.array([request.input_tokens + request.emitted_tokens for request in worker])
        # Between two ends memory only grows, so the peak is at the last iteration of some request.
        order = np.argsort(last, kind="stable")
        last, context = last[order], context[order]
        first = np.searchsorted(last, last, side="left")  # those that are still there, or end now
        there = len(last) - first
        contexts = np.cumsum(context[::-1])[::-1][first]
        return float((self.kv.per_token * (contexts + there * last) + self.kv.const * there).max())

    # ---- the constraints ----

    def broken(self, worker: Sequence[Request]) -> str:
        """Letters of the constraints that do not hold: "" if all do, "be", say."""
        found = ""
        if len(worker) > 1 and _above(
            self.weighted_context(worker), self.context_limit(len(worker))
        ):
            found += "b"
        if not self.decode_only and any(r.new and not r.started for r in worker):
            seconds = self.prefill_s(worker)
            if _above(seconds, self.ttft_slo_s):
                found += "c"
            if _above(seconds, self.patience_s(worker)):
                found += "d"
        if _above(self.peak_kv(worker), self.kv_capacity):
            found += "e"
        return found

    def takes(self, worker: Sequence[Request], request: Request) -> bool:
        """Whether all constraints hold with a request added."""
        return not self.broken((*worker, request))


def _above(value: float, limit: float) -> bool:
    return value > limit + SLACK * abs(limit) if math.isfinite(limit) else value > limit
