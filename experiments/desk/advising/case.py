"""The case that `advise` answers for: one LLM on one pool of instances under a trace, as scenarios."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.desk.targets import Target
from llmscale_env._cli import Slip, closest
from llmscale_env._writing import replace_file
from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.scenarios.load import validate_scenario
from llmscale_env.scenarios.schema import MAX_HORIZON_S, Scenario
from llmscale_env.workload.arrivals import Arrivals, generate_arrivals
from llmscale_env.workload.config import TraceArrivals, TraceLengths
from llmscale_env.workload.generate import draw_lengths, predict_outputs
from llmscale_env.workload.prefixes import replayed
from llmscale_env.workload.readers import Labels, Trace, load_trace
from llmscale_env.workload.requests import PS_PER_S, RequestTable
from llmscale_env.workload.tables import round_tokens

POOL = "serving"
"""Name of the only pool."""

LONG_S, RARE_PER_S = 6 * 3600.0, 0.05
"""So long and so rare in whole seconds, a trace is taken for one in milliseconds: one GPU would be idle."""

INTERVAL_S = 5.0
"""Between two decisions. Autoscalers with a longer period of their own keep to it."""

LEAST_SPAN_S = 600.0
"""Of a trace: a first part and a held-out part of five minutes each."""

LEAST_LOADS = 4.0
"""A trace is at least so many loading times long, so that a held-out part sees instances come and go."""

LEAST_REQUESTS = 20
"""Of each class in each half of a trace: of fewer, a share on time says little. Ours."""

MOST_AFTER_S = 3600.0
"""For which requests are followed after the last arrival of a part."""

MOST_CLASSES = 16
_BEHIND_S = 1e-6
TUNING_SEED = 1_000
"""Draws the requests that the headroom of the search adds. It is not the command's."""

_PLAIN = {
    "arrival": "arrival_time_s",
    "input": "input_tokens",
    "output": "output_tokens",
    "class": "slo_class",
    "conversation": "conversation",
}
_NEEDED = ("arrival", "input", "output")
_MOST_S = 9e9


@dataclass(frozen=True)
class Source:
    """A trace's file, and how it is read.

    Attributes:
        path, format, sort, hash_block_tokens: as `load_trace` takes them.
        digest: of what the file holds, and of the columns that were taken.
    """

    path: str
    format: str = "auto"
    sort: bool = False
    hash_block_tokens: int = 512
    digest: str = ""

    def read(self) -> Trace:
        """The trace.

        Raises:
            ValueError: a malformed row, an unknown format, no usable row.
            OSError: the file cannot be read.
        """
        return load_trace(
            self.path, self.format, self.sort, hash_block_tokens=self.hash_block_tokens
        )


