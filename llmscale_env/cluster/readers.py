"""Readers of raw measurements: public data sets, and a user's own CSV.

The data sets' own README says what each file is and where it comes from; docs/calibration.md
repeats sources and licences, docs/appendix.md the rows that are left out here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from llmscale_env.cluster.cards import gpu_card, llm_card
from llmscale_env.cluster.kernels import KERNEL_TILE_TOKENS, ComposedTimes
from llmscale_env.cluster.measurements import (
    PARTS,
    Measurements,
    RawDataError,
    number,
    records,
    whole,
)

CSV_COLUMNS = (
    "kind",
    "decode_requests",
    "decode_mean_context",
    "prefill_requests",
    "prefill_chunk_tokens",
    "prefill_cached_tokens",
    "iteration_ms",
)
"""Columns of a user's own CSV, and of the composed files after `model, tp, attn`."""

DENSE_TOKENS = 4096
DENSE_BATCH = 512


@dataclass(frozen=True)
class Row:
    """One iteration; `scored` and `fitted` as in `Measurements`."""

    part: str
    decode_requests: int
    mean_context: float
    chunks: int
    chunk_tokens: int
    cached_tokens: int
    ms: float
    scored: bool = True
    fitted: bool = True


# What the composed files call a model: card names that it stands for, and the kernels' model.
COMPOSED_MODELS: dict[str, tuple[tuple[str, ...], str]] = {
    "Llama-2-7B": (("llama-2-7b",), "meta-llama/Llama-2-7b-hf"),
    "Llama-2-13B": (("llama-2-13b", "vicuna-13b"), "internlm/internlm-20b"),
    "Llama-2-70B": (("llama-2-70b",), "meta-llama/Llama-2-70b-hf"),
    "Llama-3-70B": (("llama-3.1-70b",), "meta-llama/Meta-Llama-3-70B"),
    "Llama-3-8B": (("llama-3.1-8b",), "meta-llama/Meta-Llama-3-8B"),
    "Llama-3-8B(no kv-append)": (("mistral-7b",), "meta-llama/Meta-Llama-3-8B"),
}
COMPOSED_FILES = (
    "composed_iteration_times_a100.csv.gz",
    "composed_iteration_times_a100_llama3_8b.csv.gz",
)
MEASURED_ATTENTION = (("Llama-2-70B", 2),)
"""Model and degree whose attention was profiled: their rows `old` are taken, not those `model`."""

KV_APPEND = {"Llama-3-8B": "Llama-3-8B(no kv-append)"}
"""Model whose times have the KV-append kernel: the rows without it, to which `KvAppend` is added.

The composed files' own rows with it have 0.558 us per token and layer throughout, and the profile half of
that for short prompts."""


BETWEEN_CACHES = (1024, (1280, 1536, 1792), 2048)
"""Cached tokens that the composed files have, some between them, and the next that the files have."""


