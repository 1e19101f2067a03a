"""Record Minari datasets, and learn from them alone.

    python -m agents.offline make env=mixed-slo-hours out=FOLDER [KEY=VALUE ...]

    policies=random,static-tuned,chiron-tuned    who plays; each becomes a dataset llmscale/ENV/POLICY-v0
    episodes=8             of each policy, all with the same requests
    seed=0                 another one gives other requests
    scenario.FIELD=VALUE   changes the scenario (scenario.fleet.max_gpus=12)

    python -m agents.offline learn data=FOLDER [KEY=VALUE ...]

    method=iql             or bc: implicit Q-learning, behaviour cloning
    datasets=A,B           policies whose datasets are learnt from (default: all of the folder)
    steps=5000             minibatches of 256 decisions
    seed=0                 of the networks
    episodes=10            of the table, with the seeds 10000 and up
    policies=static,static-tuned,chiron-tuned    compared with, or none
    out=FOLDER             where the table goes (default: results/offline-ENV-METHOD)
    scenario.FIELD=VALUE   changes the scenario of the table (scenario.workload=mixed-slo/test-hours)

FOLDER is what Minari calls its datasets path: MINARI_DATASETS_PATH=FOLDER minari list local. Needs the extras
`train` and `offline`. docs/offline.md explains both.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents.configuration.config import EVALUATION_SEED, environment_id
from agents.runs.files import provenance, said, write_json
from llmscale_env._cli import (
    Slip,
    check_folder,
    closest,
    needs,
    one_of,
    parse_scenario_words,
    run_command,
    whole,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 after a slip (named in one line), 130 when interrupted."""
    return run_command("offline", __doc__, argv, _run)


def _run(words: Sequence[str]) -> int:
    commands = {"make": make, "learn": learn}
    if words[0] not in commands:
        raise Slip(f"unknown command {words[0]!r}{closest(words[0], commands)}")
    return commands[words[0]](words[1:])


def make(words: Sequence[str]) -> int:
    """Record datasets."""
    options, scenario_name, overrides = parse_scenario_words(
        words, ("env", "policies", "episodes", "seed", "out")
    )
    if scenario_name is not None:
        raise Slip(f"scenario = {scenario_name!r}: env= says which; scenario.FIELD= changes it")
    env = options.get("env", "mixed-slo-hours")
    environment_id(env)
    if "out" not in options:
        raise Slip("out= is missing: the folder for the datasets")
    out = Path(options["out"])
    episodes = whole(options, "episodes", 8, 1, 100_000)
    seed = whole(options, "seed", 0, 0, 100_000)
    policies = options.get("policies", "random,static-tuned,chiron-tuned").split(",")
    scenario = _scenario(env, overrides)
    _check_policies(policies, scenario, ("random",))
    check_folder("out", out)
    needs("minari", "h5py")
    from agents.learning.translation import TranslationError
    from agents.offline.data import record

    for policy in policies:
        try:
            name, reward = record(env, policy, episodes, seed, out, overrides)
        except TranslationError as error:
            raise Slip(f"policies: {policy!r}: {error}") from None
        print(f"{name}  {episodes} episodes  mean reward {reward:.2f}", flush=True)
    return 0


def learn(words: Sequence[str]) -> int:
    """Learn from datasets, and compare."""
    options, scenario_name, overrides = parse_scenario_words(
        words, ("data", "method", "datasets", "steps", "seed", "episodes", "policies", "out")
    )
    if scenario_name is not None:
        raise Slip(f"scenario = {scenario_name!r}: the data say which; scenario.FIELD= changes it")
    from agents.offline.data import load, names

    if "data" not in options:
        raise Slip("data= is missing: a folder that `make` has written")
    folder = Path(options["data"])
    method = one_of(options, "method", ("iql", "bc"))
    steps = whole(options, "steps", 5000, 1, 10**8)
    seed = whole(options, "seed", 0, 0, 2**31 - 1)
    episodes = whole(options, "episodes", 10, 1, 100_000)
    found = names(folder)
    env, chosen = _chosen(found, options.get("datasets"))
    environment_id(env)
    out = Path(options.get("out", f"results/offline-{env}-{method}"))
    others = options.get("policies", "static,static-tuned,chiron-tuned")
    others_named = [] if others == "none" else others.split(",")
    scenario = _scenario(env, overrides)
    _check_policies(others_named, scenario)
    check_folder("out", out)
    needs("minari", "h5py", "torch")
    import torch

    from agents.configuration.environments import make_codec
    from agents.evaluate import compare, listed
    from agents.offline import learners
    from baselines import make_policy
    from llmscale_env.control.reward import even_seeds

    torch.set_num_threads(1)
    data = load(folder, chosen)
    codec = make_codec(env, scenario)
    if data.observations.shape[1] != len(codec.encoder.low) or list(data.nvec) != list(
        codec.decoder.nvec
    ):
        raise Slip(f"data = {str(folder)!r}: has other observations or actions than {env} has now")
    said(f"{len(data.rewards):,} decisions of {', '.join(chosen)}")
    actor = learners.learn(data, method, steps, seed, said)
    policies: list[Any] = [learners.OfflinePolicy(actor, codec, method)]
    policies += [make_policy(name) for name in others_named]
    seeds = even_seeds(scenario, EVALUATION_SEED, episodes)
    text, places = compare(policies, scenario, seeds, out)
    write_json(out / "evaluation.json", provenance(words, "agents.offline"))
    print(text, listed(places), sep="\n", flush=True)
    return 0


def _chosen(found: Sequence[str], asked: str | None) -> tuple[str, list[str]]:
    """The environment of the datasets asked for, and their names."""
    from agents.offline.data import dataset_id

    envs = sorted({name.split("/")[1] for name in found})
    if len(envs) > 1:
        raise Slip(f"data: holds datasets of several environments, {envs}; learn takes one")
    if asked is None:
        return envs[0], list(found)
    chosen = [dataset_id(envs[0], policy) for policy in asked.split(",")]
    for name in chosen:
        if name not in found:
            raise Slip(f"datasets: there is no {name}{closest(name, found)}")
    return envs[0], chosen


def _scenario(env: str, overrides: Any) -> Any:
    from llmscale_env.scenarios import ScenarioError, load_scenario

    try:
        return load_scenario(env, **overrides)
    except ScenarioError as error:
        raise Slip(str(error)) from None


def _check_policies(policies: Sequence[str], scenario: Any, also: Sequence[str] = ()) -> None:
    from baselines import POLICY_NAMES, PolicyError, make_policy, misfit

    for name in policies:
        if policies.count(name) > 1:
            raise Slip(f"policies: {name!r} is given twice")
        kind = name.partition(":")[0]
        if name in also:
            continue
        if kind not in POLICY_NAMES:
            known = (*POLICY_NAMES, *also)
            raise Slip(f"policies: unknown policy {kind!r}{closest(kind, known)}")
        try:
            make_policy(name).reset(scenario, 0)
        except PolicyError as error:
            raise Slip(f"policies: {misfit(name, scenario, error)}") from None


if __name__ == "__main__":
    sys.exit(main())
