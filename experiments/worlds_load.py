"""What a world asks for, from its load alone: how many GPUs, and what a late request is worth.

    python -m experiments.worlds_load show=peak|prices|picture [days=1,2,...] [fleets=8,10,...]
                                      [policies=A,B,C] [out=docs/images/day.png]
    python -m experiments.worlds_load show=prices env=multi-region [fleets=6,9,...]

`peak`: fixed fleets of mixed instances in the half hour around the busiest ten minutes of the training days,
and the smallest that serves 99 % of the interactive requests.
`prices`: fixed fleets on whole training days: GPU-hours, share on time, dollars, and between neighbours what
one more GPU costs and what the late requests that it saves cost. They break even at the attainment in the
last line. With env=multi-region it is fleets of so many VMs per LLM and region on the seven days of the week;
the two LLMs share nothing in a fixed fleet, so each has lines of its own.
`picture`: one whole day (days=11, a test day, unless another is named) under several policies: what arrives,
the GPUs of each, and its share of interactive requests on time; means of ten minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from baselines import PolicyError, make_policy, split_policies
from experiments.output import new_figure, save_figure
from llmscale_env._cli import Slip, check_file, one_of, parse_options, run_command, whole_numbers
from llmscale_env.control.reward import violation_prices
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios import Scenario, load_scenario
from llmscale_env.workload.config import DAYS, TEN_MINUTES_S
from llmscale_env.workload.tables import load_days

DAY_S = 86_400.0
TRAINING_DAYS = tuple(range(1, 9))
PEAK_FLEETS = tuple(range(9, 17))
PRICE_FLEETS = (6, 8, 9, 10, 11, 12, 13, 14)
REGION_FLEETS = (6, 7, 8, 9, 10, 12, 14, 16, 18, 20)
TARGET = 0.99
PICTURE_DAY = 11
PICTURE_POLICIES = "static-tuned,hpa-tuned,paced-tuned"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 a slip (named in one line)."""
    return run_command("worlds_load", __doc__, argv, _show, slips=(PolicyError,))


TAKES = {
    "peak": ("days", "fleets"),
    "prices": ("days", "fleets"),
    "picture": ("days", "policies", "out"),
}
"""What each of the things that are shown goes by."""


def _show(words: Sequence[str]) -> int:
    options = parse_options(words, ("show", "env", "days", "fleets", "policies", "out"))
    show = one_of(options, "show", tuple(TAKES))
    for key in options:
        if key not in ("show", "env", *TAKES[show]):
            raise Slip(f"{key} = {options[key]!r}: does nothing with show={show}")
    if one_of(options, "env", ("mixed-slo", "multi-region")) == "multi-region":
        if show != "prices" or "days" in options:
            raise Slip("env = 'multi-region': with show=prices and its own seven days only")
        fleet = load_scenario("multi-region").fleet
        most = fleet.max_gpus // sum(pool.tp for pool in fleet.pools)
        print("\n".join(region_prices(_numbers(options, "fleets", REGION_FLEETS, 1, most))))
        return 0
    if show == "picture":
        day, *others = _numbers(options, "days", (PICTURE_DAY,), 1, DAYS)
        if others:
            raise Slip(f"days = {options['days']!r}: must be one day with show=picture")
        names = split_policies(options.get("policies", PICTURE_POLICIES))
        for name in names:
            make_policy(name)
        out = Path(options.get("out", "docs/images/day.png"))
        check_file("out", out)
        print(picture(day, names, out))
        return 0
    days = _numbers(options, "days", TRAINING_DAYS, 1, DAYS)
    fleets = _numbers(options, "fleets", PEAK_FLEETS if show == "peak" else PRICE_FLEETS, 1, 16)
    print("\n".join(peak(days, fleets) if show == "peak" else prices(days, fleets)))
    return 0


def _numbers(
    options: Mapping[str, str], name: str, default: tuple[int, ...], low: int, high: int
) -> tuple[int, ...]:
    return tuple(sorted(set(whole_numbers(options, name, default, low, high))))


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
    paid, at = _break_even(found, config.gpu_hour_usd, config.late_request_usd, "GPUs")
    return [*lines, *paid, f"one more GPU stops paying {at}"]


def _break_even(
    found: Mapping[int, tuple[float, float, float]], hour_usd: float, late_usd: float, what: str
) -> tuple[list[str], str]:
    """Lines about neighbouring fleets, and where the larger one costs more than it saves.

    Args:
        found: by size, GPU-hours and late requests a day, and the share on time.
        hour_usd, late_usd: what a GPU-hour and a late request cost.
        what: is paid for.
    """
    lines: list[str] = []
    at = ""
    for less, more in pairwise(sorted(found)):
        paid = (found[more][0] - found[less][0]) * hour_usd
        saved = (found[less][1] - found[more][1]) * late_usd
        lines.append(
            f"{less} to {more}: {paid:.0f} $ of {what} a day save {saved:.0f} $ of late requests"
        )
        if saved < paid:
            at = at or f"at {100 * found[less][2]:.2f} % on time"
    return lines, at or "nowhere among these fleets"


