"""Workloads of a table: the shipped family mixed-slo-v0, and one more trace that somebody drops in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator

from experiments.harness.parameters import known
from llmscale_env.control.reward import draw_requests
from llmscale_env.scenarios import Scenario, load_scenario
from llmscale_env.workload.families import common_data, members
from llmscale_env.workload.readers import load_trace
from llmscale_env.workload.requests import PS_PER_S

FAMILY = "mixed-slo-v0"
SCENARIO = "mixed-slo-v0"
DROPPED_IN = "trace"
"""Name of the workload of a dropped-in trace."""


@dataclass(frozen=True)
class Workload:
    """A workload that policies are compared on.

    Attributes:
        name: as in tables.
        split: "train", "validation" or "test".
        shape: "smooth" or "bursty"; "unknown" for a trace that was dropped in.
        validated_on: names of the validation workloads by which its policies' settings are chosen.
        data: what `load_scenario(..., workload=...)` takes: a name, or the workload itself.
    """

    name: str
    split: str
    shape: str
    validated_on: tuple[str, ...]
    data: Any


def workloads(split: str) -> tuple[Workload, ...]:
    """Those of the family that belong to a split.

    Raises:
        ValueError: there is no such split.
    """
    return tuple(
        Workload(
            m.name.partition("/")[2],
            m.split,
            m.shape,
            (m.of.partition("/")[2],) if m.of else (),
            m.name,
        )
        for m in members(FAMILY, split)
    )


def tested(names: Sequence[str]) -> list[Workload]:
    """Workloads of the test with these names; without any, all."""
    return [w for w in workloads("test") if not names or w.name in names]


TestWorkloads = Annotated[
    tuple[str, ...], AfterValidator(lambda names: known(names, [w.name for w in workloads("test")]))
]
"""Names of some, as a parameter of a study."""


def dropped_in(path: str, rate_per_s: float | None) -> Workload:
    """A trace as one more test workload, beside the batch work that all of the family have.

    A window from a random start, its bursts where they are: another rate than the trace's own comes from
    repeating or dropping requests. It is seen nowhere before the test, so settings for it, and networks, are
    chosen on all validation workloads.

    Args:
        path: CSV with arrival_time_s, input_tokens, output_tokens, or another format that
            `llmscale_env.workload.readers` knows.
        rate_per_s: mean rate; None: the trace's own.

    Raises:
        ValueError: there is no such file, no trace in it that an episode could be drawn from, or one that is
            shorter than an episode, whose windows would all be the same requests over again.
    """
    if not Path(path).is_file():
        raise ValueError(f"workload.trace = {path!r}: there is no such file")
    data: dict[str, Any] = common_data(FAMILY)
    stream: dict[str, Any] = {
        "name": DROPPED_IN,
        "llm": data["streams"][0]["llm"],
        "slo_class": "interactive",
        "arrivals": {"kind": "trace", "path": str(path), "start_s": "random", "rescale": "sample"},
        "lengths": "trace",
    }
    if rate_per_s is not None:
        stream["rate_per_s"] = rate_per_s
    data["streams"] = [stream, *data["streams"]]
    try:
        scenario = scenario_of(data)
        draw_requests(scenario, np.random.default_rng(0))
        length_s = load_trace(path).period_ps / PS_PER_S
    except ValueError as error:
        raise ValueError(f"workload.trace = {path!r}: {error}") from None
    if length_s < scenario.horizon_s:
        raise ValueError(
            f"workload.trace = {path!r}: is {length_s:g} s long; must be at least an episode, "
            f"{scenario.horizon_s:g} s"
        )
    chosen_on = tuple(w.name for w in workloads("validation"))
    return Workload(DROPPED_IN, "test", "unknown", chosen_on, data)


def digest_of(path: str | Path) -> str:
    """Sixteen hexadecimal digits of a file's content: a changed file is never taken for the old one."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def scenario_of(workload: Any, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """The scenario of the family with one of its workloads.

    Args:
        workload: `Workload.data`.
        overrides: other fields, by dotted path.

    Raises:
        ScenarioError: a field that does not exist, or a value that is not allowed.
    """
    return load_scenario(SCENARIO, workload=workload, **(overrides or {}))


@lru_cache(maxsize=64)
def shape_of(name: str) -> str:
    """Of a workload by its name in tables: "smooth", "bursty" or "unknown"."""
    shapes = {m.name.partition("/")[2]: m.shape for m in members(FAMILY)}
    return shapes.get(name, "unknown")
