"""From a workload and one generator to the table of requests of an episode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from llmscale_env.workload.arrivals import Arrivals, generate_arrivals, hourly_rates, to_ps
from llmscale_env.workload.config import (
    MAX_TOKENS,
    TEN_MINUTES_S,
    BatchQueueConfig,
    DayArrivals,
    FixedLengths,
    HourlyArrivals,
    JobsConfig,
    LognormalLengths,
    PredictorConfig,
    Regions,
    SLOClass,
    StreamConfig,
    SystemPromptsConfig,
    TableLengths,
    TraceLengths,
    TurnsConfig,
    WorkloadConfig,
)
from llmscale_env.workload.conversations import (
    Prompts,
    Turns,
    draw_prompts,
    draw_turns,
    single_turns,
)
from llmscale_env.workload.days import (
    DAY_S,
    PAST_BIN_S,
    WINDOW_PS,
    Jobs,
    PastRequests,
    draw_jobs,
    draw_start,
    left_over,
    longest_target_s,
    past_counts,
    possible_starts,
    window_arrivals,
)
from llmscale_env.workload.hourly import HOUR_PS, days_of, hour_arrivals, on_day
from llmscale_env.workload.prefixes import NamesOfAll, Prefixes, replayed
from llmscale_env.workload.readers import Labels
from llmscale_env.workload.requests import PS_PER_S, WEEK_S, RequestTable
from llmscale_env.workload.tables import load_clipped, load_lengths, round_tokens

AnyLengths = TableLengths | FixedLengths | LognormalLengths | TraceLengths


class Rngs:
    """Independent generators of one part, by purpose: 0 arrivals, 1 lengths, 2 predictions, 3 regions,
    5 turns of conversations, 6 system prompts.

    Each is made when it is first asked for: to make one takes longer than many a draw, and most blocks need
    one or two of them.
    """

    def __init__(self, entropy: list[int], key: tuple[int, ...]) -> None:
        self._entropy, self._key = entropy, key
        self._made: dict[int, np.random.Generator] = {}

    def __getitem__(self, purpose: int) -> np.random.Generator:
        if purpose not in self._made:
            name, *block = self._key
            key = (name, purpose, *block)
            seed = np.random.SeedSequence(self._entropy, spawn_key=key)
            self._made[purpose] = np.random.Generator(np.random.PCG64(seed))
        return self._made[purpose]


Names = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""Names of the LLMs, classes and regions of an episode."""


@dataclass(frozen=True)
class _Part:
    """Rows of one stream, batch queue or kind of jobs, before they are merged."""

    arrival_ps: NDArray[np.int64]
    llm: NDArray[np.int16]
    region: NDArray[np.int16]
    slo_class: NDArray[np.int16]
    input_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    predicted_output_tokens: NDArray[np.int32]
    prefixes: Prefixes | None = None

    def between(self, from_ps: int, to_ps: int) -> _Part:
        """The rows that arrive in [from, to)."""
        first, last = np.searchsorted(self.arrival_ps, [from_ps, to_ps])
        prefixes = self.prefixes
        if prefixes is not None:
            prefixes = prefixes.take(np.arange(first, last))
        columns = {name: getattr(self, name)[first:last] for name in _COLUMNS}
        return _Part(**columns, prefixes=prefixes)


_COLUMNS = tuple(f.name for f in fields(_Part) if f.name != "prefixes")


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
        key = (crc32(b"salt"), 4)  # a purpose that no part has
        words = np.random.SeedSequence(self._entropy, spawn_key=key).generate_state(1, np.uint64)
        return int(words[0])

    def of(self, name: str, *block: int) -> Rngs:
        """The generators of a part, or of one block of it."""
        return Rngs(self._entropy, (crc32(name.encode()), *block))


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
    turns: Turns | None = None,
) -> _Part:
    """What belongs to the arrivals of a stream; with `turns` they are these, a conversation after another."""

    def column(field: str, own: tuple[str, ...]) -> int | NDArray[np.int16]:
        value = getattr(stream, field)
        if value is not None:
            return _index(f"{where}.{field}", value, own)
        assert arrivals.trace is not None
        assert arrivals.rows is not None
        return _trace_column(f"{where}.{field}", getattr(arrivals.trace, field), arrivals.rows, own)

    llm, slo_class = column("llm", names[0]), column("slo_class", names[1])
    part = _drawn(where, stream, workload, names, arrivals, llm, slo_class, rngs)
    if turns is not None or stream.system_prompts is not None:
        return _with_prompts(part, stream, turns or single_turns(arrivals.arrival_ps), rngs)
    if arrivals.trace is not None and arrivals.trace.prefixes is not None:
        assert arrivals.rows is not None
        assert arrivals.copy is not None
        mine = arrivals.trace.prefixes, arrivals.rows, arrivals.copy
        return replace(part, prefixes=replayed(*mine, part.input_tokens))
    return part


