"""What `llmscale advise` finds out, as it stands in `answer.json`: what page, compare and deploy read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from experiments.desk.targets import Target
from llmscale_env._cli import Slip
from llmscale_env._reading import Unreadable, read_json

FORMAT = 1
"""Of the file; another one is refused."""


class Part(BaseModel):
    """A frozen part of an answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Question(Part):
    """What was asked.

    Attributes:
        trace: path of the file.
        requests: in it.
        span_s: from its start to its end.
        tuned_s: of those, the first seconds that policies were tuned on; the rest is held out.
        llm, gpu: cards; `tp` GPUs per instance.
        load_s: from an order of an instance until it serves.
        max_gpus: at most so many at a time.
        usd_per_gpu_hour: price; None: none was given, and no dollars are told.
        words: of the command line, to run it again.
        control_interval_s: between two decisions of a policy; None: not told.
    """

    trace: str
    requests: int
    span_s: float
    tuned_s: float
    llm: str
    gpu: str
    tp: int
    load_s: float
    max_gpus: int
    usd_per_gpu_hour: float | None
    targets: tuple[Target, ...]
    words: tuple[str, ...]
    control_interval_s: float | None = None


class Outcome(Part):
    """How a policy did on a part of the trace.

    Attributes:
        attainment: per class, share of its requests on time; None where it had none.
        gpu_hours: billed, loading included.
        usd: None without a price.
        scaling_actions: orders that changed the number of instances.
        worst_five_minutes: lowest share on time of a class among the arrivals of any five minutes.
        ttft_p99_s, itl_p99_s: per class; None where it had none.
        mean_gpus, peak_gpus: held.
    """

    attainment: dict[str, float | None]
    gpu_hours: float
    usd: float | None
    scaling_actions: int
    worst_five_minutes: float | None
    ttft_p99_s: dict[str, float | None]
    itl_p99_s: dict[str, float | None]
    mean_gpus: float
    peak_gpus: int


class Decision(Part):
    """An order that changed something, and why."""

    time_s: float
    instances: int
    reason: str


class Series(Part):
    """A policy over the held-out part; lists of equal length, a value per interval of `interval_s`.

    Attributes:
        start_s: since the start of the trace.
        arrivals_per_s: requests.
        ready, loading: instances at the end of the interval.
        waiting: requests that wait at its end; `running`: that are served.
        on_time: per class, share of the arrivals of the interval that were on time; None without arrivals.
        decisions: orders that changed something.
    """

    start_s: float
    interval_s: float
    arrivals_per_s: tuple[float, ...]
    ready: tuple[int, ...]
    loading: tuple[int, ...]
    waiting: tuple[int, ...]
    running: tuple[int, ...]
    on_time: dict[str, tuple[float | None, ...]]
    decisions: tuple[Decision, ...]

    @model_validator(mode="after")
    def _even(self) -> Series:
        parts = (self.ready, self.loading, self.waiting, self.running, *self.on_time.values())
        if any(len(part) != len(self.arrivals_per_s) for part in parts):
            raise ValueError("the lists of a series must be of one length")
        return self


class Ranked(Part):
    """A policy in the ranking, the best first.

    Attributes:
        policy: name in the registry, such as `hpa`.
        settings: its tuned parameters.
        spelled: what `policies=` of other commands takes, such as `hpa:kv_target=0.5`.
        tuned: outcome on the first part.
        held_out: outcome on the rest, which decides.
        keeps: whether every class reaches its target on the held-out part.
        needs: what would reach the target, in a sentence; "" where it is kept.
        series: over the held-out part.
        runs_on: what runs it on a real cluster, such as `HPA`, or `nothing yet`; "": not told.
    """

    policy: str
    settings: dict[str, Any]
    spelled: str
    tuned: Outcome
    held_out: Outcome
    keeps: bool
    needs: str
    series: Series
    runs_on: str = ""


class Fixed(Part):
    """The least fixed fleet that keeps every target on the held-out part: found with hindsight.

    Attributes:
        instances: of `gpus` GPUs together, which may be more than `Question.max_gpus`.
        batch_limit: running requests per instance; None: the engine's own.
        gpu_hours: of the held-out part.
        usd: None without a price.
    """

    instances: int
    gpus: int
    batch_limit: int | None
    gpu_hours: float
    usd: float | None


class WhatIf(Part):
    """The same with one thing changed, on the held-out part.

    Attributes:
        group: what is changed: `load`, `loading`, `gpu` or `slo`.
        value: to what, such as `x2`, `180 s`, `h100-80gb` or `half`.
        policy: as in the ranking.
        outcome: of its tuned settings, unchanged.
        keeps: whether every class reaches its target.
    """

    group: str
    value: str
    policy: str
    outcome: Outcome
    keeps: bool


class Answer(Part):
    """All of it.

    Attributes:
        version: of llmscale.
        rests_on: sentences: where iteration times come from, how much of the trace was simulated, in how
            many distinct episodes.
        winner: the policy that keeps every target with the fewest GPU-hours; where none does, the first
            of the ranking.
        fixed: what a fixed fleet would have taken; None: none keeps every target, or it is not told.
    """

    format: int = FORMAT
    version: str
    question: Question
    rests_on: tuple[str, ...]
    winner: str
    ranking: tuple[Ranked, ...]
    what_ifs: tuple[WhatIf, ...]
    fixed: Fixed | None = None

    @model_validator(mode="after")
    def _sound(self) -> Answer:
        policies = [ranked.policy for ranked in self.ranking]
        if self.winner not in policies or len(set(policies)) < len(policies):
            raise ValueError("the ranking must have the winner, and every policy once")
        return self

    @property
    def affordable(self) -> Fixed | None:
        """`fixed`, if `max_gpus` allows it."""
        fixed = self.fixed
        return fixed if fixed is not None and fixed.gpus <= self.question.max_gpus else None

    def of(self, policy: str) -> Ranked:
        """A policy of the ranking.

        Raises:
            KeyError: it is not in the ranking.
        """
        return {ranked.policy: ranked for ranked in self.ranking}[policy]


def read_answer(path: Path) -> Answer:
    """The answer in a file.

    Raises:
        Slip: the file cannot be read, is no answer, or is one of another format.
    """
    try:
        found = read_json(path)
    except Unreadable as error:
        raise Slip(f"{path}: {error}") from None
    if not isinstance(found, dict) or "format" not in found or "ranking" not in found:
        raise Slip(f"{path}: is no answer of `llmscale advise`")
    if found["format"] != FORMAT:
        raise Slip(
            f"{path}: format = {found['format']!r}: must be {FORMAT}; write it anew with `llmscale advise`"
        )
    try:
        return Answer.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "answer"
        message = first["msg"].removeprefix("Value error, ")
        raise Slip(f"{path}: {where}: {message}") from None
