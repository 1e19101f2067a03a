"""What a workload is, as frozen and validated objects; scenarios embed them.

Every model refuses unknown fields and says which field is wrong, what it got and what it allows.
`llmscale_env.workload.generate.generate_requests` turns a `WorkloadConfig` into a `RequestTable`;
docs/workloads.md explains the words.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

Name = Annotated[str, Field(min_length=1, max_length=64)]
LlmName = Annotated[str, Field(min_length=1, max_length=1024)]
"""The name of an LLM's card, or the path of its file."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Start = Literal["random"] | NonNegative

MAX_TOKENS = 1_000_000
"""No request may be longer than this: beyond any model's context, it is a slip of units."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SLOClass(_Frozen):
    """A service-level class.

    Attributes:
        name: what streams refer to.
        ttft_s: target for the time to first token, from arrival. For a batch queue it is the
            deadline of its requests, counted from the time at which the queue appears.
        itl_s: target for a request's inter-token latency.
        priority: 0 before 1; only priority-1 requests can be evicted.
        weight: weight of a violation in a reward, relative to the other classes.
        group: classes of one group are shown together, besides each by itself.
    """

    name: Name
    ttft_s: Positive
    itl_s: Positive
    priority: Literal[0, 1] = 0
    weight: NonNegative = 1.0
    group: Name | None = None


INTERACTIVE = SLOClass(name="interactive", ttft_s=10.0, itl_s=0.2, priority=0)
BATCH = SLOClass(name="batch", ttft_s=3600.0, itl_s=2.0, priority=1)
DEFAULT_CLASSES: tuple[SLOClass, ...] = (INTERACTIVE, BATCH)
"""Chiron's two classes (section 6: TTFT 10 s and ITL 200 ms; TTFT one hour and ITL 2 s)."""


class PoissonArrivals(_Frozen):
    """A Poisson process."""

    kind: Literal["poisson"] = "poisson"


class GammaArrivals(_Frozen):
    """A stationary renewal process with Gamma gaps of coefficient of variation `cv`."""

    kind: Literal["gamma"] = "gamma"
    cv: Annotated[float, Field(ge=0.05, le=50)] = 4.0


class MMPPArrivals(_Frozen):
    """A Markov-modulated Poisson process with an on and an off state, started in equilibrium.

    Attributes:
        mean_on_s, mean_off_s: mean (exponential) stay in each state.
        off_rate_fraction: rate while off, as a fraction of the rate while on.
    """

    kind: Literal["mmpp"] = "mmpp"
    mean_on_s: Positive = 30.0
    mean_off_s: Positive = 30.0
    off_rate_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0


class LevelArrivals(_Frozen):
    """A Poisson process whose rate jumps between levels, started in equilibrium.

    What `python -m llmscale_env.traces fit` fits to a trace. Like a trace it has a rate of its own; another
    one is reached as for `counts`, by repeating or dropping requests, so gaps and bursts stay where
    they are.

    Attributes:
        rates_per_s: (n,) rate at each level.
        mean_stays_s: (n,) mean (exponential) stay at each level.
        next: (n, n) chance of each level to follow; the diagonal is 0. None: all others alike.
        jitter_s: the second and further copies of a request are moved by up to this much.
        stands_for: name of the public trace that it imitates; `mixes.replayed` puts that in its place.
    """

    kind: Literal["levels"] = "levels"
    rates_per_s: Annotated[tuple[NonNegative, ...], Field(min_length=2, max_length=32)]
    mean_stays_s: Annotated[tuple[Positive, ...], Field(min_length=2, max_length=32)]
    next: tuple[tuple[NonNegative, ...], ...] | None = None
    jitter_s: NonNegative = 1.0
    stands_for: Name | None = None

    @model_validator(mode="after")
    def _shapes(self) -> LevelArrivals:
        n = len(self.rates_per_s)
        if sum(self.rates_per_s) <= 0:
            raise ValueError(f"rates_per_s = {self.rates_per_s}: one must be above 0")
        if len(self.mean_stays_s) != n:
            raise ValueError(f"mean_stays_s: has {len(self.mean_stays_s)} levels, rates_per_s {n}")
        if self.next is None:
            return self
        if len(self.next) != n or any(len(row) != n for row in self.next):
            raise ValueError(f"next: must be {n} rows of {n} numbers")
        for k, row in enumerate(self.next):
            if row[k] != 0 or abs(sum(row) - 1) > 1e-3:
                raise ValueError(f"next.{k} = {row}: must add up to 1, with 0 on the diagonal")
        return self


