"""Search a reference policy's settings on a scenario: what "tuned" means in its name.

    llmscale tune policy=NAME [env=NAME] [KEY=VALUE ...]   (or: python -m baselines.tune ...)

    policy=NAME     static, llumnix, llumnix-freeness, hpa, kpa, ray-serve, keda, wva, wva-tokens,
                    dynamo, dynamo-load, chiron or paced; with search=optuna also: twin, qlm,
                    twin-queues, edf, vllm, shepherd, aladdin, jsq, power-of-two, machine-wide,
                    blitzscale, serverlessllm, allcache, distserve, reactive, siloed, lt-i, lt-u
                    or lt-ua
    env=NAME|FILE.yaml  scenario (mixed-slo-hours); scenario.fleet.max_gpus=12 ... changes it
    workload=A      a shipped workload in place of the scenario's (a mix, or of a family, as
                    mixed-slo/validation-hours); workloads=A,B: one setting for all of them
    search=grid     every point of the policy's grid, or with a budget as many as it allows;
                    "optuna": points of its ranges by Optuna's TPE sampler (extra "tune")
    budget_steps=N  simulated control intervals in all, as a learner's `total_timesteps`: settings
                    with first_seeds=2 seeds each, the better half with twice as many, and so on
    seeds=8         episodes per setting at most, with seeds from 1000 on (where a seed draws a
                    day, every day comes once before any comes again); evaluation's begin at 10000
    seed=0          of the sampler, and of the order of the grid's points
    score=reward    mean reward; "attainment": mean share on time, then fewer GPU-hours;
                    "gpu-hours": the fewest with every class's mean at least attainment=0.99
    PARAMETER=0.1,0.2  values in place of the policy's own; with optuna also a range, as 0.1..0.9
    out=FILE        where the best setting goes; else baselines/tuned/POLICY_SCENARIO.yaml, with
                    workload= POLICY_SCENARIO_WORKLOAD.yaml. llmscale evaluate policies=FILE runs it
    write=false     print the table only
    cache=FOLDER    where episodes are kept, so that the same command goes on after an
                    interruption; "none": nowhere
    workers=1       processes; launcher=ray: a cluster's (docs/clusters.md). What is found is the
                    same with any number

Every setting meets the same episodes; docs/policies.md says what is searched, and why so. Exit
codes: 0 done, 2 after a slip, 130 when interrupted.

Examples:
    llmscale tune policy=hpa env=mixed-slo-hours score=gpu-hours out=my_hpa.yaml
    llmscale tune policy=chiron search=optuna budget_steps=20000 workers=2 out=my_chiron.yaml
    llmscale tune policy=hpa kv_target=0.5,0.7,0.9 period_s=15,60 seeds=4 write=false
"""

from __future__ import annotations

import datetime
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from baselines.parameters import PolicyError
from baselines.registry import (
    TUNABLE,
    begins_with,
    grid_of,
    grid_points,
    settings_of,
    space_of,
)
from baselines.space import Choice, Part, Real, Space, Whole
from baselines.tuned_settings import settings_path
from baselines.tuning.episodes import (
    FIRST_SEED,
    MAX_SEEDS,
    Episodes,
    default_folder,
    fingerprint,
    tuning_seeds,
)
from baselines.tuning.halving import plan
from baselines.tuning.search import (
    Found,
    TunerMissing,
    from_list,
    from_optuna,
    halve,
    import_optuna,
    sweep,
)
from baselines.tuning.trials import SCORES, Score, Trial, settings_text, table_text
from llmscale_env import _spread
from llmscale_env._cli import (
    Slip,
    check_file,
    closest,
    flag,
    number,
    one_of,
    parse_options,
    run_command,
    scenario_of,
    some_of,
    split_scenario_words,
    whole,
)
from llmscale_env._reading import Unreadable, parse_yaml
from llmscale_env._spread import OtherCode, WorkerLost, launcher_of
from llmscale_env._writing import write_text
from llmscale_env.scenarios.basis import times_told
from llmscale_env.scenarios.load import ScenarioError, load_scenario, scenario_names
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.workload.families import member_names
from llmscale_env.workload.mixes import mix_names

__all__ = ["FIRST_SEED", "MAX_SEEDS", "Trial", "grid_points", "main", "settings_text", "table_text"]

SEARCHES = ("grid", "optuna")
_MOST_STEPS = 10**10
_WORDS = (
    *("policy", "env", "workload", "workloads", "seeds", "first_seeds", "search", "budget_steps"),
    *("seed", "score", "attainment", "out", "write", "cache", *_spread.WORDS),
)


