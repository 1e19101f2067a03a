"""The form of iteration times: how long one iteration of an instance takes, and the engines' tables of it.

One form for everybody (docs/engine.md, sections 4 and "Chunked prefill"):

- decode of `b` requests with `c` tokens of context: `base[b] + per_token[b] * c`;
- prefill of `T` new tokens: piecewise linear in `T`, plus a quadratic attention term, a coefficient
  times the sum of `chunk * (2 * cached + chunk)`;
- mixed (chunked prefill): piecewise linear in all tokens of the iteration, plus tables over the
  decoding requests, a context term, the same attention term and a constant per chunk.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env.cluster.cards import gpu_card, llm_card
from llmscale_env.cluster.kv import kv_capacity_tokens as card_kv_capacity_tokens

KINDS = ("end-to-end", "composed", "user", "roofline")
"""Where a model's times come from: whole iterations measured, kernels measured and added up (a
floor: no CPU overhead, no LM head, no sampling), a user's own CSV, or the cards alone."""

PS_PER_S = 1e12

_TOLD: set[str] = set()
"""Warnings given by this process."""


class ExtrapolationWarning(UserWarning):
    """Iteration times are used beyond what was measured; the message says what and how far."""


@dataclass(frozen=True)
class FitError:
    """Relative error of a fit on configurations that were held out, as fractions.

    Attributes:
        n_fitted: configurations in the fit.
        n_held_out: configurations that were held out, each once.
        mean, worst: absolute relative error over the held-out ones.
    """

    n_fitted: int
    n_held_out: int
    mean: float
    worst: float


@dataclass(frozen=True)
class IterationTables:
    """Integer tables of one model: the fields of `llmscale_env.sim.spec.ProfileSpec`, same names.

    Arrays are int64; times in picoseconds, sizes in tokens. `ProfileSpec(**vars(tables))` works.
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

    def decode_s(self, batch: int, context_tokens: float) -> float:
        """As `IterationTimeModel.decode_s`; `batch` up to the tables' largest."""
        if not 1 <= batch < len(self.decode_base_ps):
            raise ValueError(f"batch = {batch}: must be in 1..{len(self.decode_base_ps) - 1}")
        ps = self.decode_base_ps[batch] + self.decode_per_token_ps[batch] * context_tokens
        return float(ps / PS_PER_S)

    def prefill_s(self, tokens: float, pair_sum: float | None = None) -> float:
        """As `IterationTimeModel.prefill_s`."""
        pairs = tokens * tokens if pair_sum is None else pair_sum
        k = int(np.searchsorted(self.prefill_knot_tokens, tokens, side="right")) - 1
        line = self.prefill_knot_ps[k] + self.prefill_slope_ps[k] * (
            tokens - self.prefill_knot_tokens[k]
        )
        return float((line + self.prefill_pair_ps * pairs) / PS_PER_S)


