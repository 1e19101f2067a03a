"""A trace from what Prometheus keeps of vLLM's metrics.

Metrics count requests, and know none of them. So a part of the trace is measured, and a part is drawn:

- Arrivals per step are measured. vLLM counts requests when they end. So those that arrived until some time
  are those that had ended, and those that were running or waiting then: vLLM's histograms of lengths, and the
  gauges `num_requests_running` and `num_requests_waiting`, over all pods. A request that was aborted, or was
  lost with its pod, falls out of both, and so out of the trace.
- Within a step, times are drawn evenly.
- Lengths are those of the requests that ended, in their order: the first to arrive is taken for the first
  that ended. Of each step the histograms `request_prompt_tokens` and `request_generation_tokens` say how
  many requests had a length in each bucket, and how many tokens they had in all. Lengths are drawn evenly in
  their buckets, and then moved in them until the tokens add up. Prompts and answers are drawn apart: what
  they have to do with each other is lost.
- Requests that had not ended at the end take lengths of others, drawn at random.

Counters that begin anew, pods that come and go, and missed scrapes are handled series by series. A counter
that falls has begun at 0, one that was not there before began at 0 too, and one that is missing for a while
goes on where it was.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmscale_env._writing import replace_file
from llmscale_env.workload.served.client import (
    MOST_COUNTED,
    MOST_INSIDE,
    OUTPUTS,
    PROMPTS,
    RUNNING,
    WAITING,
    Prometheus,
    PrometheusError,
    is_address,
    label_matchers,
    series_of,
    sound,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_POINTS = 10_000
"""Of a series in one answer; Prometheus gives no more than 11,000."""

MOST_STEPS = 200_000
TIMEOUT_S = 60.0
MOST_BYTES = 2**28
MOST_REQUESTS = 10_000_000
"""Of a trace; it is made in memory."""

MOST_TOKENS = 2**30
"""Of a request on average; more are no tokens."""

_OPEN_BUCKET_TOKENS = 2**20
"""Where the bucket without an end ends, if the sum of tokens does not say that it goes further."""


@dataclass(frozen=True)
class Drawn:
    """A trace that was made of metrics.

    Attributes:
        arrival_s: (n,) since the beginning of the range, ascending.
        input_tokens, output_tokens: (n,) at least 1.
        step_s: width of the steps in which arrivals were counted.
        ended: requests that ended in the range.
        open_at_start, open_at_end: requests in the system.
        gaps: steps in which a series was missing that was there before and after.
    """

    arrival_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    step_s: float
    ended: int
    open_at_start: int
    open_at_end: int
    gaps: int

    def __len__(self) -> int:
        return len(self.arrival_s)


@dataclass(frozen=True)
class Series:
    """Values of a metric's series at the ends of steps; NaN where one is missing.

    Attributes:
        labels: of each series.
        values: (series, steps + 1), the first column at the beginning of the range.
    """

    labels: tuple[dict[str, str], ...]
    values: Floats


def read_time(text: str, now_s: float) -> float:
    """Unix seconds from `now`, `now-2h`, seconds, or a date with a time (UTC where no zone is given).

    Raises:
        ValueError: none of them.
    """
    if found := re.fullmatch(r"now(?:-(.+))?", text):
        return now_s - (read_duration(found[1]) if found[1] else 0.0)
    try:
        seconds = float(text)
    except ValueError:
        at = datetime.datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp()
    if not math.isfinite(seconds):
        raise ValueError(f"{text!r}: no time")
    return seconds


def read_duration(text: str) -> float:
    """Seconds from `15s`, `5m`, `2h`, `1d` or a number of seconds.

    Raises:
        ValueError: none of them, or not above 0.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h|d|)", text)
    if not found or not 0 < float(found[1]) < math.inf:
        raise ValueError(f"{text!r}: no duration such as 15s, 5m, 2h or 1d")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}[found[2]]


