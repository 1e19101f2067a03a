"""Compare policies on the same episodes.

    llmscale evaluate env=NAME [policies=A,B] [KEY=VALUE ...]   (or: python -m agents.evaluate ...)

    policies=A,B,C    what to compare; the others are compared with the first. Each is one of:
                      NAME                    a reference policy (default: all but planners)
                      NAME:KEY=VALUE+KEY=...  with parameters, which `+` separates
                      FILE.yaml               a setting that `llmscale tune out=FILE.yaml` found
                      FOLDER, FILE.safetensors  a trained run or model; :quantile=0.8 takes that
                                              quantile of its instance counts
                      pretrained              the one that ships (pretrained:NAME of several)
                      do-nothing, random, random-masked   players that look at nothing
                      A name of a policy is that policy; a folder of the same name is ./NAME
    episodes=20       episodes, with the seeds SEED, SEED + 1, ...; equal ones count once. Where
                      a seed draws a whole day, some are left out so that days come equally often
                      (even=true: also of windows that begin at any time of a day)
    seed=10000        first seed
    out=FOLDER        where to write (default: results/evaluate-ENV, or -NAME of scenario=NAME)
    openmetrics=FILE  the summary as OpenMetrics too: gauges by policy, class and environment
    workers=1         processes; launcher=ray: on a Ray cluster (docs/clusters.md). The numbers
                      are the same anywhere
    engine=reference  the simulator in readable Python: the same numbers, a hundred times slower
    wide=true         also what is open at the horizon, tail latency, preemptions, scaling,
                      interquartile mean, correlation of instances with arrivals (ten minutes)
    scenario=NAME|FILE.yaml  scenario.fleet.max_gpus=12 ...    what is simulated

Prints a table: share on time of each class, GPU-hours, reward, and its difference from the first
policy's. Writes evaluation.csv (a row per policy and seed), summary.csv and comparison.png (extra
"plots"). Exit codes: 0 done, 2 after a slip, 130 when interrupted.

Examples:
    llmscale evaluate env=mixed-slo-hours policies=chiron,llumnix,hpa,static
    llmscale evaluate env=mixed-slo-hours policies=my_hpa.yaml,hpa:kv_target=0.5+period_s=60
    llmscale evaluate env=burst-multicast policies=static:prefill=10+decode=1 episodes=50 workers=4
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.configuration.config import EVALUATION_SEED, environment_id
from agents.runs.files import provenance, said, write_csv, write_json
from llmscale_env import _spread
from llmscale_env._cli import (
    Slip,
    check_file,
    check_folder,
    closest,
    flag,
    needs,
    number,
    one_of,
    parse_scenario_words,
    run_command,
    whole,
)
from llmscale_env._spread import ALONE, Launcher, OtherCode, WorkerLost, launcher_of
from llmscale_env._writing import replace_file

if TYPE_CHECKING:
    from llmscale_env.control.policy import Policy
    from llmscale_env.control.simulation import ClusterSimulation
    from llmscale_env.scenarios import Scenario

RESULTS = Path("results")

Places = list[tuple[str, Path]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 after a slip (named in one line), 130 when interrupted."""
    return run_command(
        "evaluate",
        __doc__,
        argv,
        _evaluate,
        interrupted="interrupted; nothing was written",
        slips=(WorkerLost, OtherCode),
    )


def _evaluate(words: Sequence[str]) -> int:
    options, scenario_name, overrides = parse_scenario_words(
        words,
        ("env", "policies", "episodes", "seed", "even", "out", "openmetrics", "wide", "engine",
         *_spread.WORDS),
    )  # fmt: skip
    if "env" not in options:
        raise Slip("env= is missing, such as env=mixed-slo-hours")
    environment_id(options["env"])
    episodes = whole(options, "episodes", 20, 1, 100_000)
    seed = whole(options, "seed", EVALUATION_SEED, 0, 2**31 - 1)
    wide, even = flag(options, "wide"), flag(options, "even")
    launcher = launcher_of(options, workers=1)
    engine = one_of(options, "engine", ("fast", "reference"))
    if engine == "reference" and launcher != ALONE:
        raise Slip(f"engine = {engine!r}: in one process only, without workers= and launcher=")
    of = Path(scenario_name).stem if scenario_name else options["env"]
    out = Path(options.get("out", RESULTS / f"evaluate-{of}"))
    from llmscale_env.control.reward import even_seeds
    from llmscale_env.scenarios import ScenarioError, held_out, load_scenario, scenario_names
    from llmscale_env.scenarios.basis import times_told
    from llmscale_env.workload.generate import days_to_draw

    if options["env"] not in scenario_names() and not scenario_name:
        raise Slip(
            f"env = {options['env']!r}: is for gymnasium.make only, has no scenario of its own"
        )
    try:
        scenario = load_scenario(scenario_name or options["env"], **overrides)
    except ScenarioError as error:
        raise Slip(str(error)) from None
    if even and days_to_draw(scenario.workload, scenario.horizon_s, any_time=True) is None:
        raise Slip("even = 'true': the load of this scenario has no days")
    policies = make_policies(options.get("policies"), options["env"], scenario)
    check_folder("out", out)
    metrics = Path(options["openmetrics"]) if "openmetrics" in options else None
    if metrics is not None:
        needs("prometheus_client")
        check_file("openmetrics", metrics)
    seeds = even_seeds(scenario, seed, episodes, any_time=even)
    text, places = compare(
        policies,
        scenario,
        seeds,
        out,
        None,
        launcher,
        wide=wide,
        engine=engine,
        openmetrics=metrics,
    )
    write_json(out / "evaluation.json", provenance(words, "agents.evaluate"))
    print(text)
    if days := sorted({d for each in scenario.workload.day_arrivals for d in each.days}):
        line = f"days of the load: {', '.join(map(str, days))}"
        if held := held_out(scenario):
            line += f"; searches and trainings see these, but not scenario.workload={held}"
        print(line)
    print("\n".join(times_told(scenario)))
    print(listed(places))
    return 0