class DiurnalArrivals(_Frozen):
    """A Poisson process whose rate follows the time of day.

    Attributes:
        hour_factors: relative rates of the hours of a day (any number of equal parts of the
            period), joined by straight lines between their middles; normalised to mean 1.
        profile: name of a shipped set of hour factors, in place of `hour_factors`.
        amplitude: with neither of them, the rate is `1 + amplitude * cos(...)`.
        peak_s: time in the period at which the sinusoid peaks.
        period_s: length of a day; shorten it to see a day within an episode.
        start_s: time in the period at which the episode starts, or "random".
        noise_cv: standard deviation of a factor (Gamma, mean 1) drawn anew every minute (every
            288th of a shorter period than 4.8 hours); 0 for none, or 0.01 to 5.
    """

    kind: Literal["diurnal"] = "diurnal"
    hour_factors: tuple[NonNegative, ...] | None = None
    profile: Name | None = None
    amplitude: Annotated[float, Field(ge=0, le=1)] = 0.5
    peak_s: NonNegative = 54_000.0
    period_s: Annotated[float, Field(ge=60, allow_inf_nan=False)] = 86_400.0
    start_s: Start = "random"
    noise_cv: Annotated[float, Field(ge=0, le=5)] = 0.0

    @model_validator(mode="after")
    def _one_shape(self) -> DiurnalArrivals:
        if 0 < self.noise_cv < 0.01:
            raise ValueError(f"noise_cv = {self.noise_cv}: must be 0 or at least 0.01")
        hours = self.hour_factors
        if hours is not None and self.profile is not None:
            raise ValueError("hour_factors and profile exclude each other: give one of them")
        if hours is not None and (len(hours) < 2 or sum(hours) <= 0):
            raise ValueError(f"hour_factors = {hours}: needs at least two, not all of them zero")
        return self


class LoadBurst(_Frozen):
    """A time in which more arrives (SageServe, section 7.3.4: eight times as much).

    Attributes:
        at_s: start, from the start of the episode (of its history, if the scenario has one).
        duration_s: length.
        factor: rate during it over the rate otherwise.
    """

    at_s: NonNegative
    duration_s: Positive = 60.0
    factor: Annotated[float, Field(ge=0, le=1000)] = 8.0


class HourlyArrivals(_Frozen):
    """A Poisson process whose rate follows a shipped table of hourly rates, such as a week of a service.

    The rate runs in straight lines between the middles of hours, times a factor that is drawn anew for
    every minute. It is drawn hour by hour, each hour from a generator of its own, so that a long
    episode can be drawn in pieces (`request_chunks`).

    Attributes:
        table, series: name of a shipped rate table, and of one of its rows.
        start_s: time in the table at which the episode starts (its history, if there is one); it wraps round.
            "random-day": midnight of any of its days, the same for all streams of the workload;
            "random": any time, each stream its own.
        noise_cv: standard deviation of the minutes' factor (Gamma, mean 1); 0 for none, or 0.01 to 5.
        spike_share: share of minutes that have a spike instead of such a factor.
        spike_factors: lowest and highest factor of a spike (uniform). The other minutes have so much
            less that the mean stays.
        on_share: share of time in which anything arrives, at 1 / `on_share` times the rate.
        mean_on_s: mean length of such a time (exponential, whole minutes).
        bursts: on top of all that; they raise the mean.
    """

    kind: Literal["hourly"] = "hourly"
    table: Name
    series: Name
    start_s: Literal["random", "random-day"] | NonNegative = 0.0
    noise_cv: Annotated[float, Field(ge=0, le=5)] = 0.0
    spike_share: Annotated[float, Field(ge=0, lt=0.2)] = 0.0
    spike_factors: tuple[Positive, Positive] = (2.0, 5.0)
    on_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    mean_on_s: Annotated[float, Field(ge=60, allow_inf_nan=False)] = 600.0
    bursts: tuple[LoadBurst, ...] = ()

    @model_validator(mode="after")
    def _factors(self) -> HourlyArrivals:
        if 0 < self.noise_cv < 0.01:
            raise ValueError(f"noise_cv = {self.noise_cv}: must be 0 or at least 0.01")
        low, high = self.spike_factors
        if low > high:
            raise ValueError(f"spike_factors = {self.spike_factors}: the first is the lowest")
        if self.spike_share * (low + high) / 2 >= 1:
            raise ValueError(
                f"spike_share = {self.spike_share}: spikes of {low:g} to {high:g} times would be "
                "more than all there is"
            )
        return self