def _values(name: str, text: str, kind: Any, own: Sequence[Any]) -> list[Any]:
    """Values of a parameter from "0.1,0.2", each as the policy's field, or as those of its own grid.

    Raises:
        Slip: a value that the parameter never has.
    """
    field = kind.parameters_type.model_fields.get(name)
    try:
        values = [parse_yaml(part) for part in text.split(",")]
        if field is not None:
            of: Any = field.annotation
            for limit in field.metadata:
                of = Annotated[of, limit]
            allowed: Any = TypeAdapter(of)
            for value in values:
                allowed.validate_python(value)
        elif all(isinstance(value, (int, float)) for value in own):
            for value in values:
                Real(value, value)
        return values
    except (Unreadable, ValueError, TypeError) as error:
        told = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise Slip(f"{name} = {text!r}: must be values separated by commas ({told})") from None


def _part(name: str, text: str, before: Part | None, kind: Any) -> Part:
    """Values, or a range from "0.1..0.9", whole and logarithmic as the one that it replaces."""
    low, dots, high = text.partition("..")
    if not dots:
        own = before.values if isinstance(before, Choice) else (0,)
        return Choice(tuple(_values(name, text, kind, own)))
    try:
        if isinstance(before, Whole):
            return Whole(int(low), int(high), before.log)
        return Real(float(low), float(high), isinstance(before, Real) and before.log)
    except ValueError as error:
        raise Slip(f"{name} = {text!r}: must be a range as 0.1..0.9 ({error})") from None


def _score(options: Mapping[str, str]) -> Score:
    name = one_of(options, "score", SCORES)
    if "attainment" in options and name != "gpu-hours":
        raise Slip(f"attainment = {options['attainment']!r}: goes with score=gpu-hours")
    return Score(name, number(options, "attainment", 0.99, 0.0, 1.0, above=True))


def _scenarios(options: Mapping[str, str], overrides: Mapping[str, Any]) -> list[Scenario]:
    env = scenario_of(options.get("env", "mixed-slo-hours"), scenario_names())
    if "workload" in options and "workloads" in options:
        raise Slip("workload and workloads: one of them")
    if "workload" in options:
        one_of(options, "workload", ("", *mix_names(), *member_names()))
        return [load_scenario(env, **{**overrides, "workload": options["workload"]})]
    if "workloads" in options:
        mixes = some_of(options, "workloads", (*mix_names(), *member_names()))
        return [load_scenario(env, **{**overrides, "workload": mix}) for mix in mixes]
    return [load_scenario(env, **overrides)]


