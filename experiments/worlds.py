"""Every policy at its best in a world: the same budget of search for each, judged on other days.

    llmscale worlds env=A,B [scale=quick] [KEY=VALUE ...]  (or: python -m experiments.worlds ...)

    env=A,B              environments; scale=paper alone: all, which takes hours
    scale=paper          160 episodes of search each (64 where one takes seconds), and both pages'
                         tables; quick: 6, nothing kept
    search=missing       searches for whom the package has no settings yet (baselines/tuned); "all":
                         for every policy again; "none": for none
    episodes=N           that every policy is judged by: seeds 10000, 10001, ... (mixed-slo: of each
                         test day; multi-region: those under which weekdays come equally often)
    planners=true        also those that simulate what they may order, and take minutes for an
                         episode; their settings are not searched
    learned=A,B          run folders of agents.train, judged on the same episodes where they belong
    page=FILE            where the whole table goes, between the environment's two marks (docs/
                         leaderboard.md); "none": nowhere
    summary=FILE         where a short one goes, likewise (docs/worlds.md)
    workers=1            processes

Every policy with parameters is searched over them, the fixed fleet among them, and so is one
constant action of the environment. Beside them stand the policies at their published constants,
the variants that the pages name, nobody (do-nothing) and chance, with and without action masks.
Searches are for reward; "at 99 %" says that one was for the fewest GPU-hours with 99 % of every
class on time. Episodes are kept in the user's cache (but for learned policies), so that a command
that was interrupted goes on.

The tension of a world is what the best fixed fleet costs, in GPU-hours, over what the best rule
does, both at 99 % of every class; where nobody is searched for that, how much more reward the best
rule has than the best that looks at nothing.

Examples:
    llmscale worlds env=burst-multicast scale=quick
    llmscale worlds env=mixed-slo,placement scale=paper workers=2
    llmscale worlds env=mixed-slo search=none learned=runs/mine page=none summary=none
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from agents import blind_players
from agents.blind_players import ConstantAction, DoNothing, RandomActions, action_space_of
from agents.statistics import mean_interval, paired_difference
from baselines import make_policy, policies_for, tune
from baselines.make import TUNED_NAMES
from baselines.registry import POLICIES, TUNABLE
from baselines.tuned_settings import FOLDER, read_settings, settings_path
from baselines.tuning.episodes import Episodes, default_folder, fingerprint
from baselines.tuning.halving import plan
from baselines.tuning.search import TunerMissing, from_optuna, halve
from baselines.tuning.trials import Outcome, Score, worst_class
from llmscale_env import _spread
from llmscale_env._cli import (
    Slip,
    check_file,
    environment_of,
    flag,
    one_line,
    one_of,
    parse_options,
    run_command,
    some_of,
    whole,
)
from llmscale_env._spread import Launcher, OtherCode, WorkerLost, launcher_of
from llmscale_env._writing import replace_file
from llmscale_env.control.reward import even_seeds
from llmscale_env.scenarios import load_scenario
from llmscale_env.scenarios.basis import times_told
from llmscale_env.scenarios.schema import Scenario

TARGET = 0.99
FIRST_TEST_SEED = 10_000
PLANNERS = frozenset(name for name, each in POLICIES.items() if each.plans)
SLOW_BUDGET = 64
AT_TARGET = FOLDER / "at-99"


@dataclass(frozen=True)
class World:
    """Where an environment's policies are searched and judged.

    Attributes:
        searched: scenario of the search.
        judged: scenarios on which they are judged.
        paper: the policy of the environment's paper.
        variants: that a page names, beside those that `policies_for` has.
        at_target: whether settings are also searched for the fewest GPU-hours at 99 % (not where the number
            of GPUs is given, nor where an episode takes seconds).
        slow: an episode takes seconds, so searches have 64 of them in place of 160.
    """

    searched: str
    judged: Callable[[], list[Scenario]]
    paper: str
    variants: tuple[str, ...] = ()
    at_target: bool = True
    slow: bool = False


def _test_days() -> list[Scenario]:
    """The test days of mixed-slo, each by itself."""
    return [
        load_scenario(
            "mixed-slo",
            **{f"workload.streams.{s}.arrivals.days": [day] for s in ("chat", "code")},
        )
        for day in (11, 12, 13, 14)
    ]


def _itself(
    env: str, paper: str, *variants: str, at_target: bool = True, slow: bool = False
) -> World:
    return World(env, lambda: [load_scenario(env)], paper, variants, at_target, slow)


WORLDS: dict[str, World] = {
    "mixed-slo": World("mixed-slo-hours", _test_days, "chiron"),
    "multi-model-queue": _itself(
        *("multi-model-queue", "qlm", "qlm:swapping=false", "shepherd:output=mean"),
        at_target=False,
        slow=True,
    ),
    "placement": _itself("placement", "aladdin", "jsq:fleet=start", "aladdin:prompts=saturating"),
    "placement-per-request": _itself("placement-per-request", "aladdin", at_target=False),
    "burst-multicast": _itself(
        *("burst-multicast", "blitzscale", "blitzscale:min_prefill=4", "blitzscale:base_over=busy")
    ),
    "multi-region": _itself("multi-region", "lt-ua", at_target=False, slow=True),
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
    """Somebody's episodes.

    Attributes:
        name: as the table says it.
        outcomes: of each episode.
        is_rule: false for networks and planners, which a world's tension is not measured by.
    """

    name: str
    outcomes: list[Outcome]
    is_rule: bool = True

    def mean(self, what: str) -> float:
        """Of `reward`, `attainment` or `gpu_hours`."""
        return float(np.mean([getattr(o, what) for o in self.outcomes]))

    @property
    def worst_class(self) -> float:
        """Mean attainment of the class that has the lowest."""
        return worst_class(self.outcomes)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 a slip (named in one line)."""
    return run_command(
        *("worlds", __doc__, argv, _run),
        interrupted="interrupted; finished episodes are kept, the same command goes on from there",
        slips=(WorkerLost, OtherCode, TunerMissing),
    )