DAYS = 14
"""Days of a shipped table of days."""

TEN_MINUTES_S = 600
"""Length of a window of such a table."""


class DayArrivals(_Frozen):
    """A Poisson process at the ten-minute rates of real days, with the seconds of a real trace within them.

    The stream's `rate_per_s` is the mean over all days of the table. Every `days` stream of a workload is
    at the same time of the same day, which one draw decides. It is drawn window by window, each from a
    generator of its own, so that a long episode can be drawn in pieces (`request_chunks`).

    Attributes:
        table: name of a shipped table of days (`tables.load_days`).
        days: days (1 to 14) in which the whole episode lies; days that follow each other are one stretch.
            What came before the episode (`history_s`) may be of the day before; that before day 1 is taken
            from day 7, a week after it.
        start_s: time of day at which the episode starts, a whole number of ten minutes, or "random": any
            such time of these days.
        seconds: a shipped count table. Within each window arrivals follow a stretch of ten minutes of it,
            from a random second, divided by its own mean: bursts are the trace's, the window's rate is the
            day's. None: even.
    """

    kind: Literal["days"] = "days"
    table: Name
    days: Annotated[tuple[Annotated[int, Field(ge=1, le=DAYS)], ...], Field(min_length=1)] = tuple(
        range(1, DAYS + 1)
    )
    start_s: Literal["random"] | Annotated[float, Field(ge=0, lt=86_400)] = "random"
    seconds: Name | None = None

    @model_validator(mode="after")
    def _starts_with_a_window(self) -> DayArrivals:
        if isinstance(self.start_s, float) and self.start_s % TEN_MINUTES_S:
            raise ValueError(
                f"start_s = {self.start_s:g}: must be a whole number of {TEN_MINUTES_S} s"
            )
        return self


class SpikeArrivals(_Frozen):
    """A Poisson process of the stream's rate, multiplied by `factor` during spikes.

    Attributes:
        factor: rate during a spike over the rate outside.
        duration_s: length of a spike.
        at_s: when the spikes start; empty: at random, with exponential gaps of mean `every_s`.
        every_s: mean time from the end of a spike to the start of the next.
    """

    kind: Literal["spikes"] = "spikes"
    factor: Annotated[float, Field(ge=0, le=1000)] = 5.0
    duration_s: Positive = 30.0
    at_s: tuple[NonNegative, ...] = ()
    every_s: Positive = 300.0


class CountArrivals(_Frozen):
    """The bursts of a real service: a shipped table of its arrivals per second.

    A window of the table (from a random start, wrapping round) is rescaled to the stream's mean
    rate; the arrivals of a bin are placed in it at random.

    Attributes:
        table: name of a shipped count table.
        from_s, to_s: part of the table that is used (to train and test on different times).
        start_s: start of the window within that part, or "random".
        trace_path: the trace file itself: the same window is then replayed request by request,
            with its own times and lengths.
        trace_format: as in `TraceArrivals`.
    """

    kind: Literal["counts"] = "counts"
    table: Name
    from_s: NonNegative = 0.0
    to_s: Positive | None = None
    start_s: Start = "random"
    trace_path: str | None = None
    trace_format: str = "auto"

    @model_validator(mode="after")
    def _part(self) -> CountArrivals:
        if self.to_s is not None and self.to_s <= self.from_s:
            raise ValueError(f"to_s = {self.to_s}: must be above from_s = {self.from_s}")
        return self