def region_prices(fleets: Sequence[int]) -> list[str]:
    """Lines about fixed fleets of multi-region on the days of the week, seed 0."""
    base = load_scenario("multi-region")
    names = [stream.name for stream in base.workload.streams]
    days = [
        load_scenario(
            base, **{f"workload.streams.{s}.arrivals.start_s": day * DAY_S for s in names}
        )
        for day in range(7)
    ]
    config = base.reward.prices
    assert config is not None, "the scenario has prices"
    late_usd = violation_prices(base) * config.unit_usd
    found: dict[tuple[str, int], tuple[float, float, float]] = {}
    lines = [
        "fixed fleets of so many VMs per LLM and region, means over the seven days of the week, seed 0"
    ]
    for n in fleets:
        rows = [run_episode(make_policy(f"static:each={n}"), day, 0).summary for day in days]
        for llm in base.fleet.llms:
            mine = [p for p in base.fleet.pools if p.llm == llm]
            late, on_time = (
                np.array([[row[f"{llm}/{c.name}/{what}"] for c in base.classes] for row in rows])
                for what in ("late", "on_time")
            )
            hours = n * sum(pool.tp for pool in mine) * base.horizon_s / 3600
            share = on_time.sum() / (late + on_time).sum()
            found[llm, n] = (
                hours * config.gpu_hour_usd,
                float((late @ late_usd).mean()),
                float(share),
            )
            worst = (on_time.sum(axis=1) / (late + on_time).sum(axis=1)).min()
            lines.append(
                f"{llm} {n:>2}: {hours:7.0f} GPU-hours a day, {late.sum(axis=1).mean():9,.0f} late a day, "
                f"{100 * share:6.2f} % on time, on the worst day {100 * worst:6.2f} %"
            )
    for llm in base.fleet.llms:
        each = {n: found[llm, n] for n in fleets}
        paid, at = _break_even(each, config.gpu_hour_usd, 1.0, "VMs")  # late ones are in dollars
        lines += [*(f"{llm} {line}" for line in paid), f"{llm}: more VMs stop paying {at}"]
    return lines


def picture(day: int, policies: Sequence[str], path: Path) -> Path:
    """Draw a day under policies (names, `+` between their parameters); where it is."""
    streams = {f"workload.streams.{stream}.arrivals.days": [day] for stream in ("chat", "code")}
    scenario = load_scenario("mixed-slo", **streams)
    figure = new_figure(9, 7)
    load, gpus, on_time = figure.subplots(3, 1, sharex=True)
    window = TEN_MINUTES_S // round(scenario.control_interval_s)
    for name in policies:
        series = run_episode(make_policy(name.replace("+", ",")), scenario, 0).series
        hours = series["time_s"].to_numpy() / 3600
        arrived = series["interactive/arrived"].to_numpy()
        met, missed = (series[f"interactive/{x}"].to_numpy() for x in ("on_time", "violations"))
        held = series["gpu_s"].to_numpy() / scenario.control_interval_s
        by_window = [
            x[: len(x) // window * window].reshape(-1, window) for x in (arrived, met, missed, held)
        ]
        at = hours[window - 1 :: window][: len(by_window[0])]
        if name == policies[0]:
            load.plot(at, by_window[0].sum(axis=1) / TEN_MINUTES_S, color="black", lw=1)
            for key in (c for c in series if c.startswith("batch-") and c.endswith("/arrived")):
                jobs = series[key].to_numpy() > 1000
                load.plot(hours[jobs], np.zeros(jobs.sum()), "v", color="tab:gray")
        gpus.plot(at, by_window[3].mean(axis=1), label=name)
        known = by_window[1].sum(axis=1) + by_window[2].sum(axis=1)
        on_time.plot(at, 100 * by_window[1].sum(axis=1) / np.maximum(known, 1), lw=1)
    load.set_ylabel("interactive requests/s\n(triangles: batch jobs)")
    gpus.set_ylabel("GPUs held")
    gpus.set_ylim(0, scenario.fleet.max_gpus)
    gpus.set_yticks(range(0, scenario.fleet.max_gpus + 1, 4))
    gpus.legend(loc="lower right", ncols=len(policies))
    on_time.set_ylabel("interactive on time, %")
    on_time.set_xlim(0, 24)
    on_time.set_xticks(range(0, 25, 6))
    on_time.set_xlabel(f"hour of day {day}")
    return save_figure(figure, path)


def _fixed(n: int) -> Any:
    return make_policy(f"static:interactive=0,mixed={n},batch=0")


if __name__ == "__main__":
    sys.exit(main())