def trace_of_metrics(
    url: str,
    from_s: float,
    to_s: float,
    step_s: float = 15.0,
    selector: str = "",
    seed: int = 0,
    *,
    ask: Callable[[str, dict[str, str]], Any] | None = None,
    after_each: Callable[[], object] = lambda: None,
) -> Drawn:
    """Ask Prometheus for vLLM's metrics in a range of time, and draw a trace from them.

    Args:
        url: of the server, such as http://localhost:9090.
        from_s, to_s: Unix seconds; the range is cut to whole steps.
        step_s: width of the steps; at least the interval of scrapes, or steps between scrapes look empty.
        selector: labels as PromQL has them between braces, such as `namespace="prod"`.
        seed: of what is drawn.
        ask: in place of HTTP: (path, parameters) to the decoded answer.
        after_each: called after each of the six metrics (a progress bar).

    Raises:
        PrometheusError: no answer, a refusal, no such metrics, several models, values that are none of
            theirs, too many requests, or none.
    """
    for key, value in (("from", from_s), ("to", to_s), ("step", step_s)):
        if not math.isfinite(value) or (key == "step" and value <= 0):
            raise PrometheusError(f"{key} = {value:g}: must be a number of seconds")
    if not 1 <= (to_s - from_s) / step_s < MOST_STEPS + 1:
        raise PrometheusError(
            f"from and to are {to_s - from_s:g} s apart: must be 1 to {MOST_STEPS:,} steps of {step_s:g} s"
        )
    steps = int((to_s - from_s) // step_s)
    try:
        selector = label_matchers(selector) if selector else ""
    except ValueError as error:
        raise PrometheusError(f"selector = {selector!r}: {error}") from None
    get = ask or _http(url)

    def series(metric: str) -> Series:
        most = MOST_INSIDE if metric in (RUNNING, WAITING) else MOST_COUNTED
        found = _range(get, f"{metric}{{{selector}}}", from_s, steps, step_s, most)
        after_each()
        return found

    gauges = [series(RUNNING), series(WAITING)]
    counted = {m: (series(f"{m}_bucket"), series(f"{m}_sum")) for m in (PROMPTS, OUTPUTS)}
    for metric, (buckets, _) in counted.items():
        if not buckets.labels:
            raise PrometheusError(
                f"no series {metric}_bucket{{{selector}}} in that time; are vLLM's pods scraped there?"
            )
    models = sorted(
        {labels["model_name"] for labels in counted[PROMPTS][0].labels if "model_name" in labels}
    )
    if len(models) > 1:
        raise PrometheusError(
            f'several models: {", ".join(models)}; choose one, as in selector=model_name="{models[0]}"'
        )
    gaps = sum(_gaps(s.values) for s in (*gauges, *(s for pair in counted.values() for s in pair)))
    inside = np.zeros(steps + 1)
    for gauge in gauges:
        inside += np.nan_to_num(_held(gauge.values)).sum(axis=0) if gauge.labels else 0.0
    _at_most(float(inside.max()), "that run and wait at once")
    rng = np.random.default_rng(seed)
    lengths = {}
    for metric, (buckets, totals) in counted.items():
        tokens = _increase(totals).sum(axis=0) if totals.labels else None
        lengths[metric] = _lengths(*_by_bucket(buckets), tokens, rng)
    ended = np.minimum(*(np.array([len(step) for step in lengths[m]]) for m in (PROMPTS, OUTPUTS)))
    inputs, outputs = (
        np.concatenate(
            [step[:n] for step, n in zip(lengths[m], ended, strict=True)] or [np.zeros(0, np.int64)]
        )
        for m in (PROMPTS, OUTPUTS)
    )
    arrived = np.append(0, np.cumsum(ended)) + np.rint(inside).astype(np.int64)
    # Whoever fell out later was never there: no step has arrivals below 0.
    arrived = np.minimum.accumulate(arrived[::-1])[::-1]
    counts = np.diff(arrived)
    n = int(counts.sum())
    if n == 0:
        raise PrometheusError("no request arrived in that time")
    start = np.repeat(np.arange(steps) * step_s, counts)
    arrival_s = np.sort(start + rng.random(n) * step_s)
    at_start = min(round(float(inside[0])), len(inputs))
    rows = np.arange(at_start, at_start + n)
    if not len(inputs):
        raise PrometheusError("no request ended in that time, so nothing is known of lengths")
    unknown = rows >= len(inputs)
    rows[unknown] = rng.integers(0, len(inputs), int(unknown.sum()))
    return Drawn(
        arrival_s=np.round(arrival_s, 6),
        input_tokens=np.maximum(inputs[rows], 1),
        output_tokens=np.maximum(outputs[rows], 1),
        step_s=step_s,
        ended=int(ended.sum()),
        open_at_start=round(float(inside[0])),
        open_at_end=round(float(inside[-1])),
        gaps=gaps,
    )


def write_trace(path: Path, drawn: Drawn) -> Path:
    """Write a plain CSV, whole or not at all."""

    def write(part: Path) -> None:
        with part.open("w", encoding="utf-8") as file:
            file.write("arrival_time_s,input_tokens,output_tokens\n")
            columns = (drawn.arrival_s, drawn.input_tokens, drawn.output_tokens)
            for at, given, made in zip(*(c.tolist() for c in columns), strict=True):
                file.write(f"{at:.6f},{given},{made}\n")

    return replace_file(path, write)


# --- asking -------------------------------------------------------------------------------------------


def _http(url: str) -> Callable[[str, dict[str, str]], Any]:
    """Asks a server; what it refuses names it."""
    if not is_address(url):
        raise PrometheusError(
            f"prometheus = {url!r}: must be an address such as http://localhost:9090"
        )
    server = Prometheus(url, TIMEOUT_S, most_bytes=MOST_BYTES)

    def ask(path: str, parameters: dict[str, str]) -> Any:
        try:
            return server.ask(path, parameters)
        except PrometheusError as error:
            raise PrometheusError(f"prometheus = {url!r}: {error}") from None

    return ask


def _range(
    get: Callable[[str, dict[str, str]], Any],
    query: str,
    from_s: float,
    steps: int,
    step_s: float,
    most: float,
) -> Series:
    """The series of a query at the ends of all steps, and at the beginning.

    Raises:
        PrometheusError: no answer, or values that are none of a metric from 0 to `most`.
    """
    place: dict[tuple[tuple[str, str], ...], int] = {}
    rows: list[Floats] = []
    for first in range(0, steps + 1, MOST_POINTS):
        last = min(first + MOST_POINTS - 1, steps)
        answer = get(
            "/api/v1/query_range",
            {
                "query": query,
                "start": f"{from_s + first * step_s:.3f}",
                "end": f"{from_s + last * step_s:.3f}",
                "step": f"{step_s:g}",
            },
        )
        try:
            found = series_of(answer)
        except PrometheusError as error:
            raise PrometheusError(f"{query}: {error}") from None
        for each in found:
            key = tuple(sorted((k, v) for k, v in each.labels.items() if k != "__name__"))
            if key not in place:
                place[key] = len(rows)
                rows.append(np.full(steps + 1, np.nan))
            for at, value in zip(each.times_s, each.values, strict=True):
                k = round((at - from_s) / step_s)
                if not first <= k <= last:
                    raise PrometheusError(f"{query}: a value of {at:.3f}, which was not asked for")
                if not (sound(value, most) or math.isnan(value)):  # NaN: none was counted
                    raise PrometheusError(f"{query}: {value:g}, which is no count")
                rows[place[key]][k] = value
    values = np.array(rows) if rows else np.zeros((0, steps + 1))
    return Series(tuple(dict(key) for key in place), values)


def _at_most(n: float, which: str) -> None:
    if n > MOST_REQUESTS:
        raise PrometheusError(f"{n:,.0f} requests {which}: at most {MOST_REQUESTS:,} make a trace")


# --- counters and gauges ------------------------------------------------------------------------------


def _held(values: Floats) -> Floats:
    """Each series with its last value in the gaps between its first and its last."""
    made = values.copy()
    for row in made:
        there = np.flatnonzero(~np.isnan(row))
        if len(there):
            at = np.arange(there[0], there[-1] + 1)
            row[at] = row[there[np.searchsorted(there, at, side="right") - 1]]
    return made


def _gaps(values: Floats) -> int:
    """How often a series is missing between its first and its last value."""
    return int((np.isnan(values) & ~np.isnan(_held(values))).sum())


def _increase(series: Series) -> Floats:
    """(series, steps) by how much each counter rose in each step.

    All counters of a pod begin anew together: a small one may have caught up, and would not show it.
    """
    values = series.values
    made = np.zeros((values.shape[0], max(values.shape[1] - 1, 0)))
    known = ~np.isnan(values)
    if not known.any():
        return made
    first_of_all = int(np.flatnonzero(known.any(axis=0))[0])
    held = _held(values)
    before = np.roll(held, 1, axis=1)
    before[:, 0] = held[:, 0]
    fell = held < before
    pods = [_pod(labels) for labels in series.labels]
    anew = {pod: np.zeros(values.shape[1], dtype=bool) for pod in pods}
    for pod, row in zip(pods, fell, strict=True):
        anew[pod] |= row
    for k, (row, pod) in enumerate(zip(held, pods, strict=True)):
        there = np.flatnonzero(~np.isnan(row))
        if not len(there):
            continue
        # What was there from the beginning has counted before; what comes later begins at 0.
        if there[0] > first_of_all:
            made[k, there[0] - 1] = row[there[0]]
        later = there[1:]
        made[k, later - 1] = np.where(anew[pod][later], row[later], row[later] - row[later - 1])
    return made


def _pod(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What tells pods apart: all labels but that of a bucket."""
    return tuple(sorted((key, value) for key, value in labels.items() if key != "le"))


def _by_bucket(buckets: Series) -> tuple[Floats, Ints]:
    """(upper ends of the buckets, (steps, buckets) requests whose length is in each), over all pods."""
    pods: dict[tuple[tuple[str, str], ...], dict[float, Floats]] = {}
    risen = _increase(buckets)
    for labels, row in zip(buckets.labels, risen, strict=True):
        try:
            end = float(labels["le"])
            if not (0 <= end <= MOST_TOKENS or end == math.inf):
                raise ValueError
        except (KeyError, ValueError):
            raise PrometheusError(f"a bucket without a number of tokens le: {labels}") from None
        pods.setdefault(_pod(labels), {})[end] = row
    ends = sorted({end for mine in pods.values() for end in mine})
    counts = np.zeros((risen.shape[1], len(ends)))
    for mine in pods.values():
        before = np.zeros(risen.shape[1])
        for k, end in enumerate(ends):
            if end in mine:
                counts[:, k] += np.maximum(mine[end] - before, 0.0)
                before = np.maximum(mine[end], before)
    _at_most(float(counts.sum()), "that ended")
    return np.array(ends), np.rint(counts).astype(np.int64)


def _lengths(
    ends: Floats, counts: Ints, tokens: Floats | None, rng: np.random.Generator
) -> list[Ints]:
    """Of each step the lengths of the requests that ended in it, in any order.

    Args:
        ends: ascending upper ends of the buckets, the last one infinite.
        counts: (steps, buckets).
        tokens: (steps,) their sums; None: not known.
        rng: for lengths within buckets, and their order.

    Raises:
        PrometheusError: more tokens than so many requests can have.
    """
    below = np.append(0.0, ends[:-1])
    low = np.floor(below).astype(np.int64) + 1  # one without any token counts as one with one
    made = []
    for k, row in enumerate(counts):
        n = int(row.sum())
        total = None if tokens is None or np.isnan(tokens[k]) else round(float(tokens[k]))
        if total is not None and total > n * MOST_TOKENS > 0:
            raise PrometheusError(f"{n} requests that ended in a step have {total:,} tokens")
        least = np.repeat(low, row)
        most = np.where(np.isfinite(ends), np.floor(ends), _OPEN_BUCKET_TOKENS)
        if total is not None:
            most = np.where(np.isfinite(ends), most, np.maximum(min(total, MOST_TOKENS), low))
        elif len(low):
            most = np.where(np.isfinite(ends), most, 2 * low)
        high = np.maximum(np.repeat(most.astype(np.int64), row), least)
        x = rng.integers(least, high, endpoint=True) if n else np.zeros(0, np.int64)
        made.append(rng.permutation(_moved(x, least, high, total)))
    return made


def _moved(x: Ints, least: Ints, most: Ints, total: int | None) -> Ints:
    """Whole numbers between `least` and `most` that add up to `total` as far as these allow, moved alike."""
    if total is None or not len(x):
        return x
    lack = min(max(total, int(least.sum())), int(most.sum())) - int(x.sum())
    room = (most - x) if lack > 0 else (x - least)
    if lack == 0 or room.sum() == 0:
        return x
    # Shares of a running sum, rounded: they add up, and none goes beyond its room.
    reach, of = [0, *np.cumsum(room).tolist()], int(room.sum())
    moved = np.diff([each * abs(lack) // of for each in reach])
    return x + moved if lack > 0 else x - moved