class TraceArrivals(_Frozen):
    """Requests of a trace file, cut to a part, stitched end to end, rescaled.

    Attributes:
        path: CSV, JSONL, either gzipped.
        format: "auto", or one of `llmscale_env.workload.readers.FORMATS`.
        sort: sort rows by arrival instead of refusing arrivals that go backwards.
        only_llm: keep the rows of this LLM (as the file names it).
        from_s, to_s: part of the trace that is used.
        start_s: start of the window within that part, or "random".
        rescale: how a stream's `rate_per_s` is reached: "time" stretches or squeezes the time
            axis, "sample" keeps it and repeats or drops requests at random. Without `rate_per_s`
            the trace is replayed as it is.
        jitter_s: with "sample", the second and further copies of a request are moved by up to
            this much.
        hash_block_tokens: tokens that an id of Mooncake's `hash_ids` stands for.
    """

    kind: Literal["trace"] = "trace"
    path: str
    format: str = "auto"
    sort: bool = False
    hash_block_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 512
    only_llm: str | None = None
    from_s: NonNegative = 0.0
    to_s: Positive | None = None
    start_s: Start = 0.0
    rescale: Literal["time", "sample"] = "time"
    jitter_s: NonNegative = 1.0

    @model_validator(mode="after")
    def _part(self) -> TraceArrivals:
        if self.to_s is not None and self.to_s <= self.from_s:
            raise ValueError(f"to_s = {self.to_s}: must be above from_s = {self.from_s}")
        return self


ArrivalConfig = Annotated[
    PoissonArrivals
    | GammaArrivals
    | MMPPArrivals
    | LevelArrivals
    | DiurnalArrivals
    | HourlyArrivals
    | DayArrivals
    | SpikeArrivals
    | CountArrivals
    | TraceArrivals,
    Field(discriminator="kind"),
]


class _Lengths(_Frozen):
    max_input_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = MAX_TOKENS
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = MAX_TOKENS


class TableLengths(_Lengths):
    """Lengths from a shipped joint quantile table; longer ones are clipped to the maxima."""

    kind: Literal["table"] = "table"
    table: Name = "sharegpt"


class FixedLengths(_Lengths):
    """Every request has the same lengths."""

    kind: Literal["fixed"] = "fixed"
    input_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 512
    output_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 128


class LognormalLengths(_Lengths):
    """Log-normal lengths with the given means, log-standard deviations and correlation of logs."""

    kind: Literal["lognormal"] = "lognormal"
    input_mean_tokens: Annotated[float, Field(ge=1, le=MAX_TOKENS)] = 1000.0
    output_mean_tokens: Annotated[float, Field(ge=1, le=MAX_TOKENS)] = 250.0
    input_sigma: Annotated[float, Field(ge=0, le=4)] = 1.0
    output_sigma: Annotated[float, Field(ge=0, le=4)] = 0.8
    log_correlation: Annotated[float, Field(ge=-1, le=1)] = 0.0


class TraceLengths(_Lengths):
    """The lengths that the rows of the trace have: for arrivals that replay a trace."""

    kind: Literal["trace"] = "trace"


def _named(value: Any) -> Any:
    """`lengths: sharegpt` is short for `lengths: {kind: table, table: sharegpt}`."""
    return {"kind": "table", "table": value} if isinstance(value, str) else value


LengthConfig = Annotated[
    TableLengths | FixedLengths | LognormalLengths | TraceLengths, Field(discriminator="kind")
]
DrawnLengths = Annotated[
    TableLengths | FixedLengths | LognormalLengths,
    Field(discriminator="kind"),
    BeforeValidator(_named),
]
"""Those of requests that no trace has."""


class PredictorConfig(_Frozen):
    """Where predicted output lengths come from.

    Attributes:
        kind: "conditional_mean": the mean output of requests with such an input (what a router
            can learn from its own log; of a replayed trace, from the half of its rows that does not
            hold the request, see `log_means`); "noisy": the true length times a log-normal factor
            of mean 1; "oracle": the true length, a bound and nothing that a service could have.
        sigma: log-standard deviation of the factor of "noisy".
    """

    kind: Literal["conditional_mean", "noisy", "oracle"] = "conditional_mean"
    sigma: Annotated[float, Field(ge=0, le=3)] = 0.5


class SystemPromptsConfig(_Frozen):
    """Prompts that begin with one of a few texts, which instances with a prefix cache keep.

    Attributes:
        n: number of different system prompts.
        tokens: length of each; it comes on top of the stream's `lengths`.
        zipf: the k-th most popular has a weight of `k ** -zipf`; 0: all alike.
    """

    n: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 1000
    zipf: Annotated[float, Field(ge=0, le=10)] = 1.0


