"""From a workload and one generator to the table of requests of an episode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from llmscale_env.workload.arrivals import Arrivals, generate_arrivals, hourly_rates, to_ps
from llmscale_env.workload.config import (
    MAX_TOKENS,
    BatchQueueConfig,
    FixedLengths,
    HourlyArrivals,
    LognormalLengths,
    PredictorConfig,
    Regions,
    SLOClass,
    StreamConfig,
    TableLengths,
    TraceLengths,
    WorkloadConfig,
)
from llmscale_env.workload.hourly import HOUR_PS, hour_arrivals
from llmscale_env.workload.readers import Labels
from llmscale_env.workload.requests import PS_PER_S, RequestTable
from llmscale_env.workload.tables import load_clipped, load_lengths, round_tokens

AnyLengths = TableLengths | FixedLengths | LognormalLengths | TraceLengths


Rngs = tuple[np.random.Generator, ...]
"""Generators for arrivals, lengths, predictions and regions."""

Names = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""Names of the LLMs, classes and regions of an episode."""


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

    def between(self, from_ps: int, to_ps: int) -> _Part:
        """The rows that arrive in [from, to)."""
        first, last = np.searchsorted(self.arrival_ps, [from_ps, to_ps])
        return _Part(*(getattr(self, f.name)[first:last] for f in fields(self)))


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
    return load_clipped(config.table, config.max_output_tokens).mean_outputs(input_tokens)


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

    @property
    def salt(self) -> int:
        """For what engines find by hashes."""
        key = (crc32(b"salt"), 4)  # the purposes below are 0 to 3
        words = np.random.SeedSequence(self._entropy, spawn_key=key).generate_state(1, np.uint64)
        return int(words[0])

    def of(self, name: str, *block: int) -> Rngs:
        """The generators of a part, or of one block of it."""
        key = crc32(name.encode())
        return tuple(
            np.random.Generator(
                np.random.PCG64(
                    np.random.SeedSequence(self._entropy, spawn_key=(key, purpose, *block))
                )
            )
            for purpose in range(4)
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


def _regions(
    where: str, region: Regions | None, n: int, names: tuple[str, ...], rng: np.random.Generator
) -> NDArray[np.int16]:
    """A stream's or queue's regions as indices into the episode's names."""
    if region is None or isinstance(region, str):
        index = 0 if region is None else _index(f"{where}.region", region, names)
        return np.full(n, index, dtype=np.int16)
    known = [_index(f"{where}.region", name, names) for name in region]
    edges = np.cumsum(list(region.values()))
    place = np.searchsorted(edges / edges[-1], rng.random(n), side="right")
    return np.array(known, dtype=np.int16)[np.minimum(place, len(known) - 1)]


def _rows(
    where: str,
    stream: StreamConfig,
    workload: WorkloadConfig,
    names: Names,
    arrivals: Arrivals,
    rngs: Rngs,
) -> _Part:
    """What belongs to the arrivals of a stream."""
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
        _regions(where, stream.region, n, names[2], rngs[3]),
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
    names: Names,
    horizon_s: float,
    rngs: Rngs,
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
        _regions(where, queue.region, n, names[2], rngs[3]),
        np.full(n, slo_class, dtype=np.int16),
        inputs,
        outputs,
        predicted,
    )


class _Whole:
    """A stream or batch queue that is drawn at once."""

    def __init__(self, part: _Part) -> None:
        self._part = part

    def parts(self, from_ps: int, to_ps: int) -> list[_Part]:
        return [self._part.between(from_ps, to_ps)]