def listed(places: Places) -> str:
    """What was written where, in lines."""
    width = max(len(what) for what, _ in places)
    return "\n".join(f"{what:<{width}}  {place}" for what, place in places)


def make_policies(text: str | None, env: str, scenario: Scenario) -> list[Policy]:
    """The policies named, ready for `scenario`.

    Args:
        text: comma-separated names of reference policies, paths of models, and files of `baselines.tune`
            (*.yaml); None: every reference that the scenario is made for.
        env: short name of the environment; of models that were trained on another one a line says so.
        scenario: that they are to run.

    Raises:
        Slip: an unknown name, a policy given twice, a policy or model that does not fit the
            scenario, a model or file that is missing or cannot be read.
    """
    from agents.blind_players import BLIND
    from agents.pretrained import PretrainedError, find, is_pretrained
    from baselines import (
        POLICY_NAMES,
        PolicyError,
        make_policy,
        misfit,
        policies_for,
        split_policies,
    )

    names = split_policies(text) if text else list(policies_for(scenario, planners=False))
    if not names:
        raise Slip(f"policies = {text!r}: names no policy")
    found: dict[str, Policy] = {}
    models: dict[str, _Model] = {}
    settings: dict[str, tuple[str, dict[str, Any]]] = {}
    places: set[tuple[Path, float | None]] = set()
    # Everything is looked for before anything is loaded: torch takes a second to come.
    for name in names:
        kind = name.partition(":")[0]
        if names.count(name) > 1:
            raise Slip(f"policies: {name!r} is given twice")
        if text and (kind in POLICY_NAMES or is_pretrained(name)) and Path(name).is_dir():
            said(f"policies: {name!r} is the policy; the folder of that name is ./{name}")
        if kind in POLICY_NAMES or name in BLIND:
            continue
        if name.endswith((".yaml", ".yml")):
            settings[name] = _setting(name, scenario)
            continue
        if "=" in kind:
            raise Slip(
                f"policies: {name!r} is no policy: parameters follow the name of one, with + between "
                f"them, as in {names[0].partition(':')[0]}:KEY=VALUE+KEY=VALUE"
            )
        plain, quantile = _quantile(name)
        if is_pretrained(plain):
            try:
                models[name] = _Model(find(plain, env).model, name, quantile)
            except PretrainedError as error:
                raise Slip(f"policies: {error}") from None
        elif not _is_path(plain):
            raise Slip(f"policies: unknown policy {kind!r}{closest(kind, [*POLICY_NAMES, *BLIND])}")
        elif not Path(plain).exists():
            raise Slip(f"policies: model {plain!r}: there is no such file or folder")
        else:
            place = Path(plain).resolve()
            if (place, quantile) in places:
                raise Slip(f"policies: {name!r} is given twice")
            places.add((place, quantile))
            known = place.name in POLICY_NAMES or is_pretrained(place.name)
            models[name] = _Model(Path(plain), name if known else None, quantile)
    for name in names:
        kind, values = settings.get(name, (name, {}))
        try:
            make = (
                partial(BLIND[name], env) if name in BLIND else partial(make_policy, kind, **values)
            )
            policy = models[name].load(env, scenario) if name in models else make()
            policy.reset(scenario, 0)
            if name not in models:
                policy = make()  # without an episode behind it: it can be pickled
            if name in settings:
                stem = Path(name).stem
                policy.name = name if stem in POLICY_NAMES else stem
        except PolicyError as error:
            raise Slip(f"policies: {misfit(name, scenario, error)}") from None
        plain, times = policy.name, 1
        while policy.name in found:
            times += 1
            policy.name = f"{plain}-{times}"
        found[policy.name] = policy
    return list(found.values())