@dataclass(frozen=True)
class Case:
    """All that an outcome depends on but the policy; what-ifs are cases with a field changed.

    Attributes:
        source: of the requests.
        by_class: requests have the classes of the trace; otherwise the one class that there is.
        llm, gpu, tp, iteration_times: what an instance is.
        times_digest: of what the file of iteration times holds; "": none is given.
        targets: of the classes.
        load_s: from an order of an instance until it serves.
        max_gpus: at most so many at a time.
        usd_per_gpu_hour: price; None: none.
        span_s: of the trace.
        tuned_s: its first part, a whole number of `INTERVAL_S`; the rest is held out.
        initial: instances at the start.
        load: requests, over those of the trace: some are repeated, or left out.
        seed: draws which ones.
    """

    source: Source
    by_class: bool
    llm: str
    gpu: str
    tp: int
    iteration_times: str | None
    times_digest: str
    targets: tuple[Target, ...]
    load_s: float
    max_gpus: int
    usd_per_gpu_hour: float | None
    span_s: float
    tuned_s: float
    initial: int = 1
    load: float = 1.0
    seed: int = 0

    @property
    def most(self) -> int:
        """Instances at a time."""
        return self.max_gpus // self.tp

    @property
    def horizon_s(self) -> float:
        """The trace's span in whole intervals; its last request comes before it."""
        return INTERVAL_S * (1 + self.span_s // INTERVAL_S)

    def tuning(self, load: float) -> Part:
        """The first part alone, under `load` times its requests, whatever comes after it."""
        return _part(replace(self, load=load), self.tuned_s, first=True)

    def whole(self) -> Part:
        """Both parts, one after the other."""
        return _part(self, self.horizon_s, first=False)


@dataclass(frozen=True)
class Part:
    """What is simulated: requests up to an end, and time after it in which nothing arrives.

    Attributes:
        scenario: ends when every request has been judged, or `MOST_AFTER_S` after `end_s`.
        requests: all arrive before `end_s`.
        end_s: until then policies order, and GPUs are paid for.
        cut: some requests may still have been in time after the scenario's end. They count as late.
    """

    scenario: Scenario
    requests: RequestTable
    end_s: float
    cut: bool


@lru_cache(maxsize=8)
def _part(case: Case, end_s: float, first: bool) -> Part:
    scenario = _scenario(case, end_s, end_s if first else None)
    requests = _requests(case, scenario, first)
    # After it the first token is late, or the mean time between tokens is above its target.
    classes, of = scenario.classes, requests.slo_class
    ttft_s, itl_s = np.array([c.ttft_s for c in classes]), np.array([c.itl_s for c in classes])
    known_s = requests.arrival_s + ttft_s[of] + requests.output_tokens * itl_s[of]
    after_s = max(0.0, float(known_s.max(initial=0.0)) - end_s)
    cut = after_s > MOST_AFTER_S
    steps = 1 + math.ceil(min(after_s, MOST_AFTER_S) / INTERVAL_S)
    ends = scenario.model_copy(update={"horizon_s": end_s + INTERVAL_S * steps})
    return Part(ends, requests, end_s, cut)


def _requests(case: Case, scenario: Scenario, first: bool) -> RequestTable:
    """Requests of the trace, or of its first part alone, each `case.load` times on average.

    Outputs are predicted by what the first part alone tells of them, so that neither a search nor a verdict
    rests on requests that a service has not seen yet. The trace does not begin anew where the last interval
    goes beyond its end.
    """
    arrivals = scenario.workload.streams[0].arrivals
    assert isinstance(arrivals, TraceArrivals)
    until_s = case.tuned_s if first else case.span_s + _BEHIND_S
    rng = np.random.default_rng(TUNING_SEED if first else case.seed)
    found = generate_arrivals(arrivals, None, until_s, rng, rate_scale=case.load)
    trace, rows, copy = found.trace, found.rows, found.copy
    assert trace is not None
    assert rows is not None
    assert copy is not None
    known = int(np.searchsorted(trace.arrival_ps, round(case.tuned_s * PS_PER_S)))
    log = _first_rows(trace, known)
    if first:
        trace = log
    lengths = TraceLengths()
    inputs, outputs = draw_lengths(lengths, replace(found, trace=trace), rng)
    predicted = np.empty_like(outputs)
    old = rows < known
    seen = Arrivals(found.arrival_ps[old], log, rows[old], copy[old])
    predicted[old] = predict_outputs(
        scenario.workload.predictor, lengths, seen, inputs[old], outputs[old], rng
    )
    predicted[~old] = round_tokens(_mean_outputs(log, inputs[~old]), lengths.max_output_tokens)
    names = tuple(c.name for c in scenario.classes)
    slo_class = np.zeros(len(rows), np.int16)
    if case.by_class:
        assert trace.slo_class is not None
        own = trace.slo_class
        at = [names.index(name) for name in own.names]
        slo_class = np.array(at, np.int16)[own.index[rows]]
    prefixes = None
    if trace.prefixes is not None:
        prefixes = replayed(trace.prefixes, rows, copy, inputs)
    return RequestTable(
        arrival_ps=found.arrival_ps,
        llm=np.zeros(len(rows), np.int16),
        region=np.zeros(len(rows), np.int16),
        slo_class=slo_class,
        input_tokens=inputs,
        output_tokens=outputs,
        predicted_output_tokens=predicted,
        llm_names=scenario.fleet.llms,
        class_names=names,
        region_names=scenario.region_names,
        prefixes=prefixes,
    )


def _first_rows(trace: Trace, count: int) -> Trace:
    """A trace that ends after so many rows."""
    rows = np.arange(count)

    def labels(column: Labels | None) -> Labels | None:
        return None if column is None else column.take(rows)

    return replace(
        trace,
        arrival_ps=trace.arrival_ps[:count],
        input_tokens=trace.input_tokens[:count],
        output_tokens=trace.output_tokens[:count],
        llm=labels(trace.llm),
        slo_class=labels(trace.slo_class),
        prefixes=None if trace.prefixes is None else trace.prefixes.take(rows),
    )


def _mean_outputs(log: Trace, input_tokens: NDArray[np.int32]) -> NDArray[np.float64]:
    """Mean output of the rows of a log with such an input, of requests that are not in it."""
    starts = log.log_means.starts

    def bins(inputs: NDArray[Any]) -> NDArray[np.intp]:
        return np.maximum(np.searchsorted(starts, inputs, side="right") - 1, 0)

    mine = bins(log.input_tokens)
    total = np.bincount(mine, log.output_tokens, len(starts))
    return (total / np.bincount(mine, minlength=len(starts)))[bins(input_tokens)]


def _scenario(case: Case, horizon_s: float, to_s: float | None) -> Scenario:
    """One pool behind one router.

    Loading takes `load_s` whatever weights a machine still has, as an engineer's own measurement says. The
    description tells what the files hold that the scenario names, and so no outcome outlives them.

    Raises:
        ScenarioError: naming the field.
    """
    pool = {
        "name": POOL, "role": "interactive", "llm": case.llm, "gpu": case.gpu, "tp": case.tp,
        "max_instances": case.most, "initial_instances": min(case.initial, case.most),
        "load_s": dict.fromkeys(("ssd", "host", "multicast"), case.load_s),
    }  # fmt: skip
    arrivals = {
        "kind": "trace", "path": case.source.path, "format": case.source.format,
        "sort": case.source.sort, "hash_block_tokens": case.source.hash_block_tokens,
        "to_s": to_s, "rescale": "sample",
    }  # fmt: skip
    stream = {
        "name": "trace", "llm": case.llm, "arrivals": arrivals, "lengths": "trace",
        "slo_class": None if case.by_class else case.targets[0].name,
    }  # fmt: skip
    classes = sorted(case.targets, key=lambda target: (target.ttft_s, target.name))
    price = 2.5 if case.usd_per_gpu_hour is None else case.usd_per_gpu_hour
    return validate_scenario(
        {
            "name": "advise",
            "description": f"Trace {case.source.digest}, iteration times {case.times_digest}",
            "horizon_s": horizon_s,
            "control_interval_s": INTERVAL_S,
            "iteration_times": case.iteration_times,
            "classes": [{"name": c.name, "ttft_s": c.ttft_s, "itl_s": c.itl_s} for c in classes],
            "workload": {"streams": [stream], "rate_scale": case.load},
            "reward": {"prices": {"gpu_hour_usd": price}},
            "fleet": {
                "max_gpus": case.max_gpus,
                "host_keep_alive_s": 0,
                "pools": [pool],
                "routes": [{"kind": "jsq-requests", "pools": [POOL]}],
            },
        }
    )


def by_rooflines(case: Case, gpus: Sequence[str], folder: Path) -> Case:
    """The case with the cards' iteration times of these GPUs, in place of measured ones.

    Args:
        case: its LLM and degree.
        gpus: names of cards.
        folder: where the times are written.
    """
    from llmscale_env.calibrate import write_models

    models = [iteration_time_model(case.llm, gpu, case.tp, "roofline") for gpu in gpus]
    digest = hashlib.sha256(repr(models).encode()).hexdigest()[:16]
    path = folder / f"rooflines-{digest}.json"
    # A file's times come before the shipped ones only as those of a user.
    write_models(path, tuple(replace(model, kind="user") for model in models))
    return replace(case, iteration_times=str(path), times_digest=digest)


def least_span_s(load_s: float) -> float:
    """The shortest trace that is split into a part to tune on and one to judge on."""
    return max(LEAST_SPAN_S, LEAST_LOADS * load_s)


def split(trace: Trace, load_s: float) -> tuple[float, float]:
    """(span, length of the first part) of a trace, in seconds.

    Raises:
        Slip: it is too short, or too few requests of a class arrive in one of the parts.
    """
    path, span_s = trace.path, trace.duration_s
    least_s = least_span_s(load_s)
    if span_s < least_s:
        raise Slip(
            f"trace = {path!r}: spans {span_s:.4g} s with {len(trace)} requests: must be at least "
            f"{least_s:g} s ({LEAST_LOADS:g} times load_s, and {LEAST_SPAN_S:g} s), half to tune on and "
            "half to judge on"
        )
    whole_numbers = bool((trace.arrival_ps % PS_PER_S == 0).all())
    if span_s > MAX_HORIZON_S or (
        whole_numbers and span_s > LONG_S and len(trace) < RARE_PER_S * span_s
    ):
        raise Slip(
            f"trace = {path!r}: its arrivals span {span_s / 86_400:.3g} days at {len(trace) / span_s:.2g} "
            f"requests/s: must be seconds, at most {MAX_HORIZON_S / 86_400:g} days; are they milliseconds?"
        )
    tuned_s = INTERVAL_S * round(span_s / 2 / INTERVAL_S)
    held = trace.arrival_ps >= round(tuned_s * PS_PER_S)
    names: tuple[str, ...] = ("",)
    index = np.zeros(len(trace), np.int64)
    if trace.slo_class is not None:
        names, index = trace.slo_class.names, trace.slo_class.index
    for rows, where in ((~held, "in"), (held, "after")):
        for name, count in zip(names, np.bincount(index[rows], minlength=len(names)), strict=True):
            if count < LEAST_REQUESTS:
                of, whole = f" of class {name!r}", "; columns= without class takes all for one"
                raise Slip(
                    f"trace = {path!r}: {count} request{'' if count == 1 else 's'}{of if name else ''} "
                    f"{where} its first {tuned_s:g} s: must be at least {LEAST_REQUESTS} in each half"
                    f"{whole if name else '; cut the trace'}"
                )
    return span_s, tuned_s


def digest_of(path: Path, key: str) -> str:
    """What a file holds, in 16 hexadecimal digits.

    Raises:
        Slip: it is no file, or cannot be read.
    """
    if not path.is_file():
        why = "is no file that can be read" if path.exists() else "there is no such file"
        raise Slip(f"{key} = {str(path)!r}: {why}")
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise Slip(f"{key} = {str(path)!r}: cannot be read ({error.strerror})") from None


def columns_of(text: str) -> dict[str, str]:
    """What `columns=arrival:ts,input:prompt,output:gen` says.

    Raises:
        Slip: another form, an unknown or missing part, one given twice.
    """
    form = f"must be some of {','.join(f'{name}:COLUMN' for name in _PLAIN)}"
    found: dict[str, str] = {}
    for part in text.split(","):
        name, colon, column = part.partition(":")
        if name not in _PLAIN or not colon or not column:
            raise Slip(f"columns = {text!r}: {part!r}: {form}")
        if name in found:
            raise Slip(f"columns = {text!r}: {name} is given twice")
        found[name] = column
    for name in _NEEDED:
        if name not in found:
            raise Slip(f"columns = {text!r}: {name} is missing; {form}")
    return found


def to_plain(path: Path, columns: Mapping[str, str], place: Path) -> Path:
    """Write a table of requests with other names as a trace that every command reads.

    Args:
        path: CSV with a header, or JSON lines; either gzipped.
        columns: names there of `arrival` (seconds, or a time stamp), `input`, `output`, and perhaps `class`
            and `conversation`.
        place: where the trace goes.

    Raises:
        Slip: the file is no table, or a column is missing or holds something else.
    """
    frame = _table(path)
    made = {}
    for name, column in columns.items():
        if column not in frame.columns:
            known = [str(c) for c in frame.columns]
            raise Slip(
                f"columns = {name}:{column}: {path} has no such column{closest(column, known)}"
            )
        made[_PLAIN[name]] = frame[column]
    made["arrival_time_s"] = _seconds(frame[columns["arrival"]], columns["arrival"])
    for name in ("input", "output"):
        made[_PLAIN[name]] = _tokens(frame[columns[name]], columns[name])
    plain = frame.iloc[:, :0].assign(**made)
    return replace_file(place, lambda part: plain.to_csv(part, index=False))


def keep_plain(made: Path, source: Path, place: Path) -> Path:
    """Copy a plain trace to its place, which is never the file that it was made of.

    Raises:
        Slip: it would be.
    """
    if place.exists() and place.samefile(source):
        raise Slip(f"out: {place} is the trace itself; choose another folder, or copy the trace")
    return replace_file(place, lambda part: shutil.copyfile(made, part))


def _table(path: Path) -> Any:
    import gzip
    import json
    import zlib

    import pandas as pd

    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rt") if zipped else path.open(encoding="utf-8") as lines:
            if lines.read(1) == "{":
                lines.seek(0)
                return pd.DataFrame([json.loads(line) for line in lines if line.strip()])
        return pd.read_csv(path, skipinitialspace=True, compression="gzip" if zipped else None)
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise Slip(f"trace = {str(path)!r}: is no table: {error}") from None


def _seconds(values: Any, column: str) -> Any:
    """Arrivals as seconds since the first one; exact where they count from 1970."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(values):
        bad = ~(values.abs() < _MOST_S)
        if bad.any():
            row = int(np.argmax(bad.to_numpy()))
            raise Slip(
                f"columns = arrival:{column}: row {row + 1} has {values.iloc[row]}: must be seconds, or a "
                "time stamp such as 2024-05-10 00:00:00.5"
            )
        return (values - values.min()).round(9)
    try:
        stamps = pd.to_datetime(values, format="ISO8601", utc=True)
    except (ValueError, TypeError) as error:
        raise Slip(
            f"columns = arrival:{column}: must be seconds, or time stamps as in ISO 8601 ({error})"
        ) from None
    if stamps.isna().any():
        row = int(np.argmax(stamps.isna().to_numpy()))
        raise Slip(f"columns = arrival:{column}: row {row + 1} has none")
    return (stamps - stamps.min()).dt.total_seconds()


def _tokens(values: Any, column: str) -> Any:
    import pandas as pd

    numbers = pd.to_numeric(values, errors="coerce")
    bad = ~((numbers >= 0) & (numbers == np.floor(numbers)) & (numbers < 2**31))
    if bad.any():
        row = int(np.argmax(bad.to_numpy()))
        raise Slip(
            f"columns: {column}: row {row + 1} has {values.iloc[row]!r}: must be a whole number of tokens, "
            "0 or more"
        )
    return numbers.astype(np.int64)