@dataclass(frozen=True)
class IterationTimeModel:
    """Iteration times of one (LLM, GPU, tensor-parallel degree), in seconds and tokens.

    Attributes:
        llm, gpu, tp: card names and tensor-parallel degree.
        kind: one of `KINDS`.
        source: where the numbers come from, in words.
        decode_batch: (n,) batch sizes of the decode tables, ascending from 1; linear in between.
        decode_base_s, decode_per_token_s: (n,) time of an iteration without context, and per token
            of context summed over the batch.
        prefill_knot_tokens, prefill_knot_s: (k,) hinges of the prefill time, ascending from 0 tokens.
        prefill_slope_s: seconds per token beyond the last hinge.
        prefill_pair_s: per unit of the pair sum `chunk * (2 * cached + chunk)`.
        mixed_knot_tokens, mixed_knot_s, mixed_slope_s: the same over all tokens of a chunked iteration.
        mixed_batch, mixed_base_s, mixed_per_token_s: (m,) added for decoding requests (from 0) and
            per token of their context.
        mixed_pair_s, mixed_chunk_s: per unit of the pair sum, per chunk.
        mixed_measured: whether the mixed form was fitted to chunked iterations; otherwise it is
            derived from the decode and prefill fits (`derive_mixed`).
        errors: held-out errors by "decode", "prefill", "mixed" (those that were measured).
        max_batch, max_context_tokens, max_prefill_tokens: the range that was measured; 0 if nothing
            was. Beyond it the model extrapolates.
        notes: rows left out and other remarks.
    """

    llm: str
    gpu: str
    tp: int
    kind: str
    source: str
    decode_batch: tuple[int, ...]
    decode_base_s: tuple[float, ...]
    decode_per_token_s: tuple[float, ...]
    prefill_knot_tokens: tuple[int, ...]
    prefill_knot_s: tuple[float, ...]
    prefill_slope_s: float
    prefill_pair_s: float
    mixed_knot_tokens: tuple[int, ...]
    mixed_knot_s: tuple[float, ...]
    mixed_slope_s: float
    mixed_batch: tuple[int, ...]
    mixed_base_s: tuple[float, ...]
    mixed_per_token_s: tuple[float, ...]
    mixed_pair_s: float
    mixed_chunk_s: float
    mixed_measured: bool = False
    errors: dict[str, FitError] = field(default_factory=dict)
    max_batch: int = 0
    max_context_tokens: int = 0
    max_prefill_tokens: int = 0
    notes: str = ""

    def __post_init__(self) -> None:
        where = f"iteration times of {self.llm} on {self.gpu} tp {self.tp}"
        if self.kind not in KINDS:
            raise ValueError(f"{where}: kind = {self.kind!r} must be one of {', '.join(KINDS)}")
        for x, first, ys in (
            ("decode_batch", 1, ("decode_base_s", "decode_per_token_s")),
            ("prefill_knot_tokens", 0, ("prefill_knot_s",)),
            ("mixed_knot_tokens", 0, ("mixed_knot_s",)),
            ("mixed_batch", 0, ("mixed_base_s", "mixed_per_token_s")),
        ):
            grid = getattr(self, x)
            if not grid or grid[0] != first or any(np.diff(grid) <= 0):
                raise ValueError(f"{where}: {x} must rise strictly from {first}, got {grid[:5]}...")
            for y in ys:
                values = getattr(self, y)
                if len(values) != len(grid):
                    raise ValueError(f"{where}: {y} has {len(values)} entries, {x} {len(grid)}")
                if not all(np.isfinite(v) and v >= 0 for v in values):
                    raise ValueError(f"{where}: {y} must be finite and not negative")
        for y in ("prefill_knot_s", "mixed_knot_s"):
            if any(np.diff(getattr(self, y)) < 0):
                raise ValueError(f"{where}: {y} must not fall")
        for y in ("prefill_slope_s", "prefill_pair_s", "mixed_slope_s", "mixed_pair_s"):
            if not getattr(self, y) >= 0:
                raise ValueError(f"{where}: {y} = {getattr(self, y)} must not be negative")

    def decode_s(self, batch: int, context_tokens: float) -> float:
        """One decode iteration of `batch` requests with `context_tokens` of context in all."""
        if batch < 1:
            raise ValueError(f"batch = {batch}: must be at least 1")
        small = batch < len(self._small_decode[0])
        base, per_token = self._small_decode if small else self.decode_tables(batch)
        return float(base[batch] + per_token[batch] * context_tokens)

    @cached_property
    def _small_decode(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        # Planners ask for one batch after the other, thousands of times an episode.
        return self.decode_tables(1024)

    def prefill_s(self, tokens: float, pair_sum: float | None = None) -> float:
        """One prefill iteration of `tokens` new tokens.

        `pair_sum` is the sum over its chunks of `chunk * (2 * cached + chunk)`; left out, it is that
        of a single prompt, `tokens ** 2`.
        """
        pairs = tokens * tokens if pair_sum is None else pair_sum
        line = _piecewise(
            tokens, self.prefill_knot_tokens, self.prefill_knot_s, self.prefill_slope_s
        )
        return line + self.prefill_pair_s * pairs

    def mixed_s(
        self,
        decode_requests: int,
        context_tokens: float,
        chunk_tokens: float,
        pair_sum: float,
        chunks: int = 1,
    ) -> float:
        """One chunked-prefill iteration.

        Args:
            decode_requests: requests that decode in it.
            context_tokens: their context in all.
            chunk_tokens: prompt tokens in all.
            pair_sum: sum over the chunks of `chunk * (2 * cached + chunk)`.
            chunks: number of chunks.
        """
        total = decode_requests + chunk_tokens
        base, per_token = self.mixed_tables(decode_requests)
        return float(
            _piecewise(total, self.mixed_knot_tokens, self.mixed_knot_s, self.mixed_slope_s)
            + base[decode_requests]
            + per_token[decode_requests] * context_tokens
            + self.mixed_pair_s * pair_sum
            + self.mixed_chunk_s * chunks
        )

    def decode_tables(self, max_batch: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Base and per-token seconds for every batch in 0..max_batch (index 0 repeats 1).

        Beyond the table the base goes on along its chord over the last half, but no steeper than
        the line through the origin, so that throughput keeps rising; the per-token time stays.
        """
        b = np.arange(max_batch + 1)
        base = _extrapolated(b, self.decode_batch, self.decode_base_s)
        return base, np.interp(b, self.decode_batch, self.decode_per_token_s)

    def mixed_tables(self, max_batch: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What decoding requests add to a chunked iteration, for every count in 0..max_batch."""
        b = np.arange(max_batch + 1)
        base = _extrapolated(b, self.mixed_batch, self.mixed_base_s)
        return base, np.interp(b, self.mixed_batch, self.mixed_per_token_s)

    def profile(
        self,
        *,
        max_batch: int = 4096,
        kv_capacity_tokens: int | None = None,
        memory_fraction: float = 0.9,
        swap_bytes_per_s: float | None = None,
    ) -> IterationTables:
        """The model as the engines take it: integer tables up to `max_batch`.

        Args:
            max_batch: largest running batch.
            kv_capacity_tokens: KV tokens of an instance; from the cards if left out.
            memory_fraction: share of GPU memory, where the capacity comes from the cards.
            swap_bytes_per_s: speed of moving KV between one GPU and host memory; the GPU's PCIe
                peak if left out.

        Raises:
            DoesNotFitError: the cards say that the weights do not fit.
            ValueError: an argument is out of range.
        """
        if max_batch < 1:
            raise ValueError(f"max_batch = {max_batch}: must be at least 1")
        llm, gpu = llm_card(self.llm), gpu_card(self.gpu)
        if kv_capacity_tokens is None:
            kv_capacity_tokens = card_kv_capacity_tokens(
                llm, gpu, self.tp, memory_fraction=memory_fraction
            )
        if kv_capacity_tokens < 1:
            raise ValueError(f"kv_capacity_tokens = {kv_capacity_tokens}: must be at least 1")
        swap = gpu.pcie_bytes_per_s if swap_bytes_per_s is None else swap_bytes_per_s
        if not swap > 0:
            raise ValueError(f"swap_bytes_per_s = {swap}: must be positive")
        swap_ps = round(llm.kv_bytes_per_token_per_gpu(self.tp) / swap * PS_PER_S)
        base, per_token = self.decode_tables(max_batch)
        mixed_base, mixed_per_token = self.mixed_tables(max_batch)
        prefill = _integer_knots(
            self.prefill_knot_tokens, self.prefill_knot_s, self.prefill_slope_s
        )
        mixed = _integer_knots(self.mixed_knot_tokens, self.mixed_knot_s, self.mixed_slope_s)
        return IterationTables(
            decode_base_ps=np.maximum(_ps(base), 1),
            decode_per_token_ps=_ps(per_token),
            prefill_knot_tokens=prefill[0],
            prefill_knot_ps=prefill[1],
            prefill_slope_ps=prefill[2],
            prefill_pair_ps=int(_ps(self.prefill_pair_s)),
            mixed_knot_tokens=mixed[0],
            mixed_knot_ps=mixed[1],
            mixed_slope_ps=mixed[2],
            mixed_base_ps=_ps(mixed_base),
            mixed_per_token_ps=_ps(mixed_per_token),
            mixed_pair_ps=int(_ps(self.mixed_pair_s)),
            mixed_chunk_ps=int(_ps(self.mixed_chunk_s)),
            kv_capacity_tokens=int(kv_capacity_tokens),
            swap_out_ps_per_token=swap_ps,
            swap_in_ps_per_token=swap_ps,
        )

    def beyond(
        self, *, batch: int = 0, mean_context: float = 0, prefill_tokens: int = 0
    ) -> tuple[str, ...]:
        """What of a use is extrapolated, in words; nothing if all of it was measured.

        Args:
            batch: most requests that decode together.
            mean_context: most tokens of context per decoding request.
            prefill_tokens: most new tokens of a prefill iteration.

        A roofline measured nothing: that is its kind, and no word of it is said here.
        """
        if self.kind == "roofline":
            return ()
        asked = (
            ("decode of {:,} requests, measured to {:,}", batch, self.max_batch),
            ("context of {:,} tokens, measured to {:,}", mean_context, self.max_context_tokens),
            ("prefill of {:,} tokens, measured to {:,}", prefill_tokens, self.max_prefill_tokens),
        )
        return tuple(
            words.format(round(most), known) for words, most, known in asked if most > known
        )

    def warn_beyond(
        self, *, batch: int = 0, mean_context: float = 0, prefill_tokens: int = 0
    ) -> str:
        """`beyond` as an `ExtrapolationWarning`, given once per process for the same words.

        Returns:
            The words without the pair, "" if nothing is extrapolated.
        """
        words = "; ".join(
            self.beyond(batch=batch, mean_context=mean_context, prefill_tokens=prefill_tokens)
        )
        told = f"{self.llm} on {self.tp} x {self.gpu} ({self.kind}), extrapolated: {words}"
        if words and told not in _TOLD:
            _TOLD.add(told)
            warnings.warn(told, ExtrapolationWarning, stacklevel=2)
        return words

    def describe(self) -> str:
        """One sentence: what this is, from where, how good."""
        parts = [
            f"{part} {100 * e.mean:.1f} % (worst {100 * e.worst:.0f} %)"
            for part, e in self.errors.items()
        ]
        errors = f"; held-out error: {', '.join(parts)}" if parts else ""
        return f"{self.llm} on {self.tp} x {self.gpu}: {self.kind}, {self.source}{errors}"


def derive_mixed(
    decode_batch: tuple[int, ...],
    decode_base_s: tuple[float, ...],
    decode_per_token_s: tuple[float, ...],
    prefill_knot_tokens: tuple[int, ...],
    prefill_knot_s: tuple[float, ...],
    prefill_slope_s: float,
) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
    """Tables over the decoding requests for a mixed form that nobody has measured.

    The tokens of a chunked iteration share its matrix products, so its line over all tokens is the
    prefill's. What decoding requests add is what keeps the form whole at no chunk: the difference
    between a decode iteration and a prefill of as many tokens, if positive, and their context term.

    Returns:
        `mixed_batch, mixed_base_s, mixed_per_token_s`, from 0 requests on.
    """
    base = [
        max(0.0, y - _piecewise(b, prefill_knot_tokens, prefill_knot_s, prefill_slope_s))
        for b, y in zip(decode_batch, decode_base_s, strict=True)
    ]
    return (0, *decode_batch), (0.0, *base), (decode_per_token_s[0], *decode_per_token_s)


def _piecewise(x: float, knots: tuple[int, ...], values: tuple[float, ...], slope: float) -> float:
    beyond = max(0.0, x - knots[-1])
    return float(np.interp(x, knots, values)) + slope * beyond


def _extrapolated(
    b: NDArray[np.int64], grid: tuple[int, ...], values: tuple[float, ...]
) -> NDArray[np.float64]:
    last, top = grid[-1], values[-1]
    chord = (top - float(np.interp(last / 2, grid, values))) / (last / 2) if last > 1 else 0.0
    slope = min(max(chord, 0.0), 0.98 * top / max(last, 1))
    inside: NDArray[np.float64] = np.interp(b, grid, values)
    return inside + slope * np.maximum(b - last, 0)


def _ps(seconds: Any) -> NDArray[np.int64]:
    return np.rint(np.asarray(seconds, dtype=np.float64) * PS_PER_S).astype(np.int64)


def _integer_knots(
    tokens: tuple[int, ...], seconds: tuple[float, ...], last_slope_s: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Knots, values and slopes in integers: a slope reaches the next value but for 1 ps per token.

    Rounding a slope down keeps the line from falling at a knot.
    """
    knots = np.asarray(tokens, dtype=np.int64)
    values = np.maximum(_ps(seconds), 1)
    slopes = np.append(np.diff(values) // np.maximum(np.diff(knots), 1), int(_ps(last_slope_s)))
    return knots, values, slopes.astype(np.int64)
