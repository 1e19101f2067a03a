"""The case that `advise` answers for: one LLM on one pool of instances under a trace, as scenarios."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from experiments.desk.answer import Target
from llmscale_env._cli import Slip, closest
from llmscale_env._writing import replace_file
from llmscale_env.control.reward import draw_requests
from llmscale_env.scenarios.load import validate_scenario
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.workload.readers import Trace, load_trace
from llmscale_env.workload.requests import PS_PER_S, RequestTable

POOL = "serving"
"""Name of the only pool."""

INTERVAL_S = 5.0
"""Between two decisions. Autoscalers with a longer period of their own keep to it."""

LEAST_SPAN_S = 600.0
"""Of a trace: a first part and a held-out part of five minutes each."""

LEAST_LOADS = 4.0
"""A trace is at least so many loading times long, so that a held-out part sees instances come and go."""

MOST_CLASSES = 16
_BEHIND_S = 1e-6
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
        digest: of what the file holds.
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
        """The trace's span in whole intervals."""
        return INTERVAL_S * max(1.0, np.ceil(self.span_s / INTERVAL_S))

    def tuning(self, load: float) -> Scenario:
        """The first part alone, under `load` times its requests."""
        return _scenario(replace(self, load=load), self.tuned_s, self.tuned_s)

    def whole(self) -> Scenario:
        """Both parts, one after the other."""
        return _scenario(self, self.horizon_s, None)

    def requests(self) -> RequestTable:
        """Those of both parts. The trace does not begin anew where the last interval goes beyond its end."""
        return _requests(self)


@lru_cache(maxsize=4)
def _requests(case: Case) -> RequestTable:
    scenario = case.whole().model_copy(update={"horizon_s": case.span_s + _BEHIND_S})
    return draw_requests(scenario, np.random.default_rng(case.seed))


def _scenario(case: Case, horizon_s: float, to_s: float | None) -> Scenario:
    """One pool behind one router.

    Loading takes `load_s` whatever weights a machine still has, as an engineer's own measurement says.
    Prices make a request that the end cuts off count as late only where it could not be in time any more.

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
            "description": f"A trace, {case.source.digest}",
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


def least_span_s(load_s: float) -> float:
    """The shortest trace that is split into a part to tune on and one to judge on."""
    return max(LEAST_SPAN_S, LEAST_LOADS * load_s)


def split(trace: Trace, load_s: float) -> tuple[float, float]:
    """(span, length of the first part) of a trace, in seconds.

    Raises:
        Slip: it is too short, or nothing arrives in one of the parts.
    """
    path, span_s = trace.path, trace.duration_s
    least_s = least_span_s(load_s)
    if span_s < least_s:
        raise Slip(
            f"trace = {path!r}: spans {span_s:.4g} s with {len(trace)} requests: must be at least "
            f"{least_s:g} s ({LEAST_LOADS:g} times load_s, and {LEAST_SPAN_S:g} s), half to tune on and "
            "half to judge on"
        )
    tuned_s = INTERVAL_S * round(span_s / 2 / INTERVAL_S)
    arrival_s = trace.arrival_ps / PS_PER_S
    # The last arrival ends the trace, and is held out; one of its own says nothing of a part.
    held = int((arrival_s >= tuned_s).sum())
    if held < 2:
        raise Slip(
            f"trace = {path!r}: {held} request{'' if held == 1 else 's'} after its first "
            f"{tuned_s:g} s, where policies are judged: must be at least 2; cut the trace"
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
