"""Train a policy on an environment, watch it pass the reference policies, compare them at the end.

    llmscale train env=NAME [KEY=VALUE ...]   (or: python -m agents.train ...)

    out=FOLDER             run folder (default: runs/ENV-AGENT-seedSEED, numbered if it is taken)
    recipe=FILE.yaml       options that belong together; what is given besides wins
    resume=true            go on with the run in out=, which needs no env= (or the latest unfinished
                           one of env= and agent=)
    total_timesteps=N  seed=N  n_envs=N  env_threads=N  torch_threads=N
    validation_every=N  validation_episodes=N  evaluation_episodes=N
    engine=reference       the simulator in readable Python: same numbers, a hundred times slower
    references=A,B,C       policies to compare with, or none
    seeds=0,1,2|0..4       several runs side by side, each in a folder of its own below out=
                           (runs); workers=N at once; launcher=ray: on a Ray cluster
    agent=ppo              or maskable-ppo (impossible choices are ruled out), recurrent-ppo
                           (it remembers)
    ppo.gamma=0.98 ...     hyperparameters of the agent, by stable-baselines3's names
    observation=A,B  action=A,B  forecaster=NAME  reference=POLICY     what is seen and decided
    warm_start.policy=P    begin as a copy of a policy (.episodes, .epochs, .kl, .kl_steps)
    lagrangian.attainment=A    prices of misses that move until so many are served in time
    same_arrivals=K        K episodes side by side get the same requests; group_baseline=true
                           compares them
    randomise.ranges.FIELD=[LOW, HIGH]  train on many scenarios at once (.groups, .episodes)
    scenario=NAME|FILE.yaml  scenario.fleet.max_gpus=12 ...    what is simulated

Defaults stand in agents/configs/ENV.yaml; docs/training.md explains everything that is written.
Exit codes: 0 done, 1 when one of several seeds failed, 2 after a slip, 130 when interrupted.

Examples:
    llmscale train env=mixed-slo-hours total_timesteps=2000000
    llmscale train env=mixed-slo-hours agent=maskable-ppo seeds=0..4 workers=2 out=runs/mine
    llmscale train resume=true out=runs/mixed-slo-hours-ppo-seed0
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.configuration.config import (
    TrainConfig,
    environment_id,
    environment_names,
    make_config,
    parse_words,
    read_config,
)
from agents.configuration.settings import teacher_of
from agents.models.store import LAST, cannot_resume
from agents.runs.files import provenance, read_csv, read_json, said, write_csv, write_json
from agents.runs.folders import FolderTaken, held, is_unused
from llmscale_env._cli import Slip, check_folder, closest, flag, needs, run_command
from llmscale_env._writing import write_text

if TYPE_CHECKING:
    from agents.runs.comparison import Row
    from llmscale_env.control.simulation import ClusterSimulation
    from llmscale_env.scenarios import Scenario

RUNS = Path("runs")

CHANGES_ON_RESUME = (
    *("total_timesteps", "env_threads", "torch_threads", "engine"),
    "evaluation_episodes",
)
"""Options that may differ when a run is taken up again; others would make it another run."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 after a slip (named in one line), 130 when interrupted.

    With several seeds also 1: one of them failed.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if any(word.startswith(("seeds=", "launcher=", "workers=", "ray.address=")) for word in words):
        from agents.runs.seeds import main as several

        return several(words)
    return run_command("train", __doc__, words, _train)


def _train(words: Sequence[str]) -> int:
    needs("filelock", "safetensors", "torch", "stable_baselines3")
    config, folder, resumes = plan(words)
    scenario = check(config)
    from agents.models.store import ModelError
    from llmscale_env.scenarios import ScenarioError

    while True:
        try:
            check_folder("out", folder)
            with held(folder, goes_on=resumes):
                return run(config, scenario, folder, words, resumes)
        except FolderTaken:
            # Whoever names no folder gets the next one that is free.
            if resumes or any(word.startswith("out=") for word in words):
                raise
            folder = _free_folder(config)
        except (MemoryError, ModelError, ScenarioError) as error:
            raise Slip(str(error)) from None
        except KeyboardInterrupt:
            again = f"python -m agents.train env={config.env} resume=true out={folder}"
            begun = (folder / "config.yaml").is_file()
            how = (
                f"to go on: {again}" if begun else "nothing had begun; give the same command again"
            )
            said(f"interrupted; {how}")
            return 130


