"""Search the hyperparameters of a learner on an environment with Optuna.

    llmscale search env=NAME [trials=N] [steps=N] [KEY=VALUE ...]   (or: python -m agents.tune ...)

    trials=20          settings to try, unpromising ones (by validation) not to their end
    steps=100_000      environment steps of each
    agent=ppo          as in llmscale train
    out=FOLDER         where it all goes (default: runs/tune-ENV-AGENT)
    resume=true        go on with the search in out=; an interrupted trial goes on from its last
                       model
    seed=N             of the search and of every trial
    parallel=1         trials that are drawn together and told together, in their order: what is
                       found depends on this number, not on how many of them run at once
    workers=N          trials at once (default: as many as parallel= and the processors allow);
                       launcher=ray: on a Ray cluster (docs/clusters.md)
    KEY=VALUE          options of llmscale train that hold for all trials, scenario.* included; one
                       that is given is not searched

What is searched stands in agents/search.yaml. The value of a trial is its best validation: the
mean reward; with lagrangian.attainment minus the GPU-hours, minus 100 times the attainment that is
lacking; with lagrangian.rate=0 the mean return at the fixed prices. Writes study.db (Optuna),
trials.csv, best.yaml (the best settings and the command that found them), recipe.yaml (for
llmscale train recipe=) and a run folder per trial. The settings of an autoscaler are searched by
llmscale tune.

Examples:
    llmscale search env=mixed-slo-hours trials=40 steps=200_000
    llmscale search env=burst-multicast agent=maskable-ppo parallel=4 workers=2
    llmscale search env=mixed-slo-hours resume=true out=runs/tune-mixed-slo-hours-ppo
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from agents.configuration.config import TrainConfig, make_config, parse_words
from agents.configuration.settings import AGENTS, RangeConfig
from agents.runs.files import read_yaml, said, write_csv
from agents.runs.folders import held
from agents.runs.remote_folders import LOG, Files, packed, unpack, workplace
from agents.runs.stopping import Stop
from agents.train import RUNS, check
from llmscale_env import _spread
from llmscale_env._cli import Slip, check_folder, flag, run_command, whole
from llmscale_env._reading import parse_yaml
from llmscale_env._spread import Launcher, OtherCode, WorkerLost, crew, default_workers, launcher_of
from llmscale_env._writing import write_text

if TYPE_CHECKING:
    from agents.runs.comparison import Row
    from llmscale_env.scenarios import Scenario

SPACE = Path(__file__).parent / "search.yaml"
VALIDATIONS = 5
"""Of every trial, unless `validation_every` says otherwise."""

MOST_PARALLEL = 1000

_OF_TRIALS = ("total_timesteps", "evaluation_episodes", "references", "validation_every", "seed")
"""Settings of a search's trials that no recipe of what it found has a use for."""

STUDY = "study.db"

_FOLDER = "folder"

_NOT_HERE = {
    "total_timesteps": "a trial's are steps=",
    "evaluation_episodes": "trials have no table at the end; they are compared in validation",
}
"""Options of a training that a search has no use for."""

GO_ON, STOP, PRUNE = "go on", "stop", "prune"
"""What a trial is told."""


@dataclass(frozen=True)
class Tried:
    """What became of a trial.

    Attributes:
        state: "done", "pruned", "interrupted", or "astray" (its numbers became NaN).
        value: of one that is done.
        files: that are not at home yet.
    """

    state: str
    value: float | None
    files: Files


@dataclass(frozen=True)
class Search:
    """What is searched, and where.

    Attributes:
        folder: of the search; trials have theirs in it.
        config: what holds for all trials, with the defaults of what is searched.
        fixed: options that are not searched.
        space: what is, by option.
        scenario: of all trials.
        trials: settings to try.
        parallel: drawn and told together.
    """

    folder: Path
    config: TrainConfig
    fixed: Mapping[str, Any]
    space: Mapping[str, RangeConfig]
    scenario: Scenario
    trials: int
    parallel: int


class Pruned(Exception):
    """The search has seen enough of a trial."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 after a slip (named in one line), 130 when interrupted."""
    again = "interrupted; to go on, give the same command with resume=true"
    lost = (WorkerLost, OtherCode)
    return run_command("tune", __doc__, argv, _tune, interrupted=again, slips=lost)


