"""From a workload and one generator to the table of requests of an episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from llmscale_env.workload.arrivals import Arrivals, generate_arrivals, to_ps
from llmscale_env.workload.config import (
    MAX_TOKENS,
    BatchQueueConfig,
    FixedLengths,
    LognormalLengths,
    PredictorConfig,
    SLOClass,
    StreamConfig,
    TableLengths,
    TraceLengths,
    WorkloadConfig,
)
from llmscale_env.workload.readers import Labels
from llmscale_env.workload.requests import RequestTable
from llmscale_env.workload.tables import LengthTable, load_lengths, round_tokens

AnyLengths = TableLengths | FixedLengths | LognormalLengths | TraceLengths


@dataclass(frozen=True)
class _Part:
    """Rows of one stream or batch queue, before they are merged."""

    arrival_ps: NDArray[np.int64]
    llm: NDArray[np.int16]
    region: NDArray[np.int16]
    slo_class: NDArray[np.int16]
    input_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    predicted_output_tokens: NDArray[np.int32]


def _lognormal_parameters(config: LognormalLengths) -> tuple[float, float]:
    """Means of the logs of input and output."""
    return (
        float(np.log(config.input_mean_tokens)) - config.input_sigma**2 / 2,
        float(np.log(config.output_mean_tokens)) - config.output_sigma**2 / 2,
    )


def draw_lengths(
    config: AnyLengths, arrivals: Arrivals, rng: np.random.Generator
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Input and output tokens of every arrival, each in 1..its maximum."""
    n = len(arrivals.arrival_ps)
    most = config.max_input_tokens, config.max_output_tokens
    if isinstance(config, TraceLengths):
        assert arrivals.trace is not None
        assert arrivals.rows is not None
        x = arrivals.trace.input_tokens[arrivals.rows]
        y = arrivals.trace.output_tokens[arrivals.rows]
        return np.minimum(x, most[0]).astype(np.int32), np.minimum(y, most[1]).astype(np.int32)
    if isinstance(config, FixedLengths):
        return (
            np.full(n, min(config.input_tokens, most[0]), dtype=np.int32),
            np.full(n, min(config.output_tokens, most[1]), dtype=np.int32),
        )
    if isinstance(config, LognormalLengths):
        z = rng.standard_normal((n, 2))
        mu_in, mu_out = _lognormal_parameters(config)
        rho = config.log_correlation
        mixed = rho * z[:, 0] + np.sqrt(1 - rho**2) * z[:, 1]
        inputs = np.exp(mu_in + config.input_sigma * z[:, 0])
        outputs = np.exp(mu_out + config.output_sigma * mixed)
    else:
        inputs, outputs = load_lengths(config.table).sample(n, rng)
    return round_tokens(inputs, most[0]), round_tokens(outputs, most[1])


def _conditional_mean(
    config: AnyLengths, arrivals: Arrivals, input_tokens: NDArray[np.int32]
) -> NDArray[np.float64]:
    """Mean output of requests with these inputs, under the distribution they are drawn from.

    Of a trace: of its other rows, as in `LogMeans`.
    """
    if isinstance(config, FixedLengths):
        return np.full(len(input_tokens), float(config.output_tokens))
    if isinstance(config, LognormalLengths):
        mu_in, mu_out = _lognormal_parameters(config)
        z = (np.log(input_tokens) - mu_in) / max(config.input_sigma, 1e-12)
        rho = config.log_correlation if config.input_sigma > 0 else 0.0
        left = config.output_sigma**2 * (1 - rho**2) / 2
        return np.exp(mu_out + rho * config.output_sigma * z + left)
    if isinstance(config, TraceLengths):
        assert arrivals.trace is not None
        assert arrivals.rows is not None
        most = config.max_input_tokens, config.max_output_tokens
        trace = arrivals.trace
        return trace.log_means.predict(arrivals.rows, trace.output_tokens, *most)
    table = load_lengths(config.table)
    clipped = np.minimum(table.output_tokens, config.max_output_tokens)
    return LengthTable(table.input_tokens, clipped).mean_output_given_input(input_tokens)


def predict_outputs(
    predictor: PredictorConfig,
    config: AnyLengths,
    arrivals: Arrivals,
    input_tokens: NDArray[np.int32],
    output_tokens: NDArray[np.int32],
    rng: np.random.Generator,
) -> NDArray[np.int32]:
    """Predicted output tokens, in 1..the maximum of the lengths (see `PredictorConfig`)."""
    if predictor.kind == "oracle":
        return output_tokens
    if predictor.kind == "noisy":
        z = rng.standard_normal(len(output_tokens))
        factor = np.exp(predictor.sigma * z - predictor.sigma**2 / 2)
        return round_tokens(output_tokens.astype(np.float64) * factor, MAX_TOKENS)
    mean = _conditional_mean(config, arrivals, input_tokens)
    return round_tokens(mean, config.max_output_tokens)