def measurements(
    rows: Iterable[Row],
    *,
    llm: str,
    gpu: str,
    tp: int,
    kind: str,
    source: str,
    notes: str = "",
    tile: int = 1,
) -> Measurements:
    """Rows as arrays; repeated measurements of one configuration become their mean.

    A configuration, held out as a whole, is: for decode the batch size and its mean context, for
    prefill prompts and their tokens, for mixed the decoding requests and the chunk. With `tile`
    above 1 it is for decode the batch size with all its contexts, for the others all tokens of the
    iteration rounded up to the tile, however they are made up, since they share their kernels.
    """
    merged: dict[tuple, list[float]] = defaultdict(list)
    for row in rows:
        key = (
            PARTS.index(row.part),
            row.decode_requests,
            float(row.mean_context),
            row.chunks,
            row.chunk_tokens,
            row.cached_tokens,
            row.scored,
            row.fitted,
        )
        merged[key].append(row.ms)
    keys = sorted(merged)
    labels: dict[tuple, int] = {}
    group = []
    for part, d, context, n, chunk, *_ in keys:
        label: tuple
        if part == 0:
            label = (part, d) if tile > 1 else (part, d, context)
        elif tile > 1:
            label = (1, -(-(d + n * chunk) // tile))
        else:
            label = (part, d, n, chunk)
        group.append(labels.setdefault(label, len(labels)))
    columns = list(zip(*keys, strict=True)) if keys else [()] * 8
    ints = [np.asarray(columns[i], dtype=np.int64) for i in (0, 1, 3, 4, 5)]
    context = ints[1].astype(np.float64) * np.asarray(columns[2], dtype=np.float64)
    return Measurements(
        llm=llm,
        gpu=gpu,
        tp=tp,
        kind=kind,
        source=source,
        notes=notes,
        tile_tokens=tile,
        part=ints[0],
        decode_requests=ints[1],
        context_tokens=context,
        chunks=ints[2],
        chunk_tokens=ints[3],
        cached_tokens=ints[4],
        seconds=np.asarray([np.mean(merged[k]) for k in keys]) / 1e3,
        group=np.asarray(group, dtype=np.int64),
        scored=np.asarray(columns[6], dtype=bool),
        fitted=np.asarray(columns[7], dtype=bool),
    )


def read_user_csv(path: Path, *, llm: str, gpu: str, tp: int) -> Measurements:
    """A user's own measurements; the columns are `CSV_COLUMNS`, one row per measured iteration.

    Raises:
        RawDataError: the file cannot be read, a column is missing or a row is malformed.
    """
    rows = []
    for line, record in records(path, CSV_COLUMNS):
        where = f"{path.name}, line {line}"
        part = record["kind"]
        if part not in PARTS:
            raise RawDataError(f"{where}: kind = {part!r}, expected one of {', '.join(PARTS)}")
        row = _iteration(record, where)
        needs_decode, needs_prefill = part in ("decode",), part in ("prefill", "mixed")
        if needs_decode and row.decode_requests < 1:
            raise RawDataError(f"{where}: decode_requests = 0, expected at least 1 in a decode row")
        if needs_prefill and row.chunks * row.chunk_tokens < 1:
            raise RawDataError(
                f"{where}: prefill_requests = {row.chunks}, prefill_chunk_tokens = "
                f"{row.chunk_tokens}, expected at least 1 each in a {part} row"
            )
        if part == "decode" and row.chunks:
            raise RawDataError(
                f"{where}: prefill_requests = {row.chunks}, expected 0 in a decode row"
            )
        if part == "prefill" and row.decode_requests:
            raise RawDataError(
                f"{where}: decode_requests = {row.decode_requests}, expected 0 in a prefill row"
            )
        rows.append(row)
    if not rows:
        raise RawDataError(f"{path.name}: no rows below the header")
    return measurements(
        rows,
        llm=llm_card(llm).name,
        gpu=gpu_card(gpu).name,
        tp=tp,
        kind="user",
        source=f"user's measurements, {path.name}",
    )


def read_calibration_dir(directory: Path, *, measured_attention: bool = True) -> list[Measurements]:
    """All data sets of the calibration directory, in a fixed order.

    Args:
        directory: folder of the calibration data.
        measured_attention: take profiled attention where it exists (`MEASURED_ATTENTION`), else the
            modelled one everywhere, which the roofline's shares of the peaks belong to.

    Raises:
        RawDataError: a file is missing or malformed.
    """
    if not directory.is_dir():
        raise RawDataError(f"data = {directory}: no such directory")
    found = [
        *_splitwise(directory),
        *_sageserve(directory),
        *_composed(directory, measured_attention),
    ]
    return sorted(found, key=lambda m: (m.llm, m.gpu, m.tp, m.kind))


def _splitwise(directory: Path) -> list[Measurements]:
    names = {"llama2-70b": "llama-2-70b", "bloom-176b": "bloom-176b"}
    columns = (
        "model", "hardware", "prompt_size", "batch_size", "token_size",
        "prompt_time", "token_time", "tensor_parallel",
    )  # fmt: skip
    rows: dict[tuple, list[Row]] = defaultdict(list)
    path = directory / "splitwise_perf_model.csv"
    for line, record in records(path, columns):
        where = f"{path.name}, line {line}"
        gpu = record["hardware"]
        if gpu == "h100-80gb-pcap":  # its prompt times are the H100's times 1.3, not measured
            continue
        prompt, batch, tokens, tp = (
            whole(record, c, where)
            for c in ("prompt_size", "batch_size", "token_size", "tensor_parallel")
        )
        if (record["model"], tp, batch) == ("llama2-70b", 2, 64):
            continue  # see the notes below
        key = (names[record["model"]], gpu, tp)
        prompt_ms = number(record, "prompt_time", where)
        token_ms = number(record, "token_time", where)
        # Several prompts in one iteration cannot take longer than one prompt of as many tokens: the
        # matrix products are the same and attention is less. They do so in Llama 2 70B's runs on
        # the A100 (7 to 36 %), and nowhere else.
        one_iteration = batch == 1 or key[:2] != ("llama-2-70b", "a100-80gb")
        rows[key] += [
            Row("prefill", 0, 0, batch, prompt, 0, prompt_ms, fitted=one_iteration),
            Row("decode", batch, prompt + tokens / 2, 0, 0, 0, token_ms),
        ]
    found = []
    for (llm, gpu, tp), mine in rows.items():
        notes = []
        if (llm, gpu) == ("llama-2-70b", "a100-80gb"):
            notes.append(
                "compared, not fitted: prompt times of batches above 1 (7 to 36 % above one prompt "
                "of as many tokens: more than one iteration)"
            )
        if gpu == "h100-80gb":
            notes.append("left out: power-capped H100 rows (prompt times are the H100's times 1.3)")
        if tp == 2:
            notes.append("left out: batch 64 rows (prompt times an eighth of batch 32's)")
        found.append(
            measurements(
                mine,
                llm=llm,
                gpu=gpu,
                tp=tp,
                kind="end-to-end",
                source="Splitwise (ISCA 2024), DGX machines, whole batches",
                notes="; ".join(notes),
            )
        )
    return found


def _sageserve(directory: Path) -> list[Measurements]:
    columns = (
        "tensor_parallel", "prompt_size", "batch_size", "token_size", "prompt_time_s",
        "decode_total_time_s",
    )  # fmt: skip
    rows: dict[int, list[Row]] = defaultdict(list)
    path = directory / "sageserve_a100_llama32_3b.csv"
    for line, record in records(path, columns):
        where = f"{path.name}, line {line}"
        prompt, batch, tokens, tp = (
            whole(record, c, where)
            for c in ("prompt_size", "batch_size", "token_size", "tensor_parallel")
        )
        if batch == 1:
            ms = 1e3 * number(record, "prompt_time_s", where)
            rows[tp].append(Row("prefill", 0, 0, 1, prompt, 0, ms))
        if max(prompt, tokens) < 8192:
            ms = 1e3 * number(record, "decode_total_time_s", where) / tokens
            rows[tp].append(Row("decode", batch, prompt + tokens / 2, 0, 0, 0, ms))
    return [
        measurements(
            mine,
            llm="llama-3.2-3b",
            gpu="a100-80gb",
            tp=tp,
            kind="end-to-end",
            source="SageServe, whole batches",
            notes="left out: prompt times of batches above 1 (not those of the whole batch); decode "
            "beyond 8192 tokens of context (three times as long per token as at 4096)",
        )
        for tp, mine in rows.items()
    ]


def _composed(directory: Path, measured: bool) -> list[Measurements]:
    rows: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for name in COMPOSED_FILES:
        path = directory / name
        for line, record in records(path, ("model", "tp", "attn", *CSV_COLUMNS)):
            where = f"{name}, line {line}"
            key = (record["model"], whole(record, "tp", where))
            if record["attn"] == ("old" if measured and key in MEASURED_ATTENTION else "model"):
                rows[key].append(_iteration(record, where))
    found = []
    for model, tp in rows:
        mine = rows.get((KV_APPEND.get(model, model), tp), [])
        if not mine:
            raise RawDataError(f"{COMPOSED_FILES[1]}: no rows of {KV_APPEND[model]} at tp {tp}")
        names, kernel_model = COMPOSED_MODELS[model]
        profiled = measured and (model, tp) in MEASURED_ATTENTION
        times = composed_times(directory, model, tp, measured_attention=profiled)
        dense = dense_rows(times)
        if model in KV_APPEND:
            dense += _between_caches(mine, times)
            mine = [replace(row, ms=row.ms + _append_ms(times, row)) for row in mine]
        attention = ", attention measured" if profiled else ""
        found += [
            measurements(
                mine + dense,
                llm=name,
                gpu="a100-80gb",
                tp=tp,
                kind="composed",
                source=f"kernels of Vidur's profiles, {kernel_model} ({model}{attention})",
                notes="a floor: without CPU overhead, embedding, LM head, sampling"
                + ("" if model in KV_APPEND else ", KV append"),
                tile=KERNEL_TILE_TOKENS,
            )
            for name in names
        ]
    return found


def _between_caches(rows: Sequence[Row], times: ComposedTimes) -> list[Row]:
    """Chunks behind caches between those of the files, as support that is not scored.

    Without KV append, times between two caches are on the straight line, as attention is. With it they are
    not, and most chunks of long prompts lie where the files have nothing.

    Args:
        rows: without KV append.
        times: with it.
    """
    chunked = {
        (row.decode_requests, row.mean_context, row.chunk_tokens, row.cached_tokens): row
        for row in rows
        if row.part == "mixed"
    }
    found = []
    before, between, after = BETWEEN_CACHES
    for (decodes, context, chunk, cached), row in chunked.items():
        later = chunked.get((decodes, context, chunk, after))
        if cached == before and later is not None:
            for tokens in between:
                ms = row.ms + (tokens - before) / (after - before) * (later.ms - row.ms)
                found.append(replace(row, cached_tokens=tokens, ms=ms, scored=False))
    return [replace(row, ms=row.ms + _append_ms(times, row)) for row in found]


def _append_ms(times: ComposedTimes, row: Row) -> float:
    return times.append_ms(
        row.decode_requests, [(row.chunk_tokens, row.cached_tokens)] * row.chunks
    )


def composed_times(
    directory: Path,
    model: str,
    tp: int,
    *,
    measured_attention: bool,
    kind: type[ComposedTimes] = ComposedTimes,
) -> ComposedTimes:
    """The kernels of one of `COMPOSED_MODELS` at a degree.

    Args:
        directory: folder of the calibration data.
        model: name in the composed files.
        tp: tensor-parallel degree.
        measured_attention: attention as profiled, else modelled.
        kind: how they are read, a subclass perhaps.

    Raises:
        RawDataError: a file is missing or malformed.
    """
    names, kernel_model = COMPOSED_MODELS[model]
    return kind(
        directory,
        llm_card(names[0]),
        kernel_model,
        tp,
        measured_attention=measured_attention,
        kv_append=model in KV_APPEND,
    )


def dense_rows(times: ComposedTimes) -> list[Row]:
    """Prefills of one prompt at both ends of every tile of tokens, decodes in every tile.

    The files sample the number of tokens sparsely, and kernels jump where a tile of tokens is full
    (a chunk of 512 tokens takes 114 ms on Llama-2-70B TP4, one of 513 takes 127): the points in
    between support the fit, they are not scored.
    """
    tile = KERNEL_TILE_TOKENS
    ends = np.arange(tile, DENSE_TOKENS + 1, tile)
    tokens = np.unique(np.concatenate([ends - tile + 1, ends]))
    matrix = times.matrix_ms(tokens)
    rows = []
    for t, ms in zip(tokens.tolist(), matrix, strict=True):
        whole_ms = float(ms) + times.prefill_attention_ms([(t, 0)])
        rows.append(Row("prefill", 0, 0, 1, t, 0, whole_ms, scored=False))
    for b in (int(t) for t in ends if t <= DENSE_BATCH or t % 512 == 0):
        at = int(np.searchsorted(tokens, b))
        # A batch size of its own, so that no point of the files is held in by its double.
        b -= 1
        for context in (64, 256, 1024):
            ms = float(matrix[at]) + times.decode_attention_ms(b, context)
            rows.append(Row("decode", b, context, 0, 0, 0, ms, scored=False))
    return rows


def _iteration(record: dict[str, str], where: str) -> Row:
    return Row(
        part=record["kind"],
        decode_requests=whole(record, "decode_requests", where),
        mean_context=number(record, "decode_mean_context", where, at_least=0.0),
        chunks=whole(record, "prefill_requests", where),
        chunk_tokens=whole(record, "prefill_chunk_tokens", where),
        cached_tokens=whole(record, "prefill_cached_tokens", where),
        ms=number(record, "iteration_ms", where),
    )