def _search(
    kind: Any, episodes: Episodes, options: Mapping[str, str], score: Score, title: str
) -> tuple[Found, int | None]:
    """What was found, and the budget in steps (None: without one); `title` is printed with the plan."""
    scenario = episodes.scenarios[0]
    how = one_of(options, "search", SEARCHES)
    seeds = whole(options, "seeds", 8, 1, MAX_SEEDS)
    first = whole(options, "first_seeds", min(2, seeds), 1, seeds)
    seed = whole(options, "seed", 0, 0, 2**31 - 1)
    changed = {key: text for key, text in options.items() if key not in _WORDS}
    points: list[dict[str, Any]] | None = None
    space: Space = {}
    if how == "grid":
        grid = grid_of(kind, scenario)
        values = {
            key: _values(key, text, kind, grid.get(key, (0,))) for key, text in changed.items()
        }
        if not values and not grid:
            raise Slip(
                "search = 'grid': no grid of its own; must be optuna, or name values: KEY=A,B"
            )
        points = grid_points(kind, values, scenario)
        for point in points:
            kind(**point)  # every slip before a word of the search
    else:
        import_optuna()
        own = space_of(kind, scenario)
        space = {
            **own,
            **{key: _part(key, text, own.get(key), kind) for key, text in changed.items()},
        }
    if points is not None and "budget_steps" not in options:
        print(f"{title}: {len(points)} settings, {seeds} seeds each")
        with _bar(episodes, len(points) * seeds * episodes.steps_per_seed):
            return sweep(episodes, points, seeds, score), None
    if "budget_steps" not in options:
        raise Slip("search=optuna needs budget_steps=N, simulated control intervals in all")
    each = episodes.steps_per_seed
    budget = whole(options, "budget_steps", 0, seeds * each, _MOST_STEPS)
    made = plan(budget // each, seeds, first, None if points is None else len(points) + 1)
    rounds = ", then ".join(f"{n} settings with {s} seeds" for n, s in made.rounds)
    print(f"{title}: {rounds}: {made.units * each:,} steps")
    if points is not None:
        known = [settings for settings, _ in from_list(points, seed)]
        with _bar(episodes, made.units * each):
            return halve(episodes, from_list(points, seed), made, score, known), budget
    ahead = begins_with(kind, scenario, space)
    # A quarter of the settings at most, whichever.
    some = random.Random(seed).sample(ahead, min(len(ahead), made.settings // 4))
    asked = from_optuna(
        space,
        partial(settings_of, kind, scenario=scenario),
        partial(score.loss, most_gpu_hours=episodes.most_gpu_hours),
        seed,
        some,
    )
    with _bar(episodes, made.units * each):
        return halve(episodes, asked, made, score), budget


@contextmanager
def _bar(episodes: Episodes, steps: int) -> Iterator[None]:
    """How many of the search's control intervals are done."""
    from tqdm import tqdm

    shown = {"unit": " steps", "unit_scale": True, "disable": None, "leave": False}
    with tqdm(total=steps, **shown) as bar:
        episodes.after_each = bar.update
        yield


def search(words: Sequence[str]) -> int:
    """The command without its errors; 0.

    Raises:
        Slip, OSError, WorkerLost, OtherCode: as the command tells them.
    """
    others, overrides = split_scenario_words(words)
    name = next((word.partition("=")[2] for word in others if word.startswith("policy=")), "")
    if name not in TUNABLE:
        raise Slip(f"policy = {name!r}: cannot be tuned{closest(name, TUNABLE)}")
    kind = TUNABLE[name]
    plain = dict(
        word.split("=", 1) for word in others if word.split("=")[0] in _WORDS and "=" in word
    )
    try:
        scenarios = _scenarios(plain, overrides)
        scenario = scenarios[0]
        own = (*grid_of(kind, scenario), *space_of(kind, scenario))
        known = (*own, *kind.parameters_type.model_fields)
        options = parse_options(others, tuple(dict.fromkeys((*_WORDS, *known))))
        score = _score(options)
        path = settings_path(name, scenario.name, options.get("workload"))
        path = Path(options.get("out", path))
        writes = flag(options, "write", True)
        if writes:
            check_file("out", path)
        kept = None
        if options.get("cache") != "none":
            folder = Path(options["cache"]) if "cache" in options else default_folder()
            kept = folder / f"{name}_{scenario.name}_{fingerprint(name, scenarios)}.jsonl"
        episodes = Episodes(kind, scenarios, kept, launcher_of(options, workers=1))
        shown = options.get("workload", options.get("workloads", scenario.name))
        title = f"{name} on {shown}, {score}, {episodes.steps_per_seed} steps per seed"
        with closing(episodes):
            found, budget = _search(kind, episodes, options, score, title)
    except (ScenarioError, PolicyError, TunerMissing) as error:
        raise Slip(str(error)) from None
    print(table_text(found.trials))
    print("\n".join(times_told(scenario)))
    if score.name == "gpu-hours" and score.key(found.trials[0])[0] > 0:
        print(f"no setting keeps every class at {score.target:g}; the first one comes nearest")
    of = "" if budget is None else f" of {budget:,}"
    print(f"steps: {found.steps:,}{of}, {episodes.replayed:,} of them from the cache")
    if not writes:
        return 0
    header = {
        "policy": name,
        "scenario": scenario.name,
        "workload": options.get("workload", options.get("workloads")),
        "command": " ".join(["python -m baselines.tune", *_without_where(words)]),
        "date": datetime.date.today().isoformat(),
        "search": options.get("search", "grid"),
        "seeds": _seeds_text(tuning_seeds(scenario, whole(options, "seeds", 8, 1, MAX_SEEDS))),
        "score": str(score),
        "settings_tried": len(found.trials),
        "budget_steps": budget,
        "steps": found.steps,
    }
    given = {key: value for key, value in header.items() if value is not None}
    write_text(path, settings_text(found.trials[0], given))
    print(f"written: {path}")
    return 0


def _seeds_text(seeds: Sequence[int]) -> str:
    if list(seeds) != list(range(seeds[0], seeds[0] + len(seeds))) or len(seeds) == 1:
        return ", ".join(map(str, seeds))
    return f"{seeds[0]}..{seeds[-1]}"


def _without_where(words: Sequence[str]) -> list[str]:
    """The words that say what is searched, without those that say where."""
    places = (*_spread.WORDS, "cache")
    return [word for word in words if word.partition("=")[0] not in places]


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; 0 when it worked, 2 for a slip."""
    return run_command("tune", __doc__, words, search, wordless=True, slips=(WorkerLost, OtherCode))


if __name__ == "__main__":
    sys.exit(main())
