"""Measured iterations as arrays: what the readers make and the fits take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

PARTS = ("decode", "prefill", "mixed")

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Measurements:
    """Iterations of one (LLM, GPU, tp), one row each.

    Attributes:
        llm, gpu, tp, kind, source, notes: as in `IterationTimeModel`.
        part: (n,) index into `PARTS`.
        decode_requests, context_tokens: (n,) decoding requests and their context in all.
        chunks, chunk_tokens, cached_tokens: (n,) prefill chunks, tokens of each, context cached
            before for each.
        seconds: (n,) duration of the iteration.
        group: (n,) label of the configuration: rows of one group are held out together.
        scored: (n,) whether the row is a point of the data (else support between the points).
        fitted: (n,) whether the row takes part in the fit (else it is only compared with it).
        tile_tokens: kernels see the tokens of an iteration rounded up to a multiple of this (1:
            nothing is known about it).
    """

    llm: str
    gpu: str
    tp: int
    kind: str
    source: str
    part: Ints
    decode_requests: Ints
    context_tokens: Floats
    chunks: Ints
    chunk_tokens: Ints
    cached_tokens: Ints
    seconds: Floats
    group: Ints
    scored: NDArray[np.bool_]
    fitted: NDArray[np.bool_]
    notes: str = ""
    tile_tokens: int = 1

    @property
    def total_tokens(self) -> Ints:
        """(n,) tokens of each iteration: one per decoding request, and all chunks."""
        return self.decode_requests + self.chunks * self.chunk_tokens

    @property
    def pair_sum(self) -> Floats:
        """(n,) sum over the chunks of `chunk * (2 * cached + chunk)`."""
        chunk = self.chunk_tokens.astype(np.float64)
        pairs: Floats = self.chunks * chunk * (2 * self.cached_tokens + chunk)
        return pairs

    def only(self, keep: NDArray[np.bool_]) -> Measurements:
        """The rows of a mask."""
        columns: dict[str, Any] = {
            k: v[keep] for k, v in vars(self).items() if isinstance(v, np.ndarray)
        }
        return replace(self, **columns)

    def of(self, part: str) -> Measurements:
        """The rows of one part."""
        return self.only(self.part == PARTS.index(part))
