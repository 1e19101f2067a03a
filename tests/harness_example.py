"""A small experiment for the harness's own tests; not collected as one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Annotated, Any

from agents.statistics import mean_interval
from experiments.harness.claims import about
from experiments.harness.parameters import Parameters, ours, paper
from experiments.output import new_figure
from tests.waiting import PATIENCE_S

FIGURE = "Figure 0"


class Example(Parameters):
    """`log`: a file to which every run adds a line; `trouble`: what happens in the run of `at`."""

    factors: Annotated[tuple[int, ...], paper("section 0")] = (2, 3)
    log: Annotated[str, ours("to count runs")] = ""
    trouble: Annotated[str, ours("to test failures")] = ""
    at: Annotated[int, ours("to test failures")] = 3


PARAMETERS = {"quick": Example(seeds=2), "paper": Example(seeds=3)}


def cases(parameters: Example) -> list[dict[str, Any]]:
    fixed = {"log": parameters.log}
    return [
        {
            "seed": seed,
            "factor": factor,
            "trouble": parameters.trouble * (factor == parameters.at),
            **fixed,
        }
        for seed in parameters.seed_list()
        for factor in parameters.factors
    ]


def run(case: dict[str, Any]) -> list[dict[str, Any]]:
    marker = Path(case["log"] + ".mended")
    if case["trouble"] and not marker.exists():
        if case["trouble"] == "raise":
            raise ValueError("factor 3 is no good")
        if case["trouble"] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if case["trouble"] == "hang":
            time.sleep(PATIENCE_S)
    with Path(case["log"]).open("a", encoding="utf-8") as log:
        log.write("run\n")
    return [{"value": float(case["factor"] * (case["seed"] % 10 + 1)), "nothing": float("nan")}]


def plot(frame: Any, parameters: Example) -> Any:
    figure = new_figure(3, 2)
    figure.subplots().plot(frame["factor"], frame["value"], "o")
    return figure


def claims(frame: Any, parameters: Example) -> list[Any]:
    mine = mean_interval(frame.loc[frame["factor"] == 2, "value"])
    return [about("twice is twice", 3.0, mine, nothing=0.0, unit="x")]
