"""What an episode's requests need at least, and when.

A request on time emits its first token by `due_first`, at the end of a prefill that begins after its arrival,
and its last one by `due_last`, at most the horizon. All its decoded tokens come after its prefill. No
instance makes these faster than the least times of an iteration, so a request that comes too late before
the horizon, or whose TTFT target is shorter than its prefill, is never on time, and prefills end early
enough to finish by the horizon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from baselines.clairvoyant.prices import Ints, Machine, line_ps
from llmscale_env.sim.spec import ClusterSpec
from llmscale_env.workload.requests import RequestTable


@dataclass(frozen=True)
class Needs:
    """The requests that can be on time, each (n,): times in picoseconds of the episode.

    Attributes:
        slo_class: index.
        prompt: tokens to prefill.
        tokens, context: tokens to decode, and their context in all.
        arrival, due_first: the prefill is between these.
        ready, due_last: decoding is between these.
        arrivals: (C,) requests that arrive, by class, those that cannot be on time included.
        shortest: prompt of any request that arrives.
    """

    slo_class: NDArray[np.int64]
    prompt: Ints
    tokens: Ints
    context: Ints
    arrival: Ints
    due_first: Ints
    ready: Ints
    due_last: Ints
    arrivals: Ints
    shortest: int

    def __len__(self) -> int:
        return len(self.prompt)

    def may_miss(self, attainment: float) -> Ints:
        """(C,) how many of these requests may be late while every class attains; negative: it cannot."""
        possible = np.bincount(self.slo_class, minlength=len(self.arrivals))
        # As shares are compared: k / n >= attainment in float64.
        least = []
        for n in self.arrivals.tolist():
            k = max(0, math.floor(attainment * n) - 1)
            while n and k / n < attainment:
                k += 1
            least.append(k)
        found: Ints = possible - np.array(least)
        return found


def find_needs(
    requests: RequestTable,
    cluster: ClusterSpec,
    kinds: Sequence[Machine],
    horizon_ps: int,
) -> Needs:
    """The needs of an episode.

    Args:
        requests: of one LLM.
        cluster: that serves them.
        kinds: its machines.
        horizon_ps: when the episode ends.
    """
    came = requests.arrival_ps < horizon_ps
    slo_class = requests.slo_class[came].astype(np.int64)
    prompt = requests.input_tokens[came].astype(np.int64)
    output = requests.output_tokens[came].astype(np.int64)
    arrival = requests.arrival_ps[came]
    tokens = output - 1
    context = tokens * prompt + output * tokens // 2
    ttft = np.array([c.ttft_slo_ps for c in cluster.classes])[slo_class]
    itl = np.array([c.itl_slo_ps for c in cluster.classes])[slo_class]

    prefill = np.min([least_prefill_ps(kind, prompt) for kind in kinds], axis=0)
    decode = np.min([least_decode_ps(kind, tokens) for kind in kinds], axis=0)
    due_first = np.minimum(arrival + np.minimum(ttft, horizon_ps), horizon_ps - decode)
    # A target may be so generous that the product does not fit.
    longest = np.minimum(itl, horizon_ps // np.maximum(tokens, 1) + 1) * tokens
    due_last = np.minimum(due_first + longest, horizon_ps)
    ready = arrival + prefill
    capacity = min(kind.profile.kv_capacity_tokens for kind in kinds)
    possible = (ready <= due_first) & (ready + decode <= due_last) & (decode <= longest)
    # A request's last token has no KV.
    possible &= prompt + output - 1 + min(kind.spare_tokens for kind in kinds) <= capacity
    arrivals = np.bincount(slo_class, minlength=len(cluster.classes))
    return Needs(
        slo_class[possible],
        prompt[possible],
        tokens[possible],
        context[possible],
        arrival[possible],
        due_first[possible],
        ready[possible],
        due_last[possible],
        arrivals,
        int(prompt.min(initial=np.iinfo(np.int32).max)),
    )


def least_prefill_ps(kind: Machine, prompts: Ints) -> Ints:
    """(n,) least time from the start of a prompt's prefill to its first token."""
    profile = kind.profile
    pairs = prompts * prompts
    if not kind.chunk_tokens:
        line = line_ps(
            np.arange(int(prompts.max(initial=1)) + kind.prefill_tokens + 1),
            profile.prefill_knot_tokens,
            profile.prefill_knot_ps,
            profile.prefill_slope_ps,
        )
        # More tokens may take less time where a measured line falls.
        least = np.minimum.accumulate(line[::-1])[::-1]
        found: Ints = least[prompts] + profile.prefill_pair_ps * pairs
        return found
    sizes = np.arange(1, kind.chunk_tokens + 1)
    line = line_ps(sizes, profile.mixed_knot_tokens, profile.mixed_knot_ps, profile.mixed_slope_ps)
    chunks = -(-prompts // kind.chunk_tokens)
    per_chunk = int(line.min()) + profile.mixed_chunk_ps
    return chunks * per_chunk + profile.mixed_pair_ps * pairs


def least_decode_ps(kind: Machine, tokens: Ints) -> Ints:
    """(n,) least time of the iterations that emit so many tokens of a request, one after the other.

    Any of them may be a decode, a mixed or, after the KV was lost, a prefill iteration.
    """
    profile = kind.profile
    if kind.chunk_tokens:
        sizes, parts = np.arange(1, kind.chunk_tokens + 1), "mixed"
    else:
        longest = max(kind.prefill_tokens, profile.kv_capacity_tokens)
        sizes, parts = np.arange(1, longest + 1), "prefill"
    line = line_ps(
        sizes,
        *(getattr(profile, f"{parts}_{name}") for name in ("knot_tokens", "knot_ps", "slope_ps")),
    )
    return tokens * min(int(profile.decode_base_ps[1:].min()), int(line.min()))