def plan(words: Sequence[str]) -> tuple[TrainConfig, Path, bool]:
    """What the command line asks for: configuration, run folder, whether an earlier run goes on.

    Raises:
        Slip: see `parse_words` and `make_config`; a folder in use, nothing to go on with, or a run that
            cannot go on.
    """
    changes, options = parse_words(words, ("env", "out", "resume"))
    given = Path(options["out"]) if "out" in options else None
    resumes = flag(options, "resume")
    if "env" not in options and resumes and given:
        options["env"] = read_config(given).env
    if "env" not in options:
        raise Slip(f"env= is missing; there are {list(environment_names())}")
    env = options["env"]
    environment_id(env)
    if resumes and "agent" not in changes and given and given.is_dir():
        changes = {**changes, "agent": read_config(given).agent}
    config = make_config(env, changes)
    if not resumes:
        folder = given or _free_folder(config)
        if given and not is_unused(given):
            raise Slip(
                f"out = {str(folder)!r}: is in use; choose another, or add resume=true to go on with it"
            )
        return config, folder, False
    folder = given or _latest_unfinished(config)
    if why := cannot_resume(folder):
        raise Slip(why)
    earlier = read_config(folder)
    if earlier.env != env:
        raise Slip(f"env = {env!r}: the run in {folder} is of {earlier.env!r}")
    asked = {key: value for key, value in changes.items() if key in CHANGES_ON_RESUME}
    merged = TrainConfig.model_validate(
        {**earlier.model_dump(), **{key: getattr(config, key) for key in asked}}
    )
    for key in changes:
        if key not in CHANGES_ON_RESUME and _value(config, key) != _value(merged, key):
            raise Slip(
                f"{key} cannot change when a run is taken up again (it is {_value(merged, key)!r}); "
                f"what can: {', '.join(CHANGES_ON_RESUME)}"
            )
    return merged, folder, True


def check(config: TrainConfig) -> Scenario:
    """The run's scenario, and that all that is named exists, before anything is made.

    Raises:
        Slip: an unknown scenario, field, policy, observation block, action head or forecaster, a policy
            that cannot run the scenario, or a quantile of instance counts where none are decided.
    """
    from agents.configuration.environments import (
        check_quantile,
        codec_of,
        evaluation_scenario,
        make_scenario,
        validation_scenarios,
    )
    from agents.learning.translation import TranslationError, Translator
    from agents.learning.variety import ScenarioSource, is_varied
    from baselines import POLICY_NAMES, PolicyError, make_policy, misfit
    from llmscale_env.control.forecast import make_forecaster
    from llmscale_env.scenarios import ScenarioError

    policies = [("references", name) for name in config.references]
    teacher = config.warm_start.policy
    if teacher is not None:
        names = dict.fromkeys(teacher_of(teacher, w) for w in config.drawn_workloads() or [""])
        policies += [("warm_start.policy", name) for name in names]
    if config.reference is not None:
        policies.append(("reference", config.reference))
    for where, name in policies:
        kind = name.partition(":")[0]
        if kind not in POLICY_NAMES:
            raise Slip(f"{where}: unknown policy {kind!r}{closest(kind, POLICY_NAMES)}")
    try:
        scenario = make_scenario(config)
    except ScenarioError as error:
        raise Slip(str(error)) from None
    try:
        validated = validation_scenarios(config, scenario)
    except ScenarioError as error:
        raise Slip(f"validation_workloads, validation_rate_scales: {error}") from None
    try:
        judged = evaluation_scenario(config, scenario)
    except ScenarioError as error:
        raise Slip(f"evaluation_scenario, evaluation_workload: {error}") from None
    for where, name in policies:
        try:
            policy = make_policy(name)
            for each in (scenario, *validated.values(), judged):
                policy.reset(each, 0)
        except PolicyError as error:
            raise Slip(f"{where}: {misfit(name, scenario, error)}") from None
        every = config.warm_start.every
        if where == "warm_start.policy" and every > 1 and not hasattr(policy, "see"):
            raise Slip(
                f"warm_start.every = {every}: must be 1, as {name} has no `see` for decisions between"
            )
    classes = [c.name for c in scenario.classes]
    for option in ("group_baseline", "randomise.ranges", "curriculum"):
        # All episodes must be at the same step, and end together.
        if _value(config, option) and scenario.decisions != "intervals":
            raise Slip(
                f"{option}: needs decisions at intervals; {scenario.name} has them at arrivals"
            )
    asked = config.lagrangian.attainment
    for name in asked if isinstance(asked, dict) else ():
        if name not in classes:
            raise Slip(f"lagrangian.attainment.{name}: there is no such class; there are {classes}")
    try:
        codec = codec_of(config, scenario)
        if config.quantile is not None:
            check_quantile(config.quantile, codec)
        if teacher is not None:
            Translator(codec, scenario)
        if config.forecaster is not None:
            make_forecaster(config.forecaster)
        if is_varied(config):
            ScenarioSource(config, scenario).check()
    except TranslationError as error:
        raise Slip(f"warm_start.policy = {teacher!r}: {error}") from None
    except ValueError as error:
        raise Slip(str(error)) from None
    return scenario