def _run(words: Sequence[str]) -> int:
    allowed = ("env", "scale", "search", "episodes", "planners", "learned", "page", "summary")
    options = parse_options(list(words), (*allowed, *_spread.WORDS))
    for part in filter(None, options.get("env", "").split(",")):
        environment_of(part, WORLDS)
    names = some_of(options, "env", tuple(WORLDS))
    scale_name = one_of(options, "scale", tuple(SCALES))
    search = one_of(options, "search", ("missing", "all", "none"))
    planners = flag(options, "planners")
    full = SCALES[scale_name]
    paper = scale_name == "paper"
    page = _page(options, "page", "docs/leaderboard.md" if paper else "none")
    summary = _page(options, "summary", "docs/worlds.md" if paper else "none")
    if page and summary and page.resolve() == summary.resolve():
        raise Slip(f"summary = {str(summary)!r}: must be another file than page")
    for each, env in product(filter(None, (page, summary)), names):
        marked(each.read_text(encoding="utf-8"), env, each)
    from tqdm import tqdm

    launcher = launcher_of(options, workers=1)
    learned = _learned(options, names)
    for env in names:
        world = WORLDS[env]
        scale = replace(full, budget=min(full.budget, SLOW_BUDGET)) if world.slow else full
        scenario = load_scenario(world.searched)
        judged = world.judged()
        default = max(1, scale.episodes // len(judged) // (5 if env == "mixed-slo" else 1))
        episodes = whole(options, "episodes", default, 1, 1000)
        seeds = even_seeds(judged[0], FIRST_TEST_SEED, episodes)
        found = _searched(env, scenario, scale, search, launcher, keep=paper)
        rows = []
        for player in (*_players(env, scenario, found, planners), *learned[env]):
            name, kind, settings = player
            is_learned = player in learned[env]
            kept = None if is_learned else _kept(name, judged)
            shown = {"unit": "episode", "disable": None, "leave": False, "desc": name}
            with (
                closing(Episodes(kind, judged, kept, launcher)) as played,
                tqdm(total=len(seeds), **shown) as bar,
            ):
                played.after_each = _each_one(bar)
                is_rule = not is_learned and name.partition(":")[0] not in PLANNERS
                rows.append(Row(name, played.outcomes(settings, seeds), is_rule))
            print(f"{env}: {name}: reward {rows[-1].mean('reward'):.2f}", flush=True)
        rows, given = distinct(rows), len(judged) * episodes
        ordered = sorted(rows, key=lambda row: -row.mean("reward"))
        command = f"python -m experiments.worlds env={env} scale={scale_name}"
        for word in ("episodes", "search", "planners"):
            command += f" {word}={options[word]}" if word in options else ""
        if learned[env]:
            command += f" learned={options['learned']}"
        head = f"`{command}`: {rests_on(len(rows[0].outcomes), given)}"
        end = tension(rows) if world.at_target else gain(ordered)
        print(table(ordered, head, end))
        print("\n".join(times_told(scenario)))
        if page:
            put(page, env, table(ordered, head, end))
        if summary:
            if page:
                there = Path(os.path.relpath(page, summary.parent)).as_posix()
                head += f"\n[The leaderboard]({there}#{env}) has all {len(rows)} rows."
            put(summary, env, table(chief(ordered, world), head, end), TITLE.format(env))
    return 0


TITLE = "### Every policy at its best: {}"


def _page(options: Mapping[str, str], key: str, default: str) -> Path | None:
    """A page that is there and can be written, or none."""
    text = options.get(key, default)
    if text == "none":
        return None
    if not Path(text).is_file():
        raise Slip(f"{key} = {text!r}: there is no such file")
    check_file(key, Path(text))
    try:
        Path(text).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise Slip(f"{key} = {text!r}: is no text in UTF-8") from None
    return Path(text)


Player = tuple[str, Callable[..., Any], dict[str, Any]]
"""Name, maker and settings."""


def _learned(options: Mapping[str, str], envs: Sequence[str]) -> dict[str, list[Player]]:
    """By environment, the trained policies that `learned=` names.

    Raises:
        Slip: one cannot be read, or fits none of the environments.
    """
    found: dict[str, list[Player]] = {env: [] for env in envs}
    models: set[Path] = set()
    for folder in options["learned"].split(",") if "learned" in options else ():
        from agents.learned import LearnedPolicy
        from agents.models.store import ModelError, find_model

        try:
            model = find_model(folder).resolve()
            if model in models:
                raise Slip("is given twice")
            models.add(model)
            policy = LearnedPolicy(folder)
            trained_on = policy.config.env
            env = next((e for e in envs if trained_on in (e, WORLDS[e].searched)), None)
            if env is None:
                raise ModelError(f"was trained on {trained_on!r}, not on {', '.join(envs)}")
            policy.fit(WORLDS[env].judged()[0])
        except (ModelError, Slip) as error:
            raise Slip(f"learned = {folder!r}: {error}") from None
        name = f"{policy.config.agent} (learned: {folder})"
        found[env].append((name, partial(_network, folder), {}))
    return found


def _network(folder: str) -> Any:
    """A trained policy; made in the process that plays it."""
    import torch

    from agents.learned import LearnedPolicy

    torch.set_num_threads(1)  # nets this small only wait for each other's threads
    return LearnedPolicy(folder)


Found = dict[str, dict[str, Any]]


def _each_one(bar: Any) -> Callable[[int], object]:
    """Moves a bar of episodes, whatever their length."""
    return lambda steps: bar.update()


def _searched(
    env: str, scenario: Scenario, scale: Scale, search: str, launcher: Launcher, *, keep: bool
) -> Found:
    """Best settings by player: NAME-tuned, "NAME at 99 %" and the constant action."""
    found: Found = {}
    steps = scale.budget * scenario.n_steps
    for policy in policies_for(scenario, planners=False):
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
                tune.search(
                    [
                        *(f"policy={policy}", f"env={scenario.name}", "search=optuna", *score),
                        *(f"seeds={scale.seeds}", f"first_seeds={scale.first}"),
                        *(f"budget_steps={steps}", f"out={shown}", f"workers={launcher.workers}"),
                    ]
                )
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
    """Where a player's episodes are kept: with what makes them, the blind players' own code included."""
    made = fingerprint(name + Path(blind_players.__file__).read_text(encoding="utf-8"), scenarios)
    return default_folder() / f"worlds_{name}_{made}.jsonl"


def _players(
    env: str, scenario: Scenario, found: Mapping[str, dict[str, Any]], planners: bool
) -> list[Player]:
    """Everybody who is not trained."""
    plain = [name for name in policies_for(scenario, planners=planners) if name not in TUNED_NAMES]
    players: list[Player] = [
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


def distinct(rows: Sequence[Row]) -> list[Row]:
    """The rows without episodes that are, for every policy, the same as an earlier one."""
    first: dict[str, int] = {}
    for k in range(len(rows[0].outcomes)):
        first.setdefault(repr([row.outcomes[k] for row in rows]), k)
    return [replace(row, outcomes=[row.outcomes[k] for k in first.values()]) for row in rows]


def rests_on(episodes: int, given: int) -> str:
    """What the intervals of a table rest on, in words."""
    same = f" (those of {given} that differ)" if given > episodes else ""
    if episodes == 1:
        return f"1 episode each{same}: no intervals."
    return f"{episodes} episodes each{same}."


def table(ordered: Sequence[Row], head: str, end: str) -> str:
    """Markdown: `head`, the rows beside the first of them, `end`."""
    best = np.array([o.reward for o in ordered[0].outcomes])
    lines = [
        head,
        "",
        "| policy | reward [95 %] | behind the first [95 %] | on time % | worst class % | GPU-hours |",
        "|---|---|---|---|---|---|",
    ]
    for row in ordered:
        rewards = np.array([o.reward for o in row.outcomes])
        behind = "" if row is ordered[0] else str(paired_difference(rewards, best))
        lines.append(
            f"| {_cell(row.name)} | {mean_interval(rewards)} | {behind} "
            f"| {100 * row.mean('attainment'):.2f} | {100 * row.worst_class:.2f} "
            f"| {row.mean('gpu_hours'):.4g} |"
        )
    return "\n".join([*lines, "", end])


def _cell(text: str) -> str:
    """Text that stays within its cell of a Markdown table."""
    return one_line(text).replace("|", "\\|")


ENDS = ("constant action", "do-nothing", "random")
"""Who stands in every table."""

BLIND = ("static", *ENDS)
"""How the names of those begin that look at nothing."""

FIXED = (*BLIND, "distserve", "jsq", "power-of-two", "machine-wide")
"""And of those that never change their fleet."""


def best_rule(ordered: Sequence[Row], still: tuple[str, ...]) -> Row:
    """The first rule that is none of those that stand still."""
    return next(row for row in ordered if row.is_rule and not row.name.startswith(still))


def chief(ordered: Sequence[Row], world: World) -> list[Row]:
    """The rows of the short table.

    They are the first, the best rule, the paper's policy as published and tuned, the best fixed fleet, and
    those that stand in every table.
    """
    still = FIXED if world.at_target else BLIND
    names = [row.name for row in ordered]
    fleets = [name for name in names if name.startswith(still) and not name.startswith(ENDS)]
    shown = (names[0], best_rule(ordered, still).name, *fleets[:1])
    shown += (world.paper, f"{world.paper}-tuned", *ENDS)
    return [row for row in ordered if row.name in shown]


def gain(ordered: Sequence[Row]) -> str:
    """One sentence: how far the best rule is ahead of the best that looks at nothing."""
    rule = best_rule(ordered, BLIND)
    blind = next(row for row in ordered if row.name.startswith(BLIND))
    ahead = paired_difference(
        *(np.array([o.reward for o in row.outcomes]) for row in (rule, blind))
    )
    return (
        f"Tension: {rule.name} has {ahead} more reward than {blind.name}, which looks at nothing."
    )


def tension(rows: Sequence[Row]) -> str:
    """One sentence: GPU-hours of the cheapest fixed fleet and of the cheapest other rule at the target."""
    good = [row for row in rows if row.worst_class >= TARGET and row.is_rule]
    fixed = [row for row in good if row.name.startswith(FIXED)]
    rules = [row for row in good if row not in fixed]
    if not fixed or not rules:
        who = "no fixed fleet" if not fixed else "no rule that changes its fleet"
        return f"Tension: {who} here has 99 % of every class on time."
    cheapest, best = (min(some, key=lambda row: row.mean("gpu_hours")) for some in (fixed, rules))
    a, b = cheapest.mean("gpu_hours"), best.mean("gpu_hours")
    if a < b:
        return (
            "Tension: no rule keeps 99 % of every class on time with fewer GPU-hours than a fixed fleet: "
            f"{cheapest.name} takes {a:.4g}, {best.name} {b:.4g}."
        )
    return (
        f"Tension: with 99 % of every class on time {cheapest.name} takes {a:.4g} GPU-hours, "
        f"{a / b:.2f} times the {b:.4g} of {best.name}."
    )


_FENCE = re.compile(
    r"^ {0,3}(?P<fence>`{3,}(?=[^`\n]*$)|~{3,}).*?(?:^ {0,3}(?P=fence)[`~]*[ \t]*$|\Z)",
    re.DOTALL | re.MULTILINE,
)


def _without_code(text: str) -> str:
    """The text with blanks in the place of fenced code, so that everything else is where it was."""
    return _FENCE.sub(lambda code: re.sub("[^\n]", " ", code[0]), text)


def marked(text: str, env: str, page: Path) -> re.Match[str] | None:
    """Where the environment's table is, its two marks included; marks in fenced code are none.

    Raises:
        Slip: the second mark is missing.
    """
    prose = _without_code(text)
    start = f"<!-- worlds: {env} -->"
    # Never over another environment's mark: what lies between would be lost.
    found = re.search(f"{re.escape(start)}((?!<!-- worlds:).)*?<!-- end -->", prose, re.DOTALL)
    if found is None and start in prose:
        raise Slip(f"{page}: no <!-- end --> after {start}")
    return found


def put(page: Path, env: str, text: str, title: str = "") -> None:
    """The text between the environment's two marks of a page, which keeps its kind of line ends.

    Where there are none yet, they go under `title` to the end of the section `## ENV` or `## ENV: ...`. A
    section that is not there either is made at the end of the page.
    """
    block = f"<!-- worlds: {env} -->\n{text}\n<!-- end -->"
    raw = page.read_bytes().decode()
    line_end = "\r\n" if "\r\n" in raw else "\n"
    old = raw.replace("\r\n", "\n")
    there = marked(old, env, page)
    if there:
        new = old[: there.start()] + block + old[there.end() :]
    else:
        prose = _without_code(old)
        heading = re.search(rf"^## {re.escape(env)}(?::.*)?$", prose, re.MULTILINE)
        if heading is None:
            before, after = f"{old.rstrip()}\n\n## {env}".lstrip(), ""
        else:
            after_it = re.search("^## ", prose[heading.end() :], re.MULTILINE)
            end = heading.end() + after_it.start() if after_it else len(old)
            before, after = old[:end].rstrip(), old[end:]
        new = "\n\n".join(part for part in (before, title, block, after) if part).rstrip() + "\n"

    def write(part: Path) -> None:
        part.write_bytes(new.replace("\n", line_end).encode())

    replace_file(page, write)
    print(f"written: {page}")


if __name__ == "__main__":
    sys.exit(main())
