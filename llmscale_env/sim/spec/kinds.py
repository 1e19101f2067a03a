"""The small enumerations and constants that a cluster is described with."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

NEVER = np.int64(2**62)
"""A time that never comes (2**62 ps, 53 days: also the longest horizon)."""


class InstanceState(IntEnum):
    """Life of an instance slot."""

    OFF = 0
    ACQUIRING = 1
    LOADING = 2
    ACTIVE = 3
    DRAINING = 4
    DONATING = 5


class RequestState(IntEnum):
    """Where a request is; every arrival is in exactly one of these."""

    FUTURE = 0
    GATEWAY = 1
    SHARED_QUEUE = 2
    OWN_QUEUE = 3
    RUNNING = 4
    PREEMPTED = 5
    FINISHED = 6
    REJECTED = 7
    HANDOVER = 8
    TRANSIT = 9


NOT_UNDER_WAY = (RequestState.FUTURE, RequestState.FINISHED, RequestState.REJECTED)
"""Not yet there, or done with."""


class RouterKind(IntEnum):
    """Where a request goes at arrival."""

    ROUND_ROBIN = 0
    JSQ_REQUESTS = 1
    JSQ_TOKENS = 2
    POWER_OF_TWO = 3
    LEAST_KV = 4
    CLASS_AFFINE = 5
    SHARED_QUEUE = 6
    CUSTOM = 7
    HOLD = 8
    BEST_FIT = 9
    REGIONAL = 10
    PREFIX_AWARE = 11
    LEAST_PENDING_PREFILL = 12


DECODE_KINDS = frozenset(
    {
        RouterKind.ROUND_ROBIN,
        RouterKind.JSQ_REQUESTS,
        RouterKind.JSQ_TOKENS,
        RouterKind.POWER_OF_TWO,
        RouterKind.LEAST_KV,
        RouterKind.CUSTOM,
        RouterKind.HOLD,
        RouterKind.BEST_FIT,
    }
)
"""Rules by which a request that has been prefilled may find its decode instance."""


class PoolPhase(IntEnum):
    """What a pool's instances do for a request: all of it, or one of its two phases."""

    BOTH = 0
    PREFILL = 1
    DECODE = 2


class Fallback(IntEnum):
    """What best fit does with a request that no candidate may take."""

    WAIT = 0
    LEAST = 1


class ControllerKind(IntEnum):
    """How an instance's batch limit moves between commands: docs/engine.md section 7.

    `CHIRON` is Algorithm 1 with a throughput backpressure that speaks after a raise only,
    `CHIRON_LITERAL` the same with one that speaks at every update.
    """

    FIXED = 0
    CHIRON = 1
    CHIRON_LITERAL = 2


class LoadSource(IntEnum):
    """Where an instance's weights come from, slowest first."""

    SSD = 0
    HOST = 1
    MULTICAST = 2


FROM_SSD = -1
"""Source code of weights: the SSD of the taker's own host. A slot is its number; the memory of host `h` is
the number of slots plus `h`."""

NO_SOURCE = -2
"""No weights have come to this slot from anywhere."""


class LiveMode(IntEnum):
    """How an instance that loads helps one that serves."""

    ZIGZAG = 0
    BEST_EFFORT = 1


class PullRule(IntEnum):
    """Which of an instance's shared queues it takes from next."""

    IN_ORDER = 0
    EARLIEST_DEADLINE = 1


class PreemptionMode(IntEnum):
    """What becomes of a preempted request's KV cache."""

    RECOMPUTE = 0
    SWAP = 1


MAX_ARRIVAL_QUEUES = 8
"""Most shared queues among which arrivals of one LLM and class are told apart."""

MODEL_NAMES = (
    "prefill_const_ps",
    "prefill_per_token_ps",
    "decode_const_ps",
    "decode_per_request_ps",
    "decode_per_token_ps",
)
