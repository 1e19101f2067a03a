"""Parts of a cluster that requests bring along: SLO classes, their routes, and what best fit goes by.

docs/engine.md says exactly what every field does.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmscale_env.sim.spec.checks import check_model
from llmscale_env.sim.spec.kinds import NEVER, Fallback, RouterKind

HIGHEST = {"gamma": 1.0, "theta": 10.0}
"""What the strictness of best fit may be at most."""


@dataclass(frozen=True)
class PlacementSpec:
    """What best fit goes by (Aladdin, Algorithm 1; docs/engine.md, section 14).

    Attributes:
        prefill_const_ps, prefill_per_token_ps: a prefill iteration of `n` tokens takes `c1 + k1 * n`.
        decode_const_ps, decode_per_request_ps, decode_per_token_ps: a decode iteration of `b` requests
            with `l` tokens of context takes `c3 + c2 * b + k2 * l`.
        ttft_ps, itl_ps: targets of the first token and of the mean time between two tokens.
        gamma: share of the predicted output that counts as context (Aladdin's strictness).
        theta: share of what the ITL target leaves that may be used.
        fallback: a `Fallback`.
        scaled_norm: requests and context are measured in batch limits and KV capacities before the
            norm is taken; otherwise as Aladdin prints it.
        saved_over_tokens: constraint (d) as printed, the target times the tokens emitted; otherwise
            times the intervals between them, one fewer, as the mean ITL (ATGT) is measured.
    """

    prefill_const_ps: float
    prefill_per_token_ps: float
    decode_const_ps: float
    decode_per_request_ps: float
    decode_per_token_ps: float
    ttft_ps: int
    itl_ps: int
    gamma: float = 0.5
    theta: float = 0.9
    fallback: int = Fallback.WAIT
    scaled_norm: bool = False
    saved_over_tokens: bool = False

    def __post_init__(self) -> None:
        check_model(self.model)
        for name in ("ttft_ps", "itl_ps"):
            if not 1 <= getattr(self, name) <= 10**15:
                raise ValueError(f"{name} = {getattr(self, name)!r}: must be in 1..10**15")
        for name, high in HIGHEST.items():
            if not 0.0 <= getattr(self, name) <= high:
                raise ValueError(f"{name} = {getattr(self, name)!r}: must be in 0..{high}")
        if self.fallback not in tuple(Fallback):
            raise ValueError(
                f"fallback = {self.fallback!r}: must be one of {[int(f) for f in Fallback]}"
            )

    @property
    def model(self) -> tuple[float, float, float, float, float]:
        """The coefficients (c1, k1, c3, c2, k2)."""
        return (
            float(self.prefill_const_ps),
            float(self.prefill_per_token_ps),
            float(self.decode_const_ps),
            float(self.decode_per_request_ps),
            float(self.decode_per_token_ps),
        )


@dataclass(frozen=True)
class RouteSpec:
    """How requests of one (LLM, SLO class) find an instance.

    Attributes:
        kind: a `RouterKind`.
        pools: the candidate pools (for `CLASS_AFFINE`: the class's own pools).
        overflow: pools used when the own ones have no room (`CLASS_AFFINE` only).
        queue: shared queue of this class, or -1. Requests go there with `SHARED_QUEUE`, when a
            `CLASS_AFFINE` route finds no room, and when they are evicted.
        overflow_share: share of requests (by hash of their id) that try the overflow pools first.
        decode_pools: candidates of requests that a `PREFILL` instance hands over.
        decode_kind: a `RouterKind` out of `DECODE_KINDS`.
        placement: what `BEST_FIT` goes by, in either place.
        preference: of clients of each region the regions that have some of `pools`, all of them, the
            preferred one first (`REGIONAL`).
        threshold_ppm: utilisation below which a region is taken in that order.
        region_queues: the shared queue by region of the client; empty: `queue`, otherwise the first.
        prefill_load_scale, overlap_score_credit: of `PREFIX_AWARE`, named as in NVIDIA Dynamo's KV router:
            the weight of prompt tokens to compute beside tokens in memory, 0 to 1000, and the share of a
            request's prefix hits that counts, 0 to 1.

    Raises:
        ValueError: one of these two is out of its range.
    """

    kind: int
    pools: tuple[int, ...]
    overflow: tuple[int, ...] = ()
    queue: int = -1
    overflow_share: float = 0.0
    decode_pools: tuple[int, ...] = ()
    decode_kind: int = RouterKind.JSQ_REQUESTS
    placement: PlacementSpec | None = None
    preference: tuple[tuple[int, ...], ...] = ()
    threshold_ppm: int = 700_000
    region_queues: tuple[int, ...] = ()
    prefill_load_scale: float = 1.0
    overlap_score_credit: float = 1.0

    def __post_init__(self) -> None:
        for name, high in (("prefill_load_scale", 1000.0), ("overlap_score_credit", 1.0)):
            if not 0.0 <= getattr(self, name) <= high:
                raise ValueError(f"{name} = {getattr(self, name)!r}: must be in 0..{high:g}")


@dataclass(frozen=True)
class ClassSpec:
    """What the engine must know of an SLO class: its priority (0 before 1), its targets, when it is promoted.

    The TTFT target and `itl_max` (whether the ITL target holds for a request's largest ITL rather than its
    mean) move nothing: they are there for counting who was on time. A request that joins an own queue
    `promote_ps` after its arrival has priority 0 there.
    """

    priority: int = 0
    itl_slo_ps: int = 200_000_000_000
    ttft_slo_ps: int = 10_000_000_000_000
    itl_max: bool = False
    promote_ps: int = int(NEVER)
