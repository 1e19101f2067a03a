"""Iterations composed from kernels that were measured one by one: Vidur's profiles of the A100.

The formula is that of the data's own README: all kernels of a layer at the iteration's tokens, the
attention of its prompts and of its decodes, two all-reduces, times the layers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmscale_env.cluster.cards import LlmCard
from llmscale_env.cluster.measurements import RawDataError, number, records, whole

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

KERNEL_TILE_TOKENS = 8
"""Composed times round an iteration's tokens up to a multiple of this."""

HAND_ON_MS = 0.02
"""Added to each all-reduce: Vidur's launch overhead."""

BATCHING = 1.1
"""Factor on the attention of several requests with grouped-query attention: Vidur's default."""

MATRIX_FILES = ("vidur_a100_mlp.csv.gz", "vidur_a100_mlp_llama3_8b.csv.gz")
ALL_REDUCE_FILE = "vidur_a100_all_reduce.csv.gz"
ATTENTION_FILE = "vidur_a100_attention_70b_tp2.csv.gz"
APPEND_FILE = "vidur_a100_attention_llama3_8b_tp1_sample.csv"
GEMM_COLUMNS = ("attn_pre_proj_ms", "attn_post_proj_ms", "mlp_up_proj_ms", "mlp_down_proj_ms")
SMALL_COLUMNS = (
    "mlp_act_ms", "attn_rope_ms", "input_layernorm_ms", "post_attention_layernorm_ms", "add_ms",
)  # fmt: skip


class AttentionModel:
    """Attention per layer in ms, from bytes and FLOPs: what the composed files call `model`.

    Args:
        card: the LLM.
        tp: tensor-parallel degree.
    """

    def __init__(self, card: LlmCard, tp: int) -> None:
        self._kv_bytes = card.kv_bytes_per_token_per_gpu(tp) / card.layers
        self._pair_flops = 2 * card.heads / tp * card.head_dim

    def decode_ms(self, batch: int, mean_context: float) -> float:
        """All decoding requests together."""
        return 0.0135 + batch * mean_context * self._kv_bytes / 1.62e9

    def prefill_ms(self, chunk: float, cached: float) -> float:
        """One chunk behind `cached` tokens."""
        flops = self._pair_flops * chunk * (2 * cached + chunk)
        start = 0.03 + 0.04 * min(1.0, chunk / 352) if cached else 0.012
        return start + flops / 155e9


class MeasuredAttention:
    """Attention per layer in ms, interpolated in Vidur's profile of Llama 2 70B on two GPUs.

    The profile has up to 128 decoding requests and 4,096 tokens of context; beyond them time grows
    with batch and context in proportion.

    Args:
        directory: folder of the calibration data.

    Raises:
        RawDataError: the file is missing or malformed.
    """

    def __init__(self, directory: Path) -> None:
        decode: dict[int, dict[int, float]] = defaultdict(dict)
        prefill: dict[int, dict[int, float]] = defaultdict(dict)
        path = directory / ATTENTION_FILE
        columns = ("is_prefill", "batch_size", "prefill_chunk_size", "kv_cache_size")
        for line, record in records(path, (*columns, "attn_prefill_ms", "attn_decode_ms")):
            where = f"{path.name}, line {line}"
            cached = whole(record, "kv_cache_size", where)
            if record["is_prefill"] == "True":
                chunk = whole(record, "prefill_chunk_size", where)
                prefill[chunk][cached] = number(record, "attn_prefill_ms", where)
            else:
                batch = whole(record, "batch_size", where)
                decode[batch][cached] = number(record, "attn_decode_ms", where)
        self._decode, self._prefill = _Surface(decode), _Surface(prefill)

    def decode_ms(self, batch: int, mean_context: float) -> float:
        """All decoding requests together."""
        return self._decode.at(batch, mean_context)

    def prefill_ms(self, chunk: float, cached: float) -> float:
        """One chunk behind `cached` tokens."""
        return self._prefill.at(chunk, cached)


