"""Everybody at their best in a world: the same budget of simulated decisions for each, judged on other days.

    python -m experiments.worlds [env=mixed-slo,placement,...] [scale=paper|quick] [search=missing|all|none]
                                 [episodes=N] [page=docs/worlds.md] [workers=1]

    env=A,B              environments; all if left out
    scale=paper          160 episodes of search each, and the page's table; quick: 6, nothing kept
    search=missing       searches for whom the package has no settings yet (baselines/tuned); "all": for
                         everybody again; "none": for nobody
    episodes=N           that everybody is judged by: seeds 10000, 10001, ... (mixed-slo: of each test day;
                         multi-region: those under which every weekday comes equally often)
    page=FILE            where the table goes, between its two marks; "none": nowhere
    workers=1            processes

Every policy with parameters is searched over them, the fixed fleet among them, and so is one constant action
of the environment. Beside them stand the policies at their published constants, the variants that the pages
name, nobody (do-nothing) and chance, with and without action masks. Searches are for reward; "at 99 %" says
that one was for the fewest GPU-hours with 99 % of every class on time. Episodes are kept in the user's cache,
so that a command that was interrupted goes on.

The tension of a world is what the best fixed fleet costs, in GPU-hours, over what the best rule does, both at
99 % of every class; where the number of GPUs is given, how much more reward the best rule has than the best
that looks at nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agents.statistics import mean_interval, paired_difference
from baselines import make_policy, policies_for, tune
from baselines.registry import TUNED_NAMES
from baselines.tunable import TUNABLE
from baselines.tuned_settings import FOLDER, read_settings, settings_path
from baselines.tuning.episodes import Episodes, default_folder, fingerprint
from baselines.tuning.halving import plan
from baselines.tuning.search import TunerMissing, from_optuna, halve
from baselines.tuning.trials import Outcome, Score
from experiments.blind_players import ConstantAction, DoNothing, RandomActions, action_space_of
from experiments.output import replace_file
from llmscale_env import _spread
from llmscale_env._cli import one_of, parse_options, run_command, some_of, whole
from llmscale_env._spread import Launcher, OtherCode, WorkerLost, launcher_of
from llmscale_env.control.run import even_seeds
from llmscale_env.scenarios import load_scenario
from llmscale_env.scenarios.schema import Scenario

TARGET = 0.99
FIRST_TEST_SEED = 10_000
AT_TARGET = FOLDER / "at-99"


@dataclass(frozen=True)
class World:
    """Where an environment's policies are searched and judged.

    Attributes:
        searched: scenario of the search.
        judged: scenarios on which they are judged.
        variants: that a page names, beside those that `policies_for` has.
        at_target: whether settings are also searched for the fewest GPU-hours at 99 % (not where the number
            of GPUs is given, nor where an episode takes seconds).
    """

    searched: str
    judged: Callable[[], list[Scenario]]
    variants: tuple[str, ...] = ()
    at_target: bool = True


def _test_days() -> list[Scenario]:
    """The test days of mixed-slo, each by itself."""
    return [
        load_scenario(
            "mixed-slo",
            **{f"workload.streams.{s}.arrivals.days": [day] for s in ("chat", "code")},
        )
        for day in (11, 12, 13, 14)
    ]


def _itself(env: str, *variants: str, at_target: bool = True) -> World:
    return World(env, lambda: [load_scenario(env)], variants, at_target)


WORLDS: dict[str, World] = {
    "mixed-slo": World("mixed-slo-hours", _test_days),
    "multi-model-queue": _itself(
        "multi-model-queue", "qlm:swapping=false", "shepherd:output=mean", at_target=False
    ),
    "placement": _itself("placement", "jsq:fleet=start", "aladdin:prompts=saturating"),
    "placement-per-request": _itself("placement-per-request", at_target=False),
    "burst-multicast": _itself(
        "burst-multicast", "blitzscale:min_prefill=4", "blitzscale:base_over=busy"
    ),
    "multi-region": _itself("multi-region", at_target=False),
}


@dataclass(frozen=True)
class Scale:
    """How much is simulated: episodes of search, of a setting at most and at first, and of the judgement."""

    budget: int
    seeds: int
    first: int
    episodes: int


SCALES = {"paper": Scale(160, 8, 2, 20), "quick": Scale(6, 2, 1, 2)}


@dataclass
class Row:
    """Somebody's episodes."""

    name: str
    outcomes: list[Outcome]
    settings: dict[str, Any] = field(default_factory=dict)

    def mean(self, what: str) -> float:
        """Of `reward`, `attainment` or `gpu_hours`."""
        return float(np.mean([getattr(o, what) for o in self.outcomes]))

    @property
    def worst_class(self) -> float:
        """Mean attainment of the class that has the lowest."""
        return float(np.mean([o.by_class for o in self.outcomes], axis=0).min())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 a slip (named in one line)."""
    return run_command(
        "worlds", __doc__, argv, _run, wordless=True, slips=(WorkerLost, OtherCode, TunerMissing)
    )


def _run(words: Sequence[str]) -> int:
    options = parse_options(
        list(words), ("env", "scale", "search", "episodes", "page", *_spread.WORDS)
    )
    names = some_of(options, "env", tuple(WORLDS))
    scale_name = one_of(options, "scale", tuple(SCALES))
    search = one_of(options, "search", ("missing", "all", "none"))
    scale = SCALES[scale_name]
    page = str(options.get("page", "docs/worlds.md" if scale_name == "paper" else "none"))
    launcher = launcher_of(options, workers=1)
    for env in names:
        world = WORLDS[env]
        scenario = load_scenario(world.searched)
        judged = world.judged()
        default = max(1, scale.episodes // len(judged) // (5 if env == "mixed-slo" else 1))
        episodes = whole(options, "episodes", default, 1, 1000)
        seeds = even_seeds(judged[0], FIRST_TEST_SEED, episodes)
        found = _searched(env, scenario, scale, search, launcher, keep=scale_name == "paper")
        rows = []
        for name, kind, settings in _players(env, scenario, found):
            outcomes = _judge(name, kind, settings, judged, seeds, launcher)
            rows.append(Row(name, outcomes, settings))
            print(f"{env}: {name}: reward {rows[-1].mean('reward'):.2f}", flush=True)
        command = f"python -m experiments.worlds env={env} scale={scale_name}"
        text = table(rows, len(judged) * episodes, command, at_target=world.at_target)
        print(text)
        if page != "none":
            put(Path(page), env, text)
    return 0


Found = dict[str, dict[str, Any]]


def _searched(
    env: str, scenario: Scenario, scale: Scale, search: str, launcher: Launcher, *, keep: bool
) -> Found:
    """Best settings by player: NAME-tuned, "NAME at 99 %" and the constant action."""
    found: Found = {}
    steps = scale.budget * scenario.n_steps
    for policy in policies_for(scenario):
        if policy not in TUNABLE:
            continue
        both = (
            (f"{policy}-tuned", FOLDER, ["score=reward"]),
            (f"{policy} at 99 %", AT_TARGET, ["score=gpu-hours", f"attainment={TARGET}"]),
        )
        for title, folder, score in both if WORLDS[env].at_target else both[:1]:
            path = settings_path(policy, scenario.name, folder=folder)
            if not keep:
                path = default_folder() / "quick" / path.relative_to(FOLDER)
            here = Path.cwd()
            shown = path.relative_to(here) if path.is_relative_to(here) else path
            if search == "all" or (search == "missing" and not path.is_file()):
                path.parent.mkdir(parents=True, exist_ok=True)
                code = tune.main(
                    [
                        *(f"policy={policy}", f"env={scenario.name}", "search=optuna", *score),
                        *(f"seeds={scale.seeds}", f"first_seeds={scale.first}"),
                        *(f"budget_steps={steps}", f"out={shown}", f"workers={launcher.workers}"),
                    ]
                )
                if code:
                    raise SystemExit(code)
            if path.is_file():
                found[title] = read_settings(policy, scenario.name, path)
    if search != "none":
        found["constant action"] = _constant(env, scenario, scale)
    return found


def _constant(env: str, scenario: Scenario, scale: Scale) -> dict[str, Any]:
    """The best constant action, by the same search and budget as a policy's settings."""
    score = Score()
    kind = partial(ConstantAction, env)
    made = plan(scale.budget, scale.seeds, scale.first)
    with closing(Episodes(kind, [scenario], _kept(f"constant-{env}", [scenario]))) as episodes:
        asked = from_optuna(
            action_space_of(env, scenario),
            dict,
            partial(score.loss, most_gpu_hours=episodes.most_gpu_hours),
            0,
        )
        return halve(episodes, asked, made, score).trials[0].parameters