class _Hourly:
    """A stream with hourly rates: each hour is drawn when it is needed, and the last one kept."""

    def __init__(
        self,
        where: str,
        stream: StreamConfig,
        workload: WorkloadConfig,
        names: Names,
        horizon_s: float,
        children: _Children,
    ) -> None:
        assert isinstance(stream.arrivals, HourlyArrivals)
        self._bursts = stream.arrivals.bursts
        self._rates = hourly_rates(
            stream.arrivals,
            stream.rate_per_s,
            workload.rate_scale,
            to_ps(horizon_s),
            children.of(stream.name)[0],
        )
        self._what = (where, stream, workload, names)
        self._children = children
        self._kept: tuple[int, _Part] | None = None

    def parts(self, from_ps: int, to_ps: int) -> list[_Part]:
        hours = range(from_ps // HOUR_PS, -(-to_ps // HOUR_PS))
        return [self._hour(hour).between(from_ps, to_ps) for hour in hours]

    def _hour(self, hour: int) -> _Part:
        if self._kept is None or self._kept[0] != hour:
            rngs = self._children.of(self._what[1].name, hour)
            arrivals = Arrivals(hour_arrivals(self._rates, hour, self._bursts, rngs[0]))
            self._kept = hour, _rows(*self._what, arrivals, rngs)
        return self._kept[1]


class _Draw:
    """The requests of one episode, drawn as far as they are asked for."""

    def __init__(
        self,
        workload: WorkloadConfig,
        classes: Sequence[SLOClass | str],
        llms: Sequence[str],
        regions: Sequence[str] | None,
        horizon_s: float,
        rng: np.random.Generator,
    ) -> None:
        if not 0 < horizon_s < np.inf:
            raise ValueError(f"horizon_s = {horizon_s}: must be positive and finite")
        class_names = tuple(c if isinstance(c, str) else c.name for c in classes)
        known = workload.regions if regions is None else tuple(regions)
        self.names: Names = (tuple(llms), class_names, known or ("region",))
        children = _Children(rng)
        self.salt = children.salt
        self._sources: list[_Whole | _Hourly] = []
        for k, stream in enumerate(workload.streams):
            where = f"streams[{k}]"
            if isinstance(stream.arrivals, HourlyArrivals):
                source = _Hourly(where, stream, workload, self.names, horizon_s, children)
                self._sources.append(source)
                continue
            rngs = children.of(stream.name)
            arrivals = generate_arrivals(
                stream.arrivals,
                stream.rate_per_s,
                horizon_s,
                rngs[0],
                rate_scale=workload.rate_scale,
            )
            part = _rows(where, stream, workload, self.names, arrivals, rngs)
            self._sources.append(_Whole(part))
        for k, queue in enumerate(workload.batch_queues):
            rngs = children.of(queue.name)
            part = _batch_queue(f"batch_queues[{k}]", queue, workload, self.names, horizon_s, rngs)
            self._sources.append(_Whole(part))

    def between(self, from_ps: int, to_ps: int) -> RequestTable:
        """The requests that arrive in [from, to)."""
        parts = [part for source in self._sources for part in source.parts(from_ps, to_ps)]
        empty = (np.zeros(0, np.int16),)
        arrival_ps = np.concatenate([np.zeros(0, np.int64), *(p.arrival_ps for p in parts)])
        order = np.argsort(arrival_ps, kind="stable")
        columns: dict[str, Any] = {
            f.name: np.concatenate([*empty, *(getattr(p, f.name) for p in parts)])[order]
            for f in fields(_Part)
            if f.name != "arrival_ps"
        }
        return RequestTable(
            arrival_ps=arrival_ps[order],
            llm_names=self.names[0],
            class_names=self.names[1],
            region_names=self.names[2],
            salt=self.salt,
            **columns,
        )


def generate_requests(
    workload: WorkloadConfig,
    *,
    classes: Sequence[SLOClass | str],
    llms: Sequence[str],
    horizon_s: float,
    rng: np.random.Generator,
    regions: Sequence[str] | None = None,
) -> RequestTable:
    """Draw the requests of an episode.

    Args:
        workload: what arrives.
        classes: SLO classes (or their names), in the order of the table's `slo_class` index.
        llms: names of the LLMs, in the order of the table's `llm` index.
        horizon_s: requests arrive in [0, horizon_s); a batch queue that appears later does not.
        rng: moved on by four 32-bit draws; every draw of the table follows from them.
        regions: names of the clients' regions, in the order of the table's `region` index; None: those
            that the workload mentions.

    Returns:
        The requests sorted by arrival; ties in the order streams, then batch queues, as listed.

    Raises:
        ValueError: an LLM, class, region, table or profile that is not there, a malformed trace, a
            horizon that is not positive; the message names the field.
        OSError: a trace file that cannot be read.
    """
    draw = _Draw(workload, classes, llms, regions, horizon_s, rng)
    return draw.between(0, to_ps(horizon_s))


class RequestChunk(NamedTuple):
    """A part of an episode's requests.

    Attributes:
        from_s, to_s: they arrive in [from, to).
        first_id: row of the first of them in the whole table.
        requests: times are those of the episode.
    """

    from_s: float
    to_s: float
    first_id: int
    requests: RequestTable


def request_chunks(
    workload: WorkloadConfig,
    *,
    classes: Sequence[SLOClass | str],
    llms: Sequence[str],
    horizon_s: float,
    rng: np.random.Generator,
    regions: Sequence[str] | None = None,
    chunk_s: float = 3600.0,
) -> Iterator[RequestChunk]:
    """The table of `generate_requests` in pieces, bit for bit, for episodes too long to be held at once.

    Streams of kind `hourly` are drawn hour by hour and forgotten; others, and batch queues, are drawn
    whole before the first piece.

    Args:
        workload, classes, llms, horizon_s, rng, regions: as in `generate_requests`.
        chunk_s: length of a piece; the last one may be shorter.

    Raises:
        ValueError, OSError: as `generate_requests`, with the first piece; or a `chunk_s` that is not
            positive.
    """
    if not 0 < chunk_s < np.inf:
        raise ValueError(f"chunk_s = {chunk_s}: must be positive and finite")
    draw = _Draw(workload, classes, llms, regions, horizon_s, rng)
    end_ps, step_ps = to_ps(horizon_s), max(to_ps(chunk_s), 1)
    first_id = 0
    for from_ps in range(0, end_ps, step_ps):
        to = min(from_ps + step_ps, end_ps)
        requests = draw.between(from_ps, to)
        yield RequestChunk(from_ps / PS_PER_S, to / PS_PER_S, first_id, requests)
        first_id += len(requests)