def _prompts(
    config: TurnsConfig | None,
    system: SystemPromptsConfig | None,
    turns: Turns,
    message_tokens: NDArray[np.int32],
    output_tokens: NDArray[np.int32],
    rng: np.random.Generator,
) -> Prompts:
    """Prompts of a stream with turns or system prompts, whose lengths are those of messages."""
    begin = 0 if system is None else system.tokens
    most = begin + 2 * MAX_TOKENS if config is None else config.max_context_tokens
    return draw_prompts(turns, message_tokens, output_tokens, most, system, rng)


def _with_prompts(part: _Part, stream: StreamConfig, turns: Turns, rngs: Rngs) -> _Part:
    """A part whose lengths are those of messages, as one of whole prompts, by arrival."""
    lengths = part.input_tokens, part.output_tokens
    prompts = _prompts(stream.turns, stream.system_prompts, turns, *lengths, rngs[6])
    opens = np.searchsorted(turns.conversation, turns.conversation)
    whole = replace(
        part,
        region=part.region[opens],
        input_tokens=prompts.input_tokens,
        output_tokens=prompts.output_tokens,
    )
    columns = {name: getattr(whole, name)[prompts.order] for name in _COLUMNS}
    return _Part(**columns, prefixes=prompts.prefixes)


def _drawn(
    where: str,
    part: StreamConfig | BatchQueueConfig | JobsConfig,
    workload: WorkloadConfig,
    names: Names,
    arrivals: Arrivals,
    llm: int | NDArray[np.int16],
    slo_class: int | NDArray[np.int16],
    rngs: Rngs,
) -> _Part:
    """Arrivals with their lengths, predictions and regions; LLM and class as indices."""
    n = len(arrivals.arrival_ps)
    inputs, outputs = draw_lengths(part.lengths, arrivals, rngs[1])
    predicted = predict_outputs(
        workload.predictor, part.lengths, arrivals, inputs, outputs, rngs[2]
    )
    return _Part(
        arrivals.arrival_ps,
        np.broadcast_to(np.asarray(llm, np.int16), n),
        _regions(where, part.region, n, names[2], rngs[3]),
        np.broadcast_to(np.asarray(slo_class, np.int16), n),
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
    return _drawn(where, queue, workload, names, arrivals, llm, slo_class, rngs)


def _job_rows(
    where: str,
    job: JobsConfig,
    workload: WorkloadConfig,
    names: Names,
    jobs: Jobs,
    targets_s: Sequence[float],
    rngs: Rngs,
) -> _Part:
    """Requests of jobs, what is left of earlier ones first."""
    left, of_class = left_over(job, targets_s, jobs)
    new = jobs.time_s >= 0
    size = np.concatenate([left, jobs.requests[new]])
    begin_ps = np.rint(jobs.time_s[new] * PS_PER_S).astype(np.int64)
    arrival_ps = np.repeat(np.concatenate([np.zeros(len(left), np.int64), begin_ps]), size)
    which = np.repeat(np.concatenate([of_class, jobs.which[new]]), size)
    known = [_index(f"{where}.classes", name, names[1]) for name in job.classes]
    llm = _index(f"{where}.llm", job.llm, names[0])
    slo_class = np.array(known, dtype=np.int16)[which]
    return _drawn(where, job, workload, names, Arrivals(arrival_ps), llm, slo_class, rngs)


class _Whole:
    """A stream or batch queue that is drawn at once."""

    def __init__(self, part: _Part) -> None:
        self._part = part
        self.shares = part.prefixes is not None
        self.size = len(part.arrival_ps)

    def parts(self, from_ps: int, to_ps: int) -> list[_Part]:
        return [self._part.between(from_ps, to_ps)]


class _Pieces:
    """A stream that is drawn piece by piece, each when it is needed; the last one is kept."""

    def __init__(
        self,
        where: str,
        stream: StreamConfig,
        workload: WorkloadConfig,
        names: Names,
        children: _Children,
        length_ps: int,
        draw: Callable[[int, np.random.Generator], NDArray[np.int64]],
    ) -> None:
        self._what = (where, stream, workload, names)
        self.shares = stream.system_prompts is not None
        self.size = 0  # what its requests begin like belongs to no request
        self._children = children
        self._length_ps = length_ps
        self._draw = draw
        self._kept: tuple[int, _Part] | None = None

    def parts(self, from_ps: int, to_ps: int) -> list[_Part]:
        pieces = range(from_ps // self._length_ps, -(-to_ps // self._length_ps))
        return [self._piece(k).between(from_ps, to_ps) for k in pieces]

    def _piece(self, k: int) -> _Part:
        if self._kept is None or self._kept[0] != k:
            rngs = self._children.of(self._what[1].name, k)
            arrivals = Arrivals(self._draw(k, rngs[0]))
            self._kept = k, _rows(*self._what, arrivals, rngs)
        return self._kept[1]


class _Past:
    """Counts what came before an episode, bin by bin: `PastRequests`."""

    def __init__(self, workload: WorkloadConfig, names: Names, history_s: float) -> None:
        if history_s % TEN_MINUTES_S:
            raise ValueError(
                f"history_s = {history_s:g}: must be a whole number of {TEN_MINUTES_S} s where arrivals "
                "follow days or jobs come"
            )
        self._workload = workload
        self._names = names
        n_bins = round(history_s) // PAST_BIN_S
        shape = (n_bins, *(len(each) for each in names[:1] + names[2:] + names[1:2]))
        self._requests, self._inputs, self._predicted = (
            np.zeros(shape, np.int64) for _ in range(3)
        )

    def add(
        self,
        where: str,
        part: StreamConfig | JobsConfig,
        slo_class: str,
        counts: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> None:
        """(bins,) requests of a part and a class."""
        if part.llm is None:
            raise ValueError(f"{where}.llm is missing: what came before is counted by LLM")
        turns, system = getattr(part, "turns", None), getattr(part, "system_prompts", None)
        inputs, predicted = _mean_tokens(part.lengths, self._workload.predictor, turns, system)
        llm = _index(f"{where}.llm", part.llm, self._names[0])
        c = _index(f"{where}.slo_class", slo_class, self._names[1])
        n = int(counts.sum())
        one = part.region is None or isinstance(part.region, str)  # then nothing is drawn
        drawn = _regions(where, part.region, 1 if one else n, self._names[2], rng)
        regions = np.bincount(drawn, minlength=len(self._names[2])) * (n if one else 1)
        for r in np.flatnonzero(regions):
            # One region takes all; of several each has its share of every bin.
            mine = (
                counts
                if len(np.flatnonzero(regions)) == 1
                else rng.binomial(counts, regions[r] / regions.sum())
            )
            self._requests[:, llm, r, c] += mine
            self._inputs[:, llm, r, c] += np.rint(mine * inputs).astype(np.int64)
            self._predicted[:, llm, r, c] += np.rint(mine * predicted).astype(np.int64)

    def result(self) -> PastRequests:
        return PastRequests(self._requests, self._inputs, self._predicted)


@lru_cache(maxsize=64)
def _mean_tokens(
    lengths: AnyLengths,
    predictor: PredictorConfig,
    turns: TurnsConfig | None,
    system: SystemPromptsConfig | None,
) -> tuple[float, float]:
    """Mean prompt and mean predicted output tokens, of a fixed sample."""
    rng = np.random.default_rng(_SAMPLE_SEED)
    arrivals = Arrivals(np.zeros(_SAMPLE, np.int64))
    talk = single_turns(arrivals.arrival_ps)
    if turns is not None:
        talk = draw_turns(turns, arrivals.arrival_ps, PS_PER_S, rng)
        arrivals = Arrivals(talk.arrival_ps)
    inputs, outputs = draw_lengths(lengths, arrivals, rng)
    predicted = predict_outputs(predictor, lengths, arrivals, inputs, outputs, rng)
    if turns is not None or system is not None:
        inputs = _prompts(turns, system, talk, inputs, outputs, rng).input_tokens
    return float(inputs.mean()), float(predicted.mean())


_SAMPLE, _SAMPLE_SEED = 20_000, 990_100


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
        history_s: float,
    ) -> None:
        if not 0 < horizon_s < np.inf:
            raise ValueError(f"horizon_s = {horizon_s}: must be positive and finite")
        class_names = tuple(c if isinstance(c, str) else c.name for c in classes)
        known = workload.regions if regions is None else tuple(regions)
        self.names: Names = (tuple(llms), class_names, known or ("region",))
        children = _Children(rng)
        self.salt = children.salt
        self._sources: list[_Whole | _Pieces] = []
        self._start = 0  # window of the tables of days
        days = workload.day_arrivals
        if days:
            self._start = draw_start(days[0], horizon_s, children.of(_DAY)[0])
        day = _random_day(workload, children) or 0
        past = _Past(workload, self.names, history_s) if history_s > 0 else None
        for k, stream in enumerate(workload.streams):
            if isinstance(stream.arrivals, HourlyArrivals):
                stream = stream.model_copy(update={"arrivals": on_day(stream.arrivals, day)})
            self._add_stream(f"streams[{k}]", stream, workload, horizon_s, children)
            if past is not None:
                counts = self._past_of(stream, workload, history_s, children)
                if stream.slo_class is None:
                    raise ValueError(
                        f"streams[{k}].slo_class is missing: what came before is counted by class"
                    )
                rng = children.of(f"{stream.name}{_BEFORE}")[3]
                past.add(f"streams[{k}]", stream, stream.slo_class, counts, rng)
        for k, queue in enumerate(workload.batch_queues):
            rngs = children.of(queue.name)
            part = _batch_queue(f"batch_queues[{k}]", queue, workload, self.names, horizon_s, rngs)
            self._sources.append(_Whole(part))
        with_targets = [c for c in classes if not isinstance(c, str)]
        targets = {c.name: c.ttft_s for c in with_targets}
        for k, job in enumerate(workload.jobs):
            where = f"jobs[{k}]"
            for name in job.classes:
                _index(f"{where}.classes", name, class_names)
                if name not in targets:
                    raise ValueError(f"{where}.classes: {name!r} needs a class with its target")
            rngs = children.of(job.name)
            back_s = max(history_s, longest_target_s(workload, with_targets))
            jobs = draw_jobs(job, workload.rate_scale, back_s, horizon_s, rngs[0])
            mine = [targets[name] for name in job.classes]
            self._sources.append(
                _Whole(_job_rows(where, job, workload, self.names, jobs, mine, rngs))
            )
            if past is not None:
                bins = np.floor((jobs.time_s + history_s) / PAST_BIN_S).astype(np.int64)
                seen = (jobs.time_s < 0) & (bins >= 0)
                for c, name in enumerate(job.classes):
                    of_class = seen & (jobs.which == c)
                    n_bins = round(history_s) // PAST_BIN_S
                    counts = np.bincount(
                        bins[of_class], jobs.requests[of_class], minlength=n_bins
                    ).astype(np.int64)
                    rng = children.of(f"{job.name}{_BEFORE}", c)[3]
                    past.add(where, job, name, counts, rng)
        self._shares = any(source.shares for source in self._sources)
        self._all = NamesOfAll([source.size for source in self._sources])
        self._past = None if past is None else past.result()
        self._clock_s = float(self._start * TEN_MINUTES_S % DAY_S)
        hourly = [on_day(arrivals, day).start_s for arrivals in workload.hourly_arrivals]
        begin_s = [start_s for start_s in hourly if not isinstance(start_s, str)]
        if begin_s and not days:
            self._clock_s = begin_s[0] % WEEK_S

    def _add_stream(
        self,
        where: str,
        stream: StreamConfig,
        workload: WorkloadConfig,
        horizon_s: float,
        children: _Children,
    ) -> None:
        arrivals, horizon_ps = stream.arrivals, to_ps(horizon_s)
        rngs = children.of(stream.name)
        # A rate is one of requests; with turns, what arrives here begins a conversation of several.
        scale = workload.rate_scale / (1.0 if stream.turns is None else stream.turns.mean)
        what = (where, stream, workload, self.names)
        pieces: tuple[int, Callable[[int, np.random.Generator], NDArray[np.int64]]] | None = None
        if isinstance(arrivals, HourlyArrivals):
            rates = hourly_rates(arrivals, stream.rate_per_s, scale, horizon_ps, rngs[0])
            pieces = HOUR_PS, partial(hour_arrivals, rates, arrivals.bursts)
        elif isinstance(arrivals, DayArrivals):
            assert stream.rate_per_s is not None
            rate = stream.rate_per_s * scale
            pieces = WINDOW_PS, partial(window_arrivals, arrivals, rate, self._start)
        if pieces is not None and stream.turns is None:
            self._sources.append(_Pieces(*what, children, *pieces))
            return
        if pieces is None:
            found = generate_arrivals(
                arrivals, stream.rate_per_s, horizon_s, rngs[0], rate_scale=scale
            )
        else:  # whole: a turn comes in another piece than the beginning of its conversation
            length_ps, draw = pieces
            numbers = range(-(-horizon_ps // length_ps))
            ps = np.concatenate([draw(k, children.of(stream.name, k)[0]) for k in numbers])
            found = Arrivals(ps[: np.searchsorted(ps, horizon_ps)])
        turns = None
        if stream.turns is not None:
            turns = draw_turns(stream.turns, found.arrival_ps, horizon_ps, rngs[5])
            found = Arrivals(turns.arrival_ps)
        self._sources.append(_Whole(_rows(*what, found, rngs, turns)))

    def _past_of(
        self,
        stream: StreamConfig,
        workload: WorkloadConfig,
        history_s: float,
        children: _Children,
    ) -> NDArray[np.int64]:
        """(bins,) requests before the episode; of arrivals that follow no days, a draw of their own."""
        arrivals, name = stream.arrivals, f"{stream.name}{_BEFORE}"
        if isinstance(arrivals, DayArrivals):
            assert stream.rate_per_s is not None
            rate = stream.rate_per_s * workload.rate_scale
            windows = [
                past_counts(arrivals, rate, self._start, k, children.of(name, k)[0])
                for k in reversed(range(round(history_s) // TEN_MINUTES_S))
            ]
            return np.concatenate(windows)
        found = generate_arrivals(
            arrivals,
            stream.rate_per_s,
            history_s,
            children.of(name)[0],
            rate_scale=workload.rate_scale,
        )
        n_bins = round(history_s) // PAST_BIN_S
        return np.bincount(found.arrival_ps // (PAST_BIN_S * PS_PER_S), minlength=n_bins)

    def between(self, from_ps: int, to_ps: int) -> RequestTable:
        """The requests that arrive in [from, to), which is where it ended before or 0."""
        from_sources = [
            (k, part)
            for k, source in enumerate(self._sources)
            for part in source.parts(from_ps, to_ps)
        ]
        parts = [part for _, part in from_sources]
        empty = (np.zeros(0, np.int16),)
        arrival_ps = np.concatenate([np.zeros(0, np.int64), *(p.arrival_ps for p in parts)])
        order = np.argsort(arrival_ps, kind="stable")
        columns: dict[str, Any] = {
            name: np.concatenate([*empty, *(getattr(p, name) for p in parts)])[order]
            for name in _COLUMNS
            if name != "arrival_ps"
        }
        if self._shares:
            shared = [(k, len(part.arrival_ps), part.prefixes) for k, part in from_sources]
            columns["prefixes"] = self._all.together(shared, order)
        return RequestTable(
            arrival_ps=arrival_ps[order],
            llm_names=self.names[0],
            class_names=self.names[1],
            region_names=self.names[2],
            salt=self.salt,
            past=self._past,
            clock_s=self._clock_s,
            **columns,
        )


_DAY = "\0day"
"""Stands for the draw of the day, which belongs to no part; names of parts have no such letter."""

_BEFORE = "\0before"
"""Follows a part's name: for what it brought before the episode."""


def _random_day(workload: WorkloadConfig, children: _Children) -> int | None:
    """Day of the table on which streams of "random-day" are; None without such streams."""
    drawn = [each for each in workload.hourly_arrivals if each.start_s == "random-day"]
    return int(children.of(_DAY)[1].integers(days_of(drawn[0]))) if drawn else None


def day_drawn(
    workload: WorkloadConfig, horizon_s: float, rng: np.random.Generator, *, any_time: bool = False
) -> int | None:
    """The day that `generate_requests` draws for an episode that starts at a given hour of some day.

    Args:
        workload, horizon_s, rng: as in `generate_requests`; `rng` is moved on.
        any_time: also of `DayArrivals` that start at any time of a day: the day of the start.

    Returns:
        Its number in the table, from 0; None where no day is drawn, or (without `any_time`) any time of it.

    Raises:
        ValueError: there is no such table, or no start.
    """
    children = _Children(rng)
    if workload.day_arrivals:
        arrivals = workload.day_arrivals[0]
        if arrivals.start_s == "random" and not any_time:
            return None
        return draw_start(arrivals, horizon_s, children.of(_DAY)[0]) * TEN_MINUTES_S // DAY_S
    return _random_day(workload, children)


def days_to_draw(
    workload: WorkloadConfig, horizon_s: float, *, any_time: bool = False
) -> int | None:
    """How many days `day_drawn` may draw, each (about) alike; None where it draws none."""
    if workload.day_arrivals:
        arrivals = workload.day_arrivals[0]
        if arrivals.start_s == "random" and not any_time:
            return None
        starts = possible_starts(arrivals, horizon_s)
        return len(np.unique(starts * TEN_MINUTES_S // DAY_S))
    drawn = [each for each in workload.hourly_arrivals if each.start_s == "random-day"]
    return days_of(drawn[0]) if drawn else None


def generate_requests(
    workload: WorkloadConfig,
    *,
    classes: Sequence[SLOClass | str],
    llms: Sequence[str],
    horizon_s: float,
    rng: np.random.Generator,
    regions: Sequence[str] | None = None,
    history_s: float = 0.0,
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
        history_s: so much of what came before is counted (`RequestTable.past`); 0: nothing is.

    Returns:
        The requests sorted by arrival; ties in the order streams, batch queues, jobs, as listed.

    Raises:
        ValueError: an LLM, class, region, table or profile that is not there, a malformed trace, a
            horizon that is not positive; the message names the field.
        OSError: a trace file that cannot be read.
    """
    draw = _Draw(workload, classes, llms, regions, horizon_s, rng, history_s)
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
    history_s: float = 0.0,
) -> Iterator[RequestChunk]:
    """The table of `generate_requests` in pieces, bit for bit, for episodes too long to be held at once.

    Streams of kind `hourly` and `days` are drawn hour by hour or window by window and forgotten; others,
    batch queues and jobs are drawn whole before the first piece.

    Args:
        workload, classes, llms, horizon_s, rng, regions, history_s: as in `generate_requests`.
        chunk_s: length of a piece; the last one may be shorter.

    Raises:
        ValueError, OSError: as `generate_requests`, with the first piece; or a `chunk_s` that is not
            positive.
    """
    if not 0 < chunk_s < np.inf:
        raise ValueError(f"chunk_s = {chunk_s}: must be positive and finite")
    draw = _Draw(workload, classes, llms, regions, horizon_s, rng, history_s)
    end_ps, step_ps = to_ps(horizon_s), max(to_ps(chunk_s), 1)
    first_id = 0
    for from_ps in range(0, end_ps, step_ps):
        to = min(from_ps + step_ps, end_ps)
        requests = draw.between(from_ps, to)
        yield RequestChunk(from_ps / PS_PER_S, to / PS_PER_S, first_id, requests)
        first_id += len(requests)