class TurnsConfig(_Frozen):
    """Conversations: the prompt of a turn is the conversation so far and a new message.

    A stream's `lengths` are those of messages and answers then, and its arrivals the beginnings of
    conversations; its rate is that of requests all the same, so conversations begin `mean` times as rarely.
    Arrivals of turns are drawn beforehand and do not wait for answers.

    Attributes:
        mean: mean number of turns (geometric). The default is ServeGen's mean of conversations with more than
            one (arXiv 2505.09999, section 5); the ShareGPT file behind the table `sharegpt` has 5.4.
        gap_mean_s, gap_sigma: mean time from a turn's arrival to the next one's (ServeGen: about 100 s), and
            the standard deviation of its log (log-normal; ours).
        max_context_tokens: longest prompt with its answer; older turns are left out beyond it.
    """

    mean: Annotated[float, Field(ge=1, le=1000)] = 3.5
    gap_mean_s: Annotated[float, Field(ge=0.001, le=86_400)] = 100.0
    gap_sigma: Annotated[float, Field(ge=0, le=4)] = 1.0
    max_context_tokens: Annotated[int, Field(ge=2, le=MAX_TOKENS)] = 32_768


Regions = Name | Annotated[dict[Name, Positive], Field(min_length=1)]
"""A region, or several with the share of requests that comes from each (of any sum)."""