class _Surface:
    """Rows of a table over (x, y): linear along each row's y, then between rows."""

    def __init__(self, rows: dict[int, dict[int, float]]) -> None:
        self._x = sorted(rows)
        self._rows = []
        for x in self._x:
            y = sorted(rows[x])
            self._rows.append((np.asarray(y), np.asarray([rows[x][k] for k in y])))

    def at(self, x: float, y: float) -> float:
        k = min(max(int(np.searchsorted(self._x, x)), 1), len(self._x) - 1)
        low, high = (self._along(i, y) for i in (k - 1, k))
        share = (min(max(x, self._x[0]), self._x[-1]) - self._x[k - 1]) / (
            self._x[k] - self._x[k - 1]
        )
        return (low + share * (high - low)) * max(1.0, x / self._x[-1])

    def _along(self, row: int, y: float) -> float:
        grid, values = self._rows[row]
        inside = float(np.interp(y, grid, values))
        if y <= grid[-1] or len(grid) < 2:
            return inside
        half = float(np.interp(grid[-1] / 2, grid, values))
        return inside + (y - grid[-1]) * max(0.0, values[-1] - half) / (grid[-1] / 2)


class KvAppend:
    """Writing new tokens into the paged KV cache, per layer in ms: Vidur's profile of Llama 3 8B on one GPU.

    A token of a prompt takes the longer the more tokens stand before its chunk's end: 0.28 us at
    352, 0.56 us from 4,500 on. Chunks of 320 tokens and more are taken to lie on one curve over these
    tokens (up to 4,992 it has those of 320 and 352 alone, beyond them sizes agree within 3 %); the
    smallest chunk of the profile, 64 tokens, has a curve of its own.

    Args:
        directory: folder of the calibration data.

    Raises:
        RawDataError: the file is missing, malformed or without chunks of both kinds.
    """

    DECODE_MS = 0.003
    """The new tokens of all decoding requests, one each: the composed files' own value."""
    SMALL, LARGE = 64, 320
    """Chunks, in tokens: those of the first curve, and the least of the second."""

    def __init__(self, directory: Path) -> None:
        found: tuple[dict[int, list[float]], ...] = (defaultdict(list), defaultdict(list))
        path = directory / APPEND_FILE
        columns = ("is_prefill", "prefill_chunk_size", "kv_cache_size", "attn_kv_cache_save_ms")
        for line, record in records(path, columns):
            if record["is_prefill"] != "True":
                continue
            where = f"{path.name}, line {line}"
            chunk = whole(record, "prefill_chunk_size", where)
            ms = number(record, "attn_kv_cache_save_ms", where)
            until = chunk + whole(record, "kv_cache_size", where)
            if chunk == self.SMALL or chunk >= self.LARGE:
                found[chunk >= self.LARGE][until].append(ms / chunk)
        if not all(found):
            raise RawDataError(
                f"{path.name}: has no prompts of {self.SMALL} tokens, or none of {self.LARGE} and more"
            )
        self._curves = [
            (sorted(rows), [float(np.mean(rows[until])) for until in sorted(rows)])
            for rows in found
        ]

    def chunk_ms(self, chunk: float, cached: float) -> float:
        """The tokens of one chunk behind `cached` tokens."""
        small, large = (float(np.interp(chunk + cached, *curve)) for curve in self._curves)
        share = min(max((chunk - self.SMALL) / (self.LARGE - self.SMALL), 0.0), 1.0)
        return chunk * (small + share * (large - small))


