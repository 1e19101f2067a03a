"""What the world mixed-slo asks for, from its load alone: how many GPUs, and what a late request is worth.

    python -m experiments.worlds_load show=peak|prices [days=1,2,...] [fleets=8,10,...]

`peak`: fixed fleets of mixed instances in the half hour around the busiest ten minutes of the training days,
and the smallest that serves 99 % of the interactive requests.
`prices`: fixed fleets on whole training days: GPU-hours, share on time, dollars, and between neighbours what
one more GPU costs and what the late requests that it saves cost. They break even at the attainment in the
last line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from baselines import make_policy
from llmscale_env._cli import Slip, parse_options, run_command
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios import Scenario, load_scenario
from llmscale_env.workload.config import DAYS, TEN_MINUTES_S
from llmscale_env.workload.tables import load_days

TRAINING_DAYS = tuple(range(1, 9))
PEAK_FLEETS = tuple(range(9, 17))
PRICE_FLEETS = (6, 8, 9, 10, 11, 12, 13, 14)
TARGET = 0.99


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 a slip (named in one line)."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_command("worlds_load", __doc__, words, _show)


def _show(words: Sequence[str]) -> int:
    options = parse_options(words, ("show", "days", "fleets"))
    show = options.get("show", "peak")
    if show not in ("peak", "prices"):
        raise Slip(f"show = {show!r}: must be peak or prices")
    days = _numbers(options, "days", TRAINING_DAYS, 1, DAYS)
    fleets = _numbers(options, "fleets", PEAK_FLEETS if show == "peak" else PRICE_FLEETS, 1, 16)
    print("\n".join(peak(days, fleets) if show == "peak" else prices(days, fleets)))
    return 0


def _numbers(
    options: dict[str, Any], name: str, default: tuple[int, ...], low: int, high: int
) -> tuple[int, ...]:
    if name not in options:
        return default
    words = str(options[name]).split(",")
    if not all(word.isdigit() and low <= int(word) <= high for word in words):
        raise Slip(f"{name} = {options[name]!r}: must be whole numbers from {low} to {high}")
    return tuple(sorted({int(word) for word in words}))


def _at(day: int, start_s: float, horizon_s: float, n: int) -> Scenario:
    """A time of a day for a fleet of `n` mixed instances that is there from the start."""
    streams = {
        f"workload.streams.{stream}.arrivals.{field}": value
        for stream in ("chat", "code")
        for field, value in (("days", [day]), ("start_s", start_s))
    }
    there = {
        "fleet.pools.interactive.initial_instances": 0,
        "fleet.pools.mixed.initial_instances": n,
    }
    return load_scenario("mixed-slo", **{"horizon_s": horizon_s, **streams, **there})


def peak(days: Sequence[int], fleets: Sequence[int]) -> list[str]:
    """Lines about the busiest ten minutes of the chat service."""
    rates = load_days("servegen-m-large")[np.array(days) - 1]
    row, window = divmod(int(rates.argmax()), rates.shape[1])
    start_s = float(max(window - 1, 0) * TEN_MINUTES_S)
    lines = [
        f"day {days[row]}, {window // 6:02d}:{window % 6}0, {rates.max():.2f} times the mean; "
        "three windows around it, seed 0"
    ]
    needed = None
    for n in fleets:
        scenario = _at(days[row], start_s, 3 * TEN_MINUTES_S, n)
        summary = run_episode(_fixed(n), scenario, 0).summary
        on_time = summary["interactive/slo_attainment"]
        lines.append(
            f"{n:>2} mixed instances: {100 * on_time:.2f} % of interactive requests on time"
        )
        if needed is None and on_time >= TARGET:
            needed = n
    return [*lines, f"GPUs for {100 * TARGET:g} %: {needed}"]


def prices(days: Sequence[int], fleets: Sequence[int]) -> list[str]:
    """Lines about fixed fleets on whole days."""
    lines = [f"fixed fleets of mixed instances on days {', '.join(map(str, days))}, seed 0"]
    found: dict[int, tuple[float, float, float]] = {}
    for n in fleets:
        rows = [run_episode(_fixed(n), _at(day, 0.0, 86_400.0, n), 0).summary for day in days]
        late = sum(row["joint/late"] for row in rows) / len(rows)
        share = sum(row["joint/on_time"] for row in rows) / sum(
            row["joint/on_time"] + row["joint/late"] for row in rows
        )
        hours = sum(row["gpu_hours"] for row in rows) / len(rows)
        found[n] = (hours, late, share)
        lines.append(
            f"{n:>2}: {hours:6.1f} GPU-hours a day, {late:9,.0f} late a day, {100 * share:6.2f} % on time"
        )
    config = load_scenario("mixed-slo").reward.prices
    assert config is not None, "the scenario has prices"
    assert isinstance(config.late_request_usd, float)
    at = None
    for less, more in pairwise(sorted(found)):
        paid = (found[more][0] - found[less][0]) * config.gpu_hour_usd
        saved = (found[less][1] - found[more][1]) * config.late_request_usd
        lines.append(
            f"{less} to {more}: {paid:.0f} $ of GPUs a day save {saved:.0f} $ of late requests"
        )
        if at is None and saved < paid:
            at = found[less][2]
    text = "nowhere among these fleets" if at is None else f"at {100 * at:.2f} % on time"
    return [*lines, f"one more GPU stops paying {text}"]


def _fixed(n: int) -> Any:
    return make_policy(f"static:interactive=0,mixed={n},batch=0")


if __name__ == "__main__":
    sys.exit(main())