def _kept(name: str, scenarios: Sequence[Scenario]) -> Path:
    return default_folder() / f"worlds_{name}_{fingerprint(name, scenarios)}.jsonl"


def _players(
    env: str, scenario: Scenario, found: Mapping[str, dict[str, Any]]
) -> list[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Name, maker and settings of everybody."""
    plain = [name for name in policies_for(scenario) if name not in TUNED_NAMES]
    players: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [
        (name, partial(make_policy, name), {}) for name in (*plain, *WORLDS[env].variants)
    ]
    for title, settings in found.items():
        if title == "constant action":
            players.append((title, partial(ConstantAction, env), settings))
        else:
            policy = title.removesuffix("-tuned").removesuffix(" at 99 %")
            players.append((title, partial(TUNABLE[policy], title), settings))
    players += [
        ("do-nothing", DoNothing, {}),
        ("random", partial(RandomActions, env, False), {}),
        ("random, masked", partial(RandomActions, env, True), {}),
    ]
    return players


def _judge(
    name: str,
    kind: Callable[..., Any],
    settings: Mapping[str, Any],
    judged: Sequence[Scenario],
    seeds: Sequence[int],
    launcher: Launcher,
) -> list[Outcome]:
    with closing(Episodes(kind, judged, _kept(name, judged), launcher)) as episodes:
        return episodes.outcomes(settings, seeds)


def table(rows: Sequence[Row], episodes: int, command: str, *, at_target: bool) -> str:
    """Markdown: the best reward first, then the world's tension."""
    ordered = sorted(rows, key=lambda row: -row.mean("reward"))
    best = np.array([o.reward for o in ordered[0].outcomes])
    lines = [
        f"`{command}`: {episodes} episodes each.",
        "",
        "| policy | reward [95 %] | behind the first [95 %] | on time % | worst class % | GPU-hours |",
        "|---|---|---|---|---|---|",
    ]
    for row in ordered:
        rewards = np.array([o.reward for o in row.outcomes])
        behind = "" if row is ordered[0] else str(paired_difference(rewards, best))
        lines.append(
            f"| {row.name} | {mean_interval(rewards)} | {behind} "
            f"| {100 * row.mean('attainment'):.2f} | {100 * row.worst_class:.2f} "
            f"| {row.mean('gpu_hours'):.4g} |"
        )
    return "\n".join([*lines, "", tension(rows) if at_target else gain(ordered)])


BLIND = ("static", "constant", "do-nothing", "random")
"""How the names of those begin that look at nothing."""

FIXED = (*BLIND, "distserve", "jsq", "power-of-two", "machine-wide")
"""And of those that never change their fleet."""


def gain(ordered: Sequence[Row]) -> str:
    """One sentence: how far the best rule is ahead of the best that looks at nothing."""
    rule = next(row for row in ordered if not row.name.startswith(BLIND))
    blind = next(row for row in ordered if row.name.startswith(BLIND))
    ahead = paired_difference(
        *(np.array([o.reward for o in row.outcomes]) for row in (rule, blind))
    )
    return (
        f"Tension: {rule.name} has {ahead} more reward than {blind.name}, which looks at nothing."
    )


def tension(rows: Sequence[Row]) -> str:
    """One sentence: GPU-hours of the cheapest fixed fleet and of the cheapest other at the target."""
    good = [row for row in rows if row.worst_class >= TARGET]
    fixed = [row for row in good if row.name.startswith(FIXED)]
    rules = [row for row in good if row not in fixed]
    if not fixed or not rules:
        who = "no fixed fleet" if not fixed else "no rule"
        return f"Tension: {who} here has 99 % of every class on time."
    cheapest, best = (min(some, key=lambda row: row.mean("gpu_hours")) for some in (fixed, rules))
    a, b = cheapest.mean("gpu_hours"), best.mean("gpu_hours")
    return (
        f"Tension: at 99 % of every class {cheapest.name} takes {a:.4g} GPU-hours, {best.name} {b:.4g}: "
        f"{a / b:.2f} times."
    )


def put(page: Path, env: str, text: str) -> None:
    """The table between its two marks of a page; at the end where there are none yet."""
    start, end = f"<!-- worlds: {env} -->", "<!-- end -->"
    block = f"{start}\n{text}\n{end}"
    old = page.read_text(encoding="utf-8")
    marked = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    if marked.search(old):
        new = marked.sub(lambda _: block, old)
    else:
        new = f"{old.rstrip()}\n\n### Everybody at their best: {env}\n\n{block}\n"

    def write(part: Path) -> None:
        part.write_text(new, encoding="utf-8")

    replace_file(page, write)
    print(f"written: {page}")


if __name__ == "__main__":
    sys.exit(main())