def _tune(words: Sequence[str]) -> int:
    changes, options = parse_words(
        words, ("env", "trials", "steps", "out", "resume", "parallel", *_spread.WORDS)
    )
    if "env" not in options:
        raise Slip("env= is missing, such as env=mixed-slo-hours")
    env, resumes = options["env"], flag(options, "resume")
    trials = whole(options, "trials", 20, 1, 100_000)
    steps = whole(options, "steps", 100_000, 1, 10**12)
    for key, instead in _NOT_HERE.items():
        if key in changes:
            raise Slip(f"{key}: {instead}")
    parallel = whole(options, "parallel", 1, 1, MOST_PARALLEL)
    fixed = {
        "validation_every": max(steps // VALIDATIONS, 1),
        "references": (),
        **changes,
        "total_timesteps": steps,
        "evaluation_episodes": 0,
    }
    config = make_config(env, fixed)
    space = search_space(config.agent, fixed)
    scenario = check(config)
    try:
        import optuna
    except ImportError:
        raise Slip("Optuna is missing: pip install 'llmscale[tune]'") from None
    folder = Path(options.get("out", RUNS / f"tune-{env}-{config.agent}"))
    cpus = max(config.env_threads, config.torch_threads)
    launcher = launcher_of(options, max(1, min(parallel, default_workers() // cpus)))
    search = Search(folder, config, fixed, space, scenario, trials, parallel)
    if resumes and not folder.is_dir():
        raise Slip(f"resume = true: there is no search in {folder}")
    check_folder("out", folder)
    with held(folder, goes_on=resumes), _storage_errors(optuna, folder):
        _claim(folder, config, resumes)
        _search(search, optuna, launcher, cpus, words)
    return 0


@contextmanager
def _storage_errors(optuna: Any, folder: Path) -> Iterator[None]:
    """What Optuna's database does not take, on a full disk say, becomes one line."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (optuna.exceptions.StorageInternalError, SQLAlchemyError) as error:
        cause = error.__cause__ or error
        raise Slip(f"{folder / STUDY}: {getattr(cause, 'orig', cause)}") from None


def _search(
    search: Search, optuna: Any, launcher: Launcher, cpus: int, words: Sequence[str]
) -> None:
    """Try settings until there are as many trials as asked; write what was found after each round.

    Raises:
        KeyboardInterrupt: interrupted; everything that was told is kept.
        Slip: hardly any settings go together with the fixed ones.
    """
    folder, config, fixed, parallel = search.folder, search.config, search.fixed, search.parallel
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = f"sqlite:///{folder / STUDY}"
    study = optuna.create_study(
        storage=storage,
        study_name="tune",
        direction="maximize",
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=0),
    )
    _take_up(study, optuna)
    # Seeded by how far the search is: a search that goes on does not draw its first points again.
    study.sampler = optuna.samplers.TPESampler(
        seed=config.seed + len(study.trials), constant_liar=parallel > 1
    )
    while (missing := search.trials - _done(study, optuna)) > 0:
        drawn: dict[int, tuple[Any, TrainConfig, Path]] = {}
        while len(drawn) < min(parallel, missing):
            trial = study.ask()
            chosen = {path: suggest(trial, path, spec) for path, spec in search.space.items()}
            name = trial.user_attrs.get(_FOLDER, f"trial-{trial.number:03d}")
            trial.set_user_attr(_FOLDER, name)
            try:
                settings = make_config(config.env, {**fixed, **chosen})
            except Slip as error:
                # Settings that do not go together, such as a minibatch above the rollout.
                said(f"trial {trial.number}: {error}")
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                _give_up_if_hopeless(study, optuna)
                continue
            said(f"trial {trial.number}: " + " ".join(f"{k}={v}" for k, v in chosen.items()))
            drawn[trial.number] = (trial, settings, folder / name)
        tried = _try_all(drawn, search.scenario, launcher, cpus)
        # In their order, whichever ended first: what is drawn next hangs on it.
        for number, (trial, _, _) in drawn.items():
            found = tried.get(number)
            if found is None or found.state == "interrupted":
                continue
            if found.state == "pruned":
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                said(f"trial {number}: stopped, below the median of the others")
            elif found.state == "astray":
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                said(f"trial {number}: learning went astray, its numbers became NaN or infinite")
                _give_up_if_hopeless(study, optuna)
            else:
                study.tell(trial, found.value)
                said(f"trial {number}: {found.value:.2f}")
        _write(study, optuna, search, words)
        if len(tried) < len(drawn) or any(t.state == "interrupted" for t in tried.values()):
            raise KeyboardInterrupt
    _write(study, optuna, search, words)
    print(f"best {study.best_value:.2f} (trial {study.best_trial.number})  {folder / 'best.yaml'}")


def search_space(agent: str, fixed: Mapping[str, Any] = {}) -> dict[str, RangeConfig]:
    """What is searched for a learner, by option; without the options that are fixed.

    Raises:
        Slip: the file names an option that there is not.
    """
    data = read_yaml(SPACE, str(SPACE))
    unknown = set(data) - {*AGENTS, "common"}
    if unknown:
        raise Slip(f"{SPACE.name}: unknown sections {sorted(unknown)}")
    found = {path: RangeConfig.model_validate(spec) for path, spec in data["common"].items()}
    for name, spec in data[agent].items():
        if name not in AGENTS[agent].model_fields:
            raise Slip(f"{SPACE.name}: {agent} takes no {name!r}")
        found[f"{agent}.{name}"] = RangeConfig.model_validate(spec)
    return {path: spec for path, spec in found.items() if path not in fixed}


def suggest(trial: Any, path: str, spec: RangeConfig) -> Any:
    """A value of an option for a trial; lists are told to Optuna as their text."""
    if spec.choices:
        texts = {
            str(yaml.safe_dump(c, default_flow_style=True)).split("\n")[0]: c for c in spec.choices
        }
        return texts[trial.suggest_categorical(path, list(texts))]
    return trial.suggest_float(path, spec.low, spec.high, log=spec.scale == "log")


def _try_all(
    drawn: Mapping[int, tuple[Any, TrainConfig, Path]],
    scenario: Scenario,
    launcher: Launcher,
    cpus: int,
) -> dict[int, Tried]:
    """Trials side by side; those that are missing in the answer did not begin.

    A trial is pruned by those that were told before it was drawn, never by its neighbours, so it does not
    matter which of them is faster.
    """
    away = launcher.kind == "ray"
    found: dict[int, Tried] = {}

    def hears(number: int, message: Any) -> str:
        if message is not None:
            trial, settings, folder = drawn[number]
            steps, value, files = message
            unpack(files, folder)
            trial.report(value, steps)
            said(f"trial {number}: {steps:>11,} steps  {value:.2f}")
            if steps < settings.total_timesteps and trial.should_prune():
                return PRUNE
        return STOP if stop.wanted else GO_ON

    with (
        crew(launcher, len(drawn), hears, cpus) as workers,
        # After Ray, which has its own idea of SIGTERM.
        Stop(saying="stopping: trials save their models (Ctrl-C again to stop without)") as stop,
    ):
        for number, (_, settings, folder) in drawn.items():
            said(f"trial {number}: {folder} (what it says: {LOG})")
            files = packed(folder) if away else {}
            workers.submit(number, try_one, settings, scenario, files, None if away else folder)
        for number, tried in workers:
            unpack(tried.files, drawn[number][2])
            found[number] = tried
            stop.wanted |= tried.state == "interrupted"  # then nothing else begins
    return found


def try_one(
    config: TrainConfig, scenario: Scenario, files: Files, home: Path | None, tell: Any
) -> Tried:
    """Train with one trial's settings; the best value of its validations."""
    import torch

    from agents.configuration.environments import simulation_of
    from agents.learning import learner
    from agents.learning.callbacks import WentAstray
    from agents.learning.validation_score import best_worth, worth
    from agents.runs.files import read_csv

    torch.set_num_threads(config.torch_threads)
    with workplace(home, files) as place:
        if tell(None) == STOP:
            return Tried("interrupted", None, place.news())
        write_text(place.folder / "config.yaml", config.to_yaml())

        def report(steps: int, rows: list[Row]) -> None:
            # A wish to stop is heard at the next rollout.
            if tell((steps, worth(rows, config, scenario), place.news())) == PRUNE:
                raise Pruned

        try:
            simulation = simulation_of(config, scenario)
            wished = lambda: tell(None) == STOP  # noqa: E731
            learner.learn(config, scenario, place.folder, simulation, [], True, report, wished)
        except KeyboardInterrupt:
            return Tried("interrupted", None, place.news())
        except Pruned:
            return Tried("pruned", None, place.news())
        except WentAstray:
            return Tried("astray", None, place.news())
        best = best_worth(read_csv(place.folder / "validation.csv"), config, scenario)
        return Tried("done", best, place.news())


def _claim(folder: Path, config: TrainConfig, resumes: bool) -> None:
    """Note in the search's folder what is searched, or find that it is of the same search.

    Raises:
        Slip: it is of another search, or of none.
    """
    path = folder / "tune.yaml"
    if not resumes:
        write_text(path, config.to_yaml())
        return
    if not path.is_file():
        raise Slip(f"resume = true: there is no search in {folder}")
    if path.read_text(encoding="utf-8") != config.to_yaml():
        raise Slip(f"resume = true: the search in {folder} has other options; see {path}")


def _take_up(study: Any, optuna: Any) -> None:
    """Trials that were interrupted are asked for again first, with their settings and folders."""
    running = optuna.trial.TrialState.RUNNING
    for trial in study.get_trials(states=[running]):
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        if trial.params:
            study.enqueue_trial(trial.params, user_attrs={_FOLDER: trial.user_attrs[_FOLDER]})


def _done(study: Any, optuna: Any) -> int:
    states = optuna.trial.TrialState
    return len(study.get_trials(states=[states.COMPLETE, states.PRUNED], deepcopy=False))


def _give_up_if_hopeless(study: Any, optuna: Any) -> None:
    failed = study.get_trials(states=[optuna.trial.TrialState.FAIL], deepcopy=False)
    if len(failed) > 100 + 10 * _done(study, optuna):
        raise Slip("nearly all settings that are drawn do not go together with the fixed ones")


def _write(study: Any, optuna: Any, search: Search, words: Sequence[str]) -> None:
    """trials.csv; once a trial has ended, best.yaml and recipe.yaml."""
    folder, config = search.folder, search.config
    rows = [
        {"trial": t.number, "state": t.state.name, "value": t.value, **t.params}
        for t in study.get_trials(deepcopy=False)
    ]
    write_csv(folder / "trials.csv", rows)
    ended = study.get_trials(states=[optuna.trial.TrialState.COMPLETE], deepcopy=False)
    if not ended:
        return
    best = study.best_trial
    found = {
        key: parse_yaml(value) if isinstance(value, str) else value
        for key, value in best.params.items()
    }
    elsewhere = ("resume", *_spread.WORDS)
    content = {
        "env": config.env,
        "agent": config.agent,
        "command": shlex.join(
            [
                "python",
                "-m",
                "agents.tune",
                *(w for w in words if w.partition("=")[0] not in elsewhere),
            ]
        ),
        "trials": _done(study, optuna),
        "steps_per_trial": config.total_timesteps,
        "seed": config.seed,
        "trial": best.number,
        "value": best.value,
        "options": found,
    }
    comment = (
        "# Written by agents.tune; the command below makes it anew, `options` are those of "
        "agents.train.\n"
    )
    write_text(folder / "best.yaml", comment + yaml.safe_dump(content, sort_keys=False))
    recipe = {
        **{key: value for key, value in search.fixed.items() if key not in _OF_TRIALS},
        **found,
    }
    plain = {
        key: list(value) if isinstance(value, tuple) else value for key, value in recipe.items()
    }
    comment = (
        f"# The best settings that {content['command']} found:\n"
        f"#   python -m agents.train env={config.env} recipe=recipe.yaml\n"
    )
    write_text(folder / "recipe.yaml", comment + yaml.safe_dump(plain, sort_keys=False))


if __name__ == "__main__":
    sys.exit(main())