class ComposedTimes:
    """Whole iterations of one (LLM, A100-80GB, tensor-parallel degree) as sums of their kernels.

    Args:
        directory: folder of the calibration data.
        card: the LLM.
        kernel_model: the profile that its kernels are in.
        tp: tensor-parallel degree.
        measured_attention: attention as profiled (Llama 2 70B on two GPUs only), else modelled.
        kv_append: whether the KV-append kernel is counted, at every degree as on one GPU.

    Raises:
        RawDataError: a file is missing or malformed.
    """

    def __init__(
        self,
        directory: Path,
        card: LlmCard,
        kernel_model: str,
        tp: int,
        *,
        measured_attention: bool = False,
        kv_append: bool = False,
    ) -> None:
        self.card, self.tp = card, tp
        self.attention: AttentionModel | MeasuredAttention = (
            MeasuredAttention(directory) if measured_attention else AttentionModel(card, tp)
        )
        self._append = KvAppend(directory) if kv_append else None
        kernels = _matrix_kernels(directory)
        self._gemm, self._small = (table[kernel_model, tp] for table in kernels)
        self._reduce = _all_reduces(directory)[tp] if tp > 1 else {}

    def layer_parts_ms(self, tokens: Ints) -> dict[str, Floats]:
        """(n,) ms of one layer without attention, by part, at tokens rounded up to the tile."""
        rounded = -(-tokens // KERNEL_TILE_TOKENS) * KERNEL_TILE_TOKENS
        parts = {
            "matrix products": self.look_up(self._gemm, rounded),
            "small kernels": self.look_up(self._small, rounded),
        }
        if self.tp > 1:
            size = 2 * self.card.hidden * rounded
            parts["all-reduces"] = 2 * self.look_up(self._reduce, size)
            parts["all-reduce launches"] = np.full(len(rounded), 2 * HAND_ON_MS)
        return parts

    def look_up(self, table: dict[int, float], x: Ints) -> Floats:
        """(n,) times of a kernel at sizes `x`: straight between the measured ones."""
        grid = sorted(table)
        found: Floats = np.interp(x, grid, [table[g] for g in grid])
        return found

    def matrix_ms(self, tokens: Ints) -> Floats:
        """(n,) ms of a whole iteration without attention."""
        total: Floats = np.sum(list(self.layer_parts_ms(tokens).values()), axis=0)
        return self.card.layers * total

    def decode_attention_ms(self, batch: int, mean_context: float) -> float:
        """All layers: attention of the decoding requests, and their KV append."""
        together = self.batching(batch) * self.attention.decode_ms(batch, mean_context)
        return self.card.layers * together + self.append_ms(batch, [])

    def prefill_attention_ms(self, chunks: Sequence[tuple[float, float]]) -> float:
        """All layers: attention of chunks (tokens, cached before) in one call, and KV append.

        Chunks without cache count as one of as many token pairs, as in the composed files. Each
        chunk behind a cache is taken alone: Vidur lets all tokens of the iteration look at it.
        """
        new = [chunk for chunk, cached in chunks if not cached]
        alone = [pair for pair in chunks if pair[1]]
        if new:
            alone.append((float(np.sqrt(sum(chunk * chunk for chunk in new))), 0.0))
        call = sum(self.attention.prefill_ms(chunk, cached) for chunk, cached in alone)
        return self.card.layers * call * self.batching(len(chunks)) + self.append_ms(0, chunks)

    def append_ms(self, decodes: int, chunks: Sequence[tuple[float, float]]) -> float:
        """All layers: KV append of decoding requests and of chunks (tokens, cached before)."""
        if self._append is None:
            return 0.0
        layer = KvAppend.DECODE_MS * (decodes > 0)
        layer += sum(self._append.chunk_ms(*pair) for pair in chunks)
        return self.card.layers * layer

    def batching(self, requests: int) -> float:
        """Factor on the attention of so many requests in one call."""
        return BATCHING if self.card.grouped_query and requests > 1 else 1.0


def _matrix_kernels(
    directory: Path,
) -> tuple[dict[tuple[str, int], dict[int, float]], dict[tuple[str, int], dict[int, float]]]:
    """Matrix products and all other kernels without attention: (model, tp) -> tokens -> ms."""
    found: tuple[dict[tuple[str, int], dict[int, float]], ...] = (
        defaultdict(dict),
        defaultdict(dict),
    )
    for name in MATRIX_FILES:
        columns = ("model", "tensor_parallel", "num_tokens", *GEMM_COLUMNS, *SMALL_COLUMNS)
        for line, record in records(directory / name, columns):
            where = f"{name}, line {line}"
            key = (record["model"], whole(record, "tensor_parallel", where))
            tokens = whole(record, "num_tokens", where)
            for table, kernels in zip(found, (GEMM_COLUMNS, SMALL_COLUMNS), strict=True):
                table[key][tokens] = sum(number(record, column, where) for column in kernels)
    return found[0], found[1]


def _all_reduces(directory: Path) -> dict[int, dict[int, float]]:
    """GPUs -> bytes -> ms, on NVSwitch."""
    found: dict[int, dict[int, float]] = defaultdict(dict)
    for line, record in records(
        directory / ALL_REDUCE_FILE,
        ("network_device", "num_workers", "size_bytes", "all_reduce_ms"),
    ):
        if record["network_device"] == "a100_dgx":
            where = f"{ALL_REDUCE_FILE}, line {line}"
            workers = whole(record, "num_workers", where)
            size = whole(record, "size_bytes", where)
            found[workers][size] = number(record, "all_reduce_ms", where)
    return found