def run(
    config: TrainConfig,
    scenario: Scenario,
    folder: Path,
    words: Sequence[str],
    resumes: bool,
    on_validation: Callable[[int, list[Row]], object] | None = None,
    wished: Callable[[], bool] | None = None,
) -> int:
    """Train, then compare. Writes the run folder (docs/training.md lists it).

    `on_validation` and `wished` are those of `agents.learning.learner.learn`.

    Raises:
        KeyboardInterrupt: interrupted; whatever was saved can be taken up again.
        ModelError: the model of a run that is taken up cannot be read.
    """
    import torch

    from agents.configuration.environments import simulation_of
    from agents.learning.learner import learn

    torch.set_num_threads(config.torch_threads)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "config.yaml", config.to_yaml())
    _note_command(folder, config, words)
    if resumes and not (folder / LAST).is_file():
        said(f"{folder}: stopped before its first model was written; it begins anew")
    said(f"run folder {folder}; curves: tensorboard --logdir {folder / 'tb'}")
    simulation = simulation_of(config, scenario)
    references = _reference_rows(config, scenario, folder, simulation)
    learn(config, scenario, folder, simulation, references, resumes, on_validation, wished)
    _finish(config, scenario, folder, simulation)
    _note_end(folder)
    return 0


def _reference_rows(
    config: TrainConfig, scenario: Scenario, folder: Path, simulation: ClusterSimulation
) -> list[Row]:
    """Validation rows of the references; read again where a run is taken up."""
    from agents.configuration.environments import simulations_of, validation_scenarios
    from agents.runs.comparison import run_on_each
    from baselines import make_policy

    path = folder / "references.csv"
    if path.is_file():
        return read_csv(path)
    rows: list[Row] = []
    scenarios = validation_scenarios(config, scenario)
    simulations = simulations_of(config, scenarios, simulation)
    from tqdm import tqdm

    for name in tqdm(config.references, "references", disable=None, leave=False):
        rows += run_on_each(
            make_policy(name), scenarios, config.validation_seeds(), simulations=simulations
        )
    if rows:
        write_csv(path, rows)
    return rows


