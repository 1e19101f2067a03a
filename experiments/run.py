"""Run experiments: figures and tables of the papers, with their claims judged.

    llmscale run NAME [NAME ...] [PARAMETER=VALUE ...]   (or: python -m experiments.run ...)

    NAME            an experiment (llmscale list), a paper (chiron), or all
    scale=quick     smaller, ends within two minutes on two cores; paper: the paper's own sizes
    seeds=N         runs of each case with other requests
    workers=N       processes; one per processor if left out
    launcher=ray    runs are tasks of a Ray cluster in place of processes (extra `ray`), of the one
                    at ray.address=HOST:PORT, auto (the one that this machine is part of) or local
                    (one of this machine alone); else RAY_ADDRESS, else auto
    out=DIRECTORY   where results go; "results" if left out
    PARAMETER=VALUE    changes a parameter of the experiment (lists with commas)

Writes DIRECTORY/NAME/SCALE: rows.csv, pictures, result.json. Finished runs are kept in
DIRECTORY/cache and used again as long as neither their parameters nor the code behind them has
changed; an interrupted command goes on where it stopped when it is given again. Exit code 0 when
all went well (whatever the verdicts), 1 when runs failed, 2 for a slip, 130 when interrupted.

Examples:
    llmscale run chiron-fig09
    llmscale run qlm scale=paper workers=2 out=my-results
    llmscale run chiron-fig09 seeds=5 launcher=ray ray.address=head:6379
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from experiments.harness.cache import RunCache
from experiments.harness.catalogue import SCALES, Entry, Experiment, load, matching
from experiments.harness.claims import Claim
from experiments.harness.execute import Outcome, describe, outcomes
from experiments.harness.fingerprint import fingerprint
from experiments.harness.parameters import Parameters
from experiments.harness.picture import pictures_of
from experiments.harness.results import (
    Result,
    digest_of,
    frame_of,
    read_table,
    table_file,
    title_of,
    write_result,
)
from experiments.output import RESULTS, machine, text_table
from llmscale_env import _spread
from llmscale_env._cli import (
    Slip,
    check_folder,
    complain,
    one_of,
    parse_options,
    run_command,
    whole,
)
from llmscale_env._spread import ALONE, Launcher, OtherCode, WorkerLost, launcher_of

_WORDS = ("scale", "seeds", "out", *_spread.WORDS)


class RunsFailed(RuntimeError):
    """Some runs raised; the others are in the cache."""


class Unfit(RuntimeError):
    """Parameters of which an experiment can make nothing, each of them allowed by itself."""


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """An exception of an experiment's own code becomes one line that says where it came from."""
    try:
        yield
    except Slip:
        raise
    except Exception as error:
        raise Unfit(f"{what}: {describe(error)}") from error


def complete(
    experiment: Experiment,
    settings: Parameters,
    folder: Path,
    *,
    launcher: Launcher = ALONE,
) -> tuple[list[Mapping[str, Any]], list[list[dict[str, Any]]], float]:
    """Every run of an experiment, from the cache or done now.

    Returns:
        Cases, their rows, and the seconds that all runs took when they were done.

    Raises:
        Unfit: the experiment makes no runs of these settings, and it is not they that are to blame.
        RunsFailed: naming the first that failed, after all others were done.
        Slip: settings that the experiment refuses; nothing can be written to `folder`; no cluster answers.
        WorkerLost, OtherCode: what was done until then is in the cache.
    """
    from tqdm import tqdm

    name = experiment.entry.name
    with _explained("these parameters make no runs"):
        cases = json.loads(json.dumps([dict(case) for case in _cases(experiment, settings)]))
    check_folder("out", folder)
    cache = RunCache(folder / "cache" / name, fingerprint(experiment.entry.module, "run"))
    # Seconds that were taken at another time, under another load, are not this command's.
    found = [None if case.get("timed") else cache.get(case) for case in cases]
    for path in cache.damaged:
        print(f"{name}: {path} cannot be read; its run is done again", file=sys.stderr)
    todo = [case for case, known in zip(cases, found, strict=True) if known is None]
    print(f"{name}: {len(cases)} runs, {len(cases) - len(todo)} of them in the cache", flush=True)
    failed: list[Outcome] = []
    done: dict[Path, tuple[list[dict[str, Any]], float]] = {}
    if todo:
        ended = outcomes(experiment.entry.module, todo, launcher)
        with closing(ended):  # whatever happens, the processes end
            for outcome in tqdm(ended, total=len(todo), desc=name, unit="run", mininterval=1.0):
                if outcome.error:
                    failed.append(outcome)
                    continue
                if not outcome.case.get("timed"):
                    cache.put(outcome.case, outcome.rows, outcome.wall_s)
                done[cache.path(outcome.case)] = (outcome.rows, outcome.wall_s)
    if failed:
        raise RunsFailed(
            f"{len(failed)} of {len(cases)} runs failed; the others are kept. "
            f"First: {dict(failed[0].case)}: {failed[0].error}"
        )
    whole_runs = [
        known if known is not None else done[cache.path(case)]
        for case, known in zip(cases, found, strict=True)
    ]
    return cases, [rows for rows, _ in whole_runs], sum(wall for _, wall in whole_runs)