def _setting(path: str, scenario: Scenario) -> tuple[str, dict[str, Any]]:
    """The policy and the parameters of a file that `baselines.tune out=FILE` has written.

    Raises:
        Slip: there is no such file, or it holds no setting.
    """
    from baselines.registry import TUNABLE
    from llmscale_env._reading import Unreadable, read_yaml

    what = f"policies: {path!r}"
    if not Path(path).is_file():
        raise Slip(f"{what}: there is no such file")
    try:
        found = read_yaml(Path(path))
    except Unreadable as error:
        raise Slip(f"{what}: {error}") from None
    policy = found.get("policy") if isinstance(found, dict) else None
    parameters = found.get("parameters") if isinstance(found, dict) else None
    if not isinstance(policy, str) or not isinstance(parameters, dict):
        raise Slip(
            f"{what}: must hold `policy` and `parameters`, as baselines.tune out=FILE writes them"
        )
    if policy not in TUNABLE:
        raise Slip(f"{what}: policy = {policy!r}: unknown{closest(policy, TUNABLE)}")
    of = found.get("scenario")
    if of is not None and of != scenario.name:
        said(f"policies: {path!r} was tuned on {of}, and runs on {scenario.name}")
    return policy, {str(key): value for key, value in parameters.items()}


def _is_path(name: str) -> bool:
    return (
        "/" in name
        or "\\" in name
        or name.endswith((".safetensors", ".zip"))
        or Path(name).is_dir()
    )


def _quantile(name: str) -> tuple[str, float | None]:
    """A model's name or path, and the quantile of its instance counts that is asked for."""
    plain, word, text = name.rpartition(":quantile=")
    if not word:
        return name, None
    try:
        return plain, number({"quantile": text}, "quantile", 0, 0, 1, above=True, below=True)
    except Slip as error:
        raise Slip(f"policies: {name!r}: {error}") from None


@dataclass(frozen=True)
class _Model:
    """A learned policy that is asked for: where it lies, what tables call it (None: its folder), how."""

    path: Path
    name: str | None
    quantile: float | None

    def load(self, env: str, scenario: Scenario) -> Policy:
        import torch

        from agents.learned import LearnedPolicy
        from agents.models.store import ModelError

        torch.set_num_threads(1)  # nets this small only wait for each other's threads
        try:
            policy = LearnedPolicy(self.path, name=self.name, quantile=self.quantile)
            policy.fit(scenario)
        except ModelError as error:
            raise Slip(f"policies: {error}") from None
        if policy.config.env != env:
            said(f"policies: {policy.name!r} was trained on {policy.config.env}, and runs on {env}")
        if self.quantile is not None and self.name is None:
            policy.name += f":quantile={self.quantile:g}"
        return policy


def compare(
    policies: Sequence[Policy],
    scenario: Scenario,
    seeds: Iterable[int],
    folder: Path,
    simulation: ClusterSimulation | None = None,
    launcher: Launcher = ALONE,
    *,
    wide: bool = False,
    engine: str = "fast",
    openmetrics: Path | None = None,
) -> tuple[str, Places]:
    """Run every policy on every seed; write rows, summary and picture into `folder`.

    Arguments and errors are those of `agents.runs.comparison.run_policies`, `wide` is that of its `table`.
    Without matplotlib there is no picture. `engine` is that of `ClusterSimulation`, in this process only.
    `openmetrics` is a file for the summary as OpenMetrics.

    Returns:
        The table as text, and what was written where.
    """
    from tqdm import tqdm

    from agents.runs.comparison import run_policies, summarise, table
    from agents.runs.plots import comparison
    from llmscale_env.control.simulation import ClusterSimulation

    seeds = list(seeds)
    if launcher == ALONE:
        simulation = simulation or ClusterSimulation(scenario, engine=engine)
    total = len(seeds) * len(policies)
    with tqdm(total=total, unit=" episodes", disable=None, leave=False) as bar:

        def after_each(name: str) -> None:
            bar.set_description(name, refresh=False)
            bar.update()

        rows = run_policies(
            policies,
            scenario,
            seeds,
            launcher=launcher,
            simulation=simulation,
            after_each=after_each,
        )
    summary = summarise(rows, scenario)
    places = [
        ("per seed", write_csv(folder / "evaluation.csv", rows)),
        ("summary", write_csv(folder / "summary.csv", summary)),
    ]
    if openmetrics is not None:
        from agents.runs.openmetrics import write_openmetrics

        places.append(("openmetrics", write_openmetrics(openmetrics, summary, scenario)))
    try:
        places.append(("comparison", comparison(summary, scenario, folder / "comparison.png")))
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("matplotlib"):
            raise
        said("no comparison.png: it needs matplotlib (pip install 'llmscale[plots]')")
    return table(summary, scenario, wide=wide), places


def draw_episode(
    policy: Policy,
    scenario: Scenario,
    seed: int,
    folder: Path,
    simulation: ClusterSimulation | None = None,
) -> Path:
    """Run one episode and draw it to `folder`/episode.png."""
    from agents.runs.comparison import forecaster_of
    from llmscale_env.control.run import run_episode

    result = run_episode(
        policy, scenario, seed, simulation=simulation, forecaster=forecaster_of(policy)
    )
    return replace_file(folder / "episode.png", result.plot)


if __name__ == "__main__":
    sys.exit(main())