def _finish(
    config: TrainConfig, scenario: Scenario, folder: Path, simulation: ClusterSimulation
) -> None:
    """Table on episodes that nothing was chosen by, pictures, and where everything is."""
    from agents.configuration.environments import evaluation_scenario, simulation_of
    from agents.evaluate import compare, draw_episode, listed
    from agents.learned import LearnedPolicy
    from agents.models.store import BEST
    from agents.runs.plots import learning_curve
    from baselines import make_policy
    from llmscale_env._spread import ALONE, Launcher
    from llmscale_env.control.reward import even_seeds
    from llmscale_env.scenarios.basis import times_told

    learned = LearnedPolicy(folder, name=config.agent)
    judged = evaluation_scenario(config, scenario)
    if judged is not scenario:
        simulation = simulation_of(config, judged)
    places = [("model", folder / BEST), ("TensorBoard", folder / "tb")]
    curve = learning_curve(folder, folder / "learning_curve.png", scenario)
    places += [("learning curve", curve)]
    chosen = config.evaluation_seeds()
    seeds = even_seeds(judged, chosen.start, max(len(chosen), 1))
    if config.evaluation_episodes:
        policies = [learned, *(make_policy(name) for name in config.references)]
        # Whole days take longer than processes take to start.
        spreads = judged is not scenario and config.engine == "fast"
        side_by_side = Launcher(workers=config.env_threads) if spreads else ALONE
        text, files = compare(policies, judged, seeds, folder, simulation, side_by_side)
        print(text, *times_told(judged), sep="\n", flush=True)
        places += files
    path = draw_episode(learned, judged, seeds[0], folder, simulation)
    places += [("an episode", path)]
    print(listed(places), flush=True)


def _note_command(folder: Path, config: TrainConfig, words: Sequence[str]) -> None:
    """Append command, code and versions to run.json; a run that is taken up has several."""
    from agents.configuration.environments import evaluation_scenario, make_scenario
    from llmscale_env.control.reward import even_seeds

    path = folder / "run.json"
    sessions: list[Any] = list(read_json(path).get("sessions", [])) if path.is_file() else []
    sessions.append(provenance(words, "agents.train"))
    validation, evaluation = config.validation_seeds(), config.evaluation_seeds()
    judged = evaluation_scenario(config, make_scenario(config))
    seeds = {
        "seed": config.seed,
        "first_training_episodes": config.training_seeds(),
        "validation": [validation.start, validation.stop - 1],
        "evaluation": even_seeds(judged, evaluation.start, len(evaluation)),
    }
    write_json(path, {"sessions": sessions, "seeds": seeds})


def folder_name(config: TrainConfig) -> str:
    """What a run's folder is called."""
    return f"{config.env}-{config.agent}-seed{config.seed}"


def _note_end(folder: Path) -> None:
    """Write into run.json that the last session got to its end: what `is_finished` asks for."""
    path = folder / "run.json"
    noted = read_json(path)
    noted["sessions"][-1]["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
    write_json(path, noted)


def is_finished(folder: Path) -> bool:
    """Whether a run got to its very end, its last session with it: pictures may be of an earlier one."""
    try:
        return "finished" in read_json(folder / "run.json")["sessions"][-1]
    except (LookupError, Slip, TypeError):
        return False


def _free_folder(config: TrainConfig) -> Path:
    base = RUNS / folder_name(config)
    folder, number = base, 1
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def _latest_unfinished(config: TrainConfig) -> Path:
    """Of the runs that can go on; others are named."""
    found = RUNS.glob(f"{config.env}-{config.agent}-seed*/config.yaml")
    for folder in sorted((path.parent for path in found), key=_written, reverse=True):
        if is_finished(folder):
            continue
        why = cannot_resume(folder)
        if not why:
            return folder
        said(f"passed over: {why}")
    raise Slip(
        f"resume = true: no unfinished run in {RUNS} that can go on; name its folder with out="
    )


def _written(folder: Path) -> float:
    """When a run last wrote its configuration or its last model."""
    files = (folder / "config.yaml", *folder.glob("model_last.*"))
    return max(path.stat().st_mtime for path in files)


def _value(config: TrainConfig, key: str) -> Any:
    """What an option is; a field of a section that is not there is None."""
    head, _, rest = key.partition(".")
    if head == "scenario" and rest:
        return config.overrides.get(rest)
    found = getattr(config, head.replace("-", "_"))
    for part in (
        ("ranges", rest.removeprefix("ranges.")) if "." in rest else (rest,) if rest else ()
    ):
        found = found.get(part) if isinstance(found, dict) else getattr(found, part, None)
    return found


if __name__ == "__main__":
    sys.exit(main())
