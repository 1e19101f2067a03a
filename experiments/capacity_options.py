"""The command line of `experiments.capacity`, checked."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baselines import PolicyError, make_policy
from baselines.make import PLACEMENT_POLICIES
from baselines.parameters import parse_policy, split_policies
from experiments.capacity_load import parts_of, stream_of, trace_of, window
from experiments.capacity_serve import scenario_of
from experiments.desk.targets import times_of
from experiments.output import RESULTS
from llmscale_env._cli import Slip, check_folder, flag, needs, number, one_of, parse_options, whole
from llmscale_env.cluster.cards import gpu_card, is_path, llm_card
from llmscale_env.cluster.kv import TP_DEGREES
from llmscale_env.scenarios.load import ScenarioError
from llmscale_env.workload import tables
from llmscale_env.workload.requests import PS_PER_S

MACHINE_WIDE = "machine-wide"
"""Default vLLM: all GPUs of a host are one worker."""

MOST_WINDOWS = 1000

FEW_WINDOWS = 10
"""Of load that is drawn, and of a trace that is too much work."""

MOST_WORK = 100_000
"""Requests of a trace, times policies and degrees, up to which all of it is simulated by default."""

WORK_PER_S = {"aladdin": 100}
"""What a second of a trace is beside its requests, of policies that decide several times a second."""

KEYS = (
    "trace", "format", "sort", "hash_block_tokens", "rate_per_s", "lengths", "arrivals", "slo", "policy",
    "attainment", "llm", "gpu", "iteration_times", "tp", "gpus_per_host", "max_gpus", "batch_limit",
    "predictor", "windows", "window_s", "warm_up_s", "seed", "out",
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """What is asked.

    Attributes:
        case: all that a window's outcome depends on, but policy, degree and number of workers.
        policies: (as given, name, parameters).
        degrees: GPUs per worker.
        target: share of requests.
        max_gpus: that may be tried.
        out: folder.
    """

    case: dict[str, Any]
    policies: tuple[tuple[str, str, dict[str, Any]], ...]
    degrees: tuple[int, ...]
    target: float
    max_gpus: int
    out: Path


def ask(words: Sequence[str]) -> Request:
    """The command line, checked.

    Raises:
        Slip: naming the option, its value and what is allowed.
    """
    options = parse_options(words, KEYS)
    ttft_s, itl_s = _slo(options)
    case: dict[str, Any] = {
        "ttft_s": ttft_s,
        "itl_s": itl_s,
        "llm": _card(options, "llm", "llama-2-13b", llm_card),
        "gpu": _card(options, "gpu", "a100-80gb", gpu_card),
        "gpus_per_host": whole(options, "gpus_per_host", 8, 1, 8),
        "batch_limit": whole(options, "batch_limit", 256, 1, 4096),
        "predictor": one_of(options, "predictor", ("conditional_mean", "noisy", "oracle")),
        "windows": whole(options, "windows", FEW_WINDOWS, 2, MOST_WINDOWS),
        "window_s": number(options, "window_s", 120.0, 1.0, 1e6),
        "warm_up_s": number(options, "warm_up_s", 30.0, 0.0, 1e5),
        "seed": whole(options, "seed", 0, 0, 2**31),
        "iteration_times": options.get("iteration_times"),
        "stream": _stream(options),
    }
    case["files"] = [_digest(key, options) for key in ("trace", "iteration_times")]
    # A card from a file is what the file holds, whatever it is called.
    case["files"] += [repr(llm_card(case["llm"]))] if is_path(case["llm"]) else []
    case["files"] += [repr(gpu_card(case["gpu"]))] if is_path(case["gpu"]) else []
    request = Request(
        case,
        _policies(options),
        _degrees(options, case["gpus_per_host"]),
        number(options, "attainment", 0.99, 0.0, 1.0, above=True, below=True),
        whole(options, "max_gpus", 64, 1, 10_000),
        Path(options.get("out", RESULTS / "capacity")),
    )
    _check_machine_wide(request)
    _check_load(case)
    if "windows" not in options:
        case["windows"] = default_windows(request)
    needs("statsmodels", "scipy")
    check_folder("out", request.out)
    return request


def default_windows(request: Request) -> int:
    """All of a trace where that is little work; what is little depends on the load, never on the clock."""
    case, stream = request.case, stream_of(request.case)
    if stream.lengths.kind != "trace":
        return FEW_WINDOWS
    trace, factor = trace_of(stream)
    duration_s = factor * trace.period_ps / PS_PER_S
    each = [len(trace) + duration_s * WORK_PER_S.get(name, 0) for _, name, _ in request.policies]
    number = max(FEW_WINDOWS, parts_of(duration_s, case["window_s"]))
    small = len(request.degrees) * sum(each) <= MOST_WORK and number <= MOST_WINDOWS
    return number if small else FEW_WINDOWS


def _check_machine_wide(request: Request) -> None:
    """One worker per host has to be among the degrees."""
    most = request.case["gpus_per_host"]
    for text, name, _ in request.policies:
        if name == MACHINE_WIDE and most not in request.degrees:
            tried = ",".join(str(tp) for tp in request.degrees)
            allowed = ",".join(str(tp) for tp in TP_DEGREES)
            raise Slip(
                f"policy = {text!r}: is one worker per host, but tp = {tried} leaves out "
                f"gpus_per_host = {most}, which must be among tp (some of {allowed})"
            )


def _check_load(case: Mapping[str, Any]) -> None:
    """Draw a window on the first degree that holds the LLM."""
    for tp in TP_DEGREES:
        try:
            window(scenario_of(case, tp, 1), {**case, "window": 0})
        except ScenarioError as error:
            if tp < TP_DEGREES[-1] and "does not fit" in str(error):
                continue
            raise Slip(" ".join(str(error).split())) from None
        except (ValueError, OSError) as error:
            raise Slip(" ".join(str(error).split())) from None
        return


def _slo(options: Mapping[str, str]) -> tuple[float, float]:
    text = options.get("slo", "")
    return times_of(text, text, "must be ttft:SECONDS,itl:SECONDS, as in slo=ttft:0.6,itl:0.03")


def _card(options: Mapping[str, str], key: str, default: str, look_up: Callable[[str], Any]) -> str:
    try:
        return str(look_up(options.get(key, default)).name)
    except ValueError as error:
        raise Slip(f"{key} = {options.get(key)!r}: {error}") from None


def _stream(options: Mapping[str, str]) -> dict[str, Any]:
    """The load as a stream of a workload, without LLM and class."""
    rate = None
    if "rate_per_s" in options:
        rate = number(options, "rate_per_s", 0.0, 0.0, 1e5, above=True, below=True)
    if "trace" in options:
        for key in ("lengths", "arrivals"):
            if key in options:
                raise Slip(f"{key} = {options[key]!r}: a trace has its own; leave one of them out")
        path = Path(options["trace"])
        if not path.is_file():
            raise Slip(f"trace = {options['trace']!r}: there is no such file")
        arrivals = {
            "kind": "trace",
            "path": str(path),
            "format": options.get("format", "auto"),
            "sort": flag(options, "sort"),
            "hash_block_tokens": whole(options, "hash_block_tokens", 512, 1, 1_000_000),
        }
        return {"arrivals": arrivals, "lengths": "trace", "rate_per_s": rate}
    for key in ("format", "sort", "hash_block_tokens"):
        if key in options:
            raise Slip(f"{key} = {options[key]!r}: is for trace=FILE")
    if rate is None:
        raise Slip("what load? trace=FILE, or rate_per_s=RATE with a shipped length table")
    names = sorted(tables.names("lengths"), key=lambda name: name != "sharegpt-single-turn")
    kind = one_of(options, "arrivals", ("poisson", *tables.names("counts")))
    return {
        "arrivals": kind if kind == "poisson" else {"kind": "counts", "table": kind},
        "lengths": {"kind": "table", "table": one_of(options, "lengths", names)},
        "rate_per_s": rate,
    }


def _digest(key: str, options: Mapping[str, str]) -> str:
    """What a file holds, so that another one under the same name is no finished run."""
    if key not in options:
        return ""
    path = Path(options[key])
    if os.path.exists(path) and not path.is_file():  # a device, say, which may never end
        raise Slip(f"{key} = {options[key]!r}: is no file that can be read")
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise Slip(f"{key} = {options[key]!r}: cannot be read ({error.strerror})") from None


def _policies(options: Mapping[str, str]) -> tuple[tuple[str, str, dict[str, Any]], ...]:
    found = []
    for text in dict.fromkeys(split_policies(options.get("policy", "aladdin,jsq"))):
        try:
            name, parameters = parse_policy(text)
            if name not in PLACEMENT_POLICIES:
                raise Slip(f"policy = {text!r}: must be some of {','.join(PLACEMENT_POLICIES)}")
            for key in ("tp", "workers", "prefill_workers", "scale", "fleet"):
                if key in parameters:
                    raise Slip(f"policy = {text!r}: {key} is what is searched here; leave it out")
            make_policy(name, **parameters)
        except PolicyError as error:
            raise Slip(f"policy = {text!r}: {error}") from None
        found.append((text, name, parameters))
    return tuple(found)


def _degrees(options: Mapping[str, str], most: int) -> tuple[int, ...]:
    allowed = [str(tp) for tp in TP_DEGREES if tp <= most]
    chosen = options["tp"].split(",") if "tp" in options else allowed
    for part in chosen:
        if part not in allowed:
            raise Slip(f"tp = {options['tp']!r}: must be some of {','.join(allowed)}")
    return tuple(sorted({int(part) for part in chosen}))