def _cases(experiment: Experiment, settings: Parameters) -> Sequence[Mapping[str, Any]]:
    """Its runs. What only a look at files or at other parameters can refuse, it refuses with a ValueError."""
    try:
        return experiment.cases(settings)
    except ValueError as error:
        raise Slip(str(error)) from error


def make_result(
    experiment: Experiment,
    scale: str,
    settings: Parameters,
    folder: Path,
    command: str,
    *,
    launcher: Launcher = ALONE,
) -> Result:
    """Do what is missing, judge, draw and write. Raises as `complete`."""
    cases, rows, wall_s = complete(experiment, settings, folder, launcher=launcher)
    frame = frame_of(cases, rows)
    with _explained("these results cannot be judged or drawn; the finished runs are kept"):
        claims = tuple(experiment.claims(frame, settings))
        figures = pictures_of(experiment, frame, settings)
        made = experiment.tables(frame, settings) if experiment.tables else {}
    name = experiment.entry.name
    tables = {table_file(name, key): rows for key, rows in made.items() if rows}
    sources = settings.sources()
    values = settings.model_dump(mode="json")
    result = Result(
        name=name,
        scale=scale,
        figure=experiment.figure,
        claims=claims,
        parameters={key: (value, sources[key]) for key, value in values.items()},
        command=command,
        runs=len(cases),
        wall_s=wall_s,
        code=fingerprint(experiment.entry.module),
        versions=machine(),
        pictures=tuple(figures),
        folder=folder / name / scale,
        tables=tuple(tables),
        run_code=fingerprint(experiment.entry.module, "run"),
        claims_code=fingerprint(experiment.entry.module, "claims"),
        cases=digest_of(cases),
    )
    write_result(result, frame, figures, tables)
    return result


def claims_table(claims: Sequence[Claim]) -> str:
    """Claims as text for the screen."""
    rows = [(c.verdict.value, c.paper, f"{c.ours} {c.unit}".rstrip(), c.sentence) for c in claims]
    return text_table(("verdict", "paper", "ours [95 %]", "claim"), rows)


def _parse(
    words: Sequence[str],
) -> tuple[list[Entry], str, dict[str, str], dict[str, str]]:
    """(experiments, scale, options, changes of parameters)."""
    names = [word for word in words if "=" not in word]
    pairs = [word for word in words if "=" in word]
    if not names:
        raise Slip("which experiment? `python -m experiments.list` names them all")
    chosen = matching(names)
    mine = [word for word in pairs if word.partition("=")[0] in _WORDS]
    options = parse_options(mine, _WORDS)
    others = [word for word in pairs if word not in mine]
    changes = parse_options(others, [word.partition("=")[0] for word in others])
    if "seeds" in options:
        changes["seeds"] = str(whole(options, "seeds", 1, 1, 1000))
    return chosen, one_of(options, "scale", SCALES), options, changes


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; see the module for exit codes."""
    return run_command("run", __doc__, words, _run, wordless=True)


def _run(words: list[str]) -> int:
    chosen, scale, options, changes = _parse(words)
    launcher = launcher_of(options)
    experiments = [load(entry) for entry in chosen]
    settings = [experiment.settings(scale, changes) for experiment in experiments]
    folder = Path(options.get("out", RESULTS))
    status = 0
    for experiment, mine in zip(experiments, settings, strict=True):
        name = experiment.entry.name
        elsewhere = ("out", *_spread.WORDS)  # where, but not what
        kept = [w for w in words if "=" in w and w.partition("=")[0] not in elsewhere]
        command = " ".join(["python -m experiments.run", name, *kept])
        begin = time.perf_counter()
        try:
            result = make_result(experiment, scale, mine, folder, command, launcher=launcher)
        except KeyboardInterrupt:
            print(
                f"\nrun: {name} stopped; finished runs are kept, the same command goes on from there",
                file=sys.stderr,
            )
            return 130
        except (Unfit, RunsFailed, WorkerLost, OtherCode, Slip) as error:
            complain(f"run: {name}: {error}")
            status = max(status, 2 if isinstance(error, Slip) else 1)
            continue
        for table in result.tables:
            head, rows = read_table(result.folder / table)
            if len(result.tables) > 1:
                print(f"{title_of(table, name)}:")
            print(f"{text_table(head, rows)}\n")
        if result.claims:
            print(claims_table(result.claims))
        print(f"written: {result.folder} ({time.perf_counter() - begin:.0f} s)", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