class _Children:
    """Independent generators for the parts of a workload, all from one draw of one generator.

    A child depends on that draw, its part's name and its purpose only: adding, removing or
    changing one stream leaves the draws of the others alone.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._entropy = [int(word) for word in rng.integers(0, 2**32, size=4, dtype=np.uint32)]

    def of(self, name: str) -> tuple[np.random.Generator, ...]:
        """Generators for arrivals, lengths and predictions."""
        key = crc32(name.encode())
        return tuple(
            np.random.Generator(
                np.random.PCG64(np.random.SeedSequence(self._entropy, spawn_key=(key, purpose)))
            )
            for purpose in range(3)
        )


def _index(where: str, name: str, names: tuple[str, ...]) -> int:
    if name not in names:
        raise ValueError(f"{where} = {name!r}: unknown; there are {list(names)}")
    return names.index(name)


def _trace_column(
    where: str, column: Labels | None, rows: NDArray[np.int64], names: tuple[str, ...]
) -> NDArray[np.int16]:
    """A column that a replayed trace has itself, as indices into the episode's names."""
    if column is None:
        raise ValueError(f"{where} is missing, and the trace has no such column")
    index = column.index[rows]
    known = [
        _index(where, name, names) if present else 0
        for name, present in zip(
            column.names, np.bincount(index, minlength=len(column.names)) > 0, strict=True
        )
    ]
    return np.array(known, dtype=np.int16)[index]


def _stream(
    where: str,
    stream: StreamConfig,
    workload: WorkloadConfig,
    names: tuple[tuple[str, ...], tuple[str, ...]],
    horizon_s: float,
    rngs: tuple[np.random.Generator, ...],
) -> _Part:
    arrivals = generate_arrivals(
        stream.arrivals, stream.rate_per_s, horizon_s, rngs[0], rate_scale=workload.rate_scale
    )
    n = len(arrivals.arrival_ps)

    def column(field: str, own: tuple[str, ...]) -> NDArray[np.int16]:
        value = getattr(stream, field)
        if value is not None:
            return np.full(n, _index(f"{where}.{field}", value, own), dtype=np.int16)
        assert arrivals.trace is not None
        assert arrivals.rows is not None
        return _trace_column(f"{where}.{field}", getattr(arrivals.trace, field), arrivals.rows, own)

    inputs, outputs = draw_lengths(stream.lengths, arrivals, rngs[1])
    predicted = predict_outputs(
        workload.predictor, stream.lengths, arrivals, inputs, outputs, rngs[2]
    )
    return _Part(
        arrivals.arrival_ps,
        column("llm", names[0]),
        np.full(n, stream.region, dtype=np.int16),
        column("slo_class", names[1]),
        inputs,
        outputs,
        predicted,
    )


def queue_size(workload: WorkloadConfig, queue: BatchQueueConfig, horizon_s: float) -> int:
    """Requests of a batch queue that come before the horizon."""
    return round(queue.n_requests * workload.rate_scale) if queue.at_s < horizon_s else 0


def _batch_queue(
    where: str,
    queue: BatchQueueConfig,
    workload: WorkloadConfig,
    names: tuple[tuple[str, ...], tuple[str, ...]],
    horizon_s: float,
    rngs: tuple[np.random.Generator, ...],
) -> _Part:
    n = queue_size(workload, queue, horizon_s)
    llm = _index(f"{where}.llm", queue.llm, names[0])
    slo_class = _index(f"{where}.slo_class", queue.slo_class, names[1])
    arrivals = Arrivals(np.full(n, to_ps(queue.at_s), dtype=np.int64))
    inputs, outputs = draw_lengths(queue.lengths, arrivals, rngs[1])
    predicted = predict_outputs(
        workload.predictor, queue.lengths, arrivals, inputs, outputs, rngs[2]
    )
    return _Part(
        arrivals.arrival_ps,
        np.full(n, llm, dtype=np.int16),
        np.full(n, queue.region, dtype=np.int16),
        np.full(n, slo_class, dtype=np.int16),
        inputs,
        outputs,
        predicted,
    )


def generate_requests(
    workload: WorkloadConfig,
    *,
    classes: Sequence[SLOClass | str],
    llms: Sequence[str],
    horizon_s: float,
    rng: np.random.Generator,
) -> RequestTable:
    """Draw the requests of an episode.

    Args:
        workload: what arrives.
        classes: SLO classes (or their names), in the order of the table's `slo_class` index.
        llms: names of the LLMs, in the order of the table's `llm` index.
        horizon_s: requests arrive in [0, horizon_s); a batch queue that appears later does not.
        rng: moved on by four 32-bit draws; every draw of the table follows from them.

    Returns:
        The requests sorted by arrival; ties in the order streams, then batch queues, as listed.

    Raises:
        ValueError: an LLM, class, table or profile that is not there, a malformed trace, a
            horizon that is not positive; the message names the field.
        OSError: a trace file that cannot be read.
    """
    if not 0 < horizon_s < np.inf:
        raise ValueError(f"horizon_s = {horizon_s}: must be positive and finite")
    class_names = tuple(c if isinstance(c, str) else c.name for c in classes)
    names = (tuple(llms), class_names)
    children = _Children(rng)
    parts = [
        _stream(f"streams[{k}]", s, workload, names, horizon_s, children.of(s.name))
        for k, s in enumerate(workload.streams)
    ]
    parts += [
        _batch_queue(f"batch_queues[{k}]", q, workload, names, horizon_s, children.of(q.name))
        for k, q in enumerate(workload.batch_queues)
    ]

    def merged(column: str) -> NDArray:
        return np.concatenate([np.zeros(0, np.int64), *(getattr(p, column) for p in parts)])

    arrival_ps = merged("arrival_ps")
    order = np.argsort(arrival_ps, kind="stable")
    return RequestTable(
        arrival_ps=arrival_ps[order],
        llm=merged("llm")[order],
        region=merged("region")[order],
        slo_class=merged("slo_class")[order],
        input_tokens=merged("input_tokens")[order],
        output_tokens=merged("output_tokens")[order],
        predicted_output_tokens=merged("predicted_output_tokens")[order],
        llm_names=names[0],
        class_names=names[1],
    )
