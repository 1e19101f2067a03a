"""The request waiting time (RWT) estimator: QLM, section 6 (Eq. 1 to 5) and appendix A.1 (Eq. 14 to 22).

A request waits until those ahead of it have produced their tokens, at a throughput that one profiled
batch gives. Their sum is modelled as normal (`baselines.backpressure.expected_tokens` for one kind of
request, which Chiron uses too); a quantile of it may stand for the mean.

Where it errs, by design: the throughput is that of a full batch, so a request that finds free slots is
told to wait though it need not (`Outlook.full` says for whom the throughput holds, `free_slots` corrects
it), and with fewer requests than slots tokens come slower than assumed, which the conservative decode time
of the maximum output covers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Decode = Literal["maximum", "mean"]


@dataclass(frozen=True)
class BatchProfile:
    """Hardware profiling: one batch of one LLM on one GPU.

    Attributes:
        prefill_s: P, prefill time of a request.
        decode_s_per_token: d (delta in the appendix), time of one decode iteration at the average batch.
        batch: B, requests in the average batch.
        inefficiency: epsilon, at least 1: how much slower requests decode because of preemption.

    Raises:
        ValueError: a value out of range.
    """

    prefill_s: float
    decode_s_per_token: float
    batch: float
    inefficiency: float = 1.0

    def __post_init__(self) -> None:
        for name, low in (("prefill_s", 0.0), ("inefficiency", 1.0)):
            value = getattr(self, name)
            if not (value >= low and math.isfinite(value)):
                raise ValueError(f"{name} = {value}: must be at least {low:g} and finite")
        for name in ("decode_s_per_token", "batch"):
            _positive(name, getattr(self, name))

    @property
    def tokens_per_s(self) -> float:
        """Theta, Eq. 15: B / (delta epsilon)."""
        return self.batch / (self.decode_s_per_token * self.inefficiency)


def batch_size(
    kv_tokens: float,
    mean_input: float,
    mean_output: float,
    *,
    largest: float = math.inf,
    held_output: float = 1.0,
    std_tokens: float = 0.0,
    quantile: float = 0.5,
) -> float:
    """Eq. 16: requests whose tokens fill the KV memory, at least 1.

    Args:
        kv_tokens: GPU, the tokens that fit.
        mean_input, mean_output: mu_I and mu_O (Eq. 22).
        largest: batch limit of the serving system.
        held_output: share of its output that a running request holds on average. 1 is the paper's; with
            paged memory a request holds what it has produced so far, one half on average.
        std_tokens, quantile: Eq. 21: the batch's mean of I + O is normal with std_tokens^2 / B about
            mu_I + mu_O; a quantile above 0.5 gives a cautious batch.

    Raises:
        ValueError: a value out of range.
    """
    _positive("kv_tokens", kv_tokens)
    _positive("largest", largest, finite=False)
    if not 0 <= held_output <= 1:
        raise ValueError(f"held_output = {held_output}: must be in 0..1")
    tokens = mean_input + held_output * mean_output
    _positive("mean_input + held_output * mean_output", tokens)
    batch = max(1.0, min(kv_tokens / tokens, largest))
    if std_tokens > 0 and quantile != 0.5:
        tokens = max(tokens + _z(quantile) * std_tokens / math.sqrt(batch), 1.0)
        batch = max(1.0, min(kv_tokens / tokens, largest))
    return batch


def inefficiency(measured_s_per_token: float, decode_s_per_token: float) -> float:
    """Epsilon from the serving system's log: time per output token over that of undisturbed decoding.

    Raises:
        ValueError: a time that is not positive.
    """
    _positive("measured_s_per_token", measured_s_per_token)
    _positive("decode_s_per_token", decode_s_per_token)
    return max(1.0, measured_s_per_token / decode_s_per_token)


# ---- a virtual queue ----


@dataclass(frozen=True)
class Ahead:
    """Requests with the same statistics and the same profile.

    Attributes:
        requests: how many.
        mean_output, std_output: mu_o and sigma_o, in tokens.
        tokens_per_s: Theta of their LLM on the instance.

    Raises:
        ValueError: a value out of range.
    """

    requests: float
    mean_output: float
    std_output: float
    tokens_per_s: float

    def __post_init__(self) -> None:
        for name in ("requests", "mean_output", "std_output"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} = {value}: must be at least 0 and finite")
        _positive("tokens_per_s", self.tokens_per_s)

    @property
    def mean_s(self) -> float:
        """Mean time that they take."""
        return self.requests * self.mean_output / self.tokens_per_s

    @property
    def variance_s2(self) -> float:
        """Its variance."""
        return self.requests * (self.std_output / self.tokens_per_s) ** 2


@dataclass(frozen=True, eq=False)
class Outlook:
    """Estimates for the requests of one group, first come first served.

    Attributes:
        wait_s: (n,) W_q.
        first_token_s: (n,) W_q + P, what a TTFT target is about.
        completion_s: (n,) C_q (Eq. 1).
        full: (n,) whether at least a batch of requests is ahead, running ones included: only then is
            the throughput of a full batch what those ahead are served with.
    """

    wait_s: NDArray[np.float64]
    first_token_s: NDArray[np.float64]
    completion_s: NDArray[np.float64]
    full: NDArray[np.bool_]


def outlook(
    requests: int,
    mean_output: float,
    std_output: float,
    max_output: float,
    profile: BatchProfile,
    *,
    ahead: Sequence[Ahead] = (),
    free_slots: int = 0,
    quantile: float = 0.5,
    decode: Decode = "maximum",
) -> Outlook:
    """Waiting and completion times of a group's requests (Eq. 1 to 4).

    Args:
        requests: n, at least 1.
        mean_output, std_output: of one request's output.
        max_output: most tokens that the LLM may produce.
        profile: of the group's LLM on the instance.
        ahead: what comes before the group, running requests included.
        free_slots: so many requests at the head of the queue are admitted at once and wait for
            nobody, those in `ahead` counted first. 0 is the paper's; see the module.
        quantile: of the tokens ahead; 0.5 is the mean.
        decode: "maximum": decode time of the maximum output, conservative for short queues. "mean": of the
            mean output.

    Raises:
        ValueError: a value out of range.
    """
    if requests < 1:
        raise ValueError(f"requests = {requests}: must be at least 1")
    if free_slots < 0:
        raise ValueError(f"free_slots = {free_slots}: must be at least 0")
    if decode not in ("maximum", "mean"):
        raise ValueError(f"decode = {decode!r}: must be 'maximum' or 'mean'")
    if max_output < mean_output:
        raise ValueError(f"max_output = {max_output}: must be at least mean_output = {mean_output}")
    own = Ahead(1, mean_output, std_output, profile.tokens_per_s)
    place = np.arange(requests)
    before = sum(entry.requests for entry in ahead)
    wait = _normal(
        sum(entry.mean_s for entry in ahead) + place * own.mean_s,
        sum(entry.variance_s2 for entry in ahead) + place * own.variance_s2,
        quantile,
    )
    wait[before + place < free_slots] = 0.0
    tokens = max_output if decode == "maximum" else mean_output
    decode_s = tokens * profile.inefficiency * profile.decode_s_per_token  # Eq. 4
    return Outlook(
        wait_s=wait,
        first_token_s=wait + profile.prefill_s,
        completion_s=wait + profile.prefill_s + decode_s,
        full=before + place >= profile.batch,
    )


# ---- parts ----


def _normal(mean: ArrayLike, variance: ArrayLike, quantile: float) -> NDArray[np.float64]:
    """A quantile of a normal distribution of times, never negative."""
    middle = np.asarray(mean, np.float64)
    return np.maximum(middle + _z(quantile) * np.sqrt(np.asarray(variance, np.float64)), 0.0)


def _z(quantile: float) -> float:
    if not 0 < quantile < 1:
        raise ValueError(f"quantile = {quantile}: must be between 0 and 1")
    return NormalDist().inv_cdf(quantile)


def _positive(name: str, value: float, finite: bool = True) -> None:
    if not value > 0 or (finite and not math.isfinite(value)):
        raise ValueError(f"{name} = {value}: must be positive{' and finite' if finite else ''}")