class StreamConfig(_Frozen):
    """Requests of one LLM and one class with one arrival process.

    Attributes:
        name: unique in the workload; a stream's draws depend on it and on the seed only.
        llm, slo_class: names; None takes them from the trace's own columns.
        rate_per_s: mean rate (for spikes: the rate outside them); None, for `trace`, `counts`,
            `levels` and `hourly` only, is their own rate.
        region: region of the clients, or shares by region: each request (with `turns`, each conversation)
            then draws its own. None: the first of the episode's regions.
        turns: requests are turns of conversations; None: each is by itself.
        system_prompts: what prompts begin with; None: nothing in common.
    """

    name: Name
    llm: LlmName | None
    slo_class: Name | None = "interactive"
    arrivals: ArrivalConfig = PoissonArrivals()
    lengths: LengthConfig = TableLengths()
    rate_per_s: Positive | None = None
    region: Regions | None = None
    turns: TurnsConfig | None = None
    system_prompts: SystemPromptsConfig | None = None

    @field_validator("arrivals", mode="before")
    @classmethod
    def _short_arrivals(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @field_validator("lengths", mode="before")
    @classmethod
    def _short_lengths(cls, value: Any) -> Any:
        return {"kind": "trace"} if value == "trace" else _named(value)

    @model_validator(mode="after")
    def _consistent(self) -> StreamConfig:
        kind = self.arrivals.kind
        replays = kind == "trace" or (
            isinstance(self.arrivals, CountArrivals) and self.arrivals.trace_path is not None
        )
        if self.rate_per_s is None and kind not in ("trace", "counts", "levels", "hourly"):
            raise ValueError(f"rate_per_s is missing: arrivals of kind {kind} need a positive one")
        if self.lengths.kind == "trace" and not replays:
            raise ValueError(
                f"lengths of kind trace need arrivals that replay a trace file, not {kind}"
            )
        for field in ("llm", "slo_class"):
            if getattr(self, field) is None and not replays:
                raise ValueError(f"{field} is missing: only a replayed trace has its own")
        for field in ("turns", "system_prompts"):
            if replays and getattr(self, field) is not None:
                raise ValueError(
                    f"{field}: not with arrivals that replay a trace file, whose own hash_ids or column "
                    "conversation say what its prompts have in common"
                )
        if self.turns is not None and self.system_prompts is not None:
            most = self.turns.max_context_tokens - 2
            if self.system_prompts.tokens > most:
                raise ValueError(
                    f"system_prompts.tokens = {self.system_prompts.tokens}: must be at most {most}, as "
                    f"turns.max_context_tokens is {self.turns.max_context_tokens}"
                )
        return self


class BatchQueueConfig(_Frozen):
    """`n_requests` of one class that arrive together at `at_s`, as a queue found by the cluster.

    Their deadline for the first token is `at_s` plus the TTFT target of their class: a queue with
    another deadline is a queue of another class. `at_s` counts from the episode's start, after its history.
    """

    name: Name
    llm: LlmName
    slo_class: Name = "batch"
    n_requests: Annotated[int, Field(ge=0, le=100_000_000)]
    at_s: NonNegative = 0.0
    lengths: DrawnLengths = TableLengths()
    region: Regions | None = None


class JobsConfig(_Frozen):
    """Batch jobs at odd hours: each is many requests that arrive at once and are due together.

    Attributes:
        name: unique in the workload.
        llm: name.
        classes: names of SLO classes, of which each job draws one; its TTFT target is the job's deadline.
        per_day: mean number of jobs in 24 hours (Poisson, at any time alike).
        n_requests: smallest and largest number of requests of a job (uniform).
        lengths: of its requests.
        backlog: what is left of jobs that came before the episode waits at its start. Of a job that came
            `a` seconds before and has `d` seconds, the share 1 - a / d is left: the work had been spread
            evenly. It is of the class (of these) with the longest target that is no longer than the time
            left; where none is that short, the job is taken to be done.
        region: as for a stream.
    """

    name: Name
    llm: LlmName
    classes: Annotated[tuple[Name, ...], Field(min_length=1, max_length=16)]
    per_day: Annotated[float, Field(ge=0, le=100_000)]
    n_requests: tuple[
        Annotated[int, Field(ge=0, le=10_000_000)], Annotated[int, Field(ge=0, le=10_000_000)]
    ]
    lengths: DrawnLengths = TableLengths()
    backlog: bool = True
    region: Regions | None = None

    @model_validator(mode="after")
    def _smallest_first(self) -> JobsConfig:
        if self.n_requests[0] > self.n_requests[1]:
            raise ValueError(f"n_requests = {list(self.n_requests)}: the first is the smallest")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError(f"classes = {list(self.classes)}: names must be unique")
        return self


class WorkloadConfig(_Frozen):
    """Streams, batch queues and jobs, and how their output lengths are predicted.

    Attributes:
        rate_scale: multiplies every stream's rate and every batch queue's and job's size (one knob for
            "the same service, busier").
    """

    streams: tuple[StreamConfig, ...] = ()
    batch_queues: tuple[BatchQueueConfig, ...] = ()
    jobs: tuple[JobsConfig, ...] = ()
    predictor: PredictorConfig = PredictorConfig()
    rate_scale: Annotated[float, Field(gt=0, le=10_000)] = 1.0

    @model_validator(mode="after")
    def _names(self) -> WorkloadConfig:
        seen: set[str] = set()
        for name in [part.name for part in self.parts]:
            if name in seen:
                raise ValueError(
                    f"name = {name!r}: two streams, batch queues or jobs are called so; "
                    "names must be unique"
                )
            seen.add(name)
        days = self.day_arrivals
        for other in days[1:]:
            if (other.days, other.start_s) != (days[0].days, days[0].start_s):
                raise ValueError(
                    f"days = {list(other.days)}, start_s = {other.start_s}: all streams of kind days must "
                    f"have the same, and one has {list(days[0].days)}, {days[0].start_s}"
                )
        tables = {each.table for each in self.hourly_arrivals if each.start_s == "random-day"}
        if len(tables) > 1:
            raise ValueError(
                f"table = {sorted(tables)}: streams that start on a random day must have the same"
            )
        return self

    @property
    def parts(self) -> tuple[StreamConfig | BatchQueueConfig | JobsConfig, ...]:
        """Everything that brings requests."""
        return (*self.streams, *self.batch_queues, *self.jobs)

    @property
    def day_arrivals(self) -> tuple[DayArrivals, ...]:
        """The arrivals of streams that follow days."""
        found = (stream.arrivals for stream in self.streams)
        return tuple(arrivals for arrivals in found if isinstance(arrivals, DayArrivals))

    @property
    def hourly_arrivals(self) -> tuple[HourlyArrivals, ...]:
        """The arrivals of streams that follow hourly rates."""
        found = (stream.arrivals for stream in self.streams)
        return tuple(arrivals for arrivals in found if isinstance(arrivals, HourlyArrivals))

    @property
    def counts_history(self) -> bool:
        """Whether what came before an episode is counted (`PastRequests`) and not drawn one by one."""
        return bool(self.day_arrivals or self.jobs)

    @property
    def regions(self) -> tuple[str, ...]:
        """Names of the regions that are mentioned, in order of first mention."""
        mentioned: list[str] = []
        for region in [part.region for part in self.parts]:
            if region is not None:
                mentioned += [region] if isinstance(region, str) else list(region)
        return tuple(dict.fromkeys(mentioned))

    def scaled(self, rate_scale: float) -> WorkloadConfig:
        """The same workload with every rate and queue `rate_scale` times as large."""
        changed = {**self.model_dump(), "rate_scale": self.rate_scale * rate_scale}
        return type(self).model_validate(changed)
