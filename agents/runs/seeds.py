"""Training runs that differ in their seed alone, side by side: `python -m agents.train seeds=0,1,2,3,4`.

Each is the run that `seed=N` would be, in a folder of its own, on this machine or on others. The command
writes what they send home, so that their folders end up here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.configuration.config import TrainConfig, parse_words
from agents.runs.files import read_csv, said
from agents.runs.folders import held
from agents.runs.remote_folders import LOG, Files, packed, unpack, workplace
from agents.runs.stopping import Stop
from agents.models.store import LAST, ModelError, steps_of
from agents.train import RUNS, check, folder_name, is_finished, plan
from llmscale_env import _spread
from llmscale_env._cli import HELP_WORDS, Slip, flag, run_command
from llmscale_env._spread import Launcher, OtherCode, WorkerLost, crew, default_workers, launcher_of
from llmscale_env.control.results.result import on_time_share

if TYPE_CHECKING:
    from agents.runs.comparison import Row
    from llmscale_env.scenarios import Scenario

MOST_SEEDS = 1000


@dataclass(frozen=True)
class SeedRun:
    """One run: what it was told, where its folder is, whether an earlier one goes on."""

    config: TrainConfig
    scenario: Scenario
    folder: Path
    words: tuple[str, ...]
    resumes: bool


@dataclass(frozen=True)
class Ended:
    """What became of a run: "done", "interrupted" or what went wrong; files that are not at home yet."""

    state: str
    files: Files


def main(words: Sequence[str]) -> int:
    """Run the command line: 0 all done, 1 a run failed, 2 after a slip, 130 when interrupted."""
    from agents import train

    return run_command("train", train.__doc__, words, _train)


def _train(words: Sequence[str]) -> int:
    own = ("env", "out", "resume", "seeds", *_spread.WORDS)
    changes, options = parse_words(words, own)
    if "seeds" not in options:
        named = next(key for key in _spread.WORDS if key in options)
        raise Slip(f"{named} = {options[named]!r}: goes with seeds=, as seeds=0,1,2,3,4")
    if "seed" in changes:
        raise Slip("seed and seeds: one of them")
    if any(word in HELP_WORDS for word in words):
        raise Slip("--help: by itself")
    kept = [word for word in words if word.partition("=")[0] not in own or word.startswith("env=")]
    home, resumes = Path(options.get("out", RUNS)), flag(options, "resume")
    seeds = seeds_of(options["seeds"])
    runs = [_plan(kept, seed, home, resumes) for seed in seeds]
    cpus = max(max(run.config.env_threads, run.config.torch_threads) for run in runs)
    launcher = launcher_of(options, max(1, default_workers() // cpus))
    todo = [run for run in runs if not _is_done(run)]
    for run in runs:
        if run not in todo:
            said(f"{run.folder}: is finished")
    states = train_all(todo, launcher, cpus)
    failed = {run.folder: state for run, state in zip(todo, states, strict=True) if state != "done"}
    print(_table([run for run in runs if _is_done(run)]), flush=True)
    for folder, state in failed.items():
        said(f"{folder}: {state}")
    if any(state == "interrupted" for state in failed.values()):
        said("interrupted; to go on, give the same command with resume=true")
        return 130
    return 1 if failed else 0


def seeds_of(text: str) -> list[int]:
    """Seeds from "0,1,2" or "0..4" (both ends included).

    Raises:
        Slip: neither, a seed given twice, or too many.
    """
    low, dots, high = text.partition("..")
    found: Sequence[int]
    try:
        found = range(int(low), int(high) + 1) if dots else [int(s) for s in text.split(",")]
    except ValueError:
        found = []
    if not 0 < len(found[: MOST_SEEDS + 1]) <= MOST_SEEDS or len(set(found)) < len(found):
        raise Slip(
            f"seeds = {text!r}: must be different integers, as 0,1,2 or 0..4, {MOST_SEEDS} at most"
        )
    return list(found)


def _plan(words: Sequence[str], seed: int, home: Path, resumes: bool) -> SeedRun:
    mine = [*words, f"seed={seed}"]
    config, _, _ = plan([*mine, f"out={home / '.none'}"])
    folder = home / folder_name(config)
    goes_on = resumes and (folder / "config.yaml").is_file()
    more = [f"out={folder}", *(["resume=true"] if goes_on else [])]
    config, folder, goes_on = plan([*mine, *more])
    return SeedRun(config, check(config), folder, tuple(mine), goes_on)


def _is_done(run: SeedRun) -> bool:
    """Whether there is nothing left to do; a finished run may be prolonged."""
    path = run.folder / LAST
    if not is_finished(run.folder) or not path.is_file():
        return False
    try:
        return steps_of(path) >= run.config.total_timesteps
    except ModelError as error:
        raise Slip(str(error)) from None


def train_all(runs: Sequence[SeedRun], launcher: Launcher, cpus: int = 1) -> list[str]:
    """Train side by side.

    Args:
        runs: what is trained.
        launcher: where.
        cpus: processors that each keeps busy.

    Returns:
        What became of each: "done", "interrupted", or what went wrong.

    Raises:
        Slip: no cluster answers, or another command is at work in one of the folders.
        KeyboardInterrupt: interrupted twice.
    """
    states = ["interrupted"] * len(runs)
    away = launcher.kind == "ray"

    def hears(number: int, message: Any) -> bool:
        """Whether the run is to stop."""
        if message is not None:
            line, files = message
            unpack(files, runs[number].folder)
            said(f"seed {runs[number].config.seed}: {line}")
        return stop.wanted

    with (
        contextlib.ExitStack() as folders,
        crew(launcher, len(runs), hears, cpus) as workers,
        # After Ray, which has its own idea of SIGTERM.
        Stop(saying="stopping: runs save their models (Ctrl-C again to stop without)") as stop,
    ):
        for run in runs:
            folders.enter_context(held(run.folder, goes_on=run.resumes))
        for number, run in enumerate(runs):
            said(f"seed {run.config.seed}: {run.folder} (what it says: {LOG})")
            files = packed(run.folder) if away and run.resumes else {}
            workers.submit(number, train_one, run, files, None if away else run.folder)
        try:
            for number, ended in workers:
                unpack(ended.files, runs[number].folder)
                states[number] = ended.state
                stop.wanted |= ended.state == "interrupted"  # then nothing else begins
                said(f"seed {runs[number].config.seed}: {ended.state}")
        except (WorkerLost, OtherCode) as error:
            states = [str(error) if state == "interrupted" else state for state in states]
    return states


def train_one(run: SeedRun, files: Files, home: Path | None, tell: Any) -> Ended:
    """One run, wherever it is; what goes wrong in it is no concern of the others."""
    from agents import train

    with workplace(home, files) as place:
        if tell(None):  # it was to stop before it began
            return Ended("interrupted", place.news())

        def report(steps: int, rows: list[Row]) -> None:
            # A wish to stop is heard at the next rollout.
            tell((line_of(steps, rows), place.news()))

        try:
            train.run(
                run.config,
                run.scenario,
                place.folder,
                run.words,
                run.resumes,
                report,
                lambda: bool(tell(None)),
            )
            state = "done"
        except KeyboardInterrupt:
            state = "interrupted"
        except Exception as error:
            import traceback

            traceback.print_exc()
            state = f"{type(error).__name__}: {error}"
        return Ended(state, place.news())


def line_of(steps: int, rows: Sequence[Row]) -> str:
    """A validation in a line."""
    import numpy as np

    mean = {key: float(np.mean([row[key] for row in rows])) for key in ("reward", "gpu_hours")}
    on_time = 100 * float(np.nanmean([on_time_share(row, "joint") for row in rows]))
    return (
        f"{steps:>11,} steps  reward {mean['reward']:8.1f}  on time {on_time:.1f} %, "
        f"{mean['gpu_hours']:.2f} GPU-h"
    )


def _table(runs: Sequence[SeedRun]) -> str:
    """The learner's rows of the finished runs' tables, and their mean with its interval over seeds."""
    from agents.statistics import mean_interval

    rows = []
    for run in runs:
        if (run.folder / "summary.csv").is_file():
            row = read_csv(run.folder / "summary.csv")[0]
            rows.append(
                (run.config.seed, row["reward"], row["joint/slo_attainment"], row["gpu_hours"])
            )
    if not rows:
        return "no run has a table yet"
    lines = [f"{'seed':>8}  {'reward':>10}  {'joint %':>8}  {'GPU-h':>8}"]
    lines += [f"{s:>8}  {r:>10.1f}  {100 * a:>8.2f}  {g:>8.2f}" for s, r, a, g in rows]
    if len(rows) > 1:
        mean = mean_interval([r for _, r, _, _ in rows])
        lines.append(
            f"reward over {len(rows)} seeds: {mean.mean:.1f} [{mean.low:.1f}, {mean.high:.1f}] "
            "(mean and its 95 % interval)"
        )
    return "\n".join(lines)
