"""Integer iteration times, as both engines add them up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.spec.checks import check_fields
from llmscale_env.workload.whole import whole_numbers

LONGEST_ITERATION_PS = 2**61
"""Of all parts of an iteration together, so that the end of one in the last picosecond fits 64 bits."""

_TABLES = (
    *("decode_base_ps", "decode_per_token_ps", "mixed_base_ps", "mixed_per_token_ps"),
    *("prefill_knot_tokens", "prefill_knot_ps", "prefill_slope_ps"),
    *("mixed_knot_tokens", "mixed_knot_ps", "mixed_slope_ps"),
)


def _ints(values: object) -> NDArray[np.int64]:
    return whole_numbers("times", values, np.int64)


@dataclass(frozen=True)
class ProfileSpec:
    """Integer iteration times of one (LLM, GPU, tensor-parallel degree).

    Attributes:
        decode_base_ps, decode_per_token_ps: (max_batch + 1,) a decode iteration of `b` requests with
            `c` tokens of context takes `decode_base_ps[b] + decode_per_token_ps[b] * c`. Index 0 is
            not used.
        prefill_knot_tokens, prefill_knot_ps, prefill_slope_ps: (k,) piecewise linear time of a
            prefill iteration over its new tokens; the first knot is at 0 tokens.
        prefill_pair_ps: times the sum over prompts of `chunk * (2 * cached + chunk)`.
        mixed_knot_tokens, mixed_knot_ps, mixed_slope_ps: the same for a chunked iteration, over all
            its tokens (decode requests + prompt chunks).
        mixed_base_ps, mixed_per_token_ps: (max_batch + 1,) added for `b` decoding requests with `c`
            tokens of context: `mixed_base_ps[b] + mixed_per_token_ps[b] * c`.
        mixed_pair_ps, mixed_chunk_ps: times the pair sum of the chunks, times the number of chunks.
        kv_capacity_tokens: tokens of KV cache that fit.
        swap_out_ps_per_token, swap_in_ps_per_token: moving one token's KV cache to host and back.
        kv_bytes_per_token: what it takes in host memory.
    """

    decode_base_ps: NDArray[np.int64]
    decode_per_token_ps: NDArray[np.int64]
    prefill_knot_tokens: NDArray[np.int64]
    prefill_knot_ps: NDArray[np.int64]
    prefill_slope_ps: NDArray[np.int64]
    prefill_pair_ps: int
    mixed_knot_tokens: NDArray[np.int64]
    mixed_knot_ps: NDArray[np.int64]
    mixed_slope_ps: NDArray[np.int64]
    mixed_base_ps: NDArray[np.int64]
    mixed_per_token_ps: NDArray[np.int64]
    mixed_pair_ps: int
    mixed_chunk_ps: int
    kv_capacity_tokens: int
    swap_out_ps_per_token: int = 0
    swap_in_ps_per_token: int = 0
    kv_bytes_per_token: int = 1

    def __post_init__(self) -> None:
        for name in _TABLES:
            table = whole_numbers(name, getattr(self, name), np.int64)
            if table.ndim != 1 or (table < 0).any():
                raise ValueError(f"{name}: must be one row of numbers that are not negative")
            object.__setattr__(self, name, table)
        of_chunks = ("prefill_pair_ps", "mixed_pair_ps", "mixed_chunk_ps")
        swaps = ("swap_out_ps_per_token", "swap_in_ps_per_token")
        check_fields(self, dict.fromkeys((*of_chunks, *swaps), (0, LONGEST_ITERATION_PS)))
        check_fields(self, {"kv_capacity_tokens": (1, 2**31), "kv_bytes_per_token": (0, 2**40)})
        # Every iteration takes time, so that time moves on.
        for name, times in (
            ("decode_base_ps", self.decode_base_ps[1:]),
            ("prefill_knot_ps", self.prefill_knot_ps),
            ("mixed_knot_ps", self.mixed_knot_ps),
        ):
            if (times < 1).any():
                raise ValueError(f"{name}: must be at least 1 ps")
        for name in ("decode_base_ps", "mixed_base_ps", "mixed_per_token_ps"):
            if len(getattr(self, name)) != len(self.decode_per_token_ps):
                raise ValueError(f"{name}: must be as long as decode_per_token_ps")
        for kind in ("prefill", "mixed"):
            knots = getattr(self, f"{kind}_knot_tokens")
            for name in (f"{kind}_knot_ps", f"{kind}_slope_ps"):
                if len(getattr(self, name)) != len(knots):
                    raise ValueError(f"{name}: must be as long as {kind}_knot_tokens")
            if len(knots) == 0 or knots[0] != 0 or (np.diff(knots) < 0).any():
                raise ValueError(
                    f"{kind}_knot_tokens = {knots.tolist()}: must begin at 0 and never fall"
                )
        parts = self._longest()
        if sum(ps for _, ps in parts) > LONGEST_ITERATION_PS:
            what, ps = max(parts, key=lambda part: part[1])
            raise ValueError(
                f"{what}: {ps} ps with {self.kv_capacity_tokens} tokens: an iteration must take at most 2**61"
            )

    def _longest(self) -> list[tuple[str, int]]:
        """The most that each of the parts of an iteration can take with the KV cache full."""
        n = int(self.kv_capacity_tokens)
        tables = ("decode_base_ps", "mixed_base_ps", "prefill_knot_ps", "mixed_knot_ps")
        per_token = (
            "decode_per_token_ps",
            "mixed_per_token_ps",
            "prefill_slope_ps",
            "mixed_slope_ps",
        )
        swaps = ("swap_out_ps_per_token", "swap_in_ps_per_token")
        pairs = ("prefill_pair_ps", "mixed_pair_ps")
        return [
            *((name, int(getattr(self, name).max())) for name in tables),
            *((name, int(getattr(self, name).max()) * n) for name in per_token),
            *((name, int(getattr(self, name)) * n) for name in swaps),
            *((name, int(getattr(self, name)) * n * n) for name in pairs),
            ("mixed_chunk_ps", int(self.mixed_chunk_ps) * self.max_batch),
        ]

    @property
    def max_batch(self) -> int:
        """The largest running batch the tables cover."""
        return len(self.decode_base_ps) - 1

    @classmethod
    def linear(
        cls,
        *,
        max_batch: int,
        decode_const_ps: int,
        decode_per_request_ps: int,
        decode_per_token_ps: int,
        prefill_const_ps: int,
        prefill_per_token_ps: int,
        kv_capacity_tokens: int,
        pair_ps: int = 0,
        swap_out_ps_per_token: int = 0,
        swap_in_ps_per_token: int = 0,
    ) -> ProfileSpec:
        """Linear times (Aladdin's Eq. 2 and 3), with a chunked form consistent with them."""
        b = np.arange(max_batch + 1)
        return cls(
            decode_base_ps=decode_const_ps + decode_per_request_ps * b,
            decode_per_token_ps=np.full(max_batch + 1, decode_per_token_ps),
            prefill_knot_tokens=_ints([0]),
            prefill_knot_ps=_ints([prefill_const_ps]),
            prefill_slope_ps=_ints([prefill_per_token_ps]),
            prefill_pair_ps=pair_ps,
            mixed_knot_tokens=_ints([0]),
            mixed_knot_ps=_ints([max(prefill_const_ps, decode_const_ps)]),
            mixed_slope_ps=_ints([prefill_per_token_ps]),
            mixed_base_ps=_ints(np.zeros(max_batch + 1)),
            mixed_per_token_ps=np.full(max_batch + 1, decode_per_token_ps),
            mixed_pair_ps=pair_ps,
            mixed_chunk_ps=0,
            kv_capacity_tokens=kv_capacity_tokens,
            swap_out_ps_per_token=swap_out_ps_per_token,
            swap_in_ps_per_token=swap_in_ps_per_token,
        )

    def slower(self, factor: float) -> ProfileSpec:
        """The same machine at another speed: all its iterations take `factor` times as long."""
        changed: dict[str, Any] = {
            name: np.maximum(np.rint(value * factor), np.minimum(value, 1)).astype(np.int64)
            for name, value in vars(self).items()
            if isinstance(value, np.ndarray) and name.endswith("_ps")
        }
        for name, value in vars(self).items():
            if isinstance(value, int) and name.endswith("_ps"):
                changed[name] = round(value * factor)
        return replace(self, **changed)
